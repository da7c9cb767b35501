//! The free room on the stores, divided among the clients of all nodes.
//!
//! Each client says what it may still take, then this looks at the stores, then the client gets its
//! share. One client at a time, so that each look comes after the reports of all clients (see
//! [`policy::shares`]).

use crate::config::FsConfig;
use crate::room::{Room, admitted_bytes, reserves};
use crate::table::Table;
use host::Host;
use manager::api::ManagerError;
use parking_lot::Mutex;
use policy::shares::Shares;
use policy::space::{LiveShare, SpaceClaim, SpaceShare};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use stripe::Stripe;
use types::LogId;

/// The session of the first node's own client. It never ends.
pub(crate) const OWN_SESSION: u64 = 0;
/// How long a round of looking for space waits for reports of all sessions: longer than the time
/// between two renewals.
const REPORT_TIME_MAX: Duration = Duration::from_secs(4);
/// Time between looks at whether all sessions have reported.
const REPORT_PAUSE: Duration = Duration::from_millis(100);
/// A client's share is ample from here on, and something is left for the next client: more than
/// what a client writes between two renewals of its lease.
const AMPLE_BYTES: u64 = 1 << 30;

/// Divides the free room.
pub(crate) struct SpaceBook {
    host: Host,
    config: FsConfig,
    stripe: Arc<Stripe>,
    table: Arc<Table>,
    shares: tokio::sync::Mutex<Both>,
    /// For each client's log: the seq that all managers' checkpoints cover.
    covered: Mutex<BTreeMap<LogId, u64>>,
    /// When each member's session last reported.
    reported: Mutex<BTreeMap<u64, Duration>>,
    round: AtomicU64,
    /// A client got no whole share in this round.
    is_blind: AtomicBool,
}

/// A look for a client's share. Until it has found all of it, the round is blind.
struct Looking<'a> {
    book: &'a SpaceBook,
    has_found_all: bool,
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        if !self.has_found_all {
            self.book.is_blind.store(true, SeqCst);
        }
    }
}

/// What is divided.
struct Both {
    /// Free bytes of the fullest store, without the reserves that all clients have in common.
    store: Shares,
    /// Payload bytes that may still become live.
    live: Shares,
}

impl SpaceBook {
    pub(crate) fn new(host: Host, config: FsConfig, stripe: Arc<Stripe>, table: Arc<Table>) -> SpaceBook {
        SpaceBook {
            host,
            config,
            stripe,
            table,
            shares: tokio::sync::Mutex::new(Both { store: Shares::new(AMPLE_BYTES), live: Shares::new(AMPLE_BYTES) }),
            covered: Mutex::default(),
            reported: Mutex::default(),
            round: AtomicU64::new(0),
            is_blind: AtomicBool::new(false),
        }
    }

    /// The room on the stores; `None` if no store answers.
    pub(crate) async fn room(&self) -> Option<Room> {
        Room::of(&self.stripe.status().await, self.stripe.redundancy().1)
    }

    /// A session begins. Its client has nothing yet.
    pub(crate) async fn join(&self, session: u64) {
        let mut shares = self.shares.lock().await;
        shares.store.report(session, 0);
        shares.live.report(session, 0);
    }

    /// The share of a session's client, which writes `log`. The claim is noted even if no store
    /// answers, which gives `None`. Also `None` if the session has ended.
    pub(crate) async fn share(&self, session: u64, log: LogId, claim: &SpaceClaim) -> Option<SpaceShare> {
        let mut shares = self.shares.lock().await;
        if !shares.store.knows(session) {
            return None;
        }
        shares.store.report(session, claim.store_bytes);
        shares.live.report(session, claim.live_bytes);
        if session != OWN_SESSION {
            self.reported.lock().insert(session, self.host.clock.now());
        }
        let covered_seq = self.covered.lock().get(&log).copied().unwrap_or(0);
        // The caller may stop waiting.
        let mut looking = Looking { book: self, has_found_all: false };
        let room = self.room().await?;
        tracing::debug!(session, ?claim, ?room);
        let common_bytes = reserves(&self.config, &self.stripe).common_bytes().min(room.free_bytes);
        let free_bytes = common_bytes + shares.store.offer(session, room.free_bytes - common_bytes);
        let limit_bytes = admitted_bytes(&self.config, &self.stripe, room.missing_bytes);
        let live = match self.table.follow().await {
            Ok(()) => {
                let counted_bytes = self.table.look(|table| table.totals().live_bytes);
                let left = limit_bytes.saturating_sub(counted_bytes);
                Some(LiveShare { counted_bytes, others_bytes: left - shares.live.offer(session, left) })
            }
            // A manager moves. The next look counts again.
            Err(ManagerError::Away) => None,
            Err(e) => {
                tracing::error!("count live bytes: {e}");
                None
            }
        };
        looking.has_found_all = live.is_some();
        Some(SpaceShare { covered_seq, free_bytes, limit_bytes, live })
    }

    /// A client says what it may still take, because it has taken over a smaller share.
    pub(crate) async fn note(&self, session: u64, claim: &SpaceClaim) {
        let mut shares = self.shares.lock().await;
        if shares.store.knows(session) {
            shares.store.report(session, claim.store_bytes);
            shares.live.report(session, claim.live_bytes);
        }
    }

    /// A session has ended, and managers have applied all that its client wrote.
    pub(crate) async fn leave(&self, session: u64) {
        let mut shares = self.shares.lock().await;
        shares.store.leave(session);
        shares.live.leave(session);
        self.reported.lock().remove(&session);
    }

    /// A checkpoint of all managers begins. Returns its number.
    pub(crate) async fn checkpoint_begins(&self) -> u64 {
        let mut shares = self.shares.lock().await;
        shares.live.checkpoint_begins();
        shares.store.checkpoint_begins()
    }

    /// The checkpoint with this number is durable, and covers clients' logs up to here.
    pub(crate) async fn checkpoint_ended(&self, number: u64, covered: BTreeMap<LogId, u64>) {
        let mut shares = self.shares.lock().await;
        *self.covered.lock() = covered;
        shares.live.checkpoint_ended(number);
        shares.store.checkpoint_ended(number);
    }

    /// A round of looking for space begins.
    pub(crate) fn begin_round(&self) {
        self.is_blind.store(false, SeqCst);
    }

    /// Waits until all members' sessions have reported, so that each has given up what is more than
    /// its share. Does not wait long for one that is about to be declared dead.
    pub(crate) async fn await_reports(&self) {
        let begin = self.host.clock.now();
        let is_missing = || self.reported.lock().values().any(|at| *at <= begin);
        while is_missing() && self.host.clock.now() < begin + REPORT_TIME_MAX {
            self.host.clock.sleep(REPORT_PAUSE).await;
        }
    }

    /// A round of looking for space has ended. It counts only if each client could learn that it
    /// has more than its share.
    pub(crate) fn end_round(&self) {
        if !self.is_blind.load(SeqCst) {
            self.round.fetch_add(1, SeqCst);
        }
    }

    /// Number of rounds of looking for space that have ended.
    pub(crate) fn round(&self) -> u64 {
        self.round.load(SeqCst)
    }
}
