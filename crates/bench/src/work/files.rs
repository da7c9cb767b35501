//! Many small files in one folder, by one process or several.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{Outcome, outcome, parse_outcome};

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
            create_files(only, files, fsync)?;
            started.elapsed().as_secs_f64()
        }
        _ => create_in_processes(&parts, files / processes, fsync)?,
    };
    let created = files / processes * processes;
    Ok(outcome([("files_per_s", f64::from(created) / seconds)]))
}

/// Starts a process per folder, lets all begin at once, and returns the seconds from the first
/// begin to the last end, without starting and ending the processes.
fn create_in_processes(parts: &[PathBuf], files_each: u32, fsync: bool) -> Result<f64> {
    let program = std::env::current_exe().context("find this program")?;
    let mut children: Vec<Child> = Vec::new();
    for part in parts {
        let mut command = Command::new(&program);
        command.args(["work", "create-part", "--files", &files_each.to_string()]).arg(part);
        if fsync {
            command.arg("--fsync");
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("start a process")?;
        children.push(child);
    }
    // Each process says on stdout that it is ready; only then do they begin.
    for child in &mut children {
        let stdout = child.stdout.as_mut().context("a child without stdout")?;
        stdout.read_exact(&mut [0; READY.len()]).context("wait for a process to be ready")?;
    }
    for child in &mut children {
        drop(child.stdin.take());
    }
    let (mut begin, mut end) = (f64::INFINITY, f64::NEG_INFINITY);
    for child in children {
        let output = child.wait_with_output().context("wait for a process")?;
        ensure!(output.status.success(), "a process failed: {}", output.status);
        let result = parse_outcome(&String::from_utf8_lossy(&output.stdout))?;
        begin = begin.min(*result.get("begin_s").context("begin_s")?);
        end = end.max(*result.get("end_s").context("end_s")?);
    }
    Ok(end - begin)
}

const READY: &[u8] = b"ready\n";

pub(super) fn create_part(dir: &Path, files: u32, fsync: bool) -> Result<Outcome> {
    std::io::stdout().write_all(READY).and_then(|()| std::io::stdout().flush()).context("say that it is ready")?;
    std::io::stdin().read_to_end(&mut Vec::new()).context("wait for the start")?;
    let begin = monotonic_seconds();
    create_files(dir, files, fsync)?;
    Ok(outcome([("begin_s", begin), ("end_s", monotonic_seconds())]))
}

/// The clock that all processes of the machine share.
fn monotonic_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a structure of the right type that lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn create_files(dir: &Path, files: u32, fsync: bool) -> Result<()> {
    let mut content = vec![b'a'; FILE_BYTES];
    for index in 0..files {
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
