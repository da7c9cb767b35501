//! The files with the authority, keys and certificates of a node.
//!
//! `ca.pem` and `ca.key` are the authority, `node.pem` and `node.key` the node's certificate and
//! its key. A node that has joined gets `ca.key` with its first session, so that it can succeed the
//! first node. Only the owner can read them.

use crate::location::split_port;
use crate::{private, usage};
use anyhow::Context;
use cluster::KnownNode;
use join::authority::{AuthorityError, CertificateUse};
use join::desk::MEMBER_TLS_NAME;
use join::{Authority, NodeKey};
use link::{Address, ClientKeys};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use storage::tcp::TLS_NAME;

/// The authority's certificate.
pub const CA: &str = "ca.pem";
/// The authority's key.
const CA_KEY: &str = "ca.key";
/// The node's certificate.
pub const CERTIFICATE: &str = "node.pem";
/// The certificate of the first node as a member, if voters elect another one.
const MEMBER_CERTIFICATE: &str = "member.pem";
/// The certificate with which a node that has joined is to become the first one.
const NEXT_CERTIFICATE: &str = "first.pem";
/// The node's key.
pub const KEY: &str = "node.key";

/// The identity of a node, all PEM, as TLS takes it.
pub struct NodeIdentity {
    /// The authority's certificate.
    pub authority: String,
    /// The node's certificate.
    pub certificate: String,
    /// The node's key: a secret.
    pub key: String,
}

impl NodeIdentity {
    /// The keys with which the node connects to others.
    ///
    /// # Errors
    /// Its files are damaged.
    pub fn for_connections(&self) -> anyhow::Result<ClientKeys> {
        let NodeIdentity { authority, certificate, key } = self;
        let keys = ClientKeys::new(authority.as_bytes(), certificate.as_bytes(), key.as_bytes());
        keys.map_err(|e| usage(format!("the keys of this node: {e}: restore them from a copy")))
    }
}

fn damaged(folder: &Path, name: &str) -> impl Fn(AuthorityError) -> anyhow::Error {
    let path = folder.join(name).display().to_string();
    move |e| usage(format!("{path}: {e}: restore it from a copy"))
}

/// Reads a file; `None` if it is not there.
fn read(folder: &Path, name: &str) -> anyhow::Result<Option<String>> {
    let path = folder.join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(usage(format!("{}: {e}", path.display()))),
    }
}

/// Reads a file that only its owner may be able to read; `None` if it is not there.
fn read_secret(folder: &Path, name: &str) -> anyhow::Result<Option<String>> {
    let text = read(folder, name)?;
    let path = folder.join(name);
    if text.is_some() {
        let mode = path.metadata().with_context(|| path.display().to_string())?.permissions().mode();
        if mode & 0o077 != 0 {
            let shown = path.display();
            return Err(usage(format!("others can read the key file {shown}: `chmod 600 {shown}`")));
        }
    }
    Ok(text)
}

/// Writes a file that only its owner can read, durably.
pub fn put(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    private::put(folder, name, text.as_bytes()).with_context(|| format!("write {}", folder.join(name).display()))
}

/// The node's key, made if it is not there. A key outlives a join that is cut short.
pub fn key(folder: &Path) -> anyhow::Result<NodeKey> {
    match read_secret(folder, KEY)? {
        Some(text) => NodeKey::from_pem(&text).map_err(damaged(folder, KEY)),
        None => {
            let key = NodeKey::make()?;
            put(folder, KEY, &key.secret_pem())?;
            Ok(key)
        }
    }
}

/// The file system's authority, made if it is not there, and the identity of the first node.
pub fn of_first_node(folder: &Path) -> anyhow::Result<(Authority, NodeIdentity)> {
    let authority = match (read(folder, CA)?, read_secret(folder, CA_KEY)?) {
        (Some(certificate), Some(secret)) => Authority::from_pem(&certificate, &secret).map_err(damaged(folder, CA))?,
        (Some(_), None) => {
            return Err(usage(format!("{} is missing: restore it from a copy", folder.join(CA_KEY).display())));
        }
        // The certificate is written last: nobody has seen an authority that is cut short.
        (None, _) => {
            let authority = Authority::make()?;
            put(folder, CA_KEY, &authority.secret_pem())?;
            put(folder, CA, authority.certificate_pem())?;
            authority
        }
    };
    let key = key(folder)?;
    let certificate = match read(folder, CERTIFICATE)? {
        Some(certificate) => certificate,
        None => {
            let signed = authority.sign(TLS_NAME, CertificateUse::ServeAndConnect, key.public())?;
            put(folder, CERTIFICATE, &signed)?;
            signed
        }
    };
    let identity =
        NodeIdentity { authority: authority.certificate_pem().to_string(), certificate, key: key.secret_pem() };
    Ok((authority, identity))
}

/// Makes the certificate that the first node is to have as a member, if it is not there. Returns
/// its fingerprint.
pub fn as_member(folder: &Path, authority: &Authority) -> anyhow::Result<[u8; 32]> {
    let certificate = match read(folder, MEMBER_CERTIFICATE)? {
        Some(certificate) => certificate,
        None => {
            let signed = authority.sign(MEMBER_TLS_NAME, CertificateUse::ServeAndConnect, key(folder)?.public())?;
            put(folder, MEMBER_CERTIFICATE, &signed)?;
            signed
        }
    };
    join::fingerprint_of(&certificate).map_err(damaged(folder, MEMBER_CERTIFICATE))
}

/// The fingerprints of the certificates that a former first node may have as a member.
pub fn as_members(folder: &Path) -> anyhow::Result<Vec<[u8; 32]>> {
    let mut found = Vec::new();
    for name in [MEMBER_CERTIFICATE, CERTIFICATE] {
        if let Some(certificate) = read(folder, name)? {
            found.push(join::fingerprint_of(&certificate).map_err(damaged(folder, name))?);
        }
    }
    Ok(found)
}

/// Has a former first node use its certificate of a member.
pub fn become_member(folder: &Path) -> anyhow::Result<()> {
    match std::fs::rename(folder.join(MEMBER_CERTIFICATE), folder.join(CERTIFICATE)) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        renamed => renamed.and_then(|()| private::sync(folder)).context(MEMBER_CERTIFICATE),
    }
}

/// The identity of a member as the first node, in a folder of its own: made if it is not there.
/// `data` is the member's data folder, which has the authority's key.
pub fn of_elected(data: &Path, folder: &Path) -> anyhow::Result<()> {
    private::make(folder)?;
    let (Some(authority), Some(secret)) = (read(data, CA)?, read_secret(data, CA_KEY)?) else {
        return Err(usage(format!("{} has no {CA_KEY}", data.display())));
    };
    // The certificate is written last: an authority without one would be another one.
    put(folder, CA_KEY, &secret)?;
    put(folder, CA, &authority)?;
    of_first_node(folder).map(drop)
}

/// The identity of a node.
pub fn of_joined(folder: &Path) -> anyhow::Result<NodeIdentity> {
    let need = |name: &str, text: Option<String>| {
        text.ok_or_else(|| usage(format!("{} is missing: restore it from a copy", folder.join(name).display())))
    };
    Ok(NodeIdentity {
        authority: need(CA, read(folder, CA)?)?,
        certificate: need(CERTIFICATE, read(folder, CERTIFICATE)?)?,
        key: need(KEY, read_secret(folder, KEY)?)?,
    })
}

/// True if the folder has the authority's key.
///
/// # Errors
/// It is damaged, or not this authority's.
pub fn has_authority(folder: &Path) -> anyhow::Result<bool> {
    match (read(folder, CA)?, read_secret(folder, CA_KEY)?) {
        (Some(certificate), Some(secret)) => {
            Authority::from_pem(&certificate, &secret).map_err(damaged(folder, CA_KEY)).map(|_| true)
        }
        _ => Ok(false),
    }
}

/// Keeps the authority's key, which the first node has sent, in the folder of a joined node.
///
/// # Errors
/// It is not the key of the authority that this node knows, or it cannot be written.
pub fn keep_authority(folder: &Path, identity: &NodeIdentity, secret: &str) -> anyhow::Result<()> {
    Authority::from_pem(&identity.authority, secret).context("the key that the first node has sent")?;
    put(folder, CA_KEY, secret)
}

/// Makes the certificate with which a node that has joined is to become the first one. It is used
/// once [`settle`] is called.
pub fn prepare_first(folder: &Path, identity: &NodeIdentity) -> anyhow::Result<()> {
    let secret = read_secret(folder, CA_KEY)?.context("ca.key")?;
    let authority = Authority::from_pem(&identity.authority, &secret).map_err(damaged(folder, CA_KEY))?;
    let key = NodeKey::from_pem(&identity.key).map_err(damaged(folder, KEY))?;
    put(folder, NEXT_CERTIFICATE, &authority.sign(TLS_NAME, CertificateUse::ServeAndConnect, key.public())?)
}

/// Uses the certificate of a first node that was prepared. The folder is that of no joined node.
pub fn settle(folder: &Path) -> anyhow::Result<()> {
    match std::fs::rename(folder.join(NEXT_CERTIFICATE), folder.join(CERTIFICATE)) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        renamed => renamed.and_then(|()| private::sync(folder)).context(NEXT_CERTIFICATE),
    }
}

/// The fingerprint of the node's certificate; `None` if it has none.
pub fn fingerprint(folder: &Path) -> anyhow::Result<Option<[u8; 32]>> {
    let certificate = read(folder, CERTIFICATE)?;
    certificate.map(|pem| join::fingerprint_of(&pem).map_err(damaged(folder, CERTIFICATE))).transpose()
}

/// The keys with which a node connects to others.
pub fn client_keys(folder: &Path) -> anyhow::Result<ClientKeys> {
    of_joined(folder)?.for_connections()
}

/// Where to connect to a node that has joined: only that node is accepted there.
pub fn address_of(at: &KnownNode, keys: &ClientKeys) -> anyhow::Result<Address> {
    let (host, port) = split_port(&at.address).with_context(|| format!("{} is not HOST:PORT", at.address))?;
    Ok(Address { host: host.to_string(), port, keys: Some(keys.to(MEMBER_TLS_NAME, at.fingerprint)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn said<T>(result: anyhow::Result<T>) -> String {
        let error = result.err().expect("an error");
        assert!(error.is::<crate::Usage>(), "{error:#}");
        error.to_string()
    }

    #[test]
    fn an_authority_is_made_once_and_only_its_owner_can_read_the_keys() {
        let folder = tempfile::tempdir().unwrap();
        let (authority, made) = of_first_node(folder.path()).unwrap();
        let (again, read) = of_first_node(folder.path()).unwrap();
        assert_eq!(authority.fingerprint(), again.fingerprint());
        assert_eq!((&made.certificate, &made.key), (&read.certificate, &read.key));
        for entry in fs::read_dir(folder.path()).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
        }
        let path = folder.path().join(CA_KEY);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(said(of_first_node(folder.path())).contains("chmod 600"));
    }

    #[test]
    fn an_authority_that_was_cut_short_is_made_anew_and_one_without_its_key_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        put(folder.path(), CA_KEY, "half").unwrap();
        of_first_node(folder.path()).unwrap();
        fs::remove_file(folder.path().join(CA_KEY)).unwrap();
        assert!(said(of_first_node(folder.path())).contains("ca.key is missing"));
        let other = tempfile::tempdir().unwrap();
        of_first_node(other.path()).unwrap();
        fs::copy(other.path().join(CA_KEY), folder.path().join(CA_KEY)).unwrap();
        assert!(said(of_first_node(folder.path())).contains("does not belong to the certificate"));
    }

    #[test]
    fn a_certificate_that_is_prepared_is_used_when_it_is_settled() {
        let (first, joined) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (authority, _) = of_first_node(first.path()).unwrap();
        let key = key(joined.path()).unwrap();
        let signed = authority.sign(MEMBER_TLS_NAME, CertificateUse::ServeAndConnect, key.public()).unwrap();
        put(joined.path(), CERTIFICATE, &signed).unwrap();
        put(joined.path(), CA, authority.certificate_pem()).unwrap();
        let identity = of_joined(joined.path()).unwrap();
        assert!(!has_authority(joined.path()).unwrap());
        let foreign = Authority::make().unwrap();
        keep_authority(joined.path(), &identity, &foreign.secret_pem()).unwrap_err();
        keep_authority(joined.path(), &identity, &authority.secret_pem()).unwrap();
        assert!(has_authority(joined.path()).unwrap());
        let before = fingerprint(joined.path()).unwrap();
        settle(joined.path()).unwrap();
        prepare_first(joined.path(), &identity).unwrap();
        assert_eq!(fingerprint(joined.path()).unwrap(), before);
        settle(joined.path()).unwrap();
        let after = fingerprint(joined.path()).unwrap();
        assert!(after.is_some() && after != before);
        of_first_node(joined.path()).unwrap();
        assert_eq!(fingerprint(joined.path()).unwrap(), after);
    }

    #[test]
    fn a_damaged_key_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        put(folder.path(), KEY, "rubbish").unwrap();
        assert!(said(key(folder.path())).contains("node.key"));
        assert_eq!(fs::read_to_string(folder.path().join(KEY)).unwrap(), "rubbish");
        assert!(said(of_joined(folder.path())).contains("ca.pem is missing"));
    }
}
