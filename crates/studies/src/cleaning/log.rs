//! Logs on one disk: each client appends blocks to its own segments, and one cleaner makes room
//! when there is none. `policy::clean` decides which segments it takes.
//!
//! A segment is in its writer's memory until it is full. The cleaner skips empty segments. It reads
//! other segments whole, unless all their live blocks are in clients' caches (Dahlin, section 4.4).

use super::{Ages, Full, When};
use policy::clean::{FreeGoal, GAIN_SEGMENTS, Rule, SegmentUse, VICTIMS_MAX, choose_by};
use serde::Serialize;
use std::time::Duration;
use types::{LogId, SegmentId};

/// The work of keeping a log, in segments (table 4-2).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Counts {
    /// Segments written with data.
    pub written: u64,
    /// Segments cleaned.
    pub cleaned: u64,
    /// Cleaned segments without live blocks.
    pub empty: u64,
    /// Segments cleaned without a read, because all live blocks were in caches.
    pub cached: u64,
    /// Segments read by the cleaner.
    pub read: u64,
    /// Segments written by the cleaner.
    pub rewritten: u64,
    /// Live blocks of the cleaned segments.
    pub moved_blocks: u64,
}

impl Counts {
    /// Rosenblum's write cost: all reads and writes per segment of new data. `None` if there are no
    /// new data.
    pub fn write_cost(&self) -> Option<f64> {
        (self.written > 0).then(|| (self.written + self.read + self.rewritten) as f64 / self.written as f64)
    }

    /// The counts since an earlier state.
    pub fn since(&self, earlier: &Counts) -> Counts {
        Counts {
            written: self.written - earlier.written,
            cleaned: self.cleaned - earlier.cleaned,
            empty: self.empty - earlier.empty,
            cached: self.cached - earlier.cached,
            read: self.read - earlier.read,
            rewritten: self.rewritten - earlier.rewritten,
            moved_blocks: self.moved_blocks - earlier.moved_blocks,
        }
    }
}

/// The cleaner's policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cleaner {
    /// Which segments it takes first.
    pub rule: Rule,
    /// What counts as a segment's age.
    pub ages: Ages,
    /// It writes the blocks that it moves in the order of age.
    pub sorts: bool,
    /// When it cleans.
    pub when: When,
}

/// No segment: the block is not on the disk.
const NOWHERE: u32 = u32::MAX;

#[derive(Default)]
struct Segment {
    /// The log, and the number in that log, from 1; 0 if this slot is free.
    log: u32,
    seq: u64,
    /// The blocks that were put there; those still there are live.
    blocks: Vec<u32>,
    live: u32,
    /// When its youngest block was written, counted in blocks written.
    youngest: u64,
}

/// Logs on one disk.
pub struct Log {
    cleaner: Cleaner,
    segment_blocks: u32,
    /// The disk's segments, then one in memory for each log; the last is the cleaner's.
    segments: Vec<Segment>,
    disk: u32,
    free: Vec<u32>,
    /// By block: its segment, its place there, and when it was written.
    at: Vec<(u32, u32, u64)>,
    /// By log, the number of segments so far.
    seqs: Vec<u64>,
    clock: u64,
    /// Number of live blocks.
    live: u64,
    /// The work done.
    pub counts: Counts,
}

impl Log {
    /// An empty disk of `disk` segments, for the logs of `writers` writers, of blocks with numbers
    /// below `blocks`.
    pub fn new(cleaner: Cleaner, segment_blocks: u32, disk: u32, writers: u32, blocks: usize) -> Log {
        let all = disk as usize + writers as usize + 1;
        Log {
            cleaner,
            segment_blocks,
            segments: (0..all).map(|_| Segment::default()).collect(),
            disk,
            free: (0..disk).rev().collect(),
            at: vec![(NOWHERE, 0, 0); blocks],
            seqs: vec![0; writers as usize + 1],
            clock: 0,
            live: 0,
            counts: Counts::default(),
        }
    }

    /// Appends a block to a writer's log. `cached` is true for blocks that a cleaner need not read.
    /// [`Full`] if there is no room, and cleaning makes none.
    pub fn write(&mut self, writer: u32, block: u32, cached: impl Fn(u32) -> bool) -> Result<(), Full> {
        self.delete(block);
        self.clock += 1;
        self.live += 1;
        if self.append(writer, block, self.clock) {
            match self.cleaner.when {
                When::Full => {
                    while self.free.is_empty() {
                        self.clean(&cached)?;
                    }
                }
                When::Short if self.free_blocks() >= self.goal().low => {}
                When::Short => self.clean_to_goal(&cached)?,
            }
            self.counts.written += 1;
            self.finish(writer);
        }
        Ok(())
    }

    /// Deletes a block.
    pub fn delete(&mut self, block: u32) {
        let (segment, ..) = self.at[block as usize];
        if segment != NOWHERE {
            self.segments[segment as usize].live -= 1;
            self.at[block as usize].0 = NOWHERE;
            self.live -= 1;
        }
    }

    fn free_blocks(&self) -> u64 {
        self.free.len() as u64 * u64::from(self.segment_blocks)
    }

    /// The simulation does not model space that writers may not use.
    fn goal(&self) -> FreeGoal {
        FreeGoal::new(u64::from(self.disk) * u64::from(self.segment_blocks), self.live, 0)
    }

    /// Cleans as the product does, until enough is free or no more can be gained. [`Full`] if
    /// nothing is free then.
    fn clean_to_goal(&mut self, cached: impl Fn(u32) -> bool) -> Result<(), Full> {
        let mut before = None;
        while self.free_blocks() < self.goal().high && before.is_none_or(|before| self.free.len() > before) {
            before = Some(self.free.len());
            if self.clean(&cached).is_err() {
                break;
            }
        }
        if self.free.is_empty() { Err(Full) } else { Ok(()) }
    }

    /// Appends a block; true if the log's segment is then full.
    fn append(&mut self, log: u32, block: u32, time: u64) -> bool {
        let segment = &mut self.segments[(self.disk + log) as usize];
        self.at[block as usize] = (self.disk + log, segment.blocks.len() as u32, time);
        segment.blocks.push(block);
        segment.live += 1;
        segment.youngest = segment.youngest.max(time);
        segment.blocks.len() as u32 == self.segment_blocks
    }

    /// Writes a log's segment to the disk, which must have room.
    fn finish(&mut self, log: u32) {
        let Some(slot) = self.free.pop() else { return };
        let (from, seq) = (self.disk + log, &mut self.seqs[log as usize]);
        *seq += 1;
        let segment = Segment { log, seq: *seq, ..std::mem::take(&mut self.segments[from as usize]) };
        for (index, block) in segment.blocks.iter().enumerate() {
            let at = &mut self.at[*block as usize];
            if (at.0, at.1) == (from, index as u32) {
                at.0 = slot;
            }
        }
        self.segments[slot as usize] = segment;
    }

    fn uses(&self) -> impl Iterator<Item = SegmentUse> {
        let taken = self.segments[..self.disk as usize].iter().zip(0u64..).filter(|(segment, _)| segment.seq > 0);
        taken.map(|(segment, slot)| {
            let age = match self.cleaner.ages {
                Ages::Segments => self.seqs[segment.log as usize] - segment.seq,
                Ages::Data => self.clock - segment.youngest,
            };
            SegmentUse {
                // The slot serves as its name here.
                id: SegmentId { log: LogId::new(0), epoch: 0, seq: slot },
                live_bytes: segment.live.into(),
                total_bytes: self.segment_blocks.into(),
                age: Duration::from_secs(age + 1),
            }
        })
    }

    /// Empties some segments.
    fn clean(&mut self, cached: impl Fn(u32) -> bool) -> Result<(), Full> {
        let gain = match self.cleaner.when {
            // A twentieth of a small disk, a hundredth of a large one.
            When::Full => GAIN_SEGMENTS.max(self.disk / 100).min(self.disk / 20).max(1),
            When::Short => GAIN_SEGMENTS,
        };
        let want = u64::from(gain) * u64::from(self.segment_blocks);
        let mut victims = choose_by(self.cleaner.rule, self.uses(), want);
        if self.cleaner.when == When::Short {
            victims.truncate(VICTIMS_MAX);
        }
        if victims.is_empty() {
            return Err(Full);
        }
        let mut moved = Vec::new();
        for slot in victims.into_iter().map(|id| id.seq as u32) {
            let victim = std::mem::take(&mut self.segments[slot as usize]);
            let first = moved.len();
            for (index, block) in victim.blocks.into_iter().enumerate() {
                let (at, place, time) = self.at[block as usize];
                if (at, place) == (slot, index as u32) {
                    moved.push((time, block));
                    // Until it is appended again.
                    self.at[block as usize].0 = NOWHERE;
                }
            }
            let live = &moved[first..];
            self.counts.cleaned += 1;
            *(match live {
                [] => &mut self.counts.empty,
                _ if live.iter().all(|(_, block)| cached(*block)) => &mut self.counts.cached,
                _ => &mut self.counts.read,
            }) += 1;
            self.free.push(slot);
        }
        self.counts.moved_blocks += moved.len() as u64;
        if self.cleaner.sorts {
            moved.sort_unstable();
        }
        let cleaner = self.seqs.len() as u32 - 1;
        for (time, block) in moved {
            if self.append(cleaner, block, time) {
                // At least as much was emptied.
                self.counts.rewritten += 1;
                self.finish(cleaner);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::SplitMix64;

    fn cleaner(rule: Rule) -> Cleaner {
        Cleaner { rule, ages: Ages::Data, sorts: true, when: When::Full }
    }

    #[test]
    fn prop_what_is_written_is_there_once_until_it_is_deleted() {
        for seed in 0..30 {
            let random = SplitMix64::new(seed);
            let rule = if seed % 2 == 0 { Rule::Greedy } else { Rule::CostBenefit };
            let when = if seed % 5 == 0 { When::Short } else { When::Full };
            let mut log = Log::new(Cleaner { sorts: seed % 3 == 0, when, ..cleaner(rule) }, 8, 20, 3, 110);
            let mut there = [false; 110];
            for _ in 0..5000 {
                let block = random.below(110) as u32;
                there[block as usize] = random.chance(9, 10);
                match there[block as usize] {
                    true => log.write(random.below(3) as u32, block, |block| block < 20).expect("room"),
                    false => log.delete(block),
                }
            }
            for (block, there) in there.into_iter().enumerate() {
                let (segment, index, _) = log.at[block];
                assert_eq!(segment != NOWHERE, there);
                if there {
                    assert_eq!(log.segments[segment as usize].blocks[index as usize], block as u32);
                }
            }
            let live: u32 = log.segments.iter().map(|segment| segment.live).sum();
            assert_eq!(u64::from(live), log.live);
            assert_eq!(live as usize, there.iter().filter(|there| **there).count());
            let of = log.counts;
            let taken = log.segments[..20].iter().filter(|segment| segment.seq > 0).count();
            assert_eq!((taken + log.free.len(), of.cleaned), (20, of.empty + of.cached + of.read));
            assert_eq!(of.written + of.rewritten - of.cleaned, taken as u64, "none is lost, and none is made");
            assert!(of.empty > 0 && of.read > 0 && of.moved_blocks > 0, "{of:?}");
        }
    }

    #[test]
    fn what_is_in_caches_is_not_read() {
        let run = |cached: bool| {
            let (random, mut log) = (SplitMix64::new(1), Log::new(cleaner(Rule::Greedy), 4, 10, 1, 30));
            (0..1000).for_each(|_| log.write(0, random.below(30) as u32, |_| cached).expect("room"));
            log.counts
        };
        let (without, with) = (run(false), run(true));
        assert_eq!((without.cached, with.read), (0, 0));
        assert_eq!((with.cached, with.rewritten), (without.read, without.rewritten));
        assert!(without.write_cost() > with.write_cost() && with.write_cost() > Some(1.0));
    }

    #[test]
    fn a_disk_that_only_has_live_blocks_is_full() {
        let mut log = Log::new(cleaner(Rule::CostBenefit), 4, 5, 1, 100);
        let full = (0..100).find(|block| log.write(0, *block, |_| false).is_err());
        // Five segments, and the one that does not reach the disk.
        assert_eq!(full, Some(23));
    }
}
