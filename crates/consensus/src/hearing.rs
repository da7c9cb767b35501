//! What a voter hears of leaders and candidates, and what those say that voted for it.

use crate::GroupTiming;
use host::Host;
use parking_lot::Mutex;
use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// What a voter hears of leaders and candidates.
pub(crate) struct Hearing {
    pub timing: GroupTiming,
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
    pub(crate) fn begins_at(&self) -> Duration {
        let heard = self.heard.lock();
        heard.waits_until.max(heard.at + self.timing.election_max)
    }

    /// True if it has heard of no leader for so long that it votes for another one.
    pub(crate) fn hears_none(&self, now: Duration) -> bool {
        self.heard.lock().hears_none(now, &self.timing)
    }

    /// Does something if the voter may begin an election. Meanwhile it hears of no leader.
    pub(crate) fn if_none<T>(&self, now: Duration, begin: impl FnOnce() -> T) -> Option<T> {
        let heard = self.heard.lock();
        let may_begin = heard.hears_none(now, &self.timing) && now >= heard.waits_until;
        (may_begin && !self.stands_back.load(SeqCst)).then(begin)
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
