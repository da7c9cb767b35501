//! Bounding the metadata that is cached: attributes, and names of directories.
//!
//! The client holds them in memory, and each snapshot of its log writes all of them. So it forgets
//! what programs used least lately, and asks the home again when a program needs it. Without a
//! network it forgets nothing, since it could not ask.

use crate::client::Client;
use crate::live::Live;
use crate::replica::Record;
use std::collections::HashSet;
use types::FileId;

/// Share of the bound that the client keeps when it forgets.
const LOW_WATER: (usize, usize) = (7, 8);
/// If it has to keep more than its bound, it looks again when it knows this part of the bound more.
const AGAIN_PART: usize = 16;
/// The files of this many latest uses stay.
const RECENT_COUNT: u64 = 8;

impl Live {
    /// True if the client knows more files than it may, and may forget some now.
    fn knows_too_much(&self, bound: usize) -> bool {
        self.replica.file_count() > bound.max(self.cache.known_enough)
            && !self.link.is_offline()
            && !self.freshness.is_frozen()
    }

    /// Forgets what programs used least lately. True if it forgot anything.
    fn forget_metadata(&mut self, bound: usize, fetched: HashSet<FileId>) -> bool {
        let known = self.replica.file_count();
        let needed = self.needed_metadata(fetched);
        let (used, uses) = self.cache.uses();
        let recent = uses.saturating_sub(RECENT_COUNT);
        let all = self.replica.least_used(bound / LOW_WATER.1 * LOW_WATER.0, (used, recent), &needed);
        for forgotten in &all {
            // The kernel must drop it, too: the client reports no changes of files that it does not
            // know.
            forgotten.dir.into_iter().for_each(|dir| self.forget(dir));
            forgotten.files.iter().for_each(|file| self.kernel.forget_file(*file));
        }
        let batches = all.len();
        for forgotten in all {
            self.cache.forgotten += forgotten.files.len() as u64;
            self.learn(Record::Forgotten { dir: forgotten.dir, files: forgotten.files });
        }
        let left = self.replica.file_count();
        self.cache.known_enough = if left > bound { left + bound / AGAIN_PART } else { 0 };
        tracing::debug!(known, left, batches, "forgot metadata that was not used for long");
        batches > 0
    }

    /// Files that the client must not forget.
    fn needed_metadata(&self, fetched: HashSet<FileId>) -> HashSet<FileId> {
        let mut needed = fetched;
        needed.extend(self.open_files.ids().map(|id| self.replica.real(id)));
        needed.extend(self.cache.mapped().map(|(_, id)| id));
        needed.extend(self.cache.changing().chain(self.prefetch.completing()));
        needed.extend(self.priorities().into_keys());
        for (_, conflict) in self.replica.conflicts() {
            needed.extend(conflict.place.iter().chain(&conflict.mine).map(|(dir, _)| *dir));
            needed.extend([conflict.file, conflict.copy]);
        }
        // Other clients know nothing of what this client changes under a write delegation.
        needed.extend(self.freshness.held_to_write());
        needed
    }
}

impl Client {
    /// Files that the client has forgotten since it opened the cache, because it knew too many.
    pub fn forgotten(&self) -> u64 {
        self.0.live.lock().cache.forgotten
    }

    /// Forgets the least lately used metadata if the client holds more than its bound.
    pub(crate) fn bound_metadata(&self) {
        let inner = &self.0;
        let bound = inner.settings.lock().cache_files;
        if !inner.live.lock().knows_too_much(bound) {
            return;
        }
        let fetched = inner.fetched_now();
        if inner.live.lock().forget_metadata(bound, fetched) {
            let me = self.clone();
            inner.host.tasks.spawn(Box::pin(async move { me.remove_unused().await }));
        }
    }
}
