//! What the kernel forgets when it is told to, and that a process killed meanwhile dies.

mod common;

use common::*;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use types::FileId;
use vfs::fs::{Cred, FileSystem};

/// The environment variable that makes a process serve this folder.
const SERVE: &str = "STARLING_TEST_SERVE";
/// A process that has not died within this time never will.
const DEATH_TIME_MAX: Duration = Duration::from_secs(20);

/// Not a test, but the process that other tests of this file kill. It mounts, and makes the kernel
/// forget what each line of its input names. It answers neither removals nor reads, and writes to
/// its output which requests came.
#[test]
fn serve_if_asked_to() {
    let Some(folder) = std::env::var_os(SERVE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let mut options = fuse::MountOptions::new(runtime.handle().clone());
    options.others_change = true;
    let fs = mem_fs();
    let silent = Mannered::silent(fs.clone());
    let mount = fuse::mount(Arc::new(silent), Path::new(&folder), options).unwrap();
    println!("\nasked: mounted");
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "names" => mount.invalidator().names(&name("file")),
            name => {
                let answer = fs.lookup(&Cred::ROOT, FileId::ROOT, name.as_bytes());
                mount.invalidator().file(runtime.block_on(answer.into_future()).unwrap().attr.id);
            }
        }
        println!("\nasked: told");
    }
}

/// A process that serves a folder. When a test ends, its connection is aborted and the process is
/// killed.
struct Server {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    folder: TempDir,
}

impl Server {
    fn start() -> Server {
        let folder = folder();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "serve_if_asked_to", "--nocapture"]).env(SERVE, folder.path());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let mut server = Server { process, input, output, folder };
        server.expect("mounted");
        server
    }

    /// Waits until the process says that this request came.
    fn expect(&mut self, what: &str) {
        let mut line = String::new();
        while line.trim_end() != format!("asked: {what}") {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the server ended");
        }
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
        self.expect("told");
    }

    /// Kills the process; true if it dies, and `other`, which waits for one of its answers, dies
    /// too.
    fn dies_with(&mut self, other: &mut Child) -> bool {
        self.process.kill().unwrap();
        let since = Instant::now();
        while since.elapsed() < DEATH_TIME_MAX {
            if self.process.try_wait().unwrap().is_some() && other.try_wait().unwrap().is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let path = c(self.folder.path());
        for flags in [libc::MNT_FORCE, libc::MNT_DETACH] {
            // SAFETY: the pointer is to a NUL-terminated string that outlives the call.
            unsafe { libc::umount2(path.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) };
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The set of one name in the root.
fn name(name: &str) -> BTreeSet<(FileId, Vec<u8>)> {
    BTreeSet::from([(FileId::ROOT, name.as_bytes().to_vec())])
}

fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The kernel was told to forget one name, and takes the lock of the directory for that. A
/// program's unlink held the lock and waited for an answer. When the process was killed then, it
/// could not die, and the program hung.
#[test]
fn regression_process_killed_while_names_are_forgotten_beside_an_unlink_dies() {
    let mut server = Server::start();
    let file = server.folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let mut remove = quiet("rm").arg("-f").arg(&file).spawn().unwrap();
    server.expect("unlink");
    server.tell("names");
    let died = server.dies_with(&mut remove);
    drop(server);
    remove.wait().unwrap();
    assert!(died);
}

/// The same with a file, whose pages are locked while a read waits for an answer.
#[test]
fn regression_process_killed_while_a_file_is_forgotten_beside_a_read_dies() {
    let mut server = Server::start();
    let file = server.folder.path().join("file");
    fs::write(&file, "x".repeat(100_000)).unwrap();
    drop_pages(&file);
    let mut read = quiet("cat").arg(&file).spawn().unwrap();
    server.expect("read");
    server.tell("file");
    // The server's thread may not have reached the kernel yet; then the test proves nothing.
    std::thread::sleep(Duration::from_millis(200));
    let died = server.dies_with(&mut read);
    drop(server);
    read.wait().unwrap();
    assert!(died);
}

/// Makes the kernel drop the pages that it has cached of a file.
fn drop_pages(path: &Path) {
    use std::os::fd::AsRawFd;
    let file = fs::File::open(path).unwrap();
    // SAFETY: a plain call on an open descriptor.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

#[test]
fn names_are_looked_up_anew_once_after_they_were_forgotten() {
    let m = Mounted::with(NOW, |options| options.others_change = true);
    fs::write(m.path("file"), "x").unwrap();
    fs::metadata(m.path("file")).unwrap();
    let lookups = || {
        let before = m.count("lookup");
        assert_eq!(fs::read_to_string(m.path("file")).unwrap(), "x");
        m.count("lookup") - before
    };
    let kernel = m.mount.as_ref().unwrap().invalidator();
    if !m.forgets_names() {
        eprintln!("left out: the kernel cannot be told to forget names here");
        return;
    }
    assert_eq!(lookups(), 0, "it is cached");
    kernel.names(&name("file"));
    assert_eq!(lookups(), 1);
    assert_eq!(lookups(), 0, "and is again");
}

#[test]
fn what_others_name_is_listed_after_names_were_forgotten() {
    let m = Mounted::with(NOW, |options| options.others_change = true);
    let names = || {
        let mut names: Vec<_> = fs::read_dir(m.root()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    for _ in 0..2 {
        assert!(names().is_empty());
    }
    let made = m.fs.mkdir(&Cred::ROOT, FileId::ROOT, b"theirs", 0o755, 0);
    runtime().block_on(made.into_future()).unwrap();
    m.mount.as_ref().unwrap().invalidator().names(&name("theirs"));
    // A thread of its own forgets the listing.
    let since = Instant::now();
    while names() != ["theirs"] {
        assert!(since.elapsed() < DEATH_TIME_MAX, "the listing stays");
        std::thread::yield_now();
    }
}

/// A new epoch detaches file systems that are mounted below the mount. So while there are any, each
/// name is forgotten by itself.
#[test]
fn what_is_in_use_stays_when_names_are_forgotten() {
    let m = Mounted::with(NOW, |options| options.others_change = true);
    let path = |name: &str| fs::canonicalize(m.root()).unwrap().join(name);
    fs::create_dir(m.path("below")).unwrap();
    fs::copy("/bin/sleep", m.path("sleep")).unwrap();
    let below = m.path("below");
    let mount = |arguments: &[&str]| Command::new("mount").args(arguments).arg(&below).status().unwrap().success();
    assert!(mount(&["-t", "tmpfs", "nested"]));
    fs::write(m.path("below/file"), "nested").unwrap();
    let mut sleeper = quiet(m.path("sleep").to_str().unwrap()).arg("1000").current_dir(m.root()).spawn().unwrap();
    let link = |name: &str| fs::read_link(format!("/proc/{}/{name}", sleeper.id())).unwrap();
    let kernel = m.mount.as_ref().unwrap().invalidator();
    let mut seen = Vec::new();
    for _ in 0..2 {
        kernel.names(&name("other"));
        seen.push((fs::read_to_string(m.path("below/file")).ok(), fs::read_dir(m.root()).unwrap().count()));
        fs::metadata(m.path("sleep")).unwrap();
        seen.push((Some(link("exe").display().to_string()), 2));
    }
    let cwd = link("cwd");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let unmounted = Command::new("umount").arg(&below).status().unwrap().success();
    let nested = (Some("nested".to_owned()), 2);
    let exe = (Some(path("sleep").display().to_string()), 2);
    assert_eq!(seen, [nested.clone(), exe.clone(), nested, exe]);
    assert_eq!(cwd, fs::canonicalize(m.root()).unwrap());
    assert!(unmounted);
}

/// An epoch makes the kernel look up a running program again, and show its link as deleted. The
/// program runs on, and its folder keeps its name.
#[test]
fn programs_and_folders_in_use_stay_usable_after_an_epoch() {
    let m = Mounted::with(NOW, |options| options.others_change = true);
    let root = fs::canonicalize(m.root()).unwrap();
    fs::create_dir(root.join("folder")).unwrap();
    fs::copy("/bin/sleep", root.join("folder/sleep")).unwrap();
    let mut sleeper = quiet("./sleep").arg("1000").current_dir(root.join("folder")).spawn().unwrap();
    m.mount.as_ref().unwrap().invalidator().names(&name("other"));
    fs::metadata(root.join("folder/sleep")).unwrap();
    let process = Path::new("/proc").join(sleeper.id().to_string());
    let (folder, program) = (fs::read_link(process.join("cwd")), fs::read(process.join("exe")));
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(folder.unwrap(), root.join("folder"));
    assert_eq!(program.unwrap(), fs::read("/bin/sleep").unwrap());
}
