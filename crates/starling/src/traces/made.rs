//! A trace that is written to a file. The file gets its name only when it is complete, and replaces
//! no other.
//!
//! Until then the file has no name, if the folder's file system supports that (O_TMPFILE), so it
//! vanishes however this process ends. Elsewhere it has a temporary name in the same folder, which
//! ends with `.partial`.

use crate::names::folder_of;
use crate::usage;
use anyhow::Context;
use std::ffi::CString;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::TempPath;
use trace::Record;
use trace::format::{Origin, Writer};

/// A trace that is being written. Without [`finish`](Made::finish), no file appears.
pub struct Made {
    writer: Option<Writer<BufWriter<File>>>,
    out: PathBuf,
    /// The temporary file; removed when dropped.
    partial: Option<TempPath>,
}

fn exists(out: &Path) -> anyhow::Error {
    let remedy = if out.is_file() { "remove it, or give another name" } else { "give the name of a new file" };
    usage(format!("{} exists: {remedy}", out.display()))
}

fn writing(out: &Path) -> String {
    format!("write {}", out.display())
}

impl Made {
    /// Begins a trace at `out`; `source` says where its records come from.
    pub fn begin(out: &Path, source: &str) -> anyhow::Result<Made> {
        if out.symlink_metadata().is_ok() {
            return Err(exists(out));
        }
        let wrong = |error: io::Error| usage(format!("{}: {error}", out.display()));
        let folder = folder_of(out);
        let nameless = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(folder);
        let (file, partial) = match nameless {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {
                let mut builder = tempfile::Builder::new();
                builder.prefix(".starling-").suffix(".partial").permissions(Permissions::from_mode(0o666));
                let (file, partial) = builder.tempfile_in(folder).map_err(wrong)?.into_parts();
                (file, Some(partial))
            }
            nameless => (nameless.map_err(wrong)?, None),
        };
        let mut made = Made { writer: None, out: out.to_owned(), partial };
        made.writer = Some(Writer::new(BufWriter::new(file), source).with_context(|| writing(out))?);
        Ok(made)
    }

    /// Adds the next record.
    pub fn add(&mut self, record: &Record) -> anyhow::Result<()> {
        let writer = self.writer.as_mut().context("it has ended")?;
        writer.add(record).with_context(|| writing(&self.out))
    }

    /// Completes the trace and gives the file its name.
    pub fn finish(self) -> anyhow::Result<()> {
        self.finish_with(&Origin::default())
    }

    /// Like [`finish`](Made::finish), and records when the trace began and what it lacks.
    pub fn finish_with(mut self, origin: &Origin) -> anyhow::Result<()> {
        let writer = self.writer.take().context("it has ended")?;
        let whole = || -> anyhow::Result<File> {
            let file = writer.finish_with(origin)?.into_inner().map_err(|error| error.into_error())?;
            file.sync_all()?;
            Ok(file)
        };
        let file = whole().with_context(|| writing(&self.out))?;
        let nameless = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        match link(self.partial.as_deref().unwrap_or(&nameless), &self.out) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists(&self.out)),
            Err(error) => match &self.partial {
                // This file system has no hard links.
                Some(partial) if self.out.symlink_metadata().is_err() => std::fs::rename(partial, &self.out),
                _ => Err(error),
            }
            .with_context(|| writing(&self.out)),
            Ok(()) => Ok(()),
        }
    }
}

/// Links a file to a name. A path in /proc/self/fd stands for the open file.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (CString::new(from.as_os_str().as_bytes())?, CString::new(to.as_os_str().as_bytes())?);
    let here = libc::AT_FDCWD;
    // SAFETY: both strings end with NUL.
    match unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), libc::AT_SYMLINK_FOLLOW) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
