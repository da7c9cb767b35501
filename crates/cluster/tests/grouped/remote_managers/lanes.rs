//! Lanes that break at any moment, in simulated time.

use super::*;
use bytes::Bytes;
use host::sim::{Machine, Sim, SimDisk};
use host::{Random, SplitMix64, join_all};
use link::{LinkError, Message, NodeService};
use manager::api::ManagerAdmin;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use types::{Answer, BoxFuture};

type Asked = (Message, oneshot::Sender<Result<Message, LinkError>>);

/// A lane to a service. What was sent over a connection may still arrive when the connection has
/// been replaced.
struct SimLane {
    host: Host,
    service: Arc<ManagerService>,
    random: SplitMix64,
    /// The number of the connection; odd while none is up.
    connection: watch::Sender<u64>,
    sending: Mutex<Option<mpsc::UnboundedSender<Asked>>>,
    /// Answers that were lost, and requests that were served after their connection broke.
    lost: AtomicU64,
    late: AtomicU64,
}

impl SimLane {
    fn new(machine: &Machine, service: &Arc<ManagerService>, seed: u64) -> Arc<SimLane> {
        Arc::new(SimLane {
            host: machine.host(),
            service: service.clone(),
            random: SplitMix64::new(seed),
            connection: watch::channel(1).0,
            sending: Mutex::default(),
            lost: AtomicU64::new(0),
            late: AtomicU64::new(0),
        })
    }

    async fn pause(&self) {
        self.host.clock.sleep(Duration::from_micros(self.random.next_u64() % 2000)).await;
    }

    fn connect(self: &Arc<Self>) {
        let (send, mut sent) = mpsc::unbounded_channel::<Asked>();
        *self.sending.lock() = Some(send);
        self.connection.send_modify(|connection| *connection += 1);
        let (me, connection) = (self.clone(), *self.connection.borrow());
        self.host.tasks.spawn(Box::pin(async move {
            while let Some((message, done)) = sent.recv().await {
                me.pause().await;
                let is_late = *me.connection.borrow() != connection;
                if is_late {
                    if me.random.chance(1, 2) {
                        return;
                    }
                    me.late.fetch_add(1, SeqCst);
                }
                let peer = Peer { fingerprint: None, address: SocketAddr::from(([127, 0, 0, 1], 1)) };
                let answer = me.service.serve(&peer, message.head, Bytes::new()).expect("it can be decoded");
                let me = me.clone();
                me.host.clone().tasks.spawn(Box::pin(async move {
                    let answer = answer.await;
                    me.pause().await;
                    if *me.connection.borrow() == connection {
                        let _ = done.send(Ok(answer));
                    } else {
                        me.lost.fetch_add(1, SeqCst);
                    }
                }));
            }
        }));
    }

    fn cut(&self) {
        self.sending.lock().take();
        self.connection.send_modify(|connection| *connection += 1);
    }
}

impl OrderedLane for SimLane {
    fn connection(&self) -> Option<u64> {
        Some(*self.connection.borrow()).filter(|connection| connection.is_multiple_of(2))
    }

    fn next_connection(&self, after: u64) -> BoxFuture<u64> {
        let mut connection = self.connection.subscribe();
        Box::pin(async move {
            let is_next = |now: &u64| now.is_multiple_of(2) && *now > after;
            *connection.wait_for(is_next).await.expect("the lane is there")
        })
    }

    fn ask_in(&self, connection: u64, _: u8, message: Message) -> BoxFuture<Result<Message, LinkError>> {
        let (done, answer) = oneshot::channel();
        let sending = self.sending.lock().clone().filter(|_| self.connection() == Some(connection));
        let Some(sending) = sending else { return Box::pin(async { Err(LinkError::Down) }) };
        sending.send((message, done)).expect("the connection's task runs");
        let mut now = self.connection.subscribe();
        Box::pin(async move {
            match host::first(answer, now.wait_for(|now| *now != connection)).await {
                host::Either::Left(Ok(answer)) => answer,
                _ => Err(LinkError::Lost),
            }
        })
    }
}

struct Rig {
    sim: Sim,
    server: Server,
    beliefs: Beliefs,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let sim = Sim::new(seed);
        let machine = sim.machine("first");
        let disks = [(); 2].map(|()| SimDisk::new(&sim, 256 << 20).mount(&machine));
        let server = sim.block_on(Server::new(machine.host(), disks));
        Rig { sim, server, beliefs: Beliefs::default() }
    }

    fn client(&self, session: u64) -> (Arc<SimLane>, Arc<TestClient>) {
        self.server.admit(session);
        let machine = self.sim.machine(&format!("node-{session}"));
        let lane = SimLane::new(&machine, &self.server.service, self.sim.seed() ^ session << 32);
        (lane.clone(), TestClient::new(&machine.host(), lane, session, &self.beliefs))
    }

    fn tokens(&self) -> u64 {
        self.server.manager.status().token_count
    }
}

#[test]
fn regression_an_open_whose_answer_was_lost_does_not_wait_behind_who_waits_for_it() {
    let rig = Rig::new(1);
    let ((lane, one), (other_lane, other)) = (rig.client(1), rig.client(2));
    other_lane.connect();
    rig.sim.block_on(async {
        let opening = one.open(file(0), Mode::Write);
        lane.connect();
        // The token is granted, and the answer gets lost.
        let granted = async {
            while rig.tokens() == 0 {
                host::yield_now().await;
                rig.server.host.clock.sleep(Duration::from_micros(1)).await;
            }
            lane.cut();
            let waiting = other.manager.open(other.id(), file(0), Mode::Write).into_future();
            rig.server.host.clock.sleep(Duration::from_secs(1)).await;
            lane.connect();
            waiting.await
        };
        let (mine, theirs) = match host::first(opening, granted).await {
            host::Either::Left(mine) => (mine, other.open(file(0), Mode::Write).await),
            host::Either::Right(_) => panic!("the second client cannot be first"),
        };
        assert!(mine.unwrap().grant.number < theirs.unwrap().grant.number);
        assert!(lane.lost.load(SeqCst) > 0, "an answer was lost");
    });
}

#[test]
fn sim_tokens_move_between_clients_over_lanes_that_break() {
    let (mut lost, mut late, mut recalled) = (0, 0, 0);
    for seed in 1..40 {
        let rig = Rig::new(seed);
        let clients = [1, 2, 3].map(|session| rig.client(session));
        clients.iter().for_each(|(lane, _)| lane.connect());
        let work = |(lane, client): (Arc<SimLane>, Arc<TestClient>)| async move {
            let random = SplitMix64::new(seed ^ client.session << 40);
            for _ in 0..40 {
                let at = random.next_u64() % FILES;
                let mode = if random.chance(1, 2) { Mode::Read } else { Mode::Write };
                match random.next_u64() % 4 {
                    0 => client.release(file(at)),
                    1 => {
                        let both = [at, (at + 1) % FILES].map(|at| Box::pin(client.open(file(at), mode)));
                        join_all(both.into()).await.into_iter().for_each(|opened| drop(opened.unwrap()));
                    }
                    _ => drop(client.open(file(at), mode).await.unwrap()),
                }
                lane.pause().await;
            }
        };
        let breaks = |(lane, _): (Arc<SimLane>, Arc<TestClient>)| async move {
            loop {
                lane.host.clock.sleep(Duration::from_micros(lane.random.next_u64() % 20_000)).await;
                lane.cut();
                lane.pause().await;
                lane.connect();
            }
        };
        let working = join_all(clients.clone().map(|client| Box::pin(work(client))).into());
        let breaking = join_all(clients.clone().map(|client| Box::pin(breaks(client))).into());
        let limit = rig.server.host.clock.sleep(Duration::from_secs(600));
        let done = rig.sim.block_on(host::first(host::first(working, breaking), limit));
        assert!(matches!(done, host::Either::Left(host::Either::Left(_))), "seed {seed}: somebody waits for ever");
        for (lane, client) in &clients {
            if lane.connection().is_none() {
                lane.connect();
            }
            (0..FILES).for_each(|at| client.release(file(at)));
            lost += lane.lost.load(SeqCst);
            late += lane.late.load(SeqCst);
            recalled += client.state.lock().recalls.len();
        }
        rig.sim.run_for(Duration::from_secs(5));
        assert_eq!(rig.tokens(), 0, "seed {seed}: all was released");
    }
    assert!(lost > 100 && late > 100 && recalled > 100, "{lost} lost, {late} late, {recalled} recalled");
}

#[test]
fn a_session_that_ends_gets_no_token_and_keeps_no_request_inside() {
    let rig = Rig::new(3);
    let ((lane, one), (other_lane, other)) = (rig.client(1), rig.client(2));
    one.state.lock().is_stubborn = true;
    lane.connect();
    other_lane.connect();
    rig.sim.block_on(async {
        one.open(file(0), Mode::Write).await.unwrap();
        let waiting = other.open(file(0), Mode::Write);
        let ending = async {
            while one.state.lock().recalls.is_empty() {
                rig.server.host.clock.sleep(Duration::from_millis(1)).await;
            }
            rig.server.expel(2).await;
        };
        let outcomes = host::join_all(vec![
            Box::pin(async { waiting.await.map(drop) }) as BoxFutureHere<'_>,
            Box::pin(async {
                ending.await;
                Ok(())
            }),
        ]);
        assert_eq!(outcomes.await[..], [Err(ManagerError::Expelled), Ok(())]);
        assert_eq!(other.open(file(1), Mode::Read).await.map(drop), Err(ManagerError::Expelled));
        one.release(file(0));
        rig.server.host.clock.sleep(Duration::from_secs(1)).await;
    });
    assert_eq!(rig.tokens(), 0, "the dead client's open was not granted");
}

type BoxFutureHere<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), ManagerError>> + 'a>>;

#[test]
fn an_apply_that_has_begun_is_finished_before_its_session_is_quiet() {
    let rig = Rig::new(4);
    let (lane, client) = rig.client(1);
    lane.connect();
    rig.sim.block_on(async {
        let many: Vec<FileId> = (0..200).map(|at| FileId::new(5000 + at)).collect();
        rig.server.manager.apply(vec![sizes(2, many.iter().copied(), 6)]).await.unwrap();
        // After a checkpoint most files are only in the log, so the next deltas need reads.
        rig.server.manager.checkpoint().await.unwrap();
        let Answer::Later(_applied) = client.manager.apply(vec![sizes(3, many.iter().copied(), 7)]) else {
            panic!("another node answers later")
        };
        while rig.server.manager.status().dirty_count == 0 {
            rig.server.host.clock.sleep(Duration::from_micros(1)).await;
        }
        assert_eq!(rig.server.manager.applied(FILES_LOG), Some(2), "it is under way");
        rig.server.expel(1).await;
        assert_eq!(rig.server.manager.applied(FILES_LOG), Some(3));
    });
}

#[test]
fn a_manager_that_has_no_connection_ends_its_requests_when_its_session_is_over() {
    let rig = Rig::new(5);
    let (_, client) = rig.client(1);
    rig.sim.block_on(async {
        let waiting = client.open(file(0), Mode::Read);
        let end = async {
            rig.server.host.clock.sleep(Duration::from_secs(5)).await;
            client.manager.end();
            std::future::pending::<()>().await;
        };
        let host::Either::Left(answer) = host::first(waiting, end).await else { panic!("it must end") };
        assert_eq!(answer.map(drop), Err(ManagerError::Expelled));
        assert_eq!(client.manager.locate(client.id(), file(0), 0).await, Err(ManagerError::Expelled));
    });
}

#[test]
fn every_request_comes_through_and_those_of_the_first_node_are_refused() {
    let rig = Rig::new(6);
    let (lane, client) = rig.client(1);
    lane.connect();
    rig.sim.block_on(async {
        let (me, id) = (&client.manager, client.id());
        let unknown = FileId::new(9999);
        let files: Vec<FileId> = (0..1500).map(|at| if at == 1100 { unknown } else { file(at % FILES) }).collect();
        let opened = me.open_many(id, &files, Mode::Read).await.unwrap();
        assert_eq!(opened.len(), files.len());
        for (file, opened) in files.iter().zip(opened) {
            assert_eq!(
                opened.map(|opened| opened.inode.id),
                if *file == unknown { Err(ManagerError::NotFound) } else { Ok(*file) }
            );
        }
        assert_eq!(me.locate(id, file(0), 0).await.unwrap().known_until, u64::MAX);
        assert_eq!(me.locate(id, unknown, 0).await, Err(ManagerError::NotFound));
        assert_eq!(me.closed(id, file(0)).await, Ok(false));
        let (one, two) = (me.allocate(id, 0).await.unwrap(), me.allocate(id, 0).await.unwrap());
        assert!(one.count > 0 && one.first != two.first);
        assert_eq!(me.apply(vec![sizes(2, [file(1)].into_iter(), 77)]).await, Ok(()));
        assert_eq!(rig.server.manager.applied(FILES_LOG), Some(2));
        let refused = me.apply(vec![sizes(9, [file(1)].into_iter(), 77)]).await;
        assert!(matches!(refused, Err(ManagerError::BadRequest(_))));
        assert_eq!(me.status().token_count, 0, "not known yet");
        lane.host.clock.sleep(Duration::from_secs(2)).await;
        assert_eq!(me.status(), rig.server.manager.status());
        assert!(matches!(me.orphans().await, Err(ManagerError::BadRequest(_))));
    });
}
