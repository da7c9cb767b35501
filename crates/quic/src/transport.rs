//! Sockets, and QUIC's limits and times, for links from 9.6 kb/s to a LAN; why, is in
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
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Without a word for as long, a connection has ended.
const IDLE_TIME_MAX: Duration = Duration::from_secs(4 * 3600);
/// The round trip as long as none was measured: a handshake's first packets take two seconds to
/// cross a link of 9.6 kb/s and back, and would be sent again meanwhile.
const FIRST_ROUND_TRIP: Duration = Duration::from_secs(1);
/// Bytes of one stream that the other end may send unread: a message, so that none stands still
/// halfway.
const STREAM_WINDOW_BYTES: u32 = MESSAGE_LEN_MAX as u32 + 64;
/// Bytes that a home lets one connection send unread.
pub(crate) const UP_WINDOW_BYTES: u32 = 4 << 20;
/// The same before the home has answered anything.
const STRANGER_WINDOW_BYTES: u32 = 64 << 10;
/// Requests at a time of those whom the home has not answered yet.
const STRANGER_REQUEST_COUNT_MAX: u32 = 8;
/// Bytes that a client lets its home send unread, and that either keeps until they are
/// acknowledged.
pub(crate) const DOWN_WINDOW_BYTES: u32 = 16 << 20;
/// Bytes kept of datagrams that wait to be sent or read: the last of them is enough.
const DATAGRAM_BUFFER_BYTES: usize = 256;
/// What sockets are asked to hold, in bytes; systems give less.
const SOCKET_BUFFER_BYTES: usize = 2 << 20;
/// Handshakes that wait to be looked at; further ones are refused.
const INCOMING_COUNT_MAX: usize = 64;
/// Bytes kept of one of these, and of all.
const INCOMING_BYTES_MAX: [u64; 2] = [16 << 10, 256 << 10];
/// QUIC's version: RFC 9000.
const QUIC_VERSION: u32 = 1;

/// Why keys cannot be used; not to be expected.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Suite(#[from] NoInitialCipherSuite),
}

/// A UDP socket. One for all IPv6 addresses is one for all of IPv4, too, where the system can.
pub(crate) fn socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // Some systems have one or the other.
        let _ = socket.set_only_v6(false);
    }
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// What both ends have in common.
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

/// What both ends have in common below connections.
pub(crate) fn endpoint() -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.supported_versions(vec![QUIC_VERSION]);
    config
}

/// A home's endpoint. It tells clients of before a restart that their connections are gone, since
/// it still knows their names and the secret that proves it.
pub(crate) fn home_endpoint(identity: &Identity) -> EndpointConfig {
    let mut config = endpoint();
    let names = identity.derive("connection ids");
    let names = u64::from_le_bytes(std::array::from_fn(|i| names[i]));
    let resets = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &identity.derive("resets"));
    config.reset_key(Arc::new(resets)).cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(names)));
    config
}

/// For a home's connections.
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

/// For a client's connections to a home that has the `expected` key.
pub(crate) fn of_client(identity: &Identity, expected: PeerKey) -> Result<ClientConfig, ConfigError> {
    let mut transport = common();
    // What gets there after a silence, in which others were lost, is acknowledged with the answer,
    // and not before it in a packet of its own, which takes as long over a slow link.
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

/// Lets a client do all it may, once the home has answered it.
pub(crate) fn welcome(connection: &quinn::Connection) {
    connection.set_receive_window(VarInt::from_u32(UP_WINDOW_BYTES));
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(REQUEST_COUNT_MAX));
}
