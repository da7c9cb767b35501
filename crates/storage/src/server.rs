//! A storage server over a [`Disk`].
//!
//! Reads and queries are answered here, from the index and the disk, at any time. Changes go
//! through the commit loop.
//!
//! Must survive, without losing an acknowledged fragment: power loss at any point, torn and
//! reordered writes, failing writes and syncs, a full disk. Rot is noticed when the bytes are read.

use crate::api::{Seal, Storage, StorageError, StoreStatus};
use crate::chain::Chain;
use crate::checkpoint::{Body, StoreHead};
use crate::commit::Committer;
use crate::files::{Newest, StoreFiles, WriteError};
use crate::index::{FragmentKey, Held};
use crate::packed::PackedHeader;
use crate::pages::LANDING_PAGES;
use crate::pages::{PAGE, PageExtent};
use crate::shared::{Growth, Shared, StorageState};
use crate::space::PageSpace;
use crate::torn_tail::FoundFragments;
use bytes::Bytes;
use host::{Disk, DiskSpace, Host, Tasks};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use striped_log::fragment::{CHUNK_LEN, Fragment, FragmentHeader, HEADER_LEN, chunk_crcs, crc32c};
use types::codec::DecodeError;
use types::{BoxFuture, FragmentId, LogId, Maps, SegmentId};

pub use crate::files::StoreOpenError;
pub use crate::identity::StoreIdentity;

/// A storage server. When dropped, it asks for a last checkpoint; [`close`](Self::close) also waits
/// for that.
pub struct StoreServer {
    pub(crate) shared: Arc<Shared>,
    disk: Arc<dyn Disk>,
}

impl StoreServer {
    /// Makes the disk's folder into an empty store. Fails with [`StoreOpenError::Foreign`] if there
    /// is a store already.
    pub async fn create(
        host: Host,
        disk: Arc<dyn Disk>,
        identity: StoreIdentity,
    ) -> Result<Arc<StoreServer>, StoreOpenError> {
        let files = StoreFiles::open(disk.as_ref()).await?;
        match files.newest_head().await {
            Err(StoreOpenError::NotAStore) => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(StoreOpenError::Foreign),
        }
        let body = Body::default().encode();
        let head = StoreHead::of(identity, 1, host.random.next_u64(), &body);
        match files.write(0, &head, body).await {
            Ok(()) => {}
            Err(WriteError::Full) => return Err(io::Error::from(io::ErrorKind::StorageFull).into()),
            Err(WriteError::Failed(error)) => return Err(error.into()),
        }
        Self::open(host, disk).await
    }

    /// Opens a store: reads the newest checkpoint and looks for fragments that were written after
    /// it.
    pub async fn open(host: Host, disk: Arc<dyn Disk>) -> Result<Arc<StoreServer>, StoreOpenError> {
        if !StoreFiles::present(disk.as_ref()).await? {
            return Err(StoreOpenError::NotAStore);
        }
        let files = StoreFiles::open(disk.as_ref()).await?;
        let newest = files.newest().await?;
        files.settle(&newest).await?;
        let chain = Chain::new(files.clone(), &newest);
        let Newest { head, body, .. } = newest;

        let Body { page_count, mut seals, maps, reservation, mut index } = body;
        let len = files.fragments.len().await?;
        let page_count = page_count.min(u32::try_from(len.div_ceil(u64::from(PAGE))).unwrap_or(u32::MAX));
        let mut changed = BTreeSet::new();
        for part in reservation {
            let (found, is_rotten) = files.scan(part, &head, len).await?;
            if is_rotten {
                tracing::error!(store = %head.owner.store, page = part.start, "fragments have rotted, and it is not known which");
                seals.mark_lost();
            }
            for (place, FoundFragments { header, intact, .. }) in found {
                let segment = &header.id.segment;
                let discarded = seals.discarding(segment.log).is_some_and(|seal| seal.discards(segment));
                let (key, held) =
                    (FragmentKey::new(header.id, header.attempt), Held { place, header: PackedHeader::new(&header) });
                // If the checkpoint lists the fragment elsewhere, it was moved here since, or put
                // again because it had rotted there.
                let is_known = |known: &Held| known.place == place || known.header != held.header;
                if intact && !discarded && !index.get(&key).is_some_and(is_known) {
                    index.insert(key, held);
                    changed.insert(key);
                }
            }
        }
        files.fragments.sync_data().await?;

        let live = index.iter().map(|(_, held)| held.place).collect();
        let space = PageSpace::recover(page_count, LANDING_PAGES, live).map_err(StoreOpenError::damaged)?;
        let state = StorageState {
            index,
            space,
            growth: Growth::Possible,
            seals,
            maps,
            damaged: BTreeSet::new(),
            writable: true,
            changed,
            deleted_count: 0,
        };
        let tasks = disk.tasks(&host);
        let shared = Shared::new(head.owner, files, tasks.clone(), host.clock.clone(), state);
        let committer = Committer::new(shared.clone(), host.random.clone(), chain);
        tasks.spawn(Box::pin(committer.run()));
        Ok(Arc::new(StoreServer { shared, disk }))
    }

    /// The identity of the store, and its capacity.
    pub fn identity(&self) -> StoreIdentity {
        self.shared.identity
    }

    /// The newest maps that it was given.
    pub fn newest_maps(&self) -> Maps {
        self.shared.state.lock().maps.clone()
    }

    /// The best place to spawn a task that waits for a change: the tasks of the commit loop.
    pub fn tasks(&self) -> &Arc<dyn Tasks> {
        &self.shared.tasks
    }

    /// Waits for everything queued, and writes a last checkpoint, so that the next start has
    /// nothing to look for. Takes no more changes. Reads go on.
    pub fn close(&self) -> BoxFuture<Result<(), StorageError>> {
        let shared = self.shared.clone();
        Box::pin(async move { shared.close().await })
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        self.shared.close_soon();
    }
}

impl Shared {
    /// Checks a fragment before it is queued.
    fn admit(&self, fragment: &Fragment) -> Result<FragmentKey, StorageError> {
        let header = &fragment.header;
        if header.fs != self.identity.fs {
            return Err(StorageError::BadRequest("fragment of another file system"));
        }
        if header.check().is_err() || fragment.payload.len() != header.len as usize {
            return Err(StorageError::BadRequest("fragment header"));
        }
        if !self.identity.is_member(header) {
            return Err(StorageError::BadRequest("fragment for another store"));
        }
        Ok(FragmentKey::new(header.id, header.attempt))
    }

    async fn read(&self, key: FragmentKey, range: Range<u32>) -> Result<Bytes, StorageError> {
        loop {
            let (held, chunks, bytes) = {
                let state = self.state.lock();
                let held = state.index.get(&key).ok_or(StorageError::NotFound(key.id()))?;
                let len = held.header.len();
                if range.start > range.end || range.end > len {
                    return Err(StorageError::BadRequest("range beyond the fragment"));
                }
                let chunks = range.start / CHUNK_LEN..range.end.div_ceil(CHUNK_LEN);
                let bytes = chunks.start * CHUNK_LEN..(chunks.end * CHUNK_LEN).min(len);
                (held.clone(), chunks, bytes)
            };
            if range.is_empty() {
                return Ok(Bytes::new());
            }
            let offset = held.place.file_offset() + HEADER_LEN as u64 + u64::from(bytes.start);
            let result = self.files.fragments.read_at(offset, bytes.len()).await;
            if !self.still_at(&key, held.place)? {
                continue;
            }
            let read = result.map_err(failed)?;
            for (chunk, chunk_index) in read.chunks(CHUNK_LEN as usize).zip(chunks) {
                if crc32c(chunk) != held.header.chunk_crc(chunk_index) {
                    return Err(self.damaged(key, held.place));
                }
            }
            let skip = (range.start - bytes.start) as usize;
            return Ok(read.slice(skip..skip + range.len()));
        }
    }

    /// Asked after a read: true if the bytes that were read are this fragment's. A page is reused
    /// only after its fragment has left the index. So a fragment that is still at its place was not
    /// overwritten.
    fn still_at(&self, key: &FragmentKey, place: PageExtent) -> Result<bool, StorageError> {
        let state = self.state.lock();
        let held = state.index.get(key).ok_or(StorageError::NotFound(key.id()))?;
        Ok(held.place == place)
    }

    /// Remembers that the fragment at `place` is damaged. Logs it the first time.
    fn damaged(&self, key: FragmentKey, place: PageExtent) -> StorageError {
        let state = &mut *self.state.lock();
        if state.index.get(&key).is_some_and(|held| held.place == place) && state.damaged.insert(key) {
            tracing::warn!(store = %self.identity.store, fragment = %key.id(), attempt = key.attempt, "fragment is damaged");
        }
        StorageError::Damaged(key.id())
    }

    async fn status(&self, disk: &dyn Disk) -> Result<StoreStatus, StorageError> {
        // Take the page count before asking the disk. If the file grows meanwhile, its new pages
        // are not counted twice.
        let page_count = self.state.lock().space.page_count();
        let disk = disk.space().await.map_err(failed)?;
        let state = &mut *self.state.lock();
        let free_bytes = state.growth.free_bytes(disk.free_bytes);
        let bytes = |pages: u32| u64::from(pages) * u64::from(PAGE);
        Ok(StoreStatus {
            id: self.identity.store,
            capacity_bytes: bytes(self.identity.page_count_max().saturating_sub(LANDING_PAGES)),
            allocated_bytes: bytes(page_count),
            used_bytes: state.space.used_bytes(),
            parity_bytes: state.index.parity_bytes(),
            fragment_count: state.index.len() as u64,
            writable: state.writable && !self.hangs(),
            disk: DiskSpace { free_bytes, ..disk },
        })
    }

    async fn verify(&self, id: FragmentId) -> Result<(), StorageError> {
        let keys: Vec<FragmentKey> = self.state.lock().index.attempts(id).map(|(key, _)| *key).collect();
        if keys.is_empty() {
            return Err(StorageError::NotFound(id));
        }
        for key in keys {
            self.verify_attempt(key).await?;
        }
        Ok(())
    }

    async fn verify_attempt(&self, key: FragmentKey) -> Result<(), StorageError> {
        let id = key.id();
        loop {
            let held = self.state.lock().index.get(&key).cloned().ok_or(StorageError::NotFound(id))?;
            let len = HEADER_LEN + held.header.len() as usize;
            let result = self.files.fragments.read_at(held.place.file_offset(), len).await;
            if !self.still_at(&key, held.place)? {
                continue;
            }
            let read = result.map_err(failed)?;
            let known = held.header.unpack(self.identity.fs, id, key.attempt);
            return match FragmentHeader::decode(&read) {
                Ok(header) if Ok(&header) == known.as_ref() && chunk_crcs(&read[HEADER_LEN..]) == header.chunk_crcs => {
                    Ok(())
                }
                _ => Err(self.damaged(key, held.place)),
            };
        }
    }
}

fn failed(error: io::Error) -> StorageError {
    StorageError::Disk(error.to_string())
}

/// An answer from memory.
fn now<T: Send + 'static>(result: Result<T, StorageError>) -> BoxFuture<Result<T, StorageError>> {
    Box::pin(std::future::ready(result))
}

/// The error for a header that does not decode. It cannot happen: headers are checked before they
/// come into the index.
fn unpackable(_: DecodeError) -> StorageError {
    StorageError::Disk("a header in memory does not decode".into())
}

impl StoreServer {
    fn put_as(&self, fragment: Fragment, can_wait: bool) -> BoxFuture<Result<(), StorageError>> {
        let key = match self.shared.admit(&fragment) {
            Ok(key) => key,
            Err(error) => return now(Err(error)),
        };
        {
            let state = self.shared.state.lock();
            if let Some(answer) = state.answer_put(&key, &fragment.header) {
                return now(answer);
            }
        }
        if !can_wait && self.shared.hangs() {
            return now(Err(StorageError::Unavailable));
        }
        let shared = self.shared.clone();
        Box::pin(async move {
            let _under_way = shared.under_way(can_wait);
            shared.put(fragment, key).await
        })
    }

    fn read_as(
        &self,
        id: FragmentId,
        attempt: u16,
        range: Range<u32>,
        can_wait: bool,
    ) -> BoxFuture<Result<Bytes, StorageError>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let _under_way = shared.under_way(can_wait);
            shared.read(FragmentKey::new(id, attempt), range).await
        })
    }
}

impl Storage for StoreServer {
    fn put(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        self.put_as(fragment, false)
    }

    fn read(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        self.read_as(id, attempt, range, false)
    }

    fn put_behind(&self, fragment: Fragment) -> BoxFuture<Result<(), StorageError>> {
        self.put_as(fragment, true)
    }

    fn read_behind(&self, id: FragmentId, attempt: u16, range: Range<u32>) -> BoxFuture<Result<Bytes, StorageError>> {
        self.read_as(id, attempt, range, true)
    }

    fn rest(&self) -> BoxFuture<Result<Duration, StorageError>> {
        now(Ok(self.shared.rest()))
    }

    fn describe(&self, segment: SegmentId) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        now(self.shared.state.lock().index.describe(self.shared.identity.fs, segment).map_err(unpackable))
    }

    fn list(
        &self,
        log: LogId,
        from_seq: u64,
        count_max: usize,
    ) -> BoxFuture<Result<Vec<FragmentHeader>, StorageError>> {
        let state = self.shared.state.lock();
        now(state.index.list(self.shared.identity.fs, log, from_seq, count_max).map_err(unpackable))
    }

    fn segments(&self) -> BoxFuture<Result<Vec<(SegmentId, u64)>, StorageError>> {
        now(Ok(self.shared.state.lock().index.segments()))
    }

    fn delete(&self, segments: Vec<SegmentId>) -> BoxFuture<Result<(), StorageError>> {
        let wanted = {
            let mut state = self.shared.state.lock();
            for segment in segments {
                state.delete(segment);
            }
            state.wants_checkpoint()
        };
        if wanted {
            self.shared.want_checkpoint();
        }
        now(Ok(()))
    }

    fn seal(&self, seal: Seal) -> BoxFuture<Result<Seal, StorageError>> {
        let shared = self.shared.clone();
        Box::pin(async move { shared.seal(seal).await })
    }

    fn seals(&self) -> BoxFuture<Result<Vec<Seal>, StorageError>> {
        now(Ok(self.shared.state.lock().seals.iter().cloned().collect()))
    }

    fn put_maps(&self, maps: Maps) -> BoxFuture<Result<(), StorageError>> {
        let shared = self.shared.clone();
        Box::pin(async move { shared.put_maps(maps).await })
    }

    fn maps(&self) -> BoxFuture<Result<Maps, StorageError>> {
        now(Ok(self.newest_maps()))
    }

    fn verify(&self, id: FragmentId) -> BoxFuture<Result<(), StorageError>> {
        let shared = self.shared.clone();
        Box::pin(async move { shared.verify(id).await })
    }

    fn status(&self) -> BoxFuture<Result<StoreStatus, StorageError>> {
        let (shared, disk) = (self.shared.clone(), self.disk.clone());
        Box::pin(async move { shared.status(disk.as_ref()).await })
    }
}
