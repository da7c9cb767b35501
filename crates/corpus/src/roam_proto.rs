//! Messages between roaming clients and homes: accepted bytes encode to the same bytes again.

use roam_proto::codec::Wire;
use roam_proto::message::{Pushed, Reply, Request, pack, unpack};
use std::fmt::Debug;

/// Decodes a message. The first byte gives its kind (request, reply, pushed); then come a
/// compression flag and the message.
pub fn message(bytes: &[u8]) -> bool {
    let Some((kind, packed)) = bytes.split_first() else { return false };
    match kind % 3 {
        0 => accepted::<Request>(packed),
        1 => accepted::<Reply>(packed),
        _ => accepted::<Pushed>(packed),
    }
}

fn accepted<T: Wire + PartialEq + Debug>(packed: &[u8]) -> bool {
    let Ok(message) = unpack::<T>(packed) else { return false };
    if let [0, plain @ ..] = packed {
        assert_eq!(message.to_bytes(), plain);
    }
    assert_eq!(unpack::<T>(&pack(&message)), Ok(message));
    true
}
