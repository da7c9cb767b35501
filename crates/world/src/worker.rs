//! A worker: does one operation after the other on the file system and on the model, and compares.

use crate::history::{Done, History};
use crate::operation::{Generator, Operation};
use crate::session::{Seen, Session};
use host::Clock;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use types::FsError;
use vfs::fs::FileSystem;

/// Virtual time after which an operation is taken to hang.
const OPERATION_TIME_MAX: Duration = Duration::from_secs(600);

/// What all workers of a world share.
#[derive(Default)]
pub struct Shared {
    /// Beginnings and ends so far.
    pub events: u64,
    /// Operations so far.
    pub operations: u64,
    /// Of them: refused for want of space.
    pub refused_space: u64,
    /// Times something was done to a store.
    pub faults: u64,
    /// Set when a worker saw something wrong.
    pub failure: Option<String>,
    /// Prints what is done.
    pub verbose: bool,
}

/// A worker, which outlives the machines it works on.
pub struct Worker {
    /// What it did.
    pub history: History,
    /// What it will do.
    pub generator: Generator,
    /// The number of its next operation.
    pub number: u64,
}

/// A worker and the others.
#[derive(Clone)]
pub struct Desk {
    /// The worker.
    pub worker: Arc<Mutex<Worker>>,
    /// Its place among the others.
    pub index: usize,
    /// All of them, this one too.
    pub all: Arc<Vec<Arc<Mutex<Worker>>>>,
    /// What they share.
    pub shared: Arc<Mutex<Shared>>,
}

impl Desk {
    /// Does `count` operations, or fewer if somebody saw something wrong.
    pub async fn work(self, fs: Arc<dyn FileSystem>, clock: Arc<dyn Clock>, count: u64) {
        let (top, model) = {
            let worker = self.worker.lock();
            (worker.history.top.clone(), worker.history.base.snapshot())
        };
        let mut real = Session::new(fs, top.clone());
        let mut model = Session::new(Arc::new(model), top);
        for _ in 0..count {
            if self.shared.lock().failure.is_some() {
                return;
            }
            let pause = self.worker.lock().pause();
            if !pause.is_zero() {
                clock.sleep(pause).await;
            }
            let (number, operation) = self.begin();
            let seen = host::timeout(&*clock, OPERATION_TIME_MAX, real.apply(&operation)).await;
            let seen = match seen {
                Ok(seen) => seen,
                Err(_) => {
                    self.fail(format!("operation {number} hangs: {operation:?}"));
                    return;
                }
            };
            if self.shared.lock().verbose {
                println!("{:>12?} w{} {number}: {operation:?} -> {seen:?}", clock.now(), self.index);
            }
            if seen == Seen::Refused(FsError::NoSpace) {
                self.shared.lock().refused_space += 1;
                self.worker.lock().history.done.pop();
                continue;
            }
            let operation = as_far_as(operation, &seen);
            let expected = model.apply(&operation).await;
            if seen != expected {
                self.fail(format!("operation {number}, {operation:?}, answered {seen:?}, the model {expected:?}"));
                return;
            }
            self.end(&operation, &seen);
        }
    }

    fn fail(&self, text: String) {
        let text = format!("worker {}: {text}", self.index);
        self.shared.lock().failure.get_or_insert(text);
    }

    fn begin(&self) -> (u64, Operation) {
        let mut worker = self.worker.lock();
        let operation = worker.generator.choose();
        let number = worker.number;
        worker.number += 1;
        let mut shared = self.shared.lock();
        shared.events += 1;
        shared.operations += 1;
        let done = Done { operation: operation.clone(), began: shared.events, ended: None };
        worker.history.done.push(done);
        (number, operation)
    }

    fn end(&self, operation: &Operation, seen: &Seen) {
        let ended = {
            let mut shared = self.shared.lock();
            shared.events += 1;
            shared.events
        };
        let began = {
            let mut worker = self.worker.lock();
            let Some(done) = worker.history.done.last_mut() else { return };
            done.operation = operation.clone();
            done.ended = Some(ended);
            done.began
        };
        if operation.makes_durable() && *seen == Seen::Done {
            for worker in self.all.iter() {
                let history = &mut worker.lock().history;
                let before = history.done.partition_point(|d| d.ended.is_some_and(|ended| ended < began));
                history.durable = history.durable.max(before);
            }
        }
    }
}

/// A write or copy that went less far than it might is that shorter one.
fn as_far_as(operation: Operation, seen: &Seen) -> Operation {
    match (operation, seen) {
        (Operation::Write { slot, offset, len, fill }, Seen::Count(n)) if *n < len => {
            Operation::Write { slot, offset, len: *n, fill }
        }
        (operation, _) => operation,
    }
}

impl Worker {
    /// How long to wait before the next operation: mostly not at all, sometimes long enough for what happens by itself.
    fn pause(&self) -> Duration {
        match self.generator.below(40) {
            0 => Duration::from_millis(self.generator.below(8000)),
            1..8 => Duration::from_micros(self.generator.below(5000)),
            _ => Duration::ZERO,
        }
    }
}
