//! What the home cannot do as it was, and what becomes of it.

use super::*;

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
