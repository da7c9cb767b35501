//! The folder on which a file system is mounted.

use crate::control;
use crate::hoarding::mount_of;
use crate::usage;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::BoxFuture;
use vfs::FileSystem;

/// What the process prints when it serves; `background` waits for it.
pub const READY: &str = "mounted at";
/// What the process prints when it serves without a mount.
pub const SERVES: &str = "serves";
/// What to say if there is neither a mount point nor `--no-mount`.
pub const NO_MOUNTPOINT: &str = "give the mount point, or --no-mount to serve other nodes without a mount";

/// Refuses a mount point that cannot be mounted on, after clearing a dead mount. A mount point that
/// does not exist is made later, if only its last part is missing.
pub fn check_mountpoint(mountpoint: &Path, data: &Path, allow_other: bool) -> anyhow::Result<()> {
    fuse::clear_dead(mountpoint).map_err(|e| usage(e.to_string()))?;
    check_apart(mountpoint, data)?;
    if control::check(mountpoint).is_ok() && mount_of(mountpoint).is_ok_and(|(root, path)| root == path) {
        let mountpoint = mountpoint.display();
        return Err(usage(format!(
            "{mountpoint} is a mount of starling already: choose another folder, or `starling down {mountpoint}` first"
        )));
    }
    let mountpoint = std::path::absolute(mountpoint).map_err(|e| usage(format!("mount point: {e}")))?;
    let missing = std::fs::symlink_metadata(&mountpoint).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
    let existing = mountpoint.parent().filter(|parent| missing && parent.is_dir()).unwrap_or(&mountpoint);
    fuse::check(existing, allow_other).map_err(|e| usage(e.to_string()))
}

/// Mounts a file system. Makes the mount point if only its last part is missing.
pub async fn mount(
    fs: Arc<dyn FileSystem>,
    mountpoint: &Path,
    options: fuse::MountOptions,
) -> anyhow::Result<fuse::Mount> {
    let mountpoint = mountpoint.to_path_buf();
    let mounted = tokio::task::spawn_blocking(move || {
        // If the folder cannot be made, mounting reports why.
        let _ = std::fs::create_dir(&mountpoint);
        fuse::mount(fs, &mountpoint, options)
    });
    mounted.await?.map_err(|e| usage(e.to_string()))
}

/// Waits until a mount ends; without one, for ever.
pub fn closed(mount: Option<&fuse::Mount>) -> BoxFuture<()> {
    match mount {
        Some(mount) => Box::pin(mount.closed()),
        None => Box::pin(std::future::pending()),
    }
}

/// Ends a mount. What it cannot do is logged. False if its last sync failed.
pub async fn unmount(mount: fuse::Mount) -> anyhow::Result<bool> {
    let unmounted = tokio::task::spawn_blocking(move || mount.unmount()).await?;
    if let Err(e) = &unmounted {
        tracing::warn!("unmount: {e}");
    }
    Ok(!matches!(unmounted, Err(fuse::UnmountError::NotDurable { .. })))
}

/// Refuses a mount point that contains a folder with data, or lies in it.
pub fn check_apart(mountpoint: &Path, data: &Path) -> anyhow::Result<()> {
    let whole = |path: &Path| {
        let absolute = std::path::absolute(path).map_err(|e| usage(format!("{}: {e}", path.display())))?;
        Ok::<_, anyhow::Error>(resolved(&absolute))
    };
    let (mountpoint, data) = (whole(mountpoint)?, whole(data)?);
    if mountpoint.starts_with(&data) || data.starts_with(&mountpoint) {
        let (mountpoint, data) = (mountpoint.display(), data.display());
        return Err(usage(format!("{mountpoint} would hide {data} or lie in it: choose folders beside each other")));
    }
    Ok(())
}

/// A path with its links resolved, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => resolved(parent).join(name),
        _ => path.to_path_buf(),
    })
}
