//! An invitation as one line of text: all that a client needs to find a home, to recognise it, and
//! to be let in.
//!
//! The line begins with `starling1-` ([`types::line`]). Its fields, little-endian:
//!
//! | bytes | what |
//! | --- | --- |
//! | 32 | key of the home |
//! | 16 | secret |
//! | 4 + n | volumes: length, their names in UTF-8 with `/` between them |
//! | 4 | how many addresses |
//! | 4 + n each | address: length, UTF-8 |

use roam_proto::channel::PeerKey;
use std::fmt;
use std::str::FromStr;
use types::codec::{DecodeError, Put, Reader};
use types::{LineError, LineKind};

const LINE: LineKind = LineKind { name: "starling", version: 1 };
/// Separates names of volumes.
const SEPARATOR: &str = "/";

/// An invitation to a home. The home lets in the first client that presents it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The home's addresses, as host:port, in the order in which to try them.
    pub addresses: Vec<String>,
    /// The home's key.
    pub home: PeerKey,
    /// The volumes that it invites to: at least one. Their names are not empty and have no `/`.
    pub volumes: Vec<String>,
    /// The secret that lets the holder in.
    pub secret: [u8; 16],
}

impl fmt::Debug for Token {
    /// Shows all but the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Token");
        shown.field("addresses", &self.addresses).field("home", &self.home).field("volumes", &self.volumes);
        shown.finish_non_exhaustive()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = Vec::new();
        fields.extend_from_slice(&self.home.0);
        fields.extend_from_slice(&self.secret);
        fields.put_blob(self.volumes.join(SEPARATOR).as_bytes());
        fields.put_u32(self.addresses.len() as u32);
        for address in &self.addresses {
            fields.put_blob(address.as_bytes());
        }
        f.write_str(&LINE.write(&fields))
    }
}

impl FromStr for Token {
    type Err = LineError;

    /// Parses an invitation. White space around it does not matter.
    fn from_str(text: &str) -> Result<Token, LineError> {
        decode(&mut Reader::new(&LINE.read(text)?)).map_err(|_| LineError::Mistyped)
    }
}

fn decode(reader: &mut Reader<'_>) -> Result<Token, DecodeError> {
    fn string(reader: &mut Reader<'_>, what: &'static str) -> Result<String, DecodeError> {
        String::from_utf8(reader.blob(what)?.to_vec()).map_err(|_| DecodeError::Invalid(what))
    }
    let (mut home, mut secret) = ([0; 32], [0; 16]);
    home.copy_from_slice(reader.take(32, "home")?);
    secret.copy_from_slice(reader.take(16, "secret")?);
    let volumes: Vec<String> = string(reader, "volumes")?.split(SEPARATOR).map(str::to_string).collect();
    if volumes.iter().any(String::is_empty) {
        return Err(DecodeError::Invalid("volumes"));
    }
    let count = reader.count(4, "addresses")?;
    let addresses = (0..count).map(|_| string(reader, "address")).collect::<Result<_, _>>()?;
    match reader.is_empty() {
        true => Ok(Token { addresses, home: PeerKey(home), volumes, secret }),
        false => Err(DecodeError::Invalid("length")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

    fn example() -> Token {
        Token {
            addresses: vec!["home.example:4870".into(), "[2001:db8::1]:4870".into()],
            home: PeerKey(std::array::from_fn(|i| i as u8)),
            volumes: vec!["photos".into()],
            secret: [0xa5; 16],
        }
    }

    fn any_token() -> impl Strategy<Value = Token> {
        let text = || prop::collection::vec(any::<char>(), 0..20).prop_map(String::from_iter);
        let volumes = prop::collection::vec("[^/]{1,20}", 1..4);
        (prop::collection::vec(text(), 0..4), any::<[u8; 32]>(), volumes, any::<[u8; 16]>())
            .prop_map(|(addresses, home, volumes, secret)| Token { addresses, home: PeerKey(home), volumes, secret })
    }

    #[test]
    fn what_was_written_once_is_read_ever_after() {
        let text = "starling1-nuaaaaaaaebagbafaydqqcikbmga2dqpcaireeyuculbogazdinryhi6d6s2ljnfuws2ljnfuws2ljnfuwsqmaaaabygq33un5zqeaaaaaiqaaaanbxw2zjomv4gc3lqnrstunbyg4ybeaaaabntembqge5giyryhi5dcxj2gq4domhvxrrxu";
        assert_eq!(text.parse(), Ok(example()));
        assert_eq!(example().to_string(), text);
    }

    #[test]
    fn errors_say_what_to_do() {
        let text = example().to_string();
        assert_eq!(format!("  {text}\n").parse(), Ok(example()));
        let other = || LineError::Other("starling1".into());
        for (wrong, error) in [
            ("", other()),
            ("hello", other()),
            ("hello-world", other()),
            ("starling0-aaaa", other()),
            ("starling01-aaaa", other()),
            ("starling-aaaa", other()),
            ("starl", LineError::CutOff),
            ("starling1-", LineError::CutOff),
            ("starling2-anything at all", LineError::Newer { found: 2, known: 1 }),
            ("starling12-", LineError::Newer { found: 12, known: 1 }),
            (&text.to_uppercase(), other()),
            (&text.replace('q', "Q"), LineError::Mistyped),
            (&format!("{text}a"), LineError::Mistyped),
            (&format!("{text}aa"), LineError::Mistyped),
            (&text.replace("1-", "1--"), LineError::Mistyped),
        ] {
            assert_eq!(wrong.parse::<Token>(), Err(error), "{wrong}");
        }
        assert!(!format!("{:?}", example()).contains("165"));
    }

    #[test]
    fn an_invitation_that_is_cut_off_is_known_as_such() {
        let text = example().to_string();
        for len in 1..text.len() {
            assert_eq!(text[..len].parse::<Token>(), Err(LineError::CutOff), "{len}");
        }
    }

    proptest! {
        #[test]
        fn prop_tokens_come_back(token in any_token()) {
            let text = token.to_string();
            prop_assert!(text.is_ascii() && !text.contains(char::is_whitespace));
            prop_assert_eq!(text.parse(), Ok(token));
        }

        #[test]
        fn prop_any_change_of_one_character_is_refused(token in any_token(), at in any::<prop::sample::Index>(), to in any::<char>()) {
            let mut text: Vec<char> = token.to_string().chars().collect();
            let at = at.index(text.len());
            prop_assume!(text[at] != to);
            text[at] = to;
            prop_assert!(String::from_iter(text).parse::<Token>().is_err());
        }

        #[test]
        fn prop_any_other_letter_is_refused(token in any_token(), at in any::<prop::sample::Index>(), to in 0..32usize) {
            let mut text = token.to_string().into_bytes();
            let at = 10 + at.index(text.len() - 10);
            prop_assume!(text[at] != LETTERS[to]);
            text[at] = LETTERS[to];
            prop_assert!(String::from_utf8(text).unwrap().parse::<Token>().is_err());
        }

        #[test]
        fn prop_any_missing_or_doubled_character_is_refused(token in any_token(), at in any::<prop::sample::Index>()) {
            let text = token.to_string();
            let at = at.index(text.len());
            let (before, after) = text.split_at(at);
            let (missing, doubled) = (format!("{before}{}", &after[1..]), format!("{before}{}{after}", &after[..1]));
            prop_assert!(missing.parse::<Token>().is_err());
            prop_assert!(doubled.parse::<Token>().is_err());
        }

        #[test]
        fn prop_no_text_makes_it_panic(text in ".{0,64}", letters in "starling1-[a-z2-7]{0,200}") {
            let _ = text.parse::<Token>();
            prop_assert!(letters.parse::<Token>().is_err());
        }
    }
}
