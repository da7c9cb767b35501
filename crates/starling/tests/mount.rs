//! A mounted file system as processes see it, where the kernel plays a part: mappings, mount
//! options, limits, and very many names. `durability.rs` tests what survives the death of the
//! serving process.

mod common;
#[path = "common/xattr.rs"]
mod xattr;

use common::{Mounted, run, starling};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Error, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};
use xattr::{get_xattr, set_xattr};

const SMALL: &[&str] = &["--stores", "3", "--store-size", "64MiB"];
const PAGE: usize = 4096;

/// A mapping of the beginning of a file.
struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(file: &File, len: usize, sharing: i32) -> Mapping {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of an open file, at a place that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, sharing, file.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED, "mmap: {}", Error::last_os_error());
        Mapping { start: start.cast(), len }
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        // SAFETY: within the mapping; volatile, since other processes change it.
        (at..at + len).map(|at| unsafe { self.start.add(at).read_volatile() }).collect()
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: within the mapping, and `bytes` lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len()) };
    }

    /// msync(2) of all of it; the error's number.
    fn sync(&self) -> Result<(), i32> {
        // SAFETY: the mapping is whole.
        let done = unsafe { libc::msync(self.start.cast(), self.len, libc::MS_SYNC) };
        if done == 0 { Ok(()) } else { Err(Error::last_os_error().raw_os_error().expect("errno")) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is not used any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

/// A shell in the mount, a process of its own.
fn shell(fs: &Mounted, script: &str) -> String {
    run(Command::new("sh").args(["-e", "-c", script]).current_dir(&fs.mountpoint))
}

#[test]
fn shared_mappings_and_files_show_each_others_changes_at_once() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let fs = Mounted::up(dir.path(), "fs", SMALL);
    let file = open(&fs.mountpoint.join("f"));
    file.set_len(3 * PAGE as u64).expect("truncate");
    let mapping = Mapping::new(&file, 3 * PAGE, libc::MAP_SHARED);
    assert_eq!(mapping.read(0, 3 * PAGE), vec![0; 3 * PAGE]);

    shell(&fs, "printf written | dd of=f bs=1 seek=4094 conv=notrunc status=none");
    assert_eq!(mapping.read(4093, 9), b"\0written\0");
    mapping.write(4096, b"MAPPED");
    assert_eq!(shell(&fs, "dd if=f bs=1 skip=4094 count=8 status=none"), "wrMAPPED");
    shell(&fs, "truncate -s 4097 f");
    assert_eq!(mapping.read(4094, 4), b"wrM\0", "what was cut off is zeroes");
    fs.down();
}

#[test]
fn mapped_changes_are_in_the_file_after_an_unmount() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", SMALL);
    let file = open(&fs.mountpoint.join("f"));
    file.set_len(1 << 20).expect("truncate");
    let mapping = Mapping::new(&file, 1 << 20, libc::MAP_SHARED);
    (0..1 << 20).step_by(PAGE).for_each(|at| mapping.write(at, &at.to_le_bytes()));
    drop((mapping, file));
    fs.down();
    fs.up_again();
    let bytes = fs::read(fs.mountpoint.join("f")).expect("read");
    assert_eq!(bytes.len(), 1 << 20);
    assert!((0..1 << 20).step_by(PAGE).all(|at| bytes[at..at + 8] == at.to_le_bytes()));
    fs.down();
}

#[test]
fn private_mappings_change_nothing_else() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let fs = Mounted::up(dir.path(), "fs", SMALL);
    let path = fs.mountpoint.join("f");
    fs::write(&path, "0123456789").expect("write");
    let file = File::open(&path).expect("open");
    let mapping = Mapping::new(&file, 10, libc::MAP_PRIVATE);
    mapping.write(3, b"xyz");
    assert_eq!(mapping.sync(), Ok(()));
    assert_eq!(mapping.read(0, 10), b"012xyz6789");
    assert_eq!(shell(&fs, "cat f"), "0123456789");
    drop((mapping, file));
    assert_eq!(fs::read(&path).expect("read"), b"0123456789");
    fs.down();
}

/// The signal that ends a child process which touches a byte of a mapping.
fn killed_by_touching(mapping: &Mapping, at: usize) -> i32 {
    // SAFETY: the child reads memory, which may kill it, and leaves without unwinding.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "fork");
        if pid == 0 {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
            mapping.start.add(at).read_volatile();
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 }
    }
}

#[test]
fn touching_a_mapping_beyond_the_last_page_of_its_file_is_sigbus() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let fs = Mounted::up(dir.path(), "fs", SMALL);
    let file = open(&fs.mountpoint.join("f"));
    file.set_len(PAGE as u64 + 1).expect("truncate");
    let mapping = Mapping::new(&file, 4 * PAGE, libc::MAP_SHARED);
    assert_eq!(killed_by_touching(&mapping, 2 * PAGE - 1), 0, "the rest of the last page is zeroes");
    assert_eq!(killed_by_touching(&mapping, 2 * PAGE), libc::SIGBUS);
    shell(&fs, "truncate -s 16384 f");
    assert_eq!(killed_by_touching(&mapping, 2 * PAGE), 0, "the file has grown");
    shell(&fs, "truncate -s 0 f");
    assert_eq!(killed_by_touching(&mapping, 0), libc::SIGBUS, "the file was cut while it was mapped");
    fs.down();
}

#[test]
fn written_back_pages_move_the_times_of_their_file() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let fs = Mounted::up(dir.path(), "fs", SMALL);
    let file = open(&fs.mountpoint.join("f"));
    file.set_len(PAGE as u64).expect("truncate");
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    file.set_modified(old).expect("set the time");
    let mapping = Mapping::new(&file, PAGE, libc::MAP_SHARED);
    assert_eq!(mapping.read(0, 1), [0]);
    assert_eq!(mapping.sync(), Ok(()));
    assert_eq!(file.metadata().expect("stat").modified().expect("mtime"), old, "reading moves nothing");
    mapping.write(0, b"x");
    assert_eq!(mapping.sync(), Ok(()));
    assert_ne!(file.metadata().expect("stat").modified().expect("mtime"), old);
    fs.down();
}

/// Writes until there is no room.
fn fill(file: &File) {
    let noise: Vec<u8> = (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for at in 0.. {
        match file.write_all_at(&noise, at << 20) {
            Ok(()) => assert!(at < 200, "more than the stores hold"),
            Err(e) => return assert_eq!(e.raw_os_error(), Some(libc::ENOSPC)),
        }
    }
}

#[test]
fn mapped_pages_without_room_fail_msync_with_enospc_once() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let fs = Mounted::up(dir.path(), "fs", SMALL);
    let (full, file) = (open(&fs.mountpoint.join("full")), open(&fs.mountpoint.join("f")));
    let len = 32 << 20;
    file.set_len(len as u64).expect("truncate");
    let mapping = Mapping::new(&file, len, libc::MAP_SHARED);
    fill(&full);
    let change = || (0..len).step_by(PAGE).for_each(|at| mapping.write(at, &(at + 1).to_le_bytes()));
    change();
    assert_eq!(mapping.sync(), Err(libc::ENOSPC));
    assert_eq!(mapping.sync(), Ok(()), "the kernel tells it once, and keeps the pages without writing them again");
    assert_eq!(mapping.read(len - PAGE, 1), [1], "they are there while they are cached");

    change();
    assert_eq!(file.sync_all().map_err(|e| e.raw_os_error()), Err(Some(libc::ENOSPC)), "fsync tells it too");
    full.set_len(0).expect("truncate");
    full.sync_all().expect("fsync");
    change();
    assert_eq!(mapping.sync(), Ok(()), "there is room, and the pages were changed again");
    drop((mapping, file, full));
    fs.down();
    let checked = run(starling().arg("fsck").arg("--data").arg(&fs.data));
    assert!(checked.contains("no problems"), "{checked}");
}

/// The mount options of a mount point, as the kernel shows them.
fn mount_options(mountpoint: &Path) -> Vec<String> {
    let mountpoint = mountpoint.to_str().expect("a name");
    let info = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let line = info.lines().find(|line| line.split(' ').nth(4) == Some(mountpoint)).expect("mounted");
    line.split(' ').nth(5).expect("options").split(',').map(str::to_string).collect()
}

#[test]
fn mounts_honour_neither_set_id_programs_nor_devices() {
    let dir = tempfile::tempdir().expect("temporary folder");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("chmod");
    let mountpoint = dir.path().canonicalize().expect("path").join("fs.mnt");
    let fs = Mounted::up(dir.path(), "fs", &[SMALL, &["--allow-other"]].concat());
    let options = mount_options(&mountpoint);
    assert!(options.contains(&"nosuid".into()) && options.contains(&"nodev".into()), "{options:?}");

    shell(&fs, "cp \"$(command -v id)\" id; chmod 6755 id");
    assert_eq!(fs::metadata(fs.mountpoint.join("id")).expect("stat").mode() & 0o7777, 0o6755);
    let as_user = "exec setpriv --reuid=65534 --regid=65534 --clear-groups ./id";
    assert_eq!(shell(&fs, &format!("{as_user} -u")).trim(), "65534", "the bits are kept, but of no effect");
    assert_eq!(shell(&fs, &format!("{as_user} -g")).trim(), "65534");

    shell(&fs, "mknod null c 1 3");
    let refused = OpenOptions::new().write(true).open(fs.mountpoint.join("null")).expect_err("a device was opened");
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    fs.down();
}

#[test]
fn limits_are_as_documented() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", SMALL);
    let huge = open(&fs.mountpoint.join("huge"));
    let last = i64::MAX as u64 - 1;
    for at in [1 << 40, (1 << 40) + 1, 1 << 62, last] {
        assert_eq!(huge.write_at(b"x", at).ok(), Some(1), "byte {at}");
    }
    assert_eq!(huge.metadata().expect("stat").len(), i64::MAX as u64);
    huge.set_len(0).expect("truncate");
    huge.set_len(i64::MAX as u64).expect("truncate");
    huge.write_all_at(b"end", last - 2).expect("write");
    assert!(huge.write_at(b"x", last + 1).is_err());

    let name = |len: usize| fs.mountpoint.join("n".repeat(len));
    File::create(name(255)).expect("255 bytes");
    assert_eq!(File::create(name(256)).expect_err("256 bytes").raw_os_error(), Some(libc::ENAMETOOLONG));
    let link = fs.mountpoint.join("link");
    std::os::unix::fs::symlink("t".repeat(4095), &link).expect("4,095 bytes");
    let refused = std::os::unix::fs::symlink("t".repeat(4096), fs.mountpoint.join("longer")).expect_err("4,096 bytes");
    assert_eq!(refused.raw_os_error(), Some(libc::ENAMETOOLONG));

    let file = fs.mountpoint.join("huge");
    assert_eq!(set_xattr(&file, "user.big", &[7; 65_537]), Err(Some(libc::E2BIG)));
    for name in ["user.a", "user.b", "user.c"] {
        assert_eq!(set_xattr(&file, name, &[7; 65_536]), Ok(()));
    }
    // 256 KiB for all names and values of one file: three are there, the fourth name leaves this
    // much.
    let room = 65_536 - 4 * "user.a".len();
    assert_eq!(set_xattr(&file, "user.d", &vec![7; room + 1]), Err(Some(libc::ENOSPC)));
    assert_eq!(set_xattr(&file, "user.d", &vec![7; room]), Ok(()));
    drop(huge);
    fs.down();

    fs.up_again();
    let huge = File::open(fs.mountpoint.join("huge")).expect("open");
    let mut end = [0; 4];
    assert_eq!(huge.read_at(&mut end, last - 3).expect("read"), 4);
    assert_eq!(&end, b"\0end");
    assert_eq!(fs::read_link(&link).expect("readlink").as_os_str().len(), 4095);
    assert_eq!(get_xattr(&file, "user.d").map(|value| value.len()), Ok(room));
    fs.down();
}

#[test]
fn directory_of_twenty_thousand_names_is_whole_after_a_remount() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", &["--stores", "3", "--store-size", "256MiB"]);
    let many = fs.mountpoint.join("many");
    fs::create_dir(&many).expect("mkdir");
    let mut names: BTreeSet<String> = (0..20_000).map(|i| format!("name-{i}")).collect();
    names.iter().for_each(|name| drop(File::create(many.join(name)).expect("create")));
    fs.down();
    fs.up_again();
    let listed = || -> Vec<String> {
        fs::read_dir(&many).expect("list").map(|e| e.expect("entry").file_name().into_string().expect("name")).collect()
    };
    let first = listed();
    assert_eq!(first.len(), names.len(), "each once");
    assert_eq!(first.into_iter().collect::<BTreeSet<_>>(), names);
    for i in (0..20_000).step_by(7) {
        let name = format!("name-{i}");
        fs::remove_file(many.join(&name)).expect("remove");
        names.remove(&name);
    }
    assert_eq!(listed().into_iter().collect::<BTreeSet<_>>(), names);
    assert!(fs::metadata(many.join("name-1")).is_ok() && fs::metadata(many.join("name-7")).is_err());
    fs.down();
}

#[test]
fn programs_run_from_their_mapped_pages() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let fs = Mounted::up(dir.path(), "fs", SMALL);
    shell(&fs, "cp \"$(command -v sh)\" sh");
    assert_eq!(shell(&fs, "./sh -c 'echo $((6 * 7))'").trim(), "42");
    let mut start = [0; 4];
    File::open(fs.mountpoint.join("sh")).expect("open").read_exact(&mut start).expect("read");
    assert_eq!(&start, b"\x7fELF");
    fs.down();
}

#[test]
fn locks_of_processes_keep_each_other_out() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let fs = Mounted::up(dir.path(), "fs", SMALL);
    let file = open(&fs.mountpoint.join("f"));
    (&file).write_all(b"x").expect("write");
    // SAFETY: plain calls on an open descriptor.
    let flock = |operation| unsafe { libc::flock(file.as_raw_fd(), operation) };
    assert_eq!(flock(libc::LOCK_EX), 0);
    let other = |how: &str| Command::new("flock").args([how, "-n", "f", "true"]).current_dir(&fs.mountpoint).status();
    assert_eq!(other("-s").expect("flock").code(), Some(1));
    assert_eq!(flock(libc::LOCK_SH), 0);
    assert_eq!(other("-s").expect("flock").code(), Some(0));
    assert_eq!(other("-x").expect("flock").code(), Some(1));
    assert_eq!(flock(libc::LOCK_UN), 0);
    assert_eq!(other("-x").expect("flock").code(), Some(0));
    fs.down();
}

#[test]
fn full_mounts_refuse_writes_but_no_syncs_and_have_room_again_after_a_removal() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let fs = Mounted::up(dir.path(), "fs", SMALL);
    let path = fs.mountpoint.join("full");
    let full = open(&path);
    fill(&full);
    full.sync_all().expect("what was accepted has room");
    let len = full.metadata().expect("stat").len();
    assert!(len > 32 << 20, "{len}");
    fill(&full);
    drop(full);
    fs::remove_file(&path).expect("there is room to remove");
    run(starling().arg("sync").arg(&fs.mountpoint));
    fs::write(fs.mountpoint.join("after"), vec![7; 32 << 20]).expect("room again");
    run(starling().arg("sync").arg(&fs.mountpoint));
    fs.down();
}

#[test]
fn reads_from_the_kernels_cache_leave_atime_alone() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let mut fs = Mounted::up(dir.path(), "fs", SMALL);
    let path = fs.mountpoint.join("f");
    // Whole pages, which stay in the page cache as they are written.
    fs::write(&path, vec![7; 2 * PAGE]).expect("write");
    let times = || {
        let found = fs::metadata(&path).expect("stat");
        (found.accessed().expect("atime"), found.modified().expect("mtime"))
    };
    let read = || assert_eq!(fs::read(&path).expect("read"), vec![7; 2 * PAGE]);
    let (old, _) = times();
    read();
    assert_eq!(times().0, old);
    fs.down();
    fs.up_again();
    read();
    let (accessed, modified) = times();
    assert!(accessed > modified, "one that reaches the file system counts");
    read();
    assert_eq!(times().0, accessed);
    fs.down();
}
