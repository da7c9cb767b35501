//! sshfs over the same kind of link: its server in one network namespace, its client in another, joined by an emulated
//! link.
//!
//! Invariant: its processes, its mount and its files are gone when it is dropped.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use linkem::{Device, End, Namespace, Settings, Shape, Tun};

use crate::command::{self, Interrupts};
use crate::mounts;
use crate::process::{MARKER_VARIABLE, Processes};
use crate::target::Site;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// How long the script may take.
const DEADLINE: Duration = Duration::from_secs(120);

/// See the module's header.
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
        sshfs.act("start", &sshfs.server, Interrupts::Obey)?;
        sshfs.processes.learn_named();
        fill(&sshfs.root.join("export"))?;
        sshfs.act("mount", &sshfs.client, Interrupts::Obey)?;
        Ok(sshfs)
    }

    /// A path in the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mount_point.join(name)
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

impl Drop for Sshfs {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("bench: take down sshfs: {error:#}");
        }
    }
}
