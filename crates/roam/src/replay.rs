//! Sending home what was done here (design, sections 4.4 and 4.5): in order, each operation once, whatever is lost on the way.
//!
//! Operations that may have reached the home stay as they are until it answers; that they do is durable before they are sent. An answer that
//! was lost is asked for again, with the same operations.

use crate::client::{Client, Inner, disk_error, outgoing_name};
use crate::live::LinkState;
use crate::replica::Record;
use bytes::Bytes;
use host::File;
use roam_wire::channel::Class;
use roam_wire::codec::Wire;
use roam_wire::message::{Applied, INLINE_LEN_MAX, Outcome, Reply, Request, Sent};
use roam_wire::operation::{Change, Operation};
use std::sync::{Arc, Weak};
use types::{FileId, FsError};

/// Most operations that are sent together.
const OPERATION_COUNT_MAX: usize = 64;
/// Most bytes of operations, with their contents, that are sent together, if it is more than one.
const BATCH_LEN_MAX: u64 = 128 << 10;
/// Contents are uploaded in pieces of so many bytes.
const PIECE_LEN: u64 = 64 << 10;

/// Contents are set aside in pieces of so many bytes.
const CAPTURE_LEN: u64 = 1 << 20;

/// What a store says was written, set aside.
#[derive(Clone)]
pub(crate) enum Outgoing {
    Inline(Bytes),
    /// Range after range.
    File(Arc<dyn File>),
}

/// Sends whatever waits, for as long as the client exists.
pub(crate) async fn replay(inner: Weak<Inner>) {
    loop {
        let Some(client) = inner.upgrade().map(Client) else { return };
        let mut tick = client.0.tick.subscribe();
        let clock = client.0.host.clock.clone();
        let may_send = {
            let live = client.0.live.lock();
            matches!(live.state, LinkState::Connected | LinkState::Weak) && !live.replica.log().is_empty()
        };
        let sent = if may_send { client.send_some().await } else { Ok(false) };
        drop(client);
        match sent {
            Ok(true) => {}
            Ok(false) => {
                if tick.changed().await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "sending what was done");
                clock.sleep(std::time::Duration::from_millis(200)).await;
            }
        }
    }
}

impl Client {
    /// Sends the first operations that wait. False if none does.
    async fn send_some(&self) -> Result<bool, FsError> {
        let inner = &self.0;
        let (batch, acknowledged) = {
            let mut live = inner.live.lock();
            let batch = first_batch(&live.replica);
            let Some((last, _)) = batch.last() else { return Ok(false) };
            if *last > live.replica.log().pinned() {
                let last = *last;
                live.record(Record::Pinned(last));
            }
            (batch, live.replica.acknowledged())
        };
        inner.log.settled().await.map_err(|_| FsError::Io)?;
        let mut operations = Vec::with_capacity(batch.len());
        for (seq, operation) in batch {
            let bases = {
                let live = inner.live.lock();
                let version = |file: FileId| live.replica.node(file).map_or(0, |node| node.facts.version);
                let second = match &operation {
                    Operation::Rename { replaced: Some((file, _)), .. } => *file,
                    Operation::Exchange { other, .. } => *other,
                    other => other.file(),
                };
                (version(operation.file()), version(second))
            };
            let data = match &operation {
                Operation::Store { file, change } => self.contents(seq, *file, change).await?,
                _ => Bytes::new(),
            };
            operations.push(Sent { seq, bases, operation, data });
        }
        let request = Request::Apply { acknowledged, operations };
        match inner.ask(Class::Replay, &request).await? {
            Reply::Applied(applied) => {
                self.answered(applied);
                Ok(true)
            }
            _ => Err(FsError::Io),
        }
    }

    /// What a store says was written, uploaded before if it is much.
    async fn contents(&self, seq: u64, file: FileId, change: &Change) -> Result<Bytes, FsError> {
        let known = self.0.live.lock().outgoing.get(&seq).cloned();
        let outgoing = match known {
            Some(outgoing) => outgoing,
            None => {
                let outgoing = self.capture(seq, file, change).await?;
                self.0.live.lock().outgoing.entry(seq).or_insert(outgoing).clone()
            }
        };
        let from = match outgoing {
            Outgoing::Inline(bytes) => return Ok(bytes),
            Outgoing::File(file) => file,
        };
        let (mut offset, end) = (0, change.ranges.len());
        while offset < end {
            let len = (end - offset).min(PIECE_LEN);
            let data = from.read_at(offset, len as usize).await.map_err(|error| disk_error(&error))?;
            match self.0.ask(Class::Replay, &Request::Upload { seq, offset, data }).await? {
                Reply::Done => offset += len,
                _ => return Err(FsError::Io),
            }
        }
        Ok(Bytes::new())
    }

    /// Sets aside what a store says was written, since the file may change while that is on its way.
    async fn capture(&self, seq: u64, file: FileId, change: &Change) -> Result<Outgoing, FsError> {
        if change.ranges.is_empty() {
            return Ok(Outgoing::Inline(Bytes::new()));
        }
        let _only_writer = self.0.writer(file).await;
        let data = self.0.live.lock().replica.node(file).map_or(0, |node| node.data);
        let from = self.0.open_data(data).await?;
        // What has been cut off since goes home as zeroes, and is cut off there by what follows.
        let end = from.len().await.map_err(|error| disk_error(&error))?;
        let read = async |start: u64, len: u64| {
            let there = len.min(end.saturating_sub(start)) as usize;
            let bytes = from.read_at(start.min(end), there).await.map_err(|error| disk_error(&error))?;
            let mut bytes = bytes.to_vec();
            bytes.resize(len as usize, 0);
            Ok::<_, FsError>(bytes)
        };
        if change.ranges.len() <= INLINE_LEN_MAX as u64 {
            let mut bytes = Vec::new();
            for range in change.ranges.iter() {
                bytes.extend(read(range.start, range.end - range.start).await?);
            }
            return Ok(Outgoing::Inline(bytes.into()));
        }
        let to = self.0.disk.open(&outgoing_name(seq), true).await.map_err(|error| disk_error(&error))?;
        let mut at = 0;
        for range in change.ranges.iter() {
            let mut start = range.start;
            while start < range.end {
                let len = (range.end - start).min(CAPTURE_LEN);
                self.0.put_bytes(&to, at, read(start, len).await?.into()).await?;
                (at, start) = (at + len, start + len);
            }
        }
        Ok(Outgoing::File(to))
    }

    /// Takes in how operations ended.
    fn answered(&self, applied: Vec<Applied>) {
        let (mut touched, mut sent) = (Vec::new(), Vec::new());
        {
            let mut live = self.0.live.lock();
            for applied in applied {
                let before = live.replica.troubles().count();
                let about = live.replica.log().iter().find(|(seq, _)| *seq == applied.seq).map(|(_, o)| o.clone());
                if let Some(operation) = &about {
                    touched.extend(operation.files());
                }
                if let Some(Outgoing::File(_)) = live.outgoing.remove(&applied.seq) {
                    sent.push(applied.seq);
                }
                let failed = applied.outcome != Outcome::Done;
                live.record(Record::Answered(applied));
                if let Some((_, trouble)) = live.replica.troubles().last()
                    && live.replica.troubles().count() > before
                {
                    tracing::warn!(?trouble, "something done here could not be done at home");
                }
                if let Some(Operation::Store { file, .. }) = about
                    && failed
                    && live.replica.node(file).is_ok_and(|node| node.is_dirty)
                {
                    // What is being written now goes home whole.
                    let size = live.replica.node(file).map_or(0, |node| node.facts.size);
                    if let Some(writing) = live.writing.get_mut(&file) {
                        writing.change.cut = 0;
                        writing.change.ranges.add(0..size);
                    }
                }
            }
        }
        touched.sort_unstable();
        touched.dedup();
        touched.into_iter().for_each(|file| self.0.reap(file));
        sent.into_iter().for_each(|seq| self.0.remove_file(outgoing_name(seq)));
        self.0.wake();
    }
}

/// The first operations that wait, as many as go together.
fn first_batch(replica: &crate::replica::Replica) -> Vec<(u64, Operation)> {
    let (mut batch, mut len) = (Vec::new(), 0);
    for (seq, operation) in replica.log().iter().take(OPERATION_COUNT_MAX) {
        let contents = match operation {
            Operation::Store { change, .. } => change.ranges.len(),
            _ => 0,
        };
        len = contents.saturating_add(len).saturating_add(operation.to_bytes().len() as u64);
        if !batch.is_empty() && len > BATCH_LEN_MAX {
            break;
        }
        batch.push((seq, operation.clone()));
    }
    batch
}
