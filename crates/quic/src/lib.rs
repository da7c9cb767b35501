//! Connections between clients that roam and homes over QUIC: the traits of [`roam_proto::channel`]
//! on real networks.
//!
//! - [`identity`]: the key that a machine is known by.
//! - [`token`]: an invitation to a home, as a line of text.
//! - `tls`: who proves what to whom. `transport`: limits and times for links from a modem's to a
//!   LAN's. `congestion`: how fast to send.
//! - `listener`: the home's end. `dialer` and `channel`: the client's.
//! - `early`, with the feature of that name: what 0-RTT would save, for measuring.
//! - `stream`: messages on streams. `count`: how much was pushed, in datagrams.
//!
//! A request is a bidirectional stream of its own: the client writes a byte for its
//! [`Class`](roam_proto::channel::Class) and the message, and finishes; the home writes the answer
//! with the same priority, and finishes. A stream that is reset carries nothing. What the home
//! pushes goes over one unidirectional stream, each message behind its length (u32). How much that
//! was is asked and answered in datagrams. Who breaks these rules loses the connection.
//!
//! Everything runs on the tokio runtime in which it was made.

mod channel;
mod congestion;
mod count;
mod dialer;
#[cfg(feature = "early")]
pub mod early;
pub mod identity;
mod listener;
mod stream;
mod tls;
pub mod token;
mod transport;

pub use dialer::QuicDialer;
pub use identity::{Identity, IdentityError};
pub use listener::{ListenError, Listener};
pub use token::{Token, TokenError};
