//! Links that are so slow that reads would wait for what goes home.

mod rig;

use rig::session::{How, Op, find, noise, perform, read_all};
use rig::setup::Setup;
use roam::{IDLE_WAIT_MAX, LinkState, Unit, Writes};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use vfs::FileSystem;

const SECOND: Duration = Duration::from_secs(1);

impl Setup {
    fn state(&self) -> LinkState {
        self.client.look(|_, state| state)
    }

    fn waiting(&self) -> usize {
        self.client.look(|replica, _| replica.log().len())
    }
}

/// A client over a slow link, on which a program reads all the time, one file after the other.
fn slow(seed: u64) -> Setup {
    let setup = Setup::new(seed);
    let tree = setup.rig.home.lock().clone().expect("home").tree;
    for number in 0..400 {
        let op = Op::Write(format!("/file-{number}"), How::Replace, noise(4000));
        setup.rig.sim.block_on(perform(&tree, &op)).expect("made");
    }
    setup.rig.sim.run_for(SECOND);
    setup.client.set(|settings| settings.unit = Unit::Block);
    setup.done(Op::List("/".into()));
    setup.network.bytes_per_second.store(1500, Relaxed);
    let client = setup.client.clone();
    let host = setup.machine.host();
    host.tasks.spawn(Box::pin(async move {
        for number in 0..400 {
            if let Ok(id) = find(&client, &format!("/file-{number}")).await {
                let _ = read_all(&client, id).await;
            }
        }
    }));
    setup
}

/// On a link where a chunk takes seconds, reads waited for chunks that went home, too.
#[test]
fn what_was_done_waits_on_a_slow_link_while_somebody_reads_but_not_for_long() {
    let setup = slow(1);
    let mut sent = Vec::new();
    let (mut states, mut number) = (Vec::new(), 0);
    let begun = setup.rig.sim.now();
    let mut waited = setup.waiting();
    while setup.rig.sim.now() < begun + 900 * SECOND {
        if number < 40 {
            let op = Op::Write(format!("/mine-{number}"), How::Replace, noise(2500));
            setup.rig.sim.block_on(perform(&setup.client, &op)).expect("written");
            number += 1;
            waited = setup.waiting();
        }
        setup.rig.sim.run_for(SECOND);
        if setup.waiting() < waited {
            sent.push(setup.rig.sim.now());
        }
        waited = setup.waiting();
        states.push(setup.state());
        if setup.state() == LinkState::FetchOnly {
            assert!(setup.client.held_back().is_some_and(|time| time <= 120 * SECOND));
        }
    }
    let held = states.iter().filter(|state| **state == LinkState::FetchOnly).count();
    assert!(held > states.len() / 2, "{held} of {} s", states.len());
    let changes = states.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes < 40, "{changes} changes");
    // Some went every two minutes, plus the time that sending took.
    let gaps = sent.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(sent.len() > 3 && gaps.is_some_and(|gap| gap < 180 * SECOND), "{sent:?}");
    // A program that waits for changes to be home does not wait for reads.
    let begun = setup.rig.sim.now();
    setup.rig.sim.block_on(setup.client.send_all()).expect("sent");
    assert!(setup.rig.sim.now() < begun + 300 * SECOND);
    assert_eq!(setup.waiting(), 0);
}

#[test]
fn what_was_done_goes_when_nobody_reads_or_at_once_if_the_user_wants() {
    for writes in [Writes::Lottery, Writes::Preemptive] {
        let setup = slow(2);
        setup.client.set(|settings| settings.writes = writes);
        let mut states = Vec::new();
        for number in 0..100 {
            let op = Op::Write(format!("/mine-{number}"), How::Replace, noise(2500));
            setup.rig.sim.block_on(perform(&setup.client, &op)).expect("written");
            setup.rig.sim.run_for(SECOND);
            states.push(setup.state());
        }
        assert_eq!(states.contains(&LinkState::FetchOnly), writes == Writes::Lottery);
        // No file is left to read.
        setup.rig.sim.run_for(3600 * SECOND);
        assert_eq!((setup.state(), setup.waiting()), (LinkState::Weak, 0));
    }
}

/// A program asks for something every half second, all the time.
#[test]
fn regression_with_idle_what_waits_goes_in_the_end_though_the_link_is_never_idle() {
    let setup = Setup::new(3);
    setup.network.lag_ms.store(50, Relaxed);
    setup.done(Op::List("/".into()));
    setup.rig.sim.run_for(SECOND);
    assert_eq!(setup.state(), LinkState::Weak);
    setup.client.set(|settings| settings.writes = Writes::Idle);
    // Only the home knows how much room there is.
    let ask = || setup.rig.sim.block_on(async { setup.client.statfs().await }).expect("answered");
    ask();
    let begun = setup.rig.sim.now();
    setup.done(Op::Write("/mine".into(), How::Replace, noise(2500)));
    let mut waited = None;
    for _ in 0..2000 {
        ask();
        if setup.waiting() == 0 {
            waited = Some(setup.rig.sim.now() - begun);
            break;
        }
        setup.rig.sim.run_for(SECOND / 2);
    }
    let waited = waited.expect("gone home");
    assert!(waited >= IDLE_WAIT_MAX && waited < IDLE_WAIT_MAX + 30 * SECOND, "{waited:?}");
}

/// A program that asked for the free space over a link that had just died waited until the client
/// noticed the loss.
#[test]
fn regression_how_much_room_there_is_is_told_soon_though_the_link_has_just_died() {
    let setup = Setup::new(4);
    let ask = || setup.rig.sim.block_on(async { setup.client.statfs().await }).expect("answered");
    setup.done(Op::List("/".into()));
    let known = ask();
    assert!(known.total_bytes > 0);
    setup.network.lag_ms.store(60_000, Relaxed);
    let begun = setup.rig.sim.now();
    assert_eq!(ask(), known);
    assert!(setup.rig.sim.now() - begun <= SECOND + SECOND / 2);
}
