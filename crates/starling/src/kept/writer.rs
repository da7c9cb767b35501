//! Writes what is kept: one folder for each session that ended before everything was synced.
//!
//! The folder has a number. [`ABOUT`] says what was changed, and files below it have the contents
//! of changed files. The folder gets its number when all of it is durable. A folder with
//! [`UNFINISHED`] behind its number is of a process that was killed meanwhile.

use crate::{names, private, size};
use anyhow::Context;
use client::unsynced::{Unsynced, UnsyncedFile, UnsyncedName, UnsyncedPath, UnsyncedPiece};
use manager::InodeRecord;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use stripe::{Stripe, StripeError};
use types::{FileId, Kind};

/// The folder with all of it, in a data folder.
const FOLDER: &str = "kept";
/// What a kept folder has, as JSON.
const ABOUT: &str = "kept.json";
/// Format version of [`ABOUT`].
const VERSION: u64 = 1;
/// Extension of a folder that is not finished, or is being removed.
const UNFINISHED: &str = "new";
/// Bytes of copies in all kept folders, at most. Beyond that, only lists are kept.
const TOTAL_MAX: u64 = 2 << 30;

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
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse::<Number>().ok());
        all.extend(number.filter(|number| *name == *number.to_string()));
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

/// Removes what processes left behind that were killed while they wrote or removed a folder. The
/// caller has the data folder's lock.
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
pub fn forget(folder: &Path) -> anyhow::Result<()> {
    // A folder with a number is whole.
    let gone = folder.with_extension(UNFINISHED);
    let removed = fs::rename(folder, &gone).and_then(|()| fs::remove_dir_all(&gone));
    removed.with_context(|| names::shown(folder))
}

/// Bytes of all files below a folder, without those that go meanwhile.
fn bytes_below(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.filter_map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => Some(bytes_below(&entry.path())),
        Ok(meta) => Some(meta.blocks() * 512),
        Err(_) => None,
    });
    bytes.sum()
}

/// Makes a folder that only this user can look into, if there is none.
fn make(folder: &Path) -> anyhow::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e).with_context(|| names::shown(folder)),
        _ => Ok(()),
    }
}

/// A file that is kept.
struct KeptFile {
    /// Of its contents only the pieces that the copy lacks.
    file: UnsyncedFile,
    /// Its copy, below the folder; `None` if its contents did not change, or could not be copied.
    copy: Option<PathBuf>,
    /// Why there is no copy; empty if there is one, or need be none.
    trouble: String,
    /// Stretches that the copy lacks for good: offset and length in bytes.
    gone: Vec<(u64, u64)>,
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
    /// Writes what a session had not synced. Returns when it is durable. A file that cannot be
    /// copied is listed without its contents. The folder gets a number above `last`.
    pub fn write(data: &Path, last: Number, unsynced: Unsynced) -> anyhow::Result<Kept> {
        let all = folder_of(data);
        make(&all)?;
        let number = numbers(data)?.last().map_or(last, |there| last.max(*there)).saturating_add(1);
        let unfinished = all.join(number.to_string()).with_extension(UNFINISHED);
        match fs::remove_dir_all(&unfinished) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e).with_context(|| names::shown(&unfinished)),
            _ => make(&unfinished)?,
        }
        let written = Kept::write_into(&unfinished, number, unsynced).and_then(|kept| {
            fs::rename(&unfinished, &kept.folder).with_context(|| names::shown(&kept.folder))?;
            Ok(kept)
        });
        match &written {
            Ok(kept) => {
                if let Err(e) = private::sync(&all).and_then(|()| private::sync(data)) {
                    tracing::warn!("{} may be lost with the next loss of power: {e}", names::shown(&kept.folder));
                }
            }
            // The room is of use to others.
            Err(_) => drop(fs::remove_dir_all(&unfinished)),
        }
        written
    }

    fn write_into(unfinished: &Path, number: Number, mut unsynced: Unsynced) -> anyhow::Result<Kept> {
        let used = unfinished.parent().map_or(0, bytes_below);
        let mut room = TOTAL_MAX.saturating_sub(used);
        let ended = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let files = std::mem::take(&mut unsynced.files);
        let files = files.into_iter().map(|mut file| {
            let copied = copy(unfinished, &file, &mut room);
            let trouble = copied.as_ref().err().map(|e| format!("{e:#}")).unwrap_or_default();
            // They take memory until the next session.
            file.contents.iter_mut().for_each(|contents| contents.pieces.retain(|piece| piece.bytes.is_err()));
            KeptFile { file, copy: copied.ok().flatten(), trouble, gone: Vec::new() }
        });
        let (files, is_settled) = (files.collect(), false);
        let mut kept = Kept { folder: unfinished.to_path_buf(), number, ended, files, unsynced, is_settled };
        if let Err(e) = kept.save() {
            // Perhaps there is room without copies.
            tracing::error!("what was not synced is listed, and not copied: {e:#}");
            for file in kept.files.iter_mut().filter(|file| file.copy.is_some()) {
                (file.copy, file.trouble) = (None, format!("{e:#}"));
            }
            fs::remove_dir_all(unfinished)?;
            make(unfinished)?;
            kept.save()?;
        }
        kept.folder = unfinished.with_extension("");
        Ok(kept)
    }

    /// How many files and names are kept.
    pub fn count(&self) -> usize {
        self.files.len() + self.unsynced.count()
    }

    /// The log has all segments up to `through`, and none of that session after them: forgets what
    /// counts after all. False if nothing is left.
    pub fn settle(&mut self, through: u64) -> anyhow::Result<bool> {
        let mut files = std::mem::take(&mut self.files);
        self.unsynced.files = files.iter().map(|kept| kept.file.clone()).collect();
        self.unsynced.settle(through);
        let left = std::mem::take(&mut self.unsynced.files).into_iter();
        let mut left: BTreeMap<FileId, UnsyncedFile> = left.map(|file| (file.inode.id, file)).collect();
        let mut of_no_use = Vec::new();
        for mut kept in files.drain(..) {
            let file = left.remove(&kept.file.inode.id);
            if file.as_ref().is_none_or(|file| file.contents.is_none()) {
                of_no_use.extend(kept.copy.take());
                kept.trouble.clear();
            }
            if let Some(file) = file {
                self.files.push(KeptFile { file, ..kept });
            }
        }
        self.is_settled = true;
        if self.count() == 0 {
            forget(&self.folder)?;
            return Ok(false);
        }
        self.save()?;
        for copy in of_no_use {
            let path = self.folder.join(&copy);
            match fs::remove_file(&path) {
                // The user has taken it away.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                removed => removed.with_context(|| names::shown(&path))?,
            }
        }
        Ok(true)
    }

    /// Reads what the copies lack. False if stores did not give some of it, and may do so later.
    pub async fn read_missing(&mut self, stripe: &Stripe) -> anyhow::Result<bool> {
        let (mut is_changed, mut is_done) = (false, true);
        for KeptFile { file, copy, gone, .. } in &mut self.files {
            let (Some(contents), Some(copy)) = (&mut file.contents, copy) else { continue };
            if contents.pieces.is_empty() {
                continue;
            }
            let path = self.folder.join(copy);
            let copy = match File::options().write(true).open(&path) {
                // The user has taken it away.
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    contents.pieces.clear();
                    continue;
                }
                copy => copy.with_context(|| names::shown(&path))?,
            };
            let pieces = std::mem::take(&mut contents.pieces).into_iter();
            for UnsyncedPiece { offset, bytes } in pieces {
                let Err(addr) = bytes else { continue };
                let read = match is_done {
                    true => stripe.read(addr.segment, addr.offset..addr.offset + addr.len).await,
                    false => Err(StripeError::NotEnoughStores),
                };
                match read {
                    Ok(read) => match tokio::task::block_in_place(|| copy.write_all_at(&read, offset)) {
                        Ok(()) => is_changed = true,
                        Err(e) => {
                            tracing::warn!("{}: {e}", names::shown(&path));
                            is_done = false;
                            contents.pieces.push(UnsyncedPiece { offset, bytes });
                        }
                    },
                    Err(StripeError::NotEnoughStores) => {
                        is_done = false;
                        contents.pieces.push(UnsyncedPiece { offset, bytes });
                    }
                    Err(e) => {
                        tracing::warn!("{}: bytes at {offset} are not there any more: {e}", names::shown(&path));
                        is_changed = true;
                        gone.push((offset, addr.len.into()));
                    }
                }
            }
        }
        if is_changed {
            tokio::task::block_in_place(|| self.save())?;
        }
        Ok(is_done)
    }

    /// Makes the copies durable, and says what they are.
    fn save(&self) -> anyhow::Result<()> {
        let folder = File::open(&self.folder)?;
        // SAFETY: the file is open.
        if unsafe { libc::syncfs(folder.as_raw_fd()) } < 0 {
            return Err(std::io::Error::last_os_error()).with_context(|| names::shown(&self.folder));
        }
        let is_lost = |seq: u64| self.is_settled || seq > self.unsynced.last_cut;
        let files = self.files.iter().map(|kept| file_as_json(kept, is_lost(kept.file.seq())));
        // Before it is known which changes count, the last one of a name does not tell.
        let net = if self.is_settled { self.unsynced.net_names() } else { self.unsynced.names.clone() };
        let names = net.iter().map(|name| name_as_json(name, is_lost(name.seq)));
        let about = json!({
            "version": VERSION,
            "ended": self.ended,
            "is_settled": self.is_settled,
            "files": files.collect::<Value>(),
            "names": names.collect::<Value>(),
        });
        private::put(&self.folder, ABOUT, &serde_json::to_vec_pretty(&about)?).context(ABOUT)
    }
}

/// Copies the contents of a file, if `room` has so many bytes. Returns where the copy is, below the
/// folder; `None` if the contents did not change.
fn copy(folder: &Path, file: &UnsyncedFile, room: &mut u64) -> anyhow::Result<Option<PathBuf>> {
    let Some(contents) = &file.contents else { return Ok(None) };
    let bytes = contents.pieces.iter().map(UnsyncedPiece::len).sum::<u64>();
    let left = room.checked_sub(bytes);
    let left = left.with_context(|| format!("all that is kept has {} already: forget some", size::show(TOTAL_MAX)))?;
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
    if let Err(e) = write() {
        fs::remove_file(folder.join(&place))?;
        return Err(e).with_context(|| names::shown(&place));
    }
    *room = left;
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

fn inode_as_json(inode: &InodeRecord) -> Value {
    json!({
        "number": inode.id.raw(),
        "size": inode.size,
        "mode": inode.mode & 0o7777,
        "uid": inode.uid,
        "gid": inode.gid,
        "modified": inode.mtime.sec,
    })
}

fn file_as_json(KeptFile { file, copy, trouble, gone }: &KeptFile, is_lost: bool) -> Value {
    let mut json = inode_as_json(&file.inode);
    json["is_lost"] = json!(is_lost);
    file.path.iter().for_each(|path| names::put(&mut json, "path", &shown(path)));
    if file.attributes_seq > 0 {
        let xattrs = file.xattrs.iter().map(|(name, value)| {
            let mut xattr = json!({});
            names::put(&mut xattr, "name", name);
            names::put(&mut xattr, "value", value);
            xattr
        });
        json["xattrs"] = xattrs.collect();
    }
    if !trouble.is_empty() {
        json["trouble"] = json!(trouble);
    }
    if let (Some(contents), Some(copy)) = (&file.contents, copy) {
        names::put(&mut json, "copy", copy.as_os_str().as_bytes());
        json["is_whole"] = json!(contents.is_whole);
        let lacks = contents.pieces.iter().map(|piece| (piece.offset, piece.len())).chain(gone.iter().copied());
        json["lacks"] = lacks.map(|(offset, len)| json!([offset, len])).collect();
        json["zeroes"] = contents.zeroes.iter().map(|range| json!([range.start, range.end - range.start])).collect();
    }
    json
}

fn name_as_json(name: &UnsyncedName, is_lost: bool) -> Value {
    let did = match (name.before, name.to) {
        (_, None) => "removed",
        (Some(_), Some(_)) => "replaced",
        (None, Some(_)) => "made",
    };
    let mut json = name.inode.as_ref().map_or_else(|| json!({}), inode_as_json);
    (json["did"], json["is_lost"]) = (json!(did), json!(is_lost));
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

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use client::unsynced::UnsyncedContents;
    use std::os::unix::fs::PermissionsExt;
    use types::Time;

    fn file(number: u64, from: FileId, path: &[u8], size: u64) -> UnsyncedFile {
        let time = Time { sec: 5, nsec: 0 };
        let inode = InodeRecord {
            id: FileId::new(number),
            kind: Kind::File,
            mode: 0o644,
            nlink: 1,
            uid: 7,
            gid: 7,
            rdev: 0,
            size,
            stored_bytes: 3,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            parent: FileId::new(0),
            shape: Default::default(),
        };
        let pieces = vec![UnsyncedPiece { offset: 2, bytes: Ok(Bytes::from_static(b"new")) }];
        let contents = Some(UnsyncedContents { seq: number, is_whole: true, pieces, zeroes: Vec::new() });
        let path = Some(UnsyncedPath { from, path: path.to_vec() });
        UnsyncedFile { path, inode, xattrs: BTreeMap::new(), attributes_seq: 0, contents }
    }

    fn paths(about: &Value) -> Vec<String> {
        let files = about["files"].as_array().unwrap().iter();
        files.map(|file| file["copy"].as_str().unwrap_or("-").to_string()).collect()
    }

    #[test]
    fn copies_stay_below_the_folder_and_one_that_fails_does_not_take_the_others_along() {
        let data = tempfile::tempdir().unwrap();
        let long = vec![b'x'; 5000];
        let names: [&[u8]; 5] = [b"dir/report", b"../../escape", b"dir", &long, b"caf\xe9"];
        let files = (1..).zip(names).map(|(number, name)| file(number, FileId::ROOT, name, 5));
        let below_another = file(6, FileId::new(99), b"name", 5);
        let too_long = file(7, FileId::ROOT, b"huge", u64::MAX / 2);
        let files = files.chain([below_another, too_long]).collect();
        let mut kept = Kept::write(data.path(), 0, Unsynced { last_cut: 4, files, names: Vec::new() }).unwrap();
        let about = super::about(data.path(), 1).unwrap();
        let wanted = ["files/dir/report", "nameless/2", "nameless/3", "nameless/4", "files/caf\u{fffd}", "nameless/6"];
        assert_eq!(paths(&about)[..6], wanted);
        assert!(about["files"][6]["trouble"].is_string() && about["files"][6]["copy"].is_null(), "{about}");
        let lost = about["files"].as_array().unwrap().iter().map(|file| file["is_lost"] == true);
        assert_eq!(lost.collect::<Vec<_>>(), [false, false, false, false, true, true, true]);
        let copy = data.path().join("kept/1/files/dir/report");
        assert_eq!(fs::read(&copy).unwrap(), b"\0\0new");
        for path in [&copy, &data.path().join("kept")] {
            assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o077, 0, "others can look into it");
        }

        // What counts goes.
        assert!(kept.settle(5).unwrap());
        let about = super::about(data.path(), 1).unwrap();
        assert_eq!(paths(&about), ["nameless/6", "-"]);
        assert!(!copy.exists() && about["files"][0]["is_lost"] == true);
        assert!(!kept.settle(7).unwrap() && numbers(data.path()).unwrap().is_empty());
    }

    #[test]
    fn what_a_process_left_unfinished_is_not_taken_for_kept() {
        let data = tempfile::tempdir().unwrap();
        let all = || vec![file(1, FileId::ROOT, b"a", 5)];
        for number in [1, 2] {
            assert_eq!(
                Kept::write(data.path(), 0, Unsynced { files: all(), ..Default::default() }).unwrap().number,
                number
            );
        }
        for name in ["3.new", "007", "+5", "x"] {
            fs::create_dir(data.path().join("kept").join(name)).unwrap();
        }
        assert_eq!(numbers(data.path()).unwrap(), [1, 2]);
        clear_unfinished(data.path()).unwrap();
        assert!(!data.path().join("kept/3.new").exists());
        forget(&data.path().join("kept/1")).unwrap();
        assert_eq!(numbers(data.path()).unwrap(), [2]);
        assert!(super::about(data.path(), 1).is_err());
    }
}
