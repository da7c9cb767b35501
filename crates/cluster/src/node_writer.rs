//! A node that can be asked to copy blocks into its client's log (docs/core.md#cleaning).

use crate::cleaner::Copier;
use crate::seat::ServingNode;
use manager::admin_wire::{HostAnswer, HostRequest};
use manager::api::{BlockAt, ManagerError};
use std::sync::Arc;
use std::time::Duration;
use types::BoxFuture;

/// How long a node may take to copy a segment's worth of blocks. It writes nothing if reading them
/// takes half of this.
const COPY_TIME_MAX: Duration = Duration::from_secs(10);

/// A node with a session.
pub(crate) struct NodeWriter(pub Arc<ServingNode>);

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
