//! Members whose sessions go on after a start of the first node.
//!
//! The first node forgets tokens, locks and sessions when it ends. Members may still have changes
//! in memory, and programs that hold files and locks. So at a start, before anything is rolled
//! forward, the first node waits until each member has spoken, or can serve no longer:
//!
//! - A member that says *resume* tells what its client holds, and how far its log is durable. Its
//!   log is not opened, so it can go on writing. Managers read it up to there.
//! - A member that says *hello* has no session any more.
//! - A member that says nothing for the length of a lease is waited for no longer. Its log is
//!   opened, and what it says later comes too late. A leader that was elected may know that all
//!   leases are over sooner. Then it still waits for members that may be on their way, and less
//!   long for those that do not answer its calls.
//!
//! Managers get what all survivors hold before they serve. So no client is granted what a survivor
//! holds, and nothing has to be taken back.
//!
//! Between the end of a session and this start, the first node may have given the tokens of a
//! member to others. Before it does that, it opens the member's log. So a log that was opened after
//! the epoch in which its member writes is the proof, and that member does not survive.

use crate::config::{FsConfig, KnownNode, client_log};
use crate::control::{CONTROL_VERSION, ControlAnswer, ControlError, ControlRequest, Resume};
use crate::lease::with_drift;
use client::Holdings;
use host::{Either, Host, first};
use manager::api::HeldToken;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use stripe::{Stripe, StripeError};
use tokio::sync::{Notify, watch};
use types::{FileId, NodeId};

/// No manager gives so many tokens in the life of a file system.
const NUMBER_MAX: u64 = 1 << 62;

/// A member that survives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Survivor {
    /// What it says.
    pub resume: Resume,
    /// The fingerprint of its certificate.
    pub fingerprint: [u8; 32],
}

/// A call of a member that has not spoken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Called {
    /// The member.
    pub node: NodeId,
    /// When it was called.
    pub at: Duration,
    /// It answers.
    pub answers: bool,
}

/// Takes what members say while the first node starts.
pub struct Arrivals {
    host: Host,
    lease: Duration,
    /// The term that managers begin at this start.
    term: u64,
    state: Mutex<State>,
    /// True when each member has spoken.
    complete: watch::Sender<bool>,
    /// Notified when a member has spoken or was called.
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// Who the members are; `None` before the maps were read, and when the wait is over.
    config: Option<FsConfig>,
    /// The former first node, which is a member only since this start and has no session.
    new_member: Option<NodeId>,
    /// When all leases of earlier lives of the first node are over, if that is known.
    leases_end: Option<Duration>,
    /// Since when members are listened to, if that began before the maps were read.
    since: Option<Duration>,
    /// What each member has said last: `None` is a hello.
    spoken: BTreeMap<NodeId, Option<Survivor>>,
    /// The last call of each member, or the last one that was answered.
    called: BTreeMap<NodeId, Called>,
}

impl State {
    /// The members that have not spoken.
    fn awaited(&self) -> impl Iterator<Item = NodeId> {
        let members = self.config.iter().flat_map(|config| config.members.keys().copied());
        members.filter(|member| !self.spoken.contains_key(member) && self.new_member != Some(*member))
    }

    /// True if each member has spoken.
    fn is_complete(&self) -> bool {
        self.config.is_some() && self.awaited().next().is_none()
    }
}

fn starting() -> ControlError {
    ControlError::Unavailable("the first node is starting".into())
}

impl Arrivals {
    /// Waits for members with leases of this length. The same at each start.
    pub fn new(host: Host, lease: Duration) -> Arc<Arrivals> {
        let term = host.random.next_u64();
        let (complete, changed) = (watch::Sender::new(false), Notify::new());
        Arc::new(Arrivals { host, lease, term, state: Mutex::default(), complete, changed })
    }

    /// Answers a request of the node with this certificate.
    pub fn control(&self, fingerprint: &[u8; 32], request: ControlRequest) -> Result<ControlAnswer, ControlError> {
        let state = &mut *self.state.lock();
        let config = state.config.as_ref().ok_or_else(starting)?;
        let (node, _) = config.member_of(fingerprint).ok_or(ControlError::NotMember)?;
        let answer = match request {
            ControlRequest::Resume(resume) if resume.term != self.term => {
                // It was meant for a start that has failed.
                return Err(ControlError::Restarted(self.term));
            }
            ControlRequest::Resume(resume) if resume.hello.node == node => {
                let survivor = Survivor { resume, fingerprint: *fingerprint };
                state.spoken.insert(node, Some(survivor));
                Ok(ControlAnswer::Noted)
            }
            ControlRequest::Hello(hello) if hello.version != CONTROL_VERSION => {
                return Err(ControlError::Version(CONTROL_VERSION));
            }
            ControlRequest::Hello(hello) if hello.node == node => {
                state.spoken.insert(node, None);
                Err(starting())
            }
            ControlRequest::Hello(_) | ControlRequest::Resume(_) => return Err(ControlError::NotMember),
            ControlRequest::Renew { session, .. } | ControlRequest::Claim { session, .. } => {
                let survives =
                    |survivor: &Option<Survivor>| survivor.as_ref().is_some_and(|s| s.resume.session == session);
                let is_known = state.spoken.get(&node).is_some_and(survives);
                return Err(if is_known { starting() } else { ControlError::Restarted(self.term) });
            }
            ControlRequest::Leave { .. }
            | ControlRequest::Nodes
            | ControlRequest::Who(_)
            | ControlRequest::AuthorityKey
            | ControlRequest::Order(_)
            | ControlRequest::FirstNode(_) => return Err(starting()),
        };
        // Perhaps only members that are gone are left.
        self.changed.notify_one();
        let is_complete = state.is_complete();
        self.complete.send_if_modified(|complete| is_complete && !std::mem::replace(complete, true));
        answer
    }

    /// Listens to the members from now on, and not only when the maps were read: an elected leader
    /// knows them. So those that can speak have done so when the stores are open.
    pub fn expect(&self, config: FsConfig) {
        let state = &mut *self.state.lock();
        (state.config, state.since) = (Some(config), Some(self.host.clock.now()));
    }

    /// Waits for no member much longer than this from now on: then no lease is left that an earlier
    /// first node gave.
    pub fn know_leases_left(&self, left: Duration) {
        self.state.lock().leases_end = Some(self.host.clock.now() + left);
    }

    /// A member was called, and it answers or not. One that does not listen is not called.
    pub fn note_call(&self, call: Called) {
        let called = &mut self.state.lock().called;
        // An earlier call may end later.
        if called.get(&call.node).is_none_or(|known| call.answers || call.at > known.at) {
            called.insert(call.node, call);
        }
        self.changed.notify_one();
    }

    /// Until when members are waited for, which began at `begin`. They have two thirds of a lease
    /// to speak. One that does not listen asks others where the leader is, each second, once a
    /// renewal was not answered. That is 7/12 of a lease after the last answer, and an election is
    /// two seconds after what a voter heard last. Members that are called and do not answer seem
    /// to be gone. They get two fifths of a lease: some can call, and cannot be called.
    fn wait_ends(&self, begin: Duration) -> Duration {
        let longest = begin + with_drift(self.lease);
        let state = self.state.lock();
        let (Some(leases_end), Some(since)) = (state.leases_end, state.since) else { return longest };
        let seems_gone = |member: NodeId| state.called.get(&member).is_some_and(|call| !call.answers);
        let time_to_speak = if state.awaited().all(seems_gone) { self.lease * 2 / 5 } else { self.lease * 2 / 3 };
        leases_end.max(since + time_to_speak).min(longest)
    }

    /// The names of the members that are being waited for.
    pub fn awaited(&self) -> Vec<String> {
        let state = self.state.lock();
        let name = |node| state.config.as_ref()?.members.get(&node).map(|member| member.name.clone());
        state.awaited().filter_map(name).collect()
    }

    /// The members that are being waited for, at addresses where they may be.
    pub fn absent(&self) -> Vec<KnownNode> {
        let state = self.state.lock();
        let members = state.config.iter().flat_map(FsConfig::reachable);
        members.filter(|at| !state.spoken.contains_key(&at.node)).collect()
    }

    /// Waits until each member has spoken, or is waited for no longer.
    async fn wait(&self) {
        let (mut complete, begin) = (self.complete.subscribe(), self.host.clock.now());
        loop {
            let left = self.wait_ends(begin).saturating_sub(self.host.clock.now());
            if left.is_zero() {
                return;
            }
            // The sender lives as long as this.
            let all = complete.wait_for(|complete| *complete);
            let changed = first(self.changed.notified(), self.host.clock.sleep(left));
            if let Either::Left(_) = first(all, changed).await {
                return;
            }
        }
    }

    /// The term that managers begin at this start.
    pub(crate) fn term(&self) -> u64 {
        self.term
    }

    /// Waits until each member of the file system has spoken, or can serve no longer. That one
    /// which is a member only since this start has no session. Returns those that survive. What
    /// comes later is refused.
    ///
    /// If the operator accepts a loss, none survives: the logs that members rely on may be cut.
    pub(crate) async fn survivors(
        &self,
        config: &FsConfig,
        new_member: Option<NodeId>,
        stripe: &Stripe,
        accepts_loss: bool,
    ) -> Result<BTreeMap<NodeId, Survivor>, StripeError> {
        if config.members.is_empty() {
            return Ok(BTreeMap::new());
        }
        if accepts_loss {
            self.host.clock.sleep(with_drift(self.lease)).await;
            return Ok(BTreeMap::new());
        }
        {
            let state = &mut *self.state.lock();
            (state.config, state.new_member) = (Some(config.clone()), new_member);
            state.spoken.retain(|node, _| config.members.contains_key(node));
            self.complete.send_replace(state.is_complete());
        }
        self.wait().await;
        let spoken = {
            let state = &mut *self.state.lock();
            state.config = None;
            std::mem::take(&mut state.spoken)
        };
        let mut survivors = BTreeMap::new();
        for (node, survivor) in spoken {
            let Some(survivor) = survivor else { continue };
            let Holdings { epoch, committed_seq, .. } = survivor.resume.holdings;
            match stripe.let_go_on(client_log(node), committed_seq.saturating_add(1), epoch, committed_seq).await {
                Ok(_) => drop(survivors.insert(node, survivor)),
                // Its session had ended before this start.
                Err(StripeError::Fenced) => tracing::info!(%node, "the node's session does not go on"),
                Err(e) => return Err(e),
            }
        }
        let held = survivors.iter().map(|(node, survivor)| (*node, survivor.resume.holdings.tokens.as_slice()));
        let contradicting = contradicting(held);
        if !contradicting.is_empty() {
            tracing::error!(?contradicting, "nodes say that they hold what only one can: their sessions end");
            survivors.retain(|node, _| !contradicting.contains(node));
            self.host.clock.sleep(with_drift(self.lease)).await;
        }
        tracing::info!(members = config.members.len(), survivors = survivors.len(), "members have been waited for");
        Ok(survivors)
    }
}

/// The nodes that say that they hold what another one holds, name a file twice, or a number that no
/// manager has given. Tokens never allow that. It is checked because managers rely on it.
pub(crate) fn contradicting<'a>(nodes: impl Iterator<Item = (NodeId, &'a [HeldToken])>) -> BTreeSet<NodeId> {
    let mut found = BTreeSet::new();
    let mut held: HashMap<FileId, (NodeId, HeldToken)> = HashMap::new();
    for (node, tokens) in nodes {
        for token in tokens.iter().filter(|token| token.mode.is_some()) {
            if token.number > NUMBER_MAX {
                found.insert(node);
            }
            if let Some((other, known)) = held.insert(token.file, (node, *token))
                && (other == node || known.excludes(token))
            {
                found.extend([other, node]);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{config, member};
    use host::sim::Sim;
    use manager::token::Mode;

    #[test]
    fn members_are_waited_for_until_their_leases_are_over() {
        let (sim, second) = (Sim::new(1), Duration::from_secs(1));
        let arrivals = Arrivals::new(sim.machine("first").host(), 9 * second);
        let left = || arrivals.wait_ends(sim.now()) - sim.now();
        assert_eq!(left(), with_drift(9 * second));
        arrivals.know_leases_left(5 * second);
        assert_eq!(left(), with_drift(9 * second), "they cannot speak yet");
        let (mut config, members) = (config(), [1, 2].map(NodeId::new));
        config.members = members.into_iter().zip(["one", "other"].map(member)).collect();
        arrivals.expect(config);
        assert_eq!(left(), 6 * second, "they get the time to speak");
        let called = |node: NodeId, seconds: u32, answers| {
            arrivals.note_call(Called { node, at: sim.now() + seconds * second, answers });
        };
        members.iter().for_each(|node| called(*node, 0, false));
        assert_eq!(left(), 5 * second, "they are all gone, and may serve until then");
        called(members[0], 2, true);
        called(members[0], 1, false);
        assert_eq!(left(), 6 * second, "one is on its way");
        called(members[0], 3, false);
        arrivals.know_leases_left(2 * second);
        assert_eq!(left(), 9 * second * 2 / 5, "they may be able to call");
        called(members[0], 4, true);
        sim.run_for(4 * second);
        assert_eq!(left(), 2 * second);
        arrivals.know_leases_left(3 * second);
        assert_eq!(left(), 3 * second);
        arrivals.know_leases_left(60 * second);
        assert_eq!(left(), with_drift(9 * second));
    }

    fn tokens(held: &[(u64, Option<Mode>)]) -> Vec<HeldToken> {
        held.iter().map(|(file, mode)| HeldToken { file: FileId::new(*file), mode: *mode, number: 1 }).collect()
    }

    #[test]
    fn who_says_what_cannot_be_does_not_survive() {
        let (read, write) = (Some(Mode::Read), Some(Mode::Write));
        let all = [
            tokens(&[(1, read), (2, write), (3, None)]),
            tokens(&[(1, read), (3, write)]),
            tokens(&[(4, write), (5, read)]),
            tokens(&[(5, write), (3, None)]),
            tokens(&[(9, read), (9, read)]),
            tokens(&[(10, read)]),
        ];
        let mut all: BTreeMap<NodeId, Vec<HeldToken>> = (1..).map(NodeId::new).zip(all).collect();
        let found = |all: &BTreeMap<NodeId, Vec<HeldToken>>| {
            contradicting(all.iter().map(|(node, tokens)| (*node, tokens.as_slice())))
        };
        assert_eq!(found(&all), [3, 4, 5].map(NodeId::new).into());
        all.last_entry().expect("a node").get_mut()[0].number = u64::MAX;
        assert_eq!(found(&all), [3, 4, 5, 6].map(NodeId::new).into());
    }
}
