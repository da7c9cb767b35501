//! A local directory that others change.

use localdir::LocalDir;
use std::fs;
use std::path::PathBuf;
use types::{Answer, FileId, FsError};
use vfs::fs::{Cred, FileSystem};

pub struct Rig {
    _folder: tempfile::TempDir,
    pub root: PathBuf,
    pub fs: LocalDir,
    pub runtime: tokio::runtime::Runtime,
    pub me: Cred,
}

impl Rig {
    /// An exported folder `in` beside a folder `out`.
    pub fn new() -> Rig {
        let folder = tempfile::tempdir().expect("temporary folder");
        let root = folder.path().join("in");
        fs::create_dir(&root).expect("folder");
        fs::create_dir(folder.path().join("out")).expect("folder");
        fs::write(folder.path().join("out/secret"), "secret").expect("write");
        let local = LocalDir::open(&root).expect("open");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let me = Cred { uid, gid, groups: Vec::new() };
        Rig { _folder: folder, root, fs: local, runtime, me }
    }

    pub fn wait<T: Send + 'static>(&self, answer: Answer<T>) -> Result<T, FsError> {
        self.runtime.block_on(async { answer.await })
    }

    pub fn find(&self, parent: FileId, name: &str) -> Result<FileId, FsError> {
        self.wait(self.fs.lookup(&self.me, parent, name.as_bytes())).map(|entry| entry.attr.id)
    }
}
