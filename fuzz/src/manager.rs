//! The records of a manager's own log, its directories of them, and the manager map.

use manager::ManagerMap;
use manager::imap::Piece;
use manager::index_node::{IndexNode, decode_leaf, encode_leaf};
use manager::record::Directory;
use manager::root::{Root, RootRecord, decode_part, encode_part};
use types::codec::Reader;

/// Decodes a record. The first byte says which kind, and for files the block size: 4 KiB, doubled up to eight times. What the
/// reader of a record knows already (whose it is) is taken from the record.
pub fn record(bytes: &[u8]) -> bool {
    let Some((kind, record)) = bytes.split_first() else { return false };
    let block_size = 4096 << (kind >> 4).min(8);
    let owner = |at: usize| {
        let bytes = record.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    match kind % 8 {
        0 => {
            let Ok(directory) = Directory::decode(record) else { return false };
            assert_eq!(directory.encode(), record);
        }
        1 => return node(record, block_size),
        2 => {
            let (file, index) = (owner(2), owner(10));
            let Ok(leaf) = decode_leaf(record, file, index, block_size) else { return false };
            assert_eq!(decode_leaf(&encode_leaf(file, index, &leaf), file, index, block_size), Ok(leaf));
        }
        3 => {
            let key = owner(2);
            let Ok(piece) = Piece::decode(record, key) else { return false };
            assert_eq!(Piece::decode(&piece.encode(key), key), Ok(piece));
        }
        4 => {
            let part = owner(2);
            let Ok(body) = decode_part(record, part) else { return false };
            assert_eq!(encode_part(part, body), record);
        }
        5 => {
            let Ok(root) = RootRecord::decode(record) else { return false };
            assert_eq!(root.encode(), record);
        }
        6 => {
            let Ok(root) = Root::decode(record) else { return false };
            let again = root.encode();
            assert_eq!(Root::decode(&again).map(|root| root.encode()), Ok(again));
        }
        _ => {
            let mut reader = Reader::new(record);
            let Ok(map) = ManagerMap::decode(&mut reader) else { return false };
            let mut again = Vec::new();
            map.encode(&mut again);
            assert_eq!(again, record[..record.len() - reader.remaining()]);
        }
    }
    true
}

fn node(record: &[u8], block_size: u32) -> bool {
    let Ok((node, homes)) = IndexNode::decode(record, block_size) else { return false };
    let again = node.encode(Some(&homes).filter(|homes| !homes.is_empty()));
    let located = node.locate(0, 64);
    assert!(located.extents.windows(2).all(|two| two[0].end() <= two[1].first));
    assert_eq!(IndexNode::decode(&again, block_size), Ok((node, homes)));
    true
}
