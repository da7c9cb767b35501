//! Which machine is the first node, and how another one takes its place.
//!
//! The maps name the certificate of the first node. A machine with another certificate does not
//! start as the first node, so one that was replaced cannot come back and serve what others have
//! changed meanwhile.
//!
//! If the first machine is lost, a node that has joined may succeed it (`starling node recover`).
//! Its start reads the newest maps of the stores that are left, names itself in them, and gives
//! them to a quorum of the stores before it opens a log. From then on stores at nodes refuse the
//! certificate of the former first node. What the former one has acknowledged is in the logs, and
//! these are rolled forward as at any start. The sessions of other nodes go on as at any start.

use crate::config::{ConfigError, FIRST_NODE, FsConfig};
use crate::start_error::StartError;
use std::collections::BTreeSet;
use types::{NodeId, StoreId};

/// SHA-256 of a certificate.
type Fingerprint = [u8; 32];

/// By what right a machine starts as the first node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The fingerprint of its certificate; `None` if it has none, since no other node can join.
    pub certificate: Option<Fingerprint>,
    /// It takes the place of another machine.
    pub succession: Option<Succession>,
}

/// A node takes the place of the first one. Once the maps name its certificate, this is of no
/// effect any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Succession {
    /// The number that the machine had as a member. It is no member any more.
    pub node: NodeId,
    /// The certificate of the first node that it replaces, and of no other.
    pub former: Option<Fingerprint>,
}

impl Claim {
    /// That of a machine that no other node can join.
    pub const NONE: Claim = Claim { certificate: None, succession: None };

    /// The configuration with which the machine may start, by that of the newest maps, and whether
    /// it is a new one. `at_nodes` are the stores that the machine reaches at other nodes.
    pub(crate) fn check(&self, known: FsConfig, at_nodes: &BTreeSet<StoreId>) -> Result<(FsConfig, bool), StartError> {
        match (known.first_node, self.certificate, self.succession) {
            (Some(first), Some(own), _) if first == own => Ok((known, false)),
            (former, Some(own), Some(succession)) if former == succession.former => {
                let next = succeeded(&known, own, succession.node, at_nodes).map_err(StartError::Impossible)?;
                Ok((next, true))
            }
            (None, _, None) => Ok((known, false)),
            _ => Err(StartError::Succeeded),
        }
    }
}

/// The configuration after node `node`, with this certificate, has become the first one. Stores
/// that it does not reach at other nodes are its own.
fn succeeded(
    known: &FsConfig,
    certificate: Fingerprint,
    node: NodeId,
    at_nodes: &BTreeSet<StoreId>,
) -> Result<FsConfig, ConfigError> {
    let mut next = known.clone();
    next.places.retain(|store, _| at_nodes.contains(store));
    next.remove_member(node);
    next.first_node = Some(certificate);
    // The former first node may have drained.
    next.draining.remove(&FIRST_NODE);
    next.through_first.clear();
    next.check().and_then(|()| known.may_become(&next))?;
    Ok(next)
}
