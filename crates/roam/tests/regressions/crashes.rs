//! What is there after a crash, or a loss of power, of a client or of the home.

use super::*;

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
