//! Very many files in many directories, and a walk over all of them.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use super::random::Random;
use super::{Outcome, outcome};

/// Makes files of `bytes` each, `per_dir` to a directory, and fsyncs the folder, which commits
/// everything.
pub(super) fn make(dir: &Path, files: u32, bytes: u32, per_dir: u32) -> Result<Outcome> {
    fs::create_dir(dir).with_context(|| format!("create {}", dir.display()))?;
    let mut content = vec![0; bytes as usize];
    Random::new(3).fill(&mut content);
    let started = Instant::now();
    let mut folder = dir.to_owned();
    for index in 0..files {
        if index % per_dir == 0 {
            folder = dir.join(format!("d{:05}", index / per_dir));
            fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
        }
        let path = folder.join(format!("f{index:07}"));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .with_context(|| format!("create {}", path.display()))?;
        file.write_all(&content).with_context(|| format!("write {}", path.display()))?;
    }
    File::open(dir).and_then(|dir| dir.sync_all()).with_context(|| format!("fsync {}", dir.display()))?;
    Ok(outcome([("files_per_s", f64::from(files) / started.elapsed().as_secs_f64())]))
}

/// Lists all directories and stats every file; counts the files.
pub(super) fn stat(dir: &Path) -> Result<Outcome> {
    let mut folders = vec![dir.to_owned()];
    let mut files = 0u32;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let path = entry.with_context(|| format!("list {}", folder.display()))?.path();
            let attributes = fs::symlink_metadata(&path).with_context(|| format!("stat {}", path.display()))?;
            match attributes.is_dir() {
                true => folders.push(path),
                false => files += 1,
            }
        }
    }
    Ok(outcome([("files", f64::from(files))]))
}

/// Lists all directories, and stats and reads every file.
pub(super) fn read(dirs: &[PathBuf]) -> Result<Outcome> {
    let started = Instant::now();
    let mut folders = dirs.to_vec();
    let (mut files, mut bytes) = (0u32, 0usize);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let path = entry.with_context(|| format!("list {}", folder.display()))?.path();
            let attributes = fs::symlink_metadata(&path).with_context(|| format!("stat {}", path.display()))?;
            if attributes.is_dir() {
                folders.push(path);
            } else {
                bytes += fs::read(&path).with_context(|| format!("read {}", path.display()))?.len();
                files += 1;
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    Ok(outcome([("files", f64::from(files)), ("bytes", bytes as f64), ("seconds", seconds)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_spread_over_directories_and_all_found() {
        let dir = tempfile::tempdir().unwrap();
        let many = dir.path().join("many");
        make(&many, 25, 7, 10).unwrap();
        assert_eq!(fs::read_dir(&many).unwrap().count(), 3);
        assert_eq!(fs::metadata(many.join("d00002/f0000024")).unwrap().len(), 7);
        assert_eq!(stat(&many).unwrap()["files"], 25.0);
        assert_eq!(read(&[many]).unwrap()["bytes"], 25.0 * 7.0);
    }
}
