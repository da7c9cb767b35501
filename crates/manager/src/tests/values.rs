//! Strategies for deltas and inodes: any value that encoders write.

use crate::{Delta, DirectoryShape, InodeRecord};
use proptest::prelude::*;
use types::{BlockAddr, Extent, FileId, Kind, LogId, SegmentId, Time};

fn addr() -> impl Strategy<Value = BlockAddr> {
    (any::<u32>(), any::<u32>(), any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(log, epoch, seq, offset, len)| {
        let segment = SegmentId { log: LogId::new(log), epoch, seq };
        BlockAddr { segment, offset, len: len.min(u32::MAX - offset) }
    })
}

pub fn extent() -> impl Strategy<Value = Extent> {
    (any::<u64>(), 1..=u32::MAX, addr()).prop_map(|(first, count, addr)| Extent {
        first: first.min(u64::MAX - u64::from(count)),
        count,
        addr,
    })
}

fn time() -> impl Strategy<Value = Time> {
    (any::<i64>(), 0u32..1_000_000_000).prop_map(|(sec, nsec)| Time { sec, nsec })
}

pub fn inode() -> impl Strategy<Value = InodeRecord> {
    let numbers = (any::<u64>(), 1u8..=7, 0u32..=0o7777, any::<[u32; 3]>(), any::<u64>());
    let sizes = (0..=i64::MAX as u64, any::<u64>());
    let times = [time(), time(), time(), time()];
    let shape = (any::<u64>(), 1..=u32::MAX, any::<[u64; 3]>());
    (numbers, sizes, times, shape).prop_filter_map("a kind", |(numbers, (size, stored_bytes), times, shape)| {
        let (id, kind, mode, [nlink, uid, gid], rdev) = numbers;
        let [atime, mtime, ctime, crtime] = times;
        let kind = Kind::from_u8(kind)?;
        let (parent, shape) = match shape {
            (parent, buckets, [entries, entry_bytes, hash_key]) if kind == Kind::Directory => {
                (FileId::new(parent), DirectoryShape { buckets, entries, entry_bytes, hash_key })
            }
            _ => (FileId::new(0), DirectoryShape::default()),
        };
        let id = FileId::new(id);
        Some(InodeRecord {
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
    })
}

pub fn delta() -> impl Strategy<Value = Delta> {
    let file = || any::<u64>().prop_map(FileId::new);
    let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        inode().prop_map(Delta::Inode),
        (file(), extent()).prop_map(|(file, extent)| Delta::Blocks { file, extent }),
        (file(), any::<u64>(), any::<u64>()).prop_map(|(file, a, b)| Delta::Unmap {
            file,
            first: a.min(b),
            end: a.max(b)
        }),
        (file(), bytes(), proptest::option::of(bytes())).prop_map(|(file, name, value)| Delta::Xattr {
            file,
            name,
            value
        }),
        (file(), bytes()).prop_map(|(file, target)| Delta::Symlink { file, target }),
        file().prop_map(|file| Delta::Remove { file }),
        (file(), extent(), addr()).prop_map(|(file, from, to)| Delta::Move { file, from, to }),
    ]
}
