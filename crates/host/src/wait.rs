//! Waiting for several things at once, in any executor: the parts of `futures` and `tokio::time`
//! that roles need. They use no random branches and no runtime, so they behave the same in the
//! simulated world.
//!
//! Everything here polls its children inside the caller's task, always in the order given. Dropping
//! a wait drops the operation it waited for, whose effect is then *unknown*.

use crate::Clock;
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use thiserror::Error;
use types::BoxFuture;

/// A [`timeout`] ran out; whether the operation took effect is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("timed out")]
pub struct Elapsed;

/// Which of two futures ended [`first`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first argument.
    Left(A),
    /// The second argument.
    Right(B),
}

/// Waits for the first of `a` and `b` to end, and drops the other. If both are done, `a` counts.
pub async fn first<A: Future, B: Future>(a: A, b: B) -> Either<A::Output, B::Output> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|context| {
        if let Poll::Ready(output) = a.as_mut().poll(context) {
            return Poll::Ready(Either::Left(output));
        }
        b.as_mut().poll(context).map(Either::Right)
    })
    .await
}

/// Waits for `future`, but no longer than `time` from this call, and then drops it. A future that
/// is done at once never times out.
pub fn timeout<F: Future>(
    clock: &dyn Clock,
    time: Duration,
    future: F,
) -> impl Future<Output = Result<F::Output, Elapsed>> + use<F> {
    let sleep = clock.sleep(time);
    async move {
        match first(future, sleep).await {
            Either::Left(output) => Ok(output),
            Either::Right(()) => Err(Elapsed),
        }
    }
}

/// Runs all `futures` at the same time, in the caller's task; the outputs are in the order of the
/// arguments. Each wake polls every future that is not done, so this is for tens of futures (the
/// fragments of a stripe), not thousands.
pub fn join_all<F: Future>(futures: Vec<F>) -> JoinAll<F> {
    JoinAll { all: futures.into_iter().map(|future| Joined::Running(Box::pin(future))).collect() }
}

/// The future of [`join_all`].
pub struct JoinAll<F: Future> {
    all: Vec<Joined<F>>,
}

enum Joined<F: Future> {
    Running(Pin<Box<F>>),
    /// `None` once the output was taken.
    Done(Option<F::Output>),
}

// The futures are boxed, and the outputs never pinned.
impl<F: Future> Unpin for JoinAll<F> {}

impl<F: Future> JoinAll<F> {
    /// The indexes of the futures that are not done.
    pub fn running(&self) -> Vec<usize> {
        (0..self.all.len()).filter(|&i| matches!(self.all[i], Joined::Running(_))).collect()
    }
}

impl<F: Future> Future for JoinAll<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut waiting = false;
        for one in &mut self.all {
            if let Joined::Running(future) = one {
                match future.as_mut().poll(context) {
                    Poll::Ready(output) => *one = Joined::Done(Some(output)),
                    Poll::Pending => waiting = true,
                }
            }
        }
        if waiting {
            return Poll::Pending;
        }
        let take = |one| if let Joined::Done(output) = one { output } else { None };
        Poll::Ready(std::mem::take(&mut self.all).into_iter().filter_map(take).collect())
    }
}

/// Runs all `futures` in the caller's task, at most `at_once` at the same time: as one ends, the
/// next begins. The outputs are in the order of the futures. See [`join_all`] for how many may run.
pub async fn join_at_most<F: Future>(at_once: usize, futures: Vec<F>) -> Vec<F::Output> {
    let mut outputs = Vec::new();
    outputs.resize_with(futures.len(), || None);
    let (left, outputs) = (Mutex::new(futures.into_iter().enumerate()), Mutex::new(outputs));
    let lane = || async {
        loop {
            let next = left.lock().next();
            let Some((index, future)) = next else { return };
            let output = future.await;
            outputs.lock()[index] = Some(output);
        }
    };
    join_all((0..at_once.max(1)).map(|_| lane()).collect()).await;
    outputs.into_inner().into_iter().flatten().collect()
}

/// Lets other ready tasks run first.
pub async fn yield_now() {
    tokio::task::yield_now().await;
}

/// Ticks every `period`, the first time one period from now.
pub fn interval(clock: Arc<dyn Clock>, period: Duration) -> Interval {
    let sleep = clock.sleep(period);
    Interval { clock, period, sleep }
}

/// The timer of [`interval`].
pub struct Interval {
    clock: Arc<dyn Clock>,
    period: Duration,
    sleep: BoxFuture<()>,
}

impl Interval {
    /// Waits for the next tick. The period starts anew when this returns, so ticks that the caller
    /// was too busy for are skipped and never made up. Dropping the wait loses no tick.
    pub async fn tick(&mut self) {
        (&mut self.sleep).await;
        self.sleep = self.clock.sleep(self.period);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Sim;

    fn after(clock: &Arc<dyn Clock>, seconds: u64) -> BoxFuture<u64> {
        let sleep = clock.sleep(Duration::from_secs(seconds));
        Box::pin(async move {
            sleep.await;
            seconds
        })
    }

    #[test]
    fn first_takes_the_left_one_if_both_are_done() {
        let sim = Sim::new(1);
        let clock = sim.machine("one").host().clock;
        assert_eq!(sim.block_on(first(async { 1 }, async { 2 })), Either::Left(1));
        assert_eq!(sim.block_on(first(after(&clock, 3), after(&clock, 3))), Either::Left(3));
        assert_eq!(sim.block_on(first(after(&clock, 3), after(&clock, 2))), Either::Right(2));
    }

    #[test]
    fn timeout_ends_what_takes_longer_and_nothing_else() {
        let sim = Sim::new(1);
        let clock = sim.machine("one").host().clock;
        let limit = Duration::from_secs(5);
        assert_eq!(sim.block_on(timeout(&*clock, limit, after(&clock, 4))), Ok(4));
        assert_eq!(sim.block_on(timeout(&*clock, limit, after(&clock, 6))), Err(Elapsed));
        assert_eq!(sim.now(), Duration::from_secs(9));
        sim.run_until_idle();
        assert_eq!(sim.now(), Duration::from_secs(9), "the timers that lost are gone");
        assert_eq!(sim.block_on(timeout(&*clock, Duration::ZERO, async { 7 })), Ok(7));
    }

    #[test]
    fn join_at_most_begins_one_as_another_ends_and_keeps_their_order() {
        let sim = Sim::new(1);
        let clock = sim.machine("one").host().clock;
        let later = |seconds| {
            let clock = clock.clone();
            async move { after(&clock, seconds).await }
        };
        assert_eq!(sim.block_on(join_at_most(2, [5, 1, 3, 5].map(later).into())), [5, 1, 3, 5]);
        // One lane: 5. The other one: 1, 3 and 5.
        assert_eq!(sim.now(), Duration::from_secs(9));
        assert_eq!(sim.block_on(join_at_most(0, [2, 1].map(later).into())), [2, 1]);
        assert_eq!(sim.now(), Duration::from_secs(12), "at least one at a time");
        assert_eq!(sim.block_on(join_at_most(3, Vec::<BoxFuture<u64>>::new())), [0; 0]);
    }

    #[test]
    fn join_all_runs_all_at_once_and_keeps_their_order() {
        let sim = Sim::new(1);
        let clock = sim.machine("one").host().clock;
        let futures = [5, 1, 3, 5].map(|seconds| after(&clock, seconds)).into();
        assert_eq!(sim.block_on(join_all(futures)), [5, 1, 3, 5]);
        assert_eq!(sim.now(), Duration::from_secs(5));
        assert_eq!(sim.block_on(join_all(Vec::<BoxFuture<u64>>::new())), []);
        let mut some = join_all([1, 9, 3].map(|seconds| after(&clock, seconds)).into());
        assert_eq!(sim.block_on(first(&mut some, after(&clock, 5))), Either::Right(5));
        assert_eq!(some.running(), [1]);
        assert_eq!(sim.block_on(some), [1, 9, 3]);
    }

    #[test]
    fn interval_skips_ticks_that_its_owner_was_too_busy_for() {
        let sim = Sim::new(1);
        let clock = sim.machine("one").host().clock;
        sim.block_on(async {
            let mut ticks = interval(clock.clone(), Duration::from_secs(10));
            ticks.tick().await;
            assert_eq!(clock.now(), Duration::from_secs(10));
            clock.sleep(Duration::from_secs(35)).await;
            ticks.tick().await;
            assert_eq!(clock.now(), Duration::from_secs(45));
            assert_eq!(timeout(&*clock, Duration::from_secs(4), ticks.tick()).await, Err(Elapsed));
            ticks.tick().await;
            assert_eq!(clock.now(), Duration::from_secs(55));
        });
    }
}
