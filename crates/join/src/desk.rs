//! The first node's side of joining: makes invitations, and answers requests.
//!
//! A request is answered in four steps: the book lets it pass; its key gets a certificate, and the
//! book records that durably; the maps get the member; the answer is sent. After a crash between
//! any two of them, or if the answer is lost, the same key asks again and gets the same
//! certificate, and the maps have the member by the certificate's fingerprint, once.

use crate::authority::{AuthorityError, CertificateUse, fingerprint_of};
use crate::book::InvitationBook;
use crate::message::{Admission, JoinAnswer, JoinRefusal, JoinRequest};
use crate::{Authority, JoinSecret, NODE_NAME_LEN_MAX, is_node_name};
use host::{Clock, Disk};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use types::codec::DecodeError;
use types::{BoxFuture, FsUuid, NodeId, Time};

/// File of the data folder with the invitations, and the one that replaces it.
pub const INVITATIONS: &str = "invitations";
const INVITATIONS_NEW: &str = "invitations.new";
/// Longest file of invitations that is read, in bytes.
const FILE_LEN_MAX: u64 = 16 << 20;
/// How long an invitation is good.
pub const INVITATION_TIME: Duration = Duration::from_secs(3600);
/// The name in certificates of nodes that joined. It differs from the first node's, so that none of
/// them can pose as the first node.
pub const MEMBER_TLS_NAME: &str = "member.starling";
/// Largest number in a name that is made from the name of a machine.
const NAME_NUMBER_MAX: u32 = 999;
/// The name of a node on a machine whose name cannot be a node's.
const UNNAMED: &str = "node";

/// A member to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewMember {
    /// Its name.
    pub name: String,
    /// The SHA-256 of its certificate in DER.
    pub fingerprint: [u8; 32],
    /// Where other nodes reach it, as host:port; may be empty.
    pub address: String,
}

/// Why a member cannot be added.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AddMemberError {
    /// Another member has the name.
    #[error("another member has this name")]
    NameTaken,
    /// There are as many as there can be.
    #[error("there are too many members")]
    Full,
    /// The maps could not be changed, or it is unknown whether they are.
    #[error("{0}")]
    Failed(String),
}

/// The members in the maps.
pub trait MemberBook: Send + Sync + 'static {
    /// Adds a member, durably, and returns its number and its name. If a member has this
    /// fingerprint already, it stays as it is and is returned.
    fn add(&self, member: NewMember) -> BoxFuture<Result<(NodeId, String), AddMemberError>>;
    /// True if a member has this name.
    fn has_name(&self, name: &str) -> bool;
}

/// Why the invitations cannot be used.
#[derive(Debug, Error)]
pub enum InvitationsError {
    /// The disk failed.
    #[error("the list of invitations: {0}")]
    Disk(#[from] io::Error),
    /// The file cannot be read.
    #[error("the list of invitations: {0}; without the file {INVITATIONS}, all invitations are void")]
    Damaged(#[from] DecodeError),
}

/// Why an invitation cannot be made.
#[derive(Debug, Error)]
pub enum InviteError {
    /// The name cannot be used.
    #[error("{0}")]
    Name(JoinRefusal),
    /// There are too many invitations.
    #[error("there are too many invitations that are new: wait until some have expired")]
    TooMany,
    /// The disk failed.
    #[error("write the invitation: {0}")]
    Disk(#[from] io::Error),
}

/// Makes invitations and answers those who join.
pub struct JoinDesk {
    authority: Authority,
    fs: FsUuid,
    members: Arc<dyn MemberBook>,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    /// Held through a whole request, so that requests are answered one after the other.
    book: tokio::sync::Mutex<InvitationBook>,
}

impl JoinDesk {
    /// Reads the invitations from the first node's data folder.
    pub async fn open(
        authority: Authority,
        fs: FsUuid,
        members: Arc<dyn MemberBook>,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
    ) -> Result<JoinDesk, InvitationsError> {
        let book = match disk.open(INVITATIONS, false).await {
            Err(error) if error.kind() == ErrorKind::NotFound => InvitationBook::default(),
            Err(error) => return Err(error.into()),
            Ok(file) => {
                let len = file.len().await?;
                if len > FILE_LEN_MAX {
                    return Err(DecodeError::Invalid("length").into());
                }
                InvitationBook::decode(&file.read_at(0, len as usize).await?)?
            }
        };
        Ok(JoinDesk { authority, fs, members, disk, clock, book: tokio::sync::Mutex::new(book) })
    }

    /// The authority.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Replaces the invitations, durably.
    async fn write(&self, book: &InvitationBook) -> io::Result<()> {
        let file = self.disk.open(INVITATIONS_NEW, true).await?;
        file.set_len(0).await?;
        file.write_at(0, vec![book.encode().into()]).await?;
        file.sync_data().await?;
        self.disk.rename(INVITATIONS_NEW, INVITATIONS).await?;
        self.disk.sync_names().await
    }

    /// Makes an invitation, durably, which is good for [`INVITATION_TIME`]. The caller drew
    /// `secret` at random. `name` is for the node; empty lets it choose.
    pub async fn invite(&self, secret: &JoinSecret, name: &str) -> Result<(), InviteError> {
        if !name.is_empty() && !is_node_name(name) {
            return Err(InviteError::Name(JoinRefusal::BadName(name.to_string())));
        }
        if self.members.has_name(name) {
            return Err(InviteError::Name(JoinRefusal::NameTaken(name.to_string())));
        }
        let mut book = self.book.lock().await;
        let (mut after, now) = (book.clone(), self.clock.wall());
        let until = Time { sec: now.sec.saturating_add(INVITATION_TIME.as_secs() as i64), nsec: now.nsec };
        if !after.add(secret, name, now, until) {
            return Err(InviteError::TooMany);
        }
        self.write(&after).await?;
        *book = after;
        Ok(())
    }

    /// Answers a request to join.
    pub async fn answer(&self, request: &[u8]) -> Vec<u8> {
        let answer = match JoinRequest::decode(request) {
            Ok(request) => self.admit(&request).await,
            Err(DecodeError::Version { known, .. }) => Err(JoinRefusal::Newer(known)),
            Err(_) => Err(JoinRefusal::Unreadable),
        };
        match answer {
            Ok(admission) => {
                tracing::info!("{} ({}) has joined", admission.name, admission.node);
                JoinAnswer::Admitted(admission).encode()
            }
            Err(refusal) => {
                tracing::warn!("a node that wants to join is refused: {refusal}");
                JoinAnswer::Refused(refusal).encode()
            }
        }
    }

    async fn admit(&self, request: &JoinRequest) -> Result<Admission, JoinRefusal> {
        let failed = |error: io::Error| JoinRefusal::Failed(format!("write the invitations: {error}"));
        let mut book = self.book.lock().await;
        let passed = book.pass(request, self.clock.wall())?;
        let certificate = match passed.certificate {
            Some(certificate) => certificate,
            None => {
                // Before the invitation is used, so that a typo does not use it up.
                if self.members.has_name(&passed.name) {
                    return Err(JoinRefusal::NameTaken(passed.name));
                }
                let signed = self.sign(request).map_err(|error| JoinRefusal::Failed(error.to_string()))?;
                let mut after = book.clone();
                after.record_use(request, &signed);
                self.write(&after).await.map_err(failed)?;
                *book = after;
                signed
            }
        };
        let fingerprint = fingerprint_of(&certificate).map_err(|error| JoinRefusal::Failed(error.to_string()))?;
        let refusal = match self.add(&passed.name, &request.host_name, fingerprint, &request.address).await {
            Ok((node, name)) => {
                let authority = self.authority.certificate_pem().to_string();
                return Ok(Admission { fs: self.fs, node, name, certificate, authority });
            }
            Err(refusal) => refusal,
        };
        if refusal.is_final() {
            let mut after = book.clone();
            after.take_back(request);
            self.write(&after).await.map_err(failed)?;
            *book = after;
        }
        Err(refusal)
    }

    fn sign(&self, request: &JoinRequest) -> Result<String, AuthorityError> {
        self.authority.sign(MEMBER_TLS_NAME, CertificateUse::ServeAndConnect, &request.public_key)
    }

    /// Adds the member. Without a name, it gets one like its machine's, with a number if that is
    /// taken.
    async fn add(
        &self,
        name: &str,
        host_name: &str,
        fingerprint: [u8; 32],
        address: &str,
    ) -> Result<(NodeId, String), JoinRefusal> {
        let mut taken = name.to_string();
        for name in candidates(name, host_name) {
            let member = NewMember { name: name.clone(), fingerprint, address: address.to_string() };
            match self.members.add(member).await {
                Ok(added) => return Ok(added),
                Err(AddMemberError::NameTaken) => taken = name,
                Err(AddMemberError::Full) => return Err(JoinRefusal::Full),
                Err(AddMemberError::Failed(why)) => return Err(JoinRefusal::Failed(why)),
            }
        }
        Err(JoinRefusal::NameTaken(taken))
    }
}

/// Names to try: the given one, or what the machine's name makes.
fn candidates(name: &str, host_name: &str) -> impl Iterator<Item = String> {
    let is_chosen = name.is_empty();
    let base = if is_chosen { name_of_machine(host_name) } else { name.to_string() };
    let more = if is_chosen { NAME_NUMBER_MAX } else { 1 };
    (1..=more).map(move |number| match number {
        1 => base.clone(),
        number => format!("{base}-{number}"),
    })
}

/// A node's name from its machine's: the first part of it, with room for a number.
pub fn name_of_machine(host_name: &str) -> String {
    let first = host_name.split('.').next().unwrap_or_default();
    let good = |c: &char| c.is_ascii_alphanumeric() || "_-".contains(*c);
    let kept: String = first.chars().filter(good).take(NODE_NAME_LEN_MAX - 4).collect();
    if is_node_name(&kept) { kept } else { UNNAMED.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeKey;
    use crate::authority::PUBLIC_KEY_LEN;
    use crate::message;
    use parking_lot::Mutex;

    /// Members in memory, which can fail.
    #[derive(Default)]
    struct Members {
        all: Mutex<Vec<NewMember>>,
        fails: Mutex<Option<AddMemberError>>,
    }

    impl MemberBook for Members {
        fn add(&self, member: NewMember) -> BoxFuture<Result<(NodeId, String), AddMemberError>> {
            let mut all = self.all.lock();
            let result = match all.iter().position(|known| known.fingerprint == member.fingerprint) {
                _ if self.fails.lock().is_some() => Err(self.fails.lock().clone().expect("it is there")),
                Some(at) => Ok((NodeId::new(at as u16 + 1), all[at].name.clone())),
                None if all.iter().any(|known| known.name == member.name) => Err(AddMemberError::NameTaken),
                None => {
                    all.push(member.clone());
                    Ok((NodeId::new(all.len() as u16), member.name))
                }
            };
            Box::pin(async move { result })
        }
        fn has_name(&self, name: &str) -> bool {
            self.all.lock().iter().any(|known| known.name == name)
        }
    }

    /// A wall clock that tests set.
    struct Wall(Mutex<i64>);

    impl Clock for Wall {
        fn now(&self) -> Duration {
            Duration::ZERO
        }
        fn wall(&self) -> Time {
            Time { sec: *self.0.lock(), nsec: 0 }
        }
        fn sleep(&self, _: Duration) -> BoxFuture<()> {
            Box::pin(std::future::pending())
        }
    }

    struct Setup {
        members: Arc<Members>,
        clock: Arc<Wall>,
        disk: Arc<dyn Disk>,
        authority: [String; 2],
        _folder: tempfile::TempDir,
    }

    impl Setup {
        fn new() -> Setup {
            let folder = tempfile::tempdir().unwrap();
            let authority = Authority::make().unwrap();
            Setup {
                members: Arc::default(),
                clock: Arc::new(Wall(Mutex::new(1_000_000))),
                disk: host::real::RealDisk::open(folder.path()).unwrap(),
                authority: [authority.certificate_pem().to_string(), authority.secret_pem()],
                _folder: folder,
            }
        }

        /// The desk as after a restart of the first node.
        async fn desk(&self) -> JoinDesk {
            let authority = Authority::from_pem(&self.authority[0], &self.authority[1]).unwrap();
            let (disk, clock) = (self.disk.clone(), self.clock.clone());
            JoinDesk::open(authority, FsUuid([7; 16]), self.members.clone(), disk, clock).await.unwrap()
        }
    }

    fn request(secret: u8, key: &NodeKey, name: &str) -> JoinRequest {
        let public_key: [u8; PUBLIC_KEY_LEN] = key.public().try_into().unwrap();
        let (name, host_name, address) = (name.into(), "box.example.org".into(), "10.0.0.2:7440".into());
        JoinRequest { secret: [secret; 16], name, host_name, public_key, address }
    }

    async fn ask(desk: &JoinDesk, request: &JoinRequest) -> Result<Admission, JoinRefusal> {
        match JoinAnswer::decode(&desk.answer(&request.encode()).await).unwrap() {
            JoinAnswer::Admitted(admission) => Ok(admission),
            JoinAnswer::Refused(refusal) => Err(refusal),
        }
    }

    #[tokio::test]
    async fn whoever_is_invited_is_let_in_once_and_gets_the_same_answer_again() {
        let setup = Setup::new();
        let desk = setup.desk().await;
        desk.invite(&[1; 16], "").await.unwrap();
        let (key, other) = (NodeKey::make().unwrap(), NodeKey::make().unwrap());
        let first = ask(&desk, &request(1, &key, "db")).await.unwrap();
        assert_eq!((first.node, &first.name[..], first.fs), (NodeId::new(1), "db", FsUuid([7; 16])));
        assert_eq!(fingerprint_of(&first.authority).unwrap(), desk.authority().fingerprint());
        let member = setup.members.all.lock()[0].clone();
        let fingerprint = fingerprint_of(&first.certificate).unwrap();
        assert_eq!(member, NewMember { name: "db".into(), fingerprint, address: "10.0.0.2:7440".into() });

        *setup.clock.0.lock() += 100_000;
        for desk in [desk, setup.desk().await] {
            assert_eq!(ask(&desk, &request(1, &key, "db")).await, Ok(first.clone()));
            assert_eq!(ask(&desk, &request(1, &other, "db")).await, Err(JoinRefusal::Used));
            assert_eq!(ask(&desk, &request(2, &other, "db")).await, Err(JoinRefusal::Unknown));
        }
        assert_eq!(setup.members.all.lock().len(), 1);
    }

    #[tokio::test]
    async fn an_invitation_ends_by_the_first_nodes_clock_also_after_a_restart() {
        let setup = Setup::new();
        setup.desk().await.invite(&[1; 16], "").await.unwrap();
        let key = NodeKey::make().unwrap();
        *setup.clock.0.lock() += INVITATION_TIME.as_secs() as i64 + 1;
        assert_eq!(ask(&setup.desk().await, &request(1, &key, "db")).await, Err(JoinRefusal::Expired));
        *setup.clock.0.lock() -= 1;
        ask(&setup.desk().await, &request(1, &key, "db")).await.unwrap();
    }

    #[tokio::test]
    async fn a_join_that_was_cut_short_goes_on_with_the_same_certificate() {
        let setup = Setup::new();
        let desk = setup.desk().await;
        desk.invite(&[1; 16], "").await.unwrap();
        let key = NodeKey::make().unwrap();
        *setup.members.fails.lock() = Some(AddMemberError::Failed("no stores".into()));
        let refused = ask(&desk, &request(1, &key, "db")).await.unwrap_err();
        assert!(!refused.is_final() && refused.to_string().contains("no stores"), "{refused}");
        // It is the key's by now, also if whether the maps have it is unknown.
        let desk = setup.desk().await;
        assert_eq!(ask(&desk, &request(1, &NodeKey::make().unwrap(), "db")).await, Err(JoinRefusal::Used));
        *setup.members.fails.lock() = None;
        let admitted = ask(&desk, &request(1, &key, "db")).await.unwrap();
        assert_eq!(setup.members.all.lock()[0].fingerprint, fingerprint_of(&admitted.certificate).unwrap());
    }

    #[tokio::test]
    async fn a_name_that_is_taken_or_wrong_does_not_use_up_the_invitation() {
        let setup = Setup::new();
        let desk = setup.desk().await;
        for secret in 1..4 {
            desk.invite(&[secret; 16], "").await.unwrap();
        }
        desk.invite(&[4; 16], "web").await.unwrap();
        ask(&desk, &request(1, &NodeKey::make().unwrap(), "db")).await.unwrap();
        let key = NodeKey::make().unwrap();
        assert_eq!(ask(&desk, &request(2, &key, "db")).await, Err(JoinRefusal::NameTaken("db".into())));
        assert_eq!(ask(&desk, &request(2, &key, "d b")).await, Err(JoinRefusal::BadName("d b".into())));
        assert_eq!(ask(&desk, &request(4, &key, "db")).await, Err(JoinRefusal::OtherName("web".into())));
        // The maps refuse it for good: the invitation is as new.
        *setup.members.fails.lock() = Some(AddMemberError::Full);
        assert_eq!(ask(&desk, &request(2, &key, "new")).await, Err(JoinRefusal::Full));
        *setup.members.fails.lock() = None;
        let other = NodeKey::make().unwrap();
        assert_eq!(ask(&desk, &request(2, &other, "new")).await.map(|joined| joined.name), Ok("new".into()));
        assert_eq!(ask(&desk, &request(4, &key, "")).await.map(|joined| joined.name), Ok("web".into()));
        assert!(matches!(desk.invite(&[5; 16], "web").await, Err(InviteError::Name(JoinRefusal::NameTaken(_)))));
        assert!(matches!(desk.invite(&[5; 16], "a/b").await, Err(InviteError::Name(JoinRefusal::BadName(_)))));
    }

    #[tokio::test]
    async fn nodes_without_a_name_are_called_like_their_machines() {
        let setup = Setup::new();
        let desk = setup.desk().await;
        for (secret, name) in [(1, "box"), (2, "box-2"), (3, "box-3")] {
            desk.invite(&[secret; 16], "").await.unwrap();
            let key = NodeKey::make().unwrap();
            let joined = ask(&desk, &request(secret, &key, "")).await.unwrap();
            assert_eq!(joined.name, name);
            assert_eq!(ask(&desk, &request(secret, &key, "")).await, Ok(joined), "asked again");
        }
        assert_eq!(name_of_machine(""), "node");
        assert_eq!(name_of_machine("-"), "node");
        assert_eq!(name_of_machine("a b_c-d.example"), "ab_c-d");
        assert!(is_node_name(&format!("{}-{NAME_NUMBER_MAX}", name_of_machine(&"x".repeat(200)))));
    }

    #[tokio::test]
    async fn requests_of_other_versions_and_rubbish_get_an_answer() {
        let setup = Setup::new();
        let desk = setup.desk().await;
        let mut bytes = request(1, &NodeKey::make().unwrap(), "db").encode();
        let refused = async |bytes: &[u8]| JoinAnswer::decode(&desk.answer(bytes).await).unwrap();
        bytes[0] = 9;
        assert_eq!(refused(&bytes).await, JoinAnswer::Refused(JoinRefusal::Newer(message::VERSION)));
        assert_eq!(refused(b"rubbish").await, JoinAnswer::Refused(JoinRefusal::Newer(message::VERSION)));
        assert_eq!(refused(b"").await, JoinAnswer::Refused(JoinRefusal::Unreadable));
    }

    #[tokio::test]
    async fn a_damaged_list_of_invitations_is_refused_and_left_alone() {
        let setup = Setup::new();
        setup.desk().await.invite(&[1; 16], "").await.unwrap();
        let file = setup.disk.open(INVITATIONS, false).await.unwrap();
        file.write_at(0, vec![vec![1, 0, 0xff, 0xff].into()]).await.unwrap();
        let authority = Authority::from_pem(&setup.authority[0], &setup.authority[1]).unwrap();
        let opened =
            JoinDesk::open(authority, FsUuid([7; 16]), setup.members.clone(), setup.disk.clone(), setup.clock.clone());
        assert!(matches!(opened.await, Err(InvitationsError::Damaged(_))));
    }
}
