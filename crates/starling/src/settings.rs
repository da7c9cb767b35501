//! Settings of `up`: the configuration file under the command line, checked.

use crate::args::Up;
use crate::location::Location;
use crate::mountpoint::NO_MOUNTPOINT;
use crate::{size, usage};
use policy::defaults::{MEMORY_BYTES, PARITIES, SHARED_STORES, STORES};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const CACHE_BYTES_MIN: u64 = 16 << 20;

/// The contents of the configuration file; its keys are named like the options.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    stores: Option<u16>,
    store: Option<Vec<PathBuf>>,
    keys: Option<PathBuf>,
    parity: Option<u8>,
    block_size: Option<String>,
    store_size: Option<String>,
    cache_size: Option<String>,
    allow_other: Option<bool>,
    listen: Option<SocketAddr>,
    no_mount: Option<bool>,
}

/// The geometry asked for a new file system; `None` where no option was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Geometry {
    /// Number of stores.
    pub stores: Option<u16>,
    /// Their places, if not folders below the data folder.
    pub store: Vec<Location>,
    /// Parity fragments.
    pub parity: Option<u8>,
    /// Block size in bytes.
    pub block_size: Option<u32>,
    /// Bytes per store.
    pub store_size: Option<u64>,
    /// Other nodes may join.
    pub is_shared: bool,
}

impl Geometry {
    /// Number of stores of a new file system.
    pub fn store_count(&self) -> u16 {
        if !self.store.is_empty() {
            return self.store.len() as u16;
        }
        let is_small = self.is_shared && self.parity.unwrap_or(PARITIES) == 1;
        self.stores.unwrap_or(if is_small { SHARED_STORES } else { STORES })
    }
}

/// The settings of `up`, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to mount; `None` mounts nothing.
    pub mountpoint: Option<PathBuf>,
    /// The data folder.
    pub data: PathBuf,
    /// Geometry of a new file system.
    pub geometry: Geometry,
    /// The folder with keys.
    pub keys: Option<PathBuf>,
    /// Bound of the caches.
    pub cache_bytes: u64,
    /// Let other users in.
    pub allow_other: bool,
    /// Where to listen for other nodes; `None` if this is the only one.
    pub listen: Option<SocketAddr>,
    /// Start although acknowledged changes may be lost.
    pub accept_loss: bool,
}

impl Settings {
    /// Reads the configuration file, if there is one, and checks everything that can be checked
    /// without touching the stores.
    pub fn from(up: &Up) -> anyhow::Result<Settings> {
        let file = match &up.config {
            Some(path) => read(path)?,
            None => File::default(),
        };
        let bytes = |flag: &str, text: &Option<String>| {
            text.as_ref().map(|t| size::parse(t).map_err(|e| usage(format!("--{flag}: {e}")))).transpose()
        };
        let block_size = bytes("block-size", &up.block_size.clone().or(file.block_size))?;
        let block_size = match block_size.map(u32::try_from) {
            Some(Err(_)) => return Err(usage("--block-size must be a power of two from 4KiB to 1MiB")),
            Some(Ok(size)) => Some(size),
            None => None,
        };
        let cache_bytes = cache_bytes(up.cache_size.as_ref().or(file.cache_size.as_ref()))?;
        let store = if up.store.is_empty() { file.store.unwrap_or_default() } else { up.store.clone() };
        let listen = up.listen.or(file.listen);
        let geometry = Geometry {
            stores: up.stores.or(file.stores),
            store: store.iter().map(|written| Location::parse(written)).collect::<Result<_, _>>()?,
            parity: up.parity.or(file.parity),
            block_size,
            store_size: bytes("store-size", &up.store_size.clone().or(file.store_size))?,
            is_shared: listen.is_some(),
        };
        let of_joined = [("--first-node", up.first_node.is_some()), ("--roles", up.roles.is_some())];
        if let Some((flag, _)) = of_joined.iter().find(|(_, is_given)| *is_given) {
            let data = up.data.display();
            return Err(usage(format!("{flag} is for a node that has joined: {data} belongs to none")));
        }
        if geometry.stores == Some(0) {
            return Err(usage("--stores must be at least 2"));
        }
        match (&up.mountpoint, up.no_mount || file.no_mount.unwrap_or(false), listen) {
            (None, false, _) => return Err(usage(NO_MOUNTPOINT)),
            (None, true, None) => {
                return Err(usage(
                    "--no-mount: without a mount, other nodes must reach this one: add --listen ADDRESS:PORT",
                ));
            }
            _ => {}
        }
        Ok(Settings {
            mountpoint: up.mountpoint.clone(),
            data: up.data.clone(),
            geometry,
            keys: up.keys.clone().or(file.keys),
            cache_bytes,
            allow_other: up.allow_other || file.allow_other.unwrap_or(false),
            listen,
            accept_loss: up.accept_loss,
        })
    }
}

/// What a node that has joined takes from the command line, and from the configuration file of a
/// first node that it once was.
#[derive(Debug)]
pub struct NodeSettings {
    /// Mount nothing.
    pub no_mount: bool,
    /// Bound of the caches.
    pub cache_bytes: u64,
    /// Let other users in.
    pub allow_other: bool,
    /// Where to listen for other nodes.
    pub listen: Option<SocketAddr>,
}

impl NodeSettings {
    /// Reads the configuration file, if there is one.
    pub fn from(up: &Up) -> anyhow::Result<NodeSettings> {
        let file = up.config.as_deref().map(read).transpose()?.unwrap_or_default();
        Ok(NodeSettings {
            no_mount: up.no_mount || file.no_mount.unwrap_or(false),
            cache_bytes: cache_bytes(up.cache_size.as_ref().or(file.cache_size.as_ref()))?,
            allow_other: up.allow_other || file.allow_other.unwrap_or(false),
            listen: up.listen.or(file.listen),
        })
    }
}

/// The bound of the caches that the user asked for.
pub fn cache_bytes(text: Option<&String>) -> anyhow::Result<u64> {
    let bytes = text.map(|text| size::parse(text).map_err(|e| usage(format!("--cache-size: {e}")))).transpose()?;
    match bytes.unwrap_or(MEMORY_BYTES) {
        bytes if bytes < CACHE_BYTES_MIN => {
            Err(usage(format!("--cache-size must be at least {}", size::show(CACHE_BYTES_MIN))))
        }
        bytes => Ok(bytes),
    }
}

fn read(path: &Path) -> anyhow::Result<File> {
    let text =
        std::fs::read_to_string(path).map_err(|e| usage(format!("configuration file {}: {e}", path.display())))?;
    toml::from_str(&text).map_err(|e| usage(format!("configuration file {}: {}", path.display(), e.message())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    fn settings(config: &str, flags: &[&str]) -> anyhow::Result<Settings> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("starling.toml");
        std::fs::write(&path, config)?;
        let path = path.to_string_lossy().into_owned();
        let mut line = vec!["starling", "up", "m", "--data", "d", "--config", &path];
        line.extend(flags);
        match Args::try_parse_from(line)?.command {
            Command::Up(up) => Settings::from(&up),
            _ => anyhow::bail!("not up"),
        }
    }

    /// A former first node dropped what its file said of users and caches.
    #[test]
    fn regression_a_former_first_node_goes_by_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("starling.toml");
        std::fs::write(&path, "allow-other = true\ncache-size = \"64MiB\"\nlisten = \"127.0.0.1:7440\"\nstores = 3")
            .unwrap();
        let of = |flags: &[&str]| {
            let config = path.to_string_lossy();
            let line = ["starling", "up", "m", "--data", "d", "--config", &config];
            match Args::try_parse_from(line.iter().chain(flags)).unwrap().command {
                Command::Up(up) => NodeSettings::from(&up).unwrap(),
                _ => panic!("not up"),
            }
        };
        let said = of(&[]);
        assert_eq!((said.allow_other, said.cache_bytes, said.no_mount), (true, 64 << 20, false));
        assert_eq!(said.listen, Some("127.0.0.1:7440".parse().unwrap()));
        assert_eq!(of(&["--cache-size", "32MiB"]).cache_bytes, 32 << 20);
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let s = settings("parity = 2\ncache-size = \"64MiB\"\nstores = 7", &["--cache-size", "32MiB"]).unwrap();
        assert_eq!((s.geometry.parity, s.geometry.stores, s.cache_bytes), (Some(2), Some(7), 32 << 20));
    }

    #[test]
    fn a_file_system_that_others_may_join_has_three_stores() {
        let listen = ["--listen", "10.0.0.1:7440"];
        for (flags, count) in [
            (&[][..], 5),
            (&listen[..], 3),
            (&[listen[0], listen[1], "--parity", "2"], 5),
            (&[listen[0], listen[1], "--stores", "7"], 7),
            (&[listen[0], listen[1], "--store", "a", "--store", "b"], 2),
        ] {
            assert_eq!(settings("", flags).unwrap().geometry.store_count(), count, "{flags:?}");
        }
    }

    #[test]
    fn wrong_settings_are_named_and_are_the_askers_errors() {
        for (config, flags, word) in [
            ("partiy = 2", &[][..], "partiy"),
            ("", &["--cache-size", "1"], "cache-size"),
            ("", &["--block-size", "lots"], "block-size"),
            ("parity = \"x\"", &[], "invalid type"),
        ] {
            let e = settings(config, flags).unwrap_err();
            assert!(e.to_string().contains(word), "{e}");
            assert!(e.downcast_ref::<crate::Usage>().is_some());
        }
    }
}
