//! File locks in FUSE's terms, and signals to programs that wait for a lock.
//!
//! When a waiting program gets a signal, the kernel asks for an interrupt, but fuser refuses that
//! request. Without more, such a program could not even be killed. So this module polls for signals
//! of waiting threads, and answers EINTR. The kernel then handles the signal and, if the program
//! goes on, waits anew.

use fuser::LockOwner;
use host::{Either, first};
use std::time::Duration;
use types::{BoxFuture, FsError};
use vfs::fs::{FileLock, LockSpace};

/// How often a waiting thread is checked for signals.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// The last byte offset, by which the kernel means "to the end of the file".
const END: u64 = i64::MAX as u64;

/// The lock that a request asks for; `None` for an unknown kind.
pub(crate) fn lock(owner: LockOwner, (start, end): (u64, u64), kind: i32, pid: u32) -> Option<FileLock> {
    let exclusive = match kind {
        libc::F_RDLCK => Some(false),
        libc::F_WRLCK => Some(true),
        libc::F_UNLCK => None,
        _ => return None,
    };
    let end = if end >= END { u64::MAX } else { end };
    Some(FileLock { space: LockSpace::Mixed, owner: owner.0.into(), pid, exclusive, start, end })
}

/// What fcntl(2) with F_GETLK shows: start, end, kind and process of the lock that is in the way.
pub(crate) fn shown(wanted: &FileLock, found: Option<FileLock>) -> (u64, u64, i32, u32) {
    match found {
        None => (wanted.start, wanted.end.min(END), libc::F_UNLCK, 0),
        Some(found) => {
            let kind = if found.exclusive == Some(true) { libc::F_WRLCK } else { libc::F_RDLCK };
            (found.start, found.end.min(END), kind, found.pid)
        }
    }
}

/// Waits for a lock. Fails with EINTR when the waiting thread has got a signal.
pub(crate) async fn unless_signalled(thread: u32, locked: BoxFuture<Result<(), FsError>>) -> Result<(), FsError> {
    match first(locked, Box::pin(signalled(thread))).await {
        Either::Left(locked) => locked,
        Either::Right(()) => Err(FsError::Interrupted),
    }
}

/// Completes when the thread has a signal to handle. Never completes for thread 0, which is what
/// the kernel gives for a thread in a pid namespace that is not visible from here.
async fn signalled(thread: u32) {
    loop {
        tokio::time::sleep(LOOK_PERIOD).await;
        let status = std::fs::read_to_string(format!("/proc/{thread}/status"));
        if thread > 0 && status.is_ok_and(|status| has_signal(&status)) {
            return;
        }
    }
}

/// True if a /proc/PID/status says that the thread will handle a signal as soon as it can. A signal
/// for the whole process counts only if this is the process's first thread, which the kernel
/// prefers; otherwise another thread may handle it.
fn has_signal(status: &str) -> bool {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let mask = |name| field(name).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0);
    let is_first = field("Tgid:") == field("Pid:");
    let pending = mask("SigPnd:") | if is_first { mask("ShdPnd:") } else { 0 };
    pending & !mask("SigBlk:") & !mask("SigIgn:") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_count_that_the_thread_will_handle() {
        let status = |tgid, own, shared, blocked, ignored| {
            format!(
                "Name:\tx\nTgid:\t{tgid}\nPid:\t7\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\n"
            )
        };
        let (none, some) = ("0000000000000000", "0000000000000002");
        assert!(!has_signal(&status(7, none, none, none, none)));
        assert!(has_signal(&status(7, some, none, none, none)));
        assert!(has_signal(&status(7, none, some, none, none)));
        assert!(!has_signal(&status(7, some, some, some, none)));
        assert!(!has_signal(&status(7, some, none, none, some)));
        assert!(has_signal(&status(5, some, none, none, none)));
        assert!(!has_signal(&status(5, none, some, none, none)), "another thread may handle it");
        assert!(!has_signal(""));
    }

    #[test]
    fn locks_to_the_end_of_a_file_have_no_end() {
        let wanted = lock(LockOwner(5), (3, END), libc::F_WRLCK, 9).expect("a lock");
        assert_eq!((wanted.start, wanted.end, wanted.exclusive), (3, u64::MAX, Some(true)));
        assert_eq!(shown(&wanted, None), (3, END, libc::F_UNLCK, 0));
        assert_eq!(shown(&wanted, Some(wanted)), (3, END, libc::F_WRLCK, 9));
        assert_eq!(lock(LockOwner(5), (3, 4), 77, 9), None);
    }
}
