//! The results of a study, as data: curves over a varied parameter, and findings. Programs draw
//! them, and write them as JSON.

use serde::Serialize;

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Linear.
    Linear,
    /// Logarithmic; values that are not above zero are not shown.
    Log,
}

/// One axis.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Axis {
    /// The measure with its unit: "client cache (MiB)".
    pub label: String,
    /// Its scale.
    pub scale: Scale,
}

/// One curve.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Its points in the order of x, in the units of the axes.
    pub points: Vec<(f64, f64)>,
}

/// How a figure is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// The points of a curve are joined.
    Lines,
    /// The points are not joined: each is a case of its own.
    Points,
    /// Bars beside each other, for categories: x are whole numbers from 1, which the axis's label
    /// names, as in "request: 1 read, 2 write".
    Bars,
    /// Bars on top of each other: their sum has a meaning too.
    Stacks,
}

/// A figure.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figure {
    /// Its title.
    pub title: String,
    /// The paper's figure that it repeats: "Dahlin, figure 3-19". Empty if there is none.
    pub repeats: String,
    /// How it is drawn.
    pub shape: Shape,
    /// The axis of the varied parameter.
    pub x: Axis,
    /// The axis of the measure.
    pub y: Axis,
    /// The measured curves.
    pub curves: Vec<Curve>,
    /// The paper's own points, where it states numbers. They are drawn as marks on top of the
    /// curves.
    pub theirs: Vec<Curve>,
}

/// The name of the curve that others are compared with.
const BASE: &str = "base";
/// Two points nearer to each other than this part of the figure's height look like one.
const NEAR: f64 = 0.02;

impl Figure {
    /// The same figure as ratios to the base case, if curves lie on top of each other: over half of
    /// the points of some pair are near each other. `None` otherwise, or without a base case.
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

/// The source of our side of a finding. Reports count the two kinds separately.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A simulation gave it, and could have given another value.
    Measured,
    /// A formula or a constant gave it, or it follows from how algorithms are defined. A "no" means
    /// that our arithmetic is wrong.
    Computed,
}

/// A statement of a paper, beside our result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// Where the paper states it: "Dahlin, table 4-2". Empty if no paper does.
    pub stated: String,
    /// What is compared: "write cost of 512 KiB segments".
    pub what: String,
    /// The paper's result, with its unit. If this says that it is computed, it comes from a formula
    /// that is known to be right.
    pub theirs: String,
    /// Our result.
    pub ours: String,
    /// The source of our result.
    pub kind: Kind,
    /// Whether a required relation holds; `None` if values are only shown beside each other.
    pub holds: Option<bool>,
    /// Why the two differ, as far as is known; empty if they do not.
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
