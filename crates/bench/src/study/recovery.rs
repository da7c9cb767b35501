//! The time of a start after a crash, and what it depends on.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::serving::Serving;
use crate::mounts;
use crate::report::{count, number, table_header, table_row};
use crate::run::{arguments, work};
use crate::scripted::Site;

/// Content that is synced and checkpointed before anything else.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Content {
    files: u64,
    file_bytes: u64,
}

/// The sizes of the study.
struct Size {
    contents: &'static [Content],
    creates: &'static [u64],
    runs: u32,
}

const FILE_BYTES: u64 = 256 << 10;
const FULL: Size = Size {
    contents: &[
        Content { files: 200, file_bytes: FILE_BYTES },
        Content { files: 2_000, file_bytes: FILE_BYTES },
        Content { files: 8_192, file_bytes: FILE_BYTES },
        Content { files: 100_000, file_bytes: 1 << 10 },
    ],
    creates: &[0, 200, 2_000],
    runs: 3,
};
const QUICK: Size = Size {
    contents: &[Content { files: 20, file_bytes: FILE_BYTES }, Content { files: 200, file_bytes: FILE_BYTES }],
    creates: &[0, 20],
    runs: 1,
};

/// The results of the study.
#[derive(Debug, Serialize)]
pub struct Recovery {
    rows: Vec<Row>,
    failures: Vec<String>,
}

/// One content and one amount of work since its checkpoint.
#[derive(Debug, Serialize)]
struct Row {
    content: Content,
    creates: u64,
    starts: Vec<Start>,
}

/// A start after a kill, as the program reports it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Start {
    /// From the program's start until it had mounted.
    mounted_ms: u64,
    /// The part of it that rolls logs forward.
    recovery_ms: u64,
    segments: u64,
    deltas: u64,
}

impl Recovery {
    /// Runs the study.
    pub fn measure(site: &Site, quick: bool) -> Result<Recovery> {
        let size = if quick { QUICK } else { FULL };
        let mut study = Recovery { rows: Vec::new(), failures: Vec::new() };
        for &content in size.contents {
            if let Err(error) = study.with_content(site, &size, content) {
                crate::command::check_interrupt()?;
                study.failures.push(format!("{}: {error:#}", content.title()));
            }
        }
        Ok(study)
    }

    fn with_content(&mut self, site: &Site, size: &Size, content: Content) -> Result<()> {
        let mut serving = Serving::new(site, "recovery", &[])?;
        serving.up()?;
        let options = [("files", content.files), ("bytes", content.file_bytes)];
        work(&arguments("make-files", &serving.path("content"), &options)).context("make the content")?;
        for &creates in size.creates {
            let mut row = Row { content, creates, starts: Vec::new() };
            for run in 0..size.runs {
                let start = crash(&mut serving, creates, &format!("work-{creates}-{run}"));
                row.starts.push(start.with_context(|| format!("{creates} creates, run {}", run + 1))?);
            }
            eprintln!("recovery: {row:?}");
            self.rows.push(row);
        }
        let seen = work(&arguments("stat-files", &serving.path("content"), &[]))?;
        anyhow::ensure!(seen.get("files") == Some(&(content.files as f64)), "of the content {seen:?} are left");
        serving.down()
    }

    /// The failures.
    pub fn failures(&self) -> Vec<String> {
        self.failures.clone()
    }

    /// The table.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        table_header(
            &mut out,
            &[
                "content, checkpointed",
                "creates with fsync since",
                "until mounted, ms",
                "of that checkpoints and logs, ms",
                "segments",
                "changes",
            ]
            .map(str::to_owned),
        );
        for row in &self.rows {
            let Some(start) = row.median() else { continue };
            table_row(
                &mut out,
                &[
                    row.content.title(),
                    count(row.creates),
                    format!("{} ({})", start.mounted_ms, row.range()),
                    start.recovery_ms.to_string(),
                    start.segments.to_string(),
                    start.deltas.to_string(),
                ],
            );
        }
        out
    }
}

impl Content {
    fn title(&self) -> String {
        let bytes = self.files * self.file_bytes;
        format!("{} files, {} MiB", count(self.files), number(bytes as f64 / f64::from(1 << 20)))
    }
}

impl Row {
    /// The start with the median time.
    fn median(&self) -> Option<Start> {
        let mut starts = self.starts.clone();
        starts.sort_by_key(|start| start.mounted_ms);
        starts.get(starts.len() / 2).copied()
    }

    fn range(&self) -> String {
        let times = || self.starts.iter().map(|start| start.mounted_ms);
        format!("{}..{}", times().min().unwrap_or(0), times().max().unwrap_or(0))
    }
}

/// Checkpoints everything, creates and syncs files, kills, and starts again; all synced files must
/// exist.
fn crash(serving: &mut Serving, creates: u64, name: &str) -> Result<Start> {
    serving.remount_cold().context("checkpoint")?;
    let folder = serving.path(name);
    if creates > 0 {
        let mut create = arguments("create", &folder, &[("files", creates)]);
        create.push("--fsync".to_owned());
        work(&create).context("create")?;
    }
    serving.kill()?;
    mounts::drop_caches()?;
    let mounted: Duration = serving.up().context("start after the kill")?;
    let start = Start {
        mounted_ms: mounted.as_millis() as u64,
        recovery_ms: serving.status("/recovery/milliseconds")?,
        segments: serving.status("/recovery/segments")?,
        deltas: serving.status("/recovery/deltas")?,
    };
    if creates > 0 {
        work(&arguments("read", &folder, &[("files", creates)])).context("read what was synced before the kill")?;
    }
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_shows_the_median_start_and_the_range() {
        let start = |mounted_ms| Start { mounted_ms, recovery_ms: mounted_ms / 2, segments: 7, deltas: mounted_ms };
        let content = Content { files: 2_000, file_bytes: FILE_BYTES };
        let row = Row { content, creates: 200, starts: vec![start(90), start(20), start(30)] };
        let zero = Row { content, creates: 0, starts: vec![start(10)] };
        let empty = Row { content, creates: 1, starts: vec![] };
        let study = Recovery { rows: vec![row, zero, empty], failures: vec!["x".to_owned()] };
        let text = study.markdown();
        assert!(text.contains("| 2,000 files, 500 MiB | 200 | 30 (20..90) | 15 | 7 | 30 |"), "{text}");
        assert!(text.contains("| 2,000 files, 500 MiB | 0 | 10 (10..10) |"), "{text}");
        assert_eq!(text.lines().count(), 4, "{text}");
        assert_eq!(study.failures(), ["x"]);
    }
}
