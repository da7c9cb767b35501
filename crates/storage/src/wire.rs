//! The storage interface as bytes: requests and answers. Pure.
//!
//! Both travel in the messages of [`link::wire`]. The head of a request is the name of the store
//! that it is for (16 bytes of the file system, a u16), a u8 kind, and fields. The head of an
//! answer is a u8 kind and fields. The tail is a fragment's payload or the bytes that were read,
//! and is not copied; of other messages it is empty. All integers are little-endian.
//!
//! Each request names its store, since one node may have several, and since by now another store
//! may be at the same address, with segments of the same names. [`StoreRequest::Presence`] and
//! [`StoreRequest::Initialise`] may be for any store that is there, and then name
//! [`StoreName::NONE`].
//!
//! Decoders take any bytes: they fail, but do not panic, and they ask for no more memory than the
//! message has.

use crate::api::{Presence, Seal, StorageError, StoreIdentity, StoreStatus};
use crate::seal::SEAL_LEN_MIN;
use bytes::Bytes;
use host::DiskSpace;
use link::Message;
use std::ops::Range;
use std::time::Duration;
use striped_log::fragment::{FRAGMENT_LEN_MAX, Fragment, FragmentHeader, HEADER_LEN};
use types::codec::{DecodeError, Put, Reader};
use types::{FragmentId, FsUuid, LogId, Maps, SegmentId, StoreId};

/// Most headers in one answer to `list`, unless one seq alone has more.
pub const LIST_COUNT_MAX: u32 = 16 << 10;
/// Bytes of a store's name, which comes first in each request.
const NAME_LEN: usize = 18;
/// The kind of a request that puts a fragment.
const PUT: u8 = 1;
/// The same, as work that can wait.
const PUT_BEHIND: u8 = 16;

const _: () = assert!(FRAGMENT_LEN_MAX <= link::wire::TAIL_LEN_MAX, "a payload fits into a message");

/// The name of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreName {
    /// The file system.
    pub fs: FsUuid,
    /// The store in it.
    pub store: StoreId,
}

impl StoreName {
    /// The name in requests that are for no store.
    pub const NONE: StoreName = StoreName { fs: FsUuid([0; 16]), store: StoreId::new(0) };
}

/// A call of a method of [`Storage`](crate::api::Storage) or
/// [`RemoteStorage`](crate::api::RemoteStorage).
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields are the arguments of the methods")]
pub enum StoreRequest {
    Put(Fragment),
    Read {
        id: FragmentId,
        attempt: u16,
        range: Range<u32>,
    },
    Describe(SegmentId),
    List {
        log: LogId,
        from_seq: u64,
        count_max: u32,
    },
    Segments,
    Delete(Vec<SegmentId>),
    Seal(Seal),
    Seals,
    PutMaps(Maps),
    Maps,
    Verify(FragmentId),
    Status,
    Presence,
    Initialise(StoreIdentity),
    /// Asks whether the store is here.
    IsHere,
    PutBehind(Fragment),
    ReadBehind {
        id: FragmentId,
        attempt: u16,
        range: Range<u32>,
    },
    Rest,
}

/// The result of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreAnswer {
    /// Done, without a value.
    Done,
    /// Refused or failed.
    Refused(StorageError),
    /// The result of `read`.
    Bytes(Bytes),
    /// The result of `describe` and `list`.
    Headers(Vec<FragmentHeader>),
    /// The result of `segments`.
    Segments(Vec<(SegmentId, u64)>),
    /// The result of `seal`.
    Seal(Seal),
    /// The result of `seals`.
    Seals(Vec<Seal>),
    /// The result of `maps`.
    Maps(Maps),
    /// The result of `status`.
    Status(StoreStatus),
    /// The result of `presence`.
    Presence(Presence),
    /// The site refused, in words: `presence`, `initialise` or attaching.
    Not(String),
    /// The result of `rest`.
    Rest(Duration),
}

fn message(name: Option<StoreName>, kind: u8, tail: Bytes, fields: impl FnOnce(&mut Vec<u8>)) -> Message {
    let mut head = Vec::with_capacity(NAME_LEN + 16 + HEADER_LEN);
    if let Some(StoreName { fs, store }) = name {
        put_fs(&mut head, fs);
        head.put_u16(store.raw());
    }
    head.put_u8(kind);
    fields(&mut head);
    Message { head, tail }
}

fn put_id(out: &mut Vec<u8>, id: &FragmentId) {
    id.segment.encode(out);
    out.put_u8(id.index);
}

fn id(r: &mut Reader<'_>) -> Result<FragmentId, DecodeError> {
    Ok(FragmentId { segment: SegmentId::decode(r)?, index: r.u8("fragment index")? })
}

fn put_maps(out: &mut Vec<u8>, maps: &Maps) {
    out.put_u64(maps.epoch);
    out.put_blob(&maps.bytes);
}

fn maps(r: &mut Reader<'_>) -> Result<Maps, DecodeError> {
    Ok(Maps { epoch: r.u64("maps epoch")?, bytes: Bytes::copy_from_slice(r.blob("maps")?) })
}

fn put_list<T>(out: &mut Vec<u8>, list: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    out.put_u32(list.len() as u32);
    list.iter().for_each(|item| put(out, item));
}

fn list<T>(
    r: &mut Reader<'_>,
    each: usize,
    what: &'static str,
    item: impl Fn(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    (0..r.count(each, what)?).map(|_| item(r)).collect()
}

fn put_fs(out: &mut Vec<u8>, fs: FsUuid) {
    out.extend_from_slice(&fs.0);
}

fn fs(r: &mut Reader<'_>) -> Result<FsUuid, DecodeError> {
    let mut fs = [0; 16];
    fs.copy_from_slice(r.take(16, "file system")?);
    Ok(FsUuid(fs))
}

fn name(r: &mut Reader<'_>) -> Result<StoreName, DecodeError> {
    Ok(StoreName { fs: fs(r)?, store: StoreId::new(r.u16("store")?) })
}

fn put_identity(out: &mut Vec<u8>, identity: &StoreIdentity) {
    put_fs(out, identity.fs);
    out.put_u16(identity.store.raw());
    out.put_u64(identity.capacity_bytes);
}

fn identity(r: &mut Reader<'_>) -> Result<StoreIdentity, DecodeError> {
    Ok(StoreIdentity { fs: fs(r)?, store: StoreId::new(r.u16("store")?), capacity_bytes: r.u64("capacity")? })
}

/// Checks that the head was read to its end, and that the tail was used.
fn whole<T>(value: T, r: &Reader<'_>, tail: &Bytes) -> Result<T, DecodeError> {
    if r.is_empty() && tail.is_empty() { Ok(value) } else { Err(DecodeError::Invalid("message length")) }
}

impl StoreRequest {
    /// True if it reads or changes segments or seals.
    pub fn is_about_segments(&self) -> bool {
        match self {
            StoreRequest::Put(_)
            | StoreRequest::PutBehind(_)
            | StoreRequest::Read { .. }
            | StoreRequest::ReadBehind { .. }
            | StoreRequest::Describe(_)
            | StoreRequest::List { .. }
            | StoreRequest::Segments
            | StoreRequest::Delete(_)
            | StoreRequest::Seal(_)
            | StoreRequest::Verify(_) => true,
            StoreRequest::Seals
            | StoreRequest::PutMaps(_)
            | StoreRequest::Maps
            | StoreRequest::Status
            | StoreRequest::Rest
            | StoreRequest::Presence
            | StoreRequest::Initialise(_)
            | StoreRequest::IsHere => false,
        }
    }

    /// The message of this request to a store.
    pub fn encode(&self, to: StoreName) -> Message {
        let short = |kind, fields: &dyn Fn(&mut Vec<u8>)| message(Some(to), kind, Bytes::new(), fields);
        let put = |kind, fragment: &Fragment| {
            message(Some(to), kind, fragment.payload.clone(), |out| out.extend_from_slice(&fragment.header.encode()))
        };
        let read = |kind, id, attempt, range: &Range<u32>| {
            short(kind, &|out| {
                put_id(out, id);
                out.put_u16(attempt);
                out.put_u32(range.start);
                out.put_u32(range.end);
            })
        };
        match self {
            StoreRequest::Put(fragment) => put(PUT, fragment),
            StoreRequest::PutBehind(fragment) => put(PUT_BEHIND, fragment),
            StoreRequest::Read { id, attempt, range } => read(2, id, *attempt, range),
            StoreRequest::ReadBehind { id, attempt, range } => read(17, id, *attempt, range),
            StoreRequest::Rest => short(18, &|_| ()),
            StoreRequest::Describe(segment) => short(3, &|out| segment.encode(out)),
            StoreRequest::List { log, from_seq, count_max } => short(4, &|out| {
                out.put_u32(log.raw());
                out.put_u64(*from_seq);
                out.put_u32(*count_max);
            }),
            StoreRequest::Segments => short(5, &|_| ()),
            StoreRequest::Delete(segments) => short(6, &|out| put_list(out, segments, |out, s| s.encode(out))),
            StoreRequest::Seal(seal) => short(7, &|out| seal.encode(out)),
            StoreRequest::Seals => short(8, &|_| ()),
            StoreRequest::PutMaps(maps) => short(9, &|out| put_maps(out, maps)),
            StoreRequest::Maps => short(10, &|_| ()),
            StoreRequest::Verify(id) => short(11, &|out| put_id(out, id)),
            StoreRequest::Status => short(12, &|_| ()),
            StoreRequest::Presence => short(13, &|_| ()),
            StoreRequest::Initialise(identity) => short(14, &|out| put_identity(out, identity)),
            StoreRequest::IsHere => short(15, &|_| ()),
        }
    }

    /// The store that a request puts a fragment to; `None` for other requests.
    pub fn put_to(head: &[u8]) -> Option<StoreName> {
        let r = &mut Reader::new(head);
        let name = name(r).ok()?;
        matches!(r.u8("request kind"), Ok(PUT | PUT_BEHIND)).then_some(name)
    }

    /// Reads a message's head and tail. A fragment comes with its checksums compared.
    pub fn decode(head: &[u8], mut tail: Bytes) -> Result<(StoreName, StoreRequest), DecodeError> {
        let r = &mut Reader::new(head);
        let name = name(r)?;
        let request = match r.u8("request kind")? {
            kind @ (PUT | PUT_BEHIND) => {
                let header = FragmentHeader::decode(r.take(HEADER_LEN, "fragment header")?)?;
                let fragment = Fragment { header, payload: std::mem::take(&mut tail) };
                fragment.check()?;
                if kind == PUT { StoreRequest::Put(fragment) } else { StoreRequest::PutBehind(fragment) }
            }
            kind @ (2 | 17) => {
                let (id, attempt, range) = (id(r)?, r.u16("attempt")?, r.u32("range start")?..r.u32("range end")?);
                match kind {
                    2 => StoreRequest::Read { id, attempt, range },
                    _ => StoreRequest::ReadBehind { id, attempt, range },
                }
            }
            18 => StoreRequest::Rest,
            3 => StoreRequest::Describe(SegmentId::decode(r)?),
            4 => {
                let log = LogId::new(r.u32("log")?);
                StoreRequest::List { log, from_seq: r.u64("from seq")?, count_max: r.u32("count")? }
            }
            5 => StoreRequest::Segments,
            6 => StoreRequest::Delete(list(r, SegmentId::ENCODED_LEN, "segments", SegmentId::decode)?),
            7 => StoreRequest::Seal(Seal::decode(r)?),
            8 => StoreRequest::Seals,
            9 => StoreRequest::PutMaps(maps(r)?),
            10 => StoreRequest::Maps,
            11 => StoreRequest::Verify(id(r)?),
            12 => StoreRequest::Status,
            13 => StoreRequest::Presence,
            14 => StoreRequest::Initialise(identity(r)?),
            15 => StoreRequest::IsHere,
            _ => return Err(DecodeError::Invalid("request kind")),
        };
        whole((name, request), r, &tail)
    }
}

impl StoreAnswer {
    /// The message of this answer.
    pub fn encode(&self) -> Message {
        let short = |kind, fields: &dyn Fn(&mut Vec<u8>)| message(None, kind, Bytes::new(), fields);
        match self {
            StoreAnswer::Done => short(1, &|_| ()),
            StoreAnswer::Refused(error) => short(2, &|out| put_error(out, error)),
            StoreAnswer::Bytes(bytes) => message(None, 3, bytes.clone(), |_| ()),
            StoreAnswer::Headers(headers) => {
                short(4, &|out| put_list(out, headers, |out, h| out.extend_from_slice(&h.encode())))
            }
            StoreAnswer::Segments(segments) => short(5, &|out| {
                put_list(out, segments, |out, (segment, bytes)| {
                    segment.encode(out);
                    out.put_u64(*bytes);
                });
            }),
            StoreAnswer::Seal(seal) => short(6, &|out| seal.encode(out)),
            StoreAnswer::Seals(seals) => short(7, &|out| put_list(out, seals, |out, seal| seal.encode(out))),
            StoreAnswer::Maps(maps) => short(8, &|out| put_maps(out, maps)),
            StoreAnswer::Status(status) => short(9, &|out| {
                out.put_u16(status.id.raw());
                out.put_u64(status.capacity_bytes);
                out.put_u64(status.allocated_bytes);
                out.put_u64(status.used_bytes);
                out.put_u64(status.parity_bytes);
                out.put_u64(status.fragment_count);
                out.put_u8(status.writable.into());
                put_space(out, &status.disk);
            }),
            StoreAnswer::Presence(Presence::Store(identity)) => short(10, &|out| put_identity(out, identity)),
            StoreAnswer::Presence(Presence::Empty(space)) => short(11, &|out| put_space(out, space)),
            StoreAnswer::Not(text) => short(12, &|out| out.put_blob(text.as_bytes())),
            StoreAnswer::Rest(time) => short(13, &|out| out.put_u32(time.as_micros().try_into().unwrap_or(u32::MAX))),
        }
    }

    /// Reads a message's head and tail.
    pub fn decode(head: &[u8], mut tail: Bytes) -> Result<StoreAnswer, DecodeError> {
        let r = &mut Reader::new(head);
        let answer = match r.u8("answer kind")? {
            1 => StoreAnswer::Done,
            2 => StoreAnswer::Refused(error(r)?),
            3 => StoreAnswer::Bytes(std::mem::take(&mut tail)),
            4 => StoreAnswer::Headers(list(r, HEADER_LEN, "headers", |r| {
                FragmentHeader::decode(r.take(HEADER_LEN, "fragment header")?)
            })?),
            5 => StoreAnswer::Segments(list(r, SegmentId::ENCODED_LEN + 8, "segments", |r| {
                Ok((SegmentId::decode(r)?, r.u64("segment bytes")?))
            })?),
            6 => StoreAnswer::Seal(Seal::decode(r)?),
            7 => StoreAnswer::Seals(list(r, SEAL_LEN_MIN, "seals", Seal::decode)?),
            8 => StoreAnswer::Maps(maps(r)?),
            9 => StoreAnswer::Status(StoreStatus {
                id: StoreId::new(r.u16("store")?),
                capacity_bytes: r.u64("capacity")?,
                allocated_bytes: r.u64("allocated")?,
                used_bytes: r.u64("used")?,
                parity_bytes: r.u64("parity")?,
                fragment_count: r.u64("fragment count")?,
                writable: match r.u8("writable")? {
                    0 => false,
                    1 => true,
                    _ => return Err(DecodeError::Invalid("writable")),
                },
                disk: space(r)?,
            }),
            10 => StoreAnswer::Presence(Presence::Store(identity(r)?)),
            11 => StoreAnswer::Presence(Presence::Empty(space(r)?)),
            12 => StoreAnswer::Not(String::from_utf8_lossy(r.blob("refusal")?).into_owned()),
            13 => StoreAnswer::Rest(Duration::from_micros(r.u32("rest")?.into())),
            _ => return Err(DecodeError::Invalid("answer kind")),
        };
        whole(answer, r, &tail)
    }
}

fn put_space(out: &mut Vec<u8>, space: &DiskSpace) {
    out.put_u64(space.total_bytes);
    out.put_u64(space.free_bytes);
    out.put_u64(space.device);
}

fn space(r: &mut Reader) -> Result<DiskSpace, DecodeError> {
    let (total_bytes, free_bytes) = (r.u64("disk size")?, r.u64("free space")?);
    Ok(DiskSpace { total_bytes, free_bytes, device: r.u64("device")? })
}

fn put_error(out: &mut Vec<u8>, error: &StorageError) {
    match error {
        StorageError::NotFound(id) => {
            out.put_u8(1);
            put_id(out, id);
        }
        StorageError::Damaged(id) => {
            out.put_u8(2);
            put_id(out, id);
        }
        StorageError::Disk(text) => {
            out.put_u8(3);
            out.put_blob(text.as_bytes());
        }
        StorageError::Full => out.put_u8(4),
        StorageError::Sealed(log) => {
            out.put_u8(5);
            out.put_u32(log.raw());
        }
        StorageError::Unavailable => out.put_u8(6),
        // The wire does not carry the reason of a bad request.
        StorageError::BadRequest(_) => out.put_u8(7),
    }
}

fn error(r: &mut Reader<'_>) -> Result<StorageError, DecodeError> {
    Ok(match r.u8("error kind")? {
        1 => StorageError::NotFound(id(r)?),
        2 => StorageError::Damaged(id(r)?),
        3 => StorageError::Disk(String::from_utf8_lossy(r.blob("error text")?).into_owned()),
        4 => StorageError::Full,
        5 => StorageError::Sealed(LogId::new(r.u32("log")?)),
        6 => StorageError::Unavailable,
        7 => StorageError::BadRequest("refused by the store"),
        _ => return Err(DecodeError::Invalid("error kind")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Fence;
    use crate::testing::{fragment, segment};
    use proptest::prelude::*;

    const IDENTITY: StoreIdentity =
        StoreIdentity { fs: FsUuid([9; 16]), store: StoreId::new(3), capacity_bytes: 1 << 40 };

    fn seal() -> Seal {
        let fence = |epoch, through| Fence { epoch, through };
        let seal = Seal::new(LogId::new(3), fence(2, 1), 4).next(fence(3, 9), Some(2), 5);
        seal.told([1, 2].map(StoreId::new).into())
    }

    fn requests() -> Vec<StoreRequest> {
        let one = fragment(1, 2, 1, 70_000);
        let id = one.header.id;
        vec![
            StoreRequest::Put(one.clone()),
            StoreRequest::PutBehind(one),
            StoreRequest::Put(fragment(1, 3, 0, 0)),
            StoreRequest::Read { id, attempt: 3, range: 5..9 },
            StoreRequest::ReadBehind { id, attempt: 3, range: 5..9 },
            StoreRequest::Rest,
            StoreRequest::Describe(id.segment),
            StoreRequest::List { log: LogId::new(4), from_seq: 9, count_max: 100 },
            StoreRequest::Segments,
            StoreRequest::Delete(vec![id.segment, segment(9, 8, 7)]),
            StoreRequest::Seal(seal()),
            StoreRequest::Seals,
            StoreRequest::PutMaps(Maps { epoch: 8, bytes: Bytes::from_static(b"maps") }),
            StoreRequest::Maps,
            StoreRequest::Verify(id),
            StoreRequest::Status,
            StoreRequest::Presence,
            StoreRequest::Initialise(IDENTITY),
            StoreRequest::IsHere,
        ]
    }

    fn answers() -> Vec<StoreAnswer> {
        let header = fragment(1, 2, 1, 70_000).header;
        let errors = [
            StorageError::NotFound(header.id),
            StorageError::Damaged(header.id),
            StorageError::Disk("broken".into()),
            StorageError::Full,
            StorageError::Sealed(LogId::new(2)),
            StorageError::Unavailable,
            StorageError::BadRequest("refused by the store"),
        ];
        let space = DiskSpace { total_bytes: 9, free_bytes: 8, device: 7 };
        let status = StoreStatus {
            id: StoreId::new(3),
            capacity_bytes: 10,
            allocated_bytes: 9,
            used_bytes: 5,
            parity_bytes: 1,
            fragment_count: 2,
            writable: true,
            disk: space,
        };
        let mut answers: Vec<StoreAnswer> = errors.into_iter().map(StoreAnswer::Refused).collect();
        answers.extend([
            StoreAnswer::Done,
            StoreAnswer::Bytes(Bytes::from_static(b"bytes")),
            StoreAnswer::Headers(vec![header.clone(), header]),
            StoreAnswer::Segments(vec![(segment(1, 2, 3), 4096)]),
            StoreAnswer::Seal(seal()),
            StoreAnswer::Seals(vec![seal()]),
            StoreAnswer::Maps(Maps { epoch: 8, bytes: Bytes::from_static(b"maps") }),
            StoreAnswer::Status(status),
            StoreAnswer::Presence(Presence::Store(IDENTITY)),
            StoreAnswer::Presence(Presence::Empty(space)),
            StoreAnswer::Not("there is a store already".into()),
            StoreAnswer::Rest(Duration::from_micros(1_234_567)),
        ]);
        answers
    }

    const NAME: StoreName = StoreName { fs: IDENTITY.fs, store: IDENTITY.store };

    fn request_of(message: &Message) -> Result<(StoreName, StoreRequest), DecodeError> {
        StoreRequest::decode(&message.head, message.tail.clone())
    }

    fn answer_of(message: &Message) -> Result<StoreAnswer, DecodeError> {
        StoreAnswer::decode(&message.head, message.tail.clone())
    }

    #[test]
    fn everything_reads_back() {
        for request in requests() {
            let message = request.encode(NAME);
            assert!(message.fits());
            let put = matches!(request, StoreRequest::Put(_) | StoreRequest::PutBehind(_)).then_some(NAME);
            assert_eq!(StoreRequest::put_to(&message.head), put);
            assert_eq!(request_of(&message), Ok((NAME, request)));
        }
        for answer in answers() {
            assert_eq!(answer_of(&answer.encode()), Ok(answer));
        }
    }

    #[test]
    fn messages_cut_short_or_too_long_are_refused() {
        for request in requests() {
            let Message { head, tail } = request.encode(NAME);
            let cut = |len| StoreRequest::decode(&head[..len], tail.clone());
            assert!((0..head.len()).all(|len| cut(len).is_err()), "{request:?}");
            let longer = [&head[..], &[0]].concat();
            assert!(StoreRequest::decode(&longer, tail.clone()).is_err(), "{request:?}");
            let longer = Bytes::from([&tail[..], &[0]].concat());
            assert!(StoreRequest::decode(&head, longer).is_err(), "{request:?}");
        }
        let Message { head, tail } = requests()[0].encode(NAME);
        assert!(StoreRequest::decode(&head, tail.slice(1..)).is_err());
    }

    #[test]
    fn a_payload_that_was_changed_on_the_way_is_refused() {
        let Message { head, tail } = requests()[0].encode(NAME);
        let mut tail = tail.to_vec();
        tail[69_999] ^= 1;
        assert_eq!(StoreRequest::decode(&head, tail.into()), Err(DecodeError::Checksum("fragment payload")));
    }

    proptest! {
        #[test]
        fn prop_mutated_messages_never_panic(
            which in any::<prop::sample::Index>(),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut messages: Vec<_> = requests().iter().map(|request| request.encode(NAME)).collect();
            messages.extend(answers().iter().map(StoreAnswer::encode));
            let Message { mut head, tail } = which.get(&messages).clone();
            for (at, value) in changes {
                let at = at.index(head.len());
                head[at] = value;
            }
            // A value that decodes must encode, and decode to the same value again.
            if let Ok((name, request)) = StoreRequest::decode(&head, tail.clone()) {
                prop_assert_eq!(request_of(&request.encode(name)), Ok((name, request)));
            }
            if let Ok(answer) = StoreAnswer::decode(&head, tail) {
                prop_assert_eq!(answer_of(&answer.encode()), Ok(answer));
            }
        }
    }
}
