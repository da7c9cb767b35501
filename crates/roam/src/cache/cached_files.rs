//! The files of the cache that are in use, and when programs used each file last.

use crate::cache::room::Spare;
use crate::cache::unwritten::Unwritten;
use crate::files::small_file::SmallFiles;
use host::File;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use types::FileId;
use vfs::fs::FsStat;

/// Most files of the cache that stay open while no task uses them.
const OPEN_COUNT_MAX: usize = 100;

/// The files of the cache in use. Each has a number; a file's node has the number of the file of
/// the cache with its bytes.
#[derive(Default)]
pub(crate) struct CachedFiles {
    /// Files of the cache that unwritten records name.
    pub(crate) unwritten: Unwritten,
    /// Files that are changed in memory.
    pub(crate) small: SmallFiles,
    /// How much room there is.
    pub(crate) spare: Spare,
    open: HashMap<u64, Arc<dyn File>>,
    /// Files of the cache whose bytes are being changed. They stay open, so that a sync reports
    /// every write error.
    changing: HashMap<FileId, Arc<dyn File>>,
    /// Files of the cache that the kernel was given to read or map. Their contents change as the
    /// file does.
    shown: HashSet<u64>,
    /// Of them, those that programs may have mapped for writing: the file, and the mark up to which
    /// the client knows what changed there.
    mapped: HashMap<u64, (FileId, u128)>,
    /// Lengths in bytes of the files of the cache that keep a base.
    base_lens: HashMap<u64, u64>,
    /// The number of each file's last use.
    used: HashMap<FileId, u64>,
    uses: u64,
    /// File count from which on the client looks again for metadata to forget.
    pub(in crate::cache) known_enough: usize,
    /// Files that the client has forgotten since it opened the cache.
    pub(in crate::cache) forgotten: u64,
    /// What the home said last of its room.
    home_space: Option<FsStat>,
}

impl CachedFiles {
    /// The open file of the cache with this number.
    pub(crate) fn opened(&self, number: u64) -> Option<Arc<dyn File>> {
        self.open.get(&number).cloned()
    }

    /// Keeps a file of the cache open. Returns the one that was open before, if there was one.
    pub(crate) fn keep_open(&mut self, number: u64, file: Arc<dyn File>) -> Arc<dyn File> {
        if self.open.len() >= OPEN_COUNT_MAX {
            // Files that are unused now are opened again when needed.
            self.open.retain(|_, file| Arc::strong_count(file) > 1);
        }
        self.open.entry(number).or_insert(file).clone()
    }

    /// Replaces the open file of the cache with this number.
    pub(crate) fn replace_open(&mut self, number: u64, file: Arc<dyn File>) {
        self.open.insert(number, file);
    }

    /// Closes a file of the cache.
    pub(crate) fn close(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// Closes a file of the cache that is about to be removed; its bytes can be fetched again.
    pub(crate) fn evict(&mut self, number: u64) {
        self.open.remove(&number);
        self.shown.remove(&number);
    }

    /// Forgets a file of the cache that nothing needs any more.
    pub(crate) fn forget(&mut self, number: u64) {
        self.evict(number);
        self.mapped.remove(&number);
        self.base_lens.remove(&number);
    }

    /// Keeps the file of the cache open whose bytes are being changed.
    pub(crate) fn begin_change(&mut self, id: FileId, file: Arc<dyn File>) {
        self.changing.insert(id, file);
    }

    /// A file's bytes are not being changed any more.
    pub(crate) fn end_change(&mut self, id: FileId) {
        self.changing.remove(&id);
    }

    /// Ends the changes of files for which `changes` is false.
    pub(crate) fn end_changes(&mut self, changes: impl Fn(FileId) -> bool) {
        self.changing.retain(|id, _| changes(*id));
    }

    /// Files whose bytes are being changed.
    pub(crate) fn changing(&self) -> impl Iterator<Item = FileId> {
        self.changing.keys().copied()
    }

    /// True if the kernel was given a file of the cache to read or map.
    pub(crate) fn is_shown(&self, number: u64) -> bool {
        self.shown.contains(&number)
    }

    pub(crate) fn show(&mut self, number: u64) {
        self.shown.insert(number);
    }

    /// True if programs may have mapped a file of the cache for writing.
    pub(crate) fn is_mapped(&self, number: u64) -> bool {
        self.mapped.contains_key(&number)
    }

    /// Programs may map a file of the cache for writing; its changes are known up to this mark,
    /// unless an earlier one is known.
    pub(crate) fn map(&mut self, number: u64, id: FileId, mark: u128) {
        self.mapped.entry(number).or_insert((id, mark)).0 = id;
    }

    /// The change mark up to which the stores to a mapping are known.
    pub(crate) fn mark(&self, number: u64) -> Option<u128> {
        self.mapped.get(&number).map(|(_, mark)| *mark)
    }

    /// The stores to a mapping are known up to this mark.
    pub(crate) fn know_stores(&mut self, number: u64, mark: u128) {
        if let Some(known) = self.mapped.get_mut(&number) {
            known.1 = mark;
        }
    }

    /// Files that may be mapped for writing, and the numbers of their files of the cache.
    pub(crate) fn mapped(&self) -> impl Iterator<Item = (u64, FileId)> {
        self.mapped.iter().map(|(number, (id, _))| (*number, *id))
    }

    /// Takes over which file has each file of the cache that may be mapped; `None`: it is gone.
    pub(crate) fn follow_mappings(&mut self, holder: impl Fn(u64, FileId) -> Option<FileId>) {
        self.mapped.retain(|number, (id, _)| holder(*number, *id).inspect(|holder| *id = *holder).is_some());
    }

    /// A file got another id.
    pub(crate) fn became(&mut self, before: FileId, file: FileId) {
        self.mapped.values_mut().filter(|(id, _)| *id == before).for_each(|(id, _)| *id = file);
    }

    /// The length of a base; 0: the file of the cache keeps none.
    pub(crate) fn base_len(&self, number: u64) -> u64 {
        self.base_lens.get(&number).copied().unwrap_or(0)
    }

    /// A file of the cache keeps a base of this length.
    pub(crate) fn keep_base(&mut self, number: u64, len: u64) {
        self.base_lens.insert(number, len);
    }

    /// Notes that a file was used.
    pub(crate) fn touch(&mut self, id: FileId) {
        self.uses += 1;
        self.used.insert(id, self.uses);
    }

    /// The number of a file's last use; 0: it was never used.
    pub(crate) fn last_use(&self, id: FileId) -> u64 {
        self.used.get(&id).copied().unwrap_or(0)
    }

    /// The numbers of all last uses, and how many uses there were.
    pub(crate) fn uses(&self) -> (&HashMap<FileId, u64>, u64) {
        (&self.used, self.uses)
    }

    /// Drops the last uses of files that are no longer known, if there are many.
    pub(crate) fn forget_uses(&mut self, known_count: usize, is_known: impl Fn(FileId) -> bool) {
        if self.used.len() > 2 * known_count {
            self.used.retain(|file, _| is_known(*file));
        }
    }

    /// What the home said last of its room.
    pub(crate) fn home_space(&self) -> Option<FsStat> {
        self.home_space
    }

    pub(crate) fn set_home_space(&mut self, space: FsStat) {
        self.home_space = Some(space);
    }
}
