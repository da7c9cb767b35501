//! Bytes that are sent ahead of the stores that they belong to.

mod common;

use common::*;
use home::export::Export;
use roam_wire::message::{Reply, Request, pack, unpack};
use roam_wire::operation::Operation;
use types::FsError;
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
