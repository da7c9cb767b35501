//! Why a study refuses its parameters.

use thiserror::Error;

/// Why a study refuses its parameters. The text begins with the parameter's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParameterError {
    /// A number is out of its bounds: its name, the least and the most.
    #[error("{0}: {1} to {2}")]
    Bounds(&'static str, u64, u64),
    /// A parameter is out of its range: its name, and the range in words.
    #[error("{0}: {1}")]
    Range(&'static str, &'static str),
    /// This list has no values.
    #[error("{0}: none")]
    EmptyList(&'static str),
    /// Blocks have no bytes.
    #[error("block: a block has at least one byte")]
    EmptyBlock,
    /// Clients' caches hold no block.
    #[error("client-cache: it holds no block")]
    EmptyCache,
    /// The trace has this many accesses, and all of them only fill the caches.
    #[error("warm-up: the trace has {0} accesses of blocks, nothing would be left to count")]
    NothingLeft(u64),
    /// Nothing is read after this many accesses, which fill the caches.
    #[error("warm-up: nothing is read after the first {0} accesses of blocks")]
    NothingRead(u64),
    /// Some writes shall go to cold blocks, and all blocks are hot.
    #[error("hot-writes: nothing is cold")]
    NothingCold,
    /// So many machines would fail that the trial takes too long.
    #[error("hours: too many; with this many failures the trial would take too long")]
    LongTrial,
}

impl ParameterError {
    /// Returns the first fault as an error.
    pub(crate) fn first(faults: impl IntoIterator<Item = (bool, ParameterError)>) -> Result<(), ParameterError> {
        faults.into_iter().find(|(is, _)| *is).map_or(Ok(()), |(_, fault)| Err(fault))
    }
}
