//! Directories as large as docs/semantics.md promises. Over a mount, the benchmark's scenario
//! `directory` does the same.

use client::directory::Directory;
use manager::DirectoryShape;
use types::{FileId, Kind};

const COUNT: u64 = 1_000_000;
const PAGE: usize = 1024;

fn name(i: u64) -> Vec<u8> {
    format!("entry-{i}").into_bytes()
}

#[test]
fn a_million_names_are_found_listed_once_each_and_removed() {
    let mut shape = DirectoryShape { buckets: 1, entries: 0, entry_bytes: 0, hash_key: 42 };
    let mut directory = Directory::fresh(65536);
    for i in 0..COUNT {
        directory.insert(&mut shape, &name(i), FileId::new(i + 1), Kind::File).expect("there is room");
    }
    assert_eq!(shape.entries, COUNT);
    for i in 0..COUNT {
        let found = directory.find(&shape, &name(i)).expect("in memory");
        assert_eq!(found.map(|entry| entry.id), Some(FileId::new(i + 1)));
    }
    assert_eq!(directory.find(&shape, b"entry"), Ok(None));

    let (mut cookie, mut listed) = (0, vec![false; COUNT as usize]);
    loop {
        let page = directory.list(&shape, cookie, PAGE).expect("in memory");
        let Some(last) = page.last() else { break };
        cookie = last.cookie;
        for entry in page {
            let seen = &mut listed[entry.id.raw() as usize - 1];
            assert!(!std::mem::replace(seen, true), "listed twice");
        }
    }
    assert!(listed.iter().all(|&seen| seen), "each is listed");

    let longest = directory.take_dirty().iter().map(|(_, block)| block.len()).max();
    assert!(longest < Some(65536), "every bucket fits its block: {longest:?}");
    for i in 0..COUNT {
        assert!(directory.remove(&mut shape, &name(i)).expect("in memory").is_some());
    }
    assert_eq!((shape.entries, shape.entry_bytes), (0, 0));
}
