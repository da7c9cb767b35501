//! Threads that share no file descriptors with the rest of the process.
//!
//! When a process is killed, the kernel closes its descriptors once the last thread that shares
//! them has ended. Closing a descriptor of /dev/fuse fails the requests that were read through it.
//! So a thread that waits in the kernel for the answer to such a request would wait for itself, and
//! the process could not die. A thread apart avoids this: the other threads end, their requests
//! fail, and its wait is over. If the thread apart has a descriptor of /dev/fuse itself, a
//! [survivor](crate::survivor) fails the requests that arrive meanwhile.

use std::io;
use std::os::fd::RawFd;

/// Gives this thread a descriptor table of its own, with nothing in it but `kept`. Afterwards the
/// thread must not log, nor do anything else that needs a descriptor. Fails before Linux 5.9, and
/// then changes nothing.
pub(crate) fn leave(kept: Option<RawFd>) -> io::Result<()> {
    let close = |first: RawFd, last: u32, flags: libc::c_uint| {
        // SAFETY: this closes descriptors of this thread alone: the first call gives the thread its
        // own table before it closes anything.
        let closed = unsafe { libc::syscall(libc::SYS_close_range, first as libc::c_uint, last, flags) };
        if closed < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    let after = kept.map_or(0, |kept| kept + 1);
    close(after, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    match kept {
        Some(kept) if kept > 0 => close(0, kept as libc::c_uint - 1, 0),
        _ => Ok(()),
    }
}

/// Runs `work`, which must need no descriptor, on a thread apart, and waits for it. If the thread
/// cannot leave the shared table, it runs `work` all the same.
pub(crate) fn run<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _ = leave(None);
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    /// True if `fd` is an open descriptor of this thread.
    fn is_open(fd: RawFd) -> bool {
        // SAFETY: a plain fcntl.
        unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
    }

    #[test]
    fn thread_apart_has_one_descriptor_and_the_others_keep_theirs() {
        let (one, two) = (File::open("/").unwrap(), File::open("/").unwrap());
        let (one, two) = (one.as_raw_fd(), two.as_raw_fd());
        let seen = std::thread::spawn(move || leave(Some(one)).map(|()| [0, 1, 2, one, two].map(is_open)));
        assert_eq!(seen.join().unwrap().unwrap(), [false, false, false, true, false]);
        assert!(is_open(one) && is_open(two));
        assert!(!run(move || is_open(two)));
    }
}
