//! Fragment headers: accepted bytes encode to the same bytes again.

use striped_log::fragment::{CHUNK_LEN, FragmentHeader, HEADER_LEN, crc32c};

/// Decodes a fragment header as it is, and again with a correct checksum, so that its check passes.
pub fn fragment_header(bytes: &[u8]) -> bool {
    let as_it_is = accepted_header(bytes);
    let mut repaired = bytes.to_vec();
    repaired.resize(repaired.len().max(HEADER_LEN), 0);
    let checksum = crc32c(&repaired[..HEADER_LEN - 4]).to_le_bytes();
    repaired[HEADER_LEN - 4..HEADER_LEN].copy_from_slice(&checksum);
    let with_checksum = accepted_header(&repaired);
    assert!(with_checksum || !as_it_is, "the checksum that was accepted is not the one");
    with_checksum
}

fn accepted_header(bytes: &[u8]) -> bool {
    let Ok((header, generation)) = FragmentHeader::decode_with_generation(bytes) else { return false };
    assert_eq!(header.encode_with_generation(generation)[..], bytes[..HEADER_LEN]);
    let g = &header.geometry;
    let total: u32 = (0..g.k).map(|i| g.payload_range(i).len() as u32).sum();
    assert_eq!(total, g.payload_len);
    for chunk in 0..g.payload_len.div_ceil(CHUNK_LEN) {
        let (index, inner) = g.fragment_of_chunk(chunk);
        assert!(inner * CHUNK_LEN < g.data_len(index), "chunk {chunk} is beyond its fragment");
    }
    assert!(header.member().is_some());
    for chunk in 0..=header.chunk_crcs.len() {
        header.verify_chunk(chunk, bytes);
    }
    true
}
