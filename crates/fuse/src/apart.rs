//! Threads that hold none of the descriptors that the process has.
//!
//! A process that is killed closes its descriptors when the last thread that shares them has ended,
//! and the kernel fails the requests that were read by way of a descriptor of /dev/fuse when that
//! is closed. So a thread that waits in the kernel until such a request is answered would keep
//! itself waiting, and the process could not die. A thread apart does not: the others end, the
//! requests fail, and its wait is over. Where it has a descriptor of /dev/fuse itself, a
//! [survivor](crate::survivor) fails what is asked meanwhile.

use std::io;
use std::os::fd::RawFd;

/// From now on this thread has a table of descriptors of its own, with nothing in it but `kept`. It
/// must not log, nor do anything else that needs a descriptor. Fails before Linux 5.9; then nothing
/// has changed.
pub(crate) fn leave(kept: Option<RawFd>) -> io::Result<()> {
    let close = |first: RawFd, last: u32, flags: libc::c_uint| {
        // SAFETY: descriptors of this thread alone are closed: the first call makes it a table of
        // its own before it closes anything.
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

/// Runs `work`, which needs no descriptor, on a thread apart, and waits for it. Where no thread can
/// be apart, it runs there all the same.
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

    /// True if a number means an open descriptor to this thread.
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
