//! Holds `docs/disk-format-store.md` and the code together: the checkpoint of the document is what
//! the program encodes and decodes.

#[path = "../../striped-log/tests/documented/mod.rs"]
mod documented;

use storage::api::StoreIdentity;
use storage::checkpoint::{Body, StoreHead};
use types::{FsUuid, StoreId};

const DOCUMENT: &str = include_str!("../../../docs/disk-format-store.md");
const FS: FsUuid = FsUuid([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

#[test]
fn the_checkpoint_is_as_documented() {
    let documented = documented::structure(DOCUMENT, "Body");
    let (body, _) = Body::decode(&documented, FS).expect("documented");
    assert_eq!((body.page_count, body.seals.iter().count(), body.reservation.len(), body.index.len()), (50, 1, 1, 1));
    assert_eq!((body.maps.epoch, &body.maps.bytes[..]), (6, &b"maps"[..]));
    let encoded = body.encode();
    assert_eq!(encoded, documented);

    let identity = StoreIdentity { fs: FS, store: StoreId::new(2), capacity_bytes: 1 << 30 };
    let head = StoreHead::of(identity, 42, 0x1122_3344_5566_7788, &encoded);
    let documented = documented::structure(DOCUMENT, "Head");
    assert_eq!(head.encode()[..], documented);
    assert_eq!(StoreHead::decode(&documented), Ok(head));
}
