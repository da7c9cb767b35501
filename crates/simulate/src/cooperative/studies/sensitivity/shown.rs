//! What the study shows, as figures, and beside what the thesis states.

use super::super::{curves, found, shown, speed_up};
use super::{COMMON, DISK_US, Measured, NETWORK_US, Sensitivity, Varied};
use crate::cooperative::Technology;
use crate::figure::{Axis, Curve, Figure, Finding, Scale, Shape};

/// Those that share the clients' memory, and are no bound.
const COOPERATIVE: [&str; 7] = ["greedy", "central", "hash", "weighted-lru", "n-chance", "two-choices", "epochs"];
const WHY: &str = "The trace is synthetic: it is like theirs in what they state of it, and which blocks are read again, when and by whom, is not among that.";

/// The unit of the thesis's network is a block's way and back: as many microseconds as its ATM takes.
const ATM_US: f64 = 800.0;

fn axis(label: &str, scale: Scale) -> Axis {
    Axis { label: label.into(), scale }
}

fn scaled(mut curves: Vec<Curve>, factor: f64) -> Vec<Curve> {
    curves.iter_mut().flat_map(|curve| &mut curve.points).for_each(|point| point.0 *= factor);
    curves
}

/// Figures 3-7 to 3-14, and today's.
pub fn figures(of: &Sensitivity) -> Vec<Figure> {
    let all = &of.measured;
    let (cache, memory) = (of.setup.mib(f64::from(of.setup.client_blocks)), f64::from(of.clients));
    let time = || axis("mean time of a read (ms)", Scale::Linear);
    let ms = |one: &Measured<Varied>| one.mean_us / 1000.0;
    let base = all.iter().find(|one| one.study == Varied::Remote && one.curve == "base");
    let base_us = base.map_or(0.0, |one| one.mean_us);
    let mut remote = scaled(curves(all, Varied::Remote, |one| base_us / one.mean_us), cache);
    remote.retain(|curve| curve.name == "direct");
    let own_curve = format!("{cache} MiB");
    let parts = |study, of_curve: &str| {
        let only = |name: &str, y: &dyn Fn(&Measured<Varied>) -> f64| {
            let curve = curves(all, study, y).into_iter().find(|curve| curve.name == of_curve);
            Curve { name: name.into(), points: curve.map(|curve| curve.points).unwrap_or_default() }
        };
        vec![
            only("total", &ms),
            only("disk", &|one| one.disk_us / 1000.0),
            only("other", &|one| (one.mean_us - one.disk_us) / 1000.0),
        ]
    };
    let figure = |title: &str, repeats: &str, x: Axis, y: Axis, curves: Vec<Curve>| Figure {
        title: title.into(),
        repeats: repeats.into(),
        shape: Shape::Lines,
        x,
        y,
        curves,
    };
    let linear = |label: &str| axis(label, Scale::Linear);
    let log = |label: &str| axis(label, Scale::Log);
    let speed_ups = |study| {
        let base = |x| found(all, study, "base", x);
        let mut curves = curves(all, study, |one| speed_up(base(one.x), Some(one)).unwrap_or(0.0));
        curves.retain(|curve| curve.name != "base");
        curves
    };
    let faster = || linear("times as fast as the base case");
    let common = || linear("part that is managed for all (%)");
    vec![
        figure("Direct cooperation", "Dahlin, figure 3-7", linear("memory elsewhere (MiB)"), faster(), remote),
        figure("Central coordination", "Dahlin, figure 3-8", common(), time(), parts(Varied::Common, &own_curve)),
        figure(
            "Central coordination, by the clients' caches",
            "Dahlin, figure 3-9",
            common(),
            time(),
            curves(all, Varied::Common, ms),
        ),
        figure(
            "How often a block goes on",
            "Dahlin, figure 3-10",
            linear("n"),
            time(),
            parts(Varied::Chances, "n-chance"),
        ),
        figure(
            "The clients' caches",
            "Dahlin, figure 3-11",
            log("cache of each client (MiB)"),
            time(),
            scaled(curves(all, Varied::Client, ms), cache),
        ),
        figure(
            "The server's memory",
            "Dahlin, figure 3-12",
            linear("server's memory (MiB)"),
            time(),
            scaled(curves(all, Varied::Server, ms), cache * memory),
        ),
        figure(
            "The network",
            "Dahlin, figure 3-13",
            log("a block over the network and back (µs)"),
            time(),
            curves(all, Varied::Network, ms),
        ),
        figure(
            "The thesis's years to come",
            "Dahlin, figure 3-14",
            linear("years after 1994"),
            time(),
            curves(all, Varied::Years, ms),
        ),
        figure("Today's network of 25 Gb/s, by the disk", "", log("disk (µs)"), faster(), speed_ups(Varied::Disk25)),
        figure("Today's network of 100 Gb/s, by the disk", "", log("disk (µs)"), faster(), speed_ups(Varied::Disk100)),
    ]
}

/// What the thesis states, beside what was found.
pub fn findings(of: &Sensitivity) -> Vec<Finding> {
    let mut all = parameters(of);
    all.extend(caches(of));
    all.extend(machines(of));
    all.extend(today(of));
    all
}

fn finding(stated: &str, what: &str, theirs: &str, ours: String, holds: Option<bool>) -> Finding {
    Finding { stated: stated.into(), what: what.into(), theirs: theirs.into(), ours, holds, why: WHY.into() }
}

fn ratio(of: &Sensitivity, study: Varied, name: &str, x: f64) -> Option<f64> {
    speed_up(found(&of.measured, study, "base", x), found(&of.measured, study, name, x))
}

/// The greatest speed-up of those that share the clients' memory.
fn best(of: &Sensitivity, study: Varied, x: f64) -> Option<f64> {
    COOPERATIVE.iter().filter_map(|name| ratio(of, study, name, x)).reduce(f64::max)
}

fn parameters(of: &Sensitivity) -> Vec<Finding> {
    let all = &of.measured;
    let direct = |x| speed_up(found(all, Varied::Remote, "base", 0.0), found(all, Varied::Remote, "direct", x));
    let mib = of.setup.mib(f64::from(of.setup.client_blocks));
    let total: Vec<(f64, f64)> = COMMON
        .iter()
        .filter_map(|x| found(all, Varied::Common, &format!("{mib} MiB"), *x).map(|one| (*x, one.mean_us)))
        .collect();
    let least = total.iter().map(|(_, us)| *us).fold(f64::INFINITY, f64::min);
    let mut plateau = total.iter().filter(|(_, us)| *us <= least * 1.05).map(|(x, _)| *x);
    let (first, last) = (plateau.next(), plateau.next_back());
    let chances = |n: f64| found(all, Varied::Chances, "n-chance", n);
    let gain = |from, to| speed_up(chances(from), chances(to)).map(|ratio| 100.0 * (ratio - 1.0));
    let (one, two, more) = (gain(0.0, 1.0), gain(1.0, 2.0), gain(2.0, 10.0));
    let gains = [one, two, more].map(|gain| shown(gain, 1, "%")).join(", ");
    vec![
        finding(
            "Dahlin, figure 3-7",
            "speed-up of direct cooperation with a quarter of a cache elsewhere, as much again, and four times as much",
            "less than 1.01, 1.05, 1.40",
            [0.25, 1.0, 4.0].map(|x| shown(direct(x), 2, "")).join(", "),
            direct(0.25).zip(direct(4.0)).map(|(little, much)| little <= much),
        ),
        finding(
            "Dahlin, figure 3-8",
            "common parts for which central coordination is within 5% of its best",
            "about 40% to 90%",
            first.map_or("not measured".into(), |first| format!("{first:.0}% to {:.0}%", last.unwrap_or(first))),
            None,
        ),
        finding(
            "Dahlin, figure 3-10",
            "gain from n = 0 to 1, 1 to 2, and 2 to 10",
            "the most, about 5%, little",
            gains,
            one.zip(two).map(|(one, two)| one >= two),
        ),
    ]
}

fn caches(of: &Sensitivity) -> Vec<Finding> {
    let us = |name: &str, x| found(&of.measured, Varied::Unlike, name, x).map(|one| one.mean_us / 1000.0);
    let alike = |x| format!("{}, {}", shown(us("base", x), 2, " ms"), shown(us("n-chance", x), 2, " ms"));
    let (same, unlike) = (ratio(of, Varied::Unlike, "n-chance", 0.0), ratio(of, Varied::Unlike, "n-chance", 1.0));
    let small = ["central", "hash", "weighted-lru", "n-chance", "greedy"];
    let at =
        |x: f64| small.map(|name| format!("{name} {}", shown(ratio(of, Varied::Client, name, x), 2, ""))).join(", ");
    vec![
        finding(
            "Dahlin, figure 3-11",
            "speed-ups with a sixteenth of the clients' caches",
            "coordination gains little where caches are too small",
            at(0.0625),
            None,
        ),
        finding("Dahlin, table 3-4", "base case and n-chance, caches alike", "2.75 ms, 1.59 ms", alike(0.0), None),
        finding(
            "Dahlin, table 3-4",
            "the same, caches as the demand lets them be",
            "3.05 ms, 1.66 ms",
            alike(1.0),
            None,
        ),
        finding(
            "Dahlin, table 3-4",
            "n-chance's speed-up, caches alike and not",
            "1.73, 1.83",
            format!("{}, {}", shown(same, 2, ""), shown(unlike, 2, "")),
            None,
        ),
        finding(
            "Dahlin, figure 3-12",
            "n-chance's speed-up without memory at the server, and with as much as all clients have",
            "none once the server's is as large as theirs",
            [0.0, 1.0].map(|x| shown(ratio(of, Varied::Server, "n-chance", x), 2, "")).join(", "),
            ratio(of, Varied::Server, "n-chance", 0.0)
                .zip(ratio(of, Varied::Server, "n-chance", 1.0))
                .map(|(none, much)| much <= none),
        ),
    ]
}

fn machines(of: &Sensitivity) -> Vec<Finding> {
    let networks = [10_000.0, ATM_US, 100.0, 10.0].map(|x| best(of, Varied::Network, x));
    let [ethernet, atm, fast, fastest] = networks;
    // What the slowest network costs beside the fastest.
    let cost = |name: &str| {
        let at = |x| found(&of.measured, Varied::Network, name, x).map(|one| one.mean_us);
        at(NETWORK_US[NETWORK_US.len() - 1]).zip(at(NETWORK_US[0])).map(|(slow, fast)| slow / fast)
    };
    let least = |names: [&str; 2]| names.into_iter().filter_map(cost).fold(f64::INFINITY, f64::min);
    let most = |names: [&str; 2]| names.into_iter().filter_map(cost).fold(0.0, f64::max);
    let (fixed, dynamic) = (least(["central", "hash"]), most(["weighted-lru", "n-chance"]));
    let years = [0.0, 5.0].map(|x| ratio(of, Varied::Years, "n-chance", x));
    vec![
        finding(
            "Dahlin, figure 3-13",
            "greatest speed-up with Ethernet (10 ms for a block), and with ATM",
            "1.20, more than 1.70",
            format!("{}, {}", shown(ethernet, 2, ""), shown(atm, 2, "")),
            ethernet.zip(atm).map(|(slow, fast)| slow < fast),
        ),
        finding(
            "Dahlin, figure 3-13",
            "greatest speed-up with 100 µs and with 10 µs for a block",
            "little more",
            format!("{}, {}", shown(fast, 2, ""), shown(fastest, 2, "")),
            None,
        ),
        finding(
            "Dahlin, figure 3-13",
            "how many times as long reads take with the slowest network as with the fastest: fixed parts at least, dynamic ones at most",
            "fixed parts need a fast network more",
            format!("{fixed:.2}, {dynamic:.2}"),
            Some(fixed > dynamic),
        ),
        finding(
            "Dahlin, figure 3-14",
            "n-chance's speed-up in 1994 and in 1999",
            "1.73, 1.87",
            years.map(|ratio| shown(ratio, 2, "")).join(", "),
            years[0].zip(years[1]).map(|(then, later)| later > then),
        ),
    ]
}

/// Does it still pay, and where?
fn today(of: &Sensitivity) -> Vec<Finding> {
    let disk_us = Technology::NVME_25_GBPS.disk_us;
    let mut all = Vec::new();
    for (study, network) in [(Varied::Disk25, "25 Gb/s"), (Varied::Disk100, "100 Gb/s")] {
        let names = ["greedy", "central", "weighted-lru", "n-chance", "epochs"];
        let ours = names.map(|name| format!("{name} {}", shown(ratio(of, study, name, disk_us), 2, ""))).join(", ");
        let pays = DISK_US.into_iter().find(|x| ratio(of, study, "n-chance", *x).is_some_and(|ratio| ratio >= 1.05));
        let pays = pays.map_or("with no disk that was tried".into(), |us| format!("from {us:.0} µs"));
        let mut speed_ups =
            finding("", &format!("speed-ups with NVMe ({disk_us:.0} µs) and {network}"), "", ours, None);
        let what = format!("disks with which n-chance gains 5% or more, with {network}");
        let mut where_it_pays = finding("", &what, "", pays, None);
        for one in [&mut speed_ups, &mut where_it_pays] {
            one.why =
                "Not in the thesis: what machines take today is in the library's documentation of Technology.".into();
        }
        all.extend([speed_ups, where_it_pays]);
    }
    all
}
