//! Options of a mount.

use crate::observe::Observer;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::runtime::Handle;

/// Options of a mount. Start from [`MountOptions::new`] and change what should differ.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Lets every user in, not only the user who mounts. The kernel then checks permissions too
    /// (docs/decisions/2026-11-21-fuser.md). An ordinary user needs `user_allow_other` in
    /// /etc/fuse.conf.
    pub allow_other: bool,
    /// Lets the kernel check permissions too, by the attributes that it is told. The kernel then
    /// also caches ACLs, which every program that lists files asks for. Implied by
    /// [`allow_other`](Self::allow_other). Wrong if the file system's users are not this machine's.
    pub kernel_checks: bool,
    /// Refuses all changes with EROFS, in the kernel.
    pub read_only: bool,
    /// Threads that read requests, at least 1. They never wait, so more threads than CPUs are of no
    /// use.
    pub threads: usize,
    /// The runtime that runs answers which have to wait. It must have workers of its own for as
    /// long as the mount lives.
    pub runtime: Handle,
    /// What /proc/mounts shows as the source.
    pub fs_name: String,
    /// Largest WRITE and READ request, in bytes. The kernel's own limit is 1 MiB unless
    /// fs.fuse.max_pages_limit was raised.
    pub max_write_bytes: u32,
    /// How far the kernel reads ahead in sequential reads, in bytes. Only root can exceed 128 KiB;
    /// for other users the mount keeps 128 KiB, without an error.
    pub read_ahead_bytes: u32,
    /// Keeps cached file contents over close and open. Correct as long as all changes go through
    /// this mount.
    pub keep_cache: bool,
    /// Other clients change the file system too, and an [`Invalidator`](crate::Invalidator) tells
    /// the kernel of their changes. Where the kernel cannot be told to forget names (before Linux
    /// 6.16), it is told to keep them for a second at most.
    pub others_change: bool,
    /// Several nodes mount the file system, and it recalls from the kernel what another node is to
    /// change, with [`Kernel::forget`](vfs::Kernel::forget). So the kernel keeps only what it can
    /// be made to forget without a wait: names (also absent ones) and attributes, for as long as
    /// the file system says, and listings, but not contents. Files are opened for direct I/O:
    /// programs can map them privately, but not shared (ENODEV). Implies
    /// [`open_dirs`](Self::open_dirs), and excludes [`passthrough`](Self::passthrough). Needs
    /// timers on [`runtime`](Self::runtime).
    pub shared: bool,
    /// How long the kernel may trust listings, which carry no validity of their own.
    pub default_valid: Duration,
    /// How long the kernel may trust that a name does not exist. On a shared mount, the file system
    /// says that ([`absence_valid`](vfs::fs::FileSystem::absence_valid)).
    pub absent_valid: Duration,
    /// While any of these is true, the kernel caches nothing: every call reaches the file system,
    /// including reads and writes of files that are opened meanwhile. A program cannot map such
    /// files as shared.
    pub uncached: Vec<Arc<AtomicBool>>,
    /// Asks the file system for a handle when a program opens a directory. Without this, the kernel
    /// decides on its own who may open a directory (correct only with
    /// [`kernel_checks`](Self::kernel_checks)), lists what it has cached without a request, and
    /// reads the rest with [`Handle::NONE`](vfs::fs::Handle::NONE).
    pub open_dirs: bool,
    /// Lets the kernel itself read files that the file system has on this machine, if the kernel
    /// can (Linux 6.9) and this process may offer it (as root).
    pub passthrough: bool,
    /// Tells the file system of each close(2), which then waits for the answer. Without this, the
    /// file system learns only of the last close of a file, and later. That is enough if every
    /// write has reached the file system before the close.
    pub flush: bool,
    /// The file system decides about flock(2) and fcntl(2) locks, as
    /// [`LockSpace::Mixed`](vfs::fs::LockSpace::Mixed). Otherwise the kernel does, for this mount
    /// alone. Needs [`flush`](Self::flush).
    pub locks: bool,
    /// Extended attributes of the mount, by name. Every file shows them to a program that asks for
    /// them by name, and no listing contains them. The command line uses them to find the process
    /// that serves a path, and a home to recognise the file system.
    pub mount_xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Receives what programs do with the contents of files.
    pub observer: Option<Arc<dyn Observer>>,
}

impl MountOptions {
    /// The defaults: access for the mounting user only, up to 4 threads, 1 MiB requests, 4 MiB
    /// read-ahead, contents kept in the page cache, and 1 s of validity for listings and absent
    /// names.
    pub fn new(runtime: Handle) -> Self {
        MountOptions {
            allow_other: false,
            kernel_checks: false,
            read_only: false,
            threads: std::thread::available_parallelism().map_or(2, |n| n.get().clamp(1, 4)),
            runtime,
            fs_name: "starling".to_owned(),
            max_write_bytes: 1 << 20,
            read_ahead_bytes: 4 << 20,
            keep_cache: true,
            others_change: false,
            shared: false,
            default_valid: Duration::from_secs(1),
            absent_valid: Duration::from_secs(1),
            uncached: Vec::new(),
            open_dirs: true,
            passthrough: false,
            flush: false,
            locks: false,
            mount_xattrs: BTreeMap::new(),
            observer: None,
        }
    }

    /// These options, with those that others imply or exclude.
    pub(crate) fn agreed(self) -> Self {
        let (open_dirs, passthrough) = (self.open_dirs || self.shared, self.passthrough && !self.shared);
        MountOptions { open_dirs, passthrough, ..self }
    }
}
