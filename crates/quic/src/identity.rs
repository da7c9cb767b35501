//! A machine's identity: a key in a file that only its owner can read.
//!
//! The file holds only the key. The certificate that TLS wants around it is made anew at each
//! start, since peers look only at the key.

use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ED25519, PublicKeyData};
use ring::{digest, hmac};
use roam_proto::channel::PeerKey;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// The server name that clients ask for, at every home.
pub(crate) const NAME: &str = "home.starling";

/// Longest file that is read as a key, in bytes.
const FILE_LEN_MAX: u64 = 16 << 10;

/// Why an identity cannot be loaded or made.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// The file cannot be read or made.
    #[error("the key file {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Other users may read the file, and could have read it.
    #[error("other users can read the key file {0}: run `chmod 600 {0}`; if another user may have read it, delete it and make new invitations", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// The file contains no valid key.
    #[error("the key file {} is damaged: restore it, or delete it and make new invitations", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The key cannot be made or used.
    #[error("cannot make a key: {0}")]
    Key(#[from] rcgen::Error),
}

/// A key, and the certificate and secrets that are made from it. Cheap to clone.
#[derive(Clone)]
pub struct Identity(Arc<Inner>);

struct Inner {
    key: PeerKey,
    secret: Vec<u8>,
    certificate: CertificateDer<'static>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.0.key).finish()
    }
}

impl Identity {
    /// Loads the identity from the file `name` of `folder`, which must exist. Makes it, durably, if
    /// there is no such file. Blocks on the disk.
    pub fn load_or_make(folder: &Path, name: &str) -> Result<Identity, IdentityError> {
        let path = folder.join(name);
        let failed = |error| IdentityError::File { path: path.clone(), error };
        if let Some(text) = read(&path)? {
            return Identity::of_text(&text, &path);
        }
        let pair = KeyPair::generate_for(&PKCS_ED25519)?;
        match keep(folder, name, pair.serialize_pem().as_bytes()) {
            Ok(()) => Identity::of_pair(&pair).map_err(IdentityError::Key),
            // Another process made the file first. Both must use the same key.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match read(&path)? {
                Some(text) => Identity::of_text(&text, &path),
                None => Err(failed(error)),
            },
            Err(error) => Err(failed(error)),
        }
    }

    fn of_text(text: &str, path: &Path) -> Result<Identity, IdentityError> {
        let pair = KeyPair::from_pem(text).map_err(|_| IdentityError::Damaged { path: path.to_path_buf() })?;
        Ok(Identity::of_pair(&pair)?)
    }

    fn of_pair(pair: &KeyPair) -> Result<Identity, rcgen::Error> {
        let mut params = CertificateParams::new([NAME.to_string()])?;
        params.distinguished_name.push(DnType::CommonName, "starling");
        let certificate = params.self_signed(pair)?.der().clone();
        let key = key_of(&pair.subject_public_key_info());
        Ok(Identity(Arc::new(Inner { key, secret: pair.serialize_der(), certificate })))
    }

    /// Returns the key by which peers know this machine.
    pub fn key(&self) -> PeerKey {
        self.0.key
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.0.certificate.clone()
    }

    pub(crate) fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.0.secret.clone()).into()
    }

    /// Derives a secret for one purpose. It is the same after a restart.
    pub(crate) fn derive(&self, purpose: &str) -> [u8; 32] {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0.secret), purpose.as_bytes());
        let mut derived = [0; 32];
        derived.copy_from_slice(tag.as_ref());
        derived
    }
}

/// Returns the key of a SubjectPublicKeyInfo.
pub(crate) fn key_of(public: &[u8]) -> PeerKey {
    let mut key = [0; 32];
    key.copy_from_slice(digest::digest(&digest::SHA256, public).as_ref());
    PeerKey(key)
}

/// Reads a private file; `None` if there is no file.
fn read(path: &Path) -> Result<Option<String>, IdentityError> {
    let failed = |error| IdentityError::File { path: path.to_path_buf(), error };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if file.metadata().map_err(failed)?.permissions().mode() & 0o077 != 0 {
        return Err(IdentityError::Exposed { path: path.to_path_buf() });
    }
    let mut bytes = Vec::new();
    file.take(FILE_LEN_MAX).read_to_end(&mut bytes).map_err(failed)?;
    let text = String::from_utf8(bytes).map_err(|_| IdentityError::Damaged { path: path.to_path_buf() })?;
    Ok(Some(text))
}

/// Makes a private file, whole or not at all. Fails with `AlreadyExists` if there is one.
fn keep(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let unfinished = folder.join(format!(".{name}.{}", std::process::id()));
    // An earlier process with the same id may have left this file.
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    // Unlike a rename, a link does not replace a file that another process has made meanwhile.
    let made = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::hard_link(&unfinished, folder.join(name)));
    fs::remove_file(&unfinished)?;
    made?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::key_of_certificate;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn an_identity_is_made_once_and_read_ever_after() {
        let folder = tempfile::tempdir().unwrap();
        let made = Identity::load_or_make(folder.path(), "home.key").unwrap();
        let read = Identity::load_or_make(folder.path(), "home.key").unwrap();
        assert_eq!(made.key(), read.key());
        assert_eq!(made.derive("reset"), read.derive("reset"));
        assert_ne!(made.derive("reset"), made.derive("other"));
        assert_eq!(key_of_certificate(&made.certificate()).unwrap(), made.key());
        assert_ne!(Identity::load_or_make(folder.path(), "other.key").unwrap().key(), made.key());
        let names: Vec<_> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }

    #[test]
    fn only_the_owner_can_read_a_key_and_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("home.key");
        Identity::load_or_make(folder.path(), "home.key").unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        for exposed in [0o640, 0o604, 0o666] {
            mode(&path, exposed);
            let error = Identity::load_or_make(folder.path(), "home.key").unwrap_err();
            assert!(matches!(error, IdentityError::Exposed { .. }) && error.to_string().contains("chmod 600"));
        }
        mode(&path, 0o400);
        Identity::load_or_make(folder.path(), "home.key").unwrap();
    }

    #[test]
    fn what_is_no_key_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("home.key");
        for text in ["", "rubbish", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            fs::write(&path, text).unwrap();
            mode(&path, 0o600);
            let error = Identity::load_or_make(folder.path(), "home.key").unwrap_err();
            assert!(matches!(error, IdentityError::Damaged { .. }), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let missing = folder.path().join("none");
        assert!(matches!(Identity::load_or_make(&missing, "home.key"), Err(IdentityError::File { .. })));
    }

    #[test]
    fn those_who_make_it_at_once_get_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let unfinished = folder.path().join(format!(".home.key.{}", std::process::id()));
        fs::write(unfinished, "half").unwrap();
        let first = Identity::load_or_make(folder.path(), "home.key").unwrap();
        let refused = keep(folder.path(), "home.key", b"another").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(Identity::load_or_make(folder.path(), "home.key").unwrap().key(), first.key());
    }
}
