//! Commands that change which nodes there are. Any node takes them: the one that leads carries them
//! out, and the others pass them on to it.

use crate::control::Request;
use crate::node::invite::Inviter;
use crate::node::remote::RemoteFirstNode;
use crate::node::removal;
use cluster::removal::Removal;
use cluster::spread::Spread;
use serde_json::Value;
use std::sync::Arc;

/// What the node that leads needs for such commands.
#[derive(Clone)]
pub struct Orders {
    /// Makes invitations.
    pub inviter: Inviter,
    /// Moves and removes stores.
    pub spread: Arc<Spread>,
}

/// True of the commands that are meant here.
pub fn is_order(request: &Request) -> bool {
    matches!(request, Request::InviteNode { .. } | Request::DrainNode { .. } | Request::RemoveNode { .. })
}

impl Orders {
    /// Carries a command out. The answer for the command.
    pub async fn carry_out(&self, request: Request) -> Result<Value, String> {
        match request {
            Request::InviteNode { name, addresses } => {
                self.inviter.invite(&name, addresses).await.map_err(|e| format!("{e:#}"))
            }
            Request::DrainNode { name, rate, accepts_risk } => {
                removal::drain(&self.spread, &name, rate, accepts_risk).await.map_err(|e| e.to_string())
            }
            Request::RemoveNode { name, is_dead, accepts_loss } => {
                let how = Removal { is_dead, accepts_loss };
                removal::remove(&self.spread, &name, how).await.map_err(|e| e.to_string())
            }
            _ => Err("the node that leads takes no such command from another one".into()),
        }
    }

    /// Carries out what another node has passed on.
    pub async fn carry_out_for_other(&self, order: &str) -> Result<String, String> {
        self.carry_out(read(order)?).await.map(|answer| answer.to_string())
    }
}

/// What another node has passed on.
fn read(order: &str) -> Result<Request, String> {
    let request = serde_json::from_str(order);
    request.map_err(|e| format!("the two nodes differ in their commands: {e}"))
}

/// Has the node that leads carry a command out. The answer for the command.
pub async fn pass_on(first: &RemoteFirstNode, request: &Request) -> Result<Value, String> {
    let order = serde_json::to_string(request).map_err(|e| e.to_string())?;
    serde_json::from_str(&first.order(order).await?).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_node_passes_on_is_read_or_refused_with_the_reason() {
        let drain = Request::DrainNode { name: "two".into(), rate: Some(5), accepts_risk: false };
        let passed_on = serde_json::to_string(&drain).unwrap();
        assert!(matches!(read(&passed_on), Ok(Request::DrainNode { name, rate: Some(5), .. }) if name == "two"));
        let deep = "[".repeat(100_000);
        for wrong in ["", "{", "null", "\u{0}", r#"{"command":"drain-node"}"#, r#""NoSuchCommand""#, &deep] {
            let why = read(wrong).err().unwrap_or_else(|| panic!("{:?} is taken", &wrong[..wrong.len().min(30)]));
            assert!(why.starts_with("the two nodes differ in their commands: "), "{why}");
        }
    }
}
