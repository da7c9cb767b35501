//! A cluster: nodes of the shipped program, each in a network namespace of its own, with a mount
//! each.
//!
//! The first node has the stores and the managers, and the others have joined it; or each node has
//! a store and some managers. Invariant: when a cluster is dropped, its processes, mounts and files
//! are gone. Only child processes with a deadline touch files of the mounts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::{self, Interrupts};
use crate::daemon::{DEADLINE, Daemon};
use crate::mounts::{self, Mounted, drop_caches};
use crate::network::{Network, address};
use crate::process::{MARKER_VARIABLE, Processes, Usage};
use crate::scripted::Site;

/// Number of stores, all at the first node, where nodes have none of their own.
const STORES: &str = "5";
/// A node prints this when its mount is ready.
const MOUNT_READY: &str = "mounted at";
const PORT: u16 = 7440;
/// What the nodes write to their logs.
const LOG_LEVEL: (&str, &str) = ("STARLING_LOG", "info,openraft=off");
/// The node whose work is measured where one works: it has joined.
pub const WORKER: usize = 1;
/// How often a state is looked at that is waited for.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// Which node serves what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// The first node serves five stores and all managers.
    FirstNode,
    /// Each node serves one store and some managers.
    EachNode,
}

/// Nodes with a mount each.
pub struct Cluster {
    program: PathBuf,
    serves: Serves,
    root: PathBuf,
    cache_args: Vec<String>,
    network: Network,
    nodes: Vec<Node>,
    processes: Processes,
    /// From nothing until all nodes had mounted.
    started_in: Duration,
}

struct Node {
    mount_point: PathBuf,
    data: PathBuf,
    log: PathBuf,
    daemon: Option<Daemon>,
}

impl Node {
    fn new(root: &Path, index: usize) -> Node {
        let below = |kind: &str| root.join(format!("{kind}{index}"));
        Node { mount_point: below("mount"), data: below("data"), log: below("log"), daemon: None }
    }
}

impl Cluster {
    /// Makes a file system, and lets nodes join it until there are this many.
    pub fn start(site: &Site, name: &str, nodes: usize) -> Result<Cluster> {
        Cluster::start_with(site, name, nodes, Serves::FirstNode)
    }

    /// The same, and has these nodes serve stores and managers.
    pub fn start_with(site: &Site, name: &str, nodes: usize, serves: Serves) -> Result<Cluster> {
        let root = site.root.join(name);
        fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
        let marker = format!("{}:{}", std::process::id(), root.display());
        let mut cluster = Cluster {
            program: site.starling.clone().context("no program: give --starling PATH")?,
            serves,
            cache_args: site.starling_args.split_whitespace().map(str::to_owned).collect(),
            network: Network::new(nodes)?,
            nodes: (0..nodes).map(|index| Node::new(&root, index)).collect(),
            processes: Processes::new(marker, root.join("pids")),
            root,
            started_in: Duration::ZERO,
        };
        let started = Instant::now();
        for node in 0..nodes {
            let way =
                if node == 0 { Vec::new() } else { vec!["node".to_owned(), "join".to_owned(), cluster.invite()?] };
            cluster.mount(node, &way).with_context(|| format!("start node {node}"))?;
        }
        cluster.started_in = started.elapsed();
        if serves == Serves::EachNode {
            cluster.wait_until_spread()?;
        }
        Ok(cluster)
    }

    /// Waits until each node has a store and a manager.
    fn wait_until_spread(&self) -> Result<()> {
        let until = Instant::now() + DEADLINE;
        loop {
            let said = self.nodes()?;
            let nodes = said["nodes"].as_array().context("no nodes")?;
            let has_both = |node: &Value| {
                let stores = node["stores"].as_array().map_or(0, Vec::len);
                stores == 1 && node["managers"].as_u64() > Some(0)
            };
            if nodes.iter().all(has_both) {
                return Ok(());
            }
            ensure!(Instant::now() < until, "stores and managers do not spread: {said}");
            std::thread::sleep(LOOK_PERIOD);
        }
    }

    /// From nothing until all nodes had mounted.
    pub fn started_in(&self) -> Duration {
        self.started_in
    }

    /// A path in a node's mount.
    pub fn path(&self, node: usize, name: &str) -> PathBuf {
        self.nodes[node].mount_point.join(name)
    }

    /// A path in the mount of every node.
    pub fn paths(&self, name: &str) -> Vec<PathBuf> {
        self.nodes.iter().map(|node| node.mount_point.join(name)).collect()
    }

    /// The process of a node.
    pub fn process(&self, node: usize) -> Result<u32> {
        self.nodes[node].daemon.as_ref().map(Daemon::id).context("the node does not run")
    }

    /// What `starling status` says of a node.
    pub fn status(&self, node: usize) -> Result<Value> {
        let mut command = Command::new(&self.program);
        command.arg("status").arg(&self.nodes[node].mount_point).arg("--json");
        serde_json::from_str(&command::run(&mut command, DEADLINE, Interrupts::Obey)?).context("read the status")
    }

    /// What `starling nodes` says.
    pub fn nodes(&self) -> Result<Value> {
        let mut command = Command::new(&self.program);
        command.arg("nodes").arg(&self.nodes[0].mount_point).arg("--json");
        serde_json::from_str(&command::run(&mut command, DEADLINE, Interrupts::Obey)?).context("read what a node says")
    }

    /// Gives up what the store of a node has, and gives it an empty place in this folder.
    pub fn replace_store(&self, node: usize, folder: &Path) -> Result<()> {
        let status = self.status(node)?;
        let store = status.pointer("/stores/0/store").and_then(Value::as_u64).context("the node has no store")?;
        let mut command = Command::new(&self.program);
        command.args(["store", "replace", &format!("store-{store}")]).arg(folder);
        command.arg("--dead").arg("--data").arg(&self.nodes[node].data);
        command::run(&mut command, DEADLINE, Interrupts::Obey).map(drop)
    }

    /// Has the stores and managers of a node move to the others, or lets it have some again.
    pub fn drain(&self, node: usize, drains: bool) -> Result<()> {
        let said = self.nodes()?;
        let name = self.said_of(&said, node)?["name"].as_str().context("the node has no name")?;
        let mut command = Command::new(&self.program);
        command.args(["node", "drain", name, "--data"]).arg(&self.nodes[0].data);
        // Two are left with three stores.
        command.arg(if drains { "--accept-risk" } else { "--stop" });
        command::run(&mut command, DEADLINE, Interrupts::Obey).map(drop)
    }

    /// What `starling nodes` says of one.
    pub fn said_of<'a>(&self, said: &'a Value, node: usize) -> Result<&'a Value> {
        let address = format!("{}:{PORT}", address(node));
        let nodes = said["nodes"].as_array().context("no nodes")?;
        nodes.iter().find(|said| said["address"] == address[..]).with_context(|| format!("no node at {address}"))
    }

    /// Frames that all nodes together have sent to each other: requests and answers.
    pub fn frames(&self) -> Result<u64> {
        let of = |node: usize| {
            let status = self.status(node)?;
            status.get("frames_sent").and_then(Value::as_u64).context("the status has no number frames_sent")
        };
        (0..self.nodes.len()).map(of).sum()
    }

    /// How often a node has asked a manager for a token, or for attributes.
    pub fn claims(&self, node: usize) -> Result<u64> {
        let status = self.status(node)?;
        status.pointer("/cache/inode_misses").and_then(Value::as_u64).context("the status has no number inode_misses")
    }

    /// Tokens that the managers have granted and not yet got back.
    pub fn tokens(&self) -> Result<u64> {
        let status = self.status(0)?;
        let managers = status.get("managers").and_then(Value::as_array).context("the status has no managers")?;
        managers.iter().map(|manager| manager.get("tokens").and_then(Value::as_u64).context("no tokens")).sum()
    }

    /// Commits what all nodes hold back.
    pub fn sync(&self) -> Result<()> {
        for node in &self.nodes {
            let mut command = Command::new(&self.program);
            command::run(command.arg("sync").arg(&node.mount_point), DEADLINE, Interrupts::Obey)?;
        }
        Ok(())
    }

    /// Waits until no node has anything that is not committed.
    pub fn settle(&self) -> Result<()> {
        let until = Instant::now() + DEADLINE;
        loop {
            let uncommitted = |node: usize| -> Result<u64> {
                let status = self.status(node)?;
                status.get("uncommitted_bytes").and_then(Value::as_u64).context("no uncommitted_bytes")
            };
            let all: u64 = (0..self.nodes.len()).map(uncommitted).sum::<Result<u64>>()?;
            if all == 0 {
                return Ok(());
            }
            ensure!(Instant::now() < until, "{all} bytes are still not committed");
            std::thread::sleep(LOOK_PERIOD);
        }
    }

    /// Ends a node as a crash would.
    pub fn kill(&mut self, node: usize) -> Result<()> {
        self.nodes[node].daemon.take().context("the node does not run")?.kill()?;
        mounts::force_unmount(&self.nodes[node].mount_point)
    }

    /// What a node has written to its log so far.
    pub fn log(&self, node: usize) -> Result<String> {
        let log = &self.nodes[node].log;
        fs::read_to_string(log).with_context(|| format!("read {}", log.display()))
    }

    /// Mounts a node's file system again, with nothing in its caches.
    pub fn remount(&mut self, node: usize) -> Result<()> {
        let mut down = Command::new(&self.program);
        command::run(down.arg("down").arg(&self.nodes[node].mount_point), DEADLINE, Interrupts::Obey)?;
        let daemon = self.nodes[node].daemon.take().context("the node does not run")?;
        daemon.ended().context("a node, after `down`")?;
        drop_caches()?;
        self.mount(node, &[])
    }

    /// One invitation.
    fn invite(&self) -> Result<String> {
        let mut invite = Command::new(&self.program);
        invite.args(["node", "invite", "--data"]).arg(&self.nodes[0].data);
        let printed = command::run(&mut invite, DEADLINE, Interrupts::Obey)?;
        Ok(printed.lines().last().context("no invitation was printed")?.to_owned())
    }

    /// Starts a node: with `way`, as a new member.
    fn mount(&mut self, node: usize, way: &[String]) -> Result<()> {
        let mut command = Command::new(&self.program);
        let spreads = self.serves == Serves::EachNode;
        let begins_anew = !self.nodes[node].data.exists();
        match way {
            [] => command.arg("up"),
            way => command.args(way),
        };
        let Node { mount_point, data, log, .. } = &self.nodes[node];
        command.arg(mount_point).arg("--data").arg(data).args(&self.cache_args);
        if begins_anew {
            match (node, spreads) {
                (0, true) => command.arg("--stores").arg(self.nodes.len().to_string()),
                (0, false) => command.args(["--stores", STORES]),
                (_, true) => command.arg("--store").arg(self.root.join(format!("store{node}"))),
                (_, false) => &mut command,
            };
        }
        if node == 0 || spreads {
            command.arg("--listen").arg(format!("{}:{PORT}", address(node)));
        }
        let (name, level) = LOG_LEVEL;
        command.env(MARKER_VARIABLE, self.processes.marker());
        command.env(name, std::env::var(name).unwrap_or_else(|_| level.to_owned()));
        self.network.enter(node, &mut command)?;
        let daemon = Daemon::start(&mut command, log, MOUNT_READY)?;
        self.nodes[node].daemon = Some(daemon);
        Ok(())
    }

    fn clear(&mut self) -> Result<()> {
        // Aborting the mounts frees the programs that wait for them, so this comes before the
        // processes.
        for node in &self.nodes {
            mounts::force_unmount(&node.mount_point)?;
        }
        for node in self.nodes.iter_mut().rev() {
            node.daemon.take().map_or(Ok(()), Daemon::kill)?;
        }
        for node in &self.nodes {
            let point = &node.mount_point;
            ensure!(!mounts::is_mounted(point)?, "{} is still mounted", point.display());
        }
        fs::remove_dir_all(&self.root).with_context(|| format!("remove {}", self.root.display()))
    }
}

impl Mounted for Cluster {
    fn usage(&self) -> Usage {
        self.processes.usage()
    }

    fn reset_peak(&self) {
        self.processes.reset_peak();
    }

    /// Empties the caches of the node that works.
    fn make_cold(&mut self) -> Result<()> {
        self.remount(WORKER)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("bench: take down {}: {error:#}", self.root.display());
        }
    }
}
