//! sshfs over the same kind of link: its server in one network namespace, its clients in another,
//! joined by an emulated link.
//!
//! Invariant: when it is dropped, its processes, mounts and files are gone.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use linkem::{Device, End, Namespace, Settings, Shape, Tun};

use crate::command::{self, Interrupts, check_interrupt};
use crate::mounts;
use crate::process::{MARKER_VARIABLE, Processes};
use crate::scripted::Site;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// The port of the script's server.
const PORT: u16 = 2299;
/// Longest time for the script, and for a mount.
const DEADLINE: Duration = Duration::from_secs(120);

/// An sshfs server, and clients beyond an emulated link.
pub struct Sshfs {
    script: PathBuf,
    sources: PathBuf,
    root: PathBuf,
    mount_point: PathBuf,
    server: Namespace,
    client: Namespace,
    processes: Processes,
    _link: Tun,
}

impl Sshfs {
    /// Fills a folder, serves it, and mounts it beyond the link.
    pub fn new(site: &Site, name: &str, shape: Shape, fill: impl FnOnce(&Path) -> Result<()>) -> Result<Sshfs> {
        let sshfs = Sshfs::serve(site, name, shape, fill)?;
        sshfs.act("mount", &sshfs.client, Interrupts::Obey)?;
        Ok(sshfs)
    }

    /// The same, not mounted.
    pub fn serve(site: &Site, name: &str, shape: Shape, fill: impl FnOnce(&Path) -> Result<()>) -> Result<Sshfs> {
        let root = site.root.join(name);
        let mount_point = site.root.join(format!("{name}-mount"));
        for dir in [&root, &mount_point] {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let (server, client) = (Namespace::new(), Namespace::new());
        let (server, client) = (server.context("make a network namespace")?, client.context("make another")?);
        let ends = [(&server, SERVER), (&client, CLIENT)].map(|(namespace, address)| End { namespace, address });
        let link = Tun::join(ends[0], ends[1], &Device::default(), Settings::both(shape))?;
        let marker = format!("{}-{name}", std::process::id());
        let processes = Processes::new(marker, root.join("pids"));
        let sources = site.sources();
        let script = sources.join("sshfs.sh");
        let mut sshfs = Sshfs { script, sources, root, mount_point, server, client, processes, _link: link };
        sshfs.act("check", &sshfs.server, Interrupts::Obey)?;
        let started = sshfs.act("start", &sshfs.server, Interrupts::Obey);
        // Processes that a failed script left behind are ended too.
        sshfs.processes.learn_named();
        started?;
        fill(&sshfs.root.join("export"))?;
        Ok(sshfs)
    }

    /// A path in the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mount_point.join(name)
    }

    /// Mounts it once more, by a client without caches: each look at a file asks the server for its
    /// attributes.
    pub fn polling(self: &Arc<Self>, client: usize) -> Result<Polling> {
        let [mount_point, log] =
            ["mount", "log"].map(|what| self.root.with_extension(format!("client-{client}-{what}")));
        fs::create_dir_all(&mount_point).with_context(|| format!("create {}", mount_point.display()))?;
        let output = fs::File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let root = self.root.display();
        let options = format!(
            "IdentityFile={root}/client-key,port={PORT},StrictHostKeyChecking=no,UserKnownHostsFile={root}/known,\
             dir_cache=no,attr_timeout=0,entry_timeout=0,negative_timeout=0,sshfs_debug"
        );
        let mut sshfs = Command::new("sshfs");
        sshfs.args(["-f", "-o", &options]).arg(format!("root@{SERVER}:{root}/export")).arg(&mount_point);
        sshfs.env(MARKER_VARIABLE, self.processes.marker()).process_group(0).stdin(Stdio::null());
        sshfs.stdout(output.try_clone().context("duplicate a descriptor")?).stderr(output);
        self.client.enter(&mut sshfs);
        let process = sshfs.spawn().context("start sshfs")?;
        let polling = Polling { mount_point, log, process, _server: self.clone() };
        let until = Instant::now() + DEADLINE;
        while !mounts::is_mounted(&polling.mount_point)? {
            check_interrupt()?;
            ensure!(Instant::now() < until, "sshfs has not mounted after {} s", DEADLINE.as_secs());
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(polling)
    }

    fn act(&self, action: &str, namespace: &Namespace, interrupts: Interrupts) -> Result<()> {
        let mut script = Command::new(&self.script);
        script.arg(action).current_dir("/").env("ROOT", &self.root).env("MNT", &self.mount_point);
        script.env("HOST", SERVER.to_string()).env("SOURCES", &self.sources).env("VARIANT", "");
        script.env(MARKER_VARIABLE, self.processes.marker());
        namespace.enter(&mut script);
        command::run(&mut script, DEADLINE, interrupts).map(drop).with_context(|| format!("{action} sshfs"))
    }

    fn clear(&mut self) -> Result<()> {
        mounts::force_unmount(&self.mount_point)?;
        let _ = self.act("stop", &self.server, Interrupts::Ignore);
        self.processes.end();
        ensure!(!mounts::is_mounted(&self.mount_point)?, "{} is still mounted", self.mount_point.display());
        for dir in [&self.root, &self.mount_point] {
            fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))?;
        }
        Ok(())
    }
}

/// A client that caches nothing.
pub struct Polling {
    mount_point: PathBuf,
    log: PathBuf,
    process: Child,
    _server: Arc<Sshfs>,
}

impl Polling {
    /// A path in the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mount_point.join(name)
    }

    /// Number of its requests for attributes.
    pub fn attribute_calls(&self) -> Result<u64> {
        let log = fs::read_to_string(&self.log).with_context(|| format!("read {}", self.log.display()))?;
        Ok(log.lines().filter(|line| asks_for_attributes(line)).count() as u64)
    }

    fn clear(&mut self) -> Result<()> {
        mounts::force_unmount(&self.mount_point)?;
        self.process.kill().and_then(|()| self.process.wait()).context("end sshfs")?;
        fs::remove_dir(&self.mount_point).with_context(|| format!("remove {}", self.mount_point.display()))?;
        fs::remove_file(&self.log).with_context(|| format!("remove {}", self.log.display()))
    }
}

/// A line of sshfs's log, such as `[00007] LSTAT`.
fn asks_for_attributes(line: &str) -> bool {
    let mut words = line.split_whitespace();
    words.next().is_some_and(|word| word.starts_with('['))
        && words.next().is_some_and(|word| ["STAT", "LSTAT", "FSTAT"].contains(&word))
}

impl Drop for Polling {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("bench: take down a client of sshfs: {error:#}");
        }
    }
}

impl Drop for Sshfs {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("bench: take down sshfs: {error:#}");
        }
    }
}
