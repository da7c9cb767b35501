//! A file system that a script under `crates/bench/peers` sets up, on one machine or on several.
//!
//! Invariant: when it is dropped, its processes, mounts and files are gone, also after an error, a
//! panic or an interrupt. It touches nothing outside its own folder, its mount point and its
//! network.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::command::{self, Interrupts};
use crate::mounts::{self, Mounted, drop_caches};
use crate::network::{Network, address};
use crate::process::{MARKER_VARIABLE, Processes, Usage};

/// The scripts, which travel inside this program.
const SOURCES: [(&str, &str); 10] = [
    ("ceph.sh", include_str!("../peers/ceph.sh")),
    ("common.sh", include_str!("../peers/common.sh")),
    ("fuse-passthrough.sh", include_str!("../peers/fuse-passthrough.sh")),
    ("fusept.c", include_str!("../peers/fusept.c")),
    ("gluster.sh", include_str!("../peers/gluster.sh")),
    ("moosefs.sh", include_str!("../peers/moosefs.sh")),
    ("nfs.sh", include_str!("../peers/nfs.sh")),
    ("sshfs.sh", include_str!("../peers/sshfs.sh")),
    ("starling.sh", include_str!("../peers/starling.sh")),
    ("umlshim.c", include_str!("../peers/umlshim.c")),
];

/// True if there is a script of this file name.
#[cfg(test)]
pub fn has_script(file: &str) -> bool {
    SOURCES.iter().any(|(name, _)| *name == file)
}

/// What all targets of a run share.
#[derive(Clone, Debug)]
pub struct Site {
    /// A folder of this run on the local disk.
    pub root: PathBuf,
    /// The program, if Starling is to be measured.
    pub starling: Option<PathBuf>,
    /// More arguments for `starling up`.
    pub starling_args: String,
    /// The file for the do-nothing file system's requests; normally it prints none.
    pub request_log: Option<PathBuf>,
}

impl Site {
    /// Writes the scripts into the run's folder.
    pub fn prepare(&self) -> Result<()> {
        let dir = self.sources();
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        for (name, text) in SOURCES {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
                .with_context(|| format!("make {} executable", path.display()))?;
        }
        Ok(())
    }

    /// The folder of the scripts.
    pub fn sources(&self) -> PathBuf {
        self.root.join("scripts")
    }
}

/// Longest time for one action of a script.
pub const ACTION_DEADLINE: Duration = Duration::from_secs(120);
/// Longest time for a clean-up action; force comes next.
const CLEAN_UP_DEADLINE: Duration = Duration::from_secs(20);
/// The machine on which a script is asked to stop all servers.
pub const FIRST: usize = 0;

/// A script, and the variant of it that is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script {
    /// The name of the file system's folder; unique within a run.
    pub name: &'static str,
    /// The script's file name.
    pub file: &'static str,
    /// One of the variants that the script knows.
    pub variant: &'static str,
}

impl Script {
    /// Calls the script for an action on a node. Fails if the script does.
    pub fn act(&self, action: &str, stage: &Stage<'_>, interrupts: Interrupts) -> Result<()> {
        let mut command = self.command(action, stage.site);
        command
            .env("VARIANT", self.variant)
            .env("ROOT", stage.root)
            .env("MNT", stage.mount_point)
            .env("HOSTS", stage.hosts.join(" "))
            .env("NODE", stage.node.to_string())
            .env("HOST", address(stage.node))
            .env(MARKER_VARIABLE, stage.marker);
        stage.network.enter(stage.node, &mut command)?;
        let deadline = match interrupts {
            Interrupts::Obey => ACTION_DEADLINE,
            Interrupts::Ignore => CLEAN_UP_DEADLINE,
        };
        let done = command::run(&mut command, deadline, interrupts).map(drop);
        done.with_context(|| format!("{action} {}", self.name))
    }

    /// The reason why the script cannot be used on this machine, if there is one.
    pub fn unavailable(&self, site: &Site) -> Option<String> {
        let mut command = self.command("check", site);
        command::run(&mut command, ACTION_DEADLINE, Interrupts::Obey).err().map(|error| error.to_string())
    }

    fn command(&self, action: &str, site: &Site) -> Command {
        let mut command = Command::new(site.sources().join(self.file));
        command.arg(action).current_dir("/").env("SOURCES", site.sources()).env("STARLING_ARGS", &site.starling_args);
        if let Some(starling) = &site.starling {
            command.env("STARLING", starling);
        }
        if let Some(log) = &site.request_log {
            command.env("FUSEPT_LOG", log);
        }
        command
    }
}

/// What a script is called with.
#[derive(Clone, Copy)]
pub struct Stage<'a> {
    /// The run.
    pub site: &'a Site,
    /// The file system's folder.
    pub root: &'a Path,
    /// The mount point.
    pub mount_point: &'a Path,
    /// The network of all nodes.
    pub network: &'a Network,
    /// The addresses of the nodes that serve.
    pub hosts: &'a [String],
    /// The node of the action.
    pub node: usize,
    /// Marks the processes that the script leaves behind.
    pub marker: &'a str,
}

/// A file system that is served by all nodes of a network and mounted on one of them.
pub struct Scripted {
    script: Script,
    site: Site,
    root: PathBuf,
    mount_point: PathBuf,
    network: Network,
    /// The node with the mount.
    client: usize,
    processes: Processes,
}

impl Scripted {
    /// Starts the servers, and mounts on the node `client`.
    pub fn set_up(script: Script, site: &Site, network: Network, client: usize) -> Result<Scripted> {
        let root = site.root.join(script.name);
        let mount_point = site.root.join(format!("{}-mount", script.name));
        for dir in [&root, &mount_point] {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let marker = format!("{}:{}", std::process::id(), root.display());
        let processes = Processes::new(marker, root.join("pids"));
        let mut scripted = Scripted { script, site: site.clone(), root, mount_point, network, client, processes };
        let nodes = scripted.network.addresses().len();
        let started = (0..nodes).try_for_each(|node| scripted.act("start", node, Interrupts::Obey));
        // Processes that a failed script left behind are ended too.
        scripted.processes.learn_named();
        started?;
        scripted.act("mount", client, Interrupts::Obey)?;
        Ok(scripted)
    }

    /// The folder to work in.
    pub fn dir(&self) -> &Path {
        &self.mount_point
    }

    /// Mounts again after a failure, by force if needed.
    pub fn revive(&mut self) -> Result<()> {
        let _ = self.act("unmount", self.client, Interrupts::Obey);
        mounts::force_unmount(&self.mount_point)?;
        self.act("mount", self.client, Interrupts::Obey)
    }

    fn act(&self, action: &str, node: usize, interrupts: Interrupts) -> Result<()> {
        let stage = Stage {
            site: &self.site,
            root: &self.root,
            mount_point: &self.mount_point,
            network: &self.network,
            hosts: &self.network.addresses(),
            node,
            marker: self.processes.marker(),
        };
        self.script.act(action, &stage, interrupts)
    }

    fn take_down(&mut self) -> Result<()> {
        // Gently if possible; force below does the rest.
        if mounts::is_mounted(&self.mount_point)? {
            let _ = self.act("unmount", self.client, Interrupts::Ignore);
        }
        mounts::force_unmount(&self.mount_point)?;
        let _ = self.act("stop", FIRST, Interrupts::Ignore);
        self.processes.end();
        if mounts::is_mounted(&self.mount_point)? {
            bail!("{} is still mounted", self.mount_point.display());
        }
        // Nothing is mounted below at this point, so this removes only files of the local disk.
        for dir in [&self.root, &self.mount_point] {
            fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))?;
        }
        Ok(())
    }
}

impl Mounted for Scripted {
    fn usage(&self) -> Usage {
        self.processes.usage()
    }

    fn reset_peak(&self) {
        self.processes.reset_peak();
    }

    /// Servers keep running, except those of Starling that live in the same process.
    fn make_cold(&mut self) -> Result<()> {
        self.act("unmount", self.client, Interrupts::Obey)?;
        drop_caches()?;
        self.act("mount", self.client, Interrupts::Obey)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        if let Err(error) = self.take_down() {
            eprintln!("bench: take down {}: {error:#}", self.script.name);
        }
    }
}
