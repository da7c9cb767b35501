//! How much of a file a client fetches over a slow link when a program wants some of it (Froese and
//! Bunt, section 4.7; Zhao and Figueiredo, section 4.1). It fetches the whole file, so that the
//! file is there when the link is lost, or only the wanted part, so that the program waits no
//! longer than it must.

use std::time::Duration;

/// By default a program that wants part of a file waits for the whole file, if that takes no longer
/// than this.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// True if the client fetches the whole of a file of `size_bytes` over a link that carries
/// `bytes_per_second`.
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
