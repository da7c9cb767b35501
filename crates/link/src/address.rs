//! Where a node listens, and how to reach it.

use crate::frames::{Inbox, Outbox, Received};
use crate::lane::LinkError;
use crate::stream::{CONNECT_TIME_MAX, ReadEnd, WriteEnd, greet, invalid, plain, prepare};
use crate::tls::ClientKeys;
use crate::wire::{Message, Refused, frame};
use host::{Clock, Host, timeout};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Where a node listens.
#[derive(Clone)]
pub struct Address {
    /// Host name or IP address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Keys for TLS; `None` means plain TCP.
    pub keys: Option<ClientKeys>,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.keys.is_some() { "tls" } else { "tcp" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

impl Address {
    /// True if an error is about keys: those of one side do not suit the other's.
    pub fn is_about_keys(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<tokio_rustls::rustls::Error>())
    }

    /// Connects and exchanges greetings.
    pub(crate) async fn dial(&self, clock: &dyn Clock) -> io::Result<(ReadEnd, WriteEnd)> {
        let dialing = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            prepare(&stream)?;
            let (mut from, mut to) = match &self.keys {
                Some(keys) => keys.connect(stream).await?,
                None if !stream.peer_addr()?.ip().is_loopback() => {
                    return Err(io::Error::other("not on this machine: use --keys and tls://"));
                }
                None => plain(stream),
            };
            greet(&mut from, &mut to).await?;
            Ok((from, to))
        };
        timeout(clock, CONNECT_TIME_MAX, dialing).await.map_err(|_| io::ErrorKind::TimedOut)?
    }
}

/// The addresses at which a node may be, in the order in which to try them. The links that use them
/// follow changes. Cheap to clone.
#[derive(Clone)]
pub struct Addresses(Arc<watch::Sender<Vec<Address>>>);

impl Addresses {
    /// These addresses, for now.
    pub fn new(all: Vec<Address>) -> Addresses {
        Addresses(Arc::new(watch::Sender::new(all)))
    }

    /// Other addresses from now on. Links that have no connection try them at once, from the first
    /// one on. A connection that leads elsewhere than to the first one
    /// stays until there is one to the first.
    pub fn replace(&self, all: Vec<Address>) {
        self.0.send_replace(all);
    }

    /// Follows the addresses.
    pub(crate) fn follow(&self) -> watch::Receiver<Vec<Address>> {
        self.0.subscribe()
    }
}

impl From<Address> for Addresses {
    fn from(only: Address) -> Addresses {
        Addresses::new(vec![only])
    }
}

/// Sends one request and reads its answer, on a connection that has no other request.
pub(crate) async fn ask_alone(inbox: &mut Inbox, outbox: &Outbox, kind: u8, message: Message) -> io::Result<Message> {
    outbox.send(frame(0, kind, message));
    let Received { kind, message, .. } = inbox.next().await?;
    Refused::decode(kind).map_err(invalid)?.map_err(|refused| io::Error::other(LinkError::Refused(refused)))?;
    Ok(message)
}

/// Sends one request over a connection of its own, which may take `time` in all. After an error it
/// is unknown whether the request was served.
pub async fn ask_once(
    host: &Host,
    address: &Address,
    kind: u8,
    message: Message,
    time: Duration,
) -> io::Result<Message> {
    let asking = async {
        let (from, to) = address.dial(host.clock.as_ref()).await?;
        let (outbox, writing) = Outbox::new(to);
        host.tasks.spawn(Box::pin(writing));
        let answer = ask_alone(&mut Inbox::new(from), &outbox, kind, message).await;
        outbox.close();
        answer
    };
    timeout(host.clock.as_ref(), time, asking).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
