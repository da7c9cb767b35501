//! The stream below a connection: TCP, perhaps with TLS, after both ends have greeted.

use crate::wire::{GREETING_LEN, check_greeting, greeting};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use types::codec::DecodeError;

/// How long connecting may take, greetings and keys included.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);
/// How long the peer's machine may leave sent bytes unacknowledged before the connection counts as
/// broken. An idle connection is probed after this time.
pub const DEAD_TIME: Duration = Duration::from_secs(10);

/// The reading end of a TCP or TLS stream.
pub type ReadEnd = Box<dyn AsyncRead + Send + Unpin>;
/// The writing end of a TCP or TLS stream.
pub type WriteEnd = Box<dyn AsyncWrite + Send + Unpin>;

pub(crate) fn invalid(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Sets socket options: small requests leave at once, and a peer whose machine is gone is noticed.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(DEAD_TIME))?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(DEAD_TIME).with_interval(DEAD_TIME / 4))
}

/// The two ends of a stream without TLS.
pub(crate) fn plain(stream: TcpStream) -> (ReadEnd, WriteEnd) {
    let (from, to) = stream.into_split();
    (Box::new(from), Box::new(to))
}

/// Exchanges greetings.
pub(crate) async fn greet(from: &mut ReadEnd, to: &mut WriteEnd) -> io::Result<()> {
    to.write_all(&greeting()).await?;
    to.flush().await?;
    let mut theirs = [0; GREETING_LEN];
    from.read_exact(&mut theirs).await?;
    check_greeting(&theirs).map_err(|error| match error {
        DecodeError::Version { found, known, .. } => io::Error::new(
            io::ErrorKind::Unsupported,
            format!("it speaks version {found} of the protocol between nodes, this program {known}: use one starling on both sides"),
        ),
        other => invalid(other),
    })
}
