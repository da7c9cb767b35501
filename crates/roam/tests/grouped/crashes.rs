//! A client crashes at every step of its operations, and at every step of sending them home. The
//! home crashes at every step of taking them. This happens with and without a loss of power, while
//! the network delivers messages once or twice. Everything that the client acknowledged is there,
//! and gets home once.

use crate::rig::Rig;
use crate::rig::session::{How, Op, find, perform, read_all};
use crate::rig::setup::Setup;
use host::SplitMix64;
use record_log::LOG_LEN;
use roam::{COMMIT_TIME_MAX, Unit};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use types::{FileId, FsError, Time};
use vfs::FileSystem;
use vfs::fs::{Cred, OpenFlags, RenameFlags, XattrMode};
use vfs::mem::MemFs;
use vfs::tree::{TreeEntry, difference, walk};

/// Length of an extended attribute that makes a log grow.
const MARK_LEN: u64 = 60_000;

fn write(path: &str, how: How, text: &str) -> Op {
    Op::Write(path.into(), how, text.into())
}

fn rename(from: &str, to: &str, exchange: bool) -> Op {
    Op::Rename(from.into(), to.into(), RenameFlags { no_replace: false, exchange })
}

/// Operations that make the home's files before a session.
fn before() -> Vec<Op> {
    vec![
        Op::MakeDir("/dir".into()),
        write("/dir/file", How::Replace, "as it was"),
        write("/dir/other", How::Replace, &"long ".repeat(5000)),
        write("/top", How::Replace, "top"),
    ]
}

/// One operation of each kind. Most would have another result if they were done twice, not at all,
/// or in another order.
fn session() -> Vec<Op> {
    vec![
        write("/dir/file", How::Append, ", and more"),
        Op::MakeDir("/made".into()),
        write("/made/new", How::Replace, "new"),
        Op::Link("/made/new".into(), "/dir/link".into()),
        write("/dir/link", How::Append, " by another name"),
        rename("/dir/file", "/made/moved", false),
        write("/dir/file", How::Replace, "another one"),
        rename("/dir/file", "/made/moved", true),
        Op::SetMode("/dir/other".into(), 0o600),
        write("/dir/other", How::At(100), "changed here"),
        Op::Truncate("/dir/other".into(), 5000),
        Op::SetXattr("/made".into(), b"marked".to_vec()),
        Op::MakeSymlink("/made/symlink".into(), "../top".into()),
        write("/top", How::Replace, "longer than it was before"),
        write("/dir/other", How::Replace, "shorter"),
        Op::Unlink("/top".into()),
        Op::MakeDir("/top".into()),
        rename("/made", "/top/below", false),
        Op::Unlink("/top/below/new".into()),
        Op::MakeDir("/top/gone".into()),
        Op::RemoveDir("/top/gone".into()),
    ]
}

/// A client without a network that has everything cached.
fn away(rig: Rig) -> Setup {
    let setup = Setup::of(rig, 0);
    let fs = setup.rig.fs.clone();
    before().iter().for_each(|op| setup.rig.sim.block_on(perform(&fs, op)).expect("before"));
    setup.rig.sync();
    setup.rig.sim.block_on(walk(&setup.client)).expect("walk");
    setup.rig.sim.run_for(Duration::from_secs(10));
    setup.online(false);
    setup
}

/// The files after the first `count` operations of the session.
fn model(setup: &Setup, count: usize) -> MemFs {
    let fs = MemFs::new(Arc::new(|| Time { sec: 0, nsec: 0 }));
    let done = before().into_iter().chain(session().into_iter().take(count));
    done.for_each(|op| setup.rig.sim.block_on(perform(&fs, &op)).expect("model"));
    fs
}

/// A tree without the home's own folder.
fn files(mut tree: Vec<TreeEntry>) -> Vec<TreeEntry> {
    let count = tree.len();
    tree.retain(|entry| entry.path != b"/.starling");
    tree[0].attr.nlink -= u32::from(tree.len() < count);
    tree
}

fn view(setup: &Setup) -> Vec<TreeEntry> {
    setup.rig.sim.block_on(walk(&setup.client)).expect("walk")
}

/// Checks that all files are as the model has them, here and at home, and that nothing is in
/// conflict.
fn check(setup: &Setup, model: &MemFs, when: &str) {
    let conflicts = setup.client.look(|replica, _| replica.conflicts().map(|(_, t)| t.clone()).collect::<Vec<_>>());
    assert_eq!(conflicts, [], "{when}");
    assert_eq!(setup.client.look(|replica, _| replica.log().len()), 0, "{when}");
    for (whose, tree) in [("the home", files(setup.rig.fs.dump())), ("the client", view(setup))] {
        assert_eq!(difference(&model.dump(), &tree), None, "{whose}, {when}");
    }
}

/// Writes that a loss of power may leave of one that was under way: a part of its bytes, or a part
/// and zeroes for the rest.
fn parts_of(op: &Op) -> Vec<Op> {
    let Op::Write(path, how, bytes) = op else { return Vec::new() };
    let how = if *how == How::Replace { How::Replace } else { How::Append };
    let parts = (0..bytes.len()).flat_map(|len| {
        let part = bytes[..len].to_vec();
        let padded = [&part[..], &vec![0; bytes.len() - len]].concat();
        [part, padded]
    });
    parts.map(|part| Op::Write(path.clone(), how, part)).collect()
}

/// The log of the cache began again with a snapshot while a file was being changed, and the client
/// crashed. It took the written bytes for bytes that only the home had.
#[test]
fn regression_what_is_written_before_a_snapshot_is_there_after_a_crash() {
    let setup = away(Rig::new(1));
    setup.client.set(|settings| settings.unit = Unit::Block);
    let written = setup.rig.sim.block_on(async {
        let client = &setup.client;
        let (id, flags) = (find(client, "/top").await?, OpenFlags { read: true, write: true, ..OpenFlags::default() });
        let handle = client.open(&Cred::ROOT, id, flags).await?;
        client.write(&Cred::ROOT, id, handle, 3, b" and more").await?;
        for count in 0..2 * LOG_LEN / MARK_LEN {
            let mark = vec![count as u8; MARK_LEN as usize];
            client.setxattr(&Cred::ROOT, FileId::ROOT, b"user.mark", &mark, XattrMode::Any).await?;
        }
        Ok::<(), FsError>(())
    });
    written.expect("it is written");
    let setup = setup.crash(false);
    let read = setup.rig.sim.block_on(async { read_all(&setup.client, find(&setup.client, "/top").await?).await });
    assert_eq!(read.as_deref(), Ok(&b"top and more"[..]));
}

#[test]
fn crash_of_a_client_at_every_step_of_what_it_does() {
    for (steps, power) in (0..).map(|n| (n / 2, n % 2 == 0)) {
        let when = format!("{steps} steps, a loss of power: {power}");
        let setup = away(Rig::new(steps)).always();
        let acknowledged = Arc::new(AtomicUsize::new(0));
        let (client, count) = (setup.client.clone(), acknowledged.clone());
        setup.machine.crash_after(steps);
        drop(setup.machine.run(async move {
            for op in session() {
                perform(&client, &op).await.unwrap_or_else(|error| panic!("{op:?}: {error}"));
                count.fetch_add(1, Relaxed);
            }
        }));
        setup.rig.sim.run_for(Duration::from_secs(60));
        let (crashed, count) = (!setup.machine.is_up(), acknowledged.load(Relaxed));
        setup.machine.crash_after(u64::MAX);
        assert!(crashed || count == session().len(), "{when}: {count}");
        let setup = setup.crash(power);
        let there = view(&setup);
        // The operation under way may have been done; of a write, any part may be there.
        let under_way = session().into_iter().nth(count);
        let whole = (count..session().len().min(count + 1) + 1).map(|count| model(&setup, count));
        let parts = under_way.iter().flat_map(parts_of).map(|part| {
            let opened = model(&setup, count);
            setup.rig.sim.block_on(perform(&opened, &part)).expect("opened");
            opened
        });
        let mut differences = Vec::new();
        let known = whole.chain(parts).find(|model| {
            differences.extend(difference(&model.dump(), &there));
            difference(&model.dump(), &there).is_none()
        });
        let Some(known) = known else {
            panic!("{when}, {count} were acknowledged, then {under_way:?}: {differences:?}");
        };
        setup.online(true);
        check(&setup, &known, &when);
        if !crashed {
            assert!(steps > 0, "nothing crashed");
            return;
        }
    }
}

/// An operation that no program waits for is durable within a second. After a crash at any step,
/// the mount is as it was after some operation, and everything that a program waited for was done
/// before.
#[test]
fn crash_of_a_client_at_every_step_leaves_what_was_done_up_to_some_operation() {
    let (mut lost, mut commits) = (0, 0);
    for (steps, power) in (0..).map(|n| (n / 2, n % 2 == 0)) {
        let when = format!("{steps} steps, a loss of power: {power}");
        let setup = away(Rig::new(steps));
        let random = SplitMix64::new(steps);
        let (acknowledged, durable) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (client, count, synced) = (setup.client.clone(), acknowledged.clone(), durable.clone());
        let clock = setup.machine.host().clock;
        let syncs = setup.disk.counts().syncs;
        setup.machine.crash_after(steps);
        drop(setup.machine.run(async move {
            for op in session() {
                perform(&client, &op).await.unwrap_or_else(|error| panic!("{op:?}: {error}"));
                let done = count.fetch_add(1, Relaxed) + 1;
                match random.below(8) {
                    0 => {
                        client.sync().await.expect("synced");
                        synced.store(done, Relaxed);
                    }
                    1 => {
                        clock.sleep(COMMIT_TIME_MAX + Duration::from_millis(100)).await;
                        synced.store(done, Relaxed);
                    }
                    2 => clock.sleep(COMMIT_TIME_MAX / 2).await,
                    _ => {}
                }
            }
        }));
        setup.rig.sim.run_for(Duration::from_secs(60));
        let crashed = !setup.machine.is_up();
        let (count, synced) = (acknowledged.load(Relaxed), durable.load(Relaxed));
        setup.machine.crash_after(u64::MAX);
        assert!(crashed || count == session().len(), "{when}: {count}");
        commits = setup.disk.counts().syncs - syncs;
        let setup = setup.crash(power);
        let there = view(&setup);
        let mut differences = Vec::new();
        // Of the first write that is not there as a whole, any part may be there.
        let known = (synced..session().len().min(count + 1) + 1).rev().find_map(|count| {
            let parts = session().get(count).map(parts_of).unwrap_or_default();
            let parts = parts.iter().map(|part| {
                let opened = model(&setup, count);
                setup.rig.sim.block_on(perform(&opened, part)).expect("opened");
                opened
            });
            let found = std::iter::once(model(&setup, count)).chain(parts).find(|model| {
                differences.extend(difference(&model.dump(), &there));
                difference(&model.dump(), &there).is_none()
            })?;
            Some((count, found))
        });
        let Some((found, known)) = known else {
            panic!("{when}, {count} were acknowledged, {synced} were durable: {differences:?}");
        };
        lost += count.saturating_sub(found);
        setup.online(true);
        check(&setup, &known, &when);
        if !crashed {
            assert!(steps > 0, "nothing crashed");
            break;
        }
    }
    assert!(lost > 100, "{lost} operations were lost that no program waited for");
    assert!(commits < session().len() as u64, "{commits} syncs");
}

#[test]
fn crash_of_a_client_at_every_step_of_bringing_home_what_it_did() {
    for (steps, kind) in (0..).map(|n| (n / 4, n % 4)) {
        let (power, repeats) = (kind % 2 == 0, kind / 2 == 0);
        let when = format!("{steps} steps, a loss of power: {power}, delivered twice: {repeats}");
        let setup = away(Rig::new(steps)).always();
        session().into_iter().for_each(|op| setup.done(op));
        setup.network.repeat_requests.store(repeats, Relaxed);
        setup.machine.crash_after(steps);
        setup.online(true);
        let crashed = !setup.machine.is_up();
        setup.machine.crash_after(u64::MAX);
        let setup = setup.crash(power);
        setup.online(true);
        check(&setup, &model(&setup, session().len()), &when);
        if !crashed {
            assert!(steps > 0, "nothing crashed");
            return;
        }
    }
}

#[test]
fn crash_of_the_home_at_every_step_of_taking_what_was_done() {
    for (steps, kind) in (0..).map(|n| (n / 4, n % 4)) {
        let (worst, repeats) = (kind % 2 == 0, kind / 2 == 0);
        let when = format!("{steps} steps, what was not synced is lost: {worst}, delivered twice: {repeats}");
        let setup = away(Rig::with_pace(steps, true));
        session().into_iter().for_each(|op| setup.done(op));
        setup.network.repeat_requests.store(repeats, Relaxed);
        let home = setup.rig.home.lock().clone().expect("a home").machine;
        home.crash_after(steps);
        setup.online(true);
        let crashed = !home.is_up();
        if crashed {
            setup.rig.crash_home();
            setup.rig.lose_power(worst);
            setup.rig.start_home();
            setup.online(true);
        }
        check(&setup, &model(&setup, session().len()), &when);
        if !crashed {
            assert!(steps > 100, "{steps} steps are not all that it takes");
            return;
        }
    }
}
