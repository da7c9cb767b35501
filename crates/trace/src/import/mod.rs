//! Traces from the output of other programs.
//!
//! - [`csv`]: a plain table.
//! - [`strace`]: the output of `strace -f`.
//!
//! Both read line by line, and are iterators over records that end after the first error, which
//! names the line. No input makes them panic.

pub mod csv;
pub mod strace;

use csv::CsvError;
use std::io::{BufRead, Read};
use strace::StraceError;
use thiserror::Error;

/// Longest line, in bytes.
const LINE_LEN_MAX: u64 = 1 << 20;

/// Why an import failed.
#[derive(Debug, Error)]
pub enum ImportError {
    /// A line is not as it should be.
    #[error("line {line}: {what}")]
    Line {
        /// The line, from 1.
        line: u64,
        /// The fault.
        what: LineError,
    },
    /// The input has no records.
    #[error("it has no records")]
    Empty,
    /// An error of the disk.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// What is wrong with a line.
#[derive(Debug, Error)]
pub enum LineError {
    /// It is too long.
    #[error("longer than a mebibyte")]
    Long,
    /// The input ends within the line.
    #[error("it breaks off here: the line has no end")]
    BreaksOff,
    /// It is not text.
    #[error("not text in UTF-8")]
    NotText,
    /// It does not belong in a table.
    #[error(transparent)]
    Csv(#[from] CsvError),
    /// It is not as strace writes it.
    #[error(transparent)]
    Strace(#[from] StraceError),
}

/// The lines of a file.
#[derive(Debug)]
struct Lines<R> {
    from: R,
    count: u64,
}

impl<R: BufRead> Lines<R> {
    fn new(from: R) -> Lines<R> {
        Lines { from, count: 0 }
    }

    /// An error about the line that was read last.
    fn fault(&self, what: impl Into<LineError>) -> ImportError {
        ImportError::Line { line: self.count, what: what.into() }
    }

    /// The next line without its newline. `Line` if it has no newline, is too long, or is not text.
    fn next(&mut self) -> Result<Option<String>, ImportError> {
        let mut line = Vec::new();
        let len = self.from.by_ref().take(LINE_LEN_MAX).read_until(b'\n', &mut line)?;
        if len == 0 {
            return Ok(None);
        }
        self.count += 1;
        if line.pop() != Some(b'\n') {
            return Err(self.fault(match len as u64 == LINE_LEN_MAX {
                true => LineError::Long,
                false => LineError::BreaksOff,
            }));
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        String::from_utf8(line).map(Some).map_err(|_| self.fault(LineError::NotText))
    }
}

/// Converts a decimal number of seconds to microseconds; digits beyond the sixth are dropped.
/// `None` if it is not a number, or too large.
fn time_us(seconds: &str) -> Option<u64> {
    let (whole, places) = seconds.split_once('.').unwrap_or((seconds, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(places) {
        return None;
    }
    let micros =
        places.bytes().chain(std::iter::repeat(b'0')).take(6).fold(0, |n, byte| n * 10 + u64::from(byte - b'0'));
    whole.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_read_to_the_microsecond() {
        let pairs = [("0", 0), ("1.5", 1_500_000), ("0.0000019", 1), ("1700000000.123456", 1_700_000_000_123_456)];
        pairs.into_iter().for_each(|(text, us)| assert_eq!(time_us(text), Some(us), "{text}"));
        for text in ["", ".", "1.", ".5", "-1", "1e3", "1.5.5", " 1", "18446744073709551615", "nan"] {
            assert_eq!(time_us(text), None, "{text}");
        }
    }
}
