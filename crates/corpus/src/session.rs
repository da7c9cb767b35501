//! A client's requests to a running home, one after the other.

use crate::parts::parts;
use roam_proto::codec::Wire;
use roam_proto::message::{Pushed, Request, pack, unpack};

#[allow(missing_docs, clippy::new_without_default, reason = "it is made for tests")]
#[path = "../../home/tests/common/mod.rs"]
pub mod world;

use world::{MALLORY, World};

/// Sends, as one user of several, all requests of the input, each after its length (u16) and
/// uncompressed. The files of other users must stay as they are. True if all parts are requests.
pub fn asked(bytes: &[u8]) -> bool {
    let world = World::new();
    // Files have ids next to each other, so a request with a wrong id could name a file that all
    // users may write.
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
    assert!(world.tree("/mallory") == before, "the files of other users changed");
    are_questions
}
