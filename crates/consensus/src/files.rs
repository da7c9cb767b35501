//! The files of a voter's state: two files, written in turn. The file with the newer valid head
//! counts. See [`record_log::checkpoint_pair`] for how, and for what a head proves. The body is an
//! [image](crate::image).
//!
//! A body that does not match the newest head is damage: a voter that went back to the older file
//! could forget a vote, and two leaders could be elected.
//!
//! The files do not grow: an image is bounded by the log's length between snapshots.
//!
//! ```text
//! head: magic "STARCONS" | version u16 | file system 16 | sequence u64 | body_len u64
//!       | body CRC-32C u32 | zeroes | CRC-32C of the 508 bytes before u32
//! ```

use crate::image::Image;
use bytes::Bytes;
use host::Disk;
use record_log::checkpoint_pair::{CheckpointPair, NewestError, Owner};
use std::io;
use std::sync::Arc;
use thiserror::Error;
use types::FsUuid;
use types::codec::{DecodeError, Reader};

/// Names of the two files.
pub const NAMES: [&str; 2] = ["state-a", "state-b"];
/// The format that this program writes, and the newest that it reads.
pub const VERSION: u16 = 1;
/// Length of a body, in bytes, at most: amply the maps of all entries of a log.
const BODY_LEN_MAX: u64 = 8 << 20;

/// The file system that a state belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VoterOwner(pub FsUuid);

/// Identifies a state, and has the checksum of its body.
pub type VoterHead = record_log::checkpoint_pair::Head<VoterOwner>;

impl Owner for VoterOwner {
    const MAGIC: &'static [u8; 8] = b"STARCONS";
    const VERSION: u16 = VERSION;
    const WHAT: &'static str = "the consensus folder";
    const HAS_GENERATION: bool = false;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.0);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut fs = FsUuid([0; 16]);
        fs.0.copy_from_slice(r.take(16, "file system")?);
        Ok(VoterOwner(fs))
    }
}

/// Why a folder's state cannot be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The disk.
    #[error("its disk: {0}")]
    Disk(#[from] io::Error),
    /// The newest state has rotted.
    #[error("it is damaged: {0}")]
    Damaged(DecodeError),
    /// It was written by a newer program.
    #[error("{0}")]
    Version(DecodeError),
}

impl From<NewestError> for LoadError {
    fn from(error: NewestError) -> Self {
        match error {
            NewestError::Disk(error) => LoadError::Disk(error),
            NewestError::Version(error) => LoadError::Version(error),
            NewestError::Mixed => LoadError::Damaged(DecodeError::Invalid("owner of its states")),
            NewestError::Rotten => LoadError::Damaged(DecodeError::Checksum("heads of its newest state")),
        }
    }
}

/// The files of an open folder.
pub struct VoterFiles {
    pair: CheckpointPair,
    fs: FsUuid,
    sequence: u64,
    /// Nothing more is written: a write failed or was given up, so the disk's contents are unknown,
    /// or others write them now.
    failed: bool,
}

impl VoterFiles {
    /// Makes the files of a folder anew for a file system, and removes older ones.
    pub async fn create(disk: &Arc<dyn Disk>, fs: FsUuid) -> io::Result<VoterFiles> {
        let there = disk.list().await?;
        for name in NAMES {
            if there.iter().any(|n| n == name) {
                disk.remove(name).await?;
            }
        }
        let pair = CheckpointPair::open(disk.as_ref(), NAMES).await?;
        Ok(VoterFiles { pair, fs, sequence: 0, failed: false })
    }

    /// Reads the newest state; `None` if there never was one. It writes this state again before
    /// anything builds on it: after a crash of the process, bytes that can be read may not be on
    /// the disk.
    pub async fn load(disk: &Arc<dyn Disk>) -> Result<Option<(VoterFiles, Image)>, LoadError> {
        let there = disk.list().await?;
        if !NAMES.iter().any(|name| there.iter().any(|n| n == name)) {
            return Ok(None);
        }
        let pair = CheckpointPair::open(disk.as_ref(), NAMES).await?;
        let newest: Option<(usize, VoterHead)> = pair.newest().await?;
        let Some((at, head)) = newest else { return Ok(None) };
        let rotten = || LoadError::Damaged(DecodeError::Checksum("its newest state"));
        if head.body_len > BODY_LEN_MAX {
            return Err(rotten());
        }
        let body = pair.body(at, head.body_len).await?.ok_or_else(rotten)?;
        if !head.vouches_for(&body) {
            return Err(rotten());
        }
        let image = Image::decode(&body).map_err(LoadError::Damaged)?;
        if at != place(head.sequence) {
            return Err(LoadError::Damaged(DecodeError::Invalid(
                "place of its newest state: the files were exchanged",
            )));
        }
        // First make the state durable that was found, then overwrite the older one.
        pair.write_heads(at, head.encode()).await?;
        let mut files = VoterFiles { pair, fs: head.owner.0, sequence: head.sequence, failed: false };
        files.write(&image).await?;
        Ok(Some((files, image)))
    }

    /// The file system that the state belongs to.
    pub fn fs(&self) -> FsUuid {
        self.fs
    }

    /// Leaves the files to others: nothing more is written.
    pub fn end(&mut self) {
        self.failed = true;
    }

    /// Makes a state durable in place of the last one. After an error, nothing more can be written.
    pub async fn write(&mut self, image: &Image) -> io::Result<()> {
        if std::mem::replace(&mut self.failed, true) {
            return Err(io::Error::other("an earlier write of the consensus state failed"));
        }
        let body = Bytes::from(image.encode());
        if body.len() as u64 > BODY_LEN_MAX {
            return Err(io::Error::other("the consensus state is too long"));
        }
        let sequence = self.sequence + 1;
        let head = VoterHead::of(VoterOwner(self.fs), sequence, 0, &body).encode();
        self.pair.write(place(sequence), head, body).await?;
        self.sequence = sequence;
        self.failed = false;
        Ok(())
    }
}

/// The index of the file that a state goes to.
fn place(sequence: u64) -> usize {
    (sequence % 2) as usize
}
