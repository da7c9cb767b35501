//! The life of a mount: from attaching to the kernel to the last sync.

use crate::attach::{self, Detached, Mountpoint};
use crate::count::Counters;
use crate::dispatch::{FrontEnd, sync_blocking};
use crate::error::{MountError, UnmountError};
use crate::forgetting::Forgetting;
use crate::mountinfo::{self, Device};
use crate::options::MountOptions;
use crate::passing::Passing;
use crate::record::Recorder;
use parking_lot::{Condvar, Mutex};
use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use tokio::runtime::Handle;
use tokio::sync::watch;
use types::{FileId, FsError};
use vfs::fs::FileSystem;

/// A mounted file system. Unmounts when dropped.
#[must_use = "dropping a mount unmounts it"]
pub struct Mount {
    shared: Arc<Shared>,
}

/// Makes the kernel forget what it has cached. Not to be called by what serves requests, unless of a directory that is being listed: the kernel may wait for these
/// meanwhile.
#[derive(Clone)]
pub struct Invalidator {
    kernel: fuser::Notifier,
    forgetting: Arc<Forgetting>,
    passing: Arc<Passing>,
}

impl Invalidator {
    /// Attributes and contents of a file.
    pub fn file(&self, id: FileId) {
        for inode in self.passing.all(id) {
            self.forgetting.file_in_turn(fuser::INodeNo(inode));
        }
    }

    /// What a name means.
    pub fn name(&self, dir: FileId, name: &[u8]) {
        self.said(self.kernel.inval_entry(fuser::INodeNo(dir.raw()), OsStr::from_bytes(name)));
    }

    fn said(&self, result: io::Result<()>) {
        if let Err(error) = result {
            // The mount has ended, or the kernel knows nothing of it.
            tracing::debug!(%error, "the kernel was told to forget something");
        }
    }
}

struct Shared {
    notifier: fuser::Notifier,
    mountpoint: PathBuf,
    device: Option<Device>,
    fs: Arc<dyn FileSystem>,
    options: MountOptions,
    counters: Arc<Counters>,
    passing: Arc<Passing>,
    recorder: Arc<Recorder>,
    forgetting: Arc<Forgetting>,
    /// Set once, when the kernel has let go and the file system was synced: with the result of that sync.
    ended: Mutex<Option<Result<(), FsError>>>,
    ended_blocking: Condvar,
    ended_async: watch::Sender<bool>,
}

/// Mounts `fs` on the folder `mountpoint`, which it hides while it is mounted. Works as root, and for ordinary users by `fusermount3`.
///
/// Returns when the kernel and the file system have agreed; no request has been made of `fs` by then.
pub fn mount(fs: Arc<dyn FileSystem>, mountpoint: &Path, options: MountOptions) -> Result<Mount, MountError> {
    let at = Mountpoint::find(mountpoint)?;
    let system = |step, source| MountError::System { path: at.path.clone(), step, source };
    let kernel = attach::attach(&at, &options)?;
    let device = mountinfo::device_at(&at.path);
    let counters = Arc::new(Counters::new());
    let passing = Passing::new();
    let own = options.passthrough.then(|| kernel.try_clone().ok()).flatten();
    let notifier = Arc::new(OnceLock::new());
    let recorder = Recorder::new();
    let forgetting = Arc::new(Forgetting::default());
    let (told, counted, passed) = (Arc::clone(&notifier), Arc::clone(&counters), Arc::clone(&passing));
    let (recorded, forget) = (Arc::clone(&recorder), Arc::clone(&forgetting));
    let front = FrontEnd::new(Arc::clone(&fs), options.clone(), counted, passed, recorded, forget, told);
    let started = fuser::Session::from_fd(front, kernel, fuser::SessionACL::All, session_config(&options))
        .map_err(|error| system("agree with the kernel on FUSE", error))
        .and_then(|session| {
            own.iter().for_each(|kernel| passing.begin(kernel));
            notifier.get_or_init(|| session.notifier());
            let shared = Arc::new(Shared {
                notifier: session.notifier(),
                mountpoint: at.path.clone(),
                device: device.clone(),
                fs,
                options,
                counters,
                passing,
                recorder,
                forgetting,
                ended: Mutex::new(None),
                ended_blocking: Condvar::new(),
                ended_async: watch::Sender::new(false),
            });
            let thread = |name: &str, work: Box<dyn FnOnce() + Send>| {
                let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
                started.map(drop).map_err(|error| system("start a thread", error))
            };
            let (serving, telling) = (Arc::clone(&shared), Arc::clone(&shared));
            thread("fuse-forget", Box::new(move || telling.forgetting.run(&telling.notifier)))?;
            let served = thread("fuse-session", Box::new(move || serving.serve(session)));
            served.inspect_err(|_| shared.forgetting.end())?;
            Ok(shared)
        });
    match started {
        Ok(shared) => {
            shared.raise_read_ahead();
            Ok(Mount { shared })
        }
        Err(error) => {
            if let Err(said) = attach::detach(&at.path) {
                tracing::warn!(path = %at.path.display(), said, "could not undo a mount that failed");
            }
            Err(error)
        }
    }
}

/// Who may enter is the kernel's decision (`allow_other`). fuser's own check by user id, which `SessionACL::All` turns off, would only
/// refuse requests that the kernel has let in.
fn session_config(options: &MountOptions) -> fuser::Config {
    let mut config = fuser::Config::default();
    config.acl = fuser::SessionACL::All;
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = options.threads > 1 && attach::device_opens();
    config
}

impl Mount {
    /// Where it is mounted: absolute, without symlinks.
    pub fn mountpoint(&self) -> &Path {
        &self.shared.mountpoint
    }

    /// By which the file system tells the kernel that others have changed something.
    pub fn invalidator(&self) -> Invalidator {
        let shared = &self.shared;
        let (forgetting, passing) = (shared.forgetting.clone(), shared.passing.clone());
        Invalidator { kernel: shared.notifier.clone(), forgetting, passing }
    }

    /// True if the kernel reads files itself that the file system has on this machine.
    pub fn has_passthrough(&self) -> bool {
        self.shared.passing.is_on()
    }

    /// By which what is done with files can be recorded.
    pub fn recorder(&self) -> Arc<Recorder> {
        Arc::clone(&self.shared.recorder)
    }

    /// How many requests of each kind the kernel has sent so far, by name.
    pub fn requests(&self) -> Vec<(&'static str, u64)> {
        self.shared.counters.snapshot()
    }

    /// Done when the mount has ended, by whatever cause (someone may run `umount`), and the file system was synced.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut ended = self.shared.ended_async.subscribe();
        async move {
            // The sender cannot be gone before it has sent: the session holds it.
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }

    /// Blocks until [`closed`](Self::closed).
    pub fn wait(&self) {
        // The result of the last sync is for whoever unmounts.
        let _ = self.shared.wait_ended();
    }

    /// Unmounts and makes everything durable. If files are still open the mount is detached: its name is free at once, and what is
    /// open is served until it is closed, or this process ends.
    ///
    /// Blocks, and needs the runtime meanwhile: call it from a thread that is not one of the runtime's workers.
    pub fn unmount(self) -> Result<(), UnmountError> {
        let path = self.shared.mountpoint.clone();
        let durable = match self.shared.detach() {
            Err(message) => return Err(UnmountError::Refused { path, message }),
            Ok(Detached::Clean) => self.shared.wait_ended(),
            Ok(Detached::InUse) => sync_blocking(&self.shared.fs, &self.shared.options),
        };
        durable.map_err(|source| UnmountError::NotDurable { path, source })
    }
}

impl Drop for Mount {
    /// Unmounts as [`unmount`](Mount::unmount) does, but does not wait for it on a thread of a runtime.
    fn drop(&mut self) {
        let shared = Arc::clone(&self.shared);
        let work = move || {
            match shared.detach() {
                Ok(Detached::Clean) => drop(shared.wait_ended()),
                Ok(Detached::InUse) => {}
                Err(said) => tracing::warn!(path = %shared.mountpoint.display(), said, "could not unmount"),
            };
        };
        if Handle::try_current().is_err() {
            work();
        } else if let Err(error) = std::thread::Builder::new().name("fuse-unmount".to_owned()).spawn(work) {
            tracing::warn!(path = %self.mountpoint().display(), %error, "could not unmount");
        }
    }
}

impl Shared {
    /// Serves until the kernel lets go. Runs in a thread of its own.
    fn serve(&self, session: fuser::Session<FrontEnd>) {
        if let Err(error) = session.run() {
            tracing::error!(path = %self.mountpoint.display(), %error, "FUSE session ended");
        }
        let durable = sync_blocking(&self.fs, &self.options);
        if let Err(error) = durable {
            tracing::error!(path = %self.mountpoint.display(), %error, "sync after unmounting failed");
        }
        self.recorder.close();
        self.forgetting.end();
        *self.ended.lock() = Some(durable);
        self.ended_blocking.notify_all();
        self.ended_async.send_replace(true);
    }

    fn wait_ended(&self) -> Result<(), FsError> {
        let mut ended = self.ended.lock();
        loop {
            match *ended {
                Some(result) => return result,
                None => self.ended_blocking.wait(&mut ended),
            }
        }
    }

    /// Unmounts, unless someone else has done so. Only ever unmounts this mount, and not one that covers it.
    fn detach(&self) -> Result<Detached, String> {
        if self.ended.lock().is_some() {
            return Ok(Detached::Clean);
        }
        let there = mountinfo::device_at(&self.mountpoint);
        match (&there, &self.device) {
            // Someone else detached it while files are open: their last close ends it.
            (None, Some(_)) => Ok(Detached::InUse),
            (Some(there), Some(own)) if there != own => Err("another file system is mounted over it".to_owned()),
            _ => attach::detach(&self.mountpoint),
        }
    }

    /// The kernel starts every FUSE mount at 128 KiB, whatever the file system says; only this file raises it.
    fn raise_read_ahead(&self) {
        let Some(Device(device)) = &self.device else { return };
        let file = format!("/sys/class/bdi/{device}/read_ahead_kb");
        let wanted_kib = self.options.read_ahead_bytes / 1024;
        let current_kib = std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u32>().ok());
        if current_kib.is_some_and(|current| current >= wanted_kib) {
            return;
        }
        let written: io::Result<()> = std::fs::write(&file, wanted_kib.to_string());
        if let Err(error) = written {
            tracing::debug!(file, %error, "read-ahead stays at the kernel's default");
        }
    }
}
