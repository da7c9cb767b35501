//! Marks points in time, so that a store that was set back is known by what it lacks.
//!
//! A store may be put back from a copy that was made while the file system ran. It has the seals of
//! all logs that are written, and yet lacks acknowledged segments. So there is a log without
//! segments, which is opened now and then: after checkpoints, and when the file system stops. Each
//! opening is a **mark**. The seal of the newest mark names the stores that have it. If one of them
//! shows an older seal, it is as it was before that mark, and proves nothing about any log. No mark
//! is taken while a store says that it has lost something.

use crate::{Stripe, StripeError};
use std::collections::BTreeSet;
use storage::api::Seal;
use types::{LogId, StoreId};

/// The log whose openings are marks.
pub const MARK_LOG: LogId = LogId::new(8);

impl Stripe {
    /// Has all stores that answer take a mark, unless one of them has lost fragments: it would pass
    /// for one that has everything. Returns whether they took it.
    ///
    /// # Errors
    /// As [`open_log`](Self::open_log). The mark before is still in force then.
    pub async fn mark(&self) -> Result<bool, StripeError> {
        let seals = self.ask_quorum(|s| s.seals()).await?;
        let marked = begun(MARK_LOG, seals.iter().flat_map(|(_, seals)| seals));
        let has_lost = |(at, seals): &(usize, Vec<Seal>)| {
            seals.iter().any(|seal| seal.has_lost) || is_set_back(self.stores[*at].id, seals, marked.as_ref())
        };
        if seals.iter().any(has_lost) {
            return Ok(false);
        }
        self.mark_these().await.map(|()| true)
    }

    /// Has all stores that answer take a mark: the operator says that they are the right ones.
    ///
    /// # Errors
    /// As [`open_log`](Self::open_log).
    pub async fn mark_these(&self) -> Result<(), StripeError> {
        self.open_log(MARK_LOG, 0).await.map(drop)
    }
}

/// True if a store was named by a mark, and has only an older one.
pub(crate) fn is_set_back(store: StoreId, seals: &[Seal], marked: Option<&(u32, BTreeSet<StoreId>)>) -> bool {
    marked.is_some_and(|(mark, holders)| holders.contains(&store) && epoch_of(MARK_LOG, seals) < *mark)
}

/// The latest epoch of a store's seals of a log; 0 if it has none, or has lost fragments since it
/// took one of them.
pub(crate) fn epoch_of(log: LogId, seals: &[Seal]) -> u32 {
    let of_log = || seals.iter().filter(|s| s.log == log);
    if of_log().any(|s| s.has_lost) { 0 } else { of_log().map(|s| s.epoch).max().unwrap_or(0) }
}

/// The newest seal of a log that names the stores that have it: its epoch, and these stores.
pub(crate) fn begun<'a>(log: LogId, seals: impl IntoIterator<Item = &'a Seal>) -> Option<(u32, BTreeSet<StoreId>)> {
    let told = seals.into_iter().filter(|s| s.log == log && s.is_told());
    told.max_by_key(|s| s.epoch).map(|s| (s.epoch, s.held_by.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Contents, LOG, Rig};
    use storage::api::Fence;

    /// A log of five stores with one parity fragment, and the copies of two of them that were made
    /// when it had half of its segments.
    fn with_old_copies(seed: u64, count: u64) -> (Rig, Vec<(usize, Contents)>) {
        let rig = Rig::new(seed, 5, 1);
        let (stripe, _, writer) = rig.writer();
        assert_eq!(rig.run(stripe.mark()), Ok(true));
        let write = |through: u64| {
            (0..count / 2).for_each(|_| writer.submit(rig.draft(writer.begin(), 200_000)));
            rig.run(writer.wait_committed(through)).unwrap();
        };
        write(count / 2);
        let copies = [0, 3].map(|at| (at, rig.stores[at].contents.lock().clone())).into();
        write(count / 2 * 2);
        (rig, copies)
    }

    fn put_in(rig: &Rig, copies: &[(usize, Contents)]) {
        copies.iter().for_each(|(at, copy)| *rig.stores[*at].contents.lock() = copy.clone());
    }

    /// Two stores were put back from copies that were made while the log was written. They had all
    /// seals, so acknowledged segments passed for torn ones, and opening the log deleted the rest
    /// of them.
    #[test]
    fn regression_stores_set_back_to_before_a_mark_are_known() {
        for (seed, count) in [(1, 4), (2, 8), (3, 40)] {
            let (rig, copies) = with_old_copies(seed, count);
            assert_eq!(rig.run(rig.stripe().mark()), Ok(true));
            rig.client().crash();
            let kept: Vec<_> = [0, 3].map(|at| (at, rig.stores[at].contents.lock().clone())).into();
            put_in(&rig, &copies);
            let needed = rig.run(rig.stripe().open_log(LOG, 1)).unwrap_err();
            assert!(
                matches!(needed, StripeError::StoresNeeded { stores, .. } if stores.iter().count() == 2),
                "{needed}"
            );
            assert_eq!(rig.run(rig.stripe().mark()), Ok(false), "no mark while it is not known what the stores have");
            put_in(&rig, &kept);
            assert_eq!(rig.run(rig.stripe().open_log(LOG, 1)).unwrap().segments.len() as u64, count);
        }
    }

    #[test]
    fn a_store_set_back_to_before_a_mark_is_made_up_for_and_says_what_it_lost() {
        let (rig, copies) = with_old_copies(4, 8);
        assert_eq!(rig.run(rig.stripe().mark()), Ok(true));
        rig.client().crash();
        put_in(&rig, &copies[..1]);
        let stripe = rig.stripe();
        assert_eq!(rig.run(stripe.open_log(LOG, 1)).unwrap().segments.len(), 8);
        let lost = |log| rig.stores[0].contents.lock().seals.newest(log).is_some_and(|seal| seal.has_lost);
        assert!(lost(MARK_LOG) && !lost(LOG), "the log was opened with all its segments");
        assert_eq!(rig.run(stripe.mark()), Ok(false), "it would pass for one that has everything");
        assert!(lost(MARK_LOG));
        assert_eq!(rig.run(rig.stripe().open_log(LOG, 1)).unwrap().segments.len(), 8);
        rig.run(stripe.clear_losses(stripe.return_count())).unwrap();
        assert!(!lost(MARK_LOG));
        assert_eq!(rig.run(stripe.mark()), Ok(true));
    }

    #[test]
    fn of_a_mark_that_was_not_told_it_is_not_known_who_has_it() {
        let told = Seal::new(MARK_LOG, Fence { epoch: 1, through: 0 }, 1).told([0, 1].map(StoreId::new).into());
        let untold = told.next(Fence { epoch: 2, through: 0 }, None, 2);
        assert_eq!(begun(MARK_LOG, [&untold, &told]), Some((1, told.held_by.clone())));
        let untold = [untold];
        assert_eq!((epoch_of(MARK_LOG, &untold), epoch_of(LOG, &untold)), (2, 0));
        assert_eq!(epoch_of(MARK_LOG, &untold.map(|seal| seal.shown_by(true))), 0);
    }
}
