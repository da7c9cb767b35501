//! One file that is used through two mounts in turn, as two programs on two machines would.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use super::{Outcome, percentile};

/// Length of the file.
const FILE_BYTES: usize = 4096;

/// What the other side does after each write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Then {
    /// Reads all of it, and writes next.
    Read,
    /// Writes all of it.
    Write,
    /// Asks for the attributes; it never writes.
    Stat,
}

/// Times of calls, in microseconds.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn time<T>(&mut self, call: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
        let started = Instant::now();
        let result = call();
        self.0.push(started.elapsed().as_secs_f64() * 1e6);
        result
    }

    fn into_outcome(mut self, name: &str, out: &mut Outcome) {
        self.0.sort_by(f64::total_cmp);
        for (part, value) in
            [("p50", percentile(&self.0, 50)), ("p99", percentile(&self.0, 99)), ("max", percentile(&self.0, 100))]
        {
            out.insert(format!("{name}_{part}_us"), value);
        }
    }
}

/// Uses the file at both paths in turn.
pub(super) fn run(paths: &[PathBuf], rounds: u32, then: Then) -> Result<Outcome> {
    let [one, other] = paths else { bail!("two paths of one file are needed") };
    fs::write(one, [0; FILE_BYTES]).with_context(|| format!("write {}", one.display()))?;
    let open = |path: &Path| {
        OpenOptions::new().read(true).write(true).open(path).with_context(|| format!("open {}", path.display()))
    };
    let sides = [(one, open(one)?), (other, open(other)?)];
    let (mut write, mut after) = (Times::default(), Times::default());
    let mut bytes = vec![0; FILE_BYTES];
    for round in 0..rounds {
        let swap = then == Then::Read && round % 2 == 1;
        let (writer, reader) = if swap { (&sides[1], &sides[0]) } else { (&sides[0], &sides[1]) };
        let stamp = |turn: u8| [&round.to_le_bytes()[..], &[turn]].concat().repeat(FILE_BYTES / 5);
        put(&mut write, &writer.1, &stamp(1)).context("write on one side")?;
        match then {
            Then::Read => {
                after.time(|| reader.1.read_exact_at(&mut bytes, 0)).context("read on the other side")?;
                ensure!(bytes.starts_with(&stamp(1)), "round {round}: another node's write is not seen");
            }
            Then::Write => put(&mut after, &reader.1, &stamp(2)).context("write on the other side")?,
            Then::Stat => {
                let attributes = after.time(|| fs::symlink_metadata(reader.0)).context("stat on the other side")?;
                ensure!(attributes.len() == FILE_BYTES as u64, "a file of {} bytes", attributes.len());
            }
        }
    }
    let mut out = Outcome::new();
    write.into_outcome("write", &mut out);
    after.into_outcome("then", &mut out);
    Ok(out)
}

fn put(times: &mut Times, file: &File, bytes: &[u8]) -> std::io::Result<()> {
    times.time(|| file.write_all_at(bytes, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_take_turns_and_see_each_others_writes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for then in [Then::Read, Then::Write, Then::Stat] {
            let measured = run(&[path.clone(), path.clone()], 6, then).unwrap();
            assert!(measured["write_p50_us"] > 0.0 && measured["then_max_us"] >= measured["then_p50_us"]);
        }
        assert_eq!(fs::metadata(&path).unwrap().len(), FILE_BYTES as u64);
        assert!(run(&[path.clone(), dir.path().join("other")], 2, Then::Read).is_err(), "two files");
    }
}
