//! The managers that a node which has joined serves.
//!
//! The first node decides which node serves which manager, and has a node take one over
//! ([`HostRequest::Take`]). The node opens the manager's log, rolls the clients' logs forward, and
//! lets in the clients that the first node names. It serves managers within one session with the
//! first node: when that ends, it drops them, and the first node opens them itself.
//!
//! A request to take a manager may come too late, after the first node has given up and opened the
//! manager's log itself. Then the log has a later epoch than the request names, and is not opened.

use crate::config::{FsConfig, manager_log};
use crate::gate::{Gate, last_checkpoint};
use crate::manager_service::{Gone, ManagerService, NO_SESSION, Sessions};
use bytes::Bytes;
use client::Client;
use host::Host;
use link::{LinkError, Message, NodeService, OrderedLane, Peer};
use manager::admin_wire::{AdminRequest, AdmittedClient, HostAnswer, HostRequest, ManagerReport, Takeover};
use manager::api::{Manager, ManagerAdmin, ManagerError, TokenHolder};
use manager::planted::{self, Bug};
use manager::server::{ManagerConfig, ManagerServer};
use manager::wire::ManagerAnswer;
use manager::{WriterLog, roll_forward_all};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use stripe::Stripe;
use types::codec::DecodeError;
use types::{BoxFuture, ClientId, ManagerId};

/// The session in which a node serves managers.
#[derive(Clone)]
pub(crate) struct HostSession {
    pub number: u64,
    /// The fingerprint of the first node's certificate.
    pub first_node: [u8; 32],
    pub stripe: Arc<Stripe>,
    pub config: FsConfig,
    pub cached_inodes_max: usize,
    /// The node's own client.
    pub client: Client,
}

/// A manager that is served here.
struct Hosted {
    term: u64,
    server: Arc<ManagerServer>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct State {
    session: Option<HostSession>,
    managers: BTreeMap<ManagerId, Hosted>,
    /// The clients that may use them, by session.
    clients: BTreeMap<u64, AdmittedClient>,
}

/// The managers of a node that has joined.
pub struct ManagerHost {
    host: Host,
    service: Arc<ManagerService>,
    state: Mutex<State>,
    /// Held while managers or clients come and go.
    turn: tokio::sync::Mutex<()>,
}

impl Sessions for ManagerHost {
    fn client(&self, session: u64, peer: &Peer) -> Option<ClientId> {
        let state = self.state.lock();
        let admitted = state.clients.get(&session)?;
        (peer.fingerprint == Some(admitted.fingerprint)).then_some(admitted.client)
    }

    /// The client may have a session all the same: only the first node knows.
    fn refusal(&self) -> ManagerAnswer {
        ManagerAnswer::Moved
    }
}

impl ManagerHost {
    /// A node that serves no manager yet.
    pub fn new(host: Host) -> Arc<ManagerHost> {
        let service = ManagerService::new(host.clone());
        let managers = Arc::new(ManagerHost {
            host,
            service: service.clone(),
            state: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        });
        service.serve_sessions(&managers);
        managers
    }

    /// The service that takes clients' requests.
    pub fn service(&self) -> Arc<ManagerService> {
        self.service.clone()
    }

    /// A lane on which this node's own client asks.
    pub fn lane(&self, fingerprint: [u8; 32]) -> Arc<dyn OrderedLane> {
        Arc::new(OwnLane {
            service: self.service.clone(),
            peer: Peer { fingerprint: Some(fingerprint), address: ([0; 4], 0).into() },
        })
    }

    /// Managers may be served in this session.
    pub(crate) fn begin(&self, session: HostSession) {
        self.drop_all();
        self.state.lock().session = Some(session);
    }

    /// Takes requests of this first node from now on: the session may go on with another one.
    pub(crate) fn follow(&self, first_node: [u8; 32]) {
        let mut state = self.state.lock();
        state.session.iter_mut().for_each(|session| session.first_node = first_node);
    }

    /// The session is over.
    pub(crate) fn end(&self, number: u64) {
        if self.state.lock().session.as_ref().is_some_and(|session| session.number == number) {
            self.drop_all();
            self.state.lock().session = None;
        }
    }

    /// Serves no manager any more: the first node does.
    pub(crate) fn drop_all(&self) {
        let dropped = {
            let mut state = self.state.lock();
            state.clients.clear();
            std::mem::take(&mut state.managers)
        };
        for (id, hosted) in dropped {
            hosted.gate.shut();
            self.service.forget(id);
            tracing::info!(manager = %id, "the first node serves the manager again");
        }
        self.service.end_recalls();
    }

    fn session(&self, number: u64) -> Option<HostSession> {
        self.state.lock().session.clone().filter(|session| session.number == number)
    }

    /// Answers a request of the node with this certificate.
    pub async fn ask(&self, fingerprint: Option<[u8; 32]>, session: u64, request: HostRequest) -> HostAnswer {
        let Some(session) = self.session(session).filter(|session| fingerprint == Some(session.first_node)) else {
            return HostAnswer::Failed(ManagerError::Expelled);
        };
        let done = match request {
            HostRequest::Take(takeover) => self.take(&session, *takeover).await,
            HostRequest::Release(manager) => {
                self.release(manager).await;
                Ok(())
            }
            HostRequest::Admit(client) => {
                let _turn = self.turn.lock().await;
                self.admit(client);
                Ok(())
            }
            HostRequest::Refuse(session) => {
                self.state.lock().clients.remove(&session);
                self.service.quiesce(session).await;
                Ok(())
            }
            HostRequest::Expel(client) => {
                let _turn = self.turn.lock().await;
                self.servers().iter().for_each(|(_, server)| server.expel(client));
                Ok(())
            }
            HostRequest::Progress => return self.progress().await,
            HostRequest::Relocate(runs) => session.client.relocate(runs).await,
            HostRequest::Ask(manager, request) => {
                let Some((_, server)) = self.servers().into_iter().find(|(id, _)| *id == manager) else {
                    return HostAnswer::Failed(ManagerError::Away);
                };
                return answer(&server, request).await.unwrap_or_else(HostAnswer::Failed);
            }
        };
        done.map_or_else(HostAnswer::Failed, |()| HostAnswer::Done)
    }

    fn servers(&self) -> Vec<(ManagerId, Arc<ManagerServer>)> {
        self.state.lock().managers.iter().map(|(id, hosted)| (*id, hosted.server.clone())).collect()
    }

    async fn progress(&self) -> HostAnswer {
        let mut reports = BTreeMap::new();
        for (id, server) in self.servers() {
            match server.progress().await {
                Ok(progress) => drop(reports.insert(id, ManagerReport { progress, status: server.status() })),
                Err(error) => return HostAnswer::Failed(error),
            }
        }
        HostAnswer::Progress(reports)
    }

    fn holder(&self, session: u64) -> Arc<dyn TokenHolder> {
        match session {
            NO_SESSION => Arc::new(Gone),
            session => self.service.holder(session),
        }
    }

    fn admit(&self, client: AdmittedClient) {
        let holder = self.holder(client.session);
        for (_, server) in self.servers() {
            server.admit(client.client, client.log, holder.clone());
        }
        self.state.lock().clients.insert(client.session, client);
    }

    async fn take(&self, session: &HostSession, takeover: Takeover) -> Result<(), ManagerError> {
        let _turn = self.turn.lock().await;
        let Takeover { manager: id, term, after_epoch, index_range_len, lengths, logs, cleaners, clients } = takeover;
        let before = {
            let mut state = self.state.lock();
            if state.managers.get(&id).is_some_and(|hosted| hosted.term == term) {
                return Ok(());
            }
            state.managers.remove(&id)
        };
        if let Some(before) = before {
            before.gate.close().await;
            self.service.forget(id);
        }
        let config = ManagerConfig {
            id,
            log: manager_log(id.raw()),
            block_size: session.config.block_size,
            map: session.config.managers.clone(),
            cached_inodes_max: session.cached_inodes_max,
            index_range_len,
            lengths,
            after_epoch: Some(after_epoch).filter(|_| !planted::is(Bug::LateTakesCount)),
        };
        let server = ManagerServer::open(self.host.clone(), session.stripe.clone(), config, 1).await?;
        let read_only = |logs: Vec<_>| logs.into_iter().map(WriterLog::ReadOnly).collect::<Vec<_>>();
        let (logs, cleaners) = (read_only(logs), read_only(cleaners));
        roll_forward_all(&session.stripe, std::slice::from_ref(&server), &logs, &cleaners).await?;
        server.begin_term(term);
        clients.iter().for_each(|(client, tokens)| server.restore(client.client, tokens));
        for (client, _) in &clients {
            server.admit(client.client, client.log, self.holder(client.session));
        }
        let gate = Gate::new(server.clone());
        let state = &mut *self.state.lock();
        if state.session.as_ref().is_none_or(|now| now.number != session.number) {
            return Err(ManagerError::Expelled);
        }
        let admitted = clients.into_iter().map(|(client, _)| client);
        state.clients.extend(admitted.filter(|c| c.session != NO_SESSION).map(|client| (client.session, client)));
        self.service.open(id, gate.clone());
        state.managers.insert(id, Hosted { term, server, gate });
        tracing::info!(manager = %id, "this node serves a manager");
        Ok(())
    }

    async fn release(&self, id: ManagerId) {
        let _turn = self.turn.lock().await;
        let Some(hosted) = self.state.lock().managers.remove(&id) else { return };
        hosted.gate.close().await;
        last_checkpoint(&self.host, &hosted.server).await;
        self.service.forget(id);
        tracing::info!(manager = %id, "a manager has moved to the first node");
    }
}

/// Has a manager do what the first node asks for.
async fn answer(server: &ManagerServer, request: AdminRequest) -> Result<HostAnswer, ManagerError> {
    Ok(match request {
        AdminRequest::Replay(segments) => {
            server.replay(segments).await?;
            HostAnswer::Done
        }
        AdminRequest::Size(run) => HostAnswer::Size(server.size(run).await?),
        AdminRequest::Live(runs) => HostAnswer::Live(server.live(runs).await?),
        AdminRequest::UsageChanges(since) => HostAnswer::UsageChanges(server.usage_changes(since).await?),
        AdminRequest::Checkpoint => HostAnswer::Checkpoint(server.checkpoint().await?),
        AdminRequest::Evacuate(segments) => {
            server.evacuate(segments).await?;
            HostAnswer::Done
        }
        AdminRequest::Orphans => HostAnswer::Orphans(server.orphans().await?),
        AdminRequest::FileUse(file) => HostAnswer::FileUse(server.file_use(file).await?),
    })
}

/// Takes the first node's requests about managers, and to copy blocks.
pub struct HostService(pub Arc<ManagerHost>);

impl NodeService for HostService {
    fn serve(&self, peer: &Peer, head: Vec<u8>, _: Bytes) -> Result<BoxFuture<Message>, DecodeError> {
        let (session, request) = HostRequest::decode(&head)?;
        let (managers, fingerprint) = (self.0.clone(), peer.fingerprint);
        Ok(Box::pin(async move { Message::of_head(managers.ask(fingerprint, session, request).await.encode()) }))
    }
}

/// The way of a node's client to managers in the same process.
struct OwnLane {
    service: Arc<ManagerService>,
    peer: Peer,
}

/// The number of its only connection.
const OWN_CONNECTION: u64 = 1;

impl OrderedLane for OwnLane {
    fn connection(&self) -> Option<u64> {
        Some(OWN_CONNECTION)
    }

    fn next_connection(&self, after: u64) -> BoxFuture<u64> {
        match after < OWN_CONNECTION {
            true => Box::pin(std::future::ready(OWN_CONNECTION)),
            false => Box::pin(std::future::pending()),
        }
    }

    fn ask_in(&self, _: u64, _: u8, message: Message) -> BoxFuture<Result<Message, LinkError>> {
        match self.service.serve(&self.peer, message.head, message.tail) {
            Ok(answer) => Box::pin(async move { Ok(answer.await) }),
            Err(error) => {
                tracing::error!(%error, "an own request cannot be read");
                Box::pin(std::future::ready(Err(LinkError::Lost)))
            }
        }
    }
}
