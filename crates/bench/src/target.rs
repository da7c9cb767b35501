//! A measured target: a folder of the local disk, or a file system that a script under
//! `crates/bench/peers` sets up.
//!
//! Invariant: when a target is dropped, its files are gone, also after an error, a panic or an
//! interrupt; so are processes and mounts ([`Scripted`]).

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::command::{self, Interrupts};
use crate::mounts::{Mounted, drop_caches};
use crate::network::Network;
use crate::process::Usage;
use crate::scripted::{ACTION_DEADLINE, Script, Scripted, Site};

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
        let script = |file, variant| Some(Script { name: self.name(), file, variant });
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

/// Makes ext4 put each folder below `dir` where there is most room, and not next to the others. To
/// make a file, ext4 looks at every nearby inode that was freed in the last minutes, so one
/// scenario's deletions would slow down the next. Other file systems have no such attribute, and
/// need none. (`crates/bench/peers/fuse-passthrough.sh` does the same.)
fn spread(dir: &Path) {
    // Without the attribute, results only vary more.
    let _ = command::run(Command::new("chattr").arg("+T").arg(dir), ACTION_DEADLINE, Interrupts::Obey);
}

/// A target that is set up and mounted.
pub struct Target {
    kind: TargetKind,
    place: Place,
}

enum Place {
    Local(LocalFolder),
    Scripted(Box<Scripted>),
}

/// A folder of the local disk. Its drop removes it.
struct LocalFolder(PathBuf);

impl Target {
    /// The reason why the target cannot be set up on this machine, if there is one.
    pub fn unavailable(kind: TargetKind, site: &Site) -> Option<String> {
        if TargetKind::STARLING.contains(&kind) && site.starling.is_none() {
            return Some("no program: give --starling PATH".to_owned());
        }
        kind.script()?.unavailable(site)
    }

    /// Starts the target's servers and mounts it.
    pub fn set_up(kind: TargetKind, site: &Site) -> Result<Target> {
        let place = match kind.script() {
            Some(script) => {
                let scripted = Scripted::set_up(script, site, Network::single()?, 0)?;
                Place::Scripted(Box::new(scripted))
            }
            None => {
                let folder = LocalFolder(site.root.join(kind.name()));
                fs::create_dir_all(&folder.0).with_context(|| format!("create {}", folder.0.display()))?;
                spread(&folder.0);
                Place::Local(folder)
            }
        };
        Ok(Target { kind, place })
    }

    /// The kind of target.
    pub fn kind(&self) -> TargetKind {
        self.kind
    }

    /// The folder to work in.
    pub fn dir(&self) -> &Path {
        match &self.place {
            Place::Local(folder) => &folder.0,
            Place::Scripted(scripted) => scripted.dir(),
        }
    }

    /// Mounts again after a failure, by force if needed.
    pub fn revive(&mut self) -> Result<()> {
        match &mut self.place {
            Place::Local(_) => Ok(()),
            Place::Scripted(scripted) => scripted.revive(),
        }
    }
}

impl Mounted for Target {
    fn usage(&self) -> Usage {
        match &self.place {
            Place::Local(_) => Usage::default(),
            Place::Scripted(scripted) => scripted.usage(),
        }
    }

    fn reset_peak(&self) {
        if let Place::Scripted(scripted) = &self.place {
            scripted.reset_peak();
        }
    }

    fn make_cold(&mut self) -> Result<()> {
        match &mut self.place {
            Place::Local(_) => drop_caches(),
            Place::Scripted(scripted) => scripted.make_cold(),
        }
    }
}

impl Drop for LocalFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("bench: remove {}: {error}", self.0.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::has_script;

    #[test]
    fn every_target_is_found_by_its_name_and_has_its_script() {
        for kind in TargetKind::ALL {
            assert_eq!(kind.name().parse::<TargetKind>(), Ok(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
            if let Some(script) = kind.script() {
                assert!(has_script(script.file), "{}", script.file);
            }
        }
        assert!("nfs".parse::<TargetKind>().unwrap_err().contains("moosefs"));
    }

    #[test]
    fn starling_needs_only_its_program_in_every_variant() {
        let dir = tempfile::tempdir().unwrap();
        let starling = Some(PathBuf::from("/bin/sh"));
        let site = Site { root: dir.path().to_owned(), starling, starling_args: String::new(), request_log: None };
        site.prepare().unwrap();
        for kind in TargetKind::STARLING {
            assert_eq!(Target::unavailable(kind, &site), None);
        }
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
