//! Large files, written and read in order, and the time of fsync, alone and beside such a writer.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::random::Random;
use super::{Outcome, outcome, percentile};

const MIB: usize = 1 << 20;

/// The writer cycles through this many different MiB, each stamped with its number in the file: a
/// prime, so that neither compression nor deduplication finds a pattern.
const PATTERN_COUNT: usize = 67;

struct Pattern(Vec<u8>);

impl Pattern {
    fn new() -> Pattern {
        let mut bytes = vec![0; PATTERN_COUNT * MIB];
        Random::new(7).fill(&mut bytes);
        Pattern(bytes)
    }

    /// The MiB with this index in the file.
    fn mib(&mut self, index: u64) -> &[u8] {
        let start = (index as usize % PATTERN_COUNT) * MIB;
        let block = &mut self.0[start..start + MIB];
        block[..8].copy_from_slice(&index.to_le_bytes());
        block
    }
}

pub(super) fn write(path: &Path, mib: u32) -> Result<Outcome> {
    let mut pattern = Pattern::new();
    let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    let started = Instant::now();
    for index in 0..u64::from(mib) {
        file.write_all(pattern.mib(index)).with_context(|| format!("write {}", path.display()))?;
    }
    file.sync_all().with_context(|| format!("sync {}", path.display()))?;
    drop(file);
    Ok(outcome([("mb_per_s", f64::from(mib) * MIB as f64 / 1e6 / started.elapsed().as_secs_f64())]))
}

pub(super) fn read(path: &Path) -> Result<Outcome> {
    let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let mut buffer = vec![0; MIB];
    let started = Instant::now();
    let mut index = 0u64;
    loop {
        let filled = fill(&mut file, &mut buffer).with_context(|| format!("read {}", path.display()))?;
        if filled == 0 {
            break;
        }
        ensure!(filled == MIB, "{} is not a whole number of MiB", path.display());
        // The stamps only: comparing all bytes would measure this program.
        ensure!(buffer[..8] == index.to_le_bytes(), "{} has wrong bytes in MiB {index}", path.display());
        index += 1;
    }
    Ok(outcome([("mb_per_s", index as f64 * MIB as f64 / 1e6 / started.elapsed().as_secs_f64())]))
}

fn fill(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

/// Size of the file that the writer beside overwrites in a circle, in MiB.
const BESIDE_MIB: u64 = 256;
/// How long the writer runs before the first fsync is measured, so that its backlog has built up.
const BESIDE_WARM_UP: Duration = Duration::from_millis(500);
/// Longest time for taking samples (a slow peer would need minutes); at least [`SAMPLES_MIN`] are
/// taken.
const TIME_MAX: Duration = Duration::from_secs(30);
const SAMPLES_MIN: usize = 20;

pub(super) fn fsync_latency(dir: &Path, samples: usize, beside_stream: bool) -> Result<Outcome> {
    ensure!(samples > 0, "at least one sample");
    let stop = AtomicBool::new(false);
    let latencies = std::thread::scope(|scope| {
        let writer = beside_stream.then(|| scope.spawn(|| write_until(&dir.join("stream"), &stop)));
        if beside_stream {
            std::thread::sleep(BESIDE_WARM_UP);
        }
        let latencies = append_and_sync(&dir.join("appended"), samples);
        stop.store(true, Ordering::Relaxed);
        if let Some(writer) = writer {
            writer.join().map_err(|_| anyhow!("the writing thread failed"))??;
        }
        latencies
    })?;
    Ok(outcome([
        ("p50_us", percentile(&latencies, 50) * 1e6),
        ("p99_us", percentile(&latencies, 99) * 1e6),
        ("samples", latencies.len() as f64),
    ]))
}

/// The seconds of each write with its fsync, ascending. They are timed together, because a file
/// system may make either wait.
fn append_and_sync(path: &Path, samples: usize) -> Result<Vec<f64>> {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("create {}", path.display()))?;
    let page = [1; 4096];
    let started = Instant::now();
    let mut latencies = Vec::with_capacity(samples);
    while latencies.len() < samples && (latencies.len() < SAMPLES_MIN || started.elapsed() < TIME_MAX) {
        let begun = Instant::now();
        file.write_all(&page).and_then(|()| file.sync_all()).with_context(|| format!("append {}", path.display()))?;
        latencies.push(begun.elapsed().as_secs_f64());
    }
    latencies.sort_by(f64::total_cmp);
    Ok(latencies)
}

fn write_until(path: &Path, stop: &AtomicBool) -> Result<()> {
    let mut pattern = Pattern::new();
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    for index in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let offset = index % BESIDE_MIB * MIB as u64;
        file.write_all_at(pattern.mib(index), offset).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write(&path, 3).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 << 20);
        read(&path).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[9; 8], 1 << 20).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("MiB 1"));
    }

    #[test]
    fn latency_is_measured_as_often_as_asked() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(fsync_latency(dir.path(), 5, false).unwrap()["samples"], 5.0);
    }
}
