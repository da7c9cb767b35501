//! What a home knows of a volume's files (docs/roaming.md#what-a-home-knows): which id is which
//! file, what each looked like when the home saw it last, and who changed it when. Pure.
//!
//! The home knows only files that clients were told of, or have made. Other programs change the
//! volume as they like. The home finds their changes by looking, and by comparing with what it
//! knew. Each change that it finds gets the next number of the volume's journal.
//!
//! A client may make what exists already. Then the client's own id means that file from then on
//! ([`Volume::real`]).
//!
//! A file that has no place is forgotten when the journal no longer tells of its removal.
//!
//! The home's state may be restored from a backup. Each run begins with a number from the clock,
//! greater than all before. The numbers that an earlier run has given since the backup lie in a
//! [gap](Volume::is_given). A client that shows such a number knows of changes that this home does
//! not. The same holds for ids.
//!
//! Invariants: an id is one file for ever, even if a client's store gives the file a new identity
//! ([`Volume::stored`]). Numbers only grow. An id that means another file never means one of its
//! own.

use roam_proto::codec::Wire;
use roam_proto::message::User;
use roam_proto::operation::Place;
use roam_proto::volume_journal::Journal;
use roam_proto::volume_stamp::Stamp;
use roam_proto::wire_struct;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use types::codec::{DecodeError, Reader};
use types::{Attr, FileId, Kind, Time};

/// Most changed files that the journal of a volume remembers.
pub const JOURNAL_LEN_MAX: usize = 1 << 18;
/// The indices in ids of files are below this.
pub const INDEX_END: u64 = 1 << 48;
/// Most ids of all clients that mean another file. Beyond it, the home does not merge what two
/// clients have made.
pub const ALIAS_COUNT_MAX: usize = 1 << 20;
/// Most directories from a file up to the root. Remembered places of directories that others move
/// can form a circle.
pub(crate) const DEPTH_MAX: usize = 4096;
/// Most gaps between runs that are remembered. With more runs, the numbers of the oldest gap count
/// as given.
const GAP_COUNT_MAX: usize = 1 << 12;
/// When indices by the clock begin, in seconds since 1970.
const INDEX_START_SECONDS: i64 = 1_600_000_000;
/// Indices per second of the clock. At this rate, 2^48 indices last for 136 years.
const INDEX_COUNT_PER_SECOND: u64 = 1 << 16;
/// The greatest number of a change. A state or record with a greater number is refused, so numbers
/// cannot overflow.
const SEQ_MAX: u64 = 1 << 62;
/// The author of a change that no client made: another program, or unknown.
pub const OTHERS: u32 = 0;

/// What a file looked like when it was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Print {
    /// The type of file.
    pub kind: Kind,
    /// The lower twelve bits of the mode.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub nlink: u32,
    /// Length in bytes.
    pub size: u64,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
}
wire_struct!(Print { kind, mode, uid, gid, nlink, size, mtime, ctime });

impl Print {
    /// Makes the print of a file that has the attributes `now`, and had the attributes `made` when
    /// the home was done with it. If another program has changed its bytes in between, the next
    /// look finds that, and counts it as a change by others.
    pub fn after(now: &Attr, made: &Attr) -> Print {
        Print { size: made.size, mtime: made.mtime, ..Print::of(now) }
    }

    /// Makes the print of a file with these attributes.
    pub fn of(attr: &Attr) -> Print {
        let Attr { kind, mode, uid, gid, nlink, size, mtime, ctime, .. } = *attr;
        Print { kind, mode, uid, gid, nlink, size, mtime, ctime }
    }

    fn same_rights(&self, other: &Print) -> bool {
        (self.mode, self.uid, self.gid) == (other.mode, other.uid, other.gid)
    }

    /// True if surely no user but the owner can get through this directory, with any ACL.
    fn is_closed(&self) -> bool {
        self.mode & 0o011 == 0
    }

    /// True if the contents have not changed, as far as the attributes tell. A new ctime that
    /// nothing else explains is a change.
    fn same_contents(&self, other: &Print, moved: bool) -> bool {
        let explained = moved || !self.same_rights(other) || self.nlink != other.nlink;
        (self.kind, self.size, self.mtime) == (other.kind, other.size, other.mtime)
            && (self.ctime == other.ctime || explained)
    }
}

/// Whether a user can reach a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// A directory above it is closed to the user.
    No,
    /// Only the file system behind can tell.
    Unsure,
    /// No mode forbids it.
    Likely,
}

/// When one aspect of a file changed, and by which author.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Aspect {
    /// The number of the last change.
    pub seq: u64,
    /// Its author.
    author: u32,
    /// The last change by any other author.
    before: u64,
}
wire_struct!(Aspect { seq, author, before });

impl Aspect {
    fn at(seq: u64) -> Aspect {
        Aspect { seq, author: OTHERS, before: seq }
    }

    fn changed(self, seq: u64, author: u32) -> Aspect {
        let before = if author == OTHERS {
            seq
        } else if author == self.author {
            self.before
        } else {
            self.seq
        };
        Aspect { seq, author, before }
    }

    /// True if no author other than `author` has changed it since `base`.
    pub fn is_as_known(self, base: u64, author: u32) -> bool {
        let by_others = if author == self.author && author != OTHERS { self.before } else { self.seq };
        by_others <= base
    }
}

/// A file that clients know of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeFile {
    /// The file system's identity of it.
    pub identity: Vec<u8>,
    /// Where it was seen. Empty: it has no known place. Others may have moved it since.
    pub places: Vec<Place>,
    /// What it looked like.
    pub print: Print,
    /// The number of its last change.
    pub version: u64,
    /// The last change of its bytes or names.
    pub contents: Aspect,
    /// The last change of its rights or extended attributes.
    pub rights: Aspect,
}
wire_struct!(VolumeFile { identity, places, print, version, contents, rights });

impl VolumeFile {
    /// Returns one of the places where it was seen.
    pub fn place(&self) -> Option<&Place> {
        self.places.last()
    }
}

/// What was learned of a file: this is its state now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Learned {
    /// The file's id.
    pub id: FileId,
    /// What is known now.
    pub file: VolumeFile,
}
wire_struct!(Learned { id, file });

/// The files of a volume, and its journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Volume {
    number: u16,
    journal: Journal,
    files: BTreeMap<FileId, VolumeFile>,
    by_identity: HashMap<Vec<u8>, FileId>,
    by_place: HashMap<Place, FileId>,
    next: u64,
    /// Ids of clients for files that existed already, with the ids of these files.
    aliases: BTreeMap<FileId, FileId>,
    /// The files that aliases mean.
    aliased: HashSet<FileId>,
    /// The numbers and indices between runs, which no change and no file has got.
    gaps: Vec<Gap>,
}

/// Numbers and indices that no run has given.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Gap {
    /// The last number before the gap.
    last: u64,
    /// The first number after it.
    first: u64,
    /// The first index that was not given before the gap.
    end: u64,
    /// The first index that may be given after it.
    next: u64,
}
wire_struct!(Gap { last, first, end, next });

/// Where a run's numbers and indices begin, so that it repeats none that an earlier run gave and
/// this one does not know of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunStart {
    /// All changes of the run have greater numbers.
    pub seq: u64,
    /// The first index that it gives out.
    pub next: u64,
}
wire_struct!(RunStart { seq, next });

impl Volume {
    /// Makes an empty volume. The caller never uses an epoch twice.
    pub fn new(number: u16, epoch: u64) -> Volume {
        Volume {
            number,
            journal: Journal::new(epoch, JOURNAL_LEN_MAX),
            files: BTreeMap::new(),
            by_identity: HashMap::new(),
            by_place: HashMap::new(),
            next: FileId::ROOT.raw() + 1,
            aliases: BTreeMap::new(),
            aliased: HashSet::new(),
            gaps: Vec::new(),
        }
    }

    /// Returns where a run that starts now begins. Numbers follow the clock in microseconds, and
    /// indices follow it, too. So everything that earlier runs have given since a backup was taken
    /// is less, as long as the clock does not go back.
    pub fn run_start(&self, now: Time) -> RunStart {
        let micros = u64::try_from(now.sec).unwrap_or(0).saturating_mul(1_000_000) + u64::from(now.nsec) / 1_000;
        let seconds = u64::try_from(now.sec - INDEX_START_SECONDS).unwrap_or(0);
        RunStart {
            seq: micros.min(SEQ_MAX).max(self.journal.stamp().seq + 1),
            next: seconds.saturating_mul(INDEX_COUNT_PER_SECOND).min(INDEX_END).max(self.next),
        }
    }

    /// Begins a run. `None` if its numbers go back or are too great.
    pub fn begin_run(&mut self, RunStart { seq, next }: RunStart) -> Option<()> {
        let last = self.journal.stamp().seq;
        if seq <= last || seq > SEQ_MAX || next < self.next || next > INDEX_END {
            return None;
        }
        self.journal.skip_to(seq);
        self.gaps.push(Gap { last, first: seq, end: self.next, next });
        self.next = next;
        if self.gaps.len() > GAP_COUNT_MAX {
            self.gaps.remove(0);
        }
        Some(())
    }

    /// True if this volume has given a change this number, as far as this home knows. Other numbers
    /// were given by a run that the home has forgotten, since its state was restored from a backup.
    pub fn is_given(&self, seq: u64) -> bool {
        let after = self.gaps.partition_point(|gap| gap.first <= seq);
        seq <= self.journal.stamp().seq && self.gaps.get(after).is_none_or(|gap| seq <= gap.last)
    }

    /// True if this volume has given this id, as far as this home knows. 0 is no id, and counts as
    /// given.
    pub fn is_given_id(&self, id: FileId) -> bool {
        let index = id.index();
        let after = self.gaps.partition_point(|gap| gap.next <= index);
        let in_gap = self.gaps.get(after).is_some_and(|gap| index >= gap.end);
        id.raw() == 0 || id.volume() == self.number && index < self.next && !in_gap
    }

    /// Returns the number that a client knows something by, or 0 if this home has not given that
    /// number. Nothing is known by 0.
    pub fn base(&self, seq: u64) -> u64 {
        if self.is_given(seq) { seq } else { 0 }
    }

    /// Returns the id of the root directory.
    pub fn root(&self) -> FileId {
        self.id(FileId::ROOT.raw())
    }

    fn id(&self, index: u64) -> FileId {
        FileId::new(u64::from(self.number) << 48 | index)
    }

    /// Returns the journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Returns a file, if it is known.
    pub fn file(&self, id: FileId) -> Option<&VolumeFile> {
        self.files.get(&id)
    }

    /// Returns the file that a client's id means, if that has another id of its own.
    pub fn alias(&self, id: FileId) -> Option<FileId> {
        self.aliases.get(&id).copied()
    }

    /// Returns the id of the file that an id means.
    pub fn real(&self, id: FileId) -> FileId {
        self.alias(id).unwrap_or(id)
    }

    /// Returns all ids that mean other files, with the ids of these.
    pub fn aliases(&self) -> impl Iterator<Item = (FileId, FileId)> {
        self.aliases.iter().map(|(alias, real)| (*alias, *real))
    }

    /// True if there is room for another id that means a file with an id of its own.
    pub fn has_room_for_aliases(&self) -> bool {
        self.aliases.len() < ALIAS_COUNT_MAX
    }

    /// Makes a client's id mean a file that has its own. `None` if that is inconsistent.
    pub fn became(&mut self, alias: FileId, real: FileId) -> Option<()> {
        let is_new = alias.volume() == self.number && alias.index() < self.next && !self.files.contains_key(&alias);
        if !is_new || !self.files.contains_key(&real) || self.aliases.insert(alias, real).is_some() {
            return None;
        }
        self.aliased.insert(real);
        Some(())
    }

    /// Returns the file with this identity.
    pub fn known(&self, identity: &[u8]) -> Option<FileId> {
        self.by_identity.get(identity).copied()
    }

    /// Returns what was last seen at a place.
    pub fn at(&self, place: &Place) -> Option<FileId> {
        self.by_place.get(place).copied()
    }

    /// Returns all files that have a known place.
    pub fn placed(&self) -> impl Iterator<Item = FileId> {
        self.files.iter().filter(|(_, file)| !file.places.is_empty()).map(|(id, _)| *id)
    }

    /// Returns all names in these directories at which something was seen.
    pub fn names_in(&self, dirs: &BTreeSet<FileId>) -> BTreeMap<FileId, Vec<Vec<u8>>> {
        let mut names: BTreeMap<FileId, Vec<Vec<u8>>> = dirs.iter().map(|dir| (*dir, Vec::new())).collect();
        for (dir, name) in self.by_place.keys() {
            if let Some(names) = names.get_mut(dir) {
                names.push(name.clone());
            }
        }
        // Sorted, so that all runs have the same order.
        names.values_mut().for_each(|names| names.sort_unstable());
        names
    }

    /// Returns the known directories that were seen in these.
    pub fn directories_in(&self, dirs: &BTreeSet<FileId>) -> Vec<FileId> {
        let places =
            self.names_in(dirs).into_iter().flat_map(|(dir, names)| names.into_iter().map(move |name| (dir, name)));
        let files = places.filter_map(|place| self.at(&place));
        files.filter(|file| self.file(*file).is_some_and(|file| file.print.kind == Kind::Directory)).collect()
    }

    /// Returns the first index that was never given out.
    pub fn next_id(&self) -> u64 {
        self.next
    }

    /// Gives out all free indices below `next`. `None` if there are none.
    pub fn reserve(&mut self, next: u64) -> Option<Range<u64>> {
        let first = self.next;
        if next <= first || next > INDEX_END {
            return None;
        }
        self.next = next;
        Some(first..next)
    }

    /// Returns what is learned from seeing a file at a place, after `author` may have changed it.
    /// `None` if all of it was known.
    pub fn seen(&self, identity: &[u8], print: Print, place: Option<&Place>, author: u32) -> Option<Learned> {
        let Some(id) = self.known(identity) else {
            let id = match place {
                None => self.root(),
                Some(_) if self.next == INDEX_END => return None,
                Some(_) => self.id(self.next),
            };
            return Some(self.made(id, identity, print, place, author));
        };
        let before = self.files.get(&id)?;
        if before.print == print && place.is_none_or(|place| before.places.contains(place)) {
            return None;
        }
        let mut file = before.clone();
        let mut moved = false;
        if let Some(place) = place.filter(|place| !before.places.contains(place)) {
            // A directory has one place, and so has a file with one name.
            if print.kind == Kind::Directory || print.nlink <= 1 {
                file.places.clear();
            }
            file.places.push(place.clone());
            moved = true;
        }
        if before.print != print {
            file.version = self.journal.stamp().seq + 1;
            if !before.print.same_contents(&print, moved) {
                file.contents = file.contents.changed(file.version, author);
            }
            if !before.print.same_rights(&print) {
                file.rights = file.rights.changed(file.version, author);
            }
            file.print = print;
        }
        (file != *before).then_some(Learned { id, file })
    }

    /// Returns what is learned if a directory's times have moved, or a file's time of change,
    /// although nothing in it has changed.
    pub fn absorbed(&self, id: FileId, now: Print) -> Option<Learned> {
        let mut file = self.files.get(&id)?.clone();
        let before = std::mem::replace(&mut file.print, now);
        let mtime = if before.kind == Kind::Directory { now.mtime } else { before.mtime };
        let is_alike = Print { mtime, ctime: now.ctime, ..before } == now;
        (is_alike && before != now).then_some(Learned { id, file })
    }

    /// Returns what is learned of a file that was unknown and gets this id.
    pub fn made(&self, id: FileId, identity: &[u8], print: Print, place: Option<&Place>, author: u32) -> Learned {
        let seq = self.journal.stamp().seq;
        let aspect = if author == OTHERS { Aspect::at(seq) } else { Aspect { seq, author, before: 0 } };
        let places = place.cloned().into_iter().collect();
        let file =
            VolumeFile { identity: identity.to_vec(), places, print, version: seq, contents: aspect, rights: aspect };
        Learned { id, file }
    }

    /// Returns what is learned when a client's store has put another file in a file's place, which
    /// is that file from now on. If no other change followed the promise of these contents, the
    /// file keeps the promised number.
    pub fn stored(
        &self,
        id: FileId,
        identity: &[u8],
        print: Print,
        author: u32,
        promised: Option<u64>,
    ) -> Option<Learned> {
        let mut learned = match promised.is_some_and(|seq| self.files.get(&id).is_some_and(|f| f.contents.seq == seq)) {
            true => Learned { id, file: self.files.get(&id)?.clone() },
            false => self.rewritten(id, author)?,
        };
        (learned.file.identity, learned.file.print) = (identity.to_vec(), print);
        Some(learned)
    }

    /// Returns what is learned when a file has new contents, even if its attributes are the same.
    pub fn rewritten(&self, id: FileId, author: u32) -> Option<Learned> {
        let mut file = self.files.get(&id)?.clone();
        file.version = self.journal.stamp().seq + 1;
        file.contents = file.contents.changed(file.version, author);
        Some(Learned { id, file })
    }

    /// Returns what is learned when something of a file has changed that its attributes do not
    /// show.
    pub fn touched(&self, id: FileId, author: u32) -> Option<Learned> {
        let mut file = self.files.get(&id)?.clone();
        file.version = self.journal.stamp().seq + 1;
        match file.print.kind {
            Kind::Directory => file.contents = file.contents.changed(file.version, author),
            _ => file.rights = file.rights.changed(file.version, author),
        }
        Some(Learned { id, file })
    }

    /// Returns what is learned when others may have changed a file, and the home could not look.
    pub fn unsure(&self, id: FileId) -> Option<Learned> {
        let mut file = self.files.get(&id)?.clone();
        file.version = self.journal.stamp().seq + 1;
        Some(Learned { id, file })
    }

    /// Returns what is learned when a file is no longer at a place where it was seen. If that was
    /// its only known place, this is a change of the file.
    pub fn left(&self, place: &Place) -> Option<Learned> {
        let id = self.at(place)?;
        let mut file = self.files.get(&id)?.clone();
        file.places.retain(|other| other != place);
        if file.places.is_empty() {
            file.version = self.journal.stamp().seq + 1;
        }
        Some(Learned { id, file })
    }

    /// Returns what is learned when a file is at none of the places where it was seen.
    pub fn lost(&self, id: FileId) -> Option<Learned> {
        let mut file = self.files.get(&id)?.clone();
        if file.places.is_empty() {
            return None;
        }
        file.places.clear();
        file.version = self.journal.stamp().seq + 1;
        Some(Learned { id, file })
    }

    /// Returns files below a directory whose changes a user may have missed while the directory
    /// was closed, and could now get at: the directory opens, or moves out from below a closed one.
    /// Every change since the closing is among them.
    pub fn revealed(&self, learned: &Learned) -> Vec<FileId> {
        let (id, file) = (learned.id, &learned.file);
        let Some(before) = self.files.get(&id).filter(|before| before.print.kind == Kind::Directory) else {
            return Vec::new();
        };
        let opens = before.print.is_closed() && !before.print.same_rights(&file.print);
        let above = if before.places == file.places { None } else { self.closed_above(id) };
        // When the rights of a closed directory change and it stays closed, the untold changes
        // count as changed now. So its last change of rights is early enough.
        let Some(since) = opens.then_some(before.rights.seq).into_iter().chain(above).min() else { return Vec::new() };
        let is_below = |other: &FileId| *other != id && self.is_below(*other, id);
        match since >= self.journal.floor() {
            true => self.journal.changed_after(since).filter(is_below).collect(),
            false => {
                let changed = self.files.iter().filter(|(_, file)| file.version > since);
                changed.map(|(other, _)| *other).filter(is_below).collect()
            }
        }
    }

    /// Returns the earliest of the last changes of rights of the closed directories above a file.
    fn closed_above(&self, id: FileId) -> Option<u64> {
        let closed = self.above(id).filter_map(|dir| self.files.get(&dir)).filter(|dir| dir.print.is_closed());
        closed.map(|dir| dir.rights.seq).min()
    }

    fn is_below(&self, id: FileId, dir: FileId) -> bool {
        self.above(id).any(|above| above == dir)
    }

    /// Returns the directories above a file, up to the root.
    fn above(&self, id: FileId) -> impl Iterator<Item = FileId> {
        let parent = |id: &FileId| self.files.get(id).and_then(VolumeFile::place).map(|(dir, _)| *dir);
        std::iter::successors(parent(&id), move |dir| parent(dir)).take(DEPTH_MAX)
    }

    /// Takes in what was learned. If the file has changed, the journal gets an entry. `None` if it
    /// is inconsistent.
    pub fn learn(&mut self, learned: Learned) -> Option<()> {
        let Learned { id, file } = learned;
        let seq = self.journal.stamp().seq;
        let version_max = seq.saturating_add(1).min(SEQ_MAX);
        if id.volume() != self.number || file.version > version_max || self.aliases.contains_key(&id) {
            return None;
        }
        let revealed = self.revealed(&Learned { id, file: file.clone() });
        let changed = (file.version > seq).then_some(id);
        let forgotten: Vec<FileId> =
            changed.into_iter().chain(revealed).filter_map(|id| self.journal.replace(id)).collect();
        self.next = self.next.max(id.index() + 1);
        self.forget(id);
        for place in &file.places {
            let before = self.by_place.insert(place.clone(), id).filter(|other| *other != id);
            if let Some(other) = before.and_then(|other| self.files.get_mut(&other)) {
                other.places.retain(|theirs| theirs != place);
            }
        }
        self.by_identity.insert(file.identity.clone(), id);
        self.files.insert(id, file);
        // A client that has not heard of the removal asks about everything that it knows, and the
        // file has no place.
        for gone in forgotten {
            let is_nowhere = self.files.get(&gone).is_some_and(|file| file.places.is_empty());
            if is_nowhere && gone != self.root() && !self.aliased.contains(&gone) {
                self.forget(gone);
            }
        }
        Some(())
    }

    /// Makes a client's changes until now count as those of others. The client begins a new log,
    /// perhaps as an older copy of itself, and need not know of them.
    pub fn disown(&mut self, author: u32) {
        let aspects = self.files.values_mut().flat_map(|file| [&mut file.contents, &mut file.rights]);
        aspects.filter(|aspect| aspect.author == author).for_each(|aspect| *aspect = Aspect::at(aspect.seq));
    }

    fn forget(&mut self, id: FileId) {
        let Some(file) = self.files.remove(&id) else { return };
        if self.by_identity.get(&file.identity) == Some(&id) {
            self.by_identity.remove(&file.identity);
        }
        for place in file.places {
            if self.by_place.get(&place) == Some(&id) {
                self.by_place.remove(&place);
            }
        }
    }

    /// Returns whether a user can reach a file, as far as modes tell. A directory's group bits
    /// bound its ACL: where they are closed, the ACL opens nothing. Where they are open, the ACL
    /// may let in a user outside of the group.
    pub fn reach(&self, user: &User, id: FileId) -> Reach {
        let (mut at, mut reach) = (id, Reach::Likely);
        for _ in 0..DEPTH_MAX {
            let Some((parent, _)) = self.files.get(&at).and_then(VolumeFile::place) else { return reach };
            let Some(print) = self.files.get(parent).map(|dir| &dir.print) else { return reach };
            let of_group = user.gid == print.gid || user.groups.contains(&print.gid);
            match print.mode & 0o011 {
                _ if user.uid == 0 || user.uid == print.uid => {}
                0 => return Reach::No,
                0o010 if !of_group => reach = Reach::Unsure,
                0o001 if of_group => return Reach::No,
                _ => {}
            }
            at = *parent;
        }
        reach
    }
}

/// Encoded as all that is known; decoding rebuilds the indices.
impl Wire for Volume {
    fn encode(&self, out: &mut Vec<u8>) {
        self.number.encode(out);
        self.next.encode(out);
        self.journal.stamp().encode(out);
        self.journal.floor().encode(out);
        self.journal.entries().collect::<Vec<_>>().encode(out);
        let mut files: Vec<Learned> =
            self.files.iter().map(|(id, file)| Learned { id: *id, file: file.clone() }).collect();
        files.sort_unstable_by_key(|learned| learned.id);
        files.encode(out);
        self.aliases.encode(out);
        self.gaps.encode(out);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (number, next) = (u16::decode(r)?, u64::decode(r)?);
        let (stamp, floor) = (Stamp::decode(r)?, u64::decode(r)?);
        let entries = Vec::<(u64, FileId)>::decode(r)?;
        let journal =
            Journal::restore(stamp, floor, entries, JOURNAL_LEN_MAX).ok_or(DecodeError::Invalid("journal"))?;
        if next > INDEX_END || stamp.seq > SEQ_MAX {
            return Err(DecodeError::Invalid("numbers of a volume"));
        }
        let mut volume = Volume { next, journal, ..Volume::new(number, stamp.epoch) };
        let mut last = None;
        for learned in Vec::<Learned>::decode(r)? {
            let invalid = DecodeError::Invalid("file of a volume");
            if learned.file.version > stamp.seq || last.replace(learned.id) >= Some(learned.id) {
                return Err(invalid);
            }
            volume.learn(learned).ok_or(invalid)?;
        }
        for (alias, real) in BTreeMap::<FileId, FileId>::decode(r)? {
            volume.became(alias, real).ok_or(DecodeError::Invalid("id that means another file"))?;
        }
        volume.gaps = Wire::decode(r)?;
        let in_order = volume.gaps.iter().all(|gap| gap.last < gap.first && gap.first <= stamp.seq)
            && volume.gaps.iter().all(|gap| gap.end <= gap.next && gap.next <= next)
            && volume.gaps.windows(2).all(|two| two[0].first <= two[1].last && two[0].next <= two[1].end);
        if !in_order || volume.gaps.len() > GAP_COUNT_MAX {
            return Err(DecodeError::Invalid("numbers that no run has given"));
        }
        Ok(volume)
    }
}
