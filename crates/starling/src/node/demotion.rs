//! Makes the data folder of a former first node into that of a member, after voters have elected
//! another node.
//!
//! The maps have a member for it already, with the stores that it has: see
//! [`after_election`](cluster::succession::after_election). Each step can be repeated: `node.json`,
//! with which the folder is a member's, is written when all others are done.

use crate::folder::{Folder, STORES, Stores};
use crate::location::Location;
use crate::node::identity;
use crate::node::joined::{self, AboutNode};
use crate::node::rack::{self, MadeStores};
use crate::node::roles::{self, Roles};
use crate::node::serving::{self, Serves};
use crate::node::voter;
use crate::{private, usage};
use anyhow::Context;
use cluster::FsConfig;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use types::NodeId;

/// The member that this machine is by these maps; `None` if it is none.
pub fn member(folder: &Path, config: &FsConfig) -> anyhow::Result<Option<NodeId>> {
    let own = identity::as_members(folder)?;
    Ok(own.iter().find_map(|fingerprint| config.member_of(fingerprint)).map(|(node, _)| node))
}

/// True if another machine has the place of this first node by these maps, and this one is no
/// member: it was removed.
pub fn is_removed(folder: &Path, config: &FsConfig) -> anyhow::Result<bool> {
    let own = identity::as_members(folder)?;
    let is_first = config.first_node.is_none_or(|first| own.contains(&first));
    Ok(!is_first && member(folder, config)?.is_none())
}

fn put(folder: &Path, name: &str, contents: &impl Serialize) -> anyhow::Result<()> {
    identity::put(folder, name, &serde_json::to_string_pretty(contents)?)
}

/// Makes the folder into that of member `node`.
pub fn demote(
    folder: &Folder,
    stores: &Stores,
    config: &FsConfig,
    node: NodeId,
    listen: SocketAddr,
    mounts: bool,
) -> anyhow::Result<()> {
    let path = folder.path();
    let name = config.members.get(&node).map(|member| member.name.clone()).unwrap_or_default();
    let mut made = BTreeMap::new();
    for (store, place) in config.stores().zip(&stores.places) {
        if let (Location::Folder(place), true) = (place, config.place(store) == node) {
            made.insert(store.raw(), path.join(place));
        }
    }
    let others: Vec<String> = config.reachable().filter(|at| at.node != node).map(|at| at.address).collect();
    if others.is_empty() {
        return Err(usage("no other node has an address: `starling nodes` at another one shows them"));
    }
    // As any member's: it has the key of the file system's authority.
    std::fs::set_permissions(path, Permissions::from_mode(0o700)).context("data folder")?;
    put(path, rack::FILE, &MadeStores::new(made))?;
    put(path, serving::FILE, &Serves::new(listen, vec![path.to_path_buf()]))?;
    put(path, roles::FILE, &Roles::of_former_first(mounts))?;
    // If the folder of its voter is lost, no other one takes its id.
    config.voter_of(node).map_or(Ok(()), |voter| voter::remember(path, voter))?;
    identity::become_member(path)?;
    put(path, joined::ABOUT, &AboutNode::of_former_first(config.fs, node, name, others))?;
    std::fs::remove_file(path.join(STORES)).context(STORES)?;
    private::sync(path).context("data folder")
}
