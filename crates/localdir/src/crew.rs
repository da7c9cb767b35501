//! Threads that do blocking system calls as the caller.
//!
//! System calls check permissions against the thread's own identity and umask. So each thread takes
//! those of the caller for one job. The threads have a file system context of their own
//! (`CLONE_FS`), since a umask otherwise belongs to the whole process.

use rustix::fs::Mode;
use rustix::process::{Gid, Uid, geteuid, umask};
use rustix::thread::{UnshareFlags, set_thread_groups, set_thread_res_gid, set_thread_res_uid, unshare_unsafe};
use std::cell::Cell;
use std::future::Future;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};
use std::thread::Thread;
use tokio::sync::oneshot;
use types::{BoxFuture, FsError};
use vfs::fs::Cred;

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The thread does a [work](work), within which operations run at once.
    static AT_WORK: Cell<bool> = const { Cell::new(false) };
}

/// True on a thread that does a [work](work).
pub fn is_at_work() -> bool {
    AT_WORK.get()
}

/// Wakes a thread that sleeps within a work.
struct Waiting(Thread);

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Does a work to its end on this thread, which sleeps whenever the work waits.
pub fn work(mut work: BoxFuture<()>) {
    let waker = Waker::from(Arc::new(Waiting(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    AT_WORK.set(true);
    while work.as_mut().poll(&mut context).is_pending() {
        std::thread::park();
    }
    AT_WORK.set(false);
}

/// The threads. They end when this is dropped and their jobs are done.
pub struct Crew {
    jobs: Sender<Job>,
    /// The threads can take any identity. Otherwise they have only the process's own.
    privileged: bool,
}

impl Crew {
    /// Starts `thread_count` threads. Fails if they cannot have umasks of their own.
    pub fn start(thread_count: usize) -> io::Result<Crew> {
        let (jobs, receiver) = channel::<Job>();
        let receiver = Arc::new(Mutex::new(receiver));
        let (ready, told) = channel();
        for number in 0..thread_count.max(1) {
            let (receiver, ready) = (receiver.clone(), ready.clone());
            std::thread::Builder::new().name(format!("localdir-{number}")).spawn(move || {
                // SAFETY: only this thread's file system context is unshared, no descriptors are,
                // and no code relies on a common umask.
                let unshared = unsafe { unshare_unsafe(UnshareFlags::FS) };
                let is_apart = unshared.is_ok();
                // `start` waits until all threads have reported.
                let _ = ready.send(unshared);
                drop(ready);
                if !is_apart {
                    return;
                }
                loop {
                    let job = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    match job {
                        Ok(job) => job(),
                        Err(_) => return,
                    }
                }
            })?;
        }
        drop(ready);
        told.iter().collect::<Result<Vec<()>, _>>()?;
        Ok(Crew { jobs, privileged: geteuid().is_root() })
    }

    /// Does a job on a thread. [`FsError::Io`] if the job panicked.
    pub fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, FsError> + Send + 'static,
    ) -> impl Future<Output = Result<T, FsError>> + Send + 'static {
        let (done, answer) = oneshot::channel();
        // A caller that has dropped its future wants no answer.
        let sent = self.jobs.send(Box::new(move || drop(done.send(job()))));
        async move {
            sent.map_err(|_| FsError::Io)?;
            answer.await.map_err(|_| FsError::Io)?
        }
    }

    /// Does something as the caller, with the caller's umask, on the thread of a job. An
    /// unprivileged process can only act as its own user: EACCES for others.
    pub fn act_as<T>(
        privileged: bool,
        cred: &Cred,
        mask: u32,
        act: impl FnOnce() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        umask(Mode::from_raw_mode(mask & 0o777));
        if !privileged {
            return if cred.uid == geteuid().as_raw() { act() } else { Err(FsError::AccessDenied) };
        }
        if cred.uid == 0 && cred.gid == 0 && cred.groups.is_empty() {
            return act();
        }
        let _back = Disguise::put_on(cred)?;
        act()
    }

    /// True if the threads can take any identity.
    pub fn is_privileged(&self) -> bool {
        self.privileged
    }
}

/// Makes the thread act as another user until this is dropped.
struct Disguise;

impl Disguise {
    fn put_on(cred: &Cred) -> Result<Disguise, FsError> {
        let id = |raw: u32| (raw != u32::MAX).then_some(raw).ok_or(FsError::InvalidArgument);
        let groups: Vec<Gid> = cred.groups.iter().map(|gid| id(*gid).map(Gid::from_raw)).collect::<Result<_, _>>()?;
        let (uid, gid) = (Uid::from_raw(id(cred.uid)?), Gid::from_raw(id(cred.gid)?));
        // From here on, dropping `back` undoes a partial change.
        let back = Disguise;
        let taken = set_thread_groups(&groups)
            .and_then(|()| set_thread_res_gid(None, gid, None))
            .and_then(|()| set_thread_res_uid(None, uid, None));
        taken.map(|()| back).map_err(|_| FsError::NotPermitted)
    }
}

impl Drop for Disguise {
    fn drop(&mut self) {
        let back = set_thread_res_uid(None, Uid::ROOT, None)
            .and_then(|()| set_thread_res_gid(None, Gid::ROOT, None))
            .and_then(|()| set_thread_groups(&[]));
        // A thread that kept this identity would do the next caller's work as this caller.
        assert!(back.is_ok(), "cannot restore the thread's own identity: {back:?}");
    }
}
