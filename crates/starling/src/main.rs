//! The `starling` command.
//!
//! - `args`: the command line; `settings`: the options of `up`, from the command line and its
//!   configuration file.
//! - `folder`: the data folder with its lock and its list of stores.
//! - `up`: runs and mounts a file system; `store`: serves one storage server; `background`: runs
//!   these commands, `home serve` and `mount` detached.
//! - `location`: where a store is; `keys`: TLS keys for stores on other machines.
//! - `control`: the socket through which the other commands reach a serving process.
//! - `home`: exports directories to roaming clients, and invites them; `clients`: lists them and
//!   turns them away.
//! - `roaming`: mounts what a home exports; `served`: answers commands about such a mount;
//!   `hoarding`: hoarded files; `conflicts`: shows and resolves conflicts; `attributes`: attributes
//!   that are in conflict.
//! - `node`: nodes that join a file system; `kernel`: the kernel behind a mount that is being made;
//!   `addresses`: the addresses of this machine.
//! - `kept`: what a machine had not synced when its session was over.
//! - `input`: invitations from standard input.
//! - `private`: folders of homes and caches; `names`: file names as users see them; `size`: sizes
//!   as users write them.
//! - `recorder`: records file accesses on a mount; `recording`: sends them to `trace record`.
//! - `traces`: makes traces; `sim`: simulates policies on them.
//! - `ask`: down, sync, status, scrub; `fsck`: the offline check.
//! - `manual`: help by topic, man pages, shell completions.
//!
//! Exit codes: 0, done; 1, something failed, or a check found damage; 2, the command cannot be done
//! as given, and nothing was changed.

mod addresses;
mod args;
mod ask;
mod attributes;
mod background;
mod clients;
mod conflicts;
mod control;
mod core_report;
mod folder;
mod fsck;
mod hoarding;
mod home;
mod input;
mod kept;
mod kernel;
mod keys;
mod location;
mod manual;
mod mountpoint;
mod names;
mod node;
mod private;
mod recorder;
mod recording;
mod roaming;
mod roaming_status;
mod served;
mod settings;
mod sim;
mod size;
mod store;
mod traces;
mod up;

use anyhow::Context;
use args::{
    Args, Command, ConflictsCommand, HoardCommand, HomeCommand, KeptCommand, NodeCommand, Store, StoreCommand,
    TraceCommand,
};
use clap::Parser;
use clap::error::ErrorKind;
use std::io::Write;
use std::process::ExitCode;

/// With this allocator, memory that one thread frees serves other threads. So the process stays
/// within little more than the bound of its cache.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A mistake of the user: the command ends with exit code 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Usage {}

/// An [`anyhow::Error`] that ends with exit code 2.
pub fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) if e.use_stderr() && e.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprintln!("starling: {}", args::in_one_line(&e));
            return ExitCode::from(2);
        }
        // Help and version are answers.
        Err(e) => e.exit(),
    };
    // At a terminal, users see warnings only; the log of a background process has more. The roles
    // report failures of the consensus engine themselves, so openraft does not log.
    let level = if background::is_it() { "info,openraft=off" } else { "warn,openraft=off" };
    let filter = tracing_subscriber::EnvFilter::try_from_env("STARLING_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
    match run(args.command) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("starling: {e:#}");
            ExitCode::from(if e.downcast_ref::<Usage>().is_some() { 2 } else { 1 })
        }
    }
}

/// Lets the command end quietly when the reader of its output has gone, as other programs do.
/// Serving processes and recordings must outlive their reader: they print with [`say`].
fn end_with_reader(command: &Command) {
    let is_recording = matches!(command, Command::Trace(a) if matches!(a.command, TraceCommand::Record(_)));
    let joins = matches!(command, Command::Node(a) if matches!(a.command, NodeCommand::Join(_)));
    let serves = joins || matches!(command, Command::Up(_) | Command::Store(_) | Command::Home(_) | Command::Mount(_));
    if !serves && !is_recording {
        // SAFETY: the default action takes no handler; no other thread runs yet.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    end_with_reader(&command);
    match command {
        Command::Up(up) if node::joined::is_node_folder(&up.data) => serve_node(node::run::AskedNode::from_up(&up)?),
        Command::Up(up) => {
            let settings = settings::Settings::from(&up)?;
            match up.background {
                true => background::start(&settings.data, &[mountpoint::READY, mountpoint::SERVES], None),
                false => runtime()?.block_on(up::run(settings)),
            }
        }
        Command::Store(Store { command: Some(StoreCommand::Replace(args)), .. }) => {
            runtime()?.block_on(node::replace::run(args))
        }
        Command::Store(Store { served: Some(store), .. }) => match store.background {
            true => background::start(&store.folder, &[store::READY], None),
            // One thread: beside those of its disk, a store has too little to do for hand-overs to
            // pay.
            false => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.context("start the runtime")?.block_on(store::run(store))
            }
        },
        Command::Store(Store { served: None, .. }) => Err(usage("give the store's folder: see --help")),
        Command::Home(home) => match home.command {
            HomeCommand::Serve(serve) if serve.background => background::start(&serve.data, &[home::READY], None),
            HomeCommand::Serve(serve) => runtime()?.block_on(home::serve(serve)),
            HomeCommand::Clients { data, json } => runtime()?.block_on(clients::list(&data, json)),
            HomeCommand::TurnAway { data, client } => runtime()?.block_on(clients::turn_away(&data, client)),
        },
        Command::Invite(a) => runtime()?.block_on(home::invite(a)),
        Command::Mount(mount) => {
            let asked = roaming::Asked::from(mount)?;
            match asked.background {
                true => background::start(&asked.cache, &[mountpoint::READY], asked.input.as_deref()),
                false => runtime()?.block_on(roaming::run(asked)),
            }
        }
        Command::Pending(a) => runtime()?.block_on(roaming::pending(&a.mountpoint, a.json)),
        Command::Connect(a) => runtime()?.block_on(roaming::connect(&a.mountpoint, a.state, a.now)),
        Command::Conflicts(a) => match a.command {
            ConflictsCommand::List(a) => runtime()?.block_on(conflicts::list(&a.mountpoint, a.json)),
            ConflictsCommand::Show { mountpoint, number } => runtime()?.block_on(conflicts::show(&mountpoint, number)),
            ConflictsCommand::Resolve { mountpoint, number, keep, merge } => {
                runtime()?.block_on(conflicts::resolve(&mountpoint, number, keep.as_deref(), merge.as_deref()))
            }
            ConflictsCommand::Undo { mountpoint, number } => runtime()?.block_on(conflicts::undo(&mountpoint, number)),
        },
        Command::Kept(a) => match a.command {
            KeptCommand::List { data, json } => kept::list(&data, json),
            KeptCommand::Forget { number, data } => kept::forget(&data, number),
        },
        Command::Trace(a) => traces::run(a.command),
        Command::Sim(a) => sim::run(a.command),
        Command::Advise(a) => sim::advise::run(&a),
        Command::Keys(a) => keys::make(&a.folder),
        Command::Down(a) => runtime()?.block_on(ask::down(&a.process)),
        Command::Sync(a) => runtime()?.block_on(ask::sync(&a.mountpoint, a.home)),
        Command::Set(a) => runtime()?.block_on(roaming::set(&a.mountpoint, &a.behaviour)),
        Command::Hoard(a) => match a.command {
            HoardCommand::Add { path, priority, profile, mount } => {
                runtime()?.block_on(hoarding::add(path, priority, profile, mount))
            }
            HoardCommand::List(a) => runtime()?.block_on(hoarding::list(&a.mountpoint, a.json)),
            HoardCommand::Remove { path } => runtime()?.block_on(hoarding::remove(&path)),
            HoardCommand::Walk(a) => runtime()?.block_on(hoarding::walk(&a.mountpoint, a.json)),
        },
        Command::Status(a) => runtime()?.block_on(ask::status(&a.process, a.json)),
        Command::Scrub(a) => runtime()?.block_on(ask::scrub(&a.process, a.repair, a.json)),
        Command::Node(a) => match a.command {
            NodeCommand::Invite(a) => runtime()?.block_on(node::invite::run(a)),
            NodeCommand::Join(a) => serve_node(node::run::AskedNode::from_join(a)?),
            NodeCommand::Drain(a) => runtime()?.block_on(node::removal::run_drain(a)),
            NodeCommand::Remove(a) => runtime()?.block_on(node::removal::run(a)),
            NodeCommand::Recover(a) => runtime()?.block_on(node::recover::run(a)),
        },
        Command::Nodes(a) => runtime()?.block_on(node::report::run(&a.process, a.json)),
        Command::Who(a) => runtime()?.block_on(node::who::run(&a.path, a.json)),
        Command::Fsck(a) => runtime()?.block_on(fsck::run(&a.data, a.json)),
        Command::Help { words } => manual::help(&words),
        Command::Completions { shell } => Ok(manual::completions(shell)),
        Command::Man { folder } => manual::man(&folder),
    }
}

/// Runs a node that has joined, or is about to.
fn serve_node(asked: node::run::AskedNode) -> anyhow::Result<ExitCode> {
    match asked.background {
        true => {
            let ready = [mountpoint::READY, mountpoint::SERVES];
            background::start(&asked.data, &ready, asked.input.as_deref())
        }
        false => runtime()?.block_on(node::run::run(asked)),
    }
}

/// Prints a line. It ignores errors: the reader of standard output may have gone.
fn say(line: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// A runtime with one worker thread per two processors. The threads of FUSE and of the disks have
/// work too, and waking one more thread than there are processors costs more than it gains.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let threads = std::thread::available_parallelism().map_or(1, |count| (count.get() / 2).max(1));
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(threads).enable_all().build().context("start the runtime")
}
