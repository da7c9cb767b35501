//! File locks as bytes: space (u8), owner (u64), process (u32), kind (u8), first and last byte (u64
//! each). Integers are little-endian.

use types::codec::{DecodeError, Put, Reader};
use vfs::fs::{FileLock, LockSpace};

pub(crate) const SPACES: [LockSpace; 3] = [LockSpace::Posix, LockSpace::Flock, LockSpace::Mixed];
const KINDS: [Option<bool>; 3] = [None, Some(false), Some(true)];

pub(crate) fn put_space(out: &mut Vec<u8>, space: LockSpace) {
    out.put_u8(SPACES.iter().position(|known| *known == space).unwrap_or_default() as u8);
}

pub(crate) fn space(reader: &mut Reader<'_>) -> Result<LockSpace, DecodeError> {
    SPACES.get(usize::from(reader.u8("lock space")?)).copied().ok_or(DecodeError::Invalid("lock space"))
}

/// Bytes of an encoded lock.
pub(crate) const LOCK_LEN: usize = 1 + 8 + 4 + 1 + 8 + 8;

pub(crate) fn put_lock(out: &mut Vec<u8>, lock: &FileLock) {
    put_space(out, lock.space);
    // The upper half is the client's number, which the first node knows.
    out.put_u64(lock.owner as u64);
    out.put_u32(lock.pid);
    out.put_u8(KINDS.iter().position(|known| *known == lock.exclusive).unwrap_or_default() as u8);
    out.put_u64(lock.start);
    out.put_u64(lock.end);
}

pub(crate) fn lock(reader: &mut Reader<'_>) -> Result<FileLock, DecodeError> {
    Ok(FileLock {
        space: space(reader)?,
        owner: reader.u64("lock owner")?.into(),
        pid: reader.u32("lock process")?,
        exclusive: {
            let kind = usize::from(reader.u8("lock kind")?);
            *KINDS.get(kind).ok_or(DecodeError::Invalid("lock kind"))?
        },
        start: reader.u64("lock start")?,
        end: reader.u64("lock end")?,
    })
}
