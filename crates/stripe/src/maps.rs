//! Small replicated state: kept by every store, changed and read through a quorum.

use crate::{Stripe, StripeError};
use storage::api::Maps;

impl Stripe {
    /// The newest maps; the default (epoch 0) if none were ever put. Any two quorums meet, so what [`put_maps`](Self::put_maps)
    /// has acknowledged is seen.
    pub async fn maps(&self) -> Result<Maps, StripeError> {
        let answers = self.ask_quorum(|s| s.maps()).await?;
        Ok(answers.into_iter().map(|(_, maps)| maps).max_by_key(|maps| maps.epoch).unwrap_or_default())
    }

    /// Durably replaces the maps if `maps.epoch` is above that of the present ones; Ok when a quorum keeps them. On error they
    /// may or may not come into force. One caller at a time.
    pub async fn put_maps(&self, maps: Maps) -> Result<(), StripeError> {
        self.ask_quorum(|s| s.put_maps(maps.clone())).await.map(|_| ())
    }
}
