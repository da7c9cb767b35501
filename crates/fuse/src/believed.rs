//! Which directories the kernel of a shared mount may believe to have a name. Pure, but for a lock.
//!
//! The kernel looks a name up before it sends RMDIR, or RENAME over the name. Another node may give
//! the name to another directory before the file system reads the request. Were the request to
//! succeed, the kernel would take the directory that it had found for removed (S_DEAD), for good,
//! and make nothing in it any more. So the file system [asks](Believed::may_end) before it ends a
//! directory. When the answer is no, it fails with ESTALE. The kernel then asks for the names once
//! more, and tries again; programs see no error (fs/namei.c, `retry_estale`).
//!
//! A name's *candidates* are the directories that the kernel was told for it. The kernel believes
//! in one of them, or in none:
//!
//! - A later answer does not replace earlier ones. The kernel may have asked only to check what it
//!   knew, while a removal was under way; it then forgets what it was told at once, with FORGET.
//! - A directory is no candidate any more once the kernel has forgotten its inode. The removal that
//!   is under way holds it.
//! - Requests that change names hold their directories' locks. So one at most is under way for each
//!   name, and all that the kernel believes then, it was told before the request. The answers to it
//!   change the candidates as they change what the kernel believes.
//! - When a removal was refused, its name has no candidates until the kernel is told some.
//!
//! Too many candidates cost one more attempt, so answers that arrive out of order do no harm.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use types::{FileId, FsError};

/// Most names of which one directory is a candidate. The kernel has a directory under one name at a
/// time, and moves it as it learns. So of the names told, the oldest are those that it has left.
const NAMES_MAX: usize = 8;

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Place {
    parent: FileId,
    name: Arc<[u8]>,
}

impl Place {
    pub(crate) fn new(parent: FileId, name: &[u8]) -> Place {
        Place { parent, name: name.into() }
    }
}

/// A change of names that the kernel asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// A directory loses its name.
    Remove(Place),
    /// What has the first name gets the second one.
    Rename(Place, Place),
    /// Two names are exchanged.
    Exchange(Place, Place),
}

impl Change {
    /// The name whose directory ends.
    fn ends(&self) -> Option<&Place> {
        match self {
            Change::Remove(place) | Change::Rename(_, place) => Some(place),
            Change::Exchange(..) => None,
        }
    }
}

/// A directory that the kernel knows.
#[derive(Default)]
struct Known {
    /// How many times the kernel was told, minus those that it has forgotten.
    count: u64,
    /// The names of which it is a candidate, the newest one last.
    places: Vec<Place>,
}

/// A request under way that may end a directory.
struct Ending {
    /// What the kernel may have believed when it sent the request.
    candidates: Vec<FileId>,
    is_refused: bool,
}

#[derive(Default)]
struct Beliefs {
    /// The candidates, by directory and name. No list is empty.
    candidates: HashMap<FileId, HashMap<Arc<[u8]>, Vec<FileId>>>,
    known: HashMap<FileId, Known>,
    /// Requests under way, by the name whose directory they end; only those of names that had
    /// candidates.
    ending: HashMap<Place, Ending>,
}

impl Beliefs {
    fn told(&mut self, parent: FileId, name: &[u8], directory: FileId) {
        let known = self.known.entry(directory).or_default();
        known.count += 1;
        if known.places.iter().any(|place| place.parent == parent && *place.name == *name) {
            return;
        }
        let place = Place::new(parent, name);
        let oldest = (known.places.len() == NAMES_MAX).then(|| known.places.remove(0));
        known.places.push(place.clone());
        self.candidates.entry(parent).or_default().entry(place.name).or_default().push(directory);
        if let Some(oldest) = oldest {
            self.drop_candidate(&oldest, directory);
        }
    }

    fn drop_candidate(&mut self, place: &Place, directory: FileId) {
        let Entry::Occupied(mut names) = self.candidates.entry(place.parent) else { return };
        if let Some(candidates) = names.get_mut().get_mut(&place.name) {
            candidates.retain(|candidate| *candidate != directory);
            if candidates.is_empty() {
                names.get_mut().remove(&place.name);
            }
        }
        if names.get().is_empty() {
            names.remove();
        }
    }

    /// Takes all candidates of a name.
    fn take(&mut self, place: &Place) -> Vec<FileId> {
        let Entry::Occupied(mut names) = self.candidates.entry(place.parent) else { return Vec::new() };
        let taken = names.get_mut().remove(&place.name).unwrap_or_default();
        if names.get().is_empty() {
            names.remove();
        }
        self.leave(&taken, place);
        taken
    }

    /// Notes that directories are no candidates for a name.
    fn leave(&mut self, directories: &[FileId], place: &Place) {
        for directory in directories {
            if let Some(known) = self.known.get_mut(directory) {
                known.places.retain(|other| other != place);
            }
        }
    }

    /// Gives a name without candidates those that another one had.
    fn put(&mut self, place: &Place, candidates: Vec<FileId>) {
        if candidates.is_empty() {
            return;
        }
        for directory in &candidates {
            if let Some(known) = self.known.get_mut(directory) {
                known.places.push(place.clone());
            }
        }
        self.candidates.entry(place.parent).or_default().insert(place.name.clone(), candidates);
    }

    /// The kernel has forgotten an inode `count` times. Once it knows a directory no more, it knows
    /// no names in it either.
    fn forget(&mut self, inode: FileId, count: u64) {
        let Entry::Occupied(mut known) = self.known.entry(inode) else { return };
        known.get_mut().count = known.get().count.saturating_sub(count);
        if known.get().count > 0 {
            return;
        }
        let gone = known.remove();
        gone.places.iter().for_each(|place| self.drop_candidate(place, inode));
        for (name, candidates) in self.candidates.remove(&inode).unwrap_or_default() {
            self.leave(&candidates, &Place { parent: inode, name });
        }
    }

    fn begin(&mut self, change: &Change) {
        let Some(place) = change.ends() else { return };
        let candidates = self.candidates.get(&place.parent).and_then(|names| names.get(&place.name));
        if let Some(candidates) = candidates.cloned() {
            self.ending.insert(place.clone(), Ending { candidates, is_refused: false });
        }
    }

    fn may_end(&mut self, place: &Place, directory: Option<FileId>) -> bool {
        let Some(ending) = self.ending.get_mut(place) else { return true };
        let agrees = ending.candidates.iter().all(|candidate| Some(*candidate) == directory);
        ending.is_refused |= !agrees;
        agrees
    }

    fn end(&mut self, change: &Change, result: Result<(), FsError>) {
        let ending = change.ends().and_then(|place| self.ending.remove(place));
        let is_refused = ending.is_some_and(|ending| ending.is_refused);
        match (result, change) {
            (Ok(()), Change::Remove(place)) => drop(self.take(place)),
            (Ok(()), Change::Rename(from, to)) if from != to => {
                let moved = self.take(from);
                self.take(to);
                self.put(to, moved);
            }
            (Ok(()), Change::Exchange(one, other)) if one != other => {
                let (moved, back) = (self.take(one), self.take(other));
                self.put(other, moved);
                self.put(one, back);
            }
            (Err(FsError::Stale), Change::Remove(place) | Change::Rename(_, place)) if is_refused => {
                self.take(place);
            }
            _ => {}
        }
    }
}

/// What the kernel may believe of directories. Nothing is noted for a mount that is not shared.
pub(crate) struct Believed(Option<Mutex<Beliefs>>);

impl Believed {
    pub(crate) fn new(is_shared: bool) -> Arc<Self> {
        Arc::new(Believed(is_shared.then(Mutex::default)))
    }

    /// Notes that the kernel is about to be told that a directory has a name. Call it before the
    /// reply is written, as all of these.
    pub(crate) fn told(&self, parent: FileId, name: &[u8], directory: FileId) {
        if let Some(beliefs) = &self.0 {
            beliefs.lock().told(parent, name, directory);
        }
    }

    /// Notes that the kernel is about to be told of a directory, without a name.
    pub(crate) fn told_nameless(&self, directory: FileId) {
        if let Some(beliefs) = &self.0 {
            beliefs.lock().known.entry(directory).or_default().count += 1;
        }
    }

    /// The kernel has forgotten an inode: as many times as it was told of it before.
    pub(crate) fn forget(&self, inode: FileId, count: u64) {
        if let Some(beliefs) = &self.0 {
            beliefs.lock().forget(inode, count);
        }
    }

    /// Notes a request of the kernel. Call it before the file system is asked. `None` if nothing is
    /// noted for this mount.
    pub(crate) fn begin(self: &Arc<Self>, change: impl FnOnce() -> Change) -> Option<UnderWay> {
        let beliefs = self.0.as_ref()?;
        let change = change();
        beliefs.lock().begin(&change);
        Some(UnderWay { believed: Arc::clone(self), change, has_ended: false })
    }

    /// False if a request of the kernel is under way that ends the directory with this name, and
    /// the kernel may believe that another directory has the name than `directory`.
    pub(crate) fn may_end(&self, parent: FileId, name: &[u8], directory: Option<FileId>) -> bool {
        let Some(beliefs) = &self.0 else { return true };
        beliefs.lock().may_end(&Place::new(parent, name), directory)
    }
}

/// A request under way. If it is dropped before [`end`](Self::end), it has changed nothing.
pub(crate) struct UnderWay {
    believed: Arc<Believed>,
    change: Change,
    has_ended: bool,
}

impl UnderWay {
    /// Notes what the kernel is about to be answered.
    pub(crate) fn end(mut self, result: Result<(), FsError>) {
        self.finish(result);
    }

    fn finish(&mut self, result: Result<(), FsError>) {
        if let Some(beliefs) = self.believed.0.as_ref().filter(|_| !self.has_ended) {
            self.has_ended = true;
            beliefs.lock().end(&self.change, result);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.finish(Err(FsError::Io));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const ROOT: FileId = FileId::ROOT;
    const A: FileId = FileId::new(10);
    const B: FileId = FileId::new(11);

    fn at(name: &str) -> Place {
        Place::new(ROOT, name.as_bytes())
    }

    fn removal(name: &str) -> impl FnOnce() -> Change {
        let place = at(name);
        || Change::Remove(place)
    }

    fn rename(from: &str, to: &str) -> impl FnOnce() -> Change {
        let (from, to) = (at(from), at(to));
        || Change::Rename(from, to)
    }

    /// What a mount knows when nothing is left.
    fn assert_empty(believed: &Believed) {
        let beliefs = believed.0.as_ref().unwrap().lock();
        assert!(beliefs.candidates.is_empty() && beliefs.known.is_empty() && beliefs.ending.is_empty());
    }

    #[test]
    fn a_mount_that_is_not_shared_notes_nothing() {
        let believed = Believed::new(false);
        believed.told(ROOT, b"d", A);
        assert!(believed.begin(|| unreachable!()).is_none());
        assert!(believed.may_end(ROOT, b"d", Some(B)));
    }

    #[test]
    fn only_the_directory_that_was_told_may_end() {
        let believed = Believed::new(true);
        believed.told(ROOT, b"d", A);
        let under_way = believed.begin(removal("d")).unwrap();
        assert!(believed.may_end(ROOT, b"d", Some(A)));
        assert!(!believed.may_end(ROOT, b"d", Some(B)));
        assert!(!believed.may_end(ROOT, b"d", None));
        assert!(believed.may_end(ROOT, b"other", Some(B)));
        under_way.end(Err(FsError::Stale));
        // The kernel looks the name up, and tries again.
        believed.told(ROOT, b"d", B);
        let again = believed.begin(removal("d")).unwrap();
        assert!(believed.may_end(ROOT, b"d", Some(B)));
        again.end(Ok(()));
        believed.forget(A, 1);
        believed.forget(B, 1);
        assert_empty(&believed);
    }

    #[test]
    fn a_request_that_is_not_the_kernels_may_end_what_it_likes() {
        let believed = Believed::new(true);
        believed.told(ROOT, b"d", A);
        assert!(believed.may_end(ROOT, b"d", Some(B)));
    }

    /// A program walks along the name, and the kernel drops what it is told: the request that is
    /// under way still means the former directory.
    #[test]
    fn a_check_of_the_name_changes_nothing_for_the_request_under_way() {
        for comes_first in [false, true] {
            let believed = Believed::new(true);
            believed.told(ROOT, b"d", A);
            let early = (!comes_first).then(|| believed.begin(removal("d")).unwrap());
            believed.told(ROOT, b"d", B);
            believed.forget(B, 1);
            let under_way = early.unwrap_or_else(|| believed.begin(removal("d")).unwrap());
            assert!(!believed.may_end(ROOT, b"d", Some(B)));
            under_way.end(Err(FsError::Stale));
        }
    }

    #[test]
    fn a_directory_that_is_forgotten_is_believed_nowhere() {
        let believed = Believed::new(true);
        believed.told(ROOT, b"d", A);
        believed.told_nameless(A);
        believed.told(ROOT, b"d", B);
        believed.told(A, b"below", FileId::new(12));
        believed.forget(A, 1);
        drop(believed.begin(removal("d")));
        believed.forget(A, 1);
        let under_way = believed.begin(removal("d")).unwrap();
        assert!(believed.may_end(ROOT, b"d", Some(B)));
        under_way.end(Ok(()));
        believed.forget(B, 1);
        believed.forget(FileId::new(12), 1);
        assert_empty(&believed);
    }

    #[test]
    fn candidates_move_with_the_names() {
        let believed = Believed::new(true);
        believed.told(ROOT, b"a", A);
        believed.told(ROOT, b"b", B);
        believed.begin(|| Change::Exchange(at("a"), at("b"))).unwrap().end(Ok(()));
        // The second one is at "a" now, and replaces the first one.
        let under_way = believed.begin(rename("a", "b")).unwrap();
        assert!(believed.may_end(ROOT, b"b", Some(A)) && !believed.may_end(ROOT, b"b", Some(B)));
        under_way.end(Ok(()));
        let under_way = believed.begin(removal("b")).unwrap();
        assert!(believed.may_end(ROOT, b"b", Some(B)));
        under_way.end(Ok(()));
        // Names of files have no candidates: a file takes the place of a directory.
        believed.told(ROOT, b"a", A);
        believed.begin(rename("file", "a")).unwrap().end(Ok(()));
        believed.begin(rename("new", "a")).unwrap();
        assert!(believed.may_end(ROOT, b"a", None));
    }

    #[test]
    fn a_failure_changes_nothing() {
        let believed = Believed::new(true);
        believed.told(ROOT, b"d", A);
        for error in [FsError::NotEmpty, FsError::Stale] {
            believed.begin(removal("d")).unwrap().end(Err(error));
        }
        drop(believed.begin(removal("d")));
        let _under_way = believed.begin(removal("d"));
        assert!(!believed.may_end(ROOT, b"d", Some(B)));
    }

    #[test]
    fn a_directory_that_others_move_often_takes_bounded_memory() {
        let believed = Believed::new(true);
        for number in 0..1000u32 {
            believed.told(ROOT, &number.to_le_bytes(), A);
        }
        assert_eq!(believed.0.as_ref().unwrap().lock().candidates[&ROOT].len(), NAMES_MAX);
        let _under_way = believed.begin(|| Change::Remove(Place::new(ROOT, &999u32.to_le_bytes())));
        assert!(!believed.may_end(ROOT, &999u32.to_le_bytes(), Some(B)));
        believed.forget(A, 1000);
    }

    /// Names, in two directories.
    const PLACES: usize = 4;

    fn place(number: usize) -> Place {
        Place::new(FileId::new(2 + number as u64 / 2), &[number as u8])
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Another node moves what has one name to another one, or exchanges them.
        Elsewhere(usize, usize),
        /// A program walks along a name.
        Walk(usize),
        /// A program removes a directory, or renames over it. The request stays under way.
        Begin(usize),
        BeginRename(usize, usize),
        /// The file system reads the request.
        End,
        /// The kernel drops a directory that it does not use.
        Evict(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let name = 0..PLACES;
        prop_oneof![
            3 => (name.clone(), name.clone()).prop_map(|(from, to)| Step::Elsewhere(from, to)),
            4 => name.clone().prop_map(Step::Walk),
            2 => name.clone().prop_map(Step::Begin),
            2 => (name.clone(), name.clone()).prop_map(|(from, to)| Step::BeginRename(from, to)),
            3 => Just(Step::End),
            1 => name.prop_map(Step::Evict),
        ]
    }

    /// A file system, and the kernel's dentries and inodes.
    struct Model {
        believed: Arc<Believed>,
        names: BTreeMap<usize, FileId>,
        next: u64,
        dentries: BTreeMap<usize, FileId>,
        /// Names that the kernel does not ask for again.
        valid: BTreeSet<usize>,
        told: BTreeMap<FileId, u64>,
        /// The request, and which directories it means.
        under_way: Option<(UnderWay, Request)>,
    }

    #[derive(Clone, Copy)]
    struct Request {
        from: Option<(usize, FileId)>,
        to: usize,
        target: Option<FileId>,
    }

    impl Model {
        fn locks(&self, number: usize) -> bool {
            let locked = |at: usize| place(at).parent == place(number).parent;
            self.under_way
                .as_ref()
                .is_some_and(|(_, request)| locked(request.to) || request.from.is_some_and(|(at, _)| locked(at)))
        }

        fn held(&self, directory: FileId) -> bool {
            let is_meant = |request: &Request| {
                request.target == Some(directory) || request.from.is_some_and(|(_, from)| from == directory)
            };
            self.dentries.values().any(|other| *other == directory)
                || self.under_way.as_ref().is_some_and(|(_, request)| is_meant(request))
        }

        /// The kernel asks for a name that it may know. Whether it takes the answer for new depends
        /// on whether it can lock the directory.
        fn look(&mut self, number: usize) -> Option<FileId> {
            if let Some(known) = self.dentries.get(&number).filter(|_| self.valid.contains(&number)) {
                return Some(*known);
            }
            let found = self.names.get(&number).copied();
            let place = place(number);
            let mut tell = || {
                if let Some(found) = found {
                    self.believed.told(place.parent, &place.name, found);
                    *self.told.entry(found).or_default() += 1;
                }
            };
            if let Some(known) = self.dentries.get(&number).copied() {
                tell();
                if found == Some(known) {
                    self.valid.insert(number);
                    return found;
                }
                self.dentries.remove(&number);
                if let Some(found) = found {
                    *self.told.get_mut(&found).unwrap() -= 1;
                    self.believed.forget(found, 1);
                }
                self.evict(known);
            }
            let found = found.filter(|_| !self.locks(number))?;
            // An alias below a locked directory cannot be moved.
            let alias = self.dentries.iter().find(|(_, other)| **other == found).map(|(at, _)| *at);
            if self.under_way.as_ref().is_some_and(|(_, request)| {
                request.target == Some(found) || request.from.is_some_and(|(_, from)| from == found)
            }) || alias.is_some_and(|alias| self.locks(alias))
            {
                return None;
            }
            self.believed.told(place.parent, &place.name, found);
            *self.told.entry(found).or_default() += 1;
            alias.map(|alias| self.dentries.remove(&alias));
            self.dentries.insert(number, found);
            self.valid.insert(number);
            Some(found)
        }

        fn evict(&mut self, directory: FileId) {
            if !self.held(directory)
                && let Some(count) = self.told.remove(&directory)
            {
                self.believed.forget(directory, count);
            }
        }

        fn send(&mut self, from: Option<usize>, to: usize) {
            let target = self.look(to);
            let source = from.map(|from| (from, self.look(from)));
            let (source, change) = match source {
                None if target.is_some() => (None, Change::Remove(place(to))),
                Some((from, Some(found))) if from != to => {
                    (Some((from, found)), Change::Rename(place(from), place(to)))
                }
                _ => return,
            };
            let under_way = self.believed.begin(|| change).unwrap();
            self.under_way = Some((under_way, Request { from: source, to, target }));
        }

        /// True if the request was carried out or had nothing to do, false if the kernel tries
        /// again.
        fn end(&mut self) -> bool {
            let Some((under_way, request)) = self.under_way.take() else { return true };
            let (from, place) = (request.from.map(|(at, _)| at), place(request.to));
            let ended = self.names.get(&request.to).copied();
            let moved = from.map(|from| self.names.get(&from).copied());
            if moved == Some(None) || from.is_none() && ended.is_none() {
                under_way.end(Err(FsError::NotFound));
                return true;
            }
            if !self.believed.may_end(place.parent, &place.name, ended) {
                under_way.end(Err(FsError::Stale));
                return false;
            }
            assert!(request.target.is_none() || request.target == ended, "the kernel takes another one for dead");
            under_way.end(Ok(()));
            self.names.remove(&request.to);
            self.dentries.remove(&request.to);
            self.valid.remove(&request.to);
            if let Some((from, meant)) = request.from {
                if self.valid.remove(&from) {
                    self.valid.insert(request.to);
                }
                let moved = self.names.remove(&from).unwrap();
                self.names.insert(request.to, moved);
                self.dentries.remove(&from);
                self.dentries.insert(request.to, meant);
            }
            request.target.into_iter().for_each(|target| self.evict(target));
            true
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Elsewhere(from, to) => {
                    self.valid.clear();
                    let (moved, back) = (self.names.remove(&from), self.names.remove(&to));
                    self.names.extend(moved.map(|moved| (to, moved)));
                    self.names.extend(back.filter(|_| from != to).map(|back| (from, back)));
                    if self.names.len() < PLACES && from == to {
                        self.next += 1;
                        self.names.insert(from, FileId::new(self.next));
                    }
                }
                Step::Walk(number) => drop(self.look(number)),
                Step::Begin(to) if self.under_way.is_none() => self.send(None, to),
                Step::BeginRename(from, to) if self.under_way.is_none() => self.send(Some(from), to),
                Step::End => {
                    let request = self.under_way.as_ref().map(|(_, request)| *request);
                    if let (Some(request), false) = (request, self.end()) {
                        self.valid.clear();
                        self.send(request.from.map(|(at, _)| at), request.to);
                        assert!(self.end(), "the second attempt fails, though nothing has changed");
                    }
                }
                Step::Evict(number) => {
                    if let Some(known) = self.dentries.get(&number).copied().filter(|_| !self.locks(number)) {
                        self.dentries.remove(&number);
                        self.evict(known);
                    }
                }
                Step::Begin(_) | Step::BeginRename(..) => {}
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn prop_a_kernel_takes_no_other_directory_for_dead(steps in prop::collection::vec(step(), 1..60)) {
            let (names, next) = ((0..PLACES).map(|number| (number, FileId::new(100 + number as u64))).collect(), 200);
            let (dentries, told) = (BTreeMap::new(), BTreeMap::new());
            let (believed, valid) = (Believed::new(true), BTreeSet::new());
            let mut model = Model { believed, names, next, dentries, valid, told, under_way: None };
            steps.into_iter().for_each(|step| model.step(step));
            model.under_way = None;
            let told = std::mem::take(&mut model.told);
            told.into_iter().for_each(|(directory, count)| model.believed.forget(directory, count));
            assert_empty(&model.believed);
        }
    }
}
