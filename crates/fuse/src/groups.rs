//! Supplementary groups of the process that makes a request, which FUSE requests do not carry.
//!
//! They are read from /proc/PID/status, at most once a second per thread. Reading them only after a
//! check has failed would be wrong: a group class or an ACL entry may also give *less* than
//! "others" get. Root never needs them.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a thread's groups are cached. When a process changes its groups, the file system uses
/// the old ones for at most this long.
const VALID: Duration = Duration::from_secs(1);
/// Most threads in the cache.
const ENTRIES_MAX: usize = 1024;

/// The thread that makes a request, its user id and its group id. A thread that changes an id is
/// looked up again at once.
type Asker = (u32, u32, u32);

/// A cache of groups by thread.
pub(crate) struct GroupCache(Mutex<HashMap<Asker, (Instant, Vec<u32>)>>);

impl GroupCache {
    /// An empty cache.
    pub(crate) fn new() -> Self {
        GroupCache(Mutex::new(HashMap::new()))
    }

    /// The supplementary groups of thread `pid`, which acts as `uid` and `gid`. Empty for root, for
    /// a thread that has ended, and for a thread that is not visible from here (in another pid
    /// namespace: the kernel then says 0).
    pub(crate) fn of(&self, pid: u32, uid: u32, gid: u32) -> Vec<u32> {
        if uid == 0 || pid == 0 {
            return Vec::new();
        }
        self.get_or_read((pid, uid, gid), Instant::now(), || {
            std::fs::read_to_string(format!("/proc/{pid}/status")).ok()
        })
    }

    fn get_or_read(&self, asker: Asker, now: Instant, status: impl FnOnce() -> Option<String>) -> Vec<u32> {
        if let Some((read_at, groups)) = self.0.lock().get(&asker)
            && now.saturating_duration_since(*read_at) < VALID
        {
            return groups.clone();
        }
        let groups = status().map(|text| parse(&text)).unwrap_or_default();
        let mut cache = self.0.lock();
        if cache.len() >= ENTRIES_MAX {
            cache.retain(|_, (read_at, _)| now.saturating_duration_since(*read_at) < VALID);
            if cache.len() >= ENTRIES_MAX {
                cache.clear();
            }
        }
        cache.insert(asker, (now, groups.clone()));
        groups
    }
}

/// The numbers of the `Groups:` line of a /proc/PID/status.
fn parse(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or("");
    line.split_ascii_whitespace().filter_map(|gid| gid.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_line_is_found_among_others() {
        assert_eq!(parse("Name:\tsh\nGid:\t7\t7\t7\t7\nGroups:\t4 24 1000 \nNStgid:\t9\n"), [4, 24, 1000]);
        assert_eq!(parse("Name:\tsh\nGroups:\t \n"), [0u32; 0]);
        assert_eq!(parse(""), [0u32; 0]);
    }

    #[test]
    fn groups_are_read_once_and_again_after_they_expire() {
        let cache = GroupCache::new();
        let start = Instant::now();
        let says = |text: &str| Some(format!("Groups:\t{text}\n"));
        assert_eq!(cache.get_or_read((5, 1, 1), start, || says("3")), [3]);
        assert_eq!(cache.get_or_read((5, 1, 1), start + VALID / 2, || says("4")), [3], "still valid");
        assert_eq!(
            cache.get_or_read((5, 2, 1), start + VALID / 2, || says("5")),
            [5],
            "another user id is another asker"
        );
        assert_eq!(cache.get_or_read((5, 1, 1), start + VALID, || says("4")), [4]);
    }

    #[test]
    fn cache_stays_bounded() {
        let cache = GroupCache::new();
        let now = Instant::now();
        for pid in 1..3 * ENTRIES_MAX as u32 {
            cache.get_or_read((pid, 1, 1), now, || None);
        }
        assert!(cache.0.lock().len() <= ENTRIES_MAX);
    }

    #[test]
    fn root_and_invisible_threads_have_none() {
        let cache = GroupCache::new();
        assert_eq!(cache.of(std::process::id(), 0, 0), [0u32; 0]);
        assert_eq!(cache.of(0, 1000, 1000), [0u32; 0]);
    }
}
