//! The delegations that a client holds.

use host::Clock;
use roam_proto::delegation::{Hold, LEASE};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use types::FileId;

/// The client's own lease. It is shorter than the home's, so that the client's ends first even if
/// their clocks run at different speeds.
pub(super) const OWN_LEASE: Duration = LEASE.saturating_sub(Duration::from_secs(3));

/// Most directories for which the client remembers names.
const DIRECTORY_COUNT_MAX: usize = 1 << 10;

/// Most files that it remembers as named in one directory.
const NAMED_COUNT_MAX: usize = 1 << 10;

/// Files that one operation changes. Some may be the same.
pub(crate) type Wanted = [FileId; 4];

/// The delegations that a client holds.
pub(crate) struct Delegations {
    pub(super) clock: Arc<dyn Clock>,
    /// The kind of each delegation, and the last change that the home's facts of the file included.
    pub(super) held: HashMap<FileId, (Hold, u64)>,
    /// Delegations that were given and not used yet.
    pub(super) fresh: HashSet<FileId>,
    /// The last name that a program wanted to make in each directory. A program that took a lock
    /// which is a file takes it again when it is free.
    pub(super) made: HashMap<FileId, Vec<u8>>,
    /// Files that got names in a directory since other clients last asked for its names.
    pub(super) named: HashMap<FileId, BTreeSet<FileId>>,
    /// The last recall of each file that was answered. A grant from before it is void, even if the
    /// answer with the grant comes only now.
    pub(super) returned: HashMap<FileId, u64>,
    /// When everything ends, unless the home answers something before.
    pub(super) until: Duration,
    /// The run of the home that gave the delegations.
    pub(super) run: u64,
    /// How often everything was lost. A question from before a loss gives nothing.
    pub(super) losses: u64,
    /// Everything was lost, and `doubtful` has not been set since.
    pub(super) has_lost: bool,
    /// Operations up to this one were logged before everything was last lost.
    pub(super) doubtful: u64,
}

impl Delegations {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Delegations {
        let (held, fresh, returned) = (HashMap::new(), HashSet::new(), HashMap::new());
        let (made, named) = (HashMap::new(), HashMap::new());
        let (until, run, losses, has_lost, doubtful) = (Duration::ZERO, 0, 0, true, 0);
        Delegations { clock, held, fresh, made, named, returned, until, run, losses, has_lost, doubtful }
    }

    pub(super) fn is_valid(&self) -> bool {
        self.clock.now() < self.until
    }

    /// Files with a delegation of at least this kind.
    pub(crate) fn held_for(&self, hold: Hold) -> impl Iterator<Item = FileId> {
        self.held.iter().filter(move |(_, (held, _))| *held >= hold).map(|(file, _)| *file)
    }

    pub(super) fn holds(&self, file: FileId, hold: Hold) -> bool {
        self.is_valid() && self.held.get(&file).is_some_and(|(held, _)| *held >= hold)
    }

    /// Notes that a program wants to make a name in a directory.
    pub(super) fn will_make(&mut self, dir: FileId, name: &[u8]) {
        if self.made.len() >= DIRECTORY_COUNT_MAX {
            self.made.clear();
        }
        self.made.insert(dir, name.to_vec());
    }

    /// Notes that a file got a name in a directory.
    pub(super) fn did_name(&mut self, dir: FileId, file: FileId) {
        if self.named.len() >= DIRECTORY_COUNT_MAX {
            self.named.clear();
        }
        let named = self.named.entry(dir).or_default();
        if named.len() < NAMED_COUNT_MAX {
            named.insert(file);
        }
    }

    pub(super) fn lose(&mut self) {
        self.held.clear();
        self.fresh.clear();
        self.returned.clear();
        self.named.clear();
        self.losses += 1;
        self.has_lost = true;
    }

    /// The home says that the client has no delegations, or will soon have none.
    pub(crate) fn forfeit(&mut self) {
        self.lose();
        self.until = Duration::ZERO;
    }

    /// The home has answered a question that was asked at this time: the lease begins anew.
    pub(crate) fn renew(&mut self, asked: Duration) {
        if !self.is_valid() {
            // The home may have given the delegations to others meanwhile.
            self.lose();
        }
        self.until = self.until.max(asked + OWN_LEASE);
    }
}
