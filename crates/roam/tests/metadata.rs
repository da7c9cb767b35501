//! A client that caches too much metadata forgets what was used least lately, and asks the home
//! again.

mod rig;

use rig::session::{How, Op, close, find, open_to_write, perform, read_all};
use rig::setup::Setup;
use roam::Forget;
use std::collections::BTreeSet;
use std::ops::Range;
use types::{FileId, FsError};
use vfs::fs::{Cred, FileSystem, Handle, RenameFlags, SetAttr};

const DIRS: u32 = 20;
const FILES: u32 = 10;
const BOUND: usize = 60;

fn path(dir: u32, file: u32) -> String {
    format!("/d{dir:02}/f{file}")
}

/// A client, and directories with files that it has not seen yet.
fn setup(seed: u64) -> Setup {
    let setup = Setup::new(seed);
    setup.rig.sim.block_on(async {
        let fs = &setup.rig.fs;
        for dir in 0..DIRS {
            perform(fs, &Op::MakeDir(format!("/d{dir:02}"))).await.expect("mkdir");
            for file in 0..FILES {
                let path = path(dir, file);
                perform(fs, &Op::Write(path.clone(), How::Replace, path.into_bytes())).await.expect("write");
            }
        }
    });
    setup.rig.sync();
    setup.online(true);
    setup.client.set(|settings| settings.cache_files = BOUND);
    setup
}

impl Setup {
    fn known(&self) -> usize {
        self.client.look(|replica, _| replica.file_count())
    }

    fn conflicts(&self) -> usize {
        self.client.look(|replica, _| replica.conflicts().count())
    }

    fn id(&self, path: &str) -> FileId {
        self.rig.sim.block_on(find(&self.client, path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, FsError> {
        self.rig.sim.block_on(async { read_all(&self.client, find(&self.client, path).await?).await })
    }

    /// Looks up all files in some directories.
    fn walk(&self, dirs: Range<u32>) {
        for dir in dirs {
            for file in 0..FILES {
                self.id(&path(dir, file));
            }
        }
    }

    fn names(&self, path: &str) -> usize {
        let dir = self.id(path);
        let listed = self.client.readdir(dir, Handle::NONE, 0, usize::MAX, true).into_future();
        self.rig.sim.block_on(listed).expect("list").len()
    }

    /// Asks for a file's attributes by an id from before.
    fn asked_by_id(&self, id: FileId) -> Result<FileId, FsError> {
        self.rig.sim.block_on(self.client.getattr(id).into_future()).map(|entry| entry.attr.id)
    }
}

#[test]
fn what_was_not_used_for_long_is_forgotten_and_asked_for_again() {
    let setup = setup(1);
    let first = setup.id(&path(0, 3));
    setup.walk(0..DIRS);
    assert!(setup.known() <= BOUND + 2 * FILES as usize, "{} files are known", setup.known());
    let is_known = |id: FileId| setup.client.look(|replica, _| replica.node(id).is_ok());
    assert!(!is_known(first));
    assert!(is_known(setup.id(&path(DIRS - 1, 3))));
    // The kernel asks by an id that it has known from the start.
    assert_eq!(setup.asked_by_id(first), Ok(first));
    assert_eq!(setup.names("/d00"), FILES as usize + 2);
    assert_eq!(setup.names("/"), DIRS as usize + 2);
    for (dir, file) in [(0, 3), (7, 0), (DIRS - 1, 9)] {
        assert_eq!(setup.read(&path(dir, file)), Ok(path(dir, file).into_bytes()));
    }
}

/// The kernel lists a directory without opening it, and goes on by a cookie. The client left out
/// entries that it had forgotten meanwhile.
#[test]
fn a_listing_goes_on_though_its_directory_was_forgotten() {
    let setup = setup(7);
    let dir = setup.id("/d00");
    let list = |cookie, count| {
        let listed = setup.client.readdir(dir, Handle::NONE, cookie, count, true).into_future();
        setup.rig.sim.block_on(listed).expect("list")
    };
    let first = list(0, 5);
    let is_known = || setup.client.look(|replica, _| replica.node(dir).is_ok_and(|node| node.names.is_some()));
    let mut walked = 1..DIRS;
    while is_known() {
        let dir = walked.next().expect("the directory is forgotten");
        setup.walk(dir..dir + 1);
    }
    let rest = list(first[4].cookie, usize::MAX);
    assert_eq!(first.len() + rest.len(), FILES as usize + 2);
}

#[test]
fn what_others_have_removed_is_gone_though_it_was_forgotten() {
    let setup = setup(2);
    let gone = setup.id(&path(0, 3));
    setup.walk(0..DIRS);
    setup.rig.sim.block_on(perform(&setup.rig.fs, &Op::Unlink(path(0, 3)))).expect("remove");
    setup.rig.sync();
    assert_eq!(setup.asked_by_id(gone), Err(FsError::Stale));
    setup.online(false);
    // Without a network the client cannot know whether the file exists.
    assert_eq!(setup.asked_by_id(FileId::new(gone.raw() + 1)), Err(FsError::TimedOut));
}

#[test]
fn what_is_used_hoarded_or_not_home_yet_is_never_forgotten() {
    let setup = setup(3);
    setup.rig.sim.block_on(setup.client.hoard(b"d01", Some(50))).expect("hoard");
    let open = setup.rig.sim.block_on(open_to_write(&setup.client, &path(2, 0), How::At(0))).expect("open");
    setup.client.set(|settings| settings.writes = roam::Writes::Manual);
    setup.done(Op::Write(path(3, 0), How::Replace, b"mine".to_vec()));
    setup.done(Op::Rename(path(4, 0), "/d05/moved".into(), RenameFlags::default()));
    setup.walk(6..DIRS);
    setup.online(false);
    for file in 0..FILES {
        setup.id(&path(1, file));
    }
    assert_eq!(setup.asked_by_id(open.0), Ok(open.0));
    assert_eq!(setup.read(&path(3, 0)), Ok(b"mine".to_vec()));
    setup.id("/d05/moved");
    setup.rig.sim.block_on(close(&setup.client, open.0, open.1)).expect("close");
    setup.online(true);
    setup.rig.sim.block_on(setup.client.send_all()).expect("send");
    assert_eq!((setup.at_home(&path(3, 0)).as_deref(), setup.conflicts()), (Ok("mine"), 0));
    assert_eq!(setup.at_home("/d05/moved"), Ok(path(4, 0)));
}

#[test]
fn a_restart_knows_what_was_not_forgotten() {
    let setup = setup(4);
    setup.walk(0..DIRS);
    setup.rig.sim.run_for(std::time::Duration::from_secs(10));
    let known: BTreeSet<FileId> = setup.client.look(|replica, _| replica.nodes().map(|(id, _)| id).collect());
    let setup = setup.restart(false);
    assert_eq!(setup.client.look(|replica, _| replica.nodes().map(|(id, _)| id).collect::<BTreeSet<_>>()), known);
    setup.online(false);
    setup.id(&path(DIRS - 1, 0));
    // Without a network the client forgets nothing, though the bound is lower now.
    setup.client.set(|settings| settings.cache_files = 5);
    setup.rig.sim.run_for(std::time::Duration::from_secs(60));
    assert_eq!(setup.known(), known.len());
    setup.online(true);
    assert!(setup.known() < known.len());
}

/// Otherwise the kernel would go on believing it: the client reports no changes of files that it
/// does not know.
#[test]
fn the_kernel_forgets_what_is_forgotten() {
    let setup = setup(5);
    let mut told = setup.client.cached_by();
    let first = setup.id(&path(0, 3));
    let dir = setup.id("/d00");
    setup.walk(0..DIRS);
    let mut all = Vec::new();
    while let Ok(forget) = told.try_recv() {
        all.push(forget);
    }
    let is_file = |forget: &Forget| matches!(forget, Forget::File(file) if *file == first);
    let is_name = |forget: &Forget| matches!(forget, Forget::Name(of, name) if *of == dir && name == b"f3");
    assert!(all.iter().any(is_file) && all.iter().any(is_name));
}

#[test]
fn strong_mounts_forget_and_ask_again() {
    let setup = setup(6);
    setup.client.set(|settings| settings.consistency = roam::Consistency::Strong);
    setup.online(true);
    let first = setup.id(&path(0, 3));
    setup.walk(0..DIRS);
    assert!(setup.known() <= BOUND + 2 * FILES as usize, "{} files are known", setup.known());
    assert_eq!(setup.asked_by_id(first), Ok(first));
    setup.rig.sim.block_on(perform(&setup.rig.fs, &Op::Unlink(path(0, 3)))).expect("remove");
    setup.rig.sync();
    setup.walk(1..DIRS);
    assert_eq!(setup.asked_by_id(first), Err(FsError::Stale));
    let set = SetAttr { mode: Some(0o600), ..Default::default() };
    let second = setup.id(&path(0, 4));
    setup.walk(1..DIRS);
    setup.rig.sim.block_on(setup.client.setattr(&Cred::ROOT, second, None, set).into_future()).expect("chmod");
}
