//! Bytes from a connection between nodes, before messages are decoded.

use link::frames::{Inbox, Received};
use link::wire::{GREETING_LEN, check_greeting};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use storage::wire::StoreRequest;
use tokio::io::{AsyncRead, ReadBuf};

/// A peer whose bytes arrive a few at a time.
struct Peer {
    sent: Vec<u8>,
    taken: usize,
    piece_len: usize,
}

impl AsyncRead for Peer {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let len = out.remaining().min(self.piece_len).min(self.sent.len() - self.taken);
        out.put_slice(&self.sent[self.taken..self.taken + len]);
        self.taken += len;
        Poll::Ready(Ok(()))
    }
}

/// Reads all frames from a peer. The input is the length of the pieces in which bytes arrive (u16),
/// the greeting, and the frames. Whole frames must come out as they were sent.
pub fn stream(bytes: &[u8]) -> bool {
    let [low, high, sent @ ..] = bytes else { return false };
    let Some((greeting, sent)) = sent.split_at_checked(GREETING_LEN) else { return false };
    if check_greeting(greeting).is_err() {
        return false;
    }
    let piece_len = usize::from(u16::from_le_bytes([*low, *high])).max(1);
    let mut inbox = Inbox::new(Box::new(Peer { sent: sent.to_vec(), taken: 0, piece_len }));
    let mut received = Vec::new();
    while let Poll::Ready(Ok(frame)) = pin!(inbox.next()).poll(&mut Context::from_waker(Waker::noop())) {
        let Received { number, kind, message } = frame;
        for len in [message.head.len(), message.tail.len()] {
            received.extend_from_slice(&(len as u32).to_le_bytes());
        }
        received.extend_from_slice(&number.to_le_bytes());
        received.push(kind);
        received.extend_from_slice(&message.head);
        received.extend_from_slice(&message.tail);
        let _ = StoreRequest::decode(&message.head, message.tail);
    }
    assert!(sent.starts_with(&received));
    !received.is_empty()
}
