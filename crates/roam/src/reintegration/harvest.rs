//! Has the home make durable what it has seen, and takes in its answers.

use crate::client::{Client, Inner};
use crate::live::{Live, Need};
use host::timeout;
use roam_proto::channel::Class;
use roam_proto::message::{Reply, Request};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use types::{FileId, FsError};

/// How long the client waits before it asks the home to make operations durable, if no call waits
/// for that.
const DURABLE_PERIOD: Duration = Duration::from_millis(300);
/// Longest wait for the home to make operations durable.
const TAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause after a failed attempt to ask.
const PAUSE: Duration = Duration::from_millis(500);

impl Live {
    /// The last operation about a file, or about names in it, that the home has seen and may not
    /// have made durable; `None`: there is none.
    fn seen_about(&self, file: FileId) -> Option<u64> {
        let named = self.replica.log().naming(self.replica.real(file)).map(|(seq, _)| seq);
        named.take_while(|seq| *seq <= self.sending.seen.through()).last()
    }

    /// True if others have changed a file since the home saw this client's operations on it. Then
    /// this client does not know the newest version.
    pub(crate) fn is_passed(&self, file: FileId) -> bool {
        let Ok(node) = self.replica.node(file) else { return false };
        let mut waiting = self.replica.log().naming(self.replica.real(file)).map(|(seq, _)| seq);
        node.is_stale && !node.is_dirty() && !self.is_content() && waiting.all(|seq| seq <= self.sending.seen.through())
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
