//! Pieces of a store that the home has already in some file: named by where they are, and by what
//! they are, so that nothing else is taken for them.

use crate::message::DATA_LEN_MAX;
use crate::wire_struct;
use ring::digest;
use types::FileId;

/// Longest piece, in bytes.
pub const PIECE_LEN_MAX: u64 = DATA_LEN_MAX as u64;
/// Most pieces of one request.
pub const PIECE_COUNT_MAX: usize = 256;

/// What bytes are: the first half of their SHA-256.
pub type Hash = [u8; 16];

/// The hash of some bytes.
pub fn hash(bytes: &[u8]) -> Hash {
    let mut hash = Hash::default();
    hash.iter_mut().zip(digest::digest(&digest::SHA256, bytes).as_ref()).for_each(|(to, from)| *to = *from);
    hash
}

/// Part of what a store will write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where it belongs in all ranges of the store, one after the other.
    pub offset: u64,
    /// How long it is.
    pub len: u64,
    /// The file that has it.
    pub file: FileId,
    /// If its contents are still those.
    pub contents: u64,
    /// Where in that file.
    pub at: u64,
    /// What it is.
    pub hash: Hash,
}
wire_struct!(Piece { offset, len, file, contents, at, hash });
