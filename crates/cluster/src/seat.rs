//! A manager as the first node has it: served here, served by another node, or on its way.
//!
//! The first node's own client uses it as [`Manager`]: its calls wait while the manager moves.
//! Those who recover logs, clean and delete use it as [`ManagerAdmin`]: their calls fail then, and
//! are made again later.

use crate::gate::{Gate, Inside};
use crate::remote_manager::{Alive, RemoteManager, begin_recalls};
use host::{Either, Host, first};
use link::OrderedLane;
use manager::admin_wire::{AdminRequest, HostAnswer, HostRequest, ManagerReport};
use manager::api::{
    BlockAt, CheckpointState, FileUse, GiveBack, Glimpse, GlimpseAnswer, IndexRange, Located, Manager, ManagerAdmin,
    ManagerError, ManagerStatus, NodeSize, Opened, Progress, SegmentDeltas, TokenHolder, UsageChanges,
};
use manager::server::ManagerServer;
use manager::token::Mode;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;
use types::{Answer, BoxFuture, ClientId, FileId, ManagerId, NodeId, SegmentId};

/// How long a node may take to answer about the managers that it serves.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// How long it may take to write a checkpoint of one.
const CHECKPOINT_TIME_MAX: Duration = Duration::from_secs(60);
/// How old a report about another node's managers may become before it is asked again.
const REPORT_AGE_MAX: Duration = Duration::from_secs(5);

/// The way to a node that serves managers.
pub trait HostWay: Send + Sync + 'static {
    /// Asks something about its managers. Fails with [`ManagerError::Away`] if it cannot be
    /// reached.
    fn ask(&self, request: Vec<u8>) -> BoxFuture<Result<Vec<u8>, ManagerError>>;
    /// True while a connection is up.
    fn is_up(&self) -> bool;
    /// The lane for requests of this node's own client.
    fn lane(&self) -> Arc<dyn OrderedLane>;
}

/// Another node that serves managers, in one session of it.
pub(crate) struct ServingNode {
    host: Host,
    pub node: NodeId,
    /// Its session with the first node.
    pub session: u64,
    way: Arc<dyn HostWay>,
    /// What it said last about its managers, and when.
    report: Mutex<(Duration, BTreeMap<ManagerId, ManagerReport>)>,
    asking: tokio::sync::Mutex<()>,
    /// Present once this node's own client gets its recalls. It ends with this.
    recalls: OnceLock<Alive>,
    /// True once its session has ended.
    is_gone: watch::Sender<bool>,
}

impl ServingNode {
    pub fn new(host: Host, node: NodeId, session: u64, way: Arc<dyn HostWay>) -> Arc<ServingNode> {
        let (report, asking, recalls, is_gone) = Default::default();
        Arc::new(ServingNode { host, node, session, way, report, asking, recalls, is_gone })
    }

    /// Its session has ended: no question waits for it any more.
    pub fn end(&self) {
        self.is_gone.send_replace(true);
    }

    /// True once its session has ended.
    pub fn is_gone(&self) -> bool {
        *self.is_gone.borrow()
    }

    /// True while a connection to it is up.
    pub fn is_up(&self) -> bool {
        self.way.is_up()
    }

    /// Has `holder` get the recalls of this node's own client, in session `own_session`, unless it
    /// gets them already. When this is dropped, it asks for no more: the node may have started
    /// again, and counts them anew.
    pub fn tell_recalls(&self, own_session: u64, holder: Arc<dyn TokenHolder>) {
        self.recalls.get_or_init(|| begin_recalls(&self.host, self.lane(), own_session, holder, Arc::default()));
    }

    /// The lane for requests of this node's own client.
    pub fn lane(&self) -> Arc<dyn OrderedLane> {
        self.way.lane()
    }

    /// Asks it something. The answer may take as long as this, unless the node's session ends.
    pub async fn ask_within(&self, request: HostRequest, time_max: Duration) -> Result<HostAnswer, ManagerError> {
        let mut is_gone = self.is_gone.subscribe();
        let asked = host::timeout(&*self.host.clock, time_max, self.way.ask(request.encode(self.session)));
        let answer = match first(asked, is_gone.wait_for(|is_gone| *is_gone)).await {
            Either::Left(answer) => answer.map_err(|_| ManagerError::Away)??,
            Either::Right(_) => return Err(ManagerError::Away),
        };
        match HostAnswer::decode(&answer) {
            Ok(HostAnswer::Failed(error)) => Err(error),
            Ok(answer) => Ok(answer),
            Err(error) => {
                tracing::error!(node = %self.node, %error, "an answer about managers cannot be read");
                Err(ManagerError::Away)
            }
        }
    }

    /// Asks it something.
    pub async fn ask(&self, request: HostRequest) -> Result<HostAnswer, ManagerError> {
        let time_max = match request {
            HostRequest::Ask(_, AdminRequest::Checkpoint) => CHECKPOINT_TIME_MAX,
            _ => ANSWER_TIME_MAX,
        };
        self.ask_within(request, time_max).await
    }

    /// Asks it for something that has no value.
    pub async fn have(&self, request: HostRequest) -> Result<(), ManagerError> {
        match self.ask(request).await? {
            HostAnswer::Done => Ok(()),
            _ => Err(ManagerError::Away),
        }
    }

    /// What it says about a manager, not older than this.
    async fn report(&self, manager: ManagerId, age_max: Duration) -> Result<ManagerReport, ManagerError> {
        let began = self.host.clock.now();
        // Whoever asks at the same time shares an answer.
        let _turn = self.asking.lock().await;
        let is_new = {
            let (at, reports) = &*self.report.lock();
            !reports.is_empty() && *at + age_max >= began
        };
        if !is_new {
            let HostAnswer::Progress(reports) = self.ask(HostRequest::Progress).await? else {
                return Err(ManagerError::Away);
            };
            *self.report.lock() = (self.host.clock.now(), reports);
        }
        self.report.lock().1.get(&manager).cloned().ok_or(ManagerError::Away)
    }

    /// What is known about a manager, without asking.
    fn known(&self, manager: ManagerId) -> ManagerReport {
        self.report.lock().1.get(&manager).cloned().unwrap_or_default()
    }
}

/// A manager that is served here.
#[derive(Clone)]
pub(crate) struct Here {
    pub server: Arc<ManagerServer>,
    pub gate: Arc<Gate>,
}

/// A manager that another node serves.
#[derive(Clone)]
pub(crate) struct There {
    pub at: Arc<ServingNode>,
    /// For this node's own client.
    pub remote: Arc<RemoteManager>,
}

/// Who serves a manager.
#[derive(Clone)]
pub(crate) enum Place {
    Here(Here),
    There(There),
    /// It is on its way.
    Nowhere,
}

struct State {
    place: Place,
    /// What this node's own client gives back meanwhile.
    backs: Vec<(ClientId, GiveBack)>,
}

/// A manager, as the first node has it.
pub struct Seat {
    id: ManagerId,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Counts the changes of the place.
    turn: watch::Sender<u64>,
}

/// Where a call goes.
enum Route {
    Inside(Inside),
    There(Arc<RemoteManager>),
    Nowhere,
}

impl Shared {
    fn route(&self) -> Route {
        match &self.state.lock().place {
            Place::Here(Here { gate, .. }) => gate.enter().map_or(Route::Nowhere, Route::Inside),
            Place::There(There { remote, .. }) => Route::There(remote.clone()),
            Place::Nowhere => Route::Nowhere,
        }
    }

    /// Makes a call wherever the manager is, as often as it moves meanwhile.
    async fn call<T: Send + 'static>(
        self: Arc<Self>,
        can_be_cut: bool,
        ask: impl Fn(&dyn Manager) -> Answer<T, ManagerError> + Send + 'static,
    ) -> Result<T, ManagerError> {
        let mut turns = self.turn.subscribe();
        loop {
            let turn = *turns.borrow_and_update();
            match self.route() {
                Route::Inside(inside) => {
                    let answer = ask(inside.manager());
                    if let Some(result) = answered(answer, &inside, can_be_cut).await {
                        return result;
                    }
                }
                Route::There(remote) => match ask(&*remote).await {
                    // It is not served there any more.
                    Err(ManagerError::Expelled) => {}
                    result => return result,
                },
                Route::Nowhere => {}
            }
            // The sender lives as long as this.
            let _ = turns.wait_for(|now| *now != turn).await;
        }
    }
}

/// Waits for an answer; `None` if the gate closes first and the call can be made again elsewhere.
async fn answered<T: Send + 'static>(
    answer: Answer<T, ManagerError>,
    inside: &Inside,
    can_be_cut: bool,
) -> Option<Result<T, ManagerError>> {
    match answer {
        Answer::Now(result) => Some(result),
        Answer::Later(later) if !can_be_cut => Some(later.await),
        Answer::Later(later) => match first(later, inside.closing()).await {
            Either::Left(result) => Some(result),
            Either::Right(()) => None,
        },
    }
}

impl Seat {
    /// A manager that is served here.
    pub fn here(server: Arc<ManagerServer>) -> Arc<Seat> {
        let id = server.id();
        let place = Place::Here(Here { gate: Gate::new(server.clone()), server });
        let state = Mutex::new(State { place, backs: Vec::new() });
        Arc::new(Seat { id, shared: Arc::new(Shared { state, turn: watch::Sender::new(0) }) })
    }

    /// Who serves it.
    pub(crate) fn place(&self) -> Place {
        self.shared.state.lock().place.clone()
    }

    /// The manager, if it is served here.
    pub fn server(&self) -> Option<Arc<ManagerServer>> {
        match self.place() {
            Place::Here(Here { server, .. }) => Some(server),
            _ => None,
        }
    }

    /// Counts the changes of its place.
    pub(crate) fn turn(&self) -> u64 {
        *self.shared.turn.borrow()
    }

    /// Who serves it from now on. Returns who served it before.
    pub(crate) fn set(&self, place: Place) -> Place {
        let before = {
            let mut state = self.shared.state.lock();
            // What was given back arrives before anything that is asked for at the new place: its
            // numbers may be above those of the grants there.
            let manager: Option<&dyn Manager> = match &place {
                Place::Here(Here { server, .. }) => Some(&**server),
                Place::There(There { remote, .. }) => Some(&**remote),
                Place::Nowhere => None,
            };
            if let Some(manager) = manager {
                state.backs.drain(..).for_each(|(client, back)| manager.give_back(client, back));
            }
            std::mem::replace(&mut state.place, place)
        };
        self.shared.turn.send_modify(|turn| *turn += 1);
        if let Place::There(There { remote, .. }) = &before {
            remote.end();
        }
        before
    }

    fn ask<T: Send + 'static>(
        &self,
        can_be_cut: bool,
        ask: impl Fn(&dyn Manager) -> Answer<T, ManagerError> + Send + 'static,
    ) -> Answer<T, ManagerError> {
        let shared = self.shared.clone();
        let Route::Inside(inside) = shared.route() else {
            return Answer::later(shared.call(can_be_cut, ask));
        };
        match ask(inside.manager()) {
            Answer::Now(result) => Answer::Now(result),
            later => Answer::later(async move {
                match answered(later, &inside, can_be_cut).await {
                    Some(result) => result,
                    None => {
                        drop(inside);
                        shared.call(can_be_cut, ask).await
                    }
                }
            }),
        }
    }

    /// Has the manager do something that only the first node asks for.
    fn admin<T: Send + 'static>(
        &self,
        here: impl FnOnce(&ManagerServer) -> Answer<T, ManagerError>,
        request: impl FnOnce() -> AdminRequest,
        meaning: impl FnOnce(HostAnswer) -> Option<T> + Send + 'static,
    ) -> Answer<T, ManagerError> {
        match self.place() {
            Place::Here(Here { server, .. }) => here(&server),
            Place::There(There { at, .. }) => {
                let request = HostRequest::Ask(self.id, request());
                Answer::later(async move { meaning(at.ask(request).await?).ok_or(ManagerError::Away) })
            }
            Place::Nowhere => Answer::err(ManagerError::Away),
        }
    }
}

impl Manager for Seat {
    fn open(&self, client: ClientId, file: FileId, mode: Mode) -> Answer<Opened, ManagerError> {
        self.ask(true, move |manager| manager.open(client, file, mode))
    }

    fn open_many(
        &self,
        client: ClientId,
        files: &[FileId],
        mode: Mode,
    ) -> Answer<Vec<Result<Opened, ManagerError>>, ManagerError> {
        let files = files.to_vec();
        self.ask(true, move |manager| manager.open_many(client, &files, mode))
    }

    fn glimpse(&self, client: ClientId, file: FileId) -> Answer<Glimpse, ManagerError> {
        self.ask(true, move |manager| manager.glimpse(client, file))
    }

    fn glimpsed(&self, client: ClientId, answer: GlimpseAnswer) {
        match self.shared.route() {
            Route::Inside(inside) => inside.manager().glimpsed(client, answer),
            Route::There(remote) => remote.glimpsed(client, answer),
            // No manager waits for the answer any more.
            Route::Nowhere => {}
        }
    }

    fn locate(&self, client: ClientId, file: FileId, first: u64) -> Answer<Located, ManagerError> {
        self.ask(true, move |manager| manager.locate(client, file, first))
    }

    fn release(&self, client: ClientId, file: FileId, number: u64) {
        self.give_back(client, GiveBack { file, number, keep: None, is_open: false });
    }

    fn give_back(&self, client: ClientId, back: GiveBack) {
        // Under the lock, so that it does not overtake what waits for a new place.
        let mut state = self.shared.state.lock();
        let inside = match &state.place {
            Place::Here(Here { gate, .. }) => gate.enter(),
            Place::There(There { remote, .. }) => return remote.give_back(client, back),
            Place::Nowhere => None,
        };
        match inside {
            Some(inside) => {
                drop(state);
                inside.manager().give_back(client, back);
            }
            None => state.backs.push((client, back)),
        }
    }

    fn closed(&self, client: ClientId, file: FileId) -> Answer<bool, ManagerError> {
        self.ask(true, move |manager| manager.closed(client, file))
    }

    fn allocate(&self, client: ClientId, volume: u16) -> Answer<IndexRange, ManagerError> {
        self.ask(false, move |manager| manager.allocate(client, volume))
    }

    fn apply(&self, segments: Vec<SegmentDeltas>) -> Answer<(), ManagerError> {
        self.ask(false, move |manager| manager.apply(segments.clone()))
    }

    fn orphans(&self) -> Answer<Vec<FileId>, ManagerError> {
        let meaning = |answer| match answer {
            HostAnswer::Orphans(files) => Some(files),
            _ => None,
        };
        self.admin(|server| server.orphans(), || AdminRequest::Orphans, meaning)
    }

    fn status(&self) -> ManagerStatus {
        match self.place() {
            Place::Here(Here { server, .. }) => server.status(),
            Place::There(There { at, .. }) => at.known(self.id).status,
            Place::Nowhere => ManagerStatus::default(),
        }
    }
}

impl ManagerAdmin for Seat {
    fn id(&self) -> ManagerId {
        self.id
    }

    fn progress(&self) -> Answer<Progress, ManagerError> {
        self.progress_within(Duration::ZERO)
    }

    fn replay(&self, segments: Vec<SegmentDeltas>) -> Answer<(), ManagerError> {
        let (here, meaning) = (segments.clone(), |answer| (answer == HostAnswer::Done).then_some(()));
        self.admin(|server| server.replay(here), || AdminRequest::Replay(segments), meaning)
    }

    fn size(&self, run: BlockAt) -> Answer<Option<NodeSize>, ManagerError> {
        let meaning = |answer| match answer {
            HostAnswer::Size(size) => Some(size),
            _ => None,
        };
        self.admin(|server| server.size(run), || AdminRequest::Size(run), meaning)
    }

    fn live(&self, candidates: Vec<BlockAt>) -> Answer<Vec<BlockAt>, ManagerError> {
        let here = candidates.clone();
        let meaning = |answer| match answer {
            HostAnswer::Live(runs) => Some(runs),
            _ => None,
        };
        self.admin(|server| server.live(here), || AdminRequest::Live(candidates), meaning)
    }

    fn usage_changes(&self, since: u64) -> Answer<UsageChanges, ManagerError> {
        let meaning = |answer| match answer {
            HostAnswer::UsageChanges(changes) => Some(changes),
            _ => None,
        };
        self.admin(|server| server.usage_changes(since), || AdminRequest::UsageChanges(since), meaning)
    }

    fn checkpoint(&self) -> Answer<CheckpointState, ManagerError> {
        let meaning = |answer| match answer {
            HostAnswer::Checkpoint(state) => Some(state),
            _ => None,
        };
        self.admin(|server| server.checkpoint(), || AdminRequest::Checkpoint, meaning)
    }

    fn evacuate(&self, segments: Vec<SegmentId>) -> Answer<(), ManagerError> {
        let (here, meaning) = (segments.clone(), |answer| (answer == HostAnswer::Done).then_some(()));
        self.admin(|server| server.evacuate(here), || AdminRequest::Evacuate(segments), meaning)
    }

    fn file_use(&self, file: FileId) -> Answer<FileUse, ManagerError> {
        let meaning = |answer| match answer {
            HostAnswer::FileUse(file_use) => Some(file_use),
            _ => None,
        };
        self.admin(|server| server.file_use(file), || AdminRequest::FileUse(file), meaning)
    }
}

impl Seat {
    /// Which changes it has applied, as it was known this long ago, or later.
    pub(crate) fn progress_within(&self, age_max: Duration) -> Answer<Progress, ManagerError> {
        let id = self.id;
        match self.place() {
            Place::Here(Here { server, .. }) => server.progress(),
            Place::There(There { at, .. }) => Answer::later(async move { Ok(at.report(id, age_max).await?.progress) }),
            Place::Nowhere => Answer::err(ManagerError::Away),
        }
    }

    /// As [`progress_within`](Self::progress_within), for what runs all the time.
    pub(crate) fn recent_progress(&self) -> Answer<Progress, ManagerError> {
        self.progress_within(REPORT_AGE_MAX)
    }
}
