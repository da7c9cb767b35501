//! The consensus engine: agrees on the maps of a file system (docs/core.md#maps).
//!
//! It owns one voter of a Raft group (openraft), and the folder with the state that this voter must
//! not forget. The group agrees on one value: the maps in force, an epoch and opaque bytes. A
//! change names the epoch that it replaces, and is refused if another change came first. No data of
//! files passes through here.
//!
//! It must survive a crash or a loss of power at any point: an acknowledged change is still there,
//! and another one is there or not. It need not survive the loss of its folder: every store keeps
//! the maps too, and a start makes a new group from the newest of them ([`Consensus::create`]). A
//! folder that has rotted says so, and never goes back to an older state by itself.
//!
//! A group begins with one voter, in the process of the file system; a file system that no other
//! node joins keeps it so, and this voter sets no timers. Others [join](Consensus::join) with empty
//! folders, and the leader [makes them voters](Consensus::set_voters). Then a majority of them must
//! have a change before it counts, and if the leader is gone, a majority elects another.
//!
//! A leader may serve from what it knows for a [lease](GroupTiming::lease) from when it began to
//! [ask](Consensus::still_leads) whether it still leads: for longer than that, no voter that
//! answered votes for another (Ongaro, Consensus: Bridging Theory and Practice, 6.4.1).
//!
//! - `canvass`: when a voter begins an election.
//! - `hearing`: what it hears of leaders and candidates.
//! - [`runtime`]: openraft on the host's clock, tasks and randomness.
//! - [`image`], [`files`]: the bytes of the folder, and how they become durable.
//! - [`store`]: openraft's view of these bytes.
//! - [`network`], [`wire`]: how voters reach each other, and what they say.

mod canvass;
pub mod files;
mod hearing;
pub mod image;
pub mod network;
pub mod runtime;
pub mod store;
#[doc(hidden)]
pub mod testing;
pub mod wire;

use bytes::Bytes;
use canvass::Canvasser;
use files::{LoadError, VoterFiles};
use hearing::Hearing;
use host::{Disk, Either, Host, first};
use image::{Image, VoterChange, VoterState};
use network::{Network, NoPeers, Peers};
use openraft::error::{ClientWriteError, Fatal, RaftError};
use openraft::raft::{AppendEntriesResponse, VoteRequest};
use openraft::{
    BasicNode, ChangeMembers, CommittedLeaderId, Config, LogId, Membership, Raft, RaftMetrics, ServerState,
    SnapshotPolicy, StoredMembership,
};
use runtime::{HostRuntime, within};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use store::Store;
use thiserror::Error;
use tokio::sync::watch;
use types::codec::DecodeError;
use types::{FsUuid, Maps};
use wire::{Addressee, VoterReply, VoterRequest};

/// Length of maps, in bytes, at most.
pub const MAPS_LEN_MAX: usize = 64 * 1024;
/// Number of log entries after which a snapshot replaces them.
const LOG_LEN_MAX: u64 = 16;
/// The id of a group's first voter.
pub const FIRST_VOTER: u64 = 1;
/// The timing of a voter that never has peers: a day, since it needs no timers.
const NO_TIMING: GroupTiming = {
    let day = Duration::from_secs(24 * 3600);
    GroupTiming { heartbeat: day, election_min: day.saturating_mul(2), election_max: day.saturating_mul(3) }
};

/// Which voter this is, and how it reaches the others.
#[derive(Clone)]
pub struct VoterSettings {
    /// Its id. It belongs to one folder: a voter that has lost its folder has forgotten its votes,
    /// and joins under an id that was never used.
    pub voter: u64,
    /// Its node, as [`Peers::ask`] of the others is told.
    pub node: String,
    /// The way to the others.
    pub peers: Arc<dyn Peers>,
    /// `None`: it never has peers, and sets no timers.
    pub timing: Option<GroupTiming>,
}

impl VoterSettings {
    /// The only voter of a group that no other ever joins.
    pub fn alone() -> VoterSettings {
        VoterSettings { voter: FIRST_VOTER, node: String::new(), peers: Arc::new(NoPeers), timing: None }
    }
}

/// How soon voters notice that the leader is gone. The same at all voters of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupTiming {
    /// A leader waits this long for an answer, and says every one and a half times as long that it
    /// leads.
    pub heartbeat: Duration,
    /// A voter that wants to be elected waits for a random part of this time before it asks, so
    /// that two do not ask at once. Others have this time to answer.
    pub election_min: Duration,
    /// A voter that has heard of no leader for so long wants to be elected.
    pub election_max: Duration,
}

impl GroupTiming {
    /// For how long a leader may count on leading; see [`Consensus::still_leads`]. Voters that
    /// heard of a leader elect no other one for [`election_max`](Self::election_max). A fiftieth of
    /// that is for clocks whose speeds are wrong by 1 % each.
    pub fn lease(&self) -> Duration {
        self.election_max - self.election_max / 50
    }
}

/// The outcome of an entry: the maps' epoch; `Err` with the present epoch if the change expected
/// another.
pub type VoteOutcome = Result<u64, u64>;

openraft::declare_raft_types!(
    /// The types of this Raft group.
    pub Types:
        D = VoterChange,
        R = VoteOutcome,
        NodeId = u64,
        Node = BasicNode,
        Entry = openraft::Entry<Types>,
        SnapshotData = Cursor<Vec<u8>>,
        AsyncRuntime = HostRuntime,
);

/// Why no voter could be opened from a folder.
#[derive(Debug, Error)]
pub enum VoterOpenError {
    /// The folder has no state.
    #[error("it is empty")]
    Empty,
    /// The folder cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The engine does not start.
    #[error("the engine does not start: {0}")]
    Engine(Box<Fatal<u64>>),
}

/// Why maps were not replaced.
#[derive(Debug, Error)]
pub enum ProposeError {
    /// Other maps are in force than the caller expected.
    #[error("the maps of epoch {expected} were to be replaced, but those of epoch {current} are in force")]
    Stale {
        /// The epoch that the caller expected.
        expected: u64,
        /// The epoch in force.
        current: u64,
    },
    /// The maps are longer than [`MAPS_LEN_MAX`] bytes.
    #[error("maps of {0} bytes are longer than the {MAPS_LEN_MAX} bytes allowed")]
    TooLong(usize),
    /// The voter does not lead its group; nothing was changed.
    #[error("this voter does not lead its group")]
    NotLeader,
    /// So many changes wait for a majority of the voters; nothing was changed.
    #[error("{0} changes wait for a majority of the voters: too few answer")]
    NoMajority(u64),
    /// The voter ceased to lead. Whether the maps were, or will be, replaced is unknown until
    /// another change is agreed on.
    #[error("this voter ceased to lead; whether the maps were replaced is unknown")]
    Unknown,
    /// The engine has stopped. Whether the maps were replaced is unknown until the next start.
    #[error("the engine has stopped ({0}); whether the maps were replaced shows at the next start")]
    Stopped(String),
}

/// The voter does not lead its group, or cannot tell, since it cannot ask a majority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("this voter does not lead its group, or reaches no majority of it")]
pub struct NotLeading;

/// Why a group did not get other voters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum VotersError {
    /// See [`NotLeading`]. The earlier voters, the new ones or both vote.
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    /// The leader is not one of the new voters; nothing was changed. A single voter elects itself
    /// at once, also while an earlier leader counts on its lease.
    #[error("the voter that leads must stay a voter")]
    WithoutLeader,
}

/// What a voter knows of who leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leadership {
    /// Raft's term. It may have two leaders, one after the other.
    pub term: u64,
    /// The leader of this term, as far as the voter knows.
    pub leader: Option<u64>,
    /// The voter leads, and has all changes that were agreed on in earlier terms.
    pub is_ready: bool,
    /// The voter has stopped, and learns nothing more.
    pub has_stopped: bool,
}

impl Leadership {
    /// `found`: the last entry of the log when the voter started.
    fn of(now: &RaftMetrics<u64, BasicNode>, found: Option<LogId<u64>>) -> Leadership {
        // A leader's first entry of a term comes after all that was agreed on before. A leader that
        // starts again still leads, and its own entries of this term may have been agreed on.
        let has_begun = now.last_applied.is_some_and(|applied| applied.leader_id.term == now.current_term);
        let has_begun = has_begun && now.last_applied >= found;
        Leadership {
            term: now.current_term,
            leader: now.current_leader,
            is_ready: now.state == ServerState::Leader && has_begun,
            has_stopped: now.running_state.is_err(),
        }
    }
}

/// A voter's state, for `status`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// Raft's term.
    pub term: u64,
    /// Entries agreed on since the group was made, as far as the voter knows.
    pub agreed_count: u64,
    /// Epoch of the maps in force.
    pub epoch: u64,
    /// Why the voter has stopped, if it has.
    pub stopped: Option<String>,
}

/// A running voter.
pub struct Consensus {
    host: Host,
    fs: FsUuid,
    disk: Arc<dyn Disk>,
    settings: VoterSettings,
    raft: Raft<Types>,
    store: Store,
    /// The last entry of the log when the voter started.
    found: Option<LogId<u64>>,
    timing: GroupTiming,
    votes: tokio::sync::Mutex<Votes>,
    hearing: Arc<Hearing>,
    /// Ends what the voter does by itself.
    is_over: watch::Sender<bool>,
    /// It has begun to make others voters: there may be some, whether it has heard of it or not.
    has_others: AtomicBool,
    /// The newest term in which it may have led.
    led: AtomicU64,
}

/// What a voter that leads must know of its votes: the others that answered a leader elect no other
/// one during its lease, and it must not do so itself. Held while a vote is given.
#[derive(Default)]
struct Votes {
    /// Votes that it gave to others in this run.
    given: u64,
    /// The end of its lease, by the host's clock.
    lease_end: Duration,
}

impl Consensus {
    /// Creates a group whose first state is `maps`, with this voter, and replaces anything in the
    /// folder.
    pub async fn create(
        host: &Host,
        disk: &Arc<dyn Disk>,
        settings: &VoterSettings,
        fs: FsUuid,
        maps: Maps,
    ) -> Result<Consensus, VoterOpenError> {
        // The state after the first entry of any group, which says who votes, and a snapshot. So
        // the group has its maps from the beginning.
        let first = LogId::new(CommittedLeaderId::new(0, 0), 0);
        let nodes = BTreeMap::from([(settings.voter, BasicNode::new(&settings.node))]);
        let membership = Membership::new(vec![BTreeSet::from([settings.voter])], nodes);
        let state =
            VoterState { applied: Some(first), membership: StoredMembership::new(Some(first), membership), maps };
        let image = Image { purged: Some(first), snapshot: Some(state), ..Image::default() };
        Consensus::begin(host, disk, settings, fs, image).await
    }

    /// Makes a voter for a group that exists, and replaces anything in the folder. It knows nothing
    /// and has no vote until the leader has [made it a voter](Self::set_voters).
    pub async fn join(
        host: &Host,
        disk: &Arc<dyn Disk>,
        settings: &VoterSettings,
        fs: FsUuid,
    ) -> Result<Consensus, VoterOpenError> {
        Consensus::begin(host, disk, settings, fs, Image::default()).await
    }

    async fn begin(
        host: &Host,
        disk: &Arc<dyn Disk>,
        settings: &VoterSettings,
        fs: FsUuid,
        image: Image,
    ) -> Result<Consensus, VoterOpenError> {
        let mut files = VoterFiles::create(disk, fs).await.map_err(LoadError::Disk)?;
        files.write(&image).await.map_err(LoadError::Disk)?;
        Consensus::start(host, disk, settings, files, image).await
    }

    /// Opens the voter whose state is in the folder. The only voter of a group leads it when this
    /// returns.
    pub async fn open(
        host: &Host,
        disk: &Arc<dyn Disk>,
        settings: &VoterSettings,
    ) -> Result<Consensus, VoterOpenError> {
        let (files, image) = VoterFiles::load(disk).await?.ok_or(VoterOpenError::Empty)?;
        Consensus::start(host, disk, settings, files, image).await
    }

    /// Opens the voter again, as a start of the process would, after it
    /// [has stopped](Leadership::has_stopped) since its disk failed. It keeps to a lease of its own
    /// that is not over.
    ///
    /// # Errors
    /// The disk still fails, or holds no whole state.
    pub async fn open_again(&self) -> Result<Consensus, VoterOpenError> {
        self.close().await;
        self.store.end().await;
        let again = Consensus::open(&self.host, &self.disk, &self.settings).await?;
        again.votes.lock().await.lease_end = self.votes.lock().await.lease_end;
        Ok(again)
    }

    async fn start(
        host: &Host,
        disk: &Arc<dyn Disk>,
        settings: &VoterSettings,
        files: VoterFiles,
        image: Image,
    ) -> Result<Consensus, VoterOpenError> {
        let (fs, found) = (files.fs(), image.last());
        let led = AtomicU64::new(image.vote.map_or(0, |vote| vote.leader_id().term));
        let store = Store::new(files, image);
        let (timing, has_timers) = (settings.timing.unwrap_or(NO_TIMING), settings.timing.is_some());
        let millis = |time: Duration| time.as_millis() as u64;
        let config = Config {
            cluster_name: fs.to_string(),
            heartbeat_interval: millis(timing.heartbeat),
            election_timeout_min: millis(timing.election_min),
            election_timeout_max: millis(timing.election_max),
            install_snapshot_timeout: millis(timing.election_max),
            // A voter that is added knows all that the leader knew then.
            replication_lag_threshold: 0,
            enable_tick: has_timers,
            enable_heartbeat: has_timers,
            // See `canvass`.
            enable_elect: false,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(LOG_LEN_MAX),
            max_in_snapshot_log_to_keep: 0,
            ..Config::default()
        };
        let hearing = Hearing::begin(host.clock.now(), timing);
        let raft = within(host, async {
            let (peers, host, hearing) = (settings.peers.clone(), host.clone(), hearing.clone());
            let network = Network { fs, me: settings.voter, peers, host, hearing };
            let raft = Raft::new(settings.voter, Arc::new(config), network, store.clone(), store.clone()).await?;
            let voter = settings.voter;
            let (state, is_alone) = raft
                .with_raft_state(move |state| {
                    let is_alone = state.membership_state.effective().voter_ids().eq([voter]);
                    (state.server_state, is_alone)
                })
                .await?;
            if !is_alone {
                return Ok(raft);
            }
            // A voter that led when it stopped leads again at once. Otherwise elect it: there is no
            // other voter.
            if state != ServerState::Leader {
                raft.trigger().elect().await?;
            }
            let mut metrics = raft.metrics();
            loop {
                {
                    let now = metrics.borrow_and_update();
                    now.running_state.clone()?;
                    let applied = now.last_applied.map(|id| id.index);
                    if now.state == ServerState::Leader && applied == now.last_log_index {
                        break;
                    }
                }
                if metrics.changed().await.is_err() {
                    return Err(Fatal::Stopped);
                }
            }
            Ok(raft)
        });
        let raft = raft.await.map_err(|fatal| VoterOpenError::Engine(Box::new(fatal)))?;
        let (host, disk, settings, votes) = (host.clone(), disk.clone(), settings.clone(), Default::default());
        let is_over = watch::Sender::new(false);
        if has_timers {
            let (raft, store, hearing) = (raft.clone(), store.clone(), hearing.clone());
            let (peers, voter) = (settings.peers.clone(), settings.voter);
            let canvasser = Canvasser { host: host.clone(), raft, store, hearing, peers, fs, voter };
            host.tasks.spawn(Box::pin(canvasser.run(is_over.subscribe())));
        }
        let has_others = AtomicBool::new(false);
        Ok(Consensus { host, fs, disk, settings, raft, store, found, timing, votes, hearing, is_over, has_others, led })
    }

    /// The file system that the maps are of.
    pub fn fs(&self) -> FsUuid {
        self.fs
    }

    /// The maps in force, as far as the voter knows.
    pub fn maps(&self) -> Maps {
        self.store.state().maps
    }

    /// Replaces the maps of epoch `expected` by others of a higher epoch, durably. It waits until a
    /// majority of the voters has them, however long that takes. After an error, nothing was
    /// changed, except after [`ProposeError::Unknown`] and [`ProposeError::Stopped`], or when the
    /// caller stopped waiting.
    pub async fn propose(&self, expected: u64, maps: Maps) -> Result<(), ProposeError> {
        if maps.bytes.len() > MAPS_LEN_MAX {
            return Err(ProposeError::TooLong(maps.bytes.len()));
        }
        let leadership = self.leadership();
        if !leadership.has_stopped && !leadership.is_ready {
            return Err(ProposeError::NotLeader);
        }
        let waiting = {
            let metrics = self.raft.metrics();
            let now = metrics.borrow();
            now.last_log_index.unwrap_or(0).saturating_sub(now.last_applied.map_or(0, |id| id.index))
        };
        if waiting > LOG_LEN_MAX {
            return Err(ProposeError::NoMajority(waiting));
        }
        let write = within(&self.host, self.raft.client_write(VoterChange { expected, maps }));
        let Some(written) = self.while_it_leads(leadership.term, write).await else {
            return Err(ProposeError::Unknown);
        };
        match written {
            Ok(response) => match response.data {
                Ok(_) => Ok(()),
                Err(current) => Err(ProposeError::Stale { expected, current }),
            },
            // Either the voter did not take the change, or it took it and then followed a leader
            // that does not have it. A voter that has it may be the next leader.
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => Err(ProposeError::Unknown),
            Err(e) => Err(ProposeError::Stopped(e.to_string())),
        }
    }

    /// Waits for the engine's answer to what a leader asked it. `None` if the voter ceased to lead
    /// first: the engine may never answer then, as when it receives a snapshot in place of its log.
    async fn while_it_leads<T>(&self, term: u64, asked: impl Future<Output = T>) -> Option<T> {
        let ends = self.leadership_until(|now| now.term != term || !now.is_ready);
        match first(asked, ends).await {
            Either::Left(answer) => Some(answer),
            Either::Right(_) => None,
        }
    }

    /// Answers what another voter asks by its [`Peers`]. Bytes that are no request are refused. A
    /// request for another voter is not answered.
    pub async fn answer(&self, request: &[u8]) -> Result<Bytes, DecodeError> {
        let (to, request) = VoterRequest::decode(request)?;
        if to != (Addressee { fs: self.fs, voter: self.settings.voter }) {
            return Ok(VoterReply::Failed.encode());
        }
        let reply = within(&self.host, async {
            match request {
                VoterRequest::Vote(request) => self.vote(request).await,
                VoterRequest::Append(request) => {
                    let mut answering = self.hearing.hear(&self.host);
                    let reply = self.raft.append_entries(request).await;
                    if let Ok(AppendEntriesResponse::HigherVote(_)) = reply {
                        answering.refuse();
                    }
                    reply.map(VoterReply::Append)
                }
                VoterRequest::Canvass(last) => Ok(VoterReply::Canvassed(self.would_vote(last).await)),
                VoterRequest::Snapshot(vote, state) => {
                    let mut answering = self.hearing.hear(&self.host);
                    let installed = self.raft.install_full_snapshot(vote, Store::snapshot_of(&state)).await;
                    if installed.as_ref().is_ok_and(|answer| answer.vote > vote) {
                        answering.refuse();
                    }
                    installed.map(|answer| VoterReply::Snapshot(answer.vote)).map_err(RaftError::Fatal)
                }
            }
        });
        Ok(reply.await.unwrap_or(VoterReply::Failed).encode())
    }

    async fn vote(&self, request: VoteRequest<u64>) -> Result<VoterReply, RaftError<u64>> {
        let mut votes = self.votes.lock().await;
        if self.host.clock.now() < votes.lease_end {
            return Ok(VoterReply::Failed);
        }
        // Counted first, since a caller may stop waiting after the vote was given.
        votes.given += 1;
        let reply = self.raft.vote(request).await?;
        let now = self.host.clock.now();
        if reply.vote_granted {
            self.hearing.wait(now + self.timing.election_min);
        }
        let silence = now.saturating_sub(self.last_led_by(now, &votes));
        Ok(VoterReply::Vote(reply, silence.as_millis() as u64))
    }

    /// This voter has answered no leader's question after this time, and no own one as a leader.
    fn last_led_by(&self, now: Duration, votes: &Votes) -> Duration {
        let own = match self.is_alone() {
            true => now,
            false => votes.lease_end.saturating_sub(self.timing.lease()),
        };
        self.hearing.last_heard(now).max(own)
    }

    /// Whether it would vote for a candidate with this last entry in its log.
    async fn would_vote(&self, last: Option<LogId<u64>>) -> bool {
        let (now, lease_end) = (self.host.clock.now(), self.votes.lock().await.lease_end);
        !self.leadership().has_stopped && now >= lease_end && self.hearing.hears_none(now) && last >= self.store.last()
    }

    /// What the voter knows of who leads.
    pub fn leadership(&self) -> Leadership {
        Leadership::of(&self.raft.metrics().borrow(), self.found)
    }

    /// Waits until `is_so` holds of what the voter knows of who leads, or the voter has stopped.
    pub async fn leadership_until(&self, is_so: impl Fn(&Leadership) -> bool) -> Leadership {
        let mut metrics = self.raft.metrics();
        loop {
            let now = Leadership::of(&metrics.borrow_and_update(), self.found);
            if now.has_stopped || is_so(&now) {
                return now;
            }
            if metrics.changed().await.is_err() {
                return Leadership { has_stopped: true, ..now };
            }
        }
    }

    /// Asks a majority of the voters whether this one still leads. If so, it leads until the time
    /// that is returned, by the host's clock: a [lease](GroupTiming::lease) from the moment of this
    /// call.
    pub async fn still_leads(&self) -> Result<Duration, NotLeading> {
        let lease_end = self.host.clock.now() + self.timing.lease();
        let given = self.votes.lock().await.given;
        within(&self.host, self.raft.get_read_log_id()).await.map_err(|_| NotLeading)?;
        let mut votes = self.votes.lock().await;
        if votes.given != given || !self.leadership().is_ready {
            return Err(NotLeading);
        }
        // Another question may have been asked later and answered sooner.
        votes.lease_end = votes.lease_end.max(lease_end);
        Ok(lease_end)
    }

    /// The length of its lease when it leads; see [`GroupTiming::lease`].
    pub fn lease(&self) -> Duration {
        self.timing.lease()
    }

    /// True if there is no other voter that could be elected. Then it leads without asking.
    pub fn is_alone(&self) -> bool {
        !self.has_others.load(SeqCst) && self.voters().len() == 1
    }

    /// Begins to lead in the present term, and tells what is known of those that led before: none
    /// of them began a [question](Self::still_leads) after this time, by this host's clock, that a
    /// majority has answered, and none was [alone](Self::is_alone) after it. For a voter that
    /// answered, or heard that others vote, elects no other leader for
    /// [`GroupTiming::election_max`], and says in its vote how long ago that was. One of those that
    /// elected this voter was among those that answered.
    ///
    /// `None` if that is not known: this voter may have led in this term itself, or it is alone, or
    /// does not lead.
    pub async fn begin_to_lead(&self) -> Option<Duration> {
        let votes = self.votes.lock().await;
        let now = self.host.clock.now();
        let Leadership { term, is_ready, .. } = self.leadership();
        if !is_ready {
            return None;
        }
        let is_new = self.led.fetch_max(term, SeqCst) < term;
        // Of two clocks, either may be wrong.
        let since = self.timing.lease() - self.timing.lease() / 50;
        let latest = now.saturating_sub(since);
        let said = self.hearing.others_last_heard(term).map(|others| others.max(self.last_led_by(now, &votes)));
        (is_new && !self.is_alone()).then(|| said.map_or(latest, |said| said.min(latest)))
    }

    /// Whether it leaves leading to others, if any of them can: it asks for no votes, and does not
    /// say that it leads. A voter whose machine cannot do what a leader must makes room so.
    pub fn stand_back(&self, stands_back: bool) {
        self.hearing.stands_back.store(stands_back, SeqCst);
        self.raft.runtime_config().heartbeat(!stands_back);
    }

    /// The group's voters, each with its node, as far as this one knows.
    pub fn voters(&self) -> BTreeMap<u64, String> {
        let metrics = self.raft.metrics();
        let now = metrics.borrow();
        let membership = now.membership_config.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let nodes = membership.nodes().filter(|(voter, _)| voters.contains(voter));
        nodes.map(|(voter, node)| (*voter, node.addr.clone())).collect()
    }

    /// Replaces the voters of the group, each with its node, durably; this voter must lead it, and
    /// be one of the new ones. Those that are new are told first what was agreed on. It waits until
    /// they know it, and a majority of the new voters and of the earlier ones agrees. If the caller
    /// stopped waiting, the earlier voters, the new ones or both vote: call it again.
    ///
    /// A voter that is left out is not told, and goes on to ask whether it would win. The caller
    /// closes it. To vote again, its node joins under a new id.
    pub async fn set_voters(&self, voters: &BTreeMap<u64, String>) -> Result<(), VotersError> {
        if !voters.contains_key(&self.settings.voter) {
            return Err(VotersError::WithoutLeader);
        }
        let leadership = self.leadership();
        if !leadership.is_ready {
            return Err(NotLeading.into());
        }
        // Before any other voter hears of it.
        if !self.has_others.swap(true, SeqCst) {
            self.hearing.note_others(self.host.clock.now());
        }
        let setting = within(&self.host, self.change_voters(voters));
        let set = self.while_it_leads(leadership.term, setting).await;
        set.and_then(Result::ok).ok_or(NotLeading)?;
        self.has_others.store(voters.len() > 1, SeqCst);
        Ok(())
    }

    /// Brings a voter up to date that is to join the group. It does not vote yet.
    ///
    /// # Errors
    /// It cannot be reached, or this voter does not lead any more.
    pub async fn bring_in(&self, voter: u64, node: &str) -> Result<(), NotLeading> {
        let term = self.leadership().term;
        let added = within(&self.host, self.raft.add_learner(voter, BasicNode::new(node), true));
        let added = self.while_it_leads(term, added).await;
        added.and_then(Result::ok).map(drop).ok_or(NotLeading)
    }

    async fn change_voters(&self, voters: &BTreeMap<u64, String>) -> Result<(), Box<dyn std::error::Error>> {
        let membership = self.raft.metrics().borrow().membership_config.membership().clone();
        let known: BTreeMap<u64, String> = membership.nodes().map(|(id, node)| (*id, node.addr.clone())).collect();
        let before: BTreeSet<u64> = membership.voter_ids().collect();
        let ids: BTreeSet<u64> = voters.keys().copied().collect();
        // An earlier call may have been given up.
        let left: BTreeSet<u64> =
            known.keys().copied().filter(|id| !before.contains(id) && !ids.contains(id)).collect();
        if !left.is_empty() {
            self.raft.change_membership(ChangeMembers::RemoveNodes(left), false).await?;
        }
        let moved = voters.iter().filter(|(id, node)| known.get(*id).is_some_and(|known| known != *node));
        let moved: BTreeMap<u64, BasicNode> = moved.map(|(id, node)| (*id, BasicNode::new(node))).collect();
        if !moved.is_empty() {
            self.raft.change_membership(ChangeMembers::SetNodes(moved), false).await?;
        }
        for (voter, node) in voters.iter().filter(|(voter, _)| !before.contains(voter)) {
            self.raft.add_learner(*voter, BasicNode::new(node), true).await?;
        }
        // Also if these vote already: an earlier call may have been given up while the earlier ones
        // voted, too.
        self.raft.change_membership(ChangeMembers::ReplaceAllVoters(ids), false).await?;
        Ok(())
    }

    /// The voter's state, for `status`.
    pub fn status(&self) -> Status {
        let metrics = self.raft.metrics();
        let now = metrics.borrow();
        Status {
            term: now.current_term,
            agreed_count: now.last_applied.map_or(0, |id| id.index + 1),
            epoch: self.maps().epoch,
            stopped: now.running_state.as_ref().err().map(ToString::to_string),
        }
    }

    /// Stops the voter. It writes nothing: everything that counts is durable.
    pub async fn close(&self) {
        self.is_over.send_replace(true);
        // This never fails in this version of openraft, and the voter may have stopped already.
        let _ = within(&self.host, self.raft.shutdown()).await;
    }
}
