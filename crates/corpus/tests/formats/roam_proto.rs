use crate::replay;
use corpus::roam_proto as checks;
use roam_proto::codec::Wire;
use roam_proto::delegation::{Behind, Hold, Kept, Recall, Watch};
use roam_proto::lock::{Lock, LockKind, Locking};
use roam_proto::message::{
    Applied, Company, ConflictReason, Facts, NamedFacts, Outcome, Pushed, Refusal, Reply, Request, Sent, User, pack,
};
use roam_proto::operation::{Attributes, Change, Made, Operation};
use roam_proto::piece::Piece;
use roam_proto::ranges::Ranges;
use roam_proto::volume_stamp::{Since, Stamp};
use types::{FileId, FsError, Kind, Time};

#[test]
fn messages_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("message", checks::message);
    assert!(kept >= 20 && changed > 0, "the corpus has good messages: {kept}, {changed}");
}

const TIME: Time = Time { sec: 1_700_000_000, nsec: 123_456_789 };

fn facts(id: u64, kind: Kind) -> Facts {
    Facts {
        id: FileId::new(id),
        version: 70,
        contents: 60,
        kind,
        mode: 0o640,
        nlink: 1,
        uid: 1000,
        gid: 100,
        rdev: 0,
        size: 70_000,
        blocks: 137,
        atime: TIME,
        mtime: TIME,
        ctime: TIME,
        crtime: Time { sec: -5, nsec: 0 },
        target: b"elsewhere".to_vec(),
        xattrs: vec![(b"user.note".to_vec(), b"short".to_vec())],
    }
}

fn operations() -> Vec<Operation> {
    let (file, other, dir) = (FileId::new(300), FileId::new(1 << 48 | 301), FileId::new(1));
    let at = |name: &[u8]| (dir, name.to_vec());
    let made = Made { kind: Kind::File, mode: 0o644, uid: 1000, gid: 100, rdev: 0, target: b"t".to_vec(), when: TIME };
    let attributes = Attributes { mode: Some(0o600), uid: None, gid: Some(7), atime: None, mtime: Some(TIME) };
    let mut ranges = Ranges::of(0..4);
    ranges.add(1000..1003);
    vec![
        Operation::Make { at: at(b"new"), file, made },
        Operation::Link { file, at: at(b"link") },
        Operation::Remove { at: at(b"gone"), file, last: true },
        Operation::Rename { file, from: at(b"a"), to: at(b"b"), replaced: Some((other, false)) },
        Operation::Exchange { file, from: at(b"a"), other, to: at(b"b") },
        Operation::Set { file, attributes },
        Operation::SetXattr { file, name: b"user.note".to_vec(), value: Some(b"short".to_vec()) },
        Operation::Store { file, change: Change { cut: 4, size: 2000, ranges, mtime: TIME } },
        Operation::Copy { file, from: other },
    ]
}

#[test]
fn the_corpus_has_what_this_program_writes() {
    // Uncompressed, so that changes reach the decoders.
    let plain = |kind: u8, message: Vec<u8>| [&[kind, 0], &message[..]].concat();
    let request = |request: Request| plain(0, request.to_bytes());
    let reply = |reply: Reply| plain(1, reply.to_bytes());
    let file = FileId::new(300);
    let stamp = Stamp { epoch: u64::MAX, seq: 70 };
    let user = User { uid: 1000, gid: 100, groups: vec![100, 27] };
    let sent = |(seq, operation)| Sent { seq, bases: (5, 60), operation, data: b"content"[..].into() };
    let entries: Vec<NamedFacts> = (0..20)
        .map(|n| NamedFacts { name: format!("name {n}").into_bytes(), facts: facts(n, Kind::Symlink) })
        .collect();
    let listing = Reply::Listing {
        dir: Box::new(facts(1, Kind::Directory)),
        entries,
        same: false,
        more: true,
        withheld: vec![file],
        given: 4,
        seq: 71,
        hold: Hold::Read,
    };
    let compressed = [&[1], &pack(&listing)[..]].concat();
    assert_eq!(compressed[1], 1);
    let attach = |watch| Request::Attach {
        volume: "home".into(),
        incarnation: 7,
        acknowledged: 8,
        stamp: Some(stamp),
        newest: file,
        watch,
        attempt: 9,
    };
    let list = |after: &[u8], makes| Request::List { dir: FileId::new(1), after: after.to_vec(), known: 60, makes };
    let lock =
        Lock { file, space: LockKind::Mixed, owner: 1 << 60, pid: 77, exclusive: Some(true), start: 0, end: u64::MAX };
    let locking = Locking { term: 6, number: 3, over: 3, open: vec![1, 3], lock, waits: true, gives_up: 0 };
    let strong = Watch::Delegations { run: 5, changed: vec![file], locks: vec![lock], term: 6 };
    let recall = Recall { number: 3, file, held: Hold::Write, keep: true };
    let change = Change { cut: 4, size: 2000, ranges: Ranges::of(100..1900), mtime: TIME };
    let behind = Behind { seq: 9, base: 70, change };
    let outcomes = [
        Outcome::Done,
        Outcome::Conflict(ConflictReason::NotEmpty),
        Outcome::Refused(FsError::AccessDenied),
        Outcome::Became(file),
    ];
    let applied =
        (3..).zip(outcomes).map(|(seq, outcome)| Applied { seq, outcome, facts: vec![facts(seq, Kind::File)] });
    let apply = request(Request::Apply { acknowledged: 2, operations: (3..).zip(operations()).map(sent).collect() });
    let piece = Piece { offset: 1 << 20, len: 8192, file, contents: 60, at: 100, hash: [7; 16] };
    let since = Since::Changed { files: vec![file, FileId::new(u64::MAX)], stamp };
    replay::compare(
        "message",
        &[
            ("enroll", request(Request::Enroll { secret: *b"0123456789abcdef" })),
            ("attach", request(attach(Watch::Changes))),
            ("attach_strong", request(attach(strong))),
            ("delegate", request(Request::Delegate { files: vec![file], hold: Hold::Write })),
            ("returned", request(Request::Returned { recalls: vec![3, 4], lowered: vec![file], behind: None })),
            ("returned_behind", request(Request::Returned { recalls: vec![3], lowered: vec![], behind: Some(behind) })),
            ("returning", request(Request::Returning { recalls: vec![3, 4], through: 9 })),
            ("since", request(Request::Since { stamp })),
            ("facts", request(Request::Facts { files: vec![file] })),
            ("validate", request(Request::Validate { files: vec![(file, 70), (FileId::new(1), 0)] })),
            ("list", request(list(b"name", None))),
            ("list_to_make", request(list(b"", Some(b"lock".to_vec())))),
            ("read", request(Request::Read { file, contents: 60, offset: 1 << 40, len: 1 << 16 })),
            ("take", request(Request::Take { seq: 3, pieces: vec![piece] })),
            ("read_files", request(Request::ReadFiles { files: vec![(file, 60), (FileId::new(9), 0)] })),
            ("upload", request(Request::Upload { seq: 9, offset: 65536, data: b"bytes"[..].into() })),
            ("truncated", apply[..100].to_vec()),
            ("apply", apply),
            ("lock", request(Request::Lock(locking))),
            ("test_lock", request(Request::TestLock(lock))),
            ("space", request(Request::Space)),
            ("joined", request(Request::Joined { number: 8 })),
            ("durable", request(Request::Durable { through: 9 })),
            ("heard", request(Request::Heard { seq: 71 })),
            ("ids", request(Request::Ids)),
            ("done", reply(Reply::Done)),
            ("enrolled", reply(Reply::Enrolled { volumes: vec!["home".into(), "work".into()] })),
            (
                "attached",
                reply(Reply::Attached {
                    root: FileId::new(1),
                    user,
                    since,
                    heard: 7,
                    kept: Some(Kept { run: 5, all: true, locks: true, term: 6 }),
                    file_len_max: 17_592_186_040_320,
                    company: Company { number: 8, others: true },
                }),
            ),
            ("current", reply(Reply::Since(Since::Current))),
            ("reset", reply(Reply::Since(Since::Reset { stamp }))),
            ("known", reply(Reply::Facts(vec![facts(300, Kind::File), facts(301, Kind::BlockDevice)]))),
            ("delegated", reply(Reply::Delegated { known: vec![facts(300, Kind::File)], given: 4, seq: 71 })),
            ("stale", reply(Reply::Stale(vec![file]))),
            ("listing", compressed),
            ("taken", reply(Reply::Taken(vec![0, 2]))),
            ("files", reply(Reply::Files(vec![(file, b"bytes"[..].into()), (FileId::new(9), b""[..].into())]))),
            ("data", reply(Reply::Data(b"bytes"[..].into()))),
            ("changed", reply(Reply::Changed)),
            ("applied", reply(Reply::Applied(applied.collect()))),
            ("room", reply(Reply::Space { total: 1 << 40, free: 1 << 39, files: 1000, files_free: 1 << 30 })),
            ("given", reply(Reply::Ids(file, 1 << 24))),
            ("failed", reply(Reply::Failed(FsError::NoSpace))),
            ("in_the_way", reply(Reply::InTheWay(Some(lock)))),
            ("refused", reply(Reply::Refused(Refusal::Forgotten))),
            ("recall", plain(2, Pushed::Recall(vec![recall]).to_bytes())),
            ("detached", plain(2, Pushed::Detached.to_bytes())),
            ("company", plain(2, Pushed::Company(Company { number: 9, others: false }).to_bytes())),
            ("wanted", plain(2, Pushed::Wanted { seq: 9, offset: 65536, len: 4096 }.to_bytes())),
            ("pushed", plain(2, Pushed::Changed { files: vec![file], stamp, more: false }.to_bytes())),
        ],
    );
}
