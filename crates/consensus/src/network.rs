//! The network of a group with one voter, which has no peers.
//!
//! More voters need an implementation of these two traits that carries openraft's messages; nothing
//! else of this crate knows how many voters there are.

use crate::Types;
use openraft::BasicNode;
use openraft::error::{InstallSnapshotError, RPCError, RaftError, Unreachable};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use thiserror::Error;

/// A network without peers.
pub struct NoPeers;

/// A peer that cannot be reached.
#[derive(Clone, Copy, Debug, Error)]
#[error("voter {0} cannot be reached: this program runs one voter only")]
pub struct NoSuchPeer(u64);

type Answer<T, E = RaftError<u64>> = Result<T, RPCError<u64, BasicNode, E>>;

impl RaftNetworkFactory<Types> for NoPeers {
    type Network = NoSuchPeer;

    async fn new_client(&mut self, target: u64, _: &BasicNode) -> NoSuchPeer {
        NoSuchPeer(target)
    }
}

impl RaftNetwork<Types> for NoSuchPeer {
    async fn append_entries(
        &mut self,
        _: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Answer<AppendEntriesResponse<u64>> {
        Err(Unreachable::new(self).into())
    }

    async fn install_snapshot(
        &mut self,
        _: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Answer<InstallSnapshotResponse<u64>, RaftError<u64, InstallSnapshotError>> {
        Err(Unreachable::new(self).into())
    }

    async fn vote(&mut self, _: VoteRequest<u64>, _: RPCOption) -> Answer<VoteResponse<u64>> {
        Err(Unreachable::new(self).into())
    }
}
