//! Invitations: a file each in the home's folder, named by their secret, until a client accepts it.
//! Made by another process than the one that serves.

use crate::state::{Key, Record};
use crate::{Inner, Live};
use host::Disk;
use parking_lot::MutexGuard;
use roam_proto::codec::Wire;
use roam_proto::message::User;
use roam_proto::wire_struct;
use std::io;
use types::Time;

/// Longest file of an invitation.
const LEN_MAX: u64 = 1 << 16;

/// To whom a home will give what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invitation {
    /// The names of the volumes.
    pub volumes: Vec<String>,
    /// As whom the home does what this client asks.
    pub user: User,
    /// Not after.
    pub until: Time,
    /// What the client is called at home; may be empty.
    pub name: String,
}
wire_struct!(Invitation { volumes, user, until, name });

fn name(secret: &[u8; 16]) -> String {
    secret.iter().fold("invitation-".to_string(), |name, byte| name + &format!("{byte:02x}"))
}

/// Makes one durable. `secret` must be random.
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
    /// Makes a key one that the home serves, if the secret is one that was given out and not used
    /// yet; by the same key it may be used again, since the first answer may have been lost.
    /// `None`: it is not.
    pub(crate) async fn enroll(&self, key: Key, secret: &[u8; 16]) -> Option<Vec<String>> {
        let volumes = |live: &MutexGuard<Live>| -> Option<Vec<String>> {
            let all: Vec<String> = live.state.granted(&key).map(|(volume, _)| volume.clone()).collect();
            Some(all).filter(|all| !all.is_empty())
        };
        let found = read(&*self.disk, secret).await.unwrap_or_else(|error| {
            tracing::error!(%error, "reading an invitation");
            None
        });
        let Some(invitation) = found.filter(|invitation| self.host.clock.wall() <= invitation.until) else {
            return volumes(&self.live.lock());
        };
        // Whoever takes the file away first has it.
        self.disk.remove(&name(secret)).await.ok()?;
        // Before anybody is let in: after a loss of power, it would let in another.
        self.disk.sync_names().await.ok()?;
        let Invitation { volumes: to, user, name, .. } = invitation;
        {
            let mut live = self.live.lock();
            live.record(Record::Enrolled { key, volumes: to, user });
            live.stands_anew(key);
            if !name.is_empty() {
                live.record(Record::Named { key, name });
            }
        }
        self.log.settled().await.ok()?;
        volumes(&self.live.lock())
    }
}
