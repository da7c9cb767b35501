//! Which file system a file is on, in terms that outlast a mount.
//!
//! Linux numbers devices in the order in which it finds them, and gives file systems without a
//! device a new number at each mount. So a volume is named by the first of these that exists. The
//! order is fixed, so the answer does not depend on the time of the question.
//!
//! 1. The file system's own id (`f_fsid`), unless it is 0 or the device number again. ext4, btrfs
//!    (of each subvolume) and ZFS derive it from what is on the disk; tmpfs draws it at each mount.
//! 2. Its UUID (Linux 6.9). XFS and F2FS have one, and a device number for an id.
//! 3. The device number. FAT and network file systems have no more to offer.
//!
//! File systems in user space (FUSE) have none of these that lasts. Starling's own tell their UUID
//! in an attribute ([`XATTR`]), and never use an index number of a file again. This module believes
//! that attribute only of the exported file system, which its owner chose to trust, and not of file
//! systems that users may have mounted below it.

use crate::alias::alias;
use crate::stat;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, Statx, makedev};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};
use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use types::Kind;

/// Most volumes that are remembered. Beyond it, each question costs system calls.
const VOLUME_COUNT_MAX: usize = 1_024;

/// The extended attribute by which a Starling file system tells its UUID, of 16 bytes.
pub const XATTR: &CStr = c"starling.volume";

/// Longest encoding of a volume, in bytes.
pub const VOLUME_LEN_MAX: usize = 2 + 16;

/// A file system, in terms that outlast a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VolumeMark {
    /// The file system's own id.
    Id(u64),
    /// Its UUID.
    Uuid(Vec<u8>),
    /// The number of its device.
    Device(u64),
    /// The UUID of a Starling file system.
    Starling([u8; 16]),
}

/// `struct fsuuid2`.
#[repr(C)]
struct RawUuid {
    len: u8,
    bytes: [u8; 16],
}

const GET_UUID: Opcode = opcode::read::<RawUuid>(0x15, 0);

impl VolumeMark {
    /// Returns the volume of an open file, which `stat` describes; `parent` opens its directory.
    fn of(file: BorrowedFd, stat: &Statx, parent: impl Parent) -> rustix::io::Result<VolumeMark> {
        let device = device(stat);
        let id = rustix::fs::fstatvfs(file)?.f_fsid;
        if id != 0 && id != device {
            return Ok(VolumeMark::Id(id));
        }
        // Kernels that can tell UUIDs have unique mount ids, too.
        let Some(mount) = stat::mount(stat) else { return Ok(VolumeMark::Device(device)) };
        Ok(uuid(file, stat, mount, parent)?.map_or(VolumeMark::Device(device), VolumeMark::Uuid))
    }

    /// Returns the Starling file system that an open directory is in, if it is in one. Only for a
    /// file system that is to be believed.
    pub fn starling(dir: BorrowedFd) -> rustix::io::Result<Option<VolumeMark>> {
        if !stat::is_in_user_space(dir)? {
            return Ok(None);
        }
        let mut uuid = [0; 17];
        match rustix::fs::getxattr(alias(dir), XATTR, &mut uuid) {
            Ok(16) => Ok(uuid.first_chunk().map(|uuid| VolumeMark::Starling(*uuid))),
            // The file system fails to answer now. Its answer may come later, and would then make
            // it another volume.
            Err(e @ (Errno::IO | Errno::NOTCONN | Errno::TIMEDOUT | Errno::INTR)) => Err(e),
            // Other file systems may answer anything to a name that they do not know.
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Encodes the volume. No encoding is the beginning of another.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            VolumeMark::Id(id) => [&[0][..], &id.to_le_bytes()].concat(),
            VolumeMark::Uuid(uuid) => [&[1, uuid.len() as u8][..], uuid].concat(),
            VolumeMark::Device(device) => [&[2][..], &device.to_le_bytes()].concat(),
            VolumeMark::Starling(uuid) => [&[3][..], uuid].concat(),
        }
    }
}

/// Opens the directory that a file is in, if it has one.
pub trait Parent: FnOnce() -> Option<Arc<OwnedFd>> {}

impl<F: FnOnce() -> Option<Arc<OwnedFd>>> Parent for F {}

fn device(stat: &Statx) -> u64 {
    makedev(stat.stx_dev_major, stat.stx_dev_minor)
}

fn can_be_asked(stat: &Statx) -> bool {
    matches!(stat::kind_of(stat), Kind::File | Kind::Directory)
}

/// Returns the UUID, if the file system has one. Fails if this cannot be known now.
fn uuid(file: BorrowedFd, stat: &Statx, mount: u64, parent: impl Parent) -> rustix::io::Result<Option<Vec<u8>>> {
    // Symlinks and special files cannot be opened for the question. Their directories give the same
    // answer.
    let parent = if stat::kind_of(stat) == Kind::Directory { None } else { parent() };
    let same = |dir: &Statx| stat::mount(dir) == Some(mount) && device(dir) == device(stat);
    let asked = match &parent {
        Some(dir) if same(&stat::stat(dir.as_fd())?) => dir.as_fd(),
        _ if can_be_asked(stat) => file,
        // The file is a mount point by itself, or has no name.
        _ => return Ok(None),
    };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(alias(asked), flags, Mode::empty())?;
    // SAFETY: this number asks for a `struct fsuuid2`. A driver that uses the same number for
    // something else is told the same size.
    match unsafe { ioctl(opened, Getter::<GET_UUID, RawUuid>::new()) } {
        Ok(raw) => Ok(raw.bytes.get(..raw.len.into()).filter(|uuid| uuid.iter().any(|byte| *byte != 0)).map(Vec::from)),
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Volumes that were found, by mount and device: one mount of btrfs has a device for each
/// subvolume.
pub struct Volumes {
    /// The root's device, if it is a Starling file system.
    starling: Option<(u64, VolumeMark)>,
    asked: Mutex<HashMap<(u64, u64), VolumeMark>>,
}

impl Volumes {
    /// Makes a table for the files below an open directory, which `stat` describes.
    pub fn below(root: BorrowedFd, stat: &Statx) -> rustix::io::Result<Volumes> {
        let starling = VolumeMark::starling(root)?.map(|volume| (device(stat), volume));
        Ok(Volumes { starling, asked: Mutex::default() })
    }

    /// Returns the volume of an open file, which `stat` describes; `parent` opens its directory.
    pub fn of(&self, file: BorrowedFd, stat: &Statx, parent: impl Parent) -> rustix::io::Result<VolumeMark> {
        if let Some((_, volume)) = self.starling.as_ref().filter(|(root, _)| *root == device(stat)) {
            return Ok(volume.clone());
        }
        let Some(mount) = stat::mount(stat) else { return VolumeMark::of(file, stat, parent) };
        let key = (mount, device(stat));
        let known = self.asked.lock().get(&key).cloned();
        if let Some(volume) = known {
            return Ok(volume);
        }
        let volume = VolumeMark::of(file, stat, parent)?;
        // A device number found for a special file is not certain: another file of the same mount
        // may give a better answer.
        let is_certain = !matches!(volume, VolumeMark::Device(_)) || can_be_asked(stat);
        let mut known = self.asked.lock();
        if is_certain && known.len() < VOLUME_COUNT_MAX {
            known.insert(key, volume.clone());
        }
        Ok(volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn open(path: &Path) -> Arc<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Arc::new(rustix::fs::open(path, flags, Mode::empty()).expect("open"))
    }

    fn ask<T>(path: &Path, ask: impl Fn(BorrowedFd, &Statx) -> rustix::io::Result<T>) -> T {
        let file = open(path);
        ask(file.as_fd(), &stat::stat(file.as_fd()).expect("stat")).expect("answer")
    }

    #[test]
    fn all_files_of_a_file_system_have_one_volume() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("file");
        File::create(&path).expect("create");
        let volume = ask(folder.path(), |dir, stat| VolumeMark::of(dir, stat, || None));
        let volumes = ask(folder.path(), Volumes::below);
        for _ in 0..2 {
            assert_eq!(ask(&path, |file, stat| volumes.of(file, stat, || None)), volume);
        }
        assert_ne!(volume, ask(Path::new("/proc"), |dir, stat| VolumeMark::of(dir, stat, || None)));
        assert!(volume.encode().len() <= VOLUME_LEN_MAX);
    }

    /// XFS has only a UUID; tmpfs has one, too.
    #[test]
    fn regression_a_symlink_has_the_uuid_of_its_directory() {
        for folder in [tempfile::tempdir(), tempfile::tempdir_in("/dev/shm")] {
            let folder = folder.expect("temporary folder");
            let (file, link) = (folder.path().join("file"), folder.path().join("link"));
            File::create(&file).expect("create");
            symlink("file", &link).expect("symlink");
            let uuid = |file: BorrowedFd, stat: &Statx| {
                let parent = || Some(open(folder.path()));
                stat::mount(stat).map_or(Ok(None), |mount| uuid(file, stat, mount, parent))
            };
            let expected = ask(folder.path(), uuid);
            assert_eq!([ask(&file, uuid), ask(&link, uuid)], [expected.clone(), expected]);
        }
    }
}
