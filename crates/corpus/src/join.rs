//! What a node that joins and the first node say to each other, and the first node's invitations.

use join::book::InvitationBook;
use join::{JoinAnswer, JoinRequest};

/// Decodes, by the first byte, a request, an answer, or a list of invitations.
pub fn any(bytes: &[u8]) -> bool {
    let Some((kind, rest)) = bytes.split_first() else { return false };
    let again = match kind % 3 {
        0 => JoinRequest::decode(rest).map(|request| request.encode()),
        1 => JoinAnswer::decode(rest).map(|answer| answer.encode()),
        _ => InvitationBook::decode(rest).map(|book| book.encode()),
    };
    let Ok(again) = again else { return false };
    assert_eq!(again, rest);
    true
}
