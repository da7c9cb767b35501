//! Answers of a file system: at once, or later.

use crate::{BoxFuture, FsError};
use std::future::{Future, IntoFuture};
use std::pin::Pin;

/// The result of an operation, at once or later. A cache hit answers with `Now`, which allocates no
/// future and changes no thread. `Later` holds all that it needs and may be spawned anywhere. If it
/// is dropped before its end, the operation is *unknown*.
pub enum Answer<T, E = FsError> {
    /// The result.
    Now(Result<T, E>),
    /// The result, when the future is done.
    Later(BoxFuture<Result<T, E>>),
}

impl<T, E> Answer<T, E> {
    /// A result that is there already.
    pub fn ok(value: T) -> Self {
        Answer::Now(Ok(value))
    }
    /// A refusal that is known already.
    pub fn err(error: E) -> Self {
        Answer::Now(Err(error))
    }
    /// A result that takes waiting.
    pub fn later(f: impl Future<Output = Result<T, E>> + Send + 'static) -> Self {
        Answer::Later(Box::pin(f))
    }
}

impl<T: Send + 'static, E: Send + 'static> IntoFuture for Answer<T, E> {
    type Output = Result<T, E>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;
    fn into_future(self) -> Self::IntoFuture {
        match self {
            Answer::Now(result) => Box::pin(std::future::ready(result)),
            Answer::Later(future) => future,
        }
    }
}
