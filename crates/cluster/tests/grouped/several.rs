//! Several clients of one machine's managers: what they must tell each other.

use client::{Client, ClientConfig, Managers};
use cluster::StorePlace;
use cluster::config::{CLIENT_LOG, STORE_CAPACITY_BYTES_MIN};
use cluster::machine::{CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, create};
use host::Host;
use host::sim::{Machine, Sim, SimDisk};
use manager::api::{
    GiveBack, Glimpse, GlimpseAnswer, GlimpseQuestion, IndexRange, Located, Manager, ManagerError, ManagerStatus,
    Opened, SegmentDeltas, TokenHolder, TokenRecall,
};
use manager::token::Mode;
use parking_lot::Mutex;
use policy::space::{Reserves, SpaceAccount};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::watch;
use types::{Answer, BoxFuture, ClientId, FileId, FsError, LogId, Time};
use vfs::fs::{Cred, Entry, FileSystem, Handle, OpenFlags, RenameFlags, SetAttr, SetTime};
use vfs::kernel::{Kernel, Recalled};

const RUN: Run = Run {
    cache_bytes: 16 << 20,
    root_mode: 0o755,
    root_uid: 0,
    root_gid: 0,
    index_range_len: INDEX_RANGE_LEN,
    manager_lengths: Lengths::LARGEST,
    accepts_loss: false,
    claim: cluster::Claim::NONE,
};
const FIRST: ClientId = ClientId::new(1);
const SECOND: ClientId = ClientId::new(2);
const SECOND_LOG: LogId = LogId::new(1025);

/// A manager that a client's changes do not reach while it is told so.
struct Halting {
    manager: Arc<dyn Manager>,
    halted: Arc<AtomicBool>,
    /// How often the client gave something back.
    back_count: Arc<AtomicU64>,
    host: Host,
}

impl Manager for Halting {
    fn apply(&self, segments: Vec<SegmentDeltas>) -> Answer<(), ManagerError> {
        let (manager, halted, clock) = (self.manager.clone(), self.halted.clone(), self.host.clock.clone());
        Answer::later(async move {
            while halted.load(SeqCst) {
                clock.sleep(Duration::from_millis(100)).await;
            }
            manager.apply(segments).await
        })
    }

    fn open(&self, client: ClientId, file: FileId, mode: Mode) -> Answer<Opened, ManagerError> {
        self.manager.open(client, file, mode)
    }

    fn open_many(
        &self,
        client: ClientId,
        files: &[FileId],
        mode: Mode,
    ) -> Answer<Vec<Result<Opened, ManagerError>>, ManagerError> {
        self.manager.open_many(client, files, mode)
    }

    fn glimpse(&self, client: ClientId, file: FileId) -> Answer<Glimpse, ManagerError> {
        self.manager.glimpse(client, file)
    }

    fn glimpsed(&self, client: ClientId, answer: GlimpseAnswer) {
        self.manager.glimpsed(client, answer);
    }

    fn locate(&self, client: ClientId, file: FileId, first: u64) -> Answer<Located, ManagerError> {
        self.manager.locate(client, file, first)
    }

    fn release(&self, client: ClientId, file: FileId, number: u64) {
        self.manager.release(client, file, number);
    }

    fn give_back(&self, client: ClientId, back: GiveBack) {
        self.back_count.fetch_add(1, SeqCst);
        self.manager.give_back(client, back);
    }

    fn closed(&self, client: ClientId, file: FileId) -> Answer<bool, ManagerError> {
        self.manager.closed(client, file)
    }

    fn allocate(&self, client: ClientId, volume: u16) -> Answer<IndexRange, ManagerError> {
        self.manager.allocate(client, volume)
    }

    fn orphans(&self) -> Answer<Vec<FileId>, ManagerError> {
        self.manager.orphans()
    }

    fn status(&self) -> ManagerStatus {
        self.manager.status()
    }
}

/// What a kernel was asked: a name of the root that ends, and its directory.
type Asked = (Vec<u8>, Option<FileId>);

/// Remembers what it was told to forget, and what it was asked.
#[derive(Default)]
struct Told {
    files: Mutex<BTreeSet<FileId>>,
    asked: Mutex<Vec<Asked>>,
    /// It means other directories by all names.
    refuses: AtomicBool,
}

impl Kernel for Told {
    fn forget(&self, what: Recalled) -> BoxFuture<()> {
        self.files.lock().extend(what.files);
        Box::pin(std::future::ready(()))
    }

    fn may_end(&self, parent: FileId, name: &[u8], directory: Option<FileId>) -> bool {
        assert_eq!(parent, FileId::ROOT);
        self.asked.lock().push((name.to_vec(), directory));
        !self.refuses.load(SeqCst)
    }
}

/// Takes long to forget a file.
struct Slow {
    file: FileId,
    is_slow: watch::Sender<bool>,
}

impl Kernel for Slow {
    fn forget(&self, what: Recalled) -> BoxFuture<()> {
        let (mut is_slow, waits) = (self.is_slow.subscribe(), what.files.contains(&self.file));
        Box::pin(async move {
            if waits {
                // The sender lives as long as the kernel.
                let _ = is_slow.wait_for(|slow| !slow).await;
            }
        })
    }
}

/// A machine with two clients, which know of each other.
struct Pair {
    sim: Sim,
    machine: CoreMachine,
    on: Machine,
    first: Client,
    second: Client,
    /// What the second client told its kernel.
    told: Arc<Told>,
    /// The second client's changes do not reach the managers.
    halted: Arc<AtomicBool>,
    /// How often the second client gave something back.
    back_count: Arc<AtomicU64>,
}

fn pair(inode_count_max: usize) -> Pair {
    let sim = Sim::new(23);
    let disk = || SimDisk::new(&sim, 64 * STORE_CAPACITY_BYTES_MIN);
    let (stores, consensus): (Vec<SimDisk>, SimDisk) = ((0..3).map(|_| disk()).collect(), disk());
    let on = sim.machine("one");
    let host = on.host();
    let places: Vec<StorePlace> = stores.iter().map(|disk| disk.mount(&on).into()).collect();
    let consensus: Arc<dyn host::Disk> = consensus.mount(&on);
    let store_capacity_bytes = Some(STORE_CAPACITY_BYTES_MIN);
    let how = Create { parity: 1, block_size: 65536, manager_count: 1, store_capacity_bytes };
    sim.block_on(create(&host, &places, &consensus, how)).expect("create");
    let machine = sim.block_on(CoreMachine::start(host.clone(), &places, &consensus, RUN)).expect("start");
    sim.run_for(Duration::from_secs(1));
    let (halted, back_count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let managers = machine.servers().into_iter().map(|manager| {
        let (manager, halted, host) = (manager.clone(), halted.clone(), host.clone());
        Arc::new(Halting { manager, halted, back_count: back_count.clone(), host }) as Arc<dyn Manager>
    });
    let managers = Managers::new(machine.config.managers.clone(), managers.collect());
    let opened = manager::roll_forward::roll_forward(&machine.stripe, &machine.managers, SECOND_LOG);
    let (tail, _) = sim.block_on(opened).expect("open the log");
    let config = ClientConfig {
        id: SECOND,
        block_size: machine.config.block_size,
        cache_bytes: 16 << 20,
        inode_count_max,
        lease: Duration::from_secs(3600),
        lease_until: None,
    };
    let space = SpaceAccount::new(Reserves::new(0, 0), u64::MAX, 0);
    let second = Client::start(host, config, space, managers, machine.stripe.clone(), tail);
    let told = Arc::new(Told::default());
    second.set_kernel(told.clone());
    let first = machine.client.clone();
    for manager in &machine.servers() {
        manager.admit(FIRST, CLIENT_LOG, Arc::new(first.clone()));
        manager.admit(SECOND, SECOND_LOG, Arc::new(second.clone()));
    }
    Pair { sim, machine, on, first, second, told, halted, back_count }
}

impl Pair {
    fn create(&self, name: &str) -> (FileId, Handle) {
        let created = self.first.create(&Cred::ROOT, FileId::ROOT, name.as_bytes(), 0o644, 0, OpenFlags::default());
        let (entry, handle) = self.sim.block_on(created.into_future()).expect("create a file");
        (entry.attr.id, handle)
    }

    fn expect_no_orphans(&self) {
        for client in [&self.first, &self.second] {
            self.sim.block_on(client.sync().into_future()).expect("sync");
            self.sim.block_on(client.settle());
        }
        let manager = self.machine.servers()[0].clone();
        let audit = self.on.run(async move { manager.audit().await });
        let report = self.sim.block_on(audit).expect("up").expect("audit");
        assert_eq!(report.orphans, []);
    }
}

/// The first client had the root of a new file system in memory, and its manager did not know.
#[test]
fn regression_the_root_of_a_new_file_system_is_under_a_token() {
    let Pair { sim, first, second, .. } = pair(100);
    let set = SetAttr { mode: Some(0o700), ..Default::default() };
    sim.block_on(second.setattr(&Cred::ROOT, FileId::ROOT, None, set).into_future()).expect("setattr");
    let root = sim.block_on(first.getattr(FileId::ROOT).into_future()).expect("getattr");
    assert_eq!(root.attr.mode, 0o700, "the first client shows what it had in memory");
}

/// At a start, the first client opened the root to see whether there is one, and did not know of
/// the token that it got with that.
#[test]
fn regression_a_start_keeps_no_token() {
    let Pair { sim, machine, .. } = pair(100);
    let granted = |machine: &CoreMachine| machine.servers()[0].status().token_count;
    let before = granted(&machine);
    sim.block_on(machine.client.prepare(0o755, 0, 0)).expect("prepare again");
    assert_eq!(granted(&machine), before);
}

/// A client dropped a file from memory, and freed its token, while its kernel still showed the
/// file's attributes.
#[test]
fn regression_a_kernel_forgets_what_its_client_evicts() {
    let pair = pair(2);
    let files: Vec<FileId> = (0..20).map(|number| pair.create(&format!("f{number}")).0).collect();
    pair.sim.block_on(pair.first.sync().into_future()).expect("sync");
    pair.sim.block_on(pair.first.settle());
    for &file in &files {
        pair.sim.block_on(pair.second.getattr(file).into_future()).expect("getattr");
    }
    pair.sim.run_for(Duration::from_secs(1));
    let (in_memory, told) = (pair.second.status().inode_count as usize, pair.told.files.lock().len());
    assert!(in_memory < files.len(), "nothing was evicted");
    assert!(told + in_memory >= files.len(), "{in_memory} files in memory, the kernel forgot {told}");
}

/// A client that had a file open closed it before the manager knew that another client had removed
/// its last name. So each left the file to the other.
#[test]
fn regression_a_file_that_is_closed_before_its_unlink_is_known_is_removed() {
    let pair = pair(100);
    let (file, handle) = pair.create("a");
    pair.halted.store(true, SeqCst);
    pair.sim.block_on(pair.second.unlink(&Cred::ROOT, FileId::ROOT, b"a").into_future()).expect("unlink");
    pair.sim.block_on(pair.first.release(file, handle, None).into_future()).expect("release");
    pair.sim.run_for(Duration::from_secs(5));
    pair.halted.store(false, SeqCst);
    pair.sim.run_for(Duration::from_secs(20));
    pair.expect_no_orphans();
}

/// A client that only knew of a file kept it from being removed when the client that had it open
/// was gone.
#[test]
fn regression_a_dead_clients_open_file_goes_though_another_client_knows_it() {
    let pair = pair(100);
    let (file, handle) = pair.create("a");
    let flags = OpenFlags { read: true, ..Default::default() };
    pair.sim.block_on(pair.second.lookup(&Cred::ROOT, FileId::ROOT, b"a").into_future()).expect("lookup");
    pair.sim.block_on(pair.second.open(&Cred::ROOT, file, flags).into_future()).expect("open");
    pair.sim.block_on(pair.first.release(file, handle, None).into_future()).expect("release");
    pair.sim.block_on(pair.first.unlink(&Cred::ROOT, FileId::ROOT, b"a").into_future()).expect("unlink");
    pair.sim.run_for(Duration::from_secs(5));
    pair.sim.block_on(pair.first.getattr(file).into_future()).expect("the second client has it open");
    pair.second.stop();
    let opened = manager::roll_forward::roll_forward(&pair.machine.stripe, &pair.machine.managers, SECOND_LOG);
    pair.sim.block_on(opened).expect("roll forward");
    pair.machine.servers()[0].expel(SECOND);
    pair.sim.block_on(pair.first.sweep_orphans()).expect("sweep");
    pair.expect_no_orphans();
}

/// A request for a file that its holder had removed waited for ever: the removal freed the tokens,
/// and the holder's answer to the recall changed nothing any more.
#[test]
fn regression_a_request_for_a_file_that_is_being_removed_ends() {
    let pair = pair(100);
    let (file, handle) = pair.create("a");
    pair.sim.block_on(pair.first.release(file, handle, None).into_future()).expect("release");
    pair.halted.store(true, SeqCst);
    pair.sim.block_on(pair.second.unlink(&Cred::ROOT, FileId::ROOT, b"a").into_future()).expect("unlink");
    let answer = Arc::new(Mutex::new(None));
    let (asked, first) = (answer.clone(), pair.first.clone());
    pair.on.host().tasks.spawn(Box::pin(async move {
        let found = first.getattr(file).await;
        *asked.lock() = Some(found.map(|_| ()));
    }));
    pair.sim.run_for(Duration::from_secs(5));
    assert_eq!(*answer.lock(), None, "nobody had to wait");
    pair.halted.store(false, SeqCst);
    pair.sim.run_for(Duration::from_secs(30));
    assert_eq!(*answer.lock(), Some(Err(FsError::Stale)));
}

/// An operation that had pinned a file, and waited for another one, took the pin for the token of
/// the file when another operation here had removed the file: EIO after ten thousand attempts.
#[test]
fn regression_a_pinned_file_that_another_operation_removes_is_stale() {
    let (pair, root, cred) = (pair(100), FileId::ROOT, &Cred::ROOT);
    let Pair { sim, first, second, .. } = &pair;
    let (file, handle) = pair.create("file");
    sim.block_on(first.release(file, handle, None).into_future()).expect("release");
    let dir = sim.block_on(first.mkdir(cred, root, b"dir", 0o755, 0).into_future()).expect("mkdir").attr.id;
    assert!(file < dir, "an operation pins the file with the smaller id");
    let set = SetAttr { mode: Some(0o600), ..Default::default() };
    sim.block_on(second.lookup(cred, root, b"file").into_future()).expect("lookup");
    sim.block_on(second.setattr(cred, file, None, set).into_future()).expect("setattr");
    sim.block_on(second.mkdir(cred, root, b"other", 0o755, 0).into_future()).expect("mkdir");
    // The first client's kernel is slow to forget the directory.
    let slow = Arc::new(Slow { file: dir, is_slow: watch::Sender::new(true) });
    first.set_kernel(slow.clone());
    let answer = Arc::new(Mutex::new(None));
    let (linked, linking) = (answer.clone(), second.clone());
    pair.on.host().tasks.spawn(Box::pin(async move {
        let link = linking.link(&Cred::ROOT, file, dir, b"link").await;
        *linked.lock() = Some(link.map(|_| ()));
    }));
    sim.run_for(Duration::from_secs(1));
    sim.block_on(second.unlink(cred, root, b"file").into_future()).expect("unlink");
    sim.run_for(Duration::from_secs(1));
    assert_eq!(*answer.lock(), None, "the link waits for the directory");
    slow.is_slow.send_replace(false);
    sim.run_for(Duration::from_secs(5));
    assert_eq!(*answer.lock(), Some(Err(FsError::Stale)));
    pair.expect_no_orphans();
}

/// The kernel means other directories than the file system, since another node has moved them.
#[test]
fn a_directory_ends_only_if_the_kernel_means_it() {
    let Pair { sim, second, told, .. } = pair(100);
    let (root, cred) = (FileId::ROOT, &Cred::ROOT);
    let make = |name: &str| sim.block_on(second.mkdir(cred, root, name.as_bytes(), 0o755, 0).into_future());
    let rename = |from: &str, to: &str, exchange: bool| {
        let flags = RenameFlags { exchange, ..Default::default() };
        sim.block_on(second.rename(cred, root, from.as_bytes(), root, to.as_bytes(), flags).into_future())
    };
    let remove = |name: &str| sim.block_on(second.rmdir(cred, root, name.as_bytes()).into_future());
    let asked = || std::mem::take(&mut *told.asked.lock());
    let [a, b, full] = ["a", "b", "full"].map(|name| make(name).expect("mkdir").attr.id);
    sim.block_on(second.mkdir(cred, full, b"below", 0o755, 0).into_future()).expect("mkdir");
    let file = sim.block_on(second.create(cred, root, b"file", 0o644, 0, OpenFlags::default()).into_future());
    let file = file.expect("create").0.attr.id;
    sim.block_on(second.link(cred, file, root, b"link").into_future()).expect("link");
    let name = |name: &str, directory| (name.as_bytes().to_vec(), directory);
    told.refuses.store(true, SeqCst);
    let ends = || [remove("a"), rename("b", "a", false), rename("file", "new", false), rename("file", "link", false)];
    assert_eq!(ends(), [Err(FsError::Stale); 4]);
    assert_eq!(asked(), [name("a", Some(a)), name("a", Some(a)), name("new", None), name("link", None)]);
    assert_eq!(rename("a", "a", false), Err(FsError::Stale));
    assert_eq!(asked(), [name("a", Some(a))]);
    // What fails, and what ends nothing, needs no answer.
    assert_eq!([remove("full"), rename("a", "full", false)], [Err(FsError::NotEmpty); 2]);
    assert_eq!([remove("none"), rename("none", "a", false)], [Err(FsError::NotFound); 2]);
    assert_eq!(rename("a", "b", true), Ok(()));
    assert_eq!(asked(), []);
    told.refuses.store(false, SeqCst);
    assert_eq!([rename("a", "b", false), remove("b")], [Ok(()); 2]);
    assert_eq!(asked(), [name("b", Some(a)), name("b", Some(b))]);
}

/// A client that hears recalls, but no questions for attributes.
struct Deaf(Client);

impl TokenHolder for Deaf {
    fn recall(&self, recalls: Vec<TokenRecall>) {
        self.0.recall(recalls);
    }

    fn glimpse(&self, _: GlimpseQuestion) {}
}

const READ: OpenFlags = OpenFlags { read: true, write: false, append: false, truncate: false, execute: false };
const WRITE: OpenFlags = OpenFlags { write: true, ..READ };

impl Pair {
    /// The second client makes a file, which the first one has looked up.
    fn written(&self) -> (FileId, Handle) {
        let created = self.second.create(&Cred::ROOT, FileId::ROOT, b"log", 0o644, 0, WRITE);
        let (entry, handle) = self.sim.block_on(created.into_future()).expect("create a file");
        self.lookup();
        self.write(entry.attr.id, handle, 0);
        (entry.attr.id, handle)
    }

    fn write(&self, file: FileId, handle: Handle, offset: u64) {
        let written = self.second.write(&Cred::ROOT, file, handle, offset, b"0123456789");
        assert_eq!(self.sim.block_on(written.into_future()), Ok(10));
    }

    /// The first client looks the file up.
    fn lookup(&self) -> Entry {
        let found = self.first.lookup(&Cred::ROOT, FileId::ROOT, b"log");
        self.sim.block_on(found.into_future()).expect("lookup")
    }

    /// The first client looks at the file.
    fn stat(&self, file: FileId) -> Entry {
        self.sim.block_on(self.first.getattr(file).into_future()).expect("getattr")
    }

    /// How often the second client gave something back, and its newest cut.
    fn handed_over(&self) -> (u64, u64) {
        (self.back_count.load(SeqCst), self.second.status().last_cut)
    }
}

#[test]
fn a_stat_of_a_file_that_another_client_writes_costs_no_hand_over() {
    let pair = pair(100);
    let (file, handle) = pair.written();
    let (before, in_memory) = (pair.handed_over(), pair.first.status().inode_count);
    for number in 1..20 {
        pair.write(file, handle, 10 * number);
        let seen = [pair.stat(file), pair.lookup()];
        assert_eq!(seen.map(|entry| entry.attr.size), [10 * number + 10; 2]);
        assert_eq!(seen.map(|entry| entry.valid), [Duration::ZERO; 2], "the kernel would never be told of changes");
        assert!(!seen[1].name_valid.is_zero(), "the name is under the directory's token");
    }
    assert_eq!(pair.handed_over(), before, "the writer gave its token back, or committed");
    assert_eq!(pair.first.status().inode_count, in_memory, "the file is in memory without a token");
    // All attributes are those of the writer.
    let times = SetAttr { mode: Some(0o600), mtime: Some(SetTime::At(Time { sec: 7, nsec: 8 })), ..Default::default() };
    let changed = pair.second.setattr(&Cred::ROOT, file, None, times);
    let changed = pair.sim.block_on(changed.into_future()).expect("setattr");
    assert_eq!(pair.stat(file).attr, changed.attr);
    assert_eq!(pair.handed_over(), before);
}

#[test]
fn many_programs_look_at_a_file_that_another_client_writes() {
    let pair = pair(100);
    let (file, _) = pair.written();
    let before = pair.handed_over();
    let looks = (0..50).map(|_| pair.first.getattr(file).into_future()).collect();
    let seen = pair.sim.block_on(host::join_all(looks));
    assert!(seen.iter().all(|entry| entry.is_ok_and(|entry| entry.attr.size == 10)), "{seen:?}");
    assert_eq!(pair.handed_over(), before);
}

#[test]
fn what_no_program_changes_is_kept_after_one_stat() {
    let pair = pair(100);
    let (file, handle) = pair.written();
    pair.sim.block_on(pair.second.release(file, handle, None).into_future()).expect("release");
    pair.sim.block_on(pair.second.sync().into_future()).expect("sync");
    pair.sim.block_on(pair.second.settle());
    let (backs, cut) = pair.handed_over();
    let first = pair.stat(file);
    let asked = pair.first.status().inode_fetch_count;
    assert_eq!((first.attr.size, pair.stat(file)), (10, first));
    assert!(!first.valid.is_zero(), "the kernel may keep it");
    assert_eq!(pair.first.status().inode_fetch_count, asked, "the second stat asks again");
    assert_eq!(pair.handed_over(), (backs + 1, cut), "the writer keeps the right to read");
}

#[test]
fn what_decides_something_takes_a_token_and_sees_what_is_durable() {
    let pair = pair(100);
    let (file, _) = pair.written();
    let before = pair.handed_over();
    pair.sim.block_on(pair.first.access(&Cred::ROOT, file, 4).into_future()).expect("access");
    assert_ne!(pair.handed_over(), before);
    let (file, _) = {
        let created = pair.second.create(&Cred::ROOT, FileId::ROOT, b"other", 0o644, 0, WRITE);
        let (entry, handle) = pair.sim.block_on(created.into_future()).expect("create a file");
        pair.sim.block_on(pair.first.lookup(&Cred::ROOT, FileId::ROOT, b"other").into_future()).expect("lookup");
        pair.write(entry.attr.id, handle, 0);
        (entry.attr.id, handle)
    };
    let before = pair.handed_over();
    let handle = pair.sim.block_on(pair.first.open(&Cred::ROOT, file, READ).into_future()).expect("open");
    assert_ne!(pair.handed_over(), before);
    let read = pair.sim.block_on(pair.first.read(file, handle, 0, 100).into_future()).expect("read");
    assert_eq!(&read[..], b"0123456789");
}

#[test]
fn a_stat_does_not_wait_for_ever_for_a_client_that_does_not_answer() {
    let pair = pair(100);
    let (file, _) = pair.written();
    for manager in &pair.machine.servers() {
        manager.admit(SECOND, SECOND_LOG, Arc::new(Deaf(pair.second.clone())));
    }
    let before = pair.handed_over();
    assert_eq!(pair.stat(file).attr.size, 10);
    assert_ne!(pair.handed_over(), before, "its token was not recalled");
}

#[test]
fn a_stat_ends_when_the_writer_is_gone() {
    let pair = pair(100);
    let (file, handle) = pair.written();
    pair.sim.block_on(pair.second.fsync(file, handle, false).into_future()).expect("fsync");
    pair.write(file, handle, 10);
    for manager in &pair.machine.servers() {
        manager.admit(SECOND, SECOND_LOG, Arc::new(Deaf(pair.second.clone())));
    }
    let answer = Arc::new(Mutex::new(None));
    let (asked, first) = (answer.clone(), pair.first.clone());
    pair.on.host().tasks.spawn(Box::pin(async move {
        let found = first.getattr(file).await;
        *asked.lock() = Some(found.map(|entry| entry.attr.size));
    }));
    pair.sim.run_for(Duration::from_millis(10));
    assert_eq!(*answer.lock(), None);
    pair.second.abandon();
    let opened = manager::roll_forward::roll_forward(&pair.machine.stripe, &pair.machine.managers, SECOND_LOG);
    pair.sim.block_on(opened).expect("roll forward");
    pair.machine.servers()[0].expel(SECOND);
    pair.sim.run_for(Duration::from_millis(10));
    assert_eq!(*answer.lock(), Some(Ok(10)), "what was not synced is lost");
}
