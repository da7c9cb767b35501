//! git: a repository, always the same, and what users do with it.
//!
//! git gets a home of its own and reads no configuration of the user or the machine.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::{Outcome, outcome, project};

/// Sources that each commit but the first edits.
const EDITS: u32 = 5;
/// The date of every commit, so that a repository is the same each time.
const DATE: &str = "2000-01-01T00:00:00Z";
/// git's settings: nothing runs in the background, and the author has a name.
const SETTINGS: [&str; 4] = ["gc.auto=0", "core.fsmonitor=false", "user.name=bench", "user.email=bench@localhost"];

/// git with a home of its own.
struct Git {
    home: TempDir,
}

impl Git {
    fn new() -> Result<Git> {
        Ok(Git { home: tempfile::tempdir().context("make a home for git")? })
    }

    fn run(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<()> {
        let mut git = Command::new("git");
        git.args(SETTINGS.iter().flat_map(|setting| ["-c", setting])).args(arguments);
        // A hook of git has its own repository in the environment, where this git must not work.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"GIT_")) {
            git.env_remove(name);
        }
        git.env("HOME", self.home.path()).env("XDG_CONFIG_HOME", self.home.path());
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        git.env("GIT_AUTHOR_DATE", DATE).env("GIT_COMMITTER_DATE", DATE);
        let status = git.stdin(Stdio::null()).stdout(Stdio::null()).status().context("start git (is it installed?)")?;
        ensure!(status.success(), "git: {status}");
        Ok(())
    }

    /// Runs it in a work tree.
    fn run_in(&self, dir: &Path, arguments: &[&str]) -> Result<()> {
        let place = [OsStr::new("-C"), dir.as_os_str()];
        self.run(place.into_iter().chain(arguments.iter().map(OsStr::new)))
    }

    fn commit(&self, dir: &Path) -> Result<()> {
        self.run_in(dir, &["add", "-A"])?;
        self.run_in(dir, &["commit", "-q", "-m", "A change"])
    }

    /// Clones as from another machine: git sends a pack. Without `--no-local` it would copy or link
    /// the repository's files.
    fn clone(&self, options: &[&str], source: &Path, target: &Path) -> Result<()> {
        let options = ["clone", "-q", "--no-local"].iter().chain(options).map(OsStr::new);
        self.run(options.chain([source.as_os_str(), target.as_os_str()]))
    }
}

/// Makes a bare repository of a project with this many sources and headers: `files`, `commits`.
pub(super) fn make(dir: &Path, sources: u32, headers: u32, commits: u32) -> Result<Outcome> {
    let git = Git::new()?;
    let parent = dir.parent().context("a folder in a folder")?;
    let tree = tempfile::tempdir_in(parent).context("make a work tree")?;
    let made = project::make(tree.path(), sources, headers, sources)?;
    git.run_in(tree.path(), &["init", "-q", "-b", "main"])?;
    git.commit(tree.path())?;
    for commit in 1..commits {
        project::edit_all(tree.path(), EDITS.min(sources), &format!("Edited for commit {commit}."))?;
        git.commit(tree.path())?;
    }
    git.clone(&["--bare"], tree.path(), dir)?;
    Ok(outcome([("files", made["files"]), ("commits", f64::from(commits))]))
}

/// Clones a repository: `seconds`.
pub(super) fn clone(source: &Path, target: &Path) -> Result<Outcome> {
    timed(|git| git.clone(&[], source, target))
}

/// Asks what has changed: `seconds`.
pub(super) fn status(dir: &Path) -> Result<Outcome> {
    timed(|git| git.run_in(dir, &["status", "--porcelain"]))
}

/// Adds and commits all that has changed: `seconds`.
pub(super) fn commit(dir: &Path) -> Result<Outcome> {
    timed(|git| git.commit(dir))
}

fn timed(what: impl FnOnce(&Git) -> Result<()>) -> Result<Outcome> {
    let git = Git::new()?;
    let started = Instant::now();
    what(&git)?;
    Ok(outcome([("seconds", started.elapsed().as_secs_f64())]))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn head(dir: &Path) -> String {
        fs::read_to_string(dir.join("packed-refs")).unwrap()
    }

    #[test]
    fn repository_is_the_same_each_time_and_its_clone_takes_a_commit() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two, cloned] = ["one", "two", "clone"].map(|name| dir.path().join(name));
        assert_eq!(make(&one, 8, 2, 3).unwrap()["commits"], 3.0);
        make(&two, 8, 2, 3).unwrap();
        assert_eq!(head(&one), head(&two));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the work trees are gone");
        clone(&one, &cloned).unwrap();
        status(&cloned).unwrap();
        assert!(commit(&cloned).is_err(), "nothing has changed");
        project::edit_all(&cloned, 8, "Edited.").unwrap();
        commit(&cloned).unwrap();
        assert!(commit(&cloned).is_err(), "all is committed");
    }
}
