//! What a node that has joined does for the file system, as the user chose: `roles.json` in its
//! data folder. Without the file, the node mounts the file system, and serves managers if it
//! listens.

use crate::node::joined::{self, NodeFolder};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Name of the file.
pub const FILE: &str = "roles.json";

/// What the node does, besides serving the stores that it has.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct Roles {
    version: u32,
    /// It mounts the file system.
    pub client: bool,
    /// It serves managers, if it listens and the first node gives it some.
    pub manager: bool,
    /// It has a voter, if it listens and the node that leads gives it one.
    #[serde(default)]
    pub voter: bool,
}

impl Default for Roles {
    fn default() -> Roles {
        Roles { version: 1, client: true, manager: true, voter: false }
    }
}

impl Roles {
    /// Those of a member that was the first node: as before, and it votes.
    pub fn of_former_first(mounts: bool) -> Roles {
        Roles { client: mounts, voter: true, ..Roles::default() }
    }

    /// What the user chose before; `None` if nothing. `data` is the node's data folder, which may
    /// not exist.
    pub fn known(data: &Path) -> anyhow::Result<Option<Roles>> {
        joined::read(data, FILE)
    }

    /// Records them, durably, unless they are what is known. A choice that is the default is one,
    /// too.
    pub fn keep(&self, folder: &NodeFolder) -> anyhow::Result<()> {
        if Roles::known(folder.path())? == Some(*self) { Ok(()) } else { folder.write(FILE, self).context(FILE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_remembered() {
        let below = tempfile::tempdir().unwrap();
        let data = below.path().join("data");
        assert_eq!(Roles::known(&data).unwrap(), None);
        let folder = NodeFolder::open(&data).unwrap();
        Roles::default().keep(&folder).unwrap();
        assert_eq!(Roles::known(&data).unwrap(), Some(Roles::default()), "it does not vote");
        let chosen = Roles { client: false, ..Roles::default() };
        chosen.keep(&folder).unwrap();
        assert_eq!(Roles::known(&data).unwrap(), Some(chosen));
        Roles::default().keep(&folder).unwrap();
        assert_eq!(Roles::known(&data).unwrap(), Some(Roles::default()));
    }
}
