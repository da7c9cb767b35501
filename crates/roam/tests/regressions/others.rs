//! What other programs do at home in the moment in which a client's operation is done there.

use super::*;

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
