use crate::replay;
use cluster::FsConfig;
use cluster::KnownNode;
use cluster::config::{MemberEntry, first_manager_map};
use cluster::control::{
    AuthorityKey, CONTROL_VERSION, ControlAnswer, ControlError, ControlRequest, Hello, Holdings, Moving, NodeReport,
    NodeState, NodesReport, Redundancy, Renewed, Resume, SpreadReport, Welcome, WhoReport,
};
use cluster::lock_server::{ClientLock, LockOperation, LockRequest, LocksOnFile};
use cluster::remote_locks::{LockCall, LockReply};
use cluster::seating::{Reseating, Seated, Seating};
use corpus::cluster as checks;
use manager::ManagerMap;
use manager::api::{FileUse, HeldToken, TokenUse, TokenWait};
use manager::token::Mode;
use policy::space::{LiveShare, SpaceShare};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use stripe::LogTail;
use types::{ClientId, FileId, FsError, FsUuid, LogId, ManagerId, Maps, NodeId, SegmentId, StoreId};
use vfs::fs::{FileLock, LockSpace};

#[test]
fn maps_of_the_corpus_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("maps", checks::maps);
    assert!(kept >= 3 && changed > 0, "the corpus has good maps: {kept}, {changed}");
}

/// The corpus also keeps maps of versions 1 to 5, which are read but no longer written.
#[test]
fn the_corpus_has_what_this_program_writes() {
    let first = FsConfig {
        fs: FsUuid([7; 16]),
        store_count: 5,
        parity: 1,
        block_size: 65536,
        store_capacity_bytes: 1 << 30,
        managers: first_manager_map(2),
        members: BTreeMap::new(),
        next_node: 1,
        places: BTreeMap::new(),
        first_node: None,
        draining: Default::default(),
        through_first: Default::default(),
        first_member: None,
        voters: cluster::config::first_voters(),
        next_voter: 2,
        is_whole: true,
    };
    let managers = ManagerMap { epoch: 7, owners: [0, 1, 1, 2].map(ManagerId::new).to_vec() };
    let later = FsConfig { parity: 2, block_size: 4096, managers, ..first.clone() };
    let mut joined = later.clone();
    for (name, address) in [("laptop", ""), ("gone", "x"), ("node-3.lan", "10.0.0.3:7440")] {
        let member = MemberEntry { name: name.into(), fingerprint: [name.len() as u8; 32], address: address.into() };
        joined.add_member(member).expect("add");
    }
    joined.members.remove(&NodeId::new(2));
    let mut spread = joined.clone();
    spread.places = BTreeMap::from([(StoreId::new(1), NodeId::new(3)), (StoreId::new(4), NodeId::new(1))]);
    let mut voted = spread.clone();
    voted.first_node = Some([9; 32]);
    voted.add_voter(NodeId::new(1)).and_then(|_| voted.add_voter(NodeId::new(3))).expect("add");
    let mut led = voted.clone();
    let member = MemberEntry { name: "first".into(), fingerprint: [8; 32], address: "10.0.0.1:7440".into() };
    voted.first_member = Some(member);
    led.voters.retain(|_, node| node.raw() != 0);
    let truncated = first.encode()[..40].to_vec();
    replay::compare(
        "maps",
        &[
            ("first", first.encode().into()),
            ("later", later.encode().into()),
            ("joined", joined.encode().into()),
            ("spread", spread.encode().into()),
            ("voted", voted.encode().into()),
            ("led", led.encode().into()),
            ("truncated", truncated),
        ],
    );
}

#[test]
fn messages_about_sessions_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("control", checks::control);
    assert!(kept >= 10 && changed > 0, "the corpus has good messages: {kept}, {changed}");
}

#[test]
fn the_corpus_has_messages_about_sessions() {
    let (node, session, lease) = (NodeId::new(3), 0x1234_5678_9abc, Duration::from_secs(8));
    let live = Some(LiveShare { counted_bytes: 5 << 20, others_bytes: 1 << 20 });
    let share = SpaceShare { covered_seq: 7, free_bytes: 1 << 30, limit_bytes: 2 << 30, live };
    let log = LogId::new(1027);
    let tail = LogTail {
        log,
        epoch: 2,
        next_seq: 9,
        last: Some(SegmentId { log, epoch: 1, seq: 8 }),
        segments: Vec::new(),
        lost: Vec::new(),
        order: 5,
    };
    let config = "maps".into();
    let at = KnownNode { node, address: "10.0.0.3:7440".into(), fingerprint: [7; 32] };
    let seats = [None, Some(at)].into_iter().map(|at| Seated { term: 77, at });
    let seating = Seating { version: 5, managers: seats.collect() };
    let welcome = Welcome {
        session,
        lease,
        config,
        maps_epoch: 4,
        in_flight_max: 1 << 24,
        tail,
        share: Some(share),
        first_node: [9; 32],
        seating: seating.clone(),
    };
    let report = |state, is_mounted| NodeReport {
        id: node,
        name: "node-3.lan".into(),
        address: "10.0.0.3:7440".into(),
        state,
        is_mounted,
        manager_count: 3,
        takes_managers: is_mounted,
        is_voter: is_mounted,
        is_draining: !is_mounted,
        program: if is_mounted { "0.1.0".into() } else { String::new() },
    };
    let nodes = vec![
        report(NodeState::Up { lease_left: lease }, true),
        report(NodeState::Down { since: None }, false),
        report(NodeState::Down { since: Some(lease) }, false),
    ];
    let request = |request: ControlRequest| [&[0], &*request.encode()].concat();
    let answer = |answer: Result<ControlAnswer, ControlError>| [&[1], &*ControlAnswer::encode(&answer)].concat();
    let maps = Some(Maps { epoch: 5, bytes: "maps".into() });
    let absent = [StoreId::new(1), StoreId::new(4)].into();
    let renewed = Renewed { lease, share: None, round: 2, maps, seating: Some(seating), reseating: None, absent };
    let reseating = Some(Reseating { term: 78, managers: vec![ManagerId::new(1)] });
    let absent = BTreeSet::new();
    let asked = Renewed { lease, share: None, round: 2, maps: None, seating: None, reseating, absent };
    let greeting = |version, address: &str| {
        let (is_mounted, takes_stores, takes_managers, takes_votes) = (true, true, true, true);
        let (address, program) = (address.to_string(), "0.1.0".into());
        Hello { node, version, is_mounted, address, takes_stores, takes_managers, takes_votes, program }
    };
    let hello = |version, address| request(ControlRequest::Hello(greeting(version, address)));
    let token = |file, mode, number| HeldToken { file: FileId::new(file), mode, number };
    let tokens = vec![token(1, Some(Mode::Read), 5), token(2, Some(Mode::Write), 0), token(3, None, 0)];
    let lock = FileLock { space: LockSpace::Flock, owner: 9, pid: 70, exclusive: Some(true), start: 0, end: u64::MAX };
    let resume = Resume {
        hello: greeting(CONTROL_VERSION, "10.0.0.3:7440"),
        session,
        term: 77,
        store_bytes: 1,
        live_bytes: 2,
        holdings: Holdings { tokens, epoch: 2, committed_seq: 8 },
        locks: vec![(FileId::new(2), lock)],
    };
    let claim = ControlRequest::Claim { session, term: 78, holdings: resume.holdings.clone() };
    let renew = ControlRequest::Renew {
        session,
        store_bytes: 1,
        live_bytes: 2,
        wants_space: true,
        maps_epoch: 4,
        seating: 5,
        unreached: vec![node],
    };
    let places = BTreeMap::from([(StoreId::new(0), NodeId::new(0)), (StoreId::new(1), node)]);
    let moving =
        Some(Moving { store: StoreId::new(0), to: node, percent: 40, time_left: Some(Duration::from_secs(20)) });
    let spread = SpreadReport { moving, trouble: "no room".into() };
    let redundancy = Redundancy::Lacks { bytes: 1 << 27, time_left: Some(Duration::from_secs(35)) };
    let nodes = NodesReport { nodes, leader: node, places, away: [StoreId::new(1)].into(), spread, redundancy };
    let client = ClientId::new(4);
    let names = BTreeMap::from([(NodeId::new(0), "one".to_string()), (node, "node-3.lan".to_string())]);
    let who = WhoReport {
        manager: ManagerId::new(1),
        place: node,
        tokens: FileUse {
            holders: vec![TokenUse { client, mode: Mode::Write, recalled: Some(Mode::Read) }],
            open_at: vec![ClientId::new(2)],
            waiting: vec![TokenWait { client: ClientId::new(1), mode: Mode::Read }],
        },
        locks: LocksOnFile {
            held: vec![ClientLock { client, lock }],
            waiting: vec![ClientLock { client: ClientId::new(1), lock: FileLock { owner: 3, ..lock } }],
        },
        names,
    };
    replay::compare(
        "control",
        &[
            ("hello", hello(CONTROL_VERSION, "10.0.0.3:7440")),
            ("hello_of_another_version", hello(CONTROL_VERSION + 1, "")),
            ("renew", request(renew)),
            ("claim", request(claim)),
            ("leave", request(ControlRequest::Leave { session })),
            ("ask_nodes", request(ControlRequest::Nodes)),
            ("ask_authority_key", request(ControlRequest::AuthorityKey)),
            ("order", request(ControlRequest::Order("{}".into()))),
            ("resume", request(ControlRequest::Resume(resume))),
            ("noted", answer(Ok(ControlAnswer::Noted))),
            ("restarted", answer(Err(ControlError::Restarted(77)))),
            ("welcome", answer(Ok(ControlAnswer::Welcome(welcome)))),
            ("renewed", answer(Ok(ControlAnswer::Renewed(renewed)))),
            ("asked_for_a_claim", answer(Ok(ControlAnswer::Renewed(asked)))),
            ("left", answer(Ok(ControlAnswer::Left))),
            ("authority_key", answer(Ok(ControlAnswer::AuthorityKey(AuthorityKey("pem".into()))))),
            ("done", answer(Ok(ControlAnswer::Done(Ok("{}".into()))))),
            ("not_done", answer(Ok(ControlAnswer::Done(Err("it is up".into()))))),
            ("nodes", answer(Ok(ControlAnswer::Nodes(nodes)))),
            ("ask_who", request(ControlRequest::Who(FileId::new(4711)))),
            ("who", answer(Ok(ControlAnswer::Who(who)))),
            ("tell_first_node", request(ControlRequest::FirstNode(vec!["10.0.0.1:7440".into(), "[::1]:7440".into()]))),
            ("first_node", answer(Ok(ControlAnswer::FirstNode(vec!["10.0.0.1:7440".into()])))),
            ("unknown_session", answer(Err(ControlError::UnknownSession))),
            ("not_member", answer(Err(ControlError::NotMember))),
            ("version", answer(Err(ControlError::Version(2)))),
            ("unavailable", answer(Err(ControlError::Unavailable("too few stores".into())))),
        ],
    );
}

#[test]
fn messages_about_locks_and_changed_ones_are_decoded_or_refused() {
    let (kept, changed) = replay::run("locks", checks::locks);
    assert!(kept >= 7 && changed > 0, "the corpus has good messages: {kept}, {changed}");
}

#[test]
fn the_corpus_has_messages_about_locks() {
    let (file, exclusive) = (FileId::new(77), Some(true));
    let lock = FileLock { space: LockSpace::Posix, owner: 9, pid: 70, exclusive, start: 5, end: u64::MAX };
    let call = |operation| {
        let request = LockRequest { number: 12, known_below: 10, operation };
        [vec![0], LockCall { session: 0x1234_5678, request }.encode()].concat()
    };
    let reply = |reply: LockReply| [vec![1], reply.encode()].concat();
    let set = call(LockOperation::Set(file, lock, true));
    replay::compare(
        "locks",
        &[
            ("test", call(LockOperation::Test(file, FileLock { exclusive: None, ..lock }))),
            ("release", call(LockOperation::Release(file, LockSpace::Flock, 9))),
            ("give-up", call(LockOperation::GiveUp(11))),
            ("truncated", set[..40].to_vec()),
            ("set", set),
            ("done", reply(LockReply::Ended(Ok(None)))),
            ("in-the-way", reply(LockReply::Ended(Ok(Some(lock))))),
            ("deadlock", reply(LockReply::Ended(Err(FsError::Deadlock)))),
            ("no-session", reply(LockReply::NoSession)),
        ],
    );
}
