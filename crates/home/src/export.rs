//! What a home needs of the file system that it exports, beyond [`FileSystem`].

use bytes::Bytes;
use roam_proto::message::User;
use types::{Answer, BoxFuture, FileId, FsError, Time};
use vfs::FileSystem;
use vfs::fs::{At, Cred, Entry, FILE_SIZE_MAX};

/// A hint that something may have changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Noticed {
    /// A name of a watched directory means another file, or its file has changed.
    Entry {
        /// The directory.
        dir: FileId,
        /// The name.
        name: Vec<u8>,
        /// The name has come or gone, or means another file.
        names_changed: bool,
    },
    /// A watched directory itself may have changed.
    Directory(FileId),
    /// Hints were lost: everything must be looked at.
    Lost,
}

/// A name, its entry, and the identity of its file.
pub type Listed = (Vec<u8>, Entry, Bytes);

/// The default of [`Export::copied_len_max`], in bytes. Other clients wait while the home copies.
const COPIED_LEN_MAX: u64 = 64 << 20;

/// A new file with all its contents.
#[derive(Clone, Debug)]
pub struct Whole {
    /// The lower twelve bits of the mode.
    pub mode: u32,
    /// Owner and group, which only the superuser can give.
    pub owner: (u32, u32),
    /// Last access.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Length in bytes.
    pub size: u64,
    /// Bytes, each piece with its offset. All else is zeroes.
    pub pieces: Vec<(u64, Bytes)>,
}

/// A file system that a home can export.
pub trait Export: FileSystem {
    /// The user as whom the home does its own work: the user with the most rights.
    fn superuser(&self) -> Cred;
    /// A folder for the home's own files, outside of the exported directory, from which files can
    /// be moved into it. The home's user made it for nothing else.
    fn beside(&self) -> Option<FileId> {
        None
    }
    /// Returns a file's identity: the same for as long as the file exists, under any name, also
    /// after a restart. No permissions are checked.
    fn identity(&self, id: FileId) -> Answer<Bytes>;
    /// Looks up a name, without checking permissions. Returns its entry and identity.
    fn identified(&self, parent: FileId, name: &[u8]) -> Answer<(Entry, Bytes)>;
    /// Lists a directory, without `.` and `..`, and without checking permissions.
    fn list(&self, dir: FileId) -> Answer<Vec<Listed>>;
    /// Begins to notice what others do in a directory.
    fn watch(&self, dir: FileId) -> Answer<()>;
    /// Returns a user with the user's current groups; `None` if that is not known.
    fn user(&self, uid: u32) -> Answer<Option<User>>;
    /// Returns the length of the longest file that it can hold, in bytes. A client refuses longer
    /// ones before it sends them.
    fn file_len_max(&self) -> Answer<u64> {
        Answer::ok(FILE_SIZE_MAX)
    }
    /// The most unchanged bytes of a file that the home copies to a new file for a store. If there
    /// are more, both files share them, or the home changes the file in place.
    fn copied_len_max(&self) -> u64 {
        COPIED_LEN_MAX
    }
    /// Makes an open file share all bytes of another, which takes the same time for any length.
    /// EOPNOTSUPP where the file system cannot.
    fn clone_file(&self, _from: At, _to: At) -> Answer<()> {
        Answer::err(FsError::NotSupported)
    }
    /// Makes a file for a user at a free name, in one step: the name appears when the file is
    /// complete. Returns its entry and identity. EEXIST; EOPNOTSUPP where the file system cannot.
    fn make_whole(&self, _cred: &Cred, _dir: FileId, _name: &[u8], _whole: Whole) -> Answer<(Entry, Bytes)> {
        Answer::err(FsError::NotSupported)
    }
    /// Does work that calls this file system very often, where its calls cost least: on a thread
    /// that may block.
    fn together(&self, work: BoxFuture<()>) -> BoxFuture<()> {
        work
    }
    /// Waits for the next hint. The home's own changes cause hints, too.
    fn noticed(&self) -> BoxFuture<Noticed>;
}
