//! Contents: open, read, write, truncate, holes, copies, as attempts (see `state`).

use crate::cache::Expect;
use crate::core::Core;
use crate::directory::BLOCK_DELTA_BYTES;
use crate::inode::BlockPiece;
use crate::join::joined;
use crate::namespace::subject;
use crate::state::{Attempt, ClientState, Miss, Stop};
use bytes::Bytes;
use manager::planted::{self, Bug};
use manager::token::Mode;
use policy::space::Purpose;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use types::{BlockAddr, FileId, FsError, Kind};
use vfs::atime;
use vfs::fs::{Appended, Cred, FILE_SIZE_MAX, Fallocate, Handle, OpenFlags, Seek};
use vfs::perm;

/// The plan of a read: its pieces. Those in the log are taken from the cache without the state's
/// lock.
struct Plan {
    pieces: Vec<BlockPiece>,
    ahead: Option<std::ops::Range<u64>>,
    expect: Expect,
}

impl Core {
    pub(crate) fn try_open(&self, cred: &Cred, id: FileId, flags: OpenFlags) -> Attempt<Handle> {
        let s = &mut *self.begin();
        let inode = s.inode(id)?;
        match inode.record.kind {
            Kind::Directory => return Err(FsError::IsADirectory.into()),
            Kind::Symlink => return Err(FsError::Loop.into()),
            _ => perm::check(cred, &subject(inode), perm::open_mask(flags))?,
        }
        if flags.truncate && inode.record.kind == Kind::File && flags.write {
            self.resize(s, cred, id, 0, 0)?;
        }
        Ok(s.open(id, flags))
    }

    /// Updates the access time as the policy says. It never fails: at worst the time stays.
    pub(crate) fn access_time(&self, s: &mut ClientState, id: FileId) {
        if self.leaves_atime.load(Relaxed) {
            return;
        }
        let now = self.wall();
        let Some(inode) =
            s.inodes.get_mut(&id).filter(|inode| inode.allows(Mode::Write) || planted::is(Bug::AccessTimeUnderRead))
        else {
            return;
        };
        let r = &inode.record;
        if atime::needs_update(r.atime, r.mtime, r.ctime, now) && self.admit(s, 0, Purpose::Change).is_ok() {
            if let Some(inode) = s.inodes.get_mut(&id) {
                inode.record.atime = now;
                inode.pending.record = true;
            }
            s.mark(id, 0, self.host.clock.now());
        }
    }

    fn plan_read(&self, id: FileId, handle: Handle, offset: u64, len: u32) -> Attempt<Plan> {
        let s = &mut *self.begin();
        let open = s.handle(id, handle)?;
        if !open.flags.read && !open.flags.execute {
            return Err(FsError::BadHandle.into());
        }
        let ahead = open.window.on_read(offset, len.into());
        let expect = if open.window.is_stream() { Expect::Stream } else { Expect::Reuse };
        self.access_time(s, id);
        let bs = self.config.block_size;
        let inode = s.inode(id)?;
        let size = inode.record.size;
        let end = offset.saturating_add(len.into()).min(size);
        if offset >= end {
            return Ok(Plan { pieces: Vec::new(), ahead: None, expect });
        }
        let last_block = (end - 1) / u64::from(bs);
        if inode.known_until <= last_block {
            return Err(Stop::Miss(Miss::MapUntil(id, last_block + 1)));
        }
        let ahead = ahead.map(|r| r.start.max(end)..r.end.min(size)).filter(|r| !r.is_empty());
        Ok(Plan { pieces: inode.plan_read(offset, end - offset, bs), ahead, expect })
    }

    pub(crate) fn try_read(self: &Arc<Self>, id: FileId, handle: Handle, offset: u64, len: u32) -> Attempt<Bytes> {
        let plan = self.plan_read(id, handle, offset, len)?;
        if let Some(range) = plan.ahead {
            self.read_ahead(id, range, plan.expect);
        }
        self.collect(id, plan.pieces, plan.expect)
    }

    /// Takes the pieces from the cache, or names those that are missing.
    fn collect(&self, id: FileId, pieces: Vec<BlockPiece>, expect: Expect) -> Attempt<Bytes> {
        let mut out = Vec::with_capacity(pieces.len());
        let mut missing = Vec::new();
        for piece in pieces {
            match piece {
                BlockPiece::Hole(len) => out.push(Bytes::from(vec![0; len])),
                BlockPiece::Bytes(bytes) => out.push(bytes),
                BlockPiece::Log(a) => {
                    if let Err(lacks) = self.cache.gather(a.segment, a.offset..a.offset + a.len, &mut out) {
                        missing.push(BlockAddr { offset: lacks.start, len: lacks.end - lacks.start, ..a });
                    }
                }
            }
        }
        if !missing.is_empty() {
            return Err(Stop::Miss(Miss::Data(id, missing, expect)));
        }
        Ok(joined(out))
    }

    /// Fetches a stretch of a file into the cache in the background. Errors are ignored: the read
    /// itself will report them.
    fn read_ahead(self: &Arc<Self>, id: FileId, range: std::ops::Range<u64>, expect: Expect) {
        let core = self.clone();
        self.host.tasks.spawn(Box::pin(async move {
            let bs = core.config.block_size;
            let pieces = {
                let mut s = core.state.lock();
                let Ok(inode) = s.inode(id) else { return };
                let known = inode.known_until.saturating_mul(bs.into());
                let end = range.end.min(inode.record.size).min(known);
                if range.start >= end {
                    return;
                }
                inode.plan_read(range.start, end - range.start, bs)
            };
            let reads = pieces.into_iter().filter_map(|piece| match piece {
                BlockPiece::Log(a) if !core.cache.contains(a.segment, a.offset..a.offset + a.len) => {
                    let core = core.clone();
                    Some(Box::pin(async move { core.fetch_data(id, a, expect).await.map(|_| ()) })
                        as types::BoxFuture<_>)
                }
                _ => None,
            });
            let _ = host::join_all(reads.collect()).await;
        }));
    }

    /// The bytes of block `b` in the log, if a write of `[start, end)` in the block needs them.
    fn old_block(&self, s: &mut ClientState, id: FileId, b: u64, start: u32, end: u32) -> Attempt<Option<Bytes>> {
        let Some(addr) = s.inode(id)?.needed_for_write(b, start, end) else { return Ok(None) };
        let piece = vec![BlockPiece::Log(addr)];
        self.collect(id, piece, Expect::Reuse).map(Some)
    }

    /// A file whose whole map is known: every change of contents needs that.
    fn mapped<'s>(&self, s: &'s mut ClientState, id: FileId, mode: Mode) -> Attempt<&'s mut crate::inode::Inode> {
        let inode = s.under(id, mode)?;
        if inode.known_until != u64::MAX {
            return Err(Stop::Miss(Miss::Map(id)));
        }
        Ok(inode)
    }

    /// Writes at an offset, or at the end.
    pub(crate) fn try_write(
        &self,
        cred: &Cred,
        id: FileId,
        handle: Handle,
        offset: Option<u64>,
        data: &[u8],
    ) -> Attempt<Appended> {
        let s = &mut *self.begin();
        let open = s.handle(id, handle)?;
        if !open.flags.write {
            return Err(FsError::BadHandle.into());
        }
        let offset = offset.filter(|_| !open.flags.append);
        let inode = s.writable(id)?;
        let offset = offset.unwrap_or(inode.record.size);
        if data.is_empty() {
            return Ok(Appended { offset, count: 0 });
        }
        let end = offset.checked_add(data.len() as u64).filter(|e| *e <= FILE_SIZE_MAX).ok_or(FsError::FileTooLarge)?;
        self.mapped(s, id, Mode::Write)?;
        self.put_bytes(s, id, offset, data, Purpose::Write)?;
        let now = self.wall();
        if let Some(inode) = s.inodes.get_mut(&id) {
            if let Some(mode) = perm::mode_after_write(cred, &subject(inode)) {
                inode.record.mode = mode;
            }
            let r = &mut inode.record;
            r.size = r.size.max(end);
            (r.mtime, r.ctime) = (now, now);
        }
        Ok(Appended { offset, count: data.len() as u32 })
    }

    /// Bytes of a segment that writing this range takes, at most.
    fn put_bytes_max(&self, offset: u64, end: u64) -> u64 {
        let bs = u64::from(self.config.block_size);
        end - offset + 2 * bs + ((end - 1) / bs - offset / bs + 1) * BLOCK_DELTA_BYTES
    }

    /// Writes bytes into blocks, after checking that all can be written. Does not change size or
    /// times.
    fn put_bytes(&self, s: &mut ClientState, id: FileId, offset: u64, data: &[u8], purpose: Purpose) -> Attempt<()> {
        let bs = u64::from(self.config.block_size);
        let end = offset + data.len() as u64;
        let (first, last) = (offset / bs, (end - 1) / bs);
        let span = |b: u64| ((offset.max(b * bs) - b * bs) as u32, (end.min((b + 1) * bs) - b * bs) as u32);
        self.admit(s, self.put_bytes_max(offset, end), purpose)?;
        let (from, to) = span(first);
        let old_first = self.old_block(s, id, first, from, to)?;
        let old_last = if last > first {
            let (from, to) = span(last);
            self.old_block(s, id, last, from, to)?
        } else {
            None
        };
        let mut added = 0;
        let inode = s.writable(id)?;
        for b in first..=last {
            let (from, to) = span(b);
            let old = if b == first { &old_first } else { &old_last };
            let old = old.as_deref().filter(|_| b == first || b == last);
            let at = (b * bs + u64::from(from) - offset) as usize;
            added += inode.write_block(b, from, &data[at..at + (to - from) as usize], old);
        }
        inode.pending.record = true;
        s.note_contents(id);
        s.mark(id, added, self.host.clock.now());
        Ok(())
    }

    /// Sets the size of a file, as truncate does, with its times and set-id bits. The caller will
    /// change `more_bytes` of the inode besides.
    pub(crate) fn resize(
        &self,
        s: &mut ClientState,
        cred: &Cred,
        id: FileId,
        size: u64,
        more_bytes: u64,
    ) -> Attempt<()> {
        self.mapped(s, id, Mode::Write)?;
        let bs = u64::from(self.config.block_size);
        let purpose = if size < s.inode(id)?.record.size { Purpose::Remove } else { Purpose::Change };
        self.admit(s, bs + DROP_DELTA_BYTES + more_bytes, purpose)?;
        let now = self.wall();
        let (last, rest) = (size / bs, (size % bs) as u32);
        let inode = s.inode(id)?;
        let needed = inode.needed_for_trim(last, rest).filter(|_| rest > 0 && size < inode.record.size);
        let kept = needed.map(|addr| self.collect(id, vec![BlockPiece::Log(addr)], Expect::Reuse)).transpose()?;
        let inode = s.writable(id)?;
        let mut dropped = 0;
        if size < inode.record.size {
            if rest > 0 {
                dropped += inode.trim(last, rest, kept.as_deref());
            }
            dropped += inode.unmap(size.div_ceil(bs), u64::MAX);
        }
        if let Some(mode) = perm::mode_after_write(cred, &subject(inode)) {
            inode.record.mode = mode;
        }
        inode.record.size = size;
        (inode.record.mtime, inode.record.ctime) = (now, now);
        inode.pending.record = true;
        s.note_contents(id);
        s.dirty_bytes = s.dirty_bytes.saturating_sub(dropped);
        s.mark(id, DROP_DELTA_BYTES + kept.map_or(0, |bytes| bytes.len() as u64), self.host.clock.now());
        Ok(())
    }

    pub(crate) fn try_fallocate(
        &self,
        cred: &Cred,
        id: FileId,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: Fallocate,
    ) -> Attempt<()> {
        let s = &mut *self.begin();
        if !s.handle(id, handle)?.flags.write {
            return Err(FsError::BadHandle.into());
        }
        let inode = s.writable(id)?;
        if inode.record.kind != Kind::File {
            return Err(FsError::NotSupported.into());
        }
        if len == 0 {
            return Err(FsError::InvalidArgument.into());
        }
        let end = offset.checked_add(len).filter(|e| *e <= FILE_SIZE_MAX).ok_or(FsError::FileTooLarge)?;
        let size = inode.record.size;
        let mode_after = perm::mode_after_write(cred, &subject(inode));
        self.mapped(s, id, Mode::Write)?;
        let zeroes = matches!(mode, Fallocate::PunchHole | Fallocate::ZeroRange | Fallocate::ZeroRangeKeepSize);
        let grows = matches!(mode, Fallocate::Allocate | Fallocate::ZeroRange) && end > size;
        if zeroes && offset < size {
            self.make_hole(s, id, offset, end.min(size))?;
        } else {
            match grows {
                true => self.admit(s, len.min(1 << 20), Purpose::Write)?,
                false => self.admit(s, 0, Purpose::Change)?,
            }
        }
        if !zeroes && !grows && mode_after.is_none() {
            return Ok(());
        }
        let now = self.wall();
        if let Some(inode) = s.inodes.get_mut(&id) {
            inode.record.mode = mode_after.unwrap_or(inode.record.mode);
            if grows {
                inode.record.size = end;
            }
            (inode.record.mtime, inode.record.ctime) = (now, now);
            inode.pending.record = true;
        }
        s.note_contents(id);
        s.mark(id, 0, self.host.clock.now());
        Ok(())
    }

    /// Makes `[start, end)`, which is within the file's size, read as zeroes. Whole blocks of it
    /// become holes.
    fn make_hole(&self, s: &mut ClientState, id: FileId, start: u64, end: u64) -> Attempt<()> {
        let bs = u64::from(self.config.block_size);
        let size = s.inode(id)?.record.size;
        self.admit(s, 2 * bs, Purpose::Remove)?;
        // The first and the last block may keep some of their bytes.
        let (first, last) = (start / bs, (end - 1) / bs);
        let mut edges = vec![first];
        edges.extend((last > first).then_some(last));
        let mut zero = Vec::new();
        let mut whole = (first, last + 1);
        for b in edges {
            let (from, to) = (start.max(b * bs), end.min((b + 1) * bs));
            let covers_end = to == (b + 1) * bs || to == size;
            if from == b * bs && covers_end {
                continue;
            }
            let stored_to = b * bs + s.inode(id)?.block_len(b);
            if b == first {
                whole.0 = first + 1;
            } else {
                whole.1 = last;
            }
            if from < stored_to {
                self.old_block(s, id, b, (from - b * bs) as u32, (to.min(stored_to) - b * bs) as u32)?;
                zero.push((from, to.min(stored_to)));
            }
        }
        if !zero.is_empty() {
            // Both edges or none.
            let need = zero.iter().map(|(from, to)| self.put_bytes_max(*from, *to)).sum();
            self.admit(s, need, Purpose::Remove)?;
        }
        for (from, to) in zero {
            self.put_bytes(s, id, from, &vec![0; (to - from) as usize], Purpose::Remove)?;
        }
        if whole.0 < whole.1
            && let Some(inode) = s.inodes.get_mut(&id)
        {
            let dropped = inode.unmap(whole.0, whole.1);
            s.dirty_bytes = s.dirty_bytes.saturating_sub(dropped);
            s.mark(id, DROP_DELTA_BYTES, self.host.clock.now());
        }
        Ok(())
    }

    pub(crate) fn try_lseek(&self, id: FileId, handle: Handle, offset: u64, whence: Seek) -> Attempt<u64> {
        let s = &mut *self.begin();
        s.handle(id, handle)?;
        let size = s.inode(id)?.record.size;
        if offset >= size {
            return Err(FsError::NoSuchAddress.into());
        }
        let bs = u64::from(self.config.block_size);
        let inode = self.mapped(s, id, Mode::Read)?;
        let mut b = offset / bs;
        match whence {
            Seek::Data => {
                let b = inode.next_data(b).filter(|b| b * bs < size).ok_or(FsError::NoSuchAddress)?;
                Ok(offset.max(b * bs))
            }
            Seek::Hole => {
                while b * bs < size && inode.block_len(b) > 0 {
                    b += 1;
                }
                Ok(offset.max(b * bs).min(size))
            }
        }
    }
}

/// Bytes that a cut needs for a range that became a hole.
const DROP_DELTA_BYTES: u64 = 96;
