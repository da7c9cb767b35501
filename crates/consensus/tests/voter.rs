//! The voter on simulated disks: crashes at any point, losses of power, rot, and disks that fail.

use bytes::Bytes;
use consensus::files::{LoadError, NAMES, VoterFiles, VoterHead};
use consensus::wire::{Addressee, VoterReply, VoterRequest};
use consensus::{Consensus, FIRST_VOTER, MAPS_LEN_MAX, ProposeError, VoterOpenError, VoterSettings};
use host::Disk;
use host::sim::{Machine, Sim, SimDisk};
use openraft::Vote;
use openraft::raft::VoteRequest;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use types::{FsUuid, Maps};

const FS: FsUuid = FsUuid([7; 16]);

fn maps(epoch: u64) -> Maps {
    Maps { epoch, bytes: Bytes::from(format!("maps {epoch}")) }
}

/// A disk, and the machine that has it.
struct Rig {
    sim: Sim,
    disk: SimDisk,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let sim = Sim::new(seed);
        let disk = SimDisk::new(&sim, 1 << 30);
        Rig { sim, disk }
    }

    fn machine(&self) -> (Machine, Arc<dyn Disk>) {
        let machine = self.sim.machine("one");
        let folder = self.disk.mount(&machine);
        (machine, folder)
    }

    fn create(&self, epoch: u64) -> Consensus {
        let (machine, folder) = self.machine();
        self.sim
            .block_on(Consensus::create(&machine.host(), &folder, &VoterSettings::alone(), FS, maps(epoch)))
            .expect("create")
    }

    fn open(&self) -> Result<Consensus, VoterOpenError> {
        let (machine, folder) = self.machine();
        self.sim.block_on(Consensus::open(&machine.host(), &folder, &VoterSettings::alone()))
    }

    fn propose(&self, voter: &Consensus, epoch: u64) -> Result<(), ProposeError> {
        self.sim.block_on(voter.propose(epoch - 1, maps(epoch)))
    }

    /// The process dies, and sometimes its machine.
    fn crash(&self, power: bool) {
        self.sim.machine("one").crash();
        if power {
            self.disk.power_loss();
        }
    }
}

#[test]
fn sim_what_was_agreed_on_is_there_after_a_crash_and_a_loss_of_power() {
    for power in [false, true] {
        let rig = Rig::new(1);
        let mut voter = rig.create(1);
        for epoch in 2..100 {
            rig.propose(&voter, epoch).expect("propose");
            assert_eq!(voter.maps(), maps(epoch));
            if epoch % 7 == 0 {
                rig.crash(power);
                voter = rig.open().expect("open");
                assert_eq!((voter.maps(), voter.fs()), (maps(epoch), FS));
                // It leads again without an election.
                assert_eq!((voter.status().term, voter.status().stopped), (1, None));
            }
        }
    }
}

#[test]
fn a_change_that_expects_another_epoch_is_refused_and_says_which_is_in_force() {
    let rig = Rig::new(1);
    let voter = rig.create(4);
    for (expected, epoch) in [(3, 4), (5, 6), (4, 4)] {
        let refused = rig.sim.block_on(voter.propose(expected, maps(epoch)));
        assert!(matches!(refused, Err(ProposeError::Stale { current: 4, .. })), "{refused:?}");
    }
    let long = Maps { epoch: 5, bytes: vec![0; MAPS_LEN_MAX + 1].into() };
    assert!(matches!(rig.sim.block_on(voter.propose(4, long)), Err(ProposeError::TooLong(_))));
    assert_eq!(voter.maps(), maps(4));
    // Of two changes that expect the same epoch, one wins.
    let both = host::join_all(vec![voter.propose(4, maps(5)), voter.propose(4, maps(6))]);
    let won: Vec<bool> = rig.sim.block_on(both).iter().map(Result::is_ok).collect();
    assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
}

#[test]
fn the_folder_does_not_grow_with_the_number_of_changes() {
    let rig = Rig::new(1);
    let voter = rig.create(1);
    let bytes = Bytes::from(vec![9; MAPS_LEN_MAX]);
    for epoch in 2..200 {
        rig.sim.block_on(voter.propose(epoch - 1, Maps { epoch, bytes: bytes.clone() })).expect("propose");
    }
    let (_, folder) = rig.machine();
    for name in NAMES {
        let len = rig.sim.block_on(async { folder.open(name, false).await.expect("open").len().await });
        assert!(len.expect("len") < 20 * MAPS_LEN_MAX as u64, "{name}");
    }
}

#[test]
fn crash_at_any_point_loses_nothing_that_was_acknowledged_and_invents_nothing() {
    let mut seen = BTreeSet::new();
    for seed in 0..400 {
        let rig = Rig::new(seed);
        let voter = rig.create(1);
        rig.propose(&voter, 2).expect("propose");
        let (mut acknowledged, mut attempted) = (2, 2);
        for round in 0..4 {
            let (machine, folder) = rig.machine();
            machine.crash_after(1 + (seed * 7 + round * 13) % 180);
            let host = machine.host();
            let done = Arc::new(parking_lot::Mutex::new((acknowledged, attempted)));
            let work = {
                let done = done.clone();
                async move {
                    let voter = Consensus::open(&host, &folder, &VoterSettings::alone()).await.expect("open");
                    let mut epoch = voter.maps().epoch;
                    loop {
                        epoch += 1;
                        done.lock().1 = epoch;
                        voter.propose(epoch - 1, maps(epoch)).await.expect("propose");
                        done.lock().0 = epoch;
                    }
                }
            };
            assert!(rig.sim.block_on(machine.run::<()>(work)).is_err(), "the machine crashes");
            (acknowledged, attempted) = *done.lock();
            rig.crash(seed % 2 == 0);
            let voter = rig.open().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let found = voter.maps();
            assert_eq!(found, maps(found.epoch));
            assert!(
                (acknowledged..=attempted).contains(&found.epoch),
                "seed {seed}: {} of {acknowledged}..={attempted}",
                found.epoch
            );
            seen.insert(found.epoch - acknowledged);
            (acknowledged, attempted) = (found.epoch, found.epoch);
            rig.crash(seed % 3 == 0);
        }
    }
    assert_eq!(seen, BTreeSet::from([0, 1]), "crashes before and after a change is on the disk");
}

#[test]
fn crash_while_a_group_is_made_leaves_it_whole_or_not_at_all() {
    let (mut whole, mut none) = (0, 0);
    for polls in 1..60 {
        let rig = Rig::new(polls);
        let (machine, folder) = rig.machine();
        machine.crash_after(polls);
        let host = machine.host();
        let alone = VoterSettings::alone();
        let work =
            async move { Consensus::create(&host, &folder, &alone, FS, maps(3)).await.map(drop).expect("create") };
        let _ = rig.sim.block_on(machine.run(work));
        rig.crash(true);
        match rig.open() {
            Ok(voter) => {
                whole += 1;
                assert_eq!(voter.maps(), maps(3));
            }
            Err(VoterOpenError::Empty) => none += 1,
            Err(e) => panic!("after {polls} polls: {e}"),
        }
    }
    assert!(whole > 5 && none > 5, "{whole} whole, {none} empty");
}

#[test]
fn rot_is_said_and_never_brings_back_an_older_state() {
    let (mut intact, mut said) = (0, 0);
    for seed in 0..200 {
        let rig = Rig::new(seed);
        let voter = rig.create(1);
        for epoch in 2..6 {
            rig.propose(&voter, epoch).expect("propose");
        }
        rig.crash(false);
        // Heads have two copies; the bodies have one.
        let range = if seed % 2 == 0 { 0..4096 } else { 8192..u64::MAX };
        for name in NAMES {
            rig.disk.rot(name, range.clone(), 1 + (seed % 40) as u32);
        }
        match rig.open() {
            Ok(voter) => {
                intact += 1;
                assert_eq!(voter.maps(), maps(5), "seed {seed}");
            }
            Err(VoterOpenError::Load(LoadError::Damaged(_))) => said += 1,
            Err(e) => panic!("seed {seed}: {e}"),
        }
    }
    assert!(intact >= 100 && said > 80, "{intact} intact, {said} damaged");
}

#[test]
fn a_torn_write_leaves_the_state_before_it() {
    let rig = Rig::new(3);
    let voter = rig.create(1);
    rig.propose(&voter, 2).expect("propose");
    rig.crash(false);
    // An interrupted write leaves a new body under an old head, in the file that does not count.
    let (_, folder) = rig.machine();
    rig.sim.block_on(async {
        let mut newest = None;
        for name in NAMES {
            let file = folder.open(name, false).await.expect("open");
            let head = VoterHead::decode(&file.read_at(0, 512).await.expect("read")).expect("head");
            if newest.as_ref().is_none_or(|(sequence, _)| *sequence > head.sequence) {
                newest = Some((head.sequence, file));
            }
        }
        let (_, older) = newest.expect("two files");
        older.write_at(8192, vec![Bytes::from(vec![0xee; 700])]).await.expect("write");
        older.write_at(0, vec![Bytes::from(vec![0xee; 300])]).await.expect("write");
    });
    assert_eq!(rig.open().expect("open").maps(), maps(2));
}

#[test]
fn a_failed_sync_stops_the_voter_and_a_restart_finds_one_state_or_the_other() {
    for seed in 0..40 {
        let rig = Rig::new(seed);
        let voter = rig.create(1);
        rig.disk.fail_next_syncs(1);
        assert!(matches!(rig.propose(&voter, 2), Err(ProposeError::Stopped(_))));
        assert!(matches!(rig.propose(&voter, 2), Err(ProposeError::Stopped(_))), "it stays stopped");
        assert!(voter.status().stopped.is_some());
        rig.crash(false);
        let voter = rig.open().expect("open");
        let found = voter.maps().epoch;
        assert!(found == 1 || found == 2);
        // The state that a start has read stays, though the sync that should have kept it had
        // failed.
        rig.crash(true);
        assert_eq!(rig.open().expect("open again").maps().epoch, found);
    }
}

#[test]
fn a_voter_that_is_opened_again_has_its_state_and_keeps_to_its_lease() {
    let rig = Rig::new(3);
    let stopped = rig.create(1);
    let until = rig.sim.block_on(stopped.still_leads()).expect("a lease");
    rig.disk.fail_next_writes(2);
    assert!(matches!(rig.propose(&stopped, 2), Err(ProposeError::Stopped(_))));
    let candidate = VoteRequest { vote: Vote::new(stopped.leadership().term + 1, 2), last_log_id: None };
    let addressee = Addressee { fs: FS, voter: FIRST_VOTER };
    let ask = |voter: &Consensus, request: VoterRequest| {
        let reply = rig.sim.block_on(voter.answer(&request.encode(addressee))).expect("a request");
        VoterReply::decode(&reply).expect("a reply")
    };
    assert!(rig.sim.block_on(stopped.open_again()).is_err(), "the disk still fails");
    let again = rig.sim.block_on(stopped.open_again()).expect("open");
    let found = again.maps().epoch;
    assert!(found == 1 || found == 2);
    rig.propose(&again, found + 1).expect("it decides");
    assert!(rig.propose(&stopped, found + 2).is_err(), "the one before writes nothing");
    assert!(rig.sim.now() < until);
    assert!(matches!(ask(&again, VoterRequest::Vote(candidate)), VoterReply::Failed), "it has forgotten its lease");
    assert!(matches!(ask(&stopped, VoterRequest::Canvass(None)), VoterReply::Canvassed(false)), "it would not vote");
    rig.crash(true);
    assert_eq!(rig.open().expect("open").maps(), maps(found + 1));
}

#[test]
fn an_empty_folder_and_one_of_a_newer_program_are_told_apart() {
    let rig = Rig::new(1);
    assert!(matches!(rig.open(), Err(VoterOpenError::Empty)));
    rig.create(1);
    rig.crash(false);
    let (_, folder) = rig.machine();
    rig.sim.block_on(async {
        let file = folder.open(NAMES[1], false).await.expect("open");
        let mut head = file.read_at(0, 512).await.expect("read").to_vec();
        head[8] = 9;
        let sum = record_log::checkpoint_pair::crc32c(&head[..508]).to_le_bytes();
        head[508..].copy_from_slice(&sum);
        file.write_at(0, vec![head.into()]).await.expect("write");
    });
    assert!(matches!(rig.open(), Err(VoterOpenError::Load(LoadError::Version(_)))));
    rig.disk.wipe();
    assert!(matches!(rig.open(), Err(VoterOpenError::Empty)));
}

#[test]
fn a_new_group_takes_the_place_of_whatever_was_there() {
    let rig = Rig::new(1);
    let voter = rig.create(1);
    for epoch in 2..9 {
        rig.propose(&voter, epoch).expect("propose");
    }
    rig.crash(false);
    rig.create(3);
    rig.crash(true);
    assert_eq!(rig.open().expect("open").maps(), maps(3));
}

#[test]
fn an_idle_voter_does_nothing_and_starting_waits_for_no_timeout() {
    let rig = Rig::new(1);
    rig.create(1);
    rig.crash(false);
    let began = rig.sim.now();
    let (machine, folder) = rig.machine();
    let voter = rig.sim.block_on(Consensus::open(&machine.host(), &folder, &VoterSettings::alone())).expect("open");
    // The start takes only the disk's time, which is far less than any election timeout.
    assert!(rig.sim.now() - began < Duration::from_secs(1), "{:?}", rig.sim.now() - began);
    rig.sim.run_for(Duration::from_secs(1));
    let polls = machine.polls();
    rig.sim.run_for(Duration::from_secs(12 * 3600));
    assert_eq!(machine.polls(), polls);
    rig.sim.block_on(voter.close());
    rig.sim.run_until_idle();
    assert!(rig.sim.now() - began < Duration::from_secs(13 * 3600), "a closed voter leaves no timer");
}

#[test]
fn same_seed_gives_the_same_digest() {
    let digest = |seed| {
        let rig = Rig::new(seed);
        let voter = rig.create(1);
        for epoch in 2..40 {
            rig.propose(&voter, epoch).expect("propose");
        }
        rig.crash(true);
        rig.open().expect("open");
        rig.sim.digest()
    };
    assert_eq!(digest(5), digest(5));
    assert_ne!(digest(5), digest(6));
}

#[test]
fn files_that_were_exchanged_are_said_to_be_damaged() {
    let rig = Rig::new(1);
    rig.create(1);
    rig.crash(false);
    let (_, folder) = rig.machine();
    rig.sim.block_on(async {
        folder.rename(NAMES[0], "x").await.expect("rename");
        folder.rename(NAMES[1], NAMES[0]).await.expect("rename");
        folder.rename("x", NAMES[1]).await.expect("rename");
        assert!(matches!(VoterFiles::load(&folder).await, Err(LoadError::Damaged(_))));
    });
}
