//! What a node that has joined serves to others: `serves.json` in its data folder.

use crate::node::joined::{self, NodeFolder};
use crate::{addresses, usage};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Name of the file.
pub const FILE: &str = "serves.json";

/// What the user asked the node to serve.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Serves {
    version: u32,
    /// Where it listens for other nodes.
    pub listen: SocketAddr,
    /// Folders for stores, with absolute paths.
    pub stores: Vec<PathBuf>,
}

impl Serves {
    /// A node that listens here, with these folders for stores.
    pub fn new(listen: SocketAddr, stores: Vec<PathBuf>) -> Serves {
        Serves { version: 1, listen, stores }
    }

    /// What the node served before; `None`: nothing. `data` is its data folder, which may not
    /// exist.
    pub fn known(data: &Path) -> anyhow::Result<Option<Serves>> {
        joined::read(data, FILE)
    }

    /// What the node serves from now on: what it served before, with what the user asks for now.
    /// Recorded if that changes anything. `None`: it serves nothing.
    ///
    /// # Errors
    /// Stores without an address to listen at.
    pub fn settle(
        folder: &NodeFolder,
        listen: Option<SocketAddr>,
        stores: &[PathBuf],
    ) -> anyhow::Result<Option<Serves>> {
        let known: Option<Serves> = folder.read(FILE)?;
        let absolute = stores.iter().map(std::path::absolute).collect::<Result<Vec<_>, _>>();
        let mut all = known.as_ref().map(|known| known.stores.clone()).unwrap_or_default();
        for store in absolute.map_err(|e| usage(format!("--store: {e}")))? {
            if !all.contains(&store) {
                all.push(store);
            }
        }
        let listen = match (listen.or(known.as_ref().map(|known| known.listen)), all.is_empty()) {
            (Some(listen), _) => listen,
            (None, true) => return Ok(None),
            (None, false) => {
                return Err(usage(
                    "--store: other nodes must reach this one to use its stores: add --listen ADDRESS:PORT",
                ));
            }
        };
        let serves = Serves { version: folder.version(), listen, stores: all };
        if known.as_ref() != Some(&serves) {
            folder.write(FILE, &serves).context(FILE)?;
        }
        Ok(Some(serves))
    }

    /// The address at which other nodes reach it, if it listens at this one.
    pub fn address(listen: SocketAddr) -> anyhow::Result<String> {
        let found = addresses::of_listener(listen)?.into_iter().next();
        found.ok_or_else(|| usage(format!("--listen {listen}: this machine has no address: give one")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_serves_is_remembered_and_added_to() {
        let below = tempfile::tempdir().unwrap();
        let folder = NodeFolder::open(&below.path().join("data")).unwrap();
        let (one, two) = (PathBuf::from("/stores/one"), PathBuf::from("/stores/two"));
        assert_eq!(Serves::settle(&folder, None, &[]).unwrap(), None);
        let refused = Serves::settle(&folder, None, std::slice::from_ref(&one)).unwrap_err();
        assert!(refused.to_string().contains("--listen"), "{refused}");
        let listen: SocketAddr = ([10, 0, 0, 2], 7440).into();
        let serves = Serves::settle(&folder, Some(listen), std::slice::from_ref(&one)).unwrap().unwrap();
        assert_eq!((serves.listen, &serves.stores), (listen, &vec![one.clone()]));
        assert_eq!(Serves::settle(&folder, None, &[]).unwrap().as_ref(), Some(&serves));
        let other: SocketAddr = ([10, 0, 0, 9], 1).into();
        let serves = Serves::settle(&folder, Some(other), &[one.clone(), two.clone()]).unwrap().unwrap();
        assert_eq!((serves.listen, serves.stores), (other, vec![one, two]));
        assert_eq!(Serves::address(other).unwrap(), "10.0.0.9:1");
    }
}
