//! Helpers of several unit tests.

use roam_proto::channel::{Channel, DialError, Dialer};
use roam_proto::message::Facts;
use std::sync::Arc;
use types::{BoxFuture, FileId, Kind, Time};

/// Reaches no home.
pub(crate) struct NoHome;

impl Dialer for NoHome {
    fn dial(&self) -> BoxFuture<Result<Arc<dyn Channel>, DialError>> {
        Box::pin(async { Err(DialError::Unreachable("no home answers".into())) })
    }
}

/// Facts of an empty file or directory, in their first version.
pub(crate) fn facts(id: FileId, kind: Kind) -> Facts {
    let [atime, mtime, ctime, crtime] = [Time { sec: 0, nsec: 0 }; 4];
    let (target, xattrs) = (Vec::new(), Vec::new());
    let (version, contents, mode, nlink) = (1, 1, 0o755, 1);
    let (uid, gid, rdev, size, blocks) = (0, 0, 0, 0, 0);
    Facts {
        id,
        version,
        contents,
        kind,
        mode,
        nlink,
        uid,
        gid,
        rdev,
        size,
        blocks,
        atime,
        mtime,
        ctime,
        crtime,
        target,
        xattrs,
    }
}
