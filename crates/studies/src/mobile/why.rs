//! Why our results differ from those of Froese and Bunt, in numbers of our traces; each from one
//! trace, where it was measured.
//!
//! Their traces are known only by table 2: a week with 12.9 and 7.0 hours at work, 383 and 1000
//! files of 17 and 18 MB, 4 and 35 MB written. Which files are used again, how large the written
//! ones are, and where the pauses are, is made up here.

use super::study::{Study, kilobits, mebibytes};
use super::{Outcome, Rules, Unit, WriteBack};

fn hours(us: u64) -> f64 {
    us as f64 / 3.6e9
}

fn kibibytes(bytes: u64, count: u64) -> f64 {
    bytes as f64 / count.max(1) as f64 / 1024.0
}

fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

fn minutes(outcome: &Outcome) -> String {
    outcome.reintegration_mean_us.map_or("never".into(), |us| format!("after {:.1} minutes", us as f64 / 60e6))
}

impl Study {
    /// The result with this policy and whole files, at the base's cache and bandwidth, or the
    /// modem's if that is not varied: 10 MB and 28.8 kb/s in the paper.
    fn base(&self, trace: usize, write_back: WriteBack) -> Outcome {
        self.at(trace, &self.grid.by_link(write_back, Unit::File, self.base_link()))
    }

    fn base_link(&self) -> u64 {
        let link = self.grid.base.link.bits_per_second;
        if self.grid.slow.contains(&link) { link } else { self.modem() }
    }

    /// The result with this unit, at the lowest bandwidth.
    fn slowest(&self, trace: usize, write_back: WriteBack, unit: Unit) -> Outcome {
        self.at(trace, &self.grid.by_link(write_back, unit, self.grid.slow[0]))
    }
}

/// How much is waited for, and over what time.
fn waited(of: &Outcome) -> String {
    format!(
        "{:.1} % of {} reads wait, for {:.1} MiB, in {:.1} h at work and {:.0} h in all",
        percent(of.misses, of.reads),
        of.reads,
        mebibytes(of.fetched_bytes),
        hours(of.active_us),
        hours(of.span_us)
    )
}

/// The misses.
pub(super) fn misses(study: &Study, trace: usize) -> String {
    waited(&study.base(trace, WriteBack::Never))
}

/// Files that do not fit into a small cache cost less with it.
pub(super) fn large_files(study: &Study, trace: usize) -> String {
    let smallest = study.grid.bare(study.grid.caches_bytes[0], study.grid.slow[0]);
    let large = study.works[trace].larger_than(smallest.cache_bytes);
    format!("{large} files do not fit into the smallest cache: of them only what is read is fetched, and not the whole")
}

/// The misses of the smallest cache.
pub(super) fn smallest_cache(study: &Study, trace: usize) -> String {
    let of = study.at(trace, &study.grid.bare(study.grid.caches_bytes[0], study.grid.slow[0]));
    format!("{}; {}", used(study, trace), waited(&of))
}

fn used(study: &Study, trace: usize) -> String {
    let work = &study.works[trace];
    format!("{} files of {:.1} MiB are used (theirs: 17 and 18 MB)", work.sizes.len(), mebibytes(work.used_bytes()))
}

/// The causes of the time expansion at the modem's bandwidth.
pub(super) fn expansion(study: &Study, trace: usize) -> String {
    let link = study.modem();
    let of = study.at(trace, &study.grid.by_link(WriteBack::Idle, Unit::File, link));
    format!(
        "with Idle {} (theirs: 12.9 and 7.0 h at work), which takes {:.1} h at {} kb/s; {:.1} MiB are of files that were not used in the office",
        waited(&of),
        hours(of.stall_us),
        kilobits(link),
        mebibytes(study.works[trace].first_away_bytes)
    )
}

/// How long one transfer takes.
pub(super) fn idle(study: &Study, trace: usize) -> String {
    let of = study.base(trace, WriteBack::Idle);
    let bytes = of.sent_bytes as f64 / of.sent_count.max(1) as f64;
    let bits_per_second = study.base_link();
    format!(
        "{} files go home of {:.1} KiB on the average, each in {:.1} s at {} kb/s, and the last after {:.0} minutes: what is written in one go waits for all before it",
        of.sent_count,
        kibibytes(of.sent_bytes, of.sent_count),
        bytes * 8.0 / bits_per_second as f64,
        kilobits(bits_per_second),
        of.reintegration_max_us as f64 / 60e6
    )
}

/// How long changes wait with each policy.
pub(super) fn home_after(study: &Study, trace: usize) -> String {
    let all = [WriteBack::Idle, WriteBack::Lottery, WriteBack::Delayed, WriteBack::Preemptive];
    let each = all.map(|policy| format!("{} {}", policy.name(), minutes(&study.base(trace, policy))));
    let age_minutes = study.grid.base.tuning.age_us as f64 / 60e6;
    let preemptive = preemptive(study);
    format!("home with {}; {age_minutes:.0} minutes is what old means{preemptive}", each.join(", "))
}

/// A remark if one policy is not the paper's.
fn preemptive(study: &Study) -> &'static str {
    match study.grid.base.rules {
        Rules::Paper => "",
        Rules::Product => "; the product's Preemptive hinders only what is fetched ahead, and is as its Lottery here",
    }
}

/// How long a change that is old enough still waits.
pub(super) fn delayed(study: &Study, trace: usize) -> String {
    let of = study.base(trace, WriteBack::Delayed);
    format!(
        "home {}, of which {:.0} are what it must have waited, and the last after {:.0}; {:.1} % of what is logged waits at the end",
        minutes(&of),
        study.grid.base.tuning.age_us as f64 / 60e6,
        of.reintegration_max_us as f64 / 60e6,
        percent(of.left_bytes, of.logged_bytes)
    )
}

/// The size of the log at once, and in all.
pub(super) fn log(study: &Study, trace: usize) -> String {
    let [never, idle] = [WriteBack::Never, WriteBack::Idle].map(|policy| study.base(trace, policy));
    format!(
        "of {:.1} MiB logged {:.0} % are written again or removed; with Idle, at most {:.2} MiB are written faster than they go home, and {:.2} MiB are left if nothing does",
        mebibytes(never.logged_bytes),
        percent(never.cancelled_bytes, never.logged_bytes),
        mebibytes(idle.log_bytes_max),
        mebibytes(never.log_bytes_max)
    )
}

/// What is logged of a write.
pub(super) fn log_units(study: &Study, trace: usize) -> String {
    let [files, blocks] = [Unit::File, Unit::Block].map(|unit| study.slowest(trace, WriteBack::Never, unit));
    format!(
        "{:.1} MiB are written away, and logged as files of {:.1} MiB; logged as blocks, at most {:.2} MiB wait",
        mebibytes(study.works[trace].written_bytes),
        mebibytes(files.logged_bytes),
        mebibytes(blocks.log_bytes_max)
    )
}

/// How much of the log is written again before it goes.
pub(super) fn overlap(study: &Study, trace: usize) -> String {
    let [idle, delayed] = [WriteBack::Idle, WriteBack::Delayed].map(|policy| study.base(trace, policy));
    format!(
        "{:.0} % of what is logged is written again within the time that it must have waited, {:.0} % before Idle sends it",
        percent(delayed.cancelled_bytes, delayed.logged_bytes),
        percent(idle.cancelled_bytes, idle.logged_bytes)
    )
}

/// How often the user waits for what goes home, and how much that is.
pub(super) fn interference(study: &Study, trace: usize) -> String {
    let [idle, delayed] = [WriteBack::Idle, WriteBack::Delayed].map(|policy| study.slowest(trace, policy, Unit::File));
    let per_miss = |of: &Outcome| of.interference_us as f64 / of.misses.max(1) as f64 / 1e6;
    format!(
        "at {} kb/s {:.1} MiB go home with Idle and {:.1} with Delayed, for which each of {} reads that wait does so {:.2} and {:.2} s longer, in {:.1} h at work and {:.0} h in all{}",
        kilobits(study.grid.slow[0]),
        mebibytes(idle.sent_bytes),
        mebibytes(delayed.sent_bytes),
        idle.misses,
        per_miss(&idle),
        per_miss(&delayed),
        hours(idle.active_us),
        hours(idle.span_us),
        preemptive(study)
    )
}

/// What is fetched with files and with blocks.
pub(super) fn units_read(study: &Study, trace: usize) -> String {
    let [files, blocks] = [Unit::File, Unit::Block].map(|unit| study.slowest(trace, WriteBack::Idle, unit));
    format!(
        "{} reads wait for files, of {:.1} MiB, and {} for blocks, of {:.1} MiB",
        files.misses,
        mebibytes(files.fetched_bytes),
        blocks.misses,
        mebibytes(blocks.fetched_bytes)
    )
}

/// What is logged for a write with files and with blocks.
pub(super) fn units_written(study: &Study, trace: usize) -> String {
    let [files, blocks] = [Unit::File, Unit::Block].map(|unit| study.slowest(trace, WriteBack::Idle, unit));
    format!(
        "a write has {:.1} KiB on the average, for which {:.1} KiB are logged as a file and {:.1} as blocks",
        kibibytes(study.works[trace].written_bytes, files.writes),
        kibibytes(files.logged_bytes, files.writes),
        kibibytes(blocks.logged_bytes, blocks.writes)
    )
}

/// What there is to replace.
pub(super) fn replacement(study: &Study, trace: usize) -> String {
    let caches = &study.grid.caches_bytes;
    let (least, most) = (mebibytes(caches[0]), mebibytes(caches[caches.len() - 1]));
    format!("{}, with caches of {least:.0} to {most:.0} MiB", used(study, trace))
}
