//! A home with files of several users, and the clients that are connected to it.
#![allow(dead_code)]

use bytes::Bytes;
use home::Home;
use home::export::Export;
use home::invitation::{self, Invitation};
use host::sim::{Machine, Sim, SimDisk};
use parking_lot::Mutex;
use roam_proto::channel::{Lost, PeerKey, Push, Service, Session};
use roam_proto::delegation::Watch;
use roam_proto::message::{Facts, Outcome, Reply, Request, Sent, User, pack, unpack};
use roam_proto::operation::{Change, Made, Operation, Place};
use roam_proto::ranges::Ranges;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use types::{FileId, Kind, Time};
use vfs::FileSystem;
use vfs::fs::{Cred, OpenFlags, SetAttr, XattrMode};
use vfs::mem::MemFs;

pub const VOLUME: &str = "work";
pub const OWN: &[u8] = b".starling";
pub const ROOT: FileId = FileId::ROOT;
/// The hostile client's user, and another one.
pub const MALLORY: u32 = 1000;
pub const BOB: u32 = 2000;
pub const SECRET: &[u8] = b"what only its owner may know";

#[derive(Default)]
pub struct Pushes(pub Mutex<Vec<Bytes>>);

impl Push for Pushes {
    fn push(&self, message: Bytes) -> Result<(), Lost> {
        self.0.lock().push(message);
        Ok(())
    }
}

/// A home with files of several users.
pub struct World {
    pub sim: Sim,
    pub fs: MemFs,
    pub disk: SimDisk,
    pub machine: Machine,
    pub home: Home,
}

/// A connected client.
pub struct Peer<'a> {
    pub world: &'a World,
    pub session: Arc<dyn Session>,
    pub pushes: Arc<Pushes>,
    pub next: Mutex<u64>,
}

impl Drop for Peer<'_> {
    fn drop(&mut self) {
        self.session.ended();
    }
}

pub fn user(uid: u32) -> User {
    User { uid, gid: uid, groups: Vec::new() }
}

impl World {
    pub fn new() -> World {
        let sim = Sim::new(1);
        let machine = sim.machine("home");
        let clock = machine.host().clock;
        let fs = MemFs::new(Arc::new(move || clock.wall()));
        sim.block_on(populate(&fs));
        let disk = SimDisk::new(&sim, 1 << 30);
        let home = open(&sim, &machine, &disk, &fs);
        World { sim, fs, disk, machine, home }
    }

    /// Ends the home and starts it again.
    pub fn restart(&mut self) {
        self.machine.crash();
        self.machine = self.sim.machine("home");
        self.home = open(&self.sim, &self.machine, &self.disk, &self.fs);
    }

    pub fn connect(&self, key: u8) -> Peer<'_> {
        let pushes = Arc::new(Pushes::default());
        let session = self.home.connected(PeerKey([key; 32]), pushes.clone());
        Peer { world: self, session, pushes, next: Mutex::new(1) }
    }

    pub fn enroll(&self, key: u8, uid: u32) {
        self.enroll_by([key; 16], key, uid);
    }

    /// Enrolls a client by an invitation with this secret.
    pub fn enroll_by(&self, secret: [u8; 16], key: u8, uid: u32) {
        self.invite(secret, uid, Time { sec: i64::MAX, nsec: 0 });
        let enrolled = self.connect(key).ask(Request::Enroll { secret });
        assert_eq!(enrolled, Reply::Enrolled { volumes: vec![VOLUME.into()] });
    }

    pub fn invite(&self, secret: [u8; 16], uid: u32, until: Time) {
        let invitation = Invitation { volumes: vec![VOLUME.into()], user: user(uid), until, name: String::new() };
        let disk = self.disk.mount(&self.machine);
        self.sim.block_on(invitation::write(&*disk, &secret, &invitation)).expect("invitation");
    }

    /// Returns an attached client of a user.
    pub fn client(&self, key: u8, uid: u32) -> Peer<'_> {
        self.enroll(key, uid);
        self.attach(key)
    }

    pub fn attach(&self, key: u8) -> Peer<'_> {
        self.attach_to(key, Watch::Changes)
    }

    pub fn attach_to(&self, key: u8, watch: Watch) -> Peer<'_> {
        let peer = self.connect(key);
        match peer.ask(attach_request(watch)) {
            Reply::Attached { heard, .. } => *peer.next.lock() = heard + 1,
            other => panic!("{other:?}"),
        }
        peer
    }

    /// Returns a client that begins another log.
    pub fn attach_anew(&self, key: u8, incarnation: u64) -> Peer<'_> {
        let peer = self.connect(key);
        let (volume, watch) = (VOLUME.into(), Watch::Changes);
        let attached = peer.ask(Request::Attach {
            volume,
            incarnation,
            acknowledged: 0,
            stamp: None,
            newest: FileId::new(0),
            watch,
            attempt: attempt(),
        });
        assert!(matches!(attached, Reply::Attached { heard: 0, .. }), "{attached:?}");
        peer
    }

    /// Closes files so that no user can write another user's.
    pub fn close(&self) {
        let closed = async {
            let bob = self.fs.lookup(&Cred::ROOT, ROOT, b"bob").await?.attr.id;
            let program = self.fs.lookup(&Cred::ROOT, bob, b"program").await?.attr.id;
            let mode = SetAttr { mode: Some(0o644), ..SetAttr::default() };
            self.fs.setattr(&Cred::ROOT, program, None, mode).await
        };
        self.sim.block_on(closed).expect("chmod");
    }

    /// Returns all files but those below a path, as text. Times of access and change and link
    /// counts are left out: a user who can read or reach a file may change them.
    pub fn tree(&self, but_for: &str) -> BTreeMap<String, String> {
        let entries = self.fs.dump().into_iter().map(|mut entry| {
            (entry.attr.atime, entry.attr.nlink) = (Time::default(), 1);
            entry.attr.ctime = Time::default();
            (String::from_utf8_lossy(&entry.path).into_owned(), format!("{entry:?}"))
        });
        entries.filter(|(path, _)| !path.starts_with(but_for) && !path.starts_with("/.starling")).collect()
    }
}

pub fn attach_request(watch: Watch) -> Request {
    Request::Attach {
        volume: VOLUME.into(),
        incarnation: 7,
        acknowledged: 0,
        stamp: None,
        newest: FileId::new(0),
        watch,
        attempt: attempt(),
    }
}

/// Returns a later attempt than all before.
pub fn attempt() -> u64 {
    static ATTEMPTS: AtomicU64 = AtomicU64::new(0);
    ATTEMPTS.fetch_add(1, Relaxed) + 1
}

pub fn open(sim: &Sim, machine: &Machine, disk: &SimDisk, fs: &MemFs) -> Home {
    let exported: Arc<dyn Export> = Arc::new(fs.clone());
    let host = machine.host();
    let home = Home::open(&host, disk.mount(machine), vec![(VOLUME.into(), exported)]);
    sim.block_on(home).expect("home")
}

pub async fn give(fs: &MemFs, id: FileId, uid: u32) {
    let owner = SetAttr { uid: Some(uid), gid: Some(uid), ..SetAttr::default() };
    fs.setattr(&Cred::ROOT, id, None, owner).await.expect("chown");
}

pub async fn file(fs: &MemFs, dir: FileId, name: &[u8], mode: u32, uid: u32) -> FileId {
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    let (entry, handle) = fs.create(&Cred::ROOT, dir, name, mode, 0, flags).await.expect("create");
    let id = entry.attr.id;
    fs.write(&Cred::ROOT, id, handle, 0, SECRET).await.expect("write");
    fs.release(id, handle, None).await.expect("release");
    give(fs, id, uid).await;
    id
}

pub async fn directory(fs: &MemFs, name: &[u8], mode: u32, uid: u32) -> FileId {
    let id = fs.mkdir(&Cred::ROOT, ROOT, name, mode, 0).await.expect("mkdir").attr.id;
    give(fs, id, uid).await;
    id
}

/// Makes the files: `/bob` belongs to bob and has a diary; `/closed` belongs to bob and is closed,
/// with a file that all could read; `/mallory` belongs to the hostile client's user.
pub async fn populate(fs: &MemFs) {
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

pub fn made(kind: Kind, mode: u32) -> Made {
    Made { kind, mode, uid: MALLORY, gid: MALLORY, rdev: 0, target: b"/etc/passwd".to_vec(), when: Time::default() }
}

pub fn changed(cut: u64, size: u64, ranges: &[(u64, u64)]) -> Change {
    let mut all = Ranges::default();
    ranges.iter().for_each(|(start, end)| all.add(*start..*end));
    Change { cut, size, ranges: all, mtime: Time::default() }
}

impl Peer<'_> {
    pub fn try_ask(&self, message: Bytes) -> Option<Bytes> {
        self.world.sim.block_on(self.session.answer(message))
    }

    pub fn ask(&self, request: Request) -> Reply {
        let answer = self.try_ask(pack(&request)).expect("an answer");
        let reply = unpack(&answer).expect("a reply");
        if let Reply::Data(bytes) = &reply {
            let known = bytes.windows(SECRET.len()).any(|part| part == SECRET);
            assert!(!known || matches!(request, Request::Read { .. }));
        }
        reply
    }

    pub fn sent(&self, operation: Operation, data: &[u8]) -> Sent {
        let mut next = self.next.lock();
        *next += 1;
        let newest = self.world.home.state().volumes[VOLUME].journal().stamp().seq;
        Sent { seq: *next - 1, bases: (newest, newest), operation, data: Bytes::copy_from_slice(data) }
    }

    pub fn apply(&self, operations: Vec<Sent>) -> Reply {
        self.ask(Request::Apply { acknowledged: 0, operations })
    }

    pub fn outcome(&self, operation: Operation, data: &[u8]) -> Outcome {
        let reply = self.apply(vec![self.sent(operation, data)]);
        match reply {
            Reply::Applied(applied) => applied[0].outcome,
            other => panic!("{other:?}"),
        }
    }

    /// Sends an operation, which must be refused with EINVAL, EACCES or the like.
    pub fn refused(&self, operation: Operation, data: &[u8]) {
        let outcome = self.outcome(operation.clone(), data);
        assert!(matches!(outcome, Outcome::Refused(_)), "{operation:?}: {outcome:?}");
    }

    pub fn not_done(&self, operation: Operation, data: &[u8]) {
        let outcome = self.outcome(operation.clone(), data);
        assert_ne!(outcome, Outcome::Done, "{operation:?}");
    }

    pub fn list(&self, dir: FileId) -> BTreeMap<Vec<u8>, Facts> {
        match self.ask(Request::List { dir, after: Vec::new(), known: 0, makes: None }) {
            Reply::Listing { entries, .. } => entries.into_iter().map(|entry| (entry.name, entry.facts)).collect(),
            other => panic!("{other:?}"),
        }
    }

    pub fn facts(&self, files: &[FileId]) -> Vec<Facts> {
        match self.ask(Request::Facts { files: files.to_vec() }) {
            Reply::Facts(facts) => facts,
            other => panic!("{other:?}"),
        }
    }

    pub fn id(&self, dir: FileId, name: &str) -> FileId {
        self.list(dir)[name.as_bytes()].id
    }

    pub fn ids(&self) -> FileId {
        match self.ask(Request::Ids) {
            Reply::Ids(first, _) => first,
            other => panic!("{other:?}"),
        }
    }

    pub fn read(&self, file: FileId) -> Reply {
        let contents = self.facts(&[file]).first().map_or(0, |facts| facts.contents);
        self.ask(Request::Read { file, contents, offset: 0, len: 100 })
    }
}

pub fn at(dir: FileId, name: &[u8]) -> Place {
    (dir, name.to_vec())
}

/// Returns every operation that can name a place.
pub fn at_place(place: &Place, file: FileId, dir: FileId) -> Vec<Operation> {
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
