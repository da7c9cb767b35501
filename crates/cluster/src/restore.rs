//! Compares the stores, and restores fragments that a store has lost or never had: it was replaced,
//! came back with older contents, or was away while others took its part.
//!
//! Until that is done, the next store that fails may take data with it. So maintenance compares all
//! stores once all of them are in service: after a start, and after one of them came back. It puts
//! missing fragments there again, some segments at a time. It compares only which fragments there
//! are; a scrub tells whether they are good.
//!
//! After a start, the same pages also tell which segments there are. That does not wait for stores
//! that are away.

use crate::table::Table;
use host::{Host, Random};
use policy::pace::Pace;
use policy::stride::Stride;
use std::sync::Arc;
use std::time::Duration;
use stripe::{Stripe, StripeError};
use types::{LogId, SegmentId};

/// Most segments that are restored at once.
const AT_ONCE_MAX: usize = 16;
/// Most bytes that segments may lack which are restored at once, unless one lacks more: each counts
/// as the longest one. In memory each byte takes the length of its stripe, twice.
const BYTES_AT_ONCE: u64 = 8 << 20;
/// Time after which segments that could not be restored are tried again.
const TRY_AGAIN: Duration = Duration::from_secs(300);

/// Most lost segments that are counted.
pub const LOST_COUNT_MAX: usize = 256;

/// Progress of restoring redundancy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Number of returns of stores at their last comparison. What follows is outdated if there were
    /// more.
    pub compared: Option<u64>,
    /// Segments that lack fragments, as far as known; `None` before all stores were compared.
    pub lacking_count: Option<u64>,
    /// Segments with live data that cannot be read from what the stores had at their last
    /// comparison; at most [`LOST_COUNT_MAX`].
    pub lost_count: u64,
    /// Bytes of the fragments that segments lack.
    pub lacking_bytes: u64,
    /// How long restoring them takes at the pace of the last seconds, if that is known.
    pub time_left: Option<Duration>,
    /// Segments that were restored since the start.
    pub restored_count: u64,
    /// Bytes of the fragments that were restored since the start.
    pub restored_bytes: u64,
}

/// A comparison that is under way.
struct Comparison {
    /// Number of returns of stores when it began.
    returns: u64,
    all_answered: bool,
    /// Logs that are still to be compared, the last one first, and the position in that one.
    logs: Vec<LogId>,
    from_seq: u64,
    lacking: Vec<(SegmentId, u64)>,
    /// Up to [`LOST_COUNT_MAX`] segments that could not be read.
    unreadable: Vec<SegmentId>,
}

impl Restored {
    /// The same, if it is what the stores of this stripe have now.
    pub fn current(self, stripe: &Stripe) -> Option<Restored> {
        let is_current = self.compared == Some(stripe.return_count()) && stripe.is_whole();
        Some(self).filter(|_| is_current)
    }
}

/// How many of these segments may be restored at once, of at most `count`.
fn at_once(segments: &[(SegmentId, u64)], count: usize) -> usize {
    let longest = segments.iter().map(|(_, bytes)| *bytes).max().unwrap_or_default().max(1);
    usize::try_from(BYTES_AT_ONCE / longest).unwrap_or(count).clamp(1, count)
}

/// Brings segments into a random order. Logs differ in how long their segments are, so in any other
/// order the pace of the first ones would not tell how long the rest takes.
pub(crate) fn shuffle(segments: &mut [(SegmentId, u64)], random: &dyn Random) {
    for last in (1..segments.len()).rev() {
        segments.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
    }
}

/// Compares the stores, and restores redundancy.
pub(crate) struct Restore {
    host: Host,
    stripe: Arc<Stripe>,
    /// How long one step may take, before other maintenance gets its turn. A step ends with the
    /// page or the segments that are under way.
    step_time: Duration,
    comparison: Option<Comparison>,
    /// All logs were listed since the start, at a quorum of stores.
    knows_all: bool,
    /// Number of returns of stores at their last comparison.
    compared: Option<u64>,
    /// The same for the comparison after which the stores were told that they have everything.
    cleared: Option<u64>,
    lost_count: u64,
    /// Segments that lack fragments, and the bytes of these.
    todo: Vec<(SegmentId, u64)>,
    failed: Vec<(SegmentId, u64)>,
    try_again: Duration,
    restored_count: u64,
    restored_bytes: u64,
    /// The pace of restoring.
    pace: Pace,
    /// Until when it rests, if programs use the stores.
    rests_until: Option<Duration>,
    /// How many segments to restore at once.
    stride: Stride,
}

impl Restore {
    pub(crate) fn new(host: Host, stripe: Arc<Stripe>, step_time: Duration) -> Restore {
        Restore {
            host,
            step_time,
            stripe,
            comparison: None,
            knows_all: false,
            compared: None,
            cleared: None,
            lost_count: 0,
            todo: Vec::new(),
            failed: Vec::new(),
            try_again: Duration::ZERO,
            restored_count: 0,
            restored_bytes: 0,
            pace: Pace::default(),
            rests_until: None,
            stride: Stride::new(AT_ONCE_MAX),
        }
    }

    pub(crate) fn progress(&self) -> Restored {
        let lacking = self.todo.iter().chain(&self.failed);
        let lacking_bytes = lacking.clone().map(|(_, bytes)| bytes).sum();
        Restored {
            compared: self.compared,
            lacking_count: self.compared.map(|_| lacking.count() as u64),
            lost_count: self.lost_count,
            lacking_bytes,
            time_left: self.pace.time_for(lacking_bytes).filter(|_| !self.todo.is_empty()),
            restored_count: self.restored_count,
            restored_bytes: self.restored_bytes,
        }
    }

    /// True if the last comparison came after all returns of stores, what it found is restored, and
    /// the stores know that.
    pub(crate) fn has_compared_all(&self) -> bool {
        self.has_restored_all() && self.cleared == self.compared
    }

    fn has_restored_all(&self) -> bool {
        let is_current = self.compared == Some(self.stripe.return_count());
        is_current && self.todo.is_empty() && self.failed.is_empty()
    }

    /// Has the stores say no more that they have lost something, once they have everything.
    pub(crate) async fn clear_losses(&mut self) -> Result<(), StripeError> {
        if let Some(returns) = self.compared
            && self.has_restored_all()
            && self.stripe.is_whole()
            && self.cleared != self.compared
        {
            self.stripe.clear_losses(returns).await?;
            self.cleared = self.compared;
        }
        Ok(())
    }

    /// True if a comparison is due or under way.
    pub(crate) fn is_due(&self) -> bool {
        let is_current = self.compared == Some(self.stripe.return_count());
        self.comparison.is_some() || !self.knows_all || (self.stripe.is_whole() && !is_current)
    }

    /// True once the table has every segment that there was at the start.
    pub(crate) fn knows_all(&self) -> bool {
        self.knows_all
    }

    /// One step of comparing the stores, of all `logs`; it also tells the table which segments
    /// there are. Returns the number of segments that lack fragments, once all stores have been
    /// compared. No segment may be deleted during the step.
    pub(crate) async fn compare_some(
        &mut self,
        table: &Table,
        logs: impl FnOnce() -> Vec<LogId>,
    ) -> Result<Option<usize>, StripeError> {
        let end = self.host.clock.now() + self.step_time;
        let begin = || Comparison {
            returns: self.stripe.return_count(),
            all_answered: true,
            logs: logs(),
            from_seq: 0,
            lacking: Vec::new(),
            unreadable: Vec::new(),
        };
        let mut comparison = self.comparison.take().unwrap_or_else(begin);
        while let Some(&log) = comparison.logs.last() {
            if self.host.clock.now() >= end {
                self.comparison = Some(comparison);
                return Ok(None);
            }
            let page = match self.stripe.survey(log, comparison.from_seq).await {
                Ok(page) => page,
                Err(error) => {
                    self.comparison = Some(comparison);
                    return Err(error);
                }
            };
            comparison.all_answered &= page.all_answered;
            if !comparison.all_answered && self.knows_all {
                // A store has left service: begin anew when all are back.
                return Ok(None);
            }
            comparison.lacking.extend(page.lacking);
            let live = page.unreadable.into_iter().filter(|segment| table.look(|table| table.live_bytes(*segment) > 0));
            comparison.unreadable.extend(live.take(LOST_COUNT_MAX.saturating_sub(comparison.unreadable.len())));
            table.saw(page.segments).await;
            comparison.from_seq = page.next_seq.unwrap_or(0);
            if page.next_seq.is_none() {
                comparison.logs.pop();
            }
        }
        self.knows_all = true;
        if !comparison.all_answered {
            return Ok(None);
        }
        self.lost_count = self.count_lost(comparison.unreadable, table).await;
        (self.compared, self.cleared) = (Some(comparison.returns), None);
        self.todo = comparison.lacking;
        shuffle(&mut self.todo, &*self.host.random);
        self.failed.clear();
        self.pace.rest();
        self.pace.note(self.host.clock.now(), self.restored_bytes);
        Ok(Some(self.todo.len()))
    }

    /// Number of segments with live data that are lost, of the suspects and of those that no store
    /// has listed.
    async fn count_lost(&self, mut suspects: Vec<SegmentId>, table: &Table) -> u64 {
        let room = LOST_COUNT_MAX.saturating_sub(suspects.len());
        suspects.extend(table.look(|table| table.unseen().take(room).collect::<Vec<_>>()));
        let lost = host::join_all(suspects.iter().map(|segment| self.stripe.is_lost(*segment)).collect()).await;
        // Some were cleaned and deleted meanwhile.
        let live = |segment| table.look(|table| table.live_bytes(segment) > 0);
        let count = suspects.into_iter().zip(lost).filter(|(segment, is_lost)| *is_lost && live(*segment)).count();
        if count > 0 {
            tracing::error!(segments = count, "segments in use are lost: `starling fsck` names the files");
        }
        count as u64
    }

    /// Forgets the comparison, so that the next one lists everything again.
    pub(crate) fn begin_anew(&mut self) {
        self.comparison = None;
        self.knows_all = false;
    }

    /// Forgets what the last comparison found, so that there is another one.
    pub(crate) fn compare_again(&mut self) {
        self.comparison = None;
        (self.compared, self.cleared) = (None, None);
    }

    /// Forgets segments that were deleted since they were seen.
    pub(crate) fn keep(&mut self, is_there: impl Fn(SegmentId) -> bool) {
        self.todo.retain(|(segment, _)| is_there(*segment));
    }

    /// One step of restoring segments. No segment may be deleted during the step. It ends when the
    /// stores say that it is time to rest, and does nothing before that is over.
    pub(crate) async fn step(&mut self, table: &Table) {
        let now = || self.host.clock.now();
        let end = now() + self.step_time;
        if self.todo.is_empty() {
            self.todo = std::mem::take(&mut self.failed);
        }
        while now() < end && self.stripe.is_whole() && !self.todo.is_empty() {
            match self.rests_until.take() {
                Some(until) if now() < until => {
                    self.rests_until = Some(until);
                    return;
                }
                // A segment after each rest, so that it always goes on.
                Some(_) => self.stride.rested(),
                None => {
                    let rest = self.stripe.rest().await;
                    if !rest.is_zero() {
                        self.rests_until = Some(now() + rest);
                        return;
                    }
                }
            }
            let last = |count: usize| self.todo.len().saturating_sub(count);
            let lanes = at_once(&self.todo[last(self.stride.count())..], self.stride.count());
            let mut some = self.todo.split_off(last(self.stride.turn(lanes)));
            // Others were deleted since they were seen.
            some.retain(|(segment, _)| table.look(|table| table.is_stored(*segment)));
            let begun = now();
            let restores = some.iter().map(|(segment, _)| self.stripe.restore(*segment)).collect();
            let lanes = at_once(&some, lanes);
            let restored = host::join_at_most(lanes, restores).await;
            self.stride.took(some.len(), lanes, now() - begun);
            for ((segment, bytes), is_restored) in some.into_iter().zip(restored) {
                if is_restored {
                    self.restored_count += 1;
                    self.restored_bytes += bytes;
                } else {
                    self.failed.push((segment, bytes));
                    self.try_again = now() + TRY_AGAIN;
                }
            }
            self.pace.note(now(), self.restored_bytes);
        }
    }

    /// How long until the next step of restoring; `None` if there is nothing to restore now.
    pub(crate) fn next_step(&self) -> Option<Duration> {
        let left = |until: Duration| until.saturating_sub(self.host.clock.now());
        (self.is_busy() && !self.is_due() && self.stripe.is_whole())
            .then(|| self.rests_until.map_or(Duration::ZERO, left))
    }

    /// True if segments are left to restore.
    pub(crate) fn is_busy(&self) -> bool {
        !self.todo.is_empty() || (!self.failed.is_empty() && self.host.clock.now() >= self.try_again)
    }
}
