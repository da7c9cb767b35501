//! A node's end of connections that others make.

use crate::frames::{Inbox, Outbox, Received};
use crate::kinds;
use crate::lane::REQUESTS_MAX;
use crate::service::{Peer, Services};
use crate::stream::{CONNECT_TIME_MAX, ReadEnd, WriteEnd, greet, invalid, plain, prepare};
use crate::tls::ServerKeys;
use crate::wire::{Refused, answer_frame, refusal_frame};
use host::{Either, Host, first, timeout};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// Most connections at a time. Further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 1024;
/// Most connections of machines without a certificate at a time. Further ones are closed.
const STRANGERS_MAX: usize = 32;
/// How long a connection of a machine without a certificate may last.
const STRANGER_TIME_MAX: Duration = Duration::from_secs(30);
/// Most requests that may wait on one connection, of kinds that are not
/// [limited](kinds::is_limited). Further ones are refused.
const WAITING_MAX: usize = 64 << 10;
/// Pause after a connection could not be accepted, for example because of too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What all connections of a listener share.
struct Shared {
    host: Host,
    services: Services,
    keys: Option<ServerKeys>,
    strangers: Semaphore,
    /// True when all connections are to end.
    ended: watch::Receiver<bool>,
}

/// Serves whoever connects. With `keys`, serves over TLS, and only peers with keys of the same
/// authority, except for services for strangers. Without, serves everybody. Never ends.
pub async fn serve(host: Host, listener: TcpListener, services: Services, keys: Option<ServerKeys>) {
    serve_until(host, &listener, services, keys, std::future::pending()).await;
}

/// Like [`serve`], but when `end` is done, closes all connections and returns. Requests that wait
/// then get no answer.
pub async fn serve_until(
    host: Host,
    listener: &TcpListener,
    services: Services,
    keys: Option<ServerKeys>,
    end: impl Future<Output = ()>,
) {
    let is_ended = watch::Sender::new(false);
    let ended = is_ended.subscribe();
    let shared = Arc::new(Shared { host, services, keys, strangers: Semaphore::new(STRANGERS_MAX), ended });
    first(shared.accept_all(listener), end).await;
    is_ended.send_replace(true);
}
impl Shared {
    async fn accept_all(self: &Arc<Self>, listener: &TcpListener) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let (stream, address) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be accepted");
                    self.host.clock.sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let shared = self.clone();
            self.host.tasks.spawn(Box::pin(async move {
                if let Err(error) = shared.connection(stream, address).await
                    && error.kind() != io::ErrorKind::UnexpectedEof
                {
                    tracing::warn!(peer = %address, %error, "connection ended");
                }
                drop(place);
            }));
        }
    }

    async fn connection(&self, stream: TcpStream, address: SocketAddr) -> io::Result<()> {
        let clock = self.host.clock.as_ref();
        let greeted = timeout(clock, CONNECT_TIME_MAX, self.accept(stream, address)).await;
        let (from, to, peer) = greeted.map_err(|_| io::ErrorKind::TimedOut)??;
        let (outbox, writing) = Outbox::new(to);
        self.host.tasks.spawn(Box::pin(writing));
        let served = async {
            match self.keys.is_some() && peer.fingerprint.is_none() {
                false => self.requests(Inbox::new(from), &outbox, &peer).await,
                true => match self.strangers.try_acquire() {
                    Ok(_place) => {
                        let served = self.requests(Inbox::of_stranger(from), &outbox, &peer);
                        timeout(clock, STRANGER_TIME_MAX, served).await.unwrap_or(Ok(()))
                    }
                    Err(_) => Err(io::Error::other("too many machines without a certificate")),
                },
            }
        };
        let mut ended = self.ended.clone();
        // Without a sender the listener was dropped, and connections go on.
        let ended = async move {
            if ended.wait_for(|ended| *ended).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let result = match first(std::pin::pin!(served), ended).await {
            Either::Left(result) => result,
            Either::Right(()) => Ok(()),
        };
        outbox.close();
        result
    }

    async fn accept(&self, stream: TcpStream, address: SocketAddr) -> io::Result<(ReadEnd, WriteEnd, Peer)> {
        prepare(&stream)?;
        let (mut from, mut to, fingerprint) = match &self.keys {
            Some(keys) => keys.accept(stream, self.services.any_for_strangers()).await?,
            None => {
                let (from, to) = plain(stream);
                (from, to, None)
            }
        };
        greet(&mut from, &mut to).await?;
        Ok((from, to, Peer { fingerprint, address }))
    }

    /// Takes requests until the connection ends.
    async fn requests(&self, mut inbox: Inbox, outbox: &Arc<Outbox>, peer: &Peer) -> io::Result<()> {
        let limited = Arc::new(Semaphore::new(REQUESTS_MAX));
        let waiting = Arc::new(Semaphore::new(WAITING_MAX));
        loop {
            outbox.room().await;
            let Received { number, kind, message } = inbox.next().await?;
            let service = match self.services.find(kind, peer, self.keys.is_none()) {
                Ok(service) => service,
                Err(refused) => {
                    outbox.send(refusal_frame(number, refused));
                    continue;
                }
            };
            let place = match kinds::is_limited(kind) {
                true => limited.clone().acquire_owned().await.map_err(io::Error::other)?,
                false => match waiting.clone().try_acquire_owned() {
                    Ok(place) => place,
                    Err(_) => {
                        outbox.send(refusal_frame(number, Refused::Busy));
                        continue;
                    }
                },
            };
            let tasks = service.tasks(&message.head).unwrap_or_else(|| self.host.tasks.clone());
            let serving = service.serve(peer, message.head, message.tail).map_err(invalid)?;
            let outbox = outbox.clone();
            // `start` polls the work at once, so a request that memory answers needs no task.
            tasks.start(Box::pin(async move {
                outbox.send(answer_frame(number, serving.await));
                drop(place);
            }));
        }
    }
}
