//! One file, as far as it is known.

use super::changes::Changes;
use roam_proto::message::Facts;
use roam_proto::operation::Change;
use roam_proto::ranges::Ranges;
use std::collections::BTreeMap;
use types::{FileId, Time};
use vfs::acl;
use vfs::perm::Subject;

/// A file, as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// What users see. The version numbers are those of the home's last answer.
    pub facts: Facts,
    /// What users see takes into account what others have changed up to this version: what is done
    /// here is based on that. While something that was done here waits, answers raise the version,
    /// but not this.
    pub seen: u64,
    /// Others have changed it since.
    pub is_stale: bool,
    /// What is in a directory at home; `None`: not known, or not a directory.
    pub names: Option<BTreeMap<Vec<u8>, FileId>>,
    /// Of which contents these names are; `None`: others have changed them since.
    pub names_of: Option<u64>,
    /// Operations up to this one may have been done when the home told these names, or not. Not
    /// lasting: after a crash, all that may have been.
    pub(crate) listed_at: u64,
    /// What it is in; of a file with several names, one of them.
    pub parent: FileId,
    /// Number of the file of the cache that has its bytes; 0: none.
    pub data: u64,
    /// Bytes that are cached.
    pub have: Ranges,
    /// Of them, those that are durable.
    pub kept: Ranges,
    /// How long the file was when the change began that was not logged yet. What lies beyond was
    /// written since.
    pub begun_size: u64,
    /// What of its bytes was not logged yet.
    pub changes: Changes,
    /// Writes go to other contents than those that the log names, until they are logged. After a
    /// crash it is as if they had not been written.
    pub is_apart: bool,
    /// What the log tells of it, while it is changed in memory. Not lasting.
    pub unlogged: Option<Box<Unlogged>>,
    /// Number of the file of the cache with its bytes as the home had them, before they were
    /// changed here; 0: they were not kept.
    pub base: u64,
}

/// What the log tells of a file that is changed in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unlogged {
    /// The number of its contents.
    pub(crate) data: u64,
    /// Its size, in bytes.
    pub(crate) size: u64,
    /// When its bytes, and anything of it, were changed.
    pub(crate) times: (Time, Time),
    /// Which of its bytes are in the cache.
    pub(crate) have: Ranges,
    /// The number of its contents as the home has them, if they are to be kept; 0: they are not.
    pub(crate) base: u64,
    /// When it was written last.
    pub(crate) written_at: Option<Time>,
}

impl Node {
    /// What the home has is what was there before the first change since it heard of one. Gives the
    /// number that is not needed for that.
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

    /// Users see what the home says from now on.
    pub(super) fn show(&mut self, facts: Facts) {
        (self.seen, self.facts) = (facts.version, facts);
    }

    /// What the home says is of later than what users see, and they do not see it: something that
    /// was done here waits.
    pub(super) fn renumber(&mut self, facts: &Facts) {
        (self.facts.version, self.facts.contents) = (facts.version, facts.contents);
    }

    /// What permission rules need to know.
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

    /// True if its bytes may have been changed since they were last logged.
    pub fn is_dirty(&self) -> bool {
        self.changes != Changes::Logged
    }

    /// What is to be logged of its bytes; `None`: nothing.
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
