//! What is done before the link is lost, if that can be foreseen: files of which a part is cached
//! are of use then only if all of it is (docs/roaming.md#before-the-link-goes).
//!
//! These are files that are open, and those that are to be kept, of which nothing may be cached
//! where others have just changed them. They are fetched as whatever is fetched ahead, but before
//! all else of that.

use crate::client::{Client, Inner};
use crate::connection::schedule::Direction;
use crate::live::{LinkState, Live};
use crate::settings::Unit;
use host::timeout;
use roam_proto::channel::Class;
use std::cmp::Reverse;
use std::sync::Weak;
use std::time::Duration;
use types::{FileId, FsError, Kind};

/// How often it is looked whether the link is about to be lost.
const LOOK_PERIOD: Duration = Duration::from_secs(2);
/// Longest time of completing what there is when it is, before it is looked again.
const TIME_MAX: Duration = Duration::from_secs(60);
/// What is open is dearer than all that is to be kept.
const OPEN: u8 = u8::MAX;

/// A file of which a part is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    file: FileId,
    dear: u8,
    /// When it was used last, in uses.
    used: u64,
    missing: u64,
}

/// What is completed first: what is dearest, and then what was used last.
fn in_order(mut parts: Vec<Part>) -> Vec<Part> {
    parts.sort_by_key(|part| (Reverse(part.dear), Reverse(part.used), part.file));
    parts
}

/// What is not there of files of which a part is cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// How many files.
    pub files: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl Live {
    /// Files that are open, and only in part cached, or to be kept, and not all cached; `unit`: how
    /// much is fetched of what is open.
    fn parts(&self, unit: Unit) -> Vec<Part> {
        let dear = self.priorities();
        let part = |(file, node): (FileId, &crate::replica::Node)| {
            let is_open = self.open_counts.contains_key(&file) && unit != Unit::Block;
            let dear = match dear.get(&file) {
                _ if is_open => OPEN,
                Some(dear) => *dear,
                None => return None,
            };
            let is_part = node.facts.kind == Kind::File && !node.is_dirty() && !node.is_whole();
            let missing = node.facts.size.saturating_sub(node.have.len());
            let used = self.used.get(&file).copied().unwrap_or(0);
            is_part.then_some(Part { file, dear, used, missing })
        };
        in_order(self.replica.nodes().filter_map(part).collect())
    }
}

impl Client {
    /// Whether the link may soon be lost, as far as that can be told.
    pub fn disconnection_is_likely(&self) -> bool {
        self.0.schedule.disconnection_is_likely()
    }

    /// What would be missing of open files, and of those that are to be kept, if the link was lost
    /// now.
    pub fn missing(&self) -> Missing {
        let unit = self.0.settings.lock().unit;
        let parts = self.0.live.lock().parts(unit);
        Missing { files: parts.len() as u64, bytes: parts.iter().map(|part| part.missing).sum() }
    }

    /// Fetches what is [missing](Self::missing), for so long at most, as far as the cache has room;
    /// tells what is left, and gives it.
    pub async fn get_ready(&self, time_max: Duration, progress: impl FnMut(Missing) + Send) -> Missing {
        let completed = async {
            let _before_all_else = self.0.ahead.lock().await;
            self.complete_all(progress).await;
        };
        // What is not there by then is told.
        let _ = timeout(&*self.0.host.clock, time_max, completed).await;
        self.settle_bytes().await;
        // If the log takes no more, programs hear of that when they write.
        let _ = self.durable().await;
        self.missing()
    }

    async fn complete_all(&self, mut progress: impl FnMut(Missing) + Send) {
        let unit = self.0.settings.lock().unit;
        let parts = self.0.live.lock().parts(unit);
        for part in parts {
            // What is open is dearer than anything else.
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
                    // Others may be had.
                    Err(_) => break,
                }
            }
        }
    }
}

/// Completes what is there in part when the link may soon be lost, for as long as the client
/// exists.
pub(crate) async fn keep(inner: Weak<Inner>) {
    loop {
        let Some(client) = inner.upgrade().map(Client) else { return };
        let clock = client.0.host.clock.clone();
        let offline = client.look(|_, state| state == LinkState::Disconnected);
        let mut pause = LOOK_PERIOD;
        if !offline && client.disconnection_is_likely() {
            let missing = client.missing();
            if missing.files > 0 {
                let left = client.get_ready(TIME_MAX, |_| {}).await;
                tracing::info!(files = left.files, bytes = left.bytes, "the link may soon be lost: still missing");
                // What cannot be had now is not asked for again and again.
                pause = if left == missing { TIME_MAX } else { LOOK_PERIOD };
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
