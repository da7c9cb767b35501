//! A model of the kernel between the programs of one machine and its client. It caches names and
//! attributes for as long as answers say, and listings until it is told to forget them. An answer
//! takes a while to reach it.

use super::call::{Answered, Call, Seen, perform};
use super::wire::Session;
use client::Client;
use manager::planted::{self, Bug};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::watch;
use types::{Attr, BoxFuture, FileId, FsError, Time};
use vfs::fs::{DirEntry, Entry, FileSystem, Handle};
use vfs::kernel::{Kernel, Recalled};

/// What the kernel has in memory.
#[derive(Default)]
struct Cache {
    /// Also names that do not exist.
    names: HashMap<(FileId, String), (Option<FileId>, Duration)>,
    attributes: HashMap<FileId, (Attr, Duration)>,
    /// Listings without attributes, each with when its directory had last changed.
    listings: HashMap<FileId, (Seen, Time)>,
    /// Answers on their way to the kernel.
    under_way: BTreeSet<u64>,
    last_answer: u64,
    /// Requests of this machine's programs that change something and have not ended.
    changing: u64,
    /// Such requests that have ended.
    changed: u64,
    opens: HashMap<u64, (FileId, Handle)>,
    /// Reads of this machine's programs that have begun, and those that have ended.
    reads: u64,
    /// Files that programs have read since the kernel learned their attributes. It asks for their
    /// access times if a program wants to know them, as Linux does.
    read: HashSet<FileId>,
}

/// What a kernel has answered.
pub(super) struct Performed {
    pub(super) answered: Answered,
    /// False if the access times in it are of a time before programs of this machine read the file.
    pub(super) shows_access_time: bool,
}

/// A kernel. Clones are the same kernel.
#[derive(Clone)]
pub(super) struct Mount {
    client: Client,
    clock: Arc<dyn host::Clock>,
    /// How long attributes in a listing are valid.
    lease: Duration,
    memory: Arc<Memory>,
}

/// The part of a kernel that its client knows.
struct Memory {
    session: Arc<Session>,
    cache: Mutex<Cache>,
    delivered: watch::Sender<u64>,
    cache_hits: AtomicU64,
}

impl Mount {
    pub(super) fn new(client: Client, session: Arc<Session>, clock: Arc<dyn host::Clock>, lease: Duration) -> Mount {
        let (cache, delivered, cache_hits) = (Mutex::default(), watch::Sender::new(0), AtomicU64::new(0));
        let memory = Arc::new(Memory { session, cache, delivered, cache_hits });
        client.set_kernel(Arc::new(Forgetter(memory.clone())));
        Mount { client, clock, lease, memory }
    }

    /// Makes a call for a program of this machine.
    pub(super) async fn perform(&self, call: Call) -> Performed {
        if let Some(performed) = self.cached(&call) {
            self.memory.cache_hits.fetch_add(1, SeqCst);
            return performed;
        }
        self.memory.session.delay().await;
        let (at, changed, reads) = {
            let cache = &mut *self.memory.cache.lock();
            cache.changing += u64::from(call.changes());
            let at = call.uses().and_then(|open| cache.opens.get(&open).copied());
            cache.reads_file(&call, at);
            (at, cache.changed, cache.reads)
        };
        let answered = perform(&self.client, &call, at).await;
        let absence = self.client.absence_valid();
        let number = {
            let cache = &mut *self.memory.cache.lock();
            cache.last_answer += 1;
            cache.under_way.insert(cache.last_answer);
            cache.last_answer
        };
        let computed = self.clock.now();
        self.memory.session.delay().await;
        {
            let cache = &mut *self.memory.cache.lock();
            cache.under_way.remove(&number);
            if call.changes() {
                cache.changing -= 1;
                cache.changed += 1;
                cache.forget_what_changes(&call, at);
            }
            if cache.changing == 0 && cache.changed == changed + u64::from(call.changes()) {
                cache.learn(&call, &answered, computed, [absence, self.lease]);
                cache.learn_listing(&call, &answered, at);
                for attr in shown(&answered) {
                    // An answer to an earlier question may have older access times than the last.
                    let _ = match cache.reads == reads {
                        true => cache.read.remove(&attr.id),
                        false => cache.read.insert(attr.id),
                    };
                }
            }
            cache.reads_file(&call, at);
            cache.keep_handle(&call, &answered);
        }
        self.memory.delivered.send_modify(|count| *count += 1);
        Performed { answered, shows_access_time: true }
    }

    /// The answer from memory, if the kernel has it.
    fn cached(&self, call: &Call) -> Option<Performed> {
        let performed = |answered, shows_access_time| Performed { answered, shows_access_time };
        let (cache, now) = (self.memory.cache.lock(), self.clock.now());
        if cache.changing > 0 {
            return None;
        }
        let id = match call {
            Call::List { open, plus: false } => {
                let (dir, _) = cache.opens.get(open)?;
                let (listing, time) = cache.listings.get(dir)?;
                let (attr, until) = cache.attributes.get(dir)?;
                return (now < *until && attr.mtime == *time).then(|| performed(Ok(listing.clone()), false));
            }
            Call::Getattr { id } => *id,
            Call::Lookup { dir, name } => {
                let (id, until) = cache.names.get(&(*dir, name.clone()))?;
                if now >= *until {
                    return None;
                }
                match id {
                    Some(id) => *id,
                    None => return Some(performed(Err(FsError::NotFound), false)),
                }
            }
            _ => return None,
        };
        let (attr, until) = cache.attributes.get(&id)?;
        let entry = Entry::new(*attr, until.saturating_sub(now));
        (now < *until).then(|| performed(Ok(Seen::Entry(entry)), !cache.read.contains(&id)))
    }
}

/// The attributes that an answer shows.
pub(super) fn shown(answered: &Answered) -> impl Iterator<Item = &Attr> {
    let (one, many): (Option<&Attr>, &[DirEntry]) = match answered {
        Ok(Seen::Entry(entry) | Seen::Created(entry, _)) => (Some(&entry.attr), &[]),
        Ok(Seen::Listed(entries)) => (None, entries),
        _ => (None, &[]),
    };
    one.into_iter().chain(many.iter().filter_map(|entry| entry.attr.as_ref()))
}

impl Cache {
    /// Notes the beginning or the end of a call that may change a file's access time.
    fn reads_file(&mut self, call: &Call, at: Option<(FileId, Handle)>) {
        let file = match call {
            Call::Read { .. } | Call::List { .. } => at.map(|(id, _)| id),
            Call::ReadLink { id } => Some(*id),
            _ => None,
        };
        if let Some(id) = file {
            self.reads += 1;
            self.read.insert(id);
        }
    }

    fn keep_handle(&mut self, call: &Call, answered: &Answered) {
        let opened = match (call, answered) {
            (_, Ok(Seen::Created(entry, handle))) => Some((entry.attr.id, *handle)),
            (Call::Open { id, .. } | Call::OpenDirectory { id, .. }, Ok(Seen::Opened(handle))) => Some((*id, *handle)),
            _ => None,
        };
        if let (Some(open), Some(opened)) = (call.opens(), opened) {
            self.opens.insert(open, opened);
        }
        if call.closes()
            && let Some(open) = call.uses()
        {
            self.opens.remove(&open);
        }
    }

    /// Learns names and attributes from an answer. `valid` says how long absent names and
    /// attributes in listings may be kept.
    fn learn(&mut self, call: &Call, answered: &Answered, computed: Duration, valid: [Duration; 2]) {
        let [absence, listed] = valid;
        let mut name_of = |dir: &FileId, name: &String, id: Option<FileId>, valid: Duration| {
            self.names.insert((*dir, name.clone()), (id, computed + valid));
        };
        match (call, answered) {
            (Call::Lookup { dir, name }, Err(FsError::NotFound)) => name_of(dir, name, None, absence),
            (
                Call::Lookup { dir, name }
                | Call::MakeDirectory { dir, name }
                | Call::Symlink { dir, name, .. }
                | Call::Link { dir, name, .. }
                | Call::Create { dir, name, .. },
                Ok(Seen::Entry(entry) | Seen::Created(entry, _)),
            ) => {
                name_of(dir, name, Some(entry.attr.id), entry.name_valid);
                self.attributes.insert(entry.attr.id, (entry.attr, computed + entry.valid));
            }
            (_, Ok(Seen::Entry(entry))) => {
                self.attributes.insert(entry.attr.id, (entry.attr, computed + entry.valid));
            }
            (Call::List { plus: true, .. }, Ok(Seen::Listed(entries))) => {
                for attr in entries.iter().filter_map(|entry| entry.attr) {
                    self.attributes.insert(attr.id, (attr, computed + listed));
                }
            }
            _ => {}
        }
    }

    /// Keeps a listing if the kernel knows when its directory has last changed.
    fn learn_listing(&mut self, call: &Call, answered: &Answered, at: Option<(FileId, Handle)>) {
        if let (Call::List { plus: false, .. }, Ok(listing), Some((dir, _))) = (call, answered, at)
            && let Some((attr, _)) = self.attributes.get(&dir)
        {
            self.listings.insert(dir, (listing.clone(), attr.mtime));
        }
    }

    /// Forgets what a request of this machine has changed, as the kernel does by itself.
    fn forget_what_changes(&mut self, call: &Call, at: Option<(FileId, Handle)>) {
        let mut names = Vec::new();
        match call {
            Call::Create { dir, name, .. }
            | Call::MakeDirectory { dir, name }
            | Call::Symlink { dir, name, .. }
            | Call::Unlink { dir, name }
            | Call::RemoveDirectory { dir, name } => names.push((*dir, name)),
            Call::Link { id, dir, name } => {
                self.attributes.remove(id);
                names.push((*dir, name));
            }
            Call::Rename { dir, name, to_dir, to, .. } => names.extend([(*dir, name), (*to_dir, to)]),
            Call::Truncate { id, .. }
            | Call::Mode { id, .. }
            | Call::SetXattr { id, .. }
            | Call::RemoveXattr { id, .. }
            | Call::Open { id, .. } => drop(self.attributes.remove(id)),
            _ => {
                if let Some((id, _)) = at {
                    self.attributes.remove(&id);
                }
            }
        }
        for (dir, name) in names {
            self.attributes.remove(&dir);
            self.listings.remove(&dir);
            match self.names.remove(&(dir, name.clone())) {
                Some((Some(id), _)) => {
                    self.attributes.remove(&id);
                    // A directory that is removed takes all names in it with it.
                    self.names.retain(|(dir, _), _| *dir != id);
                }
                Some((None, _)) => {}
                // A program knows the name; the model of the kernel does not.
                None => {
                    self.attributes.clear();
                    self.names.clear();
                }
            }
        }
    }
}

/// Makes a kernel forget.
struct Forgetter(Arc<Memory>);

impl Kernel for Forgetter {
    fn forget(&self, what: Recalled) -> BoxFuture<()> {
        let Recalled { files, names } = what;
        let (memory, mut before) = (self.0.clone(), self.0.cache.lock().under_way.clone());
        if planted::is(Bug::KernelForgetsBeforeAnswers) {
            before.clear();
        }
        Box::pin(async move {
            let mut delivered = memory.delivered.subscribe();
            loop {
                delivered.borrow_and_update();
                if memory.cache.lock().under_way.is_disjoint(&before) {
                    break;
                }
                // The sender lives as long as the kernel.
                let _ = delivered.changed().await;
            }
            memory.session.delay().await;
            let cache = &mut *memory.cache.lock();
            cache.attributes.retain(|file, _| !files.contains(file));
            cache.listings.retain(|directory, _| !files.contains(directory));
            if names {
                cache.names.clear();
            }
        })
    }
}

impl Mount {
    /// The numbers of all open files.
    pub(super) fn opens(&self) -> Vec<(u64, FileId)> {
        let mut opens: Vec<_> = self.memory.cache.lock().opens.iter().map(|(number, (id, _))| (*number, *id)).collect();
        opens.sort_unstable();
        opens
    }

    /// Programs have read all files of this machine's client without this kernel.
    pub(super) fn has_read_all(&self) {
        let cache = &mut *self.memory.cache.lock();
        cache.read.extend(cache.attributes.keys());
    }

    /// How many calls it has answered from memory.
    pub(super) fn cache_hits(&self) -> u64 {
        self.memory.cache_hits.load(SeqCst)
    }

    /// The client under it.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }
}
