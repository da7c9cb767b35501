//! Stores on machines of their own: a machine, its disk, the storage server's process on it, and
//! the quality of its link.
//!
//! The process runs a [`Site`], as `starling store` does. It ends when the machine crashes, or by
//! itself if its store cannot be opened. Then no process listens until the world starts it again.

use host::SplitMix64;
use host::sim::{LinkFaults, Machine, Sim, SimDisk, SimLink};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use storage::site::Site;
use tokio::sync::watch;

/// Time that a message travels.
const DELAY: Range<Duration> = Duration::from_micros(20)..Duration::from_millis(1);
/// How long a process that was asked to end may take.
const STOP_TIME_MAX: Duration = Duration::from_secs(60);

/// The quality of a link, both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// No message gets through.
    pub cut: bool,
    /// Of 1,000 requests, and of 1,000 answers, this many are lost.
    pub lost: u64,
    /// Requests take up to this much longer.
    pub lag: Duration,
}

/// Counts of events of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times its link was cut.
    pub cuts: u64,
    /// Times it was started.
    pub starts: u64,
}

/// A store's machine with its disk.
pub struct Node {
    sim: Sim,
    name: String,
    disk: SimDisk,
    random: SplitMix64,
    state: Mutex<State>,
}

struct State {
    machine: Machine,
    process: watch::Receiver<Process>,
    weather: Weather,
    /// Links of connections that may still stand, with the machines that they come from.
    links: Vec<(Machine, SimLink)>,
    counts: Counts,
}

#[derive(Clone)]
enum Process {
    Opening,
    Serving(Arc<Site>),
    /// It has ended: the store on the disk cannot be opened.
    Ended,
}

/// A way to a process that listens.
pub struct Listener {
    /// The machine it runs on.
    pub machine: Machine,
    /// What it serves.
    pub site: Arc<Site>,
    /// The way there.
    pub link: SimLink,
}

impl Node {
    /// A machine with an empty disk that is not started yet.
    pub fn new(sim: &Sim, name: String, disk: SimDisk, seed: u64) -> Arc<Node> {
        let machine = sim.machine(&name);
        machine.crash();
        let state = State {
            machine,
            process: watch::channel(Process::Ended).1,
            weather: Weather::default(),
            links: Vec::new(),
            counts: Counts::default(),
        };
        Arc::new(Node { sim: sim.clone(), name, disk, random: SplitMix64::new(seed), state: Mutex::new(state) })
    }

    /// Starts the machine and the process, unless they run.
    pub fn start(&self) {
        let mut state = self.state.lock();
        let ended = matches!(*state.process.borrow(), Process::Ended);
        if state.machine.is_up() && !ended {
            return;
        }
        state.machine.crash();
        let machine = self.sim.machine(&self.name);
        let (tell, process) = watch::channel(Process::Opening);
        let opening = Site::open(machine.host(), self.disk.mount(&machine));
        machine.host().tasks.spawn(Box::pin(async move {
            tell.send_replace(opening.await.map_or(Process::Ended, Process::Serving));
        }));
        (state.machine, state.process) = (machine, process);
        state.counts.starts += 1;
    }

    /// Waits until it serves; `false` if it ends instead.
    pub async fn opened(&self) -> bool {
        let mut process = self.state.lock().process.clone();
        loop {
            let now = process.borrow_and_update().clone();
            match now {
                Process::Opening => {}
                Process::Serving(_) => return true,
                Process::Ended => return false,
            }
            if process.changed().await.is_err() {
                return false;
            }
        }
    }

    /// False after a crash.
    pub fn is_up(&self) -> bool {
        self.state.lock().machine.is_up()
    }

    /// Ends everything on it at once; its disk keeps what was written.
    pub fn crash(&self) {
        let machine = self.state.lock().machine.clone();
        machine.crash();
    }

    /// Crashes it after this many polls of its tasks.
    pub fn crash_after(&self, polls: u64) {
        self.state.lock().machine.crash_after(polls);
    }

    /// Crashes it. Its disk keeps everything synced, and any part of the rest.
    pub fn power_loss(&self) {
        self.crash();
        self.disk.power_loss();
    }

    /// Ends the process as a signal does: closes the store, if that works and does not take too
    /// long.
    pub async fn stop(&self) {
        let (machine, process) = {
            let state = self.state.lock();
            (state.machine.clone(), state.process.borrow().clone())
        };
        if let Process::Serving(site) = process {
            let clock = machine.host().clock;
            let closing = machine.run(async move { site.close().await });
            // The process ends in any case.
            let _ = host::timeout(&*clock, STOP_TIME_MAX, closing).await;
        }
        machine.crash();
    }

    /// Changes the quality of the link, also for messages under way.
    pub fn set_weather(&self, weather: Weather) {
        let mut state = self.state.lock();
        state.counts.cuts += u64::from(weather.cut && !state.weather.cut);
        state.weather = weather;
        let to = state.machine.clone();
        state.links.retain(|(from, _)| from.is_up() && to.is_up());
        state.links.iter().for_each(|(_, link)| expose(link, weather));
    }

    /// Additional delay of a request that is sent now.
    pub fn lag(&self) -> Duration {
        let lag = self.state.lock().weather.lag;
        Duration::from_nanos(self.random.below(lag.as_nanos() as u64))
    }

    /// The process as `from` reaches it; `None` if no process listens.
    pub fn listener(&self, from: &Machine) -> Option<Listener> {
        let state = &mut *self.state.lock();
        let process = state.process.borrow().clone();
        let (Process::Serving(site), true) = (process, state.machine.is_up()) else { return None };
        let machine = state.machine.clone();
        let link = SimLink::new(from, &machine, DELAY);
        expose(&link, state.weather);
        state.links.retain(|(from, _)| from.is_up());
        state.links.push((from.clone(), link.clone()));
        Some(Listener { machine, site, link })
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }
}

fn expose(link: &SimLink, weather: Weather) {
    link.cut(weather.cut);
    link.set_faults(LinkFaults { lost_requests: weather.lost, lost_answers: weather.lost, repeated_requests: 0 });
}
