//! Changes one file after the other, as something that must go on while a node fails.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use super::random::Random;
use super::{Outcome, outcome};

/// Sets the time of one file after the other for so long, at random. The files are in the folders
/// of `dir`, as `make-files` makes them. The file `begun` is there once this begins.
pub(super) fn run(dir: &Path, begun: &Path, time: Duration) -> Result<Outcome> {
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in entries(dir)? {
        files.extend(entries(&folder)?);
    }
    ensure!(!files.is_empty(), "no files in the folders of {}", dir.display());
    File::create(begun).with_context(|| format!("create {}", begun.display()))?;
    let (mut random, started) = (Random::new(5), Instant::now());
    let (mut count, mut longest, mut ended) = (0u32, Duration::ZERO, SystemTime::now());
    while started.elapsed() < time {
        let path = &files[random.below(files.len() as u64) as usize];
        let begun = Instant::now();
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        file.set_modified(SystemTime::now()).with_context(|| format!("set the time of {}", path.display()))?;
        drop(file);
        count += 1;
        if begun.elapsed() > longest {
            (longest, ended) = (begun.elapsed(), SystemTime::now());
        }
    }
    Ok(outcome([
        ("changes", f64::from(count)),
        ("longest_s", longest.as_secs_f64()),
        ("longest_ended_unix_s", ended.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())),
    ]))
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let context = || format!("list {}", folder.display());
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).with_context(context)? {
        all.push(entry.with_context(context)?.path());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_change_and_the_longest_change_is_told() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let begun = other.path().join("begun");
        let folder = dir.path().join("d");
        fs::create_dir(&folder).unwrap();
        let file = folder.join("f");
        fs::write(&file, "x").unwrap();
        File::open(&file).unwrap().set_modified(UNIX_EPOCH).unwrap();
        let done = run(dir.path(), &begun, Duration::from_millis(50)).unwrap();
        assert!(done["changes"] >= 1.0 && done["longest_s"] > 0.0 && done["longest_ended_unix_s"] > 1e9);
        assert!(fs::metadata(&file).unwrap().modified().unwrap() > UNIX_EPOCH);
        assert!(begun.exists());
        assert!(run(&folder, &begun, Duration::ZERO).is_err(), "there are no folders in it");
    }
}
