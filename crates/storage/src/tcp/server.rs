//! The store's end of connections.

use super::frames::{Inbox, Outbox};
use super::tls::ServerKeys;
use super::{CONNECT_TIME_MAX, REQUESTS_MAX, ReadEnd, WriteEnd, greet, invalid, prepare};
use crate::api::{Storage, StorageError};
use crate::server::Server;
use crate::site::Site;
use crate::wire::{Answer, HEAD_LEN_MAX, LIST_COUNT_MAX, Request};
use host::{Host, timeout};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Connections at a time; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 256;
/// Pause after a connection could not be accepted (too many open files).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves a site to all who connect: with `keys` over TLS, to those whose keys are of the same making; without, to anybody. Never ends.
pub async fn serve(host: Host, listener: TcpListener, site: Arc<Site>, keys: Option<ServerKeys>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                host.clock.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (connection_host, site, keys) = (host.clone(), site.clone(), keys.clone());
        host.tasks.spawn(Box::pin(async move {
            if let Err(error) = connection(connection_host, stream, site, keys).await
                && error.kind() != io::ErrorKind::UnexpectedEof
            {
                tracing::warn!(%peer, %error, "connection ended");
            }
            drop(place);
        }));
    }
}

async fn connection(host: Host, stream: TcpStream, site: Arc<Site>, keys: Option<ServerKeys>) -> io::Result<()> {
    let greeted = timeout(host.clock.as_ref(), CONNECT_TIME_MAX, accept(stream, keys)).await;
    let (from, to) = greeted.map_err(|_| io::ErrorKind::TimedOut)??;
    let (outbox, writing) = Outbox::new(to);
    host.tasks.spawn(Box::pin(writing));
    let ended = requests(&host, Inbox::new(from), &outbox, &site).await;
    outbox.close();
    ended
}

async fn accept(stream: TcpStream, keys: Option<ServerKeys>) -> io::Result<(ReadEnd, WriteEnd)> {
    prepare(&stream)?;
    let (mut from, mut to): (ReadEnd, WriteEnd) = match keys {
        Some(keys) => keys.accept(stream).await?,
        None => {
            let (from, to) = stream.into_split();
            (Box::new(from), Box::new(to))
        }
    };
    greet(&mut from, &mut to).await?;
    Ok((from, to))
}

/// Takes requests until the connection ends.
async fn requests(host: &Host, mut inbox: Inbox, outbox: &Arc<Outbox>, site: &Arc<Site>) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(REQUESTS_MAX));
    let mut attached: Option<Arc<Server>> = None;
    loop {
        outbox.room().await;
        let (head, tail) = inbox.next().await?;
        let (number, request) = Request::decode(&head, tail).map_err(invalid)?;
        if let Request::Attach { fs, store } = request {
            attached = site.store(fs, store);
            outbox.send(attach_answer(attached.is_some()).encode(number));
            continue;
        }
        let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
        let (site, store, outbox) = (site.clone(), attached.clone(), outbox.clone());
        let tasks = match (&store, &request) {
            (Some(store), Request::Put(_)) => store.tasks().clone(),
            _ => host.tasks.clone(),
        };
        let work = Box::pin(async move {
            let frame = answer(&site, store.as_deref(), request).await.encode(number);
            outbox.send(match frame[0].len() <= HEAD_LEN_MAX as usize {
                true => frame,
                false => Answer::Refused(StorageError::BadRequest("answer too long")).encode(number),
            });
            drop(place);
        });
        // What memory answers needs no task of its own.
        tasks.start(work);
    }
}

fn attach_answer(found: bool) -> Answer {
    if found { Answer::Done } else { Answer::Not("it has no store, or another one".into()) }
}

async fn answer(site: &Site, store: Option<&Server>, request: Request) -> Answer {
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
