//! Room in the cache, and on its disk (Froese and Bunt; docs/roaming.md#room).
//!
//! When room is wanted, the client evicts files that it can fetch again: those of the lowest hoard
//! priority first, and among these the least lately used. It never evicts what is not home yet. If
//! that alone fills the cache, a writer waits until the number of bytes that it writes has gone
//! home, but not for long. If nothing goes home, writers do not wait: the cache grows beyond its
//! bound while its disk has room. On a full disk, the client evicts everything that it can fetch
//! again before any program gets ENOSPC.

use crate::cache::data_files::data_name;
use crate::cache::room::{LOW_WATER, Room, Usage, room_for};
use crate::client::{Client, Inner};
use crate::connection::state::LinkState;
use crate::live::{Live, Need, Stop};
use crate::replica::{Child, Record};
use crate::settings::Writes;
use host::timeout;
use policy::replacement::{self, Known, Replacement};
use roam_proto::operation::Operation;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use types::{FileId, FsError};

/// Longest time for which one write waits.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Bytes that may be written beyond the bound before the client looks again how full the cache is.
const BEYOND_LEN_MAX: u64 = 16 << 20;
/// Least number of bytes that are evicted at a time when the disk is full.
const GIVE_UP_LEN: u64 = 16 << 20;
/// How long the disk counts as full after it was.
const FULL_TIME: Duration = Duration::from_secs(2);
/// On a full disk, nothing new is made once the log has less room than this,
const MAKE_LEN: u64 = 1 << 20;
/// and nothing is removed once it has less than this. So removals, which free space, go on for
/// longer.
const REMOVE_LEN: u64 = 64 << 10;
/// Longest wait for the log to notice that there is room again.
const LOG_TIME_MAX: Duration = Duration::from_secs(1);

/// How full a cache is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fullness {
    /// Writers wait until operations have gone home.
    pub writers_wait: bool,
    /// Bytes beyond the bound.
    pub beyond: u64,
    /// The disk has no room.
    pub disk_is_full: bool,
    /// The log has failed; the cache has to be opened again.
    pub log_has_failed: bool,
}

impl Live {
    fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for (id, node) in self.replica.nodes() {
            let base = self.cache.base_len(node.base);
            let len = node.have.len() + base;
            if len == 0 {
                continue;
            }
            usage.all += len;
            let is_own = node.is_dirty() || self.replica.log().is_about(id);
            match self.open_files.is_open(id) || self.cache.is_mapped(node.data) {
                false if !is_own => usage.idle += node.have.len(),
                false if !node.is_dirty() => usage.waiting += len,
                _ => {}
            }
        }
        for (seq, operation) in self.replica.log().iter() {
            let aside = self.sending.takes_room(seq);
            if let Operation::Store { change, .. } = operation
                && aside
            {
                usage.all += change.ranges.len();
                usage.waiting += change.ranges.len();
            }
        }
        usage
    }

    /// The priorities of hoarded files, and of all files below hoarded directories.
    pub(crate) fn priorities(&self) -> HashMap<FileId, u8> {
        let mut dear = HashMap::new();
        for (path, priority) in self.replica.hoard() {
            let Child::Is(id) = self.replica.at_path(path) else { continue };
            let mut waiting = vec![id];
            let mut seen = BTreeSet::new();
            while let Some(id) = waiting.pop() {
                if !seen.insert(id) {
                    continue;
                }
                let known = dear.entry(id).or_insert(0);
                *known = (*known).max(*priority);
                waiting.extend(self.replica.list(id).into_iter().flatten().map(|(_, child)| child));
            }
        }
        dear
    }

    /// Chooses files to evict for this many bytes: ones that can be fetched again, that no program
    /// uses and no task fetches. With `instead`, only ones of lower hoard priority than that file.
    /// `at_once`: their bytes go before the eviction is durable.
    fn idle_first(&self, bytes: u64, fetched: &HashSet<FileId>, instead: Option<FileId>, at_once: bool) -> Vec<FileId> {
        let dear = self.priorities();
        let dear = |file: FileId| dear.get(&file).copied().unwrap_or(0);
        let durable = self.log().map_or(0, |log| log.counts().1);
        let nodes = self.replica.nodes().filter(|(id, node)| {
            let is_own = self.replica.is_own(*id) || at_once && self.cache.unwritten.may_be_own_again(*id, durable);
            let is_used = self.open_files.is_open(*id) || self.cache.is_mapped(node.data) || fetched.contains(id);
            let gives_way = instead.is_none_or(|instead| dear(*id) < dear(instead));
            node.data > 0 && gives_way && !is_used && !is_own
        });
        let kept = nodes.map(|(file, node)| {
            let used = self.cache.last_use(file);
            (dear(file), Known { used, count: 0, weight: node.have.len() }, file)
        });
        // Uses are not counted, and this order does not need the count.
        replacement::give_up(Replacement::default(), kept, bytes).collect()
    }

    /// Whether the log has room for an operation.
    pub(crate) fn has_room_for(&self, operation: &Operation) -> Result<(), Stop> {
        let removes = matches!(operation, Operation::Remove { .. });
        match self.log().and_then(|log| log.room()) {
            Some(left) if left < if removes { REMOVE_LEN } else { MAKE_LEN } => Err(Stop::Need(Need::Room)),
            _ => Ok(()),
        }
    }
}

impl Inner {
    /// Notes that `len` bytes have gone home.
    pub(crate) fn went_home(&self, len: u64) {
        let waits = self.live.lock().cache.spare.went_home(len);
        if waits {
            self.wake();
        }
    }

    /// Looks how full the cache is, and whether there is room for `len` bytes.
    fn look_for_room(&self, len: u64) -> Room {
        let (bound, writes, pinned) = {
            let settings = self.settings.lock();
            (settings.cache_bytes, settings.writes, settings.pinned)
        };
        let mut live = self.live.lock();
        let may_go = writes != Writes::Manual && pinned != Some(LinkState::FetchOnly);
        let goes_home = may_go && live.sending.held_up().is_none() && !live.link.is_offline();
        let usage = live.usage();
        let bound = self.line.share_of(bound, usage.all);
        let room = room_for(len, usage, bound, goes_home);
        match room {
            Room::Free(left) => {
                live.cache.spare.left = left - len;
                live.cache.spare.told &= usage.waiting > bound / 2;
            }
            Room::Beyond => live.cache.spare.left = BEYOND_LEN_MAX.min(bound / LOW_WATER.1),
            Room::GiveUp(_) | Room::Wait => {}
        }
        room
    }

    /// Evicts files for this many bytes, as far as there are any; with `instead`, only ones of
    /// lower hoard priority. Returns the files of the cache that held them.
    fn give_up(&self, bytes: u64, instead: Option<FileId>, at_once: bool) -> Vec<u64> {
        let fetched = self.fetched_now();
        let mut live = self.live.lock();
        let chosen = live.idle_first(bytes, &fetched, instead, at_once);
        let data = chosen.iter().filter_map(|file| Some(live.replica.node(*file).ok()?.data)).collect();
        chosen.into_iter().for_each(|file| live.learn(Record::Dropped(file)));
        data
    }

    /// Evicts files because the disk is full. True if it freed anything. Their bytes are gone when
    /// this returns. After a crash the log may still claim them; opening the cache notices that.
    pub(crate) async fn free_disk(&self, bytes: u64, instead: Option<FileId>) -> bool {
        let given = self.give_up(bytes.max(GIVE_UP_LEN), instead, true);
        // A file that is open stays on the disk after it was removed.
        let was_open = self.live.lock().sending.forget_lately();
        for number in &given {
            self.live.lock().cache.evict(*number);
            // It may be gone already.
            let _ = self.disk.remove(&data_name(*number)).await;
        }
        if was_open || !given.is_empty() {
            // A disk may keep the space of removed files until the removal is durable.
            let _ = self.disk.sync_names().await;
        }
        if given.is_empty() && !was_open && instead.is_none() {
            let now = self.host.clock.now();
            let was_full = self.live.lock().cache.spare.full.replace(now);
            if was_full.is_none_or(|full| now > full + WAIT_MAX) {
                tracing::warn!("the disk of the cache is full, and nothing in the cache can be evicted");
            }
        }
        was_open || !given.is_empty()
    }

    /// True if the disk was full just now.
    pub(crate) fn was_full(&self) -> bool {
        let full = self.live.lock().cache.spare.full;
        full.is_some_and(|full| self.host.clock.now() < full + FULL_TIME)
    }
}

/// A writer that waits for room.
struct Waiter(Arc<Inner>);

impl Waiter {
    fn new(inner: &Arc<Inner>) -> Waiter {
        let first = {
            let mut live = inner.live.lock();
            live.cache.spare.waiting += 1;
            // Operations that were to wait for other reasons go now.
            let last = live.replica.log().last();
            live.sending.promise(last);
            !std::mem::replace(&mut live.cache.spare.told, true)
        };
        if first {
            tracing::warn!("the cache is full of what is not home yet: writers wait for the home");
        }
        inner.schedule.hurry();
        inner.judge();
        inner.wake();
        Waiter(inner.clone())
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.live.lock().cache.spare.waiting -= 1;
        self.0.schedule.calm();
    }
}

impl Client {
    /// Waits until there is room for `len` bytes that are about to be written, but not for long.
    /// ENOSPC if the log has no room.
    pub(crate) async fn wait_for_room(&self, len: u64) -> Result<(), FsError> {
        let inner = &self.0;
        if self.is_log_full() {
            self.free_log().await?;
        }
        if inner.live.lock().cache.spare.take(len) {
            return Ok(());
        }
        let (mut waiter, mut until) = (None, None);
        loop {
            let mut tick = inner.tick.subscribe();
            match inner.look_for_room(len) {
                Room::Free(_) | Room::Beyond => return Ok(()),
                Room::GiveUp(bytes) => {
                    if inner.give_up(bytes, None, false).is_empty() {
                        return Ok(());
                    }
                    let me = self.clone();
                    inner.host.tasks.spawn(Box::pin(async move { me.remove_unused().await }));
                }
                Room::Wait => {
                    let now = inner.host.clock.now();
                    let until = *until.get_or_insert(now + WAIT_MAX);
                    waiter.get_or_insert_with(|| Waiter::new(inner));
                    let earned = inner.live.lock().cache.spare.earn(len);
                    if earned || now >= until || timeout(&*inner.host.clock, until - now, tick.changed()).await.is_err()
                    {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// True if the log has no room for new files.
    fn is_log_full(&self) -> bool {
        self.0.log.room().is_some_and(|left| left < MAKE_LEN)
    }

    /// Evicts files until the log, on a full disk, has room. ENOSPC if that does not help.
    pub(crate) async fn free_log(&self) -> Result<(), FsError> {
        loop {
            // The log checks its room again whenever it writes.
            let _ = timeout(&*self.0.host.clock, LOG_TIME_MAX, self.0.log.settled()).await;
            if !self.is_log_full() {
                return Ok(());
            }
            if !self.0.free_disk(GIVE_UP_LEN, None).await {
                return Err(FsError::NoSpace);
            }
        }
    }

    /// Makes room in the cache if it is full, and for the log if the disk is full.
    pub(crate) async fn make_room(&self) {
        if self.is_log_full() {
            // If it fails, operations that need the room report it.
            let _ = self.free_log().await;
        }
        if let Room::GiveUp(bytes) = self.0.look_for_room(0) {
            self.0.give_up(bytes, None, false);
        }
    }

    /// True if `len` bytes may be fetched ahead. Evicts files for them; with `instead`, only ones
    /// of lower hoard priority than that file.
    pub(crate) fn has_room_ahead(&self, len: u64, instead: Option<FileId>) -> bool {
        match self.0.look_for_room(len) {
            Room::Free(_) => !self.0.was_full(),
            Room::GiveUp(bytes) => !self.0.give_up(bytes, instead, false).is_empty(),
            Room::Wait | Room::Beyond => false,
        }
    }

    /// True if the client may fetch more than programs wait for.
    pub(crate) fn has_room(&self) -> bool {
        let bound = self.0.settings.lock().cache_bytes;
        let cached = self.cached_bytes();
        let bound = self.0.line.share_of(bound, cached);
        cached < bound / LOW_WATER.1 * LOW_WATER.0 && !self.0.was_full()
    }

    /// Bytes of files that are cached.
    pub fn cached_bytes(&self) -> u64 {
        self.look(|replica, _| replica.nodes().map(|(_, node)| node.have.len()).sum())
    }

    /// How full the cache is.
    pub fn fullness(&self) -> Fullness {
        let bound = self.0.settings.lock().cache_bytes;
        let disk_is_full = self.0.log.room().is_some() || self.0.was_full();
        let live = self.0.live.lock();
        let usage = live.usage();
        let bound = self.0.line.share_of(bound, usage.all);
        Fullness {
            writers_wait: live.cache.spare.waiting > 0,
            beyond: usage.all.saturating_sub(usage.idle).saturating_sub(bound),
            disk_is_full,
            log_has_failed: self.0.log.is_closed(),
        }
    }
}
