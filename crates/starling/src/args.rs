//! The command line. Parsing only; nothing here touches the environment.

mod sim;
mod traces;

pub use sim::{
    Advise, Availability, Cleaning, Cooperative, Locality, Machines, Mobile, Output, Papers, Sim, SimCommand,
};
pub use traces::{Format, Import, Merge, Record, SynthCommand, Trace, TraceCommand, WorstCase};

use clap::{Args as ClapArgs, Parser, Subcommand};
use std::path::PathBuf;

/// A file system of many machines: striped logs with parity, managed without a central server, and
/// mounts of it that work anywhere.
#[derive(Parser, Debug)]
#[command(
    name = "starling",
    version,
    propagate_version = true,
    after_help = "Examples:
  starling up ./mnt --data ./data                                   a file system on this machine
  starling home serve dir:/srv/projects --data ./home --listen 0.0.0.0:7443
  starling invite --data ./home                                     lets one laptop in; there:
  starling mount INVITATION ./work
  starling status ./work

`starling COMMAND --help` has examples of each."
)]
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
    /// Make traces of what clients do with files, and show what is in them.
    Trace(Trace),
    /// Try policies on a trace, before they are turned on.
    Sim(Sim),
    /// Say what to set for one's own trace, why, and what that is worth.
    Advise(Advise),
    /// Make the keys for stores on other machines.
    #[command(after_help = "Examples:
  starling keys ./keys                                 prints what to copy where
  starling store ./s0 --listen 0.0.0.0:7450 --keys ./keys
  starling up ./mnt --data ./data --keys ./keys --store tls://one:7450 --store tls://two:7450 --store tls://three:7450")]
    Keys(Keys),
    /// Export directories to clients that roam, such as laptops.
    Home(Home),
    /// Let a client in: prints a line to give to `starling mount` there, which can be used once.
    #[command(after_help = "Examples:
  starling invite --data ./home
  starling invite --data ./home --volume photos --user ann --valid 2d
  starling invite --data ./home --address home.example.org:7443      where the client finds this home, if that is not an address of this machine

The last line printed is the invitation. Whoever has it is let in as the user named, so hand it over as you would a password.
Other users of a machine can see what is on a command line there: `starling mount --invitation -` reads it from standard input.")]
    Invite(Invite),
    /// Mount what a home exports; goes on working without a network.
    Mount(Mount),
    /// Show what was done here and is not home yet, in the order in which it goes.
    #[command(after_help = "Examples:\n  starling pending ./work\n  starling pending ./work --json | jq length")]
    Pending(Status),
    /// Choose whether and how a mount uses the network.
    #[command(after_help = "Examples:
  starling connect off ./work          work from the cache alone, when files of which a part is cached are whole
  starling connect off --now ./work    without waiting for that
  starling connect fetch-only ./work   fetch what is needed, send nothing
  starling connect weak ./work         send in the background only, however near the home is
  starling connect auto ./work         as the link is (what a mount begins with)

By itself, a mount is fetch-only while somebody reads over a link that is very slow; then some of what waits goes home every two minutes.")]
    Connect(Connect),
    /// Change how a mount that roams behaves.
    Set(Set),
    /// Keep files and directories in the cache of a mount that roams.
    Hoard(Hoard),
    /// Show what was done here and could not be done at home as it was, since others did something
    /// else there.
    Conflicts(Conflicts),
    /// Commit everything, unmount, and end the process that serves the mount.
    #[command(after_help = "Examples:\n  starling down ./mnt")]
    Down(Mounted),
    /// Commit everything now: when this returns, all that was written is durable.
    #[command(
        after_help = "Examples:\n  starling sync ./mnt\n  starling sync --home ./work      of a mount that roams: everything is home when this returns\n\nNote: sync(1) does not reach FUSE mounts; fsync(2) of any file or directory commits everything too."
    )]
    Sync(Sync),
    /// Show stores, space, segments, caches and what is not committed yet.
    #[command(after_help = "Examples:\n  starling status ./mnt\n  starling status ./mnt --json | jq .space")]
    Status(Status),
    /// Read every fragment of every segment and check it; with --repair, rebuild what is missing or
    /// damaged.
    #[command(after_help = "Examples:\n  starling scrub ./mnt\n  starling scrub ./mnt --repair --json")]
    Scrub(Scrub),
    /// Check a file system that is not running: every inode reachable, every block readable,
    /// utilisation adds up.
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
    /// A folder with keys from `starling keys`: serve over TLS, and only those who have keys of the
    /// same making.
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
  starling up ./mnt --data ./data --accept-loss        after a refusal, when stores do not come back as they were

Sizes: bytes, or with KiB, MiB, GiB, TiB. Stores, parity, block size and store size are fixed when the file system is
created and read back later. An ordinary user needs the package fuse3; --allow-other needs root, or `user_allow_other` in
/etc/fuse.conf.")]
pub struct Up {
    /// Where to mount: a folder, which is made if only its last part is missing.
    pub mountpoint: PathBuf,
    /// Data folder: the stores, unless --store puts them elsewhere, the lock, the control socket
    /// and the log of --background.
    #[arg(long)]
    pub data: PathBuf,
    /// Number of storage servers (at creation) [default: 5].
    #[arg(long)]
    pub stores: Option<u16>,
    /// A storage server, repeated for each, in place of folders below --data: a folder, or
    /// tcp://HOST:PORT or tls://HOST:PORT where `starling store` serves one. Later, all in the same
    /// order, where they are now.
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
    /// Bytes each store may use (at creation) [default: nine tenths of what the fullest disk has
    /// free, shared among the stores on it; more is refused].
    #[arg(long)]
    pub store_size: Option<String>,
    /// Bound of the caches in memory: data, three quarters of it, and inodes [default: 512MiB].
    #[arg(long)]
    pub cache_size: Option<String>,
    /// Let other users in, with the permissions that files and directories give them.
    #[arg(long)]
    pub allow_other: bool,
    /// Start although stores may lack newer changes, as a refusal says that they may: the stores
    /// that answer have all there is, and what is missing is given up for good. First try to bring
    /// back what the refusal names. A store that is lost for good is replaced by an empty folder
    /// before.
    #[arg(long)]
    pub accept_loss: bool,
    /// Detach from the terminal once mounted.
    #[arg(long)]
    pub background: bool,
    /// A TOML file with any of the settings above, by the same names; the command line wins.
    #[arg(long)]
    pub config: Option<PathBuf>,
}

/// Arguments of `home`.
#[derive(ClapArgs, Debug)]
pub struct Home {
    /// What to do.
    #[command(subcommand)]
    pub command: HomeCommand,
}

/// What `home` does.
#[derive(Subcommand, Debug)]
pub enum HomeCommand {
    /// Serve directories until a signal ends it.
    #[command(after_help = "Examples:
  starling home serve dir:/srv/projects --data /var/lib/starling-home --listen 0.0.0.0:7443
  starling home serve dir:/srv/projects photos=dir:/srv/pictures --data ./home --background
  starling invite --data ./home --volume projects      lets a client in

A directory is a volume, named as its last part unless NAME= says otherwise; one of a mounted Starling file system will do. Other programs may go on
using the directories. Run by root it serves any user, otherwise only whoever runs it. What clients store is made in the folder given by --data first. A directory on another file system than that gets a folder .starling, which clients do not see.")]
    Serve(HomeServe),
    /// List the clients that have accepted an invitation.
    #[command(after_help = "Examples:
  starling home clients --data /var/lib/starling-home
  starling home clients --data ./home --json")]
    Clients {
        /// The home's data folder.
        #[arg(long)]
        data: PathBuf,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Do nothing more for a client: one that was lost, or whose user has left.
    #[command(after_help = "Examples:
  starling home clients --data ./home        shows their numbers
  starling home turn-away --data ./home 2

What it did before stays. What it has not sent home is in its cache, and goes home if it is invited again:
  starling invite --data ./home              there: starling mount INVITATION MOUNTPOINT, with the same cache")]
    TurnAway {
        /// The home's data folder.
        #[arg(long)]
        data: PathBuf,
        /// Which, by its number.
        client: u32,
    },
}

/// Arguments of `home serve`.
#[derive(ClapArgs, Debug)]
pub struct HomeServe {
    /// What to export.
    #[arg(required = true, value_name = "[NAME=]dir:PATH")]
    pub exports: Vec<String>,
    /// Folder for the home's key and all that it must remember; made if it is not there.
    #[arg(long)]
    pub data: PathBuf,
    /// Address and UDP port to listen at.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:7443")]
    pub listen: std::net::SocketAddr,
    /// Detach from the terminal once listening; the log is starling.log in the data folder.
    #[arg(long)]
    pub background: bool,
}

/// Arguments of `invite`.
#[derive(ClapArgs, Debug)]
pub struct Invite {
    /// The home's data folder.
    #[arg(long)]
    pub data: PathBuf,
    /// Which volume, repeated if there are several, each of which is a directory of the mount then
    /// [default: all of the home].
    #[arg(long)]
    pub volume: Vec<String>,
    /// As whom the home does what the client asks, by name or number [default: whoever runs this].
    #[arg(long)]
    pub user: Option<String>,
    /// Where the client finds the home, repeated if there are several [default: the addresses of
    /// this machine].
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Vec<String>,
    /// What to call the client in `starling home clients`.
    #[arg(long)]
    pub name: Option<String>,
    /// For how long it can be accepted: a number with m, h or d.
    #[arg(long, default_value = "7d")]
    pub valid: String,
}

/// Arguments of `mount`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling mount starling1-... ./work           accepts an invitation and mounts
  starling mount --invitation FILE ./work       the same, where others could see the command line (by `ps`); - is standard input
  starling mount projects ./work                mounts again, by the volume's name: needs no network
  starling mount photos+projects ./work         the same, of several volumes
  starling mount projects ./work --background   returns when mounted; end it with `starling down ./work`
  starling mount starling1-... ./work --cache ./cache
  starling mount ./work --cache ./cache         mounts again what is cached there

What was done without a network goes home when there is one. The cache is kept in the user's data folder (~/.local/share/starling) unless --cache
says otherwise; what is not home yet is only there.")]
pub struct Mount {
    /// An invitation, or the name of a volume that was mounted before (or of several, with +
    /// between them); then where to mount. With --cache or --invitation the mount point is enough.
    /// Other users of this machine can see a command line, and an invitation on it: --invitation
    /// hides it.
    #[arg(required = true, num_args = 1..=2, value_names = ["INVITATION|VOLUME", "MOUNTPOINT"])]
    pub what: Vec<String>,
    /// Read the invitation from this file, or from standard input (-): its last line that is not
    /// empty.
    #[arg(long, value_name = "FILE")]
    pub invitation: Option<PathBuf>,
    /// Folder of the cache.
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    #[command(flatten)]
    pub behaviour: Behaviour,
    /// Let other users in, with the permissions that files and directories give them.
    #[arg(long)]
    pub allow_other: bool,
    /// Detach from the terminal once mounted; the log is starling.log in the cache.
    #[arg(long)]
    pub background: bool,
}

/// How a mount that roams behaves.
#[derive(ClapArgs, Debug)]
pub struct Behaviour {
    /// When what is cached is believed: callbacks (until the home says that it changed), poll=30s
    /// (asked at least this often), strong (as long as the home has promised that nobody changes
    /// it: not without the home for longer than half a minute), none (always).
    #[arg(long, value_name = "HOW")]
    pub consistency: Option<roam::Consistency>,
    /// When changes go home over a link that is slow: idle, lottery (of whatever is sent or fetched
    /// next), lottery=30% (so much of the link while somebody waits for what he reads; at most
    /// 50%), delayed=15m, preemptive, through (before they are answered), manual.
    #[arg(long, value_name = "WHEN")]
    pub writes: Option<roam::Writes>,
    /// What is fetched of a file that is read: auto, file (all of it), block (what is read).
    #[arg(long, value_name = "WHAT")]
    pub unit: Option<roam::Unit>,
    /// How the cache is found to be valid after a time without the home: volume (one question for
    /// all), and for comparison batched (50 files in a question) or single.
    #[arg(long, value_name = "HOW")]
    pub validation: Option<roam::Validation>,
    /// When what programs do is durable on this machine: grouped (after a second, or when they wait
    /// for it by fsync) or always (when it is answered, and what is in a file when that is closed).
    #[arg(long, value_name = "WHEN")]
    pub durability: Option<roam::Durability>,
    /// Bound of the cache on disk. Where what is not home yet takes more, writers wait for the
    /// home; without a network it is kept beyond that.
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    pub cache_size: Option<u64>,
    /// How many files the mount caches names and attributes for; each takes up to 1 KiB of memory.
    /// Files that are open, hoarded, in a conflict or not home yet stay beyond that.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1000..))]
    pub cache_files: Option<u64>,
}

/// Arguments of `set`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling set ./work --consistency poll=30s
  starling set ./work --writes manual          `starling sync --home ./work` sends what waits
  starling set ./work --cache-size 5GiB --unit block
  starling set ./work --durability always        each close waits until the file is on this machine's disk

Holds until the mount ends.")]
pub struct Set {
    /// The mount point, or anything below it.
    pub mountpoint: PathBuf,
    #[command(flatten)]
    pub behaviour: Behaviour,
}

/// Arguments of `sync`.
#[derive(ClapArgs, Debug)]
pub struct Sync {
    /// The mount point, or anything below it.
    pub mountpoint: PathBuf,
    /// Of a mount that roams: send everything home now, and wait until it is there.
    #[arg(long)]
    pub home: bool,
}

/// Arguments of `hoard`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling hoard add work/thesis --priority 90
  starling hoard add --profile ./hoard.txt --mount ./work      a line each: PRIORITY PATH, from the mount's root
  starling hoard walk ./work                                   fetches all of it; exit code 0: the link may go
  starling hoard list ./work

What is hoarded is fetched and kept up to date every 10 minutes, and leaves the cache last.")]
pub struct Hoard {
    /// What to do.
    #[command(subcommand)]
    pub command: HoardCommand,
}

/// What `hoard` does.
#[derive(Subcommand, Debug)]
pub enum HoardCommand {
    /// Keep a file or directory, with all below it, in the cache.
    Add {
        /// Below a mount.
        #[arg(required_unless_present = "profile")]
        path: Option<PathBuf>,
        /// How dear it is, up to 100: what is dearest is fetched first and leaves last.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=100))]
        priority: u8,
        /// A file with a line for each path.
        #[arg(long, requires = "mount")]
        profile: Option<PathBuf>,
        /// The mount that the profile is for.
        #[arg(long)]
        mount: Option<PathBuf>,
    },
    /// Show what is kept.
    List(Status),
    /// Keep it no longer; what is cached stays until the room is needed.
    Remove {
        /// As it was added.
        path: PathBuf,
    },
    /// Bring the cache up to date and fetch all that is kept; says whether you can unplug now.
    Walk(Status),
}

/// Arguments of `connect`.
#[derive(ClapArgs, Debug)]
pub struct Connect {
    /// How.
    #[arg(value_parser = ["auto", "weak", "fetch-only", "off"])]
    pub state: String,
    /// With off: at once. Otherwise what is missing of files that are open, or hoarded and partly
    /// cached, is fetched first, for half a minute at most.
    #[arg(long)]
    pub now: bool,
    /// The mount point, or anything below it.
    pub mountpoint: PathBuf,
}

/// Arguments of `conflicts`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling conflicts list ./work
  starling conflicts show ./work 3                      how both versions differ from what they were made of
  starling conflicts resolve ./work 3 theirs            keeps the home's version; or mine, or both
  starling conflicts resolve ./work 3 --merge 'diff3 -m'
  starling conflicts undo ./work 3                      both are there again, and in conflict

What was changed here while somebody else changed it at home is beside the home's version, as NAME (conflict).EXTENSION. A merge program is
called with three files, mine, base and theirs, and writes what is wanted to its standard output. Resolving replaces contents: the file keeps its
owner, mode, attributes and other names.")]
pub struct Conflicts {
    /// What to do.
    #[command(subcommand)]
    pub command: ConflictsCommand,
}

/// What `conflicts` does.
#[derive(Subcommand, Debug)]
pub enum ConflictsCommand {
    /// Show all that nobody has seen to yet.
    List(Status),
    /// Show where the versions are, and how they differ.
    Show {
        /// The mount point, or anything below it.
        mountpoint: PathBuf,
        /// Its number.
        number: u64,
    },
    /// Settle one.
    Resolve {
        /// The mount point, or anything below it.
        mountpoint: PathBuf,
        /// Its number.
        number: u64,
        /// Which version is kept: mine (this mount's), theirs (the home's), both (as they are).
        #[arg(value_parser = ["mine", "theirs", "both"], required_unless_present = "merge")]
        keep: Option<String>,
        /// A program that makes one of both, with its first arguments.
        #[arg(long, value_name = "PROGRAM", conflicts_with = "keep")]
        merge: Option<String>,
    },
    /// Bring back what resolving has taken away.
    Undo {
        /// The mount point, or anything below it.
        mountpoint: PathBuf,
        /// Its number.
        number: u64,
    },
}
