//! Many small files in one folder, by one process or several.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::at_once::{self, monotonic_seconds};
use super::{Outcome, outcome};

/// Size of every file.
pub(super) const FILE_BYTES: usize = 1024;

pub(super) fn create(dir: &Path, files: u32, processes: u32, fsync: bool) -> Result<Outcome> {
    ensure!(processes > 0 && files >= processes, "at least one process, and a file for each");
    fs::create_dir(dir).with_context(|| format!("create {}", dir.display()))?;
    let parts: Vec<PathBuf> = (0..processes).map(|index| part_dir(dir, index)).collect();
    for part in &parts {
        fs::create_dir(part).with_context(|| format!("create {}", part.display()))?;
    }
    let seconds = match &parts[..] {
        [only] => {
            let started = Instant::now();
            create_files(only, 0..files, fsync)?;
            started.elapsed().as_secs_f64()
        }
        _ => create_in_processes(&parts, files / processes, fsync)?,
    };
    let created = files / processes * processes;
    Ok(outcome([("files_per_s", f64::from(created) / seconds)]))
}

/// Creates in each folder by a process of its own, and returns the seconds from the first begin to
/// the last end, without starting and ending the processes.
fn create_in_processes(parts: &[PathBuf], files_each: u32, fsync: bool) -> Result<f64> {
    let arguments = |(part, index): (&PathBuf, u32)| {
        let [files, first] = [files_each, index * files_each].map(|number| number.to_string());
        let folder = part.display().to_string();
        let mut arguments = ["create-part", "--files", &files, "--first", &first, &folder].map(str::to_owned).to_vec();
        arguments.extend(fsync.then(|| "--fsync".to_owned()));
        arguments
    };
    let (mut begin, mut end) = (f64::INFINITY, f64::NEG_INFINITY);
    for result in at_once::run(&parts.iter().zip(0..).map(arguments).collect::<Vec<_>>())? {
        begin = begin.min(*result.get("begin_s").context("begin_s")?);
        end = end.max(*result.get("end_s").context("end_s")?);
    }
    Ok(end - begin)
}

/// Creates in existing folders at once, by a process each. The names are all different, so the
/// folders may be one, seen through several mounts.
pub(super) fn create_at_once(dirs: &[PathBuf], files: u32) -> Result<Outcome> {
    let files_each = files / dirs.len().max(1) as u32;
    let seconds = create_in_processes(dirs, files_each, false)?;
    Ok(outcome([("files_per_s", f64::from(files_each * dirs.len() as u32) / seconds)]))
}

pub(super) fn create_part(dir: &Path, files: u32, first: u32, fsync: bool) -> Result<Outcome> {
    at_once::wait_for_start()?;
    let begin = monotonic_seconds();
    create_files(dir, first..first + files, fsync)?;
    Ok(outcome([("begin_s", begin), ("end_s", monotonic_seconds())]))
}

fn create_files(dir: &Path, files: Range<u32>, fsync: bool) -> Result<()> {
    let mut content = vec![b'a'; FILE_BYTES];
    for index in files {
        content[..4].copy_from_slice(&index.to_le_bytes());
        let path = file_path(dir, index);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .with_context(|| format!("create {}", path.display()))?;
        file.write_all(&content).with_context(|| format!("write {}", path.display()))?;
        if fsync {
            file.sync_all().with_context(|| format!("sync {}", path.display()))?;
        }
    }
    Ok(())
}

pub(super) fn read(dir: &Path, files: u32) -> Result<Outcome> {
    let part = part_dir(dir, 0);
    let mut buffer = vec![0; 64 << 10];
    let started = Instant::now();
    for index in 0..files {
        let path = file_path(&part, index);
        let mut file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        let mut total = 0;
        loop {
            match file.read(&mut buffer).with_context(|| format!("read {}", path.display()))? {
                0 => break,
                read => total += read,
            }
        }
        ensure!(total == FILE_BYTES, "{} has {total} bytes", path.display());
    }
    Ok(outcome([("files_per_s", f64::from(files) / started.elapsed().as_secs_f64())]))
}

pub(super) fn unlink(dir: &Path, files: u32) -> Result<Outcome> {
    let part = part_dir(dir, 0);
    let started = Instant::now();
    for index in 0..files {
        let path = file_path(&part, index);
        fs::remove_file(&path).with_context(|| format!("unlink {}", path.display()))?;
    }
    Ok(outcome([("files_per_s", f64::from(files) / started.elapsed().as_secs_f64())]))
}

pub(super) fn rename(dir: &Path, files: u32) -> Result<Outcome> {
    let part = part_dir(dir, 0);
    let started = Instant::now();
    for index in 0..files {
        let path = file_path(&part, index);
        fs::rename(&path, path.with_extension("renamed")).with_context(|| format!("rename {}", path.display()))?;
    }
    Ok(outcome([("files_per_s", f64::from(files) / started.elapsed().as_secs_f64())]))
}

fn part_dir(dir: &Path, index: u32) -> PathBuf {
    dir.join(format!("p{index}"))
}

fn file_path(dir: &Path, index: u32) -> PathBuf {
    dir.join(format!("f{index:05}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_were_created_can_be_read_and_unlinked() {
        let dir = tempfile::tempdir().unwrap();
        let files = dir.path().join("files");
        assert!(create(&files, 10, 1, true).unwrap()["files_per_s"] > 0.0);
        assert!(read(&files, 10).unwrap()["files_per_s"] > 0.0);
        assert!(read(&files, 11).is_err(), "there is no eleventh");
        unlink(&files, 10).unwrap();
        assert_eq!(fs::read_dir(part_dir(&files, 0)).unwrap().count(), 0);
        let renamed = dir.path().join("renamed");
        create(&renamed, 2, 1, false).unwrap();
        rename(&renamed, 2).unwrap();
        assert!(read(&renamed, 2).is_err() && part_dir(&renamed, 0).join("f00001.renamed").exists());
    }
}
