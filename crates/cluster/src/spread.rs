//! Moves stores from nodes that have more to nodes that have fewer, so that the file system
//! outlives the disks of any one of them, and away from nodes that drain.
//!
//! A move copies a store while it is used ([`StoreCopy`]), holds up its changes for the last pass,
//! records the new place, and only then sends requests there. Segments keep naming the same stores,
//! so all logs move with it, and nothing else has to know.
//!
//! Where the stores are is recorded in the first node's data folder, by [`StorePlaces::record`].
//! That record decides: the store at any other place is a leftover. The maps follow it, so that
//! other nodes find the stores. A first node that voters can elect out of its place has the maps
//! decide: the record itself changes them. If it is unknown whether a new place was recorded, the
//! store is not used any more until the next start: it could be used at either place then, and the
//! stripes have the rest. Then no other store moves either.
//!
//! A move holds the changes of its store up at its end. So none begins while another store is away:
//! what is left would be too few. A move may take hours, so it makes way for changes that restore
//! redundancy, and begins anew later: a node that is lost is removed, or a store is made anew.

use crate::config::{DrainRate, FIRST_NODE, FsConfig, KnownNode};
use crate::control::Moving;
use crate::machine::{CoreMachine, PUT_TIMEOUT};
use crate::maps::{ChangeError, Keeper};
use crate::members::Members;
use crate::seats::SessionBook;
use crate::store_copy::{CopyError, CopyProgress, StoreCopy};
use crate::stores::{Absent, CLOSE_TIMEOUT};
use crate::switch::{HeldStore, SwitchStore};
use consensus::ProposeError;
use host::{Either, Elapsed, Host, first};
use parking_lot::Mutex;
use policy::pace::Pace;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use storage::api::{Presence, RemoteStorage, Storage, StoreIdentity};
use storage::server::StoreServer;
use storage::wire::StoreName;
use thiserror::Error;
use tokio::sync::{MutexGuard, Notify, watch};
use types::{BoxFuture, NodeId, StoreId};

/// Time between looks at who could take a store.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// Time between two looks at the place of a store that is out of service.
pub(crate) const LOOK_PERIOD: Duration = Duration::from_secs(5);
/// Passes over a store, at most: before its requests come through here, and before its changes are
/// held up. A store that changes faster than it is copied needs a longer last pass.
const PASSES_MAX: usize = 8;
/// Segments that a pass may copy for the next one to be the last.
const LAST_PASS_MAX: usize = 32;
/// How long a change of the places of stores may wait until another one ends. Looks at stores that
/// are away take seconds.
const TURN_TIME_MAX: Duration = Duration::from_secs(20);
/// How long it usually takes until all changes of a store at another node come through here.
const COME_THROUGH_TIME: Duration = PUT_TIMEOUT.saturating_add(Duration::from_secs(3));
/// How long the end of a move usually takes: the last passes, and the record of the new place.
const END_TIME: Duration = Duration::from_secs(2);
/// How often the end of a move is tried before its copy is given up.
const END_TRIES_MAX: usize = 5;
/// How long changes may be held up. They wait that long at most, and then the move has failed.
const HOLD_TIME_MAX: Duration = Duration::from_secs(10);
/// How long both places of a store may take to learn that it has moved, while its changes wait.
const TELL_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a node may take to make an empty store, or to be reached.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);
/// Pause after a move that failed: the first time, and at most.
const PAUSE: std::ops::Range<Duration> = Duration::from_secs(5)..Duration::from_secs(300);

/// What moving stores needs from the process: the way to other nodes, and its data folder.
pub trait StorePlaces: Send + Sync + 'static {
    /// The store with this name at a node. It does not connect yet.
    fn reach(&self, at: &KnownNode, name: StoreName) -> Arc<dyn RemoteStorage>;
    /// Records durably which stores are at nodes. All others are here.
    fn record(&self, places: &BTreeMap<StoreId, KnownNode>) -> BoxFuture<Result<(), RecordError>>;
    /// Removes what is left here of a store that is at a node. It is closed.
    fn remove(&self, store: StoreId) -> BoxFuture<io::Result<()>>;
    /// Makes an empty store here, where the record is to say that it is, in place of a leftover.
    fn make(&self, identity: StoreIdentity) -> BoxFuture<io::Result<Arc<StoreServer>>>;
    /// False if no stores can be here: a first node that was elected has no disks of its own.
    fn has_room_here(&self) -> bool {
        true
    }
}

/// Why places were not recorded.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The record is as it was.
    #[error("{0}")]
    Unchanged(io::Error),
    /// The next start may find either record.
    #[error("{0}")]
    Unknown(io::Error),
}

/// Has the voters decide which stores are at nodes. The stores learn it later: changes of the one
/// that moves are held up now.
///
/// # Errors
/// They are not decided, or it is unknown.
pub async fn decide_places(maps: &Keeper, places: BTreeMap<StoreId, NodeId>) -> Result<(), RecordError> {
    match maps.decide(|config| config.places = places).await {
        Ok(_) => Ok(()),
        Err(error @ ChangeError::Unknown) => Err(RecordError::Unknown(io::Error::other(error))),
        Err(ChangeError::Propose(error @ (ProposeError::Unknown | ProposeError::Stopped(_)))) => {
            Err(RecordError::Unknown(io::Error::other(error)))
        }
        Err(error) => Err(RecordError::Unchanged(io::Error::other(error))),
    }
}

/// The places of the stores for a first node that voters have elected. It has no disks of its own,
/// and the maps are the record.
pub struct DecidedPlaces {
    reach: Box<ReachStore>,
    maps: Arc<Keeper>,
}

/// The way to the store with a name at a node.
pub type ReachStore = dyn Fn(&KnownNode, StoreName) -> Arc<dyn RemoteStorage> + Send + Sync;

impl DecidedPlaces {
    /// With its way to stores.
    pub fn new(maps: Arc<Keeper>, reach: Box<ReachStore>) -> Arc<DecidedPlaces> {
        Arc::new(DecidedPlaces { reach, maps })
    }
}

impl StorePlaces for DecidedPlaces {
    fn reach(&self, at: &KnownNode, name: StoreName) -> Arc<dyn RemoteStorage> {
        (self.reach)(at, name)
    }

    fn record(&self, places: &BTreeMap<StoreId, KnownNode>) -> BoxFuture<Result<(), RecordError>> {
        let (maps, places) = (self.maps.clone(), places.iter().map(|(store, at)| (*store, at.node)).collect());
        Box::pin(async move { decide_places(&maps, places).await })
    }

    fn remove(&self, _: StoreId) -> BoxFuture<io::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn make(&self, _: StoreIdentity) -> BoxFuture<io::Result<Arc<StoreServer>>> {
        Box::pin(async { Err(io::Error::other("a first node that was elected has no stores of its own")) })
    }

    fn has_room_here(&self) -> bool {
        false
    }
}

/// Why a store did not move.
#[derive(Debug, Error)]
pub(crate) enum MoveError {
    #[error("it cannot be reached: {0}")]
    Reach(io::Error),
    #[error("other nodes do not learn that it moves: {0}")]
    Maps(ChangeError),
    #[error("not all nodes have learned that it moves")]
    NotLearned,
    #[error("it makes no store: {0}")]
    Make(io::Error),
    #[error("it was stopped")]
    Stopped,
    #[error("it makes way for a change that is needed first")]
    MakesWay,
    #[error("its new place cannot be recorded: {0}")]
    NotRecorded(io::Error),
    #[error("it answers too late")]
    Late(#[from] Elapsed),
    #[error("it has {0} of another file system there")]
    Foreign(StoreId),
    #[error("it has room for {room} bytes, and a store may grow to {wanted}: give it a larger disk")]
    NoRoom { room: u64, wanted: u64 },
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("the changes meanwhile take too long to copy")]
    HeldTooLong,
    #[error("whether its new place is recorded is unknown ({0}): start the machine that leads again")]
    Unknown(io::Error),
}

/// A move that is to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NextMove {
    pub store: StoreId,
    pub from: NodeId,
    pub to: NodeId,
}

/// The next move: from the node that has most stores to the one that has fewest, if both are nearer
/// to each other afterwards. `places` says where each store is, `can_move` which can move, `takers`
/// who takes one. No node gets so many that the others could not go on without it: `least` stores
/// must be left.
fn next_move(
    places: &BTreeMap<StoreId, NodeId>,
    least: usize,
    can_move: impl Fn(StoreId, NodeId) -> bool,
    takers: impl Iterator<Item = NodeId>,
) -> Option<NextMove> {
    let count = |node| places.values().filter(|place| **place == node).count();
    let (fewest, to) = takers.map(|node| (count(node), node)).min()?;
    // The last one of the node: the first stores' numbers stay where they are.
    let movable = places.iter().filter(|(store, from)| can_move(**store, **from));
    let (store, from) = movable.max_by_key(|(store, from)| (count(**from), **from == FIRST_NODE, **store))?;
    let is_worth = count(*from) >= fewest + 2 && places.len() > fewest + least;
    is_worth.then_some(NextMove { store: *store, from: *from, to })
}

/// When a node may be tried again after a move to it has failed.
#[derive(Clone, Copy)]
struct Pause {
    until: Duration,
    /// The next one.
    next: Duration,
}

/// How much of `all` is done, in percent.
fn percent(done: u64, all: u64) -> u8 {
    (u128::from(done) * 100).checked_div(all.into()).map_or(0, |percent| percent.min(100) as u8)
}

/// An empty store.
pub(crate) enum Made {
    There(Arc<dyn RemoteStorage>),
    Here(Arc<StoreServer>),
}

impl Made {
    fn storage(&self) -> Arc<dyn Storage> {
        match self {
            Made::There(remote) => remote.clone(),
            Made::Here(server) => server.clone(),
        }
    }
}

/// What `starling nodes` says of a move.
struct Told<'a> {
    spread: &'a Spread,
    store: StoreId,
    to: NodeId,
    state: Mutex<ToldState>,
}

#[derive(Default)]
struct ToldState {
    pace: Pace,
    copied: CopyProgress,
    /// What usually comes after the copy.
    afterwards: Duration,
}

impl Told<'_> {
    fn begin(spread: &Spread, store: StoreId, to: NodeId, afterwards: Duration) -> Told<'_> {
        spread.members.report_spread(|report| report.moving = Some(Moving { store, to, percent: 0, time_left: None }));
        Told { spread, store, to, state: Mutex::new(ToldState { afterwards, ..ToldState::default() }) }
    }

    fn copied(&self, copied: CopyProgress) {
        let mut state = self.state.lock();
        state.pace.note(self.spread.host.clock.now(), copied.copied_bytes);
        state.copied = copied;
        self.report(&state);
    }

    fn comes_after(&self, time: Duration) {
        let mut state = self.state.lock();
        state.afterwards = time;
        self.report(&state);
    }

    /// Lets the time run until all changes come through here. It says nothing after that, when the
    /// move may be over. Never ends.
    async fn tick(&self) -> std::convert::Infallible {
        loop {
            self.spread.host.clock.sleep(TICK).await;
            let mut state = self.state.lock();
            if state.afterwards > END_TIME {
                state.afterwards = state.afterwards.saturating_sub(TICK).max(END_TIME);
                self.report(&state);
            }
        }
    }

    fn report(&self, state: &ToldState) {
        let (store, to, afterwards) = (self.store, self.to, state.afterwards);
        let CopyProgress { left_bytes, all_bytes, .. } = state.copied;
        let percent = percent(all_bytes - left_bytes, all_bytes);
        let copy = if left_bytes == 0 { Some(Duration::ZERO) } else { state.pace.time_for(left_bytes) };
        let time_left = copy.map(|time| time + afterwards);
        self.spread.members.report_spread(|report| report.moving = Some(Moving { store, to, percent, time_left }));
    }
}

/// Counts as waiting for as long as it lives.
struct Waits<'a>(&'a watch::Sender<usize>);

impl Waits<'_> {
    fn begin(waiting: &watch::Sender<usize>) -> Waits<'_> {
        waiting.send_modify(|count| *count += 1);
        Waits(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Spreads the stores over the nodes.
pub struct Spread {
    pub(crate) host: Host,
    pub(crate) config: FsConfig,
    pub(crate) maps: Arc<Keeper>,
    pub(crate) members: Arc<Members>,
    pub(crate) places: Arc<dyn StorePlaces>,
    pub(crate) switches: Vec<(StoreId, SwitchStore)>,
    pub(crate) servers: Arc<Mutex<Vec<Arc<StoreServer>>>>,
    pub(crate) at_nodes: Mutex<BTreeMap<StoreId, KnownNode>>,
    /// Stores at nodes that all nodes are to reach through this one.
    pub(crate) through_here: Mutex<BTreeSet<StoreId>>,
    /// The store whose new place may be recorded or not, if there is one.
    pub(crate) unsure: Mutex<Option<StoreId>>,
    /// When the place of each store that is out of service was looked at last, and why the store
    /// was not made anew there.
    pub(crate) looks: Mutex<BTreeMap<StoreId, (Duration, String)>>,
    /// Held while a store gets another place.
    turn: tokio::sync::Mutex<()>,
    /// How many changes wait until a move ends.
    waiting: watch::Sender<usize>,
    /// True once no move begins any more.
    stop: watch::Sender<bool>,
    stopped: Notify,
}

impl CoreMachine {
    /// Begins to spread the stores over the nodes that join. Call it once, before members begin
    /// sessions.
    pub async fn spread(&self, members: Arc<Members>, places: Arc<dyn StorePlaces>) -> Arc<Spread> {
        let spread = Arc::new(Spread {
            host: self.host(),
            config: self.config.clone(),
            maps: self.maps.clone(),
            members,
            places,
            switches: self.stores().to_vec(),
            servers: self.servers.clone(),
            at_nodes: Mutex::new(self.at_nodes.clone()),
            through_here: Mutex::default(),
            unsure: Mutex::default(),
            looks: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            waiting: watch::Sender::default(),
            stop: watch::Sender::new(false),
            stopped: Notify::new(),
        });
        spread.try_tell_maps().await;
        self.host().tasks.spawn(Box::pin(spread.clone().run()));
        spread
    }
}

impl Spread {
    /// Ends a move that is under way, and begins no other.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        self.stopped.notified().await;
    }

    /// Waits until it is stopped.
    pub(crate) async fn until_stop(&self) {
        // The sender lives as long as this.
        let _ = self.stop.subscribe().wait_for(|stop| *stop).await;
    }

    /// Waits for the turn to change the places of stores. A move makes way for it.
    pub(crate) async fn take_turn(&self) -> Result<MutexGuard<'_, ()>, Elapsed> {
        let _waits = Waits::begin(&self.waiting);
        host::timeout(&*self.host.clock, TURN_TIME_MAX, self.turn.lock()).await
    }

    /// Waits until a move of this store must be given up.
    pub(crate) async fn until_given_up(&self, store: StoreId) -> MoveError {
        match first(self.until_stop(), self.until_needed(store)).await {
            Either::Left(()) => MoveError::Stopped,
            Either::Right(()) => MoveError::MakesWay,
        }
    }

    /// Waits until a move of this store must make way for something else.
    async fn until_needed(&self, store: StoreId) {
        let mut waiting = self.waiting.subscribe();
        let is_asked = async { drop(waiting.wait_for(|count| *count > 0).await) };
        let is_lost = async {
            while !self.has_empty_place_of_other(store).await {
                self.host.clock.sleep(LOOK_PERIOD).await;
            }
        };
        first(is_asked, is_lost).await;
    }

    async fn run(self: Arc<Self>) {
        let mut pauses: BTreeMap<NodeId, Pause> = BTreeMap::new();
        while matches!(first(self.host.clock.sleep(TICK), self.until_stop()).await, Either::Left(())) {
            let Either::Left(_turn) = first(self.turn.lock(), self.until_stop()).await else { break };
            self.follow_addresses().await;
            // Another record could meet the same end.
            let is_unsure = self.unsure.lock().is_some();
            if !self.try_tell_maps().await || is_unsure {
                continue;
            }
            if let Either::Right(()) = first(self.refill_places(), self.until_stop()).await {
                break;
            }
            let now = self.host.clock.now();
            let is_tried = |node: &NodeId| pauses.get(node).is_none_or(|pause| now >= pause.until);
            let (next, trouble) = self.next(is_tried);
            let Some(NextMove { store, from, to }) = next else {
                let trouble = if trouble.is_empty() { self.trouble_of_places() } else { trouble };
                if !trouble.is_empty() || pauses.values().all(|pause| now >= pause.until) {
                    self.members.report_spread(|report| report.trouble = trouble);
                }
                continue;
            };
            let taker = (to != FIRST_NODE).then(|| self.members.takers().into_iter().find(|at| at.node == to));
            let moved = match taker {
                // It has gone meanwhile.
                Some(None) => continue,
                taker => self.move_from(store, from, taker.flatten().as_ref()).await,
            };
            match moved {
                Ok(()) => {
                    pauses.retain(|node, _| ![from, to].contains(node));
                    self.members.report_spread(|report| report.trouble.clear());
                    tracing::info!(%store, node = %to, "the store has moved");
                }
                Err(MoveError::Stopped) => {}
                Err(e @ MoveError::MakesWay) => tracing::info!(%store, "the store has not moved: {e}"),
                Err(e) => {
                    tracing::warn!(%store, node = %to, "the store has not moved: {e}");
                    let trouble = format!("{store} does not move to {}: {e}", self.name(to));
                    self.members.report_spread(|report| report.trouble = trouble);
                    // Another store, or another place, may do. If there is none, it is tried again.
                    let other = if matches!(e, MoveError::Copy(CopyError::From(_))) { from } else { to };
                    let pause = pauses.get(&other).map_or(PAUSE.start, |pause| pause.next);
                    let next = (2 * pause).min(PAUSE.end);
                    pauses.insert(other, Pause { until: self.host.clock.now() + pause, next });
                }
            }
            self.members.report_spread(|report| report.moving = None);
        }
        self.stopped.notify_one();
    }

    pub(crate) fn name(&self, node: NodeId) -> String {
        let config = self.maps.config().ok();
        let member = config.as_ref().and_then(|config| config.members.get(&node));
        member.map_or_else(|| node.to_string(), |member| member.name.clone())
    }

    /// Where all stores are.
    pub(crate) fn all_places(&self) -> BTreeMap<StoreId, NodeId> {
        let at_nodes = self.at_nodes.lock();
        let place = |store| at_nodes.get(&store).map_or(FIRST_NODE, |at| at.node);
        self.config.stores().map(|store| (store, place(store))).collect()
    }

    /// The nodes that take stores now.
    pub(crate) fn taking_nodes(&self, config: &FsConfig) -> Vec<NodeId> {
        let here = self.places.has_room_here() && !config.draining.contains_key(&FIRST_NODE);
        self.members.takers().into_iter().map(|at| at.node).chain(here.then_some(FIRST_NODE)).collect()
    }

    /// The next move, of nodes that are to be tried now: first away from nodes that drain. Without
    /// one, why a store that should move cannot.
    fn next(&self, is_tried: impl Fn(&NodeId) -> bool) -> (Option<NextMove>, String) {
        let Ok(config) = self.maps.config() else { return Default::default() };
        let (places, away) = (self.all_places(), self.members.stores_away());
        let takers = self.taking_nodes(&config);
        let tried = || takers.iter().copied().filter(&is_tried);
        let count = |node: &NodeId| places.values().filter(|place| *place == node).count();
        let is_there = |store| away.iter().all(|other| other != store);
        let can_move = |store, from: NodeId| match from {
            _ if !is_there(store) => false,
            FIRST_NODE => is_tried(&from) && self.servers.lock().iter().any(|server| server.identity().store == store),
            from => is_tried(&from) && self.members.of(from).is_some(),
        };
        let drained = places.iter().filter(|(_, at)| config.draining.contains_key(at));
        let drained: Vec<(StoreId, NodeId)> = drained.map(|(store, from)| (*store, *from)).collect();
        let next = match drained.iter().find(|(store, from)| is_there(*store) && is_tried(from)) {
            Some((store, from)) => {
                let to = tried().min_by_key(|node| (count(node), *node));
                to.map(|to| NextMove { store: *store, from: *from, to })
            }
            None => next_move(&places, self.config.least_working(), can_move, tried()),
        };
        match next {
            Some(next) if away.iter().next().is_some() => {
                let trouble = format!("{} does not move while {away} is out of service", next.store);
                (None, trouble)
            }
            None if !drained.is_empty() && takers.is_empty() => {
                (None, format!("{} does not move: no other node takes stores", drained[0].0))
            }
            next => (next, String::new()),
        }
    }

    /// Moves a store from one node to another, or here.
    async fn move_from(&self, store: StoreId, from: NodeId, to: Option<&KnownNode>) -> Result<(), MoveError> {
        let Some(switch) = self.switch(store) else { return Ok(()) };
        let place = to.map_or(FIRST_NODE, |to| to.node);
        tracing::info!(%store, node = %place, address = to.map(|to| &to.address), "the store moves");
        let come_through = if from == FIRST_NODE { Duration::ZERO } else { COME_THROUGH_TIME };
        let told = Told::begin(self, store, place, come_through + END_TIME);
        // Until a copy is recorded, giving up loses nothing.
        let begun = async {
            let made = match to {
                Some(to) => Made::There(self.make(store, to).await?),
                None => Made::Here(self.make_here(store).await?.map_err(MoveError::Make)?),
            };
            let mut copy = StoreCopy::new(self.host.clone(), switch.now(), made.storage());
            self.copy_passes(store, &mut copy, &told).await?;
            Ok::<_, MoveError>((made, copy))
        };
        let (made, mut copy) = self.unless_given_up(store, begun).await?;
        if from == FIRST_NODE {
            return self.end_move(store, switch, to, &made, &mut copy).await;
        }
        let (mut tries_left, drains) = (END_TRIES_MAX, self.drains(from));
        loop {
            told.comes_after(COME_THROUGH_TIME + END_TIME);
            let end = async {
                told.comes_after(END_TIME);
                // What was written straight to it meanwhile.
                self.unless_given_up(store, self.copy_passes(store, &mut copy, &told)).await?;
                self.end_move(store, switch, to, &made, &mut copy).await
            };
            let ended = match first(self.with_all_through_here(store, end), told.tick()).await {
                Either::Left(ended) => ended,
                Either::Right(never) => match never {},
            };
            tries_left = if self.drains(from) == drains { tries_left - 1 } else { 0 };
            match ended {
                // The copy may have taken hours. It is kept for another try.
                Err(e @ (MoveError::Maps(_) | MoveError::NotLearned | MoveError::HeldTooLong)) if tries_left > 0 => {
                    tracing::warn!(%store, node = %place, "the move does not end yet: {e}");
                    let again = async {
                        self.host.clock.sleep(PAUSE.start).await;
                        self.copy_passes(store, &mut copy, &told).await
                    };
                    self.unless_given_up(store, again).await?;
                }
                ended => return ended,
            }
        }
    }

    /// What a part of a move gives, unless the move is given up first.
    async fn unless_given_up<T>(
        &self,
        store: StoreId,
        part: impl Future<Output = Result<T, MoveError>> + Send,
    ) -> Result<T, MoveError> {
        match first(part, self.until_given_up(store)).await {
            Either::Left(done) => done,
            Either::Right(why) => Err(why),
        }
    }

    /// Has the maps say where the stores are, and whether they have everything.
    pub(crate) async fn tell_maps(&self) -> Result<(), ChangeError> {
        let through_here = self.through_here.lock().clone();
        let places: BTreeMap<StoreId, NodeId> =
            self.at_nodes.lock().iter().map(|(store, at)| (*store, at.node)).collect();
        let known = self.maps.config()?;
        let is_whole = self.members.are_stores_whole().unwrap_or(known.is_whole);
        if (&known.places, &known.through_first, known.is_whole) != (&places, &through_here, is_whole) {
            let change = |config: &mut FsConfig| {
                (config.places, config.through_first, config.is_whole) = (places, through_here, is_whole);
            };
            self.maps.change(change).await?;
            if is_whole && !known.is_whole {
                tracing::info!("all stores have everything");
            }
        }
        // A move has the maps decided while its store cannot learn them.
        self.maps.settle().await.map_err(ChangeError::Push)
    }

    /// Like [`tell_maps`](Self::tell_maps). False, and a warning, if that is not possible now.
    pub(crate) async fn try_tell_maps(&self) -> bool {
        let told = self.tell_maps().await;
        told.inspect_err(|e| tracing::warn!("other nodes do not learn yet where the stores are: {e}")).is_ok()
    }

    /// Follows nodes that have another address now.
    async fn follow_addresses(&self) {
        let Ok(config) = self.maps.config() else { return };
        let mut at_nodes = self.at_nodes.lock().clone();
        let mut moved = Vec::new();
        for (store, at) in &mut at_nodes {
            let Some(member) = config.members.get(&at.node) else { continue };
            if !member.address.is_empty() && member.address != at.address {
                at.address.clone_from(&member.address);
                moved.push((*store, at.clone()));
            }
        }
        if moved.is_empty() {
            return;
        }
        match self.in_time(self.places.record(&at_nodes)).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::warn!("the new address of a node cannot be recorded: {e}"),
            Err(e) => tracing::warn!("the new address of a node cannot be recorded: {e}"),
        }
        *self.at_nodes.lock() = at_nodes;
        for (store, at) in moved {
            tracing::info!(%store, node = %at.node, address = at.address, "the store's node has another address");
            let remote = self.places.reach(&at, StoreName { fs: self.config.fs, store });
            // It is used when it is reached. This does not wait for that.
            drop(remote.expect(self.config.fs, store));
            if let Some(switch) = self.switch(store) {
                switch.set(remote);
            }
        }
    }

    pub(crate) fn switch(&self, store: StoreId) -> Option<&SwitchStore> {
        self.switches.iter().find(|(id, _)| *id == store).map(|(_, switch)| switch)
    }

    pub(crate) async fn in_time<T>(&self, answer: impl Future<Output = T> + Send) -> Result<T, Elapsed> {
        host::timeout(&*self.host.clock, ANSWER_TIME_MAX, answer).await
    }

    /// An empty store at a node.
    pub(crate) async fn make(&self, store: StoreId, taker: &KnownNode) -> Result<Arc<dyn RemoteStorage>, MoveError> {
        let (fs, wanted) = (self.config.fs, self.config.store_capacity_bytes);
        let remote = self.places.reach(taker, StoreName { fs, store });
        match self.in_time(remote.presence()).await?.map_err(MoveError::Reach)? {
            Presence::Empty(space) if space.free_bytes < wanted => {
                return Err(MoveError::NoRoom { room: space.free_bytes, wanted });
            }
            Presence::Store(other) if (other.fs, other.store) != (fs, store) => {
                return Err(MoveError::Foreign(other.store));
            }
            Presence::Empty(_) => {}
            // A move that was cut short has left a store. The node replaces it, unless it says that
            // it is in use. It may say so only since it has old maps.
            Presence::Store(_) => {
                if self.maps.config().is_ok_and(|config| config.place(store) != taker.node) {
                    self.in_time(remote.expect(fs, store)).await?;
                    let _ = self.in_time(remote.put_maps(self.maps.maps())).await?;
                }
            }
        }
        let identity = StoreIdentity { fs, store, capacity_bytes: wanted };
        self.in_time(remote.initialise(identity)).await?.map_err(MoveError::Make)?;
        self.in_time(remote.expect(fs, store)).await?;
        Ok(remote)
    }

    /// Holds the changes of a store up, copies the rest, and records the new place. All changes
    /// come through here.
    async fn end_move(
        &self,
        store: StoreId,
        switch: &SwitchStore,
        to: Option<&KnownNode>,
        made: &Made,
        copy: &mut StoreCopy,
    ) -> Result<(), MoveError> {
        let held = self.unless_given_up(store, self.finish_copy(switch, copy)).await?;
        let mut at_nodes = self.at_nodes.lock().clone();
        match to {
            Some(to) => at_nodes.insert(store, to.clone()),
            None => at_nodes.remove(&store),
        };
        let recorded = match self.in_time(self.places.record(&at_nodes)).await {
            Ok(recorded) => recorded,
            Err(_) => Err(RecordError::Unknown(io::ErrorKind::TimedOut.into())),
        };
        match recorded {
            Ok(()) => {}
            Err(RecordError::Unchanged(e)) => return Err(MoveError::NotRecorded(e)),
            Err(RecordError::Unknown(e)) => {
                switch.set(Arc::new(Absent));
                self.servers.lock().retain(|server| server.identity().store != store);
                *self.unsure.lock() = Some(store);
                return Err(MoveError::Unknown(e));
            }
        }
        *self.at_nodes.lock() = at_nodes;
        let left = switch.now();
        // Before it changes there, both places know it, if the maps say it already: whoever starts
        // from these stores alone must not use the old one.
        let (there, maps) = (made.storage(), self.maps.maps());
        let tell = host::join_all(vec![there.put_maps(maps.clone()), left.put_maps(maps)]);
        let _ = host::timeout(&*self.host.clock, TELL_TIME_MAX, tell).await;
        match made {
            Made::There(remote) => {
                switch.set(remote.clone());
                drop(held);
                self.members.report_spread(|report| report.moving = None);
                self.clear(store).await;
            }
            Made::Here(server) => {
                switch.set_server(server);
                self.servers.lock().push(server.clone());
                drop(held);
                self.members.report_spread(|report| report.moving = None);
            }
        }
        if copy.damaged_count() > 0 {
            self.members.compare_stores();
        }
        if self.try_tell_maps().await {
            // What is left there says from now on that it is of no use.
            let _ = self.in_time(left.put_maps(self.maps.maps())).await;
        }
        Ok(())
    }

    fn drains(&self, node: NodeId) -> bool {
        self.maps.config().is_ok_and(|config| config.draining.contains_key(&node))
    }

    /// How fast a store may be copied: what was said of the node that it leaves.
    fn rate(&self, store: StoreId) -> DrainRate {
        let from = self.all_places().get(&store).copied().unwrap_or(FIRST_NODE);
        let config = self.maps.config().ok();
        config.and_then(|config| config.draining.get(&from).copied()).unwrap_or_default()
    }

    /// Copies a store until little is left to copy.
    async fn copy_passes(&self, store: StoreId, copy: &mut StoreCopy, told: &Told<'_>) -> Result<(), MoveError> {
        for _ in 0..PASSES_MAX {
            if copy.pass(&|progress| told.copied(progress), &|| self.rate(store)).await? <= LAST_PASS_MAX {
                break;
            }
        }
        Ok(())
    }

    /// Holds the changes of a store up, and copies what is left.
    async fn finish_copy(&self, switch: &SwitchStore, copy: &mut StoreCopy) -> Result<HeldStore, MoveError> {
        let begun = self.host.clock.now();
        let rest = || (begun + HOLD_TIME_MAX).saturating_sub(self.host.clock.now());
        let held = host::timeout(&*self.host.clock, rest(), switch.hold()).await;
        let held = held.map_err(|_| MoveError::HeldTooLong)?;
        host::timeout(&*self.host.clock, rest(), copy.finish()).await.map_err(|_| MoveError::HeldTooLong)??;
        Ok(held)
    }

    /// An empty store at this node.
    pub(crate) async fn make_here(&self, store: StoreId) -> Result<io::Result<Arc<StoreServer>>, Elapsed> {
        let FsConfig { fs, store_capacity_bytes: capacity_bytes, .. } = self.config;
        self.in_time(self.places.make(StoreIdentity { fs, store, capacity_bytes })).await
    }

    /// Closes and removes the store that has moved away.
    async fn clear(&self, store: StoreId) {
        let server = {
            let mut servers = self.servers.lock();
            servers.iter().position(|server| server.identity().store == store).map(|at| servers.remove(at))
        };
        if let Some(server) = server
            && host::timeout(&*self.host.clock, CLOSE_TIMEOUT, server.close()).await.is_err()
        {
            tracing::warn!(%store, "its disk does not answer; what it had is at its new place");
            return;
        }
        match self.in_time(self.places.remove(store)).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::warn!(%store, "what is left of it here cannot be removed, and is of no use: {e}"),
            Err(e) => tracing::warn!(%store, "what is left of it here cannot be removed, and is of no use: {e}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_spread_until_no_node_has_two_more_than_another() {
        // Nodes that take stores come one after the other.
        for (store_count, nodes, expected) in [
            (3, 1, vec![2, 1]),
            (3, 2, vec![1, 1, 1]),
            (5, 2, vec![2, 2, 1]),
            (3, 4, vec![1, 1, 1, 0, 0]),
            (5, 4, vec![1; 5]),
        ] {
            // As if any two could be missing.
            let least = store_count as usize - 2;
            let mut places: BTreeMap<StoreId, NodeId> =
                (0..store_count).map(|store| (StoreId::new(store), FIRST_NODE)).collect();
            for joined in 1..=nodes {
                while let Some(next) = next_move(&places, least, |_, _| true, (0..=joined).map(NodeId::new)) {
                    assert_eq!(places.insert(next.store, next.to), Some(next.from));
                }
            }
            let count = |node| places.values().filter(|place| place.raw() == node).count();
            assert_eq!((0..=nodes).map(count).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn nothing_moves_without_a_taker_and_only_what_can() {
        let places: BTreeMap<StoreId, NodeId> = (0..3).map(|store| (StoreId::new(store), FIRST_NODE)).collect();
        let one = || std::iter::once(NodeId::new(1));
        assert_eq!(next_move(&places, 2, |_, _| true, std::iter::empty()), None);
        assert_eq!(next_move(&places, 2, |_, _| false, one()), None);
        let expected = NextMove { store: StoreId::new(1), from: FIRST_NODE, to: NodeId::new(1) };
        assert_eq!(next_move(&places, 2, |store, _| store.raw() == 1, one()), Some(expected));
        assert_eq!(next_move(&places, 3, |_, _| true, one()), None, "without the node, too few stores would be left");
    }
}
