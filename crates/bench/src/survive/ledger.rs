//! What is synced: the names of files whose fsync has returned, in files on the local disk.
//!
//! A name is noted only after its fsync, and by one write, so what is noted must be found later,
//! although its writer or its node was killed right after. The contents of a file follow from its
//! name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::work::Random;

/// Sizes of files in bytes: within one block, and of several.
const SIZES_BYTES: [usize; 3] = [10, 5000, 70_000];

/// The names that programs on one node have noted. Several programs may append to it.
pub struct Ledger {
    file: File,
    /// Bytes that were read.
    read_bytes: u64,
    names: Vec<String>,
}

impl Ledger {
    /// Opens the ledger of a node, and makes it if it is not there.
    pub fn open(folder: &Path, node: usize) -> io::Result<Ledger> {
        fs::create_dir_all(folder)?;
        let file = OpenOptions::new().create(true).read(true).append(true).open(path(folder, node))?;
        Ok(Ledger { file, read_bytes: 0, names: Vec::new() })
    }

    /// Notes that a file is synced; `name` is its path below the mount point.
    pub fn note(&mut self, name: &str) -> io::Result<()> {
        self.file.write_all(format!("{name}\n").as_bytes())
    }

    /// All names so far, in order.
    pub fn names(&mut self) -> io::Result<&[String]> {
        self.file.seek(SeekFrom::Start(self.read_bytes))?;
        let mut text = String::new();
        self.file.read_to_string(&mut text)?;
        // Another program's note may be there in part.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.names.extend(text[..whole].lines().map(str::to_owned));
        self.read_bytes += whole as u64;
        Ok(&self.names)
    }
}

fn path(folder: &Path, node: usize) -> PathBuf {
    folder.join(format!("synced{node}"))
}

/// The contents of the file with this name.
pub fn contents(name: &str) -> Vec<u8> {
    // FNV-1a.
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut random = Random::new(name.bytes().fold(0xcbf2_9ce4_8422_2325, hash));
    let mut bytes = vec![0; SIZES_BYTES[random.below(SIZES_BYTES.len() as u64) as usize]];
    random.fill(&mut bytes);
    bytes
}

/// True if it is this node's turn to check the `index`th file that `writer` has synced: the others
/// take turns, and a node never checks its own.
pub fn checks(reader: usize, writer: usize, index: usize, nodes: usize) -> bool {
    (writer + 1 + index % (nodes - 1)) % nodes == reader
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_whole_and_only_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Ledger::open(dir.path(), 1).unwrap();
        let mut reader = Ledger::open(dir.path(), 1).unwrap();
        writer.note("a").unwrap();
        writer.file.write_all(b"b").unwrap();
        assert_eq!(reader.names().unwrap(), ["a"]);
        writer.file.write_all(b"c\n").unwrap();
        assert_eq!(reader.names().unwrap(), ["a", "bc"]);
        assert!(Ledger::open(dir.path(), 2).unwrap().names().unwrap().is_empty());
    }

    #[test]
    fn contents_follow_from_the_name() {
        assert_eq!(contents("a"), contents("a"));
        assert_ne!(contents("a"), contents("b"));
        let lengths: std::collections::BTreeSet<usize> = (0..100).map(|n| contents(&n.to_string()).len()).collect();
        assert_eq!(lengths.len(), SIZES_BYTES.len());
    }

    #[test]
    fn each_file_is_checked_by_one_other_node() {
        for writer in 0..4 {
            for index in 0..20 {
                let readers: Vec<usize> = (0..4).filter(|reader| checks(*reader, writer, index, 4)).collect();
                assert!(readers.len() == 1 && readers[0] != writer);
            }
        }
    }
}
