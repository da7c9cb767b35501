//! Folders of homes and caches: private to this user, and used by one process at a time.

use crate::usage;
use host::real::RealDisk;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How often a lock that another process has is tried again, and how long after.
pub const LOCK_ATTEMPTS: u32 = 30;
/// See [`LOCK_ATTEMPTS`].
pub const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// Makes a folder that only this user can look into, and all folders above it. Refuses a folder
/// that belongs to another user, or that others can look into.
pub fn make(path: &Path) -> anyhow::Result<PathBuf> {
    let shown = path.display();
    let failed = |e: std::io::Error| usage(format!("{shown}: {e}"));
    if !path.exists() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    }
    let meta = std::fs::metadata(path).map_err(failed)?;
    // SAFETY: this call takes nothing and cannot fail.
    let me = unsafe { libc::geteuid() };
    if !meta.is_dir() {
        return Err(usage(format!("{shown} is not a folder")));
    }
    if meta.uid() != me {
        return Err(usage(format!("{shown} is another user's (number {}): give a folder of your own", meta.uid())));
    }
    if meta.permissions().mode() & 0o077 != 0 {
        return Err(usage(format!(
            "other users can look into {shown}: make it private with chmod 700, or give another"
        )));
    }
    path.canonicalize().map_err(failed)
}

/// Writes a file that only its owner can read, durably and in one step: after a loss of power, the
/// old or the new contents are there, whole.
pub fn put(folder: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let new = folder.join(format!("{name}.new"));
    // One that an earlier write left behind may have another mode.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, folder.join(name))?;
    sync(folder)
}

/// Syncs a folder, so that the names in it are durable.
pub fn sync(folder: &Path) -> std::io::Result<()> {
    std::fs::File::open(folder)?.sync_all()
}

/// Locks the folder of a disk for this process. A process that has just ended, or started this one
/// in its place, may keep its locks for a moment: the kernel closes its files a little later.
///
/// # Errors
/// Another process has locked it, and keeps the lock.
pub fn lock_disk(disk: &RealDisk) -> std::io::Result<()> {
    for _ in 0..LOCK_ATTEMPTS {
        if disk.lock().is_ok() {
            return Ok(());
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    disk.lock()
}

/// Locks a folder, so that only this process uses the files in it.
pub fn lock(path: &Path) -> anyhow::Result<Arc<RealDisk>> {
    let disk = RealDisk::open(path).map_err(|e| usage(format!("{}: {e}", path.display())))?;
    disk.lock().map_err(|_| {
        usage(format!("{} is in use by another process: end that one first, or give another folder", path.display()))
    })?;
    Ok(disk)
}
