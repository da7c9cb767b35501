//! Files that are cached whole when a foreseen loss of the link comes.

use crate::rig::session::{How, Op, find, noise, perform, read_all};
use crate::rig::setup::Setup;
use roam::replica::Child;
use roam::{LinkState, Missing, Unit};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::FsError;
use vfs::fs::{Cred, FileSystem, Handle, OpenFlags};

const SECOND: Duration = Duration::from_secs(1);
const LEN: usize = 500_000;

impl Setup {
    fn make_at_home(&self, path: &str, len: usize) {
        let tree = self.rig.home.lock().clone().expect("home").tree;
        let op = Op::Write(path.into(), How::Replace, noise(len));
        self.rig.sim.block_on(perform(&tree, &op)).expect("made");
        self.rig.sim.run_for(SECOND);
    }

    /// Opens a file and reads a little of it.
    fn begin_to_read(&self, path: &str) -> (types::FileId, Handle) {
        self.rig.sim.block_on(async {
            let id = find(&self.client, path).await.expect("found");
            let read = OpenFlags { read: true, ..OpenFlags::default() };
            let handle = self.client.open(&Cred::ROOT, id, read).await.expect("open");
            self.client.read(id, handle, 0, 100).await.expect("read");
            (id, handle)
        })
    }

    fn close(&self, (id, handle): (types::FileId, Handle)) {
        self.rig.sim.block_on(self.client.release(id, handle, None).into_future()).expect("closed");
    }

    fn is_whole(&self, path: &str) -> bool {
        self.client.look(|replica, _| match replica.at_path(path.as_bytes()) {
            Child::Is(id) => replica.node(id).is_ok_and(|node| node.is_whole()),
            _ => false,
        })
    }

    fn state(&self) -> LinkState {
        self.client.look(|_, state| state)
    }
}

/// A client that has read a little of three files. One is open, and another is hoarded.
fn in_part() -> Setup {
    let setup = Setup::new(1);
    for path in ["/open", "/kept", "/other"] {
        setup.make_at_home(path, LEN);
    }
    setup.client.set(|settings| settings.unit = Unit::Block);
    setup.rig.sim.block_on(setup.client.hoard(b"kept", Some(50))).expect("hoarded");
    let kept = setup.begin_to_read("/kept");
    setup.close(kept);
    setup.begin_to_read("/open");
    let other = setup.begin_to_read("/other");
    setup.close(other);
    setup.client.set(|settings| settings.unit = Unit::Auto);
    assert!(["/open", "/kept", "/other"].into_iter().all(|path| !setup.is_whole(path)));
    setup
}

/// Without a network, only the bytes that had been read of open or hoarded files were there.
#[test]
fn what_is_open_or_to_be_kept_is_whole_before_the_user_leaves() {
    let setup = in_part();
    let missing = setup.client.missing();
    assert_eq!(missing.files, 2);
    let mut told = Vec::new();
    let left = setup.rig.sim.block_on(setup.client.get_ready(60 * SECOND, |left| told.push(left)));
    assert_eq!(left, Missing::default());
    assert!(told.first() == Some(&missing) && told.is_sorted_by(|a, b| a.bytes >= b.bytes), "{told:?}");
    // Open files came first.
    assert!(told.iter().any(|left| left.files == 1 && left.bytes > 400_000), "{told:?}");
    setup.client.pin(Some(LinkState::Disconnected));
    let read = |path| setup.rig.sim.block_on(async { read_all(&setup.client, find(&setup.client, path).await?).await });
    assert_eq!(read("/open").map(|bytes| bytes.len()), Ok(LEN));
    assert_eq!(read("/kept").map(|bytes| bytes.len()), Ok(LEN));
    assert_eq!(read("/other"), Err(FsError::TimedOut));
}

#[test]
fn getting_ready_takes_no_longer_than_it_may_and_no_more_than_fits() {
    let setup = in_part();
    setup.network.lag_ms.store(4000, Relaxed);
    let clock = setup.machine.host().clock;
    let begun = clock.now();
    let left = setup.rig.sim.block_on(setup.client.get_ready(10 * SECOND, |_| {}));
    assert!(left.files == 2 && clock.now() < begun + 11 * SECOND, "{left:?}");
    // With `Unit::Block`, the rest of an open file is not fetched.
    setup.client.set(|settings| settings.unit = Unit::Block);
    assert_eq!(setup.client.missing().files, 1);
    setup.network.lag_ms.store(0, Relaxed);
    setup.client.set(|settings| (settings.unit, settings.cache_bytes) = (Unit::Auto, 1000));
    let left = setup.rig.sim.block_on(setup.client.get_ready(60 * SECOND, |_| {}));
    assert!(left.files >= 1 && left.bytes > 100_000, "{left:?}");
    // Files of a lower hoard priority give way.
    setup.client.set(|settings| settings.cache_bytes = 1_100_000);
    let read = |path| setup.rig.sim.block_on(async { read_all(&setup.client, find(&setup.client, path).await?).await });
    assert_eq!(read("/other").map(|bytes| bytes.len()), Ok(LEN));
    let kept = setup.begin_to_read("/kept");
    setup.close(kept);
    let left = setup.rig.sim.block_on(setup.client.get_ready(60 * SECOND, |_| {}));
    assert_eq!(left, Missing::default());
    assert!(setup.client.cached_bytes() <= 1_100_000 && !setup.is_whole("/other"));
    // Without a link there is no wait.
    setup.online(false);
    let begun = clock.now();
    setup.rig.sim.block_on(setup.client.get_ready(60 * SECOND, |_| {}));
    assert!(clock.now() < begun + SECOND);
}

#[test]
fn what_is_open_or_to_be_kept_is_whole_before_a_link_is_lost_that_was_lost_again_and_again() {
    let setup = in_part();
    for _ in 0..3 {
        assert!(!setup.client.disconnection_is_likely() && !setup.is_whole("/open"));
        setup.network.up.store(false, Relaxed);
        setup.rig.sim.block_on(async {
            let _ = find(&setup.client, "/open").await;
            let _ = setup.client.statfs().await;
        });
        setup.rig.sim.run_for(10 * SECOND);
        assert_eq!(setup.state(), LinkState::Disconnected);
        setup.network.up.store(true, Relaxed);
        setup.rig.sim.block_on(setup.client.attached());
    }
    assert!(setup.client.disconnection_is_likely());
    setup.rig.sim.run_for(30 * SECOND);
    assert!(setup.is_whole("/open") && setup.is_whole("/kept") && !setup.is_whole("/other"));
    setup.rig.sim.run_for(300 * SECOND);
    assert!(!setup.client.disconnection_is_likely());
}

/// Others had changed a hoarded file, and the new version was not fetched until the next walk. A
/// user who unplugged before had nothing of it, and was not told.
#[test]
fn regression_what_others_have_changed_of_what_is_to_be_kept_is_there_when_the_link_is_lost() {
    let changed = || {
        let setup = Setup::new(1);
        setup.make_at_home("/kept", LEN);
        setup.rig.sim.block_on(setup.client.hoard(b"kept", Some(50))).expect("hoarded");
        setup.rig.sim.block_on(setup.client.walk(|_| {})).expect("walked");
        setup.rig.sim.run_for(40 * SECOND);
        assert!(setup.is_whole("/kept"));
        setup.make_at_home("/kept", LEN + 1);
        setup.rig.sim.block_on(async {
            let id = find(&setup.client, "/kept").await.expect("found");
            setup.client.getattr(id).await.expect("facts");
        });
        assert!(!setup.is_whole("/kept"), "the old version is of no use");
        setup
    };
    let setup = changed();
    assert_eq!(setup.client.missing(), Missing { files: 1, bytes: LEN as u64 + 1 });
    let left = setup.rig.sim.block_on(setup.client.get_ready(60 * SECOND, |_| {}));
    assert_eq!((left, setup.is_whole("/kept")), (Missing::default(), true));
    // Without a request it does not take long, either.
    let setup = changed();
    setup.rig.sim.run_for(60 * SECOND);
    assert!(setup.is_whole("/kept"));
}
