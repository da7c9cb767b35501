//! Keys for TLS: `starling keys` makes them, `store` and `up` read them.
//!
//! The authority signs one certificate for stores and one for machines that mount, and its key is
//! then forgotten. So no further keys can be made for this file system. With a store's key, its
//! holder cannot read other stores.

use crate::usage;
use anyhow::Context;
use join::authority::CertificateUse;
use join::{Authority, NodeKey};
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;
use storage::tcp::{ClientKeys, KeyError, ServerKeys, TLS_NAME};

const CA: &str = "ca.pem";
/// Files of certificate and key, for stores and for machines that mount.
const STORE: [&str; 2] = ["store.pem", "store-key.pem"];
const MOUNT: [&str; 2] = ["mount.pem", "mount-key.pem"];

/// `starling keys`.
pub fn make(folder: &Path) -> anyhow::Result<ExitCode> {
    let shown = folder.display();
    if folder.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(usage(format!("{shown} is not empty: give a new folder")));
    }
    let authority = Authority::make()?;
    let signed = |name: &str, may: CertificateUse| -> anyhow::Result<[String; 2]> {
        let key = NodeKey::make()?;
        Ok([authority.sign(name, may, key.public())?, key.secret_pem()])
    };
    let store = signed(TLS_NAME, CertificateUse::Serve)?;
    let mount = signed("mount.starling", CertificateUse::Connect)?;

    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|e| usage(format!("cannot make {shown}: {e}")))?;
    write(folder, CA, authority.certificate_pem())?;
    for (names, texts) in [(STORE, store), (MOUNT, mount)] {
        for (name, text) in names.iter().zip(texts) {
            write(folder, name, &text)?;
        }
    }
    println!("made keys in {shown}, for one file system; further keys to match them cannot be made");
    println!("to each machine with stores, copy     {CA} {}", STORE.join(" "));
    println!("to each machine that mounts, copy     {CA} {}", MOUNT.join(" "));
    println!("the -key files are secret: keep their mode at 0600");
    Ok(ExitCode::SUCCESS)
}

fn write(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = folder.join(name);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let mut file = file.with_context(|| format!("create {}", path.display()))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).with_context(|| format!("write {}", path.display()))
}

fn read(folder: &Path, name: &str) -> anyhow::Result<Vec<u8>> {
    let path = folder.join(name);
    std::fs::read(&path).map_err(|e| {
        usage(format!(
            "key file {}: {e}: make keys with `starling keys`, and copy the files that it names",
            path.display()
        ))
    })
}

/// Reads the authority's certificate, a certificate and its key.
fn read_all(folder: &Path, [certificate, key]: [&str; 2]) -> anyhow::Result<[Vec<u8>; 3]> {
    let all = [read(folder, CA)?, read(folder, certificate)?, read(folder, key)?];
    let path = folder.join(key);
    let mode = path.metadata().map_err(|e| usage(format!("key file {}: {e}", path.display())))?.permissions().mode();
    if mode & 0o077 != 0 {
        let shown = path.display();
        return Err(usage(format!("others can read the key file {shown}: `chmod 600 {shown}`")));
    }
    Ok(all)
}

fn unusable(folder: &Path) -> impl Fn(KeyError) -> anyhow::Error + '_ {
    move |e| usage(format!("the keys in {}: {e}: make new ones with `starling keys`", folder.display()))
}

/// The keys for a store.
pub fn of_store(folder: &Path) -> anyhow::Result<ServerKeys> {
    let [ca, certificate, key] = read_all(folder, STORE)?;
    ServerKeys::new(&ca, &certificate, &key).map_err(unusable(folder))
}

/// The keys for a machine that mounts.
pub fn of_mount(folder: &Path) -> anyhow::Result<ClientKeys> {
    let [ca, certificate, key] = read_all(folder, MOUNT)?;
    ClientKeys::new(&ca, &certificate, &key).map_err(unusable(folder))
}
