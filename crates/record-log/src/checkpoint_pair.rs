//! Two files that hold checkpoints by turns; the newest checkpoint counts. These are the two
//! checkpoint regions of Sprite LFS.
//!
//! Each file has two copies of a 512-byte **head**, at 0 and at 4,096, and from 8,192 on the
//! **body**. A checkpoint is written over the older one in two steps: first the body, and the heads
//! only when the body is durable. So a valid head proves that its body once was durable:
//!
//! - A crash at any point leaves the newest checkpoint or the one before, never a mixture. Until
//!   the new heads are there, the other file counts.
//! - A body that does not match the newest valid head has rotted. Its reader must report that. It
//!   must not silently go back in time to the other file.
//! - The heads are written one after the other, so a crash tears at most one of them. If neither
//!   copy in a file is valid, and both were written once, the file has rotted. It may be the
//!   newest, so the other file cannot be used either.
//!
//! A body may also grow in place: the addition is durable before the heads that vouch for it are
//! written, one after the other. So a crash leaves heads of the body with the addition or without
//! it, and both bodies are whole.
//!
//! A [`Head`] has a checksum of itself, a checksum and the length of the body, a number that grows
//! with each checkpoint, and fields that its [`Owner`] adds. The owner checks that the newest head
//! is its own, and decides what it means if there is none.

mod head;

pub use head::{Head, Owner, Sum, crc32c};

use bytes::Bytes;
use host::{Disk, File};
use std::io;
use std::sync::Arc;
use thiserror::Error;
use types::codec::DecodeError;

/// Bytes of a head.
pub const HEAD_LEN: usize = 512;
/// Where the body is in a file.
pub const BODY_OFFSET: u64 = 8192;
/// Where the copies of the head are in a file, 4,096 bytes apart, so that no sector has both.
const HEAD_OFFSETS: [u64; 2] = [0, 4096];

/// Why it is not certain which checkpoint is the newest.
#[derive(Debug, Error)]
pub enum NewestError {
    /// The disk failed.
    #[error("{0}")]
    Disk(#[from] io::Error),
    /// Another version of the program wrote a head.
    #[error("{0}")]
    Version(DecodeError),
    /// Neither copy of the head in one of the files is as it was written.
    #[error("both copies of a checkpoint's head are unreadable")]
    Rotten,
    /// The files have different owners.
    #[error("the two checkpoints belong to different owners")]
    Mixed,
}

/// The open files, called 0 and 1.
#[derive(Clone)]
pub struct CheckpointPair([Arc<dyn File>; 2]);

impl CheckpointPair {
    /// Opens the files, creating those that are not there, and makes their names durable.
    pub async fn open(disk: &dyn Disk, names: [&str; 2]) -> io::Result<CheckpointPair> {
        let files = [disk.open(names[0], true).await?, disk.open(names[1], true).await?];
        disk.sync_names().await?;
        Ok(CheckpointPair(files))
    }

    /// The newest head, and the file that has it. `None` if no checkpoint was ever completed.
    pub async fn newest<O: Owner + PartialEq>(&self) -> Result<Option<(usize, Head<O>)>, NewestError> {
        let mut newest: Option<(usize, Head<O>)> = None;
        for (which, file) in self.0.iter().enumerate() {
            let mut may_be_torn = false;
            for offset in HEAD_OFFSETS {
                let bytes = read(file.as_ref(), offset, HEAD_LEN as u64).await?;
                // Beyond the file's end, or zeroes: this head was never written.
                let Some(bytes) = bytes.filter(|bytes| bytes.iter().any(|byte| *byte != 0)) else {
                    may_be_torn = true;
                    continue;
                };
                match (Head::<O>::decode(&bytes), newest) {
                    (Ok(head), Some((_, other))) if other.owner != head.owner => return Err(NewestError::Mixed),
                    (Ok(head), other) => {
                        may_be_torn = true;
                        if other.is_none_or(|(_, other)| other.sequence < head.sequence) {
                            newest = Some((which, head));
                        }
                    }
                    (Err(error @ DecodeError::Version { .. }), _) => return Err(NewestError::Version(error)),
                    (Err(_), _) => {}
                }
            }
            if !may_be_torn {
                return Err(NewestError::Rotten);
            }
        }
        Ok(newest)
    }

    /// The body in a file. `len` is its length by the head; `None` if the file is shorter.
    pub async fn body(&self, which: usize, len: u64) -> io::Result<Option<Bytes>> {
        read(self.0[which].as_ref(), BODY_OFFSET, len).await
    }

    /// Sets space aside for a file of `len` bytes. Fails with `StorageFull` if there is none.
    pub async fn allocate(&self, which: usize, len: u64) -> io::Result<()> {
        self.0[which].allocate(len).await
    }

    /// Writes a checkpoint over the file that does not hold the newest. `Ok` means durable. After
    /// an error the file's contents are unknown.
    pub async fn write(&self, which: usize, head: Bytes, body: Bytes) -> io::Result<()> {
        self.finish(which, 0, head, body).await
    }

    /// Writes a part of a body into the file that does not hold the newest, from `offset` in the
    /// body on. The part is durable once the body is [finished](Self::finish).
    pub async fn write_part(&self, which: usize, offset: u64, part: Bytes) -> io::Result<()> {
        self.0[which].write_at(BODY_OFFSET + offset, vec![part]).await
    }

    /// Writes the last part of a body, from `offset` in it on, and then the heads. `Ok` means that
    /// everything is durable. This can also make the newest body longer.
    pub async fn finish(&self, which: usize, offset: u64, head: Bytes, rest: Bytes) -> io::Result<()> {
        self.0[which].write_and_sync(vec![(BODY_OFFSET + offset, vec![rest])]).await?;
        self.write_heads(which, head).await
    }

    /// Writes the heads of a file, one after the other. Its body must be durable.
    pub async fn write_heads(&self, which: usize, head: Bytes) -> io::Result<()> {
        for offset in HEAD_OFFSETS {
            self.0[which].write_and_sync(vec![(offset, vec![head.clone()])]).await?;
        }
        Ok(())
    }
}

/// Reads `len` bytes at `offset`. `None` if the file ends before.
async fn read(file: &dyn File, offset: u64, len: u64) -> io::Result<Option<Bytes>> {
    match file.len().await?.checked_sub(offset).is_some_and(|room| len <= room) {
        true => Ok(Some(file.read_at(offset, len as usize).await?)),
        false => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::sim::{Sim, SimDisk};
    use std::time::Duration;
    use types::codec::Reader;

    const NAMES: [&str; 2] = ["a", "b"];
    const BODY_LEN: usize = 100_000;

    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Whose(u8);

    impl Owner for Whose {
        const MAGIC: &'static [u8; 8] = b"STARTEST";
        const VERSION: u16 = 1;
        const WHAT: &'static str = "test";
        const HAS_GENERATION: bool = false;
        fn encode(&self, out: &mut Vec<u8>) {
            out.push(self.0);
        }
        fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
            Ok(Whose(r.u8("owner")?))
        }
    }

    fn head_of(sequence: u64, body: &[u8]) -> Head<Whose> {
        Head::of(Whose(1), sequence, 0, body)
    }

    fn body(number: u8) -> Bytes {
        vec![number; BODY_LEN].into()
    }

    /// The head of checkpoint `number`, which has `body(number)`.
    fn head(number: u8) -> Bytes {
        head_of(number.into(), &body(number)).encode()
    }

    /// The newest checkpoint: its number, its file, and its body if that is whole.
    async fn newest(pair: &CheckpointPair) -> Result<Option<(u64, usize, Option<Bytes>)>, NewestError> {
        let Some((which, head)) = pair.newest::<Whose>().await? else { return Ok(None) };
        let body = pair.body(which, head.body_len).await?.filter(|body| head.vouches_for(body));
        Ok(Some((head.sequence, which, body)))
    }

    #[test]
    fn crash_while_writing_leaves_the_checkpoint_before_or_a_whole_one() {
        let mut newer_count = 0;
        for seed in 0..300 {
            let sim = Sim::new(seed);
            let disk = SimDisk::new(&sim, 1 << 30);
            let machine = sim.machine("node");
            let folder = disk.mount(&machine);
            let pair = sim.block_on(CheckpointPair::open(folder.as_ref(), NAMES)).unwrap();
            sim.block_on(pair.write(1, head(1), body(1))).unwrap();
            sim.block_on(pair.write(0, head(2), body(2))).unwrap();
            let writing = pair.clone();
            machine.host().tasks.spawn(Box::pin(async move { writing.write(1, head(3), body(3)).await.unwrap() }));
            sim.run_for(Duration::from_micros(seed * 10));
            machine.crash();
            disk.power_loss();

            let folder = disk.mount(&sim.machine("node"));
            let pair = sim.block_on(CheckpointPair::open(folder.as_ref(), NAMES)).unwrap();
            match sim.block_on(newest(&pair)).unwrap() {
                Some((3, 1, Some(there))) if there == body(3) => newer_count += 1,
                Some((2, 0, Some(there))) if there == body(2) => {}
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        assert!((10..290).contains(&newer_count), "{newer_count} of 300 writes came far enough");
    }

    #[test]
    fn crash_while_adding_leaves_the_body_with_the_addition_or_without_it() {
        let mut longer_count = 0;
        let longer = [body(1), body(2)].concat();
        for seed in 0..300 {
            let sim = Sim::new(seed);
            let disk = SimDisk::new(&sim, 1 << 30);
            let machine = sim.machine("node");
            let pair = sim.block_on(CheckpointPair::open(disk.mount(&machine).as_ref(), NAMES)).unwrap();
            sim.block_on(pair.write(1, head(1), body(1))).unwrap();
            let (adding, head) = (pair.clone(), head_of(2, &longer).encode());
            let add = async move { adding.finish(1, BODY_LEN as u64, head, body(2)).await.unwrap() };
            machine.host().tasks.spawn(Box::pin(add));
            sim.run_for(Duration::from_micros(seed * 10));
            machine.crash();
            disk.power_loss();

            let folder = disk.mount(&sim.machine("node"));
            let pair = sim.block_on(CheckpointPair::open(folder.as_ref(), NAMES)).unwrap();
            match sim.block_on(newest(&pair)).unwrap() {
                Some((2, 1, Some(there))) if *there == longer => longer_count += 1,
                Some((1, 1, Some(there))) if there == body(1) => {}
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        assert!((10..290).contains(&longer_count), "{longer_count} of 300 additions came far enough");
    }

    /// Both heads of the newest file had rotted, and the checkpoint before was taken for the
    /// newest.
    #[test]
    fn regression_rot_never_brings_back_an_older_checkpoint() {
        let mut said = 0;
        for seed in 0..200 {
            let sim = Sim::new(seed);
            let disk = SimDisk::new(&sim, 1 << 30);
            sim.block_on(async {
                let pair = CheckpointPair::open(disk.mount(&sim.machine("node")).as_ref(), NAMES).await.unwrap();
                pair.write(1, head(1), body(1)).await.unwrap();
                pair.write(0, head(2), body(2)).await.unwrap();
                disk.rot(NAMES[seed as usize % 2], 0..BODY_OFFSET, 1 + (seed % 40) as u32);
                match newest(&pair).await {
                    Ok(Some((2, 0, Some(there)))) => assert_eq!(there, body(2), "seed {seed}"),
                    Err(NewestError::Rotten) => said += 1,
                    other => panic!("seed {seed}: {other:?}"),
                }
            });
        }
        assert!(said > 20, "{said}");
    }

    #[test]
    fn what_ends_early_has_no_heads_and_no_body_however_long_it_claims_to_be() {
        let sim = Sim::new(1);
        let folder = SimDisk::new(&sim, 1 << 30).mount(&sim.machine("node"));
        sim.block_on(async {
            let pair = CheckpointPair::open(folder.as_ref(), NAMES).await.unwrap();
            assert_eq!(newest(&pair).await.unwrap(), None);
            pair.write(0, head(1), body(1)).await.unwrap();
            assert_eq!(newest(&pair).await.unwrap(), Some((1, 0, Some(body(1)))));
            for (len, there) in [(10, true), (BODY_LEN as u64, true), (BODY_LEN as u64 + 1, false), (u64::MAX, false)] {
                assert_eq!(pair.body(0, len).await.unwrap().is_some(), there, "{len}");
            }
            assert_eq!(pair.body(1, 1).await.unwrap(), None);
        });
    }

    #[test]
    fn checkpoints_of_different_owners_are_not_compared() {
        let sim = Sim::new(1);
        let folder = SimDisk::new(&sim, 1 << 30).mount(&sim.machine("node"));
        sim.block_on(async {
            let pair = CheckpointPair::open(folder.as_ref(), NAMES).await.unwrap();
            pair.write(0, head(1), body(1)).await.unwrap();
            let other = Head::of(Whose(2), 2, 0, &body(2)).encode();
            pair.write(1, other, body(2)).await.unwrap();
            assert!(matches!(newest(&pair).await, Err(NewestError::Mixed)));
        });
    }
}
