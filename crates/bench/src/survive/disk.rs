//! A disk of a node's own: a file system in a file. It can become full, and stand still.

use std::fs::{self, File};
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::{self, Interrupts};
use crate::mounts;

/// The size of a disk. What is not written takes no room.
const SIZE: u64 = 16 << 30;
/// The file that takes what is free.
const FILLER: &str = "filler";
/// A disk that is to be full is filled again this often.
const FILL_PERIOD: Duration = Duration::from_millis(100);
/// Less than this cannot be taken.
const BLOCK: u64 = 4096;
/// A slow disk stands still for the first of these times, and goes on for the second, in turns.
const SLOW: (Duration, Duration) = (Duration::from_millis(250), Duration::from_millis(50));
/// Longest time for each command, and until nothing uses a disk any more.
const DEADLINE: Duration = Duration::from_secs(60);
/// What `ioctl` takes to freeze and to thaw a file system; see `linux/fs.h`.
const FIFREEZE: libc::c_ulong = 0xC004_5877;
const FITHAW: libc::c_ulong = 0xC004_5878;

/// A file system in a file, mounted. When it is dropped, it is unmounted.
pub struct Disk {
    folder: PathBuf,
    /// The folder, as long as it is mounted.
    opened: Option<Arc<File>>,
    /// Thaws the file system when this process has ended, however it ends.
    guard: Child,
    trouble: Option<Trouble>,
}

/// A thread that makes trouble until it is to end.
struct Trouble {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Disk {
    /// Makes the file `image` with a file system, and mounts it at the new folder `folder`.
    pub fn make(image: &Path, folder: &Path) -> Result<Disk> {
        File::create_new(image).and_then(|file| file.set_len(SIZE)).context("make the file of a disk")?;
        fs::create_dir(folder).with_context(|| format!("make {}", folder.display()))?;
        // Nothing is kept for the superuser: full means full.
        let lazily = "lazy_itable_init=1,lazy_journal_init=1";
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0", "-E", lazily]).arg(image))?;
        run(Command::new("mount").args(["-o", "loop,discard"]).args([image, folder]))?;
        let mut guard = Command::new("sh");
        // It fails if the file system is not frozen, which is well.
        guard.args(["-c", "cat > /dev/null; fsfreeze --unfreeze \"$0\" 2> /dev/null"]).arg(folder);
        let guard = guard.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut disk = Disk {
            folder: folder.to_owned(),
            opened: None,
            guard: guard.context("start the guard of a disk")?,
            trouble: None,
        };
        ensure!(mounts::is_mounted(folder)?, "{} is not mounted", folder.display());
        disk.opened = Some(Arc::new(File::open(folder).context("open the folder of a disk")?));
        Ok(disk)
    }

    fn opened(&self) -> Result<Arc<File>> {
        self.opened.clone().context("the disk is not mounted")
    }

    /// Takes all room that is free or becomes free, until [`heal`](Self::heal).
    pub fn fill(&mut self) -> Result<()> {
        let filler = File::create(self.folder.join(FILLER)).context("fill a disk")?;
        let mut end = take_free(&filler, 0)?;
        self.begin(move |ends| {
            while !ends.load(Ordering::Relaxed) {
                std::thread::sleep(FILL_PERIOD);
                end = take_free(&filler, end)?;
            }
            Ok(())
        })
    }

    /// Lets every change of a file wait until [`heal`](Self::heal). What was written before is on
    /// the disk first.
    pub fn freeze(&mut self) -> Result<()> {
        freeze(&*self.opened()?)
    }

    /// Lets changes wait most of the time, until [`heal`](Self::heal).
    pub fn slow(&mut self) -> Result<()> {
        let opened = self.opened()?;
        self.begin(move |ends| {
            while !ends.load(Ordering::Relaxed) {
                freeze(&opened)?;
                std::thread::sleep(SLOW.0);
                ensure!(thaw(&opened)?, "the disk did not stand still");
                std::thread::sleep(SLOW.1);
            }
            Ok(())
        })
    }

    fn begin(&mut self, trouble: impl FnOnce(&AtomicBool) -> Result<()> + Send + 'static) -> Result<()> {
        ensure!(self.trouble.is_none(), "the disk has another trouble");
        let ends = Arc::new(AtomicBool::new(false));
        let ended = ends.clone();
        self.trouble = Some(Trouble { ends, thread: std::thread::spawn(move || trouble(&ended)) });
        Ok(())
    }

    /// Ends all trouble. Fails if there was none, or if it was not so all the time.
    pub fn heal(&mut self) -> Result<()> {
        let ended = self.trouble.take().map(|Trouble { ends, thread }| {
            ends.store(true, Ordering::Relaxed);
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let was_frozen = thaw(&*self.opened()?)?;
        let was_full = match fs::remove_file(self.folder.join(FILLER)) {
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            removed => removed.map(|()| true).context("empty a disk")?,
        };
        match ended {
            Some(ended) => ended,
            None if was_frozen || was_full => Ok(()),
            None => bail!("the disk had no trouble"),
        }
    }

    /// Unmounts it. Fails if something uses it for too long.
    fn unmount(&mut self) -> Result<()> {
        if let Some(trouble) = &self.trouble {
            trouble.ends.store(true, Ordering::Relaxed);
        }
        self.trouble.take().map(|trouble| trouble.thread.join());
        if let Some(opened) = self.opened.take() {
            thaw(&opened)?;
        }
        let until = Instant::now() + DEADLINE;
        while let Err(error) = run(Command::new("umount").arg(&self.folder)) {
            ensure!(Instant::now() < until, "{error:#}");
            std::thread::sleep(FILL_PERIOD);
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("bench: {} stays mounted: {error:#}", self.folder.display());
        }
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// Takes all free room for a file that ends at `end`. Returns where it ends then.
fn take_free(filler: &File, mut end: u64) -> Result<u64> {
    let mut size = SIZE;
    while size >= BLOCK {
        // SAFETY: the descriptor is open for as long as the call takes.
        let result = unsafe { libc::fallocate(filler.as_raw_fd(), 0, end as i64, size as i64) };
        match (result, Error::last_os_error()) {
            (0, _) => end += size,
            (_, error) if error.raw_os_error() == Some(libc::ENOSPC) => size /= 2,
            (_, error) => return Err(error).context("fill a disk"),
        }
    }
    Ok(end)
}

fn freeze(opened: &File) -> Result<()> {
    // SAFETY: the descriptor is open for as long as the call takes, which uses no memory.
    let result = unsafe { libc::ioctl(opened.as_raw_fd(), FIFREEZE, 0) };
    ensure!(result == 0, "let a disk stand still: {}", Error::last_os_error());
    Ok(())
}

/// False if it did not stand still.
fn thaw(opened: &File) -> Result<bool> {
    // SAFETY: the descriptor is open for as long as the call takes, which uses no memory.
    let result = unsafe { libc::ioctl(opened.as_raw_fd(), FITHAW, 0) };
    match (result, Error::last_os_error()) {
        (0, _) => Ok(true),
        (_, error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        (_, error) => Err(error).context("let a disk go on"),
    }
}

fn run(command: &mut Command) -> Result<()> {
    command::run(command, DEADLINE, Interrupts::Ignore).map(drop)
}
