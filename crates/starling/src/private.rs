//! Folders of homes and caches: this user's alone, one process's at a time.

use crate::usage;
use host::real::RealDisk;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Makes a folder that only this user can look into, with all that lead to it; refuses one that is another user's, or that others can look
/// into.
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

/// The files in a folder, for this process alone.
pub fn lock(path: &Path) -> anyhow::Result<Arc<RealDisk>> {
    let disk = RealDisk::open(path).map_err(|e| usage(format!("{}: {e}", path.display())))?;
    disk.lock().map_err(|_| {
        usage(format!("{} is in use by another process: end that one first, or give another folder", path.display()))
    })?;
    Ok(disk)
}
