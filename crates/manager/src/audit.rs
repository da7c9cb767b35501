//! Checking a manager against itself: every count is computed anew from all index nodes. For fsck, and for tests.

use crate::api::ManagerError;
use crate::imap::piece_of;
use crate::server::Server;
use crate::state::{Missing, State, Stop};
use crate::usage::Usage;
use std::collections::BTreeSet;
use std::sync::Arc;
use types::{FileId, SegmentId};

/// A segment whose utilisation is counted wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UsageMismatch {
    /// The segment.
    pub segment: SegmentId,
    /// Live bytes as the manager counts them.
    pub counted: u64,
    /// Live bytes found in its files and records.
    pub found: u64,
}

/// What an audit found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AuditReport {
    /// Files looked at.
    pub files: u64,
    /// Their stored blocks in bytes.
    pub data_bytes: u64,
    /// How many files the manager thinks it has, if that is something else.
    pub wrong_file_count: Option<u64>,
    /// Segments whose utilisation is counted wrong.
    pub usage: Vec<UsageMismatch>,
    /// Files with nlink 0 (no fault: they are removed by the client that recovers).
    pub orphans: Vec<FileId>,
    /// Files with nlink 0 that the manager does not list, and files that it lists and that are not orphans.
    pub wrong_orphans: Vec<FileId>,
}

impl AuditReport {
    /// True when all counts are right.
    pub fn is_clean(&self) -> bool {
        self.wrong_file_count.is_none() && self.usage.is_empty() && self.wrong_orphans.is_empty()
    }
}

/// The counts so far.
#[derive(Default)]
struct Count {
    report: AuditReport,
    orphans: BTreeSet<FileId>,
    data: Usage,
    own: Usage,
}

impl Server {
    /// Walks all files and compares. Deltas and checkpoints wait meanwhile; other requests go on.
    pub async fn audit(&self) -> Result<AuditReport, ManagerError> {
        let core = &self.core;
        let _apply = core.order.clone().lock_owned().await;
        let _checkpoint = core.checkpointing.lock().await;
        let mut count = Count::default();
        let pieces = core.state.lock().audited_pieces();
        for key in pieces {
            let unloaded = {
                let state = core.state.lock();
                state.imap.home(key).filter(|_| state.imap.piece(key).is_none())
            };
            if let Some(addr) = unloaded {
                core.load(Missing::Piece { key, addr }).await?;
            }
            let files = core.state.lock().audited_files(key);
            for file in files {
                loop {
                    let step = core.state.lock().audit_file(file, &mut count);
                    match step {
                        Ok(()) => break,
                        Err(Stop::Missing(missing)) => core.load(missing).await?,
                        Err(Stop::Refused(error)) => return Err(error),
                    }
                }
                core.state.lock().evict();
            }
        }
        let report = core.state.lock().compare(count);
        if !report.is_clean() {
            tracing::error!(manager = %core.config.id, ?report, "the manager's counts are wrong");
        }
        Ok(report)
    }
}

impl State {
    /// Pieces that hold files, in the checkpoint or since.
    fn audited_pieces(&self) -> Vec<u64> {
        let known: BTreeSet<u64> = self.imap.keys().chain(self.dirty.iter().map(|&file| piece_of(file))).collect();
        known.into_iter().collect()
    }

    /// Files of a piece, in the checkpoint or since, removed ones included.
    fn audited_files(&self, key: u64) -> Vec<FileId> {
        let stored = self.imap.piece(key).map(Arc::clone).unwrap_or_default();
        let new = self.dirty.iter().copied().filter(|&file| piece_of(file) == key);
        let all: BTreeSet<FileId> = stored.files(key).map(|(file, _)| file).chain(new).collect();
        all.into_iter().collect()
    }

    /// Counts one file, all at once when all of it is in memory.
    fn audit_file(&mut self, file: FileId, count: &mut Count) -> Result<(), Stop> {
        let exists = self.find_blocks(file, 0, u64::MAX)?;
        if let Some(addr) = self.node_record(file)? {
            count.own.add(addr);
        }
        let Some(entry) = self.cache.get(&file) else { return Ok(()) };
        entry.homes.values().for_each(|&home| count.own.add(home));
        if let Some(node) = entry.content.as_deref().filter(|_| exists) {
            count.report.files += 1;
            for extent in node.range(0, u64::MAX) {
                count.data.add(extent.addr);
                count.report.data_bytes += u64::from(extent.addr.len);
            }
            if node.inode.nlink == 0 {
                count.orphans.insert(file);
            }
        }
        Ok(())
    }

    fn compare(&self, mut count: Count) -> AuditReport {
        for key in self.imap.keys() {
            if let Some(home) = self.imap.home(key) {
                count.own.add(home);
            }
        }
        let mut report = count.report;
        for (counted, found) in [(&self.data_usage, &count.data), (&self.own_usage, &count.own)] {
            let segments: BTreeSet<SegmentId> = counted.iter().chain(found.iter()).map(|u| u.segment).collect();
            let both = segments.into_iter().map(|segment| UsageMismatch {
                segment,
                counted: counted.of(segment),
                found: found.of(segment),
            });
            report.usage.extend(both.filter(|u| u.counted != u.found));
        }
        report.wrong_file_count = Some(self.file_count).filter(|&n| n != report.files);
        report.wrong_orphans = self.orphans.symmetric_difference(&count.orphans).copied().collect();
        report.orphans = count.orphans.into_iter().collect();
        report
    }
}
