//! The life of a mount: from attaching to the kernel to the last sync.

use crate::attach::{self, Detached, Mountpoint};
use crate::count::Counters;
use crate::dead;
use crate::dispatch::{FrontEnd, sync_blocking};
use crate::error::{DetachError, MountError, UnmountError};
use crate::forgetting::Forgetting;
use crate::invalidator::Invalidator;
use crate::mountinfo::{self, Device};
use crate::options::MountOptions;
use crate::passing::Passing;
use crate::validity::Validity;
use host::real::RealClock;
use parking_lot::{Condvar, Mutex};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use types::FsError;
use vfs::fs::FileSystem;

/// How long to wait, after an unmount, for the kernel to close the connection. It does so at once,
/// unless another mount namespace has a copy of the mount.
const LET_GO_TIME_MAX: Duration = Duration::from_secs(5);

/// A mounted file system. Unmounts when dropped.
#[must_use = "dropping a mount unmounts it"]
pub struct Mount {
    shared: Arc<Shared>,
}

struct Shared {
    mountpoint: PathBuf,
    device: Option<Device>,
    fs: Arc<dyn FileSystem>,
    options: MountOptions,
    counters: Arc<Counters>,
    passing: Arc<Passing>,
    forgetting: Arc<Forgetting>,
    invalidator: Invalidator,
    /// The result of the last sync. Set once, after the kernel let go and the file system was
    /// synced.
    ended: Mutex<Option<Result<(), FsError>>>,
    ended_blocking: Condvar,
    /// True once the kernel sends no more requests.
    let_go: Mutex<bool>,
    let_go_blocking: Condvar,
    ended_async: watch::Sender<bool>,
}

/// Mounts `fs` on the folder `mountpoint`, and hides the folder's contents meanwhile. Works as
/// root, and for ordinary users through `fusermount3`.
///
/// Returns when the kernel and the front end have agreed on the protocol; no request has reached
/// `fs` by then.
pub fn mount(fs: Arc<dyn FileSystem>, mountpoint: &Path, options: MountOptions) -> Result<Mount, MountError> {
    dead::clear(mountpoint)?;
    let options = options.agreed();
    let at = Mountpoint::find(mountpoint)?;
    let system = |step, source| MountError::System { path: at.path.clone(), step, source };
    let kernel = attach::attach(&at, &options)?;
    let device = mountinfo::device_at(&at.path);
    let counters = Arc::new(Counters::new());
    let passing = Passing::new();
    let validity = Arc::new(Validity::new(options.shared));
    let own = kernel.try_clone();
    let notifier = Arc::new(OnceLock::new());
    let forgetting = Arc::new(OnceLock::new());
    let (told, counted, passed) = (Arc::clone(&notifier), Arc::clone(&counters), Arc::clone(&passing));
    let forget = Arc::clone(&forgetting);
    let front = FrontEnd::new(Arc::clone(&fs), options.clone(), counted, passed, Arc::clone(&validity), forget, told);
    let (sections, pages, listings, believed) =
        (front.sections.clone(), front.pages.clone(), front.listings.clone(), front.believed.clone());
    let started = fuser::Session::from_fd(front, kernel, fuser::SessionACL::All, session_config(&options))
        .map_err(|error| system("agree with the kernel on FUSE", error))
        .and_then(|session| {
            let own = own.map_err(|error| system("copy a descriptor", error))?;
            if options.passthrough {
                passing.begin(&own);
            }
            let telling = Forgetting::start(own, at.path.clone()).map_err(|error| system("start a thread", error))?;
            if options.others_change {
                validity.bound_names(telling.name_valid_max());
            }
            if telling.has_epochs() {
                validity.keep_names();
            }
            let forgetting = Arc::clone(forgetting.get_or_init(|| Arc::new(telling)));
            let invalidator = Invalidator {
                forgetting: Arc::clone(&forgetting),
                passing: Arc::clone(&passing),
                sections,
                validity,
                pages,
                listings,
                believed,
                clock: Arc::new(RealClock::new(options.runtime.clone())),
            };
            notifier.get_or_init(|| session.notifier());
            let shared = Arc::new(Shared {
                mountpoint: at.path.clone(),
                device: device.clone(),
                fs,
                options,
                counters,
                passing,
                forgetting,
                invalidator,
                ended: Mutex::new(None),
                ended_blocking: Condvar::new(),
                let_go: Mutex::new(false),
                let_go_blocking: Condvar::new(),
                ended_async: watch::Sender::new(false),
            });
            let serving = Arc::clone(&shared);
            let serve =
                std::thread::Builder::new().name("fuse-session".to_owned()).spawn(move || serving.serve(session));
            serve.inspect_err(|_| shared.forgetting.end()).map_err(|error| system("start a thread", error))?;
            Ok(shared)
        });
    match started {
        Ok(shared) => {
            shared.raise_read_ahead();
            Ok(Mount { shared })
        }
        Err(error) => {
            if let Err(error) = attach::detach(&at.path) {
                tracing::warn!(path = %at.path.display(), %error, "could not undo a mount that failed");
            }
            Err(error)
        }
    }
}

/// fuser's settings. The kernel decides who may enter (`allow_other`). fuser's own check by user id
/// would only refuse requests that the kernel has let in, so `SessionACL::All` turns it off.
fn session_config(options: &MountOptions) -> fuser::Config {
    let mut config = fuser::Config::default();
    config.acl = fuser::SessionACL::All;
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = options.threads > 1 && attach::device_opens();
    config
}

impl Mount {
    /// The mount point: absolute, without symlinks.
    pub fn mountpoint(&self) -> &Path {
        &self.shared.mountpoint
    }

    /// The file system uses this to tell the kernel about changes by other clients.
    pub fn invalidator(&self) -> Invalidator {
        self.shared.invalidator.clone()
    }

    /// True if the kernel can be told to forget names, and so may keep them for long.
    pub fn forgets_names(&self) -> bool {
        self.shared.forgetting.has_epochs()
    }

    /// True if the kernel itself reads files that the file system has on this machine.
    pub fn has_passthrough(&self) -> bool {
        self.shared.passing.is_on()
    }

    /// The number of requests of each kind that the kernel has sent, by name.
    pub fn requests(&self) -> Vec<(&'static str, u64)> {
        self.shared.counters.snapshot()
    }

    /// Completes when the mount has ended, for any reason (a user may run `umount`), and the file
    /// system was synced.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut ended = self.shared.ended_async.subscribe();
        async move {
            // The sender cannot be gone before it has sent: the session holds it.
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }

    /// Blocks until [`closed`](Self::closed).
    pub fn wait(&self) {
        // The result of the last sync is for the caller of `unmount`.
        let _ = self.shared.wait_ended();
    }

    /// Unmounts and makes everything durable. If files are still open, the mount is detached: the
    /// mount point is free at once, and open files are served until they are closed or this process
    /// ends. The same holds for a copy of the mount in another mount namespace.
    ///
    /// Blocks, and needs the runtime meanwhile: call it from a thread that is not one of the
    /// runtime's workers.
    pub fn unmount(self) -> Result<(), UnmountError> {
        let path = self.shared.mountpoint.clone();
        let durable = match self.shared.detach() {
            Err(source) => return Err(UnmountError::Refused { path, source }),
            Ok(Detached::Clean) if self.shared.is_let_go() => self.shared.wait_ended(),
            Ok(_) => sync_blocking(&self.shared.fs, &self.shared.options),
        };
        durable.map_err(|source| UnmountError::NotDurable { path, source })
    }
}

impl Drop for Mount {
    /// Unmounts as [`unmount`](Mount::unmount) does, except that it does not sync while files are
    /// still open: the sync follows when the last one is closed. On a thread of a runtime, a new
    /// thread does the work, and this call does not wait for it.
    fn drop(&mut self) {
        let shared = Arc::clone(&self.shared);
        let work = move || {
            match shared.detach() {
                Ok(Detached::Clean) if shared.is_let_go() => drop(shared.wait_ended()),
                Ok(_) => {}
                Err(error) => tracing::warn!(path = %shared.mountpoint.display(), %error, "could not unmount"),
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
    /// Serves requests until the kernel lets go. Runs in a thread of its own.
    fn serve(&self, session: fuser::Session<FrontEnd>) {
        if let Err(error) = session.run() {
            tracing::error!(path = %self.mountpoint.display(), %error, "FUSE session ended");
        }
        *self.let_go.lock() = true;
        self.let_go_blocking.notify_all();
        let durable = sync_blocking(&self.fs, &self.options);
        if let Err(error) = durable {
            tracing::error!(path = %self.mountpoint.display(), %error, "sync after unmounting failed");
        }
        if let Some(observer) = &self.options.observer {
            observer.on_end();
        }
        self.forgetting.end();
        *self.ended.lock() = Some(durable);
        self.ended_blocking.notify_all();
        self.ended_async.send_replace(true);
    }

    /// True once the kernel has let go of a mount that was unmounted. It does so at once, unless
    /// another mount namespace, such as a container's, has a copy of the mount.
    fn is_let_go(&self) -> bool {
        let mut let_go = self.let_go.lock();
        let timed_out = self.let_go_blocking.wait_while_for(&mut let_go, |let_go| !*let_go, LET_GO_TIME_MAX);
        if timed_out.timed_out() {
            tracing::warn!(path = %self.mountpoint.display(), "unmounted here, and still used in another mount namespace");
        }
        *let_go
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

    /// Unmounts, unless another program has done so. Only ever unmounts this mount, and not a mount
    /// that covers it.
    fn detach(&self) -> Result<Detached, DetachError> {
        if self.ended.lock().is_some() {
            return Ok(Detached::Clean);
        }
        let there = mountinfo::device_at(&self.mountpoint);
        match (&there, &self.device) {
            // Another program detached it while files are open: their last close ends it.
            (None, Some(_)) => Ok(Detached::InUse),
            (Some(there), Some(own)) if there != own => Err(DetachError::Covered),
            _ => attach::detach(&self.mountpoint),
        }
    }

    /// Raises the mount's read-ahead. The kernel starts every FUSE mount at 128 KiB, even if the
    /// file system asks for more; only this file in /sys raises it.
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
