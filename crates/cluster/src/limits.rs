//! Bounds of a machine that users do not choose.

use std::time::Duration;
use stripe::Options;

/// Bounds that users do not choose. Tests draw small ones, so that rare events become common.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bound of the segments of a log in flight; see [`Options::in_flight_max`]. It stays the same
    /// for the life of a file system.
    pub in_flight_max: u64,
    /// Number of cuts after which maintenance has a checkpoint written: bounds recovery.
    pub cuts_per_checkpoint_max: u64,
    /// How long one step of restoring redundancy may take, before other maintenance gets its turn.
    pub restore_step: Duration,
    /// Live bytes in the victims of a log from which on its writer copies them. Fewer than these
    /// share segments of the cleaner's log with those of other logs.
    pub writer_copies_min: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            in_flight_max: Options::default().in_flight_max,
            cuts_per_checkpoint_max: 64,
            restore_step: Duration::from_millis(500),
            writer_copies_min: 512 << 10,
        }
    }
}
