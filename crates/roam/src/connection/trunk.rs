//! A trunk: the connection, and the knowledge about the link, that the clients of several volumes
//! share.
//!
//! Each client has a line of it, which looks like a connection of its own. If one client gives up
//! its line, the others do not notice. The connection ends with its last line.

use crate::connection::schedule::Schedule;
use bytes::Bytes;
use host::{Either, Host, Tasks, first};
use parking_lot::Mutex;
use roam_proto::channel::{Channel, Class, DialError, Dialer, Lost, Path};
use roam_proto::line::{LINE_COUNT_MAX, put_on, take_off};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use types::BoxFuture;

/// Longest wait for a connection to be made.
pub(crate) const DIAL_TIME_MAX: Duration = Duration::from_secs(10);
/// Messages that may wait for a line's client. If the client has taken none of this many, its line
/// ends, and it has to attach again.
const QUEUE_LEN_MAX: usize = 4096;

/// The connection that several volumes' clients share, and its schedule.
pub struct Trunk {
    host: Host,
    dialer: Arc<dyn Dialer>,
    pub(crate) schedule: Arc<Schedule>,
    dialing: tokio::sync::Mutex<Dialing>,
    /// Bytes that each line's client has cached. All share one bound.
    cached: Mutex<BTreeMap<u8, u64>>,
}

/// The newest connection, and the attempt that is under way with its start. A task that waits for
/// an attempt drives it; if that task gives up, the next one goes on with the attempt.
#[derive(Default)]
struct Dialing {
    current: Weak<Shared>,
    under_way: Option<(Duration, Attempt)>,
}

type Attempt = BoxFuture<Result<Arc<dyn Channel>, DialError>>;

/// One client's part of a trunk.
#[derive(Clone)]
pub struct Line {
    trunk: Arc<Trunk>,
    number: u8,
}

impl Trunk {
    /// A trunk to the home that the dialer reaches.
    pub fn new(host: &Host, dialer: Arc<dyn Dialer>) -> Arc<Trunk> {
        let schedule = Schedule::new(host);
        Arc::new(Trunk { host: host.clone(), dialer, schedule, dialing: Default::default(), cached: Mutex::default() })
    }

    /// A line for one client. `None` if the number is too great.
    pub fn line(self: &Arc<Self>, number: u8) -> Option<Line> {
        (number < LINE_COUNT_MAX).then(|| Line { trunk: self.clone(), number })
    }

    async fn dial(&self, line: u8) -> Result<Arc<dyn Channel>, DialError> {
        let mut dialing = self.dialing.lock().await;
        if let Some(channel) = dialing.current.upgrade().and_then(|shared| shared.join(line)) {
            return Ok(channel);
        }
        let now = self.host.clock.now();
        let recent = |(since, _): &(Duration, Attempt)| now.saturating_sub(*since) < DIAL_TIME_MAX;
        let under_way = dialing.under_way.take().filter(recent).unwrap_or_else(|| (now, self.dialer.dial()));
        let made = (&mut dialing.under_way.insert(under_way).1).await;
        dialing.under_way = None;
        let shared = Arc::new(Shared::new(self.host.tasks.clone(), made?));
        dialing.current = Arc::downgrade(&shared);
        shared.join(line).ok_or_else(|| DialError::Unreachable("the connection ended at once".into()))
    }

    /// Ends an attempt that no task waits for any more.
    pub(crate) fn stop_dialing(&self) {
        if let Ok(mut dialing) = self.dialing.try_lock() {
            dialing.under_way = None;
        }
    }
}

impl Line {
    /// The only line of a new trunk.
    pub fn alone(host: &Host, dialer: Arc<dyn Dialer>) -> Line {
        Line { trunk: Trunk::new(host, dialer), number: 0 }
    }

    /// What is left of a shared bound for this client, which has `cached` bytes cached.
    pub(crate) fn share_of(&self, bound: u64, cached: u64) -> u64 {
        let mut all = self.trunk.cached.lock();
        all.insert(self.number, cached);
        let others: u64 = all.iter().filter(|(number, _)| **number != self.number).map(|(_, cached)| cached).sum();
        bound.saturating_sub(others)
    }

    /// The trunk that it belongs to.
    pub fn trunk(&self) -> &Arc<Trunk> {
        &self.trunk
    }
}

impl Dialer for Line {
    fn dial(&self) -> BoxFuture<Result<Arc<dyn Channel>, DialError>> {
        let Line { trunk, number } = self.clone();
        Box::pin(async move { trunk.dial(number).await })
    }
}

/// One connection, with the lines on it.
struct Shared {
    tasks: Arc<dyn Tasks>,
    channel: Arc<dyn Channel>,
    /// Held by the task that receives messages, for all lines.
    listening: tokio::sync::Mutex<()>,
    lines: Mutex<Lines>,
    catching_up: watch::Sender<CatchingUp>,
}

/// The question whether all pushes have arrived. It is asked once for all tasks that want to know,
/// and goes on when they give up. A task that wants to know while it is under way does not ask
/// again.
#[derive(Default)]
struct CatchingUp {
    under_way: bool,
    /// How often it was answered.
    count: u64,
}

#[derive(Default)]
struct Lines {
    by_number: BTreeMap<u8, Heard>,
    /// How often the connection's address was changed.
    rebound: u64,
}

/// What arrived on a line.
struct Heard {
    queue: VecDeque<Bytes>,
    come: Arc<Notify>,
    ended: watch::Sender<bool>,
    /// The number of address changes that this line has taken part in.
    rebound: u64,
}

impl Heard {
    fn is_open(&self) -> bool {
        !*self.ended.borrow()
    }

    fn end(&self) {
        self.ended.send_replace(true);
    }
}

impl Shared {
    fn new(tasks: Arc<dyn Tasks>, channel: Arc<dyn Channel>) -> Shared {
        let (listening, catching_up) = (Default::default(), Default::default());
        Shared { tasks, channel, listening, lines: Mutex::default(), catching_up }
    }

    /// Opens a line as a channel. `None` if the line was given up on this connection before, or the
    /// connection has ended.
    fn join(self: &Arc<Self>, number: u8) -> Option<Arc<dyn Channel>> {
        let mut lines = self.lines.lock();
        let has_ended = !lines.by_number.is_empty() && !lines.by_number.values().any(Heard::is_open);
        if has_ended || lines.by_number.contains_key(&number) {
            return None;
        }
        let (come, (ended, end)) = (Arc::new(Notify::new()), watch::channel(false));
        let heard = Heard { queue: VecDeque::new(), come: come.clone(), ended, rebound: lines.rebound };
        lines.by_number.insert(number, heard);
        Some(Arc::new(OnLine { shared: self.clone(), number, come, taken: Arc::default(), end }))
    }

    fn end(&self, number: u8) {
        let mut lines = self.lines.lock();
        if let Some(heard) = lines.by_number.get_mut(&number) {
            heard.queue.clear();
            heard.end();
        }
        if !lines.by_number.values().any(Heard::is_open) {
            self.channel.close();
        }
    }

    /// Waits until all pushes have arrived in the queues of their lines.
    async fn catch_up(self: Arc<Self>) {
        let (mut before, mut is_new) = (0, false);
        self.catching_up.send_modify(|catching_up| {
            (before, is_new) = (catching_up.count, !catching_up.under_way);
            catching_up.under_way = true;
        });
        if is_new {
            let (answer, shared) = (self.channel.caught_up(), Arc::downgrade(&self));
            self.tasks.spawn(Box::pin(async move {
                let answered = answer.await;
                let Some(shared) = shared.upgrade() else { return };
                shared.catching_up.send_modify(|catching_up| {
                    catching_up.count += u64::from(answered.is_ok());
                    catching_up.under_way = false;
                });
                if answered.is_err() {
                    shared.end_all();
                }
            }));
        }
        let mut catching_up = self.catching_up.subscribe();
        // An error means that the connection, and this wait, have ended.
        let _ = catching_up.wait_for(|catching_up| catching_up.count > before).await;
    }

    fn end_all(&self) {
        self.lines.lock().by_number.values().for_each(Heard::end);
    }

    /// Receives one message, and puts it into the queue of its line.
    async fn listen(&self) {
        let _only_one = self.listening.lock().await;
        let heard = self.channel.pushed().await;
        let Ok(message) = heard else { return self.end_all() };
        let (number, message) = take_off(message);
        let mut lines = self.lines.lock();
        if let Some(heard) = lines.by_number.get_mut(&number).filter(|heard| heard.is_open()) {
            heard.queue.push_back(message);
            heard.come.notify_one();
            if heard.queue.len() > QUEUE_LEN_MAX {
                drop(lines);
                self.end(number);
            }
        }
    }
}

/// A line of a connection.
struct OnLine {
    shared: Arc<Shared>,
    number: u8,
    come: Arc<Notify>,
    /// Wakes when a message was taken from the queue.
    taken: Arc<Notify>,
    end: watch::Receiver<bool>,
}

impl Drop for OnLine {
    fn drop(&mut self) {
        self.shared.end(self.number);
    }
}

async fn ended(mut end: watch::Receiver<bool>) {
    // If the sender is gone, the line has ended too.
    let _ = end.wait_for(|ended| *ended).await;
}

impl Channel for OnLine {
    fn ask(&self, class: Class, request: Bytes) -> BoxFuture<Result<Bytes, Lost>> {
        let end = self.end.clone();
        if *end.borrow() {
            return Box::pin(std::future::ready(Err(Lost)));
        }
        let answer = self.shared.channel.ask(class, put_on(self.number, request));
        Box::pin(async move {
            match first(answer, ended(end)).await {
                Either::Left(answer) => answer,
                Either::Right(()) => Err(Lost),
            }
        })
    }

    fn pushed(&self) -> BoxFuture<Result<Bytes, Lost>> {
        let (shared, number, end) = (self.shared.clone(), self.number, self.end.clone());
        let (come, taken) = (self.come.clone(), self.taken.clone());
        Box::pin(async move {
            loop {
                let next = shared.lines.lock().by_number.get_mut(&number).and_then(|heard| heard.queue.pop_front());
                if let Some(message) = next {
                    taken.notify_one();
                    return Ok(message);
                }
                if *end.borrow() {
                    return Err(Lost);
                }
                first(shared.listen(), first(come.notified(), ended(end.clone()))).await;
            }
        })
    }

    fn caught_up(&self) -> BoxFuture<Result<(), Lost>> {
        let (shared, number, taken, end) = (self.shared.clone(), self.number, self.taken.clone(), self.end.clone());
        Box::pin(async move {
            first(shared.clone().catch_up(), ended(end.clone())).await;
            loop {
                let waits = shared.lines.lock().by_number.get(&number).is_some_and(|heard| !heard.queue.is_empty());
                match waits {
                    _ if *end.borrow() => return Err(Lost),
                    true => drop(first(taken.notified(), ended(end.clone())).await),
                    false => return Ok(()),
                }
            }
        })
    }

    /// Changes the address once for all lines that ask for it at the same time.
    fn rebind(&self) {
        let mut lines = self.shared.lines.lock();
        let rebound = lines.rebound;
        let Some(heard) = lines.by_number.get_mut(&self.number) else { return };
        if heard.rebound == rebound {
            heard.rebound += 1;
            lines.rebound += 1;
            self.shared.channel.rebind();
        } else {
            heard.rebound = rebound;
        }
    }

    fn path(&self) -> Path {
        self.shared.channel.path()
    }

    fn has_ended(&self) -> bool {
        *self.end.borrow() || self.shared.channel.has_ended()
    }

    fn close(&self) {
        self.shared.end(self.number);
    }
}
