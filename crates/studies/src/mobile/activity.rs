//! A trace as what one user does with files, which have numbers from 0 and known sizes.

use std::collections::HashMap;
use trace::{Deed, Record};

/// Largest file that can be counted: 16 TiB.
const FILE_LEN_MAX: u64 = 1 << 44;
/// Most blocks that are read and written: 256 GiB, which may all wait to go home.
const ACCESS_COUNT_MAX: u64 = 1 << 26;
/// The block size for counting, in bytes.
const COUNTED_BLOCK_BYTES: u64 = 4096;
/// A user who does nothing for longer is away (section 4.2).
pub(crate) const PAUSE_US: u64 = 15 * 60 * 1_000_000;

/// One deed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Act {
    pub time_us: u64,
    /// The file. If the trace gives a removed file's number to a new file, that is another file
    /// here.
    pub file: u32,
    pub deed: Deed,
}

/// What the whole trace says about a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Facts {
    /// Bytes that it had before any write: as many as are read without having been written before.
    pub had_bytes: u64,
    /// The largest size that it ever has.
    pub most_bytes: u64,
    /// The first deed with it made it: all of it was written.
    pub is_made: bool,
}

/// Facts of a trace that are not simulated.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Work {
    /// The largest size of each file, in bytes.
    pub sizes: Vec<u64>,
    /// Bytes of existing files that are read away before they were used in the office.
    pub first_away_bytes: u64,
    /// Bytes that are written away.
    pub written_bytes: u64,
}

impl Work {
    /// Bytes of all files that are used.
    pub fn used_bytes(&self) -> u64 {
        self.sizes.iter().fold(0, |all, size| all.saturating_add(*size))
    }

    /// How many files are larger than this.
    pub fn larger_than(&self, bytes: u64) -> usize {
        self.sizes.iter().filter(|size| **size > bytes).count()
    }
}

/// A trace as what one user does with files.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Activity {
    pub(crate) acts: Vec<Act>,
    pub(crate) files: Vec<Facts>,
}

/// Why a trace cannot be simulated.
#[derive(Debug)]
pub enum ActivityError<E> {
    /// The trace has an error.
    Trace(E),
    /// This record, from 1, is earlier than the one before it.
    Unsorted(u64),
    /// There are too many of these to count.
    TooMany(&'static str, u64),
}

/// An [`Activity`] while its records arrive.
#[derive(Default, Debug)]
pub(crate) struct Gathering {
    activity: Activity,
    /// The file's number here, by its number in the trace.
    known: HashMap<u64, u32>,
    /// By file, the end of what was written.
    written: Vec<u64>,
    blocks: u64,
}

impl Gathering {
    /// Adds a record, which must not be earlier than the one before it. The error names what there
    /// is too much of.
    pub(crate) fn add(&mut self, Record { time_us, file, deed, .. }: Record) -> Result<(), &'static str> {
        let Gathering { activity, known, written, blocks } = self;
        let next = u32::try_from(activity.files.len()).map_err(|_| "files")?;
        let number = *known.entry(file).or_insert(next);
        if number == next {
            let is_made = matches!(deed, Deed::Write { offset: 0, .. });
            activity.files.push(Facts { had_bytes: 0, most_bytes: 0, is_made });
            written.push(0);
        }
        let (facts, written) = (&mut activity.files[number as usize], &mut written[number as usize]);
        let (end, count) = match deed {
            Deed::Read { offset, len } | Deed::Write { offset, len } => {
                (offset.saturating_add(len), len / COUNTED_BLOCK_BYTES + 1)
            }
            Deed::Delete => (0, 1),
        };
        if end > FILE_LEN_MAX {
            return Err("bytes of a file");
        }
        *blocks += count;
        if *blocks > ACCESS_COUNT_MAX {
            return Err("blocks");
        }
        match deed {
            Deed::Read { .. } if end > *written => {
                (facts.had_bytes, facts.is_made) = (facts.had_bytes.max(end), false);
            }
            Deed::Write { .. } => *written = end.max(*written),
            Deed::Read { .. } => {}
            Deed::Delete => drop(known.remove(&file)),
        }
        facts.most_bytes = facts.most_bytes.max(end);
        activity.acts.push(Act { time_us, file: number, deed });
        Ok(())
    }

    /// The activity of all records.
    pub(crate) fn end(self) -> Activity {
        self.activity
    }
}

impl Activity {
    /// The activity of a trace, over all its clients: one user may work at several (section 4.2).
    pub fn of<E>(records: impl IntoIterator<Item = Result<Record, E>>) -> Result<Activity, ActivityError<E>> {
        let mut gathering = Gathering::default();
        for record in records {
            let record = record.map_err(ActivityError::Trace)?;
            let acts = &gathering.activity.acts;
            if acts.last().is_some_and(|last| record.time_us < last.time_us) {
                return Err(ActivityError::Unsorted(acts.len() as u64 + 1));
            }
            let number = acts.len() as u64 + 1;
            gathering.add(record).map_err(|what| ActivityError::TooMany(what, number))?;
        }
        Ok(gathering.end())
    }

    /// Number of deeds.
    pub fn len(&self) -> usize {
        self.acts.len()
    }

    /// True if there are no deeds.
    pub fn is_empty(&self) -> bool {
        self.acts.is_empty()
    }

    /// The deeds in the office, which the user leaves at this time, and away.
    fn split(&self, leaves_us: u64) -> (&[Act], &[Act]) {
        self.acts.split_at(self.acts.partition_point(|act| act.time_us < leaves_us))
    }

    /// The size of each file when the user leaves the office; zero if it is gone, or not there yet.
    pub(crate) fn there_at(&self, leaves_us: u64) -> Vec<u64> {
        let mut there: Vec<u64> = self.files.iter().map(|file| file.had_bytes).collect();
        for act in self.split(leaves_us).0 {
            let bytes = &mut there[act.file as usize];
            match act.deed {
                Deed::Write { offset, len } => *bytes = offset.saturating_add(len).max(*bytes),
                Deed::Delete => *bytes = 0,
                Deed::Read { .. } => {}
            }
        }
        there
    }

    /// Facts of the deeds after this time, when the user leaves the office.
    pub(crate) fn work(&self, leaves_us: u64) -> Work {
        let (office, away) = self.split(leaves_us);
        let mut is_used = vec![false; self.files.len()];
        office.iter().for_each(|act| is_used[act.file as usize] = true);
        let sizes = self.files.iter().map(|file| file.most_bytes).collect();
        let mut work = Work { sizes, ..Work::default() };
        for act in away {
            let file = act.file as usize;
            match act.deed {
                Deed::Read { .. } if !is_used[file] => work.first_away_bytes += self.files[file].had_bytes,
                Deed::Write { len, .. } => work.written_bytes = work.written_bytes.saturating_add(len),
                Deed::Read { .. } | Deed::Delete => {}
            }
            is_used[file] = true;
        }
        work
    }

    /// Bytes of each file that are read in the office.
    pub(crate) fn read_before(&self, leaves_us: u64) -> Vec<u64> {
        let mut read = vec![0u64; self.files.len()];
        for act in self.split(leaves_us).0 {
            if let Deed::Read { len, .. } = act.deed {
                read[act.file as usize] = read[act.file as usize].saturating_add(len);
            }
        }
        read
    }

    /// The same activity, but with these files, up to this many bytes of each, read before the user
    /// leaves the office: they are hoarded.
    pub(crate) fn with_hoarded(&self, files: &[(u32, u64)], leaves_us: u64) -> Activity {
        let (office, away) = self.split(leaves_us);
        let time_us = leaves_us.saturating_sub(1);
        let read = |len: u64| Deed::Read { offset: 0, len };
        let hoarded = files.iter().map(|(file, len)| Act { time_us, file: *file, deed: read(*len) });
        let acts = office.iter().copied().chain(hoarded).chain(away.iter().copied());
        Activity { acts: acts.collect(), files: self.files.clone() }
    }

    /// From this time of the trace on, in microseconds: the time to its end, and the same without
    /// pauses in which the user is away.
    pub(crate) fn times_us(&self, since_us: u64) -> (u64, u64) {
        let times = || self.acts.iter().map(|act| act.time_us).filter(|time| *time >= since_us);
        let gaps = times().zip(times().skip(1)).map(|(one, next)| next - one);
        gaps.fold((0, 0), |(all, active), gap| (all + gap, active + if gap > PAUSE_US { 0 } else { gap }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(deeds: &[(u64, u64, Deed)]) -> Result<Activity, ActivityError<()>> {
        Activity::of(
            deeds
                .iter()
                .map(|(time_us, file, deed)| Ok(Record { time_us: *time_us, client: 0, file: *file, deed: *deed })),
        )
    }

    fn read(offset: u64, len: u64) -> Deed {
        Deed::Read { offset, len }
    }

    fn write(offset: u64, len: u64) -> Deed {
        Deed::Write { offset, len }
    }

    #[test]
    fn sizes_are_what_reads_and_writes_show() {
        let deeds = [
            (0, 7, read(0, 100)),
            (1, 7, write(50, 100)),
            (2, 7, read(0, 150)),
            (3, 9, write(0, 10)),
            (4, 9, read(0, 10)),
            (5, 7, read(0, 200)),
            (6, 7, Deed::Delete),
            (7, 7, write(0, 5)),
        ];
        let facts = of(&deeds).expect("right").files;
        let expect = |had_bytes, most_bytes, is_made| Facts { had_bytes, most_bytes, is_made };
        assert_eq!(facts, [expect(200, 200, false), expect(0, 10, true), expect(0, 5, true)]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let wrong = |deeds: &[_]| of(deeds).expect_err("wrong");
        assert!(matches!(wrong(&[(2, 0, read(0, 1)), (1, 0, read(0, 1))]), ActivityError::Unsorted(2)));
        assert!(matches!(wrong(&[(0, 0, write(u64::MAX, u64::MAX))]), ActivityError::TooMany("bytes of a file", 1)));
        let much = vec![(0, 0, read(0, FILE_LEN_MAX)); 2];
        assert!(matches!(wrong(&much), ActivityError::TooMany("blocks", _)));
        assert!(of(&[]).expect("nothing").is_empty());
    }

    #[test]
    fn what_can_be_hoarded_is_what_is_there_when_the_office_is_left() {
        let deeds = [
            (0, 0, read(0, 10)),
            (1, 0, read(0, 10)),
            (2, 1, write(0, 7)),
            (3, 2, read(0, 30)),
            (4, 2, Deed::Delete),
            (5, 1, write(7, 7)),
            (6, 3, read(0, 5)),
            (7, 4, write(0, 5)),
        ];
        let activity = of(&deeds).expect("right");
        assert_eq!(activity.there_at(5), [10, 7, 0, 5, 0]);
        assert_eq!(activity.read_before(5), [20, 0, 30, 0, 0]);
        let work = Work { sizes: vec![10, 14, 30, 5, 5], first_away_bytes: 5, written_bytes: 12 };
        assert_eq!((activity.work(5), work.used_bytes(), work.larger_than(10)), (work.clone(), 64, 2));
        let with = activity.with_hoarded(&[(0, 10), (1, 7)], 5);
        let (office, away) = with.split(5);
        assert_eq!((office.len(), away.len()), (7, 3));
        assert_eq!(office[6], Act { time_us: 4, file: 1, deed: read(0, 7) });
    }

    #[test]
    fn pauses_are_not_active_time() {
        let deeds: Vec<_> = [0, 10, 20 + PAUSE_US, 25 + PAUSE_US].map(|time| (time, 0, read(0, 1))).into();
        let activity = of(&deeds).expect("right");
        assert_eq!(activity.times_us(0), (25 + PAUSE_US, 15));
        assert_eq!(activity.times_us(10), (15 + PAUSE_US, 5));
        assert_eq!(activity.times_us(u64::MAX), (0, 0));
    }
}
