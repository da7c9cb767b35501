//! Which file system a file is on, in words that last longer than a mount.
//!
//! Device numbers are given in the order in which devices are found, and file systems without a
//! device get a new one at each mount. What is asked instead, in this order, so that the answer
//! does not depend on when it is asked:
//!
//! 1. The file system's own id (`f_fsid`), unless it is 0 or the device number again. ext4, btrfs
//!    (of each subvolume) and ZFS make it of what is on the disk, tmpfs draws it at each mount.
//! 2. Its UUID (Linux 6.9). XFS and F2FS have one, and a device number for an id.
//! 3. The device number. Of FAT and network file systems there is no more to know.
//!
//! File systems in user space (FUSE) have neither; Starling's own tell their UUID in an attribute
//! ([`XATTR`]), and their files' index numbers are never used again. That is believed of the file
//! system that is exported, whose owner chose to trust it, and of no other that users may have
//! mounted below it.

use crate::filesystem::alias;
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

/// Most volumes that are remembered.
const VOLUME_COUNT_MAX: usize = 1_024;

/// The extended attribute by which a Starling file system tells its UUID, of 16 bytes.
pub const XATTR: &CStr = c"starling.volume";

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

impl Volume {
    /// Of the open file that `stat` was told of; `parent` opens its directory.
    fn of(file: BorrowedFd, stat: &Statx, parent: impl Parent) -> rustix::io::Result<Volume> {
        let device = device(stat);
        let id = rustix::fs::fstatvfs(file)?.f_fsid;
        if id != 0 && id != device {
            return Ok(Volume::Id(id));
        }
        // Kernels that tell UUIDs tell mounts apart, too.
        let Some(mount) = stat::mount(stat) else { return Ok(Volume::Device(device)) };
        Ok(uuid(file, stat, mount, parent)?.map_or(Volume::Device(device), Volume::Uuid))
    }

    /// The Starling file system that an open directory is in, if it is in one; only if that is to
    /// be believed.
    pub fn starling(dir: BorrowedFd) -> rustix::io::Result<Option<Volume>> {
        if !stat::is_in_user_space(dir)? {
            return Ok(None);
        }
        let mut uuid = [0; 17];
        match rustix::fs::getxattr(alias(dir), XATTR, &mut uuid) {
            Ok(16) => Ok(uuid.first_chunk().map(|uuid| Volume::Starling(*uuid))),
            // Whoever is there to ask, and may make it another file system later.
            Err(e @ (Errno::IO | Errno::NOTCONN | Errno::TIMEDOUT | Errno::INTR)) => Err(e),
            // Others answer whatever they like to names that they do not know.
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// No volume's is the beginning of another's.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Volume::Id(id) => [&[0][..], &id.to_le_bytes()].concat(),
            Volume::Uuid(uuid) => [&[1, uuid.len() as u8][..], uuid].concat(),
            Volume::Device(device) => [&[2][..], &device.to_le_bytes()].concat(),
            Volume::Starling(uuid) => [&[3][..], uuid].concat(),
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

/// The UUID, if the file system tells one. Errs if this cannot be known now.
fn uuid(file: BorrowedFd, stat: &Statx, mount: u64, parent: impl Parent) -> rustix::io::Result<Option<Vec<u8>>> {
    // Symlinks and special files cannot be opened for asking, and their directories answer the
    // same.
    let parent = if stat::kind_of(stat) == Kind::Directory { None } else { parent() };
    let same = |dir: &Statx| stat::mount(dir) == Some(mount) && device(dir) == device(stat);
    let asked = match &parent {
        Some(dir) if same(&stat::stat(dir.as_fd())?) => dir.as_fd(),
        _ if can_be_asked(stat) => file,
        // Of a mount that is nothing else, or without a name.
        _ => return Ok(None),
    };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(alias(asked), flags, Mode::empty())?;
    // SAFETY: this number asks for a `struct fsuuid2`, and others that had it would get no more
    // room than that.
    match unsafe { ioctl(opened, Getter::<GET_UUID, RawUuid>::new()) } {
        Ok(raw) => Ok(raw.bytes.get(..raw.len.into()).filter(|uuid| uuid.iter().any(|byte| *byte != 0)).map(Vec::from)),
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Volumes that were asked for, by mount and device: a mount of btrfs has devices of its own for
/// its subvolumes.
pub struct Volumes {
    /// The root's device, if that is a Starling file system.
    starling: Option<(u64, Volume)>,
    asked: Mutex<HashMap<(u64, u64), Volume>>,
}

impl Volumes {
    /// Below the open directory that `stat` was told of.
    pub fn below(root: BorrowedFd, stat: &Statx) -> rustix::io::Result<Volumes> {
        let starling = Volume::starling(root)?.map(|volume| (device(stat), volume));
        Ok(Volumes { starling, asked: Mutex::default() })
    }

    /// The volume of an open file that `stat` was told of; `parent` opens its directory.
    pub fn of(&self, file: BorrowedFd, stat: &Statx, parent: impl Parent) -> rustix::io::Result<Volume> {
        if let Some((_, volume)) = self.starling.as_ref().filter(|(root, _)| *root == device(stat)) {
            return Ok(volume.clone());
        }
        let Some(mount) = stat::mount(stat) else { return Volume::of(file, stat, parent) };
        let key = (mount, device(stat));
        let known = self.asked.lock().get(&key).cloned();
        if let Some(volume) = known {
            return Ok(volume);
        }
        let volume = Volume::of(file, stat, parent)?;
        // Others on the same mount may be there to ask, where a special file is not.
        let is_certain = !matches!(volume, Volume::Device(_)) || can_be_asked(stat);
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
        let volume = ask(folder.path(), |dir, stat| Volume::of(dir, stat, || None));
        let volumes = ask(folder.path(), Volumes::below);
        for _ in 0..2 {
            assert_eq!(ask(&path, |file, stat| volumes.of(file, stat, || None)), volume);
        }
        assert_ne!(volume, ask(Path::new("/proc"), |dir, stat| Volume::of(dir, stat, || None)));
        assert!(volume.encode().len() <= VOLUME_LEN_MAX);
    }

    /// XFS has nothing else to tell; tmpfs has a UUID, too.
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
