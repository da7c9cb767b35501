//! A durable state: snapshots of it, and a log of the records that changed it since. For states
//! that fit in memory and change often: what a roaming client has logged and cached, what a home
//! knows of its clients.
//!
//! The owner keeps the state. It applies a change, [`append`](RecordLog::append)s a record of it
//! while it still holds the lock, and answers whoever asked when the record is durable. Records
//! that wait are written together, with one sync. When the log has grown, the owner is asked for a
//! snapshot, and the log begins again. A record of something that is to be durable elsewhere first
//! is held until the owner says that it is, and so is all that comes after it.
//!
//! A [lazy](Found::lazily) log writes what waits after a while, or when an owner waits for it, and
//! asks its owner before to make durable what the records tell of.
//!
//! Files, in one folder: `NAME-a` and `NAME-b` are the snapshots ([`checkpoint_pair`]), `NAME-log`
//! has the records since the newest one.
//!
//! Must survive: crashes and power loss at any point (a record that was durable is there, and so
//! are all before it), failing writes and syncs (nothing more is accepted until it is opened
//! again), a full disk (the same, unless the log is [patient](Found::patiently)). Rot is noticed,
//! and said, rather than read as an earlier state; but in the last group of records it cannot be
//! told from a write that a crash has torn.

pub mod checkpoint_pair;
pub mod format;
mod snapshot_map;

pub use crate::snapshot_map::SnapshotMap;

use crate::checkpoint_pair::{BODY_OFFSET, CheckpointPair, NewestError};
use crate::format::{Head, Of, RECORD_LEN_MAX, frame_len, put_frame, records};
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

/// The log may take so many bytes, or twice what the snapshot takes, before there is another
/// snapshot, unless the owner has [chosen](Found::growing_to) another length.
pub const LOG_LEN: u64 = 4 << 20;
/// Space for the log is set aside in steps of this many bytes.
const ALLOCATION_STEP: u64 = 1 << 20;
/// Disks give space in units of so many bytes, or fewer.
const PAGE_LEN: u64 = 4096;
/// A patient log keeps room for so many bytes of records that come when the disk is full already.
const RESERVE_LEN: u64 = 5 * ALLOCATION_STEP;
/// How often a patient log looks whether there is room again, if nobody asks.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// A lazy log writes so many bytes of records at once.
const LAZY_LEN_MAX: u64 = 1 << 20;
/// Most bytes of records that are written together.
const GROUP_LEN_MAX: usize = 4 << 20;

/// Why a log cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The disk.
    #[error("its disk: {0}")]
    Disk(#[from] io::Error),
    /// What was durable has rotted.
    #[error("it is damaged: {0}")]
    Damaged(DecodeError),
    /// It was written by a newer program.
    #[error("{0}")]
    Version(DecodeError),
    /// The files are another owner's.
    #[error("it is of another kind")]
    Foreign,
}

impl From<NewestError> for OpenError {
    fn from(error: NewestError) -> Self {
        match error {
            NewestError::Disk(error) => OpenError::Disk(error),
            NewestError::Version(error) => OpenError::Version(error),
            NewestError::Mixed => OpenError::Foreign,
            NewestError::Rotten => OpenError::Damaged(DecodeError::Checksum("heads of its newest snapshot")),
        }
    }
}

/// Why a record is not durable, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AppendError {
    /// The disk refused or failed: whether the record is there is unknown. Nothing more is
    /// accepted.
    #[error("writing the log: {0}")]
    Disk(String),
    /// No room for the record, which is not there.
    #[error("there is no room for the log: make some on its disk")]
    Full,
    /// The log has failed before, or is closed: the record is not there.
    #[error("the log takes no more")]
    Closed,
}

/// What is snapshotted. Called by the log with `cut`, which the owner calls while it holds the lock
/// under which it appends: what was appended before is in the snapshot that it returns, and what
/// comes after is not.
pub type Source = Arc<dyn Fn(&mut dyn FnMut()) -> Vec<u8> + Send + Sync>;

/// Makes durable what the records of a lazy log tell of. Called by the log with `cut`, which the
/// owner calls while it holds the lock under which it appends. The future ends when all is durable
/// that records tell of which were appended before.
pub type Gather = Arc<dyn Fn(&mut dyn FnMut()) -> BoxFuture<io::Result<()>> + Send + Sync>;

/// When a lazy log writes, and what comes before.
#[derive(Clone)]
struct Lazy {
    period: Duration,
    gather: Gather,
}

/// What was found of an earlier run.
pub struct Found {
    /// The newest snapshot; `None` if there never was one.
    pub snapshot: Option<Bytes>,
    /// Records since, in order.
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
    /// The newest snapshot's head as it was read, and in which file: it need not be on the disk.
    unsettled: Option<(usize, Head)>,
}

type Done = oneshot::Sender<Result<(), AppendError>>;

struct Waiting {
    /// `None`: whoever waits only wants to know that all before is durable.
    record: Option<Bytes>,
    /// Its number, if it is not written before that is released.
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

/// Invariant: what waits behind a record that is held is not written either, nor in a snapshot.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Records that were ever held, and how many of them are not held any more.
    held_count: u64,
    released_count: u64,
    /// Records that were ever appended.
    count: u64,
    /// Bytes that what waits takes in the log.
    len: u64,
    /// An owner waits for it, or it is much.
    is_urgent: bool,
    closing: Vec<Done>,
    closed: bool,
}

impl Queue {
    fn is_held(&self) -> bool {
        self.released_count < self.held_count
    }

    /// True if a record may be written, as far as it alone is concerned.
    fn is_released(&self, waiting: &Waiting) -> bool {
        waiting.held.is_none_or(|number| number < self.released_count)
    }

    /// True if some of what waits may be written.
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
    /// Bytes of records for which there is room although the disk is full; `u64::MAX`: it is not.
    room: AtomicU64,
    /// How many records are durable of those that were ever appended.
    durable_count: AtomicU64,
    /// How often a snapshot has found records that are held.
    held_up: watch::Sender<u64>,
}

/// See the crate's header. Clones are the same log; with the last of them the writer ends, after
/// what was appended.
#[derive(Clone)]
pub struct RecordLog(Arc<Handle>);

struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.queue.lock().closed = true;
        self.0.wake.notify_one();
    }
}

/// Opens the log NAME in a folder and reads what is there. Nothing is changed until
/// [`Found::start`].
pub async fn open(disk: &dyn Disk, name: &str, owner: [u8; 4]) -> Result<Found, OpenError> {
    let pair = CheckpointPair::open(disk, [&format!("{name}-a"), &format!("{name}-b")]).await?;
    let log = disk.open(&format!("{name}-log"), true).await?;
    disk.sync_names().await?;
    let newest: Option<(usize, Head)> = pair.newest().await?;
    if newest.is_some_and(|(_, head)| head.owner != Of(owner)) {
        return Err(OpenError::Foreign);
    }
    let files = |newest: Option<(usize, Head)>| {
        let sequence = newest.map_or(0, |(_, head)| head.sequence);
        Files { pair: pair.clone(), log: log.clone(), owner, sequence, unsettled: newest }
    };
    let len = log.len().await?;
    let Some((at, head)) = newest else {
        // The first snapshot precedes the first record.
        return match len {
            0 => Ok(Found {
                snapshot: None,
                records: Vec::new(),
                files: files(None),
                is_patient: false,
                log_len: LOG_LEN,
                lazy: None,
            }),
            _ => Err(OpenError::Damaged(DecodeError::Checksum("snapshot head"))),
        };
    };
    let rotten = || OpenError::Damaged(DecodeError::Checksum("snapshot"));
    let body = match head.body_len {
        // For which no file need be long enough.
        0 => Bytes::new(),
        len => pair.body(at, len).await?.ok_or_else(rotten)?,
    };
    if !head.vouches_for(&body) {
        return Err(rotten());
    }
    let bytes = log.read_at(0, len as usize).await?;
    let records = records(&bytes, head.generation).map_err(OpenError::Damaged)?;
    Ok(Found { snapshot: Some(body), records, files: files(newest), is_patient: false, log_len: LOG_LEN, lazy: None })
}

impl Found {
    /// The log may take so many bytes instead of [`LOG_LEN`].
    pub fn growing_to(mut self, log_len: u64) -> Found {
        self.log_len = log_len;
        self
    }

    /// When its disk is full, the log waits until there is room again, instead of ending. It sets
    /// space aside for what comes [meanwhile](RecordLog::room).
    pub fn patiently(mut self) -> Found {
        self.is_patient = true;
        self
    }

    /// The log writes what was appended when it has waited for so long, or is [waited
    /// for](RecordLog::settled), or is much.
    pub fn lazily(mut self, period: Duration, gather: Gather) -> Found {
        self.lazy = Some(Lazy { period, gather });
        self
    }

    /// Takes a snapshot of what the owner has made of what was found, and accepts records from then
    /// on. What was only read need not be on the disk after a crash, so the heads of the newest
    /// snapshot, whose body once was, are written again before the older one is written over.
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
    /// Adds a record, after all that were added before. The record is in its place when this
    /// returns, and durable when the future says so, with all before it. One longer than
    /// [`RECORD_LEN_MAX`] is not written itself, but costs a snapshot.
    pub fn append(&self, record: Bytes) -> BoxFuture<Result<(), AppendError>> {
        self.wait(|queue, done| queue.push(Waiting { record: Some(record), held: None, done: Some(done) }))
    }

    /// As [`append`](Self::append), without waiting for the record.
    pub fn post(&self, record: Bytes) {
        self.enqueue(|queue| queue.push(Waiting { record: Some(record), held: None, done: None }));
    }

    /// As [`append`](Self::append), but it is not durable, nor is what comes after it, before it is
    /// [released](Self::release).
    pub fn append_held(&self, record: Bytes) -> BoxFuture<Result<(), AppendError>> {
        self.wait(|queue, done| {
            queue.push(Waiting { record: Some(record), held: Some(queue.held_count), done: Some(done) });
            queue.held_count += 1;
        })
    }

    /// As [`append_held`](Self::append_held), without waiting for the record.
    pub fn post_held(&self, record: Bytes) {
        self.enqueue(|queue| {
            queue.push(Waiting { record: Some(record), held: Some(queue.held_count), done: None });
            queue.held_count += 1;
        });
    }

    /// Bytes of records for which a patient log has room although its disk is full; `None`: the
    /// disk was not full when it was looked at last, which is when records were written last.
    pub fn room(&self) -> Option<u64> {
        let room = Some(self.0.0.room.load(Relaxed)).filter(|room| *room < u64::MAX)?;
        Some(room.saturating_sub(self.0.0.queue.lock().len))
    }

    /// True if so much waits to be written that an owner should wait for it before it appends more.
    pub fn is_behind(&self) -> bool {
        self.0.0.queue.lock().len >= 2 * LAZY_LEN_MAX
    }

    /// Bytes of records that wait to be written.
    pub fn waiting_len(&self) -> u64 {
        self.0.0.queue.lock().len
    }

    /// The owner has something to record when the log is written next, which a lazy log does in its
    /// time.
    pub fn nudge(&self) {
        self.enqueue(|queue| queue.push(Waiting { record: None, held: None, done: None }));
    }

    /// How many records were ever appended, and how many of these are durable: the first ones.
    pub fn counts(&self) -> (u64, u64) {
        let appended = self.0.0.queue.lock().count;
        (appended, self.0.0.durable_count.load(Relaxed))
    }

    /// True if nothing is accepted any more: the log was closed, or writing it has failed.
    pub fn is_closed(&self) -> bool {
        self.0.0.queue.lock().closed
    }

    /// How many records were ever held, if any are.
    pub fn held(&self) -> Option<u64> {
        let queue = self.0.0.queue.lock();
        queue.is_held().then_some(queue.held_count)
    }

    /// Changes whenever a snapshot finds records that are held: it, and all that waits for the log,
    /// waits until these are [released](Self::release), whenever they came.
    pub fn held_up(&self) -> watch::Receiver<u64> {
        self.0.0.held_up.subscribe()
    }

    /// Holds none any more of as many as were ever [held](Self::held).
    pub fn release(&self, count: u64) {
        {
            let queue = &mut *self.0.0.queue.lock();
            queue.released_count = queue.released_count.max(count.min(queue.held_count));
            queue.is_urgent = true;
        }
        self.0.0.wake.notify_one();
    }

    /// Done when all that was appended before is durable. A lazy log writes it at once.
    pub fn settled(&self) -> BoxFuture<Result<(), AppendError>> {
        self.wait(|queue, done| {
            queue.push(Waiting { record: None, held: None, done: Some(done) });
            queue.is_urgent = true;
        })
    }

    /// As [`settled`](Self::settled), but a lazy log takes its time.
    pub fn settled_in_time(&self) -> BoxFuture<Result<(), AppendError>> {
        self.wait(|queue, done| queue.push(Waiting { record: None, held: None, done: Some(done) }))
    }

    /// Waits for what was appended, none of which may be held, and ends with a snapshot, so that
    /// there is nothing to replay.
    pub fn close(&self) -> BoxFuture<Result<(), AppendError>> {
        self.wait(|queue, done| queue.closing.push(done))
    }

    /// False if nothing is accepted any more.
    fn enqueue(&self, enqueue: impl FnOnce(&mut Queue)) -> bool {
        let shared = &self.0.0;
        let is_news = {
            let queue = &mut *shared.queue.lock();
            if queue.closed {
                return false;
            }
            let before = (queue.waiting.is_empty(), queue.is_urgent, queue.closing.len());
            enqueue(queue);
            // The writer of a lazy log sleeps until what it knows to wait is due.
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

/// A group that is to be written, who waits for the end, and whether nothing more comes.
type Taken = (VecDeque<Waiting>, Vec<Done>, bool);

/// The only writer of the files.
struct Writer {
    shared: Arc<Shared>,
    files: Files,
    clock: Arc<dyn Clock>,
    random: Arc<dyn host::Random>,
    is_patient: bool,
    lazy: Option<Lazy>,
    /// Since when something waits that a lazy log has not written.
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
            // Also without records: the owner tells of what it gathered now only once.
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
                    tracing::error!(%error, "the log takes no more until it is opened again");
                    self.end(group, error.clone());
                    return closing.into_iter().for_each(|done| drop(done.send(Err(error.clone()))));
                }
            }
            if !closing.is_empty() {
                let mut late = VecDeque::new();
                let last = match self.snapshot(&mut late).await {
                    // All is durable; it is only more to read next time.
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

    /// Waits until what waits is to be written.
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

    /// Takes what is to be written, and begins to make durable what that tells of.
    fn gather(&mut self) -> (Taken, Option<BoxFuture<io::Result<()>>>) {
        self.waits_since = None;
        let Some(Lazy { gather, .. }) = self.lazy.clone() else { return (self.take(), None) };
        let mut taken = None;
        let gathered = gather(&mut || taken = Some(self.take()));
        (taken.unwrap_or_default(), Some(gathered))
    }

    /// What waits, up to [`GROUP_LEN_MAX`], and, if that is all, who waits for the end.
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

    /// What could not be written yet waits, before all that came since.
    fn put_back(&self, group: VecDeque<Waiting>) {
        let queue = &mut *self.shared.queue.lock();
        queue.len += group.iter().map(|waiting| waiting.frame_len() as u64).sum::<u64>();
        group.into_iter().rev().for_each(|waiting| queue.waiting.push_front(waiting));
    }

    /// Sets space aside for the log up to `end`, and for what may come when there is none any more.
    /// `Full` if it does not reach that far.
    async fn find_room(&mut self, end: u64) -> Result<(), AppendError> {
        let reserve = if self.is_patient { RESERVE_LEN } else { 0 };
        let mut room = u64::MAX;
        if end + reserve > self.allocated {
            room = self.allocated.saturating_sub(end);
            // Much, or what is missing.
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

    /// Makes a group durable and answers it. After an error those that were not answered are left
    /// in it.
    async fn commit(&mut self, group: &mut VecDeque<Waiting>) -> Result<(), AppendError> {
        let len: usize = group.iter().map(Waiting::frame_len).sum();
        let fits = |waiting: &Waiting| waiting.record.as_ref().is_none_or(|record| record.len() <= RECORD_LEN_MAX);
        if self.position + len as u64 > self.log_len_max || !group.iter().all(fits) {
            let taken = self.snapshot(group).await;
            if taken == Err(AppendError::Full) && self.is_patient {
                // Nothing was written, and the log can go on to grow.
                self.log_len_max = (self.position + len as u64).saturating_add(self.log_len);
            }
            return taken;
        }
        let end = self.position + len as u64;
        if let Err(error) = self.find_room(end).await {
            if error == AppendError::Full && !self.is_patient {
                // What the owner has applied is not there: only a snapshot could bring both
                // together again.
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

    /// A group is durable.
    fn answer(&self, group: &mut VecDeque<Waiting>) {
        let count = group.iter().filter(|waiting| waiting.record.is_some()).count();
        self.shared.durable_count.fetch_add(count as u64, Relaxed);
        group.drain(..).for_each(|waiting| waiting.answer(Ok(())));
    }

    /// Writes a snapshot, which covers `group` and all that waits, and answers these.
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
        let head = Head::of(Of(self.files.owner), sequence, generation, &body).encode();
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

    /// Accepts nothing more. What was being written ends as said, what only waited is not there.
    fn end(&self, group: VecDeque<Waiting>, how: AppendError) {
        group.into_iter().for_each(|waiting| waiting.answer(Err(how.clone())));
        let queue = &mut *self.shared.queue.lock();
        (queue.closed, queue.len) = (true, 0);
        queue.waiting.drain(..).for_each(|waiting| waiting.answer(Err(AppendError::Closed)));
        queue.closing.drain(..).for_each(|done| drop(done.send(Err(AppendError::Closed))));
    }
}

/// True if there is no room on the disk, or no more than its user may have.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn failed(error: &io::Error) -> AppendError {
    AppendError::Disk(error.to_string())
}

#[cfg(test)]
mod tests;
