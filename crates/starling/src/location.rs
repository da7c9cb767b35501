//! Where a store is: a folder, a storage server of another process, or a node that has joined.

use crate::usage;
use cluster::KnownNode;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use types::NodeId;

/// Where a store is. Written as a path, or as `tcp://HOST:PORT` or `tls://HOST:PORT`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "PathBuf", into = "PathBuf")]
pub enum Location {
    /// A folder.
    Folder(PathBuf),
    /// A storage server.
    Server {
        /// Reached over TLS with keys; otherwise by plain TCP, on this machine only.
        tls: bool,
        /// Host name or IP address.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// A node that has joined. Written as `node://NUMBER@HOST:PORT#FINGERPRINT`, with the SHA-256
    /// of the node's certificate in hexadecimal digits; users do not write it.
    Node(KnownNode),
}

/// What follows [`NODE`].
fn node_place(text: &str) -> Option<Location> {
    let (node, rest) = text.split_once('@')?;
    let (address, digits) = rest.split_once('#').filter(|(address, _)| split_port(address).is_some())?;
    let node = NodeId::new(node.parse().ok()?);
    Some(Location::Node(KnownNode { node, address: address.to_string(), fingerprint: fingerprint(digits)? }))
}

/// Reads the SHA-256 of a certificate from hexadecimal digits.
pub fn fingerprint(digits: &str) -> Option<[u8; 32]> {
    let mut fingerprint = [0; 32];
    if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in fingerprint.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(fingerprint)
}

/// The hexadecimal digits of the SHA-256 of a certificate.
pub fn digits_of(fingerprint: &[u8; 32]) -> String {
    fingerprint.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How the places of stores at nodes begin.
const NODE: &str = "node://";

impl Location {
    /// Parses a location as users write it.
    pub fn parse(written: &Path) -> anyhow::Result<Location> {
        let Some((scheme, rest)) = written.to_str().and_then(|text| text.split_once("://")) else {
            return Ok(Location::Folder(written.to_owned()));
        };
        let shown = written.display();
        let tls = match scheme {
            "tcp" => false,
            "tls" => true,
            _ => {
                return Err(usage(format!("--store {shown}: a store is a folder, tcp://HOST:PORT or tls://HOST:PORT")));
            }
        };
        let (host, port) =
            split_port(rest).ok_or_else(|| usage(format!("--store {shown}: write it as {scheme}://HOST:PORT")))?;
        if !tls && !is_loopback(host) {
            return Err(usage(format!(
                "--store {shown}: plain tcp:// is only for stores on this machine; use tls:// and --keys (`starling keys` makes them)"
            )));
        }
        Ok(Location::Server { tls, host: host.to_string(), port })
    }
}

impl Location {
    /// True if `starling store` serves the store.
    pub fn is_server(&self) -> bool {
        matches!(self, Location::Server { .. })
    }

    /// The location for users to read: without what only programs need.
    pub fn shown(&self) -> String {
        match self {
            Location::Node(KnownNode { node, address, .. }) => format!("{node} at {address}"),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Folder(path) => write!(f, "{}", path.display()),
            Location::Server { tls, host, port } => {
                let scheme = if *tls { "tls" } else { "tcp" };
                match host.contains(':') {
                    true => write!(f, "{scheme}://[{host}]:{port}"),
                    false => write!(f, "{scheme}://{host}:{port}"),
                }
            }
            Location::Node(KnownNode { node, address, fingerprint }) => {
                write!(f, "{NODE}{}@{address}#{}", node.raw(), digits_of(fingerprint))
            }
        }
    }
}

impl From<Location> for PathBuf {
    fn from(location: Location) -> PathBuf {
        match location {
            Location::Folder(path) => path,
            server => server.to_string().into(),
        }
    }
}

impl TryFrom<PathBuf> for Location {
    type Error = String;
    fn try_from(path: PathBuf) -> Result<Location, String> {
        if let Some(rest) = path.to_str().and_then(|text| text.strip_prefix(NODE)) {
            let place = node_place(rest);
            return place.ok_or_else(|| format!("{}: not {NODE}NUMBER@HOST:PORT#FINGERPRINT", path.display()));
        }
        Location::parse(&path).map_err(|e| e.to_string())
    }
}

/// Host and port of `HOST:PORT` or `[IPV6]:PORT`.
pub fn split_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    let port = port.parse().ok()?;
    (!host.is_empty()).then_some((host, port))
}

/// True if this host is this machine, whatever network it is on.
pub fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_read_and_written_the_same() {
        for text in
            ["./s0", "/a b", "tcp://127.0.0.1:7450", "tcp://localhost:1", "tcp://[::1]:7450", "tls://far.example:9"]
        {
            let location = Location::parse(Path::new(text)).unwrap();
            assert_eq!(location.to_string(), text);
            assert_eq!(location.clone(), serde_json::from_str(&serde_json::to_string(&location).unwrap()).unwrap());
            assert_eq!(matches!(location, Location::Folder(_)), !text.contains("://"));
        }
        let place = KnownNode { node: NodeId::new(2), address: "[fe80::1]:7440".into(), fingerprint: [0xa1; 32] };
        let node = Location::Node(place);
        assert_eq!(node.to_string(), format!("node://2@[fe80::1]:7440#{}", "a1".repeat(32)));
        assert_eq!(node.shown(), "node-2 at [fe80::1]:7440");
        assert_eq!(node, serde_json::from_str(&serde_json::to_string(&node).unwrap()).unwrap());
        for wrong in ["node://2", "node://x@a:1#", "node://2@a", "node://2@a:1", "node://2@a:1#00"] {
            assert!(Location::try_from(PathBuf::from(wrong)).unwrap_err().contains("NUMBER@HOST:PORT"), "{wrong}");
        }
    }

    #[test]
    fn unusable_addresses_are_refused_with_what_to_do() {
        for (text, word) in [
            ("http://a:1", "tls://HOST:PORT"),
            ("tcp://127.0.0.1", "tcp://HOST:PORT"),
            ("tcp://127.0.0.1:x", "tcp://HOST:PORT"),
            ("tls://:7450", "tls://HOST:PORT"),
            ("tls://::1:7450", "tls://HOST:PORT"),
            ("tcp://10.0.0.1:7450", "--keys"),
            ("tcp://far.example:7450", "--keys"),
        ] {
            let said = Location::parse(Path::new(text)).unwrap_err();
            assert!(said.to_string().contains(word) && said.is::<crate::Usage>(), "{text}: {said}");
        }
    }
}
