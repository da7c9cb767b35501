//! Why a mount or an unmount failed, and what to do about it.

use std::io;
use std::path::PathBuf;
use thiserror::Error;
use types::FsError;

/// Why [`mount`](crate::mount) failed. Nothing is mounted then. Every text says what to do.
#[derive(Debug, Error)]
pub enum MountError {
    /// The mount point does not exist.
    #[error("{path} does not exist: create it with `mkdir -p {path}`")]
    MountpointMissing {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point is something else.
    #[error("{path} is not a directory: choose one, empty if possible")]
    NotADirectory {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point cannot be reached or, for an ordinary user, is not one's own.
    #[error("no permission to mount on {path}: choose a folder that you own and may write, or mount as root")]
    MountpointDenied {
        /// The mount point.
        path: PathBuf,
    },
    /// A mount is there whose process died.
    #[error(
        "{path} is still held by a mount whose process has ended: free it with `fusermount3 -uz {path}`, then try again"
    )]
    Stuck {
        /// The mount point.
        path: PathBuf,
    },
    /// A mount is there that does not answer, whose process may live.
    #[error(
        "{path} holds a mount that does not answer: end its process, or abort it as root with `umount -f {path}`, then try again"
    )]
    Silent {
        /// The mount point.
        path: PathBuf,
    },
    /// No FUSE in the kernel.
    #[error(
        "/dev/fuse is missing: run `modprobe fuse`; in a container, start it with `--device /dev/fuse --cap-add SYS_ADMIN`"
    )]
    DeviceMissing,
    /// FUSE is there but not for this user.
    #[error("no permission to open /dev/fuse: as root, run `chmod 666 /dev/fuse`, or mount as root")]
    DeviceDenied,
    /// The helper that lets ordinary users mount is not installed.
    #[error(
        "fusermount3 is missing, which ordinary users need in order to mount: install the package fuse3, or mount as root"
    )]
    HelperMissing,
    /// `allow_other` as an ordinary user.
    #[error(
        "allow_other is for root only here: add the line `user_allow_other` to /etc/fuse.conf, or mount without allow_other"
    )]
    AllowOtherForbidden,
    /// Root, but without the right to mount.
    #[error(
        "the kernel does not let this process mount: it lacks CAP_SYS_ADMIN; start the container with `--cap-add SYS_ADMIN --device /dev/fuse`"
    )]
    NotPermitted,
    /// A name that mount options cannot carry.
    #[error("the name {name:?} cannot be used for a mount: leave out commas, backslashes and control characters")]
    BadName {
        /// The name.
        name: String,
    },
    /// `fusermount3` said something else.
    #[error("fusermount3 refused to mount on {path}: {message}")]
    Helper {
        /// The mount point.
        path: PathBuf,
        /// Its words.
        message: String,
    },
    /// An unexpected failure of the system; the step says which.
    #[error("could not {step} for a mount on {path}: {source}")]
    System {
        /// The mount point.
        path: PathBuf,
        /// What was being done.
        step: &'static str,
        /// The failure.
        source: io::Error,
    },
}

/// Why an unmount was not complete.
#[derive(Debug, Error)]
pub enum UnmountError {
    /// It is still mounted.
    #[error("{path} could not be unmounted: {message}; try `fusermount3 -uz {path}`")]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// What the system said.
        message: String,
    },
    /// It is unmounted, but the last changes may be lost.
    #[error("{path} is unmounted, but not all changes are known to be durable: {source}")]
    NotDurable {
        /// The mount point.
        path: PathBuf,
        /// What the file system's sync said.
        source: FsError,
    },
}
