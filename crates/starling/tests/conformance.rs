//! The behaviour that docs/semantics.md promises, on real mounts of two nodes in turn: each
//! operation goes through another node's kernel. Must be run by root, which can act as any user.

mod common;
#[path = "common/nodes.rs"]
mod on_loopback;

use common::Mounted;
use localdir::LocalDir;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use vfs::FileSystem;
use vfs::suite::{TurnOrder, Turns};

/// What cannot be asked through a directory of the kernel's: `LocalDir` keeps locks itself.
const NOT_ASKED: [&str; 8] = [
    "byte_ranges_conflict",
    "byte_ranges_split_and_merge",
    "flock_is_apart_from_byte_ranges",
    "waiting_locks_are_granted",
    "waiting_can_be_given_up",
    "deadlocks_are_refused",
    "closing_drops_locks",
    "locks_refuse_bad_input",
];

/// What programs see otherwise through a kernel, or by `LocalDir`: device numbers of 32 bits, reads
/// whose range ends beyond the largest offset, links of other users' files, other ACL versions, no
/// birth time. Supplementary groups are remembered for a moment, by thread.
const THROUGH_A_KERNEL: [&str; 8] = [
    "special_files_are_made",
    "files_may_be_huge",
    "directories_need_search_and_write",
    "bad_acls_are_refused",
    "new_nodes_have_one_time",
    "the_first_matching_class_decides",
    "chown_is_for_root_and_chgrp_for_members",
    "set_gid_needs_the_group",
];

/// What several nodes answer otherwise: the room of others is known a little later, reads move
/// access times only where the node may change the file anyway, and the kernel looks at the size
/// that it knows for copy_file_range and RWF_APPEND.
const ON_NODES: [&str; 5] = [
    "statfs_adds_up",
    "reads_move_atime_now_and_then",
    "copies_between_files",
    "copies_within_a_file",
    "append_goes_to_the_end",
];

/// The checks that fail in a directory of these mounts.
fn failing(mounts: &[&Path], order: TurnOrder) -> Vec<&'static str> {
    let is_left_out = |name: &&str| [&NOT_ASKED[..], &THROUGH_A_KERNEL, &ON_NODES].concat().contains(name);
    let checks = vfs::suite::all().into_iter().filter(|(name, _)| !is_left_out(name));
    let failed = checks.filter(|(name, check)| {
        let passed = catch_unwind(AssertUnwindSafe(|| {
            let folder = format!("{name}-{order:?}");
            fs::create_dir(mounts[0].join(&folder)).expect("folder");
            let open = |mount: &&Path| LocalDir::open(&mount.join(&folder)).expect("open");
            let systems = mounts.iter().map(|mount| Arc::new(open(mount)) as Arc<dyn FileSystem>).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
            runtime.block_on(check(Arc::new(Turns::new(systems, order))));
        }));
        passed.is_err()
    });
    failed.map(|(name, _)| name).collect()
}

#[test]
fn model_mounts_behave_as_documented_in_turn() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let dir = tempfile::tempdir().expect("temporary folder");
    let listen = format!("127.0.0.1:{}", on_loopback::free_port());
    let flags = ["--store-size", "256MiB", "--allow-other", "--listen", &listen];
    let one = Mounted::up(dir.path(), "one", &flags);
    let invitation = on_loopback::invite(&one, &[]);
    let (two, mut join) = on_loopback::joining(dir.path(), "two", &invitation, &["--allow-other", "--background"]);
    common::run(&mut join);
    for order in [TurnOrder::Next, TurnOrder::ChangesApart] {
        assert_eq!(failing(&[&one.mountpoint, &two.mountpoint], order), Vec::<&str>::new(), "{order:?}");
    }
    two.down();
    one.down();
}
