//! One client's requests.

use crate::Inner;
use crate::claims::More;
use crate::exported::Exported;
use crate::live::{Attached, TOLD_COUNT_MAX};
use crate::pace::Pace;
use crate::state::{GIVEN_COUNT_MAX, HomeRecord, ID_COUNT};
use crate::volume::{INDEX_END, OTHERS, Reach, Volume};
use crate::whose::{Whose, cred};
use bytes::Bytes;
use host::timeout;
use parking_lot::Mutex;
use roam_proto::channel::{Lost, MESSAGE_LEN_MAX, PeerKey, Push, Session};
use roam_proto::codec::Wire;
use roam_proto::delegation::{Hold, Watch};
use roam_proto::line;
use roam_proto::lock::Lock;
use roam_proto::message::{
    Company, DATA_LEN_MAX, NamedFacts, Outcome, Refusal, Reply, Request, Sent, User, pack, unpack,
};
use roam_proto::operation::Operation;
use roam_proto::piece::{PIECE_COUNT_MAX, PIECE_LEN_MAX, Piece, hash};
use roam_proto::volume_stamp::{Since, Stamp};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::oneshot;
use types::{BoxFuture, FileId, FsError};
use vfs::fs::{FILE_SIZE_MAX, OpenFlags};

/// About how many bytes of a listing one answer holds.
const LISTING_LEN: usize = 256 << 10;
/// Most files in one request.
const FILE_COUNT_MAX: usize = 4096;
/// How often a client that is likely to make a name lets others go first, before it has to claim
/// the directory again.
const MAKE_COUNT_MAX: u32 = 2;
/// Longest time in which the home finds out whether a client may lock a file. Then the client asks
/// again.
const CHECK_TIME_MAX: Duration = Duration::from_secs(4);
/// Most operations in one request.
const OPERATION_COUNT_MAX: usize = 4096;

/// Returns what changed since a stamp, of what a user may see. If it is more than a message can
/// tell, everything may have changed.
fn changed_since(volume: &Volume, stamp: Stamp, user: &User) -> Since {
    if !volume.is_given(stamp.seq) {
        // The stamp is of a run that this home does not know: it has been restored from a backup.
        return Since::Reset { stamp: volume.journal().stamp() };
    }
    match volume.journal().since(stamp, |file| volume.reach(user, file) != Reach::No) {
        Since::Changed { files, stamp } if files.len() > TOLD_COUNT_MAX => Since::Reset { stamp },
        since => since,
    }
}

/// One connection of a client. The client may use several volumes on it, each on a line of its own.
pub(crate) struct Connection {
    home: Arc<Inner>,
    peer: PeerKey,
    number: u64,
    push: Arc<dyn Push>,
    lines: Mutex<BTreeMap<u8, Arc<KnownClient>>>,
    pace: Mutex<Pace>,
}

/// Pushes messages on a line.
struct LinePush {
    line: u8,
    push: Arc<dyn Push>,
}

impl Push for LinePush {
    fn push(&self, message: Bytes) -> Result<(), Lost> {
        self.push.push(line::put_on(self.line, message))
    }
}

/// A client on one line of a connection.
struct KnownClient {
    home: Arc<Inner>,
    key: [u8; 32],
    /// The connection's number. Later connections have greater ones.
    connection: u64,
    push: Arc<dyn Push>,
    /// The last attempt to attach.
    attempts: AtomicU64,
    /// What it is attached to.
    to: Mutex<Option<Place>>,
}

/// What a client is attached to, and how.
#[derive(Clone)]
struct Place {
    whose: Whose,
    volume: Arc<Exported>,
    /// It works under delegations.
    delegated: bool,
    /// How often the client's rights had been decided when it attached.
    standing: u64,
}

/// Why a request failed.
enum Stop {
    Failed(FsError),
    Refused(Refusal),
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Stop {
        Stop::Failed(error)
    }
}

type Answered = Result<Reply, Stop>;

impl Connection {
    pub(crate) fn new(home: Arc<Inner>, peer: PeerKey, push: Arc<dyn Push>) -> Connection {
        let number = home.connection_count.fetch_add(1, Relaxed);
        Connection { home, peer, number, push, lines: Mutex::default(), pace: Mutex::default() }
    }

    fn on(&self, line: u8) -> Arc<KnownClient> {
        let begin = || {
            let push = Arc::new(LinePush { line, push: self.push.clone() });
            let (home, key, connection) = (self.home.clone(), self.peer.0, self.number);
            Arc::new(KnownClient { home, key, connection, push, attempts: AtomicU64::new(0), to: Mutex::new(None) })
        };
        self.lines.lock().entry(line).or_insert_with(begin).clone()
    }
}

impl Session for Connection {
    fn answer(&self, request: Bytes) -> BoxFuture<Option<Bytes>> {
        let (line, request) = line::take_off(request);
        let me = self.on(line);
        let clock = self.home.host.clock.clone();
        let wait = self.pace.lock().wait(clock.now());
        Box::pin(async move {
            if !wait.is_zero() {
                clock.sleep(wait).await;
            }
            let request = unpack::<Request>(&request).ok()?;
            let reply = match me.answer(request).await {
                Ok(reply) => reply,
                Err(Stop::Failed(error)) => Reply::Failed(error),
                Err(Stop::Refused(refusal)) => Reply::Refused(refusal),
            };
            Some(pack(&reply))
        })
    }

    fn ended(&self) {
        let lines = std::mem::take(&mut *self.lines.lock());
        lines.values().for_each(|client| client.detach());
        self.home.live.lock().newest.retain(|(key, _), number| (*key, *number) != (self.peer.0, self.number));
    }
}

impl KnownClient {
    fn detach(&self) {
        let attached = self.to.lock().take();
        if let Some(place) = attached {
            let mut live = self.home.live.lock();
            if let Some(attached) = live.attached.get_mut(&place.volume.name) {
                attached.retain(|attached| !Arc::ptr_eq(&attached.push, &self.push));
            }
            place.volume.company.leave(&self.push);
        }
    }

    async fn answer(&self, request: Request) -> Answered {
        match request {
            Request::Enroll { secret } => match self.home.enroll(self.key, &secret).await {
                Some(volumes) => return Ok(Reply::Enrolled { volumes }),
                None => return Err(Stop::Refused(Refusal::Secret)),
            },
            Request::Attach { volume, incarnation, acknowledged, stamp, newest, watch, attempt } => {
                if self.attempts.fetch_max(attempt, Relaxed) >= attempt {
                    return Err(Stop::Refused(Refusal::Detached));
                }
                self.detach();
                return self.attach(&volume, (incarnation, acknowledged, newest), stamp, watch).await;
            }
            _ => {}
        }
        let place = self.to.lock().clone().ok_or(Stop::Refused(Refusal::Detached))?;
        if self.home.live.lock().standing(&self.key) != place.standing {
            return Err(Stop::Refused(Refusal::Detached));
        }
        if place.delegated && !place.volume.claims.heard_of(place.whose.author) {
            return Err(Stop::Refused(Refusal::Detached));
        }
        // What these requests change is durable before they are answered. What an operation did is
        // durable later, when the client asks for that.
        let changes = matches!(request, Request::Ids | Request::Resign | Request::Returned { .. });
        let reply = self.serve(&place, request).await;
        match changes {
            true => self.home.log.settled().await?,
            false => self.home.log.ids_are_durable().await?,
        }
        reply
    }

    async fn attach(
        &self,
        name: &str,
        (incarnation, acknowledged, newest): (u64, u64, FileId),
        stamp: Option<Stamp>,
        watch: Watch,
    ) -> Answered {
        let refused = |refusal| Err(Stop::Refused(refusal));
        if !self.home.live.lock().state.serves(&self.key) {
            return refused(Refusal::Stranger);
        }
        let Some(volume) = self.home.volumes.get(name).cloned() else { return refused(Refusal::Volume) };
        let uid = self.home.live.lock().state.grant(&self.key, name).map(|(_, grant)| grant.user.uid);
        let Some(uid) = uid else { return refused(Refusal::Volume) };
        // As with a login, the user's groups are the current ones, until the next attach.
        let known_now = volume.fs.user(uid).await.unwrap_or_else(|error| {
            tracing::warn!(%error, uid, "cannot look up the groups of a user: the last known groups count");
            None
        });
        let file_len_max = volume.fs.file_len_max().await.unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot find out how long files can be");
            FILE_SIZE_MAX
        });
        let company = {
            let live = self.home.live.lock();
            let Some((author, _)) = live.state.grant(&self.key, name) else { return refused(Refusal::Volume) };
            if live.is_older(&self.key, name, self.connection) {
                return refused(Refusal::Detached);
            }
            if self.is_barred(&volume, author, &watch) {
                return refused(Refusal::Busy);
            }
            volume.company.join(author, self.push.clone())
        };
        volume.company.gathered(&self.push, &*self.home.host.clock).await;
        let logs = (incarnation, acknowledged, newest);
        let attached = self.attach_to(volume.clone(), logs, stamp, watch, known_now, file_len_max, company).await;
        if attached.is_err() {
            volume.company.leave(&self.push);
        }
        attached
    }

    /// True if a client that shows delegations of this run has to wait, since other clients wait
    /// for what it had.
    fn is_barred(&self, volume: &Exported, author: u32, watch: &Watch) -> bool {
        matches!(watch, Watch::Delegations { run, .. } if *run == self.home.run) && volume.claims.is_barred(author)
    }

    /// Attaches the client, as [`attach`](Self::attach), to an existing volume.
    #[allow(clippy::too_many_arguments)]
    async fn attach_to(
        &self,
        volume: Arc<Exported>,
        (incarnation, acknowledged, newest): (u64, u64, FileId),
        stamp: Option<Stamp>,
        watch: Watch,
        known_now: Option<User>,
        file_len_max: u64,
        company: Company,
    ) -> Answered {
        let refused = |refusal| Err(Stop::Refused(refusal));
        let (root, name) = (volume.root()?, &volume.name.clone()[..]);
        let mut begun = None;
        let seen_by = volume.clone();
        let mut reply = {
            let mut live = self.home.live.lock();
            let Some((author, grant)) = live.state.grant(&self.key, name) else { return refused(Refusal::Volume) };
            // The client has attached over a later connection since. This attach would take away
            // what it was given there.
            if live.is_older(&self.key, name, self.connection) {
                return refused(Refusal::Detached);
            }
            if self.is_barred(&volume, author, &watch) {
                return refused(Refusal::Busy);
            }
            let before = grant.user.clone();
            // Another invitation may have been for another user.
            let user = known_now.filter(|user| user.uid == before.uid).unwrap_or_else(|| before.clone());
            let (known, heard) = (grant.incarnation, grant.heard);
            let key = self.key;
            let heard = if known == incarnation { heard } else { 0 };
            let knows_newest = live.volume(name).is_some_and(|volume| volume.is_given_id(newest));
            if acknowledged > heard || !knows_newest {
                return refused(Refusal::Forgotten);
            }
            if known != incarnation {
                live.record(HomeRecord::Began { key, volume: name.to_string(), incarnation });
                begun = Some((volume.clone(), author));
                volume.seen.forget(author);
            }
            if user != before {
                live.record(HomeRecord::Acts { key, volume: name.to_string(), user: user.clone() });
            }
            self.acknowledge(&mut live, name, incarnation, acknowledged);
            let Some(known) = live.volume(name) else { return refused(Refusal::Volume) };
            let newest = known.journal().stamp();
            let since = match stamp {
                Some(stamp) => changed_since(known, stamp, &user),
                None => Since::Reset { stamp: newest },
            };
            let delegated = matches!(watch, Watch::Delegations { .. });
            if watch != Watch::Nothing {
                let (user, push) = (user.clone(), self.push.clone());
                let none = BTreeSet::new;
                let (changed, claimed, later) = (none(), none(), none());
                let attached = Attached { author, user, push, delegated, changed, claimed, later, told: newest };
                live.attached.entry(name.to_string()).or_default().push(attached);
            }
            if live.state.grant(&key, name).is_some_and(|(_, grant)| grant.has_delegations != delegated) {
                live.record(HomeRecord::Delegated { key, volume: name.to_string(), does: delegated });
            }
            let kept = match watch {
                Watch::Delegations { run, changed, locks, term } => {
                    let real = |file| live.volume(name).map_or(file, |known| known.real(file));
                    let locks: Vec<Lock> =
                        locks.into_iter().map(|lock| Lock { file: real(lock.file), ..lock }).collect();
                    let runs = (run, self.home.run);
                    Some(volume.claims.join(author, self.push.clone(), runs, &changed, (&locks, term)))
                }
                Watch::Nothing | Watch::Changes => {
                    volume.claims.leave(author);
                    None
                }
            };
            live.newest.insert((key, name.to_string()), self.connection);
            let whose = Whose { key, author, user: user.clone(), incarnation };
            let standing = live.standing(&key);
            *self.to.lock() = Some(Place { whose, volume, delegated, standing });
            Reply::Attached { root, user, since, heard, kept, file_len_max, company }
        };
        if let Some((volume, author)) = begun {
            volume.drop_uploads(author).await;
        }
        if let Reply::Attached { user, since, .. } = &mut reply {
            *since = seen_by.since_seen(user, since.clone()).await;
        }
        self.home.log.settled().await.map_err(|_| FsError::Io)?;
        Ok(reply)
    }

    /// Takes in that the client knows how operations of one of its logs ended.
    fn acknowledge(&self, live: &mut crate::Live, volume: &str, incarnation: u64, through: u64) {
        let Some((_, grant)) = live.state.grant(&self.key, volume) else { return };
        if grant.incarnation == incarnation && grant.outcomes.first_key_value().is_some_and(|(seq, _)| *seq <= through)
        {
            live.record(HomeRecord::Acknowledged { key: self.key, volume: volume.to_string(), through });
        }
    }

    /// Claims what the request needs, waits until other clients have returned it, and does the
    /// request.
    async fn serve(&self, place: &Place, request: Request) -> Answered {
        let Place { whose, volume, delegated, .. } = place;
        let claim = |files: BTreeSet<FileId>, hold: Hold, urgent: bool| {
            let wants = files.into_iter().map(|file| (file, hold)).collect();
            volume.claims.claim(whose.author, wants, urgent)
        };
        match request {
            Request::Delegate { files, hold } => {
                if !delegated {
                    return Err(Stop::Refused(Refusal::Detached));
                }
                if files.len() > FILE_COUNT_MAX {
                    return Err(Stop::Failed(FsError::ArgumentTooBig));
                }
                let files = volume.with(|known| files.iter().map(|file| known.real(*file)).collect())?;
                let scene = volume.scene.read().await;
                let seen = self.seen(whose, volume, files).await;
                if hold == Hold::Write && volume.may_change_all(&whose.user, &seen).await != seen {
                    // EPERM, as link(2) returns for a file that its caller may not write.
                    return Err(Stop::Failed(FsError::NotPermitted));
                }
                drop(scene);
                let met = claim(seen.clone(), hold, false).await?;
                let seq = volume.with(|volume| volume.journal().stamp().seq)?;
                match self.look(place, Request::Facts { files: seen.into_iter().collect() }).await? {
                    Reply::Facts(known) => {
                        let given = met.keep(known.iter().map(|facts| facts.id).collect());
                        Ok(Reply::Delegated { known, given, seq })
                    }
                    other => Ok(other),
                }
            }
            Request::List { dir, ref makes, .. } if *delegated => {
                let dir = volume.real(dir)?;
                // No delegation is recalled for a user who may not list it.
                let scene = volume.scene.read().await;
                volume.check_reach(&cred(&whose.user), dir).await?;
                volume.fs.access(&cred(&whose.user), volume.source(dir).await?, vfs::perm::READ).await?;
                drop(scene);
                let mut met = claim(BTreeSet::from([dir]), Hold::Read, false).await?;
                let mut hold = Hold::Read;
                // A client that is likely to make a name need not ask twice. If there are several,
                // one is first, and the others see what it has made.
                for _ in 0..MAKE_COUNT_MAX {
                    let Some(name) = makes else { break };
                    if !self.may_make(place, dir, name).await? {
                        break;
                    }
                    match volume.claims.claim_more(&mut met, dir).await? {
                        More::Met => {
                            hold = Hold::Write;
                            break;
                        }
                        More::Others => {}
                        More::Late => break,
                    }
                }
                let mut reply = self.look(place, request).await?;
                if let Reply::Listing { hold: given, .. } = &mut reply {
                    *given = hold;
                }
                met.keep(BTreeSet::from([dir]));
                Ok(reply)
            }
            Request::Apply { operations, .. } if operations.len() > OPERATION_COUNT_MAX => {
                Err(Stop::Failed(FsError::ArgumentTooBig))
            }
            Request::Apply { ref operations, .. } => {
                // All clients already see what a promised store will change, so it needs no claim.
                let unpromised = operations.iter().filter(|sent| volume.promised_by(whose, sent.seq).is_none());
                let files = unpromised.flat_map(|sent| sent.operation.files());
                let files = volume.with(|known| files.map(|file| known.real(file)).collect())?;
                let made = |sent: &Sent| match &sent.operation {
                    Operation::Make { file, .. } => Some((sent.seq, *file)),
                    _ => None,
                };
                let is_new =
                    |known: &Volume, file: &FileId| known.file(*file).is_none() && known.alias(*file).is_none();
                let made: HashMap<u64, FileId> = volume.with(|known| {
                    operations.iter().filter_map(made).filter(|(_, file)| is_new(known, file)).collect()
                })?;
                let scene = volume.scene.read().await;
                let seen = self.seen(whose, volume, files).await;
                let mut wanted = volume.may_change_all(&whose.user, &seen).await;
                drop(scene);
                wanted.extend(made.values());
                let met = claim(wanted, Hold::Write, true).await?;
                let reply = self.look(place, request).await?;
                if let Reply::Applied(applied) = &reply {
                    // No other client has seen what this one made, so it may go on changing it.
                    let done = applied.iter().filter(|applied| applied.outcome == Outcome::Done);
                    met.made(done.filter_map(|applied| made.get(&applied.seq).copied()).collect());
                }
                Ok(reply)
            }
            Request::Lock(_) | Request::TestLock(_) if !delegated => Err(Stop::Refused(Refusal::Detached)),
            Request::Lock(mut asked) => {
                asked.lock.file = volume.real(asked.lock.file)?;
                let unlocks = asked.lock.exclusive.is_none() || asked.gives_up > 0;
                if !unlocks {
                    // A client without delegations does not renew its lease while it waits.
                    let check = self.check_lock(whose, volume, asked.lock.file);
                    timeout(&*self.home.host.clock, CHECK_TIME_MAX, check).await.unwrap_or(Err(FsError::Busy))?;
                }
                volume.claims.lock(whose.author, &asked).await?;
                Ok(Reply::Done)
            }
            Request::TestLock(lock) => {
                let lock = Lock { file: volume.real(lock.file)?, ..lock };
                self.check_lock(whose, volume, lock.file).await?;
                Ok(Reply::InTheWay(volume.claims.test_lock(whose.author, &lock)))
            }
            Request::Read { file, contents, offset, len } => {
                let range = offset..offset.saturating_add(len.into());
                volume.wait_for(volume.real(file)?, contents, range).await?;
                self.look(place, request).await
            }
            request => self.look(place, request).await,
        }
    }

    async fn look(&self, place: &Place, request: Request) -> Answered {
        let Place { whose, volume, delegated, .. } = place;
        let looks = matches!(
            request,
            Request::Since { .. }
                | Request::Facts { .. }
                | Request::Validate { .. }
                | Request::List { .. }
                | Request::Read { .. }
                | Request::ReadFiles { .. }
                | Request::Take { .. }
        );
        let _scene = if looks { Some(volume.scene.read().await) } else { None };
        Ok(match request {
            // Handled by the callers.
            Request::Enroll { .. }
            | Request::Attach { .. }
            | Request::Delegate { .. }
            | Request::Lock(_)
            | Request::TestLock(_) => {
                return Err(Stop::Refused(Refusal::Detached));
            }
            Request::Since { stamp } => {
                let since = volume.with(|known| changed_since(known, stamp, &whose.user))?;
                Reply::Since(volume.since_seen(&whose.user, since).await)
            }
            Request::Facts { files } => Reply::Facts(self.facts(whose, volume, files).await?),
            Request::Validate { files } => {
                if files.len() > FILE_COUNT_MAX {
                    return Err(Stop::Failed(FsError::ArgumentTooBig));
                }
                let mut stale = Vec::new();
                for (file, version) in files {
                    let real = volume.real(file)?;
                    let is_there =
                        self.check_seen(whose, volume, real).await.is_ok() && volume.glance(real, OTHERS).await.is_ok();
                    let is_current = |known: &Volume| known.file(real).is_some_and(|known| known.version == version);
                    if !is_there || real != file || !volume.with(is_current)? {
                        stale.push(file);
                    }
                }
                Reply::Stale(stale)
            }
            Request::List { dir, after, known, .. } => self.list(place, dir, &after, known).await?,
            Request::Read { file, contents, offset, len } => {
                self.read(whose, volume, (file, contents), offset, len).await?
            }
            Request::ReadFiles { files } => self.read_files(whose, volume, files).await?,
            Request::Upload { seq, offset, data } => {
                volume.upload(whose, seq, offset, &data).await?;
                Reply::Done
            }
            Request::Take { seq, pieces } => self.take(whose, volume, seq, pieces).await?,
            Request::Apply { acknowledged, operations } => {
                self.acknowledge(&mut self.home.live.lock(), &volume.name, whose.incarnation, acknowledged);
                let author = whose.author;
                let (home, applied_to, whose) = (self.home.clone(), volume.clone(), whose.clone());
                let (done, answer) = oneshot::channel();
                let work = async move { drop(done.send(home.apply(&applied_to, &whose, &operations).await)) };
                volume.fs.together(Box::pin(work)).await;
                let applied = answer.await.map_err(|_| FsError::Io)??;
                volume.company.all_hear(author, &*self.home.host.clock).await;
                Reply::Applied(applied)
            }
            Request::Space => {
                let stat = volume.fs.statfs().await?;
                let (total, free) = (stat.total_bytes, stat.free_bytes);
                Reply::Space { total, free, files: stat.files, files_free: stat.files_free }
            }
            Request::Ids => {
                let mut live = self.home.live.lock();
                let Some(known) = live.volume(&volume.name) else { return Err(Stop::Refused(Refusal::Volume)) };
                let (root, next) = (known.root(), known.next_id());
                let first = FileId::new(root.raw() - FileId::ROOT.raw() + next);
                let given = live.state.grant(&self.key, &volume.name).map_or(u64::MAX, |(_, g)| g.given_count);
                let end = next + ID_COUNT;
                if end > INDEX_END || given >= GIVEN_COUNT_MAX {
                    return Err(Stop::Failed(FsError::NoSpace));
                }
                live.record(HomeRecord::Reserved { key: self.key, volume: volume.name.clone(), next: end });
                Reply::Ids(first, ID_COUNT)
            }
            Request::Returned { recalls, lowered, behind: None } => {
                if recalls.len().max(lowered.len()) > FILE_COUNT_MAX {
                    return Err(Stop::Failed(FsError::ArgumentTooBig));
                }
                let lowered: Vec<FileId> =
                    volume.with(|known| lowered.iter().map(|file| known.real(*file)).collect())?;
                volume.claims.returned(whose.author, &recalls, &lowered);
                Reply::Done
            }
            Request::Returned { recalls, behind: Some(behind), .. } => {
                let [recall] = recalls[..] else { return Err(Stop::Failed(FsError::InvalidArgument)) };
                volume.promise(&self.home, whose, recall, behind).await?;
                Reply::Done
            }
            Request::Returning { recalls, through } => {
                if recalls.len() > FILE_COUNT_MAX {
                    return Err(Stop::Failed(FsError::ArgumentTooBig));
                }
                volume.claims.returning(whose.author, &recalls, through);
                Reply::Done
            }
            Request::Durable { through } => {
                volume.durable(whose.author, through).await?;
                Reply::Done
            }
            Request::Heard { seq } => {
                volume.company.heard(&self.push, seq);
                Reply::Done
            }
            Request::Joined { number } => {
                volume.company.knows(&self.push, number);
                Reply::Done
            }
            // The lease was renewed before.
            Request::Renew => {
                volume.tell_idle(whose.author).await;
                Reply::Done
            }
            Request::Resign => {
                if *delegated {
                    volume.claims.leave(whose.author);
                    let (key, volume) = (self.key, volume.name.clone());
                    self.home.live.lock().record(HomeRecord::Delegated { key, volume, does: false });
                }
                Reply::Done
            }
        })
    }

    /// Takes parts of a store from files that have them. A part that the user may not read, or that
    /// has other bytes by now, is not taken.
    async fn take(&self, whose: &Whose, volume: &Arc<Exported>, seq: u64, pieces: Vec<Piece>) -> Answered {
        if pieces.len() > PIECE_COUNT_MAX || pieces.iter().any(|piece| piece.len > PIECE_LEN_MAX) {
            return Err(Stop::Failed(FsError::ArgumentTooBig));
        }
        let mut taken = Vec::new();
        for (index, piece) in (0..).zip(pieces) {
            let source = (piece.file, piece.contents);
            match self.read(whose, volume, source, piece.at, piece.len as u32).await {
                Ok(Reply::Data(bytes)) if bytes.len() as u64 == piece.len && hash(&bytes) == piece.hash => {
                    volume.upload(whose, seq, piece.offset, &bytes).await?;
                    taken.push(index);
                }
                _ => {}
            }
        }
        Ok(Reply::Taken(taken))
    }

    async fn facts(
        &self,
        whose: &Whose,
        volume: &Arc<Exported>,
        files: Vec<FileId>,
    ) -> Result<Vec<roam_proto::message::Facts>, Stop> {
        if files.len() > FILE_COUNT_MAX {
            return Err(Stop::Failed(FsError::ArgumentTooBig));
        }
        let (mut known, mut len) = (Vec::new(), 0);
        let files: BTreeSet<FileId> = volume.with(|known| files.iter().map(|file| known.real(*file)).collect())?;
        for file in files {
            let facts = async {
                self.check_seen(whose, volume, file).await?;
                volume.facts(file, &whose.user).await
            };
            match facts.await {
                Ok(facts) => {
                    len += facts.to_bytes().len();
                    // The client would take files that are left out for gone.
                    if len > MESSAGE_LEN_MAX / 2 {
                        return Err(Stop::Failed(FsError::ArgumentTooBig));
                    }
                    known.push(facts);
                }
                Err(FsError::Stale | FsError::NotFound | FsError::AccessDenied | FsError::NotADirectory) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(known)
    }

    /// Returns those of some files that the user can reach. No delegation is recalled for others.
    async fn seen(&self, whose: &Whose, volume: &Exported, files: BTreeSet<FileId>) -> BTreeSet<FileId> {
        let mut seen = BTreeSet::new();
        for file in files {
            if self.check_seen(whose, volume, file).await.is_ok() {
                seen.insert(file);
            }
        }
        seen
    }

    /// Fails unless the user can reach the file.
    async fn check_seen(&self, whose: &Whose, volume: &Exported, file: FileId) -> Result<(), FsError> {
        match volume.with(|volume| volume.file(file).and_then(|file| file.place().cloned()))? {
            Some((parent, _)) => volume.check_reach(&cred(&whose.user), parent).await,
            None if file == volume.root()? => Ok(()),
            // No name leads to it.
            None => Err(FsError::Stale),
        }
    }

    /// Fails unless the user can open the file, as a lock requires.
    async fn check_lock(&self, whose: &Whose, volume: &Exported, file: FileId) -> Result<(), FsError> {
        let _scene = volume.scene.read().await;
        self.check_seen(whose, volume, file).await?;
        let (user, source) = (cred(&whose.user), volume.source(file).await?);
        match volume.fs.access(&user, source, vfs::perm::READ).await {
            Err(FsError::AccessDenied) => volume.fs.access(&user, source, vfs::perm::WRITE).await,
            read => read,
        }
    }

    /// True if a name does not exist and the user may make it.
    async fn may_make(&self, place: &Place, dir: FileId, name: &[u8]) -> Result<bool, Stop> {
        let Place { whose, volume, .. } = place;
        let _scene = volume.scene.read().await;
        let user = cred(&whose.user);
        volume.check_reach(&user, dir).await?;
        let source = volume.source(dir).await?;
        let may = volume.fs.access(&user, source, vfs::perm::READ | vfs::perm::WRITE | vfs::perm::EXECUTE).await;
        let may = may.is_ok() && volume.check_name(&(dir, name.to_vec())).is_ok();
        Ok(may && volume.look(dir, name, OTHERS).await?.is_none())
    }

    async fn list(&self, place: &Place, dir: FileId, after: &[u8], known: u64) -> Answered {
        let Place { whose, volume, delegated, .. } = place;
        let (user, dir) = (cred(&whose.user), volume.real(dir)?);
        volume.check_reach(&user, dir).await?;
        let seq = volume.with(|volume| volume.journal().stamp().seq)?;
        let source = volume.source(dir).await?;
        volume.fs.access(&user, source, vfs::perm::READ).await?;
        let all = volume.list(dir).await?;
        let facts = Box::new(volume.facts(dir, &whose.user).await?);
        let same = known > 0 && known == facts.contents;
        let from = match after {
            _ if same => all.len(),
            b"" => 0,
            after => all.partition_point(|(name, ..)| name.as_slice() <= after),
        };
        let (mut entries, mut len, mut more) = (Vec::new(), 0, false);
        for (name, id, entry) in all.into_iter().skip(from) {
            if len >= LISTING_LEN {
                more = true;
                break;
            }
            let facts = match volume.facts_of(id, entry.attr.id, &entry, &whose.user).await {
                Ok(facts) => facts,
                // It was removed meanwhile, which the home will notice.
                Err(FsError::Stale | FsError::NotFound) => continue,
                Err(error) => return Err(error.into()),
            };
            let entry = NamedFacts { name, facts };
            len += entry.to_bytes().len();
            entries.push(entry);
        }
        let (withheld, given) = match delegated {
            true => volume.claims.withheld(whose.author, entries.iter().map(|entry: &NamedFacts| entry.facts.id)),
            false => (Vec::new(), 0),
        };
        Ok(Reply::Listing { dir: facts, entries, same, more, withheld, given, seq, hold: Hold::Read })
    }

    async fn read(
        &self,
        whose: &Whose,
        volume: &Arc<Exported>,
        (file, contents): (FileId, u64),
        offset: u64,
        len: u32,
    ) -> Answered {
        let (user, file) = (cred(&whose.user), volume.real(file)?);
        let parent = volume.with(|volume| volume.file(file).and_then(|file| file.place().cloned()))?;
        volume.check_reach(&user, parent.ok_or(FsError::Stale)?.0).await?;
        let (source, _) = volume.glance(file, OTHERS).await?;
        let is_current = || volume.with(|volume| volume.file(file).is_some_and(|f| f.contents.seq == contents));
        if !is_current()? {
            return Ok(Reply::Changed);
        }
        let handle = volume.fs.open(&user, source, OpenFlags { read: true, ..OpenFlags::default() }).await?;
        let len = len.min(DATA_LEN_MAX as u32);
        let bytes = match volume.promised(file, contents) {
            Some(promise) => {
                let range = offset..offset.saturating_add(len.into());
                volume.read_promised(&promise, (source, handle), range).await
            }
            None => volume.fs.read(source, handle, offset, len).await,
        };
        volume.fs.release(source, handle, None).await?;
        let bytes = bytes?;
        volume.glance(file, OTHERS).await?;
        Ok(if is_current()? { Reply::Data(bytes) } else { Reply::Changed })
    }

    async fn read_files(&self, whose: &Whose, volume: &Arc<Exported>, files: Vec<(FileId, u64)>) -> Answered {
        if files.len() > FILE_COUNT_MAX {
            return Err(Stop::Failed(FsError::ArgumentTooBig));
        }
        let (mut read, mut room) = (Vec::new(), DATA_LEN_MAX);
        for (file, contents) in files {
            if volume.promised(volume.real(file)?, contents).is_some() {
                continue;
            }
            // Errors are left out: a request for that file alone returns its error.
            if let Ok(Reply::Data(bytes)) = self.read(whose, volume, (file, contents), 0, room as u32).await {
                if bytes.len() == room {
                    // The file may be longer.
                    break;
                }
                room -= bytes.len();
                read.push((file, bytes));
            }
        }
        Ok(Reply::Files(read))
    }
}
