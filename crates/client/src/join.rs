//! Joins pieces into one reply.

use bytes::{BufMut, Bytes};
use types::aligned::AlignedBuffer;

/// Replies from this length on, in bytes, are joined in aligned buffers that are used again;
/// shorter ones, in fresh memory.
const LARGE_LEN: usize = 128 << 10;

/// The pieces, concatenated.
pub(crate) fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    if pieces.len() == 1 {
        return pieces.remove(0);
    }
    let len = pieces.iter().map(Bytes::len).sum();
    if len < LARGE_LEN {
        return pieces.concat().into();
    }
    let mut out = AlignedBuffer::with_room(len);
    pieces.iter().for_each(|piece| out.put_slice(piece));
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_all_lengths_are_joined() {
        for len in [0, 1, 70_000, 300_000, 1_500_000] {
            let reply = joined(vec![Bytes::from(vec![1; len]), Bytes::new(), Bytes::from(vec![2; len / 2])]);
            assert_eq!(reply.len(), len + len / 2);
            assert!(reply[..len].iter().all(|b| *b == 1) && reply[len..].iter().all(|b| *b == 2));
        }
        assert_eq!(joined(vec![]), Bytes::new());
    }
}
