//! What a study shows: curves over something that was varied, as data. Programs draw them, and
//! write them as JSON.

use serde::Serialize;

/// How an axis runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By powers; what is not above nought is not shown.
    Log,
}

/// One axis.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Axis {
    /// What it measures, with its unit: "client cache (MiB)".
    pub label: String,
    /// How it runs.
    pub scale: Scale,
}

/// One curve.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Curve {
    /// What the legend says.
    pub name: String,
    /// Its points in the order of x, in the units of the axes.
    pub points: Vec<(f64, f64)>,
}

/// How a figure is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Points of a curve are joined.
    Lines,
    /// They are not: each is of something else.
    Points,
    /// Bars beside each other, for what has no order: x are whole numbers from 1, which the axis's
    /// label names, as in "request: 1 read, 2 write".
    Bars,
    /// The same on top of each other: their sum says something, too.
    Stacks,
}

/// A figure.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figure {
    /// What it shows.
    pub title: String,
    /// The paper's figure that it repeats: "Dahlin, figure 3-19". Empty if there is none.
    pub repeats: String,
    /// How it is drawn.
    pub shape: Shape,
    /// What is varied.
    pub x: Axis,
    /// What is measured.
    pub y: Axis,
    /// What was measured.
    pub curves: Vec<Curve>,
    /// The paper's own points, where it states numbers. They are drawn as marks on top of what was
    /// measured.
    pub theirs: Vec<Curve>,
}

/// The curve that others are compared with.
const BASE: &str = "base";
/// Curves whose points are nearer to each other than this part of the figure's height look like
/// one.
const NEAR: f64 = 0.02;

impl Figure {
    /// The same as ratios to the base case, where curves of this figure lie on top of each other:
    /// over half of the points of some pair are near each other. Nothing where they do not, or
    /// without a base case.
    pub fn relative(&self) -> Option<Figure> {
        let base = self.curves.iter().find(|curve| curve.name == BASE).filter(|_| self.shape == Shape::Lines)?;
        let at = |curve: &Curve, x: f64| curve.points.iter().find(|point| point.0 == x).map(|point| point.1);
        let all = || self.curves.iter().flat_map(|curve| &curve.points).map(|point| point.1);
        let height = all().fold(f64::MIN, f64::max) - all().fold(f64::MAX, f64::min);
        let is_near = |one: &Curve, other: &Curve| {
            let pairs: Vec<f64> = one.points.iter().filter_map(|(x, y)| Some((y - at(other, *x)?).abs())).collect();
            2 * pairs.iter().filter(|gap| **gap < NEAR * height).count() > pairs.len()
        };
        let others = || self.curves.iter().filter(|curve| curve.name != BASE);
        let mut pairs = others().zip(1..).flat_map(|(one, next)| others().skip(next).map(move |other| (one, other)));
        if !pairs.any(|(one, other)| is_near(one, other)) {
            return None;
        }
        let ratio = |curve: &Curve| {
            let points =
                curve.points.iter().filter_map(|(x, y)| Some((*x, y / at(base, *x).filter(|base| *base > 0.0)?)));
            Curve { name: curve.name.clone(), points: points.collect() }
        };
        Some(Figure {
            title: format!("{}, as a ratio to the base case", self.title),
            y: Axis { label: "times the base case's".into(), scale: Scale::Linear },
            curves: others().map(ratio).collect(),
            theirs: Vec::new(),
            ..self.clone()
        })
    }
}

/// Where our side of a finding comes from. Reports count the two kinds apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A simulation gave it, and could have given something else.
    Measured,
    /// A formula or a constant gave it, or it follows from how algorithms are defined. A "no" means
    /// that our arithmetic is wrong.
    Computed,
}

/// Something that a paper states, beside what was found here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// Where it is stated: "Dahlin, table 4-2". Empty if it is not.
    pub stated: String,
    /// What is compared: "write cost of 512 KiB segments".
    pub what: String,
    /// What they found, with its unit. Where it says that it is computed, it is what a formula
    /// gives that is known to be right.
    pub theirs: String,
    /// What was found here.
    pub ours: String,
    /// Where ours comes from.
    pub kind: Kind,
    /// Whether what must be so is so; nothing where values are only shown beside each other.
    pub holds: Option<bool>,
    /// Why they differ, as far as is known; empty if they do not.
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(curves: &[(&str, [f64; 3])]) -> Figure {
        let axis = |label: &str| Axis { label: label.into(), scale: Scale::Linear };
        let curve = |(name, ys): &(&str, [f64; 3])| Curve {
            name: (*name).into(),
            points: ys.iter().zip(1..).map(|(y, x)| (f64::from(x), *y)).collect(),
        };
        Figure {
            title: "time".into(),
            repeats: String::new(),
            shape: Shape::Lines,
            x: axis("x"),
            y: axis("y"),
            curves: curves.iter().map(curve).collect(),
            theirs: Vec::new(),
        }
    }

    #[test]
    fn curves_on_top_of_each_other_are_shown_as_ratios_too() {
        let near = figure(&[("base", [100.0, 50.0, 2.0]), ("one", [50.0, 20.0, 1.0]), ("other", [50.5, 20.5, 1.5])]);
        let ratios = near.relative().expect("they are near each other");
        let names: Vec<&str> = ratios.curves.iter().map(|curve| curve.name.as_str()).collect();
        assert_eq!(names, ["one", "other"]);
        assert_eq!(ratios.curves[1].points, [(1.0, 0.505), (2.0, 0.41), (3.0, 0.75)]);
    }

    #[test]
    fn curves_that_can_be_told_apart_are_not() {
        let apart = figure(&[("base", [100.0, 50.0, 2.0]), ("one", [50.0, 20.0, 1.0]), ("other", [80.0, 40.0, 1.5])]);
        assert_eq!(apart.relative(), None);
        assert_eq!(figure(&[("one", [1.0; 3]), ("other", [1.0; 3])]).relative(), None, "there is no base case");
        assert_eq!(figure(&[]).relative(), None);
    }
}
