//! Homes and roaming mounts. They end every process and remove every mount, also when a test fails.

#![allow(dead_code)]

use crate::common::{run, starling, tree, unmount};
use linkem::{Relay, Settings, Shape};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Starts a process and waits for a line of its standard output that begins with `ready`; gives the
/// rest of it.
fn start(command: &mut Command, ready: &str) -> (Child, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("start");
    let mut lines = BufReader::new(child.stdout.take().expect("output")).lines();
    let line = lines.next().expect("a line").expect("a line");
    // What it says later goes nowhere, but it may say it.
    std::thread::spawn(move || lines.count());
    let rest = line.strip_prefix(ready).unwrap_or_else(|| panic!("{line:?} is not {ready:?}"));
    (child, rest.trim().to_string())
}

fn end(child: &mut Child, signal: i32) {
    // SAFETY: kill takes numbers only; this test started the process, and has not waited for it.
    unsafe { libc::kill(child.id() as i32, signal) };
    let _ = child.wait();
}

/// Longest wait for what is to happen.
pub const LONG: Duration = Duration::from_secs(120);

/// Text that no compression makes much shorter, always the same for the same words.
pub fn noise(words: &str, len: usize) -> String {
    let mut state = words.bytes().fold(1u64, |state, byte| state.wrapping_mul(0x100_0193) ^ u64::from(byte));
    let mut letter = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'0' + (state >> 33) as u8 % 64)
    };
    (0..len).map(|_| letter()).collect()
}

/// Reads all of a tree, so that it is cached.
pub fn warm(root: &Path) {
    tree(root);
}

/// A home that serves a folder.
pub struct Home {
    pub exported: PathBuf,
    /// Further volumes.
    more: Vec<PathBuf>,
    pub data: PathBuf,
    process: Option<Child>,
    pub address: SocketAddr,
    /// The user that invitations are for, if not the user who runs the home.
    pub user: Option<&'static str>,
}

impl Home {
    /// Serves `src` below a folder, which is made if it is not there.
    pub fn serve(below: &Path) -> Home {
        Home::serve_more(below, &[])
    }

    /// Serves other folders, too.
    pub fn serve_more(below: &Path, more: &[&str]) -> Home {
        let (exported, data) = (below.join("src"), below.join("home"));
        let more: Vec<PathBuf> = more.iter().map(|name| below.join(name)).collect();
        [&exported].into_iter().chain(&more).for_each(|folder| fs::create_dir_all(folder).expect("folder"));
        let mut home = Home { exported, more, data, process: None, address: ([127, 0, 0, 1], 0).into(), user: None };
        home.start();
        home
    }

    /// Serves it at the address where it was before.
    pub fn start(&mut self) {
        let mut command = starling();
        command.arg("home").arg("serve");
        command.args([&self.exported].into_iter().chain(&self.more).map(|folder| format!("dir:{}", folder.display())));
        command.arg("--data").arg(&self.data).arg("--listen").arg(self.address.to_string());
        let (process, address) = start(&mut command, "home listening at");
        self.address = address.parse().expect("an address");
        self.process = Some(process);
    }

    /// Ends it, in good order or at once.
    pub fn stop(&mut self, signal: i32) {
        if let Some(mut process) = self.process.take() {
            end(&mut process, signal);
        }
    }

    /// An invitation by way of an address.
    pub fn invite(&self, address: SocketAddr) -> String {
        let mut invite = starling();
        invite.arg("invite").arg("--data").arg(&self.data).arg("--address").arg(address.to_string());
        let invited = run(invite.args(self.user.iter().flat_map(|user| ["--user", user])));
        invited.lines().last().expect("an invitation").to_string()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.stop(libc::SIGKILL);
    }
}

/// A mount that roams, and its link to the home.
pub struct Laptop {
    pub mountpoint: PathBuf,
    pub cache: PathBuf,
    pub link: Relay,
    process: Option<Child>,
    environment: Vec<(String, PathBuf)>,
}

impl Laptop {
    /// Mounts NAME below a folder, over a link of its own.
    pub fn mount(home: &Home, below: &Path, name: &str) -> Laptop {
        Laptop::mount_as(home, below, name, &[])
    }

    /// A mount that behaves as options say.
    pub fn mount_as(home: &Home, below: &Path, name: &str, options: &[&str]) -> Laptop {
        Laptop::mount_in(home, below, name, options, &[])
    }

    /// A mount whose process has these environment variables.
    pub fn mount_in(home: &Home, below: &Path, name: &str, options: &[&str], environment: &[(&str, &Path)]) -> Laptop {
        let link = Relay::start(([127, 0, 0, 1], 0).into(), home.address, Settings::both(Shape::default()));
        let link = link.expect("a link");
        let (mountpoint, cache) = (below.join(name), below.join(format!("{name}.cache")));
        let environment = environment.iter().map(|(name, value)| (name.to_string(), value.to_path_buf())).collect();
        let mut laptop = Laptop { mountpoint, cache, link, process: None, environment };
        let invitation = home.invite(laptop.link.address());
        laptop.start(&[&[&invitation[..]], options].concat());
        laptop
    }

    fn start(&mut self, what: &[&str]) {
        let mut command = starling();
        command.arg("mount").args(what).arg(&self.mountpoint).arg("--cache").arg(&self.cache);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        self.process = Some(start(&mut command, "mounted at").0);
    }

    /// Mounts what is cached again, by another invitation.
    pub fn mount_by(&mut self, invitation: &str) {
        self.start(&[invitation]);
    }

    /// Mounts what is cached again.
    pub fn mount_again(&mut self) {
        self.start(&[]);
    }

    /// Ends its process at once. What is there of the mount answers ENOTCONN.
    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
    }

    fn signal(&mut self, signal: i32) {
        if let Some(mut process) = self.process.take() {
            end(&mut process, signal);
        }
    }

    /// Ends it, in good order or at once.
    pub fn stop(&mut self, signal: i32) {
        self.signal(signal);
        unmount(&self.mountpoint);
    }

    /// The number of the process that serves it.
    pub fn process(&self) -> u32 {
        self.process.as_ref().expect("it is mounted").id()
    }

    /// What a command says of it as JSON.
    pub fn ask(&self, command: &[&str]) -> Value {
        let said = run(starling().args(command).arg(&self.mountpoint).arg("--json"));
        serde_json::from_str(&said).expect("JSON")
    }

    /// What its link is thought to be.
    pub fn state(&self) -> String {
        self.ask(&["status"])["state"].as_str().expect("a state").to_string()
    }

    /// Waits until everything is home.
    pub fn wait_until_home(&self, time: Duration) {
        self.wait(time, "everything is home", |laptop| laptop.ask(&["pending"]) == Value::Array(Vec::new()));
    }

    pub fn wait(&self, time: Duration, what: &str, mut done: impl FnMut(&Laptop) -> bool) {
        let deadline = Instant::now() + time;
        while !done(self) {
            assert!(Instant::now() < deadline, "{what}: {}, {}", self.ask(&["status"]), self.ask(&["pending"]));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Laptop {
    fn drop(&mut self) {
        self.stop(libc::SIGKILL);
    }
}

/// Two mounts of one folder.
pub struct Two {
    pub home: Home,
    pub mounts: [Laptop; 2],
    // Removed last.
    _below: TempDir,
}

impl Two {
    /// Mounts that behave as options say.
    pub fn mount_as(options: &[&str]) -> Two {
        let below = tempfile::tempdir().expect("folder");
        let home = Home::serve(below.path());
        let mounts = ["one", "two"].map(|name| Laptop::mount_as(&home, below.path(), name, options));
        Two { home, mounts, _below: below }
    }
}
