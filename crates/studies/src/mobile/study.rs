//! The experiments of Froese and Bunt, section 5: their parameters and their figures.

use super::activity::Work;
use super::{
    Activity, Link, Logged, Outcome, Parameters, Rules, Tuning, Unit, WriteBack, simulate_weak, strong_stall_us,
};
use crate::ParameterError;
use crate::figure::{Axis, Curve, Figure, Scale, Shape};
use crate::sweep::sweep;
use policy::replacement::Replacement;
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};

/// Time expansions that figure 3 has lines for.
pub(super) const CONTOURS: [f64; 5] = [1.02, 1.05, 1.1, 1.2, 1.5];

/// The varied parameters.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Grid {
    /// The constant ones.
    pub base: Parameters,
    /// Caches, in bytes, ascending (figures 2, 3, 4, 6 and 8).
    pub caches_bytes: Vec<u64>,
    /// Slow links, in bits per second, ascending (figures 5, 7, and 9 to 12).
    pub slow: Vec<u64>,
    /// Faster links (figures 2 and 3).
    pub fast: Vec<u64>,
}

impl Grid {
    /// The paper's: caches of 1 to 20 MB, modems of 9.6 to 57.6 kb/s.
    pub fn paper() -> Grid {
        Grid {
            base: Parameters::PAPER,
            caches_bytes: [1, 2, 4, 6, 8, 10, 12, 16, 20].map(|mebibytes| mebibytes << 20).into(),
            slow: vec![9600, 14_400, 19_200, 28_800, 38_400, 57_600],
            fast: vec![128_000, 512_000],
        }
    }

    /// Checks the parameters; an error names the wrong one.
    pub fn check(&self) -> Result<(), ParameterError> {
        let lists = [(&self.caches_bytes, "caches"), (&self.slow, "bandwidths")];
        ParameterError::first(lists.map(|(list, name)| (list.is_empty(), ParameterError::EmptyList(name))))?;
        self.all().iter().try_for_each(Parameters::check)
    }

    pub(super) fn links(&self) -> impl Iterator<Item = u64> {
        self.slow.iter().chain(&self.fast).copied()
    }

    /// Nothing goes home (figures 2 and 3).
    pub(super) fn bare(&self, cache_bytes: u64, bits_per_second: u64) -> Parameters {
        let link = Link { bits_per_second, ..self.base.link };
        Parameters { cache_bytes, link, write_back: WriteBack::Never, ..self.base }
    }

    /// Figures 4, 6 and 8.
    pub(super) fn by_cache(&self, write_back: WriteBack, cache_bytes: u64) -> Parameters {
        Parameters { write_back, cache_bytes, ..self.base }
    }

    /// Figures 5, 7, and 9 to 12.
    pub(super) fn by_link(&self, write_back: WriteBack, unit: Unit, bits_per_second: u64) -> Parameters {
        let link = Link { bits_per_second, ..self.base.link };
        Parameters { write_back, unit, link, ..self.base }
    }

    /// Not in the paper: the product's rules.
    pub(super) fn product(&self, write_back: WriteBack, bits_per_second: u64) -> Parameters {
        let of = self.by_link(write_back, Unit::Auto, bits_per_second);
        Parameters { rules: Rules::Product, tuning: Tuning::PRODUCT, ..of }
    }

    /// Section 4.5, footnote 4.
    pub(super) fn replaced(&self, replacement: Replacement, cache_bytes: u64) -> Parameters {
        Parameters { replacement, cache_bytes, ..self.base }
    }

    /// All parameters, each once.
    fn all(&self) -> Vec<Parameters> {
        let mut all = BTreeSet::new();
        for cache in &self.caches_bytes {
            all.extend(self.links().map(|link| self.bare(*cache, link)));
            all.extend(WriteBack::ALL.map(|write_back| self.by_cache(write_back, *cache)));
            all.extend(Replacement::ALL.map(|replacement| self.replaced(replacement, *cache)));
        }
        for link in &self.slow {
            for write_back in WriteBack::ALL {
                let units = [Unit::File, Unit::Block].map(|unit| self.by_link(write_back, unit, *link));
                all.extend(units.map(|of| Parameters { logged: Logged::Units, ..of }));
                all.extend(units);
                all.insert(self.product(write_back, *link));
            }
        }
        all.into_iter().collect()
    }

    /// Number of simulations for this many traces.
    pub fn count(&self, traces: usize) -> usize {
        self.all().len() * traces
    }
}

/// The results for each of a grid's parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Study {
    pub(super) grid: Grid,
    /// By trace.
    pub(super) traces: Vec<(String, BTreeMap<Parameters, Outcome>)>,
    /// By trace, the work from when the link is slow in the grid's base.
    pub(super) works: Vec<Work>,
}

/// By trace, a list of parameters and results.
impl Serialize for Study {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Run<'a> {
            parameters: &'a Parameters,
            outcome: &'a Outcome,
        }
        #[derive(Serialize)]
        struct Trace<'a> {
            name: &'a str,
            runs: Vec<Run<'a>>,
        }
        to.collect_seq(self.traces.iter().map(|(name, found)| {
            let runs = found.iter().map(|(parameters, outcome)| Run { parameters, outcome });
            Trace { name, runs: runs.collect() }
        }))
    }
}

/// Simulates a whole grid, which must pass [`check`](Grid::check), on each of these named traces.
/// `done` is called for each simulation.
pub fn study(traces: &[(&str, &Activity)], grid: &Grid, done: impl Fn() + Sync) -> Study {
    let all = grid.all();
    // Many parameters have the same result with the office's link.
    let strong: BTreeSet<(usize, Parameters)> =
        (0..traces.len()).flat_map(|trace| all.iter().map(move |of| (trace, of.strong()))).collect();
    let strong: Vec<(usize, Parameters)> = strong.into_iter().collect();
    let stalls = sweep(&strong, |(trace, of)| strong_stall_us(traces[*trace].1, of), || ());
    let stalls: BTreeMap<(usize, Parameters), u64> = strong.into_iter().zip(stalls).collect();
    let each: Vec<(usize, Parameters)> =
        (0..traces.len()).flat_map(|trace| all.iter().map(move |of| (trace, *of))).collect();
    let simulate = |(trace, of): &(usize, Parameters)| Outcome {
        strong_stall_us: stalls[&(*trace, of.strong())],
        ..simulate_weak(traces[*trace].1, of)
    };
    let mut found = sweep(&each, simulate, done).into_iter();
    let of_trace = |(name, _): &(&str, &Activity)| {
        (name.to_string(), all.iter().copied().zip(found.by_ref()).collect::<BTreeMap<_, _>>())
    };
    let works = traces.iter().map(|(_, activity)| activity.work(grid.base.hoard_us)).collect();
    Study { grid: grid.clone(), traces: traces.iter().map(of_trace).collect(), works }
}

/// Kilobits per second.
pub(super) fn kilobits(bits_per_second: u64) -> f64 {
    bits_per_second as f64 / 1e3
}

/// Mebibytes.
pub(super) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn axis(label: &str, scale: Scale) -> Axis {
    Axis { label: label.into(), scale }
}

fn by_cache() -> Axis {
    axis("client cache (MiB)", Scale::Linear)
}

fn by_link() -> Axis {
    axis("bandwidth (kb/s)", Scale::Linear)
}

/// The measure on a figure's y axis.
#[derive(Clone, Copy)]
enum Measure {
    Expansion,
    Reintegration,
    Log,
    Interference,
    Misses,
}

impl Measure {
    fn axis(self) -> Axis {
        match self {
            Measure::Expansion => axis("time expansion", Scale::Linear),
            Measure::Reintegration => axis("mean time until reintegration (minutes)", Scale::Linear),
            Measure::Log => axis("largest log (MiB)", Scale::Linear),
            Measure::Interference => axis("write interference (% of time)", Scale::Linear),
            Measure::Misses => axis("reads that wait (%)", Scale::Linear),
        }
    }

    fn of(self, outcome: &Outcome) -> Option<f64> {
        match self {
            Measure::Expansion => outcome.time_expansion(),
            Measure::Reintegration => outcome.reintegration_mean_us.map(|mean| mean as f64 / 60e6),
            Measure::Log => Some(mebibytes(outcome.log_bytes_max)),
            Measure::Interference => outcome.interference().map(|part| part * 100.0),
            Measure::Misses => outcome.miss_rate().map(|part| part * 100.0),
        }
    }
}

impl Study {
    pub(super) fn at(&self, trace: usize, of: &Parameters) -> Outcome {
        self.traces.get(trace).and_then(|(_, found)| found.get(of)).copied().unwrap_or_default()
    }

    /// The bandwidth for which the paper states a time expansion, 14.4 kb/s, or the next one.
    pub(super) fn modem(&self) -> u64 {
        self.grid.slow.iter().copied().find(|link| *link >= 14_400).unwrap_or(self.grid.slow[0])
    }

    /// One curve: the measure over a varied parameter.
    fn curve(
        &self,
        trace: usize,
        name: String,
        measure: Measure,
        over: impl Iterator<Item = (f64, Parameters)>,
    ) -> Curve {
        let points = over.filter_map(|(x, of)| Some((x, measure.of(&self.at(trace, &of))?))).collect();
        Curve { name, points }
    }

    fn caches(&self) -> impl Iterator<Item = (f64, u64)> {
        self.grid.caches_bytes.iter().map(|bytes| (mebibytes(*bytes), *bytes))
    }

    fn slow(&self) -> impl Iterator<Item = (f64, u64)> {
        self.grid.slow.iter().map(|bits| (kilobits(*bits), *bits))
    }

    fn figure_2(&self, trace: usize) -> Vec<Curve> {
        let over = |link| self.caches().map(move |(x, cache)| (x, self.grid.bare(cache, link)));
        let name = |link| format!("{} kb/s", kilobits(link));
        self.grid.links().map(|link| self.curve(trace, name(link), Measure::Expansion, over(link))).collect()
    }

    /// The bandwidth, in kb/s, at which time expands by this factor: interpolated between the
    /// simulated ones. `None` if all of them are faster, or slower.
    pub(super) fn bandwidth_for(&self, trace: usize, cache_bytes: u64, expansion: f64) -> Option<f64> {
        let at = |link| self.at(trace, &self.grid.bare(cache_bytes, link)).time_expansion();
        let points: Vec<(f64, f64)> = self.grid.links().filter_map(|link| Some((kilobits(link), at(link)?))).collect();
        points.windows(2).find_map(|two| {
            let ((slow, more), (fast, less)) = (two[0], two[1]);
            let is_between = more >= expansion && less < expansion;
            is_between.then(|| slow + (fast - slow) * (more - expansion) / (more - less))
        })
    }

    fn figure_3(&self, trace: usize) -> Vec<Curve> {
        let points = |level| {
            let point = |(x, cache)| Some((x, self.bandwidth_for(trace, cache, level)?));
            self.caches().filter_map(point).collect()
        };
        CONTOURS.map(|level| Curve { name: format!("{level}"), points: points(level) }).into()
    }

    /// One curve for each policy that sends something home, and the policy without any if it has
    /// this measure.
    fn policies(measure: Measure) -> impl Iterator<Item = WriteBack> {
        let never_says = !matches!(measure, Measure::Reintegration | Measure::Interference);
        WriteBack::ALL.into_iter().filter(move |policy| never_says || *policy != WriteBack::Never)
    }

    fn over_caches(&self, trace: usize, measure: Measure) -> Vec<Curve> {
        let over = |policy| self.caches().map(move |(x, cache)| (x, self.grid.by_cache(policy, cache)));
        let curve = |policy: WriteBack| self.curve(trace, policy.name().into(), measure, over(policy));
        Self::policies(measure).map(curve).collect()
    }

    fn over_links(&self, trace: usize, measure: Measure) -> Vec<Curve> {
        let over = |policy| self.slow().map(move |(x, link)| (x, self.grid.by_link(policy, Unit::File, link)));
        let curve = |policy: WriteBack| self.curve(trace, policy.name().into(), measure, over(policy));
        Self::policies(measure).map(curve).collect()
    }

    fn over_units(&self, trace: usize, measure: Measure) -> Vec<Curve> {
        let each = Self::policies(measure).flat_map(|policy| [(policy, Unit::File), (policy, Unit::Block)]);
        let curve = |(policy, unit): (WriteBack, Unit)| {
            let name = format!("{}, {}", policy.name(), if unit == Unit::File { "files" } else { "blocks" });
            self.curve(trace, name, measure, self.slow().map(|(x, link)| (x, self.grid.by_link(policy, unit, link))))
        };
        each.map(curve).collect()
    }

    fn replacements(&self, trace: usize) -> Vec<Curve> {
        let over = |one| self.caches().map(move |(x, cache)| (x, self.grid.replaced(one, cache)));
        let curve = |one: Replacement| self.curve(trace, one.name().into(), Measure::Misses, over(one));
        Replacement::ALL.map(curve).into()
    }

    fn as_the_product(&self, trace: usize, measure: Measure) -> Vec<Curve> {
        let over = |policy| self.slow().map(move |(x, link)| (x, self.grid.product(policy, link)));
        let curve = |policy: WriteBack| self.curve(trace, policy.name().into(), measure, over(policy));
        // The other policy only delays prefetches.
        Self::policies(measure).filter(|policy| *policy != WriteBack::Preemptive).map(curve).collect()
    }
}

/// Figures 2 to 12 of the paper for each trace, the misses of each replacement policy (section
/// 4.5), and the product's rules.
pub fn figures(study: &Study) -> Vec<Figure> {
    (0..study.traces.len()).flat_map(|trace| figures_of(study, trace)).collect()
}

fn figures_of(study: &Study, trace: usize) -> Vec<Figure> {
    let name = &study.traces[trace].0;
    let figure = |number: u32, what: &str, x: Axis, measure: Measure, curves: Vec<Curve>| {
        let repeats = if number > 0 { format!("Froese and Bunt, figure {number}") } else { String::new() };
        Figure {
            title: format!("{what}: {name}"),
            repeats,
            shape: Shape::Lines,
            x,
            y: measure.axis(),
            curves,
            theirs: Vec::new(),
        }
    };
    let contours = Figure {
        y: axis("bandwidth (kb/s)", Scale::Log),
        ..figure(
            3,
            "Bandwidth and cache for some time expansions",
            by_cache(),
            Measure::Expansion,
            study.figure_3(trace),
        )
    };
    let caches = |number, what, measure| figure(number, what, by_cache(), measure, study.over_caches(trace, measure));
    let links = |number, what, measure| figure(number, what, by_link(), measure, study.over_links(trace, measure));
    let units = |number, what, measure| figure(number, what, by_link(), measure, study.over_units(trace, measure));
    let product = |what, measure| figure(0, what, by_link(), measure, study.as_the_product(trace, measure));
    use Measure::{Expansion, Interference, Log, Misses, Reintegration};
    vec![
        figure(2, "Time expansion, nothing going home", by_cache(), Expansion, study.figure_2(trace)),
        contours,
        caches(4, "Time until reintegration by cache", Reintegration),
        links(5, "Time until reintegration by bandwidth", Reintegration),
        caches(6, "Largest log by cache", Log),
        links(7, "Largest log by bandwidth", Log),
        caches(8, "Write interference by cache", Interference),
        links(9, "Write interference by bandwidth", Interference),
        links(10, "Time expansion by policy", Expansion),
        units(11, "Time expansion of files and blocks", Expansion),
        units(12, "Write interference of files and blocks", Interference),
        figure(0, "Misses by replacement", by_cache(), Misses, study.replacements(trace)),
        product("Time expansion as Starling does it", Expansion),
        product("Time until reintegration as Starling does it", Reintegration),
        product("Largest log as Starling does it", Log),
    ]
}
