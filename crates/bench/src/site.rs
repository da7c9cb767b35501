//! The surroundings of a run: its folder, Starling's program, and the machine.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use crate::command::{self, Interrupts};
use crate::results::Machine;
use crate::scripted::Site;

/// The folder that holds everything of one run; removed at the end.
pub struct RunFolder {
    site: Site,
}

impl RunFolder {
    /// Makes a folder in `parent` and puts the scripts there.
    pub fn new(parent: &Path, starling: Option<PathBuf>, starling_args: String) -> Result<RunFolder> {
        // Absolute, and without links: mount tables and daemons see it as it is.
        let parent = parent.canonicalize().with_context(|| format!("find {}", parent.display()))?;
        let root = parent.join(format!("starling-bench-{}", std::process::id()));
        fs::create_dir(&root).with_context(|| format!("create {}", root.display()))?;
        let folder = RunFolder { site: Site { root, starling, starling_args, request_log: None } };
        folder.site.prepare()?;
        Ok(folder)
    }

    /// What the run's targets must know.
    pub fn site(&self) -> &Site {
        &self.site
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // A target that could not be taken down may still be mounted below, and this program must
        // not remove its files.
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let root = &self.site.root;
        if root.to_str().is_some_and(|root| mounts.contains(&format!(" {root}/"))) {
            eprintln!("bench: {} is kept: something is still mounted there", root.display());
        } else if let Err(error) = fs::remove_dir_all(root) {
            eprintln!("bench: remove {}: {error}", root.display());
        }
    }
}

/// Longest time for a build; a small machine takes long.
const BUILD_DEADLINE: Duration = Duration::from_secs(3600);

/// Starling's program: the one given, or else a release build of this workspace.
pub fn starling_program(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        ensure!(path.is_file(), "no program at {}", path.display());
        return path.canonicalize().with_context(|| format!("find {}", path.display()));
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    // Beside this program, which cargo put in `TARGET/PROFILE/`.
    let this = std::env::current_exe().context("find this program")?;
    let target_dir = this.parent().and_then(Path::parent).context("this program is not in a build folder")?;
    eprintln!("building starling");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "-p", "starling", "--manifest-path"]).arg(manifest);
    cargo.arg("--target-dir").arg(target_dir);
    command::run(&mut cargo, BUILD_DEADLINE, Interrupts::Obey).context("build starling (or give --starling PATH)")?;
    let program = target_dir.join("release/starling");
    ensure!(program.is_file(), "the build left no {}", program.display());
    Ok(program)
}

/// Seconds since 1970.
pub fn unix_time_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The facts of this machine; `dir` tells which file system counts as the local one.
pub fn machine(dir: &Path) -> Result<Machine> {
    let read = |path: &str| fs::read_to_string(path).with_context(|| format!("read {path}"));
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let memory_kib = field(&read("/proc/meminfo")?, "MemTotal")
        .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .context("no MemTotal in /proc/meminfo")?;
    Ok(Machine {
        processor: field(&read("/proc/cpuinfo")?, "model name").unwrap_or_else(|| "unknown".to_owned()),
        processor_count: std::thread::available_parallelism().context("count processors")?.get(),
        memory_mib: memory_kib / 1024,
        kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        file_system: file_system(dir)?,
    })
}

fn file_system(dir: &Path) -> Result<String> {
    let name = CString::new(dir.as_os_str().as_bytes()).context("folder with a NUL in its name")?;
    // SAFETY: the name is a C string and the structure, for which zero is valid, lives through the
    // call.
    let (result, magic) = unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        (libc::statfs(name.as_ptr(), &mut stat), stat.f_type)
    };
    ensure!(result == 0, "statfs {}: {}", dir.display(), std::io::Error::last_os_error());
    Ok(match magic {
        libc::EXT4_SUPER_MAGIC => "ext4".to_owned(),
        libc::TMPFS_MAGIC => "tmpfs (not a disk: results do not count)".to_owned(),
        other => format!("file system of type {other:#x}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_folder_has_the_scripts_and_goes_away() {
        let parent = tempfile::tempdir().unwrap();
        let folder = RunFolder::new(parent.path(), None, String::new()).unwrap();
        assert!(folder.site().root.join("scripts/common.sh").exists());
        drop(folder);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn machine_is_described() {
        let machine = machine(Path::new("/")).unwrap();
        assert!(machine.processor_count > 0 && machine.memory_mib > 0 && !machine.kernel.is_empty());
        assert!(super::machine(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn given_program_must_exist() {
        assert!(starling_program(Some(Path::new("/nonexistent"))).is_err());
    }
}
