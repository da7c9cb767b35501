//! What 0-RTT would save a client that comes back. For measuring.
//!
//! Makes connections as homes and clients do, with one question and its answer.
//! [`Listener`](crate::Listener) and [`QuicDialer`](crate::QuicDialer) do not use 0-RTT, for the
//! reasons in `tls`.

use crate::identity::Identity;
use crate::tls;
use crate::transport;
use crate::transport::any_socket;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, Incoming, ServerConfig, TokioRuntime};
use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// Bytes of the question and of its answer: about as many as attaching to a volume takes.
const QUESTION_LEN: usize = 64;
/// Longest wait for the answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(120);

type Failed = Box<dyn Error + Send + Sync>;

/// A home that answers every question, and its client's session tickets. Runs until it is dropped.
pub struct Early {
    runtime: Runtime,
    address: SocketAddr,
    client: ClientConfig,
}

impl Early {
    /// Starts a home on loopback.
    pub fn new(home: &Identity, client: &Identity) -> Result<Early, Failed> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let mut of_home = tls::of_home(home)?;
        of_home.max_early_data_size = u32::MAX;
        let of_home = Arc::new(QuicServerConfig::try_from(of_home)?);
        let mut server = ServerConfig::with_crypto(of_home);
        server.transport_config(Arc::new(transport::common()));
        let _inside = runtime.enter();
        let socket = transport::socket(([127, 0, 0, 1], 0).into())?;
        let address = socket.local_addr()?;
        let endpoint = Endpoint::new(transport::home_endpoint(home), Some(server), socket, Arc::new(TokioRuntime))?;
        let mut of_client = tls::of_client(client, home.key())?;
        of_client.enable_early_data = true;
        let mut client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(of_client)?));
        client.transport_config(Arc::new(transport::common()));
        runtime.spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                tokio::spawn(serve(incoming));
            }
        });
        Ok(Early { runtime, address, client })
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects to the address `via`, asks a question, and returns the time until the answer. The
    /// first connection shows certificates. Later ones show the ticket of the one before. With a
    /// ticket the question can also go `early`, before the home has proved its key.
    pub fn come_back(&self, via: SocketAddr, early: bool) -> Result<Duration, Failed> {
        self.runtime.block_on(async { timeout(ANSWER_TIME_MAX, self.ask(via, early)).await? })
    }

    async fn ask(&self, via: SocketAddr, early: bool) -> Result<Duration, Failed> {
        let endpoint = Endpoint::new(transport::endpoint(), None, any_socket()?, Arc::new(TokioRuntime))?;
        let begun = Instant::now();
        let connecting = endpoint.connect_with(self.client.clone(), via, crate::identity::NAME)?;
        let connection = match early {
            true => {
                let (connection, is_taken) = connecting.into_0rtt().map_err(|_| "there is no ticket")?;
                let answered = question(&connection).await;
                if !is_taken.await {
                    return Err("the home rejected the early data".into());
                }
                answered?;
                connection
            }
            false => {
                let connection = connecting.await?;
                question(&connection).await?;
                connection
            }
        };
        let took = begun.elapsed();
        // The next ticket is on its way.
        tokio::time::sleep(connection.rtt() * 4).await;
        connection.close(0u32.into(), b"");
        endpoint.wait_idle().await;
        Ok(took)
    }
}

fn question(connection: &Connection) -> impl Future<Output = Result<(), Failed>> {
    let connection = connection.clone();
    async move {
        let (mut send, mut receive) = connection.open_bi().await?;
        send.write_all(&[0; QUESTION_LEN]).await?;
        send.finish()?;
        receive.read_to_end(QUESTION_LEN).await?;
        Ok(())
    }
}

/// Answers each question with its own bytes.
async fn serve(incoming: Incoming) -> Result<(), Failed> {
    let (connection, _) = incoming.accept()?.into_0rtt().map_err(|_| "a home can answer at once")?;
    loop {
        let (mut send, mut receive) = connection.accept_bi().await?;
        let bytes = receive.read_to_end(QUESTION_LEN).await?;
        send.write_all(&bytes).await?;
        send.finish()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_back_can_ask_early() {
        let folder = tempfile::tempdir().expect("folder");
        let identity = |name| Identity::load_or_make(folder.path(), name).expect("identity");
        let early = Early::new(&identity("home"), &identity("client")).expect("home");
        let come = |is_early| early.come_back(early.address(), is_early);
        assert!(come(true).is_err(), "there is no ticket yet");
        for is_early in [false, false, true, true] {
            come(is_early).unwrap_or_else(|error| panic!("early: {is_early}: {error}"));
        }
    }
}
