//! Frames on a connection.
//!
//! [`Outbox`] writes on the thread of whoever sends, all waiting pieces in one system call; only what the connection does not take at
//! once is left to a task. [`Inbox`] reads small frames out of a buffer, several with one system call, and large tails straight into
//! memory that a disk can take.

use super::{ReadEnd, WriteEnd, invalid};
use crate::wire::{Frame, LENGTHS_LEN, lengths};
use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::sync::Notify;
use types::aligned::AlignedBuffer;

/// Pieces per system call.
const PIECES_MAX: usize = 32;
/// Bytes waiting to be written beyond which [`Outbox::room`] makes callers wait.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// Bytes of the buffer that small frames are read through.
const BUFFER_LEN: usize = 16 << 10;
/// Memory that a peer gets for a frame's head before it has sent as much.
const HEAD_TRUSTED_LEN: usize = 64 << 10;

/// The writing end of a connection; closed when dropped.
pub struct Outbox(Arc<Shared>);

struct Shared {
    state: Mutex<Writing>,
    room: Notify,
}

struct Writing {
    to: WriteEnd,
    waiting: VecDeque<Bytes>,
    waiting_bytes: usize,
    /// The task is to write: the connection does not take more at present.
    blocked: bool,
    /// Nothing is written any more: the connection is broken, or was closed.
    ended: bool,
    /// The task, when it has nothing to do.
    task: Option<Waker>,
}

impl Outbox {
    /// An outbox, and the task that it needs, which runs until the connection breaks or the outbox is closed.
    pub fn new(to: WriteEnd) -> (Arc<Outbox>, impl Future<Output = ()> + Send + 'static) {
        let (waiting, task) = (VecDeque::new(), None);
        let writing = Writing { to, waiting, waiting_bytes: 0, blocked: false, ended: false, task };
        let shared = Arc::new(Shared { state: Mutex::new(writing), room: Notify::new() });
        let outbox = Arc::new(Outbox(shared.clone()));
        let task = poll_fn(move |context| {
            let poll = shared.state.lock().work(context);
            shared.room.notify_waiters();
            poll
        });
        (outbox, task)
    }

    /// Sends a frame. A connection that is broken says so at its reading end.
    pub fn send(&self, frame: Frame) {
        let wake = {
            let state = &mut *self.0.state.lock();
            if state.ended {
                return;
            }
            for piece in frame {
                state.waiting_bytes += piece.len();
                state.waiting.push_back(piece);
            }
            // The task is woken for what is left, and asks again with a waker of its own.
            let left =
                !state.blocked && !matches!(state.write(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())));
            state.blocked |= left;
            if left { state.task.take() } else { None }
        };
        if let Some(task) = wake {
            task.wake();
        }
    }

    /// Waits until not too much is waiting to be written.
    pub async fn room(&self) {
        loop {
            let waited = self.0.room.notified();
            {
                let state = self.0.state.lock();
                if state.waiting_bytes <= WAITING_BYTES_MAX || state.ended {
                    return;
                }
            }
            waited.await;
        }
    }

    /// Gives up what is not written yet and ends the task.
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
    fn end(&mut self) {
        self.ended = true;
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    /// The task's turn; ready when there will be no other.
    fn work(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.ended {
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
                // Closing must reach it here too.
                self.task = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Writes all that is waiting.
    fn write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.waiting_bytes > 0 {
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(&self.waiting) {
                *slice = IoSlice::new(piece);
                count += 1;
            }
            let mut written = ready!(Pin::new(&mut self.to).poll_write_vectored(context, &slices[..count]))?;
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
        Pin::new(&mut self.to).poll_flush(context)
    }
}

/// The reading end of a connection.
pub struct Inbox {
    from: ReadEnd,
    buffer: Box<[u8]>,
    /// What of the buffer was read and not taken.
    begin: usize,
    end: usize,
}

impl Inbox {
    /// Reads frames from the connection.
    pub fn new(from: ReadEnd) -> Inbox {
        Inbox { from, buffer: vec![0; BUFFER_LEN].into(), begin: 0, end: 0 }
    }

    /// Head and tail of the next frame. The tail begins at a page.
    pub async fn next(&mut self) -> io::Result<(Vec<u8>, Bytes)> {
        let mut bytes = [0; LENGTHS_LEN];
        while self.end - self.begin < LENGTHS_LEN {
            self.buffer.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
            match self.from.read(&mut self.buffer[self.end..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => self.end += len,
            }
        }
        self.take(&mut bytes);
        let (head_len, tail_len) = lengths(bytes).map_err(invalid)?;
        let mut head = vec![0; head_len.min(HEAD_TRUSTED_LEN)];
        self.fill(&mut head).await?;
        let more = head_len - head.len();
        if more > 0 && (&mut self.from).take(more as u64).read_to_end(&mut head).await? < more {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if tail_len == 0 {
            return Ok((head, Bytes::new()));
        }
        let mut tail = AlignedBuffer::zeroed(tail_len);
        self.fill(&mut tail).await?;
        Ok((head, tail.freeze()))
    }

    /// Takes out of the buffer what `out` has room for; how much that was.
    fn take(&mut self, out: &mut [u8]) -> usize {
        let len = out.len().min(self.end - self.begin);
        out[..len].copy_from_slice(&self.buffer[self.begin..self.begin + len]);
        self.begin += len;
        len
    }

    async fn fill(&mut self, out: &mut [u8]) -> io::Result<()> {
        let have = self.take(out);
        if have < out.len() {
            // Small pieces bring what follows them along.
            if out.len() - have < BUFFER_LEN / 2 {
                return self.fill_buffered(&mut out[have..]).await;
            }
            self.from.read_exact(&mut out[have..]).await?;
        }
        Ok(())
    }

    /// As `fill`, when the buffer is empty, by way of it.
    async fn fill_buffered(&mut self, mut out: &mut [u8]) -> io::Result<()> {
        while !out.is_empty() {
            (self.begin, self.end) = (0, 0);
            match self.from.read(&mut self.buffer).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => self.end = len,
            }
            let taken = self.take(out);
            out = &mut out[taken..];
        }
        Ok(())
    }
}
