//! Tests of where a log ends.

use super::*;
use crate::LogWriter;
use crate::testing::{Fault, LOG, MemStore, Rig};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use striped_log::builder::LogPlace;
use types::Maps;

/// Puts only some fragments of a segment, like a writer that dies in the middle.
fn put_partly(rig: &Rig, segment: &Segment, fragments: &[usize]) {
    let stripe = rig.stripe();
    let geometry = stripe.choose_group(segment).unwrap();
    fragments.iter().for_each(|&index| rig.put_fragment(&stripe, segment, &geometry, 0, index));
}

fn chain(rig: &Rig, tail: &LogTail) {
    let stripe = rig.stripe();
    for pair in tail.segments.windows(2) {
        assert_eq!(rig.run(stripe.info(pair[1])).unwrap().previous, Some(pair[0]));
    }
}

#[test]
fn new_log_begins_with_seq_1_and_each_opening_has_an_epoch_of_its_own() {
    let rig = Rig::new(1, 5, 1);
    for epoch in 1..4 {
        let tail = rig.run(rig.stripe().open_log(LOG, 0)).unwrap();
        assert_eq!(
            tail,
            LogTail { log: LOG, epoch, next_seq: 1, last: None, order: 0, segments: vec![], lost: vec![] }
        );
    }
}

#[test]
fn readable_tail_is_completed_and_what_follows_a_gap_is_discarded() {
    let rig = Rig::new(2, 5, 1);
    let stripe = rig.stripe();
    let segments: Vec<Segment> = (1..=5).map(|seq| rig.segment(seq, 200_000)).collect();
    rig.run(stripe.put(&segments[0])).unwrap();
    put_partly(&rig, &segments[1], &[0, 1, 2, 4]);
    put_partly(&rig, &segments[2], &[0, 3, 4]);
    put_partly(&rig, &segments[4], &[0, 1, 2, 3, 4]);
    assert_eq!(rig.stores.iter().map(|s| s.holds(segments[2].id)).sum::<usize>(), 3);

    let tail = rig.run(rig.stripe().open_log(LOG, 1)).unwrap();
    // 200,000 bytes are four fragments; three and parity can be read, two and parity cannot.
    let counted: Vec<SegmentId> = segments[..2].iter().map(|s| s.id).collect();
    assert_eq!((tail.epoch, tail.next_seq, &tail.segments), (2, 3, &counted));
    // The discarded segments had 30 and 50.
    assert_eq!(tail.order, 20);
    chain(&rig, &tail);
    for discarded in [&segments[2], &segments[4]] {
        assert_eq!(rig.stores.iter().map(|s| s.holds(discarded.id)).sum::<usize>(), 0);
    }
    for store in &rig.stores {
        store.set(Fault::Down);
        let reader = rig.stripe();
        for s in &segments[..2] {
            assert_eq!(rig.run(reader.read(s.id, 0..200_000)).unwrap(), s.payload);
            assert_eq!(rig.run(reader.info(s.id)).unwrap().order, s.order);
        }
        store.set(Fault::None);
    }
    assert_eq!(rig.run(stripe.put(&segments[2])), Err(StripeError::Fenced));
}

#[test]
fn regression_an_opening_waits_little_for_a_store_that_hangs() {
    for is_known in [false, true] {
        let rig = Rig::new(8, 5, 1);
        let stripe = rig.stripe();
        let segments: Vec<Segment> = (1..=2).map(|seq| rig.segment(seq, 200_000)).collect();
        rig.run(stripe.put(&segments[0])).unwrap();
        put_partly(&rig, &segments[1], &[0, 1, 2, 3]);
        rig.stores[4].set(Fault::Silent);
        if is_known {
            stripe.note_slow(4);
        }
        let begin = rig.sim.now();
        let tail = rig.run(stripe.open_log(LOG, 1)).unwrap();
        assert_eq!(tail.segments, [segments[0].id, segments[1].id]);
        let patience = if is_known { Duration::ZERO } else { stripe.options.read_patience() };
        let time_max = patience + stripe.options.put_timeout / 10;
        assert!(rig.sim.now() - begin < time_max, "{:?}", rig.sim.now() - begin);
        let begin = rig.sim.now();
        let followed = rig.run(stripe.follow_log(LOG, 1, tail.epoch, 2)).unwrap();
        assert_eq!(followed, tail.segments);
        assert!(rig.sim.now() - begin < time_max, "{:?}", rig.sim.now() - begin);
        // It gets the seal before it takes puts again, also if it was known to be slow.
        assert_eq!(stripe.health.lock().state(4), StoreState::Failing);
        rig.heal();
        rig.sim.run_for(2 * stripe.options.put_timeout);
        assert!(stripe.is_whole());
        let seals = rig.run(stripe.ask(4, |s| s.seals())).unwrap();
        assert_eq!(seals.iter().find(|seal| seal.log == LOG).map(|seal| seal.epoch), Some(tail.epoch));
    }
}

#[test]
fn a_store_that_hangs_is_waited_for_if_the_log_needs_it() {
    let rig = Rig::new(9, 3, 1);
    let stripe = rig.stripe();
    rig.run(stripe.put(&rig.segment(1, 1000))).unwrap();
    rig.stores[0].set(Fault::Down);
    rig.stores[1].set(Fault::Silent);
    let opened = rig.client().run({
        let stripe = stripe.clone();
        async move { stripe.open_log(LOG, 1).await }
    });
    rig.sim.run_for(stripe.options.put_timeout / 2);
    rig.heal();
    assert_eq!(rig.run(opened).unwrap().unwrap().segments.len(), 1);
}

/// It counted as being put for as long as the process lived, so nothing saw that it lacked
/// anything.
#[test]
fn regression_a_segment_that_an_opening_could_not_put_again_is_looked_after() {
    let rig = Rig::new(17, 2, 1);
    let stripe = rig.stripe();
    let segment = rig.segment(1, 1000);
    put_partly(&rig, &segment, &[0]);
    let opened = rig.client().run({
        let stripe = stripe.clone();
        async move { stripe.open_log(LOG, 1).await }
    });
    while rig.stores[0].contents.lock().read_count == 0 {
        rig.sim.run_for(Duration::from_micros(10));
    }
    rig.stores[1].set(Fault::Hanging);
    assert_eq!(rig.run(opened).unwrap(), Err(StripeError::NotEnoughStores));
    rig.heal();
    rig.sim.run_for(2 * stripe.options.probe_interval);
    // What hung is done after all.
    let geometry = rig.run(stripe.info(segment.id)).unwrap().geometry;
    rig.put_fragment(&stripe, &segment, &geometry, 1, 1);
    rig.run(stripe.open_log(LOG, 1)).unwrap();
    assert_eq!(rig.run(stripe.survey(LOG, 1)).unwrap().lacking, []);
    rig.stores[1].wipe();
    let lacking = rig.run(stripe.survey(LOG, 1)).unwrap().lacking;
    assert_eq!(lacking.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [segment.id]);
}

/// What an opener leaves at a store that dies before it tells that a quorum has its seal.
fn seal_half_way(rig: &Rig, at: usize, fence: Fence) {
    let seals = rig.run(rig.stores[at].seals()).unwrap().into_iter().filter(|seal| seal.log == LOG);
    let half_way = match seals.max_by_key(|seal| (seal.is_told(), seal.epoch)) {
        Some(present) => present.next(fence, Some(1), u64::from(fence.epoch)),
        None => Seal::new(LOG, fence, u64::from(fence.epoch)),
    };
    rig.run(rig.stores[at].seal(half_way)).unwrap();
}

/// A writer that goes on beside a seal of an opening that died half way, and then dies.
struct GoesOn {
    shape: (u16, u8),
    /// A second opener, after the writer, leaves its seal at this store.
    sealed_after: Option<usize>,
    /// These stores are away when the log is opened at last.
    away: &'static [usize],
    accepts_loss: bool,
    /// The opener that died had seen less than was durable, and nothing is written after that.
    comes_late: bool,
}

/// A review found each of these by reading. An opening took the seal for one in force, or could not
/// tell, and then deleted what was acknowledged, or was refused for ever.
#[test]
fn regression_a_seal_under_way_is_never_heeded() {
    let plain = || GoesOn { shape: (3, 1), sealed_after: None, away: &[], accepts_loss: false, comes_late: false };
    let all = [
        ("it is of a later epoch than the seal of the next opener", GoesOn { sealed_after: Some(1), ..plain() }),
        ("the operator accepts a loss", GoesOn { accepts_loss: true, ..plain() }),
        ("it discards what was durable before", GoesOn { shape: (3, 2), comes_late: true, ..plain() }),
        ("another store is lost for good", GoesOn { away: &[1], ..plain() }),
        ("the others are too few to put again", GoesOn { shape: (4, 2), away: &[3], ..plain() }),
    ];
    for (what, GoesOn { shape, sealed_after, away, accepts_loss, comes_late }) in all {
        let mut rig = Rig::new(3, shape.0, shape.1);
        let (stripe, tail, writer) = rig.writer();
        let write = |through: u64| {
            (0..2).for_each(|_| writer.submit(rig.draft(writer.begin(), 70_000)));
            rig.run(writer.wait_committed(through)).unwrap();
        };
        write(2);
        if comes_late {
            write(4);
        }
        seal_half_way(&rig, 0, Fence { epoch: tail.epoch + 2, through: 2 });
        rig.stores[0].set(Fault::Down);
        stripe.note_slow(0);
        let all = rig.run(stripe.let_go_on(LOG, 1, tail.epoch, if comes_late { 4 } else { 2 }));
        assert!(all.is_ok(), "{what}: {all:?}");
        if !comes_late {
            write(4);
        }
        if let Some(at) = sealed_after {
            seal_half_way(&rig, at, Fence { epoch: tail.epoch + 1, through: 4 });
        }
        rig.client().crash();
        rig.heal();
        away.iter().for_each(|at| rig.stores[*at].set(Fault::Down));
        rig.options.accepts_loss = accepts_loss;
        let opened = rig.run(rig.stripe().open_log(LOG, 1));
        assert_eq!(opened.map(|tail| (tail.next_seq, tail.lost)), Ok((5, vec![])), "{what}");
        rig.heal();
        for seq in 1..5 {
            let segment = SegmentId { log: LOG, epoch: tail.epoch, seq };
            rig.run(rig.stripe().read_segment(segment, Purpose::Program)).unwrap();
        }
    }
}

/// A leader died while it sealed the log of a session that survived it: one store had the seal, and
/// was away while the session went on. Each later opening of any log gave the seal to all stores,
/// and these deleted what the session had synced meanwhile.
#[test]
fn regression_a_seal_of_an_opening_that_died_half_way_discards_nothing() {
    for (seed, opens_another_first) in [(1, true), (2, false)] {
        let rig = Rig::new(seed, 3, 1);
        let (stripe, tail, writer) = rig.writer();
        let write = |through: u64| {
            (0..2).for_each(|_| writer.submit(rig.draft(writer.begin(), 70_000)));
            rig.run(writer.wait_committed(through)).unwrap();
        };
        write(2);
        seal_half_way(&rig, 0, Fence { epoch: tail.epoch + 1, through: 2 });
        rig.stores[0].set(Fault::Down);
        stripe.note_slow(0);
        write(4);
        let all = rig.run(stripe.follow_log(LOG, 1, tail.epoch, 4)).unwrap();
        rig.client().crash();
        rig.heal();

        let stripe = rig.stripe();
        if opens_another_first {
            rig.run(stripe.open_log(LogId::new(4), 1)).unwrap();
            let has_all = |at: usize| all.iter().all(|segment| rig.stores[at].holds(*segment) > 0);
            assert!(has_all(1) && has_all(2), "a segment that was synced is deleted");
        }
        assert_eq!(rig.run(stripe.follow_log(LOG, 1, tail.epoch, 4)).as_ref(), Ok(&all), "seed {seed}");
        assert_eq!(rig.run(stripe.log_segments(LOG, 1)).as_ref(), Ok(&all));
        let opened = rig.run(rig.stripe().open_log(LOG, if opens_another_first { 1 } else { 5 })).unwrap();
        assert_eq!((opened.next_seq, opened.epoch), (5, tail.epoch + 2));
        rig.stores[1].set(Fault::Down);
        for segment in &all[..2] {
            rig.run(rig.stripe().read_segment(*segment, Purpose::Program)).unwrap();
        }
        rig.heal();
        for segment in &all {
            rig.run(rig.stripe().read_segment(*segment, Purpose::Program)).unwrap();
        }
    }
}

#[test]
fn a_log_is_followed_while_its_writer_goes_on() {
    let rig = Rig::new(7, 5, 1);
    let (stripe, _, writer) = rig.writer();
    let names: Vec<LogPlace> = (0..4).map(|_| writer.begin()).collect();
    names.iter().for_each(|name| writer.submit(rig.draft(*name, 200_000)));
    rig.run(writer.wait_committed(4)).unwrap();
    let ids: Vec<SegmentId> = names.iter().map(|name| name.id).collect();
    rig.stores[2].set(Fault::Down);
    let follow = |from, epoch, through| rig.run(rig.stripe().follow_log(LOG, from, epoch, through));
    assert_eq!(follow(0, 1, 3), Ok(ids[..3].to_vec()));
    assert_eq!(follow(4, 1, 4), Ok(ids[3..].to_vec()));
    assert_eq!(follow(5, 1, 4), Ok(vec![]));
    assert_eq!(follow(1, 1, 5), Err(StripeError::LogBroken { log: LOG, next_seq: 5, counted: 5 }));
    rig.stores[2].set(Fault::None);
    let next = writer.begin();
    writer.submit(rig.draft(next, 1000));
    rig.run(writer.wait_committed(5)).unwrap();
    assert_eq!(follow(4, 1, 5), Ok(vec![ids[3], next.id]));
    rig.run(stripe.open_log(LOG, 1)).unwrap();
    assert_eq!(follow(1, 1, 5), Err(StripeError::Fenced));
}

#[test]
fn later_from_seq_chains_to_the_segment_before_it_if_that_is_still_there() {
    let rig = Rig::new(3, 5, 1);
    let stripe = rig.stripe();
    let segments: Vec<Segment> = (1..=4).map(|seq| rig.segment(seq, 1000)).collect();
    segments.iter().for_each(|s| rig.run(stripe.put(s)).unwrap());
    let ids: Vec<SegmentId> = segments.iter().map(|s| s.id).collect();
    let tail = rig.run(stripe.open_log(LOG, 3)).unwrap();
    assert_eq!((tail.next_seq, tail.last, tail.order, tail.segments), (5, Some(ids[3]), 40, ids[2..].to_vec()));
    let tail = rig.run(stripe.open_log(LOG, 5)).unwrap();
    assert_eq!((tail.next_seq, tail.last, tail.order, tail.segments), (5, Some(ids[3]), 40, vec![]));
    rig.run(stripe.delete(ids));
    let tail = rig.run(stripe.open_log(LOG, 5)).unwrap();
    assert_eq!((tail.next_seq, tail.last, tail.order, tail.segments), (5, None, 0, vec![]));
}

#[test]
fn log_is_not_opened_without_a_quorum_nor_with_acknowledged_segments_missing() {
    let rig = Rig::new(4, 5, 1);
    let (_, _, writer) = rig.writer();
    for _ in 0..3 {
        writer.submit(rig.draft(writer.begin(), 200_000));
    }
    rig.run(writer.wait_committed(3)).unwrap();
    rig.run(rig.stripe().open_log(LOG, 1)).unwrap();

    rig.stores[..2].iter().for_each(|s| s.set(Fault::Down));
    assert_eq!(rig.run(rig.stripe().open_log(LOG, 1)), Err(StripeError::NotEnoughStores));
    rig.heal();
    let kept: Vec<_> = rig.stores[..2].iter().map(|s| std::mem::take(&mut s.contents.lock().fragments)).collect();
    let broken = rig.run(rig.stripe().open_log(LOG, 1));
    assert_eq!(broken, Err(StripeError::LogBroken { log: LOG, next_seq: 1, counted: 3 }));
    for (store, fragments) in rig.stores.iter().zip(kept) {
        store.contents.lock().fragments = fragments;
    }
    assert_eq!(rig.run(rig.stripe().open_log(LOG, 1)).unwrap().segments.len(), 3);
}

#[test]
fn a_log_goes_on_behind_lost_segments_only_if_the_operator_accepts_that() {
    let mut rig = Rig::new(14, 5, 1);
    let (_, _, writer) = rig.writer();
    let write = |writer: &Arc<LogWriter>, rig: &Rig, through| {
        (0..2).for_each(|_| writer.submit(rig.draft(writer.begin(), 200_000)));
        rig.run(writer.wait_committed(through)).unwrap();
    };
    [2, 4, 6].into_iter().for_each(|through| write(&writer, &rig, through));
    let lose = |seqs: Range<u64>| {
        for store in &rig.stores {
            store.contents.lock().fragments.retain(|(segment, _, _), _| !seqs.contains(&segment.seq));
        }
    };
    lose(5..7);
    let seqs = |tail: &LogTail| tail.segments.iter().map(|s| s.seq).collect::<Vec<_>>();
    let open = |rig: &Rig, from, through| rig.run(rig.stripe().open_log_through(LOG, from, through));
    // A manager had applied all of them.
    assert_eq!(open(&rig, 1, 6), Err(StripeError::LogBroken { log: LOG, next_seq: 5, counted: 6 }));
    lose(3..4);
    assert_eq!(open(&rig, 1, 6), Err(StripeError::LogBroken { log: LOG, next_seq: 3, counted: 6 }));
    rig.options.accepts_loss = true;
    let tail = open(&rig, 1, 6).unwrap();
    assert_eq!((seqs(&tail), tail.lost.clone(), tail.next_seq, tail.last), (vec![1, 2, 4], vec![3..4, 5..7], 7, None));
    let writer = LogWriter::new(rig.stripe(), tail);
    write(&writer, &rig, 8);
    rig.options.accepts_loss = false;
    assert_eq!(open(&rig, 2, 0), Err(StripeError::LogBroken { log: LOG, next_seq: 3, counted: 6 }));
    let tail = open(&rig, 7, 0).unwrap();
    assert_eq!((seqs(&tail), tail.lost), (vec![7, 8], vec![]));
    rig.options.accepts_loss = true;
    let tail = open(&rig, 1, 0).unwrap();
    assert_eq!((seqs(&tail), tail.lost, tail.next_seq), (vec![1, 2, 4, 7, 8], vec![3..4, 5..7], 9));
}

/// Takes the contents of two stores. [`put_back`] returns them.
fn take(rig: &Rig, stores: [usize; 2]) -> Vec<(usize, crate::testing::Contents)> {
    stores.map(|at| (at, std::mem::take(&mut *rig.stores[at].contents.lock()))).into()
}

fn put_back(rig: &Rig, taken: Vec<(usize, crate::testing::Contents)>) {
    taken.into_iter().for_each(|(at, contents)| *rig.stores[at].contents.lock() = contents);
}

/// Two stores were replaced by new ones at once. The log was sealed where it could not be read
/// any more, so the acknowledged segments were gone when the old stores came back.
#[test]
fn regression_acknowledged_segments_survive_an_opening_without_the_stores_that_have_them() {
    for (len, count) in [(1000, 5), (200_000, 5), (200_000, 200)] {
        let rig = Rig::new(9, 5, 1);
        let (_, _, writer) = rig.writer();
        (0..count).for_each(|_| writer.submit(rig.draft(writer.begin(), len)));
        rig.run(writer.wait_committed(count)).unwrap();
        rig.client().crash();
        let taken = take(&rig, [0, 1]);
        let refused = rig.run(rig.stripe().open_log(LOG, 1)).unwrap_err();
        assert!(matches!(refused, StripeError::StoresNeeded { .. } | StripeError::LogLost { .. }), "{refused}");
        put_back(&rig, taken);
        assert_eq!(rig.run(rig.stripe().open_log(LOG, 1)).unwrap().segments.len() as u64, count);
    }
}

/// A store was replaced, and got the seals of the others when it came into service. So it
/// looked as if it had all that was written under them. With another store away, the log was
/// opened without its acknowledged end.
#[test]
fn regression_a_store_that_was_replaced_does_not_speak_for_what_it_lost() {
    let mut refused = 0;
    for seed in 0..24 {
        // Each segment is on two of the stores.
        let (away, by_opening) = (1 + seed as usize % 2, seed % 4 < 2);
        let rig = Rig::new(seed, 3, 1);
        let (stripe, _, writer) = rig.writer();
        rig.run(stripe.put_maps(Maps { epoch: 1, bytes: Bytes::new() })).unwrap();
        let count = 1 + seed % 3;
        let names: Vec<LogPlace> = (0..count).map(|_| writer.begin()).collect();
        names.iter().for_each(|name| writer.submit(rig.draft(*name, 1000)));
        rig.run(writer.wait_committed(count)).unwrap();
        rig.client().crash();
        rig.stores[0].wipe();
        let stripe = rig.stripe();
        if by_opening {
            // Of another log: all stores are in service as far as it knows.
            rig.run(stripe.open_log(LogId::new(9), 1)).unwrap();
            rig.run(stripe.put_maps(Maps { epoch: 2, bytes: Bytes::new() })).unwrap();
        } else {
            stripe.note_new(rig.stores[0].id);
            rig.sim.run_for(Duration::from_secs(1));
            assert!(stripe.is_whole());
        }
        if seed % 3 == 0 {
            // It does not make up for the loss.
            seal_half_way(&rig, 0, Fence { epoch: 2, through: count - 1 });
        }
        rig.stores[away].set(Fault::Down);
        let open = || rig.run(rig.stripe().open_log(LOG, 1)).map(|tail| tail.segments.len() as u64);
        let opened = open();
        let is_refused = matches!(opened, Err(StripeError::StoresNeeded { .. }));
        assert!(is_refused || opened == Ok(count), "seed {seed}: {opened:?}");
        refused += u32::from(is_refused);
        // Once it has everything, it bears another loss.
        rig.heal();
        rig.sim.run_for(Duration::from_secs(1));
        names.iter().for_each(|name| assert!(rig.run(stripe.restore(name.id))));
        rig.run(stripe.clear_losses(stripe.return_count())).unwrap();
        rig.stores[away].set(Fault::Down);
        assert_eq!(open(), Ok(count));
    }
    assert!(refused > 4, "{refused} of 24");
}

/// A segment was missing everywhere, as when an older root is taken for the newest one. The
/// opening discarded all segments behind it.
#[test]
fn regression_complete_segments_behind_a_long_gap_are_not_discarded() {
    let rig = Rig::new(10, 5, 1);
    let (stripe, _, writer) = rig.writer();
    let count = tail::IN_FLIGHT_MAX + 2;
    let first = writer.begin();
    writer.submit(rig.draft(first, 1000));
    (1..count).for_each(|_| writer.submit(rig.draft(writer.begin(), 1000)));
    rig.run(writer.wait_committed(count)).unwrap();
    rig.run(stripe.delete(vec![first.id]));
    let held = || rig.stores.iter().map(|s| s.contents.lock().fragments.len()).sum::<usize>();
    let before = held();
    let refused = rig.run(rig.stripe().open_log(LOG, 1));
    assert_eq!(refused, Err(StripeError::LogLost { log: LOG, next_seq: 1, beyond: count }));
    assert_eq!(held(), before);
}

#[test]
fn log_is_not_sealed_before_what_counts_is_complete() {
    let rig = Rig::new(6, 3, 2);
    let segment = rig.segment(1, 1000);
    put_partly(&rig, &segment, &[0, 1]);
    let members = rig.stripe().choose_group(&segment).unwrap().members;
    let away = rig.stores.iter().find(|s| s.id == members[2]).unwrap();
    away.set(Fault::Down);
    // From two stores the segment can be read, but not completed.
    assert_eq!(rig.run(rig.stripe().open_log(LOG, 1)), Err(StripeError::NotEnoughStores));
    let epoch = |s: &Arc<MemStore>| s.contents.lock().seals.newest(LOG).map(|seal| seal.epoch);
    assert!(rig.stores.iter().all(|s| epoch(s) == Some(1)));
    rig.heal();
    let tail = rig.run(rig.stripe().open_log(LOG, 1)).unwrap();
    assert_eq!((tail.epoch, tail.segments), (2, vec![segment.id]));
    rig.stores.iter().filter(|s| s.id != away.id).for_each(|s| s.wipe());
    assert_eq!(rig.run(rig.stripe().read(segment.id, 0..1000)).unwrap(), segment.payload);
}

#[test]
fn store_that_missed_an_opening_does_not_bring_back_what_was_discarded() {
    for write in [false, true] {
        let rig = Rig::new(5, 3, 1);
        let (_, _, writer) = rig.writer();
        let first = writer.begin();
        writer.submit(rig.draft(first, 1000));
        rig.run(writer.wait_committed(1)).unwrap();
        // The segment is mirrored, so it can be read from the one store that is away while the
        // log is opened and written.
        let stray = rig.segment(2, 1000);
        assert_eq!(stray.previous, Some(first.id));
        let geometry = rig.stripe().choose_group(&stray).unwrap();
        put_partly(&rig, &stray, &[0]);
        let away = rig.stores.iter().find(|s| s.id == geometry.members[0]).unwrap();
        away.set(Fault::Silent);
        let (_, tail, writer) = rig.writer();
        assert_eq!((tail.epoch, tail.next_seq), (2, 2));
        let mut segments = tail.segments;
        if write {
            let second = writer.begin();
            writer.submit(rig.draft(second, 1000));
            rig.run(writer.wait_committed(2)).unwrap();
            segments.push(second.id);
        }
        rig.client().crash();

        away.set(Fault::None);
        assert_eq!(away.holds(stray.id), 1);
        let tail = rig.run(rig.stripe().open_log(LOG, 1)).unwrap();
        assert_eq!((tail.epoch, &tail.segments), (3, &segments));
        chain(&rig, &tail);
    }
}

#[test]
fn regression_late_seal_of_a_dead_opener_does_not_fail_the_next_opening() {
    const DELAYS: u64 = 120;
    let mut counted = [0; 3];
    for (delay, kind) in (0..DELAYS).flat_map(|delay| [0, 1, 2].map(|kind| (delay, kind))) {
        let (is_told, is_complete) = (kind > 0, kind > 1);
        let rig = Rig::new(8 + delay, 5, 1);
        let segment = rig.segment(1, 200_000);
        put_partly(&rig, &segment, if is_complete { &[0, 1, 2, 3, 4] } else { &[0, 1, 2, 4] });
        // The dead opener had seen less of the tail than can be read, and its requests were on
        // their way all the time: to seal, or to tell that all have sealed.
        let mut late = Seal::new(LOG, Fence { epoch: 2, through: 0 }, 0);
        if is_told {
            rig.stores.iter().for_each(|s| drop(rig.run(s.seal(late.clone())).unwrap()));
            late = late.told(rig.stores.iter().map(|s| s.id).collect());
        }
        let stripe = rig.stripe();
        let opening = rig.client().run(async move { stripe.open_log(LOG, 1).await });
        rig.sim.run_for(std::time::Duration::from_micros(500 * delay));
        let seals = rig.stores.iter().map(|s| s.seal(late.clone())).collect();
        let (opened, _) = rig.run(async { (opening.await, join_all(seals).await) });
        let tail = opened.unwrap().unwrap();
        let again = rig.run(rig.stripe().open_log(LOG, 1)).unwrap();
        assert_eq!((&again.segments, again.epoch), (&tail.segments, tail.epoch + 1));
        for &id in &tail.segments {
            assert_eq!(rig.run(rig.stripe().read(id, 0..200_000)).unwrap(), segment.payload);
            counted[kind] += 1;
        }
    }
    let are_some = |count: &u64| (1..DELAYS).contains(count);
    assert!(counted[0] == DELAYS && counted[1..].iter().all(are_some), "{counted:?} opened before the late seal");
}

/// A late request of a dead opener told one store, which then did not answer any more. So it lacked
/// a fragment of a segment that counted as complete.
#[test]
fn regression_what_a_late_request_makes_incomplete_is_put_again() {
    const DELAYS: u64 = 120;
    let mut counted = 0;
    for delay in 0..DELAYS {
        let rig = Rig::new(8 + delay, 5, 1);
        let segment = rig.segment(1, 200_000);
        put_partly(&rig, &segment, &[0, 1, 2, 3, 4]);
        let late = Seal::new(LOG, Fence { epoch: 2, through: 0 }, 0);
        rig.stores.iter().for_each(|s| drop(rig.run(s.seal(late.clone())).unwrap()));
        let stripe = rig.stripe();
        let opening = rig.client().run(async move { stripe.open_log(LOG, 1).await });
        rig.sim.run_for(Duration::from_micros(500 * delay));
        rig.run(rig.stores[4].seal(late.told(rig.stores.iter().map(|s| s.id).collect()))).unwrap();
        rig.stores[4].set(Fault::Silent);
        let tail = rig.run(opening).unwrap().unwrap();
        rig.heal();
        for id in tail.segments {
            counted += 1;
            for away in &rig.stores {
                away.set(Fault::Down);
                let read = rig.run(rig.stripe().read(id, 0..200_000));
                assert!(read.is_ok_and(|bytes| bytes == segment.payload), "delay {delay}, without {}", away.id);
                rig.heal();
            }
        }
    }
    assert!(counted > DELAYS / 2, "only {counted} count");
}

/// The newest seal alone would let the writer go on: its next segment is at a seq that a later
/// epoch has written and the seal counts.
#[test]
fn regression_a_writer_that_slept_through_two_epochs_is_fenced() {
    let rig = Rig::new(11, 5, 1);
    let write = |writer: &Arc<LogWriter>, count: u64| {
        (0..count).for_each(|_| writer.submit(rig.draft(writer.begin(), 1000)));
    };
    let (_, _, sleeper) = rig.writer();
    write(&sleeper, 2);
    rig.run(sleeper.wait_committed(2)).unwrap();
    let (_, _, second) = rig.writer();
    write(&second, 3);
    rig.run(second.wait_committed(5)).unwrap();
    let (_, third, writer) = rig.writer();
    assert_eq!((third.epoch, third.next_seq), (3, 6));

    write(&sleeper, 1);
    assert_eq!(rig.run(sleeper.wait_committed(3)), Err(StripeError::Fenced));
    write(&writer, 1);
    rig.run(writer.wait_committed(6)).unwrap();
    let tail = rig.run(rig.stripe().open_log(LOG, 1)).unwrap();
    assert_eq!(tail.segments[..5], third.segments);
    assert_eq!(tail.segments.len(), 6);
    chain(&rig, &tail);
    // Segments that count can still be repaired, of any epoch.
    for &id in &tail.segments {
        rig.run(rig.stripe().put_again(id)).unwrap();
    }
}

/// Each opener may get an epoch, but never both the same.
#[test]
fn regression_two_openers_at_once_do_not_get_the_same_epoch() {
    let (mut both, mut refused) = (0, 0);
    for seed in 0..200 {
        let rig = Rig::new(seed, 5, 1);
        rig.stores[seed as usize % 5].set(if seed % 2 == 0 { Fault::Down } else { Fault::None });
        let machines = [rig.client(), rig.client()];
        let opened: Vec<_> = machines
            .iter()
            .map(|machine| {
                let stores = rig.stores.iter().map(|s| (s.id, s.clone() as Arc<dyn Storage>)).collect();
                let stripe = Stripe::new(machine.host(), crate::testing::FS, stores, rig.options);
                let wait = Duration::from_micros(rig.random.below(4_000));
                let clock = machine.host().clock;
                machine.run(async move {
                    clock.sleep(wait).await;
                    stripe.open_log(LOG, 1).await
                })
            })
            .collect();
        let opened: Vec<_> = rig.run(join_all(opened)).into_iter().map(|opened| opened.unwrap()).collect();
        match &opened[..] {
            [Ok(one), Ok(other)] => {
                both += 1;
                assert_ne!(one.epoch, other.epoch, "seed {seed}");
            }
            _ => refused += 1,
        }
    }
    assert!(both > 20 && refused + both == 200, "{both} {refused}");
}

#[test]
fn one_of_two_stores_is_no_quorum() {
    // Otherwise the log could be opened at each store alone, and both openers would get the
    // same epoch.
    let rig = Rig::new(7, 2, 1);
    rig.stores[0].set(Fault::Down);
    assert_eq!(rig.run(rig.stripe().open_log(LOG, 1)), Err(StripeError::NotEnoughStores));
}

/// Crashes the opener at every point, with a tail that has segments in every state, and opens
/// the log again with another store away. Nothing acknowledged is lost, and no epoch is handed
/// out twice.
#[test]
fn crash_at_any_point_of_opening_loses_nothing_acknowledged() {
    let mut crashes = 0;
    for seed in 0..3 {
        for polls in 1.. {
            let rig = Rig::new(seed, 5, 1);
            let (_, _, writer) = rig.writer();
            let drafts: Vec<_> = (0..3).map(|_| rig.draft(writer.begin(), 150_000)).collect();
            drafts.iter().for_each(|d| writer.submit(d.clone()));
            rig.run(writer.wait_committed(3)).unwrap();
            let last = writer.begin();
            rig.client().crash();
            let name = |seq| SegmentId { seq, ..last.id };
            let unsure = rig.draft(last, 150_000).assemble();
            let place = LogPlace { id: name(5), previous: Some(unsure.id), order: unsure.order + 1 };
            let beyond = rig.draft(place, 150_000).assemble();
            put_partly(&rig, &unsure, &[0, 1, 3]);
            put_partly(&rig, &beyond, &[1, 2]);

            let away = |at: usize| {
                rig.heal();
                rig.stores[at % 5].set(Fault::Down);
            };
            away(seed as usize);
            let machine = rig.client();
            machine.crash_after(polls);
            let stripe = rig.stripe();
            let first = rig.run(machine.run(async move { stripe.open_log(LOG, 1).await }));
            machine.crash();
            away(polls as usize);
            let tail = rig.run(rig.stripe().open_log(LOG, 1)).unwrap();
            let acknowledged: Vec<SegmentId> = drafts.iter().map(|d| d.id()).collect();
            assert_eq!(tail.segments[..3], acknowledged, "polls {polls}");
            if let Ok(Ok(first)) = &first {
                assert!(first.epoch < tail.epoch);
                assert_eq!(first.segments, tail.segments, "what an opening counted stays");
            }
            chain(&rig, &tail);
            // Every segment that counts is complete again, so any store can be lost now.
            away(seed as usize + 2);
            let stripe = rig.stripe();
            for draft in &drafts {
                let expected = draft.clone().assemble().payload;
                assert_eq!(rig.run(stripe.read(draft.id(), 0..150_000)).unwrap(), expected);
            }
            if tail.segments.len() > 3 {
                assert_eq!(rig.run(stripe.read(unsure.id, 0..150_000)).unwrap(), unsure.payload);
            }
            if first.is_ok() {
                break;
            }
            crashes += 1;
        }
    }
    assert!(crashes > 30, "{crashes} crashes tell nothing");
}
