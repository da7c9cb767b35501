//! `starling trace` makes traces and summarises them.
//!
//! - `synth`: makes synthetic traces; `import`: imports recordings of other programs; `merge`:
//!   merges traces; `record`: records file accesses on a mount.
//! - `show`: summarises a trace.
//! - `made`: writes a trace to a file that appears only when it is complete.

mod import;
mod made;
mod merge;
mod record;
mod show;
mod synth;

use crate::args::TraceCommand;
use crate::usage;
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::process::ExitCode;
use trace::Record;
use trace::format::{Origin, Reader, TraceError};

/// Runs `starling trace`.
pub fn run(command: TraceCommand) -> anyhow::Result<ExitCode> {
    match command {
        TraceCommand::Record(asked) => crate::runtime()?.block_on(record::run(&asked)),
        TraceCommand::Synth { command } => synth::run(&command),
        TraceCommand::Import(asked) => import::run(&asked),
        TraceCommand::Merge(asked) => merge::run(&asked),
        TraceCommand::Show { trace, json } => show::run(&trace, json),
    }
}

/// A reader that advances a progress bar.
struct Counted<R>(R, ProgressBar);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.0.read(buffer)?;
        self.1.inc(count as u64);
        Ok(count)
    }
}

/// Opens a file for reading; `bar` shows how much of it was read.
fn open(path: &Path, bar: &ProgressBar) -> anyhow::Result<BufReader<Counted<File>>> {
    let wrong = |error| usage(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(wrong)?;
    bar.inc_length(file.metadata().map_err(wrong)?.len());
    Ok(BufReader::new(Counted(file, bar.clone())))
}

/// A progress bar of bytes read; each file adds its length.
fn bar_of_bytes(quiet: bool) -> anyhow::Result<ProgressBar> {
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
    Ok(bar.with_style(ProgressStyle::with_template("{wide_bar} {bytes} of {total_bytes}, {eta} left")?))
}

/// Reads a trace, with a progress bar. An error in the trace ends the command with exit code 2.
pub struct Source {
    reader: Reader<BufReader<Counted<File>>>,
    path: String,
}

impl Source {
    /// Opens a trace.
    pub fn open(path: &Path, quiet: bool) -> anyhow::Result<Source> {
        Source::with_bar(path, &bar_of_bytes(quiet)?)
    }

    fn with_bar(path: &Path, bar: &ProgressBar) -> anyhow::Result<Source> {
        let shown = path.display().to_string();
        let reader = Reader::new(open(path, bar)?).map_err(|error| wrong(&shown, &error))?;
        Ok(Source { reader, path: shown })
    }

    /// The trace's source, and what the trace lacks.
    pub fn about(&self) -> String {
        let Origin { lost_count, is_cut_short, .. } = self.origin();
        let mut about = self.text().to_owned();
        if is_cut_short {
            about += "; cut short: the recording was interrupted";
        }
        if lost_count > 0 {
            about += &format!("; {lost_count} records are missing: they came faster than they could be written");
        }
        about
    }

    fn text(&self) -> &str {
        self.reader.source()
    }

    fn origin(&self) -> Origin {
        self.reader.origin()
    }
}

fn wrong(path: &str, error: &TraceError) -> anyhow::Error {
    usage(format!("{path}: {error}"))
}

impl Iterator for Source {
    type Item = anyhow::Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.reader.next()?.map_err(|error| wrong(&self.path, &error)))
    }
}
