//! The calls that programs made, and when.

use super::call::{Answered, Call, Seen, shown};
use std::time::Duration;
use types::{FsError, Kind};

/// A call that a program made.
#[derive(Clone, Debug)]
pub struct Event {
    /// The number of the client.
    pub client: usize,
    /// The call.
    pub call: Call,
    /// The answer; `None` if the client crashed first.
    pub answered: Option<Answered>,
    /// When it began.
    pub began: Duration,
    /// When it ended; `MAX` if the client crashed first.
    pub ended: Duration,
    /// True if another client renamed something at the same time. The oracle finds out.
    pub is_raced: bool,
}

impl Event {
    /// True if a kernel may have given this answer to a rename by itself, and done nothing. It
    /// looks for the old name, then for the new one, and another client renames something in
    /// between. So the kernel may find one file by two names, or two files by one name, of two
    /// kinds.
    pub(super) fn did_nothing(&self, model: &Answered) -> bool {
        let Call::Rename { dir, name, to_dir, to, .. } = &self.call else { return false };
        let is_one_name = (dir, name) == (to_dir, to);
        self.is_raced
            && match (&self.answered, model) {
                (Some(Ok(_)), Err(_)) => true,
                (Some(Err(FsError::NotADirectory | FsError::IsADirectory)), Ok(_)) => is_one_name,
                _ => false,
            }
    }

    /// True if a kernel may have taken both names of this rename for names of one file, because
    /// another client exchanged them after the look at the first one. Then it does nothing, and
    /// says that it is done (fs/namei.c, `vfs_rename`).
    pub(super) fn may_skip_after(&self, other: &Event) -> bool {
        let places = |event: &Event| match &event.call {
            Call::Rename { dir, name, to_dir, to, flags } => {
                Some(([(*dir, name.clone()), (*to_dir, to.clone())], flags.exchange, flags.no_replace))
            }
            _ => None,
        };
        let (Some((own, _, no_replace)), Some(([from, to], true, _))) = (places(self), places(other)) else {
            return false;
        };
        let are_same = own == [from.clone(), to.clone()] || own == [to, from];
        let are_done = [self, other].iter().all(|event| matches!(event.answered, Some(Ok(_))));
        let is_raced = self.client != other.client && other.began <= self.ended && self.began <= other.ended;
        are_same && own[0] != own[1] && !no_replace && are_done && is_raced
    }

    /// True if it ended before the other one began: then it comes before it in every order.
    pub(super) fn ends_before(&self, other: &Event) -> bool {
        self.ended < other.began
    }

    /// True if it looked at the attributes of a regular file.
    pub(super) fn looks_at_file(&self) -> bool {
        let is_look = matches!(self.call, Call::Lookup { .. } | Call::Getattr { .. });
        is_look && matches!(&self.answered, Some(Ok(Seen::Entry(entry))) if entry.attr.kind == Kind::File)
    }

    /// True if the answer may be kept by no kernel: another client told the attributes, which was
    /// changing the file.
    pub(super) fn is_glimpse(&self) -> bool {
        self.looks_at_file() && matches!(&self.answered, Some(Ok(Seen::Entry(entry))) if entry.valid.is_zero())
    }

    /// True if it may have seen changes of this client that were not durable. A real kernel does
    /// not show which attributes it may keep.
    pub(super) fn may_glimpse_at(&self, client: usize, is_behind_kernels: bool) -> bool {
        let may_be_glimpse = if is_behind_kernels { self.looks_at_file() } else { self.is_glimpse() };
        self.client != client && may_be_glimpse
    }

    /// True if what the client did before is durable.
    pub(super) fn has_synced(&self, client: usize) -> bool {
        self.client == client && self.call.syncs() && matches!(self.answered, Some(Ok(_)))
    }
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let answered = self.answered.as_ref().map_or("nothing".into(), shown);
        write!(f, "{:?} client {} {:?} -> {answered}", self.began, self.client, self.call)
    }
}
