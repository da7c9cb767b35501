//! The maps: every store keeps a copy, and a quorum is read or changed.

use crate::{Stripe, StripeError};
use types::Maps;

impl Stripe {
    /// The newest maps; the default (epoch 0) if none were ever put. Any two quorums meet, so a
    /// read sees all maps that [`put_maps`](Self::put_maps) has acknowledged.
    pub async fn maps(&self) -> Result<Maps, StripeError> {
        let answers = self.ask_quorum_briefly(self.options.read_patience(), |s| s.maps()).await?;
        Ok(answers.into_iter().map(|(_, maps)| maps).max_by_key(|maps| maps.epoch).unwrap_or_default())
    }

    /// Replaces the maps durably if `maps.epoch` is above the present epoch. Succeeds when a quorum
    /// has them. After an error it is unknown whether they come into force. One caller at a time.
    pub async fn put_maps(&self, maps: Maps) -> Result<(), StripeError> {
        self.health.lock().note_change();
        self.ask_quorum_briefly(self.options.put_patience(), |s| s.put_maps(maps.clone())).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fault, Rig};
    use bytes::Bytes;

    #[test]
    fn acknowledged_maps_are_seen_whichever_store_is_away() {
        for away in 0..5 {
            for later in 0..5 {
                let rig = Rig::new(1, 5, 1);
                let stripe = rig.stripe();
                assert_eq!(rig.run(stripe.maps()), Ok(Maps::default()));
                let maps = |epoch| Maps { epoch, bytes: Bytes::from(vec![epoch as u8]) };
                rig.run(stripe.put_maps(maps(1))).unwrap();
                rig.stores[away].set(Fault::Down);
                rig.run(stripe.put_maps(maps(2))).unwrap();
                rig.heal();
                rig.stores[later].set(Fault::Down);
                assert_eq!(rig.run(rig.stripe().maps()), Ok(maps(2)));
                rig.stores.iter().for_each(|s| s.set(Fault::Down));
                assert_eq!(rig.run(stripe.put_maps(maps(3))), Err(StripeError::NotEnoughStores));
            }
        }
    }
}
