//! The allocation frontier: which index numbers were handed out (docs/core.md#manager: never
//! twice).
//!
//! Numbers come from the manager's slots, in order. A checkpoint records, for each volume and slot,
//! the *reserve*: a number ahead of all that were handed out. Only numbers below the durable
//! reserve are handed out, and after a restart allocation goes on at the reserve. So numbers that a
//! client got and had not used before a crash are lost, not reused.

use crate::api::IndexRange;
use std::collections::BTreeMap;
use types::FileId;
use types::codec::{DecodeError, Put, Reader};
use types::ids::{SLOT_COUNT, SLOT_SHIFT};

/// The first counter value that is handed out in a slot. Lower ones are reserved; the root
/// directory has one of them.
pub const COUNTER_FIRST: u64 = 1024;
/// How many ranges a checkpoint reserves ahead. More mean fewer checkpoints for the sake of
/// numbers, and more numbers lost at each restart.
pub const RESERVE_RANGE_COUNT: u64 = 64;
/// Most pairs of volume and slot that numbers come from. All are in each root, so this bounds its
/// length.
pub const RESERVES_MAX: usize = 1024;
/// Number of counter values of a slot.
const COUNTER_END: u64 = 1 << SLOT_SHIFT;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Frontier {
    /// The next counter value to hand out.
    next: u64,
    /// Counter values below this may be handed out: a durable checkpoint has reserved them.
    reserved: u64,
}

/// The answer to a request for numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocation {
    /// The numbers.
    Range(IndexRange),
    /// A checkpoint must reserve more numbers first.
    NeedsReserve,
    /// All slots of this manager are used up for this volume, or there are too many volumes.
    Exhausted,
}

/// The reserves that a checkpoint records: for each volume and slot, the counter value at which
/// allocation goes on after a restart.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogReserves(BTreeMap<(u16, u16), u64>);

impl LogReserves {
    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.0.len() as u32);
        for (&(volume, slot), &reserved) in &self.0 {
            out.put_u16(volume);
            out.put_u16(slot);
            out.put_u64(reserved);
        }
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut reserves = BTreeMap::new();
        for _ in 0..r.count(12, "frontiers")? {
            let (volume, slot, reserved) = (r.u16("frontier volume")?, r.u16("frontier slot")?, r.u64("frontier")?);
            let fits = slot < SLOT_COUNT && (COUNTER_FIRST..=COUNTER_END).contains(&reserved);
            if !fits || reserves.insert((volume, slot), reserved).is_some() {
                return Err(DecodeError::Invalid("frontier"));
            }
        }
        Ok(LogReserves(reserves))
    }
}

/// The frontier of all of a manager's slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frontiers {
    /// The manager's slots, ascending.
    slots: Vec<u16>,
    /// How many numbers are handed out at once. It may differ from start to start.
    range_len: u64,
    /// The frontier of each volume and slot that numbers come from, or soon will.
    frontiers: BTreeMap<(u16, u16), Frontier>,
}

impl Frontiers {
    /// The frontiers of a manager that serves `slots` and hands out `range_len` numbers at once.
    /// `durable` are the reserves of its newest checkpoint.
    pub fn new(slots: Vec<u16>, range_len: u64, durable: &LogReserves) -> Self {
        let frontiers =
            durable.0.iter().map(|(&key, &reserved)| (key, Frontier { next: reserved, reserved })).collect();
        let mut all = Frontiers { slots, range_len, frontiers };
        all.announce(0);
        all
    }

    /// Has the next checkpoint reserve numbers for a volume.
    fn announce(&mut self, volume: u16) {
        if let Some(&slot) = self.slots.first() {
            self.frontier(volume, slot);
        }
    }

    /// The frontier of a volume and slot. Makes a fresh one if there is none; `None` if there are
    /// too many.
    fn frontier(&mut self, volume: u16, slot: u16) -> Option<&mut Frontier> {
        let fresh = Frontier { next: COUNTER_FIRST, reserved: COUNTER_FIRST };
        match self.frontiers.len() < RESERVES_MAX {
            true => Some(self.frontiers.entry((volume, slot)).or_insert(fresh)),
            false => self.frontiers.get_mut(&(volume, slot)),
        }
    }

    /// Hands out the next numbers of a volume.
    pub fn allocate(&mut self, volume: u16) -> Allocation {
        self.announce(volume);
        let range_len = self.range_len;
        for at in 0..self.slots.len() {
            let slot = self.slots[at];
            let Some(frontier) = self.frontier(volume, slot) else { break };
            let end = frontier.next + range_len;
            if end > COUNTER_END {
                continue;
            }
            if end > frontier.reserved {
                return Allocation::NeedsReserve;
            }
            let first = FileId::in_slot(volume, slot, frontier.next);
            frontier.next = end;
            return Allocation::Range(IndexRange { first, count: range_len });
        }
        Allocation::Exhausted
    }

    /// The reserves for a checkpoint that is taken now.
    pub fn to_reserve(&self) -> LogReserves {
        let ahead = |f: &Frontier| f.reserved.max((f.next + RESERVE_RANGE_COUNT * self.range_len).min(COUNTER_END));
        LogReserves(self.frontiers.iter().map(|(&key, f)| (key, ahead(f))).collect())
    }

    /// Notes that a checkpoint with these reserves is durable.
    pub fn made_durable(&mut self, reserves: &LogReserves) {
        for (key, &reserved) in &reserves.0 {
            if let Some(frontier) = self.frontiers.get_mut(key) {
                frontier.reserved = frontier.reserved.max(reserved);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RANGE_LEN: u64 = 100;

    fn checkpoint(f: &mut Frontiers) -> LogReserves {
        let reserves = f.to_reserve();
        f.made_durable(&reserves);
        reserves
    }

    #[test]
    fn nothing_is_handed_out_before_a_checkpoint_reserved_it() {
        let mut f = Frontiers::new(vec![0, 4], RANGE_LEN, &LogReserves::default());
        assert_eq!(f.allocate(0), Allocation::NeedsReserve);
        checkpoint(&mut f);
        let first = FileId::in_slot(0, 0, COUNTER_FIRST);
        assert_eq!(f.allocate(0), Allocation::Range(IndexRange { first, count: RANGE_LEN }));
        assert_eq!(f.allocate(3), Allocation::NeedsReserve);
        checkpoint(&mut f);
        let Allocation::Range(range) = f.allocate(3) else { panic!("no numbers after a checkpoint") };
        assert_eq!((range.first.volume(), range.first.slot()), (3, 0));
    }

    #[test]
    fn a_full_slot_is_followed_by_the_next_and_the_last_by_an_error() {
        let full = LogReserves(BTreeMap::from([((0, 0), COUNTER_END - 5)]));
        let mut f = Frontiers::new(vec![0, 4], RANGE_LEN, &full);
        assert_eq!(f.allocate(0), Allocation::NeedsReserve);
        checkpoint(&mut f);
        let Allocation::Range(range) = f.allocate(0) else { panic!("the second slot was not used") };
        assert_eq!(range.first, FileId::in_slot(0, 4, COUNTER_FIRST));
        let full = LogReserves(BTreeMap::from([((0, 9), COUNTER_END)]));
        assert_eq!(Frontiers::new(vec![9], RANGE_LEN, &full).allocate(0), Allocation::Exhausted);
    }

    proptest! {
        #[test]
        fn prop_no_number_is_handed_out_twice_through_crashes_and_changes_of_the_length(
            steps in prop::collection::vec(0u8..10, 1..300),
            lens in prop::collection::vec(1u64..2000, 10),
        ) {
            let slots = vec![2, 7];
            let mut lens = lens.into_iter().cycle();
            let mut len = 16;
            let mut durable = LogReserves::default();
            let mut f = Frontiers::new(slots.clone(), len, &durable);
            let mut ends = BTreeMap::new();
            for step in steps {
                match step {
                    0 => durable = checkpoint(&mut f),
                    1 => {
                        let mut bytes = Vec::new();
                        durable.encode(&mut bytes);
                        len = lens.next().unwrap();
                        f = Frontiers::new(slots.clone(), len, &LogReserves::decode(&mut Reader::new(&bytes)).unwrap());
                    }
                    volume => match f.allocate(u16::from(volume % 2)) {
                        Allocation::Range(range) => {
                            prop_assert!(range.first.raw() & (COUNTER_END - 1) >= COUNTER_FIRST);
                            prop_assert_eq!(range.count, len);
                            let end = ends.entry(range.first.volume()).or_insert(0);
                            prop_assert!(*end <= range.first.raw(), "{:?} twice", range);
                            *end = range.first.raw() + range.count;
                        }
                        Allocation::NeedsReserve => {}
                        Allocation::Exhausted => prop_assert!(false, "exhausted after a few"),
                    },
                }
            }
        }
    }
}
