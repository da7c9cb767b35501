//! A network namespace per target, so that no port collides with a daemon that the machine already runs, and peers that
//! refuse loopback addresses in 127/8 have another one.
//!
//! The namespace has no name: it lives as long as this descriptor or a process in it does, so nothing is left behind.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use crate::command::{self, Interrupts};

/// The address that is up in every namespace.
pub const HOST: &str = "10.77.0.1";

/// A network namespace with a loopback device that has [`HOST`] as a second address.
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// Makes a namespace. Needs root.
    pub fn new() -> Result<Namespace> {
        // Entered by a thread of its own, because a thread cannot be relied on to find its way back.
        let file = std::thread::spawn(|| -> Result<File> {
            // SAFETY: unshare takes a plain number and changes this thread only.
            let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            ensure!(result == 0, "make a network namespace (root?): {}", std::io::Error::last_os_error());
            File::open("/proc/thread-self/ns/net").context("open the network namespace")
        })
        .join()
        .map_err(|_| anyhow!("the thread that makes a network namespace failed"))??;
        let namespace = Namespace { file };
        for arguments in [&["link", "set", "lo", "up"][..], &["addr", "add", &format!("{HOST}/32"), "dev", "lo"]] {
            let mut ip = Command::new("ip");
            ip.args(arguments);
            namespace.enter(&mut ip);
            command::run(&mut ip, Duration::from_secs(10), Interrupts::Obey)?;
        }
        Ok(namespace)
    }

    /// Makes `command` run in this namespace.
    pub fn enter(&self, command: &mut Command) {
        let fd = self.file.as_raw_fd();
        // SAFETY: between fork and exec only setns is called, which is async-signal-safe. The descriptor is open for as
        // long as `self` is, which outlives every command it is given (they are run to their end).
        unsafe {
            command.pre_exec(move || match libc::setns(fd, libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
    }
}
