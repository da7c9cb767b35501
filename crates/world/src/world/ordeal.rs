//! Ordeals: more stores than parity makes up for are taken away, emptied, set back, or rot, while
//! no file system runs.
//!
//! The file system may then refuse to start. It must not destroy anything: when the stores are as
//! they were again, except one that may be lost for good, everything synced must be there. One case
//! is only counted: fragments of the newest segments whose contents have rotted, and which no
//! checkpoint lists, look like writes that a crash has torn.

use super::{End, MapEpochs, World, failed};
use crate::faults::{Store, rot_checkpoints};
use crate::oracle::{Oracle, new_model};
use host::SplitMix64;
use host::sim::{DiskSnapshot, Machine, SimDisk};

/// Harm to one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    /// It is missing.
    Away,
    /// It is empty.
    Wiped,
    /// It is as it was some time ago.
    Old,
    /// Bits of fragments have flipped.
    Rot,
    /// Bits of its checkpoints have flipped.
    RotCheckpoints,
}

/// Copies of stores' disks, made now and then.
#[derive(Default)]
pub(super) struct Copies {
    copies: Vec<Option<DiskSnapshot>>,
    /// They were all made while the file system was at work, and it ended cleanly since.
    are_marked: bool,
}

impl Copies {
    fn of(&self, store: usize) -> Option<&DiskSnapshot> {
        self.copies.get(store)?.as_ref()
    }

    /// Copies of some stores that are at work.
    pub(super) fn at_work(random: &SplitMix64, stores: &[Store]) -> Copies {
        let mut copies = Copies::default();
        copies.copy(random, stores);
        Copies { are_marked: true, ..copies }
    }

    /// Copies some stores, while no file system runs.
    pub(super) fn copy(&mut self, random: &SplitMix64, stores: &[Store]) {
        self.are_marked = false;
        self.copies.resize_with(stores.len(), || None);
        for (store, copy) in stores.iter().zip(&mut self.copies) {
            if random.chance(1, 3) {
                *copy = Some(store.disk.snapshot());
            }
        }
    }
}

impl World {
    /// Harms more stores than parity makes up for, starts the file system once or twice, and puts
    /// the stores back.
    pub(super) async fn ordeal(&mut self) -> Result<(), End> {
        self.nodes().for_each(|node| node.crash());
        let before: Vec<DiskSnapshot> = self.stores.iter().map(|store| store.disk.snapshot()).collect();
        let harmed = self.choose_harmed();
        self.say(|| format!("ordeal: {harmed:?}"));
        self.outcome.ordeals += 1;
        let missing: Vec<usize> =
            harmed.iter().filter(|(_, harm)| *harm == Harm::Away).map(|(store, _)| *store).collect();
        for (store, harm) in &harmed {
            let random = SplitMix64::new(self.random.below(u64::MAX));
            self.stores[*store].replace(|disk| match harm {
                Harm::Away => {}
                Harm::Wiped => disk.wipe(),
                Harm::Old => drop(self.copies.of(*store).map(|copy| disk.restore(copy))),
                Harm::Rot => drop(disk.rot("fragments", 0..u64::MAX, 1 + random.below(3000) as u32)),
                Harm::RotCheckpoints => rot_checkpoints(&random, disk),
            });
        }
        // Starts do not wait for stores that may not open.
        self.rotten = harmed.iter().map(|(store, _)| *store).collect();
        let mut started = false;
        // The other stores know that these are older.
        let are_known = self.copies.are_marked
            && harmed.len() < self.stores.len()
            && harmed.iter().all(|(_, harm)| *harm == Harm::Old);
        for _ in 0..1 + self.random.below(2) {
            let on = self.sim.machine("one");
            if self.options.crashes && self.random.chance(1, 4) {
                on.crash_after(1 + self.random.below(3000));
            }
            match self.start_without(&on, &missing).await {
                // It has discarded what the copies lack.
                Ok(_) if are_known => {
                    return Err(failed("a start takes older copies for good stores"));
                }
                Ok(_) => {
                    started = true;
                    self.outcome.ordeals_survived += 1;
                }
                Err(End::Refused(what)) => {
                    self.say(|| format!("refused: {what}"));
                    self.outcome.ordeals_refused += 1;
                }
                Err(End::Crashed) => {}
                Err(failed @ End::Failed(_)) => return Err(failed),
            }
            // Before the file system does any work: that would go to the stores that are here now.
            on.crash();
        }
        for (store, _) in &harmed {
            self.stores[*store].replace(|disk| disk.restore(&before[*store]));
        }
        self.rotten.clear();
        let lost = self.random.chance(1, 3).then(|| harmed[0].0);
        if let Some(lost) = lost {
            self.say(|| format!("store {lost} does not come back"));
            self.stores[lost].replace(SimDisk::wipe);
        }
        let is_set_back = |(store, harm): &&(usize, Harm)| *harm != Harm::Away || lost == Some(*store);
        let set_back = harmed.iter().filter(is_set_back).count();
        let mut on = self.sim.machine("one");
        let mut running = self.start_without(&on, &[]).await;
        let mut vouches = false;
        if let Err(End::Refused(what)) = &running
            && set_back > usize::from(self.create.parity)
        {
            // The stores that were set back may have taken part in the earlier start and do not
            // know it. Only the operator can tell that the stores have everything.
            self.say(|| format!("the operator vouches for the stores: {what}"));
            self.outcome.ordeals_vouched += 1;
            vouches = true;
            on.crash();
            on = self.sim.machine("one");
            self.accepts_loss = true;
            running = self.start_without(&on, &[]).await;
            self.accepts_loss = false;
        }
        let running = match running {
            // The earlier start wrote segments to stores that are set back now, and sealed the log
            // behind these segments.
            Err(End::Refused(what)) if started && set_back > usize::from(self.create.parity) => {
                self.say(|| format!("set back for good, all begins anew: {what}"));
                self.outcome.ordeals_stuck += 1;
                self.begin_anew(&on);
                return Ok(());
            }
            Err(End::Refused(what)) => return Err(failed(format!("the stores are back, and yet: {what}"))),
            running => running?,
        };
        let is_rotten = harmed.iter().any(|(_, harm)| *harm == Harm::Rot);
        match self.settle(&running).await {
            // Fragments of the newest segment may be rotten, or torn by a crash: the start could
            // not tell.
            Err(End::Failed(_)) if started && is_rotten => {
                self.say(|| "the rot was not noticed; all begins anew".into());
                self.outcome.ordeals_unnoticed += 1;
                self.begin_anew(&on);
                return Ok(());
            }
            // The same as a refusal: the earlier start had sealed the log behind segments that are
            // set back, and the operator has given them up.
            Err(End::Failed(what)) if started && vouches => {
                self.say(|| format!("set back for good, all begins anew: {what}"));
                self.outcome.ordeals_stuck += 1;
                self.begin_anew(&on);
                return Ok(());
            }
            settled => settled?,
        }
        if set_back > 0 {
            self.scrub(&running).await?;
        }
        self.stop(&running).await?;
        on.crash();
        Ok(())
    }

    /// The next start makes another file system.
    fn begin_anew(&mut self, on: &Machine) {
        self.created = false;
        *self.oracle.lock() = Oracle::new(&new_model(self.create.block_size, self.root_mode));
        self.copies = Copies::default();
        let mut epochs = self.map_epochs.lock();
        *epochs = MapEpochs { known: 1, asked: 1, change_count: epochs.change_count };
        on.crash();
    }

    /// Chooses more stores than there are parity fragments, in any order.
    fn choose_harmed(&self) -> Vec<(usize, Harm)> {
        let (count, parity) = (self.stores.len() as u64, u64::from(self.create.parity));
        let wanted = parity + 1 + self.random.below(count - parity);
        let copied: Vec<usize> = (0..self.stores.len()).filter(|store| self.copies.of(*store).is_some()).collect();
        if copied.len() as u64 > parity && self.random.chance(1, 2) {
            // Some are put back from copies, and the others are as they were.
            return copied.into_iter().map(|store| (store, Harm::Old)).collect();
        }
        // Often all get the same harm, as when a cable, a controller or a backup is to blame.
        let alike = self.random.chance(2, 3).then(|| self.random.below(5));
        let mut harmed: Vec<(usize, Harm)> = Vec::new();
        while (harmed.len() as u64) < wanted {
            let store = self.random.below(count) as usize;
            if harmed.iter().any(|(other, _)| *other == store) {
                continue;
            }
            let harm = match alike.unwrap_or_else(|| self.random.below(5)) {
                0 => Harm::Away,
                1 => Harm::Wiped,
                2 if self.copies.of(store).is_some() => Harm::Old,
                2 => Harm::Away,
                3 => Harm::Rot,
                _ => Harm::RotCheckpoints,
            };
            harmed.push((store, harm));
        }
        harmed
    }
}
