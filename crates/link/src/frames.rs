//! Frames on a connection.
//!
//! [`Outbox`] writes on the sender's thread, all waiting pieces in one system call. It leaves only
//! the bytes that the connection does not take at once to a task. [`Inbox`] reads small frames
//! through a buffer, several with one system call, and large tails straight into aligned memory
//! that a disk can take.

use crate::stream::{ReadEnd, WriteEnd, invalid};
use crate::wire::{FRAME_HEADER_LEN, Frame, FrameHeader, HEAD_LEN_MAX, Message, TAIL_LEN_MAX};
use bytes::{Buf, BufMut, Bytes};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::sync::Notify;
use types::aligned::AlignedBuffer;
use types::codec::DecodeError;

/// Most pieces that are written with one system call.
const PIECES_MAX: usize = 32;
/// Bytes waiting to be written above which [`Outbox::room`] makes callers wait. This bounds memory.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// Length in bytes of the buffer that small frames are read through.
const BUFFER_LEN: usize = 16 << 10;
/// Bytes that are read ahead if another large tail is likely to follow: enough for the header and a
/// put's head, so that little of the tail is copied through the buffer.
const HEAD_AHEAD_LEN: usize = 640;
/// Most bytes of memory that are set aside for a frame's head before the peer has sent that much.
const HEAD_TRUSTED_LEN: usize = 64 << 10;
/// Longest head in bytes that [`Inbox::of_stranger`] takes.
const STRANGER_HEAD_LEN_MAX: usize = 64 << 10;

/// Frames sent since the process started.
static SENT_COUNT: AtomicU64 = AtomicU64::new(0);

/// How many frames this process has sent to other nodes and to stores in other processes: requests
/// and answers, over all connections.
pub fn sent_count() -> u64 {
    SENT_COUNT.load(Ordering::Relaxed)
}

/// The writing end of a connection. It is closed when dropped.
pub struct Outbox(Arc<Shared>);

struct Shared {
    state: Mutex<Writing>,
    room: Notify,
}

struct Writing {
    /// `None` when the connection is broken or closed, so nothing is written any more.
    to: Option<WriteEnd>,
    waiting: VecDeque<Bytes>,
    waiting_bytes: usize,
    /// The connection takes no more at present, so the task is to write.
    blocked: bool,
    /// Wakes the task.
    task: Option<Waker>,
}

impl Outbox {
    /// An outbox and its task. The caller must run the task, which ends when the connection breaks
    /// or the outbox is closed.
    pub fn new(to: WriteEnd) -> (Arc<Outbox>, impl Future<Output = ()> + Send + 'static) {
        let (waiting, task) = (VecDeque::new(), None);
        let writing = Writing { to: Some(to), waiting, waiting_bytes: 0, blocked: false, task };
        let shared = Arc::new(Shared { state: Mutex::new(writing), room: Notify::new() });
        let outbox = Arc::new(Outbox(shared.clone()));
        let task = poll_fn(move |context| {
            let poll = shared.state.lock().work(context);
            shared.room.notify_waiters();
            poll
        });
        (outbox, task)
    }

    /// Sends a frame. If the connection is broken, the frame is dropped: the reading end reports
    /// the break.
    pub fn send(&self, frame: Frame) {
        let wake = {
            let state = &mut *self.0.state.lock();
            if state.is_ended() {
                return;
            }
            SENT_COUNT.fetch_add(1, Ordering::Relaxed);
            for piece in frame.into_iter().filter(|piece| !piece.is_empty()) {
                state.waiting_bytes += piece.len();
                state.waiting.push_back(piece);
            }
            // If some bytes are left, the task is woken. It polls again with its own waker.
            let left =
                !state.blocked && !matches!(state.write(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())));
            state.blocked |= left;
            if left { state.task.take() } else { None }
        };
        if let Some(task) = wake {
            task.wake();
        }
    }

    /// Waits until at most [`WAITING_BYTES_MAX`] are waiting to be written, or the connection ends.
    pub async fn room(&self) {
        loop {
            let waited = self.0.room.notified();
            {
                let state = self.0.state.lock();
                if state.waiting_bytes <= WAITING_BYTES_MAX || state.is_ended() {
                    return;
                }
            }
            waited.await;
        }
    }

    /// Drops all bytes that are not written yet, and ends the task.
    pub fn close(&self) {
        let wake = {
            let mut state = self.0.state.lock();
            state.end();
            state.task.take()
        };
        if let Some(task) = wake {
            task.wake();
        }
        self.0.room.notify_waiters();
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.close();
    }
}

impl Writing {
    fn is_ended(&self) -> bool {
        self.to.is_none()
    }

    fn end(&mut self) {
        // This closes the connection, also while requests still hold the outbox.
        self.to = None;
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    /// The task's turn to write. Ready when the task ends.
    fn work(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_ended() {
            return Poll::Ready(());
        }
        match self.write(context) {
            Poll::Ready(Ok(())) => {
                self.blocked = false;
                self.task = Some(context.waker().clone());
                Poll::Pending
            }
            Poll::Ready(Err(_)) => {
                self.end();
                Poll::Ready(())
            }
            Poll::Pending => {
                self.blocked = true;
                // `close` must be able to wake the task here too.
                self.task = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Writes all waiting bytes.
    fn write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.waiting_bytes > 0 {
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(&self.waiting) {
                *slice = IoSlice::new(piece);
                count += 1;
            }
            let Some(to) = &mut self.to else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
            let mut written = ready!(Pin::new(to).poll_write_vectored(context, &slices[..count]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.waiting_bytes -= written;
            while let Some(piece) = self.waiting.front_mut() {
                let taken = written.min(piece.len());
                piece.advance(taken);
                written -= taken;
                if !piece.is_empty() {
                    break;
                }
                self.waiting.pop_front();
            }
        }
        self.waiting.clear();
        match &mut self.to {
            Some(to) => Pin::new(to).poll_flush(context),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

/// The reading end of a connection.
pub struct Inbox {
    from: ReadEnd,
    buffer: Box<[u8]>,
    /// Bytes `begin..end` of the buffer were read and not taken yet.
    begin: usize,
    end: usize,
    /// Most bytes to read into the buffer at a time. It is low while large tails come one after the
    /// other, since these go past the buffer.
    ahead: usize,
    head_len_max: usize,
    tail_len_max: usize,
}

/// A frame that came in.
#[derive(Debug)]
pub struct Received {
    /// Pairs an answer with its request.
    pub number: u64,
    /// The kind of service, or whether this is an answer with the result.
    pub kind: u8,
    /// Head and tail. The tail is aligned to a page.
    pub message: Message,
}

impl Inbox {
    /// Reads frames from the connection.
    pub fn new(from: ReadEnd) -> Inbox {
        let (head_len_max, tail_len_max) = (HEAD_LEN_MAX as usize, TAIL_LEN_MAX as usize);
        let buffer = vec![0; BUFFER_LEN].into();
        Inbox { from, buffer, begin: 0, end: 0, ahead: BUFFER_LEN, head_len_max, tail_len_max }
    }

    /// Reads frames from a machine that has shown no certificate. Its frames must be short.
    pub fn of_stranger(from: ReadEnd) -> Inbox {
        Inbox { head_len_max: STRANGER_HEAD_LEN_MAX, tail_len_max: 0, ..Inbox::new(from) }
    }

    /// Reads the next frame.
    pub async fn next(&mut self) -> io::Result<Received> {
        let mut bytes = [0; FRAME_HEADER_LEN];
        self.fill(&mut &mut bytes[..]).await?;
        let FrameHeader { head_len, tail_len, number, kind } = FrameHeader::decode(&bytes).map_err(invalid)?;
        if head_len > self.head_len_max || tail_len > self.tail_len_max {
            return Err(invalid(DecodeError::Invalid("frame length")));
        }
        let mut head = Vec::with_capacity(head_len.min(HEAD_TRUSTED_LEN));
        self.fill(&mut (&mut head).limit(head_len)).await?;
        self.ahead = if tail_len > BUFFER_LEN { HEAD_AHEAD_LEN } else { BUFFER_LEN };
        if tail_len == 0 {
            return Ok(Received { number, kind, message: Message::of_head(head) });
        }
        let mut tail = AlignedBuffer::with_room(tail_len);
        self.fill(&mut tail).await?;
        Ok(Received { number, kind, message: Message { head, tail: tail.freeze() } })
    }

    /// Fills `out`, first from the buffer, then from the connection. A few bytes are read through
    /// the buffer, so that the same system call also reads what follows them.
    async fn fill(&mut self, out: &mut (impl BufMut + Send)) -> io::Result<()> {
        loop {
            let taken = out.remaining_mut().min(self.end - self.begin);
            out.put_slice(&self.buffer[self.begin..self.begin + taken]);
            self.begin += taken;
            if !out.has_remaining_mut() {
                return Ok(());
            }
            let read = match out.remaining_mut() < self.ahead {
                true => {
                    let read = self.from.read(&mut self.buffer[..self.ahead]).await?;
                    (self.begin, self.end) = (0, read);
                    read
                }
                false => self.from.read_buf(out).await?,
            };
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame as framed;
    use tokio::io::AsyncWriteExt;
    use types::aligned::PAGE_LEN;

    fn frame(head_len: usize, tail_len: usize) -> Frame {
        framed((head_len ^ tail_len) as u64, 9, message(head_len, tail_len))
    }

    fn message(head_len: usize, tail_len: usize) -> Message {
        let byte = |i: usize| (i ^ i >> 8 ^ head_len) as u8;
        Message { head: (0..head_len).map(byte).collect(), tail: (0..tail_len).map(byte).collect() }
    }

    fn all_lens() -> Vec<(usize, usize)> {
        let lens = [0, 1, 17, 600, BUFFER_LEN - 1, BUFFER_LEN, BUFFER_LEN + 1, 100_000];
        let tails = [0, 1, 4096, BUFFER_LEN - 20, BUFFER_LEN, BUFFER_LEN + 1, 300_000, TAIL_LEN_MAX as usize, 5];
        lens.into_iter().flat_map(|head| tails.map(|tail| (head, tail))).collect()
    }

    fn block_on(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
    }

    /// Pipes of these lengths cut frames at all places.
    #[test]
    fn frames_of_all_lengths_come_out_as_they_went_in() {
        for pipe_len in [97, 10_000, 8 << 20] {
            block_on(async move {
                let (near, far) = tokio::io::duplex(pipe_len);
                let (outbox, writing) = Outbox::new(Box::new(near));
                let sending = tokio::spawn(async move {
                    for (head, tail) in all_lens() {
                        outbox.room().await;
                        outbox.send(frame(head, tail));
                    }
                    outbox
                });
                tokio::spawn(writing);
                let mut inbox = Inbox::new(Box::new(far));
                for (head, tail) in all_lens() {
                    let got = inbox.next().await.unwrap();
                    assert_eq!((got.number, got.kind), ((head ^ tail) as u64, 9));
                    assert!(got.message == message(head, tail), "{head} {tail}");
                    assert!(tail == 0 || (got.message.tail.as_ptr() as usize).is_multiple_of(PAGE_LEN));
                }
                drop(sending.await.unwrap());
                assert_eq!(inbox.next().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            });
        }
    }

    #[test]
    fn what_ends_inside_a_frame_or_is_too_long_is_an_error() {
        block_on(async {
            let whole = frame(600, 40_000).concat();
            for len in [1, 16, 17, 100, 617, 700, whole.len() - 1] {
                let (mut near, far) = tokio::io::duplex(1 << 20);
                near.write_all(&whole[..len]).await.unwrap();
                drop(near);
                let error = Inbox::new(Box::new(far)).next().await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{len}");
            }
            let error = Inbox::new(Box::new(&[0xff; 100][..])).next().await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            for (head_len, tail_len) in [(STRANGER_HEAD_LEN_MAX + 1, 0), (0, 1)] {
                let whole: &'static [u8] = frame(head_len, tail_len).concat().leak();
                assert!(Inbox::new(Box::new(whole)).next().await.is_ok());
                let error = Inbox::of_stranger(Box::new(whole)).next().await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            }
        });
    }

    #[test]
    fn frames_that_are_sent_are_counted() {
        block_on(async {
            let (near, _far) = tokio::io::duplex(1 << 20);
            let (outbox, _writing) = Outbox::new(Box::new(near));
            // Other tests send at the same time, so the count may grow by more.
            let before = sent_count();
            (0..1000).for_each(|_| outbox.send(frame(10, 0)));
            assert!(sent_count() >= before + 1000);
        });
    }

    #[test]
    fn an_outbox_that_is_closed_or_broken_waits_for_nobody() {
        block_on(async {
            for close in [true, false] {
                let (near, far) = tokio::io::duplex(10);
                let (outbox, writing) = Outbox::new(Box::new(near));
                let writing = tokio::spawn(writing);
                (0..8).for_each(|_| outbox.send(frame(10, TAIL_LEN_MAX as usize)));
                let waiting = outbox.clone();
                let waiting = tokio::spawn(async move { waiting.room().await });
                tokio::task::yield_now().await;
                assert!(!waiting.is_finished(), "8 MiB are waiting");
                if close {
                    outbox.close()
                } else {
                    drop(far)
                }
                waiting.await.unwrap();
                writing.await.unwrap();
                outbox.send(frame(1, 1));
                outbox.room().await;
            }
        });
    }
}
