//! The report: markdown tables, and the sections of a document that are made by this program.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::figures::{Judged, Verdict};
use crate::results::{Conditions, Missing, Samples, advantage};
use crate::scenario::Metric;
use crate::target::TargetKind;

/// All results of a run of the benchmark; as JSON, this is the file that `--json` writes.
#[derive(Debug, Serialize)]
pub struct Report {
    /// What was run, and where.
    pub conditions: Conditions,
    /// Every sample.
    pub samples: Samples,
    /// The verdicts.
    pub figures: Vec<Judged>,
    /// Targets and scenarios that could not be measured.
    pub missing: Vec<Missing>,
}

/// The first line of reports of quick sizes.
pub const QUICK: &str = "**Quick sizes: these numbers only show that everything runs.** ";

/// What else Starling was given, if anything.
pub fn given(starling_args: &str) -> String {
    if starling_args.is_empty() { String::new() } else { format!(", `{starling_args}`") }
}

/// Spreads above this fraction are shown; below it, a difference of this size between two targets
/// is real.
const SPREAD_SHOWN: f64 = 0.2;

impl Report {
    /// The report as markdown.
    pub fn markdown(&self) -> String {
        let mut out = self.preamble();
        out.push('\n');
        self.metrics_table(&mut out);
        out.push('\n');
        self.figures_table(&mut out);
        if !self.missing.is_empty() {
            out.push_str("\nNot measured:\n\n");
            for missing in &self.missing {
                let scenario = missing.scenario.map(|name| format!(", {name}")).unwrap_or_default();
                line(&mut out, &format!("- {}{scenario}: {}", missing.target.title(), one_line(&missing.reason)));
            }
        }
        out
    }

    fn preamble(&self) -> String {
        let Conditions { unix_time_s, machine, sizes, quick, runs, cache_mib, starling_args } = &self.conditions;
        let mut out = String::new();
        if *quick {
            line(&mut out, &format!("{}\n", QUICK.trim_end()));
        }
        line(
            &mut out,
            &format!(
                "Measured on {}: {machine}. {}. \
                 Sizes: {} small files, a tree of {} files, PostMark {}/{}, {} MiB in order, {} fsyncs, a directory of {} \
                 entries ({} on peers). Starling's cache limit: {} MiB{}.",
                date(*unix_time_s),
                match runs {
                    1 => "One run".to_owned(),
                    _ => format!("Medians of {runs} runs (the directory: one run; memory: the largest)"),
                },
                sizes.files,
                sizes.tree_files,
                sizes.postmark_files,
                sizes.postmark_transactions,
                sizes.stream_mib,
                sizes.fsync_samples,
                sizes.directory_entries,
                sizes.directory_entries_peers,
                cache_mib,
                given(starling_args),
            ),
        );
        out
    }

    fn metrics_table(&self, out: &mut String) {
        let targets = self.samples.targets();
        let mut header = vec!["".to_owned()];
        header.extend(targets.iter().map(|target| target.title().to_owned()));
        let ours: Vec<_> = TargetKind::JUDGED.into_iter().filter(|kind| targets.contains(kind)).collect();
        for kind in &ours {
            header.push(format!("{} : best redundant peer", kind.title()));
            header.push(format!("{} : do-nothing", kind.title()));
        }
        table_header(out, &header);
        for metric in self.samples.metrics() {
            let mut row = vec![metric.title().to_owned()];
            row.extend(targets.iter().map(|&target| self.cell(metric, target)));
            for &kind in &ours {
                row.push(self.ratio(metric, kind, &TargetKind::REDUNDANT_PEERS));
                row.push(self.ratio(metric, kind, &TargetKind::DO_NOTHING));
            }
            table_row(out, &row);
        }
        out.push_str("\nRatios above 1 mean that Starling is better, for times and costs too.\n");
    }

    fn cell(&self, metric: Metric, target: TargetKind) -> String {
        let Some(value) = self.samples.value(metric, target) else { return "–".to_owned() };
        let mut text = number(value);
        if self.samples.spread(metric, target) > SPREAD_SHOWN {
            let samples = self.samples.of(metric, target);
            let (min, max) = samples.iter().fold((f64::INFINITY, 0.0f64), |(a, b), &x| (a.min(x), b.max(x)));
            let _ = write!(text, " ({}..{})", number(min), number(max));
        }
        text
    }

    fn ratio(&self, metric: Metric, kind: TargetKind, others: &[TargetKind]) -> String {
        let ours = self.samples.value(metric, kind);
        match (ours, self.samples.best(metric, others)) {
            (Some(ours), Some((_, theirs))) => format!("{:.2}", advantage(metric, ours, theirs)),
            _ => "–".to_owned(),
        }
    }

    fn figures_table(&self, out: &mut String) {
        table_header(out, &["Figure", "of", "to reach", "measured", ""].map(str::to_owned));
        let measured = self.samples.targets();
        // A way to run Starling that was not asked for has no targets.
        for figure in self.figures.iter().filter(|f| f.target == TargetKind::Starling || measured.contains(&f.target)) {
            let verdict = match figure.verdict {
                Verdict::Pass => "pass",
                Verdict::Fail => "**fail**",
                Verdict::NotMeasured => "–",
            };
            table_row(
                out,
                &[
                    figure.metric.title().to_owned(),
                    figure.target.title().to_owned(),
                    figure.wanted.clone(),
                    figure.measured_text.clone(),
                    verdict.to_owned(),
                ],
            );
        }
    }
}

/// Appends a table's header.
pub fn table_header(out: &mut String, cells: &[String]) {
    table_row(out, cells);
    line(out, &format!("|{}", " --- |".repeat(cells.len())));
}

/// Appends a table's row.
pub fn table_row(out: &mut String, cells: &[String]) {
    line(out, &format!("| {} |", cells.join(" | ")));
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

/// Text for a table or a list: on one line, and not too long.
pub fn one_line(text: &str) -> String {
    let mut shown: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect();
    shown = shown.replace('|', "\\|");
    shown
}

/// A number with three significant digits, in groups of thousands.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    if value < 1000.0 {
        let digits = match value {
            value if value >= 100.0 => 0,
            value if value >= 10.0 => 1,
            value if value >= 1.0 => 2,
            _ => 3,
        };
        return format!("{value:.digits$}");
    }
    count(value.round() as u64)
}

/// A whole number in groups of thousands.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The day in the Gregorian calendar (Hinnant's `civil_from_days`).
pub fn date(unix_time_s: u64) -> String {
    let days = (unix_time_s / 86_400) as i64 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Replaces the text between `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
pub fn replace_section(document: &str, name: &str, body: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- {name}:begin -->"), format!("<!-- {name}:end -->"));
    let Some((before, rest)) = document.split_once(&begin) else { bail!("no line {begin} in the document") };
    let Some((_, after)) = rest.split_once(&end) else { bail!("no line {end} after {begin} in the document") };
    Ok(format!("{before}{begin}\n{}\n{end}{after}", body.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Machine;
    use crate::scenario::Sizes;

    #[test]
    fn numbers_have_three_digits_and_thousands_apart() {
        assert_eq!(number(0.1234), "0.123");
        assert_eq!(number(12.34), "12.3");
        assert_eq!(number(999.4), "999");
        assert_eq!(number(53_476.2), "53,476");
        assert_eq!(number(1_234_567.0), "1,234,567");
        assert_eq!(number(f64::NAN), "–");
        assert_eq!([0, 20, 999, 1_000, 1_234_567].map(count), ["0", "20", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn dates_are_right_around_leap_days() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(951_782_400), "2000-02-29");
        assert_eq!(date(1_709_251_200), "2024-03-01");
        assert_eq!(date(1_767_225_599), "2025-12-31");
    }

    #[test]
    fn section_is_replaced_and_the_rest_kept() {
        let document = "a\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nb\n";
        let once = replace_section(document, "bench", "new\n").unwrap();
        assert_eq!(once, "a\n<!-- bench:begin -->\nnew\n<!-- bench:end -->\nb\n");
        assert_eq!(replace_section(&once, "bench", "new").unwrap(), once);
        assert!(replace_section(document, "other", "x").is_err());
        assert!(replace_section("<!-- bench:end --> <!-- bench:begin -->", "bench", "x").is_err());
    }

    #[test]
    fn report_names_ratios_verdicts_and_what_is_missing() {
        let mut samples = Samples::default();
        for (target, value) in [
            (TargetKind::Starling, 12_000.0),
            (TargetKind::StarlingTcp, 8_000.0),
            (TargetKind::StarlingTls, 7_000.0),
            (TargetKind::Moosefs, 1500.0),
        ] {
            samples.add(Metric::Create, target, value);
        }
        samples.add(Metric::Create, TargetKind::Moosefs, 2500.0);
        let figures = crate::figures::judge(&samples, 512);
        let machine = Machine {
            processor: "P".to_owned(),
            processor_count: 2,
            memory_mib: 100,
            kernel: "6".to_owned(),
            file_system: "ext4".to_owned(),
        };
        let conditions = Conditions {
            unix_time_s: 0,
            machine,
            sizes: Sizes::QUICK,
            quick: true,
            runs: 2,
            cache_mib: 512,
            starling_args: "--parity 2".to_owned(),
        };
        let missing =
            vec![Missing { target: TargetKind::Sshfs, scenario: None, reason: "not installed:\nsshfs".to_owned() }];
        let text = Report { conditions, samples, figures, missing }.markdown();
        assert!(text.contains("**Quick sizes"), "{text}");
        assert!(text.contains("cache limit: 512 MiB, `--parity 2`."), "{text}");
        assert!(text.contains("| 12,000 | 8,000 | 7,000 | 2,000 (1,500..2,500) | 6.00 | – | 4.00 | – |"), "{text}");
        assert!(text.contains("| Starling | ≥ 6x the best redundant peer | 6.00x (MooseFS goal 2) | pass |"), "{text}");
        let over_tcp = "| Starling over TCP | ≥ 6x the best redundant peer | 4.00x (MooseFS goal 2) | **fail** |";
        assert!(text.contains(over_tcp), "{text}");
        assert!(text.contains("- sshfs: not installed: sshfs"), "{text}");
    }
}
