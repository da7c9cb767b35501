//! What Froese and Bunt say of their figures, beside what is found here.
//!
//! What passes or fails are orderings: the traces that are generated here have what the paper states of its own, and nothing else of them.

use super::study::{CONTOURS, Study, kilobits, mebibytes};
use super::{Outcome, Parameters, Unit, WriteBack};
use crate::figure::Finding;
use policy::replacement::Replacement;

const AGGRESSIVE: [WriteBack; 2] = [WriteBack::Idle, WriteBack::Lottery];
const CONSERVATIVE: [WriteBack; 2] = [WriteBack::Delayed, WriteBack::Preemptive];
const SENDING: [WriteBack; 4] = [WriteBack::Idle, WriteBack::Lottery, WriteBack::Delayed, WriteBack::Preemptive];

/// Why values differ.
const TRACE: &str =
    "the traces are not theirs: what users did with which bytes is made up to match the totals that they state";
/// The same, of parts of time: they say "total (simulation) time".
const MODEL: &str = "the traces are not theirs, and time is all that passes here, as in a week that is simulated in one go: if theirs was the time at work only, what is in brackets is to be compared";

/// What was found in one trace, and whether what must be so is so.
type Found = (String, Option<bool>);

/// Everything that the paper says of figures 2 to 12. The first two traces are taken for its traces 1 and 2 where it compares them.
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

/// One finding of all traces: it holds if it does in each.
fn finding(study: &Study, stated: &str, what: &str, theirs: &str, why: &str, of: impl Fn(usize) -> Found) -> Finding {
    let found: Vec<Found> = (0..study.traces.len()).map(of).collect();
    let named = study.traces.iter().zip(&found).map(|((name, _), (ours, _))| format!("{name}: {ours}"));
    let said: Vec<bool> = found.iter().filter_map(|(_, holds)| *holds).collect();
    let holds = (!said.is_empty()).then(|| said.iter().all(|holds| *holds));
    let ours = named.collect::<Vec<_>>().join("; ");
    told(stated, what, theirs, ours, holds, why)
}

/// One of the first trace beside the second; none if there is only one.
fn compared(
    study: &Study,
    stated: &str,
    what: &str,
    theirs: &str,
    of: impl Fn(usize) -> f64,
    unit: &str,
) -> Vec<Finding> {
    let [(first, _), (second, _), ..] = &study.traces[..] else { return Vec::new() };
    let (one, other) = (of(0), of(1));
    let ours = format!("{first}: {one:.2}{unit}; {second}: {other:.2}{unit}");
    vec![told(stated, what, theirs, ours, Some(one < other), TRACE)]
}

fn told(stated: &str, what: &str, theirs: &str, ours: String, holds: Option<bool>, why: &str) -> Finding {
    let why = if holds == Some(true) { "" } else { why };
    let stated = format!("Froese and Bunt, {stated}");
    Finding { stated, what: what.into(), theirs: theirs.into(), ours, holds, why: why.into() }
}

/// How many of these are so, and whether all are.
fn counted(are: impl IntoIterator<Item = bool>) -> (u64, u64) {
    are.into_iter().fold((0, 0), |(so, all), is| (so + u64::from(is), all + 1))
}

fn all_of(are: impl IntoIterator<Item = bool>) -> Found {
    let (so, all) = counted(are);
    (format!("in {so} of {all} cases"), (all > 0).then_some(so == all))
}

fn mean(of: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = of.into_iter().fold((0.0, 0u32), |(sum, count), one| (sum + one, count + 1));
    if count > 0 { sum / f64::from(count) } else { 0.0 }
}

fn most(of: impl IntoIterator<Item = f64>) -> f64 {
    of.into_iter().fold(f64::NEG_INFINITY, f64::max)
}

fn least(of: impl IntoIterator<Item = f64>) -> f64 {
    of.into_iter().fold(f64::INFINITY, f64::min)
}

fn range(of: &[f64], unit: &str) -> String {
    let of = || of.iter().copied();
    if of().next().is_none() { "nothing".into() } else { format!("{:.0} to {:.0}{unit}", least(of()), most(of())) }
}

fn percent(expansion: f64) -> f64 {
    (expansion - 1.0) * 100.0
}

fn expansion_of(outcome: &Outcome) -> f64 {
    outcome.time_expansion().unwrap_or(1.0)
}

fn interference_of(outcome: &Outcome) -> f64 {
    outcome.interference().unwrap_or(0.0) * 100.0
}

fn minutes(outcome: &Outcome) -> Option<f64> {
    outcome.reintegration_mean_us.map(|mean| mean as f64 / 60e6)
}

impl Study {
    /// What was found by cache and by bandwidth with a policy and whole files (figures 4 to 9).
    fn points(&self, trace: usize, policy: WriteBack) -> Vec<Outcome> {
        let by_cache = self.grid.caches_bytes.iter().map(|cache| self.grid.by_cache(policy, *cache));
        by_cache.chain(self.links_of(policy, Unit::File)).map(|of| self.at(trace, &of)).collect()
    }

    fn links_of(&self, policy: WriteBack, unit: Unit) -> impl Iterator<Item = Parameters> {
        self.grid.slow.iter().map(move |link| self.grid.by_link(policy, unit, *link))
    }

    /// The same by bandwidth.
    fn by_link(&self, trace: usize, policy: WriteBack, unit: Unit) -> Vec<Outcome> {
        self.links_of(policy, unit).map(|of| self.at(trace, &of)).collect()
    }

    /// What files have more than blocks, of a measure, by bandwidth.
    fn gains(&self, trace: usize, policy: WriteBack, measure: impl Fn(&Outcome) -> f64) -> Vec<f64> {
        let [files, blocks] = [Unit::File, Unit::Block].map(|unit| self.by_link(trace, policy, unit));
        files.iter().zip(&blocks).map(|(files, blocks)| measure(files) - measure(blocks)).collect()
    }

    /// Part by which blocks have less than files, in percent, with each policy that sends and each bandwidth.
    fn saved(&self, trace: usize, policies: &[WriteBack], measure: impl Fn(&Outcome) -> f64) -> Vec<f64> {
        let saved = |files: &Outcome, blocks: &Outcome| {
            let (files, blocks) = (measure(files), measure(blocks));
            (files > 0.0).then(|| 100.0 * (1.0 - blocks / files))
        };
        let of_policy = |policy: &WriteBack| {
            let [files, blocks] = [Unit::File, Unit::Block].map(|unit| self.by_link(trace, *policy, unit));
            files.iter().zip(&blocks).filter_map(|(files, blocks)| saved(files, blocks)).collect::<Vec<_>>()
        };
        policies.iter().flat_map(of_policy).collect()
    }
}

fn configuration(study: &Study) -> Vec<Finding> {
    let grid = &study.grid;
    let bare = |trace, cache: u64, link: u64| expansion_of(&study.at(trace, &grid.bare(cache, link)));
    let links: Vec<u64> = grid.links().collect();
    let (first, last) = (grid.caches_bytes[0], grid.caches_bytes[grid.caches_bytes.len() - 1]);
    let faster = |trace| {
        let steps = grid.caches_bytes.iter().flat_map(|cache| links.windows(2).map(move |two| (*cache, two)));
        all_of(steps.map(|(cache, two)| bare(trace, cache, two[1]) <= bare(trace, cache, two[0])))
    };
    let larger = |trace| {
        let step = |two: &[u64]| {
            links.iter().map(|link| bare(trace, two[1], *link) <= bare(trace, two[0], *link)).collect::<Vec<_>>()
        };
        let (so, all) = counted(grid.caches_bytes.windows(2).flat_map(step));
        let holds = links.iter().all(|link| bare(trace, last, *link) <= bare(trace, first, *link));
        let ends = if holds { "less" } else { "not always less" };
        (format!("in {so} of {all} steps, and {ends} with the largest than with the smallest"), Some(holds))
    };
    let smallest = |trace| {
        let by_link: Vec<f64> = links.iter().map(|link| percent(bare(trace, first, *link))).collect();
        (range(&by_link, " % longer"), None)
    };
    let contours = |trace| {
        let needs = |cache: u64, level| study.bandwidth_for(trace, cache, level);
        let line =
            |level: f64| -> Vec<f64> { grid.caches_bytes.iter().filter_map(|cache| needs(*cache, level)).collect() };
        let lines = CONTOURS.map(line);
        let ends =
            lines.iter().filter_map(|line| Some((*line.first()?, *line.last()?))).filter(|(one, last)| one != last);
        all_of(ends.map(|(first, last)| last < first))
    };
    let one = format!("time expansion with {:.0} MiB", mebibytes(first));
    vec![
        finding(study, "figure 2", "more bandwidth expands time less", "it does", TRACE, faster),
        finding(study, "figure 2", "larger caches expand time less", "they do, up to a point", TRACE, larger),
        finding(study, "figure 2", &one, "with 1 MB quite unacceptable at all bandwidths", MODEL, smallest),
        finding(
            study,
            "figure 3",
            "with a larger cache, less bandwidth gives the same time expansion",
            "it does",
            TRACE,
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
        all_of(pairs.flat_map(of_pair).filter_map(|(one, other)| Some(one? < other?)))
    };
    let longer = |trace| {
        let of_policy =
            |policy| times(trace, policy).into_iter().zip(times(trace, WriteBack::Idle)).collect::<Vec<_>>();
        let pairs = CONSERVATIVE.into_iter().flat_map(of_policy);
        let (so, all) = counted(pairs.filter_map(|(other, idle)| Some(other? > 5.0 * idle?)));
        (format!("in {so} of {all} cases"), None)
    };
    vec![
        finding(study, "figures 4 and 5", "Idle reintegrates within", "20 minutes, often much less", TRACE, idle),
        finding(
            study,
            "figures 4 and 5",
            "aggressive policies reintegrate sooner than conservative ones",
            "they do",
            TRACE,
            sooner,
        ),
        finding(
            study,
            "figures 4 and 5",
            "conservative policies take more than five times as long as Idle",
            "often",
            TRACE,
            longer,
        ),
    ]
}

fn log_size(study: &Study) -> Vec<Finding> {
    let logs =
        |trace, policy| study.points(trace, policy).iter().map(|one| one.log_bytes_max as f64).collect::<Vec<_>>();
    let cuts = |trace, policy| {
        let pairs = logs(trace, policy).into_iter().zip(logs(trace, WriteBack::Never));
        pairs.filter(|(_, never)| *never > 0.0).map(|(one, never)| 100.0 * (1.0 - one / never)).collect::<Vec<_>>()
    };
    let smaller = |trace| {
        let all = AGGRESSIVE.map(|policy| cuts(trace, policy)).concat();
        (range(&all, " %"), Some(all.iter().all(|cut| *cut >= 0.0)))
    };
    let largest = |trace| {
        let all = WriteBack::ALL.map(|policy| logs(trace, policy)).concat();
        (format!("{:.2} MiB", most(all) / f64::from(1 << 20)), None)
    };
    let overlap = |trace| {
        let never = study.points(trace, WriteBack::Never)[0];
        100.0 * never.cancelled_bytes as f64 / (never.logged_bytes as f64).max(1.0)
    };
    let mut all = vec![
        finding(
            study,
            "figures 6 and 7",
            "aggressive policies make the log smaller than if nothing goes home, by",
            "25 to 50 %",
            TRACE,
            smaller,
        ),
        finding(study, "section 5.2", "the log is at most", "2 MB", TRACE, largest),
    ];
    let what = "part of what is written that overlaps, nothing going home: more in the second trace";
    all.extend(compared(study, "figures 6 and 7", what, "much more in trace 2", overlap, " %"));
    all
}

fn interference(study: &Study) -> Vec<Finding> {
    let of_policy = |trace, policy| study.points(trace, policy).iter().map(interference_of).collect::<Vec<_>>();
    let largest = |trace| {
        let all = SENDING.map(|policy| of_policy(trace, policy)).concat();
        let at_work = SENDING.map(|policy| study.points(trace, policy)).concat();
        let at_work = most(at_work.iter().map(|one| 100.0 * one.interference_at_work().unwrap_or(0.0)));
        (format!("{:.2} % ({at_work:.2} % of the time at work)", most(all)), None)
    };
    let less = |trace| {
        let of = |policies: [WriteBack; 2]| mean(policies.map(|policy| of_policy(trace, policy)).concat());
        let (conservative, aggressive) = (of(CONSERVATIVE), of(AGGRESSIVE));
        (format!("{conservative:.3} against {aggressive:.3} % of time"), Some(conservative < aggressive))
    };
    let all = |trace| mean(SENDING.map(|policy| of_policy(trace, policy)).concat());
    let mut found = vec![
        finding(study, "figures 8 and 9", "write interference of all policies, at most", "2 % of time", MODEL, largest),
        finding(
            study,
            "figures 8 and 9",
            "conservative policies interfere less than aggressive ones",
            "often considerably",
            TRACE,
            less,
        ),
    ];
    let what = "mean write interference: more in the second trace, where more is written";
    found.extend(compared(study, "figures 8 and 9", what, "more in trace 2", all, " %"));
    found
}

fn expansion(study: &Study) -> Vec<Finding> {
    let grid = &study.grid;
    let link = grid.slow.iter().copied().find(|link| *link >= 14_400).unwrap_or(grid.slow[0]);
    let of = |trace, policy, link| expansion_of(&study.at(trace, &grid.by_link(policy, Unit::File, link)));
    let largest = |trace| {
        let worst = most(SENDING.map(|policy| of(trace, policy, link)));
        let at_work = SENDING.map(|policy| study.at(trace, &grid.by_link(policy, Unit::File, link)));
        let at_work = most(at_work.iter().map(|one| one.time_expansion_at_work().unwrap_or(1.0)));
        (format!("{:.1} % ({:.1} % of the time at work)", percent(worst), percent(at_work)), None)
    };
    let spread = |trace| {
        100.0
            * mean(grid.slow.iter().map(|link| {
                let all = SENDING.map(|policy| of(trace, policy, *link));
                most(all) - least(all)
            }))
    };
    let more = |trace| {
        let of = |policies: [WriteBack; 2]| {
            percent(mean(study.grid.slow.iter().flat_map(|link| policies.map(|policy| of(trace, policy, *link)))))
        };
        let (aggressive, conservative) = (of(AGGRESSIVE), of(CONSERVATIVE));
        (format!("{aggressive:.2} against {conservative:.2} %"), Some(aggressive >= conservative))
    };
    let what = format!(
        "time expansion of all policies at {} kb/s with {:.0} MiB, at most",
        kilobits(link),
        mebibytes(grid.base.cache_bytes)
    );
    let mut found = vec![
        finding(study, "figure 10", &what, "8 %", MODEL, largest),
        finding(
            study,
            "figure 10",
            "aggressive policies expand time slightly more than conservative ones",
            "where much is written",
            TRACE,
            more,
        ),
    ];
    let what = "time expansion differs among policies: little where little is written";
    found.extend(compared(study, "figure 10", what, "less in trace 1", spread, " percentage points"));
    found
}

fn blocks(study: &Study) -> Vec<Finding> {
    let less = |trace| {
        all_of(
            WriteBack::ALL
                .into_iter()
                .flat_map(|policy| study.gains(trace, policy, expansion_of))
                .map(|gain| gain > 0.0),
        )
    };
    let beats = |trace| {
        let gain = 100.0 * mean(SENDING.map(|policy| study.gains(trace, policy, expansion_of)).concat());
        let by_policy = SENDING.map(|policy| study.by_link(trace, policy, Unit::File));
        let spread = |at: usize| {
            let all = by_policy.each_ref().map(|outcomes| expansion_of(&outcomes[at]));
            most(all) - least(all)
        };
        let spread = 100.0 * mean((0..study.grid.slow.len()).map(spread));
        (format!("{gain:.2} against {spread:.2} percentage points"), Some(gain > spread))
    };
    let shrinks = |trace| {
        let of = |at: usize| 100.0 * mean(SENDING.map(|policy| study.gains(trace, policy, expansion_of)[at]));
        let (slowest, fastest) = (of(0), of(study.grid.slow.len() - 1));
        (format!("from {slowest:.2} to {fastest:.2} percentage points"), Some(fastest < slowest))
    };
    let interferes = |trace, policy| study.gains(trace, policy, interference_of);
    let idle = |trace| {
        let gains = interferes(trace, WriteBack::Idle);
        let slowest = gains[0];
        (format!("{slowest:.3} percentage points less at the lowest bandwidth"), Some(slowest > 0.0))
    };
    let delayed = |trace| {
        let [idle, delayed] = [WriteBack::Idle, WriteBack::Delayed].map(|policy| mean(interferes(trace, policy)));
        (format!("{delayed:.3} against {idle:.3} percentage points"), Some(delayed.abs() < idle.abs()))
    };
    let sent = |trace| {
        let saved = study.saved(trace, &SENDING, |outcome| outcome.sent_bytes as f64);
        (range(&saved, " % fewer"), Some(mean(saved) > 0.0))
    };
    let logs = |trace| {
        let saved = study.saved(trace, &WriteBack::ALL, |outcome| outcome.log_bytes_max as f64);
        (
            format!("{:.0} % on the average, {}", mean(saved.iter().copied()), range(&saved, " %")),
            Some(mean(saved) > 0.0),
        )
    };
    let sooner = |trace| {
        let saved = study.saved(trace, &SENDING, |outcome| minutes(outcome).unwrap_or(0.0));
        (format!("{:.0} % less on the average", mean(saved.iter().copied())), Some(mean(saved) > 0.0))
    };
    vec![
        finding(study, "figure 11", "blocks expand time less than files, whatever the policy", "they do", TRACE, less),
        finding(
            study,
            "figure 11",
            "blocks instead of files make more of a difference than the policy",
            "they do",
            TRACE,
            beats,
        ),
        finding(study, "figure 11", "that difference becomes less as bandwidth increases", "it does", TRACE, shrinks),
        finding(
            study,
            "figure 12",
            "with Idle, blocks interfere less than files",
            "much less at low bandwidths",
            TRACE,
            idle,
        ),
        finding(
            study,
            "figure 12",
            "that difference is less with Delayed",
            "much less, or the other way round",
            TRACE,
            delayed,
        ),
        finding(
            study,
            "section 5.3",
            "with blocks, fewer bytes go home",
            "more than 50 % fewer in many cases",
            TRACE,
            sent,
        ),
        finding(study, "section 5.3", "blocks make the log smaller by", "35 to 60 % on the average", TRACE, logs),
        finding(study, "section 5.3", "blocks shorten the time until reintegration", "they do", TRACE, sooner),
    ]
}

fn conclusions(study: &Study) -> Vec<Finding> {
    let half_an_hour = |trace| {
        let times = study.points(trace, WriteBack::Delayed).iter().filter_map(minutes).collect::<Vec<_>>();
        let (so, all) = counted(times.iter().map(|time| *time < 30.0));
        (format!("in {so} of {all} cases"), None)
    };
    let fewer = |trace| {
        let sent = |policy| {
            mean(study.points(trace, policy).iter().map(|outcome| outcome.sent_bytes as f64)) / f64::from(1 << 20)
        };
        let (delayed, idle) = (sent(WriteBack::Delayed), sent(WriteBack::Idle));
        (format!("{delayed:.2} against {idle:.2} MiB"), Some(delayed < idle))
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
    vec![
        finding(
            study,
            "section 6",
            "Delayed reintegrates in less than 30 minutes",
            "in most cases",
            TRACE,
            half_an_hour,
        ),
        finding(
            study,
            "section 6",
            "what is delayed is written back less often than by Idle",
            "dramatically",
            TRACE,
            fewer,
        ),
        finding(
            study,
            "section 4.5",
            "which replacement avoids most misses",
            "LRU most consistently; LFU in some cases",
            TRACE,
            replaced,
        ),
    ]
}
