//! `starling who`: which nodes hold tokens and locks of a file, and which wait for them.
//!
//! To look must not change what there is to see: a look at a file's attributes takes a token of it
//! from others. So the path is followed by names only, here up to the file's directory and in the
//! serving process from the mount's root, and the first node asks the file's manager.

use crate::control::{self, Request, ask};
use crate::node::remote::{OTHER_ANSWER, RemoteFirstNode};
use crate::usage;
use client::Client;
use cluster::config::node_of;
use cluster::control::{ControlAnswer, ControlRequest, WhoReport};
use cluster::lock_server::ClientLock;
use cluster::member::FirstNode;
use cluster::members::Members;
use manager::api::{TokenUse, TokenWait};
use manager::token::Mode;
use serde_json::{Value, json};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use types::{ClientId, FileId};
use vfs::fs::{FileLock, LockSpace};

/// How long the answer may take.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(15);

/// The answer of a mount that shares nothing with other nodes.
pub fn unshared(why: &str) -> Value {
    json!({ "shared": false, "why": why })
}

/// The file at a path from the root, by the names of its directories; `None` if there is none.
async fn find(client: &Client, path: &[u8]) -> Result<Option<FileId>, String> {
    let mut at = FileId::ROOT;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        match client.find(at, name).await.map_err(|e| e.to_string())? {
            Some(next) => at = next,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

/// Does not wait for ever: what is looked for may be what others wait for, too.
async fn in_time(answer: impl Future<Output = Result<Value, String>>) -> Result<Value, String> {
    let answer = tokio::time::timeout(ANSWER_TIME_MAX, answer).await;
    answer.unwrap_or_else(|_| Err("no answer in time: see `starling nodes` for nodes that are down".into()))
}

/// The answer if there is no such file.
fn nothing() -> Value {
    json!({ "shared": true, "file": null })
}

/// The answer of a file system that no other node may join.
pub async fn from_only_node(client: &Client, path: &[u8]) -> Result<Value, String> {
    in_time(async {
        let mut answer = unshared("one node mounts this file system; nothing is shared");
        answer["file"] = json!(find(client, path).await?.map(FileId::raw));
        Ok(answer)
    })
    .await
}

/// The answer of the first node.
pub async fn from_first(client: &Client, members: &Members, path: &[u8]) -> Result<Value, String> {
    in_time(async {
        let Some(file) = find(client, path).await? else { return Ok(nothing()) };
        members.who(file).await.map(|report| shown(file, &report)).map_err(|e| e.to_string())
    })
    .await
}

/// The answer of a node that has joined: it asks the first one.
pub async fn from_joined(client: &Client, first: &RemoteFirstNode, path: &[u8]) -> Result<Value, String> {
    in_time(async {
        let Some(file) = find(client, path).await? else { return Ok(nothing()) };
        match first.control(ControlRequest::Who(file)).await {
            Ok(ControlAnswer::Who(report)) => Ok(shown(file, &report)),
            Ok(_) => Err(OTHER_ANSWER.into()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await
}

fn right(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "read",
        Mode::Write => "write",
    }
}

/// True if a token must go before the request can be served.
fn token_excludes(token: &TokenUse, wait: &TokenWait) -> bool {
    token.client != wait.client && (token.mode == Mode::Write || wait.mode == Mode::Write)
}

/// True if a lock must go before the request can be served.
fn lock_excludes(held: &ClientLock, wanted: &ClientLock) -> bool {
    let (one, two) = (&held.lock, &wanted.lock);
    (held.client, one.owner) != (wanted.client, two.owner)
        && one.space == two.space
        && (one.exclusive == Some(true) || two.exclusive == Some(true))
        && one.start <= two.end
        && two.start <= one.end
}

/// A report as JSON.
fn shown(file: FileId, report: &WhoReport) -> Value {
    let WhoReport { manager, place, tokens, locks, names } = report;
    let name = |client: ClientId| {
        let node = node_of(client);
        names.get(&node).cloned().unwrap_or_else(|| node.to_string())
    };
    let token = |token: &TokenUse| {
        let recalled = token.recalled.map(right);
        json!({ "node": name(token.client), "mode": right(token.mode), "recalled": recalled })
    };
    let token_wait = |wait: &TokenWait| {
        let holders = tokens.holders.iter().filter(|token| token_excludes(token, wait));
        let holders: Vec<String> = holders.map(|token| name(token.client)).collect();
        json!({ "node": name(wait.client), "mode": right(wait.mode), "for": holders })
    };
    let lock = |ClientLock { client, lock }: &ClientLock| {
        let FileLock { space, pid, exclusive, start, end, .. } = *lock;
        let kind = match space {
            LockSpace::Posix => "fcntl",
            LockSpace::Flock => "flock",
            LockSpace::Mixed => "flock or fcntl",
        };
        let mode = if exclusive == Some(true) { "exclusive" } else { "shared" };
        // The last byte; none if the lock reaches to the end of the file.
        let end = Some(end).filter(|end| *end < i64::MAX as u64);
        json!({ "node": name(*client), "process": pid, "kind": kind, "mode": mode, "start": start, "end": end })
    };
    let lock_wait = |wanted: &ClientLock| {
        let holders = locks.held.iter().filter(|held| lock_excludes(held, wanted));
        let holders = holders.map(|held| json!({ "node": name(held.client), "process": held.lock.pid }));
        let mut shown = lock(wanted);
        shown["for"] = holders.collect();
        shown
    };
    json!({
        "shared": true,
        "file": file.raw(),
        "manager": {
            "number": manager.raw(),
            "node": names.get(place).cloned().unwrap_or_else(|| place.to_string()),
        },
        "tokens": {
            "holders": tokens.holders.iter().map(token).collect::<Vec<_>>(),
            "open_without_token": tokens.open_at.iter().map(|client| name(*client)).collect::<Vec<_>>(),
            "waiting": tokens.waiting.iter().map(token_wait).collect::<Vec<_>>(),
        },
        "locks": {
            "held": locks.held.iter().map(lock).collect::<Vec<_>>(),
            "waiting": locks.waiting.iter().map(lock_wait).collect::<Vec<_>>(),
        },
    })
}

/// The mount points of this machine.
fn mount_points() -> anyhow::Result<Vec<PathBuf>> {
    let table = std::fs::read("/proc/self/mounts")?;
    let lines = table.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(1));
    Ok(points.map(unescaped).collect())
}

/// A path of the table of mounts, where blanks and backslashes are octal numbers.
fn unescaped(text: &[u8]) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// The root of the mount that has a file, and the path from there. Looks at the directories of the
/// path only.
fn place_of(path: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let failed = |e: std::io::Error| usage(format!("{}: {e}", path.display()));
    let absolute = std::path::absolute(path).map_err(failed)?;
    let whole = match (absolute.parent(), absolute.components().next_back()) {
        (Some(parent), Some(std::path::Component::Normal(name))) => parent.canonicalize().map_err(failed)?.join(name),
        _ => absolute.canonicalize().map_err(failed)?,
    };
    let roots = mount_points()?.into_iter().filter(|root| whole.starts_with(root));
    let root = roots.max_by_key(|root| root.as_os_str().len()).unwrap_or_else(|| PathBuf::from("/"));
    let inside = whole.strip_prefix(&root).map(Path::to_path_buf).unwrap_or_default();
    Ok((root, inside))
}

/// `starling who`.
pub async fn run(path: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let (root, inside) = place_of(path)?;
    control::check(&root).map_err(|_| usage(format!("{} is not on a mounted starling file system", path.display())))?;
    let request = Request::Who { path: inside.as_os_str().as_bytes().to_vec() };
    let mut all = ask(&root, request, |_| {}).await?;
    if all["shared"] == json!(false) {
        // Others are not disturbed.
        std::fs::symlink_metadata(path).map_err(|e| usage(format!("{}: {e}", path.display())))?;
    } else if all["file"].is_null() {
        return Err(usage(format!("{}: there is no such file", path.display())));
    }
    all["path"] = json!(path.to_string_lossy());
    if as_json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        lines(&all).iter().for_each(|line| println!("{line}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// An answer as lines.
fn lines(all: &Value) -> Vec<String> {
    if let Some(why) = all["why"].as_str() {
        return vec![why.to_string()];
    }
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("?").to_string();
    let mut lines = vec![
        format!("file       {}, number {}", text(&all["path"]), all["file"]),
        format!("manager    {}, served by {}", all["manager"]["number"], text(&all["manager"]["node"])),
    ];
    let tokens = &all["tokens"];
    for token in list(&tokens["holders"]) {
        let recalled = match token["recalled"].as_str() {
            Some(wanted) => format!("; asked to give it back, since another node wants to {wanted}"),
            None => String::new(),
        };
        lines.push(format!("token      {} may {}{recalled}", text(&token["node"]), text(&token["mode"])));
    }
    for node in list(&tokens["open_without_token"]) {
        lines.push(format!("open       {} has it open without a token", text(&node)));
    }
    for wait in list(&tokens["waiting"]) {
        let holders: Vec<String> = list(&wait["for"]).iter().map(text).collect();
        let holders = if holders.is_empty() { String::new() } else { format!(" for {}", holders.join(", ")) };
        lines.push(format!("waiting    {} to {}{holders}", text(&wait["node"]), text(&wait["mode"])));
    }
    let process = |value: &Value| format!("{} (process {})", text(&value["node"]), value["process"]);
    let lock = |lock: &Value| {
        let range = match (lock["start"].as_u64(), lock["end"].as_u64()) {
            (Some(0), None) => "all bytes".to_string(),
            (Some(start), None) => format!("bytes from {start}"),
            (start, end) => format!("bytes {} to {}", start.unwrap_or(0), end.unwrap_or(0)),
        };
        format!("{}: {}, {}, {range}", process(lock), text(&lock["mode"]), text(&lock["kind"]))
    };
    let locks = &all["locks"];
    lines.extend(list(&locks["held"]).iter().map(|held| format!("lock       {}", lock(held))));
    for wait in list(&locks["waiting"]) {
        let holders: Vec<String> = list(&wait["for"]).iter().map(process).collect();
        lines.push(format!("lock waits {}; for {}", lock(&wait), holders.join(", ")));
    }
    if lines.len() == 2 {
        lines.push("nothing    no node has a token or a lock".to_string());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::lock_server::LocksOnFile;
    use manager::api::FileUse;
    use types::{ManagerId, NodeId};

    fn report() -> WhoReport {
        let (one, two) = (ClientId::new(1), ClientId::new(2));
        let lock = FileLock {
            space: LockSpace::Mixed,
            owner: 5,
            pid: 70,
            exclusive: Some(true),
            start: 0,
            end: i64::MAX as u64,
        };
        let wanted = FileLock { owner: 6, pid: 71, exclusive: Some(false), start: 8, end: 15, ..lock };
        WhoReport {
            manager: ManagerId::new(3),
            place: NodeId::new(1),
            tokens: FileUse {
                holders: vec![TokenUse { client: two, mode: Mode::Write, recalled: Some(Mode::Read) }],
                open_at: vec![ClientId::new(9)],
                waiting: vec![TokenWait { client: one, mode: Mode::Read }],
            },
            locks: LocksOnFile {
                held: vec![ClientLock { client: two, lock }],
                waiting: vec![ClientLock { client: one, lock: wanted }],
            },
            names: [(NodeId::new(0), "one".into()), (NodeId::new(1), "two".into())].into(),
        }
    }

    #[test]
    fn tokens_and_locks_are_shown_with_what_waits_for_whom() {
        let mut all = shown(FileId::new(4711), &report());
        all["path"] = json!("./mnt/file");
        let tokens = json!({
            "holders": [{ "node": "two", "mode": "write", "recalled": "read" }],
            "open_without_token": ["node-8"],
            "waiting": [{ "node": "one", "mode": "read", "for": ["two"] }],
        });
        let waits = json!({
            "node": "one", "process": 71, "kind": "flock or fcntl", "mode": "shared", "start": 8, "end": 15,
            "for": [{ "node": "two", "process": 70 }],
        });
        assert_eq!((&all["tokens"], &all["locks"]["waiting"]), (&tokens, &json!([waits])));
        assert_eq!(
            lines(&all),
            [
                "file       ./mnt/file, number 4711",
                "manager    3, served by two",
                "token      two may write; asked to give it back, since another node wants to read",
                "open       node-8 has it open without a token",
                "waiting    one to read for two",
                "lock       two (process 70): exclusive, flock or fcntl, all bytes",
                "lock waits one (process 71): shared, flock or fcntl, bytes 8 to 15; for two (process 70)",
            ]
        );
        let nothing = WhoReport { tokens: FileUse::default(), locks: LocksOnFile::default(), ..report() };
        assert!(lines(&shown(FileId::new(1), &nothing))[2].contains("no node has a token or a lock"));
        assert_eq!(lines(&unshared("alone")), ["alone"]);
    }

    #[test]
    fn requests_wait_only_for_what_excludes_them() {
        let report = report();
        let (token, wait) = (report.tokens.holders[0], report.tokens.waiting[0]);
        assert!(token_excludes(&token, &wait));
        assert!(!token_excludes(&TokenUse { mode: Mode::Read, ..token }, &wait));
        assert!(!token_excludes(&token, &TokenWait { client: token.client, ..wait }));
        let (held, wanted) = (report.locks.held[0], report.locks.waiting[0]);
        assert!(lock_excludes(&held, &wanted));
        let other = |lock: FileLock| ClientLock { lock, ..held };
        assert!(!lock_excludes(&other(FileLock { exclusive: Some(false), ..held.lock }), &wanted));
        assert!(!lock_excludes(&other(FileLock { end: 7, ..held.lock }), &wanted));
        assert!(!lock_excludes(&held, &held));
    }

    #[test]
    fn paths_of_the_table_of_mounts_are_read() {
        assert_eq!(unescaped(b"/a\\040b\\134c\\d"), Path::new("/a b\\c\\d"));
        let (root, inside) = place_of(Path::new("/proc/self")).unwrap();
        assert_eq!((root.as_path(), inside.as_path()), (Path::new("/proc"), Path::new("self")));
        assert!(place_of(Path::new("/nowhere/at/all")).is_err());
    }
}
