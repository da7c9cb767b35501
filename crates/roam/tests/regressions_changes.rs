//! Former bugs with saved versions that met a conflict while their file was being changed again.

mod rig;

use rig::session::{How, Op, close, find, open_to_write, perform, read_all};
use rig::setup::Setup;
use std::future::Future;
use std::time::Duration;
use types::{FileId, FsError};
use vfs::fs::{Cred, Fallocate, FileSystem, Handle, SetAttr};

/// Length of the saved version: more than what the client sets aside in memory.
const MINE_LEN: usize = 200_000;
/// Longest file that the disk of a cache takes.
const FILE_LEN_MAX: u64 = 1 << 40;

impl Setup {
    fn read(&self, path: &str) -> Result<String, FsError> {
        let read = self.rig.sim.block_on(async { read_all(&self.client, find(&self.client, path).await?).await });
        read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn open(&self, path: &str) -> (FileId, Handle) {
        self.rig.sim.block_on(open_to_write(&self.client, path, How::At(0))).expect("open")
    }

    fn close(&self, (id, handle): (FileId, Handle)) {
        self.rig.sim.block_on(close(&self.client, id, handle)).expect("close");
    }

    fn cut(&self, id: FileId, handle: Option<Handle>, size: u64) -> Result<(), FsError> {
        let size = SetAttr { size: Some(size), ..SetAttr::default() };
        self.rig.sim.block_on(self.client.setattr(&Cred::ROOT, id, handle, size).into_future()).map(drop)
    }

    /// Another program changes a file at home.
    fn theirs(&self, text: &str) {
        let tree = self.rig.home.lock().clone().expect("home").tree;
        let op = Op::Write("/file".into(), How::Replace, text.into());
        self.rig.sim.block_on(perform(&tree, &op)).expect("written at home");
    }

    /// A client that has saved a file without a network, while others have changed it at home.
    /// Returns the saved contents, too.
    fn in_conflict(seed: u64) -> (Setup, String) {
        let setup = Setup::new(seed);
        let mine = "mine ".repeat(MINE_LEN / 5);
        setup.theirs("old");
        setup.rig.sim.run_for(Duration::from_secs(5));
        assert_eq!(setup.read("/file").as_deref(), Ok("old"));
        setup.online(false);
        setup.done(Op::Write("/file".into(), How::Replace, mine.clone().into()));
        setup.theirs("theirs");
        (setup, mine)
    }

    /// Checks that both versions are on the mount and at home.
    fn both_are_there(&self, mine: &str) {
        self.rig.sim.run_for(Duration::from_secs(60));
        assert_eq!(self.at_home("/file").as_deref(), Ok("theirs"));
        assert_eq!(self.at_home("/file (conflict)").map(|text| text == mine), Ok(true), "the saved version at home");
        assert_eq!(self.read("/file").as_deref(), Ok("theirs"));
        assert_eq!(self.read("/file (conflict)").map(|text| text == mine), Ok(true), "the saved version here");
    }
}

/// A program opened a file for reading and writing while another could map it, which made the file
/// ready to be changed. That nothing was changed since counted for the waiting version, too.
#[test]
fn regression_a_saved_version_is_kept_while_somebody_may_store_to_a_mapping() {
    let (setup, mine) = Setup::in_conflict(1);
    let (id, handle) = setup.open("/file");
    setup.rig.sim.block_on(setup.client.will_be_mapped(id, handle).into_future()).expect("ready");
    setup.online(true);
    setup.close((id, handle));
    setup.both_are_there(&mine);
}

/// The same after fsync, which makes the file ready to be changed again.
#[test]
fn regression_a_synced_version_is_kept_while_its_writer_has_it_open() {
    let (setup, mut mine) = Setup::in_conflict(2);
    let (id, handle) = setup.open("/file");
    setup.rig.sim.block_on(async {
        setup.client.will_be_mapped(id, handle).await.expect("ready");
        setup.client.write(&Cred::ROOT, id, handle, 0, b"MINE").await.expect("written");
        setup.client.fsync(id, handle, false).await.expect("synced");
    });
    mine.replace_range(..4, "MINE");
    setup.online(true);
    setup.close((id, handle));
    setup.both_are_there(&mine);
}

/// A write that finds no room to set aside what waits, before it changes anything.
#[test]
fn regression_a_saved_version_is_kept_when_the_disk_is_full_before_the_next_change() {
    let (setup, mine) = Setup::in_conflict(3);
    let opened = setup.open("/file");
    let space = setup.rig.sim.block_on(setup.disk.mount(&setup.machine).space()).expect("space");
    setup.disk.set_capacity(space.total_bytes - space.free_bytes);
    let written = setup.rig.sim.block_on(setup.client.write(&Cred::ROOT, opened.0, opened.1, 0, b"MINE").into_future());
    assert_eq!(written.map(drop), Err(FsError::NoSpace));
    setup.online(true);
    setup.disk.set_capacity(1 << 30);
    setup.close(opened);
    setup.both_are_there(&mine);
}

/// The disk refuses to make the file as long as the truncate asks for.
#[test]
fn regression_a_saved_version_is_kept_when_a_truncate_is_refused() {
    let (setup, mine) = Setup::in_conflict(4);
    setup.disk.set_file_len_max(FILE_LEN_MAX);
    let (id, handle) = setup.open("/file");
    assert_eq!(setup.cut(id, Some(handle), FILE_LEN_MAX + 1), Err(FsError::FileTooLarge));
    setup.online(true);
    setup.close((id, handle));
    setup.both_are_there(&mine);
}

/// After a refused truncate, a file that was not open counted as being changed for ever. So the
/// client did not see changes by others.
#[test]
fn regression_others_are_seen_after_a_truncate_was_refused() {
    let setup = Setup::new(5);
    setup.theirs("old");
    assert_eq!(setup.read("/file").as_deref(), Ok("old"));
    setup.disk.set_file_len_max(FILE_LEN_MAX);
    let id = setup.rig.sim.block_on(find(&setup.client, "/file")).expect("file");
    assert_eq!(setup.cut(id, None, FILE_LEN_MAX + 1), Err(FsError::FileTooLarge));
    setup.theirs("theirs");
    setup.rig.sim.run_for(Duration::from_secs(60));
    assert_eq!(setup.read("/file").as_deref(), Ok("theirs"));
}

/// A client accepted files that its home could not hold, and the home refused them when they came.
#[test]
fn regression_files_longer_than_a_home_can_hold_are_refused_at_once() {
    let setup = Setup::new(6);
    setup.theirs("old");
    assert_eq!(setup.read("/file").as_deref(), Ok("old"));
    setup.rig.home.lock().clone().expect("home").tree.limit(FILE_LEN_MAX);
    let setup = setup.restart(false);
    setup.online(true);
    setup.online(false);
    let refuses = |setup: &Setup| {
        let (id, handle) = setup.open("/file");
        let write = |offset| setup.client.write(&Cred::ROOT, id, handle, offset, b"12").into_future();
        let allocate = setup.client.fallocate(&Cred::ROOT, id, handle, FILE_LEN_MAX, 1, Fallocate::Allocate);
        assert_eq!(setup.cut(id, Some(handle), FILE_LEN_MAX + 1), Err(FsError::FileTooLarge));
        assert_eq!(setup.cut(id, None, FILE_LEN_MAX + 1), Err(FsError::FileTooLarge));
        assert_eq!(setup.rig.sim.block_on(write(FILE_LEN_MAX - 1)), Err(FsError::FileTooLarge));
        assert_eq!(setup.rig.sim.block_on(allocate.into_future()), Err(FsError::FileTooLarge));
        setup.close((id, handle));
    };
    refuses(&setup);
    let setup = setup.restart(false);
    refuses(&setup);
    let id = setup.rig.sim.block_on(find(&setup.client, "/file")).expect("file");
    setup.cut(id, None, FILE_LEN_MAX).expect("the home can hold that");
    setup.online(true);
    let there = setup.rig.sim.block_on(find(&setup.rig.fs, "/file")).expect("file");
    let attr = setup.rig.sim.block_on(setup.rig.fs.getattr(there).into_future()).expect("attributes").attr;
    assert_eq!(attr.size, FILE_LEN_MAX);
}

/// A store does not count as a change of its directory. The home did not tell others of a file that
/// was made there in the same tick of its clock, either.
#[test]
fn regression_what_is_made_in_the_tick_of_a_store_is_told() {
    let setup = Setup::new(6);
    setup.theirs("old");
    setup.rig.sim.run_for(Duration::from_secs(5));
    let (other, ..) = setup.rig.new_client(2, Duration::from_millis(50));
    let sees = |path: &str| setup.rig.sim.block_on(find(&other, path)).map(drop);
    assert_eq!(sees("/new"), Err(FsError::NotFound));
    assert_eq!(setup.read("/file").as_deref(), Ok("old"));
    setup.online(false);
    setup.done(Op::Write("/file".into(), How::Append, b"new".to_vec()));
    setup.done(Op::Make("/new".into(), 0o644));
    setup.online(true);
    assert_eq!(setup.at_home("/file").as_deref(), Ok("oldnew"));
    assert_eq!(sees("/new"), Ok(()));
}

/// Stores to a mapping of the only long file in the cache, after a delay. Only the kernel knows of
/// them: they go straight to the file of the cache.
fn store(setup: &Setup, at: u64, text: &'static str, delay: Duration) -> impl Future<Output = ()> + Send + 'static {
    let disk = setup.disk.mount(&setup.machine);
    let clock = setup.machine.host().clock;
    async move {
        clock.sleep(delay).await;
        for name in disk.list().await.expect("names").into_iter().filter(|name| name.starts_with('d')) {
            let file = disk.open(&name, false).await.expect("a file of the cache");
            if file.len().await.expect("length") == MINE_LEN as u64 {
                file.write_at(at, vec![text.into()]).await.expect("stored");
            }
        }
    }
}

/// A client with a long file in its cache that a program has open, and may have mapped.
fn mapped(seed: u64) -> (Setup, (FileId, Handle)) {
    let setup = Setup::new(seed);
    setup.theirs(&"old ".repeat(MINE_LEN / 4));
    setup.rig.sim.run_for(Duration::from_secs(5));
    assert_eq!(setup.read("/file").map(|text| text.len()), Ok(MINE_LEN));
    let (id, handle) = setup.open("/file");
    setup.rig.sim.block_on(setup.client.will_be_mapped(id, handle).into_future()).expect("ready");
    (setup, (id, handle))
}

/// A store to a mapping was forgotten if it came while the client logged other changes of the file.
#[test]
fn regression_a_store_to_a_mapping_during_an_fsync_goes_home() {
    for delay in (0..60).map(|step| Duration::from_micros(step * 100)) {
        let (setup, (id, handle)) = mapped(7);
        let stores = store(&setup, 100, "stored", delay);
        setup.rig.sim.block_on(async {
            setup.client.write(&Cred::ROOT, id, handle, 5000, b"written").await.expect("written");
            setup.machine.host().tasks.start(Box::pin(stores));
            setup.client.fsync(id, handle, false).await.expect("synced");
        });
        setup.rig.sim.run_for(Duration::from_secs(60));
        let home = setup.at_home("/file").expect("read");
        assert_eq!((&home[5000..5007], &home[100..106]), ("written", "stored"), "after {delay:?}");
        setup.close((id, handle));
    }
}

/// After a conflict, a mapping belongs to the copy with this client's version. Stores to it were
/// not looked for any more.
#[test]
fn regression_stores_to_a_mapping_go_home_after_a_conflict() {
    let (setup, opened) = mapped(8);
    setup.close(opened);
    setup.online(false);
    setup.rig.sim.block_on(store(&setup, 100, "before", Duration::ZERO));
    setup.rig.sim.run_for(Duration::from_secs(10));
    setup.theirs("theirs");
    setup.online(true);
    assert_eq!(setup.at_home("/file (conflict)").map(|text| text[100..106].to_string()).as_deref(), Ok("before"));
    setup.rig.sim.block_on(store(&setup, 300, "after", Duration::ZERO));
    setup.rig.sim.run_for(Duration::from_secs(60));
    let home = setup.at_home("/file (conflict)").expect("read");
    assert_eq!((&home[100..106], &home[300..305]), ("before", "after"));
    assert_eq!(setup.at_home("/file").as_deref(), Ok("theirs"));
}

/// The base of a merge had this client's stores, so a merge took them for the home's, and dropped
/// them.
#[test]
fn regression_a_base_has_no_stores_to_a_mapping() {
    let (setup, opened) = mapped(9);
    setup.close(opened);
    setup.rig.sim.block_on(store(&setup, 100, "stored", Duration::ZERO));
    setup.rig.sim.run_for(Duration::from_secs(10));
    assert_eq!(setup.at_home("/file").map(|text| text[100..106].to_string()).as_deref(), Ok("stored"));
    setup.online(false);
    setup.rig.sim.block_on(store(&setup, 300, "again", Duration::ZERO));
    setup.rig.sim.run_for(Duration::from_secs(10));
    setup.theirs("theirs");
    setup.online(true);
    let bases: Vec<u64> = setup.client.look(|replica, _| replica.conflicts().map(|(_, found)| found.base).collect());
    assert_eq!(bases, [0], "one conflict, without a base");
}
