//! Changes that other programs make to the home's files while the home is down, or while a
//! directory is closed to a user.

use crate::rig::Rig;
use crate::rig::session::{How, Op, find, perform, read_all_as};
use crate::rig::setup::Setup;
use std::time::Duration;
use types::FsError;
use vfs::fs::Cred;

const USER: u32 = 1000;

fn at_home(setup: &Setup, op: Op) {
    setup.rig.sim.block_on(perform(&setup.rig.fs, &op)).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    setup.rig.sync();
}

fn text(path: &str, text: &str) -> Op {
    Op::Write(path.into(), How::Replace, text.as_bytes().to_vec())
}

/// A file with two names was changed without a network. The home crashes `steps` steps after it
/// begins to take the change. Returns whether it has crashed.
fn crash_in_place(steps: u64, mine: Op) -> (Setup, bool) {
    let setup = Setup::new(steps);
    setup.done(text("/file", &"old ".repeat(8)));
    setup.done(Op::Link("/file".into(), "/link".into()));
    setup.online(true);
    setup.online(false);
    setup.done(mine);
    let home = setup.rig.home.lock().clone().expect("home");
    home.machine.crash_after(steps);
    setup.online(true);
    let crashed = !home.machine.is_up();
    home.machine.crash_after(u64::MAX);
    if crashed {
        setup.rig.crash_home();
    }
    (setup, crashed)
}

/// The home changes a file with two names, which it does in place, and crashes after `steps` steps.
/// Another program changes the file before the home starts again. True if the home has crashed.
fn changed_while_the_home_is_down(steps: u64, theirs: Op, expected: &dyn Fn(&str) -> bool) -> bool {
    let mine = "mine".repeat(8);
    let (setup, crashed) = crash_in_place(steps, text("/file", &mine));
    if !crashed {
        return false;
    }
    let was_done = setup.at_home("/file").as_deref() == Ok(&mine);
    at_home(&setup, theirs);
    setup.rig.start_home();
    setup.rig.sim.run_for(Duration::from_secs(120));
    let now = setup.at_home("/file").expect("file");
    assert!(expected(&now), "{steps} steps: {now}");
    let waits = setup.client.look(|replica, _| replica.log().len());
    assert_eq!(waits, 0, "{steps} steps");
    let copy = setup.at_home("/file (conflict)");
    assert!(copy == Ok(mine) || was_done && copy == Err(FsError::NotFound), "{steps} steps: {copy:?}");
    true
}

/// The home took a change by another program for a part of the client's change, and overwrote it.
#[test]
fn regression_what_is_changed_while_the_home_is_down_is_not_the_clients() {
    for steps in 0.. {
        let theirs = text("/file", "THEIRS");
        if !changed_while_the_home_is_down(steps, theirs, &|now| now == "THEIRS") {
            assert!(steps > 20, "the home has crashed at too few steps");
            break;
        }
    }
    for steps in 0.. {
        // The other program changes only a part of the file.
        let theirs = Op::Write("/file".into(), How::At(3), b"THEIRS".to_vec());
        if !changed_while_the_home_is_down(steps, theirs, &|now| now.contains("THEIRS")) {
            break;
        }
    }
}

/// If no other program has changed the file meanwhile, there is no conflict.
#[test]
fn what_is_half_done_when_the_home_crashes_is_done_when_it_is_asked_for_again() {
    for steps in 0.. {
        let (setup, crashed) = crash_in_place(steps, Op::Write("/file".into(), How::At(6), b"mine".to_vec()));
        if crashed {
            setup.rig.lose_power(steps % 2 == 0);
            setup.rig.start_home();
            setup.rig.sim.run_for(Duration::from_secs(120));
        }
        assert_eq!(setup.at_home("/file").as_deref(), Ok("old olmined old old old old old "), "{steps}");
        assert_eq!(setup.client.look(|replica, _| (replica.conflicts().count(), replica.log().len())), (0, 0));
        if !crashed {
            assert!(steps > 0, "nothing crashed");
            break;
        }
    }
}

/// The home had stored all of a file in place when it crashed, and another program removed the copy
/// of the former contents. The home then took its own store for a change by others.
#[test]
fn regression_what_is_stored_in_place_as_a_whole_needs_no_copy_of_what_was_there() {
    let mut stored = 0;
    for steps in 0.. {
        let (setup, crashed) = crash_in_place(steps, text("/file", "mine"));
        if !crashed {
            assert!(steps > 0, "nothing crashed");
            break;
        }
        let is_stored = setup.at_home("/file").as_deref() == Ok("mine");
        let all = setup.rig.fs.dump().into_iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned());
        let copies = all.filter(|path| path.starts_with("/.starling/before-"));
        let copies: Vec<String> = copies.collect();
        stored += u64::from(is_stored && !copies.is_empty());
        copies.into_iter().for_each(|copy| at_home(&setup, Op::Unlink(copy)));
        setup.rig.start_home();
        setup.rig.sim.run_for(Duration::from_secs(120));
        assert_eq!(setup.client.look(|replica, _| replica.log().len()), 0, "{steps} steps");
        let copy = setup.at_home("/file (conflict)");
        match copy {
            Ok(copy) => assert!(!is_stored && copy == "mine", "{steps} steps: {copy}"),
            Err(error) => assert_eq!((error, setup.at_home("/file")), (FsError::NotFound, Ok("mine".into()))),
        }
    }
    assert!(stored > 0, "the home has never crashed when all was stored");
}

/// The home never told of a change below a directory that was closed to the user, not even when the
/// directory was opened.
#[test]
fn regression_what_changed_below_a_closed_directory_is_told_when_it_opens() {
    for (is_away, is_moved) in [(false, false), (true, false), (false, true), (true, true)] {
        let rig = Rig::new(1);
        for op in [Op::MakeDir("/dir".into()), Op::MakeDir("/dir/below".into()), text("/dir/below/file", "old")] {
            rig.sim.block_on(perform(&rig.fs, &op)).expect("made");
        }
        let setup = Setup::of(rig, USER);
        let user = Cred { uid: USER, gid: USER, groups: Vec::new() };
        let read = |path: &str| {
            let read = async { read_all_as(&user, &setup.client, find(&setup.client, path).await?).await };
            setup.rig.sim.block_on(read).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        };
        let noticed = |op: Op| {
            let tree = setup.rig.home.lock().clone().expect("home").tree;
            setup.rig.sim.block_on(perform(&tree, &op)).expect("it is done");
            setup.rig.sim.run_for(Duration::from_secs(5));
        };
        assert_eq!(read("/dir/below/file").as_deref(), Ok("old"));
        noticed(Op::SetMode("/dir".into(), 0o700));
        noticed(text("/dir/below/file", "new"));
        // The client knows of all that it may know of until now.
        noticed(text("/other", "text"));
        if is_away {
            setup.online(false);
        }
        match is_moved {
            true => noticed(Op::Rename("/dir/below".into(), "/below".into(), Default::default())),
            false => noticed(Op::SetMode("/dir".into(), 0o755)),
        }
        setup.online(true);
        let path = if is_moved { "/below/file" } else { "/dir/below/file" };
        assert_eq!(read(path).as_deref(), Ok("new"), "away: {is_away}, moved: {is_moved}");
    }
}
