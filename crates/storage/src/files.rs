//! The files of a store: reads the newest checkpoint, writes the next one, finds the fragments that
//! were written since.
//!
//! After a crash of the process alone, or after a failed sync, bytes that can be read are not
//! always on the disk, and a later sync that succeeds does not put them there. So opening a store
//! writes again, in place and byte for byte, everything that it builds upon and that may not be
//! durable: the newest heads, and the fragments that it found.

use crate::checkpoint::{Body, StoreHead};
use crate::pages::{PAGE, PageExtent};
use crate::torn_tail::{FoundFragments, is_rotten, walk};
use host::{Disk, File};
use record_log::checkpoint_pair::{BODY_OFFSET, CheckpointPair, NewestError};
use std::io;
use std::sync::Arc;
use striped_log::fragment::{FragmentHeader, HEADER_LEN};
use thiserror::Error;
use types::codec::DecodeError;

const FRAGMENTS: &str = "fragments";
const CHECKPOINTS: [&str; 2] = ["checkpoint-a", "checkpoint-b"];
/// Space for checkpoints is set aside in steps of this many bytes, so that most checkpoints need no
/// new space.
const CHECKPOINT_STEP: u64 = 1 << 20;
/// Most bytes that recovery reads at a time. No fragment takes more.
const SCAN_BYTES_MAX: u64 = 8 << 20;

/// Why a folder could not be opened, or made into a store.
#[derive(Debug, Error)]
pub enum StoreOpenError {
    /// The folder has no store, or one whose creation was cut short and must be done again.
    #[error("not a store: no checkpoint found")]
    NotAStore,
    /// Another version of the program wrote it.
    #[error(
        "the store's format is version {found}, this program's is {known}: use the version of starling that wrote it"
    )]
    Version {
        /// The version found.
        found: u16,
        /// The version this program reads.
        known: u16,
    },
    /// The list of the store's fragments is lost. The fragments must be rebuilt from the other
    /// stores.
    #[error("the store is damaged: {what}")]
    Damaged {
        /// What is damaged.
        what: String,
    },
    /// Creating: there is a store already. Opening: the files belong to different stores.
    #[error("the folder holds files of another store")]
    Foreign,
    /// The disk failed.
    #[error("disk error: {0}")]
    Disk(#[from] io::Error),
}

impl From<DecodeError> for StoreOpenError {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::Version { found, known, .. } => StoreOpenError::Version { found, known },
            other => StoreOpenError::damaged(other.to_string()),
        }
    }
}

impl From<NewestError> for StoreOpenError {
    fn from(error: NewestError) -> Self {
        match error {
            NewestError::Disk(error) => StoreOpenError::Disk(error),
            NewestError::Version(error) => error.into(),
            NewestError::Mixed => StoreOpenError::Foreign,
            error @ NewestError::Rotten => StoreOpenError::damaged(error.to_string()),
        }
    }
}

impl StoreOpenError {
    /// [`StoreOpenError::Damaged`].
    pub fn damaged(what: impl Into<String>) -> Self {
        StoreOpenError::Damaged { what: what.into() }
    }
}

/// Why a checkpoint could not be written.
#[derive(Debug)]
pub enum WriteError {
    /// There is no space for it. Nothing was written.
    Full,
    /// The disk failed. It is unknown what was written.
    Failed(io::Error),
}

/// The open files of a store.
#[derive(Clone)]
pub struct StoreFiles {
    /// All fragments.
    pub fragments: Arc<dyn File>,
    checkpoints: CheckpointPair,
}

/// The newest checkpoint, and the file that has it.
pub struct Newest {
    /// Its head.
    pub head: StoreHead,
    /// Its contents.
    pub body: Body,
    /// Bytes of its body before the first end.
    pub base_len: u64,
    /// The file that has it, 0 or 1.
    pub which: usize,
}

impl StoreFiles {
    /// Opens the files, creating those that are not there.
    pub async fn open(disk: &dyn Disk) -> io::Result<StoreFiles> {
        let fragments = disk.open(FRAGMENTS, true).await?;
        Ok(StoreFiles { fragments, checkpoints: CheckpointPair::open(disk, CHECKPOINTS).await? })
    }

    /// True if a store has a file of this name.
    pub fn is_name(name: &str) -> bool {
        name == FRAGMENTS || CHECKPOINTS.contains(&name)
    }

    /// True if the folder has a checkpoint file, valid or not.
    pub async fn present(disk: &dyn Disk) -> io::Result<bool> {
        Ok(disk.list().await?.iter().any(|name| CHECKPOINTS.contains(&name.as_str())))
    }

    /// The newest valid head, and the file that has it. Fails with [`StoreOpenError::NotAStore`] if
    /// nothing was ever written here.
    pub async fn newest_head(&self) -> Result<(usize, StoreHead), StoreOpenError> {
        match self.checkpoints.newest().await? {
            Some(newest) => Ok(newest),
            // The first checkpoint precedes the first fragment.
            None if self.fragments.len().await? == 0 => Err(StoreOpenError::NotAStore),
            None => Err(StoreOpenError::damaged("no valid checkpoint")),
        }
    }

    /// The newest checkpoint, by the newest valid head. Its body once was durable. So if the body
    /// is not whole now, the store is damaged.
    pub async fn newest(&self) -> Result<Newest, StoreOpenError> {
        let (which, head) = self.newest_head().await?;
        let body = self.checkpoints.body(which, head.body_len).await?;
        let bytes = body.ok_or_else(|| StoreOpenError::damaged("the newest checkpoint is cut short"))?;
        if !head.vouches_for(&bytes) {
            return Err(StoreOpenError::damaged("the newest checkpoint does not match its checksum"));
        }
        let (body, base_len) = Body::decode(&bytes, head.owner.fs)?;
        Ok(Newest { head, body, base_len, which })
    }

    /// Makes the newest checkpoint durable. Its heads may have been read from a cache only. Its
    /// body was durable before the heads were written.
    pub async fn settle(&self, newest: &Newest) -> io::Result<()> {
        self.checkpoints.write_heads(newest.which, newest.head.encode()).await
    }

    /// Finds the fragments that were written to a reserved extent under the checkpoint `head`, with
    /// their places. Writes them again; the caller's sync makes them durable. `len` is the length
    /// of the `fragments` file. The flag is true if the scan ended at a header that has rotted, so
    /// that fragments may be missing.
    pub async fn scan(
        &self,
        part: PageExtent,
        head: &StoreHead,
        len: u64,
    ) -> Result<(Vec<(PageExtent, FoundFragments)>, bool), StoreOpenError> {
        let belongs = |header: &FragmentHeader, generation: u64| {
            generation == head.generation && header.fs == head.owner.fs && head.owner.is_member(header)
        };
        let mut all = Vec::new();
        let mut rest = part;
        loop {
            let offset = rest.file_offset();
            let room = len.saturating_sub(offset).min(rest.byte_len()).min(SCAN_BYTES_MAX);
            if room < HEADER_LEN as u64 {
                return Ok((all, false));
            }
            // Most of a reservation was never written. Reading one header tells.
            let sector = self.fragments.read_at(offset, HEADER_LEN).await?;
            match FragmentHeader::decode_with_generation(&sector) {
                Ok((header, generation)) if belongs(&header, generation) => {}
                Ok(_) => return Ok((all, false)),
                Err(_) => return Ok((all, is_rotten(&sector, head.generation))),
            }
            let bytes = self.fragments.read_at(offset, room as usize).await?;
            let (found, end) = walk(&bytes, belongs);
            if end == 0 {
                return Ok((all, false));
            }
            self.fragments.write_at(offset, vec![bytes.slice(..end as usize)]).await?;
            all.extend(found.into_iter().map(|found| (found.place(rest.start), found)));
            let pages = end / PAGE;
            rest = PageExtent { start: rest.start + pages, len: rest.len - pages };
        }
    }

    /// Writes a checkpoint, `head` with its body, over file `which`, which does not hold the newest
    /// one. `Ok` means durable.
    pub async fn write(&self, which: usize, head: &StoreHead, body: Vec<u8>) -> Result<(), WriteError> {
        self.finish(which, 0, head, body).await
    }

    /// Writes a part of a body, from `offset` in it on, into the file that does not hold the
    /// newest.
    pub async fn write_part(&self, which: usize, offset: u64, part: Vec<u8>) -> Result<(), WriteError> {
        self.make_room(which, offset, part.len()).await?;
        self.checkpoints.write_part(which, offset, part.into()).await.map_err(WriteError::Failed)
    }

    /// Writes the last part of a body, from `offset` in it on, and then `head`. `Ok` means that
    /// everything is durable. This can also make the newest body longer.
    pub async fn finish(&self, which: usize, offset: u64, head: &StoreHead, rest: Vec<u8>) -> Result<(), WriteError> {
        self.make_room(which, offset, rest.len()).await?;
        self.checkpoints.finish(which, offset, head.encode(), rest.into()).await.map_err(WriteError::Failed)
    }

    /// Sets space aside for a body that grows from `offset` by `len` bytes.
    async fn make_room(&self, which: usize, offset: u64, len: usize) -> Result<(), WriteError> {
        let end = |len: u64| (BODY_OFFSET + len).next_multiple_of(CHECKPOINT_STEP);
        if offset > 0 && end(offset) == end(offset + len as u64) {
            return Ok(());
        }
        match self.checkpoints.allocate(which, end(offset + len as u64)).await {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Err(WriteError::Full),
            other => other.map_err(WriteError::Failed),
        }
    }
}
