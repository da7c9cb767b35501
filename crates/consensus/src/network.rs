//! The way from a voter to the others of its group.

use crate::Types;
use crate::hearing::Hearing;
use crate::image::VoterState;
use crate::wire::{Addressee, VoterReply, VoterRequest};
use bytes::Bytes;
use host::Host;
use openraft::error::{InstallSnapshotError, RPCError, RaftError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use openraft::{BasicNode, Vote};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use types::codec::Reader;
use types::{BoxFuture, FsUuid};

/// A leader waits this long before it asks a voter again that could not be asked.
const PAUSE: Duration = Duration::from_millis(200);

/// Carries requests of voters.
pub trait Peers: Send + Sync + 'static {
    /// Asks a voter at a node, and returns its answer. The answer comes from
    /// [`Consensus::answer`](crate::Consensus::answer) there. A caller that no longer waits drops
    /// the future; the voter may have received the request or not, as after an error.
    fn ask(&self, voter: u64, node: &str, request: Bytes) -> BoxFuture<Result<Bytes, PeerError>>;
}

/// A voter that could not be asked, or did not answer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("voter {voter} does not answer: {why}")]
pub struct PeerError {
    /// The voter.
    pub voter: u64,
    /// What happened.
    pub why: String,
}

/// A network without peers, for a group with one voter.
pub struct NoPeers;

impl Peers for NoPeers {
    fn ask(&self, voter: u64, _: &str, _: Bytes) -> BoxFuture<Result<Bytes, PeerError>> {
        Box::pin(async move { Err(PeerError { voter, why: "this voter has no peers".to_string() }) })
    }
}

/// openraft's view of the peers.
pub(crate) struct Network {
    /// The file system.
    pub fs: FsUuid,
    /// The voter that asks.
    pub me: u64,
    pub peers: Arc<dyn Peers>,
    pub host: Host,
    pub hearing: Arc<Hearing>,
}

/// openraft's view of one of them.
pub(crate) struct Peer {
    peers: Arc<dyn Peers>,
    host: Host,
    hearing: Arc<Hearing>,
    me: u64,
    to: Addressee,
    node: String,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, voter: u64, node: &BasicNode) -> Peer {
        let to = Addressee { fs: self.fs, voter };
        let Network { me, peers, host, hearing, .. } = self;
        let (peers, host, hearing) = (peers.clone(), host.clone(), hearing.clone());
        Peer { peers, host, hearing, me: *me, to, node: node.addr.clone() }
    }
}

/// True if a voter was elected by this vote, which it would know.
fn is_of(vote: &Vote<u64>, voter: u64) -> bool {
    vote.committed && vote.leader_id.node_id == voter
}

type Answer<T, E = RaftError<u64>> = Result<T, RPCError<u64, BasicNode, E>>;

impl Peer {
    fn failed(&self, why: String) -> Unreachable {
        Unreachable::new(&PeerError { voter: self.to.voter, why })
    }

    /// Asks, and takes of the answer what `get` accepts.
    async fn ask<T>(&self, request: VoterRequest, get: impl FnOnce(VoterReply) -> Option<T>) -> Result<T, Unreachable> {
        let answer = self.peers.ask(self.to.voter, &self.node, request.encode(self.to)).await;
        let reply = VoterReply::decode(&answer.map_err(|error| Unreachable::new(&error))?);
        let reply = reply.map_err(|error| self.failed(error.to_string()))?;
        get(reply).ok_or_else(|| self.failed("it cannot answer this now".to_string()))
    }
}

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Answer<AppendEntriesResponse<u64>> {
        // What no voter answers is not for the engine.
        let (me, vote, is_first) = (self.me, request.vote, request.prev_log_id.is_none());
        let get = move |reply| match reply {
            VoterReply::Append(AppendEntriesResponse::Conflict) if is_first => None,
            VoterReply::Append(AppendEntriesResponse::HigherVote(higher)) if higher <= vote || is_of(&higher, me) => {
                None
            }
            VoterReply::Append(reply) => Some(reply),
            _ => None,
        };
        Ok(self.ask(VoterRequest::Append(request), get).await?)
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Answer<InstallSnapshotResponse<u64>, RaftError<u64, InstallSnapshotError>> {
        // A state is much shorter than the longest chunk, so each chunk is a whole state.
        let state = VoterState::decode(&mut Reader::new(&request.data));
        let state = state.map_err(|error| self.failed(error.to_string()))?;
        let get = |reply| match reply {
            VoterReply::Snapshot(vote) => Some(InstallSnapshotResponse { vote }),
            _ => None,
        };
        Ok(self.ask(VoterRequest::Snapshot(request.vote, state), get).await?)
    }

    async fn vote(&mut self, request: VoteRequest<u64>, _: RPCOption) -> Answer<VoteResponse<u64>> {
        let get = |reply| match reply {
            VoterReply::Vote(reply, silence_ms) => Some((reply, Duration::from_millis(silence_ms))),
            _ => None,
        };
        let term = request.vote.leader_id.term;
        let (reply, silence) = self.ask(VoterRequest::Vote(request), get).await?;
        if reply.vote_granted {
            // Of two clocks, either may be wrong.
            let silence = silence - silence / 50;
            self.hearing.note_vote(term, self.host.clock.now().saturating_sub(silence));
        }
        Ok(reply)
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(PAUSE))
    }
}
