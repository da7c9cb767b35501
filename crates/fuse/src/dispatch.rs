//! Calls the file system for a request, and sends its answer, at once or later. Every request gets
//! an answer, also after a panic. Each call, and each poll of an answer that comes later, is a
//! [section](crate::sections).

use crate::believed::{Believed, UnderWay};
use crate::convert::errno;
use crate::count::{Counters, Op};
use crate::forgetting::Forgetting;
use crate::groups::GroupCache;
use crate::listing::{Listing, ListingReply};
use crate::listings::Listings;
use crate::observe::Observing;
use crate::options::MountOptions;
use crate::pages::Pages;
use crate::passing::Passing;
use crate::sections::Sections;
use crate::validity::Validity;
use fuser::{
    FileHandle, FopenFlags, INodeNo, InitFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyLock,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
};
use host::Tasks;
use host::real::TokioTasks;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;
use types::{Answer, FsError};
use vfs::fs::{Cred, FileSystem, Handle};

/// The FUSE side of a mount.
pub(crate) struct FrontEnd {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) options: MountOptions,
    pub(crate) counters: Arc<Counters>,
    pub(crate) passing: Arc<Passing>,
    pub(crate) sections: Arc<Sections>,
    pub(crate) validity: Arc<Validity>,
    pub(crate) pages: Arc<Pages>,
    pub(crate) listings: Arc<Listings>,
    pub(crate) believed: Arc<Believed>,
    /// Makes the kernel forget. Set once the connection exists, before the kernel's first request.
    pub(crate) forgetting: Arc<OnceLock<Arc<Forgetting>>>,
    /// Makes the kernel forget the listing that it is asking for.
    kernel: Arc<OnceLock<fuser::Notifier>>,
    groups: GroupCache,
    tasks: TokioTasks,
}

/// A reply that can carry an error.
pub(crate) trait Refuse: Send + 'static {
    fn refuse(self, error: FsError);
}

macro_rules! refuse {
    ($($reply:ty),*) => { $(impl Refuse for $reply {
        fn refuse(self, error: FsError) {
            self.error(errno(error));
        }
    })* };
}
refuse!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyEmpty,
    ReplyEntry,
    ReplyLock,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr
);

/// Runs `work`, and turns a panic into a logged error. The panic drops the reply, and a reply that
/// is dropped answers EIO.
fn guard<T>(op: Op, work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| log_panic(op, &*panic)).ok()
}

fn log_panic(op: Op, panic: &(dyn std::any::Any + Send)) {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(request = op.name(), panic = text.unwrap_or("?"), "the file system panicked; answered EIO");
}

/// Awaits `work`, and handles a panic as [`guard`] does. Each poll is a section.
async fn guard_later(op: Op, sections: Arc<Sections>, mut work: Pin<Box<dyn Future<Output = ()> + Send>>) {
    poll_fn(|cx| {
        let _section = sections.enter();
        guard(op, || work.as_mut().poll(cx)).unwrap_or(Poll::Ready(()))
    })
    .await;
}

impl FrontEnd {
    /// A front end of `fs`.
    pub(crate) fn new(
        fs: Arc<dyn FileSystem>,
        options: MountOptions,
        counters: Arc<Counters>,
        passing: Arc<Passing>,
        validity: Arc<Validity>,
        forgetting: Arc<OnceLock<Arc<Forgetting>>>,
        kernel: Arc<OnceLock<fuser::Notifier>>,
    ) -> Self {
        let tasks = TokioTasks(options.runtime.clone());
        let (sections, pages, listings, groups) = (Arc::default(), Arc::default(), Arc::default(), GroupCache::new());
        let believed = Believed::new(options.shared);
        FrontEnd {
            fs,
            options,
            counters,
            passing,
            sections,
            validity,
            pages,
            listings,
            believed,
            forgetting,
            kernel,
            groups,
            tasks,
        }
    }

    /// What records a request; `None` while no observer is on.
    pub(crate) fn observing(&self) -> Option<Observing> {
        Observing::by(self.options.observer.as_ref())
    }

    pub(crate) fn cred(&self, req: &Request) -> Cred {
        Cred { uid: req.uid(), gid: req.gid(), groups: self.groups.of(req.pid(), req.uid(), req.gid()) }
    }

    /// Runs `work` on this thread in a section, guarded, and within the runtime, because a file
    /// system may arm a timer while it is called.
    pub(crate) fn here<T>(&self, op: Op, work: impl FnOnce() -> T) -> Option<T> {
        let _section = self.sections.enter();
        let _runtime = self.options.runtime.enter();
        guard(op, work)
    }

    /// Calls the file system and sends its answer: from this thread if the answer is there now,
    /// from a task if it comes later.
    pub(crate) fn answer<T: 'static, R: Refuse>(
        &self,
        op: Op,
        reply: R,
        call: impl FnOnce(&dyn FileSystem) -> Answer<T>,
        send: impl FnOnce(R, T) + Send + 'static,
    ) {
        self.answer_noted(op, reply, None, call, send);
    }

    /// Like [`answer`](Self::answer), and notes the end of a request that changes names.
    pub(crate) fn answer_noted<T: 'static, R: Refuse>(
        &self,
        op: Op,
        reply: R,
        under_way: Option<UnderWay>,
        call: impl FnOnce(&dyn FileSystem) -> Answer<T>,
        send: impl FnOnce(R, T) + Send + 'static,
    ) {
        let finish = move |reply: R, result: Result<T, FsError>| {
            if let Some(under_way) = under_way {
                under_way.end(result.as_ref().map(drop).map_err(|error| *error));
            }
            match result {
                Ok(value) => send(reply, value),
                Err(error) => reply.refuse(error),
            }
        };
        self.counters.add(op);
        self.here(op, || match call(&*self.fs) {
            Answer::Now(result) => finish(reply, result),
            Answer::Later(answer) => self.later(op, async move { finish(reply, answer.await) }),
        });
    }

    /// Answers a request that takes several calls of the file system, so that removals can be
    /// recorded.
    pub(crate) fn recorded<T: Send + 'static, R: Refuse, F: Future<Output = Result<T, FsError>> + Send + 'static>(
        &self,
        op: Op,
        reply: R,
        under_way: Option<UnderWay>,
        send: impl FnOnce(R, T) + Send + 'static,
        calls: impl FnOnce(Arc<dyn FileSystem>) -> F,
    ) {
        let calls = calls(Arc::clone(&self.fs));
        let answer = |_: &dyn FileSystem| Answer::later(calls);
        self.answer_noted(op, reply, under_way, answer, send);
    }

    /// Runs `work` on this thread until it waits, and the rest as a task. After an fsync only the
    /// answer is left to do, so its task is a short one.
    pub(crate) fn later(&self, op: Op, work: impl Future<Output = ()> + Send + 'static) {
        let work = Box::pin(guard_later(op, Arc::clone(&self.sections), Box::pin(work)));
        match op {
            Op::Fsync | Op::Fsyncdir => self.tasks.start_short(work),
            _ => self.tasks.start(work),
        }
    }

    pub(crate) fn list<R: ListingReply>(&self, op: Op, ino: INodeNo, fh: FileHandle, cookie: u64, reply: R) {
        self.counters.add(op);
        let valid = if self.is_uncached() { Duration::ZERO } else { self.options.default_valid };
        let (fs, passing, validity) = (Arc::clone(&self.fs), Arc::clone(&self.passing), Arc::clone(&self.validity));
        // The kernel must forget what it caches unasked before it learns that the listing is
        // complete.
        let forget = (self.is_uncached() && !self.options.open_dirs).then(|| (Arc::clone(&self.kernel), ino));
        let listing =
            Listing { fs, id: passing.file(ino), passing, validity, handle: Handle(fh.0), cookie, valid, forget };
        self.later(op, listing.send(reply));
    }

    fn is_uncached(&self) -> bool {
        self.options.uncached.iter().any(|uncached| uncached.load(Relaxed))
    }

    /// True if the kernel is not to cache the contents of files.
    fn is_direct(&self) -> bool {
        self.validity.is_shared() || self.is_uncached()
    }

    pub(crate) fn open_reply_flags(&self) -> FopenFlags {
        let keep = match self.options.keep_cache {
            _ if self.is_direct() => FopenFlags::FOPEN_DIRECT_IO,
            // The kernel would serve cached contents without a request, and the observer would miss
            // the reads.
            true if self.observing().is_none() => FopenFlags::FOPEN_KEEP_CACHE,
            _ => FopenFlags::empty(),
        };
        keep | if self.options.flush { FopenFlags::empty() } else { FopenFlags::FOPEN_NOFLUSH }
    }

    /// Chooses the flags for the reply to an opendir, just before it is sent. The kernel reads a
    /// directory again after it changed the directory itself, or after it was told to forget it.
    pub(crate) fn opendir_reply_flags(&self) -> impl FnOnce(INodeNo) -> FopenFlags + Send + 'static {
        let listings = self.validity.is_shared().then(|| self.listings.clone());
        let is_cached = self.options.keep_cache && !self.is_uncached();
        move |inode| match listings.map(|listings| listings.opened(inode.0)) {
            _ if !is_cached => FopenFlags::empty(),
            Some(flags) => flags,
            None => FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR,
        }
    }

    /// The capabilities to ask for, out of those that the kernel offers: fuser refuses all of them
    /// if one is not offered.
    pub(crate) fn wanted_capabilities(&self) -> InitFlags {
        let mut wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_BIG_WRITES
            | InitFlags::FUSE_MAX_PAGES
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_EXPORT_SUPPORT
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_CACHE_SYMLINKS;
        if self.options.allow_other || self.options.kernel_checks {
            // This implies default_permissions: the kernel walks cached names on its own, so it
            // must know which users may search which directories.
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        wanted |= if self.validity.is_shared() {
            // The kernel compares times before it lists a directory from what it keeps.
            InitFlags::FUSE_AUTO_INVAL_DATA
        } else {
            InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO
        };
        if self.options.locks {
            wanted |= InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
        }
        if self.options.passthrough {
            wanted |= InitFlags::FUSE_PASSTHROUGH;
        }
        wanted
    }
}

/// Makes everything durable, and blocks until that is done. Fails with `Io` if the file system
/// panics or the runtime has ended.
pub(crate) fn sync_blocking(fs: &Arc<dyn FileSystem>, options: &MountOptions) -> Result<(), FsError> {
    let _runtime = options.runtime.enter();
    match catch_unwind(AssertUnwindSafe(|| fs.sync())) {
        Ok(Answer::Now(result)) => result,
        Ok(Answer::Later(answer)) => {
            let (send, receive) = std::sync::mpsc::channel();
            drop(options.runtime.spawn(async move {
                // The receiver exists as long as this task: it waits for the answer.
                let _ = send.send(answer.await);
            }));
            receive.recv().unwrap_or(Err(FsError::Io))
        }
        Err(_) => Err(FsError::Io),
    }
}
