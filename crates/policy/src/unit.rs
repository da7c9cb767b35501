//! How much of a file is fetched when some of it is wanted over a slow link (Froese and Bunt,
//! section 4.7; Zhao and Figueiredo, section 4.1): all of it, so that it is there when the link is
//! lost, or what is wanted, so that nobody waits for more than that.

use std::time::Duration;

/// Somebody who wants part of a file waits for all of it, where nothing else is said, if that takes
/// no longer than this.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// True if all of a file of so many bytes is fetched, over a link that carries so many a second.
pub fn is_whole(size_bytes: u64, bytes_per_second: f64) -> bool {
    size_bytes as f64 <= bytes_per_second * PATIENCE.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_fetched_whole_if_that_takes_no_longer_than_somebody_waits() {
        assert!(is_whole(36_000, 3600.0) && is_whole(0, 0.0));
        assert!(!is_whole(36_001, 3600.0) && !is_whole(1, 0.0));
    }
}
