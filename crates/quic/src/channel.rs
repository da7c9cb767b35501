//! The client's end of a connection.

use crate::dialer::any_socket;
use crate::stream::{Background, COUNT, Close, Outgoing, Unread, byte_of, read_pushed};
use crate::transport::UP_WINDOW_BYTES;
use bytes::Bytes;
use parking_lot::Mutex;
use quinn::{Connection, Endpoint, ReadToEndError};
use roam_wire::channel::{Channel, Class, Lost, MESSAGE_LEN_MAX, Path};
use roam_wire::codec::Wire;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use types::BoxFuture;

/// Pushed messages that wait here to be taken; further ones wait at the home.
const PUSHED_COUNT_MAX: usize = 4;

/// An end that is out of reach is called first after so long,
const CALL_PAUSE_MIN: Duration = Duration::from_secs(1);
/// and then whenever this part of its absence has passed again: QUIC's own tries double their distance.
const CALL_PART: u32 = 8;

/// A connection to a home.
pub(crate) struct QuicChannel {
    endpoint: Endpoint,
    connection: Connection,
    background: Arc<Background>,
    pushed: Arc<Mutex<mpsc::Receiver<Bytes>>>,
    /// How many of them were taken.
    taken: Arc<watch::Sender<u64>>,
    /// Where new sockets belong, whoever asks for them.
    runtime: Handle,
}

impl QuicChannel {
    pub(crate) fn new(endpoint: Endpoint, connection: Connection) -> QuicChannel {
        let (to, pushed) = mpsc::channel(PUSHED_COUNT_MAX);
        tokio::spawn(receive(connection.clone(), to));
        let background = Arc::new(Background::of_window(UP_WINDOW_BYTES));
        let pushed = Arc::new(Mutex::new(pushed));
        QuicChannel { endpoint, connection, background, pushed, taken: Arc::default(), runtime: Handle::current() }
    }
}

impl Drop for QuicChannel {
    fn drop(&mut self) {
        self.close();
    }
}

impl Channel for QuicChannel {
    fn ask(&self, class: Class, request: Bytes) -> BoxFuture<Result<Bytes, Lost>> {
        Box::pin(ask(self.connection.clone(), self.background.clone(), class, request))
    }

    fn pushed(&self) -> BoxFuture<Result<Bytes, Lost>> {
        let (pushed, taken) = (self.pushed.clone(), self.taken.clone());
        Box::pin(async move {
            let message = poll_fn(|context| pushed.lock().poll_recv(context)).await.ok_or(Lost)?;
            taken.send_modify(|taken| *taken += 1);
            Ok(message)
        })
    }

    fn caught_up(&self) -> BoxFuture<Result<(), Lost>> {
        let (connection, mut taken) = (self.connection.clone(), self.taken.subscribe());
        Box::pin(async move {
            let begun = Instant::now();
            let mut asked = pin!(ask_of(&connection, Class::Interactive, [Bytes::from_static(&[COUNT]), Bytes::new()]));
            let answer = loop {
                match timeout(pause_after(begun.elapsed()), &mut asked).await {
                    Ok(answer) => break answer?,
                    Err(_) => call(&connection),
                }
            };
            let count = u64::from_bytes(&answer).map_err(|_| {
                Close::Refused.close(&connection);
                Lost
            })?;
            tokio::select! {
                taken = taken.wait_for(|taken| *taken >= count) => taken.map(drop).map_err(|_| Lost),
                _ = connection.closed() => Err(Lost),
            }
        })
    }

    fn rebind(&self) {
        let _inside = self.runtime.enter();
        if let Err(error) = any_socket().and_then(|socket| self.endpoint.rebind(socket)) {
            tracing::warn!(%error, "no new socket: the connection stays on its old one");
        }
    }

    fn path(&self) -> Path {
        let stats = self.connection.stats();
        Path {
            round_trip: stats.path.rtt,
            window: stats.path.cwnd,
            sent: stats.udp_tx.bytes,
            received: stats.udp_rx.bytes,
        }
    }

    fn has_ended(&self) -> bool {
        self.connection.close_reason().is_some()
    }

    fn close(&self) {
        Close::Done.close(&self.connection);
    }
}

/// How long to wait for an end that has been out of reach for so long, before it is called again.
fn pause_after(absence: Duration) -> Duration {
    (absence / CALL_PART).max(CALL_PAUSE_MIN)
}

/// Sends the least that is acknowledged. Without room for it on the way, it is not the first; QUIC's own tries go on, fewer and fewer.
fn call(connection: &Connection) {
    if let Err(error) = connection.send_datagram(Bytes::new()) {
        tracing::debug!(%error, "the home was not called");
    }
}

/// Asks the home's service something, when there is room for it.
async fn ask(connection: Connection, background: Arc<Background>, class: Class, request: Bytes) -> Result<Bytes, Lost> {
    if request.len() > MESSAGE_LEN_MAX {
        tracing::error!(len = request.len(), "a request is too long to be sent");
        Close::TooLong.close(&connection);
        return Err(Lost);
    }
    let _room = background.enter(class, request.len()).await;
    ask_of(&connection, class, [Bytes::copy_from_slice(&[byte_of(class)]), request]).await
}

/// Sends a request and reads its answer. Dropped in between, it resets the stream both ways.
async fn ask_of(connection: &Connection, class: Class, request: [Bytes; 2]) -> Result<Bytes, Lost> {
    let (to, mut from) = connection.open_bi().await.map_err(|_| Lost)?;
    let mut to = Outgoing::new(to, class);
    let asked = async {
        to.send(request).await.map_err(|_| Close::Refused)?;
        from.read_to_end(MESSAGE_LEN_MAX).await.map_err(|error| match error {
            ReadToEndError::TooLong => Close::TooLong,
            ReadToEndError::Read(_) => Close::Refused,
        })
    };
    match asked.await {
        Ok(answer) => {
            to.release();
            Ok(answer.into())
        }
        // A home that ends a single stream breaks the rules; an ended connection stays ended as it was.
        Err(close) => {
            close.close(connection);
            Err(Lost)
        }
    }
}

/// Receives what the home pushes, until the connection ends.
async fn receive(connection: Connection, to: mpsc::Sender<Bytes>) {
    let Ok(mut stream) = connection.accept_uni().await else { return };
    loop {
        match read_pushed(&mut stream).await {
            Ok(message) => match to.send(message).await {
                Ok(()) => {}
                Err(_) => return,
            },
            Err(Unread::Wrong(close)) => return close.close(&connection),
            // Without an end of the connection, the home has broken the rules.
            Err(Unread::Gone) => return Close::Refused.close(&connection),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;
    use crate::{tls, transport};
    use quinn::TokioRuntime;
    use std::net::Ipv4Addr;

    #[test]
    fn whoever_is_away_for_longer_is_called_less_often_but_soon_enough() {
        let mut absence = Duration::ZERO;
        for calls in 0..60 {
            let pause = pause_after(absence);
            assert!(pause <= CALL_PAUSE_MIN.max(absence / 8) && (calls > 8 || pause == CALL_PAUSE_MIN));
            absence += pause;
        }
        // They do not use up what may be under way, of two packets, in an hour.
        assert!(absence > Duration::from_secs(3600), "{absence:?}");
    }

    #[tokio::test]
    async fn calls_are_heard_and_take_no_room() {
        let identity = || Identity::load_or_make(tempfile::tempdir().unwrap().path(), "key").unwrap();
        let (home, client) = (identity(), identity());
        let endpoint = |config| {
            let socket = transport::socket((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
            Endpoint::new(transport::endpoint(), config, socket, Arc::new(TokioRuntime)).unwrap()
        };
        let (here, there) = (endpoint(None), endpoint(Some(transport::of_home(&home).unwrap())));
        let config = transport::of_client(&client, home.key()).unwrap();
        let connecting = here.connect_with(config, there.local_addr().unwrap(), tls::NAME).unwrap();
        let accepting = async { there.accept().await.unwrap().await.unwrap() };
        let (connection, accepted) = tokio::join!(connecting, accepting);
        let connection = connection.unwrap();
        let heard = || accepted.stats().frame_rx.datagram;
        for count in 1..1000 {
            call(&connection);
            while heard() < count {
                assert_eq!((connection.close_reason(), accepted.close_reason()), (None, None));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
}
