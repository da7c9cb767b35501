//! Which clients are attached to a volume, and what each knows of the others.
//!
//! A client that is alone need not wait for the home when it closes a file, since no other client
//! could open it. When another client attaches, the home [tells](Pushed::Company) the one that was
//! alone. It answers the new client only when the first has said that the home has
//! [seen](Request::Joined) everything that it had done by then, or after [`JOIN_TIME_MAX`]. From
//! then on, both wait for the home when they close.
//!
//! When a client closes a file, the home tells the other clients near it. They say when they have
//! taken that in ([`Request::Heard`]), and then the home answers the close. So if they open the
//! file from then on, they see what was closed.
//!
//! Soft state: a home that starts again knows of no client, and clients learn whether they are
//! alone when they attach again. A client that has lost its connection believes that it has
//! company.
//!
//! [`Request::Heard`]: roam_proto::message::Request::Heard
//! [`Request::Joined`]: roam_proto::message::Request::Joined

use host::{Clock, timeout};
use parking_lot::Mutex;
use roam_proto::channel::Push;
use roam_proto::message::{self, Pushed, pack};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long a client that attaches waits at most for what the client that was alone has done.
const JOIN_TIME_MAX: Duration = Duration::from_secs(1);

/// How long a close waits at most until the other clients near the home know of it.
const HEAR_TIME_MAX: Duration = Duration::from_millis(500);

/// An attached client.
struct Member {
    author: u32,
    push: Arc<dyn Push>,
    /// The number of the last message that told it whether it is alone.
    told: u64,
    /// It may close files without waiting for the home.
    is_alone: bool,
    /// It is near, and says what it has heard of others' changes.
    hears: bool,
    /// The last change by others that it was told of.
    pushed: u64,
    /// The last change that it has said to have heard of.
    heard: u64,
}

/// The clients that are attached to a volume.
pub(crate) struct Company {
    members: Mutex<Vec<Member>>,
    /// Rises with each message, and when a client knows of the others.
    news: watch::Sender<u64>,
}

impl Default for Company {
    fn default() -> Company {
        Company { members: Mutex::default(), news: watch::Sender::new(0) }
    }
}

impl Company {
    /// Adds a client, and tells another one that was alone.
    pub(crate) fn join(&self, author: u32, push: Arc<dyn Push>) -> message::Company {
        let mut members = self.members.lock();
        // The same client may attach again before its old connection has ended.
        members.retain(|member| member.author != author);
        for member in members.iter_mut().filter(|member| member.is_alone) {
            self.tell(member, true);
        }
        let others = !members.is_empty();
        let number = self.next();
        let (is_alone, hears, pushed, heard) = (!others, false, 0, 0);
        members.push(Member { author, push, told: number, is_alone, hears, pushed, heard });
        message::Company { number, others }
    }

    /// Removes a client that has detached or lost its connection, and tells another one that is
    /// alone now.
    pub(crate) fn leave(&self, push: &Arc<dyn Push>) {
        let mut members = self.members.lock();
        let count = members.len();
        members.retain(|member| !Arc::ptr_eq(&member.push, push));
        if let [last] = &mut members[..]
            && count > 1
        {
            self.tell(last, false);
            last.is_alone = true;
        }
        self.next();
    }

    fn next(&self) -> u64 {
        self.news.send_modify(|news| *news += 1);
        *self.news.borrow()
    }

    fn tell(&self, member: &mut Member, others: bool) {
        member.told = self.next();
        // A connection that has ended is noticed elsewhere.
        let _ = member.push.push(pack(&Pushed::Company(message::Company { number: member.told, others })));
    }

    /// Takes in that a client knows of the others, and that the home has seen all that the client
    /// had done before. It counts only if `number` is that of the last message that the home has
    /// sent the client about its company.
    pub(crate) fn knows(&self, push: &Arc<dyn Push>, number: u64) {
        let mut members = self.members.lock();
        let told = members.iter_mut().find(|member| Arc::ptr_eq(&member.push, push) && member.told == number);
        if let Some(member) = told {
            member.is_alone = false;
        }
        self.next();
    }

    /// Notes that a client was told of a change by others.
    pub(crate) fn pushed(&self, push: &Arc<dyn Push>, seq: u64) {
        let mut members = self.members.lock();
        members.iter_mut().filter(|member| Arc::ptr_eq(&member.push, push)).for_each(|member| member.pushed = seq);
    }

    /// Takes in that a client has heard of others' changes up to `seq`.
    pub(crate) fn heard(&self, push: &Arc<dyn Push>, seq: u64) {
        let mut members = self.members.lock();
        for member in members.iter_mut().filter(|member| Arc::ptr_eq(&member.push, push)) {
            (member.hears, member.heard) = (true, member.heard.max(seq));
        }
        self.next();
    }

    /// Waits until the other clients near the home have heard what they were told, but not for
    /// long. A client that takes longer is not waited for again before it has said something.
    pub(crate) async fn all_hear(&self, author: u32, clock: &dyn Clock) {
        let is_behind = |member: &&mut Member| member.author != author && member.hears && member.heard < member.pushed;
        let mut news = self.news.subscribe();
        let waiting = async {
            while self.members.lock().iter_mut().filter(is_behind).count() > 0 {
                if news.changed().await.is_err() {
                    return;
                }
            }
        };
        if timeout(clock, HEAR_TIME_MAX, waiting).await.is_err() {
            self.members.lock().iter_mut().filter(is_behind).for_each(|member| member.hears = false);
        }
    }

    /// Waits until no other client believes that it is alone, but not for long.
    pub(crate) async fn gathered(&self, push: &Arc<dyn Push>, clock: &dyn Clock) {
        let mut news = self.news.subscribe();
        let waiting = async {
            while self.members.lock().iter().any(|member| member.is_alone && !Arc::ptr_eq(&member.push, push)) {
                if news.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(clock, JOIN_TIME_MAX, waiting).await;
    }
}
