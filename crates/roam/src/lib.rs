//! Roaming clients: file systems that keep working over slow, intermittent or absent networks.
//!
//! A client answers programs from its replica of the home's files, logs what they change, and sends
//! the log home when it can.
//!
//! - [`replica`]: what a client knows, caches and has done. Pure.
//! - [`client`]: the client; `opening`: opens its cache; `live`: its state in memory; `durability`:
//!   when the log is durable; [`settings`]: how a mount behaves.
//! - `files`: files and directories as programs see them.
//! - `cache`: what is cached, how it is fetched, and what is evicted for room.
//! - `connection`: the connection to the home, who uses a slow link next, and what the client
//!   fetches before the link is lost.
//! - `consistency`: what a client may believe and change without asking: delegations and locks.
//! - `reintegration`: how changes made here reach the home, and how conflicts are handled.

mod cache;
pub mod client;
mod connection;
mod consistency;
mod durability;
mod files;
mod live;
mod opening;
mod reintegration;
pub mod replica;
pub mod settings;
#[cfg(test)]
mod testing;

pub use cache::data_files::data_name;
pub use cache::eviction::Fullness;
pub use cache::hoard;
pub use client::{CacheError, Client};
pub use connection::predisconnect::Missing;
pub use connection::state::LinkState;
pub use connection::trunk::{Line, Trunk};
pub use connection::{schedule, trunk};
pub use consistency::kernel::Forget;
pub use durability::COMMIT_TIME_MAX;
pub use files::filesystem::VALID;
pub use replica::conflict;
pub use settings::{
    Consistency, Durability, IDLE_WAIT_MAX, SHARE_MAX, SILENCE_BELIEVED, SettingError, Settings, Unit, Validation,
    Writes,
};
