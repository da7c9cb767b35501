//! The fringe's clients (design, section 4): they keep working over slow, intermittent or absent networks.
//!
//! - [`replica`]: what a client knows and has done; `roam_proto::oplog`: what of that its home has not heard of; [`conflict`]: what becomes of what
//!   cannot be done at home. All pure.
//! - [`client`]: the client as a file system: `filesystem` answers from what is known, `listings` numbers what is in directories, `content` reads and writes, `holes` does where not all is cached, `fetch` asks the home, `link` keeps the
//!   connection, [`trunk`] shares it among volumes, `together` fetches small files, `replay` sends home what
//!   was done, `seen` waits until that is durable there, `there` finds what of that the
//!   home has; `delegation`: working under what the home has promised; `locking`: locks between mounts; [`hoard`]: what is kept; `room`: what is
//!   given up for other things, and who waits for room; `metadata`: the
//!   bound of cached attributes and names; `omens` and `leaving`: whether the link may soon be
//!   lost, and what is done before;
//!   [`schedule`]: who uses a slow link next; [`settings`]: how a mount behaves.

pub mod client;
pub mod conflict;
mod content;
mod delegation;
mod durability;
mod fetch;
mod filesystem;
pub mod hoard;
mod holes;
mod leaving;
mod link;
mod listings;
mod live;
mod locking;
mod metadata;
mod names;
mod omens;
mod replay;
pub mod replica;
mod room;
pub mod schedule;
mod seen;
pub mod settings;
mod shown;
mod silence;
mod small;
#[cfg(test)]
mod testing;
mod there;
mod together;
pub mod trunk;

pub use client::{CacheError, Client, data_name};
pub use durability::COMMIT_TIME_MAX;
pub use filesystem::VALID;
pub use leaving::Missing;
pub use live::{Forget, LinkState};
pub use room::Fullness;
pub use settings::{Consistency, Durability, IDLE_WAIT_MAX, SHARE_MAX, Settings, Unit, Validation, Writes};
pub use silence::SILENCE_BELIEVED;
pub use trunk::{Line, Trunk};
