//! `starling trace`: making traces, and what is in them.
//!
//! - `synth`: synthetic ones; `import`: from what other programs write; `merge`: several as one;
//!   `record`: what is done on a mount.
//! - `show`: what is in one.
//! - `made`: traces on their way to a file, which is there only when it is whole.

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

/// Does what `starling trace` is asked for.
pub fn run(command: TraceCommand) -> anyhow::Result<ExitCode> {
    match command {
        TraceCommand::Record(asked) => crate::runtime()?.block_on(record::run(&asked)),
        TraceCommand::Synth { command } => synth::run(&command),
        TraceCommand::Import(asked) => import::run(&asked),
        TraceCommand::Merge(asked) => merge::run(&asked),
        TraceCommand::Show { trace, json } => show::run(&trace, json),
    }
}

/// Shows how much of what is read was read.
struct Counted<R>(R, ProgressBar);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.0.read(buffer)?;
        self.1.inc(count as u64);
        Ok(count)
    }
}

/// Opens a file to read, of which `bar` is shown how much was.
fn open(path: &Path, bar: &ProgressBar) -> anyhow::Result<BufReader<Counted<File>>> {
    let wrong = |error| usage(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(wrong)?;
    bar.inc_length(file.metadata().map_err(wrong)?.len());
    Ok(BufReader::new(Counted(file, bar.clone())))
}

/// A bar of bytes that are read; files add theirs.
fn bar_of_bytes(quiet: bool) -> anyhow::Result<ProgressBar> {
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
    Ok(bar.with_style(ProgressStyle::with_template("{wide_bar} {bytes} of {total_bytes}, {eta} left")?))
}

/// A trace that is read, with a progress bar; what is wrong with it ends the command with exit code
/// 2.
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

    /// What it is of, and what it lacks.
    pub fn about(&self) -> String {
        let Origin { lost_count, is_cut_short, .. } = self.origin();
        let mut about = self.text().to_owned();
        if is_cut_short {
            about += "; cut short: it was not ended by who recorded it";
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
