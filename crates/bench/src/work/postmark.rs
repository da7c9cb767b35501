//! PostMark (Katcher, NetApp TR3022), rewritten so that it is the same everywhere. It has a pool of
//! small files as on a mail server. Each transaction reads a file or appends to it, and creates or
//! deletes one, with even odds. At the end all files are deleted. The defaults are kept: 512 to
//! 10,240 bytes, system calls of 512 bytes without buffering, one directory, no fsync. The time
//! includes all three phases.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use super::random::Random;
use super::{Outcome, outcome};

const SIZE_MIN: u64 = 512;
const SIZE_MAX: u64 = 10_240;
const CALL_BYTES: usize = 512;

pub(super) fn run(dir: &Path, files: u32, transactions: u32) -> Result<Outcome> {
    fs::create_dir(dir).with_context(|| format!("create {}", dir.display()))?;
    let mut pool = Pool::new(dir);
    let started = Instant::now();
    for _ in 0..files {
        pool.create()?;
    }
    let begun = Instant::now();
    for _ in 0..transactions {
        pool.transaction()?;
    }
    let transaction_seconds = begun.elapsed().as_secs_f64();
    while !pool.files.is_empty() {
        pool.delete()?;
    }
    let seconds = started.elapsed().as_secs_f64();
    fs::remove_dir(dir).with_context(|| format!("remove {}", dir.display()))?;
    Ok(outcome([("seconds", seconds), ("transactions_per_s", f64::from(transactions) / transaction_seconds)]))
}

struct Pool {
    dir: PathBuf,
    random: Random,
    text: Vec<u8>,
    created: u32,
    files: Vec<(PathBuf, u64)>,
}

impl Pool {
    fn new(dir: &Path) -> Pool {
        let mut random = Random::new(42);
        let text = (0..SIZE_MAX).map(|_| b' ' + random.below(95) as u8).collect();
        Pool { dir: dir.to_owned(), random, text, created: 0, files: Vec::new() }
    }

    fn transaction(&mut self) -> Result<()> {
        if !self.files.is_empty() {
            if self.random.below(10) < 5 { self.read()? } else { self.append()? }
        }
        if self.random.below(10) < 5 || self.files.is_empty() { self.create() } else { self.delete() }
    }

    fn create(&mut self) -> Result<()> {
        let size = SIZE_MIN + self.random.below(SIZE_MAX - SIZE_MIN + 1);
        self.created += 1;
        let path = self.dir.join(format!("{}{:06x}", self.created, self.random.below(1 << 24)));
        let mut file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        self.write(&mut file, size).with_context(|| format!("write {}", path.display()))?;
        self.files.push((path, size));
        Ok(())
    }

    fn write(&mut self, file: &mut File, size: u64) -> std::io::Result<()> {
        let start = self.random.below(SIZE_MAX - size + 1) as usize;
        for piece in self.text[start..start + size as usize].chunks(CALL_BYTES) {
            file.write_all(piece)?;
        }
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let index = self.pick();
        let (path, size) = &self.files[index];
        let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        let (mut left, mut buffer) = (*size as usize, [0; CALL_BYTES]);
        while left > 0 {
            let wanted = left.min(CALL_BYTES);
            file.read_exact(&mut buffer[..wanted]).with_context(|| format!("read {}", path.display()))?;
            left -= wanted;
        }
        Ok(())
    }

    fn append(&mut self) -> Result<()> {
        let index = self.pick();
        let (path, size) = self.files[index].clone();
        if size >= SIZE_MAX {
            return Ok(());
        }
        let more = self.random.below(SIZE_MAX - size) + 1;
        let mut file =
            OpenOptions::new().append(true).open(&path).with_context(|| format!("open {}", path.display()))?;
        self.write(&mut file, more).with_context(|| format!("append to {}", path.display()))?;
        self.files[index].1 = size + more;
        Ok(())
    }

    fn delete(&mut self) -> Result<()> {
        let index = self.pick();
        let (path, _) = self.files.swap_remove(index);
        fs::remove_file(&path).with_context(|| format!("delete {}", path.display()))
    }

    fn pick(&mut self) -> usize {
        self.random.below(self.files.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_knows_its_files_exactly() {
        let dir = tempfile::tempdir().unwrap();
        let mut pool = Pool::new(dir.path());
        for _ in 0..20 {
            pool.create().unwrap();
        }
        for _ in 0..300 {
            pool.transaction().unwrap();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), pool.files.len());
        for (path, size) in &pool.files {
            assert_eq!(fs::metadata(path).unwrap().len(), *size);
            assert!((SIZE_MIN..=SIZE_MAX).contains(size));
        }
    }

    #[test]
    fn nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        run(&dir.path().join("pm"), 5, 50).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
