//! Hoarding: files that are cached always, because the user named them, go before files that were
//! used lately (Coda's hoarding; Froese and Bunt; docs/roaming.md#room).
//!
//! A hoard walk brings everything that is cached up to date, and fetches everything that is
//! hoarded. It runs regularly and when the user asks, and says whether the link may go. Files that
//! are not home yet are never dropped.

use crate::client::{Client, Inner};
use crate::connection::schedule::Direction;
use crate::connection::state::LinkState;
use crate::live::Need;
use crate::replica::{Child, Record};
use crate::settings::Validation;
use roam_proto::channel::Class;
use roam_proto::message::{Facts, Reply, Request};
use std::collections::HashMap;
use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::{FileId, FsError, Kind};

/// How often the client walks.
const WALK_PERIOD: Duration = Duration::from_secs(600);
/// How often it walks while others change cached files.
const CHANGED_WALK_PERIOD: Duration = Duration::from_secs(30);
/// For this long, an answer that all pushes have arrived is believed.
const SURE_TIME: Duration = Duration::from_secs(5);
/// Files that one question asks about.
const BATCH_COUNT: usize = 200;
/// How often the client looks whether the cache is full, and whether a walk is due.
const LOOK_PERIOD: Duration = Duration::from_secs(2);

/// The result of a walk so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// Files and directories that the walk has visited.
    pub files: u64,
    /// Bytes of hoarded files.
    pub bytes: u64,
    /// Of them, bytes that are cached.
    pub cached: u64,
    /// Paths that could not be fetched, or do not exist; only some of them, if there are many.
    pub missing: Vec<Vec<u8>>,
}

impl Walk {
    /// True if everything that is hoarded is cached.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.cached == self.bytes
    }

    fn miss(&mut self, path: &[u8]) {
        /// Most paths that are remembered.
        const MISSING_COUNT_MAX: usize = 100;
        if self.missing.len() < MISSING_COUNT_MAX {
            self.missing.push(path.to_vec());
        }
    }
}

impl Client {
    /// Hoards a path, with everything below it, at a priority up to 100; `None` ends that. ENOENT
    /// if it was not hoarded.
    pub async fn hoard(&self, path: &[u8], priority: Option<u8>) -> Result<(), FsError> {
        {
            let mut live = self.0.live.lock();
            if priority.is_none() && !live.replica.hoard().contains_key(path) {
                return Err(FsError::NotFound);
            }
            live.record(Record::Hoarded { path: path.to_vec(), priority })?;
        }
        self.durable().await
    }

    /// Brings what is cached up to date, and fetches everything that is hoarded. Reports progress.
    pub async fn walk(&self, mut progress: impl FnMut(&Walk) + Send) -> Result<Walk, FsError> {
        self.confirm().await?;
        self.revalidate().await?;
        let mut walk = Walk::default();
        let mut paths: Vec<(u8, Vec<u8>)> =
            self.look(|replica, _| replica.hoard().iter().map(|(path, priority)| (*priority, path.clone())).collect());
        // The highest priority comes first.
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
                        // Files that this does not bring are fetched alone.
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

    /// Makes sure that all pushes have arrived, where the home pushes: silence may mean that
    /// nothing gets through.
    async fn confirm(&self) -> Result<(), FsError> {
        let now = self.0.host.clock.now();
        let (told, asks) = {
            let live = self.0.live.lock();
            let is_old = live.link.silence(now) > SURE_TIME;
            let told = live.link.channel().filter(|_| live.link.is_told() && is_old).cloned();
            (told, live.freshness.is_delegated() && !live.link.is_offline())
        };
        match told {
            Some(channel) => {
                self.0.consistency_calls.fetch_add(1, Relaxed);
                self.0.patiently(&channel, channel.caught_up()).await?;
                self.0.live.lock().link.catch_up(now);
                Ok(())
            }
            // Under delegations, the home does not push changes of files on which the client has
            // none.
            None if asks => self.poll().await.map(drop),
            None => Ok(()),
        }
    }

    /// Asks the home about every stale file.
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

    /// Refreshes some files: validates them by version, and fetches the attributes of those that
    /// changed.
    async fn refresh(&self, files: &[FileId]) -> Result<(), FsError> {
        let known: HashMap<FileId, (u64, Facts)> = self.look(|replica, _| {
            let known = |id: &FileId| replica.node(*id).ok().map(|node| (*id, (node.seen, node.facts.clone())));
            files.iter().filter_map(known).collect()
        });
        let breaks = self.0.live.lock().freshness.breaks();
        let versions = known.iter().map(|(id, (seen, _))| (*id, *seen)).collect();
        let reply = self.0.ask(Class::Prefetch, &Request::Validate { files: versions }).await?;
        let Reply::Stale(stale) = reply else { return Err(FsError::Io) };
        {
            let mut live = self.0.live.lock();
            if live.freshness.breaks() != breaks {
                // Others have changed something meanwhile, so the answer may be outdated.
                return Ok(());
            }
            for (id, (seen, facts)) in &known {
                let same = live.replica.node(*id).is_ok_and(|node| node.seen == *seen);
                if same && !stale.contains(id) {
                    live.learn(Record::Known(Box::new(facts.clone())));
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

/// Regular work for as long as the client exists: makes room, bounds metadata, logs stores to
/// mappings, and walks if anything is hoarded.
pub(crate) async fn keep(inner: Weak<Inner>) {
    let (mut waited, mut seen) = (Duration::ZERO, 0);
    loop {
        let Some(client) = inner.upgrade().map(Client) else { return };
        let clock = client.0.host.clock.clone();
        client.make_room().await;
        client.bound_metadata();
        client.log_stores().await;
        let wanted = client.look(|replica, state| !replica.hoard().is_empty() && state != LinkState::Disconnected);
        // While others change hoarded files, walks are more frequent: their changes would be
        // missing if the link was lost before the next walk.
        let news = client.0.live.lock().freshness.news();
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
