//! Joining pieces into one reply.
//!
//! Large replies are joined in buffers that are used again once the reply is gone: the kernel would have to zero a fresh one
//! for each, which costs as much as filling it.

use bytes::Bytes;
use parking_lot::Mutex;

/// Replies shorter than this are joined in memory of their own, in bytes.
const LARGE: usize = 128 << 10;
/// Buffers kept for later, at most.
const KEPT_MAX: usize = 8;
/// Longest buffer that is kept, in bytes: the largest request of a kernel, and some.
const KEPT_LEN_MAX: usize = 2 << 20;

static KEPT: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// A reply, whose buffer is kept when it is dropped.
struct Large(Vec<u8>);

impl AsRef<[u8]> for Large {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.0);
        buffer.clear();
        let mut kept = KEPT.lock();
        if kept.len() < KEPT_MAX && buffer.capacity() <= KEPT_LEN_MAX {
            kept.push(buffer);
        }
    }
}

/// The pieces, one after the other.
pub(crate) fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    if pieces.len() == 1 {
        return pieces.remove(0);
    }
    let len = pieces.iter().map(Bytes::len).sum();
    let mut out = if len < LARGE { Vec::new() } else { KEPT.lock().pop().unwrap_or_default() };
    out.reserve_exact(len);
    pieces.iter().for_each(|piece| out.extend_from_slice(piece));
    if len < LARGE { Bytes::from(out) } else { Bytes::from_owner(Large(out)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_all_lengths_are_joined_while_others_are_still_held() {
        let piece = |len: usize, byte: u8| Bytes::from(vec![byte; len]);
        let mut held = Vec::new();
        for round in 0..50u8 {
            for len in [0, 1, 70_000, 300_000, 1_500_000] {
                let reply = joined(vec![piece(len, round), piece(len / 2, !round)]);
                assert!(reply[..len].iter().all(|b| *b == round) && reply[len..].iter().all(|b| *b == !round));
                assert_eq!(reply.len(), len + len / 2);
                held.push(reply);
            }
            if round % 3 == 0 {
                held.drain(..held.len() / 2);
            }
        }
    }
}
