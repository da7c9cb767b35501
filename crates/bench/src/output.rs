//! The common parts of reports: the files they are written to, and their first lines.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::report;
use crate::results::Machine;

/// Options of all commands that measure and report.
#[derive(Debug, Args)]
pub struct Output {
    /// Use small sizes, which check that everything works, not how fast it is
    #[arg(long)]
    pub quick: bool,
    /// Write all measurements to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    document: Document,
}

/// The file for tables.
#[derive(Debug, Args)]
pub struct Document {
    /// Write the tables to this file; if it exists, between its markers
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

impl Output {
    /// Writes a report to the requested files: the whole report as JSON, and these sections by
    /// their names.
    pub fn write_report(&self, report: &impl Serialize, sections: &[(String, String)]) -> Result<()> {
        if let Some(path) = &self.json {
            let json = serde_json::to_string_pretty(report).context("write the report as JSON")?;
            fs::write(path, json + "\n").with_context(|| format!("write {}", path.display()))?;
        }
        self.document.write(sections)
    }

    /// See [`Document::make`].
    pub fn make_document(&self, names: impl Iterator<Item = String>) -> Result<()> {
        self.document.make(names)
    }
}

impl Document {
    /// Writes sections into an existing document, or, one after the other, into a new one.
    pub fn write(&self, sections: &[(String, String)]) -> Result<()> {
        self.make(sections.iter().map(|(name, _)| name.clone()))?;
        let Some(path) = &self.markdown else { return Ok(()) };
        sections.iter().try_for_each(|(name, text)| write_section(path, name, text))
    }

    /// Makes a document with empty sections, if one was requested and does not exist.
    fn make(&self, names: impl Iterator<Item = String>) -> Result<()> {
        let Some(path) = self.markdown.as_ref().filter(|path| !path.exists()) else { return Ok(()) };
        let markers = |name: String| format!("<!-- {name}:begin -->\n<!-- {name}:end -->\n");
        let empty = names.map(markers).collect::<Vec<_>>().join("\n");
        fs::write(path, empty).with_context(|| format!("write {}", path.display()))
    }
}

fn write_section(path: &Path, name: &str, body: &str) -> Result<()> {
    let document = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let text = report::replace_section(&document, name, body)?;
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// The first lines of a study's section; `more` is what else Starling was given.
pub fn preamble(quick: bool, unix_time_s: u64, machine: &Machine, more: &str) -> String {
    let quick = if quick { report::QUICK } else { "" };
    format!("{quick}One run on {}: {machine}{}.", report::date(unix_time_s), report::given(more))
}

/// A study's name on the command line.
pub fn name_of(study: impl ValueEnum) -> String {
    study.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_go_into_a_new_document_and_again_into_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.md");
        let document = Document { markdown: Some(path.clone()) };
        let sections = |text: &str| ["a", "b"].map(|name| (format!("study-{name}"), format!("{text} {name}")));
        document.write(&sections("first")).unwrap();
        document.write(&sections("second")[1..]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\nfirst a\n") && text.contains("\nsecond b\n") && !text.contains("first b"), "{text}");
        assert!(document.write(&[("study-c".to_owned(), String::new())]).is_err(), "a file without markers");
    }
}
