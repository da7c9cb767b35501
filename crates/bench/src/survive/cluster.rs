//! A cluster that votes: nodes of the shipped program, each in a network namespace of its own, with
//! a mount each. Nodes can be hit by faults and healed.
//!
//! The first three nodes have stores and managers and vote; the others are clients. Invariants:
//! nothing here touches a file of a mount, so nothing here waits for a node that stands still; and
//! when a cluster is dropped, its processes, mounts and files are gone. Processes are ended by
//! their ids alone: to read `/proc` of others may wait for a stopped node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::disk::Disk;
use super::nodes::{self, Nodes};
use super::plan::Fault;
use crate::command::{self, Interrupts};
use crate::daemon::Daemon;
use crate::mounts;
use crate::network::{Network, address};

/// Nodes with a store, managers and a vote: the first ones.
pub const VOTERS: usize = 3;
/// A node prints this when its mount is ready.
const MOUNT_READY: &str = "mounted at";
const PORT: u16 = 7440;
/// Enough for the files of a long run.
const STORE_SIZE: &str = "4GiB";
/// What the nodes write to their logs, unless the environment says so.
const LOG_LEVEL: (&str, &str) = ("STARLING_LOG", "info,openraft=off");
/// How often a killed node is started, if its starts fail.
const START_ATTEMPTS: usize = 6;
/// From a failed start to the next one: longer than a lease, so others can go on meanwhile.
const START_PAUSE: Duration = Duration::from_secs(12);
/// Longest time for an answer about the nodes.
const ANSWER_DEADLINE: Duration = Duration::from_secs(20);
/// Longest time for an invitation.
const INVITE_DEADLINE: Duration = Duration::from_secs(60);
/// Longest time until a cluster can lose any node, after a start or a fault.
const WHOLE_DEADLINE: Duration = Duration::from_secs(180);
/// The share of packets to each node that is lost while all are saturated.
const LOSS: f64 = 0.01;
/// A node writes this to its log when it begins a session, the first one or after it was declared
/// dead.
const SESSION_BEGINS: &str = "a session with the first node begins";
/// How often a state is looked at that is waited for.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// Nodes with a mount each.
pub struct Cluster {
    program: PathBuf,
    root: PathBuf,
    network: Network,
    nodes: Vec<Node>,
}

struct Node {
    mount_point: PathBuf,
    data: PathBuf,
    store: PathBuf,
    log: PathBuf,
    daemon: Option<Daemon>,
    /// The disk with its data and its store; `None` if they are on the disk of all.
    disk: Option<Disk>,
    /// The nodes that it is apart from.
    apart_from: Vec<usize>,
}

/// What the nodes say of themselves.
struct Said(Value);

impl Said {
    /// True if all of this many nodes are up, and any one may be lost.
    fn is_whole(&self, nodes: usize) -> bool {
        let survives = self.0["survives"].as_str().unwrap_or_default();
        let up = self.0["nodes"].as_array().into_iter().flatten().filter(|node| node["state"] == json!("up"));
        up.count() == nodes && survives.contains("any node,") && survives.contains(&format!("{VOTERS} nodes vote"))
    }

    /// The index of the node that leads.
    fn leader(&self) -> Option<usize> {
        let name = self.0["leader"].as_str().filter(|name| !name.is_empty())?;
        // The first node is named by the machine.
        Some((1..VOTERS).find(|node| name_of(*node) == name).unwrap_or(0))
    }
}

fn name_of(node: usize) -> String {
    format!("node{node}")
}

impl Cluster {
    /// Makes a file system below `root`, lets nodes join it until there are this many, and waits
    /// until any node may be lost. The nodes' logs go to `logs`. Nodes with stores have disks of
    /// their own if they are to. Fails if a node does not start, or if the cluster does not become
    /// whole.
    pub fn start(program: PathBuf, root: &Path, logs: &Path, nodes: usize, own_disks: bool) -> Result<Cluster> {
        for folder in [root, logs] {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        let node = |index: usize| {
            let below = |kind: &str| root.join(format!("{kind}{index}"));
            let log = logs.join(format!("node{index}.log"));
            let has_disk = own_disks && index < VOTERS;
            let disk = has_disk.then(|| Disk::make(&below("image"), &below("disk"))).transpose()?;
            let (data, store) = match disk {
                Some(_) => (below("disk").join("data"), below("disk").join("store")),
                None => (below("data"), below("store")),
            };
            Ok(Node { mount_point: below("mount"), data, store, log, daemon: None, disk, apart_from: Vec::new() })
        };
        let mut cluster = Cluster {
            program,
            root: root.to_owned(),
            network: Network::new(nodes)?,
            nodes: (0..nodes).map(node).collect::<Result<_>>()?,
        };
        for node in 0..nodes {
            cluster.make(node).with_context(|| format!("start node {node}"))?;
        }
        cluster.wait_until_whole()?;
        Ok(cluster)
    }

    /// True if a node's process does not run.
    fn has_ended(&mut self, node: usize) -> Result<bool> {
        self.nodes[node].daemon.as_mut().map_or(Ok(true), Daemon::has_ended)
    }

    fn signal(&mut self, node: usize, signal: libc::c_int) -> Result<()> {
        self.nodes[node].daemon.as_mut().context("the node does not run")?.signal(signal)
    }

    fn disk(&mut self, node: usize) -> Result<&mut Disk> {
        self.nodes[node].disk.as_mut().context("the node has no disk of its own")
    }

    fn said(&self, node: usize) -> Result<Said> {
        let mut command = Command::new(&self.program);
        // By the data folder, which is on the local disk: the mount may not answer.
        command.args(["nodes", "--json", "--data"]).arg(&self.nodes[node].data);
        let printed = command::run(&mut command, ANSWER_DEADLINE, Interrupts::Obey)?;
        serde_json::from_str(&printed).map(Said).context("read what the node says of the nodes")
    }

    /// Starts a node for the first time.
    fn make(&mut self, node: usize) -> Result<()> {
        let mut command = Command::new(&self.program);
        if node == 0 {
            command.arg("up");
        } else {
            command.args(["node", "join", &self.invite()?]);
        }
        let Node { mount_point, data, store, .. } = &self.nodes[node];
        command.arg(mount_point).arg("--data").arg(data);
        if node == 0 {
            command.args(["--stores", &VOTERS.to_string(), "--store-size", STORE_SIZE]);
        } else if node < VOTERS {
            command.args(["--name", &name_of(node), "--store"]).arg(store);
        } else {
            command.args(["--name", &name_of(node), "--roles", "client"]);
        }
        self.run(node, command)
    }

    /// Starts a node again.
    fn up(&mut self, node: usize) -> Result<()> {
        let mut command = Command::new(&self.program);
        let Node { mount_point, data, .. } = &self.nodes[node];
        command.arg("up").arg(mount_point).arg("--data").arg(data);
        self.run(node, command)
    }

    fn run(&mut self, node: usize, mut command: Command) -> Result<()> {
        if node < VOTERS {
            command.args(["--listen", &format!("{}:{PORT}", address(node))]);
        }
        let (name, level) = LOG_LEVEL;
        command.env(name, std::env::var(name).unwrap_or_else(|_| level.to_owned()));
        self.network.enter(node, &mut command)?;
        let daemon = Daemon::start(&mut command, &self.nodes[node].log, MOUNT_READY)?;
        self.nodes[node].daemon = Some(daemon);
        Ok(())
    }

    /// One invitation.
    fn invite(&self) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(["node", "invite", "--data"]).arg(&self.nodes[0].data);
        let printed = command::run(&mut command, INVITE_DEADLINE, Interrupts::Obey)?;
        Ok(printed.lines().last().context("no invitation was printed")?.to_owned())
    }

    fn clear(&mut self) -> Result<()> {
        // A process that waits for its disk cannot be ended.
        for disk in self.nodes.iter_mut().filter_map(|node| node.disk.as_mut()) {
            // Most disks have no trouble, which this says.
            let _ = disk.heal();
        }
        // Aborting the mounts frees the programs that wait for them, so this comes before the
        // processes.
        for node in &self.nodes {
            mounts::force_unmount(&node.mount_point)?;
        }
        for node in self.nodes.iter_mut().rev() {
            node.daemon.take().map_or(Ok(()), Daemon::kill)?;
        }
        // A node that was about to mount again has done so meanwhile.
        for node in &self.nodes {
            mounts::force_unmount(&node.mount_point)?;
        }
        self.nodes.iter_mut().for_each(|node| drop(node.disk.take()));
        fs::remove_dir_all(&self.root).with_context(|| format!("remove {}", self.root.display()))
    }
}

impl Nodes for Cluster {
    fn count(&self) -> usize {
        self.nodes.len()
    }

    fn mount_point(&self, node: usize) -> &Path {
        &self.nodes[node].mount_point
    }

    fn leader(&self) -> Result<usize> {
        let said = (0..self.nodes.len()).find_map(|node| self.said(node).ok()?.leader());
        said.context("no node says which one leads")
    }

    /// Every node must say so.
    fn wait_until_whole(&mut self) -> Result<Duration> {
        let started = Instant::now();
        for node in 0..self.nodes.len() {
            loop {
                command::check_interrupt()?;
                let said = self.said(node);
                if said.as_ref().is_ok_and(|said| said.is_whole(self.nodes.len())) {
                    break;
                }
                if self.has_ended(node)? {
                    bail!("node {node} has ended by itself");
                }
                let last = said.map_or_else(|error| format!("{error:#}"), |said| said.0.to_string());
                ensure!(started.elapsed() < WHOLE_DEADLINE, "node {node} is not whole again: {last}");
                std::thread::sleep(LOOK_PERIOD);
            }
        }
        Ok(started.elapsed())
    }

    /// As its log says. Fails if the log of a node that has joined says of none.
    fn sessions(&self, node: usize) -> Result<usize> {
        let log = &self.nodes[node].log;
        let text = fs::read_to_string(log).with_context(|| format!("read {}", log.display()))?;
        let count = text.lines().filter(|line| line.contains(SESSION_BEGINS)).count();
        ensure!(count > 0 || node == 0, "{} says of no session; is {} lower than info?", log.display(), LOG_LEVEL.0);
        Ok(count)
    }

    fn hit(&mut self, node: usize, fault: Fault) -> Result<()> {
        match fault {
            Fault::Kill => {
                let daemon = self.nodes[node].daemon.take().context("the node does not run")?;
                daemon.kill()?;
                mounts::force_unmount(&self.nodes[node].mount_point)
            }
            Fault::Stop => self.signal(node, libc::SIGSTOP),
            Fault::Saturate => self.network.lose(node, LOSS),
            Fault::Apart => {
                let leader = self.leader()?;
                let others = (0..VOTERS).filter(|other| *other != node && *other != leader);
                self.nodes[node].apart_from = others.collect();
                self.nodes[node].apart_from.iter().try_for_each(|other| self.network.part(node, *other))
            }
            Fault::Full => self.disk(node)?.fill(),
            Fault::Hang => self.disk(node)?.freeze(),
            Fault::Slow => self.disk(node)?.slow(),
            cut => nodes::cut(&self.network, node, cut),
        }
    }

    /// A killed node is started with the same command as before. A start that fails is tried again,
    /// as a service manager does; fails if the last one did.
    fn heal(&mut self, node: usize, fault: Fault) -> Result<Vec<String>> {
        let mut failed = Vec::new();
        match fault {
            Fault::Kill => {
                while let Err(error) = self.up(node) {
                    if failed.len() + 1 == START_ATTEMPTS {
                        return Err(error.context(format!("start node {node} again, {START_ATTEMPTS} times")));
                    }
                    failed.push(format!("a start of node {node}: {error:#}"));
                    command::pause(START_PAUSE)?;
                }
            }
            Fault::Stop => self.signal(node, libc::SIGCONT)?,
            Fault::Saturate => self.network.lose_no_more(node, LOSS)?,
            Fault::Apart => {
                let others = std::mem::take(&mut self.nodes[node].apart_from);
                others.iter().try_for_each(|other| self.network.unite(node, *other))?;
            }
            Fault::Full | Fault::Hang | Fault::Slow => self.disk(node)?.heal()?,
            cut => nodes::join(&self.network, node, cut)?,
        }
        Ok(failed)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("bench: take down {}: {error:#}", self.root.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_clusters_and_leaders_are_read_from_what_nodes_say() {
        let said = |states: &[&str], leader: &str, survives: &str| {
            let nodes: Vec<Value> = states.iter().map(|state| json!({ "state": state })).collect();
            Said(json!({ "nodes": nodes, "leader": leader, "survives": survives }))
        };
        let survives = "the end of any node, and the loss of any one store; 3 nodes vote";
        let whole = said(&["up", "up"], "node2", survives);
        assert!(whole.is_whole(2) && !whole.is_whole(3));
        assert_eq!(whole.leader(), Some(2));
        assert!(!said(&["up", "down"], "", survives).is_whole(2));
        assert!(!said(&["up", "up"], "", "the end of any node but one").is_whole(2));
        assert_eq!(said(&[], "", "").leader(), None);
        assert_eq!(said(&[], "machine", "").leader(), Some(0));
    }
}
