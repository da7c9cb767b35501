//! Congestion control for links that lose packets even when they are not full, and for links with
//! long queues.
//!
//! A loss alone says little about a radio link. So a loss lowers the window to what the link has
//! lately delivered in its shortest round trip, as TCP Westwood does. That empties a queue if there
//! is one, and changes little if there is none. One loss lowers the window by at most half if there
//! is a queue, as other senders do, and by at most an eighth if there is none.
//!
//! Without a queue, the window grows by a part of itself each round trip. With a queue it grows by
//! a packet. With a long queue it does not grow, since a program that waits for a small answer
//! would wait for that queue.
//!
//! Measurements beside Cubic and BBR: docs/decisions/2026-11-22-quic.md.

use quinn::congestion::{Controller, ControllerFactory};
use quinn_proto::RttEstimator;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Packets sent before anything is known of a link. On a link of 9.6 kb/s they take 4 s.
const FIRST_PACKET_COUNT: u64 = 4;
/// Packets that may always be under way.
const PACKET_COUNT_MIN: u64 = 2;
/// How many round trips the delivery rate is the maximum of.
const RATE_COUNT_MAX: usize = 10;
/// The window grows by this part of itself (one eighth) per round trip without a queue, and falls
/// by at most as much.
const GROWTH_PART: u64 = 8;
/// Queueing time, beyond a quarter of the shortest round trip, that counts as jitter.
const JITTER: Duration = Duration::from_millis(5);
/// Queueing time, beyond the shortest round trip, from which a queue is long.
const LONG_QUEUE: Duration = Duration::from_millis(500);

/// Makes a [`Window`] for each path.
pub(crate) struct Windows;

impl ControllerFactory for Windows {
    fn build(self: Arc<Self>, now: Instant, packet_len: u16) -> Box<dyn Controller> {
        Box::new(Window::new(now, packet_len.into()))
    }
}

/// Round trips as an acknowledgement tells them.
#[derive(Clone, Copy)]
struct RoundTrip {
    shortest: Duration,
    usual: Duration,
}

impl RoundTrip {
    fn queue(self) -> Duration {
        self.usual.saturating_sub(self.shortest)
    }

    fn is_queued(self) -> bool {
        self.queue() > JITTER + self.shortest / 4
    }
}

/// One path's window.
#[derive(Clone)]
struct Window {
    packet_len: u64,
    bytes: u64,
    /// The window doubles each round trip, since it has never met the link's limit.
    starting: bool,
    round_trip: Option<RoundTrip>,
    /// When the window was last lowered. Losses of packets sent before that say nothing new.
    lowered: Instant,
    /// The start of the current round, and the bytes delivered since.
    round: (Instant, u64),
    /// Bytes delivered per second, in each of the last round trips.
    rates: VecDeque<u64>,
}

impl Window {
    fn new(now: Instant, packet_len: u64) -> Window {
        Window {
            packet_len,
            bytes: FIRST_PACKET_COUNT * packet_len,
            starting: true,
            round_trip: None,
            lowered: now,
            round: (now, 0),
            rates: VecDeque::new(),
        }
    }

    fn min(&self) -> u64 {
        PACKET_COUNT_MIN * self.packet_len
    }

    /// Returns how many bytes the link holds without a queue.
    fn held(&self) -> u64 {
        let rate = self.rates.iter().max().copied().unwrap_or(0);
        let shortest = self.round_trip.map_or(Duration::ZERO, |trip| trip.shortest);
        (rate as f64 * shortest.as_secs_f64()) as u64
    }

    /// Takes in the delivery of bytes that were sent at `sent`. `limited`: the window limited the
    /// sender, not the lack of data.
    fn delivered(&mut self, sent: Instant, bytes: u64, limited: bool, trip: RoundTrip) {
        self.round_trip = Some(trip);
        self.round.1 = self.round.1.saturating_add(bytes);
        if !limited || sent <= self.lowered {
            return;
        }
        let queued = trip.is_queued();
        self.starting &= !queued;
        let growth = match (self.starting, queued) {
            (true, _) => bytes,
            (false, false) => bytes / GROWTH_PART,
            (false, true) if trip.queue() < LONG_QUEUE + trip.shortest => {
                bytes.saturating_mul(self.packet_len) / self.bytes
            }
            (false, true) => 0,
        };
        self.bytes = self.bytes.saturating_add(growth);
    }

    /// Ends a batch of acknowledgements, which may also end a round trip.
    fn batch_ended(&mut self, now: Instant, limited: bool) {
        let (since, bytes) = self.round;
        let elapsed = now.saturating_duration_since(since);
        if elapsed.is_zero() || self.round_trip.is_none_or(|trip| elapsed < trip.usual) {
            return;
        }
        let rate = (bytes as f64 / elapsed.as_secs_f64()) as u64;
        // With pauses in the round, the rate tells what was sent, not what the link can do.
        if limited || self.rates.iter().max().is_none_or(|max| rate > *max) {
            self.rates.push_back(rate);
            if self.rates.len() > RATE_COUNT_MAX {
                self.rates.pop_front();
            }
        }
        self.round = (now, 0);
    }

    /// Takes in the loss of a packet that was sent at `sent`. `all`: everything sent in some period
    /// was lost.
    fn lost(&mut self, now: Instant, sent: Instant, all: bool) {
        if sent > self.lowered {
            self.lowered = now;
            let queued = self.round_trip.is_none_or(RoundTrip::is_queued);
            let part = if queued { 2 } else { GROWTH_PART };
            self.starting = false;
            self.bytes = self.held().clamp(self.bytes - self.bytes / part, self.bytes).max(self.min());
        }
        if all {
            self.bytes = self.min();
            self.rates.clear();
        }
    }
}

impl Controller for Window {
    fn on_ack(&mut self, _now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.delivered(sent, bytes, !app_limited, RoundTrip { shortest: rtt.min(), usual: rtt.get() });
    }

    fn on_end_acks(&mut self, now: Instant, _in_flight: u64, app_limited: bool, _largest: Option<u64>) {
        self.batch_ended(now, !app_limited);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, _lost_bytes: u64) {
        self.lost(now, sent, is_persistent);
    }

    fn on_mtu_update(&mut self, packet_len: u16) {
        self.packet_len = packet_len.into();
        self.bytes = self.bytes.max(self.min());
    }

    fn window(&self) -> u64 {
        self.bytes
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        FIRST_PACKET_COUNT * self.packet_len
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PACKET: u64 = 1200;

    /// A link, seen from its sender.
    struct Link {
        window: Window,
        now: Instant,
        shortest: Duration,
    }

    impl Link {
        fn new(shortest_ms: u64) -> Link {
            let now = Instant::now();
            Link { window: Window::new(now, PACKET), now, shortest: Duration::from_millis(shortest_ms) }
        }

        /// A round trip in which a window of packets is sent and arrives.
        fn round(&mut self, queue_ms: u64, limited: bool) {
            let trip = RoundTrip { shortest: self.shortest, usual: self.shortest + Duration::from_millis(queue_ms) };
            let sent = self.now + Duration::from_micros(1);
            self.now = sent + trip.usual;
            for _ in 0..self.window.bytes / PACKET {
                self.window.delivered(sent, PACKET, limited, trip);
            }
            self.window.batch_ended(self.now, limited);
        }

        fn lose(&mut self) {
            self.window.lost(self.now, self.now, false);
        }

        fn packets(&self) -> u64 {
            self.window.bytes / PACKET
        }
    }

    #[test]
    fn a_window_doubles_until_there_is_a_queue_and_then_grows_by_a_packet() {
        let mut link = Link::new(40);
        assert_eq!(link.packets(), 4);
        (0..4).for_each(|_| link.round(0, true));
        assert_eq!(link.packets(), 64);
        link.round(30, true);
        assert!((64..=65).contains(&link.packets()), "{}", link.packets());
        link.round(0, true);
        assert!((70..=75).contains(&link.packets()), "{}", link.packets());
    }

    #[test]
    fn a_long_queue_gets_no_longer() {
        let mut link = Link::new(300);
        link.round(900, true);
        assert_eq!(link.packets(), 4);
    }

    #[test]
    fn who_has_little_to_send_gets_no_larger_window() {
        let mut link = Link::new(40);
        (0..1000).for_each(|_| link.round(0, false));
        assert_eq!(link.packets(), 4);
    }

    #[test]
    fn a_loss_without_a_queue_takes_an_eighth_at_most_and_one_with_a_queue_half_at_most() {
        let mut link = Link::new(40);
        (0..6).for_each(|_| link.round(0, true));
        let before = link.window.bytes;
        link.lose();
        assert_eq!(link.window.bytes, before - before / 8);
        // A second loss of the same window lowers it no further.
        link.window.lost(link.now, link.now - link.shortest, false);
        assert_eq!(link.window.bytes, before - before / 8);

        // The queue holds as much as the link: half of the window is too much.
        (0..RATE_COUNT_MAX + 1).for_each(|_| link.round(40, true));
        let before = link.window.bytes;
        link.lose();
        assert!((before / 2..before / 9 * 5).contains(&link.window.bytes), "{} of {before}", link.window.bytes);
    }

    #[test]
    fn a_link_on_which_all_was_lost_starts_anew() {
        let mut link = Link::new(40);
        (0..6).for_each(|_| link.round(0, true));
        link.window.lost(link.now, link.now, true);
        assert_eq!(link.packets(), PACKET_COUNT_MIN);
        link.round(0, true);
        assert!(link.window.bytes > PACKET_COUNT_MIN * PACKET);
    }

    proptest! {
        #[test]
        fn prop_a_window_never_vanishes_and_grows_by_no_more_than_was_delivered(
            events in prop::collection::vec((0..4u8, 0..u64::MAX / 2, 0..100_000u64, any::<bool>()), 1..200),
        ) {
            let start = Instant::now();
            let (mut window, mut now) = (Window::new(start, PACKET), start);
            for (event, bytes, micros, flag) in events {
                let (before, time) = (window.bytes, Duration::from_micros(micros));
                now += time;
                match event {
                    0 => window.delivered(now, bytes, flag, RoundTrip { shortest: time / 2, usual: time }),
                    1 => window.batch_ended(now, flag),
                    2 => window.lost(now, now, flag),
                    _ => window.on_mtu_update(1200 + (micros % 300) as u16),
                }
                prop_assert!(window.bytes >= window.min());
                prop_assert!(window.bytes <= before.saturating_add(bytes).max(window.min()));
            }
        }
    }
}
