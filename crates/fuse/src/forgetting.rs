//! Makes the kernel forget what it has cached: names at once, files on a thread of its own.
//!
//! - *Names* are forgotten by raising the connection's epoch (Linux 6.16): the kernel then looks
//!   each cached name up once more before it uses it. Raising the epoch takes no lock. Forgetting a
//!   single name takes the lock of its directory, and a program that waits for an answer of ours
//!   may hold that lock; a process that is killed meanwhile could never die. Before 6.16 the kernel
//!   is told to keep names for [`NAME_VALID_MAX`] only. A new epoch also detaches file systems that
//!   are mounted below this one. While there are any, each name is forgotten by itself, on the
//!   thread that forgets files.
//! - *Files*: the kernel makes the caller wait for pages that stay locked until their requests are
//!   answered. So a thread that answers no requests does this. It runs [apart](crate::apart), with
//!   a [survivor](crate::survivor).

use crate::apart;
use crate::attach;
use crate::mountinfo;
use crate::survivor::Survivor;
use fuser::INodeNo;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// How long the kernel may keep names where it cannot be told to forget them.
const NAME_VALID_MAX: Duration = Duration::from_secs(1);
/// Entries in the queue at which callers of [`Forgetting::file_in_turn`] wait.
const WAITING_MAX: usize = 1024;
/// Codes of notifications (fuse_kernel.h).
const INVAL_INODE: u32 = 2;
const INVAL_ENTRY: u32 = 3;
const INC_EPOCH: u32 = 8;
/// The offset of INVAL_INODE that leaves an inode's pages alone: -1.
const NO_PAGES: u64 = u64::MAX;

/// Sends a notification to the kernel: a reply that answers no request, with its code in the error
/// field.
fn notify(device: &OwnedFd, code: u32, words: &[u64], rest: &[u8]) -> io::Result<()> {
    let len = 16 + 8 * words.len() + rest.len();
    let mut message = Vec::with_capacity(len);
    message.extend_from_slice(&(len as u32).to_ne_bytes());
    message.extend_from_slice(&code.to_ne_bytes());
    [0].iter().chain(words).for_each(|word| message.extend_from_slice(&word.to_ne_bytes()));
    message.extend_from_slice(rest);
    // SAFETY: the buffer has the length given.
    let written = unsafe { libc::write(device.as_raw_fd(), message.as_ptr().cast(), message.len()) };
    if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What the kernel is to forget, one item at a time, in the order of this type.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The attributes and pages of an inode.
    Inode(u64),
    /// A name in the directory with this inode.
    Name(u64, Vec<u8>),
}

#[derive(Default)]
struct Waiting {
    all: BTreeSet<What>,
    /// The thread is telling the kernel about one item.
    is_telling: bool,
    ended: bool,
}

/// The thread's work. It must hold nothing that owns a descriptor: the thread could not close it.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Queue {
    fn add(&self, what: What) {
        let mut waiting = self.waiting.lock();
        if !waiting.ended && waiting.all.insert(what) {
            self.changed.notify_all();
        }
    }

    /// Waits until the queue has room.
    fn wait(&self) {
        let mut waiting = self.waiting.lock();
        while waiting.all.len() >= WAITING_MAX && !waiting.ended {
            self.changed.wait(&mut waiting);
        }
    }

    /// Waits until the kernel has been told of every item, but not longer than `time`.
    fn wait_for_all(&self, time: Duration) {
        let mut waiting = self.waiting.lock();
        let is_busy = |waiting: &mut Waiting| !waiting.ended && (waiting.is_telling || !waiting.all.is_empty());
        let _ = self.changed.wait_while_for(&mut waiting, is_busy, time);
    }

    /// The next item; waits for one. `None` when the thread is to end.
    fn next(&self) -> Option<What> {
        let mut waiting = self.waiting.lock();
        waiting.is_telling = false;
        self.changed.notify_all();
        loop {
            match waiting.all.pop_first() {
                _ if waiting.ended => return None,
                Some(what) => {
                    waiting.is_telling = true;
                    self.changed.notify_all();
                    return Some(what);
                }
                None => self.changed.wait(&mut waiting),
            }
        }
    }

    /// Tells the kernel what to forget until the thread is to end. Does not log: the thread may
    /// have no descriptor for that.
    fn run(&self, device: &OwnedFd) {
        while let Some(what) = self.next() {
            // The notification fails if the kernel has not cached the item, or if the mount has
            // ended.
            let _ = match what {
                // Offset 0 and length 0: the whole file.
                What::Inode(inode) => notify(device, INVAL_INODE, &[inode, 0, 0], &[]),
                What::Name(parent, name) => {
                    notify(device, INVAL_ENTRY, &[parent, name.len() as u64], &[&name[..], b"\0"].concat())
                }
            };
        }
    }
}

/// Makes the kernel forget names and files of one mount.
pub(crate) struct Forgetting {
    device: OwnedFd,
    /// The mount point.
    path: PathBuf,
    has_epochs: bool,
    queue: Arc<Queue>,
    _survivor: Option<Survivor>,
}

impl Forgetting {
    /// Starts the thread for a connection that the kernel has agreed to; `device` is one of its
    /// descriptors.
    pub(crate) fn start(device: OwnedFd, path: PathBuf) -> io::Result<Forgetting> {
        let has_epochs = notify(&device, INC_EPOCH, &[], &[]).is_ok();
        let survivor = Survivor::start(&device).inspect_err(|error| tracing::debug!(%error, "no survivor")).ok();
        let queue = Arc::new(Queue::default());
        let spare = attach::clone_device(&device).or_else(|_| device.try_clone())?;
        let (begun, has_begun) = sync_channel(1);
        let (raw, work) = (spare.as_raw_fd(), Arc::clone(&queue));
        let run = move || {
            let left = apart::leave(Some(raw));
            let _ = begun.send(left.is_ok());
            // SAFETY: the descriptor is this thread's own copy, or, if the thread shares the table,
            // the one that the starter gives up below.
            work.run(&unsafe { OwnedFd::from_raw_fd(raw) });
        };
        std::thread::Builder::new().name("fuse-forget".to_owned()).spawn(run)?;
        let is_apart = has_begun.recv().unwrap_or(true);
        if !is_apart {
            let _ = spare.into_raw_fd();
        }
        tracing::debug!(has_epochs, is_apart, "having the kernel forget");
        Ok(Forgetting { device, path, has_epochs, queue, _survivor: survivor })
    }

    /// True if the kernel can forget names at any time.
    pub(crate) fn has_epochs(&self) -> bool {
        self.has_epochs
    }

    /// How long the kernel may keep names when other clients change what they mean.
    pub(crate) fn name_valid_max(&self) -> Duration {
        if self.has_epochs { Duration::MAX } else { NAME_VALID_MAX }
    }

    /// Makes the kernel forget names, each given with the inode of its directory.
    pub(crate) fn names<'a>(&self, names: impl IntoIterator<Item = (INodeNo, &'a [u8])>) {
        if self.has_epochs && !self.all_names() {
            for (dir, name) in names {
                self.queue.wait();
                self.queue.add(What::Name(dir.0, name.to_vec()));
            }
        }
    }

    /// Makes the kernel forget all names at once, without a wait. False if it cannot: it has no
    /// epochs, or a new one would detach file systems that are mounted below this one.
    pub(crate) fn all_names(&self) -> bool {
        if !self.has_epochs || mountinfo::has_mounts_below(&self.path) {
            return false;
        }
        if let Err(error) = notify(&self.device, INC_EPOCH, &[], &[]) {
            // The mount has ended.
            tracing::debug!(%error, "the kernel was told to forget names");
        }
        true
    }

    /// Makes the kernel forget the attributes and ACLs of an inode, but not its pages. Never waits
    /// for a request.
    pub(crate) fn attributes(&self, inode: INodeNo) {
        // This fails if the kernel does not know the inode, or if the mount has ended.
        let _ = notify(&self.device, INVAL_INODE, &[inode.0, NO_PAGES, 0], &[]);
    }

    /// Queues an inode's pages and attributes to be forgotten. Never waits; callers have at most
    /// one request each under way, and that bounds the queue.
    pub(crate) fn file(&self, inode: INodeNo) {
        self.queue.add(What::Inode(inode.0));
    }

    /// Like [`file`](Self::file), but waits while the queue is full.
    pub(crate) fn file_in_turn(&self, inode: INodeNo) {
        self.queue.wait();
        self.file(inode);
    }

    /// Waits until the queue is empty and the kernel has been told of all of it, but not longer
    /// than `time`.
    pub(crate) fn has_forgotten(&self, time: Duration) {
        self.queue.wait_for_all(time);
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.queue.waiting.lock().ended = true;
        self.queue.changed.notify_all();
    }
}

impl Drop for Forgetting {
    fn drop(&mut self) {
        self.end();
    }
}
