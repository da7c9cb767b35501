//! Errors of file system operations, and the errno of each.

use thiserror::Error;

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $errno:ident, $text:literal;)*) => {
        /// Why a file system operation was not applied. The operation had no effect unless the
        /// method's documentation says otherwise.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Error, Hash)]
        pub enum FsError {
            $($(#[$doc])* #[error($text)] $name,)*
        }
        impl FsError {
            /// Every variant, for tables and their tests.
            pub const ALL: &'static [FsError] = &[$(FsError::$name,)*];
            /// The errno that applications see.
            pub fn errno(self) -> i32 {
                match self { $(FsError::$name => libc::$errno,)* }
            }
        }
    };
}

errors! {
    /// EACCES.
    AccessDenied = EACCES, "access denied";
    /// EPERM.
    NotPermitted = EPERM, "operation not permitted";
    /// ENOENT.
    NotFound = ENOENT, "no such file or directory";
    /// EEXIST.
    Exists = EEXIST, "file exists";
    /// ENOTDIR.
    NotADirectory = ENOTDIR, "not a directory";
    /// EISDIR.
    IsADirectory = EISDIR, "is a directory";
    /// ENOTEMPTY.
    NotEmpty = ENOTEMPTY, "directory not empty";
    /// EINVAL.
    InvalidArgument = EINVAL, "invalid argument";
    /// ENAMETOOLONG.
    NameTooLong = ENAMETOOLONG, "name too long";
    /// ENOSPC.
    NoSpace = ENOSPC, "no space left";
    /// EROFS.
    ReadOnly = EROFS, "read-only file system";
    /// EXDEV.
    CrossVolume = EXDEV, "crosses volumes";
    /// EMLINK.
    TooManyLinks = EMLINK, "too many links";
    /// EFBIG.
    FileTooLarge = EFBIG, "file too large";
    /// ENODATA.
    NoSuchXattr = ENODATA, "no such extended attribute";
    /// E2BIG.
    ArgumentTooBig = E2BIG, "argument too big";
    /// ERANGE.
    BufferTooSmall = ERANGE, "result does not fit the buffer";
    /// EOPNOTSUPP.
    NotSupported = EOPNOTSUPP, "not supported";
    /// EBADF.
    BadHandle = EBADF, "bad file handle";
    /// ESTALE.
    Stale = ESTALE, "stale file";
    /// EAGAIN.
    WouldBlock = EAGAIN, "would block";
    /// EDEADLK.
    Deadlock = EDEADLK, "deadlock";
    /// EINTR.
    Interrupted = EINTR, "interrupted";
    /// EIO: the data cannot be read, or cannot be made durable. The code that finds this logs it.
    Io = EIO, "input/output error";
    /// ENXIO.
    NoSuchAddress = ENXIO, "no data or hole there";
    /// EBUSY.
    Busy = EBUSY, "busy";
    /// ELOOP.
    Loop = ELOOP, "too many symbolic links";
    /// ENOLCK.
    NoLocks = ENOLCK, "no locks available";
    /// EOVERFLOW.
    Overflow = EOVERFLOW, "value too large";
    /// ETIMEDOUT.
    TimedOut = ETIMEDOUT, "timed out";
}
