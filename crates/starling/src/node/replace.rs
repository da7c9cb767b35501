//! `starling store replace`, and the answer to it in the process of the node that has the store.

use crate::args::StoreReplace;
use crate::control::Request;
use crate::core_report::ServedCore;
use crate::node::ask_first;
use crate::node::run::ServedNode;
use crate::{say, usage};
use cluster::FsConfig;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use types::StoreId;

/// What the user gives up.
pub struct How {
    /// What the store has, though it works.
    pub is_dead: bool,
    /// What only it may have.
    pub accepts_loss: bool,
}

/// Has a store of this node be in another folder, empty. The answer for the command.
pub async fn replace(served: &ServedNode, store: StoreId, folder: &Path, how: How) -> Result<Value, String> {
    let maps = served.member.maps().borrow().clone();
    let is_whole = FsConfig::decode(&maps.bytes).is_ok_and(|config| config.is_whole);
    if !is_whole && !how.accepts_loss {
        return Err(format!(
            "the other stores may not have everything that {store} had: one of them was made anew or lacked something when they were compared last. Wait until \
             `starling status` at the machine that leads says that redundancy is whole, or bring the old disk back; --accept-loss gives up what only it had"
        ));
    }
    let folder = served.rack.replace(store, folder, how.is_dead).await.map_err(|e| e.to_string())?;
    tracing::warn!(%store, folder = %folder.display(), "the store is in another folder from now on, and empty");
    Ok(json!({ "store": store.raw(), "folder": folder }))
}

/// Why a first node with stores of its own does not do so, and what helps.
pub fn at_first_node(served: &ServedCore, store: StoreId) -> String {
    match served.places.places().get(usize::from(store.raw())) {
        Some(place) => format!(
            "{store} is used by the first node itself, in {place}: end that (`starling down`), mount the new disk there, empty, and start it \
             again. The others fill the store"
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
            "store-{number} is in {} from now on. The machine that leads makes it anew there within some ten seconds, and the others fill it",
            answer["folder"].as_str().unwrap_or("?")
        ),
    });
    Ok(ExitCode::SUCCESS)
}
