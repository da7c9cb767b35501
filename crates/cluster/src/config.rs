//! A file system's configuration: the properties fixed at its creation, which manager has which
//! slots, and which nodes belong to it. These are its maps: the consensus engine decides them, and
//! every store keeps a copy, so a quorum of stores tells them.

mod wire;

use consensus::FIRST_VOTER;
use manager::manager_map::ManagerMap;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;
use types::codec::DecodeError;
use types::{ClientId, FsUuid, LogId, ManagerId, NodeId, StoreId};

/// Number of stores of one file system, at most.
pub const STORE_COUNT_MAX: u16 = 256;
/// Number of managers of one file system on one machine, at most.
pub const MANAGER_COUNT_MAX: u16 = 16;
/// Number of members of one file system, at most.
pub const MEMBER_COUNT_MAX: usize = 256;
/// The highest number of a node. Managers follow the logs of all nodes that have ever joined, and
/// at most [`manager::root::POSITIONS_MAX`] logs.
pub const NODE_NUMBER_MAX: u16 = 1000;
/// Number of voters, at most: with more, each change of the maps costs more, and no more machines
/// than two are lost at once.
pub const VOTER_COUNT_MAX: usize = 5;
/// Length of a member's name in bytes, at most.
pub const MEMBER_NAME_LEN_MAX: usize = 64;
/// Length of a member's address in bytes, at most. With the other bounds, maps stay below
/// [`consensus::MAPS_LEN_MAX`].
pub const MEMBER_ADDRESS_LEN_MAX: usize = 100;
/// The first node: it runs the managers and the voter, and the stores that are not at members.
pub const FIRST_NODE: NodeId = NodeId::new(0);
/// The log of the first node's client.
pub const CLIENT_LOG: LogId = LogId::new(1);
/// The cleaner's log.
pub const CLEANER_LOG: LogId = LogId::new(2);
const MANAGER_LOG_FIRST: u32 = 16;
const MEMBER_LOG_FIRST: u32 = 1024;

/// The log of manager `index`.
pub fn manager_log(index: u16) -> LogId {
    LogId::new(MANAGER_LOG_FIRST + u32::from(index))
}

/// True if it is the log of a manager: it has records in place of clients' deltas.
pub fn is_manager_log(log: LogId) -> bool {
    (MANAGER_LOG_FIRST..MANAGER_LOG_FIRST + u32::from(MANAGER_COUNT_MAX)).contains(&log.raw())
}

/// The log of a node's client. A node writes one log for good, each session under a new epoch.
pub fn client_log(node: NodeId) -> LogId {
    match node {
        FIRST_NODE => CLIENT_LOG,
        node => LogId::new(MEMBER_LOG_FIRST + u32::from(node.raw())),
    }
}

/// A node's client.
pub fn client_id(node: NodeId) -> ClientId {
    ClientId::new(u32::from(node.raw()) + 1)
}

/// The node of a client.
pub fn node_of(client: ClientId) -> NodeId {
    NodeId::new(client.raw().saturating_sub(1).try_into().unwrap_or(u16::MAX))
}

/// A node that has joined, as others reach it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownNode {
    /// The node.
    pub node: NodeId,
    /// Where it was reached last, as host:port.
    pub address: String,
    /// SHA-256 of its certificate: another node may have its address by now.
    pub fingerprint: [u8; 32],
}

/// A node that has joined the file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberEntry {
    /// Its name: 1 to [`MEMBER_NAME_LEN_MAX`] of the characters `a-z A-Z 0-9 . _ -`. No other
    /// member has it.
    pub name: String,
    /// SHA-256 of its certificate.
    pub fingerprint: [u8; 32],
    /// Where other nodes reach it; empty if they need not. At most [`MEMBER_ADDRESS_LEN_MAX`]
    /// bytes.
    pub address: String,
}

impl MemberEntry {
    fn check(&self) -> Result<(), ConfigError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if !(1..=MEMBER_NAME_LEN_MAX).contains(&self.name.len()) || !self.name.chars().all(is_plain) {
            return Err(ConfigError::MemberName(self.name.clone()));
        }
        match self.address.len() <= MEMBER_ADDRESS_LEN_MAX {
            true => Ok(()),
            false => Err(ConfigError::MemberAddress(self.address.len())),
        }
    }
}

/// Bytes per second at which stores leave a node that drains, at most; 0 is no bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DrainRate(pub u64);

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
    /// The nodes that have joined. The first node is not listed.
    pub members: BTreeMap<NodeId, MemberEntry>,
    /// The number of the next node that joins. A number is never used again.
    pub next_node: u16,
    /// The stores that members serve. The first node serves all others, or reaches them.
    pub places: BTreeMap<StoreId, NodeId>,
    /// SHA-256 of the first node's certificate; `None` until it has listened for others. Only a
    /// [succession](crate::succession) makes another machine the first node.
    pub first_node: Option<[u8; 32]>,
    /// The nodes that are to have no stores any more. Members among them are to have no managers
    /// either.
    pub draining: BTreeMap<NodeId, DrainRate>,
    /// Stores that all nodes are to reach through the first one, since they may move at any time.
    pub through_first: BTreeSet<StoreId>,
    /// What the first node is to be as a member once an elected one has its place; its certificate
    /// is another one then. `None` if it is a member already, or has never listened for others.
    pub first_member: Option<MemberEntry>,
    /// The voters, and the node of each.
    pub voters: BTreeMap<u64, NodeId>,
    /// The id of the next voter. An id is never used again.
    pub next_voter: u64,
    /// The stores had everything when they were compared last, and none was made anew since. A
    /// leader that has not seen them all needs it to give one up.
    pub is_whole: bool,
}

/// The voters of a new file system.
pub fn first_voters() -> BTreeMap<u64, NodeId> {
    BTreeMap::from([(FIRST_VOTER, FIRST_NODE)])
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

    /// How many stores must be there for a start: all but as many as parity makes up for, and more
    /// than half of all. So of two halves, at most one starts.
    pub fn least_stores(&self) -> usize {
        self.least_with_data().max(usize::from(self.store_count) / 2 + 1)
    }

    /// How many of them must have their data.
    pub fn least_with_data(&self) -> usize {
        usize::from(self.store_count - u16::from(self.parity))
    }

    /// How many stores must be there for changes to become durable, and for a start.
    pub fn least_working(&self) -> usize {
        self.least_stores().max(usize::from(self.parity) + 1)
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
        self.check_members()
    }

    fn check_members(&self) -> Result<(), ConfigError> {
        if self.members.len() > MEMBER_COUNT_MAX {
            return Err(ConfigError::MemberCount(self.members.len()));
        }
        let mut names = BTreeSet::new();
        for (node, member) in &self.members {
            member.check()?;
            if *node == FIRST_NODE || node.raw() >= self.next_node {
                return Err(ConfigError::MemberNumber(*node));
            }
            if !names.insert(&member.name) {
                return Err(ConfigError::MemberTwice(member.name.clone()));
            }
        }
        let is_wrong =
            |(store, node): &(&StoreId, &NodeId)| store.raw() >= self.store_count || !self.members.contains_key(node);
        if let Some((store, node)) = self.places.iter().find(is_wrong) {
            return Err(ConfigError::Place { store: *store, node: *node });
        }
        let is_unknown = |node: &&NodeId| **node != FIRST_NODE && !self.members.contains_key(node);
        if let Some(node) = self.draining.keys().find(is_unknown) {
            return Err(ConfigError::MemberNumber(*node));
        }
        if let Some(store) = self.through_first.iter().find(|store| store.raw() >= self.store_count) {
            return Err(ConfigError::Place { store: *store, node: FIRST_NODE });
        }
        self.first_member.iter().try_for_each(MemberEntry::check)?;
        self.check_voters()?;
        match (1..=NODE_NUMBER_MAX + 1).contains(&self.next_node) {
            true => Ok(()),
            false => Err(ConfigError::NodeCount),
        }
    }

    /// A node has one voter at most: two would be lost at once.
    fn check_voters(&self) -> Result<(), ConfigError> {
        if !(1..=VOTER_COUNT_MAX).contains(&self.voters.len()) {
            return Err(ConfigError::VoterCount(self.voters.len()));
        }
        let mut nodes = BTreeSet::new();
        for (voter, node) in &self.voters {
            let is_known = *node == FIRST_NODE || self.members.contains_key(node);
            if !(FIRST_VOTER..self.next_voter).contains(voter) || !is_known || !nodes.insert(node) {
                return Err(ConfigError::Voter { voter: *voter, node: *node });
            }
        }
        Ok(())
    }

    /// Adds a member under the next number, which it returns.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); then nothing is changed.
    pub fn add_member(&mut self, member: MemberEntry) -> Result<NodeId, ConfigError> {
        let node = NodeId::new(self.next_node);
        let mut next = self.clone();
        next.next_node = self.next_node.checked_add(1).ok_or(ConfigError::NodeCount)?;
        next.members.insert(node, member);
        next.check()?;
        *self = next;
        Ok(node)
    }

    /// Takes a member out, which has no stores.
    pub fn remove_member(&mut self, node: NodeId) {
        self.members.remove(&node);
        self.draining.remove(&node);
        self.voters.retain(|_, at| *at != node);
    }

    /// Gives a node a voter under the next id, which it returns.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); then nothing is changed.
    pub fn add_voter(&mut self, node: NodeId) -> Result<u64, ConfigError> {
        let mut next = self.clone();
        let voter = self.next_voter;
        next.next_voter = voter.checked_add(1).ok_or(ConfigError::Voter { voter, node })?;
        next.voters.insert(voter, node);
        next.check()?;
        *self = next;
        Ok(voter)
    }

    /// The voter of a node.
    pub fn voter_of(&self, node: NodeId) -> Option<u64> {
        self.voters.iter().find(|(_, at)| **at == node).map(|(voter, _)| *voter)
    }

    /// The node of a voter, where others reach it.
    pub fn reach_voter(&self, voter: u64) -> Option<KnownNode> {
        match *self.voters.get(&voter)? {
            FIRST_NODE => {
                let address = self.first_member.as_ref()?.address.clone();
                Some(KnownNode { node: FIRST_NODE, address, fingerprint: self.first_node? })
            }
            node => self.reach(node),
        }
    }

    /// True if the node with this certificate belongs to the file system, as far as is known.
    pub fn has_node(&self, fingerprint: &[u8; 32]) -> bool {
        self.first_node.is_none_or(|first| first == *fingerprint) || self.member_of(fingerprint).is_some()
    }

    /// The member with this certificate.
    pub fn member_of(&self, fingerprint: &[u8; 32]) -> Option<(NodeId, &MemberEntry)> {
        self.members.iter().find(|(_, member)| member.fingerprint == *fingerprint).map(|(node, member)| (*node, member))
    }

    /// A member at the address where others reach it, if it has one.
    pub fn reach(&self, node: NodeId) -> Option<KnownNode> {
        let MemberEntry { address, fingerprint, .. } = self.members.get(&node)?.clone();
        (!address.is_empty()).then_some(KnownNode { node, address, fingerprint })
    }

    /// The members that have an address where others reach them.
    pub fn reachable(&self) -> impl Iterator<Item = KnownNode> + '_ {
        self.members.keys().filter_map(|node| self.reach(*node))
    }

    /// The node that serves a store, or reaches it where it is no node's.
    pub fn place(&self, store: StoreId) -> NodeId {
        self.places.get(&store).copied().unwrap_or(FIRST_NODE)
    }

    /// Every node that has ever joined.
    pub fn members_ever(&self) -> impl Iterator<Item = NodeId> + use<> {
        (1..self.next_node).map(NodeId::new)
    }

    /// The logs of all clients: of the first node's, and of every node that has ever joined. A node
    /// that was removed may have left a log that managers must still apply.
    pub fn client_logs(&self) -> impl Iterator<Item = LogId> + use<> {
        (0..self.next_node).map(|node| client_log(NodeId::new(node)))
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
    /// manager of each slot stays too, as nothing hands a slot over yet. The manager map's epoch
    /// may grow. Voters may come, under new ids, and go. Members may come, under new numbers, and
    /// go. Stores may move. Another machine may become the first node.
    pub fn may_become(&self, next: &FsConfig) -> Result<(), ConfigError> {
        let managers = ManagerMap { epoch: self.managers.epoch, ..next.managers.clone() };
        let (members, next_node, places) = (self.members.clone(), self.next_node, self.places.clone());
        let first_node = if next.first_node.is_some() { self.first_node } else { next.first_node };
        let (draining, through_first) = (self.draining.clone(), self.through_first.clone());
        let (first_member, voters, next_voter) = (self.first_member.clone(), self.voters.clone(), self.next_voter);
        let same = FsConfig {
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
            is_whole: self.is_whole,
            ..next.clone()
        };
        if same != *self {
            return Err(ConfigError::Fixed);
        }
        if next.managers.epoch < self.managers.epoch {
            return Err(ConfigError::EpochBack(self.managers.epoch));
        }
        if next.next_node < self.next_node {
            return Err(ConfigError::NodesBack(self.next_node));
        }
        let is_used_again = |node: &NodeId| node.raw() < self.next_node && !self.members.contains_key(node);
        if let Some(node) = next.members.keys().copied().find(is_used_again) {
            return Err(ConfigError::MemberNumber(node));
        }
        let is_old = |voter: &u64| *voter < self.next_voter && !self.voters.contains_key(voter);
        if next.next_voter < self.next_voter || next.voters.keys().any(is_old) {
            return Err(ConfigError::VotersBack(self.next_voter));
        }
        next.check_members()
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
    /// All numbers of nodes are used.
    #[error("{NODE_NUMBER_MAX} nodes have joined so far, and numbers are not used again: make a new file system")]
    NodeCount,
    /// There are too many members.
    #[error("{0} members: a file system has at most {MEMBER_COUNT_MAX}")]
    MemberCount(usize),
    /// A member cannot have this name.
    #[error(
        "the node name {0:?} is not possible: use 1 to {MEMBER_NAME_LEN_MAX} letters, digits, dots, dashes and underscores"
    )]
    MemberName(String),
    /// Two members would have this name.
    #[error("there is a node {0} already: give another name")]
    MemberTwice(String),
    /// A member's address has this many bytes.
    #[error("a node's address of {0} bytes is longer than {MEMBER_ADDRESS_LEN_MAX}")]
    MemberAddress(usize),
    /// A member cannot have this number: it is the first node's, was used before, or is not given
    /// out yet.
    #[error("{0} is not the number of a new member")]
    MemberNumber(NodeId),
    /// A store cannot be there: there is no such store, or no such member.
    #[error("{store} cannot be at {node}: no such store, or no such member")]
    Place {
        /// The store.
        store: StoreId,
        /// Its place.
        node: NodeId,
    },
    /// There are too many voters, or none.
    #[error("1 to {VOTER_COUNT_MAX} voters, not {0}")]
    VoterCount(usize),
    /// A voter cannot be there: there is no such node, it has another voter, or the id was not
    /// given out.
    #[error("voter {voter} cannot be at {node}")]
    Voter {
        /// The voter.
        voter: u64,
        /// Its node.
        node: NodeId,
    },
    /// The change would use the id of a voter again, or set the next one, which is this one, back.
    #[error("voters are numbered up to {0} and no number is used again")]
    VotersBack(u64),
    /// The change would set the number of the next node, which is this one, back.
    #[error("nodes are numbered up to {0} and no number is used again")]
    NodesBack(u16),
}

/// Smallest store in bytes: room for a handful of segments of each log.
pub const STORE_CAPACITY_BYTES_MIN: u64 = 64 << 20;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn config() -> FsConfig {
        FsConfig {
            fs: FsUuid([7; 16]),
            store_count: 5,
            parity: 1,
            block_size: 65536,
            store_capacity_bytes: 1 << 30,
            managers: ManagerMap { epoch: 7, owners: [0, 1, 1].map(ManagerId::new).to_vec() },
            members: BTreeMap::new(),
            next_node: 1,
            places: BTreeMap::new(),
            first_node: None,
            draining: BTreeMap::new(),
            through_first: BTreeSet::new(),
            first_member: None,
            voters: first_voters(),
            next_voter: 2,
            is_whole: false,
        }
    }

    pub(crate) fn member(name: &str) -> MemberEntry {
        MemberEntry { name: name.into(), fingerprint: [name.len() as u8; 32], address: "10.0.0.2:7440".into() }
    }

    /// With members 1 and 3; member 2 was removed.
    pub(crate) fn with_members() -> FsConfig {
        let mut config = config();
        for name in ["a", "gone", "node-3.lan"] {
            config.add_member(member(name)).expect("add");
        }
        config.members.remove(&NodeId::new(2));
        config
    }

    #[test]
    fn members_have_names_and_numbers_of_their_own() {
        let config = with_members();
        assert_eq!(config.members.keys().map(|node| node.raw()).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(config.member_of(&[10; 32]).map(|(node, _)| node), Some(NodeId::new(3)));
        let logs: Vec<u32> = config.client_logs().map(LogId::raw).collect();
        assert_eq!(logs, [1, 1025, 1026, 1027], "the log of a removed node counts too");
        assert_eq!((client_id(FIRST_NODE).raw(), client_id(NodeId::new(3)).raw()), (1, 4));
        for name in ["", "a", "a b", "\u{e4}", "x/y", &"n".repeat(65)] {
            assert!(config.clone().add_member(member(name)).is_err(), "{name}");
        }
        let far = MemberEntry { address: "a".repeat(MEMBER_ADDRESS_LEN_MAX + 1), ..member("far") };
        assert!(config.clone().add_member(far).is_err());
    }

    #[test]
    fn members_come_under_new_numbers_and_go() {
        let (before, config) = (config(), with_members());
        assert_eq!(before.may_become(&config), Ok(()));
        assert_eq!(config.may_become(&FsConfig { members: BTreeMap::new(), ..config.clone() }), Ok(()));
        assert_eq!(config.may_become(&before), Err(ConfigError::NodesBack(4)));
        for number in [0, 2, 9] {
            let mut next = config.clone();
            next.members.insert(NodeId::new(number), member("again"));
            assert_eq!(config.may_become(&next), Err(ConfigError::MemberNumber(NodeId::new(number))));
        }
    }

    #[test]
    fn stores_move_between_members() {
        let config = with_members();
        let with = |store, node| FsConfig {
            places: BTreeMap::from([(StoreId::new(store), NodeId::new(node))]),
            ..config.clone()
        };
        let moved = with(4, 3);
        assert_eq!((moved.place(StoreId::new(4)), moved.place(StoreId::new(3))), (NodeId::new(3), FIRST_NODE));
        assert_eq!(config.may_become(&moved), Ok(()));
        assert_eq!(moved.may_become(&with(4, 1)), Ok(()));
        for (store, node) in [(5, 1), (1, 2), (1, 0), (1, 9)] {
            let wrong = ConfigError::Place { store: StoreId::new(store), node: NodeId::new(node) };
            assert_eq!(config.may_become(&with(store, node)), Err(wrong));
        }
        let mut gone = moved.clone();
        gone.members.remove(&NodeId::new(3));
        assert!(moved.may_become(&gone).is_err(), "a member that has a store stays");
        let drains = FsConfig { draining: BTreeMap::from([(NodeId::new(1), DrainRate(0))]), ..config.clone() };
        assert_eq!(config.may_become(&drains), Ok(()));
        let mut gone = drains.clone();
        gone.members.remove(&NodeId::new(1));
        assert_eq!(drains.may_become(&gone), Err(ConfigError::MemberNumber(NodeId::new(1))));
        gone = drains.clone();
        gone.remove_member(NodeId::new(1));
        assert_eq!(drains.may_become(&gone), Ok(()));
    }

    #[test]
    fn numbers_run_out() {
        let mut config = FsConfig { next_node: NODE_NUMBER_MAX, ..config() };
        assert_eq!(config.add_member(member("last")), Ok(NodeId::new(NODE_NUMBER_MAX)));
        assert_eq!(config.add_member(member("more")), Err(ConfigError::NodeCount));
        assert!(config.client_logs().count() + 1 < manager::root::POSITIONS_MAX, "one more for the cleaner");
        let manager_logs = (0..MANAGER_COUNT_MAX).map(manager_log);
        let reserved = manager_logs.chain([CLEANER_LOG, stripe::MARK_LOG]);
        assert!(reserved.clone().all(|log| !config.client_logs().any(|other| other == log)));
        assert_eq!(reserved.collect::<BTreeSet<_>>().len(), usize::from(MANAGER_COUNT_MAX) + 2);
    }

    #[test]
    fn voters_have_nodes_and_ids_of_their_own() {
        let mut config = with_members();
        assert_eq!(config.add_voter(NodeId::new(3)), Ok(2));
        let third = ConfigError::Voter { voter: 3, node: NodeId::new(3) };
        assert_eq!(config.add_voter(NodeId::new(3)), Err(third), "a node has one voter");
        assert!(config.add_voter(NodeId::new(2)).is_err() && config.next_voter == 3);
        assert_eq!((config.voter_of(NodeId::new(3)), config.voter_of(NodeId::new(1))), (Some(2), None));
        assert_eq!(config.reach_voter(2), config.reach(NodeId::new(3)));
        assert_eq!(config.reach_voter(1), None);
        let first_member = Some(MemberEntry { address: "a:1".into(), ..member("first") });
        let first = FsConfig { first_member, first_node: Some([9; 32]), ..config.clone() };
        let at = KnownNode { node: FIRST_NODE, address: "a:1".into(), fingerprint: [9; 32] };
        assert_eq!((first.reach_voter(1), config.may_become(&first)), (Some(at), Ok(())));
        let mut gone = config.clone();
        gone.remove_member(NodeId::new(3));
        assert_eq!((gone.voters.clone(), config.may_become(&gone)), (first_voters(), Ok(())));
        let again = FsConfig { voters: config.voters.clone(), members: config.members.clone(), ..gone.clone() };
        assert_eq!(gone.may_become(&again), Err(ConfigError::MemberNumber(NodeId::new(3))));
        let again = FsConfig { voters: BTreeMap::from([(1, FIRST_NODE), (2, NodeId::new(1))]), ..gone.clone() };
        assert_eq!(gone.may_become(&again), Err(ConfigError::VotersBack(3)));
        assert!(FsConfig { voters: BTreeMap::new(), ..config }.check().is_err());
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
