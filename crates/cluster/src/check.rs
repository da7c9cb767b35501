//! The offline check: every inode reachable, every block readable, utilisation counts correct.
//!
//! It walks the tree as a client does, reads everything, and then compares with the managers'
//! counts. If something cannot be read, that is a problem, named by its path, and the check goes
//! on.

use crate::machine::CoreMachine;
use manager::api::ManagerAdmin;
use manager::api::{Manager, ManagerError};
use manager::server::ManagerServer;
use std::collections::BTreeSet;
use std::ops::Range;
use types::{FileId, FsError, Kind};
use vfs::fs::{Cred, FileSystem, OpenFlags};

const READ_LEN: u32 = 1 << 20;
const LIST_COUNT: usize = 1024;
/// Number of problems that are listed; further ones are only counted.
const PROBLEMS_MAX: usize = 1000;
/// Number of unreadable stretches that are named for a file; further ones are only counted.
const STRETCHES_MAX: usize = 4;

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Inodes reached from the root.
    pub file_count: u64,
    /// Bytes of contents read back.
    pub byte_count: u64,
    /// Bytes that the managers count as live.
    pub live_bytes: u64,
    /// The first problems, a line each.
    pub problems: Vec<String>,
    /// Number of problems, listed or not.
    pub problem_count: u64,
    /// Number of those problems that are about unreadable data.
    pub unreadable_count: u64,
}

impl Report {
    fn problem(&mut self, text: String) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(text);
        }
    }

    fn unreadable(&mut self, text: String) {
        self.unreadable_count += 1;
        self.problem(text);
    }
}

/// Checks everything. `progress` gets the number of files done. An error is one of the check
/// itself.
pub async fn check(machine: &CoreMachine, progress: impl Fn(u64)) -> Result<Report, FsError> {
    let fs = &machine.client;
    fs.leave_access_times();
    let mut report = Report::default();
    let mut seen: BTreeSet<FileId> = BTreeSet::from([FileId::ROOT]);
    let mut folders = vec![(FileId::ROOT, String::from("/"))];
    while let Some((folder, path)) = folders.pop() {
        report.file_count += 1;
        let handle = match fs.opendir(&Cred::ROOT, folder).await {
            Ok(handle) => handle,
            Err(e) => {
                report.unreadable(format!("{path}: directory {folder} cannot be opened ({e}), nor what is below it"));
                continue;
            }
        };
        let (mut cookie, mut name_count) = (0, 0);
        loop {
            let page = match fs.readdir(folder, handle, cookie, LIST_COUNT, false).await {
                Ok(page) => page,
                Err(e) => {
                    let what = format!("directory {folder} cannot be listed beyond {name_count} names ({e})");
                    report.unreadable(format!("{path}: {what}, so that the others are out of reach"));
                    break;
                }
            };
            let Some(last) = page.last() else { break };
            cookie = last.cookie;
            for entry in page.into_iter().filter(|e| e.name != b"." && e.name != b"..") {
                name_count += 1;
                let name = format!("{path}{}", String::from_utf8_lossy(&entry.name));
                if !seen.insert(entry.id) {
                    continue;
                }
                match entry.kind {
                    Kind::Directory => folders.push((entry.id, format!("{name}/"))),
                    kind => check_file(machine, entry.id, kind, &name, &mut report).await?,
                }
                progress(report.file_count);
            }
        }
        fs.releasedir(folder, handle).await?;
    }
    for manager in machine.servers() {
        if let Err(e) = check_manager(&manager, &mut report).await {
            let who = manager.id();
            report.unreadable(format!(
                "{who} cannot read all of its inodes and maps, so that its counts are unchecked: {e}"
            ));
        }
    }
    let known: u64 = machine.managers.iter().map(|m| m.status().file_count).sum();
    if known != seen.len() as u64 {
        report.problem(format!("the managers know {known} files, {} are reachable from the root", seen.len()));
    }
    Ok(report)
}

async fn check_manager(manager: &ManagerServer, report: &mut Report) -> Result<(), ManagerError> {
    let audit = manager.audit().await?;
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
    report.live_bytes += manager.usage().await?.iter().map(|u| u.live_bytes).sum::<u64>();
    Ok(())
}

async fn check_file(
    machine: &CoreMachine,
    id: FileId,
    kind: Kind,
    name: &str,
    report: &mut Report,
) -> Result<(), FsError> {
    let fs = &machine.client;
    report.file_count += 1;
    let found = match fs.getattr(id).await {
        Ok(entry) => entry.attr,
        Err(e) => {
            report.unreadable(format!("{name}: inode {id} cannot be read: {e}"));
            return Ok(());
        }
    };
    if found.kind != kind {
        report.problem(format!("{name}: the directory says {kind:?}, inode {id} says {:?}", found.kind));
    }
    if found.kind != Kind::File {
        return Ok(());
    }
    let handle = match fs.open(&Cred::ROOT, id, OpenFlags { read: true, ..Default::default() }).await {
        Ok(handle) => handle,
        Err(e) => {
            report.unreadable(format!("{name}: file {id} cannot be opened: {e}"));
            return Ok(());
        }
    };
    let mut lost: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    while at < found.size {
        // Holes need not be read, and a sparse file may have very many.
        match fs.lseek(id, handle, at, vfs::fs::Seek::Data).await {
            Ok(data) => at = data,
            Err(FsError::NoSuchAddress) => break,
            Err(e) => {
                report.unreadable(format!("{name}: the map of file {id} cannot be read from byte {at} on: {e}"));
                break;
            }
        }
        match fs.read(id, handle, at, READ_LEN).await {
            Ok(bytes) => {
                report.byte_count += bytes.len() as u64;
                at += (bytes.len() as u64).max(1);
            }
            Err(_) => {
                let end = (at + u64::from(READ_LEN)).min(found.size);
                match lost.last_mut() {
                    Some(last) if last.end == at => last.end = end,
                    _ => lost.push(at..end),
                }
                at = end;
            }
        }
    }
    if !lost.is_empty() {
        report.unreadable(format!("{name}: file {id} of {} bytes cannot be read at {}", found.size, stretches(&lost)));
    }
    fs.release(id, handle, None).await
}

/// The first stretches of a list, in words.
fn stretches(all: &[Range<u64>]) -> String {
    let named: Vec<String> = all.iter().take(STRETCHES_MAX).map(|s| format!("{}..{}", s.start, s.end)).collect();
    let more = match all.len().saturating_sub(STRETCHES_MAX) {
        0 => String::new(),
        n => format!(" and {n} more stretches"),
    };
    format!("bytes {}{more}", named.join(", "))
}
