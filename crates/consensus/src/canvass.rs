//! When a voter begins an election: after it has heard of no leader for long, and a majority of the
//! voters say that they have not, either.
//!
//! Without that question, a voter that was cut off or stopped begins one term after the other. When
//! it is back, its term is newer than that of the leader, which all others hear, and ends it
//! (Ongaro, Consensus: Bridging Theory and Practice, 9.6).

use crate::network::Peers;
use crate::runtime::within;
use crate::store::Store;
use crate::wire::{Addressee, VoterReply, VoterRequest};
use crate::{GroupTiming, Types};
use host::{Host, join_all, timeout};
use openraft::{BasicNode, LogId, Membership, Raft, ServerState};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use types::FsUuid;

/// What a voter hears of leaders and candidates.
#[derive(Default)]
pub(crate) struct Hearing {
    /// When a leader last asked something, in nanoseconds of the host's clock.
    heard: AtomicU64,
    /// Requests of leaders that are being answered.
    answering: AtomicU64,
    /// It begins no election before this time.
    waits_until: AtomicU64,
    /// It leaves leading to others.
    pub stands_back: AtomicBool,
}

/// A request of a leader, while it is being answered.
pub(crate) struct Heard<'a>(&'a Hearing, &'a Host);

impl Drop for Heard<'_> {
    fn drop(&mut self) {
        self.0.note(self.1.clock.now());
        self.0.answering.fetch_sub(1, SeqCst);
    }
}

impl Hearing {
    fn note(&self, now: Duration) {
        self.heard.fetch_max(now.as_nanos() as u64, SeqCst);
    }

    /// A voter starts: it may have answered a leader just before.
    pub(crate) fn begin(now: Duration) -> Arc<Hearing> {
        let hearing = Hearing::default();
        hearing.note(now);
        Arc::new(hearing)
    }

    /// A leader asks something.
    pub(crate) fn hear<'a>(&'a self, host: &'a Host) -> Heard<'a> {
        self.answering.fetch_add(1, SeqCst);
        self.note(host.clock.now());
        Heard(self, host)
    }

    /// It has voted for another one, which gets this time.
    pub(crate) fn wait(&self, until: Duration) {
        self.waits_until.fetch_max(until.as_nanos() as u64, SeqCst);
    }

    /// When it may begin an election, if it hears of no leader until then.
    fn begins_at(&self, timing: &GroupTiming) -> Duration {
        let [heard, waits_until] = [&self.heard, &self.waits_until].map(|at| Duration::from_nanos(at.load(SeqCst)));
        waits_until.max(heard + timing.election_max)
    }

    /// True if it has heard of no leader for so long that it votes for another one.
    pub(crate) fn hears_none(&self, now: Duration, timing: &GroupTiming) -> bool {
        let heard = Duration::from_nanos(self.heard.load(SeqCst));
        self.answering.load(SeqCst) == 0 && now >= heard + timing.election_max
    }
}

/// Begins elections for a voter.
pub(crate) struct Canvasser {
    pub host: Host,
    pub raft: Raft<Types>,
    pub store: Store,
    pub hearing: Arc<Hearing>,
    pub peers: Arc<dyn Peers>,
    pub fs: FsUuid,
    pub voter: u64,
    pub timing: GroupTiming,
}

impl Canvasser {
    /// Runs until the voter stops.
    pub(crate) async fn run(self) {
        loop {
            let now = self.host.clock.now();
            // At least that much, so that one which cannot be elected does not ask all the time.
            let begins = self.hearing.begins_at(&self.timing).max(now) + self.some_of(self.timing.election_min);
            self.host.clock.sleep(begins.saturating_sub(now)).await;
            let (state, membership) = {
                let metrics = self.raft.metrics();
                let now = metrics.borrow();
                if now.running_state.is_err() {
                    return;
                }
                (now.state, now.membership_config.membership().clone())
            };
            let may_begin = !self.hearing.stands_back.load(SeqCst)
                && state != ServerState::Leader
                && membership.voter_ids().any(|voter| voter == self.voter);
            if !may_begin || !self.is_time() || !self.would_win(&membership).await || !self.is_time() {
                continue;
            }
            if within(&self.host, self.raft.trigger().elect()).await.is_err() {
                return;
            }
            // Votes take their time.
            self.hearing.wait(self.host.clock.now() + self.timing.election_min);
        }
    }

    /// A random time below this one, and no less than a tenth of it.
    fn some_of(&self, time: Duration) -> Duration {
        time * (1 + (self.host.random.next_u64() % 10) as u32) / 10
    }

    fn is_time(&self) -> bool {
        let now = self.host.clock.now();
        self.hearing.hears_none(now, &self.timing) && now >= self.hearing.begins_at(&self.timing)
    }

    /// True if a majority would vote for it.
    async fn would_win(&self, membership: &Membership<u64, BasicNode>) -> bool {
        let last = self.store.last();
        let others: Vec<_> = membership.nodes().filter(|(voter, _)| **voter != self.voter).collect();
        let asks = others.iter().map(|(voter, node)| self.would_vote(**voter, &node.addr, last));
        let would = join_all(asks.collect()).await;
        let mut willing: BTreeSet<u64> =
            others.iter().zip(would).filter(|(_, would)| *would).map(|(at, _)| *at.0).collect();
        willing.insert(self.voter);
        let mut groups = membership.get_joint_config().iter();
        groups.all(|group| group.intersection(&willing).count() > group.len() / 2)
    }

    async fn would_vote(&self, voter: u64, node: &str, last: Option<LogId<u64>>) -> bool {
        let request = VoterRequest::Canvass(last).encode(Addressee { fs: self.fs, voter });
        let asked = timeout(&*self.host.clock, self.timing.election_min, self.peers.ask(voter, node, request)).await;
        let reply = asked.ok().and_then(Result::ok).map(|answer| VoterReply::decode(&answer));
        matches!(reply, Some(Ok(VoterReply::Canvassed(true))))
    }
}
