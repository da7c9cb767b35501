//! The clients' end: stores of other nodes.

use crate::api::{Presence, RemoteStorage, StorageError, StoreIdentity};
use crate::calls::{Ask, is_done, what_is_there};
use crate::wire::{StoreAnswer, StoreName, StoreRequest};
use host::Host;
use link::stream::CONNECT_TIME_MAX;
use link::{Address, Message, NodeLink, Opening, ask_once, kinds};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use types::codec::DecodeError;
use types::{BoxFuture, FsUuid, StoreId};

/// How long making a store may take. It is long, since the store sets disk space aside.
const INITIALISE_TIME_MAX: Duration = Duration::from_secs(60);

fn invalid(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn decoded(answer: Message) -> io::Result<StoreAnswer> {
    StoreAnswer::decode(&answer.head, answer.tail).map_err(invalid)
}

/// A store of another node, over connections that may have other users.
#[derive(Clone)]
pub struct LinkedStore {
    link: Arc<NodeLink>,
    name: StoreName,
}

impl LinkedStore {
    /// The store with this name at a node.
    pub fn new(link: Arc<NodeLink>, name: StoreName) -> LinkedStore {
        LinkedStore { link, name }
    }
}

impl Ask for LinkedStore {
    fn ask(&self, request: StoreRequest, len: usize) -> BoxFuture<Result<StoreAnswer, StorageError>> {
        let asked = self.link.ask(kinds::STORAGE, request.encode(self.name), len);
        let store = self.name.store;
        Box::pin(async move {
            let answer = asked.await.map_err(|_| StorageError::Unavailable)?;
            decoded(answer).map_err(|error| {
                tracing::warn!(%store, %error, "the store's answer cannot be read");
                StorageError::Unavailable
            })
        })
    }
}

/// A store of another process, over connections of its own. When a connection breaks, a new one is
/// made, until this is dropped.
pub struct Remote {
    host: Host,
    address: Address,
    /// The store that it asks about before it is expected.
    asked: StoreName,
    expected: Mutex<Option<LinkedStore>>,
}

impl Remote {
    /// The only store of a process at this address. It does not connect yet.
    pub fn new(host: Host, address: Address) -> Arc<Remote> {
        Self::named(host, address, StoreName::NONE)
    }

    /// The store with this name, among those of a process at this address. It does not connect yet.
    pub fn named(host: Host, address: Address, asked: StoreName) -> Arc<Remote> {
        Arc::new(Remote { host, address, asked, expected: Mutex::new(None) })
    }

    /// Sends one request over a connection of its own.
    fn ask_site(&self, request: StoreRequest, time: Duration) -> BoxFuture<io::Result<StoreAnswer>> {
        let (host, address, is_node) = (self.host.clone(), self.address.clone(), self.asked != StoreName::NONE);
        let message = request.encode(self.asked);
        Box::pin(async move {
            let answer = ask_once(&host, &address, kinds::STORAGE, message, time).await.and_then(decoded);
            let hint = |e: &io::Error| if is_node { ": is that node up?" } else { hint(&address, e) };
            answer.map_err(|e| io::Error::new(e.kind(), format!("{address}: {e}{}", hint(&e))))
        })
    }
}

/// A hint for users what to do about an error. It begins with a separator, or is empty.
fn hint(address: &Address, error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ": is `starling store` running there?",
        _ if Address::is_about_keys(error) => {
            ": the keys on both sides must come from one `starling keys`, and both sides must use them"
        }
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
            if address.keys.is_none() =>
        {
            ": if it is a starling store with keys, use tls://"
        }
        _ => "",
    }
}

impl Ask for Remote {
    fn ask(&self, request: StoreRequest, len: usize) -> BoxFuture<Result<StoreAnswer, StorageError>> {
        let expected = self.expected.lock().clone();
        match expected {
            Some(store) => store.ask(request, len),
            None => Box::pin(std::future::ready(Err(StorageError::Unavailable))),
        }
    }
}

impl RemoteStorage for Remote {
    fn presence(&self) -> BoxFuture<io::Result<Presence>> {
        let asked = self.ask_site(StoreRequest::Presence, 2 * CONNECT_TIME_MAX);
        Box::pin(async move { what_is_there(asked.await?) })
    }

    fn initialise(&self, identity: StoreIdentity) -> BoxFuture<io::Result<()>> {
        let asked = self.ask_site(StoreRequest::Initialise(identity), INITIALISE_TIME_MAX);
        Box::pin(async move { is_done(asked.await?) })
    }

    fn expect(&self, fs: FsUuid, store: StoreId) -> BoxFuture<()> {
        let name = StoreName { fs, store };
        let head = StoreRequest::IsHere.encode(name).head;
        let opening = Opening { kind: kinds::STORAGE, head, check: |answer| is_done(decoded(answer)?) };
        let (link, tried) = NodeLink::keep(&self.host, self.address.clone(), store.to_string(), Some(opening));
        let replaced = self.expected.lock().replace(LinkedStore::new(link, name));
        drop(replaced);
        tried
    }
}
