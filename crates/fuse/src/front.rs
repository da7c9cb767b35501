//! One method per FUSE request: each decodes it, calls the file system, and encodes the answer.

use crate::believed::{Change, Place};
use crate::convert::{self, MODE_BITS, errno};
use crate::count::Op;
use crate::dispatch::FrontEnd;
use crate::listing::nothing;
use crate::locks;
use crate::observe::{has_bytes, only_name};
use crate::passing::{Opening, Passing};
use crate::validity::{EntryValid, Validity};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use types::{Answer, FileId, FsError, Kind};
use vfs::fs::{At, Cred, Entry, FileSystem, Handle, NAME_LEN_MAX, NewNode, SetAttr};

/// Most requests of the kernel's own making (read-ahead, write-back) that may be under way at once.
const BACKGROUND_MAX: u16 = 64;
/// Stack depth for backing files: they lie on file systems that have no backing files themselves.
/// With 1, other file systems may still be stacked on this one.
const BACKING_DEPTH: u32 = 1;
/// Smallest write size that the protocol allows, in bytes.
const WRITE_MIN_BYTES: u32 = 4096;
/// Most bytes of one copy_file_range. Its reply has 32 bits, and a power of two keeps the copy
/// block-aligned.
const COPY_MAX_BYTES: u64 = 1 << 30;

/// Sends an entry whose inode has these attributes.
fn send_entry_as(reply: ReplyEntry, attr: &FileAttr, valid: EntryValid) {
    reply.entry_with_ttls(&valid.attributes, &valid.name, attr, Generation(0));
}

fn send_entry(reply: ReplyEntry, entry: Entry, passing: &Passing, validity: &Validity) {
    send_entry_as(reply, &passing.attr(&entry.attr), validity.entry(&entry));
}

fn send_ok(reply: ReplyEmpty, (): ()) {
    reply.ok();
}

/// Replies to getxattr and listxattr. Size 0 asks for the length; any other size is the room for
/// the data.
fn send_xattr(reply: ReplyXattr, size: u32, data: &[u8]) {
    match u32::try_from(data.len()) {
        Ok(len) if size == 0 => reply.size(len),
        Ok(len) if len <= size => reply.data(data),
        _ => reply.error(Errno::ERANGE),
    }
}

/// Opens an existing file for a CREATE, as open(2) without O_EXCL does. The kernel found no such
/// name, but another client has made the file since.
async fn open_existing(
    fs: Arc<dyn FileSystem>,
    cred: Cred,
    parent: FileId,
    name: Vec<u8>,
    flags: vfs::fs::OpenFlags,
) -> Result<(Entry, Handle), FsError> {
    let entry = fs.lookup(&cred, parent, &name).await?;
    if entry.attr.kind != Kind::File {
        // A reply to CREATE can only be a regular file. ESTALE makes the kernel walk the path
        // again.
        return Err(FsError::Stale);
    }
    let handle = fs.open(&cred, entry.attr.id, flags).await?;
    Ok((entry, handle))
}

impl FrontEnd {
    fn file(&self, inode: INodeNo) -> FileId {
        self.passing.file(inode)
    }

    /// Sends an entry that was looked up or made.
    fn send_entry(&self) -> impl FnOnce(ReplyEntry, Entry) + Send + 'static {
        let (passing, validity) = (self.passing.clone(), self.validity.clone());
        move |reply, entry| send_entry(reply, entry, &passing, &validity)
    }

    /// Sends an entry that was looked up or made, given its directory and name. Notes it if it is a
    /// directory.
    fn send_found(&self) -> impl FnOnce(FileId, &[u8], ReplyEntry, Entry) + Send + 'static {
        let (send, believed) = (self.send_entry(), self.believed.clone());
        move |parent, name, reply, entry| {
            match name {
                _ if entry.attr.kind != Kind::Directory => {}
                b".." => believed.told_nameless(entry.attr.id),
                _ => believed.told(parent, name, entry.attr.id),
            }
            send(reply, entry);
        }
    }

    /// How long the kernel may keep it that a name does not exist. To be asked in the section that
    /// answers so.
    fn absence_valid(&self) -> impl FnOnce() -> Duration + Send + 'static {
        let (validity, otherwise) = (self.validity.clone(), self.options.absent_valid);
        let shared = self.validity.is_shared().then(|| self.fs.clone());
        move || validity.absence(shared.map_or(otherwise, |fs| fs.absence_valid()))
    }

    /// Sends attributes of an inode that the kernel asked for.
    fn send_attr(&self, inode: INodeNo) -> impl FnOnce(ReplyAttr, Entry) + Send + 'static {
        let passing = self.passing.clone();
        move |reply, entry| reply.attr(&entry.valid, &passing.attr_of(inode, &entry.attr))
    }

    /// Sends attributes of an inode after a change of them.
    fn send_changed_attr(&self, inode: INodeNo) -> impl FnOnce(ReplyAttr, Entry) + Send + 'static {
        let (send, validity) = (self.send_attr(inode), self.validity.clone());
        move |reply, entry| send(reply, Entry { valid: validity.changed_attributes(entry.valid), ..entry })
    }

    /// Makes the kernel of a shared mount forget the attributes of inodes, then sends an answer.
    /// For changes whose reply makes the kernel ask for these attributes again, but does not raise
    /// their version: the reply to an earlier GETATTR may reach the kernel later and would count.
    fn after_change<R: 'static, T: 'static>(
        &self,
        inodes: impl IntoIterator<Item = INodeNo> + Send + 'static,
        send: impl FnOnce(R, T) + Send + 'static,
    ) -> impl FnOnce(R, T) + Send + 'static {
        let forget = self.forgets_attributes();
        move |reply, value| {
            inodes.into_iter().for_each(forget);
            send(reply, value)
        }
    }

    /// Makes the kernel of a shared mount forget the attributes of an inode.
    fn forgets_attributes(&self) -> impl Fn(INodeNo) + Send + 'static {
        let forgetting = self.validity.is_shared().then(|| self.forgetting.clone());
        move |inode| {
            if let Some(forgetting) = forgetting.as_ref().and_then(|forgetting| forgetting.get()) {
                forgetting.attributes(inode);
            }
        }
    }

    fn opening(&self, flags: vfs::fs::OpenFlags) -> Opening {
        Opening {
            fs: self.fs.clone(),
            passing: self.passing.clone(),
            validity: self.validity.clone(),
            flags: self.open_reply_flags(),
            may_store: flags.read && flags.write,
            is_recorded: self.observing().is_some(),
        }
    }
}

#[allow(clippy::too_many_arguments)]
impl Filesystem for FrontEnd {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let usable = self.wanted_capabilities() & config.capabilities();
        let refused = |what| Err(std::io::Error::other(what));
        if config.add_capabilities(usable).is_err() {
            return refused("fuser refused capabilities that the kernel offers");
        }
        if usable.contains(InitFlags::FUSE_PASSTHROUGH) && config.set_max_stack_depth(BACKING_DEPTH).is_err() {
            return refused("fuser refused backing files");
        }
        if config.set_max_write(self.options.max_write_bytes.max(WRITE_MIN_BYTES)).is_err() {
            return refused("max_write_bytes is beyond 16 MiB");
        }
        if config.set_max_background(BACKGROUND_MAX).is_err() {
            return refused("fuser refused the number of background requests");
        }
        // Kernels without this capability take the answer ENOSYS for a failure.
        self.options.open_dirs |= !config.capabilities().contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes();
        if name == b"." {
            // This asks whether an inode of any kind exists, on behalf of a file handle
            // (open_by_handle_at, NFS).
            let (passing, validity) = (self.passing.clone(), self.validity.clone());
            let believed = self.believed.clone();
            let send = move |reply: ReplyEntry, entry: Entry| {
                if entry.attr.kind == Kind::Directory {
                    believed.told_nameless(entry.attr.id);
                }
                send_entry_as(reply, &passing.attr_of(parent, &entry.attr), validity.entry(&entry));
            };
            return self.answer(Op::Lookup, reply, |fs| fs.getattr(self.file(parent)), send);
        }
        self.counters.add(Op::Lookup);
        let (send, absence, parent) = (self.send_found(), self.absence_valid(), self.file(parent));
        let finish = move |name: &[u8], reply: ReplyEntry, result| match result {
            Ok(entry) => send(parent, name, reply, entry),
            Err(FsError::NotFound) if name != b".." => match absence() {
                Duration::ZERO => reply.error(Errno::ENOENT),
                valid => reply.entry(&valid, &nothing(), Generation(0)),
            },
            Err(error) => reply.error(errno(error)),
        };
        self.here(Op::Lookup, || match self.fs.lookup(&self.cred(req), parent, name) {
            Answer::Now(result) => finish(name, reply, result),
            Answer::Later(answer) => {
                let name = name.to_vec();
                self.later(Op::Lookup, async move { finish(&name, reply, answer.await) });
            }
        });
    }

    /// Ids are never reused. So only what the kernel of a shared mount believes of directories is
    /// kept until then.
    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        self.counters.add(Op::Forget);
        if self.validity.is_shared() {
            self.believed.forget(self.file(ino), nlookup);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.answer(Op::Getattr, reply, |fs| fs.getattr(self.file(ino)), self.send_attr(ino));
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            mode: mode.map(|mode| mode & MODE_BITS),
            uid,
            gid,
            size,
            atime: atime.map(convert::set_time),
            mtime: mtime.map(convert::set_time),
        };
        let handle = fh.map(|fh| Handle(fh.0));
        let (cred, file) = (self.cred(req), self.file(ino));
        let send = self.send_changed_attr(ino);
        if let (Some(0), Some(observing)) = (size, self.observing()) {
            return self.recorded(Op::Setattr, reply, None, send, |fs| async move {
                let empties = has_bytes(&fs, file).await;
                let result = fs.setattr(&cred, file, handle, set).await;
                observing.note_removed(Some(file).filter(|_| empties && result.is_ok()));
                result
            });
        }
        self.answer(Op::Setattr, reply, |fs| fs.setattr(&cred, file, handle, set), send);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        self.answer(Op::Readlink, reply, |fs| fs.readlink(self.file(ino)), |reply, target| reply.data(&target));
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let call = |fs: &dyn FileSystem| match convert::node_kind(mode) {
            Some(kind) => {
                let node = NewNode { kind, mode: mode & MODE_BITS, umask, rdev: u64::from(rdev) };
                fs.mknod(&self.cred(req), self.file(parent), name.as_bytes(), node)
            }
            None => Answer::err(FsError::InvalidArgument),
        };
        self.answer(Op::Mknod, reply, call, self.after_change([parent], self.send_entry()));
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let call = |fs: &dyn FileSystem| {
            fs.mkdir(&self.cred(req), self.file(parent), name.as_bytes(), mode & MODE_BITS, umask)
        };
        let (send, directory, made) = (self.send_found(), self.file(parent), name.as_bytes().to_vec());
        let send = move |reply, entry| send(directory, &made, reply, entry);
        self.answer(Op::Mkdir, reply, call, self.after_change([parent], send));
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if let Some(observing) = self.observing() {
            let send = self.after_change([parent], send_ok);
            let (cred, parent, name) = (self.cred(req), self.file(parent), name.as_bytes().to_vec());
            return self.recorded(Op::Unlink, reply, None, send, |fs| async move {
                let removed = only_name(&fs, &cred, parent, &name).await;
                let result = fs.unlink(&cred, parent, &name).await;
                observing.note_removed(removed.filter(|_| result.is_ok()));
                result
            });
        }
        let call = |fs: &dyn FileSystem| fs.unlink(&self.cred(req), self.file(parent), name.as_bytes());
        self.answer(Op::Unlink, reply, call, self.after_change([parent], send_ok));
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let call = |fs: &dyn FileSystem| fs.rmdir(&self.cred(req), self.file(parent), name.as_bytes());
        let under_way = self.believed.begin(|| Change::Remove(Place::new(self.file(parent), name.as_bytes())));
        self.answer_noted(Op::Rmdir, reply, under_way, call, self.after_change([parent], send_ok));
    }

    fn symlink(&self, req: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let call = |fs: &dyn FileSystem| fs.symlink(&self.cred(req), self.file(parent), link_name.as_bytes(), target);
        self.answer(Op::Symlink, reply, call, self.after_change([parent], self.send_entry()));
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (cred, from, to) = (self.cred(req), self.file(parent), self.file(newparent));
        let (name, newname) = (name.as_bytes(), newname.as_bytes());
        let Some(flags) = convert::rename_flags(flags.bits()) else {
            return self.answer(Op::Rename, reply, |_| Answer::err(FsError::InvalidArgument), send_ok);
        };
        let under_way = self.believed.begin(|| {
            let (from, to) = (Place::new(from, name), Place::new(to, newname));
            if flags.exchange { Change::Exchange(from, to) } else { Change::Rename(from, to) }
        });
        if let Some(observing) = self.observing().filter(|_| !flags.exchange) {
            let (name, newname) = (name.to_vec(), newname.to_vec());
            let send = self.after_change([parent, newparent], send_ok);
            return self.recorded(Op::Rename, reply, under_way, send, |fs| async move {
                let replaced = only_name(&fs, &cred, to, &newname).await;
                let result = fs.rename(&cred, from, &name, to, &newname, flags).await;
                observing.note_removed(replaced.filter(|_| result.is_ok() && (from, &name) != (to, &newname)));
                result
            });
        }
        let send = self.after_change([parent, newparent], send_ok);
        let call = |fs: &dyn FileSystem| fs.rename(&cred, from, name, to, newname, flags);
        self.answer_noted(Op::Rename, reply, under_way, call, send);
    }

    fn link(&self, req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let call =
            |fs: &dyn FileSystem| fs.link(&self.cred(req), self.file(ino), self.file(newparent), newname.as_bytes());
        self.answer(Op::Link, reply, call, self.after_change([newparent], self.send_entry()));
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (file, flags) = (self.file(ino), convert::open_flags(flags.0));
        let call = |fs: &dyn FileSystem| fs.open(&self.cred(req), file, flags);
        let empties = self.observing().filter(|_| flags.truncate);
        if let Some(observing) = empties {
            self.counters.add(Op::Open);
            let (fs, cred, opening) = (Arc::clone(&self.fs), self.cred(req), self.opening(flags));
            return self.later(Op::Open, async move {
                let empties = has_bytes(&fs, file).await;
                match fs.open(&cred, file, flags).await {
                    Ok(handle) => {
                        observing.note_removed(Some(file).filter(|_| empties));
                        opening.opened(reply, ino, file, handle).await;
                    }
                    Err(error) => reply.error(errno(error)),
                }
            });
        }
        if !self.passing.is_on() {
            let flags = self.open_reply_flags();
            return self.answer(Op::Open, reply, call, move |reply, handle| reply.opened(FileHandle(handle.0), flags));
        }
        self.counters.add(Op::Open);
        let opening = self.opening(flags);
        self.here(Op::Open, || {
            let answer = call(&*self.fs);
            self.later(Op::Open, async move {
                match answer.await {
                    Ok(handle) => opening.opened(reply, ino, file, handle).await,
                    Err(error) => reply.error(errno(error)),
                }
            });
        });
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (file, observing) = (self.file(ino), self.observing());
        let call = |fs: &dyn FileSystem| fs.read(file, Handle(fh.0), offset, size);
        let fills_pages = self.validity.is_shared() && lock_owner.is_none();
        let pages = fills_pages.then(|| Arc::clone(&self.pages));
        self.answer(Op::Read, reply, call, move |reply, data| {
            pages.iter().for_each(|pages| pages.note(ino.0));
            observing.iter().for_each(|observing| observing.note_read(file, offset, data.len() as u64));
            reply.data(&data);
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (file, observing) = (self.file(ino), self.observing());
        if convert::appends(flags.0, write_flags) {
            let forgetting = Arc::clone(&self.forgetting);
            let call = |fs: &dyn FileSystem| fs.append(&self.cred(req), file, Handle(fh.0), data);
            return self.answer(Op::Write, reply, call, move |reply, done| {
                observing.iter().for_each(|observing| observing.note_write(file, done.offset, done.count.into()));
                reply.written(done.count);
                if done.offset != offset {
                    forgetting.get().into_iter().for_each(|forgetting| forgetting.file(ino));
                }
            });
        }
        let call = |fs: &dyn FileSystem| fs.write(&self.cred(req), file, Handle(fh.0), offset, data);
        self.answer(Op::Write, reply, call, move |reply, written| {
            observing.iter().for_each(|observing| observing.note_write(file, offset, written.into()));
            reply.written(written);
        });
    }

    /// Without the option, only kernels before 5.16 send this, because they do not know
    /// FOPEN_NOFLUSH. After the answer ENOSYS they stop.
    fn flush(&self, _: &Request, ino: INodeNo, fh: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        if self.options.flush {
            return self.answer(Op::Flush, reply, |fs| fs.flush(self.file(ino), Handle(fh.0), owner.0), send_ok);
        }
        self.counters.add(Op::Flush);
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.passing.close(ino);
        let flock_owner = lock_owner.map(|owner| owner.0);
        self.answer(Op::Release, reply, |fs| fs.release(self.file(ino), Handle(fh.0), flock_owner), send_ok);
    }

    fn getlk(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let Some(wanted) = locks::lock(owner, (start, end), kind, pid) else { return reply.error(Errno::EINVAL) };
        let send = move |reply: ReplyLock, found| {
            let (start, end, kind, pid) = locks::shown(&wanted, found);
            reply.locked(start, end, kind, pid);
        };
        self.answer(Op::Getlk, reply, |fs| fs.getlk(self.file(ino), Handle(fh.0), wanted), send);
    }

    fn setlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let Some(wanted) = locks::lock(owner, (start, end), kind, pid) else { return reply.error(Errno::EINVAL) };
        let thread = req.pid();
        let call = |fs: &dyn FileSystem| match fs.setlk(self.file(ino), Handle(fh.0), wanted, sleep) {
            Answer::Later(locked) if sleep => Answer::later(locks::unless_signalled(thread, locked)),
            locked => locked,
        };
        self.answer(Op::Setlk, reply, call, send_ok);
    }

    fn fsync(&self, _: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.answer(Op::Fsync, reply, |fs| fs.fsync(self.file(ino), Handle(fh.0), datasync), send_ok);
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if !self.options.open_dirs {
            // The kernel does not ask again.
            self.counters.add(Op::Opendir);
            return reply.error(Errno::ENOSYS);
        }
        let call = |fs: &dyn FileSystem| fs.opendir(&self.cred(req), self.file(ino));
        let flags = self.opendir_reply_flags();
        self.answer(Op::Opendir, reply, call, move |reply, handle| reply.opened(FileHandle(handle.0), flags(ino)));
    }

    fn readdir(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        self.listings.asked(ino.0);
        self.list(Op::Readdir, ino, fh, offset, reply);
    }

    fn readdirplus(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectoryPlus) {
        self.list(Op::Readdirplus, ino, fh, offset, reply);
    }

    fn releasedir(&self, _: &Request, ino: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.listings.closed(ino.0);
        self.answer(Op::Releasedir, reply, |fs| fs.releasedir(self.file(ino), Handle(fh.0)), send_ok);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.answer(Op::Fsyncdir, reply, |fs| fs.fsync_dir(self.file(ino), Handle(fh.0)), send_ok);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.answer(
            Op::Statfs,
            reply,
            |fs| fs.statfs(),
            |reply, stat| {
                let block = u64::from(stat.block_size.max(1));
                let (total, free) = (stat.total_bytes / block, stat.free_bytes / block);
                let name_len = NAME_LEN_MAX as u32;
                reply.statfs(
                    total,
                    free,
                    free,
                    stat.files + stat.files_free,
                    stat.files_free,
                    stat.block_size,
                    name_len,
                    block as u32,
                );
            },
        );
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let call = |fs: &dyn FileSystem| match convert::xattr_mode(flags) {
            Some(mode) => fs.setxattr(&self.cred(req), self.file(ino), name.as_bytes(), value, mode),
            None => Answer::err(FsError::InvalidArgument),
        };
        self.answer(Op::Setxattr, reply, call, self.after_change([ino], send_ok));
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if let Some(value) = self.options.mount_xattrs.get(name.as_bytes()) {
            self.counters.add(Op::Getxattr);
            return send_xattr(reply, size, value);
        }
        let call = |fs: &dyn FileSystem| fs.getxattr(&self.cred(req), self.file(ino), name.as_bytes());
        self.answer(Op::Getxattr, reply, call, move |reply, value| send_xattr(reply, size, &value));
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.answer(
            Op::Listxattr,
            reply,
            |fs| fs.listxattr(&self.cred(req), self.file(ino)),
            move |reply, names| {
                let mut list = Vec::new();
                for name in names {
                    list.extend_from_slice(&name);
                    list.push(0);
                }
                send_xattr(reply, size, &list);
            },
        );
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let call = |fs: &dyn FileSystem| fs.removexattr(&self.cred(req), self.file(ino), name.as_bytes());
        self.answer(Op::Removexattr, reply, call, self.after_change([ino], send_ok));
    }

    fn access(&self, req: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let call = |fs: &dyn FileSystem| fs.access(&self.cred(req), self.file(ino), mask.bits() as u32 & 7);
        self.answer(Op::Access, reply, call, send_ok);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.counters.add(Op::Create);
        let (directory, forget) = (parent, self.forgets_attributes());
        let (cred, parent, open) = (self.cred(req), self.file(parent), convert::open_flags(flags));
        let may_exist = flags & libc::O_EXCL == 0;
        let opening = self.opening(open);
        self.here(Op::Create, || {
            let answer = self.fs.create(&cred, parent, name.as_bytes(), mode & MODE_BITS, umask, open);
            let (fs, cred, name) = (Arc::clone(&self.fs), cred.clone(), name.as_bytes().to_vec());
            self.later(Op::Create, async move {
                let result = match answer.await {
                    Err(FsError::Exists) if may_exist => open_existing(fs, cred, parent, name, open).await,
                    result => result,
                };
                match result {
                    Ok((entry, handle)) => {
                        forget(directory);
                        opening.created(reply, entry, handle).await
                    }
                    Err(error) => reply.error(errno(error)),
                }
            });
        });
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let call = |fs: &dyn FileSystem| match convert::fallocate_mode(mode) {
            Some(mode) => fs.fallocate(&self.cred(req), self.file(ino), Handle(fh.0), offset, length, mode),
            None => Answer::err(FsError::NotSupported),
        };
        self.answer(Op::Fallocate, reply, call, send_ok);
    }

    fn lseek(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let call = |fs: &dyn FileSystem| match (u64::try_from(offset), convert::seek(whence)) {
            (Ok(offset), Some(whence)) => fs.lseek(self.file(ino), Handle(fh.0), offset, whence),
            (Err(_), Some(_)) => Answer::err(FsError::NoSuchAddress),
            (_, None) => Answer::err(FsError::InvalidArgument),
        };
        self.answer(Op::Lseek, reply, call, |reply, at| reply.offset(i64::try_from(at).unwrap_or(i64::MAX)));
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let from = At { id: self.file(ino_in), handle: Handle(fh_in.0), offset: offset_in };
        let to = At { id: self.file(ino_out), handle: Handle(fh_out.0), offset: offset_out };
        let observing = self.observing();
        let call = |fs: &dyn FileSystem| {
            if !flags.is_empty() {
                return Answer::err(FsError::InvalidArgument);
            }
            fs.copy_file_range(&self.cred(req), from, to, len.min(COPY_MAX_BYTES))
        };
        self.answer(Op::CopyFileRange, reply, call, move |reply, copied| {
            observing.iter().for_each(|observing| {
                observing.note_read(from.id, from.offset, copied);
                observing.note_write(to.id, to.offset, copied);
            });
            reply.written(u32::try_from(copied).unwrap_or(u32::MAX));
        });
    }
}
