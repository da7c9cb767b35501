//! The inode record: what a manager stores of a file besides its block map.

use types::codec::{DecodeError, Put, Reader};
use types::{Attr, FileId, Kind, Time};

/// How a directory's entries are spread over its blocks (linear hashing; see the client's
/// `directory` module).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirectoryShape {
    /// Number of entry blocks (buckets), at least 1.
    pub buckets: u32,
    /// Number of entries, without `.` and `..`.
    pub entries: u64,
    /// Sum of the encoded lengths of all entries, in bytes.
    pub entry_bytes: u64,
    /// Key of the name hash, random per directory.
    pub hash_key: u64,
}

/// Everything about a file but its blocks, extended attributes and symlink target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeRecord {
    /// Identity.
    pub id: FileId,
    /// Type.
    pub kind: Kind,
    /// Lower twelve bits of st_mode.
    pub mode: u32,
    /// Link count. A file with 0 is an orphan, and is kept while it is open.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u64,
    /// Length in bytes.
    pub size: u64,
    /// Bytes of blocks stored.
    pub stored_bytes: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Creation.
    pub crtime: Time,
    /// Directories only: the parent (`..`); otherwise 0.
    pub parent: FileId,
    /// Directories only; otherwise all zero.
    pub shape: DirectoryShape,
}

impl InodeRecord {
    /// The attributes that stat(2) shows. `block_size` is in bytes.
    pub fn attr(&self, block_size: u32) -> Attr {
        Attr {
            id: self.id,
            kind: self.kind,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            blocks: self.stored_bytes.div_ceil(512),
            block_size,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            crtime: self.crtime,
        }
    }

    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.id.raw());
        out.put_u8(self.kind as u8);
        out.put_u32(self.mode);
        out.put_u32(self.nlink);
        out.put_u32(self.uid);
        out.put_u32(self.gid);
        out.put_u64(self.rdev);
        out.put_u64(self.size);
        out.put_u64(self.stored_bytes);
        for t in [self.atime, self.mtime, self.ctime, self.crtime] {
            out.put_i64(t.sec);
            out.put_u32(t.nsec);
        }
        if self.kind == Kind::Directory {
            out.put_u64(self.parent.raw());
            out.put_u32(self.shape.buckets);
            out.put_u64(self.shape.entries);
            out.put_u64(self.shape.entry_bytes);
            out.put_u64(self.shape.hash_key);
        }
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let id = FileId::new(r.u64("inode id")?);
        let kind = Kind::from_u8(r.u8("inode kind")?).ok_or(DecodeError::Invalid("inode kind"))?;
        let mode = r.u32("inode mode")?;
        if mode & !0o7777 != 0 {
            return Err(DecodeError::Invalid("inode mode"));
        }
        let (nlink, uid, gid) = (r.u32("nlink")?, r.u32("uid")?, r.u32("gid")?);
        let (rdev, size, stored_bytes) = (r.u64("rdev")?, r.u64("size")?, r.u64("stored bytes")?);
        if size > i64::MAX as u64 {
            return Err(DecodeError::Invalid("inode size"));
        }
        let mut times = [Time::default(); 4];
        for t in &mut times {
            *t = Time { sec: r.i64("time")?, nsec: r.u32("time")? };
            if t.nsec >= 1_000_000_000 {
                return Err(DecodeError::Invalid("time"));
            }
        }
        let (mut parent, mut shape) = (FileId::new(0), DirectoryShape::default());
        if kind == Kind::Directory {
            parent = FileId::new(r.u64("parent")?);
            shape = DirectoryShape {
                buckets: r.u32("buckets")?,
                entries: r.u64("entries")?,
                entry_bytes: r.u64("entry bytes")?,
                hash_key: r.u64("hash key")?,
            };
            if shape.buckets == 0 {
                return Err(DecodeError::Invalid("buckets"));
            }
        }
        let [atime, mtime, ctime, crtime] = times;
        Ok(InodeRecord {
            id,
            kind,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size,
            stored_bytes,
            atime,
            mtime,
            ctime,
            crtime,
            parent,
            shape,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::values::inode;
    use proptest::prelude::*;
    use types::testing::{assert_mutations_are_canonical, assert_round_trip, assert_truncations_are_refused};

    fn encoded(record: &InodeRecord) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        bytes
    }

    fn directory() -> InodeRecord {
        InodeRecord {
            id: FileId::ROOT,
            kind: Kind::Directory,
            mode: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 4096,
            stored_bytes: 1025,
            atime: Time::default(),
            mtime: Time { sec: -1, nsec: 999_999_999 },
            ctime: Time::default(),
            crtime: Time::default(),
            parent: FileId::ROOT,
            shape: DirectoryShape { buckets: 1, entries: 0, entry_bytes: 0, hash_key: 7 },
        }
    }

    #[test]
    fn stat_shows_stored_bytes_in_whole_blocks_of_512() {
        let attr = directory().attr(65_536);
        assert_eq!((attr.blocks, attr.block_size, attr.size, attr.nlink), (3, 65_536, 4096, 2));
    }

    #[test]
    fn values_that_no_encoder_writes_are_refused() {
        let refused = |change: fn(&mut InodeRecord)| {
            let mut record = directory();
            change(&mut record);
            InodeRecord::decode(&mut Reader::new(&encoded(&record)))
        };
        let invalid = |what| Err(DecodeError::Invalid(what));
        assert_eq!(refused(|r| r.mode = 0o10000), invalid("inode mode"));
        assert_eq!(refused(|r| r.size = 1 << 63), invalid("inode size"));
        assert_eq!(refused(|r| r.mtime.nsec = 1_000_000_000), invalid("time"));
        assert_eq!(refused(|r| r.shape.buckets = 0), invalid("buckets"));
        for kind in (0..=255).filter(|&k| Kind::from_u8(k).is_none()) {
            let mut bytes = encoded(&directory());
            bytes[8] = kind;
            assert_eq!(InodeRecord::decode(&mut Reader::new(&bytes)), invalid("inode kind"));
        }
    }

    #[test]
    fn every_value_of_every_byte_is_refused_or_is_what_encoding_it_gives() {
        assert_mutations_are_canonical(&encoded(&directory()), InodeRecord::encode, InodeRecord::decode);
    }

    proptest! {
        #[test]
        fn prop_inode_records_come_back_as_they_were(record in inode()) {
            assert_round_trip(&record, InodeRecord::encode, InodeRecord::decode);
            assert_truncations_are_refused(&record, InodeRecord::encode, InodeRecord::decode);
        }
    }
}
