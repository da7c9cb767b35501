//! The common part of all running links: both directions, and the thread that moves packets through
//! them.
//!
//! Packets are taken and delivered under one lock, so nothing arrives any more once
//! [`Control::off`] has returned.

use crate::model::{Counters, Link, Shape};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most packets taken from one source before the next source has its turn.
pub(crate) const BATCH_COUNT_MAX: usize = 64;

/// Room for a packet, in bytes: longer than any packet.
pub(crate) const PACKET_BYTES_MAX: usize = 1 << 16;

/// One of the two directions of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the clients of a relay to its target; from the first end of a TUN link to the second.
    Up,
    /// The way back.
    Down,
}

impl Direction {
    /// Both directions.
    pub const BOTH: [Direction; 2] = [Direction::Up, Direction::Down];
}

/// The settings of a link in both directions. The default is a perfect link.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Settings {
    /// From clients, or from the first end.
    pub up: Shape,
    /// To clients, or to the first end.
    pub down: Shape,
    /// Seed of random loss and jitter.
    pub seed: u64,
}

impl Settings {
    /// The same shape in both directions.
    pub fn both(shape: Shape) -> Settings {
        Settings { up: shape, down: shape, seed: 0 }
    }
}

/// A packet in the link.
pub(crate) struct Packet {
    pub data: Vec<u8>,
    /// Its length on the line.
    pub len_bytes: usize,
    /// The client that it comes from or goes to, if the link has clients.
    pub client: Option<SocketAddr>,
}

/// The outside of a link: where packets come from and go to.
pub(crate) trait Port: Send + 'static {
    /// Something to read from.
    type Source: AsFd;
    /// All sources to read from until the next call.
    fn sources(&self) -> Vec<Self::Source>;
    /// Takes one packet, with its direction. [`io::ErrorKind::WouldBlock`] if there is none; any
    /// other error ends the link.
    fn take(&mut self, source: &Self::Source, room: &mut [u8]) -> io::Result<(Direction, Packet)>;
    /// Delivers a packet. A packet that the far end refuses is lost without an error; an error ends
    /// the link.
    fn give(&mut self, direction: Direction, packet: Packet) -> io::Result<()>;
}

/// Changes a running link, and counts its packets. Cheap to clone; does nothing once the link has
/// ended.
#[derive(Clone)]
pub struct Control(Arc<Shared>);

struct Shared {
    links: Mutex<Links>,
    started: Instant,
    /// Written to when the thread must look at the links again.
    wake: OwnedFd,
}

struct Links {
    up: Link<Packet>,
    down: Link<Packet>,
    is_ending: bool,
    failure: Option<String>,
}

impl Links {
    fn of(&mut self, direction: Direction) -> &mut Link<Packet> {
        match direction {
            Direction::Up => &mut self.up,
            Direction::Down => &mut self.down,
        }
    }
}

impl Control {
    fn new(settings: Settings) -> io::Result<Control> {
        let links = Links {
            up: Link::new(settings.up, settings.seed),
            // A seed of its own: the two directions must not draw the same numbers.
            down: Link::new(settings.down, !settings.seed),
            is_ending: false,
            failure: None,
        };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Control(Arc::new(Shared { links: Mutex::new(links), started: Instant::now(), wake })))
    }

    /// Changes the shape of one direction. Packets on their way keep their arrival time, and queued
    /// packets stay queued.
    pub fn set(&self, direction: Direction, shape: Shape) {
        self.change(|links, now| links.of(direction).set(now, shape));
    }

    /// The shape of one direction.
    pub fn shape(&self, direction: Direction) -> Shape {
        self.0.links.lock().of(direction).shape()
    }

    /// Turns both directions off. Packets that are queued or on their way are dropped; when this
    /// returns, nothing arrives any more.
    pub fn off(&self) {
        self.change(|links, now| {
            links.up.off(now);
            links.down.off(now);
        });
    }

    /// Turns both directions on. Packets sent just before may still get across, because the link
    /// has not yet read them.
    pub fn on(&self) {
        self.change(|links, _| {
            links.up.on();
            links.down.on();
        });
    }

    /// Turns one direction on or off; see [`on`](Self::on) and [`off`](Self::off).
    pub fn turn(&self, direction: Direction, on: bool) {
        self.change(|links, now| match on {
            true => links.of(direction).on(),
            false => links.of(direction).off(now),
        });
    }

    /// True if one direction is on.
    pub fn is_on(&self, direction: Direction) -> bool {
        self.0.links.lock().of(direction).is_on()
    }

    /// The packet counts of one direction so far.
    pub fn counters(&self, direction: Direction) -> Counters {
        self.0.links.lock().of(direction).counters()
    }

    /// Why the link has ended by itself, if it has.
    pub fn failure(&self) -> Option<String> {
        self.0.links.lock().failure.clone()
    }

    fn change(&self, change: impl FnOnce(&mut Links, Duration)) {
        change(&mut self.0.links.lock(), self.0.started.elapsed());
        // The write can only fail if the counter is full, and then the thread is about to wake
        // anyway.
        let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
    }

    /// Moves packets until the link ends.
    fn pump(&self, port: &mut impl Port) -> io::Result<()> {
        let mut room = vec![0; PACKET_BYTES_MAX];
        let now = || self.0.started.elapsed();
        loop {
            let due = {
                let mut links = self.0.links.lock();
                if links.is_ending {
                    return Ok(());
                }
                let mut due = None::<Duration>;
                for direction in Direction::BOTH {
                    let link = links.of(direction);
                    while let Some(packet) = link.pop(now()) {
                        port.give(direction, packet)?;
                    }
                    due = [due, link.due()].into_iter().flatten().min();
                }
                due
            };
            let sources = port.sources();
            let fds = sources.iter().map(AsFd::as_fd).chain([self.0.wake.as_fd()]);
            let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            // A time that does not fit is too long for one wait.
            let timeout = due.and_then(|due| Timespec::try_from(due.saturating_sub(now())).ok());
            match poll(&mut fds, timeout.as_ref()) {
                Err(Errno::INTR) => continue,
                result => result?,
            };
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.0.wake, &mut count);
            let ready = sources.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
            for (source, _) in ready {
                let mut links = self.0.links.lock();
                for _ in 0..BATCH_COUNT_MAX {
                    match port.take(source, &mut room) {
                        Ok((direction, packet)) => links.of(direction).push(now(), packet.len_bytes, packet),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }
}

/// The thread of a link; it ends when this is dropped.
pub(crate) struct Pump {
    pub control: Control,
    thread: Option<JoinHandle<()>>,
}

impl Pump {
    pub fn start(settings: Settings, mut port: impl Port) -> io::Result<Pump> {
        let control = Control::new(settings)?;
        let own = control.clone();
        let thread = std::thread::Builder::new().name("linkem".into()).spawn(move || {
            // By default the kernel wakes sleepers up to 50 µs late, to save power.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            if let Err(error) = own.pump(&mut port) {
                own.0.links.lock().failure = Some(error.to_string());
            }
        })?;
        Ok(Pump { control, thread: Some(thread) })
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.control.change(|links, _| links.is_ending = true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}
