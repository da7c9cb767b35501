//! Which machine is the first node, and how another one takes its place.
//!
//! The maps name the certificate of the first node. A machine with another certificate does not
//! start as the first node, so one that was replaced cannot come back and serve what others have
//! changed meanwhile.
//!
//! There are two ways to take its place:
//!
//! - The voters of a group *elect* a node, and the process of that node serves as the first one,
//!   beside what it is as a member. Nothing is known of the former first machine. It becomes a
//!   member, with the stores that it has, and is one when it comes back.
//! - With too few voters, a node that has joined is *recovered* by its user
//!   (`starling node recover`). It is no member any more, and makes the stores of the former first
//!   node anew.
//!
//! The start reads the newest maps, names itself in them, and has a quorum of the stores know them
//! before it opens a log. From then on stores at nodes refuse the certificate of the former first
//! node. What the former one has acknowledged is in the logs, and these are rolled forward as at
//! any start. The sessions of other nodes go on as at any start.

use crate::config::{ConfigError, FIRST_NODE, FsConfig};
use crate::start_error::StartError;
use std::collections::{BTreeMap, BTreeSet};
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

/// How a node takes the place of the first one. Once the maps name its certificate, this is of no
/// effect any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Succession {
    /// A group of voters has elected this member, which must have a voter by the maps. It serves no
    /// stores itself.
    Elected(NodeId),
    /// Its user says that the former first node is lost.
    Recovered {
        /// The number that the machine had as a member. It is no member any more.
        node: NodeId,
        /// The certificate of the first node that it replaces, and of no other.
        former: Option<Fingerprint>,
    },
}

impl Claim {
    /// That of a machine that no other node can join.
    pub const NONE: Claim = Claim { certificate: None, succession: None };

    /// The configuration with which the machine may start, by that of the newest maps, and whether
    /// it is a new one. `at_nodes` are the stores that the machine reaches at other nodes.
    pub(crate) fn check(&self, known: FsConfig, at_nodes: &BTreeSet<StoreId>) -> Result<(FsConfig, bool), StartError> {
        let next = match (known.first_node, self.certificate, self.succession) {
            (Some(first), Some(own), _) if first == own => return Ok((known, false)),
            (Some(_), Some(own), Some(Succession::Elected(node))) if known.voter_of(node).is_some() => {
                after_election(&known, own)
            }
            (former, Some(own), Some(Succession::Recovered { node, former: expected })) if former == expected => {
                recovered(&known, own, node, at_nodes)
            }
            (None, _, None) => return Ok((known, false)),
            _ => return Err(StartError::Succeeded),
        };
        let next = next.and_then(|next| {
            next.check()?;
            known.may_become(&next)?;
            Ok(next)
        });
        Ok((next.map_err(StartError::Impossible)?, true))
    }
}

/// The configuration after a member, elected, has become the first node under this certificate. The
/// former first node is a member from now on, unless it was elected itself.
///
/// # Errors
/// No number of a node is left.
pub fn after_election(known: &FsConfig, certificate: Fingerprint) -> Result<FsConfig, ConfigError> {
    let mut next = known.clone();
    if next.first_node == Some(certificate) {
        return Ok(next);
    }
    if let Some(mut member) = next.first_member.take() {
        let has_name = |name: &str| known.members.values().any(|other| other.name == name);
        let names = (2..).map(|number| format!("first-{number}"));
        if let (true, Some(free)) = (has_name(&member.name), names.into_iter().find(|name| !has_name(name))) {
            member.name = free;
        }
        let node = next.add_member(member)?;
        for store in next.stores() {
            next.places.entry(store).or_insert(node);
        }
        next.voters.values_mut().filter(|at| **at == FIRST_NODE).for_each(|at| *at = node);
        if let Some(rate) = next.draining.remove(&FIRST_NODE) {
            next.draining.insert(node, rate);
        }
    }
    next.first_node = Some(certificate);
    next.through_first.clear();
    Ok(next)
}

/// The configuration after node `node`, with this certificate, has become the first one. Stores
/// that it does not reach at other nodes are its own, as is the only voter.
fn recovered(
    known: &FsConfig,
    certificate: Fingerprint,
    node: NodeId,
    at_nodes: &BTreeSet<StoreId>,
) -> Result<FsConfig, ConfigError> {
    let mut next = known.clone();
    next.places.retain(|store, _| at_nodes.contains(store));
    next.remove_member(node);
    next.first_node = Some(certificate);
    next.first_member = None;
    next.voters = BTreeMap::new();
    next.add_voter(FIRST_NODE)?;
    // The former first node may have drained.
    next.draining.remove(&FIRST_NODE);
    next.through_first.clear();
    Ok(next)
}
