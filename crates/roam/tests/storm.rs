//! Storms: clients do random things, others change the home's files, networks come and go, machines crash. When all has healed, everybody sees
//! the same, nothing that was acknowledged is lost, and nothing was done twice.
//!
//! `STORM_SEED=17 STORM_VERBOSE=1 cargo test -p roam --test storm NAME -- --nocapture` runs one seed again; `STORM_SEEDS=1000` runs so many, from
//! `STORM_FROM` on, and `STORM_KEEP_GOING=1` does not stop at the first that fails.

mod rig;

use host::SplitMix64;
use host::sim::{Machine, SimDisk};
use parking_lot::Mutex;
use rig::session::{How, Op, close, find, open_to_write, parent, perform, random_path, read_all, read_open};
use rig::{Network, Rig, VOLUME};
use roam::conflict::{Deed, Trouble};
use roam::{Client, Settings};
use roam_wire::message::{self, Conflict, User};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use types::{Answer, FileId, FsError, Kind};
use vfs::fs::{Cred, FileSystem, OpenFlags, RenameFlags, SetAttr};
use vfs::mem::MemFs;
use vfs::tree::{TreeEntry, walk};

const ROOT: Cred = Cred::ROOT;
/// Virtual time after which all must be quiet.
const QUIET_TIME_MAX: Duration = Duration::from_secs(1200);
/// Steps of a storm.
const STEP_COUNT: u64 = 60;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sort {
    /// Every client has a directory of its own: nothing may be in conflict.
    Alone,
    /// All are everywhere.
    Together,
    /// All make the same directories, each with files of its own in them: these merge, and nothing is in conflict.
    Merging,
}

/// What storms came to.
#[derive(Default, Debug)]
struct Outcome {
    digest: u64,
    done: u64,
    crashes: u64,
    troubles: u64,
    tags: u64,
    dropped: u64,
    /// Ids of clients that have become others.
    merged: u64,
}

/// What is known of everybody's doings.
#[derive(Default)]
struct Ledger {
    /// Written, and acknowledged.
    acked: BTreeMap<String, String>,
    /// Overwritten or removed by somebody who had seen it.
    dropped: BTreeSet<String>,
    done: u64,
    failures: Vec<String>,
    /// Directories and symlinks that somebody has made, or may have made; by their paths, which mean the same to all.
    shared: BTreeSet<String>,
    maybe_shared: BTreeSet<String>,
    /// What files of one's own contain.
    own: BTreeMap<String, String>,
    /// Files of one's own of which nobody knows what became.
    doubtful: BTreeSet<String>,
}

/// What the user of a client remembers, whatever becomes of the client.
struct Mind {
    number: u8,
    sort: Sort,
    random: SplitMix64,
    count: u64,
    /// What it should have, where nobody else may do anything.
    shadow: MemFs,
    /// Being done.
    pending: Option<Op>,
    /// The contents of this are not known.
    unclear: Option<String>,
    /// Of its own list.
    lines: String,
    /// Perhaps in its list, too.
    line: Option<String>,
    /// A directory that it stays in.
    inside: Option<(FileId, String)>,
}

struct Laptop {
    network: Network,
    disk: SimDisk,
    running: Option<(Machine, Client)>,
    mind: Arc<Mutex<Mind>>,
    ended: Arc<AtomicBool>,
}

struct Storm {
    seed: u64,
    sort: Sort,
    rig: Rig,
    random: SplitMix64,
    laptops: Vec<Laptop>,
    ledger: Arc<Mutex<Ledger>>,
    stop: Arc<AtomicBool>,
    outside_count: u64,
    outcome: Outcome,
}

/// What a worker works with.
#[derive(Clone)]
struct Worker {
    rig_clock: Arc<dyn host::Clock>,
    client: Client,
    mind: Arc<Mutex<Mind>>,
    ledger: Arc<Mutex<Ledger>>,
    stop: Arc<AtomicBool>,
}

fn say(clock: &dyn host::Clock, who: &str, what: impl std::fmt::Display) {
    if std::env::var_os("STORM_VERBOSE").is_some() {
        println!("{:>9.4} {who}: {what}", clock.now().as_secs_f64());
    }
}

/// Words of the form `<who-number>`.
fn tags(bytes: &[u8]) -> BTreeSet<String> {
    let starts = (0..bytes.len()).filter(|at| bytes[*at] == b'<');
    let words = starts.filter_map(|at| {
        let len = bytes[at..].iter().take(12).position(|byte| *byte == b'>')?;
        String::from_utf8(bytes[at..=at + len].to_vec()).ok()
    });
    words.filter(|word| word.contains('-')).collect()
}

fn tags_of(fs: &MemFs) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for entry in fs.dump().iter().filter(|entry| entry.attr.kind == Kind::File) {
        let read = OpenFlags { read: true, ..OpenFlags::default() };
        let Answer::Now(Ok(handle)) = fs.open(&ROOT, entry.attr.id, read) else { continue };
        if let Answer::Now(Ok(bytes)) = fs.read(entry.attr.id, handle, 0, 1 << 20) {
            all.extend(tags(&bytes));
        }
        drop(fs.release(entry.attr.id, handle, None));
    }
    all
}

fn below<'a>(tree: &'a [TreeEntry], top: &str) -> Vec<&'a TreeEntry> {
    let top = format!("{top}/");
    tree.iter().filter(|entry| entry.path.starts_with(top.as_bytes())).collect()
}

/// How two trees differ; the contents of some files do not count.
fn differ(left: &[&TreeEntry], right: &[&TreeEntry], blind: &BTreeSet<Vec<u8>>) -> Option<String> {
    let only = |entries: &[&TreeEntry]| {
        let blinded = entries.iter().map(|entry| {
            let mut entry = (*entry).clone();
            if blind.contains(&entry.path) {
                (entry.attr.size, entry.content) = (0, 0);
            }
            entry
        });
        blinded.collect::<Vec<_>>()
    };
    vfs::tree::difference(&only(left), &only(right))
}

impl Worker {
    fn fail(&self, text: String) {
        self.ledger.lock().failures.push(text);
    }

    fn say(&self, what: impl std::fmt::Display) {
        let number = self.mind.lock().number;
        say(&*self.rig_clock, &format!("client {number}"), what);
    }

    async fn pause(&self, ms_max: u64) {
        let ms = self.mind.lock().random.below(ms_max) + 1;
        self.rig_clock.sleep(Duration::from_millis(ms)).await;
    }

    async fn work(self, ended: Arc<AtomicBool>) {
        // Before it was attached for the first time, there is nothing.
        while self.client.look(|replica, _| replica.node(FileId::ROOT).is_err()) && !self.stop.load(Relaxed) {
            self.pause(500).await;
        }
        let (sort, pending) = {
            let mind = self.mind.lock();
            (mind.sort, mind.pending.is_some())
        };
        match sort {
            Sort::Alone if pending => self.find_out().await,
            Sort::Together => self.mind.lock().pending = None,
            // That was the one before the crash.
            Sort::Merging => self.mind.lock().inside = None,
            _ => {}
        }
        while !self.stop.load(Relaxed) {
            self.pause(700).await;
            match sort {
                Sort::Alone => self.alone().await,
                Sort::Together => self.together().await,
                Sort::Merging => self.merging().await,
            }
            self.ledger.lock().done += 1;
        }
        ended.store(true, Relaxed);
    }

    fn next_tag(&self) -> String {
        let mut mind = self.mind.lock();
        mind.count += 1;
        format!("<{}-{}>", mind.number, mind.count)
    }

    async fn alone(&self) {
        let tag = self.next_tag();
        let (op, shadow) = {
            let mut mind = self.mind.lock();
            let op = match &mind.unclear {
                Some(path) => Op::Write(path.clone(), How::Replace, tag.into_bytes()),
                None if mind.random.chance(1, 12) => {
                    Op::Read(random_path(&mind.random, &format!("/c{}", 1 - mind.number % 2)))
                }
                None => Op::random(&mind.random, &format!("/c{}", mind.number), &tag),
            };
            mind.pending = Some(op.clone());
            (op, mind.shadow.clone())
        };
        let own = format!("/c{}", self.mind.lock().number);
        let elsewhere = matches!(&op, Op::Read(path) if !path.starts_with(&own));
        self.say(format!("{op:.60?} …"));
        let done = perform(&self.client, &op).await;
        self.say(format!("… {done:?}"));
        if elsewhere {
            self.mind.lock().pending = None;
            return;
        }
        if done == Err(FsError::TimedOut) {
            return match op.writes().is_some() {
                true => self.find_out().await,
                false => self.mind.lock().pending = None,
            };
        }
        let expected = perform(&shadow, &op).await;
        if done != expected {
            self.fail(format!("{op:?} gave {done:?} instead of {expected:?}"));
        }
        let mut mind = self.mind.lock();
        mind.pending = None;
        if op.writes().is_some() && op.writes() == mind.unclear.as_deref() && done.is_ok() {
            mind.unclear = None;
        }
    }

    /// Finds out whether what was under way was done.
    async fn find_out(&self) {
        let (shadow, pending, unclear, top) = {
            let mind = self.mind.lock();
            (mind.shadow.clone(), mind.pending.clone(), mind.unclear.clone(), format!("/c{}", mind.number))
        };
        let Some(op) = pending else { return };
        let view = loop {
            match walk(&self.client).await {
                Ok(view) => break view,
                Err(FsError::TimedOut | FsError::Stale | FsError::NotFound) if !self.stop.load(Relaxed) => {
                    self.pause(2000).await;
                }
                // Nobody knows, and nobody will look.
                Err(FsError::TimedOut | FsError::Stale | FsError::NotFound) => return,
                Err(error) => return self.fail(format!("looking: {error}")),
            }
        };
        let made = match &op {
            Op::Write(path, ..) => Op::Make(path.clone(), 0o644),
            other => other.clone(),
        };
        let after = shadow.snapshot();
        let _ = perform(&after, &made).await;
        let unclear_too = op.writes().map(str::to_string).or(unclear);
        let mut why = Vec::new();
        for candidate in [after, shadow] {
            let tree = candidate.dump();
            let blind = same_file(&tree, unclear_too.as_deref());
            match differ(&below(&tree, &top), &below(&view, &top), &blind) {
                Some(difference) => why.push(difference),
                None => {
                    let mut mind = self.mind.lock();
                    let there = !blind.is_empty();
                    (mind.shadow, mind.pending, mind.unclear) = (candidate, None, unclear_too.filter(|_| there));
                    drop(mind);
                    self.say("knows again");
                    return;
                }
            }
        }
        self.fail(format!("after a crash at {op:?}, neither {why:?}"));
    }

    async fn together(&self) {
        let tag = self.next_tag();
        let (op, own) = {
            let mind = self.mind.lock();
            (Op::random(&mind.random, "", &tag), mind.random.chance(1, 6))
        };
        if own {
            return self.append_line(&tag).await;
        }
        self.say(format!("{op:.60?} …"));
        let done = match &op {
            Op::Unlink(path) => self.remove(path, None).await,
            Op::Rename(from, to, flags) if *flags == RenameFlags::default() => self.remove(to, Some(from)).await,
            Op::Write(path, how, bytes) => self.write(path, *how, bytes, &tag).await,
            Op::Truncate(path, size) => self.truncate(path, *size).await,
            op => perform(&self.client, op).await,
        };
        self.say(format!("… {done:?}"));
        if done == Err(FsError::Io) {
            self.fail(format!("{op:?} gave {done:?}"));
        }
    }

    async fn merging(&self) {
        let tag = self.next_tag();
        let (choice, dir, mine, inside) = {
            let mind = self.mind.lock();
            let ledger = self.ledger.lock();
            let prefix = format!("f{}-", mind.number);
            let mine: Vec<String> =
                ledger.own.keys().filter(|path| name_of(path).starts_with(&prefix)).cloned().collect();
            let mine = (!mine.is_empty()).then(|| mine[mind.random.below(mine.len() as u64) as usize].clone());
            (mind.random.below(16), shared_dir(&mind.random), mine, mind.inside.clone())
        };
        let new = format!("f{}", tag.trim_matches(|c| c == '<' || c == '>'));
        self.say(format!("{choice} in {dir}, of {mine:?}, inside {inside:?}, {new} …"));
        let done = match (choice, mine, inside) {
            (0..=3, ..) => self.make_dirs(&dir).await,
            (4..=6, ..) => match self.make_dirs(&dir).await {
                Ok(()) => self.write_own(&format!("{dir}/{new}"), &tag, None).await,
                Err(error) => Err(error),
            },
            (7, Some(from), _) => match self.make_dirs(&dir).await {
                Ok(()) => self.move_own(&from, Some(&format!("{dir}/{}", name_of(&from)))).await,
                Err(error) => Err(error),
            },
            (8, Some(path), _) => self.move_own(&path, None).await,
            (9, Some(path), _) => self.write_own(&path, &tag, None).await,
            (10, Some(path), _) => self.read_own(&path).await,
            (11, ..) => match self.make_dirs(&dir).await {
                Ok(()) => self.share(format!("{dir}/link"), |path| Op::MakeSymlink(path, "target".into())).await,
                Err(error) => Err(error),
            },
            (12, ..) => match self.make_dirs(&dir).await {
                Ok(()) => perform(&self.client, &Op::SetMode(dir, [0o755, 0o700][tag.len() % 2])).await,
                Err(error) => Err(error),
            },
            (_, _, Some((id, dir))) => self.write_own(&format!("{dir}/{new}"), &tag, Some(id)).await,
            _ => match self.make_dirs(&dir).await {
                Ok(()) => find(&self.client, &dir).await.map(|id| self.mind.lock().inside = Some((id, dir))),
                Err(error) => Err(error),
            },
        };
        self.say(format!("… {done:?}"));
        if done.is_err_and(|error| error != FsError::TimedOut) {
            self.fail(format!("{choice} gave {done:?}"));
        }
    }

    /// Makes something that others make, too.
    async fn share(&self, path: String, op: impl FnOnce(String) -> Op) -> Result<(), FsError> {
        self.ledger.lock().maybe_shared.insert(path.clone());
        match perform(&self.client, &op(path.clone())).await {
            Ok(()) | Err(FsError::Exists) => {
                self.ledger.lock().shared.insert(path);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn make_dirs(&self, path: &str) -> Result<(), FsError> {
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
        for end in ends {
            self.share(path[..end].to_string(), Op::MakeDir).await?;
        }
        Ok(())
    }

    /// Writes a file that nobody else knows; makes it if it is not there, perhaps in a directory by its id.
    async fn write_own(&self, path: &str, tag: &str, dir: Option<FileId>) -> Result<(), FsError> {
        let client = &self.client;
        self.doubt(path);
        match dir {
            None => perform(client, &Op::Write(path.into(), How::Replace, tag.into())).await?,
            Some(dir) => {
                let flags = OpenFlags { write: true, ..OpenFlags::default() };
                let (made, handle) = client.create(&ROOT, dir, name_of(path).as_bytes(), 0o644, 0, flags).await?;
                let written = client.write(&ROOT, made.attr.id, handle, 0, tag.as_bytes()).await;
                close(client, made.attr.id, handle).await?;
                written?;
            }
        }
        let mut ledger = self.ledger.lock();
        ledger.doubtful.remove(path);
        ledger.own.insert(path.into(), tag.into());
        Ok(())
    }

    fn doubt(&self, path: &str) -> Option<String> {
        let mut ledger = self.ledger.lock();
        ledger.doubtful.insert(path.into());
        ledger.own.remove(path)
    }

    /// Moves or removes a file that nobody else knows.
    async fn move_own(&self, from: &str, to: Option<&str>) -> Result<(), FsError> {
        if to == Some(from) {
            return Ok(());
        }
        let content = self.doubt(from);
        let op = match to {
            None => Op::Unlink(from.into()),
            Some(to) => {
                self.doubt(to);
                Op::Rename(from.into(), to.into(), RenameFlags::default())
            }
        };
        perform(&self.client, &op).await?;
        let mut ledger = self.ledger.lock();
        ledger.doubtful.remove(from);
        if let Some(to) = to {
            ledger.doubtful.remove(to);
            ledger.own.extend(content.map(|content| (to.to_string(), content)));
        }
        Ok(())
    }

    async fn read_own(&self, path: &str) -> Result<(), FsError> {
        let expected = self.ledger.lock().own.get(path).cloned();
        let found = read_all(&self.client, find(&self.client, path).await?).await?;
        if expected.as_deref().map(str::as_bytes) != Some(&found) {
            self.fail(format!("{path} has {:?} instead of {expected:?}", String::from_utf8_lossy(&found)));
        }
        Ok(())
    }

    /// Removes or replaces a file whose contents are known.
    async fn remove(&self, path: &str, by: Option<&str>) -> Result<(), FsError> {
        let client = &self.client;
        for _ in 0..3 {
            let (dir, name) = parent(client, path).await?;
            let from = match by {
                Some(by) => Some(parent(client, by).await?),
                None => None,
            };
            let seen = match client.lookup(&ROOT, dir, name).await {
                Ok(found) if found.attr.kind == Kind::File => tags(&read_all(client, found.attr.id).await?),
                Ok(_) | Err(FsError::NotFound) => BTreeSet::new(),
                Err(error) => return Err(error),
            };
            // From here to the answer nothing else happens.
            let logged = || client.look(|replica, _| replica.log().last());
            let before = logged();
            let answer = match from {
                Some((from_dir, from)) => client.rename(&ROOT, from_dir, from, dir, name, RenameFlags::default()),
                None => client.unlink(&ROOT, dir, name),
            };
            if logged() > before {
                self.drop_tags(seen);
                return answer.await;
            }
        }
        Ok(())
    }

    fn drop_tags(&self, seen: BTreeSet<String>) {
        if !seen.is_empty() {
            self.say(format!("drops {seen:?}"));
        }
        self.ledger.lock().dropped.extend(seen);
    }

    async fn write(&self, path: &str, how: How, bytes: &[u8], tag: &str) -> Result<(), FsError> {
        let client = &self.client;
        let (id, handle) = open_to_write(client, path, How::Append).await?;
        let plain = client.open(&ROOT, id, OpenFlags { read: true, write: true, ..OpenFlags::default() }).await;
        let written = async {
            let plain = plain?;
            let written = async {
                // From the first byte on, nobody else changes it here.
                client.write(&ROOT, id, handle, 0, b".").await?;
                let before = read_open(client, id, handle).await?;
                let mut after = if how == How::Replace { Vec::new() } else { before.clone() };
                let offset = match how {
                    How::At(offset) => offset as usize,
                    How::Append | How::Replace => after.len(),
                };
                after.resize(after.len().max(offset + bytes.len()), 0);
                after[offset..offset + bytes.len()].copy_from_slice(bytes);
                self.drop_tags(&tags(&before) - &tags(&after));
                if how == How::Replace {
                    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
                    client.setattr(&ROOT, id, Some(handle), empty).await?;
                }
                client.write(&ROOT, id, plain, offset as u64, bytes).await?;
                let there = read_open(client, id, plain).await?;
                if there != after {
                    self.fail(format!(
                        "{path} has {} bytes {:?} instead of {} {:?}",
                        there.len(),
                        tags(&there),
                        after.len(),
                        tags(&after)
                    ));
                }
                Ok(())
            };
            let written = written.await;
            close(client, id, plain).await?;
            written
        };
        let written = written.await;
        close(client, id, handle).await?;
        written?;
        self.ledger.lock().acked.insert(tag.into(), path.into());
        Ok(())
    }

    async fn truncate(&self, path: &str, size: u64) -> Result<(), FsError> {
        let client = &self.client;
        let id = find(client, path).await?;
        let flags = OpenFlags { read: true, write: true, append: true, ..OpenFlags::default() };
        let handle = client.open(&ROOT, id, flags).await?;
        let cut = async {
            client.write(&ROOT, id, handle, 0, b".").await?;
            let mut bytes = read_open(client, id, handle).await?;
            let before = tags(&bytes);
            bytes.truncate(size as usize);
            self.drop_tags(&before - &tags(&bytes));
            client.setattr(&ROOT, id, Some(handle), SetAttr { size: Some(size), ..SetAttr::default() }).await?;
            Ok(())
        };
        let cut = cut.await;
        close(client, id, handle).await?;
        cut
    }

    /// Adds a line to the client's own list.
    async fn append_line(&self, tag: &str) {
        let client = &self.client;
        let (path, line, known, maybe) = {
            let mind = self.mind.lock();
            (format!("/log-{}", mind.number), format!("line {}\n", &tag[1..]), mind.lines.clone(), mind.line.clone())
        };
        self.say(format!("adds {line:?} …"));
        let done = async {
            if let Some(maybe) = maybe {
                // What became of the last one?
                let there = match find(client, &path).await {
                    Ok(id) => read_all(client, id).await?,
                    Err(FsError::NotFound) => Vec::new(),
                    Err(error) => return Err(error),
                };
                if !there.starts_with(known.as_bytes()) {
                    self.fail(format!("{path} has lost lines: {:?}", String::from_utf8_lossy(&there)));
                }
                if there == (known.clone() + &maybe).into_bytes() {
                    self.mind.lock().lines += &maybe;
                } else if there.len() > known.len() {
                    perform(client, &Op::Truncate(path.clone(), known.len() as u64)).await?;
                }
                self.mind.lock().line = None;
            }
            self.mind.lock().line = Some(line.clone());
            perform(client, &Op::Write(path.clone(), How::Append, line.clone().into_bytes())).await?;
            let mut mind = self.mind.lock();
            mind.line = None;
            mind.lines += &line;
            Ok(())
        };
        let done = done.await;
        self.say(format!("… {done:?}"));
        if done.is_err_and(|error| error != FsError::TimedOut) {
            self.fail(format!("adding to {path}: {done:?}"));
        }
    }
}

fn name_of(path: &str) -> &str {
    rig::session::split(path).1
}

/// A directory that everybody may make.
fn shared_dir(random: &SplitMix64) -> String {
    let names = (0..=random.below(3)).map(|_| ["/a", "/a", "/b"][random.below(3) as usize]);
    names.collect()
}

/// All names of the file at a path.
fn same_file(tree: &[TreeEntry], path: Option<&str>) -> BTreeSet<Vec<u8>> {
    let id = tree.iter().find(|entry| Some(&entry.path[..]) == path.map(str::as_bytes)).map(|entry| entry.attr.id);
    let same = tree.iter().filter(|entry| Some(entry.attr.id) == id && entry.attr.kind == Kind::File);
    same.map(|entry| entry.path.clone()).collect()
}

/// What nobody touches.
fn make_quiet_files(rig: &Rig) {
    let fs = &rig.fs;
    let ops = [
        Op::MakeDir("/quiet".into()),
        Op::Write("/quiet/file".into(), How::Replace, b"nobody touches this".to_vec()),
        Op::SetXattr("/quiet/file".into(), b"nor this".to_vec()),
        Op::Link("/quiet/file".into(), "/quiet/name".into()),
        Op::MakeSymlink("/quiet/link".into(), "file".into()),
    ];
    for op in ops {
        rig.sim.block_on(perform(fs, &op)).expect("quiet files");
    }
}

fn quiet_files(rig: &Rig) -> Vec<TreeEntry> {
    let all = rig.fs.dump();
    let mut quiet: Vec<TreeEntry> = below(&all, "/quiet").into_iter().cloned().collect();
    // Reading may move access times.
    quiet.iter_mut().for_each(|entry| entry.attr.atime = entry.attr.mtime);
    quiet
}

impl Storm {
    fn new(seed: u64, sort: Sort) -> Storm {
        let random = SplitMix64::new(seed.wrapping_mul(0x9e37) ^ 0x5354_4f52);
        // What others do between two steps of the home would not always be seen.
        let paced = sort == Sort::Alone || sort == Sort::Merging && seed.is_multiple_of(2);
        let rig = Rig::with_pace(seed, paced);
        make_quiet_files(&rig);
        let mut storm = Storm {
            seed,
            sort,
            random,
            laptops: Vec::new(),
            ledger: Arc::default(),
            stop: Arc::default(),
            outside_count: 0,
            outcome: Outcome::default(),
            rig,
        };
        for number in 0..2 + storm.random.below(2) {
            storm.add_laptop(number as u8);
        }
        storm
    }

    fn add_laptop(&mut self, number: u8) {
        let delay = Duration::from_millis([1, 3, 60, 200][self.random.below(4) as usize]);
        let network = self.rig.network(number + 1, delay);
        self.rig.enroll(&network, User { uid: 0, gid: 0, groups: Vec::new() });
        let clock = self.clock();
        let shadow = MemFs::new(Arc::new(move || clock.wall()));
        if self.sort == Sort::Alone {
            let dir = Op::MakeDir(format!("/c{number}"));
            self.rig.sim.block_on(perform(&shadow, &dir)).expect("a directory of its own");
            self.rig.sim.block_on(perform(&self.rig.fs, &dir)).expect("a directory of its own");
        }
        let mind = Mind {
            number,
            sort: self.sort,
            random: SplitMix64::new(host::Random::next_u64(&self.random)),
            count: 0,
            shadow,
            pending: None,
            unclear: None,
            lines: String::new(),
            line: None,
            inside: None,
        };
        let disk = SimDisk::new(&self.rig.sim, 1 << 30);
        let (mind, ended) = (Arc::new(Mutex::new(mind)), Arc::default());
        self.laptops.push(Laptop { network, disk, running: None, mind, ended });
        let last = self.laptops.len() - 1;
        self.start(last);
        self.rig.sim.run_for(Duration::from_secs(1));
    }

    fn clock(&self) -> Arc<dyn host::Clock> {
        self.rig.sim.machine("clock").host().clock
    }

    fn say(&self, what: impl std::fmt::Display) {
        say(&*self.clock(), "world", what);
    }

    fn start(&mut self, number: usize) {
        let laptop = &mut self.laptops[number];
        if laptop.running.is_some() {
            return;
        }
        let machine = self.rig.sim.machine(&format!("laptop {number}"));
        let settings = Settings::new(VOLUME);
        let (host, disk, dialer) = (machine.host(), laptop.disk.mount(&machine), Arc::new(laptop.network.clone()));
        let client = match self.rig.sim.block_on(Client::open(&host, disk, dialer, settings)) {
            Ok(client) => client,
            Err(error) => return self.ledger.lock().failures.push(format!("opening a cache: {error}")),
        };
        laptop.ended.store(false, Relaxed);
        let worker = Worker {
            rig_clock: host.clock,
            client: client.clone(),
            mind: laptop.mind.clone(),
            ledger: self.ledger.clone(),
            stop: self.stop.clone(),
        };
        drop(machine.run(worker.work(laptop.ended.clone())));
        laptop.running = Some((machine, client));
        self.say(format!("client {number} starts"));
    }

    fn crash(&mut self, number: usize) {
        let power = self.random.chance(1, 2);
        let Some((machine, _)) = self.laptops[number].running.take() else { return };
        machine.crash();
        if power {
            self.laptops[number].disk.power_loss();
        }
        self.outcome.crashes += 1;
        self.say(format!("client {number} crashes{}", if power { ", and loses power" } else { "" }));
    }

    fn crash_home(&mut self) {
        self.rig.crash_home();
        let power = self.random.chance(1, 2);
        if power {
            self.rig.disk.power_loss();
        }
        self.outcome.crashes += 1;
        self.say(format!("the home crashes{}", if power { ", and loses power" } else { "" }));
    }

    fn start_home(&mut self) {
        let up = self.rig.home.lock().as_ref().is_some_and(|home| home.machine.is_up());
        if !up {
            // It may have crashed by itself.
            self.crash_home();
            self.rig.start_home();
            self.say("the home starts");
        }
    }

    /// Another program changes the home's files.
    fn outside(&mut self) {
        self.outside_count += 1;
        let tag = format!("<o-{}>", self.outside_count);
        if self.sort == Sort::Merging {
            return self.outside_merging();
        }
        let top = if self.sort == Sort::Alone { "/others" } else { "" };
        let op = Op::random(&self.random, top, &tag);
        let fs = self.rig.fs.clone();
        let before = tags_of(&fs);
        let links = |path: &str| {
            let tree = fs.dump();
            tree.iter().find(|entry| entry.path == path.as_bytes()).map_or(0, |entry| entry.attr.nlink)
        };
        // A file with several names is changed in place, and others may not change it then.
        if op.writes().is_some_and(|path| links(path) > 1) {
            return;
        }
        let running = self.rig.home.lock().clone();
        let tree = running.map(|home| home.tree).filter(|_| !self.rig.paced);
        let done = match &tree {
            Some(tree) => self.rig.sim.block_on(perform(tree, &op)),
            None => self.rig.sim.block_on(perform(&fs, &op)),
        };
        self.say(format!("others: {op:.60?}: {done:?}"));
        if (tree.is_none() || self.random.chance(1, 8))
            && let Some(home) = &*self.rig.home.lock()
        {
            home.tree.lose_events();
        }
        let after = tags_of(&fs);
        let mut ledger = self.ledger.lock();
        ledger.dropped.extend(&before - &after);
        ledger.acked.extend((&after - &before).into_iter().map(|tag| (tag, String::new())));
    }

    /// Another program makes what everybody makes, and a file of its own in it.
    fn outside_merging(&mut self) {
        let runs = self.rig.home.lock().as_ref().is_some_and(|home| home.machine.is_up());
        if runs && self.rig.paced {
            return;
        }
        let (dir, fs) = (shared_dir(&self.random), self.rig.fs.clone());
        let (path, content) = (format!("{dir}/o-{}", self.outside_count), format!("<o-{}>", self.outside_count));
        let ends = dir.match_indices('/').map(|(at, _)| at).skip(1).chain([dir.len()]);
        for end in ends {
            let made = self.rig.sim.block_on(perform(&fs, &Op::MakeDir(dir[..end].into())));
            assert!(matches!(made, Ok(()) | Err(FsError::Exists)), "{made:?}");
            self.ledger.lock().shared.insert(dir[..end].into());
        }
        let write = Op::Write(path.clone(), How::Replace, content.clone().into());
        self.rig.sim.block_on(perform(&fs, &write)).expect("another program");
        self.ledger.lock().own.insert(path.clone(), content);
        self.say(format!("others: {path}"));
        if let Some(home) = &*self.rig.home.lock() {
            home.tree.lose_events();
        }
    }

    fn step(&mut self) {
        let number = self.random.below(self.laptops.len() as u64) as usize;
        let network = self.laptops[number].network.clone();
        match self.random.below(20) {
            0..=3 => {
                let up = !network.up.load(Relaxed);
                network.up.store(up, Relaxed);
                self.say(format!("network {number} up: {up}"));
            }
            4 => {
                let lose = !network.lose_requests.load(Relaxed);
                network.lose_requests.store(lose, Relaxed);
                self.say(format!("network {number} loses requests: {lose}"));
            }
            5 | 6 => {
                let lose = !network.lose_answers.load(Relaxed);
                network.lose_answers.store(lose, Relaxed);
                self.say(format!("network {number} loses answers: {lose}"));
            }
            7 => {
                let lag = [0, 0, 500, 15_000][self.random.below(4) as usize];
                network.lag_ms.store(lag, Relaxed);
                self.say(format!("network {number} lags {lag} ms"));
            }
            8 | 9 => self.crash(number),
            10 => {
                if let Some((machine, _)) = &self.laptops[number].running {
                    machine.crash_after(self.random.below(200));
                }
            }
            11 => self.crash_home(),
            12 => {
                let running = self.rig.home.lock().clone();
                if let Some(home) = running {
                    home.machine.crash_after(self.random.below(300));
                }
            }
            13..=15 => self.outside(),
            _ => {}
        }
        for number in 0..self.laptops.len() {
            let dead = self.laptops[number].running.as_ref().is_some_and(|(machine, _)| !machine.is_up());
            if dead {
                self.crash(number);
            }
            if self.random.chance(1, 3) {
                self.start(number);
            }
        }
        if self.random.chance(1, 3) {
            self.start_home();
        }
    }

    fn check_failures(&self) -> Result<(), String> {
        match self.ledger.lock().failures.first() {
            Some(failure) => Err(failure.clone()),
            None => Ok(()),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        let quiet = quiet_files(&self.rig);
        for _ in 0..STEP_COUNT {
            let pause = self.random.below(1500);
            self.rig.sim.run_for(Duration::from_millis(pause));
            self.step();
            self.check_failures()?;
        }
        self.heal()?;
        let now = quiet_files(&self.rig);
        if now != quiet {
            return Err(format!("what nobody touched has changed: {now:?}"));
        }
        let all = self.rig.fs.dump();
        if let Some(left) = below(&all, "/.starling").first() {
            return Err(format!("left behind: {}", String::from_utf8_lossy(&left.path)));
        }
        self.check_views(all)?;
        match self.sort {
            Sort::Alone => self.check_shadows()?,
            Sort::Together => self.check_tags()?,
            Sort::Merging => self.check_merged()?,
        }
        let home = self.rig.home.lock().clone().ok_or("the home is down")?;
        self.outcome.merged = home.home.state().volumes[VOLUME].aliases().count() as u64;
        self.outcome.done = self.ledger.lock().done;
        self.outcome.digest = self.rig.sim.digest();
        Ok(())
    }

    /// Everything works again, and nobody does anything any more.
    fn heal(&mut self) -> Result<(), String> {
        self.say("heals");
        self.stop.store(true, Relaxed);
        let running = self.rig.home.lock().clone();
        if let Some(home) = running {
            home.machine.crash_after(u64::MAX);
        }
        self.start_home();
        for number in 0..self.laptops.len() {
            let network = &self.laptops[number].network;
            network.up.store(true, Relaxed);
            network.lose_requests.store(false, Relaxed);
            network.lose_answers.store(false, Relaxed);
            network.lag_ms.store(0, Relaxed);
            if let Some((machine, _)) = &self.laptops[number].running {
                match machine.is_up() {
                    true => machine.crash_after(u64::MAX),
                    false => self.crash(number),
                }
            }
            self.start(number);
        }
        let until = self.rig.sim.now() + QUIET_TIME_MAX;
        loop {
            self.rig.sim.run_for(Duration::from_secs(20));
            self.check_failures()?;
            let busy = self.laptops.iter().filter_map(|laptop| {
                let (_, client) = laptop.running.as_ref()?;
                let first =
                    client.look(|replica, _| replica.log().iter().next().map(|(seq, op)| format!("{seq} {op:?}")));
                (!laptop.ended.load(Relaxed)).then(|| "a worker".to_string()).or(first)
            });
            let busy: Vec<String> = busy.collect();
            if busy.is_empty() {
                break;
            }
            if self.rig.sim.now() > until {
                return Err(format!("still waiting: {busy:?}"));
            }
        }
        self.rig.sim.run_for(Duration::from_secs(60));
        self.check_failures()
    }

    /// Everybody sees what is there.
    fn check_views(&mut self, mut all: Vec<TreeEntry>) -> Result<(), String> {
        all.retain(|entry| entry.path != b"/.starling");
        all[0].attr.nlink -= 1;
        for (number, laptop) in self.laptops.iter().enumerate() {
            let (_, client) = laptop.running.as_ref().ok_or("a client is down")?;
            let view = self.rig.sim.block_on(walk(client)).map_err(|error| format!("client {number}: {error}"))?;
            if let Some(difference) = vfs::tree::difference(&all, &view) {
                return Err(format!("the home against client {number}: {difference}"));
            }
            self.outcome.troubles += client.look(|replica, _| replica.troubles().count()) as u64;
        }
        Ok(())
    }

    fn check_shadows(&self) -> Result<(), String> {
        let all = self.rig.fs.dump();
        for (number, laptop) in self.laptops.iter().enumerate() {
            let (_, client) = laptop.running.as_ref().ok_or("a client is down")?;
            let troubles =
                client.look(|replica, _| replica.troubles().map(|(_, t)| format!("{t:?}")).collect::<Vec<_>>());
            if !troubles.is_empty() {
                return Err(format!("client {number} is in trouble: {troubles:?}"));
            }
            let mind = laptop.mind.lock();
            if mind.pending.is_some() {
                continue;
            }
            let (shadow, top) = (mind.shadow.dump(), format!("/c{number}"));
            let blind = same_file(&shadow, mind.unclear.as_deref());
            if let Some(difference) = differ(&below(&shadow, &top), &below(&all, &top), &blind) {
                return Err(format!("what client {number} did against the home: {difference}"));
            }
        }
        Ok(())
    }

    /// All that anybody has made is there once, where it was made, and nothing else is.
    fn check_merged(&self) -> Result<(), String> {
        let fs = &self.rig.fs;
        let ledger = self.ledger.lock();
        let known = |path: &str| {
            let shared = ledger.shared.contains(path) || ledger.maybe_shared.contains(path);
            shared || ledger.own.contains_key(path) || ledger.doubtful.contains(path)
        };
        let all = fs.dump();
        let paths = all.iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned());
        let paths: Vec<String> = paths
            .filter(|path| !path.is_empty() && path != "/.starling" && path != "/quiet" && !path.starts_with("/quiet/"))
            .collect();
        if let Some(path) = paths.iter().find(|path| !known(path)) {
            return Err(format!("nobody has made {path}"));
        }
        if let Some(path) = ledger.shared.iter().find(|path| !paths.contains(path)) {
            return Err(format!("{path} is not there"));
        }
        for (path, content) in &ledger.own {
            let found = self.rig.sim.block_on(async { read_all(fs, find(fs, path).await?).await });
            if found.as_deref() != Ok(content.as_bytes()) {
                return Err(format!("{path} has {found:?} instead of {content:?}"));
            }
        }
        for (number, laptop) in self.laptops.iter().enumerate() {
            let (_, client) = laptop.running.as_ref().ok_or("a client is down")?;
            // Several may have changed the mode of a directory.
            let of_modes = |trouble: &Trouble| {
                trouble.deed == Deed::Set && trouble.outcome == message::Outcome::Conflict(Conflict::Changed)
            };
            let troubles = client.look(|replica, _| {
                replica.troubles().filter(|(_, t)| !of_modes(t)).map(|(_, t)| format!("{t:?}")).collect::<Vec<_>>()
            });
            if !troubles.is_empty() {
                return Err(format!("client {number} is in trouble: {troubles:?}"));
            }
        }
        Ok(())
    }

    fn check_tags(&mut self) -> Result<(), String> {
        let there = tags_of(&self.rig.fs);
        let ledger = self.ledger.lock();
        for (tag, path) in &ledger.acked {
            if !there.contains(tag) && !ledger.dropped.contains(tag) {
                return Err(format!("{tag}, written to {path}, is lost"));
            }
        }
        self.outcome.tags = ledger.acked.len() as u64;
        self.outcome.dropped = ledger.dropped.len() as u64;
        for laptop in &self.laptops {
            let mind = laptop.mind.lock();
            let fs = &self.rig.fs;
            let found = self.rig.sim.block_on(async {
                let id = find(fs, &format!("/log-{}", mind.number)).await?;
                read_all(fs, id).await
            });
            let found = match found {
                Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                Err(FsError::NotFound) => String::new(),
                Err(error) => return Err(format!("a list: {error}")),
            };
            let fits = match &mind.line {
                None => found == mind.lines,
                Some(_) => found.starts_with(&mind.lines),
            };
            if !fits {
                return Err(format!(
                    "client {} wrote {:?} and {:?}, and there is {found:?}",
                    mind.number, mind.lines, mind.line
                ));
            }
        }
        Ok(())
    }
}

fn run(seed: u64, sort: Sort, name: &str) -> Outcome {
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let mut storm = Storm::new(seed, sort);
        let ran = storm.run();
        if ran.is_err() {
            storm.say(format!("failed, seed {}", storm.seed));
        }
        ran.map(|()| std::mem::take(&mut storm.outcome))
    }));
    let again = format!("STORM_SEED={seed} STORM_VERBOSE=1 cargo test -p roam --test storm {name} -- --nocapture");
    match ran {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(failure)) => panic!("{failure}\nreplay: {again}"),
        Err(_) => panic!("replay: {again}"),
    }
}

fn run_all(from: u64, count: u64, sort: Sort, name: &str) -> Outcome {
    let (mut sum, mut failed) = (Outcome::default(), Vec::new());
    for seed in rig::seeds(from, count) {
        let keep_going = std::env::var_os("STORM_KEEP_GOING").is_some();
        let outcome = match catch_unwind(|| run(seed, sort, name)) {
            Ok(outcome) => outcome,
            Err(panic) if !keep_going => std::panic::resume_unwind(panic),
            Err(_) => {
                failed.push(seed);
                continue;
            }
        };
        sum.done += outcome.done;
        sum.crashes += outcome.crashes;
        sum.troubles += outcome.troubles;
        sum.tags += outcome.tags;
        sum.dropped += outcome.dropped;
        sum.merged += outcome.merged;
    }
    assert!(failed.is_empty(), "{} seeds failed: {failed:?}", failed.len());
    println!("{sum:?}");
    sum
}

#[test]
fn sim_clients_on_files_of_their_own_lose_nothing_and_never_meet() {
    run_all(0, 150, Sort::Alone, "sim_clients_on_files_of_their_own");
}

#[test]
fn sim_clients_on_the_same_files_lose_nothing_that_nobody_dropped() {
    run_all(1000, 150, Sort::Together, "sim_clients_on_the_same_files");
}

#[test]
fn sim_clients_that_make_the_same_directories_share_them() {
    let sum = run_all(2000, 150, Sort::Merging, "sim_clients_that_make_the_same_directories");
    assert!(sum.merged > 0 || std::env::var_os("STORM_SEED").is_some());
}

#[test]
fn same_seed_gives_the_same_storm() {
    for sort in [Sort::Alone, Sort::Together, Sort::Merging] {
        let digest = |seed| run(seed, sort, "same_seed").digest;
        assert_eq!(digest(7), digest(7), "{sort:?}");
    }
}
