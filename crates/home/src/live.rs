//! What a home knows while it runs: its state, which clients are attached, and what each was told.

use crate::claims::Claims;
use crate::ledger::Ledger;
use crate::state::{HomeRecord, HomeState};
use crate::volume::{Learned, OTHERS, Reach, Volume};
use roam_proto::channel::{MESSAGE_LEN_MAX, Push};
use roam_proto::message::{Pushed, User};
use roam_proto::volume_stamp::Stamp;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use types::FileId;

/// Most changed files that one message tells of. Ids of any length fit.
pub(crate) const TOLD_COUNT_MAX: usize = MESSAGE_LEN_MAX / 2 / 10;

/// The state, and what exists only while the home runs.
pub(crate) struct Live {
    pub(crate) state: HomeState,
    pub(crate) log: Option<Arc<Ledger>>,
    /// The clients that are told of changes, by volume.
    pub(crate) attached: HashMap<String, Vec<Attached>>,
    /// The connection over which each client has last attached to a volume, while that connection
    /// exists.
    pub(crate) newest: HashMap<([u8; 32], String), u64>,
    /// How often each client was invited or turned away. What it attached before the last time is
    /// void.
    standing: HashMap<[u8; 32], u64>,
}

/// A client that is told of changes.
pub(crate) struct Attached {
    /// The client's number. It is not told of its own changes.
    pub(crate) author: u32,
    pub(crate) user: User,
    pub(crate) push: Arc<dyn Push>,
    /// It works under delegations.
    pub(crate) delegated: bool,
    /// Files that changed since it was last told.
    pub(crate) changed: BTreeSet<FileId>,
    /// Files that changed by other clients since, after a claim that this client had to answer. It
    /// is told of such a file only if it still has a delegation on it.
    pub(crate) claimed: BTreeSet<FileId>,
    /// Those of `claimed` on which it had no delegation. It is told of them when it is idle.
    pub(crate) later: BTreeSet<FileId>,
    pub(crate) told: Stamp,
}

impl Live {
    pub(crate) fn new(state: HomeState) -> Live {
        Live { state, log: None, attached: HashMap::new(), newest: HashMap::new(), standing: HashMap::new() }
    }

    /// Changes the state. The change is durable when the log says so.
    pub(crate) fn record(&mut self, record: HomeRecord) {
        if let Some(log) = &self.log {
            log.append(&record);
        }
        self.make(record);
    }

    /// Changes the state, as [`record`](Self::record) does, for what a client has done to a volume.
    pub(crate) fn record_done(&mut self, volume: &str, record: HomeRecord) {
        if let Some(log) = &self.log {
            log.append_done(volume, &record);
        }
        self.make(record);
    }

    /// Changes the state for what an [announcement](crate::announced) has made durable.
    pub(crate) fn will_do(&mut self, record: HomeRecord) {
        self.make(record);
    }

    fn make(&mut self, record: HomeRecord) {
        let made = self.state.apply(record);
        debug_assert!(made.is_some(), "a record that makes no sense");
    }

    /// Notes that a client's rights were decided anew.
    pub(crate) fn stands_anew(&mut self, key: [u8; 32]) {
        *self.standing.entry(key).or_default() += 1;
    }

    pub(crate) fn standing(&self, key: &[u8; 32]) -> u64 {
        self.standing.get(key).copied().unwrap_or(0)
    }

    /// True if a client has attached to a volume over a later connection than this one.
    pub(crate) fn is_older(&self, key: &[u8; 32], volume: &str, connection: u64) -> bool {
        self.newest.get(&(*key, volume.to_string())).is_some_and(|newest| *newest > connection)
    }

    pub(crate) fn volume(&self, name: &str) -> Option<&Volume> {
        self.state.volumes.get(name)
    }

    /// Takes in what was learned of a file after `author` may have changed it.
    pub(crate) fn learn(&mut self, volume: &str, learned: Learned, author: u32) {
        let Some(known) = self.state.volumes.get(volume) else { return };
        let (id, changed) = (learned.id, learned.file.version > known.journal().stamp().seq);
        let revealed = known.revealed(&learned);
        let is_new = known.file(id).is_none();
        let record = HomeRecord::Learned { volume: volume.to_string(), learned };
        match author {
            OTHERS => self.record(record),
            _ => self.record_done(volume, record),
        }
        if is_new
            && author == OTHERS
            && let Some(log) = &self.log
        {
            log.gave_id();
        }
        for attached in self.attached.get_mut(volume).into_iter().flatten() {
            attached.changed.extend(&revealed);
        }
        if !changed {
            return;
        }
        for attached in self.attached.get_mut(volume).into_iter().flatten() {
            if author == OTHERS || (attached.author != author && !attached.delegated) {
                attached.changed.insert(id);
            } else if attached.author != author {
                attached.claimed.insert(id);
            }
        }
    }

    /// Returns the changes that each attached client has to be told. A client under delegations is
    /// told of changes by other programs. It is told of changes by other clients only if it holds
    /// the files, or is the `idle` one.
    pub(crate) fn untold(&mut self, volume: &str, claims: &Claims, idle: Option<u32>) -> Vec<Untold> {
        let Some(known) = self.state.volumes.get(volume) else { return Vec::new() };
        let stamp = known.journal().stamp();
        let attached = self.attached.get_mut(volume).into_iter().flatten();
        let untold = attached.filter(|attached| attached.told != stamp).map(|attached| {
            let (author, mut files) = (attached.author, std::mem::take(&mut attached.changed));
            for file in std::mem::take(&mut attached.claimed) {
                let believed = claims.has(author, file);
                if believed {
                    files.insert(file)
                } else {
                    attached.later.insert(file)
                };
            }
            let partly = attached.delegated && idle != Some(author);
            if !partly {
                attached.told = stamp;
                // It knows the state of files that it was given since.
                files.extend(std::mem::take(&mut attached.later).into_iter().filter(|file| !claims.has(author, *file)));
            }
            let files = files.into_iter().filter(|file| known.reach(&attached.user, *file) != Reach::No).collect();
            Untold { push: attached.push.clone(), user: attached.user.clone(), files, stamp, partly }
        });
        untold.collect()
    }
}

/// What a client has to be told.
pub(crate) struct Untold {
    pub(crate) push: Arc<dyn Push>,
    pub(crate) user: User,
    pub(crate) files: Vec<FileId>,
    pub(crate) stamp: Stamp,
    /// There may be more changes up to the stamp.
    partly: bool,
}

impl Untold {
    pub(crate) fn messages(self) -> Vec<Pushed> {
        let Untold { mut files, stamp, partly, .. } = self;
        let mut messages = Vec::new();
        while files.len() > TOLD_COUNT_MAX {
            // Only the last message says that all is told.
            let files = files.split_off(files.len() - TOLD_COUNT_MAX);
            messages.push(Pushed::Changed { files, stamp, more: true });
        }
        if !(partly && files.is_empty()) {
            messages.push(Pushed::Changed { files, stamp, more: partly });
        }
        messages
    }
}
