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
use host::{Host, first, timeout};
use openraft::{BasicNode, LogId, Membership, Raft, ServerState};
use parking_lot::Mutex;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::watch;
use types::FsUuid;

/// A question to another voter: its id, if it is willing.
type Question<'a> = Pin<Box<dyn Future<Output = Option<u64>> + Send + 'a>>;

/// What a voter hears of leaders and candidates.
pub(crate) struct Hearing {
    timing: GroupTiming,
    heard: Mutex<Heard>,
    /// What the voters have said that elected this one last.
    election: Mutex<Election>,
    /// It leaves leading to others.
    pub stands_back: AtomicBool,
}

struct Heard {
    /// When it last followed what a leader asked, by the host's clock.
    at: Duration,
    /// Requests of leaders that are being answered.
    answering: usize,
    /// It begins no election before this time.
    waits_until: Duration,
}

/// The votes that a candidate got.
#[derive(Default)]
struct Election {
    /// In this term.
    term: u64,
    /// No voter that voted for it has heard of a leader after this time.
    heard: Duration,
}

impl Heard {
    /// True if it has heard of no leader for so long that it votes for another one.
    fn hears_none(&self, now: Duration, timing: &GroupTiming) -> bool {
        self.answering == 0 && now >= self.at + timing.election_max
    }
}

/// A request of a leader, while it is being answered. It counts as heard, unless it is refused.
pub(crate) struct Answering<'a> {
    hearing: &'a Hearing,
    host: &'a Host,
    is_refused: bool,
}

impl Answering<'_> {
    /// A leader of an earlier term asks. It is none any more.
    pub(crate) fn refuse(&mut self) {
        self.is_refused = true;
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        let heard = &mut *self.hearing.heard.lock();
        heard.answering -= 1;
        if !self.is_refused {
            heard.at = heard.at.max(self.host.clock.now());
        }
    }
}

impl Hearing {
    /// A voter starts: it may have answered a leader just before.
    pub(crate) fn begin(now: Duration, timing: GroupTiming) -> Arc<Hearing> {
        let heard = Heard { at: now, answering: 0, waits_until: Duration::ZERO };
        let (heard, election) = (Mutex::new(heard), Mutex::default());
        Arc::new(Hearing { timing, heard, election, stands_back: AtomicBool::new(false) })
    }

    /// When it last heard of a leader. While it answers one, that is now.
    pub(crate) fn last_heard(&self, now: Duration) -> Duration {
        let heard = self.heard.lock();
        if heard.answering > 0 { now } else { heard.at }
    }

    /// Others vote from now on beside this voter, which led alone: that counts as heard.
    pub(crate) fn note_others(&self, now: Duration) {
        let heard = &mut *self.heard.lock();
        heard.at = heard.at.max(now);
    }

    /// A voter has voted for this one in this term, and had heard of no leader after this time.
    pub(crate) fn note_vote(&self, term: u64, last_heard: Duration) {
        let election = &mut *self.election.lock();
        match term.cmp(&election.term) {
            Ordering::Less => {}
            Ordering::Equal => election.heard = election.heard.max(last_heard),
            Ordering::Greater => *election = Election { term, heard: last_heard },
        }
    }

    /// When the last one of the others that elected this voter in this term had heard of a leader.
    /// `None` if no other one voted for it.
    pub(crate) fn others_last_heard(&self, term: u64) -> Option<Duration> {
        let election = self.election.lock();
        (election.term == term).then_some(election.heard)
    }

    /// A leader asks something. Until it is answered, the voter begins no election.
    pub(crate) fn hear<'a>(&'a self, host: &'a Host) -> Answering<'a> {
        self.heard.lock().answering += 1;
        Answering { hearing: self, host, is_refused: false }
    }

    /// It has voted for another one, which gets this time.
    pub(crate) fn wait(&self, until: Duration) {
        let heard = &mut *self.heard.lock();
        heard.waits_until = heard.waits_until.max(until);
    }

    /// When it may begin an election, if it hears of no leader until then.
    fn begins_at(&self) -> Duration {
        let heard = self.heard.lock();
        heard.waits_until.max(heard.at + self.timing.election_max)
    }

    /// True if it has heard of no leader for so long that it votes for another one.
    pub(crate) fn hears_none(&self, now: Duration) -> bool {
        self.heard.lock().hears_none(now, &self.timing)
    }

    /// Does something if the voter may begin an election. Meanwhile it hears of no leader.
    fn if_none<T>(&self, now: Duration, begin: impl FnOnce() -> T) -> Option<T> {
        let heard = self.heard.lock();
        let may_begin = heard.hears_none(now, &self.timing) && now >= heard.waits_until;
        (may_begin && !self.stands_back.load(SeqCst)).then(begin)
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
}

impl Canvasser {
    /// Runs until the voter stops, or this is over.
    pub(crate) async fn run(self, mut is_over: watch::Receiver<bool>) {
        // It is over, too, when the voter is gone.
        let _ = first(self.canvass(), is_over.wait_for(|is_over| *is_over)).await;
    }

    async fn canvass(&self) {
        let spread = self.hearing.timing.election_min;
        loop {
            let now = self.host.clock.now();
            // At least that much, so that one which cannot be elected does not ask all the time.
            let begins = self.hearing.begins_at().max(now) + self.some_of(spread);
            self.host.clock.sleep(begins.saturating_sub(now)).await;
            let (state, membership) = {
                let metrics = self.raft.metrics();
                let now = metrics.borrow();
                if now.running_state.is_err() {
                    return;
                }
                (now.state, now.membership_config.membership().clone())
            };
            let may_win = state != ServerState::Leader && membership.voter_ids().any(|voter| voter == self.voter);
            if !may_win || self.if_none(|| ()).is_none() || !self.would_win(&membership).await {
                continue;
            }
            match self.if_none(|| self.begin_election()) {
                Some(true) => self.hearing.wait(self.host.clock.now() + spread),
                Some(false) => return,
                None => {}
            }
        }
    }

    fn if_none<T>(&self, begin: impl FnOnce() -> T) -> Option<T> {
        self.hearing.if_none(self.host.clock.now(), begin)
    }

    /// Has the engine begin an election before it answers what a leader asks from now on. False if
    /// it has stopped. The engine itself does not look whether it has just answered a leader.
    fn begin_election(&self) -> bool {
        let trigger = self.raft.trigger();
        let mut told = pin!(within(&self.host, trigger.elect()));
        // It is told at the first poll, unless it has stopped.
        matches!(told.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())))
    }

    /// A random time below this one, and no less than a tenth of it.
    fn some_of(&self, time: Duration) -> Duration {
        time * (1 + (self.host.random.next_u64() % 10) as u32) / 10
    }

    /// True if a majority would vote for it, as soon as that is known.
    async fn would_win(&self, membership: &Membership<u64, BasicNode>) -> bool {
        let last = self.store.last();
        let others: Vec<u64> = membership.voter_ids().filter(|voter| *voter != self.voter).collect();
        let ask = |voter: u64| -> Question<'_> {
            let asked = membership.get_node(&voter).map(|node| self.would_vote(voter, &node.addr, last));
            Box::pin(async move { asked?.await.then_some(voter) })
        };
        let mut asked: Vec<Question<'_>> = others.into_iter().map(ask).collect();
        let mut willing = BTreeSet::from([self.voter]);
        poll_fn(|context| {
            asked.retain_mut(|asked| match asked.as_mut().poll(context) {
                Poll::Ready(voter) => {
                    willing.extend(voter);
                    false
                }
                Poll::Pending => true,
            });
            let is_majority = |group: &BTreeSet<u64>| group.intersection(&willing).count() > group.len() / 2;
            match membership.get_joint_config().iter().all(is_majority) {
                true => Poll::Ready(true),
                false if asked.is_empty() => Poll::Ready(false),
                false => Poll::Pending,
            }
        })
        .await
    }

    async fn would_vote(&self, voter: u64, node: &str, last: Option<LogId<u64>>) -> bool {
        let request = VoterRequest::Canvass(last).encode(Addressee { fs: self.fs, voter });
        let asked =
            timeout(&*self.host.clock, self.hearing.timing.election_min, self.peers.ask(voter, node, request)).await;
        let reply = asked.ok().and_then(Result::ok).map(|answer| VoterReply::decode(&answer));
        matches!(reply, Some(Ok(VoterReply::Canvassed(true))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::sim::Sim;

    const TIMING: GroupTiming = GroupTiming {
        heartbeat: Duration::from_millis(300),
        election_min: Duration::from_secs(1),
        election_max: Duration::from_secs(2),
    };

    #[test]
    fn an_election_begins_only_if_no_leader_is_heard_or_answered() {
        let sim = Sim::new(1);
        let host = sim.machine("voter").host();
        let hearing = Hearing::begin(host.clock.now(), TIMING);
        let begins = || hearing.if_none(host.clock.now(), || ()).is_some();
        assert!(!begins(), "it may have answered a leader before its start");
        sim.run_for(TIMING.election_max);
        assert!(begins());
        let answering = hearing.hear(&host);
        assert!(!begins() && !hearing.hears_none(host.clock.now()), "a leader waits for its answer");
        drop(answering);
        assert!(!begins(), "a leader was answered");
        sim.run_for(TIMING.election_max);
        // A leader of an earlier term is none, however often it asks.
        let mut answering = hearing.hear(&host);
        answering.refuse();
        drop(answering);
        assert!(begins());
        hearing.wait(host.clock.now() + TIMING.election_min);
        assert!(!begins(), "another one was voted for");
        sim.run_for(TIMING.election_min);
        assert!(begins());
        hearing.stands_back.store(true, SeqCst);
        assert!(!begins());
    }
}
