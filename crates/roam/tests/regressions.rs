//! Bugs that storms found, each reduced to the steps that show it.

mod rig;

use host::sim::SimDisk;
use rig::Rig;
use rig::session::{How, Op, close, find, open_to_write, perform, read_all};
use rig::setup::Setup;
use rig::tree::Moment;
use roam::{COMMIT_TIME_MAX, LinkState, Validation, Writes};
use roam_proto::message::User;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use types::{FileId, FsError, Time};
use vfs::fs::{Cred, FileSystem, OpenFlags, RenameFlags, SetAttr, SetTime};

const DELAY: Duration = Duration::from_millis(50);
/// Time of one operation of a slow disk.
const SLOW: Duration = Duration::from_millis(20);
/// Number of seeds of a test, since a loss of power can come out in several ways.
const SEED_COUNT: u64 = 20;

impl Setup {
    fn write(&self, path: &str, how: How, text: &str) {
        self.done(Op::Write(path.into(), how, text.into()));
    }

    fn read(&self, path: &str) -> String {
        let read = self.rig.sim.block_on(async { read_all(&self.client, find(&self.client, path).await?).await });
        String::from_utf8_lossy(&read.expect(path)).into_owned()
    }

    fn done_at_home(&self, op: Op) {
        let tree = self.rig.home.lock().clone().expect("home").tree;
        self.rig.sim.block_on(perform(&tree, &op)).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }
}

/// The client did not log which file of the cache has a new file's bytes, and did not make that
/// file's name durable.
#[test]
fn regression_what_was_closed_is_there_after_a_loss_of_power() {
    for seed in 0..SEED_COUNT {
        let setup = Setup::new(seed).always();
        setup.done(Op::List(String::new()));
        setup.online(false);
        setup.write("/file", How::Replace, "closed");
        let setup = setup.crash(true);
        assert_eq!(setup.read("/file"), "closed", "seed {seed}");
        setup.online(true);
        assert_eq!(setup.at_home("/file").as_deref(), Ok("closed"), "seed {seed}");
    }
}

/// Bytes that were fetched before a program changed a file were not durable when they began to
/// count as the user's own.
#[test]
fn regression_what_was_fetched_to_be_changed_is_there_after_a_loss_of_power() {
    for seed in 0..SEED_COUNT {
        let setup = Setup::new(seed);
        let (fs, old) = (setup.rig.fs.clone(), "old ".repeat(1000));
        setup.rig.sim.block_on(perform(&fs, &Op::Write("/file".into(), How::Replace, old.clone().into()))).unwrap();
        setup.rig.sim.block_on(async {
            let (id, handle) = open_to_write(&setup.client, "/file", How::Append).await.unwrap();
            setup.client.write(&Cred::ROOT, id, handle, 0, b"new").await.unwrap();
        });
        let setup = setup.restart(true);
        setup.online(true);
        let there = setup.at_home("/file").unwrap();
        assert!(there.starts_with(&old), "seed {seed}: {} bytes", there.len());
    }
}

/// The client logged bytes that it found when it opened its cache before they were durable.
#[test]
fn regression_what_a_crash_left_is_still_there_after_a_loss_of_power() {
    for seed in 0..SEED_COUNT {
        let setup = Setup::new(seed);
        setup.done(Op::List(String::new()));
        setup.online(false);
        setup.rig.sim.block_on(async {
            let (id, handle) = open_to_write(&setup.client, "/file", How::Append).await.unwrap();
            setup.client.write(&Cred::ROOT, id, handle, 0, b"written").await.unwrap();
        });
        setup.rig.sim.run_for(2 * COMMIT_TIME_MAX);
        let setup = setup.crash(false);
        assert_eq!(setup.read("/file"), "written", "seed {seed}");
        let setup = setup.restart(true);
        assert_eq!(setup.read("/file"), "written", "seed {seed}");
    }
}

/// A partly cached file was being cut to nothing. After a crash it came back with zeroes where
/// nothing was cached.
#[test]
fn regression_half_of_a_file_is_not_passed_off_as_what_was_left_of_it() {
    let mut crash_count = 0;
    for seed in 0..SEED_COUNT {
        let setup = Setup::new(seed);
        let (fs, old) = (setup.rig.fs.clone(), "old ".repeat(200_000));
        setup.rig.sim.block_on(perform(&fs, &Op::Write("/file".into(), How::Replace, old.clone().into()))).unwrap();
        setup.rig.sim.block_on(async {
            let id = find(&setup.client, "/file").await.unwrap();
            let flags = vfs::fs::OpenFlags { read: true, ..Default::default() };
            let handle = setup.client.open(&Cred::ROOT, id, flags).await.unwrap();
            setup.client.read(id, handle, 700_000, 1000).await.unwrap();
            close(&setup.client, id, handle).await.unwrap();
        });
        setup.rig.sim.run_for(Duration::from_secs(10));
        setup.online(false);
        setup.machine.crash_after(seed);
        let client = setup.client.clone();
        let cut = setup.machine.run(async move { open_to_write(&client, "/file", How::Replace).await.map(drop) });
        setup.rig.sim.run_for(Duration::from_secs(1));
        drop(cut);
        crash_count += u64::from(!setup.machine.is_up());
        let setup = setup.restart(seed % 2 == 0);
        setup.online(true);
        let there = setup.at_home("/file").unwrap();
        assert!(there == old || there.is_empty(), "seed {seed}: {} bytes", there.len());
    }
    assert!(crash_count > 0, "nothing crashed");
}

/// The home has `before`, and a client did `done` without a network. The home crashes at every step
/// of taking that. When the client asks again, the home recognises everything that was done and not
/// remembered: it does nothing twice, and takes nothing for another program's doing.
fn home_crashes_at_every_step(before: &[Op], done: &[Op], expected: &[(&str, Option<&str>)]) {
    for (steps, is_worst) in (0..).map(|n| (n / 2, n % 2 == 0)) {
        let rig = Rig::with_pace(steps, true);
        before.iter().for_each(|op| rig.sim.block_on(perform(&rig.fs, op)).expect("before"));
        rig.sync();
        let (client, network, disk, machine) = rig.new_client(1, DELAY);
        let setup = Setup { rig, client, network, disk, machine };
        setup.rig.sim.block_on(vfs::tree::walk(&setup.client)).expect("walk");
        setup.online(false);
        done.iter().for_each(|op| setup.done(op.clone()));
        let home = setup.rig.home.lock().clone().unwrap().machine;
        if !is_worst {
            // So the home does much before any of it is durable.
            setup.rig.disk.set_latency(SLOW..SLOW);
        }
        home.crash_after(steps * 3);
        setup.online(true);
        let crashed = !home.is_up();
        if crashed {
            setup.rig.crash_home();
            setup.rig.lose_power(is_worst);
            setup.rig.start_home();
            // Another client looks before this one asks again.
            let (other, ..) = setup.rig.new_client(2, Duration::from_millis(1));
            setup.rig.sim.block_on(vfs::tree::walk(&other)).unwrap();
            setup.online(true);
        }
        let conflicts = setup.client.look(|replica, _| replica.conflicts().map(|(_, t)| t.clone()).collect::<Vec<_>>());
        assert_eq!(conflicts, [], "{steps} steps");
        for (path, content) in expected {
            assert_eq!(setup.at_home(path).ok().as_deref(), *content, "{path}, {steps} steps");
        }
        let names = setup.rig.fs.dump().len() - 2;
        assert_eq!(names, setup.rig.sim.block_on(vfs::tree::walk(&setup.client)).unwrap().len() - 1, "{steps} steps");
        if !crashed {
            assert!(steps > 0, "nothing crashed");
            return;
        }
    }
}

#[test]
fn regression_what_a_home_made_before_a_crash_is_what_the_client_made() {
    let done = [
        Op::MakeDir("/dir".into()),
        Op::Write("/dir/file".into(), How::Replace, b"text".to_vec()),
        Op::MakeSymlink("/dir/link".into(), "file".into()),
        Op::MakeDir("/dir/more".into()),
        Op::SetXattr("/dir/file".into(), b"mark".to_vec()),
        Op::SetMode("/dir/file".into(), 0o600),
        Op::Write("/dir/file".into(), How::Append, b" and more".to_vec()),
    ];
    home_crashes_at_every_step(&[], &done, &[("/dir/file", Some("text and more"))]);
}

#[test]
fn regression_operations_that_later_ones_have_overtaken_are_done() {
    let done = [
        Op::Write("/file".into(), How::Replace, b"text".to_vec()),
        Op::Link("/file".into(), "/name".into()),
        Op::Unlink("/file".into()),
        Op::Write("/file".into(), How::Replace, b"another".to_vec()),
        Op::Rename("/file".into(), "/moved".into(), Default::default()),
        Op::SetMode("/name".into(), 0o600),
        Op::Unlink("/name".into()),
    ];
    home_crashes_at_every_step(&[], &done, &[("/file", None), ("/name", None), ("/moved", Some("another"))]);
}

/// A file was stored or made, and moved in the same message. After a crash the home did not know
/// it: it stayed when the client removed it, and the client's operations were in conflict with it.
#[test]
fn regression_what_moves_after_it_was_stored_is_the_same_file_after_a_crash_of_the_home() {
    let write = |path: &str, text: &str| Op::Write(path.into(), How::Replace, text.into());
    let rename = |from: &str, to: &str| Op::Rename(from.into(), to.into(), Default::default());
    let before = [Op::MakeDir("/dir".into()), write("/dir/file", "old")];
    let removed = [write("/dir/file", "new"), rename("/dir/file", "/moved"), Op::Unlink("/moved".into())];
    home_crashes_at_every_step(&before, &removed, &[("/dir/file", None), ("/moved", None)]);
    let saved = [write("/dir/new", "new"), rename("/dir/new", "/dir/file")];
    home_crashes_at_every_step(&before, &saved, &[("/dir/new", None), ("/dir/file", Some("new"))]);
    let made = [Op::Make("/dir/new".into(), 0o600), rename("/dir/new", "/dir/file")];
    home_crashes_at_every_step(&before, &made, &[("/dir/new", None), ("/dir/file", Some(""))]);
    let with_its_directory = [write("/dir/file", "new"), rename("/dir", "/moved")];
    home_crashes_at_every_step(&before, &with_its_directory, &[("/dir/file", None), ("/moved/file", Some("new"))]);
}

/// A file was made in a directory that was gone. The client tried to make it there again, for ever.
#[test]
fn regression_what_was_made_in_a_removed_directory_is_kept_at_the_top() {
    let setup = Setup::new(1);
    let fs = setup.rig.fs.clone();
    setup.done(Op::MakeDir("/dir".into()));
    setup.done(Op::List("/dir".into()));
    setup.rig.sim.run_for(Duration::from_secs(5));
    setup.online(false);
    setup.write("/dir/file.txt", How::Replace, "text");
    setup.rig.sim.block_on(perform(&fs, &Op::RemoveDir("/dir".into()))).unwrap();
    setup.online(true);
    assert!(setup.client.look(|replica, _| replica.log().is_empty()));
    assert_eq!(setup.at_home("/file (conflict).txt").as_deref(), Ok("text"));
    assert_eq!(setup.read("/file (conflict).txt"), "text");
}

/// A directory could not be made under its name. The files in it went home before the directory.
#[test]
fn regression_a_directory_in_conflict_keeps_all_that_is_below() {
    let setup = Setup::new(1);
    let fs = setup.rig.fs.clone();
    setup.done(Op::List(String::new()));
    setup.online(false);
    setup.done(Op::MakeDir("/dir".into()));
    setup.done(Op::MakeDir("/dir/sub".into()));
    setup.write("/dir/sub/file", How::Replace, "text");
    setup.rig.sim.block_on(perform(&fs, &Op::Write("/dir".into(), How::Replace, b"taken".to_vec()))).unwrap();
    setup.online(true);
    assert_eq!(setup.at_home("/dir").as_deref(), Ok("taken"));
    assert_eq!(setup.at_home("/dir (conflict)/sub/file").as_deref(), Ok("text"));
}

/// A file that was made and not written counted as being written for ever. So the client never saw
/// what others wrote to it.
#[test]
fn regression_what_others_write_to_a_file_made_here_is_seen() {
    let setup = Setup::new(1);
    let fs = setup.rig.fs.clone();
    setup.done(Op::Make("/file".into(), 0o644));
    setup.rig.sim.run_for(Duration::from_secs(5));
    setup.rig.sim.block_on(perform(&fs, &Op::Write("/file".into(), How::Replace, b"theirs".to_vec()))).unwrap();
    setup.rig.home.lock().as_ref().unwrap().tree.lose_events();
    setup.rig.sim.run_for(Duration::from_secs(5));
    assert_eq!(setup.read("/file"), "theirs");
}

/// A file lost its last name because the client thought that it had another.
#[test]
fn regression_a_last_name_is_not_removed_as_one_of_several() {
    let setup = Setup::new(1);
    let fs = setup.rig.fs.clone();
    setup.done(Op::List(String::new()));
    setup.online(false);
    setup.write("/file", How::Replace, "text");
    setup.done(Op::Link("/file".into(), "/name".into()));
    setup.rig.sim.block_on(perform(&fs, &Op::Write("/name".into(), How::Replace, b"taken".to_vec()))).unwrap();
    setup.done(Op::Unlink("/file".into()));
    setup.online(true);
    assert_eq!(setup.at_home("/name").as_deref(), Ok("taken"));
    let kept = setup.rig.fs.dump().iter().any(|entry| entry.attr.size == 4 && entry.attr.nlink == 1);
    assert!(kept, "{:?}", setup.rig.fs.dump());
}

/// The home crashed after a store, and others added to the file before the home knew of the store.
/// Their bytes counted as part of the store.
#[test]
fn regression_what_others_did_while_the_home_was_down_is_not_overwritten() {
    for steps in 0.. {
        let rig = Rig::with_pace(steps, true);
        let (client, network, disk, machine) = rig.new_client(1, DELAY);
        let setup = Setup { rig, client, network, disk, machine };
        let fs = setup.rig.fs.clone();
        setup.write("/file", How::Replace, "old");
        setup.rig.sim.run_for(Duration::from_secs(5));
        setup.online(false);
        setup.write("/file", How::Append, " new");
        let home = setup.rig.home.lock().clone().unwrap().machine;
        home.crash_after(steps);
        setup.online(true);
        if home.is_up() {
            assert!(steps > 0, "nothing crashed");
            return;
        }
        setup.rig.crash_home();
        setup.rig.sim.block_on(perform(&fs, &Op::Write("/file".into(), How::Append, b" theirs".to_vec()))).unwrap();
        setup.rig.start_home();
        setup.online(true);
        let there = setup.at_home("/file").unwrap();
        let beside = setup.at_home("/file (conflict)").unwrap_or_default();
        assert!(there.ends_with(" theirs"), "{steps} steps: {there}, {beside}");
        assert!(there.contains(" new") || beside.contains(" new"), "{steps} steps: {there}, {beside}");
    }
}

/// The client made again and again what the home refused to make.
#[test]
fn regression_what_the_home_refuses_to_make_comes_to_rest_and_is_kept() {
    let rig = Rig::new(1);
    let network = rig.network(1, DELAY);
    let user = User { uid: 1000, gid: 1000, groups: Vec::new() };
    let open = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let dir = rig.sim.block_on(async {
        let dir = rig.fs.mkdir(&Cred::ROOT, FileId::ROOT, b"dir", 0o777, 0).await.expect("mkdir").attr.id;
        rig.fs.setattr(&Cred::ROOT, dir, None, open(0o777)).await.expect("chmod");
        dir
    });
    rig.enroll(&network, user);
    let (machine, disk) = (rig.sim.machine("laptop"), SimDisk::new(&rig.sim, 1 << 30));
    let client = rig.client(&machine, &disk, &network);
    let setup = Setup { rig, client, network, disk, machine };
    assert_eq!(setup.rig.sim.block_on(find(&setup.client, "/dir/nothing")).err(), Some(FsError::NotFound));
    setup.online(false);
    setup.done(Op::MakeDir("/dir/new".into()));
    setup.write("/dir/new/file", How::Replace, "kept");
    setup.write("/dir/other", How::Replace, "kept, too");
    setup.rig.sim.block_on(setup.rig.fs.setattr(&Cred::ROOT, dir, None, open(0o755)).into_future()).expect("chmod");
    setup.online(true);
    let setup = setup.restart(true);
    setup.client.look(|replica, _| {
        assert!(replica.log().is_empty(), "{:?}", replica.log().iter().collect::<Vec<_>>());
        let kept: Vec<bool> = replica.conflicts().map(|(_, conflict)| conflict.kept > 0).collect();
        assert_eq!(kept.iter().filter(|kept| **kept).count(), 2, "not both files are kept: {kept:?}");
    });
    assert_eq!(setup.at_home("/dir/other"), Err(FsError::NotFound));
    assert_eq!(setup.rig.sim.block_on(find(&setup.client, "/dir/other")).err(), Some(FsError::NotFound));
}

/// An owner had made a file read-only, and was still writing it. It never got home, where only the
/// superuser could write it. Each refusal made another file beside it.
#[test]
fn regression_what_is_made_read_only_gets_home_with_what_is_in_it() {
    let user = Cred { uid: 1000, gid: 1000, groups: Vec::new() };
    let open = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    let rig = Rig::new(1);
    rig.sim.block_on(rig.fs.setattr(&Cred::ROOT, FileId::ROOT, None, open).into_future()).expect("chmod");
    let setup = Setup::of(rig, user.uid);
    setup.done(Op::List(String::new()));
    let write = async |path: &str, mode: u32, then: Option<u32>| {
        let name = format!("{path}-too");
        let (fs, flags) = (&setup.client, OpenFlags { write: true, ..OpenFlags::default() });
        let (made, handle) = fs.create(&user, FileId::ROOT, path.as_bytes(), mode, 0, flags).await.expect("create");
        let id = made.attr.id;
        fs.write(&user, id, handle, 0, b"te").await.expect("write");
        let set = SetAttr { mode: then, ..SetAttr::default() };
        fs.setattr(&user, id, Some(handle), set).await.expect("chmod");
        if then.is_some() {
            // So the home changes the file in place.
            fs.link(&user, id, FileId::ROOT, name.as_bytes()).await.expect("link");
        }
        fs.write(&user, id, handle, 2, b"xt").await.expect("write");
        close(fs, id, handle).await.expect("close");
    };
    for online in [true, false] {
        setup.online(online);
        setup.rig.sim.block_on(async {
            write(&format!("object-{online}"), 0o444, None).await;
            write(&format!("unpacked-{online}"), 0o644, Some(0o400)).await;
        });
        setup.online(true);
        setup.client.look(|replica, _| {
            assert_eq!(replica.conflicts().map(|(_, conflict)| conflict.why()).collect::<Vec<_>>(), [""; 0]);
            assert!(replica.log().is_empty());
        });
        for path in ["object", "unpacked"].map(|name| format!("/{name}-{online}")) {
            assert_eq!(setup.at_home(&path).as_deref(), Ok("text"), "{path}");
        }
    }
    let modes = setup.rig.fs.dump().into_iter().filter(|entry| entry.attr.kind == types::Kind::File);
    assert!(modes.into_iter().all(|entry| entry.attr.mode & 0o222 == 0), "all stay read-only");
}

/// A store failed half way. The home did it again, although others had changed the file since.
#[test]
fn regression_a_store_that_failed_half_way_does_not_overwrite_what_others_wrote_since() {
    for crashes in [false, true] {
        let rig = Rig::new(1);
        let old = Op::Write("/file".into(), How::Replace, b"old".to_vec());
        // Two names: the home changes the file in place.
        let before = [old, Op::Link("/file".into(), "/name".into())];
        before.iter().for_each(|op| rig.sim.block_on(perform(&rig.fs, op)).expect("before"));
        let setup = Setup::of(rig, 0);
        let tree = || setup.rig.home.lock().clone().expect("home").tree;
        assert_eq!(setup.read("/file"), "old");
        setup.online(false);
        setup.write("/file", How::Replace, "mine");
        // The home keeps the old contents before it changes anything. Without room it changes
        // nothing.
        tree().fill_up(true);
        setup.online(true);
        assert_eq!(setup.at_home("/file").as_deref(), Ok("old"));
        setup.online(false);
        tree().fill_up_after(1);
        setup.online(true);
        assert_ne!(setup.at_home("/file").as_deref(), Ok("old"), "the store was not begun");
        setup.online(false);
        tree().fill_up(false);
        if crashes {
            setup.rig.crash_home();
            setup.rig.start_home();
        }
        let theirs = Op::Write("/name".into(), How::Replace, b"theirs".to_vec());
        setup.rig.sim.block_on(perform(&tree(), &theirs)).expect("write");
        setup.online(true);
        assert_eq!(setup.at_home("/file").as_deref(), Ok("theirs"));
        assert_eq!(setup.at_home("/file (conflict)").as_deref(), Ok("mine"));
    }
}

/// Zeroes were written over other bytes, and the home's file system saw them as a hole. The other
/// bytes remained.
#[test]
fn regression_zeroes_are_stored_over_what_was_there() {
    let rig = Rig::new(1);
    let old = Op::Write("/file".into(), How::Replace, vec![b'x'; 100_000]);
    let before = [old, Op::Link("/file".into(), "/name".into())];
    before.iter().for_each(|op| rig.sim.block_on(perform(&rig.fs, op)).expect("before"));
    let setup = Setup::of(rig, 0);
    let new = ["a".repeat(30_000), "\0".repeat(30_000), "b".repeat(30_000)].concat();
    setup.write("/file", How::At(0), &new);
    setup.online(true);
    assert!(setup.at_home("/name").expect("it is there") == new + &"x".repeat(10_000));
}

/// The home refused stores to a file on a file system that is mounted below the exported directory.
#[test]
fn regression_what_is_on_another_file_system_at_home_is_stored_there() {
    let rig = Rig::new(1);
    let tree = rig.home.lock().clone().expect("home").tree;
    rig.sim.block_on(perform(&tree, &Op::MakeDir("/mounted".into()))).expect("mkdir");
    tree.mount(rig.sim.block_on(find(&tree, "/mounted")).expect("it is there"));
    let setup = Setup::of(rig, 0);
    for text in ["text", "text and more"] {
        setup.write("/mounted/file", How::Replace, text);
        setup.online(true);
        assert_eq!(setup.at_home("/mounted/file").as_deref(), Ok(text));
    }
    assert_eq!(setup.client.look(|replica, _| (replica.log().len(), replica.conflicts().count())), (0, 0));
    assert_eq!(setup.rig.fs.dump().len(), 4, "{:?}", setup.rig.fs.dump());
}

/// An operation could not be done because of a change by others. It counted as done if it had once
/// been sent together with a later one.
#[test]
fn regression_what_was_announced_and_not_done_is_not_taken_for_done() {
    for crashes in [false, true] {
        let rig = Rig::new(1);
        let write = |path: &str, text: &str| Op::Write(path.into(), How::Replace, text.into());
        for path in ["/doc", "/new"] {
            rig.sim.block_on(perform(&rig.fs, &write(path, "old"))).expect("before");
        }
        let setup = Setup::of(rig, 0);
        let tree = || setup.rig.home.lock().clone().expect("home").tree;
        assert_eq!((setup.read("/doc"), setup.read("/new")), ("old".into(), "old".into()));
        setup.online(false);
        setup.write("/new", How::Replace, "mine");
        setup.done(Op::Rename("/new".into(), "/doc".into(), Default::default()));
        setup.done(Op::Link("/doc".into(), "/name".into()));
        // So all operations go in one message.
        setup.rig.sim.block_on(setup.client.send_all()).expect_err("no network");
        tree().fill_up(true);
        setup.online(true);
        setup.online(false);
        if crashes {
            setup.rig.crash_home();
            setup.rig.start_home();
        }
        tree().fill_up(false);
        setup.rig.sim.block_on(perform(&tree(), &write("/doc", "theirs"))).expect("write");
        setup.online(true);
        assert_eq!(setup.at_home("/doc").as_deref(), Ok("theirs"));
        assert_eq!(setup.at_home("/doc (conflict)").as_deref(), Ok("mine"));
        assert_eq!((setup.read("/doc"), setup.read("/doc (conflict)")), ("theirs".into(), "mine".into()));
        let conflicts = setup.client.look(|replica, _| replica.conflicts().map(|(_, t)| t.deed).collect::<Vec<_>>());
        assert_eq!(conflicts, [roam::conflict::Deed::Rename]);
    }
}

/// Does an operation as another program, between two steps of the home.
fn at_once(fs: &vfs::mem::MemFs, op: &Op) {
    let mut doing = std::pin::pin!(perform(fs, op));
    let done = doing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(done, Poll::Ready(Ok(())), "{op:?}");
}

/// The home set a file's mode for a client, and another program wrote right after that. The write
/// counted as that client's doing, and its next store overwrote it.
#[test]
fn regression_what_others_write_while_attributes_are_set_is_theirs() {
    let setup = Setup::new(1);
    let tree = setup.rig.home.lock().clone().expect("home").tree;
    setup.write("/file", How::Replace, "old");
    setup.online(true);
    setup.online(false);
    tree.meddle(Moment::AfterChmod, |fs| at_once(fs, &Op::Write("/file".into(), How::Append, b" and theirs".to_vec())));
    setup.done(Op::SetMode("/file".into(), 0o600));
    setup.write("/file", How::Append, " and mine");
    setup.online(true);
    assert_eq!(setup.at_home("/file").as_deref(), Ok("old and theirs"));
    assert_eq!(setup.at_home("/file (conflict)").as_deref(), Ok("old and mine"));
}

/// The home did a client's store, and another program wrote right after that. The write counted as
/// part of the store: the client showed its own bytes for ever, in the other's length. An ordeal
/// found this.
#[test]
fn regression_what_others_write_while_a_store_is_put_in_place_is_theirs() {
    for has_links in [false, true] {
        let setup = Setup::new(1);
        let tree = setup.rig.home.lock().clone().expect("home").tree;
        setup.write("/file", How::Replace, "old");
        let moment = if has_links {
            setup.done(Op::Link("/file".into(), "/other name".into()));
            Moment::AfterWrite
        } else {
            Moment::AfterRename
        };
        setup.online(true);
        tree.meddle(moment, |fs| at_once(fs, &Op::Write("/file".into(), How::Replace, b"theirs".to_vec())));
        setup.write("/file", How::Replace, "mine, and longer");
        setup.online(true);
        assert!(!tree.is_to_meddle(), "{moment:?} has come");
        assert_eq!(setup.at_home("/file").as_deref(), Ok("theirs"), "{moment:?}");
        assert_eq!(setup.read("/file"), "theirs", "{moment:?}");
    }
}

/// The home had just made a file for a client, and another program wrote to it. The client's store
/// overwrote that.
#[test]
fn regression_what_others_write_to_a_file_as_it_is_made_is_theirs() {
    let setup = Setup::new(1);
    let tree = setup.rig.home.lock().clone().expect("home").tree;
    setup.online(true);
    tree.meddle(Moment::AfterMknod, |fs| at_once(fs, &Op::Write("/file".into(), How::Replace, b"theirs".to_vec())));
    // Too long to come in the same message as the new file.
    let mine = "mine ".repeat(200_000);
    setup.write("/file", How::Replace, &mine);
    setup.online(true);
    assert!(!tree.is_to_meddle());
    assert_eq!(setup.at_home("/file").as_deref(), Ok("theirs"));
    assert_eq!(setup.at_home("/file (conflict)"), Ok(mine));
    assert_eq!(setup.read("/file"), "theirs");
}

/// Another program set a file's mode while the home made its new contents beside it. The file got
/// its former mode again.
#[test]
fn regression_a_mode_that_others_set_while_a_file_is_stored_stays() {
    let setup = Setup::new(1);
    let tree = setup.rig.home.lock().clone().expect("home").tree;
    setup.write("/file", How::Replace, "old");
    setup.online(true);
    tree.meddle(Moment::BeforeRename, |fs| at_once(fs, &Op::SetMode("/file".into(), 0o600)));
    setup.write("/file", How::Replace, "new");
    setup.online(true);
    assert_eq!(setup.at_home("/file").as_deref(), Ok("new"));
    let fs = &setup.rig.fs;
    let attr = setup.rig.sim.block_on(async { fs.getattr(find(fs, "/file").await.expect("file")).await });
    assert_eq!(attr.expect("stat").attr.mode, 0o600);
    assert_eq!(setup.client.look(|replica, _| replica.conflicts().count()), 0);
}

/// The file of a failed store stayed in the home's own folder until the next start.
#[test]
fn regression_what_was_made_of_a_store_that_failed_is_removed() {
    let user = Cred { uid: 1000, gid: 1000, groups: Vec::new() };
    let rig = Rig::new(1);
    let own = |path: &str, gid: u32| {
        let set = SetAttr { uid: Some(user.uid), gid: Some(gid), ..SetAttr::default() };
        let done = async { rig.fs.setattr(&Cred::ROOT, find(&rig.fs, path).await?, None, set).await };
        rig.sim.block_on(done).expect("chown");
    };
    for name in ["/file", "/of-another-group"] {
        rig.sim.block_on(perform(&rig.fs, &Op::Write(name.into(), How::Replace, b"old".to_vec()))).expect("write");
    }
    own("", user.gid);
    own("/.starling", user.gid);
    own("/file", user.gid);
    own("/of-another-group", 50);
    let tree = rig.home.lock().clone().expect("home").tree;
    tree.run_as(user.clone());
    let setup = Setup::of(rig, user.uid);
    let left = || {
        let all = setup.rig.fs.dump().into_iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned());
        all.filter(|path| path.starts_with("/.starling/")).collect::<Vec<_>>()
    };
    setup.write("/of-another-group", How::Replace, "new");
    setup.online(true);
    assert_eq!((setup.at_home("/of-another-group").as_deref(), left()), (Ok("new"), vec![]));
    tree.fill_up(true);
    setup.write("/file", How::Replace, "new");
    setup.online(true);
    assert_eq!((setup.at_home("/file").as_deref(), left()), (Ok("old"), vec![]));
    tree.fill_up(false);
    setup.online(true);
    assert_eq!((setup.at_home("/file").as_deref(), left()), (Ok("new"), vec![]));
}

/// When the home refused a store, for any reason, the client made a copy beside the file, and
/// another one if that was refused, too.
#[test]
fn regression_what_the_home_refuses_to_store_comes_to_rest_and_is_kept() {
    let rig = Rig::new(1);
    let set = |path: &str, mode: u32| {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        let done = async { rig.fs.setattr(&Cred::ROOT, find(&rig.fs, path).await?, None, set).await };
        rig.sim.block_on(done).expect("chmod");
    };
    set("", 0o777);
    rig.sim.block_on(perform(&rig.fs, &Op::Write("/file".into(), How::Replace, b"theirs".to_vec()))).expect("write");
    set("/file", 0o666);
    let (client, network, disk, machine) = rig.client_of(1000, 1, DELAY);
    let fs = rig.fs.clone();
    let setup = Setup { rig, client, network, disk, machine };
    assert_eq!(setup.read("/file"), "theirs");
    setup.online(false);
    setup.write("/file", How::Replace, "mine");
    setup.write("/file", How::Append, " and more");
    setup.rig.sim.block_on(perform(&fs, &Op::SetMode("/file".into(), 0o644))).expect("chmod");
    setup.online(true);
    let setup = setup.restart(true);
    setup.online(true);
    setup.client.look(|replica, _| {
        assert!(replica.log().is_empty(), "{:?}", replica.log().iter().collect::<Vec<_>>());
        let conflicts: Vec<_> = replica.conflicts().map(|(_, conflict)| (conflict.kept > 0, conflict.why())).collect();
        assert_eq!(conflicts, [(true, "the home refuses: access denied".to_string())]);
    });
    assert_eq!((setup.at_home("/file").as_deref(), setup.read("/file")), (Ok("theirs"), "theirs".into()));
    assert_eq!(setup.rig.fs.dump().len(), 3, "{:?}", setup.rig.fs.dump());
}

/// A program set a file's time before it closed the file, as `cp -p` and `tar x` do. The store at
/// the close set the time of the write instead.
#[test]
fn regression_a_time_that_was_set_before_closing_stays() {
    let setup = Setup::new(1);
    setup.write("/file", How::Replace, "text");
    let old = Time { sec: 1_000_000, nsec: 7 };
    let attr = setup.rig.sim.block_on(async {
        let (id, handle) = open_to_write(&setup.client, "/file", How::At(0)).await.expect("open");
        setup.client.write(&Cred::ROOT, id, handle, 0, b"more").await.expect("write");
        let set = SetAttr { mtime: Some(SetTime::At(old)), ..SetAttr::default() };
        setup.client.setattr(&Cred::ROOT, id, Some(handle), set).await.expect("set");
        close(&setup.client, id, handle).await.expect("close");
        setup.client.getattr(id).await.expect("stat").attr
    });
    assert_eq!(attr.mtime, old);
    setup.online(true);
    assert_eq!(setup.at_home("/file").as_deref(), Ok("more"));
    let fs = &setup.rig.fs;
    let at_home = setup.rig.sim.block_on(async { fs.getattr(find(fs, "/file").await.expect("file")).await });
    assert_eq!(at_home.expect("stat").attr.mtime, old);
}

/// A client came back to a near home with a long log. Each close waited for a second.
#[test]
fn regression_nobody_near_home_waits_for_a_long_log() {
    let rig = Rig::new(11);
    // A client that is alone never waits.
    let _other = rig.new_client(2, Duration::from_millis(3));
    let (client, network, disk, machine) = rig.new_client(1, Duration::from_millis(3));
    let setup = Setup { rig, client, network, disk, machine };
    let waiting = || setup.client.look(|replica, _| replica.log().len());
    setup.done(Op::List(String::new()));
    setup.write("/before", How::Replace, "short");
    assert_eq!(
        setup.at_home("/before").as_deref(),
        Ok("short"),
        "with a short log, a close waits until the home has seen the file"
    );
    setup.online(false);
    (0..1000).for_each(|n| setup.write(&format!("/file-{n}"), How::Replace, "without a network"));
    setup.network.up.store(true, Relaxed);
    while setup.client.look(|_, state| state == LinkState::Disconnected) {
        setup.rig.sim.run_for(Duration::from_millis(10));
    }
    assert!(waiting() > 1000);
    setup.write("/after", How::Replace, "at once");
    assert!(waiting() > 1000, "the close waited for the home");
    setup.online(true);
    assert_eq!((waiting(), setup.at_home("/after").as_deref()), (0, Ok("at once")));
}

/// A client made a directory, and others removed it, which the client saw. Then the home said again
/// that the directory had been made, and the client believed that it was there.
#[test]
fn regression_a_late_answer_brings_nothing_back() {
    let setup = Setup::new(1);
    let others = setup.rig.home.lock().clone().expect("home").tree;
    setup.done(Op::List(String::new()));
    setup.network.lose_answers.store(true, Relaxed);
    setup.done(Op::MakeDir("/dir".into()));
    setup.rig.sim.run_for(Duration::from_secs(2));
    setup.network.lose_answers.store(false, Relaxed);
    setup.rig.sim.block_on(perform(&others, &Op::RemoveDir("/dir".into()))).expect("the directory was made");
    setup.rig.sim.run_for(Duration::from_secs(1));
    setup.done(Op::List(String::new()));
    assert_eq!(setup.client.look(|replica, _| replica.log().len()), 1, "the answer came");
    setup.online(true);
    assert_eq!(setup.client.look(|replica, _| replica.log().len()), 0);
    assert_eq!(setup.rig.sim.block_on(find(&setup.client, "/dir")).err(), Some(FsError::NotFound));
    assert_eq!(setup.rig.sim.block_on(vfs::tree::walk(&setup.client)).expect("walk").len(), 1);
}

/// An answer that came late told attributes of a directory. They counted although the home had told
/// others since.
#[test]
fn regression_a_late_answer_changes_no_attributes_back() {
    let setup = Setup::new(1);
    let others = setup.rig.home.lock().clone().expect("home").tree;
    let links =
        |fs: &dyn FileSystem| setup.rig.sim.block_on(fs.getattr(FileId::ROOT).into_future()).expect("stat").attr.nlink;
    setup.done(Op::List(String::new()));
    setup.network.answer_lag_ms.store(5000, Relaxed);
    setup.done(Op::MakeDir("/mine".into()));
    setup.rig.sim.run_for(Duration::from_secs(2));
    setup.network.answer_lag_ms.store(0, Relaxed);
    setup.rig.sim.block_on(perform(&others, &Op::MakeDir("/theirs".into()))).expect("mkdir");
    setup.rig.sim.run_for(Duration::from_secs(1));
    setup.done(Op::List(String::new()));
    assert_eq!(setup.client.look(|replica, _| replica.log().len()), 1, "the answer has come already");
    setup.rig.sim.run_for(Duration::from_secs(60));
    assert_eq!(setup.client.look(|replica, _| replica.log().len()), 0);
    assert_eq!(links(&setup.client), links(&setup.rig.fs) - 1, "all links but that of the home's own folder");
}

/// A client had made a directory, and the home had not heard of it. When something could have
/// changed there, programs that looked into it were told that it was gone.
#[test]
fn regression_a_directory_that_the_home_has_not_heard_of_is_not_gone() {
    let setup = Setup::new(1);
    let anything_may_have_changed = |count| {
        setup.client.set(|settings| settings.validation = Validation::Files(count));
        setup.rig.sim.run_for(Duration::from_secs(1));
    };
    let names = |path: &str| {
        setup.rig.sim.block_on(async {
            let dir = find(&setup.client, path).await?;
            let handle = setup.client.opendir(&Cred::ROOT, dir).await?;
            setup.client.readdir(dir, handle, 2, 10, false).await.map(|all| all.len())
        })
    };
    setup.done(Op::List(String::new()));
    setup.online(false);
    setup.client.pin(Some(LinkState::FetchOnly));
    setup.done(Op::MakeDir("/waits".into()));
    setup.write("/waits/file", How::Replace, "text");
    setup.online(true);
    anything_may_have_changed(1);
    assert_eq!(names("/waits"), Ok(1));
    setup.client.pin(None);
    setup.online(true);
    setup.network.lag_ms.store(5000, Relaxed);
    setup.done(Op::MakeDir("/on-its-way".into()));
    setup.rig.sim.run_for(Duration::from_millis(100));
    setup.network.lag_ms.store(0, Relaxed);
    anything_may_have_changed(2);
    assert_eq!(setup.client.look(|replica, _| replica.log().len()), 1);
    assert_eq!(names("/on-its-way"), Ok(0));
    // The client sees what others put into it all the same.
    setup.online(true);
    setup.rig.sim.block_on(perform(&setup.rig.fs, &Op::MakeDir("/on-its-way/theirs".into()))).expect("it is there");
    setup.rig.home.lock().as_ref().expect("home").tree.lose_events();
    setup.rig.sim.run_for(Duration::from_secs(5));
    assert_eq!(names("/on-its-way"), Ok(1));
}

/// Saves as many editors do: writes another file, and moves it over this one.
fn save(setup: &Setup, text: &str) {
    setup.write("/.saved", How::Replace, text);
    setup.done(Op::Rename("/.saved".into(), "/file".into(), RenameFlags::default()));
}

/// A file that was saved in that way had changed at home. The saved version stayed under a name
/// that the user does not know, and could not be chosen.
#[test]
fn regression_what_is_saved_by_way_of_another_name_is_beside_what_has_changed_at_home() {
    for saved_at_home in [false, true] {
        let setup = Setup::new(1);
        setup.done_at_home(Op::Write("/file".into(), How::Replace, "old".into()));
        setup.read("/file");
        setup.online(false);
        save(&setup, "first");
        save(&setup, "mine");
        setup.write("/file", How::Append, " and more");
        match saved_at_home {
            true => {
                setup.done_at_home(Op::Write("/other".into(), How::Replace, "theirs".into()));
                setup.done_at_home(Op::Rename("/other".into(), "/file".into(), RenameFlags::default()));
            }
            false => setup.done_at_home(Op::Write("/file".into(), How::Replace, "theirs".into())),
        }
        setup.online(true);
        assert_eq!(setup.at_home("/file").as_deref(), Ok("theirs"));
        assert_eq!(setup.at_home("/file (conflict)").as_deref(), Ok("mine and more"));
        assert_eq!((setup.read("/file"), setup.read("/file (conflict)")), ("theirs".into(), "mine and more".into()));
        assert_eq!(setup.at_home("/.saved"), Err(FsError::NotFound));
        let (mine, base) = setup.client.look(|replica, _| {
            let all: Vec<_> = replica.conflicts().map(|(_, conflict)| (conflict.mine.clone(), conflict.base)).collect();
            assert_eq!(all.len(), 1, "{all:?}");
            all[0].clone()
        });
        assert_eq!(mine.map(|(_, name)| name), Some(b"file (conflict)".to_vec()));
        assert!(base > 0, "the base is unknown");
    }
}

#[test]
fn two_who_have_saved_the_same_by_way_of_other_names_are_of_one_mind() {
    for saved_at_home in [false, true] {
        let setup = Setup::new(1);
        setup.done_at_home(Op::Write("/file".into(), How::Replace, "old".into()));
        setup.read("/file");
        setup.online(false);
        save(&setup, "same");
        match saved_at_home {
            true => {
                setup.done_at_home(Op::Write("/other".into(), How::Replace, "same".into()));
                setup.done_at_home(Op::Rename("/other".into(), "/file".into(), RenameFlags::default()));
            }
            false => setup.done_at_home(Op::Write("/file".into(), How::Replace, "same".into())),
        }
        setup.online(true);
        assert_eq!(setup.at_home("/file").as_deref(), Ok("same"));
        assert_eq!(setup.client.look(|replica, _| replica.conflicts().count()), 0);
        assert_eq!(setup.read("/file"), "same");
    }
}

/// A saved version waited, its file was being written anew, and the version had to go beside the
/// home's. It went home half written.
#[test]
fn regression_what_goes_beside_is_what_was_saved() {
    for len in [10, 100_000] {
        let (setup, saved) = (Setup::new(1), "saved ".repeat(len));
        setup.done_at_home(Op::Write("/file".into(), How::Replace, "old".into()));
        setup.read("/file");
        setup.online(false);
        save(&setup, "first");
        setup.write("/file", How::Replace, &saved);
        setup.done_at_home(Op::Write("/file".into(), How::Replace, "theirs".into()));
        setup.rig.sim.block_on(async {
            let (id, handle) = open_to_write(&setup.client, "/file", How::Replace).await.unwrap();
            setup.client.write(&Cred::ROOT, id, handle, 0, b"half").await.unwrap();
        });
        setup.online(true);
        assert_eq!(setup.at_home("/file").as_deref(), Ok("theirs"));
        assert!(setup.at_home("/file (conflict)").as_deref() == Ok(&saved), "{len}");
    }
}

/// A file lost its last name here, and got another one at home. A lookup of that name failed.
#[test]
fn regression_what_has_a_name_at_home_is_found() {
    for lists in [false, true] {
        let setup = Setup::new(1);
        setup.done_at_home(Op::Write("/a".into(), How::Replace, "old".into()));
        setup.read("/a");
        setup.client.set(|settings| settings.writes = Writes::Manual);
        setup.online(false);
        setup.done(Op::Unlink("/a".into()));
        setup.done_at_home(Op::Write("/a".into(), How::Replace, "theirs".into()));
        setup.done_at_home(Op::Rename("/a".into(), "/b".into(), RenameFlags::default()));
        setup.online(true);
        if lists {
            setup.done(Op::List(String::new()));
        }
        // An operation on this file waits, so the client does not take over others' contents yet.
        assert_eq!(setup.read("/b"), "old");
        setup.client.set(|settings| settings.writes = Writes::Lottery);
        setup.rig.sim.run_for(Duration::from_secs(60));
        assert_eq!(setup.client.look(|replica, _| replica.log().len()), 0);
        assert_eq!(setup.read("/b"), "theirs");
        assert_eq!(setup.at_home("/a"), Err(FsError::NotFound));
    }
}

/// A store moves the times of its directory, and that is no news for others. The home took a file
/// that was made there in the same tick of its clock for no news, either.
#[test]
fn regression_what_is_made_in_the_moment_of_a_store_is_news() {
    let setup = Setup::new(1);
    setup.done_at_home(Op::Write("/file".into(), How::Replace, "old".into()));
    let (other, ..) = setup.rig.new_client(2, Duration::from_millis(50));
    setup.rig.sim.run_for(Duration::from_secs(60));
    let seen = || setup.rig.sim.block_on(find(&other, "/new")).map(drop);
    assert_eq!(seen(), Err(FsError::NotFound));
    setup.read("/file");
    setup.online(false);
    setup.write("/file", How::Append, "new");
    setup.write("/new", How::Append, "new");
    setup.online(true);
    assert_eq!(setup.at_home("/new").as_deref(), Ok("new"));
    assert_eq!(seen(), Ok(()));
}

/// The names of the root were unknown until a program looked at it. After `connect off` nothing
/// could be made there.
#[test]
fn regression_a_new_mount_can_be_worked_on_after_it_got_ready() {
    let setup = Setup::new(1);
    setup.rig.sim.run_for(Duration::from_secs(5));
    setup.rig.sim.block_on(setup.client.get_ready(Duration::from_secs(10), |_| {}));
    setup.online(false);
    setup.done(Op::MakeDir("/dir".into()));
    setup.done(Op::Write("/dir/file".into(), How::Replace, b"text".to_vec()));
    setup.online(true);
    setup.rig.sim.run_for(Duration::from_secs(60));
    assert_eq!(setup.at_home("/dir/file").as_deref(), Ok("text"));
}
