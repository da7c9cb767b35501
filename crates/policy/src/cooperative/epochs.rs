//! Epochs (Feeley and others, "Implementing Global Memory Management in a Workstation Cluster",
//! 1995; Dahlin, section 3.1.7).
//!
//! At the start of an epoch all clients report the ages of their blocks, and all learn where the
//! oldest blocks are. During the epoch a singlet that leaves a cache goes to another client, chosen
//! at random with a probability in proportion to its part of the oldest blocks. A block that is
//! as old as these is discarded. If all clients are busy, the blocks that leave caches are old, and
//! nothing is sent.

/// Longest time from one epoch to the next, in microseconds.
pub const EPOCH_US_MAX: u64 = 10_000_000;
/// An epoch ends when one in this many blocks of all memory has left its cache. Duplicates do not
/// count.
pub const REPLACED_PER_EPOCH: u64 = 16;

/// What all clients know during an epoch: where the oldest blocks are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Epoch {
    /// Age of the youngest among the oldest blocks.
    age_min: u64,
    /// For each client: how many of the oldest blocks it and all clients before it have.
    sums: Vec<u64>,
}

impl Epoch {
    /// Begins an epoch among `nodes` clients. `ages` has the age of each block and the client that
    /// has it; free room counts as a block of the greatest possible age. The `replaced` oldest
    /// blocks are the ones that the epoch is expected to replace.
    pub fn begin(nodes: u32, mut ages: Vec<(u64, u32)>, replaced: usize) -> Epoch {
        let count = replaced.min(ages.len());
        let mut sums = vec![0; nodes as usize];
        let Some(last) = count.checked_sub(1) else { return Epoch { age_min: 0, sums } };
        let (_, (age_min, _), _) = ages.select_nth_unstable_by(last, |one, other| other.cmp(one));
        let age_min = *age_min;
        ages[..count].iter().for_each(|(_, node)| sums[*node as usize] += 1);
        let mut sum = 0;
        for part in &mut sums {
            sum += *part;
            *part = sum;
        }
        Epoch { age_min, sums }
    }

    /// The client that gets a singlet of this age from client `from`; `None` if the block is
    /// discarded. `below` draws a uniform number below its argument.
    pub fn goes(&self, from: u32, age: u64, below: impl FnOnce(u64) -> u64) -> Option<u32> {
        let before = from.checked_sub(1).map_or(0, |before| self.sums[before as usize]);
        let own = self.sums[from as usize] - before;
        let others = self.sums.last()? - own;
        if age >= self.age_min || others == 0 {
            return None;
        }
        let drawn = below(others);
        let drawn = if drawn < before { drawn } else { drawn + own };
        Some(self.sums.partition_point(|sum| *sum <= drawn) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_go_where_the_oldest_are_and_never_back() {
        let ages = vec![(5, 0), (90, 1), (80, 2), (1, 2), (70, 2), (60, 0), (50, 1)];
        let epoch = Epoch::begin(4, ages, 4);
        // 90, 80, 70 and 60 are the oldest: client 0 has one, client 1 one, client 2 two.
        let goes = |from| (0..4).map(|drawn| epoch.goes(from, 59, |_| drawn)).collect::<Vec<_>>();
        assert_eq!(goes(3), [Some(0), Some(1), Some(2), Some(2)]);
        assert_eq!(goes(0)[..3], [Some(1), Some(2), Some(2)]);
        assert_eq!(goes(2)[..2], [Some(0), Some(1)]);
        let mut bound = 0;
        epoch.goes(2, 59, |below| {
            bound = below;
            0
        });
        assert_eq!(bound, 2);
    }

    #[test]
    fn what_is_as_old_as_the_oldest_goes_nowhere() {
        let epoch = Epoch::begin(2, vec![(10, 0), (20, 1), (1, 0)], 2);
        assert_eq!(epoch.goes(0, 10, |_| 0), None);
        assert_eq!(epoch.goes(0, 9, |_| 0), Some(1));
        assert_eq!(Epoch::begin(2, Vec::new(), 2).goes(0, 0, |_| 0), None);
        assert_eq!(Epoch::begin(2, vec![(10, 0)], 1).goes(0, 0, |_| 0), None, "all of them are its own");
        let room = Epoch::begin(2, vec![(u64::MAX, 1), (3, 0)], 1);
        assert_eq!(room.goes(0, 1_000_000, |_| 0), Some(1));
    }
}
