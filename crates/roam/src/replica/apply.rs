//! What operations do to files at once, as users see them.

use super::{Changes, Node, Replica};
use roam_proto::message::Facts;
use roam_proto::operation::{Attributes, Made, Operation, Place};
use std::collections::BTreeMap;
use types::{FileId, Kind, Time};
use vfs::acl;
use vfs::perm::{self, XattrEffect};

impl Replica {
    /// Applies an operation to what users see.
    pub(super) fn act(&mut self, operation: &Operation, when: Time) -> Option<()> {
        match operation {
            Operation::Make { at, file, made } => self.make(at, *file, made, when)?,
            Operation::Link { file, at } => {
                self.nodes.get_mut(&at.0)?.modified(when);
                let node = self.nodes.get_mut(file)?;
                node.facts.nlink = node.facts.nlink.saturating_add(1);
                node.facts.ctime = when;
            }
            Operation::Remove { at, file, .. } => {
                self.nodes.get_mut(&at.0)?.modified(when);
                self.lose_link(*file, at.0, when)?;
            }
            Operation::Rename { file, from, to, replaced } => {
                self.nodes.get_mut(&from.0)?.modified(when);
                self.nodes.get_mut(&to.0)?.modified(when);
                self.moved(*file, from.0, to.0, when)?;
                if let Some((gone, _)) = replaced {
                    self.lose_link(*gone, to.0, when)?;
                }
            }
            Operation::Exchange { file, from, other, to } => {
                self.nodes.get_mut(&from.0)?.modified(when);
                self.nodes.get_mut(&to.0)?.modified(when);
                self.moved(*file, from.0, to.0, when)?;
                self.moved(*other, to.0, from.0, when)?;
            }
            Operation::Set { file, attributes } => self.set(*file, attributes, when)?,
            Operation::SetXattr { file, name, value } => {
                let node = self.nodes.get_mut(file)?;
                let set = value.as_ref().map(|v| perm::set_xattr(&vfs::Cred::ROOT, &node.subject(), name, v));
                match set {
                    Some(Ok((effect, mode))) => {
                        node.facts.mode = mode;
                        let value = match effect {
                            XattrEffect::Store(value) => Some(value),
                            XattrEffect::Remove => None,
                        };
                        node.set_xattr(name, value);
                    }
                    Some(Err(_)) => return None,
                    None => node.set_xattr(name, None),
                }
                node.facts.ctime = when;
            }
            Operation::Store { file, change } => {
                let node = self.nodes.get_mut(file)?;
                node.have.cut(change.cut);
                // Beyond the cut the file is zeroes, except for the ranges that were written.
                node.have.add(change.cut..change.size);
                node.have.add_all(&change.ranges);
                // Bytes that were fetched meanwhile need not be durable.
                node.kept.cut(change.cut);
                node.kept.add(change.cut..change.size);
                node.kept.add_all(&change.ranges);
                node.changes = Changes::Logged;
                node.facts.size = change.size;
                node.facts.blocks = change.size.div_ceil(512);
                node.facts.mtime = change.mtime;
                node.facts.ctime = node.facts.ctime.max(change.mtime);
            }
            // Only the home knows the contents of the copy.
            Operation::Copy { .. } => {}
        }
        Some(())
    }

    fn make(&mut self, at: &Place, file: FileId, made: &Made, when: Time) -> Option<()> {
        let dir = self.nodes.get_mut(&at.0)?;
        dir.modified(when);
        let is_dir = made.kind == Kind::Directory;
        dir.facts.nlink = dir.facts.nlink.saturating_add(u32::from(is_dir));
        let mut xattrs = Vec::new();
        if let Some(acl) = dir.xattr(acl::XATTR_DEFAULT)
            && made.kind != Kind::Symlink
            && let Ok((_, access, default)) = acl::inherit(acl, made.mode)
        {
            xattrs.extend(access.map(|acl| (acl::XATTR_ACCESS.to_vec(), acl)));
            xattrs.extend(default.filter(|_| is_dir).map(|acl| (acl::XATTR_DEFAULT.to_vec(), acl)));
        }
        let facts = Facts {
            id: file,
            version: 0,
            contents: 0,
            kind: made.kind,
            mode: made.mode,
            nlink: if is_dir { 2 } else { 1 },
            uid: made.uid,
            gid: made.gid,
            rdev: made.rdev,
            size: made.target.len() as u64,
            blocks: 0,
            atime: when,
            mtime: when,
            ctime: when,
            crtime: when,
            target: made.target.clone(),
            xattrs,
        };
        let mut node = Node::new(facts);
        node.parent = at.0;
        (node.names, node.names_of) = (is_dir.then(BTreeMap::new), is_dir.then_some(0));
        if made.kind == Kind::File {
            node.changes.mark();
        }
        self.nodes.insert(file, node);
        if (self.ids.0..self.ids.0.saturating_add(self.ids.1)).contains(&file.raw()) {
            let used = file.raw() - self.ids.0 + 1;
            self.ids = (self.ids.0 + used, self.ids.1 - used);
        }
        Some(())
    }

    fn lose_link(&mut self, file: FileId, from: FileId, when: Time) -> Option<()> {
        let node = self.nodes.get_mut(&file)?;
        node.facts.ctime = when;
        if node.facts.kind == Kind::Directory {
            node.facts.nlink = 0;
            let dir = self.nodes.get_mut(&from)?;
            dir.facts.nlink = dir.facts.nlink.saturating_sub(1);
        } else {
            node.facts.nlink = node.facts.nlink.saturating_sub(1);
        }
        Some(())
    }

    fn moved(&mut self, file: FileId, from: FileId, to: FileId, when: Time) -> Option<()> {
        let node = self.nodes.get_mut(&file)?;
        node.facts.ctime = when;
        node.parent = to;
        if node.facts.kind == Kind::Directory {
            let dir = self.nodes.get_mut(&from)?;
            dir.facts.nlink = dir.facts.nlink.saturating_sub(1);
            let dir = self.nodes.get_mut(&to)?;
            dir.facts.nlink = dir.facts.nlink.saturating_add(1);
        }
        Some(())
    }

    fn set(&mut self, file: FileId, attributes: &Attributes, when: Time) -> Option<()> {
        let node = self.nodes.get_mut(&file)?;
        if let Some(mode) = attributes.mode
            && let Some(acl) = node.xattr(acl::XATTR_ACCESS)
            && let Ok(acl) = acl::chmod(acl, mode)
        {
            node.set_xattr(acl::XATTR_ACCESS, Some(acl));
        }
        let facts = &mut node.facts;
        facts.mode = attributes.mode.unwrap_or(facts.mode);
        facts.uid = attributes.uid.unwrap_or(facts.uid);
        facts.gid = attributes.gid.unwrap_or(facts.gid);
        facts.atime = attributes.atime.unwrap_or(facts.atime);
        facts.mtime = attributes.mtime.unwrap_or(facts.mtime);
        facts.ctime = when;
        Some(())
    }
}
