//! Nodes that ask each other over the loopback interface.

use bytes::Bytes;
use host::{Host, first, join_all};
use link::wire::Refused;
use link::{
    Address, Addresses, ClientKeys, Fingerprint, LinkError, Message, NodeKeys, NodeLink, NodeService, Peer, ServerKeys,
    Services, TLS_NAME, ask_once, fingerprint, kinds, serve, serve_until,
};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use types::BoxFuture;
use types::codec::DecodeError;

const TIME_MAX: Duration = Duration::from_secs(60);

/// An authority that signs certificates of nodes.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn fingerprint(&self) -> Fingerprint {
        fingerprint(self.0.der())
    }

    /// A node's keys, and the fingerprint of its certificate.
    fn node(&self) -> (NodeKeys, Fingerprint) {
        let mut params = CertificateParams::new([TLS_NAME.to_string()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let keys = NodeKeys::new(self.0.pem().as_bytes(), certificate.pem().as_bytes(), key.serialize_pem().as_bytes());
        (keys.unwrap(), fingerprint(certificate.der()))
    }
}

/// Answers with what it was asked, and remembers who asked for what. A request whose head is `wait`
/// is answered when told. One whose head is `rubbish` cannot be decoded.
#[derive(Default)]
struct Echo {
    is_for_strangers: bool,
    asked: Mutex<Vec<(Option<Fingerprint>, Vec<u8>)>>,
    go_on: Arc<Notify>,
}

impl NodeService for Echo {
    fn serve(&self, peer: &Peer, head: Vec<u8>, tail: Bytes) -> Result<BoxFuture<Message>, DecodeError> {
        if head == b"rubbish" {
            return Err(DecodeError::Invalid("rubbish"));
        }
        self.asked.lock().push((peer.fingerprint, head.clone()));
        let go_on = self.go_on.clone();
        Ok(Box::pin(async move {
            if head == b"wait" {
                go_on.notified().await;
            }
            Message { head, tail }
        }))
    }

    fn is_for_strangers(&self) -> bool {
        self.is_for_strangers
    }
}

fn text(head: &str) -> Message {
    Message::of_head(head.as_bytes().to_vec())
}

fn with_host<F: Future<Output = ()>>(test: impl FnOnce(Host) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let host = host::real::host(runtime.handle().clone()).unwrap();
    runtime.block_on(test(host));
}

/// Serves, and returns the port.
async fn listening(host: &Host, services: Services, keys: Option<ServerKeys>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    host.tasks.spawn(Box::pin(serve(host.clone(), listener, services, keys)));
    port
}

fn at(port: u16, keys: Option<ClientKeys>) -> Address {
    Address { host: "127.0.0.1".into(), port, keys }
}

async fn linked(host: &Host, port: u16, keys: Option<ClientKeys>) -> Arc<NodeLink> {
    let (link, tried) = NodeLink::keep(host, at(port, keys), "node-0".into(), None);
    tried.await;
    link
}

#[test]
fn short_and_long_messages_come_through_tls_and_the_service_knows_who_asks() {
    with_host(|host| async move {
        let authority = Authority::new();
        let ((server, _), (client, print)) = (authority.node(), authority.node());
        let echo = Arc::new(Echo::default());
        let services = Services::new().with(kinds::MANAGER, echo.clone()).with(kinds::STORAGE, echo.clone());
        let port = listening(&host, services, Some(server.server)).await;
        let link = linked(&host, port, Some(client.client)).await;
        for (kind, head_len, tail_len) in
            [(kinds::STORAGE, 3, 1 << 20), (kinds::MANAGER, 3_000_000, 5), (kinds::MANAGER, 4096, 0)]
        {
            let message = Message { head: vec![7; head_len], tail: vec![9; tail_len].into() };
            assert!(link.ask(kind, message.clone(), tail_len).await == Ok(message), "{head_len} {tail_len}");
        }
        assert!(echo.asked.lock().iter().all(|(who, _)| *who == Some(print)));
        assert_eq!(link.ask(77, text("x"), 0).await, Err(LinkError::Refused(Refused::NoService)));
        let long = Message { head: Vec::new(), tail: vec![0; (1 << 20) + 1].into() };
        assert_eq!(link.ask(kinds::MANAGER, long, 0).await, Err(LinkError::TooLong));
    });
}

#[test]
fn a_link_tries_all_addresses_of_a_node_and_follows_changes() {
    with_host(|host| async move {
        let services = || Services::new().with(kinds::MANAGER, Arc::new(Echo::default()));
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let nothing_there = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let silent_port = silent.local_addr().unwrap().port();
        let addresses =
            Addresses::new(vec![at(nothing_there, None), at(listening(&host, services(), None).await, None)]);
        let (link, tried) = NodeLink::keep(&host, addresses, "node-0".into(), None);
        tried.await;
        assert!(link.is_up(), "the second address was tried before the first wait ended");

        // A connection stays until there is one to the first of new addresses. One that is being
        // made is given up.
        let addresses = Addresses::new(vec![at(silent_port, None)]);
        let (link, tried) = NodeLink::keep(&host, addresses.clone(), "node-0".into(), None);
        silent.accept().await.unwrap();
        addresses.replace(vec![at(listening(&host, services(), None).await, None)]);
        tried.await;
        let connection = link.ordered().next_connection(0).await;
        addresses.replace(vec![at(silent_port, None)]);
        tokio::task::yield_now().await;
        assert_eq!(link.ordered().connection(), Some(connection));
        assert_eq!(link.ask(kinds::MANAGER, text("x"), 0).await, Ok(text("x")));
        let elsewhere = Arc::new(Echo::default());
        let services = Services::new().with(kinds::MANAGER, elsewhere.clone());
        addresses.replace(vec![at(listening(&host, services, None).await, None)]);
        link.ordered().next_connection(connection).await;
        assert_eq!(link.ask(kinds::MANAGER, text("y"), 0).await, Ok(text("y")));
    });
}

#[test]
fn a_listener_that_ends_closes_connections_and_another_takes_its_place() {
    with_host(|host| async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let echo = Arc::new(Echo::default());
        let services = Services::new().with(kinds::MANAGER, echo.clone());
        let (end, serving) = (Arc::new(Notify::new()), (host.clone(), services.clone(), host.clone()));
        let ended = end.clone();
        host.tasks.spawn(Box::pin(async move {
            let (host, services, later) = serving;
            serve_until(host, &listener, services.clone(), None, ended.notified()).await;
            serve(later, listener, services, None).await;
        }));
        let link = linked(&host, port, None).await;
        // It never gets an answer from the first listener, and does not keep the connection open.
        let waits = link.ask(kinds::MANAGER, text("wait"), 0);
        while echo.asked.lock().is_empty() {
            host.clock.sleep(Duration::from_millis(1)).await;
        }
        end.notify_one();
        assert_eq!(host::timeout(&*host.clock, TIME_MAX, waits).await.unwrap(), Err(LinkError::Lost));
        while !link.is_up() {
            host.clock.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(link.ask(kinds::MANAGER, text("again"), 0).await, Ok(text("again")));
    });
}

#[test]
fn a_machine_without_a_certificate_reaches_only_services_for_strangers() {
    with_host(|host| async move {
        let (authority, other) = (Authority::new(), Authority::new());
        let join = Arc::new(Echo { is_for_strangers: true, ..Echo::default() });
        let inner = Arc::new(Echo::default());
        let services = Services::new().with(kinds::JOIN, join.clone()).with(kinds::CONTROL, inner.clone());
        let port = listening(&host, services, Some(authority.node().0.server)).await;
        let ask = |kind, keys| {
            let (host, address) = (host.clone(), at(port, keys));
            async move { ask_once(&host, &address, kind, text("hello"), TIME_MAX).await }
        };
        let stranger = || Some(ClientKeys::joining(authority.fingerprint()).unwrap());
        assert_eq!(ask(kinds::JOIN, stranger()).await.unwrap(), text("hello"));
        assert_eq!(join.asked.lock()[..], [(None, b"hello".to_vec())]);
        let refused = ask(kinds::CONTROL, stranger()).await.unwrap_err().to_string();
        assert!(refused.contains("does not serve this machine"), "{refused}");
        // A stranger does not even learn which services there are.
        assert_eq!(ask(77, stranger()).await.unwrap_err().to_string(), refused);

        let wrong = Some(ClientKeys::joining(other.fingerprint()).unwrap());
        assert!(Address::is_about_keys(&ask(kinds::JOIN, wrong).await.unwrap_err()));
        for keys in [Some(other.node().0.client), None] {
            ask(kinds::JOIN, keys).await.unwrap_err();
        }
        assert!(inner.asked.lock().is_empty() && join.asked.lock().len() == 1);
        assert_eq!(ask(kinds::CONTROL, Some(authority.node().0.client)).await.unwrap(), text("hello"));
    });
}

#[test]
fn who_only_pretends_to_have_the_authority_is_refused_by_a_machine_that_joins() {
    with_host(|host| async move {
        let (authority, impostor) = (Authority::new(), Authority::new());
        // It shows the right authority's certificate beside its own, which another one has signed.
        let mut params = CertificateParams::new([TLS_NAME.to_string()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &impostor.0).unwrap();
        let keys =
            ServerKeys::new(authority.0.pem().as_bytes(), certificate.pem().as_bytes(), key.serialize_pem().as_bytes());
        let join = Arc::new(Echo { is_for_strangers: true, ..Echo::default() });
        let port = listening(&host, Services::new().with(kinds::JOIN, join.clone()), Some(keys.unwrap())).await;
        let joining = ClientKeys::joining(authority.fingerprint()).unwrap();
        let error = ask_once(&host, &at(port, Some(joining)), kinds::JOIN, text("hello"), TIME_MAX).await;
        assert!(Address::is_about_keys(&error.unwrap_err()));
        assert!(join.asked.lock().is_empty());
    });
}

#[test]
fn who_knows_a_server_by_its_certificate_accepts_no_other() {
    with_host(|host| async move {
        let (authority, other) = (Authority::new(), Authority::new());
        let echo = Arc::new(Echo::default());
        let (server, known) = authority.node();
        let services = Services::new().with(kinds::CONTROL, echo.clone());
        let port = listening(&host, services, Some(server.server)).await;
        let (client, _) = authority.node();
        let ask = |keys: ClientKeys| {
            let (host, address) = (host.clone(), at(port, Some(keys)));
            async move { ask_once(&host, &address, kinds::CONTROL, text("hello"), TIME_MAX).await }
        };
        assert_eq!(ask(client.client.to(TLS_NAME, known)).await.unwrap(), text("hello"));
        let (_, of_another) = authority.node();
        for wrong in [
            client.client.to(TLS_NAME, of_another),
            client.client.to("member.starling", known),
            other.node().0.client.to(TLS_NAME, known),
        ] {
            ask(wrong).await.unwrap_err();
        }
        assert_eq!(echo.asked.lock().len(), 1);
    });
}

#[test]
fn without_services_for_strangers_there_is_no_connection_without_a_certificate() {
    with_host(|host| async move {
        let authority = Authority::new();
        let echo = Arc::new(Echo::default());
        let services = Services::new().with(kinds::CONTROL, echo.clone());
        let port = listening(&host, services, Some(authority.node().0.server)).await;
        let stranger = ClientKeys::joining(authority.fingerprint()).unwrap();
        ask_once(&host, &at(port, Some(stranger)), kinds::CONTROL, text("hello"), TIME_MAX).await.unwrap_err();
        assert!(echo.asked.lock().is_empty());
    });
}

#[test]
fn who_is_no_member_any_more_is_refused_at_its_next_request() {
    with_host(|host| async move {
        let authority = Authority::new();
        let (member, print) = authority.node();
        let is_member = Arc::new(AtomicBool::new(true));
        let asked = is_member.clone();
        let services = Services::new()
            .with(kinds::CONTROL, Arc::new(Echo::default()))
            .admitting(move |peer| peer.fingerprint == Some(print) && asked.load(SeqCst));
        let port = listening(&host, services, Some(authority.node().0.server)).await;
        let (link, other) = (linked(&host, port, Some(member.client)).await, authority.node().0.client);
        assert_eq!(link.control(b"renew".to_vec()).await, Ok(b"renew".to_vec()));
        let other = linked(&host, port, Some(other)).await;
        let refused = Err(LinkError::Refused(Refused::NotAdmitted));
        assert_eq!(other.control(b"renew".to_vec()).await, refused);
        is_member.store(false, SeqCst);
        assert_eq!(link.control(b"renew".to_vec()).await, refused);
    });
}

#[test]
fn requests_that_wait_leave_room_for_others() {
    with_host(|host| async move {
        let echo = Arc::new(Echo::default());
        let services = Services::new().with(kinds::MANAGER, echo.clone()).with(kinds::STORAGE, echo.clone());
        let port = listening(&host, services, None).await;
        let link = linked(&host, port, None).await;
        let waiting: Vec<_> = (0..1000).map(|_| link.ask(kinds::MANAGER, text("wait"), 0)).collect();
        for kind in [kinds::STORAGE, kinds::MANAGER] {
            assert_eq!(link.ask(kind, text("now"), 0).await, Ok(text("now")));
        }
        assert_eq!(echo.asked.lock().len(), 1002);
        echo.go_on.notify_waiters();
        assert!(join_all(waiting).await.iter().all(|answer| *answer == Ok(text("wait"))));
    });
}

#[test]
fn requests_of_one_lane_arrive_in_order() {
    with_host(|host| async move {
        let echo = Arc::new(Echo::default());
        let port = listening(&host, Services::new().with(kinds::MANAGER, echo.clone()), None).await;
        let lane = linked(&host, port, None).await;
        let lane = lane.ordered();
        let connection = lane.connection().unwrap();
        let heads: Vec<Vec<u8>> = (0..2000u32).map(|n| n.to_le_bytes().repeat(1 + n as usize % 3000)).collect();
        let send = |head: &Vec<u8>| lane.ask_in(connection, kinds::MANAGER, Message::of_head(head.clone()));
        let asked: Vec<_> = heads.iter().map(send).collect();
        // They were sent by the calls, and are not polled in order.
        for (answer, head) in asked.into_iter().zip(&heads).rev() {
            assert_eq!(answer.await, Ok(Message::of_head(head.clone())));
        }
        assert!(echo.asked.lock().iter().map(|(_, head)| head).eq(&heads));
    });
}

#[test]
fn a_connection_that_breaks_loses_its_requests_and_the_next_one_has_a_greater_number() {
    with_host(|host| async move {
        let echo = Arc::new(Echo::default());
        let port = listening(&host, Services::new().with(kinds::MANAGER, echo.clone()), None).await;
        // A relay between both ends lets connections through while it is open.
        let (open, opened) = watch::channel(true);
        let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay_port = between.local_addr().unwrap().port();
        let relay_host = host.clone();
        host.tasks.spawn(Box::pin(async move {
            loop {
                let (mut near, _) = between.accept().await.unwrap();
                let mut opened = opened.clone();
                relay_host.tasks.spawn(Box::pin(async move {
                    if !*opened.borrow() {
                        return;
                    }
                    let mut far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    let carried = tokio::io::copy_bidirectional(&mut near, &mut far);
                    first(carried, opened.wait_for(|opened| !opened)).await;
                }));
            }
        }));
        let link = linked(&host, relay_port, None).await;
        let lane = link.ordered();
        let before = lane.connection().unwrap();
        let under_way = lane.ask_in(before, kinds::MANAGER, text("wait"));
        assert_eq!(lane.ask_in(before, kinds::MANAGER, text("now")).await, Ok(text("now")));
        open.send(false).unwrap();
        assert_eq!(under_way.await, Err(LinkError::Lost));
        while link.is_up() {
            host::yield_now().await;
        }
        assert_eq!((lane.connection(), link.control(Vec::new()).await), (None, Err(LinkError::Down)));
        open.send(true).unwrap();
        let after = lane.next_connection(before).await;
        assert!(after > before);
        assert_eq!(lane.ask_in(before, kinds::MANAGER, text("late")).await, Err(LinkError::Down));
        assert_eq!(lane.ask_in(after, kinds::MANAGER, text("now")).await, Ok(text("now")));
        assert!(echo.asked.lock().iter().all(|(_, head)| head != b"late"));
    });
}

#[test]
fn a_request_that_cannot_be_decoded_ends_its_connection() {
    with_host(|host| async move {
        let port = listening(&host, Services::new().with(kinds::MANAGER, Arc::new(Echo::default())), None).await;
        let link = linked(&host, port, None).await;
        let lane = link.ordered();
        let before = lane.connection().unwrap();
        assert_eq!(lane.ask_in(before, kinds::MANAGER, text("rubbish")).await, Err(LinkError::Lost));
        assert!(lane.next_connection(before).await > before);
    });
}
