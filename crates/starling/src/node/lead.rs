//! A node that voters have elected serves as the first node, beside what it is as a member.
//!
//! That part of its process has a folder of its own, `first` in the data folder, with the identity
//! of a first node. It has no stores and no mount: the node's own are those of the member, which
//! reaches the first node as any other one does. It runs in a runtime of its own. When the node
//! leads no more, that runtime ends, with all that runs in it: a crash, as far as the file system
//! can tell, and one that every start after it is made for.

use crate::folder::place_at_node;
use crate::node::first::{FirstNodeServer, HowFirst, Threshold, bind};
use crate::node::identity;
use crate::node::joined::AboutNode;
use crate::node::places as store_places;
use crate::node::voter::NodeVoter;
use anyhow::Context;
use cluster::leading::{Leading, stand_back};
use cluster::machine::{CoreMachine, INDEX_RANGE_LEN, Lengths, Run};
use cluster::maps::Voting;
use cluster::spread::DecidedPlaces;
use cluster::succession::after_election;
use cluster::{Claim, FsConfig, KnownNode, StorePlace, Succession};
use consensus::Consensus;
use host::{Either, Host, first};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Name of the folder in the node's data folder.
pub const FOLDER: &str = "first";
/// Time before a node that led may lead again.
const PAUSE: Duration = Duration::from_secs(1);
/// No start may take longer than this.
const START_TIME_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// How long its first start may take before others are to try.
const START_TIME_MAX: Duration = Duration::from_secs(120);
/// The caches of the first node are this part of those of the member.
const CACHE_SHARE: u64 = 4;
/// They are never smaller than this, in bytes.
const CACHE_BYTES_MIN: u64 = 16 << 20;
/// How long the end in good order may take. Otherwise it is as a crash.
const STOP_TIME_MAX: Duration = Duration::from_secs(20);

/// What a node needs to lead.
#[derive(Clone)]
pub struct WhoLeads {
    /// The node.
    pub about: AboutNode,
    /// Its data folder.
    pub data: PathBuf,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Bound of the member's caches in bytes.
    pub cache_bytes: u64,
}

/// The first node in the process of a member.
pub struct Elected {
    /// Where its tasks run.
    runtime: Handle,
    /// The roles.
    pub machine: CoreMachine,
    /// What it is to others.
    pub server: FirstNodeServer,
}

impl Elected {
    /// Runs a command where the first node runs.
    ///
    /// # Errors
    /// Those of the command. The node may lead no more when it has ended.
    pub async fn run(
        &self,
        command: impl Future<Output = Result<Value, String>> + Send + 'static,
    ) -> Result<Value, String> {
        let ran = self.runtime.spawn(command).await;
        ran.unwrap_or_else(|_| Err("this node does not lead any more: see `starling nodes`".into()))
    }
}

/// A runtime that ends, with all that runs in it, when this is dropped.
struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    fn new() -> anyhow::Result<OwnRuntime> {
        Ok(OwnRuntime(Some(crate::runtime()?)))
    }

    /// Runs something in it. The error says that it did not come to its end.
    async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> anyhow::Result<T> {
        let running = self.0.as_ref().map(|runtime| runtime.spawn(work)).context("the runtime has ended")?;
        running.await.context("cut short")?
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Has a node lead while voters elect it.
pub struct Leader {
    who: WhoLeads,
    host: Host,
    voter: Arc<NodeVoter>,
    serving: Mutex<Option<(Arc<Elected>, OwnRuntime)>>,
    ends: Notify,
    running: Mutex<Option<JoinHandle<()>>>,
}

impl Leader {
    /// Begins to wait for an election.
    pub fn start(host: &Host, voter: &Arc<NodeVoter>, who: WhoLeads) -> Arc<Leader> {
        let (serving, ends, running) = Default::default();
        let leader = Arc::new(Leader { who, host: host.clone(), voter: voter.clone(), serving, ends, running });
        let run = tokio::spawn(leader.clone().run());
        *lock(&leader.running) = Some(run);
        leader
    }

    /// The first node, while it is here.
    pub fn elected(&self) -> Option<Arc<Elected>> {
        lock(&self.serving).as_ref().map(|(elected, _)| elected.clone())
    }

    /// Ends the first node in good order, if it is here, and leads no more.
    pub async fn stop(&self) {
        self.ends.notify_one();
        let running = lock(&self.running).take();
        if let Some(running) = running {
            let _ = running.await;
        }
        let Some((elected, runtime)) = lock(&self.serving).take() else { return };
        let stopped = runtime.run(async move {
            elected.server.stop().await;
            elected.machine.stop().await.context("close the stores")
        });
        match host::timeout(&*self.host.clock, STOP_TIME_MAX, stopped).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::warn!("the first node ends as in a crash, and what was synced is safe: {e:#}"),
            Err(e) => tracing::warn!("the first node ends as in a crash, and what was synced is safe: {e}"),
        }
    }

    async fn run(self: Arc<Self>) {
        // The end may come while this waits anywhere.
        let _: Either<(), ()> = first(self.lead_whenever_elected(), self.ends.notified()).await;
    }

    async fn lead_whenever_elected(&self) {
        let mut voter = self.voter.other_than(None).await;
        let mut start_time_max = START_TIME_MAX;
        loop {
            let is_elected = voter.leadership_until(|now| now.is_ready);
            match first(is_elected, self.voter.other_than(Some(&voter))).await {
                Either::Left(leadership) if !leadership.has_stopped => {
                    let led = match Leading::begin(&self.host, &voter).await {
                        // Its end ends the questions, too, which keep others from an election.
                        Some(leading) => self.lead(&voter, &leading, start_time_max).await,
                        None => Ok(()),
                    };
                    if let Err(e) = led {
                        // Another machine may have the stores, and serves them when it leads.
                        tracing::warn!("this node is elected, and cannot lead: {e:#}");
                        // A start that takes long everywhere gets more time.
                        start_time_max = (2 * start_time_max).min(START_TIME_LIMIT);
                        stand_back(&self.host, &voter).await;
                    }
                    self.host.clock.sleep(PAUSE).await;
                }
                Either::Left(_) => {
                    self.voter.open_again(&voter).await;
                    voter = self.voter.other_than(Some(&voter)).await;
                }
                Either::Right(other) => voter = other,
            }
        }
    }

    /// Serves as the first node until the lease of the leader is over.
    async fn lead(
        &self,
        voter: &Arc<Consensus>,
        leading: &Arc<Leading>,
        start_time_max: Duration,
    ) -> anyhow::Result<()> {
        tracing::info!("voters have elected this node: it takes the place of the first one");
        let runtime = OwnRuntime::new()?;
        let starting = runtime.run(start(self.who.clone(), voter.clone(), leading.clone()));
        let starting = host::timeout(&*self.host.clock, start_time_max, starting);
        let elected = match first(starting, leading.over()).await {
            Either::Left(started) => Arc::new(started.context("the start takes too long")??),
            Either::Right(()) => anyhow::bail!("it does not lead any more"),
        };
        tracing::info!(address = %elected.server.orders.inviter.listen, "this node leads the file system");
        *lock(&self.serving) = Some((elected, runtime));
        leading.over().await;
        lock(&self.serving).take();
        tracing::warn!("this node does not lead the file system any more");
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listens at the port after the member's, so that firewalls can be told, or at another one if that
/// is taken.
async fn listen_beside(member: SocketAddr) -> anyhow::Result<TcpListener> {
    if let Some(next) = member.port().checked_add(1).filter(|_| member.port() > 0)
        && let Ok(listener) = TcpListener::bind(SocketAddr::new(member.ip(), next)).await
    {
        return Ok(listener);
    }
    bind(SocketAddr::new(member.ip(), 0)).await
}

/// Starts the first node, in its own runtime.
async fn start(who: WhoLeads, voter: Arc<Consensus>, leading: Arc<Leading>) -> anyhow::Result<Elected> {
    let host = host::real::host(tokio::runtime::Handle::current()).context("host")?;
    let folder = who.data.join(FOLDER);
    identity::of_elected(&who.data, &folder)?;
    let certificate = identity::fingerprint(&folder)?.context("the certificate of the first node")?;
    let config = FsConfig::decode(&voter.maps().bytes).context("the maps")?;
    let config = after_election(&config, certificate)?;
    let places = places(&host, &folder, &config)?;
    let listener = listen_beside(who.listen).await?;
    let threshold = Threshold::open(&host, &folder, listener, None)?;
    threshold.know_earlier_leases(&leading);
    threshold.arrivals.expect(config);
    // SAFETY: these calls take nothing and cannot fail.
    let (root_uid, root_gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let run = Run {
        cache_bytes: (who.cache_bytes / CACHE_SHARE).max(CACHE_BYTES_MIN),
        root_mode: 0o755,
        root_uid,
        root_gid,
        index_range_len: INDEX_RANGE_LEN,
        manager_lengths: Lengths::LARGEST,
        accepts_loss: false,
        claim: Claim { certificate: Some(certificate), succession: Some(Succession::Elected(who.about.node())) },
    };
    let voting = Voting::Led(voter);
    let machine = CoreMachine::start_after(host.clone(), &places, voting, run, &threshold.arrivals).await?;
    let listener = threshold.leave().await?;
    let (network, keys) = (host.clone(), identity::client_keys(&folder)?);
    let reach = Box::new(move |at: &KnownNode, name| store_places::reach(&network, &keys, at, name));
    let places = DecidedPlaces::new(machine.maps.clone(), reach);
    let member = Some((who.about.node(), who.about.name.clone()));
    let how =
        HowFirst { is_mounted: false, places, member, leading: Some(leading), votes: None, appoints_voters: true };
    let server = FirstNodeServer::start(&host, &machine, &folder, listener, how).await?;
    Ok(Elected { runtime: Handle::current(), machine, server })
}

/// Where the stores are once this node is the first one, by these maps: all at members.
fn places(host: &Host, folder: &Path, config: &FsConfig) -> anyhow::Result<Vec<StorePlace>> {
    let keys = identity::client_keys(folder)?;
    let place = |store| {
        let Some(at) = config.reach(config.place(store)) else {
            return Ok(StorePlace::Missing("its node has no address".into()));
        };
        place_at_node(host, &keys, store, &at).map(StorePlace::Node)
    };
    config.stores().map(place).collect()
}
