//! POSIX permission rules as pure functions, shared by every implementation of the file system.
//!
//! Owns: who may read, write, search, delete, chmod, chown and set times; when set-id bits are
//! cleared; mode, group and ACLs of a new node; who sees which extended attribute. The rules are
//! Linux's, with user 0 as the only privileged user. Nothing here knows where attributes are kept:
//! callers pass a [`Subject`].

use crate::acl::{self, Acl};
use crate::fs::{Cred, OpenFlags, SetAttr, SetTime, XATTR_NAME_LEN_MAX, XATTR_VALUE_LEN_MAX};
use types::{Attr, FsError, Kind};

/// Right to read, in masks.
pub const READ: u32 = 4;
/// Right to write, in masks.
pub const WRITE: u32 = 2;
/// Right to execute or search, in masks.
pub const EXECUTE: u32 = 1;

/// The set-user-id bit of a mode.
pub const SET_UID: u32 = 0o4000;
/// The set-group-id bit of a mode.
pub const SET_GID: u32 = 0o2000;
/// The sticky bit of a mode.
pub const STICKY: u32 = 0o1000;
const GROUP_EXECUTE: u32 = 0o010;

/// The properties of a node that permission rules need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject<'a> {
    /// Lower twelve bits of st_mode.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Type.
    pub kind: Kind,
    /// Value of `system.posix_acl_access`, if it has one.
    pub acl: Option<&'a [u8]>,
}

impl<'a> Subject<'a> {
    /// From attributes and the access ACL's attribute value.
    pub fn new(attr: &Attr, acl: Option<&'a [u8]>) -> Self {
        Subject { mode: attr.mode, uid: attr.uid, gid: attr.gid, kind: attr.kind, acl }
    }
}

/// True if `cred` may do what only an owner may.
pub fn owns(cred: &Cred, s: &Subject) -> bool {
    privileged(cred) || cred.uid == s.uid
}

fn privileged(cred: &Cred) -> bool {
    cred.uid == 0
}

/// EACCES unless `cred` has all rights of `mask` ([`READ`], [`WRITE`], [`EXECUTE`]). The superuser
/// has all rights, except that it executes a file only if at least one execute bit is set. EIO for
/// a stored ACL that does not decode.
pub fn check(cred: &Cred, s: &Subject, mask: u32) -> Result<(), FsError> {
    let mask = mask & 7;
    let granted = if privileged(cred) {
        s.kind == Kind::Directory || mask & EXECUTE == 0 || s.mode & 0o111 != 0
    } else {
        match s.acl.map(Acl::decode).transpose().map_err(|_| FsError::Io)?.flatten() {
            Some(acl) => acl.allows(cred, s.uid, s.gid, mask),
            None => {
                let shift = if cred.uid == s.uid {
                    6
                } else if cred.in_group(s.gid) {
                    3
                } else {
                    0
                };
                s.mode >> shift & mask == mask
            }
        }
    };
    if granted { Ok(()) } else { Err(FsError::AccessDenied) }
}

/// The rights that opening with `flags` needs; truncating counts as writing.
pub fn open_mask(flags: OpenFlags) -> u32 {
    let mut mask = 0;
    if flags.execute {
        mask |= EXECUTE;
    } else if flags.read {
        mask |= READ;
    }
    if flags.write || flags.truncate {
        mask |= WRITE;
    }
    mask
}

/// EACCES unless `cred` may add entries to the directory `parent`.
pub fn may_create(cred: &Cred, parent: &Subject) -> Result<(), FsError> {
    check(cred, parent, WRITE | EXECUTE)
}

/// EACCES unless `cred` may change the directory `parent`; EPERM if the directory is sticky and
/// neither it nor the victim belongs to `cred`. A rename checks its source always, and its target
/// if it exists.
pub fn may_delete(cred: &Cred, parent: &Subject, victim_uid: u32) -> Result<(), FsError> {
    check(cred, parent, WRITE | EXECUTE)?;
    if parent.mode & STICKY != 0 && !owns(cred, parent) && cred.uid != victim_uid {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

/// Checks a setattr and returns it in the form to apply. If `cred` may not set the set-group-id
/// bit, the bit is removed from the mode. If a chown or truncate clears set-id bits, `mode` says
/// so. `handle_writable`: the caller passed a handle opened for writing, which gives the right to
/// truncate. A caller that applies a mode also updates the access ACL ([`acl::chmod`]).
///
/// EPERM for chmod, chown and explicit times by users other than the owner; EACCES for truncate and
/// "now" times without write permission; EISDIR and EINVAL for truncating a non-file; EFBIG for a
/// size beyond the largest; EOPNOTSUPP for chmod of a symlink; EINVAL for the ids that mean "none".
pub fn setattr(cred: &Cred, s: &Subject, set: &SetAttr, handle_writable: bool) -> Result<SetAttr, FsError> {
    let mut out = *set;
    if s.kind == Kind::Symlink && set.mode.is_some() {
        return Err(FsError::NotSupported);
    }
    if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
        return Err(FsError::InvalidArgument);
    }
    if let Some(size) = set.size {
        match s.kind {
            Kind::File => {}
            Kind::Directory => return Err(FsError::IsADirectory),
            _ => return Err(FsError::InvalidArgument),
        }
        if !handle_writable {
            check(cred, s, WRITE)?;
        }
        if size > crate::fs::FILE_SIZE_MAX {
            return Err(FsError::FileTooLarge);
        }
    }
    if let Some(uid) = set.uid
        && !(privileged(cred) || (cred.uid == s.uid && uid == s.uid))
    {
        return Err(FsError::NotPermitted);
    }
    if let Some(gid) = set.gid
        && !(privileged(cred) || (cred.uid == s.uid && (gid == s.gid || cred.in_group(gid))))
    {
        return Err(FsError::NotPermitted);
    }
    check_times(cred, s, set)?;
    for t in [set.atime, set.mtime].into_iter().flatten() {
        if let SetTime::At(t) = t
            && t.nsec >= 1_000_000_000
        {
            return Err(FsError::InvalidArgument);
        }
    }
    match set.mode {
        Some(mode) => {
            if !owns(cred, s) {
                return Err(FsError::NotPermitted);
            }
            let mode = mode & 0o7777;
            let gid = set.gid.unwrap_or(s.gid);
            let keep_set_gid = privileged(cred) || cred.in_group(gid);
            out.mode = Some(if keep_set_gid { mode } else { mode & !SET_GID });
        }
        None => {
            // chown clears set-id bits even for the superuser; a truncate is a write.
            let after = if (set.uid.is_some() || set.gid.is_some()) && s.kind != Kind::Directory {
                strip_setid_of_group(cred, s)
            } else if set.size.is_some() {
                mode_after_write(cred, s).unwrap_or(s.mode)
            } else {
                s.mode
            };
            out.mode = (after != s.mode).then_some(after);
        }
    }
    Ok(out)
}

/// Checks the times of a setattr (utimensat). Setting both to "now" needs ownership or write
/// permission; everything else needs ownership. A modification time of "now" that comes with a size
/// belongs to the truncate, and needs no more than the truncate does.
fn check_times(cred: &Cred, s: &Subject, set: &SetAttr) -> Result<(), FsError> {
    let truncates = set.size.is_some() && set.atime.is_none() && matches!(set.mtime, None | Some(SetTime::Now));
    if (set.atime, set.mtime) == (None, None) || truncates || owns(cred, s) {
        return Ok(());
    }
    match (set.atime, set.mtime) {
        (Some(SetTime::Now), Some(SetTime::Now)) => check(cred, s, WRITE),
        _ => Err(FsError::NotPermitted),
    }
}

/// `mode` without set-id bits, as after a write by an unprivileged user. The set-group-id bit stays
/// if the group may not execute, because it then means mandatory locking.
pub fn strip_setid(mode: u32) -> u32 {
    let set_gid = if mode & GROUP_EXECUTE != 0 { SET_GID } else { 0 };
    mode & !(SET_UID | set_gid)
}

/// The mode of a regular file after `cred` wrote to it or truncated it; `None` if it does not
/// change.
pub fn mode_after_write(cred: &Cred, s: &Subject) -> Option<u32> {
    if privileged(cred) || s.kind != Kind::File {
        return None;
    }
    let after = strip_setid_of_group(cred, s);
    (after != s.mode).then_some(after)
}

/// As [`strip_setid`], but a user outside the group also clears the set-group-id bit in any case.
fn strip_setid_of_group(cred: &Cred, s: &Subject) -> u32 {
    let stranger = !privileged(cred) && !cred.in_group(s.gid);
    strip_setid(s.mode) & !(if stranger { SET_GID } else { 0 })
}

/// The initial mode, group and ACLs of a new node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNodeMode {
    /// Lower twelve bits of its mode.
    pub mode: u32,
    /// Its group.
    pub gid: u32,
    /// Value of `system.posix_acl_access`, if it gets one.
    pub access_acl: Option<Vec<u8>>,
    /// Value of `system.posix_acl_default`, if it gets one.
    pub default_acl: Option<Vec<u8>>,
}

/// Mode, group and ACLs of a new node of `kind` that `cred` makes in `parent`, whose default ACL
/// has the attribute value `parent_default`. A default ACL replaces the umask. In a set-group-id
/// directory the group is the directory's, and new directories are set-group-id too. EIO for a
/// stored ACL that does not decode. Symlinks always have mode 0777.
pub fn new_node_mode(
    cred: &Cred,
    parent: &Subject,
    parent_default: Option<&[u8]>,
    kind: Kind,
    mode: u32,
    umask: u32,
) -> Result<NewNodeMode, FsError> {
    let inherits_group = parent.mode & SET_GID != 0;
    let gid = if inherits_group { parent.gid } else { cred.gid };
    if kind == Kind::Symlink {
        return Ok(NewNodeMode { mode: 0o777, gid, access_acl: None, default_acl: None });
    }
    // mkdir(2) ignores set-id bits in the mode.
    let mut mode = mode & if kind == Kind::Directory { 0o1777 } else { 0o7777 };
    if kind == Kind::Directory && inherits_group {
        mode |= SET_GID;
    } else if mode & (SET_GID | GROUP_EXECUTE) == SET_GID | GROUP_EXECUTE && !privileged(cred) && !cred.in_group(gid) {
        mode &= !SET_GID;
    }
    let default = parent_default.map(Acl::decode).transpose().map_err(|_| FsError::Io)?.flatten();
    Ok(match default {
        None => NewNodeMode { mode: mode & !(umask & 0o777), gid, access_acl: None, default_acl: None },
        Some(acl) => {
            let (mode, access) = acl.inherit(mode);
            let default_acl = (kind == Kind::Directory).then(|| acl.encode());
            NewNodeMode { mode, gid, access_acl: access.map(|a| a.encode()), default_acl }
        }
    })
}

/// The two uses of an extended attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrUse {
    /// Its value is read.
    Read,
    /// It is set or removed.
    Write,
}

/// Checks name and right for an extended attribute. ERANGE for an empty name or one beyond
/// [`XATTR_NAME_LEN_MAX`]; EOPNOTSUPP for an unknown namespace (the known ones: `user.`,
/// `trusted.`, `security.`, `system.posix_acl_*`); EINVAL for a name that is only a namespace, or
/// contains a NUL.
///
/// - `user.`: regular files and directories only (EPERM, reading: ENODATA); needs read or write
///   permission (EACCES); in a sticky directory's own attributes only the owner writes (EPERM).
/// - `trusted.`: the superuser only (EPERM, reading: ENODATA).
/// - `security.`: read by all, written by the superuser (EPERM).
/// - ACLs: read by all, written by the owner (EPERM); not on symlinks (EOPNOTSUPP).
pub fn xattr_access(cred: &Cred, s: &Subject, name: &[u8], usage: XattrUse) -> Result<(), FsError> {
    let refuse = match usage {
        XattrUse::Read => Err(FsError::NoSuchXattr),
        XattrUse::Write => Err(FsError::NotPermitted),
    };
    if name.is_empty() || name.len() > XATTR_NAME_LEN_MAX {
        return Err(FsError::BufferTooSmall);
    }
    if name.contains(&0) || [&b"user."[..], b"trusted.", b"security.", b"system."].contains(&name) {
        return Err(FsError::InvalidArgument);
    }
    if name.starts_with(b"user.") {
        if !matches!(s.kind, Kind::File | Kind::Directory) {
            return refuse;
        }
        let sticky = s.kind == Kind::Directory && s.mode & STICKY != 0;
        match usage {
            XattrUse::Write if sticky && !owns(cred, s) => Err(FsError::NotPermitted),
            XattrUse::Write => check(cred, s, WRITE),
            XattrUse::Read => check(cred, s, READ),
        }
    } else if name.starts_with(b"trusted.") {
        if privileged(cred) { Ok(()) } else { refuse }
    } else if name.starts_with(b"security.") {
        if privileged(cred) || usage == XattrUse::Read { Ok(()) } else { refuse }
    } else if name == acl::XATTR_ACCESS || name == acl::XATTR_DEFAULT {
        match usage {
            _ if s.kind == Kind::Symlink => Err(FsError::NotSupported),
            XattrUse::Write if !owns(cred, s) => Err(FsError::NotPermitted),
            _ => Ok(()),
        }
    } else {
        Err(FsError::NotSupported)
    }
}

/// True if listxattr shows `name` to `cred`.
pub fn xattr_listed(cred: &Cred, name: &[u8]) -> bool {
    privileged(cred) || !name.starts_with(b"trusted.")
}

/// What setting an extended attribute does, once [`xattr_access`] allowed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrEffect {
    /// Store this value under the name.
    Store(Vec<u8>),
    /// Remove the attribute if it exists: the mode expresses the whole ACL, or the value was an
    /// empty ACL.
    Remove,
}

/// What setting `name` to `value` stores, and the mode afterwards. Setting an access ACL sets the
/// permission bits, and a user outside the group clears the set-group-id bit. E2BIG for a value
/// beyond [`XATTR_VALUE_LEN_MAX`]; EINVAL for a malformed ACL; EACCES for a default ACL on a
/// non-directory.
pub fn set_xattr(cred: &Cred, s: &Subject, name: &[u8], value: &[u8]) -> Result<(XattrEffect, u32), FsError> {
    if value.len() > XATTR_VALUE_LEN_MAX {
        return Err(FsError::ArgumentTooBig);
    }
    let is_access = name == acl::XATTR_ACCESS;
    if !is_access && name != acl::XATTR_DEFAULT {
        return Ok((XattrEffect::Store(value.to_vec()), s.mode));
    }
    let Some(acl) = Acl::decode(value).map_err(|_| FsError::InvalidArgument)? else {
        return Ok((XattrEffect::Remove, s.mode));
    };
    if !is_access {
        if s.kind != Kind::Directory {
            return Err(FsError::AccessDenied);
        }
        return Ok((XattrEffect::Store(acl.encode()), s.mode));
    }
    let mut mode = acl.apply_to_mode(s.mode);
    if !privileged(cred) && !cred.in_group(s.gid) {
        mode &= !SET_GID;
    }
    Ok((if acl.is_minimal() { XattrEffect::Remove } else { XattrEffect::Store(acl.encode()) }, mode))
}

#[cfg(test)]
mod tests;
