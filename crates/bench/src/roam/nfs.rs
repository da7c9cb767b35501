//! NFS version 3: a server in a network namespace, and Linux's own client in a guest. The guest is
//! User Mode Linux with this machine's files as its root. It mounts what the server exports; this
//! machine does not.
//!
//! Invariant: the server, the guest and their files are gone when it is dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use linkem::Namespace;

use crate::command::{self, Interrupts};
use crate::process::{MARKER_VARIABLE, Processes};
use crate::run::STEP_DEADLINE;
use crate::scripted::Site;
use crate::work::{Outcome, parse_outcome};

const SCRIPT: &str = "nfs.sh";
const SERVER: &str = "10.77.1.1";
const CLIENT: &str = "10.77.1.2";
/// Longest time for the script to start everything, and to stop it.
const DEADLINE: Duration = Duration::from_secs(180);

/// An NFS server, and a guest that mounts it.
pub struct Nfs {
    sources: PathBuf,
    root: PathBuf,
    mount_point: PathBuf,
    namespace: Namespace,
    processes: Processes,
}

impl Nfs {
    /// Fails if this machine cannot run it. The error says what is missing.
    pub fn check(site: &Site) -> Result<()> {
        let mut script = Command::new(site.sources().join(SCRIPT));
        script.arg("check").env("SOURCES", site.sources());
        command::run(&mut script, DEADLINE, Interrupts::Obey).map(drop)
    }

    /// Serves an empty folder, and makes the guest mount it.
    pub fn new(site: &Site, name: &str) -> Result<Nfs> {
        let [root, mount_point] = [name.to_owned(), format!("{name}-mount")].map(|name| site.root.join(name));
        for dir in [&root, &mount_point] {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let namespace = Namespace::new().context("make a network namespace")?;
        let processes = Processes::new(format!("{}-{name}", std::process::id()), root.join("pids"));
        let mut nfs = Nfs { sources: site.sources(), root, mount_point, namespace, processes };
        let started = nfs.act(&["start"], DEADLINE, Interrupts::Obey);
        // A script that failed may have left processes behind: they are known from here on.
        nfs.processes.learn_named();
        started?;
        Ok(nfs)
    }

    /// A path in the mount, as the guest sees it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mount_point.join(name)
    }

    /// Runs a workload in the guest, as [`crate::run::work`] does here.
    pub fn work(&self, arguments: &[String]) -> Result<Outcome> {
        let program = std::env::current_exe().context("find this program")?;
        let program = program.to_str().context("this program's path is no text")?;
        let words: Vec<&str> =
            ["work", program, "work"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
        parse_outcome(&self.act(&words, STEP_DEADLINE, Interrupts::Obey)?)
    }

    fn act(&self, words: &[&str], deadline: Duration, interrupts: Interrupts) -> Result<String> {
        let mut script = Command::new(self.sources.join(SCRIPT));
        script.args(words).current_dir("/").env("ROOT", &self.root).env("MNT", &self.mount_point);
        script.env("HOST", SERVER).env("GUEST", CLIENT).env("SOURCES", &self.sources);
        script.env(MARKER_VARIABLE, self.processes.marker());
        self.namespace.enter(&mut script);
        command::run(&mut script, deadline, interrupts)
    }

    fn clear(&mut self) -> Result<()> {
        let _ = self.act(&["stop"], DEADLINE, Interrupts::Ignore);
        self.processes.end();
        let remove = |dir: &Path| fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()));
        remove(&self.root).and_then(|()| remove(&self.mount_point))
    }
}

impl Drop for Nfs {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("bench: take down NFS: {error:#}");
        }
    }
}
