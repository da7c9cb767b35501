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

use crate::config::{ConfigError, FIRST_NODE, FsConfig};
use crate::start_error::StartError;
use consensus::files::LoadError;
use consensus::{Consensus, FIRST_VOTER, ProposeError, Status, VoterOpenError, VoterSettings};
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

/// The folder of the voter of a file system with one voter, and how it is opened.
pub trait VoterHome: Send + Sync + 'static {
    /// The folder of the voter with this id, which may be empty, and how it is opened.
    ///
    /// # Errors
    /// Why the folder cannot be used.
    fn voter(&self, voter: u64) -> Result<(Arc<dyn Disk>, VoterSettings), String>;
}

/// A folder for [`FIRST_VOTER`], which never has peers.
struct OnlyFolder(Arc<dyn Disk>);

impl VoterHome for OnlyFolder {
    fn voter(&self, voter: u64) -> Result<(Arc<dyn Disk>, VoterSettings), String> {
        match voter {
            FIRST_VOTER => Ok((self.0.clone(), VoterSettings::alone())),
            voter => Err(format!("there is no folder for voter {voter}")),
        }
    }
}

/// Who decides the maps.
#[derive(Clone)]
pub enum Voting {
    /// The only voter, which is to be opened. Its folder is made anew if it is lost.
    Alone(Arc<dyn VoterHome>),
    /// A group, which this voter leads. The caller closes it.
    Led(Arc<Consensus>),
}

impl From<&Arc<dyn Disk>> for Voting {
    fn from(folder: &Arc<dyn Disk>) -> Voting {
        Voting::Alone(Arc::new(OnlyFolder(folder.clone())))
    }
}

impl Voting {
    /// The maps that a group knows.
    pub(crate) fn known(&self) -> Option<Maps> {
        match self {
            Voting::Alone(_) => None,
            Voting::Led(voter) => Some(voter.maps()),
        }
    }
}

/// The maps that a start goes on with.
pub(crate) struct Agreed {
    voter: Result<Arc<Consensus>, String>,
    /// The voter ends with the machine.
    is_owned: bool,
    rebuilt: Option<String>,
    pub(crate) maps: Maps,
}

/// Creates the voter of a new file system, and replaces anything in its folder.
pub(crate) async fn create(host: &Host, disk: &Arc<dyn Disk>, config: &FsConfig, maps: Maps) -> Result<(), StartError> {
    let settings = VoterSettings::alone();
    let voter = Consensus::create(host, disk, &settings, config.fs, maps).await.map_err(StartError::Consensus)?;
    voter.close().await;
    Ok(())
}

/// Opens the voter, unless it leads a group, and settles its maps with the newest maps of the
/// stores. The stores belong to file system `config.fs`.
pub(crate) async fn agree(
    host: &Host,
    voting: &Voting,
    config: &FsConfig,
    stores: &Maps,
) -> Result<Agreed, StartError> {
    match voting {
        Voting::Alone(home) => agree_alone(host, &**home, config, stores).await,
        Voting::Led(voter) => agree_in_group(host, voter, config, stores).await,
    }
}

/// The group has what was decided. So stores have newer maps only if a machine that becomes the
/// first node brings them, or if the group was lost and is another one now.
async fn agree_in_group(
    host: &Host,
    voter: &Arc<Consensus>,
    config: &FsConfig,
    stores: &Maps,
) -> Result<Agreed, StartError> {
    if voter.fs() != config.fs {
        return Err(StartError::ForeignConsensus { found: voter.fs(), fs: config.fs });
    }
    let (known, mut maps) = (voter.maps(), stores.clone());
    if known.epoch >= stores.epoch {
        return Ok(Agreed { voter: Ok(voter.clone()), is_owned: false, rebuilt: None, maps: known });
    }
    let mut rebuilt = None;
    if voter.voters().len() == 1 {
        if FsConfig::decode(&stores.bytes).is_ok_and(|newest| newest.voters.len() > 1) {
            // Its folder is of a time before there were others, and they decide.
            return Err(StartError::VoterLost);
        }
        // A single voter may have lost its memory.
        maps.epoch = maps.epoch.saturating_add(EPOCHS_SKIPPED);
        rebuilt = Some(outdated(&known, stores));
    }
    let brought = host::timeout(&*host.clock, VOTER_TIMEOUT, voter.propose(known.epoch, maps.clone()));
    let brought = brought.await.map_err(|elapsed| StartError::NotDecided(elapsed.to_string()))?;
    brought.map_err(|e| StartError::NotDecided(e.to_string()))?;
    Ok(Agreed { voter: Ok(voter.clone()), is_owned: false, rebuilt, maps })
}

fn outdated(known: &Maps, stores: &Maps) -> String {
    format!("it had maps of epoch {}, the stores of {}", known.epoch, stores.epoch)
}

async fn agree_alone(
    host: &Host,
    home: &dyn VoterHome,
    config: &FsConfig,
    stores: &Maps,
) -> Result<Agreed, StartError> {
    let unusable = |why: String| {
        tracing::warn!(
            "the consensus folder cannot be used, the maps of the stores count and cannot be changed: {why}"
        );
        Ok(Agreed { voter: Err(why), is_owned: true, rebuilt: None, maps: stores.clone() })
    };
    let Some(id) = config.voter_of(FIRST_NODE) else { return Err(StartError::Succeeded) };
    let (disk, settings) = match home.voter(id) {
        Ok(found) => found,
        Err(why) if config.voters.len() == 1 => return unusable(why),
        Err(_) => return Err(StartError::VoterLost),
    };
    if config.voters.len() > 1 {
        // They decide, and know whether this one was the leader.
        return Err(if settings.timing.is_some() { StartError::VoterLost } else { StartError::OthersVote });
    }
    let continued = Maps { epoch: stores.epoch.saturating_add(EPOCHS_SKIPPED), bytes: stores.bytes.clone() };
    let opened = match host::timeout(&*host.clock, VOTER_TIMEOUT, Consensus::open(host, &disk, &settings)).await {
        Ok(opened) => opened,
        Err(elapsed) => return unusable(format!("its disk does not answer: {elapsed}")),
    };
    let (voter, why) = match opened {
        Ok(voter) => {
            if voter.fs() != config.fs {
                return Err(StartError::ForeignConsensus { found: voter.fs(), fs: config.fs });
            }
            if voter.voters().len() > 1 {
                voter.close().await;
                return Err(StartError::OthersVote);
            }
            let maps = voter.maps();
            if maps.epoch >= stores.epoch {
                return Ok(Agreed { voter: Ok(Arc::new(voter)), is_owned: true, rebuilt: None, maps });
            }
            let brought = voter.propose(maps.epoch, continued.clone());
            match host::timeout(&*host.clock, VOTER_TIMEOUT, brought).await {
                Ok(Ok(())) => (voter, outdated(&maps, stores)),
                Ok(Err(e)) => return unusable(e.to_string()),
                Err(elapsed) => return unusable(format!("its disk does not answer: {elapsed}")),
            }
        }
        Err(e @ VoterOpenError::Load(LoadError::Version(_))) => return Err(StartError::Consensus(e)),
        Err(e) => {
            let anew = Consensus::create(host, &disk, &settings, config.fs, continued.clone());
            match host::timeout(&*host.clock, VOTER_TIMEOUT, anew).await {
                Ok(Ok(voter)) => (voter, e.to_string()),
                Ok(Err(e)) => return unusable(e.to_string()),
                Err(elapsed) => return unusable(format!("its disk does not answer: {elapsed}")),
            }
        }
    };
    tracing::warn!("the consensus folder was rebuilt from the stores, nothing is lost: {why}");
    Ok(Agreed { voter: Ok(Arc::new(voter)), is_owned: true, rebuilt: Some(why), maps: continued })
}

/// Keeps and changes the maps of a running file system. The roles have read them at the start. Only
/// [`Members`](crate::members) follows changes, those of the members.
pub struct Keeper {
    host: Host,
    stripe: Arc<Stripe>,
    /// The voter, or why there is none.
    voter: Result<Arc<Consensus>, String>,
    is_owned: bool,
    rebuilt: Option<String>,
    /// The maps that the start used.
    first: Maps,
    /// Held by a change of the maps. True if a quorum of the stores has the maps in force.
    pushed: tokio::sync::Mutex<bool>,
}

impl Keeper {
    /// Takes the agreed maps, and gives them to the stores if any of them is `behind`. If some were
    /// `made_anew`, the maps say so before these get them, and their seals do: without maps, the
    /// next start finds them.
    ///
    /// # Errors
    /// The maps do not say so, or too few stores get them.
    pub(crate) async fn start(
        host: Host,
        stripe: Arc<Stripe>,
        agreed: Agreed,
        behind: bool,
        made_anew: bool,
    ) -> Result<Keeper, StartError> {
        let Agreed { voter, is_owned, rebuilt, maps } = agreed;
        let is_whole = FsConfig::decode(&maps.bytes).is_ok_and(|config| config.is_whole);
        let pushed = tokio::sync::Mutex::new(true);
        let keeper = Keeper { host, stripe, voter, is_owned, rebuilt, first: maps, pushed };
        if made_anew && is_whole {
            match keeper.decide(|config| config.is_whole = false).await {
                Ok(_) => {}
                // Elected leaders go by it, and a lone voter elects none.
                Err(error) if keeper.config().is_ok_and(|config| config.voters.len() == 1) => {
                    tracing::warn!("the maps do not say that a store was made anew: {error}");
                }
                Err(error) => return Err(StartError::NotDecided(error.to_string())),
            }
        }
        let refused = |e| StartError::refused(&keeper.stripe, e);
        if made_anew {
            keeper.stripe.give_seals().await.map_err(refused)?;
        }
        if behind {
            keeper.stripe.put_maps(keeper.maps()).await.map_err(refused)?;
            *keeper.pushed.lock().await = true;
        }
        Ok(keeper)
    }

    /// The maps in force.
    pub fn maps(&self) -> Maps {
        self.voter.as_ref().map_or_else(|_| self.first.clone(), |voter| voter.maps())
    }

    /// The configuration by the maps in force.
    pub fn config(&self) -> Result<FsConfig, DecodeError> {
        FsConfig::decode(&self.maps().bytes)
    }

    /// Tells the stores the maps in force, if the change that made them could not.
    pub async fn settle(&self) -> Result<(), StripeError> {
        let mut pushed = self.pushed.lock().await;
        if !*pushed {
            self.stripe.put_maps(self.maps()).await?;
            *pushed = true;
        }
        Ok(())
    }

    /// Changes the maps durably, and tells the stores. Returns the new epoch. A change of
    /// members takes effect at once, any other at the next start.
    pub async fn change(&self, change: impl FnOnce(&mut FsConfig)) -> Result<u64, ChangeError> {
        let epoch = self.decide(change).await?;
        self.settle().await.map_err(ChangeError::Push)?;
        Ok(epoch)
    }

    /// Like [`change`](Self::change), but does not wait for the stores. The next change tells them,
    /// or [`settle`](Self::settle).
    ///
    /// # Errors
    /// [`ChangeError::Push`] is about an earlier change: this one is not decided.
    pub async fn decide(&self, change: impl FnOnce(&mut FsConfig)) -> Result<u64, ChangeError> {
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
        Ok(maps.epoch)
    }

    /// The state of the maps and the voter.
    pub fn status(&self) -> MapsStatus {
        let voter = self.voter.as_ref().map(|voter| voter.status()).map_err(Clone::clone);
        MapsStatus { epoch: self.maps().epoch, rebuilt: self.rebuilt.clone(), voter }
    }

    /// The voter, if there is one.
    pub fn voter(&self) -> Option<&Arc<Consensus>> {
        self.voter.as_ref().ok()
    }

    /// Stops the voter, unless it is one of a group.
    pub(crate) async fn close(&self) {
        if let (true, Ok(voter)) = (self.is_owned, &self.voter)
            && host::timeout(&*self.host.clock, VOTER_TIMEOUT, voter.close()).await.is_err()
        {
            tracing::warn!("the consensus folder's disk does not answer; what it has is durable");
        }
    }
}
