//! Errors of mounting and unmounting, each with what to do about it.

use std::io;
use std::path::PathBuf;
use thiserror::Error;
use types::FsError;

/// Why [`mount`](crate::mount) failed. Nothing is mounted then. Every text says what to do next.
#[derive(Debug, Error)]
pub enum MountError {
    /// The mount point does not exist.
    #[error("{path} does not exist: create it with `mkdir -p {path}`")]
    MountpointMissing {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point is not a directory.
    #[error("{path} is not a directory: choose one, empty if possible")]
    NotADirectory {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point cannot be reached, or an ordinary user may not write to it.
    #[error("no permission to mount on {path}: choose a folder that you own and may write, or mount as root")]
    MountpointDenied {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point still has a mount whose process died.
    #[error(
        "{path} is still held by a mount whose process has ended: free it with `fusermount3 -uz {path}`, then try again"
    )]
    Stuck {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point has a mount that does not answer, and whose process may still run.
    #[error(
        "{path} holds a mount that does not answer: end its process, or abort it as root with `umount -f {path}`, then try again"
    )]
    Silent {
        /// The mount point.
        path: PathBuf,
    },
    /// The kernel has no FUSE.
    #[error(
        "/dev/fuse is missing: run `modprobe fuse`; in a container, start it with `--device /dev/fuse --cap-add SYS_ADMIN`"
    )]
    DeviceMissing,
    /// The kernel has FUSE, but this user may not open /dev/fuse.
    #[error("no permission to open /dev/fuse: as root, run `chmod 666 /dev/fuse`, or mount as root")]
    DeviceDenied,
    /// The helper that lets ordinary users mount is not installed.
    #[error(
        "fusermount3 is missing, which ordinary users need in order to mount: install the package fuse3, or mount as root"
    )]
    HelperMissing,
    /// An ordinary user asked for `allow_other`, and the helper's configuration does not permit it.
    #[error(
        "allow_other is for root only here: add the line `user_allow_other` to /etc/fuse.conf, or mount without allow_other"
    )]
    AllowOtherForbidden,
    /// The user is root, but the process lacks the right to mount.
    #[error(
        "the kernel does not let this process mount: it lacks CAP_SYS_ADMIN; start the container with `--cap-add SYS_ADMIN --device /dev/fuse`"
    )]
    NotPermitted,
    /// The file system's name contains characters that mount options cannot carry.
    #[error("the name {name:?} cannot be used for a mount: leave out commas, backslashes and control characters")]
    BadName {
        /// The name.
        name: String,
    },
    /// `fusermount3` failed for a reason that is not listed here.
    #[error("fusermount3 refused to mount on {path}: {message}")]
    Helper {
        /// The mount point.
        path: PathBuf,
        /// The helper's error text.
        message: String,
    },
    /// The system failed unexpectedly; the step says where.
    #[error("could not {step} for a mount on {path}: {source}")]
    System {
        /// The mount point.
        path: PathBuf,
        /// What the mount was doing.
        step: &'static str,
        /// The failure.
        source: io::Error,
    },
}

/// Why a mount is still there.
#[derive(Debug, Error)]
pub enum DetachError {
    /// Its mount point shows another mount.
    #[error("another file system is mounted over it")]
    Covered,
    /// `fusermount3` could not be run.
    #[error("fusermount3: {0}")]
    NoHelper(#[source] io::Error),
    /// `fusermount3` refused, and printed this.
    #[error("{0}")]
    Helper(String),
    /// The system refused.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Why an unmount did not complete.
#[derive(Debug, Error)]
pub enum UnmountError {
    /// The file system is still mounted.
    #[error("{path} could not be unmounted: {source}; try `fusermount3 -uz {path}`")]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: DetachError,
    },
    /// The file system is unmounted, but the last changes may be lost.
    #[error("{path} is unmounted, but not all changes are known to be durable: {source}")]
    NotDurable {
        /// The mount point.
        path: PathBuf,
        /// The error of the file system's sync.
        source: FsError,
    },
}
