//! What a node that joins and the first node say to each other: one request, one answer.
//!
//! Both begin with a version (u16). Integers are little-endian. A text is its length (u32) and
//! UTF-8.

use crate::authority::{PUBLIC_KEY_LEN, is_public_key};
use crate::{JoinSecret, SECRET_LEN};
use thiserror::Error;
use types::codec::{DecodeError, Put, Reader};
use types::{FsUuid, NodeId};

/// The version that this program speaks.
pub const VERSION: u16 = 1;
/// Longest text in a request or an answer, in bytes.
pub const TEXT_LEN_MAX: usize = 4096;

/// What a node sends that wants to join.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinRequest {
    /// The invitation's secret.
    pub secret: JoinSecret,
    /// The name that the user asked for; empty if none.
    pub name: String,
    /// The machine's name: the node gets one like it if neither the user nor the invitation names
    /// it.
    pub host_name: String,
    /// The node's public key.
    pub public_key: [u8; PUBLIC_KEY_LEN],
    /// Where other nodes reach this one, as host:port; empty if they do not.
    pub address: String,
}

impl std::fmt::Debug for JoinRequest {
    /// Shows all but the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("JoinRequest");
        shown.field("name", &self.name).field("host_name", &self.host_name).field("address", &self.address);
        shown.finish_non_exhaustive()
    }
}

/// What a node gets that is let in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admission {
    /// The file system.
    pub fs: FsUuid,
    /// The node's number.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Its certificate, in PEM.
    pub certificate: String,
    /// The authority's certificate, in PEM.
    pub authority: String,
}

/// Why a node is not let in.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum JoinRefusal {
    /// No invitation has this secret.
    #[error(
        "the machine that leads does not know this invitation: ask for another (`starling node invite`, on any machine)"
    )]
    Unknown,
    /// Another node has used the invitation.
    #[error("another node has used this invitation: ask for another (`starling node invite`, on any machine)")]
    Used,
    /// The invitation is too old.
    #[error("this invitation has expired: ask for another (`starling node invite`, on any machine)")]
    Expired,
    /// The invitation is for a node with this name.
    #[error("this invitation is for a node called {0}: leave --name out, or ask for another invitation")]
    OtherName(String),
    /// Another node has this name.
    #[error("a node is called {0} already: choose another --name")]
    NameTaken(String),
    /// This is no name for a node.
    #[error(
        "{0:?} cannot be a node's name: use up to 64 letters a-z and A-Z, digits, and after the first also `.`, `_`, `-`"
    )]
    BadName(String),
    /// There are as many nodes as there can be.
    #[error("the file system has as many nodes as it can have")]
    Full,
    /// The first node speaks only versions up to this one.
    #[error("the first node's starling is older (its joining has version {0}): use the same version on both machines")]
    Newer(u16),
    /// The first node cannot read the request.
    #[error("the first node cannot read the request to join: use the same version of starling on both machines")]
    Unreadable,
    /// The first node could not do it now. Whether the node is a member is unknown until it asks
    /// again.
    #[error("the first node could not let this one in ({0}): try again")]
    Failed(String),
}

impl JoinRefusal {
    /// True if this node is certainly no member, and asking again would not change that.
    pub fn is_final(&self) -> bool {
        !matches!(self, JoinRefusal::Failed(_))
    }

    fn code(&self) -> u8 {
        match self {
            JoinRefusal::Unknown => 1,
            JoinRefusal::Used => 2,
            JoinRefusal::Expired => 3,
            JoinRefusal::OtherName(_) => 4,
            JoinRefusal::NameTaken(_) => 5,
            JoinRefusal::BadName(_) => 6,
            JoinRefusal::Full => 7,
            JoinRefusal::Newer(_) => 8,
            JoinRefusal::Unreadable => 9,
            JoinRefusal::Failed(_) => 10,
        }
    }

    fn decode(code: u8, reader: &mut Reader<'_>) -> Result<JoinRefusal, DecodeError> {
        Ok(match code {
            1 => JoinRefusal::Unknown,
            2 => JoinRefusal::Used,
            3 => JoinRefusal::Expired,
            4 => JoinRefusal::OtherName(text(reader, "name")?),
            5 => JoinRefusal::NameTaken(text(reader, "name")?),
            6 => JoinRefusal::BadName(text(reader, "name")?),
            7 => JoinRefusal::Full,
            8 => JoinRefusal::Newer(reader.u16("version")?),
            9 => JoinRefusal::Unreadable,
            10 => JoinRefusal::Failed(text(reader, "reason")?),
            _ => return Err(DecodeError::Invalid("refusal")),
        })
    }
}

/// The first node's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JoinAnswer {
    /// The node is a member.
    Admitted(Admission),
    /// It is not let in.
    Refused(JoinRefusal),
}

/// The code of [`JoinAnswer::Admitted`], beside those of refusals.
const ADMITTED: u8 = 0;

fn put_text(out: &mut Vec<u8>, text: &str) {
    // Only reasons of failures can be so long.
    let mut end = text.len().min(TEXT_LEN_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.put_blob(&text.as_bytes()[..end]);
}

fn text(reader: &mut Reader<'_>, what: &'static str) -> Result<String, DecodeError> {
    let bytes = reader.blob(what)?;
    if bytes.len() > TEXT_LEN_MAX {
        return Err(DecodeError::Invalid(what));
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::Invalid(what))
}

fn version(reader: &mut Reader<'_>, what: &'static str) -> Result<(), DecodeError> {
    match reader.u16("version")? {
        VERSION => Ok(()),
        0 => Err(DecodeError::Invalid("version")),
        found => Err(DecodeError::Version { what, found, known: VERSION }),
    }
}

fn end(reader: &Reader<'_>) -> Result<(), DecodeError> {
    if reader.is_empty() { Ok(()) } else { Err(DecodeError::Invalid("length")) }
}

impl JoinRequest {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u16(VERSION);
        out.extend_from_slice(&self.secret);
        out.extend_from_slice(&self.public_key);
        for text in [&self.name, &self.host_name, &self.address] {
            put_text(&mut out, text);
        }
        out
    }

    /// Reads a request.
    pub fn decode(bytes: &[u8]) -> Result<JoinRequest, DecodeError> {
        let mut reader = Reader::new(bytes);
        version(&mut reader, "a request to join")?;
        let (mut secret, mut public_key) = ([0; SECRET_LEN], [0; PUBLIC_KEY_LEN]);
        secret.copy_from_slice(reader.take(SECRET_LEN, "secret")?);
        public_key.copy_from_slice(reader.take(PUBLIC_KEY_LEN, "public key")?);
        if !is_public_key(&public_key) {
            return Err(DecodeError::Invalid("public key"));
        }
        let name = text(&mut reader, "name")?;
        let host_name = text(&mut reader, "host name")?;
        let address = text(&mut reader, "address")?;
        end(&reader)?;
        Ok(JoinRequest { secret, name, host_name, public_key, address })
    }
}

impl JoinAnswer {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u16(VERSION);
        match self {
            JoinAnswer::Admitted(admission) => {
                out.put_u8(ADMITTED);
                out.extend_from_slice(&admission.fs.0);
                out.put_u16(admission.node.raw());
                for text in [&admission.name, &admission.certificate, &admission.authority] {
                    put_text(&mut out, text);
                }
            }
            JoinAnswer::Refused(refusal) => {
                out.put_u8(refusal.code());
                match refusal {
                    JoinRefusal::OtherName(text)
                    | JoinRefusal::NameTaken(text)
                    | JoinRefusal::BadName(text)
                    | JoinRefusal::Failed(text) => put_text(&mut out, text),
                    JoinRefusal::Newer(version) => out.put_u16(*version),
                    _ => {}
                }
            }
        }
        out
    }

    /// Reads an answer.
    pub fn decode(bytes: &[u8]) -> Result<JoinAnswer, DecodeError> {
        let mut reader = Reader::new(bytes);
        version(&mut reader, "an answer to joining")?;
        let answer = match reader.u8("answer")? {
            ADMITTED => {
                let mut fs = [0; 16];
                fs.copy_from_slice(reader.take(16, "file system")?);
                JoinAnswer::Admitted(Admission {
                    fs: FsUuid(fs),
                    node: NodeId::new(reader.u16("node")?),
                    name: text(&mut reader, "name")?,
                    certificate: text(&mut reader, "certificate")?,
                    authority: text(&mut reader, "authority")?,
                })
            }
            code => JoinAnswer::Refused(JoinRefusal::decode(code, &mut reader)?),
        };
        end(&reader)?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_refusal() -> impl Strategy<Value = JoinRefusal> {
        let text = || ".{0,40}";
        prop_oneof![
            Just(JoinRefusal::Unknown),
            Just(JoinRefusal::Used),
            Just(JoinRefusal::Expired),
            text().prop_map(JoinRefusal::OtherName),
            text().prop_map(JoinRefusal::NameTaken),
            text().prop_map(JoinRefusal::BadName),
            Just(JoinRefusal::Full),
            any::<u16>().prop_map(JoinRefusal::Newer),
            Just(JoinRefusal::Unreadable),
            text().prop_map(JoinRefusal::Failed),
        ]
    }

    #[test]
    fn long_reasons_are_cut_between_characters() {
        let failed = |text: String| JoinAnswer::Refused(JoinRefusal::Failed(text));
        let long = failed("ä".repeat(TEXT_LEN_MAX) + "x");
        assert_eq!(JoinAnswer::decode(&long.encode()), Ok(failed("ä".repeat(TEXT_LEN_MAX / 2))));
    }

    #[test]
    fn other_versions_are_named() {
        let mut bytes = JoinAnswer::Refused(JoinRefusal::Full).encode();
        bytes[0] = 2;
        let refused = DecodeError::Version { what: "an answer to joining", found: 2, known: 1 };
        assert_eq!(JoinAnswer::decode(&bytes), Err(refused));
        bytes[0] = 0;
        assert_eq!(JoinAnswer::decode(&bytes), Err(DecodeError::Invalid("version")));
    }

    proptest! {
        #[test]
        fn prop_requests_come_back_and_cut_ones_are_refused(
            secret in any::<[u8; 16]>(), name in ".{0,20}", host_name in ".{0,20}", address in ".{0,20}",
        ) {
            let mut public_key = [7; PUBLIC_KEY_LEN];
            public_key[0] = 4;
            let request = JoinRequest { secret, name, host_name, public_key, address };
            let bytes = request.encode();
            for len in 0..bytes.len() {
                prop_assert!(JoinRequest::decode(&bytes[..len]).is_err());
            }
            prop_assert_eq!(JoinRequest::decode(&bytes), Ok(request));
        }

        #[test]
        fn prop_answers_come_back(
            fs in any::<[u8; 16]>(), node in any::<u16>(), name in ".{0,20}", certificate in ".{0,20}",
            authority in ".{0,20}", refusal in any_refusal(),
        ) {
            let (fs, node) = (FsUuid(fs), NodeId::new(node));
            let admitted = JoinAnswer::Admitted(Admission { fs, node, name, certificate, authority });
            for answer in [admitted, JoinAnswer::Refused(refusal)] {
                let mut bytes = answer.encode();
                prop_assert_eq!(JoinAnswer::decode(&bytes), Ok(answer));
                bytes.push(0);
                prop_assert!(JoinAnswer::decode(&bytes).is_err());
            }
        }
    }
}
