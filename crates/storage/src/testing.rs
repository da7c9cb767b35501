//! Fragments and a checkpoint for tests, and large stores for studies.

use crate::api::{Fence, Seal};
use crate::checkpoint::{Body, StoreHead};
use crate::files::{Newest, StoreFiles, StoreOpenError, WriteError};
use crate::index::{FragmentKey, Held};
use crate::packed::PackedHeader;
use crate::pages::{PageExtent, pages};
use bytes::Bytes;
use host::Disk;
use std::io;
use striped_log::fragment::{Fragment, FragmentHeader, Geometry, chunk_crcs};
use types::{FragmentId, FsUuid, LogId, Maps, SegmentId, StoreId};

/// The file system of all test fragments.
pub const FS: FsUuid = FsUuid([7; 16]);
/// The store that tests run.
pub const STORE: StoreId = StoreId::new(1);
/// The other member of every test stripe.
const OTHER: StoreId = StoreId::new(2);

/// A segment's name.
pub fn segment(log: u32, epoch: u32, seq: u64) -> SegmentId {
    SegmentId { log: LogId::new(log), epoch, seq }
}

/// Payload bytes that differ for every fragment and at every position, but not between attempts.
pub fn payload(id: FragmentId, len: u32) -> Bytes {
    let s = id.segment;
    let mut x = u64::from(s.log.raw()) << 40 ^ u64::from(s.epoch) << 32 ^ s.seq << 8 ^ u64::from(id.index);
    let mut out = Vec::with_capacity(len as usize + 8);
    while out.len() < len as usize {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&(x ^ x >> 31).to_le_bytes());
    }
    out.truncate(len as usize);
    out.into()
}

/// Fragment `index` of a 1+1 stripe, on [`STORE`].
pub fn fragment_of(segment: SegmentId, index: u8, attempt: u16, len: u32) -> Fragment {
    let id = FragmentId { segment, index };
    let payload = payload(id, len);
    let members = if index == 0 { vec![STORE, OTHER] } else { vec![OTHER, STORE] };
    let header = FragmentHeader {
        fs: FS,
        id,
        attempt,
        geometry: Geometry { k: 1, m: 1, fragment_len: len, payload_len: len, members },
        delta_offset: len / 2,
        previous: segment.seq.checked_sub(1).map(|seq| SegmentId { seq, ..segment }),
        order: segment.seq,
        chunk_crcs: chunk_crcs(&payload),
        len,
    };
    Fragment { header, payload }
}

/// Fragment `index` of segment `seq` in epoch 0 of a log, first attempt.
pub fn fragment(log: u32, seq: u64, index: u8, len: u32) -> Fragment {
    fragment_of(segment(log, 0, seq), index, 0, len)
}

/// A checkpoint's body with some values in every field.
pub fn body() -> Body {
    let mut body = Body {
        page_count: 2000,
        maps: Maps { epoch: 4, bytes: Bytes::from_static(b"maps") },
        reservation: vec![PageExtent { start: 1100, len: 1 }, PageExtent { start: 1200, len: 800 }],
        ..Body::default()
    };
    for log in [2, 5] {
        let log = LogId::new(log);
        let seal =
            Seal::new(log, Fence { epoch: 3, through: 70 }, 8).next(Fence { epoch: 4, through: 77 }, Some(71), 9);
        assert!(body.seals.take(seal.told([1, 3].map(StoreId::new).into())));
    }
    for (i, len) in [0, 100, 70_000, 1 << 20].into_iter().enumerate() {
        let header = fragment(1, i as u64, 1, len).header;
        let place = PageExtent { start: 300 * i as u32, len: pages(len) };
        let held = Held { place, header: PackedHeader::new(&header) };
        body.index.insert(FragmentKey::new(header.id, 0), held);
    }
    body
}

/// Adds fragments to the checkpoint of a store that is not open, as if they had been put there.
/// Their bytes are holes of the file, so this makes a store of any size in no time.
pub async fn list_fragments(
    disk: &dyn Disk,
    headers: impl Iterator<Item = FragmentHeader>,
) -> Result<(), crate::server::StoreOpenError> {
    let files = StoreFiles::open(disk).await?;
    let Newest { head, mut body, which, .. } = files.newest().await?;
    for header in headers {
        let place = PageExtent { start: body.page_count, len: pages(header.len) };
        body.page_count =
            place.start.checked_add(place.len).ok_or_else(|| StoreOpenError::damaged("too many pages"))?;
        let key = FragmentKey::new(header.id, header.attempt);
        body.index.insert(key, Held { place, header: PackedHeader::new(&header) });
    }
    files.fragments.set_len(PageExtent { start: 0, len: body.page_count }.byte_len()).await?;
    let bytes = body.encode();
    let head = StoreHead::of(head.owner, head.sequence + 1, head.generation, &bytes);
    files.write(1 - which, &head, bytes).await.map_err(|error| match error {
        WriteError::Full => StoreOpenError::Disk(io::ErrorKind::StorageFull.into()),
        WriteError::Failed(error) => StoreOpenError::Disk(error),
    })
}
