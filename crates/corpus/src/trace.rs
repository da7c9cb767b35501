//! Traces.

use trace::Record;
use trace::format::{Reader, TraceError, Writer};

/// The header before the compressed part, for a trace with no start time and no lost records.
pub const HEADER: &[u8] = b"starlint\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x8e\x76\xa6\x3d";
/// Bytes after the compressed part.
pub const CHECKSUM_LEN: usize = 4;

fn read(bytes: &[u8]) -> Result<(String, Vec<Record>), TraceError> {
    let reader = Reader::new(bytes)?;
    Ok((reader.source().to_string(), reader.collect::<Result<_, _>>()?))
}

/// CRC-32C.
fn checksum(bytes: &[u8]) -> u32 {
    let shifted = |sum: u32, _| (sum >> 1) ^ (0x82f6_3b78 & (sum & 1).wrapping_neg());
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), shifted))
}

/// Reads a trace; a valid one is written and read again.
fn check(bytes: &[u8]) -> bool {
    let Ok((source, records)) = read(bytes) else { return false };
    let mut writer = Writer::new(Vec::new(), &source).expect("begun");
    records.iter().for_each(|record| writer.add(record).expect("added"));
    let again = read(&writer.finish().expect("ended")).expect("read again");
    assert_eq!(again, (source, records));
    true
}

/// Reads the bytes as a trace, as the compressed part of a trace with a correct checksum, and as
/// the uncompressed part.
pub fn trace(bytes: &[u8]) -> bool {
    let framed = |frame: &[u8]| [HEADER, frame, &checksum(frame).to_le_bytes()].concat();
    let compressed = zstd::bulk::compress(bytes, 1).expect("compressed");
    // All three are checked, even after one that is valid.
    [bytes, &framed(bytes), &framed(&compressed)].map(check).contains(&true)
}
