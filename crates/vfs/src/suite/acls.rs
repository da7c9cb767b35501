//! POSIX access control lists.

use super::*;
use crate::acl::{Acl, AclEntry, Tag, XATTR_ACCESS, XATTR_DEFAULT};
use crate::fs::XattrMode;

fn acl(entries: &[(Tag, u32)]) -> Vec<u8> {
    let entries = entries.iter().map(|&(tag, perm)| AclEntry { tag, perm }).collect();
    Acl::new(entries).unwrap_or_else(|e| panic!("{e}")).encode()
}

fn extended() -> Vec<u8> {
    acl(&[
        (Tag::UserObj, 6),
        (Tag::User(20), 7),
        (Tag::User(21), 0),
        (Tag::GroupObj, 1),
        (Tag::Group(30), 6),
        (Tag::Mask, 6),
        (Tag::Other, 4),
    ])
}

pub(super) async fn acls_grant_and_mask(t: Ctx) {
    let id = t.file(ROOT, "file", b"").await;
    t.chown(id, 5, 6).await;
    ok!(t.setxattr(&user(5), id, XATTR_ACCESS, &extended(), XattrMode::Any));
    let in_group = |uid, gid| Cred { uid, gid: 9, groups: vec![gid] };
    for (cred, rights) in [
        (user(5), 6),
        (user(20), 6),
        (user(21), 0),
        (in_group(21, 30), 0),
        (in_group(9, 6), 0),
        (in_group(9, 30), 6),
        (user(9), 4),
    ] {
        for mask in 1..8 {
            if mask & rights == mask {
                ok!(t.access(&cred, id, mask));
            } else {
                refuses!(t.access(&cred, id, mask), AccessDenied);
            }
        }
    }
    let h = ok!(t.open(&user(20), id, RW));
    ok!(t.release(id, h, None));
    refuses!(t.open(&user(21), id, READ), AccessDenied);
    let dir = t.dir(ROOT, "dir", 0o700).await;
    let search = acl(&[(Tag::UserObj, 7), (Tag::User(20), 3), (Tag::GroupObj, 0), (Tag::Mask, 7), (Tag::Other, 0)]);
    ok!(t.setxattr(&SU, dir, XATTR_ACCESS, &search, XattrMode::Any));
    ok!(t.mkdir(&user(20), dir, b"sub", 0o755, 0));
    refuses!(t.opendir(&user(20), dir), AccessDenied);
    refuses!(t.lookup(&user(21), dir, b"sub"), AccessDenied);
}

pub(super) async fn acls_and_modes_follow_each_other(t: Ctx) {
    let id = t.file(ROOT, "file", b"").await;
    ok!(t.setxattr(&SU, id, XATTR_ACCESS, &extended(), XattrMode::Any));
    assert_eq!(t.attr(id).await.mode, 0o664, "the group bits are the mask");
    assert_eq!(ok!(t.getxattr(&user(9), id, XATTR_ACCESS)), extended());
    assert_eq!(ok!(t.listxattr(&user(9), id)), [XATTR_ACCESS]);
    t.chmod(id, 0o741).await;
    let changed = ok!(t.getxattr(&SU, id, XATTR_ACCESS));
    let expected = acl(&[
        (Tag::UserObj, 7),
        (Tag::User(20), 7),
        (Tag::User(21), 0),
        (Tag::GroupObj, 1),
        (Tag::Group(30), 6),
        (Tag::Mask, 4),
        (Tag::Other, 1),
    ]);
    assert_eq!(changed, expected);
    refuses!(t.access(&user(20), id, 2), AccessDenied);

    let minimal = Acl::from_mode(0o751).encode();
    ok!(t.setxattr(&SU, id, XATTR_ACCESS, &minimal, XattrMode::Any));
    assert_eq!(t.attr(id).await.mode, 0o751);
    refuses!(t.getxattr(&SU, id, XATTR_ACCESS), NoSuchXattr);
    ok!(t.setxattr(&SU, id, XATTR_ACCESS, &extended(), XattrMode::Any));
    ok!(t.removexattr(&SU, id, XATTR_ACCESS));
    assert_eq!(t.attr(id).await.mode, 0o664, "removing it leaves the mode");
    assert_eq!(ok!(t.listxattr(&SU, id)), Vec::<Vec<u8>>::new());
}

pub(super) async fn default_acls_are_inherited(t: Ctx) {
    let dir = t.dir(ROOT, "dir", 0o777).await;
    let default = acl(&[(Tag::UserObj, 7), (Tag::User(20), 6), (Tag::GroupObj, 5), (Tag::Mask, 7), (Tag::Other, 1)]);
    ok!(t.setxattr(&SU, dir, XATTR_DEFAULT, &default, XattrMode::Any));
    assert_eq!(t.attr(dir).await.mode, 0o777, "a default ACL changes no right of its directory");
    let (file, h) = ok!(t.create(&SU, dir, b"file", 0o666, 0o077, RW));
    ok!(t.release(file.attr.id, h, None));
    assert_eq!(file.attr.mode, 0o660, "cut by the ACL, not by the umask");
    let inherited = acl(&[(Tag::UserObj, 6), (Tag::User(20), 6), (Tag::GroupObj, 5), (Tag::Mask, 6), (Tag::Other, 0)]);
    assert_eq!(ok!(t.getxattr(&SU, file.attr.id, XATTR_ACCESS)), inherited);
    refuses!(t.getxattr(&SU, file.attr.id, XATTR_DEFAULT), NoSuchXattr);
    ok!(t.access(&user(20), file.attr.id, 6));

    let sub = ok!(t.mkdir(&SU, dir, b"sub", 0o777, 0o077)).attr;
    assert_eq!(sub.mode, 0o771);
    assert_eq!(ok!(t.getxattr(&SU, sub.id, XATTR_DEFAULT)), default);
    assert_eq!(ok!(t.getxattr(&SU, sub.id, XATTR_ACCESS)), default);
    let link = ok!(t.symlink(&SU, dir, b"link", b"t")).attr;
    assert_eq!((link.mode, ok!(t.listxattr(&SU, link.id)).len()), (0o777, 0));

    ok!(t.setxattr(&SU, dir, XATTR_DEFAULT, &Acl::from_mode(0o750).encode(), XattrMode::Any));
    let (file, h) = ok!(t.create(&SU, dir, b"plain", 0o666, 0o777, RW));
    ok!(t.release(file.attr.id, h, None));
    assert_eq!(file.attr.mode, 0o640);
    refuses!(t.getxattr(&SU, file.attr.id, XATTR_ACCESS), NoSuchXattr);
    ok!(t.removexattr(&SU, dir, XATTR_DEFAULT));
    assert_eq!(ok!(t.mkdir(&SU, dir, b"again", 0o777, 0o022)).attr.mode, 0o755, "the umask counts again");
}

pub(super) async fn bad_acls_are_refused(t: Ctx) {
    let file = t.file(ROOT, "file", b"").await;
    t.chown(file, 5, 5).await;
    let good = extended();
    let mut version = good.clone();
    version[0] = 1;
    let no_mask = [&good[..44], &good[52..]].concat();
    for bad in [&b""[..], b"\x02\0\0", &version, &good[..good.len() - 1], &good[..good.len() - 8], &no_mask] {
        refuses!(t.setxattr(&SU, file, XATTR_ACCESS, bad, XattrMode::Any), InvalidArgument);
    }
    refuses!(t.setxattr(&SU, file, XATTR_DEFAULT, &good, XattrMode::Any), AccessDenied);
    refuses!(t.setxattr(&user(9), file, XATTR_ACCESS, &good, XattrMode::Any), NotPermitted);
    refuses!(t.removexattr(&user(9), file, XATTR_ACCESS), NotPermitted);
    let link = ok!(t.symlink(&SU, ROOT, b"link", b"t")).attr.id;
    refuses!(t.setxattr(&SU, link, XATTR_ACCESS, &good, XattrMode::Any), NotSupported);
    assert_eq!(t.attr(file).await.mode, 0o644);
}
