//! Connections over TLS 1.3 with keys on both sides.
//!
//! All keys of a file system are signed by one authority, which is made for it alone. A server
//! shows a certificate for [`TLS_NAME`], or for another name that the client asks for, so its
//! address does not matter. A client must show a certificate too, or the server refuses it. The
//! exception are services for strangers: a machine that is about to join has no certificate yet,
//! and knows the server by the fingerprint of the authority ([`ClientKeys::joining`]).

use crate::stream::{ReadEnd, WriteEnd};
use ring::digest::{SHA256, digest};
use std::io;
use std::sync::Arc;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring as provider, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The name that the certificates of all servers are for.
pub const TLS_NAME: &str = "store.starling";

/// The SHA-256 of a certificate in DER.
pub type Fingerprint = [u8; 32];

/// The fingerprint of a certificate in DER.
pub fn fingerprint(certificate: &[u8]) -> Fingerprint {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, certificate).as_ref());
    out
}

/// Why keys cannot be used.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The file is not PEM, or has no key or certificate of the right kind.
    #[error("cannot be read: {0}")]
    Pem(#[from] pem::Error),
    /// The TLS library refuses the keys.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    /// The authority's certificates cannot be used to check clients.
    #[error("the authority: {0}")]
    Authority(#[from] VerifierBuilderError),
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, KeyError> {
    Ok(CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?)
}

fn roots(authority: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>, KeyError> {
    let mut roots = RootCertStore::empty();
    for certificate in authority {
        roots.add(certificate.clone())?;
    }
    Ok(Arc::new(roots))
}

/// The keys of a node, for both directions. The certificate must be for servers and for clients.
#[derive(Clone)]
pub struct NodeKeys {
    /// For its listener.
    pub server: ServerKeys,
    /// For its connections to other nodes.
    pub client: ClientKeys,
}

impl NodeKeys {
    /// Reads the authority's certificate, the node's certificate and the node's key, all PEM.
    pub fn new(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<NodeKeys, KeyError> {
        let (server, client) = (ServerKeys::new(ca, certificate, key)?, ClientKeys::new(ca, certificate, key)?);
        Ok(NodeKeys { server, client })
    }
}

/// The keys of a server.
#[derive(Clone)]
pub struct ServerKeys {
    /// Accepts clients with a certificate only.
    for_members: TlsAcceptor,
    /// Accepts clients without a certificate too.
    for_all: TlsAcceptor,
}

impl ServerKeys {
    /// Reads the authority's certificate, the server's certificate and the server's key, all PEM.
    pub fn new(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<ServerKeys, KeyError> {
        let (authority, mut chain) = (certificates(ca)?, certificates(certificate)?);
        let (roots, key) = (roots(&authority)?, PrivateKeyDer::from_pem_slice(key)?);
        // The authority comes along, for those that know only its fingerprint.
        chain.extend(authority);
        let provider = Arc::new(provider::default_provider());
        let acceptor = |for_all: bool| {
            let callers = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
            let callers = if for_all { callers.allow_unauthenticated() } else { callers }.build()?;
            let config = ServerConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(&[&TLS13])?
                .with_client_cert_verifier(callers)
                .with_single_cert(chain.clone(), key.clone_key())?;
            Ok::<_, KeyError>(TlsAcceptor::from(Arc::new(config)))
        };
        Ok(ServerKeys { for_members: acceptor(false)?, for_all: acceptor(true)? })
    }

    /// Accepts a client. Its fingerprint is `None` if it has shown no certificate, which only
    /// `allows_strangers` permits.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        allows_strangers: bool,
    ) -> io::Result<(ReadEnd, WriteEnd, Option<Fingerprint>)> {
        let acceptor = if allows_strangers { &self.for_all } else { &self.for_members };
        let stream = acceptor.accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let shown = shown.map(|certificate| fingerprint(certificate));
        let (from, to) = tokio::io::split(stream);
        Ok((Box::new(from), Box::new(to), shown))
    }
}

/// The keys of a client.
#[derive(Clone)]
pub struct ClientKeys {
    connector: TlsConnector,
    /// The name that the server's certificate must be for.
    name: &'static str,
    /// The certificate's fingerprint, if only one server will do.
    known: Option<Fingerprint>,
}

impl ClientKeys {
    /// Reads the authority's certificate, the client's certificate and the client's key, all PEM.
    pub fn new(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<ClientKeys, KeyError> {
        let config = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots(&certificates(ca)?)?)
            .with_client_auth_cert(certificates(certificate)?, PrivateKeyDer::from_pem_slice(key)?)?;
        Ok(ClientKeys { connector: TlsConnector::from(Arc::new(config)), name: TLS_NAME, known: None })
    }

    /// The same keys, for one server: its certificate is for `name`, and has this fingerprint.
    pub fn to(&self, name: &'static str, known: Fingerprint) -> ClientKeys {
        ClientKeys { name, known: Some(known), ..self.clone() }
    }

    /// For a machine that has no certificate yet, and knows the authority's by its fingerprint. The
    /// server must show a certificate that this authority has signed, and the authority's own.
    pub fn joining(authority: Fingerprint) -> Result<ClientKeys, KeyError> {
        let provider = Arc::new(provider::default_provider());
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(KnownAuthority { authority, provider }))
            .with_no_client_auth();
        Ok(ClientKeys { connector: TlsConnector::from(Arc::new(config)), name: TLS_NAME, known: None })
    }

    pub(crate) async fn connect(&self, stream: TcpStream) -> io::Result<(ReadEnd, WriteEnd)> {
        let name = ServerName::try_from(self.name).map_err(io::Error::other)?;
        let stream = self.connector.connect(name, stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let shown = shown.map(|certificate| fingerprint(certificate));
        if self.known.is_some() && self.known != shown {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another node has this address"));
        }
        let (from, to) = tokio::io::split(stream);
        Ok((Box::new(from), Box::new(to)))
    }
}

/// Picks the authority out of what a server shows, by its fingerprint. The verifier of the TLS
/// library then checks the server's certificate with this authority as the only root.
#[derive(Debug)]
struct KnownAuthority {
    authority: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for KnownAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let root = intermediates.iter().find(|shown| fingerprint(shown) == self.authority);
        let root = root.ok_or(CertificateError::UnknownIssuer)?;
        let mut roots = RootCertStore::empty();
        roots.add(root.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone()).build();
        let verifier = verifier.map_err(|error| rustls::Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
