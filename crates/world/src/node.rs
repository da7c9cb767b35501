//! Stores on machines of their own: a machine, its disk, the storage server's process on it, and
//! how well messages get there.
//!
//! The process is what `starling store` runs: a [`Site`]. It ends when the machine crashes, or by
//! itself if its store cannot be opened; then nobody listens until somebody starts it again.

use host::SplitMix64;
use host::sim::{Link, LinkFaults, Machine, Sim, SimDisk};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use storage::site::Site;
use tokio::sync::watch;

/// What a message takes on its way.
const DELAY: Range<Duration> = Duration::from_micros(20)..Duration::from_millis(1);
/// How long a process that was asked to end may take.
const STOP_TIME_MAX: Duration = Duration::from_secs(60);

/// How well messages get through, both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// Not at all.
    pub cut: bool,
    /// So many requests, and so many answers, of 1,000 are lost.
    pub lost: u64,
    /// Requests take up to so much longer.
    pub lag: Duration,
}

/// How often things happened to a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Its link was cut.
    pub cuts: u64,
    /// It was started.
    pub starts: u64,
}

/// See the module's header.
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
    /// Those of connections that may still stand, with the machines they come from.
    links: Vec<(Machine, Link)>,
    counts: Counts,
}

#[derive(Clone)]
enum Process {
    Opening,
    Serving(Arc<Site>),
    /// It ended: what is on the disk cannot be opened.
    Ended,
}

/// A way to a process that listens.
pub struct Listener {
    /// The machine it runs on.
    pub machine: Machine,
    /// What it serves.
    pub site: Arc<Site>,
    /// The way there.
    pub link: Link,
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

    /// Starts machine and process, unless they run.
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

    /// Waits until it serves; `false` if that was not to be.
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

    /// Crashes it after its tasks were polled so often.
    pub fn crash_after(&self, polls: u64) {
        self.state.lock().machine.crash_after(polls);
    }

    /// Crashes it, and its disk keeps only what was synced, and any part of the rest.
    pub fn power_loss(&self) {
        self.crash();
        self.disk.power_loss();
    }

    /// Ends the process as a signal does: the store is closed, if that goes well and does not take
    /// too long.
    pub async fn stop(&self) {
        let (machine, process) = {
            let state = self.state.lock();
            (state.machine.clone(), state.process.borrow().clone())
        };
        if let Process::Serving(site) = process {
            let clock = machine.host().clock;
            let closing = machine.run(async move { site.close().await });
            // Whatever comes of it, the process ends.
            let _ = host::timeout(&*clock, STOP_TIME_MAX, closing).await;
        }
        machine.crash();
    }

    /// Changes how well messages get through, those under way included.
    pub fn set_weather(&self, weather: Weather) {
        let mut state = self.state.lock();
        state.counts.cuts += u64::from(weather.cut && !state.weather.cut);
        state.weather = weather;
        let to = state.machine.clone();
        state.links.retain(|(from, _)| from.is_up() && to.is_up());
        state.links.iter().for_each(|(_, link)| expose(link, weather));
    }

    /// How long a request that is sent now shall take besides.
    pub fn lag(&self) -> Duration {
        let lag = self.state.lock().weather.lag;
        Duration::from_nanos(self.random.below(lag.as_nanos() as u64))
    }

    /// The process as `from` reaches it; `None` if nobody listens.
    pub fn listener(&self, from: &Machine) -> Option<Listener> {
        let state = &mut *self.state.lock();
        let process = state.process.borrow().clone();
        let (Process::Serving(site), true) = (process, state.machine.is_up()) else { return None };
        let machine = state.machine.clone();
        let link = Link::new(from, &machine, DELAY);
        expose(&link, state.weather);
        state.links.retain(|(from, _)| from.is_up());
        state.links.push((from.clone(), link.clone()));
        Some(Listener { machine, site, link })
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }
}

fn expose(link: &Link, weather: Weather) {
    link.cut(weather.cut);
    link.set_faults(LinkFaults { lost_requests: weather.lost, lost_answers: weather.lost, repeated_requests: 0 });
}
