//! A trace as accesses of single blocks, with the blocks of each file and the ends of files.
//!
//! Files and blocks have numbers from 0 in the order in which they appear. A file that appears
//! after its deletion is another file.

use crate::cooperative::BlocksError;
use crate::cooperative::blocks::{blocks_of, next_number};
use std::collections::HashMap;
use trace::{Deed, Record};

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A block is read.
    Read(u32),
    /// A block is written.
    Write(u32),
    /// A file is deleted.
    Delete(u32),
}

/// One access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// When, in microseconds.
    pub time_us: u64,
    /// The client: numbers from 0.
    pub client: u32,
    /// What it does.
    pub what: What,
}

/// The place of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// The file.
    pub file: u32,
    /// True if it is the file's first block.
    pub is_first: bool,
}

/// The accesses of a trace.
#[derive(Default, Debug)]
pub struct Accesses {
    all: Vec<Access>,
    blocks: Vec<Block>,
    /// By file, its blocks.
    of_file: Vec<Vec<u32>>,
    clients: u32,
    block_bytes: u64,
}

impl Accesses {
    /// The accesses of a trace, in blocks of this many bytes, at least one. Fails with the trace's
    /// own error, or if there are too many blocks or clients to count.
    pub fn of<E>(
        records: impl IntoIterator<Item = Result<Record, E>>,
        block_bytes: u64,
    ) -> Result<Accesses, BlocksError<E>> {
        let block_bytes = block_bytes.max(1);
        let mut of = Accesses { block_bytes, ..Accesses::default() };
        let (mut files, mut known) = (HashMap::<u64, u32>::new(), HashMap::<(u32, u64), u32>::new());
        for (record, number) in records.into_iter().zip(1..) {
            let record = record.map_err(BlocksError::Trace)?;
            of.add(record, &mut files, &mut known).map_err(|what| BlocksError::TooMany(what, number))?;
        }
        Ok(of)
    }

    fn add(
        &mut self,
        record: Record,
        files: &mut HashMap<u64, u32>,
        known: &mut HashMap<(u32, u64), u32>,
    ) -> Result<(), &'static str> {
        let indices = blocks_of(&record, self.block_bytes, self.all.len())?;
        let Record { time_us, client, file, deed } = record;
        self.clients = self.clients.max(client + 1);
        let next = next_number(self.of_file.len()).map_err(|_| "files")?;
        let number = *files.entry(file).or_insert(next);
        if number == next {
            self.of_file.push(Vec::new());
        }
        if deed == Deed::Delete {
            files.remove(&file);
            self.all.push(Access { time_us, client, what: What::Delete(number) });
            return Ok(());
        }
        let is_write = matches!(deed, Deed::Write { .. });
        for index in indices {
            let next = next_number(self.blocks.len())?;
            let block = *known.entry((number, index)).or_insert(next);
            if block == next {
                self.blocks.push(Block { file: number, is_first: index == 0 });
                self.of_file[number as usize].push(block);
            }
            let what = if is_write { What::Write(block) } else { What::Read(block) };
            self.all.push(Access { time_us, client, what });
        }
        Ok(())
    }

    /// All accesses, in the order of the trace.
    pub fn all(&self) -> &[Access] {
        &self.all
    }

    /// Number of blocks.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Number of files.
    pub fn file_count(&self) -> usize {
        self.of_file.len()
    }

    /// The file of a block.
    pub fn block(&self, block: u32) -> Block {
        self.blocks[block as usize]
    }

    /// A file's blocks.
    pub fn blocks_of(&self, file: u32) -> &[u32] {
        &self.of_file[file as usize]
    }

    /// Number of clients.
    pub fn clients(&self) -> u32 {
        self.clients
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(deeds: &[(u64, Deed)]) -> Accesses {
        let record = |(file, deed): &(u64, Deed)| Record { time_us: 0, client: 1, file: *file, deed: *deed };
        Accesses::of(deeds.iter().map(|of| Ok::<_, ()>(record(of))), 100).expect("accesses")
    }

    #[test]
    fn bytes_are_blocks_and_a_name_that_comes_back_is_another_file() {
        let write = |offset, len| Deed::Write { offset, len };
        let of = of(&[
            (7, write(0, 1)),
            (9, write(150, 101)),
            (7, Deed::Read { offset: 99, len: 2 }),
            (7, Deed::Delete),
            (7, write(0, 100)),
            (8, Deed::Delete),
            (7, write(0, 0)),
        ]);
        let what: Vec<_> = of.all().iter().map(|access| access.what).collect();
        use What::{Delete, Read, Write};
        assert_eq!(what, [Write(0), Write(1), Write(2), Read(0), Read(3), Delete(0), Write(4), Delete(3)]);
        assert_eq!((of.blocks_of(0), of.blocks_of(1), of.blocks_of(2)), (&[0, 3][..], &[1, 2][..], &[4][..]));
        assert_eq!([0, 1, 4].map(|block| of.block(block).is_first), [true, false, true]);
        assert_eq!((of.clients(), of.file_count(), of.block_count()), (2, 4, 5));
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let refused = |client, len| {
            let deed = Deed::Write { offset: u64::MAX - 5, len };
            let other = Deed::Write { offset: 0, len: u64::MAX };
            let records = [deed, other].map(|deed| Ok::<_, ()>(Record { time_us: 0, client, file: 0, deed }));
            Accesses::of(records, 1).expect_err("too much")
        };
        assert!(matches!(refused(0, 100), BlocksError::TooMany("blocks of one read or write", 2)));
        assert!(matches!(refused(1 << 16, 1), BlocksError::TooMany("clients", 1)));
        let broken = Accesses::of([Err::<Record, _>("broken")], 1).expect_err("broken");
        assert!(matches!(broken, BlocksError::Trace("broken")));
    }
}
