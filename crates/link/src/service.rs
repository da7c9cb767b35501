//! What a node offers to others: services by kind.

use crate::tls::Fingerprint;
use crate::wire::{Message, Refused};
use bytes::Bytes;
use host::Tasks;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use types::BoxFuture;
use types::codec::DecodeError;

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The fingerprint of its certificate, which the authority has signed, and whose key it has.
    /// `None` if it has shown none, or over plain TCP.
    pub fingerprint: Option<Fingerprint>,
    /// Where the connection comes from.
    pub address: SocketAddr,
}

/// A service.
pub trait NodeService: Send + Sync + 'static {
    /// Serves a request. What this does before it returns happens in the order in which the
    /// requests of a connection came. The future runs to its end even if the connection breaks; its
    /// answer is dropped then. Bytes that cannot be decoded are an error, which ends the
    /// connection.
    fn serve(&self, peer: &Peer, head: Vec<u8>, tail: Bytes) -> Result<BoxFuture<Message>, DecodeError>;

    /// Where the rest of this request runs once it has waited; `None` means anywhere.
    fn tasks(&self, _head: &[u8]) -> Option<Arc<dyn Tasks>> {
        None
    }

    /// True if the service is also for machines without a certificate. Services over plain TCP are
    /// for everybody.
    fn is_for_strangers(&self) -> bool {
        false
    }
}

/// Says whether a peer with a certificate is served at this time.
type Gate = Arc<dyn Fn(&Peer) -> bool + Send + Sync>;

/// The services of a node.
#[derive(Clone, Default)]
pub struct Services {
    by_kind: BTreeMap<u8, Arc<dyn NodeService>>,
    gate: Option<Gate>,
}

impl Services {
    /// No service yet.
    pub fn new() -> Services {
        Services::default()
    }

    /// Adds a service of a [kind](crate::kinds), in place of an earlier one.
    pub fn with(mut self, kind: u8, service: Arc<dyn NodeService>) -> Services {
        self.by_kind.insert(kind, service);
        self
    }

    /// Serves peers with a certificate only while `gate` is true for them. It is asked at each
    /// request, so whoever is no member any more is refused at once. Services for strangers do not
    /// ask it.
    pub fn admitting(mut self, gate: impl Fn(&Peer) -> bool + Send + Sync + 'static) -> Services {
        self.gate = Some(Arc::new(gate));
        self
    }

    /// True if machines without a certificate find something here.
    pub(crate) fn any_for_strangers(&self) -> bool {
        self.by_kind.values().any(|service| service.is_for_strangers())
    }

    /// The service for a request. `is_open` is true over plain TCP.
    pub(crate) fn find(&self, kind: u8, peer: &Peer, is_open: bool) -> Result<&Arc<dyn NodeService>, Refused> {
        let is_known = peer.fingerprint.is_some() && self.gate.as_ref().is_none_or(|gate| gate(peer));
        match self.by_kind.get(&kind) {
            Some(service) if is_open || service.is_for_strangers() || is_known => Ok(service),
            None if is_open || is_known => Err(Refused::NoService),
            _ => Err(Refused::NotAdmitted),
        }
    }
}
