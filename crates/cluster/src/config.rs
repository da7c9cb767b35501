//! What is fixed when a file system is created. Every store keeps a copy (as its maps), so any n - m of them tell it.

use bytes::Bytes;
use types::codec::{DecodeError, Put, Reader};
use types::{FsUuid, LogId, StoreId};

const VERSION: u16 = 1;
/// Most stores of one file system.
pub const STORE_COUNT_MAX: u16 = 256;
/// Most managers of one file system on one machine.
pub const MANAGER_COUNT_MAX: u16 = 16;
/// The client's log.
pub const CLIENT_LOG: LogId = LogId::new(1);
/// The cleaner's log.
pub const CLEANER_LOG: LogId = LogId::new(2);
const MANAGER_LOG_FIRST: u32 = 16;

/// The log of manager `index`.
pub fn manager_log(index: u16) -> LogId {
    LogId::new(MANAGER_LOG_FIRST + u32::from(index))
}

/// See the module's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FsConfig {
    /// The file system's identity.
    pub fs: FsUuid,
    /// Number of stores; they are numbered from 0.
    pub store_count: u16,
    /// Parity fragments per stripe, 1 or 2.
    pub parity: u8,
    /// Block size in bytes.
    pub block_size: u32,
    /// Managers that share the slots.
    pub manager_count: u16,
    /// Bytes that each store may use.
    pub store_capacity_bytes: u64,
}

impl FsConfig {
    /// All stores.
    pub fn stores(&self) -> impl Iterator<Item = StoreId> + use<> {
        (0..self.store_count).map(StoreId::new)
    }

    /// The bytes that stores keep.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u16(VERSION);
        out.extend_from_slice(&self.fs.0);
        out.put_u16(self.store_count);
        out.put_u8(self.parity);
        out.put_u32(self.block_size);
        out.put_u16(self.manager_count);
        out.put_u64(self.store_capacity_bytes);
        out.into()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        let version = r.u16("config version")?;
        if version != VERSION {
            return Err(DecodeError::Version { what: "file system configuration", found: version, known: VERSION });
        }
        let mut fs = [0; 16];
        fs.copy_from_slice(r.take(16, "file system id")?);
        let config = FsConfig {
            fs: FsUuid(fs),
            store_count: r.u16("store count")?,
            parity: r.u8("parity")?,
            block_size: r.u32("block size")?,
            manager_count: r.u16("manager count")?,
            store_capacity_bytes: r.u64("store capacity")?,
        };
        config.check().map_err(|_| DecodeError::Invalid("file system configuration"))?;
        Ok(config)
    }

    /// What is wrong with the numbers, if anything.
    pub fn check(&self) -> Result<(), String> {
        let n = self.store_count;
        if !matches!(self.parity, 1 | 2) {
            return Err(format!("--parity must be 1 or 2, not {}", self.parity));
        }
        if n <= self.parity.into() || n > STORE_COUNT_MAX {
            let least = self.parity + 1;
            return Err(format!("{n} stores with --parity {}: use {least} to {STORE_COUNT_MAX} stores", self.parity));
        }
        if !self.block_size.is_power_of_two() || !(4096..=1 << 20).contains(&self.block_size) {
            return Err(format!(
                "--block-size must be a power of two from 4KiB to 1MiB, not {} bytes",
                self.block_size
            ));
        }
        if self.manager_count == 0 || self.manager_count > MANAGER_COUNT_MAX {
            return Err(format!("1 to {MANAGER_COUNT_MAX} managers, not {}", self.manager_count));
        }
        if self.store_capacity_bytes < STORE_CAPACITY_BYTES_MIN {
            let least = STORE_CAPACITY_BYTES_MIN >> 20;
            return Err(format!(
                "each store needs at least {least}MiB, {} bytes were given",
                self.store_capacity_bytes
            ));
        }
        Ok(())
    }
}

/// Least bytes of a store: a handful of segments of each log.
pub const STORE_CAPACITY_BYTES_MIN: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> FsConfig {
        FsConfig {
            fs: FsUuid([7; 16]),
            store_count: 5,
            parity: 1,
            block_size: 65536,
            manager_count: 2,
            store_capacity_bytes: 1 << 30,
        }
    }

    #[test]
    fn what_was_created_is_read_back() {
        assert_eq!(FsConfig::decode(&config().encode()), Ok(config()));
    }

    #[test]
    fn truncated_and_future_configurations_are_refused() {
        let bytes = config().encode();
        for len in 0..bytes.len() {
            assert!(FsConfig::decode(&bytes[..len]).is_err());
        }
        let mut future = bytes.to_vec();
        future[0] = 9;
        assert!(matches!(FsConfig::decode(&future), Err(DecodeError::Version { found: 9, .. })));
    }

    #[test]
    fn impossible_numbers_are_named() {
        for (change, word) in [
            (FsConfig { parity: 3, ..config() }, "--parity"),
            (FsConfig { store_count: 1, ..config() }, "stores"),
            (FsConfig { block_size: 5000, ..config() }, "--block-size"),
            (FsConfig { store_capacity_bytes: 1, ..config() }, "at least"),
        ] {
            assert!(change.check().is_err_and(|e| e.contains(word)), "{word}");
        }
    }
}
