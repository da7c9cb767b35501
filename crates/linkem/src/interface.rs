//! Network devices in the namespace of the calling thread, through ioctl.

use std::ffi::c_short;
use std::fs::{self, File};
use std::io;
use std::mem;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// The device file that makes TUN devices.
pub const TUN_PATH: &str = "/dev/net/tun";

/// The longest name of a device, in bytes.
pub const NAME_BYTES_MAX: usize = libc::IFNAMSIZ - 1;

/// A device by its name.
pub struct Interface {
    name: String,
    /// Any socket; the ioctls need one.
    socket: UdpSocket,
}

impl Interface {
    /// Names a device; does not check that it exists.
    pub fn new(name: &str) -> io::Result<Interface> {
        if name.len() > NAME_BYTES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Interface { name: name.to_string(), socket: UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))? })
    }

    /// Makes a TUN device of this name, which must not exist yet. It lives as long as the
    /// descriptor.
    pub fn make_tun(&self) -> io::Result<OwnedFd> {
        let tun = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(TUN_PATH)?;
        let flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_TUN_EXCL) as u16;
        let mut request = self.request();
        request.ifr_ifru.ifru_flags = flags.cast_signed();
        control(&tun, libc::TUNSETIFF, &mut request)?;
        Ok(tun.into())
    }

    /// Sets the device's own address and the address of the other end.
    pub fn set_addresses(&self, own: Ipv4Addr, peer: Ipv4Addr) -> io::Result<()> {
        self.set_address(libc::SIOCSIFADDR, own)?;
        self.set_address(libc::SIOCSIFDSTADDR, peer)?;
        self.set_address(libc::SIOCSIFNETMASK, Ipv4Addr::BROADCAST)
    }

    /// Sets the size of the largest packet.
    pub fn set_mtu(&self, bytes: u16) -> io::Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_mtu = bytes.into();
        control(&self.socket, libc::SIOCSIFMTU, &mut request)
    }

    /// Keeps the kernel from sending IPv6 packets of its own. If that fails, they travel with the
    /// others.
    pub fn without_ipv6(&self) {
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", self.name), "1");
    }

    /// Turns the device on.
    pub fn up(&self, flags: i32) -> io::Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING | flags) as c_short;
        control(&self.socket, libc::SIOCSIFFLAGS, &mut request)
    }

    fn set_address(&self, operation: libc::Ioctl, address: Ipv4Addr) -> io::Result<()> {
        let mut request = self.request();
        let address = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) },
            sin_zero: [0; 8],
        };
        // SAFETY: both are plain numbers of the same size.
        request.ifr_ifru.ifru_addr = unsafe { mem::transmute::<libc::sockaddr_in, libc::sockaddr>(address) };
        control(&self.socket, operation, &mut request)
    }

    fn request(&self) -> libc::ifreq {
        // SAFETY: numbers and a pointer that may be null, so zeroes are valid.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.bytes()) {
            *to = from as libc::c_char;
        }
        request
    }
}

fn control(fd: impl AsFd, operation: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: all operations of this module take an `ifreq`, which lives longer than the call.
    match unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), operation, request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
