//! A process that outlives this one when it is killed, until no thread of it waits in the kernel
//! any more.
//!
//! A thread [apart](crate::apart) that notifies the kernel keeps the connection open while it
//! waits. So when the process is killed, the kernel fails the requests that other threads had read,
//! but does not end the connection. A program whose read has failed asks for the page again, no
//! thread reads that request, and the thread apart waits for the page. The survivor fails such
//! requests until the process has ended.
//!
//! The survivor is made by `fork`, and makes only system calls. It holds three descriptors: one of
//! the connection, one that tells when this process has ended, and one end of a pipe. When this
//! process is killed, the kernel closes the other end of the pipe, even while a thread apart waits.

use crate::attach;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Longest request, in bytes: fuser reads with a buffer of this size, and fuse_kernel.h names no
/// limit.
const REQUEST_LEN_MAX: usize = (16 << 20) + 4096;
/// Length of a reply's header, in bytes.
const REPLY_LEN: usize = 16;
/// The bytes of a request's header, and of a reply's, that hold the request's number.
const NUMBER: std::ops::Range<usize> = 8..16;

fn done(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The surviving process. Dropping this tells it to end, and waits for it.
pub(crate) struct Survivor {
    id: libc::pid_t,
    /// This process's end of the pipe.
    told: OwnedFd,
}

impl Survivor {
    /// Starts the process for the connection of `session`. Fails if /dev/fuse cannot be opened
    /// again, and before Linux 5.9.
    pub(crate) fn start(session: &OwnedFd) -> io::Result<Survivor> {
        let device = attach::clone_device(session)?;
        // SAFETY: a plain fcntl on an open descriptor.
        done(unsafe { libc::fcntl(device.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }.into())?;
        // SAFETY: plain calls; the kernel just made the descriptor, so it has no other owner.
        let process = unsafe {
            let process = done(libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0))?;
            OwnedFd::from_raw_fd(process as RawFd)
        };
        let (tells, told) = io::pipe()?;
        let (tells, told) = (OwnedFd::from(tells), OwnedFd::from(told));
        let survivor = Child { device: device.as_raw_fd(), process: process.as_raw_fd(), tells: tells.as_raw_fd() };
        let mut request = vec![0; REQUEST_LEN_MAX];
        let masked = mask_all_signals()?;
        // SAFETY: the child makes system calls only, which is what a fork of a process with several
        // threads may do, and never returns.
        let id = done(unsafe { libc::fork() }.into());
        if matches!(id, Ok(0)) {
            survivor.run(&mut request);
        }
        // SAFETY: the mask was filled in by the kernel.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const masked, std::ptr::null_mut()) };
        Ok(Survivor { id: id? as libc::pid_t, told })
    }
}

impl Drop for Survivor {
    fn drop(&mut self) {
        // SAFETY: the buffer has the length given, and only this code waits for the child. The
        // write fails if the child was killed.
        unsafe {
            libc::write(self.told.as_raw_fd(), [0u8].as_ptr().cast(), 1);
            libc::waitpid(self.id, std::ptr::null_mut(), 0);
        }
    }
}

/// Masks all signals of this thread, so that the child handles none, and returns the mask from
/// before.
fn mask_all_signals() -> io::Result<libc::sigset_t> {
    // SAFETY: both are plain bits, for which zeros are valid, and live longer than the calls.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        match libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) {
            0 => Ok(before),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// The child's part. It must not allocate, lock or log: at the fork, another thread of the parent
/// may have held any lock.
struct Child {
    device: RawFd,
    process: RawFd,
    tells: RawFd,
}

impl Child {
    fn run(&self, request: &mut [u8]) -> ! {
        // SAFETY: plain calls with a NUL-terminated name; the child ends here.
        unsafe {
            libc::prctl(libc::PR_SET_NAME, c"fuse-survivor".as_ptr());
            if self.close_others() && self.is_killed() {
                self.fail_requests(request);
            }
            libc::_exit(0)
        }
    }

    /// Closes all descriptors but the three; false if it cannot.
    fn close_others(&self) -> bool {
        let mut kept = [self.device, self.process, self.tells];
        kept.sort_unstable();
        let mut first = 0;
        for next in kept.into_iter().map(|fd| fd as libc::c_uint).chain([libc::c_uint::MAX]) {
            // SAFETY: descriptors of the child alone are closed.
            if next > first && unsafe { libc::syscall(libc::SYS_close_range, first, next - 1, 0) } < 0 {
                return false;
            }
            first = next.saturating_add(1);
        }
        true
    }

    /// Waits until the parent is killed; false if the parent tells the child to end.
    fn is_killed(&self) -> bool {
        loop {
            let mut byte = 0u8;
            // SAFETY: the buffer has the length given.
            match unsafe { libc::read(self.tells, (&raw mut byte).cast(), 1) } {
                0 => return true,
                len if len > 0 => return false,
                _ if errno() == libc::EINTR => {}
                _ => return false,
            }
        }
    }

    /// Fails all requests until the parent, or the connection, has ended.
    fn fail_requests(&self, request: &mut [u8]) {
        loop {
            let wanted = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut ready = [wanted(self.process), wanted(self.device)];
            // SAFETY: the array has the length given.
            let polled = unsafe { libc::poll(ready.as_mut_ptr(), ready.len() as libc::nfds_t, -1) };
            if polled >= 0 && (ready[0].revents != 0 || ready[1].revents & libc::POLLERR != 0) {
                return;
            }
            // SAFETY: the buffer has the length given.
            let len = unsafe { libc::read(self.device, request.as_mut_ptr().cast(), request.len()) };
            match len {
                0.. => self.fail(&request[NUMBER]),
                _ if matches!(errno(), libc::EAGAIN | libc::EINTR | libc::ENOENT) => {}
                _ => return,
            }
        }
    }

    fn fail(&self, number: &[u8]) {
        let mut reply = [0; REPLY_LEN];
        reply[..4].copy_from_slice(&(REPLY_LEN as u32).to_ne_bytes());
        reply[4..8].copy_from_slice(&(-libc::ENOTCONN).to_ne_bytes());
        reply[NUMBER].copy_from_slice(number);
        // SAFETY: the buffer has the length given. The write fails for requests that want no reply.
        unsafe { libc::write(self.device, reply.as_ptr().cast(), reply.len()) };
    }
}

fn errno() -> i32 {
    // SAFETY: the pointer is to this thread's own errno.
    unsafe { *libc::__errno_location() }
}
