use super::*;
use crate::tree;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, Waker};

/// A time source that is a microsecond later at each look.
fn ticking() -> TimeSource {
    let ticks = AtomicI64::new(0);
    Arc::new(move || {
        let us = ticks.fetch_add(1, Ordering::Relaxed);
        Time { sec: 1_000_000 + us / 1_000_000, nsec: (us % 1_000_000 * 1000) as u32 }
    })
}

fn now<T>(answer: Answer<T>) -> Result<T, FsError> {
    match answer {
        Answer::Now(result) => result,
        Answer::Later(_) => panic!("only locks wait"),
    }
}

const RW: OpenFlags = OpenFlags { read: true, write: true, append: false, truncate: false, execute: false };
const ROOT: Cred = Cred::ROOT;

fn file(fs: &MemFs, name: &str, data: &[u8]) -> (FileId, Handle) {
    let (entry, handle) = now(fs.create(&ROOT, FileId::ROOT, name.as_bytes(), 0o644, 0, RW)).unwrap();
    now(fs.write(&ROOT, entry.attr.id, handle, 0, data)).unwrap();
    (entry.attr.id, handle)
}

#[test]
fn snapshots_are_apart_and_hold_no_orphans_and_handles() {
    let fs = MemFs::new(ticking());
    let (a, ha) = file(&fs, "a", b"one");
    let (b, _) = file(&fs, "b", b"gone");
    now(fs.unlink(&ROOT, FileId::ROOT, b"b")).unwrap();
    let before = fs.dump();
    let copy = fs.snapshot();
    now(fs.write(&ROOT, a, ha, 0, b"two")).unwrap();
    assert_eq!(copy.dump(), before);
    assert_ne!(fs.dump(), before);
    assert!(now(fs.getattr(b)).is_ok(), "still open");
    assert_eq!(now(copy.getattr(b)).unwrap_err(), FsError::Stale);
    assert_eq!(now(copy.read(a, ha, 0, 3)).unwrap_err(), FsError::BadHandle);
    let h = now(copy.open(&ROOT, a, RW)).unwrap();
    assert_eq!(now(copy.read(a, h, 0, 9)).unwrap(), "one");
}

#[test]
fn dump_and_walk_list_the_same_tree() {
    let fs = MemFs::with_block_size(ticking(), 4096);
    let dir = now(fs.mkdir(&ROOT, FileId::ROOT, b"d", 0o750, 0)).unwrap().attr.id;
    let (a, h) = file(&fs, "d!", b"x");
    now(fs.write(&ROOT, a, h, (1 << 41) + 4095, b"far")).unwrap();
    now(fs.link(&ROOT, a, dir, b"again")).unwrap();
    now(fs.symlink(&ROOT, dir, b"s", b"d!")).unwrap();
    now(fs.setxattr(&ROOT, dir, b"user.k", b"v", XattrMode::Any)).unwrap();
    let mut walk = Box::pin(tree::walk(&fs));
    let Poll::Ready(walked) = walk.as_mut().poll(&mut Context::from_waker(Waker::noop())) else { panic!("waits") };
    let walked = walked.unwrap();
    let paths: Vec<_> = walked.iter().map(|e| String::from_utf8_lossy(&e.path).into_owned()).collect();
    assert_eq!(paths, ["", "/d", "/d!", "/d/again", "/d/s"]);
    assert_eq!(tree::difference(&walked, &fs.dump()), None);
    assert_eq!(walked[2].first_path, walked[3].first_path);

    now(fs.write(&ROOT, a, h, (1 << 41) + 4096, b"A")).unwrap();
    let told = tree::difference(&walked, &fs.dump()).unwrap();
    assert!(told.starts_with("\"/d!\" differs"), "{told}");
}

#[test]
fn zeroes_and_holes_have_the_same_content_hash() {
    let fs = MemFs::with_block_size(ticking(), 4096);
    let (a, ha) = file(&fs, "a", &[0; 10_000]);
    let (b, hb) = file(&fs, "b", b"");
    now(fs.write(&ROOT, a, ha, 10_000, b"x")).unwrap();
    now(fs.write(&ROOT, b, hb, 10_000, b"x")).unwrap();
    let dump = fs.dump();
    assert_eq!(dump[1].content, dump[2].content);
    assert!(dump[1].attr.blocks > dump[2].attr.blocks);
}

#[test]
fn a_lock_whose_waiter_is_dropped_is_not_held() {
    let fs = MemFs::new(ticking());
    let (id, h) = file(&fs, "a", b"");
    let lock = |owner, exclusive| FileLock { space: LockSpace::Posix, owner, pid: 1, exclusive, start: 0, end: 9 };
    now(fs.setlk(id, h, lock(1, Some(true)), false)).unwrap();
    for unlock_first in [false, true] {
        let waiting = fs.setlk(id, h, lock(2, Some(true)), true);
        assert!(matches!(waiting, Answer::Later(_)));
        if unlock_first {
            now(fs.setlk(id, h, lock(1, None), false)).unwrap();
        }
        drop(waiting);
    }
    assert_eq!(now(fs.getlk(id, h, lock(3, Some(true)))), Ok(None));
}

#[test]
fn equal_calls_make_equal_trees() {
    let run = || {
        let fs = MemFs::new(ticking());
        for i in 0..20 {
            file(&fs, &format!("f{}", i * 7 % 20), b"x");
        }
        now(fs.rename(&ROOT, FileId::ROOT, b"f3", FileId::ROOT, b"f4", RenameFlags::default())).unwrap();
        fs.dump()
    };
    assert_eq!(run(), run());
}
