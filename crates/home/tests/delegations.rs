//! Delegations: what one client has, others get when it is returned, or when its lease has ended,
//! even if the client says that it still has it.

mod common;

use common::*;
use roam_proto::channel::{PeerKey, Service};
use roam_proto::delegation::{Behind, Hold, LEASE, Recall, Watch};
use roam_proto::lock::{LOCK_COUNT_MAX, Lock, LockKind, Locking};
use roam_proto::message::{Outcome, Pushed, Refusal, Reply, Request, unpack};
use roam_proto::operation::{Attributes, Change, Operation, Place};
use roam_proto::ranges::Ranges;
use types::{FileId, FsError, Kind, Time};
use vfs::FileSystem;
use vfs::fs::{Cred, SetAttr};

/// Returns a client of a user that works under delegations and has none.
fn delegated(world: &World, key: u8, uid: u32) -> Peer<'_> {
    world.enroll(key, uid);
    world.attach_to(key, NO_DELEGATIONS)
}

const NO_DELEGATIONS: Watch = Watch::Delegations { run: 0, changed: Vec::new(), locks: Vec::new(), term: 0 };

impl Peer<'_> {
    /// Asks for a delegation. Returns the files that the home gives; `None` if another client has
    /// what that excludes.
    fn delegate(&self, file: FileId, hold: Hold) -> Option<Vec<FileId>> {
        match self.ask(Request::Delegate { files: vec![file], hold }) {
            Reply::Delegated { known, .. } => Some(known.into_iter().map(|facts| facts.id).collect()),
            Reply::Failed(FsError::Busy) => None,
            other => panic!("{other:?}"),
        }
    }

    /// Attaches with no delegations. Returns the number of the home's run.
    fn begins_anew(&self) -> u64 {
        match self.ask(attach_request(NO_DELEGATIONS)) {
            Reply::Attached { kept: Some(kept), .. } => {
                assert!(!kept.all, "it said that it had none");
                kept.run
            }
            reply => panic!("{reply:?}"),
        }
    }

    /// Returns the new recalls.
    fn recalled(&self) -> Vec<Recall> {
        let pushed = std::mem::take(&mut *self.pushes.0.lock());
        let recalls = pushed.iter().flat_map(|message| match unpack(message) {
            Ok(Pushed::Recall(recalls)) => recalls,
            _ => Vec::new(),
        });
        recalls.collect()
    }

    fn returns(&self, recall: Recall) {
        let recalls = vec![recall.number];
        assert_eq!(self.ask(Request::Returned { recalls, lowered: Vec::new(), behind: None }), Reply::Done);
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
    // If others ask again, the client gets no second recall.
    assert_eq!(other.delegate(plain, Hold::Read), None);
    assert_eq!(one.recalled(), []);
    // A client cannot return another's delegation.
    other.returns(recalls[0]);
    assert_eq!(other.delegate(plain, Hold::Read), None);
    one.returns(recalls[0]);
    assert_eq!(other.delegate(plain, Hold::Read), Some(vec![plain]));
    assert_eq!(one.delegate(plain, Hold::Read), Some(vec![plain]), "both may read");
    assert_eq!(one.delegate(plain, Hold::Write), None);
    assert_eq!(other.recalled().len(), 1);
}

#[test]
fn whoever_is_turned_away_gets_and_keeps_nothing_until_he_is_invited_again() {
    let mut world = World::new();
    let number = |world: &World, key: u8| {
        let of_key = world.home.clients().into_iter().find(|client| client.key == [key; 32]);
        of_key.expect("a client").number
    };
    let turn_away = |world: &World, key: u8| {
        let done = world.home.turn_away(number(world, key));
        assert_eq!(world.sim.block_on(done), Ok(true));
    };
    assert_eq!(world.sim.block_on(world.home.turn_away(77)), Ok(false));
    {
        let (one, other) = (delegated(&world, 1, MALLORY), delegated(&world, 2, MALLORY));
        let plain = one.id(one.id(ROOT, "mallory"), "plain");
        assert_eq!(one.delegate(plain, Hold::Write), Some(vec![plain]));
        assert_eq!(other.delegate(plain, Hold::Read), None);
        turn_away(&world, 1);
        assert_eq!(one.ask(Request::Facts { files: vec![ROOT] }), Reply::Refused(Refusal::Detached));
        assert_eq!(one.ask(attach_request(NO_DELEGATIONS)), Reply::Refused(Refusal::Stranger));
        assert_eq!(one.ask(Request::Enroll { secret: [1; 16] }), Reply::Refused(Refusal::Secret));
        assert!(!world.home.knows(PeerKey([1; 32])));
        // Others get at once what the client had, and it hears nothing more.
        let heard = one.pushes.0.lock().len();
        assert_eq!(one.pushes.0.lock().last().map(|last| unpack(last)), Some(Ok(Pushed::Detached)));
        assert_eq!(other.delegate(plain, Hold::Write), Some(vec![plain]));
        assert_eq!(one.pushes.0.lock().len(), heard);
    }
    // A home that starts again neither serves the client nor waits for it.
    world.restart();
    assert_eq!(world.connect(1).ask(attach_request(Watch::Changes)), Reply::Refused(Refusal::Stranger));
    let other = world.attach_to(2, NO_DELEGATIONS);
    let plain = other.id(other.id(ROOT, "mallory"), "plain");
    assert_eq!(other.delegate(plain, Hold::Write), Some(vec![plain]));
    let before = number(&world, 1);
    world.enroll_by([3; 16], 1, BOB);
    let one = world.attach_to(1, NO_DELEGATIONS);
    // Earlier attachments are void, of any user.
    world.enroll_by([4; 16], 1, MALLORY);
    assert_eq!(one.ask(Request::Facts { files: vec![ROOT] }), Reply::Refused(Refusal::Detached));
    turn_away(&world, 1);
    world.enroll_by([5; 16], 1, BOB);
    assert_eq!(one.ask(Request::Facts { files: vec![ROOT] }), Reply::Refused(Refusal::Detached));
    drop(one);
    let one = world.attach_to(1, NO_DELEGATIONS);
    assert!(one.list(ROOT).contains_key(&b"bob"[..]));
    let clients = world.home.clients();
    assert_eq!((clients.len(), number(&world, 1)), (2, before));
    assert!(clients.iter().all(|client| client.is_attached && !client.is_turned_away), "{clients:?}");
    assert_eq!(clients[0].volumes, [(VOLUME.to_string(), user(BOB))], "the last invitation counts");
}

#[test]
fn locks_are_for_files_that_their_user_can_open_and_for_the_term_of_now() {
    let world = World::new();
    let (one, other) = (delegated(&world, 1, MALLORY), delegated(&world, 2, BOB));
    let bob = other.id(ROOT, "bob");
    let (diary, letter) = (other.id(bob, "diary"), other.id(bob, "letter"));
    let begin = |peer: &Peer| match peer.ask(attach_request(NO_DELEGATIONS)) {
        Reply::Attached { kept: Some(kept), .. } => kept.term,
        reply => panic!("{reply:?}"),
    };
    let lock = |file, start| Lock {
        file,
        space: LockKind::Mixed,
        owner: 7,
        pid: 70,
        exclusive: Some(true),
        start,
        end: start,
    };
    let ask = |term, number, lock| {
        Request::Lock(Locking { term, number, over: number - 1, open: Vec::new(), lock, waits: false, gives_up: 0 })
    };
    let (term, others) = (begin(&one), begin(&other));
    assert_eq!(one.ask(ask(term, 1, lock(diary, 0))), Reply::Failed(FsError::AccessDenied));
    assert_eq!(one.ask(Request::TestLock(lock(diary, 0))), Reply::Failed(FsError::AccessDenied));
    assert_eq!(one.ask(ask(others, 1, lock(letter, 0))), Reply::Failed(FsError::Stale), "another's term");
    assert_eq!(one.ask(ask(term, 1, lock(letter, 0))), Reply::Done);
    assert_eq!(other.ask(ask(others, 1, lock(letter, 0))), Reply::Failed(FsError::WouldBlock));
    assert_eq!(one.ask(ask(term, 1, Lock { exclusive: None, ..lock(letter, 0) })), Reply::Done, "it was done before");
    assert_eq!(other.ask(ask(others, 2, lock(letter, 0))), Reply::Failed(FsError::WouldBlock));
    let mut number = 2;
    while let Reply::Done = one.ask(ask(term, number, lock(letter, 2 * number))) {
        number += 1;
    }
    assert_eq!(number as usize, LOCK_COUNT_MAX + 1, "a client has so many locks at most");
    // The client begins anew without locks, and late requests count no more.
    let next = begin(&one);
    assert_ne!(next, term);
    assert_eq!(one.ask(ask(term, number + 1, lock(letter, 0))), Reply::Failed(FsError::Stale));
    assert_eq!(other.ask(ask(others, 3, lock(letter, 0))), Reply::Done);
}

/// A message over a connection that the client gave up may arrive after the client has gone on over
/// another.
#[test]
fn regression_attaching_late_over_an_older_connection_takes_nothing_away() {
    let world = World::new();
    world.enroll(1, MALLORY);
    let (older, one) = (world.connect(1), world.attach_to(1, NO_DELEGATIONS));
    let other = delegated(&world, 2, MALLORY);
    let plain = one.id(one.id(ROOT, "mallory"), "plain");
    assert_eq!(one.delegate(plain, Hold::Write), Some(vec![plain]));
    assert_eq!(older.ask(attach_request(NO_DELEGATIONS)), Reply::Refused(Refusal::Detached));
    assert_eq!(other.delegate(plain, Hold::Read), None);
    assert_eq!(one.recalled().len(), 1);
    // When the other one has ended, this connection is the newest.
    drop(one);
    assert!(matches!(older.ask(attach_request(NO_DELEGATIONS)), Reply::Attached { .. }));
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
        // The client is heard of all the time, and says that it still has its delegations.
        if mallory.ask(Request::Renew) == Reply::Refused(Refusal::Detached) {
            let again = mallory.ask(attach_request(Watch::Delegations {
                run,
                changed: Vec::new(),
                locks: Vec::new(),
                term: 0,
            }));
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
    // Nor are delegations recalled for operations that a user cannot do.
    let closed = bob.id(ROOT, "closed");
    let make = Operation::Make { at: (ROOT, b"mine".to_vec()), file: readable, made: made(Kind::File, 0o644) };
    let link = Operation::Link { file: readable, at: (ROOT, b"mine".to_vec()) };
    let remove = Operation::Remove { at: (closed, b"readable".to_vec()), file: readable, last: true };
    for operation in [make, link, remove] {
        mallory.apply(vec![mallory.sent(operation, b"")]);
        assert!(bob.recalled().iter().all(|recall| recall.file != readable));
        assert_eq!(bob.delegate(readable, Hold::Write), Some(vec![readable]), "bob still has it alone");
    }
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
    // The client keeps the delegation on the file that it has changed.
    let one = world.attach_to(1, Watch::Delegations { run: 9, changed: vec![plain], locks: Vec::new(), term: 0 });
    assert_eq!(one.ask(Request::Renew), Reply::Done);
    assert_eq!(other.delegate(plain, Hold::Read), None);
    let recalls = one.recalled();
    assert_eq!(recalls.len(), 1, "{recalls:?}");
    one.returns(recalls[0]);
    assert_eq!(other.delegate(plain, Hold::Read), Some(vec![plain]));
    drop((one, other));
    world.restart();
    // One of the clients does not come back.
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
    let known = Watch::Delegations { run, changed: Vec::new(), locks: Vec::new(), term: 0 };
    let before = other.recalled();
    let other = world.attach_to(2, known);
    assert_eq!(other.recalled(), before, "and it has kept what it had");
    other.returns(before[0]);
    assert_eq!(one.delegate(plain, Hold::Read), Some(vec![plain]));
}

#[test]
fn nobody_promises_what_he_may_not_do_or_does_not_do_what_he_promised_for_ever() {
    let world = World::new();
    let (mallory, bob) = (delegated(&world, 1, MALLORY), delegated(&world, 2, BOB));
    let dir = mallory.id(ROOT, "mallory");
    let plain = mallory.id(dir, "plain");
    let letter = bob.id(bob.id(ROOT, "bob"), "letter");
    let facts = |peer: &Peer, file| peer.facts(&[file]).remove(0);
    let change = |size, end| Change { cut: 0, size, ranges: Ranges::of(0..end), mtime: Time::default() };
    let promise = |peer: &Peer, recall, base, change| {
        let behind = Some(Behind { seq: 77, base, change });
        peer.ask(Request::Returned { recalls: vec![recall], lowered: Vec::new(), behind })
    };
    // A file that was never recalled cannot be promised.
    for recall in [0, 1, u64::MAX] {
        assert!(matches!(promise(&mallory, recall, u64::MAX, change(9, 9)), Reply::Failed(_)));
    }
    let set_mode = |dir: &'static str, name: &'static str, mode| {
        world.sim.block_on(async {
            let dir = world.fs.lookup(&Cred::ROOT, ROOT, dir.as_bytes()).await.expect("there").attr.id;
            let file = world.fs.lookup(&Cred::ROOT, dir, name.as_bytes()).await.expect("there").attr.id;
            let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
            world.fs.setattr(&Cred::ROOT, file, None, set).await.expect("chmod")
        });
    };
    // Nor can a file that mallory may no longer write. Bob has listed the directory, and so has
    // read delegations on the files in it.
    set_mode("bob", "letter", 0o666);
    assert_eq!(mallory.delegate(letter, Hold::Write), None);
    bob.recalled().into_iter().for_each(|recall| bob.returns(recall));
    assert_eq!(mallory.delegate(letter, Hold::Write), Some(vec![letter]));
    assert_eq!(bob.delegate(letter, Hold::Read), None);
    let recall = mallory.recalled()[0];
    set_mode("bob", "letter", 0o644);
    assert!(matches!(promise(&mallory, recall.number, u64::MAX, change(9, 9)), Reply::Failed(_)));
    assert_eq!(promise(&bob, recall.number, u64::MAX, change(9, 9)), Reply::Failed(FsError::InvalidArgument));
    mallory.returns(recall);
    assert_eq!(bob.delegate(letter, Hold::Read), Some(vec![letter]));
    // Nor can impossible changes. Then a possible one.
    set_mode("mallory", "plain", 0o666);
    let before = facts(&mallory, plain);
    assert_eq!(mallory.delegate(plain, Hold::Write), Some(vec![plain]));
    assert_eq!(bob.delegate(plain, Hold::Read), None);
    let recall = mallory.recalled()[0];
    for (base, change) in [(u64::MAX, change(9, 10)), (u64::MAX, change(u64::MAX, 9))] {
        assert_eq!(promise(&mallory, recall.number, base, change), Reply::Failed(FsError::InvalidArgument));
    }
    assert_eq!(promise(&mallory, recall.number, before.version, change(9, 9)), Reply::Done);
    let promised = facts(&bob, plain);
    assert_eq!(promised.size, 9);
    assert!(promised.contents > before.contents);
    let read = |contents| bob.ask(Request::Read { file: plain, contents, offset: 0, len: 9 });
    assert_eq!(read(promised.contents), Reply::Failed(FsError::Busy), "it does not come");
    assert_eq!(read(before.contents), Reply::Changed);
    // The client sends nothing, though it is heard of.
    let begun = world.sim.now();
    while facts(&bob, plain).size == 9 {
        assert_eq!(mallory.ask(Request::Renew), Reply::Done);
        world.sim.run_for(LEASE / 10);
        assert!(world.sim.now() < begun + LEASE * 2, "still waiting");
    }
    let after = facts(&bob, plain);
    assert_eq!((after.size, after.mtime), (before.size, before.mtime));
    assert!(after.contents > promised.contents, "what was said of it is not so any more");
    assert_eq!(read(promised.contents), Reply::Changed);
    assert_eq!(bob.delegate(plain, Hold::Write), None);
    mallory.recalled().into_iter().for_each(|recall| mallory.returns(recall));
    assert_eq!(bob.delegate(plain, Hold::Write), Some(vec![plain]), "it is not kept for what was promised");
}

#[test]
fn regression_what_a_home_that_began_anew_has_not_told_a_client_is_not_given_to_others() {
    let mut world = World::new();
    let plain = {
        let (one, _other) = (delegated(&world, 1, MALLORY), delegated(&world, 2, MALLORY));
        let plain = one.id(one.id(ROOT, "mallory"), "plain");
        assert_eq!(one.delegate(plain, Hold::Read), Some(vec![plain]));
        plain
    };
    world.restart();
    let other = world.attach_to(2, NO_DELEGATIONS);
    // The client still believes what it was given before, until it has the answer.
    let one = world.attach_to(1, Watch::Delegations { run: 9, changed: Vec::new(), locks: Vec::new(), term: 0 });
    assert_eq!(other.delegate(plain, Hold::Write), None);
    assert_eq!(one.ask(Request::Renew), Reply::Done);
    assert_eq!(other.delegate(plain, Hold::Write), Some(vec![plain]));
    drop((one, other));
    world.restart();
    // It does not keep others waiting for ever if it never gets the answer.
    let other = world.attach_to(2, NO_DELEGATIONS);
    let _one = world.attach_to(1, Watch::Delegations { run: 9, changed: Vec::new(), locks: Vec::new(), term: 0 });
    assert_eq!(other.delegate(plain, Hold::Write), None);
    world.sim.run_for(LEASE);
    assert_eq!(other.delegate(plain, Hold::Write), Some(vec![plain]));
}

/// Returns what the home has told of changes, each with whether that is all.
fn news(peer: &Peer<'_>) -> Vec<(Vec<FileId>, bool)> {
    let pushed = std::mem::take(&mut *peer.pushes.0.lock());
    let news = pushed.iter().filter_map(|message| match unpack(message) {
        Ok(Pushed::Changed { files, more, .. }) => Some((files, !more)),
        _ => None,
    });
    news.collect()
}

#[test]
fn whoever_works_under_delegations_is_told_of_what_he_has_and_of_the_rest_when_he_is_idle() {
    let world = World::new();
    let (one, other) = (delegated(&world, 1, MALLORY), world.client(2, MALLORY));
    let dir = one.id(ROOT, "mallory");
    let plain = one.id(dir, "plain");
    let set = |mode| Operation::Set { file: plain, attributes: Attributes { mode: Some(mode), ..Default::default() } };
    assert_eq!(other.apply(vec![other.sent(set(0o600), b"")]), Reply::Failed(FsError::Busy), "it was listed");
    one.recalled().into_iter().for_each(|recall| one.returns(recall));
    assert_eq!(other.outcome(set(0o600), b""), Outcome::Done);
    assert_eq!(news(&one), [], "it does not believe it");
    assert_eq!(one.ask(Request::Renew), Reply::Done);
    assert_eq!(news(&one), [(vec![plain], true)]);
    assert_eq!(one.ask(Request::Renew), Reply::Done);
    assert_eq!(news(&one), []);
    // A change that the client has learned of with a delegation is no news.
    assert_eq!(other.outcome(set(0o640), b""), Outcome::Done);
    assert_eq!(one.delegate(plain, Hold::Read), Some(vec![plain]));
    assert_eq!(one.ask(Request::Renew), Reply::Done);
    assert_eq!(news(&one), [(vec![], true)]);
    // Other programs wait for no client.
    let source = world.sim.block_on(find(&world, "plain"));
    world.sim.block_on(give(&world.fs, source, BOB));
    assert_eq!(other.facts(&[plain])[0].uid, BOB);
    assert_eq!(other.ask(Request::Renew), Reply::Done);
    let told = news(&one);
    assert!(told.iter().any(|(files, all)| files.contains(&plain) && !all), "{told:?}");
}

/// Finds a file of mallory's directory.
async fn find(world: &World, name: &str) -> FileId {
    let dir = world.fs.lookup(&Cred::ROOT, ROOT, b"mallory").await.expect("a directory").attr.id;
    world.fs.lookup(&Cred::ROOT, dir, name.as_bytes()).await.expect("a file").attr.id
}

#[test]
fn whoever_lists_to_make_a_name_may_make_it_if_it_is_free_and_nobody_is_before_him() {
    let world = World::new();
    let (one, other) = (delegated(&world, 1, MALLORY), delegated(&world, 2, MALLORY));
    let (dir, lock) = (one.id(ROOT, "mallory"), |name: &[u8]| Some(name.to_vec()));
    let list = |peer: &Peer<'_>, known, makes| match peer.ask(Request::List { dir, after: Vec::new(), known, makes }) {
        Reply::Listing { dir, entries, same, hold, .. } => Some((dir.contents, entries.len(), same, hold)),
        Reply::Failed(FsError::Busy) => None,
        reply => panic!("{reply:?}"),
    };
    let (contents, ..) = list(&one, 0, None).expect("no client has it");
    assert_eq!(list(&one, contents, None), Some((contents, 0, true, Hold::Read)), "as it was");
    assert_eq!(list(&other, 0, lock(b"plain")), Some((contents, 1, false, Hold::Read)), "it is there");
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 300]] {
        assert_eq!(list(&other, contents, lock(bad)), Some((contents, 0, true, Hold::Read)), "it is no name");
    }
    assert_eq!(one.recalled(), []);
    // The first client may still read the directory, and takes its time.
    let begun = world.sim.now();
    assert_eq!(list(&other, contents, lock(b"lock")), Some((contents, 0, true, Hold::Read)));
    assert!(world.sim.now() < begun + LEASE / 10, "a client that only looks does not wait long");
    one.recalled().into_iter().for_each(|recall| one.returns(recall));
    assert_eq!(list(&other, contents, lock(b"lock")), Some((contents, 0, true, Hold::Write)));
    let file = other.ids();
    let make = Operation::Make { at: (dir, b"lock".to_vec()), file, made: made(Kind::File, 0o644) };
    assert_eq!(other.outcome(make, b""), Outcome::Done);
    assert_eq!(list(&one, contents, lock(b"lock")), None);
    other.recalled().into_iter().for_each(|recall| other.returns(recall));
    let after = list(&one, contents, lock(b"lock")).expect("it was returned");
    assert_eq!((after.1, after.2, after.3), (2, false, Hold::Read));
    // A user who may not make the name does not get the delegation for it.
    let bob = delegated(&world, 3, BOB);
    assert_eq!(list(&bob, 0, lock(b"mine")).map(|listed| listed.3), Some(Hold::Read));
}

#[test]
fn what_is_lowered_is_so_unless_it_was_given_again_since() {
    let world = World::new();
    let (one, other) = (delegated(&world, 1, MALLORY), delegated(&world, 2, MALLORY));
    let dir = one.id(ROOT, "mallory");
    let plain = one.id(dir, "plain");
    let lowers = |recall: Recall| {
        let (recalls, lowered) = (vec![recall.number], vec![plain]);
        assert_eq!(one.ask(Request::Returned { recalls, lowered, behind: None }), Reply::Done);
    };
    let recalls_dir = || {
        assert_eq!(one.delegate(dir, Hold::Write), Some(vec![dir]));
        assert_eq!(other.delegate(dir, Hold::Read), None);
        let recalls = one.recalled();
        assert!(matches!(recalls[..], [Recall { file, .. }] if file == dir), "{recalls:?}");
        recalls[0]
    };
    assert_eq!(one.delegate(plain, Hold::Write), Some(vec![plain]));
    let recall = recalls_dir();
    // The answer to this may arrive after the client has lowered its delegation.
    assert_eq!(one.delegate(plain, Hold::Write), Some(vec![plain]));
    lowers(recall);
    assert_eq!(other.delegate(plain, Hold::Read), None, "it has it again");
    let again = one.recalled();
    assert_eq!(again.len(), 1);
    one.returns(again[0]);
    assert_eq!(other.delegate(plain, Hold::Read), Some(vec![plain]));
    assert_eq!(one.delegate(plain, Hold::Write), None);
    other.recalled().into_iter().for_each(|recall| other.returns(recall));
    assert_eq!(one.delegate(plain, Hold::Write), Some(vec![plain]));
    assert_eq!(other.delegate(dir, Hold::Read), Some(vec![dir]));
    assert_eq!(one.delegate(dir, Hold::Write), None);
    other.recalled().into_iter().for_each(|recall| other.returns(recall));
    let recall = recalls_dir();
    lowers(recall);
    assert_eq!(other.delegate(plain, Hold::Read), Some(vec![plain]), "there is no recall of it");
    // Without a recall, nothing is lowered.
    assert_eq!(one.delegate(plain, Hold::Write), None);
    other.recalled().into_iter().for_each(|recall| other.returns(recall));
    assert_eq!(one.delegate(plain, Hold::Write), Some(vec![plain]));
    lowers(recall);
    assert_eq!(other.delegate(plain, Hold::Read), None);
}

/// A file or directory that a user may only read is not recalled from those who change it.
#[test]
fn regression_a_delegation_needs_the_rights_that_its_use_needs() {
    let world = World::new();
    let (bob, mallory) = (delegated(&world, 1, BOB), delegated(&world, 2, MALLORY));
    let (dir, closed) = (bob.id(ROOT, "bob"), bob.id(ROOT, "closed"));
    let (letter, own) = (bob.id(dir, "letter"), bob.id(ROOT, "mallory"));
    assert_eq!(mallory.delegate(own, Hold::Write), None, "a client that lists a directory may read its files");
    bob.recalled().into_iter().for_each(|recall| bob.returns(recall));
    assert_eq!(mallory.delegate(own, Hold::Write), Some(vec![own]));
    // No user with fewer rights can make bob give up what he holds.
    for held in [letter, dir, closed] {
        assert_eq!(bob.delegate(held, Hold::Write), Some(vec![held]));
    }
    bob.recalled();
    for file in [letter, dir] {
        let reply = mallory.ask(Request::Delegate { files: vec![file], hold: Hold::Write });
        assert_eq!(reply, Reply::Failed(FsError::NotPermitted));
    }
    let list = Request::List { dir: closed, after: vec![], known: 0, makes: None };
    assert_eq!(mallory.ask(list), Reply::Failed(FsError::AccessDenied));
    mallory.refused(Operation::Store { file: letter, change: changed(0, 3, &[(0, 3)]) }, b"new");
    mallory.refused(Operation::Link { file: letter, at: at(own, b"link") }, b"");
    assert_eq!(bob.recalled(), []);
    // The right to read is enough to learn what the file is like.
    assert_eq!(mallory.delegate(letter, Hold::Read), None);
    assert!(matches!(bob.recalled()[..], [Recall { file, keep: true, .. }] if file == letter));
}

/// A client that gets a recall of a file and goes on with others makes other clients wait no longer
/// than a lease.
#[test]
fn regression_what_has_nothing_to_do_with_a_recall_does_not_keep_it_alive() {
    let world = World::new();
    let (one, other) = (delegated(&world, 1, MALLORY), delegated(&world, 2, MALLORY));
    let dir = one.id(ROOT, "mallory");
    let (plain, new) = (one.id(dir, "plain"), one.ids());
    let make = |number: u64| {
        let name = format!("new-{number}");
        let file = FileId::new(new.raw() + number);
        assert_eq!(one.outcome(make_file(at(dir, name.as_bytes()), file), b""), Outcome::Done);
    };
    // The client says that two operations have to be home before it can return the file. As long as
    // one of them comes in time, the others wait.
    for (said, waits) in [(false, LEASE), (true, LEASE * 2)] {
        assert_eq!(one.delegate(plain, Hold::Write), Some(vec![plain]));
        assert_eq!(other.delegate(plain, Hold::Read), None);
        let (begun, recall) = (world.sim.now(), one.recalled()[0].number);
        let next = *one.next.lock();
        if said {
            assert_eq!(one.ask(Request::Returning { recalls: vec![recall], through: next + 2 }), Reply::Done);
            // What it says later does not count.
            assert_eq!(one.ask(Request::Returning { recalls: vec![recall], through: u64::MAX }), Reply::Done);
        }
        let mut number = next;
        while other.delegate(plain, Hold::Read).is_none() {
            world.sim.run_for(LEASE / 3);
            if !matches!(one.ask(Request::Renew), Reply::Refused(Refusal::Detached)) {
                make(number);
                number += 1;
            }
            assert!(world.sim.now() < begun + LEASE * 5, "still waiting");
        }
        let took = world.sim.now() - begun;
        // A client that does not do its part has its delegations until its lease ends.
        assert!(took >= waits && took < waits + LEASE * 2, "said {said}: {took:?}");
        one.begins_anew();
        other.begins_anew();
    }
}

fn make_file(place: Place, file: FileId) -> Operation {
    Operation::Make { at: place, file, made: made(Kind::File, 0o644) }
}
