//! Which file system a file is on, in words that last longer than a mount.
//!
//! Device numbers are given in the order in which devices are found, and file systems without a device get a new one at each
//! mount. What is asked instead, in this order, so that the answer does not depend on when it is asked:
//!
//! 1. The file system's own id (`f_fsid`), unless it is 0 or the device number again. ext4, btrfs (of each subvolume) and ZFS
//!    make it of what is on the disk, tmpfs draws it at each mount.
//! 2. Its UUID (Linux 6.9). XFS and F2FS have one, and a device number for an id.
//! 3. The device number. Of FAT, FUSE and network file systems there is no more to know.

use crate::filesystem::alias;
use crate::stat;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, Statx, makedev};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use types::Kind;

/// Most volumes that are remembered.
const VOLUME_COUNT_MAX: usize = 1_024;

/// Longest encoding.
pub const VOLUME_LEN_MAX: usize = 2 + 16;

/// See the module's header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Volume {
    /// The file system's own id.
    Id(u64),
    /// Its UUID.
    Uuid(Vec<u8>),
    /// The number of its device.
    Device(u64),
}

/// `struct fsuuid2`.
#[repr(C)]
struct RawUuid {
    len: u8,
    bytes: [u8; 16],
}

const GET_UUID: Opcode = opcode::read::<RawUuid>(0x15, 0);

impl Volume {
    /// Of the open file that `stat` was told of.
    pub fn of(file: BorrowedFd, stat: &Statx) -> rustix::io::Result<Volume> {
        let device = makedev(stat.stx_dev_major, stat.stx_dev_minor);
        let id = rustix::fs::fstatvfs(file)?.f_fsid;
        if id != 0 && id != device {
            return Ok(Volume::Id(id));
        }
        Ok(uuid(file, stat)?.map_or(Volume::Device(device), Volume::Uuid))
    }

    /// No volume's is the beginning of another's.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Volume::Id(id) => [&[0][..], &id.to_le_bytes()].concat(),
            Volume::Uuid(uuid) => [&[1, uuid.len() as u8][..], uuid].concat(),
            Volume::Device(device) => [&[2][..], &device.to_le_bytes()].concat(),
        }
    }
}

/// The UUID, if the file system tells one. Errs if this cannot be known now.
fn uuid(file: BorrowedFd, stat: &Statx) -> rustix::io::Result<Option<Vec<u8>>> {
    // Only these can be opened for asking. The root of a mount is hardly ever another.
    if !matches!(stat::kind_of(stat), Kind::File | Kind::Directory) {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(alias(file), flags, Mode::empty())?;
    // SAFETY: this number asks for a `struct fsuuid2`, and others that had it would get no more room than that.
    match unsafe { ioctl(opened, Getter::<GET_UUID, RawUuid>::new()) } {
        Ok(raw) => Ok(raw.bytes.get(..raw.len.into()).filter(|uuid| uuid.iter().any(|byte| *byte != 0)).map(Vec::from)),
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Volumes that were asked for, by mount and device: a mount of btrfs has devices of its own for its subvolumes.
#[derive(Default)]
pub struct Volumes(Mutex<HashMap<(u64, u64), Volume>>);

impl Volumes {
    /// The volume of an open file that `stat` was told of.
    pub fn of(&self, file: BorrowedFd, stat: &Statx) -> rustix::io::Result<Volume> {
        let Some(mount) = stat::mount(stat) else { return Volume::of(file, stat) };
        let key = (mount, makedev(stat.stx_dev_major, stat.stx_dev_minor));
        let known = self.0.lock().get(&key).cloned();
        if let Some(volume) = known {
            return Ok(volume);
        }
        let volume = Volume::of(file, stat)?;
        let mut known = self.0.lock();
        if known.len() >= VOLUME_COUNT_MAX {
            known.clear();
        }
        known.insert(key, volume.clone());
        Ok(volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::path::Path;

    fn ask<T>(path: &Path, ask: impl Fn(BorrowedFd, &Statx) -> rustix::io::Result<T>) -> T {
        let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("open");
        ask(file.as_fd(), &stat::stat(file.as_fd()).expect("stat")).expect("answer")
    }

    #[test]
    fn all_files_of_a_file_system_have_one_volume() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("file");
        File::create(&path).expect("create");
        assert_eq!(ask(&path, uuid), ask(folder.path(), uuid));
        let volume = ask(&path, Volume::of);
        assert_eq!(volume, ask(folder.path(), Volume::of));
        let volumes = Volumes::default();
        for _ in 0..2 {
            assert_eq!(ask(&path, |file, stat| volumes.of(file, stat)), volume);
        }
        assert_ne!(volume, ask(Path::new("/proc"), Volume::of));
        assert!(volume.encode().len() <= VOLUME_LEN_MAX);
    }
}
