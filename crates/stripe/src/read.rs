//! Reads payload bytes from the store that has the fragment. If that is not possible, rebuilds them
//! from `k` other fragments.

use crate::layout::{LACKING_TIME, SegmentInfo};
use crate::stripe::{Purpose, Whom};
use crate::{Stripe, StripeError};
use bytes::{Bytes, BytesMut};
use host::join_all;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use storage::api::StorageError;
use striped_log::segment::rebuild_range;
use types::{FragmentId, SegmentId};

/// Why a part of a fragment could be neither read nor rebuilt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Failed {
    /// A store that may have a needed fragment does not answer.
    OutOfReach,
    /// All stores that may have a needed fragment answered, and too few good fragments are there.
    Gone,
}

impl Stripe {
    /// Bytes `range` of a segment's payload, verified. They are not copied if one fragment has them
    /// all and can be read.
    pub async fn read(&self, segment: SegmentId, range: Range<u32>) -> Result<Bytes, StripeError> {
        self.read_from(Whom::Everybody, segment, range).await
    }

    /// The same, from these stores. An error says less if not everybody was asked.
    pub async fn read_from(&self, whom: Whom, segment: SegmentId, range: Range<u32>) -> Result<Bytes, StripeError> {
        self.read_for(segment, range, (whom, Purpose::Program)).await
    }

    pub(crate) async fn read_for(
        &self,
        segment: SegmentId,
        range: Range<u32>,
        asked: (Whom, Purpose),
    ) -> Result<Bytes, StripeError> {
        let cached = self.layouts.lock().get(segment);
        if let Some(info) = cached.filter(|info| !self.is_outdated(info))
            && let Ok(bytes) = self.read_by(segment, &info, range.clone(), asked).await?
        {
            return Ok(bytes);
        }
        // The layout was not cached, or the segment was put again elsewhere since.
        let info = self.locate(asked.0, segment).await?;
        match self.read_located(segment, &info, range.clone(), asked).await {
            Err(StripeError::NotEnoughStores) if asked.0 == Whom::Everybody && !info.unknown.is_empty() => {
                // Those that did not answer soon may have what the others lack.
                match self.describe_from(&self.everyone(), segment).await.best(self.fs) {
                    Some(layout) => self.read_located(segment, &layout.info, range, asked).await,
                    None => Err(StripeError::NotEnoughStores),
                }
            }
            read => read,
        }
    }

    /// True if a store that has not shown its fragment may do so now: it answers by now, or was
    /// asked a while ago.
    fn is_outdated(&self, info: &SegmentInfo) -> bool {
        let is_old = || self.host.clock.now() >= info.asked_at + LACKING_TIME;
        let may_show = |index: &u8| !self.is_absent(info, *index) && (info.unknown.contains(index) || is_old());
        info.unseen.iter().any(may_show)
    }

    /// The same, by a given layout.
    pub(crate) async fn read_located(
        &self,
        segment: SegmentId,
        info: &SegmentInfo,
        range: Range<u32>,
        asked: (Whom, Purpose),
    ) -> Result<Bytes, StripeError> {
        match self.read_by(segment, info, range, asked).await? {
            Ok(bytes) => Ok(bytes),
            Err(Failed::OutOfReach) => Err(StripeError::NotEnoughStores),
            Err(Failed::Gone) => Err(StripeError::Damaged(segment)),
        }
    }

    /// The segment's delta section.
    pub async fn deltas(&self, segment: SegmentId) -> Result<Bytes, StripeError> {
        let info = self.info(segment).await?;
        self.read(segment, info.delta_offset..info.geometry.payload_len).await
    }

    /// Reads by a given layout. The outer error is a fault of the caller, the inner one of the
    /// stores.
    async fn read_by(
        &self,
        segment: SegmentId,
        info: &SegmentInfo,
        range: Range<u32>,
        asked: (Whom, Purpose),
    ) -> Result<Result<Bytes, Failed>, StripeError> {
        let geometry = &info.geometry;
        if range.start > range.end || range.end > geometry.payload_len {
            return Err(StripeError::BadRequest("range beyond the payload"));
        }
        let parts = (0..geometry.k).filter_map(|index| {
            let held = geometry.payload_range(index);
            let (from, to) = (range.start.max(held.start), range.end.min(held.end));
            (from < to).then(|| self.read_part(segment, info, index, from - held.start..to - held.start, asked))
        });
        let mut parts = join_all(parts.collect()).await;
        if parts.len() == 1 {
            return Ok(parts.remove(0));
        }
        let mut all = BytesMut::with_capacity(range.len());
        for part in parts {
            match part {
                Ok(part) => all.extend_from_slice(&part),
                Err(failed) => return Ok(Err(failed)),
            }
        }
        Ok(Ok(all.freeze()))
    }

    /// Bytes `range` of one data fragment. Tries first without stores that hang or are absent. Then
    /// asks all stores, if everybody is to be asked.
    async fn read_part(
        &self,
        segment: SegmentId,
        info: &SegmentInfo,
        index: u8,
        range: Range<u32>,
        (last, purpose): (Whom, Purpose),
    ) -> Result<Bytes, Failed> {
        for whom in [Whom::WhoAnswers, Whom::Everybody] {
            let owner_is_last = self.is_absent(info, index);
            let mut failed = Failed::Gone;
            for from_owner in [!owner_is_last, owner_is_last] {
                let read = match from_owner {
                    true => self.read_fragment(segment, info, index, range.clone(), (whom, purpose)).await,
                    false => self.rebuild_part(segment, info, index, range.clone(), (whom, purpose)).await,
                };
                match read {
                    Ok(bytes) => {
                        self.rebuilt_count.fetch_add(u64::from(!from_owner), Relaxed);
                        return Ok(bytes);
                    }
                    Err(Failed::OutOfReach) => failed = Failed::OutOfReach,
                    Err(Failed::Gone) => {}
                }
            }
            if failed == Failed::Gone {
                return Err(Failed::Gone);
            }
            if whom == last {
                break;
            }
        }
        Err(Failed::OutOfReach)
    }

    /// Rebuilds bytes `range` of one data fragment from the same columns of `k` others.
    async fn rebuild_part(
        &self,
        segment: SegmentId,
        info: &SegmentInfo,
        wanted: u8,
        range: Range<u32>,
        whom: (Whom, Purpose),
    ) -> Result<Bytes, Failed> {
        let geometry = &info.geometry;
        let others = (0..geometry.width()).filter(|&index| index != wanted);
        let columns = geometry.columns(&range);
        // A short data fragment that ends before the columns has zeros there. Its store need not be
        // asked.
        let (known, askable): (Vec<u8>, Vec<u8>) = others.partition(|&index| geometry.clip(index, &columns).is_empty());
        let (absent, present): (Vec<u8>, Vec<u8>) = askable.into_iter().partition(|&index| self.is_absent(info, index));
        let mut candidates: VecDeque<u8> = present.into_iter().chain(absent).collect();
        let needed = usize::from(geometry.k).saturating_sub(known.len());
        let mut have: Vec<(u8, Bytes)> = Vec::new();
        let mut failed = Failed::Gone;
        while have.len() < needed {
            let missing = needed - have.len();
            if candidates.len() < missing {
                return Err(failed);
            }
            let batch: Vec<u8> = candidates.drain(..missing).collect();
            let reads = batch.iter().map(|&i| self.read_fragment(segment, info, i, geometry.clip(i, &columns), whom));
            for (index, piece) in batch.iter().zip(join_all(reads.collect()).await) {
                match piece {
                    Ok(piece) => have.push((*index, piece)),
                    Err(Failed::OutOfReach) => failed = Failed::OutOfReach,
                    Err(Failed::Gone) => {}
                }
            }
        }
        rebuild_range(geometry, wanted, range, &have).map_err(|_| failed)
    }

    /// Bytes `range` of one fragment, from the store that has it.
    async fn read_fragment(
        &self,
        segment: SegmentId,
        info: &SegmentInfo,
        index: u8,
        range: Range<u32>,
        (whom, purpose): (Whom, Purpose),
    ) -> Result<Bytes, Failed> {
        let id = FragmentId { segment, index };
        let at = info.geometry.members.get(usize::from(index)).and_then(|&store| self.place(store));
        // A member may no longer be among the file system's stores.
        let Some(at) = at else { return Err(Failed::OutOfReach) };
        if info.unknown.contains(&index) {
            return Err(Failed::OutOfReach);
        }
        if info.unseen.contains(&index) {
            return Err(Failed::Gone);
        }
        let (len, attempt) = (range.len(), info.attempt);
        let answer = match whom {
            Whom::WhoAnswers if self.is_absent(info, index) => Err(StorageError::Unavailable),
            whom => match purpose {
                Purpose::Program => self.ask_whom(at, whom, |s| s.read(id, attempt, range)).await,
                Purpose::Upkeep => self.ask_whom(at, whom, |s| s.read_behind(id, attempt, range)).await,
            },
        };
        match answer {
            Ok(bytes) if bytes.len() == len => Ok(bytes),
            Ok(_) | Err(StorageError::Damaged(_) | StorageError::Disk(_)) => {
                self.note_damaged(at, id);
                Err(Failed::Gone)
            }
            Err(StorageError::Unavailable) => Err(Failed::OutOfReach),
            Err(_) => Err(Failed::Gone),
        }
    }

    /// True if the fragment's store did not answer when last asked, or not soon.
    fn is_absent(&self, info: &SegmentInfo, index: u8) -> bool {
        let at = info.geometry.members.get(usize::from(index)).and_then(|&store| self.place(store));
        at.is_none_or(|at| !self.answers_soon(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fault, Rig};
    use proptest::prelude::*;
    use striped_log::geometry::Geometry;

    #[test]
    fn read_within_one_fragment_is_not_copied() {
        let rig = Rig::new(1, 5, 1);
        let stripe = rig.stripe();
        let segment = rig.segment(1, 1 << 20);
        rig.run(stripe.put(&segment)).unwrap();
        let read = rig.run(stripe.read(segment.id, 70_000..80_000)).unwrap();
        assert_eq!(read.as_ptr(), segment.payload[70_000..].as_ptr(), "the fake store keeps slices of the payload");
    }

    #[test]
    fn damage_is_read_around_and_counted_once() {
        let rig = Rig::new(2, 5, 1);
        let stripe = rig.stripe();
        let segment = rig.segment(1, 1 << 20);
        rig.run(stripe.put(&segment)).unwrap();
        assert_eq!(rig.stores[2].damage(segment.id), 1);
        for _ in 0..3 {
            assert_eq!(rig.run(stripe.read(segment.id, 0..1 << 20)).unwrap(), segment.payload);
        }
        let counts: Vec<u64> = rig.run(stripe.status()).iter().map(|s| s.damaged_count).collect();
        let parity = stripe.place(rig.run(stripe.info(segment.id)).unwrap().geometry.members[4]).unwrap();
        assert_eq!(counts.iter().sum::<u64>(), u64::from(parity != 2));

        for store in &rig.stores {
            store.damage(segment.id);
        }
        assert_eq!(rig.run(stripe.read(segment.id, 0..10)), Err(StripeError::Damaged(segment.id)));
    }

    #[test]
    fn what_is_out_of_reach_is_not_called_gone() {
        let rig = Rig::new(3, 5, 1);
        let stripe = rig.stripe();
        let segment = rig.segment(1, 1 << 20);
        rig.run(stripe.put(&segment)).unwrap();
        rig.stores[..2].iter().for_each(|s| s.set(Fault::Silent));
        assert_eq!(rig.run(rig.stripe().read(segment.id, 0..1 << 20)), Err(StripeError::NotEnoughStores));
        assert_eq!(rig.run(stripe.read(segment.id, 0..1 << 20)), Err(StripeError::NotEnoughStores));
        rig.stores[1].set(Fault::None);
        assert_eq!(rig.run(stripe.read(segment.id, 0..1 << 20)).unwrap(), segment.payload);
        let never = rig.segment(2, 0).id;
        assert_eq!(rig.run(stripe.read(never, 0..0)), Err(StripeError::SegmentNotFound(never)));
    }

    /// A dead writer's fragments came late, of an attempt whose number an opener had used for
    /// another geometry. A reader took them for the opener's, and got wrong bytes.
    #[test]
    fn regression_fragments_of_two_geometries_with_one_attempt_number_are_not_mixed() {
        for is_away in [false, true] {
            let rig = Rig::new(5, 3, 1);
            let (stripe, reader) = (rig.stripe(), rig.stripe());
            let (segment, of_opener, of_writer) = rig.two_geometries(&stripe);
            let put = |geometry: &Geometry, index: usize| rig.put_fragment(&stripe, &segment, geometry, 1, index);
            put(&of_opener, 0);
            put(&of_opener, 2);
            if is_away {
                rig.stores[stripe.place(of_opener.members[1]).unwrap()].set(Fault::Down);
            }
            let read = || rig.run(reader.read(segment.id, 0..of_opener.payload_len)).unwrap() == segment.payload;
            assert!(read());
            rig.heal();
            put(&of_writer, 1);
            for _ in 0..3 {
                assert!(read(), "a store was away: {is_away}");
                rig.sim.run_for(2 * reader.options.probe_interval);
            }
            let layout = reader.layouts.lock().get(segment.id);
            assert!(layout.is_some_and(|info| info.unknown.is_empty()), "the store is asked when it is back");
        }
    }

    #[test]
    fn layout_that_changed_is_asked_for_again() {
        let rig = Rig::new(4, 5, 1);
        let (writer, reader) = (rig.stripe(), rig.stripe());
        let segment = rig.segment(1, 300_000);
        rig.run(writer.put(&segment)).unwrap();
        assert_eq!(rig.run(reader.read(segment.id, 0..300_000)).unwrap(), segment.payload);
        rig.run(writer.delete(vec![segment.id]));
        rig.run(writer.put_from(&segment, 1)).unwrap();
        assert_eq!(rig.run(reader.read(segment.id, 0..300_000)).unwrap(), segment.payload);
        assert_eq!(rig.run(reader.info(segment.id)).unwrap().attempt, 1);
    }

    #[test]
    fn regression_nobody_waits_long_for_stores_that_hang() {
        for m in [1, 2] {
            let rig = Rig::new(6, 6, m);
            let (stripe, fresh) = (rig.stripe(), rig.stripe());
            let segment = rig.segment(1, 2 << 20);
            rig.run(stripe.put(&segment)).unwrap();
            rig.stores[..usize::from(m)].iter().for_each(|s| s.set(Fault::Silent));
            for stripe in [stripe, fresh] {
                let begin = rig.sim.now();
                assert_eq!(rig.run(stripe.read(segment.id, 0..2 << 20)).unwrap(), segment.payload);
                let took = rig.sim.now() - begin;
                assert!(took < stripe.options.put_timeout / 2, "{took:?}");
                let begin = rig.sim.now();
                assert_eq!(rig.run(stripe.read(segment.id, 0..2 << 20)).unwrap(), segment.payload);
                assert!(rig.sim.now() - begin < stripe.options.read_patience(), "one reader waits for all");
                rig.sim.run_for(stripe.options.put_timeout);
                assert_eq!(stripe.health.lock().up().len(), 6 - usize::from(m), "who hangs is found out all the same");
                let begin = rig.sim.now();
                assert_eq!(rig.run(stripe.read(segment.id, 0..2 << 20)).unwrap(), segment.payload);
                assert!(rig.sim.now() - begin < stripe.options.read_patience(), "and not asked again");
            }
        }
    }

    /// It waited until its patience was over.
    #[test]
    fn regression_a_read_does_not_wait_for_a_store_that_is_given_up_meanwhile() {
        let rig = Rig::new(8, 4, 1);
        let stripe = rig.stripe();
        let segment = rig.segment(1, 2 << 20);
        rig.run(stripe.put(&segment)).unwrap();
        rig.stores[0].set(Fault::Silent);
        let read = rig.client().run({
            let stripe = stripe.clone();
            async move { stripe.read(segment.id, 0..2 << 20).await }
        });
        rig.sim.run_for(stripe.options.read_patience() / 2);
        stripe.note_gone([stripe.stores[0].id].into_iter().collect());
        let begin = rig.sim.now();
        assert_eq!(rig.run(read), Ok(Ok(segment.payload)));
        let took = rig.sim.now() - begin;
        assert!(took < stripe.options.read_patience() / 4, "{took:?}");
    }

    #[test]
    fn store_that_refuses_puts_is_still_read_from() {
        let rig = Rig::new(5, 2, 1);
        let stripe = rig.stripe();
        let (first, second) = (rig.segment(1, 100), rig.segment(2, 100));
        rig.run(stripe.put(&first)).unwrap();
        rig.stores.iter().for_each(|s| s.set(Fault::ReadOnly));
        assert_eq!(rig.run(stripe.put(&second)), Err(StripeError::NotEnoughStores));
        let reads = |at: usize| rig.stores[at].contents.lock().read_count;
        let before = reads(0) + reads(1);
        assert_eq!(rig.run(stripe.read(first.id, 0..100)).unwrap(), first.payload);
        assert_eq!(reads(0) + reads(1), before + 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn prop_any_range_reads_back_without_any_m_stores(
            seed: u64,
            n in 2u16..8,
            m in 1u8..3,
            len in 0u32..700_000,
            cuts in proptest::collection::vec((0u32..=1000, 0u32..=1000), 4),
            lost in proptest::collection::vec((0usize..8, 0u8..4), 2),
        ) {
            prop_assume!(n > u16::from(m));
            let rig = Rig::new(seed, n, m);
            let stripe = rig.stripe();
            let segment = rig.segment(1 + seed % 100, len as usize);
            rig.run(stripe.put(&segment)).unwrap();
            for &(store, how) in &lost[..usize::from(m)] {
                let store = &rig.stores[store % rig.stores.len()];
                match how {
                    0 => store.wipe(),
                    1 => store.set(Fault::Silent),
                    2 => store.set(Fault::Down),
                    _ => drop(store.damage(segment.id)),
                }
            }
            for stripe in [stripe, rig.stripe()] {
                for &(a, b) in &cuts {
                    let at = |x: u32| (u64::from(len) * u64::from(x) / 1000) as u32;
                    let range = at(a.min(b))..at(a.max(b));
                    let read = rig.run(stripe.read(segment.id, range.clone())).unwrap();
                    prop_assert_eq!(&read[..], &segment.payload[range.start as usize..range.end as usize]);
                }
                prop_assert_eq!(&rig.run(stripe.deltas(segment.id)).unwrap()[..], segment.deltas());
                let beyond = rig.run(stripe.read(segment.id, 0..len + 1));
                prop_assert_eq!(beyond, Err(StripeError::BadRequest("range beyond the payload")));
            }
        }
    }
}
