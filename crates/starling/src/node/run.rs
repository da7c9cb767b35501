//! Runs a node that has joined: a session with the first node, and a mount over it.

use crate::args::{NodeJoin, Role, Up};
use crate::control::{self, Request, Socket, not_here};
use crate::kept::{self, KeptAside};
use crate::kernel::KernelToCome;
use crate::location::split_port;
use crate::mountpoint::{self, NO_MOUNTPOINT, READY, SERVES, check_apart, check_mountpoint};
use crate::node::first::bind;
use crate::node::identity::NodeIdentity;
use crate::node::joined::{self, AboutNode, NodeFolder};
use crate::node::joining::{Wanted, join};
use crate::node::lead::{Elected, Leader, WhoLeads};
use crate::node::orders::{self, is_order};
use crate::node::rack::StoreRack;
use crate::node::remote::{LinkDialer, RemoteFirstNode};
use crate::node::roles::Roles;
use crate::node::serving::Serves;
use crate::node::voter::NodeVoter;
use crate::node::whereabouts::{Whereabouts, WhereaboutsService};
use crate::node::{host_name, identity, kept_maps, replace, report, status, who};
use crate::recorder::Recorder;
use crate::recording::Recordings;
use crate::settings::{NodeSettings, cache_bytes};
use crate::{background, core_report, input, say, usage};
use anyhow::Context;
use cluster::control::{AuthorityKey, ControlAnswer, ControlRequest};
use cluster::host_service::{HostService, ManagerHost};
use cluster::member::{FirstNode, Member, MemberConfig};
use host::{Either, Host};
use join::NodeInvitation;
use link::{ServerKeys, Services, kinds};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use storage::tcp::StoreService;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use types::{BoxFuture, LineError, StoreId};
use vfs::FileSystem;

/// How long a start waits for the first node. After a restart of its own, the first node lets
/// nobody in for the length of a lease.
const FIRST_SESSION_TIME_MAX: Duration = Duration::from_secs(30);

/// Why not everything is committed, if there was an end of a session.
const LOST: &str = "a session with the first node was over before all changes were synced";

/// The command line of `node join`, or of `up` on the folder of a node that has joined.
pub struct AskedNode {
    invitation: Option<NodeInvitation>,
    name: String,
    /// Where to mount; `None`: nowhere, or the user did not say.
    mountpoint: Option<PathBuf>,
    no_mount: bool,
    /// What it is to do; `None`: the user did not say.
    roles: Option<Vec<Role>>,
    /// The data folder.
    pub data: PathBuf,
    /// Where it is to listen from now on.
    listen: Option<SocketAddr>,
    /// More folders for stores.
    stores: Vec<PathBuf>,
    /// Where the first node is now.
    first_node: Option<String>,
    cache_bytes: u64,
    allow_other: bool,
    /// Run in the background.
    pub background: bool,
    /// What was read from standard input; the background process reads it again.
    pub input: Option<String>,
}

impl AskedNode {
    /// Checks the command line of `node join`.
    pub fn from_join(args: NodeJoin) -> anyhow::Result<AskedNode> {
        let input = (args.invitation == "-").then(|| input::read_invitation(Path::new("-"))).transpose()?;
        let invitation = input.as_ref().unwrap_or(&args.invitation).parse();
        let invitation = invitation.map_err(|e: LineError| usage(e.to_string()))?;
        let name = args.name.unwrap_or_default();
        if !name.is_empty() && !join::is_node_name(&name) {
            return Err(usage(join::JoinRefusal::BadName(name).to_string()));
        }
        Ok(AskedNode {
            invitation: Some(invitation),
            name,
            mountpoint: args.mountpoint,
            no_mount: args.no_mount,
            roles: args.roles,
            data: args.data,
            listen: args.listen,
            stores: args.store,
            first_node: None,
            cache_bytes: cache_bytes(args.cache_size.as_ref())?,
            allow_other: args.allow_other,
            background: args.background,
            input,
        })
    }

    /// Checks the command line of `up`.
    pub fn from_up(args: &Up) -> anyhow::Result<AskedNode> {
        // The user of a former first node goes on to give the options with which it was made.
        let was_first = joined::was_first(&args.data);
        let of_first_node = [
            ("--stores", args.stores.is_some()),
            ("--keys", args.keys.is_some()),
            ("--parity", args.parity.is_some()),
            ("--block-size", args.block_size.is_some()),
            ("--store-size", args.store_size.is_some()),
            ("--accept-loss", args.accept_loss),
            ("--config", args.config.is_some()),
        ];
        if let Some((flag, _)) =
            of_first_node.iter().find(|(flag, is_given)| *is_given && (!was_first || *flag == "--accept-loss"))
        {
            let data = args.data.display();
            return Err(usage(format!("{data} belongs to a node that has joined: {flag} is for the first node")));
        }
        let stores = if was_first { &[][..] } else { &args.store };
        if let Some(server) = stores.iter().find(|store| store.to_string_lossy().contains("://")) {
            return Err(usage(format!("--store {}: a node that has joined takes folders", server.display())));
        }
        if let Some(address) = args.first_node.as_ref().filter(|address| split_port(address).is_none()) {
            return Err(usage(format!("--first-node {address}: give ADDRESS:PORT")));
        }
        let said = NodeSettings::from(args)?;
        Ok(AskedNode {
            invitation: None,
            name: String::new(),
            mountpoint: args.mountpoint.clone(),
            no_mount: said.no_mount,
            roles: args.roles.clone(),
            data: args.data.clone(),
            listen: said.listen,
            stores: stores.to_vec(),
            first_node: args.first_node.clone(),
            cache_bytes: said.cache_bytes,
            allow_other: said.allow_other,
            background: args.background,
            input: None,
        })
    }
}

impl AskedNode {
    /// What the node is to do, from what the user says now and chose before. Changes nothing.
    ///
    /// # Errors
    /// The options contradict each other, one is missing, or the node has nothing to do.
    fn roles(&self) -> anyhow::Result<Roles> {
        let chosen = Roles::known(&self.data)?;
        let mut roles = chosen.unwrap_or_default();
        let is_asked = |role| self.roles.as_ref().is_some_and(|asked| asked.contains(&role));
        let is_left_out = |role| self.roles.as_ref().is_some_and(|asked| !asked.contains(&role));
        let mounts_nothing = self.no_mount || is_left_out(Role::Client) || !(roles.client || is_asked(Role::Client));
        let wrong = match &self.mountpoint {
            Some(_) if is_left_out(Role::Client) => Some("--roles has no client: add it, or leave out the mount point"),
            None if is_asked(Role::Client) => Some("--roles client: give the mount point"),
            None if !mounts_nothing => Some(NO_MOUNTPOINT),
            _ => None,
        };
        roles.client = self.mountpoint.is_some();
        roles.manager = is_asked(Role::Manager) || roles.manager && !is_left_out(Role::Manager);
        roles.voter = is_asked(Role::Voter) || roles.voter && !is_left_out(Role::Voter);
        let known = Serves::known(&self.data)?;
        let listens = self.listen.is_some() || known.is_some();
        let has_stores = !self.stores.is_empty() || known.is_some_and(|known| !known.stores.is_empty());
        // A machine that others reach, and that has a store, is one that stays.
        let is_new = chosen.is_none() && !self.data.join(joined::ABOUT).exists();
        roles.voter |= is_new && self.roles.is_none() && listens && has_stores;
        let wrong = wrong.or(match (has_stores, listens) {
            (true, _) if is_left_out(Role::Storage) => Some("--store: --roles has no storage: add it"),
            (false, _) if is_asked(Role::Storage) => Some("--roles storage: add --store DIR and --listen ADDRESS:PORT"),
            (_, false) if is_asked(Role::Manager) => {
                Some("--roles manager: other nodes must reach this one: add --listen ADDRESS:PORT")
            }
            (_, false) if is_asked(Role::Voter) => {
                Some("--roles voter: other nodes must reach this one: add --listen ADDRESS:PORT")
            }
            (false, false) if !roles.client => Some(
                "--no-mount: this node would have nothing to do: add --listen ADDRESS:PORT, and --store DIR for stores",
            ),
            (false, true) if !roles.client && !roles.manager && !roles.voter => {
                Some("this node would have nothing to do: it mounts nothing, has no store, and is neither to serve managers nor to vote")
            }
            _ => None,
        });
        wrong.map_or(Ok(roles), |wrong| Err(usage(wrong)))
    }
}

/// What a process that serves a joined node consists of.
pub struct ServedNode {
    /// What the node is.
    pub about: AboutNode,
    /// Its data folder.
    pub data: PathBuf,
    /// Keeps there what sessions had not synced.
    pub aside: Arc<KeptAside>,
    /// Its sessions.
    pub member: Arc<Member>,
    /// The first node.
    pub first: Arc<RemoteFirstNode>,
    /// The stores that it has.
    pub rack: Arc<StoreRack>,
    /// What leads here when voters elect this node; `None` if it has no address.
    pub leader: Option<Arc<Leader>>,
    /// Where it is mounted.
    pub mountpoint: Option<PathBuf>,
    /// The mount, until it ends; `None` also if the node mounts nothing.
    pub mount: Mutex<Option<fuse::Mount>>,
    /// The recordings of the mount.
    pub recording: Arc<Recordings>,
}

impl ServedNode {
    /// Waits for the first session. If the node has stores, it waits as long as it takes: the first
    /// node may need them for its own start.
    ///
    /// # Errors
    /// The first node refuses this one, or does not answer.
    async fn begin(&self, roles: Roles) -> anyhow::Result<()> {
        let at = || self.first.addresses().join(", ");
        let begun = match tokio::time::timeout(FIRST_SESSION_TIME_MAX, self.member.ready()).await {
            Err(_) if !self.rack.stores().is_empty() => {
                let why = if roles.client { ", without which nothing is mounted" } else { "" };
                eprintln!("the stores here are served; waiting for the first node at {}{why}", at());
                Ok(self.member.ready().await)
            }
            begun => begun,
        };
        match begun {
            Ok(begun) => begun.map_err(|refused| usage(refused.to_string())),
            Err(_) => {
                let why = self.member.trouble().map_or(String::new(), |why| format!(" ({why})"));
                Err(usage(format!(
                    "the first node at {} begins no session{why}: start it, and try again; if it is at another address now, add --first-node ADDRESS:PORT",
                    at()
                )))
            }
        }
    }

    /// Commits everything before the end. Without a session there is nothing to commit.
    async fn sync_last(&self) -> Result<(), String> {
        match self.member.client() {
            Some(_) => self.sync().await,
            None => self.told(),
        }
    }

    /// What to add to an error if something is kept that was lost since the start.
    async fn kept(&self) -> String {
        self.aside.flush().await;
        if self.member.has_ever_lost() { kept::hint(&self.data) } else { String::new() }
    }

    /// Fails once after a session was over before all changes were synced.
    fn told(&self) -> Result<(), String> {
        match self.member.take_loss() {
            true => Err(LOST.into()),
            false => Ok(()),
        }
    }

    /// Leads and votes no more.
    async fn stop_leading(&self, voter: &NodeVoter) {
        if let Some(leader) = &self.leader {
            leader.stop().await;
        }
        voter.close().await;
    }

    /// Commits everything.
    async fn sync(&self) -> Result<(), String> {
        // In this order: a session that ends says first that it has lost something.
        let (client, trouble) = (self.member.client(), self.member.trouble());
        self.told()?;
        match (client, trouble) {
            (Some(client), _) => client.sync().await.map_err(|e| {
                // The user is told now.
                self.member.take_loss();
                format!("commit: {e}")
            }),
            (None, Some(trouble)) => Err(format!("there is no session with the first node: {trouble}")),
            (None, None) => Err("there is no session with the first node".into()),
        }
    }
}

/// Answers commands on the control socket.
struct Control(Arc<ServedNode>);

impl control::Served for Control {
    fn answer(&self, request: Request, progress: mpsc::Sender<Value>) -> BoxFuture<Result<Value, String>> {
        let served = self.0.clone();
        if let Some(elected) = served.leader.as_ref().and_then(|leader| leader.elected())
            && let Some(answer) = of_elected(elected, &request, &progress)
        {
            return answer;
        }
        Box::pin(async move {
            match request {
                Request::Sync { home: false } => match served.sync().await {
                    Ok(()) => Ok(json!({})),
                    Err(e) => Err(format!("{e}{}", served.kept().await)),
                },
                Request::Status => Ok(status::collect(&served).await),
                Request::Nodes => report::from_joined(&served.first).await,
                Request::Who { path } => match served.member.client() {
                    Some(client) => who::from_joined(&client, &served.first, &path).await,
                    None => Err("there is no session with the first node: see `starling status`".into()),
                },
                Request::Record => served.recording.serve(progress).await,
                Request::EndRecord { number } => served.recording.end(number),
                Request::ReplaceStore { store, folder, is_dead, accepts_loss } => {
                    let how = replace::How { is_dead, accepts_loss };
                    replace::replace(&served, StoreId::new(store), &folder, how).await
                }
                request if is_order(&request) => orders::pass_on(&served.first, &request).await,
                Request::Scrub { .. } => Err(
                    "another machine leads (`starling nodes` names it): give this command there, with its data folder"
                        .into(),
                ),
                _ => not_here(),
            }
        })
    }
}

/// What the first node answers that is in this process. `None` if the request is for the member.
fn of_elected(
    elected: Arc<Elected>,
    request: &Request,
    progress: &mpsc::Sender<Value>,
) -> Option<BoxFuture<Result<Value, String>>> {
    let (request, progress, led) = (request.clone(), progress.clone(), elected.clone());
    let is_for_first = is_order(&request) || matches!(request, Request::Scrub { .. });
    let command = async move {
        match request {
            Request::Scrub { repair } => core_report::scrub(&led.machine, repair, progress).await,
            order => led.server.orders.carry_out(order).await,
        }
    };
    is_for_first.then(|| Box::pin(async move { elected.run(command).await }) as BoxFuture<_>)
}

/// Serves a node's stores, managers and voter to other nodes. Returns the address at which these
/// reach it.
async fn serve(
    host: &Host,
    listen: SocketAddr,
    keys: &NodeIdentity,
    rack: &Arc<StoreRack>,
    managers: &Arc<ManagerHost>,
    whereabouts: &Arc<Whereabouts>,
    voter: &Arc<NodeVoter>,
) -> anyhow::Result<(String, Option<JoinHandle<()>>)> {
    let listener = bind(listen).await?;
    let address = Serves::address(listener.local_addr().context("own address")?)?;
    let keys = ServerKeys::new(keys.authority.as_bytes(), keys.certificate.as_bytes(), keys.key.as_bytes());
    let keys = keys.map_err(|e| usage(format!("the keys of this node: {e}: restore them from a copy")))?;
    let services = Services::new()
        .with(kinds::STORAGE, StoreService::new(rack.clone()))
        .with(kinds::MANAGER, managers.service())
        .with(kinds::CONTROL, Arc::new(WhereaboutsService(whereabouts.clone())))
        .with(kinds::HOST, Arc::new(HostService(managers.clone())))
        .with(kinds::CONSENSUS, voter.service());
    let serving = tokio::spawn(link::serve(host.clone(), listener, services, Some(keys)));
    Ok((address, Some(serving)))
}

/// Gets the authority's key from the first node, unless it is here.
async fn take_authority(folder: &Path, identity: &NodeIdentity, first: &RemoteFirstNode) {
    let taken = async {
        if !identity::has_authority(folder)? {
            match first.control(ControlRequest::AuthorityKey).await? {
                ControlAnswer::AuthorityKey(AuthorityKey(secret)) => {
                    identity::keep_authority(folder, identity, &secret)?;
                }
                _ => anyhow::bail!("the first node sent another answer"),
            }
        }
        anyhow::Ok(())
    };
    if let Err(e) = taken.await {
        eprintln!(
            "warning: this node could not succeed the first one if that were lost, until it is started again: {e:#}"
        );
    }
}

/// Keeps the newest maps, and has the voter that they give to this node, from now on.
async fn follow_maps(folder: PathBuf, voter: Option<Arc<NodeVoter>>, member: Arc<Member>, about: AboutNode) {
    let (mut newer, Ok(fs)) = (member.maps(), about.file_system()) else { return };
    while newer.changed().await.is_ok() {
        let maps = newer.borrow_and_update().clone();
        if let Some(voter) = &voter {
            voter.follow(about.node(), fs, &maps).await;
        }
        let kept = {
            let folder = folder.clone();
            tokio::task::spawn_blocking(move || kept_maps::keep(&folder, &maps)).await
        };
        if let Ok(Err(e)) = kept {
            tracing::warn!("the newest maps are not kept: {e:#}");
        }
    }
}

/// Joins if that is asked for, and runs until a signal, `starling down` or an unmount ends it.
pub async fn run(asked: AskedNode) -> anyhow::Result<ExitCode> {
    let roles = asked.roles()?;
    if let Some(mountpoint) = &asked.mountpoint {
        check_mountpoint(mountpoint, &asked.data, asked.allow_other)?;
    }
    let runtime = tokio::runtime::Handle::current();
    let host = host::real::host(runtime.clone()).context("host")?;
    let folder = NodeFolder::open(&asked.data)?;
    let host_name = host_name();
    let wanted = Wanted { invitation: asked.invitation.as_ref(), name: &asked.name, host_name: &host_name };
    let (folder, about) = join(folder, wanted, &LinkDialer(host.clone())).await?;
    background::take_over(folder.path())?;
    let mut interrupt = signal(SignalKind::interrupt()).context("signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("signals")?;

    roles.keep(&folder)?;
    let keys = identity::of_joined(folder.path())?;
    let serves = Serves::settle(&folder, asked.listen, &asked.stores)?;
    let folders = serves.as_ref().map(|serves| serves.stores.clone()).unwrap_or_default();
    for store in &folders {
        asked.mountpoint.iter().try_for_each(|mountpoint| check_apart(mountpoint, store))?;
    }
    let rack = StoreRack::open(&host, about.file_system()?, about.node(), &folder, folders).await?;
    let managers = ManagerHost::new(host.clone());
    let whereabouts = Whereabouts::new(&folder, &about, keys.for_connections()?, asked.first_node.as_slice())?;
    let voter = NodeVoter::new(host.clone(), folder.path(), keys.for_connections()?);
    let opened = if serves.is_some() { voter.open_newest().await.map(drop) } else { Ok(()) };
    if let Err(e) = &opened {
        eprintln!("warning: this node does not vote until it gets another voter and starts again: {e:#}");
    }
    let takes_votes = roles.voter && serves.is_some() && opened.is_ok() && !voter.is_lost();
    // Other nodes need the stores and the voter, even if this one has no session yet.
    let listen = serves.as_ref().map(|serves| serves.listen);
    let (address, serving) = match listen {
        Some(listen) => serve(&host, listen, &keys, &rack, &managers, &whereabouts, &voter).await?,
        None => (String::new(), None),
    };
    let (earlier_maps, earlier) = kept_maps::kept(folder.path()).unzip();
    earlier_maps.iter().for_each(|maps| voter.learn(maps));
    let (at, stores, hosted) = (about.node(), rack.clone(), managers.clone());
    let connecting = RemoteFirstNode::connect(&host, at, whereabouts, &keys, stores, hosted, earlier);
    let first = connecting.await?;
    let config = MemberConfig {
        node: about.node(),
        cache_bytes: asked.cache_bytes,
        is_mounted: roles.client,
        address: address.clone(),
        takes_stores: rack.takes_stores(),
        takes_managers: roles.manager && !address.is_empty(),
        takes_votes,
    };
    let aside = KeptAside::start(folder.path());
    let member = Member::start(host.clone(), config, first.clone() as Arc<dyn FirstNode>, managers);
    member.set_aside(aside.clone());
    let weak = Arc::downgrade(&member);
    first.ask_while(move || weak.upgrade().is_some_and(|member| member.is_unanswered()));
    let leader = match listen {
        Some(listen) => {
            let data = folder.path().to_path_buf();
            let who = WhoLeads { about: about.clone(), data, listen, cache_bytes: asked.cache_bytes };
            Some(Leader::start(&host, &voter, who))
        }
        None => None,
    };
    let votes = listen.is_some().then(|| voter.clone());
    tokio::spawn(follow_maps(folder.path().to_path_buf(), votes, member.clone(), about.clone()));
    let kernel = KernelToCome::new();
    if roles.client {
        member.set_kernel(kernel.clone());
    }
    let socket_path = folder.path().join(control::SOCKET);
    let socket = Socket::listen(&socket_path)?;
    let recorder = Recorder::new();
    let mut options = fuse::MountOptions::new(runtime);
    options.observer = Some(recorder.clone());
    options.allow_other = asked.allow_other;
    options.shared = true;
    options.locks = true;
    options.flush = true;
    options.mount_xattrs.insert(control::XATTR.to_vec(), socket_path.as_os_str().as_encoded_bytes().to_vec());
    let (mount, recording) = (Mutex::new(None), Arc::new(Recordings::new(recorder)));
    let mountpoint = asked.mountpoint.clone();
    let data = folder.path().to_path_buf();
    let served = Arc::new(ServedNode { about, data, aside, member, first, rack, leader, mountpoint, mount, recording });
    // Commands find the process also while it waits for the first node.
    let server = socket.serve(Arc::new(Control(served.clone())));
    let stop = async { host::first(host::first(interrupt.recv(), terminate.recv()), server.down()).await };
    let mut stop = std::pin::pin!(stop);
    let begun = host::first(std::pin::pin!(served.begin(roles)), &mut stop).await;
    if let Either::Left(Ok(())) = begun {
        take_authority(folder.path(), &keys, &served.first).await;
    }
    let mounted = match (begun, &asked.mountpoint) {
        (Either::Left(Ok(())), Some(mountpoint)) => {
            mountpoint::mount(served.member.file_system(), mountpoint, options).await.map(|mount| Some(Some(mount)))
        }
        (Either::Left(Ok(())), None) => Ok(Some(None)),
        (Either::Left(Err(e)), _) => Err(e),
        (Either::Right(_), _) => Ok(None),
    };
    let mount = match mounted {
        Ok(Some(mount)) => mount,
        not_mounted => {
            served.member.leave().await;
            served.aside.flush().await;
            served.stop_leading(&voter).await;
            served.rack.close().await?;
            let told = not_mounted.as_ref().map(|_| "it had no session yet".to_string()).map_err(|e| format!("{e:#}"));
            server.finish(told).await;
            return not_mounted.map(|_| ExitCode::SUCCESS);
        }
    };
    mount.iter().for_each(|mount| kernel.came(Arc::new(mount.invalidator())));
    let closed = mountpoint::closed(mount.as_ref());
    *served.mount.lock().unwrap_or_else(PoisonError::into_inner) = mount;
    let what = match (roles.manager, served.rack.takes_stores()) {
        (true, true) => "managers and stores",
        (false, true) => "stores",
        (true, false) => "managers",
        (false, false) => "a voter",
    };
    match &asked.mountpoint {
        Some(mountpoint) => say(&format!("{READY} {}", mountpoint.display())),
        None => say(&format!("{SERVES} {what} at {address}; no mount")),
    }

    host::first(stop, closed).await;
    served.recording.close();
    let mount = served.mount.lock().unwrap_or_else(PoisonError::into_inner).take();
    // The unmount syncs, and is told of a loss. The user is to hear of it.
    let mut has_lost = match mount {
        Some(mount) => !mountpoint::unmount(mount).await? && served.member.has_ever_lost(),
        None => false,
    };
    let synced = served.sync_last().await;
    served.member.leave().await;
    has_lost |= served.member.take_loss();
    let synced = match synced.and(if has_lost { Err(LOST.into()) } else { Ok(()) }) {
        Ok(()) => Ok(()),
        Err(e) => Err(format!("not everything is committed: {e}{}", served.kept().await)),
    };
    served.stop_leading(&voter).await;
    if let Some(serving) = serving {
        serving.abort();
    }
    let closed = served.rack.close().await;
    server.finish(synced.clone().map(|()| "everything is committed".to_string())).await;
    synced.map_err(anyhow::Error::msg)?;
    closed?;
    match &asked.mountpoint {
        Some(mountpoint) => say(&format!("unmounted {}: everything is committed", mountpoint.display())),
        None => say("ended: everything is committed"),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command, NodeCommand};
    use clap::Parser;

    #[test]
    fn machines_with_an_address_and_a_store_vote_unless_the_user_says_otherwise() {
        let below = tempfile::tempdir().unwrap();
        let data = below.path().join("data");
        let shown = data.display().to_string();
        let votes = |flags: &[&str]| {
            let line = ["starling", "node", "join", "INVITATION", "./mnt", "--data", &shown];
            let Command::Node(node) = Args::try_parse_from(line.iter().chain(flags)).unwrap().command else {
                panic!("not node")
            };
            let NodeCommand::Join(args) = node.command else { panic!("not join") };
            let asked = AskedNode {
                invitation: None,
                name: String::new(),
                mountpoint: args.mountpoint,
                no_mount: args.no_mount,
                roles: args.roles,
                data: args.data,
                listen: args.listen,
                stores: args.store,
                first_node: None,
                cache_bytes: 0,
                allow_other: false,
                background: false,
                input: None,
            };
            asked.roles().unwrap()
        };
        let serves = ["--listen", "127.0.0.1:7440", "--store", "./s"];
        let chosen = [&serves[..], &["--roles", "client,storage,manager"]].concat();
        assert!(votes(&serves).voter && !votes(&[]).voter && !votes(&serves[..2]).voter && !votes(&chosen).voter);
        // The same line again, on a machine that has joined: what it chose stays.
        let folder = NodeFolder::open(&data).unwrap();
        votes(&chosen).keep(&folder).unwrap();
        assert!(!votes(&serves).voter);
        std::fs::remove_file(data.join(crate::node::roles::FILE)).unwrap();
        assert!(votes(&serves).voter);
        std::fs::write(data.join(joined::ABOUT), "{}").unwrap();
        assert!(!votes(&serves).voter, "it joined when voting had to be asked for");
    }
}
