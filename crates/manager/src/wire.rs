//! The interface to managers as bytes, for clients on other nodes. Pure.
//!
//! A client's requests to one manager are numbered, and the manager's node serves each number once
//! (docs/core.md#managers-of-another-node). All integers are little-endian. Decoders take any
//! bytes: they fail, but do not panic, and they ask for memory in proportion to what they get.

use crate::api::{
    FileUse, GiveBack, Glimpse, GlimpseAnswer, GlimpseQuestion, HeldToken, IndexRange, Located, ManagerError,
    ManagerStatus, Opened, SegmentDeltas, TokenGrant, TokenRecall, TokenUse, TokenWait,
};
use crate::token::Mode;
use crate::{Delta, InodeRecord};
use bytes::Bytes;
use std::sync::Arc;
use types::codec::{DecodeError, Put, Reader};
use types::{ClientId, Extent, FileId, ManagerId, SegmentId};

/// Most files that one request may open.
pub const OPEN_FILES_MAX: usize = 1024;

/// What a client sends to the node of its managers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientMessage {
    /// A request to a manager.
    Call(ManagerCall),
    /// Asks for recalls. The answer comes when there are some.
    NextRecalls {
        /// The client's session.
        session: u64,
        /// Recalls up to this number have arrived, and need not come again.
        seen: u64,
    },
}

/// A request to a manager, with what makes it served once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManagerCall {
    /// The client's session. It says which client asks.
    pub session: u64,
    /// The manager.
    pub manager: ManagerId,
    /// The number of the connection, which grows. What comes over an earlier connection after this
    /// is ignored.
    pub connection: u64,
    /// The number of the request, different for all requests of the session to this manager.
    pub number: u64,
    /// Numbers of requests whose answers have arrived, so that they can be forgotten.
    pub received: Vec<u64>,
    /// The request.
    pub request: ManagerRequest,
}

/// A call of a method of [`Manager`](crate::api::Manager).
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields are the arguments of the methods")]
pub enum ManagerRequest {
    Open {
        file: FileId,
        mode: Mode,
    },
    OpenMany {
        files: Vec<FileId>,
        mode: Mode,
    },
    Locate {
        file: FileId,
        first: u64,
    },
    /// Several tokens are given back or released, in this order.
    GiveBack(Vec<GiveBack>),
    Closed {
        file: FileId,
    },
    Allocate {
        volume: u16,
    },
    Apply(Vec<SegmentDeltas>),
    Status,
    Glimpse {
        file: FileId,
    },
    Glimpsed(GlimpseAnswer),
}

/// What a manager wants from a client that has a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HolderRequest {
    /// The token back.
    Recall(TokenRecall),
    /// The attributes of the file.
    Glimpse(GlimpseQuestion),
}

/// The answer to a message of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ManagerAnswer {
    /// The request failed or was refused. A session that is over is refused with
    /// [`ManagerError::Expelled`].
    Failed(ManagerError),
    /// Done, without a value.
    Done,
    /// The result of `open`.
    Opened(Box<Opened>),
    /// The result of `open_many`.
    OpenedMany(Vec<Result<Opened, ManagerError>>),
    /// The result of `locate`.
    Located(Located),
    /// The result of `closed`.
    Closed(bool),
    /// The result of `allocate`.
    Allocated(IndexRange),
    /// The result of `status`.
    Status(ManagerStatus),
    /// Recalls and questions, in the order in which they were made.
    Recalls {
        /// The number of the last one; each has the number after that of the one before.
        last: u64,
        /// The recalls and questions.
        recalls: Vec<HolderRequest>,
    },
    /// The message came over a connection that the client has replaced.
    Stale,
    /// The manager is not served here, or no longer: the client must ask the first node where it
    /// is. To a question for recalls: it must renew its lease at once.
    Moved,
    /// The result of `glimpse`, without a token. With one it is [`Opened`](Self::Opened).
    Seen {
        /// The inode.
        inode: Box<InodeRecord>,
        /// The manager's term.
        term: u64,
    },
}

pub(crate) fn put_list<T>(out: &mut Vec<u8>, list: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    out.put_u32(list.len() as u32);
    list.iter().for_each(|item| put(out, item));
}

pub(crate) fn list<T>(
    r: &mut Reader<'_>,
    each: usize,
    what: &'static str,
    item: impl Fn(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    (0..r.count(each, what)?).map(|_| item(r)).collect()
}

pub(crate) fn put_file(out: &mut Vec<u8>, file: &FileId) {
    out.put_u64(file.raw());
}

pub(crate) fn file(r: &mut Reader<'_>) -> Result<FileId, DecodeError> {
    Ok(FileId::new(r.u64("file")?))
}

fn put_flag(out: &mut Vec<u8>, flag: bool) {
    out.put_u8(flag.into());
}

fn flag(r: &mut Reader<'_>, what: &'static str) -> Result<bool, DecodeError> {
    match r.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Invalid(what)),
    }
}

/// 0 stands for no right at all.
pub(crate) fn put_mode(out: &mut Vec<u8>, mode: Option<Mode>) {
    out.put_u8(match mode {
        None => 0,
        Some(Mode::Read) => 1,
        Some(Mode::Write) => 2,
    });
}

pub(crate) fn mode_or_none(r: &mut Reader<'_>) -> Result<Option<Mode>, DecodeError> {
    match r.u8("mode")? {
        0 => Ok(None),
        1 => Ok(Some(Mode::Read)),
        2 => Ok(Some(Mode::Write)),
        _ => Err(DecodeError::Invalid("mode")),
    }
}

fn mode(r: &mut Reader<'_>) -> Result<Mode, DecodeError> {
    mode_or_none(r)?.ok_or(DecodeError::Invalid("mode"))
}

fn put_give_back(out: &mut Vec<u8>, back: &GiveBack) {
    put_file(out, &back.file);
    out.put_u64(back.number);
    put_mode(out, back.keep);
    put_flag(out, back.is_open);
}

fn give_back(r: &mut Reader<'_>) -> Result<GiveBack, DecodeError> {
    let (file, number) = (file(r)?, r.u64("grant number")?);
    Ok(GiveBack { file, number, keep: mode_or_none(r)?, is_open: flag(r, "open")? })
}

pub(crate) fn put_segment_deltas(out: &mut Vec<u8>, segment: &SegmentDeltas) {
    segment.segment.encode(out);
    out.put_u64(segment.order);
    let at = out.len();
    out.put_u32(0);
    segment.deltas.iter().for_each(|delta| delta.encode(out));
    let len = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&len.to_le_bytes());
}

pub(crate) fn segment_deltas(r: &mut Reader<'_>) -> Result<SegmentDeltas, DecodeError> {
    let (segment, order) = (SegmentId::decode(r)?, r.u64("segment order")?);
    Ok(SegmentDeltas { segment, order, deltas: Arc::new(Delta::decode_all(r.blob("deltas")?)?) })
}

pub(crate) fn put_error(out: &mut Vec<u8>, error: &ManagerError) {
    match error {
        ManagerError::NotFound => out.put_u8(1),
        ManagerError::StaleMap(epoch) => {
            out.put_u8(2);
            out.put_u64(*epoch);
        }
        // A client cannot do anything about single stores of the managers' node.
        ManagerError::Log | ManagerError::Stores(_) => out.put_u8(3),
        ManagerError::Expelled => out.put_u8(4),
        ManagerError::Held => out.put_u8(6),
        ManagerError::Away => out.put_u8(7),
        // The wire does not carry the reason of a bad request.
        ManagerError::BadRequest(_) => out.put_u8(5),
    }
}

pub(crate) fn error(r: &mut Reader<'_>) -> Result<ManagerError, DecodeError> {
    Ok(match r.u8("error kind")? {
        1 => ManagerError::NotFound,
        2 => ManagerError::StaleMap(r.u64("map epoch")?),
        3 => ManagerError::Log,
        4 => ManagerError::Expelled,
        5 => ManagerError::BadRequest("refused by the manager"),
        6 => ManagerError::Held,
        7 => ManagerError::Away,
        _ => return Err(DecodeError::Invalid("error kind")),
    })
}

fn put_located(out: &mut Vec<u8>, located: &Located) {
    put_list(out, &located.extents, |out, extent| extent.encode(out));
    out.put_u64(located.known_until);
}

fn located(r: &mut Reader<'_>) -> Result<Located, DecodeError> {
    let extents = list(r, Extent::ENCODED_LEN, "extents", Extent::decode)?;
    Ok(Located { extents, known_until: r.u64("known until")? })
}

fn put_opened(out: &mut Vec<u8>, opened: &Opened) {
    opened.inode.encode(out);
    put_list(out, &opened.xattrs, |out, (name, value)| {
        out.put_blob(name);
        out.put_blob(value);
    });
    put_flag(out, opened.target.is_some());
    if let Some(target) = &opened.target {
        out.put_blob(target);
    }
    put_located(out, &opened.located);
    put_mode(out, Some(opened.grant.mode));
    out.put_u64(opened.grant.number);
    out.put_u64(opened.grant.term);
    put_flag(out, opened.grant.open_elsewhere);
    out.put_u64(opened.order);
}

fn opened(r: &mut Reader<'_>) -> Result<Opened, DecodeError> {
    let inode = InodeRecord::decode(r)?;
    let xattrs = list(r, 8, "xattrs", |r| {
        let name = r.blob("xattr name")?.to_vec();
        Ok((name, Bytes::copy_from_slice(r.blob("xattr value")?)))
    })?;
    let target = match flag(r, "target")? {
        true => Some(Bytes::copy_from_slice(r.blob("target")?)),
        false => None,
    };
    let (located, mode) = (located(r)?, mode(r)?);
    let (number, term) = (r.u64("grant number")?, r.u64("term")?);
    let grant = TokenGrant { mode, number, term, open_elsewhere: flag(r, "open elsewhere")? };
    Ok(Opened { inode, xattrs, target, located, grant, order: r.u64("order")? })
}

/// A question wants no right, and has a term behind that.
fn put_holder_request(out: &mut Vec<u8>, request: &HolderRequest) {
    let (file, number, wanted) = match request {
        HolderRequest::Recall(recall) => (recall.file, recall.number, Some(recall.wanted)),
        HolderRequest::Glimpse(question) => (question.file, question.number, None),
    };
    put_file(out, &file);
    out.put_u64(number);
    put_mode(out, wanted);
    if let HolderRequest::Glimpse(question) = request {
        out.put_u64(question.term);
    }
}

fn holder_request(r: &mut Reader<'_>) -> Result<HolderRequest, DecodeError> {
    let (file, number) = (file(r)?, r.u64("number")?);
    Ok(match mode_or_none(r)? {
        Some(wanted) => HolderRequest::Recall(TokenRecall { file, number, wanted }),
        None => HolderRequest::Glimpse(GlimpseQuestion { file, number, term: r.u64("term")? }),
    })
}

fn put_glimpse_answer(out: &mut Vec<u8>, answer: &GlimpseAnswer) {
    put_file(out, &answer.question.file);
    out.put_u64(answer.question.term);
    out.put_u64(answer.question.number);
    put_flag(out, answer.inode.is_some());
    if let Some(inode) = &answer.inode {
        inode.encode(out);
    }
}

fn glimpse_answer(r: &mut Reader<'_>) -> Result<GlimpseAnswer, DecodeError> {
    let (file, term, number) = (file(r)?, r.u64("term")?, r.u64("question number")?);
    let inode = if flag(r, "inode")? { Some(Box::new(InodeRecord::decode(r)?)) } else { None };
    Ok(GlimpseAnswer { question: GlimpseQuestion { file, term, number }, inode })
}

impl ManagerAnswer {
    /// The answer to a request for attributes.
    pub fn of_glimpse(glimpse: Glimpse) -> ManagerAnswer {
        match glimpse {
            Glimpse::Opened(opened) => ManagerAnswer::Opened(opened),
            Glimpse::Seen { inode, term } => ManagerAnswer::Seen { inode, term },
        }
    }

    /// The attributes in the answer to a request for them.
    pub fn into_glimpse(self) -> Option<Glimpse> {
        match self {
            ManagerAnswer::Opened(opened) => Some(Glimpse::Opened(opened)),
            ManagerAnswer::Seen { inode, term } => Some(Glimpse::Seen { inode, term }),
            _ => None,
        }
    }
}

pub(crate) fn put_status(out: &mut Vec<u8>, status: &ManagerStatus) {
    let ManagerStatus { file_count, cached_count, dirty_count, token_count, checkpoint_count } = *status;
    for count in [file_count, cached_count, dirty_count, token_count, checkpoint_count] {
        out.put_u64(count);
    }
}

pub(crate) fn status(r: &mut Reader<'_>) -> Result<ManagerStatus, DecodeError> {
    Ok(ManagerStatus {
        file_count: r.u64("files")?,
        cached_count: r.u64("cached nodes")?,
        dirty_count: r.u64("dirty nodes")?,
        token_count: r.u64("tokens")?,
        checkpoint_count: r.u64("checkpoints")?,
    })
}

/// Appends who uses a file.
pub fn put_file_use(out: &mut Vec<u8>, file_use: &FileUse) {
    put_list(out, &file_use.holders, |out, token| {
        out.put_u32(token.client.raw());
        put_mode(out, Some(token.mode));
        put_mode(out, token.recalled);
    });
    put_list(out, &file_use.open_at, |out, client| out.put_u32(client.raw()));
    put_list(out, &file_use.waiting, |out, wait| {
        out.put_u32(wait.client.raw());
        put_mode(out, Some(wait.mode));
    });
}

/// Reads what [`put_file_use`] wrote.
pub fn file_use(r: &mut Reader<'_>) -> Result<FileUse, DecodeError> {
    let client = |r: &mut Reader<'_>| Ok(ClientId::new(r.u32("client")?));
    Ok(FileUse {
        holders: list(r, 6, "tokens", |r| {
            Ok(TokenUse { client: client(r)?, mode: mode(r)?, recalled: mode_or_none(r)? })
        })?,
        open_at: list(r, 4, "clients", client)?,
        waiting: list(r, 5, "requests", |r| Ok(TokenWait { client: client(r)?, mode: mode(r)? }))?,
    })
}

/// Bytes of an encoded [`HeldToken`].
const HELD_LEN: usize = 8 + 1 + 8;

/// Appends what a client says that it holds.
pub fn put_held(out: &mut Vec<u8>, tokens: &[HeldToken]) {
    put_list(out, tokens, |out, token| {
        put_file(out, &token.file);
        put_mode(out, token.mode);
        out.put_u64(token.number);
    });
}

/// Reads what [`put_held`] wrote.
pub fn held(r: &mut Reader<'_>) -> Result<Vec<HeldToken>, DecodeError> {
    list(r, HELD_LEN, "tokens", |r| {
        Ok(HeldToken { file: file(r)?, mode: mode_or_none(r)?, number: r.u64("grant number")? })
    })
}

/// Checks that everything was read.
pub(crate) fn whole<T>(value: T, r: &Reader<'_>) -> Result<T, DecodeError> {
    if r.is_empty() { Ok(value) } else { Err(DecodeError::Invalid("message length")) }
}

impl ManagerRequest {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ManagerRequest::Open { file, mode } => {
                out.put_u8(1);
                put_file(out, file);
                put_mode(out, Some(*mode));
            }
            ManagerRequest::OpenMany { files, mode } => {
                out.put_u8(2);
                put_list(out, files, put_file);
                put_mode(out, Some(*mode));
            }
            ManagerRequest::Locate { file, first } => {
                out.put_u8(3);
                put_file(out, file);
                out.put_u64(*first);
            }
            ManagerRequest::GiveBack(backs) => {
                out.put_u8(4);
                put_list(out, backs, put_give_back);
            }
            ManagerRequest::Closed { file } => {
                out.put_u8(5);
                put_file(out, file);
            }
            ManagerRequest::Allocate { volume } => {
                out.put_u8(6);
                out.put_u16(*volume);
            }
            ManagerRequest::Apply(segments) => {
                out.put_u8(7);
                put_list(out, segments, put_segment_deltas);
            }
            ManagerRequest::Status => out.put_u8(8),
            ManagerRequest::Glimpse { file } => {
                out.put_u8(9);
                put_file(out, file);
            }
            ManagerRequest::Glimpsed(answer) => {
                out.put_u8(10);
                put_glimpse_answer(out, answer);
            }
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<ManagerRequest, DecodeError> {
        Ok(match r.u8("request kind")? {
            1 => ManagerRequest::Open { file: file(r)?, mode: mode(r)? },
            2 => {
                let files = list(r, 8, "files", file)?;
                if files.len() > OPEN_FILES_MAX {
                    return Err(DecodeError::Invalid("files"));
                }
                ManagerRequest::OpenMany { files, mode: mode(r)? }
            }
            3 => ManagerRequest::Locate { file: file(r)?, first: r.u64("first block")? },
            4 => ManagerRequest::GiveBack(list(r, 18, "tokens", give_back)?),
            5 => ManagerRequest::Closed { file: file(r)? },
            6 => ManagerRequest::Allocate { volume: r.u16("volume")? },
            7 => ManagerRequest::Apply(list(r, SegmentId::ENCODED_LEN + 4, "segments", segment_deltas)?),
            8 => ManagerRequest::Status,
            9 => ManagerRequest::Glimpse { file: file(r)? },
            10 => ManagerRequest::Glimpsed(glimpse_answer(r)?),
            _ => return Err(DecodeError::Invalid("request kind")),
        })
    }
}

impl ClientMessage {
    /// The bytes of this message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            ClientMessage::Call(call) => {
                out.put_u8(1);
                out.put_u64(call.session);
                out.put_u16(call.manager.raw());
                out.put_u64(call.connection);
                out.put_u64(call.number);
                put_list(&mut out, &call.received, |out, number| out.put_u64(*number));
                call.request.encode(&mut out);
            }
            ClientMessage::NextRecalls { session, seen } => {
                out.put_u8(2);
                out.put_u64(*session);
                out.put_u64(*seen);
            }
        }
        out
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<ClientMessage, DecodeError> {
        let r = &mut Reader::new(bytes);
        let message = match r.u8("message kind")? {
            1 => ClientMessage::Call(ManagerCall {
                session: r.u64("session")?,
                manager: ManagerId::new(r.u16("manager")?),
                connection: r.u64("connection")?,
                number: r.u64("request number")?,
                received: list(r, 8, "received", |r| r.u64("request number"))?,
                request: ManagerRequest::decode(r)?,
            }),
            2 => ClientMessage::NextRecalls { session: r.u64("session")?, seen: r.u64("recall number")? },
            _ => return Err(DecodeError::Invalid("message kind")),
        };
        whole(message, r)
    }
}

impl ManagerAnswer {
    /// The bytes of this answer.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            ManagerAnswer::Failed(error) => {
                out.put_u8(1);
                put_error(&mut out, error);
            }
            ManagerAnswer::Done => out.put_u8(2),
            ManagerAnswer::Opened(opened) => {
                out.put_u8(3);
                put_opened(&mut out, opened);
            }
            ManagerAnswer::OpenedMany(all) => {
                out.put_u8(4);
                put_list(&mut out, all, |out, opened| match opened {
                    Ok(opened) => {
                        out.put_u8(1);
                        put_opened(out, opened);
                    }
                    Err(error) => {
                        out.put_u8(0);
                        put_error(out, error);
                    }
                });
            }
            ManagerAnswer::Located(located) => {
                out.put_u8(5);
                put_located(&mut out, located);
            }
            ManagerAnswer::Closed(is_abandoned) => {
                out.put_u8(6);
                put_flag(&mut out, *is_abandoned);
            }
            ManagerAnswer::Allocated(IndexRange { first, count }) => {
                out.put_u8(7);
                put_file(&mut out, first);
                out.put_u64(*count);
            }
            ManagerAnswer::Status(status) => {
                out.put_u8(8);
                put_status(&mut out, status);
            }
            ManagerAnswer::Recalls { last, recalls } => {
                out.put_u8(9);
                out.put_u64(*last);
                put_list(&mut out, recalls, put_holder_request);
            }
            ManagerAnswer::Stale => out.put_u8(10),
            ManagerAnswer::Moved => out.put_u8(11),
            ManagerAnswer::Seen { inode, term } => {
                out.put_u8(12);
                inode.encode(&mut out);
                out.put_u64(*term);
            }
        }
        out
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<ManagerAnswer, DecodeError> {
        let r = &mut Reader::new(bytes);
        let answer = match r.u8("answer kind")? {
            1 => ManagerAnswer::Failed(error(r)?),
            2 => ManagerAnswer::Done,
            3 => ManagerAnswer::Opened(Box::new(opened(r)?)),
            4 => {
                let all = list(r, 2, "files", |r| match flag(r, "opened")? {
                    true => Ok(Ok(opened(r)?)),
                    false => Ok(Err(error(r)?)),
                })?;
                if all.len() > OPEN_FILES_MAX {
                    return Err(DecodeError::Invalid("files"));
                }
                ManagerAnswer::OpenedMany(all)
            }
            5 => ManagerAnswer::Located(located(r)?),
            6 => ManagerAnswer::Closed(flag(r, "abandoned")?),
            7 => ManagerAnswer::Allocated(IndexRange { first: file(r)?, count: r.u64("count")? }),
            8 => ManagerAnswer::Status(status(r)?),
            9 => ManagerAnswer::Recalls {
                last: r.u64("recall number")?,
                recalls: list(r, 17, "recalls", holder_request)?,
            },
            10 => ManagerAnswer::Stale,
            11 => ManagerAnswer::Moved,
            12 => ManagerAnswer::Seen { inode: Box::new(InodeRecord::decode(r)?), term: r.u64("term")? },
            _ => return Err(DecodeError::Invalid("answer kind")),
        };
        whole(answer, r)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::values::{delta, extent, inode};
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use types::LogId;

    fn file_id() -> impl Strategy<Value = FileId> {
        any::<u64>().prop_map(FileId::new)
    }

    fn any_mode() -> impl Strategy<Value = Mode> {
        prop_oneof![Just(Mode::Read), Just(Mode::Write)]
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        vec(any::<u8>(), 0..20)
    }

    fn any_error() -> impl Strategy<Value = ManagerError> {
        prop_oneof![
            Just(ManagerError::NotFound),
            any::<u64>().prop_map(ManagerError::StaleMap),
            Just(ManagerError::Log),
            Just(ManagerError::Expelled),
            Just(ManagerError::Held),
            Just(ManagerError::BadRequest("refused by the manager")),
        ]
    }

    fn any_located() -> impl Strategy<Value = Located> {
        (vec(extent(), 0..4), any::<u64>()).prop_map(|(extents, known_until)| Located { extents, known_until })
    }

    fn any_opened() -> impl Strategy<Value = Opened> {
        let xattrs = vec((bytes(), bytes().prop_map(Bytes::from)), 0..3);
        let grant = (any_mode(), any::<[u64; 2]>(), any::<bool>(), any::<u64>());
        let rest = (option::of(bytes().prop_map(Bytes::from)), any_located(), grant);
        (inode(), xattrs, rest).prop_map(
            |(inode, xattrs, (target, located, (mode, [number, term], open_elsewhere, order)))| Opened {
                inode,
                xattrs,
                target,
                located,
                grant: TokenGrant { mode, number, term, open_elsewhere },
                order,
            },
        )
    }

    fn request() -> impl Strategy<Value = ManagerRequest> {
        let back = (file_id(), any::<u64>(), option::of(any_mode()), any::<bool>());
        let back = back.prop_map(|(file, number, keep, is_open)| GiveBack { file, number, keep, is_open });
        let segment = (any::<u32>(), any::<u32>(), any::<u64>(), vec(delta(), 0..4));
        let segment = segment.prop_map(|(log, epoch, seq, deltas)| SegmentDeltas {
            segment: SegmentId { log: LogId::new(log), epoch, seq },
            order: seq / 2,
            deltas: Arc::new(deltas),
        });
        prop_oneof![
            (file_id(), any_mode()).prop_map(|(file, mode)| ManagerRequest::Open { file, mode }),
            (vec(file_id(), 0..5), any_mode()).prop_map(|(files, mode)| ManagerRequest::OpenMany { files, mode }),
            (file_id(), any::<u64>()).prop_map(|(file, first)| ManagerRequest::Locate { file, first }),
            vec(back, 0..5).prop_map(ManagerRequest::GiveBack),
            file_id().prop_map(|file| ManagerRequest::Closed { file }),
            any::<u16>().prop_map(|volume| ManagerRequest::Allocate { volume }),
            vec(segment, 0..4).prop_map(ManagerRequest::Apply),
            Just(ManagerRequest::Status),
            file_id().prop_map(|file| ManagerRequest::Glimpse { file }),
            (question(), option::of(inode().prop_map(Box::new)))
                .prop_map(|(question, inode)| { ManagerRequest::Glimpsed(GlimpseAnswer { question, inode }) }),
        ]
    }

    fn question() -> impl Strategy<Value = GlimpseQuestion> {
        (file_id(), any::<[u64; 2]>()).prop_map(|(file, [term, number])| GlimpseQuestion { file, term, number })
    }

    fn message() -> impl Strategy<Value = ClientMessage> {
        let call = (any::<[u64; 3]>(), any::<u16>(), vec(any::<u64>(), 0..4), request());
        prop_oneof![
            6 => call.prop_map(|([session, connection, number], manager, received, request)| {
                let manager = ManagerId::new(manager);
                ClientMessage::Call(ManagerCall { session, manager, connection, number, received, request })
            }),
            1 => any::<[u64; 2]>().prop_map(|[session, seen]| ClientMessage::NextRecalls { session, seen }),
        ]
    }

    fn answer() -> impl Strategy<Value = ManagerAnswer> {
        let status =
            any::<[u64; 5]>().prop_map(|[file_count, cached_count, dirty_count, token_count, checkpoint_count]| {
                ManagerStatus { file_count, cached_count, dirty_count, token_count, checkpoint_count }
            });
        let recall = (file_id(), any::<u64>(), any_mode());
        let recall = recall.prop_map(|(file, number, wanted)| TokenRecall { file, number, wanted });
        let recall = prop_oneof![recall.prop_map(HolderRequest::Recall), question().prop_map(HolderRequest::Glimpse)];
        let one = prop_oneof![any_opened().prop_map(Ok), any_error().prop_map(Err)];
        prop_oneof![
            any_error().prop_map(ManagerAnswer::Failed),
            Just(ManagerAnswer::Done),
            any_opened().prop_map(|opened| ManagerAnswer::Opened(Box::new(opened))),
            vec(one, 0..4).prop_map(ManagerAnswer::OpenedMany),
            any_located().prop_map(ManagerAnswer::Located),
            any::<bool>().prop_map(ManagerAnswer::Closed),
            (file_id(), any::<u64>()).prop_map(|(first, count)| ManagerAnswer::Allocated(IndexRange { first, count })),
            status.prop_map(ManagerAnswer::Status),
            (any::<u64>(), vec(recall, 0..5)).prop_map(|(last, recalls)| ManagerAnswer::Recalls { last, recalls }),
            Just(ManagerAnswer::Stale),
            (inode(), any::<u64>()).prop_map(|(inode, term)| ManagerAnswer::Seen { inode: Box::new(inode), term }),
        ]
    }

    #[test]
    fn an_error_of_stores_travels_as_one_of_the_log() {
        let stores = ManagerError::Stores(stripe::StripeError::NotEnoughStores);
        let answer = ManagerAnswer::Failed(stores).encode();
        assert_eq!(ManagerAnswer::decode(&answer), Ok(ManagerAnswer::Failed(ManagerError::Log)));
    }

    #[test]
    fn too_many_files_in_one_request_are_refused() {
        let opening = |count: usize| {
            let request = ManagerRequest::OpenMany { files: vec![FileId::ROOT; count], mode: Mode::Read };
            let (session, manager, connection, number, received) = (1, ManagerId::new(0), 1, 1, vec![]);
            let call = ManagerCall { session, manager, connection, number, received, request };
            ClientMessage::decode(&ClientMessage::Call(call).encode())
        };
        assert!(opening(OPEN_FILES_MAX).is_ok());
        assert_eq!(opening(OPEN_FILES_MAX + 1), Err(DecodeError::Invalid("files")));
    }

    proptest! {
        #[test]
        fn prop_messages_come_back_as_they_were(message in message()) {
            let bytes = message.encode();
            prop_assert!((0..bytes.len()).all(|len| ClientMessage::decode(&bytes[..len]).is_err()));
            prop_assert!(ClientMessage::decode(&[&bytes[..], &[0]].concat()).is_err());
            prop_assert_eq!(ClientMessage::decode(&bytes), Ok(message));
        }

        #[test]
        fn prop_answers_come_back_as_they_were(answer in answer()) {
            let bytes = answer.encode();
            prop_assert!((0..bytes.len()).all(|len| ManagerAnswer::decode(&bytes[..len]).is_err()));
            prop_assert!(ManagerAnswer::decode(&[&bytes[..], &[0]].concat()).is_err());
            prop_assert_eq!(ManagerAnswer::decode(&bytes), Ok(answer));
        }

        #[test]
        fn prop_changed_messages_are_refused_or_are_what_encoding_them_gives(
            message in message(),
            answer in answer(),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let (mut message, mut answer) = (message.encode(), answer.encode());
            for (at, value) in changes {
                let (here, there) = (at.index(message.len()), at.index(answer.len()));
                (message[here], answer[there]) = (value, value);
            }
            if let Ok(decoded) = ClientMessage::decode(&message) {
                prop_assert_eq!(decoded.encode(), message);
            }
            if let Ok(decoded) = ManagerAnswer::decode(&answer) {
                prop_assert_eq!(decoded.encode(), answer);
            }
        }
    }
}
