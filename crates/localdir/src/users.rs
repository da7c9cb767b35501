//! The users of this machine, as its user database knows them now. Calls take as long as the
//! database does.

use rustix::io::Errno;
use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;

/// Most groups that a user may be in.
const GROUP_COUNT_MAX: usize = 1024;
/// Longest entry of the database, in bytes.
const ENTRY_LEN_MAX: usize = 1 << 20;

/// A user with all groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Account {
    /// The user's number.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// Other groups.
    pub groups: Vec<u32>,
}

/// How to look up a user.
#[derive(Clone, Copy, Debug)]
pub enum Who<'a> {
    /// By name.
    Name(&'a CStr),
    /// By number.
    Uid(u32),
}

/// Looks up a user; `None` if there is none.
pub fn account(who: Who<'_>) -> rustix::io::Result<Option<Account>> {
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut buffer: Vec<c_char> = vec![0; 1024];
    loop {
        let (mut found, len) = (std::ptr::null_mut(), buffer.len());
        let (to, room) = (entry.as_mut_ptr(), buffer.as_mut_ptr());
        // SAFETY: the name ends with NUL, the buffer has the given length, and the results are
        // written to live values.
        let error = unsafe {
            match who {
                Who::Name(name) => libc::getpwnam_r(name.as_ptr(), to, room, len, &mut found),
                Who::Uid(uid) => libc::getpwuid_r(uid, to, room, len, &mut found),
            }
        };
        if error == libc::ERANGE && len < ENTRY_LEN_MAX {
            buffer.resize(len * 2, 0);
            continue;
        }
        if found.is_null() {
            // Some databases report an unknown user by these errors.
            let is_absent = [0, libc::ENOENT, libc::ESRCH, libc::EBADF, libc::EPERM].contains(&error);
            return if is_absent { Ok(None) } else { Err(Errno::from_raw_os_error(error)) };
        }
        // SAFETY: the user was found, so the entry was written. Its name is in the buffer and ends
        // with NUL.
        let (uid, gid, name) = unsafe {
            let entry = entry.assume_init_ref();
            (entry.pw_uid, entry.pw_gid, CStr::from_ptr(entry.pw_name).to_owned())
        };
        let mut groups = vec![0; GROUP_COUNT_MAX];
        let mut count = GROUP_COUNT_MAX as c_int;
        // SAFETY: the name ends with NUL, and the buffer has room for `count` groups.
        if unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &mut count) } < 0 {
            return Err(Errno::TOOBIG);
        }
        groups.truncate(usize::try_from(count).unwrap_or(0));
        groups.retain(|group| *group != gid);
        return Ok(Some(Account { uid, gid, groups }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_by_name_and_number_and_nobody_else_is_made_up() {
        let root = account(Who::Uid(0)).expect("database").expect("root");
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(!root.groups.contains(&0));
        assert_eq!(account(Who::Name(c"root")).expect("database"), Some(root));
        assert_eq!(account(Who::Uid(u32::MAX - 7)).expect("database"), None);
        assert_eq!(account(Who::Name(c"no such user here")).expect("database"), None);
    }
}
