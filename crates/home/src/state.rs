//! What a home must not forget: its volumes' files, whom it serves, and how clients' operations
//! ended, so that each is done once (docs/roaming.md). Pure; every change is a [`Record`].

use crate::volume::{Learned, RunStart, Volume};
use roam_proto::channel::MESSAGE_LEN_MAX;
use roam_proto::codec::Wire;
use roam_proto::message::{Outcome, User};
use roam_proto::operation::Operation;
use roam_proto::{wire_enum, wire_struct};
use std::collections::{BTreeMap, BTreeSet};
use types::codec::{DecodeError, Reader};

/// Version of what is kept.
const VERSION: u16 = 3;
/// Ids that a client is given at a time.
pub const ID_COUNT: u64 = 1 << 20;
/// Most ids that a client is ever given: others need some, too.
pub const GIVEN_COUNT_MAX: u64 = ID_COUNT << 14;
/// Most outcomes that are kept for a client that does not acknowledge them.
pub const OUTCOME_COUNT_MAX: usize = 1 << 16;

/// Most operations of a client of which it is remembered that they may be done.
pub const APPLYING_COUNT_MAX: usize = 1 << 13;
/// Most bytes of these: those of one message always fit.
pub const APPLYING_LEN_MAX: usize = 2 * MESSAGE_LEN_MAX;

/// A client's public key, hashed.
pub type Key = [u8; 32];

/// A store that is about to be put in place: whoever has this identity afterwards is the stored
/// file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Intent {
    /// The operation's number.
    pub seq: u64,
    /// What will be stored there.
    pub identity: Vec<u8>,
    /// The file that it will be.
    pub file: types::FileId,
    /// Its size and time of modification, if it is made beside the file; otherwise the file itself
    /// is changed.
    pub beside: Option<(u64, types::Time)>,
}
wire_struct!(Intent { seq, identity, file, beside });

/// What a client may use, and how its operations ended there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// As whom.
    pub user: User,
    /// Which log the numbers are of; 0: none yet.
    pub incarnation: u64,
    /// The last operation that was answered.
    pub heard: u64,
    /// How operations ended that the client may ask for again.
    pub outcomes: BTreeMap<u64, Outcome>,
    /// The store that may be half done.
    pub intent: Option<Intent>,
    /// Ids for files that it makes with this log, by the first of each range, with the end of that.
    pub ids: BTreeMap<u64, u64>,
    /// Ids that it was ever given.
    pub given_count: u64,
    /// Operations that may be done although they were not answered, in the order of their numbers.
    pub applying: Vec<(u64, Operation)>,
    /// It works under delegations: which, nobody knows after a crash.
    pub has_delegations: bool,
    /// Files that others see as the client's stores will make them, with when they began to.
    pub promised: BTreeMap<types::FileId, u64>,
}
wire_struct!(Grant {
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

impl Grant {
    /// True if the client was given the id with this index.
    pub fn was_given(&self, index: u64) -> bool {
        self.ids.range(..=index).next_back().is_some_and(|(_, end)| index < *end)
    }
}

/// A client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Client {
    /// By which changes are told to be its own.
    pub number: u32,
    /// By names of volumes.
    pub grants: BTreeMap<String, Grant>,
}
wire_struct!(Client { number, grants });

/// A change of the state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A volume is exported from now on.
    Volume {
        /// Its name.
        name: String,
        /// Of its stamps.
        epoch: u64,
    },
    /// A run of the home begins.
    Run {
        /// Of this volume.
        volume: String,
        /// With what.
        start: RunStart,
    },
    /// A client accepted an invitation.
    Enrolled {
        /// Who.
        key: Key,
        /// To what.
        volumes: Vec<String>,
        /// As whom.
        user: User,
    },
    /// A client begins a new log.
    Began {
        /// Who.
        key: Key,
        /// Where.
        volume: String,
        /// The log.
        incarnation: u64,
    },
    /// Something was learned of a file.
    Learned {
        /// Where.
        volume: String,
        /// What.
        learned: Learned,
    },
    /// All ids below this index that nobody had were given to a client.
    Reserved {
        /// To whom.
        key: Key,
        /// Where.
        volume: String,
        /// The first that was not.
        next: u64,
    },
    /// A store is about to be put in place.
    Intended {
        /// Whose.
        key: Key,
        /// Where.
        volume: String,
        /// What.
        intent: Intent,
    },
    /// Operations are about to be done.
    Applying {
        /// Whose.
        key: Key,
        /// Where.
        volume: String,
        /// Which, by their numbers.
        operations: Vec<(u64, Operation)>,
    },
    /// An operation ended.
    Answered {
        /// Whose.
        key: Key,
        /// Where.
        volume: String,
        /// Which.
        seq: u64,
        /// How.
        outcome: Outcome,
    },
    /// The client knows how its operations ended, up to this one.
    Acknowledged {
        /// Whose.
        key: Key,
        /// Where.
        volume: String,
        /// Which.
        through: u64,
    },
    /// A client begins to work under delegations, or does so no more.
    Delegated {
        /// Who.
        key: Key,
        /// Where.
        volume: String,
        /// It does.
        does: bool,
    },
    /// A file has the contents that a client's store will give it, to whoever asks.
    Promised {
        /// Whose.
        key: Key,
        /// Where.
        volume: String,
        /// Which.
        file: types::FileId,
        /// When its contents changed by that.
        contents: u64,
    },
    /// A promised store is done, or will not be done.
    Concluded {
        /// Whose.
        key: Key,
        /// Where.
        volume: String,
        /// Of which file.
        file: types::FileId,
    },
    /// What a client has made was there already.
    Became {
        /// Where.
        volume: String,
        /// The client's id for it.
        alias: types::FileId,
        /// What it is.
        real: types::FileId,
    },
    /// Nothing is done for a client any more, but for what it is invited to later.
    TurnedAway {
        /// Who.
        key: Key,
    },
    /// A client's user is in other groups now.
    Acts {
        /// Whose.
        key: Key,
        /// Where.
        volume: String,
        /// As whom it acts.
        user: User,
    },
    /// What whoever invited a client calls it.
    Named {
        /// Whom.
        key: Key,
        /// How.
        name: String,
    },
}
wire_enum!(Record {
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

/// See the module's header.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// By name.
    pub volumes: BTreeMap<String, Volume>,
    /// By key.
    pub clients: BTreeMap<Key, Client>,
    /// What clients may not use any more. What they did there is remembered: it may be under way,
    /// and they may be invited again.
    pub revoked: BTreeSet<(Key, String)>,
    /// What they are called by whoever invited them, if by anything.
    pub names: BTreeMap<Key, String>,
}

impl State {
    /// What a client may use, as whom.
    pub fn granted(&self, key: &Key) -> impl Iterator<Item = (&String, &Grant)> {
        let all = self.clients.get(key).into_iter().flat_map(|client| &client.grants);
        all.filter(|(volume, _)| !self.revoked.contains(&(*key, volume.to_string())))
    }

    /// Whether a client is served.
    pub fn serves(&self, key: &Key) -> bool {
        self.granted(key).next().is_some()
    }

    /// What a client may do in a volume.
    pub fn grant(&self, key: &Key, volume: &str) -> Option<(u32, &Grant)> {
        let client = self.clients.get(key)?;
        let may = !self.revoked.contains(&(*key, volume.to_string()));
        Some((client.number, client.grants.get(volume).filter(|_| may)?))
    }

    /// Clients that may have delegations of a volume.
    pub fn delegated(&self, volume: &str) -> BTreeSet<u32> {
        let does = |client: &&Client| client.grants.get(volume).is_some_and(|grant| grant.has_delegations);
        self.clients.values().filter(does).map(|client| client.number).collect()
    }

    fn grant_mut(&mut self, key: &Key, volume: &str) -> Option<&mut Grant> {
        self.clients.get_mut(key)?.grants.get_mut(volume)
    }

    /// Makes a change. `None` if it makes no sense, which only a damaged log can bring about.
    pub fn apply(&mut self, record: Record) -> Option<()> {
        match record {
            Record::Volume { name, epoch } => {
                // A client knows of nothing outside a volume, whose root is what a kernel calls 1.
                self.volumes.entry(name).or_insert_with(|| Volume::new(0, epoch));
            }
            Record::Run { volume, start } => self.volumes.get_mut(&volume)?.begin_run(start)?,
            Record::Enrolled { key, volumes, user } => {
                let number = u32::try_from(self.clients.len()).ok()? + 1;
                let client = self.clients.entry(key).or_insert_with(|| Client { number, grants: BTreeMap::new() });
                let grant = Grant {
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
            Record::Began { key, volume, incarnation } => {
                let grant = self.grant_mut(&key, &volume)?;
                let before = std::mem::replace(&mut grant.incarnation, incarnation);
                (grant.heard, grant.intent) = (0, None);
                grant.outcomes.clear();
                grant.applying.clear();
                // The client may be a copy of what it was, which does not know what it has made
                // with them since.
                grant.ids.clear();
                if before > 0 {
                    let author = self.clients.get(&key)?.number;
                    self.volumes.get_mut(&volume)?.disown(author);
                }
            }
            Record::Learned { volume, learned } => {
                self.volumes.get_mut(&volume)?.learn(learned)?;
            }
            Record::Reserved { key, volume, next } => {
                let reserved = self.volumes.get_mut(&volume)?.reserve(next)?;
                let grant = self.grant_mut(&key, &volume)?;
                grant.given_count = grant.given_count.saturating_add(reserved.end - reserved.start);
                grant.ids.insert(reserved.start, reserved.end);
            }
            Record::Intended { key, volume, intent } => self.grant_mut(&key, &volume)?.intent = Some(intent),
            Record::Delegated { key, volume, does } => self.grant_mut(&key, &volume)?.has_delegations = does,
            Record::Applying { key, volume, operations } => self.grant_mut(&key, &volume)?.applying = operations,
            Record::Answered { key, volume, seq, outcome } => {
                let grant = self.grant_mut(&key, &volume)?;
                grant.applying.retain(|(other, _)| *other > seq);
                (grant.heard, grant.intent) = (grant.heard.max(seq), None);
                grant.outcomes.insert(seq, outcome);
                while grant.outcomes.len() > OUTCOME_COUNT_MAX {
                    grant.outcomes.pop_first();
                }
            }
            Record::Acknowledged { key, volume, through } => {
                let grant = self.grant_mut(&key, &volume)?;
                grant.outcomes = grant.outcomes.split_off(&through.saturating_add(1));
            }
            Record::Promised { key, volume, file, contents } => {
                self.grant_mut(&key, &volume)?.promised.insert(file, contents);
            }
            Record::Concluded { key, volume, file } => {
                self.grant_mut(&key, &volume)?.promised.remove(&file);
            }
            Record::Became { volume, alias, real } => self.volumes.get_mut(&volume)?.became(alias, real)?,
            Record::TurnedAway { key } => {
                for (volume, grant) in &mut self.clients.get_mut(&key)?.grants {
                    grant.has_delegations = false;
                    self.revoked.insert((key, volume.clone()));
                }
            }
            Record::Acts { key, volume, user } => self.grant_mut(&key, &volume)?.user = user,
            Record::Named { key, name } => {
                self.clients.get(&key)?;
                self.names.insert(key, name);
            }
        }
        Some(())
    }
}

impl Wire for State {
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
        Ok(State { volumes, clients, revoked, names })
    }
}
