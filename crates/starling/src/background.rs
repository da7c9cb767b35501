//! `--background`: the same command again without `--background`, in a session of its own, logging to the data folder or
//! the store's folder. Returns when that process serves, or says why it does not.

use crate::usage;
use anyhow::Context;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// See the module's header. `ready` is what the first line begins with when the process serves.
pub fn start(folder: &Path, ready: &str) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(folder).map_err(|e| usage(format!("cannot make the folder {}: {e}", folder.display())))?;
    let log_path = folder.join(storage::site::LOG);
    let log = OpenOptions::new().create(true).append(true).open(&log_path);
    let log = log.map_err(|e| usage(format!("{}: {e}", log_path.display())))?;
    let before = log.metadata().context("log file")?.len();
    let mut command = Command::new(std::env::current_exe().context("own path")?);
    command.args(std::env::args_os().skip(1).filter(|a| a != "--background"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    // SAFETY: setsid is async-signal-safe and touches no memory.
    unsafe {
        command.pre_exec(|| if libc::setsid() < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) });
    }
    let mut child = command.spawn().context("start the background process")?;
    let stdout = child.stdout.take().context("output of the background process")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).context("output of the background process")?;
    if line.starts_with(ready) {
        print!("{line}");
        println!("serving as process {}; its log: {}", child.id(), log_path.display());
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait().context("background process")?;
    let mut text = String::new();
    let mut file = std::fs::File::open(&log_path).context("log file")?;
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(before)).context("log file")?;
    file.read_to_string(&mut text).context("log file")?;
    eprint!("{text}");
    Ok(ExitCode::from(status.code().and_then(|c| u8::try_from(c).ok()).filter(|c| *c > 0).unwrap_or(1)))
}
