//! The contents of a manager's own log: records, and a directory of them in each segment
//! (docs/disk-format-manager.md).
//!
//! A segment's payload is records back to back. Its delta section is the [`RecordDirectory`], so
//! that the records of a segment can be found without reading them. Every record begins with its
//! kind and the version of the encoding.

use types::codec::{DecodeError, Put, Reader};
use types::{BlockAddr, SegmentId};

/// Version of the directory's encoding.
const DIRECTORY_VERSION: u16 = 2;
/// Encoded length of a directory without entries, in bytes.
pub const DIRECTORY_HEADER_LEN: usize = 6;
/// Encoded length of a directory entry, in bytes.
pub const DIRECTORY_ENTRY_LEN: usize = 25;
/// Version of all record encodings but the root's.
const RECORD_VERSION: u8 = 2;
/// The version of root records. Roots of version 2 have no order.
const ROOT_VERSION: u8 = 3;

/// Kinds from this one on are pages: the kind is this, plus sixteen times the table's number, plus
/// the level.
const PAGE_KIND: u8 = 64;

/// A table that is kept in pages ([`crate::tree`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Table {
    /// For each file: the address of its index node.
    Imap,
    /// For each segment of clients' and cleaners' logs: live bytes.
    DataUsage,
    /// For each segment of the manager's own log: live bytes, without those of this table's own
    /// pages.
    OwnUsage,
    /// Files with nlink 0.
    Orphans,
}

impl Table {
    /// All tables, in the order of their numbers.
    pub const ALL: [Table; 4] = [Table::Imap, Table::DataUsage, Table::OwnUsage, Table::Orphans];

    fn number(self) -> u8 {
        match self {
            Table::Imap => 0,
            Table::DataUsage => 1,
            Table::OwnUsage => 2,
            Table::Orphans => 3,
        }
    }
}

/// The kind of a record, and the thing that it describes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RecordKey {
    /// The index node of the file with this raw id.
    Node(u64),
    /// Leaf number `.1` of the block map of the file with raw id `.0`.
    Leaf(u64, u64),
    /// A page of a table.
    Page {
        /// The table.
        table: Table,
        /// The page's level: 0 for a leaf; below
        /// [`LEVEL_COUNT_MAX`](crate::tree::LEVEL_COUNT_MAX).
        level: u8,
        /// The first key of the page.
        first: u128,
    },
    /// The root: the end of a checkpoint.
    Root,
}

impl RecordKey {
    /// The kind's number and the two parts of the key.
    fn parts(self) -> (u8, u64, u64) {
        match self {
            RecordKey::Node(file) => (1, file, 0),
            RecordKey::Leaf(file, leaf) => (2, file, leaf),
            RecordKey::Root => (5, 0, 0),
            RecordKey::Page { table, level, first } => {
                (PAGE_KIND + 16 * table.number() + level, (first >> 64) as u64, first as u64)
            }
        }
    }

    /// The version of records of this kind that this program writes.
    fn version(self) -> u8 {
        match self {
            RecordKey::Root => ROOT_VERSION,
            _ => RECORD_VERSION,
        }
    }

    /// Appends the first bytes of every record of this kind.
    pub fn begin(self, out: &mut Vec<u8>) {
        out.put_u8(self.parts().0);
        out.put_u8(self.version());
    }

    /// Checks the first bytes of a record that should be of this kind. Returns the record's
    /// version: the one that this program writes, or for roots also 2.
    pub fn check(self, r: &mut Reader<'_>) -> Result<u8, DecodeError> {
        let known = self.version();
        if r.u8("record kind")? != self.parts().0 {
            return Err(DecodeError::Invalid("record kind"));
        }
        let found = r.u8("record version")?;
        match (RECORD_VERSION..=known).contains(&found) {
            true => Ok(found),
            false => Err(DecodeError::Version { what: "record", found: found.into(), known: known.into() }),
        }
    }
}

/// The records of one segment, and their places in it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordDirectory {
    entries: Vec<(RecordKey, u32, u32)>,
}

impl RecordDirectory {
    /// Adds a record at `offset` with length `len`, in bytes of the payload.
    pub fn push(&mut self, key: RecordKey, offset: u32, len: u32) {
        self.entries.push((key, offset, len));
    }

    /// Encoded length in bytes.
    pub fn encoded_len(&self) -> usize {
        DIRECTORY_HEADER_LEN + self.entries.len() * DIRECTORY_ENTRY_LEN
    }

    /// The records with their addresses. `segment` is the segment that has this directory.
    pub fn records(&self, segment: SegmentId) -> impl Iterator<Item = (RecordKey, BlockAddr)> + '_ {
        self.entries.iter().map(move |&(key, offset, len)| (key, BlockAddr { segment, offset, len }))
    }

    /// Encodes the directory.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encoded_len());
        out.put_u16(DIRECTORY_VERSION);
        out.put_u32(self.entries.len() as u32);
        for &(key, offset, len) in &self.entries {
            let (kind, a, b) = key.parts();
            out.put_u8(kind);
            out.put_u64(a);
            out.put_u64(b);
            out.put_u32(offset);
            out.put_u32(len);
        }
        out
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        match r.u16("directory version")? {
            DIRECTORY_VERSION => {}
            found => {
                return Err(DecodeError::Version { what: "segment directory", found, known: DIRECTORY_VERSION });
            }
        }
        let count = r.count(DIRECTORY_ENTRY_LEN, "directory entries")?;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            let (kind, a, b) = (r.u8("entry kind")?, r.u64("entry key")?, r.u64("entry key")?);
            let key = match kind {
                1 => RecordKey::Node(a),
                2 => RecordKey::Leaf(a, b),
                5 => RecordKey::Root,
                PAGE_KIND.. => {
                    let table = Table::ALL.get(usize::from(kind - PAGE_KIND) / 16);
                    let table = *table.ok_or(DecodeError::Invalid("entry kind"))?;
                    RecordKey::Page { table, level: kind % 16, first: u128::from(a) << 64 | u128::from(b) }
                }
                _ => return Err(DecodeError::Invalid("entry kind")),
            };
            if key.parts() != (kind, a, b) {
                return Err(DecodeError::Invalid("entry key"));
            }
            let (offset, len) = (r.u32("entry offset")?, r.u32("entry length")?);
            if offset.checked_add(len).is_none() {
                return Err(DecodeError::Invalid("entry length"));
            }
            entries.push((key, offset, len));
        }
        if !r.is_empty() {
            return Err(DecodeError::Invalid("directory length"));
        }
        Ok(RecordDirectory { entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = RecordKey> {
        prop_oneof![
            any::<u64>().prop_map(RecordKey::Node),
            any::<(u64, u64)>().prop_map(|(a, b)| RecordKey::Leaf(a, b)),
            (prop::sample::select(&Table::ALL[..]), 0u8..16, any::<u128>())
                .prop_map(|(table, level, first)| RecordKey::Page { table, level, first }),
            Just(RecordKey::Root),
        ]
    }

    #[test]
    fn a_record_of_another_kind_or_version_is_refused() {
        let mut bytes = Vec::new();
        RecordKey::Node(7).begin(&mut bytes);
        assert_eq!(RecordKey::Node(8).check(&mut Reader::new(&bytes)), Ok(2));
        assert_eq!(RecordKey::Root.check(&mut Reader::new(&bytes)), Err(DecodeError::Invalid("record kind")));
        for (key, known) in [(RecordKey::Node(7), [2].as_slice()), (RecordKey::Root, &[2, 3])] {
            let mut bytes = Vec::new();
            key.begin(&mut bytes);
            for version in 0..=9 {
                bytes[1] = version;
                let checked = key.check(&mut Reader::new(&bytes));
                match known.contains(&version) {
                    true => assert_eq!(checked, Ok(version)),
                    false => assert!(matches!(checked, Err(DecodeError::Version { .. })), "{key:?} {version}"),
                }
            }
        }
    }

    #[test]
    fn regression_a_second_key_where_there_is_none_is_refused() {
        let mut directory = RecordDirectory::default();
        directory.push(RecordKey::Node(18), 0, 10);
        let mut bytes = directory.encode();
        bytes[DIRECTORY_HEADER_LEN + 9] = 1;
        assert_eq!(RecordDirectory::decode(&bytes), Err(DecodeError::Invalid("entry key")));
    }

    proptest! {
        #[test]
        fn prop_directory_round_trips(entries in prop::collection::vec((key(), 0u32..1 << 30, any::<u16>()), 0..40)) {
            let mut directory = RecordDirectory::default();
            for (key, offset, len) in entries {
                directory.push(key, offset, len.into());
            }
            let bytes = directory.encode();
            prop_assert_eq!(bytes.len(), directory.encoded_len());
            prop_assert_eq!(&RecordDirectory::decode(&bytes).unwrap(), &directory);
            prop_assert!(RecordDirectory::decode(&bytes[..bytes.len() - 1]).is_err());
        }

        #[test]
        fn prop_rotten_directory_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = RecordDirectory::decode(&bytes);
        }
    }
}
