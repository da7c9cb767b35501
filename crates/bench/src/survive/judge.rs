//! What the calls of a round show, and the table of all rounds. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use super::plan::{Fault, Hit, Round};
use crate::report::{count, number};
use crate::roam::found::{Figure, Found, Table, largest, median};

/// Longest stall of a survivor's call in seconds: a lease, and two seconds more.
const STALL_S_MAX: f64 = 7.0;
/// The longest stall of a round in seconds, in the median of all rounds.
const MEDIAN_STALL_S_MAX: f64 = 5.0;
/// A call that lasts longer, in seconds, is listed.
const LISTED_S: f64 = 1.0;
/// Rounds in the table of the longest stalls.
const STALLS_SHOWN: usize = 10;
/// Most calls and most errors of a round that are listed.
const LISTED_MAX: usize = 40;

/// A call of a program on a node. Times are seconds of the clock that all processes share.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The node.
    pub node: usize,
    /// The name of the call.
    pub kind: String,
    /// When it began.
    pub begun_s: f64,
    /// When it returned; `None` if it has not.
    pub ended_s: Option<f64>,
    /// The error that it returned.
    pub error: Option<String>,
}

/// The time in which the calls of a round count, in seconds of the clock that all processes share.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// When the fault began.
    pub from_s: f64,
    /// Some time after it was healed.
    pub to_s: f64,
    /// When the calls were judged: a call that has not returned has lasted until here.
    pub now_s: f64,
}

/// The calls of survivors in a window.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Calls {
    /// How many there were.
    pub count: usize,
    /// Their median.
    pub median_ms: f64,
    /// The longest.
    pub longest_s: f64,
    /// The longest ones, if they lasted for more than a second; the longest first.
    pub long: Vec<Long>,
    /// How many failed.
    pub error_count: usize,
    /// Errors, with what failed and how often; the most frequent first.
    pub errors: Vec<(String, usize)>,
}

/// A long call.
#[derive(Debug, PartialEq, Serialize)]
pub struct Long {
    /// The node.
    pub node: usize,
    /// The name of the call.
    pub kind: String,
    /// How long it lasted.
    pub seconds: f64,
    /// When it began, from the beginning of the fault.
    pub begun_after_s: f64,
    /// The error that it returned; "has not returned" if it has not.
    pub error: Option<String>,
}

/// Judges the calls that touch the window.
pub fn judge(calls: &[Call], window: Window) -> Calls {
    let lasted = |call: &Call| call.ended_s.unwrap_or(window.now_s) - call.begun_s;
    let touches = |call: &&Call| call.begun_s <= window.to_s && call.ended_s.unwrap_or(window.now_s) >= window.from_s;
    let mut within: Vec<&Call> = calls.iter().filter(touches).collect();
    within.sort_by(|one, other| lasted(other).total_cmp(&lasted(one)));
    let all: Vec<f64> = within.iter().map(|call| lasted(call)).collect();
    let long = within.iter().filter(|call| lasted(call) > LISTED_S).take(LISTED_MAX).map(|call| Long {
        node: call.node,
        kind: call.kind.clone(),
        seconds: lasted(call),
        begun_after_s: call.begun_s - window.from_s,
        error: call.ended_s.map_or_else(|| Some("has not returned".to_owned()), |_| call.error.clone()),
    });
    let mut errors: BTreeMap<String, usize> = BTreeMap::new();
    for call in &within {
        if let Some(error) = &call.error {
            *errors.entry(format!("node {}, {}: {error}", call.node, call.kind)).or_default() += 1;
        }
    }
    let error_count = errors.values().sum();
    let mut errors: Vec<(String, usize)> = errors.into_iter().collect();
    errors.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
    errors.truncate(LISTED_MAX);
    Calls {
        count: all.len(),
        median_ms: median(&all) * 1e3,
        longest_s: largest(all),
        long: long.collect(),
        error_count,
        errors,
    }
}

/// All results of a round.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Counts from 0.
    pub round: usize,
    /// The role of the node that was hit, and the fault.
    pub hit: Hit,
    /// The node that was hit; `None` if all were.
    pub victim: Option<usize>,
    /// The node that led before.
    pub leader: usize,
    /// When the fault began, in seconds since 1970.
    pub fault_at_unix_s: f64,
    /// From the beginning of the fault until it was healed; a killed node had mounted then.
    pub fault_s: f64,
    /// From the healing until any node could be lost again; `None` if that did not come.
    pub whole_after_s: Option<f64>,
    /// The node that led after that.
    pub leader_after: Option<usize>,
    /// The calls of the nodes that were not hit.
    pub calls: Calls,
    /// Files that programs on any node have synced in the round.
    pub synced: usize,
    /// Synced files that are lost or have other contents, and why.
    pub bad: Vec<String>,
    /// Locks and open files of survivors that are lost, and why.
    pub lost_holds: Vec<String>,
    /// Nodes that were declared dead though nothing but load and lost packets had hit them.
    pub declared_dead: Vec<usize>,
    /// What else went wrong.
    pub failures: Vec<String>,
}

impl Outcome {
    /// Of a round in which nothing has happened yet.
    pub fn new(round: Round, victim: Option<usize>, leader: usize) -> Outcome {
        Outcome {
            round: round.number,
            hit: round.hit,
            victim,
            leader,
            fault_at_unix_s: 0.0,
            fault_s: 0.0,
            whole_after_s: None,
            leader_after: None,
            calls: Calls::default(),
            synced: 0,
            bad: Vec::new(),
            lost_holds: Vec::new(),
            declared_dead: Vec::new(),
            failures: Vec::new(),
        }
    }

    fn victim(&self) -> String {
        self.victim.map_or_else(|| "all".to_owned(), |victim| victim.to_string())
    }

    /// The round in one line, for the terminal.
    pub fn line(&self) -> String {
        let longest = match self.calls.long.first() {
            Some(Long { node, kind, begun_after_s, .. }) => {
                format!(" ({kind} at node {node}, begun after {begun_after_s:.1} s)")
            }
            None => String::new(),
        };
        let day_s = self.fault_at_unix_s as u64 % 86_400;
        format!(
            "node {} at {:02}:{:02}:{:02} UTC: longest stall {:.1} s{longest}, {} errors, {} files synced, \
             {} lost or wrong, {} holds lost; healed after {:.1} s, whole after {} s more",
            self.victim(),
            day_s / 3600,
            day_s / 60 % 60,
            day_s % 60,
            self.calls.longest_s,
            self.calls.error_count,
            self.synced,
            self.bad.len(),
            self.lost_holds.len(),
            self.fault_s,
            self.whole_after_s.map_or_else(|| "–".to_owned(), |seconds| format!("{seconds:.1}")),
        )
    }
}

/// The table of all rounds, the figures, and all that was lost or failed.
pub fn found(outcomes: &[Outcome], seed: u64) -> Found {
    let header = [
        "node/fault",
        "rounds",
        "longest stall, s",
        "median of the rounds' longest, s",
        "calls",
        "median call, ms",
        "errors",
        "files synced",
        "lost or wrong",
        "locks and open files lost",
    ];
    let mut table = Table::new("Nodes that were not hit, from the fault until some time after it was healed", header);
    let mut by_hit: BTreeMap<Hit, Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        by_hit.entry(outcome.hit).or_default().push(outcome);
    }
    let longest = |of: &[&Outcome]| of.iter().map(|outcome| outcome.calls.longest_s).collect::<Vec<f64>>();
    for (hit, of) in &by_hit {
        let sum = |what: fn(&Outcome) -> usize| count(of.iter().map(|outcome| what(outcome) as u64).sum());
        let medians: Vec<f64> = of.iter().map(|outcome| outcome.calls.median_ms).collect();
        table.row([
            hit.to_string(),
            of.len().to_string(),
            number(largest(longest(of))),
            number(median(&longest(of))),
            sum(|outcome| outcome.calls.count),
            number(median(&medians)),
            sum(|outcome| outcome.calls.error_count),
            sum(|outcome| outcome.synced),
            sum(|outcome| outcome.bad.len()),
            sum(|outcome| outcome.lost_holds.len()),
        ]);
    }
    let mut by_stall: Vec<&Outcome> = outcomes.iter().collect();
    by_stall.sort_by(|one, other| other.calls.longest_s.total_cmp(&one.calls.longest_s));
    let header =
        ["round", "node/fault", "node", "fault, s", "stall, s", "call", "at node", "begun after, s", "whole after, s"];
    let mut stalls = Table::new("The rounds with the longest stalls", header);
    for outcome in by_stall.into_iter().take(STALLS_SHOWN) {
        let Some(long) = outcome.calls.long.first() else { continue };
        stalls.row([
            outcome.round.to_string(),
            outcome.hit.to_string(),
            outcome.victim(),
            number(outcome.fault_s),
            number(long.seconds),
            long.kind.clone(),
            long.node.to_string(),
            format!("{:.1}", long.begun_after_s),
            outcome.whole_after_s.map_or_else(|| "–".to_owned(), |seconds| format!("{seconds:.1}")),
        ]);
    }
    let (saturated, others): (Vec<&Outcome>, Vec<&Outcome>) =
        outcomes.iter().partition(|outcome| outcome.victim.is_none());
    // A node that only some others cannot reach is given up later than one that is gone.
    let others = others.into_iter().filter(|outcome| outcome.hit.fault != Fault::Apart);
    let (bad_disks, gone): (Vec<&Outcome>, Vec<&Outcome>) = others.partition(|outcome| outcome.hit.fault.is_of_disk());
    let mut figures = Vec::new();
    if !gone.is_empty() {
        let all = longest(&gone);
        let what = "the longest stall of a call, a node killed, standing still or cut off";
        figures.push(Figure::at_most(what, largest(all.iter().copied()), STALL_S_MAX, " s"));
        let what = "the longest stall of such a round, median of them all";
        figures.push(Figure::at_most(what, median(&all), MEDIAN_STALL_S_MAX, " s"));
    }
    if !bad_disks.is_empty() {
        let what = "the longest stall of a call, a disk full, hanging or slow";
        figures.push(Figure::at_most(what, largest(longest(&bad_disks)), STALL_S_MAX, " s"));
    }
    if !saturated.is_empty() {
        let seconds: f64 = saturated.iter().map(|outcome| outcome.fault_s).sum();
        let dead: usize = saturated.iter().map(|outcome| outcome.declared_dead.len()).sum();
        let what = format!("nodes declared dead in {} s of saturation and lost packets", count(seconds as u64));
        figures.push(Figure::at_most(what, dead as f64, 0.0, ""));
    }
    let mut failures = Vec::new();
    for outcome in outcomes {
        let at = format!("seed {seed}, round {}, {}", outcome.round, outcome.hit);
        let texts = outcome.bad.iter().chain(&outcome.lost_holds).chain(&outcome.failures);
        failures.extend(texts.map(|text| format!("{at}: {text}")));
        let dead = outcome.declared_dead.iter();
        failures.extend(dead.map(|node| format!("{at}: node {node} was declared dead, or led and lost that")));
    }
    Found {
        conditions: String::new(),
        figures,
        tables: vec![table, stalls],
        failures,
        samples: serde_json::json!({ "seed": seed, "rounds": outcomes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survive::plan::Role;

    fn call(node: usize, begun_s: f64, ended_s: Option<f64>, error: Option<&str>) -> Call {
        Call { node, kind: "fsync".to_owned(), begun_s, ended_s, error: error.map(str::to_owned) }
    }

    #[test]
    fn calls_that_touch_the_window_count_whole() {
        let calls = [
            call(1, 0.0, Some(9.0), None),
            call(1, 9.5, Some(12.5), None),
            call(1, 13.0, Some(13.5), Some("gone")),
            call(2, 11.0, None, None),
            call(2, 21.0, Some(40.0), None),
        ];
        let judged = judge(&calls, Window { from_s: 10.0, to_s: 20.0, now_s: 30.0 });
        assert_eq!((judged.count, judged.median_ms, judged.longest_s), (3, 3000.0, 19.0));
        let long: Vec<(usize, f64, f64)> =
            judged.long.iter().map(|long| (long.node, long.seconds, long.begun_after_s)).collect();
        assert_eq!(long, [(2, 19.0, 1.0), (1, 3.0, -0.5)]);
        assert_eq!(judged.long[0].error.as_deref(), Some("has not returned"));
        assert_eq!((judged.error_count, judged.errors), (1, vec![("node 1, fsync: gone".to_owned(), 1)]));
    }

    #[test]
    fn no_calls_are_not_good() {
        let judged = judge(&[], Window { from_s: 0.0, to_s: 1.0, now_s: 1.0 });
        assert!(judged.longest_s.is_nan() && judged.long.is_empty());
    }

    #[test]
    fn table_has_a_row_per_hit_and_failures_name_seed_and_round() {
        let outcome = |number, role, fault, longest_s, bad: &[&str]| {
            let hit = Hit { role, fault };
            let round = Round { number, hit, seed: 0, is_listed: true };
            let long =
                vec![Long { node: 3, kind: "stat".to_owned(), seconds: longest_s, begun_after_s: 1.25, error: None }];
            let calls = Calls { count: 100, median_ms: 2.0, longest_s, long, ..Calls::default() };
            let bad = bad.iter().map(|text| (*text).to_owned()).collect();
            Outcome { calls, synced: 1000, bad, ..Outcome::new(round, Some(1), 0) }
        };
        let outcomes = [
            outcome(0, Role::Client, Fault::Kill, 0.5, &[]),
            outcome(1, Role::Leader, Fault::Kill, 7.0, &["a is missing"]),
            outcome(2, Role::Leader, Fault::Kill, 9.0, &[]),
            outcome(3, Role::Member, Fault::Hang, 11.0, &[]),
            outcome(4, Role::Client, Fault::Apart, 15.0, &[]),
        ];
        let found = found(&outcomes, 5);
        let text = found.markdown();
        assert!(text.contains("| leader/kill | 2 | 9.00 | 8.00 | 200 | 2.00 | 0 | 2,000 | 1 | 0 |"), "{text}");
        let second = text.find("| 2 | leader/kill | 1 | 0.000 | 9.00 | stat | 3 | 1.2 | – |").unwrap();
        assert!(second < text.find("| 0 | client/kill | 1 | 0.000 | 0.500 | stat | 3 | 1.2 | – |").unwrap(), "{text}");
        assert!(text.contains("- seed 5, round 1, leader/kill: a is missing"), "{text}");
        assert!(text.contains("median of them all | ≤ 5.00 s | 7.00 s | **not reached** |"), "{text}");
        assert!(text.contains("or cut off | ≤ 7.00 s | 9.00 s | **not reached** |"), "{text}");
        assert!(text.contains("hanging or slow | ≤ 7.00 s | 11.0 s | **not reached** |"), "{text}");
    }
}
