//! The command line. Parsing only; nothing here touches the environment.

use clap::{Args as ClapArgs, Parser, Subcommand};
use std::path::PathBuf;

/// A file system of many machines: striped logs with parity, managed without a central server.
#[derive(Parser, Debug)]
#[command(name = "starling", version, propagate_version = true)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What is wrong with a command line, and how to find out what would be right.
pub fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut paragraphs = text.split("\n\n").map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut line = paragraphs.next().unwrap_or_default();
    if let Some(tip) = paragraphs.find_map(|p| p.strip_prefix("tip: ").map(str::to_string)) {
        line += &format!("; {tip}");
    }
    format!("{}; see --help", line.strip_prefix("error: ").unwrap_or(&line))
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a file system and mount it; create it on first use.
    Up(Up),
    /// Serve one storage server from a folder, for `up --store` of this or another machine.
    Store(Store),
    /// Make the keys for stores on other machines.
    #[command(after_help = "Examples:
  starling keys ./keys                                 prints what to copy where
  starling store ./s0 --listen 0.0.0.0:7450 --keys ./keys
  starling up ./mnt --data ./data --keys ./keys --store tls://one:7450 --store tls://two:7450 --store tls://three:7450")]
    Keys(Keys),
    /// Commit everything, unmount, and end the process that serves the mount.
    #[command(after_help = "Examples:\n  starling down ./mnt")]
    Down(Mounted),
    /// Commit everything now: when this returns, all that was written is durable.
    #[command(
        after_help = "Examples:\n  starling sync ./mnt\n\nNote: sync(1) does not reach FUSE mounts; fsync(2) of any file or directory commits everything too."
    )]
    Sync(Mounted),
    /// Show stores, space, segments, caches and what is not committed yet.
    #[command(after_help = "Examples:\n  starling status ./mnt\n  starling status ./mnt --json | jq .space")]
    Status(Status),
    /// Read every fragment of every segment and check it; with --repair, rebuild what is missing or damaged.
    #[command(after_help = "Examples:\n  starling scrub ./mnt\n  starling scrub ./mnt --repair --json")]
    Scrub(Scrub),
    /// Check a file system that is not running: every inode reachable, every block readable, utilisation adds up.
    #[command(after_help = "Examples:\n  starling fsck --data ./data")]
    Fsck(Fsck),
}

/// A mount.
#[derive(ClapArgs, Debug)]
pub struct Mounted {
    /// The mount point, or anything below it.
    pub mountpoint: PathBuf,
}

/// Arguments of `status`.
#[derive(ClapArgs, Debug)]
pub struct Status {
    /// The mount point, or anything below it.
    pub mountpoint: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `scrub`.
#[derive(ClapArgs, Debug)]
pub struct Scrub {
    /// The mount point, or anything below it.
    pub mountpoint: PathBuf,
    /// Rebuild what is missing or damaged from the rest of each stripe.
    #[arg(long)]
    pub repair: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `fsck`.
#[derive(ClapArgs, Debug)]
pub struct Fsck {
    /// The data folder.
    #[arg(long)]
    pub data: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `store`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling store ./s0 --listen 127.0.0.1:7450 --background
  starling store /disk1/s --listen 0.0.0.0:7450 --keys ./keys
  starling up ./mnt --data ./data --store tcp://127.0.0.1:7450 --store tcp://127.0.0.1:7451 --store /disk3/s

An empty folder becomes a store when `up` creates a file system over it, or starts one whose store there was lost. SIGINT and SIGTERM
close the store. Without --keys only this machine can reach it, and every user of this machine can.")]
pub struct Store {
    /// The store's folder; made if it is not there.
    pub folder: PathBuf,
    /// Address and port to listen at; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: String,
    /// A folder with keys from `starling keys`: serve over TLS, and only those who have keys of the same making.
    #[arg(long, value_name = "DIR")]
    pub keys: Option<PathBuf>,
    /// Detach from the terminal once listening; the log is starling.log in the folder.
    #[arg(long)]
    pub background: bool,
}

/// Arguments of `keys`.
#[derive(ClapArgs, Debug)]
pub struct Keys {
    /// A new folder for them.
    pub folder: PathBuf,
}

/// Arguments of `up`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling up ./mnt --data ./data                      five stores below ./data, one parity fragment per stripe
  starling up ./mnt --data ./data --parity 2           survives any two stores
  starling up ./mnt --data ./data --store /disk1/s --store /disk2/s --store /disk3/s
  starling up ./mnt --data ./data --store tcp://127.0.0.1:7450 --store tcp://127.0.0.1:7451   stores that `starling store` serves
  starling up ./mnt --data ./data --keys ./keys --store tls://one:7450 --store tls://two:7450
  starling up ./mnt --data ./data --background         returns when mounted; end it with `starling down ./mnt`

Sizes: bytes, or with KiB, MiB, GiB, TiB. Stores, parity, block size and store size are fixed when the file system is
created and read back later. An ordinary user needs the package fuse3; --allow-other needs root, or `user_allow_other` in
/etc/fuse.conf.")]
pub struct Up {
    /// Where to mount: a folder, which is made if only its last part is missing.
    pub mountpoint: PathBuf,
    /// Data folder: the stores, unless --store puts them elsewhere, the lock, the control socket and the log of --background.
    #[arg(long)]
    pub data: PathBuf,
    /// Number of storage servers (at creation) [default: 5].
    #[arg(long)]
    pub stores: Option<u16>,
    /// A storage server, repeated for each, in place of folders below --data: a folder, or tcp://HOST:PORT or tls://HOST:PORT where
    /// `starling store` serves one. Later, all in the same order, where they are now.
    #[arg(long = "store", value_name = "PLACE", conflicts_with = "stores")]
    pub store: Vec<PathBuf>,
    /// A folder with keys from `starling keys`, for tls:// stores [default: the last one given].
    #[arg(long, value_name = "DIR")]
    pub keys: Option<PathBuf>,
    /// Parity fragments per stripe: how many stores may be bad at once (at creation) [default: 1].
    #[arg(long)]
    pub parity: Option<u8>,
    /// Block size, a power of two from 4KiB (at creation) [default: 64KiB].
    #[arg(long)]
    pub block_size: Option<String>,
    /// Bytes each store may use (at creation) [default: nine tenths of what the fullest disk has free, shared among the stores on it; more is refused].
    #[arg(long)]
    pub store_size: Option<String>,
    /// Bound of the caches in memory: data, three quarters of it, and inodes [default: 512MiB].
    #[arg(long)]
    pub cache_size: Option<String>,
    /// Let other users in, with the permissions that files and directories give them.
    #[arg(long)]
    pub allow_other: bool,
    /// Detach from the terminal once mounted.
    #[arg(long)]
    pub background: bool,
    /// A TOML file with any of the settings above, by the same names; the command line wins.
    #[arg(long)]
    pub config: Option<PathBuf>,
}
