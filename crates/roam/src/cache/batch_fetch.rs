//! Small files together: where a round trip takes longer than their bytes, as many are asked for at
//! once as make a chunk.
//!
//! Whoever had to wait for small files of a directory, one after the other, will want others of it,
//! too: these are fetched ahead, in the order of their names, for as long as he goes on, first a
//! little and then more; and so are those of the directories beside it, which come next, or when he
//! lists them. Whoever had to wait for what is in a directory will want to look into those in it,
//! and into those after it if he comes from the one before. What is to be kept in the cache is
//! fetched together, too.

use crate::client::Client;
use crate::connection::schedule::{CHUNK_LEN_MAX, Direction};
use crate::live::{LinkState, Live, Need};
use crate::settings::Unit;
use roam_proto::channel::Class;
use roam_proto::message::{DATA_LEN_MAX, Reply, Request};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use types::{FileId, FsError, Kind};

/// Longest file, or directory, that is small.
pub(crate) const SMALL_LEN_MAX: u64 = 64 << 10;
/// What a file costs beyond its bytes.
const OVERHEAD_LEN: u64 = 16;
/// After so many waits for files of a directory, others are fetched ahead.
const WAIT_COUNT_MIN: u32 = 2;
/// Waits that are further apart have nothing to do with each other.
const WAIT_TIME_MAX: Duration = Duration::from_secs(10);
/// What is fetched ahead first; then twice as much each time, up to a chunk.
const AHEAD_LEN_MIN: u64 = 16 << 10;
/// What is told of a file is about so long,
const FACTS_LEN: f64 = 40.0;
/// and of more files it is not asked at a time,
const FACTS_COUNT_MAX: usize = 100;
/// or more than come in this time.
const LATER_TIME: Duration = Duration::from_millis(20);
/// What is in a directory is about so long.
const LISTING_LEN: u64 = 4096;
/// So many directories are looked into ahead at a time, at most.
const LISTING_COUNT_MAX: usize = 32;
/// After so many directories of which there is nothing to fetch, it is not what comes next.
const IDLE_COUNT_MAX: u32 = 8;
/// For so long, unless somebody waits again.
const AHEAD_TIME: Duration = Duration::from_secs(2);

/// Waits for small files of a directory.
#[derive(Default)]
pub(crate) struct Waits {
    count: u32,
    last: Duration,
    /// Others are being fetched ahead.
    ahead: bool,
}

impl Live {
    /// Whoever reads had to wait for a file. Gives its directory, if others in it are to be fetched
    /// ahead now.
    fn waited_for(&mut self, id: FileId, now: Duration) -> Option<FileId> {
        let node = self.replica.node(id).ok().filter(|node| node.facts.size <= SMALL_LEN_MAX)?;
        let dir = node.parent;
        self.waits.retain(|_, waits| waits.ahead || now < waits.last + WAIT_TIME_MAX);
        let goes_on = self.waited_beside(dir, now).is_some();
        let waits = self.waits.entry(dir).or_default();
        (waits.count, waits.last) = (waits.count.saturating_add(1), now);
        let enough = goes_on || waits.count >= WAIT_COUNT_MIN;
        (enough && !std::mem::replace(&mut waits.ahead, true)).then_some(dir)
    }

    /// When somebody waited last, if he waited for several files of a directory beside this one.
    fn waited_beside(&self, dir: FileId, now: Duration) -> Option<Duration> {
        let parent = |id: FileId| self.replica.node(id).ok().map(|node| node.parent);
        let several = self.waits.iter().filter(|(_, waits)| waits.count >= WAIT_COUNT_MIN);
        let beside = several.filter(|(other, _)| **other != dir && parent(**other) == parent(dir));
        beside.map(|(_, waits)| waits.last).filter(|last| now < *last + WAIT_TIME_MAX).max()
    }

    /// A directory was listed. True if its files are to be fetched ahead now.
    fn was_listed(&mut self, dir: FileId, now: Duration) -> bool {
        let Some(last) = self.waited_beside(dir, now) else { return false };
        let waits = self.waits.entry(dir).or_default();
        // Without another wait it ends there.
        (waits.count, waits.last) = (waits.count.max(WAIT_COUNT_MIN), waits.last.max(last));
        !std::mem::replace(&mut waits.ahead, true)
    }

    /// The directory that comes after this one, files of which are to be fetched ahead, too, if
    /// whoever reads has waited for files of several that are beside each other, and nobody is at
    /// it.
    fn next_beside(&mut self, dir: FileId, now: Duration) -> Option<FileId> {
        if self.delegations.is_some() {
            return None;
        }
        self.waited_beside(dir, now)?;
        let beside = self.replica.list(self.replica.node(dir).ok()?.parent)?;
        let is_directory = |id: &FileId| self.replica.node(*id).is_ok_and(|node| node.facts.kind == Kind::Directory);
        let next = beside.into_values().skip_while(|id| *id != dir).skip(1).find(is_directory)?;
        let waits = self.waits.entry(next).or_default();
        (!std::mem::replace(&mut waits.ahead, true)).then_some(next)
    }

    /// Directories that whoever had to wait for what is in one will want to look into next, so many
    /// at most: those in it, and those after it, if he comes from the one before.
    fn dirs_ahead(&mut self, dir: FileId, count: usize, now: Duration) -> Vec<FileId> {
        // Without delegations of them, listings are of no use to whoever works under such.
        if self.delegations.is_some() {
            return Vec::new();
        }
        self.listed_ahead.retain(|_, since| now < *since + WAIT_TIME_MAX);
        let list = |dir: FileId| self.replica.list(dir).unwrap_or_default().into_values();
        let is_directory = |id: &FileId| self.replica.node(*id).is_ok_and(|node| node.facts.kind == Kind::Directory);
        let parent = self.replica.node(dir).ok().map(|node| node.parent).filter(|parent| *parent != dir);
        let beside: Vec<FileId> = parent.into_iter().flat_map(list).filter(is_directory).collect();
        let after = match beside.iter().position(|id| *id == dir) {
            Some(at) if at > 0 && self.replica.has_names(beside[at - 1]) => &beside[at + 1..],
            _ => &[],
        };
        let is_short = |id: &FileId| self.replica.node(*id).is_ok_and(|node| node.facts.size <= SMALL_LEN_MAX);
        let dirs = list(dir).filter(is_directory).chain(after.iter().copied());
        // Those that were asked for a moment ago are on their way, or not given, or too long.
        let wanted = |id: &FileId| !self.replica.has_names(*id) && !self.listed_ahead.contains_key(id) && is_short(id);
        let count = count.min(LISTING_COUNT_MAX.saturating_sub(self.listed_ahead.len()));
        let dirs: Vec<FileId> = dirs.filter(wanted).take(count).collect();
        self.listed_ahead.extend(dirs.iter().map(|id| (*id, now)));
        dirs
    }

    /// True if a file is small, and its bytes are wanted as the home has them.
    pub(crate) fn is_small_and_missing(&self, id: FileId) -> bool {
        self.replica.node(id).is_ok_and(|node| {
            let is_small = node.facts.kind == Kind::File && (1..=SMALL_LEN_MAX).contains(&node.facts.size);
            is_small && !node.is_whole() && !node.is_dirty() && !self.replica.is_own(id) && !self.replica.is_stale(id)
        })
    }

    /// The first of some files that are small and missing, as many as have together so many bytes.
    pub(crate) fn small_files(&self, files: impl IntoIterator<Item = FileId>, len_max: u64) -> Vec<FileId> {
        let (mut chosen, mut len) = (Vec::new(), 0);
        for id in files.into_iter().map(|id| self.replica.real(id)).filter(|id| self.is_small_and_missing(*id)) {
            len += self.replica.node(id).map_or(0, |node| node.facts.size) + OVERHEAD_LEN;
            if len > len_max && !chosen.is_empty() {
                break;
            }
            chosen.push(id);
        }
        chosen
    }
}

impl Client {
    /// Whoever reads had to wait for a file.
    pub(crate) fn waited_for(&self, id: FileId) {
        if self.wants_no_more() {
            return;
        }
        let now = self.0.host.clock.now();
        let dir = self.0.live.lock().waited_for(id, now);
        if let Some(dir) = dir {
            self.go_ahead(dir, id);
        }
    }

    /// Whoever reads had to wait for what is in a directory.
    pub(crate) fn was_listed(&self, dir: FileId) {
        if self.wants_no_more() {
            return;
        }
        let now = self.0.host.clock.now();
        let count = self.0.schedule.rate(Direction::Down) * AHEAD_TIME.as_secs_f64() / LISTING_LEN as f64;
        let (files, dirs) = {
            let mut live = self.0.live.lock();
            (live.was_listed(dir, now), live.dirs_ahead(dir, (count as usize).max(1), now))
        };
        if files {
            self.go_ahead(dir, dir);
        }
        for dir in dirs {
            let me = self.clone();
            self.0.host.tasks.spawn(Box::pin(async move {
                // Whoever wants it asks again.
                let _ = me.list_ahead(dir).await;
                let mut live = me.0.live.lock();
                if live.replica.has_names(dir) {
                    live.listed_ahead.remove(&dir);
                }
            }));
        }
    }

    /// A file of which it has to be asked what it is now, if it has, and others after it in its
    /// directory of which that will be asked next, as many as make the answer come hardly later.
    pub(crate) fn stale_together(&self, file: FileId) -> Vec<FileId> {
        let count = self.0.schedule.rate(Direction::Down) * LATER_TIME.as_secs_f64() / FACTS_LEN;
        let live = self.0.live.lock();
        if live.replica.is_fresh(file) {
            return Vec::new();
        }
        let parent = live.replica.node(file).ok().map(|node| node.parent);
        let beside = parent.and_then(|parent| live.replica.list(parent)).unwrap_or_default().into_values();
        let after = beside.skip_while(|id| *id != file).skip(1);
        let others = after.filter(|id| live.replica.is_stale(*id));
        std::iter::once(file).chain(others.take((count as usize).min(FACTS_COUNT_MAX))).collect()
    }

    /// True if nothing is to come but what is asked for.
    fn wants_no_more(&self) -> bool {
        self.0.settings.lock().unit == Unit::Block
    }

    /// Learns what is in a directory, unless that is known, or somebody else is at it. Whoever
    /// wants it meanwhile does not wait for its turn.
    async fn list_ahead(&self, dir: FileId) -> Result<(), FsError> {
        let turn = self.0.admit(Class::Prefetch, Direction::Down, LISTING_LEN).await;
        match self.0.try_fetching(Need::Names(dir)) {
            Some(_one_at_a_time) => self.fetch_names(dir, Some(&turn)).await,
            None => Ok(()),
        }
    }

    fn go_ahead(&self, dir: FileId, id: FileId) {
        let me = self.clone();
        self.0.host.tasks.spawn(Box::pin(async move {
            let until = me.0.host.clock.now() + AHEAD_TIME;
            let (mut len, mut next, mut after, mut idle) = (AHEAD_LEN_MIN, Some(dir), id, 0);
            while let Some(dir) = next {
                let fetched = me.fetch_ahead(dir, after, &mut len, until).await;
                idle = if fetched == Some(0) { idle + 1 } else { 0 };
                let goes_on = fetched.is_some() && idle < IDLE_COUNT_MAX;
                next = if goes_on { me.0.live.lock().next_beside(dir, me.0.host.clock.now()) } else { None };
                after = dir;
                if let Some(waits) = me.0.live.lock().waits.get_mut(&dir) {
                    waits.ahead = false;
                }
            }
        }));
    }

    /// Fetches small files of a directory, those first whose names come after one of them, and its
    /// names before if these are not known. Gives how many, if there are no more.
    async fn fetch_ahead(&self, dir: FileId, mut after: FileId, len: &mut u64, until: Duration) -> Option<usize> {
        let (is_listed, is_delegated) = {
            let live = self.0.live.lock();
            (live.replica.has_names(dir), live.delegations.is_some())
        };
        if !is_listed && !is_delegated {
            self.list_ahead(dir).await.ok()?;
        }
        let mut asked = HashSet::new();
        while self.0.host.clock.now() < until {
            let files = {
                let live = self.0.live.lock();
                let names = live.replica.list(dir)?;
                let files: Vec<FileId> = names.into_values().collect();
                let at = files.iter().position(|id| *id == after).map_or(0, |at| at + 1);
                // What the home does not give is not asked for again.
                let in_order = files[at..].iter().chain(&files[..at]).copied().filter(|id| !asked.contains(id));
                // There is room left for what somebody waits for.
                live.small_files(in_order, (*len).min(self.0.schedule.chunk_len(Direction::Down) / 2))
            };
            let Some(last) = files.last() else { return Some(asked.len()) };
            if !self.has_room() {
                break;
            }
            after = *last;
            asked.extend(files.iter().copied());
            drop(self.0.ahead.lock().await);
            self.fetch_together(&files).await.ok()?;
            *len = (*len * 2).min(CHUNK_LEN_MAX);
        }
        None
    }

    /// Brings small files into the cache, as far as the home gives them: what it does not is asked
    /// for alone when it is wanted. Whoever wants one of them meanwhile waits for it.
    pub(crate) async fn fetch_together(&self, files: &[FileId]) -> Result<(), FsError> {
        let len = {
            let live = self.0.live.lock();
            if live.state == LinkState::Disconnected {
                return Err(FsError::TimedOut);
            }
            files.iter().filter_map(|id| Some(live.replica.node(*id).ok()?.facts.size + OVERHEAD_LEN)).sum()
        };
        let turn = self.0.admit(Class::Prefetch, Direction::Down, len).await;
        // Those that others fetch now are theirs.
        let mut fetched: HashMap<FileId, (u64, OwnedMutexGuard<()>)> = HashMap::new();
        for id in files {
            let Some(one_at_a_time) = self.0.try_fetching_bytes(*id) else { continue };
            let live = self.0.live.lock();
            if live.is_small_and_missing(*id)
                && let Ok(node) = live.replica.node(*id)
            {
                fetched.insert(*id, (node.facts.contents, one_at_a_time));
            }
        }
        let asked = files.iter().filter_map(|id| Some((*id, fetched.get(id)?.0))).collect::<Vec<_>>();
        if asked.is_empty() {
            return Ok(());
        }
        let reply = self.0.ask_in_turn(&turn, Class::Prefetch, &Request::ReadFiles { files: asked }).await?;
        drop(turn);
        let Reply::Files(read) = reply else { return Err(FsError::Io) };
        let given: HashSet<FileId> = read.iter().map(|(id, _)| *id).collect();
        fetched.retain(|id, _| given.contains(id));
        for (id, bytes) in read {
            let Some((contents, _one_at_a_time)) = fetched.remove(&id) else { continue };
            let is_it = {
                let live = self.0.live.lock();
                let fits = |size: u64| size == bytes.len() as u64 && bytes.len() <= DATA_LEN_MAX;
                live.is_small_and_missing(id) && live.replica.node(id).is_ok_and(|node| fits(node.facts.size))
            };
            if is_it {
                self.cache_bytes(id, contents, 0, bytes, Class::Prefetch).await?;
            }
        }
        Ok(())
    }
}
