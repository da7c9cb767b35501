//! The consensus folder, and what voters say to each other: accepted bytes encode to the same bytes
//! again.

use consensus::files::VoterHead;
use consensus::image::Image;
use consensus::wire::{VoterReply, VoterRequest};
use record_log::checkpoint_pair::{HEAD_LEN, crc32c};

/// Decodes a state or a message. The first byte is 0, modulo 4, for the body of a file, 1 for its
/// head, 2 for a request and 3 for a reply; a head's checksum is corrected first, so that its check
/// passes. Returns whether it was accepted.
pub fn state(bytes: &[u8]) -> bool {
    let Some((kind, rest)) = bytes.split_first() else { return false };
    match kind % 4 {
        0 => {
            let Ok(image) = Image::decode(rest) else { return false };
            assert_eq!(image.encode(), rest);
        }
        1 => {
            let mut head = rest.to_vec();
            head.resize(HEAD_LEN, 0);
            let sum = crc32c(&head[..HEAD_LEN - 4]).to_le_bytes();
            head[HEAD_LEN - 4..].copy_from_slice(&sum);
            let Ok(decoded) = VoterHead::decode(&head) else { return false };
            assert_eq!(decoded.encode()[..], head[..]);
        }
        2 => {
            let Ok((to, request)) = VoterRequest::decode(rest) else { return false };
            assert_eq!(request.encode(to), rest);
        }
        _ => {
            let Ok(reply) = VoterReply::decode(rest) else { return false };
            assert_eq!(reply.encode(), rest);
        }
    }
    true
}
