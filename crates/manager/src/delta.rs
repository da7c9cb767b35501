//! Deltas: the logged changes that a client's segment carries and that managers apply
//! (docs/core.md#manager).
//!
//! A segment's deltas are one atomic group: the difference between the file system as the log
//! described it before and after. Deltas of one segment are applied in order.

use crate::InodeRecord;
use types::codec::{DecodeError, Put, Reader};
use types::{BlockAddr, Extent, FileId};

/// One logged change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Delta {
    /// An inode was created or changed. With `nlink` 0 it is an orphan.
    Inode(InodeRecord),
    /// Blocks of a file are now stored here, in place of any earlier ones.
    Blocks {
        /// The file.
        file: FileId,
        /// The run.
        extent: Extent,
    },
    /// The blocks `first .. end` of a file are now holes (truncate, punch).
    Unmap {
        /// The file.
        file: FileId,
        /// First block.
        first: u64,
        /// Block after the last; `u64::MAX` for all that follow.
        end: u64,
    },
    /// An extended attribute was set (`Some`) or removed.
    Xattr {
        /// The file.
        file: FileId,
        /// Full name with its prefix.
        name: Vec<u8>,
        /// The value; `None` if the attribute was removed.
        value: Option<Vec<u8>>,
    },
    /// The target of a symbolic link, logged with its creation.
    Symlink {
        /// The link.
        file: FileId,
        /// Where it points.
        target: Vec<u8>,
    },
    /// The inode, its blocks and its attributes are gone for good.
    Remove {
        /// The file.
        file: FileId,
    },
    /// A cleaner's offer: the blocks at `from` were copied to `to`. It is applied block by block,
    /// only where the file's block is still exactly at its `from` address (optimistic concurrency;
    /// Dahlin 4.3.1).
    Move {
        /// The file.
        file: FileId,
        /// Where the run was.
        from: Extent,
        /// Where the copy is.
        to: BlockAddr,
    },
}

impl Delta {
    /// The file whose manager applies this delta.
    pub fn file(&self) -> FileId {
        match self {
            Delta::Inode(i) => i.id,
            Delta::Blocks { file, .. }
            | Delta::Unmap { file, .. }
            | Delta::Xattr { file, .. }
            | Delta::Symlink { file, .. }
            | Delta::Remove { file }
            | Delta::Move { file, .. } => *file,
        }
    }

    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Delta::Inode(inode) => {
                out.put_u8(1);
                inode.encode(out);
            }
            Delta::Blocks { file, extent } => {
                out.put_u8(2);
                out.put_u64(file.raw());
                extent.encode(out);
            }
            Delta::Unmap { file, first, end } => {
                out.put_u8(3);
                out.put_u64(file.raw());
                out.put_u64(*first);
                out.put_u64(*end);
            }
            Delta::Xattr { file, name, value } => {
                out.put_u8(if value.is_some() { 4 } else { 5 });
                out.put_u64(file.raw());
                out.put_blob(name);
                if let Some(v) = value {
                    out.put_blob(v);
                }
            }
            Delta::Symlink { file, target } => {
                out.put_u8(6);
                out.put_u64(file.raw());
                out.put_blob(target);
            }
            Delta::Remove { file } => {
                out.put_u8(7);
                out.put_u64(file.raw());
            }
            Delta::Move { file, from, to } => {
                out.put_u8(8);
                out.put_u64(file.raw());
                from.encode(out);
                to.encode(out);
            }
        }
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let file = |r: &mut Reader<'_>| Ok::<_, DecodeError>(FileId::new(r.u64("delta file")?));
        Ok(match r.u8("delta tag")? {
            1 => Delta::Inode(InodeRecord::decode(r)?),
            2 => Delta::Blocks { file: file(r)?, extent: Extent::decode(r)? },
            3 => {
                let d = Delta::Unmap { file: file(r)?, first: r.u64("unmap first")?, end: r.u64("unmap end")? };
                match d {
                    Delta::Unmap { first, end, .. } if first > end => return Err(DecodeError::Invalid("unmap range")),
                    d => d,
                }
            }
            4 => Delta::Xattr {
                file: file(r)?,
                name: r.blob("xattr name")?.to_vec(),
                value: Some(r.blob("xattr value")?.to_vec()),
            },
            5 => Delta::Xattr { file: file(r)?, name: r.blob("xattr name")?.to_vec(), value: None },
            6 => Delta::Symlink { file: file(r)?, target: r.blob("symlink target")?.to_vec() },
            7 => Delta::Remove { file: file(r)? },
            8 => Delta::Move { file: file(r)?, from: Extent::decode(r)?, to: BlockAddr::decode(r)? },
            _ => return Err(DecodeError::Invalid("delta tag")),
        })
    }

    /// Decodes a segment's whole delta section.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<Delta>, DecodeError> {
        let mut r = Reader::new(bytes);
        let mut out = Vec::new();
        while !r.is_empty() {
            out.push(Delta::decode(&mut r)?);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::values::delta;
    use proptest::prelude::*;
    use types::testing::{assert_mutations_are_canonical, assert_round_trip, assert_truncations_are_refused};

    fn encoded(deltas: &[Delta]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for delta in deltas {
            delta.encode(&mut bytes);
        }
        bytes
    }

    #[test]
    fn an_unmap_that_ends_before_it_begins_is_refused() {
        let file = FileId::new(9);
        assert!(Delta::decode_all(&encoded(&[Delta::Unmap { file, first: 5, end: 5 }])).is_ok());
        let reversed = encoded(&[Delta::Unmap { file, first: 5, end: 4 }]);
        assert_eq!(Delta::decode_all(&reversed), Err(DecodeError::Invalid("unmap range")));
    }

    #[test]
    fn unknown_tags_are_refused() {
        for tag in (0..=255).filter(|tag| !(1..=8).contains(tag)) {
            let mut bytes = vec![0; 200];
            bytes[0] = tag;
            assert_eq!(Delta::decode_all(&bytes), Err(DecodeError::Invalid("delta tag")));
        }
    }

    #[test]
    fn a_length_beyond_the_bytes_takes_no_memory() {
        let mut bytes = vec![6];
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Delta::decode_all(&bytes), Err(DecodeError::Truncated("symlink target")));
    }

    #[test]
    fn an_empty_section_has_no_deltas() {
        assert_eq!(Delta::decode_all(&[]), Ok(vec![]));
    }

    proptest! {
        #[test]
        fn prop_deltas_come_back_as_they_were(delta in delta()) {
            assert_round_trip(&delta, Delta::encode, Delta::decode);
            assert_truncations_are_refused(&delta, Delta::encode, Delta::decode);
        }

        #[test]
        fn prop_sections_come_back_in_order(deltas in proptest::collection::vec(delta(), 0..20)) {
            prop_assert_eq!(Delta::decode_all(&encoded(&deltas)), Ok(deltas));
        }

        #[test]
        fn prop_mutated_deltas_are_refused_or_are_what_encoding_them_gives(delta in delta()) {
            assert_mutations_are_canonical(&encoded(&[delta]), Delta::encode, Delta::decode);
        }

        #[test]
        fn prop_arbitrary_sections_are_refused_or_are_what_encoding_them_gives(
            tag in 0u8..10,
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut section = vec![tag];
            section.extend(bytes);
            if let Ok(deltas) = Delta::decode_all(&section) {
                prop_assert_eq!(encoded(&deltas), section);
            }
        }
    }
}
