//! The encoding of all messages, and of the states that homes and roaming clients keep.
//!
//! Numbers take as many bytes as they need. Lists and byte strings begin with their length. Every
//! value has exactly one encoding. Decoding anything else is an error, never a panic, and takes no
//! more memory than a few times the bytes of the input.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use types::codec::{DecodeError, Put, Reader};
use types::{FileId, Kind, Time};

/// A value with an encoding.
pub trait Wire: Sized {
    /// Appends the encoding.
    fn encode(&self, out: &mut Vec<u8>);
    /// Reads what [`encode`](Self::encode) wrote.
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError>;

    /// Returns the encoding.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    /// Reads an encoding with nothing after it.
    fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let value = Self::decode(&mut reader)?;
        if !reader.is_empty() {
            return Err(DecodeError::Invalid("end of a message"));
        }
        Ok(value)
    }
}

impl Wire for u64 {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_number(*self);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.number("number")
    }
}

macro_rules! small_number {
    ($($of:ty),*) => {$(
        impl Wire for $of {
            fn encode(&self, out: &mut Vec<u8>) {
                u64::from(*self).encode(out);
            }
            fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                u64::decode(r)?.try_into().map_err(|_| DecodeError::Invalid("number"))
            }
        }
    )*};
}
small_number!(u16, u32);

impl Wire for u8 {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.u8("byte")
    }
}

impl Wire for i64 {
    fn encode(&self, out: &mut Vec<u8>) {
        ((*self << 1) ^ (*self >> 63)).cast_unsigned().encode(out);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let value = u64::decode(r)?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }
}

impl Wire for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match r.u8("flag")? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid("flag")),
        }
    }
}

impl Wire for FileId {
    fn encode(&self, out: &mut Vec<u8>) {
        self.raw().encode(out);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        u64::decode(r).map(FileId::new)
    }
}

impl Wire for Kind {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Kind::from_u8(r.u8("kind")?).ok_or(DecodeError::Invalid("kind"))
    }
}

impl Wire for Time {
    fn encode(&self, out: &mut Vec<u8>) {
        self.sec.encode(out);
        self.nsec.encode(out);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let time = Time { sec: Wire::decode(r)?, nsec: Wire::decode(r)? };
        if time.nsec >= 1_000_000_000 {
            return Err(DecodeError::Invalid("time"));
        }
        Ok(time)
    }
}

fn len(r: &mut Reader<'_>) -> Result<usize, DecodeError> {
    // Each counted item takes at least one byte.
    usize::try_from(u64::decode(r)?).ok().filter(|len| *len <= r.remaining()).ok_or(DecodeError::Invalid("length"))
}

impl<T: Wire> Wire for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u64).encode(out);
        self.iter().for_each(|item| item.encode(out));
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = len(r)?;
        // An item may be much larger in memory than in its encoding, so the list grows only as
        // items arrive.
        let mut items = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            items.push(T::decode(r)?);
        }
        Ok(items)
    }
}

impl Wire for Bytes {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u64).encode(out);
        out.extend_from_slice(self);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let len = len(r)?;
        Ok(Bytes::copy_from_slice(r.take(len, "bytes")?))
    }
}

impl Wire for String {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u64).encode(out);
        out.extend_from_slice(self.as_bytes());
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        String::from_utf8(Vec::decode(r)?).map_err(|_| DecodeError::Invalid("text"))
    }
}

impl<const N: usize> Wire for [u8; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(r.take(N, "bytes")?);
        Ok(bytes)
    }
}

impl<T: Wire> Wire for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        bool::decode(r)?.then(|| T::decode(r)).transpose()
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok((A::decode(r)?, B::decode(r)?))
    }
}

impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u64).encode(out);
        for (key, value) in self {
            key.encode(out);
            value.encode(out);
        }
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut map = BTreeMap::new();
        for _ in 0..len(r)? {
            let (key, value) = (K::decode(r)?, V::decode(r)?);
            if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return Err(DecodeError::Invalid("order of keys"));
            }
            map.insert(key, value);
        }
        Ok(map)
    }
}

impl<T: Wire + Ord> Wire for BTreeSet<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u64).encode(out);
        self.iter().for_each(|item| item.encode(out));
    }
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let items: Vec<T> = Wire::decode(r)?;
        match items.is_sorted_by(|a, b| a < b) {
            true => Ok(items.into_iter().collect()),
            false => Err(DecodeError::Invalid("order of a set")),
        }
    }
}

/// Encodes a struct as its fields, in the order given.
#[macro_export]
macro_rules! wire_struct {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::codec::Wire for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                $($crate::codec::Wire::encode(&self.$field, out);)*
            }
            fn decode(r: &mut types::codec::Reader<'_>) -> Result<Self, types::codec::DecodeError> {
                Ok($name { $($field: $crate::codec::Wire::decode(r)?),* })
            }
        }
    };
}

/// Encodes an enum as a number, followed by the fields of the variant.
#[macro_export]
macro_rules! wire_enum {
    ($name:ident { $($number:literal => $variant:ident $({ $($field:ident),* $(,)? })? $(( $($item:ident),* ))?),* $(,)? }) => {
        impl $crate::codec::Wire for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $($name::$variant $({ $($field),* })? $(( $($item),* ))? => {
                        out.push($number);
                        $($($crate::codec::Wire::encode($field, out);)*)?
                        $($($crate::codec::Wire::encode($item, out);)*)?
                    })*
                }
            }
            fn decode(r: &mut types::codec::Reader<'_>) -> Result<Self, types::codec::DecodeError> {
                Ok(match r.u8(stringify!($name))? {
                    $($number => {
                        $($(let $item = $crate::codec::Wire::decode(r)?;)*)?
                        $name::$variant $({ $($field: $crate::codec::Wire::decode(r)?),* })? $(( $($item),* ))?
                    })*
                    _ => return Err(types::codec::DecodeError::Invalid(stringify!($name))),
                })
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prop_numbers_have_one_encoding(value in any::<u64>(), signed in any::<i64>(), bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            prop_assert_eq!(u64::from_bytes(&value.to_bytes()), Ok(value));
            prop_assert_eq!(i64::from_bytes(&signed.to_bytes()), Ok(signed));
            if let Ok(value) = u64::from_bytes(&bytes) {
                prop_assert_eq!(value.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn small_numbers_take_one_byte_and_the_greatest_ten() {
        assert_eq!((127u64.to_bytes().len(), u64::MAX.to_bytes().len(), (-1i64).to_bytes().len()), (1, 10, 1));
        assert_eq!(u64::from_bytes(&[0x80, 0]), Err(DecodeError::Invalid("number")));
        assert_eq!(u64::from_bytes(&[0xff; 10]), Err(DecodeError::Invalid("number")));
        assert_eq!(u16::from_bytes(&70_000u64.to_bytes()), Err(DecodeError::Invalid("number")));
    }
}
