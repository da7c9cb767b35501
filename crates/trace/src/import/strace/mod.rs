//! Traces from the output of `strace -f` with times: `strace -f -y -ttt -e trace=file,desc,process
//! -o FILE PROGRAM`.
//!
//! - `line`: one line; `clock`: times; `process`: open descriptors, and names of files; `calls`:
//!   what calls do to these.
//! - This module: which process made a call.
//!
//! A descriptor is followed from its open through copies, forks and new programs. A descriptor
//! whose open was not seen counts only if strace shows its name (`-y`), which also tells in which
//! folder a program begins. A name that strace shows counts for more than the followed one. A
//! mapped range counts as read, once for each program that runs. Emptying a file, or opening it to
//! be emptied, removes it, and it keeps its number. All processes are one client. Names below /dev,
//! /proc, /sys and /run are not files; pipes and sockets have no names.

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
use thiserror::Error;

/// What is wrong with a line of strace's output.
#[derive(Debug, Error)]
pub enum StraceError {
    /// The line is not one of strace's.
    #[error("not a line of strace")]
    NotStrace,
    /// The call on it has no end.
    #[error("the call breaks off")]
    CallBreaksOff,
    /// It has no time.
    #[error("it has no time: run strace with -ttt")]
    NoTime,
    /// This text is in the place of its time.
    #[error("not a time: {0}")]
    NotTime(String),
    /// This time has another format than the first line's.
    #[error("{0} is another kind of time than the first line's")]
    OtherTime(String),
    /// Its time is earlier than that of the line before it.
    #[error("earlier than the line before it: sort the lines by time")]
    Earlier,
}

/// Reads strace's output: an iterator over records of client 0.
#[derive(Debug)]
pub struct Strace<R> {
    lines: Lines<R>,
    clock: Clock,
    processes: HashMap<u32, Rc<RefCell<Process>>>,
    /// First parts of unfinished calls, by process.
    unfinished: HashMap<u32, String>,
    /// The process whose call strace's own message has just interrupted.
    interrupted: Option<u32>,
    names: Names,
    /// Records of the last line.
    ready: VecDeque<Record>,
    begun: bool,
    ended: bool,
}

impl<R: BufRead> Strace<R> {
    /// Starts reading.
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

    /// The time of the first line, in microseconds since 1970; `None` before it was read, or if
    /// times do not count from 1970.
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

    fn line(&mut self, text: &str) -> Result<(), StraceError> {
        let Some(line) = line::parse(text) else {
            // The line may be the rest of that call.
            let part = self.interrupted.take().and_then(|pid| Some((pid, self.unfinished.remove(&pid)?)));
            let (pid, part) = part.ok_or(StraceError::NotStrace)?;
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
                Event::Call(_) | Event::Resumed(..) => Err(StraceError::NoTime),
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
                // Its first part came before strace attached.
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

    /// Handles a whole call of a process.
    fn whole(&mut self, text: &str, pid: u32) -> Result<(), StraceError> {
        let call = call(text).ok_or(StraceError::CallBreaksOff)?;
        let process = self.process(pid);
        let time_us = self.clock.now_us;
        for (file, deed) in self.calls(&process, &call, pid) {
            self.ready.push_back(Record { time_us, client: 0, file, deed });
        }
        Ok(())
    }

    /// Gives the first process its number. With one process, strace shows no number. Once there are
    /// more, it shows numbers and says which processes are new: the first one is the one it did not
    /// call new.
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
        // The new process runs before the call that made it has returned.
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

    /// The records of a call.
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
            // The threads that shared its descriptors are gone.
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

/// True if a new process shares its maker's descriptors.
fn is_shared(flags: &str) -> bool {
    flags.contains("CLONE_FILES")
}

/// True if the process has its own descriptors after this call.
fn is_unshared(name: &str, flags: &str) -> bool {
    name == "unshare" && is_shared(flags) || name == "close_range" && flags.contains("CLOSE_RANGE_UNSHARE")
}

#[cfg(test)]
mod tests;
