//! The right answers of the file system, and the states that a crash may leave: the model beside
//! the file system under test.
//!
//! Several callers work at the same time, so their operations overlap. The client makes each change
//! in one step, at an instant between the request and its answer: it checks everything first, and
//! last it changes its memory and answers. In the simulated world nothing else runs between that
//! change and the answer's arrival here. So the order in which answers arrive **is** the order in
//! which operations take effect, and the model does each operation at that point. An answer is
//! right if it is exactly the model's there. So every operation has one right answer, however many
//! overlap with it.
//!
//! The same order gives the states that a crash may leave: the state after some first changes, with
//! every change that was made before an fsync or sync began that has succeeded.
//!
//! File ids, handles and cookies differ between the two, and are translated. Times, disk blocks,
//! sizes of directories, and the order of listings are not compared.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;
use types::{Answer, Attr, FileId, FsError, Kind, Time};
use vfs::fs::{Cred, DirEntry, Entry, FileSystem, Handle, OpenFlags, Seek, SetAttr};
use vfs::mem::MemFs;
use vfs::tree::{TreeEntry, difference, walk};

/// The result of a comparison; the error says what differs.
pub type Verdict = Result<(), String>;

struct Change {
    apply: Box<dyn Fn(&MemFs) + Send + Sync>,
    /// False if it changes only open handles.
    shows: bool,
}

/// A listing of a directory that is under way.
#[derive(Default)]
struct Listing {
    /// Names that have existed since it began, with the model's cookies: a name made anew has
    /// another cookie.
    stable: BTreeMap<Vec<u8>, u64>,
    listed: BTreeSet<Vec<u8>>,
}

/// The model beside the file system. It outlives the machines.
pub struct Oracle {
    /// The model now.
    now: MemFs,
    /// The model at the last point that no crash can lose.
    durable: MemFs,
    /// The changes between the two.
    changes: VecDeque<Change>,
    /// Number of changes since the last start that `durable` has.
    durable_count: u64,
    /// The model's id of each file seen since the last start, and the other way round.
    ids: BTreeMap<FileId, FileId>,
    known: BTreeMap<FileId, FileId>,
    handles: BTreeMap<Handle, Handle>,
    listings: BTreeMap<Handle, Listing>,
}

/// A model without times, whose root directory has this mode.
pub fn new_model(block_size: u32, root_mode: u32) -> MemFs {
    let model = MemFs::with_block_size(Arc::new(|| Time { sec: 0, nsec: 0 }), block_size);
    let set = SetAttr { mode: Some(root_mode), ..SetAttr::default() };
    drop(model.setattr(&Cred::ROOT, FileId::ROOT, None, set));
    model
}

/// A file's path, and the ranges in which it has data.
type Layout = (Vec<u8>, Vec<(u64, u64)>);

/// Everything that a file system shows.
pub struct Found {
    tree: Vec<TreeEntry>,
    layouts: Vec<Layout>,
}

impl Found {
    /// Reads everything that `fs` shows.
    pub async fn of(fs: &dyn FileSystem) -> Result<Self, FsError> {
        let tree = walk(fs).await?;
        let layouts = layouts(fs, &tree).await?;
        Ok(Found { tree, layouts })
    }
}

/// The ranges in which the files of `tree` have data.
async fn layouts(fs: &dyn FileSystem, tree: &[TreeEntry]) -> Result<Vec<Layout>, FsError> {
    let mut out = Vec::new();
    for TreeEntry { path, attr, .. } in tree.iter().filter(|entry| entry.attr.kind == Kind::File) {
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let handle = fs.open(&Cred::ROOT, attr.id, flags).await?;
        let (mut data, mut at) = (Vec::new(), 0);
        while at < attr.size {
            let start = match fs.lseek(attr.id, handle, at, Seek::Data).await {
                Ok(start) => start,
                Err(FsError::NoSuchAddress) => break,
                Err(e) => return Err(e),
            };
            at = fs.lseek(attr.id, handle, start, Seek::Hole).await?;
            data.push((start, at));
        }
        fs.release(attr.id, handle, None).await?;
        out.push((path.clone(), data));
    }
    Ok(out)
}

/// The model answers all requests of this module at once.
fn at_once<T>(answer: Answer<T>) -> Result<T, FsError> {
    match answer {
        Answer::Now(result) => result,
        Answer::Later(_) => Err(FsError::NoLocks),
    }
}

/// Both results if both succeeded, `None` if both were refused alike.
fn agreed<R: Debug, M: Debug>(real: &Result<R, FsError>, model: Result<M, FsError>) -> Result<Option<(&R, M)>, String> {
    match (real, model) {
        (Ok(real), Ok(model)) => Ok(Some((real, model))),
        (Err(real), Err(model)) if *real == model => Ok(None),
        (Ok(_), Err(model)) => Err(format!("succeeded, the model refuses with {model:?}")),
        (Err(real), Ok(_)) => Err(format!("was refused with {real:?}, the model succeeds")),
        (Err(real), Err(model)) => Err(format!("was refused with {real:?}, the model refuses with {model:?}")),
    }
}

fn equal<T: PartialEq>(what: &str, real: &T, model: &T, show: impl Fn(&T) -> String) -> Verdict {
    if real == model { Ok(()) } else { Err(format!("answered {what} {}, the model {}", show(real), show(model))) }
}

impl Oracle {
    /// An oracle whose durable state is `model`.
    pub fn new(model: &MemFs) -> Self {
        Oracle {
            now: model.snapshot(),
            durable: model.snapshot(),
            changes: VecDeque::new(),
            durable_count: 0,
            ids: BTreeMap::from([(FileId::ROOT, FileId::ROOT)]),
            known: BTreeMap::from([(FileId::ROOT, FileId::ROOT)]),
            handles: BTreeMap::new(),
            listings: BTreeMap::new(),
        }
    }

    /// The model's id of a file; an unused one for files that no answer has named.
    pub fn id(&self, real: FileId) -> FileId {
        self.ids.get(&real).copied().unwrap_or(FileId::new(u64::MAX))
    }

    /// The model's handle.
    pub fn handle(&self, real: Handle) -> Handle {
        self.handles.get(&real).copied().unwrap_or(Handle(u64::MAX))
    }

    /// Asks the model for something, without a change.
    pub fn ask<T>(&self, call: impl FnOnce(&MemFs) -> Answer<T>) -> Result<T, FsError> {
        at_once(call(&self.now))
    }

    /// Lets the model do an operation that the file system has just done.
    pub fn change<T>(
        &mut self,
        shows: bool,
        call: impl Fn(&MemFs) -> Answer<T> + Send + Sync + 'static,
    ) -> Result<T, FsError> {
        let result = at_once(call(&self.now));
        if result.is_ok() {
            self.changes.push_back(Change { apply: Box::new(move |model| drop(call(model))), shows });
        }
        result
    }

    /// The number of changes so far, for [`durable_up_to`](Self::durable_up_to).
    pub fn mark(&self) -> u64 {
        self.durable_count + self.changes.len() as u64
    }

    /// Makes the first `mark` changes durable: no crash can lose them any more.
    pub fn durable_up_to(&mut self, mark: u64) {
        while self.durable_count < mark
            && let Some(change) = self.changes.pop_front()
        {
            (change.apply)(&self.durable);
            self.durable_count += 1;
        }
    }

    /// Takes the tree that a start found, looks for the point at which the crash cut the changes,
    /// and goes on from there. Returns how many changes were durable, were found, and were made.
    pub async fn recover(&mut self, found: &Found) -> Result<(u64, u64, u64), String> {
        let (durable, made) = (self.durable_count, self.mark());
        let mut first = None;
        while let Some(text) = self.differs(found).await {
            first.get_or_insert_with(|| text.clone());
            loop {
                let shows = self.changes.front().map(|change| change.shows);
                self.durable_up_to(self.durable_count + 1);
                match shows {
                    Some(true) => break,
                    Some(false) => {}
                    None => {
                        return Err(format!(
                            "the recovered tree is that after no number of changes from {durable} (durable) to {made}; \
                             after the first of these (left: model): {}; after the last: {text}",
                            first.unwrap_or_default(),
                        ));
                    }
                }
            }
        }
        let found = self.durable_count;
        *self = Oracle::new(&self.durable);
        Ok((durable, found, made))
    }

    /// The difference between the durable state and the found one, if any.
    async fn differs(&self, found: &Found) -> Option<String> {
        let tree = self.durable.dump();
        if let Some(text) = difference(&tree, &found.tree) {
            return Some(text);
        }
        // This comes last, since it takes longer: compare zeroes and holes.
        let model = self.durable.snapshot();
        match layouts(&model, &tree).await {
            Ok(layouts) if layouts == found.layouts => None,
            Ok(layouts) => {
                let (at, _) = layouts.iter().zip(&found.layouts).find(|(model, found)| model != found)?;
                Some(format!("data and holes of {:?} differ", String::from_utf8_lossy(&at.0)))
            }
            Err(e) => Some(format!("the model's holes cannot be found: {e}")),
        }
    }

    fn learn(&mut self, real: FileId, model: FileId) -> Verdict {
        match (self.ids.get(&real), self.known.get(&model)) {
            (None, None) => {
                self.ids.insert(real, model);
                self.known.insert(model, real);
                Ok(())
            }
            (Some(m), Some(r)) if (*m, *r) == (model, real) => Ok(()),
            (m, r) => Err(format!("answered file {real}, the model {model}; they were {m:?} and {r:?} before")),
        }
    }

    fn same_attr(&mut self, real: &Attr, model: &Attr) -> Verdict {
        self.learn(real.id, model.id)?;
        let facts = |a: &Attr| {
            let size = if a.kind == Kind::Directory { 0 } else { a.size };
            (a.kind, a.mode, a.nlink, a.uid, a.gid, a.rdev, size)
        };
        equal("(kind, mode, nlink, uid, gid, rdev, size)", &facts(real), &facts(model), |f| format!("{f:?}"))
    }

    /// Compares answers that have attributes.
    pub fn same_entry(&mut self, real: &Result<Entry, FsError>, model: Result<Entry, FsError>) -> Verdict {
        match agreed(real, model)? {
            Some((real, model)) => self.same_attr(&real.attr, &model.attr),
            None => Ok(()),
        }
    }

    /// Compares answers that have a handle.
    pub fn same_handle(&mut self, real: &Result<Handle, FsError>, model: Result<Handle, FsError>) -> Verdict {
        if let Some((real, model)) = agreed(real, model)? {
            self.handles.insert(*real, model);
        }
        Ok(())
    }

    /// Compares answers that have attributes and a handle.
    pub fn same_created(
        &mut self,
        real: &Result<(Entry, Handle), FsError>,
        model: Result<(Entry, Handle), FsError>,
    ) -> Verdict {
        match agreed(real, model)? {
            Some(((entry, handle), (model_entry, model_handle))) => {
                self.handles.insert(*handle, model_handle);
                self.same_attr(&entry.attr, &model_entry.attr)
            }
            None => Ok(()),
        }
    }

    /// Compares answers that are bytes.
    pub fn same_bytes<B: AsRef<[u8]> + Debug, M: AsRef<[u8]> + Debug>(
        real: &Result<B, FsError>,
        model: Result<M, FsError>,
    ) -> Verdict {
        let Some((real, model)) = agreed(real, model)? else { return Ok(()) };
        let (real, model) = (real.as_ref(), model.as_ref());
        equal("bytes", &real.len(), &model.len(), usize::to_string)?;
        // Almost always so, and many times as fast as a look at each byte.
        if real == model {
            return Ok(());
        }
        match real.iter().zip(model).position(|(r, m)| r != m) {
            Some(at) => Err(format!("answered byte {:#x} at {at}, the model {:#x}", real[at], model[at])),
            None => Ok(()),
        }
    }

    /// Compares answers that need no translation.
    pub fn same<T: PartialEq + Debug>(real: &Result<T, FsError>, model: Result<T, FsError>) -> Verdict {
        match agreed(real, model)? {
            Some((real, model)) => equal("", real, &model, |value| format!("{value:?}")),
            None => Ok(()),
        }
    }

    /// Forgets a closed handle.
    pub fn closed(&mut self, handle: Handle) {
        self.handles.remove(&handle);
        self.listings.remove(&handle);
    }

    /// Compares a part of a listing. Every listed name must exist now, and none may come twice. In
    /// the end, every name that existed all the time must have been listed.
    pub fn same_listing(
        &mut self,
        (id, handle, cookie): (FileId, Handle, u64),
        real: &Result<Vec<DirEntry>, FsError>,
    ) -> Verdict {
        let (model_id, model_handle) = (self.id(id), self.handle(handle));
        let model = self.ask(|m| m.readdir(model_id, model_handle, 0, usize::MAX, true));
        let Some((entries, there)) = agreed(real, model)? else { return Ok(()) };
        let there: BTreeMap<Vec<u8>, DirEntry> = there.into_iter().map(|e| (e.name.clone(), e)).collect();
        let mut listing = self.listings.remove(&handle).unwrap_or_default();
        if cookie == 0 {
            let stable = there.values().map(|e| (e.name.clone(), e.cookie)).collect();
            listing = Listing { stable, listed: BTreeSet::new() };
        }
        listing.stable.retain(|name, cookie| there.get(name).is_some_and(|e| e.cookie == *cookie));
        for entry in entries {
            let shown = String::from_utf8_lossy(&entry.name);
            let Some(model) = there.get(&entry.name) else { return Err(format!("lists {shown}, which is not there")) };
            if !listing.listed.insert(entry.name.clone()) {
                return Err(format!("lists {shown} twice"));
            }
            self.learn(entry.id, model.id)?;
            equal("kind", &entry.kind, &model.kind, |kind| format!("{kind:?} of {shown}"))?;
            if let (Some(real), Some(model)) = (&entry.attr, &model.attr) {
                self.same_attr(real, model)?;
            }
        }
        if entries.is_empty()
            && let Some(name) = listing.stable.keys().find(|name| !listing.listed.contains(*name))
        {
            return Err(format!("never lists {}", String::from_utf8_lossy(name)));
        }
        self.listings.insert(handle, listing);
        Ok(())
    }
}
