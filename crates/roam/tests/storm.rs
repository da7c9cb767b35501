//! Storms: clients do random things, other programs change the home's files, networks come and go,
//! machines crash. When all has healed, all clients see the same, nothing that was acknowledged is
//! lost, and nothing was done twice.
//!
//! `STORM_SEED=17 STORM_VERBOSE=1 cargo test -p roam --test storm NAME -- --nocapture` runs one
//! seed again. `STORM_SEEDS=1000` runs that many seeds, from `STORM_FROM` on, and
//! `STORM_KEEP_GOING=1` does not stop at the first that fails.
//!
//! - `worker`: users of clients; `alone`, `together`, `merging`: what they do in the three sorts of
//!   storms, and what must hold in the end.
//! - `weather`: the faults meanwhile, and how they end; `trees`: comparing trees of files.

mod rig;

#[path = "storm/alone.rs"]
mod alone;
#[path = "storm/merging.rs"]
mod merging;
#[path = "storm/together.rs"]
mod together;
#[path = "storm/trees.rs"]
mod trees;
#[path = "storm/weather.rs"]
mod weather;
#[path = "storm/worker.rs"]
mod worker;

use crate::rig::VOLUME;
use crate::rig::faults::Faults;
use crate::trees::{below, quiet_files};
use crate::weather::Storm;
use crate::worker::Sort;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use vfs::fs::Cred;
use vfs::tree::{TreeEntry, walk};

const ROOT: Cred = Cred::ROOT;
/// Number of steps of a storm.
const STEP_COUNT: u64 = 60;

/// Counts of what happened in storms.
#[derive(Default, Debug)]
struct Outcome {
    digest: u64,
    done: u64,
    crashes: u64,
    conflicts: u64,
    tags: u64,
    dropped: u64,
    /// Ids of clients that became other ids.
    merged: u64,
    /// Number of times that the home's own folder was removed.
    removed_own: u64,
    /// Number of times that the home's state was restored from a backup.
    restored: u64,
    /// Number of times that others changed a file with several names while the home was down.
    in_place: u64,
    /// Number of files that were changed before all of them was fetched.
    in_holes: u64,
    /// Files whose metadata clients forgot, to keep their bound.
    forgotten: u64,
    faults: Faults,
}

impl Outcome {
    fn note_if(&mut self, happened: bool, fault: &'static str) {
        if happened {
            self.faults.note(fault);
        }
    }
}

/// The faults of the weather, which all sorts of storms have.
const WEATHER: [&str; 10] = [
    "network down",
    "requests lost",
    "answers lost",
    "lag",
    "slow link",
    "client crashes",
    "client loses power",
    "home crashes",
    "home loses power",
    "disk full",
];

impl Storm {
    fn run(&mut self) -> Result<(), String> {
        let quiet = quiet_files(&self.rig);
        for _ in 0..STEP_COUNT {
            let pause = self.random.below(1500);
            self.rig.sim.run_for(Duration::from_millis(pause));
            self.step();
            self.outcome.in_holes += u64::from(self.laptops.iter().any(|laptop| laptop.has_holes()));
            self.check_failures()?;
        }
        self.heal()?;
        let now = quiet_files(&self.rig);
        if now != quiet {
            return Err(format!("a quiet file has changed: {now:?}"));
        }
        let all = self.rig.fs.dump();
        if let Some(left) = below(&all, "/.starling").first() {
            return Err(format!("left behind: {}", String::from_utf8_lossy(&left.path)));
        }
        self.check_views(all)?;
        match self.sort {
            Sort::Alone => self.check_shadows()?,
            Sort::Together => self.check_tags()?,
            Sort::Merging => self.check_merged()?,
        }
        let home = self.rig.home.lock().clone().ok_or("the home is down")?;
        self.outcome.merged = home.home.state().volumes[VOLUME].aliases().count() as u64;
        self.outcome.done = self.ledger.lock().done;
        self.outcome.digest = self.rig.sim.digest();
        Ok(())
    }

    /// Checks that all clients see what is at home.
    fn check_views(&mut self, mut all: Vec<TreeEntry>) -> Result<(), String> {
        let own = all.extract_if(.., |entry| entry.path == b"/.starling").count();
        all[0].attr.nlink -= own as u32;
        for (number, laptop) in self.laptops.iter().enumerate() {
            let (_, client) = laptop.running.as_ref().ok_or("a client is down")?;
            self.outcome.forgotten += client.forgotten();
            let view = self.rig.sim.block_on(walk(client)).map_err(|error| format!("client {number}: {error}"))?;
            if let Some(difference) = vfs::tree::difference(&all, &view) {
                return Err(format!("the home against client {number}: {difference}"));
            }
            self.outcome.conflicts += client.look(|replica, _| replica.conflicts().count()) as u64;
        }
        Ok(())
    }
}

fn run(seed: u64, sort: Sort, name: &str) -> Outcome {
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let mut storm = Storm::new(seed, sort);
        let ran = storm.run();
        if ran.is_err() {
            storm.say(format!("failed, seed {}", storm.seed));
        }
        ran.map(|()| std::mem::take(&mut storm.outcome))
    }));
    let again = format!("STORM_SEED={seed} STORM_VERBOSE=1 cargo test -p roam --test storm {name} -- --nocapture");
    match ran {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(failure)) => panic!("{failure}\nreplay: {again}"),
        Err(_) => panic!("replay: {again}"),
    }
}

fn run_all(from: u64, count: u64, sort: Sort, name: &str) -> Outcome {
    let (mut sum, mut failed) = (Outcome::default(), Vec::new());
    for seed in rig::seeds(from, count) {
        let keep_going = std::env::var_os("STORM_KEEP_GOING").is_some();
        let outcome = match catch_unwind(|| run(seed, sort, name)) {
            Ok(outcome) => outcome,
            Err(panic) if !keep_going => std::panic::resume_unwind(panic),
            Err(_) => {
                failed.push(seed);
                continue;
            }
        };
        sum.done += outcome.done;
        sum.crashes += outcome.crashes;
        sum.conflicts += outcome.conflicts;
        sum.tags += outcome.tags;
        sum.dropped += outcome.dropped;
        sum.merged += outcome.merged;
        sum.removed_own += outcome.removed_own;
        sum.restored += outcome.restored;
        sum.in_place += outcome.in_place;
        sum.in_holes += outcome.in_holes;
        sum.forgotten += outcome.forgotten;
        sum.faults.add(&outcome.faults);
    }
    assert!(failed.is_empty(), "{} seeds failed: {failed:?}", failed.len());
    println!("{sum:?}");
    if !are_others() {
        sum.faults.happened(&WEATHER);
    }
    sum
}

/// True if other seeds than usual were asked for. A few of them need not have every rare fault.
fn are_others() -> bool {
    ["STORM_SEED", "STORM_FROM"].iter().any(|name| std::env::var_os(name).is_some())
}

#[test]
fn sim_clients_on_files_of_their_own_lose_nothing_and_never_meet() {
    let sum = run_all(0, 150, Sort::Alone, "sim_clients_on_files_of_their_own");
    assert!(sum.removed_own > 0 || are_others());
}

#[test]
fn sim_clients_on_the_same_files_lose_nothing_that_nobody_dropped() {
    let sum = run_all(1000, 150, Sort::Together, "sim_clients_on_the_same_files");
    assert!((sum.restored > 0 && sum.in_place > 0 && sum.in_holes > 0 && sum.forgotten > 0) || are_others());
}

#[test]
fn sim_clients_that_make_the_same_directories_share_them() {
    let sum = run_all(2000, 150, Sort::Merging, "sim_clients_that_make_the_same_directories");
    assert!(sum.merged > 0 || are_others());
}

/// A file had lost its last name here, and had another at home. Listings left that name out.
#[test]
fn regression_what_has_a_name_at_home_is_listed() {
    run(90_166, Sort::Together, "sim_clients_on_the_same_files");
}

/// A client took the stamp of a push that came before it had applied the attach answer. It dropped
/// that answer, since its user had changed a setting, and attached again by the newer stamp. So it
/// never learned what it missed.
#[test]
fn regression_what_comes_before_it_is_known_what_was_missed_is_not_all() {
    run(203_569, Sort::Alone, "sim_clients_on_files_of_their_own");
}

/// On a full disk, a client removed bytes from its cache that the home had taken. Before the log
/// said so durably, the client crashed, had the operation again, and missed the bytes.
#[test]
fn regression_what_is_given_up_on_a_full_disk_is_home_for_good() {
    run(703_518, Sort::Alone, "sim_clients_on_files_of_their_own");
}

/// The home watched only directories that a client had listed. When other programs made directories
/// in another, clients that knew its facts kept the old link count.
#[test]
fn regression_a_directory_that_nobody_has_listed_has_the_links_that_others_give_it() {
    run(40_983, Sort::Together, "sim_clients_on_the_same_files");
}

/// A file lost one of its names at home. A client that knew it by another name kept the old link
/// count.
#[test]
fn regression_a_file_that_loses_a_name_has_fewer_links() {
    run(71_286, Sort::Together, "sim_clients_on_the_same_files");
}

#[test]
fn same_seed_gives_the_same_storm() {
    for sort in [Sort::Alone, Sort::Together, Sort::Merging] {
        let digest = |seed| run(seed, sort, "same_seed").digest;
        assert_eq!(digest(7), digest(7), "{sort:?}");
    }
}
