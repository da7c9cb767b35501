//! What must hold of frames of the storage protocol, for any bytes: no panic, and what is accepted encodes to what is read the
//! same again.

use bytes::Bytes;
use storage::wire::{Answer, Frame, LENGTHS_LEN, Request};

fn parts([head, tail]: Frame) -> (Bytes, Bytes) {
    (head.slice(LENGTHS_LEN..), tail)
}

/// Decodes a frame: a byte that is even for a request and odd for an answer, the head's length (u16), the head, the tail. Tells whether
/// it was accepted.
pub fn frame(bytes: &[u8]) -> bool {
    let [kind, low, high, rest @ ..] = bytes else { return false };
    let head_len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
    let (head, tail) = (&rest[..head_len], Bytes::copy_from_slice(&rest[head_len..]));
    if kind % 2 == 0 {
        let Ok((number, request)) = Request::decode(head, tail.clone()) else { return false };
        let (again, again_tail) = parts(request.encode(number));
        assert_eq!((&again[..], &again_tail), (head, &tail));
    } else {
        let Ok((number, answer)) = Answer::decode(head, tail) else { return false };
        let (again, tail) = parts(answer.encode(number));
        assert_eq!(Answer::decode(&again, tail), Ok((number, answer)));
    }
    true
}
