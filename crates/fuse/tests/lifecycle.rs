//! Mounting, unmounting, options, failures, and how many requests operations cost.

mod common;

use common::*;
use fuse::{MountError, MountOptions, UnmountError};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

fn is_mounted(path: &Path) -> bool {
    let path = path.to_str().unwrap();
    fs::read_to_string("/proc/self/mountinfo").unwrap().lines().any(|line| line.split(' ').nth(4) == Some(path))
}

fn run(command: &str, arguments: &[&str]) -> bool {
    Command::new(command).args(arguments).stderr(Stdio::null()).status().unwrap().success()
}

fn mount_error(at: &Path, change: impl FnOnce(&mut MountOptions)) -> MountError {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let mut options = MountOptions::new(runtime.handle().clone());
    change(&mut options);
    match fuse::mount(Arc::new(mem_fs()), at, options) {
        Ok(_) => panic!("mounted on {}", at.display()),
        Err(error) => error,
    }
}

/// The example program of this crate, which cargo builds together with the tests.
fn memfs() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().and_then(Path::parent).unwrap().join("examples/memfs");
    assert!(program.exists(), "{} is missing: run `cargo build -p fuse --examples`", program.display());
    program
}

/// A process that is killed when the test ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn dropping_a_mount_unmounts_it() {
    let m = Mounted::new(NOW);
    let path = m.root().to_path_buf();
    assert!(is_mounted(&path));
    drop(m);
    assert!(!is_mounted(&path));
}

#[test]
fn unmounting_writes_back_mapped_pages_and_empties_the_folder() {
    let mut m = Mounted::new(LATER);
    fs::write(m.path("f"), "x").unwrap();
    assert_eq!(m.mount.as_ref().unwrap().mountpoint(), fs::canonicalize(m.root()).unwrap());
    m.unmount();
    assert!(!is_mounted(m.root()));
    assert_eq!(fs::read_dir(m.root()).unwrap().count(), 0);
    assert!(m.fs.dump().iter().any(|e| e.path == b"/f"));
}

#[test]
fn open_files_are_served_after_unmounting() {
    let mut m = Mounted::new(NOW);
    let mut file = File::options().read(true).write(true).create_new(true).open(m.path("f")).unwrap();
    m.unmount();
    assert!(!is_mounted(m.root()));
    file.write_all(b"late").unwrap();
    let mut text = String::new();
    use std::io::Seek;
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "late");
}

/// A container that starts while there is a mount gets a copy of it. The unmount used to wait for
/// the container's end.
#[test]
fn regression_a_mount_of_which_another_namespace_has_a_copy_is_unmounted() {
    let mut m = Mounted::new(NOW);
    let mut container = Command::new("unshare");
    container
        .args(["--mount", "--propagation", "private", "sh", "-c", "echo && exec sleep 600"])
        .stdout(Stdio::piped());
    let mut container = Server(container.spawn().unwrap());
    let mut said = [0];
    container.0.stdout.take().unwrap().read_exact(&mut said).unwrap();
    fs::write(m.path("f"), "x").unwrap();
    m.unmount();
    assert!(!is_mounted(m.root()));
    assert!(container.0.try_wait().unwrap().is_none(), "it has the copy still");
    assert!(m.fs.dump().iter().any(|e| e.path == b"/f"));
}

#[test]
fn mount_that_someone_else_unmounts_is_closed() {
    let mut m = Mounted::new(NOW);
    let closed = m.mount.as_ref().unwrap().closed();
    assert!(run("umount", &[m.root().to_str().unwrap()]));
    m.mount.as_ref().unwrap().wait();
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(closed);
    m.unmount();
}

#[test]
fn only_its_own_mount_is_unmounted() {
    let mut m = Mounted::new(NOW);
    let path = m.root().to_str().unwrap().to_owned();
    assert!(run("mount", &["-t", "tmpfs", "over", &path]));
    let refused = m.mount.take().unwrap().unmount();
    let over_is_there = is_mounted(m.root());
    assert!(run("umount", &[&path]) && run("umount", &[&path]), "both are still there");
    assert!(matches!(refused, Err(UnmountError::Refused { .. })), "{refused:?}");
    assert!(over_is_there);
}

#[test]
fn dropping_a_mount_inside_a_runtime_does_not_block_it() {
    let mut m = Mounted::new(LATER);
    fs::write(m.path("f"), "x").unwrap();
    let mount = m.mount.take().unwrap();
    let closed = mount.closed();
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async move {
        drop(mount);
        closed.await;
    });
    assert!(!is_mounted(m.root()));
}

#[test]
fn mount_errors_say_what_to_do() {
    let dir = folder();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = mount_error(&dir.path().join("none"), |_| {});
    assert!(
        matches!(&error, MountError::MountpointMissing { .. }) && error.to_string().contains("mkdir -p"),
        "{error}"
    );
    assert!(matches!(mount_error(&file, |_| {}), MountError::NotADirectory { .. }));
    let error = mount_error(dir.path(), |options| options.fs_name = "a,allow_other".to_owned());
    assert!(matches!(error, MountError::BadName { .. }), "{error}");
    let error = mount_error(dir.path(), |options| options.max_write_bytes = u32::MAX);
    assert!(matches!(error, MountError::System { .. }), "{error}");
    assert!(!is_mounted(dir.path()), "a mount that failed half way is undone");
}

#[test]
fn dead_mount_is_taken_away() {
    let dir = folder();
    let mut server = Server(Command::new(memfs()).arg(dir.path()).spawn().unwrap());
    while !is_mounted(dir.path()) {
        assert!(server.0.try_wait().unwrap().is_none(), "the server ended");
        std::thread::yield_now();
    }
    drop(server);
    // A request that arrives before the last device is closed is aborted.
    let dead = errno(fs::read_dir(dir.path()));
    fuse::clear_dead(dir.path()).unwrap();
    assert!(matches!(dead, libc::ENOTCONN | libc::ECONNABORTED), "{dead}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Runs in its own mount namespace, where /dev/fuse is open to all and /etc/fuse.conf is empty.
#[test]
fn ordinary_user_mounts_through_fusermount3() {
    let dir = folder();
    let program = dir.path().join("memfs");
    fs::copy(memfs(), &program).unwrap();
    let script = r#"
        set -e
        cd "$1"
        mkdir device mnt && chown "$2:$2" mnt
        mount -t tmpfs -o dev,mode=755 device device
        mknod -m 666 device/fuse c 10 229
        mount --bind device/fuse /dev/fuse
        : > fuse.conf && chmod 644 fuse.conf && mount --bind fuse.conf /etc/fuse.conf
        exec setpriv --reuid="$2" --regid="$2" --clear-groups sh -e -c '
            if ./memfs --allow-other mnt 2> /dev/null; then echo "allow_other was allowed"; exit 1; fi
            ./memfs --allow-other mnt 2>&1 | grep -q user_allow_other
            ./memfs /usr 2>&1 | grep -q "choose a folder that you own"
            ./memfs mnt & server=$!
            trap "kill $server; wait $server" EXIT
            until grep -q " $1/mnt " /proc/self/mountinfo; do kill -0 $server; done
            echo hello > mnt/f; grep -q hello mnt/f; test "$(stat -c %u mnt/f)" = "$2"
            fusermount3 -u mnt
            wait $server
            trap - EXIT
            test ! -e mnt/f
        ' sh "$1" "$2"
    "#;
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(fs::canonicalize(dir.path()).unwrap())
        .arg(USER.to_string())
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
}

#[test]
fn panic_of_the_file_system_is_an_error_of_one_request() {
    let m = Mounted::new(NOW);
    for name in ["panic-now", "panic-later", "panic-now"] {
        assert_eq!(errno(fs::metadata(m.path(name))), libc::EIO, "{name}");
    }
    fs::write(m.path("f"), "still here").unwrap();
    assert_eq!(fs::read_to_string(m.path("f")).unwrap(), "still here");
}

#[test]
fn read_only_mount_refuses_changes() {
    let m = Mounted::with(NOW, |options| options.read_only = true);
    assert_eq!(errno(File::create(m.path("f"))), libc::EROFS);
    assert_eq!(fs::read_dir(m.root()).unwrap().count(), 0);
}

#[test]
fn attributes_of_the_mount_are_found_on_every_file_but_not_listed() {
    let m = Mounted::with(NOW, |options| {
        options.mount_xattrs.insert(b"user.starling.control".to_vec(), b"/run/x".to_vec());
    });
    fs::write(m.path("f"), "").unwrap();
    for path in [m.root().to_path_buf(), m.path("f")] {
        let mut room = [0u8; 64];
        // SAFETY: path and name are NUL-terminated, and the buffer has the length given.
        let got = unsafe {
            libc::getxattr(c(&path).as_ptr(), c"user.starling.control".as_ptr(), room.as_mut_ptr().cast(), room.len())
        };
        assert_eq!(check(got as i64), Ok(6));
        assert_eq!(&room[..6], b"/run/x");
        // SAFETY: as above.
        let listed = unsafe { libc::listxattr(c(&path).as_ptr(), room.as_mut_ptr().cast(), room.len()) };
        assert_eq!(check(listed as i64), Ok(0));
    }
}

#[test]
fn mount_shows_its_name_and_reads_ahead_as_asked() {
    let m = Mounted::with(NOW, |options| {
        options.fs_name = "some name".to_owned();
        options.read_ahead_bytes = 2 << 20;
    });
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(m.root().to_str().unwrap())).unwrap();
    assert!(line.starts_with("some\\040name ") && line.contains(" fuse.starling "), "{line}");
    let device = fs::metadata(m.root()).unwrap().dev();
    let bdi = format!("/sys/class/bdi/{}:{}/read_ahead_kb", libc::major(device), libc::minor(device));
    assert_eq!(fs::read_to_string(bdi).unwrap().trim(), "2048");
}

/// The decision file. The test below keeps its table of requests per operation true.
const DECISION: &str = include_str!("../../../docs/decisions/2026-11-21-fuser.md");

/// The requests that `f` causes, ordered by name, without those that the kernel sends later, at its
/// leisure.
fn requests(m: &Mounted, f: impl FnOnce()) -> String {
    let counts = || m.mount.as_ref().unwrap().requests();
    let before = counts();
    f();
    let differences = counts().into_iter().zip(before).map(|((name, after), (_, before))| (name, after - before));
    let mut caused: Vec<String> = differences
        .filter(|(name, n)| *n > 0 && !matches!(*name, "release" | "releasedir" | "forget"))
        .map(|(name, n)| if n == 1 { name.to_owned() } else { format!("{n} {name}") })
        .collect();
    caused.sort_by(|a, b| {
        a.trim_start_matches(char::is_numeric).trim().cmp(b.trim_start_matches(char::is_numeric).trim())
    });
    if caused.is_empty() { "none".to_owned() } else { caused.join(", ") }
}

/// The table row of an operation, if the decision file lacks it.
fn undocumented(m: &Mounted, operation: &str, f: &dyn Fn()) -> Option<String> {
    let line = format!("| {operation} | {} |", requests(m, f));
    (!DECISION.lines().any(|documented| documented == line)).then_some(line)
}

#[test]
fn requests_per_operation_are_as_documented() {
    let m = Mounted::new(NOW);
    let (small, big) = (vec![1; 1024], vec![2; 4 << 20]);
    let p = |name: &str| m.path(name);
    fs::create_dir(p("d")).unwrap();
    let mut missing = Vec::new();
    let mut row = |operation: &str, f: &dyn Fn()| {
        missing.extend(undocumented(&m, operation, f));
    };
    row("create, write 1 KiB, close", &|| fs::write(p("d/f"), &small).unwrap());
    row("open to truncate, write 1 KiB, close", &|| fs::write(p("d/f"), &small).unwrap());
    row("open, read what is not cached, close", &|| assert_eq!(fs::read(p("d/f")).unwrap().len(), 1024));
    row("open, read what is cached, close", &|| assert_eq!(fs::read(p("d/f")).unwrap().len(), 1024));
    row("stat", &|| assert_eq!(fs::metadata(p("d/f")).unwrap().len(), 1024));
    row("open to append, write, close", &|| {
        fs::OpenOptions::new().append(true).open(p("d/f")).unwrap().write_all(b"x").unwrap();
    });
    row("stat after a write", &|| assert_eq!(fs::metadata(p("d/f")).unwrap().len(), 1025));
    row("rename", &|| fs::rename(p("d/f"), p("d/g")).unwrap());
    row("chmod", &|| fs::set_permissions(p("d/g"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap());
    row("list names of a small directory", &|| assert_eq!(fs::read_dir(p("d")).unwrap().count(), 1));
    // After this the kernel asks for the access time, because the listing may have moved it.
    assert_eq!(fs::read_dir(p("d")).unwrap().count(), 1);
    row("list them again", &|| assert_eq!(fs::read_dir(p("d")).unwrap().count(), 1));
    row("unlink", &|| fs::remove_file(p("d/g")).unwrap());
    row("mkdir", &|| fs::create_dir(p("d/sub")).unwrap());
    row("rmdir", &|| fs::remove_dir(p("d/sub")).unwrap());
    row("stat a name that does not exist", &|| assert_eq!(errno(fs::metadata(p("d/none"))), libc::ENOENT));
    row("stat it again", &|| assert_eq!(errno(fs::metadata(p("d/none"))), libc::ENOENT));
    row("create, write 4 MiB in one call, close", &|| fs::write(p("big"), &big).unwrap());
    let by_kernel = Mounted::with(NOW, |options| (options.kernel_checks, options.open_dirs) = (true, false));
    let list = || assert_eq!(fs::read_dir(by_kernel.path("")).unwrap().count(), 0);
    list();
    list();
    missing.extend(undocumented(&by_kernel, "list them where the kernel opens directories, again", &list));
    assert!(missing.is_empty(), "not in the table of docs/decisions/2026-11-21-fuser.md:\n{}", missing.join("\n"));
}
