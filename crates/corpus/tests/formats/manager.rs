use crate::replay;
use bytes::Bytes;
use corpus::manager as checks;
use manager::ManagerMap;
use manager::admin_wire::{AdminRequest, AdmittedClient, HostAnswer, HostRequest, ManagerReport, Takeover};
use manager::api::{
    BlockAt, CheckpointState, FileUse, GiveBack, GlimpseAnswer, GlimpseQuestion, HeldToken, IndexRange, Located,
    ManagerError, ManagerStatus, NodeSize, Opened, Progress, SegmentDeltas, SegmentUsage, TokenGrant, TokenRecall,
    TokenUse, TokenWait, UsageChanges,
};
use manager::extents::ExtentMap;
use manager::frontier::{Frontiers, LogReserves};
use manager::index_node::{IndexNode, LeafHomes, encode_leaf};
use manager::record::{RecordDirectory, RecordKey, Table};
use manager::root::Root;
use manager::token::Mode;
use manager::tree::{Tree, page_again};
use manager::wire::{ClientMessage, HolderRequest, ManagerAnswer, ManagerCall, ManagerRequest};
use manager::{Delta, DirectoryShape, InodeRecord, Lengths, LivingLog};
use types::{BlockAddr, ClientId, Extent, FileId, Kind, LogId, ManagerId, SegmentId, Time};

const BLOCK: u32 = 4096;

#[test]
fn deltas_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("deltas", checks::deltas);
    assert!(kept >= 8 && changed > 0, "the corpus has good sections: {kept}, {changed}");
}

#[test]
fn records_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("manager", checks::record);
    assert!(kept >= 13 && changed > 0, "the corpus has good records: {kept}, {changed}");
}

fn addr(seq: u64, len: u32) -> BlockAddr {
    BlockAddr { segment: SegmentId { log: LogId::new(16), epoch: 2, seq }, offset: 8, len }
}

fn run(first: u64, count: u32, seq: u64) -> Extent {
    Extent { first, count, addr: addr(seq, count * BLOCK - 100) }
}

fn node(kind: Kind) -> IndexNode {
    let time = Time { sec: -5, nsec: 7 };
    let directory = DirectoryShape { buckets: 3, entries: 40, entry_bytes: 1000, hash_key: 99 };
    let (parent, shape) = match kind {
        Kind::Directory => (FileId::ROOT, directory),
        _ => (FileId::new(0), DirectoryShape::default()),
    };
    let inode = InodeRecord {
        id: FileId::new(4711),
        kind,
        mode: 0o640,
        nlink: 1,
        uid: 1000,
        gid: 100,
        rdev: 0,
        size: 1 << 30,
        stored_bytes: 9000,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        parent,
        shape,
    };
    IndexNode::new(inode, BLOCK)
}

/// A tree with pages below its top, and the records of these pages.
fn tall_tree() -> (Tree<SegmentId, u64>, Vec<Vec<u8>>) {
    let mut tree = Tree::new(4);
    let rows: Vec<(SegmentId, u64)> = (0..20).map(|seq| (addr(seq, 1).segment, 1000 + seq)).collect();
    tree.edit(&rows, |_, _, live| Some(*live)).expect("all is in memory");
    let mut records = Vec::new();
    for level in 0..tree.height() {
        for link in tree.unwritten(level) {
            let record = link.encode(Table::DataUsage, level).1;
            link.set_home(addr(records.len() as u64, record.len() as u32));
            records.push(record);
        }
    }
    (tree, records)
}

fn root() -> (Root, Vec<Vec<u8>>) {
    let mut root = Root { file_count: 17, order: 7 << 32, ..Root::empty(ManagerId::new(1), BLOCK, 8) };
    root.positions.extend([(LogId::new(1), 99), (LogId::new(2), 5)]);
    root.reserves = Frontiers::new(vec![1, 3], manager::api::INDEX_RANGE_LEN, &LogReserves::default()).to_reserve();
    root.trees.orphans.edit(&[(FileId::new(5000), ())], |_, _, ()| Some(())).expect("all is in memory");
    let nodes = [(FileId::new(4711), addr(5, 300)), (FileId::new(4800), addr(6, 300))];
    root.trees.imap.edit(&nodes, |_, _, node| Some(*node)).expect("all is in memory");
    let records;
    (root.trees.data_usage, records) = tall_tree();
    (root, records)
}

/// A leaf of the imap: 18432 and 103 more.
fn imap_leaf() -> Vec<u8> {
    let mut record = vec![64, 2, 2, 0, 0, 0];
    for (upper, lower) in [(&[0][..], &[0x80, 0x90, 1][..]), (&[0], &[103])] {
        record.extend_from_slice(upper);
        record.extend_from_slice(lower);
        addr(5, 300).encode(&mut record);
    }
    record
}

#[test]
fn the_corpus_has_what_this_program_writes() {
    let mut directory = RecordDirectory::default();
    let keys = [
        RecordKey::Node(4711),
        RecordKey::Leaf(4711, 1),
        RecordKey::Page { table: Table::DataUsage, level: 1, first: 7 << 96 | 1 },
        RecordKey::Root,
    ];
    for (key, offset) in keys.into_iter().zip((0..).step_by(100)) {
        directory.push(key, offset, 100);
    }

    let mut file = node(Kind::File);
    for extent in [run(0, 3, 1), run(3, 1, 2), run(9_000, 2, 3)] {
        file.set_blocks(extent, 0);
    }
    file.xattrs.insert(b"user.a".to_vec(), Bytes::from_static(b"value"));
    let homes = LeafHomes::from([(0, addr(5, 200)), (1, addr(5, 100))]);
    let mut link = node(Kind::Symlink);
    link.target = Some(Bytes::from_static(b"../elsewhere"));

    let mut leaf = ExtentMap::new(BLOCK);
    leaf.set(run(9_000, 2, 3));
    leaf.set(run(9_100, 1, 3));
    let map = ManagerMap { epoch: 3, owners: [0, 1, 0].map(ManagerId::new).to_vec() };
    let mut map_bytes = Vec::new();
    map.encode(&mut map_bytes);

    // A map that is not cut at leaves must be rejected: it needs more memory than it has bytes.
    let mut wide = file.encode(Some(&LeafHomes::new()));
    wide.truncate(wide.len() - 5);
    wide.push(0);
    wide.extend_from_slice(&64u32.to_le_bytes());
    for part in 0..64 {
        Extent { first: part << 20, count: 1 << 20, addr: BlockAddr { offset: 0, ..addr(1, u32::MAX) } }
            .encode(&mut wide);
    }

    let (root, pages) = root();
    let root = root.encode();
    assert_eq!(page_again(&imap_leaf(), Table::Imap, 0), Ok(imap_leaf()));
    let empty = Root::empty(ManagerId::new(0), BLOCK, 8).encode();
    let encoded = |kind: u8, record: Vec<u8>| [vec![kind], record].concat();
    replay::compare(
        "manager",
        &[
            ("directory", encoded(0, directory.encode())),
            ("node_file", encoded(1, file.encode(None))),
            ("node_leaves", encoded(1, file.encode(Some(&homes)))),
            ("node_folder", encoded(1, node(Kind::Directory).encode(None))),
            ("node_wide", encoded(1, wide)),
            ("node_symlink", encoded(1, link.encode(None))),
            ("leaf", encoded(2, encode_leaf(4711, 1, &leaf))),
            ("page_imap", encoded(3, imap_leaf())),
            ("page_leaf", encoded(3, pages[0].clone())),
            ("page_inner", encoded(3, pages[pages.len() - 1].clone())),
            ("root_empty", encoded(6, empty)),
            ("truncated", encoded(6, root[..80].to_vec())),
            ("root", encoded(6, root)),
            ("manager_map", encoded(7, map_bytes)),
        ],
    );
}

#[test]
fn messages_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("manager_wire", checks::message);
    assert!(kept >= 20 && changed > 0, "the corpus has good messages: {kept}, {changed}");
}

#[test]
fn the_corpus_has_the_messages_that_this_program_writes() {
    let file = FileId::new(4711);
    let inode = node(Kind::File).inode;
    let opened = Opened {
        inode,
        xattrs: vec![(b"user.a".to_vec(), Bytes::from_static(b"value"))],
        target: None,
        located: Located { extents: vec![run(0, 3, 1), run(9, 1, 2)], known_until: u64::MAX },
        grant: TokenGrant { mode: Mode::Write, number: 77, term: 5, open_elsewhere: true },
        order: 5,
    };
    let link = Opened { target: Some(Bytes::from_static(b"../elsewhere")), ..opened.clone() };
    let deltas = vec![Delta::Inode(inode), Delta::Blocks { file, extent: run(0, 3, 1) }];
    let segment = SegmentDeltas { segment: addr(5, 1).segment, order: 7, deltas: deltas.into() };
    let empty = SegmentDeltas { segment: addr(6, 1).segment, order: 8, deltas: Vec::new().into() };
    let back = GiveBack { file, number: 77, keep: Some(Mode::Read), is_open: true };
    let status = ManagerStatus { file_count: 5, cached_count: 4, dirty_count: 3, token_count: 2, checkpoint_count: 1 };
    let recall = HolderRequest::Recall(TokenRecall { file, number: 77, wanted: Mode::Write });
    let question = GlimpseQuestion { file, term: 5, number: 8 };
    let seen = GlimpseAnswer { question, inode: Some(Box::new(inode)) };
    let call = |request| {
        let (session, connection, number) = (0x1122_3344_5566_7788, 3, 99);
        let call = ManagerCall { session, manager: ManagerId::new(2), connection, number, received: vec![97], request };
        [vec![0], ClientMessage::Call(call).encode()].concat()
    };
    let answer = |answer: ManagerAnswer| [vec![1], answer.encode()].concat();
    replay::compare(
        "manager_wire",
        &[
            ("open", call(ManagerRequest::Open { file, mode: Mode::Read })),
            ("open_many", call(ManagerRequest::OpenMany { files: vec![file, FileId::ROOT], mode: Mode::Write })),
            ("locate", call(ManagerRequest::Locate { file, first: 64 })),
            ("give_back", call(ManagerRequest::GiveBack(vec![back, GiveBack { keep: None, ..back }]))),
            ("closed", call(ManagerRequest::Closed { file })),
            ("allocate", call(ManagerRequest::Allocate { volume: 1 })),
            ("apply", call(ManagerRequest::Apply(vec![segment, empty]))),
            ("status", call(ManagerRequest::Status)),
            ("glimpse", call(ManagerRequest::Glimpse { file })),
            ("glimpsed", call(ManagerRequest::Glimpsed(seen.clone()))),
            ("glimpsed_nothing", call(ManagerRequest::Glimpsed(GlimpseAnswer { inode: None, ..seen }))),
            ("next_recalls", [vec![0], ClientMessage::NextRecalls { session: 7, seen: 5 }.encode()].concat()),
            ("answer_expelled", answer(ManagerAnswer::Failed(ManagerError::Expelled))),
            ("answer_stale_map", answer(ManagerAnswer::Failed(ManagerError::StaleMap(6)))),
            ("answer_done", answer(ManagerAnswer::Done)),
            ("answer_opened", answer(ManagerAnswer::Opened(Box::new(opened.clone())))),
            ("answer_many", answer(ManagerAnswer::OpenedMany(vec![Ok(link), Err(ManagerError::NotFound)]))),
            ("answer_located", answer(ManagerAnswer::Located(opened.located))),
            ("answer_closed", answer(ManagerAnswer::Closed(true))),
            ("answer_allocated", answer(ManagerAnswer::Allocated(IndexRange { first: file, count: 16_384 }))),
            ("answer_status", answer(ManagerAnswer::Status(status))),
            ("answer_recalls", answer(ManagerAnswer::Recalls { last: 6, recalls: vec![recall, recall] })),
            (
                "answer_recalls_and_questions",
                answer(ManagerAnswer::Recalls { last: 8, recalls: vec![recall, HolderRequest::Glimpse(question)] }),
            ),
            ("answer_seen", answer(ManagerAnswer::Seen { inode: Box::new(inode), term: 5 })),
            ("answer_stale", answer(ManagerAnswer::Stale)),
            ("answer_moved", answer(ManagerAnswer::Moved)),
        ],
    );
}

#[test]
fn messages_about_managers_elsewhere_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("host", checks::host_messages);
    assert!(kept >= 20 && changed > 0, "the corpus has good messages: {kept}, {changed}");
}

#[test]
fn the_corpus_has_messages_about_managers_elsewhere() {
    let (file, manager, log) = (FileId::new(4711), ManagerId::new(2), LogId::new(1025));
    let client = AdmittedClient { client: ClientId::new(2), log, session: 77, fingerprint: [7; 32] };
    let token = |mode, number| HeldToken { file, mode, number };
    let living = LivingLog { log, epoch: 3, committed_seq: 99 };
    let takeover = Takeover {
        manager,
        term: 0x1122_3344_5566_7788,
        after_epoch: 4,
        index_range_len: 16_384,
        lengths: Lengths { segment_len_max: 1 << 20, page_rows_max: 64 },
        logs: vec![LivingLog { log: LogId::new(1), ..living }, living],
        cleaners: vec![LivingLog { log: LogId::new(2), ..living }],
        clients: vec![(client.clone(), vec![token(Some(Mode::Write), 5), token(None, 0)])],
    };
    let at = BlockAt { file, extent: run(0, 3, 1) };
    let segments = vec![addr(5, 1).segment, addr(6, 1).segment];
    let deltas = vec![Delta::Blocks { file, extent: run(0, 3, 1) }];
    let replayed = SegmentDeltas { segment: addr(5, 1).segment, order: 7, deltas: deltas.into() };
    let request = |request: HostRequest| [vec![0], request.encode(99)].concat();
    let ask = |asked| request(HostRequest::Ask(manager, asked));
    let answer = |answer: HostAnswer| [vec![1], answer.encode()].concat();
    let status = ManagerStatus { file_count: 5, cached_count: 4, dirty_count: 3, token_count: 2, checkpoint_count: 1 };
    let progress = Progress { applied: [(log, 99), (LogId::new(1), 4)].into(), order: 6 };
    let changes = UsageChanges {
        until: 8,
        is_whole: true,
        changed: vec![SegmentUsage { segment: segments[0], live_bytes: 4096 }],
        covered: segments.clone(),
    };
    let token = TokenUse { client: ClientId::new(2), mode: Mode::Write, recalled: Some(Mode::Read) };
    let file_use = FileUse {
        holders: vec![token],
        open_at: vec![ClientId::new(3)],
        waiting: vec![TokenWait { client: ClientId::new(1), mode: Mode::Read }],
    };
    let taken = request(HostRequest::Take(Box::new(takeover)));
    replay::compare(
        "host",
        &[
            ("truncated", taken[..60].to_vec()),
            ("take", taken),
            ("release", request(HostRequest::Release(manager))),
            ("admit", request(HostRequest::Admit(client))),
            ("refuse", request(HostRequest::Refuse(77))),
            ("expel", request(HostRequest::Expel(ClientId::new(2)))),
            ("progress", request(HostRequest::Progress)),
            ("relocate", request(HostRequest::Relocate(vec![at]))),
            ("replay", ask(AdminRequest::Replay(vec![replayed]))),
            ("size", ask(AdminRequest::Size(at))),
            ("live", ask(AdminRequest::Live(vec![at]))),
            ("usage_changes", ask(AdminRequest::UsageChanges(8))),
            ("checkpoint", ask(AdminRequest::Checkpoint)),
            ("evacuate", ask(AdminRequest::Evacuate(segments))),
            ("orphans", ask(AdminRequest::Orphans)),
            ("file_use", ask(AdminRequest::FileUse(file))),
            ("answer_failed", answer(HostAnswer::Failed(ManagerError::Away))),
            ("answer_done", answer(HostAnswer::Done)),
            ("answer_progress", answer(HostAnswer::Progress([(manager, ManagerReport { progress, status })].into()))),
            ("answer_size", answer(HostAnswer::Size(Some(NodeSize { attribute_bytes: 9, extent_count: 3 })))),
            ("answer_gone", answer(HostAnswer::Size(None))),
            ("answer_live", answer(HostAnswer::Live(vec![at]))),
            ("answer_usage_changes", answer(HostAnswer::UsageChanges(changes))),
            ("answer_checkpoint", answer(HostAnswer::Checkpoint(CheckpointState { covered: vec![(log, 99)] }))),
            ("answer_orphans", answer(HostAnswer::Orphans(vec![file]))),
            ("answer_file_use", answer(HostAnswer::FileUse(file_use))),
        ],
    );
}
