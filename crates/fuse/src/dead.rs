//! Takes a mount away whose process has died.
//!
//! The kernel ends a connection with its process. But a thread that waited in the kernel for an
//! answer of its own process, when that was killed, can have kept it: then nobody answers, and
//! whoever asks hangs until the connection is aborted.

use crate::attach;
use crate::error::MountError;
use crate::mountinfo::{self, Device};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// A mount that does not answer within this time is looked into.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// How a process's descriptor of /dev/fuse says which connection it is of (Linux 6.15).
const CONNECTION: &str = "fuse_connection:";

/// Where `path` is, without asking what is mounted there.
fn located(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    Some(absolute.parent()?.canonicalize().ok()?.join(absolute.file_name()?))
}

/// Takes away what is on `path`, if it is a mount of this program's whose process has died. A mount
/// that does not answer, and may have a process, is refused.
pub fn clear(path: &Path) -> Result<(), MountError> {
    let Some(path) = located(path) else { return Ok(()) };
    let Some(device) = mountinfo::own_mount_at(&path) else { return Ok(()) };
    match errno_of(&path) {
        Ok(None) => return Ok(()),
        Ok(Some(libc::ENOTCONN | libc::ECONNABORTED)) => {}
        Ok(Some(_)) => return Ok(()),
        Err(Silent) if is_served(&device) => return Err(MountError::Silent { path }),
        Err(Silent) => {}
    }
    tracing::warn!(path = %path.display(), "taking away a mount whose process has ended");
    attach::abort(&path, &device);
    if mountinfo::own_mount_at(&path) != Some(device) {
        return Ok(());
    }
    attach::detach_dead(&path).map_err(|_| MountError::Stuck { path })
}

/// Nothing was answered in time.
struct Silent;

/// Why what is mounted cannot be looked at.
fn errno_of(path: &Path) -> Result<Option<i32>, Silent> {
    let (answer, answered) = sync_channel(1);
    let path = path.to_path_buf();
    let ask = move || {
        let errno = std::fs::metadata(path).err().and_then(|error| error.raw_os_error());
        let _ = answer.send(errno);
    };
    // It ends when the connection does.
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

/// True unless it is sure that no process has the connection of a mount open.
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
            // Older kernels do not say.
            of.is_none_or(|of| of == number)
        })
    })
}
