//! Changes by other programs are noticed.

mod rig;

use localdir::{DirNotice, LocalDir, WatchError};
use rig::Rig;
use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps, XattrFlags};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use types::{FileId, FsError};
use vfs::fs::{FileSystem, SetAttr};

const ROOT: FileId = FileId::ROOT;
/// Number of the next fence.
static FENCE: AtomicU32 = AtomicU32::new(0);
/// Folder, set for the test that runs in namespaces of its own.
const APART: &str = "STARLING_TEST_APART";

/// What was noticed, by directory and name (none: the directory itself), and whether names changed.
type All = BTreeMap<(FileId, Option<String>), bool>;

/// A change by other programs.
type Change<'a> = &'a dyn Fn(&Path);

fn all<const N: usize>(noticed: [(FileId, Option<&str>, bool); N]) -> All {
    noticed.into_iter().map(|(dir, name, names_changed)| ((dir, name.map(String::from)), names_changed)).collect()
}

impl Rig {
    fn watch(&self, dir: FileId) -> Result<(), WatchError> {
        self.runtime.block_on(async { self.fs.watch(dir).await })
    }

    /// Returns all notices of some changes, however they were merged.
    fn noticed(&self, change: impl FnOnce(&Path)) -> All {
        let fence = format!("fence {}", FENCE.fetch_add(1, Ordering::Relaxed));
        change(&self.root);
        // Notices come in the order of changes, and this is the last.
        fs::create_dir(self.root.join(&fence)).expect("folder");
        let mut all = All::new();
        loop {
            let (subject, names_changed) = match self.runtime.block_on(self.fs.noticed()) {
                DirNotice::Entry(ROOT, name, true) if name == fence.as_bytes() => return all,
                DirNotice::Entry(dir, name, names_changed) => {
                    ((dir, Some(String::from_utf8(name).expect("name"))), names_changed)
                }
                DirNotice::Directory(dir) => ((dir, None), false),
                DirNotice::Lost => panic!("notices were lost"),
            };
            *all.entry(subject).or_default() |= names_changed;
        }
    }
}

#[test]
fn every_kind_of_change_is_noticed() {
    let rig = Rig::new();
    rig.watch(ROOT).expect("watch");
    let came = all([(ROOT, Some("a"), true)]);
    assert_eq!(rig.noticed(|root| fs::write(root.join("a"), "a").expect("write")), came);
    let came = all([(ROOT, Some("d"), true)]);
    assert_eq!(rig.noticed(|root| fs::create_dir(root.join("d")).expect("folder")), came);
    let d = rig.find(ROOT, "d").expect("find");
    rig.watch(d).expect("watch");

    let open = |root: &Path| OpenOptions::new().append(true).open(root.join("a")).expect("open");
    let long_ago = Timespec { tv_sec: 1, tv_nsec: 0 };
    let times = Timestamps { last_access: long_ago, last_modification: long_ago };
    let changes: [(&str, Change); 6] = [
        ("write", &|root| open(root).write_all(b"b").expect("write")),
        ("truncate", &|root| open(root).set_len(0).expect("truncate")),
        ("close what could have been written", &|root| drop(open(root))),
        ("chmod", &|root| rustix::fs::chmod(root.join("a"), Mode::RWXU).expect("chmod")),
        ("times", &|root| {
            rustix::fs::utimensat(CWD, root.join("a"), &times, AtFlags::empty()).expect("utimens");
        }),
        ("xattr", &|root| rustix::fs::setxattr(root.join("a"), "user.a", b"a", XattrFlags::empty()).expect("setxattr")),
    ];
    for (what, change) in changes {
        assert_eq!(rig.noticed(change), all([(ROOT, Some("a"), false)]), "{what}");
    }

    let made: [(&str, Change); 3] = [
        ("link", &|root| fs::hard_link(root.join("a"), root.join("b")).expect("link")),
        ("unlink", &|root| fs::remove_file(root.join("b")).expect("unlink")),
        ("symlink", &|root| symlink("a", root.join("b")).expect("symlink")),
    ];
    for (what, change) in made {
        assert_eq!(rig.noticed(change), all([(ROOT, Some("b"), true)]), "{what}");
    }
    let moves = [
        ("a", "b", all([(ROOT, Some("a"), true), (ROOT, Some("b"), true)])),
        ("b", "d/a", all([(ROOT, Some("b"), true), (d, Some("a"), true)])),
        ("d/a", "../out/a", all([(d, Some("a"), true)])),
        ("../out/a", "a", all([(ROOT, Some("a"), true)])),
    ];
    for (from, to, expected) in moves {
        let noticed = rig.noticed(|root| fs::rename(root.join(from), root.join(to)).expect("rename"));
        assert_eq!(noticed, expected, "{from} to {to}");
    }

    let noticed = rig.noticed(|root| rustix::fs::chmod(root.join("d"), Mode::RWXU).expect("chmod"));
    assert_eq!(noticed, all([(ROOT, Some("d"), false), (d, None, false)]));
    let noticed = rig.noticed(|root| rustix::fs::chmod(root, Mode::RWXU).expect("chmod"));
    assert_eq!(noticed, all([(ROOT, None, false)]));
}

#[test]
fn a_watch_goes_where_its_directory_goes_and_ends_with_it() {
    let rig = Rig::new();
    fs::create_dir(rig.root.join("d")).expect("folder");
    let d = rig.find(ROOT, "d").expect("find");
    for dir in [ROOT, d, d] {
        rig.watch(dir).expect("watch");
    }
    let noticed = rig.noticed(|root| fs::rename(root.join("d"), root.join("e")).expect("rename"));
    assert_eq!(noticed, all([(ROOT, Some("d"), true), (ROOT, Some("e"), true), (d, None, false)]));
    assert_eq!(rig.noticed(|root| fs::create_dir(root.join("e/a")).expect("folder")), all([(d, Some("a"), true)]));
    let noticed = rig.noticed(|root| fs::rename(root.join("e"), root.join("../out/e")).expect("rename"));
    assert_eq!(noticed, all([(ROOT, Some("e"), true), (d, None, false)]));
    assert_eq!(
        rig.noticed(|root| fs::remove_dir(root.join("../out/e/a")).expect("rmdir")),
        all([(d, Some("a"), true)])
    );
    assert_eq!(rig.noticed(|root| fs::remove_dir(root.join("../out/e")).expect("rmdir")), all([(d, None, false)]));
    assert_eq!(rig.watch(d), Err(WatchError::Directory(FsError::Stale)));

    fs::create_dir(rig.root.join("d")).expect("folder");
    let another = rig.find(ROOT, "d").expect("find");
    rig.noticed(|_| ());
    assert_eq!(rig.noticed(|root| fs::create_dir(root.join("d/a")).expect("folder")), All::new(), "not watched");
    rig.watch(another).expect("watch");
    assert_eq!(rig.noticed(|root| fs::remove_dir(root.join("d/a")).expect("rmdir")), all([(another, Some("a"), true)]));
}

#[test]
fn nothing_is_noticed_after_unwatch() {
    let rig = Rig::new();
    fs::create_dir(rig.root.join("d")).expect("folder");
    let d = rig.find(ROOT, "d").expect("find");
    rig.wait(rig.fs.unwatch(d)).expect("there was no watch");
    for dir in [ROOT, d, d] {
        rig.watch(dir).expect("watch");
    }
    for _ in 0..2 {
        rig.wait(rig.fs.unwatch(d)).expect("unwatch");
        assert_eq!(rig.noticed(|root| fs::write(root.join("d/a"), "a").expect("write")), All::new());
    }
    rig.watch(d).expect("watch");
    assert_eq!(rig.noticed(|root| fs::remove_file(root.join("d/a")).expect("unlink")), all([(d, Some("a"), true)]));
}

#[test]
fn own_changes_are_noticed_like_those_of_others() {
    let rig = Rig::new();
    rig.watch(ROOT).expect("watch");
    let noticed = rig.noticed(|_| {
        rig.wait(rig.fs.mkdir(&rig.me, ROOT, b"d", 0o755, 0)).expect("mkdir");
    });
    assert_eq!(noticed, all([(ROOT, Some("d"), true)]));
    let d = rig.find(ROOT, "d").expect("find");
    let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    let noticed = rig.noticed(|_| {
        rig.wait(rig.fs.setattr(&rig.me, d, None, set)).expect("setattr");
    });
    assert_eq!(noticed, all([(ROOT, Some("d"), false)]));
}

#[test]
fn only_directories_that_are_there_are_watched() {
    let rig = Rig::new();
    fs::write(rig.root.join("a"), "a").expect("write");
    symlink("../out", rig.root.join("link")).expect("symlink");
    for name in ["a", "link"] {
        let id = rig.find(ROOT, name).expect("find");
        assert_eq!(rig.watch(id), Err(WatchError::Directory(FsError::NotADirectory)), "{name}");
    }
    assert_eq!(rig.watch(FileId::new(1_000)), Err(WatchError::Directory(FsError::Stale)));
}

#[test]
fn a_wait_ends_when_the_directory_is_dropped() {
    let rig = Rig::new();
    let waiting = rig.runtime.spawn(rig.fs.noticed());
    rig.watch(ROOT).expect("watch");
    drop(rig.fs);
    assert_eq!(rig.runtime.block_on(waiting).expect("task"), DirNotice::Lost);
}

#[test]
fn limits_are_told_with_what_to_do() {
    assert!(WatchError::TooManyWatches.to_string().contains("sysctl fs.inotify.max_user_watches="));
    assert!(WatchError::TooManyInstances.to_string().contains("fs.inotify.max_user_instances"));
}

/// Runs in namespaces of its own, with a limit and a mount of their own.
#[test]
fn the_limit_of_watches_is_told_and_so_is_an_unmount() {
    const NAME: &str = "the_limit_of_watches_is_told_and_so_is_an_unmount";
    if let Some(folder) = std::env::var_os(APART) {
        return apart(Path::new(&folder));
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    for name in ["mounted", "another"] {
        fs::create_dir(folder.path().join(name)).expect("folder");
    }
    let prepare = "echo 2 >/proc/sys/user/max_inotify_watches && mount -t tmpfs none mounted && exec \"$@\"";
    let apart = |run: &[&OsStr]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", prepare, "sh"]).args(run);
        command.current_dir(folder.path()).env(APART, folder.path()).output()
    };
    if !apart(&["true".as_ref()]).is_ok_and(|output| output.status.success()) {
        // Written past the test harness, which hides output.
        writeln!(std::io::stderr(), "not tested: there are no user namespaces here").expect("stderr");
        return;
    }
    let itself = std::env::current_exe().expect("path");
    let output = apart(&[itself.as_os_str(), "--exact".as_ref(), NAME.as_ref()]).expect("run");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn apart(folder: &Path) {
    let local = LocalDir::open(folder).expect("open");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    let find = |name: &str| {
        let found = runtime.block_on(async { local.identified(ROOT, name.as_bytes()).await });
        found.expect("find").0.attr.id
    };
    let watch = |dir| runtime.block_on(async { local.watch(dir).await });
    let (mounted, another) = (find("mounted"), find("another"));
    assert_eq!([ROOT, mounted, mounted, another].map(watch), [Ok(()), Ok(()), Ok(()), Err(WatchError::TooManyWatches)]);
    let unmounted = Command::new("umount").arg(folder.join("mounted")).status().expect("umount");
    assert!(unmounted.success());
    assert_eq!(runtime.block_on(local.noticed()), DirNotice::Directory(mounted));
    assert_ne!(find("mounted"), mounted);
    assert_eq!(watch(another), Ok(()));
}
