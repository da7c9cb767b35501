//! A client's state in memory: one lock, never held across an await.

use crate::cache::cached_files::CachedFiles;
use crate::cache::prefetch::Prefetch;
use crate::connection::state::Link;
use crate::consistency::delegations::Wanted;
use crate::consistency::freshness::Freshness;
use crate::consistency::kernel::KernelCache;
use crate::files::open_files::{Open, OpenFiles};
use crate::reintegration::sending::Sending;
use crate::replica::{Node, Record, Replica};
use record_log::RecordLog;
use roam_proto::codec::Wire;
use roam_proto::operation::{Change, Operation};
use std::collections::BTreeMap;
use types::{FileId, FsError, Kind, Time};
use vfs::fs::{Handle, OpenFlags};

/// Why a call cannot be answered yet.
pub(crate) enum Stop {
    Fs(FsError),
    Need(Need),
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Stop {
        Stop::Fs(error)
    }
}

/// What a call needs before it can be answered. All but `Room` comes from the home.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Need {
    /// The names in a directory.
    Names(FileId),
    /// A file's attributes, and leave to believe them.
    Facts(FileId),
    /// Write delegations on these files.
    Change(Wanted),
    /// Ids for new files.
    Ids,
    /// Room in the log. It comes from this machine's disk.
    Room,
}

/// A client's state in memory: one lock, never held across an await.
pub(crate) struct Live {
    /// What the client knows, caches and has done.
    pub(crate) replica: Replica,
    pub(crate) open_files: OpenFiles,
    pub(crate) cache: CachedFiles,
    pub(crate) link: Link,
    pub(crate) freshness: Freshness,
    pub(crate) sending: Sending,
    pub(crate) prefetch: Prefetch,
    pub(crate) kernel: KernelCache,
    /// The log of the replica's records; `None` until the cache is open.
    log: Option<RecordLog>,
}

impl Live {
    pub(crate) fn new(replica: Replica) -> Live {
        Live {
            replica,
            open_files: OpenFiles::default(),
            cache: CachedFiles::default(),
            link: Link::default(),
            freshness: Freshness::default(),
            sending: Sending::default(),
            prefetch: Prefetch::default(),
            kernel: KernelCache::default(),
            log: None,
        }
    }

    /// Records go to this log from now on.
    pub(crate) fn keep_in(&mut self, log: RecordLog) {
        self.log = Some(log);
    }

    /// The log of the replica's records; `None` until the cache is open.
    pub(crate) fn log(&self) -> Option<&RecordLog> {
        self.log.as_ref()
    }

    /// Makes a lasting change. It is durable once the log has settled. EIO if it does not fit the
    /// state; then nothing has changed, and the log has nothing of it.
    pub(crate) fn record(&mut self, record: Record) -> Result<(), FsError> {
        if !self.replica.fits(&record) {
            tracing::error!(?record, "a change that does not fit what the client knows was refused");
            #[cfg(not(test))]
            debug_assert!(false, "{record:?} must fit the state that it changes");
            return Err(FsError::Io);
        }
        if let Some(log) = &self.log {
            // A caller that needs it durable waits for the log to settle.
            log.post(record.to_bytes().into());
        }
        let made = self.replica.apply_fitting(record);
        debug_assert!(made.is_some(), "a record that fits can be applied");
        for (before, seq) in self.replica.take_logged_again() {
            self.sending.renumber(before, seq);
        }
        Ok(())
    }

    /// As [`record`](Self::record), for what fits every state, or for what no call waits for. What
    /// is refused is in the program's log.
    pub(crate) fn learn(&mut self, record: Record) {
        let _ = self.record(record);
    }

    /// The number of a new file of the cache.
    pub(crate) fn take_data_number(&mut self) -> u64 {
        let number = self.replica.take_data_number();
        self.cache.unwritten.made(number);
        number
    }

    /// Waiting stores of a file whose bytes are only in the file itself.
    pub(crate) fn unspared(&self, file: FileId) -> impl Iterator<Item = (u64, &Change)> {
        let stores =
            self.replica.log().naming(self.replica.real(file)).filter_map(|(seq, operation)| match operation {
                Operation::Store { change, .. } => Some((seq, change)),
                _ => None,
            });
        stores.filter(|(seq, _)| !self.sending.is_spared(*seq))
    }

    /// Logs a change of a file's contents.
    pub(crate) fn did_store(&mut self, file: FileId, change: Change, when: Time) -> Result<(), FsError> {
        let file = self.replica.real(file);
        self.did_store_with(file, Record::Did { operation: Operation::Store { file, change }, when })
    }

    /// Logs a change of a file's contents, by the given record.
    pub(crate) fn did_store_with(&mut self, file: FileId, record: Record) -> Result<(), FsError> {
        let last = |live: &Live| {
            let mut naming = live.replica.log().naming(file);
            naming
                .by_ref()
                .filter(|(_, operation)| matches!(operation, Operation::Store { .. }))
                .last()
                .map(|(seq, _)| seq)
        };
        let before = last(self);
        self.record(record)?;
        if let Some(seq) = before
            && last(self) == before
        {
            // The store became part of one that waits, whose bytes are now different.
            self.sending.forget_bytes(seq);
        }
        Ok(())
    }

    /// Drops contents that were set aside for operations that are no longer sent. Returns the
    /// numbers of those that are in files.
    pub(crate) fn forget_outgoing(&mut self) -> Vec<u64> {
        let Live { sending, replica, .. } = self;
        sending.forget_gone(|seq| replica.log().has(seq))
    }

    /// True if cached data has to do, whether stale or not.
    pub(crate) fn is_content(&self) -> bool {
        (self.link.is_offline() || self.freshness.is_frozen()) && !self.freshness.is_delegated()
    }

    /// A file whose attributes are as new as they can be now.
    pub(crate) fn node(&self, id: FileId) -> Result<&Node, Stop> {
        let id = self.replica.real(id);
        if self.replica.is_stale(id) && !self.is_content() || self.is_passed(id) {
            return Err(Stop::Need(Need::Facts(id)));
        }
        let node = self.known(id)?;
        // A file without a name belongs to this client alone.
        if node.facts.nlink > 0 && !self.may_believe(id) {
            return Err(Stop::Need(Need::Facts(id)));
        }
        if node.facts.nlink == 0 && !self.open_files.is_open(id) {
            return Err(Stop::Fs(FsError::Stale));
        }
        Ok(node)
    }

    /// A cached file. If the client has forgotten it, the home has to be asked.
    pub(crate) fn known(&self, id: FileId) -> Result<&Node, Stop> {
        self.replica.node(id).map_err(|_| Stop::Need(Need::Facts(self.replica.real(id))))
    }

    /// Forgets a file that has no name here, unless a program has it open.
    pub(crate) fn doubt_nameless(&mut self, id: FileId) {
        let id = self.replica.real(id);
        let data = self.replica.node(id).map_or(0, |node| node.data);
        if !self.open_files.is_open(id) && self.replica.forget_nameless(id) {
            self.cache.end_change(id);
            self.leave_small(data);
        }
    }

    /// A directory whose names are as new as they can be now.
    pub(crate) fn directory(&self, id: FileId) -> Result<&Node, Stop> {
        let node = self.node(id)?;
        if node.facts.kind != Kind::Directory {
            return Err(Stop::Fs(FsError::NotADirectory));
        }
        match (self.replica.has_names(id), &node.names) {
            (true, _) => Ok(node),
            (false, Some(_)) if self.is_content() => Ok(node),
            _ => Err(Stop::Need(Need::Names(id))),
        }
    }

    pub(crate) fn open_handle(&mut self, id: FileId, flags: OpenFlags, directory: bool) -> Handle {
        let id = self.replica.real(id);
        let handle = self.open_files.open(id, flags, directory);
        self.touch(id);
        handle
    }

    /// Notes that a file was used.
    pub(crate) fn touch(&mut self, id: FileId) {
        self.cache.touch(id);
    }

    /// Closes files of the cache that are no longer being changed.
    pub(crate) fn let_go(&mut self) {
        let Live { cache, replica, .. } = self;
        cache.end_changes(|file| replica.node(file).is_ok_and(|node| node.changes.is_begun()));
    }

    /// Drops the last uses of files that are no longer known.
    pub(crate) fn forget_used(&mut self) {
        let Live { cache, replica, .. } = self;
        cache.forget_uses(replica.file_count(), |file| replica.node(file).is_ok());
    }

    /// EBADF unless `handle` is open on `id`.
    pub(crate) fn handle(&self, id: FileId, handle: Handle, directory: bool) -> Result<&Open, FsError> {
        self.open_files.handle(self.replica.real(id), handle, directory)
    }

    /// EBADF unless `handle` is open on the directory `id`, or is the one handle of all
    /// directories.
    pub(crate) fn open_directory(&self, id: FileId, handle: Handle) -> Result<(), FsError> {
        if handle == Handle::NONE { Ok(()) } else { self.handle(id, handle, true).map(drop) }
    }

    /// EIO if a program may believe that it still holds a lock on the file that it has lost.
    fn not_lost(&self, id: FileId) -> Result<(), FsError> {
        if self.freshness.has_lost_lock(self.replica.real(id)) { Err(FsError::Io) } else { Ok(()) }
    }

    /// EBADF unless `handle` is open on the file `id` for writing.
    pub(crate) fn writable(&self, id: FileId, handle: Handle) -> Result<&Open, FsError> {
        let open = self.handle(id, handle, false)?;
        self.not_lost(id)?;
        if open.flags.write { Ok(open) } else { Err(FsError::BadHandle) }
    }

    /// EBADF unless `handle` is open on the file `id` for reading or executing.
    pub(crate) fn readable(&self, id: FileId, handle: Handle) -> Result<&Open, FsError> {
        let open = self.handle(id, handle, false)?;
        self.not_lost(id)?;
        if open.flags.read || open.flags.execute { Ok(open) } else { Err(FsError::BadHandle) }
    }

    /// Closes a handle. True if it was the file's last.
    pub(crate) fn close(&mut self, id: FileId, handle: Handle, directory: bool) -> Result<bool, FsError> {
        self.open_files.close(self.replica.real(id), handle, directory)
    }

    /// Notes that others have changed these files, up to `seq`.
    pub(crate) fn break_callbacks(&mut self, files: Vec<FileId>, seq: u64) {
        self.freshness.changed_by_others(&files, seq);
        let news = |file: &FileId| self.replica.node(*file).is_ok() && !self.was_told(*file, seq);
        let known: Vec<FileId> = files.into_iter().filter(news).collect();
        if !known.is_empty() {
            self.freshness.has_news();
            known.iter().for_each(|file| self.forget(*file));
            self.learn(Record::Broken(known));
        }
    }

    /// Notes that others may have changed any file.
    pub(crate) fn break_all(&mut self) {
        if self.kernel.is_there() {
            let all: Vec<FileId> = self.replica.nodes().map(|(id, _)| id).collect();
            all.into_iter().for_each(|file| self.forget(file));
        }
        self.learn(Record::AllBroken);
    }

    /// Something made here turned out to be another file: its open handles become handles of that
    /// file.
    pub(crate) fn became(&mut self, file: FileId) {
        let real = self.replica.real(file);
        self.disown(file);
        self.open_files.became(file, real);
        self.forget(real);
    }

    /// Takes new ids, after the earlier ones were given up. Files that were made here and are not
    /// home get new ids, and so do their open handles.
    pub(crate) fn renew_ids(&mut self, first: FileId, count: u64) {
        let before: Vec<(u64, FileId)> = self.replica.made_here().collect();
        before.iter().for_each(|(_, file)| self.forget(*file));
        self.learn(Record::Renewed(first, count));
        let after: BTreeMap<u64, FileId> = self.replica.made_here().collect();
        for (seq, before) in before {
            let Some(file) = after.get(&seq).copied() else { continue };
            if let Some(Operation::Make { at, .. }) = self.replica.log().get(seq) {
                self.kernel.forget_name(at.0, &at.1);
            }
            self.disown(before);
            self.open_files.became(before, file);
            self.cache.became(before, file);
        }
    }

    /// Called when an operation was answered. While it waited, the kernel was shown its result. If
    /// only the home knows now what came of that, the kernel has to ask again.
    pub(crate) fn forget_doubtful(&self, operation: &Operation) {
        if !self.kernel.is_there() {
            return;
        }
        for (dir, name) in operation.places() {
            let dir = self.replica.real(*dir);
            if !self.replica.has_names(dir) {
                self.kernel.forget_name(dir, name);
                self.kernel.forget_file(dir);
            }
        }
        let doubtful = operation.files().into_iter().map(|file| self.replica.real(file));
        doubtful.filter(|file| self.replica.is_stale(*file)).for_each(|file| self.kernel.forget_file(file));
    }

    /// Tells the kernel that a file, or a directory with its names, has changed.
    pub(crate) fn forget(&self, file: FileId) {
        if !self.kernel.is_there() {
            return;
        }
        self.kernel.forget_file(file);
        let Ok(node) = self.replica.node(file) else { return };
        if node.facts.kind == Kind::Directory {
            for name in self.replica.list(file).into_iter().flatten().map(|(name, _)| name) {
                self.kernel.forget_name(file, &name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;
    use crate::connection::trunk::Line;
    use crate::settings::Settings;
    use crate::testing::NoHome;
    use host::sim::{Sim, SimDisk};
    use std::sync::Arc;

    /// The record was appended, and after that the cache could not be opened any more.
    #[test]
    fn regression_a_record_that_does_not_fit_is_not_logged() {
        let sim = Sim::new(1);
        let machine = sim.machine("laptop");
        let (host, disk) = (machine.host(), SimDisk::new(&sim, 1 << 24));
        let open = || {
            let line = Line::alone(&host, Arc::new(NoHome));
            sim.block_on(Client::open(&host, disk.mount(&machine), line, Settings::new("v")))
        };
        let client = open().expect("a new cache");
        assert_eq!(client.0.live.lock().record(Record::Settled(7)), Err(FsError::Io));
        let path = b"kept".to_vec();
        assert_eq!(client.0.live.lock().record(Record::Hoarded { path: path.clone(), priority: Some(5) }), Ok(()));
        sim.block_on(client.close()).expect("closed");
        let again = open().expect("the same cache");
        assert!(again.look(|replica, _| replica.hoard().contains_key(&path)));
    }
}
