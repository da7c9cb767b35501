//! Brings a store that was away up to date before it is used: gives it the seals, maps and
//! deletions that it missed.
//!
//! A store with an old seal would take fragments of a writer that was declared dead, and show
//! segments that recovery has discarded. A quorum of stores has the seals and maps that are in
//! force, so any quorum knows them.

use crate::Stripe;
use std::collections::BTreeMap;
use storage::api::{Seal, StorageError};
use types::LogId;

/// The newest seal of each log. If two have the same epoch, the one that counts more segments is
/// newer: after a recovery that died half way, the next one sees at least as much. Of two copies of
/// one seal (the same nonce), the one that names its holders is newer.
pub(crate) fn newest_seals<'a>(seals: impl IntoIterator<Item = &'a Seal>) -> BTreeMap<LogId, Seal> {
    let mut newest: BTreeMap<LogId, Seal> = BTreeMap::new();
    for seal in seals {
        let known = newest.entry(seal.log).or_insert_with(|| seal.clone());
        let rank = |seal: &Seal| (seal.epoch, seal.through, seal.nonce, !seal.held_by.is_empty());
        if rank(seal) > rank(known) {
            *known = seal.clone();
        }
        // `has_lost` is about the store that gave this seal, not about the seal.
        known.has_lost = false;
    }
    newest
}

impl Stripe {
    /// Gives a store the seals that it lacks. `has` are those that it has.
    pub(crate) async fn replay_seals(
        &self,
        at: usize,
        has: &[Seal],
        newest: &BTreeMap<LogId, Seal>,
    ) -> Result<(), StorageError> {
        let has = newest_seals(has);
        for seal in newest.values() {
            if has.get(&seal.log).is_none_or(|old| old.gives_way_to(seal)) {
                self.ask(at, |s| s.seal(seal.clone())).await?;
            }
        }
        Ok(())
    }

    /// Brings a store up to date. False if that failed, or if too few others answer to know what
    /// the store missed.
    pub(crate) async fn catch_up(&self, at: usize) -> bool {
        let Ok(seals) = self.ask_quorum(|s| s.seals()).await else { return false };
        let Ok(maps) = self.ask_quorum(|s| s.maps()).await else { return false };
        let newest = newest_seals(seals.iter().flat_map(|(_, seals)| seals));
        let newest_maps = maps.into_iter().map(|(_, maps)| maps).max_by_key(|maps| maps.epoch).unwrap_or_default();
        let owed = self.health.lock().take_owed(at);
        let all = async {
            // The maps first: they say who may use the store.
            self.ask(at, |s| s.put_maps(newest_maps)).await?;
            let has = self.ask(at, |s| s.seals()).await?;
            self.replay_seals(at, &has, &newest).await?;
            if !owed.is_empty() {
                self.ask(at, |s| s.delete(owed.clone())).await?;
            }
            Ok::<(), StorageError>(())
        };
        let done = all.await.is_ok();
        if !done {
            self.health.lock().owe(at, &owed);
        }
        done
    }
}
