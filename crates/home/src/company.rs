//! Which clients are attached to a volume, and what each of them knows of the others.
//!
//! A client that is alone need not wait for the home when it closes a file: no other client could
//! open it. Before another client is answered that it is attached, the home
//! [tells](Pushed::Company) the one that was alone, and waits until that says that the home has
//! [seen](Request::Joined) all that it had done by then, for [`JOIN_TIME_MAX`] at most. From then
//! on both wait for the home when they close.
//!
//! When a client closes, the others near the home are told of it and say that they have taken that
//! in ([`Request::Heard`]) before the client is answered: what they open from then on is what was
//! closed.
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

/// A client that attaches waits no longer than this for what the one that was alone has done.
const JOIN_TIME_MAX: Duration = Duration::from_secs(1);

/// Longest wait of a close until the other clients near the home know of it.
const HEAR_TIME_MAX: Duration = Duration::from_millis(500);

/// A client that is attached.
struct Member {
    author: u32,
    push: Arc<dyn Push>,
    /// The number of the last message that told it whether it is alone.
    told: u64,
    /// It may close without the home.
    is_alone: bool,
    /// It says what it has heard of others' changes, and is near.
    hears: bool,
    /// The last change of others that it was told of.
    pushed: u64,
    /// The last that it has said to have heard of.
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
    /// A client attaches. If another was alone, that is told.
    pub(crate) fn join(&self, author: u32, push: Arc<dyn Push>) -> message::Company {
        let mut members = self.members.lock();
        // The same client may come again before its old connection has ended.
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

    /// A client's connection, or what it had attached to, has ended. One that stays behind alone is
    /// told.
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

    /// A client knows of the others, and the home has seen all that it had done before, if it was
    /// told last with this number.
    pub(crate) fn knows(&self, push: &Arc<dyn Push>, number: u64) {
        let mut members = self.members.lock();
        let told = members.iter_mut().find(|member| Arc::ptr_eq(&member.push, push) && member.told == number);
        if let Some(member) = told {
            member.is_alone = false;
        }
        self.next();
    }

    /// A client was told of a change by others.
    pub(crate) fn pushed(&self, push: &Arc<dyn Push>, seq: u64) {
        let mut members = self.members.lock();
        members.iter_mut().filter(|member| Arc::ptr_eq(&member.push, push)).for_each(|member| member.pushed = seq);
    }

    /// A client has taken in what it was told of others' changes.
    pub(crate) fn heard(&self, push: &Arc<dyn Push>, seq: u64) {
        let mut members = self.members.lock();
        for member in members.iter_mut().filter(|member| Arc::ptr_eq(&member.push, push)) {
            (member.hears, member.heard) = (true, member.heard.max(seq));
        }
        self.next();
    }

    /// Waits until the other clients near the home have taken in what they were told, but not for
    /// long. One that takes longer is not waited for again before it has said something.
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
