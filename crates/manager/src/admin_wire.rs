//! What the first node asks of a node that serves managers, as bytes. Pure.
//!
//! All requests can be repeated. Integers are little-endian. Decoders take any bytes: they fail,
//! but do not panic, and they ask for memory in proportion to what they get.

use crate::api::{
    BlockAt, CheckpointState, FileUse, HeldToken, ManagerError, ManagerStatus, NodeSize, Progress, SegmentDeltas,
    SegmentUsage, UsageChanges,
};
use crate::roll_forward::LivingLog;
use crate::server::Lengths;
use crate::wire::{error, file, file_use, held, list, put_error, put_file, put_file_use, put_held, put_list};
use crate::wire::{put_segment_deltas, put_status, segment_deltas, status, whole};
use std::collections::BTreeMap;
use types::codec::{DecodeError, Put, Reader};
use types::{ClientId, Extent, FileId, LogId, ManagerId, SegmentId};

/// Most index numbers that a manager gives a client at once.
const INDEX_RANGE_LEN_MAX: u64 = 1 << 24;

/// A client that may use the managers of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdmittedClient {
    /// The client.
    pub client: ClientId,
    /// The log that it writes.
    pub log: LogId,
    /// Its session.
    pub session: u64,
    /// The fingerprint of its node's certificate.
    pub fingerprint: [u8; 32],
}

/// A manager that a node is to serve from now on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Takeover {
    /// The manager.
    pub manager: ManagerId,
    /// Its term. No grant of an earlier one counts any more.
    pub term: u64,
    /// The epoch of the manager that wrote the log before.
    pub after_epoch: u32,
    /// How many index numbers it gives a client at once.
    pub index_range_len: u64,
    /// Bounds of what it writes.
    pub lengths: Lengths,
    /// The clients' logs, and how far they are to be applied. Nothing opens them meanwhile.
    pub logs: Vec<LivingLog>,
    /// The cleaners' logs.
    pub cleaners: Vec<LivingLog>,
    /// The clients, and what each holds of this manager's files.
    pub clients: Vec<(AdmittedClient, Vec<HeldToken>)>,
}

/// A request of the first node to a node that may serve managers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostRequest {
    /// Opens a manager, which no other node serves any more, and serves it.
    Take(Box<Takeover>),
    /// Serves a manager no longer. Writes a checkpoint, if that can be done soon.
    Release(ManagerId),
    /// Lets a client in at all managers.
    Admit(AdmittedClient),
    /// Refuses all requests of a session from now on, and waits until those have ended that are
    /// inside a manager.
    Refuse(u64),
    /// Frees what a client holds at all managers, and lets it in no longer.
    Expel(ClientId),
    /// What is known of all managers here.
    Progress,
    /// See [`ManagerAdmin`](crate::api::ManagerAdmin).
    Ask(ManagerId, AdminRequest),
    /// The client of the node copies these runs into its own log.
    Relocate(Vec<BlockAt>),
}

/// A call of a method of [`ManagerAdmin`](crate::api::ManagerAdmin), or of `Manager::orphans`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields are the arguments of the methods")]
pub enum AdminRequest {
    Replay(Vec<SegmentDeltas>),
    Size(BlockAt),
    Live(Vec<BlockAt>),
    UsageChanges(u64),
    Checkpoint,
    Evacuate(Vec<SegmentId>),
    Orphans,
    FileUse(FileId),
}

/// What is known of a manager.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ManagerReport {
    /// Which changes it has applied.
    pub progress: Progress,
    /// Its numbers for `status`.
    pub status: ManagerStatus,
}

/// The answer to a [`HostRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostAnswer {
    /// It failed, or was refused.
    Failed(ManagerError),
    /// Done, without a value.
    Done,
    /// What is known of all managers of the node.
    Progress(BTreeMap<ManagerId, ManagerReport>),
    /// The result of `size`.
    Size(Option<NodeSize>),
    /// The result of `live`.
    Live(Vec<BlockAt>),
    /// The result of `usage_changes`.
    UsageChanges(UsageChanges),
    /// The result of `checkpoint`.
    Checkpoint(CheckpointState),
    /// The result of `orphans`.
    Orphans(Vec<FileId>),
    /// The result of `file_use`.
    FileUse(FileUse),
}

fn manager(r: &mut Reader<'_>) -> Result<ManagerId, DecodeError> {
    Ok(ManagerId::new(r.u16("manager")?))
}

fn log(r: &mut Reader<'_>) -> Result<LogId, DecodeError> {
    Ok(LogId::new(r.u32("log")?))
}

fn put_run(out: &mut Vec<u8>, run: &BlockAt) {
    put_file(out, &run.file);
    run.extent.encode(out);
}

fn run(r: &mut Reader<'_>) -> Result<BlockAt, DecodeError> {
    Ok(BlockAt { file: file(r)?, extent: Extent::decode(r)? })
}

fn put_living(out: &mut Vec<u8>, living: &LivingLog) {
    out.put_u32(living.log.raw());
    out.put_u32(living.epoch);
    out.put_u64(living.committed_seq);
}

fn living(r: &mut Reader<'_>) -> Result<LivingLog, DecodeError> {
    Ok(LivingLog { log: log(r)?, epoch: r.u32("epoch")?, committed_seq: r.u64("committed seq")? })
}

fn put_seqs<'a>(out: &mut Vec<u8>, seqs: impl ExactSizeIterator<Item = (&'a LogId, &'a u64)>) {
    out.put_u32(seqs.len() as u32);
    for (log, seq) in seqs {
        out.put_u32(log.raw());
        out.put_u64(*seq);
    }
}

fn seqs(r: &mut Reader<'_>) -> Result<Vec<(LogId, u64)>, DecodeError> {
    list(r, 12, "logs", |r| Ok((log(r)?, r.u64("seq")?)))
}

const LIVING_LEN: usize = 4 + 4 + 8;
const RUN_LEN: usize = 8 + Extent::ENCODED_LEN;
/// Bytes of an encoded [`AdmittedClient`].
const CLIENT_LEN: usize = 4 + 4 + 8 + 32;
/// Bytes of an encoded [`ManagerReport`] with its manager, at least.
const REPORT_LEN_MIN: usize = 2 + 4 + 8 + 5 * 8;

impl AdmittedClient {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.client.raw());
        out.put_u32(self.log.raw());
        out.put_u64(self.session);
        out.extend_from_slice(&self.fingerprint);
    }

    fn decode(r: &mut Reader<'_>) -> Result<AdmittedClient, DecodeError> {
        let (client, log, session) = (ClientId::new(r.u32("client")?), log(r)?, r.u64("session")?);
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(r.take(32, "fingerprint")?);
        Ok(AdmittedClient { client, log, session, fingerprint })
    }
}

impl Takeover {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.manager.raw());
        out.put_u64(self.term);
        out.put_u32(self.after_epoch);
        out.put_u64(self.index_range_len);
        out.put_u32(self.lengths.segment_len_max);
        out.put_u64(self.lengths.page_rows_max as u64);
        put_list(out, &self.logs, put_living);
        put_list(out, &self.cleaners, put_living);
        put_list(out, &self.clients, |out, (client, tokens)| {
            client.encode(out);
            put_held(out, tokens);
        });
    }

    fn decode(r: &mut Reader<'_>) -> Result<Takeover, DecodeError> {
        let (manager, term, after_epoch) = (manager(r)?, r.u64("term")?, r.u32("epoch")?);
        let index_range_len = r.u64("index range")?;
        let segment_len_max = r.u32("segment length")?;
        let page_rows_max = usize::try_from(r.u64("page rows")?).unwrap_or(usize::MAX);
        if !(1..=INDEX_RANGE_LEN_MAX).contains(&index_range_len) || segment_len_max == 0 || page_rows_max < 2 {
            return Err(DecodeError::Invalid("bounds of a manager"));
        }
        Ok(Takeover {
            manager,
            term,
            after_epoch,
            index_range_len,
            lengths: Lengths { segment_len_max, page_rows_max },
            logs: list(r, LIVING_LEN, "logs", living)?,
            cleaners: list(r, LIVING_LEN, "cleaners", living)?,
            clients: list(r, CLIENT_LEN + 4, "clients", |r| Ok((AdmittedClient::decode(r)?, held(r)?)))?,
        })
    }
}

impl AdminRequest {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            AdminRequest::Replay(segments) => {
                out.put_u8(1);
                put_list(out, segments, put_segment_deltas);
            }
            AdminRequest::Size(run) => {
                out.put_u8(2);
                put_run(out, run);
            }
            AdminRequest::Live(runs) => {
                out.put_u8(3);
                put_list(out, runs, put_run);
            }
            AdminRequest::UsageChanges(since) => {
                out.put_u8(4);
                out.put_u64(*since);
            }
            AdminRequest::Checkpoint => out.put_u8(5),
            AdminRequest::Evacuate(segments) => {
                out.put_u8(6);
                put_list(out, segments, |out, segment| segment.encode(out));
            }
            AdminRequest::Orphans => out.put_u8(7),
            AdminRequest::FileUse(file) => {
                out.put_u8(8);
                put_file(out, file);
            }
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<AdminRequest, DecodeError> {
        Ok(match r.u8("request kind")? {
            1 => AdminRequest::Replay(list(r, SegmentId::ENCODED_LEN + 4, "segments", segment_deltas)?),
            2 => AdminRequest::Size(run(r)?),
            3 => AdminRequest::Live(list(r, RUN_LEN, "runs", run)?),
            4 => AdminRequest::UsageChanges(r.u64("since")?),
            5 => AdminRequest::Checkpoint,
            6 => AdminRequest::Evacuate(list(r, SegmentId::ENCODED_LEN, "segments", SegmentId::decode)?),
            7 => AdminRequest::Orphans,
            8 => AdminRequest::FileUse(file(r)?),
            _ => return Err(DecodeError::Invalid("request kind")),
        })
    }
}

impl HostRequest {
    /// The bytes of this request, which is for the session in which the node serves managers.
    pub fn encode(&self, session: u64) -> Vec<u8> {
        let out = &mut Vec::new();
        out.put_u64(session);
        match self {
            HostRequest::Take(takeover) => {
                out.put_u8(1);
                takeover.encode(out);
            }
            HostRequest::Release(manager) => {
                out.put_u8(2);
                out.put_u16(manager.raw());
            }
            HostRequest::Admit(client) => {
                out.put_u8(3);
                client.encode(out);
            }
            HostRequest::Refuse(session) => {
                out.put_u8(4);
                out.put_u64(*session);
            }
            HostRequest::Expel(client) => {
                out.put_u8(5);
                out.put_u32(client.raw());
            }
            HostRequest::Progress => out.put_u8(6),
            HostRequest::Ask(manager, request) => {
                out.put_u8(7);
                out.put_u16(manager.raw());
                request.encode(out);
            }
            HostRequest::Relocate(runs) => {
                out.put_u8(8);
                put_list(out, runs, put_run);
            }
        }
        std::mem::take(out)
    }

    /// Reads what [`encode`](Self::encode) wrote: the session, and the request.
    pub fn decode(bytes: &[u8]) -> Result<(u64, HostRequest), DecodeError> {
        let r = &mut Reader::new(bytes);
        let session = r.u64("session")?;
        let request = match r.u8("request kind")? {
            1 => HostRequest::Take(Box::new(Takeover::decode(r)?)),
            2 => HostRequest::Release(manager(r)?),
            3 => HostRequest::Admit(AdmittedClient::decode(r)?),
            4 => HostRequest::Refuse(r.u64("session")?),
            5 => HostRequest::Expel(ClientId::new(r.u32("client")?)),
            6 => HostRequest::Progress,
            7 => HostRequest::Ask(manager(r)?, AdminRequest::decode(r)?),
            8 => HostRequest::Relocate(list(r, RUN_LEN, "runs", run)?),
            _ => return Err(DecodeError::Invalid("request kind")),
        };
        whole((session, request), r)
    }
}

impl HostAnswer {
    /// The bytes of this answer.
    pub fn encode(&self) -> Vec<u8> {
        let out = &mut Vec::new();
        match self {
            HostAnswer::Failed(error) => {
                out.put_u8(1);
                put_error(out, error);
            }
            HostAnswer::Done => out.put_u8(2),
            HostAnswer::Progress(reports) => {
                out.put_u8(3);
                out.put_u32(reports.len() as u32);
                for (manager, ManagerReport { progress, status }) in reports {
                    out.put_u16(manager.raw());
                    put_seqs(out, progress.applied.iter());
                    out.put_u64(progress.order);
                    put_status(out, status);
                }
            }
            HostAnswer::Size(size) => {
                out.put_u8(4);
                out.put_u8(size.is_some().into());
                if let Some(NodeSize { attribute_bytes, extent_count }) = size {
                    out.put_u64(*attribute_bytes);
                    out.put_u64(*extent_count);
                }
            }
            HostAnswer::Live(runs) => {
                out.put_u8(5);
                put_list(out, runs, put_run);
            }
            HostAnswer::UsageChanges(UsageChanges { until, is_whole, changed, covered }) => {
                out.put_u8(6);
                out.put_u64(*until);
                out.put_u8((*is_whole).into());
                put_list(out, changed, |out, usage| {
                    usage.segment.encode(out);
                    out.put_u64(usage.live_bytes);
                });
                put_list(out, covered, |out, segment| segment.encode(out));
            }
            HostAnswer::Checkpoint(CheckpointState { covered }) => {
                out.put_u8(7);
                put_seqs(out, covered.iter().map(|(log, seq)| (log, seq)));
            }
            HostAnswer::Orphans(files) => {
                out.put_u8(8);
                put_list(out, files, put_file);
            }
            HostAnswer::FileUse(file_use) => {
                out.put_u8(9);
                put_file_use(out, file_use);
            }
        }
        std::mem::take(out)
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<HostAnswer, DecodeError> {
        let r = &mut Reader::new(bytes);
        let flag = |r: &mut Reader<'_>, what| match r.u8(what)? {
            flag @ (0 | 1) => Ok(flag == 1),
            _ => Err(DecodeError::Invalid(what)),
        };
        let answer = match r.u8("answer kind")? {
            1 => HostAnswer::Failed(error(r)?),
            2 => HostAnswer::Done,
            3 => HostAnswer::Progress(list(r, REPORT_LEN_MIN, "managers", report)?.into_iter().collect()),
            4 => HostAnswer::Size(match flag(r, "size")? {
                true => {
                    let (attribute_bytes, extent_count) = (r.u64("attribute bytes")?, r.u64("extents")?);
                    Some(NodeSize { attribute_bytes, extent_count })
                }
                false => None,
            }),
            5 => HostAnswer::Live(list(r, RUN_LEN, "runs", run)?),
            6 => HostAnswer::UsageChanges(UsageChanges {
                until: r.u64("until")?,
                is_whole: flag(r, "whole")?,
                changed: list(r, SegmentId::ENCODED_LEN + 8, "changes", |r| {
                    Ok(SegmentUsage { segment: SegmentId::decode(r)?, live_bytes: r.u64("live bytes")? })
                })?,
                covered: list(r, SegmentId::ENCODED_LEN, "covered", SegmentId::decode)?,
            }),
            7 => HostAnswer::Checkpoint(CheckpointState { covered: seqs(r)? }),
            8 => HostAnswer::Orphans(list(r, 8, "files", file)?),
            9 => HostAnswer::FileUse(file_use(r)?),
            _ => return Err(DecodeError::Invalid("answer kind")),
        };
        whole(answer, r)
    }
}

fn report(r: &mut Reader<'_>) -> Result<(ManagerId, ManagerReport), DecodeError> {
    let (manager, applied) = (manager(r)?, seqs(r)?.into_iter().collect());
    let progress = Progress { applied, order: r.u64("order")? };
    Ok((manager, ManagerReport { progress, status: status(r)? }))
}
