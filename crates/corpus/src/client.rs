//! The blocks of directories.

use client::directory::Bucket;

/// Decodes a bucket. No bytes mean an empty bucket, which is written with a version.
pub fn directory(bytes: &[u8]) -> bool {
    let Ok(bucket) = Bucket::decode(bytes) else { return false };
    assert!(bytes.is_empty() || bucket.encode() == bytes);
    true
}
