//! Bugs that storms found, each reduced to the steps that show it: of names, times and answers
//! here.
//!
//! - `crashes`: what is there after a crash; `refusals`: what the home cannot do as it was;
//!   `others`: what other programs do at home in the same moment.

#[path = "regressions/crashes.rs"]
mod crashes;
#[path = "regressions/others.rs"]
mod others;
#[path = "regressions/refusals.rs"]
mod refusals;
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

/// The home missed what others did, and looked at all directories. One that it could not list ended
/// that, and clients kept old contents of the others for ever.
#[test]
fn regression_a_directory_that_cannot_be_listed_does_not_hide_the_others() {
    let setup = Setup::new(1);
    for dir in ["/a", "/z"] {
        setup.done_at_home(Op::MakeDir(dir.into()));
        setup.done_at_home(Op::Write(format!("{dir}/file"), How::Replace, "old".into()));
        assert_eq!(setup.read(&format!("{dir}/file")), "old");
        setup.done(Op::List(dir.into()));
    }
    setup.rig.sim.run_for(Duration::from_secs(1));
    let (tree, fs) = (setup.rig.home.lock().clone().expect("home").tree, setup.rig.fs.clone());
    setup.rig.sim.block_on(async {
        tree.close_off(find(&fs, "/z").await.expect("it is there"));
        perform(&fs, &Op::Write("/a/file".into(), How::Replace, "new".into())).await.expect("write");
    });
    tree.lose_events();
    setup.rig.sim.run_for(Duration::from_secs(5));
    assert_eq!(setup.read("/a/file"), "new");
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
