//! Holds `docs/disk-format-manager.md` and the code together: the examples of the document are what
//! the program encodes and decodes.

#[path = "../../striped-log/tests/documented/mod.rs"]
mod documented;

use bytes::Bytes;
use manager::index_node::{IndexNode, LeafHomes};
use manager::record::{RecordDirectory, RecordKey};
use manager::{Delta, DirectoryShape, InodeRecord};
use types::codec::Reader;
use types::{BlockAddr, Extent, FileId, Kind, LogId, SegmentId, Time};

const DOCUMENT: &str = include_str!("../../../docs/disk-format-manager.md");
/// The page with the format of deltas, which are a part of clients' segments.
const LOG_DOCUMENT: &str = include_str!("../../../docs/disk-format.md");
const BLOCK_SIZE: u32 = 65536;

#[test]
fn the_directory_of_a_segment_is_as_documented() {
    let documented = documented::structure(DOCUMENT, "A directory of one record");
    let mut directory = RecordDirectory::default();
    directory.push(RecordKey::Node(0x403), 512, 190);
    assert_eq!(directory.encode(), documented);
    assert_eq!(RecordDirectory::decode(&documented), Ok(directory));
}

#[test]
fn the_index_node_is_as_documented() {
    let inode = InodeRecord {
        id: FileId::new(0x403),
        kind: Kind::File,
        mode: 0o640,
        nlink: 1,
        uid: 1000,
        gid: 1001,
        rdev: 0,
        size: 65_543,
        stored_bytes: 65_543,
        atime: Time { sec: -1, nsec: 999_999_999 },
        mtime: Time { sec: 2, nsec: 3 },
        ctime: Time { sec: 4, nsec: 5 },
        crtime: Time { sec: 6, nsec: 7 },
        parent: FileId::new(0),
        shape: DirectoryShape::default(),
    };
    let segment = SegmentId { log: LogId::new(1), epoch: 2, seq: 41 };
    let extent = Extent { first: 0, count: 2, addr: BlockAddr { segment, offset: 65_536, len: 65_543 } };
    let mut node = IndexNode::new(inode, BLOCK_SIZE);
    node.xattrs.insert(b"user.a".to_vec(), Bytes::from_static(b"hi"));
    node.set_blocks(extent, 0);

    let documented = documented::structure(DOCUMENT, "An index node");
    assert_eq!(node.encode(None), documented);
    let (read, homes) = IndexNode::decode(&documented, BLOCK_SIZE).expect("documented");
    assert_eq!((&read.inode, &read.xattrs, homes), (&inode, &node.xattrs, LeafHomes::new()));
    assert_eq!(read.range(0, u64::MAX).collect::<Vec<_>>(), [extent]);
}

#[test]
fn deltas_are_as_documented() {
    let file = FileId::new(10);
    let addr = BlockAddr { segment: SegmentId { log: LogId::new(7), epoch: 2, seq: 41 }, offset: 65_536, len: 65_543 };
    let extent = Extent { first: 5, count: 2, addr };
    let inode = InodeRecord {
        id: FileId::ROOT,
        kind: Kind::Directory,
        mode: 0o755,
        nlink: 2,
        uid: 1000,
        gid: 1001,
        rdev: 0,
        size: 4096,
        stored_bytes: 128,
        atime: Time { sec: -1, nsec: 999_999_999 },
        mtime: Time { sec: 2, nsec: 3 },
        ctime: Time { sec: 4, nsec: 5 },
        crtime: Time { sec: 6, nsec: 7 },
        parent: FileId::ROOT,
        shape: DirectoryShape { buckets: 1, entries: 2, entry_bytes: 64, hash_key: 0x0123_4567_89ab_cdef },
    };
    let name = b"user.a".to_vec();
    let to = BlockAddr { segment: SegmentId { log: LogId::new(8), epoch: 1, seq: 3 }, offset: 0, len: 65_543 };
    let documented = [
        ("Inode", Delta::Inode(inode)),
        ("Blocks", Delta::Blocks { file, extent }),
        ("Unmap", Delta::Unmap { file, first: 7, end: u64::MAX }),
        ("Xattr set", Delta::Xattr { file, name: name.clone(), value: Some(b"hi".to_vec()) }),
        ("Xattr removed", Delta::Xattr { file, name, value: None }),
        ("Symlink", Delta::Symlink { file: FileId::new(11), target: b"/tmp".to_vec() }),
        ("Remove", Delta::Remove { file: FileId::new(11) }),
        ("Move", Delta::Move { file, from: extent, to }),
    ];
    let mut section = Vec::new();
    for (heading, delta) in &documented {
        let bytes = documented::structure(LOG_DOCUMENT, heading);
        let mut encoded = Vec::new();
        delta.encode(&mut encoded);
        assert_eq!(encoded, bytes, "{heading}");
        assert_eq!(Delta::decode(&mut Reader::new(&bytes)).as_ref(), Ok(delta), "{heading}");
        section.extend(bytes);
    }
    assert_eq!(Delta::decode_all(&section), Ok(documented.map(|(_, delta)| delta).to_vec()));
}
