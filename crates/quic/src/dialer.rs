//! The client's dialer: tries the home's addresses until one answers with the right key.

use crate::channel::QuicChannel;
use crate::identity::Identity;
use crate::transport;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, TokioRuntime, TransportErrorCode};
use roam_proto::channel::{Channel, DialError, Dialer, PeerKey};
use rustls::AlertDescription;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::timeout;
use types::BoxFuture;

/// How long an address has to answer before the next one is tried beside it.
const ADDRESS_HEAD_START: Duration = Duration::from_secs(4);
/// The same between the addresses of one name, usually one of IPv6 and one of IPv4.
const NAME_HEAD_START: Duration = Duration::from_millis(500);
/// Most addresses of one name that are tried.
const NAME_COUNT_MAX: usize = 4;

/// Makes connections to one home. Later connections need no certificates, since the dialer keeps
/// the home's session tickets.
pub struct QuicDialer {
    addresses: Vec<String>,
    config: Result<ClientConfig, String>,
}

type Attempt<T> = BoxFuture<Result<T, DialError>>;

impl QuicDialer {
    /// Makes a dialer for the home with the `expected` key at `addresses` (host:port, looked up
    /// each time).
    ///
    /// The dialer tries the addresses in their order, the next one as soon as one has failed or has
    /// had some seconds to answer. It takes the first that answers. If all fail, a wrong key is the
    /// error that it returns first. A caller should still try again: the address may belong to
    /// another home in the network where the client is now.
    pub fn new(addresses: Vec<String>, expected: PeerKey, identity: &Identity) -> QuicDialer {
        let config = transport::of_client(identity, expected).map_err(|error| error.to_string());
        QuicDialer { addresses, config }
    }
}

impl Dialer for QuicDialer {
    /// Makes a connection. Must be polled in a tokio runtime.
    fn dial(&self) -> BoxFuture<Result<Arc<dyn Channel>, DialError>> {
        let (addresses, config) = (self.addresses.clone(), self.config.clone());
        Box::pin(async move {
            let config = config.map_err(|e| DialError::Unreachable(format!("the key cannot be used: {e}")))?;
            let open = || Endpoint::new(transport::endpoint(), None, transport::any_socket()?, Arc::new(TokioRuntime));
            let mut endpoint =
                open().map_err(|e| DialError::Unreachable(format!("the network cannot be used: {e}")))?;
            endpoint.set_default_client_config(config);
            let attempts = addresses.into_iter().map(|address| try_name(endpoint.clone(), address)).collect();
            let connection = first_of(attempts, ADDRESS_HEAD_START).await?;
            Ok(Arc::new(QuicChannel::new(endpoint, connection)) as Arc<dyn Channel>)
        })
    }
}

fn try_name(endpoint: Endpoint, address: String) -> Attempt<Connection> {
    Box::pin(async move {
        let found = lookup_host(address.as_str()).await;
        let found = found.map_err(|e| DialError::Unreachable(format!("{address}: {e}")))?;
        let attempts =
            found.take(NAME_COUNT_MAX).map(|to| try_address(endpoint.clone(), to, address.clone())).collect();
        first_of(attempts, NAME_HEAD_START).await
    })
}

fn try_address(endpoint: Endpoint, to: SocketAddr, address: String) -> Attempt<Connection> {
    Box::pin(async move {
        let connecting = endpoint.connect(to, crate::identity::NAME);
        let connecting = connecting.map_err(|e| DialError::Unreachable(format!("{address}: {e}")))?;
        connecting.await.map_err(|error| explain(error, address))
    })
}

/// Starts attempts one after the other, the next when one has failed or `head_start` is over.
/// Returns the first that succeeds.
async fn first_of<T: Send + 'static>(attempts: Vec<Attempt<T>>, head_start: Duration) -> Result<T, DialError> {
    let (mut waiting, mut running) = (attempts.into_iter().peekable(), JoinSet::new());
    let mut failed = Vec::new();
    loop {
        if let Some(next) = waiting.next() {
            running.spawn(next);
        }
        let ended = match waiting.peek() {
            Some(_) => timeout(head_start, running.join_next()).await,
            None => Ok(running.join_next().await),
        };
        match ended {
            Ok(Some(Ok(Ok(made)))) => return Ok(made),
            Ok(Some(Ok(Err(error)))) => failed.push(error),
            // The head start is over, or a stopping runtime ended the attempt.
            Ok(Some(Err(_))) | Err(_) => {}
            Ok(None) => return Err(worst(failed)),
        }
    }
}

/// Returns the most telling of all failures.
fn worst(failed: Vec<DialError>) -> DialError {
    let rank = |error: &DialError| match error {
        DialError::WrongKey { .. } => 2,
        DialError::Incompatible(_) => 1,
        DialError::Unreachable(_) => 0,
    };
    let text = failed.iter().map(DialError::to_string).collect::<Vec<_>>().join("; ");
    match failed.into_iter().max_by_key(rank) {
        Some(error @ (DialError::WrongKey { .. } | DialError::Incompatible(_))) => error,
        Some(DialError::Unreachable(_)) => DialError::Unreachable(text),
        None => DialError::Unreachable("no address of the home is known: ask for another invitation".into()),
    }
}

/// Explains why a handshake failed.
fn explain(error: ConnectionError, address: String) -> DialError {
    let alert = |alert: AlertDescription| TransportErrorCode::crypto(alert.into());
    let incompatible = |address| {
        DialError::Incompatible(format!(
            "{address} speaks another version than this program, or is no home: use the same version of starling on both sides"
        ))
    };
    match &error {
        ConnectionError::VersionMismatch => incompatible(address),
        // This end raised the alert; see `tls`.
        ConnectionError::TransportError(error) if error.code == alert(AlertDescription::AccessDenied) => {
            DialError::WrongKey { address }
        }
        ConnectionError::TransportError(_) => incompatible(address),
        ConnectionError::ConnectionClosed(close)
            if [AlertDescription::NoApplicationProtocol, AlertDescription::ProtocolVersion]
                .map(alert)
                .contains(&close.error_code) =>
        {
            incompatible(address)
        }
        ConnectionError::ConnectionClosed(close) if close.error_code == TransportErrorCode::CONNECTION_REFUSED => {
            DialError::Unreachable(format!("{address}: the home has no room for more connections: try again later"))
        }
        _ => DialError::Unreachable(format!("{address}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use tokio::time::{Instant, sleep};

    fn never() -> Attempt<u32> {
        Box::pin(pending())
    }

    fn after(time: Duration, made: u32) -> Attempt<u32> {
        Box::pin(async move {
            sleep(time).await;
            Ok(made)
        })
    }

    fn fails(error: DialError) -> Attempt<u32> {
        Box::pin(ready(Err(error)))
    }

    fn unreachable(text: &str) -> DialError {
        DialError::Unreachable(text.into())
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_address_is_tried_when_one_fails_or_is_silent_and_the_first_answer_is_taken() {
        let head_start = Duration::from_secs(4);
        let start = Instant::now();
        assert_eq!(first_of(vec![fails(unreachable("a")), never(), after(head_start, 1)], head_start).await, Ok(1));
        assert_eq!(start.elapsed(), 2 * head_start);
        let late = after(head_start + Duration::from_secs(1), 1);
        assert_eq!(first_of(vec![late, after(2 * head_start, 2)], head_start).await, Ok(1));
        assert_eq!(first_of(vec![after(head_start / 2, 1), after(Duration::ZERO, 2)], head_start).await, Ok(1));
    }

    #[tokio::test]
    async fn of_all_failures_a_wrong_key_is_told_first() {
        let wrong = DialError::WrongKey { address: "b".into() };
        let older = DialError::Incompatible("c".into());
        let all = [unreachable("a"), wrong.clone(), older.clone(), unreachable("d")].map(fails);
        assert_eq!(first_of(all.into(), ADDRESS_HEAD_START).await, Err(wrong));
        let all = [unreachable("a"), older.clone()].map(fails);
        assert_eq!(first_of(all.into(), ADDRESS_HEAD_START).await, Err(older));
        let all = [unreachable("a: no"), unreachable("b: no")].map(fails);
        assert_eq!(first_of(all.into(), ADDRESS_HEAD_START).await, Err(unreachable("a: no; b: no")));
        assert!(matches!(first_of::<u32>(vec![], ADDRESS_HEAD_START).await, Err(DialError::Unreachable(_))));
    }
}
