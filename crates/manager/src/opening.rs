//! Opens a manager at its newest durable checkpoint.

use crate::Lengths;
use crate::api::ManagerError;
use crate::newest::{ReadError, log_failed, newest_roots};
use crate::root::Root;
use crate::server::{Core, ManagerConfig, ManagerServer};
use crate::state::ManagerState;
use host::Host;
use std::sync::Arc;
use stripe::{LogWriter, Stripe};
use types::{BlockAddr, SegmentId};

impl ManagerServer {
    /// Recovers the newest checkpoint from the manager's own log, and opens the log's next epoch.
    /// If the log is empty, writes a first checkpoint. The clients' logs are not applied yet;
    /// [`crate::roll_forward::roll_forward`] does that.
    ///
    /// Segments of the own log with seq below `own_log_from_seq_hint` are ignored. 0 is always
    /// right: then the newest checkpoint is found from what the stores have.
    ///
    /// # Errors
    /// [`ManagerError::Stores`] if stores are missing; [`ManagerError::Log`] if the log should have
    /// a checkpoint and none can be read; [`ManagerError::BadRequest`] if the checkpoint belongs to
    /// another manager or has another block size.
    pub async fn open(
        host: Host,
        stripe: Arc<Stripe>,
        config: ManagerConfig,
        own_log_from_seq_hint: u64,
    ) -> Result<Arc<ManagerServer>, ManagerError> {
        let segment_len_max = config.lengths.segment_len_max.min(stripe.payload_len_max());
        let config = ManagerConfig { lengths: Lengths { segment_len_max, ..config.lengths }, ..config };
        let started = host.clock.now();
        let core = open_core(stripe, config, own_log_from_seq_hint).await?;
        let core = Arc::new(core);
        core.count_own_pages().await?;
        if core.state.lock().root.is_none() {
            core.checkpoint().await?;
        }
        let file_count = core.state.lock().file_count;
        let took = host.clock.now().saturating_sub(started);
        tracing::info!(manager = %core.config.id, file_count, ?took, "manager's checkpoint read");
        Ok(Arc::new(ManagerServer { core }))
    }
}

/// Opens a manager: restores its newest durable checkpoint, and opens its own log for writing.
async fn open_core(stripe: Arc<Stripe>, config: ManagerConfig, from_seq_hint: u64) -> Result<Core, ManagerError> {
    let log = config.log;
    let candidates = newest_roots(&stripe, log, from_seq_hint).await?;
    let from = candidates.first().map_or(from_seq_hint, |(segment, _)| segment.seq);
    let tail = match config.after_epoch {
        Some(epoch) => stripe.open_log_after(log, from, epoch).await,
        None => stripe.open_log(log, from).await,
    };
    let tail = tail.map_err(|e| log_failed(log, "open the manager's log", e))?;

    // A candidate counts if it is part of the opened log, or is before the part that was opened
    // (and durable by the rule above).
    let counts = |s: &SegmentId| s.seq < from || tail.segments.contains(s);
    let newest = candidates.into_iter().find(|(segment, _)| counts(segment));
    let untouched = tail.segments.first().map_or(tail.next_seq, |s| s.seq) == 1;
    if newest.is_none() && !untouched {
        tracing::error!(%log, next_seq = tail.next_seq, "the manager's log holds no checkpoint");
        return Err(ManagerError::Log);
    }

    let identity = config.identity();
    let rows_max = identity.rows_max;
    let root = match newest {
        None => None,
        Some((segment, addr)) => {
            let root = read_root(&stripe, addr, rows_max).await;
            let root = root.map_err(|e| log_failed(log, "read the newest checkpoint", e))?;
            if root.manager != config.id {
                return Err(ManagerError::BadRequest("the checkpoint is another manager's"));
            }
            if root.block_size != config.block_size {
                return Err(ManagerError::BadRequest("the file system was made with another block size"));
            }
            Some((root, segment, addr))
        }
    };
    let root_segment = root.as_ref().map(|(_, segment, _)| *segment);
    let mut state = ManagerState::new(identity, root.map(|(root, _, addr)| (root, addr)));
    // The next opening must not meet the lost segments again, so a root behind them is due.
    state.force_root = !tail.lost.is_empty();
    let root_seq = root_segment.map_or(0, |s| s.seq);
    let after = tail.segments.iter().copied().filter(|s| s.seq > root_seq);
    for segment in root_segment.into_iter().chain(after) {
        let info = stripe.info(segment).await.map_err(|e| log_failed(log, "read the manager's log", e))?;
        state.keep_own_segment(segment, info.geometry.payload_len);
    }
    let writer = LogWriter::new(stripe.clone(), tail);
    Ok(Core::new(config, stripe, writer, state))
}

/// Reads a root.
async fn read_root(stripe: &Stripe, addr: BlockAddr, rows_max: usize) -> Result<Root, ReadError> {
    let record = stripe.read(addr.segment, addr.offset..addr.offset + addr.len).await?;
    Ok(Root::decode(&record, rows_max)?)
}
