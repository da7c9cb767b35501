//! Heads of snapshots and frames of records. Pure; any bytes may be decoded.
//!
//! ```text
//! head:  magic "STARRLOG" | version u16 | owner 4 | sequence u64 | generation u64 | body_len u64 | body CRC-32C u32 | zeroes
//!        | CRC-32C of the 508 bytes before u32
//! frame: len u32 | CRC-32C u32 of generation u64, offset u64, durable u64, len u32 and the record | durable u64 | record
//!        | zeroes up to a multiple of 8
//! ```
//!
//! A frame is valid only after the snapshot with its generation and only at its offset in the log.
//! `durable` is how far the log was durable when the frame was written. A frame before that
//! position that does not decode is damaged. One after it may be a write that a crash has torn.

use crate::checkpoint_pair::Owner;
use bytes::Bytes;
use types::codec::{DecodeError, Put, Reader};

/// The format that this program writes, and the only one that it reads.
pub const VERSION: u16 = 1;
/// Bytes of a frame before its record.
pub const FRAME_HEADER_LEN: usize = 16;
/// Frames begin at multiples of this many bytes, so that [`records`] need not look for one at every
/// byte.
pub const ALIGN: usize = 8;
/// Longest record in bytes. A longer one costs a snapshot. The bound also limits what a rotten
/// length can claim.
pub const RECORD_LEN_MAX: usize = 1 << 20;

/// The owner of a log: four bytes that name its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogOwner(pub [u8; 4]);

/// The head of a snapshot. The records that follow the snapshot carry its generation.
pub type LogHead = crate::checkpoint_pair::Head<LogOwner>;

impl Owner for LogOwner {
    const MAGIC: &'static [u8; 8] = b"STARRLOG";
    const VERSION: u16 = VERSION;
    const WHAT: &'static str = "snapshot";
    const HAS_GENERATION: bool = true;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut owner = [0; 4];
        owner.copy_from_slice(r.take(4, "owner")?);
        Ok(LogOwner(owner))
    }
}

/// Bytes of a record's frame.
pub fn frame_len(record_len: usize) -> usize {
    (FRAME_HEADER_LEN + record_len).next_multiple_of(ALIGN)
}

fn sum(generation: u64, offset: u64, durable: u64, record: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    for number in [generation, offset, durable] {
        digest.update(&number.to_le_bytes());
    }
    digest.update(&(record.len() as u32).to_le_bytes());
    digest.update(record);
    digest.finalize() as u32
}

/// Appends the frame of a record for `offset` of the log. The log is durable up to `durable`.
pub fn put_frame(out: &mut Vec<u8>, generation: u64, offset: u64, durable: u64, record: &[u8]) {
    out.put_u32(record.len() as u32);
    out.put_u32(sum(generation, offset, durable, record));
    out.put_u64(durable);
    out.extend_from_slice(record);
    out.resize(out.len().next_multiple_of(ALIGN), 0);
}

/// Where the record of the frame at `offset` of `log` is, if there is a whole frame of this
/// generation.
fn frame_at(log: &[u8], generation: u64, offset: usize) -> Option<std::ops::Range<usize>> {
    let r = &mut Reader::new(log.get(offset..)?);
    let (len, crc, durable) = (r.u32("length").ok()? as usize, r.u32("checksum").ok()?, r.u64("durable").ok()?);
    if len > RECORD_LEN_MAX {
        return None;
    }
    let record = r.take(len, "record").ok()?;
    let start = offset + FRAME_HEADER_LEN;
    (sum(generation, offset as u64, durable, record) == crc).then_some(start..start + len)
}

/// The records of a log that follow the snapshot of this generation. Fails if records that were
/// durable are damaged.
pub fn records(log: &Bytes, generation: u64) -> Result<Vec<Bytes>, DecodeError> {
    let (mut records, mut end) = (Vec::new(), 0);
    while let Some(place) = frame_at(log, generation, end) {
        end = place.end.next_multiple_of(ALIGN);
        records.push(log.slice(place));
    }
    // A frame that was written when the log was durable beyond `end` proves damage at `end`. Most
    // offsets do not even claim that, so only few checksums are computed.
    let claims = |offset: usize| {
        log.get(offset + 8..offset + 16).is_some_and(|bytes| {
            let durable = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
            durable > end as u64 && durable <= offset as u64
        })
    };
    let mut beyond = (end..log.len()).step_by(ALIGN).filter(|offset| claims(*offset));
    if beyond.any(|offset| frame_at(log, generation, offset).is_some()) {
        return Err(DecodeError::Checksum("record"));
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A log of groups of records, and the offset of each group.
    fn log_of(groups: &[Vec<Vec<u8>>]) -> (Vec<u8>, Vec<usize>) {
        let (mut log, mut starts) = (Vec::new(), Vec::new());
        for group in groups {
            let durable = log.len() as u64;
            starts.push(log.len());
            for record in group {
                let offset = log.len() as u64;
                put_frame(&mut log, 9, offset, durable, record);
            }
        }
        (log, starts)
    }

    proptest! {
        #[test]
        fn prop_what_was_durable_is_found_or_called_damaged(
            groups in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..4), 1..6),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
            more in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let (mut log, starts) = log_of(&groups);
            let all: Vec<Bytes> = groups.iter().flatten().map(|r| Bytes::from(r.clone())).collect();
            let last = *starts.last().unwrap();
            let before = groups[..groups.len() - 1].iter().map(Vec::len).sum::<usize>();
            prop_assert_eq!(records(&Bytes::from([&log[..], &more].concat()), 9), Ok(all.clone()));
            prop_assert_eq!(records(&Bytes::from(log.clone()), 8), Ok(vec![]));
            let at = at.index(log.len());
            log[at] ^= 1 << bit;
            match records(&log.into(), 9) {
                // The last group may be torn, and a change to padding has no effect.
                Ok(found) => {
                    prop_assert!(found.len() >= before && found[..] == all[..found.len()]);
                    prop_assert!(at >= last || found == all, "lost without a word");
                }
                Err(e) => prop_assert!(e == DecodeError::Checksum("record") && at < last),
            }
        }
    }
}
