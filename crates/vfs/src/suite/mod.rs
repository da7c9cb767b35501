//! The behaviour that docs/semantics.md promises, as checks that run against any [`FileSystem`].
//!
//! Each check takes a fresh file system (an empty root of the superuser, mode 0755), calls it as
//! its users would, and panics if it misbehaves. Checks know nothing of the implementation: not its
//! block size (they work in multiples of 1 MiB where that matters), not its clock (which only has
//! to advance while files are synced).
//!
//! [`Turns`] runs the checks over several clients of one file system. [`all`] lists the checks.
//! docs/semantics.md names the check behind each promise, and a test compares the two.

mod acls;
mod data;
mod errors;
mod files;
mod links;
mod listing;
mod locking;
mod names;
mod permissions;
mod renames;
mod space;
mod times;
mod turns;
mod xattrs;

pub use turns::{TurnOrder, Turns};

use crate::fs::{At, Cred, FileSystem, Handle, OpenFlags, SetAttr, SetTime};
use std::ops::Deref;
use std::sync::Arc;
use types::{Attr, BoxFuture, FileId, Time};

/// A check of a fresh file system; panics if the file system misbehaves.
pub type Check = fn(Arc<dyn FileSystem>) -> BoxFuture<()>;

macro_rules! checks {
    ($($module:ident: $($name:ident),+;)+) => {
        /// All checks with their names, in the order of docs/semantics.md's chapters.
        pub fn all() -> Vec<(&'static str, Check)> {
            vec![$($((stringify!($name), |fs| Box::pin($module::$name(Ctx { fs }))),)+)+]
        }
    };
}

checks! {
    names: lookup_finds_what_was_made, names_are_bytes, long_names_are_refused, existing_names_are_refused,
        dots_are_not_names, removed_directories_take_no_names, rmdir_wants_an_empty_directory,
        unlink_and_rmdir_want_their_kind, directories_count_subdirectories, ids_are_not_reused;
    links: hard_links_are_one_file, directories_have_no_hard_links, symlinks_keep_their_target,
        special_files_are_made, unlinked_files_live_while_open;
    renames: rename_moves, rename_replaces, rename_between_links_of_one_file_does_nothing, rename_can_refuse_to_replace,
        rename_exchanges, rename_makes_no_loops, rename_checks_kinds, rename_refuses_in_linuxs_order;
    listing: listing_has_each_name_once, listing_goes_on_at_any_cookie, listing_is_stable_under_changes,
        listing_of_handles_only;
    data: reads_see_writes, gaps_read_as_zeroes, files_may_be_huge, truncate_cuts_and_extends, append_goes_to_the_end,
        open_can_truncate, random_changes_read_back, copies_between_files, copies_within_a_file;
    space: allocate_extends_or_keeps_the_size, holes_are_punched, ranges_are_zeroed, fallocate_refuses_bad_input,
        seek_finds_data_and_holes, holes_take_no_space, statfs_adds_up;
    files: handles_keep_their_rights, handles_have_only_their_rights, created_files_are_open_whatever_their_mode,
        syncs_succeed, closed_handles_are_bad;
    permissions: the_first_matching_class_decides, root_passes_all_but_execute, directories_need_search_and_write,
        umask_takes_bits_from_new_nodes, chmod_is_for_the_owner, chown_is_for_root_and_chgrp_for_members,
        changes_clear_set_id_bits, set_gid_needs_the_group, set_gid_directories_pass_on_their_group,
        sticky_directories_protect_names, moving_a_directory_needs_write_permission_on_it, truncate_needs_a_right,
        setting_times_needs_a_right;
    acls: acls_grant_and_mask, acls_and_modes_follow_each_other, default_acls_are_inherited, bad_acls_are_refused;
    xattrs: xattrs_are_kept, xattr_flags_are_obeyed, xattr_lengths_are_bounded, xattr_namespaces_have_rules;
    times: new_nodes_have_one_time, times_keep_nanoseconds, changes_of_contents_move_times, changes_of_names_move_times,
        changes_of_attributes_move_ctime, reads_move_atime_now_and_then;
    locking: byte_ranges_conflict, byte_ranges_split_and_merge, flock_is_apart_from_byte_ranges, waiting_locks_are_granted,
        waiting_can_be_given_up, deadlocks_are_refused, closing_drops_locks, locks_refuse_bad_input;
    errors: unknown_files_are_stale, unknown_handles_are_bad, wrong_kinds_are_refused;
}

/// The root directory.
const ROOT: FileId = FileId::ROOT;
/// The superuser.
const SU: Cred = Cred::ROOT;
/// Bytes in 1 MiB, a multiple of every block size.
const MIB: u64 = 1 << 20;

const READ: OpenFlags = OpenFlags { read: true, write: false, append: false, truncate: false, execute: false };
const WRITE: OpenFlags = OpenFlags { write: true, read: false, ..READ };
const RW: OpenFlags = OpenFlags { write: true, ..READ };
const APPEND: OpenFlags = OpenFlags { append: true, ..RW };

/// A user whose group has the same number.
fn user(id: u32) -> Cred {
    Cred { uid: id, gid: id, groups: Vec::new() }
}

fn at(id: FileId, handle: Handle, offset: u64) -> At {
    At { id, handle, offset }
}

/// The value of a call, which must succeed.
macro_rules! ok {
    ($call:expr) => {
        match $call.await {
            Ok(value) => value,
            Err(e) => panic!("{}: {e:?}", stringify!($call)),
        }
    };
}

/// A call, which must fail with this error.
macro_rules! refuses {
    ($call:expr, $error:ident) => {
        match $call.await {
            Err(types::FsError::$error) => {}
            other => panic!("{}: wanted {}, got {other:?}", stringify!($call), stringify!($error)),
        }
    };
}

use {ok, refuses};

/// The file system under test, with shorthands that act as the superuser.
struct Ctx {
    fs: Arc<dyn FileSystem>,
}

impl Deref for Ctx {
    type Target = dyn FileSystem;
    fn deref(&self) -> &Self::Target {
        &*self.fs
    }
}

impl Ctx {
    async fn dir(&self, parent: FileId, name: &str, mode: u32) -> FileId {
        ok!(self.mkdir(&SU, parent, name.as_bytes(), mode, 0)).attr.id
    }

    /// A closed file of `cred`, which must have the right to create it there.
    async fn file_of(&self, cred: &Cred, parent: FileId, name: &str, mode: u32, data: &[u8]) -> FileId {
        let (entry, handle) = ok!(self.create(cred, parent, name.as_bytes(), mode, 0, RW));
        let id = entry.attr.id;
        if !data.is_empty() {
            self.put(id, handle, 0, data).await;
        }
        ok!(self.release(id, handle, None));
        id
    }

    async fn file(&self, parent: FileId, name: &str, data: &[u8]) -> FileId {
        self.file_of(&SU, parent, name, 0o644, data).await
    }

    /// A new empty file in the root, open for reading and writing.
    async fn open_file(&self, name: &str) -> (FileId, Handle) {
        let (entry, handle) = ok!(self.create(&SU, ROOT, name.as_bytes(), 0o644, 0, RW));
        (entry.attr.id, handle)
    }

    async fn put(&self, id: FileId, handle: Handle, offset: u64, data: &[u8]) {
        assert_eq!(ok!(self.write(&SU, id, handle, offset, data)) as usize, data.len(), "writes are whole");
    }

    async fn get(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Vec<u8> {
        ok!(self.read(id, handle, offset, len)).to_vec()
    }

    /// All contents of a file.
    async fn content(&self, id: FileId) -> Vec<u8> {
        let size = self.attr(id).await.size;
        let handle = ok!(self.open(&SU, id, READ));
        let data = self.get(id, handle, 0, size as u32).await;
        ok!(self.release(id, handle, None));
        data
    }

    async fn attr(&self, id: FileId) -> Attr {
        ok!(self.getattr(id)).attr
    }

    async fn id(&self, parent: FileId, name: &str) -> FileId {
        ok!(self.fs.lookup(&SU, parent, name.as_bytes())).attr.id
    }

    async fn exists(&self, parent: FileId, name: &str) -> bool {
        match self.fs.lookup(&SU, parent, name.as_bytes()).await {
            Ok(_) => true,
            Err(types::FsError::NotFound) => false,
            Err(e) => panic!("lookup of {name}: {e:?}"),
        }
    }

    async fn set(&self, id: FileId, set: SetAttr) -> Attr {
        ok!(self.setattr(&SU, id, None, set)).attr
    }

    async fn chmod(&self, id: FileId, mode: u32) -> Attr {
        self.set(id, SetAttr { mode: Some(mode), ..SetAttr::default() }).await
    }

    async fn chown(&self, id: FileId, uid: u32, gid: u32) -> Attr {
        self.set(id, SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() }).await
    }

    /// Waits until the file system's clock shows a later time. Syncs a file meanwhile, because a
    /// simulated clock advances only when there is something to wait for.
    async fn tick(&self) {
        let (id, handle) = self.open_file("\x01clock").await;
        let now = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        let start: Time = self.set(id, now).await.mtime;
        let mut looks = 0;
        while self.set(id, now).await.mtime <= start {
            looks += 1;
            assert!(looks < 10_000, "the clock stands still at {start:?}");
            self.put(id, handle, 0, b"tick").await;
            ok!(self.fsync(id, handle, false));
        }
        ok!(self.unlink(&SU, ROOT, b"\x01clock"));
        ok!(self.release(id, handle, None));
    }
}

#[cfg(test)]
mod tests;
