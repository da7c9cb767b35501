//! Operations that the home has seen, but perhaps not made durable yet.
//!
//! The home answers operations when it has done them ([`Outcome`](roam_proto::message::Outcome));
//! from then on all clients see the results. The operations stay unchanged in this client's log
//! until the home says that they are durable ([`Request::Durable`]). Only then do they count as
//! home, and the client takes in their answers. A home that crashes before that gets them again.
//!
//! Not lasting: a client that attaches again sends every operation that waits.

use crate::client::{Client, Inner};
use crate::live::{Live, Need};
use host::timeout;
use roam_proto::channel::Class;
use roam_proto::message::{Applied, Outcome, Reply, Request};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use types::{FileId, FsError};

/// How long the client waits before it asks the home to make operations durable, if no call waits
/// for that.
const DURABLE_PERIOD: Duration = Duration::from_millis(300);
/// With this many answers to take in, it asks at once.
const SEEN_COUNT_MAX: usize = 4096;
/// Longest wait for the home to make operations durable.
const TAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause after a failed attempt to ask.
const PAUSE: Duration = Duration::from_millis(500);

/// Answers to operations that are not durable yet, in the order of the operations.
#[derive(Default)]
pub(crate) struct Seen {
    answers: VecDeque<Applied>,
    /// The last operation that the home has seen.
    through: u64,
    /// Operations up to this one, which the home has seen, are to be durable because a call waits
    /// for that.
    wanted: u64,
    /// As `wanted`, for an operation that the home had not seen when the call began. The client
    /// asks once the home has seen it. If it asked after each message before, the home would sync
    /// for each of them.
    wanted_later: u64,
    /// How often the client has attached: counts how often everything here began anew.
    pub(crate) attached: u64,
}

impl Seen {
    /// The last operation that the home has seen.
    pub(crate) fn through(&self) -> u64 {
        self.through
    }

    /// Takes in the home's answers to operations.
    pub(crate) fn add(&mut self, applied: Vec<Applied>) {
        for applied in applied.into_iter() {
            if applied.seq > self.through {
                self.through = applied.seq;
                self.answers.push_back(applied);
            }
        }
        if self.through >= self.wanted_later {
            self.wanted = self.wanted.max(self.wanted_later);
        }
    }

    /// Notes that a call waits until operations up to this one are durable.
    fn want(&mut self, seq: u64) {
        match seq <= self.through {
            true => self.wanted = self.wanted.max(seq),
            false => self.wanted_later = self.wanted_later.max(seq),
        }
    }

    /// The client has attached again, and sends every operation that is not durable.
    pub(crate) fn begin_anew(&mut self) {
        *self = Seen { attached: self.attached + 1, ..Seen::default() };
    }

    /// True if an operation failed or was merged. What follows depends on that answer, which has to
    /// be taken in first.
    pub(crate) fn has_failed(&self) -> bool {
        self.answers.iter().any(|applied| applied.outcome != Outcome::Done)
    }

    /// True if the client asks the home at once.
    fn is_urgent(&self) -> bool {
        let is_wanted = self.answers.front().is_some_and(|first| first.seq <= self.wanted);
        is_wanted || self.answers.len() >= SEEN_COUNT_MAX || self.has_failed()
    }

    fn take(&mut self, through: u64) -> Vec<Applied> {
        let count = self.answers.iter().take_while(|applied| applied.seq <= through).count();
        self.answers.drain(..count).collect()
    }
}

impl Live {
    /// The last operation about a file, or about names in it, that the home has seen and may not
    /// have made durable; `None`: there is none.
    fn seen_about(&self, file: FileId) -> Option<u64> {
        let named = self.replica.log().naming(self.replica.real(file)).map(|(seq, _)| seq);
        named.take_while(|seq| *seq <= self.sending.seen.through).last()
    }

    /// True if others have changed a file since the home saw this client's operations on it. Then
    /// this client does not know the newest version.
    pub(crate) fn is_passed(&self, file: FileId) -> bool {
        let Ok(node) = self.replica.node(file) else { return false };
        let mut waiting = self.replica.log().naming(self.replica.real(file)).map(|(seq, _)| seq);
        node.is_stale && !node.is_dirty() && !self.is_content() && waiting.all(|seq| seq <= self.sending.seen.through)
    }
}

impl Inner {
    /// Notes that a call waits until operations up to this one are durable at home.
    pub(crate) fn hurry_durable(&self, seq: u64) {
        self.live.lock().sending.seen.want(seq);
        self.seen_news.notify_one();
    }
}

impl Client {
    /// Waits until the answers to operations on a file that the home has seen are taken in. The
    /// home's next answer about the file includes those operations.
    pub(crate) async fn take_seen(&self, file: FileId) -> Result<(), FsError> {
        let taken = async {
            let mut tick = self.0.tick.subscribe();
            loop {
                let seen = {
                    let live = self.0.live.lock();
                    if live.link.is_offline() { None } else { live.seen_about(file) }
                };
                let Some(seq) = seen else { return };
                self.0.hurry_durable(seq);
                if tick.changed().await.is_err() {
                    return;
                }
            }
        };
        timeout(&*self.0.host.clock, TAKE_TIME_MAX, taken).await.map_err(|_| FsError::TimedOut)
    }

    /// Asks the home to make durable what it has seen, and takes in the answers. False if there is
    /// nothing to ask for.
    async fn harvest(&self) -> Result<bool, FsError> {
        let (through, attached) = {
            let live = self.0.live.lock();
            if live.sending.seen.answers.is_empty() || live.link.is_offline() {
                return Ok(false);
            }
            (live.sending.seen.through, live.sending.seen.attached)
        };
        match self.0.ask(Class::Replay, &Request::Durable { through }).await? {
            Reply::Done => {}
            _ => return Err(FsError::Io),
        }
        let applied = {
            let mut live = self.0.live.lock();
            if live.sending.seen.attached == attached { live.sending.seen.take(through) } else { Vec::new() }
        };
        for dir in self.answered(applied) {
            // Entries that others put there should be cached before the link is lost. The fetch may
            // need more answers to be taken in first, so it has a task of its own.
            let me = self.clone();
            self.0.host.tasks.spawn(Box::pin(async move {
                let _ = me.fetch(Need::Names(dir)).await;
            }));
        }
        Ok(true)
    }

    fn is_urgent(&self) -> bool {
        self.0.live.lock().sending.seen.is_urgent()
    }
}

/// Asks the home to make operations durable, for as long as the client exists.
pub(crate) async fn make_durable(inner: Weak<Inner>, news: Arc<Notify>) {
    loop {
        news.notified().await;
        let Some(client) = inner.upgrade().map(Client) else { return };
        let clock = client.0.host.clock.clone();
        let urgent = async {
            while !client.is_urgent() {
                news.notified().await;
            }
        };
        // Meanwhile more answers come.
        let _ = timeout(&*clock, DURABLE_PERIOD, urgent).await;
        match client.harvest().await {
            // There may be more by now.
            Ok(true) => news.notify_one(),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(%error, "making operations durable at home failed");
                drop(client);
                clock.sleep(PAUSE).await;
                news.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(seqs: std::ops::RangeInclusive<u64>) -> Vec<Applied> {
        seqs.map(|seq| Applied { seq, outcome: Outcome::Done, facts: Vec::new() }).collect()
    }

    #[test]
    fn a_home_is_asked_at_once_when_it_has_seen_all_that_a_call_waits_for() {
        let mut all = Seen::default();
        all.want(10);
        all.add(seen(1..=5));
        assert!(!all.is_urgent());
        all.want(3);
        assert!(all.is_urgent());
        all.take(5);
        all.add(seen(6..=10));
        assert!(all.is_urgent());
        all.take(10);
        all.add(seen(11..=12));
        assert!(!all.is_urgent());
    }
}
