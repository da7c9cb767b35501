//! Random histories on several mounts of one file system, checked against a model.
//!
//! In each round programs at some of the mounts make one call each, at the same time. Some order of
//! these calls must give the same answers on `vfs::MemFs`; a call that ended before another one
//! began comes before it. The world of several simulated clients chooses and judges the calls, so
//! both have the same rules: see `world::clients`. Here the calls are system calls, which go
//! through the kernel, and locks are among them.
//!
//! `STARLING_HISTORY_SECONDS` runs new histories for so long, `STARLING_HISTORY_SEED` begins with
//! this seed.

mod common;
#[path = "common/nodes.rs"]
mod on_loopback;
#[path = "histories/program.rs"]
mod program;

use common::Mounted;
use host::SplitMix64;
use program::Program;
use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use types::FileId;
use world::clients::call::{Answered, Call, OpenNumber, Seen};
use world::clients::choice::{Choice, View};
use world::clients::oracle::{Event, Known, Oracle};

/// Longest time that a call may take.
const CALL_TIME_MAX: Duration = Duration::from_secs(60);
/// Calls that a failure shows.
const SHOWN_MAX: usize = 80;
/// Calls of a mount that its programs repeat sometimes.
const LOOKED_MAX: usize = 6;
/// Programs read and write near multiples of this many bytes.
const STEP_BYTES: u64 = 4096;
/// Rounds of the short run.
const ROUNDS: u64 = 600;

/// A mount, and its programs.
struct Site {
    node: Mounted,
    program: Arc<Program>,
    /// Its newest calls that the kernel may know the answer of, and what they found.
    looked: Vec<(Call, FileId)>,
    /// Open files that may have locks.
    locked: BTreeSet<OpenNumber>,
}

struct History {
    random: SplitMix64,
    sites: Vec<Site>,
    oracle: Oracle,
    began: Instant,
    next_open: OpenNumber,
    name_count: u64,
    shown: VecDeque<String>,
    seed: u64,
    call_count: u64,
    refused_count: u64,
    together_count: u64,
}

impl History {
    /// A new file system with this many mounts.
    fn new(below: &Path, seed: u64, count: usize) -> History {
        let random = SplitMix64::new(seed);
        let (first, _) = on_loopback::first_node(below, "first");
        let mut nodes = vec![first];
        for number in 1..count {
            nodes.push(on_loopback::join(below, &nodes[0], &format!("node{number}")));
        }
        let site = |node: Mounted| {
            let program = Arc::new(Program::new(&node.mountpoint));
            Site { node, program, looked: Vec::new(), locked: BTreeSet::new() }
        };
        let sites: Vec<Site> = nodes.into_iter().map(site).collect();
        let mode = sites[0].program.tree()[0].attr.mode;
        let oracle = Oracle::new(STEP_BYTES as u32, mode).behind_kernels();
        let name_count = 2 + random.below(4);
        History {
            random,
            sites,
            oracle,
            began: Instant::now(),
            next_open: 1,
            name_count,
            shown: VecDeque::new(),
            seed,
            call_count: 0,
            refused_count: 0,
            together_count: 0,
        }
    }

    fn fail(&self, what: &str) -> ! {
        let shown: Vec<&str> = self.shown.iter().map(String::as_str).collect();
        panic!("seed {}, after {} calls: {what}\n{}", self.seed, self.call_count, shown.join("\n"));
    }

    fn show(&mut self, text: String) {
        self.shown.push_back(text);
        if self.shown.len() > SHOWN_MAX {
            self.shown.pop_front();
        }
    }

    /// The calls of a round.
    fn plan(&mut self) -> Vec<(usize, Call)> {
        let random = &self.random;
        let all = self.oracle.files();
        let looked = &self.sites[random.below(self.sites.len() as u64) as usize].looked;
        // What one of the kernels may know, if there is something.
        let hot = looked.get(random.below(2 * LOOKED_MAX as u64) as usize).map(|(_, id)| *id);
        let hot = hot.or(all.get(random.below(2 * all.len() as u64) as usize).map(|file| file.id));
        let choice = Choice { random, block_size: STEP_BYTES, name_count: self.name_count, hot };
        let (mut planned, mut closed): (Vec<(usize, Call)>, BTreeSet<OpenNumber>) = (Vec::new(), BTreeSet::new());
        for _ in 0..[1, 1, 2, 2, 2, 3, 3][random.below(7) as usize] {
            let at = random.below(self.sites.len() as u64) as usize;
            if planned.iter().filter(|(site, _)| *site == at).count() > usize::from(random.chance(1, 4)) {
                continue;
            }
            let Site { program, looked, .. } = &self.sites[at];
            let opens: Vec<(OpenNumber, FileId)> =
                program.opens().iter().map(|(open, file)| (*open, file.id)).collect();
            let opens: Vec<_> = opens.into_iter().filter(|(open, _)| !closed.contains(open)).collect();
            let files: Vec<Known> = all.iter().filter(|file| program.knows(file.id)).copied().collect();
            let view = View { files: &files, opens: &opens, next_open: self.next_open };
            let hot = choice.hot.filter(|hot| program.knows(*hot));
            let again = looked.get(random.below(looked.len() as u64) as usize).filter(|_| random.chance(1, 4));
            let call = match again {
                Some((call, _)) => call.clone(),
                None if random.chance(1, 8) => {
                    self.lock(program).unwrap_or_else(|| Choice { hot, ..choice }.call(&view))
                }
                None => Choice { hot, ..choice }.call(&view),
            };
            let call = self.possible(program, call);
            if let Some(open) = call.uses().filter(|_| call.closes()) {
                if planned.iter().any(|(site, call)| *site == at && call.uses() == Some(open)) {
                    continue;
                }
                closed.insert(open);
            }
            self.next_open += u64::from(call.opens().is_some());
            planned.push((at, call));
        }
        planned
    }

    /// Locks or unlocks some part of an open file.
    fn lock(&self, program: &Program) -> Option<Call> {
        let opens = program.opens();
        let opens: Vec<OpenNumber> = opens.iter().filter(|(_, f)| f.can_read && f.can_write).map(|(o, _)| *o).collect();
        let open = *opens.get(self.random.below(opens.len().max(1) as u64) as usize)?;
        let (first, last) = [(0, u64::MAX), (0, 9), (10, 19), (5, 14)][self.random.below(4) as usize];
        let exclusive = [None, Some(true), Some(true), Some(false)][self.random.below(4) as usize];
        Some(Call::Lock { open, exclusive, first, last })
    }

    /// What the kernel does only for some open files is done for these only.
    fn possible(&self, program: &Program, call: Call) -> Call {
        let opens = program.opens();
        let used = call.uses().and_then(|open| opens.iter().find(|(number, _)| *number == open));
        match (&call, used) {
            (&Call::Append { open, fill, len }, Some((_, file))) if !file.is_append => {
                Call::Write { open, offset: 0, fill, len }
            }
            (Call::TruncateOpen { .. }, Some((_, file))) if !file.can_write => Call::Getattr { id: file.id },
            _ => call,
        }
    }

    /// Programs make these calls at the same time.
    fn perform(&mut self, planned: Vec<(usize, Call)>) -> Vec<Event> {
        let (send, receive) = mpsc::channel();
        let plan: Vec<String> = planned.iter().map(|(site, call)| format!("mount {site}: {call:?}")).collect();
        for (number, (site, call)) in planned.iter().cloned().enumerate() {
            let (program, send, began) = (self.sites[site].program.clone(), send.clone(), self.began);
            std::thread::spawn(move || {
                let start = began.elapsed();
                let answered = program.perform(&call);
                let _ = send.send((number, start, answered, began.elapsed()));
            });
        }
        let mut answers: Vec<Option<(Duration, Option<Answered>, Duration)>> = vec![None; planned.len()];
        for _ in 0..planned.len() {
            match receive.recv_timeout(CALL_TIME_MAX) {
                Ok((number, start, answered, end)) => answers[number] = Some((start, answered, end)),
                Err(_) => self.fail(&format!("no answer for {CALL_TIME_MAX:?} to one of {plan:#?}, got {answers:?}")),
            }
        }
        let events = planned.into_iter().zip(answers).filter_map(|((client, call), answer)| {
            let (began, answered, ended) = answer?;
            let ended = if answered.is_some() { ended } else { Duration::MAX };
            Some(Event { client, call, answered, began, ended })
        });
        events.collect()
    }

    fn learn(&mut self, events: &[Event]) {
        for event in events {
            let site = &mut self.sites[event.client];
            let found = match &event.answered {
                Some(Ok(Seen::Entry(entry))) => Some(entry.attr.id),
                Some(Ok(Seen::File(id))) => Some(*id),
                _ => None,
            };
            if let Some(id) = found {
                let is_lookup = matches!(event.call, Call::Lookup { .. });
                let call = if is_lookup { event.call.clone() } else { Call::Getattr { id } };
                site.looked.push((call, id));
                if site.looked.len() > LOOKED_MAX {
                    site.looked.remove(0);
                }
            }
            if let Call::Lock { open, .. } = event.call {
                site.locked.insert(open);
            }
            self.refused_count += u64::from(matches!(event.answered, Some(Err(_))));
            self.show(event.to_string());
        }
        self.call_count += events.len() as u64;
        self.together_count += u64::from(events.len() > 1);
    }

    fn judge(&mut self, planned: Vec<(usize, Call)>) {
        let events = self.perform(planned);
        self.learn(&events);
        if let Err(what) = self.oracle.round(&events) {
            self.fail(&what);
        }
    }

    fn round(&mut self) {
        let planned = self.plan();
        // The kernel tells of a file's end later, and with it of the end of its locks.
        for (site, call) in &planned {
            if let Some(open) = call.uses().filter(|open| call.closes() && self.sites[*site].locked.remove(open)) {
                self.judge(vec![(*site, Call::Lock { open, exclusive: None, first: 0, last: u64::MAX })]);
            }
        }
        self.judge(planned);
    }

    /// Makes everything durable and compares the trees.
    fn settle(&mut self, all: bool) {
        for at in 0..self.sites.len() {
            self.judge(vec![(at, Call::Sync)]);
        }
        let chosen = self.random.below(self.sites.len() as u64) as usize;
        for at in (0..self.sites.len()).filter(|at| all || *at == chosen) {
            let tree = self.sites[at].program.tree();
            if let Err(what) = self.oracle.settled(&tree) {
                self.fail(&format!("mount {at} has another tree: {what}"));
            }
        }
        let files: BTreeSet<FileId> = self.oracle.files().into_iter().map(|file| file.id).collect();
        for site in &mut self.sites {
            site.program.forget(|id| files.contains(&id));
            site.looked.retain(|(call, id)| match call {
                Call::Lookup { dir, .. } => site.program.knows(*dir),
                _ => site.program.knows(*id),
            });
        }
    }

    fn run(&mut self, rounds: u64) {
        let mut left = rounds;
        while left > 0 {
            for _ in 0..left.min(5 + self.random.below(40)) {
                self.round();
                left -= 1;
            }
            self.settle(false);
        }
        for at in 0..self.sites.len() {
            for (open, file) in self.sites[at].program.opens() {
                let call = if file.is_directory { Call::CloseDirectory { open } } else { Call::Close { open } };
                drop(file);
                self.judge(vec![(at, call)]);
            }
        }
        self.settle(true);
    }

    fn end(self) {
        let nodes: Vec<Mounted> = self.sites.into_iter().map(|site| site.node).collect();
        nodes.iter().rev().for_each(Mounted::down);
        let checked = common::run(common::starling().arg("fsck").arg("--data").arg(&nodes[0].data));
        assert!(checked.contains("no problems"), "{checked}");
    }
}

/// Runs histories as the environment says: one short one, or many.
fn repeat(run: impl Fn(u64) -> (u64, u64, u64)) {
    // Files get the modes that the calls say.
    rustix::process::umask(rustix::fs::Mode::empty());
    let asked = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a date").as_nanos() as u64;
    let (mut seed, began) = (asked("STARLING_HISTORY_SEED").unwrap_or(now), Instant::now());
    let time = Duration::from_secs(asked("STARLING_HISTORY_SECONDS").unwrap_or(0));
    let (mut calls, mut refused, mut together) = (0, 0, 0);
    loop {
        println!("seed {seed}");
        let counts = run(seed);
        (calls, refused, together) = (calls + counts.0, refused + counts.1, together + counts.2);
        println!("{calls} calls in {:.0?}: {refused} refused, {together} times several at once", began.elapsed());
        if began.elapsed() >= time {
            break;
        }
        seed += 1;
    }
    assert!(refused > calls / 20 && refused < calls * 4 / 5, "{refused} of {calls} were refused");
    assert!(together > calls / 10, "{together} times several at once, of {calls} calls");
}

#[test]
fn histories_on_three_mounts_are_those_of_one_file_system() {
    repeat(|seed| {
        let dir = tempfile::tempdir().expect("temporary folder");
        let mut history = History::new(dir.path(), seed, 3);
        history.run(ROUNDS);
        let counts = (history.call_count, history.refused_count, history.together_count);
        history.end();
        counts
    });
}
