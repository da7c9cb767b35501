//! The addresses of this machine, for invitations.

use anyhow::Context;
use std::net::{IpAddr, SocketAddr};

/// Addresses at which others find a process that listens at `listen`. If that is all addresses,
/// these are the addresses of this machine, loopback last.
pub fn of_listener(listen: SocketAddr) -> anyhow::Result<Vec<String>> {
    if !listen.ip().is_unspecified() {
        return Ok(vec![listen.to_string()]);
    }
    let mut found: Vec<IpAddr> = Vec::new();
    let mut list = std::ptr::null_mut();
    // SAFETY: getifaddrs made the list, and it is freed once.
    unsafe {
        if libc::getifaddrs(&mut list) != 0 {
            return Err(std::io::Error::last_os_error()).context("addresses of this machine");
        }
        let mut at = list;
        while let Some(entry) = at.as_ref() {
            if let Some(address) = entry.ifa_addr.as_ref() {
                if i32::from(address.sa_family) == libc::AF_INET {
                    let v4 = &*entry.ifa_addr.cast::<libc::sockaddr_in>();
                    found.push(IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes()));
                } else if i32::from(address.sa_family) == libc::AF_INET6 && listen.is_ipv6() {
                    let v6 = &*entry.ifa_addr.cast::<libc::sockaddr_in6>();
                    found.push(IpAddr::from(v6.sin6_addr.s6_addr));
                }
            }
            at = entry.ifa_next;
        }
        libc::freeifaddrs(list);
    }
    let local = |address: &IpAddr| match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    found.retain(|address| !local(address));
    found.sort_by_key(IpAddr::is_loopback);
    Ok(found.into_iter().map(|ip| SocketAddr::new(ip, listen.port()).to_string()).collect())
}
