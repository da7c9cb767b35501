//! The clients of one file server. A few work much, most of them little, by day, in bursts. They
//! read whole files, mostly files that they or others of their group have used lately, or programs
//! that all clients use. They write files anew, and remove most of the files they made within
//! minutes.
//!
//! Numbers that no paper states are in [`Habits`]; they are the same for all traces unless a trace
//! says otherwise.

use super::draw::{chance, part, rank, size_bytes};
use super::hours::{DAY_COUNT_MAX, Hours};
use crate::WorkloadError::{self, Bounds, Range};
use crate::{Deed, Record};
use host::SplitMix64;
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};

/// Size of a request and of a block, in bytes (Dahlin, section 3.2).
pub const BLOCK_BYTES: u64 = 8192;

const CLIENT_COUNT_MAX: u32 = 1 << 16;
/// Most requests of a trace: within this bound no time overflows.
const ACCESS_COUNT_MAX: u64 = 1 << 40;
/// Time between two requests for a file, in microseconds.
const REQUEST_US: u64 = 10_000;
/// Time between two files of a burst, in microseconds.
const USE_US: u64 = 200_000;
/// Most requests of a burst.
const BURST_MAX: u64 = 2000;
/// Most files whose use a client remembers.
const HISTORY_COUNT_MAX: usize = 1 << 15;
/// How many of the last of those are the client's working set.
const LATEST_COUNT: usize = 16;
/// Most written files that a client remembers.
const WRITTEN_COUNT_MAX: usize = 1 << 12;
/// Most files that a client will soon remove.
const PASSING_COUNT_MAX: usize = 256;
/// Most files that a client has just validated, and so does not ask the server about again.
const VALID_COUNT_MAX: usize = 64;
/// How often another file is tried in place of one that cannot be read.
const TRY_COUNT_MAX: u32 = 16;
/// Clients per group; they use each other's files.
const GROUP_COUNT: u32 = 6;

/// The habits of clients. Each part is of all reads, writes or removals of its kind, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Habits {
    /// Files that all clients use: programs, libraries, headers.
    pub common_files: u64,
    /// How strongly the popular ones are preferred: the power of Zipf's law.
    pub common_steepness: f64,
    /// Part of the reads that are of common files.
    pub common: f64,
    /// Part of the reads that are of files another client of the group has used lately.
    pub group: f64,
    /// Part of the reads that are of files no client has used before.
    pub fresh: f64,
    /// Part of the reads that are of the last few files that the client itself has used.
    pub latest: f64,
    /// All other reads are of files that the client itself used at any time. This is how strongly
    /// later ones are preferred, as a power; with 1, the last 10 to 100 are used as often as the
    /// last 100 to 1000.
    pub recency: f64,
    /// Part of the reads of files longer than a block that read only a part of the file.
    pub partial: f64,
    /// Part of the writes that make new files which are removed again.
    pub passing: f64,
    /// Longest time from the writing of such a file to its removal, in seconds; a time from 1 to 10
    /// is as likely as one from 10 to 100.
    pub passing_s: f64,
    /// Part of the writes that are of files the client has written before.
    pub again: f64,
    /// How strongly later ones of those are preferred, as a power.
    pub again_recency: f64,
    /// Part of those that another client of the group has written.
    pub foreign: f64,
    /// Part of the block writes that are of the block that the client has just written, as by a
    /// program that writes less than a block at a time.
    pub same_block: f64,
    /// Removals of files that existed before the trace, per removal of a file that was made in it.
    pub old_removals: f64,
}

/// The parameters of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Community {
    /// Number of clients.
    pub clients: u32,
    /// Reads and writes of all clients, each of a block.
    pub accesses: u64,
    /// Days over which they are spread; each client's are spread over its hours.
    pub days: u32,
    /// Part of the files' uses that are writes.
    pub writes: f64,
    /// A client's second read of a file within this many seconds is left out; 0 leaves out none.
    pub unseen_s: f64,
    /// The habits of clients.
    pub habits: Habits,
    /// The same seed gives the same trace.
    pub seed: u64,
}

fn is_part(of: f64) -> bool {
    (0.0..=1.0).contains(&of)
}

impl Community {
    /// Checks the parameters; an error names the wrong one.
    pub fn check(&self) -> Result<(), WorkloadError> {
        let Habits { common, group, fresh, latest, passing, again, .. } = self.habits;
        let reads = [common, group, fresh, latest, common + group + fresh + latest];
        let habits = &self.habits;
        let is_steep = |of: f64| (0.0..=10.0).contains(&of);
        WorkloadError::first([
            (!(1..=CLIENT_COUNT_MAX).contains(&self.clients), Bounds("clients", 1, CLIENT_COUNT_MAX.into())),
            (!(1..=ACCESS_COUNT_MAX).contains(&self.accesses), Bounds("accesses", 1, ACCESS_COUNT_MAX)),
            (!(1..=DAY_COUNT_MAX).contains(&self.days), Bounds("days", 1, DAY_COUNT_MAX.into())),
            (!is_part(self.writes), Range("writes", "a part, 0 to 1")),
            (!(0.0..=3600.0).contains(&self.unseen_s), Range("unseen-s", "0 to 3600 seconds")),
            (!(1..=1 << 32).contains(&habits.common_files), Bounds("common-files", 1, 1 << 32)),
            (!is_steep(habits.common_steepness), Range("common-steepness", "0 to 10")),
            (!reads.into_iter().all(is_part), Range("common, group, fresh, latest", "parts, together 0 to 1")),
            (!is_steep(habits.recency), Range("recency", "0 to 10")),
            (!is_part(habits.partial), Range("partial", "a part, 0 to 1")),
            (
                ![passing, again, passing + again].into_iter().all(is_part),
                Range("passing, again", "parts, together 0 to 1"),
            ),
            (!(1.0..=1e6).contains(&habits.passing_s), Range("passing-s", "1 to 1000000 seconds")),
            (!is_steep(habits.again_recency), Range("again-recency", "0 to 10")),
            (!is_part(habits.foreign), Range("foreign", "a part, 0 to 1")),
            (!(0.0..1.0).contains(&habits.same_block), Range("same-block", "a part, 0 or more, less than 1")),
            (!(0.0..=100.0).contains(&habits.old_removals), Range("old-removals", "0 to 100")),
        ])
    }

    /// The requests, in the order of time. The parameters must pass [`check`](Self::check).
    pub fn records(self) -> Requests {
        let random = SplitMix64::new(self.seed);
        // The second client does half as much as the first, the third a third, and so on: a tenth
        // of the clients does about half of all.
        let all: f64 = (1..=self.clients).map(|nth| 1.0 / f64::from(nth)).sum();
        let mut left = self.accesses;
        let mut clients: Vec<Client> = (1..=self.clients)
            .map(|nth| {
                let quota = ((self.accesses as f64 / f64::from(nth) / all) as u64).min(left);
                left -= quota;
                // The last client does what rounding leaves.
                let quota = quota + if nth == self.clients { std::mem::take(&mut left) } else { 0 };
                Client::new(quota, Hours::of_client(self.days, &random))
            })
            .collect();
        let mut ready = BinaryHeap::new();
        for (number, client) in (0..).zip(&mut clients) {
            if client.quota > 0 {
                client.worked_us = random.below(client.share_us(BURST_MAX / 10) + 1);
                ready.push(Reverse((client.hours.wall_us(client.worked_us), number)));
            }
        }
        Requests { of: self, random, ready, clients, next_file: self.habits.common_files }
    }
}

/// The last `max` files; a new one replaces the oldest.
#[derive(Debug)]
struct Ring {
    files: Vec<u64>,
    next: usize,
    max: usize,
}

impl Ring {
    fn new(max: usize) -> Ring {
        Ring { files: Vec::new(), next: 0, max }
    }

    fn push(&mut self, file: u64) {
        match self.files.len() < self.max {
            true => self.files.push(file),
            false => self.files[self.next] = file,
        }
        self.next = (self.next + 1) % self.max;
    }

    /// One of the last `count` files; later ones are preferred.
    fn draw(&self, random: &SplitMix64, count: usize, steepness: f64) -> Option<u64> {
        let len = self.files.len();
        let back = rank(random, len.min(count) as u64, steepness) as usize;
        (len > 0).then(|| self.files[(self.next + len - 1 - back) % len])
    }
}

/// Requests for one file.
#[derive(Clone, Copy, Debug)]
struct Run {
    file: u64,
    size_bytes: u64,
    is_write: bool,
    next: u64,
    end: u64,
}

#[derive(Debug)]
struct Client {
    hours: Hours,
    /// Its requests in all, and those done.
    quota: u64,
    done: u64,
    /// The number of requests done at which the burst ends.
    burst_end: u64,
    worked_us: u64,
    /// Time between two requests for a file, and between two files: the constants above, or less if
    /// the client has more to do.
    request_us: u64,
    use_us: u64,
    run: Option<Run>,
    history: Ring,
    written: Ring,
    /// Files that it will remove, each with the time.
    passing: VecDeque<(u64, u64)>,
    /// Removals of old files that are due; the fraction counts towards the next one.
    old_removals: f64,
    /// Files that it has validated, each with the time when it asked.
    valid: VecDeque<(u64, u64)>,
}

impl Client {
    fn new(quota: u64, hours: Hours) -> Client {
        let (history, written) = (Ring::new(HISTORY_COUNT_MAX), Ring::new(WRITTEN_COUNT_MAX));
        let (passing, valid) = (VecDeque::new(), VecDeque::new());
        let mean_us = hours.total_us() / quota.max(1);
        let (request_us, use_us) = (REQUEST_US.min(mean_us / 4).max(1), USE_US.min(mean_us / 2));
        let (done, burst_end, worked_us, run) = (0, 0, 0, None);
        Client {
            hours,
            quota,
            done,
            burst_end,
            worked_us,
            request_us,
            use_us,
            run,
            history,
            written,
            passing,
            old_removals: 0.0,
            valid,
        }
    }

    /// The part of its hours that this many requests should take.
    fn share_us(&self, requests: u64) -> u64 {
        (u128::from(self.hours.total_us()) * u128::from(requests) / u128::from(self.quota)) as u64
    }

    fn is_removed(&self, file: u64) -> bool {
        is_passing(file) && !self.passing.iter().any(|(_, there)| *there == file)
    }
}

/// True if the file will be removed again: such files have odd numbers.
fn is_passing(file: u64) -> bool {
    file % 2 == 1
}

/// The iterator of [`Community::records`].
#[derive(Debug)]
pub struct Requests {
    of: Community,
    random: SplitMix64,
    /// When each client makes its next request.
    ready: BinaryHeap<Reverse<(u64, u32)>>,
    clients: Vec<Client>,
    /// Half of the number of the next new file.
    next_file: u64,
}

impl Iterator for Requests {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let Reverse((time_us, client)) = *self.ready.peek()?;
        let deed_of = self.step(client, time_us);
        let of = &mut self.clients[client as usize];
        let is_over = of.done >= of.quota;
        let next = Reverse((of.hours.wall_us(of.worked_us), client));
        if let Some(mut top) = self.ready.peek_mut() {
            match is_over {
                true => drop(PeekMut::pop(top)),
                false => *top = next,
            }
        }
        let (file, deed) = deed_of;
        Some(Record { time_us, client, file, deed })
    }
}

impl Requests {
    /// The next thing that a client does; also sets when it does more.
    fn step(&mut self, client: u32, time_us: u64) -> (u64, Deed) {
        let of = &mut self.clients[client as usize];
        if of.run.is_none() {
            if of.old_removals >= 1.0 {
                of.old_removals -= 1.0;
                of.worked_us += of.request_us;
                // Nothing in the trace has used the file before.
                return (self.fresh(true), Deed::Delete);
            }
            let due = of.passing.front().is_some_and(|(due_us, _)| *due_us <= time_us);
            if (due || of.passing.len() >= PASSING_COUNT_MAX)
                && let Some((_, file)) = of.passing.pop_front()
            {
                of.worked_us += of.request_us;
                of.old_removals += self.of.habits.old_removals;
                return (file, Deed::Delete);
            }
        }
        let mut run = match of.run.take() {
            Some(run) => run,
            None => self.choose(client, time_us),
        };
        let offset = run.next * BLOCK_BYTES;
        let len = (run.size_bytes - offset).min(BLOCK_BYTES);
        let same_block = self.of.habits.same_block;
        if !(run.is_write && same_block > 0.0 && chance(&self.random, same_block)) {
            run.next += 1;
        }
        let of = &mut self.clients[client as usize];
        of.done += 1;
        of.worked_us += of.request_us;
        if run.next < run.end {
            of.run = Some(run);
        } else {
            of.worked_us += of.use_us;
        }
        if of.run.is_none() && of.done >= of.burst_end {
            // The client pauses as long as its hours require.
            of.worked_us = of.worked_us.max(of.share_us(of.done));
            of.burst_end = of.done + rank(&self.random, BURST_MAX, 1.0);
        }
        let deed = match run.is_write {
            true => Deed::Write { offset, len },
            false => Deed::Read { offset, len },
        };
        (run.file, deed)
    }

    /// The file that a client uses next.
    fn choose(&mut self, client: u32, time_us: u64) -> Run {
        let is_write = chance(&self.random, self.of.writes);
        let file = match is_write {
            true => self.choose_written(client, time_us),
            false => self.choose_read(client, time_us),
        };
        let size_bytes = size_bytes(file, self.of.seed);
        let blocks = size_bytes.div_ceil(BLOCK_BYTES);
        let (mut next, mut end) = (0, blocks);
        if !is_write && blocks > 1 && chance(&self.random, self.of.habits.partial) {
            next = self.random.below(blocks);
            end = next + 1 + self.random.below(blocks - next);
        }
        self.clients[client as usize].history.push(file);
        Run { file, size_bytes, is_write, next, end }
    }

    fn choose_read(&mut self, client: u32, time_us: u64) -> u64 {
        let unseen_us = (self.of.unseen_s * 1e6) as u64;
        let since_us = time_us.saturating_sub(unseen_us);
        let mut file = 0;
        for _ in 0..TRY_COUNT_MAX {
            file = self.propose_read(client).unwrap_or_else(|| self.fresh(false));
            let valid = &mut self.clients[client as usize].valid;
            while valid.front().is_some_and(|(asked_us, _)| *asked_us <= since_us) {
                valid.pop_front();
            }
            if !valid.iter().rev().any(|(_, valid)| *valid == file) {
                break;
            }
        }
        let valid = &mut self.clients[client as usize].valid;
        if unseen_us > 0 {
            if valid.len() >= VALID_COUNT_MAX {
                valid.pop_front();
            }
            valid.push_back((time_us, file));
        }
        file
    }

    /// A file to read; `None` asks for one that no client has used.
    fn propose_read(&self, client: u32) -> Option<u64> {
        let Habits { common, group, fresh, latest, recency, .. } = self.of.habits;
        let (of, at) = (&self.clients[client as usize], part(&self.random));
        let used = if at < fresh {
            return None;
        } else if at < fresh + common {
            None
        } else if at < fresh + common + group {
            let file = self.peer(client).history.draw(&self.random, HISTORY_COUNT_MAX, recency);
            // Files that other clients made only for a short time are not shared.
            file.filter(|file| !is_passing(*file))
        } else {
            let count = if at < fresh + common + group + latest { LATEST_COUNT } else { HISTORY_COUNT_MAX };
            of.history.draw(&self.random, count, recency).filter(|file| !of.is_removed(*file))
        };
        Some(
            used.unwrap_or_else(|| {
                2 * rank(&self.random, self.of.habits.common_files, self.of.habits.common_steepness)
            }),
        )
    }

    fn choose_written(&mut self, client: u32, time_us: u64) -> u64 {
        let Habits { passing, passing_s, again, again_recency, foreign, .. } = self.of.habits;
        let at = part(&self.random);
        if at < passing {
            let file = self.fresh(true);
            let lives_us = (libm::exp(part(&self.random) * libm::log(passing_s)) * 1e6) as u64;
            let of = &mut self.clients[client as usize].passing;
            let due_us = time_us + lives_us;
            of.insert(of.partition_point(|(other_us, _)| *other_us <= due_us), (due_us, file));
            return file;
        }
        let mut file = None;
        if at < passing + again {
            let of = match chance(&self.random, foreign) {
                true => self.peer(client),
                false => &self.clients[client as usize],
            };
            file = of.written.draw(&self.random, WRITTEN_COUNT_MAX, again_recency);
        }
        let file = file.unwrap_or_else(|| self.fresh(false));
        self.clients[client as usize].written.push(file);
        file
    }

    /// Another client of the same group; the client itself if it is alone.
    fn peer(&self, client: u32) -> &Client {
        // Groups mix clients that work much with clients that work less.
        let groups = self.of.clients.div_ceil(GROUP_COUNT);
        let (group, nth) = (client % groups, client / groups);
        let count = (self.of.clients - group).div_ceil(groups);
        let nth = match count {
            1 => 0,
            _ => (nth + 1 + self.random.below(u64::from(count) - 1) as u32) % count,
        };
        &self.clients[(group + nth * groups) as usize]
    }

    fn fresh(&mut self, is_passing: bool) -> u64 {
        self.next_file += 1;
        2 * (self.next_file - 1) + u64::from(is_passing)
    }
}
