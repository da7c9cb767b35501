//! Which node is hit by what, round by round. Pure: the same seed gives the same rounds.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::{Serialize, Serializer};

use crate::output::name_of;
use crate::work::Random;

/// What the node is to the cluster that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Role {
    /// It only mounts the file system.
    Client,
    /// It has a store, managers and a vote, and does not lead.
    Member,
    /// It leads.
    Leader,
    /// Not one node, but all of them at once.
    Every,
}

/// What happens to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Fault {
    /// Its process and its programs are killed, and started again later.
    Kill,
    /// Its process stands still (SIGSTOP), and goes on later.
    Stop,
    /// Its packets are lost in both directions.
    Cut,
    /// Packets to it are lost.
    CutIn,
    /// Packets from it are lost.
    CutOut,
    /// Packets between it and the other nodes with stores are lost, but not those between it and
    /// the one that leads.
    Apart,
    /// Its disk is full.
    Full,
    /// Its disk stands still: no change of a file ends.
    Hang,
    /// Its disk stands still most of the time.
    Slow,
    /// Other programs take all processors, and one packet in a hundred to it is lost. It hits every
    /// node at once.
    Saturate,
}

/// A fault and the role of the node that it hits; its text is `ROLE/FAULT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hit {
    /// The role of the node.
    pub role: Role,
    /// The fault.
    pub fault: Fault,
}

impl Fault {
    /// True if it needs a node with a disk of its own.
    pub fn is_of_disk(self) -> bool {
        matches!(self, Fault::Full | Fault::Hang | Fault::Slow)
    }
}

impl fmt::Display for Hit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", name_of(self.role), name_of(self.fault))
    }
}

impl Serialize for Hit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Some hits, as the command line names them: `ROLE/FAULT`, or all of a `ROLE` or a `FAULT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    role: Option<Role>,
    fault: Option<Fault>,
}

impl Pattern {
    fn matches(&self, hit: Hit) -> bool {
        self.role.is_none_or(|role| role == hit.role) && self.fault.is_none_or(|fault| fault == hit.fault)
    }
}

impl FromStr for Pattern {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Pattern> {
        let role = |text: &str| Role::from_str(text, false).ok();
        let fault = |text: &str| Fault::from_str(text, false).ok();
        let pattern = match text.split_once('/') {
            Some((of, what)) => role(of).zip(fault(what)).map(|(role, fault)| (Some(role), Some(fault))),
            None => Some((role(text), fault(text))).filter(|(role, fault)| role.is_some() || fault.is_some()),
        };
        let Some((role, fault)) = pattern else {
            let names = |all: Vec<String>| all.join(", ");
            let roles = names(Role::value_variants().iter().map(|role| name_of(*role)).collect());
            let faults = names(Fault::value_variants().iter().map(|fault| name_of(*fault)).collect());
            bail!("write ROLE/FAULT, ROLE or FAULT; roles are {roles}, and faults are {faults}");
        };
        Ok(Pattern { role, fault })
    }
}

/// All hits that match one of the patterns, in order; all there are if there is no pattern.
pub fn selected(patterns: &[Pattern]) -> Vec<Hit> {
    let all = Role::value_variants()
        .iter()
        .flat_map(|role| Fault::value_variants().iter().map(|fault| Hit { role: *role, fault: *fault }))
        .filter(|hit| (hit.role == Role::Every) == (hit.fault == Fault::Saturate))
        // Clients have no disk that matters to others.
        .filter(|hit| hit.role != Role::Client || !hit.fault.is_of_disk())
        .filter(|hit| hit.role != Role::Leader || hit.fault != Fault::Apart);
    all.filter(|hit| patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(*hit))).collect()
}

/// Gives one round after another.
pub struct Plan {
    hits: Vec<Hit>,
    /// Rounds with each hit before rounds are random.
    rounds: usize,
    given: usize,
    random: Random,
}

/// A round of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Counts from 0.
    pub number: usize,
    /// What happens.
    pub hit: Hit,
    /// Seed of the round's own choices.
    pub seed: u64,
    /// True for the rounds that every plan with these hits has, false for random ones.
    pub is_listed: bool,
}

impl Plan {
    /// First so many rounds of each of these hits, and then random ones. `hits` is not empty.
    pub fn new(hits: Vec<Hit>, rounds: usize, seed: u64) -> Plan {
        Plan { hits, rounds, given: 0, random: Random::new(seed) }
    }

    /// The next round.
    pub fn next(&mut self) -> Round {
        let (number, seed) = (self.given, self.random.next());
        self.given += 1;
        let is_listed = number < self.rounds * self.hits.len();
        let index = if is_listed { number } else { self.random.next() as usize };
        Round { number, hit: self.hits[index % self.hits.len()], seed, is_listed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }

    #[test]
    fn patterns_select_by_whole_names() {
        assert_eq!(selected(&[]).len(), 24);
        let names = |patterns: &[&str]| {
            let hits = selected(&patterns.iter().map(|text| pattern(text)).collect::<Vec<_>>());
            hits.iter().map(Hit::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names(&["leader/cut"]), ["leader/cut"]);
        assert_eq!(
            names(&["cut-in", "member/kill"]),
            ["client/cut-in", "member/kill", "member/cut-in", "leader/cut-in"]
        );
        assert_eq!(names(&["client"]).len(), 6);
        assert_eq!(names(&["apart"]), ["client/apart", "member/apart"]);
        assert_eq!(names(&["every", "client/saturate"]), ["every/saturate"]);
        for wrong in ["", "leader/", "nobody", "kill/leader"] {
            assert!(wrong.parse::<Pattern>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn plan_has_each_hit_as_often_and_then_random_ones() {
        let hits = selected(&[pattern("leader")]);
        let of = |seed| {
            let mut plan = Plan::new(hits.clone(), 2, seed);
            (0..30).map(|_| plan.next()).collect::<Vec<_>>()
        };
        let rounds = of(7);
        for hit in &hits {
            assert_eq!(rounds.iter().filter(|round| round.is_listed && round.hit == *hit).count(), 2);
        }
        assert!(
            rounds.iter().enumerate().all(|(index, round)| round.number == index && round.is_listed == (index < 16))
        );
        assert_eq!(rounds, of(7));
        assert_ne!(rounds, of(8));
    }
}
