//! Names, and making and removing them.

use super::*;
use crate::fs::NewNode;
use types::Kind;

const FILE: NewNode = NewNode { kind: Kind::File, mode: 0o644, umask: 0, rdev: 0 };

pub(super) async fn lookup_finds_what_was_made(t: Ctx) {
    let root = t.attr(ROOT).await;
    assert_eq!((root.id, root.kind, root.mode, root.uid), (ROOT, Kind::Directory, 0o755, 0));
    let dir = t.dir(ROOT, "dir", 0o750).await;
    let (made, handle) = ok!(t.create(&SU, dir, b"file", 0o640, 0, RW));
    ok!(t.release(made.attr.id, handle, None));
    let found = ok!(t.lookup(&SU, dir, b"file"));
    assert_eq!((found.attr.id, found.attr.kind, found.attr.mode), (made.attr.id, Kind::File, 0o640));
    assert_eq!((found.attr.nlink, found.attr.size), (1, 0));
    assert_eq!(t.id(dir, ".").await, dir);
    assert_eq!(t.id(dir, "..").await, ROOT);
    assert_eq!(t.id(ROOT, "..").await, ROOT);
    let node = ok!(t.mknod(&SU, dir, b"node", FILE));
    assert_eq!((t.id(dir, "node").await, node.attr.kind), (node.attr.id, Kind::File));
    refuses!(t.lookup(&SU, dir, b"File"), NotFound);
    refuses!(t.lookup(&SU, dir, b""), NotFound);
    refuses!(t.lookup(&SU, made.attr.id, b"x"), NotADirectory);
}

pub(super) async fn names_are_bytes(t: Ctx) {
    let mut names: Vec<Vec<u8>> = (1..=255u8).filter(|b| !b"./".contains(b)).map(|b| vec![b]).collect();
    names.push(b"...".to_vec());
    names.push(b" leading and trailing ".to_vec());
    names.push((1..=255u8).filter(|&b| b != b'/').collect());
    names.push(vec![0xff; 255]);
    names.push("ü".repeat(127).into_bytes());
    for (i, name) in names.iter().enumerate() {
        if i % 2 == 0 {
            ok!(t.mkdir(&SU, ROOT, name, 0o755, 0));
        } else {
            ok!(t.mknod(&SU, ROOT, name, FILE));
        }
    }
    let mut ids = std::collections::BTreeSet::new();
    for name in &names {
        ids.insert(ok!(t.lookup(&SU, ROOT, name)).attr.id);
    }
    assert_eq!(ids.len(), names.len());
    for bad in [&b"a/b"[..], b"/", b"a\0", b"\0"] {
        refuses!(t.mkdir(&SU, ROOT, bad, 0o755, 0), InvalidArgument);
        refuses!(t.lookup(&SU, ROOT, bad), InvalidArgument);
        refuses!(t.symlink(&SU, ROOT, bad, b"t"), InvalidArgument);
    }
}

pub(super) async fn long_names_are_refused(t: Ctx) {
    let long = [b'n'; 256];
    let file = t.file(ROOT, "file", b"").await;
    refuses!(t.lookup(&SU, ROOT, &long), NameTooLong);
    refuses!(t.create(&SU, ROOT, &long, 0o644, 0, RW), NameTooLong);
    refuses!(t.mkdir(&SU, ROOT, &long, 0o755, 0), NameTooLong);
    refuses!(t.mknod(&SU, ROOT, &long, FILE), NameTooLong);
    refuses!(t.symlink(&SU, ROOT, &long, b"t"), NameTooLong);
    refuses!(t.link(&SU, file, ROOT, &long), NameTooLong);
    refuses!(t.unlink(&SU, ROOT, &long), NameTooLong);
    refuses!(t.rmdir(&SU, ROOT, &long), NameTooLong);
    refuses!(t.rename(&SU, ROOT, &long, ROOT, b"b", Default::default()), NameTooLong);
    refuses!(t.rename(&SU, ROOT, b"file", ROOT, &long, Default::default()), NameTooLong);
    assert!(t.exists(ROOT, "file").await);
}

pub(super) async fn existing_names_are_refused(t: Ctx) {
    t.dir(ROOT, "dir", 0o755).await;
    let file = t.file(ROOT, "file", b"kept").await;
    ok!(t.symlink(&SU, ROOT, b"dangling", b"nowhere"));
    for name in [&b"dir"[..], b"file", b"dangling", b".", b".."] {
        refuses!(t.create(&SU, ROOT, name, 0o644, 0, RW), Exists);
        refuses!(t.mkdir(&SU, ROOT, name, 0o755, 0), Exists);
        refuses!(t.mknod(&SU, ROOT, name, FILE), Exists);
        refuses!(t.symlink(&SU, ROOT, name, b"t"), Exists);
        refuses!(t.link(&SU, file, ROOT, name), Exists);
    }
    assert_eq!(t.content(file).await, b"kept");
    refuses!(t.create(&user(5), ROOT, b"file", 0o644, 0, RW), Exists);
}

pub(super) async fn dots_are_not_names(t: Ctx) {
    let dir = t.dir(ROOT, "dir", 0o755).await;
    t.file(dir, "file", b"").await;
    refuses!(t.rmdir(&SU, dir, b"."), InvalidArgument);
    refuses!(t.rmdir(&SU, dir, b".."), NotEmpty);
    refuses!(t.unlink(&SU, dir, b"."), IsADirectory);
    refuses!(t.unlink(&SU, dir, b".."), IsADirectory);
    for dots in [&b"."[..], b".."] {
        refuses!(t.rename(&SU, dir, dots, ROOT, b"new", Default::default()), Busy);
        refuses!(t.rename(&SU, dir, b"file", dir, dots, Default::default()), Busy);
    }
    assert!(t.exists(dir, "file").await);
}

pub(super) async fn removed_directories_take_no_names(t: Ctx) {
    let above = t.dir(ROOT, "above", 0o755).await;
    let dir = t.dir(above, "dir", 0o755).await;
    let file = t.file(ROOT, "file", b"").await;
    let handle = ok!(t.opendir(&SU, dir));
    ok!(t.rmdir(&SU, above, b"dir"));
    assert_eq!(t.attr(dir).await.nlink, 0);
    refuses!(t.create(&SU, dir, b"x", 0o644, 0, RW), NotFound);
    refuses!(t.mkdir(&SU, dir, b"x", 0o755, 0), NotFound);
    refuses!(t.symlink(&SU, dir, b"x", b"t"), NotFound);
    refuses!(t.link(&SU, file, dir, b"x"), NotFound);
    refuses!(t.rename(&SU, ROOT, b"file", dir, b"x", Default::default()), NotFound);
    refuses!(t.lookup(&SU, dir, b"x"), NotFound);
    // Also what was above it, and when that is gone, too.
    refuses!(t.rename(&SU, ROOT, b"above", dir, b"x", Default::default()), NotFound);
    t.dir(ROOT, "other", 0o755).await;
    ok!(t.rmdir(&SU, ROOT, b"above"));
    refuses!(t.rename(&SU, ROOT, b"other", dir, b"x", Default::default()), NotFound);
    ok!(t.releasedir(dir, handle));
    assert!(t.exists(ROOT, "file").await);
}

pub(super) async fn rmdir_wants_an_empty_directory(t: Ctx) {
    let dir = t.dir(ROOT, "dir", 0o755).await;
    t.file(dir, "file", b"").await;
    refuses!(t.rmdir(&SU, ROOT, b"dir"), NotEmpty);
    ok!(t.unlink(&SU, dir, b"file"));
    t.dir(dir, "sub", 0o755).await;
    refuses!(t.rmdir(&SU, ROOT, b"dir"), NotEmpty);
    ok!(t.rmdir(&SU, dir, b"sub"));
    ok!(t.rmdir(&SU, ROOT, b"dir"));
    assert!(!t.exists(ROOT, "dir").await);
    refuses!(t.rmdir(&SU, ROOT, b"dir"), NotFound);
}

pub(super) async fn unlink_and_rmdir_want_their_kind(t: Ctx) {
    t.dir(ROOT, "dir", 0o755).await;
    let file = t.file(ROOT, "file", b"").await;
    ok!(t.symlink(&SU, ROOT, b"link", b"dir"));
    refuses!(t.unlink(&SU, ROOT, b"dir"), IsADirectory);
    refuses!(t.rmdir(&SU, ROOT, b"file"), NotADirectory);
    refuses!(t.rmdir(&SU, ROOT, b"link"), NotADirectory);
    refuses!(t.unlink(&SU, ROOT, b"none"), NotFound);
    refuses!(t.unlink(&SU, file, b"none"), NotADirectory);
    ok!(t.unlink(&SU, ROOT, b"link"));
    assert!(t.exists(ROOT, "dir").await && t.exists(ROOT, "file").await);
}

pub(super) async fn directories_count_subdirectories(t: Ctx) {
    let dir = t.dir(ROOT, "dir", 0o755).await;
    assert_eq!(t.attr(dir).await.nlink, 2);
    let root = t.attr(ROOT).await.nlink;
    assert_eq!(root, 3);
    for i in 0..3 {
        t.dir(dir, &format!("sub{i}"), 0o755).await;
        t.file(dir, &format!("file{i}"), b"").await;
    }
    assert_eq!(t.attr(dir).await.nlink, 5);
    ok!(t.rmdir(&SU, dir, b"sub1"));
    assert_eq!(t.attr(dir).await.nlink, 4);
    assert_eq!(t.attr(ROOT).await.nlink, 3);
}

pub(super) async fn ids_are_not_reused(t: Ctx) {
    let mut ids = std::collections::BTreeSet::new();
    for round in 0..50 {
        let id = if round % 2 == 0 {
            let id = t.file(ROOT, "x", b"data").await;
            ok!(t.unlink(&SU, ROOT, b"x"));
            id
        } else {
            let id = t.dir(ROOT, "x", 0o755).await;
            ok!(t.rmdir(&SU, ROOT, b"x"));
            id
        };
        assert!(ids.insert(id), "{id} came twice");
        refuses!(t.getattr(id), Stale);
    }
}
