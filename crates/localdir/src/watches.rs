//! Directories that are watched for changes by other programs, with inotify, and the thread that
//! reads the events.
//!
//! The kernel watches the directory, even if its name changes. A watch ends when the directory is
//! removed or its file system is unmounted. The thread ends with the [`Watches`].

use crate::alias::alias;
use crate::notices::{DirNotice, NOTICE_COUNT_MAX, Notices};
use crate::stat::error;
use crate::{Inner, LocalDir};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, Event, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use thiserror::Error;
use types::{Answer, BoxFuture, FileId, FsError};

/// Bytes of events that are read at a time.
const EVENTS_LEN: usize = 64 << 10;
/// The events to report. `EXCL_UNLINK` leaves out files that have lost their name: there is nothing
/// to look at.
const WATCHED: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::EXCL_UNLINK);
const NAMES: ReadFlags =
    ReadFlags::CREATE.union(ReadFlags::DELETE).union(ReadFlags::MOVED_FROM).union(ReadFlags::MOVED_TO);

/// Why a directory is not watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error, Hash)]
pub enum WatchError {
    /// ENOSPC of inotify: the user has as many watches as allowed.
    #[error(
        "the system's limit of watched directories is reached: raise it, for example with `sysctl fs.inotify.max_user_watches=1048576` \
         (a line of /etc/sysctl.d keeps it so), or in a container `user.max_inotify_watches`"
    )]
    TooManyWatches,
    /// EMFILE of inotify: the user has as many instances, or the process as many open files, as
    /// allowed.
    #[error(
        "directories cannot be watched, as the user's limit of inotify instances or the process's limit of open files is reached: raise \
         `fs.inotify.max_user_instances` with sysctl, or the limit of open files (`ulimit -n`, `LimitNOFILE=` of the service)"
    )]
    TooManyInstances,
    /// The directory cannot be watched: ESTALE, ENOTDIR, EACCES if it may not be read, or EIO.
    #[error("the directory cannot be watched: {0}")]
    Directory(#[from] FsError),
}

impl LocalDir {
    /// Watches a directory, but not what is below its entries. The watch lasts until the directory
    /// is removed or unmounted, or until [`unwatch`](Self::unwatch). Watching again changes
    /// nothing. A caller that lists the directory must watch it first, to miss nothing.
    ///
    /// Changes by this process are noticed, too. These are not noticed:
    ///
    /// - changes of a file through a name in another directory, and new names of it elsewhere,
    /// - writing to a mapping before it is unmapped,
    /// - reading,
    /// - changes that other machines make to a network file system,
    /// - the removal of the exported directory itself.
    ///
    /// The removal of another directory is noticed at once through its parent, and through itself
    /// only when no process has it open any more.
    pub fn watch(&self, dir: FileId) -> Answer<(), WatchError> {
        let watched = self.0.crew.run({
            let inner = self.0.clone();
            move || Ok(inner.watches.watch(&inner, dir))
        });
        Answer::later(async { watched.await? })
    }

    /// True the first time that this error occurs. Callers report it only then.
    pub fn is_news(&self, error: WatchError) -> bool {
        self.0.watches.told.lock().insert(error)
    }

    /// Ends a watch, if there is one. Earlier notices may still come.
    pub fn unwatch(&self, dir: FileId) -> Answer<()> {
        self.later(move |local| {
            local.watches.unwatch(dir);
            Ok(())
        })
    }

    /// Waits for the next notice, oldest first. Returns [`DirNotice::Lost`] when this directory is
    /// dropped; the wait does not keep it alive. A caller that gives up the wait loses nothing.
    /// Only one caller at a time may wait.
    pub fn noticed(&self) -> BoxFuture<DirNotice> {
        let notices = self.0.watches.notices.clone();
        Box::pin(async move { notices.next().await })
    }
}

/// The watches of one directory tree. The thread starts with the first watch.
pub struct Watches {
    notices: Arc<Notices>,
    instance: Mutex<Option<Arc<Instance>>>,
    /// Errors that were already reported.
    told: Mutex<HashSet<WatchError>>,
}

/// An inotify instance. The kernel bounds its watches.
struct Instance {
    inotify: OwnedFd,
    /// Readable when the thread is to end.
    stop: OwnedFd,
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    /// The kernel's numbers of watches.
    numbers: HashMap<FileId, i32>,
    directories: HashMap<i32, FileId>,
    /// The thread has ended.
    ended: bool,
}

impl Default for Watches {
    fn default() -> Watches {
        Watches::new(NOTICE_COUNT_MAX)
    }
}

impl Watches {
    /// Makes it with room for `notice_count_max` notices that wait.
    pub fn new(notice_count_max: usize) -> Watches {
        Watches {
            notices: Arc::new(Notices::new(notice_count_max)),
            instance: Mutex::default(),
            told: Mutex::default(),
        }
    }

    fn watch(&self, local: &Inner, dir: FileId) -> Result<(), WatchError> {
        let file = local.file(dir)?;
        self.instance()?.watch(dir, &file)
    }

    fn unwatch(&self, dir: FileId) {
        let instance = self.instance.lock().clone();
        if let Some(instance) = instance {
            instance.unwatch(dir);
        }
    }

    fn instance(&self) -> Result<Arc<Instance>, WatchError> {
        let mut started = self.instance.lock();
        if let Some(instance) = &*started {
            return Ok(instance.clone());
        }
        let instance = Arc::new(Instance::new()?);
        instance.clone().start(self.notices.clone()).map_err(|_| FsError::Io)?;
        Ok(started.insert(instance).clone())
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.notices.end();
        if let Some(instance) = self.instance.get_mut() {
            // Fails only if the counter is full, which ends the thread, too.
            let _ = rustix::io::write(&instance.stop, &1_u64.to_ne_bytes());
        }
    }
}

impl Instance {
    fn new() -> Result<Instance, WatchError> {
        let refused = |e| if e == Errno::MFILE { WatchError::TooManyInstances } else { error(e).into() };
        Ok(Instance {
            inotify: inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(refused)?,
            stop: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(refused)?,
            watched: Mutex::default(),
        })
    }

    /// Starts the thread.
    fn start(self: Arc<Self>, notices: Arc<Notices>) -> io::Result<()> {
        let run = move || {
            if self.read(&notices).is_err() {
                // Events are lost, and further watches are refused.
                notices.lose();
            }
            self.watched.lock().ended = true;
        };
        std::thread::Builder::new().name("localdir-watch".into()).spawn(run).map(|_| ())
    }

    fn watch(&self, dir: FileId, file: &OwnedFd) -> Result<(), WatchError> {
        // The lock is held, so that the thread knows the watch when it reads its first event.
        let mut watched = self.watched.lock();
        if watched.ended {
            return Err(FsError::Io.into());
        }
        let number = inotify::add_watch(&self.inotify, alias(file), WATCHED).map_err(|e| match e {
            Errno::NOSPC => WatchError::TooManyWatches,
            e => error(e).into(),
        })?;
        watched.forget(dir);
        watched.numbers.insert(dir, number);
        watched.directories.insert(number, dir);
        Ok(())
    }

    fn unwatch(&self, dir: FileId) {
        // The lock is held, since a new watch would have the same number.
        let mut watched = self.watched.lock();
        if let Some(number) = watched.forget(dir) {
            // Fails if the kernel has ended the watch.
            let _ = inotify::remove_watch(&self.inotify, number);
        }
    }

    /// Passes on events until the thread is to end.
    fn read(&self, notices: &Notices) -> rustix::io::Result<()> {
        let mut buffer = Vec::with_capacity(EVENTS_LEN);
        loop {
            let mut ready = [&self.inotify, &self.stop].map(|fd| PollFd::new(fd, PollFlags::IN));
            match poll(&mut ready, None) {
                Err(Errno::INTR) => continue,
                result => result?,
            };
            if !ready[1].revents().is_empty() {
                return Ok(());
            }
            let mut events = Reader::new(&self.inotify, buffer.spare_capacity_mut());
            loop {
                match events.next() {
                    Ok(event) => self.pass_on(&event, notices),
                    Err(Errno::AGAIN | Errno::INTR) => break,
                    Err(e) => return Err(e),
                }
                if events.is_buffer_empty() {
                    break;
                }
            }
        }
    }

    fn pass_on(&self, event: &Event, notices: &Notices) {
        let what = event.events();
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            return notices.lose();
        }
        let mut watched = self.watched.lock();
        // Events of a watch that has ended are dropped.
        let Some(dir) = watched.directories.get(&event.wd()).copied() else { return };
        if what.contains(ReadFlags::IGNORED) {
            watched.forget(dir);
        }
        drop(watched);
        notices.push(dir, event.file_name().map(|name| name.to_bytes()), what.intersects(NAMES));
    }
}

impl Watched {
    /// Forgets a directory. Returns the number of its watch.
    fn forget(&mut self, dir: FileId) -> Option<i32> {
        let number = self.numbers.remove(&dir)?;
        self.directories.remove(&number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::Mode;
    use std::fs;
    use std::thread::yield_now;

    #[test]
    fn more_than_the_bound_is_lost_and_watching_goes_on() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let local = LocalDir::open_with(folder.path(), None, Watches::new(3)).expect("open");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        runtime.block_on(async { local.watch(FileId::ROOT).await }).expect("watch");
        for number in 0..4 {
            fs::create_dir(folder.path().join(number.to_string())).expect("create");
        }
        let notices = local.0.watches.notices.clone();
        while !notices.has_lost() {
            yield_now();
        }
        assert_eq!(runtime.block_on(local.noticed()), DirNotice::Lost);
        fs::create_dir(folder.path().join("a")).expect("create");
        assert_eq!(runtime.block_on(local.noticed()), DirNotice::Entry(FileId::ROOT, b"a".into(), true));
    }

    #[test]
    fn the_thread_ends_with_the_directory() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let local = LocalDir::open(folder.path()).expect("open");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        runtime.block_on(async { local.watch(FileId::ROOT).await }).expect("watch");
        let instance = Arc::downgrade(&local.0.watches.instance().expect("instance"));
        drop(local);
        while instance.strong_count() > 0 {
            yield_now();
        }
    }

    #[test]
    fn more_than_the_kernel_keeps_is_lost() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let root = rustix::fs::open(folder.path(), rustix::fs::OFlags::PATH, Mode::empty()).expect("open");
        let bound = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("read");
        let (instance, notices) = (Arc::new(Instance::new().expect("inotify")), Arc::new(Notices::new(10)));
        instance.watch(FileId::ROOT, &root).expect("watch");
        for name in ["a", "b"] {
            fs::create_dir(folder.path().join(name)).expect("create");
        }
        // In turns, since the kernel merges equal events that follow each other.
        for number in 0..bound.trim().parse::<u32>().expect("number") {
            let path = folder.path().join(if number % 2 == 0 { "a" } else { "b" });
            rustix::fs::chmod(path, Mode::from_raw_mode(0o700)).expect("chmod");
        }
        instance.clone().start(notices.clone()).expect("start");
        while !notices.has_lost() {
            yield_now();
        }
        rustix::io::write(&instance.stop, &1_u64.to_ne_bytes()).expect("stop");
        while !instance.watched.lock().ended {
            yield_now();
        }
        assert_eq!(instance.watch(FileId::ROOT, &root), Err(FsError::Io.into()));
    }
}
