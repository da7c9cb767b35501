//! Messages decode to what was encoded, and invalid bytes do no harm.

use bytes::Bytes;
use proptest::prelude::*;
use roam_proto::channel::MESSAGE_LEN_MAX;
use roam_proto::codec::Wire;
use roam_proto::delegation::{Behind, Hold, Kept, Recall, Watch};
use roam_proto::lock::{Lock, LockKind, Locking};
use roam_proto::message::{
    Applied, Company, ConflictReason, Facts, NamedFacts, Outcome, Pushed, Refusal, Reply, Request, Sent, User, pack,
    unpack,
};
use roam_proto::operation::{Attributes, Change, Made, Operation, Place, RANGE_COUNT_MAX};
use roam_proto::piece::Piece;
use roam_proto::ranges::Ranges;
use roam_proto::volume_stamp::{Since, Stamp};
use std::fmt::Debug;
use types::codec::DecodeError;
use types::{FileId, FsError, Kind, Time};

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..20)
}

fn data() -> impl Strategy<Value = Bytes> {
    prop_oneof![bytes(), (any::<u8>(), 0..5000usize).prop_map(|(byte, len)| vec![byte; len])].prop_map(Bytes::from)
}

prop_compose! {
    fn time()(sec in any::<i64>(), nsec in 0..1_000_000_000u32) -> Time {
        Time { sec, nsec }
    }
}

fn file() -> impl Strategy<Value = FileId> {
    any::<u64>().prop_map(FileId::new)
}

fn files() -> impl Strategy<Value = Vec<FileId>> {
    prop::collection::vec(file(), 0..8)
}

fn kind() -> impl Strategy<Value = Kind> {
    (0..=255u8).prop_filter_map("no kind", Kind::from_u8)
}

fn error() -> impl Strategy<Value = FsError> {
    prop::sample::select(FsError::ALL)
}

prop_compose! {
    fn facts()(
        id in file(),
        numbers in any::<[u64; 5]>(),
        kind in kind(),
        rights in any::<[u32; 4]>(),
        times in [time(), time(), time(), time()],
        target in bytes(),
        xattrs in prop::collection::vec((bytes(), bytes()), 0..4),
    ) -> Facts {
        let [version, contents, rdev, size, blocks] = numbers;
        let [mode, nlink, uid, gid] = rights;
        let [atime, mtime, ctime, crtime] = times;
        Facts {
            id, version, contents, kind, mode, nlink, uid, gid, rdev, size, blocks, atime, mtime, ctime, crtime, target, xattrs,
        }
    }
}

prop_compose! {
    fn user()(uid in any::<u32>(), gid in any::<u32>(), groups in prop::collection::vec(any::<u32>(), 0..5)) -> User {
        User { uid, gid, groups }
    }
}

fn ranges() -> impl Strategy<Value = Ranges> {
    prop::collection::vec((any::<u64>(), 1..1000u64), 0..10).prop_map(|all| {
        let mut ranges = Ranges::default();
        all.into_iter().for_each(|(start, len)| ranges.add(start..start.saturating_add(len)));
        ranges
    })
}

prop_compose! {
    fn change()(cut in any::<u64>(), size in any::<u64>(), ranges in ranges(), mtime in time()) -> Change {
        Change { cut, size, ranges, mtime }
    }
}

fn place() -> impl Strategy<Value = Place> {
    (file(), bytes())
}

prop_compose! {
    fn made()(kind in kind(), numbers in any::<[u32; 3]>(), rdev in any::<u64>(), target in bytes(), when in time()) -> Made {
        let [mode, uid, gid] = numbers;
        Made { kind, mode, uid, gid, rdev, target, when }
    }
}

prop_compose! {
    fn attributes()(
        numbers in any::<[Option<u32>; 3]>(),
        atime in prop::option::of(time()),
        mtime in prop::option::of(time()),
    ) -> Attributes {
        let [mode, uid, gid] = numbers;
        Attributes { mode, uid, gid, atime, mtime }
    }
}

fn operation() -> impl Strategy<Value = Operation> {
    let replaced = prop::option::of((file(), any::<bool>()));
    prop_oneof![
        (place(), file(), made()).prop_map(|(at, file, made)| Operation::Make { at, file, made }),
        (file(), place()).prop_map(|(file, at)| Operation::Link { file, at }),
        (place(), file(), any::<bool>()).prop_map(|(at, file, last)| Operation::Remove { at, file, last }),
        (file(), place(), place(), replaced).prop_map(|(file, from, to, replaced)| Operation::Rename {
            file,
            from,
            to,
            replaced
        }),
        (file(), place(), file(), place()).prop_map(|(file, from, other, to)| Operation::Exchange {
            file,
            from,
            other,
            to
        }),
        (file(), attributes()).prop_map(|(file, attributes)| Operation::Set { file, attributes }),
        (file(), bytes(), prop::option::of(bytes())).prop_map(|(file, name, value)| Operation::SetXattr {
            file,
            name,
            value
        }),
        (file(), change()).prop_map(|(file, change)| Operation::Store { file, change }),
        (file(), file()).prop_map(|(file, from)| Operation::Copy { file, from }),
    ]
}

prop_compose! {
    fn sent()(seq in any::<u64>(), bases in any::<(u64, u64)>(), operation in operation(), data in data()) -> Sent {
        Sent { seq, bases, operation, data }
    }
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let conflicts = [ConflictReason::Changed, ConflictReason::Gone, ConflictReason::Taken, ConflictReason::NotEmpty];
    prop_oneof![
        Just(Outcome::Done),
        prop::sample::select(conflicts.to_vec()).prop_map(Outcome::Conflict),
        error().prop_map(Outcome::Refused),
        file().prop_map(Outcome::Became),
        file().prop_map(Outcome::Empty),
    ]
}

prop_compose! {
    fn applied()(seq in any::<u64>(), outcome in outcome(), facts in prop::collection::vec(facts(), 0..3)) -> Applied {
        Applied { seq, outcome, facts }
    }
}

prop_compose! {
    fn stamp()(epoch in any::<u64>(), seq in any::<u64>()) -> Stamp {
        Stamp { epoch, seq }
    }
}

fn since() -> impl Strategy<Value = Since> {
    prop_oneof![
        Just(Since::Current),
        (files(), stamp()).prop_map(|(files, stamp)| Since::Changed { files, stamp }),
        stamp().prop_map(|stamp| Since::Reset { stamp }),
    ]
}

fn hold() -> impl Strategy<Value = Hold> {
    prop::sample::select(vec![Hold::Read, Hold::Write])
}

fn watch() -> impl Strategy<Value = Watch> {
    prop_oneof![
        Just(Watch::Nothing),
        Just(Watch::Changes),
        (any::<[u64; 2]>(), files(), prop::collection::vec(lock(), 0..4))
            .prop_map(|([run, term], changed, locks)| Watch::Delegations { run, changed, locks, term }),
    ]
}

prop_compose! {
    fn lock()(
        file in file(),
        space in prop::sample::select(vec![LockKind::Posix, LockKind::Flock, LockKind::Mixed]),
        (owner, pid) in any::<(u64, u32)>(),
        exclusive in any::<Option<bool>>(),
        (start, end) in any::<(u64, u64)>(),
    ) -> Lock {
        Lock { file, space, owner, pid, exclusive, start, end }
    }
}

prop_compose! {
    fn locking()(
        [term, number, over, gives_up] in any::<[u64; 4]>(),
        open in any::<Vec<u64>>(),
        lock in lock(),
        waits in any::<bool>(),
    ) -> Locking {
        Locking { term, number, over, open, lock, waits, gives_up }
    }
}

prop_compose! {
    fn recall()(number in any::<u64>(), file in file(), held in hold(), keep in any::<bool>()) -> Recall {
        Recall { number, file, held, keep }
    }
}

fn piece() -> impl Strategy<Value = Piece> {
    (any::<[u64; 4]>(), file(), any::<[u8; 16]>()).prop_map(|([offset, len, contents, at], file, hash)| Piece {
        offset,
        len,
        file,
        contents,
        at,
        hash,
    })
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        any::<[u8; 16]>().prop_map(|secret| Request::Enroll { secret }),
        (".{0,9}", any::<[u64; 3]>(), prop::option::of(stamp()), file(), watch()).prop_map(
            |(volume, [incarnation, acknowledged, attempt], stamp, newest, watch)| Request::Attach {
                volume,
                incarnation,
                acknowledged,
                stamp,
                newest,
                watch,
                attempt
            }
        ),
        stamp().prop_map(|stamp| Request::Since { stamp }),
        files().prop_map(|files| Request::Facts { files }),
        prop::collection::vec((file(), any::<u64>()), 0..9).prop_map(|files| Request::Validate { files }),
        (file(), bytes(), any::<u64>(), prop::option::of(bytes()))
            .prop_map(|(dir, after, known, makes)| Request::List { dir, after, known, makes }),
        (file(), any::<u64>(), any::<u64>(), any::<u32>()).prop_map(|(file, contents, offset, len)| Request::Read {
            file,
            contents,
            offset,
            len
        }),
        (any::<u64>(), any::<u64>(), data()).prop_map(|(seq, offset, data)| Request::Upload { seq, offset, data }),
        (any::<u64>(), prop::collection::vec(sent(), 0..5))
            .prop_map(|(acknowledged, operations)| Request::Apply { acknowledged, operations }),
        Just(Request::Space),
        Just(Request::Ids),
        (files(), hold()).prop_map(|(files, hold)| Request::Delegate { files, hold }),
        (any::<Vec<u64>>(), files(), prop::option::of((any::<(u64, u64)>(), change()))).prop_map(
            |(recalls, lowered, behind)| {
                let behind = behind.map(|((seq, base), change)| Behind { seq, base, change });
                Request::Returned { recalls, lowered, behind }
            }
        ),
        (any::<Vec<u64>>(), any::<u64>()).prop_map(|(recalls, through)| Request::Returning { recalls, through }),
        Just(Request::Renew),
        Just(Request::Resign),
        prop::collection::vec((file(), any::<u64>()), 0..9).prop_map(|files| Request::ReadFiles { files }),
        (any::<u64>(), prop::collection::vec(piece(), 0..9)).prop_map(|(seq, pieces)| Request::Take { seq, pieces }),
        locking().prop_map(Request::Lock),
        lock().prop_map(Request::TestLock),
        any::<u64>().prop_map(|number| Request::Joined { number }),
        any::<u64>().prop_map(|through| Request::Durable { through }),
        any::<u64>().prop_map(|seq| Request::Heard { seq }),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    use Refusal::*;
    let named = (bytes(), facts()).prop_map(|(name, facts)| NamedFacts { name, facts });
    prop_oneof![
        Just(Reply::Done),
        prop::collection::vec(".{0,9}", 0..3).prop_map(|volumes| Reply::Enrolled { volumes }),
        prop::collection::vec(any::<u64>(), 0..9).prop_map(Reply::Taken),
        (file(), user(), since(), any::<([u64; 3], bool)>(), prop::option::of(any::<([u64; 2], [bool; 2])>()))
            .prop_map(|(root, user, since, ([heard, file_len_max, number], others), kept)| {
                let company = Company { number, others };
                let kept = kept.map(|([run, term], [all, locks])| Kept { run, all, locks, term });
                Reply::Attached { root, user, since, heard, kept, file_len_max, company }
            }),
        since().prop_map(Reply::Since),
        prop::collection::vec(facts(), 0..4).prop_map(Reply::Facts),
        files().prop_map(Reply::Stale),
        prop::collection::vec((file(), data()), 0..4).prop_map(Reply::Files),
        (facts(), prop::collection::vec(named, 0..4), any::<[bool; 2]>(), files(), any::<[u64; 2]>(), hold()).prop_map(
            |(dir, entries, [same, more], withheld, [given, seq], hold)| {
                let dir = Box::new(dir);
                Reply::Listing { dir, entries, same, more, withheld, given, seq, hold }
            }
        ),
        (prop::collection::vec(facts(), 0..4), any::<[u64; 2]>()).prop_map(|(known, [given, seq])| Reply::Delegated {
            known,
            given,
            seq
        }),
        data().prop_map(Reply::Data),
        Just(Reply::Changed),
        prop::collection::vec(applied(), 0..4).prop_map(Reply::Applied),
        any::<[u64; 4]>().prop_map(|[total, free, files, files_free]| Reply::Space { total, free, files, files_free }),
        (file(), any::<u64>()).prop_map(|(first, count)| Reply::Ids(first, count)),
        prop::option::of(lock()).prop_map(Reply::InTheWay),
        error().prop_map(Reply::Failed),
        prop::sample::select(vec![Secret, Stranger, Volume, Detached, Forgotten, Busy]).prop_map(Reply::Refused),
    ]
}

fn comes_back<T: Wire + PartialEq + Debug>(message: &T) {
    let packed = pack(message);
    assert_eq!(unpack::<T>(&packed).as_ref(), Ok(message));
    assert!(packed.len() <= message.to_bytes().len() + 1);
}

proptest! {
    #[test]
    fn prop_requests_come_back(request in request()) {
        comes_back(&request);
    }

    #[test]
    fn prop_replies_come_back(reply in reply()) {
        comes_back(&reply);
    }

    #[test]
    fn prop_what_is_pushed_comes_back(files in files(), stamp in stamp(), recall in recall(), wanted in any::<[u64; 3]>()) {
        let [seq, offset, len] = wanted;
        comes_back(&Pushed::Wanted { seq, offset, len });
        comes_back(&Pushed::Changed { files, stamp, more: true });
        comes_back(&Pushed::Recall(vec![recall, recall]));
        comes_back(&Pushed::Detached);
        comes_back(&Pushed::Company(Company { number: seq, others: offset % 2 == 0 }));
    }

    /// A value has one encoding.
    #[test]
    fn prop_what_is_changed_is_refused_or_another_value(request in request(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = request.to_bytes();
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != byte);
        bytes[at] = byte;
        if let Ok(other) = Request::from_bytes(&bytes) {
            prop_assert_eq!(other.to_bytes(), bytes);
            prop_assert_ne!(other, request);
        }
    }

    #[test]
    fn prop_what_is_cut_short_is_refused(request in request(), len in any::<prop::sample::Index>()) {
        let bytes = request.to_bytes();
        prop_assert!(Request::from_bytes(&bytes[..len.index(bytes.len())]).is_err());
    }
}

#[test]
fn what_is_longer_than_a_message_when_unpacked_is_refused() {
    // The longest message that fits, and two that would unpack to thousands of times their packed
    // length.
    let fits = Reply::Data(vec![0; MESSAGE_LEN_MAX - 5].into());
    assert!(fits.to_bytes().len() <= MESSAGE_LEN_MAX && pack(&fits).len() < 1000);
    assert_eq!(unpack(&pack(&fits)), Ok(fits));
    for len in [MESSAGE_LEN_MAX, 100 << 20] {
        let bomb = pack(&Reply::Data(vec![0; len].into()));
        assert!(bomb.len() < 20_000);
        assert_eq!(unpack::<Reply>(&bomb), Err(DecodeError::Invalid("compressed message")));
    }
}

#[test]
fn changes_of_very_many_ranges_are_told_as_fewer_that_have_them_all() {
    let many = |step: u64| {
        let mut ranges = Ranges::default();
        (0..RANGE_COUNT_MAX as u64).for_each(|n| ranges.add(n * step..n * step + 1));
        Change { cut: 1 << 30, size: 1 << 30, ranges, mtime: Time::default() }
    };
    assert!(Change::from_bytes(&many(10).to_bytes()).is_ok());
    let both = many(10).then(many(13));
    assert!(both.ranges.count() <= RANGE_COUNT_MAX);
    assert!(many(10).ranges.iter().chain(many(13).ranges.iter()).all(|range| both.ranges.missing(range).is_empty()));
    assert!(both.to_bytes().len() < MESSAGE_LEN_MAX / 4);
    let mut wide = many(3);
    wide.ranges.add(1 << 20..1 << 21);
    assert_eq!(Change::from_bytes(&wide.to_bytes()), Err(DecodeError::Invalid("ranges of a change")));
}
