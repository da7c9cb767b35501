//! Homes and caches that are restored from backups, and know less than the other side.

use crate::rig::Rig;
use crate::rig::session::{How, Op, close, find, perform, read_all};
use crate::rig::setup::Setup;
use host::sim::{DiskSnapshot, SimDisk};
use roam_proto::message::User;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::{FileId, FsError};
use vfs::FileSystem;
use vfs::fs::{Cred, OpenFlags};

fn write(setup: &Setup, path: &str, text: &str) {
    setup.done(Op::Write(path.into(), How::Replace, text.as_bytes().to_vec()));
}

fn write_at_home(setup: &Setup, path: &str, text: &str) {
    let op = Op::Write(path.into(), How::Replace, text.as_bytes().to_vec());
    setup.rig.sim.block_on(perform(&setup.rig.fs, &op)).expect("another program writes");
    setup.rig.sync();
}

fn here(setup: &Setup, path: &str) -> Result<String, FsError> {
    let read = async { read_all(&setup.client, find(&setup.client, path).await?).await };
    setup.rig.sim.block_on(read).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A home whose state is restored to a time before a file was changed again and again: by the home
/// for a client, or by another program, which leaves it the same file to the file system behind.
/// Since the crash, another program has changed that file and `change_count` others.
fn restored(by_home: bool, change_count: usize) -> Setup {
    let setup = Setup::new(1);
    write(&setup, "/file", "one");
    setup.online(true);
    let backup = setup.rig.disk.snapshot();
    for round in 0..6 {
        let text = format!("round {round}");
        if by_home {
            write(&setup, "/file", &text);
        } else {
            let tree = setup.rig.home.lock().clone().expect("home").tree;
            let op = Op::Write("/file".into(), How::Replace, text.clone().into_bytes());
            setup.rig.sim.block_on(perform(&tree, &op)).expect("another program writes");
        }
        setup.online(true);
        assert_eq!(setup.at_home("/file"), Ok(text.clone()));
        assert_eq!(here(&setup, "/file"), Ok(text));
    }
    setup.online(false);
    setup.rig.crash_home();
    setup.rig.disk.restore(&backup);
    write_at_home(&setup, "/file", "THEIRS");
    for number in 0..change_count {
        write_at_home(&setup, &format!("/other{number}"), "text");
    }
    setup
}

/// The home gave the same numbers again. The client took changes by others for what it knew, and
/// overwrote them.
#[test]
fn regression_what_a_restored_home_has_is_not_taken_for_what_a_client_knows() {
    for (by_home, change_count) in (0..8).map(|n| (n % 2 == 0, n / 2)) {
        let setup = restored(by_home, change_count);
        setup.done(Op::Write("/file".into(), How::At(0), b"mine".to_vec()));
        setup.rig.start_home();
        setup.online(true);
        setup.rig.sim.run_for(Duration::from_secs(60));
        assert_eq!(setup.at_home("/file").as_deref(), Ok("THEIRS"), "{change_count}");
        assert_eq!(setup.at_home("/file (conflict)").as_deref(), Ok("mined 5"), "{change_count}");
        assert_eq!(setup.client.look(|replica, _| (replica.conflicts().count(), replica.log().len())), (1, 0));
    }
}

/// The change of another program had the number of the version that the client had cached.
#[test]
fn regression_what_is_cached_of_another_life_of_the_home_is_asked_for_again() {
    for (by_home, change_count) in (0..8).map(|n| (n % 2 == 0, n / 2)) {
        let setup = restored(by_home, change_count);
        setup.rig.start_home();
        setup.online(true);
        assert_eq!(here(&setup, "/file").as_deref(), Ok("THEIRS"), "{change_count}");
    }
}

/// A restored cache made a file with an id that the original had used. The home did not make it,
/// and said that it had.
#[test]
fn regression_what_a_restored_cache_makes_is_made() {
    let setup = Setup::new(1);
    setup.done(Op::List("/".into()));
    setup.rig.sim.run_for(Duration::from_secs(5));
    let backup = setup.disk.snapshot();
    setup.done(Op::MakeDir("/dir".into()));
    for path in ["/first", "/second", "/dir/third"] {
        write(&setup, path, path);
    }
    setup.online(true);
    assert_eq!(setup.at_home("/dir/third").as_deref(), Ok("/dir/third"));

    let Setup { rig, client, network, disk, machine } = setup;
    network.up.store(false, Relaxed);
    machine.crash();
    drop(client);
    disk.restore(&backup);
    let machine = rig.sim.machine("laptop 1");
    let client = rig.client(&machine, &disk, &network);
    let setup = Setup { rig, client, network, disk, machine };
    for path in ["/new", "/newer"] {
        write(&setup, path, path);
    }
    setup.done(Op::MakeDir("/new-dir".into()));
    write(&setup, "/new-dir/file", "deep");
    setup.online(true);
    setup.rig.sim.run_for(Duration::from_secs(60));
    for path in ["/first", "/second", "/dir/third", "/new", "/newer"] {
        assert_eq!(setup.at_home(path).as_deref(), Ok(path));
        assert_eq!(here(&setup, path).as_deref(), Ok(path));
    }
    assert_eq!(setup.at_home("/new-dir/file").as_deref(), Ok("deep"));
    assert_eq!(setup.client.look(|replica, _| (replica.conflicts().count(), replica.log().len())), (0, 0));
}

const FILE: &str = "/dir/below/file";

/// A client and a backup of its home from before the home knew the client's file. With `has_begun`,
/// the client had attached before the backup.
fn known_after_the_backup(has_begun: bool) -> (Setup, DiskSnapshot) {
    let rig = Rig::new(1);
    for op in [
        Op::MakeDir("/dir".into()),
        Op::MakeDir("/dir/below".into()),
        Op::Write(FILE.into(), How::Replace, b"one".to_vec()),
    ] {
        rig.sim.block_on(perform(&rig.fs, &op)).expect("made");
    }
    let network = rig.network(1, Duration::from_millis(50));
    rig.enroll(&network, User { uid: 0, gid: 0, groups: Vec::new() });
    let mut backup = rig.disk.snapshot();
    let (machine, disk) = (rig.sim.machine("laptop 1"), SimDisk::new(&rig.sim, 1 << 30));
    let client = rig.client(&machine, &disk, &network);
    let setup = Setup { rig, client, network, disk, machine };
    setup.online(true);
    if has_begun {
        setup.done(Op::List("/".into()));
        setup.online(true);
        backup = setup.rig.disk.snapshot();
    }
    assert_eq!(here(&setup, FILE).as_deref(), Ok("one"));
    (setup, backup)
}

/// Nothing had changed since the backup that the home knows. So the client counted as current, and
/// never heard of changes of files that the home did not know.
#[test]
fn regression_files_that_a_restored_home_does_not_know_are_asked_for_again() {
    let (setup, backup) = known_after_the_backup(true);
    setup.online(false);
    setup.rig.crash_home();
    setup.rig.disk.restore(&backup);
    write_at_home(&setup, FILE, "THEIRS");
    setup.rig.start_home();
    setup.online(true);
    assert_eq!(here(&setup, FILE).as_deref(), Ok("THEIRS"));
    write(&setup, FILE, "mine");
    setup.online(true);
    assert_eq!(setup.at_home(FILE).as_deref(), Ok("mine"));
    assert_eq!(setup.client.look(|replica, _| (replica.conflicts().count(), replica.log().len())), (0, 0));
}

/// The home refused files that were made with ids which it had given since the backup.
#[test]
fn regression_what_is_made_with_ids_that_a_restored_home_has_forgotten_is_made() {
    let (setup, backup) = known_after_the_backup(false);
    setup.online(false);
    setup.rig.crash_home();
    setup.rig.disk.restore(&backup);
    write(&setup, "/new", "text");
    setup.rig.start_home();
    setup.online(true);
    assert_eq!(setup.at_home("/new").as_deref(), Ok("text"));
    assert_eq!(setup.client.look(|replica, _| (replica.conflicts().count(), replica.log().len())), (0, 0));
}

/// The file got another id. Programs that had it open got EBADF, and their writes never went home.
#[test]
fn regression_what_is_open_stays_open_when_it_gets_another_id() {
    let (setup, backup) = known_after_the_backup(false);
    setup.online(false);
    setup.rig.crash_home();
    setup.rig.disk.restore(&backup);
    let root = FileId::ROOT;
    let client = &setup.client;
    let (id, handle) = setup.rig.sim.block_on(async {
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let made = client.create(&Cred::ROOT, root, b"new", 0o644, 0, flags).await.expect("created");
        (made.0.attr.id, made.1)
    });
    setup.rig.start_home();
    setup.online(true);
    setup.rig.sim.block_on(async {
        client.write(&Cred::ROOT, id, handle, 0, b"text").await.expect("it is open");
        assert_eq!(client.getattr(id).await.expect("it is there").attr.size, 4);
        close(client, id, handle).await.expect("closed");
    });
    setup.online(true);
    assert_eq!(setup.at_home("/new").as_deref(), Ok("text"));
    assert_eq!(setup.client.look(|replica, _| (replica.conflicts().count(), replica.log().len())), (0, 0));
}
