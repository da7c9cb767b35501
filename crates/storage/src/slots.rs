//! Where fragments go: the allocator over the equal slots of the `fragments` file. Pure; it touches no disk.
//!
//! A slot is [`SLOT_LEN`] bytes, exactly what a full fragment takes. Smaller fragments are packed into **open** slots, one
//! after the other, each at a multiple of [`ALIGN`], so that writing one never touches a page that holds another.
//!
//! The life of a slot: *free*, then *reserved* (a durable checkpoint says that it may be written), *open* (partly filled),
//! *closed* (nothing more goes in), and, when its last fragment is released, *quarantined* until a checkpoint has recorded
//! that, then free again.
//!
//! Invariants:
//! - Only what the checkpoint in force lists in its **reservation** is written, so recovery needs to look nowhere else.
//! - Every fragment carries the sequence number of the checkpoint under which it was written (its *generation*). A
//!   checkpoint that was never durable was never written under, so what an earlier use of a slot left behind has another
//!   generation and cannot be taken for a fragment, and neither can what a crash tore.
//! - A slot is not written again while the checkpoint in force, which a crash would go back to, has a fragment in it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Fragments begin at multiples of this, in bytes.
pub const ALIGN: u32 = 4096;
/// Bytes of a slot: a header's page and the largest payload.
pub const SLOT_LEN: u32 = striped_log::fragment::FRAGMENT_LEN_MAX + ALIGN;
/// Open slots at a time. Several, so that fragments of more than half a slot do not waste the rest of each.
pub const OPEN_MAX: usize = 4;

/// Bytes that a fragment with `payload_len` bytes of payload takes in a slot, header and rounding included.
pub fn footprint(payload_len: u32) -> u32 {
    (striped_log::fragment::HEADER_LEN as u32 + payload_len).next_multiple_of(ALIGN)
}

/// Where a fragment's header begins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The slot.
    pub slot: u32,
    /// Byte offset in the slot, a multiple of [`ALIGN`].
    pub offset: u32,
}

impl Place {
    /// Byte offset in the `fragments` file.
    pub fn file_offset(&self) -> u64 {
        u64::from(self.slot) * u64::from(SLOT_LEN) + u64::from(self.offset)
    }
}

/// A part of a slot that may be written: from `start` to the slot's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserved {
    /// The slot.
    pub slot: u32,
    /// First byte that may be written, a multiple of [`ALIGN`].
    pub start: u32,
}

/// What the next checkpoint will say of slots; takes effect with [`Slots::adopt`], once that checkpoint is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Draft {
    /// What may be written until the checkpoint after it, in the order of use; at most one entry per slot.
    pub reservation: Vec<Reserved>,
    freed: usize,
    taken: Vec<u32>,
}

impl Draft {
    /// True when a fragment with this footprint could be written under this draft.
    pub fn fits(&self, footprint: u32) -> bool {
        self.reservation.iter().any(|r| SLOT_LEN - r.start >= footprint)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Free,
    Reserved,
    Open,
    Closed,
    Quarantined,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    usage: Use,
    live_count: u32,
    live_bytes: u32,
}

const FREE: Slot = Slot { usage: Use::Free, live_count: 0, live_bytes: 0 };

/// The allocator.
///
/// Writing: [`allocate`](Self::allocate) until it has no place, then [`draft`](Self::draft), write the draft's reservation
/// in a checkpoint, [`adopt`](Self::adopt), and go on. [`release`](Self::release) at any time.
#[derive(Debug)]
pub struct Slots {
    slots: Vec<Slot>,
    free: BTreeSet<u32>,
    /// In the order of being emptied.
    quarantined: Vec<u32>,
    reserved: VecDeque<u32>,
    /// Partly filled slots.
    open: Vec<Reserved>,
    /// False until the first checkpoint after a start: what is open may hold remains of this generation.
    in_force: bool,
    used_bytes: u64,
}

impl Slots {
    /// An allocator over `slot_count` slots of which `live` are the fragments there are, as place and footprint, and `partial`
    /// the slots with room after `start`. Nothing may be written before the first [`adopt`](Self::adopt). Fails, saying
    /// what is wrong, if that cannot be.
    pub fn recover(
        slot_count: u32,
        live: impl Iterator<Item = (Place, u32)>,
        partial: &[Reserved],
    ) -> Result<Slots, &'static str> {
        let mut slots = Slots {
            slots: vec![FREE; slot_count as usize],
            free: BTreeSet::new(),
            quarantined: Vec::new(),
            reserved: VecDeque::new(),
            open: Vec::new(),
            in_force: false,
            used_bytes: 0,
        };
        for (place, footprint) in live {
            let slot = slots.slots.get_mut(place.slot as usize).ok_or("a fragment is beyond the last slot")?;
            slot.usage = Use::Closed;
            slot.live_count += 1;
            slot.live_bytes = slot.live_bytes.saturating_add(footprint);
            if place.offset.saturating_add(footprint) > SLOT_LEN || slot.live_bytes > SLOT_LEN {
                return Err("a slot holds more than fits");
            }
            slots.used_bytes += u64::from(footprint);
        }
        for part in partial {
            let Some(slot) = slots.slots.get_mut(part.slot as usize) else { continue };
            if slot.usage == Use::Closed && part.start < SLOT_LEN && slots.open.len() < OPEN_MAX {
                slot.usage = Use::Open;
                slots.open.push(*part);
            }
        }
        let free = slots.slots.iter().enumerate().filter(|(_, slot)| slot.usage == Use::Free);
        slots.free = free.map(|(i, _)| i as u32).collect();
        Ok(slots)
    }

    /// Number of slots.
    pub fn count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Bytes taken by live fragments, headers and rounding included.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Live fragments in a slot.
    pub fn live_count(&self, slot: u32) -> usize {
        self.slots.get(slot as usize).map_or(0, |slot| slot.live_count as usize)
    }

    /// Slots that a draft could take, beyond those that are open or reserved already.
    pub fn available(&self) -> usize {
        self.free.len() + self.quarantined.len()
    }

    /// Slots that a put may still open before the next checkpoint.
    pub fn reserved_count(&self) -> usize {
        self.reserved.len()
    }

    /// Adds slots at the end.
    pub fn grow(&mut self, slot_count: u32) {
        let old = self.count();
        if slot_count > old {
            self.slots.resize(slot_count as usize, FREE);
            self.free.extend(old..slot_count);
        }
    }

    /// A place for a fragment: the tightest open slot, else the next reserved one. `None`: a checkpoint must come first.
    pub fn allocate(&mut self, footprint: u32) -> Option<Place> {
        if !self.in_force {
            return None;
        }
        let room = |part: &Reserved| SLOT_LEN - part.start;
        let tightest =
            (0..self.open.len()).filter(|&i| room(&self.open[i]) >= footprint).min_by_key(|&i| room(&self.open[i]));
        let i = match tightest {
            Some(i) => i,
            None => {
                let slot = self.reserved.pop_front()?;
                self.slots[slot as usize].usage = Use::Open;
                self.open.push(Reserved { slot, start: 0 });
                self.open.len() - 1
            }
        };
        let place = Place { slot: self.open[i].slot, offset: self.open[i].start };
        self.open[i].start += footprint;
        let slot = &mut self.slots[place.slot as usize];
        slot.live_count += 1;
        slot.live_bytes += footprint;
        self.used_bytes += u64::from(footprint);
        self.close_full();
        Some(place)
    }

    fn close_full(&mut self) {
        let mut closed: Vec<u32> =
            self.open.extract_if(.., |part| part.start >= SLOT_LEN).map(|part| part.slot).collect();
        if self.open.len() > OPEN_MAX
            && let Some(fullest) = (0..self.open.len()).max_by_key(|&i| self.open[i].start)
        {
            closed.push(self.open.remove(fullest).slot);
        }
        for slot in closed {
            self.slots[slot as usize].usage = Use::Closed;
            self.quarantine_if_empty(slot);
        }
    }

    fn quarantine_if_empty(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.usage == Use::Closed && slot.live_count == 0 {
            slot.usage = Use::Quarantined;
            self.quarantined.push(index);
        }
    }

    /// Gives back the place of a fragment that is forgotten, or was never written.
    pub fn release(&mut self, place: Place, footprint: u32) {
        let slot = &mut self.slots[place.slot as usize];
        debug_assert!(slot.live_count > 0 && slot.live_bytes >= footprint, "{place:?} released twice");
        slot.live_count -= 1;
        slot.live_bytes -= footprint;
        self.used_bytes -= u64::from(footprint);
        self.quarantine_if_empty(place.slot);
    }

    /// What a checkpoint of this instant may reserve: all that is open or reserved, and more slots until `target` are
    /// untouched, but never the last `keep` ones. What is quarantined now counts as free, since that checkpoint records it.
    pub fn draft(&self, target: usize, keep: usize) -> Draft {
        let taken: Vec<u32> = {
            let count = target.saturating_sub(self.reserved.len()).min(self.available().saturating_sub(keep));
            let mut candidates: Vec<u32> = self.quarantined.clone();
            candidates.extend(self.free.iter().take(count));
            candidates.sort_unstable();
            candidates.truncate(count);
            candidates
        };
        let untouched = self.reserved.iter().chain(&taken).map(|&slot| Reserved { slot, start: 0 });
        let reservation = self.open.iter().copied().chain(untouched).collect();
        Draft { reservation, freed: self.quarantined.len(), taken }
    }

    /// Puts a draft into force. The checkpoint that records it is durable, and nothing was allocated since it was drafted.
    pub fn adopt(&mut self, draft: Draft) {
        for slot in self.quarantined.drain(..draft.freed) {
            self.slots[slot as usize].usage = Use::Free;
            self.free.insert(slot);
        }
        for slot in draft.taken {
            self.free.remove(&slot);
            self.slots[slot as usize].usage = Use::Reserved;
            self.reserved.push_back(slot);
        }
        self.in_force = true;
    }

    /// Closed slots whose live fragments together fit into one slot, at least two of them, sparsest first; without those in
    /// `excluded`. Moving their fragments elsewhere gains a slot. Empty when nothing is to be gained.
    pub fn sparsest(&self, excluded: &BTreeSet<u32>) -> Vec<u32> {
        let mut by_live: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (i, slot) in self.slots.iter().enumerate() {
            if slot.usage == Use::Closed && !excluded.contains(&(i as u32)) {
                by_live.entry(slot.live_bytes).or_default().push(i as u32);
            }
        }
        let (mut victims, mut sum) = (Vec::new(), 0);
        for (live_bytes, slots) in by_live {
            for slot in slots {
                if sum + live_bytes > SLOT_LEN {
                    return if victims.len() < 2 { Vec::new() } else { victims };
                }
                sum += live_bytes;
                victims.push(slot);
            }
        }
        if victims.len() < 2 { Vec::new() } else { victims }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FULL: u32 = SLOT_LEN;

    fn fresh(count: u32, target: usize) -> Slots {
        let mut slots = Slots::recover(count, std::iter::empty(), &[]).unwrap();
        slots.adopt(slots.draft(target, 0));
        slots
    }

    #[test]
    fn nothing_is_written_before_a_checkpoint_is_in_force() {
        let mut slots = Slots::recover(4, std::iter::empty(), &[]).unwrap();
        assert_eq!(slots.allocate(4096), None);
        slots.adopt(slots.draft(1, 0));
        assert!(slots.allocate(4096).is_some());
    }

    #[test]
    fn a_full_fragment_takes_exactly_one_slot() {
        assert_eq!(footprint(striped_log::fragment::FRAGMENT_LEN_MAX), SLOT_LEN);
        let mut slots = fresh(2, 2);
        assert_eq!(slots.allocate(FULL), Some(Place { slot: 0, offset: 0 }));
        assert_eq!(slots.allocate(FULL), Some(Place { slot: 1, offset: 0 }));
        assert_eq!(slots.allocate(4096), None);
    }

    #[test]
    fn small_fragments_are_packed_and_go_to_the_tightest_open_slot() {
        let mut slots = fresh(8, 8);
        assert_eq!(slots.allocate(4096), Some(Place { slot: 0, offset: 0 }));
        assert_eq!(slots.allocate(8192), Some(Place { slot: 0, offset: 4096 }));
        assert_eq!(slots.allocate(FULL - 4096), Some(Place { slot: 1, offset: 0 }));
        assert_eq!(slots.allocate(4096), Some(Place { slot: 1, offset: FULL - 4096 }));
        assert_eq!(slots.allocate(4096), Some(Place { slot: 0, offset: 12288 }));
    }

    #[test]
    fn an_emptied_slot_is_not_reused_before_a_checkpoint_has_recorded_it() {
        let mut slots = fresh(2, 2);
        let place = slots.allocate(FULL).unwrap();
        slots.allocate(FULL).unwrap();
        slots.release(place, FULL);
        assert_eq!(slots.allocate(FULL), None);
        let draft = slots.draft(2, 0);
        assert_eq!(draft.reservation, [Reserved { slot: 0, start: 0 }]);
        slots.adopt(draft);
        assert_eq!(slots.allocate(FULL), Some(place));
    }

    #[test]
    fn what_is_emptied_between_draft_and_adoption_waits_for_the_next_checkpoint() {
        let mut slots = fresh(3, 3);
        let places: Vec<Place> = (0..3).map(|_| slots.allocate(FULL).unwrap()).collect();
        slots.release(places[0], FULL);
        let draft = slots.draft(3, 0);
        slots.release(places[1], FULL);
        slots.adopt(draft);
        assert_eq!(slots.allocate(FULL), Some(places[0]));
        assert_eq!(slots.allocate(FULL), None);
    }

    #[test]
    fn a_draft_leaves_the_slots_that_it_must_keep() {
        let slots = Slots::recover(5, std::iter::empty(), &[]).unwrap();
        assert_eq!(slots.draft(100, 2).reservation.len(), 3);
        assert_eq!(slots.draft(2, 2).reservation.len(), 2);
        assert!(!slots.draft(100, 5).fits(4096));
    }

    #[test]
    fn recovery_refuses_fragments_that_do_not_fit() {
        let at = |slot, offset| Place { slot, offset };
        let recover = |live: &[(Place, u32)]| Slots::recover(2, live.iter().copied(), &[]).map(|s| s.used_bytes());
        assert_eq!(recover(&[(at(0, 0), 4096), (at(0, 4096), 4096), (at(1, 0), FULL)]), Ok(8192 + u64::from(FULL)));
        assert!(recover(&[(at(2, 0), 4096)]).is_err());
        assert!(recover(&[(at(0, 4096), FULL)]).is_err());
        assert!(recover(&[(at(0, 0), FULL), (at(0, 0), 4096)]).is_err());
    }

    #[test]
    fn recovery_goes_on_in_partly_filled_slots() {
        let live = [(Place { slot: 1, offset: 0 }, 4096)];
        let parts = [Reserved { slot: 1, start: 4096 }, Reserved { slot: 0, start: 0 }];
        let mut slots = Slots::recover(2, live.into_iter(), &parts).unwrap();
        slots.adopt(slots.draft(0, 0));
        assert_eq!(slots.allocate(4096), Some(Place { slot: 1, offset: 4096 }));
        assert_eq!(slots.allocate(FULL), None, "a reserved slot that nothing was found in is only free");
    }

    #[test]
    fn compaction_takes_the_sparsest_slots_that_fit_into_one() {
        let mut slots = fresh(4, 4);
        let half = FULL / 2 / ALIGN * ALIGN;
        let mut released = Vec::new();
        for keep in [half, FULL - 4096, 4096, half + ALIGN] {
            slots.allocate(keep).unwrap();
            let rest = slots.allocate(FULL - keep).unwrap();
            released.push((rest, FULL - keep));
        }
        for (place, footprint) in released {
            slots.release(place, footprint);
        }
        assert_eq!(slots.sparsest(&BTreeSet::new()), [2, 0]);
        assert_eq!(slots.sparsest(&BTreeSet::from([2, 0])), Vec::<u32>::new(), "one slot alone gains nothing");
    }

    #[derive(Clone, Debug)]
    enum Op {
        Allocate(u32),
        Release(usize),
        Checkpoint(usize),
        ReleaseDuringCheckpoint(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (1..=SLOT_LEN / ALIGN).prop_map(|pages| Op::Allocate(pages * ALIGN)),
            3 => (1..8u32).prop_map(|pages| Op::Allocate(pages * ALIGN)),
            4 => any::<usize>().prop_map(Op::Release),
            1 => (0..6usize).prop_map(Op::Checkpoint),
            1 => any::<usize>().prop_map(Op::ReleaseDuringCheckpoint),
        ]
    }

    proptest! {
        /// Live fragments never overlap; only reserved ranges are written; what the last checkpoint holds is never
        /// overwritten; counts agree with a plain list.
        #[test]
        fn prop_allocations_keep_the_invariants(ops in prop::collection::vec(op(), 1..200)) {
            let mut slots = Slots::recover(6, std::iter::empty(), &[]).unwrap();
            let mut live: Vec<(Place, u32)> = Vec::new();
            let mut recorded: Vec<(Place, u32)> = Vec::new();
            let mut reservation: Vec<Reserved> = Vec::new();
            let overlap = |a: &(Place, u32), b: &(Place, u32)| {
                a.0.slot == b.0.slot && a.0.offset < b.0.offset + b.1 && b.0.offset < a.0.offset + a.1
            };
            for op in ops {
                match op {
                    Op::Allocate(footprint) => if let Some(place) = slots.allocate(footprint) {
                        let new = (place, footprint);
                        prop_assert!(place.offset % ALIGN == 0 && place.offset + footprint <= SLOT_LEN);
                        prop_assert!(live.iter().chain(&recorded).all(|old| !overlap(old, &new)));
                        prop_assert!(reservation.iter().any(|r| r.slot == place.slot && r.start <= place.offset));
                        live.push(new);
                    },
                    Op::Release(i) => if !live.is_empty() {
                        let (place, footprint) = live.swap_remove(i % live.len());
                        slots.release(place, footprint);
                    },
                    Op::Checkpoint(target) => {
                        let draft = slots.draft(target, 0);
                        (recorded, reservation) = (live.clone(), draft.reservation.clone());
                        slots.adopt(draft);
                    },
                    Op::ReleaseDuringCheckpoint(i) => {
                        let draft = slots.draft(2, 1);
                        (recorded, reservation) = (live.clone(), draft.reservation.clone());
                        if !live.is_empty() {
                            let (place, footprint) = live.swap_remove(i % live.len());
                            slots.release(place, footprint);
                        }
                        slots.adopt(draft);
                    },
                }
                prop_assert_eq!(slots.used_bytes(), live.iter().map(|l| u64::from(l.1)).sum::<u64>());
            }
            for (place, footprint) in live.drain(..) {
                slots.release(place, footprint);
            }
            slots.adopt(slots.draft(100, 0));
            prop_assert!(slots.reserved.len() + slots.open.len() == 6, "all space comes back");
        }
    }
}
