//! One large file that is overwritten a block at a time, again and again; a file that grows until
//! there is no room; and the check of both.
//!
//! The number n of a write determines its block and its bytes, so another process can tell
//! afterwards what the file must hold.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::random::Random;
use super::{Outcome, outcome};

/// Bytes of one write.
pub const BLOCK_BYTES: usize = 64 << 10;
/// Overwrites between two fsyncs.
const WRITES_PER_FSYNC: u64 = 50;
/// Of ten writes, this many go to the hot tenth of the blocks.
const HOT_OF_TEN: u64 = 9;
/// Number of different contents; a prime, so that they align with nothing.
const CONTENT_COUNT: usize = 67;
/// Pause before another attempt to write into room that is being made.
const ROOM_PAUSE: Duration = Duration::from_millis(100);

/// The contents of blocks.
struct Contents(Vec<u8>);

impl Contents {
    fn new() -> Contents {
        let mut bytes = vec![0; CONTENT_COUNT * BLOCK_BYTES];
        Random::new(11).fill(&mut bytes);
        Contents(bytes)
    }

    /// The contents of the block after the write with this number; 0 is the write that made the
    /// file.
    fn block(&mut self, index: u64, write: u64) -> &[u8] {
        let start = ((index + write) as usize % CONTENT_COUNT) * BLOCK_BYTES;
        let block = &mut self.0[start..start + BLOCK_BYTES];
        block[..8].copy_from_slice(&index.to_le_bytes());
        block[8..16].copy_from_slice(&write.to_le_bytes());
        block
    }
}

/// The endless sequence of blocks to overwrite.
struct Sequence {
    random: Random,
    blocks: u64,
    hot: bool,
}

impl Sequence {
    fn new(blocks: u64, hot: bool) -> Sequence {
        Sequence { random: Random::new(5), blocks, hot }
    }
}

impl Iterator for Sequence {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let hot_blocks = (self.blocks / 10).max(1);
        Some(match self.hot {
            false => self.random.below(self.blocks),
            true if self.random.below(10) < HOT_OF_TEN => self.random.below(hot_blocks),
            true => hot_blocks + self.random.below(self.blocks - hot_blocks),
        })
    }
}

/// Writes the file in order and fsyncs it.
pub(super) fn fill(path: &Path, blocks: u64) -> Result<Outcome> {
    let mut contents = Contents::new();
    let started = Instant::now();
    let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    for index in 0..blocks {
        file.write_all(contents.block(index, 0)).with_context(|| format!("write block {index} of {blocks}"))?;
    }
    file.sync_all().context("fsync the file")?;
    Ok(outcome([("seconds", started.elapsed().as_secs_f64())]))
}

/// The overwrites to make.
pub(super) struct Overwrites {
    /// The file's blocks.
    pub blocks: u64,
    /// Writes that earlier calls made.
    pub from: u64,
    /// Writes to make.
    pub writes: u64,
    /// Nine of ten writes go to the first tenth of the blocks.
    pub hot: bool,
    /// Ends after this time, even if there are writes left.
    pub seconds_max: u64,
}

/// Overwrites blocks in an order that looks random.
pub(super) fn overwrite(path: &Path, what: &Overwrites) -> Result<Outcome> {
    let mut contents = Contents::new();
    let file = OpenOptions::new().write(true).open(path).with_context(|| format!("open {}", path.display()))?;
    let started = Instant::now();
    let mut done = 0;
    for (number, index) in (1..).zip(Sequence::new(what.blocks, what.hot)).skip(what.from as usize) {
        if done == what.writes || started.elapsed() >= Duration::from_secs(what.seconds_max) {
            break;
        }
        file.write_all_at(contents.block(index, number), index * BLOCK_BYTES as u64)
            .with_context(|| format!("overwrite {number}, of block {index}"))?;
        done += 1;
        if done % WRITES_PER_FSYNC == 0 {
            file.sync_all().with_context(|| format!("fsync after overwrite {number}"))?;
        }
    }
    file.sync_all().context("fsync at the end")?;
    Ok(outcome([("writes", done as f64), ("seconds", started.elapsed().as_secs_f64())]))
}

/// Reads the file, and compares every byte with the result of this many overwrites.
pub(super) fn check(path: &Path, bytes: u64, writes: u64, hot: bool) -> Result<Outcome> {
    let blocks = bytes.div_ceil(BLOCK_BYTES as u64);
    let mut last_write = vec![0; blocks as usize];
    for (number, index) in (1..=writes).zip(Sequence::new(blocks, hot)) {
        last_write[index as usize] = number;
    }
    let mut contents = Contents::new();
    let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let size = file.metadata().context("size of the file")?.len();
    ensure!(size == bytes, "{} has {size} bytes, not {bytes}", path.display());
    let mut buffer = vec![0; BLOCK_BYTES];
    for (index, write) in (0..).zip(last_write) {
        let len = BLOCK_BYTES.min((bytes - index * BLOCK_BYTES as u64) as usize);
        file.read_exact(&mut buffer[..len]).with_context(|| format!("read block {index} of {}", path.display()))?;
        let wanted = contents.block(index, write);
        ensure!(
            buffer[..len] == wanted[..len],
            "block {index} of {} does not hold what write {write} wrote",
            path.display()
        );
    }
    Ok(outcome([("bytes", bytes as f64)]))
}

/// Writes a new file until there is no space left. The error must come from write: fsync and close
/// succeed.
pub(super) fn fill_up(path: &Path) -> Result<Outcome> {
    let mut contents = Contents::new();
    let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    let mut bytes = 0;
    loop {
        let (index, within) = (bytes / BLOCK_BYTES as u64, bytes as usize % BLOCK_BYTES);
        match file.write(&contents.block(index, 0)[within..]) {
            Ok(written) => bytes += written as u64,
            Err(error) if error.kind() == ErrorKind::StorageFull => break,
            Err(error) => return Err(error).with_context(|| format!("write after {bytes} bytes")),
        }
    }
    file.sync_all().with_context(|| format!("fsync after {bytes} bytes and ENOSPC from write"))?;
    // SAFETY: the descriptor is this function's own, and not used again.
    let closed = unsafe { libc::close(file.into_raw_fd()) };
    ensure!(closed == 0, "close after ENOSPC from write: {}", std::io::Error::last_os_error());
    Ok(outcome([("bytes", bytes as f64)]))
}

/// Removes a file and writes another one of this many blocks, repeatedly until it succeeds.
pub(super) fn make_room(remove: &Path, write: &Path, blocks: u64, seconds_max: u64) -> Result<Outcome> {
    let started = Instant::now();
    fs::remove_file(remove).with_context(|| format!("remove {}", remove.display()))?;
    loop {
        let Err(error) = fill(write, blocks) else { break };
        let full = error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::StorageFull);
        ensure!(full && started.elapsed() < Duration::from_secs(seconds_max), "room was not made: {error:#}");
        std::thread::sleep(ROOM_PAUSE);
    }
    Ok(outcome([("seconds", started.elapsed().as_secs_f64())]))
}

/// The figures of statvfs for the file system, as `df` shows them.
pub(super) fn space(dir: &Path) -> Result<Outcome> {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::CString::new(dir.as_os_str().as_bytes()).context("folder with a NUL in its name")?;
    // SAFETY: the name is a C string and the structure, for which zero is valid, lives through the
    // call.
    let (result, stat) = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(name.as_ptr(), &mut stat), stat)
    };
    ensure!(result == 0, "statvfs {}: {}", dir.display(), std::io::Error::last_os_error());
    let bytes = |blocks: u64| (blocks * stat.f_frsize) as f64;
    Ok(outcome([("total_bytes", bytes(stat.f_blocks)), ("available_bytes", bytes(stat.f_bavail))]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_overwritten_in_two_parts_is_checked_byte_for_byte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for hot in [false, true] {
            let (blocks, bytes) = (12, 12 * BLOCK_BYTES as u64);
            fill(&path, blocks).unwrap();
            check(&path, bytes, 0, hot).unwrap();
            for from in [0, 60] {
                let part = Overwrites { blocks, from, writes: 60, hot, seconds_max: 100 };
                assert_eq!(overwrite(&path, &part).unwrap()["writes"], 60.0);
            }
            check(&path, bytes, 120, hot).unwrap();
            assert!(check(&path, bytes, 119, hot).is_err(), "a write less");
            assert!(check(&path, bytes - 1, 120, hot).is_err(), "a byte less");
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(b"x", bytes - 3).unwrap();
            assert!(check(&path, bytes, 120, hot).is_err(), "a wrong byte");
        }
    }

    #[test]
    fn hot_blocks_get_nine_writes_of_ten() {
        let hot = Sequence::new(100, true).take(10_000).filter(|index| *index < 10).count();
        assert!((8_800..9_200).contains(&hot), "{hot}");
        assert!(Sequence::new(100, true).take(10_000).all(|index| index < 100));
        let even = Sequence::new(100, false).take(10_000).filter(|index| *index < 10).count();
        assert!((800..1_200).contains(&even), "{even}");
    }

    #[test]
    fn room_is_made_by_removing() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        fill(&old, 1).unwrap();
        make_room(&old, &new, 2, 0).unwrap();
        assert!(!old.exists());
        check(&new, 2 * BLOCK_BYTES as u64, 0, false).unwrap();
    }

    #[test]
    fn space_is_that_of_the_file_system() {
        let space = space(Path::new("/")).unwrap();
        assert!(space["total_bytes"] >= space["available_bytes"] && space["available_bytes"] >= 0.0);
    }
}
