//! How long files can be.
//!
//! No call tells this: pathconf(3) guesses it from the file system's type. So this code makes an
//! unnamed file as long as Linux lets it, by bisection. The file holds no data, and Linux removes
//! it when it is closed.
//!
//! The answer holds for the directory's own file system. File systems mounted below may hold less.

use crate::{Inner, LocalDir};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::os::fd::OwnedFd;
use types::{Answer, FsError};
use vfs::fs::FILE_SIZE_MAX;

impl LocalDir {
    /// Returns the length, in bytes, of the longest file that the directory's file system can hold
    /// and this process may make. Found once, then remembered. EOPNOTSUPP if the file system has no
    /// unnamed files.
    pub fn file_len_max(&self) -> Answer<u64> {
        if let Some(known) = self.0.file_len_max.get() {
            return Answer::ok(*known);
        }
        self.later(Inner::find_file_len_max)
    }
}

impl Inner {
    fn find_file_len_max(&self) -> Result<u64, FsError> {
        let dir = self.beside.as_ref().unwrap_or(&self.root);
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, c".", flags, Mode::RUSR | Mode::WUSR).map_err(crate::stat::error)?;
        // The kernel sends SIGXFSZ to a process that goes beyond its own limit, which kills it.
        let allowed = getrlimit(Resource::Fsize).current.unwrap_or(FILE_SIZE_MAX).min(FILE_SIZE_MAX);
        let found = longest(&file, allowed).map_err(crate::stat::error)?;
        Ok(*self.file_len_max.get_or_init(|| found))
    }
}

fn longest(file: &OwnedFd, allowed: u64) -> rustix::io::Result<u64> {
    let fits = |len| match rustix::fs::ftruncate(file, len) {
        Ok(()) => Ok(true),
        Err(Errno::FBIG | Errno::INVAL) => Ok(false),
        Err(error) => Err(error),
    };
    if fits(allowed)? {
        return Ok(allowed);
    }
    let (mut longest, mut too_long) = (0, allowed);
    while too_long - longest > 1 {
        let middle = longest + (too_long - longest) / 2;
        if fits(middle)? { longest = middle } else { too_long = middle }
    }
    Ok(longest)
}
