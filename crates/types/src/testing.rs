//! What this crate's tests share: any value of each encoded type, and what must hold of every codec.

use crate::codec::{DecodeError, Reader};
use crate::{BlockAddr, Delta, DirectoryShape, Extent, FileId, InodeRecord, Kind, LogId, SegmentId, Time};
use proptest::prelude::*;
use std::fmt::Debug;

type Decode<T> = fn(&mut Reader<'_>) -> Result<T, DecodeError>;

fn encoded<T>(value: &T, encode: fn(&T, &mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(value, &mut bytes);
    bytes
}

/// What was encoded decodes to the same, and takes exactly its bytes.
pub fn assert_round_trip<T: PartialEq + Debug>(value: &T, encode: fn(&T, &mut Vec<u8>), decode: Decode<T>) {
    let mut bytes = encoded(value, encode);
    let len = bytes.len();
    bytes.extend_from_slice(b"more");
    let mut r = Reader::new(&bytes);
    assert_eq!(decode(&mut r).as_ref(), Ok(value));
    assert_eq!(r.remaining(), bytes.len() - len);
}

/// No beginning of an encoding is taken for a whole one.
pub fn assert_truncations_are_refused<T: PartialEq + Debug>(
    value: &T,
    encode: fn(&T, &mut Vec<u8>),
    decode: Decode<T>,
) {
    let bytes = encoded(value, encode);
    for len in 0..bytes.len() {
        let cut = decode(&mut Reader::new(&bytes[..len]));
        assert!(matches!(cut, Err(DecodeError::Truncated(_))), "{len} of {} bytes: {cut:?}", bytes.len());
    }
}

/// With any byte changed to any value, decoding refuses, or gives what encodes to exactly the bytes that were read.
pub fn assert_mutations_are_canonical<T>(bytes: &[u8], encode: fn(&T, &mut Vec<u8>), decode: Decode<T>) {
    for at in 0..bytes.len() {
        for value in 0..=255 {
            let mut mutated = bytes.to_vec();
            mutated[at] = value;
            let mut r = Reader::new(&mutated);
            if let Ok(decoded) = decode(&mut r) {
                let read = mutated.len() - r.remaining();
                assert_eq!(encoded(&decoded, encode), &mutated[..read]);
            }
        }
    }
}

pub fn addr() -> impl Strategy<Value = BlockAddr> {
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
