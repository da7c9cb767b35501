//! Network namespaces without names, and work and commands within them.
//!
//! A namespace lives as long as a descriptor of it, or a process or thread in it. So nothing is
//! left behind, even when its makers are killed. Needs root.

use crate::interface::Interface;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

const OWN_PATH: &str = "/proc/thread-self/ns/net";

/// A network namespace. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Namespace(Arc<OwnedFd>);

impl Namespace {
    /// Makes a namespace that has only its loopback device.
    pub fn new() -> io::Result<Namespace> {
        // On a thread of its own, which ends inside the namespace.
        let made = thread::spawn(|| {
            // SAFETY: descriptors are not unshared, and no other code uses the network of this
            // thread.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            Interface::new("lo")?.up(libc::IFF_LOOPBACK)?;
            Namespace::current()
        });
        made.join().unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// The namespace that the calling thread is in.
    pub fn current() -> io::Result<Namespace> {
        Namespace::open(Path::new(OWN_PATH))
    }

    /// The namespace of a path such as `/run/netns/NAME` or `/proc/PID/ns/net`.
    pub fn open(path: &Path) -> io::Result<Namespace> {
        Ok(Namespace(Arc::new(File::open(path)?.into())))
    }

    /// The path by which other processes can open the namespace while this process holds it, for
    /// instance in `nsenter --net=PATH`.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }

    /// Makes `command` run in this namespace. The command fails to start if it may not enter.
    pub fn enter(&self, command: &mut Command) {
        let namespace = self.clone();
        // SAFETY: between fork and exec there is only one system call, which allocates nothing.
        unsafe { command.pre_exec(move || namespace.move_into()) };
    }

    /// Does `work` in this namespace, on a thread of its own, and waits for it. Sockets and threads
    /// that are made there stay there.
    pub fn within<R: Send>(&self, work: impl FnOnce() -> R + Send) -> io::Result<R> {
        let inside = || self.move_into().map(|()| work());
        thread::scope(|scope| scope.spawn(inside).join()).unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn move_into(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}
