//! Several users on one mount: permissions, groups, ACLs, set-id bits, and locks between processes.

mod common;

use common::programs::bring;
use common::*;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

/// Runs a check on mounts that every user may enter, in both manners of answering.
fn for_everyone(check: impl Fn(&Mounted)) {
    for manner in [NOW, LATER] {
        check(&Mounted::with(manner, |options| options.allow_other = true));
    }
}

fn put(path: &Path, owner: u32, group: u32, mode: u32) {
    fs::write(path, "contents").unwrap();
    set(path, owner, group, mode);
}

fn set(path: &Path, owner: u32, group: u32, mode: u32) {
    chown(path, Some(owner), Some(group)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn without_allow_other_nobody_else_enters() {
    let m = Mounted::new(NOW);
    put(&m.path("f"), USER, USER, 0o777);
    refused(USER, &[], Path::new("/"), &format!("cat {}", m.path("f").display()));
}

#[test]
fn permission_bits_are_checked_for_each_user() {
    for_everyone(|m| {
        put(&m.path("mine"), USER, USER, 0o600);
        allowed(USER, &[], m.root(), "cat mine && echo more >> mine");
        refused(OTHER, &[], m.root(), "cat mine");
        refused(OTHER, &[], m.root(), "chmod 777 mine");
        refused(USER, &[], m.root(), ": > new");
        set(m.root(), 0, 0, 0o1777);
        allowed(USER, &[], m.root(), ": > new; mkdir dir; ln -s new link; ln new hard; mv hard hard2");
        let new = fs::metadata(m.path("new")).unwrap();
        assert_eq!((new.uid(), new.gid()), (USER, USER));
        refused(OTHER, &[], m.root(), "rm -f new");
        refused(OTHER, &[], m.root(), "mv new newer");
        allowed(USER, &[], m.root(), "rm new");
    });
}

#[test]
fn cached_names_do_not_let_users_walk_through_closed_directories() {
    for_everyone(|m| {
        fs::create_dir(m.path("closed")).unwrap();
        put(&m.path("closed/f"), 0, 0, 0o666);
        fs::metadata(m.path("closed/f")).unwrap();
        set(&m.path("closed"), 0, 0, 0o700);
        refused(USER, &[], m.root(), "cat closed/f");
        refused(USER, &[], m.root(), "ls closed");
        refused(USER, &[], m.root(), "stat closed/.");
        set(&m.path("closed"), 0, 0, 0o711);
        allowed(USER, &[], m.root(), "cat closed/f");
        refused(USER, &[], m.root(), "ls closed");
    });
}

#[test]
fn supplementary_groups_give_and_take_rights() {
    for_everyone(|m| {
        put(&m.path("for-group"), 0, 777, 0o060);
        allowed(USER, &[777, 12], m.root(), "cat for-group");
        refused(USER, &[12], m.root(), "cat for-group");
        put(&m.path("not-for-group"), 0, 777, 0o604);
        refused(USER, &[777], m.root(), "cat not-for-group");
        allowed(USER, &[12], m.root(), "cat not-for-group");
        // Only a member may give a file to the group.
        set(m.root(), 0, 0, 0o777);
        allowed(USER, &[777], m.root(), ": > given && chgrp 777 given");
        refused(USER, &[12], m.root(), ": > kept && chgrp 777 kept");
        fs::create_dir(m.path("shared")).unwrap();
        set(&m.path("shared"), 0, 777, 0o2775);
        allowed(USER, &[777], m.root(), ": > shared/f && mkdir shared/d");
        assert_eq!(fs::metadata(m.path("shared/f")).unwrap().gid(), 777);
        assert_eq!(fs::metadata(m.path("shared/d")).unwrap().mode() & 0o7000, 0o2000);
    });
}

#[test]
fn programs_run_without_the_right_to_read_them() {
    for_everyone(|m| {
        fs::copy("/bin/true", m.path("true")).unwrap();
        fs::set_permissions(m.path("true"), Permissions::from_mode(0o711)).unwrap();
        allowed(USER, &[], m.root(), "./true");
        refused(USER, &[], m.root(), "cat true");
        fs::set_permissions(m.path("true"), Permissions::from_mode(0o744)).unwrap();
        refused(USER, &[], m.root(), "./true");
    });
}

#[test]
fn acls_are_kept_shown_and_obeyed() {
    bring("setfacl", "acl");
    for_everyone(|m| {
        put(&m.path("f"), 0, 0, 0o600);
        refused(USER, &[], m.root(), "cat f");
        allowed(0, &[], m.root(), &format!("setfacl -m u:{USER}:rw,g:777:r f"));
        allowed(USER, &[], m.root(), "cat f && echo more >> f");
        allowed(OTHER, &[777], m.root(), "cat f");
        refused(OTHER, &[777], m.root(), "echo more >> f");
        refused(OTHER, &[], m.root(), "cat f");
        let shown = allowed(0, &[], m.root(), "getfacl -n -c f");
        assert!(shown.contains(&format!("user:{USER}:rw-")) && shown.contains("group:777:r--"), "{shown}");
        assert_eq!(fs::metadata(m.path("f")).unwrap().mode() & 0o777, 0o660, "the group bits show the mask");
        fs::set_permissions(m.path("f"), Permissions::from_mode(0o600)).unwrap();
        refused(USER, &[], m.root(), "cat f");
        allowed(0, &[], m.root(), "setfacl -b f && getfacl -c f | grep -c : | grep -qx 3");

        fs::create_dir(m.path("d")).unwrap();
        allowed(
            0,
            &[],
            m.root(),
            &format!("setfacl -d -m u:{USER}:rwx,g::-,o::- d && chmod 755 d && umask 077 && : > d/f && mkdir d/sub"),
        );
        allowed(USER, &[], m.root(), "echo more >> d/f && : > d/sub/f");
        refused(OTHER, &[], m.root(), "cat d/f");
        let shown = allowed(0, &[], m.root(), "getfacl -n -c d/sub");
        assert!(shown.contains(&format!("default:user:{USER}:rwx")), "{shown}");
    });
}

#[test]
fn acls_work_for_a_user_alone_too() {
    bring("setfacl", "acl");
    let m = Mounted::new(NOW);
    put(&m.path("f"), 0, 0, 0o640);
    let shown = allowed(0, &[], m.root(), &format!("setfacl -m u:{USER}:rw f && getfacl -n -c f"));
    assert!(shown.contains(&format!("user:{USER}:rw-")), "{shown}");
}

#[test]
fn set_id_bits_are_lost_by_changes_of_others() {
    for_everyone(|m| {
        let mode = |name: &str| fs::metadata(m.path(name)).unwrap().mode() & 0o7777;
        for (name, script) in [("w", "echo x >> w"), ("t", ": > t"), ("s", "truncate -s 3 s")] {
            put(&m.path(name), 0, 0, 0o6777);
            assert_eq!(mode(name), 0o6777);
            allowed(USER, &[], m.root(), script);
            assert_eq!(mode(name), 0o777, "{script}");
        }
        put(&m.path("r"), 0, 0, 0o6777);
        fs::write(m.path("r"), "root may").unwrap();
        assert_eq!(mode("r"), 0o6777);
        put(&m.path("c"), USER, USER, 0o6755);
        allowed(USER, &[777], m.root(), "chgrp 777 c");
        assert_eq!(mode("c"), 0o755);
    });
}

/// Runs `f`, which must only make system calls, as a user without supplementary groups; true if it
/// returned no error.
fn as_user(f: impl FnOnce() -> i64) -> bool {
    let code = in_child(|| {
        // SAFETY: plain system calls; libc's functions would look for other threads, and a child
        // has none.
        let denied = unsafe {
            libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>())
                | libc::syscall(libc::SYS_setgid, USER)
                | libc::syscall(libc::SYS_setuid, USER)
        };
        if denied != 0 { 2 } else { u8::from(f() < 0) }
    });
    assert_ne!(code, 2, "cannot become a user");
    code == 0
}

/// With `FUSE_HANDLE_KILLPRIV_V2`, Linux leaves clearing set-id bits to the file system here too,
/// and says nothing about it in the request.
#[test]
fn regression_set_id_bits_are_lost_by_copies_and_allocations_of_others() {
    for_everyone(|m| {
        put(&m.path("f"), 0, 0, 0o6777);
        put(&m.path("from"), 0, 0, 0o644);
        let (file, from) = (open(&m.path("f")), File::open(m.path("from")).unwrap());
        let (fd, fd_from) = (file.as_raw_fd(), from.as_raw_fd());
        // SAFETY: the descriptors are open, and offsets of NULL are those of the files.
        let copy = || unsafe {
            let none = std::ptr::null_mut();
            libc::copy_file_range(fd_from, none, fd, none, 1, 0) as i64
        };
        // SAFETY: the descriptor is open.
        let allocate = |mode| move || unsafe { libc::fallocate(fd, mode, 0, 100).into() };
        let mode = || fs::metadata(m.path("f")).unwrap().mode() & 0o7777;
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let changes: [(&str, &dyn Fn() -> i64); 5] = [
            ("copy", &copy),
            ("keep size", &allocate(libc::FALLOC_FL_KEEP_SIZE)),
            ("allocate", &allocate(0)),
            ("hole", &allocate(hole)),
            ("zero", &allocate(libc::FALLOC_FL_ZERO_RANGE)),
        ];
        for (name, change) in changes {
            assert!(change() >= 0, "{name}");
            assert_eq!(mode(), 0o6777, "{name} by root");
            assert!(as_user(change), "{name}");
            assert_eq!(mode(), 0o777, "{name} by a user");
            set(&m.path("f"), 0, 0, 0o6777);
        }
    });
}

/// fcntl(2) with a lock of the whole file.
fn posix_lock(file: &File, command: i32, kind: i32) -> Result<libc::flock, i32> {
    let kind = kind as libc::c_short;
    let mut lock =
        libc::flock { l_type: kind, l_whence: libc::SEEK_SET as libc::c_short, l_start: 0, l_len: 0, l_pid: 0 };
    // SAFETY: the descriptor is open and the lock lives.
    check(unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) }.into()).map(|_| lock)
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
fn posix_locks_hold_between_processes_and_end_at_close() {
    let m = Mounted::new(NOW);
    put(&m.path("f"), 0, 0, 0o600);
    let (file, second) = (open(&m.path("f")), open(&m.path("f")));
    let try_lock = || in_child(|| posix_lock(&file, libc::F_SETLK, libc::F_WRLCK).map_or_else(|e| e as u8, |_| 0));
    posix_lock(&file, libc::F_SETLK, libc::F_WRLCK).unwrap();
    assert_eq!(i32::from(try_lock()), libc::EAGAIN);
    let us = std::process::id() as i32;
    let holder = in_child(|| posix_lock(&file, libc::F_GETLK, libc::F_RDLCK).map_or(1, |l| u8::from(l.l_pid != us)));
    assert_eq!(holder, 0, "F_GETLK names the holder");
    // POSIX: closing any descriptor of the file ends all of the process's locks on it.
    drop(second);
    assert_eq!(try_lock(), 0);
    assert_eq!(posix_lock(&file, libc::F_SETLK, libc::F_WRLCK).map(|_| ()), Ok(()), "the child's lock ended with it");
    assert_eq!(m.count("flush"), 0, "closing costs no request");
}

#[test]
fn process_that_waits_for_a_lock_can_be_killed() {
    let m = Mounted::new(NOW);
    put(&m.path("f"), 0, 0, 0o600);
    let file = open(&m.path("f"));
    posix_lock(&file, libc::F_SETLK, libc::F_WRLCK).unwrap();
    let waited = in_child(|| {
        // SAFETY: plain system calls; the alarm's default action kills.
        unsafe {
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
            libc::alarm(1);
        }
        posix_lock(&file, libc::F_SETLKW, libc::F_WRLCK).map_or(1, |_| 2)
    });
    assert_eq!(waited, 255, "killed while waiting");
}

#[test]
fn flock_holds_between_open_files_and_apart_from_posix_locks() {
    let m = Mounted::new(NOW);
    put(&m.path("f"), 0, 0, 0o600);
    let (file, second) = (open(&m.path("f")), open(&m.path("f")));
    // SAFETY: plain calls on open descriptors.
    let flock = |file: &File, op| check(unsafe { libc::flock(file.as_raw_fd(), op | libc::LOCK_NB) }.into());
    flock(&file, libc::LOCK_EX).unwrap();
    assert_eq!(flock(&second, libc::LOCK_SH), Err(libc::EWOULDBLOCK));
    assert_eq!(in_child(|| posix_lock(&second, libc::F_SETLK, libc::F_WRLCK).map_or(1, |_| 0)), 0);
    drop(file);
    // Children that other tests have just forked may hold a copy of the descriptor for a moment
    // longer.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while flock(&second, libc::LOCK_EX) != Ok(0) {
        assert!(std::time::Instant::now() < deadline, "the lock outlived its file");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn many_users_write_at_once() {
    for_everyone(|m| {
        set(m.root(), 0, 0, 0o1777);
        let script = "for i in $(seq 30); do mkdir -p $0 && echo $i > $0/$i && mv $0/$i $0/n$i; done";
        std::thread::scope(|scope| {
            for uid in [USER, OTHER, 0] {
                scope.spawn(move || allowed(uid, &[], m.root(), &script.replace("$0", &format!("dir-{uid}"))));
            }
        });
        for uid in [USER, OTHER, 0] {
            assert_eq!(fs::read_dir(m.path(&format!("dir-{uid}"))).unwrap().count(), 30);
        }
        let mut file = File::create(m.path("end")).unwrap();
        file.write_all(b"x").unwrap();
    });
}
