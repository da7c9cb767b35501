//! Extended attributes.

use super::*;
use crate::fs::{XATTR_NAME_LEN_MAX, XATTR_VALUE_LEN_MAX, XattrMode};

async fn names(t: &Ctx, cred: &Cred, id: FileId) -> Vec<Vec<u8>> {
    let mut names = ok!(t.listxattr(cred, id));
    names.sort();
    names
}

pub(super) async fn xattrs_are_kept(t: Ctx) {
    let file = t.file(ROOT, "file", b"").await;
    let dir = t.dir(ROOT, "dir", 0o755).await;
    for id in [file, dir] {
        assert_eq!(names(&t, &SU, id).await, Vec::<Vec<u8>>::new());
        ok!(t.setxattr(&SU, id, b"user.b", b"\0binary\xff", XattrMode::Any));
        ok!(t.setxattr(&SU, id, b"user.a", b"", XattrMode::Any));
        ok!(t.setxattr(&SU, id, "user.ü \n".as_bytes(), b"x", XattrMode::Any));
        assert_eq!(ok!(t.getxattr(&SU, id, b"user.b")), &b"\0binary\xff"[..]);
        assert_eq!(ok!(t.getxattr(&SU, id, b"user.a")), &b""[..]);
        ok!(t.setxattr(&SU, id, b"user.b", b"2", XattrMode::Any));
        assert_eq!(ok!(t.getxattr(&SU, id, b"user.b")), &b"2"[..]);
        assert_eq!(names(&t, &SU, id).await, [b"user.a", b"user.b", "user.ü \n".as_bytes()]);
        ok!(t.removexattr(&SU, id, b"user.b"));
        refuses!(t.getxattr(&SU, id, b"user.b"), NoSuchXattr);
        refuses!(t.removexattr(&SU, id, b"user.b"), NoSuchXattr);
        assert_eq!(names(&t, &SU, id).await.len(), 2);
    }
    ok!(t.link(&SU, file, dir, b"again"));
    ok!(t.rename(&SU, ROOT, b"file", dir, b"moved", Default::default()));
    assert_eq!(ok!(t.getxattr(&SU, t.id(dir, "again").await, "user.ü \n".as_bytes())), &b"x"[..]);
    for i in 0..100 {
        ok!(t.setxattr(&SU, dir, format!("user.{i:03}").as_bytes(), &[i; 40], XattrMode::Create));
    }
    assert_eq!(names(&t, &SU, dir).await.len(), 102);
    assert_eq!(ok!(t.getxattr(&SU, dir, b"user.077")), vec![77; 40]);
}

pub(super) async fn xattr_flags_are_obeyed(t: Ctx) {
    let id = t.file(ROOT, "file", b"").await;
    refuses!(t.setxattr(&SU, id, b"user.a", b"1", XattrMode::Replace), NoSuchXattr);
    refuses!(t.getxattr(&SU, id, b"user.a"), NoSuchXattr);
    ok!(t.setxattr(&SU, id, b"user.a", b"1", XattrMode::Create));
    refuses!(t.setxattr(&SU, id, b"user.a", b"2", XattrMode::Create), Exists);
    assert_eq!(ok!(t.getxattr(&SU, id, b"user.a")), &b"1"[..]);
    ok!(t.setxattr(&SU, id, b"user.a", b"3", XattrMode::Replace));
    assert_eq!(ok!(t.getxattr(&SU, id, b"user.a")), &b"3"[..]);
}

pub(super) async fn xattr_lengths_are_bounded(t: Ctx) {
    let id = t.file(ROOT, "file", b"").await;
    let name = |len: usize| [&b"user."[..], &vec![b'n'; len - 5]].concat();
    let (longest, long) = (name(XATTR_NAME_LEN_MAX), name(XATTR_NAME_LEN_MAX + 1));
    let value: Vec<u8> = (0..=XATTR_VALUE_LEN_MAX).map(|i| i as u8).collect();
    ok!(t.setxattr(&SU, id, &longest, &value[1..], XattrMode::Any));
    assert_eq!(ok!(t.getxattr(&SU, id, &longest)), &value[1..]);
    refuses!(t.setxattr(&SU, id, &longest, &value, XattrMode::Any), ArgumentTooBig);
    refuses!(t.setxattr(&SU, id, &long, b"x", XattrMode::Any), BufferTooSmall);
    refuses!(t.getxattr(&SU, id, &long), BufferTooSmall);
    refuses!(t.removexattr(&SU, id, &long), BufferTooSmall);
    refuses!(t.setxattr(&SU, id, b"", b"x", XattrMode::Any), BufferTooSmall);
    assert_eq!(ok!(t.getxattr(&SU, id, &longest)), &value[1..]);
    assert_eq!(names(&t, &SU, id).await, [longest]);
}

pub(super) async fn xattr_namespaces_have_rules(t: Ctx) {
    let (owner, other) = (user(5), user(9));
    let id = t.file(ROOT, "file", b"").await;
    t.chown(id, 5, 5).await;
    ok!(t.setxattr(&owner, id, b"user.a", b"1", XattrMode::Any));
    assert_eq!(ok!(t.getxattr(&other, id, b"user.a")), &b"1"[..]);
    refuses!(t.setxattr(&other, id, b"user.a", b"2", XattrMode::Any), AccessDenied);
    refuses!(t.removexattr(&other, id, b"user.a"), AccessDenied);
    t.chmod(id, 0o600).await;
    refuses!(t.getxattr(&other, id, b"user.a"), AccessDenied);

    ok!(t.setxattr(&SU, id, b"trusted.t", b"1", XattrMode::Any));
    ok!(t.setxattr(&SU, id, b"security.s", b"1", XattrMode::Any));
    refuses!(t.setxattr(&owner, id, b"trusted.t", b"2", XattrMode::Any), NotPermitted);
    refuses!(t.getxattr(&owner, id, b"trusted.t"), NoSuchXattr);
    refuses!(t.setxattr(&owner, id, b"security.s", b"2", XattrMode::Any), NotPermitted);
    assert_eq!(ok!(t.getxattr(&other, id, b"security.s")), &b"1"[..]);
    assert_eq!(names(&t, &owner, id).await, [&b"security.s"[..], b"user.a"]);
    assert_eq!(names(&t, &SU, id).await, [&b"security.s"[..], b"trusted.t", b"user.a"]);

    let link = ok!(t.symlink(&SU, ROOT, b"link", b"t")).attr.id;
    refuses!(t.setxattr(&SU, link, b"user.a", b"1", XattrMode::Any), NotPermitted);
    refuses!(t.getxattr(&SU, link, b"user.a"), NoSuchXattr);
    ok!(t.setxattr(&SU, link, b"trusted.a", b"1", XattrMode::Any));
    assert_eq!(ok!(t.getxattr(&SU, link, b"trusted.a")), &b"1"[..]);
    for odd in [&b"none"[..], b"odd.name", b"system.else"] {
        refuses!(t.setxattr(&SU, id, odd, b"x", XattrMode::Any), NotSupported);
        refuses!(t.getxattr(&SU, id, odd), NotSupported);
    }
    refuses!(t.setxattr(&SU, id, b"user.", b"x", XattrMode::Any), InvalidArgument);

    let sticky = t.dir(ROOT, "sticky", 0o1777).await;
    refuses!(t.setxattr(&other, sticky, b"user.a", b"1", XattrMode::Any), NotPermitted);
    t.chmod(sticky, 0o777).await;
    ok!(t.setxattr(&other, sticky, b"user.a", b"1", XattrMode::Any));
}
