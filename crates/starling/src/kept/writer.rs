//! Writes what is kept: one folder for each session that ended before everything was synced.
//!
//! The folder has a number. [`ABOUT`] says what was changed, and files below it have the contents
//! of changed files. The folder gets its number when all of it is durable. A folder with
//! [`UNFINISHED`] behind its number is of a process that was killed meanwhile.

use crate::names;
use crate::private;
use anyhow::Context;
use client::unsynced::{Unsynced, UnsyncedFile, UnsyncedName, UnsyncedPath};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use stripe::Stripe;
use types::{FileId, Kind};

/// The folder with all of it, in a data folder.
const FOLDER: &str = "kept";
/// What a kept folder has, as JSON.
const ABOUT: &str = "kept.json";
/// Format version of [`ABOUT`].
const VERSION: u64 = 1;
const UNFINISHED: &str = "new";

/// The number of the folder of a session, and of all of them.
pub type Number = u64;

/// Where all of it is.
pub fn folder_of(data: &Path) -> PathBuf {
    data.join(FOLDER)
}

/// The numbers of all kept folders, ascending.
pub fn numbers(data: &Path) -> anyhow::Result<Vec<Number>> {
    let folder = folder_of(data);
    let entries = match fs::read_dir(&folder) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| names::shown(&folder))?,
    };
    let mut all = Vec::new();
    for entry in entries {
        all.extend(entry?.file_name().to_str().and_then(|name| name.parse::<Number>().ok()));
    }
    all.sort_unstable();
    Ok(all)
}

/// What a kept folder has.
pub fn about(data: &Path, number: Number) -> anyhow::Result<Value> {
    let path = folder_of(data).join(number.to_string()).join(ABOUT);
    let bytes = fs::read(&path).with_context(|| names::shown(&path))?;
    let about: Value = serde_json::from_slice(&bytes).with_context(|| names::shown(&path))?;
    match about["version"] == json!(VERSION) {
        true => Ok(about),
        false => Err(crate::usage(format!("{} is of another version of starling: use that one", names::shown(path)))),
    }
}

/// Removes what processes left behind that were killed while they wrote. The caller has the data
/// folder's lock.
pub fn clear_unfinished(data: &Path) -> anyhow::Result<()> {
    let folder = folder_of(data);
    for entry in fs::read_dir(&folder).into_iter().flatten() {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new(UNFINISHED)) {
            fs::remove_dir_all(&path).with_context(|| names::shown(&path))?;
        }
    }
    Ok(())
}

/// Removes a kept folder.
pub fn forget(data: &Path, number: Number) -> anyhow::Result<()> {
    let path = folder_of(data).join(number.to_string());
    fs::remove_dir_all(&path).with_context(|| names::shown(&path))
}

/// A file that is kept.
struct KeptFile {
    /// Of its contents only the pieces that the copy lacks.
    file: UnsyncedFile,
    /// Its copy, below the folder; `None` if its contents did not change.
    copy: Option<PathBuf>,
}

/// What is kept of one session.
pub struct Kept {
    folder: PathBuf,
    /// The folder's number.
    pub number: Number,
    /// When it was kept, in seconds since 1970.
    ended: u64,
    files: Vec<KeptFile>,
    /// The names; the files are above.
    unsynced: Unsynced,
    /// It is known that none of it counts.
    is_settled: bool,
}

impl Kept {
    /// Writes what a session had not synced. Returns when it is durable.
    pub fn write(data: &Path, mut unsynced: Unsynced) -> anyhow::Result<Kept> {
        let all = private::make(&folder_of(data))?;
        let number = numbers(data)?.last().map_or(1, |last| last + 1);
        let unfinished = all.join(format!("{number}.{UNFINISHED}"));
        match fs::remove_dir_all(&unfinished) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e).with_context(|| names::shown(&unfinished)),
            _ => private::make(&unfinished)?,
        };
        let ended = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let files = std::mem::take(&mut unsynced.files);
        let files = files.into_iter().map(|mut file| {
            let copy = copy(&unfinished, &file)?;
            file.contents.iter_mut().for_each(|contents| contents.pieces.retain(|piece| piece.bytes.is_err()));
            Ok(KeptFile { file, copy })
        });
        let files = files.collect::<anyhow::Result<_>>()?;
        let mut kept = Kept { folder: unfinished, number, ended, files, unsynced, is_settled: false };
        kept.save()?;
        let folder = all.join(number.to_string());
        fs::rename(&kept.folder, &folder).with_context(|| names::shown(&folder))?;
        private::sync(&all)?;
        private::sync(data)?;
        kept.folder = folder;
        Ok(kept)
    }

    /// The log has all segments up to `through`, and none of that session after them: forgets what
    /// counts after all, and reads what is only in the log.
    pub async fn settle(&mut self, through: u64, stripe: &Stripe) -> anyhow::Result<()> {
        self.unsynced.settle(through);
        let (left, counts) = std::mem::take(&mut self.files).into_iter().partition(|kept| kept.file.seq > through);
        self.files = left;
        if self.count() == 0 {
            return fs::remove_dir_all(&self.folder).with_context(|| names::shown(&self.folder));
        }
        for KeptFile { file, copy } in &mut self.files {
            let (Some(contents), Some(copy)) = (&mut file.contents, copy) else { continue };
            let path = self.folder.join(copy);
            let copy = File::options().write(true).open(&path).with_context(|| names::shown(&path))?;
            let mut lacks = Vec::new();
            for piece in std::mem::take(&mut contents.pieces) {
                let Err(addr) = piece.bytes else { continue };
                match stripe.read(addr.segment, addr.offset..addr.offset + addr.len).await {
                    Ok(bytes) => copy.write_all_at(&bytes, piece.offset).with_context(|| names::shown(&path))?,
                    Err(e) => {
                        tracing::warn!("{}: bytes at {} cannot be read: {e}", names::shown(&path), piece.offset);
                        lacks.push(piece);
                    }
                }
            }
            contents.pieces = lacks;
        }
        self.is_settled = true;
        self.save()?;
        for copy in counts.into_iter().filter_map(|kept: KeptFile| kept.copy) {
            let path = self.folder.join(&copy);
            fs::remove_file(&path).with_context(|| names::shown(&path))?;
        }
        Ok(())
    }

    /// How many files and names are kept.
    pub fn count(&self) -> usize {
        self.files.len() + self.unsynced.net_names().len()
    }

    /// Makes the copies durable, and says what they are.
    fn save(&self) -> anyhow::Result<()> {
        let folder = File::open(&self.folder)?;
        // SAFETY: the file is open.
        if unsafe { libc::syncfs(folder.as_raw_fd()) } < 0 {
            return Err(std::io::Error::last_os_error()).with_context(|| names::shown(&self.folder));
        }
        let is_lost = |seq: u64| self.is_settled || seq > self.unsynced.last_cut;
        let files = self.files.iter().map(|kept| file_as_json(kept, is_lost(kept.file.seq)));
        let net = self.unsynced.net_names();
        let names = net.iter().map(|name| name_as_json(name, is_lost(name.seq)));
        let about = json!({
            "version": VERSION,
            "ended": self.ended,
            "files": files.collect::<Value>(),
            "names": names.collect::<Value>(),
        });
        private::put(&self.folder, ABOUT, &serde_json::to_vec_pretty(&about)?).context(ABOUT)
    }
}

/// Copies the contents of a file. Returns where the copy is, below the folder.
fn copy(folder: &Path, file: &UnsyncedFile) -> anyhow::Result<Option<PathBuf>> {
    let Some(contents) = &file.contents else { return Ok(None) };
    // A path may be too long here.
    let open = |place: PathBuf| {
        let path = folder.join(&place);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let copy = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        std::io::Result::Ok((place, copy))
    };
    let nameless = || Path::new("nameless").join(file.inode.id.raw().to_string());
    let opened = named(file.path.as_ref()).and_then(|place| open(place).ok());
    let opened = opened.map_or_else(|| open(nameless()), Ok);
    let (place, copy) = opened.with_context(|| names::shown(nameless()))?;
    let write = || {
        copy.set_len(file.inode.size)?;
        contents.pieces.iter().try_for_each(|piece| match &piece.bytes {
            Ok(bytes) => copy.write_all_at(bytes, piece.offset),
            Err(_) => Ok(()),
        })
    };
    write().with_context(|| names::shown(&place))?;
    Ok(Some(place))
}

/// The place of a copy under the file's own path, if that is known.
fn named(path: Option<&UnsyncedPath>) -> Option<PathBuf> {
    let path = path.filter(|path| path.from == FileId::ROOT)?;
    let path = Path::new(OsStr::from_bytes(&path.path));
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    is_plain.then(|| Path::new("files").join(path))
}

/// A path as users see it.
fn shown(path: &UnsyncedPath) -> Vec<u8> {
    match path.from == FileId::ROOT {
        true => path.path.clone(),
        false => [format!("(directory {})/", path.from.raw()).as_bytes(), &path.path].concat(),
    }
}

fn file_as_json(KeptFile { file, copy }: &KeptFile, is_lost: bool) -> Value {
    let inode = &file.inode;
    let mut json = json!({
        "number": inode.id.raw(),
        "size": inode.size,
        "mode": inode.mode & 0o7777,
        "uid": inode.uid,
        "gid": inode.gid,
        "is_lost": is_lost,
    });
    file.path.iter().for_each(|path| names::put(&mut json, "path", &shown(path)));
    if let (Some(contents), Some(copy)) = (&file.contents, copy) {
        names::put(&mut json, "copy", copy.as_os_str().as_bytes());
        json["is_whole"] = json!(contents.is_whole);
        json["lacks"] = contents.pieces.iter().map(|piece| json!([piece.offset, piece.len()])).collect();
    }
    json
}

fn name_as_json(name: &UnsyncedName, is_lost: bool) -> Value {
    let did = match (name.had, name.to) {
        (_, None) => "removed",
        (true, Some(_)) => "replaced",
        (false, Some(_)) => "made",
    };
    let mut json = json!({ "did": did, "is_lost": is_lost });
    names::put(&mut json, "path", &shown(&name.path));
    if let Some((file, kind)) = name.to {
        json["number"] = json!(file.raw());
        json["kind"] = json!(match kind {
            Kind::File => "file",
            Kind::Directory => "directory",
            Kind::Symlink => "symbolic link",
            _ => "special file",
        });
    }
    name.target.iter().for_each(|target| names::put(&mut json, "target", target));
    json
}
