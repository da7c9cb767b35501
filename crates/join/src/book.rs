//! The invitations that the first node has given out. Decisions only; [`crate::desk`] keeps them on
//! a disk.
//!
//! The book has only the hash of a secret. An invitation that was used stays in the book for a
//! while with the key that used it and the certificate that the key got, so that the same key gets
//! the same answer again.
//!
//! The bytes, little-endian: version (u16), number of invitations (u32), then each, in the order of
//! their hashes: hash (32 bytes), when it expires (seconds, i64; nanoseconds, u32), name (length,
//! UTF-8), whether it was used (u8); if so, the public key (65 bytes) and the certificate (length,
//! UTF-8).

use crate::authority::{PUBLIC_KEY_LEN, is_public_key};
use crate::message::{JoinRefusal, JoinRequest};
use crate::{JoinSecret, is_node_name, sha256};
use std::collections::BTreeMap;
use std::time::Duration;
use types::Time;
use types::codec::{DecodeError, Put, Reader};

const VERSION: u16 = 1;
/// The largest number of invitations in the book.
pub const INVITATION_COUNT_MAX: usize = 1024;
/// How long an invitation stays in the book after it has expired.
const KEPT_TIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// Bytes of an invitation without its texts that are not used, at least.
const ENTRY_LEN_MIN: usize = 49;

/// Who used an invitation.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Use {
    public_key: [u8; PUBLIC_KEY_LEN],
    /// In PEM.
    certificate: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    until: Time,
    /// The name for the node; empty if the node may choose.
    name: String,
    used: Option<Use>,
}

/// The invitations of a file system.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InvitationBook(BTreeMap<[u8; 32], Entry>);

/// What the book says about a request that it lets pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Passed {
    /// The name for the node; empty if it may get any.
    pub name: String,
    /// The certificate that the same key got before, in PEM.
    pub certificate: Option<String>,
}

fn after(time: Time, duration: Duration) -> Time {
    Time { sec: time.sec.saturating_add(i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)), nsec: time.nsec }
}

impl InvitationBook {
    /// Adds an invitation that is good until `until`. It forgets invitations that expired long ago.
    /// Returns false if there are too many.
    pub fn add(&mut self, secret: &JoinSecret, name: &str, now: Time, until: Time) -> bool {
        self.0.retain(|_, entry| after(entry.until, KEPT_TIME) >= now);
        if self.0.len() >= INVITATION_COUNT_MAX {
            return false;
        }
        self.0.insert(sha256(secret), Entry { until, name: name.to_string(), used: None });
        true
    }

    /// Whether the book lets a request pass. A key that used the invitation before passes for good;
    /// another one does so only if nobody used the invitation, in its time.
    pub fn pass(&self, request: &JoinRequest, now: Time) -> Result<Passed, JoinRefusal> {
        let entry = self.0.get(&sha256(&request.secret)).ok_or(JoinRefusal::Unknown)?;
        let names = [&request.name, &entry.name].map(|name| Some(name).filter(|name| !name.is_empty()));
        let name = match names {
            [Some(asked), Some(invited)] if asked != invited => Err(JoinRefusal::OtherName(invited.clone())),
            [Some(asked), _] if !is_node_name(asked) => Err(JoinRefusal::BadName(asked.clone())),
            [asked, invited] => Ok(invited.or(asked).cloned().unwrap_or_default()),
        };
        match &entry.used {
            Some(used) if used.public_key == request.public_key => {
                Ok(Passed { name: name?, certificate: Some(used.certificate.clone()) })
            }
            Some(_) => Err(JoinRefusal::Used),
            None if now > entry.until => Err(JoinRefusal::Expired),
            None => Ok(Passed { name: name?, certificate: None }),
        }
    }

    /// Records that the request's key uses its invitation, and got this certificate (PEM).
    pub fn record_use(&mut self, request: &JoinRequest, certificate: &str) {
        if let Some(entry) = self.0.get_mut(&sha256(&request.secret)) {
            entry.used = Some(Use { public_key: request.public_key, certificate: certificate.to_string() });
        }
    }

    /// Takes the record of its use back: the node was not let in.
    pub fn take_back(&mut self, request: &JoinRequest) {
        if let Some(entry) = self.0.get_mut(&sha256(&request.secret)) {
            entry.used = None;
        }
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u16(VERSION);
        out.put_u32(self.0.len() as u32);
        for (hash, entry) in &self.0 {
            out.extend_from_slice(hash);
            out.put_i64(entry.until.sec);
            out.put_u32(entry.until.nsec);
            out.put_blob(entry.name.as_bytes());
            out.put_u8(u8::from(entry.used.is_some()));
            if let Some(used) = &entry.used {
                out.extend_from_slice(&used.public_key);
                out.put_blob(used.certificate.as_bytes());
            }
        }
        out
    }

    /// Reads a book.
    pub fn decode(bytes: &[u8]) -> Result<InvitationBook, DecodeError> {
        let text = |reader: &mut Reader<'_>, what| {
            String::from_utf8(reader.blob(what)?.to_vec()).map_err(|_| DecodeError::Invalid(what))
        };
        let mut reader = Reader::new(bytes);
        match reader.u16("version")? {
            VERSION => {}
            0 => return Err(DecodeError::Invalid("version")),
            found => return Err(DecodeError::Version { what: "the list of invitations", found, known: VERSION }),
        }
        let mut entries = BTreeMap::new();
        for _ in 0..reader.count(ENTRY_LEN_MIN, "invitations")? {
            let mut hash = [0; 32];
            hash.copy_from_slice(reader.take(32, "hash")?);
            if entries.last_key_value().is_some_and(|(last, _)| *last >= hash) {
                return Err(DecodeError::Invalid("order of invitations"));
            }
            let until = Time { sec: reader.i64("expiry")?, nsec: reader.u32("expiry")? };
            let name = text(&mut reader, "name")?;
            let used = match reader.u8("use")? {
                0 => None,
                1 => {
                    let mut public_key = [0; PUBLIC_KEY_LEN];
                    public_key.copy_from_slice(reader.take(PUBLIC_KEY_LEN, "public key")?);
                    if !is_public_key(&public_key) {
                        return Err(DecodeError::Invalid("public key"));
                    }
                    Some(Use { public_key, certificate: text(&mut reader, "certificate")? })
                }
                _ => return Err(DecodeError::Invalid("use")),
            };
            entries.insert(hash, Entry { until, name, used });
        }
        if !reader.is_empty() {
            return Err(DecodeError::Invalid("length"));
        }
        Ok(InvitationBook(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time { sec: 1_000_000_000, nsec: 0 };
    const HOUR: Duration = Duration::from_secs(3600);

    fn request(secret: u8, key: u8, name: &str) -> JoinRequest {
        let mut public_key = [key; PUBLIC_KEY_LEN];
        public_key[0] = 4;
        let secret = [secret; 16];
        JoinRequest { secret, name: name.into(), host_name: String::new(), public_key, address: String::new() }
    }

    fn book(names: &[&str]) -> InvitationBook {
        let mut book = InvitationBook::default();
        for (secret, name) in (1..).zip(names) {
            assert!(book.add(&[secret; 16], name, NOW, after(NOW, HOUR)));
        }
        book
    }

    #[test]
    fn an_invitation_is_good_once_and_for_its_time() {
        let mut book = book(&["", ""]);
        let fresh = Passed { name: String::new(), certificate: None };
        assert_eq!(book.pass(&request(1, 1, ""), after(NOW, HOUR)), Ok(fresh));
        let late = after(NOW, HOUR + Duration::from_secs(1));
        assert_eq!(book.pass(&request(1, 1, ""), late), Err(JoinRefusal::Expired));
        assert_eq!(book.pass(&request(9, 1, ""), NOW), Err(JoinRefusal::Unknown));
        book.record_use(&request(1, 1, ""), "certificate");
        assert_eq!(book.pass(&request(1, 2, ""), NOW), Err(JoinRefusal::Used));
        let again = Passed { name: String::new(), certificate: Some("certificate".into()) };
        assert_eq!(book.pass(&request(1, 1, ""), late), Ok(again));
        book.pass(&request(2, 2, ""), NOW).unwrap();
        book.take_back(&request(1, 1, ""));
        book.pass(&request(1, 2, ""), NOW).unwrap();
    }

    #[test]
    fn the_name_of_an_invitation_counts() {
        let book = book(&["db", ""]);
        let name = |secret, name| book.pass(&request(secret, 1, name), NOW).map(|passed| passed.name);
        assert_eq!(name(1, ""), Ok("db".into()));
        assert_eq!(name(1, "db"), Ok("db".into()));
        assert_eq!(name(1, "web"), Err(JoinRefusal::OtherName("db".into())));
        assert_eq!(name(2, "web"), Ok("web".into()));
        for bad in ["a b", "-a", ".", "ä", &"a".repeat(65)] {
            assert_eq!(name(2, bad), Err(JoinRefusal::BadName(bad.into())));
        }
    }

    #[test]
    fn expired_invitations_make_room_for_new_ones() {
        let mut book = InvitationBook::default();
        for number in 0..INVITATION_COUNT_MAX {
            let mut secret = [0; 16];
            secret[..8].copy_from_slice(&number.to_le_bytes());
            assert!(book.add(&secret, "", NOW, after(NOW, HOUR)));
        }
        assert!(!book.add(&[1; 16], "", NOW, after(NOW, HOUR)));
        assert!(!book.add(&[1; 16], "", after(NOW, KEPT_TIME), after(NOW, HOUR)));
        assert!(book.add(&[1; 16], "", after(NOW, KEPT_TIME + 2 * HOUR), after(NOW, HOUR)));
        assert_eq!(book.0.len(), 1);
    }

    #[test]
    fn a_book_comes_back_from_its_bytes_and_a_damaged_one_is_refused() {
        let mut book = book(&["db", "", "web"]);
        book.record_use(&request(2, 7, ""), "certificate");
        let bytes = book.encode();
        assert_eq!(InvitationBook::decode(&bytes), Ok(book));
        for len in 0..bytes.len() {
            assert!(InvitationBook::decode(&bytes[..len]).is_err(), "{len}");
        }
        let newer = [&[2, 0][..], &bytes[2..]].concat();
        assert!(matches!(InvitationBook::decode(&newer), Err(DecodeError::Version { found: 2, .. })));
        assert!(!bytes.windows(16).any(|part| part == [1; 16]), "the secret itself is in the bytes");
    }
}
