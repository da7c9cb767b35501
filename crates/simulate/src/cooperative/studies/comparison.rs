//! All algorithms on one trace (Dahlin, sections 3.3.1 and 3.3.4.2): how long reads take, from where they are served, what the server does, and which clients gain.

use super::{Setup, percent, shown};
use crate::cooperative::{
    Algorithm, Blocks, Conditions, Knowledge, Level, Outcome, Parameters, Technology, mean_us, simulate_under,
};
use crate::figure::{Axis, Curve, Figure, Finding, Scale, Shape};
use crate::sweep::sweep;
use serde::Serialize;

/// Clients that read less than one of so many reads are not said to be hurt: a few reads from the disk make or mar them.
const ACTIVE: u64 = 1000;

/// What one algorithm came to.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// What people call it.
    pub name: String,
    /// Which it is.
    pub algorithm: Algorithm,
    /// See there.
    pub outcome: Outcome,
    /// How long a read takes from each level, in microseconds.
    pub times_us: [f64; 4],
    /// Mean time of a read, in microseconds.
    pub mean_us: f64,
    /// How many times as fast as the base case.
    pub speed_up: f64,
    /// The server's load as a part of the base case's.
    pub load_of_base: f64,
    /// Of each client: how many blocks it read, and how many times as fast as in the base case.
    pub clients: Vec<(u64, f64)>,
}

/// What all came to.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// What was set.
    pub setup: Setup,
    /// How long things take.
    pub technology: Technology,
    /// In the order of the thesis; then Weighted LRU with more knowledge, and the base case with four fifths of the clients' memory moved to the server.
    pub rows: Vec<Row>,
}

/// Whose numbers are shown beside these.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Sprite, traces five and six of one server (figure 3-3).
    Sprite,
    /// Berkeley's Auspex server (figure 3-17).
    Auspex,
    /// Somebody's own.
    Other,
}

const MOVED: &str = "memory at the server";

fn cases(blocks: &Blocks, setup: &Setup) -> Vec<(String, Parameters)> {
    let named = |algorithm: Algorithm| (algorithm.name().to_owned(), setup.parameters(algorithm));
    let moved = setup.client_blocks - setup.client_blocks / 5;
    let more = moved.saturating_mul(blocks.clients());
    let at_server = Parameters {
        client_blocks: setup.client_blocks - moved,
        server_blocks: setup.server_blocks.saturating_add(more),
        ..setup.parameters(Algorithm::Base)
    };
    let more = [
        named(Algorithm::WeightedLru(Knowledge::Global)),
        named(Algorithm::WeightedLru(Knowledge::SingletHints)),
        (MOVED.to_owned(), at_server),
    ];
    Algorithm::ALL.into_iter().map(named).chain(more).collect()
}

/// How many runs that takes.
pub const RUNS: usize = Algorithm::ALL.len() + 3;

/// Runs them all. As [`Setup::check`] lets them be; `done` is told of each of the [`RUNS`].
pub fn compare(blocks: &Blocks, setup: &Setup, done: impl Fn() + Sync) -> Comparison {
    measure(blocks, setup, Technology::ATM, cases(blocks, setup), done)
}

/// Runs these on other machines, each with its own name, and before them the base case, with which they are compared. `done` is told of each.
pub fn compare_those(
    blocks: &Blocks,
    setup: &Setup,
    technology: Technology,
    algorithms: &[Algorithm],
    done: impl Fn() + Sync,
) -> Comparison {
    let others = algorithms.iter().filter(|algorithm| **algorithm != Algorithm::Base);
    let all = [Algorithm::Base].iter().chain(others);
    let cases = all.map(|algorithm| (algorithm.name().to_owned(), setup.parameters(*algorithm)));
    measure(blocks, setup, technology, cases.collect(), done)
}

fn measure(
    blocks: &Blocks,
    setup: &Setup,
    technology: Technology,
    cases: Vec<(String, Parameters)>,
    done: impl Fn() + Sync,
) -> Comparison {
    let conditions = Conditions { technology, ..Conditions::default() };
    let outcomes = sweep(&cases, |(_, parameters)| simulate_under(blocks, parameters, &conditions), done);
    let times = |algorithm| technology.times_us(algorithm);
    let base = outcomes.first().cloned();
    let mean = |reads: &[u64; 4], algorithm| mean_us(reads, &times(algorithm)).unwrap_or(0.0);
    let all = cases.into_iter().zip(outcomes);
    let row = |((name, Parameters { algorithm, .. }), outcome): ((String, Parameters), Outcome)| {
        let base = base.as_ref().unwrap_or(&outcome);
        let mean_us = mean(&outcome.reads, algorithm);
        let clients = outcome.clients.iter().zip(&base.clients).filter(|(own, _)| own.iter().sum::<u64>() > 0);
        let clients =
            clients.map(|(own, before)| (own.iter().sum(), mean(before, Algorithm::Base) / mean(own, algorithm)));
        Row {
            name,
            algorithm,
            times_us: times(algorithm),
            mean_us,
            speed_up: mean(&base.reads, Algorithm::Base) / mean_us,
            load_of_base: outcome.load.total() as f64 / base.load.total().max(1) as f64,
            clients: clients.collect(),
            outcome,
        }
    };
    Comparison { setup: *setup, technology, rows: all.map(row).collect() }
}

impl Row {
    /// Reads from a level, in percent of all.
    fn rate(&self, level: Level) -> f64 {
        percent(self.outcome.reads[level as usize], self.outcome.reads.iter().sum())
    }

    fn local_misses(&self) -> f64 {
        100.0 - self.rate(Level::Local)
    }

    /// How many of the clients that read much are slower than in the base case by more than a hundredth, and the worst of them.
    fn hurt(&self) -> (usize, f64) {
        let least = self.outcome.reads.iter().sum::<u64>() / ACTIVE;
        let slower = self.clients.iter().filter(|(reads, speed_up)| *reads >= least && *speed_up < 0.99);
        (slower.clone().count(), slower.map(|(_, speed_up)| *speed_up).fold(1.0, f64::min))
    }
}

impl Comparison {
    fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    fn speed_up(&self, name: &str) -> f64 {
        self.row(name).map_or(0.0, |row| row.speed_up)
    }
}

/// Figures 3-3 to 3-6, or 3-17 and 3-18.
pub fn figures(of: &Comparison, workload: Workload) -> Vec<Figure> {
    let rows: Vec<&Row> = of.rows.iter().filter(|row| row.name != MOVED).collect();
    let names: Vec<String> = rows.iter().zip(1..).map(|(row, at)| format!("{at} {}", row.name)).collect();
    let x = Axis { label: format!("algorithm: {}", names.join(", ")), scale: Scale::Linear };
    let curve = |name: &str, y: &dyn Fn(&Row) -> f64| Curve {
        name: name.into(),
        points: rows.iter().zip(1..).map(|(row, at)| (f64::from(at), y(row))).collect(),
    };
    let levels = [
        ("local memory", Level::Local),
        ("server's memory", Level::Server),
        ("other client", Level::Remote),
        ("disk", Level::Disk),
    ];
    let time = |level: Level| move |row: &Row| row.rate(level) / 100.0 * row.times_us[level as usize] / 1000.0;
    let base = of.row("base").map_or(1, |row| row.outcome.load.total().max(1)) as f64;
    let (times, loads) = match workload {
        Workload::Sprite => ("Dahlin, figure 3-3", "Dahlin, figure 3-5"),
        Workload::Auspex => ("Dahlin, figure 3-17", "Dahlin, figure 3-18"),
        Workload::Other => ("", ""),
    };
    let of_sprite = |what: &str| if workload == Workload::Sprite { what.to_owned() } else { String::new() };
    let axis = |label: &str| Axis { label: label.into(), scale: Scale::Linear };
    let mut clients: Vec<Curve> = Vec::new();
    for row in rows.iter().filter(|row| row.algorithm != Algorithm::Base) {
        let mut points: Vec<(f64, f64)> = row.clients.iter().map(|(reads, speed)| (*reads as f64, *speed)).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1)));
        clients.push(Curve { name: row.name.clone(), points });
    }
    vec![
        Figure {
            title: "Mean time of a read, by where it is served from".into(),
            repeats: times.into(),
            shape: Shape::Stacks,
            x: x.clone(),
            y: axis("time (ms)"),
            curves: levels.iter().map(|(name, level)| curve(name, &time(*level))).collect(),
        },
        Figure {
            title: "Where reads are served from".into(),
            repeats: of_sprite("Dahlin, figure 3-4"),
            shape: Shape::Stacks,
            x: x.clone(),
            y: axis("reads (%)"),
            curves: levels[1..].iter().map(|(name, level)| curve(name, &|row| row.rate(*level))).collect(),
        },
        Figure {
            title: "What the server does".into(),
            repeats: loads.into(),
            shape: Shape::Stacks,
            x,
            y: axis("load (% of the base case's)"),
            curves: vec![
                curve("hits the disk", &|row| 100.0 * row.outcome.load.disk as f64 / base),
                curve("hits another client", &|row| 100.0 * row.outcome.load.remote as f64 / base),
                curve("hits the server's memory", &|row| 100.0 * row.outcome.load.server as f64 / base),
                curve("other", &|row| 100.0 * row.outcome.load.other as f64 / base),
            ],
        },
        Figure {
            title: "Each client's speed-up".into(),
            repeats: of_sprite("Dahlin, figure 3-6"),
            shape: Shape::Points,
            x: Axis { label: "reads of the client".into(), scale: Scale::Log },
            y: Axis { label: "times as fast as in the base case".into(), scale: Scale::Log },
            curves: clients,
        },
    ]
}

const SYNTHETIC: &str = "The trace is synthetic: it is like theirs in what they state of it, and which blocks are read again, when and by whom, is not among that.";

/// Table 3-2, which must be the same.
pub fn latencies() -> Vec<Finding> {
    let theirs = [
        (Algorithm::Direct, "250, 1050, 1050, 15850 µs"),
        (Algorithm::Greedy, "250, 1250, 1050, 15850 µs"),
        (Algorithm::Central, "250, 1250, 1050, 15850 µs"),
        (Algorithm::Hash, "250, 1050, 1250, 16050 µs"),
        (Algorithm::WeightedLru(Knowledge::AllHints), "250, 1250, 1050, 15850 µs"),
        (Algorithm::NChance(policy::cooperative::RECIRCULATIONS), "250, 1250, 1050, 15850 µs"),
    ];
    let finding = |(algorithm, theirs): (Algorithm, &str)| {
        let [local, remote, server, disk] = Technology::ATM.times_us(algorithm);
        let ours = format!("{local:.0}, {remote:.0}, {server:.0}, {disk:.0} µs");
        Finding {
            stated: "Dahlin, table 3-2".into(),
            what: format!("{}: local memory, other client, server's memory, disk", algorithm.name()),
            theirs: theirs.into(),
            holds: Some(ours == theirs),
            ours,
            why: String::new(),
        }
    };
    theirs.into_iter().map(finding).collect()
}

/// What the thesis states of this workload, beside what was found; of somebody's own nothing is stated, only what must be so of any.
pub fn findings(of: &Comparison, workload: Workload) -> Vec<Finding> {
    let mut all = always(of);
    match workload {
        Workload::Sprite => {
            all.extend(ranking(
                of,
                "Dahlin, section 3.3.1",
                "direct 1.05 < greedy 1.22 < hash 1.63, central 1.64, n-chance 1.73, weighted-lru 1.74",
            ));
            all.extend(sprite(of));
        }
        Workload::Auspex => {
            all.extend(ranking(of, "Dahlin, figure 3-17", "direct < greedy < hash, central, weighted-lru, n-chance"))
        }
        Workload::Other => {}
    }
    all.extend(beyond(of));
    all
}

/// What no trace can change.
fn always(of: &Comparison) -> Vec<Finding> {
    let misses = |name| of.row(name).map_or(0, |row| row.outcome.reads[1..].iter().sum::<u64>());
    let [base, greedy, best] = ["base", "greedy", "best"].map(misses);
    vec![Finding {
        stated: "Dahlin, figure 3-4".into(),
        what: "local misses of base, greedy and best are the same".into(),
        theirs: "22% each".into(),
        ours: format!("{base} reads, {greedy}, {best}"),
        holds: Some(base == greedy && base == best),
        why: String::new(),
    }]
}

fn ranking(of: &Comparison, stated: &str, theirs: &str) -> Vec<Finding> {
    let names = ["direct", "greedy", "hash", "central", "n-chance", "weighted-lru"];
    let coordinated = names[2..].iter().map(|name| of.speed_up(name)).fold(f64::INFINITY, f64::min);
    let ours: Vec<String> = names.iter().map(|name| format!("{name} {:.2}", of.speed_up(name))).collect();
    let best = of.speed_up("best");
    let within = names[2..].iter().map(|name| best / of.speed_up(name)).fold(0.0, f64::max);
    let dynamic = of.speed_up("n-chance").min(of.speed_up("weighted-lru"));
    let fixed = of.speed_up("central").max(of.speed_up("hash"));
    let finding = |what: &str, theirs: &str, ours: String, holds| Finding {
        stated: stated.into(),
        what: what.into(),
        theirs: theirs.into(),
        ours,
        holds,
        why: SYNTHETIC.into(),
    };
    vec![
        finding(
            "the ranking: direct, then greedy, then those that coordinate",
            theirs,
            ours.join(", "),
            Some(
                1.0 < of.speed_up("direct")
                    && of.speed_up("direct") < of.speed_up("greedy")
                    && of.speed_up("greedy") < coordinated,
            ),
        ),
        finding(
            "those whose parts change by themselves are ahead of those with fixed parts",
            "1.73 and 1.74 against 1.63 and 1.64",
            format!("{dynamic:.2} at least against {fixed:.2} at most"),
            Some(dynamic > fixed),
        ),
        finding(
            "all that coordinate are near the best case",
            "within 10%",
            format!("within {:.0}%", 100.0 * (within - 1.0)),
            None,
        ),
    ]
}

fn sprite(of: &Comparison) -> Vec<Finding> {
    let finding = |stated: &str, what: String, theirs: String, ours: String| Finding {
        stated: stated.into(),
        what,
        theirs,
        ours,
        holds: None,
        why: SYNTHETIC.into(),
    };
    let of_row = |name: &str, number: &dyn Fn(&Row) -> f64| of.row(name).map(number);
    let mut all = Vec::new();
    let speed_ups = [
        ("direct", 1.05),
        ("greedy", 1.22),
        ("central", 1.64),
        ("hash", 1.63),
        ("weighted-lru", 1.74),
        ("n-chance", 1.73),
    ];
    for (name, theirs) in speed_ups {
        let ours = shown(of_row(name, &|row| row.speed_up), 2, "");
        all.push(finding("Dahlin, figure 3-3", format!("speed-up of {name}"), format!("{theirs:.2}"), ours));
    }
    let rates = [("base", 22, 15.7), ("central", 36, 7.6), ("weighted-lru", 22, 7.6), ("n-chance", 23, 7.7)];
    for (name, misses, disk) in rates {
        let local = shown(of_row(name, &Row::local_misses), 0, "%");
        let from_disk = shown(of_row(name, &|row| row.rate(Level::Disk)), 1, "%");
        let what = format!("{name}: misses of the local cache, and reads from the disk");
        all.push(finding(
            "Dahlin, figure 3-4",
            what,
            format!("{misses}%, {disk:.1}%"),
            format!("{local}, {from_disk}"),
        ));
    }
    let hints = [("weighted-lru-global", 1.57), ("weighted-lru-singlets", 1.57), ("weighted-lru", 1.58)];
    for (name, theirs) in hints {
        let ours = shown(of_row(name, &|row| row.mean_us / 1000.0), 2, " ms");
        let what = if name == "weighted-lru" { "weighted-lru, both hints" } else { name };
        all.push(finding("Dahlin, table 3-3", what.into(), format!("{theirs:.2} ms"), ours));
    }
    let hurt = [
        ("direct", "some, by up to 25%"),
        ("greedy", "none"),
        ("central", "one, by 14%"),
        ("hash", "one, by 29%"),
        ("weighted-lru", "none"),
        ("n-chance", "none"),
    ];
    for (name, theirs) in hurt {
        let ours = of.row(name).map(Row::hurt).map_or("not measured".into(), |(count, worst)| match count {
            0 => "none".to_owned(),
            count => format!("{count}, by up to {:.0}%", 100.0 * (1.0 / worst - 1.0)),
        });
        all.push(finding("Dahlin, figure 3-6", format!("active clients that {name} hurts"), theirs.into(), ours));
    }
    let load = |name: &str| of.row(name).map_or(0.0, |row| row.load_of_base);
    let ours = format!("central {:.0}%, hash {:.0}% of the base case's", 100.0 * load("central"), 100.0 * load("hash"));
    let what = "the server does less with hash than with central coordination".into();
    let mut lower =
        finding("Dahlin, figure 3-5", what, "central a bit more than the base case, hash less".into(), ours);
    lower.holds = Some(load("hash") < load("central"));
    all.push(lower);
    let moved = format!("{:.2}, load {:.0}% of n-chance's", of.speed_up(MOVED), 100.0 * load(MOVED) / load("n-chance"));
    let what = "speed-up with four fifths of the clients' memory at the server".into();
    all.push(finding("Dahlin, section 3.3.5", what, "1.66, load 150% of n-chance's".into(), moved));
    all
}

/// What the thesis leaves to others.
fn beyond(of: &Comparison) -> Vec<Finding> {
    let finding = |name: &str, theirs: &str| Finding {
        stated: "Dahlin, section 3.1.7".into(),
        what: format!("speed-up of {name}, beside n-chance's"),
        theirs: theirs.into(),
        ours: format!("{:.2}, n-chance {:.2}", of.speed_up(name), of.speed_up("n-chance")),
        holds: None,
        why: "The thesis leaves it to later work.".into(),
    };
    vec![
        finding("two-choices", "most of what Feeley's algorithm gains where memory is scarce and loads differ"),
        finding("epochs", "better than n-chance where little memory is idle, and at few machines"),
    ]
}
