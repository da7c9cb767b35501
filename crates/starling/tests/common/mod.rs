//! Helpers for tests of the command. They end every process and remove every mount, also when a
//! test fails.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

#[path = "../../../fuse/tests/common/programs.rs"]
pub mod programs;

/// The command under test.
pub fn starling() -> Command {
    Command::new(env!("CARGO_BIN_EXE_starling"))
}

/// Runs a command that must succeed; its standard output.
pub fn run(command: &mut Command) -> String {
    let output = command.output().expect("start");
    assert!(output.status.success(), "{command:?} ended with {}: {}", output.status, text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Both outputs of a command.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a command that must be refused; the one line that it says.
pub fn refused(command: &mut Command) -> String {
    let output = command.output().expect("start");
    let said = text(&output);
    assert_eq!(output.status.code(), Some(2), "{command:?}: {said}");
    assert!(
        said.lines().count() == 1 && said.starts_with("starling: "),
        "{command:?} says in more than a line: {said}"
    );
    said.trim_end().to_string()
}

/// A mounted file system below a temporary folder.
pub struct Mounted {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Its data folder.
    pub data: PathBuf,
}

impl Mounted {
    /// Creates and mounts `NAME` on `NAME.mnt` with its data in `NAME.data`.
    pub fn up(below: &Path, name: &str, flags: &[&str]) -> Mounted {
        let fs = Mounted { mountpoint: below.join(format!("{name}.mnt")), data: below.join(format!("{name}.data")) };
        fs::create_dir(&fs.mountpoint).expect("mount point");
        fs.start(flags);
        fs
    }

    fn start(&self, flags: &[&str]) {
        let mut command = starling();
        command.arg("up").arg(&self.mountpoint).arg("--data").arg(&self.data).arg("--background").args(flags);
        run(&mut command);
    }

    /// Mounts it again.
    pub fn up_again(&mut self) {
        self.start(&[]);
    }

    /// Mounts it again with flags.
    pub fn up_with(&mut self, flags: &[&str]) {
        self.start(flags);
    }

    fn process(&self) -> Option<i32> {
        fs::read_to_string(self.data.join("lock")).ok()?.trim().parse().ok()
    }

    /// Sends a signal to its process.
    pub fn signal(&self, signal: i32) {
        let pid = self.process().expect("a process");
        // SAFETY: kill takes numbers only; the process is one that this test started.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "process {pid}");
    }

    /// kill -9, and takes the dead mount away.
    pub fn kill(&self) {
        if let Some(pid) = self.process() {
            // SAFETY: kill takes numbers only; the process is one that this test started.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            let deadline = Instant::now() + Duration::from_secs(10);
            while has_threads(pid) {
                assert!(Instant::now() < deadline, "process {pid} does not end");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        unmount(&self.mountpoint);
    }

    /// `starling down`.
    pub fn down(&self) {
        run(starling().arg("down").arg(&self.mountpoint));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let name = self.mountpoint.display().to_string();
        if mounts.lines().any(|line| line.split(' ').nth(1) == Some(&name)) {
            self.kill();
        }
    }
}

/// Takes a mount away, dead or in use. Root needs no fusermount3, which may be missing.
pub fn unmount(mountpoint: &Path) {
    let done = |command: &mut Command| command.arg(mountpoint).output().is_ok_and(|output| output.status.success());
    let _ = done(Command::new("fusermount3").arg("-uz")) || done(Command::new("umount").arg("-l"));
}

/// Whether a process is still running. Its first thread can end before others, and each thread
/// keeps the process's files open, so all must have ended. A zombie, whose parent does not wait for
/// it, has ended.
fn has_threads(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let is_zombie = stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'));
    threads > 1 || threads == 1 && !is_zombie
}

/// All files below a folder with their contents.
pub fn tree(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("list").map(|e| e.expect("entry")) {
            let path = entry.path();
            if entry.file_type().expect("type").is_dir() {
                folders.push(path);
            } else {
                found.insert(path.clone(), fs::read(&path).expect("read"));
            }
        }
    }
    found
}

/// A process that serves a store on a free port of the loopback interface; ended when dropped.
pub struct StoreProcess {
    child: Child,
    /// Its port.
    pub port: u16,
    folder: PathBuf,
    keys: Option<PathBuf>,
}

impl StoreProcess {
    /// Serves `folder`.
    pub fn start(folder: PathBuf, keys: Option<&Path>) -> StoreProcess {
        let (child, port) = Self::spawn(&folder, 0, keys);
        StoreProcess { child, port, folder, keys: keys.map(Path::to_owned) }
    }

    fn spawn(folder: &Path, port: u16, keys: Option<&Path>) -> (Child, u16) {
        let mut command = starling();
        command.arg("store").arg(folder).arg("--listen").arg(format!("127.0.0.1:{port}"));
        if let Some(keys) = keys {
            command.arg("--keys").arg(keys);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().expect("start a store");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("output")).read_line(&mut line).expect("a line");
        let port = line.trim().strip_prefix("store listening at 127.0.0.1:").and_then(|port| port.parse().ok());
        (child, port.unwrap_or_else(|| panic!("not listening: {line}")))
    }

    /// How `up --store` names it.
    pub fn place(&self) -> String {
        format!("{}://localhost:{}", if self.keys.is_some() { "tls" } else { "tcp" }, self.port)
    }

    /// kill -9.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends it as a service manager does; true if it ended well.
    pub fn terminate(&mut self) -> bool {
        // SAFETY: kill takes numbers only; the process is a child that has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        self.child.wait().expect("wait").success()
    }

    /// Starts it again, on its port.
    pub fn restart(&mut self) {
        (self.child, self.port) = Self::spawn(&self.folder, self.port, self.keys.as_deref());
    }
}

impl Drop for StoreProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
