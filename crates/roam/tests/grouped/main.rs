//! One program has these tests: to build one for each takes longer than to run them.

mod conformance;
mod crashes;
mod dedup;
mod handover;
mod holes;
mod locking;
mod locks;
mod meanwhile;
mod merging;
mod near;
mod own_folder;
mod predisconnect;
mod regressions_cache;
mod restored;
#[path = "../rig/mod.rs"]
mod rig;
mod strong;
mod volumes;
