//! Waits until all answers that were begun have been written to the kernel.
//!
//! Whoever computes an answer and sends it does both in one *section*: a call of the file system
//! with its reply, or one poll of the future that replies. A section never waits for anything. A
//! future that waits for its next poll is in no section, so a request may wait for as long as it
//! likes.
//!
//! # Why the wait is sound
//!
//! [`Sections::wait_for_all_before`] returns only after it has seen each of the two counters at
//! zero, at some moment after the call. A section that was open at the call is counted in one of
//! them until it ends. So it has ended when that counter was zero.
//!
//! A section that is not seen began later. It then sees all that was done before the call: in the
//! order of the fences and counters, its increment comes after the caller's look at the counter,
//! and each side has a fence between its write and its read.
//!
//! # Why it ends
//!
//! New sections use the counter whose turn it is. The wait first lets the other counter drain, then
//! changes the turn, and lets the first one drain. Nobody joins a counter whose turn it is not, but
//! for the threads that had read the turn before it changed, once each.

use std::pin::pin;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicUsize, fence};
use tokio::sync::{Mutex, Notify};

/// The answers under way of one mount.
#[derive(Default)]
pub(crate) struct Sections {
    /// The counter that new sections use: 0 or 1.
    turn: AtomicUsize,
    /// Open sections, by the turn in which they began.
    open: [AtomicUsize; 2],
    /// Waits under way. While there are none, a section that ends tells nobody.
    waiting: AtomicUsize,
    ended: Notify,
    /// Held by the wait that changes the turn: two of them could keep a counter from draining.
    changing: Mutex<()>,
}

/// An open section. Dropping it ends it.
#[must_use = "dropping a section ends it"]
pub(crate) struct Section<'a> {
    sections: &'a Sections,
    turn: usize,
}

/// One wait, counted as long as it lasts.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, SeqCst);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Sections {
    /// Begins a section. Sections of one thread may overlap.
    pub(crate) fn enter(&self) -> Section<'_> {
        let turn = self.turn.load(Relaxed);
        self.open[turn].fetch_add(1, Relaxed);
        // Pairs with the fence of `wait_for_all_before`.
        fence(SeqCst);
        Section { sections: self, turn }
    }

    /// Waits until all sections have ended that began before the call.
    pub(crate) async fn wait_for_all_before(&self) {
        // Pairs with the fence of `enter`.
        fence(SeqCst);
        let _changing = self.changing.lock().await;
        let turn = self.turn.load(Relaxed);
        self.wait_until_empty(1 - turn).await;
        self.turn.store(1 - turn, Relaxed);
        self.wait_until_empty(turn).await;
    }

    async fn wait_until_empty(&self, turn: usize) {
        let _waiting = Waiting::begin(&self.waiting);
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            // The last section either sees the wait, which was counted before, or is seen here.
            if self.open[turn].load(SeqCst) == 0 {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        let sections = self.sections;
        if sections.open[self.turn].fetch_sub(1, SeqCst) == 1 && sections.waiting.load(SeqCst) > 0 {
            sections.ended.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::task::{Context, Waker};

    fn is_done(wait: &mut Pin<Box<impl Future<Output = ()>>>) -> bool {
        wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_wait_ends_when_all_sections_have_that_began_before() {
        let sections = Sections::default();
        // The second round begins with the other turn.
        for _ in 0..2 {
            assert!(is_done(&mut Box::pin(sections.wait_for_all_before())), "there are none");
            let (first, second) = (sections.enter(), sections.enter());
            let mut wait = Box::pin(sections.wait_for_all_before());
            assert!(!is_done(&mut wait));
            drop(second);
            assert!(!is_done(&mut wait));
            drop(first);
            assert!(is_done(&mut wait));
        }
    }

    #[test]
    fn sections_that_begin_later_are_not_waited_for() {
        let sections = Sections::default();
        for _ in 0..2 {
            let before = sections.enter();
            let mut wait = Box::pin(sections.wait_for_all_before());
            assert!(!is_done(&mut wait));
            let later = sections.enter();
            drop(before);
            assert!(is_done(&mut wait));
            drop(later);
        }
    }

    /// A thread may read the turn, and then count its section in a turn that is long over.
    #[test]
    fn a_section_of_a_turn_that_is_over_is_waited_for() {
        let sections = Sections::default();
        let late = sections.enter();
        sections.turn.store(1, Relaxed);
        let mut wait = Box::pin(sections.wait_for_all_before());
        assert!(!is_done(&mut wait));
        drop(late);
        assert!(is_done(&mut wait));
    }

    #[test]
    fn a_wait_that_is_given_up_does_not_stop_others() {
        let sections = Sections::default();
        let section = sections.enter();
        let mut given_up = Box::pin(sections.wait_for_all_before());
        let mut other = Box::pin(sections.wait_for_all_before());
        assert!(!is_done(&mut given_up) && !is_done(&mut other));
        drop(given_up);
        assert!(!is_done(&mut other));
        drop(section);
        assert!(is_done(&mut other));
        assert_eq!(sections.waiting.load(SeqCst), 0);
    }

    /// Threads read whether a thing is closed, and whether it was given back, in one section each.
    /// None that saw it open may see it given back. Several waits are under way at once.
    #[test]
    fn no_section_that_saw_a_thing_open_sees_it_given_back() {
        const READERS: usize = 4;
        const CLOSERS: usize = 3;
        const ROUNDS: u64 = 3_000;
        const LOOKS: u64 = 10_000;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        let sections = Arc::new(Sections::default());
        let things: Arc<[(AtomicU64, AtomicU64); CLOSERS]> = Arc::new(Default::default());
        let (ended, looks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let (sections, things) = (sections.clone(), things.clone());
                let (ended, looks) = (ended.clone(), looks.clone());
                std::thread::spawn(move || {
                    while !ended.load(Relaxed) {
                        for (closed, given_back) in things.iter() {
                            let section = sections.enter();
                            let saw_closed = closed.load(Relaxed);
                            if looks.fetch_add(1, Relaxed).is_multiple_of(16) {
                                std::thread::yield_now();
                            }
                            let saw_given_back = given_back.load(Relaxed);
                            drop(section);
                            assert!(saw_given_back <= saw_closed, "{saw_given_back} while {saw_closed} was closed");
                        }
                    }
                })
            })
            .collect();
        let closers: Vec<_> = (0..CLOSERS)
            .map(|which| {
                let (sections, things, looks) = (sections.clone(), things.clone(), looks.clone());
                runtime.spawn(async move {
                    let (closed, given_back) = &things[which];
                    // The readers run beside the waits.
                    let mut round = 0;
                    while round < ROUNDS || looks.load(Relaxed) < LOOKS {
                        round += 1;
                        closed.store(round, Relaxed);
                        sections.wait_for_all_before().await;
                        given_back.store(round, Relaxed);
                    }
                })
            })
            .collect();
        for closer in closers {
            runtime.block_on(closer).unwrap();
        }
        ended.store(true, Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(sections.open.each_ref().map(|open| open.load(SeqCst)), [0, 0]);
    }
}
