//! A measured target: a folder of the local disk, or a file system that a script under
//! `crates/bench/peers` sets up.
//!
//! Invariant: when a target is dropped, its processes and mounts are gone, also after an error, a
//! panic or an interrupt. A target touches nothing outside its own folder, its mount point and its
//! network namespace.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use linkem::Namespace;
use serde::{Deserialize, Serialize};

use crate::command::{self, Interrupts};
use crate::mounts;
use crate::process::{MARKER_VARIABLE, Processes, Usage};

/// A file system that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetKind {
    /// A folder of the local disk.
    Ext4,
    /// The do-nothing FUSE file system on the local disk.
    FusePassthrough,
    /// The same with the kernel's write-back cache.
    FusePassthroughWriteback,
    /// Starling with all roles in one process.
    Starling,
    /// Starling with its stores in five processes, over loopback TCP.
    StarlingTcp,
    /// The same over TLS.
    StarlingTls,
    /// GlusterFS, disperse 4+1.
    #[serde(rename = "gluster")]
    GlusterDisperse,
    /// MooseFS, goal 2.
    Moosefs,
    /// sshfs to this machine.
    Sshfs,
}

/// A script and the variant of it that a target uses.
struct Script {
    file: &'static str,
    variant: &'static str,
}

impl TargetKind {
    /// All targets, in the order of the report's columns.
    pub const ALL: [TargetKind; 9] = [
        TargetKind::Ext4,
        TargetKind::FusePassthrough,
        TargetKind::FusePassthroughWriteback,
        TargetKind::Starling,
        TargetKind::StarlingTcp,
        TargetKind::StarlingTls,
        TargetKind::GlusterDisperse,
        TargetKind::Moosefs,
        TargetKind::Sshfs,
    ];

    /// The peers that survive the loss of a machine, as Starling does.
    pub const REDUNDANT_PEERS: [TargetKind; 2] = [TargetKind::GlusterDisperse, TargetKind::Moosefs];

    /// Both modes of the do-nothing file system.
    pub const DO_NOTHING: [TargetKind; 2] = [TargetKind::FusePassthrough, TargetKind::FusePassthroughWriteback];

    /// The ways to run Starling.
    pub const STARLING: [TargetKind; 3] = [TargetKind::Starling, TargetKind::StarlingTcp, TargetKind::StarlingTls];

    /// The ways that are judged by the target figures.
    pub const JUDGED: [TargetKind; 2] = [TargetKind::Starling, TargetKind::StarlingTcp];

    /// The name in tables.
    pub fn title(self) -> &'static str {
        match self {
            TargetKind::Ext4 => "ext4",
            TargetKind::FusePassthrough => "do-nothing FUSE",
            TargetKind::FusePassthroughWriteback => "do-nothing, write-back",
            TargetKind::Starling => "Starling",
            TargetKind::StarlingTcp => "Starling over TCP",
            TargetKind::StarlingTls => "Starling over TLS",
            TargetKind::GlusterDisperse => "GlusterFS 4+1",
            TargetKind::Moosefs => "MooseFS goal 2",
            TargetKind::Sshfs => "sshfs",
        }
    }

    /// The name on the command line and of the target's folder.
    pub fn name(self) -> &'static str {
        match self {
            TargetKind::Ext4 => "ext4",
            TargetKind::FusePassthrough => "fuse-passthrough",
            TargetKind::FusePassthroughWriteback => "fuse-passthrough-writeback",
            TargetKind::Starling => "starling",
            TargetKind::StarlingTcp => "starling-tcp",
            TargetKind::StarlingTls => "starling-tls",
            TargetKind::GlusterDisperse => "gluster",
            TargetKind::Moosefs => "moosefs",
            TargetKind::Sshfs => "sshfs",
        }
    }

    fn script(self) -> Option<Script> {
        let script = |file, variant| Some(Script { file, variant });
        match self {
            TargetKind::Ext4 => None,
            TargetKind::FusePassthrough => script("fuse-passthrough.sh", "plain"),
            TargetKind::FusePassthroughWriteback => script("fuse-passthrough.sh", "writeback"),
            TargetKind::Starling => script("starling.sh", "local"),
            TargetKind::StarlingTcp => script("starling.sh", "tcp"),
            TargetKind::StarlingTls => script("starling.sh", "tls"),
            TargetKind::GlusterDisperse => script("gluster.sh", "disperse"),
            TargetKind::Moosefs => script("moosefs.sh", "goal2"),
            TargetKind::Sshfs => script("sshfs.sh", ""),
        }
    }
}

impl fmt::Display for TargetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TargetKind {
    type Err = String;

    fn from_str(text: &str) -> Result<TargetKind, String> {
        TargetKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let known: Vec<&str> = TargetKind::ALL.iter().map(|kind| kind.name()).collect();
            format!("no target {text:?}; there are {}", known.join(", "))
        })
    }
}

/// The scripts, which travel inside this program.
const SOURCES: [(&str, &str); 9] = [
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
const ACTION_DEADLINE: Duration = Duration::from_secs(120);
/// Longest time for a clean-up action; force comes next.
const CLEAN_UP_DEADLINE: Duration = Duration::from_secs(20);

/// Makes ext4 put each folder below `dir` where there is most room, and not next to the others. To
/// make a file, ext4 looks at every nearby inode that was freed in the last minutes, so one
/// scenario's deletions would slow down the next. Other file systems have no such attribute, and
/// need none. (`crates/bench/peers/fuse-passthrough.sh` does the same.)
fn spread(dir: &Path) {
    // Without the attribute, results only vary more.
    let _ = command::run(Command::new("chattr").arg("+T").arg(dir), ACTION_DEADLINE, Interrupts::Obey);
}

/// An address that is up in every target's network namespace.
const HOST: &str = "10.77.0.1";

/// A network namespace for one target, so that its ports do not collide with the machine's daemons.
/// Peers that reject loopback addresses in 127/8 use [`HOST`].
fn namespace() -> Result<Namespace> {
    let namespace = Namespace::new().context("make a network namespace (as root?)")?;
    let mut ip = Command::new("ip");
    ip.args(["addr", "add", &format!("{HOST}/32"), "dev", "lo"]);
    namespace.enter(&mut ip);
    command::run(&mut ip, ACTION_DEADLINE, Interrupts::Obey)?;
    Ok(namespace)
}

/// A mounted file system that scenarios run on.
pub trait Mounted {
    /// The resources of its servers and clients so far. Zero for the local disk.
    fn usage(&self) -> Usage;

    /// Resets the peak of memory.
    fn reset_peak(&self);

    /// Empties the client's caches by mounting again, and the machine's page cache.
    fn make_cold(&mut self) -> Result<()>;
}

/// A target that is set up and mounted.
pub struct Target {
    kind: TargetKind,
    site: Site,
    root: PathBuf,
    mount_point: PathBuf,
    namespace: Option<Namespace>,
    processes: Processes,
}

impl Target {
    /// The reason why the target cannot be set up on this machine, if there is one.
    pub fn unavailable(kind: TargetKind, site: &Site) -> Option<String> {
        if TargetKind::STARLING.contains(&kind) && site.starling.is_none() {
            return Some("no program: give --starling PATH".to_owned());
        }
        let script = kind.script()?;
        let mut command = Command::new(site.sources().join(script.file));
        command.arg("check").env("SOURCES", site.sources());
        if let Some(starling) = &site.starling {
            command.env("STARLING", starling);
        }
        command::run(&mut command, ACTION_DEADLINE, Interrupts::Obey).err().map(|error| error.to_string())
    }

    /// Starts the target's servers and mounts it.
    pub fn set_up(kind: TargetKind, site: &Site) -> Result<Target> {
        let root = site.root.join(kind.name());
        let mount_point = match kind {
            TargetKind::Ext4 => root.clone(),
            _ => site.root.join(format!("{}-mount", kind.name())),
        };
        for dir in [&root, &mount_point] {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        if kind == TargetKind::Ext4 {
            spread(&root);
        }
        let marker = format!("{}:{}", std::process::id(), root.display());
        let mut target = Target {
            kind,
            site: site.clone(),
            processes: Processes::new(marker, root.join("pids")),
            root,
            mount_point,
            namespace: kind.script().map(|_| namespace()).transpose()?,
        };
        let started = target.act("start", Interrupts::Obey);
        // Processes that a failed script left behind are ended too.
        target.processes.learn_named();
        started?;
        target.act("mount", Interrupts::Obey)?;
        Ok(target)
    }

    /// The kind of target.
    pub fn kind(&self) -> TargetKind {
        self.kind
    }

    /// The folder to work in.
    pub fn dir(&self) -> &Path {
        &self.mount_point
    }

    /// Mounts again after a failure, by force if needed.
    pub fn revive(&mut self) -> Result<()> {
        let _ = self.act("unmount", Interrupts::Obey);
        if self.kind.script().is_some() {
            mounts::force_unmount(&self.mount_point)?;
        }
        self.act("mount", Interrupts::Obey)
    }

    fn act(&self, action: &str, interrupts: Interrupts) -> Result<()> {
        let Some(script) = self.kind.script() else { return Ok(()) };
        let mut command = Command::new(self.site.sources().join(script.file));
        command
            .arg(action)
            .current_dir("/")
            .env("ROOT", &self.root)
            .env("MNT", &self.mount_point)
            .env("HOST", HOST)
            .env("SOURCES", self.site.sources())
            .env("VARIANT", script.variant)
            .env(MARKER_VARIABLE, self.processes.marker())
            .env("STARLING_ARGS", &self.site.starling_args);
        if let Some(starling) = &self.site.starling {
            command.env("STARLING", starling);
        }
        if let Some(log) = &self.site.request_log {
            command.env("FUSEPT_LOG", log);
        }
        if let Some(namespace) = &self.namespace {
            namespace.enter(&mut command);
        }
        let deadline = match interrupts {
            Interrupts::Obey => ACTION_DEADLINE,
            Interrupts::Ignore => CLEAN_UP_DEADLINE,
        };
        command::run(&mut command, deadline, interrupts).map(drop).with_context(|| format!("{action} {}", self.kind))
    }

    fn take_down(&mut self) -> Result<()> {
        if self.kind.script().is_some() {
            // Gently if possible; force below does the rest.
            if mounts::is_mounted(&self.mount_point)? {
                let _ = self.act("unmount", Interrupts::Ignore);
            }
            mounts::force_unmount(&self.mount_point)?;
            let _ = self.act("stop", Interrupts::Ignore);
            self.processes.end();
            if mounts::is_mounted(&self.mount_point)? {
                bail!("{} is still mounted", self.mount_point.display());
            }
        }
        // Nothing is mounted below at this point, so this removes only files of the local disk.
        for dir in [&self.root, &self.mount_point] {
            if dir.exists() {
                fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))?;
            }
        }
        Ok(())
    }
}

impl Mounted for Target {
    fn usage(&self) -> Usage {
        self.processes.usage()
    }

    fn reset_peak(&self) {
        self.processes.reset_peak();
    }

    /// Servers keep running, except those of Starling that live in the same process.
    fn make_cold(&mut self) -> Result<()> {
        self.act("unmount", Interrupts::Obey)?;
        drop_caches()?;
        self.act("mount", Interrupts::Obey)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Err(error) = self.take_down() {
            eprintln!("bench: take down {}: {error:#}", self.kind);
        }
    }
}

/// Writes out and drops the page cache.
pub fn drop_caches() -> Result<()> {
    sync_all();
    fs::write("/proc/sys/vm/drop_caches", "3").context("drop the page cache (root?)")
}

/// sync(2): the kernel writes everything that it holds back.
pub fn sync_all() {
    // SAFETY: sync takes and returns nothing.
    unsafe { libc::sync() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_found_by_its_name_and_has_its_script() {
        for kind in TargetKind::ALL {
            assert_eq!(kind.name().parse::<TargetKind>(), Ok(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
            if let Some(script) = kind.script() {
                assert!(SOURCES.iter().any(|(name, _)| *name == script.file), "{}", script.file);
            }
        }
        assert!("nfs".parse::<TargetKind>().unwrap_err().contains("moosefs"));
    }

    #[test]
    fn local_folder_needs_nothing_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let site =
            Site { root: dir.path().to_owned(), starling: None, starling_args: String::new(), request_log: None };
        site.prepare().unwrap();
        assert_eq!(Target::unavailable(TargetKind::Ext4, &site), None);
        for kind in TargetKind::STARLING {
            assert!(Target::unavailable(kind, &site).unwrap().contains("--starling"));
        }
        let target = Target::set_up(TargetKind::Ext4, &site).unwrap();
        let folder = target.dir().to_owned();
        fs::write(folder.join("x"), "y").unwrap();
        assert_eq!(target.usage(), Usage::default());
        drop(target);
        assert!(!folder.exists());
    }
}
