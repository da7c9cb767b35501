//! Faults of stores: at most as many stores at a time as there are parity fragments, and no others
//! before these are healed.

use crate::node::{Node, Weather};
use crate::remote::Remote;
use cluster::StorePlace;
use host::SplitMix64;
use host::sim::{DiskSnapshot, Machine, SimDisk};
use std::sync::Arc;
use std::time::Duration;

/// A store: a disk of the file system's machine, or of a machine of its own.
pub struct Store {
    /// Its disk.
    pub disk: SimDisk,
    /// Its own machine, if it has one.
    pub node: Option<Arc<Node>>,
}

impl Store {
    /// The store as roles on `on` reach it.
    pub fn place(&self, on: &Machine) -> StorePlace {
        match &self.node {
            Some(node) => StorePlace::Remote(Remote::new(node.clone(), on.clone())),
            None => self.disk.mount(on).into(),
        }
    }

    /// Changes the disk while no process uses it.
    pub fn replace(&self, change: impl FnOnce(&SimDisk)) {
        if let Some(node) = &self.node {
            node.crash();
        }
        change(&self.disk);
    }
}

/// Faults of a store.
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
    /// Bits of checkpoints flip, so that the store may not open again.
    RotCheckpoints,
    /// The disk takes nothing more for a while.
    Full,
    /// It is missing at the next start; a store elsewhere may appear later.
    Missing,
    /// It is set back to an older state from the next start on; a store elsewhere may be set back
    /// while the file system runs.
    Stale,
    /// It is empty from the next start on, or becomes so while the file system runs.
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
/// Faults of stores on machines of their own.
const ELSEWHERE: [Fault; 3] = [Fault::Cut, Fault::Lossy, Fault::Crash];
/// Files of a store's checkpoints.
const CHECKPOINTS: [&str; 2] = ["checkpoint-a", "checkpoint-b"];

/// A store with a fault.
pub struct Bad {
    /// Which store.
    pub store: usize,
    /// Its fault.
    pub fault: Fault,
    snapshot: Option<DiskSnapshot>,
    /// The file system has run since the snapshot.
    is_old: bool,
}

/// The faults of one period of a run, from the first fault to the healing of all.
#[derive(Default)]
pub struct Episode {
    /// The stores with faults.
    pub bad: Vec<Bad>,
}

fn any(random: &SplitMix64, of: &[Fault]) -> Fault {
    of[random.below(of.len() as u64) as usize]
}

impl Episode {
    /// Chooses faults for up to `count_max` stores.
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

    /// Applies faults before the start of a file system, while none runs.
    pub fn before_start(&mut self, random: &SplitMix64, stores: &[Store]) {
        for bad in &mut self.bad {
            let store = &stores[bad.store];
            match bad.fault {
                // This happens once; the new disk has a fault too.
                Fault::Wiped if random.chance(1, 2) => {
                    store.replace(SimDisk::wipe);
                    bad.fault = if random.chance(1, 2) { Fault::Rot } else { Fault::FailWrites };
                }
                // Not at the first start: the file system must have run since the snapshot.
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

    /// True if a store's contents may have rotted, which only a scrub finds.
    pub fn has_rotted(&self) -> bool {
        self.bad.iter().any(|b| matches!(b.fault, Fault::Rot | Fault::RotCheckpoints))
    }

    /// True if the store has a fault.
    pub fn is_bad(&self, store: usize) -> bool {
        self.bad.iter().any(|b| b.store == store)
    }

    /// True if the store has this fault.
    pub fn has(&self, store: usize, fault: Fault) -> bool {
        self.bad.iter().any(|b| b.store == store && b.fault == fault)
    }

    /// Applies a fault while the file system runs. `false` if no store is to have one.
    pub fn strike(&self, random: &SplitMix64, stores: &[Store]) -> bool {
        if self.bad.is_empty() {
            return false;
        }
        let bad = &self.bad[random.below(self.bad.len() as u64) as usize];
        let store = &stores[bad.store];
        let disk = &store.disk;
        // A store with a bad disk may also be hard to reach.
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

    /// Ends all faults, while no file system runs. A scrub has to repair what they did to the
    /// stores' contents. Machines that have to be started again are down.
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
                    // A store takes no more changes after a failure of its disk, until it is
                    // started again.
                    node.crash();
                }
            }
            if bad.fault == Fault::FailSyncs {
                // Data that readers see after a failed sync may never become durable. No scrub can
                // tell; a restart of the store's machine can.
                disk.power_loss();
            }
        }
    }
}

/// Applies or ends one of the faults of stores on machines of their own.
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

/// Flips bits of one checkpoint or both: anywhere, or in the heads, without which a checkpoint does
/// not count.
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

/// Faults of the consensus folder between two runs of the file system. The stores can give back
/// everything in it, so these may happen at any time, with any faults of the stores.
#[derive(Default)]
pub struct Consensus {
    backup: Option<DiskSnapshot>,
}

impl Consensus {
    /// Applies a fault to the folder, or none; returns its name.
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

/// Size of each disk in bytes; the stores use less.
pub const DISK_BYTES: u64 = 1 << 30;
