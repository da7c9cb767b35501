//! A simulated disk as one machine sees it: operations are tasks of the machine, and take time.
//!
//! An operation sleeps, takes effect, and sleeps again. So operations overlap, and a crash can come
//! before, during or after each. It runs as a task of its own: a caller that stops waiting does not
//! stop it, but the machine's crash does. A long write may take effect in two steps.

use super::digest::hash_bytes;
use super::disk::{Shared, State, StoredFileId};
use super::image::PAGE;
use super::machine::Machine;
use crate::{Disk, DiskSpace, File, check_name};
use bytes::{Bytes, BytesMut};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use types::BoxFuture;

#[derive(Clone)]
pub struct DiskMount {
    disk: Arc<Shared>,
    machine: Machine,
    incarnation: u64,
}

impl DiskMount {
    pub fn new(disk: Arc<Shared>, machine: Machine) -> Self {
        let incarnation = disk.state.lock().incarnation;
        DiskMount { disk, machine, incarnation }
    }

    /// Runs an operation on the machine.
    fn run<T, W>(&self, work: impl FnOnce(DiskMount) -> W + Send + 'static) -> BoxFuture<io::Result<T>>
    where
        T: Send + 'static,
        W: Future<Output = io::Result<T>> + Send + 'static,
    {
        let mount = self.clone();
        Box::pin(async move {
            let machine = mount.machine.clone();
            machine.run(work(mount)).await.unwrap_or_else(|crashed| Err(io::Error::other(crashed)))
        })
    }

    /// An operation that takes effect in one step.
    fn step<T: Send + 'static>(
        &self,
        step: impl FnOnce(&mut State) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<io::Result<T>> {
        self.run(async move |mount: DiskMount| mount.do_step(step).await)
    }

    async fn do_step<T>(&self, step: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        self.pause().await;
        let result = self.with(step);
        self.note(&[u64::from(result.is_ok())]);
        self.pause().await;
        result
    }

    /// Changes the disk now; fails if the disk is not available.
    fn with<T>(&self, step: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.state.lock();
        if state.incarnation != self.incarnation {
            return Err(io::Error::other("the disk was gone since it was mounted"));
        }
        if state.offline {
            return Err(io::Error::other("the disk is offline"));
        }
        step(&mut state)
    }

    /// Waits for half of an operation's time; never ends while the disk hangs.
    async fn pause(&self) {
        let latency = self.disk.state.lock().latency.clone();
        let spread = latency.end.saturating_sub(latency.start).as_nanos() as u64;
        let time = latency.start + Duration::from_nanos(self.disk.random.below(spread));
        self.machine.sleep(time).await;
        loop {
            let resumed = self.disk.resumed.notified();
            if !self.disk.state.lock().hanging {
                return;
            }
            resumed.await;
        }
    }

    fn note(&self, values: &[u64]) {
        self.disk.world.note(&[self.disk.id]);
        self.disk.world.note(values);
    }
}

impl Disk for DiskMount {
    fn open(&self, name: &str, create: bool) -> BoxFuture<io::Result<Arc<dyn File>>> {
        let (name, mount) = (name.to_owned(), self.clone());
        let opened = self.step(move |state| {
            check_name(&name)?;
            state.open(&name, create)
        });
        Box::pin(async move {
            let (id, handle) = opened.await?;
            Ok(Arc::new(OpenFile { mount, id, _handle: handle }) as Arc<dyn File>)
        })
    }

    fn list(&self) -> BoxFuture<io::Result<Vec<String>>> {
        self.step(|state| Ok(state.names.keys().cloned().collect()))
    }

    fn remove(&self, name: &str) -> BoxFuture<io::Result<()>> {
        let name = name.to_owned();
        self.step(move |state| {
            check_name(&name)?;
            state.remove(&name)
        })
    }

    fn rename(&self, from: &str, to: &str) -> BoxFuture<io::Result<()>> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.step(move |state| {
            check_name(&from)?;
            check_name(&to)?;
            state.rename(&from, &to)
        })
    }

    fn sync_names(&self) -> BoxFuture<io::Result<()>> {
        self.step(move |state| {
            state.sync_names(state.pending_names());
            Ok(())
        })
    }

    fn sync_all(&self) -> BoxFuture<io::Result<()>> {
        self.run(async move |mount: DiskMount| {
            // Changes made during the sync are not covered by it.
            let (names, changes) = mount.with(|state| Ok((state.pending_names(), state.changes())))?;
            mount.pause().await;
            mount.note(&[names as u64, changes.len() as u64]);
            mount.with(|state| state.sync_all(names, &changes, &mount.disk.random))?;
            mount.pause().await;
            Ok(())
        })
    }

    fn space(&self) -> BoxFuture<io::Result<DiskSpace>> {
        // The kernel knows it, also while the disk hangs.
        self.run(async move |mount: DiskMount| mount.with(|state| Ok(state.space())))
    }
}

/// Joins the pieces: a sector that two pieces share is written whole or not at all.
fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    if pieces.len() == 1 {
        return pieces.swap_remove(0);
    }
    let mut bytes = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
    bytes.freeze()
}

#[derive(Clone)]
struct OpenFile {
    mount: DiskMount,
    id: StoredFileId,
    /// Keeps a removed file alive while it is open.
    _handle: Arc<()>,
}

impl OpenFile {
    /// One write, in one or two steps, the second starting at a page.
    async fn write(&self, offset: u64, pieces: Vec<Bytes>) -> io::Result<()> {
        let bytes = joined(pieces);
        offset.checked_add(bytes.len() as u64).ok_or(io::ErrorKind::InvalidInput)?;
        self.mount.pause().await;
        let fails = self.mount.with(|state| {
            state.counts.writes += 1;
            let fails = state.writes_to_fail > 0;
            state.writes_to_fail = state.writes_to_fail.saturating_sub(1);
            Ok(fails)
        })?;
        let cut = self.cut(offset, bytes.len());
        if cut > 0 {
            self.write_step(offset, bytes.slice(..cut))?;
            self.mount.pause().await;
        }
        if fails {
            return Err(io::Error::other("simulated write failure"));
        }
        self.write_step(offset + cut as u64, bytes.slice(cut..))
    }

    fn write_step(&self, offset: u64, bytes: Bytes) -> io::Result<()> {
        self.mount.note(&[self.id, offset, hash_bytes(&bytes)]);
        self.mount.with(|state| {
            let growth = state.content(self.id)?.growth_bytes(offset, bytes.len());
            state.admit(growth)?;
            state.content(self.id)?.write(offset, bytes);
            Ok(())
        })
    }

    /// Where to cut a write in two, at a page; 0, in most cases, for no cut.
    fn cut(&self, offset: u64, len: usize) -> usize {
        let random = &self.mount.disk.random;
        let first_page = (PAGE - offset % PAGE) as usize;
        if len <= first_page || random.chance(3, 4) {
            return 0;
        }
        let pages = (len - first_page) as u64 / PAGE;
        (first_page + (random.below(pages + 1) * PAGE) as usize).min(len)
    }

    async fn sync(&self) -> io::Result<()> {
        // Bytes written during the sync are not covered by it.
        let changes = self.mount.with(|state| Ok(state.content(self.id)?.changes()))?;
        self.mount.pause().await;
        self.mount.note(&[self.id, changes]);
        self.mount.with(|state| state.sync(&[(self.id, changes)], &self.mount.disk.random))
    }

    /// Runs an operation on the machine.
    fn run<W>(&self, work: impl FnOnce(OpenFile) -> W + Send + 'static) -> BoxFuture<io::Result<()>>
    where
        W: Future<Output = io::Result<()>> + Send + 'static,
    {
        let file = self.clone();
        self.mount.run(move |_| work(file))
    }
}

impl File for OpenFile {
    fn read_at(&self, offset: u64, len: usize) -> BoxFuture<io::Result<Bytes>> {
        let file = self.clone();
        self.mount.run(async move |mount: DiskMount| {
            let bytes = mount
                .do_step(|state| {
                    state.counts.reads += 1;
                    let read = state.content(file.id)?.visible().read(offset, len);
                    read.map(Bytes::from).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
                })
                .await?;
            mount.note(&[file.id, offset, hash_bytes(&bytes)]);
            Ok(bytes)
        })
    }

    fn write_at(&self, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<io::Result<()>> {
        self.run(async move |file: OpenFile| {
            file.write(offset, pieces).await?;
            file.mount.pause().await;
            Ok(())
        })
    }

    fn write_and_sync(&self, writes: Vec<(u64, Vec<Bytes>)>) -> BoxFuture<io::Result<()>> {
        self.run(async move |file: OpenFile| {
            for (offset, pieces) in writes {
                file.write(offset, pieces).await?;
            }
            file.sync().await?;
            file.mount.pause().await;
            Ok(())
        })
    }

    fn sync_data(&self) -> BoxFuture<io::Result<()>> {
        self.run(async move |file: OpenFile| {
            file.sync().await?;
            file.mount.pause().await;
            Ok(())
        })
    }

    fn len(&self) -> BoxFuture<io::Result<u64>> {
        let id = self.id;
        self.mount.step(move |state| Ok(state.content(id)?.visible().len()))
    }

    fn set_len(&self, len: u64) -> BoxFuture<io::Result<()>> {
        let id = self.id;
        self.mount.step(move |state| {
            state.check_len(len)?;
            state.content(id)?.set_len(len);
            Ok(())
        })
    }

    fn allocate(&self, len: u64) -> BoxFuture<io::Result<()>> {
        let id = self.id;
        self.mount.step(move |state| {
            len.checked_next_multiple_of(PAGE).ok_or(io::ErrorKind::InvalidInput)?;
            let growth = state.content(id)?.allocation_bytes(len);
            state.admit(growth)?;
            state.content(id)?.allocate(len);
            Ok(())
        })
    }

    fn change_mark(&self) -> BoxFuture<io::Result<u128>> {
        let id = self.id;
        self.mount.step(move |state| Ok(state.content(id)?.changes().into()))
    }

    fn descriptor(&self) -> Option<Arc<dyn AsFd + Send + Sync>> {
        None
    }
}
