use super::*;
use crate::acl::{AclEntry, Tag};
use types::Time;

fn user(uid: u32) -> Cred {
    Cred { uid, gid: uid, groups: vec![] }
}

fn node(kind: Kind, mode: u32) -> Subject<'static> {
    Subject { mode, uid: 1, gid: 2, kind, acl: None }
}

#[test]
fn the_first_class_that_matches_decides() {
    let f = node(Kind::File, 0o074);
    assert_eq!(check(&user(1), &f, READ), Err(FsError::AccessDenied), "the owner gets the owner's bits only");
    let member = Cred { uid: 9, gid: 9, groups: vec![2] };
    assert_eq!(check(&member, &f, READ | WRITE | EXECUTE), Ok(()));
    assert_eq!(check(&user(9), &f, READ), Ok(()));
    assert_eq!(check(&user(9), &f, WRITE), Err(FsError::AccessDenied));
    assert_eq!(check(&user(9), &node(Kind::File, 0), 0), Ok(()), "F_OK");
}

#[test]
fn root_passes_all_but_execute_without_any_x_bit() {
    assert_eq!(check(&Cred::ROOT, &node(Kind::File, 0), READ | WRITE), Ok(()));
    assert_eq!(check(&Cred::ROOT, &node(Kind::File, 0o666), EXECUTE), Err(FsError::AccessDenied));
    assert_eq!(check(&Cred::ROOT, &node(Kind::File, 0o001), EXECUTE), Ok(()));
    assert_eq!(check(&Cred::ROOT, &node(Kind::Directory, 0), EXECUTE), Ok(()));
}

#[test]
fn an_acl_replaces_the_bits_and_a_rotten_one_is_an_error() {
    let entries = [(Tag::UserObj, 7), (Tag::User(9), 4), (Tag::GroupObj, 0), (Tag::Mask, 7), (Tag::Other, 0)];
    let bytes = Acl::new(entries.map(|(tag, perm)| AclEntry { tag, perm }).to_vec()).unwrap().encode();
    let f = Subject { acl: Some(&bytes), ..node(Kind::File, 0o770) };
    assert_eq!(check(&user(9), &f, READ), Ok(()));
    assert_eq!(check(&user(8), &f, READ), Err(FsError::AccessDenied));
    assert_eq!(check(&user(2), &f, READ), Err(FsError::AccessDenied), "group bits are the mask, not the group's right");
    let f = Subject { acl: Some(b"xx"), ..f };
    assert_eq!(check(&user(9), &f, READ), Err(FsError::Io));
}

#[test]
fn sticky_directories_protect_from_all_but_the_owners() {
    let open = node(Kind::Directory, 0o777);
    let sticky = node(Kind::Directory, 0o1777);
    assert_eq!(may_delete(&user(9), &open, 5), Ok(()));
    assert_eq!(may_delete(&user(9), &sticky, 5), Err(FsError::NotPermitted));
    assert_eq!(may_delete(&user(5), &sticky, 5), Ok(()));
    assert_eq!(may_delete(&user(1), &sticky, 5), Ok(()));
    assert_eq!(may_delete(&Cred::ROOT, &sticky, 5), Ok(()));
    assert_eq!(may_delete(&user(9), &node(Kind::Directory, 0o755), 9), Err(FsError::AccessDenied));
}

#[test]
fn chown_is_for_root_and_chgrp_for_members() {
    let f = node(Kind::File, 0o644);
    let set = |uid, gid| SetAttr { uid, gid, ..SetAttr::default() };
    assert_eq!(setattr(&user(1), &f, &set(Some(3), None), false), Err(FsError::NotPermitted));
    assert!(setattr(&user(1), &f, &set(Some(1), None), false).is_ok(), "to itself");
    assert_eq!(setattr(&user(1), &f, &set(None, Some(7)), false), Err(FsError::NotPermitted));
    let member = Cred { uid: 1, gid: 1, groups: vec![7] };
    assert!(setattr(&member, &f, &set(None, Some(7)), false).is_ok());
    let stranger = Cred { uid: 4, gid: 1, groups: vec![7] };
    assert_eq!(setattr(&stranger, &f, &set(None, Some(7)), false), Err(FsError::NotPermitted));
    assert!(setattr(&Cred::ROOT, &f, &set(Some(3), Some(7)), false).is_ok());
}

#[test]
fn chown_and_truncate_clear_set_id_bits() {
    let chown = SetAttr { gid: Some(2), ..SetAttr::default() };
    let mode = |kind, mode, cred: &Cred, set: &SetAttr| setattr(cred, &node(kind, mode), set, true).unwrap().mode;
    assert_eq!(mode(Kind::File, 0o6755, &Cred::ROOT, &chown), Some(0o755), "even for root");
    assert_eq!(mode(Kind::File, 0o6745, &Cred::ROOT, &chown), Some(0o2745), "set-gid without group execute stays");
    assert_eq!(mode(Kind::Directory, 0o6755, &Cred::ROOT, &chown), None);
    assert_eq!(mode(Kind::File, 0o755, &Cred::ROOT, &chown), None);
    let truncate = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(mode(Kind::File, 0o6777, &user(9), &truncate), Some(0o777));
    assert_eq!(mode(Kind::File, 0o6767, &user(9), &truncate), Some(0o767), "a stranger to the group");
    assert_eq!(mode(Kind::File, 0o6777, &Cred::ROOT, &truncate), None);
}

#[test]
fn chmod_drops_set_gid_for_strangers_to_the_group() {
    let set = SetAttr { mode: Some(0o2755), ..SetAttr::default() };
    assert_eq!(setattr(&user(1), &node(Kind::File, 0o644), &set, false).unwrap().mode, Some(0o755));
    let member = Cred { uid: 1, gid: 2, groups: vec![] };
    assert_eq!(setattr(&member, &node(Kind::File, 0o644), &set, false).unwrap().mode, Some(0o2755));
    assert_eq!(setattr(&user(3), &node(Kind::File, 0o666), &set, false), Err(FsError::NotPermitted));
}

#[test]
fn times_need_ownership_unless_both_are_now() {
    let f = node(Kind::File, 0o666);
    let now = Some(SetTime::Now);
    let at = Some(SetTime::At(Time { sec: 1, nsec: 2 }));
    let set = |atime, mtime| SetAttr { atime, mtime, ..SetAttr::default() };
    assert!(setattr(&user(9), &f, &set(now, now), false).is_ok());
    assert_eq!(setattr(&user(9), &f, &set(now, None), false), Err(FsError::NotPermitted));
    assert_eq!(setattr(&user(9), &f, &set(at, now), false), Err(FsError::NotPermitted));
    assert!(setattr(&user(1), &f, &set(at, at), false).is_ok());
    assert_eq!(setattr(&user(9), &node(Kind::File, 0o644), &set(now, now), false), Err(FsError::AccessDenied));
    let bad = Some(SetTime::At(Time { sec: 1, nsec: 1_000_000_000 }));
    assert_eq!(setattr(&user(1), &f, &set(bad, None), false), Err(FsError::InvalidArgument));
}

#[test]
fn truncate_needs_write_permission_or_a_handle() {
    let size = |size| SetAttr { size: Some(size), mtime: Some(SetTime::Now), ..SetAttr::default() };
    let f = node(Kind::File, 0o644);
    assert_eq!(setattr(&user(9), &f, &size(0), false), Err(FsError::AccessDenied));
    assert!(setattr(&user(9), &f, &size(0), true).is_ok());
    assert_eq!(setattr(&user(1), &f, &size(1 << 63), false), Err(FsError::FileTooLarge));
    assert_eq!(setattr(&user(1), &node(Kind::Directory, 0o755), &size(0), false), Err(FsError::IsADirectory));
    assert_eq!(setattr(&user(1), &node(Kind::Fifo, 0o755), &size(0), false), Err(FsError::InvalidArgument));
}

#[test]
fn new_nodes_take_umask_or_default_acl_and_the_set_gid_group() {
    let parent = node(Kind::Directory, 0o777);
    let set_gid = node(Kind::Directory, 0o2777);
    let make = |p: &Subject, d: Option<&[u8]>, kind, mode| new_node_mode(&user(9), p, d, kind, mode, 0o027).unwrap();
    let n = make(&parent, None, Kind::File, 0o6777);
    assert_eq!((n.mode, n.gid), (0o6750, 9));
    let n = make(&set_gid, None, Kind::Directory, 0o6777);
    assert_eq!((n.mode, n.gid), (0o2750, 2), "the group and the bit are inherited");
    assert_eq!(make(&parent, None, Kind::Directory, 0o6777).mode, 0o750);
    assert_eq!(make(&set_gid, None, Kind::File, 0o2777).mode, 0o750, "a stranger to the group makes no set-gid file");
    let default = Acl::from_mode(0o775).encode();
    let n = make(&parent, Some(&default), Kind::Directory, 0o777);
    assert_eq!((n.mode, n.access_acl), (0o775, None), "the default ACL replaces the umask");
    assert_eq!(n.default_acl, Some(default.clone()));
    assert_eq!(make(&parent, Some(&default), Kind::File, 0o666).default_acl, None);
    assert_eq!(make(&parent, Some(&default), Kind::Symlink, 0).mode, 0o777);
}

#[test]
fn xattr_namespaces_have_their_rules() {
    use XattrUse::{Read, Write};
    let f = node(Kind::File, 0o644);
    let x = |uid, s: &Subject, name: &str, usage| xattr_access(&user(uid), s, name.as_bytes(), usage);
    assert_eq!(x(1, &f, "user.a", Write), Ok(()));
    assert_eq!(x(9, &f, "user.a", Write), Err(FsError::AccessDenied));
    assert_eq!(x(9, &f, "user.a", Read), Ok(()));
    let link = node(Kind::Symlink, 0o777);
    assert_eq!(x(0, &link, "user.a", Write), Err(FsError::NotPermitted));
    assert_eq!(x(0, &link, "user.a", Read), Err(FsError::NoSuchXattr));
    assert_eq!(x(0, &link, "trusted.a", Write), Ok(()));
    assert_eq!(x(1, &f, "trusted.a", Write), Err(FsError::NotPermitted));
    assert_eq!(x(1, &f, "trusted.a", Read), Err(FsError::NoSuchXattr));
    assert_eq!(x(1, &f, "security.a", Write), Err(FsError::NotPermitted));
    assert_eq!(x(9, &f, "security.a", Read), Ok(()));
    assert_eq!(x(9, &f, "system.posix_acl_access", Write), Err(FsError::NotPermitted));
    assert_eq!(x(1, &f, "system.posix_acl_access", Write), Ok(()));
    assert_eq!(x(0, &link, "system.posix_acl_access", Write), Err(FsError::NotSupported));
    assert_eq!(x(0, &f, "system.other", Read), Err(FsError::NotSupported));
    assert_eq!(x(0, &f, "nonsense", Read), Err(FsError::NotSupported));
    assert_eq!(x(0, &f, "user.", Read), Err(FsError::InvalidArgument));
    assert_eq!(x(0, &f, "", Read), Err(FsError::BufferTooSmall));
    assert_eq!(x(0, &f, &format!("user.{}", "a".repeat(250)), Write), Ok(()));
    assert_eq!(x(0, &f, &format!("user.{}", "a".repeat(251)), Write), Err(FsError::BufferTooSmall));
    let sticky = node(Kind::Directory, 0o1777);
    assert_eq!(x(9, &sticky, "user.a", Write), Err(FsError::NotPermitted));
}

#[test]
fn setting_an_access_acl_sets_the_mode() {
    let f = node(Kind::File, 0o2644);
    let minimal = Acl::from_mode(0o751).encode();
    assert_eq!(set_xattr(&Cred::ROOT, &f, acl::XATTR_ACCESS, &minimal), Ok((XattrEffect::Remove, 0o2751)));
    assert_eq!(set_xattr(&user(1), &f, acl::XATTR_ACCESS, &minimal), Ok((XattrEffect::Remove, 0o751)));
    assert_eq!(set_xattr(&user(1), &f, acl::XATTR_ACCESS, &[2, 0, 0, 0]), Ok((XattrEffect::Remove, 0o2644)));
    assert_eq!(set_xattr(&user(1), &f, acl::XATTR_ACCESS, b"?"), Err(FsError::InvalidArgument));
    assert_eq!(set_xattr(&user(1), &f, acl::XATTR_DEFAULT, &minimal), Err(FsError::AccessDenied));
    let big = vec![0; XATTR_VALUE_LEN_MAX + 1];
    assert_eq!(set_xattr(&user(1), &f, b"user.a", &big), Err(FsError::ArgumentTooBig));
}
