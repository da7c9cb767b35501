//! The first node's way to nodes that serve managers.

use crate::node::identity::{self, address_of};
use anyhow::Context;
use cluster::KnownNode;
use cluster::seat::HostWay;
use cluster::seats::HostWays;
use host::Host;
use link::{Address, ClientKeys, Message, NodeLink, OrderedLane, kinds};
use manager::api::ManagerError;
use std::path::Path;
use std::sync::Arc;
use types::BoxFuture;

/// Connects to nodes with the first node's keys.
pub struct LinkWays {
    host: Host,
    keys: ClientKeys,
    fingerprint: [u8; 32],
}

impl LinkWays {
    /// With the keys in the first node's data folder.
    pub fn new(host: Host, folder: &Path) -> anyhow::Result<Arc<LinkWays>> {
        let own = identity::of_joined(folder)?;
        let fingerprint = join::fingerprint_of(&own.certificate).context("the certificate of this node")?;
        Ok(Arc::new(LinkWays { host, keys: identity::client_keys(folder)?, fingerprint }))
    }
}

/// The connections to a node.
struct LinkWay(Arc<NodeLink>);

impl HostWays for LinkWays {
    fn reach(&self, at: &KnownNode) -> Arc<dyn HostWay> {
        // An address that cannot be read is one that cannot be reached.
        let nowhere = Address { host: at.address.clone(), port: 0, keys: None };
        let address = address_of(at, &self.keys).unwrap_or(nowhere);
        let (link, tried) = NodeLink::keep(&self.host, address, at.node.to_string(), None);
        drop(tried);
        Arc::new(LinkWay(link))
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

impl HostWay for LinkWay {
    fn ask(&self, request: Vec<u8>) -> BoxFuture<Result<Vec<u8>, ManagerError>> {
        let link = self.0.clone();
        Box::pin(async move {
            let lane = link.ordered();
            // A new connection takes a moment. The caller does not wait for ever.
            let connection = lane.next_connection(0).await;
            let asked = lane.ask_in(connection, kinds::HOST, Message::of_head(request)).await;
            asked.map(|answer| answer.head).map_err(|error| {
                tracing::debug!(%error, "a node that serves managers");
                ManagerError::Away
            })
        })
    }

    fn is_up(&self) -> bool {
        self.0.is_up()
    }

    fn lane(&self) -> Arc<dyn OrderedLane> {
        self.0.ordered()
    }
}
