//! `starling trace import`: makes a trace from a recording of another program.

use super::made::Made;
use super::{bar_of_bytes, open};
use crate::args::{Format, Import};
use crate::usage;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::ExitCode;
use trace::Record;
use trace::format::Origin;
use trace::import::ImportError;
use trace::import::csv::Csv;
use trace::import::strace::Strace;

/// Adds records; returns their number.
fn add_all(made: &mut Made, records: impl Iterator<Item = anyhow::Result<Record>>) -> anyhow::Result<u64> {
    let mut count = 0;
    for record in records {
        made.add(&record?)?;
        count += 1;
    }
    Ok(count)
}

/// Runs `starling trace import`.
pub fn run(asked: &Import) -> anyhow::Result<ExitCode> {
    let is_input = asked.file == Path::new("-");
    let bar = bar_of_bytes(is_input)?;
    let from: Box<dyn BufRead> = match is_input {
        true => Box::new(BufReader::new(std::io::stdin())),
        false => Box::new(open(&asked.file, &bar)?),
    };
    let shown = if is_input { "standard input".to_owned() } else { asked.file.display().to_string() };
    let wrong = |error: ImportError| usage(format!("{shown}: {error}"));
    let begin = |source: &str| Made::begin(&asked.out, source);
    let count = match asked.format {
        Format::Strace => {
            let (mut made, mut strace) = (begin("imported from strace")?, Strace::new(from));
            let count = add_all(&mut made, strace.by_ref().map(|record| record.map_err(wrong)))?;
            made.finish_with(&Origin { begun_us: strace.begun_us(), ..Origin::default() })?;
            count
        }
        Format::Csv => {
            let table = Csv::new(from).map_err(wrong)?;
            let mut made = begin("imported from a table")?;
            let count = add_all(&mut made, table.map(|record| record.map_err(wrong)))?;
            made.finish()?;
            count
        }
    };
    bar.finish_and_clear();
    println!("{count} reads, writes and removals of {shown} are in {}", asked.out.display());
    Ok(ExitCode::SUCCESS)
}
