//! Changes of files that are mostly not cached: the client sends what was written, and fetches what
//! is read.

use crate::rig::Rig;
use crate::rig::session::{How, Op, find, noise, perform};
use crate::rig::setup::Setup;
use roam::{Unit, Writes};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use types::FsError;
use vfs::fs::{Cred, FileSystem, OpenFlags};

/// Length of the log. To fetch all of it over this link would take longer than a program waits.
const LEN: usize = 1 << 20;
const BYTES_PER_SECOND: u64 = 8000;
/// Bytes on the network that an appended line may cost, for a file of any length.
const LINE_COST_MAX: u64 = 8000;

fn old() -> Vec<u8> {
    noise(LEN)
}

/// A client far from a home that has a long log. The client has cached nothing of it.
fn far(seed: u64) -> Setup {
    let setup = Setup::new(seed).always();
    setup.at_home_do(Op::Write("/log".into(), How::Replace, old()));
    setup.network.bytes_per_second.store(BYTES_PER_SECOND, Relaxed);
    setup.client.set(|settings| settings.unit = Unit::Block);
    setup.online(true);
    setup.rig.sim.block_on(find(&setup.client, "/log")).expect("log");
    setup.rig.sim.run_for(Duration::from_secs(60));
    setup
}

impl Setup {
    fn at_home_do(&self, op: Op) {
        let tree = self.rig.home.lock().clone().expect("home").tree;
        self.rig.sim.block_on(perform(&tree, &op)).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }

    fn home_has(&self, path: &str) -> Vec<u8> {
        let fs = &self.rig.fs;
        self.rig.sim.block_on(async { read_all_of(fs, find(fs, path).await?).await }).expect(path)
    }

    fn client_has(&self, path: &str) -> Result<Vec<u8>, FsError> {
        let client = &self.client;
        self.rig.sim.block_on(async { read_all_of(client, find(client, path).await?).await })
    }

    fn append(&self, line: &str) {
        self.done(Op::Write("/log".into(), How::Append, line.into()));
    }

    fn read_at(&self, path: &str, offset: u64, len: u32) -> Result<Vec<u8>, FsError> {
        let client = &self.client;
        self.rig.sim.block_on(async {
            let id = find(client, path).await?;
            let handle = client.open(&Cred::ROOT, id, OpenFlags { read: true, ..OpenFlags::default() }).await?;
            let bytes = client.read(id, handle, offset, len).await;
            client.release(id, handle, None).await?;
            Ok(bytes?.to_vec())
        })
    }

    fn cost(&self, what: impl FnOnce(&Setup)) -> u64 {
        let before = self.network.bytes.load(Relaxed);
        what(self);
        self.network.bytes.load(Relaxed) - before
    }
}

/// All of a file, in pieces that one read may return.
async fn read_all_of(fs: &dyn FileSystem, id: types::FileId) -> Result<Vec<u8>, FsError> {
    let handle = fs.open(&Cred::ROOT, id, OpenFlags { read: true, ..OpenFlags::default() }).await?;
    let mut all = Vec::new();
    let read = loop {
        match fs.read(id, handle, all.len() as u64, 1 << 16).await {
            Ok(bytes) if bytes.is_empty() => break Ok(all),
            Ok(bytes) => all.extend(bytes),
            Err(error) => break Err(error),
        }
    };
    fs.release(id, handle, None).await?;
    read
}

#[test]
fn regression_a_line_at_the_end_of_a_file_that_is_not_cached_costs_what_the_line_does() {
    let setup = far(1);
    let cost = setup.cost(|setup| {
        setup.append("a line\n");
        setup.rig.sim.run_for(Duration::from_secs(120));
    });
    assert!(cost <= LINE_COST_MAX, "{cost} bytes");
    assert_eq!(setup.home_has("/log"), [&old()[..], b"a line\n"].concat());
    // A read fetches its bytes, and not the whole file.
    let cost = setup.cost(|setup| {
        assert_eq!(setup.read_at("/log", 500_000, 100).expect("read"), old()[500_000..500_100]);
    });
    assert!(cost <= LEN as u64 / 4, "{cost} bytes");
}

#[test]
fn what_is_written_without_a_network_comes_home_and_what_is_not_there_is_not_read() {
    let setup = far(2);
    setup.online(false);
    setup.append("a line\n");
    assert_eq!(setup.read_at("/log", LEN as u64, 100).expect("the written line"), b"a line\n");
    assert_eq!(setup.read_at("/log", LEN as u64 - 10, 17), Err(FsError::TimedOut));
    let setup = setup.crash(true);
    setup.rig.sim.run_for(Duration::from_secs(60));
    assert_eq!(setup.read_at("/log", LEN as u64, 100).expect("the written line"), b"a line\n");
    setup.append("and another\n");
    let cost = setup.cost(|setup| setup.online(true));
    assert!(cost <= LINE_COST_MAX, "{cost} bytes");
    let all = [&old()[..], b"a line\nand another\n"].concat();
    assert_eq!(setup.home_has("/log"), all);
    assert_eq!(setup.client_has("/log").expect("all"), all);
}

/// Before a client changes a file, it makes the bytes that it has fetched durable. After a crash it
/// still has them.
#[test]
fn what_was_fetched_before_a_write_is_there_after_a_crash() {
    let setup = far(8);
    assert_eq!(setup.read_at("/log", 500_000, 100).expect("read"), old()[500_000..500_100]);
    setup.append("a line\n");
    setup.network.up.store(false, Relaxed);
    let setup = setup.crash(true);
    setup.rig.sim.run_for(Duration::from_secs(60));
    assert_eq!(setup.read_at("/log", 500_000, 100).expect("it was fetched"), old()[500_000..500_100]);
}

/// Others have changed the file. Beside it is a copy of their version with the bytes that were
/// written here put over it. No bytes are invented.
#[test]
fn in_a_conflict_what_was_written_is_over_what_the_home_has() {
    let setup = far(3);
    assert_eq!(setup.read_at("/log", 1000, 100).expect("read"), old()[1000..1100]);
    setup.online(false);
    setup.append("mine\n");
    setup.done(Op::Write("/log".into(), How::At(500_000), b"mine, too".to_vec()));
    let theirs = noise(LEN - 5000);
    setup.at_home_do(Op::Write("/log".into(), How::Replace, theirs.clone()));
    setup.online(true);
    setup.rig.sim.run_for(Duration::from_secs(600));
    assert_eq!(setup.home_has("/log"), theirs);
    let mut mine = theirs;
    mine[500_000..500_009].copy_from_slice(b"mine, too");
    mine.resize(LEN, 0);
    mine.extend(b"mine\n");
    assert_eq!(setup.home_has("/log (conflict)"), mine);
    assert_eq!(setup.client_has("/log (conflict)").expect("beside"), mine);
}

#[test]
fn in_a_conflict_with_a_removal_it_is_said_what_is_missing() {
    let setup = far(4);
    setup.online(false);
    setup.append("mine\n");
    setup.at_home_do(Op::Unlink("/log".into()));
    setup.online(true);
    setup.rig.sim.run_for(Duration::from_secs(600));
    let mut mine = vec![0; LEN];
    mine.extend(b"mine\n");
    assert_eq!(setup.home_has("/log (conflict)"), mine);
    let why = setup.client.look(|replica, _| replica.conflicts().map(|(_, t)| t.why()).collect::<Vec<_>>());
    assert!(matches!(&why[..], [why] if why.contains("missing")), "{why:?}");
}

/// The bytes that were there before are lost. The client does not show the home's present bytes in
/// their place, and does not lose what was written.
#[test]
fn what_others_have_changed_is_not_read_in_between_what_was_written() {
    let setup = far(5);
    setup.client.set(|settings| settings.writes = Writes::Manual);
    setup.append("mine\n");
    setup.at_home_do(Op::Write("/log".into(), How::At(0), b"theirs".to_vec()));
    setup.rig.sim.run_for(Duration::from_secs(60));
    assert_eq!(setup.read_at("/log", 0, 10), Err(FsError::TimedOut));
    assert_eq!(setup.read_at("/log", LEN as u64, 10).expect("mine"), b"mine\n");
}

#[test]
fn what_is_cut_is_cut_and_reads_as_zeroes_where_it_is_extended() {
    for crash in [false, true] {
        let setup = far(6);
        setup.done(Op::Truncate("/log".into(), 300_000));
        setup.done(Op::Write("/log".into(), How::At(400_000), b"after".to_vec()));
        let setup = if crash { setup.crash(true) } else { setup };
        setup.rig.sim.run_for(Duration::from_secs(300));
        let mut all = old()[..300_000].to_vec();
        all.resize(400_000, 0);
        all.extend(b"after");
        assert_eq!(setup.home_has("/log"), all, "{crash}");
        assert_eq!(setup.client_has("/log").expect("all"), all, "{crash}");
    }
}

/// Operations on a log that is not cached at all.
fn session() -> Vec<Op> {
    vec![
        Op::Write("/log".into(), How::Append, b"a line\n".to_vec()),
        Op::Write("/log".into(), How::At(1000), b"in the middle".to_vec()),
        Op::Truncate("/log".into(), 3000),
        Op::Write("/log".into(), How::At(3500), b"after a gap".to_vec()),
        Op::Write("/log".into(), How::At(500), vec![b'x'; 600]),
        Op::Truncate("/log".into(), 5000),
        Op::Write("/log".into(), How::Append, b"the last line\n".to_vec()),
    ]
}

/// The log after the first `count` operations of the session.
fn after(log: &[u8], count: usize) -> Vec<u8> {
    let mut log = log.to_vec();
    for op in session().into_iter().take(count) {
        match op {
            Op::Write(_, how, bytes) => {
                let at = if let How::At(at) = how { at as usize } else { log.len() };
                log.resize(log.len().max(at + bytes.len()), 0);
                log[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Op::Truncate(_, size) => log.resize(size as usize, 0),
            _ => {}
        }
    }
    log
}

/// A client without a network that knows of a short log, and has cached nothing of it.
fn away(rig: Rig) -> Setup {
    let setup = Setup::of(rig, 0).always();
    setup.at_home_do(Op::Write("/log".into(), How::Replace, short()));
    setup.rig.sync();
    setup.client.set(|settings| settings.unit = Unit::Block);
    setup.rig.sim.block_on(find(&setup.client, "/log")).expect("log");
    setup.rig.sim.run_for(Duration::from_secs(10));
    setup.online(false);
    setup
}

fn short() -> Vec<u8> {
    noise(4000)
}

fn check(setup: &Setup, log: &[u8], when: &str) {
    let why: Vec<_> = setup.client.look(|replica, _| replica.conflicts().map(|(_, t)| t.why()).collect());
    assert!(why.is_empty(), "{when}: {why:?}");
    assert_eq!(setup.client.look(|replica, _| replica.log().len()), 0, "{when}");
    for (whose, there) in [("home", setup.home_has("/log")), ("client", setup.client_has("/log").expect("all"))] {
        let first = log.iter().zip(&there).position(|(a, b)| a != b);
        assert!(there == log, "{when}, {whose}: {} bytes instead of {}, {first:?}", there.len(), log.len());
    }
}

#[test]
fn crash_of_a_client_at_every_step_of_writing_into_holes() {
    for (steps, power) in (0..).map(|n| (n / 2, n % 2 == 0)) {
        let when = format!("{steps} steps, a loss of power: {power}");
        let setup = away(Rig::new(steps));
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
        setup.online(true);
        let there = setup.home_has("/log");
        // Any part of the bytes that were being written may be there, and zeroes beyond the former
        // end.
        let known = [count, count + 1].map(|count| after(&short(), count));
        let is_known = |at: usize| known.iter().any(|known| known.get(at).unwrap_or(&0) == &there[at]);
        let first = (0..there.len()).find(|at| !is_known(*at));
        let has_len = known.iter().any(|known| known.len() == there.len());
        assert!(has_len && first.is_none(), "{when}, {count} were acknowledged: {} bytes, {first:?}", there.len());
        check(&setup, &there, &when);
        if !crashed {
            assert!(steps > 20, "{steps} steps are not all that it takes");
            return;
        }
    }
}

#[test]
fn crash_of_a_client_at_every_step_of_bringing_home_what_was_written_into_holes() {
    for (steps, kind) in (0..).map(|n| (n / 4, n % 4)) {
        let (power, repeats) = (kind % 2 == 0, kind / 2 == 0);
        let when = format!("{steps} steps, a loss of power: {power}, delivered twice: {repeats}");
        let setup = away(Rig::new(steps));
        session().into_iter().for_each(|op| setup.done(op));
        setup.network.repeat_requests.store(repeats, Relaxed);
        setup.machine.crash_after(steps);
        setup.online(true);
        let crashed = !setup.machine.is_up();
        setup.machine.crash_after(u64::MAX);
        let setup = setup.crash(power);
        setup.online(true);
        check(&setup, &after(&short(), session().len()), &when);
        if !crashed {
            assert!(steps > 0, "nothing crashed");
            return;
        }
    }
}

/// Others have changed the file, so the copy of this client's version begins as theirs. The home or
/// the client crashes while that copy is made.
#[test]
fn crash_at_every_step_of_a_conflict_leaves_both_versions() {
    for (steps, kind) in (0..).map(|n| (n / 4, n % 4)) {
        let (is_home, worst) = (kind % 2 == 0, kind / 2 == 0);
        let when = format!("{steps} steps of the home: {is_home}, what was not synced is lost: {worst}");
        let setup = away(Rig::with_pace(steps, true));
        setup.done(Op::Write("/log".into(), How::At(1000), b"mine".to_vec()));
        setup.done(Op::Write("/log".into(), How::Append, b"my line".to_vec()));
        let theirs = noise(3000);
        setup.at_home_do(Op::Write("/log".into(), How::Replace, theirs.clone()));
        setup.rig.sync();
        let home = setup.rig.home.lock().clone().expect("a home").machine;
        let machine = if is_home { home } else { setup.machine.clone() };
        machine.crash_after(steps);
        setup.online(true);
        let crashed = !machine.is_up();
        machine.crash_after(u64::MAX);
        let setup = match (is_home, crashed) {
            (true, true) => {
                setup.rig.crash_home();
                setup.rig.lose_power(worst);
                setup.rig.start_home();
                setup
            }
            (false, true) => setup.crash(worst),
            _ => setup,
        };
        setup.online(true);
        let mut mine = theirs.clone();
        mine[1000..1004].copy_from_slice(b"mine");
        mine.resize(4000, 0);
        mine.extend(b"my line");
        assert!(setup.home_has("/log") == theirs, "{when}");
        let beside = setup.home_has("/log (conflict)");
        let first = mine.iter().zip(&beside).position(|(a, b)| a != b);
        assert!(beside == mine, "{when}: {} bytes, {first:?}", beside.len());
        assert_eq!(setup.client_has("/log (conflict)").expect("beside"), mine, "{when}");
        assert_eq!(setup.client.look(|replica, _| replica.conflicts().count()), 1, "{when}");
        if !crashed && kind == 3 {
            assert!(steps > 20, "{steps} steps are not all that it takes");
            return;
        }
    }
}

/// A program writes in the moment in which the bytes around it come from the home.
#[test]
fn what_is_written_is_not_covered_by_what_comes_meanwhile() {
    let mut covered = 0;
    for step in 0..200 {
        let setup = far(7);
        setup.network.bytes_per_second.store(0, Relaxed);
        let (reader, writer) = (setup.client.clone(), setup.client.clone());
        let (id, handle) = setup.rig.sim.block_on(async {
            let id = find(&writer, "/log").await.expect("log");
            let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
            (id, writer.open(&Cred::ROOT, id, flags).await.expect("open"))
        });
        // From here on the file is ready to be written.
        setup.rig.sim.block_on(async { writer.write(&Cred::ROOT, id, handle, LEN as u64, b"!").await }).expect("write");
        let reading = setup.machine.run(async move { reader.read(id, handle, 1000, 5000).await });
        setup.rig.sim.run_for(Duration::from_micros(99_000 + step * 20));
        setup.rig.sim.block_on(async { writer.write(&Cred::ROOT, id, handle, 2000, b"written").await }).expect("write");
        let read = setup.rig.sim.block_on(reading).expect("up").expect("read");
        covered += u64::from(read[1000..1007] == *b"written");
        assert_eq!(setup.read_at("/log", 2000, 7).expect("read"), b"written", "{step}");
    }
    assert!(0 < covered && covered < 200, "some reads come before, some after: {covered}");
}
