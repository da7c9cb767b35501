//! The data folder.
//!
//! `stores.json` lists the stores' places by store id, and names the folder with the keys. The
//! process that serves the file system locks `lock`. `control.sock` leads to that process.
//! `consensus/`, or `consensus-N/`, belongs to the node's voter, and `store-N/` are the stores,
//! unless they are elsewhere. A background process logs to `starling.log`.

use crate::location::{Location, digits_of, fingerprint};
use crate::node::identity::{self, address_of};
use crate::settings::Geometry;
use crate::{keys, private, usage};
use anyhow::Context;
use cluster::spread::RecordError;
use cluster::{AtNode, Claim, KnownNode, StorePlace, Succession};
use consensus::FIRST_VOTER;
use host::real::RealDisk;
use host::{Disk, Host};
use link::ClientKeys;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use storage::tcp::{Address, Remote};
use storage::wire::StoreName;
use types::{NodeId, StoreId};

/// Name of the file that lists the stores.
pub const STORES: &str = "stores.json";
const CONSENSUS: &str = "consensus";
/// Name of the lock file in a data folder.
pub const LOCK: &str = "lock";
/// Version of `stores.json`. Version 1 had folders only, and no keys. Up to version 2 no store was
/// at a node that has joined. Up to version 3 no node could succeed the first one.
const VERSION: u32 = 4;

/// The contents of `stores.json`.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Stores {
    version: u32,
    /// Where the stores are. Relative folders are relative to the data folder.
    #[serde(alias = "folders")]
    pub places: Vec<Location>,
    /// The folder with the keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<PathBuf>,
    /// Folders that may still have something of stores that have moved to nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<Location>,
    /// Stores that have come here from nodes, into folders below the data folder.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub came: BTreeSet<u16>,
    /// The first node that this one succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    succeeds: Option<Succeeds>,
}

/// That a node takes the place of the first one.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Succeeds {
    /// The number that the node had when it was not the first.
    node: u16,
    /// SHA-256 of the former first node's certificate, in hexadecimal digits; `None` if it had
    /// none.
    former: Option<String>,
}

impl Succeeds {
    /// The node takes the place of the first one with this certificate.
    pub fn new(node: NodeId, former: Option<[u8; 32]>) -> Succeeds {
        Succeeds { node: node.raw(), former: former.map(|certificate| digits_of(&certificate)) }
    }
}

impl Stores {
    /// Stores of a node that takes the place of the first one.
    pub fn succeeding(places: Vec<Location>, succeeds: Succeeds) -> Stores {
        Stores {
            version: VERSION,
            places,
            keys: None,
            moved: Vec::new(),
            came: BTreeSet::new(),
            succeeds: Some(succeeds),
        }
    }

    /// True if this node takes the place of another first one, by its user's word.
    pub fn succeeds_another(&self) -> bool {
        self.succeeds.is_some()
    }

    /// It has started as the first node: the maps name it, and its right to succeed another one is
    /// used up.
    pub fn has_succeeded(&mut self) {
        self.succeeds = None;
    }

    /// Takes places that the user gives. Stores at nodes stay there, and those that have come back
    /// stay here: what the user names for them are their places from before they moved.
    pub fn take_places(&mut self, mut given: Vec<Location>) {
        for ((store, given), known) in (0..).zip(given.iter_mut()).zip(&self.places) {
            if matches!(known, Location::Node(_)) || self.came.contains(&store) {
                given.clone_from(known);
            }
        }
        self.moved.retain(|left| !given.contains(left));
        self.places = given;
    }
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// The folder of a voter in a data folder.
pub fn voter_folder(data: &Path, voter: u64) -> PathBuf {
    match voter {
        FIRST_VOTER => data.join(CONSENSUS),
        voter => data.join(format!("{CONSENSUS}-{voter}")),
    }
}

/// The voter whose folder has this name.
pub fn voter_of(name: &str) -> Option<u64> {
    match name {
        CONSENSUS => Some(FIRST_VOTER),
        name => name.strip_prefix(CONSENSUS)?.strip_prefix('-')?.parse().ok(),
    }
}

/// A locked data folder.
pub struct Folder {
    path: PathBuf,
    made: RefCell<Made>,
    _lock: File,
}

/// Files and folders that were made for a new file system, in this order. Unless they are kept,
/// they are removed on drop, as far as nothing else is in them.
#[derive(Default)]
struct Made(Vec<PathBuf>);

impl Made {
    /// Makes a folder and all folders above it.
    fn folder(&mut self, path: &Path) -> std::io::Result<()> {
        let missing: Vec<&Path> = path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.is_dir()).collect();
        for path in missing.into_iter().rev() {
            match std::fs::create_dir(path) {
                Ok(()) => self.0.push(path.to_owned()),
                // Another program made it, or the path leads back to one just made.
                Err(_) if path.is_dir() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // Removing fails if a folder has something in it: then it stays.
            let _ = if path.is_dir() { std::fs::remove_dir(path) } else { std::fs::remove_file(path) };
        }
    }
}

/// A lock on a data folder, which lasts as long as its file is open.
pub struct FolderLock {
    file: File,
    /// True if the file was not there before.
    pub is_new: bool,
}

/// Locks a data folder for this process, and writes the process's number into the lock file.
/// Refuses it if another process has locked it.
pub fn lock(path: &Path, shown: impl Display) -> anyhow::Result<FolderLock> {
    let (lock_path, mut attempts) = (path.join(LOCK), 0);
    let mut lock = loop {
        let is_new = !lock_path.exists();
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&lock_path);
        let mut file = file.map_err(|e| usage(format!("{}: {e}", lock_path.display())))?;
        // SAFETY: flock takes a descriptor that is open, and nothing else.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            // The program that this one has replaced in this process.
            if pid.trim() == std::process::id().to_string() && attempts < private::LOCK_ATTEMPTS {
                attempts += 1;
                std::thread::sleep(private::LOCK_PAUSE);
                continue;
            }
            return Err(usage(format!(
                "{shown} is in use by process {}: use that mount, or end it with `starling down`",
                pid.trim()
            )));
        }
        // The process that had the lock may have removed this very file, with everything else that
        // it made. Then lock the new one.
        let number = |meta: Metadata| (meta.dev(), meta.ino());
        if std::fs::metadata(&lock_path).map(number).ok() == file.metadata().map(number).ok() {
            break FolderLock { file, is_new };
        }
    };
    lock.file.set_len(0).context("lock file")?;
    lock.file.rewind().context("lock file")?;
    writeln!(lock.file, "{}", std::process::id()).context("lock file")?;
    Ok(lock)
}

/// Writes the `stores.json` of a data folder, durably.
///
/// # Errors
/// [`RecordError::Unknown`] if the file may be the new one, and may be the old one after a loss of
/// power.
pub fn write_stores(folder: &Path, stores: &Stores) -> Result<(), RecordError> {
    let temporary = folder.join("stores.json.new");
    let write = || {
        let text = serde_json::to_string_pretty(stores)?;
        let mut file = File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(RecordError::Unchanged)?;
    let replaced = std::fs::rename(&temporary, folder.join(STORES)).and_then(|()| File::open(folder)?.sync_all());
    replaced.map_err(RecordError::Unknown)
}

impl Folder {
    /// True if no file system has been created in this folder.
    pub fn is_new(path: &Path) -> bool {
        !path.join(STORES).exists()
    }

    /// Locks the folder; `create` makes it if it does not exist. Refuses it if another process has
    /// locked it, or if it has other things than a file system's.
    pub fn open(path: &Path, create: bool) -> anyhow::Result<Folder> {
        let shown = path.display();
        let mut made = Made::default();
        if !path.exists() {
            if !create {
                return Err(usage(format!(
                    "{shown} does not exist: name the folder that `starling up --data` was given"
                )));
            }
            made.folder(path).map_err(|e| usage(format!("cannot make the data folder {shown}: {e}")))?;
        }
        let path = path.canonicalize().map_err(|e| usage(format!("{shown}: {e}")))?;
        // A failed creation can leave some of these.
        let known = [STORES, LOCK, "control.sock", "starling.log"];
        if !path.join(STORES).exists() {
            let entries = std::fs::read_dir(&path).map_err(|e| usage(format!("{shown}: {e}")))?;
            let is_known = |name: &str| known.contains(&name) || voter_of(name).is_some();
            let mut names = entries.flatten().map(|e| e.file_name());
            let foreign = names.find(|name| !name.to_str().is_some_and(is_known));
            match foreign {
                Some(name) => {
                    let name = name.to_string_lossy();
                    return Err(usage(format!(
                        "{shown} holds other things ({name}) and no file system: give an empty or new folder"
                    )));
                }
                None if !create => return Err(usage(format!("{shown} holds no file system"))),
                None => {}
            }
        }
        let lock = lock(&path, shown)?;
        if lock.is_new {
            made.0.push(path.join(LOCK));
        }
        if path.join(STORES).exists() {
            made.keep();
            identity::settle(&path)?;
        }
        Ok(Folder { path, made: RefCell::new(made), _lock: lock.file })
    }

    /// The absolute path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The stores; `None` if there is no file system yet.
    pub fn stores(&self) -> anyhow::Result<Option<Stores>> {
        let path = self.path.join(STORES);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(usage(format!("{}: {e}", path.display()))),
        };
        let damaged = |e: serde_json::Error| {
            usage(format!("{} is damaged ({e}): restore it from a copy, or write it by hand", path.display()))
        };
        let Versioned { version } = serde_json::from_str(&text).map_err(damaged)?;
        if version > VERSION {
            return Err(usage(format!(
                "{} has version {version}, this program knows up to {VERSION}: use a newer starling",
                path.display()
            )));
        }
        let stores: Stores = serde_json::from_str(&text).map_err(damaged)?;
        Ok(Some(Stores { version: VERSION, ..stores }))
    }

    /// The stores of a new file system: those asked for, or folders below this one.
    pub fn new_stores(&self, geometry: &Geometry) -> anyhow::Result<Stores> {
        let places = match geometry.store.is_empty() {
            true => (0..geometry.store_count()).map(|i| Location::Folder(format!("store-{i}").into())).collect(),
            false => self.absolute(&geometry.store)?,
        };
        Ok(Stores { version: VERSION, places, keys: None, moved: Vec::new(), came: BTreeSet::new(), succeeds: None })
    }

    /// Places from the command line, with absolute paths of folders.
    pub fn absolute(&self, places: &[Location]) -> anyhow::Result<Vec<Location>> {
        let absolute = |place: &Location| match place {
            Location::Folder(path) => Ok(Location::Folder(std::path::absolute(path)?)),
            server => Ok(server.clone()),
        };
        let places: std::io::Result<_> = places.iter().map(absolute).collect();
        places.map_err(|e| usage(format!("--store: {e}")))
    }

    /// By what right this machine is the first node.
    pub fn claim(&self, stores: &Stores) -> anyhow::Result<Claim> {
        let damaged = || usage("stores.json is damaged (succeeds): restore it from a copy");
        let succession = match &stores.succeeds {
            Some(Succeeds { node, former }) => {
                let former = former.as_ref().map(|digits| fingerprint(digits).ok_or_else(damaged)).transpose()?;
                Some(Succession::Recovered { node: NodeId::new(*node), former })
            }
            None => None,
        };
        Ok(Claim { certificate: identity::fingerprint(&self.path)?, succession })
    }

    /// Makes the stores' folders of a new file system. They are removed again unless
    /// [`record_stores`](Self::record_stores) follows.
    pub fn make_folders(&self, stores: &Stores) -> anyhow::Result<()> {
        for place in &stores.places {
            if let Location::Folder(folder) = place {
                let path = self.path.join(folder);
                let made = self.made.borrow_mut().folder(&path);
                made.map_err(|e| usage(format!("store folder {}: {e}", path.display())))?;
            }
        }
        Ok(())
    }

    /// Writes `stores.json`, durably.
    pub fn record_stores(&self, stores: &Stores) -> anyhow::Result<()> {
        write_stores(&self.path, stores).context("stores.json")?;
        self.made.borrow_mut().keep();
        Ok(())
    }

    /// The places of the stores for the machine. Folders stay locked until the places are dropped.
    pub fn places(&self, host: &Host, stores: &Stores) -> anyhow::Result<Vec<StorePlace>> {
        let keys = match (&stores.keys, stores.places.iter().find(|p| matches!(p, Location::Server { tls: true, .. })))
        {
            (_, None) => None,
            (Some(keys), Some(_)) => Some(keys::of_mount(keys)?),
            (None, Some(place)) => {
                return Err(usage(format!("{place} needs keys: give --keys (`starling keys` makes them)")));
            }
        };
        let to_nodes = match stores.places.iter().any(|place| matches!(place, Location::Node(_))) {
            true => Some(identity::client_keys(&self.path)?),
            false => None,
        };
        let open = |(store, place): (u16, &Location)| match place {
            Location::Folder(folder) => self.folder_place(folder),
            Location::Server { tls, host: name, port } => {
                let keys = keys.clone().filter(|_| *tls);
                let address = Address { host: name.clone(), port: *port, keys };
                Ok(StorePlace::Remote(Remote::new(host.clone(), address)))
            }
            Location::Node(at) => {
                let keys = to_nodes.as_ref().with_context(|| format!("{place}: no keys"))?;
                place_at_node(host, keys, StoreId::new(store), at).map(StorePlace::Node)
            }
        };
        (0..).zip(&stores.places).map(open).collect()
    }

    fn folder_place(&self, folder: &Path) -> anyhow::Result<StorePlace> {
        let path = self.path.join(folder);
        let disk = match RealDisk::open(&path) {
            Ok(disk) => disk,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                return Ok(StorePlace::Missing(format!("its folder is missing, {}", path.display())));
            }
            Err(e) => return Ok(StorePlace::Missing(format!("{}: {e}", path.display()))),
        };
        let busy = |_| usage(format!("store folder {} is in use by another process", path.display()));
        private::lock_disk(&disk).map_err(busy)?;
        Ok(StorePlace::Disk(disk))
    }

    /// The disk of the first voter of a new file system; its folder is made if it does not exist.
    pub fn consensus(&self) -> anyhow::Result<Arc<dyn Disk>> {
        let path = self.path.join(CONSENSUS);
        let open = || {
            self.made.borrow_mut().folder(&path)?;
            RealDisk::open(&path)
        };
        let disk = open().map_err(|e| usage(format!("consensus folder {}: {e}", path.display())))?;
        let busy = |_| usage(format!("consensus folder {} is in use by another process", path.display()));
        disk.lock().map_err(busy)?;
        Ok(disk)
    }
}

/// A store at a node, for the machine.
pub fn place_at_node(host: &Host, keys: &ClientKeys, store: StoreId, at: &KnownNode) -> anyhow::Result<AtNode> {
    let address = address_of(at, keys)?;
    // The file system's name is known when its stores are open.
    let remote = Remote::named(host.clone(), address, StoreName { store, ..StoreName::NONE });
    Ok(AtNode { at: at.clone(), remote })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_at_nodes_stay_there_whatever_places_the_user_gives() {
        let folder = |name: &str| Location::Folder(name.into());
        let place = KnownNode { node: NodeId::new(1), address: "a:1".into(), fingerprint: [1; 32] };
        let node = || Location::Node(place.clone());
        let known = vec![folder("/s0"), node(), folder("/s2")];
        let mut stores = Stores {
            version: VERSION,
            places: known,
            keys: None,
            moved: vec![folder("/s1")],
            came: BTreeSet::new(),
            succeeds: None,
        };
        stores.take_places(["/s0", "/s1", "/new/s2"].map(folder).to_vec());
        assert!(stores.places == [folder("/s0"), node(), folder("/new/s2")]);
        assert!(stores.moved == [folder("/s1")]);
        // A store that has come back from a node is below the data folder.
        stores.came.insert(2);
        stores.take_places(["/s0", "/s1", "/other/s2"].map(folder).to_vec());
        assert!(stores.places == [folder("/s0"), node(), folder("/new/s2")]);
        stores.came.clear();
        // A folder that is in use is never cleared.
        stores.take_places(["/s1", "/s1", "/s2"].map(folder).to_vec());
        assert!(stores.moved.is_empty());
    }
}
