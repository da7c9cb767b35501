//! Segments: payload layout, striping, parity, rebuild.

use crate::fragment::{Fragment, FragmentHeader, Geometry};
use bytes::Bytes;
use types::{FsUuid, SegmentId, StoreId};

/// A segment that is complete in memory and on its way to the stores. The payload is: full blocks first (so that they are
/// chunk-aligned), then short blocks, then the delta section.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Its name.
    pub id: SegmentId,
    /// The segment before it in the log.
    pub previous: Option<SegmentId>,
    /// Payload bytes, at most k_max * FRAGMENT_LEN_MAX.
    pub payload: Bytes,
    /// Where the deltas begin.
    pub delta_offset: u32,
}
