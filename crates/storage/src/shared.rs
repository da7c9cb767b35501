//! The state that requests and the commit loop of a server share, under its lock, and the queue of
//! changes between them.

use crate::api::{Seal, Seals, StorageError, StoreIdentity};
use crate::files::StoreFiles;
use crate::index::{FragmentKey, Held, Index};
use crate::packed::PackedHeader;
use crate::pages::{PAGE, PageExtent, footprint};
use crate::space::PageSpace;
use host::{Clock, Tasks};
use parking_lot::Mutex;
use policy::gauge::Gauge;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use striped_log::fragment::{Fragment, FragmentHeader};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use types::{Maps, SegmentId};

/// Most bytes of puts in the queue and being written. Further puts wait for room before they queue
/// up. This bounds memory.
const QUEUE_BYTES_MAX: u32 = 64 << 20;
/// Unit in which the queue's room is counted, in bytes.
const QUEUE_UNIT: u32 = PAGE;
/// Most seals and maps in the queue. Further ones are refused as [`StorageError::Unavailable`].
const CONTROLS_MAX: usize = 1024;
/// How long the disk may take for one operation of the commit loop before it counts as hanging.
/// Clients wait for a put a little longer. So of the puts that one program waits for one after the
/// other, only the first one meets the disk.
const HANGING_TIME: Duration = Duration::from_millis(2_500);
/// It may take longer for many bytes: this many per second are not too few for a slow disk.
const SLOW_BYTES_PER_SECOND: u64 = 4 << 20;
/// Fragments deleted since the last checkpoint from which on a checkpoint is written for them. More
/// mean fewer checkpoints, and more deleted fragments that a crash brings back.
const DELETED_MAX: usize = 1024;

/// Everything that the two halves of a server share.
pub struct Shared {
    /// The identity of the store.
    pub identity: StoreIdentity,
    /// The open files.
    pub files: StoreFiles,
    /// The commit loop runs on these tasks. A task that waits for it best runs here too.
    pub tasks: Arc<dyn Tasks>,
    /// The state of the store. The lock is held for map operations and for encoding a checkpoint,
    /// never across an await.
    pub state: Mutex<StorageState>,
    clock: Arc<dyn Clock>,
    /// While the commit loop works: when it will have waited for the disk for too long.
    hangs_at: Mutex<Option<Duration>>,
    gauge: Mutex<Gauge>,
    queue: Mutex<Queue>,
    wake: Notify,
    pub room: Arc<Semaphore>,
}

/// Whether the disk lets the `fragments` file grow. Bytes that the disk reports as free can be out
/// of reach, for example because of a quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// Possible, as far as is known.
    Possible,
    /// The disk refused it the last time.
    Refused,
    /// The disk refused it, and reported this many free bytes after that.
    RefusedAt(u64),
}

impl Growth {
    /// Bytes that the file can grow by, if the disk reports `said` free bytes. After a refusal,
    /// growing is tried again once the disk reports more than then.
    pub fn free_bytes(&mut self, said: u64) -> u64 {
        *self = match *self {
            Growth::Refused => Growth::RefusedAt(said),
            Growth::RefusedAt(then) if said > then => Growth::Possible,
            as_it_was => as_it_was,
        };
        if *self == Growth::Possible { said } else { 0 }
    }
}

/// The state of a store, in memory.
pub struct StorageState {
    /// All durable fragments.
    pub index: Index,
    /// The allocator of pages.
    pub space: PageSpace,
    /// Whether the disk has more room.
    pub growth: Growth,
    /// The seals.
    pub seals: Seals,
    /// The newest maps.
    pub maps: Maps,
    /// Fragments found damaged since the start. Putting one of them again replaces it.
    pub damaged: BTreeSet<FragmentKey>,
    /// False after a failed write or sync, and when closed.
    pub writable: bool,
    /// Fragments that were put, moved or deleted since the last checkpoint. They are bounded by the
    /// reserved pages and [`DELETED_MAX`].
    pub changed: BTreeSet<FragmentKey>,
    /// How many fragments were deleted since the last checkpoint.
    pub deleted_count: usize,
}

impl StorageState {
    /// True if an opening has discarded the segment, or is about to: its writer was declared dead.
    /// Segments that count may be put again at any time: that restores lost redundancy.
    pub fn is_sealed(&self, segment: &SegmentId) -> bool {
        self.seals.refuse(segment)
    }

    /// Answers a put that needs no write: a refused one, or a fragment that is there already.
    /// `None` if the fragment is to be written.
    pub fn answer_put(&self, key: &FragmentKey, header: &FragmentHeader) -> Option<Result<(), StorageError>> {
        if self.is_sealed(&key.segment()) {
            return Some(Err(StorageError::Sealed(key.log)));
        }
        if !self.writable {
            return Some(Err(StorageError::Unavailable));
        }
        let held = self.index.get(key)?;
        if held.header != PackedHeader::new(header) {
            return Some(Err(StorageError::BadRequest("this attempt is here with other contents")));
        }
        (!self.damaged.contains(key)).then_some(Ok(()))
    }

    /// Adds a fragment that is durable at `held.place`. It replaces a damaged one. If a good one is
    /// there already, that one stays.
    pub fn insert(&mut self, key: FragmentKey, held: Held) {
        self.changed.insert(key);
        let replaced = match self.index.get(&key) {
            Some(_) if !self.damaged.remove(&key) => Some(held.place),
            _ => self.index.insert(key, held).map(|old| old.place),
        };
        if let Some(place) = replaced {
            self.space.release(place);
        }
    }

    /// Removes the fragments of a segment.
    pub fn delete(&mut self, segment: SegmentId) {
        self.damaged.retain(|key| key.segment() != segment);
        let gone = self.index.remove_segment(segment);
        self.release(gone);
    }

    /// [Takes](Seals::take) a seal, and removes the fragments that it discards. True if it was
    /// taken.
    pub fn seal(&mut self, seal: Seal) -> bool {
        let log = seal.log;
        if !self.seals.take(seal) {
            return false;
        }
        if let Some(seal) = self.seals.discarding(log) {
            self.damaged.retain(|key| !seal.discards(&key.segment()));
            let gone = self.index.remove_discarded(seal);
            self.release(gone);
        }
        true
    }

    fn release(&mut self, gone: Vec<(FragmentKey, Held)>) {
        self.deleted_count += gone.len();
        for (key, held) in gone {
            self.space.release(held.place);
            self.changed.insert(key);
        }
    }

    /// Notes that a fragment has moved from `from` to `held.place`.
    pub fn moved(&mut self, key: FragmentKey, from: PageExtent, held: Held) {
        self.index.insert(key, held);
        self.changed.insert(key);
        self.space.release(from);
    }

    /// The places of all fragments, in the order of the file.
    pub fn live(&self) -> Vec<(PageExtent, FragmentKey)> {
        let mut live: Vec<(PageExtent, FragmentKey)> =
            self.index.iter().map(|(key, held)| (held.place, *key)).collect();
        live.sort_unstable();
        live
    }

    /// True if so many fragments were deleted since the last checkpoint that one should be written.
    pub fn wants_checkpoint(&self) -> bool {
        self.deleted_count >= DELETED_MAX
    }
}

/// A fragment that waits to be written.
pub struct WaitingPut {
    /// The fragment.
    pub fragment: Fragment,
    /// Its key.
    pub key: FragmentKey,
    /// Bytes that it takes on the disk.
    pub footprint: u32,
    /// Gets the result when the fragment is durable or refused.
    pub done: oneshot::Sender<Result<(), StorageError>>,
    /// Its part of the queue's room.
    pub room: OwnedSemaphorePermit,
}

/// A change that must be in a checkpoint before it is answered.
pub enum Control {
    /// Fence a log.
    Seal(Seal, oneshot::Sender<Result<Seal, StorageError>>),
    /// Keep maps.
    Maps(Maps, oneshot::Sender<Result<(), StorageError>>),
}

/// A request under way.
pub struct UnderWay {
    shared: Arc<Shared>,
    can_wait: bool,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.shared.gauge.lock().end(self.shared.clock.now(), self.can_wait);
    }
}

#[derive(Default)]
struct Queue {
    puts: VecDeque<WaitingPut>,
    controls: Vec<Control>,
    checkpoint: bool,
    closing: bool,
    closers: Vec<oneshot::Sender<Result<(), StorageError>>>,
}

/// The work that the commit loop takes at once.
pub struct Batch {
    /// Fragments to write.
    pub puts: VecDeque<WaitingPut>,
    /// Seals and maps to keep.
    pub controls: Vec<Control>,
    /// True if a checkpoint was asked for.
    pub checkpoint: bool,
    /// If set, the loop must end after this batch, and tell these callers.
    pub closing: Option<Vec<oneshot::Sender<Result<(), StorageError>>>>,
}

impl Shared {
    /// Puts the parts together.
    pub fn new(
        identity: StoreIdentity,
        files: StoreFiles,
        tasks: Arc<dyn Tasks>,
        clock: Arc<dyn Clock>,
        state: StorageState,
    ) -> Arc<Shared> {
        Arc::new(Shared {
            identity,
            files,
            tasks,
            state: Mutex::new(state),
            clock,
            hangs_at: Mutex::default(),
            gauge: Mutex::default(),
            queue: Mutex::default(),
            wake: Notify::new(),
            room: Arc::new(Semaphore::new((QUEUE_BYTES_MAX / QUEUE_UNIT) as usize)),
        })
    }

    /// Counts a request as under way until what this returns is dropped. `can_wait`: it is not of a
    /// program.
    pub fn under_way(self: &Arc<Self>, can_wait: bool) -> UnderWay {
        self.gauge.lock().begin(self.clock.now(), can_wait);
        UnderWay { shared: self.clone(), can_wait }
    }

    /// A step of the commit loop begins, which has the disk do so many operations with so many
    /// bytes.
    pub fn step(&self, operations: u32, bytes: usize) {
        let for_bytes = Duration::from_millis(bytes as u64 * 1000 / SLOW_BYTES_PER_SECOND);
        *self.hangs_at.lock() = Some(self.clock.now() + HANGING_TIME * operations + for_bytes);
    }

    /// True if the disk has not come to the end of a step for long. Until it does, the store takes
    /// no puts of programs, which would wait for it in vain. Seals, maps, and puts that can wait go
    /// on waiting: those who ask for them have no better way.
    pub fn hangs(&self) -> bool {
        self.hangs_at.lock().is_some_and(|at| self.clock.now() >= at)
    }

    /// How long work that can wait should rest.
    pub fn rest(&self) -> Duration {
        self.gauge.lock().rest(self.clock.now())
    }

    /// Queues a fragment, and waits until it is durable.
    pub async fn put(&self, fragment: Fragment, key: FragmentKey) -> Result<(), StorageError> {
        let footprint = footprint(fragment.header.len);
        let room = self.room.clone().acquire_many_owned(footprint / QUEUE_UNIT).await;
        let room = room.map_err(|_| StorageError::Unavailable)?;
        let (done, answer) = oneshot::channel();
        self.push(|queue| queue.puts.push_back(WaitingPut { fragment, key, footprint, done, room }))?;
        answer.await.map_err(|_| StorageError::Unavailable)?
    }

    /// Queues a seal, and waits until it or a later one is durable.
    pub async fn seal(&self, seal: Seal) -> Result<Seal, StorageError> {
        let (done, answer) = oneshot::channel();
        self.control(Control::Seal(seal, done))?;
        answer.await.map_err(|_| StorageError::Unavailable)?
    }

    /// Queues maps, and waits until they or later ones are durable.
    pub async fn put_maps(&self, maps: Maps) -> Result<(), StorageError> {
        let (done, answer) = oneshot::channel();
        self.control(Control::Maps(maps, done))?;
        answer.await.map_err(|_| StorageError::Unavailable)?
    }

    /// Ends the commit loop after everything queued and a last checkpoint.
    pub async fn close(&self) -> Result<(), StorageError> {
        let (done, answer) = oneshot::channel();
        self.push(|queue| {
            queue.closers.push(done);
            queue.closing = true;
        })?;
        answer.await.map_err(|_| StorageError::Unavailable)?
    }

    /// Like [`close`](Self::close), without waiting.
    pub fn close_soon(&self) {
        // An error means that the server is closing already.
        let _ = self.push(|queue| queue.closing = true);
    }

    /// Asks for a checkpoint, without waiting.
    pub fn want_checkpoint(&self) {
        // If the server is closing, it writes one anyway.
        let _ = self.push(|queue| queue.checkpoint = true);
    }

    fn control(&self, control: Control) -> Result<(), StorageError> {
        let mut queue = self.queue.lock();
        if queue.closing || queue.controls.len() >= CONTROLS_MAX {
            return Err(StorageError::Unavailable);
        }
        queue.controls.push(control);
        drop(queue);
        self.wake.notify_one();
        Ok(())
    }

    fn push(&self, change: impl FnOnce(&mut Queue)) -> Result<(), StorageError> {
        let mut queue = self.queue.lock();
        if queue.closing {
            return Err(StorageError::Unavailable);
        }
        change(&mut queue);
        drop(queue);
        self.wake.notify_one();
        Ok(())
    }

    /// Waits until there is something to do, and takes all of it. Takes puts of at most `bytes_max`
    /// together, but at least one.
    pub async fn next_batch(&self, bytes_max: u64) -> Batch {
        loop {
            if let Some(batch) = self.take_batch(bytes_max) {
                self.step(1, 0);
                return batch;
            }
            *self.hangs_at.lock() = None;
            self.wake.notified().await;
        }
    }

    fn take_batch(&self, bytes_max: u64) -> Option<Batch> {
        let queue = &mut *self.queue.lock();
        let (mut bytes, mut count) = (0, 0);
        for put in &queue.puts {
            bytes += u64::from(put.footprint);
            if count > 0 && bytes > bytes_max {
                break;
            }
            count += 1;
        }
        let puts: VecDeque<WaitingPut> = if count == queue.puts.len() {
            std::mem::take(&mut queue.puts)
        } else {
            queue.puts.drain(..count).collect()
        };
        let last = queue.puts.is_empty();
        if puts.is_empty() && queue.controls.is_empty() && !queue.checkpoint && !queue.closing {
            return None;
        }
        Some(Batch {
            puts,
            controls: std::mem::take(&mut queue.controls),
            checkpoint: std::mem::take(&mut queue.checkpoint),
            closing: (queue.closing && last).then(|| std::mem::take(&mut queue.closers)),
        })
    }
}
