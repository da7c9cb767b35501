//! Times of files.

use super::*;
use crate::fs::{Fallocate, NewNode, RenameFlags, XattrMode};
use types::Kind;

/// Modification and change time of some files, before an operation.
struct Watch(Vec<Attr>);

/// The outcomes: nothing moved; ctime moved; ctime and mtime moved.
const STAYS: (bool, bool) = (false, false);
const CHANGED: (bool, bool) = (false, true);
const MODIFIED: (bool, bool) = (true, true);

impl Watch {
    /// Reads the times, and lets the clock go on.
    async fn start(t: &Ctx, ids: &[FileId]) -> Watch {
        let mut before = Vec::new();
        for &id in ids {
            before.push(t.attr(id).await);
        }
        t.tick().await;
        Watch(before)
    }

    /// Asserts which of (mtime, ctime) moved forward, file by file; the others must be as before.
    async fn moved(&self, t: &Ctx, what: &str, expected: &[(bool, bool)]) {
        assert_eq!(self.0.len(), expected.len());
        for (i, (before, expected)) in self.0.iter().zip(expected).enumerate() {
            let after = t.attr(before.id).await;
            assert_eq!((after.mtime > before.mtime, after.ctime > before.ctime), *expected, "{what}, file {i}");
            assert!(expected.0 || after.mtime == before.mtime, "{what}, file {i}: mtime went back");
            assert!(expected.1 || after.ctime == before.ctime, "{what}, file {i}: ctime went back");
            assert_eq!(after.crtime, before.crtime, "{what}, file {i}: creation does not change");
        }
    }
}

pub(super) async fn new_nodes_have_one_time(t: Ctx) {
    let dir = t.dir(ROOT, "dir", 0o755).await;
    let file = t.file(dir, "file", b"").await;
    let link = ok!(t.symlink(&SU, dir, b"link", b"t")).attr.id;
    let empty = t.dir(dir, "empty", 0o755).await;
    for id in [file, link, empty] {
        let a = t.attr(id).await;
        assert_eq!((a.atime, a.mtime, a.ctime), (a.crtime, a.crtime, a.crtime));
        assert!(a.crtime.sec > 0 && a.crtime.nsec < 1_000_000_000);
    }
}

pub(super) async fn times_keep_nanoseconds(t: Ctx) {
    let file = t.file(ROOT, "file", b"").await;
    let link = ok!(t.symlink(&SU, ROOT, b"link", b"t")).attr.id;
    for id in [file, link, ROOT] {
        for (sec, nsec) in [(1_234_567_890, 123_456_789), (-5, 999_999_999), (1 << 40, 1), (0, 0)] {
            let (a, m) = (Time { sec, nsec }, Time { sec: sec - 1, nsec });
            let set = SetAttr { atime: Some(SetTime::At(a)), mtime: Some(SetTime::At(m)), ..SetAttr::default() };
            t.set(id, set).await;
            let attr = t.attr(id).await;
            assert_eq!((attr.atime, attr.mtime), (a, m));
        }
        let only = SetAttr { mtime: Some(SetTime::At(Time { sec: 9, nsec: 8 })), ..SetAttr::default() };
        t.set(id, only).await;
        let attr = t.attr(id).await;
        assert_eq!((attr.atime, attr.mtime), (Time { sec: 0, nsec: 0 }, Time { sec: 9, nsec: 8 }));
    }
    let bad = SetAttr { atime: Some(SetTime::At(Time { sec: 0, nsec: 1_000_000_000 })), ..SetAttr::default() };
    refuses!(t.setattr(&SU, file, None, bad), InvalidArgument);
}

pub(super) async fn changes_of_contents_move_times(t: Ctx) {
    let (id, h) = t.open_file("file").await;
    let (source, hs) = t.open_file("source").await;
    t.put(source, hs, 0, b"source").await;
    let both = [id, source];
    let w = Watch::start(&t, &both).await;
    t.put(id, h, 0, b"data").await;
    w.moved(&t, "write", &[MODIFIED, STAYS]).await;
    let w = Watch::start(&t, &both).await;
    ok!(t.write(&SU, id, h, 0, b""));
    t.get(id, h, 0, 10).await;
    ok!(t.fsync(id, h, false));
    w.moved(&t, "empty write, read, fsync", &[STAYS, STAYS]).await;
    for size in [2, 2, 100] {
        let w = Watch::start(&t, &both).await;
        t.set(id, SetAttr { size: Some(size), ..SetAttr::default() }).await;
        w.moved(&t, "truncate", &[MODIFIED, STAYS]).await;
    }
    let w = Watch::start(&t, &both).await;
    let again = ok!(t.open(&SU, id, OpenFlags { truncate: true, ..RW }));
    w.moved(&t, "open with truncate", &[MODIFIED, STAYS]).await;
    let w = Watch::start(&t, &both).await;
    ok!(t.copy_file_range(&SU, at(source, hs, 0), at(id, h, 0), 6));
    w.moved(&t, "copy", &[MODIFIED, STAYS]).await;
    for mode in [Fallocate::PunchHole, Fallocate::ZeroRange] {
        let w = Watch::start(&t, &both).await;
        ok!(t.fallocate(&SU, id, h, 0, 3, mode));
        w.moved(&t, "punch or zero", &[MODIFIED, STAYS]).await;
    }
    let w = Watch::start(&t, &both).await;
    ok!(t.release(id, again, None));
    ok!(t.release(id, h, None));
    ok!(t.release(source, hs, None));
    w.moved(&t, "close", &[STAYS, STAYS]).await;
}

pub(super) async fn changes_of_names_move_times(t: Ctx) {
    let (a, b) = (t.dir(ROOT, "a", 0o755).await, t.dir(ROOT, "b", 0o755).await);
    let file = t.file(a, "file", b"").await;
    let all = [a, b, file];
    let w = Watch::start(&t, &all).await;
    ok!(t.lookup(&SU, a, b"file"));
    refuses!(t.mkdir(&SU, a, b"file", 0o755, 0), Exists);
    refuses!(t.unlink(&SU, a, b"none"), NotFound);
    w.moved(&t, "nothing", &[STAYS, STAYS, STAYS]).await;
    let w = Watch::start(&t, &all).await;
    ok!(t.link(&SU, file, b, b"link"));
    w.moved(&t, "link", &[STAYS, MODIFIED, CHANGED]).await;
    let w = Watch::start(&t, &all).await;
    ok!(t.unlink(&SU, b, b"link"));
    w.moved(&t, "unlink", &[STAYS, MODIFIED, CHANGED]).await;
    let w = Watch::start(&t, &all).await;
    ok!(t.rename(&SU, a, b"file", a, b"file2", Default::default()));
    w.moved(&t, "rename in place", &[MODIFIED, STAYS, CHANGED]).await;
    let w = Watch::start(&t, &all).await;
    ok!(t.rename(&SU, a, b"file2", b, b"file", Default::default()));
    w.moved(&t, "rename", &[MODIFIED, MODIFIED, CHANGED]).await;
    let other = t.file(a, "other", b"").await;
    ok!(t.link(&SU, other, ROOT, b"kept"));
    let four = [a, b, file, other];
    let w = Watch::start(&t, &four).await;
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    ok!(t.rename(&SU, a, b"other", b, b"file", exchange));
    w.moved(&t, "exchange", &[MODIFIED, MODIFIED, CHANGED, CHANGED]).await;
    let w = Watch::start(&t, &four).await;
    ok!(t.rename(&SU, a, b"other", b, b"file", Default::default()));
    w.moved(&t, "replace", &[MODIFIED, MODIFIED, CHANGED, CHANGED]).await;

    let node = NewNode { kind: Kind::Fifo, mode: 0o644, umask: 0, rdev: 0 };
    let w = Watch::start(&t, &all).await;
    ok!(t.mkdir(&SU, a, b"sub", 0o755, 0));
    w.moved(&t, "mkdir", &[MODIFIED, STAYS, STAYS]).await;
    let w = Watch::start(&t, &all).await;
    ok!(t.rmdir(&SU, a, b"sub"));
    w.moved(&t, "rmdir", &[MODIFIED, STAYS, STAYS]).await;
    let w = Watch::start(&t, &all).await;
    ok!(t.mknod(&SU, a, b"fifo", node));
    w.moved(&t, "mknod", &[MODIFIED, STAYS, STAYS]).await;
    let w = Watch::start(&t, &all).await;
    ok!(t.symlink(&SU, a, b"symlink", b"t"));
    w.moved(&t, "symlink", &[MODIFIED, STAYS, STAYS]).await;
    let w = Watch::start(&t, &all).await;
    t.file(a, "new", b"").await;
    w.moved(&t, "create", &[MODIFIED, STAYS, STAYS]).await;
}

pub(super) async fn changes_of_attributes_move_ctime(t: Ctx) {
    let id = t.file(ROOT, "file", b"").await;
    let w = Watch::start(&t, &[id]).await;
    t.chmod(id, 0o600).await;
    w.moved(&t, "chmod", &[CHANGED]).await;
    let w = Watch::start(&t, &[id]).await;
    t.chown(id, 5, 5).await;
    w.moved(&t, "chown", &[CHANGED]).await;
    let w = Watch::start(&t, &[id]).await;
    ok!(t.setxattr(&SU, id, b"user.a", b"1", XattrMode::Any));
    w.moved(&t, "setxattr", &[CHANGED]).await;
    let w = Watch::start(&t, &[id]).await;
    ok!(t.removexattr(&SU, id, b"user.a"));
    w.moved(&t, "removexattr", &[CHANGED]).await;
    let w = Watch::start(&t, &[id]).await;
    t.set(id, SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() }).await;
    w.moved(&t, "utimens of atime", &[CHANGED]).await;
    let w = Watch::start(&t, &[id]).await;
    t.set(id, SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }).await;
    w.moved(&t, "utimens of mtime", &[MODIFIED]).await;
    let w = Watch::start(&t, &[id]).await;
    refuses!(t.getxattr(&SU, id, b"security.none"), NoSuchXattr);
    refuses!(t.setattr(&user(9), id, None, SetAttr { mode: Some(0), ..SetAttr::default() }), NotPermitted);
    ok!(t.setattr(&SU, id, None, SetAttr::default()));
    w.moved(&t, "nothing", &[STAYS]).await;
}

pub(super) async fn reads_move_atime_now_and_then(t: Ctx) {
    let file = t.file(ROOT, "file", b"data").await;
    let link = ok!(t.symlink(&SU, ROOT, b"link", b"t")).attr.id;
    let dir = t.dir(ROOT, "dir", 0o755).await;
    let h = ok!(t.open(&SU, file, READ));
    let hd = ok!(t.opendir(&SU, dir));
    let read = async |id| {
        if id == file {
            ok!(t.read(file, h, 0, 4));
        } else if id == link {
            ok!(t.readlink(link));
        } else {
            ok!(t.readdir(dir, hd, 0, 10, false));
        }
        t.attr(id).await
    };
    let atime_at = |time| SetAttr { atime: Some(SetTime::At(time)), ..SetAttr::default() };
    for id in [file, link, dir] {
        t.tick().await;
        let before = t.attr(id).await;
        let first = read(id).await;
        assert!(first.atime > before.atime, "the first read after a change counts");
        assert_eq!((first.mtime, first.ctime), (before.mtime, before.ctime), "and changes nothing else");
        t.tick().await;
        assert_eq!(read(id).await.atime, first.atime, "the next does not");

        let changed = t.chown(id, 0, 0).await.ctime;
        t.tick().await;
        assert!(read(id).await.atime > changed, "the first read after a change of attributes does");
        t.tick().await;

        let later = Time { sec: changed.sec + 3600, ..changed };
        t.set(id, atime_at(later)).await;
        assert_eq!(read(id).await.atime, later, "newer than any change");
        let old = Time { sec: 0, nsec: 0 };
        t.set(id, atime_at(old)).await;
        assert!(read(id).await.atime > changed, "older than a change");
    }
    let copy = t.file(ROOT, "copy", b"").await;
    let hc = ok!(t.open(&SU, copy, RW));
    t.set(file, atime_at(Time { sec: 0, nsec: 0 })).await;
    ok!(t.copy_file_range(&SU, at(file, h, 0), at(copy, hc, 0), 4));
    assert!(t.attr(file).await.atime.sec > 0, "copying reads");
    ok!(t.release(copy, hc, None));
    ok!(t.release(file, h, None));
    ok!(t.releasedir(dir, hd));
}
