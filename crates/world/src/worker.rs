//! A worker: it does one operation after the other, beside other workers that use the same files.

use crate::operation::{Generator, user};
use crate::session::{Seen, Session};
use host::Clock;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use types::FsError;
use vfs::fs::FileSystem;

/// Virtual time after which an operation counts as hanging.
const OPERATION_TIME_MAX: Duration = Duration::from_secs(600);

/// What all workers of a world share.
#[derive(Default)]
pub struct Shared {
    /// Operations so far.
    pub operations: u64,
    /// Operations refused for want of space.
    pub refused_space: u64,
    /// Operations refused for want of a right.
    pub refused_right: u64,
    /// Requests during which other workers changed something.
    pub overlaps: u64,
    /// Faults of stores.
    pub faults: u64,
    /// The first wrong thing that was seen.
    pub failure: Option<String>,
    /// Print every operation.
    pub verbose: bool,
}

/// A worker, which outlives the machines it works on.
pub struct Worker {
    /// It chooses the operations.
    pub generator: Generator,
    /// The number of its next operation.
    pub number: u64,
}

/// A worker, with the state that all workers share.
#[derive(Clone)]
pub struct Desk {
    /// The worker.
    pub worker: Arc<Mutex<Worker>>,
    /// Its index among the workers.
    pub index: usize,
    /// The shared state.
    pub shared: Arc<Mutex<Shared>>,
}

impl Desk {
    /// Does `count` operations, or fewer if something wrong was seen.
    pub async fn work(self, fs: Arc<dyn FileSystem>, clock: Arc<dyn Clock>, count: u64) {
        let mut session = Session::new(fs);
        for _ in 0..count {
            if self.shared.lock().failure.is_some() {
                return;
            }
            let (pause, by, number, operation) = {
                let mut worker = self.worker.lock();
                worker.number += 1;
                let (pause, by) = (worker.pause(), worker.generator.choose_user());
                (pause, by, worker.number - 1, worker.generator.choose())
            };
            if !pause.is_zero() {
                clock.sleep(pause).await;
            }
            self.shared.lock().operations += 1;
            self.say(&*clock, || format!("{number} by user {by}: {operation:?}"));
            let seen = host::timeout(&*clock, OPERATION_TIME_MAX, session.apply(&user(by), &operation)).await;
            let mut shared = self.shared.lock();
            match &seen {
                Ok(Err(FsError::NoSpace)) => shared.refused_space += 1,
                Ok(Err(FsError::AccessDenied | FsError::NotPermitted)) => shared.refused_right += 1,
                Ok(Ok(Seen::Skipped)) => self.worker.lock().generator.want_open_files(),
                Ok(_) => {}
                Err(_) => {
                    let text = format!("worker {}: operation {number} hangs: {operation:?}", self.index);
                    shared.failure.get_or_insert(text);
                    return;
                }
            }
            drop(shared);
            self.say(&*clock, || format!("{number} -> {seen:?}"));
        }
    }

    fn say(&self, clock: &dyn Clock, text: impl FnOnce() -> String) {
        if self.shared.lock().verbose {
            println!("{:>12?} w{} {}", clock.now(), self.index, text());
        }
    }
}

impl Worker {
    /// How long to wait before the next operation: mostly not at all, sometimes long enough for
    /// background work.
    fn pause(&self) -> Duration {
        match self.generator.below(40) {
            0 => Duration::from_millis(self.generator.below(8000)),
            1..8 => Duration::from_micros(self.generator.below(5000)),
            _ => Duration::ZERO,
        }
    }
}
