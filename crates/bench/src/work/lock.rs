//! A lock that is a file: the client that makes it has the lock, and gives it back by removing it.
//!
//! As in Zhao and Figueiredo's benchmark (section 5.1.2), a client makes a file of its own and
//! links it to the name of the lock, which fails while another client has the lock. As open(2)
//! advises, it then checks whether its own file has two names after all. The machine's clock, which
//! all clients share, tells when each client had the lock, so the caller can see whether two had it
//! at once.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use super::{Outcome, outcome};

/// How a client uses the lock.
pub(super) struct Use {
    /// The client's number, which is unique.
    pub client: u32,
    /// How often it takes the lock.
    pub times: u32,
    /// How long it keeps the lock.
    pub hold: Duration,
    /// How long it waits after a try that failed, and after it has given the lock back.
    pub pause: Duration,
    /// Longest time of the workload.
    pub time_max: Duration,
}

/// Takes the lock this many times: `entered_N_s` and `left_N_s` for each time, `tries`, and `lost`,
/// which counts how often the lock was gone when the client gave it back.
pub(super) fn run(dir: &Path, how: &Use) -> Result<Outcome> {
    let (own, lock) = (dir.join(format!("client-{}", how.client)), dir.join("lock"));
    fs::write(&own, "").with_context(|| format!("create {}", own.display()))?;
    let started = Instant::now();
    let (mut tries, mut lost, mut taken) = (0.0, 0.0, 0);
    let mut measured = Outcome::new();
    while taken < how.times && started.elapsed() < how.time_max {
        tries += 1.0;
        if take(&own, &lock)? {
            measured.insert(format!("entered_{taken}_s"), clock_s());
            std::thread::sleep(how.hold);
            measured.insert(format!("left_{taken}_s"), clock_s());
            taken += 1;
            match fs::remove_file(&lock) {
                Err(error) if error.kind() == ErrorKind::NotFound => lost += 1.0,
                removed => removed.with_context(|| format!("remove {}", lock.display()))?,
            }
        }
        std::thread::sleep(how.pause);
    }
    measured.extend(outcome([("tries", tries), ("lost", lost)]));
    Ok(measured)
}

/// True if the lock is taken now.
fn take(own: &Path, lock: &Path) -> Result<bool> {
    match fs::hard_link(own, lock) {
        Ok(()) => Ok(true),
        // SFTP has no separate code for a name that exists.
        Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::PermissionDenied) => {
            let attributes = fs::symlink_metadata(own).with_context(|| format!("stat {}", own.display()))?;
            Ok(attributes.nlink() == 2)
        }
        Err(error) => Err(error).with_context(|| format!("link {}", lock.display())),
    }
}

fn clock_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn how(client: u32, time_max: Duration) -> Use {
        Use { client, times: 3, hold: Duration::from_millis(2), pause: Duration::from_millis(1), time_max }
    }

    #[test]
    fn a_lock_is_taken_as_often_as_asked_and_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let measured = run(dir.path(), &how(1, Duration::from_secs(60))).unwrap();
        assert_eq!((measured["tries"], measured["lost"]), (3.0, 0.0));
        assert!(measured["entered_2_s"] >= measured["left_1_s"] && measured["left_2_s"] > measured["entered_2_s"]);
        assert!(!dir.path().join("lock").exists());
    }

    #[test]
    fn a_lock_that_somebody_has_is_not_taken_and_not_waited_for_without_end() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("lock"), "").unwrap();
        let measured = run(dir.path(), &how(1, Duration::from_millis(50))).unwrap();
        assert!(measured["tries"] > 1.0 && !measured.contains_key("entered_0_s"));
    }
}
