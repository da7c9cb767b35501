//! rename(2) and its flags.

use super::*;
use crate::fs::RenameFlags;

const PLAIN: RenameFlags = RenameFlags { no_replace: false, exchange: false };
const NO_REPLACE: RenameFlags = RenameFlags { no_replace: true, exchange: false };
const EXCHANGE: RenameFlags = RenameFlags { no_replace: false, exchange: true };

pub(super) async fn rename_moves(t: Ctx) {
    let (a, b) = (t.dir(ROOT, "a", 0o755).await, t.dir(ROOT, "b", 0o755).await);
    let file = t.file(a, "file", b"data").await;
    let sub = t.dir(a, "sub", 0o755).await;
    t.file(sub, "deep", b"").await;
    ok!(t.rename(&SU, a, b"file", a, b"file2", PLAIN));
    ok!(t.rename(&SU, a, b"file2", b, b"file3", PLAIN));
    assert!(!t.exists(a, "file").await && !t.exists(a, "file2").await);
    assert_eq!(t.id(b, "file3").await, file);
    assert_eq!(t.content(file).await, b"data");
    assert_eq!(t.attr(file).await.nlink, 1);

    ok!(t.rename(&SU, a, b"sub", b, b"moved", PLAIN));
    assert_eq!(t.id(b, "moved").await, sub);
    assert_eq!(t.id(sub, "..").await, b);
    assert!(t.exists(sub, "deep").await);
    assert_eq!((t.attr(a).await.nlink, t.attr(b).await.nlink, t.attr(sub).await.nlink), (2, 3, 2));
    ok!(t.rename(&SU, b, b"moved", b, b"again", PLAIN));
    assert_eq!(t.attr(b).await.nlink, 3);
    refuses!(t.rename(&SU, b, b"moved", b, b"x", PLAIN), NotFound);
    refuses!(t.rename(&SU, file, b"x", b, b"x", PLAIN), NotADirectory);
    refuses!(t.rename(&SU, b, b"again", file, b"x", PLAIN), NotADirectory);
}

pub(super) async fn rename_replaces(t: Ctx) {
    let (a, b) = (t.dir(ROOT, "a", 0o755).await, t.dir(ROOT, "b", 0o755).await);
    let new = t.file(a, "new", b"new").await;
    let old = t.file(b, "old", b"old").await;
    ok!(t.link(&SU, old, b, b"other"));
    ok!(t.rename(&SU, a, b"new", b, b"old", PLAIN));
    assert_eq!(t.id(b, "old").await, new);
    assert_eq!(t.attr(old).await.nlink, 1, "the replaced file lost one name");
    assert_eq!(t.content(t.id(b, "other").await).await, b"old");
    ok!(t.rename(&SU, b, b"other", b, b"old", PLAIN));
    refuses!(t.getattr(new), Stale);

    let (dir, empty) = (t.dir(a, "dir", 0o755).await, t.dir(b, "empty", 0o755).await);
    t.file(dir, "inside", b"").await;
    ok!(t.rename(&SU, a, b"dir", b, b"empty", PLAIN));
    assert_eq!(t.id(b, "empty").await, dir);
    assert!(t.exists(dir, "inside").await);
    assert_eq!((t.attr(a).await.nlink, t.attr(b).await.nlink), (2, 3));
    refuses!(t.getattr(empty), Stale);
}

pub(super) async fn rename_between_links_of_one_file_does_nothing(t: Ctx) {
    let id = t.file(ROOT, "a", b"x").await;
    ok!(t.link(&SU, id, ROOT, b"b"));
    ok!(t.rename(&SU, ROOT, b"a", ROOT, b"b", PLAIN));
    assert!(t.exists(ROOT, "a").await && t.exists(ROOT, "b").await);
    ok!(t.rename(&SU, ROOT, b"a", ROOT, b"a", PLAIN));
    assert_eq!(t.attr(id).await.nlink, 2);
    let dir = t.dir(ROOT, "dir", 0o755).await;
    t.file(dir, "inside", b"").await;
    ok!(t.rename(&SU, ROOT, b"dir", ROOT, b"dir", PLAIN));
    assert!(t.exists(dir, "inside").await);
    ok!(t.rename(&user(9), ROOT, b"a", ROOT, b"b", PLAIN));
    ok!(t.rename(&user(9), ROOT, b"dir", ROOT, b"dir", PLAIN));
}

pub(super) async fn rename_can_refuse_to_replace(t: Ctx) {
    let a = t.file(ROOT, "a", b"").await;
    t.file(ROOT, "b", b"").await;
    t.dir(ROOT, "dir", 0o755).await;
    refuses!(t.rename(&SU, ROOT, b"a", ROOT, b"b", NO_REPLACE), Exists);
    refuses!(t.rename(&SU, ROOT, b"a", ROOT, b"dir", NO_REPLACE), Exists);
    refuses!(t.rename(&SU, ROOT, b"a", ROOT, b"a", NO_REPLACE), Exists);
    ok!(t.rename(&SU, ROOT, b"a", ROOT, b"c", NO_REPLACE));
    assert_eq!(t.id(ROOT, "c").await, a);
    let both = RenameFlags { no_replace: true, exchange: true };
    refuses!(t.rename(&SU, ROOT, b"b", ROOT, b"c", both), InvalidArgument);
}

pub(super) async fn rename_exchanges(t: Ctx) {
    let (a, b) = (t.dir(ROOT, "a", 0o755).await, t.dir(ROOT, "b", 0o755).await);
    let (x, y) = (t.file(a, "x", b"x").await, t.file(b, "y", b"y").await);
    ok!(t.rename(&SU, a, b"x", b, b"y", EXCHANGE));
    assert_eq!((t.id(a, "x").await, t.id(b, "y").await), (y, x));
    let full = t.dir(a, "full", 0o755).await;
    t.file(full, "inside", b"").await;
    ok!(t.rename(&SU, a, b"full", b, b"y", EXCHANGE));
    assert_eq!((t.id(a, "full").await, t.id(b, "y").await, t.id(full, "..").await), (x, full, b));
    assert_eq!((t.attr(a).await.nlink, t.attr(b).await.nlink), (2, 3));
    assert_eq!((t.attr(x).await.nlink, t.attr(y).await.nlink), (1, 1));
    let other = t.dir(a, "other", 0o755).await;
    ok!(t.rename(&SU, a, b"other", b, b"y", EXCHANGE));
    assert_eq!((t.id(full, "..").await, t.id(other, "..").await), (a, b));
    assert_eq!((t.attr(a).await.nlink, t.attr(b).await.nlink), (3, 3));
    refuses!(t.rename(&SU, a, b"x", b, b"none", EXCHANGE), NotFound);
    refuses!(t.rename(&SU, a, b"none", b, b"y", EXCHANGE), NotFound);
}

pub(super) async fn rename_makes_no_loops(t: Ctx) {
    let a = t.dir(ROOT, "a", 0o755).await;
    let b = t.dir(a, "b", 0o755).await;
    let c = t.dir(b, "c", 0o755).await;
    t.file(c, "file", b"").await;
    refuses!(t.rename(&SU, ROOT, b"a", a, b"x", PLAIN), InvalidArgument);
    refuses!(t.rename(&SU, ROOT, b"a", c, b"x", PLAIN), InvalidArgument);
    refuses!(t.rename(&SU, ROOT, b"a", a, b"b", PLAIN), InvalidArgument);
    refuses!(t.rename(&SU, a, b"b", c, b"x", PLAIN), InvalidArgument);
    refuses!(t.rename(&SU, ROOT, b"a", c, b"file", EXCHANGE), InvalidArgument);
    refuses!(t.rename(&SU, c, b"file", ROOT, b"a", EXCHANGE), InvalidArgument);
    refuses!(t.rename(&SU, c, b"file", ROOT, b"a", PLAIN), NotEmpty);
    refuses!(t.rename(&SU, b, b"c", ROOT, b"a", PLAIN), NotEmpty);
    assert_eq!((t.id(a, "b").await, t.id(b, "c").await), (b, c));
    ok!(t.rename(&SU, b, b"c", ROOT, b"c", PLAIN));
    ok!(t.rename(&SU, ROOT, b"a", c, b"a", PLAIN));
    assert_eq!(t.id(a, "..").await, c, "the other way round is allowed now");
}

pub(super) async fn rename_checks_kinds(t: Ctx) {
    let dir = t.dir(ROOT, "dir", 0o755).await;
    let full = t.dir(ROOT, "full", 0o755).await;
    t.file(full, "inside", b"").await;
    t.file(ROOT, "file", b"").await;
    refuses!(t.rename(&SU, ROOT, b"file", ROOT, b"dir", PLAIN), IsADirectory);
    refuses!(t.rename(&SU, ROOT, b"dir", ROOT, b"file", PLAIN), NotADirectory);
    refuses!(t.rename(&SU, ROOT, b"dir", ROOT, b"full", PLAIN), NotEmpty);
    assert_eq!(t.id(ROOT, "dir").await, dir);
    assert_eq!(t.attr(ROOT).await.nlink, 4);
}

pub(super) async fn rename_refuses_in_linuxs_order(t: Ctx) {
    let (a, b) = (t.dir(ROOT, "a", 0o777).await, t.dir(ROOT, "b", 0o777).await);
    let closed = t.dir(ROOT, "closed", 0o700).await;
    let u = user(9);
    // Search permission on both directories, then names, rights on the names, kinds, write
    // permission on what moves, contents.
    refuses!(t.rename(&u, a, b"absent", closed, b"x", PLAIN), AccessDenied);
    t.dir(a, "theirs", 0o755).await;
    t.file(b, "file", b"").await;
    refuses!(t.rename(&u, a, b"theirs", ROOT, b"closed", PLAIN), AccessDenied);
    refuses!(t.rename(&u, a, b"theirs", b, b"file", PLAIN), NotADirectory);
    let full = t.dir(b, "full", 0o777).await;
    t.file(full, "inside", b"").await;
    refuses!(t.rename(&u, a, b"theirs", b, b"full", PLAIN), AccessDenied);
    refuses!(t.rename(&u, b, b"file", b, b"full", PLAIN), IsADirectory);
    ok!(t.mkdir(&u, a, b"mine", 0o755, 0));
    refuses!(t.rename(&u, a, b"mine", b, b"full", PLAIN), NotEmpty);
}
