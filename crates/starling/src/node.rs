//! Nodes: several processes that serve one file system, each with a data folder and an identity.
//!
//! - [`identity`]: the files with the authority, keys and certificates.
//! - [`first`]: the first node's listener. [`invite`]: its invitations. [`hosts`]: its way to nodes
//!   that serve managers.
//! - [`joined`]: the data folder of a node that has joined, or is joining. [`joining`]: the
//!   exchange by which it joins. [`remote`]: the first node, as it reaches it. [`run`]: its
//!   process.
//! - [`report`]: what `starling nodes` shows; [`status`]: what `starling status` shows of a node
//!   that has joined; [`who`]: what `starling who` shows.
//! - [`places`]: where the stores are, in the first node's data folder. [`rack`]: the stores that a
//!   joined node has; [`serving`] and [`roles`]: what it serves and does, as its data folder
//!   remembers it.
//! - [`removal`]: removes a node, with the stores that are lost with it. [`replace`]: puts a store
//!   of a node on another disk.
//! - [`recover`]: makes a node that has joined into the first node, if that is lost.
//! - [`voter`]: the node's voter. [`lead`]: the first node in the process of a member that voters
//!   elect. [`election`]: the wait of a first node for it. [`demotion`]: makes the data folder of a
//!   former first node into a member's.
//! - [`whereabouts`]: where the first node is, whose address may change. [`kept_maps`]: where other
//!   nodes are.

use crate::control::{Request, ask_from};
use crate::usage;
use serde_json::Value;
use std::path::Path;

pub mod demotion;
pub mod election;
pub mod first;
pub mod hosts;
pub mod identity;
pub mod invite;
pub mod joined;
pub mod joining;
pub mod kept_maps;
pub mod lead;
pub mod orders;
pub mod places;
pub mod rack;
pub mod recover;
pub mod remote;
pub mod removal;
pub mod replace;
pub mod report;
pub mod roles;
pub mod run;
pub mod serving;
pub mod status;
pub mod voter;
pub mod whereabouts;
pub mod who;

/// Asks the process of the first node, by its data folder.
async fn ask_first(data: &Path, request: Request) -> anyhow::Result<Value> {
    let answer = ask_from(data, request).await.map_err(|e| usage(format!("{e:#}")))?;
    let data = data.display();
    answer.ok_or_else(|| {
        usage(format!(
            "no file system is served from {data}: `starling up MOUNTPOINT --data {data} --listen ADDRESS:PORT`"
        ))
    })
}

/// The name of this machine; empty if it has none.
pub fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_string()
}
