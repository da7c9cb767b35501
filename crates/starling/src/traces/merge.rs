//! `starling trace merge`.

use super::made::Made;
use super::{Source, bar_of_bytes};
use crate::args::Merge;
use crate::usage;
use std::process::ExitCode;
use trace::merge::{self, Files, MergeError};

/// Latest beginning of a trace in a merged one, in seconds: a century.
const BEGIN_S_MAX: f64 = 3.2e9;

/// Makes one trace of several.
pub fn run(asked: &Merge) -> anyhow::Result<ExitCode> {
    let Merge { traces, same_files, begin, out } = asked;
    if !begin.is_empty() && begin.len() != traces.len() {
        return Err(usage(format!("--begin: {} times for {} traces: give one for each", begin.len(), traces.len())));
    }
    if let Some(wrong) = begin.iter().find(|seconds| !(0.0..=BEGIN_S_MAX).contains(*seconds)) {
        return Err(usage(format!("--begin: {wrong} is not 0 to {BEGIN_S_MAX} seconds")));
    }
    let bar = bar_of_bytes(false)?;
    let begins_us = begin.iter().map(|seconds| (seconds * 1e6).round() as u64).chain(std::iter::repeat(0));
    let sources: Vec<merge::Source<Source>> = traces
        .iter()
        .zip(begins_us)
        .map(|(path, begins_us)| Ok(merge::Source { records: Source::with_bar(path, &bar)?, begins_us }))
        .collect::<anyhow::Result<_>>()?;
    let abouts: Vec<String> = sources.iter().map(|source| source.records.about()).collect();
    let files = if *same_files { Files::Same } else { Files::Distinct };
    let mut made = Made::begin(out, &format!("merged: {}", abouts.join("; ")))?;
    let mut count = 0u64;
    for record in merge::merge(sources, files) {
        made.add(&record.map_err(|error| match error {
            // It says which file it is about.
            MergeError::Trace { error, .. } => error,
            MergeError::Unsorted { trace, .. } | MergeError::Late { trace, .. } => {
                usage(format!("{}: {error}", traces[trace - 1].display()))
            }
            MergeError::Clients => usage(error.to_string()),
        })?)?;
        count += 1;
    }
    made.finish()?;
    bar.finish_and_clear();
    println!("{count} reads, writes and removals of {} traces are in {}", traces.len(), out.display());
    Ok(ExitCode::SUCCESS)
}
