//! Several programs make, sync and read small files without a pause, for some time.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::random::Random;
use super::{Outcome, outcome, percentile};

/// Size of each file.
const BYTES: usize = 16 << 10;
/// Programs reread one of this many of their last files.
const RECENT: u64 = 1000;

/// Makes files below a new folder for so long, with so many programs, each in a folder of its own.
/// An operation makes, fsyncs and closes a file, or reads one.
pub(super) fn run(dir: &Path, time: Duration, programs: u32) -> Result<Outcome> {
    fs::create_dir(dir).with_context(|| format!("create {}", dir.display()))?;
    let started = Instant::now();
    let times: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..programs)
            .map(|program| scope.spawn(move || one(&dir.join(program.to_string()), started, time, program.into())))
            .collect();
        let ended = threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ended.collect::<Result<_>>()
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let mut times: Vec<f64> = times.into_iter().flatten().collect();
    times.sort_by(f64::total_cmp);
    Ok(outcome([
        ("operations_per_s", times.len() as f64 / seconds),
        ("p50_us", percentile(&times, 50)),
        ("p99_us", percentile(&times, 99)),
    ]))
}

/// One program. Returns how long its operations took, in microseconds.
fn one(dir: &Path, started: Instant, time: Duration, seed: u64) -> Result<Vec<f64>> {
    fs::create_dir(dir).with_context(|| format!("create {}", dir.display()))?;
    let (mut random, mut content) = (Random::new(seed), vec![0; BYTES]);
    random.fill(&mut content);
    let (mut made, mut times) = (0u64, Vec::new());
    while started.elapsed() < time {
        let begun = Instant::now();
        if made == 0 || random.below(2) == 0 {
            let path = dir.join(made.to_string());
            let mut file = File::create_new(&path).with_context(|| format!("create {}", path.display()))?;
            file.write_all(&content).with_context(|| format!("write {}", path.display()))?;
            file.sync_all().with_context(|| format!("fsync {}", path.display()))?;
            made += 1;
        } else {
            let path = dir.join((made - 1 - random.below(made.min(RECENT))).to_string());
            fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        }
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_work_until_the_time_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let done = run(&dir.path().join("new"), Duration::from_millis(100), 2).unwrap();
        assert!(done["operations_per_s"] > 20.0 && done["p99_us"] >= done["p50_us"] && done["p50_us"] > 0.0);
        assert!(dir.path().join("new/1/0").exists());
    }
}
