//! The room on the stores, and the part of it that writers may use. Pure.
//!
//! Stores on one disk share its free space, and other programs fill disks too. If its disk leaves a
//! store less than its capacity, that store is short of room by itself. As many such stores as
//! there are parity fragments are left out when they are full. If there are more, the file system
//! becomes smaller.

use crate::config::FsConfig;
use host::DiskSpace;
use manager::api::NodeSize;
use policy::space::{self, Purpose, Reserves, SpaceAccount, SpaceClaim, SpaceShare};
use std::collections::BTreeMap;
use stripe::{StoreHealth, StoreState, Stripe};
use types::FileId;

/// The room on the stores that count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    /// Free bytes on the fullest store that counts.
    pub free_bytes: u64,
    /// Bytes that this store can use in total.
    pub capacity_bytes: u64,
    /// Largest number of bytes that a disk lacks for the capacity of a store that counts.
    pub missing_bytes: u64,
}

impl Room {
    /// The room, by the stores' reports; `None` if no store answers. Up to `parity` stores do not
    /// count, if they are in trouble by themselves.
    pub fn of(stores: &[StoreHealth], parity: u8) -> Option<Room> {
        let answers = || stores.iter().filter_map(|s| Some((s.state, s.status.as_ref()?)));
        let mut sharer_counts: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, status) in answers() {
            *sharer_counts.entry(status.disk.device).or_default() += 1;
        }
        let mut rooms: Vec<(bool, Room)> = answers()
            .map(|(state, status)| {
                let sharer_count = sharer_counts.get(&status.disk.device).copied().unwrap_or(1);
                let capacity_bytes = status.attainable_bytes(sharer_count);
                let missing_bytes = status.capacity_bytes - capacity_bytes;
                let free_bytes = capacity_bytes.saturating_sub(status.used_bytes);
                let troubled = state != StoreState::Up || missing_bytes > 0;
                (troubled, Room { free_bytes, capacity_bytes, missing_bytes })
            })
            .collect();
        rooms.sort_by_key(|(troubled, room)| (!troubled, room.free_bytes));
        // A store that does not answer is left out already.
        let silent = stores.len() - rooms.len();
        let troubled = rooms.iter().filter(|(troubled, _)| *troubled).count();
        let left_out = usize::from(parity).saturating_sub(silent).min(troubled).min(rooms.len().saturating_sub(1));
        let counting = &rooms[left_out..];
        let fullest = counting.iter().map(|(_, room)| *room).min_by_key(|room| room.free_bytes)?;
        let missing_bytes = counting.iter().map(|(_, room)| room.missing_bytes).max()?;
        Some(Room { missing_bytes, ..fullest })
    }
}

/// Bytes that each store of a new file system can have on these disks: the same for each, and nine
/// tenths of the free space.
pub(crate) fn capacity_max(spaces: &[DiskSpace]) -> u64 {
    let sharers = |device| spaces.iter().filter(|s| s.device == device).count() as u64;
    let share = |s: &DiskSpace| s.free_bytes / 10 * 9 / sharers(s.device).max(1);
    spaces.iter().map(share).min().unwrap_or(0)
}

/// The space that the client starts with, if the managers owe a checkpoint of these files.
pub(crate) fn space(
    config: &FsConfig,
    stripe: &Stripe,
    owed: impl Iterator<Item = (FileId, Option<NodeSize>)>,
) -> SpaceAccount {
    let bytes = |size: NodeSize| space::index_bytes(size.attribute_bytes, size.extent_count);
    let owed_bytes = space::owed_bytes(owed.map(|(file, size)| (file.raw(), size.map_or(0, bytes))));
    SpaceAccount::new(reserves(config, stripe), admitted_bytes(config, stripe, 0), owed_bytes)
}

/// The space of a new session of a member: none before its share.
pub(crate) fn member_space(config: &FsConfig, stripe: &Stripe, share: Option<SpaceShare>) -> SpaceAccount {
    let nothing = SpaceShare { covered_seq: 0, free_bytes: 0, limit_bytes: 0, live: None };
    let mut space = SpaceAccount::new(reserves(config, stripe), 0, 0);
    space.take(&SpaceClaim::default(), &share.unwrap_or(nothing));
    space
}

/// The reserves on each store.
pub(crate) fn reserves(config: &FsConfig, stripe: &Stripe) -> Reserves {
    Reserves::new(stripe.share_of(client::IN_FLIGHT_BYTES_MAX), config.store_capacity_bytes)
}

/// Live payload bytes that admission allows, if disks lack `missing_bytes` for the capacity of a
/// store.
pub(crate) fn admitted_bytes(config: &FsConfig, stripe: &Stripe, missing_bytes: u64) -> u64 {
    let (k, m) = stripe.redundancy();
    let fragment_len = stripe.payload_len_max() / u32::from(k);
    // Payload that the stores hold in full segments, if each has this many bytes.
    let packed = |store_bytes: u64| {
        let payload = store_bytes * u64::from(config.store_count) / u64::from(k + m) * u64::from(k);
        payload / u64::from(storage::footprint(fragment_len)) * u64::from(fragment_len)
    };
    let reserved_bytes = packed(reserves(config, stripe).kept_from(Purpose::Write));
    space::live_bytes_max(packed(config.store_capacity_bytes.saturating_sub(missing_bytes)), reserved_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use storage::api::StoreStatus;
    use types::StoreId;

    const GIB: u64 = 1 << 30;

    /// A store of 10 GiB that uses `used` GiB, on a disk with `disk_free` GiB free.
    fn store(id: u16, device: u64, used: u64, disk_free: u64) -> StoreHealth {
        let status = StoreStatus {
            id: StoreId::new(id),
            capacity_bytes: 10 * GIB,
            // Plus the room that a store keeps for itself.
            allocated_bytes: used * GIB + u64::from(storage::footprint(1 << 20)),
            used_bytes: used * GIB,
            parity_bytes: 0,
            fragment_count: 1,
            writable: true,
            disk: DiskSpace { total_bytes: 100 * GIB, free_bytes: disk_free * GIB, device },
        };
        StoreHealth {
            id: status.id,
            state: StoreState::Up,
            damaged_count: 0,
            status: Some(status),
            age: Duration::ZERO,
        }
    }

    fn room(free: u64, capacity: u64, missing: u64) -> Option<Room> {
        let [free_bytes, capacity_bytes, missing_bytes] = [free, capacity, missing].map(|gib| gib * GIB);
        Some(Room { free_bytes, capacity_bytes, missing_bytes })
    }

    #[test]
    fn the_fullest_store_counts() {
        let stores = [store(0, 0, 3, 90), store(1, 1, 4, 90), store(2, 2, 2, 90)];
        assert_eq!(Room::of(&stores, 1), room(6, 10, 0));
        assert_eq!(Room::of(&[], 1), None);
    }

    #[test]
    fn stores_of_one_disk_share_what_it_has_free() {
        let on_one = [store(0, 5, 4, 9), store(1, 5, 4, 9), store(2, 5, 4, 9)];
        assert_eq!(Room::of(&on_one, 1), room(3, 7, 3));
        let apart = [store(0, 5, 4, 9), store(1, 6, 4, 9), store(2, 7, 4, 9)];
        assert_eq!(Room::of(&apart, 1), room(6, 10, 0));
    }

    #[test]
    fn new_stores_are_as_large_as_the_fullest_disk_allows() {
        let space = |device, free_bytes| DiskSpace { total_bytes: 1000, free_bytes, device };
        assert_eq!(capacity_max(&[space(1, 100), space(2, 200)]), 90);
        assert_eq!(capacity_max(&[space(1, 100), space(1, 100), space(2, 200)]), 45);
        assert_eq!(capacity_max(&[]), 0);
    }

    #[test]
    fn as_many_full_disks_as_parity_are_done_without() {
        let mut stores = vec![store(0, 0, 3, 0), store(1, 1, 4, 90), store(2, 2, 4, 0), store(3, 3, 2, 90)];
        assert_eq!(Room::of(&stores, 2), room(6, 10, 0));
        assert_eq!(Room::of(&stores, 1), room(0, 4, 6));
        // A store that is gone altogether is also one that is left out.
        stores[3].status = None;
        assert_eq!(Room::of(&stores, 2), room(0, 4, 6));
        stores[2].state = StoreState::Failing;
        assert!(Room::of(&stores[..1], 2).is_some());
    }
}
