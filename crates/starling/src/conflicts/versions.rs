//! Versions of a file, as files: finds their kind, compares them, and copies them from one place to
//! another.

use crate::attributes::Meant;
use crate::hoarding::mount_of;
use crate::names::shown;
use crate::usage;
use anyhow::Context;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};

/// Name of a new file that is about to be renamed to its place.
const NEW: &str = ".starling-new";
const CHUNK_LEN: usize = 64 << 10;

/// The files of a mount, by their paths from its root.
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// The tree of the mount that `path` is on.
    pub fn of(path: &Path) -> anyhow::Result<Tree> {
        Ok(Tree { root: mount_of(path)?.0 })
    }

    /// The absolute form of a path; refuses a path that leads out of the root. If the last part is
    /// a link, it is not followed.
    pub fn at(&self, path: &[u8]) -> anyhow::Result<PathBuf> {
        let path = Path::new(OsStr::from_bytes(path));
        let outside = || usage(format!("{} is not below {}: nothing was done", shown(path), shown(&self.root)));
        let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        let name = path.file_name().filter(|_| is_plain).ok_or_else(outside)?;
        let whole = self.root.join(path);
        match whole.parent().unwrap_or(&self.root).canonicalize() {
            Ok(folder) if folder.starts_with(&self.root) => Ok(folder.join(name)),
            Ok(_) => Err(outside()),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(whole),
            Err(e) => Err(unseen(&whole, e)),
        }
    }
}

fn unseen(path: &Path, error: io::Error) -> anyhow::Error {
    let error = anyhow::Error::from(error);
    error.context(format!("{} cannot be read now: nothing was done; try again later", shown(path)))
}

/// Kinds of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    File,
    Link,
    Directory,
    /// A device, pipe or socket.
    Other,
}

/// The kind of file at a path; `None` if there is none. If the path cannot be looked at, this
/// fails: a file may be there.
pub fn kind(path: &Path) -> anyhow::Result<Option<Kind>> {
    let of = match path.symlink_metadata() {
        Ok(meta) => meta.file_type(),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(e) => return Err(unseen(path, e)),
    };
    Ok(Some(match of {
        of if of.is_file() => Kind::File,
        of if of.is_symlink() => Kind::Link,
        of if of.is_dir() => Kind::Directory,
        _ => Kind::Other,
    }))
}

/// True if both paths have the same contents, or no file. All directories are the same.
pub fn is_same(one: &Path, other: &Path) -> anyhow::Result<bool> {
    Ok(match (kind(one)?, kind(other)?) {
        (None, None) | (Some(Kind::Directory), Some(Kind::Directory)) => true,
        (Some(Kind::Link), Some(Kind::Link)) => one.read_link()? == other.read_link()?,
        (Some(Kind::File), Some(Kind::File)) => {
            has_same_bytes(one, other).with_context(|| format!("compare {} with {}", shown(one), shown(other)))?
        }
        _ => false,
    })
}

fn has_same_bytes(one: &Path, other: &Path) -> io::Result<bool> {
    let (one, other) = (File::open(one)?, File::open(other)?);
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let [mut one, mut other] = [one, other].map(|file| BufReader::with_capacity(CHUNK_LEN, file));
    let (mut a, mut b) = ([0; CHUNK_LEN], Vec::with_capacity(CHUNK_LEN));
    loop {
        let len = one.read(&mut a)?;
        b.resize(len, 0);
        match other.read_exact(&mut b) {
            Ok(()) if a[..len] == b[..] => {}
            Err(e) if e.kind() != ErrorKind::UnexpectedEof => return Err(e),
            _ => return Ok(false),
        }
        if len == 0 {
            return Ok(true);
        }
    }
}

/// Copies a file, durably, to a path that no other program uses. The copy of a directory is empty:
/// it only says that there was a directory.
pub fn keep(from: &Path, to: &Path) -> anyhow::Result<()> {
    match kind(to)? {
        None => {}
        Some(Kind::Directory) => std::fs::remove_dir(to)?,
        Some(_) => std::fs::remove_file(to)?,
    }
    let kept = match kind(from)? {
        None => Ok(()),
        Some(Kind::File) => {
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(to).and_then(|to| fill(from, to))
        }
        Some(Kind::Link) => from.read_link().and_then(|target| symlink(target, to)),
        Some(Kind::Directory) => std::fs::create_dir(to),
        Some(Kind::Other) => {
            return Err(usage(format!("{} is not a file: move it away, then try again", shown(from))));
        }
    };
    kept.with_context(|| format!("copy {} to {}", shown(from), shown(to)))
}

/// Copies all bytes of a file to an empty one, durably.
fn fill(from: &Path, mut to: File) -> io::Result<()> {
    io::copy(&mut File::open(from)?, &mut to)?;
    to.sync_all()
}

/// Puts a version at a place. If a file is there, it stays the same file, with its owner,
/// attributes and other names. If there is none, or only its folder can be written, a new file gets
/// the attributes `like`, as far as this user may set them.
pub fn put(version: &Path, like: &[Meant], place: &Path) -> anyhow::Result<()> {
    let put = match (kind(version)?, kind(place)?) {
        (None, None) => return Ok(()),
        (Some(Kind::Directory), _) | (_, Some(Kind::Directory)) => {
            return Err(usage(format!(
                "{} is or was a directory: move it, or the files that you want, by hand",
                shown(place)
            )));
        }
        (None, Some(_)) => std::fs::remove_file(place).map_err(anyhow::Error::from),
        (Some(Kind::File), Some(Kind::File)) => {
            let to = OpenOptions::new().write(true).truncate(true).custom_flags(libc::O_NOFOLLOW).open(place);
            match to.and_then(|to| fill(version, to)) {
                Err(e) if e.kind() == ErrorKind::PermissionDenied => replace(version, &Meant::all_of(place)?, place),
                filled => filled.map_err(anyhow::Error::from),
            }
        }
        _ => replace(version, like, place),
    };
    put.with_context(|| format!("replace {}", shown(place)))
}

/// Puts a version at a place as a new file, in place of the file there.
fn replace(version: &Path, like: &[Meant], place: &Path) -> anyhow::Result<()> {
    let new = place.with_file_name(NEW);
    keep(version, &new)?;
    for one in like {
        // Attributes that this user may not set stay as they are for new files.
        let _ = one.set(&new);
    }
    Ok(std::fs::rename(&new, place)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn what_is_put_in_a_place_is_the_same_and_files_stay_the_files_that_they_are() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("short"), "short").expect("write");
        std::fs::write(at("long"), vec![7; 3 * CHUNK_LEN + 1]).expect("write");
        symlink("short", at("link")).expect("link");
        std::fs::create_dir(at("folder")).expect("folder");
        let versions = ["nothing", "short", "long", "link"];
        for (from, to) in versions.iter().flat_map(|from| versions.map(|to| (*from, to))) {
            let case = format!("{from} to {to}");
            keep(&at(to), &at("place")).expect("keep");
            assert!(is_same(&at(to), &at("place")).expect("compare"), "{case}");
            assert_eq!(is_same(&at(from), &at("place")).expect("compare"), from == to, "{case}");
            let number = || at("place").symlink_metadata().ok().map(|meta| meta.ino());
            let before = number();
            put(&at(from), &[], &at("place")).expect("put");
            assert!(is_same(&at(from), &at("place")).expect("compare"), "{case}");
            let are_files = [from, to].iter().all(|name| ["short", "long"].contains(name));
            assert!(!are_files || number() == before, "{case}");
        }
        assert_eq!(std::fs::read_to_string(at("short")).expect("read"), "short", "a link was followed");
        for (from, to) in [("folder", "short"), ("short", "folder")] {
            assert!(!is_same(&at(from), &at(to)).expect("compare"));
            assert!(put(&at(from), &[], &at(to)).is_err());
        }
    }

    #[test]
    fn paths_lead_nowhere_but_below_the_root() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let tree = Tree { root: dir.path().canonicalize().expect("a path").join("root") };
        std::fs::create_dir_all(tree.root.join("sub")).expect("folder");
        symlink(dir.path(), tree.root.join("out")).expect("link");
        symlink("sub", tree.root.join("in")).expect("link");
        assert_eq!(tree.at(b"sub/file").expect("a path"), tree.root.join("sub/file"));
        assert_eq!(tree.at(b"in/file").expect("a path"), tree.root.join("sub/file"));
        assert_eq!(tree.at(b"out").expect("a path"), tree.root.join("out"));
        assert_eq!(tree.at(b"none/file").expect("a path"), tree.root.join("none/file"));
        for outside in [&b"/etc/passwd"[..], b"../file", b"sub/../../file", b"out/file", b"", b".", b"sub/.."] {
            assert!(tree.at(outside).is_err(), "{}", outside.escape_ascii());
        }
    }
}
