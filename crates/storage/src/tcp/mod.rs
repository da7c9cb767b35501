//! A storage server over TCP or TLS: [`serve`] at the store, [`Remote`] at its clients.
//!
//! - `frames`: frames on a connection, written and read with few copies, system calls and
//!   hand-overs.
//! - `server`: the store's end; `remote`: the client's end; `tls`: keys, and connections that use
//!   them.
//!
//! One connection carries many requests at a time, and answers come in any order. A [`Remote`] has
//! two connections: one for large fragments, one for all other requests, so that a small commit
//! does not wait behind megabytes of a stream.
//!
//! When a connection breaks, all requests under way on it end as
//! [`StorageError::Unavailable`](crate::api::StorageError), which for a change means *unknown*.
//! Later requests fail at once until there is a new connection, so that readers turn to the rest of
//! the stripe without waiting. Plain TCP has no authentication and no encryption: it is only for
//! the loopback interface.

#[doc(hidden)]
pub mod frames;
mod remote;
mod server;
mod tls;

pub use remote::{Address, Remote};
pub use server::serve;
pub use tls::{ClientKeys, KeyError, ServerKeys, TLS_NAME};

use crate::wire::{GREETING_LEN, check_greeting, greeting};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use types::codec::DecodeError;

/// Most requests under way on one connection. Further ones wait.
const REQUESTS_MAX: usize = 128;
/// How long connecting may take, greetings and keys included.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);
/// How long the peer's machine may leave sent bytes unacknowledged before the connection counts as
/// broken. An idle connection is probed after this time.
const DEAD_TIME: Duration = Duration::from_secs(10);

/// The reading end of a TCP or TLS stream.
type ReadEnd = Box<dyn AsyncRead + Send + Unpin>;
/// The writing end of a TCP or TLS stream.
type WriteEnd = Box<dyn AsyncWrite + Send + Unpin>;

fn invalid(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Sets socket options: small requests leave at once, and a peer whose machine is gone is noticed.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(DEAD_TIME))?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(DEAD_TIME).with_interval(DEAD_TIME / 4))
}

/// Exchanges greetings.
async fn greet(from: &mut ReadEnd, to: &mut WriteEnd) -> io::Result<()> {
    to.write_all(&greeting()).await?;
    to.flush().await?;
    let mut theirs = [0; GREETING_LEN];
    from.read_exact(&mut theirs).await?;
    check_greeting(&theirs).map_err(|error| match error {
        DecodeError::Version { found, known, .. } => io::Error::new(
            io::ErrorKind::Unsupported,
            format!("it speaks version {found} of the storage protocol, this program {known}: use one starling on both sides"),
        ),
        other => invalid(other),
    })
}
