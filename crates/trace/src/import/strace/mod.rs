//! Traces from what `strace -f` shows of programs, with times: `strace -f -y -ttt -e
//! trace=file,desc,process -o FILE PROGRAM`.
//!
//! - `line`: one line; `clock`: times; `process`: what processes have open, and the names of files;
//!   `calls`: what calls do to these.
//! - Here: whose calls they are.
//!
//! Descriptors are followed from where they are opened through copies, forks and new programs; what
//! is done with one that was not seen to be opened counts only if strace shows its name (`-y`),
//! which also tells in which folder a program begins; a name that is shown counts for more than
//! what was followed. What is mapped counts as read, once for each program that runs. A file that
//! is opened to be emptied, or emptied, is removed and goes on under its number. All processes are
//! one client. What is below /dev, /proc, /sys and /run are no files; pipes and sockets have no
//! names.

mod calls;
mod clock;
mod line;
mod process;

use super::{ImportError, Lines};
use crate::{Deed, Record};
use calls::Doing;
use clock::Clock;
use line::{Call, Event, call, number};
use process::{Names, Process};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io::BufRead;
use std::rc::Rc;

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

    /// When the first line was, in microseconds since 1970; nothing before it was read, or if times
    /// are not counted from there.
    pub fn begun_us(&self) -> Option<u64> {
        self.clock.begun_us()
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

    /// Where there is one process, strace does not say its number. Once there are more it does, and
    /// says which are new: the first one is the other.
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

#[cfg(test)]
mod tests;
