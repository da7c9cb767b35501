//! Little-endian encoding into byte vectors and bounded decoding out of slices.
//!
//! Every on-disk and on-wire structure of Starling goes through these two types. A [`Reader`] never
//! panics: running out of bytes, an impossible length or an unknown tag is a [`DecodeError`] that
//! names what was being read.

use thiserror::Error;

/// Why bytes from a disk or a network cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes ended inside the named field.
    #[error("truncated inside {0}")]
    Truncated(&'static str),
    /// The named field holds a value that no encoder writes.
    #[error("invalid {0}")]
    Invalid(&'static str),
    /// A version that this program does not read.
    #[error("{what} has version {found}, this program's is {known}: use the version of starling that wrote it")]
    Version {
        /// The structure.
        what: &'static str,
        /// The version found.
        found: u16,
        /// The newest version this program reads.
        known: u16,
    },
    /// A checksum does not match.
    #[error("checksum mismatch in {0}")]
    Checksum(&'static str),
}

/// Appends fixed-width little-endian values to a byte vector.
pub trait Put {
    /// Appends one byte.
    fn put_u8(&mut self, v: u8);
    /// Appends two bytes.
    fn put_u16(&mut self, v: u16);
    /// Appends four bytes.
    fn put_u32(&mut self, v: u32);
    /// Appends eight bytes.
    fn put_u64(&mut self, v: u64);
    /// Appends eight bytes, signed.
    fn put_i64(&mut self, v: i64);
    /// Appends a number, seven bits at a time, the lowest first: all bytes but the last have the
    /// highest bit set.
    fn put_number(&mut self, v: u64);
    /// Appends a u32 length and the bytes. The caller keeps `v` below 4 GiB.
    fn put_blob(&mut self, v: &[u8]);
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, v: u8) {
        self.push(v);
    }
    fn put_u16(&mut self, v: u16) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_u32(&mut self, v: u32) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_u64(&mut self, v: u64) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_i64(&mut self, v: i64) {
        self.extend_from_slice(&v.to_le_bytes());
    }
    fn put_number(&mut self, mut v: u64) {
        while v >= 0x80 {
            self.push(v as u8 | 0x80);
            v >>= 7;
        }
        self.push(v as u8);
    }
    fn put_blob(&mut self, v: &[u8]) {
        self.put_u32(v.len() as u32);
        self.extend_from_slice(v);
    }
}

/// Reads fixed-width little-endian values from a slice.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the beginning of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }
    /// Bytes not yet read.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }
    /// True if everything was read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
    /// The next `n` bytes.
    pub fn take(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        if n > self.rest.len() {
            return Err(DecodeError::Truncated(what));
        }
        let (head, tail) = self.rest.split_at(n);
        self.rest = tail;
        Ok(head)
    }
    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }
    /// One byte.
    pub fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        Ok(self.array::<1>(what)?[0])
    }
    /// Two bytes.
    pub fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }
    /// Four bytes.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }
    /// Eight bytes.
    pub fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }
    /// Eight bytes, signed.
    pub fn i64(&mut self, what: &'static str) -> Result<i64, DecodeError> {
        Ok(i64::from_le_bytes(self.array(what)?))
    }
    /// A number as [`Put::put_number`] writes it. Any other encoding of it is refused.
    pub fn number(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(what)?;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part || (byte == 0 && shift > 0) {
                break;
            }
            value |= part << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Invalid(what))
    }
    /// A u32 length, then that many bytes.
    pub fn blob(&mut self, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let n = self.u32(what)? as usize;
        self.take(n, what)
    }
    /// A u32 count of elements that take at least `each` bytes. A count that exceeds the rest is
    /// refused, so that a rotten one cannot ask for absurd memory.
    pub fn count(&mut self, each: usize, what: &'static str) -> Result<usize, DecodeError> {
        let n = self.u32(what)? as usize;
        if n.saturating_mul(each.max(1)) > self.rest.len() {
            return Err(DecodeError::Truncated(what));
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_little_endian_and_come_back() {
        let mut bytes = Vec::new();
        bytes.put_u8(1);
        bytes.put_u16(0x0203);
        bytes.put_u32(0x0405_0607);
        bytes.put_u64(0x0809_0a0b_0c0d_0e0f);
        bytes.put_i64(-2);
        bytes.put_blob(b"blob");
        let expected = b"\x01\x03\x02\x07\x06\x05\x04\x0f\x0e\x0d\x0c\x0b\x0a\x09\x08\
            \xfe\xff\xff\xff\xff\xff\xff\xff\x04\0\0\0blob";
        assert_eq!(bytes, expected);
        let mut r = Reader::new(&bytes);
        assert_eq!((r.u8("a"), r.u16("b"), r.u32("c")), (Ok(1), Ok(0x0203), Ok(0x0405_0607)));
        assert_eq!((r.u64("d"), r.i64("e"), r.blob("f")), (Ok(0x0809_0a0b_0c0d_0e0f), Ok(-2), Ok(&b"blob"[..])));
        assert!(r.is_empty());
        assert_eq!(r.u8("g"), Err(DecodeError::Truncated("g")));
    }

    #[test]
    fn a_failed_read_takes_nothing() {
        let mut r = Reader::new(&[1, 2, 3]);
        assert_eq!(r.u32("long"), Err(DecodeError::Truncated("long")));
        assert_eq!((r.remaining(), r.u16("short")), (3, Ok(0x0201)));
    }

    #[test]
    fn counts_are_bounded_by_what_is_left() {
        let mut bytes = Vec::new();
        bytes.put_u32(3);
        bytes.extend_from_slice(&[0; 12]);
        assert_eq!(Reader::new(&bytes).count(4, "n"), Ok(3));
        assert_eq!(Reader::new(&bytes).count(5, "n"), Err(DecodeError::Truncated("n")));
        assert_eq!(Reader::new(&[0xff; 20]).count(0, "n"), Err(DecodeError::Truncated("n")));
        assert_eq!(Reader::new(&[0xff; 20]).count(usize::MAX, "n"), Err(DecodeError::Truncated("n")));
    }
}
