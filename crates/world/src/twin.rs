//! The client with the [`Oracle`] beside it: it passes every request on, and compares every answer
//! at the instant of its arrival.

use crate::oracle::{Oracle, Verdict};
use crate::worker::Shared;
use bytes::Bytes;
use host::Clock;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use types::{Answer, FileId, FsError};
use vfs::fs::{
    Appended, At, Cred, DirEntry, Entry, Fallocate, FileLock, FileSystem, FsStat, Handle, NewNode, OpenFlags,
    RenameFlags, Seek, SetAttr, XattrMode,
};

/// The client and the oracle. Clones are the same twin.
#[derive(Clone)]
pub struct Twin {
    fs: Arc<dyn FileSystem>,
    oracle: Arc<Mutex<Oracle>>,
    shared: Arc<Mutex<Shared>>,
    clock: Arc<dyn Clock>,
}

/// A description of a request, for messages: its kind, its file, and details.
struct Request(&'static str, FileId, String);

impl Request {
    fn named(what: &'static str, parent: FileId, name: &[u8]) -> Self {
        Request(what, parent, String::from_utf8_lossy(name).chars().take(20).collect())
    }
}

impl Twin {
    /// The file system `fs` beside `oracle`; wrong answers are recorded in `shared`.
    pub fn new(
        fs: Arc<dyn FileSystem>,
        oracle: Arc<Mutex<Oracle>>,
        shared: Arc<Mutex<Shared>>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Twin { fs, oracle, shared, clock }
    }

    fn compared<T: Send + 'static>(
        &self,
        request: Request,
        answer: Answer<T>,
        compare: impl FnOnce(&mut Oracle, &Result<T, FsError>) -> Verdict + Send + 'static,
    ) -> Answer<T> {
        match answer {
            Answer::Now(result) => {
                self.compare(&request, &result, compare);
                Answer::Now(result)
            }
            Answer::Later(answer) => {
                let (twin, before) = (self.clone(), self.oracle.lock().mark());
                Answer::later(async move {
                    let result = answer.await;
                    if twin.oracle.lock().mark() > before {
                        twin.shared.lock().overlaps += 1;
                    }
                    twin.compare(&request, &result, compare);
                    result
                })
            }
        }
    }

    fn compare<T>(
        &self,
        Request(what, id, details): &Request,
        result: &Result<T, FsError>,
        compare: impl FnOnce(&mut Oracle, &Result<T, FsError>) -> Verdict,
    ) {
        if self.shared.lock().verbose {
            println!("{:>12?}    {what} {id} {details} -> {:?}", self.clock.now(), result.as_ref().map(|_| ()));
        }
        // The model never runs out of space.
        if matches!(result, Err(FsError::NoSpace)) {
            return;
        }
        let verdict = compare(&mut self.oracle.lock(), result);
        if let Err(text) = verdict {
            self.shared.lock().failure.get_or_insert(format!("{what} {id} {details} {text}"));
        }
    }

    /// Compares a lookup that the kernel answers from memory.
    pub fn confirm_lookup(&self, cred: &Cred, parent: FileId, name: &[u8], answer: &Result<Entry, FsError>) {
        self.compare(&Request::named("cached lookup", parent, name), answer, |o, real| {
            let parent = o.id(parent);
            let model = o.ask(|m| m.lookup(cred, parent, name));
            o.same_entry(real, model)
        });
    }

    /// Compares attributes that the kernel answers from memory. While a program holds a file
    /// without a name, the kernel may show its attributes, though the file system has forgotten it.
    pub fn confirm_attributes(&self, entry: &Entry) {
        let id = entry.attr.id;
        self.compare(&Request("cached getattr", id, String::new()), &Ok(*entry), |o, real| {
            let id = o.id(id);
            match o.ask(|m| m.getattr(id)) {
                Err(FsError::Stale) if entry.attr.nlink == 0 => Ok(()),
                model => o.same_entry(real, model),
            }
        });
    }

    /// Compares a read that the kernel answers from memory.
    pub fn confirm_read(&self, id: FileId, handle: Handle, offset: u64, len: u32, bytes: &Bytes) {
        self.compare(&Request("cached read", id, format!("{offset}+{len}")), &Ok(bytes), |o, real| {
            let (id, handle) = (o.id(id), o.handle(handle));
            Oracle::same_bytes(real, o.ask(|m| m.read(id, handle, offset, len)))
        });
    }

    /// Compares a request whose success makes the first `mark` changes durable.
    fn made_durable(
        &self,
        request: Request,
        answer: Answer<()>,
        model: impl FnOnce(&Oracle) -> Result<(), FsError> + Send + 'static,
        mark: u64,
    ) -> Answer<()> {
        self.compared(request, answer, move |o, real| {
            if real.is_ok() {
                o.durable_up_to(mark);
            }
            Oracle::same(real, model(o))
        })
    }
}

impl FileSystem for Twin {
    fn lookup(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<Entry> {
        let (c, n) = (cred.clone(), name.to_vec());
        let request = Request::named("lookup", parent, name);
        self.compared(request, self.fs.lookup(cred, parent, name), move |o, real| {
            let parent = o.id(parent);
            let model = o.ask(|m| m.lookup(&c, parent, &n));
            o.same_entry(real, model)
        })
    }

    fn getattr(&self, id: FileId) -> Answer<Entry> {
        self.compared(Request("getattr", id, String::new()), self.fs.getattr(id), move |o, real| {
            let id = o.id(id);
            let model = o.ask(|m| m.getattr(id));
            o.same_entry(real, model)
        })
    }

    fn setattr(&self, cred: &Cred, id: FileId, handle: Option<Handle>, set: SetAttr) -> Answer<Entry> {
        let c = cred.clone();
        let request = Request("setattr", id, format!("{set:?} by {}", cred.uid));
        self.compared(request, self.fs.setattr(cred, id, handle, set), move |o, real| {
            let (id, handle) = (o.id(id), handle.map(|handle| o.handle(handle)));
            let model = o.change(true, move |m| m.setattr(&c, id, handle, set));
            o.same_entry(real, model)
        })
    }

    fn readlink(&self, id: FileId) -> Answer<Bytes> {
        self.compared(Request("readlink", id, String::new()), self.fs.readlink(id), move |o, real| {
            let id = o.id(id);
            Oracle::same_bytes(real, o.ask(|m| m.readlink(id)))
        })
    }

    fn mknod(&self, cred: &Cred, parent: FileId, name: &[u8], node: NewNode) -> Answer<Entry> {
        let (c, n) = (cred.clone(), name.to_vec());
        let request = Request::named("mknod", parent, name);
        self.compared(request, self.fs.mknod(cred, parent, name, node), move |o, real| {
            let parent = o.id(parent);
            let model = o.change(true, move |m| m.mknod(&c, parent, &n, node));
            o.same_entry(real, model)
        })
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
        let (c, n) = (cred.clone(), name.to_vec());
        let request = Request::named("create", parent, name);
        self.compared(request, self.fs.create(cred, parent, name, mode, umask, flags), move |o, real| {
            let parent = o.id(parent);
            let model = o.change(true, move |m| m.create(&c, parent, &n, mode, umask, flags));
            o.same_created(real, model)
        })
    }

    fn mkdir(&self, cred: &Cred, parent: FileId, name: &[u8], mode: u32, umask: u32) -> Answer<Entry> {
        let (c, n) = (cred.clone(), name.to_vec());
        let request = Request::named("mkdir", parent, name);
        self.compared(request, self.fs.mkdir(cred, parent, name, mode, umask), move |o, real| {
            let parent = o.id(parent);
            let model = o.change(true, move |m| m.mkdir(&c, parent, &n, mode, umask));
            o.same_entry(real, model)
        })
    }

    fn symlink(&self, cred: &Cred, parent: FileId, name: &[u8], target: &[u8]) -> Answer<Entry> {
        let (c, n, t) = (cred.clone(), name.to_vec(), target.to_vec());
        let request = Request::named("symlink", parent, name);
        self.compared(request, self.fs.symlink(cred, parent, name, target), move |o, real| {
            let parent = o.id(parent);
            let model = o.change(true, move |m| m.symlink(&c, parent, &n, &t));
            o.same_entry(real, model)
        })
    }

    fn link(&self, cred: &Cred, id: FileId, new_parent: FileId, new_name: &[u8]) -> Answer<Entry> {
        let (c, n) = (cred.clone(), new_name.to_vec());
        let request = Request("link", id, format!("to {} in {new_parent}", String::from_utf8_lossy(new_name)));
        self.compared(request, self.fs.link(cred, id, new_parent, new_name), move |o, real| {
            let (id, parent) = (o.id(id), o.id(new_parent));
            let model = o.change(true, move |m| m.link(&c, id, parent, &n));
            o.same_entry(real, model)
        })
    }

    fn unlink(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        let (c, n) = (cred.clone(), name.to_vec());
        let request = Request::named("unlink", parent, name);
        self.compared(request, self.fs.unlink(cred, parent, name), move |o, real| {
            let parent = o.id(parent);
            Oracle::same(real, o.change(true, move |m| m.unlink(&c, parent, &n)))
        })
    }

    fn rmdir(&self, cred: &Cred, parent: FileId, name: &[u8]) -> Answer<()> {
        let (c, n) = (cred.clone(), name.to_vec());
        let request = Request::named("rmdir", parent, name);
        self.compared(request, self.fs.rmdir(cred, parent, name), move |o, real| {
            let parent = o.id(parent);
            Oracle::same(real, o.change(true, move |m| m.rmdir(&c, parent, &n)))
        })
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
        let (c, n, to) = (cred.clone(), name.to_vec(), new_name.to_vec());
        let shown = (String::from_utf8_lossy(name), String::from_utf8_lossy(new_name));
        let details = format!("{} to {} in {new_parent} by {}, {flags:?}", shown.0, shown.1, cred.uid);
        let answer = self.fs.rename(cred, parent, name, new_parent, new_name, flags);
        self.compared(Request("rename", parent, details), answer, move |o, real| {
            let (parent, new_parent) = (o.id(parent), o.id(new_parent));
            Oracle::same(real, o.change(true, move |m| m.rename(&c, parent, &n, new_parent, &to, flags)))
        })
    }

    fn access(&self, cred: &Cred, id: FileId, mask: u32) -> Answer<()> {
        let c = cred.clone();
        self.compared(Request("access", id, mask.to_string()), self.fs.access(cred, id, mask), move |o, real| {
            let id = o.id(id);
            Oracle::same(real, o.ask(|m| m.access(&c, id, mask)))
        })
    }

    fn open(&self, cred: &Cred, id: FileId, flags: OpenFlags) -> Answer<Handle> {
        let c = cred.clone();
        let request = Request("open", id, format!("{flags:?} by {}", cred.uid));
        self.compared(request, self.fs.open(cred, id, flags), move |o, real| {
            let id = o.id(id);
            let model = o.change(flags.truncate, move |m| m.open(&c, id, flags));
            o.same_handle(real, model)
        })
    }

    fn read(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Answer<Bytes> {
        let request = Request("read", id, format!("{offset}+{len}"));
        self.compared(request, self.fs.read(id, handle, offset, len), move |o, real| {
            let (id, handle) = (o.id(id), o.handle(handle));
            Oracle::same_bytes(real, o.ask(|m| m.read(id, handle, offset, len)))
        })
    }

    fn write(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, data: &[u8]) -> Answer<u32> {
        let (c, bytes) = (cred.clone(), Bytes::copy_from_slice(data));
        let request = Request("write", id, format!("{offset}+{} by {}", data.len(), cred.uid));
        self.compared(request, self.fs.write(cred, id, handle, offset, data), move |o, real| {
            let (id, handle) = (o.id(id), o.handle(handle));
            // A write that was cut short for want of space counts as a write of that length.
            let written = real.as_ref().map_or(bytes.len(), |written| bytes.len().min(*written as usize));
            let bytes = bytes.slice(..written);
            Oracle::same(real, o.change(true, move |m| m.write(&c, id, handle, offset, &bytes)))
        })
    }

    fn append(&self, cred: &Cred, id: FileId, handle: Handle, data: &[u8]) -> Answer<Appended> {
        let (c, bytes) = (cred.clone(), Bytes::copy_from_slice(data));
        let request = Request("append", id, format!("{} by {}", data.len(), cred.uid));
        self.compared(request, self.fs.append(cred, id, handle, data), move |o, real| {
            let (id, handle) = (o.id(id), o.handle(handle));
            let written = real.as_ref().map_or(bytes.len(), |done| bytes.len().min(done.count as usize));
            let bytes = bytes.slice(..written);
            Oracle::same(real, o.change(true, move |m| m.append(&c, id, handle, &bytes)))
        })
    }

    fn fsync(&self, id: FileId, handle: Handle, data_only: bool) -> Answer<()> {
        let mark = self.oracle.lock().mark();
        let model = move |o: &Oracle| {
            let (id, handle) = (o.id(id), o.handle(handle));
            o.ask(|m| m.fsync(id, handle, data_only))
        };
        self.made_durable(Request("fsync", id, String::new()), self.fs.fsync(id, handle, data_only), model, mark)
    }

    fn fsync_dir(&self, id: FileId, handle: Handle) -> Answer<()> {
        let mark = self.oracle.lock().mark();
        let model = move |o: &Oracle| {
            let (id, handle) = (o.id(id), o.handle(handle));
            o.ask(|m| m.fsync_dir(id, handle))
        };
        self.made_durable(Request("fsync_dir", id, String::new()), self.fs.fsync_dir(id, handle), model, mark)
    }

    fn flush(&self, id: FileId, handle: Handle, lock_owner: u64) -> Answer<()> {
        self.fs.flush(id, handle, lock_owner)
    }

    fn release(&self, id: FileId, handle: Handle, flock_owner: Option<u64>) -> Answer<()> {
        let answer = self.fs.release(id, handle, flock_owner);
        self.compared(Request("release", id, String::new()), answer, move |o, real| {
            let (id, model_handle) = (o.id(id), o.handle(handle));
            o.closed(handle);
            Oracle::same(real, o.change(false, move |m| m.release(id, model_handle, flock_owner)))
        })
    }

    fn opendir(&self, cred: &Cred, id: FileId) -> Answer<Handle> {
        let c = cred.clone();
        self.compared(Request("opendir", id, String::new()), self.fs.opendir(cred, id), move |o, real| {
            let id = o.id(id);
            let model = o.change(false, move |m| m.opendir(&c, id));
            o.same_handle(real, model)
        })
    }

    fn readdir(&self, id: FileId, handle: Handle, cookie: u64, count_max: usize, plus: bool) -> Answer<Vec<DirEntry>> {
        let request = Request("readdir", id, format!("after {cookie:#x}, {count_max}"));
        self.compared(request, self.fs.readdir(id, handle, cookie, count_max, plus), move |o, real| {
            o.same_listing((id, handle, cookie), real)
        })
    }

    fn releasedir(&self, id: FileId, handle: Handle) -> Answer<()> {
        let answer = self.fs.releasedir(id, handle);
        self.compared(Request("releasedir", id, String::new()), answer, move |o, real| {
            let (id, model_handle) = (o.id(id), o.handle(handle));
            o.closed(handle);
            Oracle::same(real, o.change(false, move |m| m.releasedir(id, model_handle)))
        })
    }

    fn getxattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<Bytes> {
        let (c, n) = (cred.clone(), name.to_vec());
        let request = Request::named("getxattr", id, name);
        self.compared(request, self.fs.getxattr(cred, id, name), move |o, real| {
            let id = o.id(id);
            Oracle::same_bytes(real, o.ask(|m| m.getxattr(&c, id, &n)))
        })
    }

    fn setxattr(&self, cred: &Cred, id: FileId, name: &[u8], value: &[u8], mode: XattrMode) -> Answer<()> {
        let (c, n, v) = (cred.clone(), name.to_vec(), value.to_vec());
        let request = Request::named("setxattr", id, name);
        self.compared(request, self.fs.setxattr(cred, id, name, value, mode), move |o, real| {
            let id = o.id(id);
            Oracle::same(real, o.change(true, move |m| m.setxattr(&c, id, &n, &v, mode)))
        })
    }

    fn listxattr(&self, cred: &Cred, id: FileId) -> Answer<Vec<Vec<u8>>> {
        let c = cred.clone();
        self.compared(Request("listxattr", id, String::new()), self.fs.listxattr(cred, id), move |o, real| {
            let id = o.id(id);
            let sorted = |names: Vec<Vec<u8>>| names.into_iter().collect::<BTreeSet<_>>();
            Oracle::same(&real.clone().map(sorted), o.ask(|m| m.listxattr(&c, id)).map(sorted))
        })
    }

    fn removexattr(&self, cred: &Cred, id: FileId, name: &[u8]) -> Answer<()> {
        let (c, n) = (cred.clone(), name.to_vec());
        let request = Request::named("removexattr", id, name);
        self.compared(request, self.fs.removexattr(cred, id, name), move |o, real| {
            let id = o.id(id);
            Oracle::same(real, o.change(true, move |m| m.removexattr(&c, id, &n)))
        })
    }

    fn fallocate(&self, cred: &Cred, id: FileId, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Answer<()> {
        let c = cred.clone();
        let request = Request("fallocate", id, format!("{offset}+{len} {mode:?}"));
        self.compared(request, self.fs.fallocate(cred, id, handle, offset, len, mode), move |o, real| {
            let (id, handle) = (o.id(id), o.handle(handle));
            Oracle::same(real, o.change(true, move |m| m.fallocate(&c, id, handle, offset, len, mode)))
        })
    }

    fn lseek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Answer<u64> {
        let request = Request("lseek", id, format!("{offset} {whence:?}"));
        self.compared(request, self.fs.lseek(id, handle, offset, whence), move |o, real| {
            let (id, handle) = (o.id(id), o.handle(handle));
            Oracle::same(real, o.ask(|m| m.lseek(id, handle, offset, whence)))
        })
    }

    fn copy_file_range(&self, cred: &Cred, from: At, to: At, len: u64) -> Answer<u64> {
        let c = cred.clone();
        let request = Request("copy", from.id, format!("{}+{len} to {} {}", from.offset, to.id, to.offset));
        self.compared(request, self.fs.copy_file_range(cred, from, to, len), move |o, real| {
            let [from, to] = [from, to].map(|at| At { id: o.id(at.id), handle: o.handle(at.handle), ..at });
            Oracle::same(real, o.change(true, move |m| m.copy_file_range(&c, from, to, len)))
        })
    }

    fn statfs(&self) -> Answer<FsStat> {
        self.fs.statfs()
    }

    fn getlk(&self, id: FileId, handle: Handle, lock: FileLock) -> Answer<Option<FileLock>> {
        self.fs.getlk(id, handle, lock)
    }

    fn setlk(&self, id: FileId, handle: Handle, lock: FileLock, wait: bool) -> Answer<()> {
        self.fs.setlk(id, handle, lock, wait)
    }

    fn sync(&self) -> Answer<()> {
        let mark = self.oracle.lock().mark();
        self.made_durable(Request("sync", FileId::ROOT, String::new()), self.fs.sync(), |_| Ok(()), mark)
    }
}
