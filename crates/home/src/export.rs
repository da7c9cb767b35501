//! What a home asks of the file system that it exports, beyond [`FileSystem`].

use bytes::Bytes;
use roam_proto::message::User;
use types::{Answer, BoxFuture, FileId, FsError, Time};
use vfs::FileSystem;
use vfs::fs::{At, Cred, Entry, FILE_SIZE_MAX};

/// Something that may have changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Noticed {
    /// What a name of a watched directory means, or what it means has changed.
    Entry {
        /// The directory.
        dir: FileId,
        /// The name.
        name: Vec<u8>,
        /// The name has come or gone, or means something else.
        names_changed: bool,
    },
    /// A watched directory itself.
    Directory(FileId),
    /// Nobody knows what: everything must be looked at.
    Lost,
}

/// A name, what it means, and what that is for ever.
pub type Listed = (Vec<u8>, Entry, Bytes);

/// Bytes of a file that a store leaves as they are, up to which they are copied while others wait.
const COPIED_LEN_MAX: u64 = 64 << 20;

/// A file that is made with all that is in it.
#[derive(Clone, Debug)]
pub struct Whole {
    /// Lower twelve bits.
    pub mode: u32,
    /// Owner and group, which only the superuser can give.
    pub owner: (u32, u32),
    /// Last access.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Length in bytes.
    pub size: u64,
    /// What is in it, and from where on; all else is zeroes.
    pub pieces: Vec<(u64, Bytes)>,
}

/// A file system that a home can export.
pub trait Export: FileSystem {
    /// As whom the home does what is its own affair: whoever may do most.
    fn superuser(&self) -> Cred;
    /// A folder for the home's own files, outside of what is exported, from which files can be
    /// moved there. The home's user made it for nothing else.
    fn beside(&self) -> Option<FileId> {
        None
    }
    /// What a file is for as long as it exists, whatever its name, and whoever is started again.
    fn identity(&self, id: FileId) -> Answer<Bytes>;
    /// What a name means, whoever may know.
    fn identified(&self, parent: FileId, name: &[u8]) -> Answer<(Entry, Bytes)>;
    /// All of a directory, whoever may know, without `.` and `..`.
    fn list(&self, dir: FileId) -> Answer<Vec<Listed>>;
    /// Begins to notice what others do in a directory.
    fn watch(&self, dir: FileId) -> Answer<()>;
    /// A user, with the groups that he is in now; `None` if that is not known.
    fn user(&self, uid: u32) -> Answer<Option<User>>;
    /// Bytes of the longest file that it can hold. A client refuses longer ones before it sends
    /// them.
    fn file_len_max(&self) -> Answer<u64> {
        Answer::ok(FILE_SIZE_MAX)
    }
    /// If a store leaves more bytes of a file as they are, they are not copied to a new file: both
    /// share them, or the file is changed in place.
    fn copied_len_max(&self) -> u64 {
        COPIED_LEN_MAX
    }
    /// Makes an open file share all bytes of another, which takes no longer for more of them.
    /// EOPNOTSUPP where files cannot.
    fn clone_file(&self, _from: At, _to: At) -> Answer<()> {
        Answer::err(FsError::NotSupported)
    }
    /// Makes a file for a user where nothing is, in one step: the name appears when the file is
    /// whole. Gives what it is, and its identity. EEXIST, and EOPNOTSUPP where that cannot be done.
    fn make_whole(&self, _cred: &Cred, _dir: FileId, _name: &[u8], _whole: Whole) -> Answer<(Entry, Bytes)> {
        Answer::err(FsError::NotSupported)
    }
    /// Does work that calls this file system very often where its calls cost least: on a thread
    /// that may block.
    fn together(&self, work: BoxFuture<()>) -> BoxFuture<()> {
        work
    }
    /// The next thing that was noticed, also of what the home did itself.
    fn noticed(&self) -> BoxFuture<Noticed>;
}
