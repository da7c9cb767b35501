//! The manager map: which manager serves which slot of the index-number space
//! (docs/core.md#manager).
//!
//! The map is pure data, small, and replicated everywhere. With it, a file's id alone tells the
//! file's manager.

use types::codec::{DecodeError, Put, Reader};
use types::{FileId, ManagerId};

/// Version of the encoding.
const VERSION: u16 = 1;
/// Most managers in a map: one for each slot.
pub const MANAGERS_MAX: usize = types::ids::SLOT_COUNT as usize;

/// Which manager serves which slot: slot `s` belongs to `owners[s % owners.len()]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManagerMap {
    /// Grows with each change. A request made under an older map gets `StaleMap`.
    pub epoch: u64,
    /// The managers in order. Never empty: a map that comes from outside is checked when it is
    /// decoded.
    pub owners: Vec<ManagerId>,
}

impl ManagerMap {
    /// The map of a file system with one manager.
    pub fn single(owner: ManagerId) -> Self {
        ManagerMap { epoch: 1, owners: vec![owner] }
    }

    /// The manager that serves a slot.
    pub fn owner_of_slot(&self, slot: u16) -> ManagerId {
        self.owners[usize::from(slot) % self.owners.len()]
    }

    /// The manager that controls a file.
    pub fn owner_of(&self, file: FileId) -> ManagerId {
        self.owner_of_slot(file.slot())
    }

    /// The slots that a manager serves, ascending.
    pub fn slots_of(&self, manager: ManagerId) -> impl Iterator<Item = u16> + '_ {
        (0..types::ids::SLOT_COUNT).filter(move |&slot| self.owner_of_slot(slot) == manager)
    }

    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(VERSION);
        out.put_u64(self.epoch);
        out.put_u32(self.owners.len() as u32);
        for owner in &self.owners {
            out.put_u16(owner.raw());
        }
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match r.u16("manager map version")? {
            VERSION => {}
            found => return Err(DecodeError::Version { what: "manager map", found, known: VERSION }),
        }
        let epoch = r.u64("manager map epoch")?;
        let count = r.count(2, "manager map owners")?;
        if count == 0 || count > MANAGERS_MAX {
            return Err(DecodeError::Invalid("manager map owners"));
        }
        let owners =
            (0..count).map(|_| Ok(ManagerId::new(r.u16("manager map owner")?))).collect::<Result<_, DecodeError>>()?;
        Ok(ManagerMap { epoch, owners })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_slot_has_exactly_one_owner() {
        let owners = [4, 7, 9].map(ManagerId::new);
        let map = ManagerMap { epoch: 3, owners: owners.to_vec() };
        let mut seen: Vec<u16> = owners.iter().flat_map(|&m| map.slots_of(m)).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..types::ids::SLOT_COUNT).collect::<Vec<_>>());
        assert_eq!(map.owner_of(FileId::in_slot(5, 4, 77)), ManagerId::new(7));
    }

    #[test]
    fn empty_map_is_refused() {
        let mut bytes = Vec::new();
        ManagerMap { epoch: 1, owners: Vec::new() }.encode(&mut bytes);
        assert_eq!(ManagerMap::decode(&mut Reader::new(&bytes)), Err(DecodeError::Invalid("manager map owners")));
    }

    proptest! {
        #[test]
        fn prop_encoding_round_trips_and_truncation_is_an_error(
            epoch: u64, owners in prop::collection::vec(any::<u16>(), 1..20), cut in 0usize..8,
        ) {
            let map = ManagerMap { epoch, owners: owners.into_iter().map(ManagerId::new).collect() };
            let mut bytes = Vec::new();
            map.encode(&mut bytes);
            prop_assert_eq!(&ManagerMap::decode(&mut Reader::new(&bytes)).unwrap(), &map);
            let short = &bytes[..bytes.len() - 1 - cut.min(bytes.len() - 1)];
            prop_assert!(ManagerMap::decode(&mut Reader::new(short)).is_err());
        }
    }
}
