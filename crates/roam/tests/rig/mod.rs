//! A home over the model file system, and roaming clients, in the simulated world.
#![allow(dead_code)]

pub mod faults;
pub mod session;
pub mod setup;
pub mod tree;

use bytes::Bytes;
use home::Home;
use home::export::Export;
use home::invitation::{self, Invitation};
use host::sim::{Crashed, Machine, Sim, SimDisk};
use host::{Clock, Disk, SplitMix64, first};
use parking_lot::Mutex;
use record_log::LOG_LEN;
use roam::{Client, Line, Settings};
use roam_proto::channel::{
    Channel, Class, DialError, Dialer, Lost, MESSAGE_LEN_MAX, Path, PeerKey, Push, Service, Session,
};
use roam_proto::line;
use roam_proto::message::{Pushed, Reply, Request, User, pack, unpack};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Notify;
use tree::Tree;
use types::{BoxFuture, Time};
use vfs::mem::MemFs;

/// Time between two tries of a message that was lost.
const RETRY_PERIOD: Duration = Duration::from_millis(100);
/// Longest time until a request that is delivered twice comes again.
const REPEATED_AFTER_MAX_MS: u64 = 5000;
pub const VOLUME: &str = "work";
const SECRET: [u8; 16] = [7; 16];

/// The seeds of a storm: these, or those of `STORM_SEED`, `STORM_FROM` and `STORM_SEEDS`.
pub fn seeds(from: u64, count: u64) -> Range<u64> {
    let asked = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match asked("STORM_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let from = asked("STORM_FROM").unwrap_or(from);
            from..from + asked("STORM_SEEDS").unwrap_or(count)
        }
    }
}

/// The simulated world: a home with its files, and all that a test adds.
pub struct Rig {
    pub sim: Sim,
    pub fs: MemFs,
    /// The files of other volumes, by their names.
    pub others: BTreeMap<String, MemFs>,
    /// The files as they are after a loss of power.
    pub durable: Arc<Mutex<MemFs>>,
    pub disk: SimDisk,
    pub home: Arc<Mutex<Option<Running>>>,
    /// The home's operations on its files take time, so that it may crash between any two.
    pub paced: bool,
    /// Bytes by which the home's log may grow before it begins again with a snapshot.
    pub log_len: u64,
}

/// A home while it runs.
#[derive(Clone)]
pub struct Running {
    pub home: Home,
    pub machine: Machine,
    pub tree: Tree,
    /// The trees of other volumes, by their names.
    pub others: BTreeMap<String, Tree>,
}

/// A network between one client and the home.
#[derive(Clone)]
pub struct Network {
    home: Arc<Mutex<Option<Running>>>,
    clock: Arc<dyn Clock>,
    key: PeerKey,
    pub up: Arc<AtomicBool>,
    /// Requests are lost on the way; below, their answers.
    pub lose_requests: Arc<AtomicBool>,
    pub lose_answers: Arc<AtomicBool>,
    /// Every other request is delivered twice. The second comes up to some seconds later, when the
    /// client no longer waits for its answer.
    pub repeat_requests: Arc<AtomicBool>,
    repeats: Arc<SplitMix64>,
    /// A home that crashes ends no connection. Clients hear that the connection is lost when they
    /// send something to a home that is up again. If this is off, they hear of the crash at once,
    /// as from a process that ends in order.
    pub silent_deaths: Arc<AtomicBool>,
    pub delay: Duration,
    /// Milliseconds that a request takes in addition.
    pub lag_ms: Arc<AtomicU64>,
    /// Milliseconds that an answer takes in addition.
    pub answer_lag_ms: Arc<AtomicU64>,
    /// The rate at which each message is carried; 0: no limit.
    pub bytes_per_second: Arc<AtomicU64>,
    pub requests: Arc<AtomicU64>,
    pub dialed: Arc<AtomicU64>,
    pub bytes: Arc<AtomicU64>,
    /// How many times the home asked for bytes of promised stores.
    pub wanted: Arc<AtomicU64>,
    /// The number of requests and pushes of each kind.
    pub kinds: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Network {
    /// Counts a message by its kind, whose name is that of the message's variant.
    fn count(&self, message: impl std::fmt::Debug) {
        let mut kind = Word(String::new());
        // Only the first word is wanted: `Word` ends the writing after it.
        let _ = write!(kind, "{message:?}");
        *self.kinds.lock().entry(kind.0).or_default() += 1;
    }
}

/// Takes the first word that is written, and refuses the rest.
struct Word(String);

impl Write for Word {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let word = text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
        self.0 += word;
        if word == text { Ok(()) } else { Err(std::fmt::Error) }
    }
}

#[derive(Default)]
struct Pushes {
    waiting: Mutex<VecDeque<Bytes>>,
    /// The number of pushes that came; below, how many of them were taken.
    pushed: AtomicU64,
    taken: AtomicU64,
    come: Notify,
    ended: AtomicBool,
}

impl Push for Pushes {
    fn push(&self, message: Bytes) -> Result<(), Lost> {
        if self.ended.load(Relaxed) {
            return Err(Lost);
        }
        self.waiting.lock().push_back(message);
        self.pushed.fetch_add(1, Relaxed);
        self.come.notify_one();
        Ok(())
    }
}

/// A request that did not arrive.
struct Missed;

struct Connection {
    network: Network,
    machine: Machine,
    session: Arc<dyn Session>,
    pushes: Arc<Pushes>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.pushes.ended.store(true, Relaxed);
        self.session.ended();
    }
}

impl Network {
    /// The time that a message is on its way, without the delay.
    fn carried(&self, len: usize) -> Duration {
        match self.bytes_per_second.load(Relaxed) {
            0 => Duration::ZERO,
            rate => Duration::from_secs_f64(len as f64 / rate as f64),
        }
    }
}

impl Network {
    /// True if the home does not know an earlier connection, and says so to a client that sends
    /// something.
    fn disowns(&self, machine: &Machine) -> bool {
        let is_up = self.home.lock().as_ref().is_some_and(|home| home.machine.is_up());
        !machine.is_up() && is_up && self.up.load(Relaxed)
    }

    /// True if a client hears that a machine has crashed.
    fn tells_of_death(&self, machine: &Machine) -> bool {
        !machine.is_up() && !self.silent_deaths.load(Relaxed)
    }

    /// Sends until the home says that it does not know the connection, or the connection has ended.
    async fn until_disowned(&self, machine: &Machine, pushes: &Pushes) {
        while !pushes.ended.load(Relaxed) {
            if self.disowns(machine) {
                pushes.end();
            }
            self.clock.sleep(RETRY_PERIOD).await;
        }
    }
}

impl Pushes {
    fn end(&self) {
        self.ended.store(true, Relaxed);
        self.come.notify_one();
    }
}

impl Connection {
    /// Delivers a request for the second time.
    fn answered_later(&self, request: Bytes) -> BoxFuture<Result<(), Crashed>> {
        let (network, session) = (self.network.clone(), self.session.clone());
        let late = Duration::from_millis(network.repeats.below(REPEATED_AFTER_MAX_MS));
        self.machine.run(async move {
            network.clock.sleep(network.delay + late).await;
            if network.up.load(Relaxed) {
                session.answer(request).await;
            }
        })
    }
}

impl Dialer for Network {
    fn dial(&self) -> BoxFuture<Result<Arc<dyn Channel>, DialError>> {
        let me = self.clone();
        Box::pin(async move {
            me.clock.sleep(me.delay).await;
            let home = me.home.lock().clone();
            match home.filter(|home| home.machine.is_up() && me.up.load(Relaxed)) {
                None => Err(DialError::Unreachable("no home there".into())),
                Some(Running { home, machine, .. }) => {
                    me.dialed.fetch_add(1, Relaxed);
                    let pushes = Arc::new(Pushes::default());
                    let session = home.connected(me.key, pushes.clone());
                    Ok(Arc::new(Connection { network: me, machine, session, pushes }) as Arc<dyn Channel>)
                }
            }
        })
    }
}

impl Channel for Connection {
    fn ask(&self, _: Class, request: Bytes) -> BoxFuture<Result<Bytes, Lost>> {
        let (network, session, pushes) = (self.network.clone(), self.session.clone(), self.pushes.clone());
        if request.len() > MESSAGE_LEN_MAX {
            self.close();
        }
        if pushes.ended.load(Relaxed) || network.tells_of_death(&self.machine) {
            return Box::pin(std::future::ready(Err(Lost)));
        }
        let machine = self.machine.clone();
        if !machine.is_up() {
            return Box::pin(async move {
                network.until_disowned(&machine, &pushes).await;
                Err(Lost)
            });
        }
        network.requests.fetch_add(1, Relaxed);
        network.bytes.fetch_add(request.len() as u64, Relaxed);
        let (_, asked) = line::take_off(request.clone());
        if let Ok(asked) = unpack::<Request>(&asked) {
            network.count(asked);
        }
        if network.repeat_requests.load(Relaxed) && network.repeats.chance(1, 2) {
            drop(self.answered_later(request.clone()));
        }
        let (there, carried) = (network.clone(), network.carried(request.len()));
        // A request that was sent arrives even if the client no longer waits for the answer.
        let answered = self.machine.run(async move {
            there.clock.sleep(there.delay + carried + Duration::from_millis(there.lag_ms.load(Relaxed))).await;
            if !there.up.load(Relaxed) || there.lose_requests.load(Relaxed) {
                return Err(Missed);
            }
            Ok(session.answer(request).await)
        });
        Box::pin(async move {
            let Ok(answer) = answered.await else {
                // The home had the request when it crashed: the client does not send it again.
                while !pushes.ended.load(Relaxed) && !network.tells_of_death(&machine) {
                    network.clock.sleep(RETRY_PERIOD).await;
                }
                return Err(Lost);
            };
            let Ok(answer) = answer else { return std::future::pending().await };
            let answer = answer.ok_or(Lost)?;
            let lag = Duration::from_millis(network.answer_lag_ms.load(Relaxed));
            network.clock.sleep(network.delay + network.carried(answer.len()) + lag).await;
            if !network.up.load(Relaxed) || network.lose_answers.load(Relaxed) {
                return std::future::pending().await;
            }
            network.bytes.fetch_add(answer.len() as u64, Relaxed);
            Ok(answer)
        })
    }

    fn pushed(&self) -> BoxFuture<Result<Bytes, Lost>> {
        let (network, pushes, machine) = (self.network.clone(), self.pushes.clone(), self.machine.clone());
        Box::pin(async move {
            loop {
                let next = match network.up.load(Relaxed) {
                    true => pushes.waiting.lock().pop_front(),
                    false => None,
                };
                if let Some(message) = next {
                    pushes.taken.fetch_add(1, Relaxed);
                    let (_, pushed) = line::take_off(message.clone());
                    if let Ok(pushed) = unpack::<Pushed>(&pushed) {
                        network.wanted.fetch_add(u64::from(matches!(pushed, Pushed::Wanted { .. })), Relaxed);
                        network.count(pushed);
                    }
                    return Ok(message);
                }
                if pushes.ended.load(Relaxed) || network.tells_of_death(&machine) {
                    return Err(Lost);
                }
                match network.up.load(Relaxed) {
                    true if !machine.is_up() => pushes.come.notified().await,
                    true => drop(first(pushes.come.notified(), machine.crashed()).await),
                    false => network.clock.sleep(Duration::from_millis(100)).await,
                }
            }
        })
    }

    fn caught_up(&self) -> BoxFuture<Result<(), Lost>> {
        let (network, pushes, machine) = (self.network.clone(), self.pushes.clone(), self.machine.clone());
        network.requests.fetch_add(1, Relaxed);
        Box::pin(async move {
            let lost = || pushes.ended.load(Relaxed) || network.tells_of_death(&machine);
            let mut count = None;
            // The question is sent again and again, as is the answer, while there is a connection.
            loop {
                network.clock.sleep(network.delay).await;
                if lost() {
                    return Err(Lost);
                }
                match count {
                    _ if !network.up.load(Relaxed) => {}
                    _ if network.disowns(&machine) => pushes.end(),
                    _ if !machine.is_up() => network.clock.sleep(RETRY_PERIOD).await,
                    None if !network.lose_requests.load(Relaxed) => count = Some(pushes.pushed.load(Relaxed)),
                    Some(count) if !network.lose_answers.load(Relaxed) && pushes.taken.load(Relaxed) >= count => {
                        return Ok(());
                    }
                    _ => network.clock.sleep(RETRY_PERIOD).await,
                }
            }
        })
    }

    fn rebind(&self) {}

    fn path(&self) -> Path {
        Path { round_trip: self.network.delay * 2, window: 1 << 20, sent: 0, received: 0 }
    }

    fn has_ended(&self) -> bool {
        self.pushes.ended.load(Relaxed) || self.network.tells_of_death(&self.machine)
    }

    fn close(&self) {
        self.pushes.end();
    }
}

impl Rig {
    pub fn new(seed: u64) -> Rig {
        Rig::with_pace(seed, false)
    }

    pub fn with_pace(seed: u64, paced: bool) -> Rig {
        let sim = Sim::new(seed);
        let clock = sim.machine("home").host().clock;
        let fs = MemFs::new(Arc::new(move || clock.wall()));
        let disk = SimDisk::new(&sim, 1 << 30);
        let durable = Arc::new(Mutex::new(fs.snapshot()));
        let rig =
            Rig { sim, fs, others: BTreeMap::new(), durable, disk, home: Arc::default(), paced, log_len: LOG_LEN };
        rig.start_home();
        rig
    }

    /// Restarts the home, which serves more volumes from then on.
    pub fn serve_more(&mut self, names: &[&str]) {
        self.crash_home();
        let clock = self.clock();
        let empty = || {
            let clock = clock.clone();
            MemFs::new(Arc::new(move || clock.wall()))
        };
        self.others.extend(names.iter().map(|name| (name.to_string(), empty())));
        self.start_home();
    }

    /// The names of the volumes that the home serves, in order.
    fn volumes(&self) -> Vec<String> {
        let mut all: Vec<String> = self.others.keys().cloned().collect();
        all.push(VOLUME.into());
        all.sort();
        all
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.sim.machine("home").host().clock
    }

    /// Starts the home, which must not be running.
    pub fn start_home(&self) {
        let machine = self.sim.machine("home");
        let host = machine.host();
        let disk = self.disk.mount(&machine);
        let pace = self.paced.then(|| (host.clock.clone(), host.random.next_u64()));
        let tree = Tree::new(self.fs.clone(), self.durable.clone(), pace);
        let fs: Arc<dyn Export> = Arc::new(tree.for_home());
        let mut exports = vec![(VOLUME.to_string(), fs)];
        let other = |fs: &MemFs| Tree::new(fs.clone(), Arc::new(Mutex::new(fs.snapshot())), None);
        let others: BTreeMap<_, _> = self.others.iter().map(|(name, fs)| (name.clone(), other(fs))).collect();
        exports.extend(others.iter().map(|(name, tree)| (name.clone(), Arc::new(tree.for_home()) as Arc<dyn Export>)));
        let home = self.sim.block_on(Home::open_with(&host, disk, exports, self.log_len)).expect("home");
        *self.home.lock() = Some(Running { home, machine, tree, others });
    }

    /// The home's process ends at once.
    pub fn crash_home(&self) {
        let running = self.home.lock().take();
        if let Some(running) = running {
            running.machine.crash();
        }
    }

    /// Makes what other programs have done to the files durable.
    pub fn sync(&self) {
        *self.durable.lock() = self.fs.snapshot();
    }

    /// The machine of a crashed home loses power. With `is_worst`, all that was not synced is lost.
    /// Otherwise all of it is there, which is no easier for the home.
    pub fn lose_power(&self, is_worst: bool) {
        self.disk.power_loss();
        if is_worst {
            self.fs.restore(&self.durable.lock());
        }
    }

    /// A network for a client with this key.
    pub fn network(&self, key: u8, delay: Duration) -> Network {
        Network {
            home: self.home.clone(),
            clock: self.clock(),
            key: PeerKey([key; 32]),
            up: Arc::new(AtomicBool::new(true)),
            lose_requests: Arc::default(),
            lose_answers: Arc::default(),
            repeat_requests: Arc::default(),
            silent_deaths: Arc::default(),
            repeats: Arc::new(SplitMix64::new(key.into())),
            delay,
            lag_ms: Arc::default(),
            answer_lag_ms: Arc::default(),
            bytes_per_second: Arc::default(),
            requests: Arc::default(),
            dialed: Arc::default(),
            bytes: Arc::default(),
            wanted: Arc::default(),
            kinds: Arc::default(),
        }
    }

    /// Invites the client at the end of a network.
    pub fn enroll(&self, network: &Network, user: User) {
        let disk = self.disk.mount(&self.sim.machine("home"));
        let until = Time { sec: i64::MAX, nsec: 0 };
        let invitation = Invitation { volumes: self.volumes(), user, until, name: String::new() };
        self.sim.block_on(invitation::write(&*disk, &SECRET, &invitation)).expect("invitation");
        let enrolled = self.sim.block_on(async {
            let channel = network.dial().await.expect("dial");
            channel.ask(Class::Interactive, pack(&Request::Enroll { secret: SECRET })).await.expect("asked")
        });
        assert_eq!(unpack(&enrolled), Ok(Reply::Enrolled { volumes: self.volumes() }));
    }

    /// A client with a cache on a disk.
    pub fn client(&self, machine: &Machine, disk: &SimDisk, network: &Network) -> Client {
        let line = Line::alone(&machine.host(), Arc::new(network.clone()));
        self.client_on(line, VOLUME, machine, disk)
    }

    /// A client of a volume, on a line.
    pub fn client_on(&self, line: Line, volume: &str, machine: &Machine, disk: &SimDisk) -> Client {
        let (host, disk): (_, Arc<dyn Disk>) = (machine.host(), disk.mount(machine));
        let client = self.sim.block_on(Client::open(&host, disk, line, Settings::new(volume))).expect("open");
        self.sim.run_for(Duration::from_secs(1));
        client
    }

    /// A new client of the superuser.
    pub fn new_client(&self, key: u8, delay: Duration) -> (Client, Network, SimDisk, Machine) {
        self.client_of(0, key, delay)
    }

    /// A new client of a user.
    pub fn client_of(&self, uid: u32, key: u8, delay: Duration) -> (Client, Network, SimDisk, Machine) {
        let network = self.network(key, delay);
        self.enroll(&network, User { uid, gid: uid, groups: Vec::new() });
        let (machine, disk) = (self.sim.machine(&format!("laptop {key}")), SimDisk::new(&self.sim, 1 << 30));
        let client = self.client(&machine, &disk, &network);
        (client, network, disk, machine)
    }
}
