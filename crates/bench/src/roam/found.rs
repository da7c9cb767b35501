//! The results of a study of roaming: tables, target figures, and failures.

use serde::Serialize;
use serde_json::Value;

use crate::report::{number, one_line, table_header, table_row};

/// The results of a study.
#[derive(Debug, Default, Serialize)]
pub struct Found {
    /// Conditions of the measurement that differ between studies.
    pub conditions: String,
    pub figures: Vec<Figure>,
    pub tables: Vec<Table>,
    /// Errors that must not occur.
    pub failures: Vec<String>,
    /// All measurements.
    pub samples: Value,
}

/// A target figure.
#[derive(Debug, Serialize)]
pub struct Figure {
    what: String,
    wanted: String,
    measured: String,
    /// `None` means shown for comparison, without a target.
    reached: Option<bool>,
}

impl Figure {
    /// `what` must be `limit` or less, in `unit`.
    pub fn at_most(what: impl Into<String>, measured: f64, limit: f64, unit: &str) -> Figure {
        Figure {
            what: what.into(),
            wanted: format!("≤ {}{unit}", number(limit)),
            measured: format!("{}{unit}", number(measured)),
            reached: Some(measured <= limit),
        }
    }

    /// `what` must be `limit` or more, in `unit`.
    pub fn at_least(what: impl Into<String>, measured: f64, limit: f64, unit: &str) -> Figure {
        Figure {
            what: what.into(),
            wanted: format!("≥ {}{unit}", number(limit)),
            measured: format!("{}{unit}", number(measured)),
            reached: Some(measured >= limit),
        }
    }

    /// The limit is this program's own, and not a paper's.
    pub fn ours(mut self) -> Figure {
        self.wanted.push_str(" (ours)");
        self
    }

    /// A value for comparison.
    pub fn beside(what: impl Into<String>, measured: impl Into<String>) -> Figure {
        Figure { what: what.into(), wanted: "–".into(), measured: measured.into(), reached: None }
    }
}

/// A table of a report.
#[derive(Debug, Serialize)]
pub struct Table {
    title: String,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Without rows as yet.
    pub fn new<H: Into<String>>(title: impl Into<String>, header: impl IntoIterator<Item = H>) -> Table {
        Table { title: title.into(), header: header.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Appends a row.
    pub fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    fn markdown(&self, out: &mut String) {
        out.push_str(&format!("\n{}:\n\n", self.title));
        table_header(out, &self.header);
        self.rows.iter().for_each(|row| table_row(out, row));
    }
}

impl Found {
    /// True if a figure was not reached.
    pub fn missed(&self) -> bool {
        self.figures.iter().any(|figure| figure.reached == Some(false))
    }

    /// True if the study measured nothing: a document keeps the results of the last run that did.
    pub fn is_empty(&self) -> bool {
        self.figures.is_empty() && self.tables.is_empty()
    }

    /// The target figures, the tables, and the failures.
    pub fn markdown(&self) -> String {
        let mut out = format!("{}\n\n", self.conditions);
        if !self.figures.is_empty() {
            table_header(&mut out, &["Figure", "to reach", "measured", ""].map(str::to_owned));
        }
        for figure in &self.figures {
            let verdict = match figure.reached {
                Some(true) => "reached",
                Some(false) => "**not reached**",
                None => "–",
            };
            let Figure { what, wanted, measured, .. } = figure;
            table_row(&mut out, &[what, wanted, measured, verdict].map(|cell| cell.to_string()));
        }
        self.tables.iter().for_each(|table| table.markdown(&mut out));
        if !self.failures.is_empty() {
            out.push_str("\n**Failed:**\n\n");
            self.failures.iter().for_each(|failure| out.push_str(&format!("- {}\n", one_line(failure))));
        }
        out
    }
}

/// The median of some numbers: the mean of the two middle ones if their count is even. NaN for
/// none, and if one is.
pub fn median(values: &[f64]) -> f64 {
    if values.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// The largest of some numbers. NaN for none, and if one is: a value that was not measured is not
/// good.
pub fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    let larger = |one: f64, other: f64| if one.is_nan() || one > other { one } else { other };
    values.into_iter().reduce(larger).unwrap_or(f64::NAN)
}

/// The smallest of some numbers. NaN for none, and if one is.
pub fn smallest(values: impl IntoIterator<Item = f64>) -> f64 {
    -largest(values.into_iter().map(|value| -value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_judged_and_failures_shown() {
        let mut table = Table::new("Numbers", ["a", "b"]);
        table.row(["1", "2"]);
        let figures = vec![Figure::at_most("time", 2.0, 1.0, " s"), Figure::at_least("speed", 3.0, 3.0, "x").ours()];
        let found = Found {
            conditions: "Here.".into(),
            figures,
            tables: vec![table],
            failures: vec!["no\nfile".into()],
            ..Found::default()
        };
        assert!(found.missed() && !found.is_empty());
        assert!(Found { failures: found.failures.clone(), ..Found::default() }.is_empty());
        let text = found.markdown();
        assert!(text.contains("| time | ≤ 1.00 s | 2.00 s | **not reached** |"), "{text}");
        assert!(text.contains("| speed | ≥ 3.00x (ours) | 3.00x | reached |"), "{text}");
        assert!(text.contains("\nNumbers:\n\n| a | b |\n"), "{text}");
        assert!(text.contains("- no file\n"), "{text}");
    }

    #[test]
    fn medians_and_the_largest() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0])), (2.0, 2.5));
        assert!(median(&[]).is_nan() && largest([]).is_nan());
        assert_eq!((largest([1.0, 3.0]), largest([3.0, 1.0]), smallest([1.0, 3.0])), (3.0, 3.0, 1.0));
        for missing in [[1.0, f64::NAN, 3.0], [f64::NAN, 1.0, 3.0], [1.0, 3.0, f64::NAN]] {
            assert!(largest(missing).is_nan() && smallest(missing).is_nan() && median(&missing).is_nan());
            assert!(
                Found { figures: vec![Figure::at_most("x", largest(missing), 5.0, "")], ..Found::default() }.missed()
            );
        }
    }
}
