//! What programs do at the nodes, and what must hold of it.

use crate::Happened;
use crate::rig::{Rig, nodes};
use cluster::member::Member;
use host::{Host, SplitMix64};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use types::{FileId, FsError, NodeId};
use vfs::fs::{Cred, FileLock, FileSystem, Handle, LockSpace, OpenFlags};

const READ_WRITE: OpenFlags = OpenFlags { read: true, write: true, append: false, truncate: false, execute: false };
const COUNTER: &[u8] = b"counter";
/// Longest pause between two operations of a program, in milliseconds.
const PAUSE_MAX: u64 = 300;

/// What programs know.
#[derive(Default)]
struct Known {
    /// Files that were synced. Their contents are their names.
    synced: Vec<String>,
    /// How often the counter was raised, durably.
    counted: u64,
    /// How often that may have been done.
    unknown: u64,
    /// Operations that have begun, by program.
    begun: BTreeMap<NodeId, (Duration, &'static str)>,
    lives: u64,
    is_over: bool,
}

impl Known {
    /// The number of a node's next life.
    fn begin_life(&mut self, node: NodeId) -> u64 {
        self.begun.remove(&node);
        self.lives += 1;
        self.lives
    }
}

/// The programs of all nodes.
pub struct Work {
    known: Arc<Mutex<Known>>,
    members: BTreeMap<NodeId, Arc<Member>>,
}

/// A program at a node.
struct Program {
    node: NodeId,
    life: u64,
    fs: Arc<dyn FileSystem>,
    host: Host,
    known: Arc<Mutex<Known>>,
}

impl Work {
    pub fn new() -> Work {
        Work { known: Arc::default(), members: BTreeMap::new() }
    }

    /// Starts a node, and programs on it.
    pub fn start(&mut self, rig: &Rig, node: NodeId) {
        let Some(member) = rig.start(node) else {
            self.members.remove(&node);
            return self.start_at_first(rig, node);
        };
        self.members.insert(node, member.clone());
        let host = rig.machine(node).host();
        let life = self.known.lock().begin_life(node);
        let (fs, known) = (member.file_system(), self.known.clone());
        let program = Arc::new(Program { node, life, fs, host: host.clone(), known });
        let reader = program.clone();
        host.tasks.spawn(Box::pin(async move { reader.keep_looking().await }));
        host.tasks.spawn(Box::pin(async move {
            // The end of a session is no reason not to wait for the next one.
            while member.ready().await.is_err() {
                program.host.clock.sleep(Duration::from_millis(200)).await;
            }
            program.run().await;
        }));
    }

    /// Has programs run at a node whenever it serves as the first one.
    fn start_at_first(&self, rig: &Rig, node: NodeId) {
        let (known, process) = (self.known.clone(), rig.net.process(node).expect("it was started"));
        let host = rig.machine(node).host();
        host.clone().tasks.spawn(Box::pin(async move {
            loop {
                // The programs before have ended with their machine.
                let life = known.lock().begin_life(node);
                let first = loop {
                    host.clock.sleep(Duration::from_millis(100)).await;
                    let first = process.first.lock().clone();
                    if let Some(first) = first.filter(|first| first.up.get().is_some()) {
                        break first;
                    }
                };
                let fs = Arc::new(first.up.get().expect("it has started").core.client.clone());
                let (machine, known) = (first.machine.clone(), known.clone());
                let program = Arc::new(Program { node, life, fs, host: machine.host(), known });
                let reader = program.clone();
                let looks = machine.run(async move { reader.keep_looking().await });
                if machine.run(async move { program.run().await }).await.is_ok() {
                    let _ = looks.await;
                    return;
                }
            }
        }));
    }

    /// Makes the counter, and waits until all nodes vote.
    pub fn begin(&self, rig: &Rig) {
        self.make_counter(rig, &self.members[&NodeId::new(1)]);
    }

    /// The same, by way of this member.
    pub fn make_counter(&self, rig: &Rig, member: &Arc<Member>) {
        let sim = &rig.net.sim;
        let ready = in_time(rig, member.ready());
        assert!(ready.is_some_and(|ready| ready.is_ok()), "no session: {}", rig.shown());
        let fs = member.file_system();
        let made = async {
            let counter = fs.create(&Cred::ROOT, FileId::ROOT, COUNTER, 0o644, 0, READ_WRITE).await?;
            fs.write(&Cred::ROOT, counter.0.attr.id, counter.1, 0, &[0; 8]).await?;
            fs.release(counter.0.attr.id, counter.1, None).await?;
            fs.sync().await
        };
        assert_eq!(in_time(rig, made), Some(Ok(())), "the counter: {}", rig.shown());
        let until = sim.now() + Duration::from_secs(30);
        let votes = || {
            let process = rig.net.process(NodeId::new(1)).expect("a process");
            process.voter().expect("a voter").1.voters().len()
        };
        while votes() < nodes().count() {
            assert!(sim.now() < until, "{} voters", votes());
            rig.run_for(Duration::from_millis(100));
        }
    }

    /// Waits until all programs have ended, and checks what is there.
    pub fn end(&self, rig: &Rig, seed: u64, time_max: Duration) {
        let sim = &rig.net.sim;
        let until = sim.now() + time_max;
        self.known.lock().is_over = true;
        loop {
            // Nodes that were removed meanwhile have no session any more.
            let members = rig.members();
            let mut begun = self.known.lock().begun.clone();
            let leader = rig.leader();
            begun.retain(|node, _| {
                leader == Some(*node) || members.as_ref().is_none_or(|members| members.contains(node))
            });
            if begun.is_empty() && members.is_some() {
                break;
            }
            assert!(sim.now() < until, "seed {seed}: at {:?} these do not end: {begun:?}; {}", sim.now(), rig.shown());
            rig.run_for(Duration::from_millis(100));
        }
        let members = rig.members().expect("a leader");
        {
            let fates = rig.fates.lock();
            let must_be = nodes().chain(fates.joined.iter().copied()).filter(|node| !fates.asked.contains(node));
            let lost: Vec<NodeId> = must_be.filter(|node| !members.contains(node)).collect();
            let back: Vec<&NodeId> = fates.removed.intersection(&members).collect();
            assert_eq!((lost, back), (vec![], vec![]), "seed {seed}: nodes were lost, or are back");
        }
        for (node, member) in &self.members {
            let ready = in_time(rig, member.ready());
            if !rig.members().unwrap_or_else(|| members.clone()).contains(node) {
                assert!(!matches!(ready, Some(Ok(()))), "seed {seed}: {node} has a session, and was removed");
                continue;
            }
            assert!(ready.is_some_and(|ready| ready.is_ok()), "seed {seed}: {node} gets no session: {}", rig.shown());
            self.check(rig, seed, *node, &*member.file_system());
        }
        if let Some(node) = rig.recovered().filter(|node| rig.leader() == Some(*node)) {
            let first = rig.led().expect("a leader");
            self.check(rig, seed, node, &first.up.get().expect("it has started").core.client);
        }
    }

    /// Checks what is there, as a node sees it.
    fn check(&self, rig: &Rig, seed: u64, node: NodeId, fs: &dyn FileSystem) {
        let dice = rig.net.sim.machine("dice").host();
        let (synced, possible) = {
            let known = self.known.lock();
            (known.synced.clone(), known.counted..=known.counted + known.unknown)
        };
        for name in &synced {
            let found = in_time(rig, read_patiently(fs, name.as_bytes(), &dice));
            assert_eq!(found, Some(Ok(name.clone().into_bytes())), "seed {seed}: {name} at {node}");
        }
        let counted = in_time(rig, read_patiently(fs, COUNTER, &dice)).expect("in time").expect("the counter");
        let counted = counted.as_slice().try_into().map_or(0, u64::from_le_bytes);
        assert!(possible.contains(&counted), "seed {seed}: counted {counted} at {node}, and not {possible:?}");
    }

    pub fn seen(&self, happened: &mut Happened) {
        let known = self.known.lock();
        happened.synced += known.synced.len() as u64;
        happened.counted += known.counted;
        happened.unknown += known.unknown;
    }
}

/// What the counter shows, by this open file or a new one, and that.
pub async fn look(fs: &dyn FileSystem, open: Option<(FileId, Handle)>) -> Result<(u64, (FileId, Handle)), FsError> {
    let (id, handle) = match open {
        Some(open) => open,
        None => {
            let id = fs.lookup(&Cred::ROOT, FileId::ROOT, COUNTER).await?.attr.id;
            (id, fs.open(&Cred::ROOT, id, OpenFlags { read: true, ..Default::default() }).await?)
        }
    };
    let found = fs.read(id, handle, 0, 8).await?;
    Ok((found.as_ref().try_into().map_or(0, u64::from_le_bytes), (id, handle)))
}

/// Has the counter show this, durably.
pub async fn raise(fs: &dyn FileSystem, to: u64) -> Result<(), FsError> {
    let id = fs.lookup(&Cred::ROOT, FileId::ROOT, COUNTER).await?.attr.id;
    let handle = fs.open(&Cred::ROOT, id, READ_WRITE).await?;
    fs.write(&Cred::ROOT, id, handle, 0, &to.to_le_bytes()).await?;
    fs.fsync(id, handle, false).await
}

/// Reads a file. A session may end meanwhile, of a node that was away for long.
async fn read_patiently(fs: &dyn FileSystem, name: &[u8], host: &Host) -> Result<Vec<u8>, FsError> {
    loop {
        match read(fs, name).await {
            Err(FsError::Io) => host.clock.sleep(Duration::from_millis(100)).await,
            read => return read,
        }
    }
}

/// Waits for something that must come to an end soon.
pub fn in_time<T>(rig: &Rig, work: impl Future<Output = T>) -> Option<T> {
    let clock = rig.net.sim.machine("dice").host().clock;
    rig.net.sim.block_on(host::timeout(&*clock, Duration::from_secs(60), work)).ok()
}

/// Makes a file with its name in it, durably.
pub async fn make(fs: &dyn FileSystem, name: &str) -> Result<(), FsError> {
    let (entry, handle) = fs.create(&Cred::ROOT, FileId::ROOT, name.as_bytes(), 0o644, 0, READ_WRITE).await?;
    let written = async {
        fs.write(&Cred::ROOT, entry.attr.id, handle, 0, name.as_bytes()).await?;
        fs.fsync(entry.attr.id, handle, false).await
    };
    let written = written.await;
    fs.release(entry.attr.id, handle, None).await?;
    written
}

async fn read(fs: &dyn FileSystem, name: &[u8]) -> Result<Vec<u8>, FsError> {
    let id = fs.lookup(&Cred::ROOT, FileId::ROOT, name).await?.attr.id;
    let handle = fs.open(&Cred::ROOT, id, OpenFlags { read: true, ..Default::default() }).await?;
    let bytes = fs.read(id, handle, 0, 100).await;
    fs.release(id, handle, None).await?;
    Ok(bytes?.to_vec())
}

impl Program {
    async fn run(&self) {
        let random = SplitMix64::new(self.host.random.next_u64());
        for number in 0.. {
            if self.known.lock().is_over {
                break;
            }
            let what = ["make", "read", "count"][random.below(3) as usize];
            self.known.lock().begun.insert(self.node, (self.host.clock.now(), what));
            match what {
                "make" => drop(self.make(number).await),
                "read" => self.read_one(&random).await,
                _ => drop(self.count(&random).await),
            }
            self.known.lock().begun.remove(&self.node);
            self.host.clock.sleep(Duration::from_millis(random.below(PAUSE_MAX))).await;
        }
    }

    async fn make(&self, number: u64) -> Result<(), FsError> {
        let name = format!("{}-{}-{number}", self.node, self.life);
        make(&*self.fs, &name).await?;
        self.known.lock().synced.push(name);
        Ok(())
    }

    /// A file that was synced must be there, unless the node cannot answer.
    async fn read_one(&self, random: &SplitMix64) {
        let name = {
            let known = self.known.lock();
            if known.synced.is_empty() {
                return;
            }
            known.synced[random.below(known.synced.len() as u64) as usize].clone()
        };
        match read(&*self.fs, name.as_bytes()).await {
            Ok(contents) => assert_eq!(contents, name.as_bytes(), "{name} at {}", self.node),
            Err(error) => assert_ne!(error, FsError::NotFound, "{name} at {}", self.node),
        }
    }

    /// Another program, which reads without a lock from a file that it has open. What it reads is
    /// not older than what was told before.
    async fn keep_looking(&self) {
        let mut open = None;
        while !self.known.lock().is_over {
            let told = self.known.lock().counted;
            match look(&*self.fs, open).await {
                Ok((found, there)) => {
                    assert!(found >= told, "{} sees {found}, when {told} were counted", self.node);
                    open = Some(there);
                }
                Err(_) => open = None,
            }
            self.host.clock.sleep(Duration::from_millis(self.host.random.next_u64() % PAUSE_MAX)).await;
        }
    }

    /// Raises the counter by one, under its lock.
    async fn count(&self, random: &SplitMix64) -> Result<(), FsError> {
        let id = self.fs.lookup(&Cred::ROOT, FileId::ROOT, COUNTER).await?.attr.id;
        let handle = self.fs.open(&Cred::ROOT, id, READ_WRITE).await?;
        let counted = self.count_in(id, handle, random).await;
        // This frees the lock.
        self.fs.release(id, handle, Some(handle.0)).await?;
        counted
    }

    async fn count_in(&self, id: FileId, handle: Handle, random: &SplitMix64) -> Result<(), FsError> {
        let owner = handle.0.into();
        let lock = |exclusive| FileLock { space: LockSpace::Flock, owner, pid: 1, exclusive, start: 0, end: 9 };
        self.fs.setlk(id, handle, lock(Some(true)), true).await?;
        let told = self.known.lock().counted;
        let before = self.fs.read(id, handle, 0, 8).await?;
        let before = before.as_ref().try_into().map_or(0, u64::from_le_bytes);
        assert!(before >= told, "{} reads {before}, when {told} were counted", self.node);
        self.host.clock.sleep(Duration::from_millis(random.below(20))).await;
        self.known.lock().unknown += 1;
        self.fs.write(&Cred::ROOT, id, handle, 0, &(before + 1).to_le_bytes()).await?;
        self.fs.fsync(id, handle, false).await?;
        let mut known = self.known.lock();
        known.unknown -= 1;
        known.counted += 1;
        Ok(())
    }
}
