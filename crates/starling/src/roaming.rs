//! `starling mount`, and the commands that ask it: pending, connect, conflicts.
//!
//! The cache's folder: `key` is this client's, `state/` has what is cached and what was done, `mount.json` says where it belongs, `control.sock` leads
//! to the process that serves the mount, `starling.log` is where a background process logs.

use crate::args::{Behaviour, Mount};
use crate::control::{self, Request, Server, ask, not_here};
use crate::size::show;
use crate::up::READY;
use crate::{background, private, say, usage};
use anyhow::Context;
use host::{Clock, Either};
use quic::{Identity, QuicDialer, Token};
use roam::replica::Replica;
use roam::schedule::Direction;
use roam::{Client, Forget, LinkState, Settings};
use roam_wire::channel::{Class, Dialer, PeerKey};
use roam_wire::message::{Refusal, Reply, pack, unpack};
use roam_wire::operation::{Operation, Place};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use types::{BoxFuture, Time};
use vfs::fs::FileSystem;

const KEY: &str = "key";
const STATE: &str = "state";
const ABOUT: &str = "mount.json";
/// Longest wait for a home that is to accept an invitation.
const ENROLL_TIME_MAX: Duration = Duration::from_secs(30);
/// The kernel is told again after this.
const FORGET_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// Most that the kernel is told before it is told again.
const FORGET_COUNT_MAX: usize = 10_000;
/// How long a mount without anything in its cache waits for its home.
const FIRST_TIME_MAX: Duration = Duration::from_secs(30);

/// What `mount.json` has.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq)]
struct About {
    /// Where the home may be.
    addresses: Vec<String>,
    /// Its key.
    home: String,
    volume: String,
}

/// What `mount` was asked for.
pub struct Asked {
    token: Option<Token>,
    mountpoint: PathBuf,
    /// Folder of the cache.
    pub cache: PathBuf,
    behaviour: Behaviour,
    allow_other: bool,
    /// To be detached.
    pub background: bool,
}

impl Asked {
    /// Checks the command line.
    pub fn from(args: Mount) -> anyhow::Result<Asked> {
        let (what, mountpoint) = match (&args.what[..], &args.cache) {
            ([what, mountpoint], _) => (Some(what), mountpoint),
            ([mountpoint], Some(_)) => (None, mountpoint),
            _ => {
                return Err(usage(
                    "say what to mount and where: starling mount INVITATION|VOLUME MOUNTPOINT; see --help",
                ));
            }
        };
        let token = match what {
            Some(what) if what.starts_with("starling") && what.contains('-') => {
                Some(what.parse::<Token>().map_err(|e| usage(e.to_string()))?)
            }
            _ => None,
        };
        let volume = token.as_ref().map(|token| &token.volume).or(what);
        let cache = match (args.cache, volume) {
            (Some(cache), _) => cache,
            (None, Some(volume)) if !volume.contains('/') => own_folder()?.join(volume),
            _ => return Err(usage("say with --cache where the cache is to be")),
        };
        if token.is_none() && !cache.join(ABOUT).exists() {
            let cache = cache.display();
            return Err(usage(format!(
                "{cache} is not the cache of anything mounted before: give an invitation (`starling invite` at home)"
            )));
        }
        let (background, allow_other) = (args.background, args.allow_other);
        let behaviour = args.behaviour;
        Ok(Asked { token, mountpoint: mountpoint.into(), cache, behaviour, allow_other, background })
    }
}

impl Behaviour {
    fn apply(&self, settings: &mut Settings) {
        settings.consistency = self.consistency.unwrap_or(settings.consistency);
        settings.writes = self.writes.unwrap_or(settings.writes);
        settings.unit = self.unit.unwrap_or(settings.unit);
        settings.validation = self.validation.unwrap_or(settings.validation);
        settings.cache_bytes = self.cache_size.unwrap_or(settings.cache_bytes);
    }
}

/// Where this user's caches are.
fn own_folder() -> anyhow::Result<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    let data = std::env::var_os("XDG_DATA_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from).or_else(home);
    Ok(data.ok_or_else(|| usage("HOME is not set: say with --cache where the cache is to be"))?.join("starling"))
}

fn hex(key: &PeerKey) -> String {
    key.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<PeerKey> {
    let mut key = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(PeerKey(key))
}

/// Where the cache belongs; accepts the invitation if it belongs nowhere yet.
async fn belong(cache: &Path, token: Option<&Token>, identity: &Identity) -> anyhow::Result<About> {
    let path = cache.join(ABOUT);
    let known: Option<About> = match std::fs::read(&path) {
        Ok(bytes) => Some(serde_json::from_slice(&bytes).map_err(|e| usage(format!("{}: {e}", path.display())))?),
        Err(_) => None,
    };
    let Some(token) = token else {
        return known.ok_or_else(|| usage(format!("{} is not there: give an invitation", path.display())));
    };
    let asked = About { addresses: token.addresses.clone(), home: hex(&token.home), volume: token.volume.clone() };
    if let Some(known) = known {
        if (&known.home, &known.volume) != (&asked.home, &asked.volume) {
            return Err(usage(format!(
                "{} is the cache of {} of another home: give another with --cache",
                cache.display(),
                known.volume
            )));
        }
        return Ok(known);
    }
    accept(token, identity).await?;
    private::put(cache, ABOUT, &serde_json::to_vec_pretty(&asked)?).with_context(|| path.display().to_string())?;
    Ok(asked)
}

/// Makes the home know this client.
async fn accept(token: &Token, identity: &Identity) -> anyhow::Result<()> {
    let dialer = QuicDialer::new(token.addresses.clone(), token.home, identity);
    let asking = async {
        let channel = dialer.dial().await.map_err(|e| usage(format!("{}: {e}", token.addresses.join(", "))))?;
        let request = roam_wire::message::Request::Enroll { secret: token.secret };
        let answer = channel.ask(Class::Interactive, pack(&request)).await?;
        channel.close();
        Ok::<_, anyhow::Error>(unpack::<Reply>(&answer)?)
    };
    match tokio::time::timeout(ENROLL_TIME_MAX, asking).await {
        Err(_) => Err(usage(format!(
            "the home does not answer at {}: accepting an invitation takes a network",
            token.addresses.join(", ")
        ))),
        Ok(answer) => match answer? {
            Reply::Enrolled { .. } => Ok(()),
            Reply::Refused(Refusal::Secret) => Err(usage(
                "the home does not accept this invitation: it was used before, or is too old; ask for another (`starling invite` there)",
            )),
            other => Err(anyhow::anyhow!("the home answers something else: {other:?}")),
        },
    }
}

/// Runs until a signal, `starling down` or an unmount ends it.
pub async fn run(asked: Asked) -> anyhow::Result<ExitCode> {
    crate::up::check_mountpoint(&asked.mountpoint, &asked.cache, asked.allow_other)?;
    let cache = private::make(&asked.cache)?;
    let disk = private::lock(&private::make(&cache.join(STATE))?)?;
    let identity = Identity::load_or_make(&cache, KEY).map_err(|e| usage(e.to_string()))?;
    let about = belong(&cache, asked.token.as_ref(), &identity).await?;
    let home = unhex(&about.home).ok_or_else(|| usage(format!("{}: its home's key is none", cache.display())))?;
    background::take_over(&cache)?;
    let runtime = tokio::runtime::Handle::current();
    let host = host::real::host(runtime.clone()).context("host")?;
    let dialer = Arc::new(QuicDialer::new(about.addresses.clone(), home, &identity));
    // SAFETY: these calls take nothing and cannot fail.
    let owner = unsafe { (libc::getuid(), libc::getgid()) };
    let mut settings = Settings { owner: Some(owner), ..Settings::new(about.volume.clone()) };
    asked.behaviour.apply(&mut settings);
    let client = Client::open(&host, disk, roam::Line::alone(&host, dialer), settings)
        .await
        .map_err(|e| usage(e.to_string()))?;
    let mut interrupt = signal(SignalKind::interrupt()).context("signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("signals")?;
    let stop = async { host::first(interrupt.recv(), terminate.recv()).await };
    let mut stop = std::pin::pin!(stop);
    if client.look(|replica, _| replica.membership().is_none()) {
        let first = tokio::time::timeout(FIRST_TIME_MAX, client.attached());
        match host::first(first, &mut stop).await {
            Either::Left(Ok(())) => {}
            Either::Left(Err(_)) => {
                client.close().await?;
                return Err(usage(format!(
                    "the home does not answer at {}, and nothing of it is cached yet: try again with a network",
                    about.addresses.join(", ")
                )));
            }
            Either::Right(_) => {
                client.close().await?;
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    let socket = cache.join(control::SOCKET);
    let mut options = fuse::MountOptions::new(runtime);
    options.allow_other = asked.allow_other;
    options.kernel_checks = !client.is_delegated().load(Relaxed) && is_same_user(&client);
    options.fs_name = format!("starling:{}", about.volume);
    options.default_valid = roam::VALID;
    // Others may make what is not there.
    options.absent_valid = Duration::ZERO;
    options.uncached = client.is_delegated();
    // What is closed goes home.
    options.flush = true;
    options.control_xattr = Some((control::XATTR.to_vec(), socket.as_os_str().as_encoded_bytes().to_vec()));
    let (fs, mountpoint) = (Arc::new(client.clone()), asked.mountpoint.clone());
    let mounted = tokio::task::spawn_blocking(move || {
        // If it is there, or cannot be made, mounting tells.
        let _ = std::fs::create_dir(&mountpoint);
        fuse::mount(fs, &mountpoint, options)
    });
    let mount = match mounted.await? {
        Ok(mount) => mount,
        Err(e) => {
            client.close().await?;
            return Err(usage(e.to_string()));
        }
    };
    forget_in_kernel(&client, mount.invalidator())?;
    let closed = mount.closed();
    let control = Control { client: client.clone(), clock: host.clock.clone(), about, cache: cache.clone() };
    let server = Server::start(&socket, Arc::new(control)).context("control socket")?;
    say(&format!("{READY} {}", asked.mountpoint.display()));

    host::first(host::first(stop, server.down()), closed).await;
    if let Err(e) = tokio::task::spawn_blocking(move || mount.unmount()).await? {
        tracing::warn!("unmount: {e}");
    }
    let waiting = client.look(|replica, _| replica.log().len());
    let closed = client.close().await.context("close the cache");
    server.finish(closed.as_ref().map(|_| ()).map_err(|e| format!("{e:#}"))).await;
    closed?;
    say(&match waiting {
        0 => format!("unmounted {}: everything is home", asked.mountpoint.display()),
        n => format!("unmounted {}: {n} changes wait in {} to go home", asked.mountpoint.display(), cache.display()),
    });
    Ok(ExitCode::SUCCESS)
}

/// Has the kernel forget what others change.
fn forget_in_kernel(client: &Client, kernel: fuse::Invalidator) -> anyhow::Result<()> {
    let mut changes = client.cached_by();
    let forget = move || {
        while let Some(first) = changes.blocking_recv() {
            let mut some = vec![first];
            while some.len() < FORGET_COUNT_MAX
                && let Ok(next) = changes.try_recv()
            {
                some.push(next);
            }
            // An answer may have been on its way to the kernel when the news came.
            for pause in [Duration::ZERO, FORGET_AGAIN_AFTER] {
                std::thread::sleep(pause);
                for what in &some {
                    match what {
                        Forget::File(id) => kernel.file(*id),
                        Forget::Name(dir, name) => kernel.name(*dir, name),
                    }
                }
            }
        }
    };
    std::thread::Builder::new().name("forget".into()).spawn(forget).context("start a thread")?;
    Ok(())
}

/// True if this process may locally what the home lets its user do: the kernel then judges as the home does.
fn is_same_user(client: &Client) -> bool {
    let Some(user) = client.look(|replica, _| replica.membership().map(|membership| membership.user.clone())) else {
        return false;
    };
    // SAFETY: these calls take nothing, or a buffer with room for as many as is said.
    let (uid, gid, groups) = unsafe {
        let mut groups = vec![0; usize::try_from(libc::getgroups(0, std::ptr::null_mut())).unwrap_or(0)];
        let count = libc::getgroups(groups.len() as i32, groups.as_mut_ptr());
        groups.truncate(usize::try_from(count).unwrap_or(0));
        (libc::getuid(), libc::getgid(), groups)
    };
    // The home's superuser is whoever asks.
    user.uid == 0 || (user.uid == uid && user.gid == gid && user.groups.iter().all(|group| groups.contains(group)))
}

/// What commands ask a mount by way of the control socket.
struct Control {
    client: Client,
    clock: Arc<dyn Clock>,
    about: About,
    cache: PathBuf,
}

impl control::Served for Control {
    fn answer(&self, request: Request, progress: mpsc::Sender<Value>) -> BoxFuture<Result<Value, String>> {
        let client = self.client.clone();
        match request {
            Request::Sync { home } => Box::pin(async move {
                client.sync().await.map_err(|e| format!("making it durable: {e}"))?;
                if home {
                    client.send_all().await.map_err(|_| "the home cannot be reached: what was done here waits")?;
                }
                Ok(json!({}))
            }),
            Request::Set { consistency, writes, unit, validation, cache_bytes } => Box::pin(async move {
                let behaviour = Behaviour {
                    consistency: consistency.map(|text| text.parse()).transpose()?,
                    writes: writes.map(|text| text.parse()).transpose()?,
                    unit: unit.map(|text| text.parse()).transpose()?,
                    validation: validation.map(|text| text.parse()).transpose()?,
                    cache_size: cache_bytes,
                };
                client.set(|settings| behaviour.apply(settings));
                Ok(json!({}))
            }),
            Request::Hoard { path, priority } => Box::pin(async move {
                match client.hoard(path.as_bytes(), priority).await {
                    Ok(()) => Ok(json!({})),
                    Err(types::FsError::NotFound) => Err(format!("/{path} is not hoarded: see `starling hoard list`")),
                    Err(e) => Err(e.to_string()),
                }
            }),
            Request::Hoarded => {
                let hoarded = client.look(|replica, _| crate::hoarding::listed(replica));
                Box::pin(async move { Ok(hoarded) })
            }
            Request::Walk => Box::pin(crate::hoarding::serve_walk(client, progress)),
            Request::Status => {
                let status = self.status();
                Box::pin(async move { Ok(status) })
            }
            Request::Pending => {
                let pending = self.pending();
                Box::pin(async move { Ok(pending) })
            }
            Request::Conflicts => {
                let conflicts = self.conflicts();
                Box::pin(async move { Ok(conflicts) })
            }
            Request::Connect { state } => {
                let state = match &state[..] {
                    "auto" => Ok(None),
                    "weak" => Ok(Some(LinkState::Weak)),
                    "fetch-only" => Ok(Some(LinkState::FetchOnly)),
                    "off" => Ok(Some(LinkState::Disconnected)),
                    other => Err(format!("there is no state {other}")),
                };
                Box::pin(async move {
                    client.pin(state?);
                    Ok(json!({}))
                })
            }
            Request::Settle { number } => Box::pin(async move {
                match client.settle(number).await {
                    Ok(true) => Ok(json!({})),
                    Ok(false) => Err(format!("there is no conflict {number}")),
                    Err(e) => Err(e.to_string()),
                }
            }),
            Request::Down | Request::Scrub { .. } => Box::pin(async { not_here() }),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn state_name(state: LinkState) -> &'static str {
    match state {
        LinkState::Connected => "connected",
        LinkState::Weak => "weak",
        LinkState::FetchOnly => "fetch-only",
        LinkState::Disconnected => "disconnected",
    }
}

/// What an operation does, in words, and to what.
fn describe(replica: &Replica, operation: &Operation) -> (&'static str, String) {
    let at = |place: &Place| replica.path_at(place).map_or_else(|| text(&place.1), |path| text(&path));
    let file = |id| replica.path_of(id).map_or_else(|| format!("file {id}"), |path| text(&path));
    match operation {
        Operation::Make { at: place, .. } => ("make", at(place)),
        Operation::Link { at: place, .. } => ("link", at(place)),
        Operation::Remove { at: place, .. } => ("remove", at(place)),
        Operation::Rename { from, to, .. } => ("rename", format!("{} to {}", at(from), at(to))),
        Operation::Exchange { from, to, .. } => ("exchange", format!("{} and {}", at(from), at(to))),
        Operation::Set { file: id, .. } => ("set attributes", file(*id)),
        Operation::SetXattr { file: id, .. } => ("set attributes", file(*id)),
        Operation::Store { file: id, .. } => ("store", file(*id)),
    }
}

fn seconds_since(now: Time, then: Option<Time>) -> i64 {
    then.map_or(0, |then| (now.sec - then.sec).max(0))
}

impl Control {
    fn status(&self) -> Value {
        let settings = self.client.settings();
        let rate = |direction| self.client.schedule().rate(direction) as u64;
        let held_up = self.client.held_up().map(|error| error.to_string());
        self.client.look(|replica, state| {
            let saved = replica.log().saved();
            let (mut files, mut bytes) = (0u64, 0u64);
            for (_, node) in replica.nodes() {
                files += 1;
                bytes += node.have.len();
            }
            json!({
                "roaming": true,
                "volume": self.about.volume,
                "home": self.about.addresses,
                "state": state_name(state),
                "attached_before": replica.stamp().is_some(),
                "pending": { "operations": replica.log().len(), "bytes": replica.log().cost(), "held_up": held_up },
                "saved": { "logged": saved.logged, "operations": saved.operations, "bytes": saved.bytes },
                "conflicts": replica.troubles().count(),
                "cache": { "files": files, "bytes": bytes, "bytes_max": settings.cache_bytes },
                "hoarded": replica.hoard().len(),
                "consistency": settings.consistency.to_string(),
                "consistency_calls": self.client.consistency_calls(),
                "writes": settings.writes.to_string(),
                "unit": settings.unit.to_string(),
                "rate": { "up": rate(Direction::Up), "down": rate(Direction::Down) },
            })
        })
    }

    fn pending(&self) -> Value {
        let now = self.clock.wall();
        let rate = self.client.schedule().rate(Direction::Up).max(1.0);
        // What holds up the first holds up all that comes after, too.
        let held_up = self.client.held_up().map(|error| error.to_string());
        self.client.look(|replica, state| {
            let mut before = 0;
            let all = replica.log().iter().enumerate().map(|(at, (seq, operation))| {
                let (what, path) = describe(replica, operation);
                let (age, bytes) = (seconds_since(now, replica.done_at(seq)), operation.cost());
                before += bytes;
                // As the link is now, and if nothing else is in the way.
                let goes = state != LinkState::Disconnected && held_up.is_none();
                let home_in = goes.then_some((before as f64 / rate).ceil() as u64);
                let held_up = held_up.as_ref().filter(|_| at == 0);
                json!({
                    "number": seq,
                    "what": what,
                    "path": path,
                    "bytes": bytes,
                    "age_s": age,
                    "home_in_s": home_in,
                    "held_up": held_up,
                })
            });
            Value::Array(all.collect())
        })
    }

    fn conflicts(&self) -> Value {
        let now = self.clock.wall();
        let in_cache = |number| (number > 0).then(|| self.cache.join(STATE).join(roam::data_name(number)));
        self.client.look(|replica, _| {
            let all = replica.troubles().map(|(number, trouble)| {
                let at = |place: &Place| replica.path_at(place).map_or_else(|| text(&place.1), |path| text(&path));
                json!({
                    "number": number,
                    "path": trouble.place.as_ref().map(at),
                    "here": trouble.deed.text(),
                    "why": trouble.why(),
                    "mine": trouble.mine.as_ref().map(at),
                    "base": in_cache(trouble.base),
                    "kept": in_cache(trouble.kept),
                    "age_s": seconds_since(now, Some(trouble.when)),
                })
            });
            json!({ "conflicts": all.collect::<Vec<_>>(), "cache": self.cache })
        })
    }
}

/// A time in the largest unit that fits.
pub fn age(seconds: &Value) -> String {
    match seconds.as_i64().unwrap_or(0) {
        s if s < 120 => format!("{s} s"),
        s if s < 7200 => format!("{} min", s / 60),
        s if s < 172_800 => format!("{} h", s / 3600),
        s => format!("{} days", s / 86_400),
    }
}

/// `starling status` of a mount that roams.
pub fn show_status(s: &Value) {
    let bytes = |v: &Value| v.as_u64().map_or("?".to_string(), show);
    let addresses: Vec<&str> = s["home"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    println!("volume        {} of the home at {}", s["volume"].as_str().unwrap_or("?"), addresses.join(", "));
    println!("link          {}", s["state"].as_str().unwrap_or("?"));
    let pending = &s["pending"];
    println!("pending       {} operations, about {}", pending["operations"], bytes(&pending["bytes"]));
    if let Some(why) = pending["held_up"].as_str() {
        println!("held up       {why}: the first that waits, and so all others; it is tried again");
    }
    let saved = &s["saved"];
    println!(
        "saved         {} of {} operations need not go home, about {}",
        saved["operations"],
        saved["logged"],
        bytes(&saved["bytes"])
    );
    println!("conflicts     {}", s["conflicts"]);
    let cache = &s["cache"];
    println!(
        "cache         {} files known, {} of their bytes; at most {}",
        cache["files"],
        bytes(&cache["bytes"]),
        bytes(&cache["bytes_max"])
    );
    println!("hoarded       {} paths", s["hoarded"]);
    let text = |field: &str| s[field].as_str().unwrap_or("?").to_string();
    println!("behaviour     consistency {}, writes {}, unit {}", text("consistency"), text("writes"), text("unit"));
    println!(
        "rate          {}/s up, {}/s down, as far as was measured",
        bytes(&s["rate"]["up"]),
        bytes(&s["rate"]["down"])
    );
}

/// `starling set`.
pub async fn set(path: &Path, behaviour: &Behaviour) -> anyhow::Result<ExitCode> {
    let shown = [
        behaviour.consistency.map(|c| format!("consistency {c}")),
        behaviour.writes.map(|w| format!("writes {w}")),
        behaviour.unit.map(|u| format!("unit {u}")),
        behaviour.validation.map(|v| format!("validation {v}")),
        behaviour.cache_size.map(|s| format!("cache size {}", show(s))),
    ];
    let shown: Vec<String> = shown.into_iter().flatten().collect();
    if shown.is_empty() {
        return Err(usage(
            "say what to set: --consistency, --writes, --unit, --validation or --cache-size; see --help",
        ));
    }
    let request = Request::Set {
        consistency: behaviour.consistency.map(|c| c.to_string()),
        writes: behaviour.writes.map(|w| w.to_string()),
        unit: behaviour.unit.map(|u| u.to_string()),
        validation: behaviour.validation.map(|v| v.to_string()),
        cache_bytes: behaviour.cache_size,
    };
    ask(path, request, |_| {}).await?;
    println!("{}: {}", path.display(), shown.join(", "));
    Ok(ExitCode::SUCCESS)
}

/// `starling pending`.
pub async fn pending(path: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let all = ask(path, Request::Pending, |_| {}).await?;
    if as_json {
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(ExitCode::SUCCESS);
    }
    let all = all.as_array().cloned().unwrap_or_default();
    if all.is_empty() {
        println!("everything is home");
    }
    for one in all {
        let bytes = one["bytes"].as_u64().map_or("?".to_string(), show);
        let (what, path) = (one["what"].as_str().unwrap_or("?"), one["path"].as_str().unwrap_or("?"));
        let home_in =
            one["home_in_s"].as_i64().map_or(String::new(), |s| format!(", home in about {}", age(&s.into())));
        let held_up = one["held_up"].as_str().map_or(String::new(), |why| format!(", held up: {why}"));
        println!("{what:<14} {path}   ({bytes}, {} ago{home_in}{held_up})", age(&one["age_s"]));
    }
    Ok(ExitCode::SUCCESS)
}

/// `starling connect`.
pub async fn connect(path: &Path, state: String) -> anyhow::Result<ExitCode> {
    ask(path, Request::Connect { state: state.clone() }, |_| {}).await?;
    println!("{}: {state}", path.display());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_kept_as_text() {
        let key = PeerKey(std::array::from_fn(|i| i as u8 * 7));
        assert_eq!(unhex(&hex(&key)), Some(key));
        assert_eq!((unhex("00"), unhex(&"zz".repeat(32))), (None, None));
    }
}
