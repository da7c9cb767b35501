//! Contents of small files in memory. Pure.

use bytes::Bytes;
use host::File;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::sync::Arc;
use types::{BoxFuture, FileId};

enum Content {
    /// As the log has it.
    Logged(Bytes),
    /// Changed since it was last logged.
    Changed(Vec<u8>),
}

/// The contents of a small file, in memory.
pub(crate) struct SmallFile(Mutex<Content>);

impl SmallFile {
    pub(crate) fn new(bytes: Bytes) -> Arc<SmallFile> {
        Arc::new(SmallFile(Mutex::new(Content::Logged(bytes))))
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let content = self.0.lock();
        let bytes: &[u8] = match &*content {
            Content::Logged(bytes) => bytes,
            Content::Changed(bytes) => bytes,
        };
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let range = start..start.saturating_add(len);
        if bytes.len() < range.end {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(match &*content {
            Content::Logged(bytes) => bytes.slice(range),
            Content::Changed(bytes) => Bytes::copy_from_slice(&bytes[range]),
        })
    }

    /// Changes its contents.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let mut content = self.0.lock();
        if let Content::Logged(bytes) = &*content {
            *content = Content::Changed(bytes.to_vec());
        }
        match &mut *content {
            Content::Changed(bytes) => change(bytes),
            Content::Logged(_) => unreachable!("the contents were just marked as changed"),
        }
    }

    /// Writes bytes; what lies between its end and `offset` reads as zeroes.
    pub(crate) fn write(&self, offset: u64, piece: &[u8]) {
        self.change(|bytes| {
            let start = offset as usize;
            let end = start + piece.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[start..end].copy_from_slice(piece);
        });
    }

    /// Its whole contents, which count as logged from now on.
    pub(super) fn logged(&self) -> Bytes {
        let mut content = self.0.lock();
        let bytes = match &mut *content {
            Content::Logged(bytes) => bytes.clone(),
            Content::Changed(bytes) => Bytes::from(std::mem::take(bytes)),
        };
        *content = Content::Logged(bytes.clone());
        bytes
    }

    fn len_now(&self) -> u64 {
        match &*self.0.lock() {
            Content::Logged(bytes) => bytes.len() as u64,
            Content::Changed(bytes) => bytes.len() as u64,
        }
    }
}

fn ready<T: Send + 'static>(value: T) -> BoxFuture<io::Result<T>> {
    Box::pin(std::future::ready(Ok(value)))
}

/// Never waits. The log makes the bytes durable.
impl File for SmallFile {
    fn read_at(&self, offset: u64, len: usize) -> BoxFuture<io::Result<Bytes>> {
        Box::pin(std::future::ready(self.read(offset, len)))
    }

    fn write_at(&self, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<io::Result<()>> {
        let mut at = offset;
        for piece in pieces {
            self.write(at, &piece);
            at += piece.len() as u64;
        }
        ready(())
    }

    fn write_and_sync(&self, writes: Vec<(u64, Vec<Bytes>)>) -> BoxFuture<io::Result<()>> {
        for (offset, pieces) in writes {
            drop(self.write_at(offset, pieces));
        }
        ready(())
    }

    fn sync_data(&self) -> BoxFuture<io::Result<()>> {
        ready(())
    }

    fn len(&self) -> BoxFuture<io::Result<u64>> {
        ready(self.len_now())
    }

    fn set_len(&self, len: u64) -> BoxFuture<io::Result<()>> {
        self.change(|bytes| bytes.resize(len as usize, 0));
        ready(())
    }

    fn allocate(&self, len: u64) -> BoxFuture<io::Result<()>> {
        self.set_len(len.max(self.len_now()))
    }

    fn change_mark(&self) -> BoxFuture<io::Result<u128>> {
        Box::pin(std::future::ready(Err(ErrorKind::Unsupported.into())))
    }

    fn descriptor(&self) -> Option<Arc<dyn AsFd + Send + Sync>> {
        None
    }
}

/// The files that are changed in memory, by the number of their contents.
#[derive(Default)]
pub(crate) struct SmallFiles {
    pub(super) files: HashMap<u64, Arc<SmallFile>>,
    /// Those whose newest bytes the log does not have, with the file and its length.
    unheld: BTreeMap<u64, (FileId, u64)>,
    /// The sum of these lengths, in bytes.
    pub(super) unheld_len: u64,
}

impl SmallFiles {
    /// The log has the newest bytes of these contents, or they are gone.
    pub(super) fn is_held(&mut self, number: u64) {
        if let Some((_, len)) = self.unheld.remove(&number) {
            self.unheld_len -= len;
        }
    }

    /// Notes that contents were changed. True if the log had all bytes of all contents before.
    pub(super) fn wrote(&mut self, number: u64, file: FileId, len: u64) -> bool {
        let is_first = self.unheld.is_empty();
        let before = self.unheld.insert(number, (file, len)).map_or(0, |(_, len)| len);
        self.unheld_len = self.unheld_len - before + len;
        is_first
    }

    /// Takes out all contents whose newest bytes the log does not have.
    pub(super) fn take_unheld(&mut self) -> BTreeMap<u64, (FileId, u64)> {
        self.unheld_len = 0;
        std::mem::take(&mut self.unheld)
    }
}
