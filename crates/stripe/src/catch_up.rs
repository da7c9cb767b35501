//! Brings a store that was away up to date before it is used: gives it the seals, maps and
//! deletions that it missed.
//!
//! A store with an old seal would take fragments of a writer that was declared dead, and show
//! segments that recovery has discarded. A quorum of stores has the seals and maps that are in
//! force, so any quorum knows them.

use crate::health::StoreState;
use crate::mark::{MARK_LOG, epoch_of};
use crate::{Stripe, StripeError};
use std::collections::BTreeMap;
use storage::api::{Seal, StorageError};
use types::LogId;

/// Of each log the newest seal of which a store was told that a quorum has it.
pub(crate) fn newest_told<'a>(seals: impl IntoIterator<Item = &'a Seal>) -> BTreeMap<LogId, Seal> {
    let mut newest: BTreeMap<LogId, Seal> = BTreeMap::new();
    for seal in seals.into_iter().filter(|seal| seal.is_told()) {
        let known = newest.entry(seal.log).or_insert_with(|| seal.clone());
        if seal.epoch > known.epoch {
            *known = seal.clone();
        }
        // `has_lost` is about the store that gave this seal, not about the seal.
        known.has_lost = false;
    }
    newest
}

/// The seals in force, by the answers of a quorum. A quorum is told of a seal before a writer
/// begins, so any quorum of answers has it. Other seals are under way, or come from an opener that
/// died half way: they say which epochs are given away, and no more.
pub(crate) fn in_force_by(answers: &[(usize, Vec<Seal>)]) -> BTreeMap<LogId, Seal> {
    newest_told(answers.iter().flat_map(|(_, seals)| seals))
}

/// The seals in force that a store with these does not have.
fn lacking(has: &[Seal], newest: &BTreeMap<LogId, Seal>) -> Vec<Seal> {
    let has = newest_told(has);
    let lacks = |seal: &&Seal| has.get(&seal.log).is_none_or(|old| old.epoch < seal.epoch);
    newest.values().filter(lacks).cloned().collect()
}

impl Stripe {
    /// Gives a store the seals that it lacks. `had` are those that it had a moment ago.
    pub(crate) async fn replay_seals(
        &self,
        at: usize,
        had: &[Seal],
        newest: &BTreeMap<LogId, Seal>,
    ) -> Result<(), StorageError> {
        if lacking(had, newest).is_empty() {
            return Ok(());
        }
        let is_new = self.is_new(at).await?;
        self.give_lacking(at, newest, is_new).await
    }

    /// Gives a store the seals that it lacks. They say that it has lost what was written under
    /// them, if it is new, or if they name it as one that had them.
    async fn give_lacking(&self, at: usize, newest: &BTreeMap<LogId, Seal>, is_new: bool) -> Result<(), StorageError> {
        // Asked after it was known to be new or not. If another one gave it maps, it had given it
        // seals before.
        let has = self.ask(at, |s| s.seals()).await?;
        for seal in lacking(&has, newest) {
            let is_set_back = seal.held_by.contains(&self.stores[at].id) && epoch_of(seal.log, &has) < seal.epoch;
            // A new store says by the seals of the logs themselves what it lacks.
            let has_lost = if is_new { seal.log != MARK_LOG } else { is_set_back };
            let seal = seal.shown_by(has_lost);
            self.ask(at, |s| s.seal(seal)).await?;
        }
        Ok(())
    }

    /// True if a store was made in place of a lost one, and is not up to date yet: it has no maps,
    /// and others do.
    async fn is_new(&self, at: usize) -> Result<bool, StorageError> {
        if self.health.lock().is_new(at) {
            return Ok(true);
        }
        if self.ask(at, |s| s.maps()).await?.epoch > 0 {
            return Ok(false);
        }
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
        let newest = in_force_by(&seals);
        for (at, had) in &seals {
            // One that does not take them gets no maps before it has them.
            if let Err(error) = self.replay_seals(*at, had, &newest).await {
                let store = self.stores[*at].id;
                tracing::warn!(%store, %error, "store did not take the seals that it had missed");
                match self.is_new(*at).await {
                    Ok(true) => self.note_new(store),
                    // It is noted as absent if it does not answer.
                    Ok(false) => self.mark_bad(*at, StoreState::Failing, "did not take the seals that it had missed"),
                    Err(_) => {}
                }
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
        let Ok(is_new) = self.is_new(at).await else { return false };
        let Ok(seals) = self.ask_quorum(|s| s.seals()).await else { return false };
        let Ok(maps) = self.ask_quorum(|s| s.maps()).await else { return false };
        let newest = in_force_by(&seals);
        let newest_maps = maps.into_iter().map(|(_, maps)| maps).max_by_key(|maps| maps.epoch).unwrap_or_default();
        let owed = self.health.lock().take_owed(at);
        let all = async {
            // The maps say who may use the store, so they come first, but for a new one: that it
            // has none says that it is new.
            if !is_new {
                self.ask(at, |s| s.put_maps(newest_maps.clone())).await?;
            }
            self.give_lacking(at, &newest, is_new).await?;
            if is_new {
                self.ask(at, |s| s.put_maps(newest_maps)).await?;
            }
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
