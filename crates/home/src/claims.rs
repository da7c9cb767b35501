//! Claims: waiting for what other clients have delegations on.

use crate::delegations::{Delegations, Settled};
use crate::locking::{Locked, LockedFiles};
use host::{Clock, Host, Random, timeout};
use parking_lot::Mutex;
use roam_proto::channel::Push;
use roam_proto::delegation::{Hold, Kept, Recall};
use roam_proto::lock::{Lock, Locking};
use roam_proto::message::{Pushed, pack};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use types::{FileId, FsError};

/// Most files that one message recalls.
const RECALL_COUNT_MAX: usize = 4096;
/// How long a claim waits at most. The client hears of the failure before it takes the home to be
/// out of reach, and asks again.
const WAIT_MAX: Duration = Duration::from_secs(4);

/// How often a waiting lock request looks whether the lease of the lock's holder has ended.
const LOCK_LOOK_PERIOD: Duration = Duration::from_secs(1);
/// How long a claim that can do with a read delegation waits at most for a write delegation.
const MORE_WAIT_MAX: Duration = Duration::from_secs(1);

/// The delegations and locks of a volume, and the requests that wait for them.
pub(crate) struct Claims {
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    table: Mutex<Table>,
    /// Rises whenever a waiting request may be able to go on.
    turn: watch::Sender<u64>,
}

struct Table {
    delegations: Delegations,
    locks: LockedFiles,
    /// How to reach the clients that work under delegations.
    reached: BTreeMap<u32, Arc<dyn Push>>,
}

impl Table {
    /// Sends recalls. Those that cannot be sent now are sent when the client attaches again.
    fn send(&self, client: u32, recalls: Vec<Recall>) {
        if let Some(push) = self.reached.get(&client).filter(|_| !recalls.is_empty()) {
            for recalls in recalls.chunks(RECALL_COUNT_MAX) {
                let _ = push.push(pack(&Pushed::Recall(recalls.to_vec())));
            }
        }
    }
}

/// A claim that was met. Until this is dropped, no other client has what it excludes.
pub(crate) struct Met<'a> {
    claims: &'a Claims,
    number: u64,
    client: u32,
    /// When the client's request stops waiting.
    end: Duration,
}

/// What became of the wish to turn a claim to read into one to change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum More {
    /// It was met.
    Met,
    /// Another client was first.
    Others,
    /// Waiting for the other clients would have taken too long.
    Late,
}

impl Met<'_> {
    /// Gives the client what it claimed of these files, until that is recalled. Returns a number
    /// that is less than that of any such recall.
    pub(crate) fn keep(self, files: BTreeSet<FileId>) -> u64 {
        let now = self.claims.clock.now();
        let mut table = self.claims.table.lock();
        table.delegations.end(self.number, &files);
        let given = table.delegations.number();
        let recalls = table.delegations.trim(self.client, now);
        table.send(self.client, recalls);
        given
    }

    /// Gives the client what it claimed of these files, which it has made itself.
    pub(crate) fn made(self, files: BTreeSet<FileId>) {
        let mut table = self.claims.table.lock();
        table.delegations.end_making(self.number, &files);
        let recalls = table.delegations.trim(self.client, self.claims.clock.now());
        table.send(self.client, recalls);
    }
}

impl Drop for Met<'_> {
    fn drop(&mut self) {
        self.claims.change(|delegations| delegations.end(self.number, &BTreeSet::new()));
    }
}

impl Claims {
    pub(crate) fn new(host: &Host, unknown: BTreeSet<u32>) -> Claims {
        let delegations = Delegations::new(unknown, host.clock.now());
        let table = Mutex::new(Table { delegations, locks: LockedFiles::default(), reached: BTreeMap::new() });
        Claims { clock: host.clock.clone(), random: host.random.clone(), table, turn: watch::Sender::new(0) }
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    fn change<T>(&self, f: impl FnOnce(&mut Delegations) -> T) -> T {
        let done = f(&mut self.table.lock().delegations);
        self.turn.send_modify(|turn| *turn += 1);
        done
    }

    /// A client begins, or goes on, to work under delegations. It keeps its delegations and locks
    /// if its lease has not ended. If the home began anew meanwhile, the client gets its locks
    /// back, since no other client has got any since. The home repeats the recalls that the client
    /// has not answered.
    pub(crate) fn join(
        &self,
        client: u32,
        push: Arc<dyn Push>,
        (run, current): (u64, u64),
        changed: &[FileId],
        (locks, term): (&[Lock], u64),
    ) -> Kept {
        let now = self.clock.now();
        let mut table = self.table.lock();
        let Table { delegations, locks: locked, .. } = &mut *table;
        let all = run == current && delegations.has_kept(client, now);
        let kept = match locked.term(client).filter(|known| all && *known == term) {
            Some(term) => Kept { run: current, all, locks: true, term },
            None => {
                let term = self.random.next_u64();
                let returns = run != 0 && delegations.awaits(client, now);
                let locks =
                    locked.begin(client, term, if returns { locks } else { &[] }) && (returns || locks.is_empty());
                Kept { run: current, all, locks, term }
            }
        };
        match all {
            true => delegations.renew(client, now),
            false => delegations.join(client, changed, run != 0, now),
        }
        table.reached.insert(client, push);
        table.send(client, table.delegations.outstanding(client));
        drop(table);
        self.turn.send_modify(|turn| *turn += 1);
        kept
    }

    /// True if a client has to wait for the end of its lease before it can begin anew.
    pub(crate) fn is_barred(&self, client: u32) -> bool {
        self.table.lock().delegations.is_barred(client, self.clock.now())
    }

    /// A client no longer works under delegations.
    pub(crate) fn leave(&self, client: u32) {
        self.change(|delegations| delegations.leave(client));
        let mut table = self.table.lock();
        table.locks.leave(client);
        table.reached.remove(&client);
    }

    /// Does a client's lock request, and waits until others have unlocked if the request says so.
    /// EBUSY: it may be granted later. EAGAIN: another owner has the lock.
    pub(crate) async fn lock(&self, client: u32, asked: &Locking) -> Result<(), FsError> {
        let end = self.clock.now() + WAIT_MAX;
        loop {
            let mut turn = self.turn.subscribe();
            let now = self.clock.now();
            let locked = {
                let mut table = self.table.lock();
                let Table { delegations, locks, .. } = &mut *table;
                let wants = asked.lock.exclusive.is_some() && asked.gives_up == 0;
                let in_the_way = if wants { locks.in_the_way(client, &asked.lock) } else { BTreeSet::new() };
                let lapsed = in_the_way.into_iter().filter(|other| delegations.has_lapsed(*other, now));
                for other in lapsed.collect::<Vec<_>>() {
                    delegations.leave(other);
                    locks.leave(other);
                    self.turn.send_modify(|turn| *turn += 1);
                }
                // Clients that had locks when the last run ended get them back first.
                if wants && delegations.awaits_others(client, now) { None } else { Some(locks.ask(client, asked)?) }
            };
            if locked == Some(Locked::Done) {
                self.turn.send_modify(|turn| *turn += 1);
                return Ok(());
            }
            if now >= end {
                return Err(FsError::Busy);
            }
            let _ = timeout(&*self.clock, LOCK_LOOK_PERIOD.min(end - now), turn.changed()).await;
        }
    }

    /// Returns the first lock that conflicts with this one.
    pub(crate) fn test_lock(&self, client: u32, lock: &Lock) -> Option<Lock> {
        self.table.lock().locks.test(client, lock)
    }

    /// A client has sent something new of an operation, for which others may wait.
    pub(crate) fn progresses(&self, client: u32, seq: u64) {
        self.table.lock().delegations.progress(client, seq, self.clock.now());
    }

    /// A client says which operations have to be home before it can return what was recalled.
    pub(crate) fn returning(&self, client: u32, recalls: &[u64], through: u64) {
        self.table.lock().delegations.returning(client, recalls, through);
    }

    /// Notes that a client under delegations is alive. False if it has to attach again.
    pub(crate) fn heard_of(&self, client: u32) -> bool {
        let now = self.clock.now();
        let mut table = self.table.lock();
        let fine = table.delegations.knows(client) && !table.delegations.is_overdue(client, now);
        if fine {
            table.delegations.renew(client, now);
        }
        fine
    }

    /// True if other clients may have what would have to be claimed.
    pub(crate) fn has_others(&self, client: u32) -> bool {
        self.table.lock().delegations.has_others(client)
    }

    /// Returns the file of an outstanding recall that asks a client to let others read.
    pub(crate) fn recalled(&self, client: u32, number: u64) -> Option<FileId> {
        let outstanding = self.table.lock().delegations.outstanding(client);
        let recall = outstanding.into_iter().find(|recall| recall.number == number)?;
        (recall.keep && recall.held == Hold::Write).then_some(recall.file)
    }

    /// A client has returned what was recalled so that others can read. Returns a claim that keeps
    /// all clients from changing the file until it [ends](Self::end).
    pub(crate) fn returned_to_read(&self, client: u32, recall: u64, file: FileId) -> u64 {
        self.change(|delegations| {
            let claim = delegations.claim_held(client, file);
            delegations.returned(client, recall);
            claim
        })
    }

    /// Ends such a claim.
    pub(crate) fn end(&self, claim: u64) {
        self.change(|delegations| delegations.end(claim, &BTreeSet::new()));
    }

    /// True if a client has everything that it was given and has not returned.
    pub(crate) fn has_kept(&self, client: u32) -> bool {
        self.table.lock().delegations.has_kept(client, self.clock.now())
    }

    /// True if a client has a delegation on a file.
    pub(crate) fn has(&self, client: u32, file: FileId) -> bool {
        self.table.lock().delegations.has(client, file)
    }

    /// Pushes a message to a client, if it can be reached.
    pub(crate) fn push(&self, client: u32, pushed: &Pushed) {
        if let Some(push) = self.table.lock().reached.get(&client) {
            // A client that waits asks again.
            let _ = push.push(pack(pushed));
        }
    }

    /// A client has returned what was recalled, and keeps at most read delegations on the `lowered`
    /// files.
    pub(crate) fn returned(&self, client: u32, recalls: &[u64], lowered: &[FileId]) {
        self.change(|delegations| {
            lowered.iter().for_each(|file| delegations.lower(client, *file, recalls));
            recalls.iter().for_each(|recall| delegations.returned(client, *recall));
        });
    }

    /// Gives a client read delegations on files where that is possible at once. Returns the other
    /// files, and a number that is less than that of any recall of the given ones.
    pub(crate) fn withheld(&self, client: u32, files: impl Iterator<Item = FileId>) -> (Vec<FileId>, u64) {
        let mut table = self.table.lock();
        let withheld = files.filter(|file| !table.delegations.give_if_free(client, *file)).collect();
        let given = table.delegations.number();
        let recalls = table.delegations.trim(client, self.clock.now());
        table.send(client, recalls);
        (withheld, given)
    }

    /// Makes a claim, and waits until no other client has what it excludes. EBUSY: it may be met
    /// later.
    pub(crate) async fn claim(
        &self,
        client: u32,
        wants: Vec<(FileId, Hold)>,
        urgent: bool,
    ) -> Result<Met<'_>, FsError> {
        let end = self.clock.now() + WAIT_MAX;
        let number = self.table.lock().delegations.claim(client, wants, urgent);
        let met = Met { claims: self, number, client, end };
        self.wait(number, end).await?;
        Ok(met)
    }

    /// Turns a client's claim to read a file into one to change it, if no other client waits for
    /// that and it can be had soon. Otherwise the client claims to read it again, after those that
    /// wait. EBUSY: it may be met later.
    pub(crate) async fn claim_more(&self, met: &mut Met<'_>, file: FileId) -> Result<More, FsError> {
        let (number, more) = self.change(|delegations| delegations.claim_more(met.number, file));
        met.number = number;
        if !more {
            self.wait(number, met.end).await?;
            return Ok(More::Others);
        }
        match self.wait(number, met.end.min(self.clock.now() + MORE_WAIT_MAX)).await {
            Err(FsError::Busy) => {}
            waited => return waited.map(|()| More::Met),
        }
        met.number = self.change(|delegations| delegations.claim_instead(number, file, Hold::Read));
        self.wait(met.number, met.end).await?;
        Ok(More::Late)
    }

    async fn wait(&self, number: u64, end: Duration) -> Result<(), FsError> {
        loop {
            let mut turn = self.turn.subscribe();
            let now = self.clock.now();
            let until = {
                let mut table = self.table.lock();
                match table.delegations.settle(number, now) {
                    Settled::Met => return Ok(()),
                    Settled::Waits { recalls, until } => {
                        recalls.into_iter().for_each(|(client, recalls)| table.send(client, recalls));
                        until
                    }
                }
            };
            if now >= end {
                return Err(FsError::Busy);
            }
            let _ = timeout(&*self.clock, until.min(end).saturating_sub(now), turn.changed()).await;
        }
    }
}
