//! The results of a comparison, as figures, and beside the statements of the thesis.

use super::super::rates::{BASE, MOVED, Rates, SPRITE, Stated};
use super::super::shown;
use super::{Comparison, HIDDEN_HITS, Row, Workload};
use crate::cooperative::{Algorithm, Knowledge, Level, Load, Technology};
use crate::figure::{Axis, Curve, Figure, Finding, Kind, Scale, Shape};

/// Figures 3-3 to 3-6, or 3-17 and 3-18. Times of Auspex's reads include the hits that are not in
/// the trace; all other numbers are of the trace alone.
pub fn figures(of: &Comparison, workload: Workload) -> Vec<Figure> {
    let rows: Vec<&Row> = of.rows.iter().filter(|row| row.name != MOVED.name).collect();
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
    let hidden = workload.hidden_hits();
    let time = |level: Level| {
        move |row: &Row| (1.0 - hidden) * row.rate(level) / 100.0 * row.times_us[level as usize] / 1000.0
    };
    let mut mean: Vec<Curve> = levels.iter().map(|(name, level)| curve(name, &time(*level))).collect();
    if hidden > 0.0 {
        let inferred = |row: &Row| hidden * row.times_us[Level::Local as usize] / 1000.0;
        mean.insert(0, curve("inferred local hits", &inferred));
    }
    let base = of.row("base").map_or(1, |row| row.outcome.load.of_reads().max(1)) as f64;
    let (times, loads) = match workload {
        Workload::Sprite => ("Dahlin, figure 3-3", "Dahlin, figure 3-5"),
        Workload::Auspex => ("Dahlin, figure 3-17", "Dahlin, figure 3-18"),
        Workload::Other => ("", ""),
    };
    // The stated values, at the places of the thesis's algorithms.
    let thesis_us = BASE.mean_us(&Technology::ATM.times_us(Algorithm::Base));
    let unaided =
        Stated { name: "base", algorithm: Algorithm::Base, speed_up: 1.0, misses: BASE.misses, disk: Some(BASE.disk) };
    let of_thesis = |number: &dyn Fn(&Stated) -> Option<f64>, what: &str| {
        let stated = || std::iter::once(&unaided).chain(&SPRITE).filter(|_| workload == Workload::Sprite);
        let at = |name: &str| rows.iter().position(|row| row.name == name);
        let points: Vec<_> = stated().filter_map(|one| Some((at(one.name)? as f64 + 1.0, number(one)?))).collect();
        let curve = Curve { name: format!("the thesis's: {what}"), points };
        if curve.points.is_empty() { Vec::new() } else { vec![curve] }
    };
    let of_sprite = |what: &str| if workload == Workload::Sprite { what.to_owned() } else { String::new() };
    let axis = |label: &str| Axis { label: label.into(), scale: Scale::Linear };
    vec![
        Figure {
            title: "Mean time of a read, by where it is served from".into(),
            repeats: times.into(),
            theirs: of_thesis(&|stated| Some(thesis_us / stated.speed_up / 1000.0), "mean time"),
            shape: Shape::Stacks,
            x: x.clone(),
            y: axis("time (ms)"),
            curves: mean,
        },
        Figure {
            title: "Where reads are served from".into(),
            repeats: of_sprite("Dahlin, figure 3-4"),
            theirs: [of_thesis(&|stated| Some(stated.misses), "all"), of_thesis(&|stated| stated.disk, "disk")]
                .concat(),
            shape: Shape::Stacks,
            x: x.clone(),
            y: axis(if hidden > 0.0 { "reads in the trace (%)" } else { "reads (%)" }),
            curves: levels[1..].iter().map(|(name, level)| curve(name, &|row| row.rate(*level))).collect(),
        },
        Figure {
            title: "What the server does".into(),
            repeats: loads.into(),
            theirs: Vec::new(),
            shape: Shape::Stacks,
            x,
            y: axis("load (% of the base case's)"),
            curves: vec![
                curve("hits the disk", &|row| 100.0 * row.outcome.load.disk as f64 / base),
                curve("hits another client", &|row| 100.0 * row.outcome.load.remote as f64 / base),
                curve("hits the server's memory", &|row| 100.0 * row.outcome.load.server as f64 / base),
                curve("making room for what is read", &|row| 100.0 * row.outcome.load.other as f64 / base),
                curve("caused by writes (not counted)", &|row| 100.0 * row.outcome.load.writes as f64 / base),
            ],
        },
        each_client(&rows, workload),
    ]
}

/// With more clients than this, a point for each is unreadable: the figure then shows the least
/// gain of each share of the clients.
const POINTS_MAX: usize = 64;
/// Number of such shares.
const SHARES: usize = 20;

/// Figure 3-6.
fn each_client(rows: &[&Row], workload: Workload) -> Figure {
    let reads = if workload.hidden_hits() > 0.0 { "reads of the client in the trace" } else { "reads of the client" };
    let are_many = rows.iter().any(|row| row.clients.len() > POINTS_MAX);
    let (shape, label, scale) = match are_many {
        true => (Shape::Lines, "clients, those that gain least first (%)", Scale::Linear),
        false => (Shape::Points, reads, Scale::Log),
    };
    let points = |row: &Row| {
        let mut points: Vec<(f64, f64)> = row.clients.iter().map(|(reads, speed)| (*reads as f64, *speed)).collect();
        if !are_many {
            points.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1)));
            return points;
        }
        points.sort_by(|one, other| one.1.total_cmp(&other.1));
        let last = points.len().saturating_sub(1);
        let at = |step: usize| Some((100.0 * step as f64 / SHARES as f64, points.get(last * step / SHARES)?.1));
        (0..=SHARES).filter_map(at).collect()
    };
    let others = rows.iter().filter(|row| row.algorithm != Algorithm::Base);
    Figure {
        title: "Each client's speed-up".into(),
        repeats: if workload == Workload::Sprite { "Dahlin, figure 3-6".into() } else { String::new() },
        theirs: Vec::new(),
        shape,
        x: Axis { label: label.into(), scale },
        y: Axis { label: "times as fast as in the base case".into(), scale: Scale::Log },
        curves: others.map(|row| Curve { name: row.name.clone(), points: points(row) }).collect(),
    }
}

/// Table 3-2, which must agree.
pub fn latencies() -> Vec<Finding> {
    let theirs = [
        (Algorithm::Direct, "250, 1050, 1050, 15850 µs"),
        (Algorithm::Greedy, "250, 1250, 1050, 15850 µs"),
        (Algorithm::Central, "250, 1250, 1050, 15850 µs"),
        (Algorithm::Hash, "250, 1050, 1250, 16050 µs"),
        (Algorithm::WeightedLru(Knowledge::AllHints), "250, 1250, 1050, 15850 µs"),
        (Algorithm::NChance(policy::cooperative::n_chance::RECIRCULATIONS), "250, 1250, 1050, 15850 µs"),
    ];
    let finding = |(algorithm, theirs): (Algorithm, &str)| {
        let [local, remote, server, disk] = Technology::ATM.times_us(algorithm);
        let ours = format!("{local:.0}, {remote:.0}, {server:.0}, {disk:.0} µs");
        Finding {
            stated: "Dahlin, table 3-2".into(),
            what: format!("{}: local memory, other client, server's memory, disk", algorithm.name()),
            theirs: theirs.into(),
            kind: Kind::Computed,
            holds: Some(ours == theirs),
            ours,
            why: String::new(),
        }
    };
    theirs.into_iter().map(finding).collect()
}

/// The statements of the thesis about this workload, beside our results. A user's own workload has
/// none, so its findings are those that must hold for any.
pub fn findings(of: &Comparison, workload: Workload) -> Vec<Finding> {
    let mut all = vec![local_misses(of, workload)];
    match workload {
        Workload::Sprite => {
            let ranking = "direct 1.05 < greedy 1.22 < hash 1.63, central 1.64, n-chance 1.73, weighted-lru 1.74";
            all.extend(order(of, workload, "Dahlin, section 3.3.1", [ranking, "within 10%"]));
            all.push(dynamic(of));
            all.extend(sprite(of));
        }
        Workload::Auspex => {
            let ranking = "as with Sprite: direct < greedy < hash, central, weighted-lru, n-chance";
            all.extend(order(of, workload, "Dahlin, figure 3-17", [ranking, "nearly as well"]));
            all.extend(auspex(of));
        }
        Workload::Other => {}
    }
    all.extend(beyond(of, workload));
    all
}

/// The local misses, which no trace can change.
fn local_misses(of: &Comparison, workload: Workload) -> Finding {
    let misses = |name| of.row(name).map_or(0, |row| row.outcome.reads[1..].iter().sum::<u64>());
    let [base, greedy, best] = ["base", "greedy", "best"].map(misses);
    Finding {
        stated: "Dahlin, figure 3-4".into(),
        what: "local misses of base, greedy and best are the same".into(),
        theirs: if workload == Workload::Sprite { "22% each" } else { "the same" }.into(),
        ours: format!("{base} reads, {greedy}, {best}"),
        kind: Kind::Computed,
        holds: Some(base == greedy && base == best),
        why: String::new(),
    }
}

/// The algorithms that share the clients' memory and coordinate its contents: with a fixed split,
/// and with one that changes by itself.
const FIXED: [&str; 2] = ["hash", "central"];
const DYNAMIC: [&str; 2] = ["n-chance", "weighted-lru"];

/// The ranking, and how near to the best case the coordinating algorithms are, as stated.
fn order(of: &Comparison, workload: Workload, stated: &str, theirs: [&str; 2]) -> [Finding; 2] {
    let speed_up = |name: &str| of.speed_up(name, workload.hidden_hits());
    let coordinated = FIXED.into_iter().chain(DYNAMIC).map(speed_up);
    let least = coordinated.fold(f64::INFINITY, f64::min);
    let names = ["direct", "greedy"].into_iter().chain(FIXED).chain(DYNAMIC);
    let ours: Vec<String> = names.map(|name| format!("{name} {:.2}", speed_up(name))).collect();
    let finding = |what: &str, theirs: &str, ours: String, holds| Finding {
        stated: stated.into(),
        what: what.into(),
        theirs: theirs.into(),
        ours,
        kind: Kind::Measured,
        holds,
        why: String::new(),
    };
    let [ranking, near] = theirs;
    let is_so = 1.0 < speed_up("direct") && speed_up("direct") < speed_up("greedy") && speed_up("greedy") < least;
    let within = format!("within {:.0}%", 100.0 * (speed_up("best") / least - 1.0));
    [
        finding("the ranking: direct, then greedy, then those that coordinate", ranking, ours.join(", "), Some(is_so)),
        finding("all that coordinate are near the best case", near, within, None),
    ]
}

/// Which of the coordinating algorithms are ahead; the thesis states this of Sprite alone.
fn dynamic(of: &Comparison) -> Finding {
    let speed_ups = |names: [&str; 2]| names.map(|name| of.speed_up(name, 0.0));
    let [one, other] = speed_ups(DYNAMIC);
    let dynamic = one.min(other);
    let [one, other] = speed_ups(FIXED);
    let fixed = one.max(other);
    Finding {
        stated: "Dahlin, section 3.3.1".into(),
        what: "those whose parts change by themselves are ahead of those with fixed parts".into(),
        theirs: "1.73 and 1.74 against 1.63 and 1.64".into(),
        ours: format!("{dynamic:.2} at least against {fixed:.2} at most"),
        kind: Kind::Measured,
        holds: Some(dynamic > fixed),
        why: String::new(),
    }
}

fn sprite(of: &Comparison) -> Vec<Finding> {
    let finding = |stated: &str, what: String, theirs: String, ours: String| Finding {
        stated: stated.into(),
        what,
        theirs,
        ours,
        kind: Kind::Measured,
        holds: None,
        why: String::new(),
    };
    let of_row = |name: &str, number: &dyn Fn(&Row) -> f64| of.row(name).map(number);
    let mut all = Vec::new();
    let rates = |name: &str| of.row(name).map(Row::rates);
    let why = |stated: &Stated| {
        let all = rates("base").zip(rates(stated.name)).zip(rates("best"));
        all.map_or(String::new(), |((base, own), best)| stated.explained(&base, &own, &best))
    };
    for stated in SPRITE {
        let (what, theirs) = (format!("speed-up of {}", stated.name), format!("{:.2}", stated.speed_up));
        let ours = shown(of_row(stated.name, &|row| row.speed_up), 2, "");
        all.push(Finding { why: why(&stated), ..finding("Dahlin, figure 3-3", what, theirs, ours) });
    }
    let others = ["central", "weighted-lru", "n-chance"].into_iter().filter_map(Stated::of);
    let others = others.filter_map(|stated| Some((stated.name, stated.misses, stated.disk?)));
    for (name, misses, disk) in [("base", BASE.misses, BASE.disk)].into_iter().chain(others) {
        let ours = rates(name).map(|own| format!("{:.0}%, {:.1}%", own.misses, own.disk));
        let what = format!("{name}: misses of the local cache, and reads from the disk");
        let (theirs, ours) = (format!("{misses:.0}%, {disk:.1}%"), ours.unwrap_or("not measured".into()));
        all.push(finding("Dahlin, figure 3-4", what, theirs, ours));
    }
    let hints = [("weighted-lru-global", 1.57), ("weighted-lru-singlets", 1.57), ("weighted-lru", 1.58)];
    for (name, theirs) in hints {
        let ours = shown(of_row(name, &|row| row.mean_us / 1000.0), 2, " ms");
        let what = if name == "weighted-lru" { "weighted-lru, both hints" } else { name };
        let why = of.row(name).map(|row| as_long(row, theirs * 1000.0, BASE.misses)).unwrap_or_default();
        all.push(Finding { why, ..finding("Dahlin, table 3-3", what.into(), format!("{theirs:.2} ms"), ours) });
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
        let hurt = of.row(name).map(Row::hurt);
        let ours = hurt.map_or("not measured".into(), |(count, worst)| match count {
            0 => "none".to_owned(),
            count => format!("{count}, by up to {:.0}%", 100.0 * (1.0 / worst - 1.0)),
        });
        let mut harm = finding("Dahlin, figure 3-6", format!("active clients that {name} hurts"), theirs.into(), ours);
        // "Greedy Forwarding, Weighted LRU, and N-Chance Forwarding do no harm at all" (3.3.1).
        harm.holds = hurt.filter(|_| theirs == "none").map(|(count, _)| count == 0);
        all.push(harm);
    }
    all.push(loads(of, "Dahlin, figure 3-5"));
    let load = |name: &str| of.row(name).map_or(0.0, |row| row.load_of_base);
    let ours = format!("central {:.0}%, hash {:.0}% of the base case's", 100.0 * load("central"), 100.0 * load("hash"));
    let what = "the server does less with hash than with central coordination".into();
    let mut lower =
        finding("Dahlin, figure 3-5", what, "central a bit more than the base case, hash less".into(), ours);
    lower.holds = Some(load("hash") < load("central"));
    if let Some((base, (central, hash))) = of.row("base").zip(of.row("central").zip(of.row("hash"))) {
        let other = |row: &Row| 100.0 * row.outcome.load.other as f64 / base.outcome.load.of_reads().max(1) as f64;
        lower.why = format!(
            "Of theirs, the thesis shows bars alone. {:.0}% and {:.0}% of ours are blocks that leave the server's memory for clients' when something is read.",
            other(central),
            other(hash)
        );
    }
    all.push(lower);
    let of_n_chance = 100.0 * load(MOVED.name) / load("n-chance");
    let ours = format!("{:.2}, load {of_n_chance:.0}% of n-chance's", of.speed_up(MOVED.name, 0.0));
    let what = "speed-up with four fifths of the clients' memory at the server".into();
    let theirs = format!("{:.2}, load 150% of n-chance's", MOVED.speed_up);
    all.push(Finding { why: why(&MOVED), ..finding("Dahlin, section 3.3.5", what, theirs, ours) });
    all
}

/// The largest ratio of the thesis's loads to the base case's that it calls no significant increase
/// (section 3.3.4.1, figure 3-16).
const LOAD_MOST: f64 = 1.2;

/// Cooperation does not load the server much more. The thesis excepts central coordination, which
/// "does, however, appear to increase server load somewhat".
fn loads(of: &Comparison, stated: &str) -> Finding {
    let names = ["direct", "greedy", "hash", "weighted-lru", "n-chance"];
    let loads: Vec<(&str, f64)> = names.iter().filter_map(|name| Some((*name, of.row(name)?.load_of_base))).collect();
    let ours: Vec<String> = loads.iter().map(|(name, load)| format!("{name} {:.0}%", 100.0 * load)).collect();
    Finding {
        stated: stated.into(),
        what: "the server's load with cooperation, of the base case's".into(),
        theirs: format!("not significantly increased: by 20% at most, in all traces ({:.0}%)", 100.0 * LOAD_MOST),
        ours: ours.join(", "),
        kind: Kind::Measured,
        holds: (!loads.is_empty()).then(|| loads.iter().all(|(_, load)| *load <= LOAD_MOST)),
        why: loads
            .iter()
            .filter(|(_, load)| *load > LOAD_MOST)
            .filter_map(|(name, _)| sources(of, name))
            .collect::<Vec<_>>()
            .join(" "),
    }
}

/// The sources of an algorithm's load, in percent of the base case's.
fn sources(of: &Comparison, name: &str) -> Option<String> {
    let (base, row) = of.row("base").zip(of.row(name))?;
    let of_base = |load: u64| 100.0 * load as f64 / base.outcome.load.of_reads().max(1) as f64;
    let Load { disk, remote, server, other, .. } = row.outcome.load;
    Some(format!(
        "{name}: {:.0}% are reads from the disk, {:.0}% those that clients serve, {:.0}% those from the server's memory, {:.0}% questions and blocks sent to make room.",
        of_base(disk),
        of_base(remote),
        of_base(server),
        of_base(other)
    ))
}

/// The percentage of a row's reads that must come from the disk to give this mean time, in
/// microseconds, when `misses` percent miss the client's cache.
fn from_disk(row: &Row, mean_us: f64, misses: f64) -> f64 {
    Rates { misses, ..row.rates() }.that_take(mean_us, &row.times_us).disk
}

/// The same in words, beside our value.
fn as_long(row: &Row, mean_us: f64, misses: f64) -> String {
    let (own, disk) = (row.rates(), from_disk(row, mean_us, misses));
    format!(
        "By table 3-2, and with {misses:.0}% of reads that miss the client's cache, theirs means that {disk:.1}% come from the disk; ours {:.0}%, {:.1}%.",
        own.misses, own.disk
    )
}

/// Misses of clients' own caches that the thesis states for Auspex's trace, in percent of the reads
/// (section 3.3.5, as hits): N-Chance's, and with memory moved to the server.
const AUSPEX_MISSES: [f64; 2] = [34.0, 56.0];
/// Speed-up of the best case by the part of all reads that is not in the trace (figure 3-17, and
/// the footnote of section 3.3.4.2).
const AUSPEX_BEST: [(f64, f64); 3] = [(HIDDEN_HITS, 2.02), (0.9, 1.68), (0.7, 2.22)];
/// Speed-up with memory moved to the server (section 3.3.5).
const AUSPEX_MOVED: f64 = 1.93;

/// The time of the hits that are not in the trace, per read that is, in microseconds.
fn hidden_us(hidden: f64) -> f64 {
    hidden / (1.0 - hidden) * Technology::ATM.local_us
}

/// The mean time of a read of their trace, in microseconds: in the base case, and in the best case,
/// as two of their speed-ups imply.
fn auspex_means_us() -> [f64; 2] {
    let [(one, fast), (other, slow), _] = AUSPEX_BEST;
    let gained = |hidden: f64, speed_up: f64| (speed_up - 1.0) * hidden_us(hidden);
    let best_us = (gained(other, slow) - gained(one, fast)) / (fast - slow);
    [fast * best_us + gained(one, fast), best_us]
}

/// The speed-ups of figure 3-17 and section 3.3.5, with the hits that are not in the trace.
fn auspex(of: &Comparison) -> Vec<Finding> {
    let finding = |stated: &str, what: &str, theirs: String, ours: String, holds, why: String| Finding {
        stated: stated.into(),
        what: what.into(),
        theirs,
        ours,
        kind: Kind::Measured,
        holds,
        why,
    };
    let mut all = Vec::new();
    let [base_us, best_us] = auspex_means_us();
    let [n_chance_misses, moved_misses] = AUSPEX_MISSES;
    let (n_chance, moved) = (of.row("n-chance"), of.row(MOVED.name));
    if let Some((base, best)) = of.row("base").zip(of.row("best")) {
        let disk = [(base, base_us), (best, best_us)].map(|(row, us)| from_disk(row, us, n_chance_misses));
        let (of_base, of_best) = (base.rates(), best.rates());
        let why = format!(
            "Base case and best case: by all three of their speed-ups, reads in their trace take {:.2} and {:.2} ms, ours {:.2} and {:.2}; that is {:.1}% and {:.1}% from the disk if \
             {n_chance_misses:.0}% miss the client's cache, as with n-chance; ours {:.1}% and {:.1}%, and {:.0}%.",
            base_us / 1000.0,
            best_us / 1000.0,
            base.mean_us / 1000.0,
            best.mean_us / 1000.0,
            disk[0],
            disk[1],
            of_base.disk,
            of_best.disk,
            of_base.misses,
        );
        for (hidden, theirs) in AUSPEX_BEST {
            let what =
                format!("speed-up of the best case, if {:.0}% of all reads are not in the trace", 100.0 * hidden);
            let ours = format!("{:.2}", of.speed_up("best", hidden));
            all.push(finding("Dahlin, section 3.3.4.2", &what, format!("{theirs:.2}"), ours, None, why.clone()));
        }
    }
    let speed_up = |name: &str| of.speed_up(name, HIDDEN_HITS);
    let of_moved = speed_up(MOVED.name);
    let moved_us = (base_us + hidden_us(HIDDEN_HITS)) / AUSPEX_MOVED - hidden_us(HIDDEN_HITS);
    all.push(finding(
        "Dahlin, section 3.3.5",
        "speed-up with four fifths of the clients' memory at the server",
        format!("{AUSPEX_MOVED:.2}"),
        format!("{of_moved:.2}"),
        None,
        moved.map(|row| as_long(row, moved_us, moved_misses)).unwrap_or_default(),
    ));
    all.push(finding(
        "Dahlin, section 3.3.5",
        "n-chance is ahead of that",
        format!("{AUSPEX_MOVED:.2} falls short of it"),
        format!("{:.2} against {of_moved:.2}", speed_up("n-chance")),
        Some(speed_up("n-chance") > of_moved),
        String::new(),
    ));
    let misses = [n_chance, moved].map(|row| shown(row.map(|row| row.rates().misses), 0, "%"));
    all.push(finding(
        "Dahlin, section 3.3.5",
        "reads in the trace that miss the client's cache: n-chance, and with memory moved to the server",
        AUSPEX_MISSES.map(|misses| format!("{misses:.0}%")).join(", "),
        misses.join(", "),
        None,
        String::new(),
    ));
    let load = |name: &str| 100.0 * of.row(name).map_or(0.0, |row| row.load_of_base);
    let from_server = |name: &str| shown(of.row(name).map(|row| row.rate(Level::Server)), 1, "%");
    all.push(loads(of, "Dahlin, figure 3-18"));
    all.push(finding(
        "Dahlin, figure 3-18",
        "what the server does with hash and with central coordination",
        "more with hash: over so many clients its parts find less, and the server's memory serves more".into(),
        format!("{:.0}%, {:.0}% of the base case's", load("hash"), load("central")),
        of.row("hash").zip(of.row("central")).map(|(hash, central)| hash.load_of_base > central.load_of_base),
        format!(
            "Our parts find as much as one cache for all does: {} of reads are served by the server's memory with hash, {} with central coordination.",
            from_server("hash"),
            from_server("central")
        ),
    ));
    all
}

/// Findings about what the thesis leaves to others.
fn beyond(of: &Comparison, workload: Workload) -> Vec<Finding> {
    let speed_up = |name: &str| of.speed_up(name, workload.hidden_hits());
    let finding = |name: &str, theirs: &str| Finding {
        stated: "Dahlin, section 3.1.7".into(),
        what: format!("speed-up of {name}, beside n-chance's"),
        theirs: theirs.into(),
        ours: format!("{:.2}, n-chance {:.2}", speed_up(name), speed_up("n-chance")),
        kind: Kind::Measured,
        holds: None,
        why: "The thesis leaves it to later work.".into(),
    };
    vec![
        finding("two-choices", "most of what Feeley's algorithm gains where memory is scarce and loads differ"),
        finding("epochs", "better than n-chance where little memory is idle, and at few machines"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two of their speed-ups imply the third. So that is how they counted the hits that are not in
    /// the trace.
    #[test]
    fn hits_that_are_not_in_the_trace_are_counted_as_the_thesis_counts_them() {
        let [base_us, best_us] = auspex_means_us();
        for (hidden, speed_up) in AUSPEX_BEST {
            let found = (base_us + hidden_us(hidden)) / (best_us + hidden_us(hidden));
            assert!((found - speed_up).abs() < 0.005, "{hidden}: {found}");
        }
    }
}
