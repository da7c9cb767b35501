//! Fetches bytes of the log from the stores into the cache.
//!
//! A reader waits for data that are being fetched already, and does not ask for them again: a
//! reader that is as fast as the stores keeps meeting its own read-ahead.

use crate::cache::Expect;
use crate::core::{Core, STORES_PAUSE, from_manager};
use crate::join::joined;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use stripe::{StripeError, Whom};
use striped_log::fragment::CHUNK_LEN;
use types::{BlockAddr, FileId, FsError, SegmentId};

/// Bytes that a small read fetches around what it needs: files that were made together lie together
/// in the log.
const FETCH_LEN: u32 = 4 * CHUNK_LEN;

impl Core {
    /// The bytes at an address. `None` if the block has moved: then the file's map is up to date
    /// again.
    pub(crate) async fn fetch_bytes(self: &Arc<Self>, id: FileId, addr: BlockAddr) -> Result<Option<Bytes>, FsError> {
        for _ in 0..8 {
            let mut pieces = Vec::new();
            if self.cache.gather(addr.segment, addr.offset..addr.offset + addr.len, &mut pieces).is_ok() {
                return Ok(Some(joined(pieces)));
            }
            if !self.fetch_data(id, addr, Expect::Reuse).await? {
                return Ok(None);
            }
        }
        Err(FsError::Io)
    }

    /// Fetches the bytes at an address, and some around them, into the cache. False if the block
    /// has moved: then the file's map is up to date again.
    pub(crate) async fn fetch_data(
        self: &Arc<Self>,
        id: FileId,
        addr: BlockAddr,
        expect: Expect,
    ) -> Result<bool, FsError> {
        let give_up = self.host.clock.now() + self.patience();
        let mut whom = Whom::WhoAnswers;
        loop {
            let fetched = match self.fetch_fragments(addr, FETCH_LEN, expect, whom).await {
                // Perhaps only the bytes around it cannot be read.
                Err(StripeError::Damaged(_)) => self.fetch_fragments(addr, CHUNK_LEN, expect, whom).await,
                fetched => fetched,
            };
            let Err(e) = fetched else { return Ok(true) };
            // With any error, the block may have moved meanwhile. If its segment was deleted, a
            // store that missed the deletion may still have a part of it, or may not answer.
            if self.refresh(id, addr).await? {
                return Ok(false);
            }
            // It is still there, and worth the time that stores take which do not answer soon.
            if std::mem::replace(&mut whom, Whom::Everybody) == Whom::WhoAnswers {
                continue;
            }
            if e != StripeError::NotEnoughStores || self.host.clock.now() >= give_up || self.is_over() {
                tracing::error!(%id, segment = %addr.segment, "read segment: {e}");
                return Err(FsError::Io);
            }
            self.host.clock.sleep(STORES_PAUSE).await;
        }
    }

    /// Fetches the bytes at an address from all fragments that have some of them, at once. A short
    /// read is widened to whole units of `unit` bytes. Each part enters the cache as it comes.
    async fn fetch_fragments(&self, addr: BlockAddr, unit: u32, expect: Expect, whom: Whom) -> Result<(), StripeError> {
        let geometry = self.stripe.info_from(whom, addr.segment).await?.geometry;
        let unit = if addr.len >= unit { CHUNK_LEN } else { unit };
        let start = addr.offset / unit * unit;
        let end = (addr.offset + addr.len).next_multiple_of(unit).min(geometry.payload_len);
        if start >= end {
            return Err(StripeError::BadRequest("address beyond the payload"));
        }
        let parts = (0..geometry.k).filter_map(|index| {
            let held = geometry.payload_range(index);
            let part = start.max(held.start)..end.min(held.end);
            (!part.is_empty()).then(|| self.fetch_part(addr.segment, part, expect, whom))
        });
        host::join_all(parts.collect()).await.into_iter().collect()
    }

    async fn fetch_part(
        &self,
        segment: SegmentId,
        part: Range<u32>,
        expect: Expect,
        whom: Whom,
    ) -> Result<(), StripeError> {
        while !self.cache.contains(segment, part.clone()) {
            match self.under_way.claim(segment, &part) {
                Ok(mine) => match self.stripe.read_from(whom, segment, part.clone()).await {
                    Ok(bytes) => {
                        self.cache.insert(segment, part.start, bytes, expect);
                        break;
                    }
                    Err(error) => {
                        // Others may ask more stores.
                        if whom == Whom::Everybody {
                            mine.tell.send_replace(Some(error));
                        }
                        return Err(error);
                    }
                },
                Err((other, mut told)) => {
                    // An error of a stretch that lies within this one is this one's error too.
                    let is_part = part.start <= other.start && other.end <= part.end;
                    if let Ok(error) = told.wait_for(Option::is_some).await
                        && let Some(error) = error.filter(|_| is_part)
                    {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// The blocks of a file that have bytes at an address, by the client's map.
    fn blocks_at(&self, id: FileId, addr: BlockAddr) -> Option<Range<u64>> {
        let state = self.state.lock();
        let has_some = |a: &BlockAddr| {
            a.segment == addr.segment && a.offset < addr.offset + addr.len && addr.offset < a.offset + a.len
        };
        let block_size = u64::from(self.config.block_size);
        let mut all = state.inodes.get(&id)?.map.iter().filter(|extent| has_some(&extent.addr)).map(|extent| {
            let skipped = u64::from(addr.offset.saturating_sub(extent.addr.offset)) / block_size;
            let end = u64::from(addr.offset + addr.len).saturating_sub(extent.addr.offset.into()).div_ceil(block_size);
            extent.first + skipped..extent.end().min(extent.first + end)
        });
        let first = all.next()?;
        Some(all.fold(first, |all, more| all.start.min(more.start)..all.end.max(more.end)))
    }

    /// Asks the manager again for the addresses of blocks that could not be read: the cleaner may
    /// have moved them. False if they are still at the same addresses.
    async fn refresh(self: &Arc<Self>, id: FileId, unread: BlockAddr) -> Result<bool, FsError> {
        let Some(blocks) = self.blocks_at(id, unread) else { return Ok(true) };
        if unread.segment.log == self.log.id() {
            // The segment is durable, or the block would be in memory. So the manager will know it
            // soon.
            self.wait_applied(unread.segment.seq).await;
        }
        let (mut from, mut moved) = (blocks.start, false);
        while from < blocks.end {
            let located = self.managers.of(id).locate(self.config.id, id, from).await.map_err(from_manager)?;
            let mut state = self.state.lock();
            let Some(inode) = state.inodes.get_mut(&id) else { return Ok(true) };
            for new in located.extents {
                for b in new.first..new.end() {
                    // Blocks that the client has changed meanwhile are elsewhere.
                    let old = inode.map.block(b).filter(|old| old.segment == unread.segment);
                    if let (Some(old), Some(piece)) = (old, new.slice(b, b + 1, self.config.block_size))
                        && piece.addr != old
                    {
                        inode.map.set(piece);
                        moved |= blocks.contains(&b);
                    }
                }
            }
            from = located.known_until.max(from + 1);
        }
        Ok(moved || self.blocks_at(id, unread).is_none())
    }
}
