//! One direction of a link, as pure code: packets go in with a time, and come out when they are
//! due.
//!
//! A packet waits for the line in a FIFO of bounded size. It occupies the line for as long as its
//! bits take at the link's rate, and then travels for the delay. Random loss comes after the line:
//! a lost packet has used its time there.
//!
//! ```text
//! push -> [ queue ] -> line at the rate -> lost? -> on its way: delay + jitter -> pop
//! ```
//!
//! Invariants, for any sequence of calls:
//! - Packets leave in the order in which they came, and none before it is due.
//! - The line is never faster than the rate in force. Nor is the output, while the delay does not
//!   change and there is no jitter; but a caller that pops late gets all due packets at once.
//! - Each offered packet is delivered, lost, overflowed, dropped, or still held: the [`Counters`]
//!   add up.
//! - For the same seed, the n-th packet to leave the line draws the same random numbers under all
//!   settings.

use crate::units::Rate;
use host::{Random, SplitMix64};
use std::collections::VecDeque;
use std::time::Duration;

/// Most bytes that a link holds, queued and on their way. It bounds links without a rate, and links
/// with a very long delay.
pub const HELD_BYTES_MAX: u64 = 64 << 20;

/// The smallest default queue, in bytes: 16 full Ethernet packets.
pub const QUEUE_BYTES_MIN: u64 = 16 * 1500;

/// The settings of one direction of a link. The default is a perfect link.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Shape {
    /// The rate of the line; `None` is unlimited.
    pub rate: Option<Rate>,
    /// How long a packet travels after the line.
    pub delay: Duration,
    /// The largest random addition to a packet's delay. A packet never overtakes another.
    pub jitter: Duration,
    /// The probability that a packet is lost, 0 to 1.
    pub loss: f64,
    /// Most bytes that may wait for the line, including the packet that is on it. `None` is as many
    /// as the rate carries in 250 ms, at least [`QUEUE_BYTES_MIN`]. A packet that finds the line
    /// idle is taken even if it is longer.
    pub queue_bytes: Option<u64>,
}

impl Shape {
    /// The queue size in force, in bytes.
    pub fn queue_bytes(&self) -> u64 {
        match (self.queue_bytes, self.rate) {
            (Some(bytes), _) => bytes,
            (None, Some(rate)) => (rate.get() / 8 / 4).max(QUEUE_BYTES_MIN),
            (None, None) => HELD_BYTES_MAX,
        }
    }
}

/// The fate of the packets of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Packets that were sent into the link.
    pub offered: u64,
    /// Their bytes.
    pub offered_bytes: u64,
    /// Packets that arrived.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that were lost at random.
    pub lost: u64,
    /// Packets that found the queue full.
    pub overflowed: u64,
    /// Packets that came while the link was off, or were in it when it was turned off.
    pub dropped: u64,
}

impl Counters {
    /// The number of packets in the link.
    pub fn held(&self) -> u64 {
        self.offered - self.packets - self.lost - self.overflowed - self.dropped
    }
}

/// One direction of a link that carries packets of type `T`.
///
/// Times count from any one start. A time before that of an earlier call counts as the earlier
/// call's.
///
/// - Packets: [`push`](Self::push), then [`pop`](Self::pop) when [`due`](Self::due) says so.
/// - Changes: [`set`](Self::set), [`off`](Self::off), [`on`](Self::on).
#[derive(Debug)]
pub struct Link<T> {
    shape: Shape,
    random: SplitMix64,
    is_on: bool,
    /// The time up to which the line has been simulated.
    now: Duration,
    queue: VecDeque<Packet<T>>,
    queue_bytes: u64,
    /// How much of the first packet has left the line: bits times 10⁹.
    sent: u128,
    way: VecDeque<(Duration, Packet<T>)>,
    way_bytes: u64,
    last_due: Duration,
    counters: Counters,
}

#[derive(Debug)]
struct Packet<T> {
    len_bytes: u64,
    content: T,
}

impl<T> Link<T> {
    /// A link that is on. `seed` determines its random numbers.
    pub fn new(shape: Shape, seed: u64) -> Self {
        Link {
            shape,
            random: SplitMix64::new(seed),
            is_on: true,
            now: Duration::ZERO,
            queue: VecDeque::new(),
            queue_bytes: 0,
            sent: 0,
            way: VecDeque::new(),
            way_bytes: 0,
            last_due: Duration::ZERO,
            counters: Counters::default(),
        }
    }

    /// Sends a packet that takes `len_bytes` on the line.
    pub fn push(&mut self, now: Duration, len_bytes: usize, content: T) {
        self.advance(now);
        let len_bytes = len_bytes as u64;
        self.counters.offered += 1;
        self.counters.offered_bytes += len_bytes;
        let is_full = !self.queue.is_empty() && self.queue_bytes + len_bytes > self.shape.queue_bytes();
        if !self.is_on {
            self.counters.dropped += 1;
        } else if is_full || self.queue_bytes + self.way_bytes + len_bytes > HELD_BYTES_MAX {
            self.counters.overflowed += 1;
        } else {
            self.queue_bytes += len_bytes;
            self.queue.push_back(Packet { len_bytes, content });
            self.advance(now);
        }
    }

    /// The next packet that has arrived by `now`.
    pub fn pop(&mut self, now: Duration) -> Option<T> {
        self.advance(now);
        let (_, packet) = self.way.pop_front_if(|(due, _)| *due <= self.now)?;
        self.way_bytes -= packet.len_bytes;
        self.counters.packets += 1;
        self.counters.bytes += packet.len_bytes;
        Some(packet.content)
    }

    /// When to call [`pop`](Self::pop) next; the call may still return nothing. `None` if the link
    /// is empty.
    pub fn due(&self) -> Option<Duration> {
        // No queued packet arrives before the packets on their way.
        match self.way.front() {
            Some((due, _)) => Some(*due),
            None => self.line_done(),
        }
    }

    /// Changes the shape. Packets on their way keep their arrival time, and queued packets stay
    /// queued; the rest of the packet on the line goes at the new rate.
    pub fn set(&mut self, now: Duration, shape: Shape) {
        self.advance(now);
        self.shape = shape;
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Drops all packets in the link, and all that come until it is on again. A caller that wants
    /// the packets due by now must pop them first.
    pub fn off(&mut self, now: Duration) {
        self.advance(now);
        self.is_on = false;
        self.counters.dropped += (self.queue.len() + self.way.len()) as u64;
        self.queue.clear();
        self.way.clear();
        (self.queue_bytes, self.way_bytes, self.sent) = (0, 0, 0);
        self.last_due = Duration::ZERO;
    }

    /// Carries packets again. Does nothing if the link is on.
    pub fn on(&mut self) {
        self.is_on = true;
    }

    /// True if packets are carried.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// The packet counts so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Moves the packets that leave the line by `now` on their way.
    fn advance(&mut self, now: Duration) {
        let now = now.max(self.now);
        while let Some(done) = self.line_done() {
            if done > now {
                let bits_per_s = self.shape.rate.map_or(0, Rate::get);
                self.sent += (now - self.now).as_nanos() * u128::from(bits_per_s);
                break;
            }
            (self.now, self.sent) = (done, 0);
            let Some(packet) = self.queue.pop_front() else { break };
            self.queue_bytes -= packet.len_bytes;
            self.leave_line(packet);
        }
        self.now = now;
    }

    /// When the packet on the line will have left it, rounded up to a nanosecond.
    fn line_done(&self) -> Option<Duration> {
        let packet = self.queue.front()?;
        let Some(rate) = self.shape.rate else { return Some(self.now) };
        let left = (u128::from(packet.len_bytes) * 8_000_000_000).saturating_sub(self.sent);
        let nanos = u64::try_from(left.div_ceil(u128::from(rate.get()))).unwrap_or(u64::MAX);
        Some(self.now.saturating_add(Duration::from_nanos(nanos)))
    }

    fn leave_line(&mut self, packet: Packet<T>) {
        // Both are drawn for every packet, so that changing one setting does not change the random
        // numbers of the other.
        let (loss, jitter) = (self.draw(), self.draw());
        if loss < self.shape.loss {
            self.counters.lost += 1;
            return;
        }
        let due = self.now.saturating_add(self.shape.delay).saturating_add(self.shape.jitter.mul_f64(jitter));
        self.last_due = self.last_due.max(due);
        self.way_bytes += packet.len_bytes;
        self.way.push_back((self.last_due, packet));
    }

    /// A uniform number from 0 up to, but not including, 1.
    fn draw(&self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
