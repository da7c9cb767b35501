//! TLS 1.3 for both ends. Each proves its key with a certificate that it signed itself.
//!
//! There is no certificate authority. A client knows its home's key from the invitation, and
//! accepts no other. A home lets any client prove a key; the service behind it decides what that
//! client may do. Certificates only carry keys: their names, dates and chains mean nothing.
//!
//! A client that comes back shows a session ticket in place of certificates, which saves both
//! signatures. Both ends keep tickets in memory. The client sends no requests before the handshake
//! is done (0-RTT). They would go to the first address that it tries, before the peer there has
//! proved its key.

use crate::identity::{Identity, key_of};
use roam_proto::channel::PeerKey;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, ServerSessionMemoryCache};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, ServerConfig,
    SignatureScheme,
};
use std::sync::Arc;

/// The protocol, with its version.
const PROTOCOL: &[u8] = b"starling-roam/4";
/// Most tickets that a home keeps: two for each connection that was made.
const TICKET_COUNT_MAX: usize = 4096;
/// Homes that a client keeps tickets for. A dialer dials one home.
const TICKET_HOME_COUNT_MAX: usize = 1;

/// Returns the key in a certificate.
pub(crate) fn key_of_certificate(certificate: &CertificateDer<'_>) -> Result<PeerKey, Error> {
    Ok(key_of(&ParsedCertificate::try_from(certificate)?.subject_public_key_info()))
}

/// Makes a home's configuration.
pub(crate) fn of_home(identity: &Identity) -> Result<ServerConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let anybody = Anybody(provider.signature_verification_algorithms);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(anybody))
        .with_single_cert(vec![identity.certificate()], identity.private_key())?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.session_storage = ServerSessionMemoryCache::new(TICKET_COUNT_MAX);
    Ok(config)
}

/// Makes a client's configuration for a home with the `expected` key.
pub(crate) fn of_client(identity: &Identity, expected: PeerKey) -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let home = Home { expected, algorithms: provider.signature_verification_algorithms };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(home))
        .with_client_auth_cert(vec![identity.certificate()], identity.private_key())?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.resumption = Resumption::in_memory_sessions(TICKET_HOME_COUNT_MAX);
    Ok(config)
}

/// Accepts any client that proves a key.
#[derive(Debug)]
struct Anybody(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for Anybody {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        key_of_certificate(certificate)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// Accepts only the home with the expected key.
#[derive(Debug)]
struct Home {
    expected: PeerKey,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Home {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if key_of_certificate(certificate)? != self.expected {
            // The dialer recognises a wrong key by the alert of this error.
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::HandshakeKind;
    use rustls::quic::{ClientConnection, Connection, ServerConnection, Version};

    fn identity() -> Identity {
        Identity::load_or_make(tempfile::tempdir().unwrap().path(), "key").unwrap()
    }

    /// Hands the messages of each end to the other until both have nothing to send.
    fn talk(client: &mut Connection, home: &mut Connection) -> Result<(), Error> {
        loop {
            let mut said = 0;
            for to_home in [true, false] {
                let (from, to) = if to_home { (&mut *client, &mut *home) } else { (&mut *home, &mut *client) };
                loop {
                    let mut bytes = Vec::new();
                    let keys = from.write_hs(&mut bytes);
                    to.read_hs(&bytes)?;
                    said += bytes.len();
                    if bytes.is_empty() && keys.is_none() {
                        break;
                    }
                }
            }
            if said == 0 {
                return Ok(());
            }
        }
    }

    fn connections(client: &Arc<ClientConfig>, home: &Arc<ServerConfig>) -> (Connection, Connection) {
        let name = ServerName::try_from(crate::identity::NAME).unwrap();
        let client = ClientConnection::new(client.clone(), Version::V1, name, Vec::new()).unwrap();
        let home = ServerConnection::new(home.clone(), Version::V1, Vec::new()).unwrap();
        (Connection::Client(client), Connection::Server(home))
    }

    #[test]
    fn both_ends_learn_the_key_of_the_other_also_when_a_ticket_stands_for_it() {
        let (client, home) = (identity(), identity());
        let client_config = Arc::new(of_client(&client, home.key()).unwrap());
        let home_config = Arc::new(of_home(&home).unwrap());
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed] {
            let (mut at_client, mut at_home) = connections(&client_config, &home_config);
            talk(&mut at_client, &mut at_home).unwrap();
            assert_eq!((at_client.handshake_kind(), at_home.handshake_kind()), (Some(kind), Some(kind)));
            let shown = &at_home.peer_certificates().unwrap()[0];
            assert_eq!(key_of_certificate(shown).unwrap(), client.key());
        }
    }

    #[test]
    fn another_home_is_refused() {
        let client_config = Arc::new(of_client(&identity(), identity().key()).unwrap());
        let (mut at_client, mut at_home) = connections(&client_config, &Arc::new(of_home(&identity()).unwrap()));
        let refused = talk(&mut at_client, &mut at_home).unwrap_err();
        assert_eq!(refused, CertificateError::ApplicationVerificationFailure.into());
    }

    #[test]
    fn a_client_that_shows_the_certificate_of_another_is_refused() {
        let (client, home, other) = (identity(), identity(), identity());
        let mut config = of_client(&client, home.key()).unwrap();
        let signer = ring::default_provider().key_provider.load_private_key(client.private_key()).unwrap();
        let stolen = rustls::sign::CertifiedKey::new(vec![other.certificate()], signer);
        config.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(stolen));
        let (mut at_client, mut at_home) = connections(&Arc::new(config), &Arc::new(of_home(&home).unwrap()));
        let refused = talk(&mut at_client, &mut at_home).unwrap_err();
        assert_eq!(refused, CertificateError::BadSignature.into());
    }

    #[test]
    fn a_client_without_a_key_is_refused() {
        let home = identity();
        let mut config = of_client(&identity(), home.key()).unwrap();
        config.client_auth_cert_resolver = Arc::new(NoKey);
        let (mut at_client, mut at_home) = connections(&Arc::new(config), &Arc::new(of_home(&home).unwrap()));
        assert_eq!(talk(&mut at_client, &mut at_home), Err(Error::NoCertificatesPresented));
    }

    #[derive(Debug)]
    struct NoKey;

    impl rustls::client::ResolvesClientCert for NoKey {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
            None
        }
        fn has_certs(&self) -> bool {
            false
        }
    }
}
