//! The voter of a node: its folder, its way to the others, and its answers to them.
//!
//! The maps say which node has which voter ([`FsConfig::voters`]). A voter's folder is
//! `consensus-ID` in the node's data folder, and `consensus` for the first voter of a file system.
//! `voter.json` remembers which voter a node that has joined has made. If its folder is gone, the
//! voter has forgotten its votes, and is not made again under its id: the node says that it takes
//! no voter, the leader takes that one out of the group, and later gives it another one.

use crate::folder::{voter_folder as folder, voter_of};
use crate::node::identity::address_of;
use crate::node::joined;
use crate::private;
use anyhow::Context;
use bytes::Bytes;
use cluster::config::FIRST_NODE;
use cluster::maps::VoterHome;
use cluster::{FsConfig, KnownNode};
use consensus::network::{PeerError, Peers};
use consensus::{Consensus, GroupTiming, VoterOpenError, VoterSettings};
use host::real::RealDisk;
use host::{Disk, Host};
use link::{ClientKeys, Message, NodeLink, NodeService, Peer, kinds};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use storage::tcp::TLS_NAME;
use tokio::sync::watch;
use types::codec::DecodeError;
use types::{BoxFuture, FsUuid, Maps, NodeId};

/// How soon voters notice that the leader is gone: after two to three seconds. A voter whose
/// machine is busy answers in time.
pub const TIMING: GroupTiming = GroupTiming {
    heartbeat: Duration::from_millis(300),
    election_min: Duration::from_millis(700),
    election_max: Duration::from_secs(2),
};
/// Time before a voter is opened again whose disk has failed.
const REOPEN_PAUSE: Duration = Duration::from_secs(5);
/// Name of the file that remembers which voter was made.
const FILE: &str = "voter.json";

/// Remembers which voter is made in a data folder, durably.
pub fn remember(data: &Path, voter: u64) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(&MadeVoter { version: 1, voter })?;
    private::put(data, FILE, text.as_bytes()).context(FILE)
}

/// The contents of `voter.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MadeVoter {
    version: u32,
    voter: u64,
}

/// The disk of a voter; its folder is made if it does not exist.
fn disk(data: &Path, voter: u64) -> anyhow::Result<Arc<dyn Disk>> {
    let path = folder(data, voter);
    let shown = path.display().to_string();
    std::fs::create_dir_all(&path).with_context(|| shown.clone())?;
    private::sync(data).context("data folder")?;
    let disk = RealDisk::open(&path).with_context(|| shown.clone())?;
    private::lock_disk(&disk).map_err(|_| anyhow::anyhow!("{shown} is in use by another process"))?;
    Ok(disk)
}

/// The voter of a first node that does not listen, in its data folder.
pub struct LoneVoter(pub PathBuf);

impl VoterHome for LoneVoter {
    fn voter(&self, voter: u64) -> Result<(Arc<dyn Disk>, VoterSettings), String> {
        let disk = disk(&self.0, voter).map_err(|e| format!("{e:#}"))?;
        Ok((disk, VoterSettings { voter, ..VoterSettings::alone() }))
    }
}

/// The newest voter that has a folder in a data folder.
pub fn newest(data: &Path) -> std::io::Result<Option<u64>> {
    let names = std::fs::read_dir(data)?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<std::io::Result<Vec<_>>>()?;
    Ok(names.iter().filter_map(|name| voter_of(name.to_str()?)).max())
}

/// Removes the folders of all voters from a data folder. They never vote again.
pub fn remove_all(data: &Path) -> anyhow::Result<()> {
    while let Some(voter) = newest(data)? {
        std::fs::remove_dir_all(folder(data, voter)).with_context(|| folder(data, voter).display().to_string())?;
    }
    private::sync(data).context("data folder")
}

/// The maps that voters reach each other by, the newest that this process has seen.
#[derive(Default)]
struct Seen {
    epoch: u64,
    config: Option<FsConfig>,
}

/// The way to the other voters.
pub struct VoterPeers {
    host: Host,
    keys: ClientKeys,
    seen: Mutex<Seen>,
    links: Mutex<BTreeMap<u64, (KnownNode, Arc<NodeLink>)>>,
    /// The voter that asks.
    own: Mutex<Weak<Consensus>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl VoterPeers {
    /// Connects with these keys.
    pub fn new(host: Host, keys: ClientKeys) -> Arc<VoterPeers> {
        let (seen, links, own) = Default::default();
        Arc::new(VoterPeers { host, keys, seen, links, own })
    }

    /// Takes in maps.
    pub fn learn(&self, maps: &Maps) {
        let mut seen = lock(&self.seen);
        if maps.epoch > seen.epoch
            && let Ok(config) = FsConfig::decode(&maps.bytes)
        {
            *seen = Seen { epoch: maps.epoch, config: Some(config) };
        }
    }

    /// Takes in what the voter itself knows.
    fn look(&self) {
        let own = lock(&self.own).upgrade();
        own.inspect(|voter| self.learn(&voter.maps()));
    }

    /// True if a node with this certificate may ask a voter.
    fn admits(&self, certificate: &[u8; 32]) -> bool {
        self.look();
        lock(&self.seen).config.as_ref().is_none_or(|config| config.has_node(certificate))
    }

    fn link(&self, voter: u64) -> Option<Arc<NodeLink>> {
        self.look();
        let at = lock(&self.seen).config.as_ref()?.reach_voter(voter)?;
        let mut links = lock(&self.links);
        if let Some((known, link)) = links.get(&voter)
            && *known == at
        {
            return Some(link.clone());
        }
        let mut address = address_of(&at, &self.keys).ok()?;
        if at.node == FIRST_NODE {
            address.keys = Some(self.keys.to(TLS_NAME, at.fingerprint));
        }
        let (link, tried) = NodeLink::keep(&self.host, address, format!("voter {voter}"), None);
        drop(tried);
        links.insert(voter, (at, link.clone()));
        Some(link)
    }
}

impl Peers for VoterPeers {
    fn ask(&self, voter: u64, _: &str, request: Bytes) -> BoxFuture<Result<Bytes, PeerError>> {
        let failed = move |why: String| PeerError { voter, why };
        let Some(link) = self.link(voter) else {
            return Box::pin(async move { Err(failed("its node is not known".into())) });
        };
        let len = request.len();
        let asked = link.ask(kinds::CONSENSUS, Message::of_head(request.to_vec()), len);
        Box::pin(async move {
            match asked.await {
                Ok(answer) => Ok(answer.head.into()),
                Err(e) => Err(failed(e.to_string())),
            }
        })
    }
}

/// The voter of a node, which may come and go.
pub struct NodeVoter {
    host: Host,
    /// The node's data folder.
    data: PathBuf,
    peers: Arc<VoterPeers>,
    voter: watch::Sender<Option<(u64, Arc<Consensus>)>>,
    /// Held while the voter comes or goes.
    turn: tokio::sync::Mutex<()>,
}

impl NodeVoter {
    /// A node without a voter yet. It connects to others with these keys.
    pub fn new(host: Host, data: &Path, keys: ClientKeys) -> Arc<NodeVoter> {
        let (peers, voter) = (VoterPeers::new(host.clone(), keys), watch::Sender::new(None));
        Arc::new(NodeVoter { host, data: data.to_path_buf(), peers, voter, turn: tokio::sync::Mutex::default() })
    }

    /// Takes in maps, which say where the other voters are.
    pub fn learn(&self, maps: &Maps) {
        self.peers.learn(maps);
    }

    /// The voter, if there is one.
    pub fn voter(&self) -> Option<Arc<Consensus>> {
        self.voter.borrow().as_ref().map(|(_, voter)| voter.clone())
    }

    /// Waits until there is a voter, other than this one.
    pub async fn other_than(&self, known: Option<&Arc<Consensus>>) -> Arc<Consensus> {
        let mut changes = self.voter.subscribe();
        let is_other = |voter: &Option<(u64, Arc<Consensus>)>| {
            voter.as_ref().is_some_and(|(_, voter)| known.is_none_or(|known| !Arc::ptr_eq(known, voter)))
        };
        loop {
            let found = changes.wait_for(is_other).await.ok().and_then(|found| found.as_ref().map(|(_, v)| v.clone()));
            match found {
                Some(voter) => return voter,
                // The sender lives as long as this.
                None => std::future::pending().await,
            }
        }
    }

    /// Answers other voters.
    pub fn service(self: &Arc<Self>) -> Arc<dyn NodeService> {
        Arc::new(VoterService(self.clone()))
    }

    /// Has this voter, which was opened with [`settings`](VoterHome::voter), answer others.
    pub fn take(&self, id: u64, voter: Arc<Consensus>) {
        *lock(&self.peers.own) = Arc::downgrade(&voter);
        self.voter.send_replace(Some((id, voter)));
    }

    fn settings(&self, voter: u64) -> VoterSettings {
        VoterSettings { voter, node: String::new(), peers: self.peers.clone(), timing: Some(TIMING) }
    }

    fn disk(&self, voter: u64) -> anyhow::Result<Arc<dyn Disk>> {
        disk(&self.data, voter)
    }

    /// Opens the newest voter in the folder, if there is one.
    pub async fn open_newest(&self) -> anyhow::Result<Option<Arc<Consensus>>> {
        let Some(id) = newest(&self.data)? else { return Ok(None) };
        match Consensus::open(&self.host, &self.disk(id)?, &self.settings(id)).await {
            Ok(voter) => {
                let voter = Arc::new(voter);
                self.take(id, voter.clone());
                Ok(Some(voter))
            }
            Err(VoterOpenError::Empty) => Ok(None),
            Err(e) => Err(anyhow::Error::new(e).context(format!("the folder of voter {id}"))),
        }
    }

    /// Opens a voter again that has stopped since its disk failed, unless it goes.
    pub async fn open_again(&self, stopped: &Arc<Consensus>) {
        let is_it = || {
            let is = self.voter.borrow();
            is.as_ref().and_then(|(id, is)| Arc::ptr_eq(is, stopped).then_some(*id))
        };
        let Some(id) = is_it() else { return };
        tracing::error!(voter = id, "the disk of this node's voter failed: it votes when it can be opened again");
        let mut told = None;
        loop {
            self.host.clock.sleep(REOPEN_PAUSE).await;
            let _turn = self.turn.lock().await;
            if is_it().is_none() {
                return;
            }
            match stopped.open_again().await {
                Ok(again) if is_it().is_some() => {
                    self.take(id, Arc::new(again));
                    tracing::info!(voter = id, "this node votes again");
                    return;
                }
                Ok(gone) => return gone.close().await,
                Err(e) => told.get_or_insert_with(|| tracing::warn!(voter = id, "not yet: {e}")),
            };
        }
    }

    fn made(&self) -> anyhow::Result<Option<u64>> {
        Ok(joined::read::<MadeVoter>(&self.data, FILE)?.map(|made| made.voter))
    }

    /// True if a voter was made here, or begun, and [is not here any more](Self::open_newest).
    pub fn is_lost(&self) -> bool {
        match self.made() {
            Ok(made) => made.is_some() && self.voter().is_none(),
            Err(_) => true,
        }
    }

    /// Has the voter that these maps give to the node, or none.
    pub async fn follow(&self, node: NodeId, fs: FsUuid, maps: &Maps) {
        self.peers.learn(maps);
        let Ok(config) = FsConfig::decode(&maps.bytes) else { return };
        let _turn = self.turn.lock().await;
        let is = self.voter.borrow().as_ref().map(|(id, _)| *id);
        let followed = async {
            match (is, config.voter_of(node)) {
                (Some(is), Some(wanted)) if is == wanted => match self.made()? == Some(is) {
                    true => Ok(()),
                    false => remember(&self.data, is),
                },
                (_, wanted) => {
                    self.close().await;
                    match wanted {
                        Some(id) => self.open_or_join(id, fs).await,
                        None => self.forget(),
                    }
                }
            }
        };
        if let Err(e) = followed.await {
            tracing::error!("this node does not vote: {e:#}");
        }
    }

    /// The group has no voter of this node any more. It may get another one.
    fn forget(&self) -> anyhow::Result<()> {
        remove_all(&self.data)?;
        match std::fs::remove_file(self.data.join(FILE)) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e).context(FILE),
            _ => Ok(private::sync(&self.data).context("data folder")?),
        }
    }

    async fn open_or_join(&self, id: u64, fs: FsUuid) -> anyhow::Result<()> {
        let was_made = self.made()? == Some(id);
        if was_made && !folder(&self.data, id).exists() {
            anyhow::bail!("the folder of voter {id} is lost; this node gets another voter");
        }
        if !was_made {
            // One that is cut short is lost, and gets another id: it may have voted.
            remove_all(&self.data)?;
            remember(&self.data, id)?;
        }
        let (disk, settings) = (self.disk(id)?, self.settings(id));
        let voter = match was_made {
            true => Consensus::open(&self.host, &disk, &settings).await?,
            false => Consensus::join(&self.host, &disk, &settings, fs).await?,
        };
        self.take(id, Arc::new(voter));
        tracing::info!(voter = id, "this node votes");
        Ok(())
    }

    /// Ends the voter.
    pub async fn close(&self) {
        if let Some((_, voter)) = self.voter.send_replace(None) {
            voter.close().await;
        }
    }
}

impl VoterHome for NodeVoter {
    fn voter(&self, voter: u64) -> Result<(Arc<dyn Disk>, VoterSettings), String> {
        self.disk(voter).map(|disk| (disk, self.settings(voter))).map_err(|e| format!("{e:#}"))
    }
}

/// Answers other voters.
struct VoterService(Arc<NodeVoter>);

impl NodeService for VoterService {
    fn serve(&self, peer: &Peer, head: Vec<u8>, _: Bytes) -> Result<BoxFuture<Message>, DecodeError> {
        let voter = self.0.voter().filter(|_| peer.fingerprint.is_some_and(|peer| self.0.peers.admits(&peer)));
        Ok(Box::pin(async move {
            // An empty answer is none to the voter that asks.
            let answer = match voter {
                Some(voter) => voter.answer(&head).await.unwrap_or_default(),
                None => Bytes::new(),
            };
            Message::of_head(answer.to_vec())
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::identity;
    use crate::node::joined::tests::config;
    use cluster::config::MemberEntry;

    const FS: FsUuid = FsUuid([3; 16]);

    /// Maps of this epoch, in which node 1 has voter 2 or none, after voter 2 of another node was.
    fn maps(epoch: u64, has_voter: bool) -> Maps {
        let mut config = config();
        let member = MemberEntry { name: "one".into(), fingerprint: [1; 32], address: "127.0.0.1:1".into() };
        let node = config.add_member(member).unwrap();
        config.next_voter = 1 + epoch;
        if has_voter {
            config.add_voter(node).unwrap();
        }
        Maps { epoch, bytes: config.encode() }
    }

    fn voter(data: &Path) -> Arc<NodeVoter> {
        let host = host::real::host(tokio::runtime::Handle::current()).unwrap();
        NodeVoter::new(host, data, identity::client_keys(data).unwrap())
    }

    #[tokio::test]
    async fn a_voter_whose_disk_fails_is_opened_again_unless_it_has_gone() {
        let (data, node) = (tempfile::tempdir().unwrap(), NodeId::new(1));
        identity::of_first_node(data.path()).unwrap();
        let here = voter(data.path());
        here.follow(node, FS, &maps(1, true)).await;
        let failed = here.voter().unwrap();
        failed.close().await;
        here.open_again(&failed).await;
        let again = here.voter().unwrap();
        assert!(failed.leadership().has_stopped && !again.leadership().has_stopped);
        assert!(Arc::ptr_eq(&again, &here.other_than(Some(&failed)).await));
        here.close().await;
        here.open_again(&again).await;
        assert!(here.voter().is_none());
    }

    #[tokio::test]
    async fn a_node_has_the_voter_that_the_maps_give_it_and_never_the_same_one_again() {
        let (data, node) = (tempfile::tempdir().unwrap(), NodeId::new(1));
        identity::of_first_node(data.path()).unwrap();
        let one = voter(data.path());
        assert!(one.open_newest().await.unwrap().is_none() && !one.is_lost());
        one.follow(node, FS, &maps(1, true)).await;
        assert!(one.voter().is_some() && folder(data.path(), 2).exists());
        one.close().await;
        // It is the same one after a start.
        let again = voter(data.path());
        assert!(again.open_newest().await.unwrap().is_some() && !again.is_lost());
        again.follow(node, FS, &maps(1, true)).await;
        assert!(again.voter().is_some());
        again.close().await;
        // It does not come back with an empty folder.
        std::fs::remove_dir_all(folder(data.path(), 2)).unwrap();
        let lost = voter(data.path());
        assert!(lost.open_newest().await.unwrap().is_none() && lost.is_lost());
        lost.follow(node, FS, &maps(1, true)).await;
        assert!(lost.voter().is_none() && lost.is_lost());
        // The leader has taken it out, and gives another one.
        lost.follow(node, FS, &maps(2, false)).await;
        assert!(!lost.is_lost());
        lost.follow(node, FS, &maps(3, true)).await;
        assert!(lost.voter().is_some() && folder(data.path(), 4).exists() && newest(data.path()).unwrap() == Some(4));
        // In place of another one, too.
        lost.follow(node, FS, &maps(4, true)).await;
        assert!(lost.voter().is_some() && !folder(data.path(), 4).exists() && folder(data.path(), 5).exists());
        lost.close().await;
    }
}
