//! The stores of a file system: their places; creates them, and opens those that can be opened.

use crate::config::{ConfigError, FsConfig, KnownNode};
use crate::start_error::StartError;
use crate::succession::{Claim, Succession};
use crate::switch::SwitchStore;
use bytes::Bytes;
use host::{Disk, DiskSpace, Either, Host, first, join_all};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};
use storage::api::{Presence, RemoteStorage, Seal, Storage, StorageError, StoreStatus};
use storage::server::{StoreIdentity, StoreOpenError, StoreServer};
use storage::site::is_empty;
use striped_log::fragment::{Fragment, FragmentHeader};
use tokio::sync::watch;
use types::{BoxFuture, FragmentId, LogId, Maps, NodeId, SegmentId, StoreId};

/// How long opening a store may take before the file system goes on without it.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
/// How long closing a store may take.
pub(crate) const CLOSE_TIMEOUT: Duration = OPEN_TIMEOUT;
/// How long a start of an elected machine waits for stores elsewhere, once enough others have
/// answered: the one whose end led to the election has some, and others wait for this start.
const LATE: Duration = Duration::from_secs(1);

/// The place of a store.
#[derive(Clone)]
pub enum StorePlace {
    /// A folder on a disk of this machine.
    Disk(Arc<dyn Disk>),
    /// A storage server of another process, reachable or not.
    Remote(Arc<dyn RemoteStorage>),
    /// A node that has joined, reachable or not.
    Node(AtNode),
    /// No usable place: its folder is missing or cannot be used, for this reason.
    Missing(String),
}

/// A store at a node that has joined.
#[derive(Clone)]
pub struct AtNode {
    /// The node.
    pub at: KnownNode,
    /// The store there.
    pub remote: Arc<dyn RemoteStorage>,
}

impl StorePlace {
    /// The store, if it is of another process.
    fn remote(&self) -> Option<&Arc<dyn RemoteStorage>> {
        match self {
            StorePlace::Remote(remote) | StorePlace::Node(AtNode { remote, .. }) => Some(remote),
            StorePlace::Disk(_) | StorePlace::Missing(_) => None,
        }
    }
}

impl From<Arc<dyn Disk>> for StorePlace {
    fn from(disk: Arc<dyn Disk>) -> Self {
        StorePlace::Disk(disk)
    }
}

impl From<Option<Arc<dyn Disk>>> for StorePlace {
    fn from(disk: Option<Arc<dyn Disk>>) -> Self {
        disk.map_or_else(|| StorePlace::Missing("its folder is missing".into()), StorePlace::Disk)
    }
}

/// The stores with their places.
fn numbered(places: &[StorePlace]) -> impl Iterator<Item = (StoreId, &StorePlace)> {
    places.iter().enumerate().map(|(at, place)| (StoreId::new(at as u16), place))
}

/// The space on the disks at the places. Fails if any of them has a store.
pub(crate) async fn spaces(places: &[StorePlace]) -> Result<Vec<DiskSpace>, StartError> {
    let looks = numbered(places).map(|(store, place)| space_at(store, place)).collect();
    join_all(looks).await.into_iter().collect()
}

async fn space_at(store: StoreId, place: &StorePlace) -> Result<DiskSpace, StartError> {
    match place {
        StorePlace::Disk(disk) => {
            if !is_empty(disk.as_ref()).await? {
                return Err(StartError::Exists(store));
            }
            Ok(disk.space().await?)
        }
        StorePlace::Remote(remote) | StorePlace::Node(AtNode { remote, .. }) => match remote.presence().await {
            Ok(Presence::Store(_)) => Err(StartError::Exists(store)),
            Ok(Presence::Empty(space)) => Ok(space),
            Err(error) => Err(StartError::Remote(store, error)),
        },
        StorePlace::Missing(reason) => Err(StartError::Unusable(store, reason.clone())),
    }
}

/// Creates a new file system's stores, and puts its maps into them.
pub(crate) async fn create(
    host: &Host,
    config: &FsConfig,
    places: &[StorePlace],
    maps: Maps,
) -> Result<(), StartError> {
    for (store, place) in numbered(places) {
        let opened = create_one(host, config, store, place).await?;
        let failed = |e| StartError::Storage(store, e);
        opened.storage().put_maps(maps.clone()).await.map_err(failed)?;
        if let Open::Local(server) = opened {
            server.close().await.map_err(failed)?;
        }
    }
    Ok(())
}

async fn create_one(host: &Host, config: &FsConfig, store: StoreId, place: &StorePlace) -> Result<Open, StartError> {
    let identity = StoreIdentity { fs: config.fs, store, capacity_bytes: config.store_capacity_bytes };
    match place {
        StorePlace::Disk(disk) => {
            let server = StoreServer::create(host.clone(), disk.clone(), identity).await;
            server.map(Open::Local).map_err(|e| StartError::Store(store, e))
        }
        StorePlace::Remote(remote) | StorePlace::Node(AtNode { remote, .. }) => {
            remote.initialise(identity).await.map_err(|e| StartError::Remote(store, e))?;
            remote.expect(identity.fs, identity.store).await;
            Ok(Open::Remote(remote.clone(), identity))
        }
        StorePlace::Missing(reason) => Err(StartError::Unusable(store, reason.clone())),
    }
}

/// An open store.
#[derive(Clone)]
enum Open {
    Local(Arc<StoreServer>),
    Remote(Arc<dyn RemoteStorage>, StoreIdentity),
}

impl Open {
    fn identity(&self) -> StoreIdentity {
        match self {
            Open::Local(server) => server.identity(),
            Open::Remote(_, identity) => *identity,
        }
    }

    fn storage(&self) -> Arc<dyn Storage> {
        match self {
            Open::Local(server) => server.clone(),
            Open::Remote(remote, _) => remote.clone(),
        }
    }
}

/// Why no store could be opened at a place.
enum NotOpen {
    /// The place is empty: a store can be made there.
    Empty,
    /// It is not known where the store is now, for this reason.
    Missing(String),
    /// The store's machine cannot be reached, or refuses.
    Remote(io::Error),
    /// The folder cannot be listed.
    List(io::Error),
    /// The store is damaged, or its disk fails.
    Store(StoreOpenError),
    /// The disk does not answer.
    Silent(host::Elapsed),
    /// The store's machine has not answered when enough others had.
    Late,
}

impl fmt::Display for NotOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotOpen::Empty => f.write_str("its folder is empty"),
            NotOpen::Missing(reason) => f.write_str(reason),
            NotOpen::Remote(error) => error.fmt(f),
            NotOpen::List(error) => write!(f, "its folder cannot be listed: {error}"),
            NotOpen::Store(error) => error.fmt(f),
            NotOpen::Late => f.write_str("its machine has not answered when enough others had"),
            NotOpen::Silent(elapsed) => write!(f, "its disk does not answer: {elapsed}"),
        }
    }
}

async fn open_one(host: &Host, place: &StorePlace) -> Result<Open, NotOpen> {
    match place {
        StorePlace::Missing(reason) => Err(NotOpen::Missing(reason.clone())),
        StorePlace::Remote(remote) | StorePlace::Node(AtNode { remote, .. }) => match remote.presence().await {
            Ok(Presence::Store(identity)) => {
                remote.expect(identity.fs, identity.store).await;
                Ok(Open::Remote(remote.clone(), identity))
            }
            Ok(Presence::Empty(_)) => Err(NotOpen::Empty),
            Err(error) => Err(NotOpen::Remote(error)),
        },
        StorePlace::Disk(disk) => {
            let empty = is_empty(disk.as_ref()).await;
            if empty.map_err(NotOpen::List)? {
                return Err(NotOpen::Empty);
            }
            let server = StoreServer::open(host.clone(), disk.clone()).await;
            server.map(Open::Local).map_err(NotOpen::Store)
        }
    }
}

/// Refuses places of stores that differ from what the maps say of stores at nodes: the maps follow
/// the record of the places, so that record is an old one. A store that was to move may have moved.
pub(crate) fn check_places(config: &FsConfig, places: &[StorePlace]) -> Result<(), StartError> {
    let node_at = |store: StoreId| match places.get(usize::from(store.raw())) {
        Some(StorePlace::Node(AtNode { at, .. })) => Some(at.node),
        _ => None,
    };
    let mut certain = config.places.iter().filter(|(store, _)| !config.through_first.contains(store));
    match certain.find(|(store, node)| node_at(**store) != Some(**node)) {
        Some((store, node)) => Err(StartError::Moved { store: *store, node: *node }),
        None => Ok(()),
    }
}

/// The stores of a file system that could be opened, and its configuration.
pub(crate) struct Opened {
    pub(crate) config: FsConfig,
    /// The newest maps that the stores have.
    pub(crate) maps: Maps,
    /// Some stores have older maps, or did not answer.
    pub(crate) behind: bool,
    /// Some stores were made anew, or are new to the maps.
    pub(crate) made_anew: bool,
    pub(crate) by_id: Vec<(StoreId, SwitchStore)>,
    /// Stores that have not answered when enough others had: they are probably gone.
    pub(crate) late: Vec<StoreId>,
    /// The stores of this process, which are closed at the end.
    pub(crate) servers: Vec<Arc<StoreServer>>,
    /// The nodes that have stores.
    pub(crate) at_nodes: BTreeMap<StoreId, KnownNode>,
    /// The former first node, which this start makes a member.
    pub(crate) new_member: Option<NodeId>,
}

/// How much the epoch of the maps grows when another machine becomes the first node: past the one
/// change that the former one may have decided without a quorum of the stores.
const EPOCHS_SKIPPED: u64 = 2;

/// Opens the stores at `places`, in their order, for a machine with this claim. Empty places get
/// new stores. `decided` are the maps that voters of a group know.
pub(crate) async fn open(
    host: &Host,
    places: &[StorePlace],
    claim: &Claim,
    decided: Option<Maps>,
) -> Result<Opened, StartError> {
    // A store that is being filled is no full member of the quorum, so none of the others is left
    // out.
    let is_elected = matches!(claim.succession, Some(Succession::Elected(_)));
    let known = decided.as_ref().and_then(|maps| FsConfig::decode(&maps.bytes).ok());
    let known = known.filter(|config| is_elected && config.is_whole);
    let enough = known.map_or(usize::MAX, |config| config.least_working());
    let opened_count = watch::Sender::new(0);
    let open_in_time = |place| {
        let opened_count = &opened_count;
        async move {
            let opening = host::timeout(&*host.clock, OPEN_TIMEOUT, open_one(host, place));
            let late = async {
                host.clock.sleep(LATE).await;
                // The sender lives as long as this.
                let is_enough = |count: &usize| *count >= enough && matches!(place, StorePlace::Node(_));
                let _ = opened_count.subscribe().wait_for(is_enough).await;
            };
            let opened = match first(opening, late).await {
                Either::Left(opened) => opened.unwrap_or_else(|elapsed| Err(NotOpen::Silent(elapsed))),
                Either::Right(()) => Err(NotOpen::Late),
            };
            opened_count.send_modify(|count| *count += usize::from(opened.is_ok()));
            opened
        }
    };
    let mut opened: Vec<Option<Open>> = Vec::new();
    let (mut reasons, mut empty, mut late) = (Vec::new(), Vec::new(), Vec::new());
    for (at, result) in join_all(places.iter().map(open_in_time).collect()).await.into_iter().enumerate() {
        let store = StoreId::new(at as u16);
        if let Err(reason) = &result {
            reasons.push(format!("{store}: {reason}"));
            empty.extend(matches!(reason, NotOpen::Empty).then_some(store));
            late.extend(matches!(reason, NotOpen::Late).then_some(store));
        }
        opened.push(result.ok());
    }
    let (mut newest, mut oldest) = (Maps::default(), u64::MAX);
    for store in opened.iter().flatten() {
        let asked = host::timeout(&*host.clock, OPEN_TIMEOUT, store.storage().maps()).await;
        let epoch = asked.as_ref().map_or(0, |answer| answer.as_ref().map_or(0, |maps| maps.epoch));
        oldest = oldest.min(epoch);
        if let Ok(Ok(maps)) = asked
            && maps.epoch > newest.epoch
        {
            newest = maps;
        }
    }
    if let Some(decided) = decided.filter(|decided| decided.epoch > newest.epoch) {
        newest = decided;
    }
    let count = places.len();
    let opened_count = opened.iter().flatten().count();
    let too_few =
        |least| StartError::NotEnoughStores { opened: opened_count, count, least, reasons: reasons.join("; ") };
    if newest.epoch == 0 {
        return Err(too_few(1));
    }
    let config = FsConfig::decode(&newest.bytes)?;
    if usize::from(config.store_count) != count {
        let counts = ConfigError::OtherStoreCount { known: config.store_count, given: count };
        return Err(StartError::Impossible(counts));
    }
    let at_nodes = numbered(places).filter(|(_, place)| matches!(place, StorePlace::Node(_))).map(|(store, _)| store);
    let known_next = config.next_node;
    let (config, is_succession) = claim.check(config, &at_nodes.collect())?;
    let new_member = (config.next_node > known_next).then(|| NodeId::new(known_next));
    if is_succession {
        tracing::warn!("this machine becomes the first node of {}", config.fs);
        newest = Maps { epoch: newest.epoch.saturating_add(EPOCHS_SKIPPED), bytes: config.encode() };
    }
    check_places(&config, places)?;
    // New stores have no data, but they count towards a majority.
    let least = config.least_stores();
    let made_anew = !empty.is_empty() || oldest == 0;
    if opened_count < config.least_with_data() || opened_count + empty.len() < least {
        return Err(too_few(least));
    }
    for (place, store) in config.stores().zip(&opened) {
        let Some(identity) = store.as_ref().map(Open::identity) else { continue };
        if identity.store != place || identity.fs != config.fs {
            return Err(StartError::Foreign { place, found: identity.store, fs: identity.fs });
        }
    }
    for reason in &reasons {
        tracing::warn!("a store is missing; the file system works without it: {reason}");
    }
    for store in empty {
        tracing::warn!(%store, "its folder is empty: starting it anew; maintenance restores its share, see `starling status`");
        let at = usize::from(store.raw());
        // It gets its maps when these say that it lacks everything.
        let anew = create_one(host, &config, store, &places[at]);
        match host::timeout(&*host.clock, OPEN_TIMEOUT, anew).await {
            Ok(Ok(anew)) => opened[at] = Some(anew),
            Ok(Err(error)) => tracing::warn!("a store is missing; it could not be started anew: {error}"),
            Err(elapsed) => tracing::warn!(%store, "a store is missing; it could not be started anew: {elapsed}"),
        }
    }
    let (mut by_id, mut at_nodes) = (Vec::new(), BTreeMap::new());
    for (id, (opened, place)) in config.stores().zip(opened.iter().zip(places)) {
        let store = match (opened, place.remote()) {
            (Some(Open::Local(server)), _) => SwitchStore::of_server(server),
            (Some(store), _) => SwitchStore::new(store.storage()),
            // The store may come back; the start does not wait for that.
            (None, Some(remote)) => {
                drop(remote.expect(config.fs, id));
                SwitchStore::new(remote.clone())
            }
            (None, None) => SwitchStore::new(Arc::new(Absent)),
        };
        by_id.push((id, store));
        if let StorePlace::Node(AtNode { at, .. }) = place {
            at_nodes.insert(id, at.clone());
        }
    }
    let servers = opened.into_iter().flatten().filter_map(|store| match store {
        Open::Local(server) => Some(server),
        Open::Remote(..) => None,
    });
    let (behind, servers) = (made_anew || oldest < newest.epoch, servers.collect());
    Ok(Opened { config, behind, made_anew, maps: newest, by_id, late, servers, at_nodes, new_member })
}

/// Stands in for a store that cannot be used.
pub(crate) struct Absent;

impl Storage for Absent {
    fn put(&self, _: Fragment) -> BoxFuture<Result<(), StorageError>> {
        unavailable()
    }
    fn read(&self, _: FragmentId, _: u16, _: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        unavailable()
    }
    fn describe(&self, _: SegmentId) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        unavailable()
    }
    fn list(&self, _: LogId, _: u64, _: usize) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        unavailable()
    }
    fn segments(&self) -> BoxFuture<Result<Vec<(SegmentId, u64)>, StorageError>> {
        unavailable()
    }
    fn delete(&self, _: Vec<SegmentId>) -> BoxFuture<Result<(), StorageError>> {
        unavailable()
    }
    fn seal(&self, _: Seal) -> BoxFuture<Result<Seal, StorageError>> {
        unavailable()
    }
    fn seals(&self) -> BoxFuture<Result<Vec<Seal>, StorageError>> {
        unavailable()
    }
    fn put_maps(&self, _: Maps) -> BoxFuture<Result<(), StorageError>> {
        unavailable()
    }
    fn maps(&self) -> BoxFuture<Result<Maps, StorageError>> {
        unavailable()
    }
    fn verify(&self, _: FragmentId) -> BoxFuture<Result<(), StorageError>> {
        unavailable()
    }
    fn status(&self) -> BoxFuture<Result<StoreStatus, StorageError>> {
        unavailable()
    }
}

fn unavailable<T: Send + 'static>() -> BoxFuture<Result<T, StorageError>> {
    Box::pin(std::future::ready(Err(StorageError::Unavailable)))
}
