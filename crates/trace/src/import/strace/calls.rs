//! Interprets system calls: what each does to files.

use super::line::{Call, annotation, number, string};
use super::process::{Descriptor, Names, Open, Process, Shared, is_file};
use crate::Deed;
use std::cell::RefCell;
use std::rc::Rc;

/// In place of a folder's descriptor: the name that follows is relative to the process's folder.
const HERE: &str = "AT_FDCWD";

/// Calls that return a new descriptor of something other than a file, or of a file that only strace
/// can name.
const NAMELESS: [&str; 26] = [
    "accept",
    "accept4",
    "epoll_create",
    "epoll_create1",
    "eventfd",
    "eventfd2",
    "fanotify_init",
    "fsmount",
    "fsopen",
    "fspick",
    "inotify_init",
    "inotify_init1",
    "io_uring_setup",
    "memfd_create",
    "memfd_secret",
    "mq_open",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pidfd_getfd",
    "pidfd_open",
    "signalfd",
    "signalfd4",
    "socket",
    "timerfd_create",
    "userfaultfd",
];

/// One call of a process, while it is interpreted.
pub struct Doing<'a> {
    pub names: &'a mut Names,
    pub process: &'a mut Process,
    pub call: &'a Call<'a>,
    pub deeds: Vec<(u64, Deed)>,
}

impl Doing<'_> {
    /// Interprets the call, which returned `result` and did not fail.
    pub fn run(&mut self, result: i64) {
        let (bytes, name) = (result.unsigned_abs(), self.call.name);
        match name {
            "open" => self.open(None, 0, 1, result),
            "openat" | "openat2" => self.open(Some(0), 1, 2, result),
            "creat" => self.open(None, 0, usize::MAX, result),
            // The transfer begins where the last one ended.
            "preadv2" if self.number(3) == -1 => self.transfer(0, None, bytes, false),
            "pwritev2" if self.number(3) == -1 => self.transfer(0, None, bytes, true),
            "read" | "readv" => self.transfer(0, None, bytes, false),
            "write" | "writev" => self.transfer(0, None, bytes, true),
            "pread64" | "pread" | "preadv" | "preadv2" => self.transfer(0, Some(3), bytes, false),
            "pwrite64" | "pwrite" | "pwritev" | "pwritev2" => self.transfer(0, Some(3), bytes, true),
            "lseek" | "_llseek" => self.seek(bytes),
            "sendfile" | "sendfile64" => {
                self.copy(1, 2, bytes, false);
                self.copy(0, usize::MAX, bytes, true);
            }
            "copy_file_range" | "splice" => {
                self.copy(0, 1, bytes, false);
                self.copy(2, 3, bytes, true);
            }
            "mmap" | "mmap2" => self.map(),
            "close" => drop(self.process.descriptors.remove(&self.number(0))),
            "close_range" => self.close_range(),
            "pipe" | "pipe2" => self.forget(0),
            "socketpair" => self.forget(3),
            _ if NAMELESS.contains(&name) => drop(self.process.descriptors.remove(&result)),
            "dup" | "dup2" | "dup3" => self.duplicate(result, self.arg(2).contains("O_CLOEXEC")),
            "fcntl" | "fcntl64" if self.arg(1).starts_with("F_DUPFD") => {
                self.duplicate(result, self.arg(1).contains("CLOEXEC"));
            }
            "fcntl" | "fcntl64" if self.arg(1) == "F_SETFD" => {
                let (fd, is_private) = (self.number(0), self.arg(2).contains("FD_CLOEXEC"));
                if let Some(descriptor) = self.process.descriptors.get_mut(&fd) {
                    descriptor.is_private = is_private;
                }
            }
            "chdir" => {
                if let Some(path) = self.name(None, 0) {
                    self.process.folder = path;
                }
            }
            "fchdir" => {
                if let Some(path) = self.folder(0) {
                    self.process.folder = path;
                }
            }
            "unlink" => self.remove(None, 0),
            "unlinkat" => self.remove(Some(0), 1),
            "rename" => self.rename((None, 0), (None, 1)),
            "renameat" | "renameat2" => self.rename((Some(0), 1), (Some(2), 3)),
            "link" => self.link((None, 0), (None, 1)),
            "linkat" => self.link((Some(0), 1), (Some(2), 3)),
            "truncate" | "truncate64" => {
                if let Some(path) = self.path(None, 0) {
                    let file = self.names.number(&path);
                    self.truncate(file);
                }
            }
            "ftruncate" | "ftruncate64" => {
                if let Some(open) = self.opened(0) {
                    let file = open.borrow().file;
                    self.truncate(file);
                }
            }
            _ => {}
        }
    }

    fn arg(&self, at: usize) -> &str {
        self.call.args.get(at).copied().unwrap_or_default()
    }

    fn number(&self, at: usize) -> i64 {
        number(self.arg(at)).unwrap_or(-1)
    }

    /// The name in an argument, from the root; it is relative to the folder in another argument.
    fn name(&mut self, folder: Option<usize>, at: usize) -> Option<Vec<u8>> {
        let name = string(self.arg(at))?;
        let folder = match folder.map(|at| (at, self.arg(at))) {
            None => None,
            Some((_, here)) if here.starts_with(HERE) => {
                if let Some(folder) = annotation(here) {
                    self.process.folder = folder.name;
                }
                None
            }
            Some((at, _)) => self.folder(at),
        };
        Some(self.process.resolve(folder.as_deref(), &name))
    }

    /// The same, if it can be the name of a file.
    fn path(&mut self, folder: Option<usize>, at: usize) -> Option<Vec<u8>> {
        self.name(folder, at).filter(|path| is_file(path))
    }

    /// The name of the folder whose descriptor is an argument.
    fn folder(&self, at: usize) -> Option<Vec<u8>> {
        let shown = annotation(self.arg(at)).map(|shown| shown.name).filter(|name| name.starts_with(b"/"));
        let followed = || Some(self.process.descriptors.get(&self.number(at))?.open.borrow().path.clone());
        shown.or_else(followed)
    }

    /// The open file whose descriptor is an argument. The name that strace shows counts for more
    /// than the descriptor's history. `None` if it is not a file.
    fn opened(&mut self, at: usize) -> Option<Shared> {
        let fd = self.number(at);
        let followed = self.process.descriptors.get(&fd).map(|descriptor| descriptor.open.clone());
        let Some(shown) = annotation(self.arg(at)) else { return followed };
        if !is_file(&shown.name) {
            self.process.descriptors.remove(&fd);
            return None;
        }
        let is_shown = |open: &Shared| {
            let Open { file, path, .. } = &*open.borrow();
            let has_name =
                if shown.is_removed { self.names.is_nameless(*file) } else { self.names.is(&shown.name, *file) };
            *path == shown.name || has_name
        };
        if let Some(open) = followed.filter(is_shown) {
            return Some(open);
        }
        let file = if shown.is_removed { self.names.nameless() } else { self.names.number(&shown.name) };
        let open = Rc::new(RefCell::new(Open { file, path: shown.name, offset: 0, is_append: false }));
        self.process.descriptors.insert(fd, Descriptor { open: open.clone(), is_private: false });
        Some(open)
    }

    /// Forgets the descriptors that a call returns in an argument: they are not of files.
    fn forget(&mut self, at: usize) {
        let given: Vec<i64> =
            self.arg(at).trim_start_matches('[').split(',').filter_map(|fd| number(fd.trim())).collect();
        given.iter().for_each(|fd| drop(self.process.descriptors.remove(fd)));
    }

    fn close_range(&mut self) {
        // The highest number means all above; strace shows it in several ways.
        let (first, last) = (self.number(0), number(self.arg(1)).unwrap_or(i64::MAX));
        let is_kept = self.arg(2).contains("CLOSE_RANGE_CLOEXEC");
        self.process.descriptors.retain(|fd, descriptor| {
            let is_inside = first <= *fd && *fd <= last;
            descriptor.is_private |= is_inside;
            is_kept || !is_inside
        });
    }

    fn open(&mut self, folder: Option<usize>, name: usize, flags: usize, fd: i64) {
        // The old descriptor of this number is closed, even if the new one is not a file.
        self.process.descriptors.remove(&fd);
        let named = self.path(folder, name);
        let shown = annotation(self.call.result).filter(|shown| shown.name.starts_with(b"/"));
        let is_removed = shown.as_ref().is_some_and(|shown| shown.is_removed);
        let path = shown.map(|shown| shown.name).or(named);
        let Some(path) = path.filter(|path| is_file(path)) else { return };
        let flags = self.arg(flags).to_owned();
        let is_new = flags.contains("O_TRUNC") || self.call.name == "creat";
        // A file that is made without a name is shown under its folder's.
        let is_nameless = is_removed || flags.contains("O_TMPFILE");
        let file = if is_nameless { self.names.nameless() } else { self.names.number(&path) };
        if is_new && self.names.len(file) > 0 {
            self.deeds.push((file, Deed::Delete));
            self.names.cut(file, 0);
        }
        let open = Rc::new(RefCell::new(Open { file, path, offset: 0, is_append: flags.contains("O_APPEND") }));
        self.process.descriptors.insert(fd, Descriptor { open, is_private: flags.contains("O_CLOEXEC") });
    }

    /// Records a read or write: at the offset in an argument, or where the last one ended.
    fn transfer(&mut self, fd: usize, offset: Option<usize>, bytes: u64, is_write: bool) {
        let Some(open) = self.opened(fd) else { return };
        let open = &mut *open.borrow_mut();
        let at = match offset.map(|at| self.number(at)) {
            Some(at) => match u64::try_from(at) {
                Ok(at) => at,
                Err(_) => return,
            },
            None if is_write && open.is_append => self.names.len(open.file),
            None => open.offset,
        };
        let Some(end) = at.checked_add(bytes) else { return };
        if offset.is_none() {
            open.offset = end;
        }
        self.done(open.file, at, bytes, is_write);
    }

    /// As [`transfer`](Self::transfer), but the argument has the offset in brackets, or is `NULL`.
    fn copy(&mut self, fd: usize, offset: usize, bytes: u64, is_write: bool) {
        let given = self.arg(offset).trim_start_matches('[').to_owned();
        match number(&given).and_then(|at| u64::try_from(at).ok()) {
            None => self.transfer(fd, None, bytes, is_write),
            Some(at) => {
                let Some(open) = self.opened(fd) else { return };
                let file = open.borrow().file;
                self.done(file, at, bytes, is_write);
            }
        }
    }

    fn done(&mut self, file: u64, offset: u64, len: u64, is_write: bool) {
        let Some(end) = offset.checked_add(len).filter(|_| len > 0) else { return };
        self.names.reach(file, end);
        self.deeds.push(match is_write {
            true => (file, Deed::Write { offset, len }),
            false => (file, Deed::Read { offset, len }),
        });
    }

    fn map(&mut self) {
        if self.arg(3).contains("MAP_ANONYMOUS") {
            return;
        }
        let (len, offset) = (u64::try_from(self.number(1)), u64::try_from(self.number(5)));
        if let (Ok(len), Ok(offset), Some(open)) = (len, offset, self.opened(4)) {
            let file = open.borrow().file;
            // Maps go to the end of a page; files do not. So a map does not change the known length
            // of the file.
            if let Some(end) = offset.checked_add(len).filter(|_| len > 0) {
                let fresh = self.process.map(file, offset, end);
                self.deeds
                    .extend(fresh.iter().map(|(start, end)| (file, Deed::Read { offset: *start, len: end - start })));
            }
        }
    }

    fn seek(&mut self, at: u64) {
        // `_llseek` returns zero and has the new position in an argument.
        let at = match self.call.name {
            "_llseek" => number(self.arg(2).trim_start_matches('[')).and_then(|at| u64::try_from(at).ok()),
            _ => Some(at),
        };
        if let (Some(at), Some(open)) = (at, self.opened(0)) {
            open.borrow_mut().offset = at;
        }
    }

    fn duplicate(&mut self, fd: i64, is_private: bool) {
        match self.opened(0) {
            Some(open) => drop(self.process.descriptors.insert(fd, Descriptor { open, is_private })),
            None => drop(self.process.descriptors.remove(&fd)),
        }
    }

    fn remove(&mut self, folder: Option<usize>, name: usize) {
        if self.arg(name + 1).contains("AT_REMOVEDIR") {
            return;
        }
        if let Some(path) = self.path(folder, name) {
            // The removal counts even if the file was not used before.
            self.names.number(&path);
            let gone = self.names.remove(&path);
            self.deeds.extend(gone.map(|file| (file, Deed::Delete)));
        }
    }

    fn rename(&mut self, from: (Option<usize>, usize), to: (Option<usize>, usize)) {
        let (Some(from), Some(to)) = (self.path(from.0, from.1), self.path(to.0, to.1)) else { return };
        if self.arg(4).contains("RENAME_EXCHANGE") {
            let other = [to.as_slice(), b"\0"].concat();
            self.names.rename(&to, &other);
            self.names.rename(&from, &to);
            self.names.rename(&other, &from);
            return;
        }
        let gone = self.names.rename(&from, &to);
        self.deeds.extend(gone.map(|file| (file, Deed::Delete)));
    }

    fn link(&mut self, from: (Option<usize>, usize), to: (Option<usize>, usize)) {
        if let (Some(from), Some(to)) = (self.path(from.0, from.1), self.path(to.0, to.1)) {
            self.names.link(&from, &to);
        }
    }

    fn truncate(&mut self, file: u64) {
        let Ok(len) = u64::try_from(self.number(1)) else { return };
        if len == 0 && self.names.len(file) > 0 {
            self.deeds.push((file, Deed::Delete));
        }
        self.names.cut(file, len);
    }
}
