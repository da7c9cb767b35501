//! Invitations from files and standard input, where other users cannot see them.

use crate::usage;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes of an invitation file that are read at most.
const INVITATION_LEN_MAX: u64 = 1 << 16;

/// Reads an invitation from a file, or from standard input (`-`): the last line that is not empty,
/// as the commands that invite print it.
pub fn read_invitation(path: &Path) -> anyhow::Result<String> {
    let failed = |error: std::io::Error| usage(format!("{}: {error}", path.display()));
    let from: Box<dyn Read> = match path == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(path).map_err(failed)?),
    };
    let mut text = String::new();
    from.take(INVITATION_LEN_MAX).read_to_string(&mut text).map_err(failed)?;
    let line = text.lines().rfind(|line| !line.trim().is_empty());
    line.map(str::to_string).ok_or_else(|| usage(format!("{} has no invitation", path.display())))
}
