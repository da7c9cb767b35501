//! What must hold for each decoder and all bytes: it does not panic, it takes memory only in
//! proportion to the input, and bytes that it accepts encode to the same bytes again.
//!
//! Each check returns whether the decoder accepted the bytes. The fuzz targets call the checks; the
//! tests of this crate run them over the kept inputs in `fuzz/corpus` and random changes of them.

pub mod client;
pub mod cluster;
pub mod connection;
pub mod consensus;
pub mod home;
pub mod join;
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
