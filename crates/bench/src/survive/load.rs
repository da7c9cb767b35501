//! The programs that use the mounts: each is a process of its own, with one thread that makes one
//! call after another. It says on stdout when a call begins and when it has ended, so its starter
//! knows how long a call has lasted that has not returned.
//!
//! These processes start no others: what is executed closes the descriptors of its parent, and
//! would wait for a node that stands still. When their stdin ends, they end after the call under
//! way.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Subcommand;

use super::ledger::{self, Ledger, contents};
use crate::work::{Random, monotonic_seconds};

/// Pause after each action, so that the programs do not take the processors from the nodes.
const PAUSE: Duration = Duration::from_millis(40);
/// Pause after an error.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(300);
/// Files to read are chosen among this many of the last ones, every other time.
const RECENT: usize = 50;
/// Longest time until a node that is back has its mount.
const MOUNT_DEADLINE: Duration = Duration::from_secs(60);
/// Rounds of a program that takes a processor between two looks at its stdin.
const BURST: u32 = 1_000_000;
/// Period of a holder's writes.
const HOLD_PERIOD: Duration = Duration::from_millis(250);

/// A program of `bench survive`.
#[derive(Debug, Subcommand)]
pub enum Part {
    /// Make, sync, rename, read, list and stat files until stdin ends
    Load {
        /// The mount point
        mount: PathBuf,
        /// The folder with the ledgers
        #[arg(long)]
        ledgers: PathBuf,
        /// The node whose mount it is
        #[arg(long)]
        node: usize,
        /// How many nodes there are
        #[arg(long)]
        nodes: usize,
        /// Folder for new files, below the mount point
        #[arg(long)]
        folder: String,
        /// A number that no other program of the run has
        #[arg(long)]
        id: usize,
    },
    /// Hold a file open and locked with flock(2), and one beside it with fcntl(2). A line on stdin
    /// makes it write to the first one and say so
    Hold {
        /// The mount point
        mount: PathBuf,
        /// The file, below the mount point
        #[arg(long)]
        name: String,
    },
    /// Try the locks of files that are held, and say what is in the first one
    Probe {
        /// The mount point
        mount: PathBuf,
        /// The file, below the mount point
        #[arg(long)]
        name: String,
    },
    /// Take a processor until stdin ends
    Burn {
        /// The mount point
        mount: PathBuf,
    },
    /// Read the synced files of other nodes that it is this node's turn to check
    Check {
        /// The mount point
        mount: PathBuf,
        /// The folder with the ledgers
        #[arg(long)]
        ledgers: PathBuf,
        /// The node whose mount it is
        #[arg(long)]
        node: usize,
        /// How many nodes there are
        #[arg(long)]
        nodes: usize,
    },
}

impl Part {
    /// Does it. Fails if it could not begin.
    pub fn run(&self) -> Result<()> {
        match self {
            Part::Load { mount, ledgers, node, nodes, folder, id } => {
                let open = |node| Ledger::open(ledgers, node).context("open a ledger");
                Load {
                    mount: Mount::new(mount)?,
                    ledgers: (0..*nodes).map(open).collect::<Result<_>>()?,
                    node: *node,
                    folder: folder.clone(),
                    id: *id,
                    made: 0,
                    random: Random::new(*id as u64),
                }
                .run();
                Ok(())
            }
            Part::Hold { mount, name } => hold(Mount::new(mount)?, name).with_context(|| format!("hold {name}")),
            Part::Probe { mount, name } => probe(Mount::new(mount)?, name).with_context(|| format!("probe {name}")),
            Part::Burn { .. } => {
                let orders = orders();
                while orders.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
                    (0..BURST).for_each(|round| {
                        std::hint::black_box(round);
                    });
                }
                Ok(())
            }
            Part::Check { mount, ledgers, node, nodes } => check(Mount::new(mount)?, ledgers, *node, *nodes),
        }
    }
}

/// Does a call, and says when it begins and when it has ended.
fn call<T>(kind: &str, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    println!("begin {:.6} {kind}", monotonic_seconds());
    let result = call();
    match &result {
        Ok(_) => println!("end {:.6}", monotonic_seconds()),
        Err(error) => println!("end {:.6} {error}", monotonic_seconds()),
    }
    result
}

fn say_bad(name: &str, why: impl Display) {
    println!("bad {name} {why}");
}

/// Closes a file and returns the error, which a drop would hide.
fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor is this function's own.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The lines of stdin, read by a thread of its own; disconnected when it ends.
fn orders() -> Receiver<String> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || io::stdin().lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    receive
}

/// The root of a mount. Files are reached through its descriptor: while nothing is mounted, no file
/// is made on the disk below the mount point.
struct Mount {
    point: PathBuf,
    /// The device of the disk that has the mount point.
    disk: u64,
    root: Option<File>,
}

impl Mount {
    fn new(point: &Path) -> Result<Mount> {
        let parent = point.parent().context("a mount point without a parent")?;
        let disk = fs::metadata(parent).with_context(|| format!("stat {}", parent.display()))?.dev();
        Ok(Mount { point: point.to_owned(), disk, root: None })
    }

    /// The path of a file that is named from the root.
    fn path(&mut self, name: &str) -> io::Result<PathBuf> {
        if self.root.is_none() {
            let (point, disk) = (&self.point, self.disk);
            let open = || {
                let root = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(point)?;
                let is_mounted = root.metadata()?.dev() != disk;
                if is_mounted { Ok(root) } else { Err(io::Error::from_raw_os_error(libc::ENOTCONN)) }
            };
            self.root = Some(call("open-root", open)?);
        }
        let number = self.root.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        Ok(format!("/proc/self/fd/{number}/{name}").into())
    }

    /// Opens the root anew at the next use: the file system may be mounted again.
    fn forget(&mut self) {
        self.root = None;
    }

    /// Waits until it is mounted.
    fn wait(&mut self) -> io::Result<()> {
        let started = Instant::now();
        loop {
            match self.path("").and_then(fs::metadata) {
                Ok(_) => return Ok(()),
                Err(error) if started.elapsed() > MOUNT_DEADLINE => return Err(error),
                Err(_) => self.forget(),
            }
            std::thread::sleep(PAUSE_AFTER_ERROR);
        }
    }
}

/// A program that makes and reads files.
struct Load {
    mount: Mount,
    /// By node.
    ledgers: Vec<Ledger>,
    node: usize,
    folder: String,
    id: usize,
    made: u64,
    random: Random,
}

impl Load {
    fn run(mut self) {
        let orders = orders();
        // The folder is there if another program was faster.
        while orders.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
            let done = match self.random.below(8) {
                0..=2 => self.make(),
                3 => self.make_and_rename(),
                4..=5 => self.read(),
                6 => self.stat(),
                _ => self.list(),
            };
            if done.is_err() {
                self.mount.forget();
                std::thread::sleep(PAUSE_AFTER_ERROR);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// A new name of a file below the mount point.
    fn name(&mut self) -> String {
        self.made += 1;
        format!("{}/node{}-{}-{}", self.folder, self.node, self.id, self.made)
    }

    /// Makes a file with the contents of `name`, and syncs it.
    fn write(&mut self, path: &Path, name: &str) -> io::Result<File> {
        let open = || OpenOptions::new().write(true).create_new(true).open(path);
        let mut file = match call("create", open) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = self.mount.path(&self.folder)?;
                // Another program may have been faster.
                let _ = call("mkdir", || match fs::create_dir(folder) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                    done => done,
                });
                return Err(error);
            }
            opened => opened?,
        };
        let written = call("write", || io::Write::write_all(&mut file, &contents(name)));
        match written.and_then(|()| call("fsync", || file.sync_all())) {
            Ok(()) => Ok(file),
            Err(error) => call("close", || close(file)).and(Err(error)),
        }
    }

    fn make(&mut self) -> io::Result<()> {
        let name = self.name();
        let path = self.mount.path(&name)?;
        let file = self.write(&path, &name)?;
        self.ledgers[self.node].note(&name)?;
        call("close", || close(file))
    }

    /// Makes a file under another name, renames it, and syncs its folder.
    fn make_and_rename(&mut self) -> io::Result<()> {
        let name = self.name();
        let (path, folder) = (self.mount.path(&name)?, self.mount.path(&self.folder.clone())?);
        let before = path.with_extension("new");
        let file = self.write(&before, &name)?;
        call("close", || close(file))?;
        call("rename", || fs::rename(&before, &path))?;
        call("fsync-folder", || File::open(&folder)?.sync_all())?;
        self.ledgers[self.node].note(&name)
    }

    /// A file that a program on any node has synced.
    fn synced(&mut self) -> io::Result<Option<String>> {
        let nodes = self.ledgers.len() as u64;
        let ledger = &mut self.ledgers[self.random.below(nodes) as usize];
        let names = ledger.names()?;
        let begin = if self.random.below(2) == 0 { 0 } else { names.len().saturating_sub(RECENT) };
        let index = begin + self.random.below((names.len() - begin) as u64) as usize;
        Ok(names.get(index).cloned())
    }

    fn read(&mut self) -> io::Result<()> {
        let Some(name) = self.synced()? else { return Ok(()) };
        let path = self.mount.path(&name)?;
        let mut file = call("open", || File::open(&path)).inspect_err(|error| say_if_missing(&name, error))?;
        let mut bytes = Vec::new();
        let done = call("read", || file.read_to_end(&mut bytes));
        if done.is_ok() && bytes != contents(&name) {
            say_bad(&name, format!("has other contents in {} bytes", bytes.len()));
        }
        call("close", || close(file)).and(done.map(drop))
    }

    fn stat(&mut self) -> io::Result<()> {
        let Some(name) = self.synced()? else { return Ok(()) };
        let path = self.mount.path(&name)?;
        let found = call("stat", || fs::metadata(&path)).inspect_err(|error| say_if_missing(&name, error))?;
        if found.len() != contents(&name).len() as u64 {
            say_bad(&name, format!("has {} bytes", found.len()));
        }
        Ok(())
    }

    fn list(&mut self) -> io::Result<()> {
        let path = self.mount.path(&self.folder.clone())?;
        call("readdir", || fs::read_dir(&path)?.try_for_each(|entry| entry.map(drop)))
    }
}

fn say_if_missing(name: &str, error: &io::Error) {
    if error.kind() == io::ErrorKind::NotFound {
        say_bad(name, "is missing");
    }
}

/// Holds a file, and writes there from time to time. When it is told to, it writes the line that it
/// was given, says `wrote`, and holds the file until stdin ends, without writing any more.
fn hold(mut mount: Mount, name: &str) -> Result<()> {
    let path = mount.path(name)?;
    let folder = path.parent().context("a file without a folder")?;
    if let Err(error) = fs::create_dir(folder) {
        anyhow::ensure!(error.kind() == io::ErrorKind::AlreadyExists, "make the folder: {error}");
    }
    let open = |path: &Path| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let file = open(&path)?;
    flock(&file).context("lock it with flock")?;
    let beside = open(&beside(&path))?;
    record_lock(&beside).context("lock the file beside it with fcntl")?;
    let orders = orders();
    println!("holds");
    let mut count: u64 = 0;
    loop {
        match orders.recv_timeout(HOLD_PERIOD) {
            Ok(line) => {
                let write = || file.set_len(0).and_then(|()| file.write_all_at(line.as_bytes(), 0));
                let done = call("held-write", write).and_then(|()| call("held-fsync", || file.sync_all()));
                println!("wrote {}", done.map_or_else(|error| error.to_string(), |()| "all".to_owned()));
                // Nothing else is said until stdin ends.
                let _ = orders.recv();
                return Ok(());
            }
            Err(RecvTimeoutError::Timeout) => {
                count += 1;
                // An error was said, and the end shows whether the file is lost.
                let _ = call("held-write", || file.write_all_at(&count.to_le_bytes(), 0));
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// The file that has the lock of fcntl(2), beside one with a lock of flock(2).
fn beside(path: &Path) -> PathBuf {
    path.with_extension("fcntl")
}

/// Says `flock` and `fcntl`, each with `refused`, `taken` or an error, and `contents`.
fn probe(mut mount: Mount, name: &str) -> Result<()> {
    let path = mount.path(name)?;
    let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
    let (file, beside) = (open(&path)?, open(&beside(&path))?);
    let tried = |lock: fn(&File) -> io::Result<()>, file: &File| match lock(file) {
        Ok(()) => "taken".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => "refused".to_owned(),
        Err(error) => error.to_string(),
    };
    println!("flock {}", tried(flock, &file));
    println!("fcntl {}", tried(record_lock, &beside));
    let mut bytes = Vec::new();
    (&file).read_to_end(&mut bytes)?;
    println!("contents {}", String::from_utf8_lossy(&bytes));
    Ok(())
}

/// Takes the whole file's lock of flock(2), without waiting.
fn flock(file: &File) -> io::Result<()> {
    // SAFETY: flock takes plain numbers; the descriptor is open.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes a lock of fcntl(2) on the whole file, without waiting.
fn record_lock(file: &File) -> io::Result<()> {
    // SAFETY: the structure is plain data for which zero is valid, and lives through the call; the
    // descriptor is open.
    let result = unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = libc::F_WRLCK as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock)
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Says `bad` of each file that is lost or wrong, and at the end `checked` with a count.
fn check(mut mount: Mount, ledgers: &Path, node: usize, nodes: usize) -> Result<()> {
    mount.wait().context("wait for the mount")?;
    let mut checked = 0;
    for writer in 0..nodes {
        let mut ledger = Ledger::open(ledgers, writer).context("open a ledger")?;
        for (index, name) in ledger.names().context("read a ledger")?.iter().enumerate() {
            if !ledger::checks(node, writer, index, nodes) {
                continue;
            }
            checked += 1;
            match mount.path(name).and_then(fs::read) {
                Ok(bytes) if bytes == contents(name) => {}
                Ok(bytes) => say_bad(name, format!("has other contents in {} bytes", bytes.len())),
                Err(error) => say_bad(name, error),
            }
        }
    }
    println!("checked {checked}");
    Ok(())
}
