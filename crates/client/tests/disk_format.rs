//! Compares `docs/disk-format.md` with the code: the program encodes the document's directory
//! block, and puts names into the buckets that the document says.

#[path = "../../striped-log/tests/documented/mod.rs"]
mod documented;

use client::directory::{Bucket, Directory};
use manager::DirectoryShape;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use types::{FileId, Kind};

const DOCUMENT: &str = include_str!("../../../docs/disk-format.md");
const BLOCK_SIZE: u32 = 65536;

fn shape() -> DirectoryShape {
    // The hash key is that of the document's inode.
    DirectoryShape { buckets: 1, entries: 0, entry_bytes: 0, hash_key: 0x0123_4567_89ab_cdef }
}

#[test]
fn the_directory_block_is_as_documented() {
    let (mut shape, mut directory) = (shape(), Directory::fresh(BLOCK_SIZE));
    let names: [(&[u8], u64, Kind); 2] = [(b"docs", 0x404, Kind::Directory), (b"notes.txt", 0x403, Kind::File)];
    for (name, id, kind) in names {
        directory.insert(&mut shape, name, FileId::new(id), kind).expect("there is room");
    }
    let documented = documented::structure(DOCUMENT, "Directory block");
    assert_eq!(directory.take_dirty(), [(0, documented.clone())]);
    assert_eq!((shape.entries, shape.entry_bytes), (2, 2 * 18 + 4 + 9));

    let mut read = Directory::unloaded(BLOCK_SIZE);
    read.loaded(0, Bucket::decode(&documented).expect("documented"));
    for (name, id, kind) in names {
        let found = read.find(&shape, name).expect("loaded").expect("it is there");
        assert_eq!((found.id, found.kind), (FileId::new(id), kind));
    }
    assert_eq!(Bucket::decode(&[]), Ok(Bucket::default()), "a block that is not mapped");
}

/// The cookie of a name, by the document.
fn cookie(hash_key: u64, name: &[u8]) -> u64 {
    let mut hash = SipHasher24::new_with_keys(hash_key, 0x7374_6172_6c69_6e67);
    hash.write(name);
    (hash.finish() >> 1).max(3)
}

/// The bucket of a cookie, by the document.
fn bucket(cookie: u64, buckets: u32) -> u32 {
    let l = buckets.ilog2();
    let w = (0..=l).map(|bit| ((cookie >> (62 - bit)) as u32 & 1) << bit).sum::<u32>();
    if w < buckets { w } else { w - (1 << l) }
}

/// The entries of a block, by the document: cookies and names.
fn entries(block: &[u8]) -> Vec<(u64, Vec<u8>)> {
    assert_eq!(block[0], 1, "version");
    let (mut rest, mut all) = (&block[1..], Vec::new());
    while !rest.is_empty() {
        let (fixed, names) = rest.split_at(18);
        let (name, next) = names.split_at(fixed[17].into());
        all.push((u64::from_le_bytes(fixed[..8].try_into().expect("eight bytes")), name.to_vec()));
        rest = next;
    }
    all
}

#[test]
fn names_are_in_the_buckets_that_are_documented() {
    let (mut shape, mut directory) = (shape(), Directory::fresh(BLOCK_SIZE));
    for i in 0..2_000 {
        directory
            .insert(&mut shape, format!("name-{i}").as_bytes(), FileId::new(9), Kind::File)
            .expect("there is room");
    }
    let blocks = directory.take_dirty();
    assert!(shape.buckets > 16 && blocks.len() == shape.buckets as usize, "{}", shape.buckets);
    let mut count = 0;
    for (index, block) in &blocks {
        let entries = entries(block);
        assert!(entries.is_sorted(), "by cookie");
        for (found, name) in entries {
            assert_eq!(found, cookie(shape.hash_key, &name));
            assert_eq!(*index, bucket(found, shape.buckets));
            count += 1;
        }
    }
    assert_eq!(count, 2_000);
}
