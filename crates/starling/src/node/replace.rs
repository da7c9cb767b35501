//! `starling store replace`, and the answer to it in the process of the node that has the store.

use crate::args::StoreReplace;
use crate::control::Request;
use crate::core_report::ServedCore;
use crate::location::Location;
use crate::mountpoint::check_apart;
use crate::node::ask_first;
use crate::node::remote::{NO_SESSION, OTHER_ANSWER};
use crate::node::run::ServedNode;
use crate::{say, usage};
use cluster::FsConfig;
use cluster::config::FIRST_NODE;
use cluster::control::{ControlAnswer, ControlRequest, NodeState};
use cluster::member::FirstNode;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use stripe::StoreSet;
use types::{NodeId, StoreId};

/// What the user gives up.
pub struct How {
    /// What the store has, though it works.
    pub is_dead: bool,
    /// What only it may have.
    pub accepts_loss: bool,
}

/// Has a store of this node be in another folder, empty. The answer for the command.
pub async fn replace(served: &ServedNode, store: StoreId, folder: &Path, how: How) -> Result<Value, String> {
    if let Some(mountpoint) = served.mountpoint.clone() {
        // It may ask the mount that this process serves.
        let folder = folder.to_path_buf();
        let checked = tokio::task::spawn_blocking(move || check_apart(&mountpoint, &folder)).await;
        checked.map_err(|e| e.to_string())?.map_err(|e| format!("{e:#}"))?;
    }
    let maps = served.member.maps().borrow().clone();
    let config = FsConfig::decode(&maps.bytes).map_err(|_| NO_SESSION)?;
    check_others(served, store, &config, &how).await?;
    if !config.is_whole && !how.accepts_loss {
        return Err(format!(
            "the other stores may not have everything that {store} had: one of them was made anew or lacked something when they were compared last. Wait until \
             `starling status` at the machine that leads says that redundancy is whole, or bring the old disk back; --accept-loss gives up what only it had"
        ));
    }
    let folder = served.rack.replace(store, folder, how.is_dead).await.map_err(|e| e.to_string())?;
    tracing::warn!(%store, folder = %folder.display(), "the store is in another folder from now on, and empty");
    Ok(json!({ "store": store.raw(), "folder": folder }))
}

/// Refuses if the store is at another node, or if others are away that are to fill it.
async fn check_others(served: &ServedNode, store: StoreId, config: &FsConfig, how: &How) -> Result<(), String> {
    let report = match served.first.control(ControlRequest::Nodes).await {
        Ok(ControlAnswer::Nodes(report)) => report,
        Ok(_) => return Err(OTHER_ANSWER.into()),
        Err(error) => {
            return Err(format!("the machine that leads must say whether the other stores are there: {error}"));
        }
    };
    let place = |store| report.places.get(&store).copied().unwrap_or(FIRST_NODE);
    if !config.stores().any(|other| other == store) {
        return Err(format!("there is no {store}"));
    }
    if place(store) != served.about.node() {
        let at = report.nodes.iter().find(|node| node.id == place(store));
        let name = at.map_or("another node", |node| &node.name);
        return Err(format!("{store} is at {name}: give this command there, with its data folder"));
    }
    let is_down = |node: NodeId| report.nodes.iter().any(|n| n.id == node && matches!(n.state, NodeState::Down { .. }));
    let seen = served.member.stores_away().await.ok_or(NO_SESSION)?;
    let is_away = |other: &StoreId| is_down(place(*other)) || seen.iter().any(|away| away == *other);
    let away: StoreSet = config.stores().filter(|other| *other != store && is_away(other)).collect();
    let lost = 1 + away.iter().count();
    if lost > 1 && !(how.accepts_loss && lost <= usize::from(config.parity)) {
        return Err(format!("{away} is away, too: bring that back first, since {store} is filled from the others"));
    }
    Ok(())
}

/// Why a first node with stores of its own does not do so, and what helps.
pub fn at_first_node(served: &ServedCore, store: StoreId) -> String {
    match served.places.places().get(usize::from(store.raw())) {
        Some(Location::Folder(folder)) => format!(
            "{store} is used by the first node itself, in {}: end that (`starling down`), mount the new disk there, empty, and start it \
             again. The others fill the store",
            folder.display()
        ),
        Some(Location::Node(_)) => {
            format!("{store} is at another node (`starling nodes`): give this command there, with its data folder")
        }
        Some(Location::Server { .. }) => format!(
            "{store} is served by `starling store`: start that with an empty folder, and then this node again. The others fill the store"
        ),
        None => format!("there is no {store}"),
    }
}

/// `starling store replace`.
pub async fn run(args: StoreReplace) -> anyhow::Result<ExitCode> {
    let StoreReplace { store, folder, data, dead, accept_loss, json } = args;
    let number = store.strip_prefix("store-").unwrap_or(&store).parse();
    let number: u16 = number.map_err(|_| usage(format!("{store} is no store: give it as in store-1")))?;
    let folder = std::path::absolute(&folder)?;
    let request = Request::ReplaceStore { store: number, folder, is_dead: dead, accepts_loss: accept_loss };
    let answer = ask_first(&data, request).await?;
    say(&match json {
        true => serde_json::to_string_pretty(&answer)?,
        false => format!(
            "store-{number} is in {} from now on. The machine that leads makes it anew there within half a minute, and the others fill it",
            answer["folder"].as_str().unwrap_or("?")
        ),
    });
    Ok(ExitCode::SUCCESS)
}
