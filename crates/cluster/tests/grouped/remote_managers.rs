//! Clients whose managers are on another node: over lanes that break in simulated time (`lanes`),
//! and over TLS (`tls`).

mod lanes;
mod tls;

use cluster::manager_service::{ManagerService, Sessions};
use cluster::remote_manager::{RemoteManager, receive_recalls};
use host::{Disk, Host};
use link::{OrderedLane, Peer};
use manager::api::{GiveBack, GlimpseQuestion, Manager, ManagerError, Opened, SegmentDeltas, TokenHolder, TokenRecall};
use manager::token::Mode;
use manager::{Delta, DirectoryShape, InodeRecord, Lengths, ManagerConfig, ManagerMap, ManagerServer};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use storage::api::{Storage, StoreIdentity};
use storage::server::StoreServer;
use stripe::{Options, Stripe};
use types::{ClientId, FileId, FsUuid, Kind, LogId, ManagerId, SegmentId, StoreId, Time};

const MANAGER: ManagerId = ManagerId::new(0);
/// The log that makes the files; it belongs to no client.
const FILES_LOG: LogId = LogId::new(900);
const FILES: u64 = 4;

fn file(at: u64) -> FileId {
    FileId::new(100 + at)
}

fn inode(id: FileId, size: u64) -> InodeRecord {
    let time = Time { sec: 1, nsec: 0 };
    InodeRecord {
        id,
        kind: Kind::File,
        mode: 0o644,
        nlink: 1,
        uid: 1,
        gid: 2,
        rdev: 0,
        size,
        stored_bytes: 0,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        parent: FileId::new(0),
        shape: DirectoryShape::default(),
    }
}

/// The deltas of a segment that sets the sizes of files.
fn sizes(seq: u64, files: impl Iterator<Item = FileId>, size: u64) -> SegmentDeltas {
    let deltas = files.map(|id| Delta::Inode(inode(id, size))).collect::<Vec<_>>();
    SegmentDeltas { segment: SegmentId { log: FILES_LOG, epoch: 1, seq }, order: seq, deltas: deltas.into() }
}

/// A manager over two stores, with a few files.
async fn manager(host: &Host, disks: [Arc<dyn Disk>; 2]) -> Arc<ManagerServer> {
    let fs = FsUuid([7; 16]);
    let mut stores: Vec<(StoreId, Arc<dyn Storage>)> = Vec::new();
    for (disk, id) in disks.into_iter().zip(1..) {
        let identity = StoreIdentity { fs, store: StoreId::new(id), capacity_bytes: 128 << 20 };
        stores.push((identity.store, StoreServer::create(host.clone(), disk, identity).await.unwrap()));
    }
    let stripe = Stripe::new(host.clone(), fs, stores, Options::default());
    let config = ManagerConfig {
        id: MANAGER,
        log: LogId::new(300),
        block_size: 65536,
        map: ManagerMap::single(MANAGER),
        cached_inodes_max: 2,
        index_range_len: 1000,
        lengths: Lengths::LARGEST,
        after_epoch: None,
    };
    let server = ManagerServer::open(host.clone(), stripe, config, 0).await.unwrap();
    server.apply(vec![sizes(1, (0..FILES).map(file), 5)]).await.unwrap();
    server
}

/// Sessions by number. The session of client n is n.
#[derive(Default)]
struct Book(Mutex<BTreeSet<u64>>);

impl Sessions for Book {
    fn client(&self, session: u64, _: &Peer) -> Option<ClientId> {
        self.0.lock().contains(&session).then(|| ClientId::new(session as u32))
    }
}

/// A node with a manager, and its sessions.
struct Server {
    host: Host,
    manager: Arc<ManagerServer>,
    service: Arc<ManagerService>,
    book: Arc<Book>,
}

impl Server {
    async fn new(host: Host, disks: [Arc<dyn Disk>; 2]) -> Server {
        let (manager, book) = (manager(&host, disks).await, Arc::new(Book::default()));
        let service = ManagerService::new(host.clone());
        service.serve_manager(MANAGER, manager.clone());
        service.serve_sessions(&book);
        Server { host, manager, service, book }
    }

    /// Lets a client in.
    fn admit(&self, session: u64) {
        let (client, log) = (ClientId::new(session as u32), LogId::new(session as u32));
        self.manager.admit(client, log, self.service.holder(session));
        self.book.0.lock().insert(session);
    }

    /// Declares a client dead.
    async fn expel(&self, session: u64) {
        self.book.0.lock().remove(&session);
        self.service.quiesce(session).await;
        self.manager.expel(ClientId::new(session as u32));
    }
}

/// A token that a client believes it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Belief {
    mode: Mode,
    number: u64,
}

/// What all clients believe.
type Beliefs = Arc<Mutex<BTreeMap<(FileId, u64), Belief>>>;

/// A client that gives a token back when it is recalled.
struct TestClient {
    session: u64,
    manager: Arc<RemoteManager>,
    beliefs: Beliefs,
    state: Mutex<ClientState>,
}

#[derive(Default)]
struct ClientState {
    /// Opens without an answer.
    opening: BTreeSet<FileId>,
    /// Recalls that came before the answer that grants the token.
    early: BTreeMap<FileId, TokenRecall>,
    recalls: Vec<TokenRecall>,
    /// Keeps its tokens.
    is_stubborn: bool,
}

impl TestClient {
    fn new(host: &Host, lane: Arc<dyn OrderedLane>, session: u64, beliefs: &Beliefs) -> Arc<TestClient> {
        let manager = RemoteManager::new(host, lane.clone(), session, MANAGER, Arc::default());
        let client = Arc::new(TestClient { session, manager, beliefs: beliefs.clone(), state: Mutex::default() });
        host.tasks.spawn(Box::pin(receive_recalls(host.clone(), lane, session, client.clone(), Arc::default())));
        client
    }

    fn id(&self) -> ClientId {
        ClientId::new(self.session as u32)
    }

    /// Opens a file, and checks that no other client believes to have a token in conflict.
    async fn open(&self, file: FileId, mode: Mode) -> Result<Opened, ManagerError> {
        assert!(self.state.lock().opening.insert(file), "one open of a file at a time");
        let answer = self.manager.open(self.id(), file, mode).await;
        let early = {
            let mut state = self.state.lock();
            state.opening.remove(&file);
            state.early.remove(&file)
        };
        let opened = answer?;
        assert!(opened.grant.mode >= mode && opened.inode.id == file);
        {
            let mut beliefs = self.beliefs.lock();
            let others = beliefs.iter().filter(|((of, session), _)| *of == file && *session != self.session);
            for (other, belief) in others {
                let both_read = belief.mode == Mode::Read && opened.grant.mode == Mode::Read;
                assert!(both_read, "{} got {:?} while {other:?} has {belief:?}", self.session, opened.grant);
            }
            let belief = Belief { mode: opened.grant.mode, number: opened.grant.number };
            let known = beliefs.entry((file, self.session)).or_insert(belief);
            if known.number < belief.number {
                *known = belief;
            }
        }
        if let Some(recall) = early {
            self.on_recall(recall);
        }
        Ok(opened)
    }

    fn on_recall(&self, recall: TokenRecall) {
        let key = (recall.file, self.session);
        let belief = self.beliefs.lock().get(&key).copied();
        let number = belief.map_or(recall.number, |belief| belief.number);
        if number > recall.number {
            return;
        }
        if belief.is_none() || number < recall.number {
            let mut state = self.state.lock();
            if state.opening.contains(&recall.file) {
                let early = state.early.entry(recall.file).or_insert(recall);
                *early = recall.max(*early);
                return;
            }
        }
        self.give(recall.file, number, recall.wanted);
    }

    fn give(&self, file: FileId, number: u64, wanted: Mode) {
        let keep = (wanted == Mode::Read).then_some(Mode::Read);
        {
            let mut beliefs = self.beliefs.lock();
            match (keep, beliefs.get_mut(&(file, self.session))) {
                (Some(keep), Some(belief)) => belief.mode = keep,
                _ => drop(beliefs.remove(&(file, self.session))),
            }
        }
        self.manager.give_back(self.id(), GiveBack { file, number, keep, is_open: false });
    }

    /// Drops a file from the cache.
    fn release(&self, file: FileId) {
        let belief = self.beliefs.lock().remove(&(file, self.session));
        if let Some(belief) = belief {
            self.manager.release(self.id(), file, belief.number);
        }
    }
}

impl TokenHolder for TestClient {
    fn recall(&self, recalls: Vec<TokenRecall>) {
        let is_stubborn = {
            let mut state = self.state.lock();
            state.recalls.extend(&recalls);
            state.is_stubborn
        };
        if !is_stubborn {
            recalls.into_iter().for_each(|recall| self.on_recall(recall));
        }
    }

    fn glimpse(&self, _: GlimpseQuestion) {}
}
