//! The newest maps that a node which has joined has seen: `maps` in its data folder. After a start
//! they say where other nodes are, which know where the first node is.
//!
//! They are a hint: the voters decide, and the stores have what they decided.

use crate::private;
use anyhow::Context;
use bytes::Bytes;
use cluster::FsConfig;
use std::path::Path;
use types::Maps;
use types::codec::{Put, Reader};

/// Name of the file.
const FILE: &str = "maps";

/// Keeps maps, durably.
pub fn keep(folder: &Path, maps: &Maps) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    bytes.put_u64(maps.epoch);
    bytes.extend_from_slice(&maps.bytes);
    private::put(folder, FILE, &bytes).context(FILE)
}

/// The maps that were kept. `None` if there are none, or they cannot be read: others are told soon.
pub fn kept(folder: &Path) -> Option<(Maps, FsConfig)> {
    let bytes = std::fs::read(folder.join(FILE)).ok()?;
    let epoch = Reader::new(&bytes).u64("epoch of the maps").ok()?;
    let maps = Maps { epoch, bytes: Bytes::copy_from_slice(bytes.get(8..)?) };
    let config = FsConfig::decode(&maps.bytes).ok()?;
    Some((maps, config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::joined::tests::config;

    #[test]
    fn maps_are_kept_and_damaged_ones_left_out() {
        let folder = tempfile::tempdir().unwrap();
        assert!(kept(folder.path()).is_none());
        let maps = Maps { epoch: 7, bytes: config().encode() };
        keep(folder.path(), &maps).unwrap();
        assert_eq!(kept(folder.path()), Some((maps.clone(), config())));
        let path = folder.path().join(FILE);
        let whole = std::fs::read(&path).unwrap();
        for len in 0..whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            assert!(kept(folder.path()).is_none(), "{len}");
        }
    }
}
