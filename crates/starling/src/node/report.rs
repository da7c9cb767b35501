//! What `starling nodes` shows.

use crate::args::Process;
use crate::control::{Request, ask_process};
use crate::node::remote::{NO_SESSION, OTHER_ANSWER, RemoteFirstNode};
use crate::roaming_status::{age, seconds_left};
use crate::size;
use cluster::FsConfig;
use cluster::config::FIRST_NODE;
use cluster::control::{ControlAnswer, ControlRequest, Moving, NodeReport, NodeState, NodesReport, Redundancy};
use cluster::member::FirstNode;
use cluster::members::Members;
use cluster::voters::goes_on_without;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;
use types::{NodeId, StoreId};

/// A node, as the first one sees it.
pub struct NodeLine {
    /// Its name.
    pub name: String,
    /// True if it holds a lease. The first node needs none.
    pub is_up: bool,
    /// How long it has been down, if it is and that is known.
    pub down_for: Option<Duration>,
    /// Its stores and managers move to others.
    pub is_draining: bool,
    /// Where other nodes reach it, as host:port; empty if they do not.
    pub address: String,
    /// What it does: `client` (it has the file system mounted), `storage` (it has stores),
    /// `manager` (it serves managers, or may), `voter`.
    pub roles: Vec<&'static str>,
    /// The stores that it serves.
    pub stores: Vec<u16>,
    /// How many managers it serves.
    pub manager_count: usize,
    /// What is left of its lease.
    pub lease: Option<Duration>,
    /// The version of its program; empty if unknown.
    pub version: String,
}

/// All nodes, as JSON, and the name of the one that leads.
pub fn nodes_json(
    nodes: &[NodeLine],
    leader: &str,
    survives: &str,
    spreading: Option<String>,
    redundancy: Redundancy,
) -> Value {
    let node = |node: &NodeLine| {
        json!({
            "name": node.name,
            "state": match (node.is_up, node.is_draining) {
                (true, false) => "up",
                (true, true) => "draining",
                (false, _) => "down",
            },
            "address": node.address,
            "roles": node.roles,
            "stores": node.stores,
            "managers": node.manager_count,
            "down_s": node.down_for.map(|time| time.as_secs()),
            "lease_s": node.lease.map(|left| left.as_millis() as f64 / 1000.0),
            "version": Some(&node.version).filter(|version| !version.is_empty()),
        })
    };
    json!({
        "nodes": nodes.iter().map(node).collect::<Vec<_>>(),
        "leader": leader,
        "survives": survives,
        "spreading": spreading,
        "redundancy": redundancy_json(redundancy),
    })
}

fn redundancy_json(redundancy: Redundancy) -> Value {
    match redundancy {
        Redundancy::Unknown => json!({ "state": "unknown" }),
        Redundancy::Whole => json!({ "state": "whole" }),
        Redundancy::Lacks { bytes, time_left } => json!({
            "state": "lacks",
            "bytes": bytes,
            "left_s": time_left.map(seconds_left),
        }),
    }
}

/// What is being restored, as a line.
fn restoring(redundancy: &Value) -> Option<String> {
    let bytes = redundancy["bytes"].as_u64()?;
    let left = redundancy["left_s"].as_u64().map(|left| format!(": {} left", age(&json!(left))));
    let (bytes, left) = (size::show(bytes), left.unwrap_or_default());
    Some(format!("stores lack {bytes}, which they get from the others{left}"))
}

/// So few nodes bear the end of one that votes.
const VOTERS_MIN: usize = 3;

/// Who leads, and who votes.
struct Votes {
    leader: NodeId,
    voters: BTreeSet<NodeId>,
    /// The leader serves all managers.
    serves_all: bool,
}

fn name_of(node: NodeId, names: &BTreeMap<NodeId, String>) -> String {
    names.get(&node).cloned().unwrap_or_else(|| node.to_string())
}

/// What is not there.
#[derive(Default)]
struct Away {
    /// Nodes that are down.
    down: BTreeSet<NodeId>,
    /// Stores that are out of service.
    stores: BTreeSet<StoreId>,
}

/// What the file system survives now, without what is away. The leader serves the managers of nodes
/// that die. A node that has more stores than parity makes up for must not end.
fn survives(
    parity: u8,
    places: &BTreeMap<StoreId, NodeId>,
    names: &BTreeMap<NodeId, String>,
    Away { down, stores }: &Away,
    votes: &Votes,
) -> String {
    let name = |node: &NodeId| name_of(*node, names);
    let count = |node: NodeId| places.values().filter(|place| **place == node).count();
    let absent: Vec<NodeId> = down.iter().copied().filter(|node| count(*node) > 0).collect();
    let of_nodes: usize = absent.iter().map(|node| count(*node)).sum();
    let others = stores.iter().filter_map(|store| Some((store, places.get(store)?)));
    let others: Vec<_> = others.filter(|(_, node)| !down.contains(node)).collect();
    let away = of_nodes + others.len();
    let needed: Vec<String> = names.keys().filter(|node| count(**node) > parity.into()).map(name).collect();
    let is_spread = needed.is_empty();
    let first = name(&votes.leader);
    let votes_left = votes.voters.difference(down).count();
    // Of those that are there, so many may go.
    let spare_votes = votes_left.saturating_sub(votes.voters.len() / 2 + 1);
    let serves = match (votes.voters.len(), votes.serves_all) {
        (0 | 1, true) => format!("{first} serves the managers and the only voter"),
        (0 | 1, false) => format!("{first} serves the only voter, and the managers of nodes that die"),
        (all, _) if votes_left == all => format!("{first} leads, and {all} nodes vote"),
        (all, _) => format!("{first} leads, and {votes_left} of {all} nodes vote"),
    };
    if away > 0 {
        let others = others.iter().map(|(store, node)| format!("{store} of {}", name(node)));
        let who: Vec<String> = absent.iter().map(name).chain(others).collect();
        let back = match (absent.len(), of_nodes, who.len()) {
            (0, _, 1) => "is back, or another has its place",
            (1, 1, 1) => "is back with its store",
            (1, _, 1) => "is back with its stores",
            (all, _, who) if all == who => "are back with their stores",
            _ => "are back",
        };
        let spare = match usize::from(parity).saturating_sub(away) {
            0 => "the loss of no store".to_string(),
            1 => "the loss of any one store".to_string(),
            spare => format!("the loss of any {spare} stores"),
        };
        return format!("{spare} until {} {back}; {serves}", who.join(" and "));
    }
    let disks = match (is_spread, parity) {
        (true, _) => "the loss of the stores of any one node".to_string(),
        (false, 1) => "the loss of any one store".to_string(),
        (false, parity) => format!("the loss of any {parity} stores"),
    };
    match spare_votes {
        0 if votes.voters.len() > 1 => format!("the end of no node that votes, and {disks}; {serves}"),
        0 => format!("the end of any node but {first}, and {disks}; {serves}"),
        _ if is_spread => format!("the end of any node, and {disks}; {serves}"),
        _ => format!("the end of any node but {}, and {disks}; {serves}", needed.join(" and ")),
    }
}

/// Why only one node votes, if more could do so; `None` if several do, or there is no other node.
fn votes_alone(report: &NodesReport, config: &FsConfig, names: &BTreeMap<NodeId, String>) -> Option<String> {
    if report.nodes.iter().filter(|node| node.is_voter).count() > 1 || report.nodes.len() < 2 {
        return None;
    }
    let leader = name_of(report.leader, names);
    let is_there = |node: &&NodeReport| matches!(node.state, NodeState::Up { .. }) && !node.is_draining;
    let there = report.nodes.iter().filter(is_there).count();
    let its_stores = report.places.values().filter(|place| **place == report.leader).count();
    let placed = FsConfig { places: report.places.clone(), ..config.clone() };
    let why = if there < VOTERS_MIN {
        format!(
            "{there} nodes are there, and {VOTERS_MIN} are needed to vote; let others join with --listen and --store"
        )
    } else if !goes_on_without(&placed, report.leader) {
        format!(
            "it has {its_stores} stores, without which the others cannot go on; they vote when others have taken enough"
        )
    } else {
        "others do not, or not yet; those with --listen do so once started with --roles client,storage,manager,voter"
            .into()
    };
    Some(format!("only {leader} votes: {why}"))
}

/// What happens to the places of stores; `None` if nothing does.
fn spreading(report: &NodesReport, names: &BTreeMap<NodeId, String>) -> Option<String> {
    match report.spread.moving {
        Some(Moving { store, to, percent, time_left }) => {
            let to = name_of(to, names);
            let left = time_left.map(|left| format!(", {} left", age(&json!(seconds_left(left)))));
            Some(format!("{store} moves to {to}: {percent}% copied{}", left.unwrap_or_default()))
        }
        None => Some(report.spread.trouble.clone()).filter(|trouble| !trouble.is_empty()),
    }
}

/// All nodes, as the first one reports them.
fn of_core(report: &NodesReport, config: &FsConfig) -> Value {
    let stores_of = |node| report.places.iter().filter(move |(_, place)| **place == node).map(|(store, _)| store.raw());
    let state = |report: &NodeReport| {
        // A first node that is no member needs no lease.
        let is_first = report.id == FIRST_NODE;
        let stores: Vec<u16> = stores_of(report.id).collect();
        let client = report.is_mounted.then_some("client");
        let (is_up, down_for, lease) = match report.state {
            NodeState::Up { lease_left } => (true, None, Some(lease_left).filter(|_| !is_first)),
            NodeState::Down { since } => (false, since, None),
        };
        let storage = (!stores.is_empty()).then_some("storage");
        let manager = (report.manager_count > 0 || report.takes_managers).then_some("manager");
        let voter = report.is_voter.then_some("voter");
        NodeLine {
            name: report.name.clone(),
            is_up,
            down_for,
            is_draining: report.is_draining,
            address: report.address.clone(),
            roles: [client, storage, manager, voter].into_iter().flatten().collect(),
            stores,
            manager_count: report.manager_count.into(),
            lease,
            version: report.program.clone(),
        }
    };
    let names: BTreeMap<NodeId, String> = report.nodes.iter().map(|node| (node.id, node.name.clone())).collect();
    let lines: Vec<NodeLine> = report.nodes.iter().map(state).collect();
    let is_down = |node: &&NodeReport| matches!(node.state, NodeState::Down { .. });
    let down: BTreeSet<NodeId> = report.nodes.iter().filter(is_down).map(|node| node.id).collect();
    let serves_all = report.nodes.iter().all(|node| node.id == report.leader || node.manager_count == 0);
    let voters = report.nodes.iter().filter(|node| node.is_voter).map(|node| node.id).collect();
    let votes = Votes { leader: report.leader, voters, serves_all };
    let away = Away { down, stores: report.away.clone() };
    let survives = survives(config.parity, &report.places, &names, &away, &votes);
    let leader = names.get(&report.leader).cloned().unwrap_or_default();
    let survives = match (report.redundancy, survives.split_once(';')) {
        (Redundancy::Lacks { .. }, Some((what, who))) => format!("{what}, once stores have what they lack;{who}"),
        (Redundancy::Unknown, Some((what, who))) if !survives.contains(" until ") => {
            format!("{what}, if the stores have everything, which is being looked at;{who}")
        }
        _ => survives,
    };
    let mut all = nodes_json(&lines, &leader, &survives, spreading(report, &names), report.redundancy);
    all["votes_alone"] = json!(votes_alone(report, config, &names));
    all["moving"] = json!(report.spread.moving.map(|moving| {
        json!({
            "store": moving.store.raw(),
            "to": name_of(moving.to, &names),
            "percent": moving.percent,
            "left_s": moving.time_left.map(seconds_left),
        })
    }));
    all
}

/// The answer of the first node.
pub fn from_first(members: &Members, config: &FsConfig) -> Result<Value, String> {
    let report = members.nodes().map_err(|e| e.to_string())?;
    Ok(of_core(&report, config))
}

/// The answer of a node that has joined: it asks the first one.
pub async fn from_joined(first: &RemoteFirstNode) -> Result<Value, String> {
    match first.control(ControlRequest::Nodes).await {
        Ok(ControlAnswer::Nodes(report)) => {
            let config = first.config().ok_or(NO_SESSION)?;
            Ok(of_core(&report, &config))
        }
        Ok(_) => Err(OTHER_ANSWER.into()),
        Err(error) => Err(error.to_string()),
    }
}

/// `starling nodes`: asks the process that serves a mount, or from a data folder.
pub async fn run(process: &Process, as_json: bool) -> anyhow::Result<ExitCode> {
    let all = ask_process(process, Request::Nodes, |_| {}).await?;
    if as_json {
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(ExitCode::SUCCESS);
    }
    for node in all["nodes"].as_array().into_iter().flatten() {
        println!("{}", line(node));
    }
    println!("survives {}", all["survives"].as_str().unwrap_or("?"));
    for line in [&all["votes_alone"], &all["spreading"]].into_iter().filter_map(Value::as_str) {
        println!("{line}");
    }
    if let Some(restoring) = restoring(&all["redundancy"]) {
        println!("{restoring}");
    }
    Ok(ExitCode::SUCCESS)
}

fn line(node: &Value) -> String {
    let text = |field: &str| node[field].as_str().filter(|text| !text.is_empty()).unwrap_or("-");
    let roles: Vec<_> = node["roles"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut parts = vec![roles.join(", ")];
    let stores = node["stores"].as_array().map_or(0, Vec::len) as u64;
    let counts = [(stores, "store"), (node["managers"].as_u64().unwrap_or(0), "manager")];
    let counted = counts.iter().filter(|(count, _)| *count > 0);
    let counted: Vec<String> =
        counted.map(|(count, what)| format!("{count} {what}{}", if *count == 1 { "" } else { "s" })).collect();
    parts.push(counted.join(", "));
    parts.extend(node["down_s"].is_u64().then(|| format!("down for {}", age(&node["down_s"]))));
    parts.extend(node["lease_s"].as_f64().map(|left| format!("lease {left:.1} s")));
    parts.extend(node["version"].as_str().map(|version| format!("version {version}")));
    parts.retain(|part| !part.is_empty());
    let line = format!("{:<16}  {:<4}  {:<21}  {}", text("name"), text("state"), text("address"), parts.join("; "));
    line.trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::config::MemberEntry;
    use cluster::control::SpreadReport;

    fn first() -> NodeLine {
        NodeLine {
            name: "one".into(),
            is_up: true,
            down_for: None,
            is_draining: false,
            address: "10.0.0.1:7440".into(),
            roles: vec!["client", "storage", "manager", "voter"],
            stores: vec![0, 1, 2],
            manager_count: 2,
            lease: None,
            version: "0.1.0".into(),
        }
    }

    #[test]
    fn nodes_are_shown_as_json_and_as_lines() {
        let lease = Some(Duration::from_millis(6500));
        let two =
            NodeLine { name: "two".into(), roles: vec!["client"], stores: vec![], manager_count: 0, lease, ..first() };
        let three = NodeLine {
            name: "three".into(),
            is_up: false,
            down_for: Some(Duration::from_secs(300)),
            is_draining: false,
            address: String::new(),
            roles: vec![],
            stores: vec![],
            manager_count: 0,
            lease: None,
            version: String::new(),
        };
        let lacks = Redundancy::Lacks { bytes: 120 << 20, time_left: Some(Duration::from_secs(35)) };
        let all = nodes_json(&[first(), two, three], "one", "the loss of any store", None, lacks);
        let said = restoring(&all["redundancy"]);
        assert_eq!(said.as_deref(), Some("stores lack 120.0 MiB, which they get from the others: 35 s left"));
        assert_eq!(restoring(&redundancy_json(Redundancy::Whole)), None);
        assert_eq!((&all["leader"], &all["survives"]), (&json!("one"), &json!("the loss of any store")));
        let nodes = &all["nodes"];
        assert_eq!(
            (&nodes[0]["stores"], &nodes[0]["managers"], &nodes[0]["lease_s"]),
            (&json!([0, 1, 2]), &json!(2), &Value::Null)
        );
        assert_eq!((&nodes[1]["lease_s"], &nodes[1]["roles"]), (&json!(6.5), &json!(["client"])));
        assert_eq!((&nodes[2]["state"], &nodes[2]["version"]), (&json!("down"), &Value::Null));
        let lines: Vec<String> = nodes.as_array().unwrap().iter().map(line).collect();
        let without_stores = line(&json!({ "name": "four", "roles": ["manager"], "managers": 1 }));
        assert!(without_stores.ends_with("manager; 1 manager"), "{without_stores}");
        assert!(
            lines[0].ends_with("client, storage, manager, voter; 3 stores, 2 managers; version 0.1.0"),
            "{}",
            lines[0]
        );
        assert!(lines[1].ends_with("client; lease 6.5 s; version 0.1.0"), "{}", lines[1]);
        assert!(lines[2].starts_with("three             down  -"), "{}", lines[2]);
        assert!(lines[2].ends_with("  down for 5 min"), "{}", lines[2]);
    }

    fn report(id: u16, name: &str, state: NodeState, is_mounted: bool) -> NodeReport {
        let (id, name, address) = (NodeId::new(id), name.to_string(), String::new());
        let manager_count = if id == FIRST_NODE { 2 } else { 0 };
        let program = if is_mounted { format!("version of {name}") } else { String::new() };
        let (takes_managers, is_draining) = (id == FIRST_NODE, false);
        let is_voter = id == FIRST_NODE;
        NodeReport {
            id,
            name,
            address,
            state,
            is_mounted,
            manager_count,
            takes_managers,
            is_voter,
            is_draining,
            program,
        }
    }

    /// Three nodes, the last one down, with the stores at these.
    fn all_of(places: [u16; 3], spread: SpreadReport) -> Value {
        let config = crate::node::joined::tests::config();
        let lease_left = Duration::from_secs(5);
        let nodes = vec![
            report(0, "one", NodeState::Up { lease_left }, true),
            report(1, "two", NodeState::Up { lease_left }, true),
            report(2, "three", NodeState::Down { since: None }, false),
        ];
        let places = (0..).map(StoreId::new).zip(places.map(NodeId::new)).collect();
        let redundancy = Redundancy::Whole;
        of_core(&NodesReport { nodes, leader: FIRST_NODE, places, away: BTreeSet::new(), spread, redundancy }, &config)
    }

    #[test]
    fn the_first_node_serves_all_stores_and_managers_at_first() {
        let all = all_of([0, 0, 0], SpreadReport::default());
        let of =
            |field: &str| all["nodes"].as_array().unwrap().iter().map(|node| node[field].clone()).collect::<Vec<_>>();
        assert_eq!(of("stores"), [json!([0, 1, 2]), json!([]), json!([])]);
        assert_eq!(of("managers"), [json!(2), json!(0), json!(0)]);
        assert_eq!(of("roles"), [json!(["client", "storage", "manager", "voter"]), json!(["client"]), json!([])]);
        assert_eq!(of("lease_s"), [Value::Null, json!(5.0), Value::Null]);
        assert_eq!(of("version"), [json!("version of one"), json!("version of two"), Value::Null]);
        assert_eq!(of("state"), [json!("up"), json!("up"), json!("down")]);
        assert_eq!(
            all["survives"],
            "the end of any node but one, and the loss of any one store; one serves the managers and the only voter"
        );
        assert_eq!(all["spreading"], Value::Null);
    }

    #[test]
    fn why_only_one_node_votes_is_said() {
        let why = |places: [u16; 3], change: fn(&mut NodesReport)| {
            let first = MemberEntry { name: "n0".into(), fingerprint: [9; 32], address: String::new() };
            let config = FsConfig { first_member: Some(first), ..crate::node::joined::tests::config() };
            let up = NodeState::Up { lease_left: Duration::from_secs(5) };
            let nodes = (0..3).map(|id| report(id, &format!("n{id}"), up, true)).collect();
            let places = (0..).map(StoreId::new).zip(places.map(NodeId::new)).collect();
            let (spread, redundancy) = (SpreadReport::default(), Redundancy::Whole);
            let mut all = NodesReport { nodes, leader: FIRST_NODE, places, away: BTreeSet::new(), spread, redundancy };
            change(&mut all);
            of_core(&all, &config)["votes_alone"].as_str().map(str::to_string)
        };
        let said = |places, change| why(places, change).unwrap();
        assert!(said([0, 1, 2], |_| ()).starts_with("only n0 votes: others do not, or not yet"));
        assert!(said([0, 0, 2], |_| ()).starts_with("only n0 votes: it has 2 stores"));
        let leaves = |all: &mut NodesReport| all.nodes[2].is_draining = true;
        assert!(said([0, 1, 1], leaves).starts_with("only n0 votes: 2 nodes are there, and 3 are needed"));
        assert_eq!(why([0, 0, 0], |all| all.nodes.truncate(1)), None, "there is no other");
        assert_eq!(why([0, 1, 2], |all| all.nodes[1].is_voter = true), None);
    }

    #[test]
    fn what_is_survived_depends_on_where_the_stores_are() {
        let time_left = Some(Duration::from_secs(70));
        let moving = Some(Moving { store: StoreId::new(1), to: NodeId::new(2), percent: 40, time_left });
        let all = all_of([0, 0, 1], SpreadReport { moving, trouble: "earlier".into() });
        assert_eq!(all["spreading"], "store-1 moves to three: 40% copied, 70 s left");
        assert_eq!(all["moving"], json!({ "store": 1, "to": "three", "percent": 40, "left_s": 70 }));
        assert!(all["survives"].as_str().unwrap().contains("but one, and the loss of any one store;"), "{all}");
        let all = all_of([0, 2, 1], SpreadReport { moving: None, trouble: "no room".into() });
        assert_eq!((&all["nodes"][2]["roles"], &all["spreading"]), (&json!(["storage"]), &json!("no room")));
        let said = all["survives"].as_str().unwrap();
        assert!(said.starts_with("the loss of no store until three is back with its store;"), "{said}");
        let all = all_of([2, 2, 1], SpreadReport::default());
        assert!(all["survives"].as_str().unwrap().contains("until three is back with its stores;"), "{all}");
        let names = (0..3).map(|node| (NodeId::new(node), format!("n{node}"))).collect();
        let survive = |parity, places: &[u16]| {
            let places = (0..).map(StoreId::new).zip(places.iter().copied().map(NodeId::new)).collect();
            let votes = Votes { leader: FIRST_NODE, voters: BTreeSet::from([FIRST_NODE]), serves_all: parity == 1 };
            survives(parity, &places, &names, &Away::default(), &votes)
        };
        assert!(survive(1, &[0, 2, 1]).contains("the loss of the stores of any one node;"));
        assert!(survive(2, &[0, 0, 1, 1, 2]).contains("the loss of the stores of any one node;"));
        assert!(survive(2, &[0, 2, 1]).ends_with("n0 serves the only voter, and the managers of nodes that die"));
        assert!(survive(2, &[0, 0, 0, 1, 2]).contains("the loss of any 2 stores;"));
    }

    #[test]
    fn with_several_voters_any_node_may_end() {
        let all: BTreeSet<NodeId> = (0..3).map(NodeId::new).collect();
        let names = all.iter().map(|node| (*node, format!("n{}", node.raw()))).collect();
        let places = (0..3).map(|at| (StoreId::new(at), NodeId::new(at))).collect();
        let votes = Votes { leader: NodeId::new(1), voters: all, serves_all: false };
        assert_eq!(
            survives(1, &places, &names, &Away::default(), &votes),
            "the end of any node, and the loss of the stores of any one node; n1 leads, and 3 nodes vote"
        );
        let away = |down: &[u16], stores: &[u16]| Away {
            down: down.iter().copied().map(NodeId::new).collect(),
            stores: stores.iter().copied().map(StoreId::new).collect(),
        };
        let said = survives(1, &places, &names, &away(&[2], &[2]), &votes);
        assert!(said.ends_with("n1 leads, and 2 of 3 nodes vote"), "{said}");
        assert!(said.starts_with("the loss of no store until n2 is back with its store;"), "{said}");
        let said = survives(1, &places, &names, &away(&[], &[1]), &votes);
        assert!(
            said.starts_with("the loss of no store until store-1 of n1 is back, or another has its place;"),
            "{said}"
        );
        let said = survives(2, &places, &names, &away(&[2], &[1]), &votes);
        assert!(said.starts_with("the loss of no store until n2 and store-1 of n1 are back;"), "{said}");
        let places = BTreeMap::from([(StoreId::new(0), NodeId::new(0))]);
        let said = survives(1, &places, &names, &away(&[2], &[]), &votes);
        assert!(said.starts_with("the end of no node that votes, and"), "{said}");
    }
}
