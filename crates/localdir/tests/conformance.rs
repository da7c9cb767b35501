//! The behaviour that docs/semantics.md promises, as far as the local file system has it, too. Must
//! be run by root, which can act as any user.

use localdir::LocalDir;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Where ext4 or Linux's own rules differ: device numbers of 32 bits, files of at most 16 TiB,
/// partly punched blocks stay, other users' files cannot be linked, ACLs of another version are not
/// supported, attributes fit a block, times end in 2446.
const OTHERWISE: [&str; 8] = [
    "special_files_are_made",
    "files_may_be_huge",
    "holes_take_no_space",
    "directories_need_search_and_write",
    "bad_acls_are_refused",
    "xattrs_are_kept",
    "xattr_lengths_are_bounded",
    "times_keep_nanoseconds",
];

#[test]
fn model_a_local_directory_behaves_as_documented() {
    let mut failed = Vec::new();
    for (name, check) in vfs::suite::all().into_iter().filter(|(name, _)| !OTHERWISE.contains(name)) {
        let passed = catch_unwind(AssertUnwindSafe(|| {
            let dir = tempfile::tempdir().expect("temporary folder");
            rustix::fs::chmod(dir.path(), rustix::fs::Mode::from_raw_mode(0o755)).expect("chmod");
            let fs = LocalDir::open(dir.path()).expect("open");
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
            runtime.block_on(check(Arc::new(fs)));
        }));
        if passed.is_err() {
            failed.push(name);
        }
    }
    assert_eq!(failed, Vec::<&str>::new());
}
