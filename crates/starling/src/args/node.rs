//! The command line of `node` and `nodes`.

use crate::args::Process;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Arguments of `node`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling up ./mnt --data ./data --listen 10.0.0.1:7440     the first node; without --listen nobody can join
  starling node invite --data ./data                         prints an invitation; on another machine:
  starling node join INVITATION ./mnt --data ./data --listen 10.0.0.2:7440 --store ./stores     mounts, and takes a store
  starling nodes ./mnt                                       who is there
  starling node drain db --data ./data                       a machine is to go: its stores move to the others
  starling node remove db --data ./data --dead               a machine is lost: the others get its stores
  starling node recover --data ./data                        the first node is lost: this one takes its place")]
pub struct Node {
    /// What to do.
    #[command(subcommand)]
    pub command: NodeCommand,
}

/// What `node` does.
#[derive(Subcommand, Debug)]
pub enum NodeCommand {
    /// Print an invitation, which lets one node join the file system.
    #[command(after_help = "Examples:
  starling node invite --data ./data
  starling node invite --data ./data --name db
  starling node invite --data ./data --address gate.example.org:7440     where the node finds this one, if that is not where it listens

Give it on any machine of the file system; the first one must run with --listen. The last line printed is the invitation. It works once, and for an
hour. It lets its holder read and change everything, so hand it over as you would a password.")]
    Invite(NodeInvite),
    /// Join a file system: mount it on this machine, and serve stores and managers.
    #[command(after_help = "Examples:
  starling node join starlingnode1-... ./mnt --data ./data
  starling node join - ./mnt --data ./data < FILE            the same, hidden from other users, who can see command lines
  starling node join - ./mnt --data ./data --background      returns when mounted; end it with `starling down ./mnt`
  starling node join - ./mnt --data ./data --listen 10.0.0.2:7440 --store /disk1/s     takes a store of another node, and votes
  starling node join - --no-mount --data ./data --listen 10.0.0.2:7440 --store /disk1/s     serves, and mounts nothing
  starling node join - ./mnt --data ./data --listen 10.0.0.2:7440 --store /disk1/s --roles client,storage     serves no managers, and does not vote
  starling up ./mnt --data ./data                            mounts again; needs no invitation
  starling up --data ./data                                  serves again without a mount; end it with `starling down --data ./data`

Three nodes that vote, the first one among them, elect another one when the node that leads is down, and go on.

With --store, the node with most stores gives one to this one, if it has at least two more. `starling nodes` shows it. Then the
file system needs this node to be up as it needs that store. If it is interrupted, give the same command again. The data folder has the node's key: who has the key can read and
change everything.")]
    Join(NodeJoin),
    /// Move the stores and managers of a node to the others, while all go on.
    #[command(after_help = "Examples:
  starling node drain db --data ./data
  starling node drain db --data ./data --rate 50MiB   no faster than this, also for a drain that is under way
  starling nodes ./mnt                                what moves, and how far it is
  starling node drain db --data ./data --stop         it may have stores and managers again
  starling down ./mnt                                 on that node, when it has none; then, on another one:
  starling node remove db --data ./data

Give it on any machine of the file system. The node must be up. The first one may drain, too. Each store goes to the node that has fewest, and a node keeps draining
through starts of all nodes. Programs on all nodes go on, those of the node too. The command refuses if the loss of any one node is survived now, and would not be without this one.")]
    Drain(NodeDrain),
    /// Remove a node that is down. The others take no request for data from it any more.
    #[command(after_help = "Examples:
  starling node remove db --data ./data
  starling node remove db --data ./data --dead        its disks are lost for good, and its stores are made anew
  starling nodes ./mnt                                how far they are filled again

Give it on any other machine of the file system. With --dead, each store of the node is made anew below the first node's data folder, or at the node with fewest
stores if the one that leads was elected, empty, and filled from the others. The command refuses if a store answers, or if the others may lack something. A machine that comes back
joins again with a new invitation and a new data folder.")]
    Remove(NodeRemove),
    /// Make a node that has joined into the first node, after the first one was lost for good.
    #[command(after_help = "Examples:
  starling node recover --data ./data                        says what is left, asks, and prepares the data folder; then:
  starling up ./mnt --data ./data --listen 10.0.0.2:7440     the other nodes find it, and their programs go on
  starling node recover --data ./data --store /disk2/s --yes     makes the lost stores anew below /disk2/s; asks nothing

Give the data folder of a node that has a store. End its mount first (`starling down ./mnt`). The stores that are left must have all data:
`starling nodes` says what the file system survives. The old first node must be off: this command refuses if it answers, but it cannot see
one that is only cut off from here. It never becomes the first node again; let its machine join with a new data folder. Leave out --store at later starts of the new first node: its
data folder says where all stores are.")]
    Recover(NodeRecover),
}

/// What a node does.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It mounts the file system.
    Client,
    /// It takes stores.
    Storage,
    /// It serves managers.
    Manager,
    /// It votes on who leads, and leads when it is elected.
    Voter,
}

/// Arguments of `node invite`.
#[derive(ClapArgs, Debug)]
pub struct NodeInvite {
    /// The data folder of this machine's node, which must be running.
    #[arg(long)]
    pub data: PathBuf,
    /// The node's name [default: it chooses one].
    #[arg(long)]
    pub name: Option<String>,
    /// An address at which the node finds this one; repeat for several [default: where this node
    /// listens].
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `node join`.
#[derive(ClapArgs, Debug)]
pub struct NodeJoin {
    /// The invitation, from `starling node invite` at any node; - reads it from standard
    /// input: the last line that is not empty.
    pub invitation: String,
    /// The mount point; made if only its last part is missing.
    #[arg(required_unless_present_any = ["no_mount", "roles"], conflicts_with = "no_mount")]
    pub mountpoint: Option<PathBuf>,
    /// Mount nothing: serve managers, and stores with --store, to other nodes. Needs --listen.
    #[arg(long)]
    pub no_mount: bool,
    /// What the node does, separated by commas: client (it mounts the file system, at MOUNTPOINT),
    /// storage (it takes stores, with --store), manager (it serves managers, at the address of
    /// --listen), voter (it votes on who leads, and leads when it is elected). Without client it
    /// mounts nothing; without manager it gets no managers. `up` keeps this, and `up --roles`
    /// changes it [default: what the other options say; it votes
    /// if it has --listen and --store].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub roles: Option<Vec<Role>>,
    /// The data folder of this node: its key, control socket and the log of --background; made if
    /// it does not exist.
    #[arg(long)]
    pub data: PathBuf,
    /// The node's name [default: that of the invitation, or one like the machine's].
    #[arg(long)]
    pub name: Option<String>,
    /// Address and TCP port to listen at for other nodes, which reach this node's stores and
    /// managers there. Port 0 takes a free one. If the node is elected it serves at the next port,
    /// too: let firewalls pass both. Of 0.0.0.0, the others are told one address only [default: it
    /// serves neither].
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// A folder for stores, made if it does not exist; repeat for several disks. This node then
    /// takes a store of the node with most stores, if that has at least two more. Needs --listen.
    #[arg(long, value_name = "DIR")]
    pub store: Vec<PathBuf>,
    /// Size of the caches in memory, three quarters of it for data, the rest for inodes [default:
    /// 512MiB].
    #[arg(long)]
    pub cache_size: Option<String>,
    /// Let other users in, with the permissions that files and directories give them. Give it at
    /// each start.
    #[arg(long)]
    pub allow_other: bool,
    /// Detach from the terminal once mounted, or once it serves.
    #[arg(long)]
    pub background: bool,
}

/// Arguments of `node drain`.
#[derive(ClapArgs, Debug)]
pub struct NodeDrain {
    /// The node's name; `starling nodes` lists all.
    pub name: String,
    /// The data folder of this machine's node, which must be running.
    #[arg(long)]
    pub data: PathBuf,
    /// Bytes per second at which its stores move, at most, as in 50MiB. Give the command again to
    /// change it [default: what programs leave of the stores].
    #[arg(long, value_name = "SIZE", conflicts_with = "stop")]
    pub rate: Option<String>,
    /// The node drains no more.
    #[arg(long)]
    pub stop: bool,
    /// After a refusal: another node may have more stores then than may be lost.
    #[arg(long, conflicts_with = "stop")]
    pub accept_risk: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `node remove`.
#[derive(ClapArgs, Debug)]
pub struct NodeRemove {
    /// The node's name; `starling nodes` lists all.
    pub name: String,
    /// The data folder of this machine's node, which must be running.
    #[arg(long)]
    pub data: PathBuf,
    /// The node's disks are lost for good: make its stores anew, from the others.
    #[arg(long)]
    pub dead: bool,
    /// With --dead, after a refusal: give up what only this node's stores may have had.
    #[arg(long, requires = "dead")]
    pub accept_loss: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `node recover`.
#[derive(ClapArgs, Debug)]
pub struct NodeRecover {
    /// The data folder of a node that has joined, and does not run.
    #[arg(long)]
    pub data: PathBuf,
    /// The folder below which lost stores are made anew [default: the data folder].
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `nodes`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling nodes ./mnt
  starling nodes --data ./data --json | jq -r '.nodes[] | select(.state == \"down\") | .name'")]
pub struct Nodes {
    #[command(flatten)]
    pub process: Process,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `who`.
#[derive(ClapArgs, Debug)]
#[command(after_help = "Examples:
  starling who ./mnt/projects/thesis.tex
  starling who ./mnt/mail.db --json | jq '.locks.waiting'

A node with a token may cache the file (read) or change it (write). It gives the token back when another node wants it, so a node that waits for
long waits for one that cannot be reached, or that still commits. Locks are those of flock(2) and fcntl(2). To look takes no token of the file, and
does not follow a symbolic link at the end of PATH. A file that a node has just made shows no token until that is committed, some five seconds
later at most: no other node knows it before.")]
pub struct Who {
    /// A file or directory on a mount.
    pub path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
