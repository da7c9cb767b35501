//! What must hold of decoders, whatever the bytes: no panic, no more memory than the bytes are worth, and what is accepted comes
//! back from what it encodes to.
//!
//! Each check tells whether the bytes were accepted. The tests run them without a fuzzer, see replay.rs.

pub mod client;
pub mod cluster;
pub mod connection;
pub mod consensus;
pub mod home;
pub mod manager;
pub mod parts;
pub mod record_log;
pub mod roam;
pub mod roam_proto;
pub mod session;
pub mod storage;
pub mod striped_log;
pub mod trace;
pub mod vfs;
