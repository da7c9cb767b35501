use crate::replay;
use corpus::roam as checks;
use roam::conflict::{Case, Conflict, Deed};
use roam::replica::{Membership, Record, Replica};
use roam_proto::codec::Wire;
use roam_proto::message::{Applied, ConflictReason, Facts, NamedFacts, Outcome, User};
use roam_proto::operation::{Attributes, Change, Made, Operation};
use roam_proto::ranges::Ranges;
use roam_proto::volume_stamp::Stamp;
use types::{FileId, FsError, Kind, Time};

#[test]
fn what_is_in_the_corpus_and_changed_is_decoded_or_refused() {
    let (kept, changed) = replay::run("cache", checks::cache);
    assert!(kept >= 8 && changed > 0, "the corpus is good: {kept}, {changed}");
}

const TIME: Time = Time { sec: 1_700_000_000, nsec: 5 };
const ROOT: FileId = FileId::ROOT;

fn facts(id: u64, kind: Kind) -> Facts {
    Facts {
        id: FileId::new(id),
        version: 7,
        contents: 6,
        kind,
        mode: 0o755,
        nlink: 2,
        uid: 1000,
        gid: 100,
        rdev: 0,
        size: 5000,
        blocks: 10,
        atime: TIME,
        mtime: TIME,
        ctime: TIME,
        crtime: TIME,
        target: Vec::new(),
        xattrs: vec![(b"user.note".to_vec(), b"short".to_vec())],
    }
}

/// A client's operations, one after the other.
fn operations() -> Vec<Operation> {
    let id = FileId::new;
    let at = |name: &[u8]| (ROOT, name.to_vec());
    let made = |kind| Made { kind, mode: 0o644, uid: 1000, gid: 100, rdev: 0, target: Vec::new(), when: TIME };
    let store = |file, size| {
        let ranges = Ranges::of(0..size);
        Operation::Store { file, change: Change { cut: 0, size, ranges, mtime: TIME } }
    };
    vec![
        Operation::Make { at: at(b"new"), file: id(100), made: made(Kind::File) },
        store(id(100), 70),
        Operation::Make { at: at(b"folder"), file: id(101), made: made(Kind::Directory) },
        Operation::Rename { file: id(100), from: at(b"new"), to: (id(101), b"in".to_vec()), replaced: None },
        store(id(2), 60),
        Operation::Link { file: id(2), at: at(b"link") },
        Operation::Set { file: id(2), attributes: Attributes { mode: Some(0o600), ..Attributes::default() } },
        Operation::SetXattr { file: id(2), name: b"user.note".to_vec(), value: Some(b"new".to_vec()) },
        Operation::Exchange { file: id(2), from: at(b"file"), other: id(3), to: at(b"sub") },
        Operation::Remove { at: at(b"link"), file: id(2), last: false },
    ]
}

/// Records of a client's life: joined, something cached, something done, and answers of the home.
fn records() -> Vec<Record> {
    let id = FileId::new;
    let named = |name: &[u8], facts| NamedFacts { name: name.to_vec(), facts };
    let entries = vec![named(b"file", facts(2, Kind::File)), named(b"sub", facts(3, Kind::Directory))];
    let user = User { uid: 1000, gid: 100, groups: vec![27] };
    let mut records = vec![
        Record::Joined(Membership { root: ROOT, user, incarnation: 9, file_len_max: 1 << 44 }),
        Record::Stamped(Some(Stamp { epoch: 77, seq: 7 })),
        Record::Known(Box::new(facts(1, Kind::Directory))),
        Record::Ids(id(100), 50),
        Record::Listed { dir: Box::new(facts(1, Kind::Directory)), entries },
        Record::Cached { file: id(2), data: 1, have: Ranges::of(0..5000) },
        Record::Broken(vec![id(3)]),
        Record::Dirty { file: id(2), data: 1, base: 0, have: Ranges::of(0..5000), size: 5000 },
    ];
    records.extend(operations().into_iter().map(|operation| Record::Did { operation, when: TIME }));
    let answered = |seq, outcome| Record::Answered(Applied { seq, outcome, facts: vec![facts(2, Kind::File)] });
    let made =
        Made { kind: Kind::Directory, mode: 0o755, uid: 1000, gid: 100, rdev: 0, target: Vec::new(), when: TIME };
    let attributes = Attributes { mode: Some(0o700), ..Attributes::default() };
    let (place, mine) = (Some((id(1), b"file".to_vec())), Some((id(1), b"file (conflict)".to_vec())));
    let outcome = Outcome::Conflict(ConflictReason::Changed);
    let conflict = Conflict {
        deed: Deed::Store,
        place,
        file: id(2),
        outcome,
        when: TIME,
        mine,
        copy: id(9),
        base: 0,
        kept: 0,
        is_part: false,
    };
    let meant = Some(Operation::Set { file: id(2), attributes });
    let case = Case { conflict, meant };
    records.extend([
        Record::Pinned(5),
        answered(1, Outcome::Conflict(ConflictReason::Taken)),
        answered(5, Outcome::Conflict(ConflictReason::Changed)),
        answered(3, Outcome::Refused(FsError::AccessDenied)),
        answered(6, Outcome::Done),
        Record::Did { operation: Operation::Make { at: (id(1), b"both".to_vec()), file: id(110), made }, when: TIME },
        Record::Did { operation: Operation::Set { file: id(110), attributes }, when: TIME },
        Record::Did { operation: Operation::Link { file: id(2), at: (id(110), b"below".to_vec()) }, when: TIME },
        answered(17, Outcome::Became(id(120))),
        Record::Settled(1),
        Record::Clean(id(2)),
        Record::Dropped(id(2)),
        Record::Gone(id(3)),
        Record::Forgotten { dir: Some(id(1)), files: vec![id(3), id(7)] },
        Record::AllBroken,
        Record::Hoarded { path: b"sub/folder".to_vec(), priority: Some(7) },
        Record::Lost(id(100)),
        Record::Reopened { number: 1, case: Box::new(case) },
    ]);
    records
}

#[test]
fn the_corpus_has_what_this_program_writes() {
    let part = |bytes: Vec<u8>| [&(bytes.len() as u16).to_le_bytes()[..], &bytes].concat();
    let life = |count: usize| {
        let parts = records().into_iter().take(count).map(|record| part(record.to_bytes()));
        [vec![2], part(Replica::default().to_bytes())].into_iter().chain(parts).collect::<Vec<_>>().concat()
    };
    let after = |count: usize| {
        let mut replica = Replica::default();
        for (at, record) in records().into_iter().take(count).enumerate() {
            assert!(replica.apply(record.clone()).is_some(), "{at}: {record:?}");
        }
        [vec![0], replica.to_bytes()].concat()
    };
    let record = |at: usize| [vec![1], records()[at].to_bytes()].concat();
    let all = records().len();
    replay::compare(
        "cache",
        &[
            ("empty", after(0)),
            ("cached", after(8)),
            ("done", after(18)),
            ("truncated", after(18)[..200].to_vec()),
            ("answered", after(all)),
            ("joined", record(0)),
            ("listed", record(4)),
            ("did", record(8)),
            ("answer", record(19)),
            ("became", record(26)),
            ("lost", record(all - 2)),
            ("reopened", record(all - 1)),
            ("doing", life(18)),
            ("life", life(all)),
        ],
    );
}
