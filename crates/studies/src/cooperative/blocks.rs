//! A trace as accesses of single blocks, which have numbers from 0; blocks of removed files pass
//! their numbers on. An access takes eight bytes, so that long traces fit in memory for many runs.
//!
//! An access has, from the lowest bit: the deed (2 bits), the client (16), the block (31), and the
//! microseconds since the access before (15). If more time passed, a word that holds only the time
//! comes first.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use trace::{Deed, Record};

const CLIENT_COUNT_MAX: u32 = 1 << 16;
/// Most reads, writes and removals of blocks that are kept in memory.
const ACCESS_COUNT_MAX: u64 = 1 << 28;
/// Most different blocks: with what is known of each while they are gathered, about a gigabyte.
const BLOCK_COUNT_MAX: usize = 1 << 24;
/// Most blocks of one read or write: a few bytes of a trace must not become gigabytes of memory.
const RECORD_BLOCKS_MAX: u64 = 1 << 20;
const SINCE_US_MAX: u64 = 1 << 15;
/// Latest time that is told apart; later ones count as this one.
const TIME_US_MAX: u64 = u64::MAX >> CLIENT_SHIFT;
const CLIENT_SHIFT: u32 = 2;
const BLOCK_SHIFT: u32 = 18;
const SINCE_SHIFT: u32 = 49;

const READ: u64 = 0;
const WRITE: u64 = 1;
const FORGET: u64 = 2;
const PASS: u64 = 3;

/// What a client does with one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Deal {
    Read,
    Write,
    /// The block is gone with its file.
    Forget,
}

/// One access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Access {
    /// The time, in microseconds from the first access. No two accesses have the same time:
    /// simultaneous ones follow each other.
    pub now: u64,
    pub client: u32,
    pub block: u32,
    pub deal: Deal,
}

/// The accesses of a trace.
#[derive(Default, Debug)]
pub struct Blocks {
    words: Vec<u64>,
    /// Number of reads and writes.
    len: u64,
    clients: u32,
    blocks: u32,
    time_us: u64,
}

/// Why a trace cannot be simulated.
#[derive(Debug)]
pub enum BlocksError<E> {
    /// The trace has an error.
    Trace(E),
    /// There are too many of these to count; with the number of the record, from 1.
    TooMany(&'static str, u64),
}

/// The range of blocks that a record is about, in a trace with `before` earlier accesses. The error
/// names what there is too much of.
pub(crate) fn blocks_of(record: &Record, block_bytes: u64, before: usize) -> Result<Range<u64>, &'static str> {
    if record.client >= CLIENT_COUNT_MAX {
        return Err("clients");
    }
    let (Deed::Read { offset, len } | Deed::Write { offset, len }) = record.deed else { return Ok(0..0) };
    let first = offset.checked_div(block_bytes).ok_or("blocks")?;
    let end = offset.saturating_add(len).div_ceil(block_bytes).max(first);
    match end - first {
        count if count > RECORD_BLOCKS_MAX => Err("blocks of one read or write"),
        count if count + before as u64 > ACCESS_COUNT_MAX => Err("blocks"),
        _ => Ok(first..end),
    }
}

/// The next number for a block when `known` blocks have one. The error names what there is too much
/// of.
pub(crate) fn next_number(known: usize) -> Result<u32, &'static str> {
    if known < BLOCK_COUNT_MAX { Ok(known as u32) } else { Err("blocks") }
}

/// [`Blocks`] while its records arrive.
#[derive(Debug)]
pub(crate) struct Gathering {
    all: Blocks,
    block_bytes: u64,
    known: HashMap<(u64, u64), u32>,
    /// By file, the places of its blocks.
    of_file: HashMap<u64, Vec<u64>>,
    /// Numbers of removed blocks, for new ones.
    free: Vec<u32>,
}

impl Gathering {
    /// No records yet, in blocks of this many bytes.
    pub(crate) fn new(block_bytes: u64) -> Gathering {
        let (all, known, of_file, free) = Default::default();
        Gathering { all, block_bytes, known, of_file, free }
    }

    /// Adds a record. The error names what there is too much of.
    pub(crate) fn add(&mut self, record: Record) -> Result<(), &'static str> {
        let Gathering { all, block_bytes, known, of_file, free } = self;
        let indices = blocks_of(&record, *block_bytes, all.words.len())?;
        let Record { time_us, client, file, deed } = record;
        all.clients = all.clients.max(client + 1);
        let what = match deed {
            Deed::Read { .. } => READ,
            Deed::Write { .. } => WRITE,
            Deed::Delete => {
                let gone = of_file.remove(&file).unwrap_or_default();
                for block in gone.into_iter().filter_map(|index| known.remove(&(file, index))) {
                    all.add(time_us, client, block, FORGET);
                    free.push(block);
                }
                return Ok(());
            }
        };
        for index in indices {
            let block = match known.entry((file, index)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(unknown) => {
                    of_file.entry(file).or_default().push(index);
                    let block = free.pop().map_or_else(|| next_number(all.blocks as usize), Ok)?;
                    all.blocks = all.blocks.max(block + 1);
                    *unknown.insert(block)
                }
            };
            all.add(time_us, client, block, what);
        }
        Ok(())
    }

    /// The accesses of all records.
    pub(crate) fn end(self) -> Blocks {
        self.all
    }
}

impl Blocks {
    /// The accesses of a trace, in blocks of this many bytes. Fails with the trace's own error, or
    /// if there are too many blocks or clients to count.
    pub fn of<E>(
        records: impl IntoIterator<Item = Result<Record, E>>,
        block_bytes: u64,
    ) -> Result<Blocks, BlocksError<E>> {
        let mut gathering = Gathering::new(block_bytes);
        for (record, number) in records.into_iter().zip(1..) {
            let record = record.map_err(BlocksError::Trace)?;
            gathering.add(record).map_err(|what| BlocksError::TooMany(what, number))?;
        }
        Ok(gathering.end())
    }

    fn add(&mut self, time_us: u64, client: u32, block: u32, what: u64) {
        let time_us = time_us.min(TIME_US_MAX);
        let mut since = time_us.saturating_sub(self.time_us);
        if since >= SINCE_US_MAX {
            self.words.push(since << CLIENT_SHIFT | PASS);
            since = 0;
        }
        let word = since << SINCE_SHIFT | u64::from(block) << BLOCK_SHIFT | u64::from(client) << CLIENT_SHIFT | what;
        self.words.push(word);
        self.len += u64::from(what != FORGET);
        self.time_us = self.time_us.max(time_us);
    }

    /// All accesses, in order.
    pub(super) fn accesses(&self) -> impl Iterator<Item = Access> {
        let (mut time_us, mut now) = (0u64, 0u64);
        self.words.iter().filter_map(move |word| {
            let deal = match word & 3 {
                READ => Deal::Read,
                WRITE => Deal::Write,
                FORGET => Deal::Forget,
                _ => {
                    time_us += word >> CLIENT_SHIFT;
                    return None;
                }
            };
            time_us += word >> SINCE_SHIFT;
            now = time_us.max(now + 1);
            let (client, block) = (word >> CLIENT_SHIFT & 0xffff, word >> BLOCK_SHIFT & 0x7fff_ffff);
            Some(Access { now, client: client as u32, block: block as u32, deal })
        })
    }

    /// Number of reads and writes of blocks.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if there are no reads and writes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of clients.
    pub fn clients(&self) -> u32 {
        self.clients
    }

    /// The largest number of different blocks at once.
    pub fn count(&self) -> u32 {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(of: &[(u64, u32, u64, Deed)]) -> Result<Blocks, BlocksError<()>> {
        let record =
            |(time_us, client, file, deed): &_| Record { time_us: *time_us, client: *client, file: *file, deed: *deed };
        Blocks::of(of.iter().map(record).map(Ok), 10)
    }

    #[test]
    fn what_is_packed_is_what_was_in_the_trace() {
        let (read, write) = (Deed::Read { offset: 5, len: 16 }, Deed::Write { offset: 10, len: 1 });
        let late = 1 << 50;
        let all = [(7, 65_535, 3, read), (7, 1, 3, write), (40_000, 2, 4, write), (late, 0, 3, Deed::Delete)];
        let all = blocks(&all).expect("blocks");
        let access = |now, client, block, deal| Access { now, client, block, deal };
        let expected = [
            access(7, 65_535, 0, Deal::Read),
            access(8, 65_535, 1, Deal::Read),
            access(9, 65_535, 2, Deal::Read),
            access(10, 1, 1, Deal::Write),
            access(40_000, 2, 3, Deal::Write),
            access(late, 0, 0, Deal::Forget),
            access(late + 1, 0, 1, Deal::Forget),
            access(late + 2, 0, 2, Deal::Forget),
        ];
        assert_eq!(all.accesses().collect::<Vec<_>>(), expected);
        assert_eq!((all.len(), all.clients(), all.count()), (5, 65_536, 4));
    }

    #[test]
    fn time_may_go_to_its_end_and_back() {
        let read = Deed::Read { offset: 0, len: 1 };
        let all = blocks(&[(5, 0, 0, read), (u64::MAX, 0, 0, read), (7, 0, 0, read)]).expect("blocks");
        let times: Vec<u64> = all.accesses().map(|access| access.now).collect();
        assert_eq!(times, [5, TIME_US_MAX, TIME_US_MAX + 1]);
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        let read = |offset, len| [(0, 0, 0, Deed::Read { offset, len })];
        let large = "blocks of one read or write";
        assert!(matches!(blocks(&read(0, u64::MAX)), Err(BlocksError::TooMany(what, 1)) if what == large));
        let most = 10 * RECORD_BLOCKS_MAX;
        assert_eq!(blocks(&read(0, most)).map(|all| all.len()).ok(), Some(RECORD_BLOCKS_MAX));
        assert!(matches!(blocks(&read(0, most + 1)), Err(BlocksError::TooMany(what, 1)) if what == large));
        assert!(blocks(&read(u64::MAX, u64::MAX)).is_ok());
        assert!(matches!(blocks(&[(0, 65_536, 0, Deed::Delete)]), Err(BlocksError::TooMany("clients", 1))));
        let none = Blocks::of(
            [Ok::<_, ()>(Record { time_us: 0, client: 0, file: 0, deed: Deed::Read { offset: 0, len: 1 } })],
            0,
        );
        assert!(matches!(none, Err(BlocksError::TooMany("blocks", 1))));
        let all = [(0, 0, 0, Deed::Read { offset: 0, len: 10 }), (0, 0, 1, Deed::Read { offset: 0, len: u64::MAX })];
        assert!(matches!(blocks(&all), Err(BlocksError::TooMany(what, 2)) if what == large));
        assert_eq!(
            (next_number(BLOCK_COUNT_MAX - 1), next_number(BLOCK_COUNT_MAX)),
            (Ok((1 << 24) - 1), Err("blocks"))
        );
    }
}
