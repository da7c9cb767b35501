//! Clients near their home: what they wait for, what others see, and what it costs.

use crate::rig::Rig;
use crate::rig::session::{How, Op, find, perform, read_all};
use host::SplitMix64;
use roam::{Client, Forget, LinkState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use types::{FileId, FsError};
use vfs::FileSystem;

/// Delay of the network in each direction. With this delay the home counts as near.
const DELAY: Duration = Duration::from_millis(3);
/// Number of files that a test writes one after the other.
const FILE_COUNT: usize = 40;

fn write(rig: &Rig, client: &Client, path: &str, text: &str) {
    let op = Op::Write(path.into(), How::Replace, text.into());
    rig.sim.block_on(perform(client, &op)).expect("written");
}

fn read(rig: &Rig, client: &Client, path: &str) -> Result<String, FsError> {
    let read = rig.sim.block_on(async { read_all(client, find(client, path).await?).await });
    read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn text(number: usize) -> String {
    format!("file {number}")
}

#[test]
fn a_client_that_is_alone_waits_for_nothing_and_whoever_attaches_sees_what_it_has_closed() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let (one, ..) = rig.new_client(1, DELAY);
        rig.sim.block_on(perform(&one, &Op::List("/".into()))).expect("listed");
        rig.sim.run_for(Duration::from_secs(5));
        let begun = rig.sim.now();
        (0..FILE_COUNT).for_each(|number| write(&rig, &one, &format!("/file-{number}"), &text(number)));
        assert_eq!(rig.sim.now(), begun, "it waited");
        let (other, ..) = rig.new_client(2, DELAY);
        for number in 0..FILE_COUNT {
            assert_eq!(read(&rig, &other, &format!("/file-{number}")), Ok(text(number)), "seed {seed}");
        }
    }
}

#[test]
fn what_one_has_closed_near_home_the_other_opens() {
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let (one, ..) = rig.new_client(1, DELAY);
        let (other, ..) = rig.new_client(2, DELAY);
        rig.sim.run_for(Duration::from_secs(5));
        write(&rig, &one, "/file", "first");
        for round in 0..30 {
            let [writer, reader] = if round % 2 == 0 { [&one, &other] } else { [&other, &one] };
            write(&rig, writer, "/file", &format!("round {round}"));
            assert_eq!(read(&rig, reader, "/file"), Ok(format!("round {round}")), "seed {seed}");
            let op = match round % 3 {
                0 => Op::MakeDir("/dir".into()),
                1 => Op::Rename("/dir".into(), "/moved".into(), Default::default()),
                _ => Op::RemoveDir("/moved".into()),
            };
            rig.sim.block_on(perform(writer, &op)).expect("done");
            let there = |path: &str| rig.sim.block_on(find(reader, path)).is_ok();
            assert_eq!((there("/dir"), there("/moved")), (round % 3 == 0, round % 3 == 1), "seed {seed}, {round}");
        }
    }
}

/// Files of all lengths that go together fit into one message. Otherwise the connection would end
/// again and again.
#[test]
fn files_of_all_lengths_go_home_in_messages_that_fit() {
    let rig = Rig::new(1);
    let (one, network, ..) = rig.new_client(1, DELAY);
    rig.sim.run_for(Duration::from_secs(5));
    let len = |number: usize| [3, 1 << 10, 15 << 10, 17 << 10, 60 << 10, 250 << 10, 300 << 10][number % 7];
    // Text that does not compress well.
    let text = |number: usize| {
        let random = SplitMix64::new(number as u64);
        (0..len(number)).map(|_| char::from(random.below(0x80) as u8)).collect::<String>()
    };
    (0..FILE_COUNT).for_each(|number| write(&rig, &one, &format!("/file-{number}"), &text(number)));
    let attached = network.dialed.load(Relaxed);
    rig.sim.block_on(one.send_all()).expect("home");
    assert_eq!(network.dialed.load(Relaxed), attached);
    let (other, ..) = rig.new_client(2, DELAY);
    for number in 0..FILE_COUNT {
        assert!(read(&rig, &other, &format!("/file-{number}")) == Ok(text(number)), "file {number}");
    }
}

/// Before, each file cost some twenty syncs, at the client and at home.
#[test]
fn many_small_files_cost_few_syncs() {
    let rig = Rig::new(1);
    let (one, _, disk, _) = rig.new_client(1, DELAY);
    rig.sim.run_for(Duration::from_secs(5));
    let syncs = || disk.counts().syncs + rig.disk.counts().syncs;
    let before = syncs();
    let count = 1000;
    (0..count).for_each(|number| write(&rig, &one, &format!("/file-{number}"), &text(number)));
    rig.sim.block_on(one.send_all()).expect("home");
    let cost = syncs() - before;
    assert!(cost < count as u64 / 10, "{cost} syncs");
    rig.sim.block_on(async { one.sync().await }).expect("synced");
    assert_eq!(one.look(|replica, _| replica.log().len()), 0);
}

/// A snapshot of the home's log waits until no records are held. Records of what one client did
/// after the other's last request for durability were held for ever, and the log stood still.
#[test]
fn regression_a_client_is_told_what_is_durable_while_another_goes_on() {
    for seed in 0..20 {
        let mut rig = Rig::new(seed);
        rig.crash_home();
        // A snapshot for each group of records.
        rig.log_len = 1;
        rig.start_home();
        let (one, ..) = rig.new_client(1, DELAY);
        let (other, _, _, machine) = rig.new_client(2, DELAY);
        let ended = Arc::new(AtomicBool::new(false));
        let goes_on = ended.clone();
        machine.host().tasks.spawn(Box::pin(async move {
            for number in 0..200 {
                let op = Op::Write(format!("/other-{number}"), How::Replace, text(number).into());
                perform(&other, &op).await.expect("written");
            }
            goes_on.store(true, Relaxed);
        }));
        for number in 0..20 {
            write(&rig, &one, &format!("/file-{number}"), &text(number));
            assert_eq!(rig.sim.block_on(one.send_all()).map_err(|e| e.to_string()), Ok(()), "seed {seed}, {number}");
        }
        rig.sim.run_for(Duration::from_secs(60));
        assert!(ended.load(Relaxed), "seed {seed}");
    }
}

/// After a crash the home looked for operations that it had done and did not know durably. Of
/// several stores to one file it found the last, and took it for another program's. It made files
/// again that were removed since.
#[test]
fn regression_a_crash_of_the_home_makes_no_conflicts_of_ones_own_work() {
    let mut undurable = 0;
    for seed in 0..20 {
        let rig = Rig::new(seed);
        let (one, ..) = rig.new_client(1, DELAY);
        // With another client attached, a close waits until the home has seen the file.
        let (_other, ..) = rig.new_client(2, DELAY);
        ["/file", "/index"].into_iter().for_each(|path| write(&rig, &one, path, "first"));
        rig.sim.block_on(one.send_all()).expect("home");
        rig.sim.run_for(Duration::from_secs(5));
        let ops = |ops: Vec<Op>| {
            ops.into_iter().for_each(|op| rig.sim.block_on(perform(&one, &op)).expect("done"));
        };
        ops([" second", " third"].map(|text| Op::Write("/file".into(), How::Append, text.into())).into());
        for text in ["removed", "kept"] {
            ops(if text == "kept" { vec![Op::Unlink("/name".into())] } else { vec![] });
            write(&rig, &one, "/name", text);
        }
        // As git saves files: by another name, and a rename.
        for text in ["second", "third"] {
            write(&rig, &one, "/index.lock", text);
            ops(vec![Op::Rename("/index.lock".into(), "/index".into(), Default::default())]);
        }
        undurable += one.look(|replica, _| replica.log().len());
        rig.crash_home();
        rig.start_home();
        rig.sim.run_for(Duration::from_secs(60));
        let conflicts =
            one.look(|replica, _| replica.conflicts().map(|(_, one)| format!("{one:?}")).collect::<Vec<_>>());
        assert_eq!(conflicts, Vec::<String>::new(), "seed {seed}");
        for (path, text) in [("/file", "first second third"), ("/name", "kept"), ("/index", "third")] {
            assert_eq!(read(&rig, &one, path).as_deref(), Ok(text), "seed {seed}, {path}");
            let there = rig.sim.block_on(async { read_all(&rig.fs, find(&rig.fs, path).await?).await });
            assert_eq!(there.as_deref(), Ok(text.as_bytes()), "seed {seed}, {path} at home");
        }
        assert_eq!(read(&rig, &one, "/index.lock"), Err(FsError::NotFound), "seed {seed}");
    }
    assert!(undurable > 20, "too few operations were not durable at the crash");
}

/// A program at home removes a file just after it was made here. The kernel is told of that. It
/// asks while the answer to the creation is on its way, and is shown the file. When the answer
/// came, nothing told the kernel to ask again.
#[test]
fn regression_the_kernel_asks_again_when_an_answer_leaves_doubt() {
    let rig = Rig::new(1);
    let (one, network, ..) = rig.new_client(1, DELAY);
    let mut told = one.cached_by();
    rig.sim.block_on(perform(&one, &Op::List("/".into()))).expect("listed");
    rig.sim.run_for(Duration::from_secs(5));
    network.answer_lag_ms.store(200, Relaxed);
    write(&rig, &one, "/file", "text");
    let has_it = || rig.fs.dump().iter().any(|entry| entry.path == b"/file");
    while !has_it() {
        rig.sim.run_for(Duration::from_millis(1));
    }
    network.answer_lag_ms.store(0, Relaxed);
    rig.sim.block_on(perform(&rig.fs, &Op::Unlink("/file".into()))).expect("removed");
    rig.home.lock().as_ref().expect("a home").tree.tell_name(FileId::ROOT, b"file");
    rig.sim.run_for(Duration::from_millis(50));
    rig.sim.block_on(perform(&one, &Op::List("/".into()))).expect("listed");
    assert!(rig.sim.block_on(find(&one, "/file")).is_ok(), "the answer is on its way");
    while told.try_recv().is_ok() {}
    rig.sim.run_for(Duration::from_secs(5));
    let mut again = Vec::new();
    while let Ok(forget) = told.try_recv() {
        again.push(forget);
    }
    let is_name = |forget: &Forget| matches!(forget, Forget::Name(_, name) if name == b"file");
    assert!(again.iter().any(is_name), "{again:?}");
    assert_eq!(rig.sim.block_on(find(&one, "/file")), Err(FsError::NotFound));
}

/// Near home, contents were set aside to go in one message. When the link has become slow, they go
/// in pieces.
#[test]
fn regression_what_was_to_go_in_one_message_goes_in_pieces_over_a_slow_link() {
    let rig = Rig::new(1);
    let (one, network, ..) = rig.new_client(1, DELAY);
    rig.sim.block_on(perform(&one, &Op::List("/".into()))).expect("listed");
    rig.sim.run_for(Duration::from_secs(5));
    network.lose_requests.store(true, Relaxed);
    let text = "a".repeat(200_000);
    write(&rig, &one, "/file", &text);
    // The message was sent, and is lost.
    rig.sim.run_for(Duration::from_millis(500));
    one.pin(Some(LinkState::Weak));
    rig.sim.run_for(Duration::from_secs(60));
    network.kinds.lock().clear();
    network.lose_requests.store(false, Relaxed);
    rig.sim.run_for(Duration::from_secs(120));
    assert_eq!(one.look(|replica, state| (replica.log().len(), state)), (0, LinkState::Weak));
    assert!(network.kinds.lock().get("Upload").is_some_and(|count| *count > 0), "{:?}", network.kinds.lock());
    let (other, ..) = rig.new_client(2, DELAY);
    assert!(read(&rig, &other, "/file") == Ok(text));
}
