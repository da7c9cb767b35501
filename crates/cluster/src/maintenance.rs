//! The background work: checkpoints, deletion of empty segments, cleaning, and telling writers how
//! much room is left.
//!
//! A segment is deleted only when no manager counts a live byte in it **and** every manager's
//! durable checkpoint is past its deltas (docs/core.md#cleaning). So a round is: checkpoint, count,
//! delete, and clean if that was not enough.
//!
//! A round costs what changed since the last one, not what there is. It asks the [`Table`], which
//! follows the stripe and the managers, and lists nothing. Maintenance lists the stores after a
//! start and when one comes back, a page at a time ([`Restore`]). Other nodes put segments, too: of
//! their logs it lists what is new.

use crate::cleaner::{CleanError, Cleaned, Cleaner, LiveVictim, Writers};
use crate::config::{CLEANER_LOG, CLIENT_LOG, FsConfig, is_manager_log, manager_log};
use crate::limits::Limits;
use crate::restore::{Restore, Restored};
use crate::room::Room;
use crate::seat::Seat;
use crate::space::{OWN_SESSION, SpaceBook};
use crate::table::Table;
use client::Client;
use host::{Either, Host, first, join_all};
use manager::api::{Manager, ManagerAdmin, ManagerError, Progress};
use parking_lot::Mutex;
use policy::clean::{FreeGoal, GAIN_SEGMENTS, SegmentUse, VICTIMS_MAX, choose};
use policy::space::{Loan, SpaceClaim, SpaceShare};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use stripe::{ScrubProgress, ScrubReport, Stripe};
use tokio::sync::Notify;
use types::{Answer, LogId, SegmentId};

/// Time between two looks at whether a round is due.
const TICK: Duration = Duration::from_secs(1);
/// Number of changed index nodes in the managers' memory at which a checkpoint is due: they stay in
/// memory until then.
const DIRTY_INODES_MAX: u64 = 1 << 16;
/// Time after which a checkpoint of changes is due in any case.
const CHECKPOINT_AGE: Duration = Duration::from_secs(30);
/// Time between looks at the disks when nothing changes here: other programs fill them too.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// Time without a cut after which the store counts as idle. Then maintenance merges segments that
/// would not be worth it otherwise.
const IDLE_TIME: Duration = Duration::from_secs(10);
/// Share of its own size that cleaning a segment must gain when idle, in percent. Small segments
/// gain most.
const IDLE_GAIN_PERCENT: u64 = 25;
/// Bytes that each step of merging must gain besides, or merging ends.
const IDLE_GAIN_BYTES: u64 = 64 << 10;
/// Number of suspect segments that a scrub looks at before other maintenance gets its turn.
const SCRUBBED_AT_ONCE: usize = 16;
/// How long a round waits for the managers to apply earlier cuts.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(5);
/// How often one round may go on with a segment for which the cleaner's loan was too small at once.
const CUT_SHORT_MAX: u64 = 8;
/// Number of segments deleted by one request to each store.
const DELETED_AT_ONCE: usize = 1024;

/// The work of maintenance since the start, for `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Rounds of checkpoints.
    pub checkpoint_count: u64,
    /// Segments that were deleted because nothing in them was live.
    pub deleted_count: u64,
    /// Segments cleaned.
    pub cleaned_count: u64,
    /// Live bytes that the cleaner copied.
    pub moved_bytes: u64,
    /// Bytes of segments that hold live data.
    pub segment_bytes: u64,
    /// Live bytes in them.
    pub live_bytes: u64,
    /// Progress of restoring redundancy that was lost with stores.
    pub redundancy: Restored,
    /// Number of segments.
    pub segment_count: u64,
}

/// Since when nothing was cut, and whether merging has finished since.
struct Quiet {
    cut: u64,
    since: Duration,
    merged: bool,
}

/// Maintenance of a running file system.
pub struct Maintenance {
    host: Host,
    config: FsConfig,
    limits: Limits,
    stripe: Arc<Stripe>,
    managers: Vec<Arc<Seat>>,
    client: Client,
    cleaner: Cleaner,
    table: Arc<Table>,
    space: SpaceBook,
    /// The logs of members' clients. For each, the seq from which on the table lacks segments.
    member_logs: Mutex<BTreeMap<LogId, u64>>,
    /// The same, of the logs of managers that other nodes serve, or have served.
    moved_logs: Mutex<BTreeMap<LogId, u64>>,
    /// Held during a round. `status` must not wait for it.
    round: tokio::sync::Mutex<Restore>,
    done: Mutex<Done>,
    /// Notified when a member's operation waits for space.
    space_wanted: Notify,
    /// A checkpoint is due, whatever has changed.
    checkpoint_wanted: AtomicBool,
    /// The stores are to be compared, though none has come back.
    compare_wanted: AtomicBool,
    stopping: AtomicBool,
    stop: Notify,
    stopped: Notify,
}

impl Maintenance {
    /// Starts the background rounds.
    pub(crate) async fn start(
        host: Host,
        config: FsConfig,
        limits: Limits,
        stripe: Arc<Stripe>,
        managers: Vec<Arc<Seat>>,
        client: Client,
        cleaner: Cleaner,
    ) -> Result<Arc<Maintenance>, manager::api::ManagerError> {
        let table = Arc::new(Table::new(&stripe, &managers));
        // After a start, all logs are listed anyway.
        let member_logs = config.client_logs().filter(|log| *log != CLIENT_LOG);
        let applied = AppliedByAll::ask(&managers, |seat| seat.progress()).await?;
        let member_logs = member_logs.map(|log| (log, applied.of(log) + 1)).collect();
        let maintenance = Arc::new(Maintenance {
            space: SpaceBook::new(host.clone(), config.clone(), stripe.clone(), table.clone()),
            table,
            member_logs: Mutex::new(member_logs),
            moved_logs: Mutex::default(),
            round: tokio::sync::Mutex::new(Restore::new(host.clone(), stripe.clone(), limits.restore_step)),
            host,
            config,
            limits,
            stripe,
            managers,
            client,
            cleaner,
            done: Mutex::default(),
            space_wanted: Notify::new(),
            checkpoint_wanted: AtomicBool::new(false),
            compare_wanted: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            stop: Notify::new(),
            stopped: Notify::new(),
        });
        maintenance.table.follow().await?;
        maintenance.space.join(OWN_SESSION).await;
        maintenance.report_used().await;
        maintenance.host.tasks.spawn(Box::pin(maintenance.clone().run()));
        Ok(maintenance)
    }

    /// The work so far, and the present totals. Waits for no round.
    pub fn done(&self) -> Done {
        let totals = self.table.look(|table| table.totals());
        Done {
            segment_bytes: totals.used_bytes,
            live_bytes: totals.live_bytes,
            segment_count: totals.segment_count,
            ..*self.done.lock()
        }
    }

    /// Ends the background rounds, after the one that is under way.
    pub async fn stop(&self) {
        self.stopping.store(true, SeqCst);
        self.stop.notify_one();
        self.stopped.notified().await;
    }

    async fn run(self: Arc<Self>) {
        let mut last_cut = 0;
        let mut last_time = self.host.clock.now();
        let mut last_look = last_time;
        let mut quiet = Quiet { cut: 0, since: last_time, merged: true };
        let (mut next_look, mut next_step) = (last_time + TICK, last_time + TICK);
        // A manager was on its way when the last round looked for space.
        let mut is_wanted_again = false;
        while !self.stopping.load(SeqCst) {
            let wanted = first(self.client.space_wanted(), self.space_wanted.notified());
            let wake = first(wanted, self.stop.notified());
            let pause = next_look.min(next_step).saturating_sub(self.host.clock.now());
            // Those who wait come before the next step of restoring, which may be due at once.
            let wanted = matches!(first(wake, self.host.clock.sleep(pause)).await, Either::Left(Either::Left(_)));
            if self.stopping.load(SeqCst) {
                break;
            }
            let step_in = self.restore_some().await.unwrap_or_else(|e| {
                tracing::warn!("compare stores: {e}");
                TICK
            });
            next_step = self.host.clock.now() + step_in;
            if !wanted && self.host.clock.now() < next_look {
                continue;
            }
            next_look = self.host.clock.now() + TICK;
            let wanted = wanted || std::mem::take(&mut is_wanted_again);
            // Of managers at other nodes it is known a moment later what they have applied.
            let cut = self.cut_count().await.unwrap_or(last_cut).max(last_cut);
            let now = self.host.clock.now();
            if now >= last_look + LOOK_INTERVAL {
                self.report_room().await;
                last_look = now;
            }
            let many = self.managers.iter().map(|m| m.status().dirty_count).sum::<u64>() >= DIRTY_INODES_MAX;
            let due = many
                || self.checkpoint_wanted.swap(false, SeqCst)
                || cut >= last_cut + self.limits.cuts_per_checkpoint_max
                || (cut > last_cut && now >= last_time + CHECKPOINT_AGE);
            // Only after changes: cleaning cannot help stores that are full of live data.
            let short = !due && cut > last_cut && self.is_short().await;
            if cut > quiet.cut {
                quiet = Quiet { cut, since: now, merged: false };
            }
            if !wanted && !due && !short {
                if !quiet.merged && now >= quiet.since + IDLE_TIME {
                    quiet.merged = !self.merge().await.unwrap_or_else(|e| {
                        tracing::error!("merging segments: {e}");
                        false
                    });
                }
                continue;
            }
            let tidied = self.tidy(wanted).await;
            if due && tidied.is_ok() {
                self.mark().await;
            }
            let is_away = matches!(tidied, Err(CleanError::Manager(ManagerError::Away)));
            if due && is_away {
                self.checkpoint_wanted.store(true, SeqCst);
            }
            if let Err(e) = tidied {
                match e {
                    CleanError::Manager(ManagerError::Away) => tracing::info!("maintenance waits: {e}"),
                    e => tracing::error!("maintenance: {e}"),
                }
                if !wanted {
                    self.report_used().await;
                }
            }
            (last_cut, last_time) = (cut, now);
            if wanted && is_away {
                // It has freed nothing, and is no proof that nothing can be freed.
                is_wanted_again = true;
            } else if wanted {
                // An operation that waits for space waits for two rounds, so that one of them began
                // after its request.
                self.space.begin_round();
                self.space.await_reports().await;
                self.report_used().await;
                self.space.end_round();
            }
        }
        self.stopped.notify_one();
    }

    /// One step of comparing the stores, or of restoring fragments that they lost. Returns the time
    /// until the next one.
    async fn restore_some(&self) -> Result<Duration, CleanError> {
        let mut restore = self.round.lock().await;
        if self.compare_wanted.swap(false, SeqCst) {
            restore.compare_again();
        }
        if restore.is_due() {
            self.compare_some(&mut restore).await?;
        } else if restore.is_busy() {
            restore.step(&self.table).await;
        }
        restore.clear_losses().await?;
        self.done.lock().redundancy = restore.progress();
        Ok(restore.next_step().map_or(TICK, |next| next.min(TICK)))
    }

    async fn compare_some(&self, restore: &mut Restore) -> Result<(), CleanError> {
        if restore.compare_some(&self.table, || self.logs()).await?.is_some_and(|lacking| lacking > 0) {
            // A store may have come back with segments that were deleted meanwhile.
            self.checkpoint_and_delete().await?;
            restore.keep(|segment| self.table.look(|table| table.is_stored(segment)));
            let lacking = restore.progress().lacking_count;
            tracing::info!(segments = lacking, "stores lack fragments; restoring them");
        }
        Ok(())
    }

    /// True if all stores were compared since any of them last came into service, and all lacking
    /// fragments were restored. Then all stores but those that left service since have everything.
    pub async fn has_compared_all(&self) -> bool {
        self.round.lock().await.has_compared_all()
    }

    /// Whether the stores have everything; `None` while it is not known, or maintenance is at work
    /// on it.
    pub(crate) fn are_whole(&self) -> Option<bool> {
        let Ok(restore) = self.round.try_lock() else {
            // A restore is nearly always at work. What it has found goes on to count.
            let lacks = self.done.lock().redundancy.lacking_count.is_some_and(|count| count > 0);
            return lacks.then_some(false);
        };
        // A store that comes back after this look has returned since the last comparison.
        let is_whole = self.stripe.is_whole();
        if self.compare_wanted.load(SeqCst) {
            return None;
        }
        match restore.progress().lacking_count? {
            0 => (is_whole && restore.has_compared_all()).then_some(true),
            _ => Some(false),
        }
    }

    /// Lists stores until every segment is known.
    async fn know_all(&self, restore: &mut Restore) -> Result<(), CleanError> {
        while !restore.knows_all() {
            self.compare_some(restore).await?;
        }
        Ok(())
    }

    /// All logs.
    fn logs(&self) -> Vec<LogId> {
        let manager_logs = self.managers.iter().map(|m| manager_log(m.id().raw()));
        self.written_logs().into_iter().chain(manager_logs).collect()
    }

    /// The logs of all clients and of the cleaner.
    fn written_logs(&self) -> Vec<LogId> {
        let members = self.member_logs.lock();
        [CLIENT_LOG, CLEANER_LOG].into_iter().chain(members.keys().copied()).collect()
    }

    /// Cuts of all clients so far. Grows when something changes; that nodes copy blocks is no
    /// change.
    async fn cut_count(&self) -> Result<u64, ManagerError> {
        let members: Vec<LogId> = self.member_logs.lock().keys().copied().collect();
        if members.is_empty() {
            return Ok(self.client.status().last_cut);
        }
        let applied = AppliedByAll::ask(&self.managers, Seat::recent_progress).await?;
        let cuts = self.client.status().last_cut + members.into_iter().map(|log| applied.of(log)).sum::<u64>();
        Ok(cuts.saturating_sub(self.cleaner.copied.load(SeqCst)))
    }

    /// From now on, other nodes copy what their clients wrote. Call it once.
    pub fn copy_with(&self, writers: Arc<dyn Writers>) {
        self.cleaner.writers.get_or_init(|| writers);
    }

    /// Another node writes the log of a manager from now on, and `next_seq` is the first segment
    /// that it may put.
    pub(crate) fn follow_manager(&self, log: LogId, next_seq: u64) {
        // Of an earlier time elsewhere, segments may not be known yet.
        self.moved_logs.lock().entry(log).or_insert(next_seq);
    }

    /// A session begins, whose client writes this log.
    pub async fn join(&self, session: u64, log: LogId, claim: &SpaceClaim) {
        self.member_logs.lock().entry(log).or_insert(0);
        self.space.join(session).await;
        self.space.note(session, claim).await;
        self.report_room().await;
    }

    /// Takes in the segments that other nodes have put, up to what the managers have applied.
    /// The same for managers at other nodes, up to their newest roots.
    async fn follow_members(&self, covered: &BTreeMap<LogId, u64>) -> Result<(), CleanError> {
        let applied = AppliedByAll::ask(&self.managers, |seat| seat.progress()).await?;
        self.follow_logs(&self.member_logs, |log| applied.of(log)).await?;
        self.follow_logs(&self.moved_logs, |log| covered.get(&log).copied().unwrap_or(0)).await
    }

    async fn follow_logs(
        &self,
        logs: &Mutex<BTreeMap<LogId, u64>>,
        through: impl Fn(LogId) -> u64,
    ) -> Result<(), CleanError> {
        let all: Vec<(LogId, u64)> = logs.lock().iter().map(|(log, next)| (*log, *next)).collect();
        for (log, mut next) in all {
            let through = through(log);
            while next <= through {
                let page = self.stripe.survey(log, next).await?;
                let seen = page.segments.into_iter().filter(|(segment, _)| segment.seq <= through).collect();
                self.table.saw(seen).await;
                next = page.next_seq.unwrap_or(through + 1).min(through + 1);
            }
            if let Some(known) = logs.lock().get_mut(&log) {
                *known = next.max(*known);
            }
        }
        Ok(())
    }

    /// The share of a session's client, which writes `log`, of what is free.
    pub(crate) async fn share(&self, session: u64, log: LogId, claim: &SpaceClaim) -> Option<SpaceShare> {
        self.space.share(session, log, claim).await
    }

    /// A session has ended, and the managers have applied all that its client wrote.
    pub async fn leave(&self, session: u64) {
        self.space.leave(session).await;
        self.checkpoint_wanted.store(true, SeqCst);
    }

    /// Compares the stores soon: one of them lacks fragments, though it was never away.
    pub(crate) fn compare_stores(&self) {
        self.compare_wanted.store(true, SeqCst);
    }

    /// True if the stores are to be compared, though none has come back.
    pub(crate) fn will_compare(&self) -> bool {
        self.compare_wanted.load(SeqCst)
    }

    /// Looks for space soon: a member's operation waits for some.
    pub(crate) fn want_space(&self) {
        self.space_wanted.notify_one();
    }

    /// Number of rounds of looking for space that have ended.
    pub(crate) fn space_round(&self) -> u64 {
        self.space.round()
    }

    /// Tells the client how much room the stores have left. `None` if no store answers.
    async fn report_room(&self) -> Option<SpaceShare> {
        let claim = self.client.space_claim();
        let share = self.share(OWN_SESSION, CLIENT_LOG, &claim).await;
        if let Some(share) = share {
            self.client.take_share(&claim, &share);
            // Others need not wait for the next round until they get what it gave up.
            self.space.note(OWN_SESSION, &self.client.space_claim()).await;
        }
        share
    }

    async fn report_used(&self) {
        let share = self.report_room().await;
        self.end_client_round(share);
    }

    /// Ends a round of looking for space for this machine's client, unless a manager was on its
    /// way: then it is not known how much lives.
    fn end_client_round(&self, share: Option<SpaceShare>) {
        if share.is_none_or(|share| share.live.is_some()) {
            self.client.end_space_round();
        }
    }

    /// One round: checkpoint, delete what is empty, clean if space is short.
    pub async fn tidy(&self, wanted: bool) -> Result<(), CleanError> {
        let mut restore = self.round.lock().await;
        // Wait only so that the checkpoint covers more. A log that waits for space must not keep
        // the round from making some.
        let _ = host::timeout(&*self.host.clock, SETTLE_TIME_MAX, self.client.settle()).await;
        self.checkpoint_and_delete().await?;
        let (mut is_first, mut short_count) = (true, 0);
        while let Some(room) = self.room().await {
            let goal = self.goal(&room);
            if room.free_bytes >= if is_first && !wanted { goal.low } else { goal.high } {
                break;
            }
            if !restore.knows_all() {
                self.know_all(&mut restore).await?;
                self.checkpoint_and_delete().await?;
                continue;
            }
            is_first = false;
            let before = self.done().segment_count;
            let cleaned = self.clean_some(0).await?;
            if cleaned == Cleaned::default() {
                break;
            }
            self.checkpoint_and_delete().await?;
            short_count += u64::from(cleaned.is_cut_short);
            let goes_on = cleaned.is_cut_short && cleaned.moved_bytes > 0 && short_count < CUT_SHORT_MAX;
            if self.done().segment_count >= before && !goes_on {
                break;
            }
        }
        self.end_loan().await;
        Ok(())
    }

    /// Cleans the best victims, and deletes the segments that became empty, however much space is
    /// free. It lists all stores first.
    pub async fn clean(&self) -> Result<Cleaned, CleanError> {
        let mut restore = self.round.lock().await;
        restore.begin_anew();
        self.know_all(&mut restore).await?;
        let _ = host::timeout(&*self.host.clock, SETTLE_TIME_MAX, self.client.settle()).await;
        self.checkpoint_and_delete().await?;
        let cleaned = self.clean_some(0).await?;
        self.checkpoint_and_delete().await?;
        self.end_loan().await;
        Ok(cleaned)
    }

    /// Verifies all segments, like [`Stripe::scrub`]. It looks at suspect segments again after
    /// deleting free segments, and while no deletion runs: right after a crash, some stores still
    /// list segments that were deleted. The table may not know these, so it is told.
    pub async fn scrub(
        &self,
        repair: bool,
        progress: impl Fn(ScrubProgress) + Send + Sync,
    ) -> Result<ScrubReport, CleanError> {
        let first = self.stripe.scrub(false, progress).await?;
        let suspects = first.suspects();
        if suspects.is_empty() {
            return Ok(first);
        }
        {
            let _one_at_a_time = self.round.lock().await;
            let mut listed = self.stripe.segments().await?;
            let seen = suspects.iter().filter_map(|segment| listed.remove_entry(segment)).collect();
            self.table.saw(seen).await;
            self.checkpoint_and_delete().await?;
        }
        let mut again = ScrubReport::default();
        for some in suspects.chunks(SCRUBBED_AT_ONCE) {
            let _one_at_a_time = self.round.lock().await;
            self.stripe.scrub_some(some, repair, &mut again).await;
        }
        Ok(first.looked_again(again))
    }

    /// Ends the cleaner's loan, after a checkpoint.
    async fn end_loan(&self) {
        let share = self.report_room().await;
        if share.is_some() {
            self.client.give_back();
        }
        self.end_client_round(share);
    }

    async fn room(&self) -> Option<Room> {
        self.space.room().await
    }

    /// True if too little is free, and cleaning could change that.
    async fn is_short(&self) -> bool {
        self.room().await.is_some_and(|room| room.free_bytes < self.goal(&room).low)
    }

    /// The goal for the free space of each store.
    fn goal(&self, room: &Room) -> FreeGoal {
        let (k, m) = self.stripe.redundancy();
        let live = self.done().live_bytes / u64::from(k) * u64::from(k + m) / u64::from(self.config.store_count.max(1));
        FreeGoal::new(room.capacity_bytes, live, self.client.reserve_bytes())
    }

    async fn checkpoint_and_delete(&self) -> Result<(), CleanError> {
        let number = self.space.checkpoint_begins().await;
        let turns: Vec<u64> = self.managers.iter().map(|manager| manager.turn()).collect();
        let written_logs = self.written_logs();
        let mut covered: BTreeMap<LogId, u64> = BTreeMap::new();
        let mut first_manager = true;
        for manager in &self.managers {
            let state = manager.checkpoint().await?;
            let own: BTreeMap<LogId, u64> = state.covered.into_iter().collect();
            for log in &written_logs {
                let through = own.get(log).copied().unwrap_or(0);
                let least = covered.entry(*log).or_insert(u64::MAX);
                *least = if first_manager { through } else { through.min(*least) };
            }
            covered.extend(own.into_iter().filter(|(log, _)| is_manager_log(*log)));
            first_manager = false;
        }
        self.space.checkpoint_ended(number, covered.clone()).await;
        self.follow_members(&covered).await?;
        self.table.follow().await?;
        // What a manager says at one place is no reason to delete what it counts at another.
        if !self.managers.iter().map(|manager| manager.turn()).eq(turns) {
            return Err(ManagerError::Away.into());
        }
        let mut count = 0;
        for (log, through) in covered {
            loop {
                let empty = self.table.look(|table| table.empty_through(log, through, DELETED_AT_ONCE));
                if empty.is_empty() {
                    break;
                }
                count += empty.len() as u64;
                tracing::debug!(?empty, "segments deleted: nothing in them lives");
                self.stripe.delete(empty.clone()).await;
                self.table.deleted(empty).await;
            }
        }
        let mut done = self.done.lock();
        done.checkpoint_count += 1;
        done.deleted_count += count;
        Ok(())
    }

    /// Has the stores remember that they have everything up to now, so that one that is set back to
    /// an older copy is known. If that fails, an older copy may pass for a good one: as good as
    /// before.
    pub(crate) async fn mark(&self) {
        if self.are_whole() != Some(false)
            && let Err(error) = self.stripe.mark().await
        {
            tracing::info!(%error, "the stores did not take a mark, by which older copies of them are known");
        }
    }

    /// One step of merging small and half-empty segments when idle. False when there is no more to
    /// gain.
    async fn merge(&self) -> Result<bool, CleanError> {
        let restore = self.round.lock().await;
        if !restore.knows_all() {
            return Ok(true);
        }
        self.checkpoint_and_delete().await?;
        let before = self.stored_bytes();
        let cleaned = self.clean_some(IDLE_GAIN_PERCENT).await?;
        if cleaned.segment_count > 0 {
            self.checkpoint_and_delete().await?;
        }
        self.end_loan().await;
        if cleaned.segment_count < 2 {
            return Ok(false);
        }
        // Merging writes index segments, which are small themselves. It must not go on because of
        // its own waste.
        let freed = before.saturating_sub(self.stored_bytes());
        Ok(freed > cleaned.moved_bytes * IDLE_GAIN_PERCENT / 100 + IDLE_GAIN_BYTES)
    }

    /// Bytes that all segments take on all stores.
    fn stored_bytes(&self) -> u64 {
        self.table.look(|table| table.totals().stored_bytes)
    }

    /// Cleans the best victims, among segments that gain at least `gain_percent` of their size.
    async fn clean_some(&self, gain_percent: u64) -> Result<Cleaned, CleanError> {
        let candidates: Vec<SegmentUse> = self.table.look(|table| table.candidates(gain_percent).collect());
        let want = u64::from(self.stripe.payload_len_max()) * u64::from(GAIN_SEGMENTS);
        let mut victims = choose(candidates.into_iter(), want);
        victims.truncate(VICTIMS_MAX);
        // The copies take room before the victims are deleted.
        let mut loan = if self.report_room().await.is_some() { self.client.lend() } else { Loan::default() };
        let take = |loan: &mut Loan, victim: &SegmentId| {
            let live_bytes = self.table.look(|table| table.live_bytes(*victim));
            loan.take_segment(live_bytes, |bytes| self.stripe.share_of(bytes))
        };
        let mut planned = loan.clone();
        victims.retain(|victim| take(&mut planned, victim));
        let (index, data): (Vec<_>, Vec<_>) = victims.into_iter().partition(|s| is_manager_log(s.log));
        let live_bytes = |segment| self.table.look(|table| table.live_bytes(segment));
        let data: Vec<LiveVictim> =
            data.into_iter().map(|segment| LiveVictim { segment, live_bytes: live_bytes(segment) }).collect();
        index.iter().for_each(|victim| {
            take(&mut loan, victim);
        });
        for manager in &self.managers {
            manager.evacuate(index.clone()).await?;
        }
        let mut report = self.cleaner.clean(&data, &mut loan).await?;
        report.segment_count += index.len() as u64;
        let mut done = self.done.lock();
        done.cleaned_count += report.segment_count;
        done.moved_bytes += report.moved_bytes;
        Ok(report)
    }
}

/// Up to where all managers have applied clients' logs.
struct AppliedByAll(Vec<Progress>);

impl AppliedByAll {
    async fn ask(
        managers: &[Arc<Seat>],
        progress: impl Fn(&Seat) -> Answer<Progress, ManagerError>,
    ) -> Result<AppliedByAll, ManagerError> {
        let asked = managers.iter().map(|manager| progress(manager).into_future()).collect();
        Ok(AppliedByAll(join_all(asked).await.into_iter().collect::<Result<_, _>>()?))
    }

    /// The seq up to which all managers have applied a log.
    fn of(&self, log: LogId) -> u64 {
        self.0.iter().map(|progress| progress.of(log)).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StorePlace;
    use crate::machine::{CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, create};
    use host::Disk;
    use host::sim::{Sim, SimDisk};
    use types::FileId;
    use vfs::fs::{Cred, FileSystem, OpenFlags};

    const STORE_BYTES: u64 = 256 << 20;
    const STORES: usize = 3;
    const FILES: u64 = 40;
    const RUN: Run = Run {
        cache_bytes: 16 << 20,
        root_mode: 0o755,
        root_uid: 0,
        root_gid: 0,
        index_range_len: INDEX_RANGE_LEN,
        manager_lengths: Lengths::LARGEST,
        accepts_loss: false,
        claim: crate::Claim::NONE,
    };

    async fn start(sim: &Sim, disks: &[SimDisk], is_new: bool) -> CoreMachine {
        let on = sim.machine("one");
        let places: Vec<StorePlace> = disks[..STORES].iter().map(|disk| disk.mount(&on).into()).collect();
        let consensus: Arc<dyn Disk> = disks[STORES].mount(&on);
        if is_new {
            let store_capacity_bytes = Some(STORE_BYTES);
            let how = Create { parity: 1, block_size: 64 * 1024, manager_count: 1, store_capacity_bytes };
            create(&on.host(), &places, &consensus, how).await.expect("create");
        }
        CoreMachine::start(on.host(), &places, &consensus, RUN).await.expect("start")
    }

    /// Removals go by this. While a restore was at work, it was not known that anything was
    /// lacking.
    #[test]
    fn regression_stores_are_not_whole_at_any_moment_of_a_restore() {
        let sim = Sim::new(5);
        let disks: Vec<SimDisk> = (0..=STORES).map(|_| SimDisk::new(&sim, 2 * STORE_BYTES)).collect();
        let machine = sim.block_on(async {
            let machine = start(&sim, &disks, true).await;
            let write = OpenFlags { read: true, write: true, ..OpenFlags::default() };
            for number in 0..FILES {
                let (client, name) = (&machine.client, number.to_string().into_bytes());
                let made = client.create(&Cred::ROOT, FileId::ROOT, &name, 0o644, 0, write).await;
                let (entry, handle) = made.expect("create");
                client.write(&Cred::ROOT, entry.attr.id, handle, 0, &name.repeat(100_000)).await.expect("write");
                client.fsync(entry.attr.id, handle, false).await.expect("fsync");
                client.release(entry.attr.id, handle, None).await.expect("release");
            }
            machine.stop().await.expect("stop");
            disks[1].wipe();
            start(&sim, &disks, false).await
        });
        let maintenance = &machine.maintenance;
        let (mut at_work, mut beside) = (0, 0);
        while maintenance.are_whole() != Some(true) {
            sim.run_for(Duration::from_micros(500));
            if maintenance.done().redundancy.lacking_count.is_some_and(|count| count > 0) {
                assert_eq!(maintenance.are_whole(), Some(false));
                let is_at_work = maintenance.round.try_lock().is_err();
                (at_work, beside) = (at_work + u64::from(is_at_work), beside + u64::from(!is_at_work));
            }
        }
        assert!(at_work > 10, "restoring is not seen at work: {at_work}, {beside}");
    }
}
