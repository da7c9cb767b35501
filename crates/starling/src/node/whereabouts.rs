//! Where the first node is.
//!
//! Its address may change, its certificate does not. So a node that has joined remembers several
//! addresses, and tries them in order; at a wrong one, another machine cannot show the certificate.
//! Three ways lead to a new address:
//!
//! - The first node tells the nodes that it misses, at their addresses, where it is.
//! - A node that cannot reach the first node asks the other nodes.
//! - The user says it: `starling up --first-node`.

use crate::location::{is_loopback, split_port};
use crate::node::identity::{address_of, put};
use crate::node::joined::{ABOUT, AboutNode, NodeFolder};
use crate::usage;
use bytes::Bytes;
use cluster::KnownNode;
use cluster::config::MEMBER_ADDRESS_LEN_MAX;
use cluster::control::{ControlAnswer, ControlError, ControlRequest};
use cluster::survivors::Called;
use host::Host;
use link::{Address, Addresses, ClientKeys, LinkError, Message, NodeService, Peer, ask_once, kinds};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use types::codec::DecodeError;
use types::{BoxFuture, NodeId};

/// Addresses that a node remembers, at most.
const ADDRESSES_MAX: usize = 8;
/// Time between two looks at which nodes are missing.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// Longest time between two attempts to reach a node that is missing. They become rarer.
const TELL_PERIOD_MAX: Duration = Duration::from_secs(10);
/// How long an attempt may take.
const TELL_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a node may take to answer at all.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// Where the first node is, as a node that has joined knows it.
pub struct Whereabouts {
    folder: PathBuf,
    keys: ClientKeys,
    about: Mutex<AboutNode>,
    /// Held while a change is recorded, which the disk may hold up.
    recording: Mutex<()>,
    addresses: Addresses,
}

impl Whereabouts {
    /// What the node's data folder says, and before that what the user says. `keys` are those with
    /// which the node connects to the first one.
    ///
    /// # Errors
    /// No address is known that can be read, or what the user says cannot be recorded.
    pub fn new(
        folder: &NodeFolder,
        about: &AboutNode,
        keys: ClientKeys,
        said: &[String],
    ) -> anyhow::Result<Arc<Whereabouts>> {
        let addresses = Addresses::new(reached(&about.first_node, &keys));
        let (folder, about) = (folder.path().to_path_buf(), Mutex::new(about.clone()));
        let whereabouts = Whereabouts { folder, keys, about, recording: Mutex::default(), addresses };
        whereabouts.learn(said)?;
        if reached(&whereabouts.known(), &whereabouts.keys).is_empty() {
            return Err(usage("node.json names no address of the first node: add --first-node ADDRESS:PORT"));
        }
        Ok(Arc::new(whereabouts))
    }

    /// The addresses, as host:port, best first.
    pub fn known(&self) -> Vec<String> {
        self.about().first_node.clone()
    }

    /// The addresses for a link, which follows changes.
    pub fn addresses(&self) -> Addresses {
        self.addresses.clone()
    }

    fn about(&self) -> MutexGuard<'_, AboutNode> {
        self.about.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries these addresses first from now on. Records them in the data folder.
    ///
    /// # Errors
    /// They were not recorded.
    fn learn(&self, told: &[String]) -> anyhow::Result<()> {
        let _one_at_a_time = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.about().clone();
        let mut next = known.clone();
        next.first_node = merged(&known.first_node, told);
        if next == known {
            return Ok(());
        }
        tracing::info!(addresses = ?next.first_node, "the first node may be elsewhere");
        self.addresses.replace(reached(&next.first_node, &self.keys));
        put(&self.folder, ABOUT, &serde_json::to_string_pretty(&next)?)?;
        *self.about() = next;
        Ok(())
    }

    /// [Learns](Self::learn) these addresses, without holding up other tasks.
    ///
    /// # Errors
    /// They were not recorded.
    pub async fn take(self: Arc<Self>, told: Vec<String>) -> anyhow::Result<()> {
        tokio::task::spawn_blocking(move || self.learn(&told)).await.map_err(anyhow::Error::new)?
    }
}

fn reached(addresses: &[String], keys: &ClientKeys) -> Vec<Address> {
    addresses.iter().filter_map(|text| address(text, keys)).collect()
}

/// An address of the first node; `None` if it is not HOST:PORT.
pub fn address(text: &str, keys: &ClientKeys) -> Option<Address> {
    let (host, port) = split_port(text)?;
    Some(Address { host: host.to_string(), port, keys: Some(keys.clone()) })
}

/// What is known, after other addresses were told.
fn merged(known: &[String], told: &[String]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let is_good = |text: &&String| split_port(text).is_some() && text.len() <= MEMBER_ADDRESS_LEN_MAX;
    for text in told.iter().filter(is_good).chain(known) {
        if !all.contains(text) {
            all.push(text.clone());
        }
    }
    all.truncate(ADDRESSES_MAX);
    all
}

/// What is news in the answers of other nodes: where each of them looks first, unless that is
/// known. They may know less, so they do not change the order of what is known, unless the first
/// address is in doubt: nodes lead at the same addresses again and again.
fn news(known: &[String], answers: Vec<Vec<String>>, is_in_doubt: bool) -> Vec<String> {
    let first = answers.into_iter().filter_map(|answer| answer.into_iter().next());
    let is_tried = |address: &String| match is_in_doubt {
        true => known.first() == Some(address),
        false => known.contains(address),
    };
    first.filter(|address| !is_tried(address)).collect()
}

/// The addresses that a peer says are its own, in the order in which to try them: first the one
/// that it asks from. The loopback interface of another machine leads nowhere.
fn as_seen_from_here(mut told: Vec<String>, peer: IpAddr) -> Vec<String> {
    let host = |text: &String| split_port(text).map(|(host, _)| host.to_owned());
    told.retain(|text| peer.is_loopback() || !host(text).is_some_and(|host| is_loopback(&host)));
    told.sort_by_key(|text| host(text).and_then(|host| host.parse().ok()) != Some(peer));
    told
}

/// The answer of a member to a request for the first node.
const NOT_FIRST: &str = "this is not the first node";

/// True if a first node answers at an address. A refusal is an answer, too, but not that of a
/// member.
pub async fn is_led_from(host: &Host, address: &Address, time_max: Duration) -> bool {
    let request = Message::of_head(ControlRequest::Nodes.encode().to_vec());
    match ask_once(host, address, kinds::CONTROL, request, time_max).await {
        Ok(answer) => match ControlAnswer::decode(&answer.head) {
            Err(ControlError::Unavailable(why)) => why != NOT_FIRST,
            _ => true,
        },
        Err(e) => LinkError::is_refusal(&e),
    }
}

/// Takes what the first node says, and answers others that ask where it is.
pub struct WhereaboutsService(pub Arc<Whereabouts>);

impl NodeService for WhereaboutsService {
    fn serve(&self, peer: &Peer, head: Vec<u8>, _: Bytes) -> Result<BoxFuture<Message>, DecodeError> {
        let (request, peer, known) = (ControlRequest::decode(&head)?, *peer, self.0.clone());
        Ok(Box::pin(async move {
            let answer = match request {
                ControlRequest::FirstNode(told) if told.is_empty() => Ok(ControlAnswer::FirstNode(known.known())),
                ControlRequest::FirstNode(told) => {
                    let told = as_seen_from_here(told, peer.address.ip());
                    // Until it is recorded, another start of this node would not know it.
                    match known.clone().take(told).await {
                        Ok(()) => Ok(ControlAnswer::FirstNode(known.known())),
                        Err(e) => Err(ControlError::Unavailable(format!("{e:#}"))),
                    }
                }
                _ => Err(ControlError::Unavailable(NOT_FIRST.into())),
            };
            Message::of_head(ControlAnswer::encode(&answer).to_vec())
        }))
    }
}

/// Tells a node where the first node is, if that is known, and returns what that node knows.
async fn ask(
    host: &Host,
    at: &KnownNode,
    keys: &ClientKeys,
    told: &[String],
    time_max: Duration,
) -> Option<Vec<String>> {
    let address = address_of(at, keys).ok()?;
    let request = Message::of_head(ControlRequest::FirstNode(told.to_vec()).encode().to_vec());
    let answer = ask_once(host, &address, kinds::CONTROL, request, time_max).await;
    match answer.map(|answer| ControlAnswer::decode(&answer.head)) {
        Ok(Ok(ControlAnswer::FirstNode(known))) => Some(known),
        answer => {
            tracing::debug!(node = %at.node, ?answer, "where the first node is");
            None
        }
    }
}

/// Asks a node where the first node is. Returns what is news. With `is_in_doubt`, the first of the
/// known addresses leads to a node that gives no lease.
pub async fn ask_for_news(
    host: &Host,
    at: &KnownNode,
    keys: &ClientKeys,
    known: &[String],
    is_in_doubt: bool,
) -> Vec<String> {
    news(known, ask(host, at, keys, &[], TELL_TIME_MAX).await.into_iter().collect(), is_in_doubt)
}

/// Hears of a call.
pub type Note = Arc<dyn Fn(Called) + Send + Sync>;

/// When a node is told again.
struct Attempts {
    at: KnownNode,
    next: Duration,
    period: Duration,
}

/// Tells the nodes that the first node misses where it is, again and again, ever less often. `note`
/// hears whether each answers when it is called. Never ends.
pub async fn tell(
    host: Host,
    keys: ClientKeys,
    own: Vec<String>,
    absent: impl Fn() -> Vec<KnownNode>,
    note: Option<Note>,
) -> Infallible {
    let mut attempts: BTreeMap<NodeId, Attempts> = BTreeMap::new();
    loop {
        let (now, absent) = (host.clock.now(), absent());
        attempts.retain(|_, attempts| absent.contains(&attempts.at));
        for at in absent {
            let fresh = || Attempts { at: at.clone(), next: now, period: LOOK_PERIOD };
            let Attempts { next, period, .. } = attempts.entry(at.node).or_insert_with(fresh);
            if *next <= now {
                *next = now + *period;
                *period = (2 * *period).min(TELL_PERIOD_MAX);
                // One that is gone takes its time, and holds up no other one. A node answers when
                // it has recorded what it is told, which its disk may hold up. So whether it is
                // there is another question.
                if let Some(note) = note.clone() {
                    let (asking, to, its_keys) = (host.clone(), at.clone(), keys.clone());
                    host.tasks.spawn(Box::pin(async move {
                        let answer = ask(&asking, &to, &its_keys, &[], ANSWER_TIME_MAX).await;
                        note(Called { node: to.node, at: now, answers: answer.is_some() });
                    }));
                }
                let (telling, keys, own) = (host.clone(), keys.clone(), own.clone());
                host.tasks.spawn(Box::pin(async move {
                    ask(&telling, &at, &keys, &own, TELL_TIME_MAX).await;
                }));
            }
        }
        host.clock.sleep(LOOK_PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(all: &[&str]) -> Vec<String> {
        all.iter().map(|text| text.to_string()).collect()
    }

    #[test]
    fn new_addresses_come_first_and_the_oldest_are_forgotten() {
        let known = texts(&["a:1", "b:1"]);
        assert_eq!(merged(&known, &texts(&["b:1", "c:1"])), texts(&["b:1", "c:1", "a:1"]));
        assert_eq!(merged(&known, &texts(&["a:1"])), known);
        let long = format!("{}:1", "x".repeat(MEMBER_ADDRESS_LEN_MAX));
        assert_eq!(merged(&known, &[long, "nowhere".into(), ":1".into()]), known);
        let many: Vec<String> = (0..20).map(|n| format!("n{n}:1")).collect();
        assert_eq!(merged(&known, &many), many[..ADDRESSES_MAX]);
    }

    #[test]
    fn what_other_nodes_say_does_not_change_the_order_of_what_is_known() {
        let known = texts(&["new:1", "old:1"]);
        assert!(news(&known, vec![texts(&["old:1"]), texts(&["new:1", "older:1"]), vec![]], false).is_empty());
        assert_eq!(news(&known, vec![texts(&["newest:1", "new:1"]), texts(&["old:1"])], false), texts(&["newest:1"]));
    }

    /// A node leads at the same address each time. A client whose leader's packets were lost was
    /// told of that address and knew it already. So it waited until its connection broke, and lost
    /// its session.
    #[test]
    fn regression_a_known_address_is_news_while_the_first_one_gives_no_lease() {
        let known = texts(&["gone:1", "leads-again:1"]);
        let told = || vec![texts(&["leads-again:1", "gone:1"]), texts(&["gone:1"])];
        assert!(news(&known, told(), false).is_empty());
        assert_eq!(news(&known, told(), true), texts(&["leads-again:1"]));
        assert_eq!(merged(&known, &news(&known, told(), true)), texts(&["leads-again:1", "gone:1"]));
    }

    #[test]
    fn the_address_that_a_node_asks_from_is_tried_first() {
        let told = || texts(&["10.0.0.7:1", "[fe80::1]:1", "10.0.0.2:1", "127.0.0.1:1", "[::1]:1", "host.lan:1"]);
        let seen = as_seen_from_here(told(), [10, 0, 0, 2].into());
        assert_eq!(seen, texts(&["10.0.0.2:1", "10.0.0.7:1", "[fe80::1]:1", "host.lan:1"]));
        assert_eq!(as_seen_from_here(told(), [127, 0, 0, 1].into())[0], "127.0.0.1:1");
    }
}
