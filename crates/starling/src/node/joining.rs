//! The exchange by which a node joins: its side.

use crate::node::identity;
use crate::node::joined::{AboutNode, NodeFolder};
use crate::usage;
use anyhow::{Context, anyhow};
use join::authority::{AuthorityError, certificate_of, fingerprint_of};
use join::{Admission, JoinAnswer, JoinRequest, NodeInvitation, NodeKey};
use types::BoxFuture;

/// Why the first node could not be asked.
#[derive(Debug)]
pub enum DialError {
    /// Nothing was sent: the node cannot be reached, or is not the one that invited.
    NotSent(String),
    /// The request may have been served, and there is no answer.
    Unknown(String),
}

/// Carries a request to join to a first node.
pub trait JoinDialer: Send + Sync {
    /// Sends a request to a node at `address` (host:port), whose certificate the authority with
    /// this fingerprint must have signed, and returns its answer.
    fn ask(&self, address: &str, authority: [u8; 32], request: Vec<u8>) -> BoxFuture<Result<Vec<u8>, DialError>>;
}

/// What the user said about a node that joins.
pub struct Wanted<'a> {
    /// The invitation; `None` to go on with a join that has begun.
    pub invitation: Option<&'a NodeInvitation>,
    /// The name; empty if the user gave none.
    pub name: &'a str,
    /// The machine's name.
    pub host_name: &'a str,
}

/// Joins, unless the node has joined already, and returns the folder with what the node is. What a
/// join has put into the folder stays only if the first node may know of it.
pub async fn join(
    folder: NodeFolder,
    wanted: Wanted<'_>,
    dialer: &dyn JoinDialer,
) -> anyhow::Result<(NodeFolder, AboutNode)> {
    if let Some(about) = folder.about()? {
        check_same(&folder, &about, wanted.invitation)?;
        return Ok((folder, about));
    }
    let pending = folder.pending()?;
    let had_begun = pending.is_some();
    let (invitation, name) = match (wanted.invitation, pending) {
        (Some(invitation), _) => (invitation.clone(), wanted.name.to_string()),
        (None, Some(pending)) => pending,
        (None, None) => {
            let said = usage(format!("{} belongs to no node: give an invitation", folder.path().display()));
            folder.forget();
            return Err(said);
        }
    };
    let key = identity::key(folder.path())?;
    folder.begin(&invitation, &name)?;
    let public_key = key.public().try_into().context("public key")?;
    let host_name = wanted.host_name.to_string();
    let request = JoinRequest { secret: invitation.secret, name, host_name, public_key, address: String::new() };
    let failure = match ask(&invitation, &request, dialer).await {
        Ok((JoinAnswer::Admitted(admission), addresses)) => {
            check(&admission, &invitation, &key)?;
            let about = folder.joined(&admission, addresses)?;
            return Ok((folder, about));
        }
        Ok((JoinAnswer::Refused(refusal), _)) if refusal.is_final() => DialError::NotSent(refusal.to_string()),
        Ok((JoinAnswer::Refused(refusal), _)) => DialError::Unknown(refusal.to_string()),
        Err(failure) => failure,
    };
    match failure {
        DialError::NotSent(why) => {
            if !had_begun {
                folder.forget();
            }
            Err(usage(why))
        }
        DialError::Unknown(why) => Err(anyhow!(
            "{why}; whether this node is a member is unknown: give the same command again, {} has the invitation",
            folder.path().display()
        )),
    }
}

/// Refuses an invitation to another file system than the node's.
fn check_same(folder: &NodeFolder, about: &AboutNode, invitation: Option<&NodeInvitation>) -> anyhow::Result<()> {
    let Some(invitation) = invitation else { return Ok(()) };
    let ours = fingerprint_of(&identity::of_joined(folder.path())?.authority);
    match ours.is_ok_and(|ours| ours == invitation.authority) {
        true => Ok(()),
        false => Err(usage(format!(
            "{} belongs to node {} of another file system ({}): give another --data",
            folder.path().display(),
            about.name,
            about.file_system
        ))),
    }
}

/// Asks at one address after the other. Returns the answer, and the addresses with the one that
/// answered first.
async fn ask(
    invitation: &NodeInvitation,
    request: &JoinRequest,
    dialer: &dyn JoinDialer,
) -> Result<(JoinAnswer, Vec<String>), DialError> {
    let (mut failures, mut is_unknown) = (Vec::new(), false);
    for (at, address) in invitation.addresses.iter().enumerate() {
        let asked = dialer.ask(address, invitation.authority, request.encode()).await;
        match asked.map(|answer| JoinAnswer::decode(&answer)) {
            Ok(Ok(answer)) => {
                let mut addresses = invitation.addresses.clone();
                addresses[..=at].rotate_right(1);
                return Ok((answer, addresses));
            }
            Ok(Err(error)) => {
                is_unknown = true;
                failures.push(format!("{address}: {error}"));
            }
            Err(DialError::NotSent(why)) => failures.push(format!("{address}: {why}")),
            Err(DialError::Unknown(why)) => {
                is_unknown = true;
                failures.push(format!("{address}: {why}"));
            }
        }
    }
    let why = format!("the first node does not answer: {}", failures.join("; "));
    Err(if is_unknown { DialError::Unknown(why) } else { DialError::NotSent(why) })
}

/// Checks that what the first node gave is for this node, by the authority that invited it.
fn check(admission: &Admission, invitation: &NodeInvitation, key: &NodeKey) -> anyhow::Result<()> {
    let of_us = |pem: &str| -> Result<bool, AuthorityError> {
        let (der, key) = (certificate_of(pem)?, key.public());
        Ok(der.windows(key.len()).any(|part| part == key))
    };
    if fingerprint_of(&admission.authority)? != invitation.authority || !of_us(&admission.certificate)? {
        return Err(anyhow!("the first node's answer is not for this node: ask for another invitation"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::joined::is_node_folder;
    use join::{AddMemberError, Authority, JoinDesk, MemberBook, NewMember};
    use std::path::PathBuf;
    use std::sync::{Arc, Mutex};
    use types::{FsUuid, NodeId};

    /// Members in memory.
    #[derive(Default)]
    struct Members(Mutex<Vec<NewMember>>);

    impl MemberBook for Members {
        fn add(&self, member: NewMember) -> BoxFuture<Result<(NodeId, String), AddMemberError>> {
            let mut all = self.0.lock().unwrap();
            let at = all.iter().position(|known| known.fingerprint == member.fingerprint).unwrap_or_else(|| {
                all.push(member.clone());
                all.len() - 1
            });
            let added = (NodeId::new(at as u16 + 1), all[at].name.clone());
            Box::pin(async move { Ok(added) })
        }
        fn has_name(&self, name: &str) -> bool {
            self.0.lock().unwrap().iter().any(|known| known.name == name)
        }
    }

    /// What happens to a request on its way.
    #[derive(Clone, Copy, PartialEq)]
    enum Way {
        Good,
        Down,
        AnswerLost,
        AnswerDamaged,
    }

    /// A first node without a network, which is at one address only.
    struct First {
        desk: Arc<JoinDesk>,
        members: Arc<Members>,
        way: Mutex<Way>,
        below: tempfile::TempDir,
    }

    const ADDRESS: &str = "10.0.0.1:7440";

    impl First {
        async fn new() -> First {
            let below = tempfile::tempdir().unwrap();
            let host = host::real::host(tokio::runtime::Handle::current()).unwrap();
            let disk = host::real::RealDisk::open(below.path()).unwrap();
            let members = Arc::new(Members::default());
            let authority = Authority::make().unwrap();
            let desk = JoinDesk::open(authority, FsUuid([7; 16]), members.clone(), disk, host.clock).await.unwrap();
            First { desk: Arc::new(desk), members, way: Mutex::new(Way::Good), below }
        }

        async fn invite(&self, number: u8) -> NodeInvitation {
            let secret = [number; 16];
            self.desk.invite(&secret, "").await.unwrap();
            let addresses = vec!["10.9.9.9:1".to_string(), ADDRESS.to_string()];
            NodeInvitation { addresses, authority: self.desk.authority().fingerprint(), secret }
        }

        fn data(&self) -> PathBuf {
            self.below.path().join("data")
        }

        /// Joins, in a folder of its own.
        async fn join(&self, invitation: Option<&NodeInvitation>, name: &str) -> anyhow::Result<AboutNode> {
            let wanted = Wanted { invitation, name, host_name: "box" };
            join(NodeFolder::open(&self.data()).unwrap(), wanted, self).await.map(|(_, about)| about)
        }
    }

    impl JoinDialer for First {
        fn ask(&self, address: &str, authority: [u8; 32], request: Vec<u8>) -> BoxFuture<Result<Vec<u8>, DialError>> {
            let (desk, way, is_here) = (self.desk.clone(), *self.way.lock().unwrap(), address == ADDRESS);
            Box::pin(async move {
                if way == Way::Down || !is_here {
                    return Err(DialError::NotSent("Connection refused".into()));
                }
                if authority != desk.authority().fingerprint() {
                    return Err(DialError::NotSent("another authority".into()));
                }
                let mut answer = desk.answer(&request).await;
                match way {
                    Way::AnswerLost => return Err(DialError::Unknown("connection lost".into())),
                    Way::AnswerDamaged => answer.truncate(3),
                    _ => {}
                }
                Ok(answer)
            })
        }
    }

    #[tokio::test]
    async fn a_node_joins_and_knows_it_ever_after() {
        let first = First::new().await;
        let invitation = first.invite(1).await;
        let about = first.join(Some(&invitation), "").await.unwrap();
        assert_eq!((about.node(), &about.name[..]), (NodeId::new(1), "box"));
        assert_eq!(about.first_node, [ADDRESS, "10.9.9.9:1"], "the one that answered is first");
        let identity = identity::of_joined(&first.data()).unwrap();
        let fingerprint = fingerprint_of(&identity.certificate).unwrap();
        assert_eq!(first.members.0.lock().unwrap()[0].fingerprint, fingerprint);
        // From here on the first node need not be there.
        *first.way.lock().unwrap() = Way::Down;
        for invitation in [None, Some(&invitation)] {
            assert_eq!(first.join(invitation, "").await.unwrap(), about);
        }
        let foreign = NodeInvitation { authority: [9; 32], ..invitation };
        let error = first.join(Some(&foreign), "").await.unwrap_err();
        assert!(error.to_string().contains("node box of another file system"), "{error}");
    }

    #[tokio::test]
    async fn a_join_whose_answer_is_lost_goes_on_with_the_same_key() {
        let first = First::new().await;
        let invitation = first.invite(1).await;
        for way in [Way::AnswerLost, Way::AnswerDamaged] {
            *first.way.lock().unwrap() = way;
            let error = first.join(Some(&invitation), "db").await.unwrap_err();
            assert!(error.to_string().contains("is unknown") && !error.is::<crate::Usage>(), "{error}");
            assert!(is_node_folder(&first.data()));
        }
        *first.way.lock().unwrap() = Way::Down;
        first.join(None, "").await.unwrap_err();
        assert!(is_node_folder(&first.data()), "the first node knows the key");
        *first.way.lock().unwrap() = Way::Good;
        let about = first.join(None, "").await.unwrap();
        assert_eq!((&about.name[..], first.members.0.lock().unwrap().len()), ("db", 1));
    }

    #[tokio::test]
    async fn what_the_first_node_refuses_leaves_nothing_behind() {
        let first = First::new().await;
        let invitation = first.invite(1).await;
        *first.way.lock().unwrap() = Way::Down;
        let error = first.join(Some(&invitation), "").await.unwrap_err();
        assert!(error.to_string().contains("10.9.9.9:1: Connection refused") && error.is::<crate::Usage>(), "{error}");
        assert!(!first.data().exists());
        *first.way.lock().unwrap() = Way::Good;
        let foreign = NodeInvitation { authority: [9; 32], ..invitation.clone() };
        let unknown = NodeInvitation { secret: [8; 16], ..invitation.clone() };
        for (invitation, word) in [(foreign, "another authority"), (unknown, "does not know this invitation")] {
            let error = first.join(Some(&invitation), "").await.unwrap_err();
            assert!(error.to_string().contains(word) && error.is::<crate::Usage>(), "{error}");
            assert!(!first.data().exists());
        }
        let error = first.join(None, "").await.unwrap_err();
        assert!(error.to_string().contains("belongs to no node"), "{error}");
    }

    #[tokio::test]
    async fn an_answer_for_another_key_is_refused() {
        let first = First::new().await;
        let invitation = first.invite(1).await;
        let key = NodeKey::make().unwrap();
        let other = NodeKey::make().unwrap();
        let signed =
            |key: &NodeKey| first.desk.authority().sign("a", join::authority::CertificateUse::Serve, key.public());
        let admission = |certificate: String, authority: &str| Admission {
            fs: FsUuid([7; 16]),
            node: NodeId::new(1),
            name: "db".into(),
            certificate,
            authority: authority.to_string(),
        };
        let ours = first.desk.authority().certificate_pem();
        check(&admission(signed(&key).unwrap(), ours), &invitation, &key).unwrap();
        check(&admission(signed(&other).unwrap(), ours), &invitation, &key).unwrap_err();
        let foreign = Authority::make().unwrap();
        check(&admission(signed(&key).unwrap(), foreign.certificate_pem()), &invitation, &key).unwrap_err();
    }
}
