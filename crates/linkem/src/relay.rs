//! A link for UDP that needs no privileges: packets to its address go on to another, and answers go
//! back.
//!
//! Each client address has its own socket towards the other side, so that answers find their way;
//! all clients share one link. Only the payload gets across: no ECN bits, and no ICMP errors.

use crate::control::{Control, Direction, Packet, Port, Pump, Settings};
use parking_lot::Mutex;
use rustix::net::sockopt;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Bytes that a packet has on the line beyond its payload: an IPv4 and a UDP header.
pub const HEADER_BYTES: usize = 28;

/// Most clients that have a socket at a time. A new client replaces the one that has been quiet
/// longest.
pub const CLIENT_COUNT_MAX: usize = 256;

/// Receive buffer to ask the kernel for, in bytes. The kernel may allow less.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// A relay that runs until it is dropped. Its [`Control`] changes the link.
pub struct Relay {
    pump: Pump,
    address: SocketAddr,
    clients: Arc<Mutex<Clients>>,
}

impl Relay {
    /// Starts a relay, on a thread of its own, from `listen` (port 0 picks a free port) to `to`.
    pub fn start(listen: SocketAddr, to: SocketAddr, settings: Settings) -> io::Result<Relay> {
        let listen = Arc::new(open(listen)?);
        let address = listen.local_addr()?;
        let clients = Arc::new(Mutex::new(Clients::default()));
        let pump = Pump::start(settings, Ports { listen, to, clients: clients.clone() })?;
        Ok(Relay { pump, address, clients })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Forgets all clients, as a NAT does: each client's next packet leaves from another port, and
    /// answers to the former ports are lost.
    pub fn forget_clients(&self) {
        self.clients.lock().sockets.clear();
    }

    /// Changes the link; usable from any thread.
    pub fn control(&self) -> &Control {
        &self.pump.control
    }
}

impl Deref for Relay {
    type Target = Control;

    fn deref(&self) -> &Control {
        self.control()
    }
}

/// The sockets towards the other side.
#[derive(Default)]
struct Clients {
    sockets: HashMap<SocketAddr, Client>,
    /// Packets that clients have sent; serves as a clock.
    sent: u64,
}

struct Client {
    socket: Arc<UdpSocket>,
    last_sent: u64,
}

impl Clients {
    /// True if `socket` is the client's present socket, and not a former one.
    fn has(&self, client: SocketAddr, socket: &Arc<UdpSocket>) -> bool {
        self.sockets.get(&client).is_some_and(|client| Arc::ptr_eq(&client.socket, socket))
    }

    fn socket(&mut self, client: SocketAddr, to: SocketAddr) -> io::Result<Arc<UdpSocket>> {
        self.sent += 1;
        if let Some(known) = self.sockets.get_mut(&client) {
            known.last_sent = self.sent;
            return Ok(known.socket.clone());
        }
        if self.sockets.len() == CLIENT_COUNT_MAX {
            let quiet = self.sockets.iter().min_by_key(|(_, client)| client.last_sent).map(|(address, _)| *address);
            quiet.and_then(|address| self.sockets.remove(&address));
        }
        let any = match to {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let socket = Arc::new(open(any)?);
        // The kernel then accepts answers from that address only.
        socket.connect(to)?;
        self.sockets.insert(client, Client { socket: socket.clone(), last_sent: self.sent });
        Ok(socket)
    }
}

fn open(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)?;
    // Only root may exceed the system's limit.
    let _ = sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES);
    Ok(socket)
}

struct Ports {
    listen: Arc<UdpSocket>,
    to: SocketAddr,
    clients: Arc<Mutex<Clients>>,
}

/// A socket, and its client; the common socket has none.
struct Source {
    socket: Arc<UdpSocket>,
    client: Option<SocketAddr>,
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Port for Ports {
    type Source = Source;

    fn sources(&self) -> Vec<Source> {
        let clients = self.clients.lock();
        let of_client = |(address, client): (&SocketAddr, &Client)| Source {
            socket: client.socket.clone(),
            client: Some(*address),
        };
        let listen = Source { socket: self.listen.clone(), client: None };
        clients.sockets.iter().map(of_client).chain([listen]).collect()
    }

    fn take(&mut self, source: &Source, room: &mut [u8]) -> io::Result<(Direction, Packet)> {
        let (len, client, direction) = match source.client {
            None => {
                let (len, from) = source.socket.recv_from(room)?;
                (len, from, Direction::Up)
            }
            Some(client) if self.clients.lock().has(client, &source.socket) => {
                // An error says that an earlier packet was refused.
                (source.socket.recv(room).map_err(|_| ErrorKind::WouldBlock)?, client, Direction::Down)
            }
            Some(_) => return Err(ErrorKind::WouldBlock.into()),
        };
        Ok((direction, Packet { data: room[..len].to_vec(), len_bytes: len + HEADER_BYTES, client: Some(client) }))
    }

    fn give(&mut self, direction: Direction, packet: Packet) -> io::Result<()> {
        let Some(client) = packet.client else { return Ok(()) };
        match direction {
            Direction::Up => {
                let socket = self.clients.lock().socket(client, self.to)?;
                // An error may say that an earlier packet was refused; then this one was not sent.
                if socket.send(&packet.data).is_err() {
                    let _ = socket.send(&packet.data);
                }
            }
            Direction::Down => drop(self.listen.send_to(&packet.data, client)),
        }
        Ok(())
    }
}
