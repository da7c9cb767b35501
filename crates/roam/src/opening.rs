//! Opens a cache and makes it whole again after a crash; closes it.

use crate::cache::data_files::data_name;
use crate::cache::unwritten::Names;
use crate::client::{CacheError, Client, Inner};
use crate::connection::trunk::Line;
use crate::durability::{COMMIT_TIME_MAX, gather};
use crate::live::Live;
use crate::replica::{Node, Record, Replica};
use crate::settings::Settings;
use host::{Disk, Host};
use parking_lot::{Mutex, MutexGuard};
use roam_proto::codec::Wire;
use roam_proto::operation::{Change, Operation};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::watch;
use types::codec::DecodeError;
use types::{FileId, Time};
use vfs::locks::Locks;

/// The owner mark in the headers of a cache's log files.
const OWNER: [u8; 4] = *b"ROAM";

/// The change to log for a file that was being changed when the client ended. A file without holes
/// is logged whole. Otherwise what was durable in the cache, or lies beyond the length at which the
/// change began, counts as changed; the holes stay as the home has them. `len`: the length of the
/// file of the cache, if that exists. `None` if a file with holes has no file of the cache.
fn changed_since(node: Option<&Node>, len: Option<u64>, mtime: Time) -> Option<Change> {
    let has_holes = |node: &&Node| !node.kept.missing(0..node.begun_size).is_empty();
    let Some(node) = node.filter(has_holes) else {
        let size = len.unwrap_or(0);
        return Some(Change::of_all(size, mtime));
    };
    let size = len?;
    let mut ranges = node.kept.clone();
    ranges.add(node.begun_size..size);
    ranges.cut(size);
    Some(Change { cut: node.begun_size.min(size), size, ranges, mtime })
}

impl Client {
    /// Opens a cache and begins to look for the home.
    pub async fn open(host: &Host, disk: Arc<dyn Disk>, line: Line, settings: Settings) -> Result<Client, CacheError> {
        let found = record_log::open(&*disk, "cache", OWNER).await?;
        let mut replica = match &found.snapshot {
            Some(bytes) => Replica::from_bytes(bytes)?,
            None => Replica::default(),
        };
        for record in &found.records {
            replica.apply(Record::from_bytes(record)?).ok_or(DecodeError::Invalid("record of a cache"))?;
        }
        let live = Arc::new(Mutex::new(Live::new(replica)));
        let source = live.clone();
        let snapshot = Arc::new(move |cut: &mut dyn FnMut()| {
            let mut live = source.lock();
            cut();
            live.cache.unwritten.begin();
            let mut snapshot = live.replica.begin_snapshot();
            while live.replica.add_some_to(&mut snapshot) {
                MutexGuard::bump(&mut live);
            }
            drop(live);
            snapshot.finish()
        });
        let names = Arc::new(Names::default());
        let found = found.patiently().growing_to(settings.log_len);
        let found = found.lazily(COMMIT_TIME_MAX, gather(&live, &disk, &names));
        let log = found.start(host, &disk.tasks(host), snapshot).await?;
        live.lock().keep_in(log.clone());
        let inner = Inner {
            host: host.clone(),
            disk,
            log,
            live,
            locks: Locks::default(),
            schedule: line.trunk().schedule.clone(),
            line,
            settings: Mutex::new(settings),
            consistency_calls: AtomicU64::new(0),
            attempts: AtomicU64::new(0),
            found_there: AtomicU64::new(0),
            tick: watch::Sender::new(0),
            more: Arc::default(),
            seen_news: Arc::default(),
            unsettled: Mutex::default(),
            names,
            fetches: Mutex::default(),
            byte_fetches: Mutex::default(),
            ahead: tokio::sync::Mutex::default(),
            filing: tokio::sync::Mutex::default(),
            writers: Mutex::default(),
            places: Mutex::default(),
        };
        inner.schedule.set_tickets(inner.settings.lock().writes.tickets());
        inner.live.lock().work_under(inner.settings.lock().consistency, &host.clock);
        let client = Client(Arc::new(inner));
        client.recover().await?;
        client.start();
        Ok(client)
    }

    /// Logs the changes that were under way when the client ended, and removes files that nothing
    /// needs.
    async fn recover(&self) -> Result<(), CacheError> {
        let inner = &self.0;
        let names: BTreeSet<String> = inner.disk.list().await?.into_iter().collect();
        let (dirty, used) = {
            let mut live = inner.live.lock();
            let needed: BTreeSet<u64> = live.replica.needed().collect();
            let unneeded: Vec<u64> = live
                .replica
                .all_contents()
                .map(|(number, _)| number)
                .filter(|number| !needed.contains(number))
                .collect();
            unneeded.into_iter().for_each(|number| live.replica.forget_contents(number));
            let is_there = |data: u64| names.contains(&data_name(data)) || live.replica.contents(data).is_some();
            let lost = live.replica.nodes().filter(|(_, n)| !n.kept.is_empty() && !is_there(n.data));
            lost.map(|(id, _)| id).collect::<Vec<_>>().into_iter().for_each(|id| live.learn(Record::Lost(id)));
            // Bytes that were written in memory are lost: the file is as it was logged last.
            let apart: Vec<_> =
                live.replica.nodes().filter(|(_, n)| n.is_apart).map(|(id, n)| (id, n.to_log())).collect();
            let when = inner.host.clock.wall();
            for (id, owed) in apart {
                live.learn(match owed {
                    Some(change) => Record::Did { operation: Operation::Store { file: id, change }, when },
                    None => Record::Clean(id),
                });
            }
            let dirty: Vec<_> =
                live.replica.nodes().filter(|(_, n)| n.is_dirty()).map(|(id, n)| (id, n.data)).collect();
            let in_files = live.replica.needed().filter(|number| live.replica.contents(*number).is_none());
            let used: BTreeSet<String> = in_files.map(data_name).collect();
            (dirty, used)
        };
        for (id, data) in dirty {
            let name = data_name(data);
            let in_log = self.look(|replica, _| replica.contents(data).map(|bytes| bytes.len() as u64));
            let is_there = in_log.is_some() || names.contains(&name);
            let size = match in_log {
                Some(len) => len,
                // No byte was ever written.
                None if !is_there => 0,
                None => {
                    // What the kernel has of it may still be lost.
                    let file = inner.disk.open(&name, false).await?;
                    file.sync_data().await?;
                    inner.disk.sync_names().await?;
                    file.len().await?
                }
            };
            let when = inner.host.clock.wall();
            let mut live = inner.live.lock();
            let nameless = live.replica.node(id).map_or(true, |node| node.facts.nlink == 0);
            if !nameless {
                let change = changed_since(live.replica.node(id).ok(), is_there.then_some(size), when);
                live.learn(match change {
                    Some(change) => Record::Did { operation: Operation::Store { file: id, change }, when },
                    None => Record::Clean(id),
                });
            }
        }
        let bases: Vec<u64> = self.look(|replica, _| replica.nodes().map(|(_, node)| node.base).collect());
        for base in bases.into_iter().filter(|base| *base > 0) {
            let in_log = self.look(|replica, _| replica.contents(base).map(|bytes| bytes.len() as u64));
            let len = match in_log {
                Some(len) => len,
                None if names.contains(&data_name(base)) => {
                    inner.disk.open(&data_name(base), false).await?.len().await?
                }
                None => continue,
            };
            inner.live.lock().cache.keep_base(base, len);
        }
        for name in names {
            if name.starts_with(['d', 'o']) && !used.contains(&name) {
                inner.disk.remove(&name).await?;
            }
        }
        let mut live = inner.live.lock();
        live.replica.forget_aliases();
        let all: Vec<FileId> = live.replica.nodes().map(|(id, _)| id).collect();
        for id in all {
            live.replica.forget_nameless(id);
        }
        Ok(())
    }

    /// Makes everything that was acknowledged durable, and ends.
    pub async fn close(&self) -> Result<(), CacheError> {
        self.log_stores().await;
        let files: Vec<FileId> = self.look(|replica, _| replica.begun().collect());
        for file in files {
            // A change that cannot be logged now is found when the cache is opened again.
            let _ = self.store(file).await;
        }
        self.settle_bytes().await;
        self.resign().await;
        let channel = self.0.live.lock().link.take_channel();
        if let Some(channel) = channel {
            channel.close();
        }
        Ok(self.0.log.close().await?)
    }
}
