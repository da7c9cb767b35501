//! Small operations, each timed, as a user waits for them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{Outcome, outcome, percentile};

/// Makes, stats, reads, renames and removes small files without a pause: `operations_per_s`,
/// `p50_ms`, `p99_ms`, `max_ms`.
pub(super) fn probe(dir: &Path, seconds: u32) -> Result<Outcome> {
    fs::create_dir(dir).with_context(|| format!("create {}", dir.display()))?;
    let (started, time) = (Instant::now(), Duration::from_secs(seconds.into()));
    let mut waits = Vec::new();
    let (old, new) = (dir.join("old"), dir.join("new"));
    while started.elapsed() < time {
        let mut timed = |what: &dyn Fn() -> std::io::Result<()>| {
            let begun = Instant::now();
            let result = what();
            waits.push(begun.elapsed());
            result.with_context(|| format!("work in {}", dir.display()))
        };
        timed(&|| fs::write(&old, "a line of text\n"))?;
        timed(&|| fs::symlink_metadata(&old).map(drop))?;
        timed(&|| fs::read(&old).map(drop))?;
        timed(&|| fs::rename(&old, &new))?;
        timed(&|| fs::read_dir(dir).map(|entries| entries.for_each(drop)))?;
        timed(&|| fs::remove_file(&new))?;
    }
    Ok(waited(waits, started.elapsed()))
}

/// Lists each folder of a folder once, after the outer folder itself; results as of [`probe`].
pub(super) fn list_each(dir: &Path) -> Result<Outcome> {
    let folders: std::io::Result<Vec<PathBuf>> =
        fs::read_dir(dir).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let folders = folders.with_context(|| format!("list {}", dir.display()))?;
    ensure!(!folders.is_empty(), "{} has no folders", dir.display());
    let started = Instant::now();
    let mut waits = Vec::new();
    for folder in folders {
        let begun = Instant::now();
        let count = fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))?.count();
        ensure!(count > 0, "{} is empty", folder.display());
        waits.push(begun.elapsed());
    }
    Ok(waited(waits, started.elapsed()))
}

fn waited(waits: Vec<Duration>, all: Duration) -> Outcome {
    let mut waits_ms: Vec<f64> = waits.into_iter().map(|wait| wait.as_secs_f64() * 1e3).collect();
    waits_ms.sort_by(f64::total_cmp);
    let count = waits_ms.len() as f64;
    outcome([
        ("operations_per_s", count / all.as_secs_f64()),
        ("mean_ms", waits_ms.iter().sum::<f64>() / count),
        ("p50_ms", percentile(&waits_ms, 50)),
        ("p99_ms", percentile(&waits_ms, 99)),
        ("max_ms", percentile(&waits_ms, 100)),
    ])
}

/// The mean time of each changing operation, in ms: the operations of Huston and Honeyman's Table
/// 3.
pub(super) fn operations(dir: &Path, times: u32) -> Result<Outcome> {
    fs::create_dir(dir).with_context(|| format!("create {}", dir.display()))?;
    let path = |name: &str, n: u32| dir.join(format!("{name}-{n:04}"));
    let mut measured = Outcome::new();
    let mut time = |name: &str, what: &dyn Fn(u32) -> std::io::Result<()>| -> Result<()> {
        let begun = Instant::now();
        for n in 0..times {
            what(n).with_context(|| format!("{name} in {}", dir.display()))?;
        }
        measured.insert(format!("{name}_ms"), begun.elapsed().as_secs_f64() * 1e3 / f64::from(times));
        Ok(())
    };
    time("create", &|n| fs::File::create(path("file", n)).map(drop))?;
    time("setattr", &|n| fs::set_permissions(path("file", n), fs::Permissions::from_mode(0o600)))?;
    time("rename", &|n| fs::rename(path("file", n), path("renamed", n)))?;
    time("link", &|n| fs::hard_link(path("renamed", n), path("link", n)))?;
    time("symlink", &|n| symlink("anywhere", path("symlink", n)))?;
    time("remove", &|n| fs::remove_file(path("renamed", n)))?;
    time("mkdir", &|n| fs::create_dir(path("dir", n)))?;
    time("rmdir", &|n| fs::remove_dir(path("dir", n)))?;
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_measured_and_nothing_is_left_of_a_probe() {
        let dir = tempfile::tempdir().unwrap();
        let probed = dir.path().join("probed");
        let outcome = probe(&probed, 1).unwrap();
        assert!(outcome["p50_ms"] <= outcome["p99_ms"] && outcome["p99_ms"] <= outcome["max_ms"]);
        assert_eq!(fs::read_dir(&probed).unwrap().count(), 0);
        assert_eq!(operations(&dir.path().join("operations"), 3).unwrap().len(), 8);
        fs::write(probed.join("x"), "").unwrap();
        assert!(list_each(dir.path()).unwrap()["operations_per_s"] > 0.0);
    }
}
