//! A service that follows commands in its requests, homes and clients on the loopback interface,
//! and peers that break the rules.
// Not every test uses all of it.
#![allow(dead_code)]

use bytes::Bytes;
use parking_lot::Mutex;
use quic::{Identity, Listener, QuicDialer};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519, PublicKeyData};
use ring::digest;
use roam_proto::channel::{Channel, DialError, Dialer, PeerKey, Push, Service, Session};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring as provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::{Notify, watch};
use types::BoxFuture;

pub const PROTOCOL: &[u8] = b"starling-roam/4";

/// What a [`Desk`] has seen.
#[derive(Default, Clone, Debug)]
pub struct Seen {
    pub peers: Vec<PeerKey>,
    pub requests: Vec<Bytes>,
    pub answered: usize,
    pub ended: usize,
}

/// Answers a request with itself, unless that begins with one of the words in
/// [`answer`](Session::answer).
#[derive(Clone)]
pub struct Desk {
    pub seen: watch::Sender<Seen>,
    pub go_on: Arc<Notify>,
    pub pushes: Arc<Mutex<Vec<Arc<dyn Push>>>>,
    /// The peers that it knows; `None`: every peer.
    pub known: Arc<Mutex<Option<Vec<PeerKey>>>>,
}

impl Desk {
    pub fn new() -> Desk {
        let seen = watch::channel(Seen::default()).0;
        Desk { seen, go_on: Arc::default(), pushes: Arc::default(), known: Arc::default() }
    }

    /// Waits until the service has seen the expected things.
    pub async fn until(&self, is_so: impl FnMut(&Seen) -> bool) {
        self.seen.subscribe().wait_for(is_so).await.unwrap();
    }

    pub fn requests(&self) -> Vec<Bytes> {
        self.seen.borrow().requests.clone()
    }
}

impl Service for Desk {
    fn connected(&self, peer: PeerKey, push: Arc<dyn Push>) -> Arc<dyn Session> {
        self.pushes.lock().push(push);
        self.seen.send_modify(|seen| seen.peers.push(peer));
        Arc::new(self.clone())
    }

    fn knows(&self, peer: PeerKey) -> bool {
        self.known.lock().as_ref().is_none_or(|known| known.contains(&peer))
    }
}

impl Session for Desk {
    fn answer(&self, request: Bytes) -> BoxFuture<Option<Bytes>> {
        let desk = self.clone();
        desk.seen.send_modify(|seen| seen.requests.push(request.clone()));
        Box::pin(async move {
            let answer = match request.as_ref() {
                b"nothing" => None,
                b"panic" => panic!("as it was told"),
                b"too long" => Some(vec![0; (1 << 20) + 1].into()),
                b"wait" => {
                    desk.go_on.notified().await;
                    Some(request)
                }
                other => match other.strip_prefix(b"len ") {
                    Some(len) => Some(numbers(std::str::from_utf8(len).unwrap().parse().unwrap())),
                    None => Some(request),
                },
            };
            desk.seen.send_modify(|seen| seen.answered += 1);
            answer
        })
    }

    fn ended(&self) {
        self.seen.send_modify(|seen| seen.ended += 1);
    }
}

/// Returns bytes that are not all alike.
pub fn numbers(len: usize) -> Bytes {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

pub fn identity() -> Identity {
    Identity::load_or_make(tempfile::tempdir().unwrap().path(), "key").unwrap()
}

pub fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

pub fn dialer(listener: &Listener, home: &Identity) -> QuicDialer {
    QuicDialer::new(vec![listener.local_addr().to_string()], home.key(), &identity())
}

/// Starts a home, and makes a channel to it.
pub async fn pair() -> (Desk, Listener, Arc<dyn Channel>) {
    let (desk, home) = (Desk::new(), identity());
    let listener = Listener::listen(loopback(), &home, Arc::new(desk.clone())).unwrap();
    let channel = dialer(&listener, &home).dial().await.unwrap();
    (desk, listener, channel)
}

pub fn failed(dialed: Result<Arc<dyn Channel>, DialError>) -> DialError {
    match dialed {
        Ok(_) => panic!("there is a connection"),
        Err(error) => error,
    }
}

/// A key in its certificate, made without the crate under test.
pub struct Stranger {
    pub key: PeerKey,
    chain: Vec<CertificateDer<'static>>,
    secret: Vec<u8>,
}

impl Stranger {
    pub fn new() -> Stranger {
        let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let certificate = CertificateParams::default().self_signed(&pair).unwrap();
        let hash = digest::digest(&digest::SHA256, &pair.subject_public_key_info());
        let key = PeerKey(hash.as_ref().try_into().unwrap());
        Stranger { key, chain: vec![certificate.der().clone()], secret: pair.serialize_der() }
    }

    fn secret(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.secret.clone()).into()
    }

    /// Connects to a home without checking its key.
    pub async fn connect(&self, to: SocketAddr, protocol: &[u8]) -> Result<quinn::Connection, quinn::ConnectionError> {
        let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Whoever))
            .with_client_auth_cert(self.chain.clone(), self.secret())
            .unwrap();
        tls.alpn_protocols = vec![protocol.to_vec()];
        let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        let endpoint = quinn::Endpoint::client(loopback()).unwrap();
        endpoint.connect_with(config, to, "anything").unwrap().await
    }

    /// Listens as a home that asks clients for no certificate.
    pub fn listen(&self, protocol: &[u8]) -> quinn::Endpoint {
        let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(provider::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(self.chain.clone(), self.secret())
            .unwrap();
        tls.alpn_protocols = vec![protocol.to_vec()];
        let config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).unwrap()));
        quinn::Endpoint::server(config, loopback()).unwrap()
    }
}

#[derive(Debug)]
struct Whoever;

impl ServerCertVerifier for Whoever {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}
