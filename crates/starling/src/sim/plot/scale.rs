//! Axes: their ends, and the numbers beside them.
//!
//! plotters gets evenly spaced axes only. For an axis by powers, it gets decimal logarithms.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;
use studies::figure::Scale;

/// Rough number of numbers beside an axis.
const TICKS: f64 = 6.0;
/// Largest absolute value on an axis, and on a logarithmic axis the inverse of the smallest. Beyond
/// it, floating point cannot represent differences between values reliably.
const LARGEST: f64 = 1e100;

/// An axis.
#[derive(Clone, Debug)]
pub struct Scaled {
    is_log: bool,
    /// Where it begins, in the coordinates that plotters gets.
    pub low: f64,
    /// Where it ends.
    pub high: f64,
    /// The numbers beside it: their places and their text.
    ticks: Vec<(f64, String)>,
}

impl Scaled {
    /// An axis that has all these values, except those that cannot be on it.
    pub fn of(scale: Scale, values: impl Iterator<Item = f64>, from_nought: bool) -> Scaled {
        let is_log = scale == Scale::Log;
        let places = values.filter_map(|value| place(is_log, value));
        let range = places.fold(None, |range: Option<(f64, f64)>, at| match range {
            Some((low, high)) => Some((low.min(at), high.max(at))),
            None => Some((at, at)),
        });
        let (low, high) = range.unwrap_or((0.0, 1.0));
        if is_log { by_powers(low, high) } else { evenly(low, high, from_nought) }
    }

    /// An axis of `count` things with names, which the axis does not write.
    pub fn of_names(count: usize) -> Scaled {
        Scaled { is_log: false, low: 0.5, high: count.max(1) as f64 + 0.5, ticks: Vec::new() }
    }

    /// The place of a value; `None` if it cannot be on this axis.
    pub fn place(&self, value: f64) -> Option<f64> {
        place(self.is_log, value)
    }
}

impl Ranged for Scaled {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, (first, last): (i32, i32)) -> i32 {
        let part = (place - self.low) / (self.high - self.low);
        first + (part * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight().allow_light_points() {
            true => Vec::new(),
            false => self.ticks.iter().map(|(at, _)| *at).collect(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Scaled {
    fn format(place: &f64) -> String {
        place.to_string()
    }

    fn format_ext(&self, place: &f64) -> String {
        self.ticks.iter().find(|(at, _)| at == place).map_or(String::new(), |(_, text)| text.clone())
    }
}

fn place(is_log: bool, value: f64) -> Option<f64> {
    let is_shown = value.is_finite() && value.abs() <= LARGEST && (!is_log || value >= 1.0 / LARGEST);
    is_shown.then(|| if is_log { value.log10() } else { value })
}

fn evenly(low: f64, high: f64, from_nought: bool) -> Scaled {
    let (mut low, mut high) = (low, high);
    if high - low <= 1e-9 * low.abs().max(high.abs()) {
        let around = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
        (low, high) = (if low == 0.0 { 0.0 } else { low - around }, high + around);
    }
    // Begin at nought if that is not far, so that lengths can be compared.
    if low > 0.0 && (from_nought || low < 0.5 * high) {
        low = 0.0;
    } else if high < 0.0 && from_nought {
        high = 0.0;
    }
    let step = step(high - low);
    (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
    let ticks = numbers(low, high, step).map(|value| (value, written(value, step))).collect();
    Scaled { is_log: false, low, high, ticks }
}

/// The round step (1, 2 or 5 times a power of ten) that divides a range into about [`TICKS`] parts.
fn step(range: f64) -> f64 {
    let about = range / TICKS;
    let power = 10f64.powi(about.log10().floor() as i32);
    let nice = [1.0, 2.0, 5.0, 10.0].into_iter().find(|nice| nice * power >= about);
    nice.unwrap_or(10.0) * power
}

fn numbers(low: f64, high: f64, step: f64) -> impl Iterator<Item = f64> {
    let first = (low / step).round();
    let count = ((high - low) / step).round().clamp(0.0, 3.0 * TICKS) as u32;
    (0..=count).map(move |at| (first + f64::from(at)) * step)
}

fn by_powers(low: f64, high: f64) -> Scaled {
    let margin = ((high - low) * 0.04).max(0.02);
    let (low, high) = (low - margin, high + margin);
    let decades = low.floor() as i32..=high.ceil() as i32;
    let within: &[f64] = if high - low <= 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let every = (((high - low) / (1.5 * TICKS)).ceil() as usize).max(1);
    let values = decades.step_by(every).flat_map(|decade| within.iter().map(move |times| (*times, decade)));
    let mut ticks: Vec<(f64, String)> = values
        .map(|(times, decade)| (times.log10() + f64::from(decade), power(times, decade)))
        .filter(|(at, _)| (low..=high).contains(at))
        .collect();
    if ticks.len() < 3 {
        // The axis spans hardly more than one power of ten: evenly spaced numbers say more.
        let (from, to) = (10f64.powf(low), 10f64.powf(high));
        let step = step(to - from);
        let values = numbers((from / step).ceil() * step, (to / step).floor() * step, step);
        ticks = values.map(|value| (value.log10(), written(value, step))).collect();
    }
    Scaled { is_log: true, low, high, ticks }
}

/// A number as text: `2000`, `0.05`, `1e-7`.
fn power(times: f64, decade: i32) -> String {
    match decade {
        0..6 => format!("{}", times * 10f64.powi(decade)),
        -4..0 => format!("{:.*}", -decade as usize, times * 10f64.powi(decade)),
        _ => format!("{times}e{decade}"),
    }
}

/// A number as text, with the digits that the step between two numbers has.
fn written(value: f64, step: f64) -> String {
    let digits = -step.log10().floor();
    match value.abs() {
        value_abs if value_abs >= 1e7 || (value_abs > 0.0 && step < 1e-6) => format!("{value:.2e}"),
        _ => format!("{:.*}", digits.clamp(0.0, 8.0) as usize, value + 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(scale: Scale, values: &[f64]) -> Vec<String> {
        Scaled::of(scale, values.iter().copied(), false).ticks.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn numbers_beside_axes_are_round() {
        assert_eq!(texts(Scale::Linear, &[3.0, 97.0]), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(texts(Scale::Linear, &[1.0, 1.08]), ["1.00", "1.02", "1.04", "1.06", "1.08"]);
        assert_eq!(texts(Scale::Linear, &[-1.0, 1.0]), ["-1.0", "-0.5", "0.0", "0.5", "1.0"]);
        assert_eq!(texts(Scale::Log, &[0.05, 200.0]), ["0.1", "1", "10", "100"]);
        assert_eq!(texts(Scale::Log, &[10.0, 100.0]), ["10", "20", "50", "100"]);
        assert_eq!(texts(Scale::Log, &[0.97, 1.04]), ["0.95", "1.00", "1.05"]);
    }

    #[test]
    fn all_that_is_shown_is_between_the_ends() {
        let (few, many) = ([7.0, 7.0], [1e-90, -3.0, 0.0, 5e80]);
        for values in [&few[..], &many[..], &[]] {
            for scale in [Scale::Linear, Scale::Log] {
                let of = Scaled::of(scale, values.iter().copied(), true);
                assert!(of.low < of.high, "{of:?}");
                for place in values.iter().filter_map(|value| of.place(*value)) {
                    assert!((of.low..=of.high).contains(&place), "{place} {of:?}");
                }
                assert!(
                    of.ticks.len() < 25
                        && of.ticks.iter().all(|(at, _)| (of.low - 1e-9..=of.high * 1.0001).contains(at)),
                    "{of:?}"
                );
            }
        }
        assert_eq!(Scaled::of(Scale::Log, [1.0].into_iter(), false).place(0.0), None);
    }
}
