//! Heads of snapshots, and logs of records.

use bytes::Bytes;
use record_log::checkpoint_pair::{HEAD_LEN, crc32c};
use record_log::format::{FRAME_HEADER_LEN, LogHead, frame_len, put_frame, records};

/// The generation of the records to look for.
const GENERATION: u64 = 9;

/// Decodes a log after an even first byte, or the head of a snapshot after an odd one. Checksums
/// are corrected first.
pub fn log(bytes: &[u8]) -> bool {
    let Some((kind, rest)) = bytes.split_first() else { return false };
    if kind % 2 == 0 {
        return frames(repaired(rest));
    }
    let mut head = rest.to_vec();
    head.resize(HEAD_LEN, 0);
    let sum = crc32c(&head[..HEAD_LEN - 4]).to_le_bytes();
    head[HEAD_LEN - 4..].copy_from_slice(&sum);
    let Ok(decoded) = LogHead::decode(&head) else { return false };
    assert_eq!(decoded.encode()[..], head[..]);
    true
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// The log with correct checksums in the frames that follow each other from its start.
fn repaired(bytes: &[u8]) -> Vec<u8> {
    let (mut log, mut at) = (bytes.to_vec(), 0);
    while let (Some(len), Some(durable)) = (number(&log, at), number(&log, at + 8)) {
        let start = at + FRAME_HEADER_LEN;
        let len = u32::from_le_bytes(len) as usize;
        let Some(record) = log.get(start..start.saturating_add(len)) else { break };
        let mut frame = Vec::new();
        put_frame(&mut frame, GENERATION, at as u64, u64::from_le_bytes(durable), record);
        log[at + 4..at + 8].copy_from_slice(&frame[4..8]);
        at += frame_len(len);
    }
    log
}

fn frames(log: Vec<u8>) -> bool {
    let log = Bytes::from(log);
    let Ok(found) = records(&log, GENERATION) else { return false };
    let mut again = Vec::new();
    for record in &found {
        let at = again.len();
        let durable = number(&log, at + 8).map_or(0, u64::from_le_bytes);
        put_frame(&mut again, GENERATION, at as u64, durable, record);
        assert_eq!(again[at..at + FRAME_HEADER_LEN + record.len()], log[at..at + FRAME_HEADER_LEN + record.len()]);
    }
    // None of them belongs to another snapshot.
    assert!(records(&log, GENERATION + 1).is_ok_and(|others| others.is_empty()));
    !found.is_empty()
}
