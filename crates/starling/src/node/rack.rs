//! The stores that a node which has joined serves to others.
//!
//! Each of the node's folders for stores may have several, in folders `store-N` of their own. The
//! first node has stores made here, and moves their contents here. It decides which stores are in
//! use: a store that the maps do not place here is a leftover of a move that was cut short.

use crate::usage;
use anyhow::Context;
use cluster::FsConfig;
use host::real::RealDisk;
use host::{Host, Tasks};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use storage::api::{Presence, Storage, StoreIdentity};
use storage::calls::ServedStores;
use storage::site::{self, Site};
use storage::wire::StoreName;
use types::{BoxFuture, FsUuid, NodeId, StoreId};

/// How the folder of a store begins.
const PREFIX: &str = "store-";

/// A store's folder, which is locked, and what is in it.
#[derive(Clone)]
struct Shelf {
    folder: PathBuf,
    disk: Arc<RealDisk>,
    /// The error says why the store cannot be opened.
    site: Result<Arc<Site>, String>,
}

/// The stores of a node.
pub struct StoreRack {
    host: Host,
    fs: FsUuid,
    node: NodeId,
    folders: Vec<PathBuf>,
    shelves: Mutex<BTreeMap<StoreId, Shelf>>,
    /// Held while a store is made.
    making: tokio::sync::Mutex<()>,
}

fn locked(folder: &Path) -> io::Result<Arc<RealDisk>> {
    let disk = RealDisk::open(folder)?;
    disk.lock().map_err(|_| io::Error::other(format!("{} is in use by another process", folder.display())))?;
    Ok(disk)
}

impl Shelf {
    async fn open(host: &Host, folder: PathBuf) -> io::Result<Shelf> {
        let disk = locked(&folder)?;
        let site = Site::open(host.clone(), disk.clone()).await.map_err(|e| e.to_string());
        Ok(Shelf { folder, disk, site })
    }
}

impl StoreRack {
    /// Opens the stores in these folders of a node, which are made if they are missing. A store
    /// that cannot be opened is left out, with a warning: other nodes have the rest.
    pub async fn open(host: &Host, fs: FsUuid, node: NodeId, folders: Vec<PathBuf>) -> anyhow::Result<Arc<StoreRack>> {
        let mut shelves: BTreeMap<StoreId, Shelf> = BTreeMap::new();
        for folder in &folders {
            let shown = folder.display();
            let failed = |e: io::Error| usage(format!("--store {shown}: {e}"));
            std::fs::create_dir_all(folder).map_err(failed)?;
            let listed = std::fs::read_dir(folder);
            let listed = listed.and_then(|all| all.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>());
            let paths = listed.map_err(failed)?;
            for path in paths {
                let name = path.file_name().and_then(|name| name.to_str());
                let number = name.and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
                let Some(store) = number.map(StoreId::new) else { continue };
                let shelf = Shelf::open(host, path.clone()).await.map_err(failed)?;
                let is_foreign = |site: &Arc<Site>| site.identity().is_some_and(|is| (is.fs, is.store) != (fs, store));
                if shelf.site.as_ref().is_ok_and(is_foreign) {
                    return Err(usage(format!(
                        "{} has a store of another file system, or under another number: give another --store",
                        shelf.folder.display()
                    )));
                }
                if let Err(e) = &shelf.site {
                    let shown = shelf.folder.display();
                    eprintln!("warning: {store} in {shown} cannot be opened: {e}; the file system goes on without it");
                }
                if let Some(other) = shelves.insert(store, shelf) {
                    let (one, two) = (other.folder.display(), path.display());
                    return Err(usage(format!("{store} is in {one} and in {two}: remove the older one")));
                }
            }
        }
        let (host, making) = (host.clone(), tokio::sync::Mutex::default());
        Ok(Arc::new(StoreRack { host, fs, node, folders, shelves: Mutex::new(shelves), making }))
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
            let space = host::Disk::space(&*RealDisk::open(folder)?).await?;
            if found.as_ref().is_none_or(|(_, most): &(_, host::DiskSpace)| space.free_bytes > most.free_bytes) {
                found = Some((folder.clone(), space));
            }
        }
        found.ok_or_else(|| io::Error::other("this node has no --store folder"))
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
        let _one_at_a_time = self.making.lock().await;
        let store = identity.store;
        if identity.fs != self.fs {
            return Err(io::Error::other("this node belongs to another file system"));
        }
        let known = self.shelves().get(&store).cloned();
        let (folder, disk) = match known {
            Some(Shelf { site: Err(why), .. }) => return Err(io::Error::other(why)),
            Some(Shelf { site: Ok(site), folder, disk }) => {
                if self.is_in_use(&site).await? {
                    return Err(io::Error::other(format!("{store} is in use here")));
                }
                self.shelves().remove(&store);
                site.close().await.map_err(io::Error::other)?;
                site::clear(&*disk).await?;
                (folder, disk)
            }
            None => {
                let folder = self.roomiest().await?.0.join(format!("{PREFIX}{}", store.raw()));
                std::fs::create_dir_all(&folder)?;
                let disk = locked(&folder)?;
                (folder, disk)
            }
        };
        let site = Site::open(self.host.clone(), disk.clone()).await.map_err(io::Error::other)?;
        site.initialise(identity).await.map_err(io::Error::other)?;
        self.shelves().insert(store, Shelf { folder, disk, site: Ok(site) });
        Ok(())
    }

    /// True if the maps in a store say that it is used here.
    async fn is_in_use(&self, site: &Site) -> io::Result<bool> {
        let Some(is) = site.identity() else { return Ok(false) };
        let Some(server) = site.store(StoreName { fs: is.fs, store: is.store }) else { return Ok(false) };
        let maps = server.maps().await.map_err(io::Error::other)?;
        Ok(FsConfig::decode(&maps.bytes).is_ok_and(|config| config.place(is.store) == self.node))
    }
}

impl ServedStores for StoreRack {
    fn store(&self, name: StoreName) -> Option<Arc<dyn Storage>> {
        self.site(name.store)?.store(name).map(|server| server as Arc<dyn Storage>)
    }

    fn tasks(&self, name: StoreName) -> Option<Arc<dyn Tasks>> {
        self.site(name.store)?.store(name).map(|server| server.tasks().clone())
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
    use types::Maps;

    const FS: FsUuid = FsUuid([7; 16]);
    const NODE: NodeId = NodeId::new(2);

    fn identity(store: u16) -> StoreIdentity {
        StoreIdentity { fs: FS, store: StoreId::new(store), capacity_bytes: 64 << 20 }
    }

    fn name(store: u16) -> StoreName {
        StoreName { fs: FS, store: StoreId::new(store) }
    }

    async fn open(folders: &[&tempfile::TempDir]) -> anyhow::Result<Arc<StoreRack>> {
        let host = host::real::host(tokio::runtime::Handle::current()).unwrap();
        let folders = folders.iter().map(|folder| folder.path().to_path_buf()).collect();
        StoreRack::open(&host, FS, NODE, folders).await
    }

    /// Maps in which this node has store 1.
    fn maps() -> Maps {
        let mut config = FsConfig {
            fs: FS,
            store_count: 3,
            parity: 1,
            block_size: 65536,
            store_capacity_bytes: 64 << 20,
            managers: cluster::config::first_manager_map(2),
            members: Default::default(),
            next_node: 1,
            places: Default::default(),
        };
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
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let rack = open(&[&folders[0], &folders[1]]).await.unwrap();
        assert!(matches!(rack.clone().look_for(name(1)).await, Ok(Presence::Empty(_))) && rack.takes_stores());
        for store in [1, 2] {
            rack.clone().make(identity(store)).await.unwrap();
        }
        rack.store(name(1)).unwrap().put_maps(maps()).await.unwrap();
        assert!(rack.store(name(0)).is_none() && rack.store(StoreName { fs: FsUuid([1; 16]), ..name(1) }).is_none());
        let refused = open(&[&folders[0], &folders[1]]).await.err().unwrap();
        assert!(refused.to_string().contains("in use by another process"), "{refused}");
        rack.close().await.unwrap();
        drop(rack);
        let rack = open(&[&folders[0], &folders[1]]).await.unwrap();
        assert_eq!(rack.stores(), [StoreId::new(1), StoreId::new(2)]);
        assert_eq!(rack.store(name(1)).unwrap().maps().await.unwrap(), maps());
    }

    #[tokio::test]
    async fn a_store_in_use_is_never_replaced_and_a_leftover_is() {
        let folder = tempfile::tempdir().unwrap();
        let rack = open(&[&folder]).await.unwrap();
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
    async fn what_cannot_be_opened_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("store-1");
        std::fs::create_dir(&below).unwrap();
        std::fs::write(below.join("thesis.txt"), "precious").unwrap();
        let rack = open(&[&folder]).await.unwrap();
        assert!(rack.clone().look_for(name(1)).await.is_err() && rack.clone().make(identity(1)).await.is_err());
        assert_eq!(std::fs::read_to_string(below.join("thesis.txt")).unwrap(), "precious");
        assert_eq!(rack.stores(), []);
    }
}
