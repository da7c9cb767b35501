//! What clients that roam and their homes say to each other: what is accepted encodes to the bytes
//! that were read.

use roam_proto::codec::Wire;
use roam_proto::message::{Pushed, Reply, Request, pack, unpack};
use std::fmt::Debug;

/// Decodes a message: after a byte that says whose (a request, a reply, or pushed), whether it is
/// compressed, and the message.
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
