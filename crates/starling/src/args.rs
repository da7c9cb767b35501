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

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a file system and mount it; create it on first use.
    Up(Up),
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

/// Arguments of `up`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling up ./mnt --data ./data                      five stores below ./data, one parity fragment per stripe
  starling up ./mnt --data ./data --parity 2           survives any two stores
  starling up ./mnt --data ./data --store /disk1/s --store /disk2/s --store /disk3/s
  starling up ./mnt --data ./data --background         returns when mounted; end it with `starling down ./mnt`

Sizes: bytes, or with KiB, MiB, GiB, TiB. Stores, parity, block size and store size are fixed when the file system is
created and read back later. An ordinary user needs the package fuse3; --allow-other needs root, or `user_allow_other` in
/etc/fuse.conf.")]
pub struct Up {
    /// Where to mount: an existing folder.
    pub mountpoint: PathBuf,
    /// Data folder: the stores, unless --store puts them elsewhere, the lock, the control socket and the log of --background.
    #[arg(long)]
    pub data: PathBuf,
    /// Number of storage servers (at creation) [default: 5].
    #[arg(long)]
    pub stores: Option<u16>,
    /// A storage server's folder, repeated for each, in place of folders below --data (at creation).
    #[arg(long = "store", value_name = "PATH", conflicts_with = "stores")]
    pub store: Vec<PathBuf>,
    /// Parity fragments per stripe: how many stores may be bad at once (at creation) [default: 1].
    #[arg(long)]
    pub parity: Option<u8>,
    /// Block size, a power of two from 4KiB (at creation) [default: 64KiB].
    #[arg(long)]
    pub block_size: Option<String>,
    /// Bytes each store may use (at creation) [default: its share of what the disk has free].
    #[arg(long)]
    pub store_size: Option<String>,
    /// Bound of the data cache in memory [default: 512MiB].
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
