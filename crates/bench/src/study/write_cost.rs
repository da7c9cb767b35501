//! The cost of overwriting again and again in a nearly full file system, and its behaviour when it
//! is full.

use anyhow::{Context, Result};
use serde::Serialize;

use super::serving::Serving;
use crate::report::{number, table_header, table_row};
use crate::run::{arguments, work};
use crate::scripted::Site;
use crate::work::BLOCK_BYTES;

/// Rounds of overwriting; each writes as much as the file has. The last one counts as the steady
/// state.
const ROUNDS: u64 = 3;
/// Share of the removed bytes that must be free again, in percent: the rest may be indices and
/// half-empty segments.
const ROOM_PERCENT: u64 = 90;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// The sizes of the study.
struct Size {
    store: &'static str,
    fills_percent: &'static [u64],
    /// Longest time of one round of overwriting.
    seconds_max: u64,
}

const FULL: Size = Size { store: "256MiB", fills_percent: &[50, 80, 90, 95], seconds_max: 10 };
const QUICK: Size = Size { store: "128MiB", fills_percent: &[50, 90], seconds_max: 2 };

/// The results of the study.
#[derive(Debug, Serialize)]
pub struct WriteCost {
    store_size: &'static str,
    rows: Vec<Row>,
}

/// One fill and one pattern; results after a failure are absent.
#[derive(Debug, Default, Serialize)]
struct Row {
    fill_percent: u64,
    hot: bool,
    total_bytes: u64,
    file_bytes: u64,
    rounds: Vec<Round>,
    /// Bytes written to a new file until there was no space.
    rest_bytes: Option<u64>,
    /// True if everything read back after mounting again.
    read_back: bool,
    /// Time from removing the new file until most of its bytes could be written and synced again.
    room_seconds: Option<f64>,
    failure: Option<String>,
}

/// A round of overwriting.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Round {
    written_bytes: u64,
    /// Bytes that the cleaner moved meanwhile.
    moved_bytes: u64,
    seconds: f64,
}

impl Round {
    fn plus(self, other: &Round) -> Round {
        Round {
            written_bytes: self.written_bytes + other.written_bytes,
            moved_bytes: self.moved_bytes + other.moved_bytes,
            seconds: self.seconds + other.seconds,
        }
    }

    /// Bytes written per byte of the user.
    fn write_cost(&self) -> f64 {
        (self.written_bytes + self.moved_bytes) as f64 / self.written_bytes as f64
    }

    /// The same including the cleaner's reads (Rosenblum and Ousterhout's write cost). It reads
    /// only live blocks, and the segments' indices.
    fn write_cost_with_reads(&self) -> f64 {
        (self.written_bytes + 2 * self.moved_bytes) as f64 / self.written_bytes as f64
    }

    fn mb_per_s(&self) -> f64 {
        self.written_bytes as f64 / 1e6 / self.seconds
    }
}

impl WriteCost {
    /// Runs the study.
    pub fn measure(site: &Site, quick: bool) -> Result<WriteCost> {
        let size = if quick { QUICK } else { FULL };
        let mut rows = Vec::new();
        for hot in [false, true] {
            for &fill_percent in size.fills_percent {
                let mut row = Row { fill_percent, hot, ..Row::default() };
                if let Err(error) = row.measure(site, &size) {
                    crate::command::check_interrupt()?;
                    row.failure = Some(format!("{error:#}"));
                }
                eprintln!("write-cost: {row:?}");
                rows.push(row);
            }
        }
        Ok(WriteCost { store_size: size.store, rows })
    }

    /// The failures.
    pub fn failures(&self) -> Vec<String> {
        let named = |row: &Row| Some(format!("{} %, {}: {}", row.fill_percent, row.pattern(), row.failure.as_ref()?));
        self.rows.iter().filter_map(named).collect()
    }

    /// The table.
    pub fn markdown(&self) -> String {
        let mut out = format!(
            "Five stores of {}, 4+1. Each row is a file system of its own; the file is overwritten {ROUNDS} times over, or less where \
             time ran out.\n\n",
            self.store_size
        );
        table_header(
            &mut out,
            &[
                "file, of `df`'s size",
                "overwrites",
                "MiB written",
                "MB/s",
                "write cost",
                "with reads",
                "write cost, last third",
                "ENOSPC from write after, MiB",
                "all read back",
                "room again after, s",
            ]
            .map(str::to_owned),
        );
        self.rows.iter().for_each(|row| table_row(&mut out, &row.cells()));
        out
    }
}

impl Row {
    fn measure(&mut self, site: &Site, size: &Size) -> Result<()> {
        let mut serving = Serving::new(site, "write-cost", &["--store-size", size.store])?;
        serving.up()?;
        let space = work(&arguments("space", &serving.path(""), &[]))?;
        self.total_bytes = *space.get("total_bytes").context("total_bytes")? as u64;
        let (file, rest, after) = (serving.path("file"), serving.path("rest"), serving.path("after"));
        let blocks = self.total_bytes * self.fill_percent / 100 / BLOCK;
        self.file_bytes = blocks * BLOCK;
        work(&arguments("fill", &file, &[("blocks", blocks)])).context("fill")?;

        let mut writes = 0;
        for _ in 0..ROUNDS {
            let options = [("blocks", blocks), ("from", writes), ("writes", blocks), ("seconds", size.seconds_max)];
            let moved_before = serving.status("/cleaner/moved_bytes")?;
            let done = work(&self.with_pattern(arguments("overwrite", &file, &options))).context("overwrite")?;
            let written = *done.get("writes").context("writes")? as u64;
            writes += written;
            self.rounds.push(Round {
                written_bytes: written * BLOCK,
                moved_bytes: serving.status("/cleaner/moved_bytes")? - moved_before,
                seconds: *done.get("seconds").context("seconds")?,
            });
        }

        let full = work(&arguments("fill-up", &rest, &[])).context("write until it is full")?;
        let rest_bytes = *full.get("bytes").context("bytes")? as u64;
        self.rest_bytes = Some(rest_bytes);
        serving.remount_cold().context("mount again when full")?;
        let options = [("bytes", self.file_bytes), ("writes", writes)];
        work(&self.with_pattern(arguments("check", &file, &options))).context("read the file back")?;
        work(&arguments("check", &rest, &[("bytes", rest_bytes)])).context("read the rest back")?;
        self.read_back = true;

        let mut room = vec!["make-room".to_owned(), rest.display().to_string()];
        let room_blocks = rest_bytes * ROOM_PERCENT / 100 / BLOCK;
        room.extend(arguments("", &after, &[("blocks", room_blocks)]).split_off(1));
        self.room_seconds = work(&room).context("make room")?.get("seconds").copied();
        serving.down()
    }

    fn with_pattern(&self, mut arguments: Vec<String>) -> Vec<String> {
        if self.hot {
            arguments.push("--hot".to_owned());
        }
        arguments
    }

    fn pattern(&self) -> &'static str {
        if self.hot { "hot and cold" } else { "uniform" }
    }

    fn cells(&self) -> [String; 10] {
        let whole = self.rounds.iter().fold(Round::default(), |sum, round| sum.plus(round));
        let mib = |bytes: u64| number(bytes as f64 / f64::from(1 << 20));
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
        [
            format!("{} %", self.fill_percent),
            self.pattern().to_owned(),
            mib(whole.written_bytes),
            number(whole.mb_per_s()),
            number(whole.write_cost()),
            number(whole.write_cost_with_reads()),
            or_dash(self.rounds.last().map(|last| number(last.write_cost()))),
            or_dash(self.rest_bytes.map(mib)),
            if self.read_back { "yes" } else { "–" }.to_owned(),
            or_dash(self.room_seconds.map(number)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let round = |moved_bytes| Round { written_bytes: 100 << 20, moved_bytes, seconds: 2.0 };
        Row { fill_percent: 95, file_bytes: 100 << 20, rounds: vec![round(0), round(300 << 20)], ..Row::default() }
    }

    #[test]
    fn cost_counts_what_is_moved_once_and_with_reads_twice() {
        let round = row().rounds[1];
        assert_eq!(round.write_cost(), 4.0);
        assert_eq!(round.write_cost_with_reads(), 7.0);
        assert_eq!(round.mb_per_s(), f64::from(50 << 20) / 1e6);
    }

    #[test]
    fn table_has_the_whole_and_the_last_round() {
        let done = Row { hot: true, rest_bytes: Some(5 << 20), read_back: true, room_seconds: Some(0.25), ..row() };
        let study = WriteCost { store_size: "1MiB", rows: vec![done] };
        let text = study.markdown();
        assert!(
            text.contains("| 95 % | hot and cold | 200 | 52.4 | 2.50 | 4.00 | 4.00 | 5.00 | yes | 0.250 |"),
            "{text}"
        );
        assert!(study.failures().is_empty());
    }

    #[test]
    fn what_failed_is_named_and_what_came_before_it_shown() {
        let study =
            WriteCost { store_size: "1MiB", rows: vec![Row { failure: Some("fsync: ENOSPC".to_owned()), ..row() }] };
        assert_eq!(study.failures(), ["95 %, uniform: fsync: ENOSPC"]);
        assert!(study.markdown().contains("| 95 % | uniform | 200 | 52.4 | 2.50 | 4.00 | 4.00 | – | – | – |"));
        let none = WriteCost { store_size: "1MiB", rows: vec![Row::default()] };
        assert!(none.markdown().contains("| – | – | – | – | – | – | – |"), "{}", none.markdown());
    }
}
