//! A client that says whatever it likes: it gets errors, and nothing that its user may not have. No other user's file is read or changed, the
//! home's own directory is never reached, and nothing panics.

use bytes::Bytes;
use home::Home;
use home::export::Export;
use home::invitation::{self, Invitation};
use host::sim::{Machine, Sim, SimDisk};
use host::{Random, SplitMix64};
use parking_lot::Mutex;
use roam_wire::channel::{Lost, MESSAGE_LEN_MAX, PeerKey, Push, Service, Session};
use roam_wire::codec::Wire;
use roam_wire::delegation::{Hold, LEASE, Recall, Watch};
use roam_wire::journal::{Since, Stamp};
use roam_wire::message::{
    Applied, Conflict, DATA_LEN_MAX, Facts, Outcome, Pushed, Refusal, Reply, Request, Sent, User, pack, unpack,
};
use roam_wire::operation::{Attributes, Change, Made, Operation, Place};
use roam_wire::ranges::Ranges;
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{FileId, FsError, Kind, Time};
use vfs::FileSystem;
use vfs::fs::{Cred, OpenFlags, SetAttr, XattrMode};
use vfs::mem::MemFs;

const VOLUME: &str = "work";
const OWN: &[u8] = b".starling";
const ROOT: FileId = FileId::ROOT;
/// Who is hostile, and who is not.
const MALLORY: u32 = 1000;
const BOB: u32 = 2000;
const SECRET: &[u8] = b"what only its owner may know";

#[derive(Default)]
struct Pushes(Mutex<Vec<Bytes>>);

impl Push for Pushes {
    fn push(&self, message: Bytes) -> Result<(), Lost> {
        self.0.lock().push(message);
        Ok(())
    }
}

/// A home with files of several users.
struct World {
    sim: Sim,
    fs: MemFs,
    disk: SimDisk,
    machine: Machine,
    home: Home,
}

/// Somebody who is connected.
struct Peer<'a> {
    world: &'a World,
    session: Arc<dyn Session>,
    pushes: Arc<Pushes>,
    next: Mutex<u64>,
}

impl Drop for Peer<'_> {
    fn drop(&mut self) {
        self.session.ended();
    }
}

fn user(uid: u32) -> User {
    User { uid, gid: uid, groups: Vec::new() }
}

impl World {
    fn new() -> World {
        let sim = Sim::new(1);
        let machine = sim.machine("home");
        let clock = machine.host().clock;
        let fs = MemFs::new(Arc::new(move || clock.wall()));
        sim.block_on(populate(&fs));
        let disk = SimDisk::new(&sim, 1 << 30);
        let home = open(&sim, &machine, &disk, &fs);
        World { sim, fs, disk, machine, home }
    }

    /// The home ends and begins again.
    fn restart(&mut self) {
        self.machine.crash();
        self.machine = self.sim.machine("home");
        self.home = open(&self.sim, &self.machine, &self.disk, &self.fs);
    }

    fn connect(&self, key: u8) -> Peer<'_> {
        let pushes = Arc::new(Pushes::default());
        let session = self.home.connected(PeerKey([key; 32]), pushes.clone());
        Peer { world: self, session, pushes, next: Mutex::new(1) }
    }

    fn enroll(&self, key: u8, uid: u32) {
        let until = Time { sec: i64::MAX, nsec: 0 };
        let invitation = Invitation { volume: VOLUME.into(), user: user(uid), until };
        let disk = self.disk.mount(&self.machine);
        self.sim.block_on(invitation::write(&*disk, &[key; 16], &invitation)).expect("invitation");
        let enrolled = self.connect(key).ask(Request::Enroll { secret: [key; 16] });
        assert_eq!(enrolled, Reply::Enrolled { volumes: vec![VOLUME.into()] });
    }

    /// A client of a user, who is attached.
    fn client(&self, key: u8, uid: u32) -> Peer<'_> {
        self.enroll(key, uid);
        self.attach(key)
    }

    fn attach(&self, key: u8) -> Peer<'_> {
        self.attach_to(key, Watch::Changes)
    }

    fn attach_to(&self, key: u8, watch: Watch) -> Peer<'_> {
        let peer = self.connect(key);
        match peer.ask(attach_request(watch)) {
            Reply::Attached { heard, .. } => *peer.next.lock() = heard + 1,
            other => panic!("{other:?}"),
        }
        peer
    }

    /// All files but those below a path, as text. Who reads a file moves its access time, and whoever can reach it may give it another name.
    fn tree(&self, but_for: &str) -> BTreeMap<String, String> {
        let entries = self.fs.dump().into_iter().map(|mut entry| {
            (entry.attr.atime, entry.attr.nlink) = (Time::default(), 1);
            entry.attr.ctime = Time::default();
            (String::from_utf8_lossy(&entry.path).into_owned(), format!("{entry:?}"))
        });
        entries.filter(|(path, _)| !path.starts_with(but_for) && !path.starts_with("/.starling")).collect()
    }
}

fn attach_request(watch: Watch) -> Request {
    Request::Attach { volume: VOLUME.into(), incarnation: 7, acknowledged: 0, stamp: None, watch }
}

fn open(sim: &Sim, machine: &Machine, disk: &SimDisk, fs: &MemFs) -> Home {
    let exported: Arc<dyn Export> = Arc::new(fs.clone());
    let host = machine.host();
    let home = Home::open(&host, disk.mount(machine), vec![(VOLUME.into(), exported)]);
    sim.block_on(home).expect("home")
}

async fn give(fs: &MemFs, id: FileId, uid: u32) {
    let owner = SetAttr { uid: Some(uid), gid: Some(uid), ..SetAttr::default() };
    fs.setattr(&Cred::ROOT, id, None, owner).await.expect("chown");
}

async fn file(fs: &MemFs, dir: FileId, name: &[u8], mode: u32, uid: u32) -> FileId {
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    let (entry, handle) = fs.create(&Cred::ROOT, dir, name, mode, 0, flags).await.expect("create");
    let id = entry.attr.id;
    fs.write(&Cred::ROOT, id, handle, 0, SECRET).await.expect("write");
    fs.release(id, handle, None).await.expect("release");
    give(fs, id, uid).await;
    id
}

async fn directory(fs: &MemFs, name: &[u8], mode: u32, uid: u32) -> FileId {
    let id = fs.mkdir(&Cred::ROOT, ROOT, name, mode, 0).await.expect("mkdir").attr.id;
    give(fs, id, uid).await;
    id
}

/// `/bob` is his, with a diary; `/closed` is his and closed, with a file that all could read; `/mallory` is the hostile client's.
async fn populate(fs: &MemFs) {
    let bob = directory(fs, b"bob", 0o755, BOB).await;
    let diary = file(fs, bob, b"diary", 0o600, BOB).await;
    for name in [&b"user.note"[..], b"trusted.note"] {
        fs.setxattr(&Cred::ROOT, diary, name, SECRET, XattrMode::Any).await.expect("setxattr");
    }
    file(fs, bob, b"letter", 0o644, BOB).await;
    let program = file(fs, bob, b"program", 0o666, BOB).await;
    fs.setxattr(&Cred::ROOT, program, b"security.capability", b"all", XattrMode::Any).await.expect("setxattr");
    let closed = directory(fs, b"closed", 0o700, BOB).await;
    file(fs, closed, b"readable", 0o644, BOB).await;
    let mallory = directory(fs, b"mallory", 0o755, MALLORY).await;
    file(fs, mallory, b"plain", 0o644, MALLORY).await;
}

fn made(kind: Kind, mode: u32) -> Made {
    Made { kind, mode, uid: MALLORY, gid: MALLORY, rdev: 0, target: b"/etc/passwd".to_vec(), when: Time::default() }
}

fn changed(cut: u64, size: u64, ranges: &[(u64, u64)]) -> Change {
    let mut all = Ranges::default();
    ranges.iter().for_each(|(start, end)| all.add(*start..*end));
    Change { cut, size, ranges: all, mtime: Time::default() }
}

impl Peer<'_> {
    fn try_ask(&self, message: Bytes) -> Option<Bytes> {
        self.world.sim.block_on(self.session.answer(message))
    }

    fn ask(&self, request: Request) -> Reply {
        let answer = self.try_ask(pack(&request)).expect("an answer");
        let reply = unpack(&answer).expect("a reply");
        if let Reply::Data(bytes) = &reply {
            let known = bytes.windows(SECRET.len()).any(|part| part == SECRET);
            assert!(!known || matches!(request, Request::Read { .. }));
        }
        reply
    }

    fn sent(&self, operation: Operation, data: &[u8]) -> Sent {
        let mut next = self.next.lock();
        *next += 1;
        Sent { seq: *next - 1, bases: (u64::MAX, u64::MAX), operation, data: Bytes::copy_from_slice(data) }
    }

    fn apply(&self, operations: Vec<Sent>) -> Reply {
        self.ask(Request::Apply { acknowledged: 0, operations })
    }

    fn outcome(&self, operation: Operation, data: &[u8]) -> Outcome {
        let reply = self.apply(vec![self.sent(operation, data)]);
        match reply {
            Reply::Applied(applied) => applied[0].outcome,
            other => panic!("{other:?}"),
        }
    }

    /// EINVAL, EACCES and the like.
    fn refused(&self, operation: Operation, data: &[u8]) {
        let outcome = self.outcome(operation.clone(), data);
        assert!(matches!(outcome, Outcome::Refused(_)), "{operation:?}: {outcome:?}");
    }

    fn not_done(&self, operation: Operation, data: &[u8]) {
        let outcome = self.outcome(operation.clone(), data);
        assert_ne!(outcome, Outcome::Done, "{operation:?}");
    }

    fn list(&self, dir: FileId) -> BTreeMap<Vec<u8>, Facts> {
        match self.ask(Request::List { dir, after: Vec::new() }) {
            Reply::Listing { entries, .. } => entries.into_iter().map(|entry| (entry.name, entry.facts)).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn facts(&self, files: &[FileId]) -> Vec<Facts> {
        match self.ask(Request::Facts { files: files.to_vec() }) {
            Reply::Facts(facts) => facts,
            other => panic!("{other:?}"),
        }
    }

    fn id(&self, dir: FileId, name: &str) -> FileId {
        self.list(dir)[name.as_bytes()].id
    }

    fn ids(&self) -> FileId {
        match self.ask(Request::Ids) {
            Reply::Ids(first, _) => first,
            other => panic!("{other:?}"),
        }
    }

    fn read(&self, file: FileId) -> Reply {
        let contents = self.facts(&[file]).first().map_or(0, |facts| facts.contents);
        self.ask(Request::Read { file, contents, offset: 0, len: 100 })
    }
}

fn at(dir: FileId, name: &[u8]) -> Place {
    (dir, name.to_vec())
}

/// Every way in which an operation can name a place.
fn at_place(place: &Place, file: FileId, dir: FileId) -> Vec<Operation> {
    let free = at(dir, b"free");
    vec![
        Operation::Make { at: place.clone(), file, made: made(Kind::File, 0o644) },
        Operation::Make { at: place.clone(), file, made: made(Kind::Directory, 0o755) },
        Operation::Make { at: place.clone(), file, made: made(Kind::Symlink, 0o777) },
        Operation::Link { file, at: place.clone() },
        Operation::Rename { file, from: at(dir, b"plain"), to: place.clone(), replaced: None },
        Operation::Rename { file, from: at(dir, b"plain"), to: place.clone(), replaced: Some((file, true)) },
        Operation::Rename { file, from: place.clone(), to: free, replaced: None },
        Operation::Exchange { file, from: place.clone(), other: file, to: at(dir, b"plain") },
        Operation::Exchange { file, from: at(dir, b"plain"), other: file, to: place.clone() },
        Operation::Remove { at: place.clone(), file, last: true },
    ]
}

#[test]
fn names_that_are_none_are_refused() {
    let world = World::new();
    let mallory = world.client(1, MALLORY);
    let root = world.home.state().volumes[VOLUME].root();
    let dir = mallory.id(root, "mallory");
    let plain = mallory.id(dir, "plain");
    let before = world.tree("nowhere");
    let names =
        [&b""[..], b".", b"..", b"/", b"../bob/diary", b"a/b", b"/etc/passwd", b"a\0b", &[b'x'; 256], &[b'x'; 100_000]];
    for name in names {
        for operation in at_place(&at(dir, name), plain, dir) {
            mallory.refused(operation, b"");
        }
    }
    assert_eq!(world.tree("nowhere"), before);
}

#[test]
fn the_homes_own_directory_is_reached_by_no_name_and_no_id() {
    let world = World::new();
    // The superuser may do whatever can be done at all.
    for (key, uid) in [(1, MALLORY), (2, 0)] {
        let peer = world.client(key, uid);
        let root = world.home.state().volumes[VOLUME].root();
        assert_eq!(peer.ask(Request::Upload { seq: 9999, offset: 0, data: SECRET.into() }), Reply::Done);
        assert!(!peer.list(root).contains_key(OWN));
        assert_eq!(peer.facts(&[root])[0].nlink, 2 + 3, "it does not count as a directory in the root");
        let dir = peer.id(root, "mallory");
        let plain = peer.id(dir, "plain");
        for file in [plain, dir, root] {
            for operation in at_place(&at(root, OWN), file, dir) {
                assert_eq!(peer.outcome(operation, b""), Outcome::Refused(FsError::InvalidArgument));
            }
        }
        let own: Vec<u64> = world.sim.block_on(async {
            let own = world.fs.lookup(&Cred::ROOT, ROOT, OWN).await.expect("it is there").attr.id;
            let listed = world.fs.list(own).await.expect("list");
            listed.iter().map(|(_, entry, _)| entry.attr.id.raw()).chain([own.raw()]).collect()
        });
        assert_eq!(own.len(), 1 + usize::from(key), "what was uploaded is there");
        // By the ids that it has to the file system behind, and by all that are near those that were given out.
        let known: Vec<FileId> = [root, dir, plain].into_iter().chain(peer.list(root).values().map(|f| f.id)).collect();
        for raw in (0..200).chain(own).chain([u64::MAX, 1 << 48 | 1, (1 << 48) - 1]) {
            let id = FileId::new(raw);
            if known.contains(&id) || world.home.state().volumes[VOLUME].file(id).is_some() {
                continue;
            }
            assert_eq!(peer.facts(&[id]), [], "{id}");
            assert!(matches!(peer.ask(Request::List { dir: id, after: vec![] }), Reply::Failed(_)));
            let read = Request::Read { file: id, contents: 0, offset: 0, len: 100 };
            assert!(matches!(peer.ask(read), Reply::Failed(_)));
            for operation in at_place(&at(id, b"upload-1-9999"), plain, dir) {
                peer.not_done(operation, b"");
            }
            peer.not_done(Operation::Store { file: id, change: changed(0, 3, &[(0, 3)]) }, b"new");
            peer.not_done(Operation::Link { file: id, at: at(dir, b"link") }, b"");
        }
    }
}

#[test]
fn what_a_user_may_not_read_or_change_stays_as_it_is_and_unknown() {
    let world = World::new();
    let mallory = world.client(1, MALLORY);
    let root = world.home.state().volumes[VOLUME].root();
    let (bob, closed) = (mallory.id(root, "bob"), mallory.id(root, "closed"));
    let dir = mallory.id(root, "mallory");
    let (diary, letter) = (mallory.id(bob, "diary"), mallory.id(bob, "letter"));
    // Another client has made the files in the closed directory known.
    let bobs = world.client(2, BOB);
    let readable = bobs.id(closed, "readable");
    let before = world.tree("nowhere");
    assert_eq!(mallory.read(letter), Reply::Data(SECRET.into()), "for comparison");
    assert_eq!(bobs.read(diary), Reply::Data(SECRET.into()), "for comparison");

    assert_eq!(mallory.read(diary), Reply::Failed(FsError::AccessDenied));
    assert_eq!(mallory.read(readable), Reply::Failed(FsError::AccessDenied));
    assert_eq!(mallory.facts(&[readable]), []);
    let stale = Request::Validate { files: vec![(readable, 0), (readable, 1)] };
    assert_eq!(mallory.ask(stale), Reply::Stale(vec![readable, readable]));
    assert_eq!(mallory.ask(Request::List { dir: closed, after: vec![] }), Reply::Failed(FsError::AccessDenied));
    for file in [diary, letter, readable, bob, closed, root] {
        for name in [&b"x"[..], b"diary", b"readable"] {
            for operation in
                at_place(&at(bob, name), file, dir).into_iter().chain(at_place(&at(closed, name), file, dir))
            {
                // What is so already may be said to be done.
                if !matches!(operation, Operation::Remove { .. } | Operation::Link { .. }) {
                    mallory.not_done(operation, b"");
                }
            }
        }
        // Nor is what is there told by way of what would change nothing.
        for data in [SECRET, b"something else"] {
            let change = changed(0, data.len() as u64, &[(0, data.len() as u64)]);
            mallory.not_done(Operation::Store { file, change }, data);
        }
        for attributes in [
            Attributes { mode: Some(0o777), ..Attributes::default() },
            Attributes { uid: Some(MALLORY), ..Attributes::default() },
            Attributes { gid: Some(MALLORY), ..Attributes::default() },
            Attributes { mtime: Some(Time { sec: 1, nsec: 1 }), ..Attributes::default() },
        ] {
            mallory.refused(Operation::Set { file, attributes }, b"");
        }
        for name in [&b"user.x"[..], b"trusted.x", b"security.capability", b"system.posix_acl_access", b"", b"user.\0"]
        {
            for value in [Some(SECRET.to_vec()), Some(vec![]), Some(vec![0; 100_000])] {
                mallory.not_done(Operation::SetXattr { file, name: name.to_vec(), value }, b"");
            }
        }
    }
    let remove = |place: Place, file| mallory.not_done(Operation::Remove { at: place, file, last: false }, b"");
    remove(at(bob, b"letter"), letter);
    remove(at(closed, b"readable"), readable);
    remove(at(root, b"bob"), bob);
    mallory.not_done(Operation::Rename { file: bob, from: at(root, b"bob"), to: at(dir, b"bob"), replaced: None }, b"");
    assert_eq!(world.tree("nowhere"), before);
}

#[test]
fn extended_attributes_are_told_to_whom_may_read_them() {
    let world = World::new();
    let root = world.home.state().volumes[VOLUME].root();
    let names = |peer: &Peer| {
        let bob = peer.id(root, "bob");
        let (told, listed) = (peer.facts(&[peer.id(bob, "diary")]).remove(0), peer.list(bob).remove(&b"diary"[..]));
        assert_eq!(Some(&told), listed.as_ref());
        let names = told.xattrs.into_iter().map(|(name, _)| String::from_utf8(name).expect("text"));
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&world.client(1, MALLORY)), Vec::<String>::new());
    assert_eq!(names(&world.client(2, BOB)), ["user.note"]);
    assert_eq!(names(&world.client(3, 0)).len(), 2);
}

#[test]
fn more_extended_attributes_than_a_message_can_tell_are_left_out() {
    let world = World::new();
    let peer = world.client(1, MALLORY);
    let root = world.home.state().volumes[VOLUME].root();
    let dir = peer.id(root, "mallory");
    let plain = peer.id(dir, "plain");
    for n in 0..40 {
        let (name, value) = (format!("user.{n}").into_bytes(), Some(vec![n; 60_000]));
        assert_eq!(peer.outcome(Operation::SetXattr { file: plain, name, value }, b""), Outcome::Done);
    }
    assert!(peer.facts(&[plain])[0].to_bytes().len() < MESSAGE_LEN_MAX / 2);
    // A list of them that none could read is refused, rather than cut short: what is missing would be taken for gone.
    assert_eq!(peer.ask(Request::Facts { files: vec![plain; 10] }), Reply::Failed(FsError::ArgumentTooBig));
    assert_eq!(peer.ask(Request::Facts { files: vec![plain; 5000] }), Reply::Failed(FsError::ArgumentTooBig));
    // Answers to operations are, for these are asked for again.
    let set = |sec| Operation::Set {
        file: plain,
        attributes: Attributes { mtime: Some(Time { sec, nsec: 0 }), ..Attributes::default() },
    };
    let mut sent: Vec<Sent> = (0..10).map(|sec| peer.sent(set(sec), b"")).collect();
    for round in 0.. {
        let Reply::Applied(applied) = peer.apply(sent.clone()) else { panic!() };
        assert!(applied.iter().all(|applied| applied.outcome == Outcome::Done) && !applied.is_empty());
        sent.drain(..applied.len());
        if sent.is_empty() {
            assert!(round > 1);
            break;
        }
    }
}

#[test]
fn a_file_without_a_name_is_told_to_nobody() {
    let world = World::new();
    let (mallory, bobs) = (world.client(1, MALLORY), world.client(2, BOB));
    let root = world.home.state().volumes[VOLUME].root();
    let closed = bobs.id(root, "closed");
    let readable = bobs.id(closed, "readable");
    // It is open still, and somebody has removed it.
    world.sim.block_on(async {
        let dir = world.fs.lookup(&Cred::ROOT, ROOT, b"closed").await.expect("there").attr.id;
        let id = world.fs.lookup(&Cred::ROOT, dir, b"readable").await.expect("there").attr.id;
        world.fs.open(&Cred::ROOT, id, OpenFlags { read: true, ..OpenFlags::default() }).await.expect("open");
        world.fs.unlink(&Cred::ROOT, dir, b"readable").await.expect("unlink");
    });
    assert_eq!(
        bobs.outcome(Operation::Remove { at: at(closed, b"readable"), file: readable, last: true }, b""),
        Outcome::Done
    );
    assert_eq!(mallory.facts(&[readable]), []);
    assert_eq!(mallory.read(readable), Reply::Failed(FsError::Stale));
}

#[test]
fn ids_that_are_not_the_clients_own_make_nothing() {
    let world = World::new();
    let (mallory, bobs) = (world.client(1, MALLORY), world.client(2, BOB));
    let root = world.home.state().volumes[VOLUME].root();
    let dir = mallory.id(root, "mallory");
    let letter = mallory.id(mallory.id(root, "bob"), "letter");
    let (mine, theirs) = (mallory.ids(), bobs.ids());
    let other_volume = FileId::new(1 << 48 | mine.raw());
    let before = world.tree("nowhere");
    let others = [0, 1, u64::MAX, theirs.raw(), theirs.raw() + 1, mine.raw() - 1, mine.raw() + (1 << 30)];
    for file in others.map(FileId::new).into_iter().chain([root, dir, letter, other_volume]) {
        for kind in [Kind::File, Kind::Directory, Kind::Symlink, Kind::Fifo] {
            let make = Operation::Make { at: at(dir, b"new"), file, made: made(kind, 0o644) };
            assert_eq!(mallory.outcome(make, b""), Outcome::Refused(FsError::InvalidArgument), "{file}");
        }
    }
    assert_eq!(world.tree("nowhere"), before);
    assert_eq!(mallory.id(root, "mallory"), dir);
    let make = |name: &[u8]| Operation::Make { at: at(dir, name), file: mine, made: made(Kind::File, 0o644) };
    assert_eq!(mallory.outcome(make(b"new"), b""), Outcome::Done, "for comparison");
    // An id is one file for ever.
    mallory.outcome(make(b"newer"), b"");
    assert_eq!(mallory.id(dir, "new"), mine);
    assert!(!mallory.list(dir).contains_key(&b"newer"[..]));
    // Devices are not for users, whatever the mode says.
    for (kind, mode) in [(Kind::CharDevice, 0o666), (Kind::BlockDevice, 0o666), (Kind::File, 0o020_666)] {
        let file = FileId::new(mine.raw() + 1);
        mallory.refused(Operation::Make { at: at(dir, b"device"), file, made: made(kind, mode) }, b"");
    }
}

/// Ids that mean other files mean files that have ids of their own.
fn check_aliases(world: &World) -> usize {
    let state = world.home.state();
    let volume = &state.volumes[VOLUME];
    for (alias, real) in volume.aliases() {
        assert!(volume.file(alias).is_none() && volume.alias(real).is_none() && volume.file(real).is_some());
    }
    volume.aliases().count()
}

#[test]
fn ids_that_mean_what_was_there_already_lead_nowhere_else() {
    let mut world = World::new();
    let before = world.tree("/mallory");
    let (dir, mine, root) = {
        let (mallory, bobs) = (world.client(1, MALLORY), world.client(2, BOB));
        let root = world.home.state().volumes[VOLUME].root();
        let dir = mallory.id(root, "mallory");
        let (bob, closed) = (mallory.id(root, "bob"), mallory.id(root, "closed"));
        let (diary, readable) = (mallory.id(bob, "diary"), bobs.id(closed, "readable"));
        let first = mallory.ids();
        let mine = |n| FileId::new(first.raw() + n);
        let make = |place: Place, file, kind| Operation::Make { at: place, file, made: made(kind, 0o777) };
        let invalid = Outcome::Refused(FsError::InvalidArgument);
        let kind = Kind::Directory;
        assert_eq!(mallory.outcome(make(at(root, b"bob"), mine(0), kind), b""), Outcome::Became(bob));
        assert_eq!(mallory.outcome(make(at(root, b"closed"), mine(1), kind), b""), Outcome::Became(closed));
        // The real names of what may not be known are not told.
        let denied = Outcome::Refused(FsError::AccessDenied);
        for name in [&b"readable"[..], b"nothing"] {
            assert_eq!(mallory.outcome(make(at(mine(1), name), mine(2), kind), b""), denied);
        }
        assert_eq!(mallory.facts(&[mine(1)]), mallory.facts(&[closed]));
        assert_eq!(mallory.list(mine(0)), mallory.list(bob));
        assert_eq!(mallory.ask(Request::List { dir: mine(1), after: vec![] }), Reply::Failed(FsError::AccessDenied));
        for (place, file) in [(mine(0), diary), (mine(1), readable)] {
            for operation in at_place(&at(place, b"x"), file, dir) {
                if !matches!(operation, Operation::Remove { .. }) {
                    mallory.not_done(operation, b"");
                }
            }
        }
        for (file, name) in [(mine(0), &b"bob"[..]), (mine(1), b"closed")] {
            mallory.refused(Operation::Remove { at: at(root, name), file, last: true }, b"");
            let to = at(dir, b"moved");
            mallory.refused(Operation::Rename { file, from: at(root, name), to, replaced: None }, b"");
            // What it did to its own is not done to this.
            let attributes = Attributes { mode: Some(0o777), ..Attributes::default() };
            assert_eq!(mallory.outcome(Operation::Set { file, attributes }, b""), Outcome::Done);
            let (name, value) = (b"user.x".to_vec(), Some(vec![7]));
            assert_eq!(mallory.outcome(Operation::SetXattr { file, name, value }, b""), Outcome::Done);
        }
        // It is one directory for ever.
        assert_eq!(mallory.outcome(make(at(dir, b"new"), mine(0), kind), b""), Outcome::Became(bob));
        assert_eq!(mallory.outcome(make(at(dir, b"new"), mine(0), Kind::File), b""), invalid);
        assert_eq!(mallory.outcome(make(at(dir, b"plain"), mine(3), kind), b""), Outcome::Conflict(Conflict::Taken));
        // Others cannot give it, but may ask by it what they may know.
        assert_eq!(bobs.outcome(make(at(bob, b"new"), mine(0), kind), b""), invalid);
        assert_eq!(bobs.outcome(make(at(bob, b"new"), mine(9), kind), b""), invalid);
        assert_eq!(bobs.facts(&[mine(1)])[0].id, closed);
        // Nor does it lead to another, or into itself.
        assert_eq!(mallory.outcome(make(at(dir, b"sub"), mine(4), kind), b""), Outcome::Done);
        assert_eq!(mallory.outcome(make(at(dir, b"sub"), mine(5), kind), b""), Outcome::Became(mine(4)));
        assert_eq!(mallory.outcome(make(at(mine(5), b"deep"), mine(6), kind), b""), Outcome::Done);
        assert_eq!(mallory.outcome(make(at(mine(5), b"deep"), mine(7), kind), b""), Outcome::Became(mine(6)));
        let into = at(mine(7), b"loop");
        mallory.refused(Operation::Rename { file: mine(5), from: at(dir, b"sub"), to: into, replaced: None }, b"");
        assert_eq!(mallory.outcome(make(at(mine(8), b"x"), mine(8), kind), b""), Outcome::Conflict(Conflict::Gone));
        (dir, first, root)
    };
    assert_eq!(check_aliases(&world), 4);
    same(&world.tree("/mallory"), &before, "at last");
    let known = world.home.state().volumes[VOLUME].clone();
    world.restart();
    assert_eq!(check_aliases(&world), 4);
    assert_eq!(world.home.state().volumes[VOLUME].real(mine), known.real(mine));
    let mallory = world.attach(1);
    assert_eq!(mallory.list(mine), mallory.list(mallory.id(root, "bob")));
    assert_eq!(mallory.list(FileId::new(mine.raw() + 5)), mallory.list(mallory.id(dir, "sub")));
}

/// What was announced, and not done because something before it waits, was taken for done when the home started again.
#[test]
fn regression_what_waits_is_not_taken_for_done_by_a_home_that_starts() {
    for uid in [MALLORY, 0] {
        let mut world = World::new();
        {
            let peer = world.client(1, uid);
            let root = world.home.state().volumes[VOLUME].root();
            let first = peer.ids().raw();
            let missing = Change { cut: 0, size: 5, ranges: Ranges::of(0..5), mtime: Time::default() };
            let plain = peer.id(peer.id(root, "mallory"), "plain");
            let mut sent = vec![peer.sent(Operation::Store { file: plain, change: missing }, b"")];
            let places = [at(root, OWN), at(root, b"bob"), at(root, b".."), at(root, b"."), at(root, b"mallory/plain")];
            for (place, n) in places.into_iter().zip(0..) {
                for (file, kind) in [(first + n, Kind::Directory), (first + n, Kind::File), (1 << 40, Kind::Directory)]
                {
                    let file = FileId::new(file);
                    sent.push(peer.sent(Operation::Make { at: place.clone(), file, made: made(kind, 0o777) }, b""));
                }
            }
            assert_eq!(peer.apply(sent), Reply::Failed(FsError::TimedOut));
        }
        let before = world.tree("nowhere");
        world.restart();
        if uid != 0 {
            assert_eq!(world.tree("nowhere"), before);
        }
        let peer = world.attach(1);
        let root = world.home.state().volumes[VOLUME].root();
        assert!(!peer.list(root).contains_key(OWN));
        let own = world.sim.block_on(async {
            let own = world.fs.lookup(&Cred::ROOT, ROOT, OWN).await.expect("it is there").attr.id;
            world.fs.identity(own).await.expect("identity")
        });
        assert_eq!(world.home.state().volumes[VOLUME].known(&own), None);
    }
}

#[test]
fn ids_do_not_run_out_for_others() {
    let world = World::new();
    let mallory = world.client(1, MALLORY);
    let mut ranges = 0;
    while let Reply::Ids(..) = mallory.ask(Request::Ids) {
        ranges += 1;
    }
    assert!(ranges >= 1000);
    world.client(2, BOB).ids();
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    let world = World::new();
    let mallory = world.client(1, MALLORY);
    let root = world.home.state().volumes[VOLUME].root();
    let dir = mallory.id(root, "mallory");
    let plain = mallory.id(dir, "plain");
    let before = world.tree("nowhere");
    let most = u64::MAX;
    for change in [
        changed(0, most, &[]),
        changed(0, 1 << 63, &[]),
        changed(most, 3, &[(0, 3)]),
        changed(4, 3, &[(0, 3)]),
        changed(0, 3, &[(0, most)]),
        changed(0, most, &[(0, most)]),
        changed(0, most, &[(most - 3, most)]),
        changed(0, 3, &[(1, 4)]),
        changed(0, 3, &[(3, 6)]),
        changed(0, 10, &[(0, 2)]),
        changed(0, 10, &[(0, 4)]),
    ] {
        mallory.refused(Operation::Store { file: plain, change }, b"new");
    }
    // What was not uploaded may come yet.
    let missing = mallory.sent(Operation::Store { file: plain, change: changed(0, 5, &[(0, 5)]) }, b"");
    assert_eq!(mallory.apply(vec![missing]), Reply::Failed(FsError::TimedOut));
    assert_eq!(world.tree("nowhere"), before);
    let upload = |seq, offset| mallory.ask(Request::Upload { seq, offset, data: b"abc".as_slice().into() });
    for offset in [1, most, most - 2, most - 3, 1 << 63] {
        assert!(matches!(upload(7, offset), Reply::Failed(_)), "{offset}");
    }
    assert_eq!((upload(most, 0), upload(0, 0)), (Reply::Done, Reply::Done));
    let contents = mallory.facts(&[plain])[0].contents;
    for offset in [1 << 40, most, most - 1, 1 << 63] {
        let read = Request::Read { file: plain, contents, offset, len: u32::MAX };
        assert!(matches!(mallory.ask(read), Reply::Data(bytes) if bytes.is_empty()));
    }
    let stamps = [Stamp { epoch: 0, seq: most }, Stamp { epoch: most, seq: 0 }];
    for stamp in stamps {
        assert!(matches!(mallory.ask(Request::Since { stamp }), Reply::Since(Since::Reset { .. })));
    }
    for attributes in [
        Attributes { mode: Some(0o10_000), ..Attributes::default() },
        Attributes { mode: Some(u32::MAX), ..Attributes::default() },
        Attributes { uid: Some(u32::MAX), ..Attributes::default() },
        Attributes { gid: Some(u32::MAX), ..Attributes::default() },
    ] {
        mallory.refused(Operation::Set { file: plain, attributes }, b"");
    }
    for sec in [i64::MIN, i64::MAX] {
        let time = Some(Time { sec, nsec: 999_999_999 });
        let attributes = Attributes { atime: time, mtime: time, ..Attributes::default() };
        mallory.outcome(Operation::Set { file: plain, attributes }, b"");
    }
    mallory.list(dir);
}

#[test]
fn an_operation_is_done_once_whatever_the_order_of_numbers() {
    let world = World::new();
    let mallory = world.client(1, MALLORY);
    let root = world.home.state().volumes[VOLUME].root();
    let dir = mallory.id(root, "mallory");
    let first = mallory.ids();
    let make = |seq, n: u64| Sent {
        seq,
        bases: (0, 0),
        operation: Operation::Make {
            at: at(dir, n.to_string().as_bytes()),
            file: FileId::new(first.raw() + n),
            made: made(Kind::File, 0o644),
        },
        data: Bytes::new(),
    };
    let invalid = Reply::Failed(FsError::InvalidArgument);
    assert_eq!(mallory.apply(vec![make(5, 0), make(5, 1)]), invalid);
    assert_eq!(mallory.apply(vec![make(5, 0), make(4, 1)]), invalid);
    assert_eq!(mallory.list(dir).len(), 1, "nothing was done");
    let outcomes = |reply| match reply {
        Reply::Applied(applied) => applied.iter().map(|a: &Applied| (a.seq, a.outcome)).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(outcomes(mallory.apply(vec![make(5, 0), make(6, 1)])), [(5, Outcome::Done), (6, Outcome::Done)]);
    // The number says what it was.
    assert_eq!(outcomes(mallory.apply(vec![make(5, 2), make(6, 3)])), [(5, Outcome::Done), (6, Outcome::Done)]);
    assert_eq!(mallory.list(dir).len(), 3);
    assert_eq!(mallory.apply(vec![make(4, 4)]), invalid, "it never was one");
    assert_eq!(outcomes(mallory.apply(vec![make(u64::MAX - 1, 5)])), [(u64::MAX - 1, Outcome::Done)]);
    assert_eq!(outcomes(mallory.apply(vec![make(u64::MAX - 1, 6)])), [(u64::MAX - 1, Outcome::Done)]);
    let all = Request::Apply { acknowledged: u64::MAX, operations: vec![] };
    assert_eq!(mallory.ask(all), Reply::Applied(vec![]));
    assert_eq!(mallory.apply(vec![make(u64::MAX - 1, 7)]), invalid);
    assert_eq!(mallory.list(dir).len(), 4);
    let more = Request::Attach {
        volume: VOLUME.into(),
        incarnation: 8,
        acknowledged: u64::MAX,
        stamp: None,
        watch: Watch::Nothing,
    };
    assert_eq!(mallory.ask(more), Reply::Refused(Refusal::Forgotten));
}

#[test]
fn a_program_that_somebody_else_has_changed_can_do_no_more_than_its_user() {
    let world = World::new();
    let mallory = world.client(1, MALLORY);
    let root = world.home.state().volumes[VOLUME].root();
    let program = mallory.id(mallory.id(root, "bob"), "program");
    let bytes = b"something of my own";
    let change = changed(0, bytes.len() as u64, &[(0, bytes.len() as u64)]);
    assert_eq!(mallory.outcome(Operation::Store { file: program, change }, bytes), Outcome::Done);
    let tree = world.fs.dump();
    let changed = tree.iter().find(|entry| entry.path == b"/bob/program").expect("it is there");
    assert_eq!((changed.attr.size, changed.xattrs.len()), (bytes.len() as u64, 0), "{changed:?}");
}

#[test]
fn whoever_is_not_attached_is_told_nothing() {
    let world = World::new();
    let stranger = world.connect(9);
    let attach = |volume: &str| Request::Attach {
        volume: volume.into(),
        incarnation: 1,
        acknowledged: 0,
        stamp: None,
        watch: Watch::Changes,
    };
    let detached = Reply::Refused(Refusal::Detached);
    for request in [
        Request::Facts { files: vec![ROOT] },
        Request::List { dir: ROOT, after: vec![] },
        Request::Read { file: ROOT, contents: 0, offset: 0, len: 9 },
        Request::Since { stamp: Stamp { epoch: 0, seq: 0 } },
        Request::Validate { files: vec![(ROOT, 0)] },
        Request::Upload { seq: 1, offset: 0, data: Bytes::new() },
        Request::Apply { acknowledged: 0, operations: vec![] },
        Request::Space,
        Request::Ids,
    ] {
        assert_eq!(stranger.ask(request), detached);
    }
    // Nor which volumes there are.
    for volume in [VOLUME, "", "../home", "another"] {
        assert_eq!(stranger.ask(attach(volume)), Reply::Refused(Refusal::Stranger));
    }
    for secret in [[0; 16], [255; 16]] {
        assert_eq!(stranger.ask(Request::Enroll { secret }), Reply::Refused(Refusal::Secret));
    }
    world.enroll(1, MALLORY);
    assert_eq!(world.connect(1).ask(attach("another")), Reply::Refused(Refusal::Volume));
    // An invitation is for one.
    assert_eq!(stranger.ask(Request::Enroll { secret: [1; 16] }), Reply::Refused(Refusal::Secret));
}

#[test]
fn what_is_no_request_ends_the_connection() {
    let world = World::new();
    let peer = world.client(1, MALLORY);
    let reply = pack(&Reply::Data(vec![0; 1 << 19].into()));
    for message in [&b""[..], b"\x00", b"\x02", b"\x01\x28\xb5\x2f\xfd", &[0xff; 1000], &[0; 1000], &reply] {
        assert_eq!(peer.try_ask(Bytes::copy_from_slice(message)), None);
    }
    let long = Request::Read { file: ROOT, contents: 0, offset: 0, len: DATA_LEN_MAX as u32 };
    assert!(peer.try_ask(pack(&long)).is_some());
}

#[test]
fn uploads_are_bounded_and_may_come_from_several_connections_at_once() {
    let world = World::new();
    let peer = world.client(1, MALLORY);
    let other = world.attach(1);
    let ask = |peer: &Peer, seq| {
        let message = pack(&Request::Upload { seq, offset: 0, data: SECRET.into() });
        peer.session.answer(message)
    };
    let count = || {
        world.sim.block_on(async {
            let own = world.fs.lookup(&Cred::ROOT, ROOT, OWN).await.expect("it is there").attr.id;
            world.fs.list(own).await.expect("list").len()
        })
    };
    let busy: usize = (1..400)
        .filter(|seq| {
            let (first, second) = (ask(&peer, *seq), ask(&other, *seq));
            let answers = world.sim.block_on(async { [first.await, second.await] });
            let replies: [Reply; 2] = answers.map(|answer| unpack(&answer.expect("an answer")).expect("a reply"));
            assert_eq!(replies[0], replies[1]);
            replies[0] == Reply::Failed(FsError::Busy)
        })
        .count();
    assert_eq!((busy, count()), (399 - 256, 256));
}

#[test]
fn deep_directories_that_are_gone_do_not_keep_a_home_from_starting() {
    let mut world = World::new();
    {
        let peer = world.client(1, 0);
        let root = world.home.state().volumes[VOLUME].root();
        let first = peer.ids().raw();
        let mut dir = root;
        for batch in 0..60 {
            let make = |n: u64| {
                let file = FileId::new(first + n);
                let parent = if n == 0 { dir } else { FileId::new(first + n - 1) };
                peer.sent(Operation::Make { at: at(parent, b"d"), file, made: made(Kind::Directory, 0o755) }, b"")
            };
            let Reply::Applied(applied) = peer.apply((batch * 100..batch * 100 + 100).map(make).collect()) else {
                panic!()
            };
            assert!(applied.iter().all(|applied| applied.outcome == Outcome::Done));
        }
        dir = FileId::new(first + 5999);
        assert!(world.home.state().volumes[VOLUME].file(dir).is_some());
    }
    // While the home is away, all of it is moved to where no client knows it.
    world.machine.crash();
    world.sim.block_on(async {
        let hidden = directory(&world.fs, b"hidden", 0o700, 0).await;
        world.fs.rename(&Cred::ROOT, ROOT, b"d", hidden, b"d", Default::default()).await.expect("rename");
    });
    world.restart();
    let peer = world.attach(1);
    let root = world.home.state().volumes[VOLUME].root();
    assert!(peer.list(root).contains_key(&b"hidden"[..]));
}

#[test]
fn more_changes_than_a_message_can_tell_are_told_nevertheless() {
    let mut world = World::new();
    let root = world.home.state().volumes[VOLUME].root();
    let count = 110_000;
    world.sim.block_on(async {
        let dir = directory(&world.fs, b"many", 0o777, 0).await;
        for n in 0..count {
            let node = vfs::fs::NewNode { kind: Kind::Fifo, mode: 0o644, umask: 0, rdev: 0 };
            world.fs.mknod(&Cred::ROOT, dir, format!("{n}").as_bytes(), node).await.expect("mknod");
        }
    });
    let stamp = {
        let peer = world.client(1, MALLORY);
        let dir = peer.id(root, "many");
        let mut after = Vec::new();
        while let Reply::Listing { entries, more: true, .. } = peer.ask(Request::List { dir, after }) {
            after = entries.last().expect("some").name.clone();
        }
        world.home.state().volumes[VOLUME].journal().stamp()
    };
    world.machine.crash();
    world.sim.block_on(async {
        let dir = world.fs.lookup(&Cred::ROOT, ROOT, b"many").await.expect("there").attr.id;
        for n in 0..count {
            world.fs.unlink(&Cred::ROOT, dir, format!("{n}").as_bytes()).await.expect("unlink");
        }
    });
    world.restart();
    let peer = world.attach(1);
    let reply = peer.ask(Request::Since { stamp });
    assert!(matches!(reply, Reply::Since(Since::Reset { .. })), "they do not fit");
    assert!(reply.to_bytes().len() < MESSAGE_LEN_MAX);
}

/// Anything at all, with numbers and names that are known, and others.
fn anything(random: &SplitMix64, files: &[FileId], dirs: &[FileId]) -> Operation {
    let below = |n: usize| (random.next_u64() % n as u64) as usize;
    let number = || [0, 1, 5, 100, 1 << 20, 1 << 40, 1 << 62, u64::MAX - 1, u64::MAX][below(9)];
    let id = || match below(8) {
        0 => FileId::new(number()),
        1..=2 => dirs[below(dirs.len())],
        _ => files[below(files.len())],
    };
    let place = || {
        let names =
            [&b"a"[..], b"b", b"plain", b"diary", b"letter", b"readable", b"bob", b"closed", OWN, b"..", b"a/b"];
        (if below(5) == 0 { id() } else { dirs[below(dirs.len())] }, names[below(names.len())].to_vec())
    };
    let kinds = [Kind::File, Kind::File, Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::CharDevice];
    let time = || Time { sec: number().cast_signed(), nsec: 0 };
    match below(8) {
        0 => Operation::Make { at: place(), file: id(), made: made(kinds[below(6)], number() as u32 & 0o17777) },
        1 => Operation::Link { file: id(), at: place() },
        2 => Operation::Remove { at: place(), file: id(), last: below(2) == 0 },
        3 => {
            let replaced = (below(2) == 0).then(|| (id(), below(2) == 0));
            Operation::Rename { file: id(), from: place(), to: place(), replaced }
        }
        4 => Operation::Exchange { file: id(), from: place(), other: id(), to: place() },
        5 => {
            let some = |value| (below(2) == 0).then_some(value);
            let (mode, uid, gid) = (some(0o777), some(number() as u32), some(number() as u32));
            let attributes =
                Attributes { mode, uid, gid, atime: (below(2) == 0).then(time), mtime: (below(2) == 0).then(time) };
            Operation::Set { file: id(), attributes }
        }
        6 => {
            let names =
                [&b"user.x"[..], b"trusted.x", b"security.x", b"system.posix_acl_access", b"system.x", b"x", b""];
            let value = (below(3) > 0).then(|| vec![2; below(40)]);
            Operation::SetXattr { file: id(), name: names[below(names.len())].to_vec(), value }
        }
        _ => {
            let mut ranges = Ranges::default();
            (0..below(3)).for_each(|_| {
                let start = number();
                ranges.add(start..start.saturating_add(below(10) as u64));
            });
            Operation::Store { file: id(), change: Change { cut: number(), size: number(), ranges, mtime: time() } }
        }
    }
}

fn same(now: &BTreeMap<String, String>, before: &BTreeMap<String, String>, when: &str) {
    for (path, was) in before {
        assert_eq!(now.get(path), Some(was), "{when}: {path}");
    }
    assert_eq!(now.len(), before.len(), "{when}");
}

#[test]
fn sim_whatever_a_hostile_client_does_others_keep_what_they_have() {
    let (mut done, mut merged) = (0, 0);
    for seed in 0..30 {
        let mut world = World::new();
        let before = world.tree("/mallory");
        let random = SplitMix64::new(seed);
        let (mut files, mut dirs) = (Vec::new(), Vec::new());
        {
            let (mallory, bobs) = (world.client(1, MALLORY), world.client(2, BOB));
            let root = world.home.state().volumes[VOLUME].root();
            dirs.extend([root, mallory.id(root, "mallory"), mallory.id(root, "mallory"), mallory.id(root, "mallory")]);
            for name in ["bob", "closed"] {
                dirs.push(bobs.id(root, name));
                files.extend(bobs.list(bobs.id(root, name)).into_values().filter(|f| f.mode != 0o666).map(|f| f.id));
            }
            let (mine, theirs) = (mallory.ids().raw(), bobs.ids().raw());
            files.extend((mine..mine + 6).chain(theirs..theirs + 2).map(FileId::new));
            files.push(mallory.id(dirs[1], "plain"));
            dirs.extend((mine..mine + 2).map(FileId::new));
            if seed % 2 == 0 {
                // Names for what is not its own.
                for (name, file) in [&b"bob"[..], b"closed"].into_iter().zip(&dirs[6..]) {
                    let make = Operation::Make { at: at(root, name), file: *file, made: made(Kind::Directory, 0o777) };
                    assert!(matches!(mallory.outcome(make, b""), Outcome::Became(_)));
                }
            }
        }
        for round in 0..4 {
            let mallory = world.attach(1);
            for _ in 0..60 {
                let operation = anything(&random, &files, &dirs);
                let data = match &operation {
                    Operation::Store { change, .. } => vec![7; change.ranges.len().min(100) as usize],
                    _ => Vec::new(),
                };
                let mut sent = mallory.sent(operation, &data);
                sent.bases = (random.next_u64() % 50, u64::MAX);
                if let Reply::Applied(applied) = mallory.apply(vec![sent]) {
                    done += u32::from(applied[0].outcome == Outcome::Done);
                }
                let (file, offset) = (files[random.next_u64() as usize % files.len()], random.next_u64() % 40);
                mallory.ask(Request::Read { file, contents: random.next_u64() % 50, offset, len: 100 });
                for facts in mallory.facts(&files) {
                    assert!(facts.uid == MALLORY || facts.xattrs.is_empty(), "seed {seed}: {facts:?}");
                }
            }
            for message in mallory.pushes.0.lock().drain(..) {
                assert!(unpack::<Pushed>(&message).is_ok());
            }
            drop(mallory);
            same(&world.tree("/mallory"), &before, &format!("seed {seed}, round {round}"));
            merged += check_aliases(&world);
            world.restart();
            same(&world.tree("/mallory"), &before, &format!("seed {seed}, round {round}, started again"));
        }
    }
    assert!(done > 300 && merged > 30, "{done} were done, {merged} merged");
}

/// A client of a user that works under delegations, and has none.
fn delegated(world: &World, key: u8, uid: u32) -> Peer<'_> {
    world.enroll(key, uid);
    world.attach_to(key, NO_DELEGATIONS)
}

const NO_DELEGATIONS: Watch = Watch::Delegations { run: 0, changed: Vec::new() };

impl Peer<'_> {
    /// Files that the home gives delegations on; nothing if others have what that excludes.
    fn delegate(&self, file: FileId, hold: Hold) -> Option<Vec<FileId>> {
        match self.ask(Request::Delegate { files: vec![file], hold }) {
            Reply::Delegated { known, .. } => Some(known.into_iter().map(|facts| facts.id).collect()),
            Reply::Failed(FsError::Busy) => None,
            other => panic!("{other:?}"),
        }
    }

    /// Attaches with no delegations. Gives the number of the home's run.
    fn begins_anew(&self) -> u64 {
        match self.ask(attach_request(NO_DELEGATIONS)) {
            Reply::Attached { kept: Some(kept), .. } => {
                assert!(!kept.all, "it said that it had none");
                kept.run
            }
            reply => panic!("{reply:?}"),
        }
    }

    /// What the home wants back, but for what it has wanted back before.
    fn recalled(&self) -> Vec<Recall> {
        let pushed = std::mem::take(&mut *self.pushes.0.lock());
        let recalls = pushed.iter().filter_map(|message| match unpack(message) {
            Ok(Pushed::Recall(recall)) => Some(recall),
            _ => None,
        });
        recalls.collect()
    }

    fn returns(&self, recall: Recall) {
        assert_eq!(self.ask(Request::Returned { recall: recall.number }), Reply::Done);
    }
}

#[test]
fn what_is_delegated_is_given_to_others_when_it_is_returned() {
    let world = World::new();
    let (one, other) = (delegated(&world, 1, MALLORY), delegated(&world, 2, MALLORY));
    let plain = one.id(one.id(ROOT, "mallory"), "plain");
    assert_eq!(one.delegate(plain, Hold::Write), Some(vec![plain]));
    assert_eq!(other.delegate(plain, Hold::Read), None);
    let recalls = one.recalled();
    assert!(
        matches!(recalls[..], [Recall { file, held: Hold::Write, keep: true, .. }] if file == plain),
        "{recalls:?}"
    );
    // Asking again, for all that others see, brings nothing but the same recall.
    assert_eq!(other.delegate(plain, Hold::Read), None);
    assert_eq!(one.recalled(), []);
    // Nobody returns for another.
    other.returns(recalls[0]);
    assert_eq!(other.delegate(plain, Hold::Read), None);
    one.returns(recalls[0]);
    assert_eq!(other.delegate(plain, Hold::Read), Some(vec![plain]));
    assert_eq!(one.delegate(plain, Hold::Read), Some(vec![plain]), "both may read");
    assert_eq!(one.delegate(plain, Hold::Write), None);
    assert_eq!(other.recalled().len(), 1);
}

#[test]
fn a_change_by_whoever_works_without_delegations_waits_for_those_who_do() {
    let world = World::new();
    let (one, other) = (delegated(&world, 1, MALLORY), world.client(2, MALLORY));
    let plain = one.id(one.id(ROOT, "mallory"), "plain");
    assert_eq!(one.delegate(plain, Hold::Read), Some(vec![plain]));
    let set = Operation::Set { file: plain, attributes: Attributes { mode: Some(0o600), ..Attributes::default() } };
    let sent = other.sent(set, b"");
    assert_eq!(other.apply(vec![sent.clone()]), Reply::Failed(FsError::Busy));
    assert_eq!(one.facts(&[plain])[0].mode, 0o644, "nothing has changed");
    let recalls = one.recalled();
    assert_eq!(recalls.len(), 1, "{recalls:?}");
    one.returns(recalls[0]);
    assert!(matches!(other.apply(vec![sent]), Reply::Applied(applied) if applied[0].outcome == Outcome::Done));
}

#[test]
fn whoever_is_not_heard_of_has_nothing_after_his_lease() {
    let world = World::new();
    let (one, other) = (delegated(&world, 1, MALLORY), delegated(&world, 2, MALLORY));
    let plain = one.id(one.id(ROOT, "mallory"), "plain");
    assert_eq!(one.delegate(plain, Hold::Write), Some(vec![plain]));
    for _ in 0..4 {
        assert_eq!(other.delegate(plain, Hold::Write), None);
    }
    world.sim.run_for(LEASE);
    assert_eq!(other.delegate(plain, Hold::Write), Some(vec![plain]));
    assert_eq!(one.ask(Request::Renew), Reply::Refused(Refusal::Detached));
}

#[test]
fn whoever_returns_nothing_keeps_others_waiting_no_longer_than_a_lease() {
    let world = World::new();
    let (mallory, bob) = (delegated(&world, 1, MALLORY), delegated(&world, 2, BOB));
    let plain = mallory.id(mallory.id(ROOT, "mallory"), "plain");
    let run = mallory.begins_anew();
    assert_eq!(mallory.delegate(plain, Hold::Write), Some(vec![plain]));
    let begun = world.sim.now();
    let mut barred = 0;
    while bob.delegate(plain, Hold::Read).is_none() {
        // It is heard of all the time, and says that it has what it had.
        if mallory.ask(Request::Renew) == Reply::Refused(Refusal::Detached) {
            let again = mallory.ask(attach_request(Watch::Delegations { run, changed: Vec::new() }));
            assert_eq!(again, Reply::Refused(Refusal::Busy));
            barred += 1;
        }
        assert!(world.sim.now() < begun + LEASE * 3, "still waiting");
    }
    assert!(barred > 0, "it was let in with what others were promised");
    assert_eq!(mallory.ask(Request::Renew), Reply::Refused(Refusal::Detached));
}

#[test]
fn nobody_is_bothered_for_what_a_user_cannot_get_to() {
    let world = World::new();
    let (mallory, bob) = (delegated(&world, 1, MALLORY), delegated(&world, 2, BOB));
    let readable = bob.id(bob.id(ROOT, "closed"), "readable");
    assert_eq!(bob.delegate(readable, Hold::Write), Some(vec![readable]));
    for hold in [Hold::Read, Hold::Write] {
        assert_eq!(mallory.delegate(readable, hold), Some(Vec::new()));
    }
    assert_eq!(bob.recalled(), []);
    let many = vec![ROOT; 5000];
    assert_eq!(
        mallory.ask(Request::Delegate { files: many, hold: Hold::Read }),
        Reply::Failed(FsError::ArgumentTooBig)
    );
    let outsider = world.client(3, MALLORY);
    let asked = Request::Delegate { files: vec![ROOT], hold: Hold::Write };
    assert_eq!(outsider.ask(asked), Reply::Refused(Refusal::Detached), "it does not work under delegations");
}

#[test]
fn a_home_that_begins_anew_gives_nothing_that_somebody_may_have() {
    let mut world = World::new();
    let plain = {
        let (one, _other) = (delegated(&world, 1, MALLORY), delegated(&world, 2, MALLORY));
        let plain = one.id(one.id(ROOT, "mallory"), "plain");
        assert_eq!(one.delegate(plain, Hold::Write), Some(vec![plain]));
        plain
    };
    world.restart();
    let other = world.attach_to(2, NO_DELEGATIONS);
    assert_eq!(other.delegate(plain, Hold::Read), None);
    // What it has changed, it has still.
    let one = world.attach_to(1, Watch::Delegations { run: 9, changed: vec![plain] });
    assert_eq!(other.delegate(plain, Hold::Read), None);
    let recalls = one.recalled();
    assert_eq!(recalls.len(), 1, "{recalls:?}");
    one.returns(recalls[0]);
    assert_eq!(other.delegate(plain, Hold::Read), Some(vec![plain]));
    drop((one, other));
    world.restart();
    // One of them does not come back.
    let other = world.attach_to(2, NO_DELEGATIONS);
    assert_eq!(other.delegate(plain, Hold::Write), None);
    let mut waited = 0;
    while other.delegate(plain, Hold::Write).is_none() {
        waited += 1;
        assert!(waited < 20, "for ever");
    }
}

#[test]
fn whoever_attached_again_is_asked_again_for_what_he_did_not_hear_of() {
    let world = World::new();
    let (one, other) = (delegated(&world, 1, MALLORY), delegated(&world, 2, MALLORY));
    let plain = one.id(one.id(ROOT, "mallory"), "plain");
    assert_eq!(one.delegate(plain, Hold::Write), Some(vec![plain]));
    assert_eq!(other.delegate(plain, Hold::Read), None);
    let asked = one.recalled();
    let run = one.begins_anew();
    assert_eq!(other.delegate(plain, Hold::Write), Some(vec![plain]));
    assert_eq!(one.delegate(plain, Hold::Read), None);
    assert_eq!(asked.len(), 1);
    let known = Watch::Delegations { run, changed: Vec::new() };
    let before = other.recalled();
    let other = world.attach_to(2, known);
    assert_eq!(other.recalled(), before, "and it has kept what it had");
    other.returns(before[0]);
    assert_eq!(one.delegate(plain, Hold::Read), Some(vec![plain]));
}
