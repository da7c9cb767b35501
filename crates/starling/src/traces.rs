//! `starling trace`: making traces, and what is in them.

use crate::args::{SynthCommand, TraceCommand, WorstCase};
use crate::size::show;
use crate::usage;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read};
use std::path::Path;
use std::process::ExitCode;
use trace::format::{Reader, TraceError, Writer};
use trace::{Deed, Record, worst_case};

/// Does what `starling trace` is asked for.
pub fn run(command: TraceCommand) -> anyhow::Result<ExitCode> {
    match command {
        TraceCommand::Synth { command: SynthCommand::WorstCase(asked) } => synthesize(&asked),
        TraceCommand::Show { trace, json } => summarize(&trace, json),
    }
}

fn synthesize(asked: &WorstCase) -> anyhow::Result<ExitCode> {
    let WorstCase { clients, cache_blocks, working_set, locality, gap, requests, seed, out } = asked;
    let of = worst_case::WorstCase {
        clients: *clients,
        cache_blocks: *cache_blocks,
        working_set: *working_set,
        locality: *locality,
        gap: *gap,
        requests: *requests,
        seed: *seed,
    };
    of.check().map_err(|fault| usage(format!("--{fault}")))?;
    let source = format!(
        "synthetic, worst case: {clients} clients, working set {working_set} of {cache_blocks} blocks, locality {locality}, gap {gap}, seed {seed}"
    );
    let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} requests, {eta} left")?;
    let bar = ProgressBar::new(*requests).with_style(style);
    create(out, &source, bar.wrap_iter(of.records()))?;
    bar.finish_and_clear();
    println!("{requests} requests of {clients} clients are in {}", out.display());
    Ok(ExitCode::SUCCESS)
}

/// Makes a trace, which is there under its name only when it is whole.
fn create(out: &Path, source: &str, records: impl Iterator<Item = Record>) -> anyhow::Result<()> {
    if out.exists() {
        return Err(usage(format!("{} exists: remove it, or give another name", out.display())));
    }
    let mut name = out.as_os_str().to_owned();
    name.push(".partial");
    let partial = Path::new(&name);
    let written = || -> anyhow::Result<()> {
        let mut writer = Writer::new(BufWriter::new(File::create(partial)?), source)?;
        records.into_iter().try_for_each(|record| writer.add(&record))?;
        let file = writer.finish()?.into_inner().map_err(|error| error.into_error())?;
        file.sync_all()?;
        Ok(std::fs::rename(partial, out)?)
    };
    written().inspect_err(|_| drop(std::fs::remove_file(partial))).with_context(|| format!("write {}", out.display()))
}

/// A trace that is read, with a progress bar; what is wrong with it ends the command with exit code 2.
pub struct Source {
    reader: Reader<BufReader<Counted>>,
    path: String,
}

struct Counted(File, ProgressBar);

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.0.read(buffer)?;
        self.1.inc(count as u64);
        Ok(count)
    }
}

impl Source {
    /// Opens a trace.
    pub fn open(path: &Path, quiet: bool) -> anyhow::Result<Source> {
        let shown = path.display().to_string();
        let file = File::open(path).map_err(|error| usage(format!("{shown}: {error}")))?;
        let len = file.metadata().map_or(0, |facts| facts.len());
        let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(len) };
        let bar = bar.with_style(ProgressStyle::with_template("{wide_bar} {bytes} of {total_bytes}, {eta} left")?);
        let reader = Reader::new(BufReader::new(Counted(file, bar))).map_err(|error| wrong(&shown, &error))?;
        Ok(Source { reader, path: shown })
    }

    /// What it is of.
    pub fn about(&self) -> String {
        self.reader.source().to_owned()
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

#[derive(Default)]
struct Summary {
    reads: u64,
    read_bytes: u64,
    writes: u64,
    written_bytes: u64,
    deletes: u64,
    clients: BTreeSet<u32>,
    /// By file, its clients' first, whether there are more, and how far it was read or written.
    files: BTreeMap<u64, (u32, bool, u64)>,
    last_us: u64,
}

impl Summary {
    fn add(&mut self, Record { time_us, client, file, deed }: Record) {
        self.last_us = time_us;
        self.clients.insert(client);
        let end = match deed {
            Deed::Read { offset, len } => {
                (self.reads, self.read_bytes) = (self.reads + 1, self.read_bytes + len);
                offset + len
            }
            Deed::Write { offset, len } => {
                (self.writes, self.written_bytes) = (self.writes + 1, self.written_bytes + len);
                offset + len
            }
            Deed::Delete => {
                self.deletes += 1;
                0
            }
        };
        let (first, shared, len) = self.files.entry(file).or_insert((client, false, 0));
        (*shared, *len) = (*shared || *first != client, end.max(*len));
    }
}

fn summarize(path: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let source = Source::open(path, as_json)?;
    let (about, mut of) = (source.about(), Summary::default());
    for record in source {
        of.add(record?);
    }
    let bytes: u64 = of.files.values().map(|(_, _, len)| len).fold(0, |all, len| all.saturating_add(*len));
    let shared = of.files.values().filter(|(_, shared, _)| *shared).count();
    let (clients, files, seconds) = (of.clients.len(), of.files.len(), of.last_us as f64 / 1e6);
    if as_json {
        let summary = json!({
            "about": about,
            "seconds": seconds,
            "clients": clients,
            "files": files,
            "shared_files": shared,
            "bytes": bytes,
            "reads": of.reads,
            "read_bytes": of.read_bytes,
            "writes": of.writes,
            "written_bytes": of.written_bytes,
            "deletes": of.deletes,
        });
        println!("{}", serde_json::to_string_pretty(&summary)?);
        return Ok(ExitCode::SUCCESS);
    }
    println!("{about}");
    println!("clients  {clients}, over {seconds:.1} s");
    println!("files    {files} of {}, {shared} used by more than one client", show(bytes));
    println!("reads    {} of {}", of.reads, show(of.read_bytes));
    println!("writes   {} of {}", of.writes, show(of.written_bytes));
    println!("deletes  {}", of.deletes);
    Ok(ExitCode::SUCCESS)
}
