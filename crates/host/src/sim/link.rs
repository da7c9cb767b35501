//! A simulated network link, for calls from one machine to a role on another.

use super::machine::Machine;
use crate::SplitMix64;
use crate::random::mix;
use parking_lot::Mutex;
use std::future::pending;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use types::BoxFuture;

/// How often a link fails, each as a number of messages in 1,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFaults {
    /// Requests that never arrive.
    pub lost_requests: u64,
    /// Answers that never arrive, although the request was served.
    pub lost_answers: u64,
    /// Requests that arrive twice.
    pub repeated_requests: u64,
}

/// The way from one machine to another and back. Clones are the same link.
#[derive(Clone)]
pub struct SimLink(Arc<Shared>);

struct Shared {
    from: Machine,
    to: Machine,
    random: SplitMix64,
    state: Mutex<State>,
}

struct State {
    delay: Range<Duration>,
    faults: LinkFaults,
    cut: bool,
}

impl SimLink {
    /// A faultless link on which each message takes a random time in `delay`.
    pub fn new(from: &Machine, to: &Machine, delay: Range<Duration>) -> Self {
        let seed = mix(from.new_seed() ^ mix(to.new_seed()));
        SimLink(Arc::new(Shared {
            from: from.clone(),
            to: to.clone(),
            random: SplitMix64::new(seed),
            state: Mutex::new(State { delay, faults: LinkFaults::default(), cut: false }),
        }))
    }

    /// Changes how often it fails.
    pub fn set_faults(&self, faults: LinkFaults) {
        self.0.state.lock().faults = faults;
    }

    /// While `cut`, every message that would arrive at either end is lost.
    pub fn cut(&self, cut: bool) {
        self.0.state.lock().cut = cut;
    }

    /// Lets the other machine do `request`. Never completes if a message is lost or the other
    /// machine is down, so callers need a [`timeout`](crate::timeout). A caller that stops waiting
    /// does not call the request back.
    pub fn call<T, W>(&self, request: impl Fn() -> W + Send + Sync + 'static) -> BoxFuture<T>
    where
        T: Send + 'static,
        W: Future<Output = T> + Send + 'static,
    {
        let (link, request) = (self.0.clone(), Arc::new(request));
        Box::pin(async move {
            let faults = link.state.lock().faults;
            if link.chance(faults.repeated_requests) {
                // The second answer is not waited for.
                drop(link.serve(request.clone()));
            }
            let served = link.serve(request);
            let Ok(Some(answer)) = served.await else { return pending().await };
            link.from.sleep(link.delay()).await;
            if link.is_cut() || link.chance(faults.lost_answers) {
                return pending().await;
            }
            answer
        })
    }
}

impl Shared {
    /// Sends one copy of the request, as a task of the machine that serves it; `None` if it is
    /// lost.
    fn serve<T, W>(
        self: &Arc<Self>,
        request: Arc<impl Fn() -> W + Send + Sync + 'static>,
    ) -> BoxFuture<Result<Option<T>, super::Crashed>>
    where
        T: Send + 'static,
        W: Future<Output = T> + Send + 'static,
    {
        let link = self.clone();
        let delay = self.delay();
        let lost = self.chance(self.state.lock().faults.lost_requests);
        self.to.run(async move {
            link.to.sleep(delay).await;
            if lost || link.is_cut() {
                return None;
            }
            Some(request().await)
        })
    }

    fn delay(&self) -> Duration {
        let delay = self.state.lock().delay.clone();
        delay.start + Duration::from_nanos(self.random.below(delay.end.saturating_sub(delay.start).as_nanos() as u64))
    }

    fn chance(&self, of_1000: u64) -> bool {
        of_1000 > 0 && self.random.chance(of_1000, 1000)
    }

    fn is_cut(&self) -> bool {
        self.state.lock().cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Sim;
    use crate::{Elapsed, timeout};
    use std::sync::atomic::{AtomicU64, Ordering};

    const DELAY: Range<Duration> = Duration::from_millis(1)..Duration::from_millis(2);

    struct Setup {
        sim: Sim,
        client: Machine,
        server: Machine,
        link: SimLink,
        served: Arc<AtomicU64>,
    }

    impl Setup {
        fn new(seed: u64) -> Self {
            let sim = Sim::new(seed);
            let (client, server) = (sim.machine("client"), sim.machine("server"));
            let link = SimLink::new(&client, &server, DELAY);
            Setup { sim, client, server, link, served: Arc::default() }
        }

        fn call(&self) -> Result<u64, Elapsed> {
            let served = self.served.clone();
            let call = self.link.call(move || {
                let served = served.clone();
                async move { served.fetch_add(1, Ordering::Relaxed) + 1 }
            });
            let clock = self.client.host().clock;
            self.sim.block_on(timeout(&*clock, Duration::from_millis(20), call))
        }
    }

    #[test]
    fn call_takes_the_time_of_both_ways() {
        let setup = Setup::new(1);
        assert_eq!(setup.call(), Ok(1));
        assert!((DELAY.start * 2..DELAY.end * 2).contains(&setup.sim.now()), "{:?}", setup.sim.now());
    }

    #[test]
    fn lost_request_is_not_served_and_lost_answer_is() {
        let setup = Setup::new(1);
        setup.link.set_faults(LinkFaults { lost_requests: 1000, ..LinkFaults::default() });
        assert_eq!((setup.call(), setup.served.load(Ordering::Relaxed)), (Err(Elapsed), 0));
        setup.link.set_faults(LinkFaults { lost_answers: 1000, ..LinkFaults::default() });
        assert_eq!((setup.call(), setup.served.load(Ordering::Relaxed)), (Err(Elapsed), 1));
        setup.link.set_faults(LinkFaults::default());
        assert_eq!(setup.call(), Ok(2));
    }

    #[test]
    fn repeated_request_is_served_twice_and_answered_once() {
        let setup = Setup::new(1);
        setup.link.set_faults(LinkFaults { repeated_requests: 1000, ..LinkFaults::default() });
        assert!(setup.call().is_ok());
        setup.sim.run_until_idle();
        assert_eq!(setup.served.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn nothing_passes_a_cut_link_or_reaches_a_machine_that_is_down() {
        let setup = Setup::new(1);
        setup.link.cut(true);
        assert_eq!(setup.call(), Err(Elapsed));
        setup.link.cut(false);
        assert_eq!(setup.call(), Ok(1));
        setup.server.crash();
        assert_eq!((setup.call(), setup.served.load(Ordering::Relaxed)), (Err(Elapsed), 1));
    }

    #[test]
    fn request_that_nobody_waits_for_any_more_still_arrives() {
        let setup = Setup::new(1);
        let served = setup.served.clone();
        let call = setup.link.call(move || {
            served.fetch_add(1, Ordering::Relaxed);
            async {}
        });
        let clock = setup.client.host().clock;
        assert_eq!(setup.sim.block_on(timeout(&*clock, DELAY.start / 2, call)), Err(Elapsed));
        assert_eq!(setup.served.load(Ordering::Relaxed), 0);
        setup.sim.run_until_idle();
        assert_eq!(setup.served.load(Ordering::Relaxed), 1);
    }
}
