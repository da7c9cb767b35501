//! When a voter begins an election: after it has heard of no leader for long, and a majority of the
//! voters say that they have not, either.
//!
//! Without that question, a voter that was cut off or stopped begins one term after the other. When
//! it is back, its term is newer than that of the leader, which all others hear, and ends it
//! (Ongaro, Consensus: Bridging Theory and Practice, 9.6).

use crate::Types;
use crate::hearing::Hearing;
use crate::network::Peers;
use crate::runtime::within;
use crate::store::Store;
use crate::wire::{Addressee, VoterReply, VoterRequest};
use host::{Host, first, timeout};
use openraft::{BasicNode, LogId, Membership, Raft, ServerState};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::watch;
use types::FsUuid;

/// A question to another voter: its id, if it is willing.
type Question<'a> = Pin<Box<dyn Future<Output = Option<u64>> + Send + 'a>>;

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
