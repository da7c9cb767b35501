//! The encoding of these messages: a tag (u8) and the fields in the order of their declaration,
//! little-endian. A duration is a u64 of nanoseconds, a flag a byte 0 or 1, an option a flag and
//! the thing, a list a u32 count and that many elements, a string a u32 length and that many bytes
//! of UTF-8.

use super::{
    AuthorityKey, CONTROL_VERSION, ControlAnswer, ControlError, ControlRequest, Hello, Holdings, Moving, NodeReport,
    NodeState, NodesReport, Redundancy, Renewed, Resume, SpreadReport, Welcome, WhoReport,
};
use crate::lock_server::{ClientLock, LocksOnFile};
use crate::lock_wire::{LOCK_LEN, lock, put_lock};
use crate::seating::{Reseating, Seating};
use bytes::Bytes;
use manager::wire::{file_use, held, put_file_use, put_held};
use policy::space::{LiveShare, SpaceShare};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use stripe::LogTail;
use types::codec::{DecodeError, Put, Reader};
use types::{ClientId, FileId, LogId, ManagerId, Maps, NodeId, SegmentId, StoreId};

impl ControlRequest {
    /// Encodes it.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        match self {
            ControlRequest::Hello(hello) => {
                out.put_u8(0);
                hello.encode(&mut out);
            }
            ControlRequest::Renew { session, store_bytes, live_bytes, wants_space, maps_epoch, seating, unreached } => {
                out.put_u8(1);
                out.put_u64(*session);
                out.put_u64(*store_bytes);
                out.put_u64(*live_bytes);
                out.put_u8((*wants_space).into());
                out.put_u64(*maps_epoch);
                out.put_u64(*seating);
                out.put_u32(unreached.len() as u32);
                unreached.iter().for_each(|node| out.put_u16(node.raw()));
            }
            ControlRequest::Leave { session } => {
                out.put_u8(2);
                out.put_u64(*session);
            }
            ControlRequest::Nodes => out.put_u8(3),
            ControlRequest::Resume(resume) => {
                out.put_u8(4);
                resume.encode(&mut out);
            }
            ControlRequest::Claim { session, term, holdings } => {
                out.put_u8(5);
                out.put_u64(*session);
                out.put_u64(*term);
                put_holdings(&mut out, holdings);
            }
            ControlRequest::Who(file) => {
                out.put_u8(6);
                out.put_u64(file.raw());
            }
            ControlRequest::FirstNode(addresses) => {
                out.put_u8(7);
                put_addresses(&mut out, addresses);
            }
            ControlRequest::AuthorityKey => out.put_u8(8),
            ControlRequest::Order(order) => {
                out.put_u8(9);
                out.put_blob(order.as_bytes());
            }
        }
        out.into()
    }

    /// Decodes what [`encode`](Self::encode) wrote. A hello of another version may have more
    /// fields, which are ignored. A resume of another version is decoded as its hello.
    pub fn decode(bytes: &[u8]) -> Result<ControlRequest, DecodeError> {
        let r = &mut Reader::new(bytes);
        let request = match r.u8("control request")? {
            tag @ (0 | 4) => {
                let hello = Hello::decode(r)?;
                match hello.version {
                    CONTROL_VERSION if tag == 4 => ControlRequest::Resume(Resume::decode(hello, r)?),
                    CONTROL_VERSION => ControlRequest::Hello(hello),
                    _ => return Ok(ControlRequest::Hello(hello)),
                }
            }
            1 => {
                let (session, store_bytes) = (r.u64("session")?, r.u64("store bytes")?);
                let (live_bytes, wants_space) = (r.u64("live bytes")?, flag(r, "wants space")?);
                let (maps_epoch, seating) = (r.u64("maps epoch")?, r.u64("seating version")?);
                let count = r.count(2, "nodes")?;
                let node = |_| Ok(NodeId::new(r.u16("node")?));
                let unreached = (0..count).map(node).collect::<Result<_, DecodeError>>()?;
                ControlRequest::Renew { session, store_bytes, live_bytes, wants_space, maps_epoch, seating, unreached }
            }
            5 => {
                let (session, term) = (r.u64("session")?, r.u64("term")?);
                ControlRequest::Claim { session, term, holdings: holdings(r)? }
            }
            2 => ControlRequest::Leave { session: r.u64("session")? },
            3 => ControlRequest::Nodes,
            6 => ControlRequest::Who(FileId::new(r.u64("file")?)),
            7 => ControlRequest::FirstNode(addresses(r)?),
            8 => ControlRequest::AuthorityKey,
            9 => ControlRequest::Order(string(r, "order")?),
            _ => return Err(DecodeError::Invalid("control request")),
        };
        whole(r, request, "control request")
    }
}

impl Hello {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.node.raw());
        out.put_u16(self.version);
        out.put_u8(self.is_mounted.into());
        out.put_blob(self.address.as_bytes());
        out.put_u8(self.takes_stores.into());
        out.put_u8(self.takes_managers.into());
        out.put_u8(self.takes_votes.into());
        out.put_blob(self.program.as_bytes());
    }

    /// Of another version, only the first two fields.
    fn decode(r: &mut Reader<'_>) -> Result<Hello, DecodeError> {
        let (node, version) = (NodeId::new(r.u16("node")?), r.u16("control version")?);
        if version != CONTROL_VERSION {
            let (address, program) = (String::new(), String::new());
            let (is_mounted, takes_stores, takes_managers, takes_votes) = (false, false, false, false);
            return Ok(Hello {
                node,
                version,
                is_mounted,
                address,
                takes_stores,
                takes_managers,
                takes_votes,
                program,
            });
        }
        let (is_mounted, address) = (flag(r, "is mounted")?, string(r, "node address")?);
        let (takes_stores, takes_managers) = (flag(r, "takes stores")?, flag(r, "takes managers")?);
        let takes_votes = flag(r, "takes votes")?;
        let program = string(r, "program version")?;
        Ok(Hello { node, version, is_mounted, address, takes_stores, takes_managers, takes_votes, program })
    }
}

fn put_holdings(out: &mut Vec<u8>, holdings: &Holdings) {
    out.put_u64(holdings.committed_seq);
    out.put_u32(holdings.epoch);
    put_held(out, &holdings.tokens);
}

fn holdings(r: &mut Reader<'_>) -> Result<Holdings, DecodeError> {
    let (committed_seq, epoch) = (r.u64("committed seq")?, r.u32("log epoch")?);
    Ok(Holdings { tokens: held(r)?, epoch, committed_seq })
}

impl Resume {
    fn encode(&self, out: &mut Vec<u8>) {
        self.hello.encode(out);
        for number in [self.session, self.term, self.store_bytes, self.live_bytes] {
            out.put_u64(number);
        }
        put_holdings(out, &self.holdings);
        out.put_u32(self.locks.len() as u32);
        for (file, lock) in &self.locks {
            out.put_u64(file.raw());
            put_lock(out, lock);
        }
    }

    /// Reads what comes after the hello.
    fn decode(hello: Hello, r: &mut Reader<'_>) -> Result<Resume, DecodeError> {
        let (session, term) = (r.u64("session")?, r.u64("term")?);
        let (store_bytes, live_bytes) = (r.u64("store bytes")?, r.u64("live bytes")?);
        let holdings = holdings(r)?;
        let count = r.count(LOCK_LEN, "locks")?;
        let held = |r: &mut Reader<'_>| Ok((FileId::new(r.u64("locked file")?), lock(r)?));
        let locks = (0..count).map(|_| held(r)).collect::<Result<_, DecodeError>>()?;
        Ok(Resume { hello, session, term, store_bytes, live_bytes, holdings, locks })
    }
}

impl ControlAnswer {
    /// Encodes an answer or an error.
    pub fn encode(answer: &Result<ControlAnswer, ControlError>) -> Bytes {
        let mut out = Vec::new();
        match answer {
            Ok(ControlAnswer::Welcome(welcome)) => {
                out.put_u8(0);
                welcome.encode(&mut out);
            }
            Ok(ControlAnswer::Renewed(Renewed { lease, share, round, maps, seating, reseating, absent })) => {
                out.put_u8(1);
                put_duration(&mut out, *lease);
                put_share(&mut out, share.as_ref());
                out.put_u64(*round);
                out.put_u8(maps.is_some().into());
                if let Some(maps) = maps {
                    out.put_u64(maps.epoch);
                    out.put_blob(&maps.bytes);
                }
                out.put_u8(seating.is_some().into());
                if let Some(seating) = seating {
                    seating.encode(&mut out);
                }
                out.put_u8(reseating.is_some().into());
                if let Some(reseating) = reseating {
                    reseating.encode(&mut out);
                }
                put_stores(&mut out, absent);
            }
            Ok(ControlAnswer::Left) => out.put_u8(2),
            Ok(ControlAnswer::Nodes(report)) => {
                out.put_u8(3);
                report.encode(&mut out);
            }
            Ok(ControlAnswer::Noted) => out.put_u8(4),
            Ok(ControlAnswer::Who(report)) => {
                out.put_u8(5);
                report.encode(&mut out);
            }
            Ok(ControlAnswer::FirstNode(addresses)) => {
                out.put_u8(6);
                put_addresses(&mut out, addresses);
            }
            Ok(ControlAnswer::AuthorityKey(AuthorityKey(pem))) => {
                out.put_u8(7);
                out.put_blob(pem.as_bytes());
            }
            Ok(ControlAnswer::Done(done)) => {
                out.put_u8(8);
                out.put_u8(done.is_ok().into());
                out.put_blob(done.as_ref().map_or_else(String::as_bytes, String::as_bytes));
            }
            Err(ControlError::UnknownSession) => out.put_u8(16),
            Err(ControlError::Restarted(term)) => {
                out.put_u8(20);
                out.put_u64(*term);
            }
            Err(ControlError::NotMember) => out.put_u8(17),
            Err(ControlError::Version(spoken)) => {
                out.put_u8(18);
                out.put_u16(*spoken);
            }
            Err(ControlError::Unavailable(why)) => {
                out.put_u8(19);
                out.put_blob(why.as_bytes());
            }
            Err(error @ ControlError::Malformed(_)) => {
                out.put_u8(19);
                out.put_blob(error.to_string().as_bytes());
            }
        }
        out.into()
    }

    /// Decodes what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// The error that was encoded, or [`ControlError::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<ControlAnswer, ControlError> {
        let r = &mut Reader::new(bytes);
        let answer = match r.u8("control answer")? {
            0 => Ok(ControlAnswer::Welcome(Welcome::decode(r)?)),
            1 => {
                let (lease, share, round) = (duration(r, "lease")?, share(r)?, r.u64("round")?);
                let maps = match flag(r, "maps")? {
                    true => Some(Maps { epoch: r.u64("maps epoch")?, bytes: Bytes::copy_from_slice(r.blob("maps")?) }),
                    false => None,
                };
                let seating = if flag(r, "seating")? { Some(Seating::decode(r)?) } else { None };
                let reseating = if flag(r, "reseating")? { Some(Reseating::decode(r)?) } else { None };
                let absent = stores(r, "store that does not answer")?;
                Ok(ControlAnswer::Renewed(Renewed { lease, share, round, maps, seating, reseating, absent }))
            }
            2 => Ok(ControlAnswer::Left),
            3 => Ok(ControlAnswer::Nodes(NodesReport::decode(r)?)),
            4 => Ok(ControlAnswer::Noted),
            5 => Ok(ControlAnswer::Who(WhoReport::decode(r)?)),
            6 => Ok(ControlAnswer::FirstNode(addresses(r)?)),
            7 => Ok(ControlAnswer::AuthorityKey(AuthorityKey(string(r, "authority's key")?))),
            8 => {
                let (is_done, said) = (flag(r, "done")?, string(r, "what was done")?);
                Ok(ControlAnswer::Done(if is_done { Ok(said) } else { Err(said) }))
            }
            16 => Err(ControlError::UnknownSession),
            17 => Err(ControlError::NotMember),
            18 => Err(ControlError::Version(r.u16("control version")?)),
            19 => Err(ControlError::Unavailable(string(r, "reason")?)),
            20 => Err(ControlError::Restarted(r.u64("term")?)),
            _ => return Err(DecodeError::Invalid("control answer").into()),
        };
        whole(r, (), "control answer")?;
        answer
    }
}

fn put_addresses(out: &mut Vec<u8>, addresses: &[String]) {
    out.put_u32(addresses.len() as u32);
    addresses.iter().for_each(|address| out.put_blob(address.as_bytes()));
}

fn addresses(r: &mut Reader<'_>) -> Result<Vec<String>, DecodeError> {
    let count = r.count(4, "addresses")?;
    (0..count).map(|_| string(r, "address")).collect()
}

fn put_time_left(out: &mut Vec<u8>, time_left: Option<Duration>) {
    out.put_u8(time_left.is_some().into());
    time_left.into_iter().for_each(|left| put_duration(out, left));
}

fn time_left(r: &mut Reader<'_>) -> Result<Option<Duration>, DecodeError> {
    flag(r, "time left")?.then(|| duration(r, "time left")).transpose()
}

impl NodesReport {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.nodes.len() as u32);
        self.nodes.iter().for_each(|node| node.encode(out));
        out.put_u16(self.leader.raw());
        out.put_u32(self.places.len() as u32);
        for (store, node) in &self.places {
            out.put_u16(store.raw());
            out.put_u16(node.raw());
        }
        put_stores(out, &self.away);
        out.put_u8(self.spread.moving.is_some().into());
        if let Some(Moving { store, to, percent, time_left }) = self.spread.moving {
            out.put_u16(store.raw());
            out.put_u16(to.raw());
            out.put_u8(percent);
            put_time_left(out, time_left);
        }
        out.put_blob(self.spread.trouble.as_bytes());
        match self.redundancy {
            Redundancy::Unknown => out.put_u8(0),
            Redundancy::Whole => out.put_u8(1),
            Redundancy::Lacks { bytes, time_left } => {
                out.put_u8(2);
                out.put_u64(bytes);
                put_time_left(out, time_left);
            }
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<NodesReport, DecodeError> {
        let count = r.count(NODE_LEN_MIN, "nodes")?;
        let nodes = (0..count).map(|_| NodeReport::decode(r)).collect::<Result<_, _>>()?;
        let leader = NodeId::new(r.u16("leader")?);
        let mut places = BTreeMap::new();
        for _ in 0..r.count(4, "places of stores")? {
            let (store, node) = (StoreId::new(r.u16("store")?), NodeId::new(r.u16("place of a store")?));
            if places.last_key_value().is_some_and(|(last, _)| *last >= store) {
                return Err(DecodeError::Invalid("places of stores"));
            }
            places.insert(store, node);
        }
        let away = stores(r, "store that is away")?;
        let moving = match flag(r, "moving")? {
            true => {
                let (store, to) = (StoreId::new(r.u16("store that moves")?), NodeId::new(r.u16("its new place")?));
                Some(Moving { store, to, percent: r.u8("percent")?, time_left: time_left(r)? })
            }
            false => None,
        };
        let spread = SpreadReport { moving, trouble: string(r, "trouble")? };
        let redundancy = match r.u8("redundancy")? {
            0 => Redundancy::Unknown,
            1 => Redundancy::Whole,
            2 => Redundancy::Lacks { bytes: r.u64("lacking bytes")?, time_left: time_left(r)? },
            _ => return Err(DecodeError::Invalid("redundancy")),
        };
        Ok(NodesReport { nodes, leader, places, away, spread, redundancy })
    }
}

fn put_locks(out: &mut Vec<u8>, locks: &[ClientLock]) {
    out.put_u32(locks.len() as u32);
    for ClientLock { client, lock } in locks {
        out.put_u32(client.raw());
        put_lock(out, lock);
    }
}

fn locks(r: &mut Reader<'_>) -> Result<Vec<ClientLock>, DecodeError> {
    let count = r.count(4 + LOCK_LEN, "locks")?;
    let one = |r: &mut Reader<'_>| Ok(ClientLock { client: ClientId::new(r.u32("client")?), lock: lock(r)? });
    (0..count).map(|_| one(r)).collect()
}

impl WhoReport {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.manager.raw());
        out.put_u16(self.place.raw());
        put_file_use(out, &self.tokens);
        put_locks(out, &self.locks.held);
        put_locks(out, &self.locks.waiting);
        out.put_u32(self.names.len() as u32);
        for (node, name) in &self.names {
            out.put_u16(node.raw());
            out.put_blob(name.as_bytes());
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<WhoReport, DecodeError> {
        let (manager, place) = (ManagerId::new(r.u16("manager")?), NodeId::new(r.u16("place of a manager")?));
        let (tokens, held, waiting) = (file_use(r)?, locks(r)?, locks(r)?);
        let mut names = BTreeMap::new();
        for _ in 0..r.count(6, "nodes")? {
            let (node, name) = (NodeId::new(r.u16("node")?), string(r, "node name")?);
            if names.last_key_value().is_some_and(|(last, _)| *last >= node) {
                return Err(DecodeError::Invalid("nodes"));
            }
            names.insert(node, name);
        }
        Ok(WhoReport { manager, place, tokens, locks: LocksOnFile { held, waiting }, names })
    }
}

/// Bytes of an encoded [`NodeReport`], at least.
const NODE_LEN_MIN: usize = 2 + 4 + 4 + 1 + 1 + 2 + 1 + 1 + 1 + 4;

impl Welcome {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.session);
        put_duration(out, self.lease);
        out.put_blob(&self.config);
        out.put_u64(self.maps_epoch);
        out.put_u64(self.in_flight_max);
        out.put_u32(self.tail.log.raw());
        out.put_u32(self.tail.epoch);
        out.put_u64(self.tail.next_seq);
        out.put_u8(self.tail.last.is_some().into());
        if let Some(last) = &self.tail.last {
            last.encode(out);
        }
        out.put_u64(self.tail.order);
        put_share(out, self.share.as_ref());
        out.extend_from_slice(&self.first_node);
        self.seating.encode(out);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Welcome, DecodeError> {
        Ok(Welcome {
            session: r.u64("session")?,
            lease: duration(r, "lease")?,
            config: Bytes::copy_from_slice(r.blob("configuration")?),
            maps_epoch: r.u64("maps epoch")?,
            in_flight_max: r.u64("bytes in flight")?,
            tail: LogTail {
                log: LogId::new(r.u32("log")?),
                epoch: r.u32("log epoch")?,
                next_seq: r.u64("next seq")?,
                last: if flag(r, "last segment")? { Some(SegmentId::decode(r)?) } else { None },
                segments: Vec::new(),
                lost: Vec::new(),
                order: r.u64("order")?,
            },
            share: share(r)?,
            first_node: {
                let mut fingerprint = [0; 32];
                fingerprint.copy_from_slice(r.take(32, "fingerprint")?);
                fingerprint
            },
            seating: Seating::decode(r)?,
        })
    }
}

impl NodeReport {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.id.raw());
        out.put_blob(self.name.as_bytes());
        out.put_blob(self.address.as_bytes());
        match self.state {
            NodeState::Up { lease_left } => {
                out.put_u8(0);
                put_duration(out, lease_left);
            }
            NodeState::Down { since: None } => out.put_u8(1),
            NodeState::Down { since: Some(since) } => {
                out.put_u8(2);
                put_duration(out, since);
            }
        }
        out.put_u8(self.is_mounted.into());
        out.put_u16(self.manager_count);
        out.put_u8(self.takes_managers.into());
        out.put_u8(self.is_voter.into());
        out.put_u8(self.is_draining.into());
        out.put_blob(self.program.as_bytes());
    }

    fn decode(r: &mut Reader<'_>) -> Result<NodeReport, DecodeError> {
        Ok(NodeReport {
            id: NodeId::new(r.u16("node")?),
            name: string(r, "node name")?,
            address: string(r, "node address")?,
            state: match r.u8("node state")? {
                0 => NodeState::Up { lease_left: duration(r, "lease left")? },
                1 => NodeState::Down { since: None },
                2 => NodeState::Down { since: Some(duration(r, "down since")?) },
                _ => return Err(DecodeError::Invalid("node state")),
            },
            is_mounted: flag(r, "is mounted")?,
            manager_count: r.u16("managers")?,
            takes_managers: flag(r, "takes managers")?,
            is_voter: flag(r, "is a voter")?,
            is_draining: flag(r, "is draining")?,
            program: string(r, "program version")?,
        })
    }
}

fn put_stores(out: &mut Vec<u8>, stores: &BTreeSet<StoreId>) {
    out.put_u32(stores.len() as u32);
    stores.iter().for_each(|store| out.put_u16(store.raw()));
}

fn stores(r: &mut Reader, what: &'static str) -> Result<BTreeSet<StoreId>, DecodeError> {
    let mut stores = BTreeSet::new();
    for _ in 0..r.count(2, what)? {
        let store = StoreId::new(r.u16(what)?);
        if stores.last().is_some_and(|last| *last >= store) {
            return Err(DecodeError::Invalid(what));
        }
        stores.insert(store);
    }
    Ok(stores)
}

fn put_share(out: &mut Vec<u8>, share: Option<&SpaceShare>) {
    out.put_u8(share.is_some().into());
    let Some(share) = share else { return };
    out.put_u64(share.covered_seq);
    out.put_u64(share.free_bytes);
    out.put_u64(share.limit_bytes);
    out.put_u8(share.live.is_some().into());
    if let Some(live) = &share.live {
        out.put_u64(live.counted_bytes);
        out.put_u64(live.others_bytes);
    }
}

fn share(r: &mut Reader<'_>) -> Result<Option<SpaceShare>, DecodeError> {
    if !flag(r, "space share")? {
        return Ok(None);
    }
    let (covered_seq, free_bytes, limit_bytes) = (r.u64("covered seq")?, r.u64("free bytes")?, r.u64("limit")?);
    let live = match flag(r, "live bytes")? {
        true => Some(LiveShare { counted_bytes: r.u64("live bytes")?, others_bytes: r.u64("others' bytes")? }),
        false => None,
    };
    Ok(Some(SpaceShare { covered_seq, free_bytes, limit_bytes, live }))
}

fn put_duration(out: &mut Vec<u8>, duration: Duration) {
    out.put_u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
}

fn duration(r: &mut Reader<'_>, what: &'static str) -> Result<Duration, DecodeError> {
    Ok(Duration::from_nanos(r.u64(what)?))
}

fn flag(r: &mut Reader<'_>, what: &'static str) -> Result<bool, DecodeError> {
    match r.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Invalid(what)),
    }
}

fn string(r: &mut Reader<'_>, what: &'static str) -> Result<String, DecodeError> {
    String::from_utf8(r.blob(what)?.to_vec()).map_err(|_| DecodeError::Invalid(what))
}

fn whole<T>(r: &Reader<'_>, value: T, what: &'static str) -> Result<T, DecodeError> {
    if r.is_empty() { Ok(value) } else { Err(DecodeError::Invalid(what)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KnownNode;
    use crate::seating::Seated;
    use manager::api::{FileUse, HeldToken, TokenUse, TokenWait};
    use manager::token::Mode;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use vfs::fs::{FileLock, LockSpace};

    const RIGHTS: [Option<Mode>; 3] = [None, Some(Mode::Read), Some(Mode::Write)];

    fn some_share() -> impl Strategy<Value = Option<SpaceShare>> {
        let share = (any::<[u64; 3]>(), any::<Option<(u64, u64)>>());
        proptest::option::of(share.prop_map(|([covered_seq, free_bytes, limit_bytes], live)| SpaceShare {
            covered_seq,
            free_bytes,
            limit_bytes,
            live: live.map(|(counted_bytes, others_bytes)| LiveShare { counted_bytes, others_bytes }),
        }))
    }

    fn request() -> impl Strategy<Value = ControlRequest> {
        prop_oneof![
            (any::<u16>(), any::<[bool; 4]>(), ".{0,9}", ".{0,9}").prop_map(
                |(node, [is_mounted, takes_stores, takes_managers, takes_votes], address, program)| {
                    let (node, version) = (NodeId::new(node), CONTROL_VERSION);
                    ControlRequest::Hello(Hello {
                        node,
                        version,
                        is_mounted,
                        address,
                        takes_stores,
                        takes_managers,
                        takes_votes,
                        program,
                    })
                }
            ),
            (any::<[u64; 5]>(), any::<bool>(), any::<Vec<u16>>()).prop_map(
                |([session, store_bytes, live_bytes, maps_epoch, seating], wants_space, unreached)| {
                    let unreached = unreached.into_iter().map(NodeId::new).collect();
                    ControlRequest::Renew {
                        session,
                        store_bytes,
                        live_bytes,
                        wants_space,
                        maps_epoch,
                        seating,
                        unreached,
                    }
                }
            ),
            resume().prop_map(|Resume { session, term, holdings, .. }| {
                ControlRequest::Claim { session, term, holdings }
            }),
            any::<u64>().prop_map(|session| ControlRequest::Leave { session }),
            Just(ControlRequest::Nodes),
            Just(ControlRequest::AuthorityKey),
            ".{0,9}".prop_map(ControlRequest::Order),
            any::<u64>().prop_map(|file| ControlRequest::Who(FileId::new(file))),
            resume().prop_map(ControlRequest::Resume),
        ]
    }

    fn resume() -> impl Strategy<Value = Resume> {
        let token = (any::<[u64; 2]>(), 0..RIGHTS.len()).prop_map(|([file, number], mode)| HeldToken {
            file: FileId::new(file),
            mode: RIGHTS[mode],
            number,
        });
        let lock =
            (any::<[u64; 4]>(), any::<u32>(), any::<bool>()).prop_map(|([file, owner, start, end], pid, kind)| {
                let lock =
                    FileLock { space: LockSpace::Flock, owner: owner.into(), pid, exclusive: Some(kind), start, end };
                (FileId::new(file), lock)
            });
        let lists = (proptest::collection::vec(token, 0..5), proptest::collection::vec(lock, 0..3));
        (any::<u16>(), any::<[u64; 5]>(), any::<u32>(), ".{0,9}", lists).prop_map(
            |(node, [session, term, store_bytes, live_bytes, committed_seq], epoch, address, (tokens, locks))| {
                let (node, version) = (NodeId::new(node), CONTROL_VERSION);
                let (is_mounted, takes_stores, takes_managers, takes_votes) = (true, false, true, false);
                let program = "1.2.3".into();
                let hello =
                    Hello { node, version, is_mounted, address, takes_stores, takes_managers, takes_votes, program };
                let holdings = Holdings { tokens, epoch, committed_seq };
                Resume { hello, session, term, store_bytes, live_bytes, holdings, locks }
            },
        )
    }

    fn report() -> impl Strategy<Value = NodeReport> {
        let time = || any::<u64>().prop_map(Duration::from_nanos);
        let state = prop_oneof![
            time().prop_map(|lease_left| NodeState::Up { lease_left }),
            proptest::option::of(time()).prop_map(|since| NodeState::Down { since }),
        ];
        (any::<[u16; 2]>(), any::<[char; 3]>(), state, any::<[bool; 4]>()).prop_map(
            |(
                [id, manager_count],
                [name, address, program],
                state,
                [is_mounted, takes_managers, is_draining, is_voter],
            )| {
                NodeReport {
                    id: NodeId::new(id),
                    name: name.into(),
                    address: address.into(),
                    state,
                    is_mounted,
                    manager_count,
                    takes_managers,
                    is_voter,
                    is_draining,
                    program: program.into(),
                }
            },
        )
    }

    fn seating() -> impl Strategy<Value = Seating> {
        let at = (any::<u16>(), ".{0,9}", any::<[u8; 32]>()).prop_map(|(node, address, fingerprint)| KnownNode {
            node: NodeId::new(node),
            address,
            fingerprint,
        });
        let seated = (any::<u64>(), proptest::option::of(at)).prop_map(|(term, at)| Seated { term, at });
        (any::<u64>(), proptest::collection::vec(seated, 0..3))
            .prop_map(|(version, managers)| Seating { version, managers })
    }

    fn reseating() -> impl Strategy<Value = Reseating> {
        (any::<u64>(), any::<Vec<u16>>()).prop_map(|(term, managers)| Reseating {
            term,
            managers: managers.into_iter().map(ManagerId::new).collect(),
        })
    }

    fn nodes_report() -> impl Strategy<Value = NodesReport> {
        let places = proptest::collection::btree_map(any::<u16>(), any::<u16>(), 0..4);
        let left = || proptest::option::of(any::<u32>().prop_map(|left| Duration::from_secs(left.into())));
        let moving = proptest::option::of((any::<u16>(), any::<u16>(), 0..100u8, left()));
        let lacks = (any::<u64>(), left()).prop_map(|(bytes, time_left)| Redundancy::Lacks { bytes, time_left });
        let redundancy = prop_oneof![Just(Redundancy::Unknown), Just(Redundancy::Whole), lacks];
        (proptest::collection::vec(report(), 0..4), any::<u16>(), places, moving, ".{0,9}", redundancy).prop_map(
            |(nodes, leader, places, moving, trouble, redundancy)| {
                let place = |(store, node)| (StoreId::new(store), NodeId::new(node));
                let moving = moving.map(|(store, to, percent, time_left)| Moving {
                    store: StoreId::new(store),
                    to: NodeId::new(to),
                    percent,
                    time_left,
                });
                let spread = SpreadReport { moving, trouble };
                let places: BTreeMap<StoreId, NodeId> = places.into_iter().map(place).collect();
                let away = places.keys().copied().step_by(2).collect();
                NodesReport { nodes, leader: NodeId::new(leader), places, away, spread, redundancy }
            },
        )
    }

    fn who_report() -> impl Strategy<Value = WhoReport> {
        let mode = || prop_oneof![Just(Mode::Read), Just(Mode::Write)];
        let client = || any::<u32>().prop_map(ClientId::new);
        let token = (client(), mode(), 0..RIGHTS.len()).prop_map(|(client, mode, recalled)| TokenUse {
            client,
            mode,
            recalled: RIGHTS[recalled],
        });
        let wait = (client(), mode()).prop_map(|(client, mode)| TokenWait { client, mode });
        let tokens = (vec(token, 0..3), vec(client(), 0..3), vec(wait, 0..3));
        let tokens = tokens.prop_map(|(holders, open_at, waiting)| FileUse { holders, open_at, waiting });
        let lock = (client(), any::<[u64; 3]>(), any::<u32>(), any::<bool>()).prop_map(
            |(client, [owner, start, end], pid, exclusive)| {
                let (space, exclusive) = (LockSpace::Mixed, Some(exclusive));
                ClientLock { client, lock: FileLock { space, owner: owner.into(), pid, exclusive, start, end } }
            },
        );
        let locks = (vec(lock.clone(), 0..3), vec(lock, 0..3));
        let locks = locks.prop_map(|(held, waiting)| LocksOnFile { held, waiting });
        let names = proptest::collection::btree_map(any::<u16>().prop_map(NodeId::new), ".{0,9}", 0..4);
        (any::<[u16; 2]>(), tokens, locks, names).prop_map(|([manager, place], tokens, locks, names)| {
            let (manager, place) = (ManagerId::new(manager), NodeId::new(place));
            WhoReport { manager, place, tokens, locks, names }
        })
    }

    fn answer() -> impl Strategy<Value = Result<ControlAnswer, ControlError>> {
        let bytes = proptest::collection::vec(any::<u8>(), 0..40);
        let welcome =
            (any::<[u64; 5]>(), any::<[u32; 2]>(), any::<Option<(u32, u64)>>(), bytes, some_share(), seating());
        prop_oneof![
            welcome.prop_map(|(n, [log, epoch], last, config, share, seating)| {
                let log = LogId::new(log);
                let last = last.map(|(epoch, seq)| SegmentId { log, epoch, seq });
                Ok(ControlAnswer::Welcome(Welcome {
                    session: n[0],
                    lease: Duration::from_nanos(n[1]),
                    config: config.into(),
                    maps_epoch: n[2],
                    in_flight_max: n[3],
                    tail: LogTail {
                        log,
                        epoch,
                        next_seq: n[4],
                        last,
                        segments: Vec::new(),
                        lost: Vec::new(),
                        order: n[4],
                    },
                    share,
                    first_node: [n[0] as u8; 32],
                    seating,
                }))
            }),
            (
                any::<[u64; 2]>(),
                some_share(),
                any::<Option<(u64, [u8; 3])>>(),
                proptest::option::of(seating()),
                proptest::option::of(reseating())
            )
                .prop_map(|([lease, round], share, maps, seating, reseating)| {
                    let absent = (0..round % 4).map(|store| StoreId::new(store as u16)).collect();
                    let maps = maps.map(|(epoch, bytes)| Maps { epoch, bytes: bytes.to_vec().into() });
                    let lease = Duration::from_nanos(lease);
                    Ok(ControlAnswer::Renewed(Renewed { lease, share, round, maps, seating, reseating, absent }))
                }),
            Just(Ok(ControlAnswer::Left)),
            "[a-z]{0,9}".prop_map(|pem| Ok(ControlAnswer::AuthorityKey(AuthorityKey(pem)))),
            (any::<bool>(), ".{0,9}").prop_map(|(is_done, said)| Ok(ControlAnswer::Done(if is_done {
                Ok(said)
            } else {
                Err(said)
            }))),
            Just(Ok(ControlAnswer::Noted)),
            nodes_report().prop_map(|nodes| Ok(ControlAnswer::Nodes(nodes))),
            who_report().prop_map(|who| Ok(ControlAnswer::Who(who))),
            Just(Err(ControlError::UnknownSession)),
            any::<u64>().prop_map(|term| Err(ControlError::Restarted(term))),
            Just(Err(ControlError::NotMember)),
            any::<u16>().prop_map(|spoken| Err(ControlError::Version(spoken))),
            ".{0,20}".prop_map(|why| Err(ControlError::Unavailable(why))),
        ]
    }

    proptest! {
        #[test]
        fn prop_messages_come_back_and_truncated_ones_are_refused(request in request(), answer in answer()) {
            let bytes = request.encode();
            prop_assert_eq!(ControlRequest::decode(&bytes), Ok(request));
            for len in 0..bytes.len() {
                prop_assert!(ControlRequest::decode(&bytes[..len]).is_err());
            }
            let bytes = ControlAnswer::encode(&answer);
            prop_assert_eq!(ControlAnswer::decode(&bytes), answer);
            for len in 0..bytes.len() {
                prop_assert!(matches!(ControlAnswer::decode(&bytes[..len]), Err(ControlError::Malformed(_))));
            }
        }
    }

    #[test]
    fn regression_a_node_without_a_name_and_a_session_is_a_whole_report() {
        let state = NodeState::Down { since: None };
        let node = NodeReport {
            id: NodeId::new(0),
            name: String::new(),
            address: String::new(),
            state,
            is_mounted: false,
            manager_count: 0,
            takes_managers: false,
            is_voter: true,
            is_draining: true,
            program: String::new(),
        };
        let (places, spread, redundancy) = (BTreeMap::new(), SpreadReport::default(), Redundancy::Whole);
        let (nodes, leader, away) = (vec![node], NodeId::new(0), BTreeSet::new());
        let answer = Ok(ControlAnswer::Nodes(NodesReport { nodes, leader, places, away, spread, redundancy }));
        assert_eq!(ControlAnswer::decode(&ControlAnswer::encode(&answer)), answer);
    }

    #[test]
    fn a_hello_of_another_version_is_read_as_far_as_its_version() {
        let (node, version) = (NodeId::new(3), CONTROL_VERSION + 1);
        let (address, program) = (String::new(), String::new());
        let (is_mounted, takes_stores, takes_managers, takes_votes) = (false, false, false, false);
        let hello = Hello { node, version, is_mounted, address, takes_stores, takes_managers, takes_votes, program };
        let mut bytes = ControlRequest::Hello(hello.clone()).encode()[..5].to_vec();
        bytes.extend_from_slice(b"what a later version has");
        assert_eq!(ControlRequest::decode(&bytes), Ok(ControlRequest::Hello(hello)));
    }
}
