//! Operations of applications, by paths.

use host::SplitMix64;
use types::{FileId, FsError, Kind};
use vfs::fs::{Cred, FileSystem, Handle, OpenFlags, RenameFlags, SetAttr, XattrMode};

const ROOT: Cred = Cred::ROOT;
const READ_WRITE: OpenFlags = OpenFlags { read: true, write: true, append: false, truncate: false, execute: false };
/// The only extended attribute that the operations use.
pub const XATTR: &[u8] = b"user.mark";
/// Longest file that a random operation makes, roughly.
const SIZE_MAX: u64 = 60_000;

/// How a file's contents are changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    Replace,
    Append,
    At(u64),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    Make(String, u32),
    MakeDir(String),
    MakeSymlink(String, String),
    Link(String, String),
    Unlink(String),
    RemoveDir(String),
    Rename(String, String, RenameFlags),
    SetMode(String, u32),
    SetXattr(String, Vec<u8>),
    RemoveXattr(String),
    /// Makes the file if it is not there.
    Write(String, How, Vec<u8>),
    Truncate(String, u64),
    Read(String),
    List(String),
}

impl Op {
    /// The file whose contents the operation changes in more than one step, if it does.
    pub fn writes(&self) -> Option<&str> {
        match self {
            Op::Write(path, ..) | Op::Truncate(path, _) => Some(path),
            _ => None,
        }
    }

    /// A random operation below a directory. If it writes, it writes `tag`.
    pub fn random(random: &SplitMix64, top: &str, tag: &str) -> Op {
        let path = || random_path(random, top);
        match random.below(30) {
            0 | 1 => Op::Make(path(), [0o644, 0o600, 0o755][random.below(3) as usize]),
            2..=4 => Op::MakeDir(random_dir(random, top)),
            5 => Op::MakeSymlink(path(), tag.into()),
            6 | 7 => Op::Link(path(), path()),
            8..=10 => Op::Unlink(path()),
            11 => Op::RemoveDir(random_dir(random, top)),
            12 | 14 => Op::Rename(path(), path(), RenameFlags::default()),
            15 => Op::Rename(path(), path(), RenameFlags { no_replace: true, exchange: false }),
            13 => Op::Rename(random_dir(random, top), random_dir(random, top), RenameFlags::default()),
            16 => Op::Rename(path(), path(), RenameFlags { no_replace: false, exchange: true }),
            17 => Op::SetMode(path(), [0o644, 0o600, 0o755][random.below(3) as usize]),
            18 => Op::SetXattr(path(), tag.into()),
            19 => Op::RemoveXattr(path()),
            20..=25 => Op::Write(path(), random_how(random), written(random, tag)),
            26 => Op::Truncate(path(), random.below(300)),
            27 | 28 => Op::Read(path()),
            _ => Op::List(path()),
        }
    }
}

/// A random path. Directories mostly have other names than files, so that most operations find the
/// kind that they need.
pub fn random_path(random: &SplitMix64, top: &str) -> String {
    let mut path = top.to_string();
    for _ in 0..[0, 1, 1, 2][random.below(4) as usize] {
        path += ["/a", "/a", "/b"][random.below(3) as usize];
    }
    path + ["/x", "/y", "/z.txt", "/x", "/y", "/z.txt", "/a", "/b"][random.below(8) as usize]
}

/// A random path of a directory.
fn random_dir(random: &SplitMix64, top: &str) -> String {
    let path = random_path(random, top);
    let (dir, name) = split(&path);
    let name = if random.chance(5, 6) { ["a", "a", "b"][random.below(3) as usize] } else { name };
    format!("{dir}/{name}")
}

fn random_how(random: &SplitMix64) -> How {
    match random.below(4) {
        0 => How::Append,
        1 => How::At(random.below(100)),
        2 => How::At(random.below(SIZE_MAX)),
        _ => How::Replace,
    }
}

/// The bytes to write: a tag, and sometimes many bytes after it.
fn written(random: &SplitMix64, tag: &str) -> Vec<u8> {
    let mut bytes = tag.as_bytes().to_vec();
    let len = match random.below(4) {
        0 => random.below(SIZE_MAX) as usize,
        _ => random.below(100) as usize,
    };
    let fill = random.below(26) as u8 + b'a';
    bytes.resize(bytes.len() + len, fill);
    bytes
}

/// Bytes that no compression makes fewer.
pub fn noise(len: usize) -> Vec<u8> {
    let random = SplitMix64::new(len as u64);
    (0..len).map(|_| random.below(256) as u8).collect()
}

pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// The id of a path. This and the functions below act as the superuser, unless they take a user.
pub async fn find(fs: &dyn FileSystem, path: &str) -> Result<FileId, FsError> {
    find_as(&ROOT, fs, path).await
}

pub async fn find_as(cred: &Cred, fs: &dyn FileSystem, path: &str) -> Result<FileId, FsError> {
    let mut at = FileId::ROOT;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at = fs.lookup(cred, at, name.as_bytes()).await?.attr.id;
    }
    Ok(at)
}

pub async fn parent<'a>(fs: &dyn FileSystem, path: &'a str) -> Result<(FileId, &'a [u8]), FsError> {
    parent_as(&ROOT, fs, path).await
}

pub async fn parent_as<'a>(cred: &Cred, fs: &dyn FileSystem, path: &'a str) -> Result<(FileId, &'a [u8]), FsError> {
    let (dir, name) = split(path);
    Ok((find_as(cred, fs, dir).await?, name.as_bytes()))
}

/// All of a file.
pub async fn read_all(fs: &dyn FileSystem, id: FileId) -> Result<Vec<u8>, FsError> {
    read_all_as(&ROOT, fs, id).await
}

pub async fn read_all_as(cred: &Cred, fs: &dyn FileSystem, id: FileId) -> Result<Vec<u8>, FsError> {
    let handle = fs.open(cred, id, OpenFlags { read: true, ..OpenFlags::default() }).await?;
    let bytes = read_open(fs, id, handle).await;
    fs.release(id, handle, None).await?;
    bytes
}

pub async fn read_open(fs: &dyn FileSystem, id: FileId, handle: Handle) -> Result<Vec<u8>, FsError> {
    Ok(fs.read(id, handle, 0, 1 << 20).await?.to_vec())
}

/// Opens a file for writing, and makes it if it does not exist.
pub async fn open_to_write(fs: &dyn FileSystem, path: &str, how: How) -> Result<(FileId, Handle), FsError> {
    open_to_write_as(&ROOT, fs, path, how).await
}

async fn open_to_write_as(cred: &Cred, fs: &dyn FileSystem, path: &str, how: How) -> Result<(FileId, Handle), FsError> {
    let (dir, name) = parent_as(cred, fs, path).await?;
    let flags = OpenFlags { append: how == How::Append, truncate: how == How::Replace, ..READ_WRITE };
    match fs.lookup(cred, dir, name).await {
        Ok(found) => Ok((found.attr.id, fs.open(cred, found.attr.id, flags).await?)),
        Err(FsError::NotFound) => {
            let (made, handle) = fs.create(cred, dir, name, 0o644, 0, flags).await?;
            Ok((made.attr.id, handle))
        }
        Err(error) => Err(error),
    }
}

/// Flushes and releases a handle, as close(2) does.
pub async fn close(fs: &dyn FileSystem, id: FileId, handle: Handle) -> Result<(), FsError> {
    let flushed = fs.flush(id, handle, 0).await;
    fs.release(id, handle, None).await?;
    flushed
}

pub async fn perform(fs: &dyn FileSystem, op: &Op) -> Result<(), FsError> {
    perform_as(&ROOT, fs, op).await
}

pub async fn perform_as(cred: &Cred, fs: &dyn FileSystem, op: &Op) -> Result<(), FsError> {
    match op {
        Op::Make(path, mode) => {
            let (dir, name) = parent_as(cred, fs, path).await?;
            let node = vfs::fs::NewNode { kind: Kind::File, mode: *mode, umask: 0, rdev: 0 };
            fs.mknod(cred, dir, name, node).await?;
        }
        Op::MakeDir(path) => {
            let (dir, name) = parent_as(cred, fs, path).await?;
            fs.mkdir(cred, dir, name, 0o755, 0).await?;
        }
        Op::MakeSymlink(path, target) => {
            let (dir, name) = parent_as(cred, fs, path).await?;
            fs.symlink(cred, dir, name, target.as_bytes()).await?;
        }
        Op::Link(from, to) => {
            let (file, (dir, name)) = (find_as(cred, fs, from).await?, parent_as(cred, fs, to).await?);
            fs.link(cred, file, dir, name).await?;
        }
        Op::Unlink(path) => {
            let (dir, name) = parent_as(cred, fs, path).await?;
            fs.unlink(cred, dir, name).await?;
        }
        Op::RemoveDir(path) => {
            let (dir, name) = parent_as(cred, fs, path).await?;
            fs.rmdir(cred, dir, name).await?;
        }
        Op::Rename(from, to, flags) => {
            let ((dir, name), (to, to_name)) = (parent_as(cred, fs, from).await?, parent_as(cred, fs, to).await?);
            fs.rename(cred, dir, name, to, to_name, *flags).await?;
        }
        Op::SetMode(path, mode) => {
            let set = SetAttr { mode: Some(*mode), ..SetAttr::default() };
            fs.setattr(cred, find_as(cred, fs, path).await?, None, set).await?;
        }
        Op::SetXattr(path, value) => {
            fs.setxattr(cred, find_as(cred, fs, path).await?, XATTR, value, XattrMode::Any).await?;
        }
        Op::RemoveXattr(path) => fs.removexattr(cred, find_as(cred, fs, path).await?, XATTR).await?,
        Op::Write(path, how, bytes) => {
            let (id, handle) = open_to_write_as(cred, fs, path, *how).await?;
            let offset = if let How::At(offset) = how { *offset } else { 0 };
            let written = fs.write(cred, id, handle, offset, bytes).await;
            close(fs, id, handle).await?;
            written?;
        }
        Op::Truncate(path, size) => {
            let set = SetAttr { size: Some(*size), ..SetAttr::default() };
            fs.setattr(cred, find_as(cred, fs, path).await?, None, set).await?;
        }
        Op::Read(path) => drop(read_all_as(cred, fs, find_as(cred, fs, path).await?).await?),
        Op::List(path) => {
            let dir = find_as(cred, fs, path).await?;
            let handle = fs.opendir(cred, dir).await?;
            let listed = fs.readdir(dir, handle, 0, usize::MAX, true).await;
            fs.releasedir(dir, handle).await?;
            listed?;
        }
    }
    Ok(())
}
