//! Access control lists in extended attributes.

use vfs::acl::Acl;

/// Decodes an attribute value.
pub fn acl(bytes: &[u8]) -> bool {
    let Ok(acl) = Acl::decode(bytes) else { return false };
    assert!(acl.is_none_or(|acl| Acl::decode(&acl.encode()) == Ok(Some(acl))));
    true
}
