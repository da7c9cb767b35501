use crate::replay;
use bytes::Bytes;
use corpus::home as checks;
use corpus::session;
use corpus::session::world::{MALLORY, VOLUME, World, at, attach_request, changed, made};
use home::invitation::Invitation;
use home::state::{HomeRecord, HomeState, Intent};
use home::volume::{OTHERS, Print, RunStart, Volume};
use roam_proto::codec::Wire;
use roam_proto::delegation::{Hold, Watch};
use roam_proto::lock::{Lock, LockKind, Locking};
use roam_proto::message::{ConflictReason, Outcome, Request, Sent, User};
use roam_proto::operation::Operation;
use roam_proto::volume_stamp::Stamp;
use types::{FileId, Kind, Time};

#[test]
fn what_is_in_the_corpus_and_changed_is_decoded_or_refused() {
    let (kept, changed) = replay::run("home", checks::kept);
    assert!(kept >= 9 && changed > 0, "the corpus is good: {kept}, {changed}");
}

const TIME: Time = Time { sec: 1_700_000_000, nsec: 5 };
const KEY: [u8; 32] = [3; 32];

fn user() -> User {
    User { uid: 1000, gid: 100, groups: vec![27] }
}

/// Records of a home's life.
fn records() -> Vec<HomeRecord> {
    let name = || "work".to_string();
    let print = |kind| Print { kind, mode: 0o750, uid: 1000, gid: 100, nlink: 1, size: 5, mtime: TIME, ctime: TIME };
    let mut volume = Volume::new(0, 77);
    let root = volume.seen(b"root", print(Kind::Directory), None, OTHERS).expect("new");
    volume.learn(root.clone()).expect("sense");
    let place = (volume.root(), b"file".to_vec());
    let seen = volume.seen(b"file", print(Kind::File), Some(&place), OTHERS).expect("new");
    volume.learn(seen.clone()).expect("sense");
    let stored = volume.stored(seen.id, b"stored", print(Kind::File), 1, None).expect("known");
    volume.learn(stored.clone()).expect("sense");
    let left = volume.left(&place).expect("it was there");
    let real = seen.id;
    let learned = |learned| HomeRecord::Learned { volume: name(), learned };
    let operations = vec![(3, Operation::Link { file: seen.id, at: place.clone() })];
    let intent = Intent { seq: 4, identity: b"stored".to_vec(), file: seen.id, beside: None };
    let outcome = Outcome::Conflict(ConflictReason::Changed);
    vec![
        HomeRecord::Volume { name: name(), epoch: 77 },
        HomeRecord::Enrolled { key: KEY, volumes: vec![name(), "photos".into()], user: user() },
        HomeRecord::Began { key: KEY, volume: name(), incarnation: 9 },
        learned(root),
        learned(seen),
        HomeRecord::Reserved { key: KEY, volume: name(), next: 1 << 24 },
        HomeRecord::Answered { key: KEY, volume: name(), seq: 2, outcome: Outcome::Done },
        HomeRecord::Applying { key: KEY, volume: name(), operations: operations.clone() },
        HomeRecord::Answered { key: KEY, volume: name(), seq: 3, outcome },
        HomeRecord::Acknowledged { key: KEY, volume: name(), through: 2 },
        HomeRecord::Intended { key: KEY, volume: name(), intent },
        HomeRecord::Applying { key: KEY, volume: name(), operations },
        learned(stored),
        learned(left),
        HomeRecord::Became { volume: name(), alias: FileId::new(9), real },
        HomeRecord::Promised { key: KEY, volume: name(), file: real, contents: 3 },
        HomeRecord::Promised { key: KEY, volume: name(), file: FileId::new(9), contents: 4 },
        HomeRecord::Concluded { key: KEY, volume: name(), file: FileId::new(9) },
        HomeRecord::Named { key: KEY, name: "laptop".into() },
        HomeRecord::TurnedAway { key: KEY },
        HomeRecord::Acts { key: KEY, volume: name(), user: User { groups: vec![27, 28], ..user() } },
        HomeRecord::Run { volume: name(), start: RunStart { seq: 1_000, next: 1 << 25 } },
    ]
}

#[test]
fn the_corpus_has_what_this_program_writes() {
    let part = |bytes: Vec<u8>| [&(bytes.len() as u16).to_le_bytes()[..], &bytes].concat();
    let life = |records: &[HomeRecord]| {
        let parts = records.iter().map(|record| part(record.to_bytes()));
        [vec![3], part(HomeState::default().to_bytes())].into_iter().chain(parts).collect::<Vec<_>>().concat()
    };
    let mut state = HomeState::default();
    records().into_iter().for_each(|record| state.apply(record).expect("sense"));
    let invitation =
        Invitation { volumes: vec!["work".into(), "photos".into()], user: user(), until: TIME, name: "laptop".into() };
    let record = |at: usize| [vec![1], records()[at].to_bytes()].concat();
    let state = [vec![0], state.to_bytes()].concat();
    replay::compare(
        "home",
        &[
            ("empty", [vec![0], HomeState::default().to_bytes()].concat()),
            ("truncated", state[..60].to_vec()),
            ("state", state),
            ("enrolled", record(1)),
            ("learned", record(4)),
            ("reserved", record(5)),
            ("applying", record(7)),
            ("answered", record(8)),
            ("intended", record(10)),
            ("became", record(14)),
            ("promised", record(15)),
            ("concluded", record(17)),
            ("named", record(18)),
            ("turned-away", record(19)),
            ("acts", record(20)),
            ("run", record(21)),
            ("invitation", [vec![2], invitation.to_bytes()].concat()),
            ("began", life(&records()[..3])),
            ("life", life(&records())),
        ],
    );
}

#[test]
fn whatever_is_asked_in_the_corpus_and_changed_others_keep_what_they_have() {
    let (kept, changed) = replay::run("session", session::asked);
    assert!(kept >= 3 && changed > 0, "the corpus is good: {kept}, {changed}");
}

/// Requests of a client, in the order in which it sends them.
fn questions() -> [Vec<Request>; 3] {
    let world = World::new();
    let peer = world.client(1, MALLORY);
    let root = world.home.state().volumes[VOLUME].root();
    let list = |dir| Request::List { dir, after: Vec::new(), known: 0, makes: None };
    let (dir, bob) = (peer.id(root, "mallory"), peer.id(root, "bob"));
    let (plain, diary) = (peer.id(dir, "plain"), peer.id(bob, "diary"));
    let new = peer.ids();
    let read = |file| Request::Read { file, contents: 1, offset: 0, len: 100 };
    let looks = vec![
        list(root),
        list(bob),
        list(dir),
        Request::Facts { files: vec![plain, diary] },
        read(plain),
        read(diary),
        Request::Validate { files: vec![(plain, 1), (diary, 1)] },
        Request::Since { stamp: Stamp { epoch: 0, seq: 0 } },
        Request::Space,
    ];
    let newest = world.home.state().volumes[VOLUME].journal().stamp().seq;
    let apply = |seq, operation, data: &[u8]| {
        let sent = Sent { seq, bases: (newest, newest), operation, data: Bytes::copy_from_slice(data) };
        Request::Apply { acknowledged: 0, operations: vec![sent] }
    };
    let to = |name: &[u8]| at(dir, name);
    let store = |file, len: u64| Operation::Store { file, change: changed(0, len, &[(0, len)]) };
    let edits = vec![
        list(root),
        list(dir),
        list(bob),
        Request::Ids,
        apply(1, Operation::Make { at: to(b"new"), file: new, made: made(Kind::File, 0o644) }, b""),
        apply(2, store(new, 5), b"bytes"),
        apply(3, store(diary, 5), b"bytes"),
        apply(4, Operation::Rename { file: plain, from: to(b"plain"), to: to(b"other"), replaced: None }, b""),
        apply(5, Operation::Link { file: diary, at: to(b"link") }, b""),
        apply(6, Operation::Remove { at: at(bob, b"diary"), file: diary, last: true }, b""),
    ];
    let exclusive = Some(true);
    let lock = Lock { file: plain, space: LockKind::Mixed, owner: 7, pid: 70, exclusive, start: 0, end: u64::MAX };
    let delegations = vec![
        attach_request(Watch::Delegations { run: 0, changed: Vec::new(), locks: Vec::new(), term: 0 }),
        list(root),
        list(dir),
        Request::Delegate { files: vec![plain, diary], hold: Hold::Write },
        Request::Upload { seq: 1, offset: 0, data: b"bytes".as_slice().into() },
        Request::Returned { recalls: vec![1], lowered: Vec::new(), behind: None },
        Request::TestLock(lock),
        Request::Lock(Locking { term: 1, number: 1, over: 0, open: Vec::new(), lock, waits: false, gives_up: 0 }),
        Request::Renew,
    ];
    [looks, edits, delegations]
}

#[test]
fn the_corpus_has_what_clients_ask() {
    let part = |request: &Request| {
        let bytes = request.to_bytes();
        [&(bytes.len() as u16).to_le_bytes()[..], &bytes].concat()
    };
    let [looks, edits, delegations] = questions().map(|asked| asked.iter().flat_map(part).collect::<Vec<u8>>());
    replay::compare("session", &[("looks", looks), ("edits", edits), ("delegations", delegations)]);
}
