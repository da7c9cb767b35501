//! The maps of a whole machine: changed, pushed to the stores, and found again after any fault of
//! the consensus folder.

use cluster::StorePlace;
use cluster::machine::{CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, StartError, create};
use cluster::maps::ChangeError;
use host::Disk;
use host::sim::{Sim, SimDisk};
use std::sync::Arc;
use storage::server::StoreServer;

const STORE_BYTES: u64 = 128 << 20;
const STORES: usize = 4;

/// A file system on simulated disks.
struct Rig {
    sim: Sim,
    stores: Vec<SimDisk>,
    consensus: SimDisk,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let sim = Sim::new(seed);
        let disk = || SimDisk::new(&sim, 2 * STORE_BYTES);
        let rig = Rig { stores: (0..STORES).map(|_| disk()).collect(), consensus: disk(), sim: sim.clone() };
        rig.create().expect("create");
        rig
    }

    fn create(&self) -> Result<(), StartError> {
        let machine = self.sim.machine("one");
        let places: Vec<StorePlace> = self.stores.iter().map(|disk| disk.mount(&machine).into()).collect();
        let consensus: Arc<dyn Disk> = self.consensus.mount(&machine);
        let how = Create { parity: 1, block_size: 65536, manager_count: 2, store_capacity_bytes: Some(STORE_BYTES) };
        self.sim.block_on(create(&machine.host(), &places, &consensus, how)).map(drop)
    }

    /// Starts a machine after a crash of the one before; `away`: a store that is not there.
    fn start_without(&self, away: Option<usize>) -> Result<CoreMachine, StartError> {
        self.sim.machine("one").crash();
        let machine = self.sim.machine("one");
        let mount = |(at, disk): (usize, &SimDisk)| (Some(at) != away).then(|| disk.mount(&machine));
        let places: Vec<StorePlace> = self.stores.iter().enumerate().map(mount).map(StorePlace::from).collect();
        let consensus: Arc<dyn Disk> = self.consensus.mount(&machine);
        let how = Run {
            cache_bytes: 16 << 20,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
            index_range_len: INDEX_RANGE_LEN,
            manager_lengths: Lengths::LARGEST,
            accepts_loss: false,
            claim: cluster::Claim::NONE,
        };
        self.sim.block_on(CoreMachine::start(machine.host(), &places, &consensus, how))
    }

    fn start(&self) -> CoreMachine {
        self.start_without(None).unwrap_or_else(|e| panic!("start: {e}"))
    }

    /// Raises the manager map's epoch; gives that of the maps.
    fn change(&self, machine: &CoreMachine) -> Result<u64, ChangeError> {
        self.sim.block_on(machine.change_maps(|config| config.managers.epoch += 1))
    }

    /// Epochs of the maps that the stores have.
    fn epochs(&self) -> Vec<u64> {
        self.sim.machine("one").crash();
        let machine = self.sim.machine("one");
        let epoch = |disk: &SimDisk| {
            let open = StoreServer::open(machine.host(), disk.mount(&machine));
            let maps = async { storage::api::Storage::maps(&*open.await.expect("open")).await };
            self.sim.block_on(maps).expect("maps").epoch
        };
        self.stores.iter().map(epoch).collect()
    }
}

#[test]
fn a_changed_map_is_in_force_at_the_next_start_and_with_every_store() {
    let rig = Rig::new(1);
    let machine = rig.start();
    assert_eq!((machine.maps.maps().epoch, machine.config.managers.epoch), (1, 1));
    assert_eq!(rig.change(&machine).expect("change"), 2);
    assert_eq!(rig.change(&machine).expect("change"), 3);
    assert_eq!(machine.maps.status().epoch, 3);
    let refused = rig.sim.block_on(machine.change_maps(|config| config.parity = 2));
    assert!(matches!(refused, Err(ChangeError::Fixed(_))), "{refused:?}");
    assert_eq!(rig.epochs(), [3; STORES]);
    let machine = rig.start();
    assert_eq!((machine.maps.maps().epoch, machine.config.managers.epoch), (3, 3));
    assert_eq!(machine.maps.status().rebuilt, None);
}

#[test]
fn a_store_that_was_away_gets_the_maps_when_it_is_back() {
    let rig = Rig::new(2);
    let machine = rig.start_without(Some(2)).expect("start");
    rig.change(&machine).expect("change");
    assert_eq!(rig.epochs(), [2, 2, 1, 2]);
    rig.start();
    assert_eq!(rig.epochs(), [2; STORES]);
}

#[test]
fn a_lost_consensus_folder_is_made_anew_from_whatever_stores_are_there() {
    for away in [None, Some(0), Some(1), Some(2), Some(3)] {
        let rig = Rig::new(3);
        let machine = rig.start();
        rig.change(&machine).expect("change");
        rig.consensus.wipe();
        let machine = rig.start_without(away).expect("start");
        let status = machine.maps.status();
        // One epoch is left out: the lost folder may have decided it.
        assert_eq!((status.epoch, machine.config.managers.epoch), (4, 2));
        assert!(status.rebuilt.is_some_and(|why| why.contains("empty")));
        assert_eq!(rig.change(&machine).expect("change"), 5);
        let machine = rig.start();
        assert_eq!((machine.maps.status().epoch, machine.maps.status().rebuilt), (5, None));
        assert_eq!(rig.epochs(), [5; STORES]);
    }
}

#[test]
fn a_rotten_consensus_folder_is_made_anew() {
    let rig = Rig::new(4);
    let machine = rig.start();
    rig.change(&machine).expect("change");
    rig.sim.machine("one").crash();
    for name in consensus::files::NAMES {
        rig.consensus.rot(name, 8192..u64::MAX, 100);
    }
    let machine = rig.start();
    let status = machine.maps.status();
    assert_eq!((status.epoch, machine.config.managers.epoch), (4, 2));
    assert!(status.rebuilt.is_some_and(|why| why.contains("damaged")));
}

#[test]
fn a_consensus_folder_out_of_a_backup_takes_the_newer_maps_of_the_stores() {
    let rig = Rig::new(5);
    let backup = rig.consensus.snapshot();
    let machine = rig.start();
    rig.change(&machine).expect("change");
    rig.change(&machine).expect("change");
    rig.sim.machine("one").crash();
    rig.consensus.restore(&backup);
    let machine = rig.start();
    let status = machine.maps.status();
    assert_eq!((status.epoch, machine.config.managers.epoch), (5, 3));
    assert!(status.rebuilt.is_some_and(|why| why.contains("epoch 1, the stores of 3")));
    assert_eq!(rig.epochs(), [5; STORES]);
}

#[test]
fn what_was_decided_and_not_pushed_is_pushed_at_the_next_start() {
    let rig = Rig::new(6);
    let machine = rig.start();
    rig.stores.iter().for_each(|disk| disk.offline(true));
    assert!(matches!(rig.change(&machine), Err(ChangeError::Push(_))));
    rig.stores.iter().for_each(|disk| disk.offline(false));
    assert_eq!(rig.epochs(), [1; STORES]);
    let machine = rig.start();
    assert_eq!((machine.maps.maps().epoch, machine.config.managers.epoch), (2, 2));
    assert_eq!(rig.epochs(), [2; STORES]);
}

#[test]
fn maps_that_only_a_lost_folder_and_a_missing_store_had_never_return() {
    let rig = Rig::new(7);
    let machine = rig.start();
    // Decided, and with store 0 only.
    rig.stores[1..].iter().for_each(|disk| disk.offline(true));
    assert!(matches!(rig.change(&machine), Err(ChangeError::Push(_))));
    rig.stores.iter().for_each(|disk| disk.offline(false));
    assert_eq!(rig.epochs(), [2, 1, 1, 1]);
    rig.consensus.wipe();
    let machine = rig.start_without(Some(0)).expect("start");
    assert_eq!((machine.maps.maps().epoch, machine.config.managers.epoch), (3, 1));
    rig.consensus.wipe();
    let machine = rig.start();
    assert_eq!(machine.config.managers.epoch, 1);
    assert_eq!(rig.epochs(), [5; STORES]);
}

#[test]
fn a_consensus_folder_of_another_file_system_is_refused_in_one_line() {
    let (rig, other) = (Rig::new(8), Rig::new(9));
    rig.consensus.restore(&other.consensus.snapshot());
    let refused = rig.start_without(None).err().expect("refused");
    assert!(matches!(refused, StartError::ForeignConsensus { .. }), "{refused}");
    assert!(!refused.to_string().contains('\n') && refused.to_string().contains("remove it"), "{refused}");
}

#[test]
fn without_a_usable_consensus_folder_all_works_but_changing_the_maps() {
    let rig = Rig::new(10);
    rig.start();
    rig.consensus.offline(true);
    let machine = rig.start();
    assert!(machine.maps.status().voter.is_err());
    assert!(matches!(rig.change(&machine), Err(ChangeError::NoVoter(_))));
    rig.sim.block_on(machine.stop()).expect("stop");
    rig.consensus.offline(false);
    let machine = rig.start();
    assert_eq!(machine.maps.status().rebuilt, None);
    assert_eq!(rig.change(&machine).expect("change"), 2);
}

#[test]
fn a_new_file_system_takes_over_a_consensus_folder_that_an_earlier_attempt_left() {
    let rig = Rig::new(11);
    let machine = rig.start();
    rig.change(&machine).expect("change");
    assert!(matches!(rig.create(), Err(StartError::Exists(_))), "the stores are in use");
    rig.stores.iter().for_each(SimDisk::wipe);
    rig.create().expect("create");
    let machine = rig.start();
    assert_eq!((machine.maps.maps().epoch, machine.maps.status().rebuilt), (1, None));
}
