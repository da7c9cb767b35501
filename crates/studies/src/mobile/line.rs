//! The link: fetches, and what goes home when its turn comes. Time passes only here.

use super::log::{Log, Oldest};
use super::turns::{Turn, Turns, Waiting};
use super::{Parameters, Rules};
use host::{Random, SplitMix64};
use serde::Serialize;
use std::time::Duration;

/// Most pieces into which one transfer is divided.
const PIECE_COUNT_MAX: u64 = 1 << 16;

/// A link: it carries one thing at a time, in either direction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Link {
    /// Its rate.
    pub bits_per_second: u64,
    /// The additional time until a transfer has arrived, or is known to be home. The paper has
    /// none.
    pub round_trip_us: u64,
}

impl Link {
    /// A modem.
    pub const MODEM: Link = Link::of(28_800);
    /// The link of the office: 10 Mb/s (section 4.3).
    pub const STRONG: Link = Link::of(10_000_000);

    /// A link with this rate, and no other delay.
    pub const fn of(bits_per_second: u64) -> Link {
        Link { bits_per_second, round_trip_us: 0 }
    }

    pub(super) fn bytes_per_second(&self) -> f64 {
        self.bits_per_second as f64 / 8.0
    }

    /// The time for this many bytes, without the round trip.
    fn time_us(&self, bytes: u64) -> u64 {
        let time = (u128::from(bytes) * 8_000_000).div_ceil(u128::from(self.bits_per_second));
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// The bytes that it carries in this time.
    fn bytes_in(&self, time_us: u64) -> u64 {
        let bytes = u128::from(time_us) * u128::from(self.bits_per_second) / 8_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// What has gone home, and how long it took.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    pub bytes: u64,
    pub count: u64,
    /// The time from writing until home: of all together, and the longest.
    pub waited_us: u128,
    pub waited_max_us: u64,
}

/// A piece on its way home.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start_us: u64,
    end_us: u64,
    bytes: u64,
}

/// The link with the log behind it.
pub(super) struct Line<'a> {
    of: &'a Parameters,
    turns: Turns,
    random: SplitMix64,
    pub log: Box<dyn Log + 'a>,
    /// The rest of what has begun to go home.
    begun_bytes: Option<u64>,
    piece: Option<Piece>,
    /// When to look next whether something may go home, unless a fetch comes before.
    look_at_us: Option<u64>,
    /// When the link was used last.
    ended_us: u64,
    /// When a fetch used it last.
    fetched_us: u64,
    /// When the last piece was home.
    piece_ended_us: u64,
    pub sent: Sent,
}

impl<'a> Line<'a> {
    pub fn new(of: &'a Parameters, log: Box<dyn Log + 'a>) -> Line<'a> {
        let (terms, sharing) = of.scheme();
        let (turns, random) = (Turns::new(terms, sharing), SplitMix64::new(of.seed ^ 1));
        let (ended_us, fetched_us, piece_ended_us) = (0, 0, 0);
        let (begun_bytes, piece, look_at_us, sent) = (None, None, None, Sent::default());
        Line { of, turns, random, log, begun_bytes, piece, look_at_us, ended_us, fetched_us, piece_ended_us, sent }
    }

    /// Notes that something was logged.
    pub fn logged(&mut self, now_us: u64) {
        self.look_at_us.get_or_insert(now_us);
    }

    /// Sends home what goes before this time.
    pub fn run_until(&mut self, until_us: u64) {
        loop {
            if let Some(piece) = self.piece {
                if piece.end_us > until_us {
                    return;
                }
                self.end_piece(piece);
                continue;
            }
            let Some(at_us) = self.look_at_us.filter(|at| *at < until_us) else { return };
            match self.turn(at_us, None) {
                Turn::Send => drop(self.begin_piece(at_us)),
                // A wait of zero must still advance the time.
                Turn::Wait(time) => self.look_at_us = Some(at_us.saturating_add(micros(time).max(1))),
                Turn::Fetch | Turn::Nobody => self.look_at_us = None,
            }
        }
    }

    /// Fetches these transfers, for which the user waits from now on. Returns the time when they
    /// are there, and how much of the wait was for what went home meanwhile.
    pub fn fetch(&mut self, now_us: u64, transfers: &[u64]) -> (u64, u64) {
        let (mut at_us, mut alone_us) = (now_us, self.of.link.round_trip_us);
        // A fetch that comes while the link is idle is next.
        let mut is_contested = false;
        match self.piece {
            Some(piece) if self.turns.stops() => self.stop_piece(piece, now_us),
            Some(piece) => {
                (at_us, is_contested) = (piece.end_us.max(now_us), true);
                self.end_piece(piece);
            }
            None => {}
        }
        let mut is_first = true;
        for bytes in self.pieces(transfers) {
            let since = now_us;
            while is_contested && self.turn(at_us, Some(since)) == Turn::Send {
                let piece = self.begin_piece(at_us);
                at_us = piece.end_us;
                self.end_piece(piece);
            }
            let time_us = self.of.link.time_us(bytes);
            alone_us = alone_us.saturating_add(time_us);
            let round_trip_us = if std::mem::take(&mut is_first) { self.of.link.round_trip_us } else { 0 };
            at_us = at_us.saturating_add(time_us).saturating_add(round_trip_us);
            (self.ended_us, self.fetched_us, is_contested) = (at_us, at_us, true);
        }
        self.look_at_us = Some(at_us);
        let stalled_us = at_us - now_us;
        (at_us, stalled_us.saturating_sub(alone_us))
    }

    /// Divides transfers into pieces: the product draws lots for what its link carries in a moment,
    /// the paper for blocks and files.
    fn pieces(&self, transfers: &[u64]) -> Vec<u64> {
        if self.of.rules == Rules::Paper {
            return transfers.to_vec();
        }
        let all = transfers.iter().fold(0u64, |all, bytes| all.saturating_add(*bytes));
        let len = self.piece_len(all);
        (0..all.div_ceil(len)).map(|at| len.min(all - at * len)).collect()
    }

    fn piece_len(&self, all: u64) -> u64 {
        match self.of.rules {
            Rules::Paper => all.max(1),
            Rules::Product => {
                policy::write_back::chunk_len(self.of.link.bytes_per_second()).max(all.div_ceil(PIECE_COUNT_MAX))
            }
        }
    }

    /// What is next, now that the link is free. `demand_us`: since when the user waits.
    fn turn(&mut self, now_us: u64, demand_us: Option<u64>) -> Turn {
        let oldest = self.log.oldest();
        let since = |then: u64| Duration::from_micros(now_us.saturating_sub(then));
        let used_us = match self.of.rules {
            Rules::Paper => self.ended_us,
            // Traffic towards the home does not count.
            Rules::Product => self.fetched_us,
        };
        let waiting = Waiting {
            demand: demand_us.map(since),
            oldest: oldest.map(|oldest| since(oldest.since_us)),
            turn: oldest.map_or(Duration::ZERO, |oldest| since(oldest.since_us.max(self.piece_ended_us))),
            is_begun: self.begun_bytes.is_some(),
            idle_for: since(used_us),
            has_ended: now_us == self.ended_us,
        };
        let random = &self.random;
        self.turns.next(&waiting, || random.next_u64())
    }

    fn begin_piece(&mut self, now_us: u64) -> Piece {
        let (left, round_trip_us) = match self.begun_bytes {
            Some(left) => (left, 0),
            None => {
                let bytes = self.log.oldest().map_or(0, |oldest| oldest.bytes);
                self.log.begin();
                (bytes, self.of.link.round_trip_us)
            }
        };
        self.begun_bytes = Some(left);
        let all = self.log.oldest().map_or(0, |oldest| oldest.bytes);
        let bytes = left.min(self.piece_len(all));
        let time_us = self.of.link.time_us(bytes).saturating_add(round_trip_us);
        let piece = Piece { start_us: now_us, end_us: now_us.saturating_add(time_us), bytes };
        self.piece = Some(piece);
        piece
    }

    /// Ends a piece: it is home.
    fn end_piece(&mut self, piece: Piece) {
        self.piece = None;
        (self.ended_us, self.piece_ended_us, self.look_at_us) = (piece.end_us, piece.end_us, Some(piece.end_us));
        self.begun_bytes = self.begun_bytes.map(|left| left - piece.bytes).filter(|left| *left > 0);
        if self.begun_bytes.is_some() {
            return;
        }
        let Some(Oldest { bytes, since_us }) = self.log.oldest() else { return };
        self.log.end();
        let waited_us = piece.end_us.saturating_sub(since_us);
        self.sent.bytes = self.sent.bytes.saturating_add(bytes);
        self.sent.count += 1;
        self.sent.waited_us += u128::from(waited_us);
        self.sent.waited_max_us = self.sent.waited_max_us.max(waited_us);
    }

    /// Stops a piece.
    fn stop_piece(&mut self, piece: Piece, now_us: u64) {
        (self.piece, self.begun_bytes) = (None, None);
        let on_the_link_us = (now_us - piece.start_us).saturating_sub(self.of.link.round_trip_us);
        let bytes = self.of.link.bytes_in(on_the_link_us).min(piece.bytes);
        self.log.stop(bytes);
        self.sent.bytes = self.sent.bytes.saturating_add(bytes);
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros().try_into().unwrap_or(u64::MAX)
}
