//! `starling trace import`.

use super::made::Made;
use super::{bar_of_bytes, open};
use crate::args::{Format, Import};
use crate::usage;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::ExitCode;
use trace::Record;
use trace::import::ImportError;
use trace::import::csv::Csv;
use trace::import::strace::Strace;

/// Makes a trace of what another program has written.
pub fn run(asked: &Import) -> anyhow::Result<ExitCode> {
    let is_input = asked.file == Path::new("-");
    let bar = bar_of_bytes(is_input)?;
    let from: Box<dyn BufRead> = match is_input {
        true => Box::new(BufReader::new(std::io::stdin())),
        false => Box::new(open(&asked.file, &bar)?),
    };
    let shown = if is_input { "standard input".to_owned() } else { asked.file.display().to_string() };
    let wrong = |error: ImportError| usage(format!("{shown}: {error}"));
    let (records, source): (Box<dyn Iterator<Item = Result<Record, ImportError>>>, _) = match asked.format {
        Format::Strace => (Box::new(Strace::new(from)), "imported from strace"),
        Format::Csv => (Box::new(Csv::new(from).map_err(wrong)?), "imported from a table"),
    };
    let (mut made, mut count) = (Made::begin(&asked.out, source)?, 0u64);
    for record in records {
        made.add(&record.map_err(wrong)?)?;
        count += 1;
    }
    made.finish()?;
    bar.finish_and_clear();
    println!("{count} reads, writes and removals of {shown} are in {}", asked.out.display());
    Ok(ExitCode::SUCCESS)
}
