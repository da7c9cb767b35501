//! Links that are lost silently: no connection is closed, and nothing comes any more.

mod rig;

use rig::Rig;
use rig::session::{How, Op, find, perform, read_all};
use rig::setup::Setup;
use roam::{Consistency, LinkState, SILENCE_BELIEVED};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use types::FsError;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
/// Time within which a client notices that a home does not answer: `SILENCE_MAX` of the fetches,
/// and a margin.
const NOTICED_WITHIN: Duration = Duration::from_secs(9);

/// A client with this delay to its home, and a file that both have.
fn setup(delay: Duration) -> Setup {
    let rig = Rig::new(1);
    let (client, network, disk, machine) = rig.new_client(1, delay);
    let setup = Setup { rig, client, network, disk, machine };
    setup.pass(SECOND);
    setup.change_at_home("1");
    setup.pass(SECOND);
    assert_eq!(setup.read().as_deref(), Ok("1"));
    setup
}

impl Setup {
    fn pass(&self, time: Duration) {
        self.rig.sim.run_for(time);
    }

    fn change_at_home(&self, text: &str) {
        let tree = self.rig.home.lock().clone().expect("home").tree;
        let op = Op::Write("/file".into(), How::Replace, text.as_bytes().to_vec());
        self.rig.sim.block_on(perform(&tree, &op)).expect("written");
    }

    fn read(&self) -> Result<String, FsError> {
        let read = self.rig.sim.block_on(async { read_all(&self.client, find(&self.client, "/file").await?).await });
        read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn state(&self) -> LinkState {
        self.client.look(|_, state| state)
    }

    fn requests(&self) -> u64 {
        self.network.requests.load(Relaxed)
    }
}

/// A link was lost silently, and for hours the client served what was cached as the home's state.
#[test]
fn regression_a_link_that_is_lost_without_a_word_is_noticed_when_something_cached_is_used() {
    for delay_ms in [1, 100] {
        let setup = setup(Duration::from_millis(delay_ms));
        let before = setup.state();
        assert_eq!(before, if delay_ms == 1 { LinkState::Connected } else { LinkState::Weak });
        setup.network.up.store(false, Relaxed);
        setup.change_at_home("2");
        setup.pass(3 * HOUR);
        let asked = setup.requests();
        assert_eq!(setup.state(), before, "nothing was used");
        for _ in 0..20 {
            let begun = setup.rig.sim.now();
            assert_eq!(setup.read().as_deref(), Ok("1"), "programs wait only briefly for a home that may be gone");
            assert!(setup.rig.sim.now() - begun <= SECOND);
        }
        assert_eq!(setup.requests(), asked + 1, "one question for all uses");
        setup.pass(NOTICED_WITHIN);
        assert_eq!(setup.state(), LinkState::Disconnected, "{delay_ms} ms");
        assert_eq!(setup.read().as_deref(), Ok("1"), "what is cached can be used without a network");
        setup.network.up.store(true, Relaxed);
        setup.pass(10 * SECOND);
        assert_eq!((setup.state(), setup.read().as_deref()), (before, Ok("2")));
    }
}

/// The link was back, and the home's pushes were still on their way. A program then used what was
/// cached.
#[test]
fn regression_what_a_near_home_has_told_in_a_silence_is_known_to_who_uses_it_then() {
    let setup = setup(Duration::from_millis(1));
    setup.network.up.store(false, Relaxed);
    setup.change_at_home("2");
    setup.pass(HOUR);
    assert_eq!(setup.state(), LinkState::Connected);
    setup.network.up.store(true, Relaxed);
    assert_eq!(setup.read().as_deref(), Ok("2"));
}

#[test]
fn a_home_is_asked_seldom_and_not_at_all_while_nothing_is_used() {
    let setup = setup(Duration::from_millis(100));
    let asked = setup.requests();
    for _ in 0..600 {
        setup.pass(SECOND);
        assert_eq!(setup.read().as_deref(), Ok("1"));
    }
    let questions = setup.requests() - asked;
    let most = 600 / SILENCE_BELIEVED.as_secs();
    assert!((most / 2..=most).contains(&questions), "{questions}");
    let asked = setup.requests();
    setup.pass(HOUR);
    assert_eq!(setup.requests(), asked, "an idle mount sends nothing");
    setup.client.set(|settings| settings.consistency = Consistency::None);
    setup.pass(HOUR);
    let asked = setup.requests();
    for _ in 0..600 {
        setup.pass(SECOND);
        assert_eq!(setup.read().as_deref(), Ok("1"));
    }
    assert_eq!(setup.requests(), asked, "what is believed for ever needs no questions");
}

/// A home's process was killed while it had a question, and the home is up again. The client waited
/// for the answer as if it could still come: for eight to sixteen seconds.
#[test]
fn regression_a_home_that_was_killed_with_a_question_in_hand_is_not_waited_for() {
    for delay_ms in [1, 100] {
        let setup = setup(Duration::from_millis(delay_ms));
        setup.change_at_home("2");
        setup.pass(SECOND);
        // The home gets the question, and its answer does not come.
        setup.network.lose_answers.store(true, Relaxed);
        setup.network.silent_deaths.store(true, Relaxed);
        let (client, over) = (setup.client.clone(), Arc::new(AtomicBool::new(false)));
        let is_over = over.clone();
        setup.machine.host().tasks.spawn(Box::pin(async move {
            let read = async { read_all(&client, find(&client, "/file").await?).await };
            assert_eq!(read.await.as_deref(), Ok(&b"2"[..]), "the client did not ask the home again");
            is_over.store(true, Relaxed);
        }));
        setup.pass(SECOND / 2);
        assert!(!over.load(Relaxed), "the read did not wait for the answer");
        setup.rig.crash_home();
        setup.rig.start_home();
        setup.network.lose_answers.store(false, Relaxed);
        setup.pass(3 * SECOND);
        assert!(over.load(Relaxed), "{delay_ms} ms");
    }
}
