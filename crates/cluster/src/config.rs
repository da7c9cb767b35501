//! A file system's configuration: the properties fixed at its creation, and which manager has which
//! slots. These are its maps: the consensus engine decides them, and every store keeps a copy, so a
//! quorum of stores tells them.

use bytes::Bytes;
use manager::manager_map::ManagerMap;
use std::collections::BTreeSet;
use thiserror::Error;
use types::codec::{DecodeError, Put, Reader};
use types::{FsUuid, LogId, ManagerId, StoreId};

/// Version of the encoding. Version 1 had a number of managers in place of the manager map.
const VERSION: u16 = 2;
/// Number of stores of one file system, at most.
pub const STORE_COUNT_MAX: u16 = 256;
/// Number of managers of one file system on one machine, at most.
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

/// A file system's configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FsConfig {
    /// The file system's identity.
    pub fs: FsUuid,
    /// Number of stores; they are numbered from 0.
    pub store_count: u16,
    /// Parity fragments per stripe, 1 or 2.
    pub parity: u8,
    /// Block size in bytes.
    pub block_size: u32,
    /// Bytes that each store may use.
    pub store_capacity_bytes: u64,
    /// Which manager serves which slots.
    pub managers: ManagerMap,
}

/// The manager map of a new file system: `manager_count` managers share the slots.
pub fn first_manager_map(manager_count: u16) -> ManagerMap {
    ManagerMap { epoch: 1, owners: (0..manager_count).map(ManagerId::new).collect() }
}

impl FsConfig {
    /// All stores.
    pub fn stores(&self) -> impl Iterator<Item = StoreId> + use<> {
        (0..self.store_count).map(StoreId::new)
    }

    /// All managers.
    pub fn manager_ids(&self) -> BTreeSet<ManagerId> {
        self.managers.owners.iter().copied().collect()
    }

    /// Encodes it as the bytes that voters and stores keep.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        out.put_u16(VERSION);
        out.extend_from_slice(&self.fs.0);
        out.put_u16(self.store_count);
        out.put_u8(self.parity);
        out.put_u32(self.block_size);
        out.put_u64(self.store_capacity_bytes);
        self.managers.encode(&mut out);
        out.into()
    }

    /// Decodes what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        let version = r.u16("config version")?;
        if version == 0 || version > VERSION {
            return Err(DecodeError::Version { what: "file system configuration", found: version, known: VERSION });
        }
        let mut fs = [0; 16];
        fs.copy_from_slice(r.take(16, "file system id")?);
        let (store_count, parity) = (r.u16("store count")?, r.u8("parity")?);
        let block_size = r.u32("block size")?;
        let old_managers = if version == 1 { Some(first_manager_map(r.u16("manager count")?)) } else { None };
        let store_capacity_bytes = r.u64("store capacity")?;
        let managers = match old_managers {
            Some(managers) => managers,
            None => ManagerMap::decode(&mut r)?,
        };
        let config = FsConfig { fs: FsUuid(fs), store_count, parity, block_size, store_capacity_bytes, managers };
        if !r.is_empty() || config.check().is_err() {
            return Err(DecodeError::Invalid("file system configuration"));
        }
        Ok(config)
    }

    /// How many stores must be there for a start: all but as many as parity makes up for, and more
    /// than half of all. So of two halves, at most one starts.
    pub fn least_stores(&self) -> usize {
        self.least_with_data().max(usize::from(self.store_count) / 2 + 1)
    }

    /// How many of them must have their data.
    pub fn least_with_data(&self) -> usize {
        usize::from(self.store_count - u16::from(self.parity))
    }

    /// Checks the numbers.
    pub fn check(&self) -> Result<(), ConfigError> {
        let n = self.store_count;
        if !matches!(self.parity, 1 | 2) {
            return Err(ConfigError::Parity(self.parity));
        }
        if n <= self.parity.into() || n > STORE_COUNT_MAX {
            let least = self.parity + 1;
            return Err(ConfigError::StoreCount { count: n, parity: self.parity, least });
        }
        if !self.block_size.is_power_of_two() || !(4096..=1 << 20).contains(&self.block_size) {
            return Err(ConfigError::BlockSize(self.block_size));
        }
        let managers = self.manager_ids();
        if managers.is_empty() || managers.len() > MANAGER_COUNT_MAX.into() {
            return Err(ConfigError::ManagerCount(managers.len()));
        }
        if managers.iter().zip(0..).any(|(id, index)| id.raw() != index) {
            return Err(ConfigError::ManagerNumbers);
        }
        if self.store_capacity_bytes < STORE_CAPACITY_BYTES_MIN {
            return Err(ConfigError::StoreCapacity(self.store_capacity_bytes));
        }
        Ok(())
    }
}

impl FsConfig {
    /// The configuration by newer maps, which must be of the same file system.
    pub fn continued(&self, newer: &[u8]) -> Result<FsConfig, DecodeError> {
        let next = FsConfig::decode(newer)?;
        self.may_become(&next).map_err(|_| DecodeError::Invalid("maps: they contradict those of the stores"))?;
        Ok(next)
    }

    /// Checks whether this may be changed into `next`. Properties fixed at creation stay. The
    /// manager of each slot stays too, as nothing hands a slot over yet. Only the manager map's
    /// epoch may grow.
    pub fn may_become(&self, next: &FsConfig) -> Result<(), ConfigError> {
        let managers = ManagerMap { epoch: self.managers.epoch, ..next.managers.clone() };
        if (FsConfig { managers, ..next.clone() }) != *self {
            return Err(ConfigError::Fixed);
        }
        match next.managers.epoch < self.managers.epoch {
            true => Err(ConfigError::EpochBack(self.managers.epoch)),
            false => Ok(()),
        }
    }
}

/// Why a file system cannot have a configuration.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ConfigError {
    /// The parity is not possible.
    #[error("--parity must be 1 or 2, not {0}")]
    Parity(u8),
    /// The number of stores does not fit the parity.
    #[error("{count} stores with --parity {parity}: use {least} to {STORE_COUNT_MAX} stores")]
    StoreCount {
        /// Stores that were given.
        count: u16,
        /// The parity.
        parity: u8,
        /// The fewest stores for it.
        least: u8,
    },
    /// A file system has another number of stores than were given.
    #[error("the file system has {known} stores, but {given} were given")]
    OtherStoreCount {
        /// Stores of the file system.
        known: u16,
        /// Stores that were given.
        given: usize,
    },
    /// The block size, in bytes, is not possible.
    #[error("--block-size must be a power of two from 4KiB to 1MiB, not {0} bytes")]
    BlockSize(u32),
    /// There are too many managers, or none.
    #[error("1 to {MANAGER_COUNT_MAX} managers, not {0}")]
    ManagerCount(usize),
    /// The managers' numbers have gaps.
    #[error("managers must be numbered from 0 without gaps")]
    ManagerNumbers,
    /// A store of this many bytes is too small.
    #[error("each store needs at least {least}MiB, {0} bytes were given", least = STORE_CAPACITY_BYTES_MIN >> 20)]
    StoreCapacity(u64),
    /// The change concerns what was settled when the file system was made.
    #[error("identity, stores, parity, sizes and the managers of slots cannot be changed")]
    Fixed,
    /// The change would set the manager map's epoch, which is this one, back.
    #[error("the manager map's epoch is {0} and never goes back")]
    EpochBack(u64),
}

/// Smallest store in bytes: room for a handful of segments of each log.
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
            store_capacity_bytes: 1 << 30,
            managers: ManagerMap { epoch: 7, owners: [0, 1, 1].map(ManagerId::new).to_vec() },
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
    fn version_one_had_a_number_of_managers_which_became_the_first_map() {
        let mut bytes = vec![1, 0];
        bytes.extend_from_slice(&[7; 16]);
        bytes.extend_from_slice(&[5, 0, 1, 0, 0, 1, 0, 3, 0]);
        bytes.extend_from_slice(&(1u64 << 30).to_le_bytes());
        assert_eq!(FsConfig::decode(&bytes), Ok(FsConfig { managers: first_manager_map(3), ..config() }));
        assert!(FsConfig::decode(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn what_was_fixed_stays_fixed_and_the_manager_maps_epoch_only_grows() {
        let with = |epoch, owners: &[u16]| {
            let owners = owners.iter().copied().map(ManagerId::new).collect();
            FsConfig { managers: ManagerMap { epoch, owners }, ..config() }
        };
        assert_eq!(config().may_become(&with(8, &[0, 1, 1])), Ok(()));
        for other in [with(6, &[0, 1, 1]), with(8, &[0, 1]), FsConfig { parity: 2, ..config() }] {
            assert!(config().may_become(&other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn impossible_numbers_are_named() {
        for (change, word) in [
            (FsConfig { parity: 3, ..config() }, "--parity"),
            (FsConfig { store_count: 1, ..config() }, "stores"),
            (FsConfig { block_size: 5000, ..config() }, "--block-size"),
            (FsConfig { store_capacity_bytes: 1, ..config() }, "at least"),
            (FsConfig { managers: first_manager_map(17), ..config() }, "1 to 16 managers"),
            (FsConfig { managers: ManagerMap { epoch: 1, owners: vec![ManagerId::new(1)] }, ..config() }, "numbered"),
        ] {
            assert!(change.check().is_err_and(|e| e.to_string().contains(word)), "{word}");
        }
    }
}
