//! The end of the node that has the stores.

use crate::api::StorageError;
use crate::calls::{ServedStores, answer};
use crate::site::Site;
use crate::wire::{StoreAnswer, StoreRequest};
use bytes::Bytes;
use host::{Host, Tasks};
use link::{Message, NodeService, Peer, ServerKeys, Services, kinds};
use std::future::ready;
use std::sync::Arc;
use tokio::net::TcpListener;
use types::BoxFuture;
use types::codec::DecodeError;

/// Serves stores to other nodes.
pub struct StoreService(Arc<dyn ServedStores>);

impl StoreService {
    /// Serves these stores.
    pub fn new(stores: Arc<dyn ServedStores>) -> Arc<StoreService> {
        Arc::new(StoreService(stores))
    }
}

impl NodeService for StoreService {
    fn serve(&self, peer: &Peer, head: Vec<u8>, tail: Bytes) -> Result<BoxFuture<Message>, DecodeError> {
        let (to, request) = StoreRequest::decode(&head, tail)?;
        let stores = self.0.clone();
        if request.is_about_segments() && peer.fingerprint.is_some_and(|certificate| !stores.admits(&certificate)) {
            tracing::debug!(peer = %peer.address, "a node asks for segments that belongs to the file system no more");
            return Ok(Box::pin(ready(StoreAnswer::Refused(StorageError::Unavailable).encode())));
        }
        Ok(Box::pin(async move { answer(&stores, to, request).await }))
    }

    /// A put goes on on the disk's thread, which writes it.
    fn tasks(&self, head: &[u8]) -> Option<Arc<dyn Tasks>> {
        self.0.tasks(StoreRequest::put_to(head)?)
    }
}

/// Serves a site and nothing else. With `keys`, serves over TLS, and only clients with keys of the
/// same authority. Without, serves all clients. Never ends.
pub async fn serve(host: Host, listener: TcpListener, site: Arc<Site>, keys: Option<ServerKeys>) {
    let services = Services::new().with(kinds::STORAGE, StoreService::new(site));
    link::serve(host, listener, services, keys).await;
}
