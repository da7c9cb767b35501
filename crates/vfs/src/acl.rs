//! POSIX access control lists in the kernel's extended-attribute format, as pure functions over
//! bytes.
//!
//! Owns: the encoding of `system.posix_acl_access` and `system.posix_acl_default` (version 2: a u32
//! version, then entries of u16 tag, u16 permissions, u32 id, all little-endian), its validation,
//! the access check, the equivalence between an access ACL and the permission bits, and what new
//! nodes inherit. An [`Acl`] in memory is always valid: entries in the kernel's order, permissions
//! within `rwx`, a mask wherever there is a named entry. Decoding never panics.

use crate::fs::Cred;
use types::codec::{DecodeError, Put, Reader};

/// Name of the attribute that holds the access ACL.
pub const XATTR_ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the attribute that holds a directory's default ACL.
pub const XATTR_DEFAULT: &[u8] = b"system.posix_acl_default";

/// Most entries of one ACL: what fits an extended attribute value of the largest length.
pub const ENTRY_COUNT_MAX: usize = (crate::fs::XATTR_VALUE_LEN_MAX - 4) / 8;

const VERSION: u32 = 2;
const ID_NONE: u32 = u32::MAX;

/// The user or group class that an entry is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tag {
    /// The owner.
    UserObj,
    /// The user with this id.
    User(u32),
    /// The owning group.
    GroupObj,
    /// The group with this id.
    Group(u32),
    /// The upper bound of the rights of named entries and the owning group.
    Mask,
    /// All other users.
    Other,
}

/// One entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AclEntry {
    /// The class that it is about.
    pub tag: Tag,
    /// Its rights: bits 4 read, 2 write, 1 execute.
    pub perm: u32,
}

/// A valid, non-empty ACL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// Validates as the kernel does: owner, named users, owning group, named groups, mask, other,
    /// in this order; exactly one owner, owning group and other; a mask exactly once if there are
    /// named entries, at most once otherwise.
    pub fn new(entries: Vec<AclEntry>) -> Result<Acl, DecodeError> {
        fn rank(tag: Tag) -> u8 {
            match tag {
                Tag::UserObj => 0,
                Tag::User(_) => 1,
                Tag::GroupObj => 2,
                Tag::Group(_) => 3,
                Tag::Mask => 4,
                Tag::Other => 5,
            }
        }
        if entries.len() > ENTRY_COUNT_MAX || entries.iter().any(|e| e.perm & !7 != 0) {
            return Err(DecodeError::Invalid("acl entry"));
        }
        let named = |e: &AclEntry| matches!(e.tag, Tag::User(_) | Tag::Group(_));
        if entries.iter().any(|e| matches!(e.tag, Tag::User(ID_NONE) | Tag::Group(ID_NONE))) {
            return Err(DecodeError::Invalid("acl id"));
        }
        // Entries that exist once must rise strictly in rank; named ones may repeat their rank.
        let ordered = entries.windows(2).all(|w| {
            let (a, b) = (rank(w[0].tag), rank(w[1].tag));
            a < b || (a == b && named(&w[0]))
        });
        let has = |tag| entries.iter().any(|e| e.tag == tag);
        let complete = has(Tag::UserObj) && has(Tag::GroupObj) && has(Tag::Other);
        if !ordered || !complete || (entries.iter().any(named) && !has(Tag::Mask)) {
            return Err(DecodeError::Invalid("acl order"));
        }
        Ok(Acl { entries })
    }

    /// The ACL that means the same as permission bits.
    pub fn from_mode(mode: u32) -> Acl {
        Acl {
            entries: vec![
                AclEntry { tag: Tag::UserObj, perm: mode >> 6 & 7 },
                AclEntry { tag: Tag::GroupObj, perm: mode >> 3 & 7 },
                AclEntry { tag: Tag::Other, perm: mode & 7 },
            ],
        }
    }

    /// Decodes an attribute value. `Ok(None)` for a value without entries, which is the kernel's
    /// "no ACL".
    pub fn decode(bytes: &[u8]) -> Result<Option<Acl>, DecodeError> {
        let mut r = Reader::new(bytes);
        if r.u32("acl version")? != VERSION {
            return Err(DecodeError::Invalid("acl version"));
        }
        let mut entries = Vec::with_capacity(r.remaining() / 8);
        while !r.is_empty() {
            let (tag, perm, id) = (r.u16("acl tag")?, r.u16("acl permissions")?, r.u32("acl id")?);
            let tag = match tag {
                0x01 => Tag::UserObj,
                0x02 => Tag::User(id),
                0x04 => Tag::GroupObj,
                0x08 => Tag::Group(id),
                0x10 => Tag::Mask,
                0x20 => Tag::Other,
                _ => return Err(DecodeError::Invalid("acl tag")),
            };
            entries.push(AclEntry { tag, perm: perm as u32 });
        }
        if entries.is_empty() { Ok(None) } else { Acl::new(entries).map(Some) }
    }

    /// Encodes the attribute value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + 8 * self.entries.len());
        out.put_u32(VERSION);
        for e in &self.entries {
            let (tag, id) = match e.tag {
                Tag::UserObj => (0x01, ID_NONE),
                Tag::User(id) => (0x02, id),
                Tag::GroupObj => (0x04, ID_NONE),
                Tag::Group(id) => (0x08, id),
                Tag::Mask => (0x10, ID_NONE),
                Tag::Other => (0x20, ID_NONE),
            };
            out.put_u16(tag);
            out.put_u16(e.perm as u16);
            out.put_u32(id);
        }
        out
    }

    /// The entries, in the kernel's order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// True if permission bits express the whole ACL, so that it need not be stored.
    pub fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// `mode` with its nine permission bits replaced by this access ACL's owner, mask (without one:
    /// owning group) and other.
    pub fn apply_to_mode(&self, mode: u32) -> u32 {
        let perm = |tag| self.find(tag).unwrap_or(0);
        let group = self.find(Tag::Mask).unwrap_or_else(|| perm(Tag::GroupObj));
        mode & !0o777 | perm(Tag::UserObj) << 6 | group << 3 | perm(Tag::Other)
    }

    /// This access ACL after chmod(2) to `mode`: owner, mask (without one: owning group) and other
    /// are replaced.
    pub fn chmod(&self, mode: u32) -> Acl {
        let mut acl = self.clone();
        *acl.perm_mut(Tag::UserObj) = mode >> 6 & 7;
        *acl.perm_mut(acl.group_class()) = mode >> 3 & 7;
        *acl.perm_mut(Tag::Other) = mode & 7;
        acl
    }

    /// What a new node gets from this default ACL of its directory. `mode`, without any umask, is
    /// cut to what the ACL allows, and the access ACL is cut to what `mode` asks for. `None` if the
    /// mode expresses the whole ACL.
    pub fn inherit(&self, mode: u32) -> (u32, Option<Acl>) {
        let mut acl = self.clone();
        *acl.perm_mut(Tag::UserObj) &= mode >> 6;
        *acl.perm_mut(acl.group_class()) &= mode >> 3;
        *acl.perm_mut(Tag::Other) &= mode;
        let mode = acl.apply_to_mode(mode);
        (mode, (!acl.is_minimal()).then_some(acl))
    }

    /// True if `cred` gets all rights of `mask` (bits 4 read, 2 write, 1 execute) from this access
    /// ACL on a node of `uid` and `gid`. The POSIX.1e algorithm; the superuser is not special here.
    pub fn allows(&self, cred: &Cred, uid: u32, gid: u32, mask: u32) -> bool {
        let upper = self.find(Tag::Mask).unwrap_or(7);
        let mut in_group = false;
        for e in &self.entries {
            let grants = e.perm & mask == mask;
            match e.tag {
                Tag::UserObj if cred.uid == uid => return grants,
                Tag::User(id) if cred.uid == id => return e.perm & upper & mask == mask,
                Tag::GroupObj if cred.in_group(gid) => {
                    in_group = true;
                    if grants {
                        return upper & mask == mask;
                    }
                }
                Tag::Group(id) if cred.in_group(id) => {
                    in_group = true;
                    if grants {
                        return upper & mask == mask;
                    }
                }
                Tag::Other => return !in_group && grants,
                _ => {}
            }
        }
        false
    }

    fn group_class(&self) -> Tag {
        if self.find(Tag::Mask).is_some() { Tag::Mask } else { Tag::GroupObj }
    }

    fn find(&self, tag: Tag) -> Option<u32> {
        self.entries.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }

    /// The permissions of an entry that every valid ACL has.
    fn perm_mut(&mut self, tag: Tag) -> &mut u32 {
        match self.entries.iter_mut().find(|e| e.tag == tag) {
            Some(e) => &mut e.perm,
            None => unreachable!("a valid ACL has owner, owning group and other"),
        }
    }
}

/// The access ACL's attribute value after chmod(2) to `mode`.
pub fn chmod(acl: &[u8], mode: u32) -> Result<Vec<u8>, DecodeError> {
    Ok(Acl::decode(acl)?.map_or_else(|| Acl::from_mode(mode), |a| a.chmod(mode)).encode())
}

/// `mode` after setting the access ACL with this attribute value.
pub fn apply_to_mode(acl: &[u8], mode: u32) -> Result<u32, DecodeError> {
    Ok(Acl::decode(acl)?.map_or(mode, |a| a.apply_to_mode(mode)))
}

/// Mode, access ACL and default ACL of a new node in a directory with a default ACL; `None` = no
/// such attribute. The last one is for new directories only.
pub type Inherited = (u32, Option<Vec<u8>>, Option<Vec<u8>>);

/// What a new node made with `mode` inherits from its directory's default ACL (an attribute value).
pub fn inherit(default_acl: &[u8], mode: u32) -> Result<Inherited, DecodeError> {
    Ok(match Acl::decode(default_acl)? {
        None => (mode, None, None),
        Some(acl) => {
            let (mode, access) = acl.inherit(mode);
            (mode, access.map(|a| a.encode()), Some(acl.encode()))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn acl(entries: &[(Tag, u32)]) -> Acl {
        Acl::new(entries.iter().map(|&(tag, perm)| AclEntry { tag, perm }).collect()).unwrap()
    }

    fn extended() -> Acl {
        acl(&[
            (Tag::UserObj, 7),
            (Tag::User(1000), 6),
            (Tag::GroupObj, 5),
            (Tag::Group(2000), 2),
            (Tag::Group(2001), 4),
            (Tag::Mask, 6),
            (Tag::Other, 1),
        ])
    }

    #[test]
    fn kernel_bytes_decode_and_encode() {
        // As getfattr shows `u::rwx,u:1000:rw-,g::r-x,m::rwx,o::---`.
        let bytes = [
            2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 6, 0, 0xe8, 3, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255, 16,
            0, 7, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
        ];
        let a = Acl::decode(&bytes).unwrap().unwrap();
        assert_eq!(a.entries()[1], AclEntry { tag: Tag::User(1000), perm: 6 });
        assert_eq!(a.encode(), bytes);
        assert_eq!(a.apply_to_mode(0o4000), 0o4770);
    }

    #[test]
    fn malformed_lists_are_refused() {
        let bad: &[&[(Tag, u32)]] = &[
            &[(Tag::UserObj, 7), (Tag::Other, 0)],
            &[(Tag::UserObj, 7), (Tag::GroupObj, 7), (Tag::GroupObj, 7), (Tag::Other, 0)],
            &[(Tag::GroupObj, 7), (Tag::UserObj, 7), (Tag::Other, 0)],
            &[(Tag::UserObj, 7), (Tag::User(3), 7), (Tag::GroupObj, 7), (Tag::Other, 0)],
            &[(Tag::UserObj, 8), (Tag::GroupObj, 7), (Tag::Other, 0)],
            &[(Tag::UserObj, 7), (Tag::User(u32::MAX), 7), (Tag::GroupObj, 7), (Tag::Mask, 7), (Tag::Other, 0)],
        ];
        for entries in bad {
            let entries = entries.iter().map(|&(tag, perm)| AclEntry { tag, perm }).collect();
            assert!(Acl::new(entries).is_err());
        }
        assert!(Acl::decode(&[]).is_err());
        assert!(Acl::decode(&[1, 0, 0, 0]).is_err());
        assert_eq!(Acl::decode(&[2, 0, 0, 0]), Ok(None));
    }

    #[test]
    fn named_entries_are_bounded_by_the_mask_and_the_owner_is_not() {
        let a = extended();
        let cred = |uid, gid| Cred { uid, gid, groups: vec![] };
        assert!(a.allows(&cred(1, 1), 1, 2, 7), "owner");
        assert!(a.allows(&cred(1000, 9), 1, 2, 6), "named user");
        assert!(!a.allows(&cred(1000, 9), 1, 2, 1));
        assert!(a.allows(&cred(5, 2), 1, 2, 4), "owning group");
        assert!(!a.allows(&cred(5, 2), 1, 2, 1), "execute is masked");
        assert!(a.allows(&cred(5, 2000), 1, 2, 2), "named group");
        assert!(!a.allows(&cred(5, 2000), 1, 2, 1), "a group member does not fall through to other");
        assert!(a.allows(&cred(5, 9), 1, 2, 1), "other is not masked");
        let both = Cred { uid: 5, gid: 2000, groups: vec![2001] };
        assert!(a.allows(&both, 1, 2, 4) && a.allows(&both, 1, 2, 2));
        assert!(!a.allows(&both, 1, 2, 6), "rights of two groups do not add up");
    }

    #[test]
    fn chmod_of_an_extended_acl_changes_the_mask_and_not_the_group() {
        let a = extended().chmod(0o640);
        assert_eq!(a.find(Tag::Mask), Some(4));
        assert_eq!(a.find(Tag::GroupObj), Some(5));
        assert_eq!(a.apply_to_mode(0), 0o640);
        assert_eq!(Acl::from_mode(0o777).chmod(0o640), Acl::from_mode(0o640));
    }

    #[test]
    fn inheritance_cuts_mode_and_acl_to_each_other() {
        let (mode, access) = extended().inherit(0o2666);
        assert_eq!(mode, 0o2660);
        let access = access.unwrap();
        assert_eq!(
            (access.find(Tag::UserObj), access.find(Tag::Mask), access.find(Tag::Other)),
            (Some(6), Some(6), Some(0))
        );
        assert_eq!(access.find(Tag::GroupObj), Some(5), "the group keeps what the mask already bounds");
        assert_eq!(Acl::from_mode(0o750).inherit(0o666), (0o640, None), "a minimal default ACL leaves no access ACL");
    }

    proptest! {
        #[test]
        fn prop_decoding_any_bytes_never_panics_and_what_decodes_encodes_back(tail in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut bytes = vec![2, 0, 0, 0];
            bytes.extend(tail);
            if let Ok(Some(a)) = Acl::decode(&bytes) {
                prop_assert_eq!(Acl::decode(&a.encode()), Ok(Some(a)));
            }
        }

        #[test]
        fn prop_a_minimal_acl_means_the_same_as_its_mode(mode in 0u32..0o1000, uid in 0u32..3, gid in 0u32..3, mask in 0u32..8) {
            let cred = Cred { uid, gid, groups: vec![] };
            let bits = if uid == 1 { mode >> 6 } else if gid == 2 { mode >> 3 } else { mode };
            prop_assert_eq!(Acl::from_mode(mode).allows(&cred, 1, 2, mask), bits & mask == mask);
            prop_assert_eq!(Acl::from_mode(mode).apply_to_mode(0), mode);
        }
    }
}
