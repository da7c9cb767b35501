//! Plain system calls through the kernel, on file systems that answer at once and later.

mod common;

use common::*;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use types::{Answer, FileId};
use vfs::fs::{Cred, FileSystem, OpenFlags};

/// Runs a check in both manners of answering.
fn both(check: impl Fn(&Mounted)) {
    for manner in [NOW, LATER] {
        check(&Mounted::new(manner));
    }
}

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn written_bytes_are_read_back_after_reopening() {
    both(|m| {
        let body: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
        fs::write(m.path("big"), &body).unwrap();
        assert!(fs::read(m.path("big")).unwrap() == body);
        let file = File::open(m.path("big")).unwrap();
        let mut part = [0u8; 10];
        file.read_exact_at(&mut part, 1_048_570).unwrap();
        assert_eq!(part, body[1_048_570..1_048_580]);
        assert_eq!(fs::metadata(m.path("big")).unwrap().len(), 3_000_000);
        file.sync_all().unwrap();
        File::open(m.root()).unwrap().sync_all().unwrap();
    });
}

#[test]
fn names_are_made_moved_and_removed() {
    both(|m| {
        fs::create_dir_all(m.path("a/b/c")).unwrap();
        fs::write(m.path("a/f"), "1").unwrap();
        fs::rename(m.path("a/f"), m.path("a/b/g")).unwrap();
        fs::hard_link(m.path("a/b/g"), m.path("h")).unwrap();
        assert_eq!(fs::metadata(m.path("h")).unwrap().nlink(), 2);
        assert_eq!(fs::metadata(m.path("h")).unwrap().ino(), fs::metadata(m.path("a/b/g")).unwrap().ino());
        symlink("a/b/g", m.path("s")).unwrap();
        assert_eq!(fs::read_link(m.path("s")).unwrap(), Path::new("a/b/g"));
        assert_eq!(fs::read_to_string(m.path("s")).unwrap(), "1");
        assert_eq!(errno(fs::remove_dir(m.path("a"))), libc::ENOTEMPTY);
        assert_eq!(errno(fs::read(m.path("a/f"))), libc::ENOENT);
        assert_eq!(errno(fs::create_dir(m.path("a"))), libc::EEXIST);
        assert_eq!(errno(fs::write(m.path("x".repeat(256).as_str()), "")), libc::ENAMETOOLONG);
        fs::remove_dir_all(m.path("a")).unwrap();
        assert_eq!(fs::read_to_string(m.path("h")).unwrap(), "1");
        assert_eq!(fs::metadata(m.path("h/..")).map_err(|e| e.raw_os_error()).unwrap_err(), Some(libc::ENOTDIR));
    });
}

#[test]
fn a_name_once_missing_is_seen_when_it_is_made() {
    both(|m| {
        assert_eq!(errno(fs::metadata(m.path("f"))), libc::ENOENT);
        fs::write(m.path("f"), "x").unwrap();
        assert_eq!(fs::metadata(m.path("f")).unwrap().len(), 1);
        fs::remove_file(m.path("f")).unwrap();
        assert_eq!(errno(fs::metadata(m.path("f"))), libc::ENOENT);
        fs::create_dir(m.path("f")).unwrap();
        assert!(fs::metadata(m.path("f")).unwrap().is_dir());
    });
}

#[test]
fn open_flags_do_what_they_say() {
    both(|m| {
        let path = m.path("f");
        fs::write(&path, "hello").unwrap();
        assert_eq!(errno(OpenOptions::new().write(true).create_new(true).open(&path)), libc::EEXIST);
        drop(OpenOptions::new().write(true).create(true).truncate(false).open(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "hello");
        drop(OpenOptions::new().write(true).truncate(true).open(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert_eq!(errno(OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(&path)), libc::ENOTDIR);
        assert_eq!(errno(OpenOptions::new().write(true).open(m.root())), libc::EISDIR);
    });
}

#[test]
fn appends_of_several_processes_do_not_overwrite_each_other() {
    both(|m| {
        let path = m.path("log");
        fs::write(&path, "").unwrap();
        let script = format!("for i in $(seq 100); do echo {{}}$i; done >> '{}'", path.display());
        let children: Vec<_> = ["a", "b", "c"]
            .map(|who| Command::new("sh").args(["-c", &script.replace("{}", who)]).spawn().unwrap())
            .into_iter()
            .collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        let lines: BTreeSet<String> = fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 300);
    });
}

#[test]
fn regression_file_opened_for_append_writes_in_place_once_the_flag_is_taken_off() {
    both(|m| {
        let path = m.path("f");
        fs::write(&path, "0123456789").unwrap();
        let mut file = OpenOptions::new().read(true).append(true).open(&path).unwrap();
        file.write_all(b"ab").unwrap();
        // SAFETY: a plain fcntl on an open descriptor.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) }, 0);
        file.write_all_at(b"XY", 1).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "0XY3456789ab");
    });
}

/// The kernel computes the offset of an append from its cached size, which is old once another
/// client has written.
#[test]
fn regression_append_goes_to_the_end_though_the_kernel_knows_an_old_size() {
    for uncached in [false, true] {
        let uncached = Arc::new(AtomicBool::new(uncached));
        let m = Mounted::with(NOW, |options| options.uncached.push(uncached));
        let path = m.path("f");
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path).unwrap();
        file.write_all(b"mine-").unwrap();
        let id = FileId::new(fs::metadata(&path).unwrap().ino());
        let behind = |data: &[u8]| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let flags = OpenFlags { write: true, ..OpenFlags::default() };
                let handle = m.fs.open(&Cred::ROOT, id, flags).await.unwrap();
                m.fs.append(&Cred::ROOT, id, handle, data).await.unwrap();
            });
        };
        for _ in 0..3 {
            behind(b"theirs-");
            file.write_all(b"mine-").unwrap();
        }
        let expected = "mine-".to_owned() + &"theirs-mine-".repeat(3);
        let size = m.fs.dump().iter().find(|entry| entry.path == b"/f").unwrap().attr.size;
        assert_eq!(size, expected.len() as u64, "an append went over what others had written");
        // A thread of its own tells the kernel.
        while fs::read_to_string(&path).unwrap() != expected {
            std::thread::yield_now();
        }
    }
}

#[test]
fn regression_mapped_pages_go_to_their_place_while_another_has_the_file_open_for_append() {
    both(|m| {
        let path = m.path("f");
        fs::write(&path, vec![b'.'; 8192]).unwrap();
        let append = OpenOptions::new().read(true).append(true).open(&path).unwrap();
        let file = read_write(&path);
        with_mapping(&file, 8192, |map| map[4096..4100].copy_from_slice(b"page"));
        drop(append);
        drop(file);
        let body = fs::read(&path).unwrap();
        assert_eq!(body.len(), 8192);
        assert_eq!(&body[4095..4101], b".page.");
    });
}

fn with_mapping(file: &File, len: usize, f: impl FnOnce(&mut [u8])) {
    // SAFETY: a fresh shared mapping of an open file of at least `len` bytes, gone before this
    // returns.
    unsafe {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let map = libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(map, libc::MAP_FAILED, "mmap failed");
        f(std::slice::from_raw_parts_mut(map.cast(), len));
        assert_eq!(libc::msync(map, len, libc::MS_SYNC), 0);
        assert_eq!(libc::munmap(map, len), 0);
    }
}

#[test]
fn unmapping_writes_the_pages() {
    both(|m| {
        let file = read_write(&m.path("f"));
        file.set_len(4096).unwrap();
        // Runs in another process: this one has the threads that serve the mount, and munmap would
        // keep them from touching memory.
        // SAFETY: a fresh shared mapping of an open file that has these bytes, gone at the end.
        let unmapped = in_child(|| unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let map = libc::mmap(std::ptr::null_mut(), 4096, prot, libc::MAP_SHARED, file.as_raw_fd(), 0);
            if map == libc::MAP_FAILED {
                return 1;
            }
            map.cast::<u8>().write_volatile(7);
            u8::from(libc::munmap(map, 4096) != 0)
        });
        assert_eq!(unmapped, 0);
        let stored = m.fs.dump().into_iter().find(|e| e.path == b"/f").unwrap();
        assert!(stored.attr.blocks > 0);
        assert_eq!(m.count("fsync"), 0);
    });
}

/// What docs/semantics.md says about sync(2) and syncfs(2): FUSE does not pass them on.
#[test]
fn syncfs_writes_mapped_pages_and_asks_for_no_commit() {
    both(|m| {
        let file = read_write(&m.path("f"));
        file.set_len(4096).unwrap();
        with_mapping(&file, 4096, |map| {
            map[0] = 7;
            // SAFETY: a plain call on an open descriptor.
            assert_eq!(unsafe { libc::syncfs(file.as_raw_fd()) }, 0);
            let is_stored = || m.fs.dump().into_iter().any(|e| e.path == b"/f" && e.attr.blocks > 0);
            // Kernels from 6.19 on only begin to write.
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while !is_stored() {
                assert!(std::time::Instant::now() < deadline, "the page was not written");
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            assert_eq!(m.count("fsync"), 0);
        });
        assert_eq!(m.count("fsync"), 1, "msync is an fsync");
    });
}

#[test]
fn mapped_writes_reach_the_file_system() {
    both(|m| {
        let file = read_write(&m.path("f"));
        file.set_len(10_000).unwrap();
        with_mapping(&file, 10_000, |map| map[9_000] = 7);
        drop(file);
        let mut byte = [0];
        File::open(m.path("f")).unwrap().read_exact_at(&mut byte, 9_000).unwrap();
        assert_eq!(byte, [7]);
        let stored = m.fs.dump().into_iter().find(|e| e.path == b"/f").unwrap();
        assert_eq!(stored.attr.size, 10_000);
        assert!(stored.attr.blocks > 0, "the page was written to the file system, not only cached");
    });
}

#[test]
fn copied_program_runs() {
    both(|m| {
        fs::copy("/bin/true", m.path("true")).unwrap();
        fs::copy("/bin/false", m.path("false")).unwrap();
        assert!(Command::new(m.path("true")).status().unwrap().success());
        assert_eq!(Command::new(m.path("false")).status().unwrap().code(), Some(1));
        fs::set_permissions(m.path("true"), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(errno(Command::new(m.path("true")).status()), libc::EACCES);
    });
}

#[test]
fn ten_thousand_names_are_listed_once_each() {
    both(|m| {
        fs::create_dir(m.path("d")).unwrap();
        let names: BTreeSet<String> = (0..10_000).map(|i| format!("name-{i}")).collect();
        for name in &names {
            File::create(m.path("d").join(name)).unwrap();
        }
        let listed: Vec<String> =
            fs::read_dir(m.path("d")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(listed.len(), 10_000);
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), names);
        assert!(m.count("readdirplus") > 0, "listings bring attributes along");
        let sizes: u64 = fs::read_dir(m.path("d")).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
        assert_eq!(sizes, 0);
        let output = Command::new("ls").args(["-a", "-U"]).arg(m.path("d")).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), 10_002);
        assert_eq!(text.lines().filter(|l| *l == "." || *l == "..").count(), 2);
    });
}

/// The kernel keeps listings; each change must show in the next one.
#[test]
fn listing_is_asked_for_once_and_shows_every_change() {
    both(|m| {
        fs::create_dir(m.path("d")).unwrap();
        let names = || -> BTreeSet<String> {
            fs::read_dir(m.path("d")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
        };
        let is = |expected: &[&str]| assert_eq!(names(), expected.iter().map(|s| s.to_string()).collect());
        is(&[]);
        fs::write(m.path("d/a"), "1").unwrap();
        is(&["a"]);
        fs::rename(m.path("d/a"), m.path("d/b")).unwrap();
        is(&["b"]);
        fs::write(m.path("c"), "1").unwrap();
        fs::rename(m.path("c"), m.path("d/c")).unwrap();
        is(&["b", "c"]);
        fs::hard_link(m.path("d/c"), m.path("d/e")).unwrap();
        fs::remove_file(m.path("d/b")).unwrap();
        fs::create_dir(m.path("d/f")).unwrap();
        symlink("x", m.path("d/g")).unwrap();
        is(&["c", "e", "f", "g"]);
        let asked = || m.count("readdir") + m.count("readdirplus");
        is(&["c", "e", "f", "g"]);
        let before = asked();
        is(&["c", "e", "f", "g"]);
        assert_eq!(asked(), before, "the kernel answers what it has seen");
    });
}

/// Options with which the kernel checks permissions and opens directories by itself.
fn without_open_dirs(uncached: &Arc<AtomicBool>) -> Mounted {
    Mounted::with(NOW, |options| {
        (options.kernel_checks, options.open_dirs) = (true, false);
        options.uncached.push(uncached.clone());
    })
}

fn names_in(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

/// Lists a directory by getdents64(2) and no other call.
fn raw_listing(dir: &Path) -> Vec<u8> {
    let dir = File::open(dir).unwrap();
    let mut all = Vec::new();
    loop {
        let mut some = vec![0u8; 4096];
        // SAFETY: the buffer is as long as it is said to be.
        let len = unsafe { libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), some.as_mut_ptr(), some.len()) };
        match usize::try_from(len).expect("getdents64") {
            0 => return all,
            len => all.extend_from_slice(&some[..len]),
        }
    }
}

#[test]
fn a_cached_listing_takes_no_request_where_the_kernel_opens_directories() {
    let m = without_open_dirs(&Arc::default());
    fs::create_dir(m.path("d")).unwrap();
    let names: BTreeSet<String> = (0..2000).map(|i| format!("name-{i}")).collect();
    for name in &names {
        File::create(m.path("d").join(name)).unwrap();
    }
    assert_eq!(names_in(&m.path("d")), names);
    assert_eq!(names_in(&m.path("d")), names);
    let requests = || m.mount.as_ref().unwrap().requests();
    let before = requests();
    assert_eq!(names_in(&m.path("d")), names);
    assert_eq!(requests(), before);
    assert_eq!((m.count("opendir"), m.count("releasedir")), (1, 0));
    File::open(m.path("d")).unwrap().sync_all().unwrap();
    fs::remove_file(m.path("d/name-7")).unwrap();
    assert_eq!(names_in(&m.path("d")).len(), 1999);
}

/// While the kernel may cache nothing, the next listing shows changes by others, although the
/// kernel keeps listings on its own.
#[test]
fn what_others_change_is_listed_at_once_while_nothing_is_cached() {
    let uncached = Arc::new(AtomicBool::new(true));
    let m = without_open_dirs(&uncached);
    fs::create_dir(m.path("d")).unwrap();
    let dir = now(m.fs.lookup(&Cred::ROOT, FileId::ROOT, b"d")).attr.id;
    for i in 0..20 {
        let name = format!("name-{i}");
        now(m.fs.mkdir(&Cred::ROOT, dir, name.as_bytes(), 0o755, 0));
        // opendir(3) asks for attributes, and so the kernel may notice the change.
        let listed = raw_listing(&m.path("d"));
        assert!(listed.windows(name.len()).any(|part| part == name.as_bytes()), "{name}");
    }
    uncached.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!((names_in(&m.path("d")).len(), names_in(&m.path("d")).len()), (20, 20));
    let before = m.count("readdir") + m.count("readdirplus");
    assert_eq!(names_in(&m.path("d")).len(), 20);
    assert_eq!(m.count("readdir") + m.count("readdirplus"), before);
}

#[test]
fn unlinked_file_lives_while_it_is_open() {
    both(|m| {
        let mut file = read_write(&m.path("f"));
        file.write_all(b"kept").unwrap();
        fs::remove_file(m.path("f")).unwrap();
        assert_eq!(errno(fs::metadata(m.path("f"))), libc::ENOENT);
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.write_all(b" alive").unwrap();
        file.set_len(7).unwrap();
        let mut text = String::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "kept al");
    });
}

#[test]
fn attributes_are_set_and_shown() {
    both(|m| {
        let path = m.path("f");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
        let at = |sec, nsec| libc::timespec { tv_sec: sec, tv_nsec: nsec };
        let times = [at(-2, 500_000_000), at(1_700_000_000, 123_456_789)];
        // SAFETY: the path is NUL-terminated and two times are given.
        check(unsafe { libc::utimensat(libc::AT_FDCWD, c(&path).as_ptr(), times.as_ptr(), 0) }.into()).unwrap();
        let stat = fs::metadata(&path).unwrap();
        assert_eq!((stat.mode() & 0o7777, stat.uid(), stat.gid()), (0o640, 12, 34));
        assert_eq!((stat.atime(), stat.atime_nsec()), (-2, 500_000_000));
        assert_eq!((stat.mtime(), stat.mtime_nsec()), (1_700_000_000, 123_456_789));
        let file = read_write(&path);
        file.set_len(1_000_000).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 1_000_000);
        file.set_len(0).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
    });
}

#[test]
fn special_files_keep_kind_and_device_number() {
    both(|m| {
        let device = libc::makedev(300, 70_000);
        for (name, kind, rdev) in [
            ("fifo", libc::S_IFIFO, 0),
            ("socket", libc::S_IFSOCK, 0),
            ("char", libc::S_IFCHR, device),
            ("block", libc::S_IFBLK, device),
        ] {
            let path = c(&m.path(name));
            // SAFETY: the path is NUL-terminated.
            check(unsafe { libc::mknod(path.as_ptr(), kind | 0o600, rdev) }.into()).unwrap();
            let stat = fs::symlink_metadata(m.path(name)).unwrap();
            assert_eq!((stat.mode() & libc::S_IFMT, stat.rdev()), (kind, rdev), "{name}");
        }
        assert!(fs::metadata(m.path("fifo")).unwrap().file_type().is_fifo());
    });
}

#[test]
fn umask_is_applied_once() {
    both(|m| {
        let script = "umask 027; : > f; mkdir d; mknod p p";
        assert!(Command::new("sh").args(["-c", script]).current_dir(m.root()).status().unwrap().success());
        let mode = |name: &str| fs::metadata(m.path(name)).unwrap().mode() & 0o7777;
        assert_eq!((mode("f"), mode("d"), mode("p")), (0o640, 0o750, 0o640));
    });
}

#[test]
fn rename_flags_are_obeyed() {
    both(|m| {
        fs::write(m.path("a"), "A").unwrap();
        fs::write(m.path("b"), "B").unwrap();
        let rename = |from: &str, to: &str, flags| {
            // SAFETY: both paths are NUL-terminated.
            let done = unsafe {
                libc::renameat2(
                    libc::AT_FDCWD,
                    c(&m.path(from)).as_ptr(),
                    libc::AT_FDCWD,
                    c(&m.path(to)).as_ptr(),
                    flags,
                )
            };
            check(done.into())
        };
        assert_eq!(rename("a", "b", libc::RENAME_NOREPLACE), Err(libc::EEXIST));
        assert_eq!(rename("a", "b", libc::RENAME_EXCHANGE), Ok(0));
        assert_eq!(fs::read_to_string(m.path("a")).unwrap(), "B");
        assert_eq!(rename("a", "c", libc::RENAME_EXCHANGE), Err(libc::ENOENT));
        assert_eq!(rename("a", "c", libc::RENAME_WHITEOUT), Err(libc::EINVAL));
        assert_eq!(rename("a", "c", libc::RENAME_NOREPLACE), Ok(0));
        assert_eq!(rename("b", "c", 0), Ok(0));
        assert_eq!(fs::read_to_string(m.path("c")).unwrap(), "A");
    });
}

#[test]
fn holes_are_found_and_punched() {
    both(|m| {
        let file = read_write(&m.path("f"));
        file.write_all_at(&[1; 65_536], 131_072).unwrap();
        file.set_len(400_000).unwrap();
        // SAFETY: plain calls on an open descriptor.
        let seek = |at, whence| check(unsafe { libc::lseek(file.as_raw_fd(), at, whence) });
        assert_eq!(seek(0, libc::SEEK_DATA), Ok(131_072));
        assert_eq!(seek(131_072, libc::SEEK_HOLE), Ok(196_608));
        assert_eq!(seek(200_000, libc::SEEK_DATA), Err(libc::ENXIO));
        assert_eq!(seek(0, libc::SEEK_END), Ok(400_000));
        // SAFETY: as above.
        let fallocate = |mode, at, len| check(unsafe { libc::fallocate(file.as_raw_fd(), mode, at, len) }.into());
        let (keep, punch, zero) = (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE);
        fallocate(punch | keep, 131_072, 65_536).unwrap();
        assert_eq!(seek(0, libc::SEEK_DATA), Err(libc::ENXIO));
        fallocate(0, 0, 500_000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 500_000);
        fallocate(keep, 0, 600_000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 500_000);
        file.write_all_at(b"full", 0).unwrap();
        fallocate(zero, 1, 2).unwrap();
        let mut four = [9; 4];
        file.read_exact_at(&mut four, 0).unwrap();
        assert_eq!(&four, b"f\0\0l");
        assert_eq!(fallocate(libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096), Err(libc::EOPNOTSUPP));
    });
}

#[test]
fn ranges_are_copied_within_the_file_system() {
    both(|m| {
        fs::write(m.path("from"), "0123456789").unwrap();
        let (from, to) = (File::open(m.path("from")).unwrap(), read_write(&m.path("to")));
        let (mut offset_in, mut offset_out) = (2, 1);
        // SAFETY: both descriptors are open and both offsets live.
        let copied =
            unsafe { libc::copy_file_range(from.as_raw_fd(), &mut offset_in, to.as_raw_fd(), &mut offset_out, 5, 0) };
        assert_eq!(check(copied as i64), Ok(5));
        assert_eq!(fs::read(m.path("to")).unwrap(), b"\x0023456");
        assert_eq!(m.count("copy_file_range"), 1);
    });
}

#[test]
fn extended_attributes_follow_the_size_protocol() {
    both(|m| {
        fs::write(m.path("f"), "").unwrap();
        let path = c(&m.path("f"));
        let set = |name: &std::ffi::CStr, value: &[u8], flags| {
            // SAFETY: name and path are NUL-terminated, the value has the length given.
            check(
                unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) }
                    .into(),
            )
        };
        let get = |name: &std::ffi::CStr, room: &mut [u8]| {
            // SAFETY: as above, and the buffer has the length given.
            check(unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), room.as_mut_ptr().cast(), room.len()) } as i64)
        };
        set(c"user.one", b"value", 0).unwrap();
        set(c"user.two", &[7; 60_000], libc::XATTR_CREATE).unwrap();
        assert_eq!(set(c"user.one", b"", libc::XATTR_CREATE), Err(libc::EEXIST));
        assert_eq!(set(c"user.no", b"", libc::XATTR_REPLACE), Err(libc::ENODATA));
        assert_eq!(get(c"user.one", &mut []), Ok(5));
        assert_eq!(get(c"user.one", &mut [0; 4]), Err(libc::ERANGE));
        let mut room = [0; 100];
        assert_eq!(get(c"user.one", &mut room), Ok(5));
        assert_eq!(&room[..5], b"value");
        assert_eq!(get(c"user.two", &mut [0; 60_000]), Ok(60_000));
        assert_eq!(get(c"user.none", &mut room), Err(libc::ENODATA));
        // SAFETY: as above.
        let list = |room: &mut [u8]| {
            check(unsafe { libc::listxattr(path.as_ptr(), room.as_mut_ptr().cast(), room.len()) } as i64)
        };
        assert_eq!(list(&mut []), Ok(18));
        assert_eq!(list(&mut [0; 17]), Err(libc::ERANGE));
        assert_eq!(list(&mut room), Ok(18));
        assert_eq!(&room[..18], b"user.one\0user.two\0");
        // SAFETY: as above.
        let remove = || check(unsafe { libc::removexattr(path.as_ptr(), c"user.one".as_ptr()) }.into());
        assert_eq!((remove(), remove()), (Ok(0), Err(libc::ENODATA)));
    });
}

#[test]
fn statfs_shows_what_the_file_system_says() {
    both(|m| {
        // SAFETY: statvfs is plain old data, and the path is NUL-terminated.
        let stat = unsafe {
            let mut stat: libc::statvfs = std::mem::zeroed();
            check(libc::statvfs(c(m.root()).as_ptr(), &mut stat).into()).unwrap();
            stat
        };
        assert_eq!(stat.f_namemax, 255);
        assert_eq!(stat.f_blocks * stat.f_frsize, 1 << 50);
        assert!(stat.f_bavail > 0 && stat.f_bavail <= stat.f_blocks && stat.f_ffree < stat.f_files);
    });
}

#[repr(C, align(8))]
struct KernelHandle {
    bytes: u32,
    kind: i32,
    data: [u8; 128],
}

fn kernel_handle(path: &Path) -> KernelHandle {
    let mut handle = KernelHandle { bytes: 128, kind: 0, data: [0; 128] };
    let mut mount_id = 0i32;
    // SAFETY: the handle has the room it states, and the path is NUL-terminated.
    let done = unsafe {
        let (handle, mount_id) = (&raw mut handle, &raw mut mount_id);
        libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, c(path).as_ptr(), handle, mount_id, 0)
    };
    check(done).unwrap();
    handle
}

fn open_handle(root: &Path, handle: &mut KernelHandle) -> Result<File, i32> {
    let root = File::open(root).unwrap();
    // SAFETY: the handle is one that the kernel made, and a descriptor that is returned is ours.
    unsafe {
        let fd = libc::syscall(libc::SYS_open_by_handle_at, root.as_raw_fd(), &raw mut *handle, libc::O_RDONLY);
        check(fd).map(|fd| File::from_raw_fd(fd as i32))
    }
}

#[test]
fn files_are_opened_by_kernel_handle_even_on_a_later_mount() {
    both(|m| {
        fs::create_dir(m.path("d")).unwrap();
        fs::write(m.path("d/f"), "by handle").unwrap();
        fs::write(m.path("gone"), "").unwrap();
        let (mut file, mut dir) = (kernel_handle(&m.path("d/f")), kernel_handle(&m.path("d")));
        let mut gone = kernel_handle(&m.path("gone"));
        fs::remove_file(m.path("gone")).unwrap();
        let later = Mounted::of(m.fs.clone(), NOW, |_| {});
        for root in [m.root(), later.root()] {
            let mut text = String::new();
            open_handle(root, &mut file).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "by handle");
            assert!(open_handle(root, &mut dir).unwrap().metadata().unwrap().is_dir());
            assert_eq!(open_handle(root, &mut gone).map(|_| ()), Err(libc::ESTALE));
        }
    });
}

#[test]
fn name_that_another_client_made_meanwhile_is_opened_by_o_creat() {
    for manner in [NOW, LATER] {
        let m = Mounted::with(manner, |options| options.default_valid = Duration::from_secs(60));
        for name in ["f", "link"] {
            assert_eq!(errno(fs::metadata(m.path(name))), libc::ENOENT, "the kernel remembers that there is none");
        }
        let rw = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let (entry, handle) = now(m.fs.create(&Cred::ROOT, FileId::ROOT, b"f", 0o600, 0, rw));
        now(m.fs.write(&Cred::ROOT, entry.attr.id, handle, 0, b"theirs"));
        now(m.fs.symlink(&Cred::ROOT, FileId::ROOT, b"link", b"f"));
        assert_eq!(errno(File::create_new(m.path("f"))), libc::EEXIST);
        for name in ["f", "link"] {
            let mut text = String::new();
            read_write(&m.path(name)).read_to_string(&mut text).unwrap();
            assert_eq!(text, "theirs", "{name}");
        }
    }
}

fn now<T: std::fmt::Debug>(answer: Answer<T>) -> T {
    match answer {
        Answer::Now(result) => result.unwrap(),
        Answer::Later(_) => panic!("not an answer at once"),
    }
}
