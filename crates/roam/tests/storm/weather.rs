//! The faults of clients, networks and the home while clients work, and how they end.

use crate::Outcome;
use crate::rig::session::{Op, perform};
use crate::rig::{Network, Rig, VOLUME};
use crate::together::tags_of;
use crate::trees::make_quiet_files;
use crate::worker::{Ledger, Mind, Sort, Worker, say};
use host::SplitMix64;
use host::sim::{DiskSnapshot, Machine, SimDisk};
use parking_lot::Mutex;
use record_log::LOG_LEN;
use roam::{Client, Consistency, Durability, Line, Settings, Unit, Validation, Writes};
use roam_proto::message::User;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use types::FileId;
use vfs::FileSystem;
use vfs::fs::{Cred, SetAttr};
use vfs::mem::MemFs;

/// Virtual time after which all must be quiet.
const QUIET_TIME_MAX: Duration = Duration::from_secs(1200);
/// A user other than the superuser.
const USER: u32 = 1000;
/// Longest file that a disk takes when a file is cut or extended.
pub const FILE_LEN_MAX: u64 = 1 << 40;
/// Time that it takes to restore a home.
const RESTORE_TIME: Duration = Duration::from_secs(120);
/// Capacity of a disk that is not full.
const DISK_LEN: u64 = 1 << 30;
/// Bytes that small caches may hold.
const CACHE_LEN_SMALL: u64 = 60_000;

pub struct Laptop {
    pub network: Network,
    pub disk: SimDisk,
    pub running: Option<(Machine, Client)>,
    pub mind: Arc<Mutex<Mind>>,
    pub ended: Arc<AtomicBool>,
}

impl Laptop {
    /// True if a changed file is not wholly here.
    pub fn has_holes(&self) -> bool {
        let is_part = |client: &Client| {
            client.look(|replica, _| replica.nodes().any(|(_, node)| node.is_dirty() && !node.is_whole()))
        };
        self.running.as_ref().is_some_and(|(_, client)| is_part(client))
    }
}

pub struct Storm {
    pub seed: u64,
    pub sort: Sort,
    /// Caches are small.
    small: bool,
    /// Disks are sometimes full.
    full: bool,
    /// Users change the settings of their mounts, and not all directories of the home can be
    /// watched.
    whims: bool,
    /// Networks deliver requests twice.
    repeats: bool,
    /// Homes that crash end no connection.
    silent_deaths: bool,
    /// The home's state is restored from backups, which may bring clients into conflict with
    /// themselves.
    pub backups: bool,
    backup: Option<DiskSnapshot>,
    /// The silence that clients believe. A network that is down says nothing, so they have to find
    /// out.
    silence_believed: Duration,
    /// The user of all clients, at home and on their machines.
    pub user: Cred,
    pub rig: Rig,
    pub random: SplitMix64,
    pub laptops: Vec<Laptop>,
    pub ledger: Arc<Mutex<Ledger>>,
    pub stop: Arc<AtomicBool>,
    pub outside_count: u64,
    pub outcome: Outcome,
}

impl Storm {
    pub fn new(seed: u64, sort: Sort) -> Storm {
        let random = SplitMix64::new(seed.wrapping_mul(0x9e37) ^ 0x5354_4f52);
        // With pauses, a change by others between two steps of the home would not always be seen.
        let paced = sort == Sort::Alone || sort == Sort::Merging && seed.is_multiple_of(2);
        let mut rig = Rig::with_pace(seed, paced);
        rig.log_len = [LOG_LEN, 1, 4000, LOG_LEN][(seed / 13 % 4) as usize];
        make_quiet_files(&rig);
        // Some storms run as a user who may do less than the superuser.
        let user = match sort == Sort::Merging && !seed.is_multiple_of(3) {
            true => Cred { uid: USER, gid: USER, groups: Vec::new() },
            false => Cred::ROOT,
        };
        let owner = SetAttr { uid: Some(user.uid), gid: Some(user.gid), ..SetAttr::default() };
        rig.sim.block_on(rig.fs.setattr(&Cred::ROOT, FileId::ROOT, None, owner).into_future()).expect("chown");
        rig.sync();
        let mut storm = Storm {
            seed,
            sort,
            small: seed / 3 % 4 % 2 == 1,
            full: seed / 3 % 4 >= 2,
            whims: seed % 5 >= 3,
            repeats: seed % 7 < 3,
            silent_deaths: seed % 11 < 5,
            backups: sort == Sort::Together && seed % 6 == 5,
            backup: None,
            silence_believed: Duration::from_millis([50, 500, 3000, 30_000][(seed / 5 % 4) as usize]),
            user,
            random,
            laptops: Vec::new(),
            ledger: Arc::default(),
            stop: Arc::default(),
            outside_count: 0,
            outcome: Outcome::default(),
            rig,
        };
        for number in 0..2 + storm.random.below(2) {
            storm.add_laptop(number as u8);
        }
        storm
    }

    fn add_laptop(&mut self, number: u8) {
        let delay = Duration::from_millis([1, 3, 60, 200][self.random.below(4) as usize]);
        let network = self.rig.network(number + 1, delay);
        network.repeat_requests.store(self.repeats, Relaxed);
        network.silent_deaths.store(self.silent_deaths, Relaxed);
        let Cred { uid, gid, groups } = self.user.clone();
        self.rig.enroll(&network, User { uid, gid, groups });
        let clock = self.clock();
        let shadow = MemFs::new(Arc::new(move || clock.wall()));
        if self.sort == Sort::Alone {
            let dir = Op::MakeDir(format!("/c{number}"));
            self.rig.sim.block_on(perform(&shadow, &dir)).expect("a directory of its own");
            self.rig.sim.block_on(perform(&self.rig.fs, &dir)).expect("a directory of its own");
            self.rig.sync();
        }
        let mind = Mind {
            number,
            sort: self.sort,
            random: SplitMix64::new(host::Random::next_u64(&self.random)),
            count: 0,
            shadow,
            pending: None,
            unclear: None,
            past: Vec::new(),
            has_lost: false,
            young: BTreeMap::new(),
            lines: String::new(),
            keeps_a_list: !self.backups,
            line: None,
            inside: None,
        };
        let disk = SimDisk::new(&self.rig.sim, DISK_LEN);
        disk.set_file_len_max(FILE_LEN_MAX);
        let (mind, ended) = (Arc::new(Mutex::new(mind)), Arc::default());
        self.laptops.push(Laptop { network, disk, running: None, mind, ended });
        let last = self.laptops.len() - 1;
        self.start(last);
        self.rig.sim.run_for(Duration::from_secs(1));
    }

    fn clock(&self) -> Arc<dyn host::Clock> {
        self.rig.sim.machine("clock").host().clock
    }

    pub fn say(&self, what: impl std::fmt::Display) {
        say(&*self.clock(), "world", what);
    }

    /// How soon the clients' operations are durable.
    fn durability(&self) -> Durability {
        match self.seed % 8 {
            1 | 6 | 7 => Durability::Always,
            _ if self.sort == Sort::Merging => Durability::Always,
            _ => Durability::Grouped,
        }
    }

    fn start(&mut self, number: usize) {
        let durability = self.durability();
        let laptop = &mut self.laptops[number];
        if laptop.running.is_some() {
            return;
        }
        let machine = self.rig.sim.machine(&format!("laptop {number}"));
        let mut settings = Settings::new(VOLUME);
        if self.small {
            settings.cache_bytes = CACHE_LEN_SMALL;
        }
        if self.seed % 11 < 4 {
            settings.cache_files = 3 + (self.seed / 11 % 30) as usize;
        }
        if self.whims {
            behave(&mut settings, &self.random);
        }
        settings.silence_believed = self.silence_believed;
        settings.log_len = self.rig.log_len;
        settings.durability = durability;
        let (host, disk, dialer) = (machine.host(), laptop.disk.mount(&machine), Arc::new(laptop.network.clone()));
        let client = match self.rig.sim.block_on(Client::open(&host, disk, Line::alone(&host, dialer), settings)) {
            Ok(client) => client,
            Err(error) if self.full && error.to_string().contains("make some on its disk") => {
                // Its user makes room, and tries again.
                return laptop.disk.set_capacity(DISK_LEN);
            }
            Err(error) => return self.ledger.lock().failures.push(format!("opening a cache: {error}")),
        };
        laptop.ended.store(false, Relaxed);
        let worker = Worker {
            cred: self.user.clone(),
            rig_clock: host.clock,
            client: client.clone(),
            mind: laptop.mind.clone(),
            ledger: self.ledger.clone(),
            stop: self.stop.clone(),
        };
        drop(machine.run(worker.work(laptop.ended.clone())));
        laptop.running = Some((machine, client));
        self.say(format!("client {number} starts"));
    }

    fn crash(&mut self, number: usize) {
        let power = self.random.chance(1, 2);
        let Some((machine, _)) = self.laptops[number].running.take() else { return };
        machine.crash();
        self.laptops[number].mind.lock().crashed();
        if power {
            self.laptops[number].disk.power_loss();
        }
        self.outcome.crashes += 1;
        self.outcome.note_if(true, if power { "client loses power" } else { "client crashes" });
        self.say(format!("client {number} crashes{}", if power { ", and loses power" } else { "" }));
    }

    fn crash_home(&mut self) {
        self.rig.crash_home();
        let power = self.random.chance(1, 2);
        if power {
            self.rig.lose_power(self.random.chance(1, 2));
        }
        self.outcome.crashes += 1;
        self.outcome.note_if(true, if power { "home loses power" } else { "home crashes" });
        self.say(format!("the home crashes{}", if power { ", and loses power" } else { "" }));
    }

    fn start_home(&mut self) {
        let up = self.rig.home.lock().as_ref().is_some_and(|home| home.machine.is_up());
        if !up {
            // The home may have crashed by itself.
            self.crash_home();
            self.rig.start_home();
            self.say("the home starts");
        }
    }

    /// Other programs fill the disk of a client, or make room.
    fn fill_disk(&mut self, number: usize) {
        let laptop = &self.laptops[number];
        let Some((machine, _)) = &laptop.running else { return };
        let Ok(space) = self.rig.sim.block_on(laptop.disk.mount(machine).space()) else { return };
        let is_full = space.total_bytes < DISK_LEN;
        let capacity = match is_full {
            true if self.random.chance(1, 2) => DISK_LEN,
            true => return,
            false => space.total_bytes - space.free_bytes + self.random.below(20_000),
        };
        laptop.disk.set_capacity(capacity);
        self.outcome.note_if(!is_full, "disk full");
        self.say(format!("disk {number} full: {}", !is_full));
    }

    /// Another program changes the home's files.
    fn outside(&mut self) {
        self.outside_count += 1;
        let tag = format!("<o-{}>", self.outside_count);
        if self.sort == Sort::Merging {
            return self.outside_merging();
        }
        let top = if self.sort == Sort::Alone { "/others" } else { "" };
        let op = Op::random(&self.random, top, &tag);
        let fs = self.rig.fs.clone();
        let before = tags_of(&fs);
        let links = |path: &str| {
            let tree = fs.dump();
            tree.iter().find(|entry| entry.path == path.as_bytes()).map_or(0, |entry| entry.attr.nlink)
        };
        let running = self.rig.home.lock().clone();
        // The home changes a file with several names in place. So others change such a file only
        // while the home is down.
        let is_down = running.as_ref().is_none_or(|home| !home.machine.is_up());
        let in_place = op.writes().is_some_and(|path| links(path) > 1);
        if in_place && !is_down {
            return;
        }
        self.outcome.in_place += u64::from(in_place);
        let tree = running.map(|home| home.tree).filter(|_| !self.rig.paced);
        let done = match &tree {
            Some(tree) => self.rig.sim.block_on(perform(tree, &op)),
            None => self.rig.sim.block_on(perform(&fs, &op)),
        };
        self.rig.sync();
        self.say(format!("others: {op:.60?}: {done:?}"));
        if (tree.is_none() || self.random.chance(1, 8))
            && let Some(home) = &*self.rig.home.lock()
        {
            home.tree.lose_events();
        }
        let after = tags_of(&fs);
        let mut ledger = self.ledger.lock();
        ledger.dropped.extend(&before - &after);
        ledger.acked.extend((&after - &before).into_iter().map(|tag| (tag, String::new())));
    }

    /// Another program removes the folder in which the home makes files that it stores.
    fn remove_own(&mut self) {
        let all = self.rig.fs.dump().into_iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned());
        let inside: Vec<String> = all.filter(|path| path.starts_with("/.starling/")).collect();
        if self.sort == Sort::Alone && inside.iter().any(|path| path.starts_with("/.starling/before-")) {
            // Without its copy, the home cannot tell a store that it has half done from a change by
            // others.
            return;
        }
        let count = inside.len();
        let mut removals = inside.into_iter().map(Op::Unlink).chain([Op::RemoveDir("/.starling".into())]);
        let removed = removals.try_for_each(|op| self.rig.sim.block_on(perform(&self.rig.fs, &op)));
        if removed.is_err() {
            return;
        }
        self.outcome.removed_own += 1;
        self.rig.sync();
        if let Some(home) = &*self.rig.home.lock() {
            home.tree.tell_name(FileId::ROOT, b".starling");
        }
        self.say(format!("others: remove the home's own folder, with {count} files"));
    }

    /// Takes a backup of the home's state. Or crashes the home, and starts it again with the last
    /// backup.
    fn restore_home(&mut self) {
        let Some(backup) = self.backup.take() else {
            self.backup = Some(self.rig.disk.snapshot());
            return self.say("a backup of the home's state");
        };
        self.crash_home();
        self.rig.disk.restore(&backup);
        // Ids follow the clock. It takes some seconds until the ids of a range that was given lie
        // in the past.
        self.rig.sim.run_for(RESTORE_TIME);
        self.outcome.restored += 1;
        self.say("the home's state is restored");
    }

    pub fn step(&mut self) {
        let number = self.random.below(self.laptops.len() as u64) as usize;
        let network = self.laptops[number].network.clone();
        match self.random.below(21) {
            0..=3 => {
                let up = !network.up.load(Relaxed);
                network.up.store(up, Relaxed);
                self.outcome.note_if(!up, "network down");
                self.say(format!("network {number} up: {up}"));
            }
            4 => {
                let lose = !network.lose_requests.load(Relaxed);
                network.lose_requests.store(lose, Relaxed);
                self.outcome.note_if(lose, "requests lost");
                self.say(format!("network {number} loses requests: {lose}"));
            }
            5 | 6 => {
                let lose = !network.lose_answers.load(Relaxed);
                network.lose_answers.store(lose, Relaxed);
                self.outcome.note_if(lose, "answers lost");
                self.say(format!("network {number} loses answers: {lose}"));
            }
            7 => {
                let lag = [0, 0, 500, 15_000][self.random.below(4) as usize];
                let answers = self.random.chance(1, 2);
                let late = if answers { &network.answer_lag_ms } else { &network.lag_ms };
                late.store(lag, Relaxed);
                self.outcome.note_if(lag > 0, "lag");
                self.say(format!(
                    "network {number} lags {lag} ms with {}",
                    if answers { "answers" } else { "requests" }
                ));
            }
            8 | 9 => self.crash(number),
            10 => {
                if let Some((machine, _)) = &self.laptops[number].running {
                    machine.crash_after(self.random.below(200));
                }
            }
            11 => self.crash_home(),
            12 => {
                let running = self.rig.home.lock().clone();
                if let Some(home) = running {
                    home.machine.crash_after(self.random.below(300));
                }
            }
            13..=15 => self.outside(),
            16..=18 if self.full => self.fill_disk(number),
            19 => {
                let rate = [0, 0, 3000, 20_000][self.random.below(4) as usize];
                network.bytes_per_second.store(rate, Relaxed);
                self.outcome.note_if(rate > 0, "slow link");
                self.say(format!("network {number} carries {rate} bytes in a second"));
            }
            20 if self.backups && self.random.chance(1, 2) => self.restore_home(),
            20 => self.remove_own(),
            _ => {}
        }
        for number in 0..self.laptops.len() {
            let dead = self.laptops[number].running.as_ref().is_some_and(|(machine, _)| !machine.is_up());
            if dead {
                self.crash(number);
            }
            if self.random.chance(1, 3) {
                self.start(number);
            }
        }
        if self.random.chance(1, 3) {
            self.start_home();
        }
        if self.whims {
            self.have_whims(number);
        }
    }

    fn have_whims(&mut self, number: usize) {
        if self.random.chance(1, 5)
            && let Some((_, client)) = &self.laptops[number].running
        {
            client.set(|settings| behave(settings, &self.random));
            let Settings { consistency, writes, unit, validation, .. } = client.settings();
            self.say(format!("client {number} behaves anew: {consistency:?}, {writes:?}, {unit:?}, {validation:?}"));
        }
        if self.random.chance(1, 5) {
            self.watch_no_more(self.random.chance(1, 2));
        }
    }

    /// Sets whether the home can watch no more directories.
    fn watch_no_more(&self, enough: bool) {
        if let Some(home) = &*self.rig.home.lock() {
            home.tree.watch_no_more(enough);
            self.say(format!("no more can be watched: {enough}"));
        }
    }

    pub fn check_failures(&self) -> Result<(), String> {
        match self.ledger.lock().failures.first() {
            Some(failure) => Err(failure.clone()),
            None => Ok(()),
        }
    }

    /// Makes everything work again, and ends all work of the clients.
    pub fn heal(&mut self) -> Result<(), String> {
        self.say("heals");
        self.stop.store(true, Relaxed);
        let running = self.rig.home.lock().clone();
        if let Some(home) = running {
            home.machine.crash_after(u64::MAX);
        }
        self.start_home();
        for number in 0..self.laptops.len() {
            let network = &self.laptops[number].network;
            network.up.store(true, Relaxed);
            network.lose_requests.store(false, Relaxed);
            network.lose_answers.store(false, Relaxed);
            network.lag_ms.store(0, Relaxed);
            network.answer_lag_ms.store(0, Relaxed);
            network.bytes_per_second.store(0, Relaxed);
            self.laptops[number].disk.set_capacity(DISK_LEN);
            if let Some((machine, _)) = &self.laptops[number].running {
                match machine.is_up() {
                    true => machine.crash_after(u64::MAX),
                    false => self.crash(number),
                }
            }
            self.start(number);
            if let Some((_, client)) = &self.laptops[number].running {
                client.set(|settings| {
                    settings.consistency = Consistency::Callbacks;
                    settings.writes = Writes::Lottery;
                });
            }
        }
        // A client that asks nothing does not notice that its home has died silently.
        for laptop in &self.laptops {
            if let Some((_, client)) = &laptop.running {
                let _ = self.rig.sim.block_on(client.statfs().into_future());
            }
        }
        let until = self.rig.sim.now() + QUIET_TIME_MAX;
        loop {
            self.rig.sim.run_for(Duration::from_secs(20));
            self.check_failures()?;
            let busy = self.laptops.iter().filter_map(|laptop| {
                let (_, client) = laptop.running.as_ref()?;
                let held_up = client.held_up();
                let first = client.look(|replica, state| {
                    let first = replica.log().iter().next().map(|(seq, op)| format!("{seq} {op:?}"));
                    first.map(|first| format!("{first}, {state:?}, held up: {held_up:?}"))
                });
                (!laptop.ended.load(Relaxed)).then(|| "a worker".to_string()).or(first)
            });
            let busy: Vec<String> = busy.collect();
            if busy.is_empty() {
                break;
            }
            if self.rig.sim.now() > until {
                return Err(format!("still waiting: {busy:?}"));
            }
        }
        self.rig.sim.run_for(Duration::from_secs(60));
        self.check_failures()
    }
}

/// Chooses any settings that a user can choose.
fn behave(settings: &mut Settings, random: &SplitMix64) {
    let time = Duration::from_secs(1 + random.below(20));
    settings.consistency = match random.below(5) {
        0 | 1 => Consistency::Callbacks,
        2 => Consistency::Poll(time),
        3 => Consistency::Strong,
        _ => Consistency::None,
    };
    settings.writes = match random.below(6) {
        0 => Writes::Idle,
        1 => Writes::Lottery,
        2 => Writes::Delayed(time),
        3 => Writes::Preemptive,
        4 => Writes::Through,
        _ => Writes::Manual,
    };
    settings.unit = [Unit::Auto, Unit::File, Unit::Block][random.below(3) as usize];
    settings.validation = [Validation::Volume, Validation::Files(1), Validation::Files(50)][random.below(3) as usize];
}
