//! `starling mount`, and the commands that talk to it: pending, set, connect.
//!
//! The cache folder: `key` is this client's key, `state/VOLUME/` has the replica, its log and
//! cached files, `mount.json` says which home and volumes it belongs to, `control.sock` leads to
//! the process that serves the mount, and `starling.log` is the log of a background process.

use crate::args::{Behaviour, Mount};
use crate::control::{self, Request, Socket, ask};
use crate::hoarding::inside;
use crate::mountpoint::{self, READY};
use crate::recorder::Recorder;
use crate::recording::Recordings;
use crate::roaming_status::age;
use crate::served::{self, Mounted, Volume};
use crate::size::show;
use crate::{background, input, private, say, usage};
use anyhow::Context;
use host::Either;
use quic::{Identity, QuicDialer, Token};
use roam::{Client, Forget, Settings, Trunk};
use roam_proto::channel::{Class, Dialer, PeerKey};
use roam_proto::message::{Refusal, Reply, User, pack, unpack};
use roam_proto::piece::hash;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use types::{FileId, Time};
use vfs::FileSystem;
use vfs::joined::{Joined, outer};

const KEY: &str = "key";
const ABOUT: &str = "mount.json";
/// Longest wait for the home to accept an invitation.
const ENROLL_TIME_MAX: Duration = Duration::from_secs(30);
/// Time after which the kernel is told a second time to forget something: an answer may have been
/// on its way to the kernel when the news came.
const FORGET_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// Longest time that other clients near the home wait for this kernel to forget.
const FORGOTTEN_TIME_MAX: Duration = Duration::from_millis(100);
/// Largest number of items that the kernel is told to forget in one go, before it is told again.
const FORGET_COUNT_MAX: usize = 10_000;
/// How long a mount with an empty cache waits for its home.
const FIRST_TIME_MAX: Duration = Duration::from_secs(30);

/// What `mount.json` has.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq)]
struct About {
    /// Addresses of the home.
    addresses: Vec<String>,
    /// The home's key.
    home: String,
    /// The mounted volumes: each is a directory of the mount; a single one is the whole mount.
    volumes: Vec<String>,
    /// The hash of the invitation's secret that was accepted last.
    #[serde(default)]
    accepted: Option<String>,
}

impl About {
    /// The name of the mount.
    fn name(&self) -> String {
        name_of(&self.volumes)
    }
}

/// The name of a mount of these volumes.
fn name_of(volumes: &[String]) -> String {
    volumes.join("+")
}

/// The command line of `mount`, checked.
pub struct Asked {
    token: Option<Token>,
    mountpoint: PathBuf,
    /// Folder of the cache.
    pub cache: PathBuf,
    behaviour: Behaviour,
    allow_other: bool,
    /// Run in the background.
    pub background: bool,
    /// What was read from standard input; the background process reads it again.
    pub input: Option<String>,
}

impl Asked {
    /// Checks the command line.
    pub fn from(args: Mount) -> anyhow::Result<Asked> {
        let read = args.invitation.as_deref().map(input::read_invitation).transpose()?;
        let (what, mountpoint) = match (&args.what[..], &args.cache, &read) {
            ([_, _], _, Some(_)) => return Err(usage("give one invitation: --invitation, or INVITATION")),
            ([mountpoint], _, Some(invitation)) => (Some(invitation), mountpoint),
            ([what, mountpoint], ..) => (Some(what), mountpoint),
            ([mountpoint], Some(_), None) => (None, mountpoint),
            _ => {
                return Err(usage(
                    "give what to mount and where: starling mount INVITATION|VOLUME MOUNTPOINT; see --help",
                ));
            }
        };
        let token = match what {
            // A volume's name may begin like an invitation.
            Some(what) if read.is_some() => {
                Some(what.parse().map_err(|error: types::LineError| usage(error.to_string()))?)
            }
            Some(what) if what.starts_with("starling") && what.contains('-') => match what.parse::<Token>() {
                Ok(token) => Some(token),
                Err(_) if crate::home::is_name(what) && own_folder()?.join(what).join(ABOUT).exists() => None,
                Err(error) => return Err(usage(error.to_string())),
            },
            _ => None,
        };
        let name = token.as_ref().map(|token| name_of(&token.volumes)).or(what.cloned());
        let cache = match (args.cache, name) {
            (Some(cache), _) => cache,
            (None, Some(name)) if crate::home::is_name(&name) => own_folder()?.join(name),
            _ => return Err(usage("give the folder of the cache by --cache")),
        };
        if token.is_none() && !cache.join(ABOUT).exists() {
            let cache = cache.display();
            return Err(usage(format!(
                "{cache} is not the cache of an earlier mount: give an invitation (`starling invite` at the home)"
            )));
        }
        let (background, allow_other) = (args.background, args.allow_other);
        let behaviour = args.behaviour;
        let input = read.clone().filter(|_| args.invitation.as_deref() == Some(Path::new("-")));
        Ok(Asked { token, mountpoint: mountpoint.into(), cache, behaviour, allow_other, background, input })
    }
}

impl Behaviour {
    /// Applies the options that were given.
    pub fn apply(&self, settings: &mut Settings) {
        settings.consistency = self.consistency.unwrap_or(settings.consistency);
        settings.writes = self.writes.unwrap_or(settings.writes);
        settings.unit = self.unit.unwrap_or(settings.unit);
        settings.validation = self.validation.unwrap_or(settings.validation);
        settings.durability = self.durability.unwrap_or(settings.durability);
        settings.cache_bytes = self.cache_size.unwrap_or(settings.cache_bytes);
        settings.cache_files = self.cache_files.map_or(settings.cache_files, |count| count as usize);
    }
}

/// The folder of this user's caches.
fn own_folder() -> anyhow::Result<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    let data = std::env::var_os("XDG_DATA_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from).or_else(home);
    Ok(data.ok_or_else(|| usage("HOME is not set: give the folder of the cache by --cache"))?.join("starling"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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

/// Which home and volumes the cache belongs to. Accepts the invitation if the cache belongs to none
/// yet, or belongs there by another invitation: the home may have moved, or turned this client
/// away.
///
/// Sets `is_known` while the home may know this client.
async fn belong(
    cache: &Path,
    token: Option<&Token>,
    identity: &Identity,
    is_known: &mut bool,
) -> anyhow::Result<About> {
    let path = cache.join(ABOUT);
    let known: Option<About> = match std::fs::read(&path) {
        Ok(bytes) => Some(serde_json::from_slice(&bytes).map_err(|e| usage(format!("{}: {e}", path.display())))?),
        Err(_) => None,
    };
    let Some(token) = token else {
        return known.ok_or_else(|| usage(format!("{} is not there: give an invitation", path.display())));
    };
    let accepted = hex(&hash(&token.secret));
    let asked = About {
        addresses: token.addresses.clone(),
        home: hex(&token.home.0),
        volumes: token.volumes.clone(),
        accepted: Some(accepted),
    };
    if !asked.volumes.iter().all(|name| crate::home::is_name(name)) {
        return Err(usage("this invitation has an invalid volume name: ask for another"));
    }
    if let Some(known) = known {
        if (&known.home, &known.volumes) != (&asked.home, &asked.volumes) {
            return Err(usage(format!(
                "{} is the cache of {} of another home: give another with --cache",
                cache.display(),
                known.name()
            )));
        }
        if known.accepted == asked.accepted {
            return Ok(known);
        }
        match accept(token, identity, is_known).await {
            // The cache may have been made by this invitation.
            Err(_) if known.accepted.is_none() => return Ok(known),
            accepted => accepted?,
        }
    } else {
        accept(token, identity, is_known).await?;
    }
    private::put(cache, ABOUT, &serde_json::to_vec_pretty(&asked)?).with_context(|| path.display().to_string())?;
    Ok(asked)
}

/// Accepts an invitation, so that the home knows this client. If this fails, `is_known` says
/// whether the home may know it all the same.
async fn accept(token: &Token, identity: &Identity, is_known: &mut bool) -> anyhow::Result<()> {
    let dialer = QuicDialer::new(token.addresses.clone(), token.home, identity);
    let asking = async {
        let channel = dialer.dial().await.map_err(|e| usage(format!("{}: {e}", token.addresses.join(", "))))?;
        let request = roam_proto::message::Request::Enroll { secret: token.secret };
        *is_known = true;
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
            Reply::Refused(Refusal::Secret) => {
                *is_known = false;
                Err(usage(
                    "the home does not accept this invitation: it was used before or has expired; ask for another (`starling invite` there)",
                ))
            }
            other => Err(anyhow::anyhow!("unexpected answer of the home to an invitation: {other:?}")),
        },
    }
}

/// Runs until a signal, `starling down` or an unmount ends it.
pub async fn run(asked: Asked) -> anyhow::Result<ExitCode> {
    crate::mountpoint::check_mountpoint(&asked.mountpoint, &asked.cache, asked.allow_other)?;
    let is_new = !asked.cache.exists();
    let cache = private::make(&asked.cache)?;
    let identity = Identity::load_or_make(&cache, KEY).map_err(|e| usage(e.to_string()))?;
    let mut is_known = false;
    let belongs = belong(&cache, asked.token.as_ref(), &identity, &mut is_known).await;
    if belongs.is_err() && is_new && !is_known {
        // The home does not know this key, so it can go. Other files in the folder are not this
        // process's.
        let _ = std::fs::remove_file(cache.join(KEY)).and_then(|()| std::fs::remove_dir(&cache));
    }
    let about = belongs?;
    let home = unhex(&about.home).ok_or_else(|| usage(format!("{}: bad home key in mount.json", cache.display())))?;
    let mut disks = Vec::new();
    for volume in &about.volumes {
        disks.push(private::lock(&private::make(&served::state_folder(&cache, volume))?)?);
    }
    background::take_over(&cache)?;
    let runtime = tokio::runtime::Handle::current();
    let host = host::real::host(runtime.clone()).context("host")?;
    let trunk = Trunk::new(&host, Arc::new(QuicDialer::new(about.addresses.clone(), home, &identity)));
    // SAFETY: these calls take nothing and cannot fail.
    let owner = unsafe { (libc::getuid(), libc::getgid()) };
    let mut volumes = Vec::new();
    for (number, (name, disk)) in (0..).zip(about.volumes.iter().zip(disks)) {
        let line = trunk.line(number).ok_or_else(|| usage("the invitation is for too many volumes"))?;
        let mut settings = Settings { owner: Some(owner), ..Settings::new(name.clone()) };
        asked.behaviour.apply(&mut settings);
        let client = Client::open(&host, disk, line, settings).await.map_err(|e| usage(e.to_string()))?;
        volumes.push(Volume { name: name.clone(), client });
    }
    let mut interrupt = signal(SignalKind::interrupt()).context("signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("signals")?;
    let stop = async { host::first(interrupt.recv(), terminate.recv()).await };
    let mut stop = std::pin::pin!(stop);
    let is_new = |volume: &&Volume| volume.client.look(|replica, _| replica.membership().is_none());
    let new: Vec<&Volume> = volumes.iter().filter(is_new).collect();
    if !new.is_empty() {
        let attached = async {
            for volume in new {
                volume.client.attached().await;
            }
        };
        let first = tokio::time::timeout(FIRST_TIME_MAX, attached);
        match host::first(first, &mut stop).await {
            Either::Left(Ok(())) => {}
            Either::Left(Err(_)) => {
                close(&volumes).await?;
                return Err(usage(format!(
                    "the home does not answer at {}, and nothing of it is cached yet: try again with a network",
                    about.addresses.join(", ")
                )));
            }
            Either::Right(_) => {
                close(&volumes).await?;
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    let socket_path = cache.join(control::SOCKET);
    let mut options = fuse::MountOptions::new(runtime);
    let recorder = Recorder::new();
    options.observer = Some(recorder.clone());
    options.allow_other = asked.allow_other;
    options.uncached = volumes.iter().map(|volume| volume.client.is_delegated()).collect();
    let local = local_user();
    let all = |of: fn(&User, &User) -> bool| {
        let user_of = |client: &Client| client.look(|replica, _| replica.membership().map(|m| m.user.clone()));
        volumes.iter().all(|volume| user_of(&volume.client).is_some_and(|home| of(&home, &local)))
    };
    options.locks = options.uncached.iter().any(|uncached| uncached.load(Relaxed));
    options.kernel_checks = all(is_same_user) && !options.uncached.iter().any(|uncached| uncached.load(Relaxed));
    // Without requests, the kernel decides who may list what it has cached. So it must let in no
    // more users than the home does.
    options.open_dirs = !(options.kernel_checks && all(is_only_he));
    options.fs_name = format!("starling:{}", about.name());
    options.default_valid = roam::VALID;
    // Other clients may make a file where there is none.
    options.absent_valid = Duration::ZERO;
    options.others_change = true;
    options.passthrough = true;
    // Closed files go home.
    options.flush = true;
    options.mount_xattrs.insert(control::XATTR.to_vec(), socket_path.as_os_str().as_encoded_bytes().to_vec());
    let fs = joined(&volumes, owner, host.clock.wall())?;
    let socket = Socket::listen(&socket_path)?;
    let mount = match mountpoint::mount(fs, &asked.mountpoint, options).await {
        Ok(mount) => mount,
        Err(e) => {
            socket.remove();
            close(&volumes).await?;
            return Err(e);
        }
    };
    for (number, volume) in volumes.iter().enumerate() {
        let part = (volumes.len() > 1).then_some(number);
        forget_in_kernel(&volume.client, part, mount.invalidator())?;
    }
    let closed = mount.closed();
    let (clock, home) = (host.clock.clone(), about.addresses);
    let reads = if mount.has_passthrough() { "passthrough" } else { "requests" };
    let recording = Arc::new(Recordings::new(recorder));
    let (cached, recorded) = (cache.clone(), Arc::clone(&recording));
    let mounted = Mounted { volumes: volumes.clone(), clock, home, cache: cached, reads, recording: recorded };
    let server = socket.serve(Arc::new(mounted));
    say(&format!("{READY} {}", asked.mountpoint.display()));

    host::first(host::first(stop, server.down()), closed).await;
    recording.close();
    mountpoint::unmount(mount).await?;
    let waiting: usize = volumes.iter().map(|volume| volume.client.look(|replica, _| replica.log().len())).sum();
    let closed = close(&volumes).await;
    let told = match waiting {
        0 => "everything is home".to_string(),
        count => format!("{count} changes wait in {} to go home", cache.display()),
    };
    server.finish(closed.as_ref().map(|_| told.clone()).map_err(|e| format!("{e:#}"))).await;
    closed?;
    say(&format!("unmounted {}: {told}", asked.mountpoint.display()));
    Ok(ExitCode::SUCCESS)
}

/// The file system to mount: one volume, or several as directories.
fn joined(volumes: &[Volume], owner: (u32, u32), made: Time) -> anyhow::Result<Arc<dyn FileSystem>> {
    if let [only] = volumes {
        return Ok(Arc::new(only.client.clone()));
    }
    let part = |volume: &Volume| (volume.name.clone(), Arc::new(volume.client.clone()) as Arc<dyn FileSystem>);
    let joined = Joined::new(volumes.iter().map(part).collect(), owner, made);
    Ok(Arc::new(joined.context("too many volumes")?))
}

/// Closes all clients, even if one fails.
async fn close(volumes: &[Volume]) -> anyhow::Result<()> {
    let mut closed = Ok(());
    for volume in volumes {
        closed = closed.and(volume.client.close().await.context("close the cache"));
    }
    closed
}

/// Makes the kernel forget what others change in a volume. The volume is the whole mount, or one
/// `part` of it.
fn forget_in_kernel(client: &Client, part: Option<usize>, kernel: fuse::Invalidator) -> anyhow::Result<()> {
    let shown = move |id| part.map_or(Some(id), |part| outer(part, id));
    let mut changes = client.cached_by();
    let (again, some_again) = std::sync::mpsc::sync_channel::<(Instant, Vec<Forget>)>(FORGET_COUNT_MAX);
    let forget_some = {
        let kernel = kernel.clone();
        move |some: &[Forget]| {
            let names = some.iter().filter_map(|what| match what {
                Forget::Name(dir, name) => Some((shown(*dir)?, name.clone())),
                Forget::File(_) | Forget::All(_) => None,
            });
            let names: BTreeSet<(FileId, Vec<u8>)> = names.collect();
            if !names.is_empty() {
                kernel.names(&names);
            }
            for what in some {
                if let Forget::File(id) = what {
                    shown(*id).into_iter().for_each(|id| kernel.file(id));
                }
            }
        }
    };
    let once_more = forget_some.clone();
    let forget = move || {
        while let Some(first) = changes.blocking_recv() {
            let mut some = vec![first];
            while some.len() < FORGET_COUNT_MAX
                && let Ok(next) = changes.try_recv()
            {
                some.push(next);
            }
            forget_some(&some);
            let (told, rest): (Vec<Forget>, Vec<Forget>) =
                some.into_iter().partition(|what| matches!(what, Forget::All(_)));
            if !told.is_empty() {
                kernel.has_forgotten(FORGOTTEN_TIME_MAX);
            }
            for what in told {
                if let Forget::All(told) = what {
                    // The client may have ended: then it needs no answer.
                    let _ = told.send(());
                }
            }
            if !rest.is_empty() && again.send((Instant::now() + FORGET_AGAIN_AFTER, rest)).is_err() {
                return;
            }
        }
    };
    // An answer may have been on its way to the kernel when the news came.
    let forget_again = move || {
        for (when, some) in some_again {
            std::thread::sleep(when.saturating_duration_since(Instant::now()));
            once_more(&some);
        }
    };
    std::thread::Builder::new().name("forget-again".into()).spawn(forget_again).context("start a thread")?;
    std::thread::Builder::new().name("forget".into()).spawn(forget).context("start a thread")?;
    Ok(())
}

/// The user that this process is for its kernel.
fn local_user() -> User {
    // SAFETY: these calls take nothing, or a buffer with room for as many as is said.
    unsafe {
        let mut groups = vec![0; usize::try_from(libc::getgroups(0, std::ptr::null_mut())).unwrap_or(0)];
        let count = libc::getgroups(groups.len() as i32, groups.as_mut_ptr());
        groups.truncate(usize::try_from(count).unwrap_or(0));
        User { uid: libc::getuid(), gid: libc::getgid(), groups }
    }
}

/// All groups of a user, with the primary group, which some lists leave out.
fn groups_of(user: &User) -> BTreeSet<u32> {
    user.groups.iter().copied().chain([user.gid]).collect()
}

/// True if the kernel lets the local user do everything that the home lets its user do. If the
/// home's user is root, any local user will do.
fn is_same_user(home: &User, local: &User) -> bool {
    let same_groups = groups_of(local).is_superset(&groups_of(home));
    home.uid == 0 || (home.uid == local.uid && home.gid == local.gid && same_groups)
}

/// True if the kernel lets the local user do no more than that.
fn is_only_he(home: &User, local: &User) -> bool {
    home.uid == 0 || groups_of(home) == groups_of(local)
}

/// `starling set`.
pub async fn set(path: &Path, behaviour: &Behaviour) -> anyhow::Result<ExitCode> {
    let shown = [
        behaviour.consistency.map(|c| format!("consistency {c}")),
        behaviour.writes.map(|w| format!("writes {w}")),
        behaviour.unit.map(|u| format!("unit {u}")),
        behaviour.validation.map(|v| format!("validation {v}")),
        behaviour.durability.map(|d| format!("durability {d}")),
        behaviour.cache_size.map(|s| format!("cache size {}", show(s))),
        behaviour.cache_files.map(|count| format!("cache files {count}")),
    ];
    let shown: Vec<String> = shown.into_iter().flatten().collect();
    if shown.is_empty() {
        return Err(usage(
            "nothing to set: give --consistency, --writes, --unit, --validation, --durability, --cache-size or --cache-files; see --help",
        ));
    }
    let request = Request::Set {
        consistency: behaviour.consistency.map(|c| c.to_string()),
        writes: behaviour.writes.map(|w| w.to_string()),
        unit: behaviour.unit.map(|u| u.to_string()),
        validation: behaviour.validation.map(|v| v.to_string()),
        durability: behaviour.durability.map(|d| d.to_string()),
        cache_bytes: behaviour.cache_size,
        cache_files: behaviour.cache_files,
    };
    ask(path, request, |_| {}).await?;
    println!("{}: {}", path.display(), shown.join(", "));
    Ok(ExitCode::SUCCESS)
}

/// `starling pending`.
pub async fn pending(path: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let all = ask(path, Request::Pending { path: inside(path)? }, |_| {}).await?;
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
        let home_in = match (one["home_in_s"].as_i64(), one["home_within_s"].as_i64(), one["waits_for"].as_str()) {
            (_, _, Some(what)) => format!(", waits for `{what}`"),
            (Some(s), Some(most), _) => format!(", home in about {}, {} at most", age(&s.into()), age(&most.into())),
            _ => String::new(),
        };
        let held_up = one["held_up"].as_str().map_or(String::new(), |why| format!(", held up: {why}"));
        let path = crate::names::shown(path);
        println!("{what:<14} {path}   ({bytes}, {} ago{home_in}{held_up})", age(&one["age_s"]));
    }
    Ok(ExitCode::SUCCESS)
}

/// `starling connect`.
pub async fn connect(path: &Path, state: String, now: bool) -> anyhow::Result<ExitCode> {
    let bar = crate::hoarding::spinner()?;
    let told = |left: &Value| crate::hoarding::tell_missing(&bar, left);
    let left = ask(path, Request::Connect { state: state.clone(), now }, told).await?;
    bar.finish_and_clear();
    println!("{}: {state}{}", path.display(), crate::hoarding::still_missing(&left));
    if left["home"] == false {
        println!("the home does not answer: changes stay in the cache, and go home when it does");
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_decides_for_whoever_is_in_the_same_groups_and_lists_that_leave_out_his_own_are_the_same() {
        let user = |gid: u32, groups: &[u32]| User { uid: 7, gid, groups: groups.to_vec() };
        let local = user(70, &[70, 4, 5]);
        let both = |home: &User| (is_same_user(home, &local), is_only_he(home, &local));
        assert_eq!(both(&user(70, &[5, 4])), (true, true));
        assert_eq!(both(&user(70, &[4])), (true, false));
        assert_eq!(both(&user(70, &[4, 5, 6])), (false, false));
        assert!(!is_same_user(&user(4, &[70, 5]), &local), "files that the user makes would belong to another group");
        assert_eq!(both(&User { uid: 0, gid: 0, groups: Vec::new() }), (true, true));
        assert!(!is_same_user(&User { uid: 8, ..local.clone() }, &local));
    }

    #[test]
    fn keys_are_kept_as_text() {
        let key = PeerKey(std::array::from_fn(|i| i as u8 * 7));
        assert_eq!(unhex(&hex(&key.0)), Some(key));
        assert_eq!((unhex("00"), unhex(&"zz".repeat(32))), (None, None));
    }
}
