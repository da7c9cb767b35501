//! Former bugs of caches and of the operation log, each reduced to the steps that show it.

use crate::rig::session::{How, Op, close, find, open_to_write, perform, read_all};
use crate::rig::setup::Setup;
use crate::rig::{Network, Rig, VOLUME};
use bytes::Bytes;
use home::invitation::{self, Invitation};
use host::Disk;
use host::sim::{Machine, SimDisk};
use roam::replica::{Membership, Record, Replica};
use roam::{Client, Consistency, Line, LinkState, Settings, Unit, Writes};
use roam_proto::channel::{Channel, Class, DialError, Dialer, Lost, Path};
use roam_proto::codec::Wire;
use roam_proto::delegation::Watch;
use roam_proto::message::{
    Applied, ConflictReason, Facts, NamedFacts, Outcome, Pushed, Reply, Request, User, pack, unpack,
};
use roam_proto::operation::{Change, Made, Operation};
use roam_proto::ranges::Ranges;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use types::{BoxFuture, FileId, FsError, Kind, Time};
use vfs::fs::{Cred, FileSystem, Handle, NewNode, RenameFlags, SetAttr};

const DELAY: Duration = Duration::from_millis(50);
/// Number of seeds of a test, since a crash can come out in several ways.
const SEED_COUNT: u64 = 10;

impl Setup {
    fn write(&self, path: &str, text: &str) {
        self.done(Op::Write(path.into(), How::Replace, text.into()));
    }

    fn read(&self, path: &str) -> Result<String, FsError> {
        let read = self.rig.sim.block_on(async { read_all(&self.client, find(&self.client, path).await?).await });
        read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn done_at_home(&self, op: Op) {
        let tree = self.rig.home.lock().clone().expect("home").tree;
        self.rig.sim.block_on(perform(&tree, &op)).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }

    fn wait(&self) {
        self.rig.sim.run_for(Duration::from_secs(60));
    }

    fn conflicts(&self) -> Vec<String> {
        self.client.look(|replica, _| replica.conflicts().map(|(_, conflict)| conflict.why()).collect())
    }

    fn mode(&self, fs: &dyn FileSystem, path: &str) -> u32 {
        self.rig.sim.block_on(async { fs.getattr(find(fs, path).await?).await }).expect(path).attr.mode
    }

    /// Opens a file, writes to it, and leaves it open.
    fn begin(&self, path: &str, how: How, text: &str) -> (FileId, Handle) {
        self.rig.sim.block_on(async {
            let (id, handle) = open_to_write(&self.client, path, how).await.expect("open");
            if !text.is_empty() {
                self.client.write(&Cred::ROOT, id, handle, 0, text.as_bytes()).await.expect("write");
            }
            (id, handle)
        })
    }

    fn end(&self, (id, handle): (FileId, Handle)) {
        self.rig.sim.block_on(close(&self.client, id, handle)).expect("close");
    }

    fn waiting(&self) -> usize {
        self.client.look(|replica, _| replica.log().len())
    }
}

/// The client removed files of the cache before its log durably said so. After a crash it believed
/// that they were there, and could not read them.
#[test]
fn regression_what_was_dropped_before_a_crash_is_fetched_again() {
    let text = "text ".repeat(1000);
    let crash_after = |steps, seed| {
        let setup = Setup::new(seed);
        setup.done_at_home(Op::Write("/file".into(), How::Replace, text.clone().into()));
        assert_eq!(setup.read("/file").as_ref(), Ok(&text));
        setup.wait();
        setup.disk.set_latency(Duration::from_millis(1)..Duration::from_millis(20));
        setup.client.set(|settings| settings.cache_bytes = 0);
        setup.machine.crash_after(steps);
        setup.rig.sim.run_for(Duration::from_secs(10));
        let crashed = !setup.machine.is_up();
        let setup = setup.restart(seed % 2 == 0);
        setup.wait();
        assert_eq!(setup.read("/file").as_ref(), Ok(&text), "{steps} steps, seed {seed}");
        crashed
    };
    for seed in 0..SEED_COUNT {
        assert!((0..1000).any(|steps| !crash_after(steps, seed)));
    }
}

/// The client made a missing file of the cache anew, empty. Bytes that were appended to it went
/// home with zeroes before them.
#[test]
fn regression_a_missing_file_of_the_cache_is_not_taken_for_zeroes() {
    let (old, lost) = ("old ".repeat(200_000), |setup: &Setup| {
        setup.machine.crash();
        setup.rig.sim.block_on(async {
            let disk = setup.disk.mount(&setup.rig.sim.machine("hand"));
            for name in disk.list().await.expect("list").into_iter().filter(|name| name.starts_with('d')) {
                disk.remove(&name).await.expect("remove");
            }
            disk.sync_names().await.expect("sync");
        });
    });
    let setup = Setup::new(1);
    setup.done_at_home(Op::Write("/file".into(), How::Replace, old.clone().into()));
    setup.done_at_home(Op::Write("/other".into(), How::Replace, old.clone().into()));
    setup.read("/file").expect("file");
    setup.read("/other").expect("file");
    setup.wait();
    setup.online(false);
    setup.done(Op::Write("/other".into(), How::Append, b"new".to_vec()));
    lost(&setup);
    let setup = setup.restart(false);
    assert_eq!(setup.read("/file"), Err(FsError::TimedOut));
    setup.online(true);
    setup.done(Op::Write("/file".into(), How::Append, b"new".to_vec()));
    setup.wait();
    assert_eq!((setup.waiting(), setup.at_home("/file")), (0, Ok(old.clone() + "new")));
    // The client reports the lost bytes, and sends nothing in their place.
    assert_eq!(setup.conflicts(), ["a file of the cache is not there"]);
    assert_eq!(setup.at_home("/other").as_ref(), Ok(&old));
    assert_eq!(setup.read("/other").as_ref(), Ok(&old));
}

/// A program set rights, and then the home answered a store or a listing. The client counted the
/// rights of that answer as known before, and overwrote rights that others had set meanwhile.
#[test]
fn regression_rights_that_others_have_set_are_not_overwritten_unseen() {
    let setup = Setup::new(1);
    setup.done_at_home(Op::Write("/file".into(), How::Replace, b"old".to_vec()));
    setup.done_at_home(Op::MakeDir("/dir".into()));
    setup.done(Op::List("/dir".into()));
    assert_eq!(setup.read("/file").as_deref(), Ok("old"));
    setup.online(false);
    setup.write("/file", &"new ".repeat(1 << 18));
    setup.done(Op::SetMode("/file".into(), 0o644));
    setup.done(Op::SetMode("/dir".into(), 0o755));
    setup.done_at_home(Op::SetMode("/file".into(), 0o600));
    setup.done_at_home(Op::SetMode("/dir".into(), 0o700));
    setup.client.pin(Some(LinkState::FetchOnly));
    setup.online(true);
    setup.done(Op::List("/dir".into()));
    setup.done(Op::List("/".into()));
    setup.client.pin(None);
    setup.wait();
    assert_eq!(setup.waiting(), 0);
    let modes = |fs: &dyn FileSystem| [setup.mode(fs, "/file"), setup.mode(fs, "/dir")];
    assert_eq!(modes(&setup.rig.fs), [0o600, 0o700]);
    assert_eq!(modes(&setup.client), [0o600, 0o700]);
    assert_eq!(setup.conflicts().len(), 2, "{:?}", setup.conflicts());
    assert_eq!(setup.at_home("/file").map(|text| text.len()), Ok(1 << 20));
    // Rights that are set now are based on those that are seen now.
    setup.done(Op::SetMode("/file".into(), 0o640));
    setup.wait();
    assert_eq!((setup.mode(&setup.rig.fs, "/file"), setup.conflicts().len()), (0o640, 2));
}

/// A file was opened to be written anew while its saved version was still waiting. It came home as
/// zeroes.
#[test]
fn regression_what_was_saved_comes_home_as_it_was_saved() {
    let saved = "saved ".repeat(20_000);
    for (how, then) in [(How::Replace, ""), (How::Replace, "draft"), (How::At(0), "draft ")] {
        for logged_between in [false, true] {
            let setup = Setup::new(1);
            setup.done_at_home(Op::Write("/file".into(), How::Replace, b"old".to_vec()));
            assert_eq!(setup.read("/file").as_deref(), Ok("old"));
            setup.online(false);
            setup.write("/file", &saved);
            if logged_between {
                setup.done(Op::SetMode("/file".into(), 0o600));
            }
            let open = setup.begin("/file", how, then);
            setup.online(true);
            assert_eq!(setup.waiting(), 0);
            assert!(setup.at_home("/file").as_ref() == Ok(&saved), "not the saved version: {how:?} {then:?}");
            let here = setup.read("/file");
            setup.end(open);
            setup.wait();
            assert!(setup.at_home("/file") == here, "{how:?} {then:?}");
            assert_eq!((setup.waiting(), setup.conflicts()), (0, vec![]));
            assert_eq!(setup.mode(&setup.rig.fs, "/file"), if logged_between { 0o600 } else { 0o644 });
        }
    }
}

/// The same, if the next version is saved, too, before anything can go home.
#[test]
fn regression_each_of_several_versions_that_wait_is_whole() {
    let [first, second] = ["first ", "second "].map(|word| word.repeat(20_000));
    for how in [How::Replace, How::At(0)] {
        let setup = Setup::new(1);
        setup.done(Op::List("/".into()));
        setup.online(false);
        setup.write("/file", &first);
        setup.done(Op::Write("/file".into(), how, second.clone().into()));
        setup.done(Op::SetMode("/file".into(), 0o600));
        let open = setup.begin("/file", how, "third");
        setup.online(true);
        assert!(setup.at_home("/file").as_ref() == Ok(&second), "{how:?}");
        setup.end(open);
        setup.wait();
        assert!(setup.at_home("/file").is_ok_and(|text| text.starts_with("third")), "{how:?}");
        assert_eq!((setup.waiting(), setup.conflicts()), (0, vec![]));
    }
}

/// The client counted a new file as its own until the home answered, even when that took longer
/// than a lease and the home had heard of the file.
#[test]
fn regression_what_the_home_may_know_is_believed_no_longer_than_a_lease() {
    let setup = Setup::new(1);
    setup.client.set(|settings| settings.consistency = Consistency::Strong);
    setup.wait();
    setup.done(Op::Make("/before".into(), 0o644));
    setup.wait();
    setup.done(Op::Make("/first".into(), 0o644));
    // So the next operation does not wait behind an answer that never comes.
    setup.wait();
    setup.network.lose_answers.store(true, Relaxed);
    setup.done(Op::Make("/file".into(), 0o644));
    setup.rig.sim.run_for(Duration::from_secs(5));
    assert_eq!(setup.at_home("/file").as_deref(), Ok(""));
    setup.write("/file", "mine");
    setup.online(false);
    let (other, ..) = setup.rig.new_client(2, DELAY);
    other.set(|settings| settings.consistency = Consistency::Strong);
    setup.wait();
    let theirs = Op::Write("/file".into(), How::Replace, b"theirs".to_vec());
    setup.rig.sim.block_on(perform(&other, &theirs)).expect("written");
    setup.wait();
    assert_eq!(setup.at_home("/file").as_deref(), Ok("theirs"));
    assert_eq!(setup.read("/file"), Err(FsError::TimedOut));
    setup.network.lose_answers.store(false, Relaxed);
    setup.online(true);
    assert_eq!(setup.read("/file").as_deref(), Ok("theirs"));
}

/// Without a network, a file that was made here stays usable while the home cannot have heard of
/// it.
#[test]
fn what_the_home_has_not_heard_of_is_there_without_a_network() {
    let setup = Setup::new(1);
    setup.client.set(|settings| settings.consistency = Consistency::Strong);
    setup.wait();
    setup.done(Op::Make("/before".into(), 0o644));
    setup.wait();
    setup.done(Op::Make("/first".into(), 0o644));
    setup.network.lose_requests.store(true, Relaxed);
    let open = setup.begin("/file", How::Replace, "mine");
    setup.end(open);
    setup.network.lose_requests.store(false, Relaxed);
    setup.online(false);
    setup.online(true);
    assert_eq!((setup.read("/file").as_deref(), setup.waiting()), (Ok("mine"), 0));
}

/// A home that lies.
struct Liar {
    network: Network,
    lie: fn(&Request, Reply) -> Reply,
}

struct Lying {
    channel: Arc<dyn Channel>,
    lie: fn(&Request, Reply) -> Reply,
}

impl Dialer for Liar {
    fn dial(&self) -> BoxFuture<Result<Arc<dyn Channel>, DialError>> {
        let (dialed, lie) = (self.network.dial(), self.lie);
        Box::pin(async move { Ok(Arc::new(Lying { channel: dialed.await?, lie }) as Arc<dyn Channel>) })
    }
}

impl Channel for Lying {
    fn ask(&self, class: Class, request: Bytes) -> BoxFuture<Result<Bytes, Lost>> {
        let (asked, answered, lie) = (unpack(&request), self.channel.ask(class, request), self.lie);
        Box::pin(async move {
            let answer = answered.await?;
            match (asked, unpack(&answer)) {
                (Ok(asked), Ok(reply)) => Ok(pack(&lie(&asked, reply))),
                _ => Ok(answer),
            }
        })
    }

    fn pushed(&self) -> BoxFuture<Result<Bytes, Lost>> {
        self.channel.pushed()
    }

    fn caught_up(&self) -> BoxFuture<Result<(), Lost>> {
        self.channel.caught_up()
    }

    fn rebind(&self) {}

    fn path(&self) -> Path {
        self.channel.path()
    }

    fn has_ended(&self) -> bool {
        self.channel.has_ended()
    }

    fn close(&self) {
        self.channel.close();
    }
}

/// A client of a home that lies.
fn client_of(lie: fn(&Request, Reply) -> Reply) -> (Rig, Client, Network, Machine) {
    let rig = Rig::new(1);
    rig.sim.block_on(perform(&rig.fs, &Op::Write("/file".into(), How::Replace, b"text".to_vec()))).expect("file");
    let network = rig.network(1, DELAY);
    rig.enroll(&network, User { uid: 0, gid: 0, groups: Vec::new() });
    let (machine, disk) = (rig.sim.machine("laptop 1"), SimDisk::new(&rig.sim, 1 << 30));
    let (liar, disk): (_, Arc<dyn Disk>) = (Liar { network: network.clone(), lie }, disk.mount(&machine));
    let host = machine.host();
    let client = rig
        .sim
        .block_on(Client::open(&host, disk, Line::alone(&host, Arc::new(liar)), Settings::new(VOLUME)))
        .expect("open");
    rig.sim.run_for(Duration::from_secs(1));
    (rig, client, network, machine)
}

/// The number of requests that one operation takes at a home that lies, and its result.
fn lied_to(lie: fn(&Request, Reply) -> Reply, op: &Op) -> (Result<(), FsError>, u64) {
    let (rig, client, network, machine) = client_of(lie);
    let (before, host) = (network.requests.load(Relaxed), machine.host());
    let done = rig.sim.block_on(host::timeout(&*host.clock, Duration::from_secs(60), perform(&client, op)));
    (done.unwrap_or(Err(FsError::TimedOut)), network.requests.load(Relaxed) - before)
}

/// A home whose listings had no end filled the client's memory. A home whose files were never as it
/// had said kept its client busy for ever.
#[test]
fn regression_a_home_that_lies_is_asked_a_few_times_only() {
    let same_again = |_: &Request, reply| match reply {
        Reply::Listing { dir, entries, same, withheld, given, seq, hold, .. } => {
            Reply::Listing { dir, entries, same, more: true, withheld, given, seq, hold }
        }
        other => other,
    };
    let (done, requests) = lied_to(same_again, &Op::List("/".into()));
    assert_eq!(done, Err(FsError::Io));
    assert!(requests < 100, "{requests} requests");
    let changed = |request: &Request, reply| match request {
        Request::Read { .. } => Reply::Changed,
        _ => reply,
    };
    let (done, requests) = lied_to(changed, &Op::Read("/file".into()));
    assert_eq!(done, Err(FsError::TimedOut));
    assert!(requests < 300, "{requests} requests");
}

/// A client was restored from a backup. It took what it had done after the backup for known to it,
/// since no other client had done it.
#[test]
fn regression_what_a_client_did_after_its_backup_is_not_overwritten() {
    let setup = Setup::new(1);
    setup.write("/file", "old");
    setup.wait();
    let backup = setup.disk.snapshot();
    setup.write("/file", "newer");
    setup.wait();
    assert_eq!(setup.at_home("/file").as_deref(), Ok("newer"));
    setup.machine.crash();
    setup.disk.restore(&backup);
    setup.network.up.store(false, Relaxed);
    let setup = setup.restart(false);
    setup.write("/file", "from the backup");
    setup.online(true);
    assert_eq!(setup.waiting(), 0);
    assert_eq!(setup.at_home("/file").as_deref(), Ok("newer"));
    assert_eq!(setup.at_home("/file (conflict)").as_deref(), Ok("from the backup"));
    // Its changes from then on count as its own.
    setup.write("/file", "newest");
    setup.write("/other", "one");
    setup.write("/other", "two");
    setup.wait();
    assert_eq!((setup.at_home("/file").as_deref(), setup.at_home("/other").as_deref()), (Ok("newest"), Ok("two")));
    assert_eq!(setup.conflicts().len(), 1, "{:?}", setup.conflicts());
}

/// Very many changes at once take several messages. All messages but the last had an older stamp,
/// so a client took a file that it knew in a state between the two stamps for unchanged.
#[test]
fn regression_each_message_of_many_changes_says_of_when_they_are() {
    const FILE_COUNT: usize = 53_000;
    let setup = Setup::new(1);
    let fs = setup.rig.fs.clone();
    let node = NewNode { kind: Kind::File, mode: 0o644, umask: 0, rdev: 0 };
    let many = setup.rig.sim.block_on(async {
        let dir = fs.mkdir(&Cred::ROOT, FileId::ROOT, b"many", 0o755, 0).await.expect("mkdir").attr.id;
        let mut many = Vec::new();
        for n in 0..FILE_COUNT {
            many.push(fs.mknod(&Cred::ROOT, dir, format!("{n}").as_bytes(), node).await.expect("mknod").attr.id);
        }
        many
    });
    setup.done(Op::List("/many".into()));
    let network = setup.rig.network(2, DELAY);
    setup.rig.enroll(&network, User { uid: 0, gid: 0, groups: Vec::new() });
    let (volume, watch) = (VOLUME.to_string(), Watch::Changes);
    let attach = Request::Attach {
        volume,
        incarnation: 1,
        acknowledged: 0,
        stamp: None,
        newest: FileId::new(0),
        watch,
        attempt: 1,
    };
    let channel = setup.rig.sim.block_on(network.dial()).expect("dial");
    setup.rig.sim.block_on(channel.ask(Class::Interactive, pack(&attach))).expect("attached");
    setup.rig.sim.block_on(async {
        for id in many {
            let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            fs.setattr(&Cred::ROOT, id, None, set).await.expect("chmod");
        }
    });
    setup.rig.home.lock().as_ref().expect("home").tree.lose_events();
    let (mut told, mut stamps) = (0, Vec::new());
    while told < FILE_COUNT {
        let message = setup.rig.sim.block_on(channel.pushed()).expect("told");
        let Ok(Pushed::Changed { files, stamp, more }) = unpack(&message) else { panic!("another push") };
        told += files.len();
        stamps.push((stamp, more));
    }
    let last = stamps.len() - 1;
    assert!(last > 0, "all changes fit one message");
    assert!(stamps.iter().enumerate().all(|(at, told)| *told == (stamps[last].0, at < last)), "{stamps:?}");
}

/// A replica with one file in its root, whose bytes are cached, and with `ids` ids for new files.
fn replica(ids: u64) -> Replica {
    let facts = |id: u64, kind| Facts {
        id: FileId::new(id),
        version: 7,
        contents: 7,
        kind,
        mode: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 4,
        blocks: 1,
        atime: Time::default(),
        mtime: Time::default(),
        ctime: Time::default(),
        crtime: Time::default(),
        target: Vec::new(),
        xattrs: Vec::new(),
    };
    let user = User { uid: 0, gid: 0, groups: Vec::new() };
    let entries = vec![NamedFacts { name: b"file".to_vec(), facts: facts(2, Kind::File) }];
    let mut replica = Replica::default();
    let records = [
        Record::Joined(Membership { root: FileId::ROOT, user, incarnation: 9, file_len_max: u64::MAX }),
        Record::Known(Box::new(facts(1, Kind::Directory))),
        Record::Ids(FileId::new(100), ids),
        Record::Listed { dir: Box::new(facts(1, Kind::Directory)), entries },
        Record::Cached { file: FileId::new(2), data: 1, have: Ranges::of(0..4) },
        Record::Dirty { file: FileId::new(2), data: 1, base: 0, have: Ranges::default(), size: 4 },
    ];
    records.into_iter().for_each(|record| replica.apply(record).expect("a valid record"));
    replica
}

fn store(replica: &mut Replica, file: u64) {
    let change = Change { cut: 4, size: 4, ranges: Ranges::of(0..4), mtime: Time::default() };
    let operation = Operation::Store { file: FileId::new(file), change };
    replica.apply(Record::Did { operation, when: Time::default() }).expect("stored");
}

/// The log kept the time of each operation while an older one waited, even if the operation had
/// become part of another.
#[test]
fn regression_a_log_that_does_not_grow_takes_no_more_room() {
    let mut replica = replica(10);
    store(&mut replica, 2);
    let made = |kind| Made { kind, mode: 0o644, uid: 0, gid: 0, rdev: 0, target: Vec::new(), when: Time::default() };
    let operation =
        Operation::Make { at: (FileId::ROOT, b"new".to_vec()), file: FileId::new(100), made: made(Kind::File) };
    replica.apply(Record::Did { operation, when: Time::default() }).expect("made");
    store(&mut replica, 100);
    let before = replica.to_bytes().len();
    (0..10_000).for_each(|_| store(&mut replica, 100));
    assert!(replica.to_bytes().len() < before + 100, "{} bytes", replica.to_bytes().len());
}

/// Others had changed a file. Without an id for a copy beside the home's file, the client dropped
/// its own version.
#[test]
fn regression_without_ids_a_version_in_conflict_is_kept() {
    let mut replica = replica(0);
    store(&mut replica, 2);
    let outcome = Outcome::Conflict(ConflictReason::Changed);
    replica.apply(Record::Pinned(1)).expect("pinned");
    replica.apply(Record::Answered(Applied { seq: 1, outcome, facts: Vec::new() })).expect("answered");
    assert_eq!(replica.conflicts().map(|(_, conflict)| conflict.kept).collect::<Vec<_>>(), [1]);
    assert_eq!(replica.needed().collect::<Vec<_>>(), [1]);
    assert_eq!(replica.node(FileId::new(2)).map(|node| node.data), Ok(0));
}

/// Only a debug log said why nothing went home.
#[test]
fn regression_why_nothing_goes_home_is_said() {
    let full = |request: &Request, reply| match request {
        Request::Apply { operations, .. }
            if operations.iter().any(|sent| matches!(sent.operation, Operation::Store { .. })) =>
        {
            Reply::Failed(FsError::NoSpace)
        }
        _ => reply,
    };
    let (rig, client, ..) = client_of(full);
    rig.sim.block_on(perform(&client, &Op::MakeDir("/dir".into()))).expect("made");
    rig.sim.run_for(Duration::from_secs(10));
    assert_eq!(client.held_up(), None);
    rig.sim.block_on(perform(&client, &Op::Write("/file".into(), How::Replace, b"new".to_vec()))).expect("written");
    rig.sim.run_for(Duration::from_secs(10));
    assert_eq!(client.held_up(), Some(FsError::NoSpace));
}

/// The home made a new client durable before it made durable that the invitation was used. After a
/// loss of power, the invitation let in another client.
#[test]
fn regression_an_invitation_lets_in_one_whatever_crashes() {
    const SECRET: [u8; 16] = [9; 16];
    let crash_after = |steps, seed| {
        let rig = Rig::new(seed);
        let home = rig.sim.machine("home");
        let disk = rig.disk.mount(&home);
        let user = User { uid: 0, gid: 0, groups: Vec::new() };
        let until = Time { sec: i64::MAX, nsec: 0 };
        let invitation = Invitation { volumes: vec![VOLUME.into()], user, until, name: String::new() };
        rig.sim.block_on(invitation::write(&*disk, &SECRET, &invitation)).expect("invited");
        let clock = home.host().clock;
        let ask = |key, request: Request| {
            let network = rig.network(key, DELAY);
            let asked = async {
                let channel = network.dial().await.ok()?;
                unpack::<Reply>(&channel.ask(Class::Interactive, pack(&request)).await.ok()?).ok()
            };
            rig.sim.block_on(host::timeout(&*clock, Duration::from_secs(5), asked)).ok().flatten()
        };
        let running = rig.home.lock().clone().expect("home").machine;
        running.crash_after(steps);
        ask(1, Request::Enroll { secret: SECRET });
        let crashed = !running.is_up();
        rig.crash_home();
        rig.disk.power_loss();
        rig.start_home();
        let (volume, watch) = (VOLUME.to_string(), Watch::Nothing);
        let attach = Request::Attach {
            volume,
            incarnation: 1,
            acknowledged: 0,
            stamp: None,
            newest: FileId::new(0),
            watch,
            attempt: 1,
        };
        let first = matches!(ask(1, attach), Some(Reply::Attached { .. }));
        let second = matches!(ask(2, Request::Enroll { secret: SECRET }), Some(Reply::Enrolled { .. }));
        assert!(!(first && second), "both are in: {steps} steps, seed {seed}");
        crashed
    };
    for seed in 0..SEED_COUNT {
        assert!((0..1000).any(|steps| !crash_after(steps, seed)));
    }
}

/// A client fetched bytes again after a crash. The home's bytes covered those that were written
/// here behind them.
#[test]
fn regression_what_waits_to_go_home_is_not_covered_with_what_is_fetched_beside_it() {
    let setup = Setup::new(1);
    setup.done_at_home(Op::Write("/file".into(), How::Replace, "g".repeat(101).into()));
    let slow = |setup: &Setup| {
        setup.client.set(|settings| (settings.writes, settings.unit) = (Writes::Manual, Unit::Block));
    };
    slow(&setup);
    setup.rig.sim.block_on(find(&setup.client, "/file")).expect("file");
    setup.network.up.store(false, Relaxed);
    setup.done(Op::Write("/file".into(), How::At(3), "p".repeat(103).into()));
    let setup = setup.restart(false);
    slow(&setup);
    setup.online(true);
    let expected = "g".repeat(3) + &"p".repeat(103);
    let had = setup.client.look(|replica, _| replica.nodes().any(|(_, node)| node.has(3, 103) && !node.has(0, 3)));
    assert!(had, "not only the written bytes are cached");
    assert_eq!(setup.read("/file"), Ok(expected.clone()));
    setup.client.set(|settings| settings.writes = Writes::Lottery);
    setup.wait();
    assert_eq!(setup.at_home("/file"), Ok(expected));
}

/// Bytes of the old file were on their way when the file was written anew. The client put them over
/// the new ones.
#[test]
fn regression_what_is_on_its_way_when_a_file_is_written_anew_is_of_no_use_any_more() {
    what_is_on_its_way(&"new ".repeat(50_000));
    what_is_on_its_way("a");
}

fn what_is_on_its_way(new: &str) {
    let setup = Setup::new(1);
    let old = "old ".repeat(50_000);
    setup.done_at_home(Op::Write("/file".into(), How::Replace, old.clone().into()));
    setup.client.set(|settings| (settings.writes, settings.unit) = (Writes::Manual, Unit::Block));
    setup.wait();
    let (fs, client) = (setup.rig.sim.machine("reader"), setup.client.clone());
    let reading = fs.run(async move { read_all(&client, find(&client, "/file").await?).await });
    // Longer than the question takes, and shorter than the answer takes.
    setup.rig.sim.run_for(DELAY + DELAY / 2);
    setup.write("/file", new);
    drop(setup.rig.sim.block_on(reading));
    assert_eq!(setup.read("/file").as_deref(), Ok(new));
    let is_there = setup.client.look(|replica, _| {
        let files = replica.nodes().filter(|(_, node)| node.facts.kind == Kind::File);
        files.map(|(_, node)| node.have.len()).sum::<u64>()
    });
    assert_eq!(is_there, new.len() as u64, "bytes of the old file are cached");
    setup.client.set(|settings| settings.writes = Writes::Lottery);
    setup.wait();
    assert_eq!(setup.at_home("/file").as_deref(), Ok(new));
}

/// The client kept the settings that it had attached with, though its user had changed them
/// meanwhile.
#[test]
fn regression_what_is_set_while_a_client_attaches_counts() {
    let setup = Setup::new(1);
    setup.done_at_home(Op::Write("/file".into(), How::Replace, "old".into()));
    assert_eq!(setup.read("/file"), Ok("old".into()));
    setup.client.set(|settings| settings.consistency = Consistency::None);
    setup.rig.sim.run_for(DELAY / 2);
    setup.client.set(|settings| settings.consistency = Consistency::Callbacks);
    setup.wait();
    setup.done_at_home(Op::Write("/file".into(), How::Replace, "new".into()));
    setup.wait();
    assert_eq!(setup.read("/file"), Ok("new".into()));
}

/// If no more directories can be watched, a client saw changes by others only in directories that a
/// program listed.
#[test]
fn regression_what_others_change_where_nothing_can_be_watched_is_seen_after_a_while() {
    let setup = Setup::new(1);
    setup.done_at_home(Op::MakeDir("/dir".into()));
    setup.done_at_home(Op::Write("/dir/file".into(), How::Replace, "old".into()));
    let tree = setup.rig.home.lock().clone().expect("home").tree;
    tree.watch_no_more(true);
    assert_eq!(setup.read("/dir/file"), Ok("old".into()));
    setup.wait();
    for (round, text) in ["newer", "later"].into_iter().enumerate() {
        setup.done_at_home(Op::Write("/dir/file".into(), How::Replace, text.into()));
        setup.done_at_home(Op::Write(format!("/dir/{round}"), How::Replace, "made".into()));
        setup.wait();
        assert_eq!(setup.read("/dir/file"), Ok(text.into()));
        assert_eq!(setup.read(&format!("/dir/{round}")), Ok("made".into()));
        setup.done_at_home(Op::Unlink(format!("/dir/{round}")));
        setup.wait();
        assert_eq!(setup.read(&format!("/dir/{round}")), Err(FsError::NotFound));
    }
    // When directories can be watched again, the home watches them.
    tree.watch_no_more(false);
    setup.wait();
    setup.done_at_home(Op::Write("/dir/file".into(), How::Replace, "at once".into()));
    setup.rig.sim.run_for(Duration::from_secs(1));
    assert_eq!(setup.read("/dir/file"), Ok("at once".into()));
}

/// The home had told that others changed a directory. Without a network, the client said that a
/// name in it does not exist.
#[test]
fn regression_a_name_that_is_not_known_is_not_missing_without_a_network() {
    let setup = Setup::new(1);
    let find = |path: &str| setup.rig.sim.block_on(find(&setup.client, path)).map(drop);
    setup.done_at_home(Op::MakeDir("/dir".into()));
    setup.done_at_home(Op::Write("/dir/old".into(), How::Replace, b"old".to_vec()));
    setup.done_at_home(Op::MakeDir("/quiet".into()));
    setup.wait();
    assert_eq!(setup.read("/dir/old").as_deref(), Ok("old"));
    assert_eq!([find("/dir/new"), find("/quiet/new")], [Err(FsError::NotFound); 2]);
    // The home tells that the directory has changed, and no program lists it before the link is
    // lost.
    setup.done_at_home(Op::Write("/dir/new".into(), How::Replace, b"new".to_vec()));
    setup.wait();
    setup.online(false);
    assert_eq!(find("/dir/new"), Err(FsError::TimedOut), "the client cannot know");
    assert_eq!(find("/quiet/new"), Err(FsError::NotFound), "the last listing did not have it");
    assert_eq!(setup.read("/dir/old").as_deref(), Ok("old"), "a listed name can be used");
    setup.done(Op::Unlink("/dir/old".into()));
    assert_eq!(find("/dir/old"), Err(FsError::NotFound), "removed here");
    setup.done(Op::MakeDir("/dir/made".into()));
    setup.online(true);
    assert_eq!([find("/dir/new"), find("/dir/made")], [Ok(()); 2]);
}

/// `sync --home` said that everything is home when this client's version of a conflict, which
/// becomes a file of its own, was not there yet.
#[test]
fn regression_the_copy_of_a_conflict_is_home_when_everything_is() {
    let setup = Setup::new(1);
    setup.done_at_home(Op::Write("/file".into(), How::Replace, b"old".to_vec()));
    setup.wait();
    assert_eq!(setup.read("/file").as_deref(), Ok("old"));
    setup.online(false);
    setup.done(Op::Write("/file".into(), How::Replace, b"mine".to_vec()));
    setup.done_at_home(Op::Write("/file".into(), How::Replace, b"theirs".to_vec()));
    setup.network.up.store(true, Relaxed);
    setup.rig.sim.block_on(async {
        setup.client.attached().await;
        setup.client.send_all().await.expect("the home is there");
    });
    assert_eq!(setup.at_home("/file").as_deref(), Ok("theirs"));
    assert_eq!(setup.at_home("/file (conflict)").as_deref(), Ok("mine"));
}

/// A hoarded directory that others had changed was not listed again before the link went. Nothing
/// could be made in it then until the home was back.
#[test]
fn regression_what_is_hoarded_is_listed_before_the_link_goes() {
    let setup = Setup::new(1);
    let find = |path: &str| setup.rig.sim.block_on(find(&setup.client, path)).map(drop);
    setup.done_at_home(Op::MakeDir("/dir".into()));
    setup.done_at_home(Op::Write("/dir/old".into(), How::Replace, b"old".to_vec()));
    setup.wait();
    setup.rig.sim.block_on(setup.client.hoard(b"dir", Some(10))).unwrap();
    // The client walks by itself after a first change, and not again soon after that.
    setup.done_at_home(Op::MakeDir("/dir/first".into()));
    setup.rig.sim.run_for(Duration::from_secs(5));
    setup.done_at_home(Op::MakeDir("/dir/sub".into()));
    setup.done_at_home(Op::Write("/dir/sub/new".into(), How::Replace, b"new".to_vec()));
    // The home tells of the change.
    setup.rig.sim.run_for(Duration::from_secs(1));
    setup.rig.sim.block_on(setup.client.get_ready(Duration::from_secs(60), |_| {}));
    setup.online(false);
    assert_eq!([find("/dir/free"), find("/dir/sub/free")], [Err(FsError::NotFound); 2]);
    assert_eq!(setup.read("/dir/sub/new").as_deref(), Ok("new"));
}

/// With `Consistency::None`, directories stay as they were first seen, too.
#[test]
fn a_directory_that_is_believed_for_ever_has_no_names_that_nobody_knows() {
    let setup = Setup::new(1);
    let find = |path: &str| setup.rig.sim.block_on(find(&setup.client, path)).map(drop);
    setup.done_at_home(Op::MakeDir("/dir".into()));
    setup.wait();
    assert_eq!(find("/dir/new"), Err(FsError::NotFound));
    setup.done_at_home(Op::Write("/dir/new".into(), How::Replace, b"new".to_vec()));
    setup.wait();
    setup.client.set(|settings| settings.consistency = Consistency::None);
    setup.wait();
    for online in [true, false] {
        setup.online(online);
        assert_eq!(find("/dir/new"), Err(FsError::NotFound), "online: {online}");
    }
}

/// Every store met a conflict, and the client made copies of copies, without end.
#[test]
fn regression_a_copy_for_a_conflict_gets_no_copy() {
    let gone = |request: &Request, reply| match (request, reply) {
        (Request::Apply { operations, .. }, Reply::Applied(mut applied)) => {
            for (sent, applied) in operations.iter().zip(&mut applied) {
                if matches!(sent.operation, Operation::Store { .. }) {
                    applied.outcome = Outcome::Conflict(ConflictReason::Gone);
                }
            }
            Reply::Applied(applied)
        }
        (_, reply) => reply,
    };
    let (rig, client, ..) = client_of(gone);
    rig.sim.block_on(perform(&client, &Op::Write("/file".into(), How::Replace, b"new".to_vec()))).expect("written");
    rig.sim.run_for(Duration::from_secs(60));
    let conflicts: Vec<_> =
        client.look(|replica, _| replica.conflicts().map(|(_, conflict)| conflict.clone()).collect());
    assert_eq!(conflicts.len(), 1, "{conflicts:?}");
    assert!(conflicts[0].mine.is_none() && conflicts[0].kept > 0, "{conflicts:?}");
    let names = rig.fs.dump().len();
    assert!(names <= 5, "{names} files");
}

/// Another file had come to the place of a conflict's copy, and counted as that copy. Its stores
/// were kept out of the tree, as that conflict's.
#[test]
fn regression_a_file_at_the_place_of_a_copy_gets_a_copy_of_its_own() {
    let setup = Setup::new(1);
    let text = |path: &str, text: &str| Op::Write(path.into(), How::Replace, text.as_bytes().to_vec());
    setup.done(text("/file", "old"));
    setup.online(true);
    setup.online(false);
    setup.done(Op::MakeDir("/dir".into()));
    setup.done(Op::Rename("/dir".into(), "/file".into(), RenameFlags { exchange: true, ..RenameFlags::default() }));
    setup.done(text("/dir", "mine"));
    for op in [text("/dir", "something else"), text("/file", "THEIRS")] {
        setup.rig.sim.block_on(perform(&setup.rig.fs, &op)).expect("another program writes");
    }
    setup.online(true);
    setup.rig.sim.run_for(Duration::from_secs(60));
    let all = setup.rig.fs.dump().into_iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned());
    let files: Vec<_> = all.filter_map(|path| setup.at_home(&path).ok()).collect();
    for text in ["mine", "THEIRS", "something else"] {
        assert!(files.iter().any(|file| file == text), "{text} is not in {files:?}");
    }
    let kept = setup.client.look(|replica, _| replica.conflicts().filter(|(_, conflict)| conflict.kept > 0).count());
    assert_eq!(kept, 0);
}
