//! The data folder of a node that has joined, or is joining.
//!
//! `node.json` says which file system and which node the folder belongs to, and is written last.
//! Before that, `join.json` has the invitation and the name that the user asked for, so that a join
//! that was cut short can go on. `serves.json` says what the node serves to others, and
//! `roles.json` what the user chose it to be. `node.key`, `node.pem` and `ca.pem` are its identity.
//! The process that serves locks `lock`, and `control.sock` leads to it. A background process logs
//! to `starling.log`.

use crate::folder::{self, FolderLock};
use crate::node::{identity, rack, roles, serving};
use crate::{private, usage};
use anyhow::Context;
use join::{Admission, NodeInvitation};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use types::{FsUuid, NodeId};

/// The file that says which node the folder belongs to.
pub const ABOUT: &str = "node.json";
const PENDING: &str = "join.json";
/// Version of all files of a node.
const VERSION: u32 = 1;
/// What a node's data folder may have before it has joined.
const BEFORE: [&str; 10] = [
    PENDING,
    identity::KEY,
    identity::CERTIFICATE,
    identity::CA,
    serving::FILE,
    roles::FILE,
    rack::FILE,
    "lock",
    "control.sock",
    "starling.log",
];

/// The contents of `node.json`.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
pub struct AboutNode {
    version: u32,
    /// The file system.
    pub file_system: String,
    /// The node's number.
    node: u16,
    /// The node's name.
    pub name: String,
    /// Addresses of the first node, as host:port, in the order in which to try them.
    pub first_node: Vec<String>,
    /// It was the first node, and its user may start it as one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    was_first: bool,
}

impl AboutNode {
    /// A node that was the first one, with its number and name as a member, and addresses at which
    /// the first node may be.
    pub fn of_former_first(fs: FsUuid, node: NodeId, name: String, first_node: Vec<String>) -> AboutNode {
        let (file_system, node) = (fs.to_string(), node.raw());
        AboutNode { version: VERSION, file_system, node, name, first_node, was_first: true }
    }

    /// The node's number.
    pub fn node(&self) -> NodeId {
        NodeId::new(self.node)
    }

    /// The file system.
    pub fn file_system(&self) -> anyhow::Result<FsUuid> {
        self.file_system.parse().map_err(|e| usage(format!("{ABOUT} is damaged ({e}): restore it from a copy")))
    }
}

/// A join that has begun: the contents of `join.json`.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
struct PendingJoin {
    version: u32,
    invitation: String,
    /// The name that the user asked for; empty if none.
    name: String,
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Reads a file of JSON that has a version; `None` if it is not there.
pub fn read<T: DeserializeOwned>(folder: &Path, name: &str) -> anyhow::Result<Option<T>> {
    let path = folder.join(name);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(usage(format!("{}: {e}", path.display()))),
    };
    let damaged = |e: serde_json::Error| usage(format!("{} is damaged ({e}): restore it from a copy", path.display()));
    let Versioned { version } = serde_json::from_str(&text).map_err(damaged)?;
    if version > VERSION {
        return Err(usage(format!(
            "{} has version {version}, this program knows up to {VERSION}: use a newer starling",
            path.display()
        )));
    }
    serde_json::from_str(&text).map(Some).map_err(damaged)
}

/// True if the folder belongs to a member that was the first node.
pub fn was_first(path: &Path) -> bool {
    read::<AboutNode>(path, ABOUT).ok().flatten().is_some_and(|about| about.was_first)
}

/// True if the folder belongs to a node that has joined a file system, or has begun to.
pub fn is_node_folder(path: &Path) -> bool {
    path.join(ABOUT).exists() || path.join(PENDING).exists()
}

/// A locked data folder of a node.
pub struct NodeFolder {
    path: PathBuf,
    /// True if this process made the folder.
    is_made: bool,
    lock: FolderLock,
}

impl NodeFolder {
    /// Locks the folder, and makes it if it does not exist. Refuses it if another process has
    /// locked it, or if it has other things than a node's.
    pub fn open(path: &Path) -> anyhow::Result<NodeFolder> {
        let shown = path.display();
        let is_made = !path.exists();
        let path = private::make(path)?;
        if !path.join(ABOUT).exists() {
            let entries = std::fs::read_dir(&path).map_err(|e| usage(format!("{shown}: {e}")))?;
            let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
            let is_known = |name: &std::ffi::OsString| {
                let name = name.to_string_lossy();
                BEFORE.contains(&name.strip_suffix(".new").unwrap_or(&name))
            };
            if let Some(name) = names.iter().find(|name| !is_known(name)) {
                let name = name.to_string_lossy();
                return Err(usage(format!("{shown} holds other things ({name}): give an empty or new folder")));
            }
        }
        let lock = folder::lock(&path, shown)?;
        Ok(NodeFolder { path, is_made, lock })
    }

    /// The absolute path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a file of JSON in the folder; `None` if it is not there.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> anyhow::Result<Option<T>> {
        read(&self.path, name)
    }

    /// Writes a file of JSON in the folder, durably.
    pub fn write(&self, name: &str, contents: &impl Serialize) -> anyhow::Result<()> {
        identity::put(&self.path, name, &serde_json::to_string_pretty(contents)?)
    }

    /// The version of what this program writes.
    pub fn version(&self) -> u32 {
        VERSION
    }

    /// What the node is; `None` if it has not joined yet.
    pub fn about(&self) -> anyhow::Result<Option<AboutNode>> {
        read(&self.path, ABOUT)
    }

    /// The invitation and the name of a join that has begun.
    pub fn pending(&self) -> anyhow::Result<Option<(NodeInvitation, String)>> {
        let Some(PendingJoin { invitation, name, .. }) = read(&self.path, PENDING)? else { return Ok(None) };
        let invitation = invitation.parse();
        let invitation = invitation.map_err(|e| usage(format!("{}: {e}", self.path.join(PENDING).display())))?;
        Ok(Some((invitation, name)))
    }

    /// Records, durably, that a join begins.
    pub fn begin(&self, invitation: &NodeInvitation, name: &str) -> anyhow::Result<()> {
        let pending = PendingJoin { version: VERSION, invitation: invitation.to_string(), name: name.to_string() };
        identity::put(&self.path, PENDING, &serde_json::to_string_pretty(&pending)?)
    }

    /// Records, durably, that the node has joined.
    pub fn joined(&self, admission: &Admission, first_node: Vec<String>) -> anyhow::Result<AboutNode> {
        let about = AboutNode {
            version: VERSION,
            file_system: admission.fs.to_string(),
            node: admission.node.raw(),
            name: admission.name.clone(),
            first_node,
            was_first: false,
        };
        identity::put(&self.path, identity::CA, &admission.authority)?;
        identity::put(&self.path, identity::CERTIFICATE, &admission.certificate)?;
        identity::put(&self.path, ABOUT, &serde_json::to_string_pretty(&about)?)?;
        match std::fs::remove_file(self.path.join(PENDING)) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e).context(PENDING),
            _ => Ok(about),
        }
    }

    /// Removes what a join has put into the folder, which the first node has refused. Removes the
    /// folder too if it was made for that.
    pub fn forget(self) {
        for name in [PENDING, identity::KEY] {
            let _ = std::fs::remove_file(self.path.join(name));
        }
        if self.lock.is_new {
            let _ = std::fs::remove_file(self.path.join(folder::LOCK));
        }
        if self.is_made {
            // If another process has put something in, the folder stays.
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use cluster::FsConfig;
    use std::fs;

    /// A file system of three stores without members.
    pub fn config() -> FsConfig {
        FsConfig {
            fs: FsUuid([3; 16]),
            store_count: 3,
            parity: 1,
            block_size: 65536,
            store_capacity_bytes: 1 << 30,
            managers: cluster::config::first_manager_map(2),
            members: Default::default(),
            next_node: 1,
            places: Default::default(),
            first_node: None,
            draining: Default::default(),
            through_first: Default::default(),
            first_member: None,
            voters: cluster::config::first_voters(),
            next_voter: 2,
            is_whole: true,
        }
    }

    fn said<T>(result: anyhow::Result<T>) -> String {
        let error = result.err().expect("an error");
        assert!(error.is::<crate::Usage>(), "{error:#}");
        error.to_string()
    }

    fn invitation() -> NodeInvitation {
        NodeInvitation { addresses: vec!["10.0.0.1:7440".into()], authority: [1; 32], secret: [2; 16] }
    }

    fn admission() -> Admission {
        let (certificate, authority) = ("certificate".into(), "authority".into());
        Admission { fs: FsUuid([3; 16]), node: NodeId::new(4), name: "db".into(), certificate, authority }
    }

    #[test]
    fn a_folder_says_how_far_its_node_has_come() {
        let below = tempfile::tempdir().unwrap();
        let path = below.path().join("data");
        let folder = NodeFolder::open(&path).unwrap();
        assert!(!is_node_folder(&path) && folder.pending().unwrap().is_none());
        folder.begin(&invitation(), "db").unwrap();
        assert!(is_node_folder(&path) && folder.about().unwrap().is_none());
        assert_eq!(folder.pending().unwrap(), Some((invitation(), "db".to_string())));
        assert!(said(NodeFolder::open(&path)).contains(&format!("in use by process {}", std::process::id())));
        drop(folder);
        let folder = NodeFolder::open(&path).unwrap();
        let about = folder.joined(&admission(), vec!["10.0.0.1:7440".into()]).unwrap();
        assert_eq!((about.node(), &about.name[..]), (NodeId::new(4), "db"));
        assert_eq!(about.file_system, admission().fs.to_string());
        assert_eq!((folder.about().unwrap(), folder.pending().unwrap()), (Some(about), None));
        assert!(is_node_folder(&path));
    }

    #[test]
    fn a_refused_join_leaves_nothing_behind() {
        let below = tempfile::tempdir().unwrap();
        let (made, there) = (below.path().join("made"), below.path().join("there"));
        private::make(&there).unwrap();
        for path in [&made, &there] {
            let folder = NodeFolder::open(path).unwrap();
            identity::key(path).unwrap();
            folder.begin(&invitation(), "").unwrap();
            folder.forget();
        }
        assert!(!made.exists() && fs::read_dir(&there).unwrap().count() == 0);
    }

    #[test]
    fn other_folders_and_damaged_or_newer_files_are_refused() {
        let below = tempfile::tempdir().unwrap();
        let path = private::make(&below.path().join("data")).unwrap();
        fs::write(path.join("thesis.txt"), "precious").unwrap();
        assert!(said(NodeFolder::open(&path)).contains("other things (thesis.txt)"));
        fs::remove_file(path.join("thesis.txt")).unwrap();
        let folder = NodeFolder::open(&path).unwrap();
        let about = folder.joined(&admission(), Vec::new()).unwrap();
        let text = serde_json::to_string(&about).unwrap();
        for (text, word) in [
            (text.replace("\"version\":1", "\"version\":2"), "newer starling"),
            (text.replace("\"name\"", "\"nom\""), "damaged"),
            ("{}".into(), "damaged"),
        ] {
            fs::write(path.join(ABOUT), text).unwrap();
            assert!(said(folder.about()).contains(word));
        }
        let pending = PendingJoin { version: VERSION, invitation: "starlingnode1-a".into(), name: String::new() };
        fs::write(path.join(PENDING), serde_json::to_string(&pending).unwrap()).unwrap();
        assert!(said(folder.pending()).contains("join.json"));
    }
}
