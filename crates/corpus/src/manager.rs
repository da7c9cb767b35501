//! Deltas, the records of a manager's own log, the directories of these records, the manager map,
//! and the messages between clients and managers, and between nodes about managers.

use manager::admin_wire::{HostAnswer, HostRequest};
use manager::index_node::{IndexNode, decode_leaf, encode_leaf};
use manager::record::{RecordDirectory, Table};
use manager::root::Root;
use manager::tree::page_again;
use manager::wire::{ClientMessage, ManagerAnswer};
use manager::{Delta, ManagerMap};
use striped_log::fragment::CHUNK_LEN;
use types::Extent;
use types::codec::Reader;

/// Decodes a record. The first byte gives the kind, and for files the block size: 4 KiB, doubled up
/// to eight times. What a real reader knows beforehand (whose record it is) is taken from the
/// record.
pub fn record(bytes: &[u8]) -> bool {
    let Some((kind, record)) = bytes.split_first() else { return false };
    let block_size = 4096 << (kind >> 4).min(8);
    let owner = |at: usize| {
        let bytes = record.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    match kind % 8 {
        0 => {
            let Ok(directory) = RecordDirectory::decode(record) else { return false };
            assert_eq!(directory.encode(), record);
        }
        1 => return node(record, block_size),
        2 => {
            let (file, index) = (owner(2), owner(10));
            let Ok(leaf) = decode_leaf(record, file, index, block_size) else { return false };
            assert_eq!(decode_leaf(&encode_leaf(file, index, &leaf), file, index, block_size), Ok(leaf));
        }
        // The first byte of a page's record gives table and level.
        3 | 4 => {
            let of = record.first().copied().unwrap_or(0).wrapping_sub(64);
            let Some(&table) = Table::ALL.get(usize::from(of / 16)) else { return false };
            let Ok(again) = page_again(record, table, of % 16) else { return false };
            assert_eq!(again, record);
        }
        5 | 6 => {
            let Ok(root) = Root::decode(record, 8) else { return false };
            let again = root.encode();
            assert_eq!(Root::decode(&again, 8).map(|root| root.encode()), Ok(again));
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

/// Decodes a delta section.
pub fn deltas(bytes: &[u8]) -> bool {
    let Ok(deltas) = Delta::decode_all(bytes) else { return false };
    let mut again = Vec::new();
    for delta in &deltas {
        delta.encode(&mut again);
        if let Delta::Blocks { extent, .. } | Delta::Move { from: extent, .. } = delta {
            slices_stay_within(extent);
        }
    }
    assert_eq!(again, bytes);
    true
}

fn slices_stay_within(extent: &Extent) {
    let middle = extent.first + u64::from(extent.count / 2);
    for (from, to) in [(0, u64::MAX), (0, middle), (middle, u64::MAX), (middle, middle + 1)] {
        for block_size in [1, CHUNK_LEN, u32::MAX] {
            if let Some(part) = extent.slice(from, to, block_size) {
                let end = |e: &Extent| u64::from(e.addr.offset) + u64::from(e.addr.len);
                assert!(part.addr.offset >= extent.addr.offset && end(&part) <= end(extent));
                extent.continues(&part, block_size);
            }
        }
    }
}

/// Decodes a message between a client and a manager: a byte that is even for what clients send and
/// odd for an answer, then the message.
pub fn message(bytes: &[u8]) -> bool {
    let Some((kind, message)) = bytes.split_first() else { return false };
    let again = match kind % 2 {
        0 => ClientMessage::decode(message).map(|decoded| decoded.encode()),
        _ => ManagerAnswer::decode(message).map(|decoded| decoded.encode()),
    };
    let Ok(again) = again else { return false };
    assert_eq!(again, message);
    true
}

/// Decodes a message about the managers of another node. The first byte is even for a request and
/// odd for an answer.
pub fn host_messages(bytes: &[u8]) -> bool {
    let Some((kind, rest)) = bytes.split_first() else { return false };
    // Lists may come in another order than they are written in.
    if kind % 2 == 0 {
        let Ok((session, request)) = HostRequest::decode(rest) else { return false };
        let again = request.encode(session);
        assert_eq!(HostRequest::decode(&again), Ok((session, request)));
    } else {
        let Ok(answer) = HostAnswer::decode(rest) else { return false };
        assert_eq!(HostAnswer::decode(&answer.encode()), Ok(answer));
    }
    true
}
