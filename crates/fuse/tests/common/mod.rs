//! What the mount tests share: a mounted [`MemFs`] that cleans up after itself, and a wrapper that
//! changes how it answers.

#![allow(dead_code, missing_docs)]

use bytes::Bytes;
use fuse::{Invalidator, Mount, MountOptions};
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use types::{Answer, FileId, FsError, Kind, Time};
use vfs::fs::*;
use vfs::{Kernel, MemFs};

pub mod programs;

/// Two ordinary users. Every system has the first one (`nobody`).
pub const USER: u32 = 65_534;
pub const OTHER: u32 = 65_533;

/// How the file system under the mount answers.
#[derive(Clone, Copy)]
pub struct Manner {
    /// Every answer is `Later`.
    pub later: bool,
    /// Validity of entries and attributes.
    pub valid: Duration,
    /// Removals and reads get no answer; standard output says that they came.
    pub silent: bool,
}

pub const NOW: Manner = Manner { later: false, valid: Duration::from_secs(60), silent: false };
pub const LATER: Manner = Manner { later: true, valid: Duration::ZERO, silent: false };

/// A [`MemFs`] that answers in a given manner. Looking up `panic-now` and `panic-later` panics.
/// Looking up `late` calls a function between the answer and the reply; so do the attributes of
/// directories besides the root.
#[derive(Clone)]
pub struct Mannered {
    inner: MemFs,
    manner: Manner,
    copies: Option<Copies>,
    before_late: Option<Arc<dyn Fn() + Send + Sync>>,
    removals: Option<Arc<Removals>>,
}

/// Holds requests that may end a directory until they may go on, and asks the kernel before it
/// carries them out.
pub struct Removals {
    arrived: Sender<()>,
    may_go: tokio::sync::Semaphore,
    kernel: OnceLock<Invalidator>,
}

impl Removals {
    /// Removals on a mount to come; what it returns second says when one has arrived.
    pub fn new() -> (Arc<Removals>, Receiver<()>) {
        let (arrived, arrives) = channel();
        let (may_go, kernel) = (tokio::sync::Semaphore::new(0), OnceLock::new());
        (Arc::new(Removals { arrived, may_go, kernel }), arrives)
    }

    /// Lets as many removals go on.
    pub fn let_go(&self, count: usize) {
        self.may_go.add_permits(count);
    }

    /// Carries a removal of this name out.
    fn held(
        self: Arc<Self>,
        fs: MemFs,
        (parent, name): (FileId, Vec<u8>),
        carry_out: impl FnOnce(&MemFs) -> Answer<()> + Send + 'static,
    ) -> Answer<()> {
        Answer::later(async move {
            let _ = self.arrived.send(());
            self.may_go.acquire().await.unwrap().forget();
            let found = fs.lookup(&Cred::ROOT, parent, &name).await.ok();
            let directory = found.filter(|found| found.attr.kind == Kind::Directory).map(|found| found.attr.id);
            if !self.kernel.get().unwrap().may_end(parent, &name, directory) {
                return Err(FsError::Stale);
            }
            carry_out(&fs).await
        })
    }
}

/// Files of this machine that hold the contents of files of a [`MemFs`].
#[derive(Clone)]
pub struct Copies(Arc<Mutex<CopiesState>>);

struct CopiesState {
    dir: TempDir,
    last: u64,
    files: HashMap<FileId, (u64, Arc<File>)>,
    writers: HashSet<Handle>,
}

impl Copies {
    pub fn new() -> Self {
        let state = CopiesState { dir: folder(), last: 0, files: HashMap::new(), writers: HashSet::new() };
        Copies(Arc::new(Mutex::new(state)))
    }

    /// From now on, another file of this machine backs `id`, with these contents.
    pub fn replace(&self, id: FileId, contents: &[u8]) {
        let mut state = self.0.lock().unwrap();
        state.last += 1;
        let path = state.dir.path().join(state.last.to_string());
        std::fs::write(&path, contents).unwrap();
        let file = File::options().read(true).write(true).open(path).unwrap();
        let copy = (state.last, Arc::new(file));
        state.files.insert(id, copy);
    }

    fn of(&self, id: FileId) -> Option<(u64, Arc<File>)> {
        self.0.lock().unwrap().files.get(&id).cloned()
    }

    fn backing(&self, id: FileId, handle: Handle) -> Option<Backing> {
        let (number, file) = self.of(id)?;
        Some(Backing { file, number, may_read: !self.0.lock().unwrap().writers.contains(&handle) })
    }
}

pub fn mem_fs() -> MemFs {
    MemFs::new(Arc::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Time { sec: since.as_secs() as i64, nsec: since.subsec_nanos() }
    }))
}

impl Mannered {
    pub fn new(inner: MemFs, manner: Manner) -> Self {
        Mannered { inner, manner, copies: None, before_late: None, removals: None }
    }

    pub fn with_late(inner: MemFs, manner: Manner, before_late: impl Fn() + Send + Sync + 'static) -> Self {
        Mannered { before_late: Some(Arc::new(before_late)), ..Mannered::new(inner, manner) }
    }

    pub fn with_removals(inner: MemFs, manner: Manner, removals: Arc<Removals>) -> Self {
        Mannered { removals: Some(removals), ..Mannered::new(inner, manner) }
    }

    pub fn silent(inner: MemFs) -> Self {
        Mannered::new(inner, Manner { silent: true, ..NOW })
    }

    /// Never answers.
    fn never<T: Send + 'static>(request: &str) -> Answer<T> {
        println!("\nasked: {request}");
        Answer::later(std::future::pending())
    }

    fn pass<T: Send + 'static>(&self, answer: Answer<T>) -> Answer<T> {
        // A file system may arm timers while it is called, so it must run within a runtime; this
        // panics outside one.
        drop(tokio::runtime::Handle::current());
        if !self.manner.later {
            return answer;
        }
        Answer::later(async move {
            tokio::task::yield_now().await;
            answer.await
        })
    }
    fn entry(&self, answer: Answer<Entry>) -> Answer<Entry> {
        let valid = self.manner.valid;
        match answer {
            Answer::Now(result) => self.pass(Answer::Now(result.map(|entry| Entry::new(entry.attr, valid)))),
            later => later,
        }
    }
}

impl FileSystem for Mannered {
    fn absence_valid(&self) -> Duration {
        self.manner.valid
    }

    fn lookup(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<Entry> {
        match name {
            b"panic-now" => panic!("asked to panic now"),
            b"panic-later" => Answer::later(async { panic!("asked to panic later") }),
            b"late" => {
                let (answer, before) = (self.entry(self.inner.lookup(cred, parent, name)), self.before_late.clone());
                Answer::later(async move {
                    let answered = answer.await;
                    before.iter().for_each(|before| before());
                    answered
                })
            }
            _ => self.entry(self.inner.lookup(cred, parent, name)),
        }
    }
    fn getattr(&self, id: FileId) -> Answer<Entry> {
        let answer = self.inner.getattr(id);
        let is_directory = matches!(&answer, Answer::Now(Ok(entry)) if entry.attr.kind == types::Kind::Directory);
        if let Some(before) = self.before_late.as_ref().filter(|_| is_directory && id != FileId::ROOT) {
            before();
        }
        self.entry(answer)
    }
    fn setattr(&self, cred: &Cred, id: FileId, handle: Option<Handle>, set: SetAttr) -> Answer<Entry> {
        self.entry(self.inner.setattr(cred, id, handle, set))
    }
    fn readlink(&self, id: FileId) -> Answer<Bytes> {
        self.pass(self.inner.readlink(id))
    }
    fn mknod(&self, cred: &Cred, parent: FileId, name: &[u8], node: NewNode) -> Answer<Entry> {
        self.entry(self.inner.mknod(cred, parent, name, node))
    }
    fn create(
        &self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: OpenFlags,
    ) -> Answer<(Entry, Handle)> {
        let valid = self.manner.valid;
        match self.inner.create(cred, parent, name, mode, umask, flags) {
            Answer::Now(result) => {
                self.pass(Answer::Now(result.map(|(entry, handle)| (Entry::new(entry.attr, valid), handle))))
            }
            later => later,
        }
    }
    fn mkdir(&self, cred: &Cred, parent: FileId, name: &[u8], mode: u32, umask: u32) -> Answer<Entry> {
        self.entry(self.inner.mkdir(cred, parent, name, mode, umask))
    }
    fn symlink(&self, cred: &Cred, parent: FileId, name: &[u8], target: &[u8]) -> Answer<Entry> {
        self.entry(self.inner.symlink(cred, parent, name, target))
    }
    fn link(&self, cred: &Cred, id: FileId, new_parent: FileId, new_name: &[u8]) -> Answer<Entry> {
        self.entry(self.inner.link(cred, id, new_parent, new_name))
    }
    fn unlink(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        if self.manner.silent {
            return Self::never("unlink");
        }
        self.pass(self.inner.unlink(cred, parent, name))
    }
    fn rmdir(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        if let Some(removals) = self.removals.clone() {
            let (cred, name) = (cred.clone(), name.to_vec());
            let place = (parent, name.clone());
            return removals.held(self.inner.clone(), place, move |fs| fs.rmdir(&cred, parent, &name));
        }
        self.pass(self.inner.rmdir(cred, parent, name))
    }
    fn rename(
        &self,
        cred: &Cred,
        parent: FileId,
        name: &[u8],
        new_parent: FileId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Answer<()> {
        if let Some(removals) = self.removals.clone().filter(|_| !flags.exchange) {
            let (cred, name, new_name) = (cred.clone(), name.to_vec(), new_name.to_vec());
            let place = (new_parent, new_name.clone());
            let rename = move |fs: &MemFs| fs.rename(&cred, parent, &name, new_parent, &new_name, flags);
            return removals.held(self.inner.clone(), place, rename);
        }
        self.pass(self.inner.rename(cred, parent, name, new_parent, new_name, flags))
    }
    fn access(&self, cred: &Cred, id: FileId, mask: u32) -> Answer<()> {
        self.pass(self.inner.access(cred, id, mask))
    }
    fn open(&self, cred: &Cred, id: FileId, flags: OpenFlags) -> Answer<Handle> {
        let opened = self.inner.open(cred, id, flags);
        if let (Some(copies), Answer::Now(Ok(handle)), true) = (&self.copies, &opened, flags.write) {
            copies.0.lock().unwrap().writers.insert(*handle);
        }
        self.pass(opened)
    }
    fn backing(&self, id: FileId, handle: Handle) -> Answer<Option<Backing>> {
        self.pass(Answer::ok(self.copies.as_ref().and_then(|copies| copies.backing(id, handle))))
    }
    fn read(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Answer<Bytes> {
        if self.manner.silent {
            return Self::never("read");
        }
        self.pass(self.inner.read(id, handle, offset, len))
    }
    fn write(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, data: &[u8]) -> Answer<u32> {
        if let Some((_, copy)) = self.copies.as_ref().and_then(|copies| copies.of(id)) {
            copy.write_all_at(data, offset).unwrap();
        }
        self.pass(self.inner.write(cred, id, handle, offset, data))
    }
    fn append(&self, cred: &Cred, id: FileId, handle: Handle, data: &[u8]) -> Answer<Appended> {
        let appended = self.inner.append(cred, id, handle, data);
        if let (Some((_, copy)), Answer::Now(Ok(done))) = (self.copies.as_ref().and_then(|c| c.of(id)), &appended) {
            copy.write_all_at(data, done.offset).unwrap();
        }
        self.pass(appended)
    }
    fn fsync(&self, id: FileId, handle: Handle, data_only: bool) -> Answer<()> {
        self.pass(self.inner.fsync(id, handle, data_only))
    }
    fn fsync_dir(&self, id: FileId, handle: Handle) -> Answer<()> {
        self.pass(self.inner.fsync_dir(id, handle))
    }
    fn flush(&self, id: FileId, handle: Handle, lock_owner: u64) -> Answer<()> {
        self.pass(self.inner.flush(id, handle, lock_owner))
    }
    fn release(&self, id: FileId, handle: Handle, flock_owner: Option<u64>) -> Answer<()> {
        self.pass(self.inner.release(id, handle, flock_owner))
    }
    fn opendir(&self, cred: &Cred, id: FileId) -> Answer<Handle> {
        self.pass(self.inner.opendir(cred, id))
    }
    fn readdir(&self, id: FileId, handle: Handle, cookie: u64, count_max: usize, plus: bool) -> Answer<Vec<DirEntry>> {
        // Attributes are optional in listings; without them the front end must ask for them.
        self.pass(self.inner.readdir(id, handle, cookie, count_max, plus && !self.manner.later))
    }
    fn releasedir(&self, id: FileId, handle: Handle) -> Answer<()> {
        self.pass(self.inner.releasedir(id, handle))
    }
    fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<Bytes> {
        self.pass(self.inner.getxattr(cred, id, name))
    }
    fn setxattr(&self, cred: &Cred, id: FileId, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()> {
        self.pass(self.inner.setxattr(cred, id, name, value, mode))
    }
    fn listxattr(&self, cred: &Cred, id: FileId) -> Answer<Vec<Vec<u8>>> {
        self.pass(self.inner.listxattr(cred, id))
    }
    fn removexattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<()> {
        self.pass(self.inner.removexattr(cred, id, name))
    }
    fn fallocate(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Answer<()> {
        self.pass(self.inner.fallocate(cred, id, handle, offset, len, mode))
    }
    fn lseek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Answer<u64> {
        self.pass(self.inner.lseek(id, handle, offset, whence))
    }
    fn copy_file_range(&self, cred: &Cred, from: At, to: At, len: u64) -> Answer<u64> {
        self.pass(self.inner.copy_file_range(cred, from, to, len))
    }
    fn statfs(&self) -> Answer<FsStat> {
        self.pass(self.inner.statfs())
    }
    fn getlk(&self, id: FileId, handle: Handle, lock: FileLock) -> Answer<Option<FileLock>> {
        self.pass(self.inner.getlk(id, handle, lock))
    }
    fn setlk(&self, id: FileId, handle: Handle, lock: FileLock, wait: bool) -> Answer<()> {
        self.pass(self.inner.setlk(id, handle, lock, wait))
    }
    fn sync(&self) -> Answer<()> {
        self.pass(self.inner.sync())
    }
}

/// A mounted file system. Dropping it unmounts (also when a test panics), then removes the folder,
/// then ends the runtime.
pub struct Mounted {
    pub mount: Option<Mount>,
    pub fs: MemFs,
    dir: TempDir,
    _runtime: tokio::runtime::Runtime,
}

impl Mounted {
    pub fn new(manner: Manner) -> Self {
        Self::with(manner, |_| {})
    }

    pub fn with(manner: Manner, change: impl FnOnce(&mut MountOptions)) -> Self {
        Self::of(mem_fs(), manner, change)
    }

    pub fn of(fs: MemFs, manner: Manner, change: impl FnOnce(&mut MountOptions)) -> Self {
        Self::copied(fs, manner, None, change)
    }

    /// A mount with files that the kernel may read itself.
    pub fn copied(fs: MemFs, manner: Manner, copies: Option<Copies>, change: impl FnOnce(&mut MountOptions)) -> Self {
        Self::serving(Mannered { copies, ..Mannered::new(fs, manner) }, change)
    }

    pub fn serving(mannered: Mannered, change: impl FnOnce(&mut MountOptions)) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let dir = folder();
        let mut options = MountOptions::new(runtime.handle().clone());
        change(&mut options);
        let (fs, removals) = (mannered.inner.clone(), mannered.removals.clone());
        let mounted = fuse::mount(Arc::new(mannered), dir.path(), options);
        let mount = mounted.unwrap_or_else(|e| panic!("these tests need a working FUSE and the right to mount: {e}"));
        removals.iter().for_each(|removals| drop(removals.kernel.set(mount.invalidator())));
        Mounted { mount: Some(mount), fs, dir, _runtime: runtime }
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn count(&self, request: &str) -> u64 {
        let counts = self.mount.as_ref().unwrap().requests();
        counts.iter().find(|(name, _)| *name == request).unwrap_or_else(|| panic!("no request {request}")).1
    }

    /// True if the kernel can be told to forget names.
    pub fn forgets_names(&self) -> bool {
        self.mount.as_ref().unwrap().forgets_names()
    }

    pub fn unmount(&mut self) {
        self.mount.take().unwrap().unmount().unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.mount = None;
    }
}

/// A new folder that every user can reach.
pub fn folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

pub fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// The errno of a failed libc call (which returned a negative number), or what it returned.
pub fn check(returned: i64) -> Result<i64, i32> {
    if returned < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) } else { Ok(returned) }
}

pub fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Runs `f` in a child process; it must only make system calls. Returns its exit code, or 255 if it
/// was killed.
pub fn in_child(f: impl FnOnce() -> u8) -> u8 {
    // SAFETY: the child only calls `f`, which makes nothing but system calls, and leaves without
    // unwinding.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "fork failed");
        if pid == 0 {
            libc::_exit(i32::from(f()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) as u8 } else { 255 }
    }
}

/// Runs a shell script in `dir`, as a user with one group and the given supplementary ones.
pub fn shell_as(uid: u32, groups: &[u32], dir: &Path, script: &str) -> Output {
    let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}"));
    if groups.is_empty() {
        command.arg("--clear-groups")
    } else {
        command.arg(format!("--groups={}", groups.join(",")))
    };
    // The script enters the folder itself, as the user: the right to do so is part of the test.
    let script = format!("cd '{}' && {{ {script}\n}}", dir.display());
    command.args(["sh", "-c", &script]).current_dir("/").output().expect("setpriv (package util-linux) must be there")
}

/// Asserts that a script succeeds as a user.
#[track_caller]
pub fn allowed(uid: u32, groups: &[u32], dir: &Path, script: &str) -> String {
    let output = shell_as(uid, groups, dir, script);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "user {uid} was refused: {script}\n{out}{err}");
    out.into_owned()
}

/// Asserts that a script fails as a user who lacks a right.
#[track_caller]
pub fn refused(uid: u32, groups: &[u32], dir: &Path, script: &str) {
    let output = shell_as(uid, groups, dir, script);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "user {uid} was let: {script}");
    assert!(err.contains("ermission denied") || err.contains("not permitted"), "refused for another reason: {err}");
}
