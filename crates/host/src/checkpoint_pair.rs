//! Two files that hold checkpoints by turns, of which the newest counts: Sprite LFS's two checkpoint regions.
//!
//! Each file is two copies of a 512-byte **head**, at 0 and at 4,096, and from 8,192 on the **body**. A checkpoint is written over
//! the older one in two steps, body first; only when the body is durable are the heads written. So a valid head proves that its body
//! once was durable, and:
//!
//! - a crash at any point leaves the newest checkpoint or the one before, never a mixture: until the heads are there, the other
//!   file counts;
//! - a body that does not match the newest valid head has rotted. Whoever reads it must say so, rather than silently go back in time
//!   to the other file.
//!
//! A body may also become longer in its place: what is added is durable before the heads are written that vouch for it, one after the other. So a
//! crash leaves heads of the body with the addition or without it, and both are whole.
//!
//! A [`Head`] has a checksum of itself and one of the body, the body's length, a number that grows with each checkpoint, and what its
//! [`Owner`] adds. Which of the valid ones are the owner's, and what it means if there are none, is the owner's affair.

mod head;

pub use head::{Head, Owner, Sum, crc32c};

use crate::{Disk, File};
use bytes::Bytes;
use std::io;
use std::sync::Arc;

/// Bytes of a head.
pub const HEAD_LEN: usize = 512;
/// Where the body is in a file.
pub const BODY_OFFSET: u64 = 8192;
/// Where the copies of the head are in a file: no sector has both.
const HEAD_OFFSETS: [u64; 2] = [0, 4096];

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

    /// What is in place of heads, and in which file. Some may have been torn, have rotted, or never have been written.
    pub async fn heads(&self) -> io::Result<Vec<(usize, Bytes)>> {
        let mut heads = Vec::new();
        for (which, file) in self.0.iter().enumerate() {
            for offset in HEAD_OFFSETS {
                heads.extend(read(file.as_ref(), offset, HEAD_LEN as u64).await?.map(|head| (which, head)));
            }
        }
        Ok(heads)
    }

    /// The body in a file, `len` bytes long by its head; `None` if the file ends before.
    pub async fn body(&self, which: usize, len: u64) -> io::Result<Option<Bytes>> {
        read(self.0[which].as_ref(), BODY_OFFSET, len).await
    }

    /// Sets space aside for a file of `len` bytes. `StorageFull` if there is none.
    pub async fn allocate(&self, which: usize, len: u64) -> io::Result<()> {
        self.0[which].allocate(len).await
    }

    /// Writes a checkpoint over the file that does not hold the newest; Ok means durable. After an error, what is there is unknown.
    pub async fn write(&self, which: usize, head: Bytes, body: Bytes) -> io::Result<()> {
        self.finish(which, 0, head, body).await
    }

    /// Writes a part of a body into the file that does not hold the newest, from `offset` in the body on. Durable once it is [finished](Self::finish).
    pub async fn write_part(&self, which: usize, offset: u64, part: Bytes) -> io::Result<()> {
        self.0[which].write_at(BODY_OFFSET + offset, vec![part]).await
    }

    /// Writes the last part of a body, from `offset` in it on, and the heads; Ok means that all is durable.
    pub async fn finish(&self, which: usize, offset: u64, head: Bytes, rest: Bytes) -> io::Result<()> {
        self.0[which].write_and_sync(vec![(BODY_OFFSET + offset, vec![rest])]).await?;
        self.write_heads(which, head).await
    }

    /// Adds to the newest body, which has `len` bytes so far, and makes `head` vouch for both; Ok means durable.
    pub async fn append(&self, which: usize, len: u64, head: Bytes, more: Bytes) -> io::Result<()> {
        self.0[which].write_and_sync(vec![(BODY_OFFSET + len, vec![more])]).await?;
        for offset in HEAD_OFFSETS {
            self.0[which].write_and_sync(vec![(offset, vec![head.clone()])]).await?;
        }
        Ok(())
    }

    /// Writes the heads of a file, whose body is durable.
    pub async fn write_heads(&self, which: usize, head: Bytes) -> io::Result<()> {
        self.0[which].write_and_sync(HEAD_OFFSETS.map(|offset| (offset, vec![head.clone()])).into()).await
    }
}

/// `None` if the file ends before.
async fn read(file: &dyn File, offset: u64, len: u64) -> io::Result<Option<Bytes>> {
    match file.len().await?.checked_sub(offset).is_some_and(|room| len <= room) {
        true => Ok(Some(file.read_at(offset, len as usize).await?)),
        false => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Sim, SimDisk};
    use std::time::Duration;

    const NAMES: [&str; 2] = ["a", "b"];
    const BODY_LEN: usize = 100_000;

    fn head(number: u8) -> Bytes {
        vec![number; HEAD_LEN].into()
    }

    fn body(number: u8) -> Bytes {
        vec![number; BODY_LEN].into()
    }

    #[test]
    fn crash_while_writing_leaves_the_checkpoint_before_or_a_head_whose_body_is_whole() {
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
            let heads = sim.block_on(pair.heads()).unwrap();
            assert_eq!(heads.iter().filter(|found| **found == (0, head(2))).count(), 2);
            assert_eq!(sim.block_on(pair.body(0, BODY_LEN as u64)).unwrap(), Some(body(2)));
            if heads.contains(&(1, head(3))) {
                newer_count += 1;
                assert_eq!(sim.block_on(pair.body(1, BODY_LEN as u64)).unwrap(), Some(body(3)), "seed {seed}");
            }
        }
        assert!((10..290).contains(&newer_count), "{newer_count} of 300 writes came far enough");
    }

    #[test]
    fn crash_while_adding_leaves_the_body_with_the_addition_or_without_it() {
        let mut longer_count = 0;
        for seed in 0..300 {
            let sim = Sim::new(seed);
            let disk = SimDisk::new(&sim, 1 << 30);
            let machine = sim.machine("node");
            let pair = sim.block_on(CheckpointPair::open(disk.mount(&machine).as_ref(), NAMES)).unwrap();
            sim.block_on(pair.write(1, head(1), body(1))).unwrap();
            let adding = pair.clone();
            let add = async move { adding.append(1, BODY_LEN as u64, head(2), body(2)).await.unwrap() };
            machine.host().tasks.spawn(Box::pin(add));
            sim.run_for(Duration::from_micros(seed * 10));
            machine.crash();
            disk.power_loss();

            let folder = disk.mount(&sim.machine("node"));
            let pair = sim.block_on(CheckpointPair::open(folder.as_ref(), NAMES)).unwrap();
            let heads = sim.block_on(pair.heads()).unwrap();
            assert!(heads.iter().all(|(_, found)| *found == head(1) || *found == head(2)), "seed {seed}");
            assert_eq!(heads.len(), 2);
            assert_eq!(sim.block_on(pair.body(1, BODY_LEN as u64)).unwrap(), Some(body(1)));
            if heads.contains(&(1, head(2))) {
                longer_count += 1;
                let whole = [body(1), body(2)].concat();
                assert_eq!(sim.block_on(pair.body(1, whole.len() as u64)).unwrap(), Some(whole.into()), "seed {seed}");
            }
        }
        assert!((10..290).contains(&longer_count), "{longer_count} of 300 additions came far enough");
    }

    #[test]
    fn what_ends_early_has_no_heads_and_no_body_however_long_it_claims_to_be() {
        let sim = Sim::new(1);
        let folder = SimDisk::new(&sim, 1 << 30).mount(&sim.machine("node"));
        sim.block_on(async {
            let pair = CheckpointPair::open(folder.as_ref(), NAMES).await.unwrap();
            assert_eq!(pair.heads().await.unwrap(), []);
            pair.write(0, head(1), body(1)).await.unwrap();
            assert_eq!(pair.heads().await.unwrap(), [(0, head(1)), (0, head(1))]);
            for (len, there) in [(10, true), (BODY_LEN as u64, true), (BODY_LEN as u64 + 1, false), (u64::MAX, false)] {
                assert_eq!(pair.body(0, len).await.unwrap().is_some(), there, "{len}");
            }
            assert_eq!(pair.body(1, 1).await.unwrap(), None);
        });
    }
}
