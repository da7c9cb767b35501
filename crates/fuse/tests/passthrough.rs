//! Files that the kernel reads itself: which requests still come. Needs Linux 6.9 and root; without
//! them, the tests check only what is read.

mod common;

use common::*;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use types::FileId;

const CONTENTS: &[u8] = b"what is in it";
const COPY: &[u8] = b"what the copy";

/// A mount with one file, `f`, whose backing copy has different contents.
fn mounted(manner: Manner, passthrough: bool) -> (Mounted, Copies, FileId) {
    let copies = Copies::new();
    let change = |options: &mut fuse::MountOptions| {
        options.passthrough = passthrough;
        options.keep_cache = false;
    };
    let m = Mounted::copied(mem_fs(), manner, Some(copies.clone()), change);
    fs::write(m.path("f"), CONTENTS).unwrap();
    let id = FileId::new(fs::metadata(m.path("f")).unwrap().ino());
    copies.replace(id, COPY);
    wait_for_releases(&m);
    (m, copies, id)
}

/// The release comes some time after the last close.
fn wait_for_releases(m: &Mounted) {
    while m.count("release") < m.count("open") + m.count("create") {
        std::thread::yield_now();
    }
}

fn has_passthrough(m: &Mounted) -> bool {
    m.mount.as_ref().unwrap().has_passthrough()
}

#[test]
fn what_the_kernel_reads_itself_is_not_asked_for() {
    for manner in [NOW, LATER] {
        let (m, ..) = mounted(manner, true);
        if !has_passthrough(&m) {
            return assert_eq!(fs::read(m.path("f")).unwrap(), CONTENTS);
        }
        let reads = m.count("read");
        for _ in 0..3 {
            assert_eq!(fs::read(m.path("f")).unwrap(), COPY);
        }
        assert_eq!(m.count("read"), reads);
    }
}

#[test]
fn a_stat_is_asked_for_once_after_the_kernel_has_read_itself() {
    let (m, ..) = mounted(NOW, true);
    let file = File::open(m.path("f")).unwrap();
    let mut found = [0; 13];
    for _ in 0..2 {
        fs::metadata(m.path("f")).unwrap();
        let before = m.count("getattr");
        file.read_exact_at(&mut found, 0).unwrap();
        for _ in 0..3 {
            fs::metadata(m.path("f")).unwrap();
        }
        assert!(m.count("getattr") - before <= 1);
    }
}

#[test]
fn without_the_option_everything_is_asked_for() {
    let (m, ..) = mounted(NOW, false);
    assert!(!has_passthrough(&m));
    assert_eq!(fs::read(m.path("f")).unwrap(), CONTENTS);
    assert!(m.count("read") > 0);
}

#[test]
fn whoever_writes_what_the_kernel_reads_itself_asks_and_is_seen() {
    let (m, ..) = mounted(NOW, true);
    if !has_passthrough(&m) {
        return;
    }
    let reader = File::open(m.path("f")).unwrap();
    let writer = OpenOptions::new().read(true).write(true).open(m.path("f")).unwrap();
    reader.lock_shared().unwrap();
    assert!(writer.try_lock().is_err(), "they are the same file");
    let (reads, writes) = (m.count("read"), m.count("write"));
    writer.write_all_at(b"W", 0).unwrap();
    let mut found = [0; 13];
    reader.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"What the copy");
    writer.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"What is in it");
    assert_eq!((m.count("read"), m.count("write")), (reads + 1, writes + 1));
    // Once they are closed, the file is as if never opened.
    drop((reader, writer));
    wait_for_releases(&m);
    let writer = OpenOptions::new().write(true).open(m.path("f")).unwrap();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"What is in it");
    drop(writer);
}

#[test]
fn what_has_become_another_file_is_another_inode_until_it_is_looked_at_no_more() {
    let (m, copies, id) = mounted(NOW, true);
    if !has_passthrough(&m) {
        return;
    }
    let old = File::open(m.path("f")).unwrap();
    copies.replace(id, b"what is newer");
    let newer = File::open(m.path("f")).unwrap();
    let mut found = [0; 13];
    for (file, wanted) in [(&old, COPY), (&newer, b"what is newer")] {
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(found, wanted);
    }
    assert_ne!(old.metadata().unwrap().ino(), newer.metadata().unwrap().ino());
    let ino = |name: &str| fs::metadata(m.path(name)).unwrap().ino();
    fs::rename(m.path("f"), m.path("g")).unwrap();
    fs::hard_link(m.path("g"), m.path("f")).unwrap();
    assert_eq!((ino("f"), ino("g")), (newer.metadata().unwrap().ino(), ino("f")));
    assert_eq!(fs::metadata(m.path("f")).unwrap().nlink(), 2);
    for _ in 0..3 {
        copies.replace(id, COPY);
        assert_eq!(fs::read(m.path("g")).unwrap(), COPY);
    }
}
