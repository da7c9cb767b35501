//! Handles: what they may do, and when they end.

use super::*;
use crate::fs::{Fallocate, Seek};

pub(super) async fn handles_keep_their_rights(t: Ctx) {
    let owner = user(5);
    let dir = t.dir(ROOT, "dir", 0o777).await;
    let id = t.file_of(&owner, dir, "file", 0o600, b"data").await;
    let h = ok!(t.open(&owner, id, RW));
    t.chmod(id, 0).await;
    t.chown(id, 0, 0).await;
    refuses!(t.open(&owner, id, READ), AccessDenied);
    assert_eq!(ok!(t.read(id, h, 0, 9)), "data");
    ok!(t.write(&owner, id, h, 4, b"!"));
    ok!(t.setattr(&owner, id, Some(h), SetAttr { size: Some(3), ..SetAttr::default() }));
    assert_eq!(ok!(t.read(id, h, 0, 9)), "dat");
    ok!(t.release(id, h, None));
}

pub(super) async fn handles_have_only_their_rights(t: Ctx) {
    let id = t.file(ROOT, "file", b"data").await;
    let other = t.file(ROOT, "other", b"").await;
    t.chmod(id, 0o755).await;
    let (reader, writer) = (ok!(t.open(&SU, id, READ)), ok!(t.open(&SU, id, WRITE)));
    let runner = ok!(t.open(&user(9), id, OpenFlags { execute: true, read: true, ..OpenFlags::default() }));
    refuses!(t.read(id, writer, 0, 4), BadHandle);
    refuses!(t.write(&SU, id, reader, 0, b"x"), BadHandle);
    refuses!(t.write(&SU, id, runner, 0, b"x"), BadHandle);
    assert_eq!(ok!(t.read(id, runner, 0, 4)), "data");
    refuses!(t.read(other, reader, 0, 4), BadHandle);
    refuses!(t.write(&SU, other, writer, 0, b"x"), BadHandle);
    refuses!(t.lseek(other, reader, 0, Seek::Data), BadHandle);
    refuses!(t.fallocate(&SU, other, writer, 0, 1, Fallocate::Allocate), BadHandle);
    refuses!(t.readdir(id, reader, 0, 1, false), BadHandle);
    let size = SetAttr { size: Some(0), ..SetAttr::default() };
    refuses!(t.setattr(&user(9), id, Some(reader), size), AccessDenied);
    refuses!(t.setattr(&user(9), other, Some(writer), size), BadHandle);
    assert_eq!(t.content(id).await, b"data");
    for h in [reader, writer, runner] {
        ok!(t.release(id, h, None));
    }
}

pub(super) async fn created_files_are_open_whatever_their_mode(t: Ctx) {
    let dir = t.dir(ROOT, "dir", 0o777).await;
    let (entry, h) = ok!(t.create(&user(5), dir, b"file", 0, 0, RW));
    assert_eq!((entry.attr.mode, entry.attr.uid), (0, 5));
    ok!(t.write(&user(5), entry.attr.id, h, 0, b"x"));
    assert_eq!(ok!(t.read(entry.attr.id, h, 0, 9)), "x");
    ok!(t.release(entry.attr.id, h, None));
    refuses!(t.open(&user(5), entry.attr.id, READ), AccessDenied);
}

pub(super) async fn syncs_succeed(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    let reader = ok!(t.open(&SU, id, READ));
    t.put(id, h, 0, b"data").await;
    ok!(t.fsync(id, h, true));
    ok!(t.fsync(id, reader, false));
    let dir = ok!(t.opendir(&SU, ROOT));
    ok!(t.fsync_dir(ROOT, dir));
    ok!(t.flush(id, h, 1));
    ok!(t.sync());
    ok!(t.sync());
    assert_eq!(t.content(id).await, b"data");
    ok!(t.releasedir(ROOT, dir));
    ok!(t.release(id, h, None));
    ok!(t.release(id, reader, None));
}

pub(super) async fn closed_handles_are_bad(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    let again = ok!(t.open(&SU, id, READ));
    assert_ne!(h, again);
    ok!(t.release(id, h, None));
    refuses!(t.release(id, h, None), BadHandle);
    refuses!(t.read(id, h, 0, 1), BadHandle);
    refuses!(t.write(&SU, id, h, 0, b"x"), BadHandle);
    refuses!(t.fsync(id, h, false), BadHandle);
    refuses!(t.flush(id, h, 1), BadHandle);
    refuses!(t.lseek(id, h, 0, Seek::Hole), BadHandle);
    ok!(t.read(id, again, 0, 1));
    ok!(t.release(id, again, None));
}
