//! What goes wrong with stores: at most as many at a time as there are parity fragments, and never another before those were healed.

use host::SplitMix64;
use host::sim::{SimDisk, Snapshot};

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
    /// The disk takes nothing more for a while.
    Full,
    /// Not there at the next start.
    Missing,
    /// As it was a while ago, from the next start on.
    Stale,
    /// Empty from the next start on.
    Wiped,
}

const ALL: [Fault; 9] = [
    Fault::Offline,
    Fault::Hang,
    Fault::FailWrites,
    Fault::FailSyncs,
    Fault::Rot,
    Fault::Full,
    Fault::Missing,
    Fault::Stale,
    Fault::Wiped,
];

/// A store with a fault.
pub struct Bad {
    /// Which store.
    pub store: usize,
    /// What it has.
    pub fault: Fault,
    snapshot: Option<Snapshot>,
}

/// The faults of one stretch of a run, from the first to the healing of all.
#[derive(Default)]
pub struct Episode {
    /// The stores that are not as they should be.
    pub bad: Vec<Bad>,
}

impl Episode {
    /// Faults of up to `count_max` stores.
    pub fn new(random: &SplitMix64, disks: &[SimDisk], count_max: u64) -> Self {
        let count = 1 + random.below(count_max);
        let mut bad: Vec<Bad> = Vec::new();
        while (bad.len() as u64) < count {
            let store = random.below(disks.len() as u64) as usize;
            if bad.iter().all(|b| b.store != store) {
                let fault = ALL[random.below(ALL.len() as u64) as usize];
                let snapshot = (fault == Fault::Stale).then(|| disks[store].snapshot());
                bad.push(Bad { store, fault, snapshot });
            }
        }
        Episode { bad }
    }

    /// While all machines are down, before the start of one.
    pub fn before_start(&mut self, random: &SplitMix64, disks: &[SimDisk]) {
        for bad in &mut self.bad {
            match bad.fault {
                // It happens once; the new disk is none of the best either.
                Fault::Wiped if random.chance(1, 2) => {
                    disks[bad.store].wipe();
                    bad.fault = if random.chance(1, 2) { Fault::Rot } else { Fault::FailWrites };
                }
                Fault::Stale => {
                    if let Some(snapshot) = bad.snapshot.take() {
                        disks[bad.store].restore(&snapshot);
                    }
                }
                _ => {}
            }
        }
    }

    /// True if the store is to be left out at a start.
    pub fn is_missing(&self, store: usize) -> bool {
        self.bad.iter().any(|b| b.store == store && b.fault == Fault::Missing)
    }

    /// True if what a store has may be other than it should be, which only a scrub finds.
    pub fn has_rotted(&self) -> bool {
        self.bad.iter().any(|b| b.fault == Fault::Rot)
    }

    /// Something happens while the file system runs. `false`: there was nothing to happen.
    pub fn strike(&self, random: &SplitMix64, disks: &[SimDisk]) -> bool {
        if self.bad.is_empty() {
            return false;
        }
        let bad = &self.bad[random.below(self.bad.len() as u64) as usize];
        let disk = &disks[bad.store];
        match bad.fault {
            Fault::Offline => disk.offline(random.chance(2, 3)),
            Fault::Hang => disk.hang(random.chance(1, 2)),
            Fault::FailWrites => disk.fail_next_writes(1 + random.below(3) as u32),
            Fault::FailSyncs => disk.fail_next_syncs(1 + random.below(3) as u32),
            Fault::Rot => drop(disk.rot("fragments", 0..u64::MAX, 1 + random.below(200) as u32)),
            Fault::Full => disk.set_capacity(if random.chance(2, 3) { 0 } else { DISK_BYTES }),
            Fault::Missing | Fault::Stale | Fault::Wiped => {}
        }
        true
    }

    /// Ends all faults, while all machines are down. What they did to the stores' contents is for a scrub to repair.
    pub fn end(&mut self, disks: &[SimDisk]) {
        for bad in std::mem::take(&mut self.bad) {
            let disk = &disks[bad.store];
            disk.offline(false);
            disk.hang(false);
            disk.fail_next_writes(0);
            disk.fail_next_syncs(0);
            disk.set_capacity(DISK_BYTES);
            if bad.fault == Fault::FailSyncs {
                // What readers see of a failed sync may never be durable, and no scrub can tell; a restart of the store's machine can.
                disk.power_loss();
            }
        }
    }
}

/// What befalls the consensus folder between two runs of the file system. It holds nothing that the stores cannot give back, so
/// this may happen at any time, whatever faults the stores have.
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
