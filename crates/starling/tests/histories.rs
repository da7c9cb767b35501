//! Random histories on several mounts of one file system, checked against a model.
//!
//! In each round programs at some of the mounts make one call each, at the same time. Some order of
//! these calls must give the same answers on `vfs::MemFs`; a call that ended before another one
//! began comes before it. The world of several simulated clients chooses and judges the calls, so
//! both have the same rules: see `world::clients`. Here the calls are system calls, which go
//! through the kernel, and locks are among them.
//!
//! Nodes are killed, and paused for longer than their lease. What such a node did last may be lost,
//! as far as no fsync and no other mount's answer says that it was done: see
//! `world::clients::oracle`. The first node is killed only when everything is durable.
//!
//! `STARLING_HISTORY_SECONDS` runs new histories for so long, `STARLING_HISTORY_SEED` begins with
//! this seed.

mod common;
#[path = "common/nodes.rs"]
mod on_loopback;
#[path = "histories/program.rs"]
mod program;

use common::{Mounted, run, starling};
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
const SHOWN_MAX: usize = 400;
/// Calls of a mount that its programs repeat sometimes.
const LOOKED_MAX: usize = 6;
/// Programs read and write near multiples of this many bytes.
const STEP_BYTES: u64 = 4096;
/// Rounds of a history.
const ROUNDS: u64 = 600;
/// Rounds of a history with faults.
const FAULT_ROUNDS: u64 = 100;
/// How long a paused node stands still: longer than its lease of five seconds, with what is added
/// for clocks that differ.
const PAUSE: Duration = Duration::from_secs(12);

/// What happens to a node in a round.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// It is killed after this time, and starts again at once.
    Kill(Duration),
    /// It is killed after this time, and starts again when the others have done without it.
    LongKill(Duration),
    /// It stands still.
    Pause,
}

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
    /// Where the first node listens.
    listen: String,
    oracle: Oracle,
    began: Instant,
    next_open: OpenNumber,
    name_count: u64,
    shown: VecDeque<String>,
    seed: u64,
    call_count: u64,
    refused_count: u64,
    together_count: u64,
    kill_count: u64,
    first_kill_count: u64,
    pause_count: u64,
    loss_count: u64,
}

impl History {
    /// A new file system with this many mounts.
    fn new(below: &Path, seed: u64, count: usize) -> History {
        let random = SplitMix64::new(seed);
        let (first, listen) = on_loopback::first_node(below, "first");
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
            listen,
            oracle,
            began: Instant::now(),
            next_open: 1,
            name_count,
            shown: VecDeque::new(),
            seed,
            call_count: 0,
            refused_count: 0,
            together_count: 0,
            kill_count: 0,
            first_kill_count: 0,
            pause_count: 0,
            loss_count: 0,
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
                    self.lock(program, &closed).unwrap_or_else(|| Choice { hot, ..choice }.call(&view))
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

    /// Locks or unlocks some part of an open file, unless it is closed at the same time: nothing
    /// would unlock it before that.
    fn lock(&self, program: &Program, closed: &BTreeSet<OpenNumber>) -> Option<Call> {
        let opens = program.opens();
        let opens = opens.iter().filter(|(open, file)| file.can_read && file.can_write && !closed.contains(open));
        let opens: Vec<OpenNumber> = opens.map(|(open, _)| *open).collect();
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

    /// Programs make these calls at the same time, while something happens to a node. A call there
    /// that has not ended before counts as unanswered.
    fn perform(&mut self, planned: Vec<(usize, Call)>, fault: Option<(usize, Fault)>) -> Vec<Event> {
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
        let broken = fault.map(|(victim, fault)| (victim, self.strike(victim, fault)));
        let mut answers: Vec<Option<(Duration, Option<Answered>, Duration)>> = vec![None; planned.len()];
        for _ in 0..planned.len() {
            match receive.recv_timeout(CALL_TIME_MAX) {
                Ok((number, start, answered, end)) => answers[number] = Some((start, answered, end)),
                Err(_) => self.fail(&format!("no answer for {CALL_TIME_MAX:?} to one of {plan:#?}, got {answers:?}")),
            }
        }
        let events = planned.into_iter().zip(answers).filter_map(|((client, call), answer)| {
            let (began, answered, ended) = answer?;
            let is_cut = broken.is_some_and(|(victim, at)| victim == client && ended > at);
            let answered = answered.filter(|_| !is_cut);
            let ended = if answered.is_some() { ended } else { Duration::MAX };
            Some(Event { client, call, answered, began, ended, is_raced: false })
        });
        events.collect()
    }

    /// Does something to a node. Returns when it began.
    fn strike(&self, victim: usize, fault: Fault) -> Duration {
        let node = &self.sites[victim].node;
        match fault {
            Fault::Kill(after) | Fault::LongKill(after) => {
                std::thread::sleep(after);
                let at = self.began.elapsed();
                node.kill();
                if matches!(fault, Fault::Kill(_)) {
                    start_again(node);
                }
                at
            }
            Fault::Pause => {
                let at = self.began.elapsed();
                node.signal(libc::SIGSTOP);
                std::thread::sleep(PAUSE);
                node.signal(libc::SIGCONT);
                at
            }
        }
    }

    /// Kills the first node when everything is durable, and starts it again. What was open may be
    /// lost at every node.
    fn kill_first(&mut self) {
        self.settle(false);
        self.show("mount 0: killed".to_string());
        let node = &self.sites[0].node;
        node.kill();
        run(again(node).args(["--listen", &self.listen]));
        for at in 0..self.sites.len() {
            self.begin_anew(at);
            self.oracle.close_all(at);
        }
        self.first_kill_count += 1;
        self.compare(true);
    }

    /// Waits until programs at a mount can begin anew.
    fn begin_anew(&mut self, at: usize) {
        let site = &mut self.sites[at];
        site.looked.clear();
        site.locked.clear();
        let deadline = Instant::now() + CALL_TIME_MAX;
        site.program.begin_anew();
        while !matches!(site.program.perform(&Call::Sync), Some(Ok(_))) {
            assert!(Instant::now() < deadline, "node {at} does not come back");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn fault(&mut self, victim: usize, fault: Fault) {
        let mut planned = self.plan();
        if matches!(fault, Fault::Pause) {
            planned.retain(|(site, _)| *site != victim);
        }
        self.unlock_before_closing(&planned);
        let events = self.perform(planned, Some((victim, fault)));
        self.show(format!("mount {victim}: {fault:?}"));
        self.learn(&events);
        let others: Vec<usize> = (0..self.sites.len()).filter(|at| *at != victim).collect();
        if matches!(fault, Fault::LongKill(_)) {
            self.sites[others[0]].program.tree();
            start_again(&self.sites[victim].node);
        }
        self.begin_anew(victim);
        for at in others {
            match self.sites[at].program.perform(&Call::Sync) {
                Some(Ok(_)) => {}
                failed => self.fail(&format!("mount {at} cannot sync after {fault:?}: {failed:?}")),
            }
        }
        let at = self.random.below(self.sites.len() as u64) as usize;
        let tree = self.sites[at].program.tree();
        match self.oracle.crashed(victim, &events, &tree) {
            Ok(is_lost) => self.loss_count += u64::from(is_lost),
            Err(what) => self.fail(&format!("after {fault:?} of mount {victim}, seen from mount {at}: {what}")),
        }
        match fault {
            Fault::Pause => self.pause_count += 1,
            _ => self.kill_count += 1,
        }
        self.compare(true);
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
        let events = self.perform(planned, None);
        self.learn(&events);
        if let Err(what) = self.oracle.round(&events) {
            self.fail(&what);
        }
    }

    fn round(&mut self) {
        let planned = self.plan();
        self.unlock_before_closing(&planned);
        self.judge(planned);
    }

    /// A kernel tells of the end of an open file later, and with it of the end of its locks.
    fn unlock_before_closing(&mut self, planned: &[(usize, Call)]) {
        for (site, call) in planned {
            if let Some(open) = call.uses().filter(|open| call.closes() && self.sites[*site].locked.remove(open)) {
                self.judge(vec![(*site, Call::Lock { open, exclusive: None, first: 0, last: u64::MAX })]);
            }
        }
    }

    /// Makes everything durable and compares the trees.
    fn settle(&mut self, all: bool) {
        for at in 0..self.sites.len() {
            self.judge(vec![(at, Call::Sync)]);
        }
        self.compare(all);
    }

    /// Compares the tree of a mount, or of all, when everything is durable.
    fn compare(&mut self, all: bool) {
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

    /// A fault of a joined node. Pauses are seldom, since they take long.
    fn draw_fault(&self) -> (usize, Fault) {
        let victim = 1 + self.random.below(self.sites.len() as u64 - 1) as usize;
        let after = Duration::from_micros(self.random.below(1 << self.random.below(14)));
        let fault = match self.random.below(20) {
            0 => Fault::Pause,
            1 | 2 => Fault::LongKill(after),
            _ => Fault::Kill(after),
        };
        (victim, fault)
    }

    fn run(&mut self, rounds: u64, seldom: u64) {
        let mut left = rounds;
        while left > 0 {
            for _ in 0..left.min(5 + self.random.below(40)) {
                if seldom == 0 || !self.random.chance(1, seldom) {
                    self.round();
                } else if self.random.chance(1, 8) {
                    self.kill_first();
                } else {
                    let (victim, fault) = self.draw_fault();
                    self.fault(victim, fault);
                }
                left -= 1;
            }
            self.settle(false);
        }
        if seldom > 0 {
            self.fault(2, Fault::Kill(Duration::from_millis(1)));
            self.fault(1, Fault::Pause);
            self.kill_first();
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

fn start_again(node: &Mounted) {
    run(&mut again(node));
}

fn again(node: &Mounted) -> std::process::Command {
    let mut command = starling();
    command.arg("up").arg(&node.mountpoint).arg("--data").arg(&node.data).arg("--background");
    command
}

/// Sums over histories.
#[derive(Default, Debug)]
struct Counts {
    calls: u64,
    refused: u64,
    together: u64,
    kills: u64,
    first_kills: u64,
    pauses: u64,
    losses: u64,
}

/// Runs histories as the environment says: one, or as many as there is time for. A fault comes once
/// in `seldom` rounds; 0 is never.
fn repeat(rounds: u64, seldom: u64) -> Counts {
    // Files get the modes that the calls say.
    rustix::process::umask(rustix::fs::Mode::empty());
    let asked = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a date").as_nanos() as u64;
    let (mut seed, began) = (asked("STARLING_HISTORY_SEED").unwrap_or(now), Instant::now());
    let time = Duration::from_secs(asked("STARLING_HISTORY_SECONDS").unwrap_or(0));
    let mut counts = Counts::default();
    loop {
        println!("seed {seed}");
        let dir = tempfile::tempdir().expect("temporary folder");
        let mut history = History::new(dir.path(), seed, 3);
        history.run(rounds, seldom);
        counts.calls += history.call_count;
        counts.refused += history.refused_count;
        counts.together += history.together_count;
        counts.kills += history.kill_count;
        counts.first_kills += history.first_kill_count;
        counts.pauses += history.pause_count;
        counts.losses += history.loss_count;
        history.end();
        println!("{:.0?}: {counts:?}", began.elapsed());
        if began.elapsed() >= time {
            break;
        }
        seed += 1;
    }
    assert!(counts.refused > counts.calls / 20 && counts.refused < counts.calls * 4 / 5, "{counts:?}");
    assert!(counts.together > counts.calls / 10, "{counts:?}");
    counts
}

#[test]
fn histories_on_three_mounts_are_those_of_one_file_system() {
    repeat(ROUNDS, 0);
}

#[test]
fn crash_histories_lose_only_what_a_dead_node_did_last() {
    let counts = repeat(FAULT_ROUNDS, 30);
    assert!(counts.kills > 0 && counts.pauses > 0 && counts.first_kills > 0, "{counts:?}");
}
