//! A simulated disk, with the crash model of the [`Disk`](crate::Disk) trait, and its faults.
//!
//! Names and contents exist twice: as programs see them now, and as a power loss would leave them
//! if nothing more reached the disk. Between the two is a list of pending changes. A power loss
//! keeps any part of that list.

use super::content::{Content, Loss};
use super::executor::{Sim, World};
use super::machine::Machine;
use super::mount::DiskMount;
use crate::random::mix;
use crate::{Disk, DiskSpace, Random, SplitMix64};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// How long each half of an operation takes on a new disk.
const LATENCY: Range<Duration> = Duration::from_micros(10)..Duration::from_micros(300);

/// A disk with one folder. Clones are the same disk. A disk outlives machines; see
/// [`mount`](Self::mount).
#[derive(Clone)]
pub struct SimDisk(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub id: u64,
    pub world: Arc<World>,
    pub random: SplitMix64,
    pub state: Mutex<State>,
    /// Notified when the disk stops hanging.
    pub resumed: Notify,
}

/// Operations that a disk has done, including failed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads of file contents.
    pub reads: u64,
    /// Writes of file contents; each part of a group write counts.
    pub writes: u64,
    /// Syncs of file contents.
    pub syncs: u64,
}

/// The contents of a disk at some time.
#[derive(Clone, Default)]
pub struct DiskSnapshot(BTreeMap<String, Content>);

impl SimDisk {
    /// An empty disk of `capacity_bytes`.
    pub fn new(sim: &Sim, capacity_bytes: u64) -> Self {
        let id = sim.world.new_id();
        SimDisk(Arc::new(Shared {
            id,
            world: sim.world.clone(),
            random: SplitMix64::new(mix(sim.seed() ^ mix(id))),
            state: Mutex::new(State { device: id, capacity_bytes, latency: LATENCY, ..State::default() }),
            resumed: Notify::new(),
        }))
    }

    /// The disk as `machine` sees it, until the machine crashes or the disk loses power.
    pub fn mount(&self, machine: &Machine) -> Arc<dyn Disk> {
        Arc::new(DiskMount::new(self.0.clone(), machine.clone()))
    }

    /// Loses power. Synced changes remain; of the other changes any part remains, torn at sectors
    /// and in any order. Earlier mounts are dead; crash the machine first, or its roles see errors.
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

    /// Makes the next `count` writes fail, each after any part of it was done.
    pub fn fail_next_writes(&self, count: u32) {
        self.0.state.lock().writes_to_fail = count;
    }

    /// Makes the next `count` syncs of files fail. Any part of the changes that they cover becomes
    /// durable. The rest never will be, even by a later sync that succeeds, although readers see it
    /// until the power is lost.
    pub fn fail_next_syncs(&self, count: u32) {
        self.0.state.lock().syncs_to_fail = count;
    }

    /// Limits the length that files can be cut or extended to; `FileTooLarge` beyond.
    pub fn set_file_len_max(&self, bytes: u64) {
        self.0.state.lock().file_len_max = Some(bytes);
    }

    /// Changes the capacity. If it is below the space in use, every growth fails with
    /// `StorageFull`.
    pub fn set_capacity(&self, bytes: u64) {
        self.0.state.lock().capacity_bytes = bytes;
    }

    /// Changes how long each half of an operation takes (before and after its effect). Both ends
    /// may be zero.
    pub fn set_latency(&self, latency: Range<Duration>) {
        self.0.state.lock().latency = latency;
    }

    /// While `offline`, every operation fails and has no effect.
    pub fn offline(&self, offline: bool) {
        self.0.state.lock().offline = offline;
    }

    /// While `hanging`, operations do not end; they resume afterwards.
    pub fn hang(&self, hanging: bool) {
        self.0.state.lock().hanging = hanging;
        if !hanging {
            self.0.resumed.notify_waiters();
        }
    }

    /// Flips `bits` random bits, in memory and on disk, within the byte range `range` of the file,
    /// as far as the file reaches. Returns their offsets; none if the file or range does not exist.
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

    /// The contents that readers see now.
    pub fn snapshot(&self) -> DiskSnapshot {
        let state = self.0.state.lock();
        DiskSnapshot(
            (state.names.iter())
                .filter_map(|(name, id)| Some((name.clone(), state.files.get(id)?.content.clone())))
                .collect(),
        )
    }

    /// Replaces everything by a snapshot, durably: a store that returns with an old state. Earlier
    /// mounts are dead.
    pub fn restore(&self, snapshot: &DiskSnapshot) {
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

    /// Empties the disk, durably: a replaced disk. Earlier mounts are dead.
    pub fn wipe(&self) {
        self.restore(&DiskSnapshot::default());
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
    /// Grows when the disk loses power or is replaced. Mounts and files of earlier incarnations are
    /// dead.
    pub incarnation: u64,
    capacity_bytes: u64,
    file_len_max: Option<u64>,
    device: u64,
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

/// A change of names. The next sync of names makes it durable; without one, it may be kept or lost.
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

    /// The number of changes of names that are not durable yet.
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

    /// All files, with the number of their changes so far.
    pub fn changes(&self) -> Vec<(StoredFileId, u64)> {
        self.files.iter().map(|(id, file)| (*id, file.content.changes())).collect()
    }

    /// Makes these changes of files durable, or fails. Each file is given with its number of
    /// changes.
    pub fn sync(&mut self, changes: &[(StoredFileId, u64)], random: &SplitMix64) -> io::Result<()> {
        self.counts.syncs += 1;
        let fails = self.syncs_to_fail > 0;
        self.syncs_to_fail = self.syncs_to_fail.saturating_sub(1);
        for (id, changes) in changes {
            match self.files.get_mut(id) {
                Some(file) if fails => file.content.fail_sync(*changes, random),
                Some(file) => file.content.sync(*changes),
                // The file was removed meanwhile.
                None => {}
            }
        }
        if fails { Err(io::Error::other("simulated sync failure")) } else { Ok(()) }
    }

    /// Makes these changes of all files durable, and the first `names` changes of names.
    pub fn sync_all(&mut self, names: usize, changes: &[(StoredFileId, u64)], random: &SplitMix64) -> io::Result<()> {
        self.sync(changes, random)?;
        self.sync_names(names);
        Ok(())
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

    /// The size and the free space.
    pub fn space(&self) -> DiskSpace {
        let used: u64 = self.files.values().map(|file| file.content.used_bytes()).sum();
        let free_bytes = self.capacity_bytes.saturating_sub(used);
        DiskSpace { total_bytes: self.capacity_bytes, free_bytes, device: self.device }
    }

    /// `StorageFull` unless `bytes` more fit.
    pub fn admit(&self, bytes: u64) -> io::Result<()> {
        if bytes > 0 && bytes > self.space().free_bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// `FileTooLarge` unless a file may have this length.
    pub fn check_len(&self, len: u64) -> io::Result<()> {
        if self.file_len_max.is_some_and(|max| len > max) {
            return Err(io::ErrorKind::FileTooLarge.into());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{File, join_all};
    use bytes::Bytes;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SECTOR: usize = 512;

    struct Setup {
        sim: Sim,
        disk: SimDisk,
    }

    impl Setup {
        fn new(seed: u64) -> Self {
            let sim = Sim::new(seed);
            Setup { disk: SimDisk::new(&sim, 1 << 30), sim }
        }

        fn mount(&self) -> Arc<dyn Disk> {
            self.disk.mount(&self.sim.machine("store"))
        }

        fn run<T>(&self, work: impl AsyncFnOnce(Arc<dyn Disk>) -> io::Result<T>) -> io::Result<T> {
            self.sim.block_on(work(self.mount()))
        }

        /// Writes `bytes` to the file `name`, whose name is durable.
        fn write(&self, name: &str, offset: u64, bytes: Vec<u8>, synced: bool) -> io::Result<()> {
            self.run(async |disk| {
                let file = disk.open(name, true).await?;
                disk.sync_names().await?;
                file.write_at(offset, vec![bytes.into()]).await?;
                if synced { file.sync_data().await } else { Ok(()) }
            })
        }

        fn read(&self, name: &str) -> io::Result<Bytes> {
            self.run(async |disk| {
                let file = disk.open(name, false).await?;
                let len = file.len().await?;
                file.read_at(0, len as usize).await
            })
        }

        fn list(&self) -> Vec<String> {
            self.run(async |disk| disk.list().await).unwrap()
        }

        fn lose_power(&self) {
            self.sim.machine("store").crash();
            self.disk.power_loss();
        }
    }

    fn kind<T>(result: io::Result<T>) -> io::ErrorKind {
        result.err().expect("an error").kind()
    }

    #[test]
    fn crash_kill_keeps_all_that_was_written() {
        let setup = Setup::new(1);
        setup.write("file", 0, vec![7; 5000], false).unwrap();
        setup.run(async |disk| disk.rename("file", "renamed").await).unwrap();
        setup.sim.machine("store").crash();
        assert_eq!(setup.list(), ["renamed"]);
        assert_eq!(setup.read("renamed").unwrap(), [7; 5000].as_slice());
    }

    #[test]
    fn crash_power_loss_keeps_what_was_synced_and_loses_or_tears_the_rest_by_sectors() {
        let (mut kept, mut lost, mut torn, mut reordered) = (0, 0, 0, 0);
        for seed in 0..200 {
            let setup = Setup::new(seed);
            setup.write("file", 0, vec![1; 8 * SECTOR], true).unwrap();
            setup.write("file", 8 * SECTOR as u64, vec![1; 8 * SECTOR], true).unwrap();
            setup.write("file", 0, vec![2; 8 * SECTOR], false).unwrap();
            setup.write("file", 8 * SECTOR as u64, vec![3; 4 * SECTOR], false).unwrap();
            setup.lose_power();
            let bytes = setup.read("file").unwrap();
            assert_eq!(bytes.len(), 16 * SECTOR);
            let sectors: Vec<u8> = bytes
                .chunks(SECTOR)
                .map(|sector| {
                    assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector was torn");
                    sector[0]
                })
                .collect();
            assert!(sectors[..8].iter().all(|byte| [1, 2].contains(byte)));
            assert!(sectors[8..12].iter().all(|byte| [1, 3].contains(byte)));
            assert_eq!(sectors[12..], [1; 4], "what was synced is gone");
            let new = sectors[..8].iter().filter(|byte| **byte == 2).count();
            kept += u32::from(new == 8);
            lost += u32::from(new == 0);
            torn += u32::from(new > 0 && new < 8);
            reordered += u32::from(new == 0 && sectors[8] == 3);
        }
        assert!(kept > 10 && lost > 10 && torn > 10 && reordered > 5, "{kept} {lost} {torn} {reordered}");
    }

    #[test]
    fn crash_power_loss_may_take_names_that_were_not_synced_and_no_others() {
        let mut outcomes = BTreeSet::new();
        for seed in 0..100 {
            let setup = Setup::new(seed);
            setup.write("old", 0, vec![1], true).unwrap();
            setup
                .run(async |disk| {
                    disk.open("new", true).await?.write_and_sync(vec![(0, vec![Bytes::from_static(b"2")])]).await?;
                    disk.remove("old").await
                })
                .unwrap();
            setup.lose_power();
            let names = setup.list();
            if names.iter().any(|name| name == "old") {
                assert_eq!(setup.read("old").unwrap(), [1].as_slice(), "came back without its bytes");
            }
            if names.iter().any(|name| name == "new") {
                assert_eq!(setup.read("new").unwrap(), "2");
            }
            setup.lose_power();
            assert_eq!(setup.list(), names, "what is there after a power loss is durable");
            outcomes.insert(names);
        }
        let expected: BTreeSet<Vec<String>> = [&[][..], &["old"], &["new"], &["new", "old"]]
            .map(|names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect())
            .into();
        assert_eq!(outcomes, expected);
    }

    #[test]
    fn crash_power_loss_leaves_a_rename_done_or_not_done() {
        let mut outcomes = BTreeSet::new();
        for seed in 0..50 {
            let setup = Setup::new(seed);
            setup.write("target", 0, vec![b'o'], true).unwrap();
            setup.write("fresh", 0, vec![b'n'], true).unwrap();
            setup.run(async |disk| disk.rename("fresh", "target").await).unwrap();
            setup.lose_power();
            outcomes.insert((setup.list().len(), setup.read("target").unwrap()));
        }
        assert_eq!(outcomes, [(1, Bytes::from_static(b"n")), (2, Bytes::from_static(b"o"))].into());
    }

    #[test]
    fn crash_at_every_step_of_a_group_write_leaves_a_part_of_it_until_it_is_done() {
        let pieces = || vec![(0, vec![Bytes::from(vec![1; 4096])]), (4096, vec![Bytes::from(vec![1; 4096])])];
        let mut lens = BTreeSet::new();
        for polls in 1.. {
            let setup = Setup::new(5);
            setup.write("file", 0, Vec::new(), true).unwrap();
            let machine = setup.sim.machine("store");
            let file = setup.sim.block_on(setup.mount().open("file", false)).unwrap();
            machine.crash_after(polls);
            let result = setup.sim.block_on(file.write_and_sync(pieces()));
            if result.is_ok() {
                setup.lose_power();
                assert_eq!(setup.read("file").unwrap(), [1; 8192].as_slice(), "acknowledged and lost");
                break;
            }
            assert!(!machine.is_up());
            lens.insert(setup.read("file").unwrap().len());
        }
        assert_eq!(lens, [0, 4096, 8192].into());
    }

    #[test]
    fn sync_does_not_cover_a_write_that_it_overlaps() {
        let lost = (0..50).filter(|seed| {
            let setup = Setup::new(*seed);
            setup.write("file", 0, vec![1], true).unwrap();
            let file = setup.sim.block_on(setup.mount().open("file", false)).unwrap();
            let (slow, fast) = (Duration::from_micros(100), Duration::from_micros(10));
            setup.disk.set_latency(slow..slow);
            let begun = setup.sim.now();
            let sync = setup.sim.machine("store").run(file.sync_data());
            setup.sim.run_for(fast);
            setup.disk.set_latency(fast..fast);
            setup.sim.block_on(file.write_at(0, vec![Bytes::from_static(&[2])])).unwrap();
            assert!(setup.sim.now() < begun + slow, "the sync is still under way");
            setup.sim.block_on(sync).unwrap().unwrap();
            setup.lose_power();
            setup.read("file").unwrap() == [1].as_slice()
        });
        assert!(lost.count() > 5);
    }

    #[test]
    fn mount_is_dead_after_a_power_loss_even_if_its_machine_is_not() {
        let setup = Setup::new(1);
        setup.write("file", 0, vec![1], true).unwrap();
        let mount = setup.mount();
        let file = setup.sim.block_on(mount.open("file", false)).unwrap();
        setup.disk.power_loss();
        assert!(setup.sim.block_on(mount.list()).is_err());
        assert!(setup.sim.block_on(file.write_and_sync(vec![(0, vec![Bytes::from_static(&[2])])])).is_err());
        assert_eq!(setup.read("file").unwrap(), [1].as_slice());
    }

    #[test]
    fn failed_sync_is_not_made_good_by_one_that_succeeds() {
        let mut outcomes = BTreeSet::new();
        for seed in 0..50 {
            let setup = Setup::new(seed);
            setup.write("file", 0, vec![1], true).unwrap();
            setup.disk.fail_next_syncs(1);
            assert!(setup.write("file", 0, vec![2], true).is_err());
            assert!(setup.run(async |disk| disk.open("file", false).await?.sync_data().await).is_ok());
            assert_eq!(setup.read("file").unwrap(), [2].as_slice());
            setup.lose_power();
            outcomes.insert(setup.read("file").unwrap()[0]);
        }
        assert_eq!(outcomes, [1, 2].into());
    }

    #[test]
    fn failed_write_is_an_error_and_may_have_done_a_part() {
        let mut lens = BTreeSet::new();
        for seed in 0..200 {
            let setup = Setup::new(seed);
            setup.write("file", 0, Vec::new(), true).unwrap();
            setup.disk.fail_next_writes(1);
            assert!(setup.write("file", 0, vec![1; 10_000], false).is_err());
            lens.insert(setup.read("file").unwrap().len());
            setup.write("file", 0, vec![1; 10_000], false).unwrap();
        }
        assert!(lens.contains(&0) && lens.contains(&4096), "{lens:?}");
    }

    #[test]
    fn full_disk_refuses_growth_and_takes_overwrites() {
        let setup = Setup::new(1);
        setup.disk.set_capacity(10 * 4096);
        let result = setup.run(async |disk| {
            let store = disk.open("store", true).await?;
            store.allocate(8 * 4096).await?;
            let space = disk.space().await?;
            assert_eq!((space.total_bytes, space.free_bytes), (10 * 4096, 2 * 4096));
            store.write_at(0, vec![vec![1; 8 * 4096].into()]).await?;
            assert_eq!(disk.space().await?.free_bytes, 2 * 4096);

            let other = disk.open("other", true).await?;
            assert_eq!(kind(other.write_at(0, vec![vec![1; 2 * 4096 + 1].into()]).await), io::ErrorKind::StorageFull);
            assert_eq!(kind(other.allocate(3 * 4096).await), io::ErrorKind::StorageFull);
            other.write_at(100, vec![vec![1; 4096].into()]).await?;
            assert_eq!(disk.space().await?.free_bytes, 0);
            other.write_at(0, vec![vec![2; 8192].into()]).await?;
            store.set_len(4 * 4096 + 1).await?;
            assert_eq!(disk.space().await?.free_bytes, 3 * 4096);
            disk.remove("other").await?;
            disk.sync_names().await?;
            assert_eq!(disk.space().await?.free_bytes, 3 * 4096, "still open");
            drop(other);
            disk.sync_names().await?;
            disk.space().await
        });
        assert_eq!(result.unwrap().free_bytes, 5 * 4096);
    }

    #[test]
    fn offline_disk_fails_and_hanging_disk_waits() {
        let setup = Setup::new(1);
        setup.disk.offline(true);
        assert!(setup.write("file", 0, vec![1], true).is_err());
        setup.disk.offline(false);
        assert_eq!(setup.list(), Vec::<String>::new());

        setup.disk.hang(true);
        let mount = setup.mount();
        let listing = setup.sim.machine("client").run(async move { mount.list().await });
        let clock = setup.sim.machine("client").host().clock;
        let mut listing = std::pin::pin!(listing);
        let hour = Duration::from_secs(3600);
        assert!(setup.sim.block_on(crate::timeout(&*clock, hour, listing.as_mut())).is_err());
        setup.disk.hang(false);
        assert!(setup.sim.block_on(listing).unwrap().is_ok());
    }

    #[test]
    fn rot_changes_stored_bytes_also_those_that_were_synced() {
        let setup = Setup::new(1);
        setup.write("file", 0, vec![0; 10_000], true).unwrap();
        let flipped = setup.disk.rot("file", 5000..5010, 3);
        assert!(flipped.len() == 3 && flipped.iter().all(|offset| (5000..5010).contains(offset)));
        let rotten = setup.read("file").unwrap();
        let changed = (0..).zip(&rotten).filter(|(_, byte)| **byte != 0).map(|(offset, _)| offset);
        assert!(changed.clone().count() > 0 && changed.clone().all(|offset: u64| flipped.contains(&offset)));
        setup.lose_power();
        assert_eq!(setup.read("file").unwrap(), rotten);
        assert_eq!(setup.disk.rot("file", 10_000..20_000, 3), []);
        assert_eq!(setup.disk.rot("none", 0..1, 3), []);
    }

    #[test]
    fn restored_snapshot_is_the_old_state_durably_and_wiping_leaves_nothing() {
        let setup = Setup::new(1);
        setup.write("file", 0, vec![1], false).unwrap();
        let old = setup.disk.snapshot();
        setup.write("file", 0, vec![2; 10], true).unwrap();
        setup.write("later", 0, vec![2], true).unwrap();
        let before = setup.mount();
        setup.disk.restore(&old);
        assert!(setup.sim.block_on(before.list()).is_err(), "a mount from before");
        setup.lose_power();
        assert_eq!(setup.list(), ["file"]);
        assert_eq!(setup.read("file").unwrap(), [1].as_slice());
        setup.disk.wipe();
        assert_eq!(setup.list(), Vec::<String>::new());
        assert_eq!(kind(setup.read("file")), io::ErrorKind::NotFound);
    }

    #[test]
    fn sim_same_seed_gives_the_same_disk_and_digest() {
        let run = |seed, last: u8| {
            let setup = Setup::new(seed);
            setup.write("file", 0, vec![1; 100_000], true).unwrap();
            let file = setup.sim.block_on(setup.mount().open("file", false)).unwrap();
            let write = |number: u8| file.write_at(u64::from(number) * 1000, vec![vec![number; 5000].into()]);
            let writes = (2..20).chain([last]).map(write).collect();
            setup.sim.block_on(join_all(writes));
            setup.lose_power();
            (setup.read("file").unwrap(), setup.sim.digest(), setup.disk.counts())
        };
        for seed in 0..10 {
            assert_eq!(run(seed, 20), run(seed, 20));
            assert_ne!(run(seed, 20).1, run(seed, 21).1, "other bytes");
            assert_ne!(run(seed, 20).1, run(seed + 10, 20).1, "another seed");
        }
        assert_eq!(run(0, 20).2, Counts { reads: 1, writes: 20, syncs: 1 });
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write { offset: u64, len: usize, then_sync: bool },
        Sync,
        FailSync,
    }

    fn step() -> impl Strategy<Value = Step> {
        let write = (0u64..9000, 1usize..6000, any::<bool>());
        prop_oneof![
            4 => write.prop_map(|(offset, len, then_sync)| Step::Write { offset, len, then_sync }),
            1 => Just(Step::Sync),
            1 => Just(Step::FailSync),
        ]
    }

    proptest! {
        /// After a power loss, the bytes of a sector are as after the last sync or after one of the
        /// later writes.
        #[test]
        fn model_sector_after_power_loss_is_one_of_its_states_since_the_sync(
            seed in any::<u64>(),
            steps in proptest::collection::vec(step(), 1..12),
        ) {
            let setup = Setup::new(seed);
            let size = 30 * SECTOR;
            setup.write("file", 0, vec![0; size], true).unwrap();
            let file: Arc<dyn File> = setup.sim.block_on(setup.mount().open("file", false)).unwrap();
            let mut visible = vec![0u8; size];
            // For each sector, the versions that the unsynced writes could leave, alone or
            // together.
            let mut durable: Vec<BTreeSet<Vec<u8>>> = visible.chunks(SECTOR).map(|s| [s.to_vec()].into()).collect();
            for (number, step) in (1u8..).zip(steps) {
                let synced = match step {
                    Step::Write { offset, len, then_sync } => {
                        let (from, to) = (offset as usize, offset as usize + len);
                        visible[from..to].fill(number);
                        for (index, versions) in durable.iter_mut().enumerate() {
                            let start = index * SECTOR;
                            let (from, to) = (from.clamp(start, start + SECTOR), to.clamp(start, start + SECTOR));
                            let written: Vec<Vec<u8>> = versions.iter().map(|version| {
                                let mut version = version.clone();
                                version[from - start..to - start].fill(number);
                                version
                            }).collect();
                            versions.extend(written);
                        }
                        let bytes = vec![Bytes::from(vec![number; len])];
                        if then_sync {
                            setup.sim.block_on(file.write_and_sync(vec![(offset, bytes)])).unwrap();
                        } else {
                            setup.sim.block_on(file.write_at(offset, bytes)).unwrap();
                        }
                        then_sync
                    }
                    Step::Sync => {
                        setup.sim.block_on(file.sync_data()).unwrap();
                        true
                    }
                    Step::FailSync => {
                        setup.disk.fail_next_syncs(1);
                        prop_assert!(setup.sim.block_on(file.sync_data()).is_err());
                        // The trait promises nothing about this file any more.
                        break;
                    }
                };
                prop_assert_eq!(&setup.sim.block_on(file.read_at(0, size)).unwrap(), &visible);
                if synced {
                    durable = visible.chunks(SECTOR).map(|sector| [sector.to_vec()].into()).collect();
                }
            }
            setup.lose_power();
            let bytes = setup.read("file").unwrap();
            prop_assert_eq!(bytes.len(), size);
            for (sector, versions) in bytes.chunks(SECTOR).zip(&durable) {
                prop_assert!(versions.contains(sector), "a sector that was never like this");
            }
        }
    }
}
