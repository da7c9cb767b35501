//! What is kept in the cache: what the user has named, before what was used lately (Coda's
//! hoarding; Froese and Bunt; docs/roaming.md#room).
//!
//! A walk brings everything up to date that is cached, and fetches all that is to be kept. It runs
//! now and then and when somebody asks, and says whether the link may go. What is not home yet is
//! never dropped.

use crate::client::{Client, Inner};
use crate::connection::schedule::Direction;
use crate::live::{LinkState, Need};
use crate::replica::{Child, Record};
use crate::settings::Validation;
use roam_proto::channel::Class;
use roam_proto::message::{Facts, Reply, Request};
use std::collections::HashMap;
use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::{FileId, FsError, Kind};

/// How often everything is walked.
const WALK_PERIOD: Duration = Duration::from_secs(600);
/// The same while others change what is cached.
const CHANGED_WALK_PERIOD: Duration = Duration::from_secs(30);
/// For so long it is sure that all has come that the home has told, after it had.
const SURE_TIME: Duration = Duration::from_secs(5);
/// Files that are asked for together.
const BATCH_COUNT: usize = 200;
/// How often it is looked at whether the cache is full.
const LOOK_PERIOD: Duration = Duration::from_secs(2);

/// What a walk has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// Files that were looked at.
    pub files: u64,
    /// Bytes that are to be kept.
    pub bytes: u64,
    /// Of them, those that are cached.
    pub cached: u64,
    /// Paths of what could not be fetched, or is not there; some of them, if there are many.
    pub missing: Vec<Vec<u8>>,
}

impl Walk {
    /// True if all that is to be kept is cached.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.cached == self.bytes
    }

    fn miss(&mut self, path: &[u8]) {
        /// More are not remembered.
        const MISSING_COUNT_MAX: usize = 100;
        if self.missing.len() < MISSING_COUNT_MAX {
            self.missing.push(path.to_vec());
        }
    }
}

impl Client {
    /// Keeps a path in the cache, with all below it, as dear as that (up to 100); `None`: no
    /// longer. ENOENT if it was not kept.
    pub async fn hoard(&self, path: &[u8], priority: Option<u8>) -> Result<(), FsError> {
        {
            let mut live = self.0.live.lock();
            if priority.is_none() && !live.replica.hoard().contains_key(path) {
                return Err(FsError::NotFound);
            }
            live.record(Record::Hoarded { path: path.to_vec(), priority });
        }
        self.durable().await
    }

    /// Brings what is cached up to date and fetches all that is to be kept; says how far it is.
    pub async fn walk(&self, mut progress: impl FnMut(&Walk) + Send) -> Result<Walk, FsError> {
        self.confirm().await?;
        self.revalidate().await?;
        let mut walk = Walk::default();
        let mut paths: Vec<(u8, Vec<u8>)> =
            self.look(|replica, _| replica.hoard().iter().map(|(path, priority)| (*priority, path.clone())).collect());
        // What is dearest comes first.
        paths.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
        for (_, path) in paths {
            match self.find_path(&path).await {
                Ok(id) => self.walk_below(id, path, &mut walk, &mut progress).await,
                Err(_) => walk.miss(&path),
            }
        }
        self.settle_bytes().await;
        self.durable().await?;
        progress(&walk);
        Ok(walk)
    }

    async fn find_path(&self, path: &[u8]) -> Result<FileId, FsError> {
        let mut at = Vec::new();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            if let Child::Is(dir) = self.look(|replica, _| replica.at_path(&at)) {
                self.names_of(dir).await?;
            }
            if !at.is_empty() {
                at.push(b'/');
            }
            at.extend_from_slice(name);
        }
        match self.look(|replica, _| replica.at_path(&at)) {
            Child::Is(id) => Ok(id),
            Child::Nothing => Err(FsError::NotFound),
            Child::Unknown => Err(FsError::TimedOut),
        }
    }

    async fn names_of(&self, dir: FileId) -> Result<(), FsError> {
        let wanted = self.look(|replica, state| !replica.has_names(dir) && state != LinkState::Disconnected);
        if wanted { self.fetch(Need::Names(dir)).await } else { Ok(()) }
    }

    async fn walk_below(&self, id: FileId, path: Vec<u8>, walk: &mut Walk, progress: &mut (impl FnMut(&Walk) + Send)) {
        let mut waiting = vec![(id, path)];
        while let Some((id, path)) = waiting.pop() {
            let known = self.look(|replica, _| replica.node(id).map(|node| (node.facts.kind, node.facts.size)));
            let Ok((kind, size)) = known else {
                walk.miss(&path);
                continue;
            };
            walk.files += 1;
            match kind {
                Kind::Directory => {
                    let listed = match self.names_of(id).await {
                        Ok(()) => self.look(|replica, _| replica.list(id)),
                        Err(_) => None,
                    };
                    let Some(names) = listed else {
                        walk.miss(&path);
                        continue;
                    };
                    for (name, child) in names.into_iter().rev() {
                        let below = if path.is_empty() { name } else { [&path[..], b"/", &name].concat() };
                        waiting.push((child, below));
                    }
                }
                Kind::File => {
                    drop(self.0.ahead.lock().await);
                    walk.bytes += size;
                    progress(walk);
                    let small = {
                        let live = self.0.live.lock();
                        let next = std::iter::once(id).chain(waiting.iter().rev().map(|(id, _)| *id)).take(BATCH_COUNT);
                        let chunk = self.0.schedule.chunk_len(Direction::Down);
                        if live.is_small_and_missing(id) { live.small_files(next, chunk) } else { Vec::new() }
                    };
                    if small.len() > 1 {
                        // What it does not bring is asked for alone.
                        let _ = self.fetch_together(&small).await;
                    }
                    let _ = self.fetch_bytes(id, 0, u64::MAX, Class::Prefetch).await;
                    let whole = self.look(|replica, _| replica.node(id).is_ok_and(|node| node.is_whole()));
                    if whole {
                        walk.cached += size;
                    } else {
                        walk.miss(&path);
                    }
                }
                _ => {}
            }
        }
    }

    /// Makes sure of all that the home has told by now, where it tells: that nothing came lately
    /// may mean that nothing gets here.
    async fn confirm(&self) -> Result<(), FsError> {
        let now = self.0.host.clock.now();
        let (told, asks) = {
            let live = self.0.live.lock();
            let is_old = now.saturating_sub(live.caught_up) > SURE_TIME;
            let told = live.channel.clone().filter(|_| live.told_over.is_some() && is_old);
            (told, live.delegations.is_some() && !live.is_offline())
        };
        match told {
            Some(channel) => {
                self.0.consistency_calls.fetch_add(1, Relaxed);
                self.0.patiently(&channel, channel.caught_up()).await?;
                self.0.live.lock().caught_up = now;
                Ok(())
            }
            // What it does not believe it is not told of.
            None if asks => self.poll().await.map(drop),
            None => Ok(()),
        }
    }

    /// Asks for everything of which others may have changed something.
    async fn revalidate(&self) -> Result<(), FsError> {
        let stale: Vec<FileId> = self.look(|replica, state| {
            let ids = replica.nodes().map(|(id, _)| id);
            ids.filter(|id| state != LinkState::Disconnected && replica.is_stale(*id)).collect()
        });
        let validation = self.0.settings.lock().validation;
        let together = match validation {
            Validation::Volume => BATCH_COUNT,
            Validation::Files(count) => count.max(1),
        };
        for batch in stale.chunks(together) {
            self.refresh(batch).await?;
        }
        Ok(())
    }

    /// Learns what of some files others have changed: facts only of those that are other than they
    /// were.
    async fn refresh(&self, files: &[FileId]) -> Result<(), FsError> {
        let known: HashMap<FileId, (u64, Facts)> = self.look(|replica, _| {
            let known = |id: &FileId| replica.node(*id).ok().map(|node| (*id, (node.seen, node.facts.clone())));
            files.iter().filter_map(known).collect()
        });
        let breaks = self.0.live.lock().breaks;
        let versions = known.iter().map(|(id, (seen, _))| (*id, *seen)).collect();
        let reply = self.0.ask(Class::Prefetch, &Request::Validate { files: versions }).await?;
        let Reply::Stale(stale) = reply else { return Err(FsError::Io) };
        {
            let mut live = self.0.live.lock();
            if live.breaks != breaks {
                // Others have changed something meanwhile: what was said may be of before.
                return Ok(());
            }
            for (id, (seen, facts)) in &known {
                let same = live.replica.node(*id).is_ok_and(|node| node.seen == *seen);
                if same && !stale.contains(id) {
                    live.record(Record::Known(Box::new(facts.clone())));
                }
            }
        }
        if stale.is_empty() {
            return Ok(());
        }
        match self.fetch_facts(&stale).await {
            // Another client or program has removed it.
            Err(FsError::Stale) => Ok(()),
            fetched => fetched,
        }
    }
}

/// Walks now and then, for as long as the client exists, if anything is to be kept.
pub(crate) async fn keep(inner: Weak<Inner>) {
    let (mut waited, mut seen) = (Duration::ZERO, 0);
    loop {
        let Some(client) = inner.upgrade().map(Client) else { return };
        let clock = client.0.host.clock.clone();
        client.make_room().await;
        client.bound_metadata();
        client.log_stores().await;
        let wanted = client.look(|replica, state| !replica.hoard().is_empty() && state != LinkState::Disconnected);
        // What others change of what is to be kept is of no use if the link is lost before the next
        // walk.
        let news = client.0.live.lock().news;
        let period = if news == seen { WALK_PERIOD } else { CHANGED_WALK_PERIOD };
        if waited >= period && wanted {
            (waited, seen) = (Duration::ZERO, news);
            if let Err(error) = client.walk(|_| {}).await {
                tracing::info!(%error, "the hoard walk did not get to its end");
            }
        }
        drop(client);
        clock.sleep(LOOK_PERIOD).await;
        waited += LOOK_PERIOD;
    }
}
