//! Each parameter, varied on one trace (Dahlin, sections 3.3.2 and 3.3.3): caches, parameters of
//! the algorithms, and machines of then and today.

mod shown;

pub use shown::{figures, findings};

use super::{Case, Measured, Setup, run};
use crate::cooperative::{Algorithm, Blocks, Conditions, Parameters, Technology, simulate};
use crate::sweep::sweep;
use serde::Serialize;

/// The varied parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Varied {
    /// Each client's remote cache with direct cooperation, in parts of its own cache.
    Remote,
    /// The common part with central coordination, in percent; for caches of several sizes.
    Common,
    /// How often n-chance forwards a block.
    Chances,
    /// The clients' caches, in parts of the parameter.
    Client,
    /// 1: the ten clients that read most have half as much cache, the ten that read least twice as
    /// much. 0: all have the same.
    Unlike,
    /// The server's memory, in parts of all clients' memory.
    Server,
    /// A round trip over the network that fetches a block, in microseconds.
    Network,
    /// Years after 1994.
    Years,
    /// The time of the disk, in microseconds, with today's network of 25 Gb/s.
    Disk25,
    /// The same with 100 Gb/s.
    Disk100,
}

const REMOTE: [f64; 7] = [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0];
const COMMON: [f64; 11] = [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0];
const CHANCES: [u8; 7] = [0, 1, 2, 3, 4, 6, 10];
/// The middle ones are also the sizes for which the common part is varied.
const CLIENT: [f64; 7] = [0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0];
const SERVER: [f64; 8] = [0.0, 0.03125, 0.0625, 0.125, 0.25, 0.5, 1.0, 2.0];
const NETWORK_US: [f64; 8] = [10.0, 50.0, 100.0, 400.0, 800.0, 2000.0, 5000.0, 10_000.0];
const YEARS: u32 = 6;
const DISK_US: [f64; 10] = [10.0, 20.0, 40.0, 81.2, 150.0, 300.0, 1000.0, 3000.0, 8000.0, 14_800.0];
/// Clients that are changed at each end when clients are made unlike, if there are that many.
const UNLIKE: usize = 10;

/// The results.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Sensitivity {
    /// The parameters.
    pub setup: Setup,
    /// Number of clients.
    pub clients: u32,
    /// All runs.
    pub measured: Vec<Measured<Varied>>,
}

/// The number of blocks that is this part of `of`.
fn part(of: u32, part: f64) -> u32 {
    (f64::from(of) * part).round().clamp(1.0, f64::from(u32::MAX)) as u32
}

/// A network with this round trip that fetches a block: in the thesis, its two hops are half of it,
/// and the block the other half.
fn network(us: f64) -> Technology {
    Technology { transfer_us: us / 2.0, hop_us: us / 4.0, ..Technology::ATM }
}

/// The runs of the study on some blocks, for [`study`].
#[derive(Debug)]
pub struct Runs {
    setup: Setup,
    clients: u32,
    cases: Vec<Case<Varied>>,
    /// By case, its run. The times of machines change where blocks are found only with Weighted
    /// LRU: the other algorithms have one run for all times.
    which: Vec<usize>,
    /// By run, the first case that has it.
    first: Vec<usize>,
}

impl Runs {
    /// Number of runs.
    pub fn len(&self) -> usize {
        self.first.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// The runs for these blocks. The setup must pass [`Setup::check`]. Makes one run, to see which
    /// clients read most.
    pub fn of(blocks: &Blocks, setup: &Setup) -> Runs {
        let (cases, which, first) = (Vec::new(), Vec::new(), Vec::new());
        let mut runs = Runs { setup: *setup, clients: blocks.clients(), cases, which, first };
        runs.parameters();
        runs.caches(blocks);
        runs.machines();
        for (at, case) in runs.cases.iter().enumerate() {
            let known = runs.first.iter().position(|first| finds_the_same(case, &runs.cases[*first]));
            let run = known.unwrap_or_else(|| {
                runs.first.push(at);
                runs.first.len() - 1
            });
            runs.which.push(run);
        }
        runs
    }

    fn add(&mut self, study: Varied, x: f64, parameters: Parameters, conditions: Conditions) {
        let curve = parameters.algorithm.name().to_owned();
        self.cases.push(Case { study, curve, x, parameters, conditions });
    }

    fn parameters(&mut self) {
        let setup = self.setup;
        self.add(Varied::Remote, 0.0, setup.parameters(Algorithm::Base), Conditions::default());
        for x in REMOTE {
            let remote_blocks = Some(part(setup.client_blocks, x));
            let conditions = Conditions { remote_blocks, ..Conditions::default() };
            self.add(Varied::Remote, x, setup.parameters(Algorithm::Direct), conditions);
        }
        for size in &CLIENT[2..6] {
            for percent in COMMON {
                let conditions = Conditions { common_part: percent / 100.0, ..Conditions::default() };
                let client_blocks = part(setup.client_blocks, *size);
                let parameters = Parameters { client_blocks, ..setup.parameters(Algorithm::Central) };
                let curve = format!("{} MiB", setup.mib(f64::from(client_blocks)));
                self.cases.push(Case { study: Varied::Common, curve, x: percent, parameters, conditions });
            }
        }
        for n in CHANCES {
            let parameters = setup.parameters(Algorithm::NChance(n));
            self.add(Varied::Chances, f64::from(n), parameters, Conditions::default());
        }
    }

    fn caches(&mut self, blocks: &Blocks) {
        let setup = self.setup;
        for algorithm in Algorithm::ALL {
            for x in CLIENT {
                let client_blocks = part(setup.client_blocks, x);
                let parameters = Parameters { client_blocks, ..setup.parameters(algorithm) };
                self.add(Varied::Client, x, parameters, Conditions::default());
            }
            for x in SERVER {
                let all = f64::from(setup.client_blocks) * f64::from(self.clients);
                let server_blocks = (all * x).round().min(f64::from(u32::MAX)) as u32;
                let parameters = Parameters { server_blocks, ..setup.parameters(algorithm) };
                self.add(Varied::Server, x, parameters, Conditions::default());
            }
        }
        let reads = simulate(blocks, &setup.parameters(Algorithm::Base)).clients;
        let mut by_reads: Vec<usize> = (0..reads.len()).collect();
        by_reads.sort_by_key(|client| reads[*client].iter().sum::<u64>());
        let count = UNLIKE.min(by_reads.len() / 4);
        let mut rooms = vec![setup.client_blocks; reads.len()];
        by_reads[..count].iter().for_each(|client| rooms[*client] = part(setup.client_blocks, 2.0));
        by_reads[reads.len() - count..].iter().for_each(|client| rooms[*client] = part(setup.client_blocks, 0.5));
        for algorithm in [Algorithm::Base, Algorithm::NChance(policy::cooperative::n_chance::RECIRCULATIONS)] {
            for (x, rooms) in [(0.0, Vec::new()), (1.0, rooms.clone())] {
                let conditions = Conditions { rooms, ..Conditions::default() };
                self.add(Varied::Unlike, x, setup.parameters(algorithm), conditions);
            }
        }
    }

    fn machines(&mut self) {
        for algorithm in Algorithm::ALL {
            let disk = |of: Technology| move |disk_us: f64| Technology { disk_us, ..of };
            let (of_25, of_100) = (disk(Technology::NVME_25_GBPS), disk(Technology::NVME_100_GBPS));
            let networks = NETWORK_US.map(|x| (Varied::Network, x, network(x)));
            let years = (0..YEARS).map(|years| (Varied::Years, f64::from(years), Technology::projected(years)));
            let disks =
                DISK_US.into_iter().flat_map(|x| [(Varied::Disk25, x, of_25(x)), (Varied::Disk100, x, of_100(x))]);
            for (study, x, technology) in networks.into_iter().chain(years).chain(disks) {
                let conditions = Conditions { technology, ..Conditions::default() };
                self.add(study, x, self.setup.parameters(algorithm), conditions);
            }
        }
    }
}

/// True if the two cases find blocks at the same places.
fn finds_the_same(one: &Case<Varied>, other: &Case<Varied>) -> bool {
    let found = |case: &Case<Varied>| match case.parameters.algorithm {
        Algorithm::WeightedLru(_) => case.conditions.clone(),
        _ => Conditions { technology: Technology::ATM, ..case.conditions.clone() },
    };
    one.parameters == other.parameters && found(one) == found(other)
}

/// Makes the runs; `done` is called for each.
pub fn study(blocks: &Blocks, runs: &Runs, done: impl Fn() + Sync) -> Sensitivity {
    let found = sweep(&runs.first, |first| run(blocks, &runs.cases[*first]), done);
    let of_cases = runs.cases.iter().zip(&runs.which);
    let measured = of_cases.map(|(case, which)| case.measured(found[*which])).collect();
    Sensitivity { setup: runs.setup, clients: runs.clients, measured }
}
