//! The commands that a running link takes, one per line.

use linkem::{Direction, Rate, Shape, UnitError, units};
use std::time::Duration;
use thiserror::Error;

/// What to do with a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Command {
    /// Turn the link on or off in these directions, and stop flapping.
    Turn(&'static [Direction], bool),
    /// Change a setting in these directions.
    Change(&'static [Direction], Change),
    /// Turn the link on and off repeatedly; `None` stops that.
    Flap(Option<Flap>),
    /// Print the counters.
    Counters,
    /// End.
    Quit,
}

/// A changed setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// The new [`Shape::rate`].
    Rate(Option<Rate>),
    /// The new [`Shape::delay`].
    Delay(Duration),
    /// The new [`Shape::jitter`].
    Jitter(Duration),
    /// The new [`Shape::loss`].
    Loss(f64),
    /// The new [`Shape::queue_bytes`].
    Queue(Option<u64>),
}

impl Change {
    /// Returns `shape` with this setting changed.
    pub fn apply(self, shape: Shape) -> Shape {
        match self {
            Change::Rate(rate) => Shape { rate, ..shape },
            Change::Delay(delay) => Shape { delay, ..shape },
            Change::Jitter(jitter) => Shape { jitter, ..shape },
            Change::Loss(loss) => Shape { loss, ..shape },
            Change::Queue(queue_bytes) => Shape { queue_bytes, ..shape },
        }
    }
}

/// How long a flapping link is on and then off; neither is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flap {
    /// How long the link is on.
    pub on: Duration,
    /// How long it is then off.
    pub off: Duration,
}

/// Why a command is not understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommandError {
    /// The line is not a command.
    #[error("{0:?} is not a command; linkem --help lists them")]
    Unknown(String),
    /// The text does not say how to flap.
    #[error("{0:?} does not say how to flap: write how long on and how long off, such as 5s/2s")]
    Flap(String),
    /// The new value of a setting is wrong.
    #[error(transparent)]
    Value(#[from] UnitError),
}

/// Parses times such as `5s/2s`.
pub fn flap(text: &str) -> Result<Flap, CommandError> {
    let wrong = || CommandError::Flap(text.to_owned());
    let (on, off) = text.split_once('/').ok_or_else(wrong)?;
    let flap = Flap { on: units::time(on)?, off: units::time(off)? };
    if flap.on.is_zero() || flap.off.is_zero() { Err(wrong()) } else { Ok(flap) }
}

/// Parses a line; `None` if it is blank.
pub fn parse(line: &str) -> Result<Option<Command>, CommandError> {
    let words: Vec<_> = line.split_whitespace().collect();
    let Some((name, rest)) = words.split_first() else { return Ok(None) };
    let (directions, rest): (&[Direction], _) = match rest {
        ["up", rest @ ..] => (&[Direction::Up], rest),
        ["down", rest @ ..] => (&[Direction::Down], rest),
        rest => (&Direction::BOTH, rest),
    };
    let is_for_both = directions.len() == 2;
    let command = match (*name, rest) {
        ("on", []) => Command::Turn(directions, true),
        ("off", []) => Command::Turn(directions, false),
        ("rate", [rate]) => Command::Change(directions, Change::Rate(units::rate(rate)?)),
        ("delay", [delay]) => Command::Change(directions, Change::Delay(units::time(delay)?)),
        ("jitter", [jitter]) => Command::Change(directions, Change::Jitter(units::time(jitter)?)),
        ("loss", [loss]) => Command::Change(directions, Change::Loss(units::probability(loss)?)),
        ("queue", ["auto"]) => Command::Change(directions, Change::Queue(None)),
        ("queue", [size]) => Command::Change(directions, Change::Queue(Some(units::size(size)?))),
        ("flap", ["none"]) if is_for_both => Command::Flap(None),
        ("flap", [times]) if is_for_both => Command::Flap(Some(flap(times)?)),
        ("counters", []) if is_for_both => Command::Counters,
        ("quit", []) if is_for_both => Command::Quit,
        _ => return Err(CommandError::Unknown(line.to_owned())),
    };
    Ok(Some(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_for_both_directions_or_one() {
        assert_eq!(parse("off"), Ok(Some(Command::Turn(&Direction::BOTH, false))));
        assert_eq!(parse(" on  down "), Ok(Some(Command::Turn(&[Direction::Down], true))));
        let rate = Change::Rate(Some(Rate::bits_per_s(9600)));
        assert_eq!(parse("rate up 9.6kb/s"), Ok(Some(Command::Change(&[Direction::Up], rate))));
        assert_eq!(parse("rate unlimited"), Ok(Some(Command::Change(&Direction::BOTH, Change::Rate(None)))));
        assert_eq!(parse("queue auto"), Ok(Some(Command::Change(&Direction::BOTH, Change::Queue(None)))));
        assert_eq!(parse(""), Ok(None));
        let times = Flap { on: Duration::from_secs(5), off: Duration::from_millis(200) };
        assert_eq!(parse("flap 5s/200ms"), Ok(Some(Command::Flap(Some(times)))));
    }

    #[test]
    fn what_is_no_command_is_refused() {
        for wrong in ["offf", "off 3", "rate", "rate 3", "loss up 2", "counters up", "flap 5s/0s", "flap up 1s/1s"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_change_leaves_the_rest_as_it_is() {
        let shape = Shape { loss: 0.5, delay: Duration::from_secs(1), ..Shape::default() };
        let changed = Change::Loss(0.0).apply(shape);
        assert_eq!(changed, Shape { delay: Duration::from_secs(1), ..Shape::default() });
    }
}
