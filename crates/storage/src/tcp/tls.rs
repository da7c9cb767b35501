//! Connections over TLS 1.3 with keys on both sides.
//!
//! All keys of a file system are signed by one authority, which is made for it alone. A store shows
//! a certificate for [`TLS_NAME`], so its address does not matter. A client must show a certificate
//! too, or the store refuses it.

use super::{ReadEnd, WriteEnd};
use std::io;
use std::sync::Arc;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The name that the certificates of all stores are for.
pub const TLS_NAME: &str = "store.starling";

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

fn authority(pem: &[u8]) -> Result<RootCertStore, KeyError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate?)?;
    }
    Ok(roots)
}

fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, KeyError> {
    Ok(CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?)
}

/// The keys of a store.
#[derive(Clone)]
pub struct ServerKeys(TlsAcceptor);

impl ServerKeys {
    /// Reads the authority's certificate, the store's certificate and the store's key, all PEM.
    pub fn new(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<ServerKeys, KeyError> {
        let provider = Arc::new(ring::default_provider());
        let roots = Arc::new(authority(ca)?);
        let callers = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build()?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(callers)
            .with_single_cert(chain(certificate)?, PrivateKeyDer::from_pem_slice(key)?)?;
        Ok(ServerKeys(TlsAcceptor::from(Arc::new(config))))
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<(ReadEnd, WriteEnd)> {
        let (from, to) = tokio::io::split(self.0.accept(stream).await?);
        Ok((Box::new(from), Box::new(to)))
    }
}

/// The keys of a client.
#[derive(Clone)]
pub struct ClientKeys(TlsConnector);

impl ClientKeys {
    /// Reads the authority's certificate, the client's certificate and the client's key, all PEM.
    pub fn new(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<ClientKeys, KeyError> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(authority(ca)?)
            .with_client_auth_cert(chain(certificate)?, PrivateKeyDer::from_pem_slice(key)?)?;
        Ok(ClientKeys(TlsConnector::from(Arc::new(config))))
    }

    pub(super) async fn connect(&self, stream: TcpStream) -> io::Result<(ReadEnd, WriteEnd)> {
        let name = ServerName::try_from(TLS_NAME).map_err(io::Error::other)?;
        let (from, to) = tokio::io::split(self.0.connect(name, stream).await?);
        Ok((Box::new(from), Box::new(to)))
    }
}
