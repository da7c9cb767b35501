//! Reads the tables of the newest checkpoint: single pages for a checkpoint's working copy, and
//! whole tables.
//!
//! Everything here works on clones of the trees, and while no other checkpoint is being written, so
//! that no page can be deleted before it is read. Pages that are read for a whole table do not stay
//! in memory.

use crate::api::{ManagerError, SegmentUsage, UsageChanges};
use crate::planted::{self, Bug};
use crate::record::Table;
use crate::server::Core;
use crate::state::ManagerState;
use crate::tree::{Tree, TreeKey, Unloaded, Value};
use std::collections::BTreeMap;
use types::{BlockAddr, FileId, SegmentId};

/// Most pages that are read at the same time.
const READS_AT_ONCE_MAX: usize = 16;

/// Live bytes at one instant, for all segments or for some.
struct Counts {
    /// To be added to the values of the tables.
    differences: BTreeMap<SegmentId, i64>,
    /// Segments of the own log that count as fully live.
    kept: BTreeMap<SegmentId, u64>,
    data: Tree<SegmentId, u64>,
    own: Tree<SegmentId, u64>,
}

impl ManagerState {
    /// The present counts of the segments in `wanted`; without it, of all segments.
    fn counts(&self, wanted: Option<&[SegmentId]>) -> Counts {
        let difference = |s: SegmentId| (s, self.data_usage.of(s) + self.own_pages.of(s));
        let kept = self.own_tail.values().map(|&(segment, len)| (segment, len.into())).collect();
        let differences = match wanted {
            Some(wanted) => wanted.iter().map(|&segment| difference(segment)).collect(),
            None => self.data_usage.iter().chain(self.own_pages.iter()).collect(),
        };
        Counts { differences, kept, data: self.trees.data_usage.clone(), own: self.trees.own_usage.clone() }
    }
}

impl Core {
    /// Reads pages into a working copy of a table.
    pub(crate) async fn fetch<K: TreeKey, V: Value>(
        &self,
        table: Table,
        tree: &mut Tree<K, V>,
        mut missing: Vec<Unloaded>,
    ) -> Result<(), ManagerError> {
        missing.sort_unstable();
        missing.dedup();
        for some in missing.chunks(READS_AT_ONCE_MAX) {
            let records = host::join_all(some.iter().map(|page| self.read(page.home)).collect()).await;
            for (page, record) in some.iter().zip(records) {
                let failed = |error: &dyn std::fmt::Display| {
                    tracing::error!(manager = %self.config.id, ?table, ?page, %error, "a page of a table cannot be read");
                    ManagerError::Log
                };
                let record = record.map_err(|error| failed(&error))?;
                tree.install(table, page, &record).map_err(|error| failed(&error))?;
            }
        }
        Ok(())
    }

    /// The values of `keys`, without keys that have none.
    pub(crate) async fn values<K: TreeKey, V: Value>(
        &self,
        table: Table,
        tree: &mut Tree<K, V>,
        keys: impl Iterator<Item = K> + Clone,
    ) -> Result<Vec<V>, ManagerError> {
        loop {
            let missing: Vec<Unloaded> = keys.clone().filter_map(|key| tree.get(key).err()).collect();
            if missing.is_empty() {
                return Ok(keys.filter_map(|key| tree.get(key).ok().flatten()).collect());
            }
            self.fetch(table, tree, missing).await?;
        }
    }

    /// Passes all rows of a table on, leaf by leaf.
    pub(crate) async fn scan<K: TreeKey, V: Value>(
        &self,
        table: Table,
        mut tree: Tree<K, V>,
        mut each: impl FnMut(K, V) + Send,
    ) -> Result<(), ManagerError> {
        let mut from = None;
        loop {
            let next = match tree.stretch(from) {
                Ok(stretch) => {
                    stretch.rows.iter().for_each(|&(key, value)| each(key, value));
                    stretch.next
                }
                Err(_) => {
                    // Read the next leaves along with this one.
                    let ahead = tree.unloaded_from(from, READS_AT_ONCE_MAX);
                    self.fetch(table, &mut tree, ahead).await?;
                    continue;
                }
            };
            tree.trim(2 * READS_AT_ONCE_MAX, usize::MAX);
            match next {
                Some(next) => from = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// The homes of all pages of a table below its top.
    pub(crate) async fn homes<K: TreeKey, V: Value>(
        &self,
        table: Table,
        tree: &mut Tree<K, V>,
    ) -> Result<Vec<BlockAddr>, ManagerError> {
        let mut all = Vec::new();
        for level in (0..tree.height()).rev() {
            let (homes, unloaded) = tree.homes(level);
            all.extend(homes);
            if level > 0 {
                self.fetch(table, tree, unloaded).await?;
            }
        }
        Ok(all)
    }

    /// Counts the bytes of the pages of `own_usage`, which no table counts. Called once, at a
    /// start.
    pub(crate) async fn count_own_pages(&self) -> Result<(), ManagerError> {
        let mut tree = self.state.lock().trees.own_usage.clone();
        let homes = self.homes(Table::OwnUsage, &mut tree).await?;
        let mut state = self.state.lock();
        homes.into_iter().for_each(|home| state.own_pages.add(home));
        state.trees.own_usage = tree;
        Ok(())
    }

    /// Live bytes of all segments. Segments of the own log that recovery may need count as fully
    /// live.
    pub(crate) async fn usage(&self) -> Result<Vec<SegmentUsage>, ManagerError> {
        let _no_checkpoint = self.checkpointing.lock().await;
        let counts = self.state.lock().counts(None);
        self.whole(counts).await
    }

    async fn whole(&self, counts: Counts) -> Result<Vec<SegmentUsage>, ManagerError> {
        let mut live: BTreeMap<SegmentId, i64> = counts.differences;
        let mut count = |segment, bytes: u64| *live.entry(segment).or_insert(0) += bytes as i64;
        self.scan(Table::DataUsage, counts.data, &mut count).await?;
        self.scan(Table::OwnUsage, counts.own, &mut count).await?;
        live.extend(counts.kept.into_iter().map(|(segment, bytes)| (segment, bytes as i64)));
        let used = live.into_iter().filter(|(_, bytes)| *bytes > 0);
        Ok(used.map(|(segment, bytes)| SegmentUsage { segment, live_bytes: bytes as u64 }).collect())
    }

    /// The changes since the answer with number `since`.
    pub(crate) async fn usage_changes(&self, since: u64) -> Result<UsageChanges, ManagerError> {
        let _no_checkpoint = self.checkpointing.lock().await;
        let (told, counts) = {
            let mut state = self.state.lock();
            let told = state.changes.tell(since);
            let counts = state.counts(told.touched.as_deref());
            (told, counts)
        };
        let is_whole = told.touched.is_none();
        let changed = match told.touched {
            None => self.whole(counts).await?,
            Some(touched) => self.some(counts, touched).await?,
        };
        Ok(UsageChanges { until: told.until, is_whole, changed, covered: told.covered })
    }

    async fn some(&self, mut counts: Counts, segments: Vec<SegmentId>) -> Result<Vec<SegmentUsage>, ManagerError> {
        let own = self.config.log;
        let (of_own, of_data): (Vec<_>, Vec<_>) = segments.iter().copied().partition(|segment| segment.log == own);
        self.values(Table::OwnUsage, &mut counts.own, of_own.into_iter()).await?;
        self.values(Table::DataUsage, &mut counts.data, of_data.into_iter()).await?;
        let live = |segment: SegmentId| {
            let tree = if segment.log == own { &counts.own } else { &counts.data };
            let stored = tree.get(segment).ok().flatten().unwrap_or(0) as i64;
            let live = stored + counts.differences.get(&segment).copied().unwrap_or(0);
            counts.kept.get(&segment).copied().unwrap_or(live.max(0) as u64)
        };
        Ok(segments.into_iter().map(|segment| SegmentUsage { segment, live_bytes: live(segment) }).collect())
    }

    /// Files with nlink 0.
    pub(crate) async fn orphans(&self) -> Result<Vec<FileId>, ManagerError> {
        let _no_checkpoint = self.checkpointing.lock().await;
        let (tree, mut orphans) = {
            let state = self.state.lock();
            (state.trees.orphans.clone(), state.orphans.clone())
        };
        self.scan(Table::Orphans, tree, |file, ()| {
            orphans.entry(file).or_insert(true);
        })
        .await?;
        let state = self.state.lock();
        let is_abandoned = |(file, is_orphan): (FileId, bool)| {
            let is_open = state.tokens.is_open(file);
            let is_cached = !state.tokens.is_unused(file) && planted::is(Bug::OrphansLackCached);
            (is_orphan && !is_open && !is_cached).then_some(file)
        };
        Ok(orphans.into_iter().filter_map(is_abandoned).collect())
    }
}
