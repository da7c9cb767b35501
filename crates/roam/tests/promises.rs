//! Partial write-back: what others read of a file while most bytes of a store are still on their
//! way home.

mod rig;

use rig::session::{How, Op, close, find, open_to_write, perform, read_all};
use rig::{Network, Rig};
use roam::{Client, Consistency};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::FsError;
use vfs::fs::{Cred, FileSystem, OpenFlags};

const DELAY: Duration = Duration::from_millis(50);
/// Milliseconds that each request of the writer takes in addition.
const LAG_MS: u64 = 1000;
const LEN: usize = 1 << 20;
const WRITTEN: std::ops::Range<usize> = LEN / 4..LEN;
const FILE: &str = "/large";

/// One client has written much to a file, and another reads a little of it.
struct Setup {
    rig: Rig,
    writer: (Client, Network),
    reader: (Client, Network),
}

impl Setup {
    fn new() -> Setup {
        let rig = Rig::new(1);
        rig.sim.block_on(perform(&rig.fs, &Op::Write(FILE.into(), How::Replace, vec![1; LEN]))).expect("file");
        let [writer, reader] = [1, 2].map(|key| {
            let (client, network, ..) = rig.new_client(key, DELAY);
            client.set(|settings| settings.consistency = Consistency::Strong);
            rig.sim.run_for(Duration::from_secs(5));
            (client, network)
        });
        let setup = Setup { rig, writer, reader };
        let written = setup.rig.sim.block_on(async {
            let client = &setup.writer.0;
            let (id, handle) = open_to_write(client, FILE, How::At(0)).await?;
            let written = client.write(&Cred::ROOT, id, handle, WRITTEN.start as u64, &vec![2; WRITTEN.len()]).await;
            client.release(id, handle, None).await?;
            written
        });
        assert_eq!(written, Ok(WRITTEN.len() as u32));
        setup.writer.1.lag_ms.store(LAG_MS, Relaxed);
        setup
    }

    /// The bytes at these places, as the reader sees them.
    fn read(&self, at: &[usize]) -> Result<Vec<u8>, FsError> {
        let client = &self.reader.0;
        self.rig.sim.block_on(async {
            let id = find(client, FILE).await?;
            let handle = client.open(&Cred::ROOT, id, OpenFlags { read: true, ..OpenFlags::default() }).await?;
            let mut bytes = Vec::new();
            for at in at {
                let read = client.read(id, handle, *at as u64, 1).await;
                bytes.push(read.map(|bytes| bytes[0]));
            }
            close(client, id, handle).await?;
            bytes.into_iter().collect()
        })
    }

    fn at_home(&self) -> Vec<u8> {
        let fs = &self.rig.fs;
        self.rig.sim.block_on(async { read_all(fs, find(fs, FILE).await?).await }).expect("file")
    }

    fn waits(&self) -> usize {
        self.writer.0.look(|replica, _| replica.log().len())
    }
}

/// The file's contents when all is home.
fn after() -> Vec<u8> {
    let mut after = vec![1; LEN];
    after[WRITTEN].fill(2);
    after
}

#[test]
fn a_reader_waits_for_the_bytes_that_it_wants_only() {
    let setup = Setup::new();
    let begun = setup.rig.sim.now();
    assert_eq!(setup.read(&[LEN / 8, LEN / 2, LEN - 1]), Ok(vec![1, 2, 2]));
    let took = setup.rig.sim.now() - begun;
    assert!(setup.waits() > 0, "all of it was home already, after {took:?}");
    assert!(setup.at_home() == vec![1; LEN], "other programs see the file before or after the store");
    while setup.waits() > 0 {
        setup.rig.sim.run_for(Duration::from_secs(1));
    }
    let took_all = setup.rig.sim.now() - begun;
    assert!(took * 2 < took_all, "{took:?} of {took_all:?}");
    assert!(setup.at_home() == after());
    setup.rig.sim.run_for(Duration::from_secs(5));
    // The store has put another file into the directory.
    assert_eq!(setup.read(&[]), Ok(vec![]));
    // The bytes that were read still hold, and the reader does not ask again.
    let asked = setup.reader.1.requests.load(Relaxed);
    assert_eq!(setup.read(&[LEN / 8, LEN / 2, LEN - 1]), Ok(vec![1, 2, 2]));
    assert_eq!(setup.reader.1.requests.load(Relaxed), asked);
}

#[test]
fn nobody_changes_a_file_before_what_was_promised_of_it_is_done() {
    let setup = Setup::new();
    assert_eq!(setup.read(&[LEN / 2]), Ok(vec![2]));
    assert!(setup.waits() > 0);
    let write = Op::Write(FILE.into(), How::At(LEN as u64 / 2), vec![3; 10]);
    setup.rig.sim.block_on(perform(&setup.reader.0, &write)).expect("write");
    assert_eq!(setup.waits(), 0, "the first store is home before the second begins");
    setup.rig.sim.run_for(Duration::from_secs(60));
    let mut expected = after();
    expected[LEN / 2..LEN / 2 + 10].fill(3);
    assert!(setup.at_home() == expected);
}

#[test]
fn what_a_writer_that_is_gone_has_promised_is_not_waited_for_longer_than_its_lease() {
    let setup = Setup::new();
    assert_eq!(setup.read(&[LEN / 2]), Ok(vec![2]));
    setup.writer.1.up.store(false, Relaxed);
    setup.rig.sim.run_for(Duration::from_secs(60));
    assert_eq!(setup.read(&[LEN / 4, LEN / 2, LEN - 1]), Ok(vec![1, 1, 1]), "the file is as it was before");
    setup.writer.1.up.store(true, Relaxed);
    setup.rig.sim.run_for(Duration::from_secs(600));
    assert_eq!((setup.waits(), setup.writer.0.look(|replica, _| replica.conflicts().count())), (0, 0));
    assert_eq!(setup.read(&[LEN / 8, LEN / 2, LEN - 1]), Ok(vec![1, 2, 2]));
    assert!(setup.at_home() == after());
}

#[test]
fn what_was_promised_before_a_home_crashes_is_not_taken_for_what_is_there() {
    let setup = Setup::new();
    assert_eq!(setup.read(&[LEN / 2]), Ok(vec![2]));
    assert!(setup.waits() > 0);
    setup.writer.1.up.store(false, Relaxed);
    setup.rig.crash_home();
    setup.rig.disk.power_loss();
    setup.rig.start_home();
    setup.rig.sim.run_for(Duration::from_secs(120));
    assert_eq!(setup.read(&[LEN / 2, LEN - 1]), Ok(vec![1, 1]));
    setup.writer.1.up.store(true, Relaxed);
    setup.rig.sim.run_for(Duration::from_secs(600));
    assert_eq!(setup.read(&[LEN / 2, LEN - 1]), Ok(vec![2, 2]));
    assert_eq!(setup.writer.0.look(|replica, _| replica.conflicts().count()), 0);
}
