//! Finds bytes of a store that the home has already.
//!
//! Programs often save a file whole although little of it changed, by way of another file, or copy
//! it. The client remembers files that were read or written lately. Before it sends a long store
//! over a slow link, it looks up the store's content-defined chunks in them (Muthitacharoen, Chen
//! and Mazières: A Low-bandwidth Network File System, section 3.1), and tells the home where the
//! home has these. The home checks that itself; a chunk that is no longer there is sent.

use crate::cache::data_files::disk_error;
use crate::client::Client;
use crate::connection::schedule::Direction;
use crate::connection::state::LinkState;
use crate::live::Live;
use crate::reintegration::sending::{Chunk, Lately};
use bytes::Bytes;
use fastcdc::v2020::FastCDC;
use host::File;
use roam_proto::channel::Class;
use roam_proto::message::{Reply, Request};
use roam_proto::operation::Operation;
use roam_proto::piece::{Hash, PIECE_COUNT_MAX, PIECE_LEN_MAX, Piece, hash};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use types::{FileId, FsError, Kind};

/// Lengths of files that are remembered, in bytes.
const LENS: Range<u64> = 4 << 10..16 << 20;
/// Most files that are remembered.
const LATELY_COUNT_MAX: usize = 16;
/// Longest store for which chunks are looked up, in bytes.
const STORE_LEN_MAX: u64 = 256 << 20;
/// Least, mean and greatest length of a chunk, in bytes.
const CHUNK_LENS: [usize; 3] = [1 << 10, 4 << 10, 32 << 10];
/// Files are cut into chunks one window of this many bytes at a time.
const WINDOW_LEN: u64 = 4 << 20;

impl Live {
    /// Called when a file is closed: its contents may soon be in another file too. Near the home
    /// this saves nothing.
    pub(crate) fn remember(&mut self, id: FileId) {
        if self.link.is_near() {
            return;
        }
        let Ok(node) = self.replica.node(id) else { return };
        let data = node.data;
        let is_fit = node.facts.kind == Kind::File && LENS.contains(&node.facts.size) && node.is_whole();
        let Some(bytes) = self.cache.opened(data).filter(|_| is_fit) else { return };
        self.sending.lately.retain(|lately| lately.data != data);
        self.sending.lately.push_back(Lately { file: self.replica.real(id), data, bytes, contents: 0, chunks: None });
        if self.sending.lately.len() > LATELY_COUNT_MAX {
            self.sending.lately.pop_front();
        }
        self.recount();
    }

    /// Updates the versions that remembered files have at home, while the client knows them.
    pub(crate) fn recount(&mut self) {
        for lately in &mut self.sending.lately {
            if let Ok(node) = self.replica.node(lately.file)
                && node.data == lately.data
            {
                let makes = |o: &Operation| matches!(o, Operation::Make { .. } | Operation::Store { .. });
                let waits = self.replica.log().naming(lately.file).any(|(_, o)| o.file() == lately.file && makes(o));
                lately.contents = if node.is_dirty() || waits { 0 } else { node.facts.contents };
            }
        }
    }
}

/// Cuts bytes, which begin at `offset` of their file, into chunks.
fn cut(bytes: &[u8], offset: u64) -> Vec<Chunk> {
    let [least, mean, most] = CHUNK_LENS;
    let chunk = |range: Range<usize>| {
        let (at, len) = (offset + range.start as u64, range.len() as u64);
        Some(Chunk { at, len, hash: hash(bytes.get(range)?) })
    };
    FastCDC::new(bytes, least, mean, most).filter_map(|c| chunk(c.offset..c.offset + c.length)).collect()
}

async fn read(file: &Arc<dyn File>, at: u64, len: u64) -> Result<Bytes, FsError> {
    file.read_at(at, len as usize).await.map_err(|error| disk_error(&error))
}

async fn chunks_of(file: &Arc<dyn File>) -> Result<Vec<Chunk>, FsError> {
    let (mut chunks, mut at) = (Vec::new(), 0);
    let end = file.len().await.map_err(|error| disk_error(&error))?;
    while at < end {
        let len = WINDOW_LEN.min(end - at);
        chunks.extend(cut(&read(file, at, len).await?, at));
        at += len;
    }
    Ok(chunks)
}

/// Where the home has chunks: file, version of its contents, and offset.
type Index = HashMap<Hash, (FileId, u64, u64)>;

/// Pieces of some bytes of a store that the home has; `offset` is where they begin in the store.
/// Chunks that follow each other in both places become one piece.
fn pieces_of(bytes: &[u8], offset: u64, index: &Index) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for chunk in cut(bytes, offset) {
        let Some(&(file, contents, at)) = index.get(&chunk.hash) else { continue };
        match pieces.last_mut() {
            Some(last)
                if (last.file, last.contents) == (file, contents)
                    && last.offset + last.len == chunk.at
                    && last.at + last.len == at
                    && last.len + chunk.len <= PIECE_LEN_MAX =>
            {
                last.len += chunk.len;
            }
            _ => pieces.push(Piece { offset: chunk.at, len: chunk.len, file, contents, at, hash: chunk.hash }),
        }
    }
    for piece in &mut pieces {
        let start = (piece.offset - offset) as usize;
        if let Some(bytes) = bytes.get(start..start + piece.len as usize) {
            piece.hash = hash(bytes);
        }
    }
    pieces
}

impl Client {
    /// Bytes that were not sent because the home had them already, since the cache was opened.
    pub fn found_there(&self) -> u64 {
        self.0.found_there.load(Relaxed)
    }

    /// Has the home take what it can of a store from files that it has. These bytes count as
    /// uploaded.
    pub(crate) async fn take_there(&self, seq: u64, from: &Arc<dyn File>, len: u64) -> Result<(), FsError> {
        {
            let mut live = self.0.live.lock();
            if live.link.state() != LinkState::Weak || len > STORE_LEN_MAX {
                return Ok(());
            }
            // Tried once on each connection.
            if !live.sending.begin_ahead(seq) {
                return Ok(());
            }
        }
        let index = self.index().await?;
        let mut offset = 0;
        while offset < len && !index.is_empty() {
            let window = WINDOW_LEN.min(len - offset);
            let pieces = pieces_of(&read(from, offset, window).await?, offset, &index);
            for pieces in pieces.chunks(PIECE_COUNT_MAX) {
                self.take_pieces(seq, pieces.to_vec()).await?;
            }
            offset += window;
        }
        Ok(())
    }

    /// The chunks of remembered files that the home has.
    async fn index(&self) -> Result<Index, FsError> {
        let lately: Vec<_> = {
            let mut live = self.0.live.lock();
            live.recount();
            let there = live.sending.lately.iter().filter(|lately| lately.contents > 0);
            there.map(|l| (l.file, l.data, l.contents, l.bytes.clone(), l.chunks.clone())).collect()
        };
        let mut index = Index::new();
        for (file, data, contents, bytes, chunks) in lately {
            let chunks = match chunks {
                Some(chunks) => chunks,
                None => Arc::new(chunks_of(&bytes).await?),
            };
            index.extend(chunks.iter().map(|chunk| (chunk.hash, (file, contents, chunk.at))));
            if let Some(lately) = self.0.live.lock().sending.lately.iter_mut().find(|lately| lately.data == data) {
                lately.chunks = Some(chunks);
            }
        }
        Ok(index)
    }

    async fn take_pieces(&self, seq: u64, pieces: Vec<Piece>) -> Result<(), FsError> {
        let found: u64 = pieces.iter().map(|piece| piece.len).sum();
        let rate = self.0.schedule.rate(Direction::Up);
        // The saved bytes have to be worth another question.
        if found as f64 / rate <= self.0.schedule.round_trip().as_secs_f64() {
            return Ok(());
        }
        let ranges: Vec<Range<u64>> = pieces.iter().map(|piece| piece.offset..piece.offset + piece.len).collect();
        let Reply::Taken(taken) = self.0.ask(Class::Replay, &Request::Take { seq, pieces }).await? else {
            return Err(FsError::Io);
        };
        let mut live = self.0.live.lock();
        for range in taken.into_iter().filter_map(|at| ranges.get(usize::try_from(at).ok()?)) {
            self.0.found_there.fetch_add(range.end - range.start, Relaxed);
            live.sending.is_there(seq, range.clone());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::SplitMix64;

    fn random(seed: u64, len: usize) -> Vec<u8> {
        let random = SplitMix64::new(seed);
        (0..len).map(|_| random.below(256) as u8).collect()
    }

    fn index(bytes: &[u8]) -> Index {
        cut(bytes, 0).into_iter().map(|chunk| (chunk.hash, (FileId::ROOT, 7, chunk.at))).collect()
    }

    #[test]
    fn what_was_put_into_the_middle_is_all_that_is_new() {
        let old = random(1, 200_000);
        let new = [&old[..100_000], b"something new", &old[100_000..]].concat();
        let pieces = pieces_of(&new, 1000, &index(&old));
        let found: u64 = pieces.iter().map(|piece| piece.len).sum();
        assert!(pieces.len() <= 4 && found > 130_000, "{found} in {}", pieces.len());
        for Piece { offset, len, file, contents, at, hash: said } in pieces {
            let (here, there, len) = ((offset - 1000) as usize, at as usize, len as usize);
            assert_eq!((file, contents), (FileId::ROOT, 7));
            assert_eq!(new[here..here + len], old[there..there + len]);
            assert_eq!(said, hash(&old[there..there + len]));
        }
    }

    #[test]
    fn what_is_not_there_is_not_found_and_pieces_are_no_longer_than_may_be() {
        assert_eq!(pieces_of(&random(1, 100_000), 0, &index(&random(2, 100_000))), []);
        assert_eq!(pieces_of(&[], 0, &index(&[])), []);
        let long = random(3, 2 << 20);
        let pieces = pieces_of(&long, 0, &index(&long));
        assert!(pieces.iter().all(|piece| piece.len <= PIECE_LEN_MAX));
        assert_eq!(pieces.iter().map(|piece| piece.len).sum::<u64>(), 2 << 20);
    }
}
