//! Operations on names and attributes: checks them in Linux's order, as far as the client can, and
//! makes the operation to log.

use crate::live::{Live, Need, Stop};
use crate::replica::{Child, Node};
use roam_proto::operation::{Attributes, Made, Operation, Place};
use types::{FileId, FsError, Kind, Time};
use vfs::acl;
use vfs::fs::{Cred, LINK_COUNT_MAX, NAME_LEN_MAX, NewNode, RenameFlags, SYMLINK_LEN_MAX, SetAttr, SetTime, XattrMode};
use vfs::perm::{self, XattrUse};

/// Most ancestors that a directory may have if something is to be moved into it. It bounds the
/// search for circles.
const DEPTH_MAX: usize = 4096;

pub(crate) fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// ENOENT for an empty name, ENAMETOOLONG beyond 255 bytes, EINVAL for `/` or NUL within.
fn check_name(name: &[u8]) -> Result<(), FsError> {
    match name {
        b"" => Err(FsError::NotFound),
        name if name.len() > NAME_LEN_MAX => Err(FsError::NameTooLong),
        name if name.contains(&0) || name.contains(&b'/') => Err(FsError::InvalidArgument),
        _ => Ok(()),
    }
}

impl Live {
    fn check(&self, cred: &Cred, id: FileId, mask: u32) -> Result<(), Stop> {
        Ok(perm::check(cred, &self.node(id)?.subject(), mask)?)
    }

    /// The file that `name` leads to in `parent`, for a caller that may search there.
    pub(crate) fn find(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Result<FileId, Stop> {
        let parent = self.replica.real(parent);
        let dir = match self.node(parent) {
            // One question asks for the directory and its names.
            Err(Stop::Need(Need::Facts(dir))) if self.is_shared_directory(parent) => {
                return Err(Stop::Need(Need::Names(dir)));
            }
            dir => dir?,
        };
        if dir.facts.kind != Kind::Directory {
            return Err(Stop::Fs(FsError::NotADirectory));
        }
        perm::check(cred, &dir.subject(), perm::EXECUTE)?;
        check_name(name)?;
        match name {
            b"." => return Ok(parent),
            b".." => return Ok(dir.parent),
            _ => {}
        }
        let place = (parent, name.to_vec());
        // The home need not be asked about changes made here.
        let is_own = self.replica.log().at(&place).is_some();
        if !is_own {
            self.directory(parent)?;
        }
        match self.replica.child(&place) {
            Child::Is(id) => Ok(id),
            // Others have changed the names since they were listed here.
            Child::Nothing if !is_own && !self.freshness.is_frozen() && self.replica.names_have_changed(parent) => {
                Err(Stop::Need(Need::Names(parent)))
            }
            Child::Nothing => Err(Stop::Fs(FsError::NotFound)),
            Child::Unknown => Err(Stop::Need(Need::Names(parent))),
        }
    }

    /// True if a directory may be believed only as far as a delegation says.
    fn is_shared_directory(&self, dir: FileId) -> bool {
        self.freshness.is_delegated() && self.replica.node(dir).is_ok_and(|node| node.facts.kind == Kind::Directory)
    }

    /// As [`find`](Self::find), but a name that could be made is `None`. ENOENT if the directory
    /// has been removed. Without a network, a name that this client does not know could be made:
    /// the home checks later that it is free, and otherwise there is a conflict.
    fn find_free(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Result<Option<FileId>, Stop> {
        match self.find(cred, parent, name) {
            Ok(id) => Ok(Some(id)),
            Err(Stop::Fs(FsError::NotFound)) if !name.is_empty() && self.node(parent)?.facts.nlink > 0 => Ok(None),
            Err(Stop::Need(Need::Names(_))) if self.is_content() && self.directory(parent)?.facts.nlink > 0 => Ok(None),
            Err(stop) => Err(stop),
        }
    }

    fn is_empty(&self, dir: FileId) -> Result<bool, Stop> {
        self.directory(dir)?;
        Ok(self.replica.list(dir).ok_or(Stop::Need(Need::Names(dir)))?.is_empty())
    }

    /// True if a node is a directory, or has only one name left.
    fn is_last(node: &Node) -> bool {
        node.facts.kind == Kind::Directory || node.facts.nlink <= 1
    }

    pub(crate) fn make(
        &self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        new: NewNode,
        target: &[u8],
        when: Time,
    ) -> Result<Operation, Stop> {
        if self.find_free(cred, parent, name)?.is_some() {
            return Err(Stop::Fs(FsError::Exists));
        }
        let dir = self.node(parent)?;
        perm::may_create(cred, &dir.subject())?;
        if matches!(new.kind, Kind::CharDevice | Kind::BlockDevice) && cred.uid != 0 {
            return Err(Stop::Fs(FsError::NotPermitted));
        }
        let default = dir.xattr(acl::XATTR_DEFAULT);
        let start = perm::new_node_mode(cred, &dir.subject(), default, new.kind, new.mode, new.umask)?;
        let file = self.replica.next_id().ok_or(Stop::Need(Need::Ids))?;
        let rdev = if matches!(new.kind, Kind::CharDevice | Kind::BlockDevice) { new.rdev } else { 0 };
        let (mode, gid, target) = (start.mode, start.gid, target.to_vec());
        let made = Made { kind: new.kind, mode, uid: cred.uid, gid, rdev, target, when };
        Ok(Operation::Make { at: (parent, name.to_vec()), file, made })
    }

    pub(crate) fn symlink(
        &self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        target: &[u8],
        when: Time,
    ) -> Result<Operation, Stop> {
        match target {
            b"" => return Err(Stop::Fs(FsError::NotFound)),
            target if target.len() > SYMLINK_LEN_MAX => return Err(Stop::Fs(FsError::NameTooLong)),
            target if target.contains(&0) => return Err(Stop::Fs(FsError::InvalidArgument)),
            _ => {}
        }
        self.make(cred, parent, name, NewNode { kind: Kind::Symlink, mode: 0o777, umask: 0, rdev: 0 }, target, when)
    }

    pub(crate) fn link(&self, cred: &Cred, id: FileId, parent: FileId, name: &[u8]) -> Result<Operation, Stop> {
        let facts = self.node(id)?.facts.clone();
        if self.find_free(cred, parent, name)?.is_some() {
            return Err(Stop::Fs(FsError::Exists));
        }
        perm::may_create(cred, &self.node(parent)?.subject())?;
        if facts.kind == Kind::Directory {
            return Err(Stop::Fs(FsError::NotPermitted));
        }
        if facts.nlink == 0 {
            return Err(Stop::Fs(FsError::NotFound));
        }
        if facts.nlink >= LINK_COUNT_MAX {
            return Err(Stop::Fs(FsError::TooManyLinks));
        }
        Ok(Operation::Link { file: id, at: (parent, name.to_vec()) })
    }

    pub(crate) fn unlink(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Result<Operation, Stop> {
        let id = self.find(cred, parent, name)?;
        if is_dots(name) {
            return Err(Stop::Fs(FsError::IsADirectory));
        }
        let victim = self.node(id)?;
        perm::may_delete(cred, &self.node(parent)?.subject(), victim.facts.uid)?;
        if victim.facts.kind == Kind::Directory {
            return Err(Stop::Fs(FsError::IsADirectory));
        }
        Ok(Operation::Remove { at: (parent, name.to_vec()), file: id, last: Live::is_last(victim) })
    }

    pub(crate) fn rmdir(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Result<Operation, Stop> {
        let id = self.find(cred, parent, name)?;
        match name {
            b"." => return Err(Stop::Fs(FsError::InvalidArgument)),
            b".." => return Err(Stop::Fs(FsError::NotEmpty)),
            _ => {}
        }
        let victim = self.node(id)?;
        perm::may_delete(cred, &self.node(parent)?.subject(), victim.facts.uid)?;
        if victim.facts.kind != Kind::Directory {
            return Err(Stop::Fs(FsError::NotADirectory));
        }
        if !self.is_empty(id)? {
            return Err(Stop::Fs(FsError::NotEmpty));
        }
        Ok(Operation::Remove { at: (parent, name.to_vec()), file: id, last: true })
    }

    /// True if `id` is `below` or one of its ancestors. Moves by others may seem to form a circle;
    /// there, true too, so that nothing is moved into it.
    fn is_above(&self, id: FileId, below: FileId) -> Result<bool, Stop> {
        let mut at = below;
        for _ in 0..DEPTH_MAX {
            if at == id {
                return Ok(true);
            }
            let parent = self.replica.node(at)?.parent;
            if parent == at {
                return Ok(false);
            }
            at = parent;
        }
        Ok(true)
    }

    /// The operation for a rename. `None` if there is nothing to do.
    pub(crate) fn rename(
        &self,
        cred: &Cred,
        from: Place,
        to: Place,
        flags: RenameFlags,
    ) -> Result<Option<Operation>, Stop> {
        if flags.no_replace && flags.exchange {
            return Err(Stop::Fs(FsError::InvalidArgument));
        }
        let (from, to) = ((self.replica.real(from.0), from.1), (self.replica.real(to.0), to.1));
        for dir in [from.0, to.0] {
            if self.node(dir)?.facts.kind != Kind::Directory {
                return Err(Stop::Fs(FsError::NotADirectory));
            }
            self.check(cred, dir, perm::EXECUTE)?;
        }
        let source = self.find(cred, from.0, &from.1)?;
        let target = self.find_free(cred, to.0, &to.1)?;
        if is_dots(&from.1) || is_dots(&to.1) {
            return Err(Stop::Fs(FsError::Busy));
        }
        if flags.no_replace && target.is_some() {
            return Err(Stop::Fs(FsError::Exists));
        }
        if flags.exchange && target.is_none() {
            return Err(Stop::Fs(FsError::NotFound));
        }
        if self.is_above(source, to.0)? {
            return Err(Stop::Fs(FsError::InvalidArgument));
        }
        if let Some(target) = target
            && self.is_above(target, from.0)?
        {
            let refused = if flags.exchange { FsError::InvalidArgument } else { FsError::NotEmpty };
            return Err(Stop::Fs(refused));
        }
        if target == Some(source) {
            return Ok(None);
        }
        self.may_rename(cred, (from.0, source), (to.0, target), flags.exchange)?;
        Ok(Some(match target {
            Some(other) if flags.exchange => Operation::Exchange { file: source, from, other, to },
            target => {
                let replaced = match target {
                    Some(gone) => Some((gone, Live::is_last(self.node(gone)?))),
                    None => None,
                };
                Operation::Rename { file: source, from, to, replaced }
            }
        }))
    }

    /// Checks rights and types for a rename with both names found, in Linux's order.
    fn may_rename(
        &self,
        cred: &Cred,
        (parent, source): (FileId, FileId),
        (new_parent, target): (FileId, Option<FileId>),
        exchange: bool,
    ) -> Result<(), Stop> {
        let from = self.node(source)?;
        let is_dir = |node: &Node| node.facts.kind == Kind::Directory;
        perm::may_delete(cred, &self.node(parent)?.subject(), from.facts.uid)?;
        let new_dir = self.node(new_parent)?.subject();
        let to = match target {
            Some(target) => Some(self.node(target)?),
            None => None,
        };
        match to {
            Some(to) => perm::may_delete(cred, &new_dir, to.facts.uid)?,
            None => perm::may_create(cred, &new_dir)?,
        }
        let replaced = to.filter(|_| !exchange);
        match replaced.map(is_dir) {
            Some(false) if is_dir(from) => return Err(Stop::Fs(FsError::NotADirectory)),
            Some(true) if !is_dir(from) => return Err(Stop::Fs(FsError::IsADirectory)),
            _ => {}
        }
        if parent != new_parent {
            // The `..` of a moved directory changes.
            for moved in [Some(from), to.filter(|_| exchange)].into_iter().flatten().filter(|node| is_dir(node)) {
                perm::check(cred, &moved.subject(), perm::WRITE)?;
            }
        }
        match target.filter(|_| replaced.is_some_and(is_dir)) {
            Some(target) if !self.is_empty(target)? => Err(Stop::Fs(FsError::NotEmpty)),
            _ => Ok(()),
        }
    }

    /// The attributes to set, and the size if it is to change.
    pub(crate) fn setattr(
        &self,
        cred: &Cred,
        id: FileId,
        writable: bool,
        set: SetAttr,
        now: Time,
    ) -> Result<(Attributes, Option<u64>), Stop> {
        let set = perm::setattr(cred, &self.node(id)?.subject(), &set, writable)?;
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let (atime, mtime) = (set.atime.map(time), set.mtime.map(time));
        Ok((Attributes { mode: set.mode, uid: set.uid, gid: set.gid, atime, mtime }, set.size))
    }

    pub(crate) fn set_xattr(
        &self,
        cred: &Cred,
        id: FileId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Operation, Stop> {
        let node = self.node(id)?;
        perm::xattr_access(cred, &node.subject(), name, XattrUse::Write)?;
        perm::set_xattr(cred, &node.subject(), name, value)?;
        match (mode, node.xattr(name).is_some()) {
            (XattrMode::Create, true) => return Err(Stop::Fs(FsError::Exists)),
            (XattrMode::Replace, false) => return Err(Stop::Fs(FsError::NoSuchXattr)),
            _ => {}
        }
        Ok(Operation::SetXattr { file: id, name: name.to_vec(), value: Some(value.to_vec()) })
    }

    pub(crate) fn remove_xattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Result<Operation, Stop> {
        let node = self.node(id)?;
        perm::xattr_access(cred, &node.subject(), name, XattrUse::Write)?;
        if node.xattr(name).is_none() {
            return Err(Stop::Fs(FsError::NoSuchXattr));
        }
        Ok(Operation::SetXattr { file: id, name: name.to_vec(), value: None })
    }
}
