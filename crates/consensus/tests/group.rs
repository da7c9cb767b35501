//! A group of voters on simulated machines, with crashes, losses of power, cut and lossy networks,
//! messages that come late and twice, voters that lose their folders, and changes of who votes.
//!
//! What must hold: a change that was acknowledged is never lost, one that was refused never
//! appears, and there is one order of changes for all. No two voters hold a lease at one time, and
//! the one that holds it knows all changes that were acknowledged before. When all is mended, a
//! leader is there again.

use bytes::Bytes;
use consensus::network::{PeerError, Peers};
use consensus::wire::{Addressee, VoterReply, VoterRequest};
use consensus::{Consensus, FIRST_VOTER, GroupTiming, ProposeError, VoterSettings, VotersError};
use host::sim::{Machine, Sim, SimDisk};
use host::{Host, SplitMix64, timeout};
use openraft::Vote;
use openraft::raft::VoteRequest;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::{BoxFuture, FsUuid, Maps};

const FS: FsUuid = FsUuid([7; 16]);

const TIMING: GroupTiming = GroupTiming {
    heartbeat: Duration::from_millis(500),
    election_min: Duration::from_millis(1500),
    election_max: Duration::from_millis(2500),
};
/// A group whose machines and network are whole has a leader after this time.
const MENDED: Duration = Duration::from_secs(60);

/// Maps that are the list of all changes so far, each a number.
fn changes(maps: &Maps) -> Vec<u64> {
    maps.bytes.chunks(8).map(|number| u64::from_le_bytes(number.try_into().expect("whole numbers"))).collect()
}

/// The network, the voters that run, and what was seen.
#[derive(Default)]
struct World {
    /// By id. A voter that has crashed is not there.
    running: BTreeMap<u64, Arc<Consensus>>,
    /// Voters of which the first hears nothing of the second.
    cut: BTreeSet<(u64, u64)>,
    /// Voters that hear of no entries for their logs.
    deaf: BTreeSet<u64>,
    /// No request comes twice, and voters do not ask by themselves whether they lead.
    is_calm: bool,
    /// Each message takes so much longer.
    lag: Duration,
    /// One of so many messages is lost; 0: none.
    lost_one_of: u64,
    /// Changes that were acknowledged, in order.
    acknowledged: Vec<u64>,
    /// Changes that were refused: nothing was to be changed.
    refused: BTreeSet<u64>,
    /// Who holds a lease, and until when.
    leases: BTreeMap<u64, Duration>,
    /// When each life of a voter last asked whether it leads, and heard so, or was alone.
    asked: BTreeMap<u64, Duration>,
    life_count: u64,
    /// Leaders that knew until when those before them have asked.
    known_count: u64,
    last_change: u64,
    unknown_count: u64,
    lease_count: u64,
    /// Voters that were opened again after their disks had failed.
    reopened_count: u64,
}

type Shared = Arc<Mutex<World>>;

/// A voter's way to the others.
struct Wires {
    me: u64,
    /// Of this voter's machine.
    host: Host,
    /// Carries copies of messages on, when this machine no longer waits.
    between: Host,
    world: Shared,
}

impl Wires {
    fn is_lost(&self, from: u64, to: u64) -> bool {
        let world = self.world.lock();
        let is_lost = world.lost_one_of > 0 && self.between.random.next_u64().is_multiple_of(world.lost_one_of);
        is_lost || world.cut.contains(&(to, from))
    }
}

fn has_entries(request: &[u8]) -> bool {
    match VoterRequest::decode(request).expect("a request").1 {
        VoterRequest::Vote(_) | VoterRequest::Canvass(_) => false,
        VoterRequest::Append(append) => !append.entries.is_empty(),
        VoterRequest::Snapshot(..) => true,
    }
}

/// A request that arrives.
async fn arrives(world: &Shared, voter: u64, request: &[u8]) -> Option<Bytes> {
    let there = {
        let world = world.lock();
        if world.deaf.contains(&voter) && has_entries(request) {
            return None;
        }
        world.running.get(&voter).cloned()?
    };
    Some(there.answer(request).await.expect("a request"))
}

impl Peers for Wires {
    fn ask(&self, voter: u64, node: &str, request: Bytes) -> BoxFuture<Result<Bytes, PeerError>> {
        assert_eq!(node, format!("node {voter}"));
        let (random, me, world) = (&self.between.random, self.me, self.world.clone());
        let millis = |below: u64| Duration::from_millis(random.next_u64() % below);
        let lag = world.lock().lag;
        let (there, back) = (millis(20) + lag, millis(20) + lag);
        if random.next_u64().is_multiple_of(16) && !world.lock().is_calm {
            let (between, world, request, late) = (self.between.clone(), world.clone(), request.clone(), millis(9000));
            self.between.tasks.spawn(Box::pin(async move {
                between.clock.sleep(late).await;
                arrives(&world, voter, &request).await;
            }));
        }
        let (goes_lost, comes_lost) = (self.is_lost(me, voter), self.is_lost(voter, me));
        let clock = self.host.clock.clone();
        Box::pin(async move {
            clock.sleep(there).await;
            if goes_lost {
                return std::future::pending().await;
            }
            let answer = arrives(&world, voter, &request).await;
            clock.sleep(back).await;
            if comes_lost {
                return std::future::pending().await;
            }
            answer.ok_or_else(|| PeerError { voter, why: "nothing listens there".to_string() })
        })
    }
}

/// A machine that has a voter's folder.
struct Seat {
    voter: u64,
    disk: SimDisk,
    /// The folder was made: from then on, the voter is opened.
    is_made: Arc<AtomicBool>,
}

impl Seat {
    fn new(sim: &Sim, voter: u64) -> Seat {
        Seat { voter, disk: SimDisk::new(sim, 1 << 30), is_made: Arc::default() }
    }
}

struct Group {
    sim: Sim,
    random: SplitMix64,
    world: Shared,
    seats: Vec<Seat>,
    last_voter: u64,
}

fn name(voter: u64) -> String {
    format!("node {voter}")
}

impl Group {
    fn new(seed: u64, seat_count: u64) -> Group {
        let sim = Sim::new(seed);
        let seats: Vec<Seat> = (0..seat_count).map(|at| Seat::new(&sim, FIRST_VOTER + at)).collect();
        let last_voter = seat_count;
        let group = Group { random: SplitMix64::new(seed), world: Shared::default(), seats, sim, last_voter };
        for at in 0..group.seats.len() {
            group.start(at);
        }
        group
    }

    fn machine(&self, at: usize) -> Machine {
        self.sim.machine(&format!("machine {at}"))
    }

    /// The disk of a machine is whole again.
    fn heal_disk(&self, at: usize) {
        self.seats[at].disk.fail_next_writes(0);
        self.seats[at].disk.fail_next_syncs(0);
    }

    /// Starts the voter of a machine. Its disk is whole.
    fn start(&self, at: usize) {
        self.heal_disk(at);
        let (machine, voter) = (self.machine(at), self.seats[at].voter);
        let (host, disk) = (machine.host(), self.seats[at].disk.mount(&machine));
        let between = self.sim.machine("network").host();
        let wires = Wires { me: voter, host: host.clone(), between, world: self.world.clone() };
        let settings = VoterSettings { voter, node: name(voter), peers: Arc::new(wires), timing: Some(TIMING) };
        let is_made = self.seats[at].is_made.clone();
        let first = Maps { epoch: 1, bytes: Bytes::new() };
        let (world, tasks) = (self.world.clone(), host.tasks.clone());
        host.tasks.clone().spawn(Box::pin(async move {
            let opened = match is_made.load(Relaxed) {
                true => Consensus::open(&host, &disk, &settings).await,
                false if voter == FIRST_VOTER => Consensus::create(&host, &disk, &settings, FS, first).await,
                false => Consensus::join(&host, &disk, &settings, FS).await,
            };
            let mut consensus = Arc::new(opened.unwrap_or_else(|error| panic!("voter {voter}: {error}")));
            is_made.store(true, Relaxed);
            loop {
                let life = {
                    let mut world = world.lock();
                    world.running.insert(voter, consensus.clone());
                    world.life_count += 1;
                    (voter, world.life_count)
                };
                for _ in 0..2 {
                    let (host, world, consensus) = (host.clone(), world.clone(), consensus.clone());
                    let keeps = async move { keeps_lease(&host, &world, life, &consensus).await };
                    tasks.spawn(Box::pin(keeps));
                }
                // Its disk fails.
                consensus.leadership_until(|_| false).await;
                consensus = loop {
                    host.clock.sleep(Duration::from_millis(host.random.next_u64() % 3000)).await;
                    if let Ok(again) = consensus.open_again().await {
                        break Arc::new(again);
                    }
                };
                world.lock().reopened_count += 1;
            }
        }));
    }

    /// A process dies; `power`: its machine does.
    fn crash(&self, at: usize, power: bool) {
        let voter = self.seats[at].voter;
        self.machine(at).crash();
        let mut world = self.world.lock();
        world.running.remove(&voter);
        world.leases.remove(&voter);
        drop(world);
        if power {
            self.seats[at].disk.power_loss();
        }
    }

    /// A machine that has crashed makes another voter, which is not one of the group yet.
    fn renew(&mut self, at: usize) {
        self.last_voter += 1;
        self.seats[at] = Seat::new(&self.sim, self.last_voter);
        self.start(at);
    }

    fn is_running(&self, at: usize) -> bool {
        self.world.lock().running.contains_key(&self.seats[at].voter)
    }

    /// The voter that leads. An earlier leader may not have heard of it yet.
    fn leader(&self) -> Option<Arc<Consensus>> {
        let world = self.world.lock();
        let leaders = world.running.values().filter(|voter| voter.leadership().is_ready);
        leaders.max_by_key(|voter| voter.leadership().term).cloned()
    }

    fn leads(&self, at: usize) -> bool {
        let leader = self.leader();
        let there = self.world.lock().running.get(&self.seats[at].voter).cloned();
        leader.zip(there).is_some_and(|(leader, there)| Arc::ptr_eq(&leader, &there))
    }

    fn run_for(&self, time: Duration) {
        self.sim.run_for(time);
    }

    /// Mends everything, and waits until some voter leads and holds a lease.
    fn mend(&self) {
        let mut world = self.world.lock();
        world.cut.clear();
        world.lost_one_of = 0;
        drop(world);
        for at in 0..self.seats.len() {
            self.heal_disk(at);
            if !self.is_running(at) {
                self.machine(at).crash();
                self.start(at);
            }
        }
        let until = self.sim.now() + MENDED;
        while self.leases().is_empty() || self.leader().is_none() {
            assert!(
                self.sim.now() < until,
                "seed {}: no leader {MENDED:?} after all was mended",
                self.sim.now().as_nanos()
            );
            self.run_for(Duration::from_millis(100));
        }
    }

    /// Makes changes by way of a leader.
    fn changes(&self, leader: &Consensus, count: u64) {
        for _ in 0..count {
            let before = leader.maps();
            let bytes = [&before.bytes[..], &before.epoch.to_le_bytes()].concat();
            let maps = Maps { epoch: before.epoch + 1, bytes: bytes.into() };
            self.sim.block_on(leader.propose(before.epoch, maps)).expect("a majority answers");
        }
    }

    /// Begins a change by way of a voter. Its outcome, once there is one, is in what this returns.
    fn begin(&self, voter: &Arc<Consensus>, number: u64) -> Arc<Mutex<Option<Result<(), ProposeError>>>> {
        let (host, voter) = (self.sim.machine("network").host(), voter.clone());
        let outcome = Arc::new(Mutex::new(None));
        let there = outcome.clone();
        host.tasks.spawn(Box::pin(async move {
            let maps = Maps { epoch: voter.maps().epoch + 1, bytes: number.to_le_bytes().to_vec().into() };
            *there.lock() = Some(voter.propose(maps.epoch - 1, maps).await);
        }));
        outcome
    }

    fn leases(&self) -> Vec<u64> {
        let (now, world) = (self.sim.now(), self.world.lock());
        world.leases.iter().filter(|(_, until)| **until > now).map(|(voter, _)| *voter).collect()
    }

    /// Makes these machines' voters the voters of the group. It gives up after a while.
    fn set_voters(&self, seats: &[usize]) -> bool {
        let voters: BTreeMap<u64, String> =
            seats.iter().map(|at| self.seats[*at].voter).map(|voter| (voter, name(voter))).collect();
        let Some(leader) = self.leader() else { return false };
        let host = self.sim.machine("network").host();
        let setting = timeout(host.clock.as_ref(), Duration::from_secs(20), async { leader.set_voters(&voters).await });
        self.sim.block_on(setting).is_ok_and(|set| set.is_ok())
    }
}

/// Renews a voter's lease as long as it leads.
async fn keeps_lease(host: &Host, world: &Shared, (voter, life): (u64, u64), consensus: &Consensus) {
    while !consensus.leadership().has_stopped {
        let is_calm = world.lock().is_calm;
        if !is_calm && consensus.leadership().is_ready {
            let known = consensus.begin_to_lead().await;
            let mut world = world.lock();
            if let Some(known) = known {
                world.known_count += 1;
                let later = world.asked.iter().find(|(other, asked)| **other != life && **asked > known);
                assert_eq!(later, None, "voter {voter} believes that none asked after {known:?}");
            }
            if consensus.is_alone() {
                world.asked.insert(life, host.clock.now());
            }
        }
        if !is_calm && let Ok(until) = consensus.still_leads().await {
            let now = host.clock.now();
            if until > now {
                let mut world = world.lock();
                world.lease_count += 1;
                let lease = world.leases.entry(voter).or_default();
                *lease = until.max(*lease);
                let asked = world.asked.entry(life).or_default();
                *asked = (*asked).max(until - TIMING.lease());
                let holders: Vec<_> = world.leases.iter().filter(|(_, until)| **until > now).collect();
                assert_eq!(holders.len(), 1, "one voter holds a lease at a time: {holders:?} at {now:?}");
                let known = changes(&consensus.maps());
                let missing: Vec<_> = world.acknowledged.iter().filter(|change| !known.contains(change)).collect();
                assert!(missing.is_empty(), "voter {voter} leads, and misses {missing:?}");
            }
        }
        host.clock.sleep(Duration::from_millis(200 + host.random.next_u64() % 200)).await;
    }
}

/// Proposes changes to those who say that they lead, in turn.
async fn works(host: Host, world: Shared) {
    loop {
        host.clock.sleep(Duration::from_millis(host.random.next_u64() % 700)).await;
        let voters: Vec<_> = world.lock().running.values().cloned().collect();
        let Some(voter) = voters.get(host.random.next_u64() as usize % voters.len().max(1)) else { continue };
        let (before, number) = (voter.maps(), {
            let mut world = world.lock();
            world.last_change += 1;
            world.last_change
        });
        let bytes = [&before.bytes[..], &number.to_le_bytes()].concat();
        let maps = Maps { epoch: before.epoch + 1, bytes: bytes.into() };
        let patience_max = if host.random.next_u64().is_multiple_of(3) { 60_000 } else { 4000 };
        let patience = Duration::from_millis(200 + host.random.next_u64() % patience_max);
        let proposed = timeout(host.clock.as_ref(), patience, async { voter.propose(before.epoch, maps).await }).await;
        let mut world = world.lock();
        match proposed {
            Ok(Ok(())) => world.acknowledged.push(number),
            Ok(Err(
                ProposeError::NotLeader
                | ProposeError::NoMajority(_)
                | ProposeError::Stale { .. }
                | ProposeError::TooLong(_),
            )) => {
                world.refused.insert(number);
            }
            Ok(Err(ProposeError::Unknown | ProposeError::Stopped(_))) | Err(_) => world.unknown_count += 1,
        }
    }
}

/// What happened in all runs, to see that it was enough.
#[derive(Default, Debug)]
struct Seen {
    acknowledged: usize,
    unknown: u64,
    leases: u64,
    known: u64,
    crashes: usize,
    lost_folders: usize,
    reopened: u64,
    votes_changed: usize,
    terms: u64,
}

fn runs(seed: u64, seen: &mut Seen) {
    let mut group = Group::new(seed, 5);
    group.run_for(Duration::from_secs(1));
    assert!(group.set_voters(&[0, 1, 2]), "seed {seed}: three voters");
    let mut voting = vec![0, 1, 2];
    for _ in 0..2 {
        let (host, world) = (group.sim.machine("network").host(), group.world.clone());
        host.tasks.clone().spawn(Box::pin(works(host, world)));
    }
    let mut lost_one_of = 0;
    for _ in 0..80 {
        group.run_for(Duration::from_millis(group.random.below(4000)));
        let at = group.random.below(5) as usize;
        match group.random.below(14) {
            0..3 => {
                seen.crashes += 1;
                group.crash(at, group.random.chance(1, 2));
            }
            3..6 => {
                for at in 0..5 {
                    if !group.is_running(at) {
                        group.machine(at).crash();
                        group.start(at);
                    }
                }
            }
            6 => {
                // One is cut off, in one direction or in both.
                let (voter, way) = (group.seats[at].voter, group.random.below(3));
                let others = group.seats.iter().map(|seat| seat.voter).filter(|other| *other != voter);
                let pairs = others.flat_map(|other| match way {
                    0 => vec![(voter, other)],
                    1 => vec![(other, voter)],
                    _ => vec![(voter, other), (other, voter)],
                });
                let pairs: Vec<_> = pairs.collect();
                group.world.lock().cut.extend(pairs);
            }
            7 => {
                // Two no longer hear each other.
                let [one, two] = [at, group.random.below(5) as usize].map(|at| group.seats[at].voter);
                group.world.lock().cut.extend([(one, two), (two, one)]);
            }
            8 => group.world.lock().cut.clear(),
            9 => {
                lost_one_of = if lost_one_of == 0 { 2 + group.random.below(8) } else { 0 };
                group.world.lock().lost_one_of = lost_one_of;
            }
            10 if group.is_running(at) => {
                let count = 1 + group.random.below(4) as u32;
                match group.random.chance(1, 2) {
                    true => group.seats[at].disk.fail_next_writes(count),
                    false => group.seats[at].disk.fail_next_syncs(count),
                }
            }
            11 => {
                // A voter loses its folder. It comes back under a new id, and the group is told. A
                // group that loses a majority is lost.
                if voting == [at] {
                    continue;
                }
                group.mend();
                lost_one_of = 0;
                group.crash(at, true);
                group.renew(at);
                // Another leader may have to be elected first.
                let until = group.sim.now() + MENDED;
                while voting.contains(&at) && !group.set_voters(&voting) {
                    assert!(group.sim.now() < until, "seed {seed}: a voter is not replaced");
                    group.run_for(Duration::from_millis(200));
                }
                seen.lost_folders += 1;
            }
            10 => {}
            _ => {
                // Other voters; the change is begun again until it is done.
                let count = [1, 3, 3, 5][group.random.below(4) as usize];
                group.mend();
                lost_one_of = 0;
                let until = group.sim.now() + MENDED;
                let others = loop {
                    assert!(group.sim.now() < until, "seed {seed}: no {count} voters");
                    let mut seats = vec![0, 1, 2, 3, 4];
                    while seats.len() > count {
                        let at = group.random.below(seats.len() as u64) as usize;
                        // The leader must stay.
                        if !group.leads(seats[at]) {
                            seats.remove(at);
                        }
                    }
                    if group.set_voters(&seats) {
                        break seats;
                    }
                    group.run_for(Duration::from_millis(200));
                };
                // Those that no longer vote are not told so, and would go on to ask for votes.
                for at in std::mem::replace(&mut voting, others) {
                    if !voting.contains(&at) {
                        group.crash(at, true);
                        group.renew(at);
                    }
                }
                seen.votes_changed += 1;
            }
        }
    }
    group.mend();
    group.run_for(Duration::from_secs(10));
    let leader = group.leader().unwrap_or_else(|| panic!("seed {seed}: a leader"));
    let (agreed, world) = (changes(&leader.maps()), group.world.lock());
    let kept: Vec<u64> = agreed.iter().copied().filter(|change| world.acknowledged.contains(change)).collect();
    let mut acknowledged = world.acknowledged.clone();
    acknowledged.sort_by_key(|change| agreed.iter().position(|agreed| agreed == change));
    assert_eq!(kept, acknowledged, "seed {seed}: what was acknowledged is there once");
    let wrong: Vec<_> = agreed.iter().filter(|change| world.refused.contains(change)).collect();
    assert!(wrong.is_empty(), "seed {seed}: {wrong:?} were refused, and are there");
    seen.acknowledged += acknowledged.len();
    seen.unknown += world.unknown_count;
    seen.leases += world.lease_count;
    seen.known += world.known_count;
    seen.reopened += world.reopened_count;
    seen.terms += leader.status().term;
}

#[test]
fn sim_a_group_loses_nothing_and_never_has_two_leaders_at_a_time() {
    let count = std::env::var("STARLING_SEEDS").ok().map_or(60, |count| count.parse().expect("a number"));
    let mut seen = Seen::default();
    for seed in 0..count {
        runs(seed, &mut seen);
    }
    println!("{count} seeds: {seen:?}");
    let Seen { acknowledged, unknown, leases, known, crashes, lost_folders, reopened, votes_changed, terms } = seen;
    assert!(acknowledged as u64 > 20 * count && unknown > count && leases > 100 * count && known > count / 2);
    assert!(reopened > count, "few voters are opened again: {reopened}");
    assert!(
        crashes as u64 > 3 * count && lost_folders as u64 > count && votes_changed as u64 > count && terms > 2 * count
    );
}

/// The leader has a change that it and one other voter took into their logs. A new leader that does
/// not have it makes the first one drop it, and dies before anything is agreed on. The other voter
/// that has the change is elected.
#[test]
fn regression_a_change_that_a_leader_drops_may_still_be_agreed_on() {
    let group = Group::new(1, 5);
    group.world.lock().is_calm = true;
    group.run_for(Duration::from_secs(1));
    assert!(group.set_voters(&[0, 1, 2, 3, 4]), "five voters");
    let voters: BTreeSet<u64> = group.seats.iter().map(|seat| seat.voter).collect();
    let at = |voter: u64| group.seats.iter().position(|seat| seat.voter == voter).expect("a seat");
    let (first, other) = (1, 2);
    let rest: Vec<u64> = voters.iter().copied().filter(|voter| ![first, other].contains(voter)).collect();
    let parts = rest.iter().flat_map(|voter| [(*voter, first), (first, *voter), (*voter, other), (other, *voter)]);
    group.world.lock().cut.extend(parts);
    group.world.lock().deaf.extend(&rest);
    let leader = group.leader().expect("a leader");
    let proposed = group.begin(&leader, 1);
    let leads = |voter: &u64| {
        let world = group.world.lock();
        let there = world.running[voter].leadership();
        there.leader == Some(*voter)
    };
    let mut patience = 600;
    let second = loop {
        group.run_for(Duration::from_millis(100));
        patience -= 1;
        assert!(patience > 0, "another leader");
        if let Some(second) = rest.iter().copied().find(leads) {
            break second;
        }
    };
    assert!(proposed.lock().is_none(), "no majority has the change");
    group.world.lock().cut.retain(|(one, two)| ![*one, *two].contains(&first));
    group.run_for(Duration::from_secs(3));
    let outcome = proposed.lock().take();
    assert!(matches!(outcome, Some(Err(ProposeError::Unknown))), "{outcome:?}");
    for voter in [first, second] {
        group.crash(at(voter), true);
    }
    let mut world = group.world.lock();
    world.cut.clear();
    world.deaf.clear();
    drop(world);
    group.run_for(MENDED);
    let leader = group.leader().expect("a leader");
    assert_eq!(changes(&leader.maps()), [1], "the change is there");
}

/// A voter that is to be added does not answer. The others go on, and may give it up.
#[test]
fn regression_a_new_voter_that_does_not_answer_changes_nothing() {
    for before in [vec![0], vec![0, 1, 2]] {
        let group = Group::new(1, 4);
        group.run_for(Duration::from_secs(1));
        assert!(group.set_voters(&before));
        group.crash(3, true);
        let after: Vec<usize> = before.iter().copied().chain([3]).collect();
        assert!(!group.set_voters(&after), "it is not told what was agreed on");
        group.run_for(Duration::from_secs(10));
        let leader = group.leader().expect("a leader");
        assert!(group.sim.block_on(leader.still_leads()).is_ok());
        assert_eq!(leader.voters().len(), before.len());
        assert!(group.set_voters(&before));
        group.start(3);
        group.run_for(Duration::from_secs(1));
        assert!(group.set_voters(&after), "now it answers");
    }
}

/// A machine crashes at any moment while its voter gets a snapshot in place of entries.
#[test]
fn crash_while_a_snapshot_comes_leaves_the_voter_whole() {
    let mut crash_count = 0;
    for polls in 1..150 {
        let group = Group::new(polls, 3);
        group.run_for(Duration::from_secs(1));
        assert!(group.set_voters(&[0, 1, 2]));
        group.crash(2, false);
        let leader = group.leader().expect("a leader");
        group.changes(&leader, 40);
        group.machine(2).crash_after(polls);
        group.start(2);
        group.run_for(Duration::from_secs(5));
        if !group.machine(2).is_up() || !group.is_running(2) {
            crash_count += 1;
        }
        group.crash(2, polls % 2 == 0);
        group.start(2);
        group.changes(&leader, 3);
        group.run_for(Duration::from_secs(20));
        let there = group.world.lock().running.get(&3).cloned().expect("it started");
        assert_eq!(there.maps(), leader.maps(), "after {polls} polls");
    }
    assert!(crash_count > 20, "only {crash_count} crashes");
}

/// A leader with a change that nobody else has is cut off, and the others go on until it can only
/// be told by a snapshot. Who waits for the change hears that its fate is unknown.
#[test]
fn regression_a_change_that_a_snapshot_replaces_is_not_waited_for_ever() {
    let group = Group::new(1, 3);
    group.world.lock().is_calm = true;
    group.run_for(Duration::from_secs(1));
    assert!(group.set_voters(&[0, 1, 2]));
    let first = group.leader().expect("a leader");
    group.world.lock().cut.extend([(1, 2), (2, 1), (1, 3), (3, 1)]);
    let proposed = group.begin(&first, 1);
    group.run_for(MENDED);
    let second = group.leader().expect("another leader");
    group.changes(&second, 40);
    group.run_for(Duration::from_secs(5));
    assert!(proposed.lock().is_none(), "the first leader has heard of nothing");
    // Its log does not grow for ever, either.
    let begins = |number| {
        let outcome = group.begin(&first, number);
        group.run_for(Duration::from_millis(100));
        outcome
    };
    let more: Vec<_> = (2..40).map(begins).collect();
    let more_count = more.iter().filter(|outcome| outcome.lock().is_none()).count();
    let last = more.last().expect("many").lock().take();
    assert!(more_count > 1 && matches!(last, Some(Err(ProposeError::NoMajority(_)))), "{more_count}, {last:?}");
    group.world.lock().cut.clear();
    group.run_for(MENDED);
    assert!(matches!(*proposed.lock(), Some(Err(ProposeError::Unknown))), "{:?}", proposed.lock());
}

/// A leader asked twice whether it leads. The answers to the first question came last, and the
/// leader kept to the end of that lease only.
#[test]
fn regression_an_earlier_question_does_not_shorten_a_lease() {
    let group = Group::new(1, 3);
    group.world.lock().is_calm = true;
    group.run_for(Duration::from_secs(1));
    assert!(group.set_voters(&[0, 1, 2]));
    let (host, leader) = (group.sim.machine("network").host(), group.leader().expect("a leader"));
    let asks = || {
        let (leader, until) = (leader.clone(), Arc::new(Mutex::new(None)));
        let there = until.clone();
        host.tasks.spawn(Box::pin(async move { *there.lock() = leader.still_leads().await.ok() }));
        until
    };
    group.world.lock().lag = Duration::from_millis(200);
    let earlier = asks();
    group.run_for(Duration::from_millis(150));
    group.world.lock().lag = Duration::ZERO;
    let later = asks();
    group.run_for(Duration::from_millis(400));
    let (earlier, later) = (earlier.lock().expect("a lease"), later.lock().expect("a lease"));
    assert!(earlier < later);
    group.run_for(later - group.sim.now() - Duration::from_millis(50));
    assert!(group.sim.now() > earlier);
    let candidate = VoteRequest { vote: Vote::new(leader.leadership().term + 1, 2), last_log_id: None };
    let request = VoterRequest::Vote(candidate).encode(Addressee { fs: FS, voter: FIRST_VOTER });
    let reply = group.sim.block_on(leader.answer(&request)).expect("a request");
    assert!(matches!(VoterReply::decode(&reply), Ok(VoterReply::Failed)), "it keeps its promise");
}

/// The leader made another voter the only one. That elected itself at once, while the former leader
/// counted on the lease that it had given.
#[test]
fn regression_a_leader_stays_one_of_the_voters() {
    let group = Group::new(1, 3);
    group.run_for(Duration::from_secs(1));
    assert!(group.set_voters(&[0, 1, 2]));
    let leader = group.leader().expect("a leader");
    let others: BTreeMap<u64, String> = leader.voters().into_iter().filter(|(voter, _)| *voter != 1).collect();
    assert_eq!(group.sim.block_on(leader.set_voters(&others)), Err(VotersError::WithoutLeader));
    assert_eq!(leader.voters().len(), 3);
}

/// A voter that hears of no leader asked for votes in ever higher terms. When it came back, its
/// term ended that of a leader which all others heard.
#[test]
fn regression_a_voter_that_was_cut_off_does_not_end_the_term_of_a_leader() {
    for seed in 0..10 {
        let group = Group::new(seed, 3);
        group.run_for(Duration::from_secs(1));
        assert!(group.set_voters(&[0, 1, 2]), "seed {seed}: three voters");
        group.mend();
        let leader = group.leader().expect("a leader");
        let (term, id) = (leader.leadership().term, leader.leadership().leader.expect("a leader"));
        let away = group.seats.iter().map(|seat| seat.voter).find(|voter| *voter != id).expect("a voter");
        for voter in (FIRST_VOTER..=3).filter(|voter| *voter != away) {
            group.world.lock().cut.extend([(voter, away), (away, voter)]);
        }
        group.run_for(Duration::from_secs(30));
        group.world.lock().cut.clear();
        group.run_for(Duration::from_secs(10));
        let now = leader.leadership();
        assert!(now.is_ready && now.term == term, "seed {seed}: {now:?}");
    }
}

/// However long an election takes, a new leader knows when the last one was heard. Before some of
/// these elections, one of the voters hears nothing of the leader, and the other one does.
#[test]
fn a_new_leader_knows_when_the_last_one_was_heard() {
    let mut told_more = 0;
    for seed in 0..40 {
        let group = Group::new(seed, 3);
        group.world.lock().is_calm = true;
        group.run_for(Duration::from_secs(1));
        assert!(group.set_voters(&[0, 1, 2]), "seed {seed}: three voters");
        group.run_for(Duration::from_secs(10));
        let former = group.leader().expect("a leader");
        let id = former.leadership().leader.expect("it leads");
        let others: Vec<u64> = (FIRST_VOTER..=3).filter(|voter| *voter != id).collect();
        if seed % 2 == 0 {
            group.world.lock().cut.insert((others[0], id));
            group.run_for(Duration::from_secs(1));
        }
        let asked_at = group.sim.now();
        group.sim.block_on(former.still_leads()).expect("another one hears it");
        let heard_by = group.sim.now() + Duration::from_millis(300);
        for voter in &others {
            group.world.lock().cut.extend([(id, *voter), (*voter, id)]);
        }
        let elected = || {
            let running = &group.world.lock().running;
            others.iter().map(|voter| running[voter].clone()).find(|voter| voter.leadership().is_ready)
        };
        let next = loop {
            group.run_for(Duration::from_millis(20));
            if let Some(next) = elected() {
                break next;
            }
            assert!(group.sim.now() < heard_by + MENDED, "seed {seed}: none is elected");
        };
        let known = group.sim.block_on(next.begin_to_lead()).expect("another one led");
        let range = asked_at..heard_by;
        assert!(range.contains(&known), "seed {seed}: {known:?}, and it was heard in {range:?}");
        told_more += usize::from(group.sim.now() - TIMING.lease() > heard_by);
    }
    assert!(told_more > 5, "without the votes, {told_more} of the leaders know less");
}
