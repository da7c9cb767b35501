//! Assertions about encoders and decoders, for the tests of every crate.

use crate::codec::{DecodeError, Reader};
use std::fmt::Debug;

type Decode<T> = fn(&mut Reader<'_>) -> Result<T, DecodeError>;

fn encoded<T>(value: &T, encode: fn(&T, &mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(value, &mut bytes);
    bytes
}

/// Asserts that an encoded value decodes to itself, and that decoding reads exactly its bytes.
pub fn assert_round_trip<T: PartialEq + Debug>(value: &T, encode: fn(&T, &mut Vec<u8>), decode: Decode<T>) {
    let mut bytes = encoded(value, encode);
    let len = bytes.len();
    bytes.extend_from_slice(b"more");
    let mut r = Reader::new(&bytes);
    assert_eq!(decode(&mut r).as_ref(), Ok(value));
    assert_eq!(r.remaining(), bytes.len() - len);
}

/// Asserts that every proper prefix of an encoding is refused as truncated.
pub fn assert_truncations_are_refused<T: PartialEq + Debug>(
    value: &T,
    encode: fn(&T, &mut Vec<u8>),
    decode: Decode<T>,
) {
    let bytes = encoded(value, encode);
    for len in 0..bytes.len() {
        let cut = decode(&mut Reader::new(&bytes[..len]));
        assert!(matches!(cut, Err(DecodeError::Truncated(_))), "{len} of {} bytes: {cut:?}", bytes.len());
    }
}

/// Asserts that decoders accept canonical encodings only: after a change of any one byte, decoding
/// fails, or gives a value that encodes to exactly the bytes that were read.
pub fn assert_mutations_are_canonical<T>(bytes: &[u8], encode: fn(&T, &mut Vec<u8>), decode: Decode<T>) {
    for at in 0..bytes.len() {
        for value in 0..=255 {
            let mut mutated = bytes.to_vec();
            mutated[at] = value;
            let mut r = Reader::new(&mutated);
            if let Ok(decoded) = decode(&mut r) {
                let read = mutated.len() - r.remaining();
                assert_eq!(encoded(&decoded, encode), &mutated[..read]);
            }
        }
    }
}
