//! Sockets, and QUIC's limits and times, for links from 9.6 kb/s to a LAN. Reasons:
//! docs/decisions/2026-11-22-quic.md.

use crate::congestion::Windows;
use crate::identity::Identity;
use crate::tls;
use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use quinn::{AckFrequencyConfig, ClientConfig, EndpointConfig, IdleTimeout, ServerConfig, TransportConfig, VarInt};
use quinn_proto::HashedConnectionIdGenerator;
use roam_proto::channel::{MESSAGE_LEN_MAX, PeerKey, REQUEST_COUNT_MAX};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// A connection ends after this much silence. There is no keep-alive: a radio that sends every 20 s
/// never sleeps, and each caller bounds its own wait.
const IDLE_TIME_MAX: Duration = Duration::from_secs(4 * 3600);
/// The round trip that is assumed before one was measured. The first packets of a handshake take
/// two seconds to cross a link of 9.6 kb/s and back, and a shorter value would send them again
/// meanwhile.
const FIRST_ROUND_TRIP: Duration = Duration::from_secs(1);
/// Bytes of one stream that the other end may send unread: one message, so that no message stops
/// halfway.
const STREAM_WINDOW_BYTES: u32 = MESSAGE_LEN_MAX as u32 + 64;
/// Bytes that a home lets one connection send unread. Covers 250 Mb/s at 100 ms.
pub(crate) const UP_WINDOW_BYTES: u32 = 4 << 20;
/// The same before the home has answered the first request.
const STRANGER_WINDOW_BYTES: u32 = 64 << 10;
/// Most requests at a time before the home has answered the first one.
const STRANGER_REQUEST_COUNT_MAX: u32 = 8;
/// Bytes that a client lets its home send unread, and that either end keeps until they are
/// acknowledged. Covers 1 Gb/s at 100 ms.
pub(crate) const DOWN_WINDOW_BYTES: u32 = 16 << 20;
/// Bytes of datagrams that wait to be sent or read. Only the last of them matter.
const DATAGRAM_BUFFER_BYTES: usize = 256;
/// The socket buffers to request, in bytes. The system may give less.
const SOCKET_BUFFER_BYTES: usize = 2 << 20;
/// Most handshakes that wait to be accepted. Further ones are refused.
const INCOMING_COUNT_MAX: usize = 64;
/// Most bytes buffered for one waiting handshake, and for all of them.
const INCOMING_BYTES_MAX: [u64; 2] = [16 << 10, 256 << 10];
/// QUIC's version: RFC 9000.
const QUIC_VERSION: u32 = 1;

/// Why keys cannot be used. Valid identities do not cause this.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Suite(#[from] NoInitialCipherSuite),
}

/// Opens a UDP socket. A socket for all IPv6 addresses also serves all IPv4 addresses, where the
/// system allows that.
pub(crate) fn socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // Some systems cannot serve both.
        let _ = socket.set_only_v6(false);
    }
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Makes the configuration that both ends share.
pub(crate) fn common() -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .max_idle_timeout(IdleTimeout::try_from(IDLE_TIME_MAX).ok())
        .initial_rtt(FIRST_ROUND_TRIP)
        .congestion_controller_factory(Arc::new(Windows))
        .mtu_discovery_config(None)
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .send_window(DOWN_WINDOW_BYTES.into())
        .datagram_send_buffer_size(DATAGRAM_BUFFER_BYTES)
        // Without this, datagrams cannot be sent either.
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER_BYTES));
    config
}

/// Makes the configuration of endpoints that both ends share.
pub(crate) fn endpoint() -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.supported_versions(vec![QUIC_VERSION]);
    config
}

/// Makes the configuration of a home's endpoint. After a restart, the home can tell its former
/// clients that their connections are gone: the connection ids and the reset key are derived from
/// its identity.
pub(crate) fn home_endpoint(identity: &Identity) -> EndpointConfig {
    let mut config = endpoint();
    let names = identity.derive("connection ids");
    let names = u64::from_le_bytes(std::array::from_fn(|i| names[i]));
    let resets = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &identity.derive("resets"));
    config.reset_key(Arc::new(resets)).cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(names)));
    config
}

/// Makes the configuration of a home's connections.
pub(crate) fn of_home(identity: &Identity) -> Result<ServerConfig, ConfigError> {
    let mut transport = common();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(STRANGER_REQUEST_COUNT_MAX))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .receive_window(VarInt::from_u32(STRANGER_WINDOW_BYTES));
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls::of_home(identity)?)?));
    config
        .transport_config(Arc::new(transport))
        .max_incoming(INCOMING_COUNT_MAX)
        .incoming_buffer_size(INCOMING_BYTES_MAX[0])
        .incoming_buffer_size_total(INCOMING_BYTES_MAX[1]);
    Ok(config)
}

/// Makes the configuration of a client's connections to a home with the `expected` key.
pub(crate) fn of_client(identity: &Identity, expected: PeerKey) -> Result<ClientConfig, ConfigError> {
    let mut transport = common();
    // After a silence in which packets were lost, the home acknowledges the first packet that
    // arrives together with its answer. An acknowledgement in a packet of its own would delay the
    // answer on a slow link.
    let mut acknowledgements = AckFrequencyConfig::default();
    acknowledgements.reordering_threshold(VarInt::from_u32(0));
    transport
        .ack_frequency_config(Some(acknowledgements))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(1))
        .receive_window(VarInt::from_u32(DOWN_WINDOW_BYTES));
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls::of_client(identity, expected)?)?));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// Raises a client's limits once the home has answered it.
pub(crate) fn welcome(connection: &quinn::Connection) {
    connection.set_receive_window(VarInt::from_u32(UP_WINDOW_BYTES));
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(REQUEST_COUNT_MAX));
}

/// Opens a socket on a free port of all this machine's addresses.
pub(crate) fn any_socket() -> io::Result<UdpSocket> {
    let both = socket((Ipv6Addr::UNSPECIFIED, 0).into());
    both.or_else(|_| socket((Ipv4Addr::UNSPECIFIED, 0).into()))
}
