//! Writes a store's checkpoints. Each adds its changes to the body of the one before, so that a
//! checkpoint costs what changed and not what there is.
//!
//! Bodies would grow for ever. So when the additions are as long as the base before them, all
//! fragments are written anew into the other file, a slice with each group of puts
//! ([`Chain::roll`]). Meanwhile, additions go into the old body, and after the slices into the new
//! one.
//!
//! A slice has the fragments as the store knows them when it is written. That may be newer than the
//! newest checkpoint: a fragment was put, moved or deleted since. This does no harm. The fragment
//! is durable, or its deletion was asked for; its pages are in no reservation before the next
//! checkpoint; and additions come after the slices, so they count.

use crate::api::StoreIdentity;
use crate::checkpoint::StoreHead;
use crate::files::{Newest, StoreFiles, WriteError};
use crate::index::FragmentKey;
use record_log::checkpoint_pair::Sum;

/// Bytes of additions below which everything is not written anew. A longer body takes longer to
/// read at a start; writing it anew costs puts some time.
const ADDITIONS_LEN_MIN: u64 = 4096;

/// The newest checkpoint, and the state from which the next is written.
pub struct Chain {
    files: StoreFiles,
    owner: StoreIdentity,
    /// The file with the newest body.
    which: usize,
    sequence: u64,
    generation: u64,
    sum: Sum,
    /// Length of the body from which on all fragments are written anew.
    rolls_at: u64,
    /// The end part of the newest checkpoint.
    end: Vec<u8>,
    rolling: Option<Rolling>,
}

/// A body that is being written into the other file.
struct Rolling {
    sum: Sum,
    /// The last fragment in it.
    after: Option<FragmentKey>,
    /// The bytes that follow all fragments: the end of the checkpoint that was newest when this
    /// body was begun, and the additions since.
    rest: Vec<u8>,
}

impl Chain {
    pub fn new(files: StoreFiles, newest: &Newest) -> Chain {
        let Newest { head, body, base_len, which } = newest;
        Chain {
            files,
            owner: head.owner,
            which: *which,
            sequence: head.sequence,
            generation: head.generation,
            sum: head.sum(),
            rolls_at: rolls_at(*base_len),
            end: body.encode_end(),
            rolling: None,
        }
    }

    /// The random number of the checkpoint in force.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    fn head(&self, generation: u64, sum: Sum) -> StoreHead {
        StoreHead::over(self.owner, self.sequence + 1, generation, sum)
    }

    /// Writes a checkpoint that adds these parts to the one before. After `Full`, nothing has
    /// changed.
    pub async fn append(&mut self, generation: u64, changes: &[u8], end: &[u8]) -> Result<(), WriteError> {
        let more = [changes, end].concat();
        let head = self.head(generation, self.sum.with(&more));
        self.files.finish(self.which, self.sum.len, &head, more.clone()).await?;
        self.put_in_force(head, end.to_vec());
        if let Some(rolling) = &mut self.rolling {
            rolling.rest.extend(more);
        }
        Ok(())
    }

    /// Writes a checkpoint with all fragments at once, if there is no room to add to the one
    /// before. After `Full`, the newest checkpoint has not changed.
    pub async fn rewrite(&mut self, generation: u64, all: Vec<u8>, end: &[u8]) -> Result<(), WriteError> {
        let (base_len, body) = (all.len() as u64, [&all[..], end].concat());
        let head = self.head(generation, Sum::default().with(&body));
        // This overwrites a body that was begun there.
        self.rolling = None;
        self.files.write(1 - self.which, &head, body).await?;
        self.put_in_force(head, end.to_vec());
        self.turn_to(base_len);
        Ok(())
    }

    fn put_in_force(&mut self, head: StoreHead, end: Vec<u8>) {
        (self.sequence, self.generation, self.sum, self.end) = (head.sequence, head.generation, head.sum(), end);
    }

    fn turn_to(&mut self, base_len: u64) {
        self.which = 1 - self.which;
        self.rolls_at = rolls_at(base_len);
    }

    /// Where the next slice begins: after this fragment, or with the first one (inner `None`).
    /// Outer `None` if no slice is to be written.
    pub fn next_slice(&mut self) -> Option<Option<FragmentKey>> {
        if self.rolling.is_none() && self.sum.len >= self.rolls_at {
            self.rolling = Some(Rolling { sum: Sum::default(), after: None, rest: self.end.clone() });
        }
        self.rolling.as_ref().map(|rolling| rolling.after)
    }

    /// Writes the next slice, which ends with the fragment `last`. Without `last`, all fragments
    /// are written: writes the rest of the body, which is then the newest. After `Full`, the body
    /// is begun anew later.
    pub async fn roll(&mut self, slice: Vec<u8>, last: Option<FragmentKey>) -> Result<(), WriteError> {
        let Some(mut rolling) = self.rolling.take() else { return Ok(()) };
        let (other, before) = (1 - self.which, rolling.sum);
        let written = match last {
            Some(_) => {
                rolling.sum = before.with(&slice);
                self.files.write_part(other, before.len, slice).await
            }
            None => {
                let head = self.head(self.generation, before.with(&rolling.rest));
                let rest = std::mem::take(&mut rolling.rest);
                self.files.finish(other, before.len, &head, rest).await.map(|()| {
                    self.put_in_force(head, self.end.clone());
                    self.turn_to(before.len);
                })
            }
        };
        match &written {
            Ok(()) if last.is_some() => self.rolling = Some(Rolling { after: last, ..rolling }),
            Ok(()) => {}
            Err(_) => self.rolls_at = rolls_at(self.sum.len),
        }
        written
    }
}

/// The length from which on a body with a base of `base_len` bytes is written anew.
fn rolls_at(base_len: u64) -> u64 {
    base_len + base_len.max(ADDITIONS_LEN_MIN)
}
