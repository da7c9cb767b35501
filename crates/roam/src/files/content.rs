//! Reads and writes files of the cache.
//!
//! Written bytes go to the file of the cache at once, and are logged as one store when the file is
//! closed or synced. Before the first byte changes, the log says durably that the file may change.
//! So a crash cannot pass off half of a change as the home's version.

use crate::cache::data_files::{data_name, disk_error};
use crate::client::Client;
use crate::connection::state::LinkState;
use crate::consistency::delegation::CLAIM_COUNT_MAX;
use crate::live::{Live, Need, Stop};
use crate::replica::{BASE_LEN_MAX, Record};
use crate::settings::{Durability, Writes};
use bytes::Bytes;
use host::{File, timeout};
use roam_proto::channel::Class;
use roam_proto::operation::{Attributes, Change, Operation};
use roam_proto::ranges::Ranges;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use types::{FileId, FsError, Kind, Time};
use vfs::fs::{Appended, At, Cred, FILE_SIZE_MAX, Fallocate, Handle, Seek};
use vfs::perm;

/// Most bytes that are copied or zeroed at a time.
const PIECE_LEN: u64 = 1 << 20;

/// How often a file is made ready again because others changed it meanwhile.
const PREPARE_COUNT_MAX: u32 = 16;
/// Longest wait until a near home has seen an operation.
const REACH_TIME_MAX: Duration = Duration::from_secs(1);

/// With more unseen operations than this, calls do not wait for the home. It could not see all of
/// them in that time, and a program that does one operation after the other would wait each time.
const REACH_COUNT_MAX: usize = 256;

/// Why bytes cannot be read from the cache.
enum Missing {
    Never(FsError),
    Facts(Need),
    Bytes,
}

impl Live {
    /// The number of operations that the home has not seen, counted up to one more than
    /// [`REACH_COUNT_MAX`].
    fn unseen_count(&self) -> usize {
        self.replica.log().iter_after(self.sending.seen.through()).take(REACH_COUNT_MAX + 1).count()
    }

    /// True if a call that did an operation waits until the home has seen it.
    pub(crate) fn waits_for_home(&self, writes: Writes) -> bool {
        match writes {
            Writes::Through => matches!(self.link.state(), LinkState::Connected | LinkState::Weak),
            Writes::Manual | Writes::Delayed(_) => false,
            _ => {
                // Under delegations other clients may be about to attach, and are to see everything
                // that was answered.
                let is_missed = self.link.has_others() || self.freshness.is_delegated();
                self.link.is_near() && is_missed && self.unseen_count() <= REACH_COUNT_MAX
            }
        }
    }

    /// Applies a change of a file's bytes by `cred`.
    pub(crate) fn changed(
        &mut self,
        cred: &Cred,
        id: FileId,
        now: Time,
        change: impl FnOnce(&mut Change),
    ) -> Result<(), FsError> {
        let mode = perm::mode_after_write(cred, &self.replica.node(id)?.subject());
        let node = self.replica.node_mut(id)?;
        let change = node.changes.make(node.facts.size, now, change).cloned();
        // If the file has no name, the home refused to make it, and it left the tree.
        let change = change.ok_or(if node.facts.nlink == 0 { FsError::Stale } else { FsError::Io })?;
        node.have.cut(change.cut.min(change.size));
        node.have.add(change.cut..change.size);
        node.have.add_all(&change.ranges);
        (node.facts.size, node.facts.blocks) = (change.size, change.size.div_ceil(512));
        (node.facts.mtime, node.facts.ctime) = (now, now);
        if let Some(unlogged) = &mut node.unlogged {
            unlogged.written_at = Some(now);
            self.wrote_small(id);
        }
        if mode.is_some() {
            let attributes = Attributes { mode, ..Attributes::default() };
            self.record(Record::Did { operation: Operation::Set { file: id, attributes }, when: now })?;
        }
        Ok(())
    }

    /// Logs the changes of a file. The record carries the bytes of a small file only.
    pub(crate) fn log_changes(&mut self, id: FileId, now: Time) -> Result<(), FsError> {
        let node = self.replica.node(id)?;
        if !node.is_dirty() || node.facts.nlink == 0 {
            return Ok(());
        }
        match node.to_log() {
            Some(change) if node.unlogged.is_some() => self.log_small(id, change, now)?,
            Some(change) => self.did_store(id, change, now)?,
            // It was made here and never written, or only made ready.
            None => {
                self.end_small(id);
                self.record(Record::Clean(id))?;
            }
        }
        self.cache.end_change(id);
        Ok(())
    }
}

impl Client {
    /// EFBIG unless the home can hold a file of the size `offset + len`; otherwise that sum.
    pub(crate) fn end_of(&self, offset: u64, len: u64) -> Result<u64, FsError> {
        let file_len_max = self.0.live.lock().replica.file_len_max();
        offset.checked_add(len).filter(|&end| end <= file_len_max).ok_or(FsError::FileTooLarge)
    }

    pub(crate) async fn read(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Result<Bytes, FsError> {
        self.0.live.lock().readable(id, handle)?;
        if let Some(heard) = self.look_out() {
            heard.await;
        }
        self.read_bytes(id, offset, len).await
    }

    pub(crate) async fn read_bytes(&self, id: FileId, offset: u64, len: u32) -> Result<Bytes, FsError> {
        let (mut asked, mut tries) = (None, 0);
        loop {
            let found = self.find_bytes(id, offset, len);
            if let Some(need) = asked.take() {
                self.used(need);
            }
            match found {
                Ok(None) => return Ok(Bytes::new()),
                Ok(Some((number, len))) => {
                    let file = match self.0.open_data(number).await {
                        Err(FsError::NotFound) => None,
                        opened => Some(opened?),
                    };
                    let read = match &file {
                        Some(file) => file.read_at(offset, len).await,
                        None => Err(ErrorKind::UnexpectedEof.into()),
                    };
                    match read {
                        Ok(bytes) => return Ok(bytes),
                        // It was cut meanwhile, or is missing. The check finds out, and then it is
                        // fetched again.
                        Err(error) if error.kind() == ErrorKind::UnexpectedEof && tries < PREPARE_COUNT_MAX => {
                            tries += 1;
                            let _only_writer = self.0.writer(id).await;
                            self.0.check_data(id).await?;
                        }
                        Err(error) => return Err(disk_error(&error)),
                    }
                }
                Err(Missing::Never(error)) => return Err(error),
                Err(Missing::Facts(need)) => {
                    self.meet(need).await?;
                    asked = Some(need);
                }
                Err(Missing::Bytes) => {
                    let fetched = match self.0.was_full() {
                        true => Err(FsError::NoSpace),
                        false => self.fetch_bytes(id, offset, len.into(), Class::Demand).await,
                    };
                    if fetched == Err(FsError::NoSpace) {
                        return self.read_past_cache(id, offset, len.into()).await;
                    }
                    fetched?;
                    self.fetch_rest(id);
                    self.waited_for(id);
                }
            }
        }
    }

    /// Fetches the rest of a file in the background, if the settings want whole files.
    fn fetch_rest(&self, id: FileId) {
        let size = {
            let mut live = self.0.live.lock();
            let Ok(node) = live.replica.node(id) else { return };
            let (size, whole) = (node.facts.size, node.is_whole());
            if whole || !live.prefetch.begin_to_complete(id) {
                return;
            }
            size
        };
        let me = self.clone();
        if !self.wants_whole(size) {
            me.0.live.lock().prefetch.end_completing(id);
            return;
        }
        self.0.host.tasks.spawn(Box::pin(async move {
            let _ = me.fetch_bytes(id, 0, u64::MAX, Class::Prefetch).await;
            me.0.live.lock().prefetch.end_completing(id);
        }));
    }

    /// Where bytes of a file are in the cache, and how many of the wanted ones exist; `None`: the
    /// file ends before `offset`.
    fn find_bytes(&self, id: FileId, offset: u64, len: u32) -> Result<Option<(u64, usize)>, Missing> {
        let live = self.0.live.lock();
        let node = live.node(id).map_err(|stop| match stop {
            Stop::Fs(error) => Missing::Never(error),
            Stop::Need(need) => Missing::Facts(need),
        })?;
        match node.facts.kind {
            Kind::File => {}
            Kind::Directory => return Err(Missing::Never(FsError::IsADirectory)),
            _ => return Err(Missing::Never(FsError::InvalidArgument)),
        }
        let len = u64::from(len).min(node.facts.size.saturating_sub(offset));
        match len {
            0 => Ok(None),
            len if node.has(offset, len) => Ok(Some((node.data, len as usize))),
            _ => Err(Missing::Bytes),
        }
    }

    /// Fetches what is missing of a file.
    pub(crate) async fn complete(&self, id: FileId) -> Result<(), FsError> {
        let whole = |client: &Client| client.0.live.lock().replica.node(id).map(|node| node.is_whole());
        if !whole(self)? {
            self.fetch_bytes(id, 0, u64::MAX, Class::Demand).await?;
        }
        Ok(())
    }

    /// Keeps a file's bytes as the home has them, before they are changed for the first time.
    /// Returns the number of the file of the cache with them; 0: they are not kept.
    async fn keep_base(&self, id: FileId, anew: bool) -> Result<u64, FsError> {
        let (data, size) = {
            let live = self.0.live.lock();
            let node = live.replica.node(id)?;
            let at_home = !live.replica.is_own(id) && node.base == 0 && node.facts.version > 0 && node.is_whole();
            if !at_home || node.data == 0 || node.facts.size > BASE_LEN_MAX {
                return Ok(0);
            }
            (node.data, node.facts.size)
        };
        if anew {
            self.0.live.lock().cache.keep_base(data, size);
            return Ok(data);
        }
        if self.has_new_stores(id).await? {
            return Ok(0);
        }
        let from = self.0.open_data(data).await?;
        let (number, to) = self.0.new_data_file().await?;
        let copied = async {
            let mut at = 0;
            while at < size {
                let len = (size - at).min(PIECE_LEN);
                let bytes = from.read_at(at, len as usize).await.map_err(|error| disk_error(&error))?;
                self.0.put_bytes(&to, at, bytes).await?;
                at += len;
            }
            self.0.live.lock().cache.unwritten.tells_of(number, to.clone());
            Ok(())
        };
        match copied.await {
            Ok(()) => {
                self.0.live.lock().cache.keep_base(number, size);
                Ok(number)
            }
            // The base is useful, but not necessary.
            Err(FsError::NoSpace) => {
                self.0.live.lock().cache.close(number);
                self.0.remove_file(data_name(number));
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a file ready to be changed. The caller is its only writer.
    pub(crate) async fn prepare(&self, id: FileId, truncates: bool) -> Result<(), FsError> {
        for _ in 0..PREPARE_COUNT_MAX {
            if self.prepare_once(id, truncates).await? {
                return Ok(());
            }
        }
        Err(FsError::TimedOut)
    }

    /// One try to make a file ready. False if others have changed the file meanwhile.
    async fn prepare_once(&self, id: FileId, truncates: bool) -> Result<bool, FsError> {
        if self.0.live.lock().replica.node(id)?.changes.is_ready() {
            return Ok(true);
        }
        if self.prepare_small(id, truncates).await? {
            return Ok(true);
        }
        let may_have_holes = truncates || self.complete_or_leave(id).await?;
        let (dirty, is_shown) = {
            let live = self.0.live.lock();
            (live.replica.node(id)?.is_dirty(), live.is_shown(id))
        };
        // A file that is emptied gets a new file of the cache. So after a crash, no earlier bytes
        // are taken for part of it. But if the kernel reads the file of the cache by itself, it has
        // to see the change there.
        let anew = truncates && !dirty && !is_shown;
        let (number, file) = match anew {
            true => self.0.new_data_file().await?,
            false => {
                self.0.check_data(id).await?;
                let data = self.0.live.lock().replica.node(id)?.data;
                self.leave_log(data).await?;
                self.0.data_file(id).await?
            }
        };
        let base = self.keep_base(id, anew).await?;
        let data = self.0.live.lock().replica.node(id)?.data;
        let old = match anew && data > 0 {
            true => Some((data, self.0.open_data(data).await)),
            false => None,
        };
        let old = match old {
            None | Some((_, Err(FsError::NotFound))) => None,
            Some((data, file)) => Some((data, file?)),
        };
        let (size, have) = {
            let live = self.0.live.lock();
            let node = live.replica.node(id)?;
            let have = match (anew, dirty) {
                (true, _) => Ranges::default(),
                (false, true) => node.kept.clone(),
                (false, false) => node.have.clone(),
            };
            (node.facts.size, have)
        };
        // Zeroes at the end may never have been written, and after a crash the file is as long as
        // its file of the cache.
        if !anew && file.len().await.map_err(|error| disk_error(&error))? != size {
            file.set_len(size).await.map_err(|error| disk_error(&error))?;
        }
        // After a crash, everything in the file of the cache counts as wanted. So it is durable
        // first.
        let waits = !dirty && !self.0.live.lock().cache.unwritten.is_fresh(number);
        if waits {
            self.0.sync_bytes(&file).await?;
        }
        let is_fresh = {
            let mut live = self.0.live.lock();
            let is_fresh = live.cache.unwritten.is_fresh(number);
            if !waits {
                live.cache.unwritten.tells_of(number, file.clone());
            }
            let node = live.replica.node(id)?;
            let before = node.data;
            let is_other = match anew {
                true => live.is_shown(id),
                false => before != number || node.facts.size != size || (!may_have_holes && !node.is_whole()),
            };
            if is_other {
                return Ok(false);
            }
            // Others may have changed the file meanwhile; then its earlier contents are of no use.
            let base = if anew && base != before { 0 } else { base };
            if let Some((_, old)) = old.filter(|(data, _)| *data == before) {
                let seqs: Vec<u64> = live.unspared(id).map(|(seq, _)| seq).collect();
                live.sending.keep_source(seqs, &old);
            }
            live.record(Record::Dirty { file: id, data: number, base, have, size: if anew { 0 } else { size } })?;
            let now = self.0.host.clock.wall();
            let node = live.replica.node_mut(id)?;
            if anew {
                (node.facts.size, node.facts.blocks) = (0, 0);
                node.changes.ready_empty(now);
            }
            live.cache.begin_change(id, file.clone());
            is_fresh
        };
        if !dirty && !is_fresh {
            self.durable().await?;
        }
        let mut live = self.0.live.lock();
        let node = live.replica.node_mut(id)?;
        Ok(node.data == number && node.changes.ready())
    }

    /// Sets aside the bytes of waiting stores in a range that is about to change, so that what goes
    /// home is what was saved. The caller is the file's only writer.
    pub(crate) async fn spare(&self, id: FileId, range: Range<u64>) -> Result<(), FsError> {
        let len = range.end - range.start;
        let waiting: Vec<(u64, Change)> = {
            let live = self.0.live.lock();
            let meets = |change: &Change| change.ranges.missing(range.clone()).len() < len;
            let waiting = live.unspared(id).filter(|(_, change)| meets(change));
            waiting.map(|(seq, change)| (seq, change.clone())).collect()
        };
        for (seq, change) in waiting {
            let outgoing = self.capture(seq, id, &change).await?;
            self.0.live.lock().sending.set_aside(seq, outgoing);
        }
        Ok(())
    }

    /// Applies a change of a file's bytes by `cred`.
    pub(crate) fn changed(&self, cred: &Cred, id: FileId, change: impl FnOnce(&mut Change)) -> Result<(), FsError> {
        let now = self.0.host.clock.wall();
        self.0.live.lock().changed(cred, id, now, change)
    }

    /// Waits for the right to change a file, which no other client and no other task has then.
    pub(crate) async fn only_writer(&self, id: FileId) -> Result<OwnedMutexGuard<()>, FsError> {
        for _ in 0..CLAIM_COUNT_MAX {
            self.claim(id).await?;
            let turn = self.0.writer(id).await;
            let may = {
                let mut live = self.0.live.lock();
                live.used(&[id]);
                live.may_change(id)
            };
            if may {
                // A recall of the delegation waits for this turn.
                self.0.wake();
                return Ok(turn);
            }
        }
        Err(FsError::TimedOut)
    }

    fn check_file(&self, id: FileId) -> Result<(), FsError> {
        let kind = self.0.live.lock().replica.node(id)?.facts.kind;
        match kind {
            Kind::File => Ok(()),
            Kind::Directory => Err(FsError::IsADirectory),
            _ => Err(FsError::InvalidArgument),
        }
    }

    /// Writes at an offset, or at the end.
    pub(crate) async fn write(
        &self,
        cred: Cred,
        id: FileId,
        handle: Handle,
        offset: Option<u64>,
        data: Bytes,
    ) -> Result<Appended, FsError> {
        let open = self.0.live.lock().writable(id, handle)?.clone();
        self.check_file(id)?;
        let count = u32::try_from(data.len()).map_err(|_| FsError::InvalidArgument)?;
        self.wait_for_room(count.into()).await?;
        let _only_writer = self.only_writer(id).await?;
        self.prepare_if(count > 0, id).await?;
        self.fill_scattered(id).await?;
        let size = self.0.live.lock().replica.node(id)?.facts.size;
        let offset = offset.filter(|_| !open.flags.append).unwrap_or(size);
        let end = self.end_of(offset, count.into())?;
        if count == 0 {
            return Ok(Appended { offset, count });
        }
        self.spare(id, offset..end).await?;
        self.outgrow(id, end).await?;
        self.find_stores(id).await?;
        let _placing = self.0.placing(id).await;
        if let Err(error) = self.put(id, offset, data).await {
            // Some of the bytes may have been written, so they differ from the home's. Beyond the
            // file's end there have to be zeroes.
            let spoiled = self.there(id, offset.min(size)..end.min(size))?;
            self.changed(&cred, id, |change| change.ranges.add_all(&spoiled))?;
            let file = self.changing(id).await?;
            file.set_len(size).await.map_err(|error| disk_error(&error))?;
            self.know_stores(id).await?;
            return Err(error);
        }
        self.changed(&cred, id, |change| {
            change.ranges.add(offset..end);
            change.size = change.size.max(end);
        })?;
        self.know_stores(id).await?;
        Ok(Appended { offset, count })
    }

    async fn prepare_if(&self, wanted: bool, id: FileId) -> Result<(), FsError> {
        if wanted { self.prepare(id, false).await } else { Ok(()) }
    }

    /// Writes into the file of the cache. A gap between its end and `offset` reads as zeroes.
    async fn put(&self, id: FileId, offset: u64, data: Bytes) -> Result<(), FsError> {
        let file = self.changing(id).await?;
        self.0.put_bytes(&file, offset, data).await
    }

    /// The file of the cache whose bytes are being changed.
    async fn changing(&self, id: FileId) -> Result<Arc<dyn File>, FsError> {
        let data = self.0.live.lock().replica.node(id)?.data;
        match self.0.open_data(data).await {
            // The bytes are lost.
            Err(FsError::NotFound) => Err(FsError::Io),
            file => file,
        }
    }

    /// Cuts or extends a file.
    pub(crate) async fn resize(&self, cred: &Cred, id: FileId, size: u64) -> Result<(), FsError> {
        self.resize_to(cred, id, size == 0, |_| size).await
    }

    /// Gives a file a size that depends on its present one; `empties`: its present contents are not
    /// wanted.
    async fn resize_to(
        &self,
        cred: &Cred,
        id: FileId,
        empties: bool,
        size: impl FnOnce(u64) -> u64,
    ) -> Result<(), FsError> {
        self.check_file(id)?;
        let _only_writer = self.only_writer(id).await?;
        self.prepare(id, empties).await?;
        let size = size(self.0.live.lock().replica.node(id)?.facts.size);
        self.outgrow(id, size).await?;
        let file = self.changing(id).await?;
        self.spare(id, size..FILE_SIZE_MAX.max(size)).await?;
        self.find_stores(id).await?;
        let placing = self.0.placing(id).await;
        file.set_len(size).await.map_err(|error| disk_error(&error))?;
        let (mut cuts, is_part) = (false, !self.0.live.lock().replica.node(id)?.is_whole());
        self.changed(cred, id, |change| {
            if size < change.size {
                change.cut = change.cut.min(size);
                change.ranges.cut(size);
                cuts = true;
            }
            change.size = size;
        })?;
        drop(placing);
        self.know_stores(id).await?;
        if cuts && is_part {
            // After a crash, the client could not tell where zeroes that follow the cut begin.
            self.log_written(id, true).await?;
            return self.durable().await;
        }
        let is_shown = self.0.live.lock().is_shown(id);
        if empties && is_shown {
            // Durable, as if the file had a new file of the cache.
            self.0.sync_bytes(&file).await?;
        }
        Ok(())
    }

    /// Logs the changes of a file. Returns the number of the log's last operation.
    pub(crate) async fn store(&self, id: FileId) -> Result<u64, FsError> {
        let syncs = self.0.settings.lock().durability == Durability::Always;
        self.log_file(id, syncs).await?;
        self.logged().await?;
        Ok(self.0.live.lock().replica.log().last())
    }

    /// As [`store`](Self::store), and waits until the log is durable.
    pub(crate) async fn store_durably(&self, id: FileId) -> Result<(), FsError> {
        self.log_file(id, true).await?;
        self.durable().await
    }

    async fn log_file(&self, id: FileId, syncs: bool) -> Result<(), FsError> {
        let _only_writer = self.0.writer(id).await;
        self.find_stores(id).await?;
        self.log_written(id, syncs).await?;
        let expects_stores = self.0.live.lock().expects_stores(id);
        if expects_stores {
            self.prepare(id, false).await?;
        }
        self.0.wake();
        Ok(())
    }

    /// Logs the changes of a file. The file's bytes are durable before the record: with `syncs`
    /// now, otherwise when the record is written. The caller is its only writer.
    async fn log_written(&self, id: FileId, syncs: bool) -> Result<(), FsError> {
        let is_begun = self.look(|replica, _| replica.node(id).is_ok_and(|node| node.changes.is_begun()));
        let file = if is_begun { Some(self.changing(id).await?) } else { None };
        if let Some(file) = &file
            && syncs
        {
            self.0.sync_bytes(file).await?;
        }
        let now = self.0.host.clock.wall();
        let mut live = self.0.live.lock();
        let node = live.replica.node(id)?;
        let (data, is_logged) = (node.data, node.is_dirty() && node.facts.nlink > 0);
        live.log_changes(id, now)?;
        match file {
            Some(_) if is_logged && (syncs || live.in_memory(data).is_some()) => live.cache.unwritten.is_durable(data),
            Some(file) if is_logged => live.cache.unwritten.tells_of(data, file),
            _ => {}
        }
        Ok(())
    }

    /// Waits until a near home has seen this client's operations up to one, if other clients are
    /// attached to the volume. Under `through`, waits for a far home too. Apart from that it does
    /// not wait for long.
    pub(crate) async fn reach_home(&self, seq: u64) {
        let writes = self.0.settings.lock().writes;
        if writes == Writes::Through {
            self.wait_for_home(seq).await;
        } else if self.0.live.lock().waits_for_home(writes) {
            let _ = timeout(&*self.0.host.clock, REACH_TIME_MAX, self.wait_for_home(seq)).await;
        }
    }

    async fn wait_for_home(&self, seq: u64) {
        let mut tick = self.0.tick.subscribe();
        loop {
            {
                let live = self.0.live.lock();
                let waits = live.replica.log().after(live.sending.seen.through()).is_some_and(|first| first <= seq);
                let through = self.0.settings.lock().writes == Writes::Through && live.link.state() == LinkState::Weak;
                if !waits || !(through || live.link.is_near()) {
                    return;
                }
            }
            if tick.changed().await.is_err() {
                return;
            }
        }
    }

    pub(crate) async fn fallocate(
        &self,
        cred: &Cred,
        At { id, handle, offset }: At,
        len: u64,
        mode: Fallocate,
    ) -> Result<(), FsError> {
        self.0.live.lock().writable(id, handle)?;
        self.check_file(id)?;
        if len == 0 {
            return Err(FsError::InvalidArgument);
        }
        let end = self.end_of(offset, len)?;
        let size = self.0.live.lock().replica.node(id)?.facts.size;
        if matches!(mode, Fallocate::PunchHole | Fallocate::ZeroRange | Fallocate::ZeroRangeKeepSize) {
            let _only_writer = self.only_writer(id).await?;
            self.prepare(id, false).await?;
            self.fill_scattered(id).await?;
            let zeroed = offset.min(size)..end.min(size);
            self.spare(id, zeroed.clone()).await?;
            self.find_stores(id).await?;
            let _placing = self.0.placing(id).await;
            let (mut at, mut put) = (zeroed.start, Ok(()));
            while at < zeroed.end && put.is_ok() {
                let len = (zeroed.end - at).min(PIECE_LEN);
                put = self.put(id, at, vec![0; len as usize].into()).await;
                at += len;
            }
            // Some of the bytes may have been written, so they differ from the home's.
            let changed = if put.is_ok() { Ranges::of(zeroed) } else { self.there(id, zeroed)? };
            self.changed(cred, id, |change| change.ranges.add_all(&changed))?;
            self.know_stores(id).await?;
            put?;
        }
        if matches!(mode, Fallocate::Allocate | Fallocate::ZeroRange) && end > size {
            return self.resize_to(cred, id, false, |size| size.max(end)).await;
        }
        if mode == Fallocate::Allocate || mode == Fallocate::AllocateKeepSize {
            let strips = {
                let live = self.0.live.lock();
                perm::mode_after_write(cred, &live.replica.node(id)?.subject()).is_some()
            };
            if strips {
                return self.resize_to(cred, id, false, |size| size).await;
            }
        }
        Ok(())
    }

    pub(crate) fn seek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Result<u64, FsError> {
        let live = self.0.live.lock();
        live.handle(id, handle, false)?;
        let facts = &live.replica.node(id)?.facts;
        if facts.kind != Kind::File {
            return Err(FsError::InvalidArgument);
        }
        match whence {
            _ if offset >= facts.size => Err(FsError::NoSuchAddress),
            // The whole file counts as data.
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(facts.size),
        }
    }

    pub(crate) async fn copy(&self, cred: Cred, from: At, to: At, len: u64) -> Result<u64, FsError> {
        let size = {
            let live = self.0.live.lock();
            live.readable(from.id, from.handle)?;
            if live.writable(to.id, to.handle)?.flags.append {
                return Err(FsError::BadHandle);
            }
            live.replica.node(from.id)?.facts.size
        };
        self.check_file(to.id)?;
        self.check_file(from.id)?;
        let len = len.min(size.saturating_sub(from.offset));
        if from.id == to.id && from.offset.abs_diff(to.offset) < len {
            return Err(FsError::InvalidArgument);
        }
        self.end_of(to.offset, len)?;
        let mut copied = 0;
        while copied < len {
            let piece = (len - copied).min(PIECE_LEN) as u32;
            let data = self.read_bytes(from.id, from.offset + copied, piece).await?;
            if data.is_empty() {
                break;
            }
            let written = self.write(cred.clone(), to.id, to.handle, Some(to.offset + copied), data).await?.count;
            copied += u64::from(written);
        }
        Ok(copied)
    }

    /// Gets what a call needs. A need that cannot be met now is an error.
    pub(crate) async fn meet(&self, need: Need) -> Result<(), FsError> {
        match self.fetch(need).await {
            // Perhaps the cached state will do.
            Err(FsError::TimedOut) if self.0.live.lock().is_content() => Ok(()),
            met => met,
        }
    }
}
