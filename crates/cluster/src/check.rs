//! The offline check: every inode reachable, every block readable, utilisation adds up.
//!
//! Walks the tree as a client does and reads everything, then compares with what the managers count.

use crate::machine::Machine;
use manager::api::Manager;
use std::collections::BTreeSet;
use types::{FileId, FsError, Kind};
use vfs::fs::{Cred, FileSystem, OpenFlags};

const READ_LEN: u32 = 1 << 20;
const LIST_COUNT: usize = 1024;
/// Most problems listed; more are counted in the last line.
const PROBLEMS_MAX: usize = 1000;

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Inodes reached from the root.
    pub file_count: u64,
    /// Bytes of contents read back.
    pub byte_count: u64,
    /// Bytes that the managers count as live.
    pub live_bytes: u64,
    /// What is wrong, a line each.
    pub problems: Vec<String>,
}

impl Report {
    fn problem(&mut self, text: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(text);
        }
    }
}

/// Checks everything; `progress` is told how many files are done.
pub async fn check(machine: &Machine, progress: impl Fn(u64)) -> Result<Report, FsError> {
    let fs = &machine.client;
    let mut report = Report::default();
    let mut seen: BTreeSet<FileId> = BTreeSet::from([FileId::ROOT]);
    let mut folders = vec![(FileId::ROOT, String::from("/"))];
    while let Some((folder, path)) = folders.pop() {
        report.file_count += 1;
        let handle = match fs.opendir(&Cred::ROOT, folder).await {
            Ok(handle) => handle,
            Err(e) => {
                report.problem(format!("{path}: directory cannot be opened: {e}"));
                continue;
            }
        };
        let mut cookie = 0;
        loop {
            let page = match fs.readdir(folder, handle, cookie, LIST_COUNT, false).await {
                Ok(page) => page,
                Err(e) => {
                    report.problem(format!("{path}: directory cannot be listed: {e}"));
                    break;
                }
            };
            let Some(last) = page.last() else { break };
            cookie = last.cookie;
            for entry in page.into_iter().filter(|e| e.name != b"." && e.name != b"..") {
                let name = format!("{path}{}", String::from_utf8_lossy(&entry.name));
                if !seen.insert(entry.id) {
                    continue;
                }
                match entry.kind {
                    Kind::Directory => folders.push((entry.id, format!("{name}/"))),
                    kind => check_file(machine, entry.id, kind, &name, &mut report).await,
                }
                progress(report.file_count);
            }
        }
        fs.releasedir(folder, handle).await?;
    }
    for manager in &machine.managers {
        let audit = manager.audit().await.map_err(|e| {
            tracing::error!("audit: {e}");
            FsError::Io
        })?;
        let who = manager.id();
        if let Some(count) = audit.wrong_file_count {
            report.problem(format!("{who} thinks it has {count} files, but has {}", audit.files));
        }
        for usage in &audit.usage {
            let (segment, counted, found) = (usage.segment, usage.counted, usage.found);
            report.problem(format!("{who} counts {counted} live bytes in segment {segment}, but {found} are"));
        }
        for file in &audit.wrong_orphans {
            report.problem(format!("{who} has file {file} wrongly in or out of its list of orphans"));
        }
        let usage = manager.usage().await.map_err(|_| FsError::Io)?;
        report.live_bytes += usage.iter().map(|u| u.live_bytes).sum::<u64>();
    }
    let known: u64 = machine.managers.iter().map(|m| m.status().file_count).sum();
    if known != seen.len() as u64 {
        report.problem(format!("the managers know {known} files, {} are reachable from the root", seen.len()));
    }
    Ok(report)
}

async fn check_file(machine: &Machine, id: FileId, kind: Kind, name: &str, report: &mut Report) {
    let fs = &machine.client;
    report.file_count += 1;
    let found = match fs.getattr(id).await {
        Ok(entry) => entry.attr,
        Err(e) => return report.problem(format!("{name}: inode {id} cannot be read: {e}")),
    };
    if found.kind != kind {
        report.problem(format!("{name}: the directory says {kind:?}, the inode {:?}", found.kind));
    }
    if found.kind != Kind::File {
        return;
    }
    let handle = match fs.open(&Cred::ROOT, id, OpenFlags { read: true, ..Default::default() }).await {
        Ok(handle) => handle,
        Err(e) => return report.problem(format!("{name}: cannot be opened: {e}")),
    };
    let mut at = 0;
    while at < found.size {
        // Holes need not be read, and a sparse file may have very many.
        match fs.lseek(id, handle, at, vfs::fs::Seek::Data).await {
            Ok(data) => at = data,
            Err(FsError::NoSuchAddress) => break,
            Err(e) => {
                report.problem(format!("{name}: its map cannot be read: {e}"));
                break;
            }
        }
        match fs.read(id, handle, at, READ_LEN).await {
            Ok(bytes) => {
                report.byte_count += bytes.len() as u64;
                at += (bytes.len() as u64).max(1);
            }
            Err(e) => {
                report.problem(format!("{name}: bytes from {at} cannot be read: {e}"));
                at += u64::from(READ_LEN);
            }
        }
    }
    if let Err(e) = fs.release(id, handle, None).await {
        report.problem(format!("{name}: cannot be closed: {e}"));
    }
}
