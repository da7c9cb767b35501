//! A directory of the local file system as a [`FileSystem`]: what `dir:` homes export.
//!
//! - [`identity`]: what a file is, apart from its name; [`volume`]: which file system it is on, in
//!   terms that outlast a mount; [`nodes`]: ids and names; `crew`: threads that act as the caller;
//!   `stat`: attributes and errors; `handles`: open files; `filesystem`: the trait; `exports`: what
//!   homes need besides; `longest`: the longest possible file; `watches`: directories in which
//!   changes by others are noticed; `notices`: what was noticed; [`users`]: who is in which groups.
//!
//! The kernel decides about permissions: each operation runs as the caller. A process of root can
//! act as any user; any other process serves only its own user. Callers cannot reach anything
//! outside the directory: names are looked up one at a time without following links, and ids are
//! opened only beneath the directory. Ids stand for files, not for names, so other programs may
//! change everything meanwhile. An id whose file is gone, or has moved to an unknown place, is
//! ESTALE until a lookup finds the file again.
//!
//! Durability is the local file system's. [`FileSystem::fsync`] makes one file durable. Only
//! [`FileSystem::sync`] makes everything durable that came before, also on file systems that are
//! mounted below the directory. Locks are kept here, apart from those of other programs.

mod alias;
mod crew;
mod exports;
mod filesystem;
mod handles;
pub mod identity;
mod longest;
pub mod nodes;
mod notices;
mod stat;
pub mod users;
pub mod volume;
mod watches;

pub use crate::exports::WholeFile;
pub use crate::notices::DirNotice;
pub use crate::watches::WatchError;

use crate::crew::Crew;
use crate::handles::Handles;
use crate::identity::FileIdentity;
use crate::nodes::Nodes;
use crate::users::{Account, Who};
use crate::volume::Volumes;
use crate::watches::Watches;
use parking_lot::Mutex;
use rustix::fs::{Dev, Mode, OFlags, ResolveFlags, Statx};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use types::{Answer, BoxFuture, FileId, FsError};
use vfs::fs::Cred;
use vfs::locks::Locks;

/// Threads for single operations. As many operations run at the same time.
const THREAD_COUNT: usize = 8;
/// Threads for [works](LocalDir::together), which are many operations and may wait for each other.
const WORK_COUNT: usize = 4;
/// Longest path that one system call looks up: the most that Linux takes.
const PATH_LEN_MAX: usize = 4_095;

/// A directory of this machine. Clones share everything.
#[derive(Clone)]
pub struct LocalDir(Arc<Inner>);

pub(crate) struct Inner {
    root: OwnedFd,
    root_device: Dev,
    /// A folder outside of the directory, on the same mount.
    beside: Option<OwnedFd>,
    file_len_max: OnceLock<u64>,
    /// File systems mounted below the root that have changes to sync, by their devices.
    unsynced: Mutex<HashMap<Dev, OwnedFd>>,
    nodes: Mutex<Nodes>,
    /// Held from a rename of this process until `nodes` knows of it.
    renaming: Mutex<()>,
    volumes: Volumes,
    handles: Mutex<Handles>,
    locks: Locks,
    crew: Crew,
    /// Threads for works, which may wait for the crew.
    workers: Crew,
    watches: Watches,
}

impl LocalDir {
    /// Opens a directory.
    pub fn open(path: &Path) -> io::Result<LocalDir> {
        LocalDir::open_with(path, None, Watches::default())
    }

    /// Opens a directory, and a [folder beside](Self::beside) it for the caller's own files. If the
    /// folder is on another mount, it is not used, since files cannot be moved from there.
    pub fn open_beside(path: &Path, folder: &Path) -> io::Result<LocalDir> {
        LocalDir::open_with(path, Some(folder), Watches::default())
    }

    pub(crate) fn open_with(path: &Path, beside: Option<&Path>, watches: Watches) -> io::Result<LocalDir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        let beside =
            beside.map(|folder| rustix::fs::open(folder, flags | OFlags::NOFOLLOW, Mode::empty())).transpose()?;
        let (identity, stat) = FileIdentity::seen(root.as_fd())?;
        let volumes = Volumes::below(root.as_fd(), &stat)?;
        volumes.of(root.as_fd(), &stat, || None)?;
        let root_device = rustix::fs::fstat(&root)?.st_dev;
        let seen_beside = beside.as_ref().map(|folder| FileIdentity::seen(folder.as_fd())).transpose()?;
        let is_near = |other: &Statx| stat::mount(other).is_some() && stat::mount(other) == stat::mount(&stat);
        let seen_beside = seen_beside.filter(|(folder, stat)| folder.is_on_device_of(&identity) && is_near(stat));
        let (beside, beside_identity) =
            beside.zip(seen_beside).map(|(folder, (identity, _))| (folder, identity)).unzip();
        Ok(LocalDir(Arc::new(Inner {
            root,
            root_device,
            unsynced: Mutex::default(),
            beside,
            file_len_max: OnceLock::new(),
            nodes: Mutex::new(Nodes::new(identity, beside_identity)),
            renaming: Mutex::default(),
            volumes,
            handles: Mutex::default(),
            locks: Locks::default(),
            crew: Crew::start(THREAD_COUNT)?,
            workers: Crew::start(WORK_COUNT)?,
            watches,
        })))
    }

    /// Returns the folder beside the directory, if there is one from which files can be moved into
    /// the directory.
    pub fn beside(&self) -> Option<FileId> {
        self.0.beside.as_ref().map(|_| nodes::BESIDE)
    }

    /// Returns the user of this process.
    pub fn own_cred(&self) -> Cred {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let groups = rustix::process::getgroups().unwrap_or_default();
        Cred { uid, gid, groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect() }
    }

    /// Looks up a user of this machine. `None` if the machine does not know the user now, for
    /// example while its database of users is out of reach, or if this process could not act as
    /// that user.
    pub fn account(&self, uid: u32) -> Answer<Option<Account>> {
        self.later(move |local| match local.crew.is_privileged() {
            true => users::account(Who::Uid(uid)).map_err(stat::error),
            false => Ok(None),
        })
    }

    /// Does work on a thread of its own. Operations within the work run on that thread too, so they
    /// cost no hand-over to another thread.
    pub fn together(&self, work: BoxFuture<()>) -> BoxFuture<()> {
        let done = self.0.workers.run(move || {
            crew::work(work);
            Ok(())
        });
        // A work that panicked has already said so.
        Box::pin(async move {
            let _ = done.await;
        })
    }

    /// Runs an operation on a thread of the crew, or at once within a work.
    fn later<T: Send + 'static>(&self, job: impl FnOnce(&Inner) -> Result<T, FsError> + Send + 'static) -> Answer<T> {
        if crew::is_at_work() {
            return Answer::Now(job(&self.0));
        }
        let inner = self.0.clone();
        Answer::later(self.0.crew.run(move || job(&inner)))
    }
}

impl Inner {
    /// Does something as the caller.
    fn act<T>(&self, cred: &Cred, act: impl FnOnce() -> Result<T, FsError>) -> Result<T, FsError> {
        self.act_with_umask(cred, 0, act)
    }

    fn act_with_umask<T>(
        &self,
        cred: &Cred,
        umask: u32,
        act: impl FnOnce() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        Crew::act_as(self.crew.is_privileged(), cred, umask, act)
    }

    /// Opens the file of an id, for anything but reading and writing. ESTALE.
    fn file(&self, id: FileId) -> Result<Arc<OwnedFd>, FsError> {
        let mut no_rename = None;
        loop {
            let (identity, path, place) = {
                let nodes = self.nodes.lock();
                (nodes.identity(id)?.clone(), nodes.path(id), nodes.place(id).cloned())
            };
            if let Some(top) = self.top(id) {
                return Ok(Arc::new(top.try_clone().map_err(|_| FsError::Io)?));
            }
            let Some(((top, path), place)) = path.zip(place) else {
                // It has no name any more, but may be open.
                return self.handles.lock().file_of(id).ok_or(FsError::Stale);
            };
            match beneath(self.top(top).ok_or(FsError::Stale)?, &path) {
                Ok(file) if FileIdentity::seen(file.as_fd()).map_err(stat::error)?.0 == identity => {
                    return Ok(Arc::new(file));
                }
                Err(e) if !stat::leads_elsewhere(e) => return Err(stat::error(e)),
                // This process may rename it, or a directory above it, now.
                _ if no_rename.is_none() => no_rename = Some(self.renaming.lock()),
                _ => self.nodes.lock().left_by(id, &place),
            }
        }
    }

    /// Returns what paths begin at: the root, or the folder beside it.
    fn top(&self, id: FileId) -> Option<&OwnedFd> {
        match id {
            FileId::ROOT => Some(&self.root),
            nodes::BESIDE => self.beside.as_ref(),
            _ => None,
        }
    }
}

/// Opens a file below a directory by these names, without following links, in steps that are short
/// enough for Linux.
fn beneath(top: &OwnedFd, names: &[Vec<u8>]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let step = |from: &Option<OwnedFd>, path: &[u8]| {
        let from = from.as_ref().unwrap_or(top);
        rustix::fs::openat2(from, path, flags, Mode::empty(), resolve)
    };
    let (mut at, mut path) = (None, Vec::new());
    for name in names {
        if path.len() + 1 + name.len() > PATH_LEN_MAX {
            at = Some(step(&at, &path)?);
            path.clear();
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
    }
    step(&at, &path)
}
