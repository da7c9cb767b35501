//! The places of stores, as the first node records them in its data folder, and the way to those at
//! other nodes.

use crate::folder::{Stores, write_stores};
use crate::location::Location;
use crate::node::identity::{self, address_of};
use cluster::maps::Keeper;
use cluster::spread::{RecordError, StorePlaces, decide_places};
use cluster::{FsConfig, KnownNode};
use consensus::Consensus;
use host::real::RealDisk;
use host::{Disk, Host};
use link::{Address, ClientKeys};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use storage::api::{RemoteStorage, StoreIdentity};
use storage::server::StoreServer;
use storage::site;
use storage::tcp::Remote;
use storage::wire::StoreName;
use types::{BoxFuture, StoreId};

/// The record of a data folder, in memory and on disk.
pub struct PlaceRecord {
    folder: PathBuf,
    stores: Mutex<Stores>,
}

impl PlaceRecord {
    /// What the data folder records now.
    pub fn new(folder: &Path, stores: Stores) -> Arc<PlaceRecord> {
        Arc::new(PlaceRecord { folder: folder.to_path_buf(), stores: Mutex::new(stores) })
    }

    fn stores(&self) -> Stores {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where the stores are, by store id.
    pub fn places(&self) -> Vec<Location> {
        self.stores().places
    }

    /// Writes the record, durably.
    fn write(&self, stores: Stores) -> Result<(), RecordError> {
        write_stores(&self.folder, &stores)?;
        *self.stores.lock().unwrap_or_else(PoisonError::into_inner) = stores;
        Ok(())
    }

    /// Removes what is left here of stores that have moved to nodes.
    pub async fn clear_moved(&self) -> io::Result<()> {
        let mut stores = self.stores();
        for place in stores.moved.iter() {
            let Location::Folder(folder) = place else { continue };
            let path = self.folder.join(folder);
            match RealDisk::open(&path) {
                Ok(disk) => site::clear(&*disk).await?,
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
            // The folder stays if it has other things, or is the root of a disk.
            let _ = std::fs::remove_dir(&path);
        }
        if stores.moved.is_empty() {
            return Ok(());
        }
        stores.moved.clear();
        self.write(stores).map_err(io::Error::other)
    }
}

/// The folder of a store that is made here, below the data folder.
fn own_folder(store: StoreId) -> PathBuf {
    format!("store-{}", store.raw()).into()
}

/// True if a place is this folder, which may be relative to the data folder, as the place may.
fn is_folder(data: &Path, place: &Location, folder: &Path) -> bool {
    matches!(place, Location::Folder(other) if data.join(other) == data.join(folder))
}

/// True if the maps decide where stores are, and the data folder follows them: others vote, or may
/// soon, or have just done so.
pub fn is_decided(config: &FsConfig, voter: Option<&Arc<Consensus>>) -> bool {
    config.voters.len() > 1 || voter.is_some_and(|voter| voter.voters().len() > 1)
}

/// The record with the places of stores at nodes that the maps have, which decide while several
/// nodes vote. `folder` is the data folder.
pub fn as_decided(folder: &Path, stores: Stores, config: &FsConfig) -> Stores {
    let at_nodes = config.places.iter().filter_map(|(store, node)| Some((*store, config.reach(*node)?)));
    with_places(folder, stores, &at_nodes.collect())
}

/// The record after stores have moved. `folder` is the data folder.
fn with_places(folder: &Path, mut stores: Stores, places: &BTreeMap<StoreId, KnownNode>) -> Stores {
    for (store, place) in (0..).map(StoreId::new).zip(&mut stores.places) {
        if matches!(place, Location::Node(_)) && !places.contains_key(&store) {
            let own = own_folder(store);
            stores.moved.retain(|left| !is_folder(folder, left, &own));
            stores.came.insert(store.raw());
            *place = Location::Folder(own);
        }
    }
    for (store, at) in places {
        let Some(place) = stores.places.get_mut(usize::from(store.raw())) else { continue };
        stores.came.remove(&store.raw());
        let before = std::mem::replace(place, Location::Node(at.clone()));
        if matches!(before, Location::Folder(_)) {
            stores.moved.push(before);
        }
    }
    stores
}

/// The way to a store at a node.
pub fn reach(host: &Host, keys: &ClientKeys, at: &KnownNode, name: StoreName) -> Arc<dyn RemoteStorage> {
    // An address that cannot be read is one that cannot be reached.
    let nowhere = Address { host: at.address.clone(), port: 0, keys: None };
    Remote::named(host.clone(), address_of(at, keys).unwrap_or(nowhere), name)
}

/// What moving stores needs of the first node.
pub struct FirstNodePlaces {
    host: Host,
    keys: ClientKeys,
    record: Arc<PlaceRecord>,
    maps: Arc<Keeper>,
}

impl FirstNodePlaces {
    /// The record, and the first node's keys in its data folder. While others vote, the maps
    /// decide, since an elected node knows nothing else.
    pub fn new(host: Host, record: Arc<PlaceRecord>, maps: Arc<Keeper>) -> anyhow::Result<Arc<FirstNodePlaces>> {
        let keys = identity::client_keys(&record.folder)?;
        Ok(Arc::new(FirstNodePlaces { host, keys, record, maps }))
    }
}

impl StorePlaces for FirstNodePlaces {
    fn reach(&self, at: &KnownNode, name: StoreName) -> Arc<dyn RemoteStorage> {
        reach(&self.host, &self.keys, at, name)
    }

    fn record(&self, places: &BTreeMap<StoreId, KnownNode>) -> BoxFuture<Result<(), RecordError>> {
        let (record, stores) = (self.record.clone(), with_places(&self.record.folder, self.record.stores(), places));
        let (maps, nodes) = (self.maps.clone(), places.iter().map(|(store, at)| (*store, at.node)).collect());
        Box::pin(async move {
            let known = maps.config().map_err(|e| RecordError::Unchanged(io::Error::other(e)))?;
            let is_decided = is_decided(&known, maps.voter());
            if is_decided && known.places != nodes {
                decide_places(&maps, nodes).await?;
            }
            let written = tokio::task::spawn_blocking(move || record.write(stores)).await;
            match written.unwrap_or_else(|e| Err(RecordError::Unknown(e.into()))) {
                // The next start takes the places from the maps.
                Err(RecordError::Unchanged(e) | RecordError::Unknown(e)) if is_decided => {
                    tracing::warn!("the data folder does not say where the stores are: {e}");
                    Ok(())
                }
                written => written,
            }
        })
    }

    fn remove(&self, _: StoreId) -> BoxFuture<io::Result<()>> {
        let record = self.record.clone();
        Box::pin(async move { record.clear_moved().await })
    }

    fn make(&self, identity: StoreIdentity) -> BoxFuture<io::Result<Arc<StoreServer>>> {
        let (host, record) = (self.host.clone(), self.record.clone());
        Box::pin(async move {
            let folder = own_folder(identity.store);
            if record.places().iter().any(|place| is_folder(&record.folder, place, &folder)) {
                return Err(io::Error::other(format!("{} has a store that is in use", folder.display())));
            }
            let path = record.folder.join(folder);
            std::fs::create_dir_all(&path)?;
            let disk = RealDisk::open(&path)?;
            disk.lock()?;
            site::clear(&*disk).await?;
            let room = disk.space().await?.free_bytes;
            if room < identity.capacity_bytes {
                let wanted = identity.capacity_bytes;
                return Err(io::Error::other(format!(
                    "its disk has room for {room} bytes, and it may grow to {wanted}"
                )));
            }
            StoreServer::create(host, disk, identity).await.map_err(io::Error::other)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;
    use types::NodeId;

    #[tokio::test]
    async fn moved_stores_are_recorded_and_their_folders_cleared() {
        let data = tempfile::tempdir().unwrap();
        let mine = data.path().join("mine");
        for folder in ["store-0", "store-1", "mine"] {
            std::fs::create_dir(data.path().join(folder)).unwrap();
            std::fs::write(data.path().join(folder).join("fragments"), "x").unwrap();
        }
        std::fs::write(mine.join("thesis.txt"), "precious").unwrap();
        let text = r#"{"version": 2, "places": ["store-0", "store-1", "mine"]}"#;
        std::fs::write(data.path().join("stores.json"), text).unwrap();
        let stores = || Folder::open(data.path(), false).unwrap().stores().unwrap().unwrap();
        let record = PlaceRecord::new(data.path(), stores());
        let at = |node| KnownNode {
            node: NodeId::new(node),
            address: "10.0.0.2:7440".into(),
            fingerprint: [node as u8; 32],
        };
        let places = BTreeMap::from([(StoreId::new(1), at(1)), (StoreId::new(2), at(2))]);
        record.write(with_places(data.path(), record.stores(), &places)).unwrap();
        let again = stores();
        let shown: Vec<String> = again.places.iter().map(ToString::to_string).collect();
        let at_node = |node: u8| format!("node://{node}@10.0.0.2:7440#{}", format!("{node:02x}").repeat(32));
        assert_eq!(shown, ["store-0".to_string(), at_node(1), at_node(2)]);
        assert_eq!(again.moved.len(), 2);
        // The next start clears what a crash has left.
        let record = PlaceRecord::new(data.path(), again);
        record.clear_moved().await.unwrap();
        assert!(!data.path().join("store-1").exists() && data.path().join("store-0/fragments").exists());
        assert!(mine.join("thesis.txt").exists() && !mine.join("fragments").exists());
        assert!(stores().moved.is_empty() && record.places() == stores().places);
        // One comes back, into a folder below the data folder that had been another one's.
        let mut left = record.stores();
        left.moved.push(Location::Folder(data.path().join("store-1")));
        let home = with_places(data.path(), left, &BTreeMap::from([(StoreId::new(2), at(2))]));
        assert!(home.places[1] == Location::Folder("store-1".into()) && home.moved.is_empty());
        assert_eq!(home.came, [1].into());
        // A new address is no move.
        record.write(with_places(data.path(), record.stores(), &places)).unwrap();
        assert!(stores().moved.is_empty());
    }
}
