//! Attaching to the kernel: mount(2) and umount2(2) as root, `fusermount3` for other users.
//!
//! Starling mounts by itself and hands fuser the descriptor, because fuser's own mount code has
//! three faults: its errors are texts, it does not try the helper when /dev/fuse cannot be opened,
//! and at the end of a session it unmounts the path, even if another mount is there by then.

use crate::apart;
use crate::error::{DetachError, MountError};
use crate::mountinfo::{Device, KIND};
use crate::options::MountOptions;
use std::ffi::{CString, OsStr};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
const HELPER_CONFIG: &str = "/etc/fuse.conf";
/// The environment variable that tells the helper which of its descriptors is the socket to send
/// /dev/fuse over.
const HELPER_SOCKET: &str = "_FUSE_COMMFD";
/// Where the kernel lists FUSE connections, if the fusectl file system is mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// A mount point that was checked to be a directory.
pub(crate) struct Mountpoint {
    /// Absolute and without symlinks, as in /proc/self/mountinfo.
    pub(crate) path: PathBuf,
    mode: u32,
}

impl Mountpoint {
    /// Resolves `path` and checks that it is a directory.
    pub(crate) fn find(path: &Path) -> Result<Self, MountError> {
        let path = path.to_path_buf();
        let resolved = std::fs::canonicalize(&path).and_then(|found| Ok((std::fs::metadata(&found)?, found)));
        match resolved {
            Ok((metadata, found)) if metadata.is_dir() => Ok(Mountpoint { path: found, mode: metadata.mode() }),
            Ok(_) => Err(MountError::NotADirectory { path }),
            Err(error) => Err(match error.raw_os_error() {
                Some(libc::ENOENT) => MountError::MountpointMissing { path },
                Some(libc::ENOTDIR) => MountError::NotADirectory { path },
                Some(libc::ENOTCONN) => MountError::Stuck { path },
                Some(libc::EACCES | libc::EPERM) => MountError::MountpointDenied { path },
                _ => MountError::System { path, step: "look at the mount point", source: error },
            }),
        }
    }
}

/// Checks, as far as possible without mounting, that this user can mount on the folder
/// `mountpoint`, with or without `allow_other`.
pub fn check(mountpoint: &Path, allow_other: bool) -> Result<(), MountError> {
    let found = Mountpoint::find(mountpoint)?;
    if !Path::new(DEVICE).exists() {
        return Err(MountError::DeviceMissing);
    }
    if is_root() {
        open_device().map(drop).map_err(device_error)
    } else {
        if !is_writable(&found.path) {
            return Err(MountError::MountpointDenied { path: mountpoint.to_path_buf() });
        }
        if allow_other && !std::fs::read_to_string(HELPER_CONFIG).is_ok_and(|text| lets_others_in(&text)) {
            return Err(MountError::AllowOtherForbidden);
        }
        helper().arg("--version").output().map(drop).map_err(helper_start_error)
    }
}

/// True if the helper's configuration permits `allow_other`.
fn lets_others_in(config: &str) -> bool {
    config.lines().any(|line| line.trim() == "user_allow_other")
}

/// True if the user may write to `path`: the helper mounts nowhere else.
fn is_writable(path: &Path) -> bool {
    // SAFETY: the path is a NUL-terminated string that outlives the call.
    c_string(path.as_os_str().as_bytes()).is_ok_and(|path| unsafe { libc::access(path.as_ptr(), libc::W_OK) } == 0)
}

/// Mounts on `mountpoint`, and returns the kernel's end of the connection.
pub(crate) fn attach(mountpoint: &Mountpoint, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let name = &options.fs_name;
    if name.is_empty() || name.contains(|c: char| c == ',' || c == '\\' || c.is_control()) {
        return Err(MountError::BadName { name: name.clone() });
    }
    if !Path::new(DEVICE).exists() {
        return Err(MountError::DeviceMissing);
    }
    if is_root() { attach_as_root(mountpoint, options) } else { attach_by_helper(mountpoint, options) }
}

fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

pub(crate) fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// True if this process can open /dev/fuse again, so that each FUSE thread can have a descriptor of
/// its own.
pub(crate) fn device_opens() -> bool {
    open_device().is_ok()
}

fn open_device() -> io::Result<OwnedFd> {
    OpenOptions::new().read(true).write(true).open(DEVICE).map(OwnedFd::from)
}

/// The ioctl that turns a freshly opened /dev/fuse into another descriptor of a connection.
const CLONE: libc::Ioctl = libc::_IOR::<u32>(229, 0);

/// Another descriptor of the connection of `session`. Closing a descriptor fails the requests that
/// were read through it.
pub(crate) fn clone_device(session: &OwnedFd) -> io::Result<OwnedFd> {
    let device = open_device()?;
    let number = session.as_raw_fd() as u32;
    // SAFETY: the request reads the one u32 that it is given.
    let cloned = unsafe { libc::ioctl(device.as_raw_fd(), CLONE, &raw const number) };
    if cloned < 0 { Err(io::Error::last_os_error()) } else { Ok(device) }
}

fn device_error(error: io::Error) -> MountError {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => MountError::DeviceMissing,
        Some(libc::EACCES | libc::EPERM) => MountError::DeviceDenied,
        _ => MountError::System { path: DEVICE.into(), step: "open", source: error },
    }
}

fn helper_start_error(error: io::Error) -> MountError {
    match error.kind() {
        io::ErrorKind::NotFound => MountError::HelperMissing,
        _ => MountError::System { path: HELPER.into(), step: "run", source: error },
    }
}

fn attach_as_root(mountpoint: &Mountpoint, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let path = &mountpoint.path;
    let system = |step, source| MountError::System { path: path.clone(), step, source };
    let device = open_device().map_err(device_error)?;
    // SAFETY: neither call has preconditions, and neither can fail.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let allow_other = if options.allow_other { ",allow_other" } else { "" };
    let data =
        format!("fd={},rootmode={:o},user_id={uid},group_id={gid}{allow_other}", device.as_raw_fd(), mountpoint.mode);
    let flags = libc::MS_NOSUID | libc::MS_NODEV | if options.read_only { libc::MS_RDONLY } else { 0 };
    let mounted = (|| {
        let (source, target) = (c_string(options.fs_name.as_bytes())?, c_string(path.as_os_str().as_bytes())?);
        let (kind, data) = (c_string(KIND.as_bytes())?, c_string(data.as_bytes())?);
        // SAFETY: all pointers are to NUL-terminated strings that outlive the call.
        let done = unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    })();
    match mounted {
        Ok(()) => Ok(device),
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::EPERM) => MountError::NotPermitted,
            Some(libc::EACCES) => MountError::MountpointDenied { path: path.clone() },
            Some(libc::ENODEV) => MountError::DeviceMissing,
            Some(libc::ENOTCONN) => MountError::Stuck { path: path.clone() },
            _ => system("mount", error),
        }),
    }
}

fn helper() -> Command {
    let mut command = Command::new(HELPER);
    command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn attach_by_helper(mountpoint: &Mountpoint, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let path = &mountpoint.path;
    let system = |step, source| MountError::System { path: path.clone(), step, source };
    let mut words = format!("fsname={},subtype={},nosuid,nodev", options.fs_name, KIND.trim_start_matches("fuse."));
    for (wanted, word) in [(options.allow_other, ",allow_other"), (options.read_only, ",ro")] {
        if wanted {
            words.push_str(word);
        }
    }
    let (ours, theirs) = UnixStream::pair().map_err(|e| system("make a socket pair", e))?;
    let mut command = helper();
    // As standard input the child inherits the socket without any change to descriptor flags.
    command.env(HELPER_SOCKET, "0").stdin(OwnedFd::from(theirs)).args(["-o", &words, "--"]).arg(path);
    let child = command.spawn().map_err(helper_start_error)?;
    // The command holds our copy of the helper's end of the socket. While that is open, the wait
    // below would not end if the helper failed.
    drop(command);
    let received = receive_descriptor(&ours);
    let output = child.wait_with_output().map_err(|e| system("run fusermount3", e))?;
    match received {
        Ok(Some(device)) => Ok(device),
        Ok(None) => Err(helper_error(path, &String::from_utf8_lossy(&output.stderr))),
        Err(error) => Err(system("receive /dev/fuse from fusermount3", error)),
    }
}

/// Turns the helper's error text into an error.
fn helper_error(path: &Path, words: &str) -> MountError {
    let path = path.to_path_buf();
    if words.contains("user_allow_other") {
        MountError::AllowOtherForbidden
    } else if words.contains("device not found") {
        MountError::DeviceMissing
    } else if words.contains(DEVICE) && words.contains("Permission denied") {
        MountError::DeviceDenied
    } else if words.contains("no write access to mountpoint")
        || words.contains("not owned by user")
        || words.contains("Permission denied")
    {
        MountError::MountpointDenied { path }
    } else if words.contains("not connected") {
        MountError::Stuck { path }
    } else {
        MountError::Helper { path, message: words.trim().to_owned() }
    }
}

/// Receives one descriptor from a socket; `None` if the other end closed without sending one.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // u64s, so that the control message header is aligned; 64 bytes hold one with room to spare.
    let mut control = [0u64; 8];
    // SAFETY: msghdr is plain old data for which all-zero is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = std::mem::size_of_val(&control);
    loop {
        // SAFETY: the message points to live buffers of the lengths it states.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if got == 0 {
            return Ok(None);
        }
        if got > 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: recvmsg filled the control buffer; CMSG_FIRSTHDR gives null or a whole header within
    // it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let whole = libc::CMSG_LEN(std::mem::size_of::<libc::c_int>() as u32) as usize;
        if header.is_null()
            || (*header).cmsg_level != libc::SOL_SOCKET
            || (*header).cmsg_type != libc::SCM_RIGHTS
            || ((*header).cmsg_len as usize) < whole
        {
            return Err(io::Error::other("a message without a descriptor"));
        }
        let fd: libc::c_int = libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned();
        // The kernel just made this descriptor for this call, so it has no other owner.
        Ok(Some(OwnedFd::from_raw_fd(fd)))
    }
}

/// How an unmount ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detached {
    /// The mount is gone. The kernel has written back mapped pages, and its last request was
    /// answered.
    Clean,
    /// The mount is gone from the tree, but files are still open. It ends when they are closed.
    InUse,
}

/// Unmounts `path`, which the caller knows to hold its own mount.
pub(crate) fn detach(path: &Path) -> Result<Detached, DetachError> {
    if is_root() { detach_as_root(path) } else { detach_by_helper(path) }
}

/// Fails the requests of a connection, including those that are still to come. Reports no error:
/// the caller looks whether the mount is gone, and detaches it if not.
pub(crate) fn abort(path: &Path, device: &Device) {
    if let Some(number) = device.connection() {
        let _ = std::fs::write(Path::new(CONNECTIONS).join(number).join("abort"), "1");
    }
    if is_root() {
        let _ = unmount_as_root(path, libc::MNT_FORCE);
    }
}

/// Removes a mount whose connection was aborted.
pub(crate) fn detach_dead(path: &Path) -> Result<(), DetachError> {
    if is_root() { Ok(unmount_as_root(path, libc::MNT_DETACH)?) } else { run_helper("-uz", path) }
}

/// Calls umount2(2) on a thread apart: the kernel may wait there for pages that this process must
/// write back.
fn unmount_as_root(path: &Path, flags: libc::c_int) -> io::Result<()> {
    let target = c_string(path.as_os_str().as_bytes())?;
    apart::run(|| {
        // SAFETY: the pointer is to a NUL-terminated string that outlives the call.
        let result = unsafe { libc::umount2(target.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    })
}

fn detach_as_root(path: &Path) -> Result<Detached, DetachError> {
    match unmount_as_root(path, 0) {
        Ok(()) => Ok(Detached::Clean),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            unmount_as_root(path, libc::MNT_DETACH)?;
            Ok(Detached::InUse)
        }
        Err(error) => Err(error.into()),
    }
}

fn run_helper(options: &str, path: &Path) -> Result<(), DetachError> {
    let arguments = [OsStr::new(options), OsStr::new("--"), path.as_os_str()];
    let output = helper().args(arguments).output().map_err(DetachError::NoHelper)?;
    if output.status.success() {
        return Ok(());
    }
    Err(DetachError::Helper(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

fn detach_by_helper(path: &Path) -> Result<Detached, DetachError> {
    match run_helper("-u", path) {
        Ok(()) => Ok(Detached::Clean),
        Err(_) => run_helper("-uz", path).map(|()| Detached::InUse),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_let_in_by_a_line_that_is_no_comment() {
        assert!(lets_others_in("# mount_max = 1000\n user_allow_other \n"));
        assert!(!lets_others_in("#user_allow_other\nmount_max = 1000"));
        assert!(!lets_others_in(""));
    }

    #[test]
    fn words_of_the_helper_become_errors_that_say_what_to_do() {
        let path = Path::new("/m");
        let cases = [
            (
                "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf",
                "user_allow_other",
            ),
            ("fusermount3: fuse device not found, try 'modprobe fuse' first", "modprobe"),
            ("fusermount3: failed to open /dev/fuse: Permission denied", "chmod 666 /dev/fuse"),
            ("fusermount3: user has no write access to mountpoint /m", "choose a folder that you own"),
            ("fusermount3: failed to access mountpoint /m: Permission denied", "choose a folder that you own"),
            ("fusermount3: bad mount point /m: Transport endpoint is not connected", "fusermount3 -uz /m"),
            ("fusermount3: too many FUSE filesystems mounted", "too many FUSE filesystems"),
        ];
        for (words, advice) in cases {
            let text = helper_error(path, words).to_string();
            assert!(text.contains(advice), "{words:?} became {text:?}");
        }
    }

    #[test]
    fn socket_that_closes_without_a_descriptor_gives_none() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(receive_descriptor(&ours).unwrap().is_none());
    }

    #[test]
    fn mount_point_must_be_a_directory_that_exists() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, b"").unwrap();
        assert!(matches!(Mountpoint::find(&file), Err(MountError::NotADirectory { .. })));
        assert!(matches!(Mountpoint::find(&file.join("x")), Err(MountError::NotADirectory { .. })));
        assert!(matches!(Mountpoint::find(&dir.path().join("gone")), Err(MountError::MountpointMissing { .. })));
        assert!(Mountpoint::find(dir.path()).is_ok());
    }
}
