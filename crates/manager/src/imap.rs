//! The imap: from index numbers to the addresses of index nodes (design, section 3.3).
//!
//! It describes what is **durable**: it changes only when a checkpoint has been written. What is newer is in the cache of
//! index nodes, in front of it. Pieces of [`PIECE_FILES`] consecutive numbers are records of their own; their addresses, the piece
//! table, are in the root. Pieces are loaded when first needed and stay.
//!
//! Memory: the table takes 48 bytes per piece, a loaded piece 6 KiB: 24 MiB per million files with consecutive numbers.

use crate::record::RecordKey;
use std::collections::BTreeMap;
use std::sync::Arc;
use types::codec::{DecodeError, Put, Reader};
use types::{BlockAddr, FileId, LogId, SegmentId};

/// Index numbers per piece.
pub const PIECE_FILES: usize = 256;
const PIECE_SHIFT: u32 = 8;

/// Stands for "no index node": no record is empty.
const NOWHERE: BlockAddr = BlockAddr { segment: SegmentId { log: LogId::new(0), epoch: 0, seq: 0 }, offset: 0, len: 0 };

/// The piece that a file's entry is in.
pub fn piece_of(file: FileId) -> u64 {
    file.raw() >> PIECE_SHIFT
}

/// The entries of [`PIECE_FILES`] consecutive files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    entries: Box<[BlockAddr; PIECE_FILES]>,
}

impl Default for Piece {
    fn default() -> Self {
        Piece { entries: Box::new([NOWHERE; PIECE_FILES]) }
    }
}

impl Piece {
    fn slot(file: FileId) -> usize {
        file.raw() as usize % PIECE_FILES
    }

    /// Where a file's index node is.
    pub fn get(&self, file: FileId) -> Option<BlockAddr> {
        Some(self.entries[Self::slot(file)]).filter(|addr| addr.len > 0)
    }

    /// Changes a file's entry.
    pub fn set(&mut self, file: FileId, addr: Option<BlockAddr>) {
        self.entries[Self::slot(file)] = addr.unwrap_or(NOWHERE);
    }

    /// True when no file of the piece exists.
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(|addr| addr.len == 0)
    }

    /// The files of the piece with number `key` and their index nodes, ascending.
    pub fn files(&self, key: u64) -> impl Iterator<Item = (FileId, BlockAddr)> + '_ {
        let with_ids = self.entries.iter().zip(key << PIECE_SHIFT..);
        with_ids.filter(|(addr, _)| addr.len > 0).map(|(&addr, raw)| (FileId::new(raw), addr))
    }

    /// The record of piece number `key`.
    pub fn encode(&self, key: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + PIECE_FILES * (1 + BlockAddr::ENCODED_LEN));
        RecordKey::Piece(key).begin(&mut out);
        out.put_u64(key);
        out.put_u32(self.entries.iter().filter(|addr| addr.len > 0).count() as u32);
        for (slot, addr) in self.entries.iter().enumerate().filter(|(_, addr)| addr.len > 0) {
            out.put_u8(slot as u8);
            addr.encode(&mut out);
        }
        out
    }

    /// Reads the record of piece number `key`.
    pub fn decode(bytes: &[u8], key: u64) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        RecordKey::Piece(key).check(&mut r)?;
        if r.u64("piece number")? != key {
            return Err(DecodeError::Invalid("piece number"));
        }
        let mut piece = Piece::default();
        for _ in 0..r.count(1 + BlockAddr::ENCODED_LEN, "piece entries")? {
            let slot = usize::from(r.u8("piece slot")?);
            let addr = BlockAddr::decode(&mut r)?;
            if addr.len == 0 || piece.entries[slot].len > 0 {
                return Err(DecodeError::Invalid("piece entry"));
            }
            piece.entries[slot] = addr;
        }
        if !r.is_empty() {
            return Err(DecodeError::Invalid("piece length"));
        }
        Ok(piece)
    }
}

/// One row of the piece table.
#[derive(Clone, Debug)]
struct Row {
    home: BlockAddr,
    piece: Option<Arc<Piece>>,
}

/// What the imap says of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// There is no such file in the checkpoint.
    Absent,
    /// Its index node is here.
    At(BlockAddr),
    /// The piece must be loaded from here first.
    Unloaded(BlockAddr),
}

/// The piece table with the pieces that are in memory. A clone shares the pieces.
#[derive(Clone, Debug, Default)]
pub struct Imap {
    rows: BTreeMap<u64, Row>,
}

impl Imap {
    /// Looks a file up.
    pub fn lookup(&self, file: FileId) -> Lookup {
        match self.rows.get(&piece_of(file)) {
            None => Lookup::Absent,
            Some(Row { piece: Some(piece), .. }) => piece.get(file).map_or(Lookup::Absent, Lookup::At),
            Some(Row { home, piece: None }) => Lookup::Unloaded(*home),
        }
    }

    /// Numbers of all pieces, ascending.
    pub fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        self.rows.keys().copied()
    }

    /// Where a piece's record is.
    pub fn home(&self, key: u64) -> Option<BlockAddr> {
        self.rows.get(&key).map(|row| row.home)
    }

    /// A piece that is in memory.
    pub fn piece(&self, key: u64) -> Option<&Arc<Piece>> {
        self.rows.get(&key)?.piece.as_ref()
    }

    /// Puts a piece that was read from `home` in memory; without effect if its record is elsewhere by now.
    pub fn install(&mut self, key: u64, home: BlockAddr, piece: Arc<Piece>) {
        if let Some(row) = self.rows.get_mut(&key).filter(|row| row.home == home) {
            row.piece.get_or_insert(piece);
        }
    }

    /// A checkpoint wrote the piece to `home`.
    pub fn replace(&mut self, key: u64, home: BlockAddr, piece: Arc<Piece>) {
        self.rows.insert(key, Row { home, piece: Some(piece) });
    }

    /// A checkpoint found that the piece has no files left.
    pub fn remove(&mut self, key: u64) {
        self.rows.remove(&key);
    }

    /// Appends the piece table.
    pub fn encode_table(&self, out: &mut Vec<u8>) {
        out.put_u32(self.rows.len() as u32);
        for (key, row) in &self.rows {
            out.put_u64(*key);
            row.home.encode(out);
        }
    }

    /// Reads a piece table; no piece is in memory.
    pub fn decode_table(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut rows = BTreeMap::new();
        for _ in 0..r.count(8 + BlockAddr::ENCODED_LEN, "piece table")? {
            let (key, home) = (r.u64("piece number")?, BlockAddr::decode(r)?);
            if key >= 1 << (64 - PIECE_SHIFT) || home.len == 0 || rows.insert(key, Row { home, piece: None }).is_some()
            {
                return Err(DecodeError::Invalid("piece table"));
            }
        }
        Ok(Imap { rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addr(seq: u64) -> BlockAddr {
        BlockAddr { segment: SegmentId { log: LogId::new(9), epoch: 2, seq }, offset: 8, len: 200 }
    }

    #[test]
    fn a_piece_is_found_only_after_it_was_loaded_from_where_it_is() {
        let (file, stranger) = (FileId::new(256 * 7 + 3), FileId::new(256 * 8));
        let mut piece = Piece::default();
        piece.set(file, Some(addr(1)));
        let mut written = Imap::default();
        written.replace(7, addr(2), Arc::new(piece.clone()));
        let mut table = Vec::new();
        written.encode_table(&mut table);
        let mut imap = Imap::decode_table(&mut Reader::new(&table)).unwrap();
        assert_eq!(imap.lookup(file), Lookup::Unloaded(addr(2)));
        assert_eq!(imap.lookup(stranger), Lookup::Absent);
        imap.install(7, addr(5), Arc::new(Piece::default()));
        assert_eq!(imap.lookup(file), Lookup::Unloaded(addr(2)), "a stale piece was taken");
        imap.install(7, addr(2), Arc::new(piece));
        assert_eq!(imap.lookup(file), Lookup::At(addr(1)));
        assert_eq!(imap.lookup(FileId::new(256 * 7 + 4)), Lookup::Absent);
    }

    proptest! {
        #[test]
        fn prop_piece_round_trips(entries in prop::collection::btree_map(any::<u8>(), 1u64..100, 0..100), key in 0u64..1 << 56) {
            let mut piece = Piece::default();
            let ids: Vec<(FileId, BlockAddr)> =
                entries.iter().map(|(&slot, &seq)| (FileId::new(key << 8 | u64::from(slot)), addr(seq))).collect();
            for &(file, at) in &ids {
                prop_assert_eq!(piece_of(file), key);
                piece.set(file, Some(at));
            }
            prop_assert_eq!(piece.files(key).collect::<Vec<_>>(), ids);
            prop_assert_eq!(piece.is_empty(), entries.is_empty());
            let record = piece.encode(key);
            prop_assert_eq!(&Piece::decode(&record, key).unwrap(), &piece);
            prop_assert!(Piece::decode(&record, key ^ 1).is_err());
            prop_assert!(Piece::decode(&record[..record.len() - 1], key).is_err());
        }

        #[test]
        fn prop_rotten_piece_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Piece::decode(&bytes, 0);
            let _ = Imap::decode_table(&mut Reader::new(&bytes));
        }
    }
}
