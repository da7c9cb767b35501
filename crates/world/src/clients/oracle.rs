//! The right answers: those that some serial order of all calls gives on [`MemFs`].
//!
//! Calls of one round run at the same time. A call that ended before another one began comes before
//! it in every order. The oracle keeps all states that explain the answers so far.
//!
//! A crash of a client may lose what the client did last, if nobody has seen it and no fsync has
//! made it durable. So the oracle makes all calls since the last [`settled`](Oracle::settled) point
//! anew, without some of the client's last ones, and keeps the states in which all other answers
//! stay what they were. Attributes that another client looked at while the client was changing the
//! file may be lost with that. They must be right as if nothing was lost.

use super::call::{Answered, Call, OpenNumber, Seen, at_once, perform, shown};
pub use super::event::Event;
use super::lost::{left_of_round, left_of_rounds};
use super::nameless::{Nameless, release};
use super::ways::Ways;
use crate::oracle::new_model;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use types::{Attr, FileId, FsError, Kind};
use vfs::fs::{Handle, LockSpace, OpenFlags};
use vfs::locks::LockTable;
use vfs::mem::MemFs;
use vfs::tree::{TreeEntry, difference};

/// Most states kept. More than that mean that a round was too wild.
const STATES_MAX: usize = 400;

/// A file system that explains all answers.
struct State {
    fs: MemFs,
    /// The model's ids by the real ones.
    ids: BTreeMap<FileId, FileId>,
    /// The real ids by the model's.
    real: BTreeMap<FileId, FileId>,
    opens: BTreeMap<(usize, OpenNumber), (FileId, Handle)>,
    /// By the model's ids.
    locks: LockTable,
    nameless: Nameless,
    /// The targets of all symlinks that were made, by the model's ids.
    targets: BTreeMap<FileId, Vec<u8>>,
    /// By the model's ids.
    ways: Ways,
    /// Calls since `base`, each with its round, in the order of this state.
    done: Vec<(u64, Event)>,
    base: Option<Arc<Base>>,
    /// True if real kernels look at calls first.
    is_behind_kernels: bool,
}

/// What no crash undoes.
struct Base {
    /// Tells the bases of one time apart.
    number: usize,
    state: State,
}

/// An id that no file of a model has.
const NO_FILE: FileId = FileId::new(u64::MAX);

/// The owner of an open file's locks.
fn owner(client: usize, open: OpenNumber) -> u128 {
    (client as u128) << 64 | u128::from(open)
}

impl State {
    fn new(fs: MemFs) -> State {
        let root = BTreeMap::from([(FileId::ROOT, FileId::ROOT)]);
        State {
            fs,
            ids: root.clone(),
            real: root,
            opens: BTreeMap::new(),
            locks: LockTable::default(),
            nameless: Nameless::default(),
            targets: BTreeMap::new(),
            ways: Ways::default(),
            done: Vec::new(),
            base: None,
            is_behind_kernels: false,
        }
    }

    fn fork(&self) -> State {
        State {
            fs: self.fs.fork(),
            ids: self.ids.clone(),
            real: self.real.clone(),
            opens: self.opens.clone(),
            locks: self.locks.clone(),
            nameless: self.nameless.clone(),
            targets: self.targets.clone(),
            ways: self.ways.clone(),
            done: self.done.clone(),
            base: self.base.clone(),
            is_behind_kernels: self.is_behind_kernels,
        }
    }

    /// The call with the model's ids, and the open file that it uses.
    fn in_model(&self, client: usize, call: &Call) -> (Call, Option<(FileId, Handle)>) {
        let at = call.uses().and_then(|open| self.opens.get(&(client, open)).copied());
        (call.translated(|id| self.ids.get(&id).copied().unwrap_or(NO_FILE)), at)
    }

    fn perform(&mut self, client: usize, call: &Call) -> Answered {
        let (call, at) = self.in_model(client, call);
        if let Some(lock) = call.uses().and_then(|open| call.lock(owner(client, open))) {
            let (file, _) = at.ok_or(FsError::BadHandle)?;
            return self.locks.set(file, &lock, false).map(|_| Seen::Done);
        }
        at_once(perform(&self.fs, &call, at)).unwrap_or(Err(FsError::TimedOut))
    }

    /// Makes a call. An error says why its answer is wrong. Of files without a name that are open
    /// nowhere, the answer tells whether they are still there.
    fn step(&mut self, round: u64, event: &Event) -> Result<(), String> {
        let (call, _) = self.in_model(event.client, &event.call);
        let nameless: Vec<FileId> = call.files().into_iter().filter(|id| self.nameless.has(*id)).collect();
        if nameless.is_empty() {
            return self.make(round, event);
        }
        let (mut found, mut gone) = (self.fork(), self.fork());
        if found.make(round, event).is_ok() {
            *self = found;
            return Ok(());
        }
        nameless.iter().for_each(|id| gone.nameless.end(&gone.fs, *id));
        gone.make(round, event)?;
        match nameless.len() {
            1 => *self = gone,
            // One of them is gone. The call does not tell which one, and has changed nothing.
            _ => self.done.push((round, event.clone())),
        }
        Ok(())
    }

    /// True if the call changes nothing in this state: it shows attributes, names or contents.
    fn only_looks(&self, event: &Event) -> bool {
        let is_there = |id: &FileId| !self.ids.get(id).is_some_and(|id| self.nameless.has(*id));
        let call = &event.call;
        let is_look = !call.changes() && !call.closes() && call.opens().is_none();
        is_look && !matches!(call, Call::Lock { .. }) && call.files().iter().all(is_there)
    }

    /// Makes a call that finds all files that are in the model.
    fn make(&mut self, round: u64, event: &Event) -> Result<(), String> {
        let (call, at) = self.in_model(event.client, &event.call);
        let is_loop = matches!(event.answered, Some(Err(FsError::Loop)));
        if self.is_behind_kernels && is_loop && self.ways.may_loop(&self.fs, &call) {
            self.done.push((round, event.clone()));
            return Ok(());
        }
        let named = |id: FileId| self.real.get(&id).copied();
        let ends = self.nameless.ends(&self.fs, event.client, &call, at.map(|at| at.0), named);
        ends.into_iter().for_each(|id| self.nameless.keep(&self.fs, id));
        let model = self.perform(event.client, &event.call);
        if let Some(real) = &event.answered
            && !(self.is_behind_kernels && event.did_nothing(&model))
        {
            self.compare(&event.call, real, &model)?;
        }
        if model.is_ok() {
            self.ways.learn(&self.fs, &call);
        }
        match (&event.call, &model) {
            (_, Ok(Seen::Opened(handle))) | (_, Ok(Seen::Created(_, handle))) => {
                let file = match &model {
                    Ok(Seen::Created(entry, _)) => entry.attr.id,
                    _ => match call {
                        Call::Open { id, .. } | Call::OpenDirectory { id, .. } => id,
                        _ => NO_FILE,
                    },
                };
                if let Some(open) = event.call.opens() {
                    self.opens.insert((event.client, open), (file, *handle));
                    if let Some(named) = self.real.get(&file) {
                        self.nameless.opened(event.client, *named);
                    }
                    self.let_go_if_used(file);
                }
            }
            (Call::Symlink { target, .. }, Ok(Seen::Entry(entry))) => {
                self.targets.insert(entry.attr.id, target.clone().into_bytes());
            }
            (call, Ok(_)) if call.closes() => {
                if let Some(open) = call.uses() {
                    self.forget(event.client, open);
                }
            }
            _ => {}
        }
        ends.into_iter().for_each(|id| self.let_go_if_used(id));
        self.done.push((round, event.clone()));
        Ok(())
    }

    fn let_go_if_used(&mut self, id: FileId) {
        let is_open = self.opens.values().any(|(open, _)| *open == id);
        self.nameless.let_go_if_used(&self.fs, id, is_open);
    }

    fn compare(&mut self, call: &Call, real: &Answered, model: &Answered) -> Result<(), String> {
        match (real, model) {
            (Ok(real), Ok(model)) => self.same(real, model),
            (Err(real), Err(model)) if real == model => Ok(()),
            // The kernel may still know that a name is absent in a directory that is gone.
            (Err(FsError::NotFound), Err(FsError::Stale)) if matches!(call, Call::Lookup { .. }) => Ok(()),
            // A kernel looks at the new name before it asks for a link, and at the two names of a
            // rename one after the other.
            (Err(FsError::Exists), Err(FsError::NotFound | FsError::Stale))
                if self.is_behind_kernels && self.has_new_name(call) =>
            {
                Ok(())
            }
            (Err(real), Err(model)) if self.is_behind_kernels && refuses_first(call, *real, *model) => Ok(()),
            // A kernel still knows a file that is gone.
            (Ok(Seen::Entry(entry)), Err(FsError::Stale))
                if matches!(call, Call::Getattr { .. }) && entry.attr.nlink == 0 =>
            {
                match self.ids.get(&entry.attr.id).and_then(|id| self.nameless.last_known(*id)) {
                    Some(last) => self.same_attr(&entry.attr, &last),
                    None if self.is_behind_kernels => Ok(()),
                    None => Err(format!("answered {}, the model {}", shown(real), shown(model))),
                }
            }
            // A kernel still knows the target, which never changes, of a symlink that is gone.
            (Ok(Seen::Bytes(target)), Err(FsError::Stale)) if self.is_behind_kernels && self.may_lead(call, target) => {
                Ok(())
            }
            (real, model) => Err(format!("answered {}, the model {}", shown(real), shown(model))),
        }
    }

    /// True if the call reads a symlink, and this is its target.
    fn may_lead(&self, call: &Call, target: &[u8]) -> bool {
        let Call::ReadLink { id } = call else { return false };
        let known = self.ids.get(id).and_then(|id| self.targets.get(id));
        known.is_some_and(|known| known == target)
    }

    /// True if a link, or a rename that replaces nothing, is to get a name that is taken.
    fn has_new_name(&self, call: &Call) -> bool {
        let (dir, name) = match call {
            Call::Link { dir, name, .. } => (dir, name),
            Call::Rename { to_dir, to, flags, .. } if flags.no_replace => (to_dir, to),
            _ => return false,
        };
        let Some(dir) = self.ids.get(dir).copied() else { return false };
        let lookup = Call::Lookup { dir, name: name.clone() };
        matches!(at_once(perform(&self.fs, &lookup, None)), Some(Ok(_)))
    }

    fn same(&mut self, real: &Seen, model: &Seen) -> Result<(), String> {
        let is_same = match (real, model) {
            (Seen::Done, Seen::Done | Seen::Entry(_)) | (Seen::Opened(_), Seen::Opened(_)) => true,
            (Seen::File(real), Seen::Entry(model) | Seen::Created(model, _)) => {
                return self.same_id(*real, model.attr.id);
            }
            (Seen::Count(real), Seen::Appended(model)) => *real == model.count,
            (Seen::Entry(real), Seen::Entry(model)) | (Seen::Created(real, _), Seen::Created(model, _)) => {
                return self.same_attr(&real.attr, &model.attr);
            }
            (Seen::Bytes(real), Seen::Bytes(model)) => real == model,
            (Seen::Count(real), Seen::Count(model)) => real == model,
            (Seen::Appended(real), Seen::Appended(model)) => real == model,
            (Seen::Names(real), Seen::Names(model)) => real == model,
            (Seen::Listed(real), Seen::Listed(model)) => {
                if real.len() != model.len() {
                    let (real, model) = (Seen::Listed(real.clone()), Seen::Listed(model.clone()));
                    return Err(format!("listed {real}, the model {model}"));
                }
                for (real, model) in real.iter().zip(model) {
                    if (&real.name, real.kind) != (&model.name, model.kind) {
                        return Err(format!("listed {real:?}, the model {model:?}"));
                    }
                    self.same_id(real.id, model.id)?;
                    if let (Some(real), Some(model)) = (&real.attr, &model.attr) {
                        self.same_attr(real, model)?;
                    }
                }
                true
            }
            _ => false,
        };
        if is_same { Ok(()) } else { Err(format!("answered {real}, the model {model}")) }
    }

    fn same_id(&mut self, real: FileId, model: FileId) -> Result<(), String> {
        match (self.ids.get(&real), self.real.get(&model)) {
            (None, None) => {
                self.ids.insert(real, model);
                self.real.insert(model, real);
                Ok(())
            }
            (Some(m), Some(r)) if (*m, *r) == (model, real) => Ok(()),
            (m, r) => Err(format!("answered file {real}, the model {model}; they were {m:?} and {r:?} before")),
        }
    }

    fn same_attr(&mut self, real: &Attr, model: &Attr) -> Result<(), String> {
        self.same_id(real.id, model.id)?;
        let facts = |a: &Attr| {
            let size = if a.kind == Kind::Directory { 0 } else { a.size };
            (a.kind, a.mode, a.nlink, a.uid, a.gid, a.rdev, size)
        };
        match facts(real) == facts(model) {
            true => Ok(()),
            false => Err(format!("answered {:?} of {}, the model {:?}", facts(real), real.id, facts(model))),
        }
    }

    /// How many calls were made, besides looks at attributes of files, which may be left out.
    fn made(&self) -> usize {
        self.done.iter().filter(|(_, event)| !event.looks_at_file()).count()
    }

    /// Ends all handles of a client.
    fn close_all(&mut self, client: usize) {
        let opens = self.opens.clone();
        for (&(owner, number), &(id, handle)) in opens.iter().filter(|((owner, _), _)| *owner == client) {
            self.nameless.keep(&self.fs, id);
            release(&self.fs, id, handle);
            self.forget(owner, number);
            self.let_go_if_used(id);
        }
    }

    /// Forgets an open file, and drops its locks.
    fn forget(&mut self, client: usize, open: OpenNumber) {
        if let Some((file, _)) = self.opens.remove(&(client, open)) {
            self.locks.release_owner(file, LockSpace::Mixed, owner(client, open));
        }
    }

    /// All states after these calls, in each order that explains their answers.
    fn replayed(self, calls: &[(u64, Event)]) -> Vec<State> {
        let mut states = vec![self];
        for of_round in calls.chunk_by(|(one, _), (other, _)| one == other) {
            let events: Vec<Event> = of_round.iter().map(|(_, event)| event.clone()).collect();
            let mut found = BTreeMap::new();
            for state in &states {
                orders(state, of_round[0].0, &events, None, None, &mut found, &mut BTreeSet::new());
            }
            states = found.into_values().collect();
        }
        states
    }

    /// A hash of everything that programs can see, and of what a crash may bring back.
    fn fingerprint(&self) -> u64 {
        let copy = State { base: None, done: Vec::new(), ..self.fork() };
        let name_of = |id: FileId| self.real.get(&id).map_or((1, id.raw()), |real| (0, real.raw()));
        let mut hash = DefaultHasher::new();
        self.base.as_ref().map(|base| base.number).hash(&mut hash);
        let open = |id, open, flags| at_once(perform(&copy.fs, &Call::Open { id, open, flags }, None));
        for (&real, &id) in &self.ids {
            let Some(Ok(Seen::Entry(entry))) = at_once(perform(&copy.fs, &Call::Getattr { id }, None)) else {
                continue;
            };
            let a = entry.attr;
            (real.raw(), a.mode, a.nlink, a.uid, a.gid, a.size).hash(&mut hash);
            if let Some(Ok(Seen::Names(names))) = at_once(perform(&copy.fs, &Call::ListXattr { id }, None)) {
                for name in names {
                    let value = at_once(perform(
                        &copy.fs,
                        &Call::GetXattr { id, name: String::from_utf8_lossy(&name).into() },
                        None,
                    ));
                    if let Some(Ok(Seen::Bytes(value))) = value {
                        (name, value).hash(&mut hash);
                    }
                }
            }
            let flags = OpenFlags { read: true, ..Default::default() };
            match a.kind {
                Kind::File => {
                    if let Some(Ok(Seen::Opened(handle))) = open(id, 0, flags) {
                        let read = Call::Read { open: 0, offset: 0, len: u32::MAX };
                        if let Some(Ok(Seen::Bytes(bytes))) = at_once(perform(&copy.fs, &read, Some((id, handle)))) {
                            bytes.hash(&mut hash);
                        }
                    }
                }
                Kind::Directory => {
                    let opened = at_once(perform(&copy.fs, &Call::OpenDirectory { id, open: 0 }, None));
                    if let Some(Ok(Seen::Opened(handle))) = opened {
                        let list = Call::List { open: 0, plus: false };
                        if let Some(Ok(Seen::Listed(list))) = at_once(perform(&copy.fs, &list, Some((id, handle)))) {
                            list.iter().for_each(|e| (&e.name, name_of(e.id)).hash(&mut hash));
                        }
                    }
                }
                _ => {}
            }
        }
        for (open, (id, _)) in &self.opens {
            (open, name_of(*id)).hash(&mut hash);
        }
        for (id, lock) in self.locks.all_held() {
            (name_of(id), lock.owner, lock.exclusive, lock.start, lock.end).hash(&mut hash);
        }
        hash.finish()
    }

    /// Compares with a tree that was read, and learns the ids of its files.
    fn agrees_with(&mut self, tree: &[TreeEntry]) -> Result<(), String> {
        let model = self.fs.dump();
        if let Some(what) = difference(&model, tree) {
            return Err(what);
        }
        let pairs = model.iter().zip(tree).map(|(model, real)| (real.attr.id, model.attr.id));
        pairs.collect::<Vec<_>>().into_iter().try_for_each(|(real, model)| self.same_id(real, model))
    }
}

/// A file that some state has.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Its id.
    pub id: FileId,
    /// What it is.
    pub kind: Kind,
    /// How many names it has.
    pub nlink: u32,
}

/// All states that explain the answers so far.
pub struct Oracle {
    states: Vec<State>,
    round: u64,
}

impl Oracle {
    /// The oracle of a file system in which nothing is yet.
    pub fn new(block_size: u32, root_mode: u32) -> Oracle {
        let state = State::new(new_model(block_size, root_mode));
        let mut oracle = Oracle { states: vec![state], round: 0 };
        oracle.begin_anew();
        oracle
    }

    /// The oracle of calls that real kernels look at first. A kernel refuses to link a
    /// directory, and to move one where it cannot be by what that kernel knows, before it asks.
    pub fn behind_kernels(mut self) -> Oracle {
        self.states.iter_mut().for_each(|state| state.is_behind_kernels = true);
        self.begin_anew();
        self
    }

    /// How many states explain the answers.
    pub fn state_count(&self) -> usize {
        self.states.len()
    }

    /// Takes the calls of one round in. An error says why no order explains them.
    pub fn round(&mut self, events: &[Event]) -> Result<(), String> {
        let events = &with_races(events)[..];
        self.round += 1;
        let mut found: BTreeMap<u64, State> = BTreeMap::new();
        let mut why = BTreeSet::new();
        for state in &self.states {
            orders(state, self.round, events, None, None, &mut found, &mut why);
        }
        if found.is_empty() {
            let events: Vec<String> = events.iter().map(Event::to_string).collect();
            return Err(format!("no order explains the answers of {events:#?}: {why:#?}"));
        }
        if found.len() > STATES_MAX {
            return Err(format!("{} states explain the answers: the world is too wild", found.len()));
        }
        self.states = found.into_values().collect();
        Ok(())
    }

    /// The files that the first state has, of those that answers have named.
    pub fn files(&self) -> Vec<Known> {
        let Some(state) = self.states.first() else { return Vec::new() };
        let known = |(&id, &model): (&FileId, &FileId)| {
            let Some(Ok(Seen::Entry(e))) = at_once(perform(&state.fs, &Call::Getattr { id: model }, None)) else {
                return None;
            };
            Some(Known { id, kind: e.attr.kind, nlink: e.attr.nlink })
        };
        state.ids.iter().filter_map(known).collect()
    }

    /// Takes in that all clients' changes are durable, and that this is the tree.
    pub fn settled(&mut self, tree: &[TreeEntry]) -> Result<(), String> {
        self.keep_those_with(tree)?;
        self.begin_anew();
        Ok(())
    }

    fn keep_those_with(&mut self, tree: &[TreeEntry]) -> Result<(), String> {
        let mut why = BTreeSet::new();
        self.states.retain_mut(|state| match state.agrees_with(tree) {
            Ok(()) => true,
            Err(what) => {
                why.insert(what);
                false
            }
        });
        match self.states.is_empty() {
            true => Err(format!("no state has the tree that was read (left: model): {why:#?}")),
            false => Ok(()),
        }
    }

    /// No crash loses anything of what was done up to now.
    pub fn begin_anew(&mut self) {
        let mut anew = BTreeMap::new();
        for state in std::mem::take(&mut self.states) {
            let state = State { base: None, done: Vec::new(), ..state };
            anew.entry(state.fingerprint()).or_insert(state);
        }
        for (number, mut state) in anew.into_values().enumerate() {
            state.base = Some(Arc::new(Base { number, state: state.fork() }));
            self.states.push(state);
        }
    }

    /// Takes in the calls of a round in which a client crashed and its log was rolled forward, and
    /// the tree that was found afterwards. True if calls of the client were lost for sure.
    pub fn crashed(&mut self, client: usize, events: &[Event], tree: &[TreeEntry]) -> Result<bool, String> {
        let events = with_races(events);
        self.round += 1;
        let is_behind_kernels = self.states.first().is_some_and(|state| state.is_behind_kernels);
        let may_be_lost = |&at: &usize| {
            events[at].may_glimpse_at(client, is_behind_kernels)
                && self.states.iter().any(|state| may_see(state, self.round, &without(&events, at), &events[at]))
        };
        let left = (0..events.len()).filter(|at| !may_be_lost(at));
        let events = &left.map(|at| events[at].clone()).collect::<Vec<_>>()[..];
        let made = self.states.iter().map(State::made).min().unwrap_or(0);
        let all_others = events.iter().filter(|event| event.client != client && !event.looks_at_file()).count();
        let mut why = BTreeSet::new();
        let found = self.after_loss(client, events, &mut why);
        let fits = found.into_iter().filter_map(|mut state| match state.agrees_with(tree) {
            Ok(()) => Some(state),
            Err(what) => {
                why.insert(format!("{what} (left: model)"));
                None
            }
        });
        let states: Vec<State> = fits.collect();
        if states.is_empty() {
            let events: Vec<String> = events.iter().map(Event::to_string).collect();
            return Err(format!("no loss and no order explain the answers of {events:#?}, and the tree: {why:#?}"));
        }
        self.states = states;
        Ok(self.states.iter().all(|state| state.made() < made + all_others))
    }

    /// All states after a crash of a client and the calls of its round, whatever it has lost.
    /// States that differ only in the order of calls that led there are one state. Without some of
    /// the calls, the orders differ. So what is left is made anew in each order.
    fn after_loss(&self, client: usize, events: &[Event], why: &mut BTreeSet<String>) -> Vec<State> {
        let is_behind_kernels = self.states.first().is_some_and(|state| state.is_behind_kernels);
        let others: Vec<Event> = events.iter().filter(|event| event.client != client).cloned().collect();
        let (end, mut found) = (End::of(client, events), BTreeMap::new());
        for state in &self.states {
            let Some(base) = &state.base else { continue };
            for kept in left_of_rounds(&state.done, client) {
                let is_whole = kept.len() == state.done.len();
                if !is_whole && events.iter().any(|event| event.has_synced(client)) {
                    continue;
                }
                let kept: Vec<_> = kept
                    .into_iter()
                    .filter(|(_, event)| is_whole || !event.may_glimpse_at(client, is_behind_kernels))
                    .collect();
                let mut before = State { base: Some(base.clone()), ..base.state.fork() };
                before.nameless.know_opened_of(&state.nameless);
                for state in before.replayed(&kept) {
                    let left = if is_whole { left_of_round(events, client) } else { vec![others.clone()] };
                    for events in left {
                        orders(&state, self.round, &events, None, Some(end), &mut found, why);
                    }
                }
            }
        }
        found.into_values().collect()
    }

    /// Takes in that a client closed everything.
    pub fn close_all(&mut self, client: usize) {
        self.states.iter_mut().for_each(|state| state.close_all(client));
    }

    /// Takes in that everything starts again, when everything is closed and durable. A start
    /// removes all files without a name.
    pub fn start_again(&mut self) {
        self.states.iter_mut().for_each(|state| state.nameless.end_all(&state.fs));
        self.begin_anew();
    }
}

/// The events, with what raced with what.
fn with_races(events: &[Event]) -> Vec<Event> {
    let race = |event: &Event, other: &Event| {
        other.client != event.client
            && matches!(other.call, Call::Rename { .. })
            && (other.began <= event.ended && event.began <= other.ended)
    };
    let is_raced = |event: &Event| events.iter().any(|other| race(event, other));
    events.iter().map(|event| Event { is_raced: is_raced(event), ..event.clone() }).collect()
}

/// True if a kernel may give this error where the file system would give another one.
fn refuses_first(call: &Call, real: FsError, model: FsError) -> bool {
    use FsError::{InvalidArgument, IsADirectory, NoSuchXattr, NotADirectory, NotEmpty, NotFound};
    use FsError::{NotPermitted, NotSupported, Stale};
    let is_gone = |error| matches!(error, NotFound | Stale);
    match call {
        Call::Rename { .. } => {
            let is_of_place = |error| matches!(error, InvalidArgument | IsADirectory | NotADirectory | NotEmpty);
            let is_either = |error| is_of_place(error) || is_gone(error);
            is_either(real) && is_either(model)
        }
        Call::Link { .. } => (real == NotPermitted || is_gone(real)) && is_gone(model),
        // What symlinks cannot have.
        Call::Mode { .. } | Call::SetXattr { .. } | Call::GetXattr { .. } | Call::RemoveXattr { .. } => {
            (matches!(real, NotPermitted | NotSupported | NoSuchXattr) || is_gone(real)) && is_gone(model)
        }
        _ => is_gone(real) && is_gone(model),
    }
}

/// The end of all handles of a client that has crashed. Calls of others may come before and after.
#[derive(Clone, Copy)]
struct End {
    client: usize,
    /// It did not come before this time.
    began: Duration,
}

impl End {
    /// The end of a client that has made calls among these in the round of its crash.
    fn of(client: usize, events: &[Event]) -> End {
        let lived = |event: &Event| if event.answered.is_some() { event.ended } else { event.began };
        let began = events.iter().filter(|event| event.client == client).map(lived).max();
        End { client, began: began.unwrap_or_default() }
    }

    /// True if it may be next, before these events.
    fn may_be_next(&self, events: &[Event]) -> bool {
        events.iter().all(|event| event.client != self.client && event.ended >= self.began)
    }
}

/// True if a call may have had its answer in the midst of these calls, before any of them was lost.
fn may_see(state: &State, round: u64, events: &[Event], glimpse: &Event) -> bool {
    let is_next = |event: &Event| !events.iter().any(|other| other.ends_before(event));
    if is_next(glimpse) && state.fork().step(round, glimpse).is_ok() {
        return true;
    }
    (0..events.len()).any(|at| {
        let event = &events[at];
        if !is_next(event) || glimpse.ends_before(event) {
            return false;
        }
        let mut next = state.fork();
        // Only what the call did counts. Its answer may belong to what came after the loss.
        let unanswered = Event { answered: None, ..event.clone() };
        next.step(round, &unanswered).is_ok() && may_see(&next, round, &without(events, at), glimpse)
    })
}

/// All of the events but one.
fn without(events: &[Event], at: usize) -> Vec<Event> {
    [&events[..at], &events[at + 1..]].concat()
}

/// Finds all states after the events, and after the end of a client, in some order. `last` is the
/// event before them, if it has changed nothing.
fn orders(
    state: &State,
    round: u64,
    events: &[Event],
    last: Option<&Event>,
    end: Option<End>,
    found: &mut BTreeMap<u64, State>,
    why: &mut BTreeSet<String>,
) {
    if events.is_empty() && end.is_none() {
        let known = state.fork();
        found.entry(known.fingerprint()).or_insert(known);
    }
    if let Some(end) = end
        && end.may_be_next(events)
    {
        let mut next = state.fork();
        next.close_all(end.client);
        orders(&next, round, events, None, None, found, why);
    }
    for (at, event) in events.iter().enumerate() {
        if events.iter().any(|other| other.ends_before(event)) {
            continue;
        }
        let looks = state.only_looks(event);
        // The other order of two looks leads to the same state, and is tried, too.
        if looks && last.is_some_and(|last| (event.began, event.client) < (last.began, last.client)) {
            continue;
        }
        let mut next = state.fork();
        match next.step(round, event) {
            Ok(()) => {
                let last = Some(event).filter(|_| looks);
                orders(&next, round, &without(events, at), last, end, found, why);
            }
            Err(what) => {
                why.insert(format!("{:?} of client {} {what}", event.call, event.client));
            }
        }
        let mut before = state.done.iter().filter(|(of, _)| *of == round);
        if state.is_behind_kernels && before.any(|(_, other)| event.may_skip_after(other)) {
            orders(state, round, &without(events, at), None, end, found, why);
        }
    }
}

#[cfg(test)]
mod tests;
