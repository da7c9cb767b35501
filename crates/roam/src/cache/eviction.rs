//! Room in the cache, and on its disk (Froese and Bunt; docs/roaming.md#room).
//!
//! What can be had from the home again is given up when room is wanted: what was used least lately
//! first, among what is least dear. What is not home yet never is. Where that alone fills the
//! cache, whoever writes waits until as much as he writes has gone home, though never for long.
//! Where nothing goes home, nobody waits: the cache grows beyond its bound for as long as its disk
//! has room. Where the disk has none, all that can be had again is given up before anybody is told
//! so.

use crate::client::{Client, Inner, data_name};
use crate::live::{LinkState, Live, Need, Stop};
use crate::reintegration::replay::Outgoing;
use crate::replica::{Child, Record};
use crate::settings::Writes;
use host::timeout;
use policy::replacement::{self, Known, Replacement};
use roam_proto::operation::Operation;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use types::{FileId, FsError};

/// When the cache is full, it is emptied to this share of what it may hold.
const LOW_WATER: (u64, u64) = (9, 10);
/// Longest wait of one write.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Beyond the bound, as much as this is written before anybody looks again.
const BEYOND_LEN_MAX: u64 = 16 << 20;
/// So much is given up at a time, at least, when the disk is full.
const GIVE_UP_LEN: u64 = 16 << 20;
/// The disk counts as full for so long after it was.
const FULL_TIME: Duration = Duration::from_secs(2);
/// On a full disk, nothing is made any more when the log has no more room than this,
const MAKE_LEN: u64 = 1 << 20;
/// and nothing is removed when it has no more than this.
const REMOVE_LEN: u64 = 64 << 10;
/// Longest wait for the log to find that there is room again.
const LOG_TIME_MAX: Duration = Duration::from_secs(1);

/// What the cache holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    all: u64,
    /// Of it: what can be had from the home again, and nobody uses.
    idle: u64,
    /// Of it: what will be such when what waits is home.
    waiting: u64,
}

/// Whether there is room for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// And for so much in all.
    Free(u64),
    /// When so much has been given up.
    GiveUp(u64),
    /// When some of what waits is home.
    Wait,
    /// Not within the bound.
    Beyond,
}

fn room_for(len: u64, usage: Usage, bound: u64, goes_home: bool) -> Room {
    let wanted = usage.all.saturating_add(len);
    match wanted.checked_sub(bound) {
        None | Some(0) => Room::Free(bound - usage.all),
        Some(_) if usage.idle > 0 => Room::GiveUp(wanted - bound / LOW_WATER.1 * LOW_WATER.0),
        Some(_) if goes_home && usage.waiting > 0 => Room::Wait,
        Some(_) => Room::Beyond,
    }
}

/// What is known of the room there is.
#[derive(Default)]
pub(crate) struct Spare {
    /// Bytes that may come into the cache before anybody looks how full it is.
    left: u64,
    /// Who waits for room.
    waiting: usize,
    /// Bytes that have gone home since somebody waits, and for which nobody has gone on yet.
    earned: u64,
    /// It was said that somebody waits.
    told: bool,
    /// When somebody was refused since the disk was full, last.
    full: Option<Duration>,
}

impl Spare {
    /// So many bytes have come into the cache, or are about to. False if it is to be looked how
    /// full it is.
    pub(crate) fn take(&mut self, len: u64) -> bool {
        let left = self.left.checked_sub(len);
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    /// So many bytes have gone home. True if somebody waits for that.
    pub(crate) fn went_home(&mut self, len: u64) -> bool {
        let waits = self.waiting > 0;
        self.earned = if waits { self.earned.saturating_add(len) } else { 0 };
        waits
    }

    /// As many bytes have gone home as somebody wants to write.
    fn earn(&mut self, len: u64) -> bool {
        let rest = self.earned.checked_sub(len);
        self.earned = rest.unwrap_or(self.earned);
        rest.is_some()
    }

    /// The bound is another.
    pub(crate) fn look_again(&mut self) {
        self.left = 0;
    }
}

/// How full a cache is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fullness {
    /// Whoever writes waits until some of what waits is home.
    pub writers_wait: bool,
    /// Bytes beyond what it may hold.
    pub beyond: u64,
    /// Nothing more goes onto its disk.
    pub disk_is_full: bool,
    /// Nothing can be logged until it is opened again.
    pub log_has_failed: bool,
}

impl Live {
    fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for (id, node) in self.replica.nodes() {
            let base = self.base_lens.get(&node.base).copied().unwrap_or(0);
            let len = node.have.len() + base;
            if len == 0 {
                continue;
            }
            usage.all += len;
            let is_own = node.is_dirty() || self.replica.log().is_about(id);
            match self.open_counts.contains_key(&id) || self.mapped.contains_key(&node.data) {
                false if !is_own => usage.idle += node.have.len(),
                false if !node.is_dirty() => usage.waiting += len,
                _ => {}
            }
        }
        for (seq, operation) in self.replica.log().iter() {
            let aside = matches!(self.outgoing.get(seq), Some(Outgoing::File(..))) || self.sources.contains_key(&seq);
            if let Operation::Store { change, .. } = operation
                && aside
            {
                usage.all += change.ranges.len();
                usage.waiting += change.ranges.len();
            }
        }
        usage
    }

    /// How dear files are: those that are to be kept, with all below them.
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

    /// Which files are given up for so many bytes: of those that can be had again, and that no
    /// program uses and no task fetches; only of what is less dear than a file, if one is said.
    /// `at_once`: their bytes go before it is durable that they are given up.
    fn idle_first(&self, bytes: u64, fetched: &HashSet<FileId>, instead: Option<FileId>, at_once: bool) -> Vec<FileId> {
        let dear = self.priorities();
        let dear = |file: FileId| dear.get(&file).copied().unwrap_or(0);
        let durable = self.log.as_ref().map_or(0, |log| log.counts().1);
        let nodes = self.replica.nodes().filter(|(id, node)| {
            let is_own = self.replica.is_own(*id) || at_once && self.unwritten.may_be_own_again(*id, durable);
            let is_used =
                self.open_counts.contains_key(id) || self.mapped.contains_key(&node.data) || fetched.contains(id);
            let gives_way = instead.is_none_or(|instead| dear(*id) < dear(instead));
            node.data > 0 && gives_way && !is_used && !is_own
        });
        let kept = nodes.map(|(file, node)| {
            let used = self.used.get(&file).copied().unwrap_or(0);
            (dear(file), Known { used, count: 0, weight: node.have.len() }, file)
        });
        // How often a file was used is not kept, nor asked by this order.
        replacement::give_up(Replacement::default(), kept, bytes).collect()
    }

    /// The log has room for an operation.
    pub(crate) fn has_room_for(&self, operation: &Operation) -> Result<(), Stop> {
        let removes = matches!(operation, Operation::Remove { .. });
        match self.log.as_ref().and_then(|log| log.room()) {
            Some(left) if left < if removes { REMOVE_LEN } else { MAKE_LEN } => Err(Stop::Need(Need::Room)),
            _ => Ok(()),
        }
    }
}

impl Inner {
    /// So many bytes have gone home.
    pub(crate) fn went_home(&self, len: u64) {
        let waits = self.live.lock().spare.went_home(len);
        if waits {
            self.wake();
        }
    }

    /// Looks how full the cache is, and whether there is room for so many bytes.
    fn look_for_room(&self, len: u64) -> Room {
        let (bound, writes, pinned) = {
            let settings = self.settings.lock();
            (settings.cache_bytes, settings.writes, settings.pinned)
        };
        let mut live = self.live.lock();
        let may_go = writes != Writes::Manual && pinned != Some(LinkState::FetchOnly);
        let goes_home = may_go && live.held_up.is_none() && !live.is_offline();
        let usage = live.usage();
        let bound = self.line.share_of(bound, usage.all);
        let room = room_for(len, usage, bound, goes_home);
        match room {
            Room::Free(left) => {
                live.spare.left = left - len;
                live.spare.told &= usage.waiting > bound / 2;
            }
            Room::Beyond => live.spare.left = BEYOND_LEN_MAX.min(bound / LOW_WATER.1),
            Room::GiveUp(_) | Room::Wait => {}
        }
        room
    }

    /// Gives up so many bytes that can be had again, if there are as many, for any file, or only of
    /// those that are less dear. Gives the files of the cache that they were in.
    fn give_up(&self, bytes: u64, instead: Option<FileId>, at_once: bool) -> Vec<u64> {
        let fetched = self.fetched_now();
        let mut live = self.live.lock();
        let chosen = live.idle_first(bytes, &fetched, instead, at_once);
        let data = chosen.iter().filter_map(|file| Some(live.replica.node(*file).ok()?.data)).collect();
        chosen.into_iter().for_each(|file| live.record(Record::Dropped(file)));
        data
    }

    /// The disk is full: gives up what can be had again, for as many bytes at least, if there is
    /// anything. It is gone when this returns; a crash may leave the cache without what it thinks
    /// that it has, which is noticed when it is opened.
    pub(crate) async fn free_disk(&self, bytes: u64, instead: Option<FileId>) -> bool {
        let given = self.give_up(bytes.max(GIVE_UP_LEN), instead, true);
        // What is open stays on the disk though it was removed.
        let was_open = !std::mem::take(&mut self.live.lock().lately).is_empty();
        for number in &given {
            {
                let mut live = self.live.lock();
                live.files.remove(number);
                live.shown.remove(number);
            }
            // It may have gone already.
            let _ = self.disk.remove(&data_name(*number)).await;
        }
        if was_open || !given.is_empty() {
            // Disks may keep what was removed until that is durable.
            let _ = self.disk.sync_names().await;
        }
        if given.is_empty() && !was_open && instead.is_none() {
            let now = self.host.clock.now();
            let was_full = self.live.lock().spare.full.replace(now);
            if was_full.is_none_or(|full| now > full + WAIT_MAX) {
                tracing::warn!("the disk of the cache is full, and nothing in the cache can be given up");
            }
        }
        was_open || !given.is_empty()
    }

    /// True if the disk was full just now.
    pub(crate) fn was_full(&self) -> bool {
        let full = self.live.lock().spare.full;
        full.is_some_and(|full| self.host.clock.now() < full + FULL_TIME)
    }
}

/// Somebody who waits for room.
struct Waiter(Arc<Inner>);

impl Waiter {
    fn new(inner: &Arc<Inner>) -> Waiter {
        let first = {
            let mut live = inner.live.lock();
            live.spare.waiting += 1;
            // What was to wait for another reason goes now.
            live.promised = live.promised.max(live.replica.log().last());
            !std::mem::replace(&mut live.spare.told, true)
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
        self.0.live.lock().spare.waiting -= 1;
        self.0.schedule.calm();
    }
}

impl Client {
    /// Waits until there is room for so many bytes that are about to be written, but not for long.
    /// ENOSPC if nothing can be logged.
    pub(crate) async fn wait_for_room(&self, len: u64) -> Result<(), FsError> {
        let inner = &self.0;
        if self.is_log_full() {
            self.free_log().await?;
        }
        if inner.live.lock().spare.take(len) {
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
                    let earned = inner.live.lock().spare.earn(len);
                    if earned || now >= until || timeout(&*inner.host.clock, until - now, tick.changed()).await.is_err()
                    {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// True if the log has no room for what is made.
    fn is_log_full(&self) -> bool {
        self.0.log.room().is_some_and(|left| left < MAKE_LEN)
    }

    /// The log is on a full disk: gives up what can be had again until there is room. ENOSPC if
    /// that is not enough.
    pub(crate) async fn free_log(&self) -> Result<(), FsError> {
        loop {
            // It looks again with whatever it writes.
            let _ = timeout(&*self.0.host.clock, LOG_TIME_MAX, self.0.log.settled()).await;
            if !self.is_log_full() {
                return Ok(());
            }
            if !self.0.free_disk(GIVE_UP_LEN, None).await {
                return Err(FsError::NoSpace);
            }
        }
    }

    /// Makes room in the cache if it is full, and for the log if the disk is.
    pub(crate) async fn make_room(&self) {
        if self.is_log_full() {
            // Whoever needs it is told.
            let _ = self.free_log().await;
        }
        if let Room::GiveUp(bytes) = self.0.look_for_room(0) {
            self.0.give_up(bytes, None, false);
        }
    }

    /// True if so many bytes of a file may be fetched before they are wanted, and makes room for
    /// them; `instead`: of what is less dear than that only.
    pub(crate) fn has_room_ahead(&self, len: u64, instead: Option<FileId>) -> bool {
        match self.0.look_for_room(len) {
            Room::Free(_) => !self.0.was_full(),
            Room::GiveUp(bytes) => !self.0.give_up(bytes, instead, false).is_empty(),
            Room::Wait | Room::Beyond => false,
        }
    }

    /// True if more may be fetched than somebody waits for.
    pub(crate) fn has_room(&self) -> bool {
        let bound = self.0.settings.lock().cache_bytes;
        let cached = self.cached_bytes();
        let bound = self.0.line.share_of(bound, cached);
        cached < bound / LOW_WATER.1 * LOW_WATER.0 && !self.0.was_full()
    }

    /// Bytes of files in the cache.
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
            writers_wait: live.spare.waiting > 0,
            beyond: usage.all.saturating_sub(usage.idle).saturating_sub(bound),
            disk_is_full,
            log_has_failed: self.0.log.is_closed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_had_again_goes_before_anybody_waits_and_nobody_waits_for_nothing() {
        let usage = |all, idle, waiting| Usage { all, idle, waiting };
        for goes_home in [false, true] {
            assert_eq!(room_for(10, usage(90, 50, 40), 100, goes_home), Room::Free(10));
            assert_eq!(room_for(11, usage(90, 50, 40), 100, goes_home), Room::GiveUp(11));
            assert_eq!(room_for(0, usage(101, 1, 100), 100, goes_home), Room::GiveUp(11));
            // What is being written cannot go home.
            assert_eq!(room_for(1, usage(100, 0, 0), 100, goes_home), Room::Beyond);
        }
        assert_eq!(room_for(1, usage(100, 0, 1), 100, true), Room::Wait);
        assert_eq!(room_for(1, usage(100, 0, 1), 100, false), Room::Beyond);
        assert_eq!(room_for(u64::MAX, usage(0, 0, 0), 100, true), Room::Beyond);
    }

    #[test]
    fn whoever_writes_goes_on_when_as_much_has_gone_home() {
        let mut spare = Spare::default();
        assert!(!spare.went_home(10) && !spare.earn(1));
        spare.waiting = 2;
        assert!(spare.went_home(10) && spare.went_home(5));
        assert!(!spare.earn(16) && spare.earn(14));
        // What one has waited for, nobody else has.
        assert!(!spare.earn(14) && spare.earn(1));
    }
}
