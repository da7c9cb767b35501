//! A folder on a real disk.
//!
//! Each disk has [`READ_THREADS`] threads that read and one that writes. So an operation costs
//! exactly one hand-over to a thread and back, disks do not wait for each other, and the tasks'
//! runtime never blocks. A short read whose bytes are all in the page cache costs no hand-over: the
//! caller's thread does it, by a read that refuses to wait.
//!
//! Long reads and writes bypass the page cache, to and from buffers that are reused: roles cache
//! what is worth it, and one more copy would cost more than the disk does.
//!
//! The writing thread also runs the disk's [`tasks`](Disk::tasks). Changes that such a task makes
//! cost no hand-over at all, and the task delays only operations on the same disk. Short tasks of
//! other roles that waited for a write go on there too (see `tasks`).
//!
//! The changes of one disk are done in the order in which they were handed over; its own tasks'
//! changes are done at once. Dropping a future does not stop an operation that was handed over.
//! When the last handle to the disk and its files is gone, the threads finish their queues and end.

use super::syscall::{self, Wait};
use super::tasks::{TokioTasks, lend_thread};
use crate::{Disk, DiskSpace, File, Host, Tasks, check_name};
use bytes::{BufMut, Bytes};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use tokio::sync::{Semaphore, oneshot};
use types::BoxFuture;
use types::aligned::{AlignedBuffer, PAGE_LEN};

/// Alignment of buffers and lengths of writes that bypass the page cache, in bytes; also of reads,
/// if the file system permits it.
const SECTOR_LEN: usize = 512;
/// Reads and writes below this many bytes are faster through the page cache.
const DIRECT_LEN_MIN: usize = 128 * 1024;
/// Threads that read, per disk.
const READ_THREADS: usize = 2;
/// Most operations that wait for a thread, per queue; further ones wait as tasks.
const QUEUE_MAX: usize = 256;

/// A folder on a real disk; see the [module](self) for its threads.
pub struct RealDisk {
    folder: Arc<Folder>,
    threads: Arc<Threads>,
}

struct Folder {
    path: PathBuf,
    /// The folder itself, for syncing names.
    file: fs::File,
}

impl RealDisk {
    /// Opens the folder `path`, which must exist, and starts its threads.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Arc<RealDisk>> {
        let path = path.as_ref().to_path_buf();
        let file = fs::File::open(&path)?;
        if !file.metadata()?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Arc::new(RealDisk { folder: Arc::new(Folder { path, file }), threads: Arc::new(Threads::start()?) }))
    }

    /// Locks the folder against other processes that also lock it, until this disk is dropped or
    /// the process ends. `WouldBlock` if another process holds the lock.
    pub fn lock(&self) -> io::Result<()> {
        self.folder.file.try_lock().map_err(io::Error::from)
    }

    fn changing<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<io::Result<T>> {
        let folder = self.folder.clone();
        write(self.threads.clone(), move || work(&folder))
    }

    fn looking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<io::Result<T>> {
        let folder = self.folder.clone();
        read(self.threads.clone(), move || work(&folder))
    }
}

impl Folder {
    fn path_of(&self, name: &str) -> io::Result<PathBuf> {
        check_name(name)?;
        Ok(self.path.join(name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            // Starling makes only UTF-8 names, and this interface could not open any other.
            if let (true, Ok(name)) = (entry.file_type()?.is_file(), entry.file_name().into_string()) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }
}

impl Disk for RealDisk {
    fn open(&self, name: &str, create: bool) -> BoxFuture<io::Result<Arc<dyn File>>> {
        let (name, threads) = (name.to_owned(), self.threads.clone());
        let opened = self.changing(move |folder| {
            let path = folder.path_of(&name)?;
            let file = fs::OpenOptions::new().read(true).write(true).create(create).truncate(false).open(&path)?;
            // Some file systems lack O_DIRECT; then everything goes through the page cache.
            let direct = fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).ok();
            // Some file systems accept shorter units than they can read directly, and then use the
            // page cache after all.
            let short_sectors = syscall::direct_unit(&file).is_some_and(|unit| unit as usize <= SECTOR_LEN);
            Ok((file, direct, short_sectors))
        });
        Box::pin(async move {
            let (file, direct, short_sectors) = opened.await?;
            let [direct_writes, direct_reads, short_sectors, cached_reads] =
                [true, true, short_sectors, true].map(AtomicBool::new);
            let opened = Opened { file, direct, direct_writes, direct_reads, short_sectors, cached_reads };
            Ok(Arc::new(RealFile { opened: Arc::new(opened), threads }) as Arc<dyn File>)
        })
    }

    fn list(&self) -> BoxFuture<io::Result<Vec<String>>> {
        self.looking(Folder::list)
    }

    fn remove(&self, name: &str) -> BoxFuture<io::Result<()>> {
        let name = name.to_owned();
        self.changing(move |folder| fs::remove_file(folder.path_of(&name)?))
    }

    fn rename(&self, from: &str, to: &str) -> BoxFuture<io::Result<()>> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.changing(move |folder| fs::rename(folder.path_of(&from)?, folder.path_of(&to)?))
    }

    fn sync_names(&self) -> BoxFuture<io::Result<()>> {
        self.changing(|folder| folder.file.sync_all())
    }

    fn sync_all(&self) -> BoxFuture<io::Result<()>> {
        // Writes go on meanwhile.
        self.looking(|folder| {
            SYNC_COUNT.fetch_add(1, Ordering::Relaxed);
            syscall::sync_all(&folder.file)
        })
    }

    fn space(&self) -> BoxFuture<io::Result<DiskSpace>> {
        self.looking(|folder| syscall::space(&folder.file))
    }

    fn tasks(&self, _: &Host) -> Arc<dyn Tasks> {
        Arc::new(TokioTasks(self.threads.write.tasks.clone()))
    }
}

impl AsFd for Opened {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

struct RealFile {
    opened: Arc<Opened>,
    threads: Arc<Threads>,
}

struct Opened {
    file: fs::File,
    /// The same file, opened to bypass the page cache.
    direct: Option<fs::File>,
    /// False once the file system has refused a direct write.
    direct_writes: AtomicBool,
    /// False once the file system has refused a direct read of whole pages.
    direct_reads: AtomicBool,
    /// False if the file system does not say that it reads units of [`SECTOR_LEN`], or once it has
    /// refused to.
    short_sectors: AtomicBool,
    /// False once the file system has said that it cannot tell cached bytes from other bytes.
    cached_reads: AtomicBool,
}

/// Syncs of files since the process started.
static SYNC_COUNT: AtomicU64 = AtomicU64::new(0);

/// How many times this process has asked to make the data of a file of any [`RealDisk`] durable.
pub fn sync_count() -> u64 {
    SYNC_COUNT.load(Ordering::Relaxed)
}

impl Opened {
    fn sync(&self) -> io::Result<()> {
        SYNC_COUNT.fetch_add(1, Ordering::Relaxed);
        self.file.sync_data()
    }

    /// Writes `pieces` at `offset`. A long write of whole pages, in pieces of whole aligned
    /// sectors, goes straight from memory to the disk; any other goes through the page cache. The
    /// kernel keeps both views of a file the same.
    fn write(&self, offset: u64, pieces: &[Bytes]) -> io::Result<()> {
        let fits = |p: &Bytes| (p.as_ptr() as usize).is_multiple_of(SECTOR_LEN) && p.len().is_multiple_of(SECTOR_LEN);
        let len: usize = pieces.iter().map(Bytes::len).sum();
        if let Some(direct) = self.direct_for(len)
            && self.direct_writes.load(Ordering::Relaxed)
            && offset.is_multiple_of(PAGE_LEN as u64)
            && len.is_multiple_of(PAGE_LEN)
            && pieces.iter().all(fits)
        {
            match syscall::write_all(direct, offset, pieces) {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.direct_writes.store(false, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        syscall::write_all(&self.file, offset, pieces)
    }

    /// The file that bypasses the page cache, if `len` bytes are long enough for it.
    fn direct_for(&self, len: usize) -> Option<&fs::File> {
        self.direct.as_ref().filter(|_| len >= DIRECT_LEN_MIN)
    }

    /// Reads whole sectors straight from the disk, or whole pages if the disk has no shorter
    /// sectors. The bytes then begin on a page of memory, and their receiver copies them in half
    /// the time. `None` if a direct read is not possible, or got too few bytes.
    fn read_direct(&self, offset: u64, len: usize) -> io::Result<Option<Bytes>> {
        let Some(direct) = self.direct_for(len) else { return Ok(None) };
        for (unit, works) in [(SECTOR_LEN, &self.short_sectors), (PAGE_LEN, &self.direct_reads)] {
            if !works.load(Ordering::Relaxed) {
                continue;
            }
            let skip = (offset % unit as u64) as usize;
            let mut buffer = AlignedBuffer::with_room((skip + len).next_multiple_of(unit));
            let room = buffer.remaining_mut();
            // One call only: if the file ends within a unit, a second call would have to begin
            // there.
            match syscall::read_some(direct, &mut buffer, offset - skip as u64, room, Wait::ForDisk) {
                Ok(_) if buffer.len() >= skip + len => return Ok(Some(buffer.freeze().slice(skip..skip + len))),
                Ok(_) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => works.store(false, Ordering::Relaxed),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Reads the first part of the range that is in memory, without waiting.
    fn read_cached(&self, buffer: &mut Vec<u8>, offset: u64, len: usize) {
        if !self.cached_reads.load(Ordering::Relaxed) {
            return;
        }
        // The read that waits meets any other error again, and reports it.
        if let Err(error) = syscall::read(&self.file, buffer, offset, len, Wait::Never)
            && error.raw_os_error() == Some(libc::EOPNOTSUPP)
        {
            self.cached_reads.store(false, Ordering::Relaxed);
        }
    }

    /// Reads the rest of the range; the bytes in `buffer` are its beginning.
    fn read_rest(&self, mut buffer: Vec<u8>, offset: u64, len: usize) -> io::Result<Bytes> {
        if buffer.is_empty()
            && let Some(bytes) = self.read_direct(offset, len)?
        {
            return Ok(bytes);
        }
        buffer.reserve_exact(len - buffer.len());
        syscall::read(&self.file, &mut buffer, offset, len, Wait::ForDisk)?;
        if buffer.len() < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(buffer.into())
    }
}

impl RealFile {
    fn changing(&self, work: impl FnOnce(&Opened) -> io::Result<()> + Send + 'static) -> BoxFuture<io::Result<()>> {
        let opened = self.opened.clone();
        write(self.threads.clone(), move || work(&opened))
    }
}

impl File for RealFile {
    fn read_at(&self, offset: u64, len: usize) -> BoxFuture<io::Result<Bytes>> {
        let (opened, threads) = (self.opened.clone(), self.threads.clone());
        Box::pin(async move {
            let mut buffer = Vec::new();
            if opened.direct_for(len).is_none() {
                buffer.reserve_exact(len);
                opened.read_cached(&mut buffer, offset, len);
            }
            if buffer.len() == len {
                return Ok(buffer.into());
            }
            read(threads, move || opened.read_rest(buffer, offset, len)).await
        })
    }

    fn write_at(&self, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<io::Result<()>> {
        self.changing(move |opened| opened.write(offset, &pieces))
    }

    fn write_and_sync(&self, writes: Vec<(u64, Vec<Bytes>)>) -> BoxFuture<io::Result<()>> {
        self.changing(move |opened| {
            for (offset, pieces) in &writes {
                opened.write(*offset, pieces)?;
            }
            opened.sync()
        })
    }

    fn sync_data(&self) -> BoxFuture<io::Result<()>> {
        self.changing(Opened::sync)
    }

    fn len(&self) -> BoxFuture<io::Result<u64>> {
        let result = self.opened.file.metadata().map(|metadata| metadata.len());
        Box::pin(std::future::ready(result))
    }

    fn set_len(&self, len: u64) -> BoxFuture<io::Result<()>> {
        self.changing(move |opened| opened.file.set_len(len))
    }

    fn allocate(&self, len: u64) -> BoxFuture<io::Result<()>> {
        self.changing(move |opened| syscall::allocate(&opened.file, len))
    }

    fn change_mark(&self) -> BoxFuture<io::Result<u128>> {
        // After a program has asked for this time, the kernel gives the next change a later one
        // (certain since Linux 6.13).
        let mark = |metadata: fs::Metadata| (metadata.mtime() as u128) << 32 | metadata.mtime_nsec() as u128;
        Box::pin(std::future::ready(self.opened.file.metadata().map(mark)))
    }

    fn descriptor(&self) -> Option<Arc<dyn AsFd + Send + Sync>> {
        Some(self.opened.clone())
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// The threads of one disk. They end when this is dropped and their queues are empty. Work that
/// waits for them keeps it alive.
struct Threads {
    read: Arc<Queue>,
    write: Writer,
}

impl Threads {
    fn start() -> io::Result<Self> {
        let threads = Threads { read: Arc::new(Queue::new()), write: Writer::start()? };
        for _ in 0..READ_THREADS {
            let queue = threads.read.clone();
            thread::Builder::new().name("disk-read".into()).spawn(move || queue.work())?;
        }
        Ok(threads)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.read.close();
    }
}

/// The writing thread: a runtime of its own, which ends when this is dropped.
struct Writer {
    tasks: tokio::runtime::Handle,
    thread: thread::ThreadId,
    places: Arc<Semaphore>,
    _end: oneshot::Sender<()>,
}

impl Writer {
    fn start() -> io::Result<Self> {
        let (end, ended) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        // The runtime never leaves its thread: elsewhere it could not be dropped.
        let work = move || match tokio::runtime::Builder::new_current_thread().build() {
            Ok(runtime) => {
                lend_thread(runtime.handle().clone());
                let _ = tell.send(Ok(runtime.handle().clone()));
                // The end is signalled by the sender's drop, which shows as an error here.
                drop(runtime.block_on(ended));
            }
            Err(error) => drop(tell.send(Err(error))),
        };
        let thread = thread::Builder::new().name("disk-write".into()).spawn(work)?.thread().id();
        let tasks = told.recv().map_err(|_| gone())??;
        Ok(Writer { tasks, thread, places: Arc::new(Semaphore::new(QUEUE_MAX)), _end: end })
    }
}

/// Work that waits for a thread.
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    places: Arc<Semaphore>,
}

#[derive(Default)]
struct Waiting {
    work: VecDeque<Work>,
    closed: bool,
}

impl Queue {
    fn new() -> Self {
        Queue { waiting: Mutex::default(), changed: Condvar::new(), places: Arc::new(Semaphore::new(QUEUE_MAX)) }
    }

    fn push(&self, work: Work) {
        self.waiting.lock().work.push_back(work);
        self.changed.notify_one();
    }

    fn close(&self) {
        self.waiting.lock().closed = true;
        self.changed.notify_all();
    }

    fn next(&self) -> Option<Work> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(work) = waiting.work.pop_front() {
                return Some(work);
            }
            if waiting.closed {
                return None;
            }
            self.changed.wait(&mut waiting);
        }
    }

    fn work(&self) {
        while let Some(work) = self.next() {
            work();
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("disk thread is gone")
}

/// Does `work` on a reading thread.
fn read<T: Send + 'static>(
    threads: Arc<Threads>,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> BoxFuture<io::Result<T>> {
    Box::pin(async move {
        let place = threads.read.places.clone().acquire_owned().await.map_err(|_| gone())?;
        let (answer, answered) = oneshot::channel();
        let queue = threads.read.clone();
        queue.push(Box::new(move || {
            let result = work();
            drop((place, threads));
            // The caller may have stopped waiting; the operation counts all the same.
            let _ = answer.send(result);
        }));
        answered.await.map_err(|_| gone())?
    })
}

/// Does `work` on the writing thread; a task that runs there does it itself.
fn write<T: Send + 'static>(
    threads: Arc<Threads>,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> BoxFuture<io::Result<T>> {
    Box::pin(async move {
        if thread::current().id() == threads.write.thread {
            return work();
        }
        let place = threads.write.places.clone().acquire_owned().await.map_err(|_| gone())?;
        let (answer, answered) = oneshot::channel();
        let tasks = threads.write.tasks.clone();
        drop(tasks.spawn(async move {
            let result = work();
            drop((place, threads));
            // As above.
            let _ = answer.send(result);
        }));
        answered.await.map_err(|_| gone())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{Future, poll_fn};
    use std::task::Poll;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().expect("runtime").block_on(future)
    }

    fn disk() -> (tempfile::TempDir, Arc<RealDisk>) {
        let folder = tempfile::tempdir().expect("temporary folder");
        let disk = RealDisk::open(folder.path()).expect("disk");
        (folder, disk)
    }

    #[test]
    fn pieces_are_written_back_to_back_even_if_many_or_empty() {
        let (_folder, disk) = disk();
        block_on(async {
            let file = disk.open("file", true).await.unwrap();
            let mut pieces = vec![Bytes::new()];
            let mut expected = Vec::new();
            for number in 0..3000u32 {
                let piece = number.to_le_bytes()[..(number % 4) as usize].to_vec();
                expected.extend_from_slice(&piece);
                pieces.push(piece.into());
            }
            pieces.push(Bytes::new());
            file.write_at(10, pieces).await.unwrap();
            assert_eq!(file.len().await.unwrap(), 10 + expected.len() as u64);
            assert_eq!(file.read_at(10, expected.len()).await.unwrap(), expected);
            assert_eq!(file.read_at(0, 10).await.unwrap(), [0; 10].as_slice());
            assert_eq!(file.read_at(20, 0).await.unwrap(), Bytes::new());
        });
    }

    #[test]
    fn group_write_puts_every_write_and_survives_reopening() {
        let (folder, disk) = disk();
        block_on(async {
            let file = disk.open("file", true).await.unwrap();
            let writes = vec![
                (4096, vec![Bytes::from_static(b"later "), Bytes::from_static(b"half")]),
                (0, vec![Bytes::from_static(b"first")]),
            ];
            file.write_and_sync(writes).await.unwrap();
            disk.sync_names().await.unwrap();
            drop((file, disk));
            let disk = RealDisk::open(folder.path()).unwrap();
            let file = disk.open("file", false).await.unwrap();
            assert_eq!(file.read_at(4096, 10).await.unwrap(), "later half");
            assert_eq!(file.read_at(0, 6).await.unwrap(), "first\0");
        });
    }

    #[test]
    fn reading_past_the_end_is_unexpected_eof() {
        let (_folder, disk) = disk();
        block_on(async {
            let file = disk.open("file", true).await.unwrap();
            file.write_at(0, vec![Bytes::from_static(b"12345")]).await.unwrap();
            assert_eq!(file.read_at(3, 3).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            assert_eq!(file.read_at(u64::MAX, 1).await.unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert_eq!(
                file.write_at(u64::MAX, vec!["x".into()]).await.unwrap_err().kind(),
                io::ErrorKind::InvalidInput
            );
        });
    }

    #[test]
    fn long_reads_past_the_page_cache_agree_with_it_at_any_offset_and_at_the_end() {
        let (_folder, disk) = disk();
        block_on(async {
            let file = disk.open("file", true).await.unwrap();
            let bytes: Vec<u8> = (0..1_000_001u32).map(|i| (i * 7 / 5) as u8).collect();
            file.write_at(0, vec![bytes.clone().into()]).await.unwrap();
            for (offset, len) in
                [(0, 1_000_001), (0, 262_144), (1, 999_999), (511, 300_000), (4096, 995_905), (4097, 131_072)]
            {
                assert!(
                    file.read_at(offset as u64, len).await.unwrap() == bytes[offset..offset + len],
                    "{offset} {len}"
                );
            }
            assert_eq!(file.read_at(512, 1_000_000).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            // Written through the page cache and not synced.
            file.write_at(300_000, vec!["new".into()]).await.unwrap();
            assert_eq!(file.read_at(0, 400_000).await.unwrap()[300_000..300_003], *b"new");
        });
    }

    #[test]
    fn names_are_created_listed_renamed_and_removed() {
        let (folder, disk) = disk();
        std::fs::create_dir(folder.path().join("not-a-file")).unwrap();
        block_on(async {
            assert_eq!(disk.open("b", false).await.err().unwrap().kind(), io::ErrorKind::NotFound);
            disk.open("b", true).await.unwrap().write_at(0, vec!["b".into()]).await.unwrap();
            disk.open("a", true).await.unwrap();
            assert_eq!(disk.list().await.unwrap(), ["a", "b"]);
            disk.rename("b", "a").await.unwrap();
            assert_eq!(disk.list().await.unwrap(), ["a"]);
            assert_eq!(disk.open("a", true).await.unwrap().read_at(0, 1).await.unwrap(), "b");
            disk.remove("a").await.unwrap();
            assert_eq!(disk.remove("a").await.unwrap_err().kind(), io::ErrorKind::NotFound);
            for name in ["", ".", "..", "a/b", "a\0"] {
                assert_eq!(disk.open(name, true).await.err().unwrap().kind(), io::ErrorKind::InvalidInput);
            }
        });
    }

    #[test]
    fn allocation_extends_keeps_bytes_and_never_cuts() {
        let (_folder, disk) = disk();
        block_on(async {
            let file = disk.open("file", true).await.unwrap();
            file.write_at(0, vec!["kept".into()]).await.unwrap();
            file.allocate(1 << 20).await.unwrap();
            assert_eq!(file.len().await.unwrap(), 1 << 20);
            assert_eq!(file.read_at(0, 5).await.unwrap(), "kept\0");
            file.allocate(10).await.unwrap();
            assert_eq!(file.len().await.unwrap(), 1 << 20);
            file.set_len(2).await.unwrap();
            assert_eq!(file.len().await.unwrap(), 2);
            let space = disk.space().await.unwrap();
            assert!(space.free_bytes <= space.total_bytes && space.total_bytes > 0);
        });
    }

    #[test]
    fn dropped_write_that_was_handed_over_happens_before_the_next() {
        let (_folder, disk) = disk();
        block_on(async {
            let file = disk.open("file", true).await.unwrap();
            let mut dropped = file.write_at(0, vec!["first".into()]);
            poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context).is_ready())).await;
            drop(dropped);
            file.write_at(1, vec!["I".into()]).await.unwrap();
            assert_eq!(file.read_at(0, 5).await.unwrap(), "fIrst");
        });
    }

    #[test]
    fn tasks_of_the_disk_change_it_without_waiting_and_outlive_its_handles() {
        let (folder, disk) = disk();
        block_on(async {
            let host = super::super::host(tokio::runtime::Handle::current()).unwrap();
            let file = disk.open("file", true).await.unwrap();
            let (told, answered) = oneshot::channel();
            disk.tasks(&host).spawn(Box::pin(async move {
                let mut change = file.write_and_sync(vec![(0, vec!["mine".into()])]);
                let at_once = poll_fn(|context| Poll::Ready(change.as_mut().poll(context).is_ready())).await;
                // The last handle, dropped on the disk's own thread.
                drop((change, file));
                let _ = told.send(at_once);
            }));
            drop(disk);
            assert!(answered.await.unwrap());
            let disk = RealDisk::open(folder.path()).unwrap();
            assert_eq!(disk.open("file", false).await.unwrap().read_at(0, 4).await.unwrap(), "mine");
        });
    }

    #[test]
    fn only_one_may_lock_the_folder_at_a_time() {
        let (folder, disk) = disk();
        disk.lock().unwrap();
        let other = RealDisk::open(folder.path()).unwrap();
        assert_eq!(other.lock().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(disk);
        other.lock().unwrap();
    }

    #[test]
    fn a_file_is_no_disk() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(RealDisk::open(file.path()).err().unwrap().kind(), io::ErrorKind::NotADirectory);
    }
}
