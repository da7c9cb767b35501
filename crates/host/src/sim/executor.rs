//! The executor: ready tasks in an order that the seed picks, and a heap of timers on virtual time.
//! Time passes only when no task is ready.
//!
//! The next task depends on the *set* of ready tasks, never on the order in which they were woken.
//! So code that wakes other tasks in an arbitrary order is still reproducible.

use super::digest::Digest;
use super::machine::{Machine, MachineState};
use crate::SplitMix64;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use types::BoxFuture;

/// Polls at one instant after which the world is taken to be spinning.
const POLLS_AT_ONE_INSTANT_MAX: u64 = 20_000_000;

/// The id of the future given to [`Sim::block_on`], which belongs to no machine.
const ROOT: u64 = 0;

/// A simulated world. Clones are the same world; when the last one is dropped, all its machines
/// stop. Only one thread at a time may drive it.
#[derive(Clone)]
pub struct Sim {
    pub(super) world: Arc<World>,
    _owner: Arc<Owner>,
}

impl Sim {
    /// An empty world at time 0, in which `seed` decides everything.
    pub fn new(seed: u64) -> Self {
        let world = Arc::new(World {
            seed,
            random: SplitMix64::new(seed),
            ready: Mutex::default(),
            state: Mutex::default(),
            driven: AtomicBool::new(false),
        });
        Sim { _owner: Arc::new(Owner(world.clone())), world }
    }

    /// The seed given to [`new`](Self::new).
    pub fn seed(&self) -> u64 {
        self.world.seed
    }

    /// Virtual time since the world began.
    pub fn now(&self) -> Duration {
        self.world.state.lock().now
    }

    /// A hash of all scheduling decisions, timers and disk operations (with their bytes) so far.
    /// Two runs of the same code under the same seed have equal digests at every point.
    pub fn digest(&self) -> u64 {
        self.world.state.lock().digest.value()
    }

    /// Adds a value that the test observed to the digest.
    pub fn note(&self, value: u64) {
        self.world.note(&[value]);
    }

    /// The running machine called `name`. If there is none, or it crashed, a new one without tasks.
    pub fn machine(&self, name: &str) -> Machine {
        self.world.machine(name)
    }

    /// Runs the world until `future` is done. `future` belongs to no machine, so it can crash them
    /// all.
    ///
    /// # Panics
    /// When nothing can happen any more and `future` still waits, when tasks spin without time
    /// passing, and when called from inside the world.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let _driving = self.world.drive();
        let mut future = pin!(future);
        let waker = self.world.waker(ROOT);
        let mut context = Context::from_waker(&waker);
        waker.wake_by_ref();
        loop {
            match self.world.turn(None) {
                Turn::Root => {
                    if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                        self.world.ready.lock().remove(&ROOT);
                        return output;
                    }
                }
                Turn::Task => {}
                Turn::Idle => panic!("stuck: no task is ready and no timer is set (seed {})", self.world.seed),
            }
        }
    }

    /// Runs the world until no task is ready and no timer is set; never returns if a task keeps a
    /// timer going.
    pub fn run_until_idle(&self) {
        let _driving = self.world.drive();
        while self.world.turn(None) != Turn::Idle {}
    }

    /// Runs the world for `time`; the clock then shows exactly that much more.
    pub fn run_for(&self, time: Duration) {
        let _driving = self.world.drive();
        let until = self.now() + time;
        while self.world.turn(Some(until)) != Turn::Idle {}
        self.world.state.lock().now = until;
    }
}

/// Stops the world when the last [`Sim`] is gone. Needed because tasks hold the world and the world
/// holds tasks.
struct Owner(Arc<World>);

impl Drop for Owner {
    fn drop(&mut self) {
        let machines = std::mem::take(&mut self.0.state.lock().machines);
        for machine in machines.into_values() {
            machine.crash();
        }
    }
}

/// What all parts of a world share. `ready` is apart from `state` and locked last, so that code can
/// wake tasks anywhere.
pub(super) struct World {
    pub seed: u64,
    random: SplitMix64,
    ready: Mutex<BTreeSet<u64>>,
    state: Mutex<State>,
    driven: AtomicBool,
}

#[derive(Default)]
struct State {
    now: Duration,
    digest: Digest,
    /// The last id of a task, timer, machine or disk: ids are never used twice.
    last_id: u64,
    tasks: BTreeMap<u64, Task>,
    timers: BTreeMap<(Duration, u64), Waker>,
    machines: BTreeMap<String, Machine>,
    /// The tasks that were to be polled while their machine is paused, by its id.
    held: BTreeMap<u64, BTreeSet<u64>>,
    polls_at_this_instant: u64,
}

struct Task {
    /// `None` while it is being polled.
    future: Option<BoxFuture<()>>,
    machine: Arc<MachineState>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Root,
    Task,
    Idle,
}

struct Driving<'a>(&'a World);

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        self.0.driven.store(false, Ordering::Relaxed);
    }
}

impl World {
    fn drive(&self) -> Driving<'_> {
        assert!(!self.driven.swap(true, Ordering::Relaxed), "the world is running already");
        Driving(self)
    }

    fn waker(self: &Arc<Self>, task: u64) -> Waker {
        Arc::new(TaskWaker { world: Arc::downgrade(self), task }).into()
    }

    /// Adds `values` to the digest.
    pub fn note(&self, values: &[u64]) {
        let digest = &mut self.state.lock().digest;
        values.iter().for_each(|value| digest.fold(*value));
    }

    pub fn now(&self) -> Duration {
        self.state.lock().now
    }

    /// An id that nothing else in this world has.
    pub fn new_id(&self) -> u64 {
        let mut state = self.state.lock();
        state.last_id += 1;
        state.last_id
    }

    fn machine(self: &Arc<Self>, name: &str) -> Machine {
        let running = self.state.lock().machines.get(name).cloned();
        match running {
            Some(machine) if machine.is_up() => machine,
            _ => {
                let machine = Machine::new(self.clone(), name);
                self.state.lock().machines.insert(name.to_owned(), machine.clone());
                machine
            }
        }
    }

    /// Adds a task; it is dropped instead if its machine is down.
    pub fn spawn(self: &Arc<Self>, machine: &Arc<MachineState>, future: BoxFuture<()>) {
        if !machine.is_up() {
            return;
        }
        let id = self.new_id();
        self.state.lock().tasks.insert(id, Task { future: Some(future), machine: machine.clone() });
        self.ready.lock().insert(id);
    }

    /// Drops all tasks of this machine where they wait.
    pub fn drop_tasks_of(&self, machine: u64) {
        let dropped: Vec<Task> = {
            let mut state = self.state.lock();
            state.digest.fold(machine);
            state.tasks.extract_if(.., |_, task| task.machine.id == machine).map(|(_, task)| task).collect()
        };
        // Dropping the futures runs code that may wake tasks, so the lock is released first.
        drop(dropped);
    }

    /// Lets the tasks of a machine go on that is paused no more.
    pub fn resume_tasks_of(&self, machine: u64) {
        let held = self.state.lock().held.remove(&machine).unwrap_or_default();
        self.ready.lock().extend(held);
    }

    /// Polls one ready task. If none is ready, first lets time pass to the next timer, but not
    /// beyond `until`.
    fn turn(self: &Arc<Self>, until: Option<Duration>) -> Turn {
        loop {
            if let Some(id) = self.pick() {
                if id == ROOT {
                    return Turn::Root;
                }
                if self.poll_task(id) {
                    return Turn::Task;
                }
            } else if !self.pass_time(until) {
                return Turn::Idle;
            }
        }
    }

    fn pick(&self) -> Option<u64> {
        let id = {
            let mut ready = self.ready.lock();
            let index = if ready.len() > 1 { self.random.below(ready.len() as u64) } else { 0 };
            let id = *ready.iter().nth(index as usize)?;
            ready.remove(&id);
            id
        };
        let mut state = self.state.lock();
        state.digest.fold(id);
        state.polls_at_this_instant += 1;
        assert!(state.polls_at_this_instant < POLLS_AT_ONE_INSTANT_MAX, "tasks spin (seed {})", self.seed);
        Some(id)
    }

    /// Polls a task; false if it no longer exists.
    fn poll_task(self: &Arc<Self>, id: u64) -> bool {
        let (mut future, machine) = {
            let mut state = self.state.lock();
            let Some(machine) = state.tasks.get(&id).map(|task| task.machine.clone()) else { return false };
            if machine.is_paused() {
                state.held.entry(machine.id).or_default().insert(id);
                return false;
            }
            let Some(future) = state.tasks.get_mut(&id).and_then(|task| task.future.take()) else { return false };
            (future, machine)
        };
        let waker = self.waker(id);
        let pending = future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        let ended = {
            let mut state = self.state.lock();
            match state.tasks.get_mut(&id) {
                Some(task) if pending => {
                    task.future = Some(future);
                    None
                }
                // The task is done, or its machine crashed meanwhile.
                _ => {
                    state.tasks.remove(&id);
                    Some(future)
                }
            }
        };
        drop(ended);
        machine.count_poll();
        true
    }

    fn pass_time(&self, until: Option<Duration>) -> bool {
        let mut due = Vec::new();
        {
            let mut state = self.state.lock();
            let Some((&(deadline, _), _)) = state.timers.first_key_value() else { return false };
            if until.is_some_and(|until| deadline > until) {
                return false;
            }
            state.now = deadline;
            state.polls_at_this_instant = 0;
            state.digest.fold(deadline.as_nanos() as u64);
            while let Some(timer) = state.timers.first_entry()
                && timer.key().0 == deadline
            {
                due.push(timer.remove());
            }
        }
        due.into_iter().for_each(Waker::wake);
        true
    }
}

struct TaskWaker {
    world: Weak<World>,
    task: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if let Some(world) = self.world.upgrade() {
            world.ready.lock().insert(self.task);
        }
    }
}

/// Completes at `deadline` of virtual time.
pub(super) struct Sleep {
    world: Arc<World>,
    deadline: Duration,
    /// The timer's id once it is set.
    timer: Option<u64>,
}

impl Sleep {
    pub fn new(world: Arc<World>, time: Duration) -> Self {
        let deadline = world.now().saturating_add(time);
        Sleep { world, deadline, timer: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.world.now() >= self.deadline {
            return Poll::Ready(());
        }
        let timer = self.timer.unwrap_or_else(|| self.world.new_id());
        self.timer = Some(timer);
        self.world.state.lock().timers.insert((self.deadline, timer), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.world.state.lock().timers.remove(&(self.deadline, timer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Host;
    use tokio::sync::mpsc;

    /// Ten tasks that talk, sleep and draw random numbers; returns the order in which they did.
    fn busy_run(seed: u64) -> (u64, Vec<u64>) {
        let sim = Sim::new(seed);
        let (sender, mut receiver) = mpsc::unbounded_channel();
        for number in 0..10 {
            let host = sim.machine(if number % 2 == 0 { "even" } else { "odd" }).host();
            let (sender, tasks) = (sender.clone(), host.tasks.clone());
            tasks.spawn(Box::pin(async move {
                for _ in 0..5 {
                    host.clock.sleep(Duration::from_millis(host.random.next_u64() % 3)).await;
                    sender.send(number).unwrap();
                }
            }));
        }
        drop(sender);
        let order = sim.block_on(async {
            let mut order = Vec::new();
            while let Some(number) = receiver.recv().await {
                order.push(number);
            }
            order
        });
        (sim.digest(), order)
    }

    #[test]
    fn sim_same_seed_is_the_same_run_and_another_seed_another() {
        let runs: Vec<_> = (0..20).map(busy_run).collect();
        for (seed, run) in (0..).zip(&runs) {
            assert_eq!(*run, busy_run(seed));
        }
        let digests: BTreeSet<u64> = runs.iter().map(|run| run.0).collect();
        let orders: BTreeSet<&Vec<u64>> = runs.iter().map(|run| &run.1).collect();
        assert_eq!((digests.len(), orders.len()), (20, 20));
    }

    #[test]
    fn sim_seed_picks_which_of_the_ready_tasks_runs() {
        let order_of_three = |seed| {
            let sim = Sim::new(seed);
            let host = sim.machine("one").host();
            let order = Arc::new(Mutex::new(Vec::new()));
            for number in 0..3 {
                let order = order.clone();
                host.tasks.spawn(Box::pin(async move { order.lock().push(number) }));
            }
            sim.run_until_idle();
            order.lock().clone()
        };
        let orders: BTreeSet<Vec<u64>> = (0..100).map(order_of_three).collect();
        assert_eq!(orders.len(), 6, "every order, under some seed");
    }

    #[test]
    fn sim_order_of_wakes_does_not_matter() {
        let run = |reversed: bool| {
            let sim = Sim::new(3);
            let host = sim.machine("one").host();
            let woken = Arc::new(Mutex::new(Vec::<(u64, tokio::sync::oneshot::Sender<()>)>::new()));
            let order = Arc::new(Mutex::new(Vec::new()));
            for number in 0..8 {
                let (sender, receiver) = tokio::sync::oneshot::channel();
                woken.lock().push((number, sender));
                let order = order.clone();
                host.tasks.spawn(Box::pin(async move {
                    receiver.await.unwrap();
                    order.lock().push(number);
                }));
            }
            sim.run_until_idle();
            let mut senders = std::mem::take(&mut *woken.lock());
            if reversed {
                senders.reverse();
            }
            senders.into_iter().for_each(|(_, sender)| sender.send(()).unwrap());
            sim.run_until_idle();
            (order.lock().clone(), sim.digest())
        };
        assert_eq!(run(false), run(true));
    }

    #[test]
    fn timers_fire_in_order_of_time_and_cost_no_real_time() {
        let sim = Sim::new(1);
        let host = sim.machine("one").host();
        let fired = Arc::new(Mutex::new(Vec::new()));
        for hours in [5u64, 1, 9, 3] {
            let (fired, clock) = (fired.clone(), host.clock.clone());
            host.tasks.spawn(Box::pin(async move {
                clock.sleep(Duration::from_secs(hours * 3600)).await;
                fired.lock().push((hours, clock.now().as_secs() / 3600));
            }));
        }
        sim.run_for(Duration::from_secs(4 * 3600));
        assert_eq!(*fired.lock(), [(1, 1), (3, 3)]);
        assert_eq!(sim.now(), Duration::from_secs(4 * 3600));
        sim.run_until_idle();
        assert_eq!(*fired.lock(), [(1, 1), (3, 3), (5, 5), (9, 9)]);
        let wall = host.clock.wall();
        sim.run_for(Duration::from_millis(1500));
        assert_eq!((host.clock.wall().sec - wall.sec, host.clock.wall().nsec), (1, 500_000_000));
    }

    /// Records when it is dropped.
    struct Alive(Arc<AtomicBool>);

    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.store(false, Ordering::Relaxed);
        }
    }

    fn sleeper(host: &Host) -> (Arc<AtomicBool>, BoxFuture<()>) {
        let alive = Arc::new(AtomicBool::new(true));
        let (guard, clock) = (Alive(alive.clone()), host.clock.clone());
        let task = Box::pin(async move {
            let _guard = guard;
            clock.sleep(Duration::from_secs(1)).await;
            panic!("ran after the crash");
        });
        (alive, task)
    }

    #[test]
    fn crash_drops_all_tasks_where_they_wait_and_ignores_later_ones() {
        let sim = Sim::new(1);
        let (victim, other) = (sim.machine("victim"), sim.machine("other"));
        let old_host = victim.host();
        let (alive, task) = sleeper(&old_host);
        old_host.tasks.spawn(task);
        let survivor = other.run({
            let clock = other.host().clock;
            async move { clock.sleep(Duration::from_secs(2)).await }
        });
        sim.run_for(Duration::from_millis(500));
        assert!(alive.load(Ordering::Relaxed));
        victim.crash();
        assert!(!alive.load(Ordering::Relaxed) && !victim.is_up());

        let (alive, task) = sleeper(&old_host);
        old_host.tasks.spawn(task);
        assert!(!alive.load(Ordering::Relaxed), "a task of a machine that is down");
        assert_eq!(sim.block_on(victim.run(async { 1 })), Err(crate::sim::Crashed));
        assert_eq!(sim.block_on(sim.machine("victim").run(async { 1 })), Ok(1));
        assert_eq!(sim.block_on(survivor), Ok(()));
    }

    #[test]
    fn crash_after_falls_at_exactly_that_poll() {
        for polls in 1..=4 {
            let sim = Sim::new(1);
            let machine = sim.machine("one");
            let done = Arc::new(Mutex::new(0));
            let (clock, counter) = (machine.host().clock, done.clone());
            machine.crash_after(polls);
            let run = machine.run(async move {
                for _ in 0..4 {
                    *counter.lock() += 1;
                    clock.sleep(Duration::from_secs(1)).await;
                }
            });
            sim.block_on(machine.crashed());
            assert_eq!(sim.block_on(run), Err(crate::sim::Crashed));
            assert_eq!((*done.lock(), machine.polls()), (polls, polls));
        }
    }

    #[test]
    fn machine_may_crash_itself() {
        let sim = Sim::new(1);
        let machine = sim.machine("one");
        let (alive, crashing) = (Arc::new(AtomicBool::new(true)), machine.clone());
        let guard = Alive(alive.clone());
        let run = machine.run(async move {
            let _guard = guard;
            crashing.crash();
            std::future::pending::<()>().await;
        });
        assert_eq!(sim.block_on(run), Err(crate::sim::Crashed));
        assert!(!alive.load(Ordering::Relaxed));
    }

    #[test]
    fn dropping_the_world_drops_its_tasks() {
        let sim = Sim::new(1);
        let host = sim.machine("one").host();
        let (alive, task) = sleeper(&host);
        host.tasks.spawn(task);
        drop(sim);
        assert!(!alive.load(Ordering::Relaxed));
    }

    #[test]
    #[should_panic(expected = "stuck: no task is ready and no timer is set (seed 42)")]
    fn waiting_for_nothing_is_reported_with_the_seed() {
        Sim::new(42).block_on(std::future::pending::<()>());
    }
}
