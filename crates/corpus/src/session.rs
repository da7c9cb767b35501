//! What a client asks of a home that serves, question after question.

use crate::parts::parts;
use roam_proto::codec::Wire;
use roam_proto::message::{Pushed, Request, pack, unpack};

#[allow(missing_docs, clippy::new_without_default, reason = "it is made for tests")]
#[path = "../../home/tests/common/mod.rs"]
pub mod world;

use world::{MALLORY, World};

/// Asks, as a user among others, all that is said, each after its length (u16) and not compressed:
/// other users keep what they have. True if all are questions.
pub fn asked(bytes: &[u8]) -> bool {
    let world = World::new();
    // Files have ids next to each other: one that is asked for by mistake could be of those that
    // all may write.
    world.close();
    let before = world.tree("/mallory");
    let peer = world.client(1, MALLORY);
    let mut are_questions = true;
    for part in parts(bytes) {
        match Request::from_bytes(part) {
            Ok(request) => assert!(peer.try_ask(pack(&request)).is_some(), "no answer to {request:?}"),
            Err(_) => are_questions = false,
        }
    }
    assert!(peer.pushes.0.lock().iter().all(|message| unpack::<Pushed>(message).is_ok()));
    assert!(world.tree("/mallory") == before, "others have not what they had");
    are_questions
}
