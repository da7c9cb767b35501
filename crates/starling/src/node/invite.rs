//! Invitations of nodes: `starling node invite`, and the answer to it in the first node's process.

use crate::args::NodeInvite;
use crate::control::Request;
use crate::location::split_port;
use crate::node::ask_first;
use crate::{addresses, say, usage};
use anyhow::Context;
use join::desk::INVITATION_TIME;
use join::{JoinDesk, NodeInvitation, SECRET_LEN};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

/// Makes invitations in the first node's process.
#[derive(Clone)]
pub struct Inviter {
    /// The invitations.
    pub desk: Arc<JoinDesk>,
    /// Where the node listens.
    pub listen: SocketAddr,
}

impl Inviter {
    /// Makes an invitation for a node called `name`, which may be empty, to these addresses; if
    /// there are none, to those at which the node listens. The answer for the command.
    pub async fn invite(&self, name: &str, to: Vec<String>) -> anyhow::Result<Value> {
        let addresses = if to.is_empty() { addresses::of_listener(self.listen)? } else { to };
        let mut secret = [0; SECRET_LEN];
        for half in secret.chunks_exact_mut(8) {
            half.copy_from_slice(&host::real::random().context("random numbers")?.to_le_bytes());
        }
        self.desk.invite(&secret, name).await.map_err(|e| usage(e.to_string()))?;
        let authority = self.desk.authority().fingerprint();
        let invitation = NodeInvitation { addresses: addresses.clone(), authority, secret };
        Ok(json!({
            "invitation": invitation.to_string(),
            "name": Some(name).filter(|name| !name.is_empty()),
            "addresses": addresses,
            "valid_s": INVITATION_TIME.as_secs(),
        }))
    }
}

/// `starling node invite`.
pub async fn run(args: NodeInvite) -> anyhow::Result<ExitCode> {
    if let Some(wrong) = args.address.iter().find(|address| split_port(address).is_none()) {
        return Err(usage(format!("--address {wrong}: write it as HOST:PORT")));
    }
    let request = Request::InviteNode { name: args.name.unwrap_or_default(), addresses: args.address };
    let answer = ask_first(&args.data, request).await?;
    if args.json {
        say(&serde_json::to_string_pretty(&answer)?);
        return Ok(ExitCode::SUCCESS);
    }
    let addresses = answer["addresses"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let minutes = answer["valid_s"].as_u64().unwrap_or(0) / 60;
    eprintln!("lets one node in, at {}, within {minutes} minutes", addresses.collect::<Vec<_>>().join(", "));
    eprintln!(
        "there: starling node join INVITATION MOUNTPOINT --data DIR, or - for INVITATION, with this line as input:"
    );
    say(answer["invitation"].as_str().context("the answer has no invitation")?);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use join::{AddMemberError, Authority, MemberBook, NewMember};
    use types::{BoxFuture, FsUuid, NodeId};

    /// A file system that nobody has joined.
    struct Nobody;

    impl MemberBook for Nobody {
        fn add(&self, _: NewMember) -> BoxFuture<Result<(NodeId, String), AddMemberError>> {
            Box::pin(async { Err(AddMemberError::Full) })
        }
        fn has_name(&self, _: &str) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn invitations_name_the_listener_or_what_the_user_says() {
        let folder = tempfile::tempdir().unwrap();
        let disk = host::real::RealDisk::open(folder.path()).unwrap();
        let host = host::real::host(tokio::runtime::Handle::current()).unwrap();
        let desk = JoinDesk::open(Authority::make().unwrap(), FsUuid([1; 16]), Arc::new(Nobody), disk, host.clock);
        let inviter = Inviter { desk: Arc::new(desk.await.unwrap()), listen: ([127, 0, 0, 1], 7440).into() };
        let invite = async |name, to: &[&str]| {
            let to = to.iter().map(|address| address.to_string()).collect();
            let answer = inviter.invite(name, to).await.unwrap();
            let invitation: NodeInvitation = answer["invitation"].as_str().unwrap().parse().unwrap();
            (invitation, answer)
        };
        let (first, answer) = invite("", &[]).await;
        assert_eq!(first.addresses, ["127.0.0.1:7440"]);
        assert_eq!((&answer["name"], &answer["valid_s"]), (&Value::Null, &json!(3600)));
        let (second, answer) = invite("db", &["gate.example:1"]).await;
        assert_eq!((&second.addresses[..], &answer["name"]), (&["gate.example:1".to_string()][..], &json!("db")));
        assert_eq!((first.authority, second.authority), (inviter.desk.authority().fingerprint(), first.authority));
        assert_ne!(first.secret, second.secret);
        let refused = inviter.invite("a b", Vec::new()).await.unwrap_err();
        assert!(refused.to_string().contains("cannot be a node's name"), "{refused}");
    }
}
