//! Small files together: where a round trip takes longer than their bytes, as many are asked for at once as make a chunk.
//!
//! Whoever had to wait for small files of a directory, one after the other, will want others of it, too: these are fetched ahead, in the order of their
//! names, for as long as he goes on, first a little and then more; and so are those of the directories beside it when he lists them, before he reads
//! any. What is to be kept in the cache is fetched together, too.

use crate::client::Client;
use crate::live::{LinkState, Live};
use crate::schedule::{CHUNK_LEN_MAX, Direction};
use crate::settings::Unit;
use roam_wire::channel::Class;
use roam_wire::message::{DATA_LEN_MAX, Reply, Request};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use types::{FileId, FsError, Kind};

/// Longest file that is small.
pub(crate) const SMALL_LEN_MAX: u64 = 64 << 10;
/// What a file costs beyond its bytes.
const OVERHEAD_LEN: u64 = 16;
/// After so many waits for files of a directory, others are fetched ahead.
const WAIT_COUNT_MIN: u32 = 2;
/// Waits that are further apart have nothing to do with each other.
const WAIT_TIME_MAX: Duration = Duration::from_secs(10);
/// What is fetched ahead first; then twice as much each time, up to a chunk.
const AHEAD_LEN_MIN: u64 = 16 << 10;
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
    /// Whoever reads had to wait for a file. Gives its directory, if others in it are to be fetched ahead now.
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

    /// True if a file is small, and its bytes are wanted as the home has them.
    pub(crate) fn is_small_and_missing(&self, id: FileId) -> bool {
        self.replica.node(id).is_ok_and(|node| {
            let is_small = node.facts.kind == Kind::File && (1..=SMALL_LEN_MAX).contains(&node.facts.size);
            is_small && !node.is_whole() && !node.is_dirty && !self.replica.is_own(id) && !self.replica.is_stale(id)
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
        let now = self.0.host.clock.now();
        let dir = self.0.live.lock().waited_for(id, now);
        if let Some(dir) = dir {
            self.go_ahead(dir, id);
        }
    }

    /// A directory was listed.
    pub(crate) fn was_listed(&self, dir: FileId) {
        let now = self.0.host.clock.now();
        let ahead = self.0.live.lock().was_listed(dir, now);
        if ahead {
            self.go_ahead(dir, dir);
        }
    }

    fn go_ahead(&self, dir: FileId, id: FileId) {
        let me = self.clone();
        self.0.host.tasks.spawn(Box::pin(async move {
            me.fetch_ahead(dir, id).await;
            if let Some(waits) = me.0.live.lock().waits.get_mut(&dir) {
                waits.ahead = false;
            }
        }));
    }

    /// Fetches small files of a directory, those first whose names come after one of them.
    async fn fetch_ahead(&self, dir: FileId, mut after: FileId) {
        let until = self.0.host.clock.now() + AHEAD_TIME;
        let (mut len, mut asked) = (AHEAD_LEN_MIN, HashSet::new());
        let unit = self.0.settings.lock().unit;
        if unit == Unit::Block {
            return;
        }
        while self.0.host.clock.now() < until && self.has_room() {
            let files = {
                let live = self.0.live.lock();
                let Some(names) = live.replica.list(dir) else { return };
                let files: Vec<FileId> = names.into_values().collect();
                let at = files.iter().position(|id| *id == after).map_or(0, |at| at + 1);
                // What the home does not give is not asked for again.
                let in_order = files[at..].iter().chain(&files[..at]).copied().filter(|id| !asked.contains(id));
                live.small_files(in_order, len.min(self.0.schedule.chunk_len(Direction::Down)))
            };
            let Some(last) = files.last() else { return };
            after = *last;
            asked.extend(files.iter().copied());
            drop(self.0.ahead.lock().await);
            if self.fetch_together(&files).await.is_err() {
                return;
            }
            len = (len * 2).min(CHUNK_LEN_MAX);
        }
    }

    /// Brings small files into the cache, as far as the home gives them: what it does not is asked for alone when it is wanted.
    pub(crate) async fn fetch_together(&self, files: &[FileId]) -> Result<(), FsError> {
        let known: HashMap<FileId, u64> = {
            let live = self.0.live.lock();
            if live.state == LinkState::Disconnected {
                return Err(FsError::TimedOut);
            }
            let contents = |id: &FileId| Some((*id, live.replica.node(*id).ok()?.facts.contents));
            files.iter().filter_map(contents).collect()
        };
        let asked = files.iter().filter_map(|id| Some((*id, *known.get(id)?))).collect();
        let reply = self.0.ask(Class::Prefetch, &Request::ReadFiles { files: asked }).await?;
        let Reply::Files(read) = reply else { return Err(FsError::Io) };
        for (id, bytes) in read {
            let Some(contents) = known.get(&id) else { continue };
            let _one_at_a_time = self.0.fetching_bytes(id).await;
            let is_it = {
                let live = self.0.live.lock();
                let fits = |size: u64| size == bytes.len() as u64 && bytes.len() <= DATA_LEN_MAX;
                live.is_small_and_missing(id) && live.replica.node(id).is_ok_and(|node| fits(node.facts.size))
            };
            if is_it {
                self.cache_bytes(id, *contents, 0, bytes, Class::Prefetch).await?;
            }
        }
        Ok(())
    }
}
