//! Puts the roles of the core together on one machine.
//!
//! - [`config`]: a file system's configuration, which is the contents of its maps.
//! - [`maps`]: the maps in force, decided by the consensus engine and kept by every store.
//! - [`machine`]: creation, start with recovery, stop.
//! - [`stores`]: the places of the stores; creates and opens them.
//! - [`spread`]: moves stores to nodes that have joined. [`switch`]: a store whose place can
//!   change; `store_copy`: copies a store while it is used.
//! - [`cleaner`]: moves live blocks out of segments worth emptying.
//! - [`maintenance`]: checkpoints, deletion of empty segments, when to clean, room for writers.
//! - [`manager_service`]: serves managers to clients on other nodes; [`remote_manager`]: these
//!   clients' end. `gate`: the door to a manager, which closes before it moves. [`switch_lane`]:
//!   the way to one that moves; [`manager_ways`]: the ways to all of them.
//! - [`seats`]: which node serves which manager; [`seating`]: tells members. [`seat`]: a manager as
//!   the first node has it. [`host_service`]: the managers that a node which has joined serves.
//! - [`restore`]: compares stores and restores lost redundancy.
//! - `table`: follows which segments exist, and how many live bytes they have.
//! - `room`: the room on the stores, and the part of it that writers may use.
//! - `space`: the free room, divided among the clients of all nodes.
//! - [`lease`], [`control`]: leases of members' sessions, and the messages about them.
//! - [`members`]: the first node's side of sessions. [`member`]: the other nodes' side.
//!   [`survivors`]: sessions that go on after a start of the first node. [`aside`]: where a node
//!   keeps what its sessions that are over had not synced.
//! - [`lock_server`], [`shared_locks`]: one table of file locks for the clients of all nodes;
//!   [`remote_locks`]: over connections; `lock_wire`: a lock as bytes.
//! - `drain`: moves the stores of a node to others. [`removal`]: removes a node, with the stores
//!   that are lost with it.
//! - `voters`: which nodes vote. [`leading`]: until when the one that leads may serve.
//! - [`succession`]: which machine is the first node, and how another one takes its place.
//! - [`check`]: the offline check behind `starling fsck`.

pub mod aside;
pub mod check;
pub mod cleaner;
pub mod config;
pub mod control;
mod drain;
mod gate;
pub mod host_service;
pub mod leading;
pub mod lease;
mod limits;
pub mod lock_server;
mod lock_wire;
pub mod machine;
pub mod maintenance;
pub mod manager_service;
pub mod manager_ways;
pub mod maps;
pub mod member;
mod member_fs;
pub mod members;
mod node_writer;
mod refill;
pub mod remote_locks;
pub mod remote_manager;
pub mod removal;
pub mod restore;
mod room;
pub mod seat;
pub mod seating;
pub mod seats;
pub mod shared_locks;
mod space;
pub mod spread;
mod start_error;
mod store_copy;
pub mod stores;
pub mod succession;
pub mod survivors;
pub mod switch;
pub mod switch_lane;
mod table;
mod unreached;
pub mod voters;

pub use config::{FsConfig, KnownNode};
pub use machine::{CoreMachine, Create, Run, StartError};
pub use stores::{AtNode, StorePlace};
pub use succession::{Claim, Succession};
