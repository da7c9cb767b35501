//! Pieces of a store that the home has already in some file. A piece names the place of its bytes
//! and their hash, so the home cannot take other bytes for them.

use crate::channel::MESSAGE_LEN_MAX;
use crate::wire_struct;
use ring::digest;
use types::FileId;

/// Most bytes of contents in one message.
pub const DATA_LEN_MAX: usize = MESSAGE_LEN_MAX / 2;
/// Longest piece, in bytes.
pub const PIECE_LEN_MAX: u64 = DATA_LEN_MAX as u64;
/// Most pieces of one request.
pub const PIECE_COUNT_MAX: usize = 256;

/// A content hash: the first half of a SHA-256.
pub type Hash = [u8; 16];

/// Returns the hash of some bytes.
pub fn hash(bytes: &[u8]) -> Hash {
    let mut hash = Hash::default();
    hash.iter_mut().zip(digest::digest(&digest::SHA256, bytes).as_ref()).for_each(|(to, from)| *to = *from);
    hash
}

/// Part of a store's bytes, and where the home has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The piece's offset in all ranges of the store, one after the other.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The file that has the bytes.
    pub file: FileId,
    /// The number of the file's contents. If the file has other contents by now, the home does not
    /// take the piece.
    pub contents: u64,
    /// The offset in that file.
    pub at: u64,
    /// The hash of the bytes.
    pub hash: Hash,
}
wire_struct!(Piece { offset, len, file, contents, at, hash });
