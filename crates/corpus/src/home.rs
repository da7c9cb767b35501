//! What a home stores: its state, the records that change it, and invitations.

use crate::parts::parts;
use home::invitation::Invitation;
use home::state::{HomeRecord, HomeState};
use roam_proto::codec::Wire;
use roam_proto::message::User;

/// Decodes, by the first byte, a state, a record, an invitation, or a state and records that are
/// applied to it, each after its length (u16).
pub fn kept(bytes: &[u8]) -> bool {
    let Some((kind, rest)) = bytes.split_first() else { return false };
    match kind % 4 {
        0 => {
            let Ok(state) = HomeState::from_bytes(rest) else { return false };
            assert_eq!(HomeState::from_bytes(&state.to_bytes()), Ok(state));
        }
        1 => {
            let Ok(record) = HomeRecord::from_bytes(rest) else { return false };
            assert_eq!(record.to_bytes(), rest);
        }
        2 => {
            let Ok(invitation) = Invitation::from_bytes(rest) else { return false };
            assert_eq!(invitation.to_bytes(), rest);
        }
        _ => return applied(rest),
    }
    true
}

fn applied(bytes: &[u8]) -> bool {
    let mut parts = parts(bytes).into_iter();
    let Some(Ok(mut state)) = parts.next().map(HomeState::from_bytes) else { return false };
    let user = User { uid: 1, gid: 1, groups: vec![] };
    for record in parts {
        let Ok(record) = HomeRecord::from_bytes(record) else { return false };
        if state.apply(record).is_none() {
            return false;
        }
        for volume in state.volumes.values() {
            for id in volume.placed() {
                volume.touched(id, 1);
                volume.reach(&user, id);
            }
        }
    }
    // A state that records made can be written and read again.
    assert!(HomeState::from_bytes(&state.to_bytes()).is_ok());
    true
}
