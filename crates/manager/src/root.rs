//! The root record: the end of a checkpoint, and where recovery begins (docs/disk-format-manager.md).
//!
//! It holds everything of a manager that has no record of its own: the position in each log, the piece table, the reserves
//! of index numbers, the utilisation, the orphans. If that is longer than a segment, it is cut into parts that are written before it.

use crate::frontier::Reserves;
use crate::imap::Imap;
use crate::record::RecordKey;
use crate::usage::Usage;
use std::collections::{BTreeMap, BTreeSet};
use types::codec::{DecodeError, Put, Reader};
use types::{BlockAddr, FileId, LogId, ManagerId};

/// What a root says.
#[derive(Clone, Debug)]
pub struct Root {
    /// The manager whose root this is.
    pub manager: ManagerId,
    /// Bytes per block of all its files.
    pub block_size: u32,
    /// Files under its control.
    pub file_count: u64,
    /// Per client or cleaner log: the last seq that is contained.
    pub positions: BTreeMap<LogId, u64>,
    /// Where allocation goes on after a restart.
    pub reserves: Reserves,
    /// Files with nlink 0.
    pub orphans: BTreeSet<FileId>,
    /// The piece table; pieces are not in memory.
    pub imap: Imap,
    /// Live bytes of the logs of clients and cleaners.
    pub data_usage: Usage,
    /// Live bytes of the manager's own log, but those of the root itself.
    pub own_usage: Usage,
}

impl Default for Root {
    fn default() -> Self {
        Root {
            manager: ManagerId::new(0),
            block_size: 0,
            file_count: 0,
            positions: BTreeMap::new(),
            reserves: Reserves::default(),
            orphans: BTreeSet::new(),
            imap: Imap::default(),
            data_usage: Usage::default(),
            own_usage: Usage::default(),
        }
    }
}

impl Root {
    /// The encoding of what the root says, to be stored in a root record or in its parts.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u16(self.manager.raw());
        out.put_u32(self.block_size);
        out.put_u64(self.file_count);
        out.put_u32(self.positions.len() as u32);
        for (log, seq) in &self.positions {
            out.put_u32(log.raw());
            out.put_u64(*seq);
        }
        self.reserves.encode(&mut out);
        out.put_u32(self.orphans.len() as u32);
        for file in &self.orphans {
            out.put_u64(file.raw());
        }
        self.imap.encode_table(&mut out);
        self.data_usage.encode(&mut out);
        self.own_usage.encode(&mut out);
        out
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        let (manager, block_size) = (ManagerId::new(r.u16("root manager")?), r.u32("root block size")?);
        let file_count = r.u64("root file count")?;
        let mut positions = BTreeMap::new();
        for _ in 0..r.count(12, "positions")? {
            positions.insert(LogId::new(r.u32("position log")?), r.u64("position seq")?);
        }
        let reserves = Reserves::decode(&mut r)?;
        let mut orphans = BTreeSet::new();
        for _ in 0..r.count(8, "orphans")? {
            orphans.insert(FileId::new(r.u64("orphan")?));
        }
        let imap = Imap::decode_table(&mut r)?;
        let (data_usage, own_usage) = (Usage::decode(&mut r)?, Usage::decode(&mut r)?);
        if !r.is_empty() {
            return Err(DecodeError::Invalid("root length"));
        }
        Ok(Root { manager, block_size, file_count, positions, reserves, orphans, imap, data_usage, own_usage })
    }
}

/// What a root record holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RootRecord {
    /// All of it.
    Whole(Vec<u8>),
    /// The addresses of its parts, in order.
    Parts(Vec<BlockAddr>),
}

impl RootRecord {
    /// The record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        RecordKey::Root.begin(&mut out);
        match self {
            RootRecord::Whole(body) => {
                out.put_u8(0);
                out.put_blob(body);
            }
            RootRecord::Parts(parts) => {
                out.put_u8(1);
                out.put_u32(parts.len() as u32);
                for part in parts {
                    part.encode(&mut out);
                }
            }
        }
        out
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        RecordKey::Root.check(&mut r)?;
        let record = match r.u8("root form")? {
            0 => RootRecord::Whole(r.blob("root")?.to_vec()),
            1 => {
                let count = r.count(BlockAddr::ENCODED_LEN, "root parts")?;
                RootRecord::Parts((0..count).map(|_| BlockAddr::decode(&mut r)).collect::<Result<_, _>>()?)
            }
            _ => return Err(DecodeError::Invalid("root form")),
        };
        if !r.is_empty() {
            return Err(DecodeError::Invalid("root record length"));
        }
        Ok(record)
    }
}

/// The record of one part of a root.
pub fn encode_part(part: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 16);
    RecordKey::RootPart(part).begin(&mut out);
    out.put_u64(part);
    out.put_blob(bytes);
    out
}

/// Reads part number `part` of a root.
pub fn decode_part(bytes: &[u8], part: u64) -> Result<&[u8], DecodeError> {
    let mut r = Reader::new(bytes);
    RecordKey::RootPart(part).check(&mut r)?;
    if r.u64("root part number")? != part {
        return Err(DecodeError::Invalid("root part number"));
    }
    let body = r.blob("root part")?;
    match r.is_empty() {
        true => Ok(body),
        false => Err(DecodeError::Invalid("root part length")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imap::Piece;
    use proptest::prelude::*;
    use std::sync::Arc;
    use types::SegmentId;

    fn addr(seq: u64, len: u32) -> BlockAddr {
        BlockAddr { segment: SegmentId { log: LogId::new(9), epoch: 2, seq }, offset: 8, len }
    }

    fn sample() -> Root {
        let mut root = Root { manager: ManagerId::new(3), block_size: 65536, file_count: 17, ..Root::default() };
        root.positions.insert(LogId::new(4), 99);
        root.orphans.insert(FileId::new(5000));
        root.imap.replace(12, addr(4, 100), Arc::new(Piece::default()));
        root.data_usage.add(addr(7, 1000));
        root.own_usage.add(addr(4, 100));
        root
    }

    #[test]
    fn a_root_round_trips_whole_and_in_parts() {
        let bytes = sample().encode();
        let again = Root::decode(&bytes).unwrap();
        assert_eq!(again.encode(), bytes);
        assert_eq!((again.manager, again.file_count, again.block_size), (ManagerId::new(3), 17, 65536));
        assert_eq!(again.positions, BTreeMap::from([(LogId::new(4), 99)]));
        assert_eq!(again.imap.home(12), Some(addr(4, 100)));
        for record in [RootRecord::Whole(bytes.clone()), RootRecord::Parts(vec![addr(1, 5), addr(2, 6)])] {
            assert_eq!(RootRecord::decode(&record.encode()).unwrap(), record);
        }
        assert_eq!(decode_part(&encode_part(3, &bytes), 3).unwrap(), bytes);
        assert!(decode_part(&encode_part(3, &bytes), 2).is_err());
    }

    proptest! {
        #[test]
        fn prop_rotten_roots_never_panic(noise in prop::collection::vec(any::<u8>(), 0..200), at: prop::sample::Index, flip: u8) {
            let _ = (Root::decode(&noise), RootRecord::decode(&noise), decode_part(&noise, 0).map(<[u8]>::len));
            let mut bytes = sample().encode();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let _ = Root::decode(&bytes);
        }
    }
}
