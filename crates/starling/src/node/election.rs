//! The start of a first node whose group has several voters: it waits until it leads, or learns
//! that another node has its place.

use crate::node::demotion;
use cluster::leading::Leading;
use cluster::machine::StartError;
use cluster::{AtNode, FsConfig, StorePlace};
use consensus::Consensus;
use host::Host;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use storage::api::Presence;
use types::{Maps, NodeId};

/// Time between two looks.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// Time between two questions to the stores at other nodes, and how long an answer may take.
const STORES_PERIOD: Duration = Duration::from_secs(1);
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// How long the wait may take before the user is told.
const QUIET_TIME_MAX: Duration = Duration::from_secs(5);

/// How an election ended for the former leader.
pub enum Outcome {
    /// It leads, until this is over.
    Leads(Arc<Leading>),
    /// Another node has its place, by these maps, in which it is this member.
    Succeeded(Maps, Box<FsConfig>, NodeId),
}

/// The newest maps of the stores at nodes. Voters do not reach this one if another node has its
/// place: the maps have another certificate for it.
async fn maps_at_nodes(host: &Host, places: &[StorePlace]) -> Option<Maps> {
    let ask = async |place: &StorePlace| {
        let StorePlace::Node(AtNode { remote, .. }) = place else { return None };
        let asked = async {
            let Presence::Store(identity) = remote.presence().await.ok()? else { return None };
            remote.expect(identity.fs, identity.store).await;
            remote.maps().await.ok()
        };
        host::timeout(&*host.clock, ANSWER_TIME_MAX, asked).await.ok()?
    };
    let asked = host::join_all(places.iter().map(ask).collect()).await;
    asked.into_iter().flatten().max_by_key(|maps| maps.epoch)
}

/// True if the stores at nodes say that other nodes vote, or that another one has the place of this
/// first node, which has no voter.
///
/// # Errors
/// The maps cannot be read.
pub async fn is_elsewhere(host: &Host, folder: &Path, places: &[StorePlace]) -> anyhow::Result<bool> {
    let Some(maps) = maps_at_nodes(host, places).await else { return Ok(false) };
    let config = FsConfig::decode(&maps.bytes)?;
    Ok(config.voters.len() > 1 || demotion::member(folder, &config)?.is_some())
}

/// Waits for an election. `folder` is the data folder of the first node, `places` are those of the
/// stores. Without a voter, which has lost its folder, it waits for the election of another node.
pub async fn wait(
    host: &Host,
    folder: &Path,
    voter: Option<&Arc<Consensus>>,
    places: &[StorePlace],
) -> anyhow::Result<Outcome> {
    let (begun, mut looked) = (host.clock.now(), None);
    let (mut is_told, mut newest) = (false, Maps::default());
    loop {
        let now = host.clock.now();
        let at_nodes = match looked.is_none_or(|looked| now > looked + STORES_PERIOD) {
            true => {
                looked = Some(now);
                maps_at_nodes(host, places).await
            }
            false => None,
        };
        let leads = voter.filter(|voter| voter.leadership().is_ready);
        let all = [Some(newest.clone()), voter.map(|voter| voter.maps()), at_nodes];
        newest = all.into_iter().flatten().max_by_key(|maps| maps.epoch).unwrap_or_default();
        if newest.epoch == 0 {
            host.clock.sleep(LOOK_PERIOD).await;
            continue;
        }
        let config = FsConfig::decode(&newest.bytes)?;
        if let Some(node) = demotion::member(folder, &config)? {
            return Ok(Outcome::Succeeded(newest, Box::new(config), node));
        }
        if demotion::is_removed(folder, &config)? {
            return Err(StartError::Succeeded.into());
        }
        if let Some(voter) = leads
            && let Some(leading) = Leading::begin(host, voter).await
        {
            return Ok(Outcome::Leads(leading));
        }
        if host.clock.now() > begun + QUIET_TIME_MAX && !std::mem::replace(&mut is_told, true) {
            let others = config.voters.keys().filter_map(|voter| config.reach_voter(*voter));
            let others = others.filter(|at| at.node != cluster::config::FIRST_NODE).map(|at| at.address);
            let others: Vec<String> = others.collect();
            eprintln!("waiting for a majority of the voters; the others are at {}", others.join(", "));
        }
        host.clock.sleep(LOOK_PERIOD).await;
    }
}
