//! Hard links, symbolic links, special files, and files without a name.

use super::*;
use crate::fs::{NewNode, SYMLINK_LEN_MAX};
use types::Kind;

pub(super) async fn hard_links_are_one_file(t: Ctx) {
    let dir = t.dir(ROOT, "dir", 0o755).await;
    let id = t.file(ROOT, "a", b"first").await;
    let linked = ok!(t.link(&SU, id, dir, b"b"));
    assert_eq!((linked.attr.id, linked.attr.nlink), (id, 2));
    assert_eq!(t.id(dir, "b").await, id);
    t.chmod(id, 0o600).await;
    assert_eq!(ok!(t.lookup(&SU, dir, b"b")).attr.mode, 0o600);
    let handle = ok!(t.open(&SU, t.id(dir, "b").await, RW));
    t.put(id, handle, 5, b" second").await;
    ok!(t.release(id, handle, None));
    ok!(t.unlink(&SU, ROOT, b"a"));
    assert_eq!(t.attr(id).await.nlink, 1);
    assert_eq!(t.content(id).await, b"first second");
    let link = ok!(t.symlink(&SU, ROOT, b"s", b"t")).attr.id;
    assert_eq!(ok!(t.link(&SU, link, ROOT, b"s2")).attr.nlink, 2);
    ok!(t.unlink(&SU, dir, b"b"));
    refuses!(t.getattr(id), Stale);
    refuses!(t.link(&SU, link, id, b"x"), Stale);
}

pub(super) async fn directories_have_no_hard_links(t: Ctx) {
    let dir = t.dir(ROOT, "dir", 0o755).await;
    refuses!(t.link(&SU, dir, ROOT, b"again"), NotPermitted);
    refuses!(t.link(&SU, dir, dir, b"loop"), NotPermitted);
    assert_eq!(t.attr(dir).await.nlink, 2);
}

pub(super) async fn symlinks_keep_their_target(t: Ctx) {
    let targets = [b"../some/where".to_vec(), vec![b'/'], vec![0xfe; 300], vec![b'x'; SYMLINK_LEN_MAX]];
    for (i, target) in targets.iter().enumerate() {
        let name = format!("link{i}");
        let attr = ok!(t.symlink(&SU, ROOT, name.as_bytes(), target)).attr;
        assert_eq!((attr.kind, attr.mode, attr.size), (Kind::Symlink, 0o777, target.len() as u64));
        assert_eq!(ok!(t.readlink(t.id(ROOT, &name).await)), target);
        refuses!(t.open(&SU, attr.id, READ), Loop);
        refuses!(t.opendir(&SU, attr.id), NotADirectory);
        refuses!(t.lookup(&SU, attr.id, b"x"), NotADirectory);
        let mode = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        refuses!(t.setattr(&SU, attr.id, None, mode), NotSupported);
        assert_eq!(t.chown(attr.id, 7, 8).await.uid, 7);
    }
    refuses!(t.symlink(&SU, ROOT, b"long", &vec![b'x'; SYMLINK_LEN_MAX + 1]), NameTooLong);
    refuses!(t.symlink(&SU, ROOT, b"empty", b""), NotFound);
    refuses!(t.symlink(&SU, ROOT, b"nul", b"a\0b"), InvalidArgument);
    refuses!(t.readlink(ROOT), InvalidArgument);
    let file = t.file(ROOT, "file", b"").await;
    refuses!(t.readlink(file), InvalidArgument);
}

pub(super) async fn special_files_are_made(t: Ctx) {
    let node = |kind, rdev| NewNode { kind, mode: 0o6640, umask: 0o022, rdev };
    for (name, kind, rdev) in [
        ("fifo", Kind::Fifo, 0),
        ("socket", Kind::Socket, 0),
        ("char", Kind::CharDevice, 0x0501),
        ("block", Kind::BlockDevice, 0x12_3456_0807),
    ] {
        let made = ok!(t.mknod(&SU, ROOT, name.as_bytes(), node(kind, rdev))).attr;
        let found = t.attr(t.id(ROOT, name).await).await;
        assert_eq!((found.id, found.kind, found.rdev), (made.id, kind, rdev));
        assert_eq!((found.mode, found.nlink, found.size), (0o6640, 1, 0));
        let size = SetAttr { size: Some(1), ..SetAttr::default() };
        refuses!(t.setattr(&SU, found.id, None, size), InvalidArgument);
    }
    assert_eq!(ok!(t.mknod(&SU, ROOT, b"file", node(Kind::File, 99))).attr.rdev, 0, "files have no device number");
    refuses!(t.mknod(&SU, ROOT, b"x", node(Kind::Directory, 0)), InvalidArgument);
    refuses!(t.mknod(&SU, ROOT, b"x", node(Kind::Symlink, 0)), InvalidArgument);
    let open = t.dir(ROOT, "open", 0o777).await;
    refuses!(t.mknod(&user(5), open, b"x", node(Kind::CharDevice, 1)), NotPermitted);
    refuses!(t.mknod(&user(5), open, b"x", node(Kind::BlockDevice, 1)), NotPermitted);
    ok!(t.mknod(&user(5), open, b"x", node(Kind::Fifo, 0)));
}

pub(super) async fn unlinked_files_live_while_open(t: Ctx) {
    let (id, one) = t.open_file("file").await;
    t.put(id, one, 0, b"before").await;
    let two = ok!(t.open(&SU, id, READ));
    ok!(t.unlink(&SU, ROOT, b"file"));
    assert!(!t.exists(ROOT, "file").await);
    assert_eq!(t.attr(id).await.nlink, 0);
    t.put(id, one, 6, b" after").await;
    ok!(t.fsync(id, one, false));
    assert_eq!(t.get(id, two, 0, 99).await, b"before after");
    refuses!(t.link(&SU, id, ROOT, b"back"), NotFound);
    ok!(t.release(id, one, None));
    assert_eq!(t.get(id, two, 7, 99).await, b"after", "another handle keeps it");
    assert_eq!(t.chmod(id, 0o600).await.mode, 0o600);
    ok!(t.release(id, two, None));
    refuses!(t.getattr(id), Stale);

    let (replaced, handle) = t.open_file("replaced").await;
    t.put(replaced, handle, 0, b"old").await;
    t.file(ROOT, "new", b"new").await;
    ok!(t.rename(&SU, ROOT, b"new", ROOT, b"replaced", Default::default()));
    assert_eq!(t.get(replaced, handle, 0, 9).await, b"old", "a file replaced by rename too");
    ok!(t.release(replaced, handle, None));
}
