//! Copies a store to another place while it is used.
//!
//! The copy goes in passes. Each pass lists the store and copies what is new since the pass before,
//! so passes become short while the store is used. The [last](StoreCopy::finish) one needs a store
//! that does not change: it also deletes what was deleted meanwhile, and takes over the seals and
//! the maps. What is equal then is shown by the counts of both.

use host::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use storage::api::{Seal, Storage, StorageError};
use striped_log::fragment::{Fragment, FragmentHeader};
use thiserror::Error;
use types::SegmentId;

/// Segments that are copied at the same time.
const AT_ONCE: usize = 8;
/// Segments deleted by one request.
const DELETED_AT_ONCE: usize = 1024;

/// Why a store was not copied. It is unchanged.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CopyError {
    /// The store failed.
    #[error("the store that moves: {0}")]
    From(StorageError),
    /// The new place failed.
    #[error("its new place: {0}")]
    To(StorageError),
    /// The new place keeps another seal of a log than it was given.
    #[error("its new place has another seal of a log: {0:?}")]
    OtherSeal(Seal),
    /// The copy is not complete, though nothing failed.
    #[error("its new place has {copied} fragments, and should have {wanted}")]
    Incomplete {
        /// Fragments at the new place.
        copied: u64,
        /// Fragments that should be there.
        wanted: u64,
    },
    /// The copy was stopped.
    #[error("it was stopped")]
    Stopped,
}

/// A copy that is under way.
pub(crate) struct StoreCopy {
    from: Arc<dyn Storage>,
    to: Arc<dyn Storage>,
    /// For each segment that was copied, the bytes that it took then.
    copied: BTreeMap<SegmentId, u64>,
    /// For each segment, how many of its fragments cannot be read. They stay behind; the other
    /// stores have the rest of the stripe.
    damaged: BTreeMap<SegmentId, u64>,
    stop: Arc<AtomicBool>,
}

impl StoreCopy {
    /// Copies from a store to an empty one, until `stop` is set.
    pub(crate) fn new(from: Arc<dyn Storage>, to: Arc<dyn Storage>, stop: Arc<AtomicBool>) -> StoreCopy {
        StoreCopy { from, to, copied: BTreeMap::new(), damaged: BTreeMap::new(), stop }
    }

    /// Fragments that could not be read.
    pub(crate) fn damaged_count(&self) -> u64 {
        self.damaged.values().sum()
    }

    /// One pass. Tells `progress` how many segments of all it has looked at. Returns how many it
    /// had to copy.
    pub(crate) async fn pass(&mut self, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<usize, CopyError> {
        let listed = self.from.segments().await.map_err(CopyError::From)?;
        let is_new = |(segment, bytes): &&(SegmentId, u64)| self.copied.get(segment) != Some(bytes);
        let new: Vec<(SegmentId, u64)> = listed.iter().filter(is_new).copied().collect();
        for (at, some) in new.chunks(AT_ONCE).enumerate() {
            if self.stop.load(SeqCst) {
                return Err(CopyError::Stopped);
            }
            progress(listed.len() - new.len() + at * AT_ONCE, listed.len());
            let copies = some.iter().map(|(segment, _)| self.segment(*segment)).collect();
            for ((segment, bytes), damaged) in some.iter().zip(join_all(copies).await) {
                self.copied.insert(*segment, *bytes);
                match damaged? {
                    0 => {}
                    count => *self.damaged.entry(*segment).or_default() += count,
                }
            }
        }
        Ok(new.len())
    }

    /// Copies what is missing of a segment. Returns how many of its fragments cannot be read.
    async fn segment(&self, segment: SegmentId) -> Result<u64, CopyError> {
        let headers = self.from.describe(segment).await.map_err(CopyError::From)?;
        let known = match self.copied.contains_key(&segment) {
            true => self.to.describe(segment).await.map_err(CopyError::To)?,
            false => Vec::new(),
        };
        let mut damaged = 0;
        for header in headers.into_iter().filter(|header| !known.contains(header)) {
            damaged += u64::from(!self.fragment(header).await?);
        }
        Ok(damaged)
    }

    /// Copies a fragment; false if it cannot be read.
    async fn fragment(&self, header: FragmentHeader) -> Result<bool, CopyError> {
        match self.from.read(header.id, header.attempt, 0..header.len).await {
            Ok(payload) => {
                self.to.put(Fragment { header, payload }).await.map_err(CopyError::To)?;
                Ok(true)
            }
            // It was deleted since it was listed. The last pass sees that.
            Err(StorageError::NotFound(_)) => Ok(true),
            Err(StorageError::Damaged(id)) => {
                tracing::warn!(fragment = %id, "a damaged fragment is not moved; maintenance restores it");
                Ok(false)
            }
            Err(error) => Err(CopyError::From(error)),
        }
    }

    /// The last pass, while nothing changes the store. Both are equal afterwards, but for damaged
    /// fragments.
    pub(crate) async fn finish(&mut self) -> Result<(), CopyError> {
        self.pass(&|_, _| ()).await?;
        let listed: BTreeMap<SegmentId, u64> =
            self.from.segments().await.map_err(CopyError::From)?.into_iter().collect();
        let gone: Vec<SegmentId> =
            self.copied.keys().filter(|segment| !listed.contains_key(segment)).copied().collect();
        for some in gone.chunks(DELETED_AT_ONCE) {
            self.to.delete(some.to_vec()).await.map_err(CopyError::To)?;
        }
        self.damaged.retain(|segment, _| listed.contains_key(segment));
        for seal in self.from.seals().await.map_err(CopyError::From)? {
            let kept = self.to.seal(seal.clone()).await.map_err(CopyError::To)?;
            if kept != seal {
                return Err(CopyError::OtherSeal(kept));
            }
        }
        let maps = self.from.maps().await.map_err(CopyError::From)?;
        self.to.put_maps(maps).await.map_err(CopyError::To)?;
        let wanted = self.from.status().await.map_err(CopyError::From)?.fragment_count;
        let copied = self.to.status().await.map_err(CopyError::To)?.fragment_count;
        let wanted = wanted.saturating_sub(self.damaged_count());
        match copied == wanted {
            true => Ok(()),
            false => Err(CopyError::Incomplete { copied, wanted }),
        }
    }
}
