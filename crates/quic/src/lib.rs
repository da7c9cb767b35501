//! QUIC connections between roaming clients and homes: the traits of [`roam_proto::channel`] on
//! real networks.
//!
//! - [`identity`]: a machine's key.
//! - [`token`]: an invitation to a home, as a line of text.
//! - `tls`: which end proves what to the other. `transport`: limits and times for links from a
//!   modem's to a LAN's. `congestion`: how fast to send.
//! - `listener`: the home's end. `dialer` and `channel`: the client's end.
//! - `early`, with the feature of that name: what 0-RTT would save, for measuring.
//! - `stream`: messages on streams. `count`: how many messages were pushed, asked in datagrams.
//!
//! A request is a bidirectional stream of its own. The client writes a byte for its
//! [`Class`](roam_proto::channel::Class) and the message, and finishes. The home writes the answer
//! with the same priority, and finishes. A stream that is reset carries nothing. The home pushes
//! over one unidirectional stream, with each message behind its length (u32). Datagrams ask and
//! answer how many messages the home has pushed. A peer that breaks these rules loses the
//! connection.
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
pub use token::Token;
