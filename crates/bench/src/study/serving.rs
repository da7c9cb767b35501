//! Starling in a process that a study starts, kills and inspects.
//!
//! Unlike a [`crate::target::Target`], which goes through a script, this owns the serving process
//! itself. So it takes the time until the mount from the process's own first line, and can kill and
//! measure it. Invariant: when it is dropped, process, mount and files are gone.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::{self, Interrupts};
use crate::daemon::{DEADLINE, Daemon};
use crate::scripted::Site;
use crate::{mounts, process};

/// The first words of the serving process.
const READY: &str = "mounted at";

/// A file system of its own, which is served or not.
pub struct Serving {
    program: PathBuf,
    root: PathBuf,
    mount_point: PathBuf,
    arguments: Vec<String>,
    daemon: Option<Daemon>,
}

impl Serving {
    /// Makes the folders and starts nothing. `arguments` are for `starling up`, before the site's
    /// own.
    pub fn new(site: &Site, name: &str, arguments: &[&str]) -> Result<Serving> {
        let root = site.root.join(name);
        let mount_point = root.join("mount");
        fs::create_dir_all(&mount_point).with_context(|| format!("create {}", mount_point.display()))?;
        let more = site.starling_args.split_whitespace();
        Ok(Serving {
            program: site.starling.clone().context("no program: give --starling PATH")?,
            root,
            mount_point,
            arguments: arguments.iter().copied().chain(more).map(str::to_owned).collect(),
            daemon: None,
        })
    }

    /// A path in the mounted file system.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mount_point.join(name)
    }

    /// Starts the process, and returns the time until it has mounted.
    pub fn up(&mut self) -> Result<Duration> {
        ensure!(self.daemon.is_none(), "it already serves");
        let mut command = Command::new(&self.program);
        command.arg("up").arg(&self.mount_point).arg("--data").arg(self.root.join("data")).args(&self.arguments);
        let daemon = Daemon::start(&mut command, &self.root.join("up.log"), READY)?;
        Ok(self.daemon.insert(daemon).started_in())
    }

    /// Commits everything and ends the process.
    pub fn down(&mut self) -> Result<()> {
        self.starling("down", &[])?;
        self.daemon.take().context("nothing serves")?.ended().context("starling, after `down`")
    }

    /// Kills the process as a crash would: data that it holds back are not written.
    pub fn kill(&mut self) -> Result<()> {
        self.daemon.take().map_or(Ok(()), Daemon::kill)?;
        mounts::force_unmount(&self.mount_point)
    }

    /// `down`, the machine's caches dropped, and `up`.
    pub fn remount_cold(&mut self) -> Result<()> {
        self.down()?;
        mounts::drop_caches()?;
        self.up().map(drop)
    }

    /// A number of `starling status --json`, such as `/cleaner/moved_bytes`.
    pub fn status(&self, pointer: &str) -> Result<u64> {
        let text = self.starling("status", &["--json"])?;
        let status: Value = serde_json::from_str(&text).context("read the status")?;
        status.pointer(pointer).and_then(Value::as_u64).with_context(|| format!("the status has no number {pointer}"))
    }

    /// Memory of the process, see [`process::memory_bytes`].
    pub fn memory_bytes(&self, field: &str) -> Result<u64> {
        let pid = self.daemon.as_ref().context("nothing serves")?.id();
        process::memory_bytes(pid as i32, field).with_context(|| format!("no {field} of process {pid}"))
    }

    fn starling(&self, action: &str, options: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.arg(action).arg(&self.mount_point).args(options);
        command::run(&mut command, DEADLINE, Interrupts::Obey)
    }

    fn clear(&mut self) -> Result<()> {
        // Aborting the mount frees the programs that wait for it, so this comes before the process.
        mounts::force_unmount(&self.mount_point)?;
        self.kill()?;
        ensure!(!mounts::is_mounted(&self.mount_point)?, "{} is still mounted", self.mount_point.display());
        fs::remove_dir_all(&self.root).with_context(|| format!("remove {}", self.root.display()))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("bench: take down {}: {error:#}", self.root.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn site(root: &Path, script: &str) -> Site {
        use std::os::unix::fs::PermissionsExt;
        let program = root.join("program");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Site {
            root: root.to_owned(),
            starling: Some(program),
            starling_args: "--parity 2".to_owned(),
            request_log: None,
        }
    }

    #[test]
    fn process_is_ready_when_it_says_so_and_gone_when_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let site = site(dir.path(), "echo \"$@\" > \"$(dirname \"$0\")/given\"; echo mounted at x; exec sleep 1000");
        let mut serving = Serving::new(&site, "fs", &["--store-size", "1MiB"]).unwrap();
        serving.up().unwrap();
        assert!(serving.up().is_err(), "twice");
        let given = fs::read_to_string(dir.path().join("given")).unwrap();
        assert!(given.starts_with("up ") && given.ends_with("--store-size 1MiB --parity 2\n"), "{given}");
        assert!(serving.memory_bytes("VmRSS").unwrap() > 0);
        let pid = serving.daemon.as_ref().unwrap().id() as i32;
        drop(serving);
        assert_eq!(process::memory_bytes(pid, "VmRSS"), None);
        assert!(!dir.path().join("fs").exists());
    }

    #[test]
    fn failure_to_start_shows_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let site = site(dir.path(), "echo no such store >&2; exit 1");
        let mut serving = Serving::new(&site, "fs", &[]).unwrap();
        let error = serving.up().unwrap_err().to_string();
        assert!(error.contains("no such store"), "{error}");
    }
}
