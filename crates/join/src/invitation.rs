//! An invitation of a node as one line of text: all that it needs to find the first node, to
//! recognise it, and to be let in.
//!
//! The line begins with `starlingnode1-` ([`types::line`]). Its fields, little-endian:
//!
//! | bytes | what |
//! | --- | --- |
//! | 32 | SHA-256 of the authority's certificate |
//! | 16 | secret |
//! | 4 | how many addresses |
//! | 4 + n each | address: length, UTF-8 |

use crate::{JoinSecret, SECRET_LEN};
use std::fmt;
use std::str::FromStr;
use types::codec::{DecodeError, Put, Reader};
use types::{LineError, LineKind};

const LINE: LineKind = LineKind { name: "starlingnode", version: 1 };

/// An invitation to a file system, for one node.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeInvitation {
    /// The first node's addresses, as host:port, in the order in which to try them: at least one.
    pub addresses: Vec<String>,
    /// The SHA-256 of the authority's certificate.
    pub authority: [u8; 32],
    /// The secret that lets the holder in.
    pub secret: JoinSecret,
}

impl fmt::Debug for NodeInvitation {
    /// Shows all but the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("NodeInvitation");
        shown.field("addresses", &self.addresses).field("authority", &self.authority).finish_non_exhaustive()
    }
}

impl fmt::Display for NodeInvitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = Vec::new();
        fields.extend_from_slice(&self.authority);
        fields.extend_from_slice(&self.secret);
        fields.put_u32(self.addresses.len() as u32);
        for address in &self.addresses {
            fields.put_blob(address.as_bytes());
        }
        f.write_str(&LINE.write(&fields))
    }
}

impl FromStr for NodeInvitation {
    type Err = LineError;

    /// Parses an invitation. White space around it does not matter.
    fn from_str(text: &str) -> Result<NodeInvitation, LineError> {
        decode(&mut Reader::new(&LINE.read(text)?)).map_err(|_| LineError::Mistyped)
    }
}

fn decode(reader: &mut Reader<'_>) -> Result<NodeInvitation, DecodeError> {
    let (mut authority, mut secret) = ([0; 32], [0; SECRET_LEN]);
    authority.copy_from_slice(reader.take(32, "authority")?);
    secret.copy_from_slice(reader.take(SECRET_LEN, "secret")?);
    let count = reader.count(4, "addresses")?;
    let address = |_| {
        let bytes = reader.blob("address")?;
        String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::Invalid("address"))
    };
    let addresses = (0..count).map(address).collect::<Result<Vec<_>, _>>()?;
    if addresses.is_empty() || !reader.is_empty() {
        return Err(DecodeError::Invalid("addresses"));
    }
    Ok(NodeInvitation { addresses, authority, secret })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> NodeInvitation {
        let addresses = vec!["10.0.0.1:7440".to_string(), "[2001:db8::1]:7440".into()];
        NodeInvitation { addresses, authority: std::array::from_fn(|i| i as u8), secret: [0xa5; SECRET_LEN] }
    }

    #[test]
    fn what_was_written_once_is_read_ever_after() {
        let text = "starlingnode1-l4aaaaaaaebagbafaydqqcikbmga2dqpcaireeyuculbogazdinryhi6d6s2ljnfuws2ljnfuws2ljnfuwsqeaaaaagqaaaageyc4mbogaxdcorxgq2daeqaaaafwmrqgaytuzdcha5dumk5hi3tinbqngf3qxy";
        assert_eq!(example().to_string(), text);
        assert_eq!(text.parse(), Ok(example()));
        assert!(!format!("{:?}", example()).contains("165"));
    }

    #[test]
    fn an_invitation_to_a_home_or_without_addresses_is_refused() {
        assert_eq!("starling1-aaaa".parse::<NodeInvitation>(), Err(LineError::Other("starlingnode1".into())));
        assert_eq!("starlingnode2-a".parse::<NodeInvitation>(), Err(LineError::Newer { found: 2, known: 1 }));
        let nowhere = NodeInvitation { addresses: Vec::new(), ..example() };
        assert_eq!(nowhere.to_string().parse::<NodeInvitation>(), Err(LineError::Mistyped));
    }

    proptest! {
        #[test]
        fn prop_invitations_come_back(
            addresses in prop::collection::vec("[^\n]{0,20}", 1..4),
            authority in any::<[u8; 32]>(),
            secret in any::<[u8; 16]>(),
        ) {
            let invitation = NodeInvitation { addresses, authority, secret };
            let text = invitation.to_string();
            prop_assert!(text.is_ascii() && !text.contains(char::is_whitespace));
            prop_assert_eq!(text.parse(), Ok(invitation));
        }
    }
}
