//! The calls that programs make, each of them one request to a file system, and their answers.

use bytes::Bytes;
use std::collections::BTreeSet;
use std::task::{Context, Poll, Waker};
use types::{Attr, FileId, FsError};
use vfs::fs::{
    Appended, Cred, DirEntry, Entry, FileLock, FileSystem, Handle, LockSpace, OpenFlags, RenameFlags, SetAttr,
    XattrMode,
};

/// Number of an open file. A client never gives a number twice.
pub type OpenNumber = u64;

/// Entries of one listing, at most: more than any directory has, so that one request lists all.
const LISTING_COUNT: usize = 1000;

/// Listings begin after `.` and `..`, which a client may answer alone.
const COOKIE_DOT_DOT: u64 = 2;

/// One request. Files are named by id; open files by number.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Call {
    Lookup {
        dir: FileId,
        name: String,
    },
    Getattr {
        id: FileId,
    },
    Create {
        dir: FileId,
        name: String,
        mode: u32,
        open: OpenNumber,
        append: bool,
    },
    MakeDirectory {
        dir: FileId,
        name: String,
    },
    Symlink {
        dir: FileId,
        name: String,
        target: String,
    },
    Link {
        id: FileId,
        dir: FileId,
        name: String,
    },
    Unlink {
        dir: FileId,
        name: String,
    },
    RemoveDirectory {
        dir: FileId,
        name: String,
    },
    Rename {
        dir: FileId,
        name: String,
        to_dir: FileId,
        to: String,
        flags: RenameFlags,
    },
    Open {
        id: FileId,
        open: OpenNumber,
        flags: OpenFlags,
    },
    OpenDirectory {
        id: FileId,
        open: OpenNumber,
    },
    Read {
        open: OpenNumber,
        offset: u64,
        len: u32,
    },
    Write {
        open: OpenNumber,
        offset: u64,
        fill: u8,
        len: u32,
    },
    Append {
        open: OpenNumber,
        fill: u8,
        len: u32,
    },
    Truncate {
        id: FileId,
        size: u64,
    },
    TruncateOpen {
        open: OpenNumber,
        size: u64,
    },
    Mode {
        id: FileId,
        mode: u32,
    },
    SetXattr {
        id: FileId,
        name: String,
        value: String,
        mode: XattrMode,
    },
    GetXattr {
        id: FileId,
        name: String,
    },
    RemoveXattr {
        id: FileId,
        name: String,
    },
    ListXattr {
        id: FileId,
    },
    ReadLink {
        id: FileId,
    },
    List {
        open: OpenNumber,
        plus: bool,
    },
    Close {
        open: OpenNumber,
    },
    CloseDirectory {
        open: OpenNumber,
    },
    Fsync {
        open: OpenNumber,
    },
    /// Locks or unlocks a range up to `last`, without waiting.
    Lock {
        open: OpenNumber,
        exclusive: Option<bool>,
        first: u64,
        last: u64,
    },
    Sync,
}

/// What a call answered. A program sees less than a client of the file system: where that answers
/// with more, [`Done`](Self::Done) and [`File`](Self::File) are right, too.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Seen {
    Done,
    /// Which file it was.
    File(FileId),
    Entry(Entry),
    Created(Entry, Handle),
    Opened(Handle),
    Bytes(Bytes),
    Count(u32),
    Appended(Appended),
    Names(Vec<Vec<u8>>),
    Listed(Vec<DirEntry>),
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let facts = |a: &Attr| format!("{} {:?} mode {:o} nlink {} size {}", a.id, a.kind, a.mode, a.nlink, a.size);
        match self {
            Seen::Done => write!(f, "done"),
            Seen::File(id) => write!(f, "{id}"),
            Seen::Entry(entry) => write!(f, "{}", facts(&entry.attr)),
            Seen::Created(entry, _) => write!(f, "created {}", facts(&entry.attr)),
            Seen::Opened(_) => write!(f, "opened"),
            Seen::Bytes(bytes) => {
                // Runs of equal bytes.
                write!(f, "{} bytes", bytes.len())?;
                bytes.chunk_by(|a, b| a == b).try_for_each(|run| write!(f, " {}x{}", run[0], run.len()))
            }
            Seen::Count(count) => write!(f, "{count}"),
            Seen::Appended(done) => write!(f, "{} at {}", done.count, done.offset),
            Seen::Names(names) => names.iter().try_for_each(|name| write!(f, "{} ", String::from_utf8_lossy(name))),
            Seen::Listed(entries) => entries.iter().try_for_each(|e| {
                let attr = e.attr.as_ref().map(facts).unwrap_or_default();
                write!(f, "{}={} [{attr}] ", String::from_utf8_lossy(&e.name), e.id)
            }),
        }
    }
}

/// An answer in words.
pub fn shown(answered: &Answered) -> String {
    match answered {
        Ok(seen) => seen.to_string(),
        Err(e) => format!("{e:?}"),
    }
}

/// The result of a call.
pub type Answered = Result<Seen, FsError>;

impl Call {
    /// The same call with other ids.
    pub fn translated(&self, mut to: impl FnMut(FileId) -> FileId) -> Call {
        let mut call = self.clone();
        match &mut call {
            Call::Lookup { dir, .. }
            | Call::Create { dir, .. }
            | Call::MakeDirectory { dir, .. }
            | Call::Symlink { dir, .. }
            | Call::Unlink { dir, .. }
            | Call::RemoveDirectory { dir, .. } => *dir = to(*dir),
            Call::Link { id, dir, .. } => (*id, *dir) = (to(*id), to(*dir)),
            Call::Rename { dir, to_dir, .. } => (*dir, *to_dir) = (to(*dir), to(*to_dir)),
            Call::Getattr { id }
            | Call::Open { id, .. }
            | Call::OpenDirectory { id, .. }
            | Call::Truncate { id, .. }
            | Call::Mode { id, .. }
            | Call::SetXattr { id, .. }
            | Call::GetXattr { id, .. }
            | Call::RemoveXattr { id, .. }
            | Call::ListXattr { id }
            | Call::ReadLink { id } => *id = to(*id),
            _ => {}
        }
        call
    }

    /// The files that the call names by their ids.
    pub fn files(&self) -> BTreeSet<FileId> {
        let mut files = BTreeSet::new();
        self.translated(|id| {
            files.insert(id);
            id
        });
        files
    }

    /// The names that it looks up, each with its directory.
    pub(super) fn names(&self) -> Vec<(FileId, &str)> {
        match self {
            Call::Lookup { dir, name }
            | Call::Create { dir, name, .. }
            | Call::MakeDirectory { dir, name, .. }
            | Call::Symlink { dir, name, .. }
            | Call::Link { dir, name, .. }
            | Call::Unlink { dir, name }
            | Call::RemoveDirectory { dir, name } => vec![(*dir, name)],
            Call::Rename { dir, name, to_dir, to, .. } => vec![(*dir, name), (*to_dir, to)],
            _ => Vec::new(),
        }
    }

    /// The lock that the call sets, for an owner.
    pub fn lock(&self, owner: u128) -> Option<FileLock> {
        let Call::Lock { exclusive, first, last, .. } = *self else { return None };
        Some(FileLock { space: LockSpace::Mixed, owner, pid: 0, exclusive, start: first, end: last })
    }

    /// The open file that the call uses.
    pub fn uses(&self) -> Option<OpenNumber> {
        match self {
            Call::Read { open, .. }
            | Call::Write { open, .. }
            | Call::Append { open, .. }
            | Call::TruncateOpen { open, .. }
            | Call::List { open, .. }
            | Call::Close { open }
            | Call::CloseDirectory { open }
            | Call::Lock { open, .. }
            | Call::Fsync { open } => Some(*open),
            _ => None,
        }
    }

    /// The number of what the call opens.
    pub fn opens(&self) -> Option<OpenNumber> {
        match self {
            Call::Create { open, .. } | Call::Open { open, .. } | Call::OpenDirectory { open, .. } => Some(*open),
            _ => None,
        }
    }

    /// True if the call closes what it uses.
    pub fn closes(&self) -> bool {
        matches!(self, Call::Close { .. } | Call::CloseDirectory { .. })
    }

    /// True if what the client did before the call is durable after its success.
    pub fn syncs(&self) -> bool {
        matches!(self, Call::Fsync { .. } | Call::Sync)
    }

    /// True if the call may change a file or a name.
    pub fn changes(&self) -> bool {
        !matches!(
            self,
            Call::Lookup { .. }
                | Call::Getattr { .. }
                | Call::OpenDirectory { .. }
                | Call::Read { .. }
                | Call::GetXattr { .. }
                | Call::ListXattr { .. }
                | Call::ReadLink { .. }
                | Call::List { .. }
                | Call::Close { .. }
                | Call::CloseDirectory { .. }
                | Call::Fsync { .. }
                | Call::Lock { .. }
                | Call::Sync
        )
    }
}

/// Polls a future of the model, which is always ready.
pub(super) fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match Box::pin(future).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Makes a call, as one request to `fs`. `at` is the open file that the call uses.
pub async fn perform(fs: &dyn FileSystem, call: &Call, at: Option<(FileId, Handle)>) -> Answered {
    let root = &Cred::ROOT;
    let (file, handle) = match at {
        Some(at) => at,
        None if call.uses().is_some() => return Err(FsError::BadHandle),
        None => (FileId::ROOT, Handle::NONE),
    };
    Ok(match call {
        Call::Lookup { dir, name } => Seen::Entry(fs.lookup(root, *dir, name.as_bytes()).await?),
        Call::Getattr { id } => Seen::Entry(fs.getattr(*id).await?),
        Call::Create { dir, name, mode, append, .. } => {
            let flags = OpenFlags { read: true, write: true, append: *append, ..Default::default() };
            let (entry, handle) = fs.create(root, *dir, name.as_bytes(), *mode, 0, flags).await?;
            Seen::Created(entry, handle)
        }
        Call::MakeDirectory { dir, name } => Seen::Entry(fs.mkdir(root, *dir, name.as_bytes(), 0o755, 0).await?),
        Call::Symlink { dir, name, target } => {
            Seen::Entry(fs.symlink(root, *dir, name.as_bytes(), target.as_bytes()).await?)
        }
        Call::Link { id, dir, name } => Seen::Entry(fs.link(root, *id, *dir, name.as_bytes()).await?),
        Call::Unlink { dir, name } => done(fs.unlink(root, *dir, name.as_bytes()).await?),
        Call::RemoveDirectory { dir, name } => done(fs.rmdir(root, *dir, name.as_bytes()).await?),
        Call::Rename { dir, name, to_dir, to, flags } => {
            done(fs.rename(root, *dir, name.as_bytes(), *to_dir, to.as_bytes(), *flags).await?)
        }
        Call::Open { id, flags, .. } => Seen::Opened(fs.open(root, *id, *flags).await?),
        Call::OpenDirectory { id, .. } => Seen::Opened(fs.opendir(root, *id).await?),
        Call::Read { offset, len, .. } => Seen::Bytes(fs.read(file, handle, *offset, *len).await?),
        Call::Write { offset, fill, len, .. } => {
            Seen::Count(fs.write(root, file, handle, *offset, &vec![*fill; *len as usize]).await?)
        }
        Call::Append { fill, len, .. } => {
            Seen::Appended(fs.append(root, file, handle, &vec![*fill; *len as usize]).await?)
        }
        Call::Truncate { id, size } => {
            Seen::Entry(fs.setattr(root, *id, None, SetAttr { size: Some(*size), ..Default::default() }).await?)
        }
        Call::TruncateOpen { size, .. } => {
            let set = SetAttr { size: Some(*size), ..Default::default() };
            Seen::Entry(fs.setattr(root, file, Some(handle), set).await?)
        }
        Call::Mode { id, mode } => {
            Seen::Entry(fs.setattr(root, *id, None, SetAttr { mode: Some(*mode), ..Default::default() }).await?)
        }
        Call::SetXattr { id, name, value, mode } => {
            done(fs.setxattr(root, *id, name.as_bytes(), value.as_bytes(), *mode).await?)
        }
        Call::GetXattr { id, name } => Seen::Bytes(fs.getxattr(root, *id, name.as_bytes()).await?),
        Call::RemoveXattr { id, name } => done(fs.removexattr(root, *id, name.as_bytes()).await?),
        Call::ListXattr { id } => {
            let mut names = fs.listxattr(root, *id).await?;
            names.sort();
            Seen::Names(names)
        }
        Call::ReadLink { id } => Seen::Bytes(fs.readlink(*id).await?),
        Call::List { plus, .. } => {
            let mut entries = fs.readdir(file, handle, COOKIE_DOT_DOT, LISTING_COUNT, *plus).await?;
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            Seen::Listed(entries)
        }
        Call::Close { .. } => done(fs.release(file, handle, None).await?),
        Call::CloseDirectory { .. } => done(fs.releasedir(file, handle).await?),
        Call::Fsync { .. } => done(fs.fsync(file, handle, false).await?),
        Call::Lock { open, .. } => {
            let Some(lock) = call.lock(u128::from(*open)) else { return Err(FsError::InvalidArgument) };
            done(fs.setlk(file, handle, lock, false).await?)
        }
        Call::Sync => done(fs.sync().await?),
    })
}

fn done((): ()) -> Seen {
    Seen::Done
}
