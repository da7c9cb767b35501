//! Where a segment's fragments are.
//!
//! There is no table of places: every fragment's header describes its whole stripe. A reader asks
//! the stores and caches the answer; if fragments were lacking, for [`LACKING_TIME`]. A cached
//! layout can be out of date, because the segment was put again or deleted. It is never wrong about
//! the payload, which is the same in all attempts. If a read by it fails, the reader asks the
//! stores again.
//!
//! A writer that died, and an opener that puts its segment again, may use one attempt number for
//! two geometries, and stores may get the former's fragments late. So a reader asks a store for no
//! fragment that this store has not shown.

use crate::{Stripe, StripeError, Whom};
use bytes::Bytes;
use host::join_all;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use striped_log::fragment::FragmentHeader;
use striped_log::geometry::Geometry;
use striped_log::segment::Segment;
use types::{FsUuid, SegmentId, StoreId};

/// Most layouts in the cache, some 100 bytes each.
const LAYOUTS_MAX: usize = 65_536;

/// How long a layout is used of which a store has not shown its fragment, but answers.
pub(crate) const LACKING_TIME: Duration = Duration::from_secs(10);

/// The description of a segment that any one of its fragments has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentInfo {
    /// The attempt to read from.
    pub attempt: u16,
    /// How that attempt is striped.
    pub geometry: Geometry,
    /// Where the delta section begins in the payload; it ends at `geometry.payload_len`.
    pub delta_offset: u32,
    /// The segment before it in the log, if any.
    pub previous: Option<SegmentId>,
    /// Its order among the segments of all logs; 0 if an older program wrote it.
    pub order: u64,
    /// Fragments that their stores have not shown. Such a store may have one of another geometry.
    pub(crate) unseen: BTreeSet<u8>,
    /// Those of the unseen ones whose stores did not answer.
    pub(crate) unknown: BTreeSet<u8>,
    /// When the stores were asked.
    pub(crate) asked_at: Duration,
}

impl SegmentInfo {
    /// The description in the header of a fragment, for an attempt of which all fragments are
    /// there.
    pub(crate) fn of(header: &FragmentHeader) -> Self {
        SegmentInfo {
            attempt: header.attempt,
            geometry: header.geometry.clone(),
            delta_offset: header.delta_offset,
            previous: header.previous,
            order: header.order,
            unseen: BTreeSet::new(),
            unknown: BTreeSet::new(),
            asked_at: Duration::ZERO,
        }
    }

    /// The segment with this layout and payload.
    pub(crate) fn segment(&self, id: SegmentId, payload: Bytes) -> Segment {
        let SegmentInfo { previous, order, delta_offset, .. } = *self;
        Segment { id, previous, order, payload, delta_offset }
    }
}

/// A bounded cache of layouts by segment. The oldest entry leaves first.
#[derive(Default)]
pub(crate) struct LayoutCache {
    layouts: BTreeMap<SegmentId, Arc<SegmentInfo>>,
    /// Every cached segment once, and perhaps some that were removed since.
    order: VecDeque<SegmentId>,
}

impl LayoutCache {
    pub(crate) fn get(&self, segment: SegmentId) -> Option<Arc<SegmentInfo>> {
        self.layouts.get(&segment).cloned()
    }

    pub(crate) fn insert(&mut self, segment: SegmentId, info: Arc<SegmentInfo>) {
        if self.layouts.insert(segment, info).is_none() {
            self.order.push_back(segment);
        }
        while self.order.len() > LAYOUTS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.layouts.remove(&oldest);
            }
        }
    }

    pub(crate) fn remove(&mut self, segment: SegmentId) {
        self.layouts.remove(&segment);
    }
}

/// The fragments of one segment, as the stores that answered have them.
pub(crate) struct Described {
    /// Headers, each with the store it is on.
    pub(crate) found: Vec<(StoreId, FragmentHeader)>,
    /// Stores that answered.
    pub(crate) answered: BTreeSet<StoreId>,
}

/// A readable attempt and the fragments of it that are there.
pub(crate) struct Layout {
    pub(crate) info: Arc<SegmentInfo>,
    pub(crate) present: BTreeSet<u8>,
    /// The fragments in `present` whose store has another attempt at the same fragment too.
    pub(crate) shadowing: BTreeSet<u8>,
}

impl Layout {
    /// The fragments that are not there.
    pub(crate) fn missing(&self) -> BTreeSet<u8> {
        (0..self.info.geometry.width()).filter(|index| !self.present.contains(index)).collect()
    }

    /// The bytes that they take on stores.
    pub(crate) fn missing_bytes(&self) -> u64 {
        let bytes = |index| u64::from(storage::footprint(self.info.geometry.data_len(index)));
        self.missing().into_iter().map(bytes).sum()
    }
}

impl Described {
    /// Adds a store's answer.
    fn add(&mut self, segment: SegmentId, store: StoreId, headers: Vec<FragmentHeader>) {
        self.answered.insert(store);
        let ours = headers.into_iter().filter(|h| h.id.segment == segment && h.check().is_ok());
        self.found.extend(ours.map(|h| (store, h)));
    }

    /// The attempt to read: a complete one if there is any, then the latest. `None` if no attempt
    /// has `k` fragments.
    pub(crate) fn best(&self, fs: FsUuid) -> Option<Layout> {
        // Attempts differ by number and geometry: two recoveries that did not see each other's
        // attempts may have used the same number.
        let mut attempts: BTreeMap<(u16, &Geometry), BTreeMap<u8, &FragmentHeader>> = BTreeMap::new();
        for (store, header) in &self.found {
            if header.fs == fs && header.member() == Some(*store) {
                attempts.entry((header.attempt, &header.geometry)).or_default().insert(header.id.index, header);
            }
        }
        let readable = attempts.into_iter().filter(|((_, g), present)| present.len() >= usize::from(g.k));
        let rank = |((attempt, g), present): &((u16, &Geometry), BTreeMap<u8, &FragmentHeader>)| {
            (present.len() == usize::from(g.width()), *attempt, present.len())
        };
        let (_, present) = readable.max_by_key(rank)?;
        let (_, header) = present.first_key_value()?;
        let shadows = |header: &&FragmentHeader| {
            let same = |(store, h): &&(StoreId, FragmentHeader)| h.id == header.id && header.member() == Some(*store);
            self.found.iter().filter(same).count() > 1
        };
        let mut info = SegmentInfo::of(header);
        info.unseen = (0..info.geometry.width()).filter(|index| !present.contains_key(index)).collect();
        let store = |index: &u8| info.geometry.members.get(usize::from(*index));
        let is_unknown = |index: &&u8| store(index).is_none_or(|store| !self.answered.contains(store));
        info.unknown = info.unseen.iter().filter(is_unknown).copied().collect();
        Some(Layout {
            info: Arc::new(info),
            shadowing: present.values().copied().filter(shadows).map(|h| h.id.index).collect(),
            present: present.keys().copied().collect(),
        })
    }

    /// True if the store of a fragment of `layout` has a fragment of another geometry in its place,
    /// and so refuses it.
    pub(crate) fn is_taken(&self, layout: &Layout, index: u8) -> bool {
        let SegmentInfo { attempt, geometry, .. } = &*layout.info;
        let store = geometry.members.get(usize::from(index));
        let is_other = |h: &FragmentHeader| (h.attempt, h.id.index) == (*attempt, index) && h.geometry != *geometry;
        self.found.iter().any(|(at, header)| Some(at) == store && is_other(header))
    }

    /// The highest attempt that has any fragment.
    pub(crate) fn attempt_max(&self) -> Option<u16> {
        self.found.iter().map(|(_, header)| header.attempt).max()
    }

    /// Why no attempt can be read. An acknowledged segment has `k + m` fragments. If it is missing
    /// at more than `m` stores, it was deleted or is lost for good. (A store that missed the
    /// deletion still has its fragment.)
    fn verdict(&self, segment: SegmentId, quorum: usize) -> StripeError {
        if self.answered.len() < quorum {
            return StripeError::NotEnoughStores;
        }
        let has = |store: &StoreId| self.found.iter().any(|(s, _)| s == store);
        let out_of_reach = self.found.iter().any(|(_, header)| {
            let missing = header.geometry.members.iter().filter(|s| self.answered.contains(s) && !has(s)).count();
            missing <= usize::from(header.geometry.m)
        });
        if out_of_reach { StripeError::NotEnoughStores } else { StripeError::SegmentNotFound(segment) }
    }
}

impl Stripe {
    /// Asks the stores for all headers of a segment. Asks absent stores only if the segment cannot
    /// be read with the answers of the others.
    pub(crate) async fn describe(&self, segment: SegmentId) -> Described {
        let (present, absent) = self.present_and_absent();
        let mut described = Described { found: Vec::new(), answered: BTreeSet::new() };
        for whom in [present, absent] {
            let Described { found, answered } = self.describe_from(&whom, segment).await;
            described.found.extend(found);
            described.answered.extend(answered);
            if described.best(self.fs).is_some() {
                break;
            }
        }
        described
    }

    /// Asks these stores for all headers of a segment.
    pub(crate) async fn describe_from(&self, whom: &[usize], segment: SegmentId) -> Described {
        let mut described = Described { found: Vec::new(), answered: BTreeSet::new() };
        for (at, answer) in self.ask_each(whom, |s| s.describe(segment)).await {
            if let Ok(headers) = answer {
                described.add(segment, self.stores[at].id, headers);
            }
        }
        described
    }

    /// Like [`describe`](Self::describe), for readers: does not wait for stores that hang, if the
    /// segment can be read without them, or not everybody is to be asked.
    pub(crate) async fn describe_briefly(&self, whom: Whom, segment: SegmentId) -> Described {
        let present: Vec<usize> = self.everyone().into_iter().filter(|&at| self.answers_soon(at)).collect();
        let mut described = Described { found: Vec::new(), answered: BTreeSet::new() };
        let patience = self.options.reader_patience();
        let asked = present.iter().map(|&at| self.ask_briefly(at, patience, |s| s.describe(segment)));
        for (&at, answer) in present.iter().zip(join_all(asked.collect()).await) {
            if let Some(Ok(headers)) = answer {
                described.add(segment, self.stores[at].id, headers);
            }
        }
        let is_enough = described.answered.len() == self.stores.len() || whom == Whom::WhoAnswers;
        match is_enough || described.best(self.fs).is_some() {
            true => described,
            false => self.describe(segment).await,
        }
    }

    /// Asks the stores for a segment's layout and caches it.
    pub(crate) async fn locate(&self, whom: Whom, segment: SegmentId) -> Result<Arc<SegmentInfo>, StripeError> {
        let described = self.describe_briefly(whom, segment).await;
        match described.best(self.fs) {
            Some(layout) => {
                let info = SegmentInfo { asked_at: self.host.clock.now(), ..(*layout.info).clone() };
                let info = Arc::new(info);
                self.layouts.lock().insert(segment, info.clone());
                Ok(info)
            }
            None => {
                self.layouts.lock().remove(segment);
                Err(described.verdict(segment, self.quorum()))
            }
        }
    }

    /// The description of a segment, from the cache or from the stores.
    pub async fn info(&self, segment: SegmentId) -> Result<SegmentInfo, StripeError> {
        self.info_from(Whom::Everybody, segment).await
    }

    /// The same, from these stores. An error says less if not everybody was asked.
    pub async fn info_from(&self, whom: Whom, segment: SegmentId) -> Result<SegmentInfo, StripeError> {
        let cached = self.layouts.lock().get(segment);
        match cached {
            Some(info) => Ok((*info).clone()),
            None => Ok((*self.locate(whom, segment).await?).clone()),
        }
    }
}
