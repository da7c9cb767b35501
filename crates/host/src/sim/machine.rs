//! A simulated machine: a [`Host`] whose tasks all stop at once when it crashes.

use super::SimRandom;
use super::executor::{Sleep, World};
use crate::random::mix;
use crate::{Clock, Host, Random, Tasks};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{Notify, oneshot};
use types::{BoxFuture, Time};

/// The wall-clock time at which a world begins: 2026-01-01.
const WALL_START_SECONDS: i64 = 1_767_225_600;

/// The machine crashed before the work was done; how far it got is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("machine crashed")]
pub struct Crashed;

/// A machine from its start to its crash. Clones are the same machine.
#[derive(Clone)]
pub struct Machine(Arc<MachineState>);

pub(super) struct MachineState {
    pub id: u64,
    name: String,
    world: Arc<World>,
    random: Arc<SimRandom>,
    up: AtomicBool,
    paused: AtomicBool,
    polls: AtomicU64,
    /// The count of polls at which the machine crashes.
    crash_at: AtomicU64,
    crashed: Notify,
}

impl Machine {
    pub(super) fn new(world: Arc<World>, name: &str) -> Self {
        let id = world.new_id();
        Machine(Arc::new(MachineState {
            id,
            name: name.to_owned(),
            random: Arc::new(SimRandom::new(mix(world.seed ^ mix(id)))),
            world,
            up: AtomicBool::new(true),
            paused: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            crash_at: AtomicU64::new(u64::MAX),
            crashed: Notify::new(),
        }))
    }

    /// The host for roles on this machine. After a crash it ignores spawns.
    pub fn host(&self) -> Host {
        Host {
            clock: Arc::new(SimClock(self.0.world.clone())),
            tasks: Arc::new(SimTasks(self.0.clone())),
            random: self.0.random.clone(),
        }
    }

    /// The name given to [`Sim::machine`](super::Sim::machine).
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// False once it has crashed.
    pub fn is_up(&self) -> bool {
        self.0.is_up()
    }

    /// Stops the machine's processes as `kill -9` does: all tasks, and disk operations under way,
    /// end at their current await. Its disks keep what was written; for a loss of power call
    /// [`SimDisk::power_loss`](super::SimDisk::power_loss) next.
    pub fn crash(&self) {
        self.0.crash();
    }

    /// Stops the machine's processes as `SIGSTOP` does, or lets them go on: meanwhile no task is
    /// polled, and disk operations under way stay as they are.
    pub fn pause(&self, is_paused: bool) {
        self.0.paused.store(is_paused, Ordering::Relaxed);
        if !is_paused {
            self.0.world.resume_tasks_of(self.0.id);
        }
    }

    /// True while it is [paused](Self::pause).
    pub fn is_paused(&self) -> bool {
        self.0.is_paused()
    }

    /// Crashes the machine after its tasks, including the steps of its disk operations, have been
    /// polled `polls` more times.
    pub fn crash_after(&self, polls: u64) {
        let at = self.0.polls.load(Ordering::Relaxed).saturating_add(polls);
        self.0.crash_at.store(at, Ordering::Relaxed);
    }

    /// How often tasks of this machine have been polled: the range for sweeps of
    /// [`crash_after`](Self::crash_after).
    pub fn polls(&self) -> u64 {
        self.0.polls.load(Ordering::Relaxed)
    }

    /// Completes when the machine is down.
    pub fn crashed(&self) -> BoxFuture<()> {
        let state = self.0.clone();
        Box::pin(async move {
            let crashed = state.crashed.notified();
            if state.is_up() {
                crashed.await;
            }
        })
    }

    /// Runs `work` as a task of this machine, from now on, even if the returned future is not
    /// polled.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> BoxFuture<Result<T, Crashed>> {
        let (answer, answered) = oneshot::channel();
        let task = async move {
            // The caller may have stopped waiting.
            let _ = answer.send(work.await);
        };
        self.0.world.spawn(&self.0, Box::pin(task));
        Box::pin(async move { answered.await.map_err(|_| Crashed) })
    }

    /// A seed for an object that belongs to this machine.
    pub(super) fn new_seed(&self) -> u64 {
        self.0.random.next_u64()
    }

    pub(super) fn sleep(&self, time: Duration) -> Sleep {
        Sleep::new(self.0.world.clone(), time)
    }
}

impl MachineState {
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    fn crash(&self) {
        if self.up.swap(false, Ordering::Relaxed) {
            self.world.drop_tasks_of(self.id);
            self.crashed.notify_waiters();
        }
    }

    pub fn count_poll(&self) {
        let polls = self.polls.fetch_add(1, Ordering::Relaxed) + 1;
        if polls >= self.crash_at.load(Ordering::Relaxed) {
            self.crash();
        }
    }
}

struct SimClock(Arc<World>);

impl Clock for SimClock {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn wall(&self) -> Time {
        let now = self.0.now();
        Time { sec: WALL_START_SECONDS + now.as_secs() as i64, nsec: now.subsec_nanos() }
    }

    fn sleep(&self, time: Duration) -> BoxFuture<()> {
        Box::pin(Sleep::new(self.0.clone(), time))
    }
}

struct SimTasks(Arc<MachineState>);

impl Tasks for SimTasks {
    fn spawn(&self, task: BoxFuture<()>) {
        self.0.world.spawn(&self.0, task);
    }
}
