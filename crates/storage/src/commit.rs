//! The commit loop: the only writer of a store's files.
//!
//! It takes all puts that wait, gives each a place, writes them with one write-and-sync, and only
//! then adds them to the index and answers. If no place is left, it writes a checkpoint with a
//! fresh reservation. Before that it grows the `fragments` file, if too few pages are free. If the
//! file cannot grow and no free extent is long enough, it moves fragments together to make one. If
//! that is not possible either, the store is full. Since one task does all this, nothing is being
//! written while a checkpoint is taken.
//!
//! After a failed write or sync it is unknown what is on the disk. All puts that it carried get the
//! error, and the store takes no more changes until it is opened again. Opening finds out what is
//! there.

use crate::api::StorageError;
use crate::chain::Chain;
use crate::checkpoint::{encode_end, encode_gone, encode_held};
use crate::compaction::Next;
use crate::files::WriteError;
use crate::index::{FragmentKey, Held};
use crate::packed::PackedHeader;
use crate::pages::{PAGE, PAGES_MAX, PageExtent, footprint};
use crate::shared::{Batch, Control, Growth, Shared, StorageState, WaitingPut};
use crate::space::Draft;
use crate::torn_tail::walk;
use bytes::Bytes;
use host::Random;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use striped_log::fragment::{FragmentHeader, HEADER_LEN};
use types::aligned::AlignedBuffer;

/// Most bytes that are written with one sync, so that a put does not wait for too many that came
/// after it.
const GROUP_BYTES_MAX: u64 = 16 << 20;
/// Pages that a checkpoint reserves for puts, if there are that many. More mean fewer checkpoints,
/// and more to read at a restart.
const RESERVED: u32 = 64 * PAGES_MAX;
/// A slice of a checkpoint that is written anew has at most 2 to the power of this many fragments.
/// The power is drawn at random, so that small stores have several slices too.
const SLICE_COUNT_LOG_MAX: u64 = 10;
/// Pages that a checkpoint leaves unreserved while puts find room elsewhere. A crash brings back
/// fragments that were deleted since the newest checkpoint, so it may turn out that all reserved
/// pages are in use. Then a log's tail must be put again before anything can be deleted.
const SPARE_PAGES: u32 = 2 * PAGES_MAX;
/// The `fragments` file grows by this many pages at a time.
const GROW_STEP: u32 = RESERVED;

/// Most pages of a group of puts that counts as small. Small groups clear pages ahead of them.
const SMALL_GROUP_PAGES_MAX: u32 = 16;
/// Pages that the first small group clears. Each further one clears twice as many, until a larger
/// group comes between.
const CLEAR_PAGES_MIN: u32 = 8;
/// Most pages that a small group clears.
const CLEAR_PAGES_MAX: u32 = 32;

/// Operations of the disk for a checkpoint: it makes room, and writes and syncs a body and two
/// heads.
const CHECKPOINT_OPERATIONS: u32 = 4;

/// The length of each piece of a fragment is a multiple of this, in bytes. So a long fragment goes
/// straight from memory to the disk, without a copy in the page cache.
const SECTOR_LEN: usize = 512;

/// A payload followed by zeroes, `len` bytes in all. Whole pages are written, so that the kernel
/// need not read the rest of a page first. Only the bytes of the payload's last sector are copied.
fn whole_pages(payload: Bytes, len: usize) -> Vec<Bytes> {
    let whole = payload.len() - payload.len() % SECTOR_LEN;
    let mut rest = AlignedBuffer::zeroed(len - whole);
    rest[..payload.len() - whole].copy_from_slice(&payload[whole..]);
    [payload.slice(..whole), rest.freeze()].into_iter().filter(|piece| !piece.is_empty()).collect()
}

static ZEROES: Zeroes = Zeroes([0; (CLEAR_PAGES_MAX * PAGE) as usize]);

/// Aligned zeroes, so that disks can take them without a copy.
#[repr(align(4096))]
struct Zeroes([u8; (CLEAR_PAGES_MAX * PAGE) as usize]);

/// The commit loop's own state.
pub struct Committer {
    shared: Arc<Shared>,
    random: Arc<dyn Random>,
    chain: Chain,
    /// Seals or maps have changed since the last checkpoint.
    unrecorded: bool,
    /// Fragments that cannot be moved, since they have rotted.
    unmovable: BTreeSet<(PageExtent, FragmentKey)>,
    /// Pages from here on were never written, as far as is known.
    untouched_from: u32,
    /// How many pages the next small group clears that comes to untouched ones.
    clear_pages: u32,
}

/// A fragment to write, and its place.
struct Write {
    place: PageExtent,
    header: FragmentHeader,
    payload: Bytes,
}

impl Committer {
    /// The commit loop of a store with these checkpoints.
    pub fn new(shared: Arc<Shared>, random: Arc<dyn Random>, chain: Chain) -> Self {
        let untouched_from = shared.state.lock().index.iter().map(|(_, held)| held.place.end()).max().unwrap_or(0);
        Committer {
            shared,
            random,
            chain,
            unrecorded: false,
            unmovable: BTreeSet::new(),
            untouched_from,
            clear_pages: CLEAR_PAGES_MIN,
        }
    }

    /// Runs until the server is closed.
    pub async fn run(mut self) {
        loop {
            let batch = self.shared.next_batch(GROUP_BYTES_MAX).await;
            if self.batch(batch).await {
                return;
            }
        }
    }

    /// Does a batch of work. True if it was the last one.
    async fn batch(&mut self, batch: Batch) -> bool {
        self.puts(batch.puts).await;
        if !batch.controls.is_empty() {
            self.controls(batch.controls).await;
            host::yield_now().await;
        }
        if batch.checkpoint && batch.closing.is_none() && self.shared.state.lock().wants_checkpoint() {
            // A failure is logged already, and shows in the status.
            let _ = self.checkpoint().await;
        }
        self.roll().await;
        let Some(closers) = batch.closing else { return false };
        let result = self.checkpoint().await;
        self.shared.state.lock().writable = false;
        for closer in closers {
            let _ = closer.send(result.clone());
        }
        true
    }

    async fn puts(&mut self, mut waiting: VecDeque<WaitingPut>) {
        while !waiting.is_empty() {
            let count = waiting.len();
            let placed = self.place(&mut waiting);
            // On some disks writes never wait, but hold up the thread. So yield after answers, to
            // let callers work on them.
            if placed.len() + waiting.len() < count {
                host::yield_now().await;
            }
            if !placed.is_empty() {
                self.write_group(placed).await;
                host::yield_now().await;
                continue;
            }
            let Some(needed) = waiting.front().map(|put| put.footprint) else { return };
            if let Err(error) = self.make_room(needed / PAGE).await
                && let Some(put) = waiting.pop_front()
            {
                // Refuse only this put: a smaller one may still fit.
                let _ = put.done.send(Err(error));
                drop(put.room);
                host::yield_now().await;
            }
        }
    }

    /// Gives places to puts from the front, until one finds none. Answers puts that need no place:
    /// refused ones, and fragments that are there already.
    fn place(&self, waiting: &mut VecDeque<WaitingPut>) -> Vec<(WaitingPut, PageExtent)> {
        let mut placed = Vec::with_capacity(waiting.len());
        let state = &mut *self.shared.state.lock();
        while let Some(put) = waiting.pop_front() {
            if let Some(answer) = state.answer_put(&put.key, &put.fragment.header) {
                let _ = put.done.send(answer);
                continue;
            }
            match state.space.allocate(put.footprint / PAGE) {
                Some(place) => placed.push((put, place)),
                None => {
                    waiting.push_front(put);
                    break;
                }
            }
        }
        placed
    }

    async fn write_group(&mut self, group: Vec<(WaitingPut, PageExtent)>) {
        let mut puts = Vec::with_capacity(group.len());
        let mut writes = Vec::with_capacity(group.len());
        for (put, place) in group {
            let WaitingPut { fragment, key, done, room, .. } = put;
            let held = Held { place, header: PackedHeader::new(&fragment.header) };
            writes.push(Write { place, header: fragment.header, payload: fragment.payload });
            puts.push((key, held, done, room));
        }
        let result = self.write(writes).await;
        let state = &mut *self.shared.state.lock();
        for (key, held, done, _room) in puts {
            match &result {
                Ok(()) => state.insert(key, held),
                Err(_) => state.space.release(held.place),
            }
            let _ = done.send(result.clone());
        }
    }

    /// Writes fragments to their places. `Ok` means durable.
    async fn write(&mut self, fragments: Vec<Write>) -> Result<(), StorageError> {
        let mut writes: Vec<(u64, Vec<Bytes>)> = Vec::new();
        let mut end = u64::MAX;
        let cleared = self.clear_ahead(&fragments);
        for Write { place, header, payload } in fragments {
            let offset = place.file_offset();
            // Fragments that are adjacent on the disk go out in one system call.
            if offset != end {
                writes.push((offset, Vec::new()));
            }
            end = offset + place.byte_len();
            let Some((_, pieces)) = writes.last_mut() else { continue };
            let mut page = AlignedBuffer::zeroed(HEADER_LEN);
            page.copy_from_slice(&header.encode_with_generation(self.chain.generation()));
            pieces.push(page.freeze());
            pieces.extend(whole_pages(payload, footprint(header.len) as usize - HEADER_LEN));
        }
        if let Some((_, pieces)) = writes.last_mut().filter(|_| cleared > 0) {
            pieces.push(Bytes::from_static(&ZEROES.0[..cleared as usize]));
        }
        let bytes = writes.iter().flat_map(|(_, pieces)| pieces).map(Bytes::len).sum();
        self.shared.step(1, bytes);
        match self.shared.files.fragments.write_and_sync(writes).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail("writing fragments", &error)),
        }
    }

    /// How many bytes of zeroes to write after these fragments. When pages are written for the
    /// first time, a sync makes the local file system record that in its journal, which costs as
    /// much again. So a small group that comes to such pages also writes the pages that the next
    /// groups will take.
    fn clear_ahead(&mut self, group: &[Write]) -> u32 {
        let Some(end) = group.last().map(|write| write.place.end()) else { return 0 };
        if end <= self.untouched_from {
            return 0;
        }
        let small = group.iter().map(|write| write.place.len).sum::<u32>() <= SMALL_GROUP_PAGES_MAX;
        let (cleared, next) = match small {
            true => (self.clear_pages, (2 * self.clear_pages).min(CLEAR_PAGES_MAX)),
            false => (0, CLEAR_PAGES_MIN),
        };
        let pages = self.shared.state.lock().space.reserved_from(end).min(cleared);
        (self.untouched_from, self.clear_pages) = (end + pages, next);
        pages * PAGE
    }

    fn fail(&self, what: &'static str, error: &io::Error) -> StorageError {
        self.failed(&mut self.shared.state.lock(), what, error)
    }

    fn failed(&self, state: &mut StorageState, what: &'static str, error: &io::Error) -> StorageError {
        tracing::error!(store = %self.shared.identity.store, %error, what, "the store takes no more changes until it is started again");
        state.writable = false;
        StorageError::Disk(format!("{what}: {error}"))
    }

    async fn controls(&mut self, controls: Vec<Control>) {
        {
            let state = &mut *self.shared.state.lock();
            for control in &controls {
                // A refused seal must not be in force: the caller would meet a fence that a restart
                // forgets.
                if !state.writable {
                    break;
                }
                self.unrecorded |= match control {
                    Control::Seal(seal, _) => state.seal(seal.clone()),
                    Control::Maps(maps, _) => {
                        let newer = maps.epoch > state.maps.epoch;
                        if newer {
                            state.maps = maps.clone();
                        }
                        newer
                    }
                };
            }
        }
        let writable = self.shared.state.lock().writable;
        let result = if self.unrecorded || !writable { self.checkpoint().await } else { Ok(()) };
        let state = self.shared.state.lock();
        for control in controls {
            match control {
                Control::Seal(seal, done) => {
                    let newest = state.seals.newest(seal.log).cloned().unwrap_or(seal);
                    let _ = done.send(result.clone().map(|()| newest));
                }
                Control::Maps(_, done) => drop(done.send(result.clone())),
            }
        }
    }

    /// Writes a checkpoint that leaves [`SPARE_PAGES`] unreserved.
    async fn checkpoint(&mut self) -> Result<(), StorageError> {
        self.checkpoint_with_spare(SPARE_PAGES).await
    }

    /// Writes a checkpoint that reserves [`RESERVED`] pages in long extents, if there are so many,
    /// and shorter extents too, and leaves `spare` pages unreserved. Before that, moves fragments
    /// out of the landing that a compaction left there when it was cut short, and grows the file if
    /// pages for the reservation are missing. Fails with `Full` if there is no room for the
    /// checkpoint; then the newest durable checkpoint stays in force.
    async fn checkpoint_with_spare(&mut self, spare: u32) -> Result<(), StorageError> {
        if self.shared.state.lock().space.has_landed() {
            self.compact(0).await?;
        }
        let missing = RESERVED.saturating_sub(self.shared.state.lock().space.roomy_pages());
        if missing > 0 {
            self.grow(missing).await?;
        }
        self.record(|state| Some(state.space.draft(RESERVED, spare))).await
    }

    /// Writes a checkpoint with the reservation that `draft` gives at the instant of the
    /// checkpoint, and puts it into force. Fails with `Full` if there is no draft or no room.
    async fn record(&mut self, draft: impl FnOnce(&StorageState) -> Option<Draft> + Send) -> Result<(), StorageError> {
        let (draft, changed, deleted_count, changes, end) = {
            let state = &mut *self.shared.state.lock();
            if !state.writable {
                return Err(StorageError::Unavailable);
            }
            let draft = draft(state).ok_or(StorageError::Full)?;
            let end = encode_end(state.space.page_count(), &state.seals, &state.maps, &draft.reservation);
            let (changed, mut changes) = (std::mem::take(&mut state.changed), Vec::new());
            encode_held(changed.iter().filter_map(|key| Some((key, state.index.get(key)?))), &mut changes);
            encode_gone(changed.iter().filter(|key| state.index.get(key).is_none()), &mut changes);
            (draft, changed, state.deleted_count, changes, end)
        };
        let generation = self.random.next_u64();
        self.shared.step(CHECKPOINT_OPERATIONS, changes.len() + end.len());
        let mut written = self.chain.append(generation, &changes, &end).await;
        if let Err(WriteError::Full) = written {
            let mut all = Vec::new();
            encode_held(self.shared.state.lock().index.iter(), &mut all);
            self.shared.step(CHECKPOINT_OPERATIONS, all.len() + end.len());
            written = self.chain.rewrite(generation, all, &end).await;
        }
        let state = &mut *self.shared.state.lock();
        match written {
            Ok(()) => {}
            Err(WriteError::Full) => {
                state.changed.extend(changed);
                return Err(StorageError::Full);
            }
            Err(WriteError::Failed(error)) => return Err(self.failed(state, "writing a checkpoint", &error)),
        }
        self.unrecorded = false;
        state.space.adopt(draft);
        state.deleted_count -= deleted_count;
        Ok(())
    }

    /// If a checkpoint is being written anew, writes a slice of it. A failure is logged, and shows
    /// in the status.
    async fn roll(&mut self) {
        let Some(after) = self.chain.next_slice() else { return };
        let count = 1 << (self.random.next_u64() % (SLICE_COUNT_LOG_MAX + 1));
        let (slice, last) = {
            let state = self.shared.state.lock();
            if !state.writable {
                return;
            }
            let mut slice = Vec::new();
            let last = encode_held(state.index.after(after).take(count), &mut slice);
            (slice, last)
        };
        self.shared.step(CHECKPOINT_OPERATIONS, slice.len());
        if let Err(WriteError::Failed(error)) = self.chain.roll(slice, last).await {
            self.fail("writing a checkpoint anew", &error);
        }
    }

    /// Extends the file by `wanted` pages, rounded up to whole steps, or by fewer if capacity or
    /// disk do not allow more. False if the file did not grow.
    async fn grow(&mut self, wanted: u32) -> Result<bool, StorageError> {
        let count_max = self.shared.identity.page_count_max();
        let count = self.shared.state.lock().space.page_count();
        let mut step =
            wanted.checked_next_multiple_of(GROW_STEP).unwrap_or(u32::MAX).min(count_max.saturating_sub(count));
        while step > 0 {
            let file = &self.shared.files.fragments;
            self.shared.step(1, 0);
            match file.allocate(PageExtent { start: 0, len: count + step }.byte_len()).await {
                Ok(()) => {
                    // The checkpoint that follows relies on the file's length.
                    self.shared.step(1, 0);
                    if let Err(error) = file.sync_data().await {
                        return Err(self.fail("growing the fragments file", &error));
                    }
                    let state = &mut *self.shared.state.lock();
                    state.space.grow(count + step);
                    state.growth = Growth::Possible;
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::StorageFull => step /= 2,
                Err(error) => return Err(self.fail("growing the fragments file", &error)),
            }
        }
        if count < count_max {
            self.shared.state.lock().growth = Growth::Refused;
        }
        Ok(false)
    }

    /// Makes sure that the next allocation of `needed` pages finds a place.
    async fn make_room(&mut self, needed: u32) -> Result<(), StorageError> {
        loop {
            if self.finds_room(needed, SPARE_PAGES) {
                return self.checkpoint().await;
            }
            if self.grow(RESERVED).await? {
                continue;
            }
            if self.finds_room(needed, 0) {
                return self.checkpoint_with_spare(0).await;
            }
            if !self.compact(needed).await? {
                return Err(StorageError::Full);
            }
        }
    }

    /// True if a checkpoint that is written now and leaves `spare` pages could reserve a place for
    /// `needed` pages.
    fn finds_room(&self, needed: u32, spare: u32) -> bool {
        self.shared.state.lock().space.draft(RESERVED, spare).fits(needed)
    }

    /// Moves fragments together until the landing is empty and `goal` pages are free together. A
    /// move is a put of the same fragment: after a crash it is at either place or both. False if
    /// the goal cannot be reached.
    async fn compact(&mut self, goal: u32) -> Result<bool, StorageError> {
        loop {
            let (fragments, to) = match self.next_step(goal) {
                Step::Done => return Ok(true),
                Step::Stuck => return Ok(false),
                Step::Move { fragments, to } => (fragments, to),
            };
            let mut group = Vec::with_capacity(fragments.len());
            for (place, key) in fragments {
                match self.read_whole(place, key).await {
                    Stored::Whole(header, payload) => group.push((place, key, header, payload)),
                    Stored::Gone => {}
                    Stored::Rotten => drop(self.unmovable.insert((place, key))),
                }
            }
            if !group.is_empty() {
                self.record(|state| state.space.draft_only(to)).await?;
                if !self.move_to_reserved(group).await? {
                    return Ok(false);
                }
            }
        }
    }

    /// Which fragments to move next.
    fn next_step(&self, goal: u32) -> Step {
        let state = self.shared.state.lock();
        let live = state.live();
        let places: Vec<PageExtent> = live.iter().map(|(place, _)| *place).collect();
        let unmovable =
            live.iter().filter(|here| self.unmovable.contains(here)).map(|(place, _)| place.start).collect();
        let (from, to) = match state.space.compaction(&places, &unmovable, goal) {
            Next::Done => return Step::Done,
            Next::Stuck => return Step::Stuck,
            Next::Move { from, to } => (from, to),
        };
        let at = |place: &PageExtent| live.binary_search_by_key(place, |(place, _)| *place).ok().map(|i| live[i]);
        Step::Move { fragments: from.iter().filter_map(at).collect(), to }
    }

    async fn read_whole(&self, place: PageExtent, key: FragmentKey) -> Stored {
        let is_there = || self.shared.state.lock().index.get(&key).is_some_and(|held| held.place == place);
        if !is_there() {
            return Stored::Gone;
        }
        self.shared.step(1, place.byte_len() as usize);
        let read = self.shared.files.fragments.read_at(place.file_offset(), place.byte_len() as usize).await;
        let Ok(bytes) = read else { return Stored::Rotten };
        match walk(&bytes, |_, _| true).0.into_iter().next() {
            _ if !is_there() => Stored::Gone,
            Some(found) if found.intact && FragmentKey::new(found.header.id, found.header.attempt) == key => {
                Stored::Whole(found.header.clone(), bytes.slice(found.payload_range()))
            }
            _ => Stored::Rotten,
        }
    }

    /// Writes fragments to reserved pages, one after the other, and gives up their old places.
    /// False if no reserved extent holds the first one.
    async fn move_to_reserved(
        &mut self,
        fragments: Vec<(PageExtent, FragmentKey, FragmentHeader, Bytes)>,
    ) -> Result<bool, StorageError> {
        let (mut writes, mut moves) = (Vec::with_capacity(fragments.len()), Vec::with_capacity(fragments.len()));
        {
            let state = &mut *self.shared.state.lock();
            for (from, key, header, payload) in fragments {
                let Some(place) = state.space.allocate(from.len) else { break };
                moves.push((key, from, Held { place, header: PackedHeader::new(&header) }));
                writes.push(Write { place, header, payload });
            }
        }
        let is_any = !writes.is_empty();
        let result = self.write(writes).await;
        let state = &mut *self.shared.state.lock();
        for (key, from, held) in moves {
            if result.is_ok() && state.index.get(&key).is_some_and(|old| old.place == from) {
                state.moved(key, from, held);
            } else {
                state.space.release(held.place);
            }
        }
        result.map(|()| is_any)
    }
}

/// The next step of a compaction.
enum Step {
    /// None: its goal is reached.
    Done,
    /// None: its goal cannot be reached.
    Stuck,
    /// Move fragments to an extent.
    Move { fragments: Vec<(PageExtent, FragmentKey)>, to: PageExtent },
}

/// A fragment that is to be moved.
enum Stored {
    /// As it was written.
    Whole(FragmentHeader, Bytes),
    /// Deleted or moved meanwhile.
    Gone,
    /// It cannot be read as it was written.
    Rotten,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_sectors_that_begin_where_the_payload_does() {
        for payload_len in [0, 1, 511, 512, 513, 4095, 4096, 4097, 700_001] {
            let mut payload = AlignedBuffer::zeroed(payload_len);
            payload.iter_mut().zip(1..).for_each(|(byte, at)| *byte = at as u8);
            let payload = payload.freeze();
            let len = payload_len.next_multiple_of(PAGE as usize);
            let pieces = whole_pages(payload.clone(), len);
            assert!(pieces.iter().all(|piece| piece.len().is_multiple_of(SECTOR_LEN)), "{payload_len}");
            assert!(pieces.iter().all(|piece| (piece.as_ptr() as usize).is_multiple_of(SECTOR_LEN)), "{payload_len}");
            let all = pieces.concat();
            assert_eq!((all.len(), &all[..payload_len]), (len, &payload[..]));
            assert!(all[payload_len..].iter().all(|byte| *byte == 0));
        }
    }
}
