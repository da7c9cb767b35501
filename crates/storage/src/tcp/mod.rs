//! Storage servers over TCP or TLS, as one service of a node ([`link`]): [`StoreService`] at the
//! node that has the stores, [`LinkedStore`] and [`Remote`] at its clients.
//!
//! When a connection breaks, all requests under way on it end as
//! [`StorageError::Unavailable`](crate::api::StorageError), which for a change means *unknown*.
//! Later requests fail at once until there is a new connection, so that readers turn to the rest of
//! the stripe without waiting.

mod remote;
mod server;

pub use link::{Address, ClientKeys, KeyError, ServerKeys, TLS_NAME};
pub use remote::{LinkedStore, Remote};
pub use server::{StoreService, serve};
