//! Pages as bytes (docs/disk-format-manager.md).

use super::{Page, PageLink};
use crate::record::{RecordKey, Table};
use std::fmt::Debug;
use std::sync::Arc;
use types::codec::{DecodeError, Put, Reader};
use types::{BlockAddr, FileId, LogId, SegmentId};

/// The key of a table, which the table is sorted by.
pub trait TreeKey: Copy + Ord + Debug + Send + Sync + 'static {
    /// The key as a number, in the same order.
    fn wide(self) -> u128;
    /// The key with this number, if there is one.
    fn narrow(wide: u128) -> Option<Self>;
}

/// The value of a row.
pub trait Value: Copy + Eq + Debug + Send + Sync + 'static {
    /// Appends the encoding.
    fn encode(&self, out: &mut Vec<u8>);
    /// Reads what [`encode`](Self::encode) wrote.
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

impl TreeKey for FileId {
    fn wide(self) -> u128 {
        self.raw().into()
    }
    fn narrow(wide: u128) -> Option<Self> {
        u64::try_from(wide).ok().map(FileId::new)
    }
}

impl TreeKey for SegmentId {
    fn wide(self) -> u128 {
        u128::from(self.log.raw()) << 96 | u128::from(self.epoch) << 64 | u128::from(self.seq)
    }
    fn narrow(wide: u128) -> Option<Self> {
        Some(SegmentId { log: LogId::new((wide >> 96) as u32), epoch: (wide >> 64) as u32, seq: wide as u64 })
    }
}

impl Value for () {
    fn encode(&self, _: &mut Vec<u8>) {}
    fn decode(_: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

/// Live bytes, never 0.
impl Value for u64 {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_number(*self);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match r.number("live bytes")? {
            0 => Err(DecodeError::Invalid("live bytes")),
            live => Ok(live),
        }
    }
}

/// The address of a record. No record is empty.
impl Value for BlockAddr {
    fn encode(&self, out: &mut Vec<u8>) {
        BlockAddr::encode(self, out);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let addr = BlockAddr::decode(r)?;
        match addr.len {
            0 => Err(DecodeError::Invalid("record length")),
            _ => Ok(addr),
        }
    }
}

impl<K: TreeKey, V: Value> Page<K, V> {
    pub(super) fn len(&self) -> usize {
        match self {
            Page::Leaf(rows) => rows.len(),
            Page::Inner(links) => links.len(),
        }
    }

    pub(super) fn first(&self) -> Option<K> {
        match self {
            Page::Leaf(rows) => rows.first().map(|row| row.0),
            Page::Inner(links) => links.first().map(|link| link.first),
        }
    }

    /// Appends the count and the rows. All links must have homes.
    pub(super) fn encode_rows(&self, out: &mut Vec<u8>) {
        out.put_u32(self.len() as u32);
        let mut before = 0;
        match self {
            Page::Leaf(rows) => {
                for (key, value) in rows {
                    before = put_key(*key, before, out);
                    value.encode(out);
                }
            }
            Page::Inner(links) => {
                for link in links {
                    before = put_key(link.first, before, out);
                    match link.home {
                        Some(home) => home.encode(out),
                        None => unreachable!("pages are written before those that link to them"),
                    }
                }
            }
        }
    }

    /// Reads what [`encode_rows`](Self::encode_rows) wrote for a page of this level.
    pub(super) fn decode_rows(r: &mut Reader<'_>, level: u8) -> Result<Self, DecodeError> {
        let count = r.count(2, "page rows")?;
        let mut before = None;
        let mut key = |r: &mut Reader<'_>| {
            let key = take_key(r, before.unwrap_or(0))?;
            match before.replace(key).is_some_and(|before| before >= key) {
                true => Err(DecodeError::Invalid("page key")),
                false => K::narrow(key).ok_or(DecodeError::Invalid("page key")),
            }
        };
        match level {
            0 => Ok(Page::Leaf((0..count).map(|_| Ok((key(r)?, V::decode(r)?))).collect::<Result<_, DecodeError>>()?)),
            _ => {
                let mut link =
                    || Ok(PageLink { first: key(r)?, home: Some(<BlockAddr as Value>::decode(r)?), page: None });
                Ok(Page::Inner((0..count).map(|_| link()).collect::<Result<_, DecodeError>>()?))
            }
        }
    }

    /// Reads the record of a page.
    pub(super) fn decode(record: &[u8], table: Table, level: u8) -> Result<Self, DecodeError> {
        let mut r = Reader::new(record);
        RecordKey::Page { table, level, first: 0 }.check(&mut r)?;
        let page = Self::decode_rows(&mut r, level)?;
        match r.is_empty() {
            true => Ok(page),
            false => Err(DecodeError::Invalid("page length")),
        }
    }
}

/// Decodes a record as a page of a table, and encodes it again. For checks of the format.
pub fn page_again(record: &[u8], table: Table, level: u8) -> Result<Vec<u8>, DecodeError> {
    fn again<K: TreeKey, V: Value>(record: &[u8], table: Table, level: u8) -> Result<Vec<u8>, DecodeError> {
        let page = Page::<K, V>::decode(record, table, level)?;
        let first = page.first().ok_or(DecodeError::Invalid("page rows"))?;
        let link = PageLink { first, home: None, page: Some(Arc::new(page)) };
        Ok(link.encode(table, level).1)
    }
    match table {
        Table::Imap => again::<FileId, BlockAddr>(record, table, level),
        Table::DataUsage | Table::OwnUsage => again::<SegmentId, u64>(record, table, level),
        Table::Orphans => again::<FileId, ()>(record, table, level),
    }
}

/// Appends a key as its distance to the one before: first the distance of the upper halves, then
/// that of the lower halves. If the upper halves differ, the whole lower half follows instead.
fn put_key<K: TreeKey>(key: K, before: u128, out: &mut Vec<u8>) -> u128 {
    let key = key.wide();
    let upper = (key >> 64) as u64 - (before >> 64) as u64;
    out.put_number(upper);
    out.put_number(if upper == 0 { key as u64 - before as u64 } else { key as u64 });
    key
}

fn take_key(r: &mut Reader<'_>, before: u128) -> Result<u128, DecodeError> {
    let (upper, lower) = (r.number("page key")?, r.number("page key")?);
    let base = if upper == 0 { before as u64 } else { 0 };
    match (((before >> 64) as u64).checked_add(upper), base.checked_add(lower)) {
        (Some(upper), Some(lower)) => Ok(u128::from(upper) << 64 | u128::from(lower)),
        _ => Err(DecodeError::Invalid("page key")),
    }
}
