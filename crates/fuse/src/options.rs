//! How to mount.

use crate::observe::Observer;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::runtime::Handle;

/// How to mount. Start from [`MountOptions::new`] and change what should differ.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Lets every user in, not only the one who mounts. The kernel then checks permissions too (see
    /// the decision file). An ordinary user needs `user_allow_other` in /etc/fuse.conf.
    pub allow_other: bool,
    /// Lets the kernel check permissions too, by the attributes that it is told; it then keeps
    /// ACLs, which everything that lists files asks for. Implied by
    /// [`allow_other`](Self::allow_other). Wrong where the file system's users are not this
    /// machine's.
    pub kernel_checks: bool,
    /// Refuses all changes with EROFS, in the kernel.
    pub read_only: bool,
    /// Threads that read requests, at least 1. They never wait, so more than the number of CPUs is
    /// of no use.
    pub threads: usize,
    /// Where answers that take waiting are awaited. It must have workers of its own for as long as
    /// the mount lives.
    pub runtime: Handle,
    /// What /proc/mounts shows as the source.
    pub fs_name: String,
    /// Largest WRITE and READ request. The kernel's own limit is 1 MiB unless
    /// fs.fuse.max_pages_limit was raised.
    pub max_write_bytes: u32,
    /// How far the kernel reads ahead in sequential reads. Beyond 128 KiB only as root; otherwise
    /// silently less.
    pub read_ahead_bytes: u32,
    /// Keeps cached file contents over close and open. Right as long as all changes go through this
    /// mount.
    pub keep_cache: bool,
    /// Others change the file system, too, and an [`Invalidator`](crate::Invalidator) tells the
    /// kernel. Where the kernel cannot be told to forget names (before Linux 6.16), it is told to
    /// keep them for a second at most.
    pub others_change: bool,
    /// How long the kernel may trust listings, which have no validity of their own.
    pub default_valid: Duration,
    /// How long the kernel may trust that a name does not exist.
    pub absent_valid: Duration,
    /// While any of these is true, the kernel keeps nothing that it is told: every call comes to
    /// the file system, reads and writes of files that are opened then, too. Such files cannot be
    /// mapped into memory to be shared.
    pub uncached: Vec<Arc<AtomicBool>>,
    /// Asks the file system for a handle when a directory is opened. Otherwise the kernel decides
    /// on its own who may open it (right with [`kernel_checks`](Self::kernel_checks) only), lists
    /// what it has cached without a call, and reads the rest with
    /// [`Handle::NONE`](vfs::fs::Handle::NONE).
    pub open_dirs: bool,
    /// Lets the kernel read files itself that the file system has on this machine, where it can
    /// (Linux 6.9) and this process may offer that (as root).
    pub passthrough: bool,
    /// Tells the file system of each close(2), which waits for the answer. Otherwise only the last
    /// one is told of, by and by: enough where writes are with the file system already.
    pub flush: bool,
    /// The file system decides about flock(2) and fcntl(2) locks, as
    /// [`LockSpace::Mixed`](vfs::fs::LockSpace::Mixed). Otherwise the kernel does, for this mount
    /// alone. Takes [`flush`](Self::flush).
    pub locks: bool,
    /// Extended attributes of the mount, by name, that every file shows to who asks for them, and
    /// none lists: how the command line finds the process that serves a path, and a home the file
    /// system.
    pub mount_xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Is told what programs do with the contents of files.
    pub observer: Option<Arc<dyn Observer>>,
}

impl MountOptions {
    /// Defaults: for the mounting user only, up to 4 threads, 1 MiB requests, 4 MiB read-ahead,
    /// contents kept in the page cache, 1 s of validity where the file system names none.
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
}
