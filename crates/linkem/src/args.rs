//! The command line. Parsing only; nothing here touches the environment.

use crate::command::{Flap, flap};
use clap::{Args as ClapArgs, Parser, Subcommand};
use linkem::{Rate, Settings, Shape, units};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Emulates a slow, lossy or broken link, without the kernel's help.
#[derive(Parser, Debug)]
#[command(name = "linkem", after_help = CONTROL_HELP)]
pub struct Args {
    /// The kind of link.
    #[command(subcommand)]
    pub command: Command,
}

const CONTROL_HELP: &str = "While it runs, it takes commands from standard input, one a line:
  off [up|down]                 drop everything, in both directions or in one
  on [up|down]
  rate [up|down] 9.6kb/s        or unlimited
  delay [up|down] 40ms          the same for jitter 5ms, loss 0.05, and queue 64KiB or auto
  flap 5s/2s                    on for 5 s, off for 2 s; until off, on or flap none
  counters                      prints a line for each direction
  quit";

/// The kind of link.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Relay UDP: packets to one address go on to another, and answers go back. Up is towards --to.
    #[command(after_help = udp_help())]
    Udp(Udp),
    /// Join two network namespaces by a TUN device in each. Needs root. Up is from the first
    /// namespace to the second.
    #[command(after_help = tun_help())]
    Tun(Tun),
}

fn udp_help() -> String {
    format!(
        "Examples:
  linkem udp --listen 127.0.0.1:4000 --to 127.0.0.1:5000 --rate 64kb/s --delay 40ms --loss 0.01
  linkem udp --listen 127.0.0.1:4000 --to 127.0.0.1:5000 --rate 10Mb/s --up-rate 1Mb/s --flap 5s/2s
  (echo off; sleep 5; echo on; sleep 5; echo counters) | linkem udp --listen 127.0.0.1:0 --to [::1]:5000 --end-with-input

{CONTROL_HELP}"
    )
}

fn tun_help() -> String {
    format!(
        "Examples:
  unshare -n sleep infinity & A=$!
  unshare -n sleep infinity & B=$!
  linkem tun /proc/$A/ns/net 10.0.0.1 /proc/$B/ns/net 10.0.0.2 --rate 9.6kb/s --delay 250ms
  linkem tun - 10.0.0.1 far 10.0.0.2 --delay 40ms         from this namespace to that of `ip netns add far`

{CONTROL_HELP}"
    )
}

/// `linkem udp`.
#[derive(ClapArgs, Debug)]
pub struct Udp {
    /// The address that clients send to; port 0 picks a free port, which is printed
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// The address that packets go on to
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub to: SocketAddr,
    #[command(flatten)]
    pub link: Link,
}

/// `linkem tun`.
#[derive(ClapArgs, Debug)]
pub struct Tun {
    /// The first namespace: a name that `ip netns` knows, a path such as /proc/PID/ns/net, or - for
    /// this process's own
    #[arg(value_name = "NS_A")]
    pub first: Namespace,
    /// The address of the first end
    #[arg(value_name = "ADDR_A")]
    pub first_address: Ipv4Addr,
    /// The second namespace
    #[arg(value_name = "NS_B")]
    pub second: Namespace,
    /// The address of the second end
    #[arg(value_name = "ADDR_B")]
    pub second_address: Ipv4Addr,
    /// The name of the devices
    #[arg(long, default_value = "wan0")]
    pub name: String,
    /// The largest packet, in bytes
    #[arg(long, default_value_t = 1500)]
    pub mtu: u16,
    #[command(flatten)]
    pub link: Link,
}

/// A network namespace as users name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespace {
    /// The namespace of this process.
    Own,
    /// The namespace at a path.
    Path(PathBuf),
}

impl From<&str> for Namespace {
    fn from(text: &str) -> Namespace {
        match text {
            "-" => Namespace::Own,
            path if path.contains('/') => Namespace::Path(path.into()),
            name => Namespace::Path(PathBuf::from("/run/netns").join(name)),
        }
    }
}

/// The initial state of the link.
#[derive(ClapArgs, Debug)]
pub struct Link {
    /// Rate of the line, such as 64kb/s (bits, in powers of ten); unlimited if not given
    #[arg(long)]
    rate: Option<Rate>,
    /// Time that a packet travels after the line
    #[arg(long, value_parser = units::time, default_value = "0s", value_name = "TIME")]
    delay: Duration,
    /// Largest random addition to the delay; packets keep their order
    #[arg(long, value_parser = units::time, default_value = "0s", value_name = "TIME")]
    jitter: Duration,
    /// Probability that a packet is lost, 0 to 1
    #[arg(long, value_parser = units::probability, default_value_t = 0.0, value_name = "PROBABILITY")]
    loss: f64,
    /// Bytes that may wait for the line, such as 64KiB; if not given, as many as the rate carries
    /// in 250 ms
    #[arg(long, value_parser = units::size, value_name = "SIZE")]
    queue: Option<u64>,
    /// Rate upwards, if different
    #[arg(long, value_name = "RATE")]
    up_rate: Option<Rate>,
    /// Rate downwards, if different
    #[arg(long, value_name = "RATE")]
    down_rate: Option<Rate>,
    /// Delay upwards, if different
    #[arg(long, value_parser = units::time, value_name = "TIME")]
    up_delay: Option<Duration>,
    /// Delay downwards, if different
    #[arg(long, value_parser = units::time, value_name = "TIME")]
    down_delay: Option<Duration>,
    /// Loss upwards, if different
    #[arg(long, value_parser = units::probability, value_name = "PROBABILITY")]
    up_loss: Option<f64>,
    /// Loss downwards, if different
    #[arg(long, value_parser = units::probability, value_name = "PROBABILITY")]
    down_loss: Option<f64>,
    /// Seed of random loss and jitter
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Turn the link on and off repeatedly, such as 5s/2s: on for 5 s, then off for 2 s
    #[arg(long, value_parser = flap, value_name = "ON/OFF")]
    pub flap: Option<Flap>,
    /// Start with the link off
    #[arg(long, conflicts_with = "flap")]
    pub off: bool,
    /// End when standard input ends, instead of running until killed
    #[arg(long)]
    pub end_with_input: bool,
}

impl Link {
    /// The initial settings of both directions.
    pub fn settings(&self) -> Settings {
        let shape = |rate: Option<Rate>, delay: Option<Duration>, loss: Option<f64>| Shape {
            rate: rate.or(self.rate),
            delay: delay.unwrap_or(self.delay),
            jitter: self.jitter,
            loss: loss.unwrap_or(self.loss),
            queue_bytes: self.queue,
        };
        Settings {
            up: shape(self.up_rate, self.up_delay, self.up_loss),
            down: shape(self.down_rate, self.down_delay, self.down_loss),
            seed: self.seed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(line.split(' '))
    }

    #[test]
    fn directions_differ_where_it_is_said() {
        let line =
            "linkem udp --listen 127.0.0.1:0 --to [::1]:5 --rate 64kb/s --up-rate 1Mb/s --loss 0.1 --down-loss 0";
        let Ok(Args { command: Command::Udp(udp) }) = parse(line) else { panic!("not understood") };
        let Settings { up, down, .. } = udp.link.settings();
        assert_eq!((up.rate, down.rate), (Some(Rate::mbits_per_s(1)), Some(Rate::kbits_per_s(64))));
        assert_eq!((up.loss, down.loss), (0.1, 0.0));
    }

    #[test]
    fn namespaces_are_names_or_paths_or_the_own_one() {
        let line = "linkem tun - 10.0.0.1 far 10.0.0.2 --mtu 1280";
        let Ok(Args { command: Command::Tun(tun) }) = parse(line) else { panic!("not understood") };
        assert_eq!((tun.first, tun.second), (Namespace::Own, Namespace::Path("/run/netns/far".into())));
        assert_eq!(Namespace::from("/proc/1/ns/net"), Namespace::Path("/proc/1/ns/net".into()));
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for wrong in ["--rate 64", "--loss 2", "--delay 40", "--flap 5s", "--flap 5s/2s --off"] {
            assert!(parse(&format!("linkem udp --listen 127.0.0.1:0 --to 127.0.0.1:5 {wrong}")).is_err(), "{wrong}");
        }
    }
}
