//! What `starling nodes` shows.

use crate::control::{Request, ask, ask_from};
use crate::location::Location;
use crate::usage;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// A node, as the first one sees it.
pub struct NodeState {
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
pub fn nodes_json(nodes: &[NodeState], survives: &str) -> Value {
    let node = |node: &NodeState| {
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

/// What a file system survives now that has all its managers and its only voter on the first node.
pub fn survives(parity: u8, places: &[Location], first: &str) -> String {
    let stores = match parity {
        1 => "the loss of any store".to_string(),
        parity => format!("the loss of any {parity} stores"),
    };
    let is_folder = |place: &&Location| matches!(place, Location::Folder(_));
    let with = match places.iter().filter(is_folder).count() {
        0 => "its managers and its voter",
        count if count == places.len() => "its stores, its managers and its voter",
        _ => "some of its stores, its managers and its voter",
    };
    format!("{stores}, and the end of any node but {first}, which has {with}")
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

    fn first() -> NodeState {
        NodeState {
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
            NodeState { name: "two".into(), roles: vec!["mount"], stores: vec![], manager_count: 0, lease, ..first() };
        let three = NodeState {
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
    fn what_it_survives_depends_on_where_the_stores_are() {
        let folder = Location::Folder("s".into());
        let server = Location::Server { tls: true, host: "far".into(), port: 1 };
        for (parity, places, text) in [
            (
                1,
                vec![folder.clone(), folder.clone()],
                "any store, and the end of any node but one, which has its stores, ",
            ),
            (
                2,
                vec![server.clone(), folder],
                "any 2 stores, and the end of any node but one, which has some of its stores, ",
            ),
            (1, vec![server], "any store, and the end of any node but one, which has its managers "),
        ] {
            let said = survives(parity, &places, "one");
            assert!(said.contains(text), "{said}");
        }
    }
}
