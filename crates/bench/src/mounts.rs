//! Mount points: whether something is mounted, what scenarios need of it, and unmounting by force.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::process::Usage;

/// A line of `/proc/self/mountinfo`.
struct Mount {
    minor: u32,
    kind: String,
}

/// A mounted file system that scenarios run on.
pub trait Mounted {
    /// The resources of its servers and clients so far. Zero for the local disk.
    fn usage(&self) -> Usage;

    /// Resets the peak of memory.
    fn reset_peak(&self);

    /// Empties the client's caches by mounting again, and the machine's page cache.
    fn make_cold(&mut self) -> Result<()>;
}

/// True if a file system is mounted at `path`.
pub fn is_mounted(path: &Path) -> Result<bool> {
    Ok(find(path)?.is_some())
}

/// Unmounts `path` in any state of its file system. First aborts a FUSE connection, which frees
/// every process that waits for it, then detaches the mount. Does nothing if nothing is mounted
/// there.
pub fn force_unmount(path: &Path) -> Result<()> {
    while let Some(mount) = find(path)? {
        if mount.kind.starts_with("fuse") {
            let abort = format!("/sys/fs/fuse/connections/{}/abort", mount.minor);
            // May fail: the control file system is not mounted everywhere. Detaching works without
            // it.
            let _ = std::fs::write(&abort, "1");
        }
        let name = CString::new(path.as_os_str().as_bytes()).context("mount point with a NUL in its name")?;
        // SAFETY: the name is a C string that outlives the call.
        if unsafe { libc::umount2(name.as_ptr(), libc::MNT_DETACH) } != 0 {
            let error = std::io::Error::last_os_error();
            return Err(error).with_context(|| format!("detach {}", path.display()));
        }
    }
    Ok(())
}

fn find(path: &Path) -> Result<Option<Mount>> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").context("read the mount table")?;
    Ok(find_in(&text, path))
}

fn find_in(mountinfo: &str, path: &Path) -> Option<Mount> {
    let wanted = path.to_str()?;
    mountinfo.lines().rev().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let fields: Vec<&str> = left.split(' ').collect();
        let minor = fields.get(2)?.split_once(':')?.1.parse().ok()?;
        // Spaces are written as octal escapes.
        let point = fields.get(4)?.replace("\\040", " ");
        let kind = right.split(' ').next()?.to_owned();
        (point == wanted).then_some(Mount { minor, kind })
    })
}

/// Writes out and drops the page cache.
pub fn drop_caches() -> Result<()> {
    sync_all();
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("drop the page cache (root?)")
}

/// sync(2): the kernel writes everything that it holds back.
pub fn sync_all() {
    // SAFETY: sync takes and returns nothing.
    unsafe { libc::sync() };
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        90 22 0:51 / /tmp/a\\040b rw,nosuid shared:3 - fuse.fusept fusept rw,user_id=0\n";

    #[test]
    fn mount_is_found_by_its_unescaped_name() {
        let mount = find_in(TABLE, Path::new("/tmp/a b")).unwrap();
        assert_eq!((mount.minor, mount.kind.as_str()), (51, "fuse.fusept"));
        assert!(find_in(TABLE, Path::new("/tmp/a")).is_none());
    }

    #[test]
    fn forcing_what_is_not_mounted_does_nothing() {
        force_unmount(Path::new("/nonexistent/mount point")).unwrap();
    }
}
