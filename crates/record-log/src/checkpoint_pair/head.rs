//! The bytes of heads. Pure; any bytes may be decoded.
//!
//! ```text
//! head: magic 8 | version u16 | the owner's fields | sequence u64 | generation u64, if the owner has any | body_len u64
//!       | body CRC-32C u32 | zeroes | CRC-32C of the 508 bytes before u32
//! ```

use super::HEAD_LEN;
use bytes::Bytes;
use crc_fast::CrcAlgorithm;
use types::codec::{DecodeError, Put, Reader};

/// Where the head's own checksum is.
const CRC_OFFSET: usize = HEAD_LEN - 4;

/// CRC-32C, of heads and bodies.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Length and checksum of a body, or of its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// In bytes.
    pub len: u64,
    /// CRC-32C.
    pub crc: u32,
}

impl Sum {
    /// The sum of these bytes followed by `more`.
    pub fn with(self, more: &[u8]) -> Sum {
        let len = more.len() as u64;
        let both = |a: u32, b: u32| crc_fast::checksum_combine(CrcAlgorithm::Crc32Iscsi, a.into(), b.into(), len);
        Sum { len: self.len + len, crc: both(self.crc, crc32c(more)) as u32 }
    }
}

/// The kind and owner of a pair of checkpoints, and the fields that the owner adds to heads.
pub trait Owner: Copy {
    /// The first bytes of each head.
    const MAGIC: &'static [u8; 8];
    /// The format of heads and bodies that this program writes.
    const VERSION: u16;
    /// The oldest format that it reads.
    const VERSION_OLDEST: u16 = Self::VERSION;
    /// The name of the format in error messages.
    const WHAT: &'static str;
    /// True if heads have a generation.
    const HAS_GENERATION: bool;

    /// Appends the owner's fields, always the same number of bytes.
    fn encode(&self, out: &mut Vec<u8>);
    /// Reads what [`encode`](Self::encode) wrote.
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

/// The head of a checkpoint: names it and vouches for its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head<O> {
    /// The owner of the checkpoint.
    pub owner: O,
    /// Grows by one with each checkpoint.
    pub sequence: u64,
    /// A random number. Everything that is written after this checkpoint carries it, and nothing
    /// else does. 0 if heads have no generation.
    pub generation: u64,
    /// Bytes of the body.
    pub body_len: u64,
    /// CRC-32C of the body.
    pub body_crc: u32,
}

impl<O: Owner> Head<O> {
    /// The head of `body`.
    pub fn of(owner: O, sequence: u64, generation: u64, body: &[u8]) -> Head<O> {
        Head::over(owner, sequence, generation, Sum::default().with(body))
    }

    /// The head of a body with this sum.
    pub fn over(owner: O, sequence: u64, generation: u64, sum: Sum) -> Head<O> {
        Head { owner, sequence, generation, body_len: sum.len, body_crc: sum.crc }
    }

    /// Length and checksum of the body.
    pub fn sum(&self) -> Sum {
        Sum { len: self.body_len, crc: self.body_crc }
    }

    /// True if `body` is the body of this head, unchanged.
    pub fn vouches_for(&self, body: &[u8]) -> bool {
        self.body_len == body.len() as u64 && self.body_crc == crc32c(body)
    }

    /// Encodes the head, [`HEAD_LEN`] bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(HEAD_LEN);
        out.extend_from_slice(O::MAGIC);
        out.put_u16(O::VERSION);
        self.owner.encode(&mut out);
        out.put_u64(self.sequence);
        if O::HAS_GENERATION {
            out.put_u64(self.generation);
        }
        out.put_u64(self.body_len);
        out.put_u32(self.body_crc);
        assert!(out.len() <= CRC_OFFSET, "the owner's fields leave no room");
        out.resize(CRC_OFFSET, 0);
        out.put_u32(crc32c(&out));
        out.into()
    }

    /// Reads what [`encode`](Self::encode) wrote, or an older program down to
    /// [`VERSION_OLDEST`](Owner::VERSION_OLDEST).
    pub fn decode(bytes: &[u8]) -> Result<Head<O>, DecodeError> {
        let covered = Reader::new(bytes).take(CRC_OFFSET, "head of a checkpoint")?;
        let sum = Reader::new(&bytes[CRC_OFFSET..]).u32("checksum of a head")?;
        let r = &mut Reader::new(covered);
        if r.take(O::MAGIC.len(), "magic")? != O::MAGIC {
            return Err(DecodeError::Invalid("magic of a head"));
        }
        if crc32c(covered) != sum {
            return Err(DecodeError::Checksum("head of a checkpoint"));
        }
        let version = r.u16("version")?;
        if !(O::VERSION_OLDEST..=O::VERSION).contains(&version) {
            return Err(DecodeError::Version { what: O::WHAT, found: version, known: O::VERSION });
        }
        let (owner, sequence) = (O::decode(r)?, r.u64("sequence")?);
        let generation = if O::HAS_GENERATION { r.u64("generation")? } else { 0 };
        let (body_len, body_crc) = (r.u64("length of a body")?, r.u32("checksum of a body")?);
        if r.take(r.remaining(), "padding")?.iter().any(|byte| *byte != 0) {
            return Err(DecodeError::Invalid("padding of a head"));
        }
        Ok(Head { owner, sequence, generation, body_len, body_crc })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An owner with a name of four bytes.
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Named<const HAS_GENERATION: bool>([u8; 4]);

    impl<const HAS_GENERATION: bool> Owner for Named<HAS_GENERATION> {
        const MAGIC: &'static [u8; 8] = b"STARTEST";
        const VERSION: u16 = 7;
        const VERSION_OLDEST: u16 = 6;
        const WHAT: &'static str = "test";
        const HAS_GENERATION: bool = HAS_GENERATION;
        fn encode(&self, out: &mut Vec<u8>) {
            out.extend_from_slice(&self.0);
        }
        fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
            let mut name = [0; 4];
            name.copy_from_slice(r.take(4, "name")?);
            Ok(Named(name))
        }
    }

    /// The bytes with the right checksum.
    fn repaired(mut bytes: Vec<u8>) -> Vec<u8> {
        let sum = crc32c(&bytes[..CRC_OFFSET]);
        bytes[CRC_OFFSET..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    #[test]
    fn heads_are_read_back_and_no_flipped_bit_passes() {
        let with = Head::of(Named::<true>(*b"name"), 3, 4, b"body");
        let without = Head::of(Named::<false>(*b"name"), 3, 0, b"body");
        assert_eq!((Head::decode(&with.encode()), Head::decode(&without.encode())), (Ok(with), Ok(without)));
        assert!(with.vouches_for(b"body") && !with.vouches_for(b"bodY") && !with.vouches_for(b"body "));
        let bytes = with.encode();
        assert_eq!(bytes.len(), HEAD_LEN);
        for bit in 0..HEAD_LEN * 8 {
            let mut bad = bytes.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Head::<Named<true>>::decode(&bad).is_err(), "bit {bit}");
        }
        for len in 0..HEAD_LEN {
            assert!(Head::<Named<true>>::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn heads_of_another_version_and_with_more_fields_are_refused() {
        let bytes = Head::of(Named::<true>(*b"name"), 3, 4, b"body").encode().to_vec();
        for other in [5, 8] {
            let mut bytes = bytes.clone();
            bytes[8] = other;
            let version = DecodeError::Version { what: "test", found: other.into(), known: 7 };
            assert_eq!(Head::<Named<true>>::decode(&repaired(bytes)), Err(version));
        }
        let mut older = bytes.clone();
        older[8] = 6;
        assert_eq!(Head::decode(&repaired(older)), Head::<Named<true>>::decode(&bytes));
        let mut more = bytes;
        more[CRC_OFFSET - 1] = 1;
        assert_eq!(Head::<Named<true>>::decode(&repaired(more)), Err(DecodeError::Invalid("padding of a head")));
    }
}
