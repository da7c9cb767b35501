//! Inputs that have several parts.

/// Splits the input into pieces, each after its length (u16); the last may be short.
pub fn parts(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while let [low, high, rest @ ..] = bytes {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (part, rest) = rest.split_at(len);
        parts.push(part);
        bytes = rest;
    }
    parts
}
