//! A link for everything over IPv4: joins two network namespaces by a TUN device in each.
//!
//! Each device has a route to the other's address only. The devices live as long as the link, and
//! keep their namespaces alive. So nothing is left behind, even when the process is killed. Needs
//! root.

use crate::control::{Control, Direction, Packet, Port, Pump, Settings};
use crate::interface::{Interface, NAME_BYTES_MAX, TUN_PATH};
use crate::namespace::Namespace;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use thiserror::Error;

/// The smallest MTU that IPv4 works with, in bytes.
pub const MTU_BYTES_MIN: u16 = 68;

/// Why a link could not be made.
#[derive(Debug, Error)]
pub enum TunError {
    /// A device cannot have this name.
    #[error("{0:?} cannot be a device's name: use up to {NAME_BYTES_MAX} letters, digits, dashes and underscores")]
    Name(String),
    /// The MTU is too small.
    #[error("an MTU of {0} bytes is too small: choose {MTU_BYTES_MIN} or more")]
    Mtu(u16),
    /// A device could not be set up.
    #[error("{step} {name} at {address}: {cause}")]
    Device {
        /// The step that failed.
        step: &'static str,
        /// The device.
        name: String,
        /// Its own address.
        address: Ipv4Addr,
        /// The cause.
        cause: io::Error,
    },
    /// A namespace cannot be entered.
    #[error("enter the network namespace of {address} (as root?): {cause}")]
    Namespace {
        /// The address of that end.
        address: Ipv4Addr,
        /// The cause.
        cause: io::Error,
    },
    /// The link's thread could not be started.
    #[error("start the link's thread: {0}")]
    Thread(io::Error),
}

/// One end of a link.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// The namespace of the device.
    pub namespace: &'a Namespace,
    /// The device's address.
    pub address: Ipv4Addr,
}

/// The settings of the two devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Their name, the same at both ends. Several links of one namespace need different names.
    pub name: String,
    /// The largest packet, with its IP header.
    pub mtu_bytes: u16,
}

impl Default for Device {
    fn default() -> Self {
        Device { name: "wan0".into(), mtu_bytes: 1500 }
    }
}

/// A link that runs until it is dropped. Its [`Control`] changes it; up is from the first end to
/// the second.
pub struct Tun {
    pump: Pump,
}

impl Tun {
    /// Joins two namespaces. A packet's length on the line includes its IP header.
    pub fn join(first: End, second: End, device: &Device, settings: Settings) -> Result<Tun, TunError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if device.name.is_empty() || device.name.len() > NAME_BYTES_MAX || !device.name.bytes().all(is_plain) {
            return Err(TunError::Name(device.name.clone()));
        }
        if device.mtu_bytes < MTU_BYTES_MIN {
            return Err(TunError::Mtu(device.mtu_bytes));
        }
        let up = make(first, second.address, device)?;
        let down = make(second, first.address, device)?;
        let port = Devices { first: Arc::new(up), second: Arc::new(down) };
        Ok(Tun { pump: Pump::start(settings, port).map_err(TunError::Thread)? })
    }

    /// Changes the link; usable from any thread.
    pub fn control(&self) -> &Control {
        &self.pump.control
    }
}

impl Deref for Tun {
    type Target = Control;

    fn deref(&self) -> &Control {
        self.control()
    }
}

/// What this process lacks to make namespaces and links between them, if anything.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".into());
    }
    let tun = File::options().read(true).write(true).open(TUN_PATH);
    tun.err().map(|error| format!("needs {TUN_PATH}: {error}"))
}

fn make(end: End, peer: Ipv4Addr, device: &Device) -> Result<OwnedFd, TunError> {
    let address = end.address;
    let failed = |step| move |cause| TunError::Device { step, name: device.name.clone(), address, cause };
    let inside = || {
        let interface = Interface::new(&device.name).map_err(failed("reach device"))?;
        let tun = interface.make_tun().map_err(failed("make TUN device"))?;
        interface.without_ipv6();
        interface.set_addresses(address, peer).map_err(failed("set addresses of device"))?;
        interface.set_mtu(device.mtu_bytes).map_err(failed("set MTU of device"))?;
        interface.up(libc::IFF_POINTOPOINT).map_err(failed("turn on device"))?;
        Ok(tun)
    };
    end.namespace.within(inside).map_err(|cause| TunError::Namespace { address, cause })?
}

struct Devices {
    first: Arc<OwnedFd>,
    second: Arc<OwnedFd>,
}

struct Source {
    device: Arc<OwnedFd>,
    direction: Direction,
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Port for Devices {
    type Source = Source;

    fn sources(&self) -> Vec<Source> {
        let up = Source { device: self.first.clone(), direction: Direction::Up };
        let down = Source { device: self.second.clone(), direction: Direction::Down };
        vec![up, down]
    }

    fn take(&mut self, source: &Source, room: &mut [u8]) -> io::Result<(Direction, Packet)> {
        let len = rustix::io::read(&source.device, &mut *room)?;
        Ok((source.direction, Packet { data: room[..len].to_vec(), len_bytes: len, client: None }))
    }

    fn give(&mut self, direction: Direction, packet: Packet) -> io::Result<()> {
        let device = match direction {
            Direction::Up => &self.second,
            Direction::Down => &self.first,
        };
        // An end whose device is down loses the packet. If the device is gone, the next read finds
        // out.
        let _ = rustix::io::write(device, &packet.data);
        Ok(())
    }
}
