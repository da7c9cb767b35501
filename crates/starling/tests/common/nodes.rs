//! Nodes on the loopback interface.

#![allow(dead_code)]

use crate::common::{Mounted, run, starling};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

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
