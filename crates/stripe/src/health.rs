//! The health of each store, and the task that probes stores that are out of service.
//!
//! A store leaves service when a request to it fails. It comes back only through a probe that finds
//! it writable *and* has brought it up to date (see `catch_up`). The probing task exists only while
//! some store is out of service.

use crate::{StoreSet, Stripe};
use host::{first, join_all};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use storage::api::StoreStatus;
use striped_log::fragment::FRAGMENT_LEN_MAX;
use types::{FragmentId, SegmentId, StoreId};

/// Most deletions that are remembered for a store that is away. This bounds memory. Segments whose
/// deletion is forgotten stay on that store until all stores' lists are compared: they only waste
/// space.
const OWED_DELETES_MAX: usize = 65_536;
/// Most damaged fragments that are remembered, so that each is logged and counted once. This bounds
/// memory.
const DAMAGED_MAX: usize = 4_096;
/// How long a glance waits for the status of stores.
const GLANCE_TIME: Duration = Duration::from_millis(50);

/// Whether a store is in service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreState {
    /// In service: it takes puts and reads.
    Up,
    /// It refuses puts, since its disk has failed or is full. It is still read from.
    Failing,
    /// It does not answer.
    Absent,
}

/// A store as `status` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreHealth {
    /// The store.
    pub id: StoreId,
    /// Whether it is in service.
    pub state: StoreState,
    /// How many different fragments on it were found damaged since the start.
    pub damaged_count: u64,
    /// Its status, if it answers. A glance has its last answer.
    pub status: Option<StoreStatus>,
    /// How old that answer is.
    pub age: Duration,
}

/// All stores' health. Pure bookkeeping.
pub(crate) struct Health {
    stores: Vec<Entry>,
    damaged: BTreeSet<(usize, FragmentId)>,
    /// True while the probing task exists.
    probing: bool,
    /// Counts changes that all stores must know of (seals, maps). Each is counted before the stores
    /// are asked.
    changes: u64,
    /// Counts returns of stores into service.
    returns: u64,
    /// The stores that do not answer the first node, as it said last.
    told: StoreSet,
}

struct Entry {
    state: StoreState,
    /// It was made in place of a lost one, and is not asked for anything before it is up to date.
    is_new: bool,
    damaged_count: u64,
    /// Deletions that the store missed.
    owed: BTreeSet<SegmentId>,
    /// The time and contents of its last status.
    said: Option<(Duration, StoreStatus)>,
}

impl Health {
    pub(crate) fn new(store_count: usize) -> Self {
        let entry =
            || Entry { state: StoreState::Up, is_new: false, damaged_count: 0, owed: BTreeSet::new(), said: None };
        Health {
            stores: (0..store_count).map(|_| entry()).collect(),
            damaged: BTreeSet::new(),
            probing: false,
            changes: 0,
            returns: 0,
            told: StoreSet::default(),
        }
    }

    pub(crate) fn state(&self, at: usize) -> StoreState {
        self.stores[at].state
    }

    pub(crate) fn is_new(&self, at: usize) -> bool {
        self.stores[at].is_new
    }

    pub(crate) fn up(&self) -> Vec<usize> {
        (0..self.stores.len()).filter(|&at| self.state(at) == StoreState::Up).collect()
    }

    /// Remembers deletions that a store missed.
    pub(crate) fn owe(&mut self, at: usize, segments: &[SegmentId]) {
        let owed = &mut self.stores[at].owed;
        owed.extend(segments.iter().take(OWED_DELETES_MAX.saturating_sub(owed.len())));
    }

    /// Counts a change. Call this before stores are asked to take a seal or maps. A store that is
    /// away is not asked. If it is being brought up to date at the moment, it misses the change and
    /// must not return yet.
    pub(crate) fn note_change(&mut self) {
        self.changes += 1;
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// True if a store is still up to date that was brought up to date from when there were
    /// `changes`.
    fn is_current(&self, at: usize, changes: u64) -> bool {
        self.changes == changes && self.stores[at].owed.is_empty()
    }

    pub(crate) fn take_owed(&mut self, at: usize) -> Vec<SegmentId> {
        std::mem::take(&mut self.stores[at].owed).into_iter().collect()
    }
}

/// True if the store can be expected to take the longest fragment.
fn takes_puts(status: &StoreStatus) -> bool {
    status.writable && status.attainable_bytes(1).saturating_sub(status.used_bytes) >= 2 * u64::from(FRAGMENT_LEN_MAX)
}

impl Stripe {
    /// Takes a store out of service, and starts the probing task if there is none.
    pub(crate) fn mark_bad(&self, at: usize, state: StoreState, why: &str) {
        let start = {
            let mut health = self.health.lock();
            if std::mem::replace(&mut health.stores[at].state, state) == state {
                return;
            }
            !std::mem::replace(&mut health.probing, true)
        };
        tracing::warn!(store = %self.stores[at].id, ?state, why, "store leaves service");
        self.left.notify_waiters();
        if start {
            let (me, clock, pause) = (self.me.clone(), self.host.clock.clone(), self.options.probe_interval);
            self.host.tasks.spawn(Box::pin(async move {
                loop {
                    clock.sleep(pause).await;
                    let Some(stripe) = me.upgrade() else { return };
                    if stripe.probe().await {
                        return;
                    }
                }
            }));
        }
    }

    /// Takes a store out of service that has not answered in time when it was opened. It comes back
    /// like any other, when it has seals and maps.
    pub fn note_late(&self, store: StoreId) {
        if let Some(at) = self.stores.iter().position(|known| known.id == store) {
            self.mark_bad(at, StoreState::Absent, "has not answered in time");
        }
    }

    /// Takes stores out of service whose machine is gone, if there are enough others: no request is
    /// to find that out by waiting. They come back like any other.
    pub fn note_gone(&self, stores: StoreSet) {
        self.give_up(stores, "its machine is gone");
    }

    fn give_up(&self, stores: StoreSet, why: &str) {
        let is_gone = |at: usize| stores.iter().any(|store| self.stores[at].id == store);
        let (gone, others): (Vec<usize>, Vec<usize>) = self.health.lock().up().into_iter().partition(|at| is_gone(*at));
        if self.suffice(others.len()) {
            gone.into_iter().for_each(|at| self.mark_bad(at, StoreState::Absent, why));
        }
    }

    /// The first node finds that these stores do not answer. Those that it had not named before are
    /// taken as [gone](Self::note_gone). After that, they are judged by what they answer here.
    pub fn heed(&self, absent: StoreSet) {
        let told = std::mem::replace(&mut self.health.lock().told, absent);
        let new = absent.iter().filter(|store| told.iter().all(|known| known != *store));
        self.give_up(new.collect(), "does not answer the first node");
    }

    /// Takes a store out of service that is made anew in place of a lost one. It comes back like
    /// any other, when it has seals and maps.
    pub fn note_new(&self, store: StoreId) {
        if let Some(at) = self.stores.iter().position(|known| known.id == store) {
            let mut health = self.health.lock();
            // One that comes back at the moment is another one.
            health.note_change();
            health.stores[at].is_new = true;
            drop(health);
            self.mark_bad(at, StoreState::Absent, "is made anew");
        }
    }

    /// Notes that a fragment is damaged. Logs it the first time.
    pub(crate) fn note_damaged(&self, at: usize, fragment: FragmentId) {
        let new = {
            let mut health = self.health.lock();
            if health.damaged.len() >= DAMAGED_MAX {
                health.damaged.clear();
            }
            let new = health.damaged.insert((at, fragment));
            health.stores[at].damaged_count += u64::from(new);
            new
        };
        if new {
            tracing::warn!(store = %self.stores[at].id, %fragment, "fragment is damaged");
        }
    }

    /// Probes every store that is out of service. True if none is left, so the task ends.
    async fn probe(self: &Arc<Self>) -> bool {
        let up = self.health.lock().up();
        for at in self.everyone() {
            if !up.contains(&at) {
                self.probe_store(at).await;
            }
        }
        let mut health = self.health.lock();
        let done = health.stores.iter().all(|s| s.state == StoreState::Up);
        if done {
            health.probing = false;
        }
        done
    }

    async fn probe_store(&self, at: usize) {
        match self.ask(at, |s| s.status()).await {
            Err(_) => self.mark_bad(at, StoreState::Absent, "does not answer"),
            Ok(status) if !takes_puts(&status) => self.mark_bad(at, StoreState::Failing, "not writable or full"),
            Ok(_) => {
                let changes = self.health.lock().changes();
                if !self.catch_up(at).await {
                    return;
                }
                let mut health = self.health.lock();
                if health.is_current(at, changes) {
                    health.stores[at].state = StoreState::Up;
                    health.stores[at].is_new = false;
                    health.returns += 1;
                    tracing::info!(store = %self.stores[at].id, "store is back in service");
                }
            }
        }
    }

    /// The stores that are not in service.
    pub fn out_of_service(&self) -> StoreSet {
        let up = self.health.lock().up();
        self.everyone().into_iter().filter(|at| !up.contains(at)).map(|at| self.stores[at].id).collect()
    }

    /// The stores that do not answer.
    pub fn absent(&self) -> StoreSet {
        let (_, absent) = self.present_and_absent();
        absent.into_iter().map(|at| self.stores[at].id).collect()
    }

    /// True if too few stores take puts from here, and another node has enough. Stores count there
    /// that take puts here, or that do not answer here and are not in `absent`. That node has found
    /// that those in `absent` do not answer.
    pub fn is_cut_off(&self, absent: StoreSet) -> bool {
        let up = self.health.lock().up().len();
        let answers_there = |store: &StoreId| absent.iter().all(|known| known != *store);
        let more = self.absent().iter().filter(answers_there).count();
        !self.suffice(up) && self.suffice(up + more)
    }

    /// True if all stores are in service.
    pub fn is_whole(&self) -> bool {
        self.health.lock().up().len() == self.stores.len()
    }

    /// How many times any store has come back into service.
    pub fn return_count(&self) -> u64 {
        self.health.lock().returns
    }

    /// The health of all stores, in order of their ids. Does not wait long for stores that do not
    /// answer.
    pub async fn status(&self) -> Vec<StoreHealth> {
        let mut statuses: BTreeMap<usize, StoreStatus> = self.ask_status().await.into_iter().flatten().collect();
        let health = self.health.lock();
        let healths = health.stores.iter().enumerate().map(|(at, entry)| StoreHealth {
            id: self.stores[at].id,
            state: entry.state,
            damaged_count: entry.damaged_count,
            status: statuses.remove(&at),
            age: Duration::ZERO,
        });
        healths.collect()
    }

    /// Like [`status`](Self::status), but within [`GLANCE_TIME`]. For a store that has not answered
    /// by then, it has the last status.
    pub async fn glance(&self) -> Vec<StoreHealth> {
        first(self.ask_status(), self.host.clock.sleep(GLANCE_TIME)).await;
        let now = self.host.clock.now();
        let health = self.health.lock();
        let healths = health.stores.iter().enumerate().map(|(at, entry)| StoreHealth {
            id: self.stores[at].id,
            state: entry.state,
            damaged_count: entry.damaged_count,
            status: entry.said.as_ref().map(|(_, status)| status.clone()),
            age: entry.said.as_ref().map_or(Duration::ZERO, |(when, _)| now.saturating_sub(*when)),
        });
        healths.collect()
    }

    /// Asks the stores that are expected to answer for their status, and notes each answer as it
    /// comes.
    async fn ask_status(&self) -> Vec<Option<(usize, StoreStatus)>> {
        let whom = self.everyone().into_iter().filter(|&at| self.answers_soon(at));
        let asked = whom.map(|at| async move {
            let status = self.ask_briefly(at, self.options.reader_patience(), |s| s.status()).await?.ok()?;
            self.health.lock().stores[at].said = Some((self.host.clock.now(), status.clone()));
            Some((at, status))
        });
        join_all(asked.collect()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fault, LOG, Rig};
    use bytes::Bytes;
    use types::Maps;

    #[test]
    fn what_the_first_node_finds_counts_once_and_only_if_enough_stores_are_left() {
        let rig = Rig::new(4, 4, 1);
        let stripe = rig.stripe();
        let heed = |at: &[usize]| {
            stripe.heed(at.iter().map(|at| stripe.stores[*at].id).collect());
            stripe.health.lock().up()
        };
        assert_eq!(heed(&[]), [0, 1, 2, 3]);
        assert_eq!(heed(&[1]), [0, 2, 3]);
        rig.run(stripe.host.clock.sleep(3 * stripe.options.probe_interval));
        assert_eq!(heed(&[1]), [0, 1, 2, 3], "it answers here");
        assert_eq!(heed(&[]), [0, 1, 2, 3]);
        assert_eq!(heed(&[0, 1]), [0, 1, 2, 3], "no put would succeed any more");
        assert_eq!(heed(&[0, 1, 2]), [0, 1, 3]);
    }

    #[test]
    fn a_node_is_cut_off_if_enough_stores_answer_another_one() {
        let rig = Rig::new(5, 4, 1);
        let stripe = rig.stripe();
        let cut_off = |at: &[usize]| stripe.is_cut_off(at.iter().map(|at| stripe.stores[*at].id).collect());
        let set = |faults: [Fault; 2]| {
            rig.heal();
            rig.sim.run_for(2 * stripe.options.probe_interval);
            assert!(stripe.is_whole() && !cut_off(&[]));
            rig.stores.iter().zip(faults).for_each(|(store, fault)| store.set(fault));
            let put = rig.run(stripe.put(&rig.segment(1 + rig.sim.now().as_millis() as u64, 2 << 20)));
            assert_eq!(put.is_err(), faults[1] != Fault::None);
        };
        set([Fault::Down, Fault::None]);
        assert!(!cut_off(&[]), "it can write");
        set([Fault::Down, Fault::Down]);
        assert!(cut_off(&[]) && cut_off(&[0]) && !cut_off(&[0, 1]), "no other node could write either");
        set([Fault::ReadOnly, Fault::Down]);
        assert!(cut_off(&[]) && !cut_off(&[1]));
        set([Fault::ReadOnly, Fault::Full]);
        assert!(!cut_off(&[]), "the stores take nothing from any node");
    }

    #[test]
    fn regression_a_glance_does_not_wait_for_a_store_that_hangs() {
        let rig = Rig::new(3, 3, 1);
        let stripe = rig.stripe();
        assert!(rig.run(stripe.glance()).iter().all(|store| store.status.is_some()));
        rig.stores[1].set(Fault::Silent);
        rig.run(stripe.host.clock.sleep(Duration::from_secs(7)));
        let begin = rig.sim.now();
        let seen = rig.run(stripe.glance());
        assert!(rig.sim.now() - begin <= GLANCE_TIME);
        assert!(seen[1].status.is_some() && seen[1].age >= Duration::from_secs(7), "the last it said, and when");
        assert!([0, 2].iter().all(|&at| seen[at].status.is_some() && seen[at].age < Duration::from_secs(1)));
    }

    #[test]
    fn store_that_was_away_learns_seals_and_maps_before_it_is_used() {
        let rig = Rig::new(1, 3, 1);
        let (_, _, writer) = rig.writer();
        // A fragment that recovery will not see.
        rig.stores[0].set(Fault::Silent);
        rig.stores[1].set(Fault::Mute);
        let lost = writer.begin();
        writer.submit(rig.draft(lost, 1000));
        rig.sim.run_for(std::time::Duration::from_millis(100));
        rig.client().crash();
        assert_eq!(rig.stores[1].holds(lost.id) + rig.stores[2].holds(lost.id), 2, "{lost:?} went elsewhere");
        rig.stores[2].contents.lock().fragments.clear();
        rig.stores[1].set(Fault::Silent);
        rig.stores[0].set(Fault::None);

        let stripe = rig.stripe();
        let tail = rig.run(stripe.open_log(LOG, 1)).unwrap();
        assert_eq!((tail.epoch, tail.segments.len()), (2, 0));
        let maps = Maps { epoch: 4, bytes: Bytes::from_static(b"maps") };
        rig.run(stripe.put_maps(maps.clone())).unwrap();
        assert_eq!(rig.stores[1].contents.lock().maps.epoch, 0);

        rig.heal();
        rig.sim.run_until_idle();
        assert_eq!(stripe.health.lock().up().len(), 3);
        let contents = rig.stores[1].contents.lock();
        assert_eq!((contents.maps.clone(), contents.seals.newest(LOG).map(|seal| seal.epoch)), (maps, Some(2)));
        assert!(contents.fragments.is_empty(), "the seal discards what recovery did not count");
    }

    #[test]
    fn store_that_misses_a_change_while_it_catches_up_does_not_return_yet() {
        for delay in 0..40 {
            let rig = Rig::new(4, 3, 1);
            let stripe = rig.stripe();
            rig.stores[0].set(Fault::Down);
            rig.run(stripe.status());
            rig.heal();
            // The store is probed after 100 ms. The log is opened at some moment while the store
            // catches up.
            rig.sim.run_for(stripe.options.probe_interval + std::time::Duration::from_micros(500 * delay));
            rig.run(stripe.open_log(LOG, 1)).unwrap();
            rig.sim.run_until_idle();
            assert_eq!(stripe.health.lock().state(0), StoreState::Up);
            let newest = rig.stores[0].contents.lock().seals.newest(LOG).cloned();
            assert_eq!(newest.map(|seal| seal.epoch), Some(1), "after {delay} half milliseconds");
        }
    }

    #[test]
    fn probing_ends_when_all_are_well_and_starts_again() {
        let rig = Rig::new(2, 3, 1);
        let stripe = rig.stripe();
        for round in 1..4 {
            rig.stores[0].set(Fault::ReadOnly);
            rig.run(stripe.put(&rig.segment(round, 100_000))).unwrap();
            let states: Vec<StoreState> = rig.run(stripe.status()).iter().map(|s| s.state).collect();
            assert_eq!(states, [StoreState::Failing, StoreState::Up, StoreState::Up]);
            rig.sim.run_for(stripe.options.probe_interval * 5);
            assert_eq!(stripe.health.lock().state(0), StoreState::Failing, "it still is");
            rig.stores[0].set(Fault::Silent);
            rig.sim.run_for(stripe.options.put_timeout * 3);
            assert_eq!(stripe.health.lock().state(0), StoreState::Absent);
            rig.heal();
            // Returns only when no task is left.
            rig.sim.run_until_idle();
            assert_eq!(stripe.health.lock().state(0), StoreState::Up);
        }
    }

    #[test]
    fn probing_does_not_outlive_the_stripe() {
        let rig = Rig::new(3, 3, 1);
        let stripe = rig.stripe();
        rig.stores[0].set(Fault::Down);
        rig.run(stripe.status());
        assert_eq!(stripe.health.lock().state(0), StoreState::Absent);
        drop(stripe);
        rig.sim.run_until_idle();
    }
}
