//! Bytes that clients send ahead of their stores.

mod common;

use common::*;
use home::export::Export;
use roam_proto::message::{Outcome, Reply, Request, pack, unpack};
use roam_proto::operation::Operation;
use roam_proto::piece::{PIECE_COUNT_MAX, PIECE_LEN_MAX, Piece, hash};
use std::time::Duration;
use types::{FsError, Kind};
use vfs::FileSystem;
use vfs::fs::{Cred, SetAttr};

/// Returns how many files are in the home's own directory.
fn own_count(world: &World) -> usize {
    world.sim.block_on(async {
        let own = world.fs.lookup(&Cred::ROOT, ROOT, OWN).await.expect("it is there").attr.id;
        world.fs.list(own).await.expect("list").len()
    })
}

/// Makes durable all that the home has done for a client.
fn make_durable(peer: &Peer) {
    assert_eq!(peer.ask(Request::Durable { through: u64::MAX }), Reply::Done);
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
    let busy: usize = (1..400)
        .filter(|seq| {
            let (first, second) = (ask(&peer, *seq), ask(&other, *seq));
            let answers = world.sim.block_on(async { [first.await, second.await] });
            let replies: [Reply; 2] = answers.map(|answer| unpack(&answer.expect("an answer")).expect("a reply"));
            assert_eq!(replies[0], replies[1]);
            replies[0] == Reply::Failed(FsError::Busy)
        })
        .count();
    assert_eq!((busy, own_count(&world)), (399 - 256, 256));
}

/// A duplicate of an upload arrived long after its store was done, and stayed in the home's own
/// directory.
#[test]
fn regression_bytes_that_come_after_their_store_are_not_kept() {
    let world = World::new();
    let peer = world.client(1, MALLORY);
    let root = world.home.state().volumes[VOLUME].root();
    let plain = peer.id(peer.id(root, "mallory"), "plain");
    let store = |text: &[u8]| {
        let change = changed(0, text.len() as u64, &[(0, text.len() as u64)]);
        peer.sent(Operation::Store { file: plain, change }, b"")
    };
    let upload = |seq, text: &'static [u8]| peer.ask(Request::Upload { seq, offset: 0, data: text.into() });
    let first = store(b"text");
    assert_eq!(upload(first.seq, b"text"), Reply::Done);
    let done = peer.apply(vec![first.clone()]);
    assert!(matches!(done, Reply::Applied(_)), "{done:?}");
    assert_eq!(upload(first.seq, b"text"), Reply::Done, "a client that missed the outcome sends all again");
    assert_eq!(own_count(&world), 1, "what there was before is kept until the store is durable");
    make_durable(&peer);
    assert_eq!(own_count(&world), 0);
    assert_eq!(peer.apply(vec![first]), done);
    let second = store(b"more");
    assert_eq!((upload(second.seq, b"more"), own_count(&world)), (Reply::Done, 1));
}

/// A client that had begun a new log could not do a store if the old log had uploaded more bytes
/// under the same number.
#[test]
fn regression_what_was_sent_ahead_for_another_log_is_not_in_the_way() {
    let world = World::new();
    let old = world.client(1, MALLORY);
    let root = world.home.state().volumes[VOLUME].root();
    let plain = old.id(old.id(root, "mallory"), "plain");
    let upload =
        |peer: &Peer, seq, text: &'static [u8]| peer.ask(Request::Upload { seq, offset: 0, data: text.into() });
    assert_eq!(upload(&old, 1, b"something longer"), Reply::Done);
    let new = world.attach_anew(1, 8);
    assert_eq!(own_count(&world), 0);
    assert_eq!(upload(&new, 1, b"text"), Reply::Done);
    let store = new.sent(Operation::Store { file: plain, change: changed(0, 4, &[(0, 4)]) }, b"");
    assert!(matches!(new.apply(vec![store]), Reply::Applied(_)));
    assert!(matches!(upload(&old, 2, b"late"), Reply::Failed(FsError::InvalidArgument)));
    make_durable(&new);
    assert_eq!(own_count(&world), 0);
}

/// An acknowledgement for the old log, over a connection that still existed, counted for the new
/// log.
#[test]
fn regression_an_old_log_acknowledges_nothing_of_the_new_one() {
    let world = World::new();
    let old = world.client(1, MALLORY);
    let root = world.home.state().volumes[VOLUME].root();
    let dir = old.id(root, "mallory");
    let new = world.attach_anew(1, 8);
    let file = new.ids();
    let made = new.sent(Operation::Make { at: at(dir, b"new"), file, made: made(Kind::File, 0o644) }, b"");
    let done = new.apply(vec![made.clone()]);
    assert!(matches!(done, Reply::Applied(_)), "{done:?}");
    let late = old.ask(Request::Apply { acknowledged: 100, operations: Vec::new() });
    assert_eq!(late, Reply::Failed(FsError::InvalidArgument));
    assert_eq!(new.apply(vec![made]), done);
}

/// A client that guesses the contents of another user's file does not learn whether the guess is
/// right. Bytes that differ from their hash are not taken.
#[test]
fn pieces_are_taken_from_what_one_may_read_and_only_if_they_are_what_was_said() {
    let world = World::new();
    let mallory = world.client(1, MALLORY);
    let bobs = world.client(2, BOB);
    let root = world.home.state().volumes[VOLUME].root();
    let [bob, closed] = ["bob", "closed"].map(|name| bobs.id(root, name));
    let (diary, letter, readable) = (bobs.id(bob, "diary"), bobs.id(bob, "letter"), bobs.id(closed, "readable"));
    let len = SECRET.len() as u64;
    let piece =
        |file| Piece { offset: 0, len, file, contents: bobs.facts(&[file])[0].contents, at: 0, hash: hash(SECRET) };
    let take = |peer: &Peer, pieces: Vec<Piece>| peer.ask(Request::Take { seq: 1000, pieces });
    assert_eq!(take(&bobs, [diary, letter, readable].map(piece).to_vec()), Reply::Taken(vec![0, 1, 2]));
    assert_eq!(take(&mallory, [diary, letter, readable].map(piece).to_vec()), Reply::Taken(vec![1]));
    let good = || piece(letter);
    let wrong = [
        Piece { hash: [0; 16], ..good() },
        Piece { contents: good().contents + 1, ..good() },
        Piece { len: len + 1, ..good() },
        Piece { len: len - 1, ..good() },
        Piece { at: 1, ..good() },
        Piece { at: u64::MAX, ..good() },
        Piece { file: bob, ..good() },
        Piece { file: types::FileId::new(u64::MAX), ..good() },
    ];
    assert_eq!(take(&mallory, wrong.to_vec()), Reply::Taken(Vec::new()));
    let too_many = vec![good(); PIECE_COUNT_MAX + 1];
    let too_long = vec![Piece { len: PIECE_LEN_MAX + 1, ..good() }];
    let beyond = vec![Piece { offset: u64::MAX, ..good() }];
    for (pieces, error) in
        [(too_many, FsError::ArgumentTooBig), (too_long, FsError::ArgumentTooBig), (beyond, FsError::FileTooLarge)]
    {
        assert_eq!(take(&mallory, pieces), Reply::Failed(error));
    }
    // Taken pieces are in the store as if they had been uploaded.
    let plain = mallory.id(mallory.id(root, "mallory"), "plain");
    let change = changed(0, 2 * len, &[(0, 2 * len)]);
    let store = mallory.sent(Operation::Store { file: plain, change }, b"");
    let pieces = vec![good(), Piece { offset: len, ..good() }];
    assert_eq!(mallory.ask(Request::Take { seq: store.seq, pieces }), Reply::Taken(vec![0, 1]));
    assert!(matches!(mallory.apply(vec![store]), Reply::Applied(_)));
    assert_eq!(mallory.facts(&[plain])[0].size, 2 * len);
}

/// The uploads stayed until the home started again.
#[test]
fn regression_what_a_client_has_uploaded_that_went_away_is_dropped() {
    let world = World::new();
    let (peer, gone) = (world.client(1, MALLORY), world.client(2, BOB));
    for peer in [&peer, &gone] {
        assert_eq!(peer.ask(Request::Upload { seq: 50, offset: 0, data: SECRET.into() }), Reply::Done);
    }
    drop(gone);
    world.sim.run_for(Duration::from_secs(600));
    assert_eq!(own_count(&world), 2, "it may come back soon");
    world.sim.run_for(Duration::from_secs(4 * 3600));
    assert_eq!(own_count(&world), 1, "a connected client's upload stays");
    // The upload of an operation that another one has replaced is dropped with that one.
    let plain = peer.id(peer.id(ROOT, "mallory"), "plain");
    *peer.next.lock() = 51;
    assert_eq!(peer.outcome(Operation::Store { file: plain, change: changed(0, 3, &[(0, 3)]) }, b"new"), Outcome::Done);
    make_durable(&peer);
    assert_eq!(own_count(&world), 0);
}

/// The home copied the whole file, and no other client could do anything meanwhile.
#[test]
fn regression_a_byte_in_a_long_file_is_stored_without_a_copy_of_the_file() {
    const LONG: u64 = 65 << 20;
    let world = World::new();
    let peer = world.client(1, MALLORY);
    let plain = peer.id(peer.id(ROOT, "mallory"), "plain");
    let source = || {
        world.sim.block_on(async {
            let dir = world.fs.lookup(&Cred::ROOT, ROOT, b"mallory").await.expect("there").attr.id;
            world.fs.lookup(&Cred::ROOT, dir, b"plain").await.expect("there").attr
        })
    };
    let store = |size| {
        let change = changed(size, size, &[(5, 6)]);
        assert_eq!(peer.outcome(Operation::Store { file: plain, change }, b"x"), Outcome::Done);
    };
    let before = source();
    store(before.size);
    let short = source();
    assert_ne!(short.id, before.id, "another file takes the place of a short one");
    let set = SetAttr { size: Some(LONG), ..SetAttr::default() };
    world.sim.block_on(async { world.fs.setattr(&Cred::ROOT, short.id, None, set).await }).expect("truncate");
    assert_eq!(peer.facts(&[plain])[0].size, LONG, "the client has seen it");
    store(LONG);
    assert_eq!((source().id, source().size), (short.id, LONG));
    let Reply::Data(bytes) = peer.read(plain) else { panic!("no bytes") };
    assert_eq!(bytes[5], b'x');
}
