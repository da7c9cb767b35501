//! Removes a mount whose process has died.
//!
//! The kernel ends a connection when its process ends. There is one exception: when the process was
//! killed, one of its threads may have been waiting in the kernel for an answer of the process
//! itself, and such a thread can keep the connection open. Requests then get no answer, and every
//! program that makes one hangs until the connection is aborted.

use crate::attach;
use crate::error::MountError;
use crate::mountinfo::{self, Device};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// How long to wait for a mount's answer before looking for a process that serves it.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// The line of /proc/PID/fdinfo that names the connection of a descriptor of /dev/fuse (Linux
/// 6.15).
const CONNECTION: &str = "fuse_connection:";

/// Resolves `path` without a request to the file system that is mounted there.
fn located(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    Some(absolute.parent()?.canonicalize().ok()?.join(absolute.file_name()?))
}

/// Removes the mount on `path` if it is a Starling mount whose process has died. Fails with
/// [`MountError::Silent`] if the mount does not answer and may still have a process.
pub fn clear(path: &Path) -> Result<(), MountError> {
    let Some(path) = located(path) else { return Ok(()) };
    // Dead mounts can lie on top of each other.
    while let Some(device) = mountinfo::own_mount_at(&path) {
        match errno_of(&path) {
            Ok(Some(libc::ENOTCONN | libc::ECONNABORTED)) => {}
            Ok(_) => return Ok(()),
            Err(Silent) if is_served(&device) => return Err(MountError::Silent { path }),
            Err(Silent) => {}
        }
        tracing::warn!(path = %path.display(), "removing a mount whose process has ended");
        attach::abort(&path, &device);
        let is_there = || mountinfo::own_mount_at(&path) == Some(device.clone());
        // Another process may remove the mount at the same time.
        if is_there() && attach::detach_dead(&path).is_err() && is_there() {
            return Err(MountError::Stuck { path });
        }
    }
    Ok(())
}

/// The mount did not answer in time.
struct Silent;

/// Why the mount does not answer: the errno of a request that the kernel never answers from its
/// caches, as it may answer a stat.
fn errno_of(path: &Path) -> Result<Option<i32>, Silent> {
    let Ok(path) = attach::c_string(path.as_os_str().as_bytes()) else { return Ok(None) };
    let (answer, answered) = sync_channel(1);
    let ask = move || {
        let mut space = std::mem::MaybeUninit::uninit();
        // SAFETY: the path is a NUL-terminated string, and both outlive the call.
        let result = unsafe { libc::statfs(path.as_ptr(), space.as_mut_ptr()) };
        let errno = (result != 0).then(|| io::Error::last_os_error().raw_os_error()).flatten();
        let _ = answer.send(errno);
    };
    // The thread ends when the connection does.
    let asked = std::thread::Builder::new().name("fuse-probe".to_owned()).spawn(ask);
    if asked.is_err() {
        return Ok(None);
    }
    match answered.recv_timeout(ANSWER_TIME_MAX) {
        Ok(errno) => Ok(errno),
        Err(RecvTimeoutError::Disconnected) => Ok(None),
        Err(RecvTimeoutError::Timeout) => Err(Silent),
    }
}

/// False only if it is certain that no process holds the mount's connection open.
fn is_served(device: &Device) -> bool {
    let Some(number) = device.connection() else { return true };
    let Ok(processes) = std::fs::read_dir("/proc") else { return true };
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    processes.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_process)).any(|process| {
        let Ok(open) = std::fs::read_dir(process.path().join("fd")) else { return false };
        open.flatten().any(|fd| {
            if !std::fs::read_link(fd.path()).is_ok_and(|to| to == Path::new(attach::DEVICE)) {
                return false;
            }
            let said = std::fs::read_to_string(process.path().join("fdinfo").join(fd.file_name())).unwrap_or_default();
            let of = said.lines().find_map(|line| line.strip_prefix(CONNECTION)).map(str::trim);
            // Older kernels do not name the connection.
            of.is_none_or(|of| of == number)
        })
    })
}
