//! The real machine: the system clocks, tokio for tasks and timers, folders on real disks.

mod disk;
mod syscall;
mod tasks;

pub use disk::{RealDisk, sync_count};
pub use syscall::random_u64 as random;
pub use tasks::TokioTasks;

use crate::{Clock, Host, Random, SplitMix64};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;
use types::{BoxFuture, Time};

/// The machine this process runs on; tasks and timers run on the runtime behind `handle`, which
/// must have its time driver enabled. Fails only if the operating system gives no random seed.
pub fn host(handle: Handle) -> io::Result<Host> {
    Ok(Host {
        clock: Arc::new(RealClock::new(handle.clone())),
        random: Arc::new(RealRandom::new()?),
        tasks: Arc::new(TokioTasks(handle)),
    })
}

/// The system's clocks, and tokio's timers.
pub struct RealClock {
    handle: Handle,
    /// The system's uptime when this clock started.
    start: Duration,
}

impl RealClock {
    /// A clock whose timers run on the runtime behind `handle`; [`now`](Clock::now) starts at 0.
    pub fn new(handle: Handle) -> Self {
        RealClock { handle, start: syscall::boot_time() }
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        syscall::boot_time().saturating_sub(self.start)
    }

    fn wall(&self) -> Time {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Time { sec: since.as_secs() as i64, nsec: since.subsec_nanos() },
            // A time before 1970: whole seconds are enough for a clock that is so wrong.
            Err(before) => Time { sec: -(before.duration().as_secs() as i64), nsec: 0 },
        }
    }

    fn sleep(&self, time: Duration) -> BoxFuture<()> {
        // The caller may be on a thread outside the runtime (a FUSE thread), and the timer must
        // find its driver.
        let _entered = self.handle.enter();
        Box::pin(tokio::time::sleep(time))
    }
}

/// Random numbers from the operating system, so that none predicts the next. If the system ever
/// fails, they come from a seed drawn at the start.
pub struct RealRandom(SplitMix64);

impl RealRandom {
    /// Asks the operating system for a seed.
    pub fn new() -> io::Result<Self> {
        Ok(RealRandom(SplitMix64::new(syscall::random_u64()?)))
    }
}

impl Random for RealRandom {
    fn next_u64(&self) -> u64 {
        syscall::random_u64().unwrap_or_else(|_| self.0.next_u64())
    }
}
