//! Whether the home is still there, under `callbacks`.
//!
//! A home that has nothing to tell is silent, and so is a link that was lost without notice. The
//! transport would not notice such a loss for hours. So when a program uses something cached after
//! a silence, the client asks the home. The question is
//! [`Channel::caught_up`](roam_proto::channel::Channel::caught_up): it takes a few bytes, and its
//! answer means that all pushes have arrived. One question is under way at a time, however many
//! operations there are. A home that does not answer counts as out of reach
//! ([`SILENCE_MAX`](crate::cache::fetch::SILENCE_MAX)).
//!
//! Where the home is near, operations wait for the answer. That takes a few milliseconds, and they
//! see what was pushed meanwhile. Where it is far, they go on with what is cached, because the
//! cache is there to save that wait. They may use stale data for as long as the question takes.

use crate::client::Client;
use crate::connection::state::Probe;
use crate::live::Live;
use host::timeout;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::watch;

/// With a near home, operations wait for the answer until the question is this old. That is eight
/// round trips of the farthest home that counts as near.
const ANSWER_WAIT_MAX: Duration = Duration::from_millis(240);

/// What to do before cached data is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// Use it.
    Use,
    /// Ask the home. Then decide again, with the question under way.
    Ask,
    /// Wait for the answer, at most this long.
    Wait(Duration),
}

/// Decides what to do: by how long the home has been silent, how long a silence may be believed,
/// how old the question under way is, and whether the home is near.
fn next(silence: Duration, believed: Duration, asked_before: Option<Duration>, is_near: bool) -> Next {
    match asked_before {
        _ if silence < believed => Next::Use,
        None => Next::Ask,
        Some(before) if is_near && before < ANSWER_WAIT_MAX => Next::Wait(ANSWER_WAIT_MAX - before),
        Some(_) => Next::Use,
    }
}

impl Live {
    /// What to do now, if a silence may be believed for `believed`. Only under `callbacks` does the
    /// home tell of changes.
    fn before_use(&self, now: Duration, believed: Duration) -> Next {
        if self.link.is_offline() || !self.link.is_told() {
            return Next::Use;
        }
        let asked_before = self.link.probe().map(|probe| now.saturating_sub(probe.since));
        next(self.link.silence(now), believed, asked_before, self.link.is_near())
    }
}

impl Client {
    /// Called before cached data is used. Asks the home whether it is there, if it has been silent
    /// for long. Returns what the operation has to wait for, if anything.
    pub(crate) fn look_out(&self) -> Option<impl Future<Output = ()> + Send + use<>> {
        let believed = self.0.settings.lock().silence_believed;
        let clock = &self.0.host.clock;
        let now = clock.now();
        let mut live = self.0.live.lock();
        let mut next = live.before_use(now, believed);
        if next == Next::Ask {
            self.ask_after_silence(&mut live, now);
            next = live.before_use(now, believed);
        }
        let Next::Wait(rest) = next else { return None };
        let (clock, mut over) = (clock.clone(), live.link.probe()?.over.clone());
        Some(async move { drop(timeout(&*clock, rest, Box::pin(over.changed())).await) })
    }

    /// Starts a question. The task that listens takes in what the home pushes meanwhile.
    fn ask_after_silence(&self, live: &mut Live, now: Duration) {
        let Some(channel) = live.link.channel().cloned() else { return };
        let (asking, over) = watch::channel(());
        live.link.set_probe(Some(Probe { since: now, over }));
        self.0.consistency_calls.fetch_add(1, Relaxed);
        let me = self.clone();
        self.0.host.tasks.spawn(Box::pin(async move {
            let answered = me.0.patiently(&channel, channel.caught_up()).await;
            {
                let mut live = me.0.live.lock();
                live.link.set_probe(None);
                if answered.is_ok() && live.link.is_current(&channel) {
                    live.link.catch_up(now);
                }
            }
            drop(asking);
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_is_asked_once_after_a_silence_and_waited_for_where_it_is_near() {
        let [second, ms] = [Duration::from_secs(1), Duration::from_millis(1)];
        for is_near in [true, false] {
            assert_eq!(next(30 * second - ms, 30 * second, None, is_near), Next::Use);
            assert_eq!(next(30 * second, 30 * second, None, is_near), Next::Ask);
            assert_eq!(next(40 * second, 30 * second, Some(ANSWER_WAIT_MAX), is_near), Next::Use);
        }
        assert_eq!(next(30 * second, 30 * second, Some(40 * ms), true), Next::Wait(200 * ms));
        assert_eq!(next(30 * second, 30 * second, Some(40 * ms), false), Next::Use);
        // Another question was answered meanwhile.
        assert_eq!(next(second, 30 * second, Some(40 * ms), true), Next::Use);
    }
}
