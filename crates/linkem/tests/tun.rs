//! Links between network namespaces. Where namespaces cannot be made, the tests say so instead of
//! passing.

use linkem::{Counters, Device, Direction, End, Namespace, Rate, Settings, Shape, Tun};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::panic::catch_unwind;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const FIRST: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const SECOND: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);

/// How long a test waits for an expected event.
const PATIENCE: Duration = Duration::from_secs(60);

const CHECKS: [(&str, fn()); 9] = [
    ("packets_cross_both_ways_and_are_counted", packets_cross_both_ways_and_are_counted),
    ("tcp_gets_everything_across_a_lossy_link", tcp_gets_everything_across_a_lossy_link),
    ("nothing_arrives_sooner_than_the_delay", nothing_arrives_sooner_than_the_delay),
    ("while_off_packets_are_dropped", while_off_packets_are_dropped),
    ("commands_run_in_the_namespace", commands_run_in_the_namespace),
    ("devices_go_with_the_link", devices_go_with_the_link),
    ("several_links_of_one_namespace_have_names", several_links_of_one_namespace_have_names),
    ("ip_deletes_a_device_and_the_link_ends", ip_deletes_a_device_and_the_link_ends),
    ("the_command_joins_namespaces", the_command_joins_namespaces),
];

fn main() -> ExitCode {
    let only: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let missing = linkem::tun::missing();
    let has_ip = Command::new("ip").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    let (mut failed, mut not_run) = (0, 0);
    for (name, check) in CHECKS {
        if !only.is_empty() && !only.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        let missing = missing.clone().or_else(|| (name.starts_with("ip_") && !has_ip).then(|| "needs ip".into()));
        if let Some(missing) = missing {
            not_run += 1;
            println!("test {name} ... NOT RUN, {missing}");
            continue;
        }
        let result = catch_unwind(check);
        failed += usize::from(result.is_err());
        println!("test {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
    }
    println!("{failed} failed, {not_run} not run");
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Two namespaces and the link between them.
struct Site {
    first: Namespace,
    second: Namespace,
    link: Tun,
}

fn site(settings: Settings) -> Site {
    let (first, second) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    let link = Tun::join(end(&first, FIRST), end(&second, SECOND), &Device::default(), settings).unwrap();
    Site { first, second, link }
}

fn end(namespace: &Namespace, address: Ipv4Addr) -> End<'_> {
    End { namespace, address }
}

fn udp(namespace: &Namespace, address: Ipv4Addr) -> UdpSocket {
    let socket = namespace.within(|| UdpSocket::bind((address, 7000))).unwrap().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn wait_until(link: &Tun, direction: Direction, is_there: impl Fn(Counters) -> bool) {
    let start = Instant::now();
    while !is_there(link.counters(direction)) {
        assert!(start.elapsed() < PATIENCE, "{:?}", link.counters(direction));
        thread::sleep(Duration::from_millis(1));
    }
}

fn devices(namespace: &Namespace) -> String {
    let mut cat = Command::new("cat");
    namespace.enter(cat.arg("/proc/self/net/dev"));
    let output = cat.output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn packets_cross_both_ways_and_are_counted() {
    let Site { first, second, link } = site(Settings::default());
    let (first, second) = (udp(&first, FIRST), udp(&second, SECOND));
    let mut room = [0; 100];
    first.send_to(b"question", (SECOND, 7000)).unwrap();
    let (len, from) = second.recv_from(&mut room).unwrap();
    assert_eq!((&room[..len], from), (&b"question"[..], SocketAddrV4::new(FIRST, 7000).into()));
    second.send_to(b"answer", from).unwrap();
    assert_eq!(first.recv_from(&mut room).unwrap().0, 6);
    let (up, down) = (link.counters(Direction::Up), link.counters(Direction::Down));
    assert_eq!((up.packets, up.bytes, down.packets, down.bytes), (1, 36, 1, 34));
}

fn tcp_gets_everything_across_a_lossy_link() {
    let shape = Shape { rate: Some(Rate::mbits_per_s(20)), loss: 0.02, ..Shape::default() };
    let Site { first, second, link } = site(Settings::both(shape));
    let sent: Vec<u8> = (0..500_000u32).map(|n| (n % 251) as u8).collect();
    let listener = second.within(|| TcpListener::bind((SECOND, 7000))).unwrap().unwrap();
    let received = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut received = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
            received
        });
        let mut stream = first.within(|| TcpStream::connect((SECOND, 7000))).unwrap().unwrap();
        stream.write_all(&sent).unwrap();
        drop(stream);
        receiver.join().unwrap()
    });
    assert!(received == sent);
    assert!(link.counters(Direction::Up).lost > 0);
}

fn nothing_arrives_sooner_than_the_delay() {
    let shape = Shape { delay: Duration::from_millis(50), ..Shape::default() };
    let Site { first, second, link: _link } = site(Settings::both(shape));
    let (first, second) = (udp(&first, FIRST), udp(&second, SECOND));
    let start = Instant::now();
    first.send_to(b"late", (SECOND, 7000)).unwrap();
    second.recv_from(&mut [0; 10]).unwrap();
    assert!(start.elapsed() >= shape.delay);
}

fn while_off_packets_are_dropped() {
    let Site { first, second, link } = site(Settings::default());
    let (first, second) = (udp(&first, FIRST), udp(&second, SECOND));
    link.off();
    first.send_to(b"into the void", (SECOND, 7000)).unwrap();
    wait_until(&link, Direction::Up, |counters| counters.dropped == 1);
    link.on();
    first.send_to(b"back", (SECOND, 7000)).unwrap();
    assert_eq!(second.recv_from(&mut [0; 100]).unwrap().0, 4);
}

fn commands_run_in_the_namespace() {
    let Site { first, second, link: _link } = site(Settings::default());
    assert!(devices(&first).contains("wan0") && devices(&second).contains("wan0"));
    assert!(!devices(&Namespace::new().unwrap()).contains("wan0"));
}

fn devices_go_with_the_link() {
    let Site { first, second, link } = site(Settings::default());
    drop(link);
    assert!(!devices(&first).contains("wan0") && !devices(&second).contains("wan0"));
}

fn several_links_of_one_namespace_have_names() {
    let Site { first, second, link } = site(Settings::default());
    let third = Namespace::new().unwrap();
    let join = |name: &str| {
        let device = Device { name: name.into(), mtu_bytes: 1280 };
        let (a, b) = (Ipv4Addr::new(10, 78, 1, 1), Ipv4Addr::new(10, 78, 1, 2));
        Tun::join(end(&first, a), end(&third, b), &device, Settings::default())
    };
    assert!(join("wan0").is_err() && join("").is_err() && join("../x").is_err() && join("wan%d").is_err());
    assert!(!devices(&third).contains("wan0"));
    let _other = join("wan1").unwrap();
    let (first, second) = (udp(&first, FIRST), udp(&second, SECOND));
    first.send_to(b"still here", (SECOND, 7000)).unwrap();
    assert_eq!(second.recv_from(&mut [0; 100]).unwrap().0, 10);
    assert_eq!(link.failure(), None);
}

fn ip_deletes_a_device_and_the_link_ends() {
    let Site { first, second: _second, link } = site(Settings::default());
    let mut ip = Command::new("ip");
    first.enter(ip.args(["link", "delete", "wan0"]));
    assert!(ip.status().unwrap().success());
    let start = Instant::now();
    while link.failure().is_none() {
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(1));
    }
}

/// A process that is killed when the check ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn the_command_joins_namespaces() {
    let (first, second) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_linkem"));
    command.arg("tun").arg(first.path()).arg(FIRST.to_string()).arg(second.path()).arg(SECOND.to_string());
    command.args(["--name", "far0", "--delay", "1ms", "--end-with-input"]);
    let mut linkem = Killed(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(linkem.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "far0 joins 10.78.0.1 and 10.78.0.2");
    assert!(devices(&first).contains("far0"));
    let sockets = (udp(&first, FIRST), udp(&second, SECOND));
    sockets.0.send_to(b"hello", (SECOND, 7000)).unwrap();
    sockets.1.recv_from(&mut [0; 100]).unwrap();
    let mut stdin = linkem.0.stdin.take().unwrap();
    writeln!(stdin, "counters").unwrap();
    assert!(lines.next().unwrap().starts_with("up on offered 1 packets 1 bytes 33 "));
    drop(stdin);
    assert!(linkem.0.wait().unwrap().success());
    assert!(!devices(&first).contains("far0"));
}
