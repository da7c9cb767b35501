use crate::replay;
use corpus::vfs as checks;
use vfs::acl::{Acl, AclEntry, Tag};

#[test]
fn lists_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("acl", checks::acl);
    assert!(kept >= 3 && changed > 0, "the corpus has good lists: {kept}, {changed}");
}

#[test]
fn the_corpus_has_what_this_program_writes() {
    let entry = |tag, perm| AclEntry { tag, perm };
    let named = Acl::new(vec![
        entry(Tag::UserObj, 6),
        entry(Tag::User(1000), 4),
        entry(Tag::User(1001), 7),
        entry(Tag::GroupObj, 4),
        entry(Tag::Group(100), 5),
        entry(Tag::Mask, 5),
        entry(Tag::Other, 0),
    ]);
    let named = named.expect("it is in order").encode();
    replay::compare(
        "acl",
        &[
            ("none", named[..4].to_vec()),
            ("minimal", Acl::from_mode(0o750).encode()),
            ("truncated", named[..30].to_vec()),
            ("named", named),
        ],
    );
}
