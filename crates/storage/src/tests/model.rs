//! Random requests against a server, and a model that checks its answers.
//!
//! The model survives crashes of the server's machine. A request that was not answered before a
//! crash may have been done or not. The next life finds out which, and insists on it from then on.

use crate::api::{Fence, Seal, Seals, Storage, StorageError};
use crate::pages::footprint;
use crate::server::{StoreIdentity, StoreServer};
use crate::testing::{FS, STORE, fragment_of, payload};
use bytes::Bytes;
use host::{SplitMix64, join_all};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{FragmentId, LogId, Maps, SegmentId, StoreId};

/// Capacity of the stores under test. It is so small that they fill up, reuse pages and compact all
/// the time.
const CAPACITY_BYTES: u64 = 12 << 20;
const LOGS: u32 = 3;
const CHUNK: u64 = 64 * 1024;

pub fn identity() -> StoreIdentity {
    StoreIdentity { fs: FS, store: STORE, capacity_bytes: CAPACITY_BYTES + 100 }
}

/// Two seeded numbers are enough for everything random here.
pub fn below(random: &SplitMix64, n: u64) -> u64 {
    host::Random::next_u64(random) % n
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// Acknowledged and not deleted.
    Held,
    /// Put or deleted, but it is unknown whether that lasts.
    Maybe,
    /// Deleted, but a crash may bring it back.
    Deleted,
}

/// What a store must hold.
#[derive(Default)]
pub struct Model {
    fragments: BTreeMap<(FragmentId, u16), Fate>,
    next_seq: BTreeMap<u32, u64>,
    seals: Seals,
    /// Asked for but not acknowledged.
    seals_asked: BTreeMap<LogId, Seal>,
    maps_epoch: u64,
    maps_asked: u64,
    /// Counts, so that a test can tell that it tested something.
    pub acknowledged: u64,
    pub full: u64,
    pub crashed_into: u64,
}

type SharedModel = Arc<Mutex<Model>>;

/// A fragment's length follows from its name.
fn len_of(id: FragmentId) -> u32 {
    let random = SplitMix64::new(id.segment.seq << 8 | u64::from(id.segment.log.raw()));
    let len = match below(&random, 8) {
        0 => 1 << 20,
        1 | 2 => 1 + below(&random, 1 << 20),
        3 => CHUNK * (1 + below(&random, 16)),
        4 => below(&random, 3),
        _ => below(&random, 40_000),
    };
    len as u32
}

fn maps(epoch: u64) -> Maps {
    Maps { epoch, bytes: Bytes::from(epoch.to_string()) }
}

impl Model {
    /// Notes a crash: changes that were not durable may be undone.
    pub fn crash(&mut self) {
        for fate in self.fragments.values_mut() {
            if *fate == Fate::Deleted {
                *fate = Fate::Maybe;
            }
        }
    }

    /// Notes that a checkpoint was written: deleted fragments stay deleted.
    fn recorded(&mut self) {
        self.fragments.retain(|_, fate| *fate != Fate::Deleted);
    }

    /// Notes that a seal was taken.
    fn seal(&mut self, seal: Seal) {
        let log = seal.log;
        self.seals.take(seal);
        if let Some(seal) = self.seals.discarding(log) {
            self.fragments.retain(|(id, _), _| !seal.discards(&id.segment));
        }
    }

    /// An epoch that may write, or now and then one that may not.
    fn epoch(&self, log: u32, random: &SplitMix64) -> u32 {
        let seal = self.seals.newest(LogId::new(log)).map_or(0, |seal| seal.epoch);
        if below(random, 20) == 0 { seal.saturating_sub(1) } else { seal }
    }

    fn any(&self, random: &SplitMix64) -> Option<((FragmentId, u16), Fate)> {
        let count = self.fragments.len() as u64;
        let nth = if count == 0 { return None } else { below(random, count) };
        self.fragments.iter().nth(nth as usize).map(|(key, fate)| (*key, *fate))
    }
}

/// Reads a whole fragment and compares it.
async fn read_whole(server: &StoreServer, (id, attempt): (FragmentId, u16)) -> Result<(), StorageError> {
    let bytes = server.read(id, attempt, 0..len_of(id)).await?;
    assert!(bytes == payload(id, len_of(id)), "{id} has wrong bytes");
    Ok(())
}

/// Checks that a server that was just opened has all that it must have, and nothing that it must
/// not.
pub async fn check_opened(server: &StoreServer, model: &SharedModel) {
    for seal in server.seals().await.unwrap() {
        let mut model = model.lock();
        if model.seals_asked.get(&seal.log) == Some(&seal) {
            model.seal(seal.clone());
        }
        assert!(model.seals.iter().any(|known| *known == seal), "{seal:?}");
    }
    assert_eq!(server.seals().await.unwrap().len(), model.lock().seals.iter().count());
    model.lock().seals_asked.clear();

    let epoch = server.maps().await.unwrap().epoch;
    {
        let mut model = model.lock();
        assert!((model.maps_epoch..=model.maps_asked).contains(&epoch));
        model.maps_epoch = epoch;
    }
    check_maps(server, model).await;

    let fragments = model.lock().fragments.clone();
    for (key, fate) in fragments {
        match (read_whole(server, key).await, fate) {
            (Ok(()), _) => drop(model.lock().fragments.insert(key, Fate::Held)),
            (Err(StorageError::NotFound(_)), Fate::Maybe) => drop(model.lock().fragments.remove(&key)),
            (Err(error), fate) => panic!("{:?} was {fate:?}: {error}", key),
        }
    }
    check(server, model).await;
}

async fn check_maps(server: &StoreServer, model: &SharedModel) {
    let (kept, epoch) = (server.maps().await.unwrap(), model.lock().maps_epoch);
    assert_eq!(kept, if epoch == 0 { Maps::default() } else { maps(epoch) });
}

/// Checks listings and accounts against the model. Only for when no request is under way and no
/// result is unknown.
pub async fn check(server: &StoreServer, model: &SharedModel) {
    let held: Vec<(FragmentId, u16)> = {
        let model = model.lock();
        assert!(model.fragments.values().all(|fate| *fate != Fate::Maybe));
        model.fragments.iter().filter(|(_, fate)| **fate == Fate::Held).map(|(key, _)| *key).collect()
    };
    let mut listed = Vec::new();
    for log in 0..LOGS {
        let mut from = 0;
        loop {
            let some = server.list(LogId::new(log), from, 7).await.unwrap();
            let Some(last) = some.last() else { break };
            from = last.id.segment.seq + 1;
            listed.extend(some);
        }
    }
    let used: u64 = listed.iter().map(|header| u64::from(footprint(header.len))).sum();
    for header in &listed {
        assert_eq!(*header, fragment_of(header.id.segment, header.id.index, header.attempt, header.len).header);
        assert!(server.describe(header.id.segment).await.unwrap().contains(header));
        assert_eq!(server.verify(header.id).await, Ok(()));
    }
    let mut listed: Vec<(FragmentId, u16)> = listed.into_iter().map(|header| (header.id, header.attempt)).collect();
    listed.sort();
    let extra: Vec<_> = listed.iter().filter(|key| !held.contains(key)).collect();
    let missing: Vec<_> = held.iter().filter(|key| !listed.contains(key)).collect();
    assert!(extra.is_empty() && missing.is_empty(), "should not be here: {extra:?}; should be: {missing:?}");
    let status = server.status().await.unwrap();
    assert_eq!((status.fragment_count, status.used_bytes), (held.len() as u64, used));
    assert_eq!(server.segments().await.unwrap().iter().map(|(_, bytes)| bytes).sum::<u64>(), used);
}

/// Makes one random request, or several at the same time. Fails when the store takes no more
/// changes.
pub async fn step(server: &Arc<StoreServer>, model: &SharedModel, random: &SplitMix64) -> Result<(), StorageError> {
    match below(random, 20) {
        0..8 => puts(server, model, random).await,
        8..13 => delete(server, model, random).await,
        13..17 => read_some(server, model, random).await,
        17 => seal(server, model, random).await,
        18 => {
            let epoch = {
                let mut model = model.lock();
                model.maps_asked += 1;
                model.maps_asked
            };
            match server.put_maps(maps(epoch)).await {
                Ok(()) => {
                    model.lock().maps_epoch = epoch;
                    model.lock().recorded();
                    check_maps(server, model).await;
                    Ok(())
                }
                Err(StorageError::Full) => Ok(()),
                Err(error) => Err(error),
            }
        }
        _ => {
            if model.lock().fragments.values().all(|fate| *fate != Fate::Maybe) {
                check(server, model).await;
            }
            Ok(())
        }
    }
}

async fn puts(server: &Arc<StoreServer>, model: &SharedModel, random: &SplitMix64) -> Result<(), StorageError> {
    let mut putting = Vec::new();
    for _ in 0..1 + below(random, 6) {
        let again = model.lock().any(random).filter(|_| below(random, 8) == 0);
        let (key, must_seal, before) = {
            let mut model = model.lock();
            let key = match again {
                Some(((id, attempt), _)) => (id, attempt + below(random, 2) as u16),
                None => {
                    let log = below(random, u64::from(LOGS)) as u32;
                    let epoch = model.epoch(log, random);
                    let seq = model.next_seq.entry(log).or_insert(0);
                    *seq += 1;
                    let segment = SegmentId { log: LogId::new(log), epoch, seq: *seq };
                    (FragmentId { segment, index: below(random, 2) as u8 }, 0)
                }
            };
            let must_seal = model.seals.refuse(&key.0.segment);
            let before = model.fragments.get(&key).copied();
            if !must_seal && before != Some(Fate::Held) {
                model.fragments.insert(key, Fate::Maybe);
            }
            (key, must_seal, before)
        };
        let (server, model) = (server.clone(), model.clone());
        putting.push(async move {
            let (id, attempt) = key;
            let result = server.put(fragment_of(id.segment, id.index, attempt, len_of(id))).await;
            let mut model = model.lock();
            match result {
                Ok(()) => {
                    assert!(!must_seal, "{id} was taken behind a seal");
                    model.acknowledged += 1;
                    model.fragments.insert(key, Fate::Held);
                }
                Err(StorageError::Sealed(log)) => assert!(must_seal && log == id.segment.log),
                Err(StorageError::Full) => {
                    model.full += 1;
                    // Another put of the same fragment may have been first.
                    if model.fragments.get(&key) == Some(&Fate::Maybe) {
                        model.fragments.remove(&key);
                        model.fragments.extend(before.map(|fate| (key, fate)));
                    }
                }
                Err(error) => return Err(error),
            }
            Ok(())
        });
    }
    join_all(putting).await.into_iter().collect()
}

async fn delete(server: &StoreServer, model: &SharedModel, random: &SplitMix64) -> Result<(), StorageError> {
    let mut segments = Vec::new();
    for _ in 0..1 + below(random, 4) {
        segments.extend(model.lock().any(random).map(|((id, _), _)| id.segment));
    }
    for ((id, _), fate) in &mut model.lock().fragments {
        if segments.contains(&id.segment) && *fate == Fate::Held {
            *fate = Fate::Deleted;
        }
    }
    server.delete(segments).await
}

async fn read_some(server: &StoreServer, model: &SharedModel, random: &SplitMix64) -> Result<(), StorageError> {
    let Some((key, fate)) = model.lock().any(random) else { return Ok(()) };
    let (id, attempt) = key;
    let len = len_of(id);
    let begin = below(random, u64::from(len) + 1) as u32;
    let end = begin + below(random, u64::from(len - begin) + 1) as u32;
    let read = server.read(id, attempt, begin..end).await;
    match fate {
        Fate::Held => assert!(read.unwrap() == payload(id, len).slice(begin as usize..end as usize)),
        Fate::Deleted => assert_eq!(read, Err(StorageError::NotFound(id))),
        Fate::Maybe => {}
    }
    if fate == Fate::Held {
        let beyond = server.read(id, attempt, begin..len + 1).await;
        assert!(matches!(beyond, Err(StorageError::BadRequest(_))));
    }
    Ok(())
}

async fn seal(server: &StoreServer, model: &SharedModel, random: &SplitMix64) -> Result<(), StorageError> {
    let seal = {
        let model = model.lock();
        let log = below(random, u64::from(LOGS)) as u32;
        let newest = model.next_seq.get(&log).copied().unwrap_or(0);
        let present = model.seals.newest(LogId::new(log));
        let epoch = present.map_or(0, |seal| seal.epoch) + below(random, 3) as u32;
        let fence = Fence { epoch, through: newest.saturating_sub(below(random, 5)) };
        let nonce = host::Random::next_u64(random);
        match present {
            // The same seal, with the stores that have it.
            Some(present) if below(random, 4) == 0 => present.told([1, 2].map(StoreId::new).into()),
            // Another opening has come to its end, and this store has a seal of one that has not.
            Some(present) if !present.is_told() && below(random, 3) == 0 => {
                let fence = Fence { epoch: present.epoch.saturating_sub(below(random, 2) as u32), ..fence };
                Seal::new(present.log, fence, nonce).told([1, 2].map(StoreId::new).into())
            }
            Some(present) if present.epoch < epoch => present.next(fence, None, nonce),
            // A seal that will be refused need not follow from the present one.
            _ => Seal::new(LogId::new(log), fence, nonce),
        }
    };
    let is_taken = model.lock().seals.clone().take(seal.clone());
    if is_taken {
        model.lock().seals_asked.insert(seal.log, seal.clone());
    }
    match server.seal(seal.clone()).await {
        Ok(newest) => {
            let (mut model, log) = (model.lock(), seal.log);
            if is_taken {
                model.seal(seal);
                model.seals_asked.remove(&log);
                model.recorded();
            }
            assert_eq!(model.seals.newest(log), Some(&newest));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Requests until `steps` are done or the store fails, then perhaps a clean end.
pub async fn live(server: Arc<StoreServer>, model: SharedModel, random: Arc<SplitMix64>, steps: u64) {
    for _ in 0..steps {
        match step(&server, &model, &random).await {
            Ok(()) => {}
            // There was no room for the checkpoint that makes a seal durable: it is unknown whether
            // the seal lasts.
            Err(StorageError::Full) => return,
            Err(_) => return assert!(!server.status().await.unwrap().writable, "only a failed store refuses"),
        }
    }
    if below(&random, 2) == 0 && server.close().await.is_ok() {
        model.lock().recorded();
    }
}
