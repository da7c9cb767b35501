//! Which stretches of segments are being fetched, so that no two readers fetch the same one.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use stripe::StripeError;
use tokio::sync::watch;
use types::SegmentId;

type Place = (SegmentId, u32);

/// How a fetch ends: with an error; or the sender is dropped, after success or when the fetch was
/// given up.
pub(crate) type Told = watch::Receiver<Option<StripeError>>;

/// The stretches of segments that are being fetched: begin, end, and a channel that tells how each
/// fetch ends.
#[derive(Default)]
pub(crate) struct UnderWay(pub(crate) Mutex<BTreeMap<Place, (u32, Told)>>);

/// A stretch that the holder fetches. When it is dropped, waiting readers go on.
pub(crate) struct Mine<'a> {
    all: &'a UnderWay,
    at: Place,
    pub(crate) tell: watch::Sender<Option<StripeError>>,
}

impl Drop for Mine<'_> {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.at);
    }
}

impl UnderWay {
    /// Claims a stretch. If an overlapping one is being fetched, returns that one, and a channel
    /// that tells how it ends.
    pub(crate) fn claim(&self, segment: SegmentId, range: &Range<u32>) -> Result<Mine<'_>, (Range<u32>, Told)> {
        let mut all = self.0.lock();
        let before = all.range(..(segment, range.end)).next_back();
        if let Some(((at, start), (end, told))) = before
            && *at == segment
            && *end > range.start
        {
            return Err((*start..*end, told.clone()));
        }
        let (tell, told) = watch::channel(None);
        all.insert((segment, range.start), (range.end, told));
        Ok(Mine { all: self, at: (segment, range.start), tell })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::LogId;

    #[test]
    fn what_overlaps_a_fetch_waits_for_its_end_and_the_rest_does_not() {
        let under_way = UnderWay::default();
        let segment = |seq| SegmentId { log: LogId::new(1), epoch: 1, seq };
        let is_free = |seq, range: Range<u32>| under_way.claim(segment(seq), &range).is_ok();
        let first = under_way.claim(segment(1), &(100..200)).ok();
        let second = under_way.claim(segment(1), &(300..400)).ok();
        assert!(first.is_some() && second.is_some());
        for overlapping in [100..200, 0..101, 199..300, 120..130, 0..1000, 350..360] {
            assert!(!is_free(1, overlapping.clone()), "{overlapping:?}");
        }
        for apart in [0..100, 200..300, 400..500] {
            assert!(is_free(1, apart.clone()), "{apart:?}");
        }
        assert!(is_free(2, 100..200) && is_free(0, 100..200));
        let told = under_way.claim(segment(1), &(150..250)).err().map(|(other, told)| {
            assert_eq!(other, 100..200);
            told
        });
        assert!(told.as_ref().is_some_and(|told| told.has_changed().is_ok()));
        drop(first);
        assert!(told.is_some_and(|told| told.has_changed().is_err()), "the end is told");
        assert!(is_free(1, 100..200) && !is_free(1, 300..301));
        let told = under_way.claim(segment(1), &(300..400)).err().map(|(_, told)| told);
        if let Some(mine) = second {
            mine.tell.send_replace(Some(StripeError::NotEnoughStores));
        }
        assert_eq!(told.and_then(|told| *told.borrow()), Some(StripeError::NotEnoughStores), "an error is told");
    }
}
