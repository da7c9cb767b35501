//! The cache of a roaming client: its replica, and the records that change it.

use crate::parts::parts;
use roam::replica::{Record, Replica};
use roam_proto::codec::Wire;

/// Decodes, by the first byte, a replica, a record, or a replica and records that are applied to
/// it, each after its length (u16).
pub fn cache(bytes: &[u8]) -> bool {
    let Some((kind, rest)) = bytes.split_first() else { return false };
    match kind % 3 {
        0 => {
            let Ok(replica) = Replica::from_bytes(rest) else { return false };
            // A replica of an older version is written in the present version.
            assert_eq!(Replica::from_bytes(&replica.to_bytes()).as_ref(), Ok(&replica));
        }
        1 => {
            let Ok(record) = Record::from_bytes(rest) else { return false };
            assert_eq!(record.to_bytes(), rest);
        }
        _ => return applied(rest),
    }
    true
}

fn applied(bytes: &[u8]) -> bool {
    let mut parts = parts(bytes).into_iter();
    let Some(Ok(mut replica)) = parts.next().map(Replica::from_bytes) else { return false };
    for record in parts {
        let Ok(record) = Record::from_bytes(record) else { return false };
        if replica.apply(record).is_none() {
            return false;
        }
        replica.take_data_number();
    }
    for (id, node) in replica.nodes() {
        node.is_whole();
        replica.is_stale(id);
        replica.place_of(id);
        replica.list(id);
        replica.path_of(id);
    }
    // A replica that records made can be written and read again.
    let again = replica.to_bytes();
    assert_eq!(Replica::from_bytes(&again).map(|replica| replica.to_bytes()), Ok(again));
    true
}
