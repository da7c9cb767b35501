//! The stores that a node which has joined serves to others.
//!
//! Each of the node's folders for stores may have several, in folders `store-N` of their own. The
//! first node has stores made here, and moves their contents here. It decides which stores are in
//! use: a store that the maps do not place here is a leftover of a move that was cut short.

use crate::node::joined::NodeFolder;
use crate::{private, usage};
use anyhow::Context;
use cluster::FsConfig;
use cluster::config::STORE_COUNT_MAX;
use host::real::RealDisk;
use host::{Host, Tasks};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use storage::api::{Presence, Storage, StoreIdentity};
use storage::calls::ServedStores;
use storage::server::StoreServer;
use storage::site::{self, Site};
use storage::wire::StoreName;
use thiserror::Error;
use tokio::sync::watch;
use types::{BoxFuture, FsUuid, Maps, NodeId, StoreId};

/// Name of the file that remembers what was made.
pub const FILE: &str = "rack.json";
/// How long a store may take to say that it works.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// What is said of a store that is open and does not work.
const TAKES_NO_PUTS: &str = "it takes no puts, or does not answer. If its disk hangs, it goes on with the disk. If the disk failed, the log says so: mend \
                             it, and start this node again. If neither helps, move the store to another disk with `starling store replace`";
/// How the folder of a store begins.
const PREFIX: &str = "store-";

/// A store's folder, which is locked, and what is in it.
#[derive(Clone)]
struct Shelf {
    folder: PathBuf,
    /// `None` if the folder is missing.
    disk: Option<Arc<RealDisk>>,
    /// The error says why the store cannot be opened.
    site: Result<Arc<Site>, String>,
}

/// The stores that were made, with their folders: the contents of `rack.json`.
#[derive(Serialize, Deserialize, Clone, Default)]
#[serde(deny_unknown_fields)]
pub struct MadeStores {
    version: u32,
    folders: BTreeMap<u16, PathBuf>,
    /// Folders of stores that were replaced, which are of no use any more.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    replaced: BTreeSet<PathBuf>,
}

impl MadeStores {
    /// Stores in these folders.
    pub fn new(folders: BTreeMap<u16, PathBuf>) -> MadeStores {
        MadeStores { version: 1, folders, replaced: BTreeSet::new() }
    }

    /// True if a store is or was in a folder below this one.
    fn had_stores_in(&self, folder: &Path) -> bool {
        self.folders.values().chain(&self.replaced).any(|store| store.starts_with(folder))
    }
}

/// The stores of a node.
pub struct StoreRack {
    host: Host,
    fs: FsUuid,
    node: NodeId,
    folders: Vec<PathBuf>,
    shelves: Mutex<BTreeMap<StoreId, Shelf>>,
    /// The node's data folder.
    data: PathBuf,
    /// What was made. Held while a store is made or replaced.
    made: tokio::sync::Mutex<MadeStores>,
    changed: watch::Sender<()>,
    /// What the newest maps of the stores in use here say, and the epochs of all stores' maps.
    known: Mutex<(Vec<u64>, Option<FsConfig>)>,
}

/// Why a store is not replaced.
#[derive(Debug, Error)]
pub enum ReplaceError {
    /// The node does not have it.
    #[error(
        "{0} is not at this node: `starling status` says which ones are, and at the machine that leads, where all are"
    )]
    NotHere(StoreId),
    /// Nothing is wrong with it.
    #[error("{store} in {folder} works: --dead gives up what it has, and the others fill it again")]
    Works {
        /// The store.
        store: StoreId,
        /// Its folder.
        folder: PathBuf,
    },
    /// Something is in its new folder.
    #[error("{0} is not empty: give another folder, or remove what is in it")]
    NotEmpty(PathBuf),
    /// The new folder cannot be used.
    #[error("{0}")]
    Folder(#[from] io::Error),
}

/// A folder's path without links, if it can be read.
fn resolved(folder: &Path) -> PathBuf {
    folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf())
}

/// True if a store takes fragments.
async fn works(store: StoreId, fs: FsUuid, shelf: &Shelf) -> bool {
    let Some(server) = shelf.site.as_ref().ok().and_then(|site| site.store(StoreName { fs, store })) else {
        return false;
    };
    let status = tokio::time::timeout(ANSWER_TIME_MAX, Storage::status(&*server)).await;
    matches!(status, Ok(Ok(status)) if status.writable)
}

fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder)?;
    std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

/// The store of a site, if it has one.
fn server(site: &Arc<Site>) -> Option<Arc<StoreServer>> {
    let is = site.identity()?;
    site.store(StoreName { fs: is.fs, store: is.store })
}

fn locked(folder: &Path) -> io::Result<Arc<RealDisk>> {
    lock(folder, RealDisk::open(folder)?)
}

fn lock(folder: &Path, disk: Arc<RealDisk>) -> io::Result<Arc<RealDisk>> {
    private::lock_disk(&disk)
        .map_err(|_| io::Error::other(format!("{} is in use by another process", folder.display())))?;
    Ok(disk)
}

impl Shelf {
    /// Fails if another process uses the folder. A store that cannot be opened is no error: its
    /// disk may be dead.
    async fn open(host: &Host, folder: PathBuf) -> io::Result<Shelf> {
        let disk = match RealDisk::open(&folder) {
            Ok(disk) => lock(&folder, disk)?,
            Err(e) => return Ok(Shelf { folder, disk: None, site: Err(e.to_string()) }),
        };
        let site = Site::open(host.clone(), disk.clone()).await.map_err(|e| e.to_string());
        Ok(Shelf { folder, disk: Some(disk), site })
    }

    fn say_if_broken(&self, store: StoreId) {
        if let Err(e) = &self.site {
            let shown = self.folder.display();
            eprintln!(
                "warning: {store} in {shown} cannot be opened: {e}; the file system goes on without it. If its disk is lost for good: \
                 `starling store replace`"
            );
        }
    }
}

impl StoreRack {
    /// Opens the stores in these folders of a node, which are made if they are missing. A store
    /// that cannot be opened is left out, with a warning: other nodes have the rest. `data` is the
    /// node's data folder, which remembers what was made where: if that folder is missing, the
    /// store is missing, and no other is made in its stead.
    pub async fn open(
        host: &Host,
        fs: FsUuid,
        node: NodeId,
        data: &NodeFolder,
        folders: Vec<PathBuf>,
    ) -> anyhow::Result<Arc<StoreRack>> {
        let made: MadeStores = data.read(FILE)?.unwrap_or(MadeStores { version: data.version(), ..Default::default() });
        let mut shelves: BTreeMap<StoreId, Shelf> = BTreeMap::new();
        for folder in &folders {
            let shown = folder.display();
            let failed = |e: io::Error| usage(format!("--store {shown}: {e}"));
            let paths = match list(folder) {
                // Its disk may be dead. What was made there is known, and is warned about below.
                Err(_) if made.had_stores_in(folder) => continue,
                paths => paths.map_err(failed)?,
            };
            for path in paths {
                let name = path.file_name().and_then(|name| name.to_str());
                let number = name.and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
                let Some(store) = number.map(StoreId::new) else { continue };
                let is_elsewhere = |known: &PathBuf| resolved(known) != resolved(&path) && known.exists();
                let is_elsewhere = made.folders.get(&store.raw()).is_some_and(is_elsewhere);
                if is_elsewhere || [&path, &resolved(&path)].iter().any(|path| made.replaced.contains(*path)) {
                    eprintln!("warning: {} is an old {store}, which was replaced: it is not used", path.display());
                    continue;
                }
                let shelf = Shelf::open(host, path.clone()).await.map_err(failed)?;
                let is_foreign = |site: &Arc<Site>| site.identity().is_some_and(|is| (is.fs, is.store) != (fs, store));
                if shelf.site.as_ref().is_ok_and(is_foreign) {
                    return Err(usage(format!(
                        "{} has a store of another file system, or under another number: give another --store",
                        shelf.folder.display()
                    )));
                }
                shelf.say_if_broken(store);
                if let Some(other) = shelves.insert(store, shelf) {
                    let (one, two) = (other.folder.display(), path.display());
                    return Err(usage(format!("{store} is in {one} and in {two}: remove the older one")));
                }
            }
        }
        for (store, folder) in &made.folders {
            let store = StoreId::new(*store);
            if !shelves.contains_key(&store) && folder.exists() {
                // Its name is the user's own, or its disk is none of these folders any more.
                let failed = |e: io::Error| usage(format!("{}: {e}", folder.display()));
                let shelf = Shelf::open(host, folder.clone()).await.map_err(failed)?;
                shelf.say_if_broken(store);
                shelves.insert(store, shelf);
            }
            shelves.entry(store).or_insert_with(|| {
                let shown = folder.display();
                eprintln!(
                    "warning: the folder of {store} is missing, {shown}: mount its disk and start again, or, if it is lost for good, \
                     `starling store replace`; the file system goes on without it"
                );
                Shelf { folder: folder.clone(), disk: None, site: Err(format!("its folder is missing, {shown}")) }
            });
        }
        let (host, data) = (host.clone(), data.path().to_path_buf());
        let (shelves, made) = (Mutex::new(shelves), tokio::sync::Mutex::new(made));
        let (known, changed) = (Mutex::default(), watch::Sender::new(()));
        Ok(Arc::new(StoreRack { host, fs, node, folders, shelves, data, made, known, changed }))
    }

    /// Changes when a store is made, or goes.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn shelves(&self) -> MutexGuard<'_, BTreeMap<StoreId, Shelf>> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn site(&self, store: StoreId) -> Option<Arc<Site>> {
        self.shelves().get(&store)?.site.clone().ok()
    }

    /// True if the node takes stores.
    pub fn takes_stores(&self) -> bool {
        !self.folders.is_empty()
    }

    /// The stores that are open.
    pub fn stores(&self) -> Vec<StoreId> {
        let shelves = self.shelves();
        let has_store = |shelf: &Shelf| shelf.site.as_ref().is_ok_and(|site| site.identity().is_some());
        shelves.iter().filter(|(_, shelf)| has_store(shelf)).map(|(store, _)| *store).collect()
    }

    /// Closes all stores.
    pub async fn close(&self) -> anyhow::Result<()> {
        let sites: Vec<_> = self.shelves().values().filter_map(|shelf| shelf.site.clone().ok()).collect();
        let mut closed = Ok(());
        for site in sites {
            let done = site.close().await.context("close a store");
            closed = closed.and(done);
        }
        closed
    }

    /// The folder with most room, and that room.
    async fn roomiest(&self) -> io::Result<(PathBuf, host::DiskSpace)> {
        let mut found = None;
        for folder in &self.folders {
            // Its disk may be dead.
            let Ok(disk) = RealDisk::open(folder) else { continue };
            let Ok(space) = host::Disk::space(&*disk).await else { continue };
            if found.as_ref().is_none_or(|(_, most): &(_, host::DiskSpace)| space.free_bytes > most.free_bytes) {
                found = Some((folder.clone(), space));
            }
        }
        found.ok_or_else(|| io::Error::other("this node has no --store folder that can be used"))
    }

    async fn look(&self, name: StoreName) -> io::Result<Presence> {
        let shelf = self.shelves().get(&name.store).cloned();
        match shelf.map(|shelf| shelf.site) {
            Some(Ok(site)) => site.presence().await,
            Some(Err(why)) => Err(io::Error::other(why)),
            None => Ok(Presence::Empty(self.roomiest().await?.1)),
        }
    }

    async fn make_store(&self, identity: StoreIdentity) -> io::Result<()> {
        let mut made = self.made.lock().await;
        let store = identity.store;
        if identity.fs != self.fs || store.raw() >= STORE_COUNT_MAX {
            return Err(io::Error::other("this node belongs to another file system"));
        }
        let known = self.shelves().get(&store).cloned();
        let (folder, disk) = match known {
            Some(Shelf { site: Ok(site), folder, disk: Some(disk) }) => {
                if server(&site).is_some_and(|server| self.in_use(&server).is_some()) {
                    return Err(io::Error::other(format!("{store} is in use here")));
                }
                site.close().await.map_err(io::Error::other)?;
                site::clear(&*disk).await?;
                (folder, disk)
            }
            Some(Shelf { site, .. }) => {
                return Err(io::Error::other(site.err().unwrap_or_default()));
            }
            None => {
                let parent = self.roomiest().await?.0;
                let folder = parent.join(format!("{PREFIX}{}", store.raw()));
                std::fs::create_dir_all(&folder)?;
                private::sync(&parent)?;
                let disk = locked(&folder)?;
                (folder, disk)
            }
        };
        let anew = async {
            let site = Site::open(self.host.clone(), disk.clone()).await.map_err(io::Error::other)?;
            self.record(&mut made, store, &folder)?;
            site.initialise(identity).await.map_err(io::Error::other)?;
            Ok(site)
        };
        let anew: io::Result<Arc<Site>> = anew.await;
        let failed = anew.as_ref().err().map(ToString::to_string);
        let site = anew.map_err(|e| e.to_string());
        self.shelves().insert(store, Shelf { folder, disk: Some(disk), site });
        self.changed.send_replace(());
        failed.map_or(Ok(()), |why| Err(io::Error::other(why)))
    }

    /// Records where a store is, durably.
    fn record(&self, made: &mut MadeStores, store: StoreId, folder: &Path) -> io::Result<()> {
        let mut next = made.clone();
        if let Some(before) = next.folders.insert(store.raw(), folder.to_path_buf()) {
            next.replaced.extend([resolved(&before), before]);
        }
        next.replaced.remove(folder);
        next.replaced.remove(&resolved(folder));
        private::put(&self.data, FILE, serde_json::to_string_pretty(&next)?.as_bytes())?;
        *made = next;
        Ok(())
    }

    /// Has a store be in another folder from now on, `store-N` below `parent`, without what it had.
    /// Its place is empty then. The leader makes it anew there, and the others fill it. Returns the
    /// folder.
    pub async fn replace(&self, store: StoreId, parent: &Path, is_dead: bool) -> Result<PathBuf, ReplaceError> {
        let mut made = self.made.lock().await;
        let known = self.shelves().get(&store).cloned().ok_or(ReplaceError::NotHere(store))?;
        if !is_dead && works(store, self.fs, &known).await {
            return Err(ReplaceError::Works { store, folder: known.folder });
        }
        let folder = std::path::absolute(parent)?.join(format!("{PREFIX}{}", store.raw()));
        std::fs::create_dir_all(&folder)?;
        private::sync(folder.parent().unwrap_or(parent))?;
        if std::fs::read_dir(&folder)?.next().is_some() {
            return Err(ReplaceError::NotEmpty(folder));
        }
        let disk = locked(&folder)?;
        let site = Site::open(self.host.clone(), disk.clone()).await.map_err(|e| e.to_string());
        self.record(&mut made, store, &folder)?;
        self.shelves().insert(store, Shelf { folder: folder.clone(), disk: Some(disk), site });
        self.changed.send_replace(());
        if let Ok(site) = known.site {
            // Its disk may never answer.
            tokio::spawn(async move { site.close().await });
        }
        Ok(folder)
    }

    /// The folders of all stores of this node, and why one cannot be used. A store is asked for two
    /// seconds at most.
    pub async fn folders(&self) -> Vec<(StoreId, PathBuf, Option<String>)> {
        let shelves = self.shelves().clone();
        let shown = shelves.into_iter().map(|(store, shelf)| async move {
            let trouble = match &shelf.site {
                Ok(site) if site.identity().is_none() => {
                    Some("it is empty: the machine that leads makes it anew".into())
                }
                Ok(_) if works(store, self.fs, &shelf).await => None,
                Ok(_) => Some(TAKES_NO_PUTS.into()),
                Err(why) => Some(why.clone()),
            };
            (store, shelf.folder, trouble)
        });
        host::join_all(shown.collect()).await
    }

    /// The newest maps of the stores in use here.
    pub fn newest_maps(&self) -> Option<Maps> {
        let shelves = self.shelves();
        let servers = shelves.values().filter_map(|shelf| server(shelf.site.as_ref().ok()?));
        let used = servers.filter(|server| self.in_use(server).is_some());
        used.map(|server| server.newest_maps()).max_by_key(|maps| maps.epoch)
    }

    /// The folder of a store that is open.
    pub fn folder(&self, store: StoreId) -> Option<PathBuf> {
        let shelves = self.shelves();
        let shelf = shelves.get(&store)?;
        server(shelf.site.as_ref().ok()?).map(|_| shelf.folder.clone())
    }

    /// What the maps in a store say, if they say that it is used here.
    fn in_use(&self, server: &StoreServer) -> Option<(u64, FsConfig)> {
        let maps = server.newest_maps();
        let config = FsConfig::decode(&maps.bytes).ok()?;
        (config.place(server.identity().store) == self.node).then_some((maps.epoch, config))
    }
}

impl ServedStores for StoreRack {
    fn store(&self, name: StoreName) -> Option<Arc<dyn Storage>> {
        self.site(name.store)?.store(name).map(|server| server as Arc<dyn Storage>)
    }

    fn tasks(&self, name: StoreName) -> Option<Arc<dyn Tasks>> {
        self.site(name.store)?.store(name).map(|server| server.tasks().clone())
    }

    fn admits(&self, certificate: &[u8; 32]) -> bool {
        let shelves = self.shelves();
        let servers: Vec<_> = shelves.values().filter_map(|shelf| server(shelf.site.as_ref().ok()?)).collect();
        let epochs: Vec<u64> = servers.iter().map(|server| server.newest_maps().epoch).collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != epochs {
            let newest = servers.iter().filter_map(|server| self.in_use(server)).max_by_key(|(epoch, _)| *epoch);
            *known = (epochs, newest.map(|(_, config)| config));
        }
        known.1.as_ref().is_none_or(|config| config.has_node(certificate))
    }

    fn look_for(self: Arc<Self>, name: StoreName) -> BoxFuture<io::Result<Presence>> {
        Box::pin(async move { self.look(name).await })
    }

    fn make(self: Arc<Self>, identity: StoreIdentity) -> BoxFuture<io::Result<()>> {
        Box::pin(async move { self.make_store(identity).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FS: FsUuid = FsUuid([7; 16]);
    const NODE: NodeId = NodeId::new(2);

    fn identity(store: u16) -> StoreIdentity {
        StoreIdentity { fs: FS, store: StoreId::new(store), capacity_bytes: 64 << 20 }
    }

    fn name(store: u16) -> StoreName {
        StoreName { fs: FS, store: StoreId::new(store) }
    }

    /// A node's data folder, and folders for stores.
    struct Rig {
        below: tempfile::TempDir,
        data: NodeFolder,
    }

    impl Rig {
        fn new() -> Rig {
            let below = tempfile::tempdir().unwrap();
            let data = NodeFolder::open(&below.path().join("data")).unwrap();
            Rig { below, data }
        }

        async fn open(&self, folders: &[&str]) -> anyhow::Result<Arc<StoreRack>> {
            let host = host::real::host(tokio::runtime::Handle::current()).unwrap();
            let folders = folders.iter().map(|folder| self.below.path().join(folder)).collect();
            StoreRack::open(&host, FS, NODE, &self.data, folders).await
        }
    }

    /// Maps in which this node has store 1.
    fn maps() -> Maps {
        let mut config = FsConfig { fs: FS, store_capacity_bytes: 64 << 20, ..crate::node::joined::tests::config() };
        for name in ["one", "two"] {
            let (name, fingerprint) = (name.to_string(), [1; 32]);
            let member = cluster::config::MemberEntry { name, fingerprint, address: "a:1".into() };
            config.add_member(member).unwrap();
        }
        config.places.insert(StoreId::new(1), NODE);
        Maps { epoch: 3, bytes: config.encode() }
    }

    #[tokio::test]
    async fn stores_are_made_kept_and_found_again() {
        let rig = Rig::new();
        let rack = rig.open(&["a", "b"]).await.unwrap();
        assert!(matches!(rack.clone().look_for(name(1)).await, Ok(Presence::Empty(_))) && rack.takes_stores());
        for store in [1, 2] {
            rack.clone().make(identity(store)).await.unwrap();
        }
        rack.store(name(1)).unwrap().put_maps(maps()).await.unwrap();
        assert!(rack.store(name(0)).is_none() && rack.store(StoreName { fs: FsUuid([1; 16]), ..name(1) }).is_none());
        let refused = rig.open(&["a", "b"]).await.err().unwrap();
        assert!(refused.to_string().contains("in use by another process"), "{refused}");
        rack.close().await.unwrap();
        drop(rack);
        let rack = rig.open(&["a", "b"]).await.unwrap();
        assert_eq!(rack.stores(), [StoreId::new(1), StoreId::new(2)]);
        assert_eq!(rack.store(name(1)).unwrap().maps().await.unwrap(), maps());
    }

    #[tokio::test]
    async fn nodes_that_belong_to_the_file_system_no_more_are_not_admitted() {
        let rig = Rig::new();
        let rack = rig.open(&["a"]).await.unwrap();
        assert!(rack.admits(&[9; 32]), "nothing is known yet");
        for store in [1, 2] {
            rack.clone().make(identity(store)).await.unwrap();
        }
        let with_first = |first_node, epoch| {
            let config = FsConfig { first_node, ..FsConfig::decode(&maps().bytes).unwrap() };
            Maps { epoch, bytes: config.encode() }
        };
        let (used, left) = (rack.store(name(1)).unwrap(), rack.store(name(2)).unwrap());
        // Store 2 is a leftover: what it has been told does not count.
        left.put_maps(with_first(Some([7; 32]), 9)).await.unwrap();
        used.put_maps(with_first(None, 3)).await.unwrap();
        assert!(rack.admits(&[9; 32]), "the maps do not say who the first node is");
        used.put_maps(with_first(Some([8; 32]), 4)).await.unwrap();
        let admitted = [1, 7, 8, 9].map(|first| rack.admits(&[first; 32]));
        assert_eq!(admitted, [true, false, true, false], "members, and the first node");
    }

    #[tokio::test]
    async fn a_store_in_use_is_never_replaced_and_a_leftover_is() {
        let rig = Rig::new();
        let rack = rig.open(&["a"]).await.unwrap();
        for store in [1, 2] {
            rack.clone().make(identity(store)).await.unwrap();
            rack.store(name(store)).unwrap().put_maps(maps()).await.unwrap();
        }
        let refused = rack.clone().make(identity(1)).await.unwrap_err().to_string();
        assert!(refused.contains("in use here"), "{refused}");
        // The maps place store 2 at the first node.
        rack.clone().make(identity(2)).await.unwrap();
        assert_eq!(rack.store(name(2)).unwrap().maps().await.unwrap(), Maps::default());
        let foreign = StoreIdentity { fs: FsUuid([1; 16]), ..identity(2) };
        assert!(rack.clone().make(foreign).await.unwrap_err().to_string().contains("another file system"));
    }

    #[tokio::test]
    async fn a_store_whose_folder_is_missing_is_made_anew_only_if_the_user_says_so() {
        let rig = Rig::new();
        let rack = rig.open(&["a"]).await.unwrap();
        rack.clone().make(identity(1)).await.unwrap();
        rack.close().await.unwrap();
        drop(rack);
        // Its disk is not mounted.
        let folder = rig.below.path().join("a/store-1");
        std::fs::rename(&folder, rig.below.path().join("elsewhere")).unwrap();
        let rack = rig.open(&["a"]).await.unwrap();
        let said = rack.clone().look_for(name(1)).await.unwrap_err().to_string();
        assert!(said.contains("folder is missing"), "{said}");
        assert!(rack.clone().make(identity(1)).await.is_err() && !folder.exists());
        drop(rack);
        std::fs::create_dir(&folder).unwrap();
        let rack = rig.open(&["a"]).await.unwrap();
        assert!(matches!(rack.clone().look_for(name(1)).await, Ok(Presence::Empty(_))));
        rack.make(identity(1)).await.unwrap();
    }

    #[tokio::test]
    async fn a_dead_disk_keeps_no_other_store_from_serving_and_is_replaced() {
        let rig = Rig::new();
        let path = |name: &str| rig.below.path().join(name);
        let rack = rig.open(&["a"]).await.unwrap();
        rack.clone().make(identity(1)).await.unwrap();
        rack.store(name(1)).unwrap().put_maps(maps()).await.unwrap();
        let works = rack.replace(StoreId::new(1), &path("c"), false).await.unwrap_err();
        assert!(matches!(works, ReplaceError::Works { .. }), "{works}");
        let elsewhere = rack.replace(StoreId::new(0), &path("c"), false).await.unwrap_err();
        assert!(matches!(elsewhere, ReplaceError::NotHere(_)), "{elsewhere}");
        rack.close().await.unwrap();
        drop(rack);
        // What is there is no folder, so the first one cannot be read. A new one is an error.
        std::fs::rename(path("a"), path("dead")).unwrap();
        std::fs::write(path("a"), "").unwrap();
        assert!(rig.open(&["a"]).await.is_ok() && rig.open(&["a/new"]).await.is_err());
        let rack = rig.open(&["a", "b"]).await.unwrap();
        assert!(rack.clone().look_for(name(1)).await.is_err());
        rack.clone().make(identity(2)).await.unwrap();
        let mut changes = rack.changes();
        std::fs::create_dir_all(path("b/store-1")).unwrap();
        std::fs::write(path("b/store-1/thesis.txt"), "precious").unwrap();
        let refused = rack.replace(StoreId::new(1), &path("b"), false).await.unwrap_err();
        assert!(matches!(refused, ReplaceError::NotEmpty(_)), "{refused}");
        std::fs::remove_file(path("b/store-1/thesis.txt")).unwrap();
        assert_eq!(rack.replace(StoreId::new(1), &path("b"), false).await.unwrap(), path("b/store-1"));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        assert!(matches!(rack.clone().look_for(name(1)).await, Ok(Presence::Empty(_))));
        let folders = rack.folders().await;
        assert!(folders[0].2.is_some() && folders[1].2.is_none(), "{folders:?}");
        // The dead disk keeps no later start from serving either.
        rack.close().await.unwrap();
        drop(rack);
        let rack = rig.open(&["a", "b"]).await.unwrap();
        let changes = rack.changes();
        rack.clone().make(identity(1)).await.unwrap();
        assert!(changes.has_changed().unwrap() && rack.folders().await[0].2.is_none());
        rack.close().await.unwrap();
        assert_eq!(rack.folders().await[0].2.as_deref(), Some(TAKES_NO_PUTS));
        drop(rack);
        // The old disk is back, and does not count.
        std::fs::remove_file(path("a")).unwrap();
        std::fs::rename(path("dead"), path("a")).unwrap();
        let rack = rig.open(&["a", "b"]).await.unwrap();
        assert_eq!(rack.store(name(1)).unwrap().maps().await.unwrap(), Maps::default());
        assert_eq!(rack.folder(StoreId::new(1)), Some(path("b/store-1")));
    }

    #[tokio::test]
    async fn what_cannot_be_opened_is_left_alone() {
        let rig = Rig::new();
        let below = rig.below.path().join("a/store-1");
        std::fs::create_dir_all(&below).unwrap();
        std::fs::write(below.join("thesis.txt"), "precious").unwrap();
        let rack = rig.open(&["a"]).await.unwrap();
        assert!(rack.clone().look_for(name(1)).await.is_err() && rack.clone().make(identity(1)).await.is_err());
        assert_eq!(std::fs::read_to_string(below.join("thesis.txt")).unwrap(), "precious");
        assert_eq!(rack.stores(), []);
    }
}
