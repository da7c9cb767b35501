//! Ids, units, attributes, errors and the byte codec that every part of Starling shares.
//!
//! Nothing here does I/O, reads a clock or knows a role. Encodings are little-endian and explicit;
//! decoders return [`codec::DecodeError`] and never panic, for any bytes.

pub mod addr;
pub mod aligned;
pub mod answer;
pub mod attr;
pub mod codec;
pub mod error;
pub mod ids;
pub mod line;
pub mod maps;
pub mod testing;

pub use addr::{BlockAddr, Extent, FragmentId, SegmentId};
pub use answer::Answer;
pub use attr::{Attr, Kind, Time};
pub use error::FsError;
pub use ids::{ClientId, FileId, FsUuid, LogId, ManagerId, NodeId, StoreId};
pub use line::{LineError, LineKind};
pub use maps::Maps;

/// A boxed future that can be spawned on any task runner.
pub type BoxFuture<T> = std::pin::Pin<Box<dyn std::future::Future<Output = T> + Send + 'static>>;
