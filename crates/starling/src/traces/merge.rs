//! `starling trace merge`.

use super::made::Made;
use super::{Source, bar_of_bytes};
use crate::args::Merge;
use crate::usage;
use std::process::ExitCode;
use trace::format::Origin;
use trace::merge::{self, Files, MergeError};

/// Latest begin of a trace within a merged one, in seconds: a century.
const BEGIN_S_MAX: f64 = 3.2e9;

/// Runs `starling trace merge`.
pub fn run(asked: &Merge) -> anyhow::Result<ExitCode> {
    let Merge { traces, same_files, begin, out } = asked;
    if !begin.is_empty() && begin.len() != traces.len() {
        return Err(usage(format!("--begin: {} times for {} traces: give one for each", begin.len(), traces.len())));
    }
    if let Some(wrong) = begin.iter().find(|seconds| !(0.0..=BEGIN_S_MAX).contains(*seconds)) {
        return Err(usage(format!("--begin: {wrong} is not 0 to {BEGIN_S_MAX} seconds")));
    }
    let bar = bar_of_bytes(false)?;
    let sources: Vec<Source> = traces.iter().map(|path| Source::with_bar(path, &bar)).collect::<anyhow::Result<_>>()?;
    let origins: Vec<Origin> = sources.iter().map(Source::origin).collect();
    let abouts: Vec<String> = sources.iter().map(|source| source.text().to_owned()).collect();
    let (begins_us, begun_us) = match begin[..] {
        [] => begins(&origins),
        _ => (begin.iter().map(|seconds| (seconds * 1e6).round() as u64).collect(), None),
    };
    let origin = Origin {
        begun_us,
        lost_count: origins.iter().map(|one| one.lost_count).fold(0, u64::saturating_add),
        is_cut_short: origins.iter().any(|one| one.is_cut_short),
    };
    let sources = sources.into_iter().zip(begins_us).map(|(records, begins_us)| merge::Source { records, begins_us });
    let files = if *same_files { Files::Same } else { Files::Distinct };
    let mut made = Made::begin(out, &format!("merged: {}", abouts.join("; ")))?;
    let mut count = 0u64;
    for record in merge::merge(sources, files) {
        made.add(&record.map_err(|error| match error {
            // The error names its file.
            MergeError::Trace { error, .. } => error,
            MergeError::Unsorted { trace, .. } | MergeError::Late { trace, .. } => {
                usage(format!("{}: {error}", traces[trace - 1].display()))
            }
            MergeError::Clients => usage(error.to_string()),
        })?)?;
        count += 1;
    }
    made.finish_with(&origin)?;
    bar.finish_and_clear();
    println!("{count} reads, writes and removals of {} traces are in {}", traces.len(), out.display());
    Ok(ExitCode::SUCCESS)
}

/// When each trace begins within the merged one, and when the first one began. If not all traces
/// say when they began, all begin together.
fn begins(origins: &[Origin]) -> (Vec<u64>, Option<u64>) {
    let begun_us: Vec<u64> = origins.iter().filter_map(|origin| origin.begun_us).collect();
    let first_us = begun_us.iter().min().copied();
    match first_us.filter(|_| begun_us.len() == origins.len()) {
        Some(first_us) => (begun_us.iter().map(|begun_us| begun_us - first_us).collect(), Some(first_us)),
        None => {
            if first_us.is_some() {
                eprintln!("note: not all traces say when they began, so all begin together: set this by --begin");
            }
            (vec![0; origins.len()], None)
        }
    }
}
