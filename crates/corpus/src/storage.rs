//! A store's checkpoints and fragments on disk, and the messages of the storage protocol.

use bytes::Bytes;
use record_log::checkpoint_pair::HEAD_LEN;
use storage::checkpoint::{Body, StoreHead};
use storage::pages::{PAGE, PAGES_MAX};
use storage::space::PageSpace;
use storage::torn_tail::walk;
use storage::wire::{StoreAnswer, StoreRequest};
use striped_log::fragment::{CHUNK_LEN, HEADER_LEN, crc32c};
use types::FsUuid;

/// Corrects the checksum in the last four bytes, so that its check passes.
fn repair(bytes: &mut [u8]) {
    let (body, sum) = bytes.split_at_mut(bytes.len() - 4);
    sum.copy_from_slice(&crc32c(body).to_le_bytes());
}

/// Decodes a checkpoint. The first byte is even for the body and odd for the head, whose checksum
/// is corrected first. A head of an older version is written again with this program's.
pub fn checkpoint(bytes: &[u8]) -> bool {
    let Some((kind, rest)) = bytes.split_first() else { return false };
    if kind % 2 == 0 {
        let fs = FsUuid([7; 16]);
        let Ok((body, _)) = Body::decode(rest, fs) else { return false };
        let again = Body::decode(&body.encode(), fs).map(|(body, _)| body);
        assert_eq!(again.as_ref(), Ok(&body));
        let live: Vec<_> = body.index.iter().map(|(_, held)| held.place).collect();
        let pages: u64 = live.iter().map(|place| u64::from(place.len)).sum();
        if let Ok(space) = PageSpace::recover(body.page_count, PAGES_MAX, live) {
            assert_eq!(space.used_bytes(), pages * u64::from(PAGE));
        }
    } else {
        let mut head = rest.to_vec();
        head.resize(HEAD_LEN, 0);
        repair(&mut head);
        let Ok(decoded) = StoreHead::decode(&head) else { return false };
        head[8..10].copy_from_slice(&storage::checkpoint::VERSION.to_le_bytes());
        repair(&mut head);
        assert_eq!(decoded.encode()[..], head[..]);
    }
    true
}

/// Looks for fragments in an extent as a crash may leave it: pages, the last one filled up with
/// zeroes. Checksums of headers are corrected first.
pub fn extent(bytes: &[u8]) -> bool {
    let mut pages = bytes.to_vec();
    pages.resize(bytes.len().next_multiple_of(PAGE as usize), 0);
    pages.chunks_exact_mut(PAGE as usize).for_each(|page| repair(&mut page[..HEADER_LEN]));
    let (found, end) = walk(&pages, |_, _| true);
    let mut begin = 0;
    for fragment in &found {
        assert_eq!(fragment.offset, begin, "fragments follow each other");
        let payload = fragment.payload_range();
        begin = fragment.place(0).end() * PAGE;
        assert!(payload.end <= begin as usize && begin as usize <= pages.len());
        let mut chunks = pages[payload].chunks(CHUNK_LEN as usize).zip(0..);
        assert_eq!(fragment.intact, chunks.all(|(chunk, at)| fragment.header.verify_chunk(at, chunk)));
    }
    assert_eq!(end, begin);
    !found.is_empty()
}

/// Decodes a message: a byte that is even for a request and odd for an answer, the head's length
/// (u16), the head, the tail.
pub fn message(bytes: &[u8]) -> bool {
    let [kind, low, high, rest @ ..] = bytes else { return false };
    let head_len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
    let (head, tail) = (&rest[..head_len], Bytes::copy_from_slice(&rest[head_len..]));
    if kind % 2 == 0 {
        let Ok((to, request)) = StoreRequest::decode(head, tail.clone()) else { return false };
        let again = request.encode(to);
        assert_eq!((&again.head[..], &again.tail), (head, &tail));
    } else {
        let Ok(answer) = StoreAnswer::decode(head, tail) else { return false };
        let again = answer.encode();
        assert_eq!(StoreAnswer::decode(&again.head, again.tail), Ok(answer));
    }
    true
}
