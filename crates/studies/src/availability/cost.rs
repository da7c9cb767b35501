//! Cost and performance of redundancy, at the same capacity (Dahlin, section 4.1.5, table 4-1).
//!
//! Performance is in units of one disk's large accesses, cost in disks. The table, and this module,
//! assume one parity in each group.

use crate::ParameterError::{self, Range};
use crate::figure::{Finding, Kind};
use serde::Serialize;

/// The organisations of redundant data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Organization {
    /// Two copies of everything.
    Raid1,
    /// Two copies of data that are written often, parity for the rest; the best possible case.
    AutoRaid,
    /// A parity for each group; all writes are large, as in a log.
    Raid5Log,
    /// A parity for each group; blocks are written in place.
    Raid5InPlace,
}

/// The measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Capacity for data.
    Capacity,
    /// Bandwidth of large writes.
    LargeWrite,
    /// Bandwidth of small writes.
    SmallWrite,
    /// Bandwidth of large reads.
    LargeRead,
    /// Bandwidth of small reads.
    SmallRead,
    /// Bandwidth of large reads while one disk has failed.
    LargeReadFailed,
    /// Bandwidth of small reads while one disk has failed.
    SmallReadFailed,
}

impl Measure {
    /// All of them, in the order of the table.
    pub const ALL: [Measure; 7] = [
        Measure::Capacity,
        Measure::LargeWrite,
        Measure::SmallWrite,
        Measure::LargeRead,
        Measure::SmallRead,
        Measure::LargeReadFailed,
        Measure::SmallReadFailed,
    ];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Measure::Capacity => "capacity",
            Measure::LargeWrite => "large-write bandwidth",
            Measure::SmallWrite => "small-write bandwidth",
            Measure::LargeRead => "large-read bandwidth",
            Measure::SmallRead => "small-read bandwidth",
            Measure::LargeReadFailed => "large-read bandwidth, one disk failed",
            Measure::SmallReadFailed => "small-read bandwidth, one disk failed",
        }
    }
}

/// The parameters.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Disks {
    /// N: disks' worth of data.
    pub data: u32,
    /// G: data fragments of a stripe, beside one of parity.
    pub group: u32,
    /// Bandwidth of small accesses, as a share of that of large ones.
    pub small: f64,
}

impl Default for Disks {
    /// Stripe groups of ten machines. In 1994 a disk took 13.1 ms for 8 KiB, 0.9 ms of it for the
    /// transfer (table 2-2).
    fn default() -> Disks {
        Disks { data: 90, group: 9, small: 0.07 }
    }
}

impl Disks {
    /// Checks the parameters; an error names the wrong one.
    pub fn check(&self) -> Result<(), ParameterError> {
        ParameterError::first([
            (self.data == 0, Range("data", "at least one disk")),
            (self.group == 0, Range("group", "at least one fragment of data")),
            (self.data < self.group, Range("data", "at least as many disks as a group has fragments of data")),
            (!(self.small > 0.0 && self.small <= 1.0), Range("small", "more than 0, up to 1")),
        ])
    }

    /// The number of disks.
    pub fn cost(&self, of: Organization) -> f64 {
        let (n, g) = (f64::from(self.data), f64::from(self.group));
        match of {
            Organization::Raid1 => 2.0 * n,
            _ => n + n / g,
        }
    }

    /// The performance: capacity in disks, bandwidth in disks' large accesses.
    pub fn performance(&self, of: Organization, measure: Measure) -> f64 {
        use Organization::{AutoRaid, Raid1, Raid5InPlace, Raid5Log};
        let (n, disks, small) = (f64::from(self.data), self.cost(of), self.small);
        match (measure, of) {
            (Measure::Capacity, _) => n,
            // Everything is written twice.
            (Measure::LargeWrite, Raid1 | AutoRaid) => disks / 2.0,
            (Measure::LargeWrite, Raid5Log | Raid5InPlace) => n,
            (Measure::SmallWrite, Raid1 | AutoRaid) => small * disks / 2.0,
            // A log has only large writes.
            (Measure::SmallWrite, Raid5Log) => n,
            // Data and parity are read before they are written.
            (Measure::SmallWrite, Raid5InPlace) => small * n / 4.0,
            (Measure::LargeRead, _) => disks,
            (Measure::SmallRead, _) => small * disks,
            (Measure::LargeReadFailed, Raid1 | AutoRaid) => disks - 1.0,
            // Whole stripes are read; the missing part equals the part that parity adds.
            (Measure::LargeReadFailed, Raid5Log | Raid5InPlace) => n,
            (Measure::SmallReadFailed, Raid1 | AutoRaid) => small * (disks - 1.0),
            // A block of the failed disk takes a read of all other disks of its group.
            (Measure::SmallReadFailed, Raid5Log | Raid5InPlace) => small * n / 2.0,
        }
    }

    /// The performance per disk.
    pub fn performance_per_cost(&self, of: Organization, measure: Measure) -> f64 {
        self.performance(of, measure) / self.cost(of)
    }
}

/// Table 4-1: the performance, and the performance per cost, as formulas.
pub fn stated(of: Organization, measure: Measure) -> (&'static str, &'static str) {
    use Organization::{AutoRaid, Raid1, Raid5InPlace, Raid5Log};
    match (measure, of) {
        (Measure::Capacity, Raid1) => ("N", "1/2"),
        (Measure::Capacity, _) => ("N", "G/(G+1)"),
        (Measure::LargeWrite, Raid1) => ("N", "1/2"),
        (Measure::LargeWrite, AutoRaid) => ("(N+N/G)/2", "1/2"),
        (Measure::LargeWrite, Raid5Log | Raid5InPlace) => ("N", "G/(G+1)"),
        (Measure::SmallWrite, Raid1) => ("eN", "e/2"),
        (Measure::SmallWrite, AutoRaid) => ("e(N+N/G)/2", "e/2"),
        (Measure::SmallWrite, Raid5Log) => ("N", "G/(G+1)"),
        (Measure::SmallWrite, Raid5InPlace) => ("eN/4", "e(1-1/G)/4"),
        (Measure::LargeRead, Raid1) => ("2N", "1"),
        (Measure::LargeRead, _) => ("N+N/G", "1"),
        (Measure::SmallRead, Raid1) => ("e2N", "e"),
        (Measure::SmallRead, _) => ("e(N+N/G)", "e"),
        (Measure::LargeReadFailed, Raid1) => ("2N-1", "1-1/(2N)"),
        (Measure::LargeReadFailed, AutoRaid) => ("N+N/G-1", "1-1/(N+N/G)"),
        (Measure::LargeReadFailed, Raid5Log | Raid5InPlace) => ("N", "G/(G+1)"),
        (Measure::SmallReadFailed, Raid1) => ("e(2N-1)", "e(1-1/(2N))"),
        (Measure::SmallReadFailed, AutoRaid) => ("e(N+N/G-1)", "e(1-1/(N+N/G))"),
        (Measure::SmallReadFailed, Raid5Log | Raid5InPlace) => ("eN/2", "e(G/(G+1))/2"),
    }
}

/// The value of such a formula: N, G and e (for epsilon) stand for the parameters, and adjacent
/// terms are multiplied. `None` if it is not a formula.
fn value(formula: &str, disks: &Disks) -> Option<f64> {
    let mut rest = formula.as_bytes();
    let value = sum(&mut rest, disks)?;
    rest.is_empty().then_some(value)
}

fn sum(rest: &mut &[u8], disks: &Disks) -> Option<f64> {
    let mut value = product(rest, disks)?;
    while let [sign @ (b'+' | b'-'), after @ ..] = *rest {
        *rest = after;
        let next = product(rest, disks)?;
        value += if *sign == b'+' { next } else { -next };
    }
    Some(value)
}

fn product(rest: &mut &[u8], disks: &Disks) -> Option<f64> {
    let mut value = factor(rest, disks)?;
    loop {
        match *rest {
            [b'/', after @ ..] => {
                *rest = after;
                value /= factor(rest, disks)?;
            }
            [b'(' | b'0'..=b'9' | b'N' | b'G' | b'e', ..] => value *= factor(rest, disks)?,
            _ => return Some(value),
        }
    }
}

fn factor(rest: &mut &[u8], disks: &Disks) -> Option<f64> {
    let [first, after @ ..] = *rest else { return None };
    *rest = after;
    match first {
        b'N' => Some(f64::from(disks.data)),
        b'G' => Some(f64::from(disks.group)),
        b'e' => Some(disks.small),
        b'0'..=b'9' => Some(f64::from(first - b'0')),
        b'(' => {
            let value = sum(rest, disks)?;
            *rest = rest.strip_prefix(b")")?;
            Some(value)
        }
        _ => None,
    }
}

fn is_same(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
}

/// Table 4-1, and which organisation has the advantage.
pub fn findings(disks: &Disks) -> Vec<Finding> {
    use Organization::{AutoRaid, Raid1, Raid5InPlace, Raid5Log};
    let mut findings = Vec::new();
    for measure in Measure::ALL {
        for (of, name) in [(Raid1, "RAID level 1"), (AutoRaid, "AutoRAID"), (Raid5Log, "RAID level 5, log-structured")]
        {
            let (performance, per_cost) = stated(of, measure);
            let ours = [disks.performance(of, measure), disks.performance_per_cost(of, measure)];
            let theirs = [performance, per_cost].map(|formula| value(formula, disks).unwrap_or(f64::NAN));
            findings.push(Finding {
                stated: "Dahlin, table 4-1".into(),
                what: format!("{} of {name}; and per disk that it costs", measure.name()),
                theirs: format!("{performance} = {:.3}; {per_cost} = {:.4}", theirs[0], theirs[1]),
                ours: format!("{:.3}; {:.4}", ours[0], ours[1]),
                kind: Kind::Computed,
                holds: Some(is_same(ours[0], theirs[0]) && is_same(ours[1], theirs[1])),
                why: String::new(),
            });
        }
    }
    let (performance, per_cost) = stated(Raid5InPlace, Measure::SmallWrite);
    let ours = disks.performance_per_cost(Raid5InPlace, Measure::SmallWrite);
    findings.push(Finding {
        stated: "Dahlin, table 4-1".into(),
        what: "small writes of RAID level 5 without a log, per disk that it costs".into(),
        theirs: format!("{per_cost} = {:.4}", value(per_cost, disks).unwrap_or(f64::NAN)),
        ours: format!("{performance} per N+N/G disks = {ours:.4}"),
        kind: Kind::Computed,
        holds: None,
        why: "here the thesis counts the parity as one of a group's G disks, and in the rest of the table beside them"
            .into(),
    });
    let advantage = |measure, better: &[Organization], than: &[Organization]| {
        let per_cost = |of: &Organization| disks.performance_per_cost(*of, measure);
        better.iter().all(|a| than.iter().all(|b| per_cost(a) > per_cost(b)))
    };
    let rows: [(_, _, &[_], &[_]); 5] = [
        (Measure::Capacity, "AutoRAID and RAID 5", &[AutoRaid, Raid5Log], &[Raid1]),
        (Measure::LargeWrite, "RAID 5", &[Raid5Log], &[Raid1, AutoRaid]),
        (Measure::SmallWrite, "RAID 5 with a log", &[Raid5Log], &[Raid1, AutoRaid]),
        (Measure::SmallWrite, "RAID 1 and AutoRAID over RAID 5 without a log", &[Raid1, AutoRaid], &[Raid5InPlace]),
        (Measure::SmallReadFailed, "RAID 1 and AutoRAID", &[Raid1, AutoRaid], &[Raid5Log]),
    ];
    findings.extend(rows.map(|(measure, who, better, than)| {
        let holds = advantage(measure, better, than);
        Finding {
            stated: "Dahlin, table 4-1".into(),
            what: format!("advantage per cost in {}", measure.name()),
            theirs: who.into(),
            ours: if holds { who.into() } else { "not so with these disks".into() },
            kind: Kind::Computed,
            holds: Some(holds),
            why: String::new(),
        }
    }));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_are_read_as_they_are_written() {
        let disks = Disks { data: 8, group: 4, small: 0.25 };
        let cases = [("N", 8.0), ("(N+N/G)/2", 5.0), ("e(2N-1)", 3.75), ("1-1/(N+N/G)", 0.9), ("e(G/(G+1))/2", 0.1)];
        for (formula, is) in cases {
            assert!(is_same(value(formula, &disks).expect(formula), is), "{formula}");
        }
        for wrong in ["", "N+", "(N", "N)", "x"] {
            assert_eq!(value(wrong, &disks), None, "{wrong}");
        }
    }

    #[test]
    fn every_cell_of_table_4_1_is_what_the_thesis_has() {
        for (data, group, small) in [(90, 9, 0.07), (8, 8, 1.0), (1000, 3, 0.001), (1, 1, 0.5)] {
            let disks = Disks { data, group, small };
            let wrong = findings(&disks).into_iter().filter(|finding| {
                // Which one has the advantage depends on the disks.
                !finding.what.starts_with("advantage") && finding.holds == Some(false)
            });
            assert_eq!(wrong.collect::<Vec<_>>(), []);
        }
        let all = findings(&Disks::default());
        assert_eq!(all.len(), 7 * 3 + 1 + 5);
        assert!(all.iter().all(|finding| finding.holds != Some(false)), "{all:?}");
        assert!(!all.iter().any(|finding| finding.theirs.contains("NaN")));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let fault = |of: Disks| of.check().expect_err("wrong").to_string();
        let disks = Disks::default();
        assert!(fault(Disks { data: 0, ..disks }).starts_with("data"));
        assert!(fault(Disks { group: 0, ..disks }).starts_with("group"));
        assert!(fault(Disks { group: 91, ..disks }).starts_with("data"));
        assert!(fault(Disks { small: f64::NAN, ..disks }).starts_with("small"));
        assert_eq!(disks.check(), Ok(()));
    }
}
