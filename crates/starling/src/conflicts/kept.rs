//! The kept versions of a resolved conflict, for `undo`: the folder `resolved/VOLUME/NUMBER/` of
//! the cache.
//!
//! [`ABOUT`] says what was done. For a conflict of contents, `mine`, `theirs`, `base` and `merged`
//! are the versions. A version that is missing stands for no file; a directory stands for any
//! directory. `trouble` is the conflict itself, as the process that serves the mount knows it.
//!
//! This must survive a crash at any point. [`ABOUT`] is written when both versions are durable,
//! before anything is removed. A file's contents are replaced within the file, which is not one
//! step: a crash can leave part of a version there. [`ABOUT`] says so beforehand, and the next
//! `resolve` or `undo` goes on with the kept versions. It does not replace anything that another
//! program has put there since.

use super::versions::{Kind, Tree, is_same, keep, kind, put};
use crate::attributes::Meant;
use crate::names::shown;
use crate::{private, usage};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const ABOUT: &str = "kept.json";
/// Format version of [`ABOUT`].
const FORMAT: u16 = 1;
/// The version that both were made from.
pub const BASE: &str = "base";
/// The conflict, as the process that serves the mount knows it.
pub const CASE: &str = "trouble";

/// A version of the file at a place.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// This mount's.
    Mine,
    /// The home's.
    Theirs,
    /// The merged version.
    Merged,
}

impl Version {
    fn name(self) -> &'static str {
        match self {
            Version::Mine => "mine",
            Version::Theirs => "theirs",
            Version::Merged => "merged",
        }
    }
}

/// What was in conflict, and how it was resolved. Paths are from the mount's root.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// The contents of a file, or its existence.
    Contents(Contents),
    /// Attributes of a file.
    Attributes {
        /// The file.
        place: Vec<u8>,
        /// Their values before this mount's were set, if these were set.
        before: Option<Meant>,
    },
    /// A name.
    Name {
        /// As this mount wants it.
        place: Vec<u8>,
        /// As it was at home.
        before: Vec<u8>,
    },
}

/// A conflict of contents.
#[derive(Serialize, Deserialize, Debug)]
pub struct Contents {
    /// The path of the home's version.
    pub place: Vec<u8>,
    /// The path of this mount's version, or the path that `undo` gives it; `None` if there is none.
    pub mine: Option<Vec<u8>>,
    /// Attributes of this mount's file and of the home's.
    mine_like: Vec<Meant>,
    theirs_like: Vec<Meant>,
    /// The version at the place.
    has: Version,
    /// Whether that version is there completely.
    is_whole: bool,
}

#[derive(Serialize, Deserialize)]
struct About {
    format: u16,
    what: What,
}

/// The folder with the kept versions of a conflict.
pub struct Kept<'a> {
    folder: PathBuf,
    tree: &'a Tree,
    pub what: What,
}

impl<'a> Kept<'a> {
    /// Opens the kept versions in a folder, if there are any.
    pub fn open(folder: &Path, tree: &'a Tree) -> anyhow::Result<Option<Kept<'a>>> {
        let path = folder.join(ABOUT);
        let about: About = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| shown(&path))?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| shown(&path)),
        };
        if about.format != FORMAT {
            return Err(usage(format!("{} is of another version of starling: use that one", shown(&path))));
        }
        Ok(Some(Kept { folder: folder.to_owned(), tree, what: about.what }))
    }

    /// Keeps a conflict that needs no versions.
    pub fn make(folder: &Path, tree: &'a Tree, what: What) -> anyhow::Result<Kept<'a>> {
        private::make(folder)?;
        let kept = Kept { folder: folder.to_owned(), tree, what };
        kept.save()?;
        // The folder's name may be new, and so may those of the folders above.
        kept.folder.ancestors().skip(1).take(3).try_for_each(private::sync)?;
        Ok(kept)
    }

    fn save(&self) -> anyhow::Result<()> {
        let what = serde_json::to_value(&self.what)?;
        let about = serde_json::to_vec_pretty(&serde_json::json!({ "format": FORMAT, "what": what }))?;
        Ok(private::put(&self.folder, ABOUT, &about)?)
    }

    /// Removes the kept versions. The base stays, for the next time that the conflict is resolved.
    pub fn forget(self) -> anyhow::Result<()> {
        forget(&self.folder)
    }
}

fn forget(folder: &Path) -> anyhow::Result<()> {
    let all = [Version::Mine, Version::Theirs, Version::Merged].map(Version::name);
    // Without the first file, the folder counts as empty.
    for name in [ABOUT, CASE].into_iter().chain(all) {
        let path = folder.join(name);
        let removed = match kind(&path)? {
            None => Ok(()),
            Some(Kind::Directory) => std::fs::remove_dir(&path),
            Some(_) => std::fs::remove_file(&path),
        };
        removed.with_context(|| shown(&path))?;
        if name == ABOUT {
            private::sync(folder)?;
        }
    }
    Ok(())
}

/// The files with the versions of contents in conflict.
pub struct Versions<'a> {
    pub place: &'a [u8],
    /// The file with this mount's version, if there is one, and its path when it was brought back.
    pub mine: Option<(&'a Path, Vec<u8>)>,
    /// That file is on the mount, so its attributes are those that users see.
    pub is_beside: bool,
    pub base: Option<&'a Path>,
}

impl<'a> Kept<'a> {
    /// Keeps all versions, and removes versions that the folder kept before.
    pub fn make_of(folder: &Path, tree: &'a Tree, versions: Versions<'_>) -> anyhow::Result<Kept<'a>> {
        let Versions { place, mine, is_beside, base } = versions;
        private::make(folder)?;
        forget(folder)?;
        let theirs = tree.at(place)?;
        let like = |path: &Path| match kind(path)? {
            None => Ok(Vec::new()),
            Some(_) => Meant::all_of(path),
        };
        let mut contents = Contents {
            place: place.to_vec(),
            mine: None,
            mine_like: Vec::new(),
            theirs_like: like(&theirs)?,
            has: Version::Theirs,
            is_whole: true,
        };
        keep(&theirs, &folder.join(Version::Theirs.name()))?;
        if let Some((mine, back)) = mine {
            contents.mine = Some(back);
            contents.mine_like = if is_beside { like(mine)? } else { Vec::new() };
            keep(mine, &folder.join(Version::Mine.name()))?;
        }
        let known = folder.join(BASE);
        if let Some(base) = base.filter(|base| *base != known) {
            keep(base, &known)?;
        }
        Kept::make(folder, tree, What::Contents(contents))
    }

    fn contents(&mut self) -> anyhow::Result<&mut Contents> {
        match &mut self.what {
            What::Contents(contents) => Ok(contents),
            _ => Err(anyhow::anyhow!("{} is not about a conflict of contents", shown(&self.folder))),
        }
    }

    fn version(&self, version: Version) -> PathBuf {
        self.folder.join(version.name())
    }

    /// True if nothing seems to have been changed yet, so that resolving can begin anew.
    pub fn is_untouched(&self) -> anyhow::Result<bool> {
        let What::Contents(Contents { mine, has: Version::Theirs, is_whole: true, .. }) = &self.what else {
            return Ok(false);
        };
        match mine {
            Some(mine) => Ok(kind(&self.tree.at(mine)?)?.is_some()),
            None => Ok(true),
        }
    }

    /// Puts a version at the place, unless it is there already. Refuses if another program has
    /// changed the file there.
    pub fn bring(&mut self, version: Version) -> anyhow::Result<()> {
        let (tree, wanted) = (self.tree, self.version(version));
        let (has, is_whole) = (self.contents()?.has, self.contents()?.is_whole);
        if (has, is_whole) == (version, true) {
            return Ok(());
        }
        let place = tree.at(&self.contents()?.place)?;
        if !is_same(&wanted, &place)? {
            if is_whole && kind(&place)?.is_some() && !is_same(&self.version(has), &place)? {
                return Err(usage(format!(
                    "{} was changed since: move it, or a copy of it, away first",
                    shown(&place)
                )));
            }
            self.say(version, false)?;
            let like = match version {
                Version::Mine => self.contents()?.mine_like.clone(),
                _ => self.contents()?.theirs_like.clone(),
            };
            put(&wanted, &like, &place)?;
        }
        self.say(version, true)
    }

    fn say(&mut self, has: Version, is_whole: bool) -> anyhow::Result<()> {
        let contents = self.contents()?;
        (contents.has, contents.is_whole) = (has, is_whole);
        self.save()
    }

    /// Rights of this mount's version that the home's file, which stays, does not have.
    pub fn rights_of_mine(&self) -> Option<String> {
        let What::Contents(Contents { mine_like, theirs_like, .. }) = &self.what else { return None };
        let rights = mine_like.first()?.rights_unlike(theirs_like.first()?);
        Some(rights).filter(|rights| !rights.is_empty())
    }

    /// Removes this mount's version from its path. If it was changed since, it stays, and its path
    /// is returned.
    pub fn remove_mine(&mut self) -> anyhow::Result<Option<PathBuf>> {
        let tree = self.tree;
        let Some(mine) = self.contents()?.mine.clone() else { return Ok(None) };
        let mine = tree.at(&mine)?;
        if kind(&mine)?.is_none() {
            return Ok(None);
        }
        if !is_same(&mine, &self.version(Version::Mine))? {
            return Ok(Some(mine));
        }
        std::fs::remove_file(&mine).with_context(|| format!("remove {}", shown(&mine)))?;
        Ok(None)
    }

    /// Restores both versions at their paths. Returns a message about what was done.
    pub fn restore(&mut self) -> anyhow::Result<String> {
        match &self.what {
            What::Contents(_) => self.restore_contents(),
            What::Attributes { place, before: Some(before) } => {
                let place = self.tree.at(place)?;
                before.set(&place)?;
                Ok(format!("{} has now {}", shown(&place), before.text()))
            }
            What::Attributes { place, before: None } => Ok(format!("{} stays as it is", shown(self.tree.at(place)?))),
            What::Name { place, before } => {
                let (place, before) = (self.tree.at(place)?, self.tree.at(before)?);
                rename(&place, &before)?;
                Ok(format!("{} is {} again", shown(&place), shown(&before)))
            }
        }
    }

    fn restore_contents(&mut self) -> anyhow::Result<String> {
        let tree = self.tree;
        let (place, mine) = (tree.at(&self.contents()?.place)?, self.contents()?.mine.clone());
        let mine = mine.map(|mine| tree.at(&mine)).transpose()?;
        if let Some(mine) = &mine
            && !is_same(mine, &self.version(Version::Mine))?
        {
            if kind(mine)?.is_some() {
                return Err(usage(format!("{} is there: move it away first", shown(mine))));
            }
            put(&self.version(Version::Mine), &self.contents()?.mine_like, mine)?;
        }
        let is_there = kind(&self.version(Version::Theirs))?.is_some();
        self.bring(Version::Theirs)?;
        let here = mine.map(|mine| format!("{} has this mount's version", shown(mine)));
        let there = is_there.then(|| format!("{} is as it was at home", shown(&place)));
        Ok([there, here].into_iter().flatten().collect::<Vec<_>>().join(", and "))
    }

    /// Merges both versions with a program.
    pub fn merge(&self, program: &str) -> anyhow::Result<()> {
        let [mine, theirs, base] =
            [Version::Mine.name(), Version::Theirs.name(), BASE].map(|name| self.folder.join(name));
        if kind(&base)?.is_none() {
            return Err(usage("the common base of both versions is unknown: merge them by hand"));
        }
        for version in [&mine, &theirs] {
            if kind(version)? != Some(Kind::File) {
                return Err(usage("there are not two files to merge: resolve it as mine or theirs"));
            }
        }
        let mut words = program.split_whitespace();
        let name = words.next().ok_or_else(|| usage("--merge: name a program"))?;
        let output = self.folder.join("merging");
        let to = std::fs::File::create(&output)?;
        let mut command = Command::new(name);
        command.args(words).args([&mine, &base, &theirs]).stdin(Stdio::null()).stdout(to.try_clone()?);
        let status = command.status().map_err(|e| usage(format!("--merge {name}: {e}")))?;
        if !status.success() {
            return Err(usage(format!(
                "{name} could not merge them ({status}): neither version has changed; merge them by hand"
            )));
        }
        to.sync_all()?;
        std::fs::rename(&output, self.version(Version::Merged))?;
        Ok(private::sync(&self.folder)?)
    }
}

/// Renames a file, unless that was done already.
pub fn rename(from: &Path, to: &Path) -> anyhow::Result<()> {
    match (kind(from)?, kind(to)?) {
        (Some(_), None) => std::fs::rename(from, to).with_context(|| format!("{} to {}", shown(from), shown(to))),
        (None, Some(_)) => Ok(()),
        (None, None) => Err(usage(format!("{} is not there: it was moved or removed", shown(from)))),
        (Some(_), Some(_)) => Err(usage(format!("{} is there: move it away first", shown(to)))),
    }
}
