//! Another cluster file system, under the same faults and programs: servers on the first nodes, and
//! a mount on each node.
//!
//! Invariant: when it is dropped, its processes, mounts and files are gone. While a node stands
//! still, nothing here looks at `/proc`, which may wait for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::cluster::VOTERS;
use super::nodes::{self, Nodes};
use super::plan::Fault;
use crate::command::{self, Interrupts, check_interrupt};
use crate::mounts;
use crate::network::Network;
use crate::process::Processes;
use crate::scripted::{FIRST, Script, Site, Stage};

/// Longest time until a file system is whole, after a start or a fault.
const WHOLE_DEADLINE: Duration = Duration::from_secs(180);
/// How often that is looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// A file system to hit in the place of Starling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// GlusterFS with three copies. It gives up a silent server after 42 s, which is its default
    Gluster,
    /// The same, but a silent server is given up after 5 s, the lease of Starling
    GlusterLease,
}

impl Peer {
    fn script(self) -> Script {
        match self {
            Peer::Gluster => Script { name: "gluster", file: "gluster.sh", variant: "replica" },
            Peer::GlusterLease => Script { name: "gluster-lease", file: "gluster.sh", variant: "replica-lease" },
        }
    }

    /// The file system in words.
    pub fn title(self) -> &'static str {
        match self {
            Peer::Gluster => "GlusterFS with a brick on each of the first three nodes, replica 3, with its defaults",
            Peer::GlusterLease => {
                "GlusterFS with a brick on each of the first three nodes, replica 3, with network.ping-timeout at 5 s"
            }
        }
    }
}

/// The nodes of a peer.
pub struct PeerNodes {
    script: Script,
    site: Site,
    root: PathBuf,
    network: Network,
    /// The addresses of the nodes that serve.
    hosts: Vec<String>,
    nodes: Vec<Node>,
}

struct Node {
    mount_point: PathBuf,
    /// Its servers and its client.
    processes: Processes,
    /// Those that stand still.
    stopped: Vec<i32>,
}

impl PeerNodes {
    /// Starts servers on the first nodes and mounts on all of them; all files are below `root`.
    /// Fails if a program is not installed, or if the file system does not become whole.
    pub fn start(peer: Peer, site: &Site, root: &Path, nodes: usize) -> Result<PeerNodes> {
        let script = peer.script();
        if let Some(reason) = script.unavailable(site) {
            bail!("{reason} (crates/bench/peers/install.sh installs it)");
        }
        let node = |index: usize| {
            let mount_point = root.join(format!("mount{index}"));
            fs::create_dir_all(&mount_point).with_context(|| format!("create {}", mount_point.display()))?;
            let marker = format!("{}:{}:{index}", std::process::id(), root.display());
            Ok(Node { mount_point, processes: Processes::new(marker, root.join("pids")), stopped: Vec::new() })
        };
        let network = Network::new(nodes)?;
        let mut hosts = network.addresses();
        hosts.truncate(VOTERS);
        let nodes = (0..nodes).map(node).collect::<Result<_>>()?;
        let mut peer = PeerNodes { script, site: site.clone(), root: root.to_owned(), network, hosts, nodes };
        (0..VOTERS).try_for_each(|node| peer.act("start", node, Interrupts::Obey))?;
        (0..peer.count()).try_for_each(|node| peer.act("mount", node, Interrupts::Obey))?;
        peer.wait_until_whole()?;
        Ok(peer)
    }

    fn act(&self, action: &str, node: usize, interrupts: Interrupts) -> Result<()> {
        let stage = Stage {
            site: &self.site,
            root: &self.root,
            mount_point: &self.nodes[node].mount_point,
            network: &self.network,
            hosts: &self.hosts,
            node,
            marker: self.nodes[node].processes.marker(),
        };
        self.script.act(action, &stage, interrupts)
    }

    /// Sends a signal to all processes of a node, and returns their ids.
    fn signal_all(&self, node: usize, signal: libc::c_int) -> Vec<i32> {
        let all = self.nodes[node].processes.list();
        send(&all, signal);
        all
    }

    fn start_again(&self, node: usize) -> Result<()> {
        if node < VOTERS {
            self.act("restart", node, Interrupts::Obey)?;
        }
        self.act("mount", node, Interrupts::Obey)
    }

    fn clear(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            send(&std::mem::take(&mut node.stopped), libc::SIGCONT);
        }
        // Aborting the mounts frees the programs that wait for them, so this comes first.
        for node in &self.nodes {
            mounts::force_unmount(&node.mount_point)?;
        }
        let _ = self.act("stop", FIRST, Interrupts::Ignore);
        for node in &self.nodes {
            node.processes.end();
            mounts::force_unmount(&node.mount_point)?;
        }
        fs::remove_dir_all(&self.root).with_context(|| format!("remove {}", self.root.display()))
    }
}

/// Sends a signal to processes that are known to be this program's.
fn send(processes: &[i32], signal: libc::c_int) {
    for pid in processes {
        // SAFETY: kill takes plain numbers.
        unsafe { libc::kill(*pid, signal) };
    }
}

impl Nodes for PeerNodes {
    fn count(&self) -> usize {
        self.nodes.len()
    }

    fn mount_point(&self, node: usize) -> &Path {
        &self.nodes[node].mount_point
    }

    /// The first one: no peer here has a leader.
    fn leader(&self) -> Result<usize> {
        Ok(FIRST)
    }

    fn wait_until_whole(&mut self) -> Result<Duration> {
        let started = Instant::now();
        while let Err(error) = self.act("whole", FIRST, Interrupts::Obey) {
            check_interrupt()?;
            if started.elapsed() > WHOLE_DEADLINE {
                return Err(error.context("it is not whole again"));
            }
            command::pause(LOOK_PERIOD)?;
        }
        Ok(started.elapsed())
    }

    /// A peer says of none.
    fn sessions(&self, _node: usize) -> Result<usize> {
        Ok(0)
    }

    fn hit(&mut self, node: usize, fault: Fault) -> Result<()> {
        match fault {
            Fault::Kill => {
                self.signal_all(node, libc::SIGKILL);
                mounts::force_unmount(&self.nodes[node].mount_point)
            }
            Fault::Stop => {
                self.nodes[node].stopped = self.signal_all(node, libc::SIGSTOP);
                Ok(())
            }
            Fault::Cut | Fault::CutIn | Fault::CutOut => nodes::cut(&self.network, node, fault),
            Fault::Apart | Fault::Full | Fault::Hang | Fault::Slow | Fault::Saturate => {
                bail!("a peer is not hit by this fault")
            }
        }
    }

    fn heal(&mut self, node: usize, fault: Fault) -> Result<Vec<String>> {
        match fault {
            Fault::Kill => self.start_again(node).with_context(|| format!("start node {node} again"))?,
            Fault::Stop => send(&std::mem::take(&mut self.nodes[node].stopped), libc::SIGCONT),
            cut => nodes::join(&self.network, node, cut)?,
        }
        Ok(Vec::new())
    }
}

impl Drop for PeerNodes {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("bench: take down {}: {error:#}", self.root.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::has_script;

    #[test]
    fn peers_have_scripts_and_folders_of_their_own() {
        let scripts: Vec<Script> = Peer::value_variants().iter().map(|peer| peer.script()).collect();
        assert!(scripts.iter().all(|script| has_script(script.file)));
        assert_ne!(scripts[0].name, scripts[1].name);
        assert_ne!(scripts[0].variant, scripts[1].variant);
    }
}
