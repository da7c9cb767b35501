//! What `starling nodes` shows.

use crate::control::{Request, ask, ask_from};
use crate::node::remote::RemoteFirstNode;
use crate::usage;
use cluster::FsConfig;
use cluster::config::FIRST_NODE;
use cluster::control::{ControlAnswer, ControlRequest, NodeReport, NodeState};
use cluster::member::FirstNode;
use cluster::members::Members;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// A node, as the first one sees it.
pub struct NodeLine {
    /// Its name.
    pub name: String,
    /// True if it holds a lease. The first node needs none.
    pub is_up: bool,
    /// Where other nodes reach it, as host:port; empty if they do not.
    pub address: String,
    /// What it does: `store`, `manager`, `voter`, `mount`.
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

/// All nodes, as JSON. The first one leads.
pub fn nodes_json(nodes: &[NodeLine], survives: &str) -> Value {
    let node = |node: &NodeLine| {
        json!({
            "name": node.name,
            "state": if node.is_up { "up" } else { "down" },
            "address": node.address,
            "roles": node.roles,
            "stores": node.stores,
            "managers": node.manager_count,
            "lease_s": node.lease.map(|left| left.as_millis() as f64 / 1000.0),
            "version": Some(&node.version).filter(|version| !version.is_empty()),
        })
    };
    json!({
        "nodes": nodes.iter().map(node).collect::<Vec<_>>(),
        "leader": nodes.first().map(|first| &first.name),
        "survives": survives,
    })
}

/// What a file system survives now whose stores, managers and only voter the first node serves.
fn survives(parity: u8, first: &str) -> String {
    let stores = match parity {
        0 => "the loss of no store".to_string(),
        1 => "the loss of any one store".to_string(),
        parity => format!("the loss of any {parity} stores"),
    };
    format!("{stores}, and the end of any node but {first}, which serves the stores, the managers and the only voter")
}

/// All nodes, as the first one reports them. It serves all stores and managers.
fn of_core(reports: &[NodeReport], config: &FsConfig) -> Value {
    let state = |report: &NodeReport| {
        let is_first = report.id == FIRST_NODE;
        let mounts = report.is_mounted.then_some("mount");
        let (is_up, lease) = match report.state {
            NodeState::Up { lease_left } => (true, Some(lease_left).filter(|_| !is_first)),
            NodeState::Down { .. } => (false, None),
        };
        NodeLine {
            name: report.name.clone(),
            is_up,
            address: report.address.clone(),
            roles: is_first.then_some(["store", "manager", "voter"]).into_iter().flatten().chain(mounts).collect(),
            stores: config.stores().filter(|_| is_first).map(|store| store.raw()).collect(),
            manager_count: if is_first { config.manager_ids().len() } else { 0 },
            lease,
            version: if is_first { env!("CARGO_PKG_VERSION").to_string() } else { String::new() },
        }
    };
    let first = reports.first().map_or("the first node", |first| &first.name);
    nodes_json(&reports.iter().map(state).collect::<Vec<_>>(), &survives(config.parity, first))
}

/// The answer of the first node.
pub fn from_first(members: &Members, config: &FsConfig) -> Result<Value, String> {
    let reports = members.nodes().map_err(|e| e.to_string())?;
    Ok(of_core(&reports, config))
}

/// The answer of a node that has joined: it asks the first one.
pub async fn from_joined(first: &RemoteFirstNode) -> Result<Value, String> {
    match first.control(ControlRequest::Nodes).await {
        Ok(ControlAnswer::Nodes(reports)) => {
            let config = first.config().ok_or("there was no session with the first node yet")?;
            Ok(of_core(&reports, &config))
        }
        Ok(_) => Err("the first node gave another answer".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// `starling nodes`: asks the process that serves a mount, or from a data folder.
pub async fn run(mountpoint: Option<&Path>, data: Option<&Path>, as_json: bool) -> anyhow::Result<ExitCode> {
    let all = match (mountpoint, data) {
        (Some(mountpoint), _) => ask(mountpoint, Request::Nodes, |_| {}).await?,
        (None, Some(data)) => {
            let answer = ask_from(data, Request::Nodes).await?;
            answer.ok_or_else(|| usage(format!("no file system is served from {}", data.display())))?
        }
        (None, None) => return Err(usage("give the mount point, or --data DIR")),
    };
    if as_json {
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(ExitCode::SUCCESS);
    }
    for node in all["nodes"].as_array().into_iter().flatten() {
        println!("{}", line(node));
    }
    println!("survives {}", all["survives"].as_str().unwrap_or("?"));
    Ok(ExitCode::SUCCESS)
}

fn line(node: &Value) -> String {
    let text = |field: &str| node[field].as_str().filter(|text| !text.is_empty()).unwrap_or("-");
    let roles: Vec<_> = node["roles"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut line = format!("{:<16}  {:<4}  {:<21}  {}", text("name"), text("state"), text("address"), roles.join(", "));
    let stores = node["stores"].as_array().map_or(0, Vec::len);
    if stores > 0 {
        line += &format!("; {stores} stores, {} managers", node["managers"]);
    }
    if let Some(left) = node["lease_s"].as_f64() {
        line += &format!("; lease {left:.1} s");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first() -> NodeLine {
        NodeLine {
            name: "one".into(),
            is_up: true,
            address: "10.0.0.1:7440".into(),
            roles: vec!["store", "manager", "voter", "mount"],
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
            NodeLine { name: "two".into(), roles: vec!["mount"], stores: vec![], manager_count: 0, lease, ..first() };
        let three = NodeLine {
            name: "three".into(),
            is_up: false,
            address: String::new(),
            roles: vec![],
            stores: vec![],
            manager_count: 0,
            lease: None,
            version: String::new(),
        };
        let all = nodes_json(&[first(), two, three], "the loss of any store");
        assert_eq!((&all["leader"], &all["survives"]), (&json!("one"), &json!("the loss of any store")));
        let nodes = &all["nodes"];
        assert_eq!(
            (&nodes[0]["stores"], &nodes[0]["managers"], &nodes[0]["lease_s"]),
            (&json!([0, 1, 2]), &json!(2), &Value::Null)
        );
        assert_eq!((&nodes[1]["lease_s"], &nodes[1]["roles"]), (&json!(6.5), &json!(["mount"])));
        assert_eq!((&nodes[2]["state"], &nodes[2]["version"]), (&json!("down"), &Value::Null));
        let lines: Vec<String> = nodes.as_array().unwrap().iter().map(line).collect();
        assert!(lines[0].ends_with("store, manager, voter, mount; 3 stores, 2 managers"), "{}", lines[0]);
        assert!(lines[1].ends_with("mount; lease 6.5 s"), "{}", lines[1]);
        assert!(lines[2].starts_with("three             down  -"), "{}", lines[2]);
    }

    #[test]
    fn the_first_node_serves_all_stores_and_managers() {
        let config = FsConfig {
            fs: types::FsUuid([1; 16]),
            store_count: 3,
            parity: 1,
            block_size: 65536,
            store_capacity_bytes: 1 << 30,
            managers: cluster::config::first_manager_map(2),
            members: Default::default(),
            next_node: 3,
        };
        let report = |id, name: &str, state, is_mounted| NodeReport {
            id: types::NodeId::new(id),
            name: name.into(),
            address: String::new(),
            state,
            is_mounted,
        };
        let lease_left = Duration::from_secs(5);
        let all = of_core(
            &[
                report(0, "one", NodeState::Up { lease_left }, true),
                report(1, "two", NodeState::Up { lease_left }, true),
                report(2, "three", NodeState::Down { since: None }, false),
            ],
            &config,
        );
        let of =
            |field: &str| all["nodes"].as_array().unwrap().iter().map(|node| node[field].clone()).collect::<Vec<_>>();
        assert_eq!(of("stores"), [json!([0, 1, 2]), json!([]), json!([])]);
        assert_eq!(of("managers"), [json!(2), json!(0), json!(0)]);
        assert_eq!(of("roles"), [json!(["store", "manager", "voter", "mount"]), json!(["mount"]), json!([])]);
        assert_eq!(of("lease_s"), [Value::Null, json!(5.0), Value::Null]);
        assert_eq!(of("state"), [json!("up"), json!("up"), json!("down")]);
        assert!(
            all["survives"]
                .as_str()
                .unwrap()
                .starts_with("the loss of any one store, and the end of any node but one,")
        );
        assert!(survives(2, "one").contains("any 2 stores"));
    }
}
