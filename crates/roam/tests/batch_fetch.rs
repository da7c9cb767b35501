//! Small files are fetched together: when a program reads some, the client fetches others ahead,
//! and hoarded files take few round trips.

mod rig;

use host::sim::SimDisk;
use rig::session::{How, Op, find, noise, perform, read_all};
use rig::{Network, Rig};
use roam::{Client, Unit};
use roam_proto::message::User;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::FsError;

const FILE_COUNT: u64 = 200;
const DELAY: Duration = Duration::from_millis(20);

struct Setup {
    rig: Rig,
    client: Client,
    network: Network,
}

fn path(n: u64) -> String {
    format!("/dir/file{n:03}")
}

/// The contents of a file. No two files have the same length, and one is empty.
fn contents(n: u64) -> Vec<u8> {
    vec![n as u8; n as usize * 20]
}

impl Setup {
    fn new() -> Setup {
        let rig = Rig::new(1);
        rig.sim.block_on(async {
            perform(&rig.fs, &Op::MakeDir("/dir".into())).await.expect("mkdir");
            for n in 0..FILE_COUNT {
                perform(&rig.fs, &Op::Write(path(n), How::Replace, contents(n))).await.expect("write");
            }
        });
        let (client, network, ..) = rig.new_client(1, DELAY);
        Setup { rig, client, network }
    }

    fn read(&self, n: u64) -> Result<Vec<u8>, FsError> {
        let read = async { read_all(&self.client, find(&self.client, &path(n)).await?).await };
        self.rig.sim.block_on(read)
    }

    fn requests(&self) -> u64 {
        self.network.requests.load(Relaxed)
    }

    fn cached(&self) -> usize {
        self.client.look(|replica, _| replica.nodes().filter(|(_, node)| !node.have.is_empty()).count())
    }
}

#[test]
fn whoever_reads_small_files_of_a_directory_has_others_fetched_ahead() {
    let setup = Setup::new();
    assert_eq!(setup.read(FILE_COUNT - 1), Ok(contents(FILE_COUNT - 1)));
    setup.rig.sim.run_for(Duration::from_secs(5));
    assert_eq!(setup.cached(), 1, "after one file, no others are fetched");
    let (before, begun) = (setup.requests(), setup.rig.sim.now());
    for n in 0..FILE_COUNT {
        assert_eq!(setup.read(n), Ok(contents(n)));
    }
    let (asked, took) = (setup.requests() - before, setup.rig.sim.now() - begun);
    assert!(asked < FILE_COUNT / 4, "{asked} requests for {FILE_COUNT} files");
    assert!(took < DELAY * 2 * FILE_COUNT as u32 / 4, "{took:?}");
    // The client fetches files again that others change meanwhile.
    let (other, ..) = setup.rig.new_client(2, DELAY);
    let newer = Op::Write(path(7), How::Replace, b"newer".to_vec());
    setup.rig.sim.block_on(perform(&other, &newer)).expect("write");
    setup.rig.sim.run_for(Duration::from_secs(5));
    assert_eq!(setup.read(7), Ok(b"newer".to_vec()));
}

#[test]
fn whoever_goes_on_in_the_directory_beside_waits_for_its_first_file() {
    let setup = Setup::new();
    setup.rig.sim.block_on(async {
        for dir in ["/beside", "/other"] {
            perform(&setup.rig.fs, &Op::MakeDir(dir.into())).await.expect("mkdir");
            for n in 0..10 {
                let write = Op::Write(format!("{dir}/{n}"), How::Replace, contents(n + 1));
                perform(&setup.rig.fs, &write).await.expect("write");
            }
        }
    });
    let look = |path: &str| setup.rig.sim.block_on(find(&setup.client, path)).expect("there");
    let list = |dir: &str| {
        look(&format!("{dir}/0"));
        setup.rig.sim.run_for(Duration::from_secs(1));
    };
    let before = setup.cached();
    list("/other");
    assert_eq!(setup.cached(), before, "nothing was read");
    for n in 1..4 {
        assert_eq!(setup.read(n), Ok(contents(n)));
    }
    setup.rig.sim.run_for(Duration::from_secs(1));
    let begun = setup.rig.sim.now();
    for n in 0..10 {
        let read = async { read_all(&setup.client, find(&setup.client, &format!("/beside/{n}")).await?).await };
        assert_eq!(setup.rig.sim.block_on(read), Ok(contents(n + 1)));
    }
    // Round trips for the first file, and for all others together.
    assert!(setup.rig.sim.now() - begun < DELAY * 5);
}

#[test]
fn whoever_looks_into_directories_waits_for_few_of_them() {
    const COUNT: usize = 40;
    let setup = Setup::new();
    let dir = |n: usize| format!("/tree/part{n:02}");
    setup.rig.sim.block_on(async {
        perform(&setup.rig.fs, &Op::MakeDir("/tree".into())).await.expect("mkdir");
        for n in 0..COUNT {
            for path in [dir(n), format!("{}/below", dir(n)), format!("{}/below/it", dir(n))] {
                perform(&setup.rig.fs, &Op::MakeDir(path)).await.expect("mkdir");
            }
        }
    });
    let begun = setup.rig.sim.now();
    for n in 0..COUNT {
        setup.rig.sim.block_on(find(&setup.client, &format!("{}/below/it", dir(n)))).expect("there");
    }
    let waited = setup.rig.sim.now() - begun;
    assert!(waited < DELAY * 2 * COUNT as u32 * 3 / 2, "{waited:?}");
    // Directories that were listed ahead show later changes by others.
    let (other, ..) = setup.rig.new_client(2, DELAY);
    let newer = Op::MakeDir(format!("{}/below/newer", dir(COUNT - 1)));
    setup.rig.sim.block_on(perform(&other, &newer)).expect("mkdir");
    setup.rig.sim.run_for(Duration::from_secs(5));
    setup.rig.sim.block_on(find(&setup.client, &format!("{}/below/newer", dir(COUNT - 1)))).expect("there");
}

#[test]
fn whoever_goes_from_directory_to_directory_finds_the_next_ones_there() {
    let setup = Setup::new();
    let dirs: Vec<String> = (0..20).map(|n| format!("/tree/part{n:02}")).collect();
    setup.rig.sim.block_on(async {
        perform(&setup.rig.fs, &Op::MakeDir("/tree".into())).await.expect("mkdir");
        for dir in &dirs {
            perform(&setup.rig.fs, &Op::MakeDir(dir.clone())).await.expect("mkdir");
            for n in 0..10 {
                let write = Op::Write(format!("{dir}/{n}"), How::Replace, contents(n + 1));
                perform(&setup.rig.fs, &write).await.expect("write");
            }
        }
    });
    let (before, begun) = (setup.requests(), setup.rig.sim.now());
    for dir in &dirs {
        for n in 0..10 {
            let read = async { read_all(&setup.client, find(&setup.client, &format!("{dir}/{n}")).await?).await };
            assert_eq!(setup.rig.sim.block_on(read), Ok(contents(n + 1)));
            setup.rig.sim.run_for(Duration::from_millis(10));
        }
    }
    let thinks = Duration::from_millis(10) * 10 * dirs.len() as u32;
    let (asked, waited) = (setup.requests() - before, setup.rig.sim.now() - begun - thinks);
    assert!(asked < 5 * dirs.len() as u64, "{asked} requests");
    // Less than a round trip for each.
    assert!(waited < DELAY * 2 * dirs.len() as u32, "{waited:?}");
}

#[test]
fn what_others_have_changed_is_asked_about_together() {
    let setup = Setup::new();
    for n in 0..FILE_COUNT {
        assert_eq!(setup.read(n), Ok(contents(n)));
    }
    let (other, ..) = setup.rig.new_client(2, DELAY);
    for n in 0..FILE_COUNT {
        let newer = Op::Write(path(n), How::Replace, contents(n + 1));
        setup.rig.sim.block_on(perform(&other, &newer)).expect("write");
    }
    setup.rig.sim.run_for(Duration::from_secs(5));
    let (before, begun) = (setup.requests(), setup.rig.sim.now());
    for n in 0..FILE_COUNT {
        assert_eq!(setup.read(n), Ok(contents(n + 1)));
    }
    let (asked, took) = (setup.requests() - before, setup.rig.sim.now() - begun);
    assert!(asked < FILE_COUNT / 4, "{asked} requests for {FILE_COUNT} files");
    assert!(took < DELAY * 2 * FILE_COUNT as u32 / 4, "{took:?}");
}

#[test]
fn whoever_wants_what_is_being_fetched_ahead_waits_for_that() {
    let setup = Setup::new();
    for n in [100, 101] {
        assert_eq!(setup.read(n), Ok(contents(n)));
    }
    setup.rig.sim.run_for(DELAY);
    let begun = setup.rig.sim.now();
    assert_eq!(setup.read(102), Ok(contents(102)));
    let waited = setup.rig.sim.now() - begun;
    assert!(waited > DELAY / 2 && waited < DELAY * 3 / 2, "{waited:?}");
}

#[test]
fn regression_what_the_home_does_not_give_is_not_asked_for_again_and_again() {
    let setup = Setup::new();
    for n in 100..FILE_COUNT {
        let closed = Op::SetMode(path(n), 0o600);
        setup.rig.sim.block_on(perform(&setup.rig.fs, &closed)).expect("chmod");
    }
    let network = setup.rig.network(2, DELAY);
    setup.rig.enroll(&network, User { uid: 1000, gid: 1000, groups: Vec::new() });
    let (machine, disk) = (setup.rig.sim.machine("laptop 2"), SimDisk::new(&setup.rig.sim, 1 << 30));
    let client = setup.rig.client(&machine, &disk, &network);
    for n in [90, 91, 92] {
        let read = async { read_all(&client, find(&client, &path(n)).await?).await };
        assert_eq!(setup.rig.sim.block_on(read), Ok(contents(n)));
    }
    let before = network.requests.load(Relaxed);
    setup.rig.sim.run_for(Duration::from_secs(5));
    let asked = network.requests.load(Relaxed) - before;
    assert!(asked < 30, "{asked} requests");
}

#[test]
fn regression_whoever_wants_a_directory_does_not_wait_for_its_turn_to_be_looked_into_ahead() {
    let setup = Setup::new();
    let dir = |n: usize| format!("/tree/part{n:02}");
    setup.rig.sim.block_on(async {
        perform(&setup.rig.fs, &Op::MakeDir("/tree".into())).await.expect("mkdir");
        for n in 0..40 {
            for path in [dir(n), format!("{}/below", dir(n))] {
                perform(&setup.rig.fs, &Op::MakeDir(path)).await.expect("mkdir");
            }
        }
    });
    setup.network.bytes_per_second.store(4000, Relaxed);
    for n in 0..20 {
        let store = Op::Write(format!("/mine{n}"), How::Replace, noise(100_000));
        setup.rig.sim.block_on(perform(&setup.client, &store)).expect("write");
    }
    setup.rig.sim.run_for(Duration::from_secs(10));
    // The program looks into each directory next.
    for n in 0..10 {
        let begun = setup.rig.sim.now();
        setup.rig.sim.block_on(find(&setup.client, &format!("{}/below", dir(n)))).expect("there");
        let waited = setup.rig.sim.now() - begun;
        assert!(waited < Duration::from_millis(400), "{n}: {waited:?}");
    }
    let waiting = setup.client.look(|replica, _| replica.log().len());
    assert!(waiting > 0, "no request was in the way");
}

#[test]
fn nothing_is_fetched_ahead_where_only_blocks_are_wanted_or_the_cache_is_full() {
    for settle in [
        |client: &Client| client.set(|settings| settings.unit = Unit::Block),
        |client: &Client| client.set(|settings| settings.cache_bytes = 10_000),
    ] {
        let setup = Setup::new();
        settle(&setup.client);
        for n in [190, 150, 170, 160] {
            assert_eq!(setup.read(n), Ok(contents(n)));
        }
        setup.rig.sim.run_for(Duration::from_secs(1));
        assert!(setup.cached() <= 5, "{}", setup.cached());
    }
}

#[test]
fn nothing_is_looked_into_ahead_where_only_blocks_are_wanted() {
    for (unit, is_listed) in [(Unit::Block, false), (Unit::Auto, true)] {
        let setup = Setup::new();
        setup.client.set(|settings| settings.unit = unit);
        let dir = setup.rig.sim.block_on(find(&setup.client, "/dir")).expect("there");
        setup.rig.sim.run_for(Duration::from_secs(1));
        assert_eq!(setup.client.look(|replica, _| replica.has_names(dir)), is_listed);
    }
}

#[test]
fn hoarding_small_files_takes_few_requests() {
    let setup = Setup::new();
    let before = setup.requests();
    let walk = setup.rig.sim.block_on(async {
        setup.client.hoard(b"dir", Some(50)).await?;
        setup.client.walk(|_| {}).await
    });
    let walk = walk.expect("walk");
    assert!(walk.is_complete(), "{walk:?}");
    let asked = setup.requests() - before;
    assert!(asked < FILE_COUNT / 10, "{asked} requests for {FILE_COUNT} files");
    setup.network.up.store(false, Relaxed);
    setup.rig.sim.run_for(Duration::from_secs(60));
    for n in 0..FILE_COUNT {
        assert_eq!(setup.read(n), Ok(contents(n)), "without a network");
    }
}
