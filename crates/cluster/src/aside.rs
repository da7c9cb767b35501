//! Where a node keeps aside what its sessions that are over had not synced.

use client::unsynced::Unsynced;
use std::sync::Arc;
use stripe::Stripe;

/// Keeps aside what would be lost with a session. Its methods do not wait.
pub trait Aside: Send + Sync + 'static {
    /// A session is over, which had changed this and did not know it to be durable.
    fn keep(&self, unsynced: Unsynced);
    /// The node's log was opened again. Of the sessions that are over, it has all segments up to
    /// `through`, and none after it. What counts after all need not be kept. `stripe` can read
    /// bytes that are only in the log.
    fn settle(&self, through: u64, stripe: Arc<Stripe>);
}
