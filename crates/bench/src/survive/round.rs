//! One round: programs on every mount, a fault at one node, its healing, and what is left.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use super::cluster::VOTERS;
use super::judge::{self, Call, Outcome, Window};
use super::ledger::Ledger;
use super::nodes::Nodes;
use super::plan::{Fault, Role, Round};
use super::watch::Watched;
use crate::command::{self, Interrupts, check_interrupt, pause};
use crate::work::{Random, monotonic_seconds};

/// Programs per mount that make and read files.
const LOADS: usize = 2;
/// Longest time until a program holds its file.
const HOLD_DEADLINE: Duration = Duration::from_secs(60);
/// Longest time for the last write of a program that holds a file, for a look at it from another
/// node, and for programs to end.
const END_DEADLINE: Duration = Duration::from_secs(30);
/// A check of the files may take so long, and so long per file.
const CHECK_DEADLINE: Duration = Duration::from_secs(120);
const CHECK_DEADLINE_PER_FILE: Duration = Duration::from_millis(50);
/// A killed node is started again after one of these times, in seconds: within a lease and after.
const DOWN_S: [u64; 3] = [2, 10, 20];

/// How long the parts of a round last.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// From the start of the programs to the fault.
    pub before: Duration,
    /// How long a fault lasts that is not a kill.
    pub fault: Duration,
    /// From the healing until calls do not count any more.
    pub after: Duration,
}

/// The surroundings of all rounds of the same nodes.
pub struct Arena {
    /// The nodes.
    pub nodes: Box<dyn Nodes>,
    /// The folder with the ledgers of what is synced.
    pub ledgers: PathBuf,
    /// Programs that were started so far.
    pub started: usize,
}

impl Arena {
    /// Does a round. Nodes that are not whole at the end are in the outcome's failures. Fails if
    /// the round could not be done to its end.
    pub fn round(&mut self, round: Round, timing: Timing) -> Result<Outcome> {
        let mut random = Random::new(round.seed);
        let leader = self.nodes.leader()?;
        let victim = victim(round.hit.role, leader, self.nodes.count(), &mut random);
        let hit = victim.map_or(0..self.nodes.count(), |victim| victim..victim + 1);
        let is_hit = |watched: &Watched| victim == Some(watched.node());
        let down = Duration::from_secs(DOWN_S[random.below(DOWN_S.len() as u64) as usize]);
        let fault = round.hit.fault;
        let mut outcome = Outcome::new(round, victim, leader);
        let folder = format!("round-{}", round.number);
        let synced_before = self.synced()?;

        let mut holds = self.start_holds(&folder)?;
        let mut loads = Vec::new();
        for node in 0..self.nodes.count() {
            self.start_loads(node, &folder, &mut loads)?;
        }
        pause(timing.before)?;

        let sessions = self.sessions()?;
        outcome.fault_at_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let from_s = monotonic_seconds();
        hit.clone().try_for_each(|node| self.nodes.hit(node, fault))?;
        let burners = if fault == Fault::Saturate { self.start_burners()? } else { Vec::new() };
        let mut dead = Vec::new();
        if fault == Fault::Kill {
            // The programs of a machine end with it.
            (dead, loads) = loads.into_iter().partition(is_hit);
            holds.retain(|hold| !is_hit(hold));
        }
        let bad_at_victim: Vec<String> = dead.iter().flat_map(bad_files).collect();
        drop(dead);
        pause(if fault == Fault::Kill { down } else { timing.fault })?;
        drop(burners);
        for node in hit.clone() {
            outcome.failures.extend(self.nodes.heal(node, fault)?);
        }
        let healed_s = monotonic_seconds();
        outcome.fault_s = healed_s - from_s;
        if fault == Fault::Kill {
            hit.clone().try_for_each(|node| self.start_loads(node, &folder, &mut loads))?;
        }
        let whole = self.nodes.wait_until_whole();
        check_interrupt()?;
        let whole_s = monotonic_seconds() - healed_s;
        match whole {
            Ok(_) => outcome.whole_after_s = Some(whole_s),
            Err(error) => outcome.failures.push(format!("{error:#}")),
        }
        pause(timing.after.saturating_sub(Duration::from_secs_f64(whole_s)))?;
        outcome.leader_after = self.nodes.leader().ok();

        if victim.is_none() {
            let after = self.sessions()?;
            let nodes = 0..self.nodes.count();
            outcome.declared_dead = nodes.filter(|node| after[*node] != sessions[*node]).collect();
        }
        outcome.lost_holds = self.judge_holds(&mut holds, victim, &folder)?;
        let mut stuck = end(&mut loads)?;
        holds.iter_mut().for_each(Watched::let_end);
        stuck.extend(end(&mut holds)?);
        outcome.failures.extend(stuck);
        let survivors = || loads.iter().chain(&holds).filter(|watched| !is_hit(watched));
        let calls: Vec<Call> = survivors().flat_map(|watched| watched.heard().calls.clone()).collect();
        let window = Window { from_s, to_s: healed_s + timing.after.as_secs_f64(), now_s: monotonic_seconds() };
        outcome.calls = judge::judge(&calls, window);
        outcome.bad = loads.iter().flat_map(bad_files).chain(bad_at_victim).collect();
        drop((loads, holds));

        outcome.synced = self.synced()? - synced_before;
        let (bad, failures) = self.check();
        outcome.bad.extend(bad);
        outcome.failures.extend(failures);
        check_interrupt()?;
        Ok(outcome)
    }

    fn start(&mut self, node: usize, name: &str, options: &[(&str, String)]) -> Result<Watched> {
        self.started += 1;
        Watched::start(node, &self.arguments(node, name, options))
    }

    fn arguments(&self, node: usize, name: &str, options: &[(&str, String)]) -> Vec<String> {
        let mut all = vec![name.to_owned(), self.nodes.mount_point(node).display().to_string()];
        all.extend(options.iter().flat_map(|(option, value)| [format!("--{option}"), value.clone()]));
        all
    }

    /// A program on each mount holds a file.
    fn start_holds(&mut self, folder: &str) -> Result<Vec<Watched>> {
        let mut holds = Vec::new();
        for node in 0..self.nodes.count() {
            let hold = self.start(node, "hold", &[("name", held(folder, node))])?;
            hold.wait_for("holds", HOLD_DEADLINE).with_context(|| format!("hold a file at node {node}"))?;
            holds.push(hold);
        }
        Ok(holds)
    }

    fn start_loads(&mut self, node: usize, folder: &str, loads: &mut Vec<Watched>) -> Result<()> {
        for _ in 0..LOADS {
            let mut options = self.of_node(node);
            options.extend([("folder", folder.to_owned()), ("id", self.started.to_string())]);
            loads.push(self.start(node, "load", &options)?);
        }
        Ok(())
    }

    /// How many sessions each node has begun.
    fn sessions(&self) -> Result<Vec<usize>> {
        (0..self.nodes.count()).map(|node| self.nodes.sessions(node)).collect()
    }

    /// Programs that take all processors until they are dropped.
    fn start_burners(&mut self) -> Result<Vec<Watched>> {
        let processors = std::thread::available_parallelism().context("count the processors")?.get();
        (0..processors).map(|_| self.start(0, "burn", &[])).collect()
    }

    fn of_node(&self, node: usize) -> Vec<(&'static str, String)> {
        vec![
            ("ledgers", self.ledgers.display().to_string()),
            ("node", node.to_string()),
            ("nodes", self.nodes.count().to_string()),
        ]
    }

    /// What survivors have lost of the files that they hold open and locked.
    fn judge_holds(&self, holds: &mut [Watched], victim: Option<usize>, folder: &str) -> Result<Vec<String>> {
        let mut lost = Vec::new();
        for hold in holds.iter_mut().filter(|hold| Some(hold.node()) != victim) {
            let node = hold.node();
            let text = format!("held-by-node-{node}-to-the-end");
            if let Err(error) = self.judge_hold(hold, &text, victim, &held(folder, node)) {
                check_interrupt()?;
                lost.push(format!("the file that node {node} holds: {error:#}"));
            }
        }
        Ok(lost)
    }

    fn judge_hold(&self, hold: &mut Watched, text: &str, victim: Option<usize>, name: &str) -> Result<()> {
        hold.tell(text)?;
        let wrote = hold.wait_for("wrote", END_DEADLINE)?;
        ensure!(wrote == "all", "a write through the open descriptor: {wrote}");
        let other = (0..self.nodes.count()).find(|node| Some(*node) != victim && *node != hold.node());
        let other = other.context("no other survivor")?;
        let said = self.run(other, "probe", &[("name", name.to_owned())], END_DEADLINE)?;
        let line = |word: &str| said.lines().find_map(|line| line.strip_prefix(word)).unwrap_or("not said");
        for lock in ["flock ", "fcntl "] {
            ensure!(line(lock) == "refused", "{lock}from node {other}: {}", line(lock));
        }
        ensure!(line("contents ") == text, "node {other} reads {:?}, not what was written", line("contents "));
        Ok(())
    }

    /// Runs a program on a node to its end.
    fn run(&self, node: usize, name: &str, options: &[(&str, String)], deadline: Duration) -> Result<String> {
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.arg("survive-part").args(self.arguments(node, name, options));
        command::run(&mut command, deadline, Interrupts::Obey)
    }

    /// Files that were synced in all rounds.
    fn synced(&self) -> Result<usize> {
        let of = |node| Ok(Ledger::open(&self.ledgers, node)?.names()?.len());
        (0..self.nodes.count()).map(of).sum::<std::io::Result<usize>>().context("read the ledgers")
    }

    /// Reads every file that was synced in any round, each from a node that is not its writer's.
    /// Returns the files that are lost or wrong, and failures.
    fn check(&self) -> (Vec<String>, Vec<String>) {
        let check = |node| {
            let files = self.synced()?;
            let deadline = CHECK_DEADLINE + CHECK_DEADLINE_PER_FILE * u32::try_from(files).unwrap_or(u32::MAX);
            let said = self.run(node, "check", &self.of_node(node), deadline)?;
            ensure!(said.lines().any(|line| line.starts_with("checked ")), "it was not finished");
            Ok(said)
        };
        let (mut bad, mut failures) = (Vec::new(), Vec::new());
        std::thread::scope(|scope| {
            let check = &check;
            let threads: Vec<_> = (0..self.nodes.count()).map(|node| scope.spawn(move || check(node))).collect();
            for (node, thread) in threads.into_iter().enumerate() {
                match thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                    Ok(said) => {
                        let files = said.lines().filter_map(|line| line.strip_prefix("bad "));
                        bad.extend(files.map(|file| format!("{file}, at node {node}")));
                    }
                    Err(error) => failures.push(format!("the check of the files at node {node}: {error:#}")),
                }
            }
        });
        (bad, failures)
    }
}

/// The node that a fault hits; `None` if it hits all.
fn victim(role: Role, leader: usize, nodes: usize, random: &mut Random) -> Option<usize> {
    let candidates: Vec<usize> = match role {
        Role::Client => (VOTERS..nodes).collect(),
        Role::Member => (0..VOTERS).filter(|node| *node != leader).collect(),
        Role::Leader => vec![leader],
        Role::Every => return None,
    };
    Some(candidates[random.below(candidates.len() as u64) as usize])
}

/// The file that a node holds.
fn held(folder: &str, node: usize) -> String {
    format!("{folder}/held{node}")
}

/// The files that a program found lost or wrong while it worked.
fn bad_files(watched: &Watched) -> Vec<String> {
    let heard = watched.heard();
    let files = heard.lines.iter().filter_map(|line| line.strip_prefix("bad "));
    files.map(|file| format!("{file}, meanwhile at node {}", watched.node())).collect()
}

/// Lets programs end. Returns which ones do not.
fn end(all: &mut [Watched]) -> Result<Vec<String>> {
    all.iter_mut().for_each(Watched::let_end);
    let mut stuck = Vec::new();
    for watched in all {
        if !watched.ends_within(END_DEADLINE)? {
            let heard = watched.heard();
            let within = heard.calls.last().map_or_else(|| "no call".to_owned(), |call| call.kind.clone());
            stuck.push(format!("a program at node {} does not end, within {within}", watched.node()));
        }
    }
    Ok(stuck)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn victims_have_the_role() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            assert!([Some(3), Some(4)].contains(&victim(Role::Client, 1, 5, &mut random)));
            assert!([Some(0), Some(2)].contains(&victim(Role::Member, 1, 5, &mut random)));
            assert_eq!(victim(Role::Leader, 1, 5, &mut random), Some(1));
            assert_eq!(victim(Role::Every, 1, 5, &mut random), None);
        }
    }
}
