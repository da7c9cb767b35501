//! What is set where nobody has said anything else: the file system begins with it, and so do the
//! simulations of it.

/// Bytes of memory that a machine of the core caches in.
pub const MEMORY_BYTES: u64 = 512 << 20;
/// Bytes of a block of the core.
pub const BLOCK_BYTES: u32 = 64 << 10;
/// Stores.
pub const STORES: u16 = 5;
/// Parity fragments of each segment.
pub const PARITIES: u8 = 1;
/// Bytes of files that a client that roams keeps on its disk.
pub const ROAMING_CACHE_BYTES: u64 = 20 << 30;
