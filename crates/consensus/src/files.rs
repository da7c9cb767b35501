//! Where a voter's state is kept: two files, written in turn, of which the one with the newer valid head counts. See
//! [`host::checkpoint_pair`] for how, and for what a head proves; the body is an [image](crate::image).
//!
//! A body that does not match the newest head is damage: a voter that went back to the older file could forget a vote, and elect two
//! leaders.
//!
//! The files do not grow: an image is bounded by the log's length between snapshots.
//!
//! ```text
//! head: magic "STARCONS" | version u16 | file system 16 | sequence u64 | body_len u64 | body CRC-32C u32 | zeroes
//!       | CRC-32C of the 508 bytes before u32
//! ```

use crate::image::Image;
use bytes::Bytes;
use host::Disk;
use host::checkpoint_pair::{CheckpointPair, HEAD_LEN};
use std::io;
use std::sync::Arc;
use thiserror::Error;
use types::FsUuid;
use types::codec::{DecodeError, Put, Reader};

/// Names of the two files.
pub const NAMES: [&str; 2] = ["state-a", "state-b"];
const MAGIC: &[u8; 8] = b"STARCONS";
/// The format that this program writes, and the newest that it reads.
pub const VERSION: u16 = 1;
/// Bytes of a head before its padding.
const HEAD_FIELDS_LEN: usize = 46;
/// Most bytes of a body: the maps of a log's worth of changes, amply.
const BODY_LEN_MAX: u64 = 8 << 20;

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Names a state and vouches for its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The file system.
    pub fs: FsUuid,
    /// One more with each state that is written.
    pub sequence: u64,
    /// Bytes of the body.
    pub body_len: u64,
    /// Its checksum.
    pub body_crc: u32,
}

impl Head {
    /// The bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(HEAD_LEN);
        out.extend_from_slice(MAGIC);
        out.put_u16(VERSION);
        out.extend_from_slice(&self.fs.0);
        out.put_u64(self.sequence);
        out.put_u64(self.body_len);
        out.put_u32(self.body_crc);
        out.resize(HEAD_LEN - 4, 0);
        out.put_u32(crc32c(&out));
        out.into()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8]) -> Result<Head, DecodeError> {
        let r = &mut Reader::new(bytes);
        let sum = crc32c(r.clone().take(HEAD_LEN - 4, "consensus head")?);
        if r.take(MAGIC.len(), "consensus magic")? != MAGIC {
            return Err(DecodeError::Invalid("consensus magic"));
        }
        let version = r.u16("consensus version")?;
        let mut fs = FsUuid([0; 16]);
        fs.0.copy_from_slice(r.take(16, "file system")?);
        let (sequence, body_len, body_crc) = (r.u64("sequence")?, r.u64("body length")?, r.u32("body checksum")?);
        let padding = r.take(HEAD_LEN - 4 - HEAD_FIELDS_LEN, "padding")?;
        if r.u32("head checksum")? != sum {
            return Err(DecodeError::Checksum("consensus head"));
        }
        if version != VERSION {
            return Err(DecodeError::Version { what: "the consensus folder", found: version, known: VERSION });
        }
        if padding.iter().any(|byte| *byte != 0) {
            return Err(DecodeError::Invalid("padding"));
        }
        Ok(Head { fs, sequence, body_len, body_crc })
    }
}

/// Why a folder's state cannot be had.
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

/// The files of an open folder.
pub struct Files {
    pair: CheckpointPair,
    fs: FsUuid,
    sequence: u64,
    /// A write failed or was given up: what is on the disk is unknown, and nothing more is written.
    failed: bool,
}

impl Files {
    /// Makes a folder's files anew for a file system, whatever was there.
    pub async fn create(disk: &Arc<dyn Disk>, fs: FsUuid) -> io::Result<Files> {
        let there = disk.list().await?;
        for name in NAMES {
            if there.iter().any(|n| n == name) {
                disk.remove(name).await?;
            }
        }
        let pair = CheckpointPair::open(disk.as_ref(), NAMES).await?;
        Ok(Files { pair, fs, sequence: 0, failed: false })
    }

    /// Reads the newest state; `None` if there never was one. What was read is written again before anything builds on it: after a
    /// crash of the process, what can be read need not be on the disk.
    pub async fn load(disk: &Arc<dyn Disk>) -> Result<Option<(Files, Image)>, LoadError> {
        let there = disk.list().await?;
        if !NAMES.iter().any(|name| there.iter().any(|n| n == name)) {
            return Ok(None);
        }
        let pair = CheckpointPair::open(disk.as_ref(), NAMES).await?;
        let mut newest: Option<(usize, Head)> = None;
        for (at, bytes) in pair.heads().await? {
            match Head::decode(&bytes) {
                Ok(head) if newest.is_none_or(|(_, n)| n.sequence < head.sequence) => newest = Some((at, head)),
                Err(error @ DecodeError::Version { .. }) => return Err(LoadError::Version(error)),
                // Torn, or never written.
                Ok(_) | Err(_) => {}
            }
        }
        let Some((at, head)) = newest else { return Ok(None) };
        let rotten = || LoadError::Damaged(DecodeError::Checksum("its newest state"));
        if head.body_len > BODY_LEN_MAX {
            return Err(rotten());
        }
        let body = pair.body(at, head.body_len).await?.ok_or_else(rotten)?;
        if crc32c(&body) != head.body_crc {
            return Err(rotten());
        }
        let image = Image::decode(&body).map_err(LoadError::Damaged)?;
        if at != place(head.sequence) {
            return Err(LoadError::Damaged(DecodeError::Invalid(
                "place of its newest state: the files were exchanged",
            )));
        }
        // First what was found, then what goes over the state before it.
        pair.write_heads(at, head.encode()).await?;
        let mut files = Files { pair, fs: head.fs, sequence: head.sequence, failed: false };
        files.write(&image).await?;
        Ok(Some((files, image)))
    }

    /// Whose state it is.
    pub fn fs(&self) -> FsUuid {
        self.fs
    }

    /// Makes a state durable in place of the last. After an error nothing more can be written.
    pub async fn write(&mut self, image: &Image) -> io::Result<()> {
        if std::mem::replace(&mut self.failed, true) {
            return Err(io::Error::other("an earlier write of the consensus state failed"));
        }
        let body = Bytes::from(image.encode());
        if body.len() as u64 > BODY_LEN_MAX {
            return Err(io::Error::other("the consensus state is too long"));
        }
        let sequence = self.sequence + 1;
        let head = Head { fs: self.fs, sequence, body_len: body.len() as u64, body_crc: crc32c(&body) }.encode();
        self.pair.write(place(sequence), head, body).await?;
        self.sequence = sequence;
        self.failed = false;
        Ok(())
    }
}

/// Which file a state goes to.
fn place(sequence: u64) -> usize {
    (sequence % 2) as usize
}
