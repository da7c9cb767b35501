use crate::replay;
use client::directory::Directory;
use corpus::client as checks;
use manager::DirectoryShape;
use types::{FileId, Kind};

#[test]
fn buckets_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("directory", checks::directory);
    assert!(kept >= 4 && changed > 0, "the corpus has good buckets: {kept}, {changed}");
}

#[test]
fn the_corpus_has_what_this_program_writes() {
    let bucket = |names: &[&[u8]]| {
        let mut shape = DirectoryShape { buckets: 1, entries: 0, entry_bytes: 0, hash_key: 42 };
        let mut directory = Directory::fresh(65536);
        for (name, kind) in names.iter().zip([Kind::File, Kind::Directory, Kind::Symlink].into_iter().cycle()) {
            directory.insert(&mut shape, name, FileId::new(4711), kind).expect("there is room");
        }
        directory.take_dirty().pop().map_or(vec![], |(_, bytes)| bytes)
    };
    let some = bucket(&[b"a", b"folder", b"link", b"not \xff text"]);
    let emptied = {
        let mut shape = DirectoryShape { buckets: 1, entries: 0, entry_bytes: 0, hash_key: 42 };
        let mut directory = Directory::fresh(65536);
        directory.insert(&mut shape, b"a", FileId::new(9), Kind::File).expect("there is room");
        directory.remove(&mut shape, b"a").expect("it is in memory");
        directory.take_dirty().pop().map_or(vec![], |(_, bytes)| bytes)
    };
    replay::compare(
        "directory",
        &[
            ("hole", bucket(&[])),
            ("emptied", emptied),
            ("one", bucket(&[b"name"])),
            ("longest", bucket(&[&[b'x'; 255]])),
            ("truncated", some[..40].to_vec()),
            ("some", some),
        ],
    );
}
