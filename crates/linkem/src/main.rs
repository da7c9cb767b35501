//! `linkem`: runs one emulated link, and takes commands for it from standard input.

mod args;
mod command;

use anyhow::{Context, Result, bail};
use args::Args;
use clap::Parser;
use command::{Command, Flap};
use linkem::{Control, Counters, Device, Direction, End, Namespace, Relay, Tun};
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// How often the program checks that the link still runs.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Most commands that wait.
const COMMAND_COUNT_MAX: usize = 16;

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("linkem: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<()> {
    match args.command {
        args::Command::Udp(options) => {
            let relay = Relay::start(options.listen, options.to, options.link.settings())
                .with_context(|| format!("relay from {}", options.listen))?;
            say(&format!("listening on {}", relay.address()))?;
            serve(&relay, &options.link)
        }
        args::Command::Tun(options) => {
            let (first, second) = (open(&options.first)?, open(&options.second)?);
            let first = End { namespace: &first, address: options.first_address };
            let second = End { namespace: &second, address: options.second_address };
            let device = Device { name: options.name, mtu_bytes: options.mtu };
            let link = Tun::join(first, second, &device, options.link.settings())?;
            say(&format!("{} joins {} and {}", device.name, first.address, second.address))?;
            serve(&link, &options.link)
        }
    }
}

fn open(namespace: &args::Namespace) -> Result<Namespace> {
    match namespace {
        args::Namespace::Own => Namespace::current().context("open the own network namespace"),
        args::Namespace::Path(path) => {
            Namespace::open(path).with_context(|| format!("open the network namespace {}", path.display()))
        }
    }
}

/// A flapping link, and when it turns next.
struct Turning {
    flap: Flap,
    on: bool,
    at: Instant,
}

impl Turning {
    /// Starts with the link on.
    fn start(flap: Flap, link: &Control) -> Turning {
        link.on();
        Turning { flap, on: true, at: Instant::now() + flap.on }
    }

    /// Turns the link if it is time.
    fn turn(&mut self, link: &Control) {
        if Instant::now() < self.at {
            return;
        }
        self.on = !self.on;
        let wait = if self.on {
            link.on();
            self.flap.on
        } else {
            link.off();
            self.flap.off
        };
        // Counted from the time it was due, so that lateness does not add up.
        self.at += wait;
    }
}

fn serve(link: &Control, options: &args::Link) -> Result<()> {
    if options.off {
        link.off();
    }
    let commands = commands(options.end_with_input);
    let mut turning = options.flap.map(|flap| Turning::start(flap, link));
    loop {
        if let Some(failure) = link.failure() {
            bail!("the link has ended: {failure}");
        }
        let wait =
            turning.as_ref().map_or(LOOK_INTERVAL, |turning| turning.at.saturating_duration_since(Instant::now()));
        match commands.recv_timeout(wait.min(LOOK_INTERVAL)) {
            Ok(Command::Turn(directions, on)) => {
                turning = None;
                directions.iter().for_each(|direction| link.turn(*direction, on));
            }
            Ok(Command::Change(directions, change)) => {
                directions.iter().for_each(|direction| link.set(*direction, change.apply(link.shape(*direction))));
            }
            Ok(Command::Flap(flap)) => turning = flap.map(|flap| Turning::start(flap, link)),
            Ok(Command::Counters) => say(&counters(link))?,
            Ok(Command::Quit) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(turning) = &mut turning {
            turning.turn(link);
        }
    }
}

/// Reads commands from standard input. At its end, sends a last command to quit if `is_to_end`.
fn commands(is_to_end: bool) -> Receiver<Command> {
    let (sender, receiver) = sync_channel(COMMAND_COUNT_MAX);
    std::thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            match command::parse(&line) {
                Ok(Some(command)) if sender.send(command).is_err() => return,
                Ok(_) => {}
                Err(error) => eprintln!("linkem: {error}"),
            }
        }
        if !is_to_end {
            // Keeps the channel open.
            std::mem::forget(sender);
        }
    });
    receiver
}

/// The counters, one line per direction.
fn counters(link: &Control) -> String {
    let line = |direction| {
        let name = match direction {
            Direction::Up => "up",
            Direction::Down => "down",
        };
        let state = if link.is_on(direction) { "on" } else { "off" };
        let of = link.counters(direction);
        let Counters { offered, packets, bytes, lost, overflowed, dropped, .. } = of;
        let held = of.held();
        format!(
            "{name} {state} offered {offered} packets {packets} bytes {bytes} lost {lost} overflowed {overflowed} \
             dropped {dropped} held {held}"
        )
    };
    Direction::BOTH.map(line).join("\n")
}

/// Prints a line and flushes, because another program may wait for it.
fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
