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

/// The newest seal of each log. If two have the same epoch, the one that counts more segments is
/// newer: after a recovery that died half way, the next one sees at least as much. Of two copies of
/// one seal (the same nonce), the one that names its holders is newer.
pub(crate) fn newest_seals<'a>(seals: impl IntoIterator<Item = &'a Seal>) -> BTreeMap<LogId, Seal> {
    let mut newest: BTreeMap<LogId, Seal> = BTreeMap::new();
    for seal in seals {
        let known = newest.entry(seal.log).or_insert_with(|| seal.clone());
        let rank = |seal: &Seal| (seal.epoch, seal.through, seal.nonce, seal.is_told());
        if rank(seal) > rank(known) {
            *known = seal.clone();
        }
        // `has_lost` is about the store that gave this seal, not about the seal.
        known.has_lost = false;
    }
    newest
}

/// How many stores show a seal.
pub(crate) fn holders(seal: &Seal, answers: &[(usize, Vec<Seal>)]) -> usize {
    let is_it = |other: &Seal| (other.log, other.epoch, other.nonce) == (seal.log, seal.epoch, seal.nonce);
    answers.iter().filter(|(_, seals)| seals.iter().any(is_it)).count()
}

/// The seals in force that a store with these does not have.
fn lacking(has: &[Seal], newest: &BTreeMap<LogId, Seal>) -> Vec<Seal> {
    let has = newest_seals(has);
    let lacks = |seal: &&Seal| has.get(&seal.log).is_none_or(|old| old.gives_way_to(seal));
    newest.values().filter(lacks).cloned().collect()
}

impl Stripe {
    /// The seals that are certainly in force, by the answers of a quorum: of each log the newest
    /// one that a quorum has. Other ones may be [stray](Self::may_be_stray).
    pub(crate) fn in_force(&self, answers: &[(usize, Vec<Seal>)]) -> BTreeMap<LogId, Seal> {
        let all = answers.iter().flat_map(|(_, seals)| seals);
        newest_seals(all.filter(|seal| seal.is_told() || holders(seal, answers) >= self.quorum()))
    }

    /// True if a seal may be **stray**: its opener died half way, and a new leader may have let the
    /// writer of `epoch` go on, since no store that was asked then had a later seal
    /// ([`let_go_on`](Self::let_go_on)). So only so few stores can have one that the others do
    /// without them.
    pub(crate) fn may_be_stray(&self, seal: &Seal, epoch: u32, answers: &[(usize, Vec<Seal>)]) -> bool {
        let is_later = |other: &Seal| other.log == seal.log && other.epoch > epoch;
        let with_later = answers.iter().filter(|(_, seals)| seals.iter().any(is_later)).count();
        let least_working = self.quorum().max(usize::from(self.options.parity) + 1);
        !seal.is_told() && with_later + least_working <= self.stores.len()
    }

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
        let newest = self.in_force(&seals);
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
        let newest = self.in_force(&seals);
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
