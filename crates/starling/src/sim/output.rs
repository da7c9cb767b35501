//! The output of studies: files, and progress bars.
//!
//! A file gets its name only when it is complete. Paths that are not files, such as pipes, are
//! written to directly.

use super::plot;
use crate::args::Output;
use crate::names::folder_of;
use crate::usage;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use studies::figure::{Figure, Finding};
use tempfile::NamedTempFile;

/// Refuses output paths that cannot be written, before hours of simulation, and paths that would
/// overwrite the trace.
pub fn check(output: &Output, trace: Option<&Path>) -> anyhow::Result<()> {
    let all = [("json", &output.json), ("plot", &output.plot)];
    for (option, path) in all.iter().filter_map(|(option, path)| Some((option, path.as_deref()?))) {
        let folder = folder_of(path);
        let fault = match () {
            () if path == Path::new("-") => {
                "figures go to files, the table goes to standard output; write ./- for a file of this name"
            }
            () if path.is_dir() || path.file_name().is_none() => "is a folder",
            () if !folder.is_dir() => "its folder does not exist",
            () if trace.is_some_and(|trace| is_same(trace, path)) => "is the trace",
            () => continue,
        };
        return Err(usage(format!("--{option}: {}: {fault}", path.display())));
    }
    match (&output.json, &output.plot) {
        (Some(json), Some(plot)) if json == plot || is_same(json, plot) => {
            Err(usage(format!("--plot: {}: --json is the same file", plot.display())))
        }
        _ => Ok(()),
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// Whether to write to this path directly: it exists and is not a file, or it names an open file of
/// this process.
fn is_kept(path: &Path) -> bool {
    let is_open = path.starts_with("/dev") || path.starts_with("/proc");
    path.metadata().is_ok_and(|found| is_open || !found.is_file())
}

/// Writes the report and the figures to the files that the user named.
pub fn write(output: &Output, report: &impl Serialize, figures: &[Figure]) -> anyhow::Result<()> {
    let mut files = Vec::new();
    if let Some(path) = &output.json {
        files.push((path.as_path(), json(report)?));
    }
    if let Some(path) = &output.plot {
        files.push((path.as_path(), plot::svg(figures)?));
    }
    write_all(&files)
}

/// The report as JSON text, with a final newline.
pub fn json(report: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}

/// Writes files to temporary files, and renames these when all are complete.
fn write_all(files: &[(&Path, String)]) -> anyhow::Result<()> {
    let writing = |path: &Path| format!("write {}", path.display());
    let (kept, files): (Vec<_>, Vec<_>) = files.iter().partition(|(path, _)| is_kept(path));
    let mut partials: Vec<(NamedTempFile, &Path)> = Vec::new();
    for (path, text) in files {
        partials.push((partial(path, text).with_context(|| writing(path))?, *path));
    }
    for (path, text) in kept {
        let written = OpenOptions::new().append(true).open(path).and_then(|mut to| to.write_all(text.as_bytes()));
        written.with_context(|| writing(path))?;
    }
    for (partial, path) in partials {
        // Replace the target of a link, not the link.
        let place = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        partial.persist(place).with_context(|| writing(path))?;
    }
    Ok(())
}

/// A durable temporary file in the folder of `path`; removed when dropped.
fn partial(path: &Path, text: &str) -> anyhow::Result<NamedTempFile> {
    let place = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut partial = tempfile::Builder::new()
        .prefix(".starling-")
        .suffix(".partial")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder_of(&place))?;
    partial.write_all(text.as_bytes())?;
    partial.as_file().sync_all()?;
    Ok(partial)
}

/// Writes a file and syncs it.
pub fn write_synced(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    Ok(file.sync_all()?)
}

/// A progress bar over `count` steps, with the time left.
pub fn progress(count: usize, what: &str) -> anyhow::Result<ProgressBar> {
    let template = format!("{{wide_bar}} {{pos}} of {{len}} {what}, {{eta}} left");
    Ok(ProgressBar::new(count as u64).with_style(ProgressStyle::with_template(&template)?))
}

/// Prints what the papers state beside what was found.
pub fn print<'a>(findings: impl IntoIterator<Item = &'a Finding>) {
    for Finding { stated, what, theirs, ours, holds, .. } in findings {
        let holds = holds.map_or("", |holds| if holds { "; holds" } else { "; does not hold" });
        let theirs = if theirs.is_empty() { String::new() } else { format!(", stated {theirs}") };
        let stated = if stated.is_empty() { String::new() } else { format!(" ({stated})") };
        println!("{what}: {ours}{theirs}{stated}{holds}");
    }
}
