//! Network namespaces on one bridge: as far as the network goes, each node is a machine of its own.
//!
//! Nothing has a name on this machine, so nothing is left behind: bridge, devices and namespaces go
//! with the descriptors and the processes that hold them, even when this program is killed.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use linkem::Namespace;

use crate::command::{self, Interrupts};

/// Longest time to set up a device.
const DEADLINE: Duration = Duration::from_secs(20);
/// The device of each node.
const DEVICE: &str = "eth0";

/// A namespace per node. Several nodes are connected by a bridge in a namespace of its own.
pub struct Network {
    /// Holds the bridge.
    hub: Option<Namespace>,
    nodes: Vec<Namespace>,
}

/// A direction of packets, as a node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the node.
    In,
    /// From the node.
    Out,
}

impl Network {
    /// A network of this many nodes.
    pub fn new(nodes: usize) -> Result<Network> {
        let hub = Namespace::new().context("make a network namespace (as root?)")?;
        ip(&hub, &["link", "add", "bridge", "type", "bridge"])?;
        ip(&hub, &["link", "set", "bridge", "up"])?;
        let connect = |index: usize| -> Result<Namespace> {
            let node = Namespace::new().context("make a network namespace")?;
            let (near, path) = (port(index), node.path().display().to_string());
            ip(&hub, &["link", "add", &near, "type", "veth", "peer", "name", DEVICE, "netns", &path])?;
            ip(&hub, &["link", "set", &near, "master", "bridge", "up"])?;
            ip(&node, &["addr", "add", &format!("{}/24", address(index)), "dev", DEVICE])?;
            ip(&node, &["link", "set", DEVICE, "up"])?;
            Ok(node)
        };
        let nodes = (0..nodes).map(connect).collect::<Result<_>>()?;
        Ok(Network { hub: Some(hub), nodes })
    }

    /// A single node. It has no bridge: its address is on its loopback device.
    pub fn single() -> Result<Network> {
        let node = Namespace::new().context("make a network namespace (as root?)")?;
        ip(&node, &["addr", "add", &format!("{}/32", address(0)), "dev", "lo"])?;
        Ok(Network { hub: None, nodes: vec![node] })
    }

    /// The addresses of all nodes, in order.
    pub fn addresses(&self) -> Vec<String> {
        (0..self.nodes.len()).map(address).collect()
    }

    /// Makes a command run on a node.
    pub fn enter(&self, node: usize, command: &mut Command) -> Result<()> {
        self.nodes.get(node).context("no such node")?.enter(command);
        Ok(())
    }

    /// Loses all packets of a node in one direction, without an error at the sender. Fails if they
    /// are lost already.
    pub fn cut(&self, node: usize, direction: Direction) -> Result<()> {
        self.sender(node, direction, |namespace, device| {
            tc(namespace, &["qdisc", "add", "dev", device, "root", "blackhole"])
        })
    }

    /// Ends [`Network::cut`] in this direction.
    pub fn join(&self, node: usize, direction: Direction) -> Result<()> {
        self.sender(node, direction, |namespace, device| tc(namespace, &["qdisc", "del", "dev", device, "root"]))
    }

    /// Loses this share of the packets that reach a node, at random.
    pub fn lose(&self, node: usize, share: f64) -> Result<()> {
        self.loss(node, "-A", share)
    }

    /// Ends [`Network::lose`] with this share.
    pub fn lose_no_more(&self, node: usize, share: f64) -> Result<()> {
        self.loss(node, "-D", share)
    }

    /// Loses all packets between a node and another one, in both directions.
    pub fn part(&self, node: usize, other: usize) -> Result<()> {
        self.between(node, other, "-A")
    }

    /// Ends [`Network::part`].
    pub fn unite(&self, node: usize, other: usize) -> Result<()> {
        self.between(node, other, "-D")
    }

    fn loss(&self, node: usize, change: &str, share: f64) -> Result<()> {
        let share = share.to_string();
        self.rule(node, &[change, "INPUT", "-m", "statistic", "--mode", "random", "--probability", &share])
    }

    fn between(&self, node: usize, other: usize, change: &str) -> Result<()> {
        let other = address(other);
        self.rule(node, &[change, "INPUT", "--source", &other])?;
        self.rule(node, &[change, "OUTPUT", "--destination", &other])
    }

    /// Changes a rule for the packets that a node loses.
    fn rule(&self, node: usize, rule: &[&str]) -> Result<()> {
        let namespace = self.nodes.get(node).context("no such node")?;
        run("iptables", namespace, &[rule, &["-j", "DROP"]].concat())
    }

    /// Calls `change` with the namespace and the device that send a node's packets.
    fn sender(&self, node: usize, direction: Direction, change: impl Fn(&Namespace, &str) -> Result<()>) -> Result<()> {
        match direction {
            Direction::In => change(self.hub.as_ref().context("a single node has no bridge")?, &port(node)),
            Direction::Out => change(self.nodes.get(node).context("no such node")?, DEVICE),
        }
    }
}

/// The bridge's device of a node.
fn port(node: usize) -> String {
    format!("node{node}")
}

/// The address of a node.
pub fn address(node: usize) -> String {
    format!("10.78.0.{}", node + 1)
}

fn ip(namespace: &Namespace, arguments: &[&str]) -> Result<()> {
    run("ip", namespace, arguments)
}

fn tc(namespace: &Namespace, arguments: &[&str]) -> Result<()> {
    run("tc", namespace, arguments)
}

fn run(program: &str, namespace: &Namespace, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(program);
    namespace.enter(command.args(arguments));
    command::run(&mut command, DEADLINE, Interrupts::Obey).map(drop)
}
