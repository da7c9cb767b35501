//! The memory of the process for files, beyond its cache.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::serving::Serving;
use crate::report::{count, number, table_header, table_row};
use crate::run::{arguments, work};
use crate::scripted::Site;

const CACHE_MIB: u64 = 64;
const MIB: u64 = 1 << 20;
/// Time for the process to hear what the kernel forgot.
const FORGET_TIME: Duration = Duration::from_secs(3);
const FULL: [u64; 4] = [0, 100_000, 500_000, 1_000_000];
const QUICK: [u64; 3] = [0, 1_000, 10_000];

/// The results of the study.
#[derive(Debug, Serialize)]
pub struct Memory {
    cache_mib: u64,
    rows: Vec<Row>,
    failures: Vec<String>,
}

/// A number of files; resident bytes of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Row {
    files: u64,
    /// After making and syncing them.
    made_bytes: u64,
    /// The peak until then.
    made_peak_bytes: u64,
    /// After mounting again and a stat of each.
    walked_bytes: u64,
    /// After that, when the kernel had forgotten them.
    forgotten_bytes: u64,
}

impl Memory {
    /// Runs the study.
    pub fn measure(site: &Site, quick: bool) -> Result<Memory> {
        let mut study = Memory { cache_mib: CACHE_MIB, rows: Vec::new(), failures: Vec::new() };
        for &files in if quick { &QUICK[..] } else { &FULL } {
            match Row::measure(site, files) {
                Ok(row) => {
                    eprintln!("memory: {row:?}");
                    study.rows.push(row);
                }
                Err(error) => {
                    crate::command::check_interrupt()?;
                    study.failures.push(format!("{files} files: {error:#}"));
                }
            }
        }
        Ok(study)
    }

    /// The failures.
    pub fn failures(&self) -> Vec<String> {
        self.failures.clone()
    }

    /// The table, and the overhead in one sentence.
    pub fn markdown(&self) -> String {
        let mut out = format!("`--cache-size {}MiB`; resident MiB of the process.\n\n", self.cache_mib);
        table_header(
            &mut out,
            &[
                "empty files",
                "made and synced",
                "peak until then",
                "mounted again, all stat",
                "after the kernel forgot them",
                "bytes per file beyond the cache limit: made",
                "after stat of all",
            ]
            .map(str::to_owned),
        );
        let mib = |bytes: u64| number(bytes as f64 / MIB as f64);
        for row in &self.rows {
            let per_file = |bytes| self.beyond_per_file(row.files, bytes).map_or_else(|| "–".to_owned(), number);
            table_row(
                &mut out,
                &[
                    count(row.files),
                    mib(row.made_bytes),
                    mib(row.made_peak_bytes),
                    mib(row.walked_bytes),
                    mib(row.forgotten_bytes),
                    per_file(row.made_bytes),
                    per_file(row.walked_bytes),
                ],
            );
        }
        if let Some(overhead) = self.overhead_per_million_mib() {
            out.push_str(&format!(
                "\nStated overhead per million files: {} MiB beyond the cache limit.\n",
                number(overhead)
            ));
        }
        out
    }

    fn beyond_per_file(&self, files: u64, bytes: u64) -> Option<f64> {
        (files > 0).then(|| bytes.saturating_sub(self.cache_mib * MIB) as f64 / files as f64)
    }

    /// The overhead of the row with most files, at its highest.
    fn overhead_per_million_mib(&self) -> Option<f64> {
        let row = self.rows.iter().max_by_key(|row| row.files)?;
        let worst = row.made_peak_bytes.max(row.walked_bytes).max(row.forgotten_bytes);
        Some(self.beyond_per_file(row.files, worst)? * 1e6 / MIB as f64)
    }
}

impl Row {
    fn measure(site: &Site, files: u64) -> Result<Row> {
        let mut serving = Serving::new(site, "memory", &["--cache-size", &format!("{CACHE_MIB}MiB")])?;
        let mut row = Row { files, ..Row::default() };
        let folder = serving.path("files");
        serving.up()?;
        work(&arguments("make-files", &folder, &[("files", files)])).context("make files")?;
        row.made_bytes = serving.memory_bytes("VmRSS")?;
        row.made_peak_bytes = serving.memory_bytes("VmHWM")?;
        serving.remount_cold()?;
        let seen = work(&arguments("stat-files", &folder, &[])).context("stat all files")?;
        ensure!(seen.get("files") == Some(&(files as f64)), "{files} files were made, {seen:?} found");
        row.walked_bytes = serving.memory_bytes("VmRSS")?;
        // Inodes and names only; the kernel then tells the file system.
        fs::write("/proc/sys/vm/drop_caches", "2").context("drop the kernel's inodes (root?)")?;
        std::thread::sleep(FORGET_TIME);
        row.forgotten_bytes = serving.memory_bytes("VmRSS")?;
        serving.down()?;
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overhead_is_what_exceeds_the_limit_at_the_worst_moment() {
        let row = |files, made, walked| Row {
            files,
            made_bytes: made * MIB,
            made_peak_bytes: made * MIB,
            walked_bytes: walked * MIB,
            forgotten_bytes: walked * MIB,
        };
        let rows = vec![row(0, 30, 20), row(500_000, 164, 64), row(1_000_000, 264, 364)];
        let study = Memory { cache_mib: 64, rows, failures: vec![] };
        let text = study.markdown();
        assert!(text.contains("| 0 | 30.0 | 30.0 | 20.0 | 20.0 | – | – |"), "{text}");
        assert!(text.contains("| 500,000 | 164 | 164 | 64.0 | 64.0 | 210 | 0.000 |"), "{text}");
        assert!(text.contains("per million files: 300 MiB"), "{text}");
        let nothing = Memory { cache_mib: 64, rows: vec![row(0, 1, 1)], failures: vec![] };
        assert!(!nothing.markdown().contains("Stated"));
    }
}
