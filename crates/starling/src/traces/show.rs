//! `starling trace show`: summarises a trace.

use super::Source;
use crate::size::show;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use trace::format::Origin;
use trace::summary::{Bucket, Facts, Summary};

/// Runs `starling trace show`.
pub fn run(path: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let source = Source::open(path, as_json)?;
    let (about, mut summary) = (source.about(), Summary::default());
    let Origin { begun_us, lost_count, is_cut_short } = source.origin();
    let begun = begun_us.map(utc);
    for record in source {
        summary.add(&record?);
    }
    let facts = summary.facts();
    if as_json {
        let mut shown =
            json!({ "about": about, "begun": begun, "lost_records": lost_count, "is_cut_short": is_cut_short });
        if let (Some(shown), Value::Object(facts)) = (shown.as_object_mut(), serde_json::to_value(&facts)?) {
            shown.extend(facts);
        }
        println!("{}", serde_json::to_string_pretty(&shown)?);
    } else {
        println!("{about}");
        begun.into_iter().for_each(|begun| println!("{:<12} {begun}", "begun"));
        lines(&facts).into_iter().for_each(|(what, said)| println!("{what:<12} {said}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn lines(of: &Facts) -> Vec<(&'static str, String)> {
    let percent = |part: f64, all: f64| if all > 0.0 { format!("{:.1} %", 100.0 * part / all) } else { "none".into() };
    let requests = of.reads + of.writes;
    let mut lines = vec![
        ("time", format!("{:.1} s, of which {:.2} h active", of.seconds, of.active_hours)),
        (
            "clients",
            format!(
                "{}, each active for {:.2} h; the busiest tenth does {} of the requests",
                of.clients,
                of.client_active_hours,
                percent(of.busiest_tenth, 1.0)
            ),
        ),
        ("reads", format!("{} of {}{}", of.reads, show(of.read_bytes), middle(&of.read_sizes))),
        ("writes", format!("{} of {}{}", of.writes, show(of.written_bytes), middle(&of.write_sizes))),
        ("mix", format!("{} of the reads and writes are writes", percent(of.writes as f64, requests as f64))),
        ("removals", of.deletes.to_string()),
        ("by hour", by_hour(&of.by_hour)),
        ("files", format!("{} of {}", of.files, show(of.bytes))),
        (
            "sharing",
            format!(
                "{} files used by more than one client, {} read, {} written",
                of.shared_files, of.files_of_many_readers, of.files_of_many_writers
            ),
        ),
    ];
    let ended: u64 = of.lifetimes_s.iter().map(|bucket| bucket.count).fold(0, u64::saturating_add);
    let written = ended.saturating_add(of.lasting_bytes);
    lines.push((
        "overwritten",
        format!(
            "{} or removed, {} of what was written; {} of that by the client that wrote it",
            show(ended),
            percent(ended as f64, written as f64),
            percent(of.ended_by_writer_bytes as f64, ended as f64)
        ),
    ));
    let mut so_far = 0u64;
    for Bucket { up_to, count } in of.lifetimes_s.iter().filter(|bucket| bucket.count > 0) {
        so_far = so_far.saturating_add(*count);
        let within = if *up_to == u64::MAX { "later".into() } else { format!("within {}", time(*up_to)) };
        lines.push(("", format!("{within:<14} {:>8}", percent(so_far as f64, ended as f64))));
    }
    if of.sampled < 1.0 {
        let part = percent(of.sampled, 1.0);
        lines.push(("note", format!("files, sharing and overwriting are scaled up from {part} of the files")));
    }
    lines
}

/// The smallest bound that at least half of the requests stay within, in words.
fn middle(sizes: &[Bucket]) -> String {
    let all: u64 = sizes.iter().map(|bucket| bucket.count).sum();
    let mut so_far = 0;
    let half = sizes.iter().find(|bucket| {
        so_far += bucket.count;
        so_far * 2 >= all
    });
    half.map_or(String::new(), |bucket| format!(", half of them of at most {}", show(bucket.up_to)))
}

/// A bar chart of requests by hour.
fn by_hour(hours: &[u64; 24]) -> String {
    let most = hours.iter().max().copied().unwrap_or_default().max(1);
    let bars = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bar = |count: &u64| bars[(*count as f64 / most as f64 * 8.0).ceil() as usize];
    format!("|{}|, the first is the trace's first; at most {most} requests", hours.iter().map(bar).collect::<String>())
}

/// A time in microseconds since 1970 as RFC 3339, to the second.
fn utc(us: u64) -> String {
    let seconds = us / 1_000_000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Years from March, in periods of 400 years, which are all alike (Hinnant, "chrono-compatible
    // low-level date algorithms").
    let from_march = days + 719_468;
    let (period, day) = (from_march / 146_097, from_march % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + period * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

fn time(seconds: u64) -> String {
    match seconds {
        s if s < 60 => format!("{s} s"),
        s if s < 3600 => format!("{} min", s / 60),
        s if s < 86_400 => format!("{} h", s / 3600),
        s => format!("{} days", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_utc() {
        for (seconds, shown) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds * 1_000_000 + 999_999), shown);
        }
        assert!(utc(u64::MAX).starts_with("586524-"));
    }
}
