//! The statements of Froese and Bunt about their figures, beside our results.
//!
//! Only orderings pass or fail: the generated traces match what the paper states of its own, and
//! nothing else of them. A finding says nothing if nothing happened that could be compared, or if
//! it makes no difference.

use super::study::{CONTOURS, Grid, Study, kilobits, mebibytes};
use super::why;
use super::{Logged, Outcome, Parameters, Rules, Unit, WriteBack};
use crate::figure::{Finding, Kind};
use policy::replacement::Replacement;

const AGGRESSIVE: [WriteBack; 2] = [WriteBack::Idle, WriteBack::Lottery];
const CONSERVATIVE: [WriteBack; 2] = [WriteBack::Delayed, WriteBack::Preemptive];
const SENDING: [WriteBack; 4] = [WriteBack::Idle, WriteBack::Lottery, WriteBack::Delayed, WriteBack::Preemptive];

/// The text if nothing was measured.
const NOTHING: &str = "nothing";
const POINTS: &str = " percentage points";
/// Differences up to this part are rounding: each transfer takes whole microseconds.
const ROUNDING: f64 = 1e-4;

/// The kind of a statement.
#[derive(Clone, Copy)]
enum Theirs {
    /// An ordering, which must hold here too.
    Order(&'static str),
    /// A value, which is only shown.
    Value(&'static str),
}
use Theirs::{Order, Value};

/// The result in one trace, and whether a required relation holds.
type Found = (String, Option<bool>);

/// Everything that the paper says about figures 2 to 12. The first two traces stand for its traces
/// 1 and 2 when it compares them.
pub fn findings(study: &Study) -> Vec<Finding> {
    let mut all = configuration(study);
    all.extend(reintegration(study));
    all.extend(log_size(study));
    all.extend(interference(study));
    all.extend(expansion(study));
    all.extend(blocks(study));
    all.extend(conclusions(study));
    all
}

/// One finding over all traces: it holds if it holds in each trace that can say something.
fn finding(
    study: &Study,
    stated: &str,
    what: &str,
    theirs: Theirs,
    why: impl Fn(&Study, usize) -> String,
    of: impl Fn(usize) -> Found,
) -> Finding {
    let found: Vec<Found> = (0..study.traces.len()).map(of).collect();
    let named = study.traces.iter().zip(&found).map(|((name, _), (ours, _))| format!("{name}: {ours}"));
    let said: Vec<bool> = found.iter().filter_map(|(_, holds)| *holds).collect();
    let holds = (!said.is_empty()).then(|| said.iter().all(|holds| *holds));
    let ours = named.collect::<Vec<_>>().join("; ");
    told(study, stated, what, theirs, ours, holds, why)
}

/// One finding on the first trace beside the second; `None` if there is only one.
fn compared(
    study: &Study,
    stated: &str,
    what: &str,
    theirs: Theirs,
    why: impl Fn(&Study, usize) -> String,
    of: impl Fn(usize) -> Option<f64>,
    unit: &str,
) -> Vec<Finding> {
    let [(first, _), (second, _), ..] = &study.traces[..] else { return Vec::new() };
    let (one, other) = (of(0), of(1));
    let ours = format!("{first}: {}; {second}: {}", shown(one, 2, unit), shown(other, 2, unit));
    vec![told(study, stated, what, theirs, ours, is_less(one, other), why)]
}

fn told(
    study: &Study,
    stated: &str,
    what: &str,
    theirs: Theirs,
    ours: String,
    holds: Option<bool>,
    why: impl Fn(&Study, usize) -> String,
) -> Finding {
    let named = study.traces.iter().enumerate().map(|(trace, (name, _))| format!("{name}: {}", why(study, trace)));
    let (theirs, why) = match (theirs, holds) {
        (Order(theirs), Some(true)) => (theirs, String::new()),
        (Order(theirs), None) => (theirs, "nothing was done that could be compared, or that makes a difference".into()),
        (Order(theirs), Some(false)) | (Value(theirs), _) => (theirs, named.collect::<Vec<_>>().join("; ")),
    };
    let stated = format!("Froese and Bunt, {stated}");
    Finding { stated, what: what.into(), theirs: theirs.into(), ours, kind: Kind::Measured, holds, why }
}

/// True if `one` is less than `other`. `None` if one was not measured, or if they do not differ.
fn is_less(one: Option<f64>, other: Option<f64>) -> Option<bool> {
    let (one, other) = (one?, other?);
    (!is_same(one, other)).then_some(one < other)
}

fn is_same(one: f64, other: f64) -> bool {
    (one - other).abs() <= ROUNDING * one.abs().max(other.abs())
}

/// In how many of the cases that can say something the first is less than the second; if not in
/// all, by how much it is more.
fn all_less(pairs: impl IntoIterator<Item = (Option<f64>, Option<f64>)>, unit: &str) -> Found {
    let (mut so, mut all, mut excess) = (0, 0, 0.0f64);
    for (one, other) in pairs {
        let Some(is_so) = is_less(one, other) else { continue };
        (so, all) = (so + u64::from(is_so), all + 1);
        excess = one.zip(other).map_or(excess, |(one, other)| excess.max(one - other));
    }
    match (so, all) {
        (_, 0) => (NOTHING.into(), None),
        _ if so == all => (format!("in {so} of {all} cases"), Some(true)),
        _ => (format!("in {so} of {all} cases, and by at most {excess:.2}{unit} the other way"), Some(false)),
    }
}

/// In how many of these cases it holds.
fn counted(are: impl IntoIterator<Item = bool>) -> String {
    let (so, all) = are.into_iter().fold((0, 0), |(so, all), is| (so + u64::from(is), all + 1));
    if all > 0 { format!("in {so} of {all} cases") } else { NOTHING.into() }
}

fn mean(of: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (sum, count) = of.into_iter().fold((0.0, 0u32), |(sum, count), one| (sum + one, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

fn most(of: impl IntoIterator<Item = f64>) -> Option<f64> {
    of.into_iter().reduce(f64::max)
}

fn least(of: impl IntoIterator<Item = f64>) -> Option<f64> {
    of.into_iter().reduce(f64::min)
}

/// The difference between the least and the greatest.
fn spread(of: impl IntoIterator<Item = f64> + Clone) -> Option<f64> {
    Some(most(of.clone())? - least(of)?)
}

fn shown(of: Option<f64>, digits: usize, unit: &str) -> String {
    of.map_or(NOTHING.into(), |of| format!("{of:.digits$}{unit}"))
}

fn range(of: &[f64], unit: &str) -> String {
    let ends = least(of.iter().copied()).zip(most(of.iter().copied()));
    // A value that is rounded to zero has no sign.
    let whole = |of: f64| of.round() + 0.0;
    ends.map_or(NOTHING.into(), |(least, most)| format!("{} to {}{unit}", whole(least), whole(most)))
}

/// The time expansion in percent; `None` if nothing is read.
fn expansion_of(outcome: &Outcome) -> Option<f64> {
    outcome.time_expansion().filter(|_| outcome.reads > 0).map(|times| (times - 1.0) * 100.0)
}

/// The same for the time at work.
fn expansion_at_work(outcome: &Outcome) -> Option<f64> {
    outcome.time_expansion_at_work().filter(|_| outcome.reads > 0).map(|times| (times - 1.0) * 100.0)
}

/// The percentage of the time that is spent waiting for what goes home; `None` if nothing does, or
/// nothing is read.
fn interference_of(outcome: &Outcome) -> Option<f64> {
    outcome.interference().filter(|_| outcome.reads > 0 && outcome.logged_bytes > 0).map(|part| 100.0 * part)
}

fn interference_at_work(outcome: &Outcome) -> Option<f64> {
    outcome.interference_at_work().filter(|_| outcome.reads > 0 && outcome.logged_bytes > 0).map(|part| 100.0 * part)
}

fn minutes(outcome: &Outcome) -> Option<f64> {
    outcome.reintegration_mean_us.map(|mean| mean as f64 / 60e6)
}

/// The largest log, in MiB; nothing if nothing was logged.
fn log_of(outcome: &Outcome) -> Option<f64> {
    (outcome.logged_bytes > 0).then(|| mebibytes(outcome.log_bytes_max))
}

/// Bytes sent home, in MiB; `None` if nothing was logged.
fn sent_of(outcome: &Outcome) -> Option<f64> {
    (outcome.logged_bytes > 0).then(|| mebibytes(outcome.sent_bytes))
}

impl Study {
    /// Results by cache and by bandwidth with a policy and whole files (figures 4 to 9).
    fn points(&self, trace: usize, policy: WriteBack) -> Vec<Outcome> {
        let by_cache = self.grid.caches_bytes.iter().map(|cache| self.grid.by_cache(policy, *cache));
        by_cache.chain(self.links_of(policy, Unit::File)).map(|of| self.at(trace, &of)).collect()
    }

    fn links_of(&self, policy: WriteBack, unit: Unit) -> impl Iterator<Item = Parameters> {
        self.grid.slow.iter().map(move |link| self.grid.by_link(policy, unit, *link))
    }

    /// The results by bandwidth.
    fn by_link(&self, trace: usize, policy: WriteBack, unit: Unit) -> Vec<Outcome> {
        self.links_of(policy, unit).map(|of| self.at(trace, &of)).collect()
    }

    /// A measure with files and with blocks, by bandwidth.
    fn units<T>(&self, trace: usize, policy: WriteBack, measure: impl Fn(&Outcome) -> T) -> Vec<(T, T)> {
        let [files, blocks] = [Unit::File, Unit::Block].map(|unit| self.by_link(trace, policy, unit));
        files.iter().zip(&blocks).map(|(files, blocks)| (measure(files), measure(blocks))).collect()
    }

    /// The difference of files to blocks, by bandwidth, where it was measured.
    fn gains(&self, trace: usize, policy: WriteBack, measure: impl Fn(&Outcome) -> Option<f64>) -> Vec<Option<f64>> {
        let gain = |(files, blocks): (Option<f64>, Option<f64>)| {
            let (files, blocks) = (files?, blocks?);
            Some(if is_same(files, blocks) { 0.0 } else { files - blocks })
        };
        self.units(trace, policy, measure).into_iter().map(gain).collect()
    }

    /// The same study, with the whole file or block logged for each write.
    fn with_units_logged(&self) -> Study {
        let base = Parameters { logged: Logged::Units, ..self.grid.base };
        Study { grid: Grid { base, ..self.grid.clone() }, ..self.clone() }
    }

    /// The reduction by blocks against files, in percent, for each of these policies and each
    /// bandwidth.
    fn saved(&self, trace: usize, policies: &[WriteBack], measure: impl Fn(&Outcome) -> Option<f64>) -> Vec<f64> {
        let saved = |(files, blocks): (Option<f64>, Option<f64>)| {
            let (files, blocks) = (files?, blocks?);
            (files > 0.0).then(|| 100.0 * (1.0 - blocks / files))
        };
        policies.iter().flat_map(|policy| self.units(trace, *policy, &measure)).filter_map(saved).collect()
    }
}

fn configuration(study: &Study) -> Vec<Finding> {
    let grid = &study.grid;
    let bare = |trace, cache: u64, link: u64| expansion_of(&study.at(trace, &grid.bare(cache, link)));
    let links: Vec<u64> = grid.links().collect();
    let (first, last) = (grid.caches_bytes[0], grid.caches_bytes[grid.caches_bytes.len() - 1]);
    let faster = |trace| {
        let steps = grid.caches_bytes.iter().flat_map(|cache| links.windows(2).map(move |two| (*cache, two)));
        all_less(steps.map(|(cache, two)| (bare(trace, cache, two[1]), bare(trace, cache, two[0]))), POINTS)
    };
    let larger = |trace| {
        let step =
            |one: u64, next: u64| links.iter().map(move |link| (bare(trace, next, *link), bare(trace, one, *link)));
        let (steps, _) = all_less(grid.caches_bytes.windows(2).flat_map(|two| step(two[0], two[1])), POINTS);
        let (ends, holds) = all_less(step(first, last), POINTS);
        (format!("{steps}; with the largest and the smallest {ends}"), holds)
    };
    let smallest = |trace| {
        let at = |link: &u64| study.at(trace, &grid.bare(first, *link));
        let by_link = |measure: fn(&Outcome) -> Option<f64>| -> Vec<f64> {
            links.iter().filter_map(|link| measure(&at(link))).collect()
        };
        let at_work = range(&by_link(expansion_at_work), " % of the time at work");
        (format!("{} longer ({at_work})", range(&by_link(expansion_of), " %")), None)
    };
    let contours = |trace| {
        let needs = |cache: u64, level| study.bandwidth_for(trace, cache, level);
        let ends = |level| {
            let line: Vec<f64> = grid.caches_bytes.iter().filter_map(|cache| needs(*cache, level)).collect();
            (line.last().copied(), line.first().copied())
        };
        all_less(CONTOURS.map(ends), " kb/s")
    };
    let one = format!("time expansion with {:.0} MiB", mebibytes(first));
    let quite = "with 1 MB quite unacceptable at all bandwidths";
    vec![
        finding(study, "figure 2", "more bandwidth expands time less", Order("it does"), why::misses, faster),
        finding(
            study,
            "figure 2",
            "larger caches expand time less",
            Order("they do, up to a point"),
            why::large_files,
            larger,
        ),
        finding(study, "figure 2", &one, Value(quite), why::smallest_cache, smallest),
        finding(
            study,
            "figure 3",
            "with a larger cache, less bandwidth gives the same time expansion",
            Order("it does"),
            why::large_files,
            contours,
        ),
    ]
}

fn reintegration(study: &Study) -> Vec<Finding> {
    let idle = |trace| {
        let all: Vec<f64> = study.points(trace, WriteBack::Idle).iter().filter_map(minutes).collect();
        (range(&all, " minutes on the average"), None)
    };
    let times = |trace, policy| study.points(trace, policy).iter().map(minutes).collect::<Vec<_>>();
    let sooner = |trace| {
        let pairs = AGGRESSIVE.into_iter().flat_map(|one| CONSERVATIVE.map(|other| (one, other)));
        let of_pair = |(one, other)| times(trace, one).into_iter().zip(times(trace, other)).collect::<Vec<_>>();
        all_less(pairs.flat_map(of_pair), " minutes")
    };
    let longer = |trace| {
        let of_policy =
            |policy| times(trace, policy).into_iter().zip(times(trace, WriteBack::Idle)).collect::<Vec<_>>();
        let pairs = CONSERVATIVE.into_iter().flat_map(of_policy);
        (counted(pairs.filter_map(|(other, idle)| Some(other? > 5.0 * idle?))), None)
    };
    let within = Value("20 minutes, often much less");
    vec![
        finding(study, "figures 4 and 5", "Idle reintegrates within", within, why::idle, idle),
        finding(
            study,
            "figures 4 and 5",
            "aggressive policies reintegrate sooner than conservative ones",
            Order("they do"),
            why::home_after,
            sooner,
        ),
        finding(
            study,
            "figures 4 and 5",
            "conservative policies take more than five times as long as Idle",
            Value("often"),
            why::home_after,
            longer,
        ),
    ]
}

fn log_size(study: &Study) -> Vec<Finding> {
    let logs = |trace, policy| study.points(trace, policy).iter().map(log_of).collect::<Vec<_>>();
    let pairs = |trace, policy| logs(trace, policy).into_iter().zip(logs(trace, WriteBack::Never)).collect::<Vec<_>>();
    let smaller = |trace| {
        let all = AGGRESSIVE.map(|policy| pairs(trace, policy)).concat();
        let (_, holds) = all_less(all.iter().copied(), " MiB");
        let cut = |(one, never): &(Option<f64>, Option<f64>)| Some(100.0 * (1.0 - (*one)? / (*never)?));
        (range(&all.iter().filter_map(cut).collect::<Vec<_>>(), " %"), holds)
    };
    let largest = |trace| {
        let all = WriteBack::ALL.map(|policy| logs(trace, policy)).concat();
        (shown(most(all.into_iter().flatten()), 2, " MiB"), None)
    };
    let overlap = |trace| {
        let never = study.points(trace, WriteBack::Never)[0];
        (never.logged_bytes > 0).then(|| 100.0 * never.cancelled_bytes as f64 / never.logged_bytes as f64)
    };
    let mut all = vec![
        finding(
            study,
            "figures 6 and 7",
            "aggressive policies make the log smaller than if nothing goes home, by",
            Value("25 to 50 %"),
            why::log,
            smaller,
        ),
        finding(study, "section 5.2", "the log is at most", Value("2 MB"), why::log_units, largest),
    ];
    let what = "part of what is written that overlaps, nothing going home: more in the second trace";
    let much = Order("much more in trace 2");
    all.extend(compared(study, "figures 6 and 7", what, much, why::log_units, overlap, " %"));
    all
}

fn interference(study: &Study) -> Vec<Finding> {
    let of_policies = |trace, policies: &[WriteBack], measure: fn(&Outcome) -> Option<f64>| {
        let points = policies.iter().flat_map(|policy| study.points(trace, *policy));
        points.filter_map(|one| measure(&one)).collect::<Vec<_>>()
    };
    let largest = |trace| {
        let worst = |measure| most(of_policies(trace, &SENDING, measure));
        let at_work = shown(worst(interference_at_work), 2, " % of the time at work");
        (format!("{} ({at_work})", shown(worst(interference_of), 2, " %")), None)
    };
    let less = |trace| {
        let of = |policies: &[WriteBack]| mean(of_policies(trace, policies, interference_of));
        let (conservative, aggressive) = (of(&CONSERVATIVE), of(&AGGRESSIVE));
        let ours = format!("{} against {}", shown(conservative, 3, ""), shown(aggressive, 3, " % of time"));
        (ours, is_less(conservative, aggressive))
    };
    let all = |trace| mean(of_policies(trace, &SENDING, interference_of));
    let (at_most, what) = (Value("2 % of time"), "write interference of all policies, at most");
    let mut found = vec![
        finding(study, "figures 8 and 9", what, at_most, why::interference, largest),
        finding(
            study,
            "figures 8 and 9",
            "conservative policies interfere less than aggressive ones",
            Order("often considerably"),
            why::interference,
            less,
        ),
    ];
    let what = "mean write interference: more in the second trace, where more is written";
    let more = Order("more in trace 2");
    found.extend(compared(study, "figures 8 and 9", what, more, why::interference, all, " %"));
    found
}

fn expansion(study: &Study) -> Vec<Finding> {
    let grid = &study.grid;
    let link = study.modem();
    let of = |trace, policy, link| study.at(trace, &grid.by_link(policy, Unit::File, link));
    // The policies differ only in when changes go home.
    let of_writes = |trace, policy, link| {
        let outcome = of(trace, policy, link);
        expansion_of(&outcome).filter(|_| outcome.logged_bytes > 0)
    };
    let largest = |trace| {
        let worst = |measure: fn(&Outcome) -> Option<f64>| {
            most(SENDING.iter().filter_map(|policy| measure(&of(trace, *policy, link))))
        };
        let at_work = shown(worst(expansion_at_work), 1, " % of the time at work");
        (format!("{} ({at_work})", shown(worst(expansion_of), 1, " %")), None)
    };
    let differ = |trace| {
        let at = |link: &u64| spread(SENDING.map(|policy| of_writes(trace, policy, *link)).into_iter().flatten());
        mean(grid.slow.iter().filter_map(at))
    };
    let more = |trace| {
        let of = |policies: [WriteBack; 2]| {
            let at = |link: &u64| policies.map(|policy| of_writes(trace, policy, *link));
            mean(grid.slow.iter().flat_map(at).flatten())
        };
        let (aggressive, conservative) = (of(AGGRESSIVE), of(CONSERVATIVE));
        let ours = format!("{} against {}", shown(aggressive, 2, ""), shown(conservative, 2, " %"));
        (ours, is_less(conservative, aggressive))
    };
    let what = format!(
        "time expansion of all policies at {} kb/s with {:.0} MiB, at most",
        kilobits(link),
        mebibytes(grid.base.cache_bytes)
    );
    let mut found = vec![
        finding(study, "figure 10", &what, Value("8 %"), why::expansion, largest),
        finding(
            study,
            "figure 10",
            "aggressive policies expand time slightly more than conservative ones",
            Order("where much is written"),
            why::interference,
            more,
        ),
    ];
    let what = "time expansion differs among policies: little where little is written";
    let less = Order("less in trace 1");
    found.extend(compared(study, "figure 10", what, less, why::interference, differ, POINTS));
    found
}

fn blocks(study: &Study) -> Vec<Finding> {
    let expansions = |trace, policy| study.gains(trace, policy, expansion_of);
    let less = |trace| {
        let of_policy = |policy| study.units(trace, policy, expansion_of);
        let pairs = WriteBack::ALL.into_iter().flat_map(of_policy).map(|(files, blocks)| (blocks, files));
        all_less(pairs, POINTS)
    };
    let beats = |trace| {
        let gain = mean(SENDING.map(|policy| expansions(trace, policy)).concat().into_iter().flatten());
        let by_policy = SENDING.map(|policy| study.by_link(trace, policy, Unit::File));
        let at = |at: usize| spread(by_policy.each_ref().map(|all| expansion_of(&all[at])).into_iter().flatten());
        let by_policy = mean((0..study.grid.slow.len()).filter_map(at));
        (format!("{} against {}", shown(gain, 2, ""), shown(by_policy, 2, POINTS)), is_less(by_policy, gain))
    };
    let shrinks = |trace| {
        let of = |at: usize| mean(SENDING.iter().filter_map(|policy| expansions(trace, *policy)[at]));
        let (slowest, fastest) = (of(0), of(study.grid.slow.len() - 1));
        (format!("from {} to {}", shown(slowest, 2, ""), shown(fastest, 2, POINTS)), is_less(fastest, slowest))
    };
    let (figure_11, figure_12, section) = ("figure 11", "figure 12", "section 5.3");
    let what = "blocks expand time less than files, with each policy";
    let differ = "blocks instead of files make more of a difference than the policy";
    let bandwidth = "that difference becomes less as bandwidth increases";
    let mut found = vec![
        finding(study, figure_11, what, Order("they do"), why::units_read, less),
        finding(study, figure_11, differ, Order("they do"), why::units_read, beats),
        finding(study, figure_11, bandwidth, Order("it does"), why::units_read, shrinks),
    ];
    // By section 4.3 the log holds the written bytes; section 5.3 has results that only a log of
    // whole files or blocks gives. Both are shown.
    let units = study.with_units_logged();
    let both = [(study, "what is written is logged"), (&units, "all of a file or block is logged")];
    let shown_too = if study.grid.base.rules == Rules::Paper { 2 } else { 1 };
    for (of, logged) in both.into_iter().take(shown_too) {
        let interferes = |trace, policy| of.gains(trace, policy, interference_of);
        let idle = |trace| {
            let slowest = interferes(trace, WriteBack::Idle)[0];
            let ours = shown(slowest, 3, " percentage points less at the lowest bandwidth");
            (ours, is_less(Some(0.0), slowest))
        };
        let delayed = |trace| {
            let of = |policy| mean(interferes(trace, policy).into_iter().flatten());
            let (idle, delayed) = (of(WriteBack::Idle), of(WriteBack::Delayed));
            let ours = format!("{} against {}", shown(delayed, 3, ""), shown(idle, 3, POINTS));
            (ours, is_less(delayed.map(f64::abs), idle.map(f64::abs)))
        };
        let saved = |trace, policies: &[WriteBack], measure: fn(&Outcome) -> Option<f64>| {
            let saved = of.saved(trace, policies, measure);
            let mean = mean(saved.iter().copied());
            (format!("{} on the average, {}", shown(mean, 0, " %"), range(&saved, " %")), is_less(Some(0.0), mean))
        };
        let by_policy = |_: &Study, trace: usize| {
            let minutes = |policy: WriteBack| mean(of.saved(trace, &[policy], minutes));
            let all = SENDING.map(|policy| format!("{} by {}", policy.name(), shown(minutes(policy), 0, " %")));
            format!("{}: {}", why::units_written(of, trace), all.join(", "))
        };
        let written = |_: &Study, trace: usize| why::units_written(of, trace);
        let what = |what: &str| format!("{what} (if {logged})");
        let fewer = Value("more than 50 % fewer in many cases");
        let shrink = Value("35 to 60 % on the average");
        let sent = |trace| saved(trace, &SENDING, sent_of);
        let logs = |trace| saved(trace, &WriteBack::ALL, log_of);
        let sooner = |trace| saved(trace, &SENDING, minutes);
        let less = what("with Idle, blocks interfere less than files");
        found.push(finding(study, figure_12, &less, Order("much less at low bandwidths"), written, idle));
        let (less, way) = (what("that difference is less with Delayed"), Order("much less, or the other way round"));
        found.push(finding(study, figure_12, &less, way, written, delayed));
        found.push(finding(study, section, &what("with blocks, fewer bytes go home"), fewer, written, sent));
        found.push(finding(study, section, &what("blocks make the log smaller by"), shrink, written, logs));
        let soon = what("blocks shorten the time until reintegration");
        found.push(finding(study, section, &soon, Order("they do"), by_policy, sooner));
    }
    found
}

fn conclusions(study: &Study) -> Vec<Finding> {
    let half_an_hour = |trace| {
        let times = study.points(trace, WriteBack::Delayed);
        (counted(times.iter().filter_map(minutes).map(|time| time < 30.0)), None)
    };
    let fewer = |trace| {
        let sent = |policy| mean(study.points(trace, policy).iter().filter_map(sent_of));
        let (delayed, idle) = (sent(WriteBack::Delayed), sent(WriteBack::Idle));
        (format!("{} against {}", shown(delayed, 2, ""), shown(idle, 2, " MiB")), is_less(delayed, idle))
    };
    let replaced = |trace| {
        let misses = |replacement: Replacement| {
            let all = study
                .grid
                .caches_bytes
                .iter()
                .map(|cache| study.at(trace, &study.grid.replaced(replacement, *cache)).misses);
            format!("{} {}", replacement.name(), all.sum::<u64>())
        };
        (format!("misses with all caches: {}", Replacement::ALL.map(misses).join(", ")), None)
    };
    let consistently = Value("LRU most consistently; LFU in some cases");
    vec![
        finding(
            study,
            "section 6",
            "Delayed reintegrates in less than 30 minutes",
            Value("in most cases"),
            why::delayed,
            half_an_hour,
        ),
        finding(
            study,
            "section 6",
            "what is delayed is written back less often than by Idle",
            Value("dramatically"),
            why::overlap,
            fewer,
        ),
        finding(study, "section 4.5", "which replacement avoids most misses", consistently, why::replacement, replaced),
    ]
}
