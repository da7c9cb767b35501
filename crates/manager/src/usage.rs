//! Live bytes per segment, as one manager counts them: the s-file record (ARCHITECTURE.md, "Manager").
//!
//! Exact: every byte that becomes reachable is added once, every byte that stops being reachable is subtracted once, with the true
//! old address. A segment without live bytes is absent.

use crate::api::SegmentUsage;
use std::collections::BTreeMap;
use types::codec::{DecodeError, Put, Reader};
use types::{BlockAddr, SegmentId};

/// Live bytes per segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    live_bytes: BTreeMap<SegmentId, u64>,
}

impl Usage {
    /// These bytes are reachable now.
    pub fn add(&mut self, addr: BlockAddr) {
        if addr.len > 0 {
            *self.live_bytes.entry(addr.segment).or_insert(0) += u64::from(addr.len);
        }
    }

    /// These bytes are not reachable any more.
    pub fn sub(&mut self, addr: BlockAddr) {
        let len = u64::from(addr.len);
        match self.live_bytes.get_mut(&addr.segment) {
            Some(live) if *live > len => *live -= len,
            Some(live) if *live == len => {
                self.live_bytes.remove(&addr.segment);
            }
            _ if len == 0 => {}
            // Never freed too early: a wrong count is kept high, and fsck tells.
            found => {
                let counted = found.map_or(0, |live| *live);
                debug_assert!(false, "{addr:?} freed, but only {counted} bytes of its segment are counted");
                tracing::error!(segment = %addr.segment, counted, freed = len, "utilisation is off; run fsck");
            }
        }
    }

    /// Live bytes of one segment.
    pub fn of(&self, segment: SegmentId) -> u64 {
        self.live_bytes.get(&segment).copied().unwrap_or(0)
    }

    /// All segments with live bytes, in order.
    pub fn iter(&self) -> impl Iterator<Item = SegmentUsage> + '_ {
        self.live_bytes.iter().map(|(&segment, &live_bytes)| SegmentUsage { segment, live_bytes })
    }

    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.live_bytes.len() as u32);
        for (segment, live_bytes) in &self.live_bytes {
            segment.encode(out);
            out.put_u64(*live_bytes);
        }
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = r.count(SegmentId::ENCODED_LEN + 8, "usage entries")?;
        let mut live_bytes = BTreeMap::new();
        for _ in 0..count {
            let (segment, live) = (SegmentId::decode(r)?, r.u64("live bytes")?);
            if live == 0 || live_bytes.insert(segment, live).is_some() {
                return Err(DecodeError::Invalid("live bytes"));
            }
        }
        Ok(Usage { live_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use types::LogId;

    fn addr(seq: u64, len: u32) -> BlockAddr {
        BlockAddr { segment: SegmentId { log: LogId::new(3), epoch: 1, seq }, offset: 0, len }
    }

    proptest! {
        #[test]
        fn prop_counts_what_was_added_and_not_yet_taken_away(
            adds in prop::collection::vec((1u64..5, 0u32..1000), 0..40), keep in prop::collection::vec(any::<bool>(), 40),
        ) {
            let mut usage = Usage::default();
            let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
            for &(seq, len) in &adds {
                usage.add(addr(seq, len));
            }
            for (&(seq, len), &keep) in adds.iter().zip(&keep) {
                if keep {
                    *sums.entry(seq).or_insert(0) += u64::from(len);
                } else {
                    usage.sub(addr(seq, len));
                }
            }
            sums.retain(|_, live| *live > 0);
            let got: BTreeMap<u64, u64> = usage.iter().map(|u| (u.segment.seq, u.live_bytes)).collect();
            prop_assert_eq!(got, sums);
            let mut bytes = Vec::new();
            usage.encode(&mut bytes);
            prop_assert_eq!(Usage::decode(&mut Reader::new(&bytes)).unwrap(), usage);
        }
    }
}
