//! Defaults of settings. The file system and the studies start from the same ones.

/// Memory for a core client's caches, in bytes.
pub const MEMORY_BYTES: u64 = 512 << 20;
/// Length of a file's block in the core, in bytes.
pub const BLOCK_BYTES: u32 = 64 << 10;
/// Number of stores, if all stay on one machine.
pub const STORES: u16 = 5;
/// Number of stores, if other machines may join: three of them, each with one store, outlive the
/// loss of any one.
pub const SHARED_STORES: u16 = 3;
/// Number of parity fragments of each segment.
pub const PARITIES: u8 = 1;
/// Disk space for a roaming client's cached files, in bytes.
pub const ROAMING_CACHE_BYTES: u64 = 20 << 30;
