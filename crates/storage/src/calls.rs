//! Turns calls of [`Storage`] into requests, and requests into calls: both halves of the protocol,
//! apart from how frames travel.
//!
//! A type that carries requests to a store implements [`Ask`], and is a [`Storage`] by that. The
//! receiving side answers requests with [`attach`] and [`answer`].

use crate::api::{Presence, Seal, Storage, StorageError, StoreStatus};
use crate::server::Server;
use crate::site::Site;
use crate::wire::{Answer, Frame, HEAD_LEN_MAX, LIST_COUNT_MAX, Request};
use bytes::Bytes;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use striped_log::fragment::{Fragment, FragmentHeader};
use types::{BoxFuture, FragmentId, FsUuid, LogId, Maps, SegmentId, StoreId};

/// Carries requests to a store and brings its answers.
pub trait Ask: Send + Sync + 'static {
    /// Sends one request, with `len` bytes of payload in it or in its answer. After an error it is
    /// unknown whether the store did it.
    fn ask(&self, request: Request, len: usize) -> BoxFuture<Result<Answer, StorageError>>;
}

/// Sends a request and reads its answer with `meaning`. An answer of another kind counts as none.
fn call<T: Send + 'static>(
    to: &impl Ask,
    request: Request,
    len: usize,
    meaning: impl FnOnce(Answer) -> Option<T> + Send + 'static,
) -> BoxFuture<Result<T, StorageError>> {
    let asked = to.ask(request, len);
    Box::pin(async move {
        match asked.await? {
            Answer::Refused(error) => Err(error),
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

impl<A: Ask> Storage for A {
    fn put(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        if fragment.header.check().is_err() {
            return Box::pin(std::future::ready(Err(StorageError::BadRequest("fragment header"))));
        }
        let len = fragment.payload.len();
        call(self, Request::Put(fragment), len, answer!(Answer::Done => ()))
    }

    fn read(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        let len = range.len();
        call(self, Request::Read { id, attempt, range }, len, move |answer| match answer {
            Answer::Bytes(bytes) if bytes.len() == len => Some(bytes),
            _ => None,
        })
    }

    fn describe(&self, segment: SegmentId) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        call(self, Request::Describe(segment), 0, answer!(Answer::Headers(headers) => headers))
    }

    fn list(
        &self,
        log: LogId,
        from_seq: u64,
        count_max: usize,
    ) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        let count_max = u32::try_from(count_max).unwrap_or(u32::MAX);
        call(self, Request::List { log, from_seq, count_max }, 0, answer!(Answer::Headers(headers) => headers))
    }

    fn segments(&self) -> BoxFuture<Result<Vec<(SegmentId, u64)>, StorageError>> {
        call(self, Request::Segments, 0, answer!(Answer::Segments(segments) => segments))
    }

    fn delete(&self, segments: Vec<SegmentId>) -> BoxFuture<Result<(), StorageError>> {
        call(self, Request::Delete(segments), 0, answer!(Answer::Done => ()))
    }

    fn seal(&self, seal: Seal) -> BoxFuture<Result<Seal, StorageError>> {
        call(self, Request::Seal(seal), 0, answer!(Answer::Seal(seal) => seal))
    }

    fn seals(&self) -> BoxFuture<Result<Vec<Seal>, StorageError>> {
        call(self, Request::Seals, 0, answer!(Answer::Seals(seals) => seals))
    }

    fn put_maps(&self, maps: Maps) -> BoxFuture<Result<(), StorageError>> {
        call(self, Request::PutMaps(maps), 0, answer!(Answer::Done => ()))
    }

    fn maps(&self) -> BoxFuture<Result<Maps, StorageError>> {
        call(self, Request::Maps, 0, answer!(Answer::Maps(maps) => maps))
    }

    fn verify(&self, id: FragmentId) -> BoxFuture<Result<(), StorageError>> {
        call(self, Request::Verify(id), 0, answer!(Answer::Done => ()))
    }

    fn status(&self) -> BoxFuture<Result<StoreStatus, StorageError>> {
        call(self, Request::Status, 0, answer!(Answer::Status(status) => status))
    }
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer is of another kind than the request asks for")
}

/// Reads the answer to [`Request::Presence`].
pub fn what_is_there(answer: Answer) -> io::Result<Presence> {
    match answer {
        Answer::Presence(presence) => Ok(presence),
        Answer::Not(text) => Err(io::Error::other(text)),
        _ => Err(unexpected()),
    }
}

/// Reads the answer to [`Request::Initialise`] or [`Request::Attach`].
pub fn is_done(answer: Answer) -> io::Result<()> {
    match answer {
        Answer::Done => Ok(()),
        Answer::Not(text) => Err(io::Error::other(text)),
        _ => Err(unexpected()),
    }
}

/// Attaches a connection to a store: the store, if it is here, and the answer to send.
pub fn attach(site: &Site, fs: FsUuid, store: StoreId) -> (Option<Arc<Server>>, Answer) {
    match site.store(fs, store) {
        Some(server) => (Some(server), Answer::Done),
        None => (None, Answer::Not("it has no store, or another one".into())),
    }
}

/// Serves a request of a connection that is attached to `store`. Returns the frame of the answer.
pub async fn answer(site: &Site, store: Option<&Server>, number: u64, request: Request) -> Frame {
    let frame = of_site(site, store, request).await.encode(number);
    match frame[0].len() <= HEAD_LEN_MAX as usize {
        true => frame,
        false => Answer::Refused(StorageError::BadRequest("answer too long")).encode(number),
    }
}

async fn of_site(site: &Site, store: Option<&Server>, request: Request) -> Answer {
    match request {
        Request::Presence => match site.presence().await {
            Ok(presence) => Answer::Presence(presence),
            Err(error) => Answer::Not(error.to_string()),
        },
        Request::Initialise(identity) => match site.initialise(identity).await {
            Ok(()) => {
                tracing::info!(store = %identity.store, fs = %identity.fs, "an empty store was made");
                Answer::Done
            }
            Err(error) => Answer::Not(error.to_string()),
        },
        other => match store {
            Some(store) => of_store(store, other).await.unwrap_or_else(Answer::Refused),
            None => Answer::Refused(StorageError::Unavailable),
        },
    }
}

async fn of_store(store: &Server, request: Request) -> Result<Answer, StorageError> {
    match request {
        Request::Put(fragment) => store.put(fragment).await.map(|()| Answer::Done),
        Request::Read { id, attempt, range } => store.read(id, attempt, range).await.map(Answer::Bytes),
        Request::Describe(segment) => store.describe(segment).await.map(Answer::Headers),
        Request::List { log, from_seq, count_max } => {
            store.list(log, from_seq, count_max.min(LIST_COUNT_MAX) as usize).await.map(Answer::Headers)
        }
        Request::Segments => store.segments().await.map(Answer::Segments),
        Request::Delete(segments) => store.delete(segments).await.map(|()| Answer::Done),
        Request::Seal(seal) => store.seal(seal).await.map(Answer::Seal),
        Request::Seals => store.seals().await.map(Answer::Seals),
        Request::PutMaps(maps) => store.put_maps(maps).await.map(|()| Answer::Done),
        Request::Maps => store.maps().await.map(Answer::Maps),
        Request::Verify(id) => store.verify(id).await.map(|()| Answer::Done),
        Request::Status => store.status().await.map(Answer::Status),
        Request::Presence | Request::Initialise(_) | Request::Attach { .. } => {
            Err(StorageError::BadRequest("not a request to a store"))
        }
    }
}
