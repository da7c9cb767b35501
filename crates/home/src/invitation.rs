//! Invitations: one file each in the home's folder, named by its secret, until a client accepts it.
//! Another process than the one that serves makes them.

use crate::state::{ClientKey, HomeRecord};
use crate::{Inner, Live};
use host::Disk;
use parking_lot::MutexGuard;
use roam_proto::codec::Wire;
use roam_proto::message::User;
use roam_proto::wire_struct;
use std::io;
use types::Time;

/// Longest file of an invitation, in bytes.
const LEN_MAX: u64 = 1 << 16;

/// An invitation: what a home will give to the client that accepts it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invitation {
    /// The names of the volumes.
    pub volumes: Vec<String>,
    /// The user as whom the home will act for the client.
    pub user: User,
    /// When the invitation expires.
    pub until: Time,
    /// The client's name at the home; may be empty.
    pub name: String,
}
wire_struct!(Invitation { volumes, user, until, name });

fn name(secret: &[u8; 16]) -> String {
    secret.iter().fold("invitation-".to_string(), |name, byte| name + &format!("{byte:02x}"))
}

/// Writes an invitation, durably. `secret` must be random.
pub async fn write(disk: &dyn Disk, secret: &[u8; 16], invitation: &Invitation) -> io::Result<()> {
    let file = disk.open(&name(secret), true).await?;
    file.write_at(0, vec![invitation.to_bytes().into()]).await?;
    file.sync_data().await?;
    disk.sync_names().await
}

async fn read(disk: &dyn Disk, secret: &[u8; 16]) -> io::Result<Option<Invitation>> {
    let file = match disk.open(&name(secret), false).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let len = file.len().await?;
    if len > LEN_MAX {
        return Ok(None);
    }
    Ok(Invitation::from_bytes(&file.read_at(0, len as usize).await?).ok())
}

impl Inner {
    /// Makes the home serve a key, if the secret belongs to an unused invitation. Returns the names
    /// of the volumes. A key that the home serves already gets them for any secret, since the first
    /// answer may have been lost. `None` if the home does not serve the key.
    pub(crate) async fn enroll(&self, key: ClientKey, secret: &[u8; 16]) -> Option<Vec<String>> {
        let volumes = |live: &MutexGuard<Live>| -> Option<Vec<String>> {
            let all: Vec<String> = live.state.granted(&key).map(|(volume, _)| volume.clone()).collect();
            Some(all).filter(|all| !all.is_empty())
        };
        let found = read(&*self.disk, secret).await.unwrap_or_else(|error| {
            tracing::error!(%error, "cannot read an invitation");
            None
        });
        let Some(invitation) = found.filter(|invitation| self.host.clock.wall() <= invitation.until) else {
            return volumes(&self.live.lock());
        };
        // The file can be removed only once, so the invitation lets in only one client.
        self.disk.remove(&name(secret)).await.ok()?;
        // Durable before the client is let in: otherwise, after a loss of power, the invitation
        // would let in another client, too.
        self.disk.sync_names().await.ok()?;
        let Invitation { volumes: to, user, name, .. } = invitation;
        {
            let mut live = self.live.lock();
            live.record(HomeRecord::Enrolled { key, volumes: to, user });
            live.stands_anew(key);
            if !name.is_empty() {
                live.record(HomeRecord::Named { key, name });
            }
        }
        self.log.settled().await.ok()?;
        volumes(&self.live.lock())
    }
}
