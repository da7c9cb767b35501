//! What operations answer to invalid files, handles and kinds.

use super::*;
use crate::fs::{Fallocate, FileLock, LockSpace, NewNode, Seek, XattrMode};
use types::Kind;

const NODE: NewNode = NewNode { kind: Kind::File, mode: 0o644, umask: 0, rdev: 0 };

pub(super) async fn unknown_files_are_stale(t: Ctx) {
    let removed = t.file(ROOT, "file", b"").await;
    ok!(t.unlink(&SU, ROOT, b"file"));
    t.file(ROOT, "here", b"").await;
    for id in [removed, FileId::new((1 << 37) + 12_345)] {
        refuses!(t.lookup(&SU, id, b"x"), Stale);
        refuses!(t.getattr(id), Stale);
        refuses!(t.setattr(&SU, id, None, SetAttr::default()), Stale);
        refuses!(t.readlink(id), Stale);
        refuses!(t.mknod(&SU, id, b"x", NODE), Stale);
        refuses!(t.create(&SU, id, b"x", 0o644, 0, RW), Stale);
        refuses!(t.mkdir(&SU, id, b"x", 0o755, 0), Stale);
        refuses!(t.symlink(&SU, id, b"x", b"t"), Stale);
        refuses!(t.link(&SU, id, ROOT, b"x"), Stale);
        refuses!(t.unlink(&SU, id, b"x"), Stale);
        refuses!(t.rmdir(&SU, id, b"x"), Stale);
        refuses!(t.rename(&SU, id, b"x", ROOT, b"y", Default::default()), Stale);
        refuses!(t.rename(&SU, ROOT, b"here", id, b"y", Default::default()), Stale);
        refuses!(t.access(&SU, id, 4), Stale);
        refuses!(t.open(&SU, id, READ), Stale);
        refuses!(t.opendir(&SU, id), Stale);
        refuses!(t.getxattr(&SU, id, b"user.a"), Stale);
        refuses!(t.setxattr(&SU, id, b"user.a", b"x", XattrMode::Any), Stale);
        refuses!(t.listxattr(&SU, id), Stale);
        refuses!(t.removexattr(&SU, id, b"user.a"), Stale);
    }
    assert!(t.exists(ROOT, "here").await && !t.exists(ROOT, "x").await);
}

pub(super) async fn unknown_handles_are_bad(t: Ctx) {
    let (id, good) = t.open_file("file").await;
    let bad = Handle(u64::MAX - 1);
    let lock = FileLock { space: LockSpace::Posix, owner: 1, pid: 1, exclusive: Some(true), start: 0, end: u64::MAX };
    refuses!(t.read(id, bad, 0, 1), BadHandle);
    refuses!(t.write(&SU, id, bad, 0, b"x"), BadHandle);
    refuses!(t.setattr(&SU, id, Some(bad), SetAttr { size: Some(1), ..SetAttr::default() }), BadHandle);
    refuses!(t.fsync(id, bad, false), BadHandle);
    refuses!(t.fsync_dir(ROOT, bad), BadHandle);
    refuses!(t.flush(id, bad, 1), BadHandle);
    refuses!(t.release(id, bad, None), BadHandle);
    refuses!(t.readdir(ROOT, bad, 0, 10, false), BadHandle);
    refuses!(t.releasedir(ROOT, bad), BadHandle);
    refuses!(t.fallocate(&SU, id, bad, 0, 1, Fallocate::Allocate), BadHandle);
    refuses!(t.lseek(id, bad, 0, Seek::Data), BadHandle);
    refuses!(t.copy_file_range(&SU, at(id, bad, 0), at(id, good, 0), 1), BadHandle);
    refuses!(t.copy_file_range(&SU, at(id, good, 0), at(id, bad, 0), 1), BadHandle);
    refuses!(t.getlk(id, bad, lock), BadHandle);
    refuses!(t.setlk(id, bad, lock, false), BadHandle);
    assert_eq!(t.attr(id).await.size, 0);
    ok!(t.release(id, good, None));
}

pub(super) async fn wrong_kinds_are_refused(t: Ctx) {
    let dir = t.dir(ROOT, "dir", 0o755).await;
    let file = t.file(ROOT, "file", b"").await;
    let link = ok!(t.symlink(&SU, ROOT, b"link", b"dir")).attr.id;
    for id in [file, link] {
        refuses!(t.lookup(&SU, id, b"x"), NotADirectory);
        refuses!(t.create(&SU, id, b"x", 0o644, 0, RW), NotADirectory);
        refuses!(t.mkdir(&SU, id, b"x", 0o755, 0), NotADirectory);
        refuses!(t.mknod(&SU, id, b"x", NODE), NotADirectory);
        refuses!(t.symlink(&SU, id, b"x", b"t"), NotADirectory);
        refuses!(t.link(&SU, file, id, b"x"), NotADirectory);
        refuses!(t.unlink(&SU, id, b"x"), NotADirectory);
        refuses!(t.rmdir(&SU, id, b"x"), NotADirectory);
        refuses!(t.opendir(&SU, id), NotADirectory);
    }
    refuses!(t.open(&SU, dir, READ), IsADirectory);
    refuses!(t.open(&SU, dir, WRITE), IsADirectory);
    refuses!(t.readlink(dir), InvalidArgument);
    let handle = ok!(t.opendir(&SU, dir));
    refuses!(t.read(dir, handle, 0, 10), BadHandle);
    refuses!(t.write(&SU, dir, handle, 0, b"x"), BadHandle);
    refuses!(t.release(dir, handle, None), BadHandle);
    ok!(t.releasedir(dir, handle));
}
