//! The real clock during a suspend, emulated as far as a process can: by a time namespace in which
//! the system has run longer.

use host::Clock;
use host::real::RealClock;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::time::Duration;

const SUSPENDED_S: u64 = 1000;
/// How the child ends.
const WENT_ON: i32 = 0;
const STOOD_STILL: i32 = 1;
const NO_NAMESPACES: i32 = 2;

/// Moves this single-threaded process to a time namespace. CLOCK_MONOTONIC stays as it is there.
fn jump() -> std::io::Result<()> {
    // SAFETY: plain calls.
    if unsafe { libc::unshare(libc::CLONE_NEWTIME) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    fs::write("/proc/self/timens_offsets", format!("boottime {SUSPENDED_S} 0"))?;
    let namespace = File::open("/proc/self/ns/time_for_children")?;
    // SAFETY: plain calls.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWTIME) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Leases and callbacks were counted by CLOCK_MONOTONIC, which stands still. A laptop that woke up
/// believed in leases that the home had since given to other clients.
#[test]
fn regression_the_clock_goes_on_while_the_machine_is_suspended() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let clock = RealClock::new(runtime.handle().clone());
    // SAFETY: the child needs no lock that another thread may hold, except the allocator's, which
    // fork handles; and it ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let before = clock.now();
        let ended = match jump() {
            Err(_) => NO_NAMESPACES,
            Ok(()) if clock.now() - before >= Duration::from_secs(SUSPENDED_S) => WENT_ON,
            Ok(()) => STOOD_STILL,
        };
        // SAFETY: ends the child.
        unsafe { libc::_exit(ended) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: the pointer is to an int that outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status));
    match libc::WEXITSTATUS(status) {
        NO_NAMESPACES => eprintln!("left out: time namespaces need CAP_SYS_ADMIN and Linux 5.6"),
        ended => assert_eq!(ended, WENT_ON),
    }
}
