//! The client's end of a connection.

use crate::count::{self, Answer};
use crate::stream::{Background, Close, Outgoing, Unread, byte_of, read_pushed};
use crate::transport::UP_WINDOW_BYTES;
use crate::transport::any_socket;
use bytes::Bytes;
use parking_lot::Mutex;
use quinn::{Connection, Endpoint, ReadToEndError};
use roam_proto::channel::{Channel, Class, Lost, MESSAGE_LEN_MAX, Path};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use types::BoxFuture;

/// Pushed messages that wait at the client to be taken. Further ones wait in QUIC's windows and at
/// the home.
const PUSHED_COUNT_MAX: usize = 4;

/// The first pause before a question is asked again, in round trips. It is at least
/// [`FIRST_PAUSE_MIN`] and at most [`PAUSE_MIN`].
const FIRST_PAUSE_ROUND_TRIPS: u32 = 4;
/// The shortest first pause.
const FIRST_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The least pause after the first one.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Once the silence is long, the pause is this part of it (one eighth). QUIC doubles the time
/// between its own tries, which would notice a return much later.
const SILENCE_PART: u32 = 8;

/// A connection to a home.
pub(crate) struct QuicChannel {
    endpoint: Endpoint,
    connection: Connection,
    background: Arc<Background>,
    pushed: Arc<Mutex<mpsc::Receiver<Bytes>>>,
    /// How many pushed messages were taken.
    taken: Arc<watch::Sender<u64>>,
    /// The number of the last question how many messages were pushed.
    asked: Arc<AtomicU64>,
    /// The answer to the latest question that was answered.
    counted: watch::Receiver<Answer>,
    /// The runtime for new sockets, for callers outside of any runtime.
    runtime: Handle,
}

impl QuicChannel {
    pub(crate) fn new(endpoint: Endpoint, connection: Connection) -> QuicChannel {
        let (to, pushed) = mpsc::channel(PUSHED_COUNT_MAX);
        tokio::spawn(receive(connection.clone(), to));
        let (latest, counted) = watch::channel(Answer::default());
        let background = Arc::new(Background::of_window(UP_WINDOW_BYTES));
        let pushed = Arc::new(Mutex::new(pushed));
        let (taken, asked, runtime) = (Arc::default(), Arc::default(), Handle::current());
        tokio::spawn(count::hear(connection.clone(), Arc::clone(&asked), latest));
        QuicChannel { endpoint, connection, background, pushed, taken, asked, counted, runtime }
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
        let (number, mut counted) = (self.asked.fetch_add(1, Relaxed) + 1, self.counted.clone());
        Box::pin(async move {
            let begun = Instant::now();
            let mut pause = connection.rtt().saturating_mul(FIRST_PAUSE_ROUND_TRIPS).clamp(FIRST_PAUSE_MIN, PAUSE_MIN);
            let count = loop {
                count::ask(&connection, number)?;
                match timeout(pause, counted.wait_for(|(answered, _)| *answered >= number)).await {
                    Ok(Ok(answer)) => break answer.1,
                    Ok(Err(_)) => return Err(Lost),
                    Err(_) => pause = pause_after(begun.elapsed()),
                }
            };
            tokio::select! {
                taken = taken.wait_for(|taken| *taken >= count) => taken.map(drop).map_err(|_| Lost),
                _ = connection.closed() => Err(Lost),
            }
        })
    }

    fn rebind(&self) {
        let _inside = self.runtime.enter();
        if let Err(error) = any_socket().and_then(|socket| self.endpoint.rebind(socket)) {
            tracing::warn!(%error, "cannot open a new socket: the connection stays on its old one");
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

/// Returns the pause before the next question to a home that has been silent for `silence`.
fn pause_after(silence: Duration) -> Duration {
    (silence / SILENCE_PART).max(PAUSE_MIN)
}

/// Sends a request when there is room for it, and returns the answer.
async fn ask(connection: Connection, background: Arc<Background>, class: Class, request: Bytes) -> Result<Bytes, Lost> {
    if request.len() > MESSAGE_LEN_MAX {
        tracing::error!(len = request.len(), "a request is longer than a message may be");
        Close::TooLong.close(&connection);
        return Err(Lost);
    }
    let _room = background.enter(class, request.len()).await;
    ask_of(&connection, class, [Bytes::copy_from_slice(&[byte_of(class)]), request]).await
}

/// Sends a request and reads its answer. When the future is dropped before its end, it resets the
/// stream both ways.
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
        // A home that ends a single stream breaks the rules. A connection that has ended keeps its
        // own reason.
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
            // If the connection has not ended, the home has broken the rules.
            Err(Unread::Gone) => return Close::Refused.close(&connection),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Identity;
    use crate::transport;
    use quinn::TokioRuntime;
    use std::net::Ipv4Addr;

    #[test]
    fn who_is_silent_for_longer_is_asked_less_often_but_soon_enough() {
        let mut silence = Duration::ZERO;
        for questions in 0..60 {
            let pause = pause_after(silence);
            assert!(pause <= PAUSE_MIN.max(silence / 8) && (questions > 8 || pause == PAUSE_MIN));
            silence += pause;
        }
        assert!(silence > Duration::from_secs(3600), "{silence:?}");
    }

    /// Questions use no streams, however many there are.
    #[tokio::test]
    async fn questions_are_answered_and_take_no_room() {
        let identity = || Identity::load_or_make(tempfile::tempdir().unwrap().path(), "key").unwrap();
        let (home, client) = (identity(), identity());
        let endpoint = |config| {
            let socket = transport::socket((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
            Endpoint::new(transport::endpoint(), config, socket, Arc::new(TokioRuntime)).unwrap()
        };
        let (here, there) = (endpoint(None), endpoint(Some(transport::of_home(&home).unwrap())));
        let config = transport::of_client(&client, home.key()).unwrap();
        let connecting = here.connect_with(config, there.local_addr().unwrap(), crate::identity::NAME).unwrap();
        let accepting = async { there.accept().await.unwrap().await.unwrap() };
        let (connection, accepted) = tokio::join!(connecting, accepting);
        let (connection, (latest, mut counted)) = (connection.unwrap(), watch::channel((0, 0)));
        tokio::spawn(count::hear(connection.clone(), Arc::new(AtomicU64::new(1000)), latest));
        for number in 1..100 {
            count::ask(&connection, number).unwrap();
        }
        // The buffer holds only the last questions; the others are gone.
        let pushed = Arc::new(AtomicU64::new(7));
        tokio::spawn(count::answer(accepted, pushed.clone()));
        counted.wait_for(|answer| answer.1 == 7).await.unwrap();
        pushed.store(8, Relaxed);
        for number in 100..1000 {
            count::ask(&connection, number).unwrap();
            assert_eq!(*counted.wait_for(|answer| answer.0 == number).await.unwrap(), (number, 8));
        }
    }
}
