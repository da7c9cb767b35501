//! Traces from what `strace -f` shows of programs, with times: `strace -f -y -ttt -e trace=file,desc,process -o FILE PROGRAM`.
//!
//! - `line`: one line; `process`: what processes have open, and the names of files.
//! - Here: what calls do.
//!
//! Descriptors are followed from where they are opened through copies, forks and new programs; what is done with one that was not seen to be opened counts only
//! if strace shows its name (`-y`), which also tells in which folder a program begins; a name that is shown counts for more than what was followed. What is mapped counts as read, once
//! for each program that runs. A file that is opened to be emptied, or emptied, is removed and goes on under its number. All
//! processes are one client. What is below /dev, /proc, /sys and /run are no files; pipes and sockets have no names.

mod line;
mod process;

use super::{ImportError, Lines, time_us};
use crate::{Deed, Record};
use line::{Call, Event, annotation, call, number, string};
use process::{Descriptor, Names, Open, Process, Shared, is_file};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io::BufRead;
use std::rc::Rc;

/// Stamps of at least so many seconds are not counted from the line before.
const SINCE_1970_S: u64 = 100_000_000;
const DAY_US: u64 = 86_400_000_000;
/// A clock that is set back by no more than this stands still.
const BACK_US_MAX: u64 = 1_000_000;
/// Whose arguments are no names but `AT_FDCWD` and a name.
const HERE: &str = "AT_FDCWD";

/// Reads what strace has shown: an iterator of records of client 0.
#[derive(Debug)]
pub struct Strace<R> {
    lines: Lines<R>,
    clock: Clock,
    processes: HashMap<u32, Rc<RefCell<Process>>>,
    /// First parts of calls.
    unfinished: HashMap<u32, String>,
    /// Who made the call that strace itself has just interrupted.
    interrupted: Option<u32>,
    names: Names,
    /// What the last line did.
    ready: VecDeque<Record>,
    begun: bool,
    ended: bool,
}

impl<R: BufRead> Strace<R> {
    /// Begins to read.
    pub fn new(from: R) -> Strace<R> {
        Strace {
            lines: Lines::new(from),
            clock: Clock::default(),
            processes: HashMap::new(),
            unfinished: HashMap::new(),
            interrupted: None,
            names: Names::default(),
            ready: VecDeque::new(),
            begun: false,
            ended: false,
        }
    }

    fn record(&mut self) -> Result<Option<Record>, ImportError> {
        while self.ready.is_empty() {
            let Some(text) = self.lines.next()? else {
                return self.begun.then_some(None).ok_or(ImportError::Empty);
            };
            self.line(&text).map_err(|what| self.lines.fault(what))?;
        }
        Ok(self.ready.pop_front())
    }

    fn line(&mut self, text: &str) -> Result<(), String> {
        let Some(line) = line::parse(text) else {
            // It may be the rest of that call.
            let part = self.interrupted.take().and_then(|pid| Some((pid, self.unfinished.remove(&pid)?)));
            let (pid, part) = part.ok_or("not a line of strace's")?;
            return self.whole(&(part + text), pid);
        };
        if let Event::Attached(child, part) = line.event {
            if let Some(part) = part {
                self.name_first(line.pid);
                self.unfinished.insert(line.pid, part.to_owned());
                self.interrupted = Some(line.pid);
            }
            self.process(child);
            return Ok(());
        }
        self.name_first(line.pid);
        if line.stamp.is_empty() {
            return match line.event {
                Event::Call(_) | Event::Resumed(..) => Err("it has no time: run strace with -ttt".into()),
                _ => Ok(()),
            };
        }
        self.clock.at(line.stamp)?;
        self.begun = true;
        self.interrupted = None;
        let whole = match line.event {
            Event::Call(text) => match text.trim_end().strip_suffix(line::UNFINISHED) {
                Some(part) => {
                    self.unfinished.insert(line.pid, part.to_owned());
                    return Ok(());
                }
                None => text.to_owned(),
            },
            Event::Resumed(name, rest) => match self.unfinished.remove(&line.pid) {
                Some(part) if part.starts_with(name) => part + rest,
                // Its first part was before strace came.
                _ => return Ok(()),
            },
            Event::Exited => {
                self.processes.remove(&line.pid);
                self.unfinished.remove(&line.pid);
                return Ok(());
            }
            Event::Attached(..) | Event::Other => return Ok(()),
        };
        self.whole(&whole, line.pid)
    }

    /// A whole call of a process.
    fn whole(&mut self, text: &str, pid: u32) -> Result<(), String> {
        let call = call(text).ok_or("a call that breaks off")?;
        let process = self.process(pid);
        let time_us = self.clock.now_us;
        for (file, deed) in self.calls(&process, &call, pid) {
            self.ready.push_back(Record { time_us, client: 0, file, deed });
        }
        Ok(())
    }

    /// Where there is one process, strace does not say its number. Once there are more it does, and says which are new: the first one is the other.
    fn name_first(&mut self, pid: u32) {
        if pid == 0 || self.processes.contains_key(&pid) {
            return;
        }
        if let Some(first) = self.processes.remove(&0) {
            self.processes.insert(pid, first);
            if let Some(part) = self.unfinished.remove(&0) {
                self.unfinished.insert(pid, part);
            }
        }
    }

    fn process(&mut self, pid: u32) -> Rc<RefCell<Process>> {
        if let Some(process) = self.processes.get(&pid) {
            return process.clone();
        }
        // It runs before the call has returned that has made it.
        let makers = self.unfinished.iter().filter(|(_, part)| is_fork(part.split('(').next().unwrap_or_default()));
        let maker = makers.max_by_key(|(pid, _)| **pid).map(|(pid, part)| (*pid, is_shared(part)));
        let process = match maker.and_then(|(maker, is_shared)| Some((self.processes.get(&maker)?, is_shared))) {
            Some((maker, true)) => maker.clone(),
            Some((maker, false)) => Rc::new(RefCell::new(maker.borrow().clone())),
            None => Rc::default(),
        };
        self.processes.insert(pid, process.clone());
        process
    }

    /// What a call does to files.
    fn calls(&mut self, process: &Rc<RefCell<Process>>, call: &Call<'_>, pid: u32) -> Vec<(u64, Deed)> {
        let Some(result) = number(call.result).filter(|result| *result >= 0) else { return Vec::new() };
        if is_fork(call.name) {
            if let Ok(child) = u32::try_from(result)
                && child != pid
                && !self.processes.contains_key(&child)
            {
                let child_process = match call.args.iter().any(|arg| is_shared(arg)) {
                    true => process.clone(),
                    false => Rc::new(RefCell::new(process.borrow().clone())),
                };
                self.processes.insert(child, child_process);
            }
            return Vec::new();
        }
        if call.name.starts_with("exec") {
            // Threads that shared the descriptors with it are gone.
            let mut own = process.borrow().clone();
            own.descriptors.retain(|_, descriptor| !descriptor.is_private);
            own.mapped.clear();
            self.processes.insert(pid, Rc::new(RefCell::new(own)));
            return Vec::new();
        }
        let mut process = process.clone();
        if call.args.iter().any(|arg| is_unshared(call.name, arg)) {
            let own = Rc::new(RefCell::new(process.borrow().clone()));
            process = own.clone();
            self.processes.insert(pid, own);
        }
        let process = &mut *process.borrow_mut();
        let mut doing = Doing { names: &mut self.names, process, call, deeds: Vec::new() };
        doing.run(result);
        doing.deeds
    }
}

impl<R: BufRead> Iterator for Strace<R> {
    type Item = Result<Record, ImportError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let record = self.record().transpose();
        self.ended = !matches!(record, Some(Ok(_)));
        record
    }
}

fn is_fork(name: &str) -> bool {
    matches!(name, "fork" | "vfork" | "clone" | "clone2" | "clone3" | "clone_into_cgroup")
}

/// Whether the new one shares its maker's descriptors.
fn is_shared(flags: &str) -> bool {
    flags.contains("CLONE_FILES")
}

/// Whether it has descriptors of its own from now on.
fn is_unshared(name: &str, flags: &str) -> bool {
    name == "unshare" && is_shared(flags) || name == "close_range" && flags.contains("CLOSE_RANGE_UNSHARE")
}

/// Whether a call gives a new descriptor that is of no file with a name.
fn is_nameless(name: &str) -> bool {
    matches!(
        name,
        "socket"
            | "accept"
            | "accept4"
            | "eventfd"
            | "eventfd2"
            | "epoll_create"
            | "epoll_create1"
            | "signalfd"
            | "signalfd4"
    ) || matches!(
        name,
        "timerfd_create"
            | "inotify_init"
            | "inotify_init1"
            | "fanotify_init"
            | "memfd_create"
            | "memfd_secret"
            | "userfaultfd"
    ) || matches!(
        name,
        "pidfd_open"
            | "pidfd_getfd"
            | "perf_event_open"
            | "io_uring_setup"
            | "bpf"
            | "mq_open"
            | "fsopen"
            | "fsmount"
            | "fspick"
    ) || matches!(name, "open_tree" | "open_by_handle_at" | "landlock_create_ruleset")
}

/// What a line's time says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stamp {
    /// The time of day.
    OfDay,
    /// How long after 1970.
    Since1970,
    /// How long after the line before it.
    SinceLast,
}

/// Times, in whichever of strace's ways, which is the same for all lines.
#[derive(Debug, Default)]
struct Clock {
    kind: Option<Stamp>,
    begun_us: Option<u64>,
    /// What the last line's time was as it was written, and since the beginning.
    stamp_us: u64,
    now_us: u64,
}

impl Clock {
    /// The time since the first line.
    fn at(&mut self, stamp: &str) -> Result<u64, String> {
        let wrong = || format!("not a time: {stamp}");
        let (us, kind) = match stamp.split(':').collect::<Vec<_>>()[..] {
            [hours, minutes, seconds] => {
                let part = |text: &str, most: u64| time_us(text).filter(|us| *us < most * 1_000_000);
                let (hours, minutes) = (part(hours, 24), part(minutes, 60));
                let of_day = hours.zip(minutes).zip(part(seconds, 61));
                let ((hours, minutes), seconds) = of_day.ok_or_else(wrong)?;
                let mut us = hours * 3600 + minutes * 60 + seconds;
                // Each midnight begins a day.
                while self.begun_us.is_some() && us + DAY_US / 2 < self.stamp_us {
                    us += DAY_US;
                }
                (us, Stamp::OfDay)
            }
            [seconds] => {
                let us = time_us(seconds).ok_or_else(wrong)?;
                (us, if us < SINCE_1970_S * 1_000_000 { Stamp::SinceLast } else { Stamp::Since1970 })
            }
            _ => return Err(wrong()),
        };
        if *self.kind.get_or_insert(kind) != kind {
            return Err(format!("{stamp} is another kind of time than the first line's"));
        }
        if kind == Stamp::SinceLast {
            // From the line before it; the first one has none.
            if self.begun_us.replace(0).is_some() {
                self.now_us = self.now_us.checked_add(us).ok_or_else(wrong)?;
            }
            return Ok(self.now_us);
        }
        let begun_us = *self.begun_us.get_or_insert(us);
        if us + BACK_US_MAX < self.stamp_us {
            return Err("earlier than the line before it: sort the lines by time".into());
        }
        self.stamp_us = us.max(self.stamp_us);
        self.now_us = us.saturating_sub(begun_us).max(self.now_us);
        Ok(self.now_us)
    }
}

/// One call of a process.
struct Doing<'a> {
    names: &'a mut Names,
    process: &'a mut Process,
    call: &'a Call<'a>,
    deeds: Vec<(u64, Deed)>,
}

impl Doing<'_> {
    fn run(&mut self, result: i64) {
        let (bytes, name) = (result.unsigned_abs(), self.call.name);
        match name {
            "open" => self.open(None, 0, 1, result),
            "openat" | "openat2" => self.open(Some(0), 1, 2, result),
            "creat" => self.open(None, 0, usize::MAX, result),
            // Where the last ones ended.
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
            _ if is_nameless(name) => drop(self.process.descriptors.remove(&result)),
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

    /// A name among the arguments, from the root; of the folder that is another argument.
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

    /// The same, if it can be that of a file.
    fn path(&mut self, folder: Option<usize>, at: usize) -> Option<Vec<u8>> {
        self.name(folder, at).filter(|path| is_file(path))
    }

    /// The name of the folder that a descriptor means which is an argument.
    fn folder(&self, at: usize) -> Option<Vec<u8>> {
        let shown = annotation(self.arg(at)).map(|shown| shown.name).filter(|name| name.starts_with(b"/"));
        let followed = || Some(self.process.descriptors.get(&self.number(at))?.open.borrow().path.clone());
        shown.or_else(followed)
    }

    /// What a descriptor means that is an argument: as it is shown, if that is something else than what was followed. Nothing if it is no file.
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

    /// The descriptors that a call gives in an argument are of no files.
    fn forget(&mut self, at: usize) {
        let given: Vec<i64> =
            self.arg(at).trim_start_matches('[').split(',').filter_map(|fd| number(fd.trim())).collect();
        given.iter().for_each(|fd| drop(self.process.descriptors.remove(fd)));
    }

    fn close_range(&mut self) {
        // All above is the highest number, which strace shows in several ways.
        let (first, last) = (self.number(0), number(self.arg(1)).unwrap_or(i64::MAX));
        let is_kept = self.arg(2).contains("CLOSE_RANGE_CLOEXEC");
        self.process.descriptors.retain(|fd, descriptor| {
            let is_inside = first <= *fd && *fd <= last;
            descriptor.is_private |= is_inside;
            is_kept || !is_inside
        });
    }

    fn open(&mut self, folder: Option<usize>, name: usize, flags: usize, fd: i64) {
        // Whatever it was is closed, even if what it is now is no file.
        self.process.descriptors.remove(&fd);
        let named = self.path(folder, name);
        let shown = annotation(self.call.result).filter(|shown| shown.name.starts_with(b"/"));
        let is_removed = shown.as_ref().is_some_and(|shown| shown.is_removed);
        let path = shown.map(|shown| shown.name).or(named);
        let Some(path) = path.filter(|path| is_file(path)) else { return };
        let flags = self.arg(flags).to_owned();
        let is_new = flags.contains("O_TRUNC") || self.call.name == "creat";
        // What is made without a name is called by its folder's.
        let is_nameless = is_removed || flags.contains("O_TMPFILE");
        let file = if is_nameless { self.names.nameless() } else { self.names.number(&path) };
        if is_new && self.names.len(file) > 0 {
            self.deeds.push((file, Deed::Delete));
            self.names.cut(file, 0);
        }
        let open = Rc::new(RefCell::new(Open { file, path, offset: 0, is_append: flags.contains("O_APPEND") }));
        self.process.descriptors.insert(fd, Descriptor { open, is_private: flags.contains("O_CLOEXEC") });
    }

    /// Bytes are read or written: at an offset that is an argument, or where the last ones ended.
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

    /// As `transfer`, where an argument has the offset in brackets, or is `NULL`.
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
            // Maps go to the end of a page; files do not. What is known of the file is not changed by it.
            if let Some(end) = offset.checked_add(len).filter(|_| len > 0) {
                let fresh = self.process.map(file, offset, end);
                self.deeds
                    .extend(fresh.iter().map(|(start, end)| (file, Deed::Read { offset: *start, len: end - start })));
            }
        }
    }

    fn seek(&mut self, at: u64) {
        // `_llseek` has where it is now as an argument, and gives nought.
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
            // It is removed even if nothing was done with it before.
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

#[cfg(test)]
mod tests;
