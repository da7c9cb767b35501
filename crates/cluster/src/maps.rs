//! The maps in force: the consensus engine decides them, and every store keeps a copy.
//!
//! At a start, the newest copy counts. The voter's folder may be lost, rotten or out of a backup
//! without harm: the start makes the group anew, or brings it up to date, from the stores' maps.
//! Stores that lack the newest maps get them.
//!
//! A change is decided first, then pushed to a quorum of the stores, and only then is the next one
//! decided. So at most one change is known to the voter and not yet to a quorum of the stores. If
//! the voter's memory turns out to be lost, that change may be on a few stores that are away. So
//! its epoch is not given to other maps: the same maps continue with an epoch that is two higher.

use crate::config::{ConfigError, FsConfig};
use crate::start_error::StartError;
use consensus::files::LoadError;
use consensus::{Consensus, ProposeError, Status, VoterOpenError, VoterSettings};
use host::{Disk, Host};
use std::sync::Arc;
use std::time::Duration;
use stripe::{Stripe, StripeError};
use thiserror::Error;
use types::Maps;
use types::codec::DecodeError;

/// How long the voter's disk may take to open, decide or close, before the file system goes on
/// without the voter.
const VOTER_TIMEOUT: Duration = Duration::from_secs(60);
/// How much the epoch grows when the voter's memory was lost: past the one change that may be on
/// stores that are away.
const EPOCHS_SKIPPED: u64 = 2;

/// The state of the maps and the voter, for `status`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapsStatus {
    /// Epoch of the maps in force.
    pub epoch: u64,
    /// Why the consensus folder was made anew or brought up to date from the stores at the start,
    /// if it was.
    pub rebuilt: Option<String>,
    /// The voter's state, or why there is no voter: the file system works without one, but its maps
    /// cannot be changed.
    pub voter: Result<Status, String>,
}

/// Why a change of the maps failed.
#[derive(Debug, Error)]
pub enum ChangeError {
    /// There is no voter.
    #[error("the consensus folder cannot be used ({0}): make it usable and start again")]
    NoVoter(String),
    /// The change is not allowed.
    #[error("{0}")]
    Fixed(ConfigError),
    /// The present maps cannot be read.
    #[error("the maps in force: {0}")]
    Decode(#[from] DecodeError),
    /// The voter refused, or has stopped.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// The voter's disk does not answer. The next start shows whether the maps were changed.
    #[error("the consensus folder's disk does not answer; whether the maps were changed shows at the next start")]
    Unknown,
    /// The change is decided, but too few stores could be reached. They get the maps at the next
    /// change or start.
    #[error("the maps are changed, but too few stores could be told yet: {0}")]
    Push(StripeError),
}

/// The maps that a start goes on with.
pub(crate) struct Agreed {
    voter: Result<Consensus, String>,
    rebuilt: Option<String>,
    pub(crate) maps: Maps,
}

/// Creates the voter of a new file system, and replaces anything in its folder.
pub(crate) async fn create(host: &Host, disk: &Arc<dyn Disk>, config: &FsConfig, maps: Maps) -> Result<(), StartError> {
    let voter =
        Consensus::create(host, disk, &VoterSettings::alone(), config.fs, maps).await.map_err(StartError::Consensus)?;
    voter.close().await;
    Ok(())
}

/// Opens the voter, and settles its maps with the newest maps of the stores. The stores belong to
/// file system `config.fs`.
pub(crate) async fn agree(
    host: &Host,
    disk: &Arc<dyn Disk>,
    config: &FsConfig,
    stores: &Maps,
) -> Result<Agreed, StartError> {
    let unusable = |why: String| {
        tracing::warn!(
            "the consensus folder cannot be used, the maps of the stores count and cannot be changed: {why}"
        );
        Ok(Agreed { voter: Err(why), rebuilt: None, maps: stores.clone() })
    };
    let continued = Maps { epoch: stores.epoch.saturating_add(EPOCHS_SKIPPED), bytes: stores.bytes.clone() };
    let alone = VoterSettings::alone();
    let opened = match host::timeout(&*host.clock, VOTER_TIMEOUT, Consensus::open(host, disk, &alone)).await {
        Ok(opened) => opened,
        Err(elapsed) => return unusable(format!("its disk does not answer: {elapsed}")),
    };
    let (voter, why) = match opened {
        Ok(voter) => {
            if voter.fs() != config.fs {
                return Err(StartError::ForeignConsensus { found: voter.fs(), fs: config.fs });
            }
            let maps = voter.maps();
            if maps.epoch >= stores.epoch {
                return Ok(Agreed { voter: Ok(voter), rebuilt: None, maps });
            }
            let brought = voter.propose(maps.epoch, continued.clone());
            match host::timeout(&*host.clock, VOTER_TIMEOUT, brought).await {
                Ok(Ok(())) => (voter, format!("it had maps of epoch {}, the stores of {}", maps.epoch, stores.epoch)),
                Ok(Err(e)) => return unusable(e.to_string()),
                Err(elapsed) => return unusable(format!("its disk does not answer: {elapsed}")),
            }
        }
        Err(e @ VoterOpenError::Load(LoadError::Version(_))) => return Err(StartError::Consensus(e)),
        Err(e) => {
            let anew = Consensus::create(host, disk, &alone, config.fs, continued.clone());
            match host::timeout(&*host.clock, VOTER_TIMEOUT, anew).await {
                Ok(Ok(voter)) => (voter, e.to_string()),
                Ok(Err(e)) => return unusable(e.to_string()),
                Err(elapsed) => return unusable(format!("its disk does not answer: {elapsed}")),
            }
        }
    };
    tracing::warn!("the consensus folder was rebuilt from the stores, nothing is lost: {why}");
    Ok(Agreed { voter: Ok(voter), rebuilt: Some(why), maps: continued })
}

/// Keeps and changes the maps of a running file system. The roles have read them at the start. Only
/// [`Members`](crate::members) follows changes, those of the members.
pub struct Keeper {
    host: Host,
    stripe: Arc<Stripe>,
    /// The voter, or why there is none.
    voter: Result<Consensus, String>,
    rebuilt: Option<String>,
    /// The maps that the start used.
    first: Maps,
    /// Held by a change of the maps. True if a quorum of the stores has the maps in force.
    pushed: tokio::sync::Mutex<bool>,
}

impl Keeper {
    /// Takes the agreed maps, and gives them to the stores if any of them is `behind`.
    pub(crate) async fn start(
        host: Host,
        stripe: Arc<Stripe>,
        agreed: Agreed,
        behind: bool,
    ) -> Result<Keeper, StripeError> {
        let Agreed { voter, rebuilt, maps } = agreed;
        if behind {
            stripe.put_maps(maps.clone()).await?;
        }
        Ok(Keeper { host, stripe, voter, rebuilt, first: maps, pushed: tokio::sync::Mutex::new(true) })
    }

    /// The maps in force.
    pub fn maps(&self) -> Maps {
        self.voter.as_ref().map_or_else(|_| self.first.clone(), Consensus::maps)
    }

    /// The configuration by the maps in force.
    pub fn config(&self) -> Result<FsConfig, DecodeError> {
        FsConfig::decode(&self.maps().bytes)
    }

    /// Changes the maps durably, and tells the stores. Returns the new epoch. A change of
    /// members takes effect at once, any other at the next start.
    pub async fn change(&self, change: impl FnOnce(&mut FsConfig)) -> Result<u64, ChangeError> {
        let voter = self.voter.as_ref().map_err(|why| ChangeError::NoVoter(why.clone()))?;
        let mut pushed = self.pushed.lock().await;
        let current = voter.maps();
        if !*pushed {
            self.stripe.put_maps(current.clone()).await.map_err(ChangeError::Push)?;
        }
        let before = FsConfig::decode(&current.bytes)?;
        let mut after = before.clone();
        change(&mut after);
        before.may_become(&after).map_err(ChangeError::Fixed)?;
        let maps = Maps { epoch: current.epoch + 1, bytes: after.encode() };
        *pushed = false;
        let decided = host::timeout(&*self.host.clock, VOTER_TIMEOUT, voter.propose(current.epoch, maps.clone()));
        decided.await.map_err(|_| ChangeError::Unknown)??;
        let epoch = maps.epoch;
        self.stripe.put_maps(maps).await.map_err(ChangeError::Push)?;
        *pushed = true;
        Ok(epoch)
    }

    /// The state of the maps and the voter.
    pub fn status(&self) -> MapsStatus {
        let voter = self.voter.as_ref().map(Consensus::status).map_err(Clone::clone);
        MapsStatus { epoch: self.maps().epoch, rebuilt: self.rebuilt.clone(), voter }
    }

    /// Stops the voter.
    pub(crate) async fn close(&self) {
        if let Ok(voter) = &self.voter
            && host::timeout(&*self.host.clock, VOTER_TIMEOUT, voter.close()).await.is_err()
        {
            tracing::warn!("the consensus folder's disk does not answer; what it has is durable");
        }
    }
}
