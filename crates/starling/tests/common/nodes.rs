//! Nodes on the loopback interface.

#![allow(dead_code)]

use crate::common::{Mounted, run, starling, tree};
use serde_json::Value;
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

/// Joins a node that takes a store.
pub fn join_with_store(below: &Path, first: &Mounted, name: &str) -> Mounted {
    let store = below.join(format!("{name}.stores")).display().to_string();
    let listen = elsewhere();
    let flags = ["--name", name, "--background", "--listen", &listen, "--store", &store];
    let (node, mut command) = joining(below, name, &invite(first, &[]), &flags);
    run(&mut command);
    node
}

/// The stores of all nodes, as a node says.
pub fn stores(of: &Mounted) -> Value {
    let all = answer(starling().arg("nodes").arg(&of.mountpoint));
    all["nodes"].as_array().expect("nodes").iter().map(|node| node["stores"].clone()).collect()
}
