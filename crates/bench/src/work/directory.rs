//! One directory with very many entries.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{Outcome, outcome};

pub(super) fn run(dir: &Path, entries: u32) -> Result<Outcome> {
    fs::create_dir(dir).with_context(|| format!("create {}", dir.display()))?;
    let per_s = |started: Instant| f64::from(entries) / started.elapsed().as_secs_f64();

    let started = Instant::now();
    for index in 0..entries {
        let path = dir.join(name(index));
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .with_context(|| format!("create {}", path.display()))?;
    }
    let create_per_s = per_s(started);

    let started = Instant::now();
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        seen.insert(entry.with_context(|| format!("list {}", dir.display()))?.file_name());
    }
    let list_per_s = per_s(started);
    ensure!(seen.len() == entries as usize, "{} names listed, {entries} created", seen.len());
    drop(seen);

    let started = Instant::now();
    for index in 0..entries {
        let path = dir.join(name(index));
        fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
    }
    fs::remove_dir(dir).with_context(|| format!("remove {}", dir.display()))?;
    Ok(outcome([("create_per_s", create_per_s), ("list_per_s", list_per_s), ("remove_per_s", per_s(started))]))
}

fn name(index: u32) -> String {
    format!("entry-{index:07}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_phases_are_measured_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let measured = run(&dir.path().join("many"), 50).unwrap();
        assert_eq!(measured.len(), 3);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
