//! The store's end of connections.

use super::frames::{Inbox, Outbox};
use super::tls::ServerKeys;
use super::{CONNECT_TIME_MAX, REQUESTS_MAX, ReadEnd, WriteEnd, greet, invalid, prepare};
use crate::calls::{answer, attach};
use crate::server::StoreServer;
use crate::site::Site;
use crate::wire::StoreRequest;
use host::{Host, timeout};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Most connections at a time. Further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 256;
/// Pause after a connection could not be accepted, for example because of too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves a site. With `keys`, serves over TLS, and only clients with keys of the same authority.
/// Without, serves all clients. Never ends.
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
    let mut attached: Option<Arc<StoreServer>> = None;
    loop {
        outbox.room().await;
        let (head, tail) = inbox.next().await?;
        let (number, request) = StoreRequest::decode(&head, tail).map_err(invalid)?;
        if let StoreRequest::Attach { fs, store } = request {
            let (store, answer) = attach(site, fs, store);
            attached = store;
            outbox.send(answer.encode(number));
            continue;
        }
        let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
        let (site, store, outbox) = (site.clone(), attached.clone(), outbox.clone());
        let tasks = match (&store, &request) {
            (Some(store), StoreRequest::Put(_)) => store.tasks().clone(),
            _ => host.tasks.clone(),
        };
        let work = Box::pin(async move {
            outbox.send(answer(&site, store.as_deref(), number, request).await);
            drop(place);
        });
        // `start` polls the work at once, so a request that memory answers needs no task.
        tasks.start(work);
    }
}
