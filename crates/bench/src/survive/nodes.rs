//! What the rounds need of the nodes that they hit: those of a cluster, or those of another file
//! system.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::plan::Fault;
use crate::network::{Direction, Network};

/// Nodes with a mount each. The first three serve, and the others are clients.
pub trait Nodes: Send + Sync {
    /// The number of nodes.
    fn count(&self) -> usize;

    /// The mount point of a node.
    fn mount_point(&self, node: usize) -> &Path;

    /// The node that leads. Fails if none says so.
    fn leader(&self) -> Result<usize>;

    /// Waits until all nodes are up and any one may be lost. Returns how long that took. Fails at a
    /// deadline.
    fn wait_until_whole(&mut self) -> Result<Duration>;

    /// How many sessions a node has begun.
    fn sessions(&self, node: usize) -> Result<usize>;

    /// Lets a fault begin. What waits for the mount of a killed node fails then.
    fn hit(&mut self, node: usize, fault: Fault) -> Result<()>;

    /// Ends a fault: a killed node is started again, and is mounted when this returns. Returns the
    /// errors of starts that failed and were tried again.
    fn heal(&mut self, node: usize, fault: Fault) -> Result<Vec<String>>;
}

/// Loses the packets of a node that this fault cuts off; none for other faults.
pub fn cut(network: &Network, node: usize, fault: Fault) -> Result<()> {
    directions(fault).iter().try_for_each(|direction| network.cut(node, *direction))
}

/// Ends [`cut`].
pub fn join(network: &Network, node: usize, fault: Fault) -> Result<()> {
    directions(fault).iter().try_for_each(|direction| network.join(node, *direction))
}

fn directions(fault: Fault) -> &'static [Direction] {
    match fault {
        Fault::Cut => &[Direction::In, Direction::Out],
        Fault::CutIn => &[Direction::In],
        Fault::CutOut => &[Direction::Out],
        _ => &[],
    }
}
