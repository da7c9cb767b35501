//! Other programs meddle with the folder in which the home makes the files that clients store.

use crate::rig::session::{How, Op, find, perform};
use crate::rig::setup::Setup;
use crate::rig::tree::Moment;
use std::time::Duration;
use types::{FileId, FsError};
use vfs::FileSystem;
use vfs::fs::{Cred, SetAttr};
use vfs::mem::MemFs;

const OWN: &[u8] = b".starling";

/// Removes the home's own folder, as `rm -r` does.
fn remove_own(setup: &Setup) {
    let removed = async {
        let fs: &MemFs = &setup.rig.fs;
        let own = fs.lookup(&Cred::ROOT, FileId::ROOT, OWN).await?.attr.id;
        let opened = fs.opendir(&Cred::ROOT, own).await?;
        for entry in fs.readdir(own, opened, 0, usize::MAX, false).await? {
            if entry.name != b"." && entry.name != b".." {
                fs.unlink(&Cred::ROOT, own, &entry.name).await?;
            }
        }
        fs.releasedir(own, opened).await?;
        fs.rmdir(&Cred::ROOT, FileId::ROOT, OWN).await
    };
    setup.rig.sim.block_on(removed).expect("remove the folder");
}

/// All names at the top of the exported directory, without the home's own folder.
fn names(setup: &Setup) -> Vec<String> {
    let all = setup.rig.fs.dump().into_iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned());
    all.filter(|path| !path.is_empty() && !path.starts_with("/.starling")).collect()
}

fn write(setup: &Setup, path: &str, text: &str) {
    setup.done(Op::Write(path.into(), How::Replace, text.as_bytes().to_vec()));
}

/// Without the folder, every store became a conflict, and so did each copy, without end.
#[test]
fn regression_without_the_homes_own_folder_stores_are_done() {
    let setup = Setup::new(1);
    setup.online(true);
    remove_own(&setup);
    for path in ["/a", "/b", "/c"] {
        write(&setup, path, path);
    }
    setup.online(true);
    assert_eq!(names(&setup), ["/a", "/b", "/c"]);
    assert_eq!(setup.at_home("/b").as_deref(), Ok("/b"));
    assert_eq!(setup.client.look(|replica, _| (replica.conflicts().count(), replica.log().len())), (0, 0));
}

/// The folder went in the moment in which new contents were to take their place. That was a
/// conflict, too.
#[test]
fn regression_the_homes_own_folder_goes_before_the_exchange() {
    let setup = Setup::new(1);
    write(&setup, "/file", "old");
    setup.online(true);
    let tree = setup.rig.home.lock().clone().expect("home").tree;
    tree.meddle(Moment::BeforeRename, |fs| {
        let now = |op: &Op| match perform_now(fs, op) {
            Ok(()) => {}
            Err(error) => panic!("{op:?}: {error}"),
        };
        let all = fs.dump().into_iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned());
        let inside: Vec<String> = all.filter(|path| path.starts_with("/.starling/")).collect();
        inside.into_iter().for_each(|path| now(&Op::Unlink(path)));
        now(&Op::RemoveDir("/.starling".into()));
    });
    write(&setup, "/file", "new");
    setup.online(true);
    assert_eq!(names(&setup), ["/file"]);
    assert_eq!(setup.at_home("/file").as_deref(), Ok("new"));
    assert_eq!(setup.client.look(|replica, _| (replica.conflicts().count(), replica.log().len())), (0, 0));
}

fn perform_now(fs: &MemFs, op: &Op) -> Result<(), FsError> {
    let mut done = Box::pin(perform(fs, op));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match done.as_mut().poll(&mut context) {
        std::task::Poll::Ready(done) => done,
        std::task::Poll::Pending => panic!("the model answers at once"),
    }
}

/// The home does not write to a folder of another user. Stores wait, and the client says why.
#[test]
fn regression_a_folder_of_somebody_else_gets_nothing() {
    let setup = Setup::new(1);
    setup.online(true);
    let own = |uid: u32| {
        let set = SetAttr { uid: Some(uid), ..SetAttr::default() };
        let done =
            async { setup.rig.fs.setattr(&Cred::ROOT, find(&setup.rig.fs, "/.starling").await?, None, set).await };
        setup.rig.sim.block_on(done).expect("chown");
    };
    write(&setup, "/file", "public");
    setup.online(true);
    own(1000);
    write(&setup, "/file", "secret");
    setup.online(true);
    assert_eq!(setup.at_home("/file").as_deref(), Ok("public"));
    assert_eq!(setup.client.look(|replica, _| replica.conflicts().count()), 0);
    assert_eq!(setup.client.held_up(), Some(FsError::NotPermitted));
    own(0);
    setup.rig.sim.run_for(Duration::from_secs(60));
    assert_eq!(setup.at_home("/file").as_deref(), Ok("secret"));
    assert_eq!(setup.client.held_up(), None);
}

/// If others can look into the folder, the home closes it before it puts anything there.
#[test]
fn regression_what_is_on_its_way_is_not_shown_to_others() {
    let setup = Setup::new(1);
    setup.online(true);
    let own = || setup.rig.sim.block_on(async { setup.rig.fs.getattr(find(&setup.rig.fs, "/.starling").await?).await });
    let id = own().expect("own").attr.id;
    let open = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    setup.rig.sim.block_on(setup.rig.fs.setattr(&Cred::ROOT, id, None, open).into_future()).expect("chmod");
    write(&setup, "/file", "old");
    setup.online(true);
    write(&setup, "/file", "new");
    setup.online(true);
    assert_eq!(setup.at_home("/file").as_deref(), Ok("new"));
    assert_eq!(own().expect("own").attr.mode, 0o700);
}
