//! The messages that tell a cleaner which blocks of a segment are dead (Dahlin, section 4.3.1,
//! figure 4-6).

use crate::locality::accesses::{Accesses, What};
use serde::Serialize;

/// How long written data wait in memory, in microseconds, where a delay is assumed.
pub const WRITE_DELAY_US: u64 = 30_000_000;

/// Blocks that were overwritten or deleted after their writing: by which client, and when.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Bookkeeping {
    /// By another client than the one that wrote them.
    pub by_other: u64,
    /// By the same client, within [`WRITE_DELAY_US`].
    pub by_same_soon: u64,
    /// By the same client, later.
    pub by_same_later: u64,
}

impl Bookkeeping {
    /// Counts a trace.
    pub fn of(accesses: &Accesses) -> Bookkeeping {
        let mut bookkeeping = Bookkeeping::default();
        // By block: its last writer, and the time.
        let mut writers: Vec<Option<(u32, u64)>> = vec![None; accesses.block_count()];
        for access in accesses.all() {
            let mut dies = |writer: Option<(u32, u64)>| match writer {
                None => {}
                Some((client, _)) if client != access.client => bookkeeping.by_other += 1,
                Some((_, at_us)) if access.time_us.saturating_sub(at_us) < WRITE_DELAY_US => {
                    bookkeeping.by_same_soon += 1;
                }
                Some(_) => bookkeeping.by_same_later += 1,
            };
            match access.what {
                What::Read(_) => {}
                What::Write(block) => dies(writers[block as usize].replace((access.client, access.time_us))),
                What::Delete(file) => {
                    accesses.blocks_of(file).iter().for_each(|block| dies(writers[*block as usize].take()));
                }
            }
        }
        bookkeeping
    }

    /// Messages if clients tell one cleaner of each death: Centralized Pessimistic.
    pub fn pessimistic(&self) -> u64 {
        self.by_other + self.by_same_soon + self.by_same_later
    }

    /// Messages if blocks that die in their writer's memory never were in a segment: Centralized
    /// Optimistic.
    pub fn optimistic(&self) -> u64 {
        self.by_other + self.by_same_later
    }

    /// Messages if each client keeps the books of its own blocks: Distributed.
    pub fn distributed(&self) -> u64 {
        self.by_other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::{Deed, Record};

    #[test]
    fn who_ends_a_blocks_life_and_when_is_counted() {
        let write = |time_s: u64, client, len| {
            let deed = Deed::Write { offset: 0, len };
            Record { time_us: time_s * 1_000_000, client, file: 1, deed }
        };
        let delete = |time_s: u64, client| Record { deed: Deed::Delete, ..write(time_s, client, 1) };
        let records = [
            write(0, 0, 300),
            // One block within 30 s, and again after 30 s.
            write(29, 0, 100),
            write(59, 0, 100),
            // Two by another client, which deletes one block more than it wrote.
            write(60, 1, 200),
            delete(61, 1),
            // This is another file; blocks that are only read or were never written do not count.
            write(62, 2, 100),
            delete(200, 2),
            delete(201, 2),
        ];
        let accesses = Accesses::of(records.map(Ok::<_, ()>), 100).expect("accesses");
        let of = Bookkeeping::of(&accesses);
        assert_eq!(of, Bookkeeping { by_other: 3, by_same_soon: 1 + 2, by_same_later: 1 + 1 });
        assert_eq!((of.pessimistic(), of.optimistic(), of.distributed()), (8, 5, 3));
    }
}
