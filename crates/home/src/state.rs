//! What a home must not forget: its volumes' files, the clients that it serves, and how their
//! operations ended, so that it does each once (docs/roaming.md). Pure; every change is a
//! [`HomeRecord`].

use crate::volume::{Learned, RunStart, Volume};
use roam_proto::channel::MESSAGE_LEN_MAX;
use roam_proto::codec::Wire;
use roam_proto::message::{Outcome, User};
use roam_proto::operation::Operation;
use roam_proto::{wire_enum, wire_struct};
use std::collections::{BTreeMap, BTreeSet};
use types::codec::{DecodeError, Reader};

/// Version of the state's encoding.
const VERSION: u16 = 3;
/// How many ids a client gets at a time.
pub const ID_COUNT: u64 = 1 << 20;
/// Most ids that a client ever gets, so that ids are left for other clients.
pub const GIVEN_COUNT_MAX: u64 = ID_COUNT << 14;
/// Most outcomes that the home keeps for a client that does not acknowledge them.
pub const OUTCOME_COUNT_MAX: usize = 1 << 16;

/// Most announced operations of one client.
pub const APPLYING_COUNT_MAX: usize = 1 << 13;
/// Most bytes of a client's announced operations. The operations of one message always fit.
pub const APPLYING_LEN_MAX: usize = 2 * MESSAGE_LEN_MAX;

/// A client's public key, hashed.
pub type ClientKey = [u8; 32];

/// A store that is about to be put in place. After a crash, the file that has this identity is the
/// stored file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Intent {
    /// The operation's number.
    pub seq: u64,
    /// The identity of the file that will be in place.
    pub identity: Vec<u8>,
    /// The id of the stored file.
    pub file: types::FileId,
    /// The size and time of modification of a file that is made beside the old one. `None`: the old
    /// file itself is changed.
    pub beside: Option<(u64, types::Time)>,
}
wire_struct!(Intent { seq, identity, file, beside });

/// One client's rights to one volume, and how its operations there ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeGrant {
    /// The user as whom the home acts for the client.
    pub user: User,
    /// The client's log that the numbers belong to; 0: none yet.
    pub incarnation: u64,
    /// The last operation that was answered.
    pub heard: u64,
    /// How operations ended, for those that the client may ask about again.
    pub outcomes: BTreeMap<u64, Outcome>,
    /// The store that may be half done.
    pub intent: Option<Intent>,
    /// Ranges of ids for files that the client makes with this log: the first of each range, with
    /// its end.
    pub ids: BTreeMap<u64, u64>,
    /// How many ids the client was ever given.
    pub given_count: u64,
    /// Operations that may be done although they were not answered, in the order of their numbers.
    pub applying: Vec<(u64, Operation)>,
    /// The client works under delegations. Which ones it has is not known after a crash.
    pub has_delegations: bool,
    /// Files that others see as the client's stores will make them, with the numbers of these
    /// contents.
    pub promised: BTreeMap<types::FileId, u64>,
}
wire_struct!(VolumeGrant {
    user,
    incarnation,
    heard,
    outcomes,
    intent,
    ids,
    given_count,
    applying,
    has_delegations,
    promised
});

impl VolumeGrant {
    /// True if the client was given the id with this index.
    pub fn was_given(&self, index: u64) -> bool {
        self.ids.range(..=index).next_back().is_some_and(|(_, end)| index < *end)
    }
}

/// A client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownClient {
    /// The home's number for the client, which marks changes as the client's own.
    pub number: u32,
    /// Its grants, by names of volumes.
    pub grants: BTreeMap<String, VolumeGrant>,
}
wire_struct!(KnownClient { number, grants });

/// A change of the state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HomeRecord {
    /// A volume is exported from now on.
    Volume {
        /// Its name.
        name: String,
        /// The epoch of its stamps.
        epoch: u64,
    },
    /// A run of the home begins.
    Run {
        /// The volume.
        volume: String,
        /// The first numbers of the run.
        start: RunStart,
    },
    /// A client accepted an invitation.
    Enrolled {
        /// The client's key.
        key: ClientKey,
        /// The volumes that it may use.
        volumes: Vec<String>,
        /// The user as whom the home acts for it.
        user: User,
    },
    /// A client begins a new log.
    Began {
        /// The client's key.
        key: ClientKey,
        /// The volume.
        volume: String,
        /// The new log.
        incarnation: u64,
    },
    /// Something was learned of a file.
    Learned {
        /// The volume.
        volume: String,
        /// What was learned.
        learned: Learned,
    },
    /// All free ids below an index were given to a client.
    Reserved {
        /// The client's key.
        key: ClientKey,
        /// The volume.
        volume: String,
        /// The first index that is still free.
        next: u64,
    },
    /// A store is about to be put in place.
    Intended {
        /// The client's key.
        key: ClientKey,
        /// The volume.
        volume: String,
        /// The store.
        intent: Intent,
    },
    /// Operations are about to be done.
    Applying {
        /// The client's key.
        key: ClientKey,
        /// The volume.
        volume: String,
        /// The operations, with their numbers.
        operations: Vec<(u64, Operation)>,
    },
    /// An operation ended.
    Answered {
        /// The client's key.
        key: ClientKey,
        /// The volume.
        volume: String,
        /// The operation's number.
        seq: u64,
        /// How it ended.
        outcome: Outcome,
    },
    /// A client knows how its operations up to a number ended.
    Acknowledged {
        /// The client's key.
        key: ClientKey,
        /// The volume.
        volume: String,
        /// The last of these operations.
        through: u64,
    },
    /// A client begins or ceases to work under delegations.
    Delegated {
        /// The client's key.
        key: ClientKey,
        /// The volume.
        volume: String,
        /// True if it begins.
        does: bool,
    },
    /// A client promised a store: from now on, all clients see the contents that it will make.
    Promised {
        /// The client's key.
        key: ClientKey,
        /// The volume.
        volume: String,
        /// The file.
        file: types::FileId,
        /// The number of the promised contents.
        contents: u64,
    },
    /// A promised store is done, or will not be done.
    Concluded {
        /// The client's key.
        key: ClientKey,
        /// The volume.
        volume: String,
        /// The file.
        file: types::FileId,
    },
    /// The object that a client made existed already.
    Became {
        /// The volume.
        volume: String,
        /// The client's id for it.
        alias: types::FileId,
        /// The id of the object that existed.
        real: types::FileId,
    },
    /// A client was turned away: the home does nothing for it until it accepts another invitation.
    TurnedAway {
        /// The client's key.
        key: ClientKey,
    },
    /// A client's user is in other groups now.
    Acts {
        /// The client's key.
        key: ClientKey,
        /// The volume.
        volume: String,
        /// The user with the new groups.
        user: User,
    },
    /// A client got a name from its invitation.
    Named {
        /// The client's key.
        key: ClientKey,
        /// The name.
        name: String,
    },
}
wire_enum!(HomeRecord {
    1 => Volume { name, epoch },
    2 => Enrolled { key, volumes, user },
    3 => Began { key, volume, incarnation },
    4 => Learned { volume, learned },
    5 => Reserved { key, volume, next },
    6 => Intended { key, volume, intent },
    7 => Answered { key, volume, seq, outcome },
    8 => Acknowledged { key, volume, through },
    9 => Applying { key, volume, operations },
    10 => Delegated { key, volume, does },
    11 => Became { volume, alias, real },
    12 => Promised { key, volume, file, contents },
    13 => Concluded { key, volume, file },
    14 => TurnedAway { key },
    15 => Named { key, name },
    16 => Acts { key, volume, user },
    17 => Run { volume, start },
});

/// The state of a home.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HomeState {
    /// The volumes, by name.
    pub volumes: BTreeMap<String, Volume>,
    /// The clients, by key.
    pub clients: BTreeMap<ClientKey, KnownClient>,
    /// Volumes that clients may no longer use. The grants stay: operations may be under way, and
    /// the client may be invited again.
    pub revoked: BTreeSet<(ClientKey, String)>,
    /// The names that invitations gave to clients.
    pub names: BTreeMap<ClientKey, String>,
}

impl HomeState {
    /// Returns the volumes that a client may use, with its grants.
    pub fn granted(&self, key: &ClientKey) -> impl Iterator<Item = (&String, &VolumeGrant)> {
        let all = self.clients.get(key).into_iter().flat_map(|client| &client.grants);
        all.filter(|(volume, _)| !self.revoked.contains(&(*key, volume.to_string())))
    }

    /// True if the home serves a client.
    pub fn serves(&self, key: &ClientKey) -> bool {
        self.granted(key).next().is_some()
    }

    /// Returns a client's number and its grant for a volume.
    pub fn grant(&self, key: &ClientKey, volume: &str) -> Option<(u32, &VolumeGrant)> {
        let client = self.clients.get(key)?;
        let may = !self.revoked.contains(&(*key, volume.to_string()));
        Some((client.number, client.grants.get(volume).filter(|_| may)?))
    }

    /// Returns the clients that may have delegations of a volume.
    pub fn delegated(&self, volume: &str) -> BTreeSet<u32> {
        let does = |client: &&KnownClient| client.grants.get(volume).is_some_and(|grant| grant.has_delegations);
        self.clients.values().filter(does).map(|client| client.number).collect()
    }

    fn grant_mut(&mut self, key: &ClientKey, volume: &str) -> Option<&mut VolumeGrant> {
        self.clients.get_mut(key)?.grants.get_mut(volume)
    }

    /// Applies a record. `None` if it is inconsistent, which only a damaged log can cause.
    pub fn apply(&mut self, record: HomeRecord) -> Option<()> {
        match record {
            HomeRecord::Volume { name, epoch } => {
                // Volume number 0: a client sees only its volume, and its kernel calls the root 1.
                self.volumes.entry(name).or_insert_with(|| Volume::new(0, epoch));
            }
            HomeRecord::Run { volume, start } => self.volumes.get_mut(&volume)?.begin_run(start)?,
            HomeRecord::Enrolled { key, volumes, user } => {
                let number = u32::try_from(self.clients.len()).ok()? + 1;
                let client = self.clients.entry(key).or_insert_with(|| KnownClient { number, grants: BTreeMap::new() });
                let grant = VolumeGrant {
                    user: user.clone(),
                    incarnation: 0,
                    heard: 0,
                    outcomes: BTreeMap::new(),
                    intent: None,
                    ids: BTreeMap::new(),
                    given_count: 0,
                    applying: Vec::new(),
                    has_delegations: false,
                    promised: BTreeMap::new(),
                };
                for volume in volumes {
                    self.revoked.remove(&(key, volume.clone()));
                    client.grants.entry(volume).or_insert_with(|| grant.clone()).user = user.clone();
                }
            }
            HomeRecord::Began { key, volume, incarnation } => {
                let grant = self.grant_mut(&key, &volume)?;
                let before = std::mem::replace(&mut grant.incarnation, incarnation);
                (grant.heard, grant.intent) = (0, None);
                grant.outcomes.clear();
                grant.applying.clear();
                // The client may be an older copy of itself, which does not know what it has made
                // with these ids since.
                grant.ids.clear();
                if before > 0 {
                    let author = self.clients.get(&key)?.number;
                    self.volumes.get_mut(&volume)?.disown(author);
                }
            }
            HomeRecord::Learned { volume, learned } => {
                self.volumes.get_mut(&volume)?.learn(learned)?;
            }
            HomeRecord::Reserved { key, volume, next } => {
                let reserved = self.volumes.get_mut(&volume)?.reserve(next)?;
                let grant = self.grant_mut(&key, &volume)?;
                grant.given_count = grant.given_count.saturating_add(reserved.end - reserved.start);
                grant.ids.insert(reserved.start, reserved.end);
            }
            HomeRecord::Intended { key, volume, intent } => self.grant_mut(&key, &volume)?.intent = Some(intent),
            HomeRecord::Delegated { key, volume, does } => self.grant_mut(&key, &volume)?.has_delegations = does,
            HomeRecord::Applying { key, volume, operations } => self.grant_mut(&key, &volume)?.applying = operations,
            HomeRecord::Answered { key, volume, seq, outcome } => {
                let grant = self.grant_mut(&key, &volume)?;
                grant.applying.retain(|(other, _)| *other > seq);
                (grant.heard, grant.intent) = (grant.heard.max(seq), None);
                grant.outcomes.insert(seq, outcome);
                while grant.outcomes.len() > OUTCOME_COUNT_MAX {
                    grant.outcomes.pop_first();
                }
            }
            HomeRecord::Acknowledged { key, volume, through } => {
                let grant = self.grant_mut(&key, &volume)?;
                grant.outcomes = grant.outcomes.split_off(&through.saturating_add(1));
            }
            HomeRecord::Promised { key, volume, file, contents } => {
                self.grant_mut(&key, &volume)?.promised.insert(file, contents);
            }
            HomeRecord::Concluded { key, volume, file } => {
                self.grant_mut(&key, &volume)?.promised.remove(&file);
            }
            HomeRecord::Became { volume, alias, real } => self.volumes.get_mut(&volume)?.became(alias, real)?,
            HomeRecord::TurnedAway { key } => {
                for (volume, grant) in &mut self.clients.get_mut(&key)?.grants {
                    grant.has_delegations = false;
                    self.revoked.insert((key, volume.clone()));
                }
            }
            HomeRecord::Acts { key, volume, user } => self.grant_mut(&key, &volume)?.user = user,
            HomeRecord::Named { key, name } => {
                self.clients.get(&key)?;
                self.names.insert(key, name);
            }
        }
        Some(())
    }
}

impl Wire for HomeState {
    fn encode(&self, out: &mut Vec<u8>) {
        VERSION.encode(out);
        self.volumes.encode(out);
        self.clients.encode(out);
        self.revoked.encode(out);
        self.names.encode(out);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let version = u16::decode(r)?;
        if version != VERSION {
            return Err(DecodeError::Version { what: "the state of a home", found: version, known: VERSION });
        }
        let (volumes, clients) = (Wire::decode(r)?, Wire::decode(r)?);
        let (revoked, names) = (Wire::decode(r)?, Wire::decode(r)?);
        Ok(HomeState { volumes, clients, revoked, names })
    }
}
