//! Nodes on the loopback interface.

#![allow(dead_code)]

use crate::common::{Mounted, run, starling, tree};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

/// The first node, which other nodes may join.
pub fn first_node(below: &Path, name: &str) -> (Mounted, String) {
    let listen = format!("127.0.0.1:{}", free_port());
    (Mounted::up(below, name, &["--store-size", "256MiB", "--listen", &listen]), listen)
}

/// An invitation.
pub fn invite(first: &Mounted, flags: &[&str]) -> String {
    let said = run(starling().args(["node", "invite", "--data"]).arg(&first.data).args(flags));
    said.lines().last().expect("an invitation").to_string()
}

/// A command that joins NAME, with its mount on `NAME.mnt` and its data in `NAME.data`.
pub fn joining(below: &Path, name: &str, invitation: &str, flags: &[&str]) -> (Mounted, Command) {
    let node = Mounted { mountpoint: below.join(format!("{name}.mnt")), data: below.join(format!("{name}.data")) };
    let mut command = starling();
    command.args(["node", "join", invitation]).arg(&node.mountpoint).arg("--data").arg(&node.data).args(flags);
    (node, command)
}

/// A node that has joined.
pub fn join(below: &Path, first: &Mounted, name: &str) -> Mounted {
    let (node, mut command) = joining(below, name, &invite(first, &[]), &["--name", name, "--background"]);
    run(&mut command);
    node
}

/// Longest wait for what is to happen.
pub const LONG: Duration = Duration::from_secs(120);

/// What a command says in JSON.
pub fn answer(command: &mut Command) -> Value {
    serde_json::from_str(&run(command.arg("--json"))).expect("JSON")
}

/// The contents of all files, by their paths in the mount.
pub fn contents(of: &Mounted) -> Vec<(String, Vec<u8>)> {
    let name = |path: &Path| path.strip_prefix(&of.mountpoint).expect("below it").display().to_string();
    tree(&of.mountpoint).into_iter().map(|(path, bytes)| (name(&path), bytes)).collect()
}

/// Waits until it is done.
pub fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// An address on the loopback interface.
pub fn elsewhere() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// Joins a node that takes a store, and does not vote.
pub fn join_with_store(below: &Path, first: &Mounted, name: &str) -> Mounted {
    join_server(below, first, name, &["--roles", "client,storage,manager"])
}

/// Joins a node that takes a store, and votes.
pub fn join_voter(below: &Path, leader: &Mounted, name: &str) -> Mounted {
    join_server(below, leader, name, &[])
}

fn join_server(below: &Path, leader: &Mounted, name: &str, more: &[&str]) -> Mounted {
    let store = below.join(format!("{name}.stores")).display().to_string();
    let listen = elsewhere();
    let flags = ["--name", name, "--background", "--listen", &listen, "--store", &store];
    let (node, mut command) = joining(below, name, &invite(leader, &[]), &[&flags[..], more].concat());
    run(&mut command);
    node
}

/// The stores of all nodes, as a node says.
pub fn stores(of: &Mounted) -> Value {
    nodes(of)["nodes"].as_array().expect("nodes").iter().map(|node| node["stores"].clone()).collect()
}

/// The answer of `starling nodes`.
pub fn nodes(of: &Mounted) -> Value {
    answer(starling().arg("nodes").arg(&of.mountpoint))
}

/// The number of nodes that vote, as a node says.
pub fn voters(of: &Mounted) -> usize {
    let is_voter = |node: &Value| node["roles"].as_array().expect("roles").contains(&json!("voter"));
    nodes(of)["nodes"].as_array().expect("nodes").iter().filter(|node| is_voter(node)).count()
}

/// The name of the node that leads, as a node says; empty while none does.
pub fn leader(of: &Mounted) -> String {
    let said = starling().arg("nodes").arg(&of.mountpoint).arg("--json").output().expect("start");
    let said: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
    said["leader"].as_str().unwrap_or_default().to_string()
}

/// Waits until another node than this leads, as `of` says, and returns its name.
pub fn led_by_other_than(of: &Mounted, former: &str) -> String {
    let mut found = String::new();
    wait("no other node leads", || {
        found = leader(of);
        !found.is_empty() && found != former
    });
    found
}
