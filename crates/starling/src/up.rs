//! `starling up`: creates a file system on first use, starts all roles, mounts, and serves until
//! told to stop.

use crate::background;
use crate::control::{self, Request, Socket, not_here};
use crate::core_report::{self, ServedCore};
use crate::folder::{Folder, Stores, place_at_node};
use crate::kernel::KernelToCome;
use crate::location::Location;
use crate::mountpoint::{self, READY, SERVES, check_apart, check_mountpoint};
use crate::node::demotion::demote;
use crate::node::election::{self, Outcome};
use crate::node::first::{self, FirstNodeServer, Heard, HowFirst, Threshold};
use crate::node::orders::is_order;
use crate::node::places::{FirstNodePlaces, PlaceRecord, as_decided, is_decided};
use crate::node::voter::{LoneVoter, NodeVoter};
use crate::node::{identity, kept_maps, replace, report, who};
use crate::recorder::Recorder;
use crate::recording::Recordings;
use crate::settings::{Geometry, Settings};
use crate::{kept, say, size, usage};
use anyhow::Context;
use cluster::config::FIRST_NODE;
use cluster::leading::Leading;
use cluster::machine::{self, CoreMachine, Create, INDEX_RANGE_LEN, Lengths, Run, StartError};
use cluster::maps::Voting;
use cluster::survivors::Arrivals;
use cluster::{FsConfig, StorePlace};
use host::{Either, Host};
use policy::defaults::{BLOCK_BYTES, PARITIES};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stripe::StoreState;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use types::{BoxFuture, StoreId};
use vfs::fs::FileSystem;

/// Managers of a new file system: up to this many nodes serve some.
const MANAGER_COUNT: u16 = 4;
/// How long a start waits for nodes with stores, if it cannot do without them.
const NODES_TIME_MAX: Duration = Duration::from_secs(60);

/// How long the mount of a node that gives way may take to end.
const UNMOUNT_TIME_MAX: Duration = Duration::from_secs(5);

/// Answers commands on the control socket.
struct Control {
    core: Arc<ServedCore>,
    /// What it is to other nodes, if they may join.
    first: Option<Arc<FirstNodeServer>>,
    /// The data folder.
    data: PathBuf,
}

/// The answer if no other node may join.
const ALONE: &str = "no other node can join: start this one with --listen ADDRESS:PORT";

impl control::Served for Control {
    fn answer(&self, request: Request, progress: mpsc::Sender<Value>) -> BoxFuture<Result<Value, String>> {
        let (served, first, data) = (self.core.clone(), self.first.clone(), self.data.clone());
        Box::pin(async move {
            match request {
                request if is_order(&request) => first.ok_or(ALONE)?.orders.carry_out(request).await,
                Request::ReplaceStore { store, .. } => Err(replace::at_first_node(&served, StoreId::new(store))),
                Request::Nodes => report::from_first(&first.ok_or(ALONE)?.members, &served.machine.config),
                Request::Who { path } => {
                    let client = &served.machine.client;
                    match &first {
                        Some(first) => who::from_first(client, &first.members, &path).await,
                        None => who::from_only_node(client, &path).await,
                    }
                }
                Request::Sync { home: false } => {
                    served.machine.client.sync().await.map(|()| json!({})).map_err(|e| format!("commit: {e}"))
                }
                Request::Status => {
                    let mut status = core_report::collect(&served).await;
                    status["kept"] = kept::summary(&data);
                    Ok(status)
                }
                Request::Scrub { repair } => core_report::scrub(&served.machine, repair, progress).await,
                Request::Record => served.recording.serve(progress).await,
                Request::EndRecord { number } => served.recording.end(number),
                _ => not_here(),
            }
        })
    }
}

/// The error of a failed start, with what the user can do.
fn explain(e: StartError, places: &[Location]) -> anyhow::Error {
    let way_out = match &e {
        StartError::Refused { error, .. } if error.is_a_doubt() => {
            ". If that is impossible for good: --accept-loss starts with what the stores have, and gives up the rest"
        }
        _ => "",
    };
    usage(format!("{e}{}{way_out}", wanted(&e, places)))
}

/// The places of the stores that a refused start asks for.
pub fn wanted(e: &StartError, places: &[Location]) -> String {
    let StartError::Refused { stores, .. } = e else { return String::new() };
    let place = |store: types::StoreId| Some(format!("; {store} is {}", places.get(usize::from(store.raw()))?.shown()));
    stores.iter().filter_map(place).collect()
}

/// The properties of a new file system.
fn new_file_system(geometry: &Geometry) -> Create {
    Create {
        parity: geometry.parity.unwrap_or(PARITIES),
        block_size: geometry.block_size.unwrap_or(BLOCK_BYTES),
        manager_count: MANAGER_COUNT,
        store_capacity_bytes: geometry.store_size,
    }
}

/// What a start gives.
enum Start {
    Started(Box<Started>),
    /// Voters have elected another node: this one is to start again, as a member once its data
    /// folder is one's.
    Again,
}

struct Started {
    machine: CoreMachine,
    places: Arc<PlaceRecord>,
    listening: Option<Listening>,
}

/// What a first node has that others may join.
struct Listening {
    listener: TcpListener,
    voter: Arc<NodeVoter>,
    /// Until when it leads; `None` without a voter.
    leading: Option<Arc<Leading>>,
}

/// Starts the roles over a data folder, creating the file system if there is none.
async fn start(
    host: &Host,
    folder: &Folder,
    settings: &Settings,
    listener: Option<TcpListener>,
) -> anyhow::Result<Start> {
    let geometry = &settings.geometry;
    let known = folder.stores()?;
    if known.is_some() {
        background::take_over(folder.path())?;
    }
    let mut stores = match &known {
        Some(known) => known.clone(),
        None => folder.new_stores(geometry)?,
    };
    if let Some(keys) = &settings.keys {
        stores.keys = Some(std::path::absolute(keys).map_err(|e| usage(format!("--keys: {e}")))?);
    }
    if !geometry.store.is_empty() {
        stores.take_places(folder.absolute(&geometry.store)?);
    }
    for place in &stores.places {
        if let (Location::Folder(store), Some(mountpoint)) = (place, &settings.mountpoint) {
            check_apart(mountpoint, &folder.path().join(store))?;
        }
    }
    if known.is_none() {
        folder.make_folders(&stores)?;
    }
    let mut places = folder.places(host, &stores)?;
    if known.is_none() {
        let consensus = folder.consensus()?;
        let config = machine::create(host, &places, &consensus, new_file_system(geometry)).await;
        let config = config.map_err(|e| explain(e, &stores.places))?;
        folder.record_stores(&stores)?;
        let (fs, count, parity) = (config.fs, config.store_count, config.parity);
        eprintln!(
            "created file system {fs}: {count} stores of {}, parity {parity}, blocks of {}",
            size::show(config.store_capacity_bytes),
            size::show(config.block_size.into())
        );
        let spare = usize::from(count) - config.least_stores();
        if spare < usize::from(parity) {
            let wanted = 2 * parity + 1;
            eprintln!(
                "note: {parity} stores may be lost without loss of data, but it starts only while {} of {count} are there; with {wanted} or more stores it starts without {parity} of them",
                config.least_stores()
            );
        }
        background::take_over(folder.path())?;
    }
    // SAFETY: these calls take nothing and cannot fail.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let voter = listener.as_ref().map(|_| voter_of(host, folder)).transpose()?;
    let votes = || voter.as_ref().map(NodeVoter::service);
    let threshold = listener.map(|listener| Threshold::open(host, folder.path(), listener, votes())).transpose()?;
    let (mut leading, mut voting) = (None, Voting::Alone(Arc::new(LoneVoter(folder.path().to_path_buf()))));
    if let Some(voter) = &voter {
        voting = Voting::Alone(voter.clone());
        let opened = match voter.open_newest().await {
            Ok(opened) => opened,
            // The start makes it anew, unless others vote.
            Err(e) => {
                eprintln!("warning: {e:#}");
                None
            }
        };
        // The node that leads next would not know where they are.
        let votes_with_others = opened.as_ref().is_some_and(|opened| opened.voters().len() > 1);
        if votes_with_others && let Some(server) = stores.places.iter().find(|place| place.is_server()) {
            return Err(usage(format!(
                "--store {}: only the node that leads would reach it, and this one votes with others: give a folder",
                server.shown()
            )));
        }
        let waits = match &opened {
            Some(_) => votes_with_others,
            None => !stores.succeeds_another() && election::is_elsewhere(host, folder.path(), &places).await?,
        };
        if waits {
            let outcome = election::wait(host, folder.path(), opened.as_ref(), &places).await?;
            match outcome {
                Outcome::Leads(leads) => leading = Some(leads),
                Outcome::Succeeded(maps, config, node) => {
                    eprintln!("another node leads the file system now: this one goes on as a member");
                    let listen = settings.listen.context("--listen")?;
                    voter.close().await;
                    kept_maps::keep(folder.path(), &maps)?;
                    demote(folder, &stores, &config, node, listen, settings.mountpoint.is_some())?;
                    return Ok(Start::Again);
                }
            }
        }
        if let Some(opened) = opened {
            let config = FsConfig::decode(&opened.maps().bytes)?;
            if is_decided(&config, Some(&opened)) {
                stores = as_decided(folder.path(), stores, &config);
                // The folders of stores are locked while they are open.
                places.clear();
                places = folder.places(host, &stores)?;
            }
            voting = Voting::Led(opened);
        }
    }
    let heard = threshold.as_ref().map(|threshold| threshold.heard.clone()).unwrap_or_default();
    let waited = wait_for_nodes(host, folder, &heard, &mut stores, &mut places);
    match host::first(std::pin::pin!(waited), no_longer_leads(leading.as_ref())).await {
        Either::Left(waited) => waited?,
        Either::Right(()) => return Ok(Start::Again),
    }
    let run = Run {
        cache_bytes: settings.cache_bytes,
        root_mode: 0o755,
        root_uid: uid,
        root_gid: gid,
        index_range_len: INDEX_RANGE_LEN,
        manager_lengths: Lengths::LARGEST,
        accepts_loss: settings.accept_loss,
        claim: folder.claim(&stores)?,
    };
    let explained = |e| explain(e, &stores.places);
    let (machine, listener) = match threshold {
        None => (CoreMachine::start(host.clone(), &places, voting, run).await.map_err(explained)?, None),
        Some(threshold) => {
            leading.iter().for_each(|leading| threshold.know_earlier_leases(leading));
            let arrivals = &threshold.arrivals;
            let starting = CoreMachine::start_after(host.clone(), &places, voting, run, arrivals);
            let lost = no_longer_leads(leading.as_ref());
            let started = match host::first(starting, host::first(lost, tell_awaited(host, arrivals))).await {
                Either::Left(started) => started.map_err(explained)?,
                Either::Right(Either::Left(())) => return Ok(Start::Again),
                Either::Right(Either::Right(never)) => match never {},
            };
            (started, Some(threshold.leave().await?))
        }
    };
    let config = &machine.config;
    let fixed = [
        ("--stores", geometry.stores.map(u64::from), config.store_count.into()),
        ("--parity", geometry.parity.map(u64::from), config.parity.into()),
        ("--block-size", geometry.block_size.map(u64::from), config.block_size.into()),
        ("--store-size", geometry.store_size, config.store_capacity_bytes),
    ];
    for (flag, asked, is) in fixed {
        if asked.is_some_and(|asked| asked != is) {
            machine.stop().await.context("close the stores")?;
            return Err(usage(format!("{flag} was fixed at {is} when the file system was created: leave it out")));
        }
    }
    stores.has_succeeded();
    if known.is_some_and(|known| known != stores) {
        // The stores have moved, or it is the first node from now on.
        folder.record_stores(&stores)?;
    }
    let record = PlaceRecord::new(folder.path(), stores);
    if let Err(e) = record.clear_moved().await {
        eprintln!("warning: what is left here of stores that have moved to nodes cannot be removed: {e}");
    }
    let listening = match (listener, voter) {
        (Some(listener), Some(voter)) => {
            if let (None, Some(only), Some(id)) =
                (voter.voter(), machine.maps.voter(), machine.config.voter_of(FIRST_NODE))
            {
                voter.take(id, only.clone());
            }
            if let (None, Some(voter)) = (&leading, machine.maps.voter()) {
                leading = Leading::begin(host, voter).await;
                if leading.is_none() {
                    eprintln!("warning: its voter does not answer: no other node gets a voter until the next start");
                }
            }
            Some(Listening { listener, voter, leading })
        }
        _ => None,
    };
    Ok(Start::Started(Box::new(Started { machine, places: record, listening })))
}

/// Waits until this node leads no more; without a lease, for ever.
async fn no_longer_leads(leading: Option<&Arc<Leading>>) {
    match leading {
        Some(leading) => leading.over().await,
        None => std::future::pending().await,
    }
}

/// The voter of a node that others may join, which is not opened yet.
fn voter_of(host: &Host, folder: &Folder) -> anyhow::Result<Arc<NodeVoter>> {
    identity::of_first_node(folder.path())?;
    Ok(NodeVoter::new(host.clone(), folder.path(), identity::client_keys(folder.path())?))
}

/// Ends what a first node serves whose lease as the leader is over, and starts again.
async fn give_way(served: &ServedCore, data: &Path) -> anyhow::Error {
    let client = &served.machine.client;
    client.abandon();
    // From now on nothing is changed any more, though the mount may still be in use.
    let unsynced = client.unsynced();
    let mount = served.mount.lock().unwrap_or_else(PoisonError::into_inner).take();
    // On a thread of its own the drop waits until the mount point is free.
    let unmounted = tokio::task::spawn_blocking(move || std::thread::spawn(move || drop(mount)).join());
    let _ = tokio::time::timeout(UNMOUNT_TIME_MAX, unmounted).await;
    let kept = kept::keep_last(data, unsynced).await;
    eprintln!("this node does not lead the file system any more, and starts again{kept}");
    start_again()
}

/// Runs this command again in the place of this process, with what the data folder has now.
fn start_again() -> anyhow::Error {
    // The program's file may have been replaced meanwhile.
    let mut command = std::process::Command::new("/proc/self/exe");
    // What the user accepted was for that start.
    let is_kept = |argument: &std::ffi::OsString| argument != "--background" && argument != "--accept-loss";
    command.args(std::env::args_os().skip(1).filter(is_kept));
    anyhow::Error::new(command.exec()).context("start again")
}

/// Tells the user once which nodes a start waits for, if it waits long. Never ends.
async fn tell_awaited(host: &Host, arrivals: &Arrivals) -> Infallible {
    loop {
        host.clock.sleep(Duration::from_secs(1)).await;
        let awaited = arrivals.awaited();
        if !awaited.is_empty() {
            let (names, seconds) = (awaited.join(", "), first::LEASE.as_secs());
            eprintln!("waiting up to {seconds} s for nodes that may have the file system mounted: {names}");
            std::future::pending::<()>().await;
        }
    }
}

/// Why not everything is committed at the end.
async fn not_committed(served: &ServedCore) -> String {
    let places = served.places.places();
    let healths = served.machine.stripe.glance().await;
    let absent = healths.iter().filter(|store| store.state == StoreState::Absent);
    let away: Vec<String> = absent.filter_map(|store| Some(places.get(usize::from(store.id.raw()))?.shown())).collect();
    match away.is_empty() {
        true => "commit everything and close the stores".into(),
        false => format!(
            "not everything is committed, since stores are away ({}); what was synced is safe: have them back for the next start",
            away.join(", ")
        ),
    }
}

/// Waits a while for the nodes that have stores: after a loss of power, all start together. Nodes
/// that have other addresses now say so meanwhile.
async fn wait_for_nodes(
    host: &Host,
    folder: &Folder,
    heard: &Heard,
    stores: &mut Stores,
    places: &mut [StorePlace],
) -> anyhow::Result<()> {
    let begun = host.clock.now();
    let mut is_told = false;
    loop {
        for ((store, location), place) in (0..).zip(&mut stores.places).zip(&mut *places) {
            if let StorePlace::Node(node) = &*place
                && let Some(now) = heard.elsewhere(&node.at)
            {
                eprintln!("the store at {} is at {} now", node.at.address, now.address);
                let keys = identity::client_keys(folder.path())?;
                *place = StorePlace::Node(place_at_node(host, &keys, StoreId::new(store), &now)?);
                *location = Location::Node(now);
            }
        }
        let asked = places.iter().map(async |place| match place {
            StorePlace::Node(node) => node.remote.presence().await.err().map(|e| (node.at.address.clone(), e)),
            _ => None,
        });
        let away: Vec<_> = host::join_all(asked.collect()).await.into_iter().flatten().collect();
        let has_most = (places.len() - away.len()) * 2 > places.len();
        let patience = if has_most { NODES_TIME_MAX / 6 } else { NODES_TIME_MAX };
        if away.is_empty() || host.clock.now() >= begun + patience {
            return Ok(());
        }
        if !std::mem::replace(&mut is_told, true) {
            for (address, e) in &away {
                eprintln!("waiting up to {} s for the store at {address}: {e}", patience.as_secs());
            }
        }
        host.clock.sleep(Duration::from_secs(1)).await;
    }
}

/// Runs until a signal, `starling down` or an unmount ends it.
pub async fn run(settings: Settings) -> anyhow::Result<ExitCode> {
    if let Some(mountpoint) = &settings.mountpoint {
        check_mountpoint(mountpoint, &settings.data, settings.allow_other)?;
    }
    let runtime = tokio::runtime::Handle::current();
    let host = host::real::host(runtime.clone()).context("host")?;
    if Folder::is_new(&settings.data) {
        new_file_system(&settings.geometry).check(settings.geometry.store_count()).map_err(|e| explain(e, &[]))?;
    }
    let listener = match settings.listen {
        Some(listen) => Some(first::bind(listen).await?),
        None => None,
    };
    let folder = Folder::open(&settings.data, true)?;
    let started = start(&host, &folder, &settings, listener).await?;
    let Started { machine, places, listening } = match started {
        Start::Started(started) => *started,
        Start::Again => return Err(start_again()),
    };
    // Creation and start can be interrupted anywhere. From here on, signals end the process in good
    // order.
    let mut interrupt = signal(SignalKind::interrupt()).context("signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("signals")?;
    if machine.recovery.segment_count > 0 {
        let r = machine.recovery;
        eprintln!("recovered: {} segments with {} changes in {:?}", r.segment_count, r.delta_count, r.time);
    }

    let kernel = KernelToCome::new();
    let mut group = None;
    let first = match listening {
        None => {
            first::wait_for_leases(&machine).await;
            None
        }
        Some(Listening { listener, voter, leading }) => {
            let is_mounted = settings.mountpoint.is_some();
            if is_mounted {
                machine.client.set_kernel(kernel.clone());
            }
            let how = HowFirst {
                is_mounted,
                places: FirstNodePlaces::new(host.clone(), places.clone(), machine.maps.clone())?,
                member: None,
                leading: leading.clone(),
                votes: Some(voter.service()),
                appoints_voters: !places.places().iter().any(Location::is_server),
            };
            group = Some((voter, leading));
            match FirstNodeServer::start(&host, &machine, folder.path(), listener, how).await {
                Ok(first) => Some(Arc::new(first)),
                Err(e) => {
                    machine.stop().await.context("close the stores")?;
                    return Err(e);
                }
            }
        }
    };
    let socket_path = folder.path().join(control::SOCKET);
    let socket = Socket::listen(&socket_path)?;
    let mut options = fuse::MountOptions::new(runtime);
    let recorder = Recorder::new();
    options.observer = Some(recorder.clone());
    options.allow_other = settings.allow_other;
    options.shared = first.is_some();
    options.locks = first.is_some();
    options.flush = first.is_some();
    options.mount_xattrs.insert(control::XATTR.to_vec(), socket_path.as_os_str().as_encoded_bytes().to_vec());
    options.mount_xattrs.insert(localdir::volume::XATTR.to_bytes().to_vec(), machine.config.fs.0.to_vec());
    let mounted = match &settings.mountpoint {
        Some(mountpoint) => mountpoint::mount(Arc::new(machine.client.clone()), mountpoint, options).await.map(Some),
        None => Ok(None),
    };
    let mount = match mounted {
        Ok(mount) => mount,
        Err(e) => {
            socket.remove();
            if let Some(first) = &first {
                first.stop().await;
            }
            machine.stop().await.context("close the stores")?;
            return Err(e);
        }
    };
    mount.iter().for_each(|mount| kernel.came(Arc::new(mount.invalidator())));
    let closed = mountpoint::closed(mount.as_ref());
    let recording = Arc::new(Recordings::new(recorder));
    let served = Arc::new(ServedCore { machine, places, mount: Mutex::new(mount), recording });
    let data = folder.path().to_path_buf();
    let server = socket.serve(Arc::new(Control { core: served.clone(), first: first.clone(), data }));
    if let Some(first) = &first {
        eprintln!(
            "listening at {}: `starling node invite --data {}` lets a node join",
            first.orders.inviter.listen,
            settings.data.display()
        );
    }
    match (&settings.mountpoint, &first) {
        (Some(mountpoint), _) => say(&format!("{READY} {}", mountpoint.display())),
        (None, Some(first)) => {
            say(&format!("{SERVES} managers and stores at {}; no mount", first.orders.inviter.listen))
        }
        (None, None) => {}
    }

    let asked = host::first(host::first(interrupt.recv(), terminate.recv()), server.down());
    let lost = no_longer_leads(group.as_ref().and_then(|(_, leading)| leading.as_ref()));
    if let Either::Right(()) = host::first(host::first(asked, closed), lost).await {
        return Err(give_way(&served, folder.path()).await);
    }

    served.recording.close();
    let mount = served.mount.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(mount) = mount {
        mountpoint::unmount(mount).await?;
    }
    if let Some(first) = &first {
        first.stop().await;
    }
    let stopped = served.machine.stop().await;
    if let Some((voter, _)) = &group {
        voter.close().await;
    }
    let stopped = match stopped {
        Ok(()) => Ok(()),
        Err(e) => {
            let kept = kept::keep_last(folder.path(), served.machine.client.unsynced()).await;
            Err(anyhow::Error::new(e).context(format!("{}{kept}", not_committed(&served).await)))
        }
    };
    server.finish(stopped.as_ref().map(|_| "everything is committed".to_string()).map_err(|e| format!("{e:#}"))).await;
    stopped?;
    match &settings.mountpoint {
        Some(mountpoint) => say(&format!("unmounted {}: everything is committed", mountpoint.display())),
        None => say("ended: everything is committed"),
    }
    Ok(ExitCode::SUCCESS)
}
