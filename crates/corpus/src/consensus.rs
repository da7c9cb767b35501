//! The consensus folder: accepted bytes encode to the same bytes again.

use consensus::files::VoterHead;
use consensus::image::Image;
use record_log::checkpoint_pair::{HEAD_LEN, crc32c};

/// Decodes a state. The first byte is even for the body of a file and odd for its head; a head's
/// checksum is corrected first, so that its check passes. Returns whether it was accepted.
pub fn state(bytes: &[u8]) -> bool {
    let Some((kind, rest)) = bytes.split_first() else { return false };
    if kind % 2 == 0 {
        let Ok(image) = Image::decode(rest) else { return false };
        assert_eq!(image.encode(), rest);
    } else {
        let mut head = rest.to_vec();
        head.resize(HEAD_LEN, 0);
        let sum = crc32c(&head[..HEAD_LEN - 4]).to_le_bytes();
        head[HEAD_LEN - 4..].copy_from_slice(&sum);
        let Ok(decoded) = VoterHead::decode(&head) else { return false };
        assert_eq!(decoded.encode()[..], head[..]);
    }
    true
}
