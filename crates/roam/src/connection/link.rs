//! The connection to the home: opens, keeps, judges and reopens it (docs/roaming.md#the-link).

use crate::client::{Client, Inner};
use crate::connection::state::{LinkState, Signs};
use crate::connection::trunk::DIAL_TIME_MAX;
use crate::live::Live;
use crate::replica::{Membership, Record};
use crate::settings::{Consistency, Validation, Writes};
use host::{Either, first, timeout};
use roam_proto::channel::{Channel, Class, DialError, Dialer};
use roam_proto::delegation::Watch;
use roam_proto::message::{Company, Pushed, Refusal, Reply, Request, unpack};
use roam_proto::volume_stamp::Since;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::FsError;

/// Pause after the first failed attempt to connect. It doubles with each further failure.
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// Longest pause between attempts.
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// How often the client makes fetched bytes durable and judges the link.
const SETTLE_PERIOD: Duration = Duration::from_secs(2);

/// Right after a change, the client polls the home this many times as often as when nothing
/// changes.
const POLL_DIVISOR: u32 = 16;

/// With fewer unused ids than this, the client asks the home for more.
const ID_COUNT_MIN: u64 = 100_000;

/// Why a client cannot be attached, and what the user can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The connection failed, or the home did not answer. The client tries again.
    #[error("the home cannot be reached")]
    Unreachable,
    /// The home does not know this client.
    #[error(
        "the home does not serve this client: it was turned away there (ask for a new invitation, and mount by it with the same cache), or \
         the home was made anew (mount by an invitation of it with a new cache, and copy what waits here)"
    )]
    Stranger,
    /// The volume does not exist, or this client may not use it.
    #[error("the home does not export this volume to this client")]
    Volume,
    /// The home's file system failed.
    #[error("the home says: {0}")]
    Failed(FsError),
}

impl Client {
    /// Starts the background tasks.
    pub(crate) fn start(&self) {
        let tasks = self.0.host.tasks.clone();
        tasks.spawn(Box::pin(keep_connected(Arc::downgrade(&self.0))));
        tasks.spawn(Box::pin(crate::reintegration::replay::replay(Arc::downgrade(&self.0))));
        tasks.spawn(Box::pin(crate::reintegration::harvest::make_durable(
            Arc::downgrade(&self.0),
            self.0.seen_news.clone(),
        )));
        tasks.spawn(Box::pin(crate::cache::hoard::keep(Arc::downgrade(&self.0))));
        tasks.spawn(Box::pin(crate::connection::predisconnect::keep(Arc::downgrade(&self.0))));
        tasks.spawn(Box::pin(poll(Arc::downgrade(&self.0))));
        tasks.spawn(Box::pin(settle(Arc::downgrade(&self.0))));
        tasks.spawn(Box::pin(crate::consistency::delegation::renew(Arc::downgrade(&self.0))));
    }

    /// True if the home has told of every change over this connection since the client attached.
    fn is_told_over(&self, channel: &Arc<dyn Channel>) -> bool {
        self.0.live.lock().link.is_told_over(channel)
    }

    /// Resumes a connection that may have counted as lost. If the home has told of every change
    /// over it, the client asks only whether all pushes have arrived. That takes a few bytes, for
    /// all volumes together. Otherwise it attaches again.
    async fn come_back(&self, channel: &Arc<dyn Channel>) -> Result<(), AttachError> {
        if !self.is_told_over(channel) {
            return self.attach(channel).await;
        }
        self.catch_up(channel).await.map_err(|_| AttachError::Unreachable)?;
        {
            let mut live = self.0.live.lock();
            // The settings changed meanwhile, so the client has to attach again.
            if !live.link.is_told() {
                return Err(AttachError::Unreachable);
            }
            live.link.resume(channel, self.0.host.clock.now());
        }
        self.0.judge();
        self.0.wake();
        // What the home saw before is not sent again.
        self.0.seen_news.notify_one();
        Ok(())
    }

    /// Takes in pushes until the home says that there are no more.
    async fn catch_up(&self, channel: &Arc<dyn Channel>) -> Result<(), FsError> {
        self.0.consistency_calls.fetch_add(1, Relaxed);
        let hearing = async {
            loop {
                match channel.pushed().await {
                    Ok(message) if self.hear(channel, &message) => {}
                    _ => return,
                }
            }
        };
        match first(self.0.patiently(channel, channel.caught_up()), hearing).await {
            Either::Left(caught_up) => caught_up,
            Either::Right(()) => Err(FsError::TimedOut),
        }
    }

    /// While operations are held back because the link is slow and a program fetches: how much
    /// longer this lasts, at most.
    pub fn held_back(&self) -> Option<Duration> {
        let pinned = self.0.settings.lock().pinned;
        let now = self.0.host.clock.now();
        if pinned.is_some() {
            return None;
        }
        self.0.live.lock().link.held_back(now)
    }

    /// Attaches over a connection, and takes in what changed meanwhile.
    async fn attach(&self, channel: &Arc<dyn Channel>) -> Result<(), AttachError> {
        let inner = &self.0;
        let kept = loop {
            let (volume, consistency, validation) = {
                let settings = inner.settings.lock();
                (settings.volume.clone(), settings.consistency, settings.validation)
            };
            // Everything that the home is about to hear of is durable here first.
            if inner.log.settled().await.is_err() {
                return Err(AttachError::Unreachable);
            }
            let (incarnation, acknowledged, stamp, newest, pinned) = {
                let live = inner.live.lock();
                let known = live.replica.membership().map(|membership| membership.incarnation);
                let (newest, pinned) = (live.replica.newest(), live.replica.log().pinned());
                (known, live.replica.acknowledged(), live.replica.stamp(), newest, pinned)
            };
            let incarnation = incarnation.unwrap_or_else(|| inner.host.random.next_u64() | 1);
            let unasked = match consistency {
                Consistency::Callbacks => Watch::Changes,
                _ => Watch::Nothing,
            };
            let (watch, locks) = {
                let mut live = inner.live.lock();
                live.link.begin_to_attach();
                let locks = inner.locks_had();
                (live.watch(locks.clone()).unwrap_or(unasked), locks)
            };
            let is_told = watch == Watch::Changes;
            let delegates = matches!(watch, Watch::Delegations { .. });
            let asked = inner.host.clock.now();
            let attempt = inner.attempts.fetch_add(1, Relaxed) + 1;
            let request =
                Request::Attach { volume: volume.clone(), incarnation, acknowledged, stamp, newest, watch, attempt };
            let reply = inner.ask_over(channel, Class::Interactive, &request).await;
            let (membership, since, heard, kept, company) = match reply {
                Ok(Reply::Attached { root, user, since, heard, kept, file_len_max, company }) => {
                    (Membership { root, user, incarnation, file_len_max }, since, heard, kept, company)
                }
                Ok(Reply::Refused(Refusal::Stranger)) => return Err(AttachError::Stranger),
                Ok(Reply::Refused(Refusal::Volume)) => return Err(AttachError::Volume),
                // The home has heard of less than this client said before, or does not know an id
                // that it once gave. The client begins a new incarnation, with new ids.
                Ok(Reply::Refused(Refusal::Forgotten)) => {
                    self.begin_anew();
                    continue;
                }
                Ok(Reply::Failed(error)) => return Err(AttachError::Failed(error)),
                Ok(_) | Err(_) => return Err(AttachError::Unreachable),
            };
            if heard > pinned {
                self.begin_anew();
                continue;
            }
            let has_ids = inner.live.lock().replica.ids_left() > 0;
            let ids = match has_ids {
                true => None,
                false => match inner.ask_over(channel, Class::Interactive, &Request::Ids).await {
                    Ok(Reply::Ids(first, count)) if first.raw().checked_add(count).is_some() => Some((first, count)),
                    _ => return Err(AttachError::Unreachable),
                },
            };
            let mut live = inner.live.lock();
            let is_as_asked = {
                let settings = inner.settings.lock();
                (settings.consistency, settings.validation) == (consistency, validation)
            } && live.freshness.is_delegated() == delegates;
            // A task that changes the settings reconnects attached clients, and this one was not
            // attached yet.
            if !is_as_asked {
                continue;
            }
            if live.replica.membership() != Some(&membership) {
                live.learn(Record::Joined(membership));
            }
            // Before anything is sent: files made with ids that were given up get new ids.
            if let Some((first, count)) = ids {
                live.renew_ids(first, count);
            }
            live.freshness.freeze(consistency == Consistency::None);
            if let Some(kept) = kept {
                live.rejoined(kept, asked);
                self.relocked(&mut live, kept, &locks);
            }
            live.learn_of(since);
            if validation != Validation::Volume {
                live.break_all();
            }
            live.sending.begin_anew();
            live.link.attach(channel, is_told, company, inner.host.clock.now());
            break kept;
        };
        let root = inner.live.lock().replica.membership().map(|membership| membership.root);
        if let Some(root) = root {
            let known = inner.live.lock().replica.node(root).is_ok();
            if !known {
                self.fetch_root(root).await.map_err(|_| AttachError::Unreachable)?;
            }
        }
        if kept.is_some_and(|kept| !kept.all) {
            // Other clients wait until the home knows that this one believes nothing from before.
            let me = self.clone();
            inner.host.tasks.spawn(Box::pin(async move { drop(me.0.ask(Class::Interactive, &Request::Renew).await) }));
        }
        inner.judge();
        inner.wake();
        self.come_near();
        Ok(())
    }

    /// Once the home is near: tells it that this client hears of changes.
    fn come_near(&self) {
        let (has_come, seq) = {
            let mut live = self.0.live.lock();
            let seq = live.replica.stamp().map_or(0, |stamp| stamp.seq);
            (live.link.take_come_near(), seq)
        };
        if has_come {
            self.say_heard(seq);
        }
    }

    /// Asks for more ids before they run out.
    async fn renew_ids(&self) {
        let (left, offline) = self.look(|replica, state| (replica.ids_left(), state == LinkState::Disconnected));
        if left < ID_COUNT_MIN && !offline && left > 0 {
            // If this fails, the next round asks again.
            let _ = self.fetch_ids().await;
        }
    }

    async fn fetch_root(&self, root: types::FileId) -> Result<(), FsError> {
        match self.0.ask(Class::Interactive, &Request::Facts { files: vec![root] }).await? {
            Reply::Facts(known) => {
                let facts = known.into_iter().next().ok_or(FsError::AccessDenied)?;
                self.0.live.lock().learn(Record::Known(Box::new(facts)));
                Ok(())
            }
            _ => Err(FsError::Io),
        }
    }

    /// Begins a new incarnation, because the home and this client disagree about what they told
    /// each other. Operations keep their numbers, but these belong to a new log, so the home takes
    /// all that wait as new. Nothing that the home said before counts.
    fn begin_anew(&self) {
        let incarnation = self.0.host.random.next_u64() | 1;
        let mut live = self.0.live.lock();
        if let Some(membership) = live.replica.membership().cloned() {
            tracing::warn!("the home and this client disagree about earlier operations: all that wait are sent as new");
            live.learn(Record::Joined(Membership { incarnation, ..membership }));
        }
    }

    /// Takes in pushes until the connection is lost.
    async fn listen(&self, channel: &Arc<dyn Channel>) {
        loop {
            let mut tick = self.0.tick.subscribe();
            if !self.0.live.lock().link.is_current(channel) {
                return;
            }
            match first(channel.pushed(), tick.changed()).await {
                Either::Left(Ok(message)) => {
                    if !self.hear(channel, &message) {
                        return;
                    }
                }
                Either::Left(Err(_)) => {
                    self.0.lost(channel);
                    return;
                }
                Either::Right(_) => {}
            }
        }
    }
}

impl Client {
    /// Takes in one push. False if the connection is of no use any more: the push cannot be
    /// decoded, or it says that the client is detached.
    fn hear(&self, channel: &Arc<dyn Channel>, message: &[u8]) -> bool {
        match unpack::<Pushed>(message) {
            Ok(Pushed::Changed { files, stamp, more }) => {
                self.0.consistency_calls.fetch_add(1, Relaxed);
                let mut live = self.0.live.lock();
                let is_news = !files.is_empty();
                if is_news {
                    live.break_callbacks(files, stamp.seq);
                }
                if !more && live.link.is_attached_over(channel) {
                    live.learn(Record::Stamped(Some(stamp)));
                }
                let is_near = live.link.is_near();
                drop(live);
                if is_near && is_news {
                    self.say_heard(stamp.seq);
                }
            }
            Ok(Pushed::Recall(recalls)) => self.recall(channel, recalls),
            Ok(Pushed::Wanted { seq, offset, len }) => self.hurry(seq, offset..offset.saturating_add(len)),
            Ok(Pushed::Detached) => {
                self.0.detached(channel);
                return false;
            }
            Ok(Pushed::Company(company)) => self.take_company(company),
            Err(error) => {
                tracing::error!(%error, "the home pushed a message that cannot be decoded");
                channel.close();
                self.0.lost(channel);
                return false;
            }
        }
        true
    }
}

impl Client {
    /// Tells the home that this client, and the kernel that caches its answers, have taken in the
    /// changes by others up to this one. The clients that made them wait for that.
    fn say_heard(&self, seq: u64) {
        let forgotten = self.0.live.lock().kernel.forget_all();
        let me = self.clone();
        self.0.host.tasks.spawn(Box::pin(async move {
            if let Some(forgotten) = forgotten {
                // An error means that the mount has ended, and no kernel caches anything.
                let _ = forgotten.await;
            }
            let _ = me.0.ask(Class::Interactive, &Request::Heard { seq }).await;
        }));
    }

    /// Takes in whether other clients are attached. If they are, sends home what was closed here:
    /// they wait for it.
    fn take_company(&self, company: Company) {
        let last = {
            let mut live = self.0.live.lock();
            if !live.link.take_company(company) {
                return;
            }
            live.replica.log().last()
        };
        if !company.others {
            return;
        }
        let me = self.clone();
        self.0.host.tasks.spawn(Box::pin(async move {
            // If it cannot be sent, the others do not wait for it either.
            if me.send_through(last).await.is_ok() {
                let _ = me.0.ask(Class::Replay, &Request::Joined { number: company.number }).await;
            }
        }));
    }
}

impl Live {
    /// Takes in what others have changed, as the answer to an attach or a poll tells it.
    fn learn_of(&mut self, since: Since) {
        match since {
            Since::Current => {}
            Since::Changed { files, stamp } => {
                self.break_callbacks(files, stamp.seq);
                self.learn(Record::Stamped(Some(stamp)));
            }
            Since::Reset { stamp } => {
                self.break_all();
                self.learn(Record::Stamped(Some(stamp)));
            }
        }
    }
}

impl Client {
    /// Asks the home what others have changed. True if they changed anything.
    pub(crate) async fn poll(&self) -> Result<bool, FsError> {
        let Some(stamp) = self.look(|replica, _| replica.stamp()) else { return Ok(false) };
        let Reply::Since(since) = self.0.ask(Class::Interactive, &Request::Since { stamp }).await? else {
            return Err(FsError::Io);
        };
        let changed = since != Since::Current;
        self.0.live.lock().learn_of(since);
        Ok(changed)
    }
}

/// Polls the home for changes under `poll`: soon after a change, then less and less often.
async fn poll(inner: Weak<Inner>) {
    let mut pause = SETTLE_PERIOD;
    loop {
        let Some(client) = inner.upgrade().map(Client) else { return };
        let clock = client.0.host.clock.clone();
        let consistency = client.0.settings.lock().consistency;
        if let Consistency::Poll(longest) = consistency {
            pause = match client.poll().await {
                Ok(true) => longest / POLL_DIVISOR,
                Ok(false) => (pause * 2).min(longest),
                Err(_) => longest,
            };
        } else {
            pause = SETTLE_PERIOD;
        }
        drop(client);
        clock.sleep(pause.max(PAUSE_MIN)).await;
    }
}

impl Inner {
    /// Judges the link, and changes the state if the signs call for that.
    pub(crate) fn judge(&self) {
        let (pinned, writes) = {
            let settings = self.settings.lock();
            (settings.pinned, settings.writes)
        };
        let now = self.host.clock.now();
        let mut live = self.live.lock();
        let Some(channel) = live.link.channel() else { return };
        let round_trip = channel.path().round_trip;
        let log = live.replica.log();
        let promised = live.sending.promised().max(log.pinned());
        let urgent = matches!(writes, Writes::Through | Writes::Preemptive);
        let signs = Signs {
            round_trip,
            is_slow: self.schedule.is_slow(live.link.state() == LinkState::FetchOnly),
            fetched_before: self.schedule.demanded_before(),
            // Operations that have begun to go home are not held back.
            may_hold: !urgent && !log.is_empty() && log.last() > promised,
        };
        if live.link.judge(pinned, signs, now) {
            drop(live);
            self.wake();
        }
    }

    fn is_off(&self) -> bool {
        self.settings.lock().pinned == Some(LinkState::Disconnected)
    }
}

impl Client {
    /// Makes a new connection. `None` if that fails now.
    async fn dial(&self) -> Option<Arc<dyn Channel>> {
        match timeout(&*self.0.host.clock, DIAL_TIME_MAX, self.0.line.dial()).await {
            Ok(Ok(channel)) => {
                self.0.schedule.connected();
                Some(channel)
            }
            Ok(Err(error)) => {
                tracing::info!(%error, "no connection to the home");
                let unreachable = matches!(error, DialError::Unreachable(_));
                self.0.live.lock().link.set_turned_away((!unreachable).then(|| error.to_string()));
                None
            }
            Err(_) => None,
        }
    }

    /// Why the client could not be attached last: the home refused, or another program answered.
    /// `None` if the home was only out of reach.
    pub fn turned_away(&self) -> Option<String> {
        self.0.live.lock().link.turned_away().map(str::to_owned)
    }

    /// Waits until the user pins the link to disconnected.
    async fn turned_off(&self) {
        let mut tick = self.0.tick.subscribe();
        while !self.0.is_off() && tick.changed().await.is_ok() {}
    }

    /// Attaches over a new connection. Returns the connection too, even if attaching failed.
    async fn attach_anew(&self) -> (Result<(), AttachError>, Option<Arc<dyn Channel>>) {
        let channel = self.dial().await;
        let attached = match &channel {
            Some(channel) => self.come_back(channel).await,
            None => Err(AttachError::Unreachable),
        };
        (attached, channel)
    }

    /// Waits until a silent connection works again, and resumes it. Never returns once the
    /// connection has ended.
    async fn revive(&self, channel: &Arc<dyn Channel>) -> Result<(), AttachError> {
        while !channel.has_ended() {
            // An attach request is not sent into a silence: it would arrive late, if at all.
            let is_there = self.is_told_over(channel) || self.catch_up(channel).await.is_ok();
            if is_there {
                match self.come_back(channel).await {
                    Err(AttachError::Unreachable) => self.0.lost(channel),
                    come_back => return come_back,
                }
            }
            self.0.host.clock.sleep(PAUSE_MIN).await;
        }
        std::future::pending().await
    }

    /// Resumes a silent connection or attaches over a new one: the one that works first. The new
    /// one is dialed after a pause; if dialing fails, this returns.
    async fn revive_or_dial(
        &self,
        silent: &Arc<dyn Channel>,
        pause: Duration,
    ) -> (Result<(), AttachError>, Option<Arc<dyn Channel>>) {
        let dialing = async {
            self.0.host.clock.sleep(pause).await;
            self.dial().await
        };
        match first(self.revive(silent), dialing).await {
            Either::Left(attached) => {
                self.0.line.trunk().stop_dialing();
                (attached, Some(silent.clone()))
            }
            Either::Right(made) => {
                self.0.lost(silent);
                let attached = match &made {
                    Some(made) => self.attach(made).await,
                    None => Err(AttachError::Unreachable),
                };
                (attached, made)
            }
        }
    }
}

/// How a connection that has fallen silent is tried next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// As it is. The client may only have been in a tunnel.
    Again,
    /// From another socket. This is only the second try: each side must then prove that the other
    /// is there, which takes several full packets.
    Rebound,
    /// As it is, while a new connection is tried beside it. Resuming takes a few bytes, a new
    /// connection many.
    WithAnother,
}

/// Keeps a client connected for as long as it exists.
async fn keep_connected(inner: Weak<Inner>) {
    let mut pause = PAUSE_MIN;
    let mut silent: Option<(Arc<dyn Channel>, Next)> = None;
    loop {
        let Some(client) = inner.upgrade().map(Client) else { return };
        let clock = client.0.host.clock.clone();
        let mut tick = client.0.tick.subscribe();
        if client.0.is_off() {
            silent = None;
            drop(client);
            if tick.changed().await.is_err() {
                return;
            }
            continue;
        }
        let trying = async {
            match &silent {
                None => client.attach_anew().await,
                Some((known, Next::WithAnother)) => client.revive_or_dial(known, pause).await,
                Some((known, next)) => {
                    if *next == Next::Rebound {
                        known.rebind();
                    }
                    (client.come_back(known).await, Some(known.clone()))
                }
            }
        };
        let tried = first(trying, client.turned_off()).await;
        if client.0.is_off() {
            let made = client.0.live.lock().link.channel().cloned();
            made.iter().for_each(|made| client.0.lost(made));
            client.0.line.trunk().stop_dialing();
        }
        let (attached, channel) = match tried {
            Either::Left(tried) if !client.0.is_off() => tried,
            _ => continue,
        };
        match (attached, channel) {
            (Ok(()), Some(channel)) => {
                pause = PAUSE_MIN;
                if let Some((known, _)) = silent.take()
                    && !Arc::ptr_eq(&known, &channel)
                {
                    known.close();
                }
                tracing::info!("attached");
                client.0.live.lock().link.set_turned_away(None);
                client.listen(&channel).await;
                tracing::info!("detached");
                if !client.0.is_off() {
                    client.0.schedule.lost();
                }
                silent = Some((channel, Next::Again));
            }
            (attached, channel) => {
                if let Err(error @ (AttachError::Stranger | AttachError::Volume | AttachError::Failed(_))) = attached {
                    tracing::error!(%error, "cannot attach to the home");
                    client.0.live.lock().link.set_turned_away(Some(error.to_string()));
                }
                let is_alive =
                    |known: &Arc<dyn Channel>| attached == Err(AttachError::Unreachable) && !known.has_ended();
                let next = silent.take().filter(|(known, _)| is_alive(known));
                if let Some(channel) = &channel {
                    client.0.lost(channel);
                    if !next.as_ref().is_some_and(|(known, _)| Arc::ptr_eq(known, channel)) {
                        channel.close();
                    }
                }
                silent = match next {
                    Some((known, Next::Again)) => Some((known, Next::Rebound)),
                    Some((known, Next::Rebound)) => Some((known, Next::WithAnother)),
                    Some((known, Next::WithAnother)) => {
                        pause = (pause * 2).min(PAUSE_MAX);
                        Some((known, Next::WithAnother))
                    }
                    None => {
                        drop((client, channel));
                        clock.sleep(pause).await;
                        pause = (pause * 2).min(PAUSE_MAX);
                        None
                    }
                };
            }
        }
    }
}

/// Regular background work: makes fetched bytes durable, removes unused files, and judges the link.
async fn settle(inner: Weak<Inner>) {
    loop {
        let Some(client) = inner.upgrade().map(Client) else { return };
        let clock = client.0.host.clock.clone();
        client.settle_bytes().await;
        client.remove_unused().await;
        if let Err(error) = client.file_contents().await {
            tracing::warn!(%error, "contents of small files stay in the log");
        }
        client.renew_ids().await;
        client.0.judge();
        client.come_near();
        drop(client);
        clock.sleep(SETTLE_PERIOD).await;
    }
}
