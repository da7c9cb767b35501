//! What a run is told, what it counts, and how it fails.

/// Options of a run. The seed decides those that are `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Operations in total.
    pub operations: u64,
    /// Crashes happen.
    pub crashes: bool,
    /// Stores have faults.
    pub faults: bool,
    /// Parity fragments.
    pub parity: Option<u8>,
    /// Now and then, more stores fail than parity makes up for.
    pub beyond: bool,
    /// The file system has its usual limits; otherwise the seed draws small ones.
    pub usual_limits: bool,
    /// Workers write much, until space runs out.
    pub fill: bool,
    /// Print every operation and event.
    pub verbose: bool,
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Digest of all events: equal for equal seeds, options and code.
    pub digest: u64,
    /// Operations begun.
    pub operations: u64,
    /// Operations refused for want of space.
    pub refused_space: u64,
    /// Operations refused for want of a right.
    pub refused_right: u64,
    /// Crashes, including losses of power.
    pub crashes: u64,
    /// Losses of power.
    pub power_losses: u64,
    /// Faults of stores.
    pub faults: u64,
    /// Times the consensus folder was lost, damaged or set back.
    pub consensus_faults: u64,
    /// Changes of the maps that were acknowledged.
    pub map_changes: u64,
    /// Times a worker had to wait for an inode's lock of the modelled kernel.
    pub lock_waits: u64,
    /// Requests to the client during which other workers changed something.
    pub overlaps: u64,
    /// Answers from the modelled kernel's cache.
    pub cache_hits: u64,
    /// Segments that the cleaner emptied.
    pub cleaned: u64,
    /// Segments deleted.
    pub deleted: u64,
    /// Segments that a scrub repaired.
    pub repaired: u64,
    /// Segments that maintenance restored.
    pub restored: u64,
    /// Stores on machines of their own.
    pub remote_stores: u64,
    /// Times a link was cut.
    pub cuts: u64,
    /// Times the machine of a store was started.
    pub store_starts: u64,
    /// Stores that could no longer be opened and were emptied.
    pub emptied: u64,
    /// Times that more stores failed than parity makes up for.
    pub ordeals: u64,
    /// Starts that were refused during an ordeal.
    pub ordeals_refused: u64,
    /// Starts that succeeded during an ordeal.
    pub ordeals_survived: u64,
    /// Ordeals in which a start took rotten fragments of the newest segments for torn ones, and
    /// went on without these segments.
    pub ordeals_unnoticed: u64,
    /// Starts that were refused for good: stores had been set back behind segments that a start had
    /// written to them.
    pub ordeals_stuck: u64,
    /// Starts for which the operator vouched for stores that had been set back (`accepts_loss`).
    pub ordeals_vouched: u64,
    /// Worlds with two managers.
    pub two_managers: u64,
    /// Worlds in which both managers had files.
    pub two_used: u64,
}

impl Outcome {
    /// The sum of two outcomes, with the digests combined.
    pub fn and(self, other: Outcome) -> Outcome {
        Outcome {
            digest: self.digest.rotate_left(1) ^ other.digest,
            operations: self.operations + other.operations,
            refused_space: self.refused_space + other.refused_space,
            refused_right: self.refused_right + other.refused_right,
            crashes: self.crashes + other.crashes,
            power_losses: self.power_losses + other.power_losses,
            faults: self.faults + other.faults,
            consensus_faults: self.consensus_faults + other.consensus_faults,
            map_changes: self.map_changes + other.map_changes,
            lock_waits: self.lock_waits + other.lock_waits,
            overlaps: self.overlaps + other.overlaps,
            cache_hits: self.cache_hits + other.cache_hits,
            cleaned: self.cleaned + other.cleaned,
            deleted: self.deleted + other.deleted,
            repaired: self.repaired + other.repaired,
            restored: self.restored + other.restored,
            remote_stores: self.remote_stores + other.remote_stores,
            cuts: self.cuts + other.cuts,
            store_starts: self.store_starts + other.store_starts,
            emptied: self.emptied + other.emptied,
            ordeals: self.ordeals + other.ordeals,
            ordeals_refused: self.ordeals_refused + other.ordeals_refused,
            ordeals_survived: self.ordeals_survived + other.ordeals_survived,
            ordeals_unnoticed: self.ordeals_unnoticed + other.ordeals_unnoticed,
            ordeals_stuck: self.ordeals_stuck + other.ordeals_stuck,
            ordeals_vouched: self.ordeals_vouched + other.ordeals_vouched,
            two_managers: self.two_managers + other.two_managers,
            two_used: self.two_used + other.two_used,
        }
    }
}

/// Why a run failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The command that replays it.
    pub command: String,
    /// What was wrong.
    pub what: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}: {}\nreplay it with: {}", self.seed, self.what, self.command)
    }
}

impl std::error::Error for Failure {}

impl Options {
    /// The command that runs this world again.
    pub(super) fn command(&self, seed: u64) -> String {
        let mut command = format!("cargo run --release -p world -- --seed {seed} --operations {}", self.operations);
        if !self.crashes {
            command += " --no-crashes";
        }
        if !self.faults {
            command += " --no-faults";
        }
        if self.beyond {
            command += " --beyond";
        }
        if self.usual_limits {
            command += " --usual-limits";
        }
        if self.fill {
            command += " --fill";
        }
        if let Some(parity) = self.parity {
            command += &format!(" --parity {parity}");
        }
        command + " --verbose"
    }
}
