//! The UDP relay over loopback.

use linkem::{Counters, Direction, Rate, Relay, Settings, Shape};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// How long a test waits for an expected event.
const PATIENCE: Duration = Duration::from_secs(60);

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind(ANY).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn relay(settings: Settings) -> (UdpSocket, Relay) {
    let server = socket();
    let relay = Relay::start(ANY, server.local_addr().unwrap(), settings).unwrap();
    (server, relay)
}

fn client(relay: &Relay) -> UdpSocket {
    let client = socket();
    client.connect(relay.address()).unwrap();
    client
}

fn receive(socket: &UdpSocket) -> (String, SocketAddr) {
    let mut room = [0; 2000];
    let (len, from) = socket.recv_from(&mut room).unwrap();
    (String::from_utf8(room[..len].to_vec()).unwrap(), from)
}

fn wait_until(relay: &Relay, direction: Direction, is_there: impl Fn(Counters) -> bool) {
    let start = Instant::now();
    while !is_there(relay.counters(direction)) {
        assert!(start.elapsed() < PATIENCE, "{:?}", relay.counters(direction));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn each_client_gets_its_own_answers() {
    let (server, relay) = relay(Settings::default());
    let clients = [client(&relay), client(&relay), client(&relay)];
    for (n, client) in clients.iter().enumerate() {
        client.send(format!("question {n}").as_bytes()).unwrap();
    }
    for _ in &clients {
        let (question, from) = receive(&server);
        server.send_to(question.replace("question", "answer").as_bytes(), from).unwrap();
    }
    for (n, client) in clients.iter().enumerate() {
        assert_eq!(receive(client), (format!("answer {n}"), relay.address()));
    }
    let up = relay.counters(Direction::Up);
    assert_eq!((up.packets, up.bytes), (3, 3 * (10 + 28)));
    assert_eq!(relay.counters(Direction::Down).bytes, 3 * (8 + 28));
}

#[test]
fn nothing_arrives_sooner_than_rate_and_delay_allow() {
    let shape = Shape { rate: Some(Rate::kbits_per_s(80)), delay: Duration::from_millis(30), ..Shape::default() };
    let (server, relay) = relay(Settings { up: shape, ..Settings::default() });
    let client = client(&relay);
    let start = Instant::now();
    client.send(&[b'a'; 472]).unwrap();
    client.send(b"after").unwrap();
    receive(&server);
    assert!(start.elapsed() >= Duration::from_millis(50 + 30));
    assert_eq!(receive(&server).0, "after");
}

#[test]
fn while_off_packets_are_dropped() {
    let slow = Shape { delay: Duration::from_secs(3600), ..Shape::default() };
    let (server, relay) = relay(Settings { up: slow, ..Settings::default() });
    let client = client(&relay);
    client.send(b"on its way").unwrap();
    wait_until(&relay, Direction::Up, |counters| counters.held() == 1);
    relay.off();
    client.send(b"too late").unwrap();
    wait_until(&relay, Direction::Up, |counters| counters.dropped == 2);
    relay.set(Direction::Up, Shape::default());
    relay.on();
    client.send(b"again").unwrap();
    assert_eq!(receive(&server).0, "again");
}

#[test]
fn one_direction_can_be_off_alone() {
    let (server, relay) = relay(Settings::default());
    relay.turn(Direction::Down, false);
    assert!(relay.is_on(Direction::Up) && !relay.is_on(Direction::Down));
    let client = client(&relay);
    client.send(b"up").unwrap();
    let (_, from) = receive(&server);
    server.send_to(b"down", from).unwrap();
    wait_until(&relay, Direction::Down, |counters| counters.dropped == 1);
}

#[test]
fn a_new_delay_is_in_force_at_once() {
    let slow = Shape { delay: Duration::from_secs(3600), ..Shape::default() };
    let (server, relay) = relay(Settings { up: slow, ..Settings::default() });
    relay.set(Direction::Up, Shape::default());
    assert_eq!(relay.shape(Direction::Up), Shape::default());
    client(&relay).send(b"quick").unwrap();
    assert_eq!(receive(&server).0, "quick");
}

#[test]
fn a_new_rate_is_in_force_for_what_is_queued() {
    let slow = Shape { rate: Some(Rate::bits_per_s(1)), ..Shape::default() };
    let (server, relay) = relay(Settings { up: slow, ..Settings::default() });
    client(&relay).send(b"waits").unwrap();
    wait_until(&relay, Direction::Up, |counters| counters.held() == 1);
    relay.set(Direction::Up, Shape::default());
    assert_eq!(receive(&server).0, "waits");
}

#[test]
fn lost_packets_are_counted() {
    let shape = Shape { loss: 0.5, ..Shape::default() };
    let (server, relay) = relay(Settings { seed: 3, ..Settings::both(shape) });
    let client = client(&relay);
    for n in 0..100 {
        client.send(format!("{n}").as_bytes()).unwrap();
        wait_until(&relay, Direction::Up, |counters| counters.packets + counters.lost == n + 1);
    }
    let counters = relay.counters(Direction::Up);
    assert!((20..80).contains(&counters.lost), "{counters:?}");
    for _ in 0..counters.packets {
        receive(&server);
    }
}

#[test]
fn forgotten_clients_come_from_another_port() {
    let (server, relay) = relay(Settings::default());
    let client = client(&relay);
    client.send(b"one").unwrap();
    let (_, first) = receive(&server);
    relay.forget_clients();
    server.send_to(b"stale", first).unwrap();
    client.send(b"two").unwrap();
    let (_, second) = receive(&server);
    assert_ne!(first, second);
    server.send_to(b"answer", second).unwrap();
    assert_eq!(receive(&client).0, "answer");
}

#[test]
fn a_server_that_is_away_for_a_while_is_no_obstacle() {
    let (server, relay) = relay(Settings::default());
    let client = client(&relay);
    client.send(b"first").unwrap();
    let (_, from) = receive(&server);
    // The server connects to another socket. Its system then refuses the relay's packets as if the
    // server were gone, and no other program gets its port.
    server.connect(socket().local_addr().unwrap()).unwrap();
    for n in 2..5 {
        client.send(b"refused").unwrap();
        wait_until(&relay, Direction::Up, |counters| counters.packets == n);
    }
    server.connect(from).unwrap();
    client.send(b"back").unwrap();
    assert_eq!(receive(&server).0, "back");
    assert_eq!(relay.failure(), None);
}

#[test]
fn more_clients_than_there_is_room_for_take_the_places_of_quiet_ones() {
    let (server, relay) = relay(Settings::default());
    let clients: Vec<_> = (0..=linkem::relay::CLIENT_COUNT_MAX).map(|_| client(&relay)).collect();
    for client in clients.iter().chain([&clients[0]]) {
        client.send(b"here").unwrap();
        receive(&server);
    }
    assert_eq!(relay.failure(), None);
}

#[test]
fn its_address_is_free_again_when_it_is_dropped() {
    let (_server, relay) = relay(Settings::default());
    let (address, control) = (relay.address(), relay.control().clone());
    drop(relay);
    UdpSocket::bind(address).unwrap();
    control.off();
}
