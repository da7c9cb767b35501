//! Figures 5-5 to 5-8, and the statements of section 5.3.2 about them.

use super::accesses::Accesses;
use super::{Outcome, Parameters, Policy, simulate};
use crate::cooperative::experiments::comparison::Workload;
use crate::figure::{Axis, Curve, Figure, Finding, Kind, Scale, Shape};
use crate::sweep::sweep;
use serde::Serialize;

/// All policies on one trace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Study {
    /// Results in the order of [`Policy::ALL`].
    pub outcomes: [Outcome; 3],
}

impl Study {
    /// How often [`run`](Self::run) reports progress.
    pub const STEPS: usize = Policy::ALL.len();

    /// Simulates all policies; the policy in `parameters` does not matter.
    pub fn run(accesses: &Accesses, parameters: &Parameters, done: impl Fn() + Sync) -> Study {
        let of = Policy::ALL.map(|policy| Parameters { policy, ..*parameters });
        let found = sweep(&of, |parameters| simulate(accesses, parameters), done);
        let mut outcomes = [Outcome::default(); 3];
        outcomes.iter_mut().zip(found).for_each(|(outcome, found)| *outcome = found);
        Study { outcomes }
    }

    /// Figures 5-5 and 5-7 for Sprite, 5-6 and 5-8 for Auspex, whose trace lacks reads that
    /// clients' own caches served.
    pub fn figures(&self, of: Workload) -> Vec<Figure> {
        let [centralized, ..] = self.outcomes;
        let all = centralized.hops().max(1) as f64;
        let share = |of: &Outcome| {
            let parts = [of.hops(), of.read_hops, of.write_hops, of.delete_hops];
            parts.into_iter().zip(1u32..).map(|(hops, x)| (f64::from(x), hops as f64 / all * 100.0)).collect()
        };
        let is_auspex = of == Workload::Auspex;
        let per_request = |of: &Outcome| {
            let reads = [of.hops_per_read().filter(|_| !is_auspex), of.hops_per_miss()];
            let parts = [reads[0], reads[1], of.hops_per_write(), of.hops_per_delete()];
            parts.into_iter().zip(1u32..).filter_map(|(hops, x)| Some((f64::from(x), hops?))).collect()
        };
        let [of_all, of_requests] = match of {
            Workload::Sprite => ["Dahlin, figure 5-5", "Dahlin, figure 5-7"],
            Workload::Auspex => ["Dahlin, figure 5-6", "Dahlin, figure 5-8"],
            Workload::Other => ["Dahlin, figures 5-5 and 5-6", "Dahlin, figures 5-7 and 5-8"],
        };
        let figure = |title: &str, repeats: &str, x: &str, y: &str, points: &dyn Fn(&Outcome) -> Vec<(f64, f64)>| {
            let curve = |(policy, of): (Policy, &Outcome)| Curve { name: policy.name().into(), points: points(of) };
            Figure {
                title: title.into(),
                repeats: repeats.into(),
                theirs: Vec::new(),
                shape: Shape::Bars,
                x: Axis { label: x.into(), scale: Scale::Linear },
                y: Axis { label: y.into(), scale: Scale::Linear },
                curves: Policy::ALL.into_iter().zip(&self.outcomes).map(curve).collect(),
            }
        };
        vec![
            figure(
                "Messages, by where managers are",
                of_all,
                "messages for: 1 all, 2 reads, 3 writes, 4 deletes",
                "share of all messages of the centralized manager (%)",
                &share,
            ),
            figure(
                "Messages per request",
                of_requests,
                "request: 1 read, 2 read that its cache does not serve, 3 write, 4 delete",
                "messages per request",
                &per_request,
            ),
        ]
    }

    /// The statements of section 5.3.2, beside our results on this workload.
    pub fn findings(&self, of: Workload) -> Vec<Finding> {
        let [centralized, first, last] = self.outcomes;
        let saved = |of: &Outcome| share(of.hops(), centralized.hops()).map(|kept| 1.0 - kept);
        let less = |of: fn(&Outcome) -> u64| of(&centralized).saturating_sub(of(&first));
        let by_writes = less(|of| of.write_hops) >= less(|of| of.read_hops) + less(|of| of.delete_hops);
        let mut findings = vec![
            finding(
                "messages that first writer saves",
                "11 % to 50 %",
                percent(saved(&first)),
                (centralized.hops() > 0).then_some(first.hops() <= centralized.hops()),
                "",
            ),
            finding(
                "messages that last writer saves",
                "slightly more than first writer",
                percent(saved(&last)),
                None,
                "another trace than the thesis's; here a file that gets another manager costs two messages, and the thesis does not say whether it counts them",
            ),
            finding(
                "what saves most",
                "writes",
                if by_writes { "writes" } else { "reads and deletes" }.into(),
                (centralized.writes > 0).then_some(by_writes),
                "",
            ),
        ];
        match of {
            Workload::Sprite | Workload::Other => findings.extend(of_sprite(&first)),
            Workload::Auspex => findings.push(finding(
                "deletes whose manager is local, first writer",
                "somewhat more than Sprite's 29 %",
                percent(first.deletes.local_share()),
                None,
                "",
            )),
        }
        findings
    }
}

/// The section's statements about the first of Sprite's traces, with first writer.
fn of_sprite(first: &Outcome) -> [Finding; 9] {
    let shown = |what: &str, theirs: &str, ours: Option<f64>| {
        finding(&format!("{what}, first writer"), theirs, percent(ours), None, "")
    };
    let misses = first.reads - first.hits;
    let hits = share(first.hits, first.reads);
    let rather =
        "another trace than the first of the thesis's, of which this is said; the one that this is made like has 78 %";
    [
        finding("reads that the client's own cache serves", "65 %", percent(hits), None, rather),
        finding(
            "messages of a read that it does not serve, first writer",
            "2.85",
            first.hops_per_miss().map_or("none".into(), |hops| format!("{hops:.2}")),
            None,
            "",
        ),
        shown("such reads that take a message less", "16 %", share(first.shorter, misses)),
        shown("writes that need the right to write", "37 %", share(first.asked.count, first.writes)),
        shown("those whose manager is local", "96 %", first.asked.local_share()),
        shown("invalidated caches that are the manager's", "a third", first.invalidated.local_share()),
        shown("commits whose manager is local", "97 %", first.committed.local_share()),
        shown("deletes whose manager is local", "29 %", first.deletes.local_share()),
        shown("clients told of deletes that are the manager's", "83 %", first.told.local_share()),
    ]
}

fn percent(share: Option<f64>) -> String {
    share.map_or("none".into(), |share| format!("{:.1} %", share * 100.0))
}

fn share(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

fn finding(what: &str, theirs: &str, ours: String, holds: Option<bool>, why: &str) -> Finding {
    Finding {
        stated: "Dahlin, section 5.3.2".into(),
        what: what.into(),
        theirs: theirs.into(),
        ours,
        kind: Kind::Measured,
        holds,
        why: why.into(),
    }
}
