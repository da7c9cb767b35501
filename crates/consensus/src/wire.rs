//! What voters say to each other, as bytes. The parts are those of an [image](crate::image).
//!
//! ```text
//! message: file system 16 | voter u64: who is asked | request
//! request: 0: vote | option log id: last of the candidate's log
//!          1: vote | option log id: before the entries | option log id: committed
//!             | list of entries
//!          2: vote | state: a snapshot
//!          3: option log id: last of the log of one that would be a candidate
//! reply:   0: vote | granted u8 | option log id: last of the voter's log
//!             | u64: for how long it has heard of no leader, in milliseconds
//!          1: 0: the entries are in the log
//!             1: the log is another one before them
//!             2: vote: the voter knows of a later leader
//!          2: vote
//!          3: the voter does not answer
//!          4: it would vote for the one who asks u8
//! ```

use crate::Types;
use crate::image::{VoterState, entries, flag, log_id, option, put_entries, put_log_id, put_option, put_vote, vote};
use bytes::Bytes;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use openraft::{LogId, Vote};
use types::FsUuid;
use types::codec::{DecodeError, Put, Reader};

/// Whom a request is for. Another voter at the same node must not answer it: its votes are others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addressee {
    /// The file system.
    pub fs: FsUuid,
    /// The voter.
    pub voter: u64,
}

/// A request of one voter to another.
pub enum VoterRequest {
    /// A candidate wants to be elected.
    Vote(VoteRequest<u64>),
    /// A leader has entries for the log, or says only that it still leads.
    Append(AppendEntriesRequest<Types>),
    /// A leader has a state in place of entries that it no longer has.
    Snapshot(Vote<u64>, VoterState),
    /// A voter asks whether it would be elected, before it begins a term. This is the last entry of
    /// its log.
    Canvass(Option<LogId<u64>>),
}

/// The answer to a [`VoterRequest`].
pub enum VoterReply {
    /// To a candidate, and for how long at least the voter has heard of no leader, in milliseconds.
    Vote(VoteResponse<u64>, u64),
    /// To entries.
    Append(AppendEntriesResponse<u64>),
    /// To a state: the last vote of the one who answers.
    Snapshot(Vote<u64>),
    /// The voter has stopped, or cannot answer for another reason. It may have done what the
    /// request asks.
    Failed,
    /// Whether the voter would vote for the one who asks.
    Canvassed(bool),
}

impl VoterRequest {
    /// The encoded message.
    pub fn encode(&self, to: Addressee) -> Bytes {
        let mut out = to.fs.0.to_vec();
        out.put_u64(to.voter);
        match self {
            VoterRequest::Vote(request) => {
                out.put_u8(0);
                put_vote(&mut out, &request.vote);
                put_option(&mut out, request.last_log_id.as_ref(), put_log_id);
            }
            VoterRequest::Append(request) => {
                out.put_u8(1);
                put_vote(&mut out, &request.vote);
                put_option(&mut out, request.prev_log_id.as_ref(), put_log_id);
                put_option(&mut out, request.leader_commit.as_ref(), put_log_id);
                put_entries(&mut out, &request.entries);
            }
            VoterRequest::Snapshot(vote, state) => {
                out.put_u8(2);
                put_vote(&mut out, vote);
                state.encode(&mut out);
            }
            VoterRequest::Canvass(last) => {
                out.put_u8(3);
                put_option(&mut out, last.as_ref(), put_log_id);
            }
        }
        out.into()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<(Addressee, VoterRequest), DecodeError> {
        let r = &mut Reader::new(bytes);
        let mut fs = FsUuid([0; 16]);
        fs.0.copy_from_slice(r.take(16, "file system")?);
        let to = Addressee { fs, voter: r.u64("voter")? };
        let kind = r.u8("kind of request")?;
        if kind == 3 {
            let last = option(r, log_id)?;
            return ended(r, (to, VoterRequest::Canvass(last)));
        }
        let vote = vote(r)?;
        // A candidate has not been elected, and a leader has.
        if vote.committed != (kind != 0) {
            return Err(DecodeError::Invalid("vote of a request"));
        }
        let request = match kind {
            0 => VoterRequest::Vote(VoteRequest { vote, last_log_id: option(r, log_id)? }),
            1 => {
                let (prev_log_id, leader_commit) = (option(r, log_id)?, option(r, log_id)?);
                let entries = entries(r, prev_log_id)?;
                VoterRequest::Append(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
            }
            2 => {
                let state = VoterState::decode(r)?;
                if !state.is_of_group() {
                    return Err(DecodeError::Invalid("state of no group"));
                }
                VoterRequest::Snapshot(vote, state)
            }
            _ => return Err(DecodeError::Invalid("kind of request")),
        };
        ended(r, (to, request))
    }
}

impl VoterReply {
    /// The encoded reply.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        match self {
            VoterReply::Vote(reply, silence_ms) => {
                out.put_u8(0);
                put_vote(&mut out, &reply.vote);
                out.put_u8(reply.vote_granted.into());
                put_option(&mut out, reply.last_log_id.as_ref(), put_log_id);
                out.put_u64(*silence_ms);
            }
            VoterReply::Append(reply) => {
                out.put_u8(1);
                match reply {
                    AppendEntriesResponse::Success => out.put_u8(0),
                    // No voter of this program takes a part of the entries. The leader asks again.
                    AppendEntriesResponse::PartialSuccess(_) => return VoterReply::Failed.encode(),
                    AppendEntriesResponse::Conflict => out.put_u8(1),
                    AppendEntriesResponse::HigherVote(vote) => {
                        out.put_u8(2);
                        put_vote(&mut out, vote);
                    }
                }
            }
            VoterReply::Snapshot(vote) => {
                out.put_u8(2);
                put_vote(&mut out, vote);
            }
            VoterReply::Failed => out.put_u8(3),
            VoterReply::Canvassed(would) => {
                out.put_u8(4);
                out.put_u8((*would).into());
            }
        }
        out.into()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<VoterReply, DecodeError> {
        let r = &mut Reader::new(bytes);
        let reply = match r.u8("kind of reply")? {
            0 => {
                let (vote, vote_granted) = (vote(r)?, flag(r, "a vote's grant")?);
                let reply = VoteResponse { vote, vote_granted, last_log_id: option(r, log_id)? };
                VoterReply::Vote(reply, r.u64("silence")?)
            }
            1 => VoterReply::Append(match r.u8("outcome of entries")? {
                0 => AppendEntriesResponse::Success,
                1 => AppendEntriesResponse::Conflict,
                2 => AppendEntriesResponse::HigherVote(vote(r)?),
                _ => return Err(DecodeError::Invalid("outcome of entries")),
            }),
            2 => VoterReply::Snapshot(vote(r)?),
            3 => VoterReply::Failed,
            4 => VoterReply::Canvassed(flag(r, "a voter's will")?),
            _ => return Err(DecodeError::Invalid("kind of reply")),
        };
        ended(r, reply)
    }
}

fn ended<T>(r: &Reader<'_>, message: T) -> Result<T, DecodeError> {
    match r.is_empty() {
        true => Ok(message),
        false => Err(DecodeError::Invalid("length of a voter's message")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{replies, requests};

    /// Bytes of a message come back, and no part of them is a message.
    fn check(bytes: &Bytes, again: impl Fn(&[u8]) -> Result<Bytes, DecodeError>) {
        assert_eq!(again(bytes).as_ref(), Ok(bytes));
        for len in 0..bytes.len() {
            assert!(again(&bytes[..len]).is_err(), "{len} bytes of {}", bytes.len());
        }
        assert!(again(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn every_message_comes_back_and_every_truncation_is_refused() {
        let to = Addressee { fs: FsUuid([7; 16]), voter: 3 };
        for request in requests() {
            check(&request.encode(to), |bytes| VoterRequest::decode(bytes).map(|(to, request)| request.encode(to)));
        }
        for reply in replies() {
            check(&reply.encode(), |bytes| VoterReply::decode(bytes).map(|reply| reply.encode()));
        }
    }
}
