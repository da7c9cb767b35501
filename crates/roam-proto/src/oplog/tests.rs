mod model;

use super::*;
use crate::operation::{Attributes, Change, Made};
use crate::ranges::Ranges;
use model::{File, GROUPS, Model, USER, acl_value};
use proptest::prelude::*;
use types::{Kind, Time};
use vfs::acl;
use vfs::fs::Cred;

const ROOT: FileId = FileId::ROOT;

/// A client with its log, and its home.
struct Rig {
    here: Model,
    home: Model,
    log: OpLog,
    /// Contents, also of files that have no name any more.
    cache: BTreeMap<FileId, Vec<u8>>,
    next: u64,
    done: Vec<Operation>,
    /// Operations on their way, as they were sent.
    sent: BTreeMap<u64, Operation>,
}

impl Rig {
    fn new() -> Rig {
        Rig::of(Cred { uid: USER, gid: GROUPS[0], groups: GROUPS.to_vec() })
    }

    fn of(cred: Cred) -> Rig {
        let (mut here, mut cache) = (Model::new(cred), BTreeMap::new());
        // The files of numbers 2 to 6 existed before the client began.
        for (number, parent, is_dir) in [(2, 1, true), (3, 1, true), (4, 2, false), (5, 1, false), (6, 3, false)] {
            let (file, at) = (FileId::new(number), (FileId::new(parent), vec![number as u8 % 3]));
            let content = if is_dir { Vec::new() } else { vec![number as u8; 10] };
            cache.insert(file, content.clone());
            let kind = if is_dir { Kind::Directory } else { Kind::File };
            here.files.insert(file, File::new(kind, content));
            here.places.insert(at, file);
        }
        Rig { home: here.clone(), here, log: OpLog::default(), cache, next: 7, done: Vec::new(), sent: BTreeMap::new() }
    }

    /// Does an operation at the client, if it can be done.
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
        let Some(now) = self.here.files.get(&file).filter(|file| !file.is_dir()).map(|file| file.content.clone())
        else {
            return;
        };
        if self.here.reach(file).is_none() {
            return;
        }
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
        let File { mode, uid, gid, .. } = self.here.made(at.0, kind, 0o755)?;
        let made = Made { kind, mode, uid, gid, rdev: 0, target: Vec::new(), when: Time::default() };
        self.act(Operation::Make { at, file, made }).then_some(file)
    }

    /// Makes a file that begins with the bytes that the home has in another file, to which no store
    /// waits.
    fn copy(&mut self, at: Place, from: FileId) -> Option<FileId> {
        let is_stored = self.log.naming(from).any(|(_, operation)| matches!(operation, Operation::Store { .. }));
        if is_stored || self.here.files.get(&from)?.is_dir() {
            return None;
        }
        let file = self.make(at, Kind::File)?;
        self.act(Operation::Copy { file, from }).then_some(file)
    }

    fn remove(&mut self, at: Place) -> bool {
        let Some((file, last)) = self.replaced(&at) else { return false };
        self.act(Operation::Remove { at, file, last })
    }

    fn rename(&mut self, from: Place, to: Place) -> bool {
        let Some(file) = self.id_at(&from).filter(|file| self.id_at(&to) != Some(*file)) else { return false };
        let replaced = self.replaced(&to);
        if replaced.is_some_and(|(gone, _)| self.here.files[&gone].is_dir() != self.here.files[&file].is_dir()) {
            return false;
        }
        self.act(Operation::Rename { file, from, to, replaced })
    }

    fn chmod(&mut self, file: FileId, mode: u32) -> bool {
        self.act(Operation::Set { file, attributes: Attributes { mode: Some(mode), ..Attributes::default() } })
    }

    fn set_xattr(&mut self, file: FileId, name: &[u8], value: Option<Vec<u8>>) -> bool {
        self.act(Operation::SetXattr { file, name: name.to_vec(), value })
    }

    /// Sends off the first `count` operations.
    fn pin(&mut self, count: usize) {
        let first: BTreeMap<u64, Operation> = self.log.iter().take(count).map(|(seq, o)| (seq, o.clone())).collect();
        for (seq, operation) in first {
            self.log.pin(seq);
            self.sent.entry(seq).or_insert(operation);
        }
    }

    /// Delivers the first `count` operations to the home.
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

/// The replaced file lost its name later than the log said. By then another of its names was the
/// last.
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

/// Two changes of a directory's mode are merged only if no operation between them needs the first.
#[test]
fn regression_what_was_made_while_a_directory_was_open_is_made_before_it_is_closed() {
    let (mut rig, dir) = (Rig::new(), FileId::new(2));
    assert!(rig.chmod(dir, 0o500) && rig.chmod(dir, 0o700));
    assert!(rig.make(at(dir, "file"), Kind::File).is_some() && rig.chmod(dir, 0o500));
    rig.send(9);
    assert_eq!(rig.home, rig.here);
}

#[test]
fn regression_a_file_does_not_come_into_a_directory_before_that_is_opened() {
    let (mut rig, dir) = (Rig::new(), FileId::new(2));
    assert!(rig.chmod(dir, 0o500));
    rig.send(9);
    assert!(rig.make(at(ROOT, "file"), Kind::File).is_some());
    assert!(rig.chmod(dir, 0o700) && rig.rename(at(ROOT, "file"), at(dir, "file")));
    rig.send(9);
    assert_eq!(rig.home, rig.here);
}

#[test]
fn regression_a_directory_does_not_come_back_before_what_is_in_it_was_reached() {
    let (mut rig, [a, b]) = (Rig::new(), [FileId::new(2), FileId::new(3)]);
    let dir = rig.make(at(a, "dir"), Kind::Directory).unwrap();
    rig.send(9);
    assert!(rig.rename(at(a, "dir"), at(b, "dir")) && rig.chmod(a, 0));
    assert!(rig.make(at(dir, "file"), Kind::File).is_some());
    // The two modes do not become one.
    assert!(rig.set_xattr(a, acl::XATTR_DEFAULT, None));
    assert!(rig.chmod(a, 0o700) && rig.rename(at(b, "dir"), at(a, "other")));
    rig.send(9);
    assert_eq!(rig.home, rig.here);
}

#[test]
fn regression_what_is_made_elsewhere_and_moved_inherits_nothing_from_where_it_is() {
    for inherits in ["group", "acl"] {
        let (mut rig, dir) = (Rig::new(), FileId::new(2));
        if inherits == "group" {
            let attributes = Attributes { mode: Some(0o2770), gid: Some(GROUPS[1]), ..Attributes::default() };
            assert!(rig.act(Operation::Set { file: dir, attributes }));
        } else {
            assert!(rig.set_xattr(dir, acl::XATTR_DEFAULT, Some(acl_value(7, 7))));
        }
        assert!(rig.make(at(ROOT, "file"), Kind::File).is_some());
        assert!(rig.rename(at(ROOT, "file"), at(dir, "file")));
        rig.send(9);
        assert_eq!(rig.home, rig.here, "{inherits}");
    }
}

#[test]
fn regression_each_file_inherits_the_acl_of_its_time() {
    let (mut rig, dir) = (Rig::new(), FileId::new(2));
    assert!(rig.set_xattr(dir, acl::XATTR_DEFAULT, Some(acl_value(7, 7))));
    assert!(rig.make(at(dir, "file"), Kind::File).is_some());
    assert!(rig.set_xattr(dir, acl::XATTR_DEFAULT, Some(acl_value(7, 4))));
    rig.send(9);
    assert_eq!(rig.home, rig.here);
}

#[test]
fn regression_an_acl_that_was_set_and_removed_leaves_its_mode() {
    let (mut rig, file) = (Rig::new(), FileId::new(5));
    assert!(rig.set_xattr(file, acl::XATTR_ACCESS, Some(acl_value(5, 7))));
    assert!(rig.set_xattr(file, acl::XATTR_ACCESS, None));
    rig.send(9);
    assert_eq!(rig.home, rig.here);
}

/// When operations that depended on the copied file were logged again, a store to the copy was sent
/// before the copy.
#[test]
fn regression_what_is_stored_goes_with_what_a_file_begins_as() {
    let mut rig = Rig::new();
    let (from, place) = (FileId::new(5), at(ROOT, "elsewhere"));
    let name = at(ROOT, "\u{2}");
    assert!(rig.id_at(&name) == Some(from) && rig.rename(name.clone(), place.clone()));
    let file = rig.copy(at(ROOT, "copy"), from).expect("copied");
    rig.write(file, (0, 3), 0..3, 1);
    let again: Vec<u64> = rig.log.depending_on(from, &[&place, &name]);
    let operations: Vec<&Operation> = again.iter().filter_map(|seq| rig.log.get(*seq)).collect();
    assert!(
        matches!(operations[..], [Operation::Rename { .. }, Operation::Copy { .. }, Operation::Store { .. }]),
        "{operations:?}"
    );
}

#[derive(Clone, Debug)]
enum Step {
    Make(u64, u8, bool),
    Remove(u64, u8),
    Rename(u64, u8, u64, u8),
    Exchange(u64, u8, u64, u8),
    Link(u64, u64, u8),
    Write(u64, u64, u64, u64, u8),
    Copy(u64, u8, u64),
    Set(u64, u32),
    SetOwner(u64, Option<u32>, u32),
    SetXattr(u64, Option<u8>),
    SetAcl(u64, bool, Option<(u32, u32)>),
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
        1 => (dir(), name(), file()).prop_map(|(d, n, from)| Step::Copy(d, n, from)),
        3 => (file(), prop_oneof![2 => Just(0o700), 1 => Just(0o500), 1 => Just(0), 1 => Just(0o1777), 1 => Just(0o2770)])
            .prop_map(|(f, m)| Step::Set(f, m)),
        1 => (file(), prop::option::weighted(0.3, prop::sample::select(vec![USER, USER + 1])), prop::sample::select(&GROUPS[..]))
            .prop_map(|(f, u, g)| Step::SetOwner(f, u, g)),
        1 => (file(), any::<bool>(), prop::option::weighted(0.8, (prop::sample::select(vec![5u32, 7]), 0u32..8)))
            .prop_map(|(f, d, rights)| Step::SetAcl(f, d, rights)),
        1 => (file(), any::<Option<u8>>()).prop_map(|(f, v)| Step::SetXattr(f, v)),
        1 => (1usize..3).prop_map(Step::Pin),
        1 => (1usize..4).prop_map(Step::Send),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]
    /// The home ends in the client's state, and every operation can be done there, for any
    /// operations that the optimizer takes out, at any pace of sending.
    #[test]
    fn prop_the_home_ends_where_the_client_is(is_root in prop::bool::weighted(0.2), steps in prop::collection::vec(step(), 1..60)) {
        let mut rig = if is_root { Rig::of(Cred::ROOT) } else { Rig::new() };
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
                    if rig.here.files.get(&file).is_some_and(|f| !f.is_dir()) && rig.here.names_of(file) > 0 {
                        rig.act(Operation::Link { file, at: (FileId::new(d), vec![n]) });
                    }
                }
                Step::Write(f, cut, size, offset, byte) => {
                    rig.write(FileId::new(f), (cut, size), offset..offset + 5, byte);
                }
                Step::Copy(d, n, from) => drop(rig.copy((FileId::new(d), vec![n]), FileId::new(from))),
                Step::Set(f, mode) => drop(rig.chmod(FileId::new(f), mode).then_some(())),
                Step::SetOwner(f, uid, gid) => {
                    let attributes = Attributes { uid, gid: Some(gid), ..Attributes::default() };
                    rig.act(Operation::Set { file: FileId::new(f), attributes });
                }
                Step::SetAcl(f, is_default, rights) => {
                    let name = if is_default { acl::XATTR_DEFAULT } else { acl::XATTR_ACCESS };
                    rig.set_xattr(FileId::new(f), name, rights.map(|(owner, group)| acl_value(owner, group)));
                }
                Step::SetXattr(f, value) => {
                    let value = value.map(|byte| vec![byte]);
                    rig.set_xattr(FileId::new(f), b"user.x", value);
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
