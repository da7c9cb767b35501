//! `--background`: runs the same command again, without `--background`, in a session of its own.
//!
//! Its messages go to the terminal until it has a folder of its own, and from then on to the log
//! there. The first process returns when the second one serves, or says why it does not.

use crate::usage;
use anyhow::Context;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// Environment variable that marks the background process.
const MARK: &str = "STARLING_BACKGROUND";

/// Starts the background process, with `input` on its standard input. Its first line begins with
/// one of `ready` when it serves.
pub fn start(folder: &Path, ready: &[&str], input: Option<&str>) -> anyhow::Result<ExitCode> {
    let log_path = folder.join(storage::site::LOG);
    let before = std::fs::metadata(&log_path).map_or(0, |log| log.len());
    let mut command = Command::new(std::env::current_exe().context("own path")?);
    command.args(std::env::args_os().skip(1).filter(|a| a != "--background")).env(MARK, "1");
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() }).stdout(Stdio::piped());
    // SAFETY: setsid is async-signal-safe and touches no memory.
    unsafe {
        command.pre_exec(|| if libc::setsid() < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) });
    }
    let mut child = command.spawn().context("start the background process")?;
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        // If the process has ended, its log says why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let stdout = child.stdout.take().context("output of the background process")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).context("output of the background process")?;
    if ready.iter().any(|ready| line.starts_with(ready)) {
        print!("{line}");
        println!("serving as process {}; its log: {}", child.id(), log_path.display());
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait().context("background process")?;
    if let Ok(mut log) = std::fs::File::open(&log_path) {
        let mut text = String::new();
        log.seek(SeekFrom::Start(before)).context("log file")?;
        log.read_to_string(&mut text).context("log file")?;
        eprint!("{text}");
    }
    Ok(ExitCode::from(status.code().and_then(|c| u8::try_from(c).ok()).filter(|c| *c > 0).unwrap_or(1)))
}

/// True in the background process.
pub fn is_it() -> bool {
    std::env::var_os(MARK).is_some()
}

/// In the background process: sends all messages to the log in `folder` from now on.
pub fn take_over(folder: &Path) -> anyhow::Result<()> {
    if !is_it() {
        return Ok(());
    }
    let path = folder.join(storage::site::LOG);
    let log = OpenOptions::new().create(true).append(true).open(&path);
    let log = log.map_err(|e| usage(format!("{}: {e}", path.display())))?;
    // SAFETY: both descriptors are open; no object owns and closes standard error.
    if unsafe { libc::dup2(log.as_raw_fd(), libc::STDERR_FILENO) } < 0 {
        return Err(std::io::Error::last_os_error()).context("log file");
    }
    Ok(())
}
