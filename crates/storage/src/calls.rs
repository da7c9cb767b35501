//! Turns calls of [`Storage`] into requests, and requests into calls: both halves of the protocol,
//! apart from how messages travel.
//!
//! A type that carries requests to a store implements [`Ask`], and is a [`Storage`] by that. The
//! receiving side answers requests with [`answer`], from its [`ServedStores`].

use crate::api::{Presence, Seal, Storage, StorageError, StoreIdentity, StoreStatus};
use crate::site::Site;
use crate::wire::{LIST_COUNT_MAX, StoreAnswer, StoreName, StoreRequest};
use bytes::Bytes;
use host::Tasks;
use link::Message;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use striped_log::fragment::{Fragment, FragmentHeader};
use types::{BoxFuture, FragmentId, LogId, Maps, SegmentId};

/// No store needs a longer rest, whatever another node says.
const REST_MAX: Duration = Duration::from_secs(2);

/// Carries requests to a store and brings its answers.
pub trait Ask: Send + Sync + 'static {
    /// Sends one request, with `len` bytes of payload in it or in its answer. After an error it is
    /// unknown whether the store did it.
    fn ask(&self, request: StoreRequest, len: usize) -> BoxFuture<Result<StoreAnswer, StorageError>>;
}

/// Sends a request and reads its answer with `meaning`. An answer of another kind counts as none.
fn call<T: Send + 'static>(
    to: &impl Ask,
    request: StoreRequest,
    len: usize,
    meaning: impl FnOnce(StoreAnswer) -> Option<T> + Send + 'static,
) -> BoxFuture<Result<T, StorageError>> {
    let asked = to.ask(request, len);
    Box::pin(async move {
        match asked.await? {
            StoreAnswer::Refused(error) => Err(error),
            answer => meaning(answer).ok_or(StorageError::Unavailable),
        }
    })
}

/// Makes a `meaning` that accepts one kind of answer.
macro_rules! answer {
    ($pattern:pat => $value:expr) => {
        |answer| match answer {
            $pattern => Some($value),
            _ => None,
        }
    };
}

fn put(
    to: &impl Ask,
    fragment: Fragment,
    request: fn(Fragment) -> StoreRequest,
) -> BoxFuture<Result<(), StorageError>> {
    if fragment.header.check().is_err() {
        return Box::pin(std::future::ready(Err(StorageError::BadRequest("fragment header"))));
    }
    let len = fragment.payload.len();
    call(to, request(fragment), len, answer!(StoreAnswer::Done => ()))
}

/// Makes a `meaning` that accepts so many bytes.
fn bytes_of(len: usize) -> impl FnOnce(StoreAnswer) -> Option<Bytes> {
    move |answer| match answer {
        StoreAnswer::Bytes(bytes) if bytes.len() == len => Some(bytes),
        _ => None,
    }
}

impl<A: Ask> Storage for A {
    fn put(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        put(self, fragment, StoreRequest::Put)
    }

    fn read(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        let len = range.len();
        call(self, StoreRequest::Read { id, attempt, range }, len, bytes_of(len))
    }

    fn put_behind(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        put(self, fragment, StoreRequest::PutBehind)
    }

    fn read_behind(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        let len = range.len();
        call(self, StoreRequest::ReadBehind { id, attempt, range }, len, bytes_of(len))
    }

    fn rest(&self) -> BoxFuture<Result<Duration, StorageError>> {
        call(self, StoreRequest::Rest, 0, answer!(StoreAnswer::Rest(time) => time.min(REST_MAX)))
    }

    fn describe(&self, segment: SegmentId) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        call(self, StoreRequest::Describe(segment), 0, answer!(StoreAnswer::Headers(headers) => headers))
    }

    fn list(
        &self,
        log: LogId,
        from_seq: u64,
        count_max: usize,
    ) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        let count_max = u32::try_from(count_max).unwrap_or(u32::MAX);
        call(
            self,
            StoreRequest::List { log, from_seq, count_max },
            0,
            answer!(StoreAnswer::Headers(headers) => headers),
        )
    }

    fn segments(&self) -> BoxFuture<Result<Vec<(SegmentId, u64)>, StorageError>> {
        call(self, StoreRequest::Segments, 0, answer!(StoreAnswer::Segments(segments) => segments))
    }

    fn delete(&self, segments: Vec<SegmentId>) -> BoxFuture<Result<(), StorageError>> {
        call(self, StoreRequest::Delete(segments), 0, answer!(StoreAnswer::Done => ()))
    }

    fn seal(&self, seal: Seal) -> BoxFuture<Result<Seal, StorageError>> {
        call(self, StoreRequest::Seal(seal), 0, answer!(StoreAnswer::Seal(seal) => seal))
    }

    fn seals(&self) -> BoxFuture<Result<Vec<Seal>, StorageError>> {
        call(self, StoreRequest::Seals, 0, answer!(StoreAnswer::Seals(seals) => seals))
    }

    fn put_maps(&self, maps: Maps) -> BoxFuture<Result<(), StorageError>> {
        call(self, StoreRequest::PutMaps(maps), 0, answer!(StoreAnswer::Done => ()))
    }

    fn maps(&self) -> BoxFuture<Result<Maps, StorageError>> {
        call(self, StoreRequest::Maps, 0, answer!(StoreAnswer::Maps(maps) => maps))
    }

    fn verify(&self, id: FragmentId) -> BoxFuture<Result<(), StorageError>> {
        call(self, StoreRequest::Verify(id), 0, answer!(StoreAnswer::Done => ()))
    }

    fn status(&self) -> BoxFuture<Result<StoreStatus, StorageError>> {
        call(self, StoreRequest::Status, 0, answer!(StoreAnswer::Status(status) => status))
    }
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer is of another kind than the request asks for")
}

/// Reads the answer to [`StoreRequest::Presence`].
pub fn what_is_there(answer: StoreAnswer) -> io::Result<Presence> {
    match answer {
        StoreAnswer::Presence(presence) => Ok(presence),
        StoreAnswer::Not(text) => Err(io::Error::other(text)),
        _ => Err(unexpected()),
    }
}

/// Reads the answer to [`StoreRequest::Initialise`] or [`StoreRequest::IsHere`].
pub fn is_done(answer: StoreAnswer) -> io::Result<()> {
    match answer {
        StoreAnswer::Done => Ok(()),
        StoreAnswer::Not(text) => Err(io::Error::other(text)),
        _ => Err(unexpected()),
    }
}

/// The stores that a node serves.
pub trait ServedStores: Send + Sync + 'static {
    /// The store with this name, if it is here.
    fn store(&self, name: StoreName) -> Option<Arc<dyn Storage>>;
    /// Where the tasks that put into this store best run, if that is known.
    fn tasks(&self, _name: StoreName) -> Option<Arc<dyn Tasks>> {
        None
    }
    /// False if the node with this certificate must not read or change segments, though the
    /// authority has signed the certificate. It may still bring newer maps, which say who may.
    fn admits(&self, _certificate: &[u8; 32]) -> bool {
        true
    }
    /// Whether the store with this name is here, or there is room for it. With
    /// [`StoreName::NONE`], any store.
    fn look_for(self: Arc<Self>, _name: StoreName) -> BoxFuture<io::Result<Presence>> {
        Box::pin(async { Err(no_new_stores()) })
    }
    /// Makes an empty store.
    fn make(self: Arc<Self>, _identity: StoreIdentity) -> BoxFuture<io::Result<()>> {
        Box::pin(async { Err(no_new_stores()) })
    }
}

fn no_new_stores() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "it makes its stores itself")
}

impl ServedStores for Site {
    fn store(&self, name: StoreName) -> Option<Arc<dyn Storage>> {
        self.store(name).map(|server| server as Arc<dyn Storage>)
    }

    fn tasks(&self, name: StoreName) -> Option<Arc<dyn Tasks>> {
        self.store(name).map(|server| server.tasks().clone())
    }

    fn look_for(self: Arc<Self>, _: StoreName) -> BoxFuture<io::Result<Presence>> {
        Box::pin(async move { Site::presence(&self).await })
    }

    fn make(self: Arc<Self>, identity: StoreIdentity) -> BoxFuture<io::Result<()>> {
        Box::pin(async move { Site::initialise(&self, identity).await.map_err(io::Error::other) })
    }
}

/// Serves a request to a store.
pub async fn answer(stores: &Arc<dyn ServedStores>, to: StoreName, request: StoreRequest) -> Message {
    let message = served(stores, to, request).await.encode();
    match message.fits() {
        true => message,
        false => StoreAnswer::Refused(StorageError::BadRequest("answer too long")).encode(),
    }
}

async fn served(stores: &Arc<dyn ServedStores>, to: StoreName, request: StoreRequest) -> StoreAnswer {
    match request {
        StoreRequest::Presence => match stores.clone().look_for(to).await {
            Ok(presence) => StoreAnswer::Presence(presence),
            Err(error) => StoreAnswer::Not(error.to_string()),
        },
        StoreRequest::Initialise(identity) => match stores.clone().make(identity).await {
            Ok(()) => {
                tracing::info!(store = %identity.store, fs = %identity.fs, "an empty store was made");
                StoreAnswer::Done
            }
            Err(error) => StoreAnswer::Not(error.to_string()),
        },
        StoreRequest::IsHere => match stores.store(to) {
            Some(_) => StoreAnswer::Done,
            None => StoreAnswer::Not("it has no store, or another one".into()),
        },
        other => match stores.store(to) {
            Some(store) => of_store(&*store, other).await.unwrap_or_else(StoreAnswer::Refused),
            None => StoreAnswer::Refused(StorageError::Unavailable),
        },
    }
}

async fn of_store(store: &dyn Storage, request: StoreRequest) -> Result<StoreAnswer, StorageError> {
    match request {
        StoreRequest::Put(fragment) => store.put(fragment).await.map(|()| StoreAnswer::Done),
        StoreRequest::Read { id, attempt, range } => store.read(id, attempt, range).await.map(StoreAnswer::Bytes),
        StoreRequest::PutBehind(fragment) => store.put_behind(fragment).await.map(|()| StoreAnswer::Done),
        StoreRequest::ReadBehind { id, attempt, range } => {
            store.read_behind(id, attempt, range).await.map(StoreAnswer::Bytes)
        }
        StoreRequest::Rest => store.rest().await.map(StoreAnswer::Rest),
        StoreRequest::Describe(segment) => store.describe(segment).await.map(StoreAnswer::Headers),
        StoreRequest::List { log, from_seq, count_max } => {
            store.list(log, from_seq, count_max.min(LIST_COUNT_MAX) as usize).await.map(StoreAnswer::Headers)
        }
        StoreRequest::Segments => store.segments().await.map(StoreAnswer::Segments),
        StoreRequest::Delete(segments) => store.delete(segments).await.map(|()| StoreAnswer::Done),
        StoreRequest::Seal(seal) => store.seal(seal).await.map(StoreAnswer::Seal),
        StoreRequest::Seals => store.seals().await.map(StoreAnswer::Seals),
        StoreRequest::PutMaps(maps) => store.put_maps(maps).await.map(|()| StoreAnswer::Done),
        StoreRequest::Maps => store.maps().await.map(StoreAnswer::Maps),
        StoreRequest::Verify(id) => store.verify(id).await.map(|()| StoreAnswer::Done),
        StoreRequest::Status => store.status().await.map(StoreAnswer::Status),
        StoreRequest::Presence | StoreRequest::Initialise(_) | StoreRequest::IsHere => {
            Err(StorageError::BadRequest("not a request to a store"))
        }
    }
}
