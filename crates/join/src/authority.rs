//! The authority of a file system, and the keys and certificates of its nodes.
//!
//! All keys are for ECDSA on P-256. Certificates have no end: no clock decides who is a member. The
//! maps decide, by the certificate's fingerprint. A certificate names its role and not its node,
//! and the first node's name is its own: no other node can pose as the first one.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use thiserror::Error;

/// Length of a public key: an uncompressed point of P-256.
pub const PUBLIC_KEY_LEN: usize = 65;
/// First byte of an uncompressed point.
const UNCOMPRESSED: u8 = 4;

/// Why keys cannot be made or read.
#[derive(Debug, Error)]
pub enum AuthorityError {
    /// The library of certificates refuses it.
    #[error("{0}")]
    Certificate(#[from] rcgen::Error),
    /// The text has no certificate in PEM.
    #[error("there is no certificate in it")]
    NoCertificate,
    /// The key is of another kind.
    #[error("the key is not for ECDSA on P-256")]
    OtherKey,
    /// The key does not belong to the certificate.
    #[error("the key does not belong to the certificate")]
    Mismatch,
}

/// What a certificate lets its holder do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CertificateUse {
    /// Be connected to.
    Serve,
    /// Connect.
    Connect,
    /// Both.
    ServeAndConnect,
}

impl CertificateUse {
    fn purposes(self) -> Vec<ExtendedKeyUsagePurpose> {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        match self {
            CertificateUse::Serve => vec![ServerAuth],
            CertificateUse::Connect => vec![ClientAuth],
            CertificateUse::ServeAndConnect => vec![ServerAuth, ClientAuth],
        }
    }
}

/// The key of a node. Only its public half leaves the node.
pub struct NodeKey(KeyPair);

impl NodeKey {
    /// Makes a key.
    pub fn make() -> Result<NodeKey, AuthorityError> {
        Ok(NodeKey(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?))
    }

    /// Reads a key from PEM.
    pub fn from_pem(pem: &str) -> Result<NodeKey, AuthorityError> {
        let pair = KeyPair::from_pem(pem)?;
        match pair.is_compatible(&PKCS_ECDSA_P256_SHA256) {
            true => Ok(NodeKey(pair)),
            false => Err(AuthorityError::OtherKey),
        }
    }

    /// The private key in PEM: a secret.
    pub fn secret_pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// The public key: an uncompressed point, [`PUBLIC_KEY_LEN`] bytes.
    pub fn public(&self) -> &[u8] {
        self.0.der_bytes()
    }
}

/// A public key that came from another node.
struct PublicKey<'a>(&'a [u8]);

impl PublicKeyData for PublicKey<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }
    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// True if the bytes have the form of a public key.
pub fn is_public_key(bytes: &[u8]) -> bool {
    bytes.len() == PUBLIC_KEY_LEN && bytes[0] == UNCOMPRESSED
}

/// The authority of a file system: signs the certificates of its nodes.
pub struct Authority {
    key: NodeKey,
    certificate_pem: String,
    fingerprint: [u8; 32],
}

impl Authority {
    fn params() -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "starling");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params
    }

    /// Makes an authority with a new key.
    pub fn make() -> Result<Authority, AuthorityError> {
        let key = NodeKey::make()?;
        let certificate = Authority::params().self_signed(&key.0)?;
        Authority::from_pem(&certificate.pem(), &key.secret_pem())
    }

    /// Reads an authority from its certificate and its key, both PEM.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Authority, AuthorityError> {
        let key = NodeKey::from_pem(key)?;
        let der = certificate_of(certificate)?;
        // A certificate contains its public key as it is.
        if !der.windows(PUBLIC_KEY_LEN).any(|part| part == key.public()) {
            return Err(AuthorityError::Mismatch);
        }
        Ok(Authority { key, certificate_pem: certificate.to_string(), fingerprint: crate::sha256(&der) })
    }

    /// The certificate in PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The private key in PEM: a secret.
    pub fn secret_pem(&self) -> String {
        self.key.secret_pem()
    }

    /// The SHA-256 of the certificate in DER, by which invitations name the authority.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Signs a certificate, in PEM, for a public key. `name` is the name that TLS clients ask for.
    pub fn sign(&self, name: &str, may: CertificateUse, public_key: &[u8]) -> Result<String, AuthorityError> {
        if !is_public_key(public_key) {
            return Err(AuthorityError::OtherKey);
        }
        let mut params = CertificateParams::new([name.to_string()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = may.purposes();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let issuer = Issuer::new(Authority::params(), &self.key.0);
        Ok(params.signed_by(&PublicKey(public_key), &issuer)?.pem())
    }
}

/// The first certificate of a text in PEM, in DER.
pub fn certificate_of(pem: &str) -> Result<CertificateDer<'static>, AuthorityError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| AuthorityError::NoCertificate)
}

/// The SHA-256 of the first certificate of a text in PEM.
pub fn fingerprint_of(pem: &str) -> Result<[u8; 32], AuthorityError> {
    Ok(crate::sha256(&certificate_of(pem)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::crypto::ring::default_provider;
    use rustls::pki_types::{ServerName, UnixTime};
    use rustls::{CertificateError, RootCertStore};
    use std::sync::Arc;

    /// Checks a server's certificate as TLS clients do.
    fn check(authority: &Authority, certificate: &str, name: &'static str) -> Result<(), rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate_of(authority.certificate_pem()).unwrap()).unwrap();
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider())).build().unwrap();
        let (name, now) = (ServerName::try_from(name).unwrap(), UnixTime::now());
        verifier.verify_server_cert(&certificate_of(certificate).unwrap(), &[], &name, &[], now).map(drop)
    }

    #[test]
    fn an_authority_that_was_read_signs_as_the_one_that_was_made() {
        let made = Authority::make().unwrap();
        let read = Authority::from_pem(made.certificate_pem(), &made.secret_pem()).unwrap();
        assert_eq!(made.fingerprint(), read.fingerprint());
        let key = NodeKey::make().unwrap();
        let key = NodeKey::from_pem(&key.secret_pem()).unwrap();
        for signer in [&made, &read] {
            let signed = signer.sign("one.starling", CertificateUse::ServeAndConnect, key.public()).unwrap();
            check(&made, &signed, "one.starling").unwrap();
            assert_ne!(fingerprint_of(&signed).unwrap(), made.fingerprint());
            let error = check(&made, &signed, "two.starling").unwrap_err();
            assert!(
                matches!(error, rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })),
                "{error}"
            );
        }
    }

    #[test]
    fn certificates_of_another_authority_or_for_another_use_are_refused() {
        let (ours, theirs) = (Authority::make().unwrap(), Authority::make().unwrap());
        assert_ne!(ours.fingerprint(), theirs.fingerprint());
        let key = NodeKey::make().unwrap();
        let signed = theirs.sign("one.starling", CertificateUse::Serve, key.public()).unwrap();
        check(&theirs, &signed, "one.starling").unwrap();
        let error = check(&ours, &signed, "one.starling").unwrap_err();
        assert!(matches!(error, rustls::Error::InvalidCertificate(_)), "{error}");
        let connects = ours.sign("one.starling", CertificateUse::Connect, key.public()).unwrap();
        let error = check(&ours, &connects, "one.starling").unwrap_err();
        assert!(matches!(error, rustls::Error::InvalidCertificate(_)), "{error}");
    }

    #[test]
    fn what_is_no_key_or_certificate_is_refused() {
        let (one, two) = (Authority::make().unwrap(), Authority::make().unwrap());
        let mixed = Authority::from_pem(one.certificate_pem(), &two.secret_pem());
        assert!(matches!(mixed, Err(AuthorityError::Mismatch)));
        let swapped = Authority::from_pem(&one.secret_pem(), &one.secret_pem());
        assert!(matches!(swapped, Err(AuthorityError::NoCertificate)));
        assert!(matches!(NodeKey::from_pem("rubbish"), Err(AuthorityError::Certificate(_))));
        let other = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        assert!(matches!(NodeKey::from_pem(&other.serialize_pem()), Err(AuthorityError::OtherKey)));
        for wrong in [&[][..], &[UNCOMPRESSED; 64], &[2; PUBLIC_KEY_LEN]] {
            assert!(matches!(one.sign("a", CertificateUse::Serve, wrong), Err(AuthorityError::OtherKey)));
        }
    }
}
