//! Bytes as one line of text that people copy: invitations.
//!
//! The line is a name with a version, `-`, and these bytes in base32 (RFC 4648's letters in lower
//! case, without padding), little-endian:
//!
//! | bytes | what |
//! | --- | --- |
//! | 4 | length of all that follows |
//! | n | the fields |
//! | 4 | CRC-32C of all bytes before |

use crate::codec::{Put, Reader};
use thiserror::Error;

const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const CHECKSUM_LEN: usize = 4;

/// Why a text is no invitation.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LineError {
    /// The text is something else than a line that begins like this.
    #[error("this is not an invitation: one begins with {0}-")]
    Other(String),
    /// Its end is missing.
    #[error("the end of the invitation is missing: copy the whole line")]
    CutOff,
    /// The text is not as it was written.
    #[error("the invitation was changed on its way: copy it again, as it was written")]
    Mistyped,
    /// A newer program wrote it.
    #[error(
        "the invitation is of version {found}, this program knows {known}: use the version of starling that wrote it"
    )]
    Newer {
        /// The version of the line.
        found: u32,
        /// The version that this program reads.
        known: u32,
    },
}

/// A kind of line: what it begins with.
#[derive(Clone, Copy, Debug)]
pub struct LineKind {
    /// Name before the version; it has no `-`.
    pub name: &'static str,
    /// The version that this program writes and reads.
    pub version: u32,
}

impl LineKind {
    fn head(self) -> String {
        format!("{}{}", self.name, self.version)
    }

    /// Writes fields as a line.
    pub fn write(self, fields: &[u8]) -> String {
        let mut bytes = Vec::with_capacity(fields.len() + 2 * CHECKSUM_LEN);
        bytes.put_u32((fields.len() + CHECKSUM_LEN) as u32);
        bytes.extend_from_slice(fields);
        bytes.put_u32(checksum(&bytes));
        format!("{}-{}", self.head(), to_letters(&bytes))
    }

    /// Reads the fields of a line. White space around it does not matter.
    pub fn read(self, text: &str) -> Result<Vec<u8>, LineError> {
        let text = text.trim();
        let other = || LineError::Other(self.head());
        let Some((head, letters)) = text.split_once('-') else {
            let cut_off = !text.is_empty() && self.head().starts_with(text);
            return Err(if cut_off { LineError::CutOff } else { other() });
        };
        if head != self.head() {
            let version = head.strip_prefix(self.name).and_then(|version| version.parse().ok());
            return Err(match version {
                Some(found) if found > self.version => LineError::Newer { found, known: self.version },
                _ => other(),
            });
        }
        let bytes = from_letters(letters).ok_or(LineError::Mistyped)?;
        let mut reader = Reader::new(&bytes);
        let len = reader.u32("length").map_err(|_| LineError::CutOff)? as usize;
        match reader.remaining() {
            remaining if remaining < len => return Err(LineError::CutOff),
            remaining if remaining > len || len < CHECKSUM_LEN => return Err(LineError::Mistyped),
            _ => {}
        }
        let (covered, sum) = bytes.split_at(bytes.len() - CHECKSUM_LEN);
        // Left-over bits would be lost in the bytes, so the letters are compared, too.
        if checksum(covered).to_le_bytes() != sum || to_letters(&bytes) != letters {
            return Err(LineError::Mistyped);
        }
        Ok(covered[size_of::<u32>()..].to_vec())
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Encodes five bits in each letter, the first bits first, with zeroes at the end.
fn to_letters(bytes: &[u8]) -> String {
    let bit = |i: usize| bytes.get(i / 8).is_some_and(|byte| byte >> (7 - i % 8) & 1 == 1);
    let letter = |at: usize| LETTERS[(at..at + 5).fold(0, |value, i| value << 1 | usize::from(bit(i)))];
    (0..bytes.len() * 8).step_by(5).map(|at| char::from(letter(at))).collect()
}

/// Decodes letters, and drops bits that are left over. `None` if there are other characters.
fn from_letters(letters: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(letters.len() * 5 / 8), 0u32, 0);
    for letter in letters.bytes() {
        bits = bits << 5 | LETTERS.iter().position(|known| *known == letter)? as u32;
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIND: LineKind = LineKind { name: "kind", version: 3 };

    #[test]
    fn errors_say_what_is_wrong() {
        let text = KIND.write(b"fields");
        assert_eq!(KIND.read(&format!("  {text}\n")), Ok(b"fields".to_vec()));
        assert_eq!(KIND.read(&KIND.write(b"")), Ok(Vec::new()));
        let other = || LineError::Other("kind3".into());
        for (wrong, error) in [
            ("", other()),
            ("hello-world", other()),
            ("kind2-aaaa", other()),
            ("kind03-aaaa", other()),
            ("kind-aaaa", other()),
            ("kin", LineError::CutOff),
            ("kind3", LineError::CutOff),
            ("kind3-", LineError::CutOff),
            ("kind4-anything at all", LineError::Newer { found: 4, known: 3 }),
            (&text.to_uppercase(), other()),
            (&format!("{text}aa"), LineError::Mistyped),
            (&text.replace("3-", "3--"), LineError::Mistyped),
        ] {
            assert_eq!(KIND.read(wrong), Err(error), "{wrong}");
        }
        for len in 1..text.len() {
            assert_eq!(KIND.read(&text[..len]), Err(LineError::CutOff), "{len}");
        }
    }

    proptest! {
        #[test]
        fn prop_fields_come_back(fields in prop::collection::vec(any::<u8>(), 0..60)) {
            prop_assert_eq!(KIND.read(&KIND.write(&fields)), Ok(fields));
        }

        #[test]
        fn prop_no_text_makes_it_panic(text in ".{0,64}", letters in "kind3-[a-z2-7]{0,200}") {
            prop_assert!(KIND.read(&text).is_err() && KIND.read(&letters).is_err());
        }
    }
}
