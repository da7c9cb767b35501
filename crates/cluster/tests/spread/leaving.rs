//! Nodes drain, are lost, and are removed: beside writers, and with crashes of the first node.

use crate::{First, Recording, Rig, STORE_BYTES, STORES};
use cluster::FsConfig;
use cluster::config::{DrainRate, FIRST_NODE};
use cluster::maps::ChangeError;
use cluster::removal::{Removal, RemovalError};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use storage::api::StoreIdentity;
use storage::wire::StoreName;
use stripe::StoreSet;
use types::{NodeId, StoreId};

/// A file system whose nodes have a store each, without sessions: node 2 has store 1.
fn spread_over_nodes(seed: u64) -> (Rig, First) {
    let mut rig = Rig::new(seed);
    let first = rig.start().expect("start");
    rig.join(&first);
    rig.write(&first, 30);
    rig.hello(&first, 1);
    rig.hello(&first, 2);
    rig.settle();
    rig.write(&first, 30);
    drop(first);
    let first = rig.start().expect("start");
    (rig, first)
}

const GIVE_UP: Removal = Removal { is_dead: true, accepts_loss: true };
/// The name of the node with store 1.
const LOST: &str = "node-2";

impl Rig {
    /// Store 1 is lost with its node, or back.
    fn lose(&self, is_lost: bool) {
        *self.world.away.lock().expect("away") = is_lost.then_some(StoreId::new(1)).into_iter().collect();
    }

    fn remove_node(&self, first: &First, is_dead: bool) -> Result<StoreSet, RemovalError> {
        self.sim.block_on(first.spread.remove_node(LOST, Removal { is_dead, ..Removal::default() }))
    }

    /// The node is removed though it is not known whether the others have everything.
    fn give_up(&self, first: &First) -> Result<StoreSet, RemovalError> {
        self.sim.block_on(first.spread.remove_node(LOST, GIVE_UP))
    }

    fn has_member(&self, first: &First) -> bool {
        first.core.maps.config().expect("config").members.contains_key(&NodeId::new(2))
    }
}

#[test]
fn the_store_of_a_dead_node_is_made_anew_and_the_node_is_removed() {
    let (mut rig, first) = spread_over_nodes(20);
    // The stores are compared.
    rig.run_for(10_000);
    rig.lose(true);
    rig.write(&first, 20);
    let lost = rig.remove_node(&first, true).expect("remove");
    assert_eq!(lost.iter().collect::<Vec<_>>(), [StoreId::new(1)]);
    assert_eq!((rig.places(), rig.has_member(&first)), (vec![0, 0, 1], false));
    rig.run_for(120_000);
    rig.check_whole(&first);
    rig.write(&first, 20);
    // The node comes back with what it had. Nothing asks it.
    rig.lose(false);
    let first = rig.start().expect("start");
    rig.check(&first);
    rig.check_whole(&first);
    let refused = rig.remove_node(&first, true);
    assert!(matches!(refused, Err(RemovalError::NoSuchNode(_))), "{refused:?}");
    let refused = rig.sim.block_on(first.spread.remove_node("one", GIVE_UP));
    assert!(matches!(refused, Err(RemovalError::IsFirst(_))), "{refused:?}");
}

#[test]
fn a_node_is_not_removed_while_it_or_what_only_it_has_is_needed() {
    let (mut rig, first) = spread_over_nodes(21);
    rig.write(&first, 20);
    let refused = |is_dead| rig.remove_node(&first, is_dead).expect_err("refused");
    assert!(matches!(refused(false), RemovalError::HasStores { .. }));
    assert!(matches!(refused(true), RemovalError::Answers { .. }));
    rig.hello(&first, 2);
    assert!(matches!(refused(true), RemovalError::IsUp(_)));
    // Another store was replaced, and has nothing yet.
    let (fs, capacity_bytes) = (first.core.config.fs, STORE_BYTES);
    drop(first);
    let node = rig.world.nodes[0].clone();
    rig.sim.block_on(async move { node.make(StoreIdentity { fs, store: StoreId::new(2), capacity_bytes }).await });
    let first = rig.start().expect("start");
    let refused = |is_dead| rig.remove_node(&first, is_dead).expect_err("refused");
    rig.lose(true);
    let unknown = refused(true);
    assert!(matches!(unknown, RemovalError::NotCompared { .. }), "{unknown}");
    rig.lose(false);
    rig.run_for(120_000);
    rig.check_whole(&first);
    rig.lose(true);
    rig.world.disks[0].offline(true);
    rig.run_for(20_000);
    let refused = refused(true);
    // No call has met the failed disk yet: the change of the maps is the first.
    assert!(matches!(refused, RemovalError::Maps(ChangeError::Push(_))), "{refused}");
    rig.world.disks[0].offline(false);
    // Nothing has changed.
    rig.lose(false);
    let first = rig.start().expect("start");
    assert_eq!((rig.places(), rig.has_member(&first)), (vec![0, 2, 1], true));
    rig.check(&first);
}

#[test]
fn two_dead_nodes_are_removed_if_parity_makes_up_for_both() {
    let mut rig = Rig::of(26, 4, 5, 2);
    let first = rig.start().expect("start");
    rig.join(&first);
    rig.write(&first, 30);
    (1..=4).for_each(|node| _ = rig.hello(&first, node));
    rig.run_for(200_000);
    assert_eq!(rig.places().into_iter().collect::<BTreeSet<_>>().len(), 5, "{:?}", rig.places());
    rig.write(&first, 30);
    drop(first);
    // Nodes 3 and 4 are lost with their stores.
    let lost = (0..).map(StoreId::new).zip(rig.places()).filter(|(_, node)| *node >= 3).map(|(store, _)| store);
    *rig.world.away.lock().expect("away") = lost.collect();
    let first = rig.start().expect("start");
    rig.write(&first, 20);
    rig.run_for(20_000);
    let remove = |name, how| rig.sim.block_on(first.spread.remove_node(name, how));
    let plain = Removal { is_dead: true, ..Removal::default() };
    assert!(matches!(remove("node-3", plain), Err(RemovalError::OthersAway(_))));
    assert_eq!(remove("node-3", GIVE_UP).expect("remove").iter().count(), 1);
    // The store that was made anew is in use soon, and lacks what the others are yet to give it.
    rig.run_for(5000);
    let refused = remove("node-4", plain).expect_err("refused");
    assert!(matches!(refused, RemovalError::NotCompared { .. }), "{refused}");
    assert_eq!(remove("node-4", GIVE_UP).expect("remove").iter().count(), 1);
    rig.write(&first, 20);
    rig.run_for(200_000);
    assert!(first.core.maps.config().expect("config").is_whole);
    rig.check_whole(&first);
    assert!(rig.places().iter().all(|node| *node < 3), "{:?}", rig.places());
    let first = rig.start().expect("start");
    rig.check(&first);
}

#[test]
fn a_third_dead_node_is_not_removed_with_two() {
    let mut rig = Rig::of(27, 4, 5, 2);
    let first = rig.start().expect("start");
    rig.join(&first);
    (1..=4).for_each(|node| _ = rig.hello(&first, node));
    rig.run_for(200_000);
    rig.write(&first, 30);
    let lost = (0..).map(StoreId::new).zip(rig.places()).filter(|(_, node)| *node >= 2).map(|(store, _)| store);
    let first = rig.start().expect("start");
    *rig.world.away.lock().expect("away") = lost.collect();
    let refused = rig.sim.block_on(first.spread.remove_node("node-3", GIVE_UP)).expect_err("refused");
    assert!(matches!(refused, RemovalError::OthersAway(_)), "{refused}");
    rig.world.away.lock().expect("away").clear();
    let first = rig.start().expect("start");
    rig.check(&first);
}

#[test]
fn a_start_without_the_lost_node_knows_whether_the_others_have_everything() {
    let (mut rig, first) = spread_over_nodes(24);
    rig.run_for(10_000);
    let is_whole = |first: &First| first.core.maps.config().expect("config").is_whole;
    assert!(is_whole(&first));
    drop(first);
    rig.lose(true);
    let first = rig.start().expect("start");
    rig.write(&first, 20);
    rig.remove_node(&first, true).expect("remove");
    assert!(!is_whole(&first), "it is filled later");
    // Until then, no other one can be given up without a word.
    let first = rig.start().expect("start");
    assert!(!is_whole(&first));
    rig.run_for(120_000);
    assert!(is_whole(&first));
    rig.check_whole(&first);
    rig.check(&first);
}

/// The first try said that it lacks everything, though nothing was made anew.
#[test]
fn regression_a_removal_that_was_refused_can_be_repeated() {
    let (mut rig, first) = spread_over_nodes(25);
    rig.run_for(10_000);
    rig.lose(true);
    *rig.world.recording.lock().expect("recording") = Recording::IsRefused;
    let refused = rig.remove_node(&first, true).expect_err("refused");
    assert!(matches!(refused, RemovalError::NotRecorded(..)), "{refused}");
    rig.run_for(10_000);
    *rig.world.recording.lock().expect("recording") = Recording::Works;
    rig.remove_node(&first, true).expect("remove");
    rig.run_for(120_000);
    rig.check_whole(&first);
    rig.write(&first, 5);
}

/// The store that came back while all nodes were told was given up.
#[test]
fn regression_a_store_that_comes_back_during_its_removal_stays() {
    let (mut rig, first) = spread_over_nodes(23);
    rig.lose(true);
    let clock = first.core.host().clock.clone();
    let refused = rig.sim.block_on(async {
        let mut removal = std::pin::pin!(first.spread.remove_node(LOST, GIVE_UP));
        host::timeout(&*clock, Duration::from_secs(5), &mut removal).await.expect_err("it waits for all nodes");
        rig.lose(false);
        removal.await.expect_err("refused")
    });
    assert!(matches!(refused, RemovalError::Answers { .. }), "{refused}");
    assert_eq!((rig.places(), rig.has_member(&first)), (vec![0, 2, 1], true));
    rig.write(&first, 10);
    rig.run_for(60_000);
    rig.check_whole(&first);
    let first = rig.start().expect("start");
    rig.check(&first);
}

#[test]
fn a_removal_whose_record_fails_leaves_the_store_where_it_was_or_unused() {
    for recording in [Recording::IsRefused, Recording::FailsBefore, Recording::FailsAfter] {
        let (mut rig, first) = spread_over_nodes(22);
        rig.lose(true);
        *rig.world.recording.lock().expect("recording") = recording;
        let refused = rig.give_up(&first).expect_err("refused");
        match recording {
            Recording::IsRefused => assert!(matches!(refused, RemovalError::NotRecorded(..)), "{refused}"),
            _ => {
                assert!(matches!(refused, RemovalError::Unknown(..)), "{refused}");
                let again = rig.give_up(&first).expect_err("a start must come first");
                assert!(matches!(again, RemovalError::Unknown(..)), "{again}");
            }
        }
        *rig.world.recording.lock().expect("recording") = Recording::Works;
        rig.run_for(5000);
        rig.write(&first, 10);
        let first = rig.start().expect("start");
        rig.check(&first);
        rig.run_for(60_000);
        rig.give_up(&first).expect("it goes on");
        rig.run_for(120_000);
        assert_eq!((rig.places(), rig.has_member(&first)), (vec![0, 0, 1], false), "{recording:?}");
        rig.check_whole(&first);
    }
}

#[test]
fn crash_of_the_first_node_at_any_moment_of_a_removal_loses_nothing() {
    for seed in 120..132 {
        let (mut rig, mut first) = spread_over_nodes(seed);
        rig.lose(true);
        rig.write(&first, 5);
        for _ in 0..3 {
            let clock = first.core.host().clock.clone();
            let time = Duration::from_micros(1 << rig.world.random.below(25));
            let removal = first.spread.remove_node(LOST, GIVE_UP);
            let removed = rig.sim.block_on(host::timeout(&*clock, time, removal));
            first = rig.start().unwrap_or_else(|e| panic!("seed {seed}, {removed:?}: {e}"));
            rig.check(&first);
            rig.write(&first, 5);
            // What is made anew is filled.
            rig.run_for(60_000);
        }
        if rig.has_member(&first) {
            rig.give_up(&first).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            rig.run_for(60_000);
        }
        rig.check_whole(&first);
        assert_eq!(rig.places(), [0, 0, 1]);
    }
}

impl Rig {
    fn drain(&self, first: &First, drains: bool) {
        self.sim.block_on(first.spread.drain_node(LOST, drains.then(DrainRate::default), true)).expect("drain");
    }
}

#[test]
fn a_drain_that_leaves_a_node_with_too_many_stores_is_refused() {
    let (rig, first) = spread_over_nodes(31);
    let drain = |name: &str, accepts_risk| {
        rig.sim.block_on(first.spread.drain_node(name, Some(DrainRate::default()), accepts_risk))
    };
    let draining = || first.core.maps.config().expect("config").draining;
    let why = drain(LOST, false).expect_err("refused");
    assert!(matches!(why, RemovalError::Crowds { count: 2, parity: 1, .. }), "{why}");
    assert!(draining().is_empty());
    drain(LOST, true).expect("drain");
    // Another rate is no other risk.
    drain(LOST, false).expect("drain");
    assert_eq!(draining().len(), 1);
}

#[test]
fn a_node_drains_and_can_be_removed() {
    let (mut rig, first) = spread_over_nodes(30);
    rig.drain(&first, true);
    for _ in 0..20 {
        rig.write(&first, 3);
        rig.remove(&first, 1);
        rig.run_for(1000);
    }
    assert_eq!(rig.places(), [0, 0, 1]);
    rig.check_whole(&first);
    let config = first.core.maps.config().expect("config");
    assert_eq!(config.stores().map(|store| config.place(store).raw()).collect::<Vec<_>>(), [0, 0, 1]);
    // It gets no store again, also after a start.
    let first = rig.start().expect("start");
    rig.hello(&first, 2);
    rig.run_for(20_000);
    assert_eq!(rig.places(), [0, 0, 1]);
    assert!(first.members.nodes().expect("nodes").nodes[2].is_draining);
    rig.world.nodes[1].restart();
    rig.check(&first);
    let first = rig.start().expect("start");
    let lost = rig.remove_node(&first, false).expect("it has no stores");
    assert_eq!((lost.iter().count(), rig.has_member(&first)), (0, false));
    rig.check_whole(&first);
}

/// The maps that decided the place were told the stores before the move was over, so also the one
/// whose changes were held up. With another one away, too few were left, and the store was given up
/// until the next start.
#[test]
fn regression_a_store_moves_though_another_one_goes_away_meanwhile() {
    let mut rig = Rig::new(34);
    rig.world.decides.store(true, SeqCst);
    let first = rig.start().expect("start");
    rig.join(&first);
    rig.write(&first, 30);
    rig.hello(&first, 1);
    rig.hello(&first, 2);
    rig.settle();
    drop(first);
    let first = rig.start().expect("start");
    rig.run_for(5000);
    rig.sim.block_on(first.spread.drain_node("node-1", Some(DrainRate::default()), true)).expect("drain");
    let moves = || first.members.nodes().expect("nodes").spread.moving.is_some();
    while first.core.maps.config().expect("config").through_first.is_empty() {
        rig.run_for(10);
    }
    // Requests that were sent straight to the store may end until then. It is held soon afterwards.
    rig.run_for(9950);
    assert!(moves());
    rig.lose(true);
    let begun = rig.sim.now();
    while moves() {
        rig.run_for(100);
    }
    let report = first.members.nodes().expect("nodes").spread;
    assert_eq!((rig.places(), &report.trouble[..]), (vec![0, 2, 0], ""));
    assert!(rig.sim.now() - begun < Duration::from_secs(8), "its changes wait for {:?}", rig.sim.now() - begun);
    rig.write(&first, 10);
    rig.lose(false);
    rig.run_for(60_000);
    rig.check_whole(&first);
    let first = rig.start().expect("start");
    rig.check(&first);
}

#[test]
fn a_drain_is_no_faster_than_its_rate_which_may_change() {
    let (mut rig, first) = spread_over_nodes(37);
    rig.write(&first, 200);
    let name = StoreName { fs: first.core.config.fs, store: StoreId::new(1) };
    let store = rig.sim.block_on(rig.world.nodes[1].site(name.store)).store(name).expect("a store");
    let bytes =
        rig.sim.block_on(async move { storage::api::Storage::status(&*store).await }).expect("status").used_bytes;
    let drain = |rate| rig.sim.block_on(first.spread.drain_node(LOST, Some(DrainRate(rate)), true)).expect("drain");
    let moves = || first.members.nodes().expect("nodes").spread.moving.is_some();
    drain(bytes / 1000);
    while !moves() {
        rig.run_for(10);
    }
    rig.run_for(20_000);
    assert!(moves());
    drain(bytes / 40);
    let begun = rig.sim.now();
    while moves() {
        rig.run_for(100);
    }
    let took = (rig.sim.now() - begun).as_secs();
    assert!((10..60).contains(&took), "{took} s");
    assert_eq!(rig.places(), [0, 0, 1]);
    rig.check_whole(&first);
}

#[test]
fn no_store_moves_while_another_one_is_away() {
    let (mut rig, first) = spread_over_nodes(35);
    rig.lose(true);
    rig.write(&first, 10);
    rig.run_for(15_000);
    rig.sim.block_on(first.spread.drain_node("node-1", Some(DrainRate::default()), true)).expect("drain");
    rig.run_for(30_000);
    let trouble = first.members.nodes().expect("nodes").spread.trouble;
    assert_eq!((rig.places(), &trouble[..]), (vec![0, 2, 1], "store-2 does not move while store-1 is out of service"));
    rig.lose(false);
    rig.run_for(60_000);
    assert_eq!(rig.places(), [0, 2, 0]);
    rig.check_whole(&first);
}

/// What is left of it there said that it was in use.
#[test]
fn regression_what_a_drained_node_keeps_of_a_store_knows_that_it_has_moved() {
    let (rig, first) = spread_over_nodes(36);
    rig.drain(&first, true);
    rig.run_for(30_000);
    assert_eq!(rig.places(), [0, 0, 1]);
    let left = rig.sim.block_on(rig.world.nodes[1].site(StoreId::new(1)));
    let name = StoreName { fs: first.core.config.fs, store: StoreId::new(1) };
    let maps = left.store(name).expect("it is there").newest_maps();
    assert_eq!(FsConfig::decode(&maps.bytes).expect("maps").place(StoreId::new(1)), FIRST_NODE);
}

#[test]
fn a_drain_waits_until_all_nodes_know_it_and_can_be_stopped() {
    let (mut rig, first) = spread_over_nodes(31);
    let sessions = [1, 2].map(|node| (node, rig.hello(&first, node)));
    rig.drain(&first, true);
    let config = |first: &First| first.core.maps.config().expect("config");
    let place = |first: &First| config(first).place(StoreId::new(1)).raw();
    let is_direct = |first: &First| config(first).through_first.is_empty();
    for second in 0..30 {
        // One of them knows it, and the other one does not.
        sessions.iter().for_each(|(node, session)| rig.renew(&first, *node, *session, *node == 1));
        rig.run_for(1000);
        assert!(second < 3 || !is_direct(&first), "the maps do not say that it is reached through the first node");
    }
    assert_eq!((rig.places(), place(&first)), (vec![0, 2, 1], 2));
    rig.write(&first, 10);
    // It is stopped: the next attempts end, and the node is reached again.
    rig.drain(&first, false);
    rig.run_for(100_000);
    assert_eq!((rig.places(), place(&first), is_direct(&first)), (vec![0, 2, 1], 2, true));
    rig.drain(&first, true);
    for _ in 0..40 {
        sessions.iter().for_each(|(node, session)| rig.renew(&first, *node, *session, true));
        rig.run_for(1000);
    }
    assert_eq!((rig.places(), place(&first)), (vec![0, 0, 1], 0));
    rig.check_whole(&first);
    // It takes a store again.
    rig.drain(&first, false);
    rig.run_for(30_000);
    assert_eq!(rig.places().iter().filter(|place| **place == 2).count(), 1);
    rig.write(&first, 10);
    rig.check_whole(&first);
    let first = rig.start().expect("start");
    rig.check(&first);
}

/// A node does not learn in time that the store is reached through the first one. The copy may have
/// taken hours: it is not made anew.
#[test]
fn an_end_of_a_move_that_fails_is_tried_again_with_what_was_copied() {
    let (mut rig, first) = spread_over_nodes(43);
    let sessions = [1, 2].map(|node| (node, rig.hello(&first, node)));
    let config = |first: &First| first.core.maps.config().expect("config");
    let made_before = rig.world.made_count.load(SeqCst);
    rig.drain(&first, true);
    let (mut ends, mut was_direct) = (0, true);
    for _ in 0..160 {
        sessions.iter().for_each(|(node, session)| rig.renew(&first, *node, *session, *node == 1));
        rig.run_for(1000);
        let is_direct = config(&first).through_first.is_empty();
        ends += u32::from(is_direct && !was_direct);
        if was_direct {
            rig.write(&first, 1);
        }
        was_direct = is_direct;
    }
    assert_eq!((ends, rig.places()), (2, vec![0, 2, 1]));
    for _ in 0..40 {
        sessions.iter().for_each(|(node, session)| rig.renew(&first, *node, *session, true));
        rig.run_for(1000);
    }
    assert_eq!(rig.places(), [0, 0, 1]);
    assert_eq!(rig.world.made_count.load(SeqCst) - made_before, 1, "it was copied anew");
    rig.check_whole(&first);
    let first = rig.start().expect("start");
    rig.check(&first);
}

#[test]
fn a_drained_store_that_may_be_recorded_or_not_is_used_no_more_until_the_next_start() {
    for (recording, place) in [(Recording::FailsBefore, 2), (Recording::FailsAfter, 0), (Recording::IsRefused, 2)] {
        let (mut rig, first) = spread_over_nodes(33);
        *rig.world.recording.lock().expect("recording") = recording;
        rig.drain(&first, true);
        rig.run_for(60_000);
        let trouble = first.members.nodes().expect("nodes").spread.trouble;
        let is_unsure = trouble.contains("start the machine that leads again");
        assert_eq!(is_unsure, recording != Recording::IsRefused, "{trouble}");
        rig.write(&first, 20);
        if is_unsure {
            let refused = rig.give_up(&first).expect_err("a start must come first");
            assert!(matches!(refused, RemovalError::Unknown(..)), "{refused}");
        }
        *rig.world.recording.lock().expect("recording") = Recording::Works;
        let first = rig.start().expect("start");
        assert_eq!(rig.places()[1], place, "{recording:?}");
        rig.check(&first);
        rig.run_for(100_000);
        assert_eq!(rig.places(), [0, 0, 1], "{recording:?}");
        rig.check_whole(&first);
        let first = rig.start().expect("start");
        rig.check(&first);
    }
}

#[test]
fn crash_of_the_first_node_at_any_moment_of_a_drain_loses_nothing() {
    let mut drained = 0;
    for seed in 140..152 {
        let (mut rig, mut first) = spread_over_nodes(seed);
        rig.drain(&first, true);
        for _ in 0..3 {
            rig.run_for(rig.world.random.below(12_000));
            for _ in 0..rig.world.random.below(8) {
                let count = 1 + rig.world.random.below(8);
                rig.write(&first, count);
                rig.run_for(rig.world.random.below(600));
            }
            drained += u32::from(rig.places() == [0, 0, 1]);
            first = rig.start().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let lost = rig.world.random.below(u64::from(STORES)) as u16;
            rig.check_without(&first, lost);
            first = rig.start().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            rig.check(&first);
        }
        rig.run_for(60_000);
        assert_eq!(rig.places(), [0, 0, 1], "seed {seed}");
        rig.write(&first, 5);
        rig.check(&first);
        rig.check_whole(&first);
    }
    assert!((5..30).contains(&drained), "{drained} of 36");
}

#[test]
fn the_first_node_drains_too() {
    let (mut rig, first) = spread_over_nodes(32);
    rig.sim.block_on(first.spread.drain_node("one", Some(DrainRate::default()), true)).expect("drain");
    rig.run_for(5000);
    assert_eq!(rig.places(), [0, 2, 1], "there is no other place");
    let session = rig.hello(&first, 1);
    for _ in 0..20 {
        rig.write(&first, 3);
        rig.run_for(1000);
    }
    assert_eq!(rig.places(), [1, 2, 1]);
    rig.check_whole(&first);
    assert!(first.members.nodes().expect("nodes").nodes[0].is_draining);
    // It is stopped, and a store comes back.
    rig.sim.block_on(first.spread.drain_node("one", None, true)).expect("drain");
    for _ in 0..40 {
        rig.renew(&first, 1, session, true);
        rig.run_for(1000);
    }
    assert_eq!(rig.places(), [1, 2, 0]);
    rig.check_whole(&first);
}

/// Two nodes have taken a store each, and all stores were compared.
fn spread(mut rig: Rig) -> (Rig, First) {
    let first = rig.start().expect("start");
    rig.join(&first);
    rig.hello(&first, 1);
    rig.hello(&first, 2);
    rig.write(&first, 30);
    rig.settle();
    rig.run_for(10_000);
    (rig, first)
}

/// The disk of store 1 is replaced: its node starts with an empty one.
fn replace_disk(rig: &Rig) {
    rig.world.nodes[1].restart();
    rig.world.nodes[1].disk(StoreId::new(1)).wipe();
}

#[test]
fn a_disk_that_is_replaced_is_filled_while_all_go_on() {
    let (mut rig, first) = spread(Rig::new(38));
    let is_whole = || first.core.maps.config().expect("config").is_whole;
    assert!(is_whole());
    replace_disk(&rig);
    rig.write(&first, 30);
    rig.run_for(15_000);
    rig.write(&first, 10);
    rig.run_for(100_000);
    assert_eq!((rig.places(), is_whole()), (vec![0, 2, 1], true));
    rig.check_whole(&first);
    rig.check_without(&first, 0);
    let first = rig.start().expect("start");
    rig.check(&first);
}

/// With another one away, what the new one is to have is not there.
#[test]
fn a_disk_that_is_replaced_waits_until_enough_others_are_back() {
    let (rig, first) = spread(Rig::new(39));
    // Node 1 has the other store that is at a node.
    rig.world.away.lock().expect("away").insert(StoreId::new(2));
    replace_disk(&rig);
    rig.run_for(60_000);
    let trouble = first.members.nodes().expect("nodes").spread.trouble;
    assert!(trouble.contains("store-1 at node-2 is lost") && trouble.contains("2 are needed"), "{trouble}");
    rig.world.away.lock().expect("away").clear();
    rig.run_for(100_000);
    assert_eq!(first.members.nodes().expect("nodes").spread.trouble, "");
    rig.check_whole(&first);
    rig.check(&first);
}

/// A store moves so slowly that the move would go on for days.
fn slow_drain(seed: u64) -> (Rig, First) {
    let (rig, first) = spread(Rig::of(seed, 3, 3, 1));
    drop(first);
    // Without sessions.
    let first = rig.start().expect("start");
    rig.run_for(5000);
    rig.sim.block_on(first.spread.drain_node("node-1", Some(DrainRate(1)), true)).expect("drain");
    rig.run_for(20_000);
    assert!(first.members.nodes().expect("nodes").spread.moving.is_some());
    let config = first.core.maps.config().expect("config");
    assert!(config.through_first.is_empty(), "programs go through the first node for as long as the copy takes");
    (rig, first)
}

#[test]
fn a_move_makes_way_for_a_removal_and_begins_anew() {
    let (mut rig, first) = slow_drain(40);
    let begun = rig.sim.now();
    let removed = rig.sim.block_on(first.spread.remove_node("node-3", Removal::default()));
    assert!(removed.is_ok(), "{removed:?}");
    assert!(rig.sim.now() - begun < Duration::from_secs(5), "it waits for {:?}", rig.sim.now() - begun);
    rig.sim.block_on(first.spread.drain_node("node-1", Some(DrainRate::default()), true)).expect("drain");
    rig.run_for(30_000);
    assert_eq!(rig.places(), [0, 2, 0]);
    rig.write(&first, 10);
    rig.check_whole(&first);
}

/// The long part of the move is over, and a node does not learn the maps.
#[test]
fn a_move_that_waits_for_sessions_makes_way_too() {
    let (mut rig, first) = spread(Rig::of(42, 3, 3, 1));
    drop(first);
    let first = rig.start().expect("start");
    rig.run_for(5000);
    let session = rig.hello(&first, 1);
    rig.sim.block_on(first.spread.drain_node("node-1", Some(DrainRate::default()), true)).expect("drain");
    let renew = |first: &First, count, knows| {
        for _ in 0..count {
            rig.renew(first, 1, session, knows);
            rig.run_for(1000);
        }
    };
    renew(&first, 15, false);
    let waits = || !first.core.maps.config().expect("config").through_first.is_empty();
    assert!(waits());
    let begun = rig.sim.now();
    let removed = rig.sim.block_on(first.spread.remove_node("node-3", Removal::default()));
    assert!(removed.is_ok(), "{removed:?}");
    assert!(rig.sim.now() - begun < Duration::from_secs(5), "it waits for {:?}", rig.sim.now() - begun);
    renew(&first, 40, true);
    assert!(!waits());
    assert_eq!(rig.places(), [0, 2, 0]);
    rig.write(&first, 10);
    rig.check_whole(&first);
}

#[test]
fn a_move_makes_way_for_a_store_that_is_made_anew() {
    let (mut rig, first) = slow_drain(41);
    replace_disk(&rig);
    rig.hello(&first, 2);
    rig.write(&first, 30);
    rig.run_for(100_000);
    assert_eq!(rig.places(), [0, 2, 1]);
    rig.check_whole(&first);
    rig.check_without(&first, 0);
}
