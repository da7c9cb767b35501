//! A tree of small files: making it, copying it with `cp -r`, and walking it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::random::Random;
use super::{Outcome, outcome};

const FILES_PER_DIR: u32 = 25;
const DIRS_PER_MODULE: u32 = 8;

/// Makes a tree with the shape of a source tree: modules of 8 folders of 25 files, mostly of a few
/// KiB, a few much larger (a median of about 3 KiB and a mean of about 6 KiB, as in /usr/include).
pub(super) fn make(dir: &Path, files: u32) -> Result<Outcome> {
    let mut random = Random::new(1995);
    let mut bytes = 0;
    for index in 0..files {
        let folder = index / FILES_PER_DIR;
        let parent = dir.join(format!("module-{:02}", folder / DIRS_PER_MODULE)).join(format!("part-{folder:03}"));
        if index % FILES_PER_DIR == 0 {
            fs::create_dir_all(&parent).with_context(|| format!("create {}", parent.display()))?;
        }
        let text = source_text(&mut random);
        bytes += text.len();
        let path = parent.join(format!("file_{index:04}.{}", if index % 3 == 0 { "h" } else { "c" }));
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(outcome([("files", f64::from(files)), ("bytes", bytes as f64)]))
}

fn source_text(random: &mut Random) -> String {
    // The product of two even draws is skewed: many small sizes, few large ones.
    let size = 200 + (random.below(160) * random.below(160)) as usize;
    let mut text = String::with_capacity(size + 80);
    while text.len() < size {
        let (name, value) = (random.below(10_000), random.below(1 << 32));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "static const unsigned int name_{name:04} = 0x{value:08x}; /* line */");
    }
    text
}

/// Copies with the machine's own `cp -r`, whose way of copying (sizes, copy_file_range, fadvise) is
/// the users'.
pub(super) fn copy(source: &Path, target: &Path) -> Result<Outcome> {
    ensure!(!target.exists(), "{} exists", target.display());
    let started = Instant::now();
    let status = Command::new("cp").arg("-r").arg(source).arg(target).status().context("start cp")?;
    let seconds = started.elapsed().as_secs_f64();
    ensure!(status.success(), "cp: {status}");
    Ok(outcome([("seconds", seconds)]))
}

/// Removes with the machine's own `rm -rf`: `seconds`.
pub(super) fn remove(dir: &Path) -> Result<Outcome> {
    let started = Instant::now();
    let status = Command::new("rm").arg("-rf").arg(dir).status().context("start rm")?;
    let seconds = started.elapsed().as_secs_f64();
    ensure!(status.success(), "rm: {status}");
    Ok(outcome([("seconds", seconds)]))
}

/// How long each kind of walk is repeated: one pass may be too short for the clock.
const WALK_TIME: Duration = Duration::from_millis(500);

pub(super) fn walk(dir: &Path) -> Result<Outcome> {
    // The first pass is not measured: it makes the tree "already seen".
    let mut found = Found::default();
    list(dir, &mut found)?;
    for path in &found.files {
        fs::symlink_metadata(path).with_context(|| format!("stat {}", path.display()))?;
    }
    ensure!(!found.files.is_empty(), "{} has no files", dir.display());

    let entries_per_s = rate(|| {
        let mut entries = 0;
        for folder in &found.folders {
            entries += fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?.count();
        }
        Ok(entries)
    })?;
    let stats_per_s = rate(|| {
        for path in &found.files {
            fs::symlink_metadata(path).with_context(|| format!("stat {}", path.display()))?;
        }
        Ok(found.files.len())
    })?;
    Ok(outcome([("entries_per_s", entries_per_s), ("stats_per_s", stats_per_s)]))
}

/// Lists with the machine's own `ls -lR`, once before it measures.
pub(super) fn list_long(dir: &Path) -> Result<Outcome> {
    let list = || {
        let status = Command::new("ls").arg("-lR").arg(dir).stdout(Stdio::null()).status().context("start ls")?;
        ensure!(status.success(), "ls: {status}");
        Ok(1)
    };
    list()?;
    Ok(outcome([("times_per_s", rate(list)?)]))
}

/// Repeats `pass`, which returns its amount of work, for [`WALK_TIME`].
fn rate(mut pass: impl FnMut() -> Result<usize>) -> Result<f64> {
    let started = Instant::now();
    let mut done = 0;
    while done == 0 || started.elapsed() < WALK_TIME {
        done += pass()?;
    }
    Ok(done as f64 / started.elapsed().as_secs_f64())
}

#[derive(Default)]
struct Found {
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

fn list(dir: &Path, found: &mut Found) -> Result<()> {
    found.folders.push(dir.to_owned());
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry.with_context(|| format!("list {}", dir.display()))?;
        if entry.file_type().context("the kind of an entry")?.is_dir() {
            list(&entry.path(), found)?;
        } else {
            found.files.push(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_is_the_same_each_time_and_copies() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        let made = make(&one, 60).unwrap();
        assert_eq!(made, make(&two, 60).unwrap());
        copy(&one, &dir.path().join("copy")).unwrap();
        let mut found = Found::default();
        list(&dir.path().join("copy"), &mut found).unwrap();
        assert_eq!(found.files.len(), 60);
        let bytes: u64 = found.files.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        assert_eq!(bytes as f64, made["bytes"]);
        assert!(walk(&one).unwrap()["stats_per_s"] > 0.0);
    }

    #[test]
    fn sizes_are_those_of_source_files() {
        let mut random = Random::new(1995);
        let mut sizes: Vec<usize> = (0..2000).map(|_| source_text(&mut random).len()).collect();
        sizes.sort_unstable();
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((5_000..8_000).contains(&mean), "{mean}");
        assert!((2_000..6_000).contains(&sizes[1000]), "{}", sizes[1000]);
    }
}
