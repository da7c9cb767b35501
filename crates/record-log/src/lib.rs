//! A durable state: snapshots of it, and a log of the records that changed it since. For states
//! that fit in memory and change often: a roaming client's replica and cache, a home's ledger of
//! its clients.
//!
//! The owner keeps the state. It applies a change, [`append`](RecordLog::append)s a record of it
//! while it still holds the lock, and answers its caller when the record is durable. Records that
//! wait are written together, with one sync. When the log has grown, it asks the owner for a
//! snapshot and begins again. If something else must become durable before a record does, the owner
//! appends the record *held*. A held record, and all records after it, wait until the owner
//! releases it.
//!
//! A [lazy](Found::lazily) log writes waiting records after a period, or when an owner waits for
//! them. Before it writes, it asks its owner to make durable what the records refer to.
//!
//! Files, in one folder: `NAME-a` and `NAME-b` are the snapshots ([`checkpoint_pair`]), `NAME-log`
//! has the records since the newest one.
//!
//! Must survive:
//!
//! - Crashes and power loss at any point: a record that was durable is found, and so are all
//!   records before it.
//! - Failing writes and syncs: the log accepts nothing more until it is opened again.
//! - A full disk: likewise, unless the log is [patient](Found::patiently).
//! - Rot: it is reported, and never read as an earlier state. But in the last group of records, rot
//!   looks like a write that a crash has torn.

pub mod checkpoint_pair;
pub mod format;
mod snapshot_map;

pub use crate::snapshot_map::SnapshotMap;

use crate::checkpoint_pair::{BODY_OFFSET, CheckpointPair, NewestError};
use crate::format::{LogHead, LogOwner, RECORD_LEN_MAX, frame_len, put_frame, records};
use bytes::Bytes;
use host::{Clock, Disk, File, Host, first};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{Notify, oneshot, watch};
use types::BoxFuture;
use types::codec::DecodeError;

/// Bytes that the log may grow to before it takes a snapshot: this many, or twice the length of the
/// snapshot, if that is more. A longer log means fewer snapshots, and more to replay at a start.
/// The owner may [choose](Found::growing_to) another length.
pub const LOG_LEN: u64 = 4 << 20;
/// Space for the log is set aside in steps of this many bytes, so that few writes change the file's
/// length.
const ALLOCATION_STEP: u64 = 1 << 20;
/// Unit in which disks give space, in bytes; the unit may be smaller.
const PAGE_LEN: u64 = 4096;
/// Bytes of room that a patient log keeps for records that come when the disk is already full.
const RESERVE_LEN: u64 = 5 * ALLOCATION_STEP;
/// How often a patient log on a full disk looks for room again.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// A lazy log writes without further delay when this many bytes of records wait.
const LAZY_LEN_MAX: u64 = 1 << 20;
/// Most bytes of records that are written with one sync. This bounds the memory of a write.
const GROUP_LEN_MAX: usize = 4 << 20;

/// Why a log cannot be opened.
#[derive(Debug, Error)]
pub enum LogOpenError {
    /// The disk failed.
    #[error("its disk: {0}")]
    Disk(#[from] io::Error),
    /// Bytes that were durable have rotted.
    #[error("it is damaged: {0}")]
    Damaged(DecodeError),
    /// Another version of the program wrote it.
    #[error("{0}")]
    Version(DecodeError),
    /// The files belong to another owner.
    #[error("its files belong to a log of another kind")]
    Foreign,
}

impl From<NewestError> for LogOpenError {
    fn from(error: NewestError) -> Self {
        match error {
            NewestError::Disk(error) => LogOpenError::Disk(error),
            NewestError::Version(error) => LogOpenError::Version(error),
            NewestError::Mixed => LogOpenError::Foreign,
            NewestError::Rotten => LogOpenError::Damaged(DecodeError::Checksum("heads of its newest snapshot")),
        }
    }
}

/// Why a record is not known to be durable.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AppendError {
    /// The disk failed, so it is unknown whether the record is there. The log accepts nothing more.
    #[error("writing the log: {0}")]
    Disk(String),
    /// There is no room for the record. The record is not there.
    #[error("there is no room for the log: make some on its disk")]
    Full,
    /// The log failed before, or is closed. The record is not there.
    #[error("the log accepts no more records")]
    Closed,
}

/// Returns a snapshot of the owner's state. The log passes `cut`, and the owner calls it while it
/// holds the lock under which it appends. Records that were appended before `cut` are in the
/// snapshot, later ones are not.
pub type Source = Arc<dyn Fn(&mut dyn FnMut()) -> Vec<u8> + Send + Sync>;

/// Makes durable what the records of a lazy log refer to. The log passes `cut`, and the owner calls
/// it while it holds the lock under which it appends. The future ends when everything is durable
/// that records appended before `cut` refer to.
pub type Gather = Arc<dyn Fn(&mut dyn FnMut()) -> BoxFuture<io::Result<()>> + Send + Sync>;

/// When a lazy log writes, and what must be durable before.
#[derive(Clone)]
struct Lazy {
    /// Longest time that a record waits to be written.
    period: Duration,
    gather: Gather,
}

/// A log as an earlier run left it, before it is [started](Found::start).
pub struct FoundLog {
    /// The newest snapshot; `None` if there never was one.
    pub snapshot: Option<Bytes>,
    /// The records since that snapshot, in order.
    pub records: Vec<Bytes>,
    files: Files,
    is_patient: bool,
    log_len: u64,
    lazy: Option<Lazy>,
}

/// The open files.
struct Files {
    pair: CheckpointPair,
    log: Arc<dyn File>,
    owner: [u8; 4],
    sequence: u64,
    /// The newest snapshot's head as it was read, and the file that has it. It may have been read
    /// from a cache only, and not be on the disk.
    unsettled: Option<(usize, LogHead)>,
}

type Done = oneshot::Sender<Result<(), AppendError>>;

/// An entry of the queue.
struct Waiting {
    /// `None`: the caller only wants to know that all earlier records are durable.
    record: Option<Bytes>,
    /// The record's number among held records, if it was appended held.
    held: Option<u64>,
    /// `None`: no caller waits for it.
    done: Option<Done>,
}

impl Waiting {
    fn answer(self, how: Result<(), AppendError>) {
        if let Some(done) = self.done {
            // A caller that has gone needs no answer.
            let _ = done.send(how);
        }
    }

    fn frame_len(&self) -> usize {
        self.record.as_ref().map_or(0, |record| frame_len(record.len()))
    }
}

/// What waits to be written. Invariant: a held record, and all that wait behind it, are neither
/// written to the log nor covered by a snapshot.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// How many records were ever held.
    held_count: u64,
    /// How many of these, the first ones, were released.
    released_count: u64,
    /// How many records were ever appended.
    count: u64,
    /// Bytes that the waiting records will take in the log.
    len: u64,
    /// A lazy log should write now: an owner waits, or much has come.
    is_urgent: bool,
    /// Callers of [`RecordLog::close`].
    closing: Vec<Done>,
    closed: bool,
}

impl Queue {
    fn is_held(&self) -> bool {
        self.released_count < self.held_count
    }

    /// True if a record is not held itself. It may still wait behind one that is.
    fn is_released(&self, waiting: &Waiting) -> bool {
        waiting.held.is_none_or(|number| number < self.released_count)
    }

    /// True if the first waiting record may be written.
    fn is_ready(&self) -> bool {
        self.waiting.front().is_some_and(|waiting| self.is_released(waiting))
    }

    fn push(&mut self, waiting: Waiting) {
        self.count += u64::from(waiting.record.is_some());
        self.len += waiting.frame_len() as u64;
        self.is_urgent |= self.len >= LAZY_LEN_MAX;
        self.waiting.push_back(waiting);
    }
}

struct Shared {
    queue: Mutex<Queue>,
    is_lazy: bool,
    wake: Notify,
    /// Bytes of records that still fit on a full disk; `u64::MAX` if the disk is not full.
    room: AtomicU64,
    /// How many of all appended records are durable.
    durable_count: AtomicU64,
    /// How often a snapshot had to wait for held records.
    held_up: watch::Sender<u64>,
}

/// A handle on a log that was started. Clones are handles on the same log. When the last one is
/// dropped, the writer writes what was appended, up to the first record that is still held, and
/// ends.
#[derive(Clone)]
pub struct RecordLog(Arc<Handle>);

struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.queue.lock().closed = true;
        self.0.wake.notify_one();
    }
}

/// Opens the log `name` in a folder and reads its snapshot and records. Creates files that are
/// missing; nothing else changes before [`FoundLog::start`].
pub async fn open(disk: &dyn Disk, name: &str, owner: [u8; 4]) -> Result<FoundLog, LogOpenError> {
    let pair = CheckpointPair::open(disk, [&format!("{name}-a"), &format!("{name}-b")]).await?;
    let log = disk.open(&format!("{name}-log"), true).await?;
    disk.sync_names().await?;
    let newest: Option<(usize, LogHead)> = pair.newest().await?;
    if newest.is_some_and(|(_, head)| head.owner != LogOwner(owner)) {
        return Err(LogOpenError::Foreign);
    }
    let files = |newest: Option<(usize, LogHead)>| {
        let sequence = newest.map_or(0, |(_, head)| head.sequence);
        Files { pair: pair.clone(), log: log.clone(), owner, sequence, unsettled: newest }
    };
    let len = log.len().await?;
    let Some((at, head)) = newest else {
        // The first snapshot precedes the first record.
        return match len {
            0 => Ok(FoundLog {
                snapshot: None,
                records: Vec::new(),
                files: files(None),
                is_patient: false,
                log_len: LOG_LEN,
                lazy: None,
            }),
            _ => Err(LogOpenError::Damaged(DecodeError::Checksum("snapshot head"))),
        };
    };
    let rotten = || LogOpenError::Damaged(DecodeError::Checksum("snapshot"));
    let body = match head.body_len {
        // The file may end before the body's offset.
        0 => Bytes::new(),
        len => pair.body(at, len).await?.ok_or_else(rotten)?,
    };
    if !head.vouches_for(&body) {
        return Err(rotten());
    }
    let bytes = log.read_at(0, len as usize).await?;
    let records = records(&bytes, head.generation).map_err(LogOpenError::Damaged)?;
    Ok(FoundLog {
        snapshot: Some(body),
        records,
        files: files(newest),
        is_patient: false,
        log_len: LOG_LEN,
        lazy: None,
    })
}

impl FoundLog {
    /// Lets the log grow to `log_len` bytes instead of [`LOG_LEN`] before it takes a snapshot.
    pub fn growing_to(mut self, log_len: u64) -> FoundLog {
        self.log_len = log_len;
        self
    }

    /// Makes the log patient: when its disk is full, it waits for room instead of failing. It sets
    /// [room](RecordLog::room) aside for records that come meanwhile.
    pub fn patiently(mut self) -> FoundLog {
        self.is_patient = true;
        self
    }

    /// Makes the log lazy: it writes when a record has waited for `period`, when an owner [waits
    /// for it](RecordLog::settled), or when many bytes wait. Before that it calls `gather`.
    pub fn lazily(mut self, period: Duration, gather: Gather) -> FoundLog {
        self.lazy = Some(Lazy { period, gather });
        self
    }

    /// Takes a snapshot of the owner's state, as restored from what was found, and accepts records
    /// from then on.
    ///
    /// Bytes that were read need not be on the disk: a crash may bring back the ones before. So the
    /// heads of the newest snapshot are written again before the older snapshot is overwritten.
    /// Its body was durable before its heads were written.
    pub async fn start(
        self,
        host: &Host,
        tasks: &Arc<dyn host::Tasks>,
        source: Source,
    ) -> Result<RecordLog, AppendError> {
        let (room, durable_count) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        let is_lazy = self.lazy.is_some();
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            is_lazy,
            wake: Notify::new(),
            room,
            durable_count,
            held_up: watch::Sender::default(),
        });
        let mut writer = Writer {
            shared: shared.clone(),
            files: self.files,
            clock: host.clock.clone(),
            random: host.random.clone(),
            is_patient: self.is_patient,
            lazy: self.lazy,
            waits_since: None,
            source,
            generation: 0,
            position: 0,
            allocated: 0,
            log_len: self.log_len,
            log_len_max: self.log_len,
        };
        if let Some((at, head)) = writer.files.unsettled.take() {
            writer.files.pair.write_heads(at, head.encode()).await.map_err(|error| failed(&error))?;
        }
        writer.snapshot(&mut VecDeque::new()).await?;
        if writer.is_patient {
            writer.find_room(0).await?;
        }
        tasks.spawn(Box::pin(writer.run()));
        Ok(RecordLog(Arc::new(Handle(shared))))
    }
}

impl RecordLog {
    /// Appends a record. It has its place in the order when this returns. It and all earlier
    /// records are durable when the future returns `Ok`. A record longer than [`RECORD_LEN_MAX`] is
    /// not written itself, but costs a snapshot.
    pub fn append(&self, record: Bytes) -> BoxFuture<Result<(), AppendError>> {
        self.wait(|queue, done| queue.push(Waiting { record: Some(record), held: None, done: Some(done) }))
    }

    /// Like [`append`](Self::append), but the caller does not learn when the record is durable.
    pub fn post(&self, record: Bytes) {
        self.enqueue(|queue| queue.push(Waiting { record: Some(record), held: None, done: None }));
    }

    /// Like [`append`](Self::append), but the record is held: neither it nor any later record is
    /// written before it is [released](Self::release).
    pub fn append_held(&self, record: Bytes) -> BoxFuture<Result<(), AppendError>> {
        self.wait(|queue, done| {
            queue.push(Waiting { record: Some(record), held: Some(queue.held_count), done: Some(done) });
            queue.held_count += 1;
        })
    }

    /// Like [`append_held`](Self::append_held), but the caller does not learn when the record is
    /// durable.
    pub fn post_held(&self, record: Bytes) {
        self.enqueue(|queue| {
            queue.push(Waiting { record: Some(record), held: Some(queue.held_count), done: None });
            queue.held_count += 1;
        });
    }

    /// Bytes of records that a patient log can still take on its full disk. `None` if the disk was
    /// not full when the log last wrote records.
    pub fn room(&self) -> Option<u64> {
        let room = Some(self.0.0.room.load(Relaxed)).filter(|room| *room < u64::MAX)?;
        Some(room.saturating_sub(self.0.0.queue.lock().len))
    }

    /// True if so many bytes wait that an owner should wait for them before it appends more.
    pub fn is_behind(&self) -> bool {
        self.0.0.queue.lock().len >= 2 * LAZY_LEN_MAX
    }

    /// Bytes of records that wait to be written.
    pub fn waiting_len(&self) -> u64 {
        self.0.0.queue.lock().len
    }

    /// Has a lazy log call its owner's [`Gather`] within its period, also if no record comes. The
    /// owner can append records then.
    pub fn nudge(&self) {
        self.enqueue(|queue| queue.push(Waiting { record: None, held: None, done: None }));
    }

    /// How many records were ever appended, and how many of these, the first ones, are durable.
    pub fn counts(&self) -> (u64, u64) {
        let appended = self.0.0.queue.lock().count;
        (appended, self.0.0.durable_count.load(Relaxed))
    }

    /// True if the log accepts no more records: it was closed, or a write failed.
    pub fn is_closed(&self) -> bool {
        self.0.0.queue.lock().closed
    }

    /// How many records were ever held; `None` if all were released. To be passed to
    /// [`release`](Self::release).
    pub fn held(&self) -> Option<u64> {
        let queue = self.0.0.queue.lock();
        queue.is_held().then_some(queue.held_count)
    }

    /// Changes whenever a snapshot finds held records. The snapshot, and everything that waits for
    /// the log, then waits until all of them are [released](Self::release), also later ones.
    pub fn held_up(&self) -> watch::Receiver<u64> {
        self.0.0.held_up.subscribe()
    }

    /// Releases the first `count` of all records that were ever [held](Self::held).
    pub fn release(&self, count: u64) {
        {
            let queue = &mut *self.0.0.queue.lock();
            queue.released_count = queue.released_count.max(count.min(queue.held_count));
            queue.is_urgent = true;
        }
        self.0.0.wake.notify_one();
    }

    /// Waits until all earlier records are durable. A lazy log writes them at once.
    pub fn settled(&self) -> BoxFuture<Result<(), AppendError>> {
        self.wait(|queue, done| {
            queue.push(Waiting { record: None, held: None, done: Some(done) });
            queue.is_urgent = true;
        })
    }

    /// Like [`settled`](Self::settled), but a lazy log writes in its own time.
    pub fn settled_in_time(&self) -> BoxFuture<Result<(), AppendError>> {
        self.wait(|queue, done| queue.push(Waiting { record: None, held: None, done: Some(done) }))
    }

    /// Waits for all appended records, and ends the log with a snapshot, so that the next start
    /// replays nothing. Waits for ever if a record is held and never released.
    pub fn close(&self) -> BoxFuture<Result<(), AppendError>> {
        self.wait(|queue, done| queue.closing.push(done))
    }

    /// Changes the queue, and wakes the writer if it must know. False if the log is closed.
    fn enqueue(&self, enqueue: impl FnOnce(&mut Queue)) -> bool {
        let shared = &self.0.0;
        let is_news = {
            let queue = &mut *shared.queue.lock();
            if queue.closed {
                return false;
            }
            let before = (queue.waiting.is_empty(), queue.is_urgent, queue.closing.len());
            enqueue(queue);
            // A lazy log's writer sleeps until the entries that it knows of are due, so it is not
            // woken for more of the same.
            !shared.is_lazy || before.0 || before != (false, queue.is_urgent, queue.closing.len())
        };
        if is_news {
            shared.wake.notify_one();
        }
        true
    }

    fn wait(&self, enqueue: impl FnOnce(&mut Queue, Done)) -> BoxFuture<Result<(), AppendError>> {
        let (done, answer) = oneshot::channel();
        if !self.enqueue(|queue| enqueue(queue, done)) {
            return Box::pin(std::future::ready(Err(AppendError::Closed)));
        }
        Box::pin(async move { answer.await.unwrap_or(Err(AppendError::Closed)) })
    }
}

/// A group to be written, the callers of `close`, and whether the queue is closed.
type Taken = (VecDeque<Waiting>, Vec<Done>, bool);

/// The only writer of the files.
struct Writer {
    shared: Arc<Shared>,
    files: Files,
    clock: Arc<dyn Clock>,
    random: Arc<dyn host::Random>,
    is_patient: bool,
    lazy: Option<Lazy>,
    /// When the writer of a lazy log first saw the entries that wait now.
    waits_since: Option<Duration>,
    source: Source,
    generation: u64,
    /// The log is durable up to here.
    position: u64,
    allocated: u64,
    log_len: u64,
    log_len_max: u64,
}

impl Writer {
    async fn run(mut self) {
        loop {
            self.until_due().await;
            let ((mut group, closing, closed), gathered) = self.gather();
            let has_none = group.is_empty();
            // Await this also if there are no records: the owner reports each thing that it gathers
            // only once.
            let gathered = match gathered {
                Some(gathered) => gathered.await,
                None => Ok(()),
            };
            let written = match gathered {
                Ok(()) if has_none => Ok(()),
                Ok(()) => self.commit(&mut group).await,
                Err(error) => Err(failed(&error)),
            };
            match written {
                Ok(()) => {}
                Err(AppendError::Full) if self.is_patient && !closed && closing.is_empty() => {
                    self.put_back(group);
                    first(self.shared.wake.notified(), self.clock.sleep(LOOK_PERIOD)).await;
                    continue;
                }
                Err(error) => {
                    tracing::error!(%error, "the log accepts no more records until it is opened again");
                    self.end(group, error.clone());
                    return closing.into_iter().for_each(|done| drop(done.send(Err(error.clone()))));
                }
            }
            if !closing.is_empty() {
                let mut late = VecDeque::new();
                let last = match self.snapshot(&mut late).await {
                    // All records are durable. Without the snapshot, the next start only has more
                    // to replay.
                    Err(AppendError::Full) if self.is_patient && late.is_empty() => Ok(()),
                    last => last,
                };
                self.end(late, last.clone().err().unwrap_or(AppendError::Closed));
                closing.into_iter().for_each(|done| drop(done.send(last.clone())));
                return;
            }
            if has_none && closed {
                return;
            }
        }
    }

    /// Waits until there is something to write, and the time has come to write it.
    async fn until_due(&mut self) {
        loop {
            let notified = self.shared.wake.notified();
            let wait = {
                let queue = self.shared.queue.lock();
                let is_ready = queue.is_ready();
                let ends = queue.closed || !queue.closing.is_empty() && (is_ready || queue.waiting.is_empty());
                match &self.lazy {
                    _ if ends => return,
                    _ if !is_ready => None,
                    None => return,
                    Some(_) if queue.is_urgent => return,
                    Some(lazy) => {
                        let now = self.clock.now();
                        let due = *self.waits_since.get_or_insert(now) + lazy.period;
                        match due.checked_sub(now).filter(|left| !left.is_zero()) {
                            Some(left) => Some(left),
                            None => return,
                        }
                    }
                }
            };
            match wait {
                Some(left) => drop(first(notified, self.clock.sleep(left)).await),
                None => notified.await,
            }
        }
    }

    /// Takes the next group. For a lazy log, also begins to make durable what the group refers to.
    fn gather(&mut self) -> (Taken, Option<BoxFuture<io::Result<()>>>) {
        self.waits_since = None;
        let Some(Lazy { gather, .. }) = self.lazy.clone() else { return (self.take(), None) };
        let mut taken = None;
        let gathered = gather(&mut || taken = Some(self.take()));
        (taken.unwrap_or_default(), Some(gathered))
    }

    /// Takes waiting entries, up to [`GROUP_LEN_MAX`] bytes and to the first held record. If these
    /// are all, takes the callers of `close` too.
    fn take(&self) -> Taken {
        let queue = &mut *self.shared.queue.lock();
        let (mut len, mut count) = (0, 0);
        for waiting in &queue.waiting {
            if !queue.is_released(waiting) {
                break;
            }
            let frame_len = waiting.frame_len();
            if count > 0 && len + frame_len > GROUP_LEN_MAX {
                break;
            }
            len += frame_len;
            count += 1;
        }
        let group: VecDeque<Waiting> = queue.waiting.drain(..count).collect();
        queue.len -= len as u64;
        queue.is_urgent &= queue.is_ready();
        let closing = if queue.waiting.is_empty() { std::mem::take(&mut queue.closing) } else { Vec::new() };
        (group, closing, queue.closed)
    }

    /// Puts a group that could not be written back to the front of the queue.
    fn put_back(&self, group: VecDeque<Waiting>) {
        let queue = &mut *self.shared.queue.lock();
        queue.len += group.iter().map(|waiting| waiting.frame_len() as u64).sum::<u64>();
        group.into_iter().rev().for_each(|waiting| queue.waiting.push_front(waiting));
    }

    /// Sets space aside for the log up to `end`, and for a patient log's reserve beyond that. Fails
    /// with `Full` if the space does not reach `end`.
    async fn find_room(&mut self, end: u64) -> Result<(), AppendError> {
        let reserve = if self.is_patient { RESERVE_LEN } else { 0 };
        let mut room = u64::MAX;
        if end + reserve > self.allocated {
            room = self.allocated.saturating_sub(end);
            // Try for a whole step, then for only what is missing.
            for step in [ALLOCATION_STEP, PAGE_LEN] {
                let wanted = (end + reserve).next_multiple_of(step);
                match self.files.log.allocate(wanted).await {
                    Ok(()) => {
                        (self.allocated, room) = (wanted, u64::MAX);
                        break;
                    }
                    Err(error) if is_full(&error) => {}
                    Err(error) => return Err(failed(&error)),
                }
            }
        }
        self.shared.room.store(room, Relaxed);
        if end > self.allocated { Err(AppendError::Full) } else { Ok(()) }
    }

    /// Makes a group durable and answers its callers. After an error, entries that were not
    /// answered are left in `group`.
    async fn commit(&mut self, group: &mut VecDeque<Waiting>) -> Result<(), AppendError> {
        let len: usize = group.iter().map(Waiting::frame_len).sum();
        let fits = |waiting: &Waiting| waiting.record.as_ref().is_none_or(|record| record.len() <= RECORD_LEN_MAX);
        if self.position + len as u64 > self.log_len_max || !group.iter().all(fits) {
            let taken = self.snapshot(group).await;
            if taken == Err(AppendError::Full) && self.is_patient {
                // Nothing was written. The log may grow further instead.
                self.log_len_max = (self.position + len as u64).saturating_add(self.log_len);
            }
            return taken;
        }
        let end = self.position + len as u64;
        if let Err(error) = self.find_room(end).await {
            if error == AppendError::Full && !self.is_patient {
                // The owner has applied changes that are not in the log. Only a snapshot could
                // make both agree again, so the log ends.
                group.drain(..).for_each(|waiting| waiting.answer(Err(AppendError::Full)));
            }
            return Err(error);
        }
        let mut frames = Vec::with_capacity(len);
        for record in group.iter().filter_map(|waiting| waiting.record.as_ref()) {
            let offset = self.position + frames.len() as u64;
            put_frame(&mut frames, self.generation, offset, self.position, record);
        }
        if len > 0 {
            let written = self.files.log.write_and_sync(vec![(self.position, vec![frames.into()])]).await;
            written.map_err(|error| failed(&error))?;
        }
        self.position = end;
        self.answer(group);
        Ok(())
    }

    /// Tells the callers of a group that it is durable.
    fn answer(&self, group: &mut VecDeque<Waiting>) {
        let count = group.iter().filter(|waiting| waiting.record.is_some()).count();
        self.shared.durable_count.fetch_add(count as u64, Relaxed);
        group.drain(..).for_each(|waiting| waiting.answer(Ok(())));
    }

    /// Writes a snapshot, which covers `group` and everything that waits, and answers their
    /// callers. Waits while a record is held.
    async fn snapshot(&mut self, group: &mut VecDeque<Waiting>) -> Result<(), AppendError> {
        let shared = self.shared.clone();
        let body = loop {
            if shared.queue.lock().is_held() {
                shared.held_up.send_modify(|count| *count += 1);
                shared.wake.notified().await;
                continue;
            }
            let mut held = false;
            let body = (self.source)(&mut || {
                let queue = &mut *shared.queue.lock();
                held = queue.is_held();
                if !held {
                    group.append(&mut queue.waiting);
                    (queue.len, queue.is_urgent) = (0, false);
                }
            });
            if !held {
                break body;
            }
        };
        if let Some(lazy) = &self.lazy {
            let gathered = (lazy.gather)(&mut || {});
            gathered.await.map_err(|error| failed(&error))?;
        }
        let sequence = self.files.sequence + 1;
        let generation = self.random.next_u64();
        let head = LogHead::of(LogOwner(self.files.owner), sequence, generation, &body).encode();
        let which = (sequence % 2) as usize;
        if self.is_patient {
            match self.files.pair.allocate(which, BODY_OFFSET + body.len() as u64).await {
                Err(error) if is_full(&error) => return Err(AppendError::Full),
                allocated => allocated.map_err(|error| failed(&error))?,
            }
        }
        self.log_len_max = self.log_len.max(2 * body.len() as u64);
        let written = self.files.pair.write(which, head, body.into()).await;
        written.map_err(|error| failed(&error))?;
        (self.files.sequence, self.generation, self.position) = (sequence, generation, 0);
        self.answer(group);
        Ok(())
    }

    /// Closes the queue. The entries of `group` end with `how`; those that still wait were not
    /// written, and end with `Closed`.
    fn end(&self, group: VecDeque<Waiting>, how: AppendError) {
        group.into_iter().for_each(|waiting| waiting.answer(Err(how.clone())));
        let queue = &mut *self.shared.queue.lock();
        (queue.closed, queue.len) = (true, 0);
        queue.waiting.drain(..).for_each(|waiting| waiting.answer(Err(AppendError::Closed)));
        queue.closing.drain(..).for_each(|done| drop(done.send(Err(AppendError::Closed))));
    }
}

/// True if the disk is full, or its user's quota is used up.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn failed(error: &io::Error) -> AppendError {
    AppendError::Disk(error.to_string())
}

#[cfg(test)]
mod tests;
