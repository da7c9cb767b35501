//! `starling home serve` and `starling invite`.
//!
//! The data folder: `key` is the home's key. `state/` has the home's durable state and its
//! invitations. `home.json` says where the home listens and which volumes it exports, for `invite`.
//! `uploads/` has a folder for each volume that is on the same mount: the home makes new files
//! there. `control.sock` leads to the serving process, for `home clients` and `home turn-away`. A
//! background process logs to `starling.log`.

use crate::args::{HomeServe, Invite};
use crate::clients::Clients;
use crate::control::{SOCKET, Socket};
use crate::{addresses, background, private, say, usage};
use anyhow::Context;
use home::Home;
use home::export::Export;
use home::invitation::{self, Invitation};
use host::real::RealDisk;
use localdir::LocalDir;
use localdir::users::{Account, Who, account};
use quic::{Identity, Listener, Token};
use roam_proto::message::User;
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use types::Time;

/// What the process prints when it serves; `background` waits for it.
pub const READY: &str = "home listening at";
const KEY: &str = "key";
const STATE: &str = "state";
const ABOUT: &str = "home.json";
const UPLOADS: &str = "uploads";

/// The contents of `home.json`.
#[derive(Serialize, Deserialize)]
struct About {
    listen: SocketAddr,
    volumes: Vec<String>,
}

/// True if this is a valid name for a volume, which can become a directory of a mount.
pub fn is_name(name: &str) -> bool {
    let wrong = |c: char| c == '/' || c.is_control();
    !name.is_empty() && name != "." && name != ".." && name.len() <= vfs::fs::NAME_LEN_MAX && !name.contains(wrong)
}

/// Parses `NAME=dir:PATH` or `dir:PATH`.
fn export(text: &str) -> anyhow::Result<(String, PathBuf)> {
    let wrong = || usage(format!("{text}: write what to export as dir:PATH or NAME=dir:PATH"));
    let (name, place) = match text.split_once('=') {
        Some((name, place)) if !name.contains(':') => (Some(name.to_string()), place),
        _ => (None, text),
    };
    let path = Path::new(place.strip_prefix("dir:").ok_or_else(wrong)?);
    let path = path.canonicalize().map_err(|e| usage(format!("{}: {e}", path.display())))?;
    if !path.is_dir() {
        return Err(usage(format!("{} is not a directory", path.display())));
    }
    let last = || path.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.or_else(last).ok_or_else(wrong)?;
    if !is_name(&name) {
        return Err(usage(format!("{name:?} cannot be a volume's name: give another, as NAME=dir:PATH")));
    }
    Ok((name, path))
}

/// `starling home serve`.
pub async fn serve(args: HomeServe) -> anyhow::Result<ExitCode> {
    let exports = args.exports.iter().map(|text| export(text)).collect::<anyhow::Result<Vec<_>>>()?;
    let data = private::make(&args.data)?;
    for (i, (name, path)) in exports.iter().enumerate() {
        if data.starts_with(path) {
            let (data, path) = (data.display(), path.display());
            return Err(usage(format!(
                "{data} lies in {path}, so clients could read the home's key: choose another --data"
            )));
        }
        if exports[..i].iter().any(|(other, _)| other == name) {
            return Err(usage(format!("two volumes are called {name}: give one another name, as NAME=dir:PATH")));
        }
    }
    let disk = private::lock(&private::make(&data.join(STATE))?)?;
    let identity = Identity::load_or_make(&data, KEY).map_err(|e| usage(e.to_string()))?;
    background::take_over(&data)?;
    let host = host::real::host(tokio::runtime::Handle::current()).context("host")?;
    let mut volumes: Vec<(String, Arc<dyn Export>)> = Vec::new();
    let uploads = private::make(&data.join(UPLOADS))?;
    for (name, path) in &exports {
        let folder = private::make(&uploads.join(name))?;
        let dir = LocalDir::open_beside(path, &folder).map_err(|e| usage(format!("{}: {e}", path.display())))?;
        volumes.push((name.clone(), Arc::new(dir)));
    }
    let home = Home::open(&host, disk, volumes).await.map_err(|e| usage(e.to_string()))?;
    let listener =
        Listener::listen(args.listen, &identity, Arc::new(home.clone())).map_err(|e| usage(e.to_string()))?;
    let listen = listener.local_addr();
    let about = About { listen, volumes: exports.into_iter().map(|(name, _)| name).collect() };
    write_about(&data, &about).context("write home.json")?;
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt()).context("signals")?, signal(SignalKind::terminate()).context("signals")?);
    let server = Socket::listen(&data.join(SOCKET))?.serve(Arc::new(Clients(home.clone())));
    say(&format!("{READY} {listen}"));

    host::first(host::first(interrupt.recv(), terminate.recv()), server.down()).await;
    server.finish(Ok("the home closes".into())).await;
    listener.close().await;
    home.close().await.context("close the home")?;
    say("home closed");
    Ok(ExitCode::SUCCESS)
}

/// Replaces `home.json`. Readers see the old contents or the new.
fn write_about(data: &Path, about: &About) -> anyhow::Result<()> {
    Ok(private::put(data, ABOUT, &serde_json::to_vec_pretty(about)?)?)
}

/// `starling invite`.
pub async fn invite(args: Invite) -> anyhow::Result<ExitCode> {
    let shown = args.data.display();
    let about = std::fs::read(args.data.join(ABOUT))
        .map_err(|e| usage(format!("{shown} is not the data folder of a home that was served before ({e})")))?;
    let about: About = serde_json::from_slice(&about).map_err(|e| usage(format!("{shown}/{ABOUT}: {e}")))?;
    let volumes = match &args.volume[..] {
        [] => about.volumes.clone(),
        asked => asked.to_vec(),
    };
    if let Some(unknown) = volumes.iter().find(|volume| !about.volumes.contains(volume)) {
        return Err(usage(format!("there is no volume {unknown}; choose from: {}", about.volumes.join(", "))));
    }
    if volumes.iter().enumerate().any(|(at, volume)| volumes[..at].contains(volume)) {
        return Err(usage("a volume is named twice"));
    }
    let user = user(args.user.as_deref())?;
    // SAFETY: this call takes nothing and cannot fail.
    let me = unsafe { libc::geteuid() };
    if me != 0 && user.uid != me {
        return Err(usage(
            "a home that is not root's serves only the user who runs it: leave --user out, or run it as root",
        ));
    }
    let addresses = match args.address.is_empty() {
        true => addresses::of_listener(about.listen)?,
        false => args.address.clone(),
    };
    let valid = roam::settings::parse_time(&args.valid).map_err(|error| usage(error.to_string()))?;
    let identity = Identity::load_or_make(&args.data, KEY).map_err(|e| usage(e.to_string()))?;
    let mut secret = [0; 16];
    for half in secret.chunks_exact_mut(8) {
        half.copy_from_slice(&host::real::random().context("random numbers")?.to_le_bytes());
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).context("clock")?;
    let until = Time { sec: (now + valid).as_secs() as i64, nsec: 0 };
    let disk = RealDisk::open(args.data.join(STATE)).map_err(|e| usage(format!("{shown}: {e}")))?;
    let invitation =
        Invitation { volumes: volumes.clone(), user: user.clone(), until, name: args.name.unwrap_or_default() };
    invitation::write(&*disk, &secret, &invitation).await.context("write the invitation")?;
    let token = Token { addresses: addresses.clone(), home: identity.key(), volumes: volumes.clone(), secret };
    let (named, at) = (volumes.join(", "), addresses.join(", "));
    eprintln!("lets one client use {named} as user {}, at {at}, for {}", user.uid, args.valid);
    eprintln!(
        "there: starling mount INVITATION MOUNTPOINT, or starling mount --invitation - MOUNTPOINT, with this line:"
    );
    say(&token.to_string());
    Ok(ExitCode::SUCCESS)
}

/// A user of this machine, by name or number; the caller if neither is given.
fn user(name: Option<&str>) -> anyhow::Result<User> {
    // SAFETY: this call takes nothing and cannot fail.
    let me = unsafe { libc::geteuid() };
    let number = name.map_or(Some(me), |name| name.parse().ok());
    let c_name = CString::new(name.unwrap_or_default()).map_err(|_| usage("a user's name has no NUL"))?;
    let found = account(number.map_or(Who::Name(&c_name), Who::Uid)).map_err(|e| usage(format!("users: {e}")))?;
    match (found, number) {
        (Some(Account { uid, gid, groups }), _) => Ok(User { uid, gid, groups }),
        (None, Some(uid)) => Ok(User { uid, gid: uid, groups: Vec::new() }),
        (None, None) => Err(usage(format!("there is no user {}", name.unwrap_or_default()))),
    }
}
