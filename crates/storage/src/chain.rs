//! A store's checkpoints as they are written: each adds to the body of the one before what changed
//! since, so that it costs what changed and not what there is.
//!
//! Bodies would grow for ever. So when the additions take as much as what is whole, all fragments
//! are written anew into the other file, a slice with each group of puts ([`Chain::roll`]). What is
//! added meanwhile goes into the old body, and after the slices into the new one.
//!
//! A slice has what the store knows when it is written, which may be newer than the newest
//! checkpoint: a fragment that was put, moved or deleted since. That is as good: it was durable, or
//! its deletion was asked for, its pages are in no reservation before the next checkpoint, and what
//! checkpoints said meanwhile comes after the slices and counts.

use crate::checkpoint::{Head, Identity};
use crate::files::{Files, Newest, WriteError};
use crate::index::Key;
use record_log::checkpoint_pair::Sum;

/// Additions shorter than this are not worth writing everything anew.
const ADDITIONS_LEN_MIN: u64 = 4096;

/// The newest checkpoint, and how the next is written.
pub struct Chain {
    files: Files,
    owner: Identity,
    /// The file with the newest body.
    which: usize,
    sequence: u64,
    generation: u64,
    sum: Sum,
    /// How long the body is when all is to be written anew.
    rolls_at: u64,
    /// How the newest checkpoint ends.
    end: Vec<u8>,
    rolling: Option<Rolling>,
}

/// A body that is being written into the other file.
struct Rolling {
    sum: Sum,
    /// The last fragment in it.
    after: Option<Key>,
    /// What comes after all fragments: how the newest checkpoint ended when this began, and what
    /// was added since.
    rest: Vec<u8>,
}

impl Chain {
    pub fn new(files: Files, newest: &Newest) -> Chain {
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

    fn head(&self, generation: u64, sum: Sum) -> Head {
        Head::over(self.owner, self.sequence + 1, generation, sum)
    }

    /// Writes a checkpoint that adds these parts to the one before. `Full`: nothing has changed.
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

    /// Writes a checkpoint with all fragments at once, where there is no room to add to the one
    /// before. `Full`: nothing has changed.
    pub async fn rewrite(&mut self, generation: u64, all: Vec<u8>, end: &[u8]) -> Result<(), WriteError> {
        let (base_len, body) = (all.len() as u64, [&all[..], end].concat());
        let head = self.head(generation, Sum::default().with(&body));
        // What was begun there is written over.
        self.rolling = None;
        self.files.write(1 - self.which, &head, body).await?;
        self.put_in_force(head, end.to_vec());
        self.turn_to(base_len);
        Ok(())
    }

    fn put_in_force(&mut self, head: Head, end: Vec<u8>) {
        (self.sequence, self.generation, self.sum, self.end) = (head.sequence, head.generation, head.sum(), end);
    }

    fn turn_to(&mut self, base_len: u64) {
        self.which = 1 - self.which;
        self.rolls_at = rolls_at(base_len);
    }

    /// Where the next slice begins: after this fragment, or with the first. Outer `None`: there is
    /// none to be written.
    pub fn next_slice(&mut self) -> Option<Option<Key>> {
        if self.rolling.is_none() && self.sum.len >= self.rolls_at {
            self.rolling = Some(Rolling { sum: Sum::default(), after: None, rest: self.end.clone() });
        }
        self.rolling.as_ref().map(|rolling| rolling.after)
    }

    /// Writes the next slice, which ends with the fragment `last`; without one, what comes after
    /// all fragments, and then this is the newest body. `Full`: it begins anew later.
    pub async fn roll(&mut self, slice: Vec<u8>, last: Option<Key>) -> Result<(), WriteError> {
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

/// How long a body becomes that has so many bytes before its first end.
fn rolls_at(base_len: u64) -> u64 {
    base_len + base_len.max(ADDITIONS_LEN_MIN)
}
