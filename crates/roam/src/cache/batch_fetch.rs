//! Fetches many small files and directories with one question, where a round trip takes longer than
//! their bytes. One question asks for as much as makes a chunk.
//!
//! A program that waited for small files of a directory, one after the other, will want more of
//! them. The client fetches these ahead in the order of their names, first a little and then more,
//! for as long as the program goes on. It goes on with the directories beside it, which come next,
//! or when the program lists them. A program that waited for the names of a directory will want to
//! look into the directories in it, and into those after it if it comes from the one before. The
//! hoard walk fetches small files together too.

use crate::client::Client;
use crate::connection::schedule::{CHUNK_LEN_MAX, Direction};
use crate::live::{Live, Need};
use crate::settings::Unit;
use roam_proto::channel::Class;
use roam_proto::message::{DATA_LEN_MAX, Reply, Request};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use types::{FileId, FsError, Kind};

/// Longest file or directory that counts as small, in bytes.
pub(crate) const SMALL_LEN_MAX: u64 = 64 << 10;
/// What a file costs in an answer beside its contents, in bytes.
const OVERHEAD_LEN: u64 = 16;
/// After this many waits for files of a directory, others are fetched ahead.
const WAIT_COUNT_MIN: u32 = 2;
/// Waits further apart than this have nothing to do with each other.
const WAIT_TIME_MAX: Duration = Duration::from_secs(10);
/// Bytes that are fetched ahead first. Each step doubles that, up to a chunk.
const AHEAD_LEN_MIN: u64 = 16 << 10;
/// The attributes of a file take about this many bytes. One question asks
const FACTS_LEN: f64 = 40.0;
/// for the attributes of at most this many files,
const FACTS_COUNT_MAX: usize = 100;
/// and of no more than arrive in this time, so that the answer comes hardly later.
const LATER_TIME: Duration = Duration::from_millis(20);
/// A listing takes about this many bytes.
const LISTING_LEN: u64 = 4096;
/// Most directories that are listed ahead at a time.
const LISTING_COUNT_MAX: usize = 32;
/// After this many directories without anything to fetch, fetching ahead stops.
const IDLE_COUNT_MAX: u32 = 8;
/// How long fetching ahead goes on, unless a program waits again. As many directories are listed
/// ahead as arrive in this time.
const AHEAD_TIME: Duration = Duration::from_secs(2);

impl Live {
    /// Notes that a program had to wait for a file. Returns its directory if others in it are to be
    /// fetched ahead now.
    fn waited_for(&mut self, id: FileId, now: Duration) -> Option<FileId> {
        let node = self.replica.node(id).ok().filter(|node| node.facts.size <= SMALL_LEN_MAX)?;
        let dir = node.parent;
        self.prefetch.waits.retain(|_, waits| waits.ahead || now < waits.last + WAIT_TIME_MAX);
        let goes_on = self.waited_beside(dir, now).is_some();
        let waits = self.prefetch.waits.entry(dir).or_default();
        (waits.count, waits.last) = (waits.count.saturating_add(1), now);
        let enough = goes_on || waits.count >= WAIT_COUNT_MIN;
        (enough && !std::mem::replace(&mut waits.ahead, true)).then_some(dir)
    }

    /// The last wait for a file of a sibling directory in which programs waited for several files.
    fn waited_beside(&self, dir: FileId, now: Duration) -> Option<Duration> {
        let parent = |id: FileId| self.replica.node(id).ok().map(|node| node.parent);
        let several = self.prefetch.waits.iter().filter(|(_, waits)| waits.count >= WAIT_COUNT_MIN);
        let beside = several.filter(|(other, _)| **other != dir && parent(**other) == parent(dir));
        beside.map(|(_, waits)| waits.last).filter(|last| now < *last + WAIT_TIME_MAX).max()
    }

    /// Notes that a directory was listed. True if its files are to be fetched ahead now.
    fn was_listed(&mut self, dir: FileId, now: Duration) -> bool {
        let Some(last) = self.waited_beside(dir, now) else { return false };
        let waits = self.prefetch.waits.entry(dir).or_default();
        // Without another wait, fetching ahead ends with this directory.
        (waits.count, waits.last) = (waits.count.max(WAIT_COUNT_MIN), waits.last.max(last));
        !std::mem::replace(&mut waits.ahead, true)
    }

    /// The next sibling directory, if its files are to be fetched ahead too: programs have waited
    /// for files of several sibling directories, and no task fetches from it yet.
    fn next_beside(&mut self, dir: FileId, now: Duration) -> Option<FileId> {
        if self.freshness.is_delegated() {
            return None;
        }
        self.waited_beside(dir, now)?;
        let beside = self.replica.list(self.replica.node(dir).ok()?.parent)?;
        let is_directory = |id: &FileId| self.replica.node(*id).is_ok_and(|node| node.facts.kind == Kind::Directory);
        let next = beside.into_values().skip_while(|id| *id != dir).skip(1).find(is_directory)?;
        let waits = self.prefetch.waits.entry(next).or_default();
        (!std::mem::replace(&mut waits.ahead, true)).then_some(next)
    }

    /// Directories, `count` at most, that a program which waited for the names of `dir` will look
    /// into next: those in it, and those after it if the program comes from the one before.
    fn dirs_ahead(&mut self, dir: FileId, count: usize, now: Duration) -> Vec<FileId> {
        // Under delegations, a listing is of no use without a delegation on it.
        if self.freshness.is_delegated() {
            return Vec::new();
        }
        self.prefetch.listed_ahead.retain(|_, since| now < *since + WAIT_TIME_MAX);
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
        // The others were asked for a moment ago, or not given, or are too long.
        let wanted =
            |id: &FileId| !self.replica.has_names(*id) && !self.prefetch.listed_ahead.contains_key(id) && is_short(id);
        let count = count.min(LISTING_COUNT_MAX.saturating_sub(self.prefetch.listed_ahead.len()));
        let dirs: Vec<FileId> = dirs.filter(wanted).take(count).collect();
        self.prefetch.listed_ahead.extend(dirs.iter().map(|id| (*id, now)));
        dirs
    }

    /// True if a file is small, and the client lacks some of the bytes that the home has.
    pub(crate) fn is_small_and_missing(&self, id: FileId) -> bool {
        self.replica.node(id).is_ok_and(|node| {
            let is_small = node.facts.kind == Kind::File && (1..=SMALL_LEN_MAX).contains(&node.facts.size);
            is_small && !node.is_whole() && !node.is_dirty() && !self.replica.is_own(id) && !self.replica.is_stale(id)
        })
    }

    /// The first ones of some files that are small and missing, up to `len_max` bytes in all.
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
    /// Notes that a program had to wait for a file.
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

    /// Notes that a program had to wait for the names of a directory.
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
                // A program that needs it asks again.
                let _ = me.list_ahead(dir).await;
                let mut live = me.0.live.lock();
                if live.replica.has_names(dir) {
                    live.prefetch.listed_ahead.remove(&dir);
                }
            }));
        }
    }

    /// A file whose attributes have to be fetched, and stale files after it in its directory, which
    /// will be asked about next: only as many as hardly delay the answer. Empty if the file is
    /// fresh.
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

    /// True if nothing may be fetched but what programs ask for.
    fn wants_no_more(&self) -> bool {
        self.0.settings.lock().unit == Unit::Block
    }

    /// Fetches a directory's names ahead, unless they are known or another task fetches them. A
    /// program that wants them meanwhile does not wait for this task's turn.
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
                if let Some(waits) = me.0.live.lock().prefetch.waits.get_mut(&dir) {
                    waits.ahead = false;
                }
            }
        }));
    }

    /// Fetches small files of a directory ahead, beginning after the file `after`, and the names
    /// first if they are unknown. Returns how many, if there are no more.
    async fn fetch_ahead(&self, dir: FileId, mut after: FileId, len: &mut u64, until: Duration) -> Option<usize> {
        let (is_listed, is_delegated) = {
            let live = self.0.live.lock();
            (live.replica.has_names(dir), live.freshness.is_delegated())
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
                // Files that the home did not give are not asked for again.
                let in_order = files[at..].iter().chain(&files[..at]).copied().filter(|id| !asked.contains(id));
                // Half of a chunk is left for what programs wait for.
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

    /// Fetches small files into the cache. A file that the home does not give here is fetched alone
    /// when it is wanted. A program that wants one of them meanwhile waits for this.
    pub(crate) async fn fetch_together(&self, files: &[FileId]) -> Result<(), FsError> {
        let len = {
            let live = self.0.live.lock();
            if live.link.is_offline() {
                return Err(FsError::TimedOut);
            }
            files.iter().filter_map(|id| Some(live.replica.node(*id).ok()?.facts.size + OVERHEAD_LEN)).sum()
        };
        let turn = self.0.admit(Class::Prefetch, Direction::Down, len).await;
        // Files that other tasks fetch now are left to them.
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
