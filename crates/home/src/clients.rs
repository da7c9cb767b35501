//! The clients that a home serves, for its administrator, and turning clients away.

use crate::Home;
use crate::state::{ClientKey, HomeRecord};
use roam_proto::message::{Pushed, User, pack};
use types::FsError;

/// A client that has accepted an invitation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Served {
    /// The home's number for the client.
    pub number: u32,
    /// The name that its invitation gave it; may be empty.
    pub name: String,
    /// Its public key, hashed.
    pub key: ClientKey,
    /// The volumes that it may use, each with the user as whom.
    pub volumes: Vec<(String, User)>,
    /// It is connected now.
    pub is_attached: bool,
    /// It was turned away: the home does nothing for it until it accepts another invitation.
    pub is_turned_away: bool,
}

impl Home {
    /// Returns all clients, in the order in which they came.
    pub fn clients(&self) -> Vec<Served> {
        let live = self.0.live.lock();
        let connected = |key: &ClientKey| live.newest.keys().any(|(other, _)| other == key);
        let served = live.state.clients.iter().map(|(key, client)| Served {
            number: client.number,
            name: live.state.names.get(key).cloned().unwrap_or_default(),
            key: *key,
            volumes: live.state.granted(key).map(|(name, grant)| (name.clone(), grant.user.clone())).collect(),
            is_attached: connected(key),
            is_turned_away: !live.state.serves(key),
        });
        let mut served: Vec<Served> = served.collect();
        served.sort_by_key(|client| client.number);
        served
    }

    /// Turns a client away: the home does nothing more for it until it accepts another invitation.
    /// Requests under way are finished. What the client has not sent stays with it. The change is
    /// durable when this returns. False if there is no such client.
    pub async fn turn_away(&self, number: u32) -> Result<bool, FsError> {
        {
            let mut live = self.0.live.lock();
            let known = live.state.clients.iter().find(|(_, client)| client.number == number);
            let Some(key) = known.map(|(key, _)| *key) else { return Ok(false) };
            if live.state.serves(&key) {
                live.record(HomeRecord::TurnedAway { key });
            }
            live.stands_anew(key);
            live.newest.retain(|(other, _), _| *other != key);
            for attached in live.attached.values_mut() {
                for gone in attached.extract_if(.., |attached| attached.author == number) {
                    // A client that is out of reach learns of it with its next request.
                    let _ = gone.push.push(pack(&Pushed::Detached));
                }
            }
        }
        for volume in self.0.volumes.values() {
            volume.claims.leave(number);
            volume.break_promises(number).await;
            volume.drop_uploads(number).await;
        }
        self.0.log.settled().await.map_err(|_| FsError::Io)?;
        Ok(true)
    }
}
