//! What goes wrong with stores: at most as many at a time as there are parity fragments, and never
//! another before those were healed.

use crate::node::{Node, Weather};
use crate::remote::Remote;
use cluster::Place;
use host::SplitMix64;
use host::sim::{Machine, SimDisk, Snapshot};
use std::sync::Arc;
use std::time::Duration;

/// A store: a disk of the file system's machine, or one of a machine of its own.
pub struct Store {
    /// Its disk.
    pub disk: SimDisk,
    /// The machine of its own.
    pub node: Option<Arc<Node>>,
}

impl Store {
    /// The store as roles on `on` have it.
    pub fn place(&self, on: &Machine) -> Place {
        match &self.node {
            Some(node) => Place::Remote(Remote::new(node.clone(), on.clone())),
            None => self.disk.mount(on).into(),
        }
    }

    /// Has something done to the disk that nobody uses meanwhile.
    pub fn replace(&self, change: impl FnOnce(&SimDisk)) {
        if let Some(node) = &self.node {
            node.crash();
        }
        change(&self.disk);
    }
}

/// What happens to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every operation fails for a while.
    Offline,
    /// Operations do not end for a while.
    Hang,
    /// Some writes fail.
    FailWrites,
    /// Some syncs fail.
    FailSyncs,
    /// Bits of fragments flip.
    Rot,
    /// Bits of checkpoints flip, so that the store may not open any more.
    RotCheckpoints,
    /// The disk takes nothing more for a while.
    Full,
    /// Not there at the next start; a store elsewhere may appear later.
    Missing,
    /// As it was a while ago, from the next start on; a store elsewhere may be set back while the
    /// file system runs.
    Stale,
    /// Empty from the next start on, or while the file system runs.
    Wiped,
    /// Its link is cut for a while.
    Cut,
    /// Its link is slow, and loses messages, for a while.
    Lossy,
    /// Its machine crashes, and is started again.
    Crash,
}

const ANYWHERE: [Fault; 10] = [
    Fault::Offline,
    Fault::Hang,
    Fault::FailWrites,
    Fault::FailSyncs,
    Fault::Rot,
    Fault::RotCheckpoints,
    Fault::Full,
    Fault::Missing,
    Fault::Stale,
    Fault::Wiped,
];
/// Of stores on machines of their own.
const ELSEWHERE: [Fault; 3] = [Fault::Cut, Fault::Lossy, Fault::Crash];
const CHECKPOINTS: [&str; 2] = ["checkpoint-a", "checkpoint-b"];

/// A store with a fault.
pub struct Bad {
    /// Which store.
    pub store: usize,
    /// What it has.
    pub fault: Fault,
    snapshot: Option<Snapshot>,
    /// The file system has run since the snapshot.
    is_old: bool,
}

/// The faults of one stretch of a run, from the first to the healing of all.
#[derive(Default)]
pub struct Episode {
    /// The stores that are not as they should be.
    pub bad: Vec<Bad>,
}

fn any(random: &SplitMix64, of: &[Fault]) -> Fault {
    of[random.below(of.len() as u64) as usize]
}

impl Episode {
    /// Faults of up to `count_max` stores.
    pub fn new(random: &SplitMix64, stores: &[Store], count_max: u64) -> Self {
        let count = 1 + random.below(count_max);
        let mut bad: Vec<Bad> = Vec::new();
        while (bad.len() as u64) < count {
            let store = random.below(stores.len() as u64) as usize;
            if bad.iter().all(|b| b.store != store) {
                let elsewhere = stores[store].node.is_some() && random.chance(1, 2);
                let fault = any(random, if elsewhere { &ELSEWHERE } else { &ANYWHERE });
                let snapshot = (fault == Fault::Stale).then(|| stores[store].disk.snapshot());
                bad.push(Bad { store, fault, snapshot, is_old: false });
            }
        }
        Episode { bad }
    }

    /// Before the start of a file system, while none runs.
    pub fn before_start(&mut self, random: &SplitMix64, stores: &[Store]) {
        for bad in &mut self.bad {
            let store = &stores[bad.store];
            match bad.fault {
                // It happens once; the new disk is none of the best either.
                Fault::Wiped if random.chance(1, 2) => {
                    store.replace(SimDisk::wipe);
                    bad.fault = if random.chance(1, 2) { Fault::Rot } else { Fault::FailWrites };
                }
                // Not at once: something must have happened since the snapshot.
                Fault::Stale if random.chance(1, 2) => {
                    if bad.is_old
                        && let Some(snapshot) = bad.snapshot.take()
                    {
                        store.replace(|disk| disk.restore(&snapshot));
                    }
                    bad.is_old = true;
                }
                Fault::RotCheckpoints => store.replace(|disk| rot_checkpoints(random, disk)),
                Fault::Missing => {
                    if let Some(node) = &store.node {
                        node.crash();
                    }
                }
                _ => {}
            }
        }
    }

    /// True if the store is to be left out at a start.
    pub fn is_missing(&self, store: usize) -> bool {
        self.has(store, Fault::Missing)
    }

    /// True if what a store has may be other than it should be, which only a scrub finds.
    pub fn has_rotted(&self) -> bool {
        self.bad.iter().any(|b| matches!(b.fault, Fault::Rot | Fault::RotCheckpoints))
    }

    /// True if there is something about the store.
    pub fn is_bad(&self, store: usize) -> bool {
        self.bad.iter().any(|b| b.store == store)
    }

    /// True if it is this.
    pub fn has(&self, store: usize, fault: Fault) -> bool {
        self.bad.iter().any(|b| b.store == store && b.fault == fault)
    }

    /// Something happens while the file system runs. `false`: there was nothing to happen.
    pub fn strike(&self, random: &SplitMix64, stores: &[Store]) -> bool {
        if self.bad.is_empty() {
            return false;
        }
        let bad = &self.bad[random.below(self.bad.len() as u64) as usize];
        let store = &stores[bad.store];
        let disk = &store.disk;
        // What has a bad disk may be hard to reach besides.
        if let Some(node) = &store.node
            && (ELSEWHERE.contains(&bad.fault) || random.chance(1, 3))
        {
            let fault = if ELSEWHERE.contains(&bad.fault) { bad.fault } else { any(random, &ELSEWHERE) };
            disturb(random, node, fault);
            return true;
        }
        match (bad.fault, &store.node) {
            (Fault::Offline, _) => disk.offline(random.chance(2, 3)),
            (Fault::Hang, _) => disk.hang(random.chance(1, 2)),
            (Fault::FailWrites, _) => disk.fail_next_writes(1 + random.below(3) as u32),
            (Fault::FailSyncs, _) => disk.fail_next_syncs(1 + random.below(3) as u32),
            (Fault::Rot, _) => drop(disk.rot("fragments", 0..u64::MAX, 1 + random.below(200) as u32)),
            (Fault::RotCheckpoints, _) => rot_checkpoints(random, disk),
            (Fault::Full, _) => disk.set_capacity(if random.chance(2, 3) { 0 } else { DISK_BYTES }),
            (Fault::Missing, Some(node)) if random.chance(1, 3) => node.start(),
            (Fault::Stale, Some(node)) if random.chance(1, 3) => {
                if let Some(snapshot) = &bad.snapshot {
                    store.replace(|disk| disk.restore(snapshot));
                    node.start();
                }
            }
            (Fault::Wiped, Some(node)) if random.chance(1, 3) => {
                store.replace(SimDisk::wipe);
                node.start();
            }
            _ => {}
        }
        true
    }

    /// Ends all faults, while no file system runs. What they did to the stores' contents is for a
    /// scrub to repair. Machines that have to be started again are down.
    pub fn end(&mut self, stores: &[Store]) {
        for bad in std::mem::take(&mut self.bad) {
            let Store { disk, node } = &stores[bad.store];
            disk.offline(false);
            disk.hang(false);
            disk.fail_next_writes(0);
            disk.fail_next_syncs(0);
            disk.set_capacity(DISK_BYTES);
            if let Some(node) = node {
                node.set_weather(Weather::default());
                node.crash_after(u64::MAX);
                if !ELSEWHERE.contains(&bad.fault) && bad.fault != Fault::Missing {
                    // A store that has seen its disk fail takes nothing more.
                    node.crash();
                }
            }
            if bad.fault == Fault::FailSyncs {
                // What readers see of a failed sync may never be durable, and no scrub can tell; a
                // restart of the store's machine can.
                disk.power_loss();
            }
        }
    }
}

/// One of the faults of stores elsewhere, or its end.
fn disturb(random: &SplitMix64, node: &Node, fault: Fault) {
    let goes_on = random.chance(2, 3);
    match fault {
        Fault::Cut => node.set_weather(Weather { cut: goes_on, ..Weather::default() }),
        Fault::Lossy if goes_on => node.set_weather(Weather {
            cut: false,
            lost: random.below(300),
            lag: Duration::from_millis(random.below(1 << random.below(14))),
        }),
        Fault::Lossy => node.set_weather(Weather::default()),
        _ => match random.below(4) {
            0 => node.crash(),
            1 => node.crash_after(1 + random.below(500)),
            2 => node.power_loss(),
            _ => node.start(),
        },
    }
}

/// Of one checkpoint or both, anywhere or in the heads, which are what tells that it is there.
pub fn rot_checkpoints(random: &SplitMix64, disk: &SimDisk) {
    let end = if random.chance(1, 2) { u64::MAX } else { HEADS_LEN };
    let both = random.chance(1, 2);
    let first = random.below(2) as usize;
    for name in &CHECKPOINTS[if both { 0..2 } else { first..first + 1 }] {
        disk.rot(name, 0..end, 1 + random.below(100) as u32);
    }
}

/// Bytes of a checkpoint file before its body.
const HEADS_LEN: u64 = 8192;

/// What befalls the consensus folder between two runs of the file system. It holds nothing that the
/// stores cannot give back, so this may happen at any time, whatever faults the stores have.
#[derive(Default)]
pub struct Consensus {
    backup: Option<Snapshot>,
}

impl Consensus {
    /// Does something to the folder, or nothing; tells what.
    pub fn before_start(&mut self, random: &SplitMix64, disk: &SimDisk) -> Option<&'static str> {
        match random.below(12) {
            0 => {
                disk.wipe();
                Some("deleted")
            }
            1 => {
                for name in consensus::files::NAMES {
                    disk.rot(name, 0..u64::MAX, 1 + random.below(300) as u32);
                }
                Some("rotten")
            }
            2 => {
                self.backup = Some(disk.snapshot());
                None
            }
            3 => {
                disk.restore(&self.backup.take()?);
                Some("as it was a while ago")
            }
            _ => None,
        }
    }
}

/// Size of each disk; the stores use less.
pub const DISK_BYTES: u64 = 1 << 30;
