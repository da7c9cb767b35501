//! The core's client: one log, caches, and the [`vfs::fs::FileSystem`] over managers and stripes
//! (docs/core.md#client).
//!
//! - [`directory`], [`inode`], [`cache`]: directories, files and log addresses in memory; pure, or
//!   nearly.
//! - `state`: all of this under one lock, and how operations are attempted on it.
//! - `tokens`: claims, pins and recalls of tokens; `touched`: the tokens that an attempt needs.
//! - `namespace`, `data`, `attributes`: the operations, as attempts.
//! - `core`: fetches what attempts miss, cuts segments, tells managers; `fetch`: bytes from the
//!   stores.
//! - [`unsynced`]: what a client that is over had not made durable.
//! - [`copies`]: copies of live blocks of segments that are to be emptied.
//! - `join`: joins the pieces of a reply; `filesystem`: the trait.

mod attributes;
pub mod cache;
pub mod copies;
mod core;
mod data;
pub mod directory;
mod fetch;
mod filesystem;
pub mod inode;
mod join;
mod namespace;
mod state;
mod tokens;
mod touched;
mod under_way;
pub mod unsynced;

pub use crate::core::{ClientConfig, IN_FLIGHT_BYTES_MAX, Managers, UNAPPLIED_CUTS_MAX};
pub use crate::tokens::Holdings;

use crate::core::Core;
use host::Host;
use manager::api::ManagerError;
use policy::space::{Loan, SpaceAccount, SpaceClaim, SpaceShare};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use stripe::{LogTail, Stripe, StripeError};
use types::{Answer, FileId, FsError, ManagerId};
use vfs::kernel::{Kernel, Recalled};
use vfs::locks::LockService;

/// A client of the core. Cheap to clone; all clones are one client.
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
}

/// Counts for `status`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientStatus {
    /// Inodes in memory.
    pub inode_count: u64,
    /// Changed bytes that are in no segment yet.
    pub dirty_bytes: u64,
    /// Bytes in segments that are not durable yet.
    pub in_flight_bytes: u64,
    /// Live bytes in the log, by the client's count, which is never less than the truth.
    pub used_bytes: u64,
    /// Bytes of live payload that admission allows.
    pub limit_bytes: u64,
    /// The data cache.
    pub cache: cache::CacheCounts,
    /// Number of inodes that the client asked managers for.
    pub inode_fetch_count: u64,
    /// Seq of the last cut.
    pub last_cut: u64,
    /// Messages sent to managers.
    pub message_count: u64,
    /// Why the log cannot be written, if so: then nothing can be changed.
    pub read_only: Option<StripeError>,
}

impl Client {
    /// Starts a client on its log, which was recovered up to `tail` and which the managers have
    /// applied completely. `space` is the free space until the first call of
    /// [`take_share`](Self::take_share).
    pub fn start(
        host: Host,
        config: ClientConfig,
        space: SpaceAccount,
        managers: Managers,
        stripe: Arc<Stripe>,
        tail: LogTail,
    ) -> Client {
        Client { core: Core::new(host, config, space, managers, stripe, tail) }
    }

    /// Makes sure that there is a root directory, and removes orphans. Returns true if it made the
    /// root, with these attributes.
    pub async fn prepare(&self, mode: u32, uid: u32, gid: u32) -> Result<bool, FsError> {
        let root =
            self.core.managers.of(FileId::ROOT).open(self.core.config.id, FileId::ROOT, manager::token::Mode::Read);
        match root.await {
            Ok(opened) => {
                // This has only looked, and has not kept the token.
                if !manager::planted::is(manager::planted::Bug::PrepareKeepsToken) {
                    let root = self.core.managers.of(FileId::ROOT);
                    root.release(self.core.config.id, FileId::ROOT, opened.grant.number);
                }
                let count = self.core.remove_orphans().await?;
                if count > 0 {
                    tracing::info!(count, "removed files that had lost their last name before the restart");
                }
                Ok(false)
            }
            Err(ManagerError::NotFound) => {
                self.core.make_root(mode, uid, gid);
                self.core.commit().await?;
                self.core.settle().await;
                // Its manager does not know who made it. So the client takes a token like others.
                if !manager::planted::is(manager::planted::Bug::RootIsNotRecorded) {
                    self.core.state.lock().inodes.remove(&FileId::ROOT);
                }
                Ok(true)
            }
            Err(e) => {
                tracing::error!("open the root directory: {e}");
                Err(FsError::Io)
            }
        }
    }

    /// Tells the client which kernel caches what it answers. Call it before the first request.
    pub fn set_kernel(&self, kernel: Arc<dyn Kernel>) {
        self.core.kernel.get_or_init(|| kernel);
    }

    /// Sets what decides about file locks: all clients of a file system share it. Call it before
    /// the first request.
    pub fn set_locks(&self, locks: Arc<dyn LockService>) {
        self.core.locks.get_or_init(|| locks);
    }

    /// The file that a name of a directory leads to; `None` if there is no such name. Asks for no
    /// token on that file, and checks no permission.
    pub fn find(&self, parent: FileId, name: &[u8]) -> Answer<Option<FileId>> {
        self.core.answer(self.core.try_find(parent, name), || {
            let name = name.to_vec();
            move |core| core.try_find(parent, &name)
        })
    }

    /// Removes files without a name that a dead client had open, and that no other client has open.
    /// Returns how many managers listed.
    pub async fn sweep_orphans(&self) -> Result<u64, FsError> {
        let mut count = 0;
        for manager in self.core.managers.each() {
            for file in manager.orphans().await.map_err(|_| FsError::Io)? {
                self.core.remove_orphan(file).await;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Ends the background tasks. Does not commit: see [`vfs::fs::FileSystem::sync`].
    pub fn stop(&self) {
        self.core.stop();
    }

    /// Ends the background tasks of a client that was declared dead, whatever the managers have not
    /// applied: whoever declared it dead rolls its log forward.
    pub fn abandon(&self) {
        self.core.abandon();
    }

    /// Has the kernel behind the mount forget everything that this client answered. For a client
    /// that was declared dead: nobody tells it of changes any more.
    pub async fn leave_kernel(&self) {
        let files = self.core.state.lock().inodes.keys().copied().collect();
        if let Some(kernel) = self.core.kernel.get() {
            kernel.forget(Recalled { files, names: true }).await;
        }
    }

    /// What the client holds of the files of those managers that have forgotten it: they are opened
    /// anew, for this term. Ask before these managers get any message of the client.
    pub fn holdings(&self, term: u64, of: impl Fn(ManagerId) -> bool) -> Holdings {
        self.core.holdings(term, of)
    }

    /// Waits until the managers have applied all cuts.
    pub async fn settle(&self) {
        self.core.settle().await;
    }

    /// True if others wait for a token that the client gives back when its changes are durable.
    pub fn is_waited_for(&self) -> bool {
        let state = self.core.state.lock();
        state.tokens.are_recalled() && (state.is_dirty() || self.core.log.in_flight().0 > 0)
    }

    /// Waits until an operation finds no free space.
    pub async fn space_wanted(&self) {
        self.core.space_wanted.notified().await;
    }

    /// A round of looking for space has ended: operations that wait for space try again.
    pub fn end_space_round(&self) {
        self.core.space_round.send_modify(|round| *round += 1);
    }

    /// What the client may still take, and has taken; see [`SpaceAccount::claim`].
    pub fn space_claim(&self) -> SpaceClaim {
        let state = self.core.state.lock();
        let committed = self.core.log.committed_seq().unwrap_or(0);
        state.space.claim(state.dirty_bytes, committed, |bytes| self.core.stripe.share_of(bytes))
    }

    /// Takes over a share of the free space, which was made after this
    /// [`space_claim`](Self::space_claim). Operations that wait for space try again.
    pub fn take_share(&self, claim: &SpaceClaim, share: &SpaceShare) {
        self.core.state.lock().space.take(claim, share);
        self.core.space_share.send_replace(());
    }

    /// Lends the cleaner room; see [`SpaceAccount::lend`].
    pub fn lend(&self) -> Loan {
        let state = &mut *self.core.state.lock();
        state.space.lend(state.dirty_bytes, |bytes| self.core.stripe.share_of(bytes))
    }

    /// Ends the cleaner's loan; see [`SpaceAccount::give_back`].
    pub fn give_back(&self) {
        self.core.state.lock().space.give_back();
    }

    /// Bytes that writers leave free on each store.
    pub fn reserve_bytes(&self) -> u64 {
        self.core.state.lock().space.reserve_bytes()
    }

    /// From now on reads do not change access times: a check must not change anything.
    pub fn leave_access_times(&self) {
        self.core.leaves_atime.store(true, Relaxed);
    }

    /// Counts for `status`.
    pub fn status(&self) -> ClientStatus {
        let state = self.core.state.lock();
        ClientStatus {
            inode_count: state.inodes.len() as u64,
            dirty_bytes: state.dirty_bytes,
            in_flight_bytes: self.core.log.in_flight().1,
            used_bytes: state.space.used_bytes(),
            limit_bytes: state.space.limit_bytes(),
            cache: self.core.cache.counts(),
            inode_fetch_count: self.core.inode_fetch_count.load(Relaxed),
            last_cut: state.last_cut,
            message_count: self.core.managers.message_count(),
            read_only: self.core.log.ended(),
        }
    }
}
