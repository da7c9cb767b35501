//! The audit: computes all counts anew from all index nodes, and compares them with the manager's.
//! For fsck and for tests.

use crate::api::ManagerError;
use crate::record::Table;
use crate::root::Trees;
use crate::s_file::{Difference, counted};
use crate::server::{Core, ManagerServer};
use crate::state::{ApplyStop, ManagerState};
use std::collections::{BTreeMap, BTreeSet};
use types::{FileId, SegmentId};

/// A segment with a wrong count of live bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UsageMismatch {
    /// The segment.
    pub segment: SegmentId,
    /// Live bytes as the manager counts them.
    pub counted: u64,
    /// Live bytes found in files and records.
    pub found: u64,
}

/// The findings of an audit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AuditReport {
    /// Number of files found.
    pub files: u64,
    /// Bytes of their blocks.
    pub data_bytes: u64,
    /// The manager's count of files, if it is wrong.
    pub wrong_file_count: Option<u64>,
    /// Segments with wrong counts.
    pub usage: Vec<UsageMismatch>,
    /// Files with nlink 0. This is no fault: the client that recovers removes them.
    pub orphans: Vec<FileId>,
    /// Orphans that the manager does not list, and files that it lists but that are no orphans.
    pub wrong_orphans: Vec<FileId>,
}

impl AuditReport {
    /// True if all counts are right.
    pub fn is_clean(&self) -> bool {
        self.wrong_file_count.is_none() && self.usage.is_empty() && self.wrong_orphans.is_empty()
    }
}

/// The counts so far.
#[derive(Default)]
struct Count {
    report: AuditReport,
    orphans: BTreeSet<FileId>,
    data: Difference,
    own: Difference,
}

/// The manager's own counts, to be compared with those that were found.
#[derive(Default)]
struct Said {
    data: BTreeMap<SegmentId, u64>,
    own: BTreeMap<SegmentId, u64>,
    own_pages: Difference,
    orphans: BTreeSet<FileId>,
}

impl ManagerServer {
    /// Walks all files and compares the counts. Deltas and checkpoints wait meanwhile; other
    /// requests go on.
    pub async fn audit(&self) -> Result<AuditReport, ManagerError> {
        let core = &self.core;
        let _apply = core.order.clone().lock_owned().await;
        let _checkpoint = core.checkpointing.lock().await;
        let mut count = Count::default();
        let (trees, dirty) = {
            let state = core.state.lock();
            (state.trees.clone(), state.dirty.clone())
        };
        for &file in &dirty {
            core.audit_file(file, &mut count).await?;
        }
        let mut stretch = trees.imap.clone();
        let mut from = None;
        loop {
            let (files, next) = match stretch.stretch(from) {
                Ok(stretch) => (stretch.rows.iter().map(|row| row.0).collect::<Vec<_>>(), stretch.next),
                Err(page) => {
                    core.fetch(Table::Imap, &mut stretch, vec![page]).await?;
                    continue;
                }
            };
            for file in files.into_iter().filter(|file| !dirty.contains(file)) {
                core.audit_file(file, &mut count).await?;
            }
            stretch.trim(1, usize::MAX);
            match next {
                Some(next) => from = Some(next),
                None => break,
            }
        }
        let said = core.audit_tables(trees, &mut count).await?;
        let report = core.state.lock().compare(count, said);
        if !report.is_clean() {
            tracing::error!(manager = %core.config.id, ?report, "the manager's counts are wrong");
        }
        Ok(report)
    }
}

impl Core {
    /// Counts one file.
    async fn audit_file(&self, file: FileId, count: &mut Count) -> Result<(), ManagerError> {
        loop {
            let step = self.state.lock().audit_file(file, count);
            match step {
                Ok(()) => break,
                Err(ApplyStop::Missing(missing)) => self.load(missing).await?,
                Err(ApplyStop::Refused(error)) => return Err(error),
            }
        }
        self.state.lock().evict();
        Ok(())
    }

    /// Counts the pages of all tables, and reads the manager's counts from them.
    async fn audit_tables(&self, mut trees: Trees, count: &mut Count) -> Result<Said, ManagerError> {
        let mut said = Said::default();
        let mut homes = self.homes(Table::Imap, &mut trees.imap).await?;
        homes.extend(self.homes(Table::DataUsage, &mut trees.data_usage).await?);
        homes.extend(self.homes(Table::Orphans, &mut trees.orphans).await?);
        homes.into_iter().for_each(|home| count.own.add(home));
        let own_pages = self.homes(Table::OwnUsage, &mut trees.own_usage).await?;
        own_pages.into_iter().for_each(|home| said.own_pages.add(home));
        self.scan(Table::DataUsage, trees.data_usage, |segment, live| {
            said.data.insert(segment, live);
        })
        .await?;
        self.scan(Table::OwnUsage, trees.own_usage, |segment, live| {
            said.own.insert(segment, live);
        })
        .await?;
        self.scan(Table::Orphans, trees.orphans, |file, ()| {
            said.orphans.insert(file);
        })
        .await?;
        Ok(said)
    }
}

impl ManagerState {
    /// Counts one file. Counts nothing of it until all of it is in memory.
    fn audit_file(&mut self, file: FileId, count: &mut Count) -> Result<(), ApplyStop> {
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

    fn compare(&self, count: Count, mut said: Said) -> AuditReport {
        for (&file, &is_orphan) in &self.orphans {
            match is_orphan {
                true => said.orphans.insert(file),
                false => said.orphans.remove(&file),
            };
        }
        for (segment, difference) in self.data_usage.iter() {
            match counted(segment, said.data.get(&segment).copied(), difference) {
                Some(live) => said.data.insert(segment, live),
                None => said.data.remove(&segment),
            };
        }
        let mut report = count.report;
        for (counted, found) in [(&said.data, &count.data), (&said.own, &count.own)] {
            let segments: BTreeSet<SegmentId> = counted.keys().copied().chain(found.iter().map(|(s, _)| s)).collect();
            let both = segments.into_iter().map(|segment| UsageMismatch {
                segment,
                counted: counted.get(&segment).copied().unwrap_or(0),
                found: found.of(segment) as u64,
            });
            report.usage.extend(both.filter(|u| u.counted != u.found));
        }
        let pages = said.own_pages.iter().chain(self.own_pages.iter()).map(|(segment, _)| segment);
        let pages = pages.collect::<BTreeSet<_>>().into_iter().map(|segment| UsageMismatch {
            segment,
            counted: self.own_pages.of(segment) as u64,
            found: said.own_pages.of(segment) as u64,
        });
        report.usage.extend(pages.filter(|u| u.counted != u.found));
        report.wrong_file_count = Some(self.file_count).filter(|&n| n != report.files);
        report.wrong_orphans = said.orphans.symmetric_difference(&count.orphans).copied().collect();
        report.orphans = count.orphans.into_iter().collect();
        report
    }
}
