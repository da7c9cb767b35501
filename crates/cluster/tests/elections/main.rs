//! Elections in simulated time: nodes are killed, stopped and cut off while programs work on all of
//! them. Voters are lost for good, and users make a node into the first one. No synced file is
//! lost, a lock lets one program in at a time, and what a program sees is never older than what
//! others were told.

mod net;
mod recovered;
mod rig;
mod work;

use cluster::removal::Removal;
use host::SplitMix64;
use rig::{LEASE, Rig, nodes};
use std::collections::BTreeSet;
use std::time::Duration;
use types::NodeId;
use work::Work;

/// Nodes that join in all, at most.
const NODES_MAX: usize = 7;
/// Seconds that a first node which a user had made may take to learn whether it is a member.
const ELECTED: u64 = 60;
/// How long all may take after everything was mended.
const MENDED: Duration = Duration::from_secs(90);

/// What happened.
#[derive(Default, Debug)]
struct Happened {
    led: u64,
    failed: u64,
    kills: u64,
    leader_kills: u64,
    pauses: u64,
    cuts: u64,
    drains: u64,
    joins: u64,
    removals: u64,
    /// How many nodes were removed, and how many of them had stores.
    removed: u64,
    made_anew: u64,
    /// How often the disks of a node were replaced.
    replaced: u64,
    /// How often a user made a node into the first one, and how often in place of another such one.
    recovered: u64,
    recovered_again: u64,
    /// How often such a node became a member, since another one was elected.
    demoted: u64,
    /// How often a store was seen at another node than before.
    moves: u64,
    /// How often a voter was opened again after its disk had failed.
    reopened: u64,
    synced: u64,
    counted: u64,
    unknown: u64,
}

fn nodes_work_while_leaders_change(seed: u64, happened: &mut Happened) {
    let rig = Rig::new(seed);
    let random = SplitMix64::new(seed);
    let mut work = Work::new();
    nodes().for_each(|node| work.start(&rig, node));
    work.begin(&rig);
    if random.chance(1, 2) {
        rig.invite();
    }
    let mut down: BTreeSet<NodeId> = BTreeSet::new();
    let mut paused: BTreeSet<NodeId> = BTreeSet::new();
    let node = |random: &SplitMix64| {
        let all = rig.nodes();
        all[random.below(all.len() as u64) as usize]
    };
    let mut places = rig.places();
    for _ in 0..10 {
        rig.run_for(Duration::from_millis(random.below(12_000)));
        let now = rig.places().or(places.clone());
        happened.moves += u64::from(now != places);
        places = now;
        if let Some((first, member)) = rig.demote() {
            happened.demoted += 1;
            paused.remove(&first);
            down.remove(&first);
            work.start(&rig, member);
        }
        for new in rig.newcomers() {
            happened.joins += 1;
            work.start(&rig, new);
        }
        let leader = rig.leader();
        let victim = if random.chance(1, 2) { leader.unwrap_or(node(&random)) } else { node(&random) };
        let what = random.below(16);
        println!("{:?}: {leader:?} leads, {what} for {victim}", rig.net.sim.now());
        match what {
            0 | 1 => {
                happened.kills += 1;
                happened.leader_kills += u64::from(leader == Some(victim));
                rig.pause(victim, false);
                paused.remove(&victim);
                rig.kill(victim);
                if random.chance(1, 2) {
                    rig.power_loss(victim);
                }
                if random.chance(1, 3) {
                    rig.run_for(Duration::from_millis(random.below(1500)));
                    work.start(&rig, victim);
                } else {
                    down.insert(victim);
                }
            }
            2 => {
                happened.pauses += 1;
                rig.pause(victim, true);
                paused.insert(victim);
            }
            3 => {
                // A short stop.
                happened.pauses += 1;
                rig.pause(victim, true);
                rig.run_for(Duration::from_millis(random.below(6000)));
                rig.pause(victim, false);
                paused.remove(&victim);
            }
            4 => {
                happened.cuts += 1;
                let (way, others) = (random.below(3), rig.nodes().into_iter().filter(|other| *other != victim));
                for other in others.filter(|_| random.chance(2, 3)) {
                    rig.net.cut(victim, other, way != 0);
                    rig.net.cut(other, victim, way != 1);
                }
            }
            5 | 6 => happened.drains += u64::from(rig.drain(victim, random.chance(2, 3))),
            7 if !down.contains(&victim) && rig.replace_disks(victim) => {
                happened.replaced += 1;
                paused.remove(&victim);
                rig.run_for(Duration::from_millis(random.below(10_000)));
                work.start(&rig, victim);
            }
            15 => {
                let former = rig.recovered();
                if let Some(nodes) = rig.recover(&random) {
                    happened.recovered += 1;
                    happened.recovered_again += u64::from(former.is_some());
                    println!("{:?} are killed, and {} is made into the first node", &nodes[1..], nodes[0]);
                    former.iter().chain(&nodes).for_each(|node| {
                        rig.pause(*node, false);
                        paused.remove(node);
                        down.remove(node);
                    });
                    for node in nodes {
                        rig.run_for(Duration::from_millis(random.below(6000)));
                        work.start(&rig, node);
                    }
                }
            }
            14 => rig.fail_voter_disk(victim, random.chance(1, 2)),
            8 | 9 if rig.nodes().len() < NODES_MAX => drop(rig.invite()),
            10 | 11 if rig.members().is_some_and(|members| members.len() > usize::from(rig::NODES)) => {
                happened.removals += 1;
                let has_stores = rig.places().is_none_or(|places| places.values().any(|at| *at == victim));
                // Stores are lost with the node.
                let is_dead = has_stores && rig.replace_disks(victim);
                rig.kill(victim);
                paused.remove(&victim);
                down.insert(victim);
                rig.run_for(rig::LEASE);
                for _ in 0..3 {
                    rig.run_for(Duration::from_millis(random.below(8000)));
                    if rig.members().is_some_and(|members| members.contains(&victim)) {
                        rig.remove(victim, Removal { is_dead, accepts_loss: false });
                    }
                }
            }
            _ => {
                rig.net.mend();
                for node in std::mem::take(&mut paused) {
                    rig.pause(node, false);
                }
                for node in std::mem::take(&mut down) {
                    work.start(&rig, node);
                }
            }
        }
    }
    rig.net.mend();
    paused.iter().for_each(|node| rig.pause(*node, false));
    down.iter().for_each(|node| work.start(&rig, *node));
    for _ in 0..ELECTED {
        rig.run_for(Duration::from_secs(1));
        if let Some((_, member)) = rig.demote() {
            happened.demoted += 1;
            work.start(&rig, member);
        }
        if rig.recovered().is_none_or(|first| rig.leader() == Some(first)) {
            break;
        }
    }
    work.end(&rig, seed, MENDED);
    happened.led += rig.led.load(std::sync::atomic::Ordering::SeqCst);
    happened.failed += rig.failed.load(std::sync::atomic::Ordering::SeqCst);
    happened.reopened += rig.reopened.load(std::sync::atomic::Ordering::SeqCst);
    let fates = rig.fates.lock();
    happened.removed += fates.removed.len() as u64;
    happened.made_anew += fates.made_anew;
    work.seen(happened);
}

#[test]
fn sim_nodes_lose_nothing_while_leaders_change() {
    let from = std::env::var("STARLING_SEED").map_or(0, |from| from.parse().expect("a seed"));
    let count = std::env::var("STARLING_SEEDS").map_or(40, |count| count.parse().expect("a number"));
    let mut happened = Happened::default();
    for seed in from..from + count {
        println!("seed {seed}");
        nodes_work_while_leaders_change(seed, &mut happened);
    }
    println!("{happened:?}");
    let Happened { led, kills, leader_kills, pauses, cuts, synced, counted, .. } = happened;
    let Happened { joins, removed, made_anew, drains, moves, replaced, reopened, .. } = happened;
    let Happened { recovered, recovered_again, demoted, .. } = happened;
    assert!(
        count < 40
            || led > 40 && kills > 30 && leader_kills > 15 && pauses > 30 && cuts > 13 && joins > 20 && removed > 0,
        "too little happened"
    );
    assert!(count < 40 || reopened > 1, "no disk of a voter fails");
    assert!(count < 40 || drains > 10 && moves > 1 && replaced > 1, "stores stay too much where they are");
    assert!(count < 40 || recovered > 3, "too few nodes are made into the first one");
    assert!(count < 400 || recovered_again > 0, "no node that was made into the first one is lost");
    assert!(count < 400 || demoted > 0, "no other one is elected then");
    assert!(count < 400 || made_anew > 0, "no node is lost with its stores");
    assert!(synced > 20 * count && counted > 20 * count, "programs do too little");
}

/// Its first looks at the space take longer than a look may take.
#[test]
fn regression_a_node_that_joins_while_a_store_is_slow_has_space() {
    let rig = Rig::new(1);
    let mut work = Work::new();
    nodes().for_each(|node| work.start(&rig, node));
    work.begin(&rig);
    let leader = rig.leader().expect("a leader");
    let mut others = nodes().filter(|node| *node != leader);
    let (slow, joins) = (others.next().expect("a node"), others.next().expect("a node"));
    rig.net.slow(slow, Duration::from_millis(600));
    let member = rig.start(joins).expect("a member");
    let machine = rig.machine(joins);
    let mut made = machine.run(async move {
        member.ready().await.expect("a session");
        work::make(&*member.file_system(), "new").await
    });
    rig.run_for(Duration::from_secs(30));
    rig.net.mend();
    assert_eq!(work::in_time(&rig, &mut made), Some(Ok(Ok(()))), "{}", rig.shown());
}

/// The former leader is cut off, and its own programs still have its lease. Another leader gives
/// others what they hold only when that is over.
#[test]
fn a_node_that_is_cut_off_shows_nothing_old_while_others_go_on() {
    for seed in 0..8 {
        let rig = Rig::new(seed);
        let work = Work::new();
        let members: Vec<_> = nodes().map(|node| (node, rig.start(node).expect("a member"))).collect();
        work.make_counter(&rig, &members[0].1);
        // None is elected in the place of the only voter while others are becoming voters.
        rig.run_for(Duration::from_secs(10));
        let leader = rig.leader().expect("a leader");
        let here = members.iter().find(|(node, _)| *node == leader).expect("a node").1.file_system();
        let there = members.iter().find(|(node, _)| *node != leader).expect("a node").1.file_system();
        let open = work::in_time(&rig, work::look(&*here, None)).expect("in time").expect("the counter").1;
        rig.cut_off(leader);
        // So that nothing but the lease holds others up.
        *rig.net.store_time_max.lock() = Some(Duration::from_millis(500));
        let cut_at = rig.net.sim.now();
        let raised = work::in_time(&rig, work::raise(&*there, 7));
        assert_eq!(raised, Some(Ok(())), "seed {seed}: {}", rig.shown());
        println!("seed {seed}: raised after {:?}", rig.net.sim.now() - cut_at);
        let seen = rig.machine(leader).run(async move { work::look(&*here, Some(open)).await });
        let seen = rig.net.sim.block_on(host::timeout(&*rig.net.sim.machine("dice").host().clock, LEASE, seen));
        assert!(!matches!(seen, Ok(Ok(Ok((0, _))))), "seed {seed}: what was there before is seen");
    }
}
