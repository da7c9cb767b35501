//! Tests of one direction of a link, on times of their own.

use super::*;
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);

/// All packets that come out, with the time at which each was due.
fn drain(link: &mut Link<usize>) -> Vec<(Duration, usize)> {
    let mut out = Vec::new();
    while let Some(due) = link.due() {
        if let Some(packet) = link.pop(due) {
            out.push((due, packet));
        }
    }
    out
}

#[test]
fn a_packet_takes_its_time_on_the_line_and_then_the_delay() {
    let shape = Shape { rate: Some(Rate::kbits_per_s(64)), delay: 40 * MS, ..Shape::default() };
    let mut link = Link::new(shape, 0);
    link.push(10 * MS, 800, 0);
    link.push(10 * MS, 80, 1);
    assert_eq!(link.pop(149 * MS), None);
    assert_eq!(drain(&mut link), [(150 * MS, 0), (160 * MS, 1)]);
    assert_eq!(link.counters().bytes, 880);
}

#[test]
fn a_perfect_link_delivers_at_once() {
    let mut link = Link::new(Shape::default(), 0);
    link.push(MS, 1500, 0);
    assert_eq!(link.pop(MS), Some(0));
    assert_eq!(link.due(), None);
}

#[test]
fn a_full_queue_takes_nothing_more_but_an_idle_line_takes_any_packet() {
    let shape = Shape { rate: Some(Rate::kbits_per_s(8)), queue_bytes: Some(100), ..Shape::default() };
    let mut link = Link::new(shape, 0);
    link.push(MS, 1000, 0);
    link.push(MS, 1, 1);
    assert_eq!((drain(&mut link), link.counters().overflowed), (vec![(1001 * MS, 0)], 1));
    for n in 0..3 {
        link.push(2000 * MS, 50, n);
    }
    assert_eq!((drain(&mut link).len(), link.counters().overflowed), (2, 2));
}

#[test]
fn what_a_link_without_rate_holds_is_bounded() {
    let mut link = Link::new(Shape { delay: 3_600_000 * MS, ..Shape::default() }, 0);
    for _ in 0..=HELD_BYTES_MAX >> 20 {
        link.push(MS, 1 << 20, 0);
    }
    assert_eq!(link.counters().overflowed, 1);
}

#[test]
fn a_new_rate_holds_for_the_rest_of_the_packet_on_the_line() {
    let slow = Shape { rate: Some(Rate::kbits_per_s(8)), ..Shape::default() };
    let mut link = Link::new(slow, 0);
    link.push(Duration::ZERO, 1000, 0);
    link.push(Duration::ZERO, 1000, 1);
    link.set(500 * MS, Shape { rate: Some(Rate::kbits_per_s(80)), ..slow });
    assert_eq!(drain(&mut link), [(550 * MS, 0), (650 * MS, 1)]);
}

#[test]
fn turned_off_it_drops_what_is_queued_and_on_its_way_and_what_comes() {
    let shape = Shape { rate: Some(Rate::kbits_per_s(8)), delay: 1000 * MS, ..Shape::default() };
    let mut link = Link::new(shape, 0);
    link.push(Duration::ZERO, 100, 0);
    link.push(Duration::ZERO, 100, 1);
    link.off(150 * MS);
    link.push(160 * MS, 100, 2);
    assert_eq!((link.due(), link.counters().dropped), (None, 3));
    link.on();
    link.push(200 * MS, 100, 3);
    assert_eq!(drain(&mut link), [(1300 * MS, 3)]);
}

#[test]
fn loss_is_as_likely_as_it_is_said_to_be() {
    let mut link = Link::new(Shape { loss: 0.1, ..Shape::default() }, 1);
    for n in 0..10_000 {
        link.push(MS, 100, n);
    }
    assert!((900..1100).contains(&link.counters().lost), "{:?}", link.counters());
    for (loss, lost) in [(0.0, 0), (1.0, 1000)] {
        let mut link = Link::new(Shape { loss, ..Shape::default() }, 1);
        (0..1000).for_each(|n| link.push(MS, 100, n));
        assert_eq!(link.counters().lost, lost);
    }
}

#[test]
fn the_same_packets_are_lost_whatever_the_jitter_and_the_rate() {
    let arrived = |shape| {
        let mut link = Link::new(shape, 5);
        (0..100).for_each(|n| link.push(MS, 100, n));
        drain(&mut link).into_iter().map(|(_, n)| n).collect::<Vec<_>>()
    };
    let plain = Shape { loss: 0.3, ..Shape::default() };
    let other = Shape { jitter: 50 * MS, rate: Some(Rate::mbits_per_s(1)), ..plain };
    assert_eq!(arrived(plain), arrived(other));
}

/// An event of a link, after a pause in microseconds.
#[derive(Debug, Clone)]
enum Step {
    Push(u64, usize),
    Pop(u64),
    Set(u64, Shape),
    Off(u64),
    On(u64),
}

fn shapes() -> impl Strategy<Value = Shape> {
    (
        prop::option::of(1_000u64..10_000_000),
        0u64..100_000,
        0u64..50_000,
        prop_oneof![Just(0.0), 0.0..1.0],
        prop::option::of(0u64..20_000),
    )
        .prop_map(|(rate, delay_us, jitter_us, loss, queue_bytes)| Shape {
            rate: rate.map(Rate::bits_per_s),
            delay: Duration::from_micros(delay_us),
            jitter: Duration::from_micros(jitter_us),
            loss,
            queue_bytes,
        })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pause = 0u64..20_000;
    let step = prop_oneof![
        12 => (pause.clone(), 0usize..2000).prop_map(|(pause, len)| Step::Push(pause, len)),
        4 => pause.clone().prop_map(Step::Pop),
        1 => (pause.clone(), shapes()).prop_map(|(pause, shape)| Step::Set(pause, shape)),
        1 => pause.clone().prop_map(Step::Off),
        1 => pause.prop_map(Step::On),
    ];
    prop::collection::vec(step, 0..200)
}

/// The packets that came out, when each was asked for, and the counters.
type Outcome = (Vec<(Duration, usize)>, Counters);

fn run(shape: Shape, seed: u64, steps: &[Step]) -> Outcome {
    let (mut link, mut now, mut out) = (Link::new(shape, seed), Duration::ZERO, Vec::new());
    for (n, step) in steps.iter().enumerate() {
        let (Step::Push(pause, _) | Step::Pop(pause) | Step::Set(pause, _) | Step::Off(pause) | Step::On(pause)) = step;
        now += Duration::from_micros(*pause);
        match step {
            Step::Push(_, len) => link.push(now, *len, n),
            Step::Pop(_) => {
                let due = link.due();
                let before = out.len();
                while let Some(packet) = link.pop(now) {
                    out.push((now, packet));
                }
                assert!(out.len() == before || due.is_some_and(|due| due <= now), "came before it was due");
            }
            Step::Set(_, shape) => link.set(now, *shape),
            Step::Off(_) => link.off(now),
            Step::On(_) => link.on(),
        }
        let held = link.queue.len() + link.way.len();
        assert_eq!(link.counters().held(), held as u64, "the counters do not add up");
        let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.sum::<u64>();
        assert_eq!(link.queue_bytes, sum(&mut link.queue.iter().map(|packet| packet.len_bytes)));
        assert_eq!(link.way_bytes, sum(&mut link.way.iter().map(|(_, packet)| packet.len_bytes)));
        assert_eq!(link.due().is_some(), held > 0);
    }
    out.extend(drain(&mut link));
    assert_eq!((link.counters().held(), link.counters().packets), (0, out.len() as u64));
    (out, link.counters())
}

proptest! {
    #[test]
    fn prop_packets_stay_in_order_and_counters_add_up(shape in shapes(), seed: u64, steps in steps()) {
        let (out, _) = run(shape, seed, &steps);
        prop_assert!(out.is_sorted_by_key(|(_, packet)| *packet), "{out:?}");
        prop_assert!(out.is_sorted_by_key(|(due, _)| *due), "{out:?}");
    }

    #[test]
    fn prop_the_same_seed_has_the_same_outcome(shape in shapes(), seed: u64, steps in steps()) {
        prop_assert_eq!(run(shape, seed, &steps), run(shape, seed, &steps));
    }

    /// Between the arrivals of any two packets, no more arrives than the rate carries in that time
    /// and the jitter.
    #[test]
    fn prop_no_interval_carries_more_than_the_rate(
        shape in shapes(),
        bits_per_s in 1_000u64..10_000_000,
        packets in prop::collection::vec((0u64..20_000, 0usize..2000), 0..80),
    ) {
        let shape = Shape { rate: Some(Rate::bits_per_s(bits_per_s)), ..shape };
        let (mut link, mut now) = (Link::new(shape, 1), Duration::ZERO);
        for (n, (pause, len)) in packets.iter().enumerate() {
            now += Duration::from_micros(*pause);
            link.push(now, *len, n);
        }
        let out = drain(&mut link);
        for first in 0..out.len() {
            let mut bits = 0;
            for last in first + 1..out.len() {
                bits += packets[out[last].1].1 as u128 * 8;
                let time = out[last].0 - out[first].0 + shape.jitter;
                prop_assert!(bits * 1_000_000_000 <= time.as_nanos() * u128::from(bits_per_s));
            }
        }
    }

    /// The line carries at most the sum of what each rate carries while it is in force.
    #[test]
    fn prop_changes_of_the_rate_never_make_the_line_faster(
        rates in prop::collection::vec((1u64..50_000, 1_000u64..10_000_000), 1..20),
        packets in prop::collection::vec(1usize..2000, 1..80),
    ) {
        let shape = |rate| Shape { rate: Some(Rate::bits_per_s(rate)), queue_bytes: Some(1 << 20), ..Shape::default() };
        let mut link = Link::new(shape(rates[0].1), 1);
        for (n, len) in packets.iter().enumerate() {
            link.push(Duration::ZERO, *len, n);
        }
        let (mut now, mut may) = (Duration::ZERO, 0);
        for (time_us, rate) in rates {
            link.set(now, shape(rate));
            now += Duration::from_micros(time_us);
            may += u128::from(time_us) * 1000 * u128::from(rate);
            while link.pop(now).is_some() {}
            prop_assert!(u128::from(link.counters().bytes) * 8_000_000_000 <= may);
        }
    }
}
