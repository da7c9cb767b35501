//! What a study shows: curves over something that was varied, as data. Programs draw them, and write them as JSON.

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
    /// Bars beside each other, for what has no order: x are whole numbers from 1, which the axis's label names, as in "request: 1 read, 2 write".
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
}

/// Something that a paper states, beside what was found here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// Where it is stated: "Dahlin, table 4-2". Empty if it is not.
    pub stated: String,
    /// What is compared: "write cost of 512 KiB segments".
    pub what: String,
    /// What they found, with its unit. Where it says that it is computed, it is what a formula gives that is known to be right.
    pub theirs: String,
    /// What was found here.
    pub ours: String,
    /// Whether what must be so is so; nothing where values are only shown beside each other.
    pub holds: Option<bool>,
    /// Why they differ, as far as is known; empty if they do not.
    pub why: String,
}
