//! The first node of a file system that others may join: its listener and what it serves there.

use crate::location::split_port;
use crate::node::host_name;
use crate::node::hosts::LinkWays;
use crate::node::identity::{self, NodeIdentity};
use crate::node::invite::Inviter;
use crate::node::orders::Orders;
use crate::node::serving::Serves;
use crate::node::whereabouts::{self, Note};
use crate::{addresses, usage};
use anyhow::Context;
use bytes::Bytes;
use cluster::config::{ConfigError, FIRST_NODE, MemberEntry};
use cluster::control::{AuthorityKey, ControlAnswer, ControlError, ControlRequest, Resume};
use cluster::leading::Leading;
use cluster::lease::with_drift;
use cluster::manager_service::ManagerService;
use cluster::maps::{ChangeError, Keeper};
use cluster::members::{Members, MembersConfig};
use cluster::remote_locks::LockTableService;
use cluster::spread::StorePlaces;
use cluster::survivors::Arrivals;
use cluster::switch::SwitchStore;
use cluster::{CoreMachine, FsConfig, KnownNode};
use host::real::RealDisk;
use host::{Host, Tasks};
use join::{AddMemberError, JoinDesk, MemberBook, NewMember};
use link::{Message, NodeService, Peer, ServerKeys, Services, kinds};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use storage::api::Storage;
use storage::calls::ServedStores;
use storage::tcp::StoreService;
use storage::wire::StoreName;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use types::codec::DecodeError;
use types::{BoxFuture, FsUuid, NodeId, StoreId};

/// The length of leases: how long others wait for a node that has died, at most.
pub const LEASE: Duration = Duration::from_secs(5);

/// Listens for other nodes.
pub async fn bind(listen: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(listen).await.map_err(|e| usage(format!("--listen {listen}: {e}")))
}

/// The addresses at which members say that they are, by their certificates.
#[derive(Default)]
pub struct Heard(Mutex<HashMap<[u8; 32], String>>);

impl Heard {
    fn note(&self, fingerprint: &[u8; 32], request: &ControlRequest) {
        if let ControlRequest::Hello(hello) | ControlRequest::Resume(Resume { hello, .. }) = request
            && split_port(&hello.address).is_some()
        {
            self.0.lock().insert(*fingerprint, hello.address.clone());
        }
    }

    /// Where a node says that it is, if that is news.
    pub fn elsewhere(&self, at: &KnownNode) -> Option<KnownNode> {
        let address = self.0.lock().get(&at.fingerprint).filter(|address| **address != at.address)?.clone();
        Some(KnownNode { address, ..at.clone() })
    }
}

/// Answers members while the first node starts.
struct ArrivalService(Arc<Arrivals>, Arc<Heard>);

impl NodeService for ArrivalService {
    fn serve(&self, peer: &Peer, head: Vec<u8>, _: Bytes) -> Result<BoxFuture<Message>, DecodeError> {
        let request = ControlRequest::decode(&head)?;
        let answer = match &peer.fingerprint {
            Some(fingerprint) => {
                self.1.note(fingerprint, &request);
                self.0.control(fingerprint, request)
            }
            None => Err(ControlError::NotMember),
        };
        let answer = Message::of_head(ControlAnswer::encode(&answer).to_vec());
        Ok(Box::pin(std::future::ready(answer)))
    }
}

/// Keeps requests while the first node starts. They get no answer, and members send them again to
/// the services that come after. A task for each stays until the process ends.
struct LaterService;

impl NodeService for LaterService {
    fn serve(&self, _: &Peer, _: Vec<u8>, _: Bytes) -> Result<BoxFuture<Message>, DecodeError> {
        Ok(Box::pin(std::future::pending()))
    }
}

/// The stores of a first node that starts: members put what they write onto others, or later.
struct NoStores;

impl ServedStores for NoStores {
    fn store(&self, _: StoreName) -> Option<Arc<dyn Storage>> {
        None
    }

    fn tasks(&self, _: StoreName) -> Option<Arc<dyn Tasks>> {
        None
    }
}

/// What the first node serves while it starts.
pub struct Threshold {
    /// What members say meanwhile.
    pub arrivals: Arc<Arrivals>,
    /// Where they are.
    pub heard: Arc<Heard>,
    /// Ends the services.
    end: oneshot::Sender<()>,
    serving: JoinHandle<TcpListener>,
    telling: JoinHandle<Infallible>,
}

impl Threshold {
    /// Begins to serve. No other process serves this data folder any more. `votes` answers other
    /// voters, if this node has one.
    pub fn open(
        host: &Host,
        folder: &Path,
        listener: TcpListener,
        votes: Option<Arc<dyn NodeService>>,
    ) -> anyhow::Result<Threshold> {
        let (arrivals, heard) = (Arrivals::new(host.clone(), LEASE), Arc::new(Heard::default()));
        let keys = server_keys(folder, &identity::of_first_node(folder)?.1)?;
        let services = Services::new()
            .with(kinds::STORAGE, StoreService::new(Arc::new(NoStores)))
            .with(kinds::MANAGER, Arc::new(LaterService))
            .with(kinds::LOCKS, Arc::new(LaterService))
            .with(kinds::CONTROL, Arc::new(ArrivalService(arrivals.clone(), heard.clone())));
        let services = votes.into_iter().fold(services, |services, votes| services.with(kinds::CONSENSUS, votes));
        let (end, ended) = oneshot::channel();
        let listen = listener.local_addr().context("own address")?;
        let (absent, noting) = (arrivals.clone(), arrivals.clone());
        let note: Note = Arc::new(move |called| noting.note_call(called));
        let telling = tokio::spawn(telling(host, folder, listen, move || absent.absent(), Some(note))?);
        let host = host.clone();
        let serving = tokio::spawn(async move {
            let ended = async move { drop(ended.await) };
            link::serve_until(host, &listener, services, Some(keys), ended).await;
            listener
        });
        Ok(Threshold { arrivals, heard, end, serving, telling })
    }

    /// Waits for members no longer than the leases run that were given before this leader.
    pub fn know_earlier_leases(&self, leading: &Leading) {
        leading.earlier_leases_left(LEASE).into_iter().for_each(|left| self.arrivals.know_leases_left(left));
    }

    /// Ends these services, and gives the listener to those that come after.
    pub async fn leave(self) -> anyhow::Result<TcpListener> {
        drop(self.end);
        self.telling.abort();
        self.serving.await.context("the listener of the start")
    }
}

/// Tells the nodes that are absent where this one is: it listens at `listen`. `note` hears whether
/// each answers. Never ends.
fn telling(
    host: &Host,
    folder: &Path,
    listen: SocketAddr,
    absent: impl Fn() -> Vec<KnownNode> + Send + 'static,
    note: Option<Note>,
) -> anyhow::Result<impl Future<Output = Infallible> + Send + 'static> {
    let (keys, own) = (identity::client_keys(folder)?, addresses::of_listener(listen)?);
    Ok(whereabouts::tell(host.clone(), keys, own, absent, note))
}

fn server_keys(folder: &Path, own: &NodeIdentity) -> anyhow::Result<ServerKeys> {
    let keys = ServerKeys::new(own.authority.as_bytes(), own.certificate.as_bytes(), own.key.as_bytes());
    keys.map_err(|e| usage(format!("the keys in {}: {e}: restore them from a copy", folder.display())))
}

/// Waits, if other nodes have joined, until none of them can serve from a lease of the process
/// before this one, which does not listen.
pub async fn wait_for_leases(machine: &CoreMachine) {
    let count = machine.config.members.len();
    if count > 0 {
        eprintln!("note: {count} nodes have joined; without --listen they cannot use the file system");
        tokio::time::sleep(with_drift(LEASE)).await;
    }
}

/// Has the maps name this machine as the first node, unless they do, and say what it is to be as a
/// member. From then on stores at nodes refuse other machines.
async fn record_first(machine: &CoreMachine, certificate: [u8; 32], member: MemberEntry) {
    let (first_node, first_member) = (Some(certificate), Some(member));
    let (known, known_member) = (&machine.config.first_node, &machine.config.first_member);
    if (known, known_member) != (&first_node, &first_member)
        && let Err(e) =
            machine.change_maps(|config| (config.first_node, config.first_member) = (first_node, first_member)).await
    {
        tracing::warn!("the maps do not say which node is the first one, until the next start: {e}");
    }
}

/// The members in the maps.
struct MembersInMaps {
    maps: Arc<Keeper>,
    /// The first node's name, which is not in the maps.
    first: String,
}

/// Adds a member to a configuration, or finds the one with its certificate.
fn add(config: &mut FsConfig, new: NewMember) -> Result<(NodeId, String), AddMemberError> {
    if let Some((node, member)) = config.member_of(&new.fingerprint) {
        return Ok((node, member.name.clone()));
    }
    let NewMember { name, fingerprint, address } = new;
    match config.add_member(MemberEntry { name: name.clone(), fingerprint, address }) {
        Ok(node) => Ok((node, name)),
        Err(ConfigError::MemberTwice(_)) => Err(AddMemberError::NameTaken),
        Err(ConfigError::MemberCount(_) | ConfigError::NodeCount) => Err(AddMemberError::Full),
        Err(error) => Err(AddMemberError::Failed(error.to_string())),
    }
}

impl MemberBook for MembersInMaps {
    fn add(&self, member: NewMember) -> BoxFuture<Result<(NodeId, String), AddMemberError>> {
        if member.name == self.first {
            return Box::pin(async { Err(AddMemberError::NameTaken) });
        }
        let maps = self.maps.clone();
        Box::pin(async move {
            let known = maps.config().map_err(|e| AddMemberError::Failed(e.to_string()))?;
            if let Some((node, member)) = known.member_of(&member.fingerprint) {
                return Ok((node, member.name.clone()));
            }
            let mut added = Err(AddMemberError::Failed("the maps were not changed".into()));
            let changed = maps.change(|config| added = add(config, member)).await;
            let failed = |error: ChangeError| AddMemberError::Failed(error.to_string());
            let added = added?;
            changed.map_err(failed)?;
            Ok(added)
        })
    }

    fn has_name(&self, name: &str) -> bool {
        let has = |config: FsConfig| config.members.values().any(|member| member.name == name);
        name == self.first || self.maps.config().is_ok_and(has)
    }
}

/// The members by their certificates, read from the maps again when these have changed.
struct KnownMembers {
    maps: Arc<Keeper>,
    /// The epoch of the maps that they are from.
    known: Mutex<(u64, HashMap<[u8; 32], NodeId>)>,
}

impl KnownMembers {
    fn new(maps: Arc<Keeper>) -> KnownMembers {
        KnownMembers { maps, known: Mutex::default() }
    }

    /// The member that a peer is.
    fn node(&self, peer: &Peer) -> Option<NodeId> {
        let (fingerprint, maps) = (peer.fingerprint?, self.maps.maps());
        let mut known = self.known.lock();
        if known.0 != maps.epoch {
            let config = FsConfig::decode(&maps.bytes).ok()?;
            let by_fingerprint = config.members.into_iter().map(|(node, member)| (member.fingerprint, node));
            *known = (maps.epoch, by_fingerprint.collect());
        }
        known.1.get(&fingerprint).copied()
    }
}

/// All stores, for other nodes: requests to those elsewhere are passed on.
struct AllStores {
    fs: FsUuid,
    stores: Vec<(StoreId, SwitchStore)>,
}

impl AllStores {
    fn find(&self, name: StoreName) -> Option<&SwitchStore> {
        let is_named = |(store, _): &&(StoreId, SwitchStore)| (self.fs, *store) == (name.fs, name.store);
        self.stores.iter().find(is_named).map(|(_, store)| store)
    }
}

impl ServedStores for AllStores {
    fn store(&self, name: StoreName) -> Option<Arc<dyn Storage>> {
        self.find(name).map(|store| Arc::new(store.clone()) as Arc<dyn Storage>)
    }

    fn tasks(&self, name: StoreName) -> Option<Arc<dyn Tasks>> {
        self.find(name)?.tasks()
    }
}

/// Answers requests to join, of machines without a certificate.
struct JoinService(Arc<JoinDesk>);

impl NodeService for JoinService {
    fn serve(&self, _: &Peer, head: Vec<u8>, _: Bytes) -> Result<BoxFuture<Message>, DecodeError> {
        let desk = self.0.clone();
        Ok(Box::pin(async move { Message::of_head(desk.answer(&head).await) }))
    }

    fn is_for_strangers(&self) -> bool {
        true
    }
}

/// Answers requests about sessions.
struct ControlService {
    members: Arc<Members>,
    /// The key of the authority. Only members are served, and each of them may have it.
    key: AuthorityKey,
    orders: Orders,
}

impl NodeService for ControlService {
    fn serve(&self, peer: &Peer, head: Vec<u8>, _: Bytes) -> Result<BoxFuture<Message>, DecodeError> {
        let request = ControlRequest::decode(&head)?;
        let (members, key, fingerprint) = (self.members.clone(), self.key.clone(), peer.fingerprint);
        let orders = self.orders.clone();
        Ok(Box::pin(async move {
            let answer = match (fingerprint, request) {
                (None, _) => Err(ControlError::NotMember),
                (Some(_), ControlRequest::AuthorityKey) => Ok(ControlAnswer::AuthorityKey(key)),
                (Some(_), ControlRequest::Order(order)) => {
                    Ok(ControlAnswer::Done(orders.carry_out_for_other(&order).await))
                }
                (Some(fingerprint), request) => members.control(&fingerprint, request).await,
            };
            Message::of_head(ControlAnswer::encode(&answer).to_vec())
        }))
    }
}

/// How a first node serves others.
pub struct HowFirst {
    /// It has the file system mounted itself.
    pub is_mounted: bool,
    /// Its places for stores.
    pub places: Arc<dyn StorePlaces>,
    /// The member whose process it is in, and its name, if voters have elected it.
    pub member: Option<(NodeId, String)>,
    /// Until when it leads its group of voters.
    pub leading: Option<Arc<Leading>>,
    /// Answers other voters at its listener.
    pub votes: Option<Arc<dyn NodeService>>,
    /// It gives voters to other nodes. One with stores at storage servers does not: another node
    /// could not reach these.
    pub appoints_voters: bool,
}

/// What the first node is to others.
pub struct FirstNodeServer {
    /// The sessions of the others.
    pub members: Arc<Members>,
    /// Carries out commands that change which nodes there are.
    pub orders: Orders,
    serving: JoinHandle<()>,
    telling: JoinHandle<Infallible>,
    voting: JoinHandle<()>,
}

impl FirstNodeServer {
    /// Serves other nodes. The machine has waited for their [arrivals](Threshold).
    pub async fn start(
        host: &Host,
        machine: &CoreMachine,
        folder: &Path,
        listener: TcpListener,
        how: HowFirst,
    ) -> anyhow::Result<FirstNodeServer> {
        let listen = listener.local_addr().context("own address")?;
        let (authority, own) = identity::of_first_node(folder)?;
        let keys = server_keys(folder, &own)?;
        let HowFirst { is_mounted, places, member, leading, votes, appoints_voters } = how;
        let appoints_voters = appoints_voters && leading.is_some();
        let (member, name) = match member {
            Some((node, name)) => (Some(node), name),
            None => {
                let name = join::name_of_machine(&host_name());
                let fingerprint = identity::as_member(folder, &authority)?;
                let entry = MemberEntry { name: name.clone(), fingerprint, address: Serves::address(listen)? };
                record_first(machine, join::fingerprint_of(&own.certificate)?, entry).await;
                (None, name)
            }
        };
        let key = AuthorityKey(authority.secret_pem());
        let disk = RealDisk::open(folder).context("data folder")?;
        let book = Arc::new(MembersInMaps { maps: machine.maps.clone(), first: name.clone() });
        let desk = JoinDesk::open(authority, machine.config.fs, book, disk, host.clock.clone()).await;
        let desk = Arc::new(desk.map_err(|e| usage(e.to_string()))?);
        let address = listen.to_string();
        let config = MembersConfig { lease: LEASE, name, address, is_mounted, member, leading };
        let known = Arc::new(KnownMembers::new(machine.maps.clone()));
        let managers = ManagerService::new(host.clone());
        let ways = LinkWays::new(host.clone(), folder)?;
        let members = machine.open_to_members(config, managers.clone(), Some(ways)).await;
        let spread = machine.spread(members.clone(), places).await;
        let orders = Orders { inviter: Inviter { desk: desk.clone(), listen }, spread };
        let stores = AllStores { fs: machine.config.fs, stores: machine.stores().to_vec() };
        let services = Services::new()
            .admitting(move |peer| known.node(peer).is_some())
            .with(kinds::STORAGE, StoreService::new(Arc::new(stores)))
            .with(kinds::MANAGER, managers)
            .with(kinds::LOCKS, Arc::new(LockTableService(members.clone())))
            .with(kinds::CONTROL, Arc::new(ControlService { members: members.clone(), key, orders: orders.clone() }))
            .with(kinds::JOIN, Arc::new(JoinService(desk)));
        let services = votes.into_iter().fold(services, |services, votes| services.with(kinds::CONSENSUS, votes));
        members.begin_leases();
        let serving = tokio::spawn(link::serve(host.clone(), listener, services, Some(keys)));
        let missing = members.clone();
        let telling = tokio::spawn(telling(host, folder, listen, move || missing.absent(), None)?);
        let own = member.unwrap_or(FIRST_NODE);
        // Without a lease it could not tell that another node is elected.
        let voting = match appoints_voters {
            true => tokio::spawn(members.clone().keep_voters(own)),
            false => tokio::spawn(std::future::ready(())),
        };
        Ok(FirstNodeServer { members, orders, serving, telling, voting })
    }

    /// Serves no other node any more. Sessions may go on after the next start.
    pub async fn stop(&self) {
        self.orders.spread.stop().await;
        self.members.stop();
        self.serving.abort();
        self.telling.abort();
        self.voting.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::joined::tests::config;

    fn member(name: &str, certificate: u8) -> NewMember {
        NewMember { name: name.into(), fingerprint: [certificate; 32], address: String::new() }
    }

    #[test]
    fn a_certificate_becomes_one_member_and_a_name_belongs_to_one() {
        let mut config = config();
        let two = Ok((NodeId::new(1), "two".to_string()));
        assert_eq!(add(&mut config, member("two", 2)), two);
        assert_eq!(add(&mut config, member("other", 2)), two, "the same certificate again");
        assert_eq!(add(&mut config, member("two", 3)), Err(AddMemberError::NameTaken));
        assert_eq!(add(&mut config, member("three", 3)), Ok((NodeId::new(2), "three".into())));
        let failed = add(&mut config, NewMember { address: "a".repeat(300), ..member("four", 4) });
        assert!(matches!(failed, Err(AddMemberError::Failed(_))), "{failed:?}");
        config.next_node = cluster::config::NODE_NUMBER_MAX + 1;
        assert_eq!(add(&mut config, member("four", 4)), Err(AddMemberError::Full));
        assert_eq!(config.members.len(), 2);
    }
}
