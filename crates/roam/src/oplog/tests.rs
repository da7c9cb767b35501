use super::*;
use proptest::prelude::*;
use roam_wire::operation::{Attributes, Change, Made};
use roam_wire::ranges::Ranges;
use types::{Kind, Time};

const ROOT: FileId = FileId::ROOT;

/// A small file system: what is at each place, and what each file is.
#[derive(Clone, PartialEq, Debug, Default)]
struct Model {
    places: BTreeMap<Place, FileId>,
    files: BTreeMap<FileId, File>,
}

#[derive(Clone, PartialEq, Debug)]
struct File {
    is_dir: bool,
    mode: u32,
    xattr: Option<Vec<u8>>,
    content: Vec<u8>,
}

impl Model {
    fn new() -> Model {
        let root = File { is_dir: true, mode: 0, xattr: None, content: Vec::new() };
        Model { places: BTreeMap::new(), files: BTreeMap::from([(ROOT, root)]) }
    }

    fn names_of(&self, file: FileId) -> usize {
        self.places.values().filter(|at| **at == file).count()
    }

    fn is_empty(&self, dir: FileId) -> bool {
        !self.places.keys().any(|(parent, _)| *parent == dir)
    }

    /// True if `dir` is `file` or below it.
    fn is_below(&self, dir: FileId, file: FileId) -> bool {
        let mut at = dir;
        loop {
            if at == file {
                return true;
            }
            match self.places.iter().find(|(_, f)| **f == at) {
                Some(((parent, _), _)) => at = *parent,
                None => return false,
            }
        }
    }

    fn drop_name(&mut self, at: &Place, file: FileId, last: bool) -> Option<()> {
        (self.places.get(at) == Some(&file)).then_some(())?;
        (last == (self.names_of(file) == 1)).then_some(())?;
        (!self.files[&file].is_dir || self.is_empty(file)).then_some(())?;
        self.places.remove(at);
        if last {
            self.files.remove(&file);
        }
        Some(())
    }

    fn free(&self, at: &Place) -> Option<()> {
        (self.files.get(&at.0)?.is_dir && !self.places.contains_key(at)).then_some(())
    }

    /// Does an operation, with contents as they are in `cache`; `None` if it cannot be done.
    fn apply(&mut self, operation: &Operation, cache: &BTreeMap<FileId, Vec<u8>>) -> Option<()> {
        match operation {
            Operation::Make { at, file, made } => {
                self.free(at)?;
                let is_dir = made.kind == Kind::Directory;
                let new = File { is_dir, mode: made.mode, xattr: None, content: Vec::new() };
                self.files.insert(*file, new).is_none().then_some(())?;
                self.places.insert(at.clone(), *file);
            }
            Operation::Link { file, at } => {
                self.free(at)?;
                self.files.get(file)?;
                self.places.insert(at.clone(), *file);
            }
            Operation::Remove { at, file, last } => self.drop_name(at, *file, *last)?,
            Operation::Rename { file, from, to, replaced } => {
                (self.places.get(from) == Some(file)).then_some(())?;
                (!self.is_below(to.0, *file)).then_some(())?;
                if let Some((gone, last)) = replaced {
                    self.drop_name(to, *gone, *last)?;
                }
                self.free(to)?;
                self.places.remove(from);
                self.places.insert(to.clone(), *file);
            }
            Operation::Exchange { file, from, other, to } => {
                (self.places.get(from) == Some(file) && self.places.get(to) == Some(other)).then_some(())?;
                (!self.is_below(to.0, *file) && !self.is_below(from.0, *other)).then_some(())?;
                self.places.insert(from.clone(), *other);
                self.places.insert(to.clone(), *file);
            }
            Operation::Set { file, attributes } => {
                let file = self.files.get_mut(file)?;
                file.mode = attributes.mode.unwrap_or(file.mode);
            }
            Operation::SetXattr { file, value, .. } => self.files.get_mut(file)?.xattr = value.clone(),
            Operation::Store { file, change } => {
                let now = &cache[file];
                let content = &mut self.files.get_mut(file)?.content;
                content.truncate(change.cut as usize);
                content.resize(change.size as usize, 0);
                for range in change.ranges.iter() {
                    for i in range {
                        // What was cut since is cut at home by a later change.
                        content[i as usize] = now.get(i as usize).copied().unwrap_or(0);
                    }
                }
            }
        }
        Some(())
    }
}

/// A client with its log, and its home.
struct Rig {
    here: Model,
    home: Model,
    log: OpLog,
    /// Contents, also of files that have no name any more.
    cache: BTreeMap<FileId, Vec<u8>>,
    next: u64,
    done: Vec<Operation>,
    /// What is on its way.
    sent: BTreeMap<u64, Operation>,
}

impl Rig {
    fn new() -> Rig {
        let (mut here, mut cache) = (Model::new(), BTreeMap::new());
        // Something is there from before.
        for (number, parent, is_dir) in [(2, 1, true), (3, 1, true), (4, 2, false), (5, 1, false), (6, 3, false)] {
            let (file, at) = (FileId::new(number), (FileId::new(parent), vec![number as u8 % 3]));
            let content = if is_dir { Vec::new() } else { vec![number as u8; 10] };
            cache.insert(file, content.clone());
            here.files.insert(file, File { is_dir, mode: 0o700, xattr: None, content });
            here.places.insert(at, file);
        }
        Rig { home: here.clone(), here, log: OpLog::default(), cache, next: 7, done: Vec::new(), sent: BTreeMap::new() }
    }

    /// Does something here, if it can be done.
    fn act(&mut self, operation: Operation) -> bool {
        let mut after = self.here.clone();
        if after.apply(&operation, &self.cache).is_none() {
            return false;
        }
        self.here = after;
        for (id, file) in &self.here.files {
            self.cache.insert(*id, file.content.clone());
        }
        self.done.push(operation.clone());
        self.log.append(operation);
        true
    }

    /// Changes a file's contents: cuts it, gives it a size, and writes a byte into a range.
    fn write(&mut self, file: FileId, (cut, size): (u64, u64), range: std::ops::Range<u64>, byte: u8) {
        let Some(now) = self.here.files.get(&file).filter(|file| !file.is_dir).map(|file| file.content.clone()) else {
            return;
        };
        let cut = cut.min(now.len() as u64).min(size);
        let mut content = now;
        content.truncate(cut as usize);
        content.resize(size as usize, 0);
        let range = range.start.min(size)..range.end.min(size);
        content[range.start as usize..range.end as usize].fill(byte);
        self.cache.insert(file, content);
        assert!(self.act(Operation::Store {
            file,
            change: Change { cut, size, ranges: Ranges::of(range), mtime: Time::default() }
        }));
    }

    fn id_at(&self, at: &Place) -> Option<FileId> {
        self.here.places.get(at).copied()
    }

    fn replaced(&self, at: &Place) -> Option<(FileId, bool)> {
        let file = self.id_at(at)?;
        Some((file, self.here.names_of(file) == 1))
    }

    fn make(&mut self, at: Place, kind: Kind) -> Option<FileId> {
        let file = FileId::new(self.next);
        self.next += 1;
        self.cache.insert(file, Vec::new());
        let made = Made { kind, mode: 0o644, uid: 0, gid: 0, rdev: 0, target: Vec::new(), when: Time::default() };
        self.act(Operation::Make { at, file, made }).then_some(file)
    }

    fn remove(&mut self, at: Place) -> bool {
        let Some((file, last)) = self.replaced(&at) else { return false };
        self.act(Operation::Remove { at, file, last })
    }

    fn rename(&mut self, from: Place, to: Place) -> bool {
        let Some(file) = self.id_at(&from).filter(|file| self.id_at(&to) != Some(*file)) else { return false };
        let replaced = self.replaced(&to);
        if replaced.is_some_and(|(gone, _)| self.here.files[&gone].is_dir != self.here.files[&file].is_dir) {
            return false;
        }
        self.act(Operation::Rename { file, from, to, replaced })
    }

    /// So many operations set out.
    fn pin(&mut self, count: usize) {
        let first: BTreeMap<u64, Operation> = self.log.iter().take(count).map(|(seq, o)| (seq, o.clone())).collect();
        for (seq, operation) in first {
            self.log.pin(seq);
            self.sent.entry(seq).or_insert(operation);
        }
    }

    /// So many operations reach the home.
    fn send(&mut self, count: usize) {
        self.pin(count);
        let first: Vec<(u64, Operation)> = self.log.iter().take(count).map(|(seq, o)| (seq, o.clone())).collect();
        for (seq, operation) in first {
            assert_eq!(self.sent.remove(&seq).as_ref(), Some(&operation), "it changed on its way");
            let done = self.home.apply(&operation, &self.cache);
            assert!(
                done.is_some(),
                "{operation:?} cannot be done at home\nafter {:#?}\nleft {:#?}",
                self.done,
                self.log
            );
            self.log.remove(seq);
        }
    }
}

fn at(parent: FileId, name: &str) -> Place {
    (parent, name.as_bytes().to_vec())
}

#[test]
fn what_was_made_and_removed_is_not_sent() {
    let mut rig = Rig::new();
    let dir = rig.make(at(ROOT, "dir"), Kind::Directory).unwrap();
    let file = rig.make(at(dir, "file"), Kind::File).unwrap();
    rig.write(file, (0, 100), 0..100, 1);
    assert!(rig.act(Operation::Set { file, attributes: Attributes { mode: Some(0o600), ..Attributes::default() } }));
    assert!(rig.rename(at(dir, "file"), at(ROOT, "elsewhere")));
    assert!(rig.remove(at(ROOT, "elsewhere")) && rig.remove(at(ROOT, "dir")));
    assert!(rig.log.is_empty(), "{:?}", rig.log);
    let saved = rig.log.saved();
    assert_eq!((saved.logged, saved.operations), (7, 7));
    assert!(saved.bytes > 100 && rig.log.cost() == 0);
}

#[test]
fn contents_are_sent_once_however_often_they_were_written() {
    let mut rig = Rig::new();
    let file = FileId::new(5);
    for i in 0..100 {
        rig.write(file, (u64::MAX, 100), i..i + 1, 9);
    }
    assert_eq!(rig.log.len(), 1);
    assert_eq!(rig.log.iter().next().map(|(_, o)| o.cost()), Some(132));
    rig.write(file, (50, 60), 0..0, 0);
    rig.send(1);
    assert_eq!(rig.home, rig.here);
}

#[test]
fn an_editor_that_saves_again_and_again_through_new_files_sends_one() {
    let mut rig = Rig::new();
    let target = at(FileId::new(2), "\u{1}");
    assert_eq!(rig.id_at(&target), Some(FileId::new(4)));
    for round in 0..10 {
        let new = rig.make(at(FileId::new(2), "file.new"), Kind::File).unwrap();
        rig.write(new, (0, 50), 0..50, round);
        assert!(rig.rename(at(FileId::new(2), "file.new"), target.clone()));
    }
    let kinds: Vec<&Operation> = rig.log.iter().map(|(_, o)| o).collect();
    assert!(
        matches!(kinds[..], [Operation::Make { .. }, Operation::Store { .. }, Operation::Rename { replaced: Some((f, true)), .. }] if *f == FileId::new(4)),
        "{kinds:?}"
    );
    rig.send(9);
    assert_eq!(rig.home, rig.here);
}

#[test]
fn what_is_on_its_way_stays_as_it_is() {
    let mut rig = Rig::new();
    let file = rig.make(at(ROOT, "file"), Kind::File).unwrap();
    rig.pin(1);
    rig.write(file, (0, 10), 0..10, 1);
    assert!(rig.rename(at(ROOT, "file"), at(ROOT, "other")) && rig.remove(at(ROOT, "other")));
    assert_eq!(rig.log.len(), 4, "{:?}", rig.log);
    rig.send(4);
    assert_eq!(rig.home, rig.here);
}

#[test]
fn a_name_that_is_used_again_is_not_passed_by() {
    let mut rig = Rig::new();
    // The directory is made after the file that is moved into it.
    let file = rig.make(at(ROOT, "file"), Kind::File).unwrap();
    let dir = rig.make(at(ROOT, "dir"), Kind::Directory).unwrap();
    assert!(rig.rename(at(ROOT, "file"), at(dir, "file")));
    // And a file that is in the way until it is moved.
    assert!(rig.make(at(ROOT, "file"), Kind::File).is_some());
    assert_eq!(rig.log.len(), 4);
    assert!(rig.here.files.contains_key(&file));
    rig.send(4);
    assert_eq!(rig.home, rig.here);
}

#[test]
fn a_directory_does_not_get_below_itself() {
    let mut rig = Rig::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| rig.make(at(ROOT, name), Kind::Directory).unwrap());
    assert!(rig.rename(at(ROOT, "b"), at(a, "b")) && rig.rename(at(ROOT, "c"), at(b, "c")));
    rig.send(9);
    assert!(rig.rename(at(ROOT, "a"), at(ROOT, "x")) && rig.rename(at(a, "b"), at(ROOT, "b")));
    assert!(rig.rename(at(ROOT, "x"), at(c, "a")));
    rig.send(9);
    assert_eq!(rig.home, rig.here);
}

#[test]
fn what_was_replaced_twice_is_gone_twice() {
    let mut rig = Rig::new();
    let place = at(FileId::new(2), "\u{1}");
    let file = rig.make(at(ROOT, "file"), Kind::File).unwrap();
    assert!(rig.rename(at(ROOT, "file"), place.clone()), "over one that was there before");
    assert!(rig.rename(place.clone(), at(ROOT, "away")));
    assert!(rig.rename(at(ROOT, "\u{2}"), place.clone()), "another one that was there before");
    assert!(rig.rename(at(ROOT, "away"), place.clone()), "over that");
    assert_eq!(rig.id_at(&place), Some(file));
    assert!(rig.make(at(ROOT, "new"), Kind::File).is_some() && rig.rename(at(ROOT, "new"), place));
    rig.send(9);
    assert_eq!(rig.home, rig.here);
}

/// What was replaced lost its name later than it was said to: by then it was another of its names that was the last.
#[test]
fn regression_what_was_replaced_goes_before_its_other_names_do() {
    let mut rig = Rig::new();
    let (file, place) = (FileId::new(6), at(ROOT, "place"));
    assert!(rig.act(Operation::Link { file, at: place.clone() }));
    assert!(rig.make(at(ROOT, "new"), Kind::File).is_some() && rig.rename(at(ROOT, "new"), place.clone()));
    let other = (FileId::new(3), vec![0]);
    assert!(rig.rename((FileId::new(2), vec![1]), other.clone()), "over the last of its names");
    assert!(rig.rename(other, place));
    rig.send(9);
    assert_eq!(rig.home, rig.here);
}

#[derive(Clone, Debug)]
enum Step {
    Make(u64, u8, bool),
    Remove(u64, u8),
    Rename(u64, u8, u64, u8),
    Exchange(u64, u8, u64, u8),
    Link(u64, u64, u8),
    Write(u64, u64, u64, u64, u8),
    Set(u64, u32),
    SetXattr(u64, Option<u8>),
    Pin(usize),
    Send(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let file = || 1u64..14;
    let name = || 0u8..3;
    let dir = || prop_oneof![6 => 1u64..4, 1 => 4u64..14];
    prop_oneof![
        4 => (dir(), name(), prop::bool::weighted(0.3)).prop_map(|(d, n, is_dir)| Step::Make(d, n, is_dir)),
        3 => (dir(), name()).prop_map(|(d, n)| Step::Remove(d, n)),
        5 => (dir(), name(), dir(), name()).prop_map(|(a, b, c, d)| Step::Rename(a, b, c, d)),
        1 => (dir(), name(), dir(), name()).prop_map(|(a, b, c, d)| Step::Exchange(a, b, c, d)),
        1 => (file(), dir(), name()).prop_map(|(f, d, n)| Step::Link(f, d, n)),
        3 => (file(), 0u64..20, 0u64..20, 0u64..20, any::<u8>()).prop_map(|(f, c, s, o, b)| Step::Write(f, c, s, o, b)),
        2 => (file(), 0u32..8).prop_map(|(f, m)| Step::Set(f, m)),
        1 => (file(), any::<Option<u8>>()).prop_map(|(f, v)| Step::SetXattr(f, v)),
        1 => (1usize..3).prop_map(Step::Pin),
        1 => (1usize..4).prop_map(Step::Send),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]
    /// Whatever was taken out, the home ends where the client is, and everything can be done there, at any pace of sending.
    #[test]
    fn prop_the_home_ends_where_the_client_is(steps in prop::collection::vec(step(), 1..60)) {
        let mut rig = Rig::new();
        for step in steps {
            match step {
                Step::Make(d, n, dir) => {
                    rig.make((FileId::new(d), vec![n]), if dir { Kind::Directory } else { Kind::File });
                }
                Step::Remove(d, n) => drop(rig.remove((FileId::new(d), vec![n])).then_some(())),
                Step::Rename(a, b, c, d) => {
                    rig.rename((FileId::new(a), vec![b]), (FileId::new(c), vec![d]));
                }
                Step::Exchange(a, b, c, d) => {
                    let (from, to) = ((FileId::new(a), vec![b]), (FileId::new(c), vec![d]));
                    if let (Some(file), Some(other)) = (rig.id_at(&from), rig.id_at(&to)) && file != other {
                        rig.act(Operation::Exchange { file, from, other, to });
                    }
                }
                Step::Link(f, d, n) => {
                    let file = FileId::new(f);
                    if rig.here.files.get(&file).is_some_and(|f| !f.is_dir) && rig.here.names_of(file) > 0 {
                        rig.act(Operation::Link { file, at: (FileId::new(d), vec![n]) });
                    }
                }
                Step::Write(f, cut, size, offset, byte) => {
                    rig.write(FileId::new(f), (cut, size), offset..offset + 5, byte);
                }
                Step::Set(f, mode) => {
                    let attributes = Attributes { mode: Some(mode), ..Attributes::default() };
                    rig.act(Operation::Set { file: FileId::new(f), attributes });
                }
                Step::SetXattr(f, value) => {
                    let value = value.map(|byte| vec![byte]);
                    rig.act(Operation::SetXattr { file: FileId::new(f), name: b"user.x".to_vec(), value });
                }
                Step::Pin(count) => rig.pin(count),
                Step::Send(count) => rig.send(count),
            }
            prop_assert_eq!(rig.log.cost(), rig.log.iter().map(|(_, o)| o.cost()).sum::<u64>());
        }
        rig.send(usize::MAX);
        prop_assert_eq!(&rig.home, &rig.here);
        prop_assert!(rig.log.is_empty() && rig.log.by_file.is_empty() && rig.log.by_place.is_empty());
    }
}
