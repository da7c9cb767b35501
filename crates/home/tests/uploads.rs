//! Bytes that are sent ahead of the stores that they belong to.

mod common;

use common::*;
use home::export::Export;
use roam_wire::message::{Reply, Request, pack, unpack};
use roam_wire::operation::Operation;
use types::{FsError, Kind};
use vfs::FileSystem;
use vfs::fs::Cred;

/// How many files are in the home's own directory.
fn own_count(world: &World) -> usize {
    world.sim.block_on(async {
        let own = world.fs.lookup(&Cred::ROOT, ROOT, OWN).await.expect("it is there").attr.id;
        world.fs.list(own).await.expect("list").len()
    })
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

/// A copy of an upload that had been on its way for long came after its store was done, and stayed in the home's own directory.
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
    assert_eq!(upload(first.seq, b"text"), Reply::Done, "whoever has not heard of the outcome sends all again");
    assert_eq!(own_count(&world), 0);
    assert_eq!(peer.apply(vec![first]), done);
    let second = store(b"more");
    assert_eq!((upload(second.seq, b"more"), own_count(&world)), (Reply::Done, 1));
}

/// A client that had begun a new log could not store what was shorter than what the old one had sent ahead by the same number.
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
    assert_eq!(own_count(&world), 0);
}

/// What had been said of the old log by way of a connection that was still there counted for the new one.
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
