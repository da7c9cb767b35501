//! Draws figures as SVG, with units on the axes, a legend, and curves that differ without colours
//! too.
//!
//! `plot/scale.rs` has the axes. plotters draws. This module keeps from it what it cannot draw: no
//! points, numbers that are not finite, and points that are all at one place.

mod scale;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use scale::Scaled;
use studies::cooperative::Algorithm;
use studies::figure::{Axis, Curve, Figure, Shape};

/// Width and height of a figure, in pixels.
const SIZE: (u32, u32) = (800, 500);
const LEGEND_WIDTH: u32 = 205;
const TITLE_HEIGHT: u32 = 46;
/// Letters that fit in a line of a title, in a line of the legend, and in all labels below the bars
/// together.
const TITLE_LEN: usize = 95;
const LEGEND_LEN: usize = 30;
const LABELS_LEN: usize = 92;
const LINE_HEIGHT: i32 = 14;

const COLOURS: [RGBColor; 11] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(255, 127, 14),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(23, 190, 207),
    RGBColor(110, 110, 110),
    RGBColor(188, 160, 20),
    RGBColor(0, 0, 128),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The figures below each other, as one SVG.
pub fn svg(figures: &[Figure]) -> anyhow::Result<String> {
    let mut text = String::new();
    {
        let count = figures.len().max(1);
        let root = SVGBackend::with_string(&mut text, (SIZE.0, SIZE.1 * count as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        for (at, (figure, area)) in figures.iter().zip(root.split_evenly((count, 1))).enumerate() {
            draw(figure, &root, &area, at as i32 * SIZE.1 as i32)?;
        }
        root.present()?;
    }
    Ok(text)
}

/// Draws a figure into `area`, which begins `top` pixels below the top of `root`, the whole
/// drawing.
fn draw(figure: &Figure, root: &Area, area: &Area, top: i32) -> anyhow::Result<()> {
    let (head, rest) = area.split_vertically(TITLE_HEIGHT);
    let title = wrapped(&figure.title, TITLE_LEN).join(" ");
    head.draw(&Text::new(title, (12, 10), ("sans-serif", 15).into_font().style(FontStyle::Bold).color(&BLACK)))?;
    if !figure.repeats.is_empty() {
        let what = format!("repeats {}", figure.repeats);
        head.draw(&Text::new(what, (12, 29), ("sans-serif", 12).into_font().color(&BLACK.mix(0.7))))?;
    }
    let plot = Plot::of(figure);
    let styles = styles(figure);
    let (chart, legend) = rest.split_horizontally(SIZE.0 - LEGEND_WIDTH);
    let names = (!plot.names.is_empty()).then(|| plot.name_lines());
    let lines = names.iter().flatten().map(Vec::len).max().unwrap_or(0) as i32;
    let (x, y) = (&plot.x, &plot.y);
    let mut chart = ChartBuilder::on(&chart)
        .margin(10)
        .x_label_area_size(44 + LINE_HEIGHT * (lines - 1).max(0))
        .y_label_area_size(66)
        .build_cartesian_2d(x.clone(), y.clone())?;
    let mut mesh = chart.configure_mesh();
    let font = || ("sans-serif", 12).into_font().color(&BLACK);
    mesh.bold_line_style(BLACK.mix(0.15)).light_line_style(TRANSPARENT).axis_style(BLACK.mix(0.6));
    mesh.label_style(font()).axis_desc_style(font());
    mesh.y_desc(&figure.y.label);
    if names.is_some() {
        mesh.disable_x_mesh();
    } else {
        mesh.x_desc(&figure.x.label);
    }
    mesh.draw()?;
    let pixel = |point: (f64, f64)| chart.backend_coord(&point);
    let centered = |size: i32| ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(HPos::Center, VPos::Top));
    let below = pixel((x.low, y.low)).1 + 8;
    let size = if plot.names.len() > 8 { 10 } else { 12 };
    for (at, lines) in names.into_iter().flatten().enumerate() {
        let middle = pixel((at as f64 + 1.0, y.low)).0;
        for (line, text) in lines.into_iter().enumerate() {
            root.draw(&Text::new(text, (middle, below + line as i32 * LINE_HEIGHT), centered(size)))?;
        }
    }
    if !plot.names.is_empty() {
        let middle = pixel(((x.low + x.high) / 2.0, y.low)).0;
        root.draw(&Text::new(plot.what.clone(), (middle, below + lines * LINE_HEIGHT + 6), centered(12)))?;
    }
    match figure.shape {
        Shape::Lines => {
            for (at, points) in styles.iter().copied().zip(&plot.curves) {
                let line = points.iter().map(|point| pixel(*point)).collect::<Vec<_>>();
                if line.len() > 1 {
                    root.draw(&PathElement::new(line.clone(), colour(at).stroke_width(2)))?;
                }
                line.into_iter().try_for_each(|place| mark(root, place, at))?;
            }
        }
        Shape::Points => {
            for (at, points) in styles.iter().copied().zip(&plot.curves) {
                points.iter().try_for_each(|point| mark(root, pixel(*point), at))?;
            }
        }
        Shape::Bars | Shape::Stacks => {
            for Bar { curve, left, right, low, high } in plot.bars(figure.shape) {
                let corners = [pixel((left, low)), pixel((right, high))];
                root.draw(&Rectangle::new(corners, colour(styles[curve]).filled()))?;
            }
        }
    }
    for (at, points) in plot.theirs.iter().enumerate() {
        points.iter().try_for_each(|point| their_mark(root, pixel(*point), at))?;
    }
    if plot.curves.iter().all(Vec::is_empty) {
        let middle = pixel(((x.low + x.high) / 2.0, (y.low + y.high) / 2.0));
        root.draw(&Text::new("nothing was measured", middle, centered(14)))?;
    }
    explain(figure, &styles, &legend, root, top)
}

/// Draws the legend.
fn explain(figure: &Figure, styles: &[usize], legend: &Area, root: &Area, top: i32) -> anyhow::Result<()> {
    let mut y = 14;
    let left = (SIZE.0 - LEGEND_WIDTH) as i32;
    for (at, curve) in styles.iter().copied().zip(&figure.curves) {
        let place = (left + 14, top + TITLE_HEIGHT as i32 + y + 6);
        match figure.shape {
            Shape::Bars | Shape::Stacks => {
                let corners = [(place.0 - 6, place.1 - 6), (place.0 + 6, place.1 + 6)];
                root.draw(&Rectangle::new(corners, colour(at).filled()))?;
            }
            Shape::Lines => {
                let line = vec![(place.0 - 11, place.1), (place.0 + 11, place.1)];
                root.draw(&PathElement::new(line, colour(at).stroke_width(2)))?;
                mark(root, place, at)?;
            }
            Shape::Points => mark(root, place, at)?,
        }
        y = explained(legend, &curve.name, y)?;
    }
    for (at, curve) in figure.theirs.iter().enumerate() {
        their_mark(root, (left + 14, top + TITLE_HEIGHT as i32 + y + 6), at)?;
        y = explained(legend, &curve.name, y)?;
    }
    Ok(())
}

/// Writes a name beside its mark. Returns the height of the next one.
fn explained(legend: &Area, name: &str, mut y: i32) -> anyhow::Result<i32> {
    for line in wrapped(name, LEGEND_LEN) {
        legend.draw(&Text::new(line, (30, y), ("sans-serif", 12).into_font().color(&BLACK)))?;
        y += LINE_HEIGHT;
    }
    Ok(y + 5)
}

/// The number of each curve's colour and mark. An algorithm has the same number in all figures;
/// other curves take the numbers that are left, in their order.
fn styles(figure: &Figure) -> Vec<usize> {
    let own = |name: &str| Algorithm::ALL.iter().position(|algorithm| algorithm.name() == name);
    let taken: Vec<usize> = figure.curves.iter().filter_map(|curve| own(&curve.name)).collect();
    let mut left = (0..).filter(|style| !taken.contains(style));
    let styles = figure.curves.iter().map(|curve| own(&curve.name).or_else(|| left.next()).unwrap_or(0));
    styles.collect()
}

fn colour(curve: usize) -> RGBColor {
    COLOURS[curve % COLOURS.len()]
}

/// Draws one of five marks, so that curves differ in more than colour.
fn mark(root: &Area, (x, y): (i32, i32), curve: usize) -> anyhow::Result<()> {
    let style = colour(curve).filled();
    match curve % 5 {
        0 => root.draw(&Circle::new((x, y), 4, style))?,
        1 => root.draw(&TriangleMarker::new((x, y), 5, style))?,
        2 => root.draw(&Rectangle::new([(x - 3, y - 3), (x + 3, y + 3)], style))?,
        3 => root.draw(&Cross::new((x, y), 4, colour(curve).stroke_width(2)))?,
        _ => root.draw(&Polygon::new(vec![(x, y - 5), (x + 5, y), (x, y + 5), (x - 5, y)], style))?,
    }
    Ok(())
}

/// Draws the mark of a value that a paper states: open, so that the measured value shows below it.
fn their_mark(root: &Area, (x, y): (i32, i32), curve: usize) -> anyhow::Result<()> {
    match curve % 2 {
        0 => root.draw(&PathElement::new(
            vec![(x, y - 7), (x + 7, y), (x, y + 7), (x - 7, y), (x, y - 7)],
            BLACK.stroke_width(2),
        ))?,
        _ => root.draw(&Circle::new((x, y), 6, BLACK.stroke_width(2)))?,
    }
    Ok(())
}

/// Breaks text into lines of at most `len` letters, between words. A longer word is a longer line.
fn wrapped(text: &str, len: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive([' ', '-']) {
        let line = lines.last_mut().expect("at least one");
        if !line.is_empty() && line.chars().count() + word.trim_end().chars().count() > len {
            lines.push(word.to_owned());
        } else {
            line.push_str(word);
        }
    }
    lines
}

/// A figure in the coordinates of its axes.
struct Plot {
    x: Scaled,
    y: Scaled,
    curves: Vec<Vec<(f64, f64)>>,
    /// Curves that the paper states.
    theirs: Vec<Vec<(f64, f64)>>,
    /// For bars: what the x axis lists, and the name of each bar.
    what: String,
    names: Vec<String>,
}

struct Bar {
    curve: usize,
    left: f64,
    right: f64,
    low: f64,
    high: f64,
}

impl Plot {
    fn of(figure: &Figure) -> Plot {
        let is_bars = matches!(figure.shape, Shape::Bars | Shape::Stacks);
        let (what, names) = if is_bars { named(&figure.x) } else { (String::new(), Vec::new()) };
        let points = || figure.curves.iter().chain(&figure.theirs).flat_map(|curve| &curve.points);
        let measured = || figure.curves.iter().flat_map(|curve| &curve.points);
        let sums = || {
            (1..=names.len())
                .map(|at| measured().filter(|point| point.0 == at as f64).map(|point| point.1).sum::<f64>())
        };
        let x = match is_bars {
            true => Scaled::of_names(names.len()),
            false => Scaled::of(figure.x.scale, points().map(|point| point.0), false),
        };
        let y = match figure.shape {
            Shape::Stacks => Scaled::of(figure.y.scale, sums().chain(points().map(|point| point.1)), true),
            shape => Scaled::of(figure.y.scale, points().map(|point| point.1), shape == Shape::Bars),
        };
        let place = |(one, other): &(f64, f64)| Some((x.place(*one)?, y.place(*other)?));
        let placed = |curve: &Curve| curve.points.iter().filter_map(place).collect();
        let curves = figure.curves.iter().map(placed).collect();
        let theirs = figure.theirs.iter().map(placed).collect();
        Plot { curves, theirs, x, y, what, names }
    }

    /// The label below each bar, in lines.
    fn name_lines(&self) -> Vec<Vec<String>> {
        let len = (LABELS_LEN / self.names.len().max(1)).max(8);
        self.names.iter().map(|name| wrapped(name, len)).collect()
    }

    fn bars(&self, shape: Shape) -> Vec<Bar> {
        let (mut bars, count) = (Vec::new(), self.curves.len().max(1) as f64);
        let mut sums = vec![self.y.low; self.names.len()];
        for (curve, points) in self.curves.iter().enumerate() {
            for (x, y) in points {
                let at = (*x as usize).checked_sub(1).and_then(|at| sums.get_mut(at));
                let Some(sum) = at else { continue };
                match shape {
                    Shape::Stacks => {
                        let low = *sum;
                        *sum += y - self.y.low;
                        bars.push(Bar { curve, left: x - 0.35, right: x + 0.35, low, high: *sum });
                    }
                    _ => {
                        let (left, width) = (x - 0.4, 0.8 / count);
                        let left = left + width * curve as f64;
                        bars.push(Bar { curve, left, right: left + width, low: self.y.low, high: *y });
                    }
                }
            }
        }
        bars
    }
}

/// Splits a label into its subject and names: "request: 1 read, 2 write" gives "request", "read"
/// and "write".
fn named(axis: &Axis) -> (String, Vec<String>) {
    let Some((what, names)) = axis.label.split_once(": ") else { return (axis.label.clone(), Vec::new()) };
    let mut found: Vec<String> = Vec::new();
    for part in names.split(", ") {
        match part.strip_prefix(&format!("{} ", found.len() + 1)) {
            Some(name) => found.push(name.to_owned()),
            // The name before this one has a comma in it.
            None => found.iter_mut().next_back().into_iter().for_each(|name| *name += &format!(", {part}")),
        }
    }
    (what.to_owned(), found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use studies::figure::Scale;

    fn figure(shape: Shape, scale: Scale, curves: Vec<Vec<(f64, f64)>>) -> Figure {
        let axis = |label: &str| Axis { label: label.into(), scale };
        let curves = curves.into_iter().zip(1..).map(|(points, at)| Curve { name: format!("curve <{at}>"), points });
        let label =
            if matches!(shape, Shape::Lines | Shape::Points) { "x (s)" } else { "of: 1 one, 2 another, or so, 3 none" };
        let (x, y) = (Axis { scale: Scale::Linear, ..axis(label) }, axis("y (ms)"));
        Figure {
            title: "A & B".into(),
            repeats: String::new(),
            shape,
            x,
            y,
            curves: curves.collect(),
            theirs: Vec::new(),
        }
    }

    fn circles(svg: &str) -> usize {
        svg.matches("<circle").count()
    }

    #[test]
    fn whatever_is_measured_is_drawn_or_left_out() {
        let (none, infinite) = (f64::NAN, f64::INFINITY);
        let all = [
            vec![],
            vec![vec![]],
            vec![vec![(1.0, 2.0)]],
            vec![vec![(0.0, 0.0)], vec![]],
            vec![vec![(1.0, none), (none, 1.0), (infinite, -infinite)]],
            vec![vec![(1.0, 7.0), (2.0, 7.0), (3.0, 7.0)]],
            vec![vec![(1.0, 1e308), (2.0, -1e308), (3.0, f64::MIN_POSITIVE)]],
            vec![vec![(1.0, 1e-99), (2.0, 1e99)], vec![(-3.0, -1.0), (3.0, -2.0)]],
            vec![vec![(1.0, 1.0), (1.0 + 1e-15, 1.0 + 1e-15)]],
            vec![vec![(2.0, 0.5)]; 40],
        ];
        for shape in [Shape::Lines, Shape::Points, Shape::Bars, Shape::Stacks] {
            for scale in [Scale::Linear, Scale::Log] {
                for curves in &all {
                    let drawn = svg(&[figure(shape, scale, curves.clone())]).expect("drawn");
                    assert!(drawn.contains("y (ms)") && drawn.contains("A &amp; B"), "{curves:?}");
                    assert_eq!(drawn.contains("curve &lt;1&gt;"), !curves.is_empty());
                    assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{curves:?}");
                }
            }
        }
        assert!(svg(&[]).expect("drawn").ends_with("</svg>\n"));
    }

    #[test]
    fn each_point_that_can_be_shown_has_its_mark() {
        let points = vec![(1.0, 10.0), (2.0, f64::NAN), (3.0, -1.0), (4.0, 100.0)];
        // One more explains the curve.
        for (scale, count) in [(Scale::Linear, 3 + 1), (Scale::Log, 2 + 1)] {
            let drawn = svg(&[figure(Shape::Lines, scale, vec![points.clone()])]).expect("drawn");
            assert_eq!(circles(&drawn), count);
            assert!(drawn.contains("<polyline"));
            let drawn = svg(&[figure(Shape::Points, scale, vec![points.clone()])]).expect("drawn");
            assert_eq!(circles(&drawn), count);
        }
    }

    #[test]
    fn an_algorithm_has_its_colour_in_all_figures() {
        let of = |names: &[&str]| {
            let curves = names.iter().map(|name| Curve { name: (*name).into(), points: Vec::new() });
            styles(&Figure { curves: curves.collect(), ..figure(Shape::Lines, Scale::Linear, Vec::new()) })
        };
        let all = Algorithm::ALL.map(Algorithm::name);
        assert_eq!(of(&all), (0..all.len()).collect::<Vec<_>>());
        assert_eq!(of(&["greedy", "total", "base", "other"]), [2, 1, 0, 3]);
    }

    #[test]
    fn what_a_paper_states_is_drawn_where_it_belongs_and_explained() {
        let own = figure(Shape::Lines, Scale::Linear, vec![vec![(0.0, 0.0), (1.0, 2.0)]]);
        let with_point = |y| {
            let theirs = vec![Curve { name: "the thesis's".into(), points: vec![(1.0, y)] }];
            Figure { theirs, ..own.clone() }
        };
        let marks = |figure: &Figure| svg(std::slice::from_ref(figure)).expect("drawn").matches("<polyline").count();
        assert_eq!(marks(&with_point(1.0)), marks(&own) + 2, "a point and its explanation");
        assert!(Plot::of(&with_point(1000.0)).y.high >= 1000.0);
    }

    #[test]
    fn figures_are_below_each_other() {
        let one = figure(Shape::Lines, Scale::Linear, vec![vec![(0.0, 1.0), (1.0, 2.0)]]);
        let other = Figure { title: "the other".into(), ..one.clone() };
        let drawn = svg(&[one, other]).expect("drawn");
        assert!(drawn.starts_with("<svg width=\"800\" height=\"1000\""), "{}", &drawn[..60]);
        let heights = drawn.split("<circle").skip(1).map(|circle| {
            let y = circle.split("cy=\"").nth(1).expect("a height");
            y.split('"').next().expect("a number").parse::<u32>().expect("a number")
        });
        let below: Vec<bool> = heights.map(|y| y > 500).collect();
        assert_eq!(below, [false, false, false, true, true, true]);
    }

    #[test]
    fn what_bars_are_of_is_said_by_the_label() {
        let label = "request: 1 read, 2 write, or more, 3 delete".into();
        let (what, names) = named(&Axis { label, scale: Scale::Linear });
        assert_eq!((what.as_str(), names), ("request", vec!["read".into(), "write, or more".into(), "delete".into()]));
        let stacks =
            Plot::of(&figure(Shape::Stacks, Scale::Linear, vec![vec![(1.0, 2.0), (3.0, 1.0)], vec![(1.0, 3.0)]]));
        let ends: Vec<(f64, f64)> = stacks.bars(Shape::Stacks).iter().map(|bar| (bar.low, bar.high)).collect();
        assert_eq!(ends, [(0.0, 2.0), (0.0, 1.0), (2.0, 5.0)]);
        assert!(stacks.y.high >= 5.0);
    }

    #[test]
    fn long_names_are_in_lines() {
        assert_eq!(wrapped("weighted-lru-global", 9), ["weighted-", "lru-", "global"]);
        assert_eq!(wrapped("one two three", 8), ["one two ", "three"]);
        assert_eq!(wrapped("", 8), [""]);
    }
}
