//! The command line. Parsing only; nothing here touches the environment.

mod node;
mod sim;
mod traces;

pub use node::{Node, NodeCommand, NodeDrain, NodeInvite, NodeJoin, NodeRecover, NodeRemove, Nodes, Role, Who};
pub use sim::{
    Advise, Availability, Cleaning, Cooperative, Locality, Machines, Mobile, Output, Papers, Sim, SimCommand,
};
pub use traces::{Format, Import, Merge, Record, SynthCommand, Trace, TraceCommand, WorstCase};

use clap::{Args as ClapArgs, Parser, Subcommand};
use std::path::PathBuf;

/// A distributed file system: machines that store data together, in striped logs with parity, and
/// laptops that mount directories and work without a network.
#[derive(Parser, Debug)]
#[command(
    name = "starling",
    version,
    propagate_version = true,
    disable_help_subcommand = true,
    after_help = "Examples:
  starling up ./mnt --data ./data                                   a file system on this machine
  starling home serve dir:/srv/projects --data ./home --listen 0.0.0.0:7443
  starling invite --data ./home                                     lets one laptop in; there:
  starling mount INVITATION ./work
  starling status ./work

`starling COMMAND --help` has examples of each. `starling help` also lists topics: what to do when something went wrong."
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The first paragraph of a clap error, with its tip, as one line.
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
    /// Run one storage server over a folder, for `up --store` on this or another machine.
    Store(Store),
    /// Record, make, import, merge and show traces of file accesses.
    Trace(Trace),
    /// Simulate caching, cleaning and write-back policies on a trace.
    Sim(Sim),
    /// Recommend settings for a recorded trace, with reasons and gains.
    Advise(Advise),
    /// Make TLS keys for stores on other machines.
    #[command(after_help = "Examples:
  starling keys ./keys                                 prints what to copy where
  starling store ./s0 --listen 0.0.0.0:7450 --keys ./keys
  starling up ./mnt --data ./data --keys ./keys --store tls://one:7450 --store tls://two:7450 --store tls://three:7450")]
    Keys(Keys),
    /// Export directories to clients that roam, such as laptops.
    Home(Home),
    /// Print an invitation, which lets one client mount volumes of a home.
    #[command(after_help = "Examples:
  starling invite --data ./home
  starling invite --data ./home --volume photos --user ann --valid 2d
  starling invite --data ./home --address home.example.org:7443      where the client finds this home, if that is not an address of this machine

The last line printed is the invitation, which works once. It lets its holder in as the given user, so hand it over as you would a
password. Other users of a machine can see command lines there: `starling mount --invitation -` reads the invitation from standard input.")]
    Invite(Invite),
    /// Mount volumes of a home; the mount works without a network too.
    Mount(Mount),
    /// Show the changes on a mount that are not home yet, in the order in which they are sent.
    #[command(after_help = "Examples:\n  starling pending ./work\n  starling pending ./work --json | jq length")]
    Pending(Status),
    /// Choose whether and how a mount uses the network.
    #[command(after_help = "Examples:
  starling connect off ./work          finish fetching files that are partly cached, then work from the cache alone
  starling connect off --now ./work    work from the cache alone at once
  starling connect fetch-only ./work   fetch what programs need, send nothing
  starling connect weak ./work         send in the background only, also over a fast link
  starling connect auto ./work         decide by the speed of the link (the default)

Under auto, a mount is fetch-only while programs read over a very slow link. It then sends some of its changes every two minutes.")]
    Connect(Connect),
    /// Change settings of a roaming mount until it ends.
    Set(Set),
    /// Keep files and directories in the cache of a roaming mount.
    Hoard(Hoard),
    /// Show and resolve conflicts: changes that the home refused because others had changed the
    /// same files.
    Conflicts(Conflicts),
    /// Show and forget what this machine could not sync: it was cut off for long, or hung.
    Kept(KeptArgs),
    /// Commit everything, unmount, and end the process that serves the mount.
    #[command(after_help = "Examples:
  starling down ./mnt
  starling down --data ./data      also ends a process that has no mount (--no-mount)")]
    Down(Down),
    /// Commit everything: when this returns, all changes are durable.
    #[command(
        after_help = "Examples:\n  starling sync ./mnt\n  starling sync --home ./work      on a roaming mount: returns when everything is home\n\nNote: sync(1) does not reach FUSE mounts; fsync(2) of any file or directory commits everything too."
    )]
    Sync(Sync),
    /// Show the state of a mount: stores, space, segments, caches, changes not committed yet.
    #[command(after_help = "Examples:
  starling status ./mnt
  starling status ./mnt --json | jq .space
  starling status --data ./data     also of a process that has no mount (--no-mount)")]
    Status(ProcessStatus),
    /// Read and verify every fragment of every segment; with --repair, rebuild missing and damaged
    /// ones.
    #[command(
        after_help = "Examples:\n  starling scrub ./mnt\n  starling scrub ./mnt --repair --json\n  starling scrub --data ./data"
    )]
    Scrub(Scrub),
    /// Let nodes join a file system and leave it, and replace nodes that are lost.
    Node(Node),
    /// List the nodes of a file system, and what it survives.
    Nodes(Nodes),
    /// Show which nodes hold tokens and locks of a file, and which wait for them.
    Who(Who),
    /// Check a file system that is not running: every inode reachable, every block readable,
    /// utilisation counts correct.
    #[command(after_help = "Examples:\n  starling fsck --data ./data")]
    Fsck(Fsck),
    /// Show the help of a command, or what to do when something went wrong.
    #[command(after_help = "Examples:
  starling help                       all commands and topics
  starling help conflicts resolve     the same as `starling conflicts resolve --help`
  starling help disk died             the topic whose title has these words")]
    Help {
        /// A command, or words of a topic's title.
        words: Vec<String>,
    },
    /// Print a script that completes commands in a shell.
    #[command(after_help = "Examples:
  starling completions bash > /etc/bash_completion.d/starling
  starling completions fish > ~/.config/fish/completions/starling.fish")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write a man page for each command into a folder.
    #[command(after_help = "Examples:\n  starling man /usr/local/share/man/man1\n  man starling-mount")]
    Man {
        /// The folder; made if it does not exist.
        folder: PathBuf,
    },
}

/// The process that a command is about.
#[derive(ClapArgs, Debug)]
pub struct Process {
    /// The mount point, or anything below it.
    #[arg(required_unless_present = "data", conflicts_with = "data")]
    pub mountpoint: Option<PathBuf>,
    /// The data folder of a process that runs, with or without a mount.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// Arguments of `down`.
#[derive(ClapArgs, Debug)]
pub struct Down {
    #[command(flatten)]
    pub process: Process,
}

/// Arguments of `status`.
#[derive(ClapArgs, Debug)]
pub struct ProcessStatus {
    #[command(flatten)]
    pub process: Process,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of commands that list something of a mount.
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
    #[command(flatten)]
    pub process: Process,
    /// Rebuild missing and damaged fragments from the rest of each stripe.
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

An empty folder becomes a store when `up` creates a file system on it, or when `up` starts a file system that lost its store there.
SIGINT and SIGTERM close the store. Without --keys, only this machine can reach the store, and every user of this machine can.")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Store {
    /// What to do other than to serve a store.
    #[command(subcommand)]
    pub command: Option<StoreCommand>,
    /// The store to serve.
    #[command(flatten)]
    pub served: Option<ServedStore>,
}

/// A store that is served at an address.
#[derive(ClapArgs, Debug)]
pub struct ServedStore {
    /// The store's folder; made if it does not exist.
    pub folder: PathBuf,
    /// Address and port to listen at; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: String,
    /// Serve over TLS with the keys in this folder, from `starling keys`. Only clients with keys of
    /// the same set can connect.
    #[arg(long, value_name = "DIR")]
    pub keys: Option<PathBuf>,
    /// Detach from the terminal once listening; the log is starling.log in the folder.
    #[arg(long)]
    pub background: bool,
}

/// What `store` does, other than to serve one.
#[derive(Subcommand, Debug)]
pub enum StoreCommand {
    /// Put an empty store on another disk in place of one whose disk has died.
    #[command(after_help = "Examples:
  starling status ./mnt                                                    which stores this node has, in which folders, and what is wrong with them
  starling store replace store-1 /disk2/s --data ./data                    store-1 is in /disk2/s/store-1 from now on, and the others fill it
  starling store replace store-1 /disk2/s --data ./data --dead             though it still works: what it has is given up

Give the data folder of the node that had the store, which must be up; its programs and the other nodes go on. The machine that leads makes the store anew within half
a minute; `starling nodes` says how far it is filled. The command refuses while other stores may lack something, which only the old disk may have. A first node that
has its own stores must end: mount the new disk, empty, at the folder of the store, and start it again.")]
    Replace(StoreReplace),
}

/// Arguments of `store replace`.
#[derive(ClapArgs, Debug)]
pub struct StoreReplace {
    /// The store, as in store-1.
    pub store: String,
    /// A folder on the new disk; made if it does not exist.
    pub folder: PathBuf,
    /// The data folder of the node that had the store.
    #[arg(long)]
    pub data: PathBuf,
    /// Give up what the store has, though it works.
    #[arg(long)]
    pub dead: bool,
    /// After a refusal: give up what only this store may have had.
    #[arg(long)]
    pub accept_loss: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `keys`.
#[derive(ClapArgs, Debug)]
pub struct Keys {
    /// A new or empty folder for the keys.
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
  starling up ./mnt --data ./data --listen 10.0.0.1:7440     other nodes may join: `starling node invite`
  starling up --no-mount --data ./data --listen 10.0.0.1:7440     serves other nodes only; end it with `starling down --data ./data`
  starling up ./mnt --data ./data --accept-loss        after a refusal, when missing stores cannot be brought back

Sizes: bytes, or with KiB, MiB, GiB, TiB. Number of stores, parity, block size and store size are fixed when the file
system is created; later starts read them from the stores. Users other than root need the package fuse3. --allow-other
needs root, or `user_allow_other` in /etc/fuse.conf.")]
pub struct Up {
    /// The mount point; made if only its last part is missing.
    pub mountpoint: Option<PathBuf>,
    /// Mount nothing: serve stores and managers to other nodes. The first node needs --listen for
    /// that. A node that has joined without a mount needs neither this nor a mount point.
    #[arg(long, conflicts_with = "mountpoint")]
    pub no_mount: bool,
    /// The data folder: the stores (unless --store places them elsewhere), lock, control socket and
    /// the log of --background.
    #[arg(long)]
    pub data: PathBuf,
    /// Number of stores (at creation) [default: 5; 3 with --listen, so that three machines with one
    /// store each outlive the loss of any one; 5 with --parity 2].
    #[arg(long)]
    pub stores: Option<u16>,
    /// One store; repeat for each. A folder, or tcp://HOST:PORT or tls://HOST:PORT for a store that
    /// `starling store` serves. Replaces the folders below --data. If stores have moved, give all
    /// of them again in the same order.
    #[arg(long = "store", value_name = "PLACE", conflicts_with = "stores")]
    pub store: Vec<PathBuf>,
    /// The folder with keys from `starling keys`, for tls:// stores [default: the last one given].
    #[arg(long, value_name = "DIR")]
    pub keys: Option<PathBuf>,
    /// Parity fragments per stripe: how many stores may fail without loss of data (at creation)
    /// [default: 1].
    #[arg(long)]
    pub parity: Option<u8>,
    /// Block size, a power of two from 4KiB (at creation) [default: 64KiB].
    #[arg(long)]
    pub block_size: Option<String>,
    /// Bytes that each store may use (at creation) [default: nine tenths of the free space of the
    /// fullest disk, shared among the stores on it; more is refused].
    #[arg(long)]
    pub store_size: Option<String>,
    /// Size of the caches in memory, three quarters of it for data, the rest for inodes [default:
    /// 512MiB].
    #[arg(long)]
    pub cache_size: Option<String>,
    /// Let other users in, with the permissions that files and directories give them. Give it at
    /// each start.
    #[arg(long)]
    pub allow_other: bool,
    /// Address and TCP port to listen at for other nodes, which mount the file system too. Port 0
    /// takes a free one. A node that is elected serves at the next port, too: let firewalls pass
    /// both. Give it at each start; it may change [default: no node can join; a node that has
    /// joined listens where it did before].
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<std::net::SocketAddr>,
    /// Where the first node is now, for a node that has joined. Needed only if the first node has
    /// another address, and neither it nor another node could say so.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub first_node: Option<String>,
    /// What a node that has joined does from now on, separated by commas: client, storage, manager,
    /// voter; see `starling node join --help` [default: what it did before].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub roles: Option<Vec<Role>>,
    /// Start although changes may be lost for good: use what the stores that answer hold. First try
    /// to bring back the stores that the refusal names; replace a store that is lost for good by an
    /// empty folder.
    #[arg(long)]
    pub accept_loss: bool,
    /// Detach from the terminal once mounted, or once it serves.
    #[arg(long)]
    pub background: bool,
    /// A TOML file with options under the same names: stores, store, keys, parity, block-size,
    /// store-size, cache-size, allow-other, listen, no-mount. The command line wins. Not for a node
    /// that has joined.
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
    /// Serve directories until a signal ends the process.
    #[command(after_help = "Examples:
  starling home serve dir:/srv/projects --data /var/lib/starling-home --listen 0.0.0.0:7443
  starling home serve dir:/srv/projects photos=dir:/srv/pictures --data ./home --background
  starling invite --data ./home --volume projects      lets a client in

Each directory is a volume, named after the last part of its path unless NAME= is given. It may lie on a mounted Starling file system.
Other programs can go on using the directories. A home that root runs serves any user; otherwise it serves only the user who runs it.
The home makes new files in the folder of --data first. A directory on another file system gets a folder .starling for that, which
clients do not see.")]
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
    /// Turn a client away: one that was lost, or whose user has left.
    #[command(after_help = "Examples:
  starling home clients --data ./home        shows their numbers
  starling home turn-away --data ./home 2

Changes that the client has sent stay. Changes that it has not sent are in its cache, and go home if you invite it again:
  starling invite --data ./home              there: starling mount INVITATION MOUNTPOINT, with the same cache")]
    TurnAway {
        /// The home's data folder.
        #[arg(long)]
        data: PathBuf,
        /// The client's number.
        client: u32,
    },
}

/// Arguments of `home serve`.
#[derive(ClapArgs, Debug)]
pub struct HomeServe {
    /// A directory to export, and the volume's name.
    #[arg(required = true, value_name = "[NAME=]dir:PATH")]
    pub exports: Vec<String>,
    /// The home's data folder, with its key and its state; made if it does not exist.
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
    /// A volume to let the client use; repeat for several: each becomes a directory of the
    /// mount [default: all volumes of the home].
    #[arg(long)]
    pub volume: Vec<String>,
    /// The user, by name or number, with whose rights the home does what the client asks [default:
    /// the user who runs this command].
    #[arg(long)]
    pub user: Option<String>,
    /// An address at which the client finds the home; repeat for several [default: the addresses of
    /// this machine].
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Vec<String>,
    /// A name for the client, shown by `starling home clients`.
    #[arg(long)]
    pub name: Option<String>,
    /// How long the invitation is valid: a number with m, h or d.
    #[arg(long, default_value = "7d")]
    pub valid: String,
}

/// Arguments of `mount`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling mount starling1-... ./work           accepts an invitation and mounts
  starling mount --invitation FILE ./work       the same, hidden from other users, who can see command lines; - is standard input
  starling mount projects ./work                mounts again, by the volume's name: needs no network
  starling mount photos+projects ./work         the same, of several volumes
  starling mount projects ./work --background   returns when mounted; end it with `starling down ./work`
  starling mount starling1-... ./work --cache ./cache
  starling mount ./work --cache ./cache         mounts again the volumes of that cache

Changes that you make without a network go home once there is one. Until then they are only in the cache, which is in your data folder
(~/.local/share/starling) unless --cache is given.")]
pub struct Mount {
    /// An invitation, or the name of a volume that was mounted before (several: joined with +);
    /// then the mount point. With --cache or --invitation, give the mount point alone. Other users
    /// of this machine can see an invitation on the command line; --invitation hides it.
    #[arg(required = true, num_args = 1..=2, value_names = ["INVITATION|VOLUME", "MOUNTPOINT"])]
    pub what: Vec<String>,
    /// Read the invitation from this file, or from standard input (-): the last line that is not
    /// empty.
    #[arg(long, value_name = "FILE")]
    pub invitation: Option<PathBuf>,
    /// The folder of the cache.
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

/// Settings of a roaming mount.
#[derive(ClapArgs, Debug)]
pub struct Behaviour {
    /// How long the mount trusts its cache: callbacks (until the home says that a file changed),
    /// poll=30s (until the mount next asks the home, at least this often), strong (while the home
    /// promises that no other client or program changes the file; ends half a minute after the home
    /// is out of reach), none (for ever).
    #[arg(long, value_name = "HOW")]
    pub consistency: Option<roam::Consistency>,
    /// When changes go home over a slow link: idle (when the link is idle), lottery (at once,
    /// drawing lots with fetches for the link), lottery=30% (this part of the link, at most 50%,
    /// while programs wait for reads), delayed=15m (when they are this old), preemptive (at once,
    /// before anything is fetched ahead), through (before the program gets its answer), manual
    /// (when you ask).
    #[arg(long, value_name = "WHEN")]
    pub writes: Option<roam::Writes>,
    /// How much of a file a read fetches: file (all of it), block (only what is read), auto (all of
    /// it if that takes no more than some seconds).
    #[arg(long, value_name = "WHAT")]
    pub unit: Option<roam::Unit>,
    /// How the mount validates its cache after a time without the home: volume (one question for
    /// all files); for comparison, batched (50 files in a question) or single (one file in a
    /// question).
    #[arg(long, value_name = "HOW")]
    pub validation: Option<roam::Validation>,
    /// When changes are durable on this machine: grouped (after about a second, and at fsync) or
    /// always (before the program gets its answer; contents of a file at close).
    #[arg(long, value_name = "WHEN")]
    pub durability: Option<roam::Durability>,
    /// Maximum size of the cache on disk. If changes that are not home yet fill it, writers wait
    /// for the home. Without a network the cache grows beyond it instead.
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    pub cache_size: Option<u64>,
    /// Number of files whose names and attributes the mount caches; each takes up to 1 KiB of
    /// memory. Files that are open, hoarded, in conflict or not home yet stay cached beyond this
    /// number.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1000..))]
    pub cache_files: Option<u64>,
}

/// Arguments of `set`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling set ./work --consistency poll=30s
  starling set ./work --writes manual            `starling sync --home ./work` sends the changes
  starling set ./work --cache-size 5GiB --unit block
  starling set ./work --durability always        each close waits until the file is on this machine's disk

The settings hold until the mount ends.")]
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
    /// On a roaming mount: send all changes home now, and wait until they are there.
    #[arg(long)]
    pub home: bool,
}

/// Arguments of `hoard`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling hoard add work/thesis --priority 90
  starling hoard add --profile ./hoard.txt --mount ./work      a line each: PRIORITY PATH, from the mount's root
  starling hoard walk ./work                                   fetches all of it; exit code 0: you can unplug now
  starling hoard list ./work

The mount fetches hoarded files and brings them up to date every 10 minutes. They leave the cache last.")]
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
        /// A path on a mount.
        #[arg(required_unless_present = "profile")]
        path: Option<PathBuf>,
        /// Priority, up to 100: files of the highest priority are fetched first and evicted last.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=100))]
        priority: u8,
        /// A file with a line PRIORITY PATH for each path.
        #[arg(long, requires = "mount")]
        profile: Option<PathBuf>,
        /// The mount that the profile is for.
        #[arg(long)]
        mount: Option<PathBuf>,
    },
    /// List the hoarded paths.
    List(Status),
    /// Stop hoarding a path; its files stay cached until the room is needed.
    Remove {
        /// The path, as it was added.
        path: PathBuf,
    },
    /// Fetch all hoarded files now; says whether you can unplug.
    Walk(Status),
}

/// Arguments of `connect`.
#[derive(ClapArgs, Debug)]
pub struct Connect {
    /// How the mount uses the network.
    #[arg(value_parser = ["auto", "weak", "fetch-only", "off"])]
    pub state: String,
    /// With off: go offline at once. Otherwise the mount first fetches the rest of files that are
    /// open or hoarded and partly cached, for half a minute at most.
    #[arg(long)]
    pub now: bool,
    /// The mount point, or anything below it.
    pub mountpoint: PathBuf,
}

/// Arguments of `kept`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling kept list --data ./data         what was changed, and where the contents are
  cp ./data/kept/1/files/report.txt ./mnt/report-kept.txt
  starling kept forget 1 --data ./data     when you have what you need of it

A machine that is cut off for longer than its lease, or hangs, is declared dead: the others go on without it. When it is back, it goes on as well, without what
its programs had not synced. That is kept here.")]
pub struct KeptArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: KeptCommand,
}

/// What `kept` does.
#[derive(Subcommand, Debug)]
pub enum KeptCommand {
    /// List what was not synced when sessions ended.
    #[command(after_help = "Examples:
  starling kept list --data ./data
  starling kept list --data ./data --json | jq '.[].files[].path'

A copy has a file as the programs here had it; the list says if it is not whole, or if there is none. A change that the file system may have was on its way when the session ended.")]
    List {
        /// The data folder of the machine.
        #[arg(long)]
        data: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove what was kept of one session.
    #[command(after_help = "Examples:\n  starling kept forget 1 --data ./data")]
    Forget {
        /// The number, from `kept list`.
        number: u64,
        /// The data folder of the machine.
        #[arg(long)]
        data: PathBuf,
    },
}

/// Arguments of `conflicts`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling conflicts list ./work
  starling conflicts show ./work 3                      how both versions differ from their common base
  starling conflicts resolve ./work 3 theirs            keeps the home's version; or mine, or both
  starling conflicts resolve ./work 3 --merge 'diff3 -m'
  starling conflicts undo ./work 3                      takes the resolution back: both versions are there again

If a file was changed here and at home, this mount's version lies beside the home's, as NAME (conflict).EXTENSION. A merge program is
called with three files, mine, base and theirs, and writes the merged file to its standard output. Resolving replaces contents: the file
keeps its owner, mode, attributes and other names.")]
pub struct Conflicts {
    /// What to do.
    #[command(subcommand)]
    pub command: ConflictsCommand,
}

/// What `conflicts` does.
#[derive(Subcommand, Debug)]
pub enum ConflictsCommand {
    /// List the conflicts that are not resolved.
    List(Status),
    /// Show where the two versions are, and how they differ.
    Show {
        /// The mount point, or anything below it.
        mountpoint: PathBuf,
        /// The conflict's number, from `conflicts list`.
        number: u64,
    },
    /// Resolve a conflict.
    Resolve {
        /// The mount point, or anything below it.
        mountpoint: PathBuf,
        /// The conflict's number, from `conflicts list`.
        number: u64,
        /// The version to keep: mine (this mount's), theirs (the home's), both (as they are).
        #[arg(value_parser = ["mine", "theirs", "both"], required_unless_present = "merge")]
        keep: Option<String>,
        /// A program that merges both versions, with its first arguments.
        #[arg(long, value_name = "PROGRAM", conflicts_with = "keep")]
        merge: Option<String>,
    },
    /// Bring back what a resolution removed.
    Undo {
        /// The mount point, or anything below it.
        mountpoint: PathBuf,
        /// The conflict's number, from `conflicts list`.
        number: u64,
    },
}
