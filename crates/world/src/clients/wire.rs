//! The way between a client and the managers: messages take a random time.
//!
//! A client's requests to one manager arrive in order. Answers may overtake each other. Recalls may
//! overtake answers and each other, and may come twice. So may answers to questions, much later
//! than the first time. When a client crashes, its session ends: no
//! message of it arrives any more, and what waits at a manager for it is dropped.

use client::Client;
use host::{Either, Host, SplitMix64, first};
use manager::api::{
    GiveBack, Glimpse, GlimpseAnswer, GlimpseQuestion, IndexRange, Located, Manager, ManagerError, ManagerStatus,
    Opened, SegmentDeltas, TokenHolder, TokenRecall,
};
use manager::server::ManagerServer;
use manager::token::Mode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use types::{Answer, ClientId, FileId};

/// An answer to a question that comes again is later than the first one by less than this many
/// times the time of a message.
const LATE_MAX: u64 = 30;

/// What all sessions share.
pub(super) struct Network {
    /// A host that never crashes.
    pub(super) host: Host,
    pub(super) random: SplitMix64,
    /// Most messages take less than this.
    pub(super) delay_max: Duration,
    pub(super) recall_count: AtomicU64,
    pub(super) question_count: AtomicU64,
    pub(super) repeated_count: AtomicU64,
}

/// A client's connection, from its start to its end.
pub(super) struct Session {
    network: Arc<Network>,
    over: watch::Sender<bool>,
    /// The client does nothing before this time, in nanoseconds.
    stalled_until: AtomicU64,
}

impl Session {
    pub(super) fn new(network: Arc<Network>) -> Arc<Session> {
        Arc::new(Session { network, over: watch::Sender::new(false), stalled_until: AtomicU64::new(0) })
    }

    /// Ends the session.
    pub(super) fn end(&self) {
        self.over.send_replace(true);
    }

    pub(super) fn network(&self) -> &Network {
        &self.network
    }

    pub(super) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Ends when the session is over.
    pub(super) async fn ended(&self) {
        // The sender lives as long as the session.
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    /// The client does nothing for some time. A longer stall that has begun goes on.
    pub(super) fn stall(&self, time: Duration) {
        self.stalled_until.fetch_max((self.network.host.clock.now() + time).as_nanos() as u64, SeqCst);
    }

    /// True if the client does nothing now.
    pub(super) fn is_stalled(&self) -> bool {
        self.network.host.clock.now().as_nanos() < u128::from(self.stalled_until.load(SeqCst))
    }

    /// A random time at which a message sent now arrives.
    fn arrival(&self) -> Duration {
        let Network { host, random, delay_max, .. } = &*self.network;
        let mut delay = random.below(delay_max.as_nanos() as u64);
        if random.chance(1, 12) {
            delay *= 10;
        }
        host.clock.now() + Duration::from_nanos(delay)
    }

    /// Waits until a message that arrives at this time has arrived. A stalled client neither sends
    /// nor hears anything.
    async fn wait_until(&self, at: Duration) {
        let clock = &self.network.host.clock;
        loop {
            let at = at.max(Duration::from_nanos(self.stalled_until.load(SeqCst)));
            let now = clock.now();
            if now >= at {
                return;
            }
            clock.sleep(at - now).await;
        }
    }

    /// Takes as long as a message.
    pub(super) async fn delay(&self) {
        let at = self.arrival();
        self.wait_until(at).await;
    }
}

type Message = (Duration, Box<dyn FnOnce() + Send>);

/// A manager, as a client far away sees it.
pub(super) struct Wire {
    manager: Arc<ManagerServer>,
    session: Arc<Session>,
    requests: mpsc::UnboundedSender<Message>,
}

impl Wire {
    pub(super) fn new(manager: Arc<ManagerServer>, session: Arc<Session>) -> Arc<Wire> {
        let (requests, mut arriving) = mpsc::unbounded_channel::<Message>();
        let to = session.clone();
        session.network.host.tasks.spawn(Box::pin(async move {
            while let Either::Left(Some((at, message))) = first(arriving.recv(), to.ended()).await {
                to.wait_until(at).await;
                if !to.is_over() {
                    message();
                }
            }
        }));
        Arc::new(Wire { manager, session, requests })
    }

    fn send(&self, message: impl FnOnce() + Send + 'static) {
        // Nobody receives once the session is over.
        let _ = self.requests.send((self.session.arrival(), Box::new(message)));
    }

    fn ask<T: Send + 'static>(
        &self,
        request: impl FnOnce(&ManagerServer) -> Answer<T, ManagerError> + Send + 'static,
    ) -> Answer<T, ManagerError> {
        let (tell, told) = oneshot::channel();
        let (manager, session) = (self.manager.clone(), self.session.clone());
        self.send(move || {
            let answer = request(&manager).into_future();
            let tasks = session.network.host.tasks.clone();
            tasks.start(Box::pin(async move {
                if let Either::Left(answer) = first(answer, session.ended()).await {
                    session.delay().await;
                    if !session.is_over() {
                        // The caller may have stopped waiting.
                        let _ = tell.send(answer);
                    }
                }
            }));
        });
        Answer::later(async move { told.await.unwrap_or(Err(ManagerError::Log)) })
    }
}

impl Manager for Wire {
    fn open(&self, client: ClientId, file: FileId, mode: Mode) -> Answer<Opened, ManagerError> {
        self.ask(move |manager| manager.open(client, file, mode))
    }

    fn open_many(
        &self,
        client: ClientId,
        files: &[FileId],
        mode: Mode,
    ) -> Answer<Vec<Result<Opened, ManagerError>>, ManagerError> {
        let files = files.to_vec();
        self.ask(move |manager| manager.open_many(client, &files, mode))
    }

    fn glimpse(&self, client: ClientId, file: FileId) -> Answer<Glimpse, ManagerError> {
        self.ask(move |manager| manager.glimpse(client, file))
    }

    fn glimpsed(&self, client: ClientId, answer: GlimpseAnswer) {
        let (manager, session) = (self.manager.clone(), self.session.clone());
        let network = &session.network;
        let late = network.random.below(LATE_MAX * network.delay_max.as_nanos() as u64);
        let is_repeated = network.random.chance(1, 4);
        network.repeated_count.fetch_add(is_repeated.into(), SeqCst);
        self.send(move || {
            manager.glimpsed(client, answer.clone());
            if is_repeated {
                let (host, to) = (session.network.host.clone(), session.clone());
                host.tasks.clone().spawn(Box::pin(async move {
                    host.clock.sleep(Duration::from_nanos(late)).await;
                    if !to.is_over() {
                        manager.glimpsed(client, answer);
                    }
                }));
            }
        });
    }

    fn locate(&self, client: ClientId, file: FileId, first: u64) -> Answer<Located, ManagerError> {
        self.ask(move |manager| manager.locate(client, file, first))
    }

    fn release(&self, client: ClientId, file: FileId, number: u64) {
        let manager = self.manager.clone();
        self.send(move || manager.release(client, file, number));
    }

    fn give_back(&self, client: ClientId, back: GiveBack) {
        let manager = self.manager.clone();
        self.send(move || manager.give_back(client, back));
    }

    fn closed(&self, client: ClientId, file: FileId) -> Answer<bool, ManagerError> {
        self.ask(move |manager| manager.closed(client, file))
    }

    fn allocate(&self, client: ClientId, volume: u16) -> Answer<IndexRange, ManagerError> {
        self.ask(move |manager| manager.allocate(client, volume))
    }

    fn apply(&self, segments: Vec<SegmentDeltas>) -> Answer<(), ManagerError> {
        self.ask(move |manager| manager.apply(segments))
    }

    fn orphans(&self) -> Answer<Vec<FileId>, ManagerError> {
        self.ask(|manager| manager.orphans())
    }

    fn status(&self) -> ManagerStatus {
        self.manager.status()
    }
}

/// A client, as a manager far away sees it.
pub(super) struct Distant {
    pub(super) client: Client,
    pub(super) session: Arc<Session>,
}

impl Distant {
    /// Tells the client something, once or more often.
    fn tell(&self, what: impl Fn(&Client) + Clone + Send + 'static) {
        let network = &self.session.network;
        let mut copies = 1;
        while network.random.chance(1, 5) {
            copies += 1;
            network.repeated_count.fetch_add(1, SeqCst);
        }
        for _ in 0..copies {
            let (client, session, what) = (self.client.clone(), self.session.clone(), what.clone());
            network.host.tasks.spawn(Box::pin(async move {
                session.delay().await;
                if !session.is_over() {
                    what(&client);
                }
            }));
        }
    }
}

impl TokenHolder for Distant {
    fn recall(&self, recalls: Vec<TokenRecall>) {
        for recall in recalls {
            self.session.network.recall_count.fetch_add(1, SeqCst);
            self.tell(move |client| client.recall(vec![recall]));
        }
    }

    fn glimpse(&self, question: GlimpseQuestion) {
        self.session.network.question_count.fetch_add(1, SeqCst);
        self.tell(move |client| client.glimpse(question));
    }
}
