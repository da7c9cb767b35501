//! Extended attributes, which the standard library does not know.

#![allow(dead_code)]

use std::ffi::CString;
use std::io::Error;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn c_string(bytes: &[u8]) -> CString {
    CString::new(bytes).expect("no NUL")
}

fn checked(done: isize) -> Result<usize, Option<i32>> {
    usize::try_from(done).map_err(|_| Error::last_os_error().raw_os_error())
}

/// Sets one, or says with which errno that failed.
pub fn set_xattr(path: &Path, name: &str, value: &[u8]) -> Result<(), Option<i32>> {
    let (path, name) = (c_string(path.as_os_str().as_bytes()), c_string(name.as_bytes()));
    // SAFETY: both strings end in NUL, and the value has the length given.
    let done = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    checked(done as isize).map(drop)
}

/// The value of one, or with which errno asking for it failed.
pub fn get_xattr(path: &Path, name: &str) -> Result<Vec<u8>, Option<i32>> {
    let (path, name) = (c_string(path.as_os_str().as_bytes()), c_string(name.as_bytes()));
    let mut value = vec![0; 1 << 16];
    // SAFETY: both strings end in NUL, and the buffer has the length given.
    let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(checked(len)?);
    Ok(value)
}
