//! Users of clients: their operations, what a user remembers when the client crashes, and a ledger
//! of all operations.

use crate::rig::session::Op;
use host::SplitMix64;
use parking_lot::Mutex;
use roam::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use types::FileId;
use vfs::FileSystem;
use vfs::fs::Cred;
use vfs::mem::MemFs;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// Every client has a directory of its own: nothing may be in conflict.
    Alone,
    /// All clients use the same files.
    Together,
    /// All clients make the same directories, each with files of its own in them. The directories
    /// merge, and nothing is in conflict.
    Merging,
}

/// The operations of all clients, as far as they are known.
#[derive(Default)]
pub struct Ledger {
    /// Tags that were written and acknowledged.
    pub acked: BTreeMap<String, String>,
    /// Tags that a client overwrote or removed after it had seen them.
    pub dropped: BTreeSet<String>,
    pub done: u64,
    pub failures: Vec<String>,
    /// Paths of directories and symlinks that a client has made, and below, may have made. A path
    /// means the same to all clients.
    pub shared: BTreeSet<String>,
    pub maybe_shared: BTreeSet<String>,
    /// The contents of each file that only one client uses.
    pub own: BTreeMap<String, String>,
    /// Files that only one client uses and whose contents are not known.
    pub doubtful: BTreeSet<String>,
}

/// What the user of a client remembers, even when the client crashes.
pub struct Mind {
    pub number: u8,
    pub sort: Sort,
    pub random: SplitMix64,
    pub count: u64,
    /// The files as they should be, in the directory that only this client uses.
    pub shadow: MemFs,
    /// The operation that is under way.
    pub pending: Option<Op>,
    /// A path whose contents are not known.
    pub unclear: Option<String>,
    /// The operations since all operations were durable.
    pub past: Vec<Past>,
    /// The client has crashed, and some of these operations may be lost.
    pub has_lost: bool,
    /// Tags that were written and acknowledged since then, and their paths.
    pub young: BTreeMap<String, String>,
    /// The client keeps a list of its own, which must not come into conflict with anything.
    pub keeps_a_list: bool,
    /// The lines of its own list.
    pub lines: String,
    /// A line that may be in its list, too.
    pub line: Option<String>,
    /// A directory in which the user stays.
    pub inside: Option<(FileId, String)>,
}

/// An operation that was done, and may not be durable.
pub struct Past {
    pub op: Op,
    /// The files before it.
    pub before: MemFs,
    /// A path whose contents were not known then.
    pub unclear: Option<String>,
}

impl Mind {
    /// Notes that the client has crashed.
    pub fn crashed(&mut self) {
        self.has_lost = !self.past.is_empty();
        self.young.clear();
    }

    /// Notes that all operations are durable.
    pub fn is_durable(&mut self, ledger: &mut Ledger) {
        self.past.clear();
        ledger.acked.append(&mut self.young);
    }
}

/// A worker: the user of one client.
#[derive(Clone)]
pub struct Worker {
    /// The user that operations run as.
    pub cred: Cred,
    pub rig_clock: Arc<dyn host::Clock>,
    pub client: Client,
    pub mind: Arc<Mutex<Mind>>,
    pub ledger: Arc<Mutex<Ledger>>,
    pub stop: Arc<AtomicBool>,
}

pub fn say(clock: &dyn host::Clock, who: &str, what: impl std::fmt::Display) {
    if std::env::var_os("STORM_VERBOSE").is_some() {
        println!("{:>9.4} {who}: {what}", clock.now().as_secs_f64());
    }
}

impl Worker {
    pub fn fail(&self, text: String) {
        self.ledger.lock().failures.push(text);
    }

    pub fn say(&self, what: impl std::fmt::Display) {
        let number = self.mind.lock().number;
        say(&*self.rig_clock, &format!("client {number}"), what);
    }

    pub async fn pause(&self, ms_max: u64) {
        let ms = self.mind.lock().random.below(ms_max) + 1;
        self.rig_clock.sleep(Duration::from_millis(ms)).await;
    }

    pub async fn work(self, ended: Arc<AtomicBool>) {
        // Before the client has attached for the first time, it has no files.
        while self.client.look(|replica, _| replica.node(FileId::ROOT).is_err()) && !self.stop.load(Relaxed) {
            self.pause(500).await;
        }
        let (sort, pending) = {
            let mind = self.mind.lock();
            (mind.sort, mind.pending.is_some() || mind.has_lost)
        };
        match sort {
            Sort::Alone if pending => self.find_out().await,
            Sort::Together => self.mind.lock().pending = None,
            // The id was known to the client before the crash.
            Sort::Merging => self.mind.lock().inside = None,
            _ => {}
        }
        while !self.stop.load(Relaxed) {
            self.pause(700).await;
            if self.mind.lock().random.chance(1, 8) && self.client.sync().await.is_ok() {
                self.mind.lock().is_durable(&mut self.ledger.lock());
            }
            match sort {
                Sort::Alone => self.alone().await,
                Sort::Together => self.together().await,
                Sort::Merging => self.merging().await,
            }
            self.ledger.lock().done += 1;
        }
        ended.store(true, Relaxed);
    }

    pub fn next_tag(&self) -> String {
        let mut mind = self.mind.lock();
        mind.count += 1;
        format!("<{}-{}>", mind.number, mind.count)
    }
}
