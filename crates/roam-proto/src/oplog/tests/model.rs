//! A small file system for the tests of the optimizer: names, contents, and permissions. It uses
//! the product's own permission rules.

use super::ROOT;
use crate::operation::{Operation, Place};
use std::collections::BTreeMap;
use types::{FileId, Kind};
use vfs::acl::{self, Acl, AclEntry, Tag};
use vfs::fs::Cred;
use vfs::perm::{self, Subject, XattrEffect};

/// The user who owns the first files, and is in both groups.
pub(super) const USER: u32 = 10;
pub(super) const GROUPS: [u32; 2] = [10, 11];

/// The file system as one user sees it: the file at each place, and what each file is.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Model {
    pub(super) places: BTreeMap<Place, FileId>,
    pub(super) files: BTreeMap<FileId, File>,
    cred: Cred,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct File {
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) content: Vec<u8>,
}

impl File {
    pub(super) fn new(kind: Kind, content: Vec<u8>) -> File {
        File { kind, mode: 0o700, uid: USER, gid: GROUPS[0], xattrs: BTreeMap::new(), content }
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == Kind::Directory
    }

    fn subject(&self) -> Subject<'_> {
        let acl = self.xattrs.get(acl::XATTR_ACCESS).map(|acl| &acl[..]);
        Subject { mode: self.mode, uid: self.uid, gid: self.gid, kind: self.kind, acl }
    }
}

impl Model {
    pub(super) fn new(cred: Cred) -> Model {
        let root = File::new(Kind::Directory, Vec::new());
        Model { places: BTreeMap::new(), files: BTreeMap::from([(ROOT, root)]), cred }
    }

    pub(super) fn names_of(&self, file: FileId) -> usize {
        self.places.values().filter(|at| **at == file).count()
    }

    fn is_empty(&self, dir: FileId) -> bool {
        !self.places.keys().any(|(parent, _)| *parent == dir)
    }

    /// True if `dir` is `file` or below it.
    fn is_below(&self, dir: FileId, file: FileId) -> bool {
        self.above(dir).contains(&file)
    }

    /// Returns a file, the directory that it is in, and so on up to the root, as far as they exist.
    fn above(&self, file: FileId) -> Vec<FileId> {
        let mut above = vec![file];
        while let Some(((parent, _), _)) = self.places.iter().find(|(_, f)| Some(*f) == above.last()) {
            above.push(*parent);
        }
        above
    }

    /// `None` unless the user may search all directories above a file.
    pub(super) fn reach(&self, file: FileId) -> Option<()> {
        let dirs = self.above(file).into_iter().skip(1);
        dirs.map(|dir| perm::check(&self.cred, &self.files.get(&dir)?.subject(), perm::EXECUTE).ok()).collect()
    }

    /// `None` unless the user may change names in a directory, and take away `victim`'s.
    fn may_change(&self, dir: FileId, victim: Option<FileId>) -> Option<()> {
        self.reach(dir)?;
        let dir = self.files.get(&dir)?;
        match victim {
            Some(victim) => perm::may_delete(&self.cred, &dir.subject(), self.files.get(&victim)?.uid).ok(),
            None => perm::may_create(&self.cred, &dir.subject()).ok(),
        }
    }

    fn drop_name(&mut self, at: &Place, file: FileId, last: bool) -> Option<()> {
        (self.places.get(at) == Some(&file)).then_some(())?;
        self.may_change(at.0, Some(file))?;
        (last == (self.names_of(file) == 1)).then_some(())?;
        (!self.files[&file].is_dir() || self.is_empty(file)).then_some(())?;
        self.places.remove(at);
        if last {
            self.files.remove(&file);
        }
        Some(())
    }

    fn free(&self, at: &Place) -> Option<()> {
        (self.files.get(&at.0)?.is_dir() && !self.places.contains_key(at)).then_some(())
    }

    /// `None` unless what is at `from` may get a name in the directory of `to`.
    fn may_move(&self, file: FileId, from: &Place, to: &Place) -> Option<()> {
        (self.places.get(from) == Some(&file) && !self.is_below(to.0, file)).then_some(())?;
        self.may_change(from.0, Some(file))?;
        self.may_change(to.0, None)?;
        let moved = self.files[&file].subject();
        let changes_parent = moved.kind == Kind::Directory && from.0 != to.0;
        (!changes_parent || perm::check(&self.cred, &moved, perm::WRITE).is_ok()).then_some(())
    }

    /// Returns the file that results when the user makes one.
    pub(super) fn made(&self, dir: FileId, kind: Kind, mode: u32) -> Option<File> {
        let dir = self.files.get(&dir)?;
        let default = dir.xattrs.get(acl::XATTR_DEFAULT).map(|acl| &acl[..]);
        let start = perm::new_node_mode(&self.cred, &dir.subject(), default, kind, mode, 0).ok()?;
        let acls = [(acl::XATTR_ACCESS, start.access_acl), (acl::XATTR_DEFAULT, start.default_acl)];
        let xattrs = acls.into_iter().filter_map(|(name, acl)| Some((name.to_vec(), acl?))).collect();
        Some(File { kind, mode: start.mode, uid: self.cred.uid, gid: start.gid, xattrs, content: Vec::new() })
    }

    /// Does an operation, with contents from `cache`. `None` if it cannot be done, or not by this
    /// user.
    pub(super) fn apply(&mut self, operation: &Operation, cache: &BTreeMap<FileId, Vec<u8>>) -> Option<()> {
        match operation {
            Operation::Make { at, file, made } => {
                self.free(at)?;
                self.may_change(at.0, None)?;
                let mut new = self.made(at.0, made.kind, made.mode)?;
                if self.cred.uid == 0 {
                    (new.uid, new.gid) = (made.uid, made.gid);
                }
                self.files.insert(*file, new).is_none().then_some(())?;
                self.places.insert(at.clone(), *file);
            }
            Operation::Link { file, at } => {
                self.free(at)?;
                self.reach(*file)?;
                self.may_change(at.0, None)?;
                self.files.get(file)?;
                self.places.insert(at.clone(), *file);
            }
            Operation::Remove { at, file, last } => self.drop_name(at, *file, *last)?,
            Operation::Rename { file, from, to, replaced } => {
                self.may_move(*file, from, to)?;
                if let Some((gone, last)) = replaced {
                    self.drop_name(to, *gone, *last)?;
                }
                self.free(to)?;
                self.places.remove(from);
                self.places.insert(to.clone(), *file);
            }
            Operation::Exchange { file, from, other, to } => {
                self.may_move(*file, from, to)?;
                self.may_move(*other, to, from)?;
                self.places.insert(from.clone(), *other);
                self.places.insert(to.clone(), *file);
            }
            Operation::Set { file, attributes } => {
                self.reach(*file)?;
                let file = self.files.get_mut(file)?;
                perm::owns(&self.cred, &file.subject()).then_some(())?;
                (attributes.uid.is_none() || self.cred.uid == 0).then_some(())?;
                file.uid = attributes.uid.unwrap_or(file.uid);
                file.gid = attributes.gid.unwrap_or(file.gid);
                file.mode = attributes.mode.unwrap_or(file.mode);
                if let (Some(mode), Some(acl)) = (attributes.mode, file.xattrs.get_mut(acl::XATTR_ACCESS)) {
                    *acl = acl::chmod(acl, mode).ok()?;
                }
            }
            Operation::SetXattr { file, name, value } => {
                self.reach(*file)?;
                let file = self.files.get_mut(file)?;
                perm::xattr_access(&self.cred, &file.subject(), name, perm::XattrUse::Write).ok()?;
                match value {
                    Some(value) => {
                        let (effect, mode) = perm::set_xattr(&self.cred, &file.subject(), name, value).ok()?;
                        match effect {
                            XattrEffect::Store(value) => file.xattrs.insert(name.clone(), value),
                            XattrEffect::Remove => file.xattrs.remove(name),
                        };
                        file.mode = mode;
                    }
                    None => drop(file.xattrs.remove(name)),
                }
            }
            Operation::Copy { file, from } => {
                let content = self.files.get(from)?.content.clone();
                self.files.get_mut(file)?.content = content;
            }
            Operation::Store { file, change } => {
                self.reach(*file)?;
                let now = &cache[file];
                let content = &mut self.files.get_mut(file)?.content;
                content.truncate(change.cut as usize);
                content.resize(change.size as usize, 0);
                for range in change.ranges.iter() {
                    for i in range {
                        // Bytes that the client cut since are missing here; a later change cuts
                        // them at home, too.
                        content[i as usize] = now.get(i as usize).copied().unwrap_or(0);
                    }
                }
            }
        }
        Some(())
    }
}

/// Returns an ACL value that gives the owner and the second group the given rights.
pub(super) fn acl_value(owner: u32, group: u32) -> Vec<u8> {
    let entry = |tag, perm| AclEntry { tag, perm };
    let entries = vec![
        entry(Tag::UserObj, owner),
        entry(Tag::GroupObj, 5),
        entry(Tag::Group(GROUPS[1]), group),
        entry(Tag::Mask, 7),
        entry(Tag::Other, 0),
    ];
    Acl::new(entries).expect("an ACL").encode()
}
