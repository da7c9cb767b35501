//! The results of the study, as figures, and beside the statements of the thesis.

use super::super::rates::{BASE, Rates, Stated};
use super::super::{curves, found, shown, speed_up};
use super::{COMMON, DISK_US, Measured, NETWORK_US, Sensitivity, Varied, network};
use crate::cooperative::{Algorithm, Technology};
use crate::figure::{Axis, Curve, Figure, Finding, Kind, Scale, Shape};

/// The algorithms that share the clients' memory, and use no more of it than there is.
const COOPERATIVE: [&str; 7] = ["greedy", "central", "hash", "weighted-lru", "n-chance", "two-choices", "epochs"];

/// The unit of the thesis's network axis is a round trip that fetches a block: its ATM takes this
/// many microseconds.
const ATM_US: f64 = 800.0;

fn axis(label: &str, scale: Scale) -> Axis {
    Axis { label: label.into(), scale }
}

fn scaled(mut curves: Vec<Curve>, factor: f64) -> Vec<Curve> {
    curves.iter_mut().flat_map(|curve| &mut curve.points).for_each(|point| point.0 *= factor);
    curves
}

/// Figures 3-7 to 3-14, and those of today's machines.
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
        theirs: Vec::new(),
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

/// The statements of the thesis, beside our results.
pub fn findings(of: &Sensitivity) -> Vec<Finding> {
    let mut all = parameters(of);
    all.extend(caches(of));
    all.extend(machines(of));
    all.extend(today(of));
    all
}

fn finding(stated: &str, what: &str, theirs: &str, ours: String, holds: Option<bool>) -> Finding {
    let (kind, why) = (Kind::Measured, String::new());
    Finding { stated: stated.into(), what: what.into(), theirs: theirs.into(), ours, kind, holds, why }
}

/// Adds to a finding what explains the difference, as far as it can be computed.
fn explained(finding: Finding, why: Option<String>) -> Finding {
    Finding { why: why.unwrap_or_default(), ..finding }
}

/// Where reads were served.
fn rates(of: &Sensitivity, study: Varied, name: &str, x: f64) -> Option<Rates> {
    found(&of.measured, study, name, x).map(|one| Rates::of(&one.reads))
}

/// In words: reads that miss the client's cache, and reads from the disk.
fn of_rates(rates: Rates) -> String {
    format!("{:.0}%, {:.1}%", rates.misses, rates.disk)
}

/// The greatest speed-up that the thesis's stated rates give with these times.
fn stated_best(of: &Sensitivity, study: Varied, x: f64, technology: &Technology) -> Option<f64> {
    let all = COOPERATIVE.iter().filter_map(|name| Stated::of(name));
    all.filter_map(|stated| Some(stated.speed_up_with(&rates(of, study, stated.name, x)?, technology))).reduce(f64::max)
}

fn ratio(of: &Sensitivity, study: Varied, name: &str, x: f64) -> Option<f64> {
    speed_up(found(&of.measured, study, "base", x), found(&of.measured, study, name, x))
}

/// The greatest speed-up of the algorithms that share the clients' memory.
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
    let from_disk = |study, name: &str, all: &[f64]| {
        let all = all.iter().map(|x| shown(rates(of, study, name, *x).map(|rates| rates.disk), 1, "%"));
        all.collect::<Vec<_>>().join(", ")
    };
    let [of_base, of_direct] = [Algorithm::Base, Algorithm::Direct].map(|of| Technology::ATM.times_us(of));
    // With direct cooperation, all reads from others' memory take the same time.
    let theirs = [1.01, 1.05, 1.40].map(|ratio| BASE.that_take(BASE.mean_us(&of_base) / ratio, &of_direct).disk);
    let why_direct = format!(
        "By table 3-2 theirs means {:.1}%, {:.1}% and {:.1}% of reads from the disk, after {:.1}% without; ours are {}, after {}.",
        theirs[0],
        theirs[1],
        theirs[2],
        BASE.disk,
        from_disk(Varied::Remote, "direct", &[0.25, 1.0, 4.0]),
        from_disk(Varied::Remote, "base", &[0.0]),
    );
    let why_common = Stated::of("central").and_then(|stated| {
        let [less, set, more] = [40.0, 80.0, 90.0].map(|x| rates(of, Varied::Common, &format!("{mib} MiB"), x));
        let (theirs, [less, set, more]) = (of_rates(stated.rates(&set?)), [less?, set?, more?].map(of_rates));
        Some(format!(
            "Reads that miss the client's cache, and from the disk: theirs {theirs} with 80%; ours {set}, with 40% {less}, and with 90% {more}."
        ))
    });
    let why_chances = Stated::of("greedy").zip(Stated::of("n-chance")).and_then(|(none, two)| {
        let own = |n| rates(of, Varied::Chances, "n-chance", n);
        Some(format!(
            "Reads from the disk with n of 0, 1, 2 and 10: ours {}; theirs {:.1}% with 0, as greedy's speed-up means, and {:.1}% with 2.",
            from_disk(Varied::Chances, "n-chance", &[0.0, 1.0, 2.0, 10.0]),
            none.rates(&own(0.0)?).disk,
            two.rates(&own(2.0)?).disk,
        ))
    });
    let of_direct = finding(
        "Dahlin, figure 3-7",
        "speed-up of direct cooperation with a quarter of a cache elsewhere, as much again, and four times as much",
        "less than 1.01, 1.05, 1.40",
        [0.25, 1.0, 4.0].map(|x| shown(direct(x), 2, "")).join(", "),
        direct(0.25).zip(direct(4.0)).map(|(little, much)| little <= much),
    );
    let of_common = finding(
        "Dahlin, figure 3-8",
        "common parts for which central coordination is within 5% of its best",
        "about 40% to 90%",
        first.map_or("not measured".into(), |first| format!("{first:.0}% to {:.0}%", last.unwrap_or(first))),
        None,
    );
    let of_chances = finding(
        "Dahlin, figure 3-10",
        "gain from n = 0 to 1, 1 to 2, and 2 to 10",
        "the most, about 5%, little",
        gains,
        one.zip(two).map(|(one, two)| one >= two),
    );
    vec![explained(of_direct, Some(why_direct)), explained(of_common, why_common), explained(of_chances, why_chances)]
}

fn caches(of: &Sensitivity) -> Vec<Finding> {
    let us = |name: &str, x| found(&of.measured, Varied::Unlike, name, x).map(|one| one.mean_us / 1000.0);
    let alike = |x| format!("{}, {}", shown(us("base", x), 2, " ms"), shown(us("n-chance", x), 2, " ms"));
    let (same, unlike) = (ratio(of, Varied::Unlike, "n-chance", 0.0), ratio(of, Varied::Unlike, "n-chance", 1.0));
    let small = ["central", "hash", "weighted-lru", "n-chance", "greedy"];
    let at =
        |x: f64| small.map(|name| format!("{name} {}", shown(ratio(of, Varied::Client, name, x), 2, ""))).join(", ");
    let own = |x| [("base", x), ("n-chance", x)].map(|(name, x)| rates(of, Varied::Unlike, name, x));
    let stated = Stated::of("n-chance");
    let why_alike = stated.and_then(|stated| {
        let [base, n_chance] = own(0.0);
        let theirs = [BASE, stated.rates(&n_chance?)].map(of_rates).join(" and ");
        let ours = [base?, n_chance?].map(of_rates).join(" and ");
        Some(format!("Reads that miss the client's cache, and from the disk: theirs {theirs}, ours {ours}."))
    });
    let why_unlike = || {
        let [base, n_chance] = own(1.0);
        let ours = [base?, n_chance?].map(of_rates).join(" and ");
        Some(format!(
            "Reads that miss the client's cache, and from the disk, are not stated where caches are not alike; ours are {ours}."
        ))
    };
    let why_ratio = stated.and_then(|stated| {
        let ([base, n_chance], best) = (own(0.0), rates(of, Varied::Client, "best", 1.0));
        Some(format!("Caches alike: {}", stated.explained(&base?, &n_chance?, &best?)))
    });
    let of_alike =
        finding("Dahlin, table 3-4", "base case and n-chance, caches alike", "2.75 ms, 1.59 ms", alike(0.0), None);
    let of_unlike = finding(
        "Dahlin, table 3-4",
        "the same, caches as the demand lets them be",
        "3.05 ms, 1.66 ms",
        alike(1.0),
        None,
    );
    let of_ratio = finding(
        "Dahlin, table 3-4",
        "n-chance's speed-up, caches alike and not",
        "1.73, 1.83",
        format!("{}, {}", shown(same, 2, ""), shown(unlike, 2, "")),
        None,
    );
    vec![
        finding(
            "Dahlin, figure 3-11",
            "speed-ups with a sixteenth of the clients' caches",
            "coordination gains little where caches are too small",
            at(0.0625),
            None,
        ),
        explained(of_alike, why_alike),
        explained(of_unlike, why_unlike()),
        explained(of_ratio, why_ratio),
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
    // The cost of the slowest network beside the fastest.
    let cost = |name: &str| {
        let at = |x| found(&of.measured, Varied::Network, name, x).map(|one| one.mean_us);
        at(NETWORK_US[NETWORK_US.len() - 1]).zip(at(NETWORK_US[0])).map(|(slow, fast)| slow / fast)
    };
    let least = |names: [&str; 2]| names.into_iter().filter_map(cost).fold(f64::INFINITY, f64::min);
    let most = |names: [&str; 2]| names.into_iter().filter_map(cost).fold(0.0, f64::max);
    let (fixed, dynamic) = (least(["central", "hash"]), most(["weighted-lru", "n-chance"]));
    let years = [0.0, 5.0].map(|x| ratio(of, Varied::Years, "n-chance", x));
    let with_theirs = |one: Option<f64>, other: Option<f64>| {
        Some(format!("The rates of figure 3-4, in place of ours, would give {:.2}, {:.2}.", one?, other?))
    };
    let best_at = |x| stated_best(of, Varied::Network, x, &network(x));
    let stated_cost = |name: &str| {
        let stated = Stated::of(name)?;
        let at = |us: f64| {
            let own = rates(of, Varied::Network, name, us)?;
            Some(stated.rates(&own).mean_us(&network(us).times_us(stated.algorithm)))
        };
        Some(at(NETWORK_US[NETWORK_US.len() - 1])? / at(NETWORK_US[0])?)
    };
    let stated_after = |years: u32| {
        let own = rates(of, Varied::Years, "n-chance", f64::from(years))?;
        Some(Stated::of("n-chance")?.speed_up_with(&own, &Technology::projected(years)))
    };
    let of_slow = finding(
        "Dahlin, figure 3-13",
        "greatest speed-up with Ethernet (10 ms for a block), and with ATM",
        "1.20, more than 1.70",
        format!("{}, {}", shown(ethernet, 2, ""), shown(atm, 2, "")),
        ethernet.zip(atm).map(|(slow, fast)| slow < fast),
    );
    let of_fast = finding(
        "Dahlin, figure 3-13",
        "greatest speed-up with 100 µs and with 10 µs for a block",
        "little more",
        format!("{}, {}", shown(fast, 2, ""), shown(fastest, 2, "")),
        None,
    );
    let of_parts = finding(
        "Dahlin, figure 3-13",
        "how many times as long reads take with the slowest network as with the fastest: fixed parts at least, dynamic ones at most",
        "fixed parts need a fast network more",
        format!("{fixed:.2}, {dynamic:.2}"),
        Some(fixed > dynamic),
    );
    let of_years = finding(
        "Dahlin, figure 3-14",
        "n-chance's speed-up in 1994 and in 1999",
        "1.73, 1.87",
        years.map(|ratio| shown(ratio, 2, "")).join(", "),
        years[0].zip(years[1]).map(|(then, later)| later > then),
    );
    vec![
        explained(of_slow, with_theirs(best_at(10_000.0), best_at(ATM_US))),
        explained(of_fast, with_theirs(best_at(100.0), best_at(10.0))),
        explained(of_parts, with_theirs(stated_cost("central"), stated_cost("n-chance"))),
        explained(of_years, with_theirs(stated_after(0), stated_after(5))),
    ]
}

/// Whether cooperation still pays, and where.
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
