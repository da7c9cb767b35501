//! The commit loop: the only writer of a store's files.
//!
//! It takes all puts that wait, gives each a place, writes them with one write-and-sync, and only then adds them to the index
//! and answers. When no place is left it writes a checkpoint with a fresh reservation, growing the `fragments` file first;
//! when there is none to reserve, it moves the fragments of sparse slots together; when that gains nothing, the store is
//! full. Since one task does all this, nothing is being written while a checkpoint is taken.
//!
//! A write or sync that fails leaves unknown what is on the disk: all that it carried gets the error, and the store takes
//! no more changes until it is opened again, which finds out what is there.

use crate::api::StorageError;
use crate::checkpoint::encode_body;
use crate::files::WriteError;
use crate::index::{Held, Key};
use crate::packed::PackedHeader;
use crate::recovery::walk;
use crate::shared::{Batch, Control, Put, Shared};
use crate::slots::{Place, SLOT_LEN, footprint};
use bytes::Bytes;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use striped_log::fragment::{FragmentHeader, HEADER_LEN};
use types::aligned::AlignedBuffer;

/// Most bytes written and synced together, so that a put does not wait for ever more of those that came after it.
const GROUP_BYTES_MAX: u64 = 16 << 20;
/// Slots reserved by a checkpoint, at least.
const RESERVE_MIN: usize = 64;
/// A checkpoint reserves this many times its own length, so that writing checkpoints costs an eighth of writing fragments at most.
const RESERVE_PER_CHECKPOINT: usize = 8;
/// Slots reserved by a checkpoint, at most: what a restart has to read.
const RESERVE_MAX: usize = 4096;
/// The file grows by this many slots at a time.
const GROW_STEP: u32 = 64;
/// Slots that puts leave free, so that fragments of sparse slots can be moved together.
pub const KEEP_FREE: usize = 1;

static ZEROES: Zeroes = Zeroes([0; crate::slots::ALIGN as usize]);

/// Aligned, so that disks can take it as it is.
#[repr(align(4096))]
struct Zeroes([u8; crate::slots::ALIGN as usize]);

/// The commit loop's own state.
pub struct Committer {
    shared: Arc<Shared>,
    /// The checkpoint in force.
    sequence: u64,
    /// The checkpoint file to write next: the one that does not hold the newest.
    which: usize,
    /// Slots to reserve at the next checkpoint.
    reserve_target: usize,
    /// Seals or maps changed since the last checkpoint.
    unrecorded: bool,
    /// Slots with fragments that cannot be moved, since they have rotted.
    unmovable: BTreeSet<u32>,
}

/// One fragment as it goes to the disk.
struct Write {
    place: Place,
    header: FragmentHeader,
    payload: Bytes,
}

impl Committer {
    /// A loop for a store whose newest checkpoint is `sequence` in file `which`.
    pub fn new(shared: Arc<Shared>, sequence: u64, which: usize) -> Self {
        Committer {
            shared,
            sequence,
            which: 1 - which,
            reserve_target: RESERVE_MIN,
            unrecorded: false,
            unmovable: BTreeSet::new(),
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

    /// True when this was the last one.
    async fn batch(&mut self, batch: Batch) -> bool {
        self.puts(batch.puts).await;
        if !batch.controls.is_empty() {
            self.controls(batch.controls).await;
        }
        if batch.checkpoint && batch.closing.is_none() && self.shared.state.lock().wants_checkpoint() {
            // A failure was logged, and shows in the status.
            let _ = self.checkpoint(self.reserve_target, KEEP_FREE).await;
        }
        let Some(closers) = batch.closing else { return false };
        let result = self.checkpoint(self.reserve_target, KEEP_FREE).await;
        self.shared.state.lock().writable = false;
        for closer in closers {
            let _ = closer.send(result.clone());
        }
        true
    }

    async fn puts(&mut self, mut waiting: VecDeque<Put>) {
        while !waiting.is_empty() {
            let placed = self.place(&mut waiting);
            if !placed.is_empty() {
                self.write_group(placed).await;
                continue;
            }
            let Some(needed) = waiting.front().map(|put| put.footprint) else { return };
            if let Err(error) = self.make_room(needed).await
                && let Some(put) = waiting.pop_front()
            {
                // Only this one: a smaller one may still fit.
                let _ = put.done.send(Err(error));
            }
        }
    }

    /// Gives places to puts from the front, until one finds none. Those that are refused are answered here.
    fn place(&self, waiting: &mut VecDeque<Put>) -> Vec<(Put, Place)> {
        let mut placed = Vec::with_capacity(waiting.len());
        let state = &mut *self.shared.state.lock();
        while let Some(put) = waiting.pop_front() {
            if let Some(answer) = state.answer_put(&put.key, &put.fragment.header) {
                let _ = put.done.send(answer);
                continue;
            }
            match state.slots.allocate(put.footprint) {
                Some(place) => placed.push((put, place)),
                None => {
                    waiting.push_front(put);
                    break;
                }
            }
        }
        placed
    }

    async fn write_group(&mut self, group: Vec<(Put, Place)>) {
        let mut puts = Vec::with_capacity(group.len());
        let mut writes = Vec::with_capacity(group.len());
        for (put, place) in group {
            let Put { fragment, key, done, .. } = put;
            let held = Held { place, header: PackedHeader::new(&fragment.header) };
            writes.push(Write { place, header: fragment.header, payload: fragment.payload });
            puts.push((key, held, done));
        }
        let result = self.write(writes).await;
        let state = &mut *self.shared.state.lock();
        for (key, held, done) in puts {
            match &result {
                Ok(()) => state.insert(key, held),
                Err(_) => state.slots.release(held.place, footprint(held.header.len())),
            }
            let _ = done.send(result.clone());
        }
    }

    /// Writes fragments at their places; Ok means durable.
    async fn write(&mut self, fragments: Vec<Write>) -> Result<(), StorageError> {
        let mut writes: Vec<(u64, Vec<Bytes>)> = Vec::new();
        let mut end = u64::MAX;
        for Write { place, header, payload } in fragments {
            let offset = place.file_offset();
            // What follows what comes before it on the disk goes out in the same system call.
            if offset != end {
                writes.push((offset, Vec::new()));
            }
            end = offset + u64::from(footprint(header.len));
            let Some((_, pieces)) = writes.last_mut() else { continue };
            // Whole pages, so that the kernel need not read what was there before.
            let padding = footprint(header.len) as usize - HEADER_LEN - payload.len();
            let mut page = AlignedBuffer::zeroed(HEADER_LEN);
            page.copy_from_slice(&header.encode_with_generation(self.sequence));
            pieces.push(page.freeze());
            pieces.extend(
                [payload, Bytes::from_static(&ZEROES.0[..padding])].into_iter().filter(|piece| !piece.is_empty()),
            );
        }
        match self.shared.files.fragments.write_and_sync(writes).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail("writing fragments", &error)),
        }
    }

    fn fail(&self, what: &'static str, error: &io::Error) -> StorageError {
        tracing::error!(store = %self.shared.identity.store, %error, what, "store takes no more changes until restarted");
        self.shared.state.lock().writable = false;
        StorageError::Disk(format!("{what}: {error}"))
    }

    async fn controls(&mut self, controls: Vec<Control>) {
        {
            let state = &mut *self.shared.state.lock();
            for control in &controls {
                // What is refused must not be in force: the caller would meet a fence that a restart forgets.
                if !state.writable {
                    break;
                }
                self.unrecorded |= match control {
                    Control::Seal(seal, _) => state.seal(*seal),
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
        let result =
            if self.unrecorded || !writable { self.checkpoint(self.reserve_target, KEEP_FREE).await } else { Ok(()) };
        let state = self.shared.state.lock();
        for control in controls {
            match control {
                Control::Seal(seal, done) => {
                    let in_force = state.seals.get(&seal.log).copied().unwrap_or(seal);
                    let _ = done.send(result.clone().map(|()| in_force));
                }
                Control::Maps(_, done) => drop(done.send(result.clone())),
            }
        }
    }

    /// Writes a checkpoint and puts its reservation into force: all that may be written now, and more slots until `target`
    /// are untouched, leaving `keep`. `Full`: there is no room for the checkpoint; nothing has changed.
    async fn checkpoint(&mut self, target: usize, keep: usize) -> Result<(), StorageError> {
        if !self.shared.state.lock().writable {
            return Err(StorageError::Unavailable);
        }
        self.grow(target + keep).await?;
        let (draft, body, deleted_count) = {
            let state = self.shared.state.lock();
            let draft = state.slots.draft(target, keep);
            let body = encode_body(state.slots.count(), &state.seals, &state.maps, &draft.reservation, &state.index);
            (draft, body, state.deleted_count)
        };
        let body_len = body.len();
        let (files, identity) = (&self.shared.files, self.shared.identity);
        match files.write(self.which, identity, self.sequence + 1, body).await {
            Ok(()) => {}
            Err(WriteError::Full) => return Err(StorageError::Full),
            Err(WriteError::Failed(error)) => return Err(self.fail("writing a checkpoint", &error)),
        }
        self.sequence += 1;
        self.which = 1 - self.which;
        self.unrecorded = false;
        self.reserve_target = (RESERVE_PER_CHECKPOINT * body_len / SLOT_LEN as usize).clamp(RESERVE_MIN, RESERVE_MAX);
        let state = &mut *self.shared.state.lock();
        state.slots.adopt(draft);
        state.deleted_count -= deleted_count;
        Ok(())
    }

    /// Extends the file so that `wanted` slots could be reserved, as far as capacity and disk allow.
    async fn grow(&mut self, wanted: usize) -> Result<(), StorageError> {
        let count_max = self.shared.identity.slot_count_max();
        let (count, have) = {
            let slots = &self.shared.state.lock().slots;
            (slots.count(), slots.available() + slots.reserved_count())
        };
        if have >= wanted || count >= count_max {
            return Ok(());
        }
        let missing = u32::try_from(wanted - have).unwrap_or(u32::MAX);
        let mut step = missing.checked_next_multiple_of(GROW_STEP).unwrap_or(u32::MAX).min(count_max - count);
        while step > 0 {
            let file = &self.shared.files.fragments;
            match file.allocate(u64::from(count + step) * u64::from(SLOT_LEN)).await {
                Ok(()) => {
                    // The checkpoint that follows relies on the file's length.
                    if let Err(error) = file.sync_data().await {
                        return Err(self.fail("growing the fragments file", &error));
                    }
                    self.shared.state.lock().slots.grow(count + step);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::StorageFull => step /= 2,
                Err(error) => return Err(self.fail("growing the fragments file", &error)),
            }
        }
        Ok(())
    }

    /// Makes sure that the next allocation of `needed` bytes finds a place.
    async fn make_room(&mut self, needed: u32) -> Result<(), StorageError> {
        self.grow(self.reserve_target + KEEP_FREE).await?;
        loop {
            if self.shared.state.lock().slots.draft(self.reserve_target, KEEP_FREE).fits(needed) {
                return self.checkpoint(self.reserve_target, KEEP_FREE).await;
            }
            if !self.compact().await? {
                return Err(StorageError::Full);
            }
        }
    }

    /// Moves the fragments of the sparsest slots together. A move is a put of the same fragment: a crash finds it at either place
    /// or both. False when nothing is to be gained.
    async fn compact(&mut self) -> Result<bool, StorageError> {
        let victims = self.shared.state.lock().slots.sparsest(&self.unmovable);
        if victims.is_empty() {
            return Ok(false);
        }
        let mut moves = Vec::new();
        for slot in victims {
            match self.live_in(slot).await {
                Some(live) => moves.extend(live),
                None => {
                    self.unmovable.insert(slot);
                    return Ok(true);
                }
            }
        }
        self.checkpoint(1, 0).await?;
        let mut writes = Vec::with_capacity(moves.len());
        let mut moved = Vec::with_capacity(moves.len());
        let mut refused = false;
        {
            let state = &mut *self.shared.state.lock();
            for (key, from, header, payload) in moves {
                let Some(place) = state.slots.allocate(footprint(header.len)) else {
                    refused = true;
                    break;
                };
                moved.push((key, from, Held { place, header: PackedHeader::new(&header) }));
                writes.push(Write { place, header, payload });
            }
        }
        let result = self.write(writes).await;
        {
            let state = &mut *self.shared.state.lock();
            for (key, from, held) in moved {
                let footprint = footprint(held.header.len());
                let still_there = state.index.get(&key).is_some_and(|old| old.place == from);
                let to = held.place;
                if result.is_ok() && still_there {
                    state.index.insert(key, held);
                    state.slots.release(from, footprint);
                } else {
                    state.slots.release(to, footprint);
                }
            }
        }
        result?;
        self.checkpoint(self.reserve_target, KEEP_FREE).await?;
        Ok(!refused)
    }

    /// The live fragments of a slot with their bytes; `None` if one of them cannot be read whole.
    async fn live_in(&self, slot: u32) -> Option<Vec<(Key, Place, FragmentHeader, Bytes)>> {
        let start = Place { slot, offset: 0 };
        let bytes = self.shared.files.fragments.read_at(start.file_offset(), SLOT_LEN as usize).await.ok()?;
        let (found, _) = walk(&bytes, |_, _| true).ok()?;
        let state = self.shared.state.lock();
        let mut live = Vec::new();
        for found in found {
            let (key, place) = (Key::new(found.header.id, found.header.attempt), Place { slot, offset: found.offset });
            if state.index.get(&key).is_some_and(|held| held.place == place) {
                if !found.intact {
                    return None;
                }
                // A copy, since a slice would keep the whole slot in memory.
                let payload = Bytes::copy_from_slice(&bytes[found.payload_range()]);
                live.push((key, place, found.header, payload));
            }
        }
        (live.len() == state.slots.live_count(slot)).then_some(live)
    }
}
