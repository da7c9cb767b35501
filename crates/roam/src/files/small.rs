//! Contents of small files, in memory and in the log.
//!
//! Bytes that are written to a small file stay in memory until the file is closed or synced. The
//! record that logs the store then carries them
//! ([`Record::Stored`](crate::replica::Record::Stored)). So a small file costs no system call and
//! no sync of its own: one write of the log makes all closed files durable. Later, in the
//! background, the client writes many of them to files of the cache, and makes these durable with
//! one sync ([`Client::file_contents`]).
//!
//! Invariants: contents that the log has ([`Replica::contents`](crate::replica::Replica::contents))
//! take precedence over a file of the cache with the same number, until the log says that the file
//! is durable ([`Record::Filed`](crate::replica::Record::Filed)). Contents with the home's version,
//! which may be wanted as a base, are never changed in place: writes go to another number.
//!
//! After a crash, bytes that were written and not logged are lost, and the file is as it was last
//! logged.

use crate::cache::data_files::{data_name, disk_error};
use crate::client::Client;
use crate::files::small_file::SmallFile;
use crate::live::Live;
use crate::replica::{Node, Record, SMALL_LEN_MAX, Unlogged};
use bytes::Bytes;
use host::File;
use roam_proto::operation::Change;
use roam_proto::ranges::Ranges;
use std::io::ErrorKind;
use std::sync::Arc;
use types::{FileId, FsError, Kind, Time};
use vfs::fs::{Appended, Cred, Handle};

/// Bytes of contents that may stay in memory and in the log. Files that live for a moment are never
/// written anywhere else.
const CONTENTS_LEN: u64 = 16 << 20;
/// With more bytes of contents than this, a write waits until some are files of the cache.
const CONTENTS_LEN_MAX: u64 = 64 << 20;
/// Most bytes that small files have and the log does not have durably. A log on a full disk keeps
/// more room than this.
const UNLOGGED_LEN_MAX: u64 = 3 << 20;
/// With more files than this, all files of the disk are synced at once.
const SYNC_COUNT_MAX: usize = 2;

impl Live {
    /// The contents with this number, if they are in memory.
    pub(crate) fn in_memory(&self, number: u64) -> Option<Arc<SmallFile>> {
        let open = self.cache.small.files.get(&number).cloned();
        open.or_else(|| self.replica.contents(number).cloned().map(SmallFile::new))
    }

    /// True if writes to a file go to memory now.
    pub(crate) fn is_in_memory(&self, id: FileId) -> bool {
        self.replica.node(id).is_ok_and(|node| node.unlogged.is_some())
    }

    /// True if writes to a file may go to memory; `empties`: its present contents are not wanted.
    pub(crate) fn may_be_small(&self, id: FileId, empties: bool) -> bool {
        let Ok(node) = self.replica.node(id) else { return false };
        let fits = empties || node.is_whole() && node.facts.size <= SMALL_LEN_MAX;
        let is_seen = self.cache.is_shown(node.data) || self.cache.is_mapped(node.data);
        // On a full disk, the write has to report that.
        let has_room = self.has_room_in_memory(0);
        node.facts.kind == Kind::File && fits && !is_seen && has_room && !node.changes.is_ready()
    }

    /// Begins to change a file in memory, from its contents or from nothing. False if it has
    /// changed since `before` was read, or may not be changed in memory.
    pub(crate) fn begin_small(
        &mut self,
        id: FileId,
        before: &Before,
        empties: bool,
        now: Time,
    ) -> Result<bool, FsError> {
        let node = self.replica.node(id)?;
        if !before.is_of(node) || !self.may_be_small(id, empties) {
            return Ok(false);
        }
        let (data, size, is_dirty) = (node.data, node.facts.size, node.is_dirty());
        let at_home = !self.replica.is_own(id) && node.base == 0 && node.facts.version > 0 && node.is_whole();
        let base = if at_home { data } else { 0 };
        if base > 0 {
            self.cache.keep_base(base, size);
        }
        if !is_dirty {
            self.record(Record::Marked(self.replica.real(id)))?;
        }
        // Waiting stores of it keep their bytes.
        let old: Arc<dyn File> = match before.bytes.clone() {
            Some(bytes) => SmallFile::new(bytes),
            None => SmallFile::new(Bytes::new()),
        };
        if data > 0 && before.bytes.is_some() {
            let seqs: Vec<u64> = self.unspared(id).map(|(seq, _)| seq).collect();
            self.sending.keep_source(seqs, &old);
        }
        let number = match self.replica.contents(data).is_some() && base == 0 {
            true => data,
            false => self.replica.take_data_number(),
        };
        let bytes = if empties { Bytes::new() } else { before.bytes.clone().unwrap_or_default() };
        let len = bytes.len() as u64;
        let node = self.replica.node_mut(id)?;
        let facts = &node.facts;
        node.unlogged = Some(Box::new(Unlogged {
            data,
            size,
            times: (facts.mtime, facts.ctime),
            have: node.have.clone(),
            base,
            written_at: None,
        }));
        (node.data, node.have) = (number, Ranges::of(0..len));
        if empties {
            (node.facts.size, node.facts.blocks) = (0, 0);
            node.changes.ready_empty(now);
        } else if !node.changes.ready() {
            return Ok(false);
        }
        self.cache.small.files.insert(number, SmallFile::new(bytes));
        Ok(true)
    }

    /// Notes that bytes of a file were changed in memory. The log gets them in its regular time,
    /// even if the file stays open.
    pub(crate) fn wrote_small(&mut self, file: FileId) {
        let Ok(Node { data, facts, .. }) = self.replica.node(file) else { return };
        let (data, len) = (*data, facts.size);
        if self.cache.small.wrote(data, file, len)
            && let Some(log) = self.log()
        {
            log.nudge();
        }
    }

    /// Drops a file from memory.
    pub(crate) fn leave_small(&mut self, number: u64) {
        self.cache.small.files.remove(&number);
        self.cache.small.is_held(number);
    }

    /// Puts the contents of small files that are being written into the log.
    pub(crate) fn hold_small(&mut self) {
        for (number, (file, _)) in self.cache.small.take_unheld() {
            let file = self.replica.real(file);
            let Ok(Node { data, facts, unlogged: Some(unlogged), .. }) = self.replica.node(file) else { continue };
            let Some(small) = self.cache.small.files.get(&number).filter(|_| *data == number && facts.nlink > 0) else {
                continue;
            };
            let (bytes, base, written_at) = (small.logged(), unlogged.base, unlogged.written_at);
            let (size, times) = (bytes.len() as u64, (facts.mtime, facts.ctime));
            // Refused, it stays in memory until it is stored.
            if self.record(Record::Held { file, data: number, base, bytes }).is_err() {
                continue;
            }
            if let Ok(node) = self.replica.node_mut(file) {
                let have = node.have.clone();
                node.unlogged = Some(Box::new(Unlogged { data: number, size, times, have, base: 0, written_at }));
            }
        }
    }

    /// True if `len` more bytes may be written in memory: the log will have room for them, however
    /// full its disk is.
    fn has_room_in_memory(&self, len: u64) -> bool {
        let Some(log) = self.log() else { return true };
        log.room().is_none() && log.waiting_len() + self.cache.small.unheld_len + len <= UNLOGGED_LEN_MAX
    }

    /// Logs the changes of a file that was written in memory, with its bytes.
    pub(crate) fn log_small(&mut self, id: FileId, change: Change, when: Time) -> Result<(), FsError> {
        let file = self.replica.real(id);
        let node = self.replica.node(file)?;
        let (data, base) = (node.data, node.unlogged.as_ref().map_or(0, |unlogged| unlogged.base));
        let all = self.cache.small.files.get(&data).ok_or(FsError::Io)?.logged();
        let is_all = self.replica.contents(data).is_none();
        let bytes = match is_all {
            true => all,
            false => {
                let mut bytes = Vec::with_capacity(change.ranges.len() as usize);
                change.ranges.iter().for_each(|range| bytes.extend(&all[range.start as usize..range.end as usize]));
                bytes.into()
            }
        };
        self.did_store_with(file, Record::Stored { file, data, base, is_all, change, bytes, when })?;
        self.leave_small(data);
        Ok(())
    }

    /// Ends the change of a file that was only made ready in memory.
    pub(crate) fn end_small(&mut self, id: FileId) {
        let Ok(node) = self.replica.node_mut(id) else { return };
        let Some(unlogged) = node.unlogged.take() else { return };
        let number = std::mem::replace(&mut node.data, unlogged.data);
        node.have = unlogged.have;
        self.leave_small(number);
    }
}

impl Live {
    /// Makes a file ready to be changed in memory, if that needs no waiting.
    fn begin_small_now(&mut self, id: FileId, empties: bool, now: Time) -> Result<bool, FsError> {
        let node = self.replica.node(id)?;
        if node.unlogged.is_some() && node.changes.is_ready() {
            return Ok(!empties);
        }
        let bytes = match self.replica.contents(node.data) {
            Some(bytes) => Some(bytes.clone()),
            None if node.facts.size == 0 => None,
            None if empties && self.unspared(id).next().is_none() => None,
            None => return Ok(false),
        };
        let before = Before::of(node, bytes);
        self.begin_small(id, &before, empties, now)
    }

    /// Writes into a small file, at an offset or at its end. `None` if that would have to wait.
    fn write_small(
        &mut self,
        cred: &Cred,
        (id, handle): (FileId, Handle),
        offset: Option<u64>,
        data: &[u8],
        now: Time,
    ) -> Result<Option<Appended>, FsError> {
        let is_append = self.writable(id, handle)?.flags.append;
        let node = self.replica.node(id)?;
        let (size, len) = (node.facts.size, data.len() as u64);
        let offset = offset.filter(|_| !is_append).unwrap_or(size);
        let end = offset.saturating_add(len);
        let fits = len > 0 && end <= SMALL_LEN_MAX.min(self.replica.file_len_max());
        if !fits
            || self.freshness.is_delegated()
            || !self.has_room_in_memory(end)
            || !self.begin_small_now(id, false, now)?
            || !self.cache.spare.take(len)
        {
            return Ok(None);
        }
        let number = self.replica.node(id)?.data;
        let Some(small) = self.cache.small.files.get(&number) else { return Ok(None) };
        small.write(offset, data);
        self.changed(cred, id, now, |change| {
            change.ranges.add(offset..end);
            change.size = change.size.max(end);
        })?;
        Ok(Some(Appended { offset, count: data.len() as u32 }))
    }

    /// Logs the changes of a file. False if that would have to wait.
    fn log_now(&mut self, id: FileId, now: Time) -> Result<bool, FsError> {
        let node = self.replica.node(id)?;
        if node.unlogged.is_none() && node.changes.is_begun()
            || self.freshness.is_delegated()
            || self.expects_stores(id)
        {
            return Ok(false);
        }
        self.log_changes(id, now)?;
        Ok(true)
    }
}

impl Client {
    /// As [`write`](Self::write). `None` if that would have to wait.
    pub(crate) fn write_now(
        &self,
        cred: &Cred,
        id: FileId,
        handle: Handle,
        offset: Option<u64>,
        data: &[u8],
    ) -> Result<Option<Appended>, FsError> {
        let now = self.0.host.clock.wall();
        let mut live = self.0.live.lock();
        if !self.0.is_idle(id) {
            return Ok(None);
        }
        live.write_small(cred, (id, handle), offset, data, now)
    }

    /// Logs the changes of a file. False if that would have to wait, for the log or for the home.
    pub(crate) fn store_now(&self, id: FileId) -> Result<bool, FsError> {
        let now = self.0.host.clock.wall();
        let mut live = self.0.live.lock();
        if !self.0.is_idle(id) || self.waits(&live) || !live.log_now(id, now)? {
            return Ok(false);
        }
        self.logged_more(&live);
        Ok(true)
    }
}

/// A file before it is changed in memory.
pub(crate) struct Before {
    data: u64,
    size: u64,
    contents: u64,
    /// Its bytes; `None` if they are not wanted.
    bytes: Option<Bytes>,
}

impl Before {
    fn of(node: &Node, bytes: Option<Bytes>) -> Before {
        Before { data: node.data, size: node.facts.size, contents: node.facts.contents, bytes }
    }

    fn is_of(&self, node: &Node) -> bool {
        (self.data, self.size, self.contents) == (node.data, node.facts.size, node.facts.contents)
    }
}

impl Client {
    /// Makes a file ready to be changed in memory, if it may be. The caller is its only writer.
    pub(crate) async fn prepare_small(&self, id: FileId, empties: bool) -> Result<bool, FsError> {
        let (before, is_wanted) = {
            let live = self.0.live.lock();
            if !live.may_be_small(id, empties) {
                return Ok(false);
            }
            let node = live.replica.node(id)?;
            // Bytes of waiting stores are wanted even if the next write does not keep them.
            let waits = node.data > 0 && live.unspared(id).next().is_some();
            let is_wanted = (!empties || waits) && node.facts.size > 0 && node.is_whole();
            (Before::of(node, None), is_wanted && node.facts.size <= SMALL_LEN_MAX)
        };
        let bytes = match is_wanted {
            true => {
                self.0.check_data(id).await?;
                let file = match self.0.open_data(before.data).await {
                    // The caller asks for the bytes again.
                    Err(FsError::NotFound) => return Ok(false),
                    file => file?,
                };
                match file.read_at(0, before.size as usize).await {
                    Ok(bytes) => Some(bytes),
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
                    Err(error) => return Err(disk_error(&error)),
                }
            }
            false => None,
        };
        let now = self.0.host.clock.wall();
        let mut live = self.0.live.lock();
        // A longer store that waits is set aside as a file.
        if bytes.is_none() && before.size > 0 && live.unspared(id).next().is_some() {
            return Ok(false);
        }
        live.begin_small(id, &Before { bytes, ..before }, empties, now)
    }

    /// Called before a file that is changed in memory gets this length. Moves it to a file of the
    /// cache if it becomes too long, or the log has no room for it. The caller is its only writer.
    pub(crate) async fn outgrow(&self, id: FileId, len: u64) -> Result<(), FsError> {
        if !self.0.live.lock().is_in_memory(id) {
            return Ok(());
        }
        if len <= SMALL_LEN_MAX {
            let has_room = || self.0.live.lock().has_room_in_memory(len);
            if has_room() {
                return Ok(());
            }
            if self.0.log.room().is_none() {
                self.durable().await?;
            }
            if has_room() {
                return Ok(());
            }
        }
        self.leave_memory(id).await
    }

    /// Moves a file that is changed in memory to a file of the cache. The caller is its only
    /// writer.
    pub(crate) async fn leave_memory(&self, id: FileId) -> Result<(), FsError> {
        let _nobody_else = self.0.filing.lock().await;
        let (number, bytes, is_logged) = {
            let mut live = self.0.live.lock();
            let data = live.replica.node(id)?.data;
            let small = live.cache.small.files.get(&data).cloned().ok_or(FsError::Io)?;
            // From here on, the log does not take its contents.
            live.cache.small.is_held(data);
            (data, small.logged(), live.replica.contents(data).is_some())
        };
        let filed = async {
            let file = self.0.make_data_file(number).await?;
            let emptied = file.set_len(0).await;
            emptied.map_err(|error| disk_error(&error))?;
            self.0.put_bytes(&file, 0, bytes).await?;
            if is_logged {
                self.0.sync_bytes(&file).await?;
            }
            Ok(file)
        };
        let file = filed.await;
        let mut live = self.0.live.lock();
        let file = match file {
            Ok(file) => file,
            Err(error) => {
                live.cache.close(number);
                live.wrote_small(id);
                return Err(error);
            }
        };
        if is_logged {
            live.learn(Record::Filed(vec![number]));
        }
        let node = live.replica.node(id)?;
        let base = node.unlogged.as_ref().map_or(0, |unlogged| unlogged.base);
        let (have, size) = (node.have.clone(), node.facts.size);
        live.cache.unwritten.tells_of(number, file.clone());
        live.leave_small(number);
        live.cache.replace_open(number, file.clone());
        let real = live.replica.real(id);
        live.record(Record::Dirty { file: real, data: number, base, have, size })?;
        live.cache.begin_change(id, file);
        Ok(())
    }

    /// Writes contents that only the log has to a file of the cache, which may then be changed in
    /// place. The caller is the only writer of the file with these contents, and that file is not
    /// in memory.
    pub(crate) async fn leave_log(&self, number: u64) -> Result<(), FsError> {
        let _nobody_else = self.0.filing.lock().await;
        let contents = self.0.live.lock().replica.contents(number).cloned();
        let Some(bytes) = contents else { return Ok(()) };
        let file = self.0.make_data_file(number).await?;
        let filed = async {
            file.set_len(0).await.map_err(|error| disk_error(&error))?;
            self.0.put_bytes(&file, 0, bytes).await?;
            self.0.sync_bytes(&file).await
        };
        let filed = filed.await;
        let mut live = self.0.live.lock();
        match filed {
            Ok(()) => live.learn(Record::Filed(vec![number])),
            Err(_) => live.cache.close(number),
        }
        filed
    }

    /// Writes contents that only the log has to files of the cache: those that conflicts keep,
    /// since other programs read them, and the oldest of the others until few enough are left. One
    /// sync makes all of them durable. EIO, ENOSPC.
    pub async fn file_contents(&self) -> Result<(), FsError> {
        let _one_at_a_time = self.0.filing.lock().await;
        let wanted = {
            let live = self.0.live.lock();
            live.contents_to_file()
        };
        if wanted.is_empty() {
            return Ok(());
        }
        let mut files = Vec::new();
        for (number, bytes) in &wanted {
            let file = self.0.disk.open(&data_name(*number), true).await.map_err(|error| disk_error(&error))?;
            file.set_len(0).await.map_err(|error| disk_error(&error))?;
            file.write_at(0, vec![bytes.clone()]).await.map_err(|error| disk_error(&error))?;
            files.push(file);
            if files.len() > SYNC_COUNT_MAX {
                // All are synced at once, so the others need not stay open.
                files.truncate(1);
            }
        }
        self.0.made_names();
        if wanted.len() > SYNC_COUNT_MAX {
            self.0.sync_disk().await?;
        } else {
            for file in &files {
                self.0.sync_bytes(file).await?;
            }
        }
        let mut live = self.0.live.lock();
        let is_same = |(number, bytes): &(u64, Bytes)| {
            let is_written = live.cache.small.files.contains_key(number);
            let now = live.replica.contents(*number);
            (!is_written && now.is_some_and(|now| now.as_ptr() == bytes.as_ptr() && now.len() == bytes.len()))
                .then_some(*number)
        };
        let filed: Vec<u64> = wanted.iter().filter_map(is_same).collect();
        if !filed.is_empty() {
            live.learn(Record::Filed(filed));
        }
        Ok(())
    }
}

impl Live {
    /// True if a write has to wait until some contents are files of the cache.
    pub(crate) fn has_too_many_contents(&self) -> bool {
        self.replica.contents_len() > CONTENTS_LEN_MAX
    }

    /// Contents that are to become files of the cache: those of conflicts, which other programs
    /// read, and the oldest if there are too many.
    fn contents_to_file(&self) -> Vec<(u64, Bytes)> {
        let conflicts = self.replica.conflicts().flat_map(|(_, conflict)| [conflict.base, conflict.kept]);
        let mut numbers: Vec<u64> = conflicts.filter(|number| self.replica.contents(*number).is_some()).collect();
        let mut len = self.replica.contents_len();
        if len > CONTENTS_LEN {
            for (number, bytes) in self.replica.all_contents() {
                if len <= CONTENTS_LEN / 2 {
                    break;
                }
                if !self.cache.small.files.contains_key(&number) {
                    len -= bytes.len() as u64;
                    numbers.push(number);
                }
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().filter_map(|number| Some((number, self.replica.contents(number)?.clone()))).collect()
    }
}
