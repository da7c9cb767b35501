//! Greetings and frames as bytes. Pure.
//!
//! A connection begins with a greeting from both ends: magic `STARWIRE` and a u16 version. Then
//! frames follow, both ways: u32 length of the head, u32 length of the tail, a u64 number that
//! pairs an answer with its request, a u8, head, tail. Of a request, the u8 is the kind of service;
//! of an answer, it is [`ANSWERED`] or says why there is none. All integers are little-endian.
//!
//! Decoders take any bytes: they fail, but do not panic.

use bytes::Bytes;
use thiserror::Error;
use types::codec::{DecodeError, Put, Reader};

/// The version that this program speaks.
pub const VERSION: u16 = 7;
/// Bytes of a greeting.
pub const GREETING_LEN: usize = 10;
/// Bytes before the head of a frame.
pub const FRAME_HEADER_LEN: usize = 17;
/// Longest head of a frame in bytes. It bounds the memory that a peer can ask for. The longest
/// heads are answers with all segments of a store.
pub const HEAD_LEN_MAX: u32 = 64 << 20;
/// Longest tail of a frame in bytes: the payload of a fragment.
pub const TAIL_LEN_MAX: u32 = 1 << 20;
/// The u8 of an answer that has the result.
pub const ANSWERED: u8 = 0;

const MAGIC: &[u8; 8] = b"STARWIRE";
/// Heads of at most this many bytes are copied behind the frame's header, so that both are one
/// piece.
const COPIED_HEAD_LEN_MAX: usize = 4096;

/// A request to a service, or its answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Message {
    /// Fields, at most [`HEAD_LEN_MAX`] bytes.
    pub head: Vec<u8>,
    /// Bytes that are not copied, at most [`TAIL_LEN_MAX`]. Those that come from a connection are
    /// aligned to a page.
    pub tail: Bytes,
}

impl Message {
    /// A message without a tail.
    pub fn of_head(head: Vec<u8>) -> Message {
        Message { head, tail: Bytes::new() }
    }

    /// True if a frame can carry it.
    pub fn fits(&self) -> bool {
        self.head.len() <= HEAD_LEN_MAX as usize && self.tail.len() <= TAIL_LEN_MAX as usize
    }
}

/// Why a peer did not serve a request. The request had no effect, except with
/// [`TooLong`](Self::TooLong).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Refused {
    /// The peer has no such service.
    #[error("it has no such service")]
    NoService,
    /// The peer does not serve this machine: it has shown no certificate, or is no member.
    #[error("it does not serve this machine")]
    NotAdmitted,
    /// Too many requests wait there.
    #[error("too many requests wait")]
    Busy,
    /// The answer is too long for a frame. The request was served.
    #[error("the answer is too long")]
    TooLong,
}

impl Refused {
    /// All of them.
    pub const ALL: [Refused; 4] = [Refused::NoService, Refused::NotAdmitted, Refused::Busy, Refused::TooLong];

    fn code(self) -> u8 {
        match self {
            Refused::NoService => 1,
            Refused::NotAdmitted => 2,
            Refused::Busy => 3,
            Refused::TooLong => 4,
        }
    }

    /// Reads the u8 of an answer; `Ok` if it has the result.
    pub fn decode(code: u8) -> Result<Result<(), Refused>, DecodeError> {
        if code == ANSWERED {
            return Ok(Ok(()));
        }
        let found = Refused::ALL.into_iter().find(|refused| refused.code() == code);
        found.map(Err).ok_or(DecodeError::Invalid("answer kind"))
    }
}

/// What comes before the head of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Bytes of the head.
    pub head_len: usize,
    /// Bytes of the tail.
    pub tail_len: usize,
    /// Pairs an answer with its request.
    pub number: u64,
    /// The kind of service, or whether this is an answer with the result.
    pub kind: u8,
}

impl FrameHeader {
    /// Reads a header. Lengths above the limits are refused.
    pub fn decode(bytes: &[u8; FRAME_HEADER_LEN]) -> Result<FrameHeader, DecodeError> {
        let r = &mut Reader::new(bytes);
        let (head, tail) = (r.u32("head length")?, r.u32("tail length")?);
        if head > HEAD_LEN_MAX || tail > TAIL_LEN_MAX {
            return Err(DecodeError::Invalid("frame length"));
        }
        let (number, kind) = (r.u64("frame number")?, r.u8("frame kind")?);
        Ok(FrameHeader { head_len: head as usize, tail_len: tail as usize, number, kind })
    }
}

/// A frame in pieces that are written one after the other. Pieces may be empty.
pub type Frame = [Bytes; 3];

/// The frame of a message that [fits](Message::fits).
pub fn frame(number: u64, kind: u8, message: Message) -> Frame {
    let Message { head, tail } = message;
    let is_copied = head.len() <= COPIED_HEAD_LEN_MAX;
    let mut first = Vec::with_capacity(FRAME_HEADER_LEN + if is_copied { head.len() } else { 0 });
    first.put_u32(head.len() as u32);
    first.put_u32(tail.len() as u32);
    first.put_u64(number);
    first.put_u8(kind);
    if is_copied {
        first.extend_from_slice(&head);
        return [first.into(), Bytes::new(), tail];
    }
    [first.into(), head.into(), tail]
}

/// The frame of a service's answer.
pub fn answer_frame(number: u64, answer: Message) -> Frame {
    match answer.fits() {
        true => frame(number, ANSWERED, answer),
        false => refusal_frame(number, Refused::TooLong),
    }
}

/// The frame that says that there is no answer.
pub fn refusal_frame(number: u64, refused: Refused) -> Frame {
    frame(number, refused.code(), Message::default())
}

/// This program's greeting.
pub fn greeting() -> [u8; GREETING_LEN] {
    let mut out = [0; GREETING_LEN];
    out[..8].copy_from_slice(MAGIC);
    out[8..].copy_from_slice(&VERSION.to_le_bytes());
    out
}

/// Checks the other end's greeting.
pub fn check_greeting(bytes: &[u8]) -> Result<(), DecodeError> {
    let r = &mut Reader::new(bytes);
    if r.take(MAGIC.len(), "greeting")? != MAGIC {
        return Err(DecodeError::Invalid("greeting"));
    }
    match r.u16("protocol version")? {
        VERSION => Ok(()),
        found => Err(DecodeError::Version { what: "node protocol", found, known: VERSION }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_greetings_are_refused() {
        assert_eq!(check_greeting(&greeting()), Ok(()));
        let mut newer = greeting();
        newer[8] += 1;
        assert!(matches!(check_greeting(&newer), Err(DecodeError::Version { .. })));
        assert!(check_greeting(b"HTTP/1.1 4").is_err());
        assert!(check_greeting(b"STAR").is_err());
    }

    #[test]
    fn headers_read_back_and_absurd_lengths_are_refused() {
        for head_len in [0, 5, COPIED_HEAD_LEN_MAX, COPIED_HEAD_LEN_MAX + 1] {
            let message = Message { head: vec![7; head_len], tail: Bytes::from_static(b"tail") };
            let bytes = frame(99, 3, message).concat();
            let (header, rest) = bytes.split_first_chunk().unwrap();
            assert_eq!(FrameHeader::decode(header), Ok(FrameHeader { head_len, tail_len: 4, number: 99, kind: 3 }));
            assert_eq!(rest, [&vec![7; head_len][..], b"tail"].concat());
        }
        let absurd = |at: usize, len: u32| {
            let mut bytes = [0; FRAME_HEADER_LEN];
            bytes[at..at + 4].copy_from_slice(&len.to_le_bytes());
            FrameHeader::decode(&bytes)
        };
        assert!(absurd(0, HEAD_LEN_MAX).is_ok() && absurd(0, HEAD_LEN_MAX + 1).is_err());
        assert!(absurd(4, TAIL_LEN_MAX).is_ok() && absurd(4, TAIL_LEN_MAX + 1).is_err());
    }

    #[test]
    fn every_refusal_reads_back_and_a_long_answer_becomes_one() {
        for refused in Refused::ALL {
            assert_eq!(Refused::decode(refusal_frame(1, refused)[0][FRAME_HEADER_LEN - 1]), Ok(Err(refused)));
        }
        assert_eq!(Refused::decode(ANSWERED), Ok(Ok(())));
        assert!(Refused::decode(Refused::ALL.len() as u8 + 1).is_err());
        let long = Message { head: Vec::new(), tail: vec![0; TAIL_LEN_MAX as usize + 1].into() };
        assert_eq!(answer_frame(1, long), refusal_frame(1, Refused::TooLong));
    }
}
