//! openraft on a [`Host`]: it uses the tasks, clock and randomness of the machine, real or
//! simulated.
//!
//! openraft asks for time, tasks and random numbers through functions without a receiver, while a
//! host is a value. So each task carries its host, and makes it known to the thread while the task
//! is being polled, as tokio does with its own context. Therefore every future of openraft must be
//! awaited [`within`] a host; tasks that it spawns inherit the host.

use host::{Host, Random};
use openraft::async_runtime::AsyncOneshotSendExt;
use openraft::{AsyncRuntime, OptionalSend};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::oneshot;
use types::BoxFuture;

thread_local! {
    /// The host of the task that this thread is polling.
    static CURRENT: RefCell<Option<Host>> = const { RefCell::new(None) };
}

/// Puts back the previous host on drop, also when the polled future panics.
struct Restore(Option<Host>);

impl Drop for Restore {
    fn drop(&mut self) {
        let before = self.0.take();
        CURRENT.with(|current| *current.borrow_mut() = before);
    }
}

/// A future that knows its host; see [`within`].
pub struct Within<F> {
    host: Host,
    future: Pin<Box<F>>,
}

/// Runs a future of openraft on a host.
pub fn within<F: Future>(host: &Host, future: F) -> Within<F> {
    Within { host: host.clone(), future: Box::pin(future) }
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let host = self.host.clone();
        let _restore = Restore(CURRENT.with(|current| current.borrow_mut().replace(host)));
        self.future.as_mut().poll(context)
    }
}

fn current() -> Host {
    match CURRENT.with(|current| current.borrow().clone()) {
        Some(host) => host,
        None => panic!("openraft is used outside of a host: wrap the call in `within`"),
    }
}

/// The runtime that openraft uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostRuntime;

impl AsyncRuntime for HostRuntime {
    type JoinError = Ended;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = Instant;
    type TimeoutError = host::Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = Rng;
    type OneshotSender<T: OptionalSend> = Sender<T>;
    type OneshotReceiver<T: OptionalSend> = oneshot::Receiver<T>;
    type OneshotReceiverError = oneshot::error::RecvError;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        let host = current();
        let (sender, receiver) = oneshot::channel();
        let task = within(&host, async move {
            // The receiver may be dropped: not every task's result is awaited.
            let _ = sender.send(future.await);
        });
        host.tasks.spawn(Box::pin(task));
        JoinHandle(receiver)
    }

    fn sleep(duration: Duration) -> Sleep {
        Sleep(Mutex::new(current().clock.sleep(duration)))
    }

    fn sleep_until(deadline: Instant) -> Sleep {
        Self::sleep(deadline - <Instant as openraft::Instant>::now())
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Timeout<F> {
        Timeout { future: Box::pin(future), sleep: Self::sleep(duration) }
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Instant, future: F) -> Timeout<F> {
        Timeout { future: Box::pin(future), sleep: Self::sleep_until(deadline) }
    }

    fn is_panic(_: &Ended) -> bool {
        // A host does not say why a task has ended; its own runner reports panics.
        false
    }

    fn thread_rng() -> Rng {
        Rng(current().random)
    }

    fn oneshot<T: OptionalSend>() -> (Sender<T>, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (Sender(sender), receiver)
    }
}

/// A task ended before it had a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the task ended without a result")]
pub struct Ended;

/// Waits for a task's result. Dropping it leaves the task running.
pub struct JoinHandle<T>(oneshot::Receiver<T>);

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Ended>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|result| result.map_err(|_| Ended))
    }
}

/// Waits on the host's clock. The lock only makes it `Sync`, and is never contended.
pub struct Sleep(Mutex<BoxFuture<()>>);

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.get_mut().as_mut().poll(context)
    }
}

/// A future with a deadline.
pub struct Timeout<F> {
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, host::Elapsed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut self.sleep).poll(context).map(|()| Err(host::Elapsed))
    }
}

/// The sending half of a channel for one value.
pub struct Sender<T>(oneshot::Sender<T>);

impl<T: OptionalSend> AsyncOneshotSendExt<T> for Sender<T> {
    fn send(self, value: T) -> Result<(), T> {
        self.0.send(value)
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

/// A moment on the host's monotonic clock. Subtraction stops at the clock's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl openraft::Instant for Instant {
    fn now() -> Self {
        Instant(current().clock.now())
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, time: Duration) -> Instant {
        Instant(self.0.saturating_add(time))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, time: Duration) -> Instant {
        Instant(self.0.saturating_sub(time))
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, time: Duration) {
        *self = *self - time;
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The host's random numbers, through the trait that openraft needs.
pub struct Rng(Arc<dyn Random>);

impl rand_core::RngCore for Rng {
    fn next_u32(&mut self) -> u32 {
        self.next_u64() as u32
    }

    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn fill_bytes(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), rand_core::Error> {
        self.fill_bytes(out);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::sim::Sim;
    use openraft::Instant as _;

    #[test]
    fn time_tasks_and_randomness_are_those_of_the_host() {
        let numbers = |seed| {
            let sim = Sim::new(seed);
            let host = sim.machine("one").host();
            let seen = sim.block_on(within(&host, async {
                let began = Instant::now();
                let task = HostRuntime::spawn(async {
                    HostRuntime::sleep(Duration::from_secs(3)).await;
                    rand_core::RngCore::next_u64(&mut HostRuntime::thread_rng())
                });
                let number = task.await.expect("the task ends");
                assert_eq!(began.elapsed(), Duration::from_secs(3));
                number
            }));
            assert!(CURRENT.with(|current| current.borrow().is_none()), "the host is forgotten afterwards");
            seen
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
    }

    #[test]
    fn timeouts_end_what_takes_longer_and_nothing_else() {
        let sim = Sim::new(1);
        let host = sim.machine("one").host();
        sim.block_on(within(&host, async {
            let sleep = |seconds| HostRuntime::sleep(Duration::from_secs(seconds));
            let limit = Duration::from_secs(2);
            assert_eq!(HostRuntime::timeout(limit, sleep(1)).await, Ok(()));
            assert_eq!(HostRuntime::timeout(limit, sleep(3)).await, Err(host::Elapsed));
            assert_eq!(HostRuntime::timeout_at(Instant::now() + limit, sleep(3)).await, Err(host::Elapsed));
        }));
        assert_eq!(sim.now(), Duration::from_secs(5));
    }

    #[test]
    fn a_moment_never_lies_before_the_start_of_the_clock() {
        assert_eq!(Instant(Duration::from_secs(1)) - Duration::from_secs(2), Instant(Duration::ZERO));
        assert_eq!(Instant(Duration::from_secs(1)) - Instant(Duration::from_secs(2)), Duration::ZERO);
    }

    #[test]
    fn a_task_that_is_gone_is_an_error_and_not_a_wait_for_ever() {
        let sim = Sim::new(1);
        let machine = sim.machine("one");
        let host = machine.host();
        let ended = sim.block_on(within(&host, async {
            let task = HostRuntime::spawn(std::future::pending::<()>());
            machine.crash();
            task.await
        }));
        assert_eq!(ended, Err(Ended));
    }
}
