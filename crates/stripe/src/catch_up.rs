//! Brings a store that was away up to date before it is used: gives it the seals, maps and
//! deletions that it missed.
//!
//! A store with an old seal would take fragments of a writer that was declared dead, and show
//! segments that recovery has discarded. A quorum of stores has the seals and maps that are in
//! force, so any quorum knows them.

use crate::health::StoreState;
use crate::{Stripe, StripeError};
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
    /// Gives a store the seals that it lacks. `has` are those that it has. One that has no maps was
    /// made in place of another one: the seals say that it has lost what was written under them.
    pub(crate) async fn replay_seals(
        &self,
        at: usize,
        has: &[Seal],
        newest: &BTreeMap<LogId, Seal>,
    ) -> Result<(), StorageError> {
        let has = newest_seals(has);
        let lacks = |seal: &&Seal| has.get(&seal.log).is_none_or(|old| old.gives_way_to(seal));
        let lacking: Vec<&Seal> = newest.values().filter(lacks).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let has_lost = self.ask(at, |s| s.maps()).await?.epoch == 0 && self.has_maps().await?;
        for seal in lacking {
            let seal = seal.clone().shown_by(has_lost);
            self.ask(at, |s| s.seal(seal)).await?;
        }
        Ok(())
    }

    /// True if the file system has maps.
    async fn has_maps(&self) -> Result<bool, StorageError> {
        let maps = self.ask_quorum(|s| s.maps()).await.map_err(|_| StorageError::Unavailable)?;
        Ok(maps.iter().any(|(_, maps)| maps.epoch > 0))
    }

    /// Gives all stores that answer the seals that they lack. Call it before
    /// [`put_maps`](Self::put_maps) if some were made anew: one that has maps passes for one that
    /// has lost nothing.
    ///
    /// # Errors
    /// `NotEnoughStores`.
    pub async fn give_seals(&self) -> Result<(), StripeError> {
        let seals = self.ask_quorum(|s| s.seals()).await?;
        let newest = newest_seals(seals.iter().flat_map(|(_, seals)| seals));
        for (at, has) in &seals {
            // One that does not take them was noted, and gets them when it comes back.
            if let Err(error) = self.replay_seals(*at, has, &newest).await {
                self.mark_bad(*at, StoreState::Failing, &error.to_string());
            }
        }
        Ok(())
    }

    /// Has the stores say no more that they have lost fragments, once all have everything: they
    /// were compared after `returns` [returns](Self::return_count), and what they lacked is
    /// restored.
    ///
    /// # Errors
    /// `NotEnoughStores`: one of them is out of service, or was since.
    pub async fn clear_losses(&self, returns: u64) -> Result<(), StripeError> {
        let failed = |_| StripeError::NotEnoughStores;
        for at in self.everyone() {
            let seals = self.ask(at, |s| s.seals()).await.map_err(failed)?;
            for seal in seals.into_iter().filter(|seal| seal.has_lost) {
                if !self.is_whole() || self.return_count() != returns {
                    return Err(StripeError::NotEnoughStores);
                }
                self.ask(at, |s| s.seal(seal.shown_by(false))).await.map_err(failed)?;
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
            // The seals first: a store without maps is known to be new.
            let has = self.ask(at, |s| s.seals()).await?;
            self.replay_seals(at, &has, &newest).await?;
            self.ask(at, |s| s.put_maps(newest_maps)).await?;
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
