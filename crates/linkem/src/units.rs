//! Rates, times, sizes and probabilities as users write them.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

const RATE_HINT: &str = "write bits per second with b/s, kb/s, Mb/s or Gb/s, such as 64kb/s";

/// Why a text, which each variant holds, has no meaning here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnitError {
    /// The text is not a rate.
    #[error("{0:?} is not a rate: {RATE_HINT}")]
    Rate(String),
    /// The text is neither a rate nor `unlimited`.
    #[error("{0:?} is not a rate: {RATE_HINT}, or unlimited")]
    RateOrUnlimited(String),
    /// The text is not a time.
    #[error("{0:?} is not a time: write one with us, ms, s or min, such as 40ms")]
    Time(String),
    /// The text is not a size.
    #[error("{0:?} is not a size: write one with B, KiB or MiB, such as 64KiB")]
    Size(String),
    /// The text is not a probability.
    #[error("{0:?} is not a probability: write a number from 0 to 1, such as 0.01")]
    Probability(String),
}

/// A rate in bits per second, never zero: a link that carries nothing is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(NonZeroU64);

impl Rate {
    /// A rate in bits per second. Panics if it is zero.
    pub const fn bits_per_s(bits: u64) -> Rate {
        Rate(NonZeroU64::new(bits).expect("a link with a rate of zero is one that is off"))
    }

    /// A rate in thousands of bits per second. Panics if it is zero.
    pub const fn kbits_per_s(kbits: u64) -> Rate {
        Rate::bits_per_s(kbits * 1000)
    }

    /// A rate in millions of bits per second. Panics if it is zero.
    pub const fn mbits_per_s(mbits: u64) -> Rate {
        Rate::bits_per_s(mbits * 1_000_000)
    }

    /// The rate in bits per second.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    /// Parses `9.6kb/s`, `64kb/s`, `10Mb/s`, `1Gb/s` or `300b/s`: bits, in powers of ten.
    fn from_str(text: &str) -> Result<Rate, UnitError> {
        const UNITS: [(&str, f64); 4] = [("kb/s", 1e3), ("Mb/s", 1e6), ("Gb/s", 1e9), ("b/s", 1.0)];
        let bits = number(text, &UNITS).filter(|bits| *bits >= 1.0 && *bits < 1e15);
        bits.map(|bits| Rate::bits_per_s(bits.round() as u64)).ok_or_else(|| UnitError::Rate(text.to_owned()))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.get() as f64;
        match bits {
            1e9.. => write!(f, "{}Gb/s", bits / 1e9),
            1e6.. => write!(f, "{}Mb/s", bits / 1e6),
            1e3.. => write!(f, "{}kb/s", bits / 1e3),
            _ => write!(f, "{bits}b/s"),
        }
    }
}

/// Parses a rate, or `unlimited`.
pub fn rate(text: &str) -> Result<Option<Rate>, UnitError> {
    match text {
        "unlimited" => Ok(None),
        _ => text.parse().map(Some).map_err(|_| UnitError::RateOrUnlimited(text.to_owned())),
    }
}

/// Parses `40ms`, `1.5s`, `200us` or `2min`.
pub fn time(text: &str) -> Result<Duration, UnitError> {
    const UNITS: [(&str, f64); 4] = [("us", 1e-6), ("ms", 1e-3), ("min", 60.0), ("s", 1.0)];
    let seconds = number(text, &UNITS).filter(|seconds| *seconds < 1e6);
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| UnitError::Time(text.to_owned()))
}

/// Parses `64KiB`, `1MiB` or `1500B` to bytes.
pub fn size(text: &str) -> Result<u64, UnitError> {
    const UNITS: [(&str, f64); 3] = [("KiB", 1024.0), ("MiB", 1_048_576.0), ("B", 1.0)];
    let bytes = number(text, &UNITS).filter(|bytes| *bytes < 1e15);
    bytes.map(|bytes| bytes as u64).ok_or_else(|| UnitError::Size(text.to_owned()))
}

/// Parses a probability, `0` to `1`.
pub fn probability(text: &str) -> Result<f64, UnitError> {
    let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| UnitError::Probability(text.to_owned()))
}

/// Parses a non-negative number, times the factor of its unit. If one unit ends like another, the
/// longer one must come first.
fn number(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (digits, factor) = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))?;
    let number: f64 = digits.trim_end().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_bits_in_powers_of_ten() {
        for (text, bits) in [("9.6kb/s", 9600), ("64 kb/s", 64_000), ("10Mb/s", 10_000_000), ("300b/s", 300)] {
            assert_eq!(text.parse(), Ok(Rate::bits_per_s(bits)), "{text}");
        }
        assert_eq!(rate("unlimited"), Ok(None));
        for wrong in ["64", "64kB/s", "0kb/s", "-1b/s", "kb/s", "inf b/s", ""] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_shown_as_they_are_written() {
        for text in ["9.6kb/s", "64kb/s", "10Mb/s", "2.5Gb/s", "300b/s"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn times_sizes_and_probabilities_need_sense() {
        assert_eq!(time("40ms"), Ok(Duration::from_millis(40)));
        assert_eq!(time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(time("2min"), Ok(Duration::from_secs(120)));
        assert!(time("40").is_err() && time("-1s").is_err() && time("NaNs").is_err());
        assert_eq!(size("64KiB"), Ok(65_536));
        assert!(size("64").is_err());
        assert_eq!(probability("0.05"), Ok(0.05));
        assert!(probability("1.1").is_err() && probability("NaN").is_err());
    }
}
