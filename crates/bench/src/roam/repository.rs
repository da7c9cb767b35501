//! Changes by other clients, over a link to far away (Zhao and Figueiredo, section 5.2): a software
//! repository that is updated between the runs of its user, and a producer whose files a consumer
//! reads.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::found::{Figure, Found, Table, largest, median};
use super::rig::{Rig, Wire};
use super::wan::{DELAY, RATE};
use crate::report::{count, number};
use crate::run::work;
use crate::scripted::Site;
use crate::work::{Random, Work};

/// Files of the repository, and of the part that is updated alone; both are counted without
/// directories.
const REPOSITORY: [u32; 2] = [13_460, 540];
const REPOSITORY_QUICK: [u32; 2] = [300, 30];
/// Runs before and after an update.
const RUNS: u32 = 4;
const FILE_BYTES: u32 = 2048;
const FILES_PER_DIR: u32 = 60;
/// New files in each run of the producer, and its number of runs.
const PRODUCED: u32 = 30;
const PRODUCER_RUNS: u32 = 15;
/// Runs of the consumer at each end that are compared.
const COMPARED: usize = 3;

/// An event, and the bytes that crossed the link meanwhile.
#[derive(Debug, Serialize)]
struct Step {
    what: String,
    seconds: f64,
    wire: Wire,
}

/// Lets a child process list, stat and read everything below some folders of the mount, which have
/// this many files.
fn read(rig: &Rig, what: &str, folders: &[&str], files: u32) -> Result<Step> {
    let before = rig.quiet()?;
    let folders = folders.iter().map(|folder| rig.path(folder).display().to_string());
    let measured = work(&std::iter::once("read-tree".to_owned()).chain(folders).collect::<Vec<_>>())?;
    let [seconds, seen, bytes] =
        ["seconds", "files", "bytes"].map(|name| measured.get(name).copied().unwrap_or(f64::NAN));
    ensure!(
        seen == f64::from(files) && bytes == seen * f64::from(FILE_BYTES),
        "{what}: {seen} files of {files} were read, {bytes} bytes"
    );
    let step = Step { what: what.to_owned(), seconds, wire: rig.quiet()?.since(before) };
    eprintln!("repository: {step:?}");
    Ok(step)
}

/// Changes all files below a folder at home, as another client would.
fn update(folder: &Path, random: &mut Random) -> Result<u32> {
    let mut changed = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry.with_context(|| format!("list {}", folder.display()))?.path();
        if path.is_dir() {
            changed += update(&path, random)?;
        } else {
            let mut bytes = [0; FILE_BYTES as usize];
            random.fill(&mut bytes);
            fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))?;
            changed += 1;
        }
    }
    Ok(changed)
}

/// The repository: the cost of an update to clients that have it cached.
pub fn measure_repository(site: &Site, quick: bool) -> Result<Found> {
    let [main, part] = if quick { REPOSITORY_QUICK } else { REPOSITORY };
    // A run uses a part of the files, and all of the part that is updated alone.
    let used = main / 6;
    let make = |dir, files| Work::MakeFiles { dir, files, bytes: FILE_BYTES, per_dir: FILES_PER_DIR }.run().map(drop);
    let fill = |source: &Path| {
        let all = source.join("all");
        fs::create_dir(&all).context("create the repository")?;
        [("used", used), ("unused", main - used), ("part", part)]
            .iter()
            .try_for_each(|(name, files)| make(all.join(name), *files))
    };
    let rig = Rig::mounted(site, "repository", &[], fill)?;
    rig.fetch(&["all"])?;
    let mut steps = Vec::new();
    let mut updates = Vec::new();
    let mut random = Random::new(14);
    for (name, folder) in [("part", "all/part"), ("all", "all")] {
        rig.shape(Some(RATE), DELAY)?;
        for run in 1..=RUNS {
            steps.push(read(&rig, &format!("{name}: run {run}"), &["all/used", "all/part"], used + part)?);
        }
        let before = rig.quiet()?;
        let files = update(&rig.source().join(folder), &mut random)?;
        let wire = rig.quiet()?.since(before);
        steps.push(Step { what: format!("{name}: {} files are updated", count(files.into())), seconds: 0.0, wire });
        updates.push((f64::from(files), wire));
        for run in 1..=RUNS {
            steps.push(read(&rig, &format!("{name}: run {}", RUNS + run), &["all/used", "all/part"], used + part)?);
        }
        // Brings the cache up to date for the next part.
        rig.shape(None, std::time::Duration::ZERO)?;
        rig.fetch(&["all"])?;
    }
    let per_file = |(files, wire): &(f64, Wire)| wire.bytes() as f64 / files;
    let (small, large) = (per_file(&updates[0]), per_file(&updates[1]));
    let unchanged = |step: &&Step| step.what.contains(": run") && !step.what.ends_with(&format!("run {}", RUNS + 1));
    let quiet = largest(steps.iter().filter(unchanged).map(|step| step.wire.packets() as f64));
    Ok(Found {
        conditions: format!(
            "A link of {RATE} with {} ms each way. A mount has a repository of {} files of {FILE_BYTES} bytes in its \
             cache; a run lists and reads {} of them. After {RUNS} runs another program changes files at home, first a part, \
             then, after all is up to date again, all.",
            DELAY.as_millis(),
            count((main + part).into()),
            count((used + part).into()),
        ),
        figures: vec![
            Figure::at_most(
                "bytes that say what was updated, per file: the most of both updates : the least",
                small.max(large) / small.min(large),
                1.5,
                "",
            )
            .ours(),
            Figure::beside(
                "bytes that say what was updated, per file",
                format!("{} of {}, {} of {}", number(small), updates[0].0, number(large), updates[1].0),
            ),
            Figure::at_most("packets in a run without an update before it, the most", quiet, 0.0, "").ours(),
        ],
        tables: vec![table(&steps)],
        samples: serde_json::to_value(&steps).context("samples as JSON")?,
        ..Found::default()
    })
}

/// The producer: new files appear at home before each run of a consumer, which reads all files.
pub fn measure_producer(site: &Site, quick: bool) -> Result<Found> {
    let runs = if quick { 2 * COMPARED as u32 + 1 } else { PRODUCER_RUNS };
    let rig =
        Rig::mounted(site, "producer", &[], |source| fs::create_dir(source.join("data")).context("create a folder"))?;
    rig.shape(Some(RATE), DELAY)?;
    let mut steps = Vec::new();
    let mut calls = Vec::new();
    let mut told = Vec::new();
    let mut random = Random::new(30);
    for run in 1..=runs {
        let before = rig.quiet()?;
        for file in 0..PRODUCED {
            let path = rig.source().join("data").join(format!("run-{run:02}-{file:02}"));
            let mut bytes = [0; FILE_BYTES as usize];
            random.fill(&mut bytes);
            fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))?;
        }
        let wire = rig.quiet()?.since(before);
        steps.push(Step { what: format!("{PRODUCED} files are new"), seconds: 0.0, wire });
        let step = read(&rig, &format!("run {run}: {} files", run * PRODUCED), &["data"], run * PRODUCED)?;
        told.push(wire.packets() as f64);
        calls.push(step.wire.up_packets as f64);
        steps.push(step);
    }
    // The first run also learns that the folder exists.
    let growth = |all: &[f64]| median(&all[all.len() - COMPARED..]) / median(&all[1..=COMPARED]);
    Ok(Found {
        conditions: format!(
            "A link of {RATE} with {} ms each way. Before each of {runs} runs {PRODUCED} files of {FILE_BYTES} bytes \
             are new in a folder at home; a run lists it and reads all files.",
            DELAY.as_millis()
        ),
        figures: vec![
            Figure::at_most("packets that say what is new: last runs : first runs", growth(&told), 1.2, "").ours(),
            Figure::at_most("packets that a run sends: last runs : first runs", growth(&calls), 1.2, "").ours(),
        ],
        tables: vec![table(&steps)],
        samples: serde_json::to_value(&steps).context("samples as JSON")?,
        ..Found::default()
    })
}

fn table(steps: &[Step]) -> Table {
    let header = ["", "seconds", "packets up", "packets down", "bytes up", "bytes down"];
    let mut table = Table::new("What crossed the link", header);
    for Step { what, seconds, wire } in steps {
        let Wire { up_packets, up_bytes, down_packets, down_bytes } = *wire;
        let seconds = if *seconds > 0.0 { number(*seconds) } else { "–".to_owned() };
        let counts = [up_packets, down_packets, up_bytes, down_bytes].map(count);
        table.row([what.clone(), seconds].into_iter().chain(counts));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_changes_every_file_and_no_size() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("all");
        Work::MakeFiles { dir: folder.clone(), files: 5, bytes: FILE_BYTES, per_dir: 2 }.run().unwrap();
        let file = folder.join("d00001/f0000002");
        let before = fs::read(&file).unwrap();
        assert_eq!(update(&folder, &mut Random::new(7)).unwrap(), 5);
        let after = fs::read(&file).unwrap();
        assert!(after.len() == FILE_BYTES as usize && after != before);
    }
}
