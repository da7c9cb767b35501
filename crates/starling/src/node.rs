//! Nodes: several processes that serve one file system, each with a data folder and an identity.
//!
//! - [`identity`]: the files with the authority, keys and certificates.
//! - [`joined`]: the data folder of a node that has joined, or is joining.
//! - [`joining`]: the exchange by which it joins.
//! - [`invite`]: invitations, at the first node.
//! - [`report`]: what `starling nodes` shows.

pub mod identity;
pub mod invite;
pub mod joined;
pub mod joining;
pub mod report;
