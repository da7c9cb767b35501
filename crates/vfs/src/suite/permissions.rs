//! Who may do what.

use super::*;
use crate::fs::{Fallocate, NewNode};
use types::Kind;

fn member(uid: u32, gid: u32, group: u32) -> Cred {
    Cred { uid, gid, groups: vec![group] }
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn owner(uid: Option<u32>, gid: Option<u32>) -> SetAttr {
    SetAttr { uid, gid, ..SetAttr::default() }
}

pub(super) async fn the_first_matching_class_decides(t: Ctx) {
    let id = t.file(ROOT, "file", b"").await;
    t.chown(id, 5, 6).await;
    let who = [user(5), member(5, 6, 6), user(6), member(9, 9, 6), user(9)];
    // Rights of the owner (also when in the group), of the group (in both ways), of other users.
    for (mode, rights) in [(0o640, [6, 6, 4, 4, 0]), (0o047, [0, 0, 4, 4, 7]), (0o315, [3, 3, 1, 1, 5])] {
        t.chmod(id, mode).await;
        for (cred, rights) in who.iter().zip(rights) {
            for mask in 0..8 {
                if mask & rights == mask {
                    ok!(t.access(cred, id, mask));
                } else {
                    refuses!(t.access(cred, id, mask), AccessDenied);
                }
            }
            for (flags, mask) in [(READ, 4), (WRITE, 2), (RW, 6), (OpenFlags { execute: true, ..READ }, 1)] {
                if mask & rights == mask {
                    let h = ok!(t.open(cred, id, flags));
                    ok!(t.release(id, h, None));
                } else {
                    refuses!(t.open(cred, id, flags), AccessDenied);
                }
            }
        }
    }
    refuses!(t.access(&SU, id, 8), InvalidArgument);
}

pub(super) async fn root_passes_all_but_execute(t: Ctx) {
    let dir = t.dir(ROOT, "dir", 0).await;
    t.chown(dir, 5, 5).await;
    let id = t.file_of(&SU, dir, "file", 0, b"x").await;
    t.chown(id, 5, 5).await;
    ok!(t.access(&SU, id, 6));
    refuses!(t.access(&SU, id, 1), AccessDenied);
    refuses!(t.open(&SU, id, OpenFlags { execute: true, ..READ }), AccessDenied);
    t.chmod(id, 0o010).await;
    ok!(t.access(&SU, id, 7));
    ok!(t.access(&SU, dir, 7));
    assert_eq!(t.content(id).await, b"x");
    ok!(t.unlink(&SU, dir, b"file"));
}

pub(super) async fn directories_need_search_and_write(t: Ctx) {
    let u = user(9);
    let dir = t.dir(ROOT, "dir", 0o777).await;
    let file = t.file(dir, "file", b"").await;
    let node = NewNode { kind: Kind::Fifo, mode: 0o644, umask: 0, rdev: 0 };
    t.chmod(dir, 0o776).await;
    refuses!(t.lookup(&u, dir, b"file"), AccessDenied);
    refuses!(t.lookup(&u, dir, b"none"), AccessDenied);
    for unwritable in [0o775, 0o776] {
        t.chmod(dir, unwritable).await;
        refuses!(t.create(&u, dir, b"new", 0o644, 0, RW), AccessDenied);
        refuses!(t.mkdir(&u, dir, b"new", 0o755, 0), AccessDenied);
        refuses!(t.mknod(&u, dir, b"new", node), AccessDenied);
        refuses!(t.symlink(&u, dir, b"new", b"t"), AccessDenied);
        refuses!(t.link(&u, file, dir, b"new"), AccessDenied);
        refuses!(t.unlink(&u, dir, b"file"), AccessDenied);
        refuses!(t.rename(&u, dir, b"file", dir, b"new", Default::default()), AccessDenied);
    }
    t.chmod(dir, 0o773).await;
    ok!(t.lookup(&u, dir, b"file"));
    refuses!(t.opendir(&u, dir), AccessDenied);
    ok!(t.rename(&u, dir, b"file", dir, b"new", Default::default()));
    ok!(t.unlink(&u, dir, b"new"));
    ok!(t.mkdir(&u, dir, b"sub", 0o755, 0));
    t.chmod(dir, 0o774).await;
    let h = ok!(t.opendir(&u, dir));
    ok!(t.releasedir(dir, h));
}

pub(super) async fn umask_takes_bits_from_new_nodes(t: Ctx) {
    let (file, h) = ok!(t.create(&SU, ROOT, b"file", 0o6777, 0o027, RW));
    ok!(t.release(file.attr.id, h, None));
    assert_eq!(file.attr.mode, 0o6750);
    assert_eq!(ok!(t.mkdir(&SU, ROOT, b"dir", 0o1777, 0o077)).attr.mode, 0o1700);
    let node = NewNode { kind: Kind::Fifo, mode: 0o666, umask: 0o026, rdev: 0 };
    assert_eq!(ok!(t.mknod(&SU, ROOT, b"fifo", node)).attr.mode, 0o640);
    assert_eq!(t.attr(t.id(ROOT, "dir").await).await.mode, 0o1700);
}

pub(super) async fn chmod_is_for_the_owner(t: Ctx) {
    let id = t.file(ROOT, "file", b"").await;
    t.chown(id, 5, 6).await;
    refuses!(t.setattr(&user(6), id, None, mode(0o777)), NotPermitted);
    assert_eq!(ok!(t.setattr(&user(5), id, None, mode(0o1753))).attr.mode, 0o1753);
    assert_eq!(t.chmod(id, 0o7777).await.mode, 0o7777);
    assert_eq!(t.attr(id).await.mode, 0o7777);
}

pub(super) async fn chown_is_for_root_and_chgrp_for_members(t: Ctx) {
    let id = t.file(ROOT, "file", b"").await;
    let done = t.chown(id, 5, 6).await;
    assert_eq!((done.uid, done.gid), (5, 6));
    refuses!(t.setattr(&user(5), id, None, owner(Some(7), None)), NotPermitted);
    refuses!(t.setattr(&user(7), id, None, owner(Some(7), None)), NotPermitted);
    refuses!(t.setattr(&user(5), id, None, owner(None, Some(7))), NotPermitted);
    refuses!(t.setattr(&member(8, 8, 7), id, None, owner(None, Some(7))), NotPermitted);
    ok!(t.setattr(&user(5), id, None, owner(Some(5), Some(6))));
    assert_eq!(ok!(t.setattr(&member(5, 5, 7), id, None, owner(None, Some(7)))).attr.gid, 7);
    refuses!(t.setattr(&SU, id, None, owner(Some(u32::MAX), None)), InvalidArgument);
    refuses!(t.setattr(&SU, id, None, owner(None, Some(u32::MAX))), InvalidArgument);
    let attr = t.attr(id).await;
    assert_eq!((attr.uid, attr.gid), (5, 7));
}

pub(super) async fn changes_clear_set_id_bits(t: Ctx) {
    let id = t.file(ROOT, "file", b"data").await;
    t.chown(id, 5, 6).await;
    let reset = async |m| assert_eq!(t.chmod(id, m).await.mode, m);
    let h = ok!(t.open(&SU, id, RW));
    let size = SetAttr { size: Some(1), ..SetAttr::default() };

    reset(0o6777).await;
    assert_eq!(t.chown(id, 5, 6).await.mode, 0o777, "chown, even by root");
    reset(0o6767).await;
    assert_eq!(t.chown(id, 5, 6).await.mode, 0o2767, "set-gid without group execute is no set-gid");
    reset(0o6777).await;
    t.put(id, h, 0, b"x").await;
    t.set(id, size).await;
    assert_eq!(t.attr(id).await.mode, 0o6777, "root's writes do not");
    ok!(t.write(&user(9), id, h, 0, b"x"));
    assert_eq!(t.attr(id).await.mode, 0o777, "a user's write does");
    reset(0o6777).await;
    ok!(t.setattr(&user(9), id, None, size));
    assert_eq!(t.attr(id).await.mode, 0o777, "a user's truncate does");
    reset(0o4777).await;
    let h2 = ok!(t.open(&user(9), id, OpenFlags { truncate: true, ..RW }));
    assert_eq!(t.attr(id).await.mode, 0o777, "so does opening with truncate");
    let dir = t.dir(ROOT, "dir", 0o755).await;
    t.chmod(dir, 0o6755).await;
    assert_eq!(t.chown(dir, 5, 6).await.mode, 0o6755, "directories keep them");

    let source = t.file(ROOT, "source", b"data").await;
    let from = ok!(t.open(&SU, source, READ));
    reset(0o6777).await;
    assert_eq!(ok!(t.copy_file_range(&user(9), at(source, from, 4), at(id, h, 0), 4)), 0);
    assert_eq!(ok!(t.copy_file_range(&SU, at(source, from, 0), at(id, h, 0), 4)), 4);
    assert_eq!(t.attr(id).await.mode, 0o6777, "nothing copied, and root's copies do not");
    assert_eq!(ok!(t.copy_file_range(&user(9), at(source, from, 0), at(id, h, 0), 4)), 4);
    assert_eq!(t.attr(id).await.mode, 0o777, "a user's copy does");
    for mode in [
        Fallocate::Allocate,
        Fallocate::AllocateKeepSize,
        Fallocate::PunchHole,
        Fallocate::ZeroRange,
        Fallocate::ZeroRangeKeepSize,
    ] {
        reset(0o6777).await;
        ok!(t.fallocate(&SU, id, h, 0, 2, mode));
        assert_eq!(t.attr(id).await.mode, 0o6777, "{mode:?} by root does not");
        ok!(t.fallocate(&user(9), id, h, 0, 2, mode));
        assert_eq!(t.attr(id).await.mode, 0o777, "{mode:?} by a user does");
    }
    for (id, h) in [(id, h), (id, h2), (source, from)] {
        ok!(t.release(id, h, None));
    }
}

pub(super) async fn set_gid_needs_the_group(t: Ctx) {
    let id = t.file(ROOT, "file", b"").await;
    t.chown(id, 5, 6).await;
    assert_eq!(ok!(t.setattr(&user(5), id, None, mode(0o2755))).attr.mode, 0o755);
    assert_eq!(ok!(t.setattr(&member(5, 5, 6), id, None, mode(0o2755))).attr.mode, 0o2755);
    let dir = t.dir(ROOT, "dir", 0o777).await;
    t.chown(dir, 5, 6).await;
    t.chmod(dir, 0o2777).await;
    let (made, h) = ok!(t.create(&user(9), dir, b"file", 0o2755, 0, RW));
    assert_eq!((made.attr.gid, made.attr.mode), (6, 0o755));
    ok!(t.release(made.attr.id, h, None));
}

pub(super) async fn set_gid_directories_pass_on_their_group(t: Ctx) {
    let dir = t.dir(ROOT, "dir", 0o777).await;
    let u = user(9);
    assert_eq!(ok!(t.mkdir(&u, dir, b"plain", 0o755, 0)).attr.gid, 9, "otherwise the maker's group");
    t.chown(dir, 5, 6).await;
    t.chmod(dir, 0o2777).await;
    let sub = ok!(t.mkdir(&u, dir, b"sub", 0o755, 0)).attr;
    assert_eq!((sub.uid, sub.gid, sub.mode), (9, 6, 0o2755));
    let (file, h) = ok!(t.create(&u, dir, b"file", 0o644, 0, RW));
    assert_eq!((file.attr.gid, file.attr.mode), (6, 0o644));
    ok!(t.release(file.attr.id, h, None));
    assert_eq!(ok!(t.symlink(&u, dir, b"link", b"t")).attr.gid, 6);
}

pub(super) async fn sticky_directories_protect_names(t: Ctx) {
    let dir = t.dir(ROOT, "dir", 0o1777).await;
    t.chown(dir, 5, 5).await;
    let (a, b, owner) = (user(7), user(8), user(5));
    t.file_of(&a, dir, "a", 0o666, b"").await;
    t.file_of(&b, dir, "b", 0o666, b"").await;
    ok!(t.mkdir(&a, dir, b"sub", 0o777, 0));
    refuses!(t.unlink(&b, dir, b"a"), NotPermitted);
    refuses!(t.rmdir(&b, dir, b"sub"), NotPermitted);
    refuses!(t.rename(&b, dir, b"a", dir, b"c", Default::default()), NotPermitted);
    refuses!(t.rename(&b, dir, b"b", dir, b"a", Default::default()), NotPermitted);
    ok!(t.rename(&b, dir, b"b", dir, b"b2", Default::default()));
    ok!(t.rmdir(&a, dir, b"sub"));
    ok!(t.unlink(&owner, dir, b"a"));
    ok!(t.unlink(&b, dir, b"b2"));
}

pub(super) async fn moving_a_directory_needs_write_permission_on_it(t: Ctx) {
    let (a, b) = (t.dir(ROOT, "a", 0o777).await, t.dir(ROOT, "b", 0o777).await);
    let u = user(9);
    t.dir(a, "theirs", 0o755).await;
    refuses!(t.rename(&u, a, b"theirs", b, b"x", Default::default()), AccessDenied);
    ok!(t.rename(&u, a, b"theirs", a, b"x", Default::default()));
    ok!(t.mkdir(&u, a, b"mine", 0o755, 0));
    ok!(t.rename(&u, a, b"mine", b, b"mine", Default::default()));
    let exchange = crate::fs::RenameFlags { exchange: true, ..Default::default() };
    refuses!(t.rename(&u, b, b"mine", a, b"x", exchange), AccessDenied);
    refuses!(t.rename(&u, a, b"x", b, b"mine", exchange), AccessDenied);
}

pub(super) async fn truncate_needs_a_right(t: Ctx) {
    let id = t.file(ROOT, "file", b"data").await;
    let size = SetAttr { size: Some(1), ..SetAttr::default() };
    refuses!(t.setattr(&user(9), id, None, size), AccessDenied);
    let writer = ok!(t.open(&SU, id, WRITE));
    ok!(t.setattr(&user(9), id, Some(writer), size));
    t.chmod(id, 0o646).await;
    ok!(t.setattr(&user(9), id, None, SetAttr { size: Some(0), ..SetAttr::default() }));
    ok!(t.release(id, writer, None));
    refuses!(t.setattr(&SU, ROOT, None, size), IsADirectory);
}

pub(super) async fn setting_times_needs_a_right(t: Ctx) {
    let id = t.file(ROOT, "file", b"data").await;
    t.chown(id, 5, 5).await;
    let now = Some(SetTime::Now);
    let at = Some(SetTime::At(Time { sec: 1, nsec: 1 }));
    let set = |atime, mtime| SetAttr { atime, mtime, ..SetAttr::default() };
    refuses!(t.setattr(&user(9), id, None, set(now, now)), AccessDenied);
    t.chmod(id, 0o666).await;
    ok!(t.setattr(&user(9), id, None, set(now, now)));
    refuses!(t.setattr(&user(9), id, None, set(at, now)), NotPermitted);
    refuses!(t.setattr(&user(9), id, None, set(None, now)), NotPermitted);
    ok!(t.setattr(&user(5), id, None, set(at, at)));
    assert_eq!(t.attr(id).await.mtime, Time { sec: 1, nsec: 1 });
}
