//! Why no trace can be made with some parameters.

use thiserror::Error;

/// Why no trace can be made with these parameters. The text begins with the parameter's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WorkloadError {
    /// A number is out of its bounds: its name, the least and the most.
    #[error("{0}: {1} to {2}")]
    Bounds(&'static str, u64, u64),
    /// A parameter is out of its range: its name, and the range in words.
    #[error("{0}: {1}")]
    Range(&'static str, &'static str),
    /// A single client shall use the data of other clients.
    #[error("locality: there are no other clients' data")]
    NoOtherClients,
    /// The requests are so rare that the user does not count as active.
    #[error("requests: fewer than one in ten minutes, which does not count as active")]
    RareRequests,
    /// There are fewer reads than files to read.
    #[error("files: more than there are reads")]
    FewReads,
    /// There are fewer bytes to write than writes.
    #[error("written-bytes: fewer than there are writes")]
    FewWrittenBytes,
    /// There are more bytes to read than all reads can read.
    #[error("read-bytes: more than so many reads of the largest file")]
    ManyReadBytes,
}

impl WorkloadError {
    /// Returns the first fault as an error.
    pub(crate) fn first(faults: impl IntoIterator<Item = (bool, WorkloadError)>) -> Result<(), WorkloadError> {
        faults.into_iter().find(|(is, _)| *is).map_or(Ok(()), |(_, fault)| Err(fault))
    }
}
