//! The places that the study compares. Each is set up in its own way; all run the same workloads.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::command;
use crate::mounts::sync_all;
use crate::roam::nfs::Nfs;
use crate::roam::rig::Rig;
use crate::run::{arguments, work};
use crate::scripted::Site;
use crate::target::{Target, TargetKind};
use crate::work::Outcome;

/// A place, in the order of the tables' columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Who {
    Near,
    Away,
    Sshfs,
    Nfs,
    Core,
    Local,
}

impl Who {
    pub(super) const ALL: [Who; 6] = [Who::Near, Who::Away, Who::Sshfs, Who::Nfs, Who::Core, Who::Local];

    pub(super) fn title(self) -> &'static str {
        match self {
            Who::Near => "near home",
            Who::Away => "without a network",
            Who::Sshfs => "sshfs",
            Who::Nfs => "NFSv3",
            Who::Core => "core mount",
            Who::Local => "local disk",
        }
    }

    /// The title, in the genitive.
    pub(super) fn whose(self) -> &'static str {
        match self {
            Who::Near => "the mount's near home",
            Who::Away => "the mount's without a network",
            Who::Sshfs => "sshfs's",
            Who::Nfs => "NFSv3's",
            Who::Core => "the core mount's",
            Who::Local => "the local disk's",
        }
    }

    fn target(self) -> Option<TargetKind> {
        match self {
            Who::Near | Who::Away | Who::Nfs => None,
            Who::Sshfs => Some(TargetKind::Sshfs),
            Who::Core => Some(TargetKind::Starling),
            Who::Local => Some(TargetKind::Ext4),
        }
    }

    /// The reason why it cannot be measured on this machine, if there is one.
    pub(super) fn unavailable(self, site: &Site) -> Option<String> {
        match self {
            Who::Nfs => Nfs::check(site).err().map(|error| error.to_string()),
            who => Target::unavailable(who.target()?, site),
        }
    }
}

/// A place that is set up and mounted.
pub(super) struct Place {
    pub(super) who: Who,
    mounted: Mounted,
}

enum Mounted {
    Roaming(Rig),
    Guest(Nfs),
    Target(Target),
}

impl Place {
    pub(super) fn new(site: &Site, who: Who) -> Result<Place> {
        let mounted = match who {
            Who::Near => Mounted::Roaming(Rig::mounted(site, "near", &[], |_| Ok(()))?),
            Who::Away => Mounted::Roaming(away(site)?),
            Who::Nfs => Mounted::Guest(Nfs::new(site, "nfs")?),
            who => Mounted::Target(Target::set_up(who.target().context("this place is not a target")?, site)?),
        };
        Ok(Place { who, mounted })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        match &self.mounted {
            Mounted::Roaming(rig) => rig.path(name),
            Mounted::Guest(nfs) => nfs.path(name),
            Mounted::Target(target) => target.dir().join(name),
        }
    }

    /// Runs a workload where it is mounted.
    pub(super) fn work(&self, arguments: &[String]) -> Result<Outcome> {
        command::check_interrupt()?;
        match &self.mounted {
            Mounted::Guest(nfs) => nfs.work(arguments),
            Mounted::Roaming(_) | Mounted::Target(_) => work(arguments),
        }
    }

    /// Sends home and writes out what the step before left behind, so that the next one does not
    /// pay for it.
    pub(super) fn settle(&self) -> Result<()> {
        if let (Mounted::Roaming(rig), Who::Near) = (&self.mounted, self.who) {
            rig.send_all()?;
        }
        sync_all();
        Ok(())
    }
}

fn away(site: &Site) -> Result<Rig> {
    let rig = Rig::mounted(site, "away", &[], |_| Ok(()))?;
    // The mount learns the contents of its root while it is connected.
    work(&arguments("stat-files", &rig.path(""), &[]))?;
    rig.connect("off")?;
    Ok(rig)
}
