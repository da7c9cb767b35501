//! A trace on its way to a file, which has its name only when it is whole, and takes no other's.
//!
//! Until then it has none where the folder's file system can do that (O_TMPFILE), and whatever ends this process, nothing is left of it. Elsewhere it is beside its
//! place, with `.partial` behind its name.

use crate::usage;
use anyhow::Context;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use trace::Record;
use trace::format::Writer;

/// See the module's header. Without [`finish`](Made::finish), nothing comes of it.
pub struct Made {
    writer: Option<Writer<BufWriter<File>>>,
    out: PathBuf,
    /// Its name until it is whole.
    partial: Option<PathBuf>,
}

fn exists(out: &Path) -> anyhow::Error {
    usage(format!("{} exists: remove it, or give another name", out.display()))
}

fn writing(out: &Path) -> String {
    format!("write {}", out.display())
}

impl Made {
    /// Begins one; `source` says what it is of.
    pub fn begin(out: &Path, source: &str) -> anyhow::Result<Made> {
        if out.symlink_metadata().is_ok() {
            return Err(exists(out));
        }
        let wrong = |error: io::Error| usage(format!("{}: {error}", out.display()));
        let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let nameless = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(folder);
        let (file, partial) = match nameless {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {
                let mut name = out.as_os_str().to_owned();
                name.push(".partial");
                (File::create(&name).map_err(wrong)?, Some(PathBuf::from(name)))
            }
            nameless => (nameless.map_err(wrong)?, None),
        };
        let mut made = Made { writer: None, out: out.to_owned(), partial };
        made.writer = Some(Writer::new(BufWriter::new(file), source).with_context(|| writing(out))?);
        Ok(made)
    }

    /// Adds what was done next.
    pub fn add(&mut self, record: &Record) -> anyhow::Result<()> {
        let writer = self.writer.as_mut().context("it has ended")?;
        writer.add(record).with_context(|| writing(&self.out))
    }

    /// Makes a whole trace of it, under its name.
    pub fn finish(mut self) -> anyhow::Result<()> {
        let writer = self.writer.take().context("it has ended")?;
        let whole = || -> anyhow::Result<File> {
            let file = writer.finish()?.into_inner().map_err(|error| error.into_error())?;
            file.sync_all()?;
            Ok(file)
        };
        let file = whole().with_context(|| writing(&self.out))?;
        let nameless = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        match link(self.partial.as_ref().unwrap_or(&nameless), &self.out) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists(&self.out)),
            Err(error) => match &self.partial {
                // A file system without links.
                Some(partial) if self.out.symlink_metadata().is_err() => std::fs::rename(partial, &self.out),
                _ => Err(error),
            }
            .with_context(|| writing(&self.out)),
            Ok(()) => Ok(()),
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // It may have been renamed.
            let _ = std::fs::remove_file(partial);
        }
    }
}

/// Gives a file a name; that of an open file in /proc is followed.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (CString::new(from.as_os_str().as_bytes())?, CString::new(to.as_os_str().as_bytes())?);
    let here = libc::AT_FDCWD;
    // SAFETY: both strings end with NUL.
    match unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), libc::AT_SYMLINK_FOLLOW) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
