//! Users of clients: what they do one after the other, what they remember whatever becomes of the
//! client, and what is known of all their doings.

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
    /// All are everywhere.
    Together,
    /// All make the same directories, each with files of its own in them: these merge, and nothing
    /// is in conflict.
    Merging,
}

/// What is known of everybody's doings.
#[derive(Default)]
pub struct Ledger {
    /// Written, and acknowledged.
    pub acked: BTreeMap<String, String>,
    /// Overwritten or removed by somebody who had seen it.
    pub dropped: BTreeSet<String>,
    pub done: u64,
    pub failures: Vec<String>,
    /// Directories and symlinks that somebody has made, or may have made; by their paths, which
    /// mean the same to all.
    pub shared: BTreeSet<String>,
    pub maybe_shared: BTreeSet<String>,
    /// What files of one's own contain.
    pub own: BTreeMap<String, String>,
    /// Files of one's own of which nobody knows what became.
    pub doubtful: BTreeSet<String>,
}

/// What the user of a client remembers, whatever becomes of the client.
pub struct Mind {
    pub number: u8,
    pub sort: Sort,
    pub random: SplitMix64,
    pub count: u64,
    /// What it should have, where nobody else may do anything.
    pub shadow: MemFs,
    /// Being done.
    pub pending: Option<Op>,
    /// The contents of this are not known.
    pub unclear: Option<String>,
    /// What was done since all was durable that was done.
    pub past: Vec<Past>,
    /// The client has crashed, and some of that may be lost.
    pub has_lost: bool,
    /// Written and acknowledged since, and where.
    pub young: BTreeMap<String, String>,
    /// It keeps a list of its own, which nothing else may come into conflict with.
    pub keeps_a_list: bool,
    /// Of its own list.
    pub lines: String,
    /// Perhaps in its list, too.
    pub line: Option<String>,
    /// A directory that it stays in.
    pub inside: Option<(FileId, String)>,
}

/// Something that was done, and may not be durable.
pub struct Past {
    pub op: Op,
    /// What there was before,
    pub before: MemFs,
    /// with contents of this that were not known.
    pub unclear: Option<String>,
}

impl Mind {
    /// The client has crashed.
    pub fn crashed(&mut self) {
        self.has_lost = !self.past.is_empty();
        self.young.clear();
    }

    /// All that was done is durable.
    pub fn is_durable(&mut self, ledger: &mut Ledger) {
        self.past.clear();
        ledger.acked.append(&mut self.young);
    }
}

/// What a worker works with.
#[derive(Clone)]
pub struct Worker {
    /// As whom.
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
        // Before it was attached for the first time, there is nothing.
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
            // That was the one before the crash.
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
