//! Traces.

use trace::Record;
use trace::format::{Reader, TraceError, Writer};

/// What comes before what is compressed, of a trace that says nothing of when it began, and lacks
/// nothing.
pub const HEADER: &[u8] = b"starlint\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x8e\x76\xa6\x3d";
/// Bytes after it.
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

/// Reads a trace; what is good is read again as it is written.
fn check(bytes: &[u8]) -> bool {
    let Ok((source, records)) = read(bytes) else { return false };
    let mut writer = Writer::new(Vec::new(), &source).expect("begun");
    records.iter().for_each(|record| writer.add(record).expect("added"));
    let again = read(&writer.finish().expect("ended")).expect("read again");
    assert_eq!(again, (source, records));
    true
}

/// Reads these bytes as a trace; as what is compressed in one, which the checksum calls whole; and
/// as what is to be compressed.
pub fn trace(bytes: &[u8]) -> bool {
    let framed = |frame: &[u8]| [HEADER, frame, &checksum(frame).to_le_bytes()].concat();
    let compressed = zstd::bulk::compress(bytes, 1).expect("compressed");
    // Each of them, whether or not one before it is good.
    [bytes, &framed(bytes), &framed(&compressed)].map(check).contains(&true)
}
