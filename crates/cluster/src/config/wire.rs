//! The encoding of a configuration: a version (u16) and the fields in the order of
//! [`FsConfig::encode`], little-endian. A flag is a byte 0 or 1, an option a flag and the thing, a
//! list a u32 count and that many elements in ascending order, a string a u8 length and that many
//! bytes of UTF-8.

use super::{DrainRate, FsConfig, MemberEntry, first_manager_map, first_voters};
use bytes::Bytes;
use consensus::FIRST_VOTER;
use manager::manager_map::ManagerMap;
use std::collections::{BTreeMap, BTreeSet};
use types::codec::{DecodeError, Put, Reader};
use types::{FsUuid, NodeId, StoreId};

/// Version of the encoding. Version 1 had a number of managers in place of the manager map,
/// versions 1 and 2 had no members, up to version 3 all stores were at the first node, up to
/// version 4 nothing said which node is the first one, or which members drain, up to version 5
/// the first node had the only voter, and up to version 6 nothing said whether the stores were
/// whole, or how fast they leave a node.
const VERSION: u16 = 7;
/// Bytes of an encoded member, at least.
const MEMBER_LEN_MIN: usize = 2 + 1 + 32 + 1;
/// Bytes of an encoded place.
const PLACE_LEN: usize = 2 + 2;
/// Length of a node that drains, encoded.
const DRAIN_LEN: usize = 2 + 8;
/// Bytes of an encoded voter.
const VOTER_LEN: usize = 8 + 2;

impl MemberEntry {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(self.name.len() as u8);
        out.extend_from_slice(self.name.as_bytes());
        out.extend_from_slice(&self.fingerprint);
        out.put_u8(self.address.len() as u8);
        out.extend_from_slice(self.address.as_bytes());
    }

    fn decode(r: &mut Reader<'_>) -> Result<MemberEntry, DecodeError> {
        let (name, fingerprint) = (text(r, "member name")?, fingerprint(r, "member fingerprint")?);
        Ok(MemberEntry { name, fingerprint, address: text(r, "member address")? })
    }
}

impl FsConfig {
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
        out.put_u16(self.next_node);
        out.put_u32(self.members.len() as u32);
        for (node, member) in &self.members {
            out.put_u16(node.raw());
            member.encode(&mut out);
        }
        out.put_u32(self.places.len() as u32);
        for (store, node) in &self.places {
            out.put_u16(store.raw());
            out.put_u16(node.raw());
        }
        out.put_u8(self.first_node.is_some().into());
        self.first_node.iter().for_each(|fingerprint| out.extend_from_slice(fingerprint));
        out.put_u32(self.draining.len() as u32);
        for (node, rate) in &self.draining {
            out.put_u16(node.raw());
            out.put_u64(rate.0);
        }
        out.put_u32(self.through_first.len() as u32);
        self.through_first.iter().for_each(|store| out.put_u16(store.raw()));
        out.put_u8(self.first_member.is_some().into());
        self.first_member.iter().for_each(|member| member.encode(&mut out));
        out.put_u64(self.next_voter);
        out.put_u32(self.voters.len() as u32);
        for (voter, node) in &self.voters {
            out.put_u64(*voter);
            out.put_u16(node.raw());
        }
        out.put_u8(self.is_whole.into());
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
        let (mut members, mut next_node) = (BTreeMap::new(), 1);
        if version >= 3 {
            next_node = r.u16("next node")?;
            for _ in 0..r.count(MEMBER_LEN_MIN, "members")? {
                let node = NodeId::new(r.u16("member")?);
                if members.last_key_value().is_some_and(|(last, _)| *last >= node) {
                    return Err(DecodeError::Invalid("members"));
                }
                members.insert(node, MemberEntry::decode(&mut r)?);
            }
        }
        let mut places = BTreeMap::new();
        if version >= 4 {
            for _ in 0..r.count(PLACE_LEN, "places of stores")? {
                let (store, node) = (StoreId::new(r.u16("store")?), NodeId::new(r.u16("place of a store")?));
                if places.last_key_value().is_some_and(|(last, _)| *last >= store) {
                    return Err(DecodeError::Invalid("places of stores"));
                }
                places.insert(store, node);
            }
        }
        let first_node = match version >= 5 && flag(&mut r, "first node")? {
            true => Some(fingerprint(&mut r, "first node")?),
            false => None,
        };
        let (mut draining, mut through_first) = (BTreeMap::new(), BTreeSet::new());
        if version >= 5 {
            draining = match version >= 7 {
                true => drains(&mut r)?,
                false => numbers(&mut r, "draining nodes")?.into_iter().map(as_fast_as_possible).collect(),
            };
            through_first = numbers(&mut r, "stores behind the first node")?.into_iter().map(StoreId::new).collect();
        }
        let (mut first_member, mut voters, mut next_voter) = (None, first_voters(), FIRST_VOTER + 1);
        if version >= 6 {
            if flag(&mut r, "the first node as a member")? {
                first_member = Some(MemberEntry::decode(&mut r)?);
            }
            next_voter = r.u64("next voter")?;
            voters.clear();
            for _ in 0..r.count(VOTER_LEN, "voters")? {
                let (voter, node) = (r.u64("voter")?, NodeId::new(r.u16("node of a voter")?));
                if voters.last_key_value().is_some_and(|(last, _)| *last >= voter) {
                    return Err(DecodeError::Invalid("voters"));
                }
                voters.insert(voter, node);
            }
        }
        let is_whole = version >= 7 && flag(&mut r, "whole stores")?;
        let fs = FsUuid(fs);
        let config = FsConfig {
            fs,
            store_count,
            parity,
            block_size,
            store_capacity_bytes,
            managers,
            members,
            next_node,
            places,
            first_node,
            draining,
            through_first,
            first_member,
            voters,
            next_voter,
            is_whole,
        };
        if !r.is_empty() || config.check().is_err() {
            return Err(DecodeError::Invalid("file system configuration"));
        }
        Ok(config)
    }
}

/// A string after its length in one byte.
fn text(r: &mut Reader<'_>, what: &'static str) -> Result<String, DecodeError> {
    let len = r.u8(what)?;
    let bytes = r.take(len.into(), what)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::Invalid(what))
}

/// The SHA-256 of a certificate.
fn fingerprint(r: &mut Reader<'_>, what: &'static str) -> Result<[u8; 32], DecodeError> {
    let mut fingerprint = [0; 32];
    fingerprint.copy_from_slice(r.take(32, what)?);
    Ok(fingerprint)
}

/// A list of numbers, ascending.
fn numbers(r: &mut Reader<'_>, what: &'static str) -> Result<BTreeSet<u16>, DecodeError> {
    let mut numbers = BTreeSet::new();
    for _ in 0..r.count(2, what)? {
        let number = r.u16(what)?;
        if numbers.last().is_some_and(|last| *last >= number) {
            return Err(DecodeError::Invalid(what));
        }
        numbers.insert(number);
    }
    Ok(numbers)
}

/// The nodes that drain, ascending, each with its rate.
fn drains(r: &mut Reader<'_>) -> Result<BTreeMap<NodeId, DrainRate>, DecodeError> {
    let mut drains: BTreeMap<NodeId, DrainRate> = BTreeMap::new();
    for _ in 0..r.count(DRAIN_LEN, "draining nodes")? {
        let node = NodeId::new(r.u16("draining node")?);
        if drains.last_key_value().is_some_and(|(last, _)| *last >= node) {
            return Err(DecodeError::Invalid("draining nodes"));
        }
        drains.insert(node, DrainRate(r.u64("drain rate")?));
    }
    Ok(drains)
}

fn as_fast_as_possible(node: u16) -> (NodeId, DrainRate) {
    (NodeId::new(node), DrainRate(0))
}

fn flag(r: &mut Reader<'_>, what: &'static str) -> Result<bool, DecodeError> {
    match r.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Invalid(what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{config, member, with_members};
    use crate::config::{
        ConfigError, FIRST_NODE, MANAGER_COUNT_MAX, MEMBER_ADDRESS_LEN_MAX, MEMBER_COUNT_MAX, MEMBER_NAME_LEN_MAX,
        STORE_COUNT_MAX,
    };

    #[test]
    fn what_was_created_is_read_back() {
        let mut spread = with_members();
        spread.places = BTreeMap::from([(StoreId::new(0), NodeId::new(3)), (StoreId::new(4), NodeId::new(1))]);
        let rates = [(FIRST_NODE, 0), (NodeId::new(1), 50 << 20), (NodeId::new(3), u64::MAX)];
        let draining = rates.map(|(node, rate)| (node, DrainRate(rate))).into();
        let led = FsConfig {
            first_node: Some([9; 32]),
            draining,
            through_first: [1, 4].map(StoreId::new).into(),
            first_member: Some(member("first")),
            voters: BTreeMap::from([(1, FIRST_NODE), (4, NodeId::new(3))]),
            next_voter: 7,
            is_whole: true,
            ..spread.clone()
        };
        for config in [config(), with_members(), spread, led] {
            assert_eq!(FsConfig::decode(&config.encode()), Ok(config));
        }
    }

    #[test]
    fn the_largest_maps_fit() {
        let mut config = FsConfig { managers: first_manager_map(MANAGER_COUNT_MAX), ..config() };
        for number in 0..MEMBER_COUNT_MAX {
            let name = format!("{number:0len$}", len = MEMBER_NAME_LEN_MAX);
            let address = "a".repeat(MEMBER_ADDRESS_LEN_MAX);
            config.add_member(MemberEntry { name, fingerprint: [0; 32], address }).expect("add");
        }
        config.store_count = STORE_COUNT_MAX;
        config.places = config.stores().map(|store| (store, NodeId::new(1))).collect();
        assert_eq!(config.clone().add_member(member("more")), Err(ConfigError::MemberCount(MEMBER_COUNT_MAX + 1)));
        assert!(config.encode().len() <= consensus::MAPS_LEN_MAX);
        assert_eq!(FsConfig::decode(&config.encode()), Ok(config));
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
    fn version_two_had_no_members() {
        let mut bytes = config().encode().to_vec();
        bytes.truncate(bytes.len() - 43);
        bytes[0] = 2;
        assert_eq!(FsConfig::decode(&bytes), Ok(config()));
    }

    #[test]
    fn up_to_version_three_all_stores_were_at_the_first_node() {
        let mut bytes = with_members().encode().to_vec();
        bytes.truncate(bytes.len() - 37);
        bytes[0] = 3;
        assert_eq!(FsConfig::decode(&bytes), Ok(with_members()));
    }

    #[test]
    fn up_to_version_four_nothing_said_which_node_is_the_first() {
        let mut bytes = with_members().encode().to_vec();
        bytes.truncate(bytes.len() - 33);
        bytes[0] = 4;
        assert_eq!(FsConfig::decode(&bytes), Ok(with_members()));
    }

    #[test]
    fn up_to_version_five_the_first_node_had_the_only_voter() {
        let mut bytes = with_members().encode().to_vec();
        bytes.truncate(bytes.len() - 24);
        bytes[0] = 5;
        assert_eq!(FsConfig::decode(&bytes), Ok(with_members()));
    }

    #[test]
    fn up_to_version_six_nothing_said_whether_the_stores_were_whole() {
        let mut bytes = with_members().encode().to_vec();
        bytes.truncate(bytes.len() - 1);
        bytes[0] = 6;
        assert_eq!(FsConfig::decode(&bytes), Ok(with_members()));
    }
}
