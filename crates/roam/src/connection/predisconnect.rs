//! What the client fetches before the link is lost, if that can be foreseen: a file that is only
//! partly cached is of little use without a network (docs/roaming.md#before-the-link-goes).
//!
//! It lists hoarded directories whose names it does not know. It completes files that are open, and
//! hoarded files, even those whose bytes are gone because others just changed them. It fetches them
//! before anything else that is fetched ahead.

use crate::client::{Client, Inner};
use crate::connection::schedule::Direction;
use crate::connection::state::LinkState;
use crate::live::{Live, Need};
use crate::settings::Unit;
use host::timeout;
use roam_proto::channel::Class;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Weak;
use std::time::Duration;
use types::{FileId, FsError, Kind};

/// How often the client looks whether the link will soon be lost.
const LOOK_PERIOD: Duration = Duration::from_secs(2);
/// Longest time for completing files before the client looks again.
const TIME_MAX: Duration = Duration::from_secs(60);
/// The priority of open files. It is above that of every hoarded file.
const OPEN: u8 = u8::MAX;

/// A file that is not wholly cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    file: FileId,
    dear: u8,
    /// The number of its last use.
    used: u64,
    missing: u64,
}

/// Sorts files into the order of fetching: by priority, then by last use.
fn in_order(mut parts: Vec<Part>) -> Vec<Part> {
    parts.sort_by_key(|part| (Reverse(part.dear), Reverse(part.used), part.file));
    parts
}

/// How much is missing of files that are not wholly cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Number of files.
    pub files: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// What there is to do before the link goes.
#[derive(PartialEq, Eq, Default)]
struct NotReady {
    missing: Missing,
    /// Directories to list.
    unlisted: Vec<FileId>,
}

impl Live {
    /// Open files that are only partly cached, and hoarded files that are not wholly cached. With
    /// the unit `block`, open files do not count.
    fn parts(&self, unit: Unit) -> Vec<Part> {
        let dear = self.priorities();
        let part = |(file, node): (FileId, &crate::replica::Node)| {
            let is_open = self.open_files.is_open(file) && unit != Unit::Block;
            let dear = match dear.get(&file) {
                _ if is_open => OPEN,
                Some(dear) => *dear,
                None => return None,
            };
            let is_part = node.facts.kind == Kind::File && !node.is_dirty() && !node.is_whole();
            let missing = node.facts.size.saturating_sub(node.have.len());
            let used = self.cache.last_use(file);
            is_part.then_some(Part { file, dear, used, missing })
        };
        in_order(self.replica.nodes().filter_map(part).collect())
    }

    /// Directories whose names the client does not know, or not as they are now: hoarded ones, and
    /// the root. Without a network, the client cannot say that a name is free there, so no program
    /// can make one.
    fn unlisted(&self) -> Vec<FileId> {
        let is_directory = |id: &FileId| self.replica.node(*id).is_ok_and(|node| node.facts.kind == Kind::Directory);
        let root = self.replica.membership().map(|membership| membership.root);
        let wanted = self.priorities().into_keys().chain(root).filter(is_directory);
        let mut unlisted: Vec<FileId> = wanted.filter(|dir| !self.replica.has_names(*dir)).collect();
        unlisted.sort_unstable();
        unlisted.dedup();
        unlisted
    }
}

impl Client {
    /// True if the link may soon be lost.
    pub fn disconnection_is_likely(&self) -> bool {
        self.0.schedule.disconnection_is_likely()
    }

    /// What would be missing of open and hoarded files if the link was lost now.
    pub fn missing(&self) -> Missing {
        let unit = self.0.settings.lock().unit;
        let parts = self.0.live.lock().parts(unit);
        Missing { files: parts.len() as u64, bytes: parts.iter().map(|part| part.missing).sum() }
    }

    /// Fetches what is [missing](Self::missing), as far as the cache has room, for at most
    /// `time_max`. Reports progress, and returns what is still missing.
    pub async fn get_ready(&self, time_max: Duration, progress: impl FnMut(Missing) + Send) -> Missing {
        let completed = async {
            self.list_unlisted().await;
            let _before_all_else = self.0.ahead.lock().await;
            self.complete_all(progress).await;
        };
        // Files that are missing when the time is up are in the result.
        let _ = timeout(&*self.0.host.clock, time_max, completed).await;
        self.settle_bytes().await;
        // If the log takes no more records, programs hear of it when they write.
        let _ = self.durable().await;
        self.missing()
    }

    /// Returns what there is to do before the link goes.
    fn not_ready(&self) -> NotReady {
        NotReady { missing: self.missing(), unlisted: self.0.live.lock().unlisted() }
    }

    /// Lists the hoarded directories that other clients or programs have changed, and the root, as
    /// far as the home answers.
    async fn list_unlisted(&self) {
        let mut asked = HashSet::new();
        loop {
            let mut unlisted = self.0.live.lock().unlisted();
            unlisted.retain(|dir| asked.insert(*dir));
            if unlisted.is_empty() {
                return;
            }
            for dir in unlisted {
                if let Err(FsError::TimedOut) = self.fetch(Need::Names(dir)).await {
                    return;
                }
            }
        }
    }

    async fn complete_all(&self, mut progress: impl FnMut(Missing) + Send) {
        let unit = self.0.settings.lock().unit;
        let parts = self.0.live.lock().parts(unit);
        for part in parts {
            // Open files may displace anything else.
            let instead = (part.dear < OPEN).then_some(part.file);
            while self.look(|_, state| state != LinkState::Disconnected) {
                progress(self.missing());
                let next = self.look(|replica, _| {
                    let node = replica.node(part.file).ok().filter(|node| !node.is_dirty())?;
                    node.have.missing(0..node.facts.size).iter().next()
                });
                let Some(range) = next else { break };
                let len = self.0.schedule.chunk_len(Direction::Down).min(range.end - range.start);
                if !self.has_room_ahead(len, instead) {
                    break;
                }
                match self.fetch_bytes(part.file, range.start, len, Class::Prefetch).await {
                    Ok(()) => {}
                    Err(FsError::TimedOut) => return,
                    // Other files may still be fetched.
                    Err(_) => break,
                }
            }
        }
    }
}

/// Completes files when the link may soon be lost, for as long as the client exists.
pub(crate) async fn keep(inner: Weak<Inner>) {
    loop {
        let Some(client) = inner.upgrade().map(Client) else { return };
        let clock = client.0.host.clock.clone();
        let offline = client.look(|_, state| state == LinkState::Disconnected);
        let mut pause = LOOK_PERIOD;
        if !offline && client.disconnection_is_likely() {
            let before = client.not_ready();
            if before != NotReady::default() {
                let left = client.get_ready(TIME_MAX, |_| {}).await;
                tracing::info!(files = left.files, bytes = left.bytes, "the link may soon be lost: still missing");
                let after = client.not_ready();
                // If nothing could be fetched, the client waits longer before it tries again.
                pause = if after == before { TIME_MAX } else { LOOK_PERIOD };
            }
        }
        drop(client);
        clock.sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_comes_first_then_what_is_dear_then_what_was_used_last() {
        let part = |file, dear, used| Part { file: FileId::new(file), dear, used, missing: 1 };
        let parts = vec![part(1, 10, 5), part(2, 10, 7), part(3, 90, 1), part(4, OPEN, 2), part(5, OPEN, 3)];
        let order: Vec<u64> = in_order(parts).iter().map(|part| part.file.raw()).collect();
        assert_eq!(order, [5, 4, 3, 2, 1]);
    }
}
