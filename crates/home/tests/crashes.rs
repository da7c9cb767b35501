//! A home that crashes between doing an operation and remembering that.

mod common;

use common::*;
use roam_proto::message::{Outcome, Reply, Request, pack};
use roam_proto::operation::Operation;
use types::{FileId, Kind};

/// A client sends operations in one message, and the home crashes at any step. Then the client
/// sends each again in a message of its own. The first ids are those of the directory `/mallory`,
/// of a directory in it, and of a file in that.
fn asked_again_in_parts(operations: impl Fn([FileId; 3]) -> Vec<Operation>) {
    for polls in 1.. {
        let mut world = World::new();
        world.enroll(1, MALLORY);
        let (message, crashed) = {
            let peer = world.attach(1);
            let top = peer.id(world.home.state().volumes[VOLUME].root(), "mallory");
            let dir = peer.ids();
            let file = FileId::new(dir.raw() + 1);
            for (at, id, kind) in [(at(top, b"dir"), dir, Kind::Directory), (at(dir, b"file"), file, Kind::File)] {
                let make = Operation::Make { at, file: id, made: made(kind, 0o755) };
                assert_eq!(peer.outcome(make, b""), Outcome::Done);
            }
            let operations = operations([top, dir, file]);
            let message: Vec<_> = operations.into_iter().map(|operation| peer.sent(operation, b"")).collect();
            let request = Request::Apply { acknowledged: 0, operations: message.clone() };
            world.machine.crash_after(polls);
            let asked = world.machine.run(peer.session.answer(pack(&request)));
            (message, world.sim.block_on(asked).is_err())
        };
        if !crashed {
            assert!(polls > 0, "nothing crashed");
            return;
        }
        world.disk.power_loss();
        world.restart();
        let peer = world.attach(1);
        for sent in message {
            match peer.apply(vec![sent.clone()]) {
                Reply::Applied(applied) => assert_eq!(applied[0].outcome, Outcome::Done, "{sent:?}, {polls} polls"),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A name that was gone with its directory was a conflict.
#[test]
fn regression_what_was_removed_before_its_directory_is_removed() {
    asked_again_in_parts(|[top, dir, file]| {
        let removed = [(at(dir, b"file"), file), (at(top, b"dir"), dir)];
        removed.map(|(at, file)| Operation::Remove { at, file, last: true }).into()
    });
}

/// The home did not consider operations that had been announced together with the repeated one, but
/// were not repeated in the same message.
#[test]
fn regression_what_was_overtaken_is_done_whatever_it_is_asked_for_with() {
    asked_again_in_parts(|[top, dir, file]| {
        let places = [at(dir, b"file"), at(top, b"second"), at(dir, b"third")];
        let moves = places.windows(2).map(|two| (two[0].clone(), two[1].clone()));
        moves.map(|(from, to)| Operation::Rename { file, from, to, replaced: None }).collect()
    });
}
