//! What is mounted where, from /proc/self/mountinfo. Unlike stat(2), reading it calls no file
//! system, so it cannot hang.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The type of Starling's mounts in /proc/self/mountinfo.
pub(crate) const KIND: &str = "fuse.starling";

/// The device number of a mount, as `MAJOR:MINOR`. No two existing mounts share one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device(pub(crate) String);

impl Device {
    /// The number of the mount's FUSE connection, if it is a FUSE mount: the minor number, because
    /// the major one is 0.
    pub(crate) fn connection(&self) -> Option<&str> {
        self.0.strip_prefix("0:")
    }
}

fn mounts() -> Option<Vec<u8>> {
    std::fs::read("/proc/self/mountinfo").ok()
}

/// The device of the topmost mount on `mountpoint` (absolute, without symlinks).
pub(crate) fn device_at(mountpoint: &Path) -> Option<Device> {
    find(&mounts()?, mountpoint).map(|(device, _)| device)
}

/// The device of the topmost mount on `mountpoint`, if it is a mount of this program.
pub(crate) fn own_mount_at(mountpoint: &Path) -> Option<Device> {
    find(&mounts()?, mountpoint).filter(|(_, kind)| kind == KIND).map(|(device, _)| device)
}

/// True if a file system is mounted below `mountpoint`, or if mountinfo cannot be read.
pub(crate) fn has_mounts_below(mountpoint: &Path) -> bool {
    mounts().is_none_or(|mounts| any_below(&mounts, mountpoint))
}

fn any_below(mountinfo: &[u8], mountpoint: &Path) -> bool {
    let points = mountinfo.split(|b| *b == b'\n').filter_map(|line| line.split(|b| *b == b' ').nth(4));
    points.map(unescape).any(|at| Path::new(&at).starts_with(mountpoint) && Path::new(&at) != mountpoint)
}

/// The device and type of the topmost mount on `mountpoint`: the last line that names it. Fields:
/// id, parent, device, root, mount point, options, any number of tags, `-`, type, ...
fn find(mountinfo: &[u8], mountpoint: &Path) -> Option<(Device, String)> {
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let mut found = None;
    for line in mountinfo.split(|b| *b == b'\n') {
        let mut fields = line.split(|b| *b == b' ').skip(2);
        if let (Some(device), Some(_), Some(at)) = (fields.next(), fields.next(), fields.next())
            && unescape(at).as_bytes() == mountpoint.as_os_str().as_bytes()
        {
            let kind = fields.skip_while(|field| *field != b"-").nth(1).unwrap_or_default();
            found = Some((Device(text(device)), text(kind)));
        }
    }
    found
}

/// Undoes mountinfo's escapes: space, tab, newline and backslash are written as a backslash and
/// three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        if first == b'\\'
            && let Some(digits) = after.get(..3)
            && digits.iter().all(|d| (b'0'..=b'7').contains(d))
        {
            out.push(digits.iter().fold(0u8, |value, d| value.wrapping_mul(8).wrapping_add(d - b'0')));
            rest = &after[3..];
        } else {
            out.push(first);
            rest = after;
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = b"22 1 253:0 / / rw,relatime - ext4 /dev/vda rw\n\
        40 22 0:50 / /mnt/a\\040b rw shared:1 - fuse.starling starling rw\n\
        41 40 0:51 / /mnt/a\\040b rw - fuse.starling starling rw\n\
        rubbish\n";

    #[test]
    fn topmost_mount_is_found_with_blanks_in_its_path() {
        let found = |path: &str| find(SAMPLE, Path::new(path)).map(|(device, kind)| (device.0, kind));
        assert_eq!(found("/mnt/a b"), Some(("0:51".into(), KIND.into())));
        assert_eq!(found("/"), Some(("253:0".into(), "ext4".into())));
        assert_eq!(found("/mnt"), None);
        assert_eq!(Device("0:51".into()).connection(), Some("51"));
    }

    #[test]
    fn mounts_below_another_are_seen() {
        assert!(any_below(SAMPLE, Path::new("/mnt")));
        assert!(!any_below(SAMPLE, Path::new("/mnt/a b")), "what is on it is not below it");
        assert!(!any_below(SAMPLE, Path::new("/mnt/a")));
    }

    #[test]
    fn unescape_leaves_a_lone_backslash() {
        assert_eq!(unescape(b"a\\134b\\9\\"), OsString::from("a\\b\\9\\"));
    }

    #[test]
    fn this_process_has_a_root_mount() {
        assert!(device_at(Path::new("/")).is_some());
    }
}
