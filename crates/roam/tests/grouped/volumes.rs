//! Several volumes of one home, whose clients share a connection.

use crate::rig::session::{How, Op, find, perform, read_all};
use crate::rig::tree::Tree;
use crate::rig::{Network, Rig, VOLUME};
use host::sim::{Machine, SimDisk};
use host::{SplitMix64, join_all};
use roam::{COMMIT_TIME_MAX, Client, Consistency, LinkState, Trunk};
use roam_proto::message::User;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::FsError;
use vfs::FileSystem;
use vfs::mem::MemFs;

const DELAY: Duration = Duration::from_millis(50);
const MORE: [&str; 2] = ["music", "photos"];
const ROOT: User = User { uid: 0, gid: 0, groups: Vec::new() };

/// A machine that uses three volumes of a home.
struct Laptop {
    network: Network,
    machine: Machine,
    trunk: Arc<Trunk>,
    disks: BTreeMap<&'static str, SimDisk>,
    clients: BTreeMap<&'static str, Client>,
}

fn volumes() -> impl Iterator<Item = &'static str> {
    MORE.into_iter().chain([VOLUME])
}

impl Laptop {
    fn new(rig: &Rig, key: u8) -> Laptop {
        let network = rig.network(key, DELAY);
        rig.enroll(&network, ROOT);
        let machine = rig.sim.machine(&format!("laptop {key}"));
        let disks = volumes().map(|volume| (volume, SimDisk::new(&rig.sim, 1 << 30))).collect();
        let trunk = Trunk::new(&machine.host(), Arc::new(network.clone()));
        let mut laptop = Laptop { network, machine, trunk, disks, clients: BTreeMap::new() };
        laptop.open(rig);
        laptop
    }

    fn open(&mut self, rig: &Rig) {
        for (number, volume) in (0..).zip(volumes()) {
            let line = self.trunk.line(number).expect("a line");
            let client = rig.client_on(line, volume, &self.machine, &self.disks[volume]);
            self.clients.insert(volume, client);
        }
    }

    fn restart(&mut self, rig: &Rig, name: &str) {
        self.machine.crash();
        self.clients.clear();
        self.machine = rig.sim.machine(name);
        self.trunk = Trunk::new(&self.machine.host(), Arc::new(self.network.clone()));
        self.open(rig);
    }

    /// Goes out of reach, and changes each volume there, so that the clients notice the loss.
    fn leave(&self, rig: &Rig) {
        for client in self.clients.values() {
            rig.sim.block_on(perform(client, &Op::List("/".into()))).expect("list");
        }
        self.network.up.store(false, Relaxed);
        for (volume, client) in &self.clients {
            write(rig, client, "/made away", volume);
        }
    }

    fn states(&self) -> Vec<LinkState> {
        self.clients.values().map(|client| client.look(|_, state| state)).collect()
    }
}

fn rig(seed: u64) -> Rig {
    let mut rig = Rig::new(seed);
    rig.serve_more(&MORE);
    rig
}

fn source<'a>(rig: &'a Rig, volume: &str) -> &'a MemFs {
    rig.others.get(volume).unwrap_or(&rig.fs)
}

/// A volume's tree at home, as other programs use it.
fn others(rig: &Rig, volume: &str) -> Tree {
    let running = rig.home.lock().clone().expect("home");
    running.others.get(volume).unwrap_or(&running.tree).clone()
}

fn write(rig: &Rig, fs: &dyn FileSystem, path: &str, text: &str) {
    let op = Op::Write(path.into(), How::Replace, text.into());
    rig.sim.block_on(perform(fs, &op)).unwrap_or_else(|error| panic!("{path}: {error}"));
}

fn read(rig: &Rig, fs: &dyn FileSystem, path: &str) -> Result<String, FsError> {
    let read = rig.sim.block_on(async { read_all(fs, find(fs, path).await?).await });
    read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[test]
fn all_volumes_share_one_connection_and_each_has_its_own_files() {
    let rig = rig(1);
    let laptop = Laptop::new(&rig, 1);
    let dialed = laptop.network.dialed.load(Relaxed);
    // One of the two was for accepting the invitation.
    assert_eq!(dialed, 2);
    for (volume, client) in &laptop.clients {
        write(&rig, client, "/here", volume);
        write(&rig, &others(&rig, volume), "/there", volume);
    }
    rig.sim.run_for(Duration::from_secs(5));
    for (volume, client) in &laptop.clients {
        assert_eq!(read(&rig, source(&rig, volume), "/here").as_deref(), Ok(*volume));
        assert_eq!(read(&rig, client, "/there").as_deref(), Ok(*volume));
        // The home tells of changes that others make to cached files.
        write(&rig, &others(&rig, volume), "/there", "changed");
    }
    rig.sim.run_for(Duration::from_secs(5));
    for client in laptop.clients.values() {
        assert_eq!(read(&rig, client, "/there").as_deref(), Ok("changed"));
    }
    assert_eq!(laptop.network.dialed.load(Relaxed), dialed);
}

#[test]
fn a_volume_that_is_refused_or_turned_off_does_not_disturb_the_others() {
    let rig = rig(1);
    let laptop = Laptop::new(&rig, 1);
    let refused = laptop.trunk.line(7).expect("a line");
    let disk = SimDisk::new(&rig.sim, 1 << 30);
    let refused = rig.client_on(refused, "nothing", &laptop.machine, &disk);
    let off = &laptop.clients[MORE[0]];
    off.pin(Some(LinkState::Disconnected));
    let file = &laptop.clients[MORE[1]];
    write(&rig, &others(&rig, MORE[1]), "/file", "1");
    assert_eq!(read(&rig, file, "/file").as_deref(), Ok("1"));
    let calls = file.consistency_calls();
    rig.sim.run_for(Duration::from_secs(300));
    assert_eq!(refused.look(|_, state| state), LinkState::Disconnected);
    let states = [LinkState::Disconnected, LinkState::Weak, LinkState::Weak];
    assert_eq!(laptop.states(), states);
    // None of the other volumes has attached again, and they still get their pushes.
    assert_eq!(file.consistency_calls(), calls);
    write(&rig, &others(&rig, MORE[1]), "/file", "2");
    rig.sim.run_for(Duration::from_secs(2));
    assert_eq!(read(&rig, file, "/file").as_deref(), Ok("2"));
    off.pin(None);
    rig.sim.run_for(Duration::from_secs(30));
    assert_eq!(laptop.states(), [LinkState::Weak; 3]);
}

#[test]
fn after_a_gap_all_volumes_come_back_on_one_connection() {
    let rig = rig(1);
    let laptop = Laptop::new(&rig, 1);
    laptop.leave(&rig);
    rig.crash_home();
    rig.start_home();
    rig.sim.run_for(Duration::from_secs(60));
    assert_eq!(laptop.states(), [LinkState::Disconnected; 3]);
    let dialed = laptop.network.dialed.load(Relaxed);
    laptop.network.up.store(true, Relaxed);
    rig.sim.run_for(Duration::from_secs(30));
    assert_eq!(laptop.states(), [LinkState::Weak; 3]);
    assert_eq!(laptop.network.dialed.load(Relaxed), dialed + 1);
    for volume in volumes() {
        assert_eq!(read(&rig, source(&rig, volume), "/made away").as_deref(), Ok(volume));
    }
}

/// The connection and the pushes on it have outlived the gap. So one question is enough for all
/// volumes.
#[test]
fn after_a_short_gap_one_question_is_asked_for_all_volumes() {
    let rig = rig(1);
    let laptop = Laptop::new(&rig, 1);
    for (volume, client) in &laptop.clients {
        write(&rig, &others(&rig, volume), "/file", "1");
        assert_eq!(read(&rig, client, "/file").as_deref(), Ok("1"));
    }
    // The client is no longer sure that all pushes have come.
    rig.sim.run_for(Duration::from_secs(10));
    let (dialed, asked) = (laptop.network.dialed.load(Relaxed), laptop.network.requests.load(Relaxed));
    laptop.network.up.store(false, Relaxed);
    let walks = laptop.clients.values().map(|client| client.walk(|_| {}));
    let walked = rig.sim.block_on(join_all(walks.collect::<Vec<_>>()));
    assert!(walked.into_iter().all(|walk| walk == Err(FsError::TimedOut)));
    assert_eq!(laptop.states(), [LinkState::Disconnected; 3]);
    for (volume, client) in &laptop.clients {
        write(&rig, &others(&rig, volume), "/file", "2");
        assert_eq!(read(&rig, client, "/file").as_deref(), Ok("1"));
    }
    laptop.network.up.store(true, Relaxed);
    rig.sim.run_for(Duration::from_secs(5));
    assert_eq!(laptop.states(), [LinkState::Weak; 3]);
    assert_eq!((laptop.network.dialed.load(Relaxed), laptop.network.requests.load(Relaxed)), (dialed, asked + 1));
    for client in laptop.clients.values() {
        assert_eq!(read(&rig, client, "/file").as_deref(), Ok("2"));
    }
}

/// The client hears nothing of the home for long. It does not give the connection up for a new one
/// that cannot be made.
#[test]
fn regression_a_connection_outlives_a_gap_that_was_noticed() {
    let rig = rig(1);
    let laptop = Laptop::new(&rig, 1);
    for (volume, client) in &laptop.clients {
        write(&rig, &others(&rig, volume), "/file", "1");
        assert_eq!(read(&rig, client, "/file").as_deref(), Ok("1"));
    }
    laptop.network.up.store(false, Relaxed);
    for (volume, client) in &laptop.clients {
        write(&rig, client, "/made away", volume);
        write(&rig, &others(&rig, volume), "/file", "2");
    }
    rig.sim.run_for(Duration::from_secs(3600));
    assert_eq!(laptop.states(), [LinkState::Disconnected; 3]);
    let dialed = laptop.network.dialed.load(Relaxed);
    laptop.network.up.store(true, Relaxed);
    rig.sim.run_for(Duration::from_secs(5));
    assert_eq!(laptop.states(), [LinkState::Weak; 3]);
    for (volume, client) in &laptop.clients {
        assert_eq!(read(&rig, client, "/file").as_deref(), Ok("2"));
        assert_eq!(read(&rig, source(&rig, volume), "/made away").as_deref(), Ok(*volume));
    }
    assert_eq!(laptop.network.dialed.load(Relaxed), dialed);
}

/// A user turns the connection off while the home is out of reach. It stays off when the home is
/// back.
#[test]
fn regression_who_turns_the_connection_off_in_a_tunnel_stays_off() {
    let rig = rig(1);
    let laptop = Laptop::new(&rig, 1);
    laptop.leave(&rig);
    rig.sim.run_for(Duration::from_secs(60));
    laptop.clients.values().for_each(|client| client.pin(Some(LinkState::Disconnected)));
    rig.sim.run_for(Duration::from_secs(1));
    laptop.network.up.store(true, Relaxed);
    let asked = laptop.network.requests.load(Relaxed);
    for volume in laptop.clients.keys() {
        write(&rig, &others(&rig, volume), "/there", "1");
    }
    let pushed = laptop.network.kinds.lock().get("Changed").copied();
    rig.sim.run_for(Duration::from_secs(120));
    assert_eq!(laptop.states(), [LinkState::Disconnected; 3]);
    assert_eq!(laptop.network.requests.load(Relaxed), asked);
    assert_eq!(laptop.network.kinds.lock().get("Changed").copied(), pushed);
    laptop.clients.values().for_each(|client| client.pin(None));
    rig.sim.run_for(Duration::from_secs(30));
    assert_eq!(laptop.states(), [LinkState::Weak; 3]);
}

/// Links that come and go, crashes of both sides, lost requests and answers, and changes of
/// consistency: in the end all is home, in its volume.
#[test]
fn model_volumes_on_a_bad_link_converge() {
    for seed in crate::rig::seeds(0, 20) {
        let rig = rig(seed);
        let random = SplitMix64::new(seed);
        let mut laptop = Laptop::new(&rig, 1);
        let mut expected = BTreeMap::new();
        for step in 0..60 {
            let volume = volumes().nth(random.below(3) as usize).expect("a volume");
            let client = laptop.clients[volume].clone();
            match random.below(12) {
                0 => laptop.network.up.store(false, Relaxed),
                1 | 2 => laptop.network.up.store(true, Relaxed),
                3 => laptop.network.lose_requests.store(random.below(2) == 0, Relaxed),
                4 => laptop.network.lose_answers.store(random.below(2) == 0, Relaxed),
                5 => {
                    rig.sync();
                    rig.crash_home();
                    rig.start_home();
                }
                6 => {
                    // A crash takes what was not durable yet.
                    rig.sim.run_for(2 * COMMIT_TIME_MAX);
                    laptop.restart(&rig, &format!("laptop at {step}"));
                }
                7 => client.pin([None, Some(LinkState::Disconnected)][random.below(2) as usize]),
                8 => client.set(|settings| {
                    settings.consistency = [Consistency::Callbacks, Consistency::Strong][random.below(2) as usize];
                }),
                _ => {
                    let (path, text) = (format!("/{}", random.below(4)), format!("{volume} {step}"));
                    let op = Op::Write(path.clone(), How::Replace, text.clone().into());
                    // A file that was never seen here cannot be made while the client cannot know
                    // whether it exists.
                    if rig.sim.block_on(perform(&client, &op)).is_ok() {
                        expected.insert((volume, path), text);
                    }
                }
            }
            rig.sim.run_for(Duration::from_millis(random.below(4000)));
        }
        laptop.network.up.store(true, Relaxed);
        laptop.network.lose_requests.store(false, Relaxed);
        laptop.network.lose_answers.store(false, Relaxed);
        laptop.clients.values().for_each(|client| client.pin(None));
        rig.sim.run_for(Duration::from_secs(300));
        for ((volume, path), text) in expected {
            assert_eq!(read(&rig, source(&rig, volume), &path), Ok(text), "seed {seed}: {volume}{path}");
        }
        for (volume, client) in &laptop.clients {
            assert_eq!(client.look(|replica, _| replica.log().len()), 0, "seed {seed}: {volume}");
            assert_eq!(client.look(|replica, _| replica.conflicts().count()), 0, "seed {seed}: {volume}");
        }
        rig.crash_home();
    }
}

/// The bound of the cache is for all volumes together: the others give up the room that one needs.
#[test]
fn volumes_share_the_room_that_there_is() {
    const LEN: usize = 100_000;
    let rig = rig(1);
    let laptop = Laptop::new(&rig, 1);
    for (volume, client) in &laptop.clients {
        client.set(|settings| settings.cache_bytes = 10 * LEN as u64);
        for number in 0..8 {
            let write = Op::Write(format!("/{number}"), How::Replace, vec![number; LEN]);
            rig.sim.block_on(perform(&others(&rig, volume), &write)).expect("written");
        }
        rig.sim.run_for(Duration::from_secs(5));
        for number in 0..8 {
            assert!(rig.sim.block_on(perform(client, &Op::Read(format!("/{number}")))).is_ok());
        }
        rig.sim.run_for(Duration::from_secs(10));
        let cached = laptop.clients.values().map(Client::cached_bytes).sum::<u64>();
        assert!(cached <= 10 * LEN as u64, "{volume}: {cached}");
        assert!(client.cached_bytes() > 0, "{volume} has room, too");
    }
}
