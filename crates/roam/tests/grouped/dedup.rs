//! Bytes of a store that the home has already do not cross the link.

use crate::rig::session::{How, Op, find, perform, read_all};
use crate::rig::setup::Setup;
use host::SplitMix64;
use std::sync::atomic::Ordering::Relaxed;
use vfs::FileSystem;
use vfs::fs::{Cred, OpenFlags, RenameFlags};

const LEN: usize = 200_000;

fn random(seed: u64) -> Vec<u8> {
    let random = SplitMix64::new(seed);
    (0..LEN).map(|_| random.below(256) as u8).collect()
}

/// A client that has read a file of a home far away.
fn with_file(bytes: &[u8]) -> Setup {
    let setup = Setup::new(1);
    let write = Op::Write("/file".into(), How::Replace, bytes.to_vec());
    setup.rig.sim.block_on(perform(&setup.rig.fs, &write)).expect("file");
    setup.done(Op::Read("/file".into()));
    setup
}

/// Bytes on the network while operations are done, until they are home.
fn bytes_of(setup: &Setup, ops: &[Op]) -> u64 {
    let before = setup.network.bytes.load(Relaxed);
    ops.iter().for_each(|op| setup.done(op.clone()));
    setup.online(true);
    assert_eq!(setup.client.look(|replica, _| replica.log().len()), 0, "not all is home");
    setup.network.bytes.load(Relaxed) - before
}

fn at_home(setup: &Setup, path: &str) -> Vec<u8> {
    let fs = &setup.rig.fs;
    setup.rig.sim.block_on(async { read_all(fs, find(fs, path).await?).await }).expect("it is at home")
}

fn save(path: &str, bytes: &[u8]) -> [Op; 2] {
    let new = format!("{path}.new");
    let rename = Op::Rename(new.clone(), path.into(), RenameFlags::default());
    [Op::Write(new, How::Replace, bytes.to_vec()), rename]
}

#[test]
fn a_copy_of_what_was_read_is_made_at_home() {
    let old = random(1);
    let setup = with_file(&old);
    let sent = bytes_of(&setup, &[Op::Write("/copy".into(), How::Replace, old.clone())]);
    assert!(sent < 2_000, "{sent}");
    assert_eq!(at_home(&setup, "/copy"), old);
    assert_eq!(setup.client.found_there(), LEN as u64);
}

#[test]
fn of_a_file_that_is_saved_again_only_what_is_new_is_sent_however_it_is_saved() {
    let old = random(1);
    let setup = with_file(&old);
    let edited = |bytes: &[u8], text: &str| [&bytes[..70_000], text.as_bytes(), &bytes[70_000..]].concat();
    let new = edited(&old, "one");
    let sent = bytes_of(&setup, &save("/file", &new));
    assert!(sent < 20_000, "by another file: {sent}");
    assert_eq!(at_home(&setup, "/file"), new);
    // The home also has what was saved here.
    let newer = edited(&new, "two");
    let sent = bytes_of(&setup, &save("/file", &newer));
    assert!(sent < 20_000, "once more: {sent}");
    assert_eq!(at_home(&setup, "/file"), newer);
    let newest = edited(&newer, "three");
    let sent = bytes_of(&setup, &[Op::Write("/file".into(), How::Replace, newest.clone())]);
    assert!(sent < 20_000, "in place: {sent}");
    assert_eq!(at_home(&setup, "/file"), newest);
}

#[test]
fn what_others_have_changed_meanwhile_is_not_taken_for_what_it_was() {
    let old = random(1);
    let setup = with_file(&old);
    setup.online(false);
    setup.done(Op::Write("/copy".into(), How::Replace, old.clone()));
    let running = setup.rig.home.lock().clone().expect("home");
    // The file's length and time are as before, so a look at these shows no change.
    let write = Op::Write("/file".into(), How::At(LEN as u64 / 2), b"changed".to_vec());
    setup.rig.sim.block_on(perform(&running.tree, &write)).expect("changed");
    setup.online(true);
    assert_eq!(at_home(&setup, "/copy"), old);
    assert_eq!(setup.client.found_there(), 0);
}

#[test]
fn what_is_written_while_it_is_compared_goes_home_as_it_was_saved() {
    let old = random(1);
    let setup = with_file(&old);
    setup.online(false);
    setup.done(Op::Write("/copy".into(), How::Replace, old.clone()));
    let client = &setup.client;
    setup.network.up.store(true, Relaxed);
    for round in 0..20u8 {
        setup.rig.sim.run_for(std::time::Duration::from_millis(100));
        let written = setup.rig.sim.block_on(async {
            let id = find(client, "/copy").await?;
            let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
            let handle = client.open(&Cred::ROOT, id, flags).await?;
            client.write(&Cred::ROOT, id, handle, u64::from(round) * 9_000, &[round; 5_000]).await?;
            client.release(id, handle, None).await
        });
        assert_eq!(written, Ok(()));
    }
    setup.online(true);
    let mut expected = old;
    (0..20u8).for_each(|round| expected[usize::from(round) * 9_000..][..5_000].fill(round));
    assert!(at_home(&setup, "/copy") == expected);
}
