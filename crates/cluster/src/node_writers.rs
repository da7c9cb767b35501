//! The nodes that can be asked to copy blocks into their clients' logs (docs/core.md#cleaning).

use crate::cleaner::{Copier, Writers};
use crate::members::Members;
use crate::seat::ServingNode;
use manager::admin_wire::{HostAnswer, HostRequest};
use manager::api::{BlockAt, ManagerError};
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::{BoxFuture, LogId};

/// How long a node may take to copy a segment's worth of blocks. It writes nothing if reading them
/// takes half of this.
const COPY_TIME_MAX: Duration = Duration::from_secs(10);

/// The nodes with a session.
pub(crate) struct NodeWriters(Weak<Members>);

/// One of them.
struct NodeWriter(Arc<ServingNode>);

impl NodeWriters {
    pub fn new(members: &Arc<Members>) -> Arc<NodeWriters> {
        Arc::new(NodeWriters(Arc::downgrade(members)))
    }
}

impl Writers for NodeWriters {
    fn writer(&self, log: LogId) -> Option<Arc<dyn Copier>> {
        let node = self.0.upgrade()?.writer_of(log)?;
        Some(Arc::new(NodeWriter(node)))
    }
}

impl Copier for NodeWriter {
    fn relocate(&self, runs: Vec<BlockAt>) -> BoxFuture<Result<(), ManagerError>> {
        let node = self.0.clone();
        Box::pin(async move {
            match node.ask_within(HostRequest::Relocate(runs), COPY_TIME_MAX).await? {
                HostAnswer::Done => Ok(()),
                _ => Err(ManagerError::Away),
            }
        })
    }
}
