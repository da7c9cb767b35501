//! Runs other programs: with a deadline, in a process group of their own, and given up when the
//! user interrupts.
//!
//! Owns the only global of this program, the "interrupted" flag. Invariant: when [`run`] returns an
//! error, the child it started has ended, and so have all other processes of its group. Children
//! are in groups of their own, so that a ctrl-C at the terminal reaches only this program, which
//! then takes everything down in order.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_interrupt(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Makes SIGINT, SIGTERM and SIGHUP set the flag that [`check_interrupt`] reads, instead of ending
/// the program.
pub fn catch_interrupts() -> Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the structure is plain data for which zero is valid, and the handler only stores
        // to an atomic.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note_interrupt as extern "C" fn(libc::c_int) as usize;
            libc::sigaction(signal, &action, std::ptr::null_mut())
        };
        ensure!(result == 0, "install a signal handler: {}", std::io::Error::last_os_error());
    }
    Ok(())
}

/// Fails if the user has asked to stop.
pub fn check_interrupt() -> Result<()> {
    ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
    Ok(())
}

/// Sleeps. Fails if the user has asked to stop, or does so meanwhile.
pub fn pause(time: Duration) -> Result<()> {
    let until = Instant::now() + time;
    loop {
        check_interrupt()?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// What an interrupt does to a running command: work is given up, cleaning up is not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Interrupts {
    /// An interrupt ends the command and is returned as an error.
    Obey,
    /// The command runs to its end or its deadline.
    Ignore,
}

/// Runs a program to its end and returns what it wrote to stdout.
///
/// Output goes through unlinked files rather than pipes, because a daemon that a script leaves
/// behind keeps them open. Fails if the program cannot be started, fails, or exceeds the deadline;
/// the error holds the end of its stderr.
pub fn run(command: &mut Command, deadline: Duration, interrupts: Interrupts) -> Result<String> {
    let name = name_of(command);
    let mut stdout = scratch_file()?;
    let mut stderr = scratch_file()?;
    command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::from(stdout.try_clone().context("duplicate a descriptor")?))
        .stderr(Stdio::from(stderr.try_clone().context("duplicate a descriptor")?));
    let mut child = command.spawn().with_context(|| format!("start {name}"))?;
    let status = match wait(&mut child, deadline, interrupts) {
        Ok(status) => status,
        Err(error) => {
            kill_group(&mut child);
            return Err(error.context(format!("run {name}")));
        }
    };
    if !status.success() {
        bail!("{name}: {status}: {} {}", text_of(&mut stdout)?.trim(), tail(text_of(&mut stderr)?.trim()));
    }
    text_of(&mut stdout)
}

/// True if a program of this name is in one of the folders of PATH.
pub fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// The program and its arguments, without the environment, which `Debug` would show too.
fn name_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn wait(child: &mut Child, deadline: Duration, interrupts: Interrupts) -> Result<ExitStatus> {
    let end = Instant::now() + deadline;
    // Polls with growing pauses: measured programs take their own time, so a late wake-up here
    // changes no result.
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait().context("wait for a child")? {
            return Ok(status);
        }
        if interrupts == Interrupts::Obey {
            check_interrupt()?;
        }
        ensure!(Instant::now() < end, "not finished after {} s", deadline.as_secs());
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

fn kill_group(child: &mut Child) {
    // SAFETY: kill takes plain numbers; the group is the child's own, and the child has not been
    // waited for.
    unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
    // A process stuck in a hung mount does not die before the mount does, so this does not wait for
    // it without limit.
    for _ in 0..50 {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn scratch_file() -> Result<File> {
    use std::os::fd::FromRawFd;
    // SAFETY: the name is a C string; the returned descriptor is new and has no other owner.
    unsafe {
        let fd = libc::memfd_create(c"bench-output".as_ptr(), libc::MFD_CLOEXEC);
        ensure!(fd >= 0, "create a memory file: {}", std::io::Error::last_os_error());
        Ok(File::from_raw_fd(fd))
    }
}

fn text_of(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes)).context("read a program's output")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn tail(text: &str) -> &str {
    const SHOWN: usize = 1000;
    let mut start = text.len().saturating_sub(SHOWN);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(pid: &str) {
        // SAFETY: kill takes plain numbers; the process was started by this test.
        unsafe { libc::kill(pid.trim().parse().unwrap(), libc::SIGKILL) };
    }

    #[test]
    fn output_is_returned_although_a_daemon_keeps_it_open() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!"]);
        // This would exceed its deadline if it waited for the daemon.
        let daemon = run(&mut command, Duration::from_secs(30), Interrupts::Ignore).unwrap();
        end(&daemon);
    }

    #[test]
    fn failure_reports_stderr() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo broken >&2; exit 3"]);
        let error = run(&mut command, Duration::from_secs(10), Interrupts::Ignore).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("sh -c") && text.ends_with("broken"), "{text}");
    }

    #[test]
    fn deadline_ends_the_whole_group() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $! > \"$0\"; wait"]).arg(&file);
        let error = run(&mut command, Duration::from_secs(1), Interrupts::Ignore).unwrap_err();
        assert!(format!("{error:#}").contains("not finished"), "{error:#}");
        let grandchild = std::fs::read_to_string(&file).unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", grandchild.trim())).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "still running: {stat}");
    }

    #[test]
    fn programs_are_found_by_their_names() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-program-has-this-name"));
    }

    #[test]
    fn tail_does_not_split_a_character() {
        let text = "é".repeat(1000);
        assert!(tail(&text).chars().all(|c| c == 'é'));
        assert_eq!(tail("short"), "short");
    }
}
