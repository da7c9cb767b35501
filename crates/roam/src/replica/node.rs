//! One file, as far as the client knows it.

use super::changes::Changes;
use roam_proto::message::Facts;
use roam_proto::operation::Change;
use roam_proto::ranges::Ranges;
use std::collections::BTreeMap;
use types::{FileId, Time};
use vfs::acl;
use vfs::perm::Subject;

/// A file, as far as the client knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// The attributes that users see. The version numbers are those of the home's last answer.
    pub facts: Facts,
    /// The version of the file that users see, which operations done here are based on. While
    /// operations wait, answers of the home raise the version in `facts`, but not this one.
    pub seen: u64,
    /// Others have changed the file since the client last heard of it.
    pub is_stale: bool,
    /// A directory's names, as the home has them; `None`: not known, or not a directory.
    pub names: Option<BTreeMap<Vec<u8>, FileId>>,
    /// The version of the directory's contents that `names` belongs to; `None`: others have changed
    /// the names since.
    pub names_of: Option<u64>,
    /// The operations up to this number may or may not be reflected in `names`: they may have
    /// reached the home before it listed the directory. Not lasting: after a crash, it is the last
    /// operation that may have reached the home.
    pub(crate) listed_at: u64,
    /// The directory that the file is in; for a file with several names, one of them.
    pub parent: FileId,
    /// The file of the cache that has the bytes; 0: none.
    pub data: u64,
    /// Bytes that are cached.
    pub have: Ranges,
    /// The part of `have` that is durable.
    pub kept: Ranges,
    /// The file's length when its first unlogged change began. Bytes beyond were written since.
    pub begun_size: u64,
    /// Changes of its bytes that are not logged yet.
    pub changes: Changes,
    /// Writes go to other contents than those that the log names, until they are logged. After a
    /// crash, it is as if the writes had not happened.
    pub is_apart: bool,
    /// The file as the log has it, while it is changed in memory. Not lasting.
    pub unlogged: Option<Box<Unlogged>>,
    /// The file of the cache with the bytes as the home had them, before the first change here; 0:
    /// they were not kept.
    pub base: u64,
}

/// A file that is changed in memory, as the log has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unlogged {
    /// The number of its contents.
    pub(crate) data: u64,
    /// Its size, in bytes.
    pub(crate) size: u64,
    /// Its times of modification and of change.
    pub(crate) times: (Time, Time),
    /// Which bytes are in the cache.
    pub(crate) have: Ranges,
    /// The contents as the home has them, if they are to be kept; 0: they are not.
    pub(crate) base: u64,
    /// When a program wrote to it last.
    pub(crate) written_at: Option<Time>,
}

impl Node {
    /// Sets the base if there is none yet: the home has what was there before the first change.
    /// Returns the number that is not needed.
    pub(super) fn keep_base(&mut self, base: u64) -> u64 {
        if self.base == 0 { std::mem::replace(&mut self.base, base) } else { base }
    }

    pub(super) fn new(facts: Facts) -> Node {
        let (have, kept) = (Ranges::default(), Ranges::default());
        let parent = facts.id;
        Node {
            seen: facts.version,
            facts,
            is_stale: false,
            names: None,
            names_of: None,
            listed_at: 0,
            parent,
            data: 0,
            have,
            kept,
            begun_size: 0,
            changes: Changes::default(),
            is_apart: false,
            unlogged: None,
            base: 0,
        }
    }

    /// Shows users what the home told.
    pub(super) fn show(&mut self, facts: Facts) {
        (self.seen, self.facts) = (facts.version, facts);
    }

    /// Takes over only the version numbers: operations done here wait, so users do not see the
    /// home's attributes yet.
    pub(super) fn renumber(&mut self, facts: &Facts) {
        (self.facts.version, self.facts.contents) = (facts.version, facts.contents);
    }

    /// What permission rules need to know of the file.
    pub fn subject(&self) -> Subject<'_> {
        let acl = self.facts.xattrs.iter().find(|(name, _)| name == acl::XATTR_ACCESS);
        let Facts { mode, uid, gid, kind, .. } = self.facts;
        Subject { mode, uid, gid, kind, acl: acl.map(|(_, value)| &value[..]) }
    }

    /// An extended attribute.
    pub fn xattr(&self, name: &[u8]) -> Option<&[u8]> {
        self.facts.xattrs.iter().find(|(known, _)| known == name).map(|(_, value)| &value[..])
    }

    pub(super) fn set_xattr(&mut self, name: &[u8], value: Option<Vec<u8>>) {
        self.facts.xattrs.retain(|(known, _)| known != name);
        self.facts.xattrs.extend(value.map(|value| (name.to_vec(), value)));
    }

    /// True if its bytes may have changed since they were last logged.
    pub fn is_dirty(&self) -> bool {
        self.changes != Changes::Logged
    }

    /// The change that is to be logged; `None`: none.
    pub(crate) fn to_log(&self) -> Option<Change> {
        self.changes.to_log().cloned()
    }

    /// True if all of a range is cached, or lies beyond the end.
    pub fn has(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len).min(self.facts.size);
        offset >= end || self.have.missing(offset..end).is_empty()
    }

    /// True if all its bytes are cached.
    pub fn is_whole(&self) -> bool {
        self.has(0, self.facts.size)
    }

    pub(super) fn modified(&mut self, when: Time) {
        (self.facts.mtime, self.facts.ctime) = (when, when);
    }
}
