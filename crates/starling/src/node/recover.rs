//! `starling node recover`: makes a node that has joined into the first node, after the first one
//! was lost for good.
//!
//! It only prepares the node's data folder, and changes nothing at other nodes. The next
//! `starling up` makes the change: see [`cluster::succession`]. So it can be cut short and given
//! again at any time.

use crate::args::NodeRecover;
use crate::folder::{Folder, Stores, Succeeds, place_at_node};
use crate::location::Location;
use crate::node::identity::{self, NodeIdentity};
use crate::node::joined::{AboutNode, NodeFolder};
use crate::node::rack::StoreRack;
use crate::node::serving::Serves;
use crate::node::whereabouts::{ask_for_news, is_led_from};
use crate::node::{joined, rack, roles, serving, voter, whereabouts};
use crate::{private, say, usage};
use anyhow::Context;
use cluster::config::FIRST_NODE;
use cluster::{AtNode, FsConfig, KnownNode};
use host::{Host, join_all};
use link::ClientKeys;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use storage::api::Presence;
use types::{Maps, StoreId};

/// How long a node may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Rounds of asking nodes for newer maps: each may name nodes that the one before did not.
const ROUNDS_MAX: usize = 5;

/// Where a store is, as far as this node can see.
enum Whereabouts {
    /// In this folder of this node.
    Here(PathBuf),
    /// At another node. The error says why that does not answer.
    There(KnownNode, Result<(), String>),
    /// It was at the first node.
    Lost,
}

/// What is left of the file system.
struct Remains {
    config: FsConfig,
    stores: BTreeMap<StoreId, Whereabouts>,
}

impl Remains {
    fn count(&self, is_counted: impl Fn(&Whereabouts) -> bool) -> usize {
        self.stores.values().filter(|store| is_counted(store)).count()
    }

    /// Refuses to go on if too few stores are left.
    fn check(&self) -> anyhow::Result<()> {
        let with_data = self.count(|at| matches!(at, Whereabouts::Here(_) | Whereabouts::There(_, Ok(()))));
        let lost = self.count(|at| matches!(at, Whereabouts::Lost));
        if with_data >= self.config.least_with_data() && with_data + lost >= self.config.least_stores() {
            return Ok(());
        }
        let shown: Vec<String> = self.stores.iter().map(|(store, at)| format!("{store} {}", self.shown(at))).collect();
        Err(usage(format!(
            "only {with_data} of {} stores are there, and at least {} are needed: {}. Start the nodes that have the others, and try again",
            self.stores.len(),
            self.config.least_with_data(),
            shown.join("; ")
        )))
    }

    fn name(&self, node: types::NodeId) -> String {
        self.config.members.get(&node).map_or_else(|| node.to_string(), |member| format!("node {}", member.name))
    }

    fn shown(&self, at: &Whereabouts) -> String {
        match at {
            Whereabouts::Here(_) => "is here".into(),
            Whereabouts::There(at, Ok(())) => format!("is at {}", self.name(at.node)),
            Whereabouts::There(at, Err(why)) => {
                format!("is at {}, which does not answer at {} ({why})", self.name(at.node), at.address)
            }
            Whereabouts::Lost => "is lost with the first node; it is made anew here, from the others".into(),
        }
    }
}

/// Runs `starling node recover`.
pub async fn run(args: NodeRecover) -> anyhow::Result<ExitCode> {
    let shown = args.data.display();
    if !joined::is_node_folder(&args.data) {
        return Err(usage(match Folder::is_new(&args.data) {
            true => format!("{shown} belongs to no node: give the data folder of a node that has joined"),
            false => format!("{shown} is the first node's: start it with `starling up --data {shown}`"),
        }));
    }
    let folder = NodeFolder::open(&args.data)?;
    let about = folder.about()?.ok_or_else(|| usage(format!("{shown}: this node has not joined yet")))?;
    let identity = identity::of_joined(folder.path())?;
    if !identity::has_authority(folder.path())? {
        return Err(usage(format!(
            "{shown} has no ca.key: this node got it from no session with the first node; give this command at another node"
        )));
    }
    let host = host::real::host(tokio::runtime::Handle::current()).context("host")?;
    let keys = identity.for_connections()?;
    refuse_if_there(&host, &about.first_node, &keys).await?;
    let serves = Serves::known(folder.path())?;
    let folders = serves.as_ref().map(|serves| serves.stores.clone()).unwrap_or_default();
    let rack = StoreRack::open(&host, about.file_system()?, about.node(), &folder, folders).await?;
    let looked = look(&host, &about, &keys, &rack).await;
    rack.close().await?;
    let remains = looked?;
    let certificate = join::fingerprint_of(&identity.certificate).context("the certificate of this node")?;
    if remains.config.member_of(&certificate).is_none_or(|(node, _)| node != about.node()) {
        return Err(usage(
            "this node belongs to the file system no longer, so it cannot take the place of the first one",
        ));
    }
    refuse_if_there(&host, &said_by_others(&host, &about, &keys, &remains.config).await, &keys).await?;
    remains.check()?;
    if !args.yes && !std::io::stdin().is_terminal() {
        return Err(usage("nothing was changed: say --yes"));
    }
    tell(&remains, &about);
    if !args.yes {
        confirm()?;
    }
    let parent = args.store.as_deref().map(std::path::absolute).transpose().context("--store")?;
    prepare(&folder, &about, &identity, &remains, parent.as_deref())?;
    let listen = serves.map_or("ADDRESS:PORT".to_string(), |serves| serves.listen.to_string());
    let next = format!("starling up MOUNTPOINT --data {shown} --listen {listen}");
    if args.json {
        let numbers = |is_in: fn(&Whereabouts) -> bool| -> Vec<u16> {
            let found = remains.stores.iter().filter(|(_, at)| is_in(at));
            found.map(|(store, _)| store.raw()).collect()
        };
        let report = json!({
            "file_system": about.file_system,
            "here": numbers(|at| matches!(at, Whereabouts::Here(_))),
            "elsewhere": numbers(|at| matches!(at, Whereabouts::There(_, Ok(())))),
            "away": numbers(|at| matches!(at, Whereabouts::There(_, Err(_)))),
            "lost": numbers(|at| matches!(at, Whereabouts::Lost)),
            "next": next,
        });
        say(&serde_json::to_string_pretty(&report)?);
    } else {
        say(&format!(
            "{shown} is ready to be the first node's. Start it without --store, and the other nodes find it:\n  {next}"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses to go on if the first node answers at one of these addresses.
async fn refuse_if_there(host: &Host, addresses: &[String], keys: &ClientKeys) -> anyhow::Result<()> {
    let ask = |text: &String| {
        let (address, text) = (whereabouts::address(text, keys), text.clone());
        async move { is_led_from(host, &address?, ANSWER_TIME_MAX).await.then_some(text) }
    };
    match join_all(addresses.iter().map(ask).collect()).await.into_iter().flatten().next() {
        Some(address) => Err(usage(format!(
            "the first node answers at {address}: nothing needs to be recovered. If it is to be given up, end it with `starling down` there"
        ))),
        None => Ok(()),
    }
}

/// Where the other nodes say that the first one is. It may have come to another address, or another
/// node may lead, since this node has heard of it.
async fn said_by_others(host: &Host, about: &AboutNode, keys: &ClientKeys, config: &FsConfig) -> Vec<String> {
    let others: Vec<KnownNode> = config.reachable().filter(|at| at.node != about.node()).collect();
    let asked = others.iter().map(|at| ask_for_news(host, at, keys, &about.first_node, false));
    join_all(asked.collect()).await.into_iter().flatten().collect()
}

/// Reads the newest maps of the stores that can be reached, and finds out where all stores are.
async fn look(host: &Host, about: &AboutNode, keys: &ClientKeys, rack: &StoreRack) -> anyhow::Result<Remains> {
    let none = || {
        usage(
            "this node has no store, so it does not know where the others are: give this command at a node that has one",
        )
    };
    let mut newest = rack.newest_maps().ok_or_else(none)?;
    for _ in 0..ROUNDS_MAX {
        let config = FsConfig::decode(&newest.bytes).context("the maps of the stores")?;
        let asked = config.stores().map(|store| find(host, about, keys, rack, &config, store));
        let found = join_all(asked.collect()).await;
        let newer = found.iter().filter_map(|(_, maps)| maps.clone()).max_by_key(|maps| maps.epoch);
        match newer.filter(|maps| maps.epoch > newest.epoch) {
            Some(maps) => newest = maps,
            None => {
                let stores = config.stores().zip(found.into_iter().map(|(at, _)| at)).collect();
                return Ok(Remains { config, stores });
            }
        }
    }
    Err(usage("the maps of the stores change all the time: another first node is at work"))
}

/// Finds a store, with the maps that it has.
async fn find(
    host: &Host,
    about: &AboutNode,
    keys: &ClientKeys,
    rack: &StoreRack,
    config: &FsConfig,
    store: StoreId,
) -> (Whereabouts, Option<Maps>) {
    let node = config.place(store);
    if node == FIRST_NODE {
        return (Whereabouts::Lost, None);
    }
    if node == about.node()
        && let Some(folder) = rack.folder(store)
    {
        return (Whereabouts::Here(folder), None);
    }
    let at = config.reach(node);
    let at = at.unwrap_or(KnownNode { node, address: String::new(), fingerprint: [0; 32] });
    let asked = async {
        let AtNode { remote, .. } = place_at_node(host, keys, store, &at)?;
        let Presence::Store(identity) = remote.presence().await? else { anyhow::bail!("it has no such store") };
        remote.expect(identity.fs, identity.store).await;
        anyhow::Ok(remote.maps().await?)
    };
    let answer = host::timeout(&*host.clock, ANSWER_TIME_MAX, asked).await;
    match answer.map_err(anyhow::Error::new).and_then(|answer| answer) {
        Ok(maps) => (Whereabouts::There(at, Ok(())), Some(maps)),
        Err(why) => (Whereabouts::There(at, Err(format!("{why:#}"))), None),
    }
}

/// Tells the user what is assumed, and what is going to happen.
fn tell(remains: &Remains, about: &AboutNode) {
    eprintln!("the first node of file system {} does not answer at {}", about.file_system, about.first_node.join(", "));
    for (store, at) in &remains.stores {
        eprintln!("  {store} {}", remains.shown(at));
    }
    eprintln!(
        "Node {} becomes the first node. Go on only if the old one is lost for good, or is off and stays off: its data folder is of no use any \
         more. Nothing is lost that was synced, or that another node has not synced yet.",
        about.name
    );
}

fn confirm() -> anyhow::Result<()> {
    eprint!("Go on? (yes/no) ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "yes" => Ok(()),
        _ => Err(usage("nothing was changed")),
    }
}

/// Makes the folder into a first node's. It stays a joined node's until `node.json` is removed.
fn prepare(
    folder: &NodeFolder,
    about: &AboutNode,
    identity: &NodeIdentity,
    remains: &Remains,
    parent: Option<&Path>,
) -> anyhow::Result<()> {
    let path = folder.path();
    let mut places = Vec::new();
    for (store, at) in &remains.stores {
        places.push(match at {
            Whereabouts::Here(folder) => Location::Folder(folder.clone()),
            Whereabouts::There(at, _) => Location::Node(at.clone()),
            Whereabouts::Lost => {
                let name = format!("store-{}", store.raw());
                let (place, full) = match parent {
                    Some(parent) => (parent.join(&name), parent.join(&name)),
                    None => (PathBuf::from(&name), path.join(&name)),
                };
                make_empty(&full)?;
                Location::Folder(place)
            }
        });
    }
    let succeeds = Succeeds::new(about.node(), remains.config.first_node);
    // The group that this node votes in has lost its majority, and the maps give it another voter.
    voter::remove_all(path)?;
    crate::folder::write_stores(path, &Stores::succeeding(places, succeeds)).context("stores.json")?;
    identity::prepare_first(path, identity)?;
    for name in [joined::ABOUT, serving::FILE, roles::FILE, rack::FILE] {
        match std::fs::remove_file(path.join(name)) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e).context(name),
            _ => private::sync(path).context("data folder")?,
        }
    }
    identity::settle(path)
}

/// Makes a folder for a store, or checks that it is empty.
fn make_empty(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    std::fs::create_dir_all(path).map_err(|e| usage(format!("store folder {shown}: {e}")))?;
    match std::fs::read_dir(path).map_err(|e| usage(format!("{shown}: {e}")))?.next() {
        None => Ok(()),
        Some(_) => Err(usage(format!("{shown} is not empty: give another folder with --store"))),
    }
}
