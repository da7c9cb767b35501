//! Attributes that are in conflict: shows them, sets them after all, and takes that back.

use anyhow::Context;
use roam_proto::operation::{Attributes, Operation};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use types::Time;

/// Longest value of an extended attribute, in bytes: the kernel's bound.
const VALUE_LEN_MAX: usize = 64 << 10;

/// Attributes that an operation was to set; those that are `None` were to stay.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct Meant {
    /// The lower twelve bits.
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    /// Seconds and nanoseconds.
    atime: Option<(i64, u32)>,
    mtime: Option<(i64, u32)>,
    /// An extended attribute and its value; without a value, it was to be removed.
    xattr: Option<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Meant {
    /// The attributes that an operation was to set.
    pub fn of(operation: &Operation) -> Meant {
        match operation {
            Operation::Set { attributes: Attributes { mode, uid, gid, atime, mtime }, .. } => {
                let time = |time: Time| (time.sec, time.nsec);
                let (atime, mtime) = (atime.map(time), mtime.map(time));
                Meant { mode: *mode, uid: *uid, gid: *gid, atime, mtime, xattr: None }
            }
            Operation::SetXattr { name, value, .. } => {
                Meant { xattr: Some((name.clone(), value.clone())), ..Meant::default() }
            }
            _ => Meant::default(),
        }
    }

    /// Mode, owner and group where they differ from `other`'s, in words.
    pub fn rights_unlike(&self, other: &Meant) -> String {
        let unlike = |mine: Option<u32>, theirs| mine.filter(|_| mine != theirs);
        let (mode, uid, gid) =
            (unlike(self.mode, other.mode), unlike(self.uid, other.uid), unlike(self.gid, other.gid));
        Meant { mode, uid, gid, ..Meant::default() }.text()
    }

    /// The attributes in words.
    pub fn text(&self) -> String {
        let time = |(sec, nsec): (i64, u32)| format!("{sec}.{nsec:09} s after 1970");
        let xattr = self.xattr.as_ref().map(|(name, value)| {
            let name = String::from_utf8_lossy(name);
            value.as_ref().map_or(format!("without {name}"), |value| format!("{name} = {}", value.escape_ascii()))
        });
        let all = [
            self.mode.map(|mode| format!("mode {mode:o}")),
            self.uid.map(|uid| format!("owner {uid}")),
            self.gid.map(|gid| format!("group {gid}")),
            self.atime.map(|at| format!("read {}", time(at))),
            self.mtime.map(|at| format!("modified {}", time(at))),
            xattr,
        ];
        all.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// The present values of these attributes of a file, and of those that setting them can change
    /// too.
    pub fn now(&self, path: &Path) -> anyhow::Result<Meant> {
        let meta = std::fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
        let time = |sec, nsec: i64| (sec, nsec as u32);
        let xattr = match &self.xattr {
            Some((name, _)) => Some((name.clone(), value_of(path, name)?)),
            None => None,
        };
        Ok(Meant {
            // A change of the owner clears the set-id bits, so the mode counts too.
            mode: self.mode.or(self.uid).or(self.gid).filter(|_| !meta.is_symlink()).map(|_| meta.mode() & 0o7777),
            uid: self.uid.map(|_| meta.uid()),
            gid: self.gid.map(|_| meta.gid()),
            atime: self.atime.map(|_| time(meta.atime(), meta.atime_nsec())),
            mtime: self.mtime.map(|_| time(meta.mtime(), meta.mtime_nsec())),
            xattr,
        })
    }

    /// All attributes of a file that can be set, in the order in which to set them. The time of the
    /// last read is left out.
    pub fn all_of(path: &Path) -> anyhow::Result<Vec<Meant>> {
        let most = Meant { mode: Some(0), uid: Some(0), gid: Some(0), mtime: Some((0, 0)), ..Meant::default() };
        let mut all = vec![most.now(path)?];
        for name in names_of(path).with_context(|| path.display().to_string())? {
            all.push(Meant { xattr: Some((name, None)), ..Meant::default() }.now(path)?);
        }
        Ok(all)
    }

    /// Sets these attributes of a file.
    pub fn set(&self, path: &Path) -> anyhow::Result<()> {
        self.try_set(path).with_context(|| format!("{} to {}", path.display(), self.text()))
    }

    fn try_set(&self, path: &Path) -> io::Result<()> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        let times = [self.atime, self.mtime].map(|time| match time {
            Some((sec, nsec)) => libc::timespec { tv_sec: sec, tv_nsec: nsec.into() },
            None => libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT },
        });
        let keep = u32::MAX;
        let link = libc::AT_SYMLINK_NOFOLLOW;
        // SAFETY: the names end with NUL, and the pointers are to live values of the given lengths.
        unsafe {
            if self.uid.is_some() || self.gid.is_some() {
                done(libc::lchown(name.as_ptr(), self.uid.unwrap_or(keep), self.gid.unwrap_or(keep)))?;
            }
            // After the owner: changing that clears the set-id bits.
            if let Some(mode) = self.mode {
                done(libc::fchmodat(libc::AT_FDCWD, name.as_ptr(), mode, link))?;
            }
            match &self.xattr {
                Some((attribute, Some(value))) => {
                    let attribute = CString::new(&attribute[..])?;
                    done(libc::lsetxattr(name.as_ptr(), attribute.as_ptr(), value.as_ptr().cast(), value.len(), 0))?;
                }
                Some((attribute, None)) => {
                    let attribute = CString::new(&attribute[..])?;
                    let removed = done(libc::lremovexattr(name.as_ptr(), attribute.as_ptr()));
                    removed.or_else(|e| if e.raw_os_error() == Some(libc::ENODATA) { Ok(()) } else { Err(e) })?;
                }
                None => {}
            }
            if self.atime.is_some() || self.mtime.is_some() {
                done(libc::utimensat(libc::AT_FDCWD, name.as_ptr(), times.as_ptr(), link))?;
            }
        }
        Ok(())
    }
}

fn done(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The value of an extended attribute; `None` if the file does not have it.
fn value_of(path: &Path, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let (path, name) = (CString::new(path.as_os_str().as_bytes())?, CString::new(name)?);
    let mut value = vec![0u8; VALUE_LEN_MAX];
    // SAFETY: the names end with NUL, and the buffer is as long as is said.
    let len = unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    if let Ok(len) = usize::try_from(len) {
        value.truncate(len);
        return Ok(Some(value));
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENODATA) { Ok(None) } else { Err(error) }
}

/// The names of all extended attributes.
fn names_of(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut names = vec![0u8; VALUE_LEN_MAX];
    // SAFETY: the name ends with NUL, and the buffer is as long as is said.
    let len = unsafe { libc::llistxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    let Ok(len) = usize::try_from(len) else {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOTSUP) { Ok(Vec::new()) } else { Err(error) };
    };
    names.truncate(len);
    Ok(names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_there_and_can_be_taken_back() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("file");
        std::fs::write(&path, "text").expect("write");
        let xattr = |value: Option<&[u8]>| Some((b"user.note".to_vec(), value.map(<[u8]>::to_vec)));
        let meant = Meant {
            mode: Some(0o4750),
            atime: Some((5, 6)),
            mtime: Some((-7, 8)),
            xattr: xattr(Some(b"\xffnew")),
            ..Meant::default()
        };
        let before = meant.now(&path).expect("attributes");
        assert_eq!(before.xattr, xattr(None));
        meant.set(&path).expect("set");
        assert_eq!(meant.now(&path).expect("attributes"), meant);
        before.set(&path).expect("set");
        before.set(&path).expect("again");
        assert_eq!(meant.now(&path).expect("attributes"), before);
        meant.set(&path).expect("set");
        let all = Meant::all_of(&path).expect("attributes");
        let other = dir.path().join("other");
        std::fs::write(&other, "text").expect("write");
        all.iter().for_each(|one| one.set(&other).expect("set"));
        assert_eq!(Meant::all_of(&other).expect("attributes"), all);
        assert!(all.iter().any(|one| one.xattr == xattr(Some(b"\xffnew"))), "{all:?}");
        assert_eq!(
            meant.text(),
            "mode 4750, read 5.000000006 s after 1970, modified -7.000000008 s after 1970, user.note = \\xffnew"
        );
        let other = Meant { mode: Some(0o640), ..meant.clone() };
        assert_eq!([meant.rights_unlike(&other), meant.rights_unlike(&meant)], ["mode 4750", ""]);
        assert!(meant.set(&dir.path().join("nothing")).is_err());
    }
}
