//! A name for an open file.

use std::os::fd::{AsFd, AsRawFd};

/// Returns a path to an open file, for system calls that take a name.
pub(crate) fn alias(file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}
