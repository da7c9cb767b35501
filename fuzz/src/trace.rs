//! Traces.

use trace::Record;
use trace::format::{Reader, TraceError, Writer};

/// What comes before what is compressed.
pub const HEADER: &[u8] = b"starlint\x01\0";

fn read(bytes: &[u8]) -> Result<(String, Vec<Record>), TraceError> {
    let reader = Reader::new(bytes)?;
    Ok((reader.source().to_string(), reader.collect::<Result<_, _>>()?))
}

/// Reads the trace of which this is what is compressed.
pub fn trace(bytes: &[u8]) -> bool {
    let compressed = zstd::bulk::compress(bytes, 1).expect("compressed");
    let Ok((source, records)) = read(&[HEADER, &compressed].concat()) else { return false };
    let mut writer = Writer::new(Vec::new(), &source).expect("begun");
    records.iter().for_each(|record| writer.add(record).expect("added"));
    let again = read(&writer.finish().expect("ended")).expect("read again");
    assert_eq!(again, (source, records));
    true
}
