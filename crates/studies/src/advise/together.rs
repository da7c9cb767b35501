//! Advice on the memory of clients (`starling up --cache-size`), and a forecast of whether it would
//! pay that they serve each other from it.
//!
//! The product's clients do not serve each other yet. So the advice on memory is for each client
//! alone, and the advice on cooperation is a forecast. The first half of the accesses fills the
//! caches, the rest counts. No server has a memory: a block that no client caches comes from a
//! disk.

use super::BLOCK_BYTES;
use super::{CLIENT_COUNT_MAX, Gain, Item, Verdict, WORTH, percent, size};
use crate::cooperative::{Algorithm, Blocks, Level, Outcome, Parameters, Technology, mean_us, simulate};
use crate::sweep::sweep;
use policy::defaults::MEMORY_BYTES;

/// Cache sizes to try, in bytes.
const CACHES: [u64; 8] = [32 << 20, 64 << 20, 128 << 20, 256 << 20, MEMORY_BYTES, 1 << 30, 2 << 30, 4 << 30];
const DEFAULT: usize = 4;
const ALGORITHMS: [Algorithm; 2] = [Algorithm::Base, Algorithm::NChance(policy::cooperative::n_chance::RECIRCULATIONS)];
/// Fewest reads that must count for advice.
const READS_MIN: u64 = 200;
/// Number of runs.
pub(super) const RUNS: usize = ALGORITHMS.len() * CACHES.len();

/// Times for a block of 64 KiB today: from memory at 10 GB/s; over 10 Gb/s, with messages of 15 µs;
/// from NVMe, 80 µs and 7 GB/s.
const TODAY: Technology = Technology { local_us: 7.0, transfer_us: 52.4, hop_us: 15.0, disk_us: 89.4 };

/// The results for one cache size.
struct Tried {
    bytes: u64,
    alone: Outcome,
    together: Outcome,
}

impl Tried {
    /// Mean time of a read of one client, or of all, with and without clients serving each other.
    fn means_us(&self, client: Option<u32>) -> Option<(f64, f64)> {
        let mean = |of: &Outcome, algorithm| {
            let reads = client.map_or(Some(&of.reads), |client| of.clients.get(client as usize));
            mean_us(reads?, &TODAY.times_us(algorithm))
        };
        Some((mean(&self.alone, ALGORITHMS[0])?, mean(&self.together, ALGORITHMS[1])?))
    }

    /// The mean time without cooperation, as in the product.
    fn mean_us(&self, client: Option<u32>) -> f64 {
        self.means_us(client).map_or(0.0, |(alone, _)| alone)
    }
}

/// The advice. `done` is called for each of the [`RUNS`], even if it leads to no advice.
pub(super) fn items(blocks: &Blocks, done: impl Fn() + Sync) -> Vec<Item> {
    let mut cases = Vec::new();
    for bytes in CACHES {
        // Three quarters of the memory are for data.
        let client_blocks = (bytes / 4 * 3 / BLOCK_BYTES) as u32;
        let warm_up = blocks.len() / 2;
        cases.extend(ALGORITHMS.map(|algorithm| Parameters {
            algorithm,
            client_blocks,
            server_blocks: 0,
            warm_up,
            seed: 1,
        }));
    }
    let mut found = sweep(&cases, |of| simulate(blocks, of), done).into_iter();
    let mut tried = Vec::new();
    for bytes in CACHES {
        let (Some(alone), Some(together)) = (found.next(), found.next()) else { continue };
        tried.push(Tried { bytes, alone, together });
    }
    let reads: u64 = tried[DEFAULT].alone.reads.iter().sum();
    let is_read_again = |of: &Tried| of.alone.reads[Level::Local as usize] > 0;
    let is_shared = |of: &Tried| of.together.reads[Level::Remote as usize] > 0;
    let (is_read_again, is_shared) = (tried.iter().any(is_read_again), tried.iter().any(is_shared));
    let unknown = |subject: &str, why: String| Item::new(subject, Verdict::Unknown, why);
    if reads < READS_MIN {
        let why = format!("The second half of the trace has only {reads} reads of blocks. Advice needs {READS_MIN}.");
        return vec![unknown("memory", why.clone()), unknown("cooperative caching", why)];
    }
    let mut items = Vec::new();
    if is_read_again {
        items.push(memory(&tried, None));
        let busiest = if blocks.clients() > 1 { busiest(&tried[DEFAULT]) } else { Vec::new() };
        items.extend(busiest.into_iter().map(|client| memory(&tried, Some(client))));
    } else {
        let why = "In the second half of the trace, no client reads anything that it read before. Memory cannot help with that.";
        items.push(unknown("memory", why.into()));
    }
    if is_read_again || is_shared {
        items.push(cooperation(&tried, blocks.clients()));
    } else {
        let why = "In the second half of the trace, no client reads what was read before, so none could serve it.";
        items.push(unknown("cooperative caching", why.into()));
    }
    items
}

/// The clients that read most, by their numbers.
fn busiest(of: &Tried) -> Vec<u32> {
    let reads = |client: &u32| of.alone.clients[*client as usize].iter().sum::<u64>();
    let mut clients: Vec<u32> =
        (0..of.alone.clients.len() as u32).filter(|client| reads(client) >= READS_MIN).collect();
    clients.sort_by_key(|client| (std::cmp::Reverse(reads(client)), *client));
    clients.truncate(CLIENT_COUNT_MAX);
    clients.sort_unstable();
    clients
}

fn memory(tried: &[Tried], client: Option<u32>) -> Item {
    let us = |of: &Tried| of.mean_us(client);
    let (default, best) = (&tried[DEFAULT], tried.iter().map(us).fold(f64::INFINITY, f64::min));
    let least = |than: f64| tried.iter().find(|of| us(of) <= than * (1.0 + WORTH)).unwrap_or(default);
    let mean = |of: &Tried| format!("{:.1} µs with {}", us(of), size(of.bytes));
    let item = match us(default) > best * (1.0 + WORTH) {
        true => {
            let of = least(best);
            Item::change(
                "memory",
                format!("starling up MOUNT --data DATA --cache-size {}", size(of.bytes)),
                format!("A read takes {} on average, and {}.", mean(default), mean(of)),
                Gain::new("mean time of a read", "µs", us(default), us(of)),
            )
        }
        false => {
            let enough = least(us(default));
            let also = match enough.bytes < default.bytes {
                true => format!(" {} would do as well.", size(enough.bytes)),
                false => String::new(),
            };
            let reason = format!(
                "A read takes {} on average. More memory gains at most {}.{also}",
                mean(default),
                percent(WORTH)
            );
            Item::new("memory", Verdict::Keep, reason)
        }
    };
    Item { client, ..item }
}

fn cooperation(tried: &[Tried], clients: u32) -> Item {
    let subject = "cooperative caching";
    if clients < 2 {
        return Item::new(
            subject,
            Verdict::Keep,
            "The trace has one client, so no other client could serve it.".into(),
        );
    }
    let of = &tried[DEFAULT];
    let Some((alone, together)) = of.means_us(None) else {
        return Item::new(subject, Verdict::Unknown, "Nothing is read.".into());
    };
    let reads =
        |of: &Outcome, level: Level| of.reads[level as usize] as f64 / of.reads.iter().sum::<u64>().max(1) as f64;
    let pays = match together / alone {
        ratio if ratio < 1.0 - WORTH => "would pay",
        ratio if ratio > 1.0 + WORTH => "would not pay: it costs more than it gains",
        _ => "would not pay: it makes no difference",
    };
    let reason = format!(
        "Starling's clients do not serve each other yet. With {} for each of {clients} clients, it {pays}. A read would take {together:.1} µs instead of {alone:.1} µs. Other clients would serve {} of the reads, and disks {} instead of {}.",
        size(of.bytes),
        percent(reads(&of.together, Level::Remote)),
        percent(reads(&of.together, Level::Disk)),
        percent(reads(&of.alone, Level::Disk)),
    );
    let gain = Some(Gain::new("mean time of a read", "µs", alone, together));
    Item { gain, ..Item::new(subject, Verdict::Keep, reason) }
}
