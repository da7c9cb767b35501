//! A simulated disk, with the crash model that is written on the [`Disk`](crate::Disk) trait, and its faults.
//!
//! Names and contents each exist twice: as seen by whoever runs now, and as a power loss would leave them if nothing more
//! reached the disk. What is between the two is a list of pending changes, of which a power loss keeps any part.

use super::content::{Content, Loss};
use super::executor::{Sim, World};
use super::machine::Machine;
use super::mount::Mount;
use crate::random::mix;
use crate::{Disk, DiskSpace, Random, SplitMix64};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// How long an operation takes on a new disk.
const LATENCY: Range<Duration> = Duration::from_micros(10)..Duration::from_micros(300);

/// A disk with one folder. Clones are the same disk. It outlives machines; see [`mount`](Self::mount).
#[derive(Clone)]
pub struct SimDisk(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub id: u64,
    pub world: Arc<World>,
    pub random: SplitMix64,
    pub state: Mutex<State>,
    /// Told when the disk stops hanging.
    pub resumed: Notify,
}

/// Operations that a disk has done, failed ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads of file contents.
    pub reads: u64,
    /// Writes of file contents; each part of a group write counts.
    pub writes: u64,
    /// Syncs of file contents.
    pub syncs: u64,
}

/// What was on a disk at some time.
#[derive(Clone, Default)]
pub struct Snapshot(BTreeMap<String, Content>);

impl SimDisk {
    /// An empty disk of `capacity_bytes`.
    pub fn new(sim: &Sim, capacity_bytes: u64) -> Self {
        let id = sim.world.new_id();
        SimDisk(Arc::new(Shared {
            id,
            world: sim.world.clone(),
            random: SplitMix64::new(mix(sim.seed() ^ mix(id))),
            state: Mutex::new(State { capacity_bytes, latency: LATENCY, ..State::default() }),
            resumed: Notify::new(),
        }))
    }

    /// The disk as `machine` sees it, until that crashes or the disk loses power.
    pub fn mount(&self, machine: &Machine) -> Arc<dyn Disk> {
        Arc::new(Mount::new(self.0.clone(), machine.clone()))
    }

    /// Loses power. What was synced remains; of the rest any part remains, torn at sectors and in any order. Mounts from
    /// before are dead; crash the machine first, or its roles see errors.
    pub fn power_loss(&self) {
        let mut state = self.0.state.lock();
        let random = &self.0.random;
        let loss = Loss::pick(random);
        for change in std::mem::take(&mut state.pending_names) {
            let kept = match loss {
                Loss::All => false,
                Loss::Nothing => true,
                Loss::Suffix | Loss::Any => random.chance(1, 2),
            };
            if kept {
                change.apply(&mut state.durable_names);
            }
        }
        state.names = state.durable_names.clone();
        state.incarnation += 1;
        state.forget_unnamed();
        for file in state.files.values_mut() {
            file.content.lose_power(loss, random);
        }
        drop(state);
        self.0.world.note(&[self.0.id, random.next_u64()]);
    }

    /// The next `count` writes fail, each after any part of it was done.
    pub fn fail_next_writes(&self, count: u32) {
        self.0.state.lock().writes_to_fail = count;
    }

    /// The next `count` syncs of files fail. Of what they should have made durable, any part is; the rest never will be, even
    /// by a later sync that succeeds, although readers see it until the power is lost.
    pub fn fail_next_syncs(&self, count: u32) {
        self.0.state.lock().syncs_to_fail = count;
    }

    /// Changes how much fits; below what is taken, every growth is refused with `StorageFull`.
    pub fn set_capacity(&self, bytes: u64) {
        self.0.state.lock().capacity_bytes = bytes;
    }

    /// Changes how long each half of an operation takes (before and after its effect). Both ends may be zero.
    pub fn set_latency(&self, latency: Range<Duration>) {
        self.0.state.lock().latency = latency;
    }

    /// While `offline`, every operation fails and has no effect.
    pub fn offline(&self, offline: bool) {
        self.0.state.lock().offline = offline;
    }

    /// While `hanging`, operations do not end; they go on afterwards.
    pub fn hang(&self, hanging: bool) {
        self.0.state.lock().hanging = hanging;
        if !hanging {
            self.0.resumed.notify_waiters();
        }
    }

    /// Flips `bits` random bits, in memory and on disk, within the byte range `range` of the file, as far as the file reaches.
    /// Returns their offsets: none if there is no such file or range.
    pub fn rot(&self, name: &str, range: Range<u64>, bits: u32) -> Vec<u64> {
        let mut state = self.0.state.lock();
        let Some(content) = state.content_named(name) else { return Vec::new() };
        let range = range.start..range.end.min(content.visible().len());
        if range.is_empty() {
            return Vec::new();
        }
        let mut flipped = Vec::new();
        for _ in 0..bits {
            let offset = range.start + self.0.random.below(range.end - range.start);
            content.flip(offset, self.0.random.below(8) as u8);
            flipped.push(offset);
        }
        flipped
    }

    /// What readers see now.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.0.state.lock();
        Snapshot(
            (state.names.iter())
                .filter_map(|(name, id)| Some((name.clone(), state.files.get(id)?.content.clone())))
                .collect(),
        )
    }

    /// Puts a snapshot in the place of everything, durably: a store that comes back with an old state. Mounts from before
    /// are dead.
    pub fn restore(&self, snapshot: &Snapshot) {
        let mut state = self.0.state.lock();
        state.incarnation += 1;
        state.pending_names.clear();
        state.names.clear();
        state.files.clear();
        for (name, content) in &snapshot.0 {
            let id = state.new_file();
            let mut content = content.clone();
            content.settle_all();
            state.files.insert(id, StoredFile { content, handles: Weak::new() });
            state.names.insert(name.clone(), id);
        }
        state.durable_names = state.names.clone();
    }

    /// Empties the disk, durably: a replaced disk. Mounts from before are dead.
    pub fn wipe(&self) {
        self.restore(&Snapshot::default());
    }

    /// Operations so far.
    pub fn counts(&self) -> Counts {
        self.0.state.lock().counts
    }
}

/// A file on the disk; ids are never used twice.
pub(super) type StoredFileId = u64;

#[derive(Default)]
pub(super) struct State {
    pub names: BTreeMap<String, StoredFileId>,
    durable_names: BTreeMap<String, StoredFileId>,
    pending_names: Vec<NameChange>,
    files: BTreeMap<StoredFileId, StoredFile>,
    last_file: StoredFileId,
    /// Grows when the disk loses power or is replaced; mounts and files of earlier ones are dead.
    pub incarnation: u64,
    capacity_bytes: u64,
    pub latency: Range<Duration>,
    pub writes_to_fail: u32,
    pub syncs_to_fail: u32,
    pub offline: bool,
    pub hanging: bool,
    pub counts: Counts,
}

struct StoredFile {
    content: Content,
    /// Alive while the file is open: a removed file lives until it is closed.
    handles: Weak<()>,
}

/// A change of names that the next sync of names makes durable; by itself it happens or does not.
#[derive(Clone)]
enum NameChange {
    Set(String, StoredFileId),
    Unset(String, StoredFileId),
    Move(String, String, StoredFileId),
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, StoredFileId>) {
        let mut unset = |name: &String, id| {
            if names.get(name) == Some(id) {
                names.remove(name);
            }
        };
        match self {
            NameChange::Set(name, id) => {
                names.insert(name.clone(), *id);
            }
            NameChange::Unset(name, id) => unset(name, id),
            NameChange::Move(from, to, id) => {
                unset(from, id);
                names.insert(to.clone(), *id);
            }
        }
    }

    fn file(&self) -> StoredFileId {
        match self {
            NameChange::Set(_, id) | NameChange::Unset(_, id) | NameChange::Move(_, _, id) => *id,
        }
    }
}

impl State {
    /// Opens a file; the handle keeps it alive.
    pub fn open(&mut self, name: &str, create: bool) -> io::Result<(StoredFileId, Arc<()>)> {
        let id = match self.names.get(name) {
            Some(id) => *id,
            None if create => {
                let id = self.new_file();
                self.files.insert(id, StoredFile { content: Content::default(), handles: Weak::new() });
                self.change_names(NameChange::Set(name.to_owned(), id));
                id
            }
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        let file = self.files.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        let handle = file.handles.upgrade().unwrap_or_default();
        file.handles = Arc::downgrade(&handle);
        Ok((id, handle))
    }

    /// Removes a name.
    pub fn remove(&mut self, name: &str) -> io::Result<()> {
        let id = *self.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        self.change_names(NameChange::Unset(name.to_owned(), id));
        Ok(())
    }

    /// Renames, replacing `to`.
    pub fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let id = *self.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        if from != to {
            self.change_names(NameChange::Move(from.to_owned(), to.to_owned(), id));
        }
        Ok(())
    }

    /// Changes of names that are not durable yet.
    pub fn pending_names(&self) -> usize {
        self.pending_names.len()
    }

    /// Makes the first `count` of the pending changes of names durable.
    pub fn sync_names(&mut self, count: usize) {
        let count = count.min(self.pending_names.len());
        for change in self.pending_names.drain(..count) {
            change.apply(&mut self.durable_names);
        }
        self.forget_unnamed();
    }

    /// The file's content, while it is named or open.
    pub fn content(&mut self, id: StoredFileId) -> io::Result<&mut Content> {
        let file = self.files.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        Ok(&mut file.content)
    }

    fn content_named(&mut self, name: &str) -> Option<&mut Content> {
        let id = self.names.get(name)?;
        Some(&mut self.files.get_mut(id)?.content)
    }

    /// Size, and what is free.
    pub fn space(&self) -> DiskSpace {
        let used: u64 = self.files.values().map(|file| file.content.used_bytes()).sum();
        DiskSpace { total_bytes: self.capacity_bytes, free_bytes: self.capacity_bytes.saturating_sub(used) }
    }

    /// `StorageFull` unless `bytes` more fit.
    pub fn admit(&self, bytes: u64) -> io::Result<()> {
        if bytes > 0 && bytes > self.space().free_bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn new_file(&mut self) -> StoredFileId {
        self.last_file += 1;
        self.last_file
    }

    fn change_names(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.pending_names.push(change);
        self.forget_unnamed();
    }

    /// Drops files that no name, no pending change of names, and no handle refers to.
    fn forget_unnamed(&mut self) {
        let mut kept: std::collections::BTreeSet<StoredFileId> =
            self.names.values().chain(self.durable_names.values()).copied().collect();
        kept.extend(self.pending_names.iter().map(NameChange::file));
        self.files.retain(|id, file| kept.contains(id) || file.handles.strong_count() > 0);
    }
}
