//! The checks of all fuzz targets, over the kept inputs and random changes of them, for toolchains
//! without a fuzzer.

mod client;
mod cluster;
mod consensus;
mod home;
mod join;
mod manager;
mod record_log;
mod replay;
mod roam;
mod roam_proto;
mod storage;
mod striped_log;
mod trace;
mod vfs;
