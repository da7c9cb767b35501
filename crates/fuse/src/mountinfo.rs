//! What is mounted where, from /proc/self/mountinfo. Unlike stat(2) this asks no file system, so it cannot hang.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The device number of a mount, as `MAJOR:MINOR`; no two mounts that exist at one time share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device(pub(crate) String);

/// The device of what is mounted on `mountpoint` (absolute, without symlinks) and visible there, i.e. topmost.
pub(crate) fn device_at(mountpoint: &Path) -> Option<Device> {
    find(&std::fs::read("/proc/self/mountinfo").ok()?, mountpoint)
}

/// The last line for a mount point is the topmost mount. Fields: id, parent, device, root, mount point, ...
fn find(mountinfo: &[u8], mountpoint: &Path) -> Option<Device> {
    let mut found = None;
    for line in mountinfo.split(|b| *b == b'\n') {
        let mut fields = line.split(|b| *b == b' ').skip(2);
        if let (Some(device), Some(_), Some(at)) = (fields.next(), fields.next(), fields.next())
            && unescape(at).as_bytes() == mountpoint.as_os_str().as_bytes()
        {
            found = Some(Device(String::from_utf8_lossy(device).into_owned()));
        }
    }
    found
}

/// Space, tab, newline and backslash are written as a backslash and three octal digits.
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
        assert_eq!(find(SAMPLE, Path::new("/mnt/a b")), Some(Device("0:51".into())));
        assert_eq!(find(SAMPLE, Path::new("/")), Some(Device("253:0".into())));
        assert_eq!(find(SAMPLE, Path::new("/mnt")), None);
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
