//! The command as a UDP relay.

use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a test waits for an expected event.
const PATIENCE: Duration = Duration::from_secs(60);

/// `linkem udp` in front of `server`, and a client of it. The process is killed when the test ends.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Box<dyn Iterator<Item = String>>,
    client: UdpSocket,
    server: UdpSocket,
}

impl Running {
    fn start(options: &[&str]) -> Running {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_linkem"));
        command.args(["udp", "--listen", "127.0.0.1:0", "--to", &server.local_addr().unwrap().to_string()]);
        command.args(options).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(lines.next().unwrap().strip_prefix("listening on ").unwrap()).unwrap();
        Running { child, stdin, lines: Box::new(lines), client, server }
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{command}").unwrap();
    }

    /// The lines of both directions.
    fn counters(&mut self) -> (String, String) {
        self.tell("counters");
        (self.lines.next().unwrap(), self.lines.next().unwrap())
    }

    /// Waits until the counters of the up direction show this line.
    fn wait_for(&mut self, up: &str) {
        let start = Instant::now();
        while self.counters().0 != up {
            assert!(start.elapsed() < PATIENCE, "{:?} instead of {up:?}", self.counters());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn takes_commands_while_it_relays() {
    let mut running = Running::start(&["--rate", "1Mb/s", "--up-delay", "1ms"]);
    running.client.send(b"one").unwrap();
    running.server.recv(&mut [0; 100]).unwrap();
    running.tell("off up");
    running.wait_for("up off offered 1 packets 1 bytes 31 lost 0 overflowed 0 dropped 0 held 0");
    assert!(running.counters().1.starts_with("down on offered 0 "));
    running.client.send(b"two").unwrap();
    running.wait_for("up off offered 2 packets 1 bytes 31 lost 0 overflowed 0 dropped 1 held 0");
    running.tell("loss 1");
    running.tell("nonsense");
    running.tell("on");
    running.wait_for("up on offered 2 packets 1 bytes 31 lost 0 overflowed 0 dropped 1 held 0");
    running.client.send(b"three").unwrap();
    running.wait_for("up on offered 3 packets 1 bytes 31 lost 1 overflowed 0 dropped 1 held 0");
    running.tell("quit");
    assert!(running.child.wait().unwrap().success());
}

#[test]
fn flaps_until_it_is_turned_by_hand() {
    let mut running = Running::start(&["--flap", "1ms/1ms"]);
    for state in ["up off ", "up on ", "up off "] {
        let start = Instant::now();
        while !running.counters().0.starts_with(state) {
            assert!(start.elapsed() < PATIENCE, "never {state}");
        }
    }
    running.tell("on");
    assert!(running.counters().0.starts_with("up on "));
    running.client.send(b"through").unwrap();
    running.server.recv(&mut [0; 100]).unwrap();
}

#[test]
fn ends_with_its_input_if_asked_to() {
    let mut running = Running::start(&["--end-with-input", "--off"]);
    running.tell("counters");
    assert!(running.lines.next().unwrap().starts_with("up off "));
    running.stdin = None;
    assert!(running.child.wait().unwrap().success());
}
